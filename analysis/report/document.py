"""The report page as data: sections, tables, samples and details, and the HTML file that shows them.

Whatever is a `str` is escaped; a `Markup` is inserted as it is, and is safely made by ``Markup("<b>{}</b>").format(name)``.
"""

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from analysis.report.charts import Drawing

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
    """A numbered section, which answers a question."""

    id: str
    nav: str
    """Its name in the line of links at the top."""
    title: Text
    blocks: tuple[Block, ...]


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
    """The answer, in one or two paragraphs; ``<small>`` holds intervals, ``<span class="muted">`` what cannot be said."""
    icons: Drawing | None = None
    facts: tuple[Fact, ...] = ()
    banners: tuple[Text, ...] = ()
    sections: tuple[Section, ...] = ()
    details: tuple[Detail, ...] = ()
    made: tuple[Fact, ...] = ()
    """How this was made."""
    footer: Text = ""


def render(page: Page) -> str:
    """Returns the HTML file: one that needs no other files, and reads well without its script."""
    raise NotImplementedError
