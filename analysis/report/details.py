"""The folded part of the page: one line for each topic, which states its result."""

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.experiments.recipe import strength as of_strength
from analysis.formatting import plural
from analysis.io import RecipeResults
from analysis.report import charts, document, numbers
from analysis.report.numbers import Estimate
from analysis.report.strength import Strength
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable, UserError

_LIKELY = 0.01
"""The probability of a suffix above which a text counts as extracted."""


def details(recipe: RecipeResults, strength: Strength) -> tuple[document.Detail, ...]:
    """Returns the topics that a recipe has results for, in the order of the page."""
    topics: tuple[Callable[[RecipeResults, Strength], Iterator[document.Detail]], ...] = (
        _all_attacks,
        _more_references,
        _coin_flips,
        _control,
        _privacy,
        _advantage,
        _extraction,
        _texts,
        _training,
        _thresholds,
        _sources,
    )
    found: list[document.Detail] = []
    for topic in topics:
        try:
            found += [*topic(recipe, strength)]
        except Unavailable:
            continue  # the models or the settings of the recipe do not allow it
        except UserError as error:  # such as a damaged file
            reason = str(error).strip().splitlines()[0].rstrip(".")
            found.append(document.Detail("One part is missing", f"{reason}."))
    return tuple(found)


def _file(recipe: RecipeResults, name: str) -> Markup:
    return Markup("Table: <code>recipes/{}/tables/{}</code>.").format(recipe.name, name)


def _all_attacks(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    attacks = strength.attacks
    if len(attacks) <= len(strength.shown):
        return
    value = {attack: 100 * strength.estimate(attack, "tpr").value for attack in attacks}
    low, high = min(value, key=lambda a: value[a]), max(value, key=lambda a: value[a])
    finding = f"From {value[low]:.0f} ({attack_name(low)}) to {value[high]:.0f} ({attack_name(high)}) of 100 members."
    table = of_strength.attacks_table(strength, attacks)
    yield document.Detail(f"All {len(attacks)} attacks", finding, (table,), "d-attacks")


def _more_references(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("more_references.csv")
    table = table[table["metric"] == f"tpr_at_{strength.fpr:g}"].dropna(subset=["value"])
    series = []
    for attack in strength.shown:
        rows = table[table["attack"] == attack].sort_values("references").to_dict("records")
        if rows:
            role: charts.Role = "headline" if attack == strength.headline else "family"
            role = "lira" if attack == "lira_online" and role != "headline" else role
            points = (
                charts.LinePoint(
                    float(row["references"]),
                    Estimate(float(row["value"]), float(row["low"]), float(row["high"])),
                    row["kind"] == "predicted",
                )
                for row in rows
            )
            series.append(charts.Line(attack_name(attack), role, tuple(points)))
    if not series:
        return
    last = series[0].points[-1]
    verb = "would find" if last.is_predicted else "finds"
    finding = (
        f"With {last.x:.0f} references, {series[0].name} {verb} {numbers.plain(last.y)}; today "
        f"{numbers.value(strength.found)}."
    )
    counts = sorted({point.x for line in series for point in line.points})
    chart = charts.lines(
        series,
        ticks=[charts.Tick(x, f"{x:.0f}") for x in counts],
        x_title="Reference models",
        y_title=f"Members found per 100 at {numbers.false_alarms(strength.fpr)}",
        title="Members found by number of references",
        key="references",
    )
    caption = (
        "Filled: observed, means over sets of references. Open: predicted, with 95 % intervals."
    )
    yield document.Detail("More references", finding, (document.Figure(chart, caption),))


def _coin_flips(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("attack_flips.csv")
    table = table[(table["attack"] == strength.headline) & table["tpr_mean"].notna()]
    others = table[~np.isclose(table["fpr"], strength.fpr)].to_dict("records")
    if not others:
        return
    nearest = min(others, key=lambda row: abs(math.log(row["fpr"] / strength.second_fpr)))
    finding = f"{100 * nearest['member_coin_flips']:.0f} % of the members at {numbers.false_alarms(nearest['fpr'])}."
    columns = tuple(
        document.Column(title, title.lower())
        for title in (
            "False alarms per 100",
            "Members decided by a coin flip, %",
            "Non-members decided by a coin flip, %",
            "Members found per 100",
            "Hits on texts decided by a coin flip, %",
        )
    )
    names = ("member_coin_flips", "nonmember_coin_flips", "tpr_mean", "coin_flip_tp_fraction")
    rows = tuple(
        document.Row(
            (numbers.rate(row["fpr"]), *(numbers.value(Estimate(float(row[n]))) for n in names)),
            is_headline=math.isclose(row["fpr"], strength.fpr),
        )
        for row in table.to_dict("records")
    )
    caption = f"{attack_name(strength.headline)}, {plural(strength.trainings, 'training')}."
    blocks = (document.Table(caption, columns, rows),)
    yield document.Detail("Coin flips at other rates", finding, blocks)


def _control(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("shuffled.csv")
    low, high = table["auc_mean"].min(), table["auc_mean"].max()
    is_chance = low >= 0.45 and high <= 0.55
    finding = f"With shuffled membership, attacks have AUCs from {low:.2f} to {high:.2f}"
    finding += (
        ": guessing, as they should."
        if is_chance
        else "; 0.5 is expected, so distrust the numbers."
    )
    shuffles = int(table["shuffles"].iloc[0])
    text = (
        f"The membership of all samples was permuted {shuffles} times, for the first attacked model and the references "
        "together."
    )
    yield document.Detail("Control", finding, (text, _file(recipe, "shuffled.csv")))


def one_run(recipe: RecipeResults, strength: Strength) -> list[dict[Hashable, Any]]:
    """Returns the row of audit.csv with the bound on epsilon of the headline attack; none if no bound is valid."""
    table = recipe.view.table("audit.csv")
    is_row = (table["attack"] == strength.headline) & (table["method"] == "one_run")
    return table[is_row].to_dict("records")


def _privacy(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    rows = one_run(recipe, strength)
    if not rows:
        return
    [row] = rows
    finding = f"ε is at least {row['epsilon']:.1f} (95 % confidence, δ = {row['delta']:g})."
    if row["epsilon"] <= 0:
        finding = "No leak could be shown: the guesses fit ε = 0."
    text = (
        f"{int(row['correct']):,} of the {int(row['guesses']):,} most certain guesses about {int(row['canaries']):,} "
        "samples were right, for the first attacked model."
    )
    yield document.Detail("Differential privacy", finding, (text, _file(recipe, "audit.csv")))


def _advantage(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("advantage.csv")
    rows = table[(table["attack"] == strength.headline) & table["held_out"].notna()]
    if rows.empty:
        return
    row = rows.iloc[0]
    estimate = Estimate(*(float(row[n]) for n in ("held_out", "held_out_low", "held_out_high")))
    text = numbers.plain(estimate, numbers.FRACTION)
    finding = f"{text}, if {100 * row['prior']:.0f} of 100 texts are members; guessing has {row['baseline']:.2g}."
    note = "Twice the probability of a right decision, minus 1, on samples that were held out, for the first model."
    yield document.Detail(
        "Advantage over guessing", finding, (note, _file(recipe, "advantage.csv"))
    )


def _extraction(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    from analysis import extraction

    result = extraction.read(recipe)
    if result is None:
        return
    count = len(result.samples)
    log_p_S = result.column("log_p_sampled")
    log_p_S = log_p_S[np.isfinite(log_p_S)]
    extracted = int((log_p_S > math.log(_LIKELY)).sum())
    finding = Markup.escape(
        f"{extracted or 'None'} of the {count:,} tried texts can be extracted with a probability above 1 %"
    )
    if not extracted and log_p_S.size:
        power = f"{log_p_S.max() / math.log(10):.0f}".replace("-", "−")
        finding += Markup("; the likeliest has 10<sup>{}</sup>").format(power)
    finding += "."
    yield document.Detail(
        "Extraction", finding, (result.request_text(), _file(recipe, "extraction.csv"))
    )


def _texts(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("headline_samples.parquet", ["id", "member", "above"])
    table = table[table["member"]].dropna()
    population, position_N = recipe.population, table["id"].to_numpy()
    names = {
        "tfidf": "TF-IDF",
        "tokens": "length",
        "zlib_bytes": "compressed size",
        "unk": "unknown tokens",
    }
    parts = []
    for name, title in names.items():
        if name not in population.column_names:
            continue
        value_N = pd.Series(population.column(name)[position_N].astype(float))
        if value_N.nunique(dropna=True) < 2:
            continue
        correlation = value_N.rank().corr(table["above"].reset_index(drop=True).rank())
        shown = f"{correlation:.2f}".replace("-", "−")
        parts.append(f"{title} {shown}")
    if parts:
        text = (
            "Rank correlations of properties of the members' texts with the share of non-members that have lower "
            "scores."
        )
        finding = f"Rank correlation with the score: {', '.join(parts)}."
        yield document.Detail(
            "Which members are found", finding, (text, _file(recipe, "found_by_text.csv"))
        )


def _training(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("models.csv")
    member, nonmember = (table[f"{kind}_loss_nats"].median() for kind in ("member", "nonmember"))
    if math.isnan(member) or math.isnan(nonmember):
        return
    finding = (
        f"Median loss of {plural(len(table), 'model')}: {member:.2f} nats per token on members, {nonmember:.2f} on "
        "others."
    )
    yield document.Detail("Training", finding, (_file(recipe, "models.csv"),))


def _thresholds(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    facts = recipe.view.facts("pooling")
    if facts["reason"]:
        return
    finding = f"One threshold for {plural(int(facts['models']), 'model')}, or one per text: strategies compared."
    yield document.Detail("Thresholds for many models", finding, (_file(recipe, "pooling.csv"),))


def _sources(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    facts = recipe.view.facts("zero_run")
    if facts["reason"]:
        return
    finding = f"Members and non-members from different sources: {plural(int(facts['models']), 'reference')} attacked."
    yield document.Detail("Different sources", finding, (_file(recipe, "zero_run.csv"),))
