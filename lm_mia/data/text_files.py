"""Reads texts from a user's files (.txt, .jsonl, .jsonl.gz and .parquet) in a stable order."""

import dataclasses
import glob
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.errors import UserError

SUFFIXES = {"text": (".txt",), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts that were read from files, and where they come from."""

    texts: list[str] = dataclasses.field(repr=False)
    """All texts, including empty ones; null counts as an empty text."""
    records: list[str] = dataclasses.field(repr=False)
    """Where each text comes from: ``NAME``, ``NAME:LINE`` counted from 1, or ``NAME:ROW`` counted from 0."""
    files: list[str]
    """The names of all files."""
    not_utf8: list[str]
    """The names of .txt files that were left out because they are not UTF-8."""


def read(source: str, path: str, column: str, progress: Callable[[int, int], None]) -> Texts:
    """Reads all texts of the files; .txt files that are not UTF-8 are left out.

    Args:
      source: text (one document per file), jsonl (one per line) or parquet (one per row).
      path: file, folder or glob; see `find_files`.
      column: text column of jsonl and parquet files.
      progress: ``progress(files done, files)``, called after each file.

    Raises:
      UserError: if there is no matching file, a file cannot be read or a line of a jsonl file is invalid (the message
        names the file and the line), the column is missing or does not contain text, or every text is empty.
    """
    files = find_files(path, SUFFIXES[source])
    texts: list[str] = []
    records: list[str] = []
    not_utf8: list[str] = []
    for done, (name, file) in enumerate(files, 1):
        try:
            for position, text in _READERS[source](file, column):
                texts.append(text)
                records.append(name + position)
        except UnicodeDecodeError:  # of a text file; those of other files are UserErrors
            not_utf8.append(name)
        except OSError as error:
            raise UserError(
                f"corpus.path={path!r}: {file} cannot be read ({error}); check the file and its permissions"
            ) from None
        progress(done, len(files))
    if not texts and not_utf8:
        raise UserError(
            f"corpus.path={path!r}: none of the {len(files)} file(s) is UTF-8, such as {not_utf8[0]}; convert them, "
            "for example with iconv --from-code=latin1 --to-code=utf-8"
        )
    if not any(text.strip() for text in texts):
        field, value = ("path", path) if source == "text" else ("column", column)
        raise UserError(
            f"corpus.{field}={value!r}: all {len(texts)} texts of {len(files)} file(s) in {path} are empty; choose "
            f"another {field}"
        )
    return Texts(texts, records, [name for name, _ in files], not_utf8)


def find_files(path: str, suffixes: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Returns the name and path of each file, sorted by name.

    Names have forward slashes and are relative to the folder, or for a glob to the part before its first wildcard.

    Args:
      path: a single file; a folder, which is searched at any depth; or a glob.
      suffixes: suffixes of the files to look for in a folder. A single file and the matches of a glob may have any
        suffix.

    Raises:
      UserError: if there is no matching file.
    """
    root = Path(path).expanduser()
    if root.is_file():
        return [(root.name, root)]
    if root.is_dir():
        paths = [p for p in root.rglob("*") if p.name.endswith(suffixes)]
    elif glob.has_magic(path):
        paths = [Path(p) for p in glob.glob(str(root), recursive=True)]
        first_wildcard = next(i for i, part in enumerate(root.parts) if glob.has_magic(part))
        root = Path(*root.parts[:first_wildcard])
    else:
        raise UserError(f"corpus.path={path!r}: no such file or folder; check the spelling")
    files = [(p.relative_to(root).as_posix(), p) for p in paths if p.is_file()]
    if not files:
        kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise UserError(
            f"corpus.path={path!r}: no matching file; folders are searched for {kinds}, so check the path"
        )
    return sorted(files)


def changed_files(source: str, path: str, names: Sequence[str], time_ns: int) -> list[str]:
    """Returns the names of files that were added, removed, changed or replaced after they were read; opens no file.

    Args:
      source, path: as in `read`.
      names: the names of the files that were read.
      time_ns: a time after they were read, in nanoseconds.

    Returns:
      The names in order; an empty list if the path does not exist any more.
    """
    try:
        files = dict(find_files(path, SUFFIXES[source]))
    except UserError:
        return []
    # In contrast to the time of modification, this one cannot be set to that of the file that was replaced.
    newer = {name for name, file in files.items() if file.stat().st_ctime_ns > time_ns}
    return sorted(newer | ({*files} ^ {*names}))


def _read_text(path: Path, column: str) -> Iterator[tuple[str, str]]:
    yield "", path.read_bytes().decode("utf-8-sig")


def _read_jsonl(path: Path, column: str) -> Iterator[tuple[str, str]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f":{number}", _field(json.loads(line.decode("utf-8-sig")), column)
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise _invalid_line(path, number, f"not UTF-8 ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise _invalid_line(
            path, number, f"not JSON ({error.msg} at column {error.colno})"
        ) from None
    except TypeError as error:
        raise _invalid_line(path, number, str(error)) from None
    except KeyError as error:
        raise _missing_column(column, f"{path}, line {number}", error.args[0]) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _invalid_line(path, number + 1, f"not a valid gzip file ({error})") from None


def _field(record: object, column: str) -> str:
    """Returns the text in the column of a record.

    Raises:
      TypeError: if the record is not an object, or the value is not a string.
      KeyError: if the column is missing; its argument is the list of columns.
      UnicodeEncodeError: if the text contains lone surrogates.
    """
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    if column not in record:
        raise KeyError(list(record))
    text = "" if record[column] is None else record[column]
    if not isinstance(text, str):
        raise TypeError(f"column {column!r} is not a string")
    text.encode()  # fails for lone surrogates, which are valid in JSON but not in UTF-8
    return text


def _read_parquet(path: Path, column: str) -> Iterator[tuple[str, str]]:
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise _missing_column(column, str(path), file.schema_arrow.names)
            kind = file.schema_arrow.field(column).type
            if not any(is_kind(kind) for is_kind in _STRINGS):
                raise UserError(
                    f"corpus.column={column!r}: the column has type {kind} in {path}; choose a column of strings"
                )
            row = 0
            for batch in file.iter_batches(columns=[column]):
                for text in batch.column(0).to_pylist():
                    yield f":{row}", text or ""
                    row += 1
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(
            f"corpus.path: {path} is not a valid parquet file ({error}); repair or remove it"
        ) from None


_STRINGS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_null,
)
_READERS: dict[str, Callable[[Path, str], Iterator[tuple[str, str]]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
}


def _invalid_line(path: Path, line: int, problem: str) -> UserError:
    return UserError(f"corpus.path: {path}, line {line}: {problem}; repair or remove it")


def _missing_column(column: str, where: str, columns: Iterable[str]) -> UserError:
    return UserError(
        f"corpus.column={column!r}: no such column in {where}; choose one of {', '.join(columns)}"
    )
