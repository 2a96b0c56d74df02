"""One figure or table of a paper on the report page: drawn, written to files, and shown with its claims."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import markup, published
from analysis.compare import Claim, claim_untested
from analysis.figures import MODULES, file_name, find
from analysis.io import MissingModelsError, SweepResults
from analysis.paper_figure import FigureResult, write
from lm_mia.atomic import write_csv
from lm_mia.errors import UserError

VERDICTS = ("seen", "not seen", "not tested")


@dataclasses.dataclass(frozen=True)
class FigureSection:
    """A figure on the page."""

    name: str
    """Name of its files."""
    title: str
    paper: str
    """What the paper found."""
    drawn: FigureResult | None
    missing: str
    """Why it is not drawn; empty if it is."""
    claims: Sequence[Claim]
    image: str
    """As a data URI."""

    @property
    def short(self) -> str:
        """The short title, such as Figure 1, Table 7 or Scaling."""
        return self.title.partition(":")[0]

    @property
    def html(self) -> str:
        """The table, as markup; its texts are escaped."""
        assert self.drawn is not None
        assert self.drawn.table is not None
        return self.drawn.table.to_html(border=0, escape=True)

    @property
    def compared(self) -> list[dict[str, Any]]:
        """Published numbers next to ours."""
        ours = self.drawn.ours if self.drawn else {}
        return [
            {"what": n.what, "place": n.place, "paper": _number(n.value, n.std)}
            | {"ours": _number(*ours[key]) if key in ours else "–"}
            for key, n in published.numbers(self.name.partition("_")[0]).items()
        ]


def show(name: str, recipes: SweepResults, workdir: Path) -> FigureSection:
    """Draws and writes one figure or table; if that fails, for example because models are missing, says why."""
    file, title, paper, statements = file_name(name), name, "", ()
    try:
        figure = find(name)
        title, paper, statements = figure.title, figure.paper, figure.statements
        drawn = figure.draw(recipes)
        png = write(workdir, file, drawn)
    except Exception as error:
        known = isinstance(error, MissingModelsError | UserError)
        if name in MODULES and not known:
            raise  # a bug of ours; an error in a user's file is shown in its place on the page
        absent = markup.reason(error) if known else f"{type(error).__name__}: {error}"
        claims = [claim_untested(said, absent) for said in statements]
        return FigureSection(file, title, paper, None, absent, claims, "")
    image = markup.data_uri(png) if png else ""
    return FigureSection(file, title, paper, drawn, "", drawn.claims, image)


def render(shown: Sequence[FigureSection]) -> str:
    """The claims of all figures, then a section for each figure."""
    return (
        markup.environment()
        .get_template("figures.html.j2")
        .render(shown=shown, of_paper=any(s.name in {*MODULES} - {"scaling"} for s in shown))
    )


def counted(shown: Sequence[FigureSection]) -> dict[str, int]:
    """Verdict -> number of claims."""
    verdicts = [claim.verdict for s in shown for claim in s.claims]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def write_claims(workdir: Path, shown: Sequence[FigureSection]) -> None:
    """Writes tables/claims.csv, with one line per claim."""
    told = [
        {"figure": s.name, "statement": c.statement, "verdict": c.verdict, "said": c.said}
        | (dataclasses.asdict(c.estimate) if c.estimate else {})
        for s in shown
        for c in s.claims
    ]
    columns = ["figure", "statement", "verdict", "value", "low", "high", "level", "over", "said"]
    (workdir / "tables").mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "tables" / "claims.csv", pd.DataFrame(told, columns=columns))


def _number(value: float, std: float) -> str:
    if value != value:
        return "–"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if std != std:
        return digits
    return f"{digits} ± " + (f"{std:,.0f}" if abs(value) >= 1000 else f"{std:.2g}")
