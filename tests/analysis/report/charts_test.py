"""Charts of random inputs keep their labels apart and inside, whatever they show, and describe it in words."""

import itertools
import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import charts
from analysis.report.charts import (
    Band,
    Curve,
    DotGroup,
    DotRow,
    Drawing,
    Line,
    LinePoint,
    NotDrawn,
    ScoreGroup,
    Tick,
)
from analysis.report.numbers import FRACTION, Estimate

CHARACTER_WIDTH = 7.3
NAN = math.nan
ROLES: tuple[charts.Role, ...] = ("headline", "family", "lira", "loss", "other")
NAMES = [
    "Stacked LiRA",
    "RMIA",
    "LiRA",
    "Loss alone",
    "Calibrated loss",
    "An attack of the user & <co>",
]
SEEDS = range(60)


def images(drawing: Drawing) -> list[ElementTree.Element]:
    """Returns the images of a chart, one for each size."""
    assert not isinstance(drawing, NotDrawn), drawing
    return [*ElementTree.fromstring(f"<div>{drawing}</div>")]


def words(image: ElementTree.Element, name: str) -> str:
    return "".join(element.text or "" for element in image.iter(name))


def extent(text: ElementTree.Element) -> tuple[float, float]:
    """Returns the estimated left and right end of a text."""
    width = CHARACTER_WIDTH * len("".join(text.itertext()))
    x = float(text.attrib["x"])
    left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    return left, left + width


def check(drawing: Drawing) -> None:
    """Asserts what every chart must satisfy."""
    for image in images(drawing):
        assert image.get("role") == "img"
        title, description = image.find("title"), image.find("desc")
        assert title is not None
        assert description is not None
        assert image.attrib["aria-labelledby"].split() == [
            title.attrib["id"],
            description.attrib["id"],
        ]
        assert title.text
        assert re.search(r"\d", description.text or "")
        width, height = (float(value) for value in image.attrib["viewBox"].split()[2:])
        assert (width, height) == (float(image.attrib["width"]), float(image.attrib["height"]))
        assert not [e for e in image.iter() if {"style", "fill", "stroke"} & e.attrib.keys()]
        check_texts(image, width, height)
        for x, y in points(image):
            assert -0.1 <= x <= width + 0.1
            assert -0.1 <= y <= height + 0.1


def check_texts(image: ElementTree.Element, width: float, height: float) -> None:
    texts = [*image.iter("text")]
    for text in texts:
        left, right = extent(text)
        assert left >= -0.1, "".join(text.itertext())
        assert right <= width + 0.1, "".join(text.itertext())
        assert 10 <= float(text.attrib["y"]) <= height - 3
    labels = [text for text in texts if "label" in text.get("class", "").split()]
    for one, other in itertools.combinations(labels, 2):
        (left, right), (other_left, other_right) = extent(one), extent(other)
        if left < other_right and other_left < right:
            distance = abs(float(one.attrib["y"]) - float(other.attrib["y"]))
            assert distance > 15.8, ["".join(text.itertext()) for text in (one, other)]


def points(image: ElementTree.Element) -> Iterator[tuple[float, float]]:
    """Yields the ends of all lines, rectangles and curves, and the centers of all dots."""
    for element in image.iter():
        values = {
            key: float(v) for key, v in element.attrib.items() if re.fullmatch(r"[\d.e-]+", v)
        }
        if element.tag == "line":
            yield from ((values["x1"], values["y1"]), (values["x2"], values["y2"]))
        elif element.tag == "circle":
            yield values["cx"], values["cy"]
        elif element.tag == "rect":
            yield values["x"], values["y"]
            yield values["x"] + values["width"], values["y"] + values["height"]
        elif element.tag == "path" and "h" not in element.attrib["d"]:
            for point in re.findall(r"[ML](\S+) ([^LZ]+)", element.attrib["d"]):
                yield float(point[0]), float(point[1])


def estimate(generator: np.random.Generator, *, low: float = 0.0) -> Estimate:
    """Returns an estimate of a fraction, sometimes without an interval, rarely extreme."""
    value = float(
        generator.choice([low, 1.0, generator.uniform(low, 1), low + generator.uniform(0, 0.05)])
    )
    if generator.random() < 0.3:
        return Estimate(value)
    half = 10 ** generator.uniform(-4, -0.5)
    return Estimate(value, max(low, value - half), min(1.0, value + half))


# --- Icons


@pytest.mark.parametrize("seed", SEEDS)
def test_icons_of_random_numbers(seed: int):
    generator = np.random.default_rng(seed)
    missed = None if seed % 3 == 0 else estimate(generator)
    fpr = float(generator.choice([0.0001, 0.001, 0.01, 0.05, 0.1, 0.5]))
    check(charts.icons(estimate(generator), missed, fpr=fpr, key="icons"))


def test_icons_show_the_numbers_of_the_sentence():
    drawing = charts.icons(
        Estimate(0.253, 0.18, 0.32), Estimate(0.46, 0.41, 0.51), fpr=0.01, key="icons"
    )
    for image in images(drawing):
        kinds = [element.get("class") for element in image.iter("rect")]
        # 25 found, of which 54 % are 13.5, and hence 14 are found again.
        assert kinds.count("member") == 14
        assert kinds.count("missed") == 11
        assert kinds.count("nonmember") == 1
        assert re.findall(r"\d+", words(image, "desc")) == ["100", "25", "14", "100", "1"]


def test_icons_fill_a_part_of_a_square():
    drawing = charts.icons(Estimate(0.014, 0.01, 0.018), None, fpr=0.001, key="icons")
    for image in images(drawing):
        side = 13 if image.get("class") == "chart narrow" else 15
        width = {e.get("class"): float(e.attrib["width"]) for e in image.iter("rect")}
        assert width["member"] == pytest.approx(0.4 * side, abs=0.1)
        assert width["nonmember"] == pytest.approx(0.1 * side, abs=0.1)
        assert "1.4 found" in words(image, "desc")


# --- ROC curves


def random_curve(generator: np.random.Generator, name: str, role: charts.Role, fpr: float) -> Curve:
    fpr_P = np.unique(np.append(10 ** generator.uniform(-6, 0, 50), [0.0, 1.0]))
    tpr_P = fpr_P ** generator.uniform(0.02, 1.1)
    if generator.random() < 0.2:
        tpr_P = np.where(fpr_P < 0.02, 0, tpr_P)
    value = float(np.interp(fpr, fpr_P, tpr_P))
    half = 10 ** generator.uniform(-3, -1)
    found = Estimate(value, max(0, value - half), min(1, value + half))
    return Curve(name, role, fpr_P, tpr_P, found if generator.random() < 0.9 else Estimate(NAN))


@pytest.mark.parametrize("seed", range(200))
def test_roc_of_random_curves(seed: int):
    generator = np.random.default_rng(seed)
    nonmembers = int(10 ** generator.uniform(2, 6))
    fpr = float(generator.choice([0.001, 0.01, 0.05, 0.1, 0.5, 0.0001]))
    names = generator.permutation(NAMES)[: generator.integers(1, 6)]
    curves = [
        random_curve(generator, str(name), role, fpr)
        for name, role in zip(names, ROLES, strict=False)
    ]
    band = None
    if seed % 2:
        top = curves[0].tpr_P
        band = Band(curves[0].fpr_P, 0.7 * top, np.minimum(1.3 * top, 1))
    check(charts.roc(curves, fpr=fpr, num_nonmembers=nonmembers, band=band, key="roc"))


def straight(name: str, role: charts.Role, tpr: float) -> Curve:
    return Curve(name, role, np.array([0.0, 0.01, 1.0]), np.array([0.0, tpr, 1.0]), Estimate(tpr))


def test_labels_of_curves_are_in_the_order_of_the_curves():
    values = [0.25, 0.251, 0.252, 0.01, 0.011]
    curves = [straight(f"a{value}", role, value) for value, role in zip(values, ROLES, strict=True)]
    for image in images(charts.roc(curves, fpr=0.01, num_nonmembers=1024, key="roc")):
        height = {
            "".join(text.itertext()).split()[0]: float(text.attrib["y"])
            for text in image.iter("text")
            if text.find("tspan") is not None
        }
        assert sorted(height, key=lambda name: height[name]) == [
            f"a{value}" for value in sorted(values, reverse=True)
        ]


def test_labels_of_curves_without_room_above_stand_below_all_curves():
    curves = [straight(f"a{i}", role, 0.98 - i / 1000) for i, role in enumerate(ROLES)]
    for image in images(charts.roc(curves, fpr=0.1, num_nonmembers=150, key="roc")):
        [mark] = [line for line in image.iter("line") if line.attrib["class"] == "mark"]
        middle = (float(mark.attrib["y1"]) + float(mark.attrib["y2"])) / 2
        labels = [text for text in image.iter("text") if text.find("tspan") is not None]
        assert len(labels) == len(curves)
        assert all(float(text.attrib["y"]) - 13 > middle for text in labels)
        assert all(float(text.attrib["x"]) > float(mark.attrib["x1"]) for text in labels)


def test_roc_describes_its_numbers_and_axes():
    curves = [straight("LiRA", "headline", 0.25), straight("Loss", "loss", 0.03)]
    drawing = charts.roc(curves, fpr=0.01, num_nonmembers=1024, key="roc")
    for image in images(drawing):
        description = words(image, "desc")
        assert "LiRA 25; Loss 3; guessing 1" in description
        ticks = ["".join(text.itertext()) for text in image.iter("text")]
        assert sorted({t for t in ticks if re.fullmatch(r"[\d.]+", t)}) == ["0.1", "1", "10", "100"]


@pytest.mark.parametrize(
    ("nonmembers", "lowest"), [(100, "1"), (999, "1"), (1000, "0.1"), (10_000, "0.01")]
)
def test_roc_starts_at_the_lowest_decade_that_nonmembers_show(nonmembers: int, lowest: str):
    drawing = charts.roc(
        [straight("LiRA", "headline", 0.25)], fpr=0.1, num_nonmembers=nonmembers, key="roc"
    )
    for image in images(drawing):
        ticks = {t.text for t in image.iter("text") if re.fullmatch(r"[\d.]+", t.text or "")}
        assert min(ticks, key=lambda tick: float(tick or "nan")) == lowest


def test_roc_needs_nonmembers_and_curves():
    curve = straight("LiRA", "headline", 0.25)
    assert isinstance(charts.roc([curve], fpr=0.1, num_nonmembers=99, key="roc"), NotDrawn)
    assert isinstance(charts.roc([], fpr=0.1, num_nonmembers=1000, key="roc"), NotDrawn)
    with pytest.raises(ValueError, match="6 curves"):
        charts.roc([curve] * 6, fpr=0.1, num_nonmembers=1000, key="roc")


# --- Votes


@pytest.mark.parametrize("trainings", [2, 3, 5, 6, 12, 16, 31, 40, 41, 64, 100, 127, 128, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_votes_of_random_histograms(trainings: int, seed: int):
    generator = np.random.default_rng(seed)
    k_low = min(trainings // 2, int(trainings / 2 - math.sqrt(trainings))) if trainings > 5 else 0
    scale = 10.0 ** generator.integers(0, 6)
    members_K, nonmembers_K = (
        (scale * generator.pareto(0.5 + seed / 3, trainings + 1)).clip(0, 1e7).astype(int)
        for _ in range(2)
    )
    members_K[0] += 1
    if seed == 5:
        nonmembers_K[:] = 0
        members_K[1:] = 0
    check(charts.votes(members_K, nonmembers_K, k_low=max(0, k_low), key="votes"))


def bars(image: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Returns the width and height of each bar."""
    return [
        (float(e.attrib["width"]), float(e.attrib["height"]))
        for e in image.iter("rect")
        if e.get("class") == kind
    ]


def test_votes_are_on_one_scale_and_a_cut_bar_has_its_number():
    members_K = np.array([300, 60, 20, 10, 20, 60, 90])
    nonmembers_K = np.array([5000, 60, 10, 5, 3, 2, 1])
    drawing = charts.votes(members_K, nonmembers_K, k_low=2, key="votes")
    for image in images(drawing):
        member = [height for _, height in bars(image, "member")]
        nonmember = [height for _, height in bars(image, "nonmember")]
        assert member == pytest.approx(members_K * member[0] / 300, abs=0.1)
        assert nonmember[1:] == pytest.approx(nonmembers_K[1:] * member[0] / 300, abs=0.1)
        assert nonmember[0] < member[0]
        assert "5,000" in [text.text for text in image.iter("text")]
        assert len([e for e in image.iter("path") if e.get("class") == "break"]) == 1
        assert "50 have 2 to 4" in words(image, "desc")


def test_most_members_without_votes_do_not_hide_the_others():
    members_K = np.array([9000, 60, 20, 10, 20, 60, 90])
    drawing = charts.votes(members_K, np.zeros(7, int), k_low=2, key="votes")
    for image in images(drawing):
        heights = [height for _, height in bars(image, "member")]
        assert heights[6] > 100
        assert "9,000" in [text.text for text in image.iter("text")]


@pytest.mark.parametrize("trainings", range(41, 300))
def test_bins_have_edges_on_the_region_of_the_coin(trainings: int):
    k_low = int(trainings / 2 - math.sqrt(trainings))
    bins = charts._vote_bins(trainings, k_low)
    assert bins[0][0] == 0
    assert bins[-1][1] == trainings + 1
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bins))
    edges = {edge for pair in bins for edge in pair}
    assert {k_low, trainings - k_low + 1} <= edges
    assert 10 <= len(bins) <= 44
    widths = [end - start for start, end in bins]
    assert sum(width < max(widths) for width in widths) <= 3


def test_bins_of_127_trainings_are_equal():
    assert {end - start for start, end in charts._vote_bins(127, 52)} == {4}


def test_a_narrower_bin_keeps_areas_proportional_to_counts():
    counts_K = np.ones(102, int)
    drawing = charts.votes(counts_K, counts_K, k_low=40, key="votes")
    for image in images(drawing):
        heights = [height for _, height in bars(image, "member")]
        assert max(heights) == pytest.approx(min(heights), abs=0.1)


def test_votes_need_two_trainings_and_members():
    zeros, ones = np.zeros(3, int), np.ones(3, int)
    assert isinstance(charts.votes(ones[:2], ones[:2], k_low=0, key="votes"), NotDrawn)
    assert isinstance(charts.votes(zeros, ones, k_low=0, key="votes"), NotDrawn)


# --- Hits that are found again


@pytest.mark.parametrize("seed", SEEDS)
def test_found_again_of_random_groups(seed: int):
    generator = np.random.default_rng(seed)
    scores = np.sort(generator.exponential(10.0 ** generator.integers(-4, 5), 8))
    groups = [
        ScoreGroup(float(score), estimate(generator), int(generator.integers(10, 9999)))
        for score in scores
    ]
    unit = str(generator.choice(["log odds", "nats per token"]))
    check(charts.found_again(groups, unit=unit, key="again"))


def test_found_again_needs_80_hits():
    groups = [ScoreGroup(i, Estimate(0.5), 10) for i in range(8)]
    assert not isinstance(charts.found_again(groups, unit="log odds", key="again"), NotDrawn)
    reason = charts.found_again(groups[:-1], unit="log odds", key="again")
    assert isinstance(reason, NotDrawn)
    assert "70 hits" in reason.reason
    assert isinstance(charts.found_again([], unit="log odds", key="again"), NotDrawn)


# --- Rows of dots


@pytest.mark.parametrize("seed", SEEDS)
def test_dot_rows_of_random_numbers(seed: int):
    generator = np.random.default_rng(seed)

    def row() -> DotRow:
        label = " ".join(
            generator.choice(["trained", "on", "other", "texts"], generator.integers(1, 16))
        )
        kind = generator.integers(3)
        models = tuple(generator.uniform(0, 1, 5)) if kind == 0 else ()
        found = Estimate(NAN) if kind == 1 else estimate(generator)
        short = label[:20] if generator.random() < 0.5 else ""
        return DotRow(label, found, ROLES[generator.integers(5)], short, models)

    groups = [
        DotGroup("The attacker", tuple(row() for _ in range(generator.integers(1, 5))))
        for _ in range(3)
    ]
    headline = DotRow("This report: Stacked LiRA, 32 references", estimate(generator), "headline")
    check(charts.dot_rows(headline, groups, key="change"))


def test_dot_rows_say_what_is_unknown_and_the_range_of_models():
    groups = [
        DotGroup(
            "The model",
            (
                DotRow("has 128 references", Estimate(NAN)),
                DotRow("trained again", Estimate(0.25), models=(0.18, 0.34, 0.2)),
            ),
        )
    ]
    headline = DotRow("This report", Estimate(0.25, 0.18, 0.32), "headline")
    for image in images(charts.dot_rows(headline, groups, key="change")):
        texts = [text.text for text in image.iter("text")]
        assert "25 (18–32)" in texts
        assert "unknown" in texts
        assert "18–34" in texts
        description = words(image, "desc")
        assert "This report 25 (18 to 32)." in description
        assert "128 references unknown; trained again 18 to 34." in description


def test_dot_rows_need_a_headline_and_something_to_compare():
    known, unknown = DotRow("This report", Estimate(0.25)), DotRow("This report", Estimate(NAN))
    assert isinstance(charts.dot_rows(unknown, [DotGroup("a", (known,))], key="change"), NotDrawn)
    assert isinstance(charts.dot_rows(known, [], key="change"), NotDrawn)
    assert isinstance(charts.dot_rows(known, [DotGroup("a", ())], key="change"), NotDrawn)


# --- Lines


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_half", [True, False])
def test_lines_of_random_numbers(seed: int, is_half: bool):
    generator = np.random.default_rng(seed)
    is_log, is_auc = seed % 2 == 0, seed % 3 == 0
    size = int(generator.integers(2, 20))
    positions = [2.0 ** (3 + i) if is_log else float(i) for i in range(size)]
    ticks = [Tick(x, f"w{2**i}: {i}k" if seed % 5 else f"{x:g}") for i, x in enumerate(positions)]
    series = [
        Line(
            NAMES[k],
            ROLES[k],
            tuple(
                LinePoint(x, estimate(generator, low=0.4 if is_auc else 0), i > 0.7 * size)
                for i, x in enumerate(positions)
            ),
        )
        for k in range(generator.integers(1, 6))
    ]
    drawing = charts.lines(
        series,
        ticks=ticks,
        x_title="Reference models",
        y_title="Members found per 100 at 1 false alarm per 100",
        title="More references",
        unit=FRACTION if is_auc else charts.PER_100,
        scale="log" if is_log else "linear",
        is_half=is_half,
        key="lines",
    )
    check(drawing)


def references(points: tuple[LinePoint, ...]) -> Drawing:
    return charts.lines(
        [Line("LiRA", "headline", points)],
        ticks=[Tick(8, "8"), Tick(16, "16")],
        x_title="Reference models",
        y_title="Members found per 100",
        title="More references",
        key="lines",
    )


def test_lines_show_what_is_predicted():
    observed = LinePoint(8, Estimate(0.2))
    drawing = references((observed, LinePoint(16, Estimate(0.25, 0.18, 0.32), is_predicted=True)))
    for image in images(drawing):
        dots = [element.get("class") for element in image.iter("circle")]
        assert dots == ["dot headline", "dot headline open"]
        assert "LiRA: 8 20, 16 predicted 25 (18 to 32)" in words(image, "desc")
        assert "predicted" in [text.text for text in image.iter("text")]
    for image in images(references((observed, LinePoint(16, Estimate(0.3))))):
        assert "predicted" not in [text.text for text in image.iter("text")]


def test_a_line_needs_two_points():
    assert isinstance(references((LinePoint(8, Estimate(0.2)),)), NotDrawn)
    assert isinstance(
        references((LinePoint(8, Estimate(0.2)), LinePoint(16, Estimate(NAN)))), NotDrawn
    )


# --- All charts


def demo_charts(key: str) -> dict[str, Drawing]:
    found = Estimate(0.25, 0.18, 0.32)
    counts_K = np.arange(17)
    row = DotRow('This <b>report</b> & "others"', found, "headline")
    points = (LinePoint(8, Estimate(0.2)), LinePoint(16, found))
    return {
        "icons": charts.icons(found, None, fpr=0.01, key=key),
        "roc": charts.roc(
            [straight("<script>", "headline", 0.25)], fpr=0.01, num_nonmembers=1024, key=key
        ),
        "votes": charts.votes(counts_K, counts_K, k_low=4, key=key),
        "found_again": charts.found_again(
            [ScoreGroup(i, found, 10) for i in range(8)], unit="log & odds", key=key
        ),
        "dot_rows": charts.dot_rows(row, [DotGroup("The <text>", (row,))], key=key),
        "lines": charts.lines(
            [Line("<b>", "headline", points)],
            ticks=[Tick(8, "<8>"), Tick(16, "16")],
            x_title="<x>",
            y_title="<y>",
            title="<title>",
            key=key,
        ),
    }


@pytest.mark.parametrize("name", demo_charts("key"))
def test_charts_are_the_same_every_time_and_have_ids_of_their_own(name: str):
    drawing = demo_charts("key")[name]
    assert drawing == demo_charts("key")[name]
    ids, others = (
        [
            e.attrib["id"]
            for image in images(demo_charts(key)[name])
            for e in image.iter()
            if "id" in e.attrib
        ]
        for key in ("key", "other")
    )
    assert len({*ids, *others}) == len(ids) + len(others) > 0
    check(drawing)


# --- Functions


@given(
    st.lists(st.floats(-50, 450), max_size=8).map(sorted),
    st.floats(0, 200),
    st.floats(200, 400),
)
def test_spread_keeps_order_distance_and_ends(positions: list[float], low: float, height: float):
    gap = 16.0
    high = low + height
    moved = charts.spread(positions, gap, low, high)
    assert len(moved) == len(positions)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert all(low - 1e-9 <= y <= high + 1e-9 for y in moved)
    apart = all(b - a >= gap for a, b in itertools.pairwise(positions))
    if apart and all(low <= y <= high - gap * len(positions) for y in positions):
        assert moved == pytest.approx(positions)


def test_spread_moves_both_neighbors():
    assert charts.spread([100, 100], 16, 0, 400) == [92, 108]
    assert charts.spread([100, 104, 300], 16, 0, 400) == [94, 110, 300]
    assert charts.spread([], 16, 0, 400) == []


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 58, [0, 10, 20, 30, 40, 50, 60]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 2.3, [0, 0.5, 1, 1.5, 2, 2.5]),
        (0.5, 0.93, [0.5, 0.6, 0.7, 0.8, 0.9, 1]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]):
    assert charts._nice_ticks(low, high) == expected
