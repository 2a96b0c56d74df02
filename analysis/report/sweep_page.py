"""The page of several recipes: which of them lets an attacker tell who was in the training data."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis import io
from analysis.experiments.recipe import exposed
from analysis.experiments.recipe import strength as of_strength
from analysis.io import RecipeResults
from analysis.report import charts, document, numbers, recipe_page
from analysis.report import details as of_details
from analysis.report import strength as read_strength
from analysis.report.numbers import FRACTION, Estimate
from analysis.report.strength import Strength
from lm_mia import config
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable, UserError
from lm_mia.printing import plural

QUESTION = "Which recipe lets an attacker tell which texts were in the training data?"
MAX_DETAILS = 12
"""With more recipes, the page has their comparison alone."""
_MAX_WARNINGS = 5
_MAX_BANNERS = 3
_NOT_SWEPT = ("name", "figures", "compare_with_papers", "compute", "has_recipe", "model.size")


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """A recipe with numbers."""

    recipe: RecipeResults
    strength: Strength
    missing: str = ""
    """How many of its models are scored (`recipe_page.missing_models`); empty if all are."""

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self.recipe.name


@dataclasses.dataclass(frozen=True)
class Swept:
    """The setting in which the recipes differ."""

    title: str
    """How the page calls it."""
    values: Mapping[str, Any]
    """Name of a recipe -> its value."""

    @property
    def is_number(self) -> bool:
        """Whether the recipes can be ordered by it, without two of the same value."""
        values = [*self.values.values()]
        is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        return is_number and len({*values}) == len(values) and min(values) > 0


def page(
    recipes: Sequence[RecipeResults],
    name: str,
    pages: Mapping[str, str],
    *,
    links: Sequence[document.Fact] = (),
) -> document.Page:
    """Returns the page of a workdir with several recipes.

    Args:
      recipes: all recipes.
      name: the name of the workdir.
      pages: name of a recipe -> path of its own page.
      links: further pages, which are named under "How this was made".
    """
    compared, intact, reasons = [], [], {}
    for recipe in recipes:
        try:
            strength = read_strength.read(recipe)
            compared.append(Compared(recipe, strength, recipe_page.missing_models(recipe)))
            intact.append(recipe)
        except UserError as error:
            reasons[recipe.name] = recipe_page.nothing(recipe, error)
            if isinstance(error, Unavailable):
                intact.append(recipe)
    swept = swept_setting([c.recipe for c in compared])
    if swept and swept.is_number:
        compared.sort(key=lambda c: swept.values[c.name])
    banners = [
        recipe_page.not_complete(c.recipe, c.missing, c.name) for c in compared if c.missing
    ][:_MAX_BANNERS]
    banners += [
        Markup("<b>{}</b> is not compared: {}").format(name, reason)
        for name, reason in [*reasons.items()][:_MAX_BANNERS]
    ]
    if len(reasons) > _MAX_BANNERS:
        more = plural(len(reasons) - _MAX_BANNERS, "more recipe")
        banners.append(Markup("{} without numbers: {}.").format(more, _named([*reasons][3:])))
    banners += _warnings(compared)
    sections: list[document.Section] = []
    if compared:
        sections.append(_comparison(compared, swept, pages))
        most = max(compared, key=lambda c: _value(c.strength.found))
        with contextlib.suppress(UserError):
            section = exposed.section(most.recipe, most.strength)
            title = f"Which texts are most exposed in {most.name}?"
            sections.append(dataclasses.replace(section, title=title))
    lead = lead_sentences(compared, swept, [*reasons])
    return document.Page(
        title=f"{name}: membership inference report",
        name=name,
        kind=f"comparison of {plural(len(recipes), 'recipe')}",
        written=document.today(),
        question=QUESTION,
        lead=lead,
        facts=_facts(compared, swept) if compared else (),
        banners=tuple(banners),
        sections=document.numbered(sections),
        details=_details(intact, compared, pages),
        made=(*_made(recipes), *links),
    )


def lead_sentences(
    compared: Sequence[Compared], swept: Swept | None, not_compared: Sequence[str] = ()
) -> tuple[Markup, ...]:
    """Returns the first sentences: which recipe lets an attacker find most, and whether that is more than chance.

    Args:
      compared: the recipes with numbers.
      swept: the setting in which they differ.
      not_compared: the names of the other recipes, which have no results of attacks.
    """
    if not compared:
        return (Markup("<b>Nothing has been attacked yet.</b>"),)
    known = [c for c in compared if c.strength.found.is_known]
    if not known:
        return (
            Markup(
                "<b>No recipe has enough members and non-members</b> to say how many are found."
            ),
            *_without_numbers(compared, not_compared),
        )
    most, least = (choose(known, key=lambda c: c.strength.found.value) for choose in (max, min))
    if len(known) == 1:
        lead = recipe_page.sentences(most.recipe, most.strength).lead
        return (*lead, *_without_numbers(compared, not_compared))
    values = [c.strength.found.value for c in known]
    is_rising = values == sorted(values)
    is_falling = values == sorted(values, reverse=True)
    apart = difference(most.strength.found, least.strength.found)
    is_apart = apart.has_interval and apart.low > 0
    # One model finds more than another by more than the chance of which models and texts were drawn.
    so_far = any(c.missing for c in known)
    is_complete = len(known) == len(compared) and not not_compared
    if not is_apart:
        start = f"{'So far, the' if so_far else 'The'} recipes cannot be told apart."
    elif swept and swept.is_number and is_complete and (is_rising or is_falling):
        more = "larger" if is_rising else "smaller"
        all_of = "So far, all" if so_far else "All"
        start = f"{all_of} {len(known)}; the {more} the {swept.title}, the more."
    else:
        start = f"{'So far, ' if so_far else ''}{most.name} lets an attacker find most."
    start = Markup("<b>{}</b>").format(start)
    rates = {c.strength.fpr for c in known}
    at = (
        f"at {numbers.false_alarms(rates.pop())} non-members"
        if len(rates) == 1
        else "at the rate of each recipe"
    )
    numbers_of = Markup(
        " Of 100 members, an attacker finds <b>{}</b> <small>({})</small> in {} and <b>{}</b> <small>({})</small> in "
        "{}, {}."
    ).format(
        numbers.value(most.strength.found),
        numbers.interval(most.strength.found) or "no interval",
        most.name,
        numbers.value(least.strength.found),
        numbers.interval(least.strength.found) or "no interval",
        least.name,
        at,
    )
    retraining = (
        "Whether a decision would survive retraining is on the pages of recipes with replicas."
        if any(c.strength.has_replicas for c in known)
        else "Whether decisions would survive retraining cannot be said: no recipe has replicas."
    )
    return (
        start + numbers_of,
        Markup('<span class="muted">{}</span>').format(retraining),
        *_without_numbers(compared, not_compared),
    )


def _without_numbers(
    compared: Sequence[Compared], not_compared: Sequence[str]
) -> tuple[Markup, ...]:
    """Returns a sentence about recipes that the first sentence leaves out, and why; none if there are none."""
    unknown = [c.name for c in compared if not c.strength.found.is_known]
    parts = [f"no attack has results in {_named(not_compared)}"] if not_compared else []
    if unknown:
        parts.append(f"{_named(unknown)} cannot show the rate, with too few non-members")
    if not parts:
        return ()
    count = len(unknown) + len(not_compared)
    total = plural(len(compared) + len(not_compared), "recipe")
    verb = "has" if count == 1 else "have"
    text = f"{count} of {total} {verb} no numbers: {'; '.join(parts)}."
    return (Markup('<span class="muted">{}</span>').format(text),)


def _named(names: Sequence[str]) -> str:
    """Lists the first names, and the number of the others."""
    if len(names) <= _MAX_BANNERS:
        return numbers.words(names)
    return f"{', '.join(names[:_MAX_BANNERS])} and {len(names) - _MAX_BANNERS} more"


def difference(one: Estimate, other: Estimate) -> Estimate:
    """Returns the difference of two shares with the interval that follows from their own, as of independent numbers.

    Recipes may share samples, which makes the interval too wide rather than too short.

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures.
    """
    value = one.value - other.value
    if not (one.has_interval and other.has_interval):
        return Estimate(value)
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, low, high)


def swept_setting(recipes: Sequence[RecipeResults]) -> Swept | None:
    """Returns the setting in which recipes differ; None if there are several, or none."""
    if len(recipes) < 2 or any(recipe.is_imported for recipe in recipes):
        return None
    settings = {recipe.name: _flat(config.to_dict(recipe.config)) for recipe in recipes}
    fields = [*next(iter(settings.values()))]
    differing = [
        field
        for field in fields
        if not field.startswith(_NOT_SWEPT)
        and len({str(values.get(field)) for values in settings.values()}) > 1
    ]
    if differing and all(field.startswith("model.") for field in differing):
        return Swept("model", {recipe.name: recipe.parameters for recipe in recipes})
    if len(differing) != 1:
        return None
    [field] = differing
    titles = {"population.samples": "number of texts", "train.epochs": "number of epochs"}
    title = titles.get(field, field)
    return Swept(title, {name: values[field] for name, values in settings.items()})


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _value(estimate: Estimate) -> float:
    return estimate.value if estimate.is_known else -1.0


def _comparison(
    compared: Sequence[Compared], swept: Swept | None, pages: Mapping[str, str]
) -> document.Section:
    table = _table(compared, swept, pages)
    caption = "Lines: 95 % intervals; “In brackets” above says what they cover."
    if swept and swept.is_number and len(compared) > 1:
        points = tuple(
            charts.LinePoint(float(swept.values[c.name]), c.strength.found) for c in compared
        )
        auc = tuple(
            charts.LinePoint(p.x, c.strength.auc) for p, c in zip(points, compared, strict=True)
        )
        ticks = [charts.Tick(p.x, numbers.count(int(p.x))) for p in points]
        x_title = (
            "Parameters without embeddings" if swept.title == "model" else swept.title.capitalize()
        )
        found_chart = charts.lines(
            [charts.Line("Found", "headline", points)],
            ticks=ticks,
            x_title=x_title,
            y_title="Members found per 100",
            title=f"Members found per 100 by {swept.title}",
            is_half=True,
            key="found-by-recipe",
        )
        auc_chart = charts.lines(
            [charts.Line("AUC", "headline", auc)],
            ticks=ticks,
            x_title=x_title,
            y_title="AUC",
            title=f"AUC by {swept.title}",
            unit=FRACTION,
            is_half=True,
            key="auc-by-recipe",
        )
        pair = document.FigurePair(
            document.Figure(found_chart, caption),
            document.Figure(auc_chart, "Guessing has an AUC of 0.5."),
        )
        blocks: tuple[document.Block, ...] = (pair, table)
    elif len(compared) > 1:
        most = max(compared, key=lambda c: _value(c.strength.found))
        rows = [
            charts.DotRow(c.name, c.strength.found, "family") for c in compared if c is not most
        ]
        chart = charts.dot_rows(
            charts.DotRow(most.name, most.strength.found, "headline"),
            [charts.DotGroup("The other recipes", tuple(rows))],
            key="recipes",
        )
        blocks = (document.Figure(chart, caption), table)
    else:
        blocks = (table,)
    return document.Section("recipes", "Recipes", "How do the recipes compare?", blocks)


def _table(
    compared: Sequence[Compared], swept: Swept | None, pages: Mapping[str, str]
) -> document.Table:
    attacks = {c.recipe.view.c.headline for c in compared}
    rates = {c.strength.fpr for c in compared}
    has_replicas = any(c.strength.has_replicas for c in compared)
    columns = [document.Column("Recipe")]
    if swept:
        title = "Parameters" if swept.title == "model" else swept.title.capitalize()
        columns.append(document.Column(title, title.lower()))
    if len(attacks) > 1:
        columns.append(document.Column("Attack", "attack", is_text=True))
    at = f" at {numbers.false_alarms(next(iter(rates)))}" if len(rates) == 1 else ""
    columns.append(document.Column(f"Members found per 100{at}", "found per 100"))
    if len(rates) > 1:
        columns.append(document.Column("False alarms per 100", "false alarms per 100"))
    columns += [
        document.Column("More than the first, per 100", "more than the first"),
        document.Column("AUC (guessing: 0.5)", "AUC"),
    ]
    if has_replicas:
        columns.append(document.Column("Missed after retraining, %", "missed after retraining, %"))
    columns.append(document.Column("Models", "models", is_text=True))
    rows = []
    for c in compared:
        link = (
            Markup('<a href="{}">{}</a>').format(pages[c.name], c.name)
            if c.name in pages
            else c.name
        )
        cells: list[document.Text] = [link]
        if swept:
            value = swept.values[c.name]
            cells.append(
                f"{value:,}"
                if isinstance(value, int) and not isinstance(value, bool)
                else str(value)
            )
        if len(attacks) > 1:
            cells.append(attack_name(c.recipe.view.c.headline))
        cells.append(numbers.markup(c.strength.found))
        if len(rates) > 1:
            cells.append(numbers.rate(c.strength.fpr))
        is_first = c is compared[0]
        more = difference(c.strength.found, compared[0].strength.found)
        cells.append(numbers.MISSING if is_first else numbers.markup(more))
        cells.append(numbers.markup(c.strength.auc, FRACTION))
        if has_replicas:
            cells.append(numbers.markup(c.strength.missed))
        own = plural(c.strength.trainings, "training" if c.strength.has_replicas else "model")
        others = plural(c.strength.references, "reference")
        if not c.strength.references:
            others = "a base" if c.strength.headline == "base_calibrated" else "no references"
        cells.append(f"{own}, {others}")
        rows.append(document.Row(tuple(cells)))
    caption = "Small: 95 % intervals."
    return document.Table(caption, tuple(columns), tuple(rows))


def _facts(compared: Sequence[Compared], swept: Swept | None) -> tuple[document.Fact, ...]:
    names = [*dict.fromkeys(attack_name(c.recipe.view.c.headline) for c in compared)]
    requested = [c.name for c in compared if not recipe_page.is_by_rule(c.recipe)]
    chosen = "chosen by rule for each recipe before the results were seen"
    if len(requested) == len(compared):
        chosen = "as requested"
    elif requested:
        chosen = f"as requested for {_named(requested)}, and by rule for the others"
    facts = [document.Fact("Attack", Markup("<b>{}</b>, {}.").format(numbers.words(names), chosen))]
    if swept:
        title = "number of parameters" if swept.title == "model" else swept.title
        facts.append(document.Fact("Swept", f"The {title}; all else is equal."))
    facts.append(
        document.Fact(
            "Tried on",
            f"{sum(c.strength.trainings for c in compared):,} attacked models of {plural(len(compared), 'recipe')}.",
        )
    )
    facts.append(document.Fact("In brackets", covered(compared)))
    return tuple(facts)


def covered(compared: Sequence[Compared]) -> str:
    """Returns a sentence on what the intervals of the recipes cover: trainings, models, samples, not references."""
    also = {
        "the batch order": [c.name for c in compared if c.strength.has_replicas],
        "the choice of models": [
            c.name for c in compared if not c.strength.has_replicas and c.strength.trainings > 1
        ],
    }
    also = {what: names for what, names in also.items() if names}
    text = "95 % intervals cover the choice of samples"
    for what, names in also.items():
        is_of_all = len(names) == len(compared)
        text += f" and {what}" if is_of_all else f", in {_named(names)} also {what}"
    fixed = (
        "the references are held fixed, and "
        if any(c.strength.references for c in compared)
        else ""
    )
    return f"{text}; {fixed}differences take the recipes as independent."


def _warnings(compared: Sequence[Compared]) -> list[Markup]:
    banners = []
    for c in compared:
        with contextlib.suppress(UserError):
            banners += [
                Markup("<b>Careful, {}:</b> {}").format(c.name, warning)
                for warning in io.read_warnings(c.recipe)
            ]
    if len(banners) <= _MAX_WARNINGS:
        return banners
    more = Markup("{} more warnings are printed by <code>lm-mia report</code>.")
    return [*banners[:_MAX_WARNINGS], more.format(len(banners) - _MAX_WARNINGS)]


def _details(
    recipes: Sequence[RecipeResults], compared: Sequence[Compared], pages: Mapping[str, str]
) -> tuple[document.Detail, ...]:
    """Returns lines for each recipe without a page of its own; none of many recipes."""
    if len(recipes) > MAX_DETAILS:
        return ()
    details = []
    for i, c in enumerate(compared):
        text = recipe_page.sentences(c.recipe, c.strength).lead[0].striptags()
        if c.name in pages:
            link = Markup('<a href="{}">The page of {}</a> has its figures and texts.').format(
                pages[c.name], c.name
            )
            details.append(document.Detail(c.name, text, (link,)))
            continue
        with contextlib.suppress(UserError):
            section = of_strength.section(c.recipe, c.strength, key=f"roc-{i}")
            samples = Markup(
                '<a href="recipes/{}/samples.html">All samples</a>, to search and filter.'
            ).format(c.name)
            details.append(document.Detail(c.name, text, (*section.blocks, samples)))
    for recipe in recipes:
        if recipe.name not in pages and recipe.has_population:
            details += [
                dataclasses.replace(detail, title=f"{recipe.name}: {detail.title}")
                for detail in of_details.of_references(recipe)
            ]
    return tuple(details)


def _made(recipes: Sequence[RecipeResults]) -> tuple[document.Fact, ...]:
    facts = [
        document.Fact(
            "Recipes",
            Markup("{}; <code>recipes/NAME/config.json</code> has all settings of each").format(
                plural(len(recipes), "recipe")
            ),
        )
    ]
    for fact in recipe_page.made(recipes[0], None):
        if fact.term in ("Texts", "Versions"):
            facts.append(
                document.Fact(
                    fact.term, Markup("{} ({})").format(fact.description, recipes[0].name)
                )
            )
    facts.append(
        document.Fact(
            "Files",
            Markup(
                "<code>recipes/NAME/tables/strength.csv</code> (the numbers of this page), "
                "<code>recipes/NAME/samples.html</code> (all samples), "
                "<code>tables/comparison.csv</code> (those of LiRA)"
            ),
        )
    )
    return tuple(facts)
