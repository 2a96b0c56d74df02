"""A figure or table of the paper: what the paper says of it, how it is drawn, and how it is written."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import plotting
from analysis.compare import Claim
from analysis.io import Recipes
from lm_mia.atomic import write_atomically, write_csv


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure or a table of the paper, of this sweep's rows."""

    data: pd.DataFrame
    """What is drawn, tidy; of a table, its cells as numbers."""
    figure: Figure | None = None
    table: pd.DataFrame | None = None
    """Of a table, as people read it: texts; an index and columns that may have two levels."""
    claims: tuple[Claim, ...] = ()
    ours: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Key of a published number -> (ours, its STD or NaN)."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader needs, such as how many references there are here."""


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """A figure or a table of the paper, whatever the sweep."""

    title: str
    paper: str
    """What the paper found."""
    statements: tuple[str, ...]
    """What it says that can be tested here."""
    draw: Callable[[Recipes], Drawn]
    expect: str = ""
    """What to expect of a run at reduced scale, for docs/figures.md, which only shows figures of papers."""


def write(folder: Path, name: str, drawn: Drawn) -> Path | None:
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
    """A tabular with booktabs."""
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
    """Pipes; heads of two levels are joined."""
    heads = [" ".join(h).strip() if isinstance(h, tuple) else str(h) for h in table.columns]
    lines = [[str(table.index.name or ""), *heads], ["---"] + ["---:"] * len(heads)]
    lines += [
        [str(at), *map(str, row)] for at, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
