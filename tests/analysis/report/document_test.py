import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import demo_page
import pytest
from markupsafe import Markup

from analysis.report import document
from analysis.report.charts import NotDrawn
from analysis.report.document import (
    Column,
    Detail,
    Fact,
    Figure,
    Note,
    Page,
    Row,
    Sample,
    SampleColumn,
    SampleFilter,
    SamplesTable,
    Section,
    Table,
)

HOSTILE = (
    "</script></style><script>alert(1)</script><img src=x onerror=alert(2)> & ' \" {{ 7 * 7 }} <!--"
)


class Parser(HTMLParser):
    """Collects the elements of a page and their texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def names(self) -> list[str]:
        return [name for name, _ in self.elements]

    def ids(self) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get("id"))]


def minimal(**fields: Any) -> Page:
    defaults: dict[str, Any] = {
        "title": "t",
        "name": "n",
        "kind": "k",
        "written": "today",
        "question": "q",
        "lead": ("answer",),
    }
    return Page(**defaults | fields)


def samples_table(*samples: Sample, **fields: Any) -> SamplesTable:
    columns = (
        SampleColumn("text", "Text"),
        SampleColumn("score", "Score"),
        SampleColumn("above", "Higher than"),
        SampleColumn("votes", "Found in"),
        SampleColumn("label", "Called at"),
        SampleColumn("member", "Member"),
    )
    defaults: dict[str, Any] = {
        "caption": "c",
        "columns": columns,
        "filters": (SampleFilter("all", "All", 2000),),
        "samples": samples,
        "trainings": 16,
        "k_low": 4,
    }
    return SamplesTable(**defaults | fields)


def with_samples(*samples: Sample, **fields: Any) -> Page:
    block = samples_table(*samples, **fields)
    return minimal(sections=(Section("samples", "Samples", "2", (block,)),))


def data(page: str) -> dict[str, Any]:
    """Returns the JSON of the only table of samples."""
    [content] = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(content)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 100,
        "w" * 5000,
        "\U0001f600 " * 200,
        "漢" * 600,
        "tab\tand\nline " * 40,
        "\x00\ud800 " * 60 + "end",
    ],
)
def test_cells_show_the_beginning_of_a_long_text(text: str):
    page = document.render(with_samples(Sample("0", True, 1, 0.5, ("all",), text)))
    [cell] = re.findall(r'(?s)<td class="text"[^>]*><span>(.*?)</span>', page)
    beginning, dots = cell[:-2], cell[-2:]
    assert dots == " …"
    assert len(beginning.split()) <= 35
    assert 30 <= len(beginning) <= 300
    fields = data(page)["fields"]
    row = data(page)["samples"][0]
    whole, shown = row[fields.index("text")], row[fields.index("shown")]
    assert len(whole) == len(text)
    # JavaScript counts in units of UTF-16.
    assert whole.encode("utf-16-le")[: 2 * shown].decode("utf-16-le") == beginning


def test_short_texts_are_shown_whole():
    for text in ("", "a few words", "w" * 300, " ".join(["word"] * 35)):
        page = document.render(with_samples(Sample("0", True, 1, 0.5, ("all",), text)))
        row = data(page)["samples"][0]
        assert row[data(page)["fields"].index("shown")] == len(text)
        assert f"<span>{text or document.NO_TEXT}</span>" in page


def test_demo_page_is_well_formed_and_its_ids_are_unique():
    page = Parser(demo_page.html())
    assert page.open == []
    assert len(page.ids()) == len({*page.ids()})
    links = [a["href"] or "" for name, a in page.elements if name == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= {*page.ids()}
    labels = [a.get("aria-labelledby") for _, a in page.elements]
    assert {id_ for label in labels if label for id_ in label.split()} <= {*page.ids()}
    assert page.names().count("h1") == 1
    assert {"img", "link", "iframe"} & {*page.names()} == set()
    assert not [a for _, a in page.elements if {"src", "style", "onclick"} & a.keys()]


def test_page_needs_no_other_files():
    page = demo_page.html()
    assert "default-src 'none'" in page
    styles = "".join(Parser(page).texts["style"])
    assert "url(" not in styles
    assert "@import" not in styles
    addresses = {*re.findall(r"https?://[^\s\"'<]+", page)}
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_rendering_is_deterministic():
    assert demo_page.html() == demo_page.html()


def everywhere(text: str) -> Page:
    """Returns a page that has a text in each of its fields."""
    sample = Sample("id" + text, True, 1.0, 0.5, ("all",), text, text, 3, text)
    table = Table(text, (Column(text), Column(text, card=text)), (Row((text, text)),))
    samples = samples_table(
        sample,
        caption=text,
        noun=text,
        out_title=text,
        loss_note=text,
        columns=tuple(
            SampleColumn(kind, text, text, text)
            for kind in ("text", "score", "above", "votes", "label", "member")
        ),
        filters=(SampleFilter("all", text, 5),),
    )
    blocks = text, Note(text), table, samples, Figure(NotDrawn(text), text, text)
    return Page(
        title=text,
        name=text,
        kind=text,
        written=text,
        question=text,
        lead=(text,),
        facts=(Fact(text, text),),
        banners=(text,),
        sections=(Section("s", text, text, blocks),),
        details=(Detail(text, text, (text,), "d"), Detail(text, text)),
        made=(Fact(text, text),),
        footer=text,
    )


def test_texts_are_escaped_everywhere():
    plain, hostile = (Parser(document.render(everywhere(text))) for text in ("a", HOSTILE))
    assert hostile.names() == plain.names()
    for (_, attributes), (_, hostile_attributes) in zip(
        plain.elements, hostile.elements, strict=True
    ):
        assert attributes.keys() == hostile_attributes.keys()
    assert hostile.texts["title"] == [HOSTILE]
    assert hostile.texts["h1"] == [HOSTILE]
    page = document.render(everywhere(HOSTILE))
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "49" not in Parser(page).texts["h1"][0]
    sample = dict(zip(data(page)["fields"], data(page)["samples"][0], strict=True))
    assert sample["text"] == sample["source"] == sample["label"] == HOSTILE
    assert data(page)["noun"] == HOSTILE


def test_markup_is_not_escaped():
    page = document.render(minimal(lead=(Markup("<b>{}</b>").format("a < b"),)))
    assert "<b>a &lt; b</b>" in page


@pytest.mark.parametrize(
    "text",
    [
        "a\u2028b\u2029c",
        "漢字 é 🙂",
        "tab\tand\nlines",
        "{% raw %}",
        "\\u003c",
        "]]>",
        "a\\",
        "\u202eabc",
    ],
)
def test_unusual_texts_reach_the_script(text: str):
    page = document.render(with_samples(Sample("0", True, 1, 0.5, ("all",), text)))
    assert data(page)["samples"][0][data(page)["fields"].index("text")] == text
    assert text in Parser(page).texts["span"]
    assert "\u2028" not in re.findall(r"application/json.*", page)[0]


def test_control_characters_and_surrogates_are_replaced():
    text = "a\x00b\x08c\x1bd\x7fe\x85f\ud800g"
    page = document.render(everywhere(text))
    page.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", page)
    replaced = "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\ufffdg"
    assert replaced in Parser(page).texts["h1"]
    assert data(page)["samples"][0][data(page)["fields"].index("text")] == replaced


def cells(page: str) -> list[str]:
    """Returns the texts of the cells of the first row of samples."""
    [row] = re.findall(r"<tbody>\s*<tr>(.*?)</tr>", page, re.DOTALL)[:1]
    texts = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", text).split()) for text in texts]


def test_cells_of_samples():
    sample = Sample("7", True, -1.26, 0.9996, ("all",), votes=16, label="0.1")
    page = document.render(with_samples(sample))
    assert cells(page) == [
        document.NO_TEXT,
        "−1.3",
        "99.9",
        "16 of 16 steady hit",
        "0.1",
        "member",
    ]
    missing = Sample("7", False, math.nan, math.nan, ("all",), text="text")
    page = document.render(with_samples(missing))
    assert cells(page) == ["text", "–", "–", "–", "–", "not a member"]
    values = dict(zip(data(page)["fields"], data(page)["samples"][0], strict=True))
    assert (values["score"], values["above"], values["votes"]) == (None, None, None)


@pytest.mark.parametrize(
    ("above", "expected"),
    [(1.0, "all"), (0.9999, "99.9"), (0.999, "99.9"), (0.0, "0.0"), (0.29, "29.0")],
)
def test_share_of_lower_nonmembers_is_rounded_down(above: float, expected: str):
    assert (
        cells(document.render(with_samples(Sample("0", True, 1, above, ("all",)))))[2] == expected
    )


def test_score_is_never_minus_zero():
    page = document.render(with_samples(Sample("0", True, -0.01, 0.5, ("all",))))
    assert cells(page)[1] == "0.0"


@pytest.mark.parametrize(
    ("is_member", "votes", "k_low", "expected"),
    [
        (True, 13, 4, "steady hit"),
        (True, 12, 4, "coin flip"),
        (False, 4, 4, "coin flip"),
        (True, 3, 4, "steady miss"),
        (True, 0, 4, "steady miss"),
        (False, 13, 4, "steady false alarm"),
        (False, 3, 4, "rare false alarm"),
        (False, 0, 4, "never called"),
        (True, 16, 0, ""),
        (True, None, 4, ""),
    ],
)
def test_verdicts(is_member: bool, votes: int | None, k_low: int, expected: str):
    sample = Sample("0", is_member, 1, 0.5, ("all",), votes=votes)
    assert document.verdict(samples_table(sample, k_low=k_low), sample) == expected


def test_first_rows_are_there_without_script():
    samples = [
        Sample(str(i), True, -i, 0.5, ("all",) if i % 2 else ("other",), f"text {i}")
        for i in range(40)
    ]
    filters = SampleFilter("all", "All", 2000), SampleFilter("other", "Other", 20)
    page = document.render(with_samples(*samples, filters=filters, rows=5))
    rows = re.findall(r'<th scope="row">(\d+)</th>', page)
    assert rows == ["1", "3", "5", "7", "9"]
    assert "5 of 2,000 shown" in page
    assert len(data(page)["samples"]) == 40
    of_filters = data(page)["fields"].index("filters")
    assert {tuple(values[of_filters]) for values in data(page)["samples"]} == {(0,), (1,)}


def test_losses_have_two_decimals():
    sample = Sample("0", True, 1, 0.5, ("all",), in_losses=(1.234, math.nan), called=(True, False))
    page = document.render(with_samples(sample))
    values = dict(zip(data(page)["fields"], data(page)["samples"][0], strict=True))
    assert values["inLosses"] == [1.23, None]
    assert values["called"] == "10"


def test_charts_that_are_not_drawn_leave_a_sentence():
    figure = Figure(NotDrawn("There are too few hits."), "A caption.", "A title")
    page = document.render(minimal(sections=(Section("s", "S", "S", (figure,)),)))
    assert "There are too few hits." in page
    assert "A caption." not in page
    assert "<svg" not in page


def test_a_section_that_continues_another_has_its_number():
    sections = [Section(name, name, name, (), name == "b") for name in "abc"]
    assert [s.title for s in document.numbered(sections)] == ["1. a", "1b. b", "2. c"]


def test_details_without_more_to_show_do_not_open():
    details = Detail("Extraction", "None."), Detail("Control", "Fine.", ("text",), "d-control")
    page = Parser(document.render(minimal(details=details)))
    assert page.names().count("details") == 1
    assert "d-control" in page.ids()


def test_parts_without_content_are_left_out():
    page = document.render(minimal())
    assert [a["href"] for name, a in Parser(page).elements if name == "a"] == ["#answer"] * 2
    assert "made" not in Parser(page).ids()
    assert "<dl" not in page


def test_links_lead_to_all_sections():
    page = Parser(demo_page.html())
    links = [a["href"] for name, a in page.elements if name == "a"]
    sections = [f"#{a['id']}" for name, a in page.elements if name == "section"]
    assert links[1 : 1 + len(sections)] == sections


def luminance(color: str) -> float:
    """Returns the relative luminance of #rgb or #rrggbb, by the definition of WCAG 2."""
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    values = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(color: str, background: str) -> float:
    dark, light = sorted((luminance(color), luminance(background)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_colors_have_contrast(scheme: int):
    """As far as axe-core cannot determine it: in charts."""
    css = "".join(Parser(demo_page.html()).texts["style"])
    rules = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    color = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", rules[scheme]))
    for background in ("background", "panel", "coin", "banner"):
        for text in ("ink", "muted", "link"):
            assert contrast(color[text], color[background]) >= 4.5, (text, background)
    for text in ("member", "nonmember"):
        assert contrast(color[text], color["background"]) >= 4.5
    for line in ("grey", "member", "ink", "nonmember"):
        for background in ("background", "coin"):
            assert contrast(color[line], color[background]) >= 3, (line, background)
