"""How strong each attack is: members found, AUC, and hits that another training would miss, with their intervals.

The numbers are over all attacked models together, and the intervals over what would be drawn anew: the samples and, if
there are several models, their trainings. All attacks see the same models and samples, so that their numbers are
compared with those of the headline attack (attack.headline) in pairs.

T: attacked models, F: false positive rates, A1: all attacked models, and then without each group of them, H1: all
samples, and then each half of them.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.io import RecipeResults
from analysis.report import charts, document, numbers
from analysis.report.strength import Strength
from lm_mia import stats
from lm_mia.attacks import (
    decision_jackknife,
    evaluations,
    score_matrix,
    study_inputs,
    user_code,
)
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import AttackTable, Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.errors import Unavailable

_CURVE_POINTS = 40
_FEWEST_FALSE_ALARMS = 10
_METRICS = ("tpr", "second_tpr", "auc", "missed")

MODELS = Table(
    "attacked_models.csv",
    "Each row is an attack of `attack.attacks` with all references, or `attack.headline`, and an attacked model.",
    {
        **common("attack", "references", "model"),
        "tpr": Column("fraction", "true positive rate at `attack.focus_fpr`"),
        **common("auc"),
        "members, nonmembers": Column("count", "samples of the class that have a score"),
        **common("left_out"),
    },
    key=("attack", "model"),
)
PARTS = Table(
    "strength_parts.parquet",
    (
        "Written for the intervals of `strength.csv`. Each row is an attack of `attack.attacks` with all references, "
        "or `attack.headline`, some of the attacked models, and some of the samples. Thresholds are calibrated on the "
        "samples that are used."
    ),
    {
        **common("attack", "references"),
        "models": Column(
            "none",
            "0: all attacked models; g: without group g. There are 8 groups, or one for each of fewer models",
        ),
        "samples": Column("none", "as `half` of `target_jackknife.parquet`"),
        "tpr, second_tpr, auc": Column("fraction", "means, as in `strength.csv`"),
        "missed": Column(
            "fraction",
            "the same, on the first 32,768 samples; empty where fewer than two replicas remain",
        ),
    },
    key=("attack", "models", "samples"),
)
HEADLINE_ROC = Table(
    "headline_roc.csv",
    (
        "Written for the ROC curve of the report page. Each row is a point of the ROC curve of `attack.headline` with "
        "all references, mean over the attacked models; thresholds are calibrated for each rate."
    ),
    {
        "fpr": Column(
            "fraction", "requested FPR: rates in equal ratios that the non-members can show"
        ),
        "tpr": Column("fraction", "mean true positive rate"),
        "low, high": Column(
            "fraction",
            "ends of its interval, as in `strength.csv`; empty at rates that allow fewer than 10 false positives",
        ),
    },
    key=("fpr",),
)
STRENGTH = Table(
    "strength.csv",
    (
        "Written for the first section of the report page. Each row is a number about an attack of `attack.attacks` "
        "with all references, or of `attack.headline`, over all attacked models. Intervals (`stats.share_interval`, "
        "`stats.difference_interval`) are over samples and, with several attacked models, over models: for replicas "
        "over batch orders alone, with the training subset, the initial weights and the references held fixed."
    ),
    {
        **common("attack"),
        "metric": Column(
            "none",
            (
                "`tpr`: mean true positive rate at `attack.focus_fpr`; `second_tpr`: the same at a higher rate, the "
                "largest of `attack.fprs` that is at most 5 times as high; `auc`: mean area under the ROC curve; "
                "`missed`: the share of the members found by one replica at `attack.focus_fpr` that another one "
                "misses: mean flip rate of members / (2 `tpr`)"
            ),
        ),
        **common("references"),
        "fpr": Column("fraction", "requested FPR"),
        "value": Column("fraction", "the number"),
        "low, high": Column("fraction", "ends of its interval"),
        "minus_headline, minus_headline_low, minus_headline_high": Column(
            "fraction", "the number minus that of the headline attack"
        ),
        "models": Column("count", "number of attacked models"),
        **common("left_out"),
    },
    key=("attack", "metric"),
)


def second_rate(focus_fpr: float, fprs: tuple[float, ...]) -> float:
    """Returns the largest rate that is at most 5 times the focus rate, which is one of the rates."""
    return max(f for f in fprs if focus_fpr <= f <= 5 * focus_fpr + 1e-12)


def attacked_models(
    scores: Scores, *, band: tuple[float, float], focus_fpr: float, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns the rows of attacked_models.csv of one attack."""
    points = scores.operating_points(fprs, band)
    columns = {"model": scores.targets, "tpr": points.tpr_TxF[:, fprs.index(focus_fpr)]}
    for name in ("auc", "members", "nonmembers", "left_out"):
        columns[name] = getattr(points, f"{name}_T")
    return pd.DataFrame(columns)


def strength_parts(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the rows of strength_parts.parquet of one attack; none if a model has no member with a score."""
    if not scores.has_both_classes:
        return pd.DataFrame()
    points = scores.operating_points(fprs, band)
    auc_TxH, tpr_TxHxF = evaluations.rates_of_halves(scores, fprs)
    index = [fprs.index(focus_fpr), fprs.index(second_rate(focus_fpr, fprs))]
    rate_TxS = np.column_stack([points.auc_T, points.tpr_TxF[:, index]])
    rate_TxHxS = np.concatenate([auc_TxH[:, :, None], tpr_TxHxF[..., index]], axis=2)
    value_A1xH1xS = stats.rates_without_groups(rate_TxS, rate_TxHxS)
    auc_A1xH1, tpr_A1xH1, second_A1xH1 = np.moveaxis(value_A1xH1xS, 2, 0)
    missed_A1xH1 = np.full(auc_A1xH1.shape, np.nan)
    if scores.spec.targets_are_replicas:
        metrics = scores.once(
            decision_jackknife.metrics_of_scores, alpha=alpha, focus_fpr=focus_fpr, fprs=fprs
        )
        found_A1xH1 = metrics.tpr_A1xH1xF[..., index[0]]
        if len(scores.targets) == 2:
            found_A1xH1 = _tpr_without_each(scores, focus_fpr)
        missed_A1xH1 = stats.missed_share(
            metrics.member_flip_rate_A1xH1xF[..., index[0]], found_A1xH1
        )
    left_out, half = (axis.ravel() for axis in np.indices(auc_A1xH1.shape))
    columns = {"models": left_out, "samples": half, "tpr": tpr_A1xH1.ravel()}
    columns |= {"second_tpr": second_A1xH1.ravel(), "auc": auc_A1xH1.ravel()}
    return pd.DataFrame(columns | {"missed": missed_A1xH1.ravel()})


def _tpr_without_each(scores: Scores, fpr: float) -> np.ndarray:
    """Returns tpr_A1xH1 of two replicas on the samples of `decision_jackknife.metrics_of_scores`.

    A single replica that remains has a TPR, but no flip rate.
    """
    first = slice(0, min(scores.file.num_samples, study_inputs.FIRST_SAMPLES))
    score_BxN, member_N = scores.file.read_samples(first), scores.member_TxN[0, first]
    score_BxN[:, np.isnan(score_BxN).any(axis=0)] = np.nan
    points = stats.tpr_at_fpr(score_BxN, member_N, fpr)
    _, tpr_BxHx1 = stats.rates_of_halves(score_BxN, member_N, scores.group_N[first], fpr)
    return stats.rates_without_groups(points.tpr_TxF, tpr_BxHx1)[..., 0]


def headline_roc(scores: Scores) -> pd.DataFrame:
    """Returns headline_roc.csv."""
    if not scores.has_both_classes:
        return pd.DataFrame(columns=["fpr", "tpr", "low", "high"])
    nonmembers = int(
        min(
            (~member_N & ~np.isnan(scores.file.read_target(t))).sum()
            for t, member_N in enumerate(scores.member_TxN)
        )
    )
    fpr_P = tuple(np.unique(np.geomspace(1 / nonmembers, 1, _CURVE_POINTS)).tolist())
    points = score_matrix.operating_points(scores.file, scores.member_TxN, fpr_P, scores.pool)
    _, tpr_TxHxP = score_matrix.rates_of_halves(
        scores.file, scores.member_TxN, scores.group_N, fpr_P, scores.pool
    )
    value_A1xH1xP = stats.rates_without_groups(points.tpr_TxF, tpr_TxHxP)
    rows = []
    for p, fpr in enumerate(fpr_P):
        ends = math.nan, math.nan
        if fpr == 1:  # all samples are called members, whatever their scores
            ends = 1.0, 1.0
        elif math.floor(fpr * nonmembers * (1 + 1e-9)) >= _FEWEST_FALSE_ALARMS:
            ends = stats.share_interval(value_A1xH1xP[..., p], count=int(points.members_T.min()))
        rows.append([fpr, float(value_A1xH1xP[0, 0, p]), *ends])
    return pd.DataFrame(rows, columns=["fpr", "tpr", "low", "high"])


def strength(
    view: StudyView, write: Write, *, headline: str, focus_fpr: float, fprs: tuple[float, ...]
) -> Mapping[str, Any]:
    """Computes strength.csv."""
    parts, models = view.table(PARTS.file), view.table(MODELS.file)
    if parts.empty:
        raise Unavailable(
            "no attack has both members and non-members with a score; run lm-mia run for more models"
        )
    flips = pd.DataFrame(columns=["attack", "fpr", "tpr_mean", "member_flip_rate"])
    with contextlib.suppress(Unavailable):  # without replicas
        flips = view.table("attack_flips.csv")
    flips = flips[np.isclose(flips["fpr"].astype(float), focus_fpr)].set_index("attack")
    short = user_code.short(headline)
    values = {
        str(attack): {name: _as_array(rows, name) for name in _METRICS}
        for attack, rows in parts.groupby("attack", sort=False)
    }
    for attack in {*values} & {*flips.index}:
        row = flips.loc[attack]
        [missed] = stats.missed_share([row["member_flip_rate"]], [row["tpr_mean"]])
        values[attack]["missed"] = _moved_to(values[attack]["missed"], float(missed))
    rates = {"tpr": focus_fpr, "second_tpr": second_rate(focus_fpr, fprs), "missed": focus_fpr}
    rows = []
    for attack, of_attack in values.items():
        of_models = models[models["attack"] == attack]
        members = float(of_models["members"].min())
        found = float(np.nanmax([members * of_attack["tpr"][0, 0], 1.0]))
        counts = {"tpr": members, "second_tpr": members, "missed": found}
        counts["auc"] = min(members, float(of_models["nonmembers"].min()))
        for metric, value_A1xH1 in of_attack.items():
            value = float(value_A1xH1[0, 0])
            low, high = stats.share_interval(value_A1xH1, count=counts[metric])
            difference = {"minus_headline": math.nan}
            difference |= {f"minus_headline_{end}": math.nan for end in ("low", "high")}
            if attack != short and short in values:
                other_A1xH1 = values[short][metric]
                ends = stats.difference_interval(value_A1xH1, other_A1xH1)
                minus = float(value_A1xH1[0, 0] - other_A1xH1[0, 0])
                difference = dict(zip(difference, (minus, *ends), strict=True))
            rows.append(
                {"attack": attack, "metric": metric}
                | {"references": int(of_models["references"].iloc[0])}
                | {"fpr": rates.get(metric, math.nan), "value": value, "low": low, "high": high}
                | difference
                | {"models": len(of_models), "left_out": int(of_models["left_out"].max())}
            )
    write(STRENGTH.file, pd.DataFrame(rows))
    return {}


def _moved_to(value_A1xH1: np.ndarray, value: float) -> np.ndarray:
    """Returns parts of the first samples around the number of all samples, so that its interval contains it."""
    moved_A1xH1 = value_A1xH1 + (value - value_A1xH1[0, 0])
    moved_A1xH1[0, 0] = value  # exactly, which the sum may not be
    return moved_A1xH1


def _as_array(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Returns value_A1xH1 of a metric, from the rows of strength_parts.parquet of one attack."""
    shape = tuple(int(rows[axis].max()) + 1 for axis in ("models", "samples"))
    return rows[name].to_numpy().reshape(shape)


# --- What the page shows ----------------------------------------------------------------------------------------------


def section(recipe: RecipeResults, strength: Strength, *, key: str = "roc") -> document.Section:
    """Returns the section "How strong is each attack?"; ``key`` is that of its chart (`charts.roc`)."""
    figure = document.Figure(
        _roc(recipe, strength, key),
        f"Higher is better for the attacker. Band: 95 % interval of {attack_name(strength.headline)}, at rates that "
        f"allow {_FEWEST_FALSE_ALARMS} false alarms or more.{_mean_note(strength)}",
    )
    table = attacks_table(strength, strength.shown)
    blocks = (document.FigureWithNotes(figure, _margin_notes(strength)), table)
    return document.Section("attacks", "Attacks", "How strong is each attack?", blocks)


def attacks_table(strength: Strength, attacks: Sequence[str]) -> document.Table:
    """Returns a table of attacks: members found at both rates, AUC, and hits that another training misses."""
    at, second = numbers.false_alarms(strength.fpr), numbers.false_alarms(strength.second_fpr)
    columns = [
        document.Column("Attack"),
        document.Column("Reference models", "reference models"),
        document.Column(f"Members found per 100 at {at}", f"found per 100 at {at}"),
        document.Column(f"Members found per 100 at {second}", f"found per 100 at {second}"),
        document.Column("AUC (guessing: 0.5)", "AUC"),
    ]
    metrics = ["tpr", "second_tpr", "auc"]
    if strength.has_replicas:
        columns.append(
            document.Column(
                f"Missed after retraining, % of those found at {numbers.rate(strength.fpr)}",
                "missed after retraining, %",
            )
        )
        metrics.append("missed")
    # A column that is constant would say nothing.
    if strength.second_fpr == strength.fpr:
        del columns[3], metrics[1]
    rows = []
    for attack in attacks:
        references = int(strength.rows[attack, "auc"]["references"])
        cells = [
            numbers.markup(
                strength.estimate(attack, metric),
                numbers.FRACTION if metric == "auc" else numbers.PER_100,
            )
            for metric in metrics
        ]
        row = (attack_name(attack), numbers.count(references), *cells)
        rows.append(document.Row(row, is_headline=attack == strength.headline))
    left_out = max(int(strength.rows[attack, "auc"]["left_out"]) for attack in attacks)
    caption = "The attack that the answer is about is first; small: 95 % intervals."
    if left_out:
        caption += f" Some attacks have no score for up to {left_out:,} samples."
    return document.Table(caption, tuple(columns), tuple(rows))


def compared_with_headline(
    strength: Strength, attack: str
) -> Literal["less", "alike", "more", "unknown"]:
    """Returns whether an attack finds more members than the headline, by the interval of their paired difference."""
    difference = strength.minus_headline(attack, "tpr")
    if not difference.has_interval:
        return "unknown"
    if difference.contains(0):
        return "alike"
    return "less" if difference.high < 0 else "more"


def _mean_note(strength: Strength) -> str:
    if strength.trainings < 2:
        return ""
    kind = "trainings" if strength.has_replicas else "models"
    return f" Mean of {strength.trainings} {kind}."


def _margin_notes(strength: Strength) -> tuple[document.Text, ...]:
    """Returns what the attacks tell about each other, and the words of the chart."""
    notes: list[document.Text] = []
    name, found = attack_name(strength.headline), numbers.value(strength.found)
    loss = strength.estimate("loss", "tpr")
    if strength.headline != "loss" and loss.is_known:
        with_what = (
            "the base model" if strength.headline == "base_calibrated" else "reference models"
        )
        result = compared_with_headline(strength, "loss")
        if result == "unknown":
            notes.append(
                Markup("<b>The loss alone</b> finds {} of 100.").format(numbers.value(loss))
            )
        elif result == "less":
            notes.append(
                Markup(
                    "<b>{} make the attack.</b> The loss alone finds {} of 100; with {}, {} finds {}."
                ).format(
                    "References" if with_what == "reference models" else "Losses of the base",
                    numbers.value(loss),
                    with_what,
                    name,
                    found,
                )
            )
        else:
            notes.append(
                Markup("<b>{} not visibly help</b> at this rate: the loss alone finds {}.").format(
                    "Reference models do"
                    if with_what == "reference models"
                    else "The base model does",
                    f"{numbers.value(loss)} at {numbers.false_alarms(strength.fpr)}",
                )
            )
    others = [a for a in strength.shown[1:] if a != "loss"]
    by_result = {
        result: [attack_name(a) for a in others if compared_with_headline(strength, a) == result]
        for result in ("alike", "less", "more", "unknown")
    }
    if by_result["alike"]:
        names = numbers.words([name, *by_result["alike"]])
        notes.append(Markup("<b>{} cannot be told apart</b> at this rate.").format(names))
    if by_result["less"]:
        names = numbers.words(by_result["less"])
        notes.append(Markup("<b>{} finds more</b> than {}.").format(name, names))
    if by_result["more"]:
        names = numbers.words(by_result["more"])
        verb = "finds" if len(by_result["more"]) == 1 else "find"
        notes.append(Markup("<b>{} {} more</b> than {}.").format(names, verb, name))
    if by_result["unknown"]:
        notes.append(
            Markup(
                "<b>Which attack finds more cannot be said</b> at this rate: there are too few non-members for "
                "intervals of differences."
            )
        )
    notes.append(
        Markup(
            "<b>Members</b> are texts in the training data. A <b>false alarm</b> is a non-member that is called a "
            "member. Thresholds are set on non-members for the rate (FPR); the share of members found is the TPR."
        )
    )
    return tuple(notes)


def _roc(recipe: RecipeResults, strength: Strength, key: str) -> charts.Drawing:
    curve = recipe.view.table(HEADLINE_ROC.file)
    band_rows = curve.dropna(subset=["low", "high"])
    band = None
    if len(band_rows) > 1:
        band = charts.Band(*(band_rows[name].to_numpy() for name in ("fpr", "low", "high")))
    curves = []
    for attack in strength.shown:
        if attack == strength.headline:
            fpr_P, tpr_P = (curve[name].to_numpy() for name in ("fpr", "tpr"))
        else:
            fpr_P, tpr_P = roc_curve(recipe, attack)
        role: charts.Role = "family"
        if attack == strength.headline:
            role = "headline"
        elif attack == "lira_online":
            role = "lira"
        elif attack == "loss":
            role = "loss"
        elif any(c.role == "family" for c in curves):
            role = "other"
        curves.append(
            charts.Curve(attack_name(attack), role, fpr_P, tpr_P, strength.estimate(attack, "tpr"))
        )
    return charts.roc(
        curves, fpr=strength.fpr, num_nonmembers=strength.nonmembers, band=band, key=key
    )


def roc_curve(recipe: RecipeResults, attack: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (fpr_P, tpr_P) of an attack with all references, mean over the attacked models."""
    if recipe.view.c.replicas:
        table = recipe.view.table("roc.csv")
        table = table[table["attack"] == attack]
        table = table[table["references"] == table["references"].max()]
        return table["fpr"].to_numpy(), table["tpr_mean"].to_numpy()
    targets = recipe.view.table("targets.csv")
    most = targets[targets["attack"] == attack].sort_values("references").iloc[-1]
    points = recipe.view.table("target_roc.parquet")
    points = points[(points["attack_id"] == most["attack_id"]) & points["on_curve"]]
    mean = points.groupby("fpr", sort=True)["tpr"].mean()
    return mean.index.to_numpy(), mean.to_numpy()


ATTACK_TABLES = (
    AttackTable(MODELS, attacked_models),
    AttackTable(PARTS, strength_parts),
    AttackTable(HEADLINE_ROC, headline_roc, of_headline=True),
)
STUDY = Study(
    "strength",
    strength,
    (STRENGTH,),
    reads=(PARTS.file, MODELS.file, "attack_flips.csv"),
)
