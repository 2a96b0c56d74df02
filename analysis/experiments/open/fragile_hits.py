"""Open question 2: can an attacker with one target tell which of its true positives are stable?

Each replica in turn is the only target. The margins of its true positives at attack.focus_fpr are compared with the
decisions of the other replicas (`stats.hit_stability`).

    fragile_hits.parquet   what the margin tells, with all models and samples, and with parts of them
    fragile_hit_bins.csv   stability of the true positives by their margin

B: replicas, N: the samples that are used, M: members, A1, R1, H1: as in `lm_mia.stats.jackknife`.
"""

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.spec import Study, StudyNeed
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write

TABLE, BINS = "fragile_hits.parquet", "fragile_hit_bins.csv"
_QUARTERS, _TENTHS = 4, 10
_COLUMNS = ("flip_correlation", "stable_auc", "stable", "lowest_stable", "highest_stable", "hits")


def compute(
    view: StudyView,
    write: Write,
    *,
    focus_fpr: float,
    alpha: float,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> None:
    """Computes the tables of the study.

    Raises:
      Unavailable: there are too few replicas or references.
      UserError: scores are corrupt.
    """
    lira = {"variance": variance, "finite_population": finite_population}
    inputs = study_inputs.replicas(view)
    member_N2 = inputs.target_member_TxN2[0]
    group_N2 = stats.sample_groups(view.attacked.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))

    def evaluate(references: int, score_BxN: np.ndarray) -> tuple[np.ndarray, pd.DataFrame]:
        """Returns value_A1xH1xV of `_COLUMNS`, and the bins with all models and samples."""
        samples = score_BxN.shape[1]
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N2[:samples]) & present_N
        member_N = member_N2[:samples]
        values = np.full((len(kept_A1xB), len(used_H1xN), len(_COLUMNS)), np.nan)
        bins = pd.DataFrame()
        for h, used_N in enumerate(used_H1xN):
            score_BxM = score_BxN[:, used_N & member_N]
            outside_BxN = score_BxN[:, used_N & ~member_N]
            if not (score_BxM.size and study_inputs.has_threshold(outside_BxN, focus_fpr)):
                continue
            threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, focus_fpr)
            for a, kept_B in enumerate(kept_A1xB):
                values[a, h] = _summary(score_BxM[kept_B], threshold_B[kept_B], alpha)
            if h == references == 0:
                bins = _bins(score_BxM, threshold_B, alpha)
        return values, bins

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, lira, view.work.pool, evaluate)
    value_A1xR1xH1xV = np.stack([values for values, _ in results], axis=1)
    columns = {name: value_A1xR1xH1xV[..., v] for v, name in enumerate(_COLUMNS)}
    write(TABLE, study_inputs.parts_table(columns))
    write(BINS, results[0][1].assign(fpr=focus_fpr))


def _summary(score_BxM: np.ndarray, threshold_B: np.ndarray, alpha: float) -> list[float]:
    """Returns `_COLUMNS`, means over the replicas that have a value."""
    found = stats.hit_stability(score_BxM, threshold_B, alpha, _QUARTERS)
    by_replica = (
        found.flip_correlation_B,
        found.stable_auc_B,
        found.stable_B,
        found.stable_BxK[:, 0],
        found.stable_BxK[:, -1],
        found.hits_B,
    )
    return [_mean(value_B) for value_B in by_replica]


def _bins(score_BxM: np.ndarray, threshold_B: np.ndarray, alpha: float) -> pd.DataFrame:
    """Returns the rows of fragile_hit_bins.csv, means over replicas."""
    found = stats.hit_stability(score_BxM, threshold_B, alpha, _TENTHS)
    columns = {
        "margin_mean": found.margin_BxK,
        "stable": found.stable_BxK,
        "agreement": found.agreement_BxK,
        "flip_rate": found.flip_rate_BxK,
    }
    means = {name: [_mean(value_B) for value_B in v.T] for name, v in columns.items()}
    return pd.DataFrame({"bin": np.arange(_TENTHS)} | means)


def _mean(value_B: np.ndarray) -> float:
    """Returns the mean over the replicas that have a value; NaN if none has one."""
    known = value_B[~np.isnan(value_B)]
    return float(known.mean()) if known.size else np.nan


STUDY = Study(
    "fragile_hits",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written for figures that need the study `fragile_hits`. Each row is a choice of replicas, references "
                "and samples. The numbers are about true positives of online LiRA at `attack.focus_fpr` on the first "
                "32,768 samples. Each replica in turn is the only target, and the numbers are means over these "
                "targets. A true positive is stable if significantly more than half of the other replicas also decide "
                '"member", by the coin-flip test.'
            ),
            {
                "replicas, references, samples": Column(
                    "none", "as in `decision_jackknife.parquet`"
                ),
                "flip_correlation": Column(
                    "none",
                    (
                        "rank correlation over the true positives of the margin, which is the score minus the "
                        "threshold, and the flip rate under the other replicas"
                    ),
                ),
                "stable_auc": Column(
                    "fraction",
                    "probability that a stable true positive has a larger margin than one that is not stable",
                ),
                "stable": Column("fraction", "true positives that are stable"),
                "lowest_stable, highest_stable": Column(
                    "fraction",
                    "the same in the quarter of the true positives with the smallest and with the largest margins",
                ),
                "hits": Column("count", "true positives of a target"),
            },
            key=("replicas", "references", "samples"),
        ),
        Table(
            BINS,
            (
                "Written with `fragile_hits.parquet`. The true positives of each target are sorted by their margin "
                "and divided into ten bins of about equal size; each row is a bin, with means over the targets that "
                "have at least ten true positives."
            ),
            {
                "bin": Column("none", "number of the bin, 0 for the smallest margins"),
                "margin_mean": Column("nats", "mean margin"),
                "stable": Column("fraction", "as in `fragile_hits.parquet`"),
                "agreement": Column(
                    "fraction",
                    'other replicas that also decide "member", mean over the true positives',
                ),
                "flip_rate": Column(
                    "fraction", "flip rate under the other replicas, mean over the true positives"
                ),
                **common("fpr"),
            },
            key=("bin",),
        ),
    ),
)

RECIPE = "flip-140M"
STATEMENTS = (
    "True positives with a larger margin have a lower flip rate.",
    "Most true positives in the quarter with the largest margins are stable.",
)


def draw(recipes: SweepResults) -> Drawing:
    """Draws stability and flip rate of the true positives of one target, by their margin."""
    recipe = recipes[RECIPE]
    bins = io.read_frame(recipe, BINS)
    at = f"at an FPR of {percent(float(bins['fpr'].iloc[0]))}"
    correlation, auc, stable, lowest, highest, hits = (
        studies.read_parts(recipe, TABLE, name)
        for name in (
            "flip_correlation",
            "stable_auc",
            "stable",
            "lowest_stable",
            "highest_stable",
            "hits",
        )
    )
    claims = (
        claim_greater(
            STATEMENTS[0],
            f"Minus the rank correlation of margin and flip rate {at}",
            -correlation.estimate(),
        ),
        claim_greater(
            STATEMENTS[1],
            f"Share of stable true positives in the quarter with the largest margins {at}",
            highest.estimate(),
            level=0.5,
        ),
    )
    return Drawing(
        bins,
        _figure(bins, stable.value),
        claims=claims,
        notes=(
            f"Each of the {len(recipe.replicas)} replicas in turn is the only target of the attacker; it has "
            f"{hits.value:.0f} true positives on average {at}. The margin of a true positive is its LiRA score minus "
            "the threshold, both of which the attacker knows. Flip rates and stability are those under the other "
            "replicas: a true positive is stable if significantly more than half of them also call the sample a "
            "member.",
            f"{percent(stable.value)} of the true positives are stable: {percent(lowest.value)} in the quarter with "
            f"the smallest margins and {percent(highest.value)} in the quarter with the largest. The margin ranks a "
            f"stable true positive above another one with a probability (AUC) of {auc.estimate()}.",
            unsupported_note(claims),
        ),
    )


def _figure(bins: pd.DataFrame, stable: float) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    x = bins["margin_mean"]
    left.plot(x, bins["stable"], "o-", color=plotting.BLUE, label="Stable true positives")
    left.plot(
        x,
        bins["agreement"],
        "s--",
        color=plotting.SKY,
        label="Other replicas that also decide member",
    )
    left.axhline(stable, color=plotting.GREY, linestyle=":", label="All true positives: stable")
    left.set(ylabel="Share", ylim=(0, 1.02), title="(a) Stability")
    right.plot(x, bins["flip_rate"], "o-", color=plotting.VERMILLION, label="Flip rate")
    right.set(ylabel="Flip rate under the other replicas", title="(b) Flip rate")
    right.set_ylim(0, 1.1 * bins["flip_rate"].max())
    left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in (left, right):
        axes.set_xlabel("Margin: score minus threshold (nats)")
    left.legend(fontsize=9, loc="lower right")
    return figure


EXPERIMENTS = {
    "open_fig02_fragile_hits": Experiment(
        title="Open question 2: Fragile true positives",
        about=(
            "“An attacker facing a single target cannot know which of its true positives are indistinguishable from a "
            "coin flip” (Appendix E.2.6). The paper does not compare scores with flip rates of true positives."
        ),
        statements=STATEMENTS,
        draw=draw,
        reads=(StudyNeed((RECIPE,), STUDY),),
    )
}
