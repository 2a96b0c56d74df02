"""Reading a finished workdir: tables, settings and log; one clear line if one is missing."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import style
from matplotlib.figure import Figure

Record = dict[str, Any]

ATTACK_NAMES = {
    "lira_online": "LiRA",
    "lira_offline": "Offline LiRA",
    "rmia": "RMIA",
    "rmia_offline": "Offline RMIA",
    "rmia_simple": "Simple RMIA",
    "reference_calibrated": "Calibrated loss",
    "loss": "Loss",
    "zlib": "Zlib ratio",
    "min_k": "Min-K%",
    "min_k_plus_plus": "Min-K%++",
    "lowercase": "Lowercase",
}


class WorkdirError(Exception):
    """Something in the workdir is missing or broken; printed as one line, exit code 2."""


def attack_name(attack: str) -> str:
    """What figures and the page call an attack of the tables."""
    return ATTACK_NAMES.get(attack, attack.replace("_", " "))


def percent(share: float) -> str:
    """0.05 -> 5%, 0.001 -> 0.1%, 0.12345 -> 12.3%."""
    return f"{100 * share:.3g}%" if abs(share) < 0.9995 else f"{100 * share:.0f}%"


def table(
    workdir: Path, name: str, columns: Sequence[str] = (), verb: str = "attack"
) -> list[Record]:
    """The rows of tables/NAME, which must have these columns and is made by ``lm-mia VERB``."""
    path = _existing(workdir, f"tables/{name}")
    try:
        frame = pc.read_csv(path, _WHOLE, _LINES, _CELLS).to_pandas()
    except (ValueError, pa.ArrowException) as error:
        raise WorkdirError(
            f"{workdir}: tables/{name} is not a table ({type(error).__name__}); {_again(verb)}"
        ) from error
    _check(workdir, f"tables/{name}", list(frame.columns), columns, verb=verb)
    frame = frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def samples(
    workdir: Path, columns: Sequence[str], name: str = "samples.parquet"
) -> dict[str, np.ndarray]:
    """These columns of tables/NAME, one number a sample; votes are NaN where there are none."""
    path = _existing(workdir, f"tables/{name}")
    try:
        there = pq.read_schema(path).names
        _check(workdir, f"tables/{name}", there, columns)
        frame = pd.read_parquet(path, columns=list(columns))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise WorkdirError(f"{workdir}: tables/{name} cannot be read; {_again()}") from error
    return {c: frame[c].to_numpy() for c in columns}


def read_json(workdir: Path, name: str, fields: Sequence[str] = (), verb: str = "attack") -> Record:
    """The object in WORKDIR/NAME, which must have these fields and is made by ``lm-mia VERB``."""
    try:
        found = json.loads(_existing(workdir, name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkdirError(f"{workdir}: {name} is not JSON; {_again(verb)}") from error
    if not isinstance(found, dict):
        raise WorkdirError(f"{workdir}: {name} is no JSON object; {_again(verb)}")
    _check(workdir, name, list(found), fields, "field", verb)
    return found


def flip_facts(workdir: Path) -> Record:
    """tables/flips.json: what the tables are about.

    Its "config" holds the settings of the attack; its "references" and "replicas" are those that were there, which may
    be fewer than the config's.
    """
    name = "tables/flips.json"
    facts = read_json(workdir, name, ("recipe", "config", "first_target", *_FLIP_FACTS))
    if not isinstance(facts["config"], dict) or not re.fullmatch(
        r"recipe_\w+", str(facts["recipe"])
    ):
        raise WorkdirError(f"{workdir}: {name} names no recipe and settings; {_again()}")
    _check(workdir, f"{name} config", list(facts["config"]), _SETTINGS, "field")
    return facts


def run(workdir: Path) -> Record:
    """config.json: the command that began the workdir; its attack section may be older than the tables."""
    name = "config.json"
    found = read_json(workdir, name, ("config", "lm_mia", "packages", "commit", "later"))
    sections = found["config"] if isinstance(found["config"], dict) else {}
    needed = ("corpus", "tokenizer", "population", "model", "train")
    _check(workdir, f"{name} config", list(sections), needed, "section")
    return found


def require(workdir: Path, names: Iterable[str]) -> None:
    """WorkdirError for the first of these tables that is missing."""
    for name in names:
        _existing(workdir, f"tables/{name}")


def has(workdir: Path, name: str) -> bool:
    """Whether there is a tables/NAME, of those that are made when asked for."""
    return (workdir / "tables" / name).is_file()


def decides(facts: Record) -> bool:
    """Whether the coin-flip test can tell anything from a coin: with few replicas it rejects no split."""
    return facts["k_low"] > 0


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


def save(workdir: Path, drawn: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Writes WORKDIR/figures and returns the PNGs; takes away older files of a figure that is None."""
    written = {}
    for name, figure in drawn.items():
        if figure is None:
            style.remove(workdir / "figures", name)
        else:
            written[name] = style.save(figure, workdir / "figures", name)
    return written


def script(description: str | None, figures: Callable[[Path], Mapping[str, Figure | None]]) -> int:
    """Body of a figure script: writes WORKDIR/figures, prints the paths; returns the exit code."""
    workdir = parse_workdir(description)
    try:
        flip_facts(workdir)  # there only when all tables are of one attack
        for path in save(workdir, figures(workdir)).values():
            print(path)
    except WorkdirError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_workdir(description: str | None) -> Path:
    """The one argument of every script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workdir", type=Path, help="a workdir in which lm-mia attack has finished")
    return parser.parse_args().workdir


# Numbers are read as they were written, to the last digit; types are told from the whole file.
_WHOLE, _LINES = pc.ReadOptions(block_size=2**28), pc.ParseOptions(newlines_in_values=True)
_CELLS = pc.ConvertOptions(null_values=["", "nan", "NaN"], strings_can_be_null=True)
_FLIP_FACTS = ("references", "replicas", "k_low", "cutoff", "max_flip_rate", "left_out")
_SETTINGS = (
    *("references", "replicas", "fprs", "focus_fpr", "alpha", "variance", "band", "bootstraps"),
    *("resample_references", "attacks", "step"),
)


def _existing(workdir: Path, name: str) -> Path:
    if not workdir.is_dir():
        raise WorkdirError(f"{workdir}: no such folder; run lm-mia run first")
    path = workdir / name
    if path.is_file():
        return path
    if name.startswith("tables/") and _replicas(workdir) == 0:
        raise WorkdirError(
            f"{workdir}: attack.replicas=0, and tables of decisions are of replicas; run again with some"
        )
    raise WorkdirError(f"{workdir}: no {name}; run lm-mia attack first")


def _replicas(workdir: Path) -> object:
    """How many the last command asked for; None if that is not known."""
    if not (workdir / "config.json").is_file():
        return None
    return run(workdir)["config"].get("attack", {}).get("replicas")


def _check(
    workdir: Path,
    name: str,
    there: Sequence[str],
    needed: Sequence[str],
    what: str = "column",
    verb: str = "attack",
) -> None:
    lacking = [part for part in needed if part not in there]
    if lacking:
        raise WorkdirError(f"{workdir}: {name} has no {what} {', '.join(lacking)}; {_again(verb)}")


def _again(verb: str = "attack") -> str:
    return f"run lm-mia {verb} again"
