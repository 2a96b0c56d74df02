"""Open question 5: does a membership score mean the same for all texts?

Samples are divided by their length, by their mean TF-IDF, and by whether others share their prefix. The same replicas
are attacked with one threshold for all samples, and with a threshold for each group of samples. Thresholds are at
attack.focus_fpr and are applied to samples on which they were not calibrated: samples are divided into the groups of
`stats.sample_groups`, and each of them is decided with the thresholds of the others. The false positive rate to expect
on these samples must not depend on how many samples a threshold was calibrated on. Otherwise, groups would have more
false and true positives with thresholds of their own, only because they are small. So thresholds lie between the scores
of two non-members here (`_thresholds`).

    text_groups.parquet   rates and flips of each group, with all models and samples, and with parts of them

B: replicas, N: the samples that are used, J: sample groups (folds), K: groups of texts, U: samples with a score, A1,
R1, H1: as in `lm_mia.stats.jackknife`.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import Claim, claim_all, claim_equivalent, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.spec import Study, StudyNeed
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data.population import Population
from lm_mia.errors import Unavailable

TABLE = "text_groups.parquet"
ALL = -1
"""Stands for all groups together, which are all samples whose value is known."""
QUARTERS = 4
COLUMNS = ("tokens", "tfidf", "prefix_group")
"""Columns of the sample table by which samples are divided."""
DIVISIONS = ("tokens", "tfidf", "prefix")
FEWEST_FALSE_POSITIVES = 4
"""Texts are not divided into groups if one of them would have fewer false positives at the false positive rate. For
intervals, thresholds are calibrated on 3/4 of half of the samples, where 4 false positives become 1.5, so that they lie
below the highest score of these non-members."""
_NO_GROUP = -2
_METRIC_NAMES = ("fpr", "tpr", "precision", "flip_rate")


def compute(
    view: StudyView,
    write: Write,
    *,
    focus_fpr: float,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> None:
    """Computes the table of the study.

    Raises:
      Unavailable: there are too few replicas or references, or the texts are not known.
      UserError: scores are corrupt.
    """
    missing = [name for name in COLUMNS if name not in view.attacked.column_names]
    if missing:
        raise Unavailable(f"the samples have no {', '.join(missing)}")
    lira = {"variance": variance, "finite_population": finite_population}
    inputs = study_inputs.replicas(view)
    member_N2 = inputs.target_member_TxN2[0]
    fold_N2 = stats.sample_groups(view.attacked.document_N)
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    samples = study_inputs.first_parts(inputs)[-1].at.stop
    fewest_nonmembers = FEWEST_FALSE_POSITIVES / focus_fpr
    divisions = _divisions(view.attacked, ~member_N2[:samples], fewest_nonmembers)
    if not divisions:
        raise Unavailable(
            f"the texts cannot be divided into groups of {fewest_nonmembers:.0f} or more non-members, which "
            "attack.focus_fpr needs"
        )

    def evaluate(_: int, score_BxN: np.ndarray) -> list[np.ndarray]:
        """Returns value_A1xH1xTxK1xV for each division: one threshold or several, groups and all samples."""
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(fold_N2[:samples]) & present_N
        member_N, fold_N = member_N2[:samples], fold_N2[:samples]
        values = []
        for division in divisions.values():
            groups = len(division.group_K) + 1  # with all samples
            shape = len(kept_A1xB), len(used_H1xN), 2, groups, len(_METRIC_NAMES)
            values.append(np.full(shape, np.nan))
        for h, used_N in enumerate(used_H1xN):
            score_BxU, member_U, fold_U = score_BxN[:, used_N], member_N[used_N], fold_N[used_N]
            one_group_U = np.zeros(len(member_U), np.int64)
            shared = _decisions(score_BxU, member_U, fold_U, one_group_U, focus_fpr)
            for value, division in zip(values, divisions.values(), strict=True):
                group_U = division.group_N[used_N]
                own = _decisions(score_BxU, member_U, fold_U, group_U, focus_fpr)
                for t, decision_BxU in enumerate((shared, own)):
                    for a, kept_B in enumerate(kept_A1xB):
                        value[a, h, t] = _rates(
                            decision_BxU[kept_B], member_U, group_U, division.group_K
                        )
        return values

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, lira, view.work.pool, evaluate)
    rows = []
    for (name, division), by_part in zip(
        divisions.items(), zip(*results, strict=True), strict=True
    ):
        value_A1xR1xH1xTxK1xV = np.stack(by_part, axis=1)
        for t, thresholds in enumerate(("one", "by_group")):
            for k, group in enumerate([*division.group_K, ALL]):
                value = value_A1xR1xH1xTxK1xV[:, :, :, t, k]
                columns = {column: value[..., v] for v, column in enumerate(_METRIC_NAMES)}
                in_group_N = division.group_N == group if group != ALL else division.group_N >= 0
                facts = {
                    "division": name,
                    "group": group,
                    "lowest": np.nanmin(division.value_N[in_group_N]),
                    "highest": np.nanmax(division.value_N[in_group_N]),
                    "samples_in_group": in_group_N.sum(),
                    "thresholds": thresholds,
                    "focus_fpr": focus_fpr,
                }
                rows.append(study_inputs.parts_table(columns).assign(**facts))
    write(TABLE, pd.concat(rows, ignore_index=True))


@dataclasses.dataclass(frozen=True)
class _Division:
    """Groups of samples with similar values."""

    value_N: np.ndarray
    group_N: np.ndarray
    """Numbered from 0; `_NO_GROUP` where the value is NaN."""

    @property
    def group_K(self) -> np.ndarray:
        """The numbers of the groups."""
        return np.arange(self.group_N.max() + 1)

    def count_K(self, used_N: np.ndarray) -> np.ndarray:
        """Returns the number of samples of each group that are used."""
        return ((self.group_N == self.group_K[:, None]) & used_N).sum(axis=1)


def _divisions(
    population: Population, nonmember_N: np.ndarray, fewest_nonmembers: float
) -> dict[str, _Division]:
    """Returns the divisions of the first samples, by name, without those in which a group has too few non-members."""
    samples = len(nonmember_N)
    prefix_N2 = population.column("prefix_group")
    _, index_N2, count = np.unique(prefix_N2, return_inverse=True, return_counts=True)
    shared_N = count[index_N2][:samples]
    divisions = {"prefix": _Division(shared_N, (shared_N > 1).astype(np.int64))}
    for name in ("tokens", "tfidf"):
        value_N = population.column(name)[:samples].astype(np.float64)
        edge_K = stats.equal_count_edges(np.sort(value_N[~np.isnan(value_N)]), QUARTERS)
        group_N = np.searchsorted(edge_K, value_N, side="right") - 1
        divisions[name] = _Division(value_N, np.where(np.isnan(value_N), _NO_GROUP, group_N))
    return {
        name: divisions[name]
        for name in DIVISIONS
        if len(divisions[name].group_K) > 1
        and min(divisions[name].count_K(nonmember_N)) >= fewest_nonmembers
    }


def _decisions(
    score_BxN: np.ndarray, member_N: np.ndarray, fold_N: np.ndarray, group_N: np.ndarray, fpr: float
) -> np.ndarray:
    """Returns booleans decision_BxN, with thresholds of the same group and of other folds.

    Where these have no non-member, there is no threshold, and no sample is called a member. The same holds for samples
    without a group.
    """
    decision_BxN = np.zeros(score_BxN.shape, np.bool_)
    for group in np.unique(group_N[group_N != _NO_GROUP]):
        for fold in np.unique(fold_N):
            decided_N = (group_N == group) & (fold_N == fold)
            calibration_N = (group_N == group) & (fold_N != fold) & ~member_N
            if not (decided_N.any() and calibration_N.any()):
                continue
            threshold_B = _thresholds(score_BxN[:, calibration_N], fpr)
            decision_BxN[:, decided_N] = score_BxN[:, decided_N] >= threshold_B[:, None]
    return decision_BxN


def _thresholds(nonmember_score_BxN: np.ndarray, fpr: float) -> np.ndarray:
    """Returns threshold_B, which another non-member reaches with a probability of about the false positive rate.

    Another non-member lies above the k-th highest of n scores with probability k / (n + 1), since each of the n + 1
    non-members is as likely as any other to be one of the k highest. Thresholds are interpolated between these scores.
    """
    return np.quantile(nonmember_score_BxN, 1 - fpr, axis=1, method="weibull")


def _rates(
    decision_BxN: np.ndarray, member_N: np.ndarray, group_N: np.ndarray, group_K: np.ndarray
) -> np.ndarray:
    """Returns value_K1xV of `_METRIC_NAMES`, of each group and of all groups; NaN where a rate has no samples.

    Rates are over all pairs of a replica and a sample, and the flip rate is that of members.
    """
    votes_N, replicas = decision_BxN.sum(axis=0), len(decision_BxN)
    flip_rate_N = stats.flip_rate(votes_N, replicas)
    rows = []
    for in_group_N in [*(group_N == k for k in group_K), group_N != _NO_GROUP]:
        inside_N, outside_N = in_group_N & member_N, in_group_N & ~member_N
        true, false = votes_N[inside_N].sum(), votes_N[outside_N].sum()
        rows.append(
            [
                _share(false, replicas * outside_N.sum()),
                _share(true, replicas * inside_N.sum()),
                _share(true, true + false),
                _share(flip_rate_N[inside_N].sum(), inside_N.sum()),
            ]
        )
    return np.array(rows)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else np.nan


STUDY = Study(
    "text_groups",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written for figures that need the study `text_groups`. Each row is a group of texts, a choice of "
                "thresholds, and a choice of replicas, references and samples. Replicas are attacked by LiRA on the "
                "first 32,768 samples. These are divided into eight parts, and each is decided with thresholds that "
                "are calibrated on the other seven. To make the expected FPR independent of the number n of "
                "non-members, a threshold is interpolated between the two scores whose ranks are closest to (n + 1) "
                "times the FPR."
            ),
            {
                "replicas, references, samples": Column(
                    "none", "as in `decision_jackknife.parquet`"
                ),
                "fpr": Column(
                    "fraction",
                    'pairs of a replica and a non-member of the group for which the decision is "member"',
                ),
                "tpr": Column("fraction", "the same of members"),
                "precision": Column(
                    "fraction",
                    'members among the pairs for which the decision is "member"',
                ),
                "flip_rate": Column(
                    "fraction",
                    "mean flip rate of the members of the group",
                ),
                "division": Column(
                    "none",
                    (
                        "by what samples are divided: quarters by `tokens` or `tfidf`, or by `prefix`; left out if a "
                        "group has fewer than 4 / FPR non-members"
                    ),
                ),
                "group": Column(
                    "none",
                    (
                        "number of the quarter, 0 for the lowest; of prefixes, 1 for samples that share theirs with "
                        "others and 0 for the rest; -1: all groups together"
                    ),
                ),
                "thresholds": Column("none", "`one` for all samples, or `by_group`"),
                "lowest, highest": Column(
                    "none",
                    "range of the length, of the mean TF-IDF, or of the number of samples with the same prefix",
                ),
                "samples_in_group": Column("count", "samples of the group"),
                "focus_fpr": Column("fraction", "requested FPR"),
            },
            key=("division", "thresholds", "group", "replicas", "references", "samples"),
        ),
    ),
)

RECIPE = "flip-140M"
STATEMENTS = (
    "With one threshold for all texts, the false positive rate of each group of texts is nearly the overall one.",
    "With one threshold, a text that is called a member is about as likely to be one in each group.",
    "Thresholds for each group find more members at the same false positive rate.",
)
FPR_MARGIN: Final = 0.5
"""A false positive rate is nearly the overall one if it differs by less than this fraction of the requested rate."""
PRECISION_MARGIN: Final = 0.1
_DIVISIONS = {"tokens": "length", "tfidf": "TF-IDF", "prefix": "prefix"}
_THRESHOLDS = {
    "one": ("One threshold", plotting.BLUE),
    "by_group": ("A threshold for each group", plotting.ORANGE),
}
_METRICS = {
    "fpr": "False positive rate",
    "precision": "Precision",
    "flip_rate": "Flip rate of members",
}


def draw(recipes: SweepResults) -> Drawing:
    """Draws false positive rate, precision and flip rate of groups of texts, with one threshold and with several."""
    recipe = recipes[RECIPE]
    columns = ["division", "group", "lowest", "highest", "samples_in_group", "focus_fpr"]
    groups = io.read_frame(recipe, TABLE, columns).drop_duplicates()
    focus = float(groups["focus_fpr"].iloc[0])
    at = f"at an FPR of {percent(focus)}"
    number = {
        (metric, division, group, thresholds): studies.read_parts(
            recipe, TABLE, metric, {"division": division, "group": group, "thresholds": thresholds}
        )
        for division, group in zip(groups["division"], groups["group"], strict=True)
        for thresholds in _THRESHOLDS
        for metric in ("tpr", *_METRICS)
    }
    rows = []
    for facts in groups.to_dict("records"):
        division, group = facts["division"], facts["group"]
        for metric, thresholds in itertools.product(("tpr", *_METRICS), _THRESHOLDS):
            estimate = number[metric, division, group, thresholds].estimate()
            rows.append(
                {name: facts[name] for name in columns[:-1]}
                | {"label": _label(facts), "thresholds": thresholds, "metric": metric}
                | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            )
    data = pd.DataFrame(rows)

    def equal(statement: str, metric: str, what: str, margin: float) -> Claim:
        """Returns the claim that a metric of each group is within a margin of that of all samples."""
        parts = []
        for facts in groups[groups["group"] != ALL].to_dict("records"):
            division = facts["division"]
            of_group = number[metric, division, facts["group"], "one"]
            of_all = number[metric, division, ALL, "one"]
            name = f"{_DIVISIONS[division]} {_label(facts)}"
            difference = (of_group - of_all).estimate()
            parts.append(claim_equivalent("", f"{what}, {name} minus all", difference, margin))
        return claim_all(statement, parts)

    divisions = {name: text for name, text in _DIVISIONS.items() if name in set(groups["division"])}
    gains = {
        text: number["tpr", name, ALL, "by_group"] - number["tpr", name, ALL, "one"]
        for name, text in divisions.items()
    }
    claims = (
        equal(STATEMENTS[0], "fpr", "False positive rate", FPR_MARGIN * focus),
        equal(STATEMENTS[1], "precision", f"Precision {at}", PRECISION_MARGIN),
        claim_all(
            STATEMENTS[2],
            [
                claim_greater("", f"TPR {at}, thresholds by {text} minus one", gain.estimate())
                for text, gain in gains.items()
            ],
        ),
    )
    absent = [text for name, text in _DIVISIONS.items() if name not in divisions]
    return Drawing(
        data,
        _figure(data, divisions),
        claims=claims,
        notes=(
            "The samples are divided into quarters by length and by mean TF-IDF, where equal values stay together, and "
            f"into those that share their prefix with another sample and the others. The same {len(recipe.replicas)} "
            f"replicas are attacked with thresholds {at} of all non-members, or of those of each group. Samples are "
            "decided with thresholds that were calibrated on others, to the same expected FPR whatever the number of "
            "these. Precision is the share of members among the "
            "samples that are called members; half of all samples are members. Bars are 95% intervals over replicas, "
            "references and samples.",
            _overall(data, divisions),
            f"There is no division by {' or '.join(absent)}, since a group would have too few non-members."
            if absent
            else "",
            unsupported_note(claims),
        ),
    )


def _label(facts: Mapping[Any, Any]) -> str:
    """Returns the name of a group: its values, or what is special about its prefixes."""
    if facts["division"] == "prefix":
        return "shared" if facts["highest"] > 1 else "own"
    low, high = (
        f"{facts[end]:.0f}" if facts["division"] == "tokens" else f"{facts[end]:.1f}"
        for end in ("lowest", "highest")
    )
    return low if low == high else f"{low} to {high}"


def _overall(data: pd.DataFrame, divisions: Mapping[str, str]) -> str:
    """Returns a note on the rates of all samples."""
    every = data[data["group"] == ALL].set_index(["division", "thresholds", "metric"])["value"]

    def rates(division: str, thresholds: str) -> str:
        fpr, tpr = (
            float(every.to_dict()[division, thresholds, metric]) for metric in ("fpr", "tpr")
        )
        return f"{percent(fpr)} of the non-members and {percent(tpr)} of the members are called members"

    one = f"With one threshold {rates(next(iter(divisions)), 'one')}"
    return "; ".join(
        [
            one,
            *(f"with thresholds by {text} {rates(d, 'by_group')}" for d, text in divisions.items()),
        ]
    )


def _figure(data: pd.DataFrame, divisions: Mapping[str, str]) -> Figure:
    figure = plotting.new_figure(14, 4.6)
    axes_M = figure.subplots(1, len(_METRICS))
    for axes, (metric, title), letter in zip(axes_M, _METRICS.items(), "abc", strict=True):
        ticks: list[float] = []
        labels: list[str] = []
        for division, text in divisions.items():
            start = ticks[-1] + 1.6 if ticks else 0
            chosen = data["metric"].eq(metric) & data["division"].eq(division)
            of_division = data[chosen & data["group"].ne(ALL)]
            for shift, (thresholds, (label, color)) in zip(
                (-0.12, 0.12), _THRESHOLDS.items(), strict=True
            ):
                rows = of_division[of_division["thresholds"] == thresholds]
                x = [start + k + shift for k in range(len(rows))]
                plotting.errorbars(
                    axes, x, [*rows["value"]], [*rows["high"]], color, None if ticks else label
                )
            names = of_division[of_division["thresholds"] == "one"]["label"]
            labels += [f"{name}\n{text}" if k == 0 else name for k, name in enumerate(names)]
            ticks += [start + k for k in range(len(names))]
        axes.set_xticks(ticks, labels, fontsize=7)
        axes.set(title=f"({letter}) {title}", xlabel=f"Texts by {' or '.join(divisions.values())}")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes_M[0].legend(fontsize=8)
    return figure


EXPERIMENTS = {
    "open_fig05_groups": Experiment(
        title="Open question 5: Scores of different texts",
        about=(
            "The paper decides about all samples with one threshold, and shows which members are vulnerable (Figures 6 "
            "and 31). It does not ask whether the false positive rate and the precision are the same for all texts."
        ),
        statements=STATEMENTS,
        draw=draw,
        reads=(StudyNeed((RECIPE,), STUDY),),
    )
}
