"""Reads tables of texts, and reads and writes the table that says which models were trained on which texts.

N: texts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from lm_mia.atomic import replacing
from lm_mia.data.arrays import Values, listed, open_arrays
from lm_mia.data.losses import STATISTICS
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.errors import UserError, collect_errors

_STRINGS = ("document", *RECORD_COLUMNS)
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


def read_texts(path: Path, text_column: str = "text") -> Texts:
    """Reads a table of texts.

    Args:
      path: a table that `lm_mia.data.arrays` reads, with a column of texts and, optionally, `id`, `member`, `user` and
        others.
      text_column: the name of the column of texts.

    Returns:
      The texts, including empty ones.

    Raises:
      UserError: with one line per problem: the file cannot be read, has no texts, ids are repeated, or membership is
        something else than booleans, 0 and 1, or words for them.
    """
    table = open_arrays(path, (text_column,))
    if not table.is_table or text_column not in table:
        raise UserError(
            f"{path}: has no column {text_column!r}; it has {listed(table) or 'none'}; name the column of the texts by "
            "--text-column"
        )
    if not table.num_rows:
        raise UserError(f"{path}: has no rows; save one text per row")
    problems: list[str] = []
    text_N = collect_errors(problems, lambda: _texts(table[text_column]))
    strings = {
        name: collect_errors(problems, table[name].strings) for name in _STRINGS if name in table
    }
    id_N = [*map(str, range(table.num_rows))]
    if "id" in table:
        id_N = collect_errors(problems, lambda: _ids(table["id"]))
    member_N = None
    if "member" in table:
        member_N = collect_errors(problems, table["member"].membership)
    if problems or text_N is None or id_N is None:
        raise UserError("\n".join(problems))
    columns = {name: value_N for name, value_N in strings.items() if value_N is not None}
    others = [name for name in table if name not in {*strings, text_column, "id", "member"}]
    numbers = {name: _numbers(table[name]) for name in others if _is_kept(name)}
    columns |= {name: value_N for name, value_N in numbers.items() if value_N is not None}
    left_out = tuple(name for name in others if name not in columns)
    return Texts(str(path), id_N, text_N, member_N, columns, left_out)


def read_members(path: Path) -> dict[str, dict[str, bool]]:
    """Reads which models were trained on which texts.

    Args:
      path: a table with the columns `model`, `id` and `member`.

    Returns:
      For each model, in the order of the table, whether it was trained on each text, by the id of the text.

    Raises:
      UserError: with one line per problem: the file cannot be read or lacks a column, or rows repeat a model and id.
    """
    table = open_arrays(path)
    if missing := [name for name in ("model", "id", "member") if name not in table]:
        raise UserError(
            f"{path}: has no column {' and no '.join(map(repr, missing))}; save one row per model and text with the "
            "columns model, id and member"
        )
    if not table.num_rows:
        raise UserError(f"{path}: has no rows; save one row per model and text")
    problems: list[str] = []
    model_N = collect_errors(problems, table["model"].strings)
    id_N = collect_errors(problems, table["id"].strings)
    member_N = collect_errors(problems, table["member"].membership)
    if problems or model_N is None or id_N is None or member_N is None:
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


def _texts(values: Values) -> list[str]:
    """Returns texts, empty ones where they are missing; raises UserError unless all are strings."""
    text_N = values.array()
    wrong = {type(v).__name__ for v in text_N.tolist() if not (v is None or isinstance(v, str))}
    wrong -= {"float"} if text_N.dtype == object else set()  # NaN for a missing text
    if wrong:
        raise UserError(f"{values.label}: holds values of type {', '.join(wrong)}; save it as text")
    return [text if isinstance(text, str) else "" for text in text_N.tolist()]


def _ids(values: Values) -> list[str]:
    """Returns the ids of texts; raises UserError if some are missing or repeated."""
    id_N = [*map(str, values.strings())]
    if missing := id_N.count(""):
        raise UserError(
            f"{values.label}: is missing in {missing:,} rows, such as row {id_N.index('') + 1}; fill it in"
        )
    if len({*id_N}) < len(id_N):
        seen: set[str] = set()
        repeated = [i for i in id_N if i in seen or seen.add(i)]
        raise UserError(
            f"{values.label}: has {len(repeated):,} repeated values: {listed(repeated)}; give each text an id of its "
            "own"
        )
    return id_N


def _is_kept(name: str) -> bool:
    """Returns whether a number of each text with this name can be a column of the file of losses."""
    return name not in _NOT_KEPT and not name.startswith(("loss_", "member_")) and name[-2:] != "_N"


def _numbers(values: Values) -> np.ndarray | None:
    """Returns a column of numbers, in which a missing value is NaN; None if it holds something else."""
    value_N = values.array()
    if value_N.dtype == object and all(v is None or isinstance(v, bool) for v in value_N):
        # Booleans, some of which are missing.
        value_N = np.array([np.nan if value is None else float(value) for value in value_N])
    if value_N.dtype.kind not in "biuf" or np.isinf(value_N).any():
        return None
    return value_N.astype(np.int64) if value_N.dtype.kind == "b" else value_N
