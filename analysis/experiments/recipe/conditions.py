"""What would change the answer: which texts the headline attack finds more often than others.

B: attacked models, N: the samples that are used, A1: all attacked models, and then without each group of them, H1: all
samples, and then each half of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.io import RecipeResults
from analysis.report import charts, document, numbers
from analysis.report.numbers import Estimate
from analysis.report.strength import Strength
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import AttackTable
from lm_mia.printing import plural

PROPERTIES = ("tfidf", "tokens")
"""Columns of the sample table by which texts are divided."""
_FEWEST = 40
"""Members of a quarter; with fewer, there is no row."""

FOUND_BY_TEXT = Table(
    "found_by_text.csv",
    (
        "Members among the first 32,768 samples are divided into quarters by a property of their texts, larger ones if "
        "many texts have the same; each row is the share of a quarter that `attack.headline` finds at "
        "`attack.focus_fpr`, mean over replicas or, without replicas, under the first target. Properties that are "
        "unknown, equal for most texts, or of fewer than 160 members have no rows."
    ),
    {
        "property": Column("none", "`tfidf`: mean TF-IDF of the tokens; `tokens`: length"),
        "quarter": Column(
            "none", "`lowest` or `highest`; `ratio`: of the highest quarter to the lowest one"
        ),
        "members": Column("count", "members of the quarter"),
        "found": Column("fraction", "share of them that is found, or the ratio of two shares"),
        "low, high": Column("fraction", "95% interval over samples and replicas"),
    },
    key=("property", "quarter"),
)
_COLUMNS = ("property", "quarter", "members", "found", "low", "high")


def found_by_text(
    scores: Scores, *, band: tuple[float, float], focus_fpr: float, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns found_by_text.csv."""
    models = len(scores.targets) if scores.spec.targets_are_replicas else 1
    samples = min(scores.file.num_samples, study_inputs.FIRST_SAMPLES)
    score_BxN = scores.file.read_samples(slice(0, samples))[:models]
    is_scored_N = ~np.isnan(score_BxN).any(axis=0)
    member_N = scores.member_TxN[0, :samples]
    used_H1xN = study_inputs.sample_parts(scores.group_N[:samples]) & is_scored_N
    outside_H1 = (used_H1xN & ~member_N).sum(axis=1)
    rows = []
    if outside_H1.min() < stats.nonmembers_needed(focus_fpr):
        return pd.DataFrame(columns=[*_COLUMNS])
    threshold_H1xB = np.array(
        [
            [
                stats.threshold_at_fpr(score_N[used_N & ~member_N], focus_fpr)
                for score_N in score_BxN
            ]
            for used_N in used_H1xN
        ]
    )
    kept_A1xB = study_inputs.without_replicas(models) if models > 1 else np.ones((1, 1), bool)
    for name in PROPERTIES:
        if name not in scores.population.column_names:
            continue
        value_N = scores.population.column(name)[:samples].astype(float)
        member_values = value_N[member_N & is_scored_N & ~np.isnan(value_N)]
        if member_values.size < 4 * _FEWEST:
            continue
        lowest, highest = np.quantile(member_values, [0.25, 0.75])
        if not member_values.min() < lowest < highest:
            continue
        found = {}
        for quarter, is_in_N in (("lowest", value_N <= lowest), ("highest", value_N >= highest)):
            is_in_N = is_in_N & member_N & is_scored_N
            share_BxH1 = np.array(
                [
                    [
                        _share(score_N[is_in_N & used_N] >= threshold_H1xB[h, b])
                        for h, used_N in enumerate(used_H1xN)
                    ]
                    for b, score_N in enumerate(score_BxN)
                ]
            )
            found[quarter] = np.array([share_BxH1[kept_B].mean(axis=0) for kept_B in kept_A1xB])
            low, high = stats.share_interval(found[quarter], count=int(is_in_N.sum()))
            share = float(found[quarter][0, 0])
            rows.append([name, quarter, int(is_in_N.sum()), share, low, high])
        low_A1xH1, high_A1xH1 = found["lowest"], found["highest"]
        if (low_A1xH1 > 0).all() and (high_A1xH1 > 0).all():
            # The logarithm of a ratio is a difference.
            ends = stats.difference_interval(np.log(high_A1xH1), np.log(low_A1xH1))
            ratio = float(high_A1xH1[0, 0] / low_A1xH1[0, 0])
            rows.append([name, "ratio", None, ratio, *map(math.exp, ends)])
    table = pd.DataFrame(rows, columns=[*_COLUMNS])
    return table.assign(members=table["members"].astype("Int64"))


def _share(found_N: np.ndarray) -> float:
    """Returns the share of samples that are found; NaN if a half has none, such as of a single document."""
    return float(found_N.mean()) if found_N.size else math.nan


# --- What the page shows ----------------------------------------------------------------------------------------------

_SHORT = {
    "tfidf": ("common words", "rare words", "TF-IDF"),
    "tokens": ("few tokens", "many tokens", "length"),
}
"""Property -> how texts of the lowest and of the highest quarter are called, and by what they are divided."""


def section(recipe: RecipeResults, strength: Strength) -> document.Section:
    """Returns the section "What would change the answer?"."""
    head = charts.DotRow(
        f"This report: {attack_name(strength.headline)}{_with_references(strength.references)}",
        strength.found,
        "headline",
        "This report",
    )
    by_text, predicted = recipe.view.table(FOUND_BY_TEXT.file), _more_references(recipe, strength)
    groups = [
        charts.DotGroup("The attacker", tuple(_attackers(strength, predicted))),
        charts.DotGroup("The model", tuple(_models(recipe, strength))),
        charts.DotGroup("The text", tuple(_texts(by_text))),
    ]
    groups = [group for group in groups if group.rows]
    caption = (
        f"At {numbers.false_alarms(strength.fpr)} unless stated. Lines: 95 % intervals. Ticks: single models. Not "
        "varied in this run: model size, epochs, number of texts"
    )
    caption += "." if recipe.is_imported else "; a config with a sweep compares them."
    figure = document.Figure(charts.dot_rows(head, groups, key="change"), caption)
    blocks = (_sentences(strength, groups, predicted, by_text), figure)
    return document.Section(
        "change", "What would change it", "What would change the answer?", blocks
    )


def _with_references(references: int) -> str:
    return f", {plural(references, 'reference')}" if references else ""


def _attackers(
    strength: Strength, predicted: Mapping[int, tuple[Estimate, bool]]
) -> Iterator[charts.DotRow]:
    loss = strength.estimate("loss", "tpr")
    if strength.headline != "loss" and loss.is_known:
        yield charts.DotRow("sees only the loss, no references", loss, "loss", "sees only the loss")
    lira = strength.estimate("lira_online", "tpr")
    if strength.headline != "lira_online" and lira.is_known:
        yield charts.DotRow("uses LiRA", lira, "lira")
    for references, (estimate, is_predicted) in predicted.items():
        text = f"has {plural(references, 'reference')}"
        yield charts.DotRow(f"{text} (predicted)" if is_predicted else text, estimate, "family")
    if strength.second_fpr > strength.fpr:
        rate = numbers.false_alarms(strength.second_fpr)
        yield charts.DotRow(f"accepts {rate}", strength.estimate(strength.headline, "second_tpr"))


def _more_references(recipe: RecipeResults, strength: Strength) -> dict[int, tuple[Estimate, bool]]:
    """Returns what the headline finds with a quarter of the references, and is predicted to find with 4 times as many.

    Number of references -> (estimate, whether it is predicted).
    """
    if not (strength.references and recipe.view.has("more_references.csv")):
        return {}
    table = recipe.view.table("more_references.csv")
    table = table[
        (table["attack"] == strength.headline) & (table["metric"] == f"tpr_at_{strength.fpr:g}")
    ].dropna(subset=["value"])
    table = table[table["references"] != strength.references].sort_values("references")
    if table.empty:
        return {}
    chosen = table.iloc[[0, -1]].drop_duplicates("references").to_dict("records")
    return {
        int(row["references"]): (
            Estimate(float(row["value"]), float(row["low"]), float(row["high"])),
            row["kind"] == "predicted",
        )
        for row in chosen
    }


def _models(recipe: RecipeResults, strength: Strength) -> Iterator[charts.DotRow]:
    found_T = strength.found_by_model
    if len(found_T) > 1:
        how = "in another batch order" if strength.has_replicas else "on another half of the texts"
        yield charts.DotRow(
            f"trained {how}: each of the {len(found_T)}",
            Estimate(float(np.mean(found_T))),
            "headline",
            how,
            models=found_T,
        )
    if recipe.view.has("reference_targets.csv"):
        table = recipe.view.table("reference_targets.csv")
        column = f"tpr_at_{strength.fpr:g}"
        if column in table and table[column].notna().sum() > 1:
            found_M = tuple(map(float, table[column].dropna()))
            yield charts.DotRow(
                f"trained on other halves: each of {len(found_M)} (LiRA)",
                Estimate(float(np.mean(found_M))),
                "lira",
                "on other halves (LiRA)",
                models=found_M,
            )


def _texts(by_text: pd.DataFrame) -> Iterator[charts.DotRow]:
    for row in by_text[by_text["quarter"] != "ratio"].to_dict("records"):
        low, high, name = _SHORT[row["property"]]
        what = low if row["quarter"] == "lowest" else high
        yield charts.DotRow(
            f"has {what}: {row['quarter']} quarter by {name}",
            Estimate(float(row["found"]), float(row["low"]), float(row["high"])),
            "family",
            f"has {what}",
        )


def _sentences(
    strength: Strength,
    groups: Sequence[charts.DotGroup],
    predicted: Mapping[int, tuple[Estimate, bool]],
    by_text: pd.DataFrame,
) -> str:
    """Returns the two conditions that change the number most, what more references would find, and the texts."""
    subjects = {"The attacker": "an attacker who", "The text": "a text that"}
    rows = [
        (f"{subjects[group.title]} {row.label} ({numbers.value(row.found)})", row.found.value)
        for group in groups
        for row in group.rows
        # At another rate, guessing finds another number too.
        if not row.models
        and row.found.is_known
        and not row.label.startswith("accepts ")
        and not row.found.contains(strength.found.value)
    ]
    by_distance = sorted(rows, key=lambda row: -abs(row[1] - strength.found.value))
    sentences = []
    if by_distance:
        sentences.append(f"Most: {numbers.words([text for text, _ in by_distance[:2]])}.")
    else:
        sentences.append("No condition that was tried visibly changes the number.")
    for references, (estimate, is_predicted) in predicted.items():
        if not is_predicted:
            continue
        if estimate.contains(strength.found.value):
            sentences.append(
                f"More references would not visibly help: {references:,} are predicted to find "
                f"{numbers.plain(estimate)}."
            )
        else:
            sentences.append(
                f"With {references:,} references, the attack is predicted to find {numbers.plain(estimate)}."
            )
    for row in by_text[by_text["quarter"] == "ratio"].to_dict("records"):
        low, high, _ = _SHORT[row["property"]]
        if row["low"] > 1 or row["high"] < 1:
            sentences.append(
                f"Texts with {high} are found {row['found']:.1f} times as often as texts with {low}."
            )
    return " ".join(sentences)


ATTACK_TABLES = (AttackTable(FOUND_BY_TEXT, found_by_text, of_headline=True),)
