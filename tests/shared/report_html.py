"""What tests read of the HTML of a report page, and what holds for every such page."""

import re
from collections import Counter
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
from markupsafe import Markup
from synthetic_workdir import Page

from analysis.io import RecipeResults
from analysis.report import numbers
from analysis.report.numbers import Estimate, Unit

MAX_WORDS, MAX_BYTES = 1500, 500_000
"""Budgets of a page: words before anything is unfolded, and its size."""
_ID_LISTS = ("aria-labelledby", "aria-describedby", "for")
_FOLDED = re.compile(
    r"(?s)<(script|style|dialog)\b.*?</\1>"
    r'|<svg class="chart (?:narrow|mid)\b.*?</svg>'
    r"|<(title|desc)\b.*?</\2>"
    r"|<details\b.*?</summary>(.*?)</details>"
)
"""What is not seen before anything is unfolded, in a window of 1280 px."""


def unfolded(html: str) -> str:
    """Returns the text that is seen before anything is unfolded; of details, nothing."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", _FOLDED.sub("", html))).split())


def text_of(html: str, start: str, end: str) -> str:
    """Returns the text between two strings of the HTML."""
    part = html.partition(start)[2].partition(end)[0]
    return " ".join(str(Markup(part).striptags()).split())


def lead(html: str) -> str:
    """Returns the first sentences."""
    return " ".join(
        " ".join(str(Markup(part).striptags()).split())
        for part in re.findall(r'(?s)<p class="lead">(.*?)</p>', html)
    )


def banners(html: str) -> list[str]:
    """Returns the texts of the banners."""
    parts = re.findall(r'(?s)<p class="banner"[^>]*>(.*?)</p>', html)
    return [" ".join(str(Markup(part).striptags()).split()) for part in parts]


def headings(html: str) -> list[str]:
    """Returns the titles of the sections."""
    return [str(Markup(h).striptags()) for h in re.findall(r"(?s)<h2[^>]*>(.*?)</h2>", html)]


def section_ids(html: str) -> list[str]:
    """Returns the ids of the sections that have a title, in their order."""
    return re.findall(r'<h2 id="([^"]*)-title"', html)


def description(html: str, key: str) -> str:
    """Returns the description of the first drawing of a chart, which has its numbers."""
    found = re.search(rf'(?s)<desc id="{key}[^"]*-desc">(.*?)</desc>', html)
    return unescape(found[1]) if found else ""


def row_of(html: str, name: str) -> str:
    """Returns the text of the first row of a table with this name."""
    found = re.search(rf'(?s)<th scope="row">{re.escape(name)}</th>(.*?)</tr>', html)
    return " ".join(str(Markup(found[1].replace("<", " <")).striptags()).split()) if found else ""


def of_strength(
    recipe: RecipeResults, attack: str, metric: str, unit: Unit = numbers.PER_100
) -> str:
    """Returns a number of strength.csv with its interval as the page writes it: "25 (18 to 32)"."""
    return of_table(recipe.view.table("strength.csv"), attack, metric, unit)


def of_table(table: pd.DataFrame, attack: str, metric: str, unit: Unit = numbers.PER_100) -> str:
    """Returns the same from the table."""
    rows = table.to_dict("records")
    [row] = [row for row in rows if (row["attack"], row["metric"]) == (attack, metric)]
    return numbers.plain(Estimate(*(float(row[end]) for end in ("value", "low", "high"))), unit)


def check(html: str, folder: Path | None = None) -> Page:
    """Checks what holds for every report page, and returns its parts.

    Args:
      html: the page.
      folder: where the page is, if the files that it links to are there too.
    """
    page = Page(html)
    ids = Counter(a["id"] for _, a in page.tags if "id" in a)
    assert {id_ for id_, count in ids.items() if count > 1} == set()
    hrefs = [a["href"] or "" for _, a in page.tags if "href" in a]
    assert {h[1:] for h in hrefs if h.startswith("#")} <= {*ids}
    for _, attributes in page.tags:
        for name in _ID_LISTS:
            assert {*(attributes.get(name) or "").split()} <= {*ids}
    files = [h for h in hrefs if not h.startswith("#")]
    assert [h for h in files if re.match(r"[a-z]+:|//|/", h)] == []
    if folder is not None:
        assert [h for h in files if not (folder / unquote(h.partition("#")[0])).is_file()] == []
    # Nothing is requested.
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "img", "base"}
    assert [a for _, a in page.tags if a.keys() & {"src", "srcset", "action", "ping"}] == []
    assert not re.search(r"(?i)url\(|@import|https?://(?!www\.w3\.org/)", _without_data(html))
    policies = [a["content"] or "" for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert [p.startswith("default-src 'none'") for p in policies] == [True]
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert (headings[0], headings.count(1)) == (1, 1)
    assert max(b - a for a, b in zip([0, *headings], headings, strict=False)) == 1
    words = Page(_without_data(html)).words.lower()
    assert "nan" not in [word.strip(".,;()%") for word in words.split()]
    return page


def _without_data(html: str) -> str:
    """Returns the page without the samples, whose texts may contain anything."""
    html = re.sub(r'(?s)<script type="application/json">.*?</script>', "", html)
    return re.sub(r'(?s)<td class="text".*?</td>', "", html)
