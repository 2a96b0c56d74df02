"""One figure or table of a paper, or of a user's file: draws it, writes its files, and holds its claims."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis import markup, papers, plotting
from analysis.claims.compare import Claim, Estimate, claim_untested, holm
from analysis.experiment import Drawing, Experiment, unsupported_note, write
from analysis.experiments import MODULES, file_name, find
from analysis.formatting import size_title
from analysis.io import REPLICA_SIZES, RecipeResults, SweepResults
from lm_mia.attacks import user_code
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.unchanged import Inputs, Made, digest
from lm_mia.errors import UserError
from lm_mia.printing import plural

_WITHOUT_COMPARISON = re.compile(r" \(\w+ in the paper\)$")


@dataclasses.dataclass(frozen=True)
class FigureSection:
    """The section of a figure on the page."""

    name: str
    """The name of its files."""
    title: str
    about: str
    """What the paper shows, or what a figure of no paper is about."""
    result: Drawing | None
    """None if the figure could not be drawn."""
    missing: str
    """Why the figure is not drawn; empty if it is."""
    claims: Sequence[Claim]
    image: str
    """The image as a data URI; empty for tables."""
    models: str = ""
    """Of which models and samples its numbers are; empty if it is not drawn."""
    compared: bool = True
    """Whether the figure is compared with that of its paper."""
    table_html: str = ""
    """The table as HTML, with escaped texts; empty for figures."""
    read: tuple[str, ...] = ()
    """The names of the recipes that it was drawn with."""

    @property
    def short_title(self) -> str:
        """The short title, such as Figure 1, Table 7 or Scaling."""
        return self.title.partition(":")[0]

    def without_comparison(self) -> "FigureSection":
        """Returns the section without the number of the figure in its paper, and without what the paper found."""
        title = _WITHOUT_COMPARISON.sub("", self.title.partition(": ")[2] or self.title)
        return dataclasses.replace(self, title=title, about="", claims=(), compared=False)

    @property
    def notes(self) -> list[str]:
        """The sentences below the figure."""
        if self.result is None:
            return []
        hidden = set() if self.compared else {unsupported_note(self.result.claims)}
        more = [*self.result.paper_notes, self.result.not_comparable_note] if self.compared else []
        return [note for note in (*self.result.notes, *more) if note and note not in hidden]

    @property
    def departures(self) -> Sequence[str]:
        """Where the figure departs from the protocol of its paper, beyond what concerns all figures."""
        return self._remarks("departures")

    @property
    def errata(self) -> Sequence[str]:
        """Where the paper contradicts itself about this figure, or has a misprint."""
        return self._remarks("errata")

    def _remarks(self, kind: Literal["departures", "errata"]) -> Sequence[str]:
        paper = papers.name_of(self.name)
        if not paper or not self.compared:
            return ()
        return [r.text for r in getattr(papers.read(paper), kind) if r.concerns(self.name)]

    @property
    def published_rows(self) -> list[dict[str, Any]]:
        """The numbers of the paper, each with that of this run; empty if they are not compared."""
        if not self.compared or not papers.name_of(self.name):
            return []
        ours = self.result.ours if self.result else {}
        ranges = self.result.our_ranges if self.result else {}
        texts = {key: _format_number(*number) for key, number in ours.items()}
        texts |= {key: _format_range(*limits) for key, limits in ranges.items()}
        for key in self.result.not_comparable if self.result else ():
            texts[key] += " (not comparable)"
        return [
            {
                "description": number.description,
                "location": number.location,
                "paper": _format_number(number.value, number.std),
                "ours": texts.get(key, "–"),
            }
            for key, number in papers.item(self.name).numbers.items()
        ]


def make_section(name: str, recipes: SweepResults, workdir: Path) -> FigureSection:
    """Draws a figure or table and writes its files; if that fails, for example because models are missing, says why.

    Args:
      name: the name of a figure of a paper, or the path of a Python file that defines EXPERIMENT.
      recipes: the recipes of the workdir.
      workdir: where figures/ and tables/ are written.
    """
    file, title, about, statements = file_name(name), name, "", ()
    try:
        figure = find(name)
        title, about = titled(name, figure)
        title, statements = _with_own_size(title, recipes), figure.statements
        recipes = recipes.unread()
        with plotting.style():
            result = figure.draw(recipes)
            png = write(workdir, file, result)
    except Exception as error:
        is_expected = isinstance(error, UserError)
        if name in MODULES and not is_expected:
            raise  # our own bug; an error in a user's file is shown on the page
        missing = (
            markup.reason(error)
            if is_expected
            else user_code.describe(error, os.path.abspath(name))
        )
        claims = [claim_untested(statement, missing) for statement in statements]
        return FigureSection(file, title, about, None, missing, claims, "")
    image = markup.data_uri(png) if png else ""
    models = describe_models(recipes.read)
    html = "" if result.table is None else result.table.to_html(border=0, escape=True)
    return FigureSection(
        file,
        title,
        about,
        result,
        "",
        result.claims,
        image,
        models,
        read=tuple(recipe.name for recipe in recipes.read),
        table_html=html,
    )


_TEXTS = ("title", "about", "models", "table_html")
_OF_DRAWING = (
    "ours",
    "our_ranges",
    "not_comparable_note",
    "notes",
    "paper_notes",
)


@dataclasses.dataclass(frozen=True)
class UnchangedSections:
    """The sections of figures whose recipes and code have not changed since they were drawn, which are not drawn again.

    The key of a figure names the recipes that it read when it was drawn, and the names of all recipes, by which it
    found these.
    """

    made: Made
    inputs: Inputs
    recipes: SweepResults

    def _key(self, name: str, read: Sequence[str]) -> str:
        recipes = [
            [recipe.name, recipe.names, recipe.config.model.size]
            for recipe in (*self.recipes.recipes, *self.recipes.without_population)
        ]
        compares = self.recipes.compares_with_papers
        states = {recipe: self.inputs.recipes.get(recipe) for recipe in sorted(read)}
        return digest(
            [self.inputs.code, name, self.inputs.figures[name], recipes, compares, states]
        )

    def find(self, name: str, workdir: Path) -> FigureSection | None:
        """Returns the section of a figure; None if it must be drawn."""
        stored = self.made.value(_entry(name))
        if not isinstance(stored, dict) or not self.made.find(
            _entry(name), self._key(name, stored["read"])
        ):
            return None
        file = file_name(name)
        claims = [_read_claim(claim) for claim in stored["claims"]]
        drawing = Drawing(
            pd.DataFrame(),
            claims=tuple(claims),
            not_comparable=frozenset(stored["not_comparable"]),
            **stored["drawing"],
        )
        png = workdir / "figures" / f"{file}.png"
        image = markup.data_uri(png) if stored["has_image"] else ""
        return FigureSection(
            file, result=drawing, missing="", claims=claims, image=image, **stored["texts"]
        )

    def store(self, name: str, section: FigureSection, workdir: Path) -> None:
        """Stores a section that was drawn."""
        result = section.result
        assert result is not None
        value = {
            "read": [*section.read],
            "texts": {field: getattr(section, field) for field in _TEXTS},
            "claims": [dataclasses.asdict(claim) for claim in result.claims],
            "drawing": {field: getattr(result, field) for field in _OF_DRAWING},
            "not_comparable": sorted(result.not_comparable),
            "has_image": bool(section.image),
        }
        files = files_of(workdir, section)
        self.made.store(_entry(name), self._key(name, section.read), files, value)


def files_of(workdir: Path, section: FigureSection) -> list[Path]:
    """Returns the files of a figure or table that was drawn."""
    suffixes = [*plotting.FORMATS] if section.image else []
    files = [workdir / "figures" / f"{section.name}.{suffix}" for suffix in suffixes]
    of_table = ["csv", *(("tex", "md") if section.table_html else ())]
    return files + [workdir / "tables" / f"{section.name}.{suffix}" for suffix in of_table]


def _entry(name: str) -> str:
    return f"figure {name}"


def _read_claim(stored: dict[str, Any]) -> Claim:
    estimate = stored["estimate"]
    if estimate is not None:
        estimate = Estimate(**{**estimate, "not_covered": tuple(estimate["not_covered"])})
    return Claim(**{**stored, "estimate": estimate})


def describe_models(recipes: Sequence[RecipeResults]) -> str:
    """Returns a sentence on the parameters and samples of the models that numbers are of."""
    trained = [recipe for recipe in recipes if not recipe.is_imported]
    parts = []
    if trained:
        parameters = _range([recipe.parameters for recipe in trained], "parameter")
        samples = _range([recipe.samples for recipe in trained], "sample")
        sources = " and ".join(dict.fromkeys(recipe.config.corpus.source for recipe in trained))
        parts.append(
            f"models of {parameters} without embeddings, trained on {samples} of {sources}"
        )
    if len(trained) < len(recipes):
        names = ", ".join(recipe.name for recipe in recipes if recipe.is_imported)
        parts.append(f"models whose losses were imported ({names})")
    text = " and of ".join(parts) or "a simulation without language models"
    return f"Numbers are of {text}."


def _range(counts: Sequence[int], word: str) -> str:
    low, high = min(counts), max(counts)
    return plural(high, word) if low == high else f"{low:,} to {plural(high, word)}"


def titled(name: str, figure: Experiment) -> tuple[str, str]:
    """Returns the title of a figure, and what its paper shows, or what it is about."""
    if name in MODULES and papers.name_of(name):
        item = papers.item(name)
        return item.title, item.shows
    return figure.title, figure.about


def _with_own_size(title: str, recipes: SweepResults) -> str:
    """Returns the title of a figure with the size of these models instead of that of the paper's models.

    Example: "Table 1: Error rates, 98k parameters (140M in the paper)" for "Table 1: Error rates, 140M".
    """
    for size in REPLICA_SIZES:
        recipe = recipes.get(f"flip-{size}")
        if recipe and title.endswith(f", {size}"):
            own_title = title.removesuffix(size) + size_title(recipe)
            is_same = recipe.config.model.size == size
            return own_title if is_same else f"{own_title} ({size} in the paper)"
    return title


CLAIMS_TABLE = Table(
    "claims.csv",
    (
        "Written with the pages of figures of papers or of your own. Each row is a claim of one of these "
        "figures: a statement of its paper, or of your file."
    ),
    {
        "figure": Column(
            "none",
            "name of the figure, such as `strongmia_fig01_references`",
        ),
        "statement": Column("none", "the claim"),
        "verdict": Column(
            "none",
            (
                "`supported`: the whole 95% interval lies where the claim says; `supported for these models only`: so "
                "it does, but it does not cover everything that a repetition of the experiment would draw anew; "
                "`contradicted`: the whole interval lies on the other side, and covers everything; `undecided`: none "
                "of these; `not tested`: there is no interval"
            ),
        ),
        "p_value": Column(
            "fraction",
            (
                "the smallest alpha at which the interval with confidence 1 - alpha decides the claim, in either "
                "direction; below 0.05 it is decided, unless the interval contradicts it and does not cover everything"
            ),
        ),
        "p_holm": Column(
            "fraction",
            "`p_value` adjusted for the number of tested claims in the table by Holm's method",
        ),
        "value": Column(
            "none",
            (
                "the number that decides the verdict, in its own unit, mostly a difference of AUCs or TPRs "
                "(fractions); this and the next four columns are empty if there are several numbers, or none"
            ),
        ),
        "low, high": Column(
            "none",
            "ends of the 95% interval of `value`, a Student's t interval",
        ),
        "over": Column(
            "none",
            "what the interval is over, such as `8 targets, 32 references and the samples`",
        ),
        "not_covered": Column(
            "none",
            "what the interval holds fixed although a repetition would draw it anew; empty if it covers everything",
        ),
        "finding": Column(
            "none",
            "the numbers behind the verdict in words, or why there are none",
        ),
    },
    key=("figure", "statement"),
)


def claims_table(sections: Sequence[FigureSection]) -> pd.DataFrame:
    """Returns the contents of tables/claims.csv, with one row per claim."""
    rows = []
    for section in sections:
        for claim in section.claims:
            row = {
                "figure": section.name,
                "statement": claim.statement,
                "verdict": claim.verdict,
                "p_value": claim.p_value,
                "finding": claim.finding,
            }
            if estimate := claim.estimate:
                row |= {"value": estimate.value, "low": estimate.low, "high": estimate.high}
                row |= {"over": estimate.over, "not_covered": ", ".join(estimate.not_covered)}
            rows.append(row)
    for row, p_holm in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
    columns = ["figure", "statement", "verdict", "p_value", "p_holm", "value", "low", "high"]
    columns += ["over", "not_covered", "finding"]
    return pd.DataFrame(rows, columns=columns)


def _format_range(low: float, high: float) -> str:
    return "–" if low != low else f"{low:.3g} to {high:.3g}"


def _format_number(value: float, std: float) -> str:
    if value != value:
        return "–"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if std != std:
        return digits
    return f"{digits} ± " + (f"{std:,.0f}" if abs(value) >= 1000 else f"{std:.2g}")
