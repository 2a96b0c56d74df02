"""Writes the tables of published runs in docs/results, and the pages that are generated from them.

    python docs/results_of_runs.py FOLDER [--check]

FOLDER has the workdirs that `python -m benchmarks.standard_workdirs FOLDER` made, and FOLDER.csv its record of their
commands. The tables are:

- claims.csv: the claims of all figures and their verdicts, from tables/claims.csv of the workdirs
- numbers.csv: the numbers that papers print and their counterparts in our figures, if they are comparable
- runs.csv: each command, its minutes, its stages, its models and the versions of packages
- tables/NAME.csv: some tables of papers, as they were drawn
- tables/causal-errors.csv: the errors of causal estimators

The pages are those of docs/figures_page.py and docs/release_page.py. With --check nothing is written, and the exit code
is 1 if a table or a page is not what this script would write.
"""

import argparse
import datetime
import functools
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import figures_page
import generated_page
import pandas as pd
import release_page

from analysis import papers
from analysis.experiments import MODULES
from analysis.experiments.causal import zero_run
from benchmarks.standard_workdirs import STANDARD
from lm_mia import events
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.unchanged import Made
from lm_mia.config import recipe as recipes
from lm_mia.config import training_samples
from lm_mia.errors import UserError, run_action

COLUMNS_OF_CLAIMS = (
    *("figure", "statement", "verdict", "p_value", "p_holm", "value", "low", "high"),
    *("over", "not_covered", "finding", "commit"),
)
COLUMNS_OF_NUMBERS = (
    *("figure", "number", "location", "paper", "paper_std"),
    *("here", "here_std", "here_low", "here_high", "commit"),
)
CAUSAL_ERRORS = figures_page.TABLES / "causal-errors.csv"
COLUMNS_OF_RUNS = (
    *("workdir", "command", "minutes", *(f"{stage}_seconds" for stage in release_page.STAGES)),
    *("models", "fewest_parameters", "most_parameters", "fewest_samples", "most_samples"),
    *("commit", "python", "jax", "numpy", "scipy", "cpu_cores"),
)


def main(argv: Sequence[str]) -> int:
    """Writes the tables and pages, or compares them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    options = parser.parse_args(argv)
    return run_action(lambda: _publish(options.folder.resolve(), options.check), argv)


def _publish(folder: Path, check: bool) -> int:
    commands = read_commands(folder)
    for warning in warnings(folder, commands):
        print(warning, file=sys.stderr)
    tables = {
        figures_page.CLAIMS: lambda: _csv(claims_of(folder, commands)),
        figures_page.NUMBERS: lambda: _csv(numbers_of(folder, commands)),
        release_page.RUNS: lambda: _csv(runs_of(folder, commands)),
        **{
            figures_page.TABLES / f"{name}.csv": functools.partial(drawn_table, folder, name)
            for name in figures_page.PRINTED
        },
        CAUSAL_ERRORS: lambda: _csv(causal_errors(folder)),
    }
    # The pages are made from the tables, which are written first.
    return generated_page.write(
        {**tables, **figures_page.pages(), **release_page.pages()}, check=check
    )


def read_commands(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of FOLDER.csv.

    Raises:
      UserError: a command of a standard workdir is missing.
    """
    path = folder.with_name(f"{folder.name}.csv")
    rows = pd.read_csv(path, dtype=str, keep_default_na=False) if path.exists() else pd.DataFrame()
    commands: list[dict[str, str]] = [
        {str(name): value for name, value in row.items()} for row in rows.to_dict("records")
    ]
    missing = [
        standard.name
        for standard in STANDARD
        if len([row for row in commands if row["workdir"] == standard.name])
        < len(standard.commands)
    ]
    if missing:
        raise UserError(
            f"{path}: commands of {', '.join(missing)} are missing; "
            f"run python -m benchmarks.standard_workdirs {folder}"
        )
    return commands


def warnings(folder: Path, commands: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields sentences on what keeps the results from being those of one commit and of uninterrupted commands."""
    commits = dict.fromkeys(row["commit"] for row in commands)
    if len(commits) > 1:
        yield f"warning: the commands ran with several commits: {', '.join(commits)}"
    if changed := [commit for commit in commits if not commit or commit.endswith("+")]:
        yield f"warning: the code was not that of a commit: {', '.join(changed) or 'no checkout'}"
    for row in commands:
        if not row["minutes"]:
            yield f"warning: {row['workdir']}: {row['command']} was interrupted and has no minutes"
    for name, record in _records(folder, commands):
        if record["later"]:
            yield f"warning: {name}: commands of another version ran in the workdir later"


def claims_of(folder: Path, commands: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Returns the rows of claims.csv."""
    tables = []
    for name, commit in _commit_by_workdir(commands).items():
        path = folder / name / "tables" / "claims.csv"
        if path.exists():
            tables.append(pd.read_csv(path).assign(commit=commit))
    claims = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return claims.reindex(columns=[*COLUMNS_OF_CLAIMS]).sort_values("figure", kind="stable")


def numbers_of(folder: Path, commands: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Returns the rows of numbers.csv; numbers without a comparable counterpart are left out."""
    rows = []
    for workdir, commit in _commit_by_workdir(commands).items():
        made = Made(folder / workdir)
        for figure in filter(papers.name_of, MODULES):
            drawing = made.value(f"figure {figure}")
            if drawing is None:
                continue
            values = {key: ("here", "here_std", v) for key, v in drawing["drawing"]["ours"].items()}
            ranges = drawing["drawing"]["our_ranges"]
            values |= {key: ("here_low", "here_high", v) for key, v in ranges.items()}
            for key, number in papers.item(figure).numbers.items():
                if key not in values or key in drawing["not_comparable"]:
                    continue
                first, second, (value, other) = values[key]
                if value == value:
                    rows.append(
                        {
                            "figure": figure,
                            "number": number.description,
                            "location": number.location,
                            "paper": number.value,
                            "paper_std": number.std,
                            first: value,
                            second: other,
                            "commit": commit,
                        }
                    )
    numbers = pd.DataFrame(rows, columns=[*COLUMNS_OF_NUMBERS])
    return numbers.sort_values("figure", kind="stable")


def runs_of(folder: Path, commands: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Returns the rows of runs.csv, one for each command."""
    rows = [_run(folder, commands, number) for number in range(len(commands))]
    return pd.DataFrame(rows, columns=[*COLUMNS_OF_RUNS])


def drawn_table(folder: Path, name: str) -> str:
    """Returns a table of a paper as CSV, with the cells that the report shows.

    Raises:
      UserError: no workdir has the table.
    """
    workdir = folder / figures_page.config_name(name.partition("_")[0])
    path = workdir / "tables" / f"{name}.md"
    if not path.exists():
        raise UserError(f"{path}: missing; run lm-mia report --workdir={workdir}")
    headings, _, *rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return _csv(pd.DataFrame(rows, columns=headings))


def causal_errors(folder: Path) -> pd.DataFrame:
    """Returns the rows of causal-errors.csv: the truth, and of each estimator estimate minus truth, over all models."""
    [path] = (folder / "causal" / "recipes").glob(f"*/tables/{zero_run.TABLE}")
    runs = pd.read_csv(path)
    facts = json.loads((path.parent / "zero_run.json").read_text(encoding="utf-8"))
    position = {name: i for i, name in enumerate(runs["model"].unique())}
    runs["pair"] = runs["model"].map(position) // (2 if facts["pairs"] else 1)
    rows = []
    runs["attack"] = pd.Categorical(runs["attack"], zero_run.ATTACKS)
    runs = runs.sort_values("attack", kind="stable")
    for _, of_shift in runs.groupby(
        ["attack", "shift", "strength"], sort=False, dropna=False, observed=True
    ):
        first = of_shift.iloc[0]
        setting = {
            "Attack": attack_name(first["attack"]),
            "Shift": zero_run.shift_title(first["shift"], first["strength"]),
        }
        truth = of_shift[of_shift["estimator"] == "truth"]
        values = {title: f"{truth[name].mean():.3f}" for name, title in zero_run.METRICS.items()}
        rows.append(setting | {"Estimator": "Truth"} | values)
        for name, title in zero_run.ESTIMATOR_TITLES.items():
            estimates = of_shift[of_shift["estimator"] == name]
            if not estimates.empty:
                rows.append(setting | {"Estimator": title} | _errors(of_shift, name, estimates))
    return pd.DataFrame(rows)


def _errors(of_shift: pd.DataFrame, name: str, estimates: pd.DataFrame) -> dict[str, str]:
    """Returns the cells of one estimator, such as "+0.004 ± 0.011"; "–" for what it does not estimate."""
    cells = {}
    for metric, title in zero_run.METRICS.items():
        error = zero_run.mean_error(zero_run.errors(of_shift, metric)[name].tolist())
        interval = f"{error.mean:+.3f} ± {error.high - error.mean:.3f}"
        cells[title] = interval if error.mean == error.mean else "–"
    count = estimates["effective_nonmembers"].mean()
    known = estimates["has_overlap"].dropna().astype(str)
    cells["Effective non-members"] = f"{count:.0f}" if count == count else "–"
    cells["No overlap"] = f"{known.isin(['False', '0', '0.0']).mean():.0%}" if len(known) else "–"
    return cells


def _run(folder: Path, commands: Sequence[Mapping[str, str]], number: int) -> dict[str, Any]:
    """Returns the row of a command: what the log of its workdir has from its beginning until the next one began."""
    command = commands[number]
    workdir = folder / command["workdir"]
    began = [_seconds(c["began"]) for c in commands if c["workdir"] == command["workdir"]]
    end = min((time for time in began if time > _seconds(command["began"])), default=float("inf"))
    log = [
        (time, event)
        for time, event in events.read(workdir, _is_counted)
        if _seconds(command["began"]) <= time < end
    ]
    records = dict(_records(folder, [command]))
    used = [
        records[f"{command['workdir']}/{name}"]
        for name in dict.fromkeys(e["recipe"] for _, e in log if e["event"] == "models")
    ]
    sizes = [record["model_size"]["kernels"] for record in used]
    samples = [training_samples(recipes.from_dict(record["config"])) for record in used]
    trained = {(e["recipe"], e["model"]) for _, e in log if e["event"] == "model_trained"}
    packages = next((record["packages"] for record in records.values()), {})
    is_whole = bool(command["minutes"])
    return {
        "workdir": command["workdir"],
        "command": command["command"],
        "minutes": float(command["minutes"]) if is_whole else None,
        **(_stage_seconds(log) if is_whole else {}),
        "models": len(trained),
        "fewest_parameters": min(sizes, default=""),
        "most_parameters": max(sizes, default=""),
        "fewest_samples": min(samples, default=""),
        "most_samples": max(samples, default=""),
        "commit": _short(command["commit"]),
        "python": command["python"],
        **{name: packages.get(name, "") for name in ("jax", "numpy", "scipy")},
        "cpu_cores": command["cpu_cores"],
    }


_COUNTED = (b'"stage"', b'"models"', b'"model_trained"', b'"model_scored"')


def _is_counted(line: bytes) -> bool:
    return any(event in line for event in _COUNTED)


def _stage_seconds(log: Sequence[tuple[float, Mapping[str, Any]]]) -> dict[str, float]:
    """Returns the seconds of each stage that ran; of "models", from its beginning to the last model."""
    seconds: dict[str, float] = {}
    for _, event in log:
        if event["event"] == "stage":
            name = f"{event['stage']}_seconds"
            seconds[name] = seconds.get(name, 0.0) + event["seconds"]
    made = [time for time, e in log if e["event"] in ("model_trained", "model_scored")]
    if made:
        seconds["models_seconds"] = max(made) - min(t for t, e in log if e["event"] == "models")
    return seconds


def _records(
    folder: Path, commands: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (WORKDIR/RECIPE, config.json) of the recipes of the workdirs of some commands."""
    for name in dict.fromkeys(command["workdir"] for command in commands):
        for path in sorted((folder / name / "recipes").glob("*/config.json")):
            yield f"{name}/{path.parent.name}", json.loads(path.read_text(encoding="utf-8"))


def _commit_by_workdir(commands: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns workdir -> commit of its last command, which drew its figures."""
    return {command["workdir"]: _short(command["commit"]) for command in commands}


def _short(commit: str) -> str:
    """Returns the first digits of a commit, with "+" if there were uncommitted changes."""
    return commit[:8] + "+" * commit.endswith("+")


@functools.cache
def _seconds(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()


def _csv(table: pd.DataFrame) -> str:
    text = io.StringIO()
    table.to_csv(text, index=False, float_format="%.4g", lineterminator="\n")
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
