"""The pages of figures, WORKDIR/figures/PAPER.html: the figures and tables of one paper, and its claims."""

import datetime
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis import figure_section, markup, papers, provenance
from analysis.claims.compare import VERDICTS
from analysis.experiments import MODULES
from analysis.figure_section import FigureSection
from lm_mia.atomic import write_atomically, write_csv

_OPEN, _OWN = "open", "own"
_TITLES = {_OPEN: "Open questions", _OWN: "Own figures"}
"""Name of a page that is not about a paper -> its title."""


def write(workdir: Path, sections: Sequence[FigureSection]) -> dict[str, str]:
    """Writes tables/claims.csv and the page of each paper that has figures here; deletes pages of papers without any.

    Returns:
      The path of each page, from the workdir -> what it is about, in the order of the papers.
    """
    claims = figure_section.claims_table(sections)
    if sections:
        (workdir / "tables").mkdir(parents=True, exist_ok=True)
        write_csv(workdir / "tables" / "claims.csv", claims)
    pages = {}
    for name in (*papers.NAMES, *_TITLES):
        path = workdir / "figures" / f"{name}.html"
        shown = [section for section in sections if _page(section) == name]
        if not shown:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(name, shown, claims))
        pages[f"figures/{name}.html"] = (
            papers.read(name).authors if name in papers.NAMES else _TITLES[name].lower()
        )
    return pages


def _page(section: FigureSection) -> str:
    """Returns the name of the page that shows a figure."""
    if section.name not in MODULES or not section.compared:
        return _OWN
    return papers.name_of(section.name) or _OPEN


def render(name: str, sections: Sequence[FigureSection], claims: pd.DataFrame) -> str:
    """Returns a page as HTML.

    Args:
      name: a paper, or another name of a page.
      sections: the figures of the page.
      claims: tables/claims.csv, which may have claims of other pages too.
    """
    paper = papers.read(name) if name in papers.NAMES else None
    titles = {section.name: section.short_title for section in sections}
    claims = claims[claims["figure"].isin([*titles])]
    rows = [
        {
            "statement": row["statement"],
            "verdict": row["verdict"],
            "p_value": _format_p_value(row["p_value"]),
            "p_holm": _format_p_value(row["p_holm"]),
            "figure": row["figure"],
            "title": titles[row["figure"]],
        }
        for row in claims.to_dict("records")
    ]
    verdicts = {verdict: int((claims["verdict"] == verdict).sum()) for verdict in VERDICTS}
    return (
        markup.environment()
        .get_template("paper_page.html.j2")
        .render(
            paper=paper,
            departures=[r.text for r in paper.departures if not r.items] if paper else [],
            errata=[r.text for r in paper.errata if not r.items] if paper else [],
            title=_TITLES.get(name, ""),
            cards=[(f"{count}", verdict) for verdict, count in verdicts.items() if count],
            are_of_paper=all(section.about for section in sections if section.claims),
            figures=sections,
            claims=rows,
            time=datetime.datetime.now(datetime.UTC),
            version=provenance.version(),
        )
    )


def _format_p_value(p: float) -> str:
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
