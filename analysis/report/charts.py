"""Charts of the report page, written as SVG.

Each chart is drawn once for every width at which it is shown, so that its text is 13 px at all of them; the style sheet
shows one. Colors are classes of the style sheet, and hence follow dark mode and print. There are no legends: lines are
labelled where they are.

A chart that has too little to show is not drawn; its place has the reason (`NotDrawn`).

P: points of a curve, K: numbers of votes, from 0 to the number of trainings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from analysis.report.numbers import PER_100, Estimate, Unit

Role = Literal["headline", "lira", "family", "loss", "other"]
"""What a curve, row or line stands for, which decides its color and dashes: the headline attack; LiRA if that is not
the headline; the best attack of another family; the loss alone; one more."""

MIN_NONMEMBERS = 100
"""The fewest non-members with which a ROC curve is drawn."""
MIN_HITS = 80
"""The fewest hits with which the chart of hits that are found again is drawn: ten for each of eight groups."""
MAX_CURVES = 5
MAX_SINGLE_BARS = 40
"""The most trainings with which each number of votes has a bar of its own."""


@dataclass(frozen=True)
class NotDrawn:
    """Stands for a chart that has too little to show."""

    reason: str
    """A sentence that stands in its place."""


Drawing = Markup | NotDrawn
"""A chart at all widths, or why there is none."""


@dataclass(frozen=True)
class Curve:
    """The ROC curve of an attack, in fractions."""

    name: str
    role: Role
    fpr_P: np.ndarray
    """Ascending."""
    tpr_P: np.ndarray
    found: Estimate
    """The TPR at the marked rate, with which the curve is labelled."""


@dataclass(frozen=True)
class Band:
    """The pointwise interval of the headline curve, in fractions; only where there are 10 false alarms."""

    fpr_P: np.ndarray
    low_P: np.ndarray
    high_P: np.ndarray


@dataclass(frozen=True)
class ScoreGroup:
    """Hits with similar scores."""

    score: float
    """Mean of the scores above their thresholds."""
    found_again: Estimate
    """The share of the hits that another training finds again."""
    hits: int


@dataclass(frozen=True)
class DotRow:
    """A row of the dot chart: members found under one condition."""

    label: str
    found: Estimate
    """NaN if it is unknown."""
    role: Role = "other"
    short: str = ""
    """A shorter label for narrow screens."""
    models: tuple[float, ...] = ()
    """Values of single models, shown as ticks; the number at the right is then their range."""


@dataclass(frozen=True)
class DotGroup:
    """Rows of the dot chart that vary the same thing: the attacker, the model, or the text."""

    title: str
    rows: tuple[DotRow, ...]


@dataclass(frozen=True)
class Tick:
    """A labelled position on the horizontal axis of a line chart."""

    x: float
    label: str


@dataclass(frozen=True)
class LinePoint:
    """A point of a line with its interval."""

    x: float
    y: Estimate
    is_predicted: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a line chart."""

    name: str
    role: Role
    points: tuple[LinePoint, ...]
    """In ascending order of x."""


def icons(found: Estimate, missed: Estimate | None, *, fpr: float, key: str) -> Drawing:
    """Draws 100 members and 100 non-members as squares.

    Args:
      found: the share of members that are found.
      missed: the share of these that another training would miss; None without replicas.
      fpr: the share of false alarms.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError


def roc(
    curves: Sequence[Curve],
    *,
    fpr: float,
    num_nonmembers: int,
    band: Band | None = None,
    key: str,
) -> Drawing:
    """Draws ROC curves on logarithmic axes, from the lowest decade that the non-members can show.

    Args:
      curves: at most five, the headline first.
      fpr: the marked rate, at which the curves are labelled.
      num_nonmembers: the number of non-members.
      band: the interval of the headline.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError


def votes(members_K: np.ndarray, nonmembers_K: np.ndarray, *, k_low: int, key: str) -> Drawing:
    """Draws how many members and non-members have each number of votes.

    Args:
      members_K: the number of members with 0, 1, ... votes; one longer than the number of trainings.
      nonmembers_K: the same of the non-members.
      k_low: the fewest votes that do not rule out a fair coin.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError


def found_again(groups: Sequence[ScoreGroup], *, unit: str, key: str) -> Drawing:
    """Draws the share of hits that another training finds again, by score.

    Args:
      groups: of equally many hits, in ascending order of their scores.
      unit: of the scores: "log odds", "nats per token".
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError


def dot_rows(headline: DotRow, groups: Sequence[DotGroup], *, key: str) -> Drawing:
    """Draws members found under different conditions, with the value of the headline as a line through all rows.

    Args:
      headline: the first row.
      groups: the other rows.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError


def lines(
    series: Sequence[Line],
    *,
    ticks: Sequence[Tick],
    x_title: str,
    y_title: str,
    title: str,
    unit: Unit = PER_100,
    scale: Literal["log", "linear"] = "log",
    is_half: bool = False,
    key: str,
) -> Drawing:
    """Draws lines with their intervals; predicted points are open and stand on a shaded region.

    Args:
      series: the lines; they are labelled at their right ends.
      ticks: of the horizontal axis, which ends at the first and the last one.
      x_title: the title of the horizontal axis.
      y_title: the title of the vertical axis, which names its unit.
      title: of the chart, for readers who cannot see it.
      unit: of the vertical axis; an axis per 100 starts at 0, one of fractions at 0.5 if no value is below it.
      scale: of the horizontal axis.
      is_half: whether two charts stand beside each other.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    raise NotImplementedError
