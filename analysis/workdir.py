"""Reading a finished workdir: tables, log and score store; one clear line if one is missing."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import style
import xarray as xr
from matplotlib.figure import Figure

Record = dict[str, Any]

ATTACK_NAMES = {
    "lira_online": "LiRA",
    "lira_offline": "LiRA, offline",
    "reference_calibrated": "Calibrated loss",
    "loss": "Loss",
}


class WorkdirError(Exception):
    """Something in the workdir is missing or broken; printed as one line, exit code 2."""


def attack_name(attack: str) -> str:
    """What figures and the page call an attack of the tables."""
    return ATTACK_NAMES.get(attack, attack.replace("_", " "))


def percent(share: float) -> str:
    """0.05 -> 5%, 0.001 -> 0.1%, 0.12345 -> 12.3%."""
    return f"{100 * share:.3g}%" if abs(share) < 0.9995 else f"{100 * share:.0f}%"


def table(workdir: Path, name: str, columns: Sequence[str] = ()) -> list[Record]:
    """The rows of tables/NAME, which must have these columns."""
    path = _existing(workdir, f"tables/{name}")
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=["", "nan", "NaN"])
    except (ValueError, UnicodeDecodeError) as error:
        raise WorkdirError(
            f"{workdir}: tables/{name} is not a table ({type(error).__name__}); {_AGAIN}"
        ) from error
    _check(workdir, name, list(frame.columns), columns)
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def samples(workdir: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """These columns of tables/samples.parquet."""
    path = _existing(workdir, "tables/samples.parquet")
    try:
        frame = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise WorkdirError(f"{workdir}: tables/samples.parquet cannot be read; {_AGAIN}") from error
    _check(workdir, "samples.parquet", list(frame.columns), columns)
    return {c: frame[c].to_numpy() for c in columns}


def read_json(workdir: Path, name: str) -> Record:
    """The object in WORKDIR/NAME."""
    try:
        return json.loads(_existing(workdir, name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkdirError(f"{workdir}: {name} is not JSON; {_AGAIN}") from error


def events(workdir: Path, kind: str) -> list[Record]:
    """The lines of metrics.jsonl of one event, in order; broken lines are skipped."""
    path = workdir / "metrics.jsonl"
    found: list[Record] = []
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == kind:
                found.append(event)
    return found


def scores(workdir: Path) -> xr.Dataset:
    """The score store of the one recipe in the workdir, opened lazily."""
    found = sorted(workdir.glob("recipe_*/scores.zarr"))
    if len(found) != 1:
        what = (
            "no recipe_*/scores.zarr"
            if not found
            else f"{len(found)} recipe_*/scores.zarr where one is expected"
        )
        raise WorkdirError(f"{workdir}: {what}; run lm-mia score first")
    try:
        return xr.open_zarr(found[0], chunks=None)
    except (OSError, ValueError, KeyError) as error:
        raise WorkdirError(f"{found[0]}: cannot be opened; run lm-mia score again") from error


def script(description: str | None, figures: Callable[[Path], Mapping[str, Figure]]) -> int:
    """Body of a figure script: writes WORKDIR/figures, prints the paths; returns the exit code."""
    workdir = parse_workdir(description)
    try:
        drawn = figures(workdir)
        for name, figure in drawn.items():
            print(style.save(figure, workdir / "figures", name))
    except WorkdirError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_workdir(description: str | None) -> Path:
    """The one argument of every script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workdir", type=Path, help="a workdir in which lm-mia attack has finished")
    return parser.parse_args().workdir


_AGAIN = "run lm-mia attack again"


def _existing(workdir: Path, name: str) -> Path:
    if not workdir.is_dir():
        raise WorkdirError(f"{workdir}: no such folder; run lm-mia run first")
    path = workdir / name
    if not path.is_file():
        raise WorkdirError(f"{workdir}: no {name}; run lm-mia attack first")
    return path


def _check(workdir: Path, name: str, there: Sequence[str], needed: Sequence[str]) -> None:
    lacking = [column for column in needed if column not in there]
    if lacking:
        raise WorkdirError(f"{workdir}: tables/{name} has no column {', '.join(lacking)}; {_AGAIN}")
