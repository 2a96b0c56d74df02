"""What the page of an audit shows of members and non-members from different sources.

Numbers are those of causal.csv, causal_roc.csv and covariate_balance.csv, data frames here. The chart and the table of
covariates are about the first attack and model.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis.formatting import needs_nonmembers, percent
from analysis.report import answer, charts, document, numbers
from analysis.report.numbers import FRACTION, Estimate
from lm_mia.attacks.registry import attack_name
from lm_mia.printing import plural

RECOMMENDED = "aipw"
ESTIMATORS = {
    "unadjusted": "Unadjusted",
    "ipw": "Weighted (IPW)",
    "g_formula": "Regression (G-formula)",
    "aipw": "Both (AIPW)",
}
_ROLES: Mapping[str, charts.Role] = {
    "aipw": "headline",
    "unadjusted": "loss",
    "ipw": "family",
    "g_formula": "other",
}
"""Estimator -> role of its curve, in the order of the chart."""
_MAX_COVARIATES = 25
_BALANCED = 0.1  # standard deviations


def answer_of(causal: pd.DataFrame, fpr: float) -> answer.Answer:
    """Returns the first sentences, about the first attack and model.

    Args:
      causal: the table causal.csv.
      fpr: the false positive rate.
    """
    after, before = _row(causal, RECOMMENDED), _row(causal, "unadjusted")
    unadjusted, adjusted = (_metric(row, f"tpr_{fpr:g}") for row in (before, after))
    if not after["has_overlap"] or not adjusted.is_known:
        first = Markup(
            "<b>Members and non-members cannot be compared:</b> {} to adjust the numbers. Without adjustment, the AUC "
            "is {}; guessing has 0.5."
        ).format(
            "too few non-members resemble the members"
            if not after["has_overlap"]
            else f"{plural(int(after['nonmembers']), 'non-member')} are too few",
            numbers.value(_metric(before, "auc"), FRACTION),
        )
        return answer.Answer((first,), has_hits=False, has_number=False)
    at = f"at {numbers.false_alarms(fpr)} non-members"
    first = Markup(
        "<b>Of 100 members, an attacker finds {}</b> <small>({})</small> {}, after adjustment for the covariates. "
        "Without adjustment: {}. Guessing finds {}."
    ).format(
        numbers.value(adjusted),
        numbers.interval(adjusted) or "no interval",
        at,
        numbers.value(unadjusted),
        numbers.rate(fpr),
    )
    second = Markup(
        '<span class="muted">This is right only if the covariates include everything that differs between the sources '
        "and affects the scores.</span>"
    )
    return answer.Answer((first, second), has_hits=True)


def adjusted_tpr(causal: pd.DataFrame, fpr: float) -> Estimate:
    """Returns the adjusted share of members found, of the first attack and model."""
    return _metric(_row(causal, RECOMMENDED), f"tpr_{fpr:g}")


def section(tables: Mapping[str, pd.DataFrame], fpr: float) -> document.Section:
    """Returns the section on what remains of the attack after adjustment."""
    causal = tables["causal"]
    first = _first(causal)
    roc = _first(tables["causal_roc"])
    curves = []
    for name in [n for n in _ROLES if n in {*roc["estimator"]}]:
        points = roc[(roc["estimator"] == name) & (roc["fpr"] > 0) & (roc["tpr"] > 0)]
        points = points.sort_values("fpr")
        found = _metric(_row(causal, name), f"tpr_{fpr:g}")
        curves.append(
            charts.Curve(
                ESTIMATORS[name],
                _ROLES[name],
                points["fpr"].to_numpy(),
                points["tpr"].to_numpy(),
                found,
            )
        )
    nonmembers = int(first["nonmembers"].iloc[0])
    chart = charts.roc(curves, fpr=fpr, num_nonmembers=nonmembers, key="causal-roc")
    caption = "The difference is what an attack gains from telling the sources apart."
    notes = (
        Markup(
            "<b>Adjusted:</b> members are compared with what they would have scored without training on them, as far "
            "as the covariates can tell."
        ),
        Markup(
            "<b>IPW</b> weights non-members so that they resemble members. The <b>G-formula</b> predicts scores by a "
            "regression. <b>AIPW</b> does both, and is the one to report."
        ),
    )
    blocks: list[document.Block] = []
    if not causal["has_overlap"].all():
        blocks.append(
            "There are too few non-members that resemble the members, so the adjusted estimates are unreliable and "
            "have no intervals."
        )
    figure = document.FigureWithNotes(document.Figure(chart, caption), notes)
    blocks += [figure, _estimates(first, [*_rates(causal)])]
    title = "What remains after adjustment for the sources?"
    return document.Section("causal", "Sources", title, tuple(blocks))


def details(tables: Mapping[str, pd.DataFrame]) -> Iterator[document.Detail]:
    """Yields the estimates of all attacks and models, the overlap of the sources, and the covariates."""
    causal = tables["causal"]
    if len(causal) > len(_first(causal)):
        table = _estimates(causal, [*_rates(causal)])
        count = len(causal.drop_duplicates(["attack", "model"]))
        finding = f"Estimates of {plural(count, 'attack or model')}."
        if count > 1:
            finding = f"Estimates of {count} attacks or models."
        yield document.Detail("All adjusted numbers", finding, (table,))
    yield _overlap(causal)
    yield _balance(_first(tables["covariate_balance"]))


def _estimates(causal: pd.DataFrame, rates: list[float]) -> document.Table:
    metrics = {"auc": "AUC"}
    metrics |= {f"tpr_{fpr:g}": f"TPR at {percent(fpr)} FPR" for fpr in rates}
    metrics["ate"] = "Mean effect"
    columns = [document.Column("Scores"), document.Column("Estimator", "estimator", is_text=True)]
    columns += [document.Column(title, title) for title in metrics.values()]
    rows = []
    for row in causal.to_dict("records"):
        cells: list[document.Text] = [_label(row), ESTIMATORS[row["estimator"]]]
        for metric in metrics:
            value = _metric(row, metric)
            if metric.startswith("tpr_") and not value.is_known:
                cells.append(needs_nonmembers(float(metric[4:])))
            else:
                cells.append(numbers.fraction(value))
        rows.append(document.Row(tuple(cells), is_headline=row["estimator"] == RECOMMENDED))
    caption = (
        "Estimates, not bounds. Small: intervals of a bootstrap that holds the models of the covariates fixed; rates "
        "of the G-formula have none, and unadjusted numbers have the intervals of the attack. Mean effect: by how much "
        "training on a sample raises its score."
    )
    return document.Table(caption, tuple(columns), tuple(rows))


def _overlap(causal: pd.DataFrame) -> document.Detail:
    rows = causal[causal["estimator"] == RECOMMENDED].to_dict("records")
    titles = {
        "AUC of the covariates": lambda row: f"{row['covariate_auc']:.3f}",
        "Non-members": lambda row: f"{int(row['nonmembers']):,}",
        "Effective": lambda row: f"{row['effective_nonmembers']:,.0f}",
        "Largest weight": lambda row: percent(row["largest_weight_share"]),
        "Beyond": lambda row: percent(row["members_beyond_nonmembers"]),
        "Overlap": lambda row: "yes" if row["has_overlap"] else "no",
    }
    columns = [document.Column("Scores"), *(document.Column(t, t.lower()) for t in titles)]
    cells = [(_label(row), *(write(row) for write in titles.values())) for row in rows]
    first = rows[0]
    finding = (
        f"{first['effective_nonmembers']:,.0f} of {plural(int(first['nonmembers']), 'weighted non-member')} count; the "
        f"covariates alone have an AUC of {first['covariate_auc']:.2f}."
    )
    text = (
        "AUC of the covariates: of an attack that never looks at the model. Effective: equally weighted non-members "
        "that would be as informative. Beyond: members that are more member-like than every non-member. There is "
        "overlap if at least 50 effective non-members remain, none of them has more than 10% of the weight, and at "
        "most 10% of the members are beyond. causal_weights.csv has the histograms of the weights."
    )
    table = document.Table(
        "Overlap between members and weighted non-members.",
        tuple(columns),
        tuple(document.Row(row) for row in cells),
    )
    return document.Detail("Overlap of the sources", finding, (text, table))


def _balance(balance: pd.DataFrame) -> document.Detail:
    size = balance["difference"].abs().sort_values(ascending=False, kind="stable")
    shown = balance.loc[size.index][:_MAX_COVARIATES].to_dict("records")
    columns = (
        document.Column("Covariate"),
        document.Column("Difference before", "before"),
        document.Column("After weighting", "after weighting"),
    )
    rows = tuple(
        document.Row(
            (str(row["covariate"]), _deviations(row["difference"]), _deviations(row["weighted_difference"]))
        )
        for row in shown
    )  # fmt: skip
    above = int((balance["weighted_difference"].abs() > _BALANCED).sum())
    finding = (
        f"After weighting, {above or 'none'} of {plural(len(balance), 'covariate')} "
        f"{'differs' if above == 1 else 'differ'} by more than {_BALANCED:g} standard deviations."
    )
    caption = "Differences of means between members and non-members, in standard deviations"
    if len(shown) < len(balance):
        caption += f": the {len(shown)} largest of {len(balance)}"
    table = document.Table(f"{caption}; covariate_balance.csv has the means.", columns, rows)
    return document.Detail("Balance of the covariates", finding, (table,))


def _deviations(value: float) -> str:
    """Formats a difference; a covariate that is constant within each class has none."""
    return f"{value:.2f}".replace("-", "−") if math.isfinite(value) else numbers.MISSING


def _rates(causal: pd.DataFrame) -> Iterator[float]:
    for name in map(str, causal.columns):
        if name.startswith("tpr_") and name.count("_") == 1:
            yield float(name[4:])


def _label(row: Mapping[Any, Any]) -> str:
    name = "" if row["attack"] == "score" else attack_name(row["attack"])
    model = f"model {row['model']}" if row["model"] else ""
    return ", ".join(filter(None, [name, model])) or "Scores"


def _metric(row: Mapping[Any, Any], metric: str) -> Estimate:
    """Returns a number with its interval; it is not known if its rate was not asked for."""
    if metric not in row:
        return Estimate(math.nan)
    ends = (row.get(f"{metric}_low", math.nan), row.get(f"{metric}_high", math.nan))
    return Estimate(float(row[metric]), *map(float, ends))


def _row(causal: pd.DataFrame, estimator: str) -> Mapping[Any, Any]:
    """Returns the row of an estimator, of the first attack and model."""
    first = _first(causal)
    return first[first["estimator"] == estimator].to_dict("records")[0]


def _first(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the first attack and model."""
    first = table.iloc[0]
    return table[table["attack"].eq(first["attack"]) & table["model"].eq(first["model"])]
