"""Charts of the report page, written as SVG.

Each chart is drawn once for every width at which it is shown, so that its text is 13 px at all of them; the style sheet
shows the largest one that fits. Colors are classes of the style sheet, and hence follow dark mode and print. There are
no legends: lines are labelled where they are.

A chart that has too little to show is not drawn; its place has the reason (`NotDrawn`).

P: points of a curve, K: numbers of votes, from 0 to the number of trainings, L: labels.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from analysis.report import numbers
from analysis.report.numbers import PER_100, Estimate, Unit
from lm_mia.printing import plural

Role = Literal["headline", "lira", "family", "loss", "other"]
"""What a curve, row or line stands for, which decides its color and dashes: the headline attack; LiRA if that is not
the headline; the best attack of another family; the loss alone; one more."""
Anchor = Literal["start", "middle", "end"]

MIN_NONMEMBERS = 100
"""The fewest non-members with which a ROC curve is drawn."""
MIN_HITS = 80
"""The fewest hits with which the chart of hits that are found again is drawn: ten for each of eight groups."""
MAX_CURVES = 5
MAX_SINGLE_BARS = 40
"""The most trainings with which each number of votes has a bar of its own."""
LABEL_GAP = 16
"""The least distance in pixels of the baselines of two labels that overlap horizontally."""
CHARACTER_WIDTH, STRONG_WIDTH = 7.3, 8.0
"""Of text of 13 px and of bold text, in pixels; most fonts are narrower."""


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
    """A shorter label for narrow screens, which have room for 32 characters."""
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


# --- Shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plot:
    """The size of a chart and the margins of its plotting area, in pixels."""

    size: Literal["full", "wide", "half", "mid", "icons", "narrow"]
    """The class of the style sheet, which knows the width."""
    width: float
    height: float
    left: float = 0
    right: float = 0
    top: float = 0
    bottom: float = 0

    @property
    def is_narrow(self) -> bool:
        return self.size == "narrow"

    @property
    def x0(self) -> float:
        return self.left

    @property
    def x1(self) -> float:
        return self.width - self.right

    @property
    def y0(self) -> float:
        """The horizontal axis."""
        return self.height - self.bottom

    @property
    def y1(self) -> float:
        return self.top

    def x_scale(self, low: float, high: float, *, log: bool = False) -> Callable[[float], float]:
        return _scale(low, high, self.x0, self.x1, log)

    def y_scale(self, low: float, high: float, *, log: bool = False) -> Callable[[float], float]:
        return _scale(low, high, self.y0, self.y1, log)


def _scale(
    low: float, high: float, start: float, end: float, log: bool
) -> Callable[[float], float]:
    """Returns the function that maps low..high to start..end; values outside are drawn at the end of the axis."""
    transform = math.log10 if log else float

    def position(value: float) -> float:
        share = transform(min(max(value, low), high)) - transform(low)
        return start + share / (transform(high) - transform(low)) * (end - start)

    return position


def _chart(
    key: str, title: str, description: str, draw: Callable[[_Plot], list[str]], *plots: _Plot
) -> Markup:
    """Returns a chart at several sizes; those that are not shown are not read to anybody either."""
    charts = []
    for plot in plots:
        name = f"{key}-{plot.size}"
        charts.append(
            f'<svg class="chart {plot.size}" viewBox="0 0 {plot.width:g} {plot.height:g}" '
            f'width="{plot.width:g}" height="{plot.height:g}" role="img" '
            f'aria-labelledby="{escape(name)}-title {escape(name)}-desc">'
            f'<title id="{escape(name)}-title">{escape(title)}</title>'
            f'<desc id="{escape(name)}-desc">{escape(description)}</desc>'
            + "".join(draw(plot))
            + "</svg>"
        )
    return Markup("\n".join(charts))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'
    )


def _dot(x: float, y: float, radius: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>'


def _path(points: Iterable[tuple[float, float]], kind: str, *, closed: bool = False) -> str:
    kept = _simplified([*points])
    if len(kept) < 2:
        return ""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in kept)
    return f'<path d="M{steps}{"Z" if closed else ""}" class="{kind}"/>'


def _simplified(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leaves out points that lie within a third of a pixel of the path, by the algorithm of Douglas and Peucker."""
    if len(points) < 3:
        return [*points]
    point_Px2 = np.array(points)
    is_kept_P = np.zeros(len(points), bool)
    is_kept_P[[0, -1]] = True
    open_parts = [(0, len(points) - 1)]
    while open_parts:
        start, end = open_parts.pop()
        if end - start < 2:
            continue
        offset_Px2 = point_Px2[start + 1 : end] - point_Px2[start]
        x, y = point_Px2[end] - point_Px2[start]
        length = math.hypot(x, y)
        distance_P = np.hypot(*offset_Px2.T)
        if length > 0:
            distance_P = np.abs(x * offset_Px2[:, 1] - y * offset_Px2[:, 0]) / length
        farthest = int(distance_P.argmax())
        if distance_P[farthest] > 1 / 3:
            middle = start + 1 + farthest
            is_kept_P[middle] = True
            open_parts += [(start, middle), (middle, end)]
    return [point for point, is_kept in zip(points, is_kept_P, strict=True) if is_kept]


def _text(x: float, y: float, text: str, kind: str = "", anchor: Anchor = "start") -> str:
    return _text_element(x, y, str(escape(text)), kind, anchor)


def _text_element(x: float, y: float, content: str, kind: str, anchor: Anchor) -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{at}>{content}</text>'


# --- Labels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Label:
    """A label beside what it names: its baseline and its horizontal extent."""

    left: float
    right: float
    y: float

    def is_near(self, other: "_Label") -> bool:
        """Whether both overlap horizontally and are less than `LABEL_GAP` apart."""
        overlap = self.left < other.right and other.left < self.right
        return overlap and abs(self.y - other.y) < LABEL_GAP


def _text_width(text: str, character: float = CHARACTER_WIDTH) -> float:
    return character * len(text)


def _shortened(text: str, width: float, character: float = CHARACTER_WIDTH) -> str:
    """Returns a text that fits into a width, with an ellipsis if it is cut."""
    most = max(1, math.floor(width / character + 1e-9))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _centered(width: float, x: float, plot: _Plot) -> float:
    """Returns the middle of a centered text: x, or as near to it as the chart is wide."""
    return min(max(x, width / 2), plot.width - width / 2)


def spread(position_L: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves positions as little as necessary, in their order, so that they are a gap apart and between two ends.

    Args:
      position_L: ascending.
      gap: the least distance.
      low: the first possible position.
      high: the last possible one; the positions end beyond it if they do not fit.
    """
    # With i gaps taken from position i they need only be non-decreasing: isotonic regression, by pooling neighbors.
    pools: list[tuple[float, int]] = []
    for i, position in enumerate(position_L):
        mean, size = position - i * gap, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        pools.append((mean, size))
    most = max(low, high - gap * (len(position_L) - 1))
    flat = [min(max(mean, low), most) for mean, size in pools for _ in range(size)]
    return [position + i * gap for i, position in enumerate(flat)]


def _nice_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Returns at most ``most`` round numbers at equal distances that enclose low and high."""
    high = high if high > low else low + max(abs(low), 1)
    span = high - low
    step = 10.0 ** (math.floor(math.log10(span)) - 1)
    while True:
        for factor in (1, 2, 5):
            first = math.floor(low / (step * factor) + 1e-9)
            last = max(first + 1, math.ceil(high / (step * factor) - 1e-9))
            if last - first < most:
                # Rounded, so that no tick is 0.30000000000000004.
                return [round(k * step * factor, 12) for k in range(first, last + 1)]
        step *= 10


# --- Icons ------------------------------------------------------------------------------------------------------------


def icons(found: Estimate, missed: Estimate | None, *, fpr: float, key: str) -> Drawing:
    """Draws 100 members and 100 non-members as squares.

    Args:
      found: the share of members that are found.
      missed: the share of these that another training would miss; None without replicas.
      fpr: the share of false alarms.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    if not found.is_known:
        return NotDrawn("It is not known how many of 100 members are found.")
    digits = numbers.decimals(found)
    hits = round(100 * found.value, digits)
    again = None
    if missed is not None and missed.is_known:
        again = round(hits * (1 - missed.value), digits)
    hits_text, alarms_text = f"{hits:.{digits}f} found", f"{numbers.rate(fpr)} false alarm"
    alarms_text += "" if numbers.rate(fpr) == "1" else "s"
    description = f"Of 100 members: {hits_text}"
    if again is not None:
        description += f", {again:.{digits}f} of them again after retraining"
    description += f". Of 100 non-members: {alarms_text}."

    def draw(plot: _Plot) -> list[str]:
        square, gap = (13, 3) if plot.is_narrow else (15, 4)
        side = 10 * square + 9 * gap
        second = plot.width - side
        parts, outlines = [], []
        for i in range(100):
            x, y = i % 10 * (square + gap), i // 10 * (square + gap)
            for left, end, kind in ((x, hits, "member"), (second + x, 100 * fpr, "nonmember")):
                # A fraction of a member fills a part of a square.
                share = min(max(end - i, 0), 1)
                is_missed = kind == "member" and again is not None and i >= again
                if share > 0:
                    kind = "missed" if is_missed else kind
                    parts.append(_rectangle(left, y, share * square, square, kind))
                if share == 1 and is_missed:
                    slash = left + 3, y + square - 3, left + square - 3, y + 3
                    parts.append(_line(*slash, "missed-line"))
                if share < 1:
                    outlines.append(
                        f"M{left + 0.5:g} {y + 0.5:g}h{square - 1}v{square - 1}h{1 - square}z"
                    )
        parts.insert(0, f'<path d="{"".join(outlines)}" class="empty"/>')
        parts.append(_text(0, side + 22, "100 members", "strong"))
        if again is None:
            parts.append(_text(0, side + 40, hits_text, "muted"))
        else:
            first_line = f"{hits_text}, {again:.{digits}f} of them"
            parts.append(_text(0, side + 40, first_line, "muted"))
            parts.append(_text(0, side + 57, "again after retraining", "muted"))
        parts.append(_text(second, side + 22, "100 non-members", "strong"))
        parts.append(_text(second, side + 40, alarms_text, "muted"))
        return parts

    title = "100 members and 100 non-members"
    return _chart(
        key, title, description, draw, _Plot("icons", 420, 248), _Plot("narrow", 348, 219)
    )


# --- ROC curves -------------------------------------------------------------------------------------------------------


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
    if len(curves) > MAX_CURVES:
        raise ValueError(f"{len(curves)} curves: a chart has at most {MAX_CURVES}")
    if not curves:
        return NotDrawn("No attack has scores from which a ROC curve could be drawn.")
    if num_nonmembers < MIN_NONMEMBERS:
        have = plural(num_nonmembers, "non-member")
        return NotDrawn(f"A ROC curve needs {MIN_NONMEMBERS} non-members; {have} cannot show one.")
    rates = "; ".join(f"{curve.name} {numbers.plain(curve.found)}" for curve in curves)
    description = (
        "Members found per 100 against false alarms per 100 non-members, both on logarithmic axes. "
        f"At {numbers.false_alarms(fpr)}: {rates}; guessing {numbers.rate(fpr)}."
    )
    several = f"ROC curves of {len(curves)} attacks"
    title = several if len(curves) > 1 else f"ROC curve of {curves[0].name}"
    # Axes start at a power of ten; the subtrahend keeps 1,000 non-members at 0.1 per 100.
    first = math.ceil(math.log10(100 / num_nonmembers) - 1e-9)
    low = 10.0 ** min(first, math.floor(math.log10(100 * fpr) + 1e-9))
    left = 10 + max(_text_width(f"{low:g}"), _text_width("100"))

    def draw(plot: _Plot) -> list[str]:
        return _draw_roc(plot, curves, fpr, band, low)

    return _chart(
        key,
        title,
        description,
        draw,
        _Plot("wide", 700, 420, max(46, left), 16, 26, 48),
        _Plot("narrow", 368, 400, max(40, left), 10, 26, 48),
    )


def _draw_roc(
    plot: _Plot, curves: Sequence[Curve], fpr: float, band: Band | None, low: float
) -> list[str]:
    x, y = plot.x_scale(low, 100, log=True), plot.y_scale(low, 100, log=True)
    mark = x(100 * fpr)
    parts = _roc_axes(plot, low)
    if band is not None:
        is_shown_P = 100 * band.fpr_P >= low * 0.999
        across = [x(100 * float(rate)) for rate in band.fpr_P[is_shown_P]]
        highs = [y(100 * float(high)) for high in band.high_P[is_shown_P]]
        lows = [y(100 * float(end)) for end in band.low_P[is_shown_P]]
        around = [*zip(across, highs, strict=True), *zip(across[::-1], lows[::-1], strict=True)]
        parts.append(_path(around, "band", closed=True))
    parts.append(_line(mark, plot.y1, mark, plot.y0, "mark"))
    for curve in reversed(curves):  # the headline lies on top
        is_shown_P = (100 * curve.fpr_P >= low * 0.999) & (100 * curve.tpr_P >= low * 0.999)
        points = zip(curve.fpr_P[is_shown_P], curve.tpr_P[is_shown_P], strict=True)
        parts.append(_path([(x(100 * f), y(100 * t)) for f, t in points], f"curve {curve.role}"))
    labels = _roc_labels(plot, curves, fpr, band, low)
    heights = [y(100 * _found_at(curve, fpr)) for curve in curves]
    for curve, height, label in zip(curves, heights, labels, strict=True):
        parts.append(_leader(mark, height, label.place, curve.role))
    for curve, height in reversed([*zip(curves, heights, strict=True)]):
        parts.append(_dot(mark, height, 4, f"dot {curve.role}"))
    for curve, label in zip(curves, labels, strict=True):
        content = f'<tspan class="strong">{escape(label.name)}</tspan> {escape(label.number)}'
        # Anchored at the side of the mark, so that a font of another width leaves its distance as it is.
        anchor = "start" if label.place.left > mark else "end"
        start = label.place.left if anchor == "start" else label.place.right
        kind = f"label halo {curve.role}"
        parts.append(_text_element(start, label.place.y, content.rstrip(), kind, anchor))
    rate = numbers.false_alarms(fpr)
    width = _text_width(rate)
    start = mark + 7 if mark + 7 + width <= plot.x1 else max(plot.x0 + 3, mark - 7 - width)
    parts.append(_text(start, plot.y0 - 9, rate, "label muted halo"))
    taken = [*(label.place for label in labels), _Label(start, start + width, plot.y0 - 9)]
    guessing = _guessing_label(plot, x, y, low, taken)
    if guessing is not None:
        parts.append(_text(guessing.left, guessing.y, "Guessing", "label muted halo"))
    return parts


@dataclass(frozen=True)
class _CurveLabel:
    """The label of a ROC curve."""

    place: _Label
    name: str
    number: str
    """Members found per 100 at the marked rate; empty if that is not known."""


def _found_at(curve: Curve, fpr: float) -> float:
    if curve.found.is_known:
        return curve.found.value
    return float(np.interp(fpr, curve.fpr_P, curve.tpr_P))


def _roc_axes(plot: _Plot, low: float) -> list[str]:
    x, y = plot.x_scale(low, 100, log=True), plot.y_scale(low, 100, log=True)
    decades = [10.0**k for k in range(round(math.log10(low)), 3)]
    parts = []
    for decade in decades:
        parts.append(_line(plot.x0, y(decade), plot.x1, y(decade), "grid"))
        parts.append(_line(x(decade), plot.y1, x(decade), plot.y0, "grid"))
        parts.append(_text(plot.x0 - 8, y(decade) + 4.5, f"{decade:g}", "muted", "end"))
        anchor = "end" if decade == 100 else "middle"
        parts.append(_text(x(decade), plot.y0 + 21, f"{decade:g}", "muted", anchor))
    for decade in decades[:-1]:
        for k in range(2, 10):
            parts.append(_line(x(k * decade), plot.y0, x(k * decade), plot.y0 + 4, "tick"))
            parts.append(_line(plot.x0 - 4, y(k * decade), plot.x0, y(k * decade), "tick"))
    parts.append(_line(x(low), y(low), x(100), y(100), "guessing"))
    parts.append(_text(plot.x0, 14, "Members found per 100 (TPR, %)", "muted"))
    title = "False alarms per 100 non-members (FPR, %)"
    parts.append(_text(plot.x1, plot.height - 6, title, "muted", "end"))
    return parts


def _roc_labels(
    plot: _Plot, curves: Sequence[Curve], fpr: float, band: Band | None, low: float
) -> list[_CurveLabel]:
    """Returns the label of each curve.

    Labels of strong attacks stand in the free corner above the curves, at the left of the mark if there is room; those
    of weak ones below the diagonal, at its right, and so do all if the curves leave no room above them. All are in the
    order of the curves.
    """
    x, y = plot.x_scale(low, 100, log=True), plot.y_scale(low, 100, log=True)
    mark = x(100 * fpr)
    found = [_found_at(curve, fpr) for curve in curves]
    heights = [y(100 * value) for value in found]
    order = sorted(range(len(curves)), key=lambda i: heights[i])
    strong = [i for i in order if found[i] > 4 * fpr]
    if strong and plot.y1 + 15 + LABEL_GAP * (len(strong) - 1) > heights[strong[0]]:
        strong = []
    # Strong labels end above the band, which they would hide.
    top = min([heights[i] for i in strong], default=plot.y0)
    if band is not None:
        top = min([top, *(y(100 * float(high)) for high in band.high_P[band.fpr_P <= fpr])])
    gap = max(LABEL_GAP, min(19, (top - plot.y1 - 8) / max(len(strong), 1)))
    wanted = [top - 10 - gap * k for k in reversed(range(len(strong)))]
    wanted += [y(100 * fpr) + 34 + 19 * k for k in range(len(order) - len(strong))]
    # The last line of the plot has the label of the mark.
    baselines = spread(wanted, gap, plot.y1 + 15, plot.y0 - 9 - LABEL_GAP)
    labels: dict[int, _CurveLabel] = {}
    distance = 18 if plot.is_narrow else 30
    has_left_side = mark - distance - plot.x0 >= _text_width("LiRA 25")
    for i, baseline in zip(order, baselines, strict=True):
        is_left = i in strong and has_left_side
        beside = mark - distance - plot.x0 - 4 if is_left else plot.x1 - mark - distance
        number = ""
        if curves[i].found.is_known:
            number = numbers.label(curves[i].found)
            if _text_width(curves[i].name, STRONG_WIDTH) + _text_width(f" {number}") > beside:
                number = numbers.value(curves[i].found)
        room = plot.x1 - plot.x0 - 8 - _text_width(f" {number}")
        name = _shortened(curves[i].name, room, STRONG_WIDTH)
        width = _text_width(name, STRONG_WIDTH) + _text_width(f" {number}".rstrip())
        left = mark - distance - width if is_left else mark + distance
        left = min(max(left, plot.x0 + 4), plot.x1 - 4 - width)
        labels[i] = _CurveLabel(_Label(left, left + width, baseline), name, number)
    return [labels[i] for i in range(len(curves))]


def _leader(x: float, y: float, label: _Label, role: Role) -> str:
    """Draws a line from a point to its label, which ends beside the label, or under it if the label spans the point."""
    if label.right < x:
        return _line(x, y, label.right + 5, label.y - 4, f"leader {role}")
    if label.left > x:
        return _line(x, y, label.left - 5, label.y - 4, f"leader {role}")
    return _line(x, y, x, label.y + 4 if label.y < y else label.y - 13, f"leader {role}")


def _guessing_label(
    plot: _Plot,
    x: Callable[[float], float],
    y: Callable[[float], float],
    low: float,
    taken: Sequence[_Label],
) -> _Label | None:
    """Returns where the diagonal is labelled: under it, as far at the right as other labels leave room."""
    width = _text_width("Guessing")
    for rate in np.geomspace(40, 2 * low, 40):
        left = x(rate) + 2
        label = _Label(left, left + width, y(rate) + 22)
        is_inside = label.right <= plot.x1 and label.y <= plot.y0 - 4
        if is_inside and not any(label.is_near(other) for other in taken):
            return label
    return None


# --- Votes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bar:
    """A bar of a histogram."""

    start: int
    """The fewest votes."""
    end: int
    """One more than the most votes."""
    count: int
    height: float
    """The count, or more for a narrower bar, so that areas are proportional to counts."""


def votes(members_K: np.ndarray, nonmembers_K: np.ndarray, *, k_low: int, key: str) -> Drawing:
    """Draws how many members and non-members have each number of votes.

    Args:
      members_K: the number of members with 0, 1, ... votes; one longer than the number of trainings.
      nonmembers_K: the same of the non-members.
      k_low: the fewest votes that do not rule out a fair coin.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    trainings = len(members_K) - 1
    if trainings < 2:
        return NotDrawn("Votes need two trainings of the model on the same data; there is one.")
    if not members_K.sum():
        return NotDrawn("No member has scores in all trainings, so there are no votes to show.")
    bins = _vote_bins(trainings, k_low)
    members, nonmembers = _bars(members_K, bins), _bars(nonmembers_K, bins)
    # One bar of each kind may be cut: where most samples have no votes, the other bars would be too low to see.
    largest, second = sorted((bar.height for bar in members), reverse=True)[:2]
    second_nonmember = sorted(bar.height for bar in nonmembers)[-2]
    tallest = max(
        largest if largest <= 5 * second or not second else 1.25 * second, second_nonmember
    )
    pixels = 180 / tallest
    # Above the others, so that the number of a bar that is cut stands beside it.
    panel = max(60, pixels * second_nonmember + 22)
    top, middle, gap = 56, 236, 34
    bottom = middle + gap + panel

    def draw(plot: _Plot) -> list[str]:
        x = plot.x_scale(-0.5, trainings + 0.5)
        return [
            *_coin_region(plot, x, trainings, k_low, top - 12, bottom),
            *_vote_axes(plot, x, trainings, tallest, (top, middle, bottom)),
            *_draw_bars(x, nonmembers, (middle + gap, bottom), pixels, "nonmember"),
            *_draw_bars(x, members, (top, middle), pixels, "member"),
            *_bar_labels(plot, x, members, (top, middle), pixels, with_ends=bins[0][1] == 1),
            *_bar_labels(plot, x, nonmembers, (middle + gap, bottom), pixels, with_ends=False),
            _text(plot.x1, 14, "Members", "strong member", "end"),
            _text(plot.x1, middle + 18, "Non-members", "strong nonmember halo", "end"),
            _text(0, 14, _texts_per_bar(bins), "muted"),
        ]

    left = max(40, 10 + _text_width(numbers.count(int(tallest))))
    return _chart(
        key,
        f"How many of {trainings} trainings call each text a member",
        " ".join(
            _described_votes(name, counts_K, k_low)
            for name, counts_K in (("members", members_K), ("non-members", nonmembers_K))
        ),
        draw,
        _Plot("half", 536, bottom + 46, left, 8, top, 46),
        _Plot("narrow", 368, bottom + 46, left, 4, top, 46),
    )


def _described_votes(name: str, counts_K: np.ndarray, k_low: int) -> str:
    trainings = len(counts_K) - 1
    k_high = trainings - k_low
    coin = int(counts_K[k_low : k_high + 1].sum())
    never, always = int(counts_K[0]), int(counts_K[-1])
    return (
        f"Of {numbers.count(int(counts_K.sum()))} {name}, {numbers.count(never)} have no votes, "
        f"{numbers.count(always)} have all {trainings}, and {numbers.count(coin)} have {k_low} to {k_high}, "
        "which cannot be told from a coin."
    )


def _vote_bins(trainings: int, k_low: int) -> list[tuple[int, int]]:
    """Returns [start, end) of each bar: single numbers of votes, or bins of equal width.

    Bins have edges on the region of the coin. Where no width divides both the region and what lies outside of it, the
    outermost bins or the last one of the region are narrower.
    """
    if trainings <= MAX_SINGLE_BARS:
        return [(k, k + 1) for k in range(trainings + 1)]
    values, region = trainings + 1, trainings + 1 - 2 * k_low
    widths = range(math.ceil(values / MAX_SINGLE_BARS), math.ceil(values / 12) + 1)
    width = min(widths, key=lambda w: (region % w > 0, k_low % w > 0, w))
    outside = {0, *range(k_low, 0, -width)}
    edges = sorted(
        {*outside, *range(k_low, values - k_low, width), *(values - edge for edge in outside)}
    )
    return [*itertools.pairwise(edges)]


def _bars(counts_K: np.ndarray, bins: Sequence[tuple[int, int]]) -> list[_Bar]:
    widest = max(end - start for start, end in bins)
    bars = []
    for start, end in bins:
        number = int(counts_K[start:end].sum())
        bars.append(_Bar(start, end, number, number * widest / (end - start)))
    return bars


def _texts_per_bar(bins: Sequence[tuple[int, int]]) -> str:
    widest = max(end - start for start, end in bins)
    return "Texts" if widest == 1 else f"Texts, in bars of {widest} counts"


def _coin_region(
    plot: _Plot, x: Callable[[float], float], trainings: int, k_low: int, top: float, bottom: float
) -> list[str]:
    k_high = trainings - k_low
    left, right = x(k_low - 0.5), x(k_high + 0.5)
    text = f"{k_low} to {k_high}"
    text += ": like a coin" if plot.is_narrow else f" of {trainings}: cannot be told from a coin"
    middle = _centered(_text_width(text, STRONG_WIDTH), x(trainings / 2), plot)
    return [
        _rectangle(left, top, right - left, bottom - top, "coin"),
        _text(middle, top - 9, text, "label strong", "middle"),
    ]


def _vote_axes(
    plot: _Plot,
    x: Callable[[float], float],
    trainings: int,
    tallest: float,
    levels: tuple[float, float, float],
) -> list[str]:
    """Draws the axes; levels are the top of the members, their axis, and the axis of the non-members."""
    top, middle, bottom = levels
    parts = []
    for tick in _nice_ticks(0, tallest, 5)[1:]:
        if tick <= tallest:
            height = middle - tick / tallest * (middle - top)
            parts.append(_line(plot.x0, height, plot.x1, height, "grid"))
            parts.append(_text(plot.x0 - 6, height + 4.5, f"{tick:,g}", "muted", "end"))
    parts += [_line(plot.x0, level, plot.x1, level, "axis") for level in (middle, bottom)]
    steps = (1, 2, 4, 5, 10, 20, 50, 100, 200, 500)
    step = next((s for s in steps if x(s) - x(0) >= 30), trainings)
    for k in range(0, trainings + 1, step):
        across = _centered(_text_width(str(k)), x(k), plot)
        parts.append(_text(across, bottom + 18, str(k), "muted", "middle"))
    called = "that call it a member" if plot.is_narrow else "in which the text is called a member"
    title = f"Trainings, of {trainings}, {called}"
    return [*parts, _text(plot.x1, plot.height - 6, title, "muted", "end")]


def _draw_bars(
    x: Callable[[float], float],
    bars: Sequence[_Bar],
    panel: tuple[float, float],
    pixels: float,
    kind: str,
) -> list[str]:
    """Draws bars between the top and the bottom of a panel; one that is cut has a break."""
    top, bottom = panel
    parts = []
    for bar in bars:
        left, right = x(bar.start - 0.5), x(bar.end - 0.5)
        margin = min(0.13 * (right - left), 4)
        height = min(pixels * bar.height, bottom - top)
        if height > 0:
            width = right - left - 2 * margin
            parts.append(_rectangle(left + margin, bottom - height, width, height, kind))
        if pixels * bar.height > bottom - top + 0.5:
            parts.append(_path([(left, top + 16), (right, top + 9)], "break"))
    return parts


def _bar_labels(
    plot: _Plot,
    x: Callable[[float], float],
    bars: Sequence[_Bar],
    panel: tuple[float, float],
    pixels: float,
    *,
    with_ends: bool,
) -> list[str]:
    """Labels a bar that is cut with its number and, if there is room, the bars of no votes and of all votes."""
    top, bottom = panel
    cut = [bar for bar in bars if pixels * bar.height > bottom - top + 0.5]
    labels: list[tuple[_Label, str]] = []
    for bar in [*cut, *([bars[0], bars[-1]] if with_ends else [])]:
        text = numbers.count(bar.count)
        width = _text_width(text)
        height = max(top, bottom - pixels * bar.height)
        if bar is bars[-1] and bar not in cut:
            middle = _centered(width, x(bar.start), plot)
            label = _Label(middle - width / 2, middle + width / 2, height - 5)
        else:
            left = x(bar.end - 0.5) + 2
            left = left if left + width <= plot.width else x(bar.start - 0.5) - 2 - width
            label = _Label(left, left + width, min(height + 12, bottom - 5))
        if not any(label.is_near(other) for other, _ in labels):
            labels.append((label, text))
    return [_text(label.left, label.y, text, "label muted halo") for label, text in labels]


# --- Hits that are found again ----------------------------------------------------------------------------------------


def found_again(groups: Sequence[ScoreGroup], *, unit: str, key: str) -> Drawing:
    """Draws the share of hits that another training finds again, by score.

    Args:
      groups: of equally many hits, in ascending order of their scores.
      unit: of the scores: "log odds", "nats per token".
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    hits = sum(group.hits for group in groups)
    if hits < MIN_HITS:
        return NotDrawn(
            f"Whether high scores are found again more often cannot be shown from {plural(hits, 'hit')}: "
            f"it takes {MIN_HITS}."
        )
    first, last = groups[0], groups[-1]
    description = (
        f"{numbers.count(hits)} hits in {len(groups)} groups by score. Of those just above the threshold, another "
        f"training finds {numbers.plain(first.found_again)} % again; of those with the highest scores, "
        f"{numbers.plain(last.found_again)} %."
    )
    ticks = _nice_ticks(0, max(group.score for group in groups))

    def draw(plot: _Plot) -> list[str]:
        x, y = plot.x_scale(0, ticks[-1]), plot.y_scale(0, 100)
        parts = []
        for share in (0, 25, 50, 75, 100):
            parts.append(_line(plot.x0, y(share), plot.x1, y(share), "grid" if share else "axis"))
            parts.append(_text(plot.x0 - 6, y(share) + 4.5, f"{share}", "muted", "end"))
        for tick in ticks:
            anchor = "end" if tick == ticks[-1] else "middle"
            parts.append(_text(x(tick), plot.y0 + 18, f"{tick:g}", "muted", anchor))
        points = [(x(group.score), y(100 * group.found_again.value)) for group in groups]
        parts.append(_path(points, "thin"))
        for group, (across, height) in zip(groups, points, strict=True):
            if group.found_again.has_interval:
                low, high = y(100 * group.found_again.low), y(100 * group.found_again.high)
                parts.append(_line(across, low, across, high, "interval"))
            parts.append(_dot(across, height, 4.5, "dot headline"))
        parts.append(_text(0, 14, "Found again by another training, % of hits", "muted"))
        title = (
            "Score above the threshold"
            if plot.is_narrow
            else "Score of the hit above its threshold"
        )
        parts.append(_text(plot.x1, plot.height - 6, f"{title} ({unit})", "muted", "end"))
        return parts

    return _chart(
        key,
        "Share of hits that another training finds again, by score",
        description,
        draw,
        _Plot("half", 536, 358, 40, 14, 40, 44),
        _Plot("narrow", 368, 320, 36, 8, 40, 44),
    )


# --- What would change the answer -------------------------------------------------------------------------------------


def dot_rows(headline: DotRow, groups: Sequence[DotGroup], *, key: str) -> Drawing:
    """Draws members found under different conditions, with the value of the headline as a line through all rows.

    Args:
      headline: the first row.
      groups: the other rows.
      key: the beginning of the chart's ids, which no other chart of the page has.
    """
    if not headline.found.is_known:
        return NotDrawn(
            "It is not known how many members are found, so nothing can be compared with it."
        )
    if not any(group.rows for group in groups):
        return NotDrawn("There is nothing to compare the members found with.")
    rows = [headline, *(row for group in groups for row in group.rows)]
    ends = [end for row in rows for end in (row.found.value, row.found.high, *row.models)]
    ticks = _nice_ticks(0, 100 * max(end for end in ends if not math.isnan(end)))
    described = [f"{headline.label} {_row_text(headline, numbers.plain)}."]
    for group in groups:
        texts = [f"{row.label} {_row_text(row, numbers.plain)}" for row in group.rows]
        described.append(f"{group.title}: {'; '.join(texts)}.")

    def draw(plot: _Plot) -> list[str]:
        return _draw_dot_rows(plot, headline, groups, ticks)

    def height(size: float, top: float) -> float:
        return top + size * len(rows) + 34 * len(groups) + 10

    return _chart(
        key,
        "What would change the answer",
        f"Members found per 100. {' '.join(described)}",
        draw,
        _Plot("full", 1100, height(31, 34), 400, 150, 34),
        _Plot("mid", 680, height(31, 34), 256, 130, 34),
        _Plot("narrow", 368, height(56, 54), 8, 8, 54),
    )


def _row_text(row: DotRow, written: Callable[[Estimate], str]) -> str:
    if row.models:
        ends = [numbers.value(Estimate(end)) for end in (min(row.models), max(row.models))]
        separator = " to " if written is numbers.plain else "–"
        return separator.join(ends)
    return written(row.found) if row.found.is_known else "unknown"


def _draw_dot_rows(
    plot: _Plot, headline: DotRow, groups: Sequence[DotGroup], ticks: Sequence[float]
) -> list[str]:
    x = plot.x_scale(0, ticks[-1])
    parts = []
    for tick in ticks:
        middle = _centered(_text_width(f"{tick:g}"), x(tick), plot)
        parts.append(_line(x(tick), plot.top - 6, x(tick), plot.height - 4, "grid"))
        parts.append(_text(middle, plot.top - 12, f"{tick:g}", "muted", "middle"))
    if plot.is_narrow:
        parts.append(_text(0, 14, "Members found per 100", "muted"))
    else:
        parts.append(_text(plot.x0 - 26, plot.top - 12, "Members found per 100", "muted", "end"))
    across = x(100 * headline.found.value)
    if not plot.is_narrow:
        parts.append(_line(across, plot.top - 6, across, plot.height - 4, "mark"))
    row_height, y = 56 if plot.is_narrow else 31, plot.top
    parts += _draw_dot_row(plot, x, y, headline, across, is_headline=True)
    y += row_height
    for group in groups:
        parts.append(
            _text(0, y + 22, _shortened(group.title, plot.width, STRONG_WIDTH), "strong halo")
        )
        y += 34
        for row in group.rows:
            parts += _draw_dot_row(plot, x, y, row, across, is_headline=False)
            y += row_height
    return parts


def _draw_dot_row(
    plot: _Plot,
    x: Callable[[float], float],
    top: float,
    row: DotRow,
    across: float,
    *,
    is_headline: bool,
) -> list[str]:
    """Draws a row: its label and number beside its dot or, on narrow screens, above it.

    On these, the row has its own part of the dotted line at `across`, which would cross the numbers of other rows.
    """
    height = top + (40 if plot.is_narrow else 15.5)
    baseline = top + 18 if plot.is_narrow else height + 4.5
    number = _row_text(row, numbers.label)
    beside = plot.width if plot.is_narrow else plot.right - 8
    if _text_width(number) > beside:
        number = numbers.value(row.found)
    indent = 0 if is_headline or plot.is_narrow else 14
    room = plot.width - _text_width(number) - 8 if plot.is_narrow else plot.x0 - 8
    text = row.label if plot.size == "full" else row.short or row.label
    kind = "label strong halo" if is_headline else "label halo"
    character = STRONG_WIDTH if is_headline else CHARACTER_WIDTH
    parts = [
        _text(indent, baseline, _shortened(text, room - indent, character), kind),
        _text(plot.width, baseline, number, "label muted halo", "end"),
    ]
    if plot.is_narrow:
        parts.append(_line(across, top + 26, across, top + 54, "mark"))
    if row.found.has_interval:
        ends = x(100 * row.found.low), x(100 * row.found.high)
        parts.append(_line(ends[0], height, ends[1], height, f"interval {row.role}"))
    for model in row.models:
        parts.append(_line(x(100 * model), height - 6, x(100 * model), height + 6, "model"))
    if row.found.is_known:
        parts.append(_dot(x(100 * row.found.value), height, 5.5, f"dot {row.role}"))
    return parts


# --- Lines ------------------------------------------------------------------------------------------------------------


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
    known = [Line(line.name, line.role, _known(line.points)) for line in series]
    known = [line for line in known if line.points]
    if len({point.x for line in known for point in line.points}) < 2:
        return NotDrawn("There are fewer than two points, so no line can be drawn.")
    ends = [
        unit.scale * end
        for line in known
        for point in line.points
        for end in (point.y.value, point.y.low, point.y.high)
        if math.isfinite(end)
    ]
    lowest = 0 if unit is PER_100 else 0.5
    levels = _nice_ticks(min(lowest, *ends), max(ends))
    names = {tick.x: tick.label for tick in ticks}
    described = "; ".join(
        f"{line.name}: "
        + ", ".join(
            f"{names.get(point.x, f'{point.x:g}')} {'predicted ' if point.is_predicted else ''}"
            f"{numbers.plain(point.y, unit)}"
            for point in line.points
        )
        for line in known
    )

    def draw(plot: _Plot) -> list[str]:
        x = plot.x_scale(ticks[0].x, ticks[-1].x, log=scale == "log")
        y = plot.y_scale(levels[0], levels[-1])
        return [
            *_predicted_region(plot, x, known, scale),
            *_line_axes(plot, x, y, ticks, levels),
            *(part for line in known for part in _draw_line(x, y, line, unit)),
            *_line_labels(plot, y, known, unit),
            _text(0, 14, _shortened(y_title, plot.width), "muted"),
            _text(plot.x1 + 8, plot.height - 6, _shortened(x_title, plot.x1 + 8), "muted", "end"),
        ]

    # Names of lines stand at the right of the plot, and take at most a third of the narrow chart.
    right = 18 + _text_width(max((line.name for line in known), key=len), STRONG_WIDTH)
    left = 10 + max(_text_width(f"{level:g}") for level in levels)
    size, width = ("half", 536) if is_half else ("wide", 700)
    return _chart(
        key,
        title,
        f"{y_title}, by {x_title}. {described}.",
        draw,
        _Plot(size, width, 300, max(46, left), min(right, 180), 30, 48),
        _Plot("narrow", 368, 300, max(36, left), min(right, 140), 30, 48),
    )


def _known(points: Sequence[LinePoint]) -> tuple[LinePoint, ...]:
    return tuple(point for point in points if point.y.is_known)


def _predicted_region(
    plot: _Plot,
    x: Callable[[float], float],
    series: Sequence[Line],
    scale: Literal["log", "linear"],
) -> list[str]:
    """Shades what is predicted, from the middle between the last observed and the first predicted point."""
    points = [point for line in series for point in line.points]
    predicted = [point.x for point in points if point.is_predicted]
    observed = [point.x for point in points if not point.is_predicted]
    if not predicted:
        return []
    start = plot.x0
    if observed:
        start = (x(max(observed)) + x(min(predicted))) / 2
    parts = [_rectangle(start, plot.y1, plot.x1 + 8 - start, plot.y0 - plot.y1, "coin")]
    width = _text_width("predicted")
    left = min(start + 6, plot.x1 + 8 - width)
    return [*parts, _text(left, plot.y1 + 14, "predicted", "label muted")]


def _line_axes(
    plot: _Plot,
    x: Callable[[float], float],
    y: Callable[[float], float],
    ticks: Sequence[Tick],
    levels: Sequence[float],
) -> list[str]:
    parts = []
    for level in levels:
        kind = "axis" if level == levels[0] else "grid"
        parts.append(_line(plot.x0, y(level), plot.x1 + 8, y(level), kind))
        parts.append(_text(plot.x0 - 6, y(level) + 4.5, f"{level:g}", "muted", "end"))
    for label, text in _tick_labels(plot, x, ticks):
        parts.append(_text((label.left + label.right) / 2, label.y, text, "muted", "middle"))
    return parts


def _tick_labels(
    plot: _Plot, x: Callable[[float], float], ticks: Sequence[Tick]
) -> list[tuple[_Label, str]]:
    """Returns the labels of every tick, every second one, ... so that they are 8 px apart."""
    for step in range(1, len(ticks) + 1):
        labels = []
        for tick in ticks[::step]:
            text = _shortened(tick.label, (plot.x1 - plot.x0) / 2)
            width = _text_width(text) + 8
            middle = _centered(width, x(tick.x), plot)
            label = _Label(middle - width / 2, middle + width / 2, plot.y0 + 21)
            labels.append((label, text))
        if not any(a.is_near(b) for (a, _), (b, _) in itertools.pairwise(labels)):
            return labels
    return []


def _draw_line(
    x: Callable[[float], float], y: Callable[[float], float], line: Line, unit: Unit
) -> list[str]:
    points = [(x(point.x), y(unit.scale * point.y.value)) for point in line.points]
    parts = [_path(points, f"curve {line.role}")]
    for point, (across, height) in zip(line.points, points, strict=True):
        if point.y.has_interval:
            ends = y(unit.scale * point.y.low), y(unit.scale * point.y.high)
            parts.append(_line(across, ends[0], across, ends[1], f"interval {line.role}"))
        kind = f"dot {line.role}" + (" open" if point.is_predicted else "")
        parts.append(_dot(across, height, 4, kind))
    return parts


def _line_labels(
    plot: _Plot, y: Callable[[float], float], series: Sequence[Line], unit: Unit
) -> list[str]:
    """Labels lines at their right ends, in the order of these ends."""
    last = sorted(series, key=lambda line: -line.points[-1].y.value)
    ends = [y(unit.scale * line.points[-1].y.value) for line in last]
    parts = []
    for line, end, height in zip(
        last, ends, spread(ends, LABEL_GAP + 1, plot.y1, plot.y0), strict=True
    ):
        parts.append(_line(plot.x1 + 3, end, plot.x1 + 11, height, f"leader {line.role}"))
        text = _shortened(line.name, plot.right - 14, STRONG_WIDTH)
        kind = f"label strong {line.role}"
        parts.append(_text(plot.x1 + 14, height + 4.5, text, kind))
    return parts
