"""A figure or table of a paper: what the paper says about it, how it is drawn, and how it is written to files."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import plotting
from analysis.compare import Claim
from analysis.io import SweepResults
from lm_mia.atomic import write_atomically, write_csv
from lm_mia.config.needs import LossNeed, Need


@dataclasses.dataclass(frozen=True)
class FigureResult:
    """A figure or a table of a paper, drawn from the models of this sweep."""

    data: pd.DataFrame
    """What is drawn, as tidy data; for a table, its cells as numbers."""
    figure: Figure | None = None
    table: pd.DataFrame | None = None
    """For a table: its cells as formatted text; the columns may have two levels."""
    claims: tuple[Claim, ...] = ()
    ours: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Key of a published number -> (our number, its standard deviation or NaN)."""
    notes: tuple[str, ...] = ()
    """Sentences shown below the figure, such as how many references were used."""


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """The definition of a figure or a table of a paper, independent of any sweep."""

    title: str
    paper: str
    """What the paper found."""
    statements: tuple[str, ...]
    """Claims of the paper that can be tested here."""
    draw: Callable[[SweepResults], FigureResult]
    needs: tuple[Need | LossNeed, ...] = ()
    """What the figure needs from the attacks stage in addition to the tables of decisions."""
    expect: str = ""
    """What to expect of a run at reduced scale; shown in docs/figures.md."""


def write(folder: Path, name: str, drawn: FigureResult) -> Path | None:
    """Writes tables/NAME.csv and figures/NAME.png and .pdf or tables/NAME.tex and .md; returns the path of the PNG."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    write_csv(folder / "tables" / f"{name}.csv", drawn.data)
    if drawn.table is not None:
        for suffix, text in (("tex", latex(drawn.table)), ("md", markdown(drawn.table))):
            write_atomically(folder / "tables" / f"{name}.{suffix}", text)
    if drawn.figure is None:
        return None
    return plotting.save(drawn.figure, folder / "figures", name)


def latex(table: pd.DataFrame) -> str:
    """Returns a table as a LaTeX tabular with booktabs."""
    ready = table.map(lambda cell: _escaped(str(cell)))
    ready.columns = ready.columns.map(_of_head)
    ready.index = ready.index.map(lambda cell: _escaped(str(cell)))
    return ready.to_latex(escape=False, multicolumn_format="c")


def _of_head(head: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return tuple(map(_escaped, head)) if isinstance(head, tuple) else _escaped(head)


def _escaped(text: str) -> str:
    for char, command in (
        ("%", r"\%"),
        ("±", r"$\pm$"),
        ("≥", r"$\geq$"),
        ("_", r"\_"),
        ("−", "$-$"),
    ):
        text = text.replace(char, command)
    return text


def markdown(table: pd.DataFrame) -> str:
    """Returns a table as Markdown; column heads of two levels are joined."""
    heads = [" ".join(h).strip() if isinstance(h, tuple) else str(h) for h in table.columns]
    lines = [[str(table.index.name or ""), *heads], ["---"] + ["---:"] * len(heads)]
    lines += [
        [str(at), *map(str, row)] for at, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
