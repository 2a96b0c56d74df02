"""Draws StrongMIA's figures and tables for a sweep, and writes them to WORKDIR/report.html.

    python -m analysis runs/paper [--figure=fig01_references ...] [--recipe=runs/paper/main_0a1b2c3d ...]

`lm-mia report` runs this for the figures and recipes of its config. When it is run directly, the default is all figures
and all recipes of the workdir.
"""

import argparse
import base64
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from analysis import io, published
from analysis.compare import Claim, untested
from analysis.figures import MODULES, draws
from analysis.io import Absent, Recipe, Recipes
from analysis.paper_figure import Drawn, PaperFigure, write
from lm_mia.atomic import write_atomically, write_csv
from lm_mia.errors import UserError

HERE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Shown:
    """A figure on the page."""

    name: str
    title: str
    paper: str
    """What the paper found."""
    drawn: Drawn | None
    absent: str
    """Why it is not drawn."""
    claims: Sequence[Claim]
    image: str
    """As a data URI."""
    used: frozenset[Path]
    """Folders of the recipes that it is of."""

    @property
    def short(self) -> str:
        """Figure 1, Table 7, Scaling."""
        return self.title.partition(":")[0]

    @property
    def html(self) -> str:
        """The table, as markup; its texts are escaped."""
        assert self.drawn is not None
        assert self.drawn.table is not None
        return self.drawn.table.to_html(border=0, escape=True)

    @property
    def compared(self) -> list[dict[str, Any]]:
        """Published numbers beside ours."""
        ours = self.drawn.ours if self.drawn else {}
        return [
            {"what": n.what, "place": n.place, "paper": _number(n.value, n.std)}
            | {"ours": _number(*ours[key]) if key in ours else "–"}
            for key, n in published.numbers(self.name.partition("_")[0]).items()
        ]


def find(name: str) -> PaperFigure:
    """A figure of the paper, or one of your own: NAME.py here, with TITLE, PAPER, STATEMENTS and draw(recipes)."""
    if name in MODULES:
        return importlib.import_module(MODULES[name]).FIGURES[name]
    spec = importlib.util.spec_from_file_location(f"analysis.{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = own
    spec.loader.exec_module(own)
    return PaperFigure(own.TITLE, own.PAPER, own.STATEMENTS, own.draw)


def show(name: str, recipes: Recipes, folder: Path) -> Shown:
    """Draws and writes one figure or table; where rows are lacking, says so instead."""
    figure = find(name)
    recipes.used = set()
    drawn, absent, image = None, "", ""
    try:
        drawn = figure.draw(recipes)
        claims: Sequence[Claim] = drawn.claims
        if png := write(folder, name, drawn):
            image = "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    except (Absent, UserError, io.WorkdirError) as error:
        absent = str(error)
        claims = [untested(said, absent) for said in figure.statements]
    used = frozenset(recipes.used)
    return Shown(name, figure.title, figure.paper, drawn, absent, claims, image, used)


def write_page(folder: Path, recipes: Recipes, wanted: Sequence[str]) -> Path:
    """Draws all and writes the page; returns its path."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    shown = []
    for number, name in enumerate(wanted):
        print(f"{number} of {len(wanted)} figures: {name}", flush=True)
        shown.append(show(name, recipes, folder))
        if why := shown[-1].absent:
            print(f"not drawn: {name}: {why}", flush=True)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    of_paper = [s for s in shown if s.name != "scaling"]  # which asks for no row of its own
    used = frozenset[Path]().union(*(s.used for s in of_paper))
    verdicts = [claim.verdict for s in shown for claim in s.claims]
    text = environment.get_template("page.html.j2").render(
        name=folder.resolve().name,
        shown=shown,
        recipes=[_of_recipe(r) for r in recipes.all],
        trained=sum(_rows(r) for r in recipes.all if r.folder in used),
        verdicts={v: verdicts.count(v) for v in ("seen", "not seen", "not tested")},
    )
    told = [
        {"figure": s.name, "statement": c.statement, "verdict": c.verdict, "said": c.said}
        | (dataclasses.asdict(c.estimate) if c.estimate else {})
        for s in shown
        for c in s.claims
    ]
    columns = ["figure", "statement", "verdict", "value", "low", "high", "level", "over", "said"]
    write_csv(folder / "tables" / "claims.csv", pd.DataFrame(told, columns=columns))
    write_atomically(folder / "report.html", text)
    print(f"{len(wanted)} of {len(wanted)} figures", flush=True)
    return folder / "report.html"


def main(argv: Sequence[str]) -> int:
    """Entry point: 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Draws StrongMIA's figures and tables for a sweep, and writes a page of them.",
    )
    parser.add_argument("workdir", type=Path, help="workdir of a sweep; report.html goes there")
    figure = "such as fig01_references; repeatable (default: all); the page and claims.csv then have only these"
    parser.add_argument("--figure", action="append", metavar="NAME", help=figure)
    recipe = "folder of a recipe; repeatable (default: all in the workdir)"
    parser.add_argument("--recipe", action="append", type=Path, metavar="DIR", help=recipe)
    known = parser.parse_args(argv)
    try:
        folders = known.recipe or sorted(p.parent for p in known.workdir.glob("*/config.json"))
        if not folders:
            raise io.WorkdirError(_without_recipes(known.workdir))
        recipes, wanted = Recipes(folders), known.figure or list(MODULES)
        for name in wanted:
            if name not in MODULES and not draws(HERE / f"{name}.py"):
                raise io.WorkdirError(
                    f"--figure={name}: no such figure; choose one of {', '.join(MODULES)}"
                )
        print(write_page(known.workdir, recipes, wanted))
    except (UserError, io.WorkdirError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _without_recipes(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder; run lm-mia run first"
    if (folder / "config.json").is_file():
        return f"{folder}: has the rows of one config, not of a sweep; run python -m analysis.report {folder}"
    return f"{folder}: no recipe in it; run lm-mia run first"


def _rows(recipe: Recipe) -> int:
    return sum(map(len, recipe.rows))


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    c = recipe.config
    references, targets, replicas = map(len, recipe.rows)
    return {
        "names": ", ".join(recipe.names),
        "model": f"{c.model.layers}x{c.model.width}",
        "parameters": f"{recipe.parameters:,}",
        "samples": f"{recipe.samples:,}",
        "epochs": c.train.epochs,
        "tokens_per_parameter": f"{recipe.tokens_per_parameter:.3g}",
        "references": references,
        "targets": targets,
        "replicas": replicas,
    }


def _number(value: float, std: float) -> str:
    if value != value:
        return "–"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if std != std:
        return digits
    return f"{digits} ± " + (f"{std:,.0f}" if abs(value) >= 1000 else f"{std:.2g}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
