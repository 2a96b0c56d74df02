"""Simulates how often bootstrap intervals contain the true value if samples are pieces of documents.

    python -m benchmarks clusters [--experiments 1000] [--replicates 500]

This prints a Markdown table and takes about 15 minutes on one core.

An experiment draws documents with a random number of pieces, each of which is a member with probability 1/2. The score
of a piece is level x a + member x (gap + vulnerability x v) + noise, where a, v and the noise are standard normal, and
all pieces of a document share a and v. The true AUC and the true TPR at each FPR, of pieces of infinitely many
documents, follow in closed form. The coverage is the share of experiments whose nominal 95 % interval contains the true
value; its standard error is 0.7 points at 95 % of 1,000 experiments. "samples" are the intervals of a bootstrap that
draws pieces, "documents" those of one that draws documents (`stats.bootstrap_intervals` with cluster_N), also where it
would give no interval because there are too few documents (marked by *).

D: documents, N: samples, F: false positive rates, S: statistics (the AUC and one TPR per rate), E: experiments.
"""

import argparse
import dataclasses
import itertools
import math
from unittest import mock

import numpy as np
import scipy.stats

from lm_mia import stats
from lm_mia.stats import intervals

FPRS = (0.01, 0.05, 0.1, 0.5)
GAP = 0.95


@dataclasses.dataclass(frozen=True)
class Design:
    """How the scores of the pieces of a document depend on each other."""

    name: str
    level: float
    """Standard deviation of the part of the score that all pieces of a document share."""
    vulnerability: float
    """Standard deviation over documents of the effect of membership."""
    documents: int
    mean_pieces: int

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns score_N, member_N and the document of each sample."""
        pieces_D = 1 + rng.poisson(self.mean_pieces - 1, self.documents)
        document_N = np.repeat(np.arange(self.documents), pieces_D)
        member_N = rng.random(document_N.size) < 0.5
        level_D = self.level * rng.normal(size=self.documents)
        gap_D = GAP + self.vulnerability * rng.normal(size=self.documents)
        score_N = rng.normal(size=document_N.size) + level_D[document_N]
        return score_N + member_N * gap_D[document_N], member_N, document_N

    def truth(self) -> np.ndarray:
        """Returns the true AUC and the true TPRs, truth_S."""
        normal = scipy.stats.norm
        nonmember_sd = math.hypot(1, self.level)
        member_sd = math.hypot(nonmember_sd, self.vulnerability)
        tpr_F = normal.sf((normal.isf(FPRS) * nonmember_sd - GAP) / member_sd)
        return np.r_[normal.cdf(GAP / math.hypot(nonmember_sd, member_sd)), tpr_F]


KINDS = (
    ("independent pieces", 0.0, 0.0),
    ("shared level", 1.0, 0.0),
    ("shared vulnerability", 0.0, 1.0),
    ("shared level and vulnerability", 1.0, 1.0),
)
SIZES = ((10, 50), (20, 50), (50, 20), (100, 10), (200, 10), (400, 5))
"""Numbers of documents, and mean numbers of their pieces."""


def covers(design: Design, experiments: int, replicates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coverage of both bootstraps, NaN without an interval; and the shares of experiments with the second.

    Returns:
      coverage_2xS (drawing samples, and documents), given_S.
    """
    rng, truth_S = np.random.default_rng([design.documents, len(design.name)]), design.truth()
    covered_2xExS = np.zeros((2, experiments, truth_S.size))
    given_ExS = np.zeros((experiments, truth_S.size), bool)
    for e in range(experiments):
        score_N, member_N, document_N = design.draw(rng)
        for b, cluster_N in enumerate((None, document_N)):
            # The rules on small counts are switched off, to show what they prevent.
            with mock.patch.multiple(intervals, MIN_COUNT=0, MIN_CLUSTERS=0):
                low_S, high_S = ends(score_N, member_N, cluster_N, replicates, e)
            covered_2xExS[b, e] = (low_S <= truth_S) & (truth_S <= high_S)
        given_ExS[e] = ~np.isnan(ends(score_N, member_N, document_N, 1, e)[0])
    return covered_2xExS.mean(axis=1), given_ExS.mean(axis=0)


def ends(
    score_N: np.ndarray,
    member_N: np.ndarray,
    cluster_N: np.ndarray | None,
    replicates: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the intervals, low_S and high_S."""
    result = stats.bootstrap_intervals(
        score_N, member_N, FPRS, cluster_N=cluster_N, replicates=replicates, seed=seed
    )
    low_S = np.r_[result.auc_low_T, result.tpr_low_TxF[0]]
    return low_S, np.r_[result.auc_high_T, result.tpr_high_TxF[0]]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--replicates", type=int, default=500)
    arguments = parser.parse_args()
    columns = ["AUC", *(f"TPR at {100 * fpr:g}%" for fpr in FPRS)]
    print(f"| scores | documents x pieces | drawn | {' | '.join(columns)} |")
    print("|---|---|---|" + "---:|" * len(columns))
    for (name, level, vulnerability), (documents, pieces) in itertools.product(KINDS, SIZES):
        design = Design(name, level, vulnerability, documents, pieces)
        coverage_2xS, given_S = covers(design, arguments.experiments, arguments.replicates)
        for drawn, coverage_S in zip(("samples", "documents"), coverage_2xS, strict=True):
            marks = ["*" if drawn == "documents" and given < 0.5 else "" for given in given_S]
            cells = [f"{100 * c:.1f}{mark}" for c, mark in zip(coverage_S, marks, strict=True)]
            print(
                f"| {name} | {documents} x {pieces} | {drawn} | {' | '.join(cells)} |", flush=True
            )


if __name__ == "__main__":
    main()
