"""Reads tables of membership scores, for `lm-mia audit`: csv files, parquet files and data frames.

A table has one row per score: the columns score and member, and optionally model, a column of users, covariates, id,
and document. All problems of a table are reported together.

Legend: N samples (rows of one model).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from lm_mia.data.array_files import check_membership, check_real
from lm_mia.data.covariates import Covariates, read_covariates
from lm_mia.errors import UserError, collect_errors
from lm_mia.machine import memory_bytes

if TYPE_CHECKING:
    import pandas as pd

MAX_SCORE = 1e100
"""Magnitudes must be below it, so that axes of figures and differences of scores do not overflow."""
SUFFIXES = (".csv", ".parquet")
_MISSING = ("", "nan", "NaN", "NA", "null")
_MAX_MEMORY_SHARE = 0.5
# Otherwise, a text with line breaks that crosses a block of the file, of 1 MB, would be an error.
_PARSING = csv.ParseOptions(newlines_in_values=True)
_SIGNATURES = {
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "compressed",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns of a table, or of the arrays of an npz file; "" for the default name, or none."""

    score: str = ""
    member: str = ""
    model: str = ""
    user: str = ""
    covariates: tuple[str, ...] = ()
    text: str = ""
    target: tuple[str, ...] = ()
    """Names of the attacked models in a file of losses that does not say the role of each model."""
    base: str = ""
    """Name of the model that these were fine-tuned from."""
    prefix: str = ""
    """Precedes these names in messages: "--" on the command line, where they are flags."""


@dataclasses.dataclass(frozen=True)
class ModelScores:
    """The scores of all samples under one model."""

    model: str
    """The name of the model; empty if there is only one and it has no name."""
    score_N: np.ndarray
    """Larger for members; NaN where it is missing."""
    member_N: np.ndarray
    """Booleans."""
    user_N: np.ndarray | None = None
    """The user of each sample, as an index of `users`."""
    users: Sequence[Any] = ()
    """The users of all models."""
    covariates: Covariates | None = None
    id_N: np.ndarray | None = None
    """A different integer for each sample, which does not depend on the order of the samples; None: the position."""
    document_N: np.ndarray | None = None
    """The document of each sample, as an integer; None if samples are not pieces of documents."""
    text_N: "pa.Array[Any] | pa.ChunkedArray[Any] | None" = None
    """The text of each sample; None if it is unknown for some."""


def read_table(path: Path, columns: Columns) -> list[ModelScores]:
    """Reads a csv or parquet file that is not empty.

    Args:
      path: the file; its suffix determines the format.
      columns: names of the columns.

    Returns:
      The scores of each model, in the order in which models first appear.

    Raises:
      UserError: with one line per problem.
    """
    try:
        _check_signature(path)
        read = _read_csv if path.suffix == ".csv" else _read_parquet
        return parse_table(read(path, columns), str(path), columns)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({_one_line(error)}); check the file and its permissions"
        ) from error


def read_frame(frame: "pd.DataFrame", columns: Columns) -> list[ModelScores]:
    """As `read_table`, for a data frame; its index is ignored, and the names of its columns are taken as strings."""
    import pandas as pd

    name = "data frame"
    if isinstance(frame.columns, pd.MultiIndex):
        raise UserError(
            f"{name}: its columns have a MultiIndex; give each column one name, for example by "
            "frame.columns = ['_'.join(map(str, names)) for names in frame.columns]"
        )
    names = [*map(str, frame.columns)]
    wanted = _find_columns(names, name, columns)
    used = frame.iloc[:, [names.index(column) for column in wanted]].set_axis(wanted, axis=1)
    try:
        table = pa.Table.from_pandas(used, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"{name}: cannot be used ({_one_line(error)}); each column must hold one type of values"
        ) from error
    return parse_table(table, name, columns)


def parse_table(table: pa.Table, source: str, columns: Columns) -> list[ModelScores]:
    """Returns the scores of each model of a table; `source` is its name for error messages."""
    score, member, *others = _find_columns(table.column_names, source, columns)
    if not table.num_rows:
        raise UserError(f"{source}: has no rows; save one row per score")
    problems: list[str] = []

    def parse(name: str, function: Any) -> Any:
        label = f"{source}: column {name!r}"
        return collect_errors(problems, lambda: function(table[name], label))

    score_N, member_N = parse(score, _scores), parse(member, _membership)
    user_N, users = (parse(columns.user, parse_names) if columns.user else None) or (None, ())
    model = columns.model or ("model" if "model" in others else "")
    no_models = np.zeros(table.num_rows, np.intp), [""]
    model_N, models = (parse(model, parse_names) if model else None) or no_models
    id_N = None
    if "id" in others:
        id_N = parse("id", lambda column, label: _ids(column, model_N, label))
    document_N = parse_documents(parse("document", parse_names)) if "document" in others else None
    text = columns.text or "text"
    text_N = parse_texts(table[text]) if text in others else None
    covariates = collect_errors(
        problems,
        lambda: read_covariates(
            table.column,
            columns.covariates,
            columns.text,
            table.num_rows,
            lambda name: f"{source}: column {name!r}",
        ),
    )
    if problems:
        raise UserError("\n".join(problems))
    order = np.argsort(model_N, kind="stable")
    ends = np.cumsum(np.bincount(model_N, minlength=len(models)))[:-1]
    return [
        ModelScores(
            str(name),
            score_N[rows],
            member_N[rows],
            None if user_N is None else user_N[rows],
            users,
            covariates and covariates.take(rows),
            None if id_N is None else id_N[rows],
            None if document_N is None else document_N[rows],
            None if text_N is None else text_N.take(pa.array(rows)),
        )
        for name, rows in zip(models, np.split(order, ends), strict=True)
    ]


def parse_names(
    column: "pa.Array[Any] | pa.ChunkedArray[Any]", label: str
) -> tuple[np.ndarray, list[Any]]:
    """Returns a column of names, such as users, as (index_N, names), in the order in which the names first appear.

    Raises:
      UserError: if a name is missing.
    """
    import pandas as pd

    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise UserError(
            f"{label}: holds {_type_name(column.type)}; save one name per row, as a number or UTF-8 text"
        )
    values = column.to_pandas()
    index_N, names = pd.factorize(values)
    missing = np.flatnonzero((index_N < 0) | (values == "").to_numpy())
    if missing.size:
        raise UserError(
            f"{label}: is missing in {missing.size:,} rows, such as row {missing[0] + 1}; fill it in, or remove them"
        )
    return index_N, names.tolist()


def parse_documents(parsed: tuple[np.ndarray, list[Any]] | None) -> np.ndarray | None:
    """Returns the documents that `parse_names` has read, as integers; None if each has a single sample."""
    if parsed is None or len(parsed[1]) == len(parsed[0]):
        return None
    return parsed[0]


def parse_texts(
    column: "pa.Array[Any] | pa.ChunkedArray[Any]",
) -> "pa.Array[Any] | pa.ChunkedArray[Any] | None":
    """Returns a column of texts; None if some are missing, or if it holds something else."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if _is_text(column.type) and not column.null_count else None


def _check_signature(path: Path) -> None:
    """Raises UserError if the content of a file does not have the format of its suffix."""
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix == ".parquet":
        if start != b"PAR1":
            raise UserError(f"{path}: is not a parquet file; save it again, or rename it")
        return
    for signature, name in _SIGNATURES.items():
        if start.startswith(signature):
            raise UserError(
                f"{path}: is {name}, not a csv file in UTF-8; rename, unpack or convert it"
            )


def _read_csv(path: Path, columns: Columns) -> pa.Table:
    """Returns the columns of a csv file that are used; every row must have the same number of values."""
    if path.stat().st_size > _MAX_MEMORY_SHARE * memory_bytes():
        raise UserError(f"{path}: is larger than half of this machine's memory; save it as parquet")
    try:
        with csv.open_csv(path, parse_options=_PARSING) as reader:
            names = reader.schema.names
        wanted = _find_columns(names, str(path), columns)
        options = csv.ConvertOptions(include_columns=wanted, null_values=[*_MISSING])
        return csv.read_csv(path, parse_options=_PARSING, convert_options=options)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _invalid(path, "csv", _error_with_row(path, error)) from error


def _error_with_row(path: Path, error: Exception) -> Exception:
    """Returns the error of reading a csv file; if it is read by one thread, the error names the row."""
    try:
        one_thread = csv.ReadOptions(use_threads=False)
        csv.read_csv(path, read_options=one_thread, parse_options=_PARSING)
    except pa.ArrowException as with_row:
        return with_row
    return error


def _read_parquet(path: Path, columns: Columns) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            wanted = _find_columns(file.schema_arrow.names, str(path), columns)
            rows = file.metadata.num_rows
            if 8 * rows * len(wanted) > _MAX_MEMORY_SHARE * memory_bytes():
                raise UserError(
                    f"{path}: {rows:,} rows take more than half of this machine's memory; split the file by model"
                )
            return file.read(columns=wanted)
    except pa.ArrowException as error:
        raise _invalid(path, "parquet", error) from error


def _find_columns(names: Sequence[str], source: str, columns: Columns) -> list[str]:
    """Returns the columns that are used, score and member first; raises UserError for missing and repeated ones."""
    wanted = [columns.score or "score", columns.member or "member"]
    wanted += filter(None, [columns.model, columns.user, *columns.covariates, columns.text])
    problems = []
    if missing := [name for name in dict.fromkeys(wanted) if name not in names]:
        p = columns.prefix
        hint = f"name the columns by {p}score=, {p}member=, {p}model= and {p}user="
        if columns.covariates or columns.text:
            hint += f", and by {p}covariates= and {p}text="
        if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
            hint = "separate the columns by commas"
        listed = ", ".join(repr(name) for name in names[:20]) or "no columns"
        lacking = " and ".join(map(repr, missing))
        problems.append(f"{source}: no column {lacking} among {listed}; {hint}")
    if repeated := [name for name in dict.fromkeys(wanted) if wanted.count(name) > 1]:
        listed = ", ".join(map(repr, repeated))
        problems.append(
            f"{source}: {listed}: a column has two roles; name a different one for each"
        )
    wanted += [
        name
        for name in ("id", "document", "text", *(() if columns.model else ("model",)))
        if name in names and name not in wanted
    ]
    problems += [
        f"{source}: has {names.count(name)} columns named {name!r}; names must be unique"
        for name in dict.fromkeys(wanted)
        if [*names].count(name) > 1
    ]
    if problems:
        raise UserError("\n".join(problems))
    return wanted


def _ids(column: "pa.ChunkedArray[Any]", model_N: np.ndarray, label: str) -> np.ndarray:
    """Returns the rank of each id among all of them; raises UserError if a model has two scores of the same sample."""
    import pandas as pd

    if pa.types.is_nested(column.type):
        raise UserError(f"{label}: holds {_type_name(column.type)}; save one id per row")
    ids = pd.DataFrame({"model": model_N, "id": column.to_pandas()})
    repeated = np.flatnonzero(ids.duplicated().to_numpy())
    if repeated.size:
        value = ids["id"].iloc[repeated[0]]
        raise UserError(
            f"{label}: {value!s} appears again in row {repeated[0] + 1}: a model has one score per sample; remove the "
            f"{repeated.size:,} repeated rows"
        )
    return pd.factorize(ids["id"], sort=True, use_na_sentinel=False)[0]


def _row(index: tuple[int, ...]) -> str:
    return f"row {index[0] + 1}"


def _scores(column: "pa.ChunkedArray[Any]", label: str) -> np.ndarray:
    """Returns a column of scores as float64, NaN where they are missing."""
    kind = column.type
    if pa.types.is_null(kind):
        raise UserError(f"{label}: is empty; save one number per row")
    if _is_text(kind):
        import pandas as pd

        texts = column.to_pandas()
        numbers = pd.to_numeric(texts, errors="coerce")
        wrong = np.flatnonzero(numbers.isna() & texts.notna() & ~texts.isin(_MISSING))
        if not wrong.size:
            raise UserError(f"{label}: holds strings; save it as numbers")
        raise UserError(
            f"{label}: {wrong.size:,} values are not numbers, such as {texts.iloc[wrong[0]][:40]!r} in row "
            f"{wrong[0] + 1}; leave the cell empty if a score is missing"
        )
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(f"{label}: holds {_type_name(kind)}; save one number per row")
    array = column.cast(pa.float64(), safe=False).to_numpy()
    return check_real(array, label, limit=MAX_SCORE, locate=_row)


def _membership(column: "pa.ChunkedArray[Any]", label: str) -> np.ndarray:
    """Returns a column of membership as booleans."""
    kind = column.type
    remedy = "save 1 for members and 0 for other samples"
    if pa.types.is_null(kind):
        raise UserError(f"{label}: is empty; {remedy}")
    if _is_text(kind):
        texts = column.drop_null().to_pylist()
        raise UserError(
            f"{label}: holds strings, such as {next(filter(None, texts), '')[:40]!r}; {remedy}"
        )
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(f"{label}: holds {_type_name(kind)}; {remedy}")
    numbers = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
    # A missing value becomes NaN, which is refused.
    array = numbers.cast(pa.float64(), safe=False).to_numpy()
    return check_membership(array, label, locate=_row)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "booleans"
    if pa.types.is_binary(kind):
        return "bytes"
    return f"nested values ({kind})" if pa.types.is_nested(kind) else f"values of type {kind}"


def _invalid(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{path}: is not a valid {kind} file ({_one_line(error)}); repair it")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
