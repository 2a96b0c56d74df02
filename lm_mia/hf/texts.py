"""Reads tables of texts, and reads and writes the table that says which models were trained on which texts.

N: texts.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from lm_mia.atomic import replacing
from lm_mia.data.array_files import check_is_file, check_membership
from lm_mia.data.loss_files import STATISTICS, listed
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.errors import UserError, collect_errors

SUFFIXES = (".jsonl", ".csv", ".parquet")
_STRINGS = ("id", "text", "document", "model", *RECORD_COLUMNS)
# `lm-mia import` would not read these names as columns of the samples, or they are of the whole text, of which a model
# may see only the beginning.
_NOT_KEPT = ("sample", "loss", "role", "tokens", "zlib_bytes", "tfidf", "unk", *STATISTICS)
_SHOWN = 5  # ids, names or problems listed in a message


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a table, in its order."""

    source: str
    """The path of the table, for messages."""
    id_N: list[str]
    """A different name for each text: its id or, if the table has none, its position, counted from 0."""
    text_N: list[str] = dataclasses.field(repr=False)
    """The texts; null counts as an empty text."""
    member_N: np.ndarray | None
    """Whether each text is a member, bool; None if the table does not say."""
    columns: Mapping[str, np.ndarray]
    """Name -> column_N of every other column that `lm-mia import` reads: strings of `RECORD_COLUMNS` and `document`,
    and numbers, NaN where they are missing."""
    left_out: tuple[str, ...]
    """Names of the other columns."""


def read_texts(path: Path) -> Texts:
    """Reads a table of texts.

    Args:
      path: a .jsonl, .csv or .parquet file with the column `text` and, optionally, `id`, `member`, `user` and others.

    Returns:
      The texts, including empty ones.

    Raises:
      UserError: with one line per problem: the file cannot be read, has no texts, ids are repeated, or membership is
        something else than booleans, or 0 and 1.
    """
    table = _read_table(path)
    if "text" not in table.column_names:
        raise UserError(
            f"{path}: has no column 'text'; it has {', '.join(table.column_names[:_SHOWN]) or 'none'}; rename the "
            "column of the texts"
        )
    if not table.num_rows:
        raise UserError(f"{path}: has no rows; save one text per row")
    problems: list[str] = []
    strings = {
        name: collect_errors(problems, lambda name=name: _strings(table, name, path))
        for name in table.column_names
        if name in _STRINGS and name != "model"
    }
    id_N = strings.pop("id", None) if "id" in strings else [*map(str, range(table.num_rows))]
    if id_N:
        collect_errors(problems, lambda: _check_ids(id_N, path))
    member_N = None
    if "member" in table.column_names:
        member_N = collect_errors(problems, lambda: _membership(table, path))
    if problems:
        raise UserError("\n".join(problems))
    columns = {name: np.array(values, object) for name, values in strings.items() if name != "text"}
    others = [name for name in table.column_names if name not in {*strings, "id", "member"}]
    numbers = {name: _numbers(table[name]) for name in others if _is_kept(name)}
    columns |= {name: value_N for name, value_N in numbers.items() if value_N is not None}
    left_out = tuple(name for name in others if name not in columns)
    return Texts(str(path), id_N or [], strings["text"] or [], member_N, columns, left_out)


def read_members(path: Path) -> dict[str, dict[str, bool]]:
    """Reads which models were trained on which texts.

    Args:
      path: a .jsonl, .csv or .parquet file with the columns `model`, `id` and `member`.

    Returns:
      For each model, in the order of the table, whether it was trained on each text, by the id of the text.

    Raises:
      UserError: with one line per problem: the file cannot be read or lacks a column, or rows repeat a model and id.
    """
    table = _read_table(path)
    if missing := [name for name in ("model", "id", "member") if name not in table.column_names]:
        raise UserError(
            f"{path}: has no column {' and no '.join(map(repr, missing))}; save one row per model and text with the "
            "columns model, id and member"
        )
    problems: list[str] = []
    model_N = collect_errors(problems, lambda: _strings(table, "model", path))
    id_N = collect_errors(problems, lambda: _strings(table, "id", path))
    member_N = collect_errors(problems, lambda: _membership(table, path))
    if problems:
        raise UserError("\n".join(problems))
    members: dict[str, dict[str, bool]] = {}
    repeated = []
    for model, text_id, member in zip(model_N, id_N, member_N.tolist(), strict=True):
        if text_id in members.setdefault(model, {}):
            repeated.append(f"{model}, {text_id}")
        members[model][text_id] = member
    if repeated:
        raise UserError(
            f"{path}: {len(repeated):,} rows repeat a model and id, such as {'; '.join(repeated[:_SHOWN])}; keep one "
            "row for each"
        )
    if not members:
        raise UserError(f"{path}: has no rows; save one row per model and text")
    return members


def write_members(path: Path, id_N: Sequence[str], members: Mapping[str, np.ndarray]) -> None:
    """Writes which models were trained on which texts, as `read_members` reads it; replaces the file atomically.

    Args:
      path: the file; its suffix is .csv or .parquet.
      id_N: the ids of the texts.
      members: name of a model -> member_N.

    Raises:
      UserError: if the name of the file ends with something else.
    """
    table = pa.table(
        {
            "model": [name for name in members for _ in id_N],
            "id": [*id_N] * len(members),
            "member": np.concatenate([np.asarray(m, np.int8) for m in members.values()]),
        }
    )
    if path.suffix not in (".csv", ".parquet"):
        raise UserError(f"{path}: must end with .csv or .parquet; choose another name")
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            csv.write_csv(table, temporary)
        else:
            pq.write_table(table, temporary)


def members_of(
    members: Mapping[str, Mapping[str, bool]], model: str, id_N: Sequence[str], source: str
) -> np.ndarray | None:
    """Returns member_N of a model, bool; None if the table does not name the model.

    Args:
      members: as `read_members` returns them.
      model: the name of the model.
      id_N: the ids of the texts.
      source: the table, for messages.

    Raises:
      UserError: if the table names the model, but not all of the texts.
    """
    if model not in members:
        return None
    known = members[model]
    if missing := [text_id for text_id in id_N if text_id not in known]:
        raise UserError(
            f"{source}: model {model} has no row for {len(missing):,} texts: {listed(missing)}; add them, with member "
            "0 if the model was not trained on them, or leave these texts out"
        )
    return np.array([known[text_id] for text_id in id_N])


def _read_table(path: Path) -> pa.Table:
    """Reads a table; the columns of `_STRINGS` of a csv file are never taken for numbers or missing values."""
    check_is_file(path)
    try:
        match path.suffix:
            case ".parquet":
                table = pq.read_table(path)
            case ".csv":
                table = csv.read_csv(
                    path,
                    # Otherwise, a text with line breaks that crosses a block of the file, of 1 MB, would be an error.
                    parse_options=csv.ParseOptions(newlines_in_values=True),
                    convert_options=csv.ConvertOptions(
                        column_types=dict.fromkeys(_STRINGS, pa.string())
                    ),
                )
            case ".jsonl":
                table = _read_json_lines(path)
            case _:
                raise UserError(
                    f"{path}: the name must end with {', '.join(SUFFIXES)}; convert or rename the file"
                )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path}: is not a readable {path.suffix[1:]} file ({line}); save it again, in UTF-8"
        ) from error
    names = table.column_names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: has several columns {listed(repeated)}; names must be distinct")
    return table


def _read_json_lines(path: Path) -> pa.Table:
    rows: list[dict[str, Any]] = []
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (
            ValueError,
            RecursionError,
        ) as error:  # ValueError: also a number of too many digits
            problems.append(f"{path}:{number}: is not JSON ({error}); save one object per line")
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(
                f"{path}:{number}: is not an object; save a line such as "
                '{"id": "a", "text": "..."}'
            )
    if problems:
        more = len(problems) - _SHOWN
        rest = [f"{path}: {more:,} more lines are invalid"] if more > 0 else []
        raise UserError("\n".join([*problems[:_SHOWN], *rest]))
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _to_column([row.get(name) for row in rows], name) for name in names})


def _to_column(values: list[Any], name: str) -> "pa.Array[Any]":
    """Returns values of JSON as a column; those of several types as text, which is left out unless it is an id."""
    if name in _STRINGS:
        values = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values])


def _strings(table: pa.Table, name: str, path: Path) -> list[str]:
    """Returns a column of strings or whole numbers as strings; missing values are empty."""
    column = table[name]
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_null(kind) or (pa.types.is_integer(kind) and name != "text")):
        raise UserError(
            f"{path}: column {name!r} holds {kind}; save it as text"
            + ("" if name == "text" else ", or as whole numbers")
        )
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _check_ids(id_N: list[str], path: Path) -> None:
    if missing := id_N.count(""):
        raise UserError(
            f"{path}: column 'id' is missing in {missing:,} rows, such as row {id_N.index('') + 1}; fill it in"
        )
    if len({*id_N}) < len(id_N):
        seen: set[str] = set()
        repeated = [i for i in id_N if i in seen or seen.add(i)]
        raise UserError(
            f"{path}: column 'id' has {len(repeated):,} repeated values: {listed(repeated)}; give each text an id of "
            "its own"
        )


def _membership(table: pa.Table, path: Path) -> np.ndarray:
    column = table["member"]
    if column.null_count:
        raise UserError(
            f"{path}: column 'member' is missing in {column.null_count:,} rows; fill it in, or leave these rows out"
        )
    return check_membership(column.to_numpy(), f"{path}: column 'member'")


def _is_kept(name: str) -> bool:
    """Returns whether a number of each text with this name can be a column of the file of losses."""
    return name not in _NOT_KEPT and not name.startswith(("loss_", "member_")) and name[-2:] != "_N"


def _numbers(column: "pa.ChunkedArray[Any]") -> np.ndarray | None:
    """Returns a column of numbers, in which a missing value is NaN; None if it holds something else."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    value_N = column.to_pandas().to_numpy()
    if value_N.dtype == object:  # booleans, some of which are missing
        value_N = np.array([np.nan if value is None else float(value) for value in value_N])
    value_N = value_N.astype(np.int64) if value_N.dtype.kind == "b" else value_N
    return None if np.isinf(value_N).any() else value_N
