"""``lm-mia status`` and ``launch status``: show the state of a sweep, determined from its workdir alone.

``launch local`` shows the same table while it works. Nothing in the workdir is changed.
"""

import contextlib
import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launch import heartbeats, jobs
from lm_mia.config import to_dict
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.plan import plan
from lm_mia.printing import format_bytes, format_duration, format_rate, plural
from lm_mia.run import inventory, progress, remaining
from lm_mia.run.stored_results import count_pieces, is_report_outdated
from lm_mia.run.sweep import Sweep, SweepRecipe, require_workdir

_LINE_SECONDS = 10.0  # between lines if the output is not a terminal
_REFRESH_SECONDS = 2.0  # between updates of --watch
# Columns that are hidden if all are 0.
_OPTIONAL_COLUMNS = (
    "to_score",
    "vanished",
    "failing",
    "set_aside",
    "diverged",
)
_KINDS = (
    "running",
    "vanished",
    "failing",
    "set aside",
    "diverged",
    "machine",
    "versions",
    "answer",
    "population",
    "results",
    "other",
    "report",
)
"""Kinds of lines below the table, in their order."""
_FINISHED = ("present", "no replicas")
"""States of the tables of a recipe for which nothing is left to do."""
_MIN_WIDTH_OF_BARS = 110  # characters; narrower consoles have no room for progress bars
# No command is working if no model was finished for this time, plus that of some models.
_IDLE_SECONDS, _IDLE_MODELS = 60.0, 3
_SCREEN_LINES, _SCREEN_WIDTH = 40, 100  # that all fits on, but for the shards that --verify lists
_MAX_ROWS = 16  # of the table
_MAX_NAMES = 3  # of a recipe, besides that of its folder
_NEXT_LINES = 4  # that `next_command` may take


def recipe_status(recipe: SweepRecipe) -> dict[str, Any]:
    """Returns the state of a recipe, as plain values.

    Args:
      recipe: the recipe.

    Returns:
      ``names``: that of the folder, and those that commands gave the same recipe. Counts of models: ``models``
      (requested), ``done`` (trained and scored), ``to_score`` (trained, not scored) and ``missing`` (not made, and not
      being made by any process). Lists with one dict per model: ``running``, with model, job, host and since;
      ``vanished``, the same for jobs that no longer report that they are alive; ``failing``, models that failed and
      will be tried again; ``set_aside`` and ``diverged``, with reason and log.
      ``models_per_hour`` and ``seconds_left``: None if unknown. ``hosts``: numbers of models and failures of each
      machine. ``made_by``: number of models of each version of lm_mia. ``answer``: what the last command said, or None.
      ``population``: its path, samples and sha256, the last two None if it is not built. ``tables``: "present",
      "missing", "unfinished" (there are only some of the results that the config asks for) or "no replicas" (none are
      requested, so that there are no tables of decisions).

    Raises:
      UserError: if the folder has models of another recipe, or files in it are damaged.
    """
    models, recipe_dir = recipe.models, recipe.folder
    status: dict[str, Any] = {
        **jobs.recipe_as_json(recipe),
        "models": len(models),
        "done": 0,
        "to_score": 0,
    }
    status |= {name: [] for name in ("running", "vanished", "failing", "set_aside", "diverged")}
    status |= {"missing": len(models), "models_per_hour": None, "seconds_left": None, "hosts": {}}
    status |= {"made_by": {}, "population": _population(recipe), "tables": _tables(recipe)}
    status["answer"] = None
    stored = recipe.stored_config()
    if stored is None:
        return status
    status["names"] = list(dict.fromkeys([*stored["names"], *recipe.names]))
    unscored_models = inventory.unscored_models(recipe.config, recipe_dir, models)
    unscored = {str(model) for model in unscored_models}
    status["done"] = len(models) - len(unscored)
    status["to_score"] = sum(
        inventory.is_trained(recipe.config, recipe_dir, model) for model in unscored_models
    )
    for _, record, touched_seconds in heartbeats.running_jobs(recipe_dir):
        is_lost = time.time() - touched_seconds > heartbeats.LOST_SECONDS
        status["vanished" if is_lost else "running"] += [
            {"model": model, "since": since}
            | {name: record[name] for name in ("job", "host", "pid", "log")}
            for model, since in record["models"].items()
            if model in unscored
        ]
    for model in models:
        _add_failures(status, recipe_dir, model, str(model) in unscored)
    given_up = {f["model"] for f in status["set_aside"] + status["diverged"]}
    status["missing"] = len(unscored - given_up - {r["model"] for r in status["running"]})
    _add_log(status, recipe, stored)
    return status


def _population(recipe: SweepRecipe) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": str(recipe.population_dir), "samples": None, "sha256": None}
    if recipe.population_dir.exists():
        from lm_mia.data.population import open_population  # pandas takes a second

        population = open_population(recipe.population_dir, verify=False)
        facts |= {"samples": len(population), "sha256": population.sha256}
    return facts


def _tables(recipe: SweepRecipe) -> str:
    """Returns whether the results from which the tables are made are there."""
    if not recipe.config.attack.replicas:
        return "no replicas"
    stored, wanted = count_pieces(recipe)
    if stored == wanted:
        return "present"
    return "unfinished" if stored else "missing"


def _report(sweep: Sweep) -> str:
    """Returns the state of the report: "missing", "present" or "older than the tables"."""
    if not sweep.workdir.report.exists():
        return "missing"
    return "older than the tables" if is_report_outdated(sweep.workdir.path) else "present"


def _add_failures(
    status: dict[str, Any], recipe_dir: Path, model: ModelSeeds, is_unscored: bool
) -> None:
    failures = heartbeats.failures(recipe_dir, model)
    for failure in failures:
        _host(status, failure["host"])["failures"] += 1
    if not is_unscored:
        return
    diverged = inventory.divergence_file(recipe_dir, model)
    if diverged.exists():
        status["diverged"].append({"model": str(model), "reason": "diverged", "log": str(diverged)})
    elif failures:
        kind = "set_aside" if heartbeats.is_set_aside(recipe_dir, model) else "failing"
        last_failure = {k: failures[-1][k] for k in ("reason", "log", "host", "job", "time")}
        status[kind].append({"model": str(model), "failures": len(failures), **last_failure})


def _host(status: dict[str, Any], name: str) -> dict[str, int]:
    return status["hosts"].setdefault(name, {"models": 0, "failures": 0})


def _add_log(status: dict[str, Any], recipe: SweepRecipe, stored: dict[str, Any]) -> None:
    """Adds what the log shows: recent models per hour, remaining time, and models of each machine and version."""
    rate = remaining.ModelRate()
    first_version = f"{stored['lm_mia']} {(stored['commit'] or '')[:9]}".strip()
    for now, event in remaining.read_events(recipe.workdir.path, (b'"answer"',)):
        if event.get("recipe") != recipe.name:
            continue
        rate.add(now, event)
        if event["event"] == "answer":
            status["answer"] = event["text"]
        elif event.get("last"):
            # `lm-mia run` records its version only in config.json.
            version = event.get("version", first_version)
            status["made_by"][version] = status["made_by"].get(version, 0) + 1
            if "host" in event:
                _host(status, event["host"])["models"] += 1
    seconds, finished_at = rate.model_seconds(), rate.finished_at
    if (per_second := rate.per_second()) and seconds and finished_at:
        status["models_per_hour"] = 3600 * per_second
        # `lm-mia run` leaves no record of the models that it is making.
        is_recent = time.time() - finished_at < _IDLE_MODELS * seconds + _IDLE_SECONDS
        num_left = status["missing"] + len(status["running"])
        if num_left and (status["running"] or is_recent):
            status["seconds_left"] = num_left / per_second


def sweep_status(sweep: Sweep) -> dict[str, Any]:
    """Returns the state of a sweep, as plain values.

    Args:
      sweep: the sweep.

    Returns:
      ``recipes``: a dict for each, as returned by `recipe_status`; ``report``: "present", "missing" or "older than the
      tables"; ``others``: folders of recipes of the workdir that are not in the config; ``pieces``: number of files and
      bytes of the stored results of attacks.
    """
    requested = {recipe.name for recipe in sweep.recipes}
    others = [
        str(sweep.workdir.recipe_dir(name))
        for name in sweep.workdir.recipe_names()
        if name not in requested
    ]
    recipes = [recipe_status(recipe) for recipe in sweep.recipes]
    sizes = []
    for path in sweep.workdir.path.glob("recipes/*/pieces/*.parquet"):
        # Another command may have just renamed or deleted it.
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    pieces = {"files": len(sizes), "bytes": sum(sizes)}
    return {"recipes": recipes, "report": _report(sweep), "others": others, "pieces": pieces}


def print_status(
    sweep: Sweep, *, as_json: bool = False, watch: bool = False, verify: bool = False
) -> None:
    """Prints the state of a sweep; changes nothing.

    Args:
      sweep: the sweep.
      as_json: print JSON, as returned by `sweep_status`; with verify, each recipe also has ``shards``: the number of
        expected shards, and the missing and corrupt ones.
      watch: refresh until no model is missing or running.
      verify: also read every score and every file of the populations, and list missing and corrupt shards.

    Raises:
      UserError: if the folder does not exist, no command has started in it, or files in it are damaged.
    """
    require_workdir(sweep.workdir, has_config=sweep.config_arg is not None)
    if watch:
        with live_view(sweep) as refresh:
            while refresh():
                time.sleep(_REFRESH_SECONDS)
    status = sweep_status(sweep)
    damage = _verify(sweep, status) if verify else []
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        console = _console()
        console.print(_render(status, _width(console)) if sweep.recipes else plan.NO_MODELS)
        lines = [line for r in status["recipes"] for line in _shard_lines(r)]
        for line in [*lines, *next_command(sweep, status)]:
            print(line)
    if damage:
        raise UserError("\n".join(damage))


def _verify(sweep: Sweep, status: dict[str, Any]) -> list[str]:
    """Adds the missing and corrupt shards to `status`; returns a line for each recipe that has corrupt ones."""
    from lm_mia.data.population import open_population  # pandas takes a second

    folders = {recipe.population_dir for recipe in sweep.recipes}
    populations = {folder: open_population(folder) for folder in folders if folder.exists()}
    damage = list[str]()
    with progress.display(overall=False) as display:
        for recipe, r in zip(sweep.recipes, status["recipes"], strict=True):
            r["shards"] = {"wanted": 0, "missing": [], "corrupt": []}
            store = recipe.folder / "scores.zarr"
            if not store.exists():
                continue
            shards = inventory.check_store(
                recipe.config,
                recipe.folder,
                populations.get(recipe.population_dir),
                lambda done, total: display.update("verify", done, total),
            )
            damaged = shards.corrupt + shards.lost_records
            missing, corrupt = ([str(path) for path in p] for p in (shards.missing, damaged))
            r["shards"] = {"wanted": shards.num_shards, "missing": missing, "corrupt": corrupt}
            if corrupt:
                damage.append(
                    f"{store}: {plural(len(corrupt), 'shard')} corrupt and {len(missing)} missing; run "
                    "`lm-mia score --repair` to compute them again"
                )
    return damage


def _shard_lines(r: dict[str, Any]) -> Iterator[str]:
    """Yields the result of --verify for a recipe that has a store."""
    if (shards := r.get("shards")) and shards["wanted"]:
        for kind in ("missing", "corrupt"):
            yield from (f"{kind:11} {path}" for path in shards[kind])
        missing, corrupt = len(shards["missing"]), len(shards["corrupt"])
        counts = f"{shards['wanted']} shards expected, {missing} missing, {corrupt} corrupt"
        yield f"scores      {r['recipe']}: {counts}"


def print_summary(sweep: Sweep) -> int:
    """Prints the final summary of an engine: the state of the sweep, and what to do next.

    Returns:
      The exit code: 3 if models were set aside or diverged, else 0.
    """
    status, console = sweep_status(sweep), _console()
    console.print(_render(status, _width(console)))
    for line in next_command(sweep, status):
        print(line)
    given_up = any(r["set_aside"] or r["diverged"] for r in status["recipes"])
    return heartbeats.GIVEN_UP_EXIT_CODE if given_up else 0


def next_command(sweep: Sweep, status: dict[str, Any]) -> list[str]:
    """Returns lines with the next command if all models are present and tables or report are missing; else no lines."""
    recipes = status["recipes"]
    tables = all(r["tables"] in _FINISHED for r in recipes)
    if (tables and status["report"] != "missing") or any(r["done"] < r["models"] for r in recipes):
        return []
    flags = [f"--workdir={sweep.workdir.path}"]
    if status["others"] or any(not _as_stored(recipe) for recipe in sweep.recipes):
        config_and_workdir, overrides = sweep.flags()
        flags = [*config_and_workdir, *overrides]
    is_imported = any(recipe.config.corpus.source == "imported" for recipe in sweep.recipes)
    verbs = ("attack", "report") if is_imported else ("run",)
    command = " && ".join(shlex.join(["lm-mia", verb, *flags]) for verb in verbs)
    return ["All models are present. To attack them and write the report, run:", f"  {command}"]


def _as_stored(recipe: SweepRecipe) -> bool:
    """Returns whether the stored config equals that of the command, so that the next command needs no --config."""
    stored = recipe.stored_config()
    return stored is not None and stored["config"] == to_dict(recipe.config)


@contextlib.contextmanager
def live_view(sweep: Sweep) -> Iterator[Callable[[], bool]]:
    """Shows the status during the block; yields a function that refreshes it and returns whether work remains."""
    console, last_line_time = _console(), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def refresh() -> bool:
            nonlocal last_line_time
            # Reading all tables at each refresh would take too long.
            status = sweep_status(sweep)
            if console.is_terminal:
                live.update(_render(status, _width(console)), refresh=True)
            elif time.monotonic() - last_line_time > _LINE_SECONDS:
                last_line_time = time.monotonic()
                lines = [_line(r) for r in status["recipes"]]
                if len(lines) > 1:
                    done, models = (
                        sum(r[n] for r in status["recipes"]) for n in ("done", "models")
                    )
                    lines.insert(0, f"{done} of {models} models done")
                print("; ".join(lines), file=sys.stderr, flush=True)
            return any(r["missing"] or r["running"] for r in status["recipes"])

        yield refresh


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _width(console: Console) -> int:
    """Returns the width of the table: that of the terminal, or of a usual one."""
    return console.width if console.is_terminal else _SCREEN_WIDTH


def _line(r: dict[str, Any]) -> str:
    time_left = (
        f", {format_duration(r['seconds_left'])} left" if r["seconds_left"] is not None else ""
    )
    num_given_up = len(r["set_aside"]) + len(r["diverged"])
    given_up = f", {num_given_up} set aside or diverged" if num_given_up else ""
    return f"{r['recipe']}: {r['done']} of {r['models']} done, {len(r['running'])} running{given_up}{time_left}"


def _count(r: dict[str, Any], name: str) -> int:
    return r[name] if isinstance(r[name], int) else len(r[name])


def _render(status: dict[str, Any], width: int) -> Group:
    """Returns the table and the notes below it, for a console of this width in characters."""
    recipes = status["recipes"]
    kinds = (
        "running",
        *(k for k in _OPTIONAL_COLUMNS if any(_count(r, k) for r in recipes)),
        "missing",
    )
    counts = (kind.replace("_", " ") for kind in kinds)
    table = Table(
        "recipe",
        "models",
        *counts,
        "per hour",
        "left",
        "tables",
        *[""] * (width >= _MIN_WIDTH_OF_BARS),
    )
    for column in table.columns[1:]:
        # On a narrow console, only the recipes' names, in the first column, are wrapped.
        column.justify, column.no_wrap = "right", True
    shown, others = _rows(recipes)
    lines = [(_label(r), [r], r["models_per_hour"], r["seconds_left"], r["tables"]) for r in shown]
    if others:
        lines.append((f"{len(others)} others", others, None, None, ""))
    if len(recipes) > 1:
        lines.append(("all", recipes, None, None, ""))
    for label, group, rate, left_seconds, tables in lines:
        requested, done = (sum(r[name] for r in group) for name in ("models", "done"))
        table.add_row(
            Text(label),  # a plain string would be parsed as markup
            f"{done} of {requested}",
            *(str(sum(_count(r, kind) for r in group)) for kind in kinds),
            format_rate(rate) if rate else "",
            format_duration(left_seconds) if left_seconds is not None else "",
            tables,
            *[ProgressBar(total=requested, completed=done, width=20)]
            * (width >= _MIN_WIDTH_OF_BARS),
        )
        if len(table.rows) == len(shown) + bool(others):
            table.add_section()
    frame_lines = 5 if len(recipes) > 1 else 4
    budget = _SCREEN_LINES - _NEXT_LINES - len(table.rows) - frame_lines
    return Group(table, *map(Text, fitting(_notes(status), budget)))


def _label(r: dict[str, Any]) -> str:
    """Returns the name of a recipe's folder, and the other names that commands gave the same recipe."""
    others = [name for name in r["names"] if name != r["recipe"]]
    if not others:
        return r["recipe"]
    more = ", ..." * (len(others) > _MAX_NAMES)
    return f"{r['recipe']} (also: {', '.join(others[:_MAX_NAMES])}{more})"


def _rows(recipes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the recipes that have a row of the table each, in their order, and those that share one.

    If there are too many, those that are not finished come first.
    """
    if len(recipes) <= _MAX_ROWS:
        return recipes, []
    finished = [r for r in recipes if r["done"] == r["models"] and r["tables"] in _FINISHED]
    unfinished = [r for r in recipes if r not in finished]
    chosen = [*unfinished, *finished][: _MAX_ROWS - 1]
    return [r for r in recipes if r in chosen], [r for r in recipes if r not in chosen]


def fitting(lines: list[str], budget: int) -> list[str]:
    """Returns as many lines as fit on the screen; of the kinds with the most lines, the first ones are kept.

    Args:
      lines: lines that begin with their kind, one kind after another.
      budget: the number of lines of the screen, each of which may be long enough for several of these.
    """
    kinds = {kind: [*of_kind] for kind, of_kind in itertools.groupby(lines, lambda x: x[:12])}
    kept = {kind: len(of_kind) for kind, of_kind in kinds.items()}

    def shown(kind: str) -> list[str]:
        of_kind, count = kinds[kind], kept[kind]
        more = [f"{kind}and {len(of_kind) - count} more: see lm-mia status --json"]
        return [*of_kind[:count], *(more if count < len(of_kind) else ())]

    def height(kind: str) -> int:
        return sum(-(-len(line) // _SCREEN_WIDTH) for line in shown(kind))

    while sum(map(height, kinds)) > budget:
        longest = max((kind for kind in kinds if kept[kind]), key=height, default=None)
        if longest is None:
            break
        kept[longest] -= 1
    return [line for kind in kinds for line in shown(kind)]


def _notes(status: dict[str, Any]) -> list[str]:
    """Returns a line for each running or failed model, each machine with failures, and each inconsistency."""
    lines = []
    is_one = len(status["recipes"]) == 1
    for r in status["recipes"]:
        of_recipe = "" if is_one else f" of {r['recipe']}"
        lines += [
            f"running     {x['model']}{of_recipe} by {x['job']} on {x['host']} since {x['since'][:19]} UTC"
            for x in r["running"]
        ]
        lines += [
            f"vanished    {x['model']}{of_recipe} by {x['job']} on {x['host']} since {x['since'][:19]} UTC; "
            f"log: {x['log']}"
            for x in r["vanished"]
        ]
        lines += [
            f"{kind.replace('_', ' '):11} {x['model']}{of_recipe}: {plural(x['failures'], 'failure')}, "
            f"the last on {x['host']}: "
            f"{x['reason']}; log: {x['log']}"
            for kind in ("failing", "set_aside")
            for x in r[kind]
        ]
        lines += [f"diverged    {x['model']}{of_recipe}: {x['log']}" for x in r["diverged"]]
        if r["answer"]:
            # The first sentence has the number; the page has the others.
            answer = r["answer"] if is_one else r["answer"].partition(". ")[0].rstrip(".") + "."
            lines.append(f"answer      {r['recipe']}: {answer}")
        lines += [
            f"machine     {host}: {plural(n['failures'], 'failure')}, {plural(n['models'], 'model')}"
            for host, n in sorted(r["hosts"].items())
            if n["failures"]
        ]
        if len(r["made_by"]) > 1:
            by = ", ".join(f"{version} ({count})" for version, count in r["made_by"].items())
            lines.append(f"versions    {r['recipe']}: made by several versions of lm_mia: {by}")
    populations = {r["population"]["path"]: r["population"] for r in status["recipes"]}
    for path, p in populations.items():
        built = f"{p['samples']} samples, sha256 {p['sha256']}"
        lines.append(f"population  {built if p['sha256'] else f'missing: {path}'}")
    remedy = (
        ": run `lm-mia report` with the same --config and --workdir to make it again"
        if status["report"].startswith("older")
        else ""
    )
    if pieces := status["pieces"]["files"]:
        size = format_bytes(status["pieces"]["bytes"])
        lines.append(
            f"results     {size} of attacks in {pieces} files; `lm-mia rm unused` deletes those that the config does "
            "not ask for"
        )
    lines.append(f"report      {status['report']}{remedy}")
    lines += [
        f"other       {path}: a recipe of the workdir that the config does not request"
        for path in status["others"]
    ]
    return sorted(lines, key=lambda line: _KINDS.index(line[:12].strip()))
