"""The pages of figures: which figures each of them shows."""

import dataclasses
from pathlib import Path

import pytest
from synthetic_workdir import Page

from analysis import paper_pages
from analysis.figure_section import FigureSection


def section(name: str, *, compared: bool = True) -> FigureSection:
    empty = FigureSection(name, name, "", None, "no models", (), "")
    return dataclasses.replace(empty, compared=compared)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["mace_fig02_progress", "mine"], {"mace": "Liu et al.", "own": "Own figures"}),
        (
            ["reliability_fig01_strategies", "strongmia_fig08_statistic"],
            {"strongmia": "Hayes et al.", "reliability": "Jälkö et al."},
        ),
        (
            ["scaling", "canaries_fig01_random_tokens", "open_fig03_recency"],
            {"open": "Open questions"},
        ),
    ],
)
def test_each_paper_has_a_page(names: list[str], expected: dict[str, str], tmp_path: Path):
    pages = paper_pages.write(tmp_path, [section(name) for name in names])
    assert [*pages] == [f"figures/{name}.html" for name in expected]
    assert {p.stem for p in (tmp_path / "figures").iterdir()} == {*expected}
    for name, title in expected.items():
        html = (tmp_path / "figures" / f"{name}.html").read_text()
        [heading] = [tag for tag, _ in Page(html).tags if tag == "h1"]
        assert title in html.partition(f"<{heading}>")[2].partition("</")[0]
        assert pages[f"figures/{name}.html"].lower() in html.lower()
    ids = [
        a.get("id")
        for path in pages
        for tag, a in Page((tmp_path / path).read_text()).tags
        if tag == "h2"
    ]
    assert {*ids} - {"contents"} == {*names}


def test_figures_not_compared_with_their_paper_belong_to_none(tmp_path: Path):
    pages = paper_pages.write(tmp_path, [section("strongmia_fig08_statistic", compared=False)])
    assert [*pages] == ["figures/own.html"]
    html = (tmp_path / "figures" / "own.html").read_text()
    assert "Hayes" not in html
    assert "paper" not in Page(html).words
