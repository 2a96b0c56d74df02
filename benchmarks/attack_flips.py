"""How often the intervals of differences between the decisions of two attacks contain the true difference.

    python -m benchmarks attack_flips [--simulations=400] [--seed=0] [DESIGN ...]
    python -m benchmarks attack_flips --recipes DIR [DIR ...]

The first command simulates replicas of one target and two attacks on them, and computes the differences of
attack_flips.csv with their intervals: of the TPR, of the mean flip rate of members, and of the shares of coin flips
among the members and among the true positives. The true difference is the mean over all simulations. Prints a row of a
Markdown table for each design, FPR and number; DESIGNS are named below. 400 simulations of a design take 1 to 6 minutes
on one core.

Samples and replicas are drawn anew in every simulation. The loss of a replica on a sample is noise, minus, for members,
the gain of training on the sample, which is gamma distributed. Related samples share a part of the noise, and the gain
is larger or smaller for a replica as a whole. Both attacks score the distance of the loss below the sample's mean under
references; they estimate this mean with different errors, and the first one divides by a noisy estimate of the sample's
standard deviation, as LiRA with few references does. If documents are split, their pieces share these errors and gains.

The second command reads the losses of recipes with replicas, WORKDIR/recipes/NAME, and compares attacks with LiRA
there. It prints the half-widths of the intervals with the references held fixed, as in attack_flips.csv, and of
intervals that also cover the choice of the references, for which each attack is repeated with halves of them. Attacks
use no properties of samples here, so the differences are not exactly those of the table. A recipe takes about a minute.

B: replicas, N: samples, A1, R1 and H1: as in `lm_mia.stats.jackknife`.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.stats
from claim_numbers import Recipe, reference_parts

from lm_mia import stats

FPRS = (0.01, 0.05)
_FACTORS = 4
_SHARED = 0.5
"""The part of the variance of the noise that related samples share."""


@dataclasses.dataclass(frozen=True)
class Design:
    """A simulated experiment."""

    samples: int
    replicas: int
    pieces: int = 1
    """Number of samples per document."""

    def __str__(self) -> str:
        split = f", {self.pieces} per document" if self.pieces > 1 else ""
        return f"{self.samples:,} samples{split}; {self.replicas} replicas"


DESIGNS = {
    "small-16": Design(1024, 16),
    "large-16": Design(4096, 16),
    "small-32": Design(1024, 32),
    "large-32": Design(4096, 32),
    "pieces-32": Design(2048, 32, pieces=8),
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference of two attacks at each of `FPRS`."""

    value_F: np.ndarray
    margin_F: np.ndarray
    """Half the width of its interval."""
    unpaired_margin_F: np.ndarray
    """The same if the attacks were on different replicas and samples."""


def simulate_scores(
    rng: np.random.Generator, design: Design
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (score_BxN of the first attack, score_BxN of the second, member_N, document_N)."""
    documents = design.samples // design.pieces
    document_N = np.arange(design.samples) // design.pieces

    def of_documents(value_D: np.ndarray, value_N: np.ndarray, share: float) -> np.ndarray:
        share = share if design.pieces > 1 else 0
        return math.sqrt(share) * value_D[document_N] + math.sqrt(1 - share) * value_N

    def normal() -> np.ndarray:
        return of_documents(rng.normal(size=documents), rng.normal(size=design.samples), 0.5)

    member_N = rng.permutation(np.arange(design.samples) % 2 == 0)
    gain_N = gamma_from_normal(normal())
    weight_KxN = rng.normal(size=(_FACTORS, design.samples)) / math.sqrt(_FACTORS)
    shared_BxN = rng.normal(size=(design.replicas, _FACTORS)) @ weight_KxN
    own_BxN = rng.normal(size=shared_BxN.shape)
    strength_Bx1 = 1 + 0.1 * rng.normal(size=(design.replicas, 1))
    gap_BxN = 1.5 * strength_Bx1 * gain_N * member_N
    gap_BxN += math.sqrt(_SHARED) * shared_BxN + math.sqrt(1 - _SHARED) * own_BxN
    error_N = normal()  # of the mean under the references, which both attacks share in part
    first_BxN = (gap_BxN + 0.5 * error_N) * np.exp(0.4 * normal())
    second_BxN = gap_BxN + 0.3 * error_N + 0.3 * normal()
    return first_BxN, second_BxN, member_N, document_N


def gamma_from_normal(normal_N: np.ndarray) -> np.ndarray:
    """Returns gamma distributed numbers with mean 1 that rise with normal ones."""
    return scipy.stats.gamma.ppf(scipy.stats.norm.cdf(normal_N), 2) / 2


def compare(
    first_BxN: np.ndarray, second_BxN: np.ndarray, member_N: np.ndarray, document_N: np.ndarray
) -> dict[str, Difference]:
    """Returns the differences, second minus first, with the intervals of attack_flips.csv."""
    first, second = (
        decision_numbers(score_BxN[None], member_N, document_N)
        for score_BxN in (first_BxN, second_BxN)
    )
    return {
        name: Difference(
            (second[name] - first[name])[0, 0, 0],
            margins(second[name] - first[name]),
            np.hypot(margins(second[name]), margins(first[name])),
        )
        for name in first
    }


def decision_numbers(
    score_R1xBxN: Sequence[np.ndarray] | np.ndarray, member_N: np.ndarray, document_N: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns value_A1xR1xH1xF of the numbers that are compared, from scores with parts of the references."""
    group_N = stats.sample_groups(document_N)
    parts = [stats.decision_metrics(s, member_N, group_N, FPRS, 0) for s in score_R1xBxN]

    def stack(field: str) -> np.ndarray:
        return np.stack([getattr(metrics, f"{field}_A1xH1xF") for metrics in parts], axis=1)

    return {
        "TPR": stack("tpr"),
        "flip rate of members": stack("member_flip_rate"),
        "coin flips of members": stack("member_coin_flips"),
        "coin flips of true positives": stack("coin_flip_tpr") / stack("tpr"),
    }


def margins(value_A1xR1xH1xF: np.ndarray) -> np.ndarray:
    """Returns half the width of the interval at each rate."""
    return np.array([stats.jackknife_margin(value_A1xR1xH1xF[..., f]) for f in range(len(FPRS))])


def simulate(design: Design, simulations: int, seed: int) -> dict[str, Difference]:
    """Returns the differences of all simulations, in arrays with the simulations as first axis."""
    results = [
        compare(*simulate_scores(np.random.default_rng([seed, s]), design))
        for s in range(simulations)
    ]
    return {
        name: Difference(
            *(
                np.array([getattr(result[name], field.name) for result in results])
                for field in dataclasses.fields(Difference)
            )
        )
        for name in results[0]
    }


def is_covered(differences: Difference) -> np.ndarray:
    """Returns whether each interval of `simulate` contains the true difference."""
    true_F = differences.value_F.mean(axis=0)
    return np.abs(differences.value_F - true_F) <= differences.margin_F


def rows(designs: Sequence[str], simulations: int, seed: int) -> Iterator[Sequence[str]]:
    """Yields the rows of the table."""
    for name in designs:
        for number, differences in simulate(DESIGNS[name], simulations, seed).items():
            covered_SxF = is_covered(differences)
            for f, fpr in enumerate(FPRS):
                count = int(covered_SxF[:, f].sum())
                low, high = scipy.stats.binomtest(count, simulations).proportion_ci()
                yield (
                    str(DESIGNS[name]),
                    f"{number} at {100 * fpr:g}%",
                    f"{differences.value_F[:, f].mean():.3f}",
                    f"{100 * count / simulations:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
                    f"{differences.margin_F[:, f].mean():.3f}",
                    f"{differences.unpaired_margin_F[:, f].mean():.3f}",
                )


def attack_scores(recipe: Recipe, index_R: np.ndarray) -> dict[str, np.ndarray]:
    """Returns score_BxN of each attack with some of the references."""
    loss_BxN = recipe.replica_loss_BxN2
    references = recipe.loss_MxN2[index_R], recipe.member_MxN2[index_R]
    functions: dict[str, Callable[[], np.ndarray]] = {
        "LiRA": lambda: recipe.lira(loss_BxN, index_R),
        "Calibrated loss": lambda: stats.reference_calibrated_loss(loss_BxN, references[0]),
        "Shrunk LiRA": lambda: stats.shrunk_lira(loss_BxN, *references),
        "Stacked LiRA": lambda: stats.stacked_lira(loss_BxN, *references),
    }
    return {name: function() for name, function in functions.items()}


def recipe_rows(recipe_dirs: Sequence[Path]) -> Iterator[Sequence[str]]:
    """Yields the rows of the table of recipes."""
    for recipe_dir in recipe_dirs:
        recipe = Recipe.read(recipe_dir)
        member_N, references = recipe.replica_member_N2, len(recipe.loss_MxN2)
        scores = [attack_scores(recipe, part) for part in reference_parts(references, references)]
        numbers = {
            name: decision_numbers([s[name] for s in scores], member_N, np.arange(member_N.size))
            for name in scores[0]
        }
        for attack in list(numbers)[1:]:
            for name, value_A1xR1xH1xF in numbers[attack].items():
                difference = value_A1xR1xH1xF - numbers["LiRA"][name]
                fixed_F, covered_F = margins(difference[:, :1]), margins(difference)
                for f, fpr in enumerate(FPRS):
                    yield (
                        recipe_dir.name,
                        attack,
                        f"{name} at {100 * fpr:g}%",
                        f"{difference[0, 0, 0, f]:+.3f}",
                        f"{fixed_F[f]:.3f}",
                        f"{covered_F[f]:.3f}",
                    )


def _print_table(header: Sequence[str], table: Iterator[Sequence[str]], names: int) -> None:
    print(f"| {' | '.join(header)} |\n|{'---|' * names}{'---:|' * (len(header) - names)}")
    for row in table:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Coverage of differences between two attacks.")
    parser.add_argument("design", nargs="*", help=f"one of {', '.join(DESIGNS)} (default: all)")
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipes", type=Path, nargs="+", help="folders of recipes with replicas")
    options = parser.parse_args()
    if options.recipes:
        header = "recipe", "attack", "number", "difference", "references fixed", "covered"
        _print_table(header, recipe_rows(options.recipes), 3)
        return
    header = "design", "number", "true difference", "coverage, %", "mean margin", "unpaired"
    table = rows(options.design or [*DESIGNS], options.simulations, options.seed)
    _print_table(header, table, 2)


if __name__ == "__main__":
    main()
