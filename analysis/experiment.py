"""Experiments: what a figure or table reads, how it is drawn of a sweep, what it claims, and the files that hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis import plotting
from analysis.claims.compare import Claim
from analysis.io import SweepResults
from lm_mia.atomic import write_atomically, write_csv
from lm_mia.attacks.results import Key
from lm_mia.attacks.spec import FigureNeed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure or table as drawn with the models of a sweep."""

    data: pd.DataFrame
    """The plotted data in tidy form; for a table, its cells as numbers."""
    figure: Figure | None = None
    table: pd.DataFrame | None = None
    """For a table: its cells as formatted text; columns may have two levels."""
    claims: tuple[Claim, ...] = ()
    ours: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Our counterparts of published numbers: key -> (number, standard deviation or NaN)."""
    our_ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """The same where our models allow only a range: key -> (low, high)."""
    not_comparable: frozenset[str] = frozenset()
    """Keys of ``ours`` whose numbers are shown, but are not to be compared with the paper's."""
    not_comparable_note: str = ""
    """A sentence that says why; empty if all numbers are comparable."""
    notes: tuple[str, ...] = ()
    """Sentences shown below the figure, such as the number of references; empty ones are not shown."""
    paper_notes: tuple[str, ...] = ()
    """Sentences on the paper and its claims, shown below the others if the figure is compared with the paper."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The definition of a figure or a table, independent of any sweep."""

    draw: Callable[[SweepResults], Drawing]
    title: str = ""
    """Empty for an item of a paper, whose title stands in analysis/papers."""
    about: str = ""
    """What it asks or shows; empty for an item of a paper, whose findings stand in analysis/papers."""
    reads: tuple[FigureNeed, ...] = ()
    """What it reads beyond the tables of decisions: attacks, and tables of its own."""
    statements: tuple[str, ...] = ()
    """What it claims: statements of the paper, or of its own, that can be tested."""
    stored_keys: Callable[[], Sequence[Key]] = tuple
    """Returns the keys of the results that it keeps in WORKDIR/pieces, as those of a simulation, which belong to no
    recipe; `lm-mia rm unused` deletes the others."""


def unsupported_note(claims: Sequence[Claim]) -> str:
    """Returns a note on the claims that are not supported, with their verdicts; empty if all are."""
    missed = [
        f"“{c.statement}” ({c.verdict})" for c in claims if not c.verdict.startswith("supported")
    ]
    return f"Not supported here: {'; '.join(missed)}." if missed else ""


def write(workdir: Path, name: str, result: Drawing) -> Path | None:
    """Writes tables/NAME.csv and either figures/NAME.png and .pdf or tables/NAME.tex and .md.

    Returns:
      The path of the PNG; None for a table.
    """
    (workdir / "tables").mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "tables" / f"{name}.csv", result.data)
    if result.table is not None:
        for suffix, text in (("tex", latex(result.table)), ("md", markdown(result.table))):
            write_atomically(workdir / "tables" / f"{name}.{suffix}", text)
    if result.figure is None:
        return None
    return plotting.save(result.figure, workdir / "figures", name)


def latex(table: pd.DataFrame) -> str:
    """Returns a table as a LaTeX tabular with booktabs."""
    escaped = table.map(lambda cell: _escape(str(cell)))
    escaped.columns = escaped.columns.map(_escape_heading)
    escaped.index = escaped.index.map(lambda cell: _escape(str(cell)))
    return escaped.to_latex(escape=False, multicolumn_format="c")


def _escape_heading(heading: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return tuple(map(_escape, heading)) if isinstance(heading, tuple) else _escape(heading)


def _escape(text: str) -> str:
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
    """Returns a table as Markdown; column headings of two levels are joined."""
    headings = [" ".join(h).strip() if isinstance(h, tuple) else str(h) for h in table.columns]
    lines = [[str(table.index.name or ""), *headings], ["---"] + ["---:"] * len(headings)]
    lines += [
        [str(at), *map(str, row)] for at, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
