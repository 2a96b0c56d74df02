"""What ``lm-mia status`` prints of a workdir, and what a command says of it at its end."""

import json
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from lm_mia.atomic import FACTS
from lm_mia.config import Config
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.data.population import open_population
from lm_mia.data.subsets import Row
from lm_mia.errors import UserError
from lm_mia.run import inventory, progress
from lm_mia.run.workdir import Workdir
from lm_mia.store import check
from lm_mia.store.store import scores_of, with_stored

_OLD = "older than the tables: `lm-mia report` makes it again"


def show(c: Config, workdir: Workdir, verify: bool = False) -> None:
    """Prints what is there and what is missing; changes nothing.

    Args:
      c: the config.
      workdir: of a run.
      verify: also read every score of the rows that the store knows, of statistics that it has whether the config asks
        for them or not, and name shards that are missing or corrupt.

    Raises:
      UserError: if the workdir is another config's, the store is damaged, or (if asked to verify) a shard is corrupt.
    """
    workdir.check(c)
    population = open_population(workdir.population)
    recipe = workdir.recipe(recipe_hash(c, population.sha256))
    rows = subsets.rows_of(c)
    table = Table(title=str(workdir.path))
    for column in ("rows", "wanted", "trained", "scored", "missing"):
        table.add_column(column, justify="left" if column == "rows" else "right")
    for role in ("reference", "replica"):
        of = [row for row in rows if row.role == role]
        table.add_row(role, *counts(c, recipe, of))
    console = Console()
    console.print(table)
    console.print(
        f"population  {len(population)} samples, sha256 {population.sha256}",
        highlight=False,
        soft_wrap=True,
    )
    for name in ("tables", "figures", "report.html"):
        there = "present" if (workdir.path / name).exists() else "missing"
        if name == "tables" and there == "present":
            there = _tables(c, workdir)
        if name == "report.html" and workdir.report_is_old():
            there = f"present, {_OLD}"
        console.print(f"{name:11} {there}", highlight=False)
    if verify:
        _verify(c, recipe, console)


def counts(c: Config, recipe: Path, rows: list[Row]) -> list[str]:
    """How many of some rows are wanted, trained, scored and missing."""
    lacking = set(inventory.missing("score", c, recipe, rows))
    trained_rows = [row for row in rows if row not in lacking or inventory.trained(c, recipe, row)]
    found = len(rows), len(trained_rows), len(rows) - len(lacking), len(lacking)
    return [str(count) for count in found]


def _tables(c: Config, workdir: Workdir) -> str:
    """What is to be said of tables that are there."""
    if workdir.table_facts() is None:
        return "unfinished"
    different = workdir.other_settings(c).items()
    others = [f"attack.{name}={made!r}" for name, (_, made) in different]
    return f"present, of other settings: {', '.join(others)}" if others else "present"


def _verify(c: Config, recipe: Path, console: Console) -> None:
    store = scores_of(with_stored(c, recipe), recipe)
    with progress.display(overall=False) as display:
        found = check.check(
            store, store.rows(), lambda done, of: display.update("verify", done, of)
        )
    for path in found.missing:
        console.print(f"missing     {path}", highlight=False, soft_wrap=True)
    for path in found.corrupt:
        console.print(f"corrupt     {path}", highlight=False, soft_wrap=True)
    console.print(
        f"scores      {found.shards} shards wanted, {len(found.missing)} missing, {len(found.corrupt)} corrupt",
        highlight=False,
    )
    if found.corrupt:
        raise UserError(
            f"{store.path}: {len(found.corrupt)} corrupt shards; `lm-mia score --repair` makes these, and "
            f"{len(found.missing)} missing ones, again"
        )


def summary(verb: str, workdir: Workdir, recipe: Path) -> None:
    """The last words of a command: what came out, and where everything is."""
    lines = []
    if verb in ("run", "attack"):
        step = json.loads((workdir.path / FACTS).read_text())["config"]["step"]
        after = f" after step {step}" if step else ""
        best = pd.read_csv(workdir.path / "tables" / "attacks.csv").groupby("attack").last()
        for name in best.index.intersection(["lira_online", "loss"], sort=False):
            row = best.loc[name]
            lines.append(
                f"AUC of {name}{after}: {row['auc_mean']:.3f} +- {row['auc_std']:.3f} over {row['targets']:.0f} targets"
            )
    places = {
        "population": workdir.population,
        "scores": recipe / "scores.zarr",
        "metrics": workdir.path / "metrics.jsonl",
        "tables": workdir.path / "tables",
        "figures": workdir.path / "figures",
        "report": workdir.path / "report.html",
    }
    old = {"report": f" ({_OLD})"} if workdir.report_is_old() else {}
    lines += [f"{n:11} {path}{old.get(n, '')}" for n, path in places.items() if path.exists()]
    print("\n".join(lines))
