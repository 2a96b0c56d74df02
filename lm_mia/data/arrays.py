"""The one reader of arrays and tables that somebody else wrote, which trusts none of them.

`open_arrays` opens a file or takes objects in memory, and returns their arrays or columns by name. Values are read when
they are used, in the form that the caller asks for: numbers, membership, names or texts. A file never runs code:
pickles are not loaded, and Zarr stores are refused if their metadata name unknown codecs. What would not fit into half
of the memory is refused before it is read, if the file says its size, and otherwise while it is read.

The names of arrays end in their shape, such as loss_MxN; columns of tables have names without a shape. Each method
raises one error for its array. To report the problems of all arrays at once, call them through
`lm_mia.errors.collect_errors`.

M: models, N: samples, or rows of a table.
"""

import dataclasses
import io
import json
import math
import struct
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, feather

from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.data.zarr_metadata import check_zarr
from lm_mia.errors import UserError
from lm_mia.machine import memory_bytes

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
Raw: TypeAlias = "np.ndarray | Column"
Source: TypeAlias = "Path | pd.DataFrame | pa.Table | Mapping[Any, Any]"

STRINGS = ("id", "text", "model", "role", "document", *RECORD_COLUMNS)
"""Columns that are strings in every file, so that long numbers keep all their digits, and leading zeros stay."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", ".feather")
DATASETS = (".nc", ".nc4", ".netcdf", ".h5")
SUFFIXES = (".npz", *TABLES, *DATASETS)
"""Endings of files, in addition to the folder of a Zarr store; csv, tsv and json files may also end in .gz or .zst."""
MEMBERS = {"1": True, "true": True, "yes": True, "member": True, "in": True} | {
    "0": False, "false": False, "no": False, "nonmember": False, "non-member": False, "out": False
}  # fmt: skip
"""Words that say whether a sample is a member, in lower case."""
_MISSING = ("", "nan", "NaN", "NA", "N/A", "null", "None")
_MAX_MEMORY_SHARE = 0.5
_MAPPED_BYTES = 2**24  # uncompressed arrays of at least this size are mapped into memory
_BLOCK = 2**22  # values that a check reads at a time
_SHOWN = 5  # names, lines or values listed in a message
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, OSError)
_SIGNATURES = {
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of an array or of a column, which are read by each call."""

    label: str
    """The source and the name, for messages."""
    shape: tuple[int, ...]
    read: Callable[[], "Raw"]
    """Returns the values as they are stored; large arrays may be mapped into memory."""
    read_row: Callable[[int], np.ndarray] | None = None
    """Returns a row, if a single one can be read."""

    def row(self, m: int) -> np.ndarray:
        """Returns a row of an array of two dimensions, as it is stored."""
        return self.read_row(m) if self.read_row else self.array()[m]

    def array(self) -> np.ndarray:
        """Returns the values as an array of NumPy: numbers and booleans as they are, and texts as objects."""
        values = self.read()
        if isinstance(values, np.ndarray):
            return values
        values = _plain(values)
        if is_text(values.type) or pa.types.is_null(values.type):
            return values.to_pandas().to_numpy(object)
        return values.to_pandas().to_numpy()

    def real(self, limit: float = math.inf) -> np.ndarray:
        """Returns numbers, NaN where they are missing; raises UserError for anything else.

        Args:
          limit: the magnitudes must be below it.
        """
        values = self.read()
        if not isinstance(values, np.ndarray):
            values = _numbers(_plain(values), self.label)
        return check_real(values, self.label, limit=limit)

    def membership(self) -> np.ndarray:
        """Returns booleans that say which samples are members: of booleans, of 0 and 1, or of the words `MEMBERS`."""
        values = self.read()
        if not isinstance(values, np.ndarray):
            values = _plain(values)
            if is_text(values.type):
                values = values.to_pandas().to_numpy(object)
            elif values.null_count:
                raise UserError(
                    f"{self.label}: is missing for {values.null_count:,} samples; leave out samples of unknown "
                    "membership"
                )
            elif pa.types.is_boolean(values.type):
                values = values.to_pandas().to_numpy()
            else:
                values = _numbers(values, self.label, "save 1 for members and 0 for others")
        if values.dtype.kind in "OUS":
            values = _parse_members(values, self.label)
        return check_membership(values, self.label)

    def names(self) -> tuple[np.ndarray, list[str]]:
        """Returns names, such as those of users, as (index_N, names), in the order in which they first appear.

        Numbers are names, too. Raises UserError if a name is missing.
        """
        import pandas as pd

        values_N = self.strings()
        index_N, names = pd.factorize(values_N)
        missing = np.flatnonzero(np.asarray(values_N == "", bool))
        if missing.size:
            raise UserError(
                f"{self.label}: is missing in {missing.size:,} rows, such as row {missing[0] + 1}; fill it in, or "
                "remove them"
            )
        return index_N, [*map(str, names)]

    def strings(self) -> np.ndarray:
        """Returns strings as an array of objects, empty ones where they are missing.

        Whole numbers and booleans become strings; raises UserError for fractions, bytes and lists.
        """
        values = self.read()
        if isinstance(values, np.ndarray):
            return _array_of_strings(values, self.label)
        values = _plain(values)
        kind = values.type
        if pa.types.is_null(kind):
            return np.full(len(values), "", object)
        if pa.types.is_floating(kind):  # whole numbers, some of which are missing
            return _array_of_strings(values.to_numpy(), self.label)
        if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise UserError(
                f"{self.label}: holds {type_name(kind)}; save one name per row, as UTF-8 text or as a whole number"
            )
        return values.cast(pa.large_string()).fill_null("").to_pandas().to_numpy(object)

    def texts(self) -> "Column | None":
        """Returns texts; None if some are missing, or if the values are something else."""
        values = self.read()
        if isinstance(values, np.ndarray):
            if values.ndim != 1 or values.dtype.kind not in "UO":
                return None
            try:
                values = pa.array(values, pa.large_string(), from_pandas=True)
            except (pa.ArrowException, TypeError):
                return None
        values = _plain(values)
        return values if is_text(values.type) and not values.null_count else None

    def column(self) -> "Column":
        """Returns the values as a column of Arrow; raises UserError if they have no type that Arrow knows."""
        values = self.read()
        if not isinstance(values, np.ndarray):
            return _plain(values)
        try:
            return pa.array(values, from_pandas=True)
        except pa.ArrowException:
            raise UserError(
                f"{self.label}: holds values of type {values.dtype}; save numbers or strings"
            ) from None


@dataclasses.dataclass(frozen=True)
class Arrays(Mapping[str, Values]):
    """The arrays or the columns of a source, by name."""

    source: str
    """Where they come from, for messages: a path, or what kind of object it is."""
    by_name: Mapping[str, Values]
    is_table: bool
    """Whether they are columns of one length, and not arrays whose names end in their shape."""
    attributes: Mapping[str, Any] | None = None
    """Properties of the whole netCDF file or Zarr store; None for other sources."""

    def __getitem__(self, name: str) -> Values:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def num_rows(self) -> int:
        """The number of rows of a table."""
        return next((values.shape[0] for values in self.by_name.values()), 0)

    def of_samples(self, name: str) -> str | None:
        """Returns the name of a property of samples in this source, with its shape or without; None if it has none."""
        candidates = (name,) if self.is_table else (f"{name}_N", name)
        return next((stored for stored in candidates if stored in self.by_name), None)


def open_arrays(source: "Source", strings: Collection[str] = ()) -> Arrays:
    """Opens a file or a Zarr store, or takes a data frame, a table of Arrow, or a mapping of names and arrays.

    Args:
      source: a path that ends with one of `SUFFIXES`, the folder of a Zarr store, or an object.
      strings: names of columns that are strings besides `STRINGS`.

    Returns:
      Its arrays or columns. The variables of a dataset are named by their dimensions: loss of (model, sample) is
      loss_MxN, and the names of the models are name_M.

    Raises:
      UserError: with one line per problem.
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return _of_frame(source)
    if isinstance(source, pa.Table):
        return _of_table(source, "table")
    if isinstance(source, Mapping):
        return _of_mapping(source)
    if not isinstance(source, Path):
        raise UserError(
            f"source: must be a path, a data frame, a table of pyarrow or a mapping of arrays, not "
            f"{type(source).__name__}"
        )
    if (source / "zarr.json").is_file() or (source / ".zgroup").is_file():
        return _open_dataset(source)
    check_is_file(source)
    kind, compression = _kind(source)
    if kind == ".npz":
        return _open_npz(source)
    if kind in DATASETS:
        return _open_dataset(source)
    if kind == ".parquet":
        return _open_parquet(source)
    if kind in (".arrow", ".feather"):
        return _of_table(_read_arrow(source), str(source))
    if kind in TABLES:
        _check_signature(source, kind, compression)
        read = _read_csv if kind in (".csv", ".tsv") else _read_json
        return _of_table(read(source, (*STRINGS, *strings)), str(source))
    if kind == ".npy":
        raise UserError(
            f"{source}: is a single array without a name (.npy); save all arrays in one file with "
            "np.savez(FILE, loss_MxN=losses, member_MxN=members), FILE ending with .npz"
        )
    raise UserError(
        f"{source}: the name must end in {', '.join(SUFFIXES)}, or be the folder of a Zarr store; rename the file, or "
        "convert it"
    )


def check_is_file(path: Path) -> None:
    """Raises UserError unless the path is a file that is not empty."""
    try:
        if path.is_dir():
            raise UserError(
                f"{path}: is a folder; give the path of a file, or the folder of a Zarr store"
            )
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file; save the data as a file")
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty; save it again")
    except OSError as error:
        raise _unreadable(path, error) from error


def check_real(array: np.ndarray, label: str, *, limit: float = math.inf) -> np.ndarray:
    """Checks that an array holds real numbers that are finite or, where they are missing, NaN.

    Args:
      array: the values, possibly mapped into memory.
      label: the file and the array, for the error message.
      limit: the magnitudes must be below it.

    Returns:
      The array.

    Raises:
      UserError: if the values are not integers or floating-point numbers, or some are infinite or too large.
    """
    if array.dtype.kind not in "iuf":
        raise UserError(f"{label}: holds {_kind_name(array.dtype)}; save it as numbers")
    first, count = None, 0
    for start, block in _blocks(array):
        invalid = np.flatnonzero(np.abs(block.astype(np.float64)) >= limit)
        if invalid.size and first is None:
            first = start + int(invalid[0])
        count += invalid.size
    if first is not None:
        rule = "finite" if math.isinf(limit) else f"below {limit:g} in magnitude"
        raise UserError(
            f"{label}: {_count_at(array, first, count)}: the values must be {rule}; a missing value is NaN"
        )
    return array


def check_membership(array: np.ndarray, label: str) -> np.ndarray:
    """Checks that an array tells for each sample whether it is a member: booleans, or the numbers 0 and 1.

    Args:
      array: the values, possibly mapped into memory.
      label: the file and the array, for the error message.

    Returns:
      An array of booleans; the array itself, still mapped into memory, if it holds booleans.

    Raises:
      UserError: if the values are of another type, or some are neither 0 nor 1.
    """
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{label}: holds {_kind_name(array.dtype)}; save membership as booleans, or as 0 and 1"
        )
    # In a damaged file, a boolean can be another byte than 0 and 1, which NumPy takes for neither true nor false.
    values = array.view(np.uint8) if array.dtype.kind == "b" else array
    first, count = None, 0
    for start, block in _blocks(values):
        invalid = np.flatnonzero((block != 0) & (block != 1))
        if invalid.size and first is None:
            first = start + int(invalid[0])
        count += invalid.size
    if first is not None:
        raise UserError(
            f"{label}: {_count_at(values, first, count)}: membership must be 0 or 1 for every sample; leave out "
            "samples of unknown membership"
        )
    return array if array.dtype == np.bool_ else array.astype(np.bool_)


def as_array(value: Any, label: str) -> np.ndarray:
    """Returns an object as an array of NumPy; tensors of PyTorch and bfloat16 are converted.

    Raises:
      UserError: if that is impossible, as for lists of different lengths.
    """
    try:
        if hasattr(value, "detach"):  # a tensor of PyTorch, perhaps on a GPU
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        if isinstance(value, list | tuple) and value and isinstance(value[0], str):
            return np.array(value, object)  # without the width of the longest text for each
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"{label} is not an array ({one_line(error)}); give a NumPy array, or lists of equal lengths"
        ) from error
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type of Arrow is that of texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def type_name(kind: pa.DataType) -> str:
    """Returns the kind of values in words, for messages."""
    if pa.types.is_boolean(kind):
        return "booleans"
    if is_text(kind):
        return "strings"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return f"nested values ({kind})" if pa.types.is_nested(kind) else f"values of type {kind}"


def one_line(error: Exception) -> str:
    """Returns what an error of a library says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(" ".join(reason.split())[:200]) or type(error).__name__


def printable(text: str) -> str:
    """Returns a text with a question mark for each character that would control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def listed(names: Iterable[Any]) -> str:
    """Returns the first names, separated by commas, for a message."""
    words = [str(name) for name in names]
    return ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")


# Objects in memory


def _of_frame(frame: "pd.DataFrame") -> Arrays:
    import pandas as pd

    if isinstance(frame.columns, pd.MultiIndex):
        raise UserError(
            "data frame: its columns have a MultiIndex; give each column one name, for example by "
            "frame.columns = ['_'.join(map(str, names)) for names in frame.columns]"
        )
    names = [*map(str, frame.columns)]

    def read(position: int) -> "Column":
        label = f"data frame: column {names[position]!r}"
        series = frame.iloc[:, position]
        if series.dtype.kind not in "biufOMmc" and str(series.dtype) == "bfloat16":
            series = series.astype(np.float32)
        try:
            return pa.chunked_array([pa.Array.from_pandas(series)])
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserError(
                f"{label}: cannot be used ({one_line(error)}); each column must hold one type of values"
            ) from error

    return _columns("data frame", names, len(frame), read)


def _of_table(table: pa.Table, source: str) -> Arrays:
    return _columns(source, table.column_names, table.num_rows, table.column)


def _columns(
    source: str, names: Sequence[str], rows: int, read: Callable[[int], "Column"]
) -> Arrays:
    """Returns columns by name; a name that stands twice can be looked up, but not read."""
    values = {}
    for position, name in enumerate(names):
        label, count = f"{source}: column {name!r}", names.count(name)

        def read_one(position: int = position, label: str = label, count: int = count) -> "Column":
            if count > 1:
                raise UserError(
                    f"{label}: there are {count} columns of this name; names must be unique"
                )
            return read(position)

        values[name] = Values(label, (rows,), read_one)
    return Arrays(source, values, is_table=True)


def _of_mapping(arrays: Mapping[Any, Any]) -> Arrays:
    values = {}
    for name, value in arrays.items():
        label = f"arrays: array {str(name)!r}"
        array = as_array(value, label)
        values[str(name)] = Values(label, array.shape, lambda array=array: array)
    return Arrays("arrays", values, is_table=False)


# Tables


def _kind(path: Path) -> tuple[str, str]:
    """Returns the suffix that says the format, in lower case, and how the file is compressed: "gzip", "zstd" or ""."""
    suffixes = [suffix.lower() for suffix in path.suffixes] or [""]
    if suffixes[-1] in COMPRESSED and len(suffixes) > 1:
        return suffixes[-2], COMPRESSED[suffixes[-1]]
    kind = {".ndjson": ".jsonl"}.get(suffixes[-1], suffixes[-1])
    return kind, ""


def _check_signature(path: Path, kind: str, compression: str) -> None:
    """Raises UserError if a file of text is something else, judged by its first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise _unreadable(path, error) from error
    for signature, name in _SIGNATURES.items():
        if start.startswith(signature) and name != f"compressed by {compression}":
            raise UserError(
                f"{path}: is {name}, not a {kind[1:]} file in UTF-8; rename or convert it"
            )


def _open_text(path: Path) -> "pa.NativeFile":
    """Opens a file of text, which is decompressed while it is read."""
    compression = _kind(path)[1]
    return pa.input_stream(path, compression=compression or None)


def _check_memory(path: Path, num_bytes: float) -> None:
    if num_bytes > _MAX_MEMORY_SHARE * memory_bytes():
        raise UserError(
            f"{path}: its values take more than half of this machine's memory; split the file, or leave out columns "
            "that are not used"
        )


def _read_csv(path: Path, strings: Collection[str]) -> pa.Table:
    """Reads a file of values that are separated by commas, tabs or semicolons, as its first line shows."""
    parsing = csv.ParseOptions(
        delimiter=_delimiter(path),
        # Otherwise, a text with line breaks that crosses a block of the file, of 1 MB, would be an error.
        newlines_in_values=True,
    )
    types = dict.fromkeys(strings, pa.large_string())
    converting = csv.ConvertOptions(
        null_values=[*_MISSING], strings_can_be_null=False, column_types=types
    )
    try:
        _check_memory(path, path.stat().st_size)
        source: Any = path
        if _kind(path)[1]:
            # The size is known only when all is decompressed; more than half of the memory is never kept.
            source, num_bytes, blocks = io.BytesIO(), 0, _open_text(path)
            with blocks:
                while block := blocks.read(2**24):
                    num_bytes += len(block)
                    _check_memory(path, 2 * num_bytes)
                    source.write(block)
            source.seek(0)
        return _stripped(csv.read_csv(source, parse_options=parsing, convert_options=converting))
    except (pa.ArrowException, UnicodeDecodeError) as error:
        error = _error_with_row(path, parsing, error)
        raise UserError(
            f"{path}: is not a valid {_kind(path)[0][1:]} file ({one_line(error)}); repair it"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _stripped(table: pa.Table) -> pa.Table:
    """Returns a table without spaces around the names of columns, which often follow the commas of a header."""
    return table.rename_columns([name.strip() for name in table.column_names])


def _delimiter(path: Path) -> str:
    """Returns what separates the names in the first line of a file: a comma, or a tab or semicolon if it has none."""
    try:
        with _open_text(path) as file:
            header = file.read(2**16).split(b"\n")[0]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    return next((mark for mark in ",\t;" if mark.encode() in header), ",")


def _error_with_row(path: Path, parsing: csv.ParseOptions, error: Exception) -> Exception:
    """Returns the error of reading a csv file; if it is read by one thread, the error names the row."""
    try:
        with _open_text(path) as file:
            csv.read_csv(file, csv.ReadOptions(use_threads=False), parsing)
    except pa.ArrowException as with_row:
        return with_row
    except OSError as unreadable:
        return unreadable
    return error


def _read_json(path: Path, strings: Collection[str]) -> pa.Table:
    """Reads a file with an object in each line, or with one list of objects."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    read = 0
    try:
        with _open_text(path) as file, io.BufferedReader(file) as lines:  # pyright: ignore[reportArgumentType]
            for number, line in enumerate(lines, 1):
                read += len(line)
                _check_memory(path, 4 * read)  # objects of Python take more than their text
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if number == 1 and text.startswith("["):
                    _check_memory(path, 4 * path.stat().st_size)
                    text += lines.read().decode()
                if text:
                    _add_objects(rows, text, f"{path}:{number}", problems)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 ({one_line(error)}); convert it") from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    if problems:
        more = len(problems) - _SHOWN
        rest = [f"{path}: {more:,} more lines are invalid"] if more > 0 else []
        raise UserError("\n".join([*problems[:_SHOWN], *rest]))
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table(
        {name: _json_column([row.get(name) for row in rows], name in strings) for name in names}
    )


def _add_objects(rows: list[dict[str, Any]], text: str, where: str, problems: list[str]) -> None:
    """Appends the objects of a line of JSON, or a line about what it is instead."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        problems.append(f"{where}: is not JSON ({one_line(error)}); save one object per line")
        return
    if isinstance(value, dict):
        rows.append(value)
    elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        rows.extend(value)
    else:
        problems.append(
            f'{where}: is not an object; save one object per line, such as {{"id": "a", "member": 1}}'
        )


def _json_column(values: list[Any], is_string: bool) -> "Column":
    """Returns values of JSON as a column; those of several types as texts."""
    if is_string:
        values = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values])


def _read_arrow(path: Path) -> pa.Table:
    _check_memory(path, path.stat().st_size)
    try:
        return feather.read_table(path)
    except pa.ArrowException:
        pass
    try:
        with pa.ipc.open_stream(path) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{path}: is not a readable file of Arrow ({one_line(error)}); copy or save it again"
        ) from error


def _open_parquet(path: Path) -> Arrays:
    """Opens a parquet file, whose columns are read one by one."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                raise UserError(f"{path}: is not a parquet file; save it again, or rename it")
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
    except OSError as error:
        raise _unreadable(path, error) from error
    except (pa.ArrowException, ValueError) as error:
        raise UserError(
            f"{path}: is not a valid parquet file ({one_line(error)}); copy or save it again"
        ) from error
    _check_memory(path, 8 * rows)

    def read(position: int) -> "Column":
        try:
            return pq.read_table(path, columns=[names[position]]).column(0)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(
                f"{path}: column {names[position]!r} is not readable ({one_line(error)}); copy or save the file again"
            ) from error

    return _columns(str(path), names, rows, read)


# npz files


@dataclasses.dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    num_bytes: int
    """Of the header itself."""

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _RefusedError(Exception):
    """An array that is not read, with the rule and the remedy."""


def _open_npz(path: Path) -> Arrays:
    """Opens an npz file, of which only the headers are read; large uncompressed arrays are mapped into memory."""
    problems: list[str] = []
    values: dict[str, Values] = {}
    try:
        with path.open("rb") as file:
            _check_start(path, file.read(8))
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(path, entries, problems)
            for member in entries if not problems else []:
                name = member.filename.removesuffix(".npy")
                label = f"{path}: array {name!r}"
                try:
                    header = _read_header(archive, member)
                except _RefusedError as error:
                    problems.append(f"{label}: {error}")
                    continue
                except _DAMAGED as error:
                    problems.append(
                        f"{label}: its header is damaged ({one_line(error)}); save the file again"
                    )
                    continue
                values[name] = Values(
                    label,
                    header.shape,
                    lambda m=member, h=header, label=label: _read_npz(path, m, h, label),
                )
    except zipfile.BadZipFile as error:
        raise UserError(
            f"{path}: the npz file is truncated or damaged ({one_line(error)}); copy or save it again"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if problems:
        raise UserError("\n".join(problems))
    return Arrays(str(path), values, is_table=False)


def _read_npz(path: Path, member: zipfile.ZipInfo, header: _Header, label: str) -> np.ndarray:
    is_mapped = member.compress_type == zipfile.ZIP_STORED and header.size_bytes >= _MAPPED_BYTES
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            if not is_mapped:
                return np.lib.format.read_array(file, allow_pickle=False)
            while file.read(2**24):  # reading to the end compares the checksum
                pass
        order = "F" if header.fortran_order else "C"
        offset = _data_offset(path, member) + header.num_bytes
        return np.memmap(path, header.dtype, "r", offset, header.shape, order)
    except _DAMAGED as error:
        raise UserError(
            f"{label}: its values are damaged ({one_line(error)}); copy or save the file again"
        ) from error


def _check_start(path: Path, start: bytes) -> None:
    """Raises UserError unless a file starts like a zip file."""
    if start.startswith(b"\x93NUMPY"):
        raise UserError(
            f"{path}: is a single array without a name (.npy); save with np.savez(FILE, NAME=ARRAY, ...)"
        )
    if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise UserError(f"{path}: is not an npz file; save it with np.savez")


def _check_entries(path: Path, entries: list[zipfile.ZipInfo], problems: list[str]) -> None:
    """Appends the problems of the directory of the archive."""
    if not entries:
        problems.append(f"{path}: holds no arrays; save it again with np.savez")
    for name, count in Counter(entry.filename for entry in entries).items():
        if not name.endswith(".npy"):
            problems.append(
                f"{path}: holds {name!r}, which is not an array; write the file with np.savez only"
            )
        elif count > 1:
            problems.append(
                f"{path}: holds {count} arrays named {name.removesuffix('.npy')!r}; names must be unique"
            )


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """Returns the header of an array; raises `_RefusedError` if the array must not be read."""
    if member.flag_bits & 1:
        raise _RefusedError("is encrypted; save it with np.savez")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _RefusedError("is not compressed by deflate; save it with np.savez")
    with archive.open(member) as file:
        header = _parse_header(file)
    if header.dtype.hasobject:
        raise _RefusedError(
            "holds pickled Python objects, which are never loaded; save it as numbers or as fixed-width strings"
        )
    if header.dtype.kind == "V" and header.dtype.names is None:
        raise _RefusedError(
            f"holds values of {header.dtype.itemsize} bytes of an unknown type, as bfloat16 is saved; save "
            "array.astype(np.float32)"
        )
    if header.dtype.kind == "V":
        raise _RefusedError("holds records of several fields; save each field as an array")
    if not all(size > 0 for size in header.shape):
        raise _RefusedError(f"is empty, of shape {header.shape}; leave it out, or save its values")
    if member.file_size != header.num_bytes + header.size_bytes:
        raise _RefusedError(
            f"is truncated: shape {header.shape} of {header.dtype} takes {header.size_bytes:,} bytes, but there are "
            f"{max(member.file_size - header.num_bytes, 0):,}; save it again"
        )
    is_stored = member.compress_type == zipfile.ZIP_STORED
    if is_stored and member.compress_size != member.file_size:
        raise _RefusedError("is damaged: its two sizes differ; save it again")
    if not is_stored and member.file_size > _MAX_MEMORY_SHARE * memory_bytes():
        raise _RefusedError(
            f"takes {member.file_size / 2**30:,.1f} GiB, over half of this machine's memory; save it with np.savez, "
            "uncompressed, and it is read in blocks"
        )
    return header


def _parse_header(file: IO[bytes]) -> _Header:
    """Reads the header of an array; raises ValueError if it is damaged."""
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # version 3 is for records whose fields have names beyond Latin-1
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers that Python 2 wrote
        shape, fortran_order, dtype = readers[version](file)
    if not all(isinstance(size, int) and 0 <= size < 2**48 for size in shape):
        raise ValueError(f"shape {shape}")
    return _Header(shape, dtype, fortran_order, file.tell())


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Returns where the content of an uncompressed member starts in the file.

    The lengths of the name and of the extra field may differ from those in the directory of the archive.
    """
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra_bytes = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name_bytes + extra_bytes


# netCDF files and Zarr stores


def _open_dataset(path: Path) -> Arrays:
    """Opens a dataset with variables of the dimensions model and sample, such as our own score store."""
    import xarray as xr  # takes half a second

    check_zarr(path)
    try:
        dataset = _open_zarr(path) if path.is_dir() else xr.open_dataset(path)
    except Exception as error:  # each backend of xarray raises errors of its own
        hint = "copy it again, or save it by dataset.to_zarr of xarray, which names the dimensions"
        if not path.is_dir():
            hint = "copy or save it again, or run `pip install h5netcdf` if it is a netCDF4 file"
        raise UserError(
            f"{path}: xarray cannot read it ({type(error).__name__}: {one_line(error)}); {hint}"
        ) from error
    problems: list[str] = []
    values: dict[str, Values] = {}
    for name, variable in dataset.variables.items():
        dims = tuple(map(str, variable.dims))
        shape = _shape_letters(str(name), dims)
        label = f"{path}: variable {str(name)!r}"
        if "checkpoint" in dims and name in ("loss", "member"):
            problems.append(
                f"{path}: {name} has a dimension checkpoint; save one checkpoint, such as "
                "dataset.isel(checkpoint=-1)"
            )
        elif shape:
            kept = "name" if str(name) == "model" else str(name).removesuffix(f"_{shape}")
            array = dataset[name]
            if dims == ("sample", "model"):
                array = array.transpose("model", "sample")
            is_matrix = len(dims) == 2

            def read_row(m: int, array: "xr.DataArray" = array, label: str = label) -> np.ndarray:
                return _read_variable(array[m], label)

            values[f"{kept}_{shape}"] = Values(
                label,
                array.shape,
                lambda array=array, label=label: _read_variable(array, label),
                read_row if is_matrix else None,
            )
        elif name in ("loss", "member"):
            problems.append(
                f"{path}: {name} has the dimensions ({', '.join(dims)}); they must be (model, sample)"
            )
    if problems:
        raise UserError("\n".join(problems))
    return Arrays(str(path), values, is_table=False, attributes=dataset.attrs)


def _shape_letters(name: str, dims: tuple[str, ...]) -> str:
    """Returns the shape of a variable as array names have it, by its dimensions or else by its name; "" if unknown."""
    by_dims = {
        ("model", "sample"): "MxN",
        ("sample", "model"): "MxN",
        ("sample",): "N",
        ("model",): "M",
    }
    if dims in by_dims:
        return by_dims[dims]
    ending = name.rpartition("_")[2]
    return ending if {"MxN": 2, "N": 1, "M": 1}.get(ending) == len(dims) else ""


def _read_variable(array: "xr.DataArray", label: str) -> np.ndarray:
    try:
        return array.to_numpy()
    except Exception as error:  # each backend of xarray raises errors of its own
        raise UserError(
            f"{label}: its values are damaged ({type(error).__name__}: {one_line(error)}); copy or save them again"
        ) from error


def _open_zarr(path: Path) -> "xr.Dataset":
    """Opens a Zarr store without taking zeros for missing values.

    Arrays of Zarr format 2 have the fill value 0 unless it is set, and xarray reads a fill value as a missing value.
    """
    import xarray as xr  # takes half a second

    with warnings.catch_warnings():
        # Consolidated metadata are only an accelerator.
        warnings.filterwarnings(
            "ignore", "Failed to open Zarr store with consolidated", RuntimeWarning
        )
        dataset = xr.open_zarr(path)
        if (path / "zarr.json").exists():
            return dataset
        stored = xr.open_zarr(path, mask_and_scale=False)
    zeros = [
        name
        for name, variable in dataset.variables.items()
        if variable.encoding.get("_FillValue") in (0, False)
        and not {"scale_factor", "add_offset"} & variable.encoding.keys()
    ]
    return dataset.assign({name: stored[name] for name in zeros})


# Values


def _plain(column: "Column") -> "Column":
    """Returns a column with the values themselves in place of numbers of a dictionary of them."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column


def _numbers(column: "Column", label: str, remedy: str = "save one number per row") -> np.ndarray:
    """Returns a column of numbers as float64, NaN where they are missing."""
    kind = column.type
    if pa.types.is_null(kind):
        raise UserError(f"{label}: is empty; {remedy}")
    if is_text(kind):
        import pandas as pd

        texts = column.to_pandas()
        numbers = pd.to_numeric(texts, errors="coerce")
        wrong = np.flatnonzero(numbers.isna() & texts.notna() & ~texts.isin(_MISSING))
        if not wrong.size:
            raise UserError(f"{label}: holds strings; save it as numbers")
        raise UserError(
            f"{label}: {wrong.size:,} values are not numbers, such as {texts.iloc[wrong[0]][:40]!r} in row "
            f"{wrong[0] + 1}; leave the cell empty if a value is missing"
        )
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not (is_number or pa.types.is_decimal(kind)):  # databases export numbers as decimals
        raise UserError(f"{label}: holds {type_name(kind)}; {remedy}")
    return column.cast(pa.float64(), safe=False).to_pandas().to_numpy()


def _parse_members(value_N: np.ndarray, label: str) -> np.ndarray:
    """Returns booleans of the words that say who is a member; raises UserError for other words."""
    flat = value_N.ravel()
    words = {word: MEMBERS.get(str(word).strip().lower()) for word in {*flat.tolist()}}
    if unknown := [word for word, is_member in words.items() if is_member is None]:
        if "" in unknown or None in unknown:
            missing = int(sum(word in ("", None) for word in flat.tolist()))
            raise UserError(
                f"{label}: is missing for {missing:,} samples; leave out samples of unknown membership"
            )
        raise UserError(
            f"{label}: holds strings, such as {str(unknown[0])[:40]!r}; save 1 for members and 0 for other samples, "
            "or member and nonmember, true and false, yes and no"
        )
    return np.array([words[word] for word in flat.tolist()], np.bool_).reshape(value_N.shape)


def _array_of_strings(array: np.ndarray, label: str) -> np.ndarray:
    """Returns an array of strings, whole numbers or booleans as strings; missing values are empty."""
    if array.dtype.kind in "US":
        if array.dtype.kind == "S":
            raise UserError(f"{label}: holds bytes; save strings, array.astype(str)")
        return array.astype(object)
    if array.dtype.kind in "iub":
        return array.astype(str).astype(object)
    if array.dtype.kind == "f":
        whole = np.isnan(array) | (array == np.rint(array))
        if not whole.all():
            raise UserError(
                f"{label}: holds fractions, such as {array[~whole].ravel()[0]:g}; save names as strings or whole "
                "numbers"
            )
        if (np.abs(np.nan_to_num(array)) >= 2**53).any():
            raise UserError(
                f"{label}: holds numbers whose last digits are lost; save them as strings"
            )
        return np.array(["" if np.isnan(v) else str(int(v)) for v in array.tolist()], object)
    if array.dtype.kind != "O":
        raise UserError(f"{label}: holds {_kind_name(array.dtype)}; save numbers or strings")
    strings = []
    for value in array.tolist():
        is_missing = value is None or (isinstance(value, float) and math.isnan(value))
        if not is_missing and not isinstance(value, str | int):
            raise UserError(
                f"{label}: holds values of type {type(value).__name__}; save strings or whole numbers"
            )
        strings.append("" if is_missing else str(value))
    return np.array(strings, object)


def _blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the values in blocks, in the order of `_order`, with the position of the first one."""
    flat = array.reshape(-1, order=_order(array))  # a view
    for start in range(0, flat.size, _BLOCK):
        yield start, flat[start : start + _BLOCK]


def _order(array: np.ndarray) -> Any:
    """Returns the order in which the values lie on disk, so that each page is read once."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _count_at(array: np.ndarray, first: int, count: int) -> str:
    """Returns, for example, "3 invalid values, such as inf at [0, 17]"; a single index is a row."""
    index = tuple(map(int, np.unravel_index(first, array.shape, order=_order(array))))
    where = f"row {index[0] + 1}" if len(index) == 1 else str([*index])
    values = "1 invalid value," if count == 1 else f"{count:,} invalid values, such as"
    return f"{values} {array[index]:g} at {where}"


def _kind_name(dtype: np.dtype) -> str:
    """Returns the kind of values in words, for error messages."""
    kinds = {"b": "booleans", "c": "complex numbers", "U": "strings", "S": "bytes", "M": "dates"}
    return kinds.get(dtype.kind, f"values of type {dtype}")


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read ({one_line(error)}); check the file and its permissions"
    )
