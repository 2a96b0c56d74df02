"""Takes a snapshot of all results of workdirs, and compares the results of other workdirs with it.

    python -m benchmarks.snapshot WORKDIR [WORKDIR ...] --out=FILE
    python -m benchmarks.snapshot WORKDIR [WORKDIR ...] --against=FILE

The first command writes the results to one file. The second command, mostly of another commit and on other workdirs,
says what is equal, what moved (with the largest differences), what is missing and what is new. Workdirs are matched by
the names of their folders. The exit code is 0 if nothing moved and nothing is missing, 1 otherwise, and 2 for mistakes
such as a missing workdir. `benchmarks/standard_workdirs.py` makes workdirs to compare.

What is read, and the name of each table:

- NAME: tables/NAME.csv and .parquet of the workdir: the tables of figures, claims and verdicts; if there are both, the
  second one is NAME.parquet
- RECIPE/NAME: the same for recipes/RECIPE/tables/, and imported_models.csv
- NAME.json, RECIPE/NAME.json: the JSON files among the tables, as one row
- NAME.tex, NAME.md: the LaTeX and Markdown files among the tables, with a row for each line
- RECIPE/population, RECIPE/validation_population, RECIPE/population.json: the samples and the manifest
- RECIPE/scores/VARIABLE: the score store, with a column for each model; RECIPE/scores/models: the seeds of the models
- report page: report.html, with a row for each paragraph, item, or row of a table

What is left out: images, pages of single samples (which show tables that are read), the log, checkpoints, tokens,
records of failures, logs, config.json, and `LEFT_OUT`.

Values are equal if they are the same number, text or truth value: the order of rows and columns and the format of the
file play no role. A column of a CSV file is numeric if all its texts are numbers; True and False are 1 and 0; empty
cells, empty texts and NaN are missing; -0.0 equals 0.0. Rows are matched by the columns that identify them, which are
found by adding columns from left to right, texts first, until all rows differ.
"""

import argparse
import contextlib
import csv
import dataclasses
import functools
import html.parser
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from lm_mia.atomic import replacing
from lm_mia.errors import UserError, run_action

Table = dict[str, np.ndarray]
"""Column -> values: int64, float64 (missing: NaN), or texts (object; missing: None)."""
Snapshot = dict[str, dict[str, Table]]
"""Name of the workdir -> name of the table -> table."""
_MISSING_CELLS = ("", "nan", "NaN")
"""The cells of a CSV table that stand for a missing value; other words, such as NA, are texts."""


@dataclasses.dataclass(frozen=True)
class Renames:
    """Maps names of a snapshot to the names that the current code gives to the same numbers.

    Each name is a regular expression that must match completely, and the new name may refer to its groups. None
    stands for what has been removed on purpose. An example:

        Renames(
            tables={r"(.+)/flip_shares": r"\\1/coin_flips", r"(.+)/models\\.json": None},
            columns={r".+/coin_flips": {r"tpr_at_(.+)_mean": r"tpr_\\1"}},
            values={"verdict": {"seen": "supported"}},
        )
    """

    tables: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Old name of a table -> new name."""
    columns: Mapping[str, Mapping[str, str | None]] = dataclasses.field(default_factory=dict)
    """New name of a table -> old name of a column -> new name."""
    values: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """New name of a column -> old text -> new text; these are texts and not regular expressions."""


RENAMES = Renames()

LEFT_OUT = {
    # Settings are not results. Digests, versions and paths differ between commits and machines.
    ".json": r"(.+\.)?(config|settings|files|format|tables|packages|versions|commit|lm_mia|path|attack_ids?)([.[].*)?"
    r"|.*sha256",
    # Durations. The section on how the results were produced and the date of the page are left out as elements.
    "report page": r"Training time: .*",
}
"""End of the name of a table -> the fields of JSON files and the texts of pages that are not results."""
_ELEMENTS_LEFT_OUT = ("made", "contents")
"""Values of the attributes class and aria-labelledby of elements of the page that are not results."""
_PATH = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+[\w.@+-]*")
"""An absolute path in the text of a page, which is shown as PATH."""

_ATTACK_SETTINGS = (
    *("attack", "references", "reference_models", "reference_part", "in_and_out_among", "observed"),
    *("step", "rmia_samples", "rmia_gamma", "rmia_a", "rmia_a_is_tuned"),
)
"""The columns of targets.csv that an attack_id stands for; an attack_id itself contains a hash."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?inf", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_SHOWN = 10
"""The largest number of columns or rows of a table that are printed one by one."""


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snapshot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workdirs", metavar="WORKDIR", nargs="+", type=Path)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the snapshot to this file")
    parser.add_argument(
        "--against", metavar="FILE", type=Path, help="compare with the snapshot in this file"
    )
    options = parser.parse_args(argv)
    return run_action(lambda: _run(options.workdirs, options.out, options.against), argv)


def _run(workdirs: Sequence[Path], out: Path | None, against: Path | None) -> int:
    problems = _problems(workdirs)
    if not out and not against:
        problems.append("--out: missing; add --out=FILE, or --against=FILE to compare")
    old = {}
    if against:
        try:
            old = load(against)
        except UserError as error:
            problems.append(str(error))
        else:
            names = {_name(workdir) for workdir in workdirs}
            if names != old.keys():
                problems.append(
                    f"--against={against}: it has the workdirs {', '.join(sorted(old))}, which are not "
                    f"{', '.join(sorted(names))}; name the same ones"
                )
    if problems:
        raise UserError("\n".join(problems))
    new = {_name(workdir): read_workdir(workdir) for workdir in workdirs}
    if out:
        save(new, out)
        for name, tables in new.items():
            print(f"{name}: {_count(len(tables), 'table')}, {_values(tables):,} values")
    if not against:
        return 0
    comparisons = compare(old, new, RENAMES)
    print(*report(comparisons), sep="\n")
    return int(any(c.fails for c in comparisons.values()))


def _problems(workdirs: Sequence[Path]) -> list[str]:
    problems = [
        f"{workdir}: there is no workdir with recipes; check the path"
        for workdir in workdirs
        if not (workdir / "config.json").is_file()
    ]
    names = [_name(workdir) for workdir in workdirs]
    problems += [
        f"{name}: two workdirs have this folder name, by which they are matched; rename one of them"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    return problems


def _name(workdir: Path) -> str:
    return workdir.resolve().name


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _values(tables: Mapping[str, Table]) -> int:
    return sum(values.size for table in tables.values() for values in table.values())


# Reading.


def read_workdir(workdir: Path) -> dict[str, Table]:
    """Reads the results of a workdir.

    Returns:
      The tables by name; see the docstring of the module.

    Raises:
      UserError: the workdir has no tables, a file cannot be read, or two files would have the same name.
    """
    tables = dict(_named(_read_folder(workdir / "tables")))
    if (workdir / "report.html").is_file():
        tables["report page"] = _read_page(workdir / "report.html")
    for recipe_dir in sorted((workdir / "recipes").glob("*/")):
        of_recipe = dict(_named(_read_recipe(recipe_dir)))
        for name, table in _with_attacks_described(of_recipe).items():
            tables[f"{recipe_dir.name}/{name}"] = table
    if not any("/scores/" not in name and "/population" not in name for name in tables):
        raise UserError(f"{workdir}: there are no tables in it; run lm-mia attack and report first")
    return tables


def _named(tables: Iterable[tuple[str, Path, Table]]) -> Iterator[tuple[str, Table]]:
    """Yields names and tables; raises UserError if two files would have the same name."""
    seen: dict[str, Path] = {}
    for name, path, table in tables:
        if name in seen:
            raise UserError(f"{path}: {seen[name].name} is the same table; remove one of them")
        seen[name] = path
        yield name, table


def _read_recipe(recipe_dir: Path) -> Iterator[tuple[str, Path, Table]]:
    yield from _read_folder(recipe_dir / "tables")
    imported = recipe_dir / "imported_models.csv"
    if imported.is_file():
        yield imported.stem, imported, _read_csv(imported)
    if (recipe_dir / "config.json").is_file():
        with _readable(recipe_dir / "config.json"):
            record = json.loads((recipe_dir / "config.json").read_text(encoding="utf-8"))
        shared = record.get("config", {}).get("population", {}).get("folder")
        folder = Path(shared) if shared else recipe_dir.parents[1] / "populations"
        population_dir = folder / str(record.get("population"))
        for name, file in (
            ("population", "samples.parquet"),
            ("validation_population", "validation_samples.parquet"),
            ("population.json", "manifest.json"),
        ):
            if (path := population_dir / file).is_file():
                yield name, path, _read_file(path)
    if (store := recipe_dir / "scores.zarr").is_dir():
        for name, table in _read_scores(store):
            yield f"scores/{name}", store, table


def _read_folder(folder: Path) -> Iterator[tuple[str, Path, Table]]:
    """Yields the name, path and content of each table in a folder and its subfolders."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in _READERS and path.is_file():
            name = path.relative_to(folder)
            # Two tables of one evaluation may have the same name and different formats.
            is_table = path.suffix == ".csv" or (
                path.suffix == ".parquet" and not path.with_suffix(".csv").is_file()
            )
            if table := _read_file(path):  # not a JSON file without results
                yield (name.with_suffix("") if is_table else name).as_posix(), path, table


def _read_file(path: Path) -> Table:
    with _readable(path):
        return _READERS[path.suffix](path)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raises UserError if the content of a file is not what it should be."""
    try:
        yield
    except (ValueError, pa.ArrowException) as error:
        raise UserError(f"{path}: it cannot be read ({error}); make it again") from error


def _read_csv(path: Path) -> Table:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    if any(len(row) != len(header) for row in rows):
        raise ValueError("rows of different lengths")
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return {
        name: _from_texts([None if v in _MISSING_CELLS else v for v in values])
        for name, values in zip(header, columns, strict=True)
    }


def _read_parquet(path: Path) -> Table:
    return _from_arrow(pq.read_table(path))


def _read_json(path: Path) -> Table:
    fields = _fields("", json.loads(path.read_text(encoding="utf-8")))
    is_result = {name: not re.fullmatch(LEFT_OUT[".json"], name) for name, _ in fields}
    return {name: _from_objects([value]) for name, value in fields if is_result[name]}


def _fields(name: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the numbers and texts of a JSON value, by names such as `settings.fprs[0]`."""
    if isinstance(value, dict):
        items = [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        return [(name, value)]
    return [field for key, item in items for field in _fields(key, item)]


def _read_lines(path: Path) -> Table:
    return {"text": _from_texts(path.read_text(encoding="utf-8").splitlines())}


_READERS = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".json": _read_json,
    ".tex": _read_lines,
    ".md": _read_lines,
}


def _read_scores(path: Path) -> Iterator[tuple[str, Table]]:
    """Yields the variables of a score store, with a column for each model, and the table of the models."""
    with xr.open_zarr(path, chunks=None) as scores:
        of_model = [name for name, c in scores.coords.items() if c.dims == ("model",)]
        # Digests differ with the last bit of any score, and the scores themselves are compared.
        named = [name for name in of_model if name != "digest"]
        yield "models", {str(name): _from_objects(scores[name].values) for name in named}
        for name, variable in scores.data_vars.items():
            if "model" not in variable.dims:
                frame = variable.to_dataframe()
            else:
                seeds = [c for c in of_model if c != "model"]
                frame = variable.drop_vars(seeds).to_dataset("model").to_dataframe()
            indices = [*filter(None, frame.index.names)]
            frame = frame.reset_index([i for i in indices if i not in frame.columns])
            yield str(name), {str(c): _from_objects(v.to_numpy()) for c, v in frame.items()}


def _read_page(path: Path) -> Table:
    parser = _PageTexts()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()
    texts = [_PATH.sub("PATH", text) for text in parser.texts]
    shown = [text for text in texts if not re.fullmatch(LEFT_OUT["report page"], text)]
    return {"text": _from_texts(shown)}


_BLOCKS = {
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "p",
        "pre",
        "li",
        "dt",
        "tr",
        "ul",
        "ol",
        "dl",
        "table",
        "div",
    ),
    *("caption", "figcaption", "figure", "section", "details", "summary"),
}
_BEFORE_CELLS = {"td": " | ", "th": " | ", "dd": ": ", "br": " "}
_HIDDEN = {"head", "script", "style", "svg"}


class _PageTexts(html.parser.HTMLParser):
    """Collects the texts of a page in `texts`: one for each paragraph, item, heading or row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._text = ""
        self._hidden_by, self._depth = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden_by:
            self._depth += tag == self._hidden_by
            return
        words = {
            w for k, v in attrs if k in ("class", "aria-labelledby") for w in (v or "").split()
        }
        if tag in _HIDDEN or words & {*_ELEMENTS_LEFT_OUT}:
            self._hidden_by, self._depth = tag, 1
        elif tag in _BLOCKS:
            self._end_text()
        else:
            self._text += _BEFORE_CELLS.get(tag, "")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden_by:
            self._depth -= tag == self._hidden_by
            if not self._depth:
                self._hidden_by = ""
        elif tag in _BLOCKS and tag != "dt":  # a dt continues with its dd
            self._end_text()

    def handle_data(self, data: str) -> None:
        if not self._hidden_by:
            self._text += data

    def close(self) -> None:
        super().close()
        self._end_text()

    def _end_text(self) -> None:
        text = " ".join(self._text.split()).removeprefix("| ").replace(" : ", ": ")
        if text:
            self.texts.append(text)
        self._text = ""


def _with_attacks_described(tables: dict[str, Table]) -> dict[str, Table]:
    """Returns the tables of a recipe with the settings of each attack instead of its attack_id."""
    targets = tables.get("targets", {})
    if "attack_id" not in targets:
        return tables
    settings = [name for name in _ATTACK_SETTINGS if name in targets]
    described: dict[Any, str] = {}
    for i, attack_id in enumerate(targets["attack_id"]):
        shown = [(name, _text(targets[name][i])) for name in settings]
        described[attack_id] = ", ".join(f"{name}={value}" for name, value in shown if value)
    if len({*described.values()}) < len(described):  # something else determines these attacks
        return tables
    result: dict[str, Table] = {}
    for name, table in tables.items():
        folder, _, file = name.rpartition("/")
        attack_id = file.removesuffix(".json")
        if folder == "target_scores" and attack_id in described:
            name = f"{folder}/{described[attack_id]}{file.removeprefix(attack_id)}"
        if "attack_id" in table:
            ids = [described.get(value, value) for value in table["attack_id"]]
            table = table | {"attack_id": _from_texts(ids)}
        result[name] = table
    return result


def _from_arrow(table: pa.Table) -> Table:
    """Converts columns; a column of lists becomes one column for each position."""
    result: Table = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not hasattr(column.type, "value_type") or pa.types.is_dictionary(column.type):
            result[name] = _from_objects(column.to_pandas().to_numpy())
            continue
        rows = [row or () for row in column.to_pylist()]
        for i in range(max(map(len, rows), default=0)):
            result[f"{name}[{i}]"] = _from_objects([r[i] if i < len(r) else None for r in rows])
    return result


def _from_objects(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Converts a column of any type to int64, float64 or texts."""
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    present = [v for v in values if v is not None]
    if present and all(isinstance(v, (bool, int, float, np.number, np.bool_)) for v in present):
        return np.array([np.nan if v is None else v for v in values], float)
    return _from_texts([None if v is None or v != v else str(v) for v in values])


def _from_texts(values: Sequence[str | None]) -> np.ndarray:
    """Converts texts to numbers if all of them are numbers or all of them are True or False."""
    present = [v for v in values if v]
    if all(v in ("True", "False") for v in present):
        present_as: Any = {"True": 1, "False": 0}.__getitem__
        is_integer = True
    elif all(map(_NUMBER.fullmatch, present)):
        is_integer = all(map(_INTEGER.fullmatch, present))
        present_as = int if is_integer else float
    else:
        return np.array([v or None for v in values], object)
    if is_integer and len(present) == len(values):
        return np.array([present_as(v) for v in present], np.int64)
    return np.array([present_as(v) if v else np.nan for v in values], np.float64)


def _text(value: Any) -> str:
    """Returns a value as text, the same for 1 and 1.0; missing values are empty."""
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else repr(float(value))


# The file.


def save(snapshot: Snapshot, path: Path) -> None:
    """Writes a snapshot: a zip archive with a Parquet file WORKDIR/TABLE.parquet for each table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for workdir, tables in snapshot.items():
            for name, table in tables.items():
                buffer = io.BytesIO()
                columns = {c: _to_arrow(values) for c, values in table.items()}
                pq.write_table(pa.table(columns), buffer, compression="zstd")
                archive.writestr(f"{workdir}/{name}.parquet", buffer.getvalue())


def _to_arrow(values: np.ndarray) -> pa.Array:
    return pa.array(values, pa.string() if values.dtype == object else None)


def load(path: Path) -> Snapshot:
    """Reads a snapshot; raises UserError if there is none."""
    snapshot: Snapshot = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                workdir, _, table = name.removesuffix(".parquet").partition("/")
                content = pq.read_table(io.BytesIO(archive.read(name)))
                snapshot.setdefault(workdir, {})[table] = {
                    c: _from_snapshot(content[c]) for c in content.column_names
                }
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; write it with --out") from error
    except (zipfile.BadZipFile, pa.ArrowException) as error:
        raise UserError(f"{path}: it is not a snapshot; write it again with --out") from error
    return snapshot


def _from_snapshot(column: pa.ChunkedArray) -> np.ndarray:
    is_text = pa.types.is_string(column.type)
    return np.array(column.to_pylist(), object) if is_text else column.to_numpy()


# Comparing.


@dataclasses.dataclass(frozen=True)
class Moved:
    """The values of a column that moved."""

    column: str
    count: int
    of: int
    difference: float
    """The largest absolute difference between two numbers; NaN if there is none."""
    relative: float
    """The largest difference relative to the old number; NaN if there is none."""
    worst: str
    """The row of the largest difference, or the first row that moved, with the old and the new value."""
    appeared: str
    """The first row in which a number became missing or infinite or the reverse; empty if there is none."""


@dataclasses.dataclass(frozen=True)
class TableComparison:
    """A table of a snapshot, compared with the table of the same name."""

    equal: int = 0
    """Number of values that are equal."""
    moved: Sequence[Moved] = ()
    missing_columns: Sequence[str] = ()
    new_columns: Sequence[str] = ()
    missing_rows: Sequence[str] = ()
    """The rows, by the columns that identify them."""
    new_rows: Sequence[str] = ()

    @property
    def fails(self) -> bool:
        """Whether something moved or is missing."""
        return bool(self.moved or self.missing_columns or self.missing_rows)


@dataclasses.dataclass(frozen=True)
class WorkdirComparison:
    """The tables of a workdir, compared with those of a snapshot."""

    tables: Mapping[str, TableComparison]
    missing: Sequence[str]
    new: Sequence[str]

    @property
    def fails(self) -> bool:
        """Whether something moved or is missing."""
        return bool(self.missing) or any(table.fails for table in self.tables.values())


def compare(old: Snapshot, new: Snapshot, renames: Renames) -> dict[str, WorkdirComparison]:
    """Compares the workdirs of two snapshots, which have the same names.

    Raises:
      UserError: two tables or columns have the same name after they are renamed.
    """
    result = {}
    for workdir, new_tables in new.items():
        old_tables = rename(old[workdir], renames)
        tables = {
            name: compare_table(table, new_tables[name])
            for name, table in old_tables.items()
            if name in new_tables
        }
        missing = [name for name in old_tables if name not in new_tables]
        added = [name for name in new_tables if name not in old_tables]
        result[workdir] = WorkdirComparison(tables, missing, added)
    return result


def rename(tables: Mapping[str, Table], renames: Renames) -> dict[str, Table]:
    """Returns the tables of a workdir under their new names."""
    result: dict[str, Table] = {}
    for old_name, table in tables.items():
        name = _new_name(old_name, renames.tables)
        if name is None:
            continue
        rules = [rules for pattern, rules in renames.columns.items() if re.fullmatch(pattern, name)]
        renamed: Table = {}
        for old_column, old_values in table.items():
            column = _new_name(old_column, {k: v for rule in rules for k, v in rule.items()})
            if column is None:
                continue
            if column in renamed:
                raise UserError(f"RENAMES: {name} has two columns {column}; change a rule")
            texts = renames.values.get(column, {})
            is_text = old_values.dtype == object
            values = _from_texts([texts.get(v, v) for v in old_values]) if is_text else old_values
            renamed[column] = values
        if name in result:
            raise UserError(f"RENAMES: two tables become {name}; change a rule")
        result[name] = renamed
    return result


def _new_name(name: str, rules: Mapping[str, str | None]) -> str | None:
    """Returns the name by the first rule that matches; None if this was removed on purpose."""
    for pattern, new in rules.items():
        if match := re.fullmatch(pattern, name):
            return None if new is None else match.expand(new)
    return name


def compare_table(old: Table, new: Table) -> TableComparison:
    """Compares two tables by the rows that the same values identify.

    Rows whose identifying values have no counterpart are missing or new. If there are as many of them in both tables,
    such a value has moved, and they are matched in sorted order.
    """
    shared = [name for name in old if name in new]
    columns = {name: _same_kind(old[name], new[name]) for name in shared}
    rows, new_rows = (len(column) for column in next(iter(columns.values()), ((), ())))
    key, code_R = _key(columns, rows, new_rows)
    order, new_order = (
        np.argsort(code_R[:rows], kind="stable"),
        np.argsort(code_R[rows:], kind="stable"),
    )
    # Rows with the same code are equal in all columns, and are matched one by one.
    numbered, new_numbered = (
        list(zip(codes, _occurrence(codes), strict=True))
        for codes in (code_R[:rows][order], code_R[rows:][new_order])
    )
    new_row_of = dict(zip(new_numbered, new_order, strict=True))
    pairs = [
        (row, new_row_of.pop(i)) for i, row in zip(numbered, order, strict=True) if i in new_row_of
    ]
    left = sorted({*range(rows)} - {row for row, _ in pairs})
    new_left = sorted(new_row_of.values())
    if len(left) == len(new_left):
        texts_first = _texts_first(columns)
        pairs += zip(
            _sorted([columns[name][0] for name in texts_first], left),
            _sorted([columns[name][1] for name in texts_first], new_left),
            strict=True,
        )
        left, new_left = [], []
    index = np.array(sorted(pairs), int).reshape(-1, 2)
    moved, equal = [], 0
    for name, (old_values, new_values) in columns.items():
        differs = _differs(old_values[index[:, 0]], new_values[index[:, 1]])
        equal += int((~differs).sum())
        if differs.any():
            at = index[differs]
            label = functools.partial(_label, columns, key)
            moved.append(_moved(name, old_values, new_values, at, label, len(index)))
    return TableComparison(
        equal,
        moved,
        [name for name in old if name not in new],
        [name for name in new if name not in old],
        [_label(columns, key, row, 0) for row in left],
        [_label(columns, key, row, 1) for row in new_left],
    )


def _same_kind(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns two columns as numbers, or both as texts if one of them has texts."""
    if (old.dtype == object) == (new.dtype == object):
        return old, new
    texts = [[_text(v) or None for v in values] for values in (old, new)]
    return np.array(texts[0], object), np.array(texts[1], object)


def _texts_first(columns: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    return sorted(columns, key=lambda name: columns[name][0].dtype != object)


def _key(
    columns: Mapping[str, tuple[np.ndarray, np.ndarray]], rows: int, new_rows: int
) -> tuple[list[str], np.ndarray]:
    """Returns the columns that identify rows, and the code of each old and then each new row, equal for equal rows."""
    code_R, key = np.zeros(rows + new_rows, np.int64), []

    def distinct(codes: np.ndarray) -> tuple[int, int]:
        return len(np.unique(codes[:rows])), len(np.unique(codes[rows:]))

    counts = distinct(code_R)
    for name in _texts_first(columns):
        if counts == (rows, new_rows):
            break
        value_R, distinct_values = pd.factorize(
            np.concatenate(columns[name]), use_na_sentinel=False
        )
        _, both_R = np.unique(code_R * len(distinct_values) + value_R, return_inverse=True)
        if (more := distinct(both_R)) != counts:
            counts, code_R = more, both_R
            key.append(name)
    return key, code_R


def _occurrence(sorted_codes: np.ndarray) -> np.ndarray:
    """Returns for each code how often it occurred before."""
    positions = np.arange(len(sorted_codes))
    return positions - np.searchsorted(sorted_codes, sorted_codes)


def _sorted(columns: Sequence[np.ndarray], rows: Sequence[int]) -> list[int]:
    frame = pd.DataFrame({i: values[rows] for i, values in enumerate(columns)}, index=[*rows])
    return [int(row) for row in frame.sort_values([*frame.columns]).index] if len(rows) else []


def _differs(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if old.dtype == object:
        return np.array([a != b for a, b in zip(old, new, strict=True)], bool)
    return (old != new) & ~((old != old) & (new != new))


def _moved(
    name: str,
    old: np.ndarray,
    new: np.ndarray,
    at: np.ndarray,
    label: Callable[[int, int], str],
    of: int,
) -> Moved:
    """Describes the values that moved, which are in these pairs of rows."""

    def shown(pair: np.ndarray) -> str:
        values, where = f"{_shown(old[pair[0]])} -> {_shown(new[pair[1]])}", label(pair[0], 0)
        return f"{values} at {where}" if where else values

    if old.dtype == object:
        return Moved(name, len(at), of, np.nan, np.nan, shown(at[0]), "")
    before, after = old[at[:, 0]].astype(float), new[at[:, 1]].astype(float)
    is_number = np.isfinite(before) & np.isfinite(after)
    appeared = shown(at[~is_number][0]) if not is_number.all() else ""
    if not is_number.any():
        return Moved(name, len(at), of, np.nan, np.nan, "", appeared)
    difference = np.abs(after - before)[is_number]
    with np.errstate(divide="ignore"):
        relative = difference / np.abs(before[is_number])
    worst = shown(at[is_number][difference.argmax()])
    return Moved(name, len(at), of, float(difference.max()), float(relative.max()), worst, appeared)


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    text = repr(value) if isinstance(value, str) else repr(value.item())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _label(
    columns: Mapping[str, tuple[np.ndarray, np.ndarray]], key: Sequence[str], row: int, side: int
) -> str:
    """Describes a row of the old table (side 0) or the new table (side 1) by its identifying values."""
    return ", ".join(f"{name}={_shown(columns[name][side][row])}" for name in key)


def report(comparisons: Mapping[str, WorkdirComparison]) -> list[str]:
    """Returns the lines that describe the comparison of workdirs."""
    lines = []
    for workdir, comparison in comparisons.items():
        lines.append(f"{workdir}: {_summary([comparison])}")
        for name, table in comparison.tables.items():
            lines += [f"  {line}" for line in _table_lines(name, table)]
        lines += [f"  missing: table {name}" for name in comparison.missing]
        lines += [f"  new: table {name}" for name in comparison.new]
    if len(comparisons) > 1:
        lines.append(f"all {len(comparisons)} workdirs: {_summary([*comparisons.values()])}")
    return lines


def _summary(comparisons: Sequence[WorkdirComparison]) -> str:
    tables = [table for comparison in comparisons for table in comparison.tables.values()]
    equal_tables, equal = sum(not t.fails for t in tables), sum(t.equal for t in tables)
    parts = [f"{_count(equal_tables, 'table')} and {_count(equal, 'value')} equal"]
    if differ := len(tables) - equal_tables:
        parts.append("1 table differs" if differ == 1 else f"{differ:,} tables differ")
    if moved := sum(column.count for table in tables for column in table.moved):
        parts.append(f"{_count(moved, 'value')} moved")
    for word, whole, columns, rows in (
        ("missing", *(_total(comparisons, tables, "missing"))),
        ("new", *(_total(comparisons, tables, "new"))),
    ):
        counts = ((whole, "table"), (columns, "column"), (rows, "row"))
        if any(number for number, _ in counts):
            counted = ", ".join(_count(number, noun) for number, noun in counts if number)
            parts.append(f"{word}: {counted}")
    return "; ".join(parts)


def _total(
    comparisons: Sequence[WorkdirComparison], tables: Sequence[TableComparison], word: str
) -> tuple[int, int, int]:
    """Returns the numbers of tables, columns and rows that are missing or new."""
    return (
        sum(len(getattr(comparison, word)) for comparison in comparisons),
        sum(len(getattr(table, f"{word}_columns")) for table in tables),
        sum(len(getattr(table, f"{word}_rows")) for table in tables),
    )


def _table_lines(name: str, table: TableComparison) -> list[str]:
    """Returns the lines about one table; none if it is equal."""
    in_order = sorted(table.moved, key=lambda m: -np.nan_to_num(m.difference, nan=np.inf))
    lines = [f"moved: {name}: {_moved_line(moved)}" for moved in in_order[:_SHOWN]]
    if len(in_order) > _SHOWN:
        rest = in_order[_SHOWN:]
        lines.append(f"moved: {name}: {_count(len(rest), 'more column')}, with smaller differences")
    for word in ("missing", "new"):
        for noun in ("column", "row"):
            found = getattr(table, f"{word}_{noun}s")
            lines += [f"{word}: {name}: {noun} {item}".rstrip() for item in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"{word}: {name}: {_count(len(found) - _SHOWN, f'more {noun}')}")
    return lines


def _moved_line(moved: Moved) -> str:
    parts = [f"column {moved.column}: {moved.count:,} of {_count(moved.of, 'value')}"]
    if moved.difference == moved.difference:
        parts.append(
            f"largest difference {moved.difference:.3g} (relative: {moved.relative:.3g}), {moved.worst}"
        )
    elif moved.worst:
        parts.append(moved.worst)
    if moved.appeared:
        parts.append(moved.appeared)
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
