"""``launch status``: rows done, running, failed and missing, by recipe, from what is in the folders alone."""

import contextlib
import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launch import heartbeats, jobs
from launch.jobs import Sweep, Task
from lm_mia.data.subsets import Row
from lm_mia.run import inventory, plan

_LINE_SECONDS = 10.0  # between lines where there is no terminal
_BAD = ("vanished", "failing", "set_aside", "diverged")
_WIDE = 100  # characters of a console that has room for bars
_LAST = 32  # rows over which the rate is taken


def of_task(task: Task) -> dict[str, Any]:
    """What is known of a recipe, as plain values.

    Returns:
      ``rows`` wanted, ``done``, ``missing``; ``running``: a dict each, with row, job, host, since; ``vanished``: the
      same of jobs that no longer say that they are alive; ``failing``: failed and to be tried again; ``set_aside`` and
      ``diverged``, each with reason and log; ``rows_per_hour`` and ``seconds_left``, None where unknown; ``hosts``:
      rows and failures by machine; ``made_by``: rows by version of lm_mia.
    """
    rows, recipe = task.rows, task.recipe()
    found: dict[str, Any] = {**jobs.as_json(task), "rows": len(rows), "done": 0}
    found |= {name: [] for name in ("running", "vanished", "failing", "set_aside", "diverged")}
    found |= {"missing": len(rows), "rows_per_hour": None, "seconds_left": None, "hosts": {}}
    found |= {"made_by": {}, "population": task.population.exists()}
    if recipe is None:
        return found
    stored = task.workdir.check(task.config)
    unscored = {str(row) for row in inventory.unscored(task.config, recipe, rows)}
    found["done"] = len(rows) - len(unscored)
    for _, record, touched_seconds in heartbeats.running(recipe):
        lost = time.time() - touched_seconds > heartbeats.LOST_SECONDS
        kind = "vanished" if lost else "running"
        found[kind] += [
            {"row": row, "since": since, **{k: record[k] for k in ("job", "host", "pid", "log")}}
            for row, since in record["rows"].items()
            if row in unscored
        ]
    for row in rows:
        _failures(found, recipe, row, str(row) in unscored)
    given_up = {f["row"] for f in found["set_aside"] + found["diverged"]}
    found["missing"] = len(unscored - given_up - {r["row"] for r in found["running"]})
    _log(found, task, recipe, stored)
    return found


def _failures(found: dict[str, Any], recipe: Path, row: Row, unscored: bool) -> None:
    """Adds how a row failed, if it did."""
    failures = heartbeats.failures(recipe, row)
    for failure in failures:
        _host(found, failure["host"])["failures"] += 1
    if not unscored:
        return
    diverged = inventory.diverged(recipe, row)
    if diverged.exists():
        found["diverged"].append({"row": str(row), "reason": "diverged", "log": str(diverged)})
    elif failures:
        kind = "set_aside" if heartbeats.set_aside(recipe, row) else "failing"
        last = {k: failures[-1][k] for k in ("reason", "log", "host", "job", "time")}
        found[kind].append({"row": str(row), "failures": len(failures), **last})


def _host(found: dict[str, Any], name: str) -> dict[str, int]:
    return found["hosts"].setdefault(name, {"rows": 0, "failures": 0})


def _log(found: dict[str, Any], task: Task, recipe: Path, stored: dict[str, Any] | None) -> None:
    """Adds what the log tells: rows an hour of late, the time left, and rows by machine and by version."""
    ended, longest_seconds = [], 0.0
    began = f"{stored['lm_mia']} {(stored['commit'] or '')[:9]}".strip() if stored else "unknown"
    for event in _events(task.folder / "metrics.jsonl", recipe.name):
        if event["event"] == "row_trained":
            longest_seconds = max(longest_seconds, event["seconds"])
        elif event.get("last"):
            ended.append(datetime.fromisoformat(event["time"]))
            version = event.get("version", began)  # `lm-mia run` says its own in config.json alone
            found["made_by"][version] = found["made_by"].get(version, 0) + 1
            if "host" in event:
                _host(found, event["host"])["rows"] += 1
    ended = sorted(ended)[-_LAST:]
    # Not over a pause, in which nothing was at work.
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(ended)]
    pauses = [i for i, gap in enumerate(gaps) if gap > 3 * longest_seconds + 60]
    gaps = gaps[pauses[-1] + 1 :] if pauses else gaps
    if sum(gaps) > 0:
        found["rows_per_hour"] = len(gaps) / sum(gaps) * 3600
        if found["running"]:
            left = found["missing"] + len(found["running"])
            found["seconds_left"] = left / found["rows_per_hour"] * 3600


def _events(path: Path, recipe: str) -> Iterator[dict[str, Any]]:
    """Rows that were trained and scored, by the log of a workdir."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            if b'"row_scored"' in line or b'"row_trained"' in line:
                with contextlib.suppress(ValueError):  # cut short by a full disk
                    event = json.loads(line)
                    if event.get("recipe") == recipe:
                        yield event


def gather(of: Sweep) -> dict[str, Any]:
    """{"recipes": one a recipe, as of `of_task`; "others": folders of recipes that the config does not ask for now}."""
    ours = {task.folder for task in of.tasks}
    places = [of.folder / "config.json", *sorted(of.folder.glob("*/config.json"))]
    others = [str(p.parent) for p in places if p.exists() and p.parent not in ours]
    return {"recipes": [of_task(task) for task in of.tasks], "others": others}


def show(of: Sweep, as_json: bool, watch: bool) -> None:
    """Prints where a sweep stands, once or until all rows are there or given up; changes nothing."""
    if as_json:
        print(json.dumps(gather(of), indent=1))
        return
    if not watch:
        _console().print(_picture(gather(of), _console().width))
        return
    with view(of) as refresh:
        while refresh():
            time.sleep(2)
    _console().print(_picture(gather(of), _console().width))


def summary(of: Sweep) -> int:
    """The last words of an engine: what was made, what was not, and what to do next; 3 if rows were given up."""
    found, console = gather(of), _console()
    console.print(_picture(found, console.width))
    given_up = any(r["set_aside"] or r["diverged"] for r in found["recipes"])
    if not given_up and all(r["done"] == r["rows"] for r in found["recipes"]):
        flags = [f"--config={of.config}", f"--workdir={of.folder}", *of.overrides]
        print(f"all rows are there; attack and report:\n  {shlex.join(['lm-mia', 'run', *flags])}")
    return heartbeats.GIVEN_UP if given_up else 0


@contextlib.contextmanager
def view(of: Sweep) -> Iterator[Callable[[], bool]]:
    """A live view while the block runs: what is to be called now and then, which says whether rows are left."""
    console, said = _console(), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def refresh() -> bool:
            nonlocal said
            found = gather(of)
            if console.is_terminal:
                live.update(_picture(found, console.width), refresh=True)
            elif time.monotonic() - said > _LINE_SECONDS:
                said = time.monotonic()
                lines = [_line(r) for r in found["recipes"]]
                if len(lines) > 1:
                    done, rows = (sum(r[n] for r in found["recipes"]) for n in ("done", "rows"))
                    lines.insert(0, f"{done} of {rows} done in all")
                print("; ".join(lines), file=sys.stderr, flush=True)
            return any(r["missing"] or r["running"] for r in found["recipes"])

        yield refresh


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _line(r: dict[str, Any]) -> str:
    """A recipe in a line."""
    left = f", {_time(r['seconds_left'])} left" if r["seconds_left"] is not None else ""
    bad = len(r["set_aside"]) + len(r["diverged"])
    given_up = f", {bad} given up" if bad else ""
    return f"{r['label']}: {r['done']} of {r['rows']} done, {len(r['running'])} running{given_up}{left}"


def _picture(found: dict[str, Any], width: int) -> Group:
    """Tables and lines for a person, on a console of so many characters."""
    recipes = found["recipes"]
    kinds = (
        "running",
        *(k for k in _BAD if any(r[k] for r in recipes)),
    )  # the others need no column
    names = ("recipe", "done", *(k.replace("_", " ") for k in kinds), "missing", "rows/h", "left")
    table = Table(*names, *[""] * (width >= _WIDE))
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True  # where room is short, labels are wrapped
    rows = [(r["label"], [r], r["rows_per_hour"], r["seconds_left"]) for r in recipes]
    for label, of, rate, left_seconds in [*rows, *[("all", recipes, None, None)] * (len(rows) > 1)]:
        wanted, done, missing = (sum(r[n] for r in of) for n in ("rows", "done", "missing"))
        bar = ProgressBar(total=wanted, completed=done, width=20)
        table.add_row(
            Text(label),  # a plain string would be read as markup
            f"{done} of {wanted}",
            *(str(sum(len(r[kind]) for r in of)) for kind in kinds),
            str(missing),
            plan.three_digits(rate) if rate else "",
            _time(left_seconds) if left_seconds is not None else "",
            *[bar] * (width >= _WIDE),
        )
        if len(table.rows) == len(recipes):
            table.add_section()
    return Group(table, *map(Text, _notes(found)))


def _notes(found: dict[str, Any]) -> list[str]:
    """A line for every row that is running or failed, for bad machines, and for what does not fit together."""
    lines = []
    for r in found["recipes"]:
        of = f" of {r['label']}" if len(found["recipes"]) > 1 else ""
        lines += [
            f"running   {x['row']}{of} by {x['job']} on {x['host']} since {x['since'][:19]} UTC"
            for x in r["running"]
        ]
        lines += [
            f"vanished  {x['row']} by {x['job']} on {x['host']} since {x['since']}; log: {x['log']}"
            for x in r["vanished"]
        ]
        lines += [
            f"failing   {x['row']} {x['failures']} times, last on {x['host']}: {x['reason']}; log: {x['log']}"
            for x in r["failing"]
        ]
        lines += [
            f"set aside {x['row']} after {x['failures']} failures, last on {x['host']}: {x['reason']}; log: {x['log']}"
            for x in r["set_aside"]
        ]
        lines += [f"diverged  {x['row']}: {x['log']}" for x in r["diverged"]]
        lines += [
            f"machine   {host}: {n['failures']} failures, {n['rows']} rows"
            for host, n in sorted(r["hosts"].items())
            if n["failures"]
        ]
        if len(r["made_by"]) > 1:
            by = ", ".join(f"{version} ({rows})" for version, rows in r["made_by"].items())
            lines.append(f"versions  {r['workdir']}: its rows are by several of lm_mia: {by}")
        if not r["population"]:
            lines.append(f"no population yet for {r['workdir']}")
    lines += [
        f"other     {path}: a recipe that the config does not ask for now"
        for path in found["others"]
    ]
    return lines


def _time(seconds: float) -> str:
    """Hours, minutes and seconds; days where it takes days."""
    days, rest = divmod(round(seconds), 86_400)
    return f"{days} d " * bool(days) + f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
