"""Texts from a user's files: .txt, .jsonl, .jsonl.gz and .parquet, in a stable order."""

import glob
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.errors import UserError

SUFFIXES = {"text": (".txt",), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}


def read(
    source: str, path: str, column: str, progress: Callable[[int, int], None]
) -> tuple[list[str], list[str], list[str]]:
    """Every text of the files, empty ones too (null counts as empty).

    Args:
      source: text (a document a file), jsonl (a line) or parquet (a row).
      path: see `find`.
      column: of jsonl and parquet.
      progress: ``progress(files done, files)``.

    Returns:
      Texts; where each stands (``NAME``, ``NAME:LINE`` from 1, ``NAME:ROW`` from 0); the names.

    Raises:
      UserError: if there is no file, one cannot be read (names it and the line), the column is
        missing or not of texts, or every text is empty.
    """
    files = find_files(path, SUFFIXES[source])
    texts: list[str] = []
    records: list[str] = []
    for done, (name, file) in enumerate(files, 1):
        try:
            for place, text in _READERS[source](file, column):
                texts.append(text)
                records.append(name + place)
        except OSError as error:
            raise UserError(f"corpus.path={path!r}: {file} cannot be read ({error})") from None
        progress(done, len(files))
    if not any(text.strip() for text in texts):
        field, value = ("path", path) if source == "text" else ("column", column)
        raise UserError(
            f"corpus.{field}={value!r}: all {len(texts)} texts of {len(files)} file(s) in "
            f"{path} are empty; name another {field}"
        )
    return texts, records, [name for name, _ in files]


def find_files(path: str, suffixes: tuple[str, ...]) -> list[tuple[str, Path]]:
    """(name, path) of a file, of a folder's files with the suffixes at any depth, or of a glob's.

    Names are relative to the folder (of a glob: to the part before the first wildcard), with
    forward slashes, and give the order. A file, and what a glob matches, may have any suffix.

    Raises:
      UserError: if there is none.
    """
    root = Path(path).expanduser()
    if root.is_file():
        return [(root.name, root)]
    if root.is_dir():
        found = [p for p in root.rglob("*") if p.name.endswith(suffixes)]
    elif glob.has_magic(path):
        found = [Path(p) for p in glob.glob(str(root), recursive=True)]
        wild = next(i for i, part in enumerate(root.parts) if glob.has_magic(part))
        root = Path(*root.parts[:wild])
    else:
        raise UserError(f"corpus.path={path!r}: no such file or folder; check the spelling")
    files = [(p.relative_to(root).as_posix(), p) for p in found if p.is_file()]
    if not files:
        kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise UserError(f"corpus.path={path!r}: no matching file; {kinds} is looked for in folders")
    return sorted(files)


def _read_text(path: Path, column: str) -> Iterator[tuple[str, str]]:
    raw = path.read_bytes()
    try:
        yield "", raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _broken(path, line, f"not UTF-8 ({error.reason})") from None


def _read_jsonl(path: Path, column: str) -> Iterator[tuple[str, str]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f":{number}", _field(json.loads(line.decode("utf-8-sig")), column)
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise _broken(path, number, f"not UTF-8 ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise _broken(path, number, f"not JSON ({error.msg} at column {error.colno})") from None
    except TypeError as error:
        raise _broken(path, number, str(error)) from None
    except KeyError as error:
        raise _no_column(column, f"{path}, line {number}", error.args[0]) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _broken(path, number + 1, f"not a sound gzip file ({error})") from None


def _field(record: object, column: str) -> str:
    """The column's text; TypeError, KeyError (with the columns) or UnicodeEncodeError if none."""
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    if column not in record:
        raise KeyError(list(record))
    text = "" if record[column] is None else record[column]
    if not isinstance(text, str):
        raise TypeError(f"column {column!r} is not a text")
    text.encode()  # lone surrogates are valid JSON and no text
    return text


def _read_parquet(path: Path, column: str) -> Iterator[tuple[str, str]]:
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise _no_column(column, str(path), file.schema_arrow.names)
            kind = file.schema_arrow.field(column).type
            if not any(is_kind(kind) for is_kind in _STRINGS):
                raise UserError(f"corpus.column={column!r}: {path} has {kind} there, not texts")
            row = 0
            for batch in file.iter_batches(columns=[column]):
                for text in batch.column(0).to_pylist():
                    yield f":{row}", text or ""
                    row += 1
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"corpus.path: {path} is no sound parquet file ({error})") from None


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


def _broken(path: Path, line: int, what: str) -> UserError:
    return UserError(f"corpus.path: {path}, line {line}: {what}; mend or remove it")


def _no_column(column: str, where: str, columns: Iterable[str]) -> UserError:
    return UserError(
        f"corpus.column={column!r}: no such column in {where}; it has {', '.join(columns)}"
    )
