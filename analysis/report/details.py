"""The folded part of the page: one line for each topic, which states its result."""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import io
from analysis.experiments.recipe import extracted as of_extraction
from analysis.experiments.recipe import strength as of_strength
from analysis.formatting import lower_bound
from analysis.io import RecipeResults
from analysis.report import charts, document, numbers
from analysis.report.numbers import Estimate
from analysis.report.strength import Strength
from lm_mia import config
from lm_mia.attacks import registry
from lm_mia.attacks.privacy_bounds import is_of_pairs
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable, UserError
from lm_mia.printing import plural

_Topic = Callable[[RecipeResults, Strength], Iterator[document.Detail]]
_FIGURES = {
    "training": "losses during training",
    "vulnerability": "how often members are found, by properties of their texts",
    "extraction": "probabilities of continuations by score",
    "advantage": "advantage of all attacks",
    "audit": "bounds by number of guesses",
    "pooling": "strategies compared",
    "gaussian_tpr": "predicted for each text",
    "zero_run": "errors of all estimators",
}
"""Name of a figure of a recipe -> what it shows."""


def details(
    recipe: RecipeResults, strength: Strength | None, from_workdir: str = ""
) -> tuple[document.Detail, ...]:
    """Returns the topics that a recipe has results for, in the order of the page.

    Args:
      recipe: the recipe.
      strength: the strength of its attacks; None if no model is under attack.
      from_workdir: the path from the page to the workdir, for links to figures.
    """
    topics: tuple[tuple[_Topic, tuple[str, ...]], ...] = (
        (_all_attacks, ()),
        (_more_references, ()),
        (_other_references, ()),
        (_coin_flips, ()),
        (_control, ()),
        (_privacy, ("audit",)),
        (_advantage, ("advantage",)),
        (_extraction, ("extraction",)),
        (_texts, ("vulnerability",)),
        (_not_possible, ()),
    )
    found: list[document.Detail] = []
    if strength is not None:
        for topic, figures in topics:
            made = functools.partial(topic, recipe, strength)
            found += _of_topic(recipe, made, figures, from_workdir)
    made = functools.partial(_training, recipe)
    found += _of_topic(recipe, made, ("training",), from_workdir)
    return (*found, *of_references(recipe, from_workdir))


def of_references(recipe: RecipeResults, from_workdir: str = "") -> list[document.Detail]:
    """Returns the topics for which each reference is attacked with the others; arguments are as of `details`."""
    found: list[document.Detail] = []
    for topic, figures in (
        (_thresholds, ("pooling", "gaussian_tpr")),
        (_sources, ("zero_run",)),
    ):
        found += _of_topic(recipe, functools.partial(topic, recipe), figures, from_workdir)
    return found


def _of_topic(
    recipe: RecipeResults,
    make: Callable[[], Iterator[document.Detail]],
    figures: Sequence[str],
    from_workdir: str,
) -> list[document.Detail]:
    """Returns the lines about a topic, with links to its figures; none if there are no results."""
    try:
        made = [*make()]
    except Unavailable:
        return []  # the models or the settings of the recipe do not allow it
    except UserError as error:  # such as a damaged file
        reason = str(error).strip().splitlines()[0].rstrip(".")
        return [document.Detail("One part is missing", f"{reason}.")]
    links = _links(recipe, figures, from_workdir)
    return [dataclasses.replace(detail, blocks=(*detail.blocks, *links)) for detail in made]


def _links(
    recipe: RecipeResults, figures: Sequence[str], from_workdir: str
) -> tuple[document.Block, ...]:
    """Returns a line with links to those of the figures that are drawn."""
    folder = io.parent_workdir(recipe.recipe_dir) / "figures"
    links = [
        Markup('{}: <a href="{}.png">PNG</a>, <a href="{}.pdf">PDF</a>').format(
            _FIGURES[figure].capitalize(), *2 * [f"{from_workdir}figures/{quote(file)}"]
        )
        for figure in figures
        if (folder / f"{(file := f'{recipe.name}-{figure}')}.pdf").is_file()
    ]
    return (Markup("; ").join(links),) if links else ()


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
    finding = (
        f"With {last.x:.0f} references, {series[0].name} would find {numbers.plain(last.y)}; today "
        f"{numbers.value(strength.found)}."
    )
    if not last.is_predicted:
        finding = f"{last.x:.0f} references are too few to predict what more would find."
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


def _other_references(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    table = recipe.view.table("resampled_references.csv")
    table = table[(table["bin"] == "coin flip") & np.isclose(table["fpr"], strength.fpr)]
    if not len(table):
        return
    # With few sets, nothing rules a coin out; with few references, LiRA has no scores.
    rows = table[table["low"] > 0].dropna().to_dict("records")
    finding = "The sets of references are too few or too small to tell a decision from a coin flip."
    if rows:
        finding = (
            f"With {rows[0]['references_per_set']:.0f} other references, LiRA decides "
            f"{100 * rows[0]['member_fraction']:.0f} % of the members by a coin flip."
        )
    texts = [
        f"{'Disjoint' if row['sampling'] == 'disjoint' else 'Overlapping'} sets ({row['sets']:.0f} of "
        f"{row['references_per_set']:.0f}): {100 * row['member_fraction']:.0f} % of the members and "
        f"{100 * row['nonmember_fraction']:.0f} % of the non-members, from a flip rate of {row['low']:.2f}"
        + (f"; {plural(int(row['left_out']), 'text')} without a score." if row["left_out"] else ".")
        for row in rows
    ]
    text = (
        f"LiRA on the first model, with several sets of its references. {' '.join(texts)}".strip()
    )
    yield document.Detail(
        "Different references", finding, (text, _file(recipe, "resampled_references.csv"))
    )


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
    if recipe.config.train.subset == "given":
        finding = "No bound on ε: it needs members that were drawn at random before training."
        note = "The estimates in this table are no bounds."
        yield document.Detail("Differential privacy", finding, (note, _file(recipe, "audit.csv")))
        return
    if not rows:
        return
    [row] = rows
    finding = (
        f"ε is at least {lower_bound(row['epsilon'])} (95 % confidence, δ = {row['delta']:g})."
    )
    if row["epsilon"] <= 0:
        finding = "No leak could be shown: the guesses fit ε = 0."
    text = (
        f"{int(row['correct']):,} of the {int(row['guesses']):,} most certain guesses about {int(row['canaries']):,} "
        f"{'pairs' if is_of_pairs(row) else 'samples'} were right, for the first attacked model."
    )
    if row["epsilon"] > 0 and row["epsilon"] >= row["ceiling"]:
        text += " This number of guesses cannot give a larger bound."
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
    # It loads matplotlib, which the last line of a command does without.
    from analysis import extraction

    result = extraction.read(recipe)
    if result is None:
        if recipe.config.extract.samples:
            yield document.Detail(
                "Extraction", Markup("Not tried yet: <code>lm-mia extract</code>.")
            )
        return
    count, extracted = len(result.samples), int(of_extraction.extracted(result).sum())
    finding = Markup.escape(f"{extracted or 'None'} of the {count:,} tried texts can be extracted")
    log_p_S = result.column("log_p_sampled")
    log_p_S = log_p_S[np.isfinite(log_p_S)]
    if not extracted and log_p_S.size:
        power = f"{log_p_S.max() / math.log(10):.0f}".replace("-", "−")
        finding += Markup("; the likeliest has a probability of 10<sup>{}</sup>").format(power)
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


def _training(recipe: RecipeResults) -> Iterator[document.Detail]:
    from analysis.experiments.strongmia import training  # loads matplotlib

    table = recipe.view.table("models.csv")
    member, nonmember = (table[f"{kind}_loss_nats"].median() for kind in ("member", "nonmember"))
    if math.isnan(member) or math.isnan(nonmember):
        return
    finding = (
        f"Median loss of {plural(len(table), 'model')}: {member:.2f} nats per token on members, {nonmember:.2f} on "
        "others."
    )
    texts: list[document.Block] = []
    median = training.medians(recipe)
    if "first_loss" in median:
        texts.append(
            f"Loss on the batches of the first logged step {median['first_loss']:.2f}, of the last one "
            f"{median['last_loss']:.2f} (medians)."
        )
    if "seconds" in median:
        texts.append(f"Training takes {median['seconds']:.1f} seconds per model (median).")
    yield document.Detail("Training", finding, (*texts, _file(recipe, "models.csv")))


def _thresholds(recipe: RecipeResults) -> Iterator[document.Detail]:
    from analysis.experiments.reliability import pooling  # loads matplotlib

    shown = pooling.read(recipe)
    if shown is None:
        return
    if shown.reason:
        yield document.Detail(
            "Thresholds for many models", "Not with these models.", (f"{shown.reason}.",)
        )
        return
    found = shown.by_strategy["standardized"]["tpr"]
    finding = (
        f"One threshold for {plural(shown.models, 'model')}, on standardized losses, finds {100 * found:.0f} % of the "
        "members."
    )
    if math.isnan(found):
        finding = f"Too few non-members for {numbers.false_alarms(shown.fpr)}."
    yield document.Detail(
        "Thresholds for many models", finding, (shown.verdict, _file(recipe, "pooling.csv"))
    )


def _sources(recipe: RecipeResults) -> Iterator[document.Detail]:
    from analysis.experiments.causal import zero_run  # loads matplotlib

    shown = zero_run.read(recipe)
    if shown is None:
        return
    if shown.reason:
        yield document.Detail("Different sources", "Not with these models.", (f"{shown.reason}.",))
        return
    finding = f"Members and non-members from different sources: {plural(shown.runs, 'reference')} attacked."
    texts = [
        shown.verdict,
        *(
            f"The shift {shift} is not possible: {why}."
            for shift, why in shown.shift_reasons.items()
        ),
        *(one.sentence for one in shown.one_run),
    ]
    blocks = (*(text for text in texts if text), _file(recipe, "zero_run.csv"))
    yield document.Detail("Different sources", finding, blocks)


def _not_possible(recipe: RecipeResults, strength: Strength) -> Iterator[document.Detail]:
    if not config.has_no_references(recipe.config):
        return
    names = [name for name in config.Attack().attacks if registry.ATTACKS[name].uses_references]
    others = (
        "the tables of its decisions" if strength.has_replicas else "votes of several trainings"
    )
    finding = f"{plural(len(names), 'attack')} of references, LiRA among them, and {others}."
    listed = numbers.words([*map(attack_name, names)])
    text = (
        f"{listed} compare the model with reference models: train 4 or more models in the same way, each on a random "
        "half of the same texts, and import their losses with the role reference."
    )
    yield document.Detail("Not possible here", finding, (text,))
