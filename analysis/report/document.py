"""The report page as data: sections, tables, samples and details, and the HTML file that shows them.

Whatever is a `str` is escaped; a `Markup` is inserted as it is. ``Markup("<b>{}</b>").format(name)`` makes one that is
safe for every name.
"""

import dataclasses
import datetime
import functools
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
from markupsafe import Markup

from analysis.report import numbers
from analysis.report.charts import Drawing, NotDrawn

Text = str | Markup
"""A text, which is escaped, or HTML, which is not."""
SampleColumnKind = Literal["text", "score", "above", "votes", "label", "member"]


@dataclass(frozen=True)
class Fact:
    """A line of a list of terms and their descriptions."""

    term: Text
    description: Text


@dataclass(frozen=True)
class Note:
    """A paragraph in small letters."""

    text: Text


@dataclass(frozen=True)
class Figure:
    """A chart with its caption; both are replaced by one sentence where there is no chart."""

    chart: Drawing
    caption: Text = ""
    title: Text = ""


@dataclass(frozen=True)
class FigureWithNotes:
    """A chart with notes in the margin."""

    figure: Figure
    notes: tuple[Text, ...]


@dataclass(frozen=True)
class FigurePair:
    """Two charts beside each other."""

    left: Figure
    right: Figure


@dataclass(frozen=True)
class Column:
    """A column of a table; the first one names the rows."""

    title: Text
    card: str = ""
    """Its name on narrow screens, where each row is a card: "found at 1 false alarm"."""
    is_text: bool = False
    """Whether its cells are texts, which are aligned at the left."""


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    cells: tuple[Text, ...]
    is_headline: bool = False


@dataclass(frozen=True)
class Table:
    """A table of numbers."""

    caption: Text
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sample:
    """A sample of the table of samples, with what the reader shows of it."""

    id: str
    is_member: bool
    score: float
    above: float
    """The share of non-members with lower scores."""
    filters: tuple[str, ...]
    """Keys of the filters that show the sample."""
    text: str = ""
    """As tokenized, with "…" if the document goes on; empty if no text is known."""
    source: str = ""
    votes: int | None = None
    """The number of trainings that call it a member."""
    label: str = ""
    """The content of a column of kind "label": the strictest rate at which it is called a member."""
    in_losses: tuple[float, ...] = ()
    """Under the references that were trained on it."""
    out_losses: tuple[float, ...] = ()
    """Under those that were not, or under the base model."""
    model_losses: tuple[float, ...] = ()
    """Under the trainings of the model under attack."""
    called: tuple[bool, ...] = ()
    """Whether each of these trainings calls it a member."""


@dataclass(frozen=True)
class SampleColumn:
    """A column of the table of samples, after the one of their ids."""

    kind: SampleColumnKind
    title: str
    subtitle: str = ""
    """A second line in small letters: a unit."""
    card: str = ""
    """Its name on narrow screens, where each row is a card."""
    decimals: int = 1
    """Of scores."""


@dataclass(frozen=True)
class SampleFilter:
    """A button that chooses which samples are shown."""

    key: str
    title: str
    total: int
    """The number of such samples, of which the page may have only the first."""


@dataclass(frozen=True)
class SamplesTable:
    """A table of samples that can be sorted and filtered; each of them opens in a reader."""

    caption: Text
    columns: tuple[SampleColumn, ...]
    filters: tuple[SampleFilter, ...]
    """The first one is chosen at the start."""
    samples: tuple[Sample, ...]
    """In descending order of their scores."""
    trainings: int = 1
    """The number of trainings of the model under attack."""
    k_low: int = 0
    """The fewest votes that do not rule out a fair coin."""
    rows: int = 8
    """The number of rows that are shown at the start, without JavaScript too."""
    noun: str = "Sample"
    """What a row is; the title of the first column."""
    out_title: str = "References without it"
    """What `Sample.out_losses` come from: "Base model"."""
    loss_note: str = ""
    """A sentence above the losses in the reader."""


Block = Text | Note | Figure | FigureWithNotes | FigurePair | Table | SamplesTable
"""A part of a section; a `Text` is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A section, which answers a question."""

    id: str
    nav: str
    """Its name in the line of links at the top."""
    title: Text
    blocks: tuple[Block, ...]
    continues: bool = False
    """Whether it continues the section before it, whose number it then has, with a letter."""


@dataclass(frozen=True)
class Detail:
    """A line that states a result; it opens to show more, unless it has no blocks."""

    title: Text
    finding: Text
    """The result, in at most 20 words."""
    blocks: tuple[Block, ...] = ()
    id: str = ""
    """Where links lead to; they open the line."""


@dataclass(frozen=True)
class Page:
    """The report page."""

    title: str
    """Of the window."""
    name: str
    """Of the recipe, file or sweep."""
    kind: Text
    """What kind of run this is a report on."""
    written: str
    """The date."""
    question: Text
    lead: tuple[Text, ...]
    """The answer in one or two paragraphs: intervals in ``small``, what cannot be said in ``<span class="muted">``."""
    icons: Drawing | None = None
    facts: tuple[Fact, ...] = ()
    banners: tuple[Text, ...] = ()
    sections: tuple[Section, ...] = ()
    details: tuple[Detail, ...] = ()
    made: tuple[Fact, ...] = ()
    """How this was made."""
    footer: Text = ""


def numbered(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Returns sections with their number before the title: 1, 2, and 2b for a section that continues the second one."""
    result: list[Section] = []
    number = 0
    for section in sections:
        number += not section.continues
        title = Markup("{}{}. {}").format(number, "b" * section.continues, section.title)
        result.append(dataclasses.replace(section, title=title))
    return tuple(result)


def today() -> str:
    """Returns the date for `Page.written`, such as "3 November 2026"."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now.day} {now:%B %Y}"


def render(page: Page) -> str:
    """Returns the HTML file: one that needs no other files, and reads well without its script."""
    html = (
        environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            links=_links(page),
            css=asset("page.css"),
            script=asset("reader.js") + asset("page.js"),
            table_number=itertools.count(1).__next__,
        )
    )
    return _printable(html.lstrip())


def asset(name: str) -> Markup:
    """Returns a style sheet or a script of the pages."""
    return Markup((Path(__file__).resolve().parent / name).read_text("utf-8"))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no HTML file may have: control characters, and surrogates, which cannot be written as UTF-8."""


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the environment of the templates in this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["kind"] = lambda block: type(block).__name__
    environment.globals["is_drawn"] = lambda drawing: not isinstance(drawing, NotDrawn)
    environment.globals["first_samples"] = _first_samples
    environment.globals["is_sortable"] = lambda column: column.kind in _SORTABLE
    environment.globals["cell"] = _cell
    environment.globals["shown_samples"] = _shown_samples
    environment.globals["data"] = _data
    environment.filters["plain"] = lambda text: Markup(text).striptags()
    return environment


def _links(page: Page) -> list[tuple[str, str]]:
    """Returns the id and the name of each section, for the line of links at the top."""
    links = [("answer", "Answer"), *((section.id, section.nav) for section in page.sections)]
    links += [("details", "Details")] if page.details else []
    return links + ([("made", "How it was made")] if page.made else [])


# --- Samples: the first rows are written here, and all rows by the script, which must write the same ------------------

_SORTABLE: tuple[SampleColumnKind, ...] = ("score", "above", "votes")
NO_TEXT = "(no text was imported)"
_CELL_WORDS, _CELL_CHARACTERS = 35, 300


@dataclass(frozen=True)
class _Cell:
    """A cell of the table of samples."""

    text: str
    small: str = ""
    """A second line in small letters."""
    share: float | None = None
    """The filled part of a bar before the text."""


def _first_samples(table: SamplesTable) -> tuple[Sample, ...]:
    """Returns the samples of the first filter that are shown at the start."""
    first = table.filters[0].key
    return tuple(sample for sample in table.samples if first in sample.filters)[: table.rows]


def _shown_samples(table: SamplesTable) -> str:
    """Says how many samples are shown at the start."""
    total = numbers.count(table.filters[0].total)
    return f"{len(_first_samples(table))} of {total} shown"


def _cell(table: SamplesTable, column: SampleColumn, sample: Sample) -> _Cell:
    """Returns a cell of the table of samples, as the script writes it."""
    match column.kind:
        case "text":
            return _Cell(_beginning(sample.text) or NO_TEXT)
        case "score":
            return _Cell(_decimal(_rounded(sample.score, column.decimals), column.decimals))
        case "above":
            above = _percentage_above(sample)
            return _Cell("all" if above == 100 else _decimal(above, 1))
        case "votes":
            if sample.votes is None:
                return _Cell(numbers.MISSING)
            share = sample.votes / table.trainings
            return _Cell(f"{sample.votes} of {table.trainings}", verdict(table, sample), share)
        case "label":
            return _Cell(sample.label or numbers.MISSING)
        case "member":
            return _Cell("member" if sample.is_member else "not a member")


def _beginning(text: str) -> str:
    """Returns the words of a text that its cell shows; the reader has all of it."""
    end = _end_of_beginning(text)
    return text if end == len(text) else f"{text[:end]} …"


def _end_of_beginning(text: str) -> int:
    """Returns the number of characters that a cell shows: 35 words, or less of very long ones."""
    words = [*itertools.islice(re.finditer(r"\S+", text), _CELL_WORDS + 1)]
    end = words[_CELL_WORDS - 1].end() if len(words) > _CELL_WORDS else len(text)
    return min(end, _CELL_CHARACTERS) if len(text) > _CELL_CHARACTERS else end


def verdict(table: SamplesTable, sample: Sample) -> str:
    """Says what the votes of a sample tell; nothing if they are too few to rule out a coin flip for any sample."""
    if sample.votes is None or not table.k_low:
        return ""
    if table.k_low <= sample.votes <= table.trainings - table.k_low:
        return "coin flip"
    if sample.votes > table.trainings / 2:
        return "steady hit" if sample.is_member else "steady false alarm"
    if sample.is_member:
        return "steady miss"
    return "rare false alarm" if sample.votes else "never called"


def _rounded(number: float, decimals: int) -> float | None:
    """Returns a number as the script gets it: None if it is missing, and never -0."""
    return round(float(number), decimals) + 0.0 if math.isfinite(number) else None


def _decimal(number: float | None, decimals: int) -> str:
    if number is None:
        return numbers.MISSING
    return f"{number:.{decimals}f}".replace("-", "−")


def _percentage_above(sample: Sample) -> float | None:
    """Returns the percentage of non-members with lower scores, rounded down: 100 is all of them."""
    if not math.isfinite(sample.above):
        return None
    # The addend keeps 99.9, which floats miss slightly.
    return math.floor(1000 * sample.above + 1e-6) / 10


def _utf16_length(text: str) -> int:
    """Returns the length that a script sees: characters beyond the first 65,536 count twice."""
    return len(text.encode("utf-16-le")) // 2


def _losses(loss: Sequence[float]) -> list[float | None]:
    return [_rounded(value, 2) for value in loss]


def _data(table: SamplesTable) -> Markup:
    """Returns the samples for the script, as JSON in which no text can end the script element."""
    verdicts = sorted({verdict(table, sample) for sample in table.samples})
    keys = [choice.key for choice in table.filters]
    decimals = next((column.decimals for column in table.columns if column.kind == "score"), 1)
    data: dict[str, Any] = {
        "noun": table.noun,
        "noText": NO_TEXT,
        "trainings": table.trainings,
        "rows": table.rows,
        "outTitle": table.out_title,
        "lossNote": table.loss_note,
        "verdicts": verdicts,
        "scoreDecimals": decimals,
        "columns": [{"kind": column.kind, "card": column.card} for column in table.columns],
        "filters": [{"key": choice.key, "total": choice.total} for choice in table.filters],
        # Lists instead of objects: the names of the fields would take a tenth of the page.
        "fields": [*_FIELDS],
        "samples": [
            [
                # JSON escapes control characters, which the script would show.
                *map(_printable, (sample.id, sample.source, sample.text)),
                _utf16_length(_printable(sample.text)[: _end_of_beginning(sample.text)]),
                int(sample.is_member),
                _rounded(sample.score, decimals),
                _percentage_above(sample),
                sample.votes,
                verdicts.index(verdict(table, sample)),
                _printable(sample.label),
                [keys.index(key) for key in sample.filters],
                _losses(sample.in_losses),
                _losses(sample.out_losses),
                _losses(sample.model_losses),
                "".join("1" if called else "0" for called in sample.called),
            ]
            for sample in table.samples
        ],
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # JSON allows both separators of lines in strings; a script that is copied into JavaScript did not always.
    for character, escaped in (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(character, escaped)
    return Markup(text)


_FIELDS = (
    "id",
    "source",
    "text",
    "shown",
    "isMember",
    "score",
    "above",
    "votes",
    "verdict",
    "label",
    "filters",
    "inLosses",
    "outLosses",
    "modelLosses",
    "called",
)
