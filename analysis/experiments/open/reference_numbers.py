"""Open question 1: do more references make the decisions about members more stable?

With more references LiRA finds more members at a false positive rate. Since a sample that no replica calls a member
never flips, flip rates are also computed at an equal true positive rate: that with the fewest references. LiRA pools
variances over the samples with any number of references, so that a few references suffice.

Each number is a mean over disjoint sets of references, on the samples that have scores with all sets of all numbers.
For intervals, the numbers are also computed with each half of the references. If sets have 8 references or more, a half
consists of half of the references of each set. With half of 4 references, most samples would have no IN or no OUT loss,
so there a half consists of half of the sets.

    reference_numbers.parquet   stability of the decisions about members, with all models and samples, and with parts

B: replicas, R: references, S: sets of references, N: the samples that are used, M: members, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from analysis import io, plotting, studies
from analysis.claims.compare import claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks import spec, study_inputs
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.spec import Study, StudyNeed
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

BoolArray = NDArray[np.bool_]
TABLE = "reference_numbers.parquet"
_FEWEST = 4
_FEWEST_TO_HALVE = 8  # half of them are 4, with which 7 of 8 samples have IN and OUT references
_MOST_SETS = 4  # if sets are halved
_OPERATING_POINTS = ("fpr", "tpr")
_COLUMNS = ("flip_rate", "coin_flips", "tpr")


def compute(
    view: StudyView,
    write: Write,
    *,
    focus_fpr: float,
    alpha: float,
    finite_population: bool,
) -> None:
    """Computes the table of the study.

    Raises:
      Unavailable: there are too few replicas or references.
      UserError: scores are corrupt.
    """
    inputs = study_inputs.replicas(view, fewest_references=2 * _FEWEST_TO_HALVE)
    lira = {"variance": "pooled", "finite_population": finite_population}
    member_N2 = inputs.target_member_TxN2[0]
    group_N2 = stats.sample_groups(view.attacked.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    counts = _numbers(len(inputs.references))
    sets_R1xS = {count: _parts(count, inputs.references) for count in counts}

    def presence(_: int, score_BxN: np.ndarray) -> BoolArray:
        """Returns which samples have scores under all replicas."""
        return np.logical_not(np.isnan(score_BxN).any(axis=0))

    whole = [index_R for count in counts for index_R in sets_R1xS[count][0]]
    present = study_inputs.map_reference_sets(inputs, whole, lira, view.work.pool, presence)
    common_N = np.all(present, axis=0)
    member_N = member_N2[: len(common_N)]
    if not ((common_N & member_N).any() and (common_N & ~member_N).any()):
        raise Unavailable(
            "no members or no non-members have scores with all sets of references; run lm-mia run with a larger "
            "--config.attack.references"
        )

    def true_positive_rate(_: int, score_BxN: np.ndarray) -> float:
        """Returns the true positive rate at the focus FPR, the mean over replicas."""
        outside_BxN, score_BxM = (
            score_BxN[:, common_N & ~member_N],
            score_BxN[:, common_N & member_N],
        )
        threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, focus_fpr)
        return float((score_BxM >= threshold_B[:, None]).mean())

    fewest = sets_R1xS[counts[0]][0]
    fewest_tpr = float(
        np.mean(
            study_inputs.map_reference_sets(
                inputs, fewest, lira, view.work.pool, true_positive_rate
            )
        )
    )

    def evaluate(_: int, score_BxN: np.ndarray) -> np.ndarray:
        """Returns value_A1xH1xPxV of `_OPERATING_POINTS` and `_COLUMNS`."""
        present_N = common_N & ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N2[: len(common_N)]) & present_N
        shape = len(kept_A1xB), len(used_H1xN), len(_OPERATING_POINTS), len(_COLUMNS)
        value = np.full(shape, np.nan)
        for h, used_N in enumerate(used_H1xN):
            score_BxM, outside_BxN = (
                score_BxN[:, used_N & member_N],
                score_BxN[:, used_N & ~member_N],
            )
            if not (score_BxM.size and study_inputs.has_threshold(outside_BxN, focus_fpr)):
                continue
            threshold_PxB = (
                study_inputs.thresholds_at_fpr(outside_BxN, focus_fpr),
                np.array([_threshold_at_tpr(s, fewest_tpr) for s in score_BxM]),
            )
            for p, threshold_B in enumerate(threshold_PxB):
                decision_BxM = score_BxM >= threshold_B[:, None]
                for a, kept_B in enumerate(kept_A1xB):
                    value[a, h, p] = _stability(decision_BxM[kept_B], alpha)
        return value

    parts = [(count, r) for count in counts for r in range(len(sets_R1xS[count]))]
    index_SxR = [index_R for count, r in parts for index_R in sets_R1xS[count][r]]
    results = iter(
        study_inputs.map_reference_sets(inputs, index_SxR, lira, view.work.pool, evaluate)
    )
    # The mean over disjoint sets of the same number of references.
    mean = {
        (count, r): np.mean([next(results) for _ in sets_R1xS[count][r]], axis=0)
        for count, r in parts
    }
    rows = []
    for count in counts:
        value_R1xA1xH1xPxV = np.stack([mean[part] for part in parts if part[0] == count])
        for p, point in enumerate(_OPERATING_POINTS):
            value_A1xR1xH1xV = value_R1xA1xH1xPxV[..., p, :].swapaxes(0, 1)
            columns = {name: value_A1xR1xH1xV[..., v] for v, name in enumerate(_COLUMNS)}
            rows.append(
                study_inputs.parts_table(columns).assign(
                    reference_count=count,
                    sets=len(sets_R1xS[count][0]),
                    at_equal=point,
                    fpr=focus_fpr,
                )
            )
    write(TABLE, pd.concat(rows, ignore_index=True))


def _numbers(references: int) -> list[int]:
    """Returns the numbers of references: 4 (if each group has as many), 8, 16, ..., and all of them."""
    fewest = _FEWEST if references >= _FEWEST * spec.JACKKNIFE_GROUPS else _FEWEST_TO_HALVE
    powers = [fewest << k for k in range(references.bit_length()) if fewest << k < references]
    return [*powers, references]


def _parts(count: int, references: Sequence[ModelSeeds]) -> list[list[np.ndarray]]:
    """Returns disjoint sets of references, as positions, and then the part of each set that is in each half.

    Sets that are not halved have the references of one group each, so that a half has all of a set or nothing.
    """
    group_R = np.array(spec.reference_groups(model.subset_seed for model in references))
    if count < _FEWEST_TO_HALVE:
        groups = range(spec.JACKKNIFE_GROUPS)
        sets = [np.flatnonzero(group_R == group)[:count] for group in groups]
    else:
        number = min(len(references) // count, _MOST_SETS)
        sets = [np.arange(k * count, (k + 1) * count) for k in range(number)]
    parts = [sets]
    for half in range(spec.NUM_HALVES):
        in_half_R = np.isin(group_R, [*spec.half_groups(half)])
        parts.append([chosen for index_R in sets if len(chosen := index_R[in_half_R[index_R]])])
    return parts


def _threshold_at_tpr(score_M: np.ndarray, tpr: float) -> float:
    """Returns the score that the given share of members reaches, rounded to a whole number of members."""
    called = round(tpr * len(score_M))
    return float(np.sort(score_M)[-called]) if called else np.inf


def _stability(decision_BxM: np.ndarray, alpha: float) -> list[float]:
    """Returns `_COLUMNS` of members."""
    votes_M, replicas = decision_BxM.sum(axis=0), len(decision_BxM)
    low, _ = stats.coin_flip_cutoff(replicas, alpha)
    coin_flip_M = (votes_M >= low) & (votes_M <= replicas - low)
    flip_rate = float(stats.flip_rate(votes_M, replicas).mean())
    return [flip_rate, float(coin_flip_M.mean()), float(decision_BxM.mean())]


STUDY = Study(
    "reference_numbers",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written for figures that need the study `reference_numbers`. Each row is a number of references, an "
                "operating point and a choice of replicas, references and samples. The numbers are about members among "
                "the first 32,768 samples under replicas that are attacked by LiRA with pooled variances, on the "
                "samples that have scores with all numbers of references. They are means over disjoint sets of "
                "references: eight sets of 4 references, or up to four sets of 8 or more."
            ),
            {
                "replicas, references, samples": Column(
                    "none",
                    (
                        "as in `decision_jackknife.parquet`. For a half of the references, each set is reduced to its "
                        "references in this half; of the eight sets of 4, the four sets in this half are used"
                    ),
                ),
                "flip_rate": Column(
                    "fraction",
                    "mean flip rate of members, between replicas that are attacked with the same references",
                ),
                "coin_flips": Column(
                    "fraction",
                    "members whose decisions are coin flips",
                ),
                "tpr": Column(
                    "fraction", 'pairs of a replica and a member for which the decision is "member"'
                ),
                "reference_count": Column(
                    "count",
                    "number of references: 4 (if the recipe has 32 or more), 8, 16, and so on, and all of them",
                ),
                "sets": Column("count", "number of disjoint sets of references"),
                "at_equal": Column(
                    "none",
                    (
                        "`fpr`: thresholds at an FPR of `fpr`; `tpr`: thresholds at the true positive rate that the "
                        "fewest references have at this FPR"
                    ),
                ),
                **common("fpr"),
            },
            key=("reference_count", "at_equal", "replicas", "references", "samples"),
        ),
    ),
)

RECIPE = "flip-140M"
STATEMENTS = (
    "With more references, decisions about members are more stable at the same false positive rate.",
    "With more references, decisions about members are more stable at the same true positive rate.",
)
_COLORS = {"fpr": plotting.BLUE, "tpr": plotting.ORANGE}


def draw(recipes: SweepResults) -> Drawing:
    """Draws flip rates and coin flips of members by the number of references, at an equal FPR and at an equal TPR."""
    recipe = recipes[RECIPE]
    columns = ["reference_count", "sets", "at_equal", "fpr", *studies.AXES, "coin_flips", "tpr"]
    table = io.read_frame(recipe, TABLE, columns)
    is_whole = (table[[*studies.AXES]] == 0).all(axis=1)
    whole: dict[Any, Any] = (
        table[is_whole].set_index(["at_equal", "reference_count"]).to_dict("index")
    )
    counts = sorted(set(table["reference_count"]))
    rate: dict[tuple[str, int], Jackknife] = {
        (point, count): studies.read_parts(
            recipe, TABLE, "flip_rate", {"at_equal": point, "reference_count": count}
        )
        for point in _COLORS
        for count in counts
    }
    rows = []
    for (point, count), flip_rate in rate.items():
        facts, estimate = whole[point, count], flip_rate.estimate()
        rows.append(
            {
                "at_equal": point,
                "references": count,
                "sets": int(facts["sets"]),
                "tpr": facts["tpr"],
            }
            | {"flip_rate": estimate.value, "low": estimate.low, "high": estimate.high}
            | {"coin_flips": facts["coin_flips"]}
        )
    data = pd.DataFrame(rows)
    fpr = percent(float(table["fpr"].iloc[0]))
    tpr = percent(whole["tpr", counts[0]]["tpr"])
    at = {"fpr": f"at an FPR of {fpr}", "tpr": f"at a TPR of {tpr}"}
    claims = tuple(
        claim_greater(
            statement,
            f"Flip rate of members {at[point]}, {counts[0]} minus {counts[-1]} references",
            (rate[point, counts[0]] - rate[point, counts[-1]]).estimate(),
        )
        for statement, point in zip(STATEMENTS, _COLORS, strict=True)
    )
    found = ", ".join(percent(whole["fpr", count]["tpr"]) for count in counts)
    sets = [int(whole["fpr", count]["sets"]) for count in counts]
    return Drawing(
        data,
        _figure(data, at),
        claims=claims,
        notes=(
            f"The same {len(recipe.replicas)} replicas are attacked by LiRA with {_listed(counts)} references, with "
            "pooled variances. A flip is a disagreement of two replicas that are attacked with the same references. "
            f"Each number is the mean over {_listed(sets)} disjoint sets of references, on the samples that have "
            "scores with all of these sets. Bars are 95% intervals over replicas, references and samples.",
            f"At an FPR of {fpr}, these references find {found} of the members. Samples that no replica calls a member "
            "are stable, so that a stronger attack may flip more only because it finds more. At an equal TPR the "
            f"thresholds let each replica find {tpr} of the members, as with {counts[0]} references.",
            unsupported_note(claims),
        ),
    )


def _listed(counts: list[int]) -> str:
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"


def _figure(data: pd.DataFrame, at: dict[str, str]) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    for point, color in _COLORS.items():
        rows = data[data["at_equal"] == point]
        label = at[point].removeprefix("at a ").removeprefix("at an ")
        plotting.errorbars(
            left, [*rows["references"]], [*rows["flip_rate"]], [*rows["high"]], color, label
        )
        right.plot(rows["references"], rows["coin_flips"], "o-", color=color)
    left.set(ylabel="Mean flip rate of members", title="(a) Flip rate")
    right.set(ylabel="Members whose decisions are coin flips", title="(b) Coin flips")
    left.legend(fontsize=9)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted(set(data["references"])), [*map(str, sorted(set(data["references"])))]
        )
        axes.set_xlabel("References")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


EXPERIMENTS = {
    "open_fig01_references": Experiment(
        title="Open question 1: References and flips",
        about=(
            "The paper varies the number of references for the AUC (Figure 1) and finds that decisions flip between "
            "replicas with 128 references (Figure 5). It does not ask whether more references make them more stable."
        ),
        statements=STATEMENTS,
        draw=draw,
        reads=(StudyNeed((RECIPE,), STUDY),),
    )
}
