"""The one reader of texts that a user brings: files of a corpus, and tables whose texts have ids and members.

`read` reads the texts of files for a corpus, in a stable order: text, Markdown, JSON lines, CSV and Parquet, compressed
or not. It reads a line at a time, and names the line of a mistake. `read_table` reads a table of texts for which losses
are computed, and `read_members` the table that says which models were trained on which texts.

N: texts.
"""

import csv
import dataclasses
import glob
import gzip
import io
import itertools
import json
import os
import sys
import textwrap
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from lm_mia.atomic import replacing
from lm_mia.data.arrays import Values, listed, open_arrays
from lm_mia.data.losses import STATISTICS
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.errors import UserError, collect_errors

FORMATS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "jsonl",
    ".md": "text",
}
"""Suffix -> source. Of a folder, only the files with the first of these suffixes that occurs are read, since the others
are often metadata, such as README.md beside .txt files or dataset_info.json beside .parquet files."""
SOURCES = frozenset(FORMATS.values())
_COMPRESSED = (".gz", ".zst")
_ACCEPTED = (
    ".txt, .md, .jsonl, .json, .csv (each also compressed, as in .txt.gz or .txt.zst) and .parquet"
)

_STRINGS = ("document", *RECORD_COLUMNS)
# `lm-mia import` would not read these names as columns of the samples, or they are of the whole text, of which a model
# may see only the beginning.
_NOT_KEPT = ("sample", "loss", "role", "tokens", "zlib_bytes", "tfidf", "unk", *STATISTICS)
_SHOWN = 5  # ids, names or problems listed in a message


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts that were read from files, and where they come from."""

    texts: list[str] = dataclasses.field(repr=False)
    """All texts, including empty ones; null counts as an empty text."""
    names: list[str] = dataclasses.field(repr=False)
    """The name of each text: ``FILE``, ``FILE:LINE`` counted from 1, or ``FILE:ROW`` counted from 0."""
    sources: list[str] = dataclasses.field(repr=False)
    """The file of each text or, if each text has a file of its own, the top folder of the file; "" without a folder."""
    files: list[str]
    """The names of all files."""
    not_utf8: list[str]
    """The names of text files that were left out because they are not UTF-8."""
    other_files: dict[str, int]
    """Numbers of files in the folder that were not read, by suffix in order; hidden files are not counted."""


def read(source: str, path: str, column: str, progress: Callable[[int, int], None]) -> Texts:
    """Reads all texts of the files; text files that are not UTF-8 are left out.

    Files that begin like a gzip or zstd file are decompressed, whatever their names.

    Args:
      source: text (one document per file), jsonl (one per line), csv or parquet (one per row).
      path: file, folder or glob; see `find_files`.
      column: text column of jsonl, csv and parquet files.
      progress: ``progress(files done, files)``, called after each file.

    Raises:
      UserError: if there is no matching file, a file cannot be read or a line of a file is invalid (the message names
        the file and the line), the column is missing or does not contain text, or every text is empty.
    """
    files = find_files(source, path)
    texts: list[str] = []
    names: list[str] = []
    sources: list[str] = []
    not_utf8: list[str] = []
    for done, (name, file) in enumerate(files, 1):
        try:
            for position, text in _READERS[source](file, column):
                texts.append(text)
                names.append(name + position)
                sources.append(top_folder(name) if source == "text" else name)
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
    if not texts:
        raise UserError(
            f"corpus.path={path!r}: the {len(files)} file(s) have no texts: they are empty or end after the header; "
            "choose others"
        )
    if not any(text.strip() for text in texts):
        field, value = ("path", path) if source == "text" else ("column", column)
        raise UserError(
            f"corpus.{field}={value!r}: all {len(texts)} texts of {len(files)} file(s) in {path} are empty; choose "
            f"another {field}"
        )
    read_files = [name for name, _ in files]
    return Texts(texts, names, sources, read_files, not_utf8, _other_files(path, read_files))


def top_folder(name: str) -> str:
    """Returns the first folder of a relative path; "" if there is none."""
    folder, slash, _ = name.partition("/")
    return folder if slash else ""


def source_of(path: str) -> str:
    """Returns the source that reads a path, by the suffixes of its files.

    Raises:
      UserError: if there is no file, a file or a match of a glob has an unknown suffix, or a glob matches files of
        several sources.
    """
    files = find_files(None, path)
    if unknown := [name for name, _ in files if suffix(name) not in FORMATS]:
        raise UserError(
            f"corpus.path={path!r}: {unknown[0]} has none of the suffixes {_ACCEPTED}; rename or convert it"
        )
    counts = Counter(suffix(name) for name, _ in files)
    sources = {FORMATS[kind] for kind in counts}
    if len(sources) > 1:
        raise UserError(
            f"corpus.path={path!r}: the glob matches files of several formats ({describe_suffixes(counts)}); choose a "
            "glob of one format"
        )
    return sources.pop()


def find_files(source: str | None, path: str) -> list[tuple[str, Path]]:
    """Returns the name and path of each file, sorted by name.

    Names have forward slashes and are relative to the folder, or for a glob to the part before its first wildcard.

    Args:
      source: the source whose formats are looked for in a folder; None: all. A single file and the matches of a glob
        may have any suffix.
      path: a single file; a folder, which is searched at any depth for files of one format, see `FORMATS`, except for
        hidden files; or a glob.

    Raises:
      UserError: if there is no matching file.
    """
    root = Path(path).expanduser()
    if root.is_file():
        return [(root.name, root)]
    if root.is_dir():
        by_suffix: dict[str, list[Path]] = {}
        for file in _files_below(root):
            by_suffix.setdefault(suffix(file.name), []).append(file)
        formats = [kind for kind, reader in FORMATS.items() if source in (None, reader)]
        paths = next((by_suffix[kind] for kind in formats if kind in by_suffix), [])
        if not paths:
            others = Counter({kind: len(files) for kind, files in by_suffix.items()})
            has = f"has only {describe_suffixes(others)}" if others else "is empty"
            accepted = " or ".join(formats) if source else _ACCEPTED
            raise UserError(
                f"corpus.path={path!r}: no matching file; the folder is searched for files with the suffix {accepted}, "
                f"but {has}; check the path"
            )
    elif glob.has_magic(path):
        paths = [p for p in map(Path, glob.glob(str(root), recursive=True)) if p.is_file()]
        first_wildcard = next(i for i, part in enumerate(root.parts) if glob.has_magic(part))
        root = Path(*root.parts[:first_wildcard])
        if not paths:
            raise UserError(f"corpus.path={path!r}: no matching file; check the glob")
    else:
        raise UserError(f"corpus.path={path!r}: no such file or folder; check the spelling")
    return sorted((p.relative_to(root).as_posix(), p) for p in paths)


def suffix(name: str) -> str:
    """Returns the suffix of a file's name in lower case, and that before .gz or .zst; empty if there is none."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def describe_suffixes(counts: Mapping[str, int]) -> str:
    """Describes numbers of files by suffix, such as "12 .csv and 3 .md files"; only the most frequent ones by name."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count:,} {kind or 'without suffix'}" for kind, count in ordered[:4]]
    if rest := sum(count for _, count in ordered[4:]):
        parts.append(f"{rest:,} other")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts) + " files"


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
        files = dict(find_files(source, path))
    except UserError:
        return []
    # In contrast to the time of modification, this one cannot be set to that of the file that was replaced.
    newer = {name for name, file in files.items() if file.stat().st_ctime_ns > time_ns}
    return sorted(newer | ({*files} ^ {*names}))


def parse_json(line: bytes) -> Any:
    """Returns the value of a line of JSON in UTF-8; raises ValueError, whose message says what is wrong, if invalid."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except ValueError:  # of int(), whose message advises to change a setting of Python
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"JSON with an integer of more than {digits:,} digits") from None


def _files_below(root: Path) -> Iterator[Path]:
    """Yields the files of a folder at any depth except hidden ones; raises UserError if a folder cannot be read."""

    def fail(error: OSError) -> NoReturn:
        raise UserError(
            f"corpus.path={str(root)!r}: {error.filename} cannot be read ({error.strerror}); check the folder and its "
            "permissions"
        ) from None

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        yield from (file for name in visible if (file := Path(folder, name)).is_file())


def _other_files(path: str, names: Sequence[str]) -> dict[str, int]:
    """Returns the numbers of files of a folder that are neither hidden nor among these, by suffix."""
    root = Path(path).expanduser()
    if not root.is_dir():
        return {}
    others = {file.relative_to(root).as_posix() for file in _files_below(root)} - {*names}
    return dict(sorted(Counter(map(suffix, others)).items()))


_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_OTHER_MAGIC = {"bzip2": b"BZh91AY&SY", "xz": b"\xfd7zXZ\0", "zip": b"PK\x03\x04"}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number, from 1, and the content of each line of a file; gzip and zstd files are decompressed."""
    with path.open("rb") as file:
        begin = file.read(max(map(len, _OTHER_MAGIC.values())))
        file.seek(0)
        for kind, magic in _OTHER_MAGIC.items():
            if begin.startswith(magic):
                raise UserError(f"corpus.path: {path} is a {kind} file; decompress or remove it")
        kind = next((kind for kind, magic in _MAGIC.items() if begin.startswith(magic)), "")
        if not kind:
            yield from enumerate(file, 1)
            return
        number = 0
        try:
            with _decompressed(file, kind) as lines:
                for number, line in enumerate(lines, 1):
                    yield number, line
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno:  # not of decompression
                raise
            raise _invalid_line(path, number + 1, f"not a valid {kind} file ({error})") from None


def _decompressed(file: BinaryIO, kind: str) -> BinaryIO:
    if kind == "gzip":
        return cast(BinaryIO, gzip.open(file))
    return cast(BinaryIO, io.BufferedReader(cast(Any, pa.CompressedInputStream(file, kind))))


def _read_text(path: Path, column: str) -> Iterator[tuple[str, str]]:
    lines = [line for _, line in _lines(path)]
    if _are_json_objects(lines):
        raise UserError(
            f"corpus.path: {path} has a JSON object in each line, which would be read as one document with its markup; "
            "give it the suffix .jsonl, or remove it"
        )
    yield "", b"".join(lines).decode("utf-8-sig")


def _are_json_objects(lines: Sequence[bytes]) -> bool:
    """Returns whether the first two lines that are not blank are JSON objects, as in a file of JSON lines."""
    first = list(itertools.islice((line for line in lines if line.strip()), 2))
    if len(first) < 2 or not all(
        line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") for line in first
    ):
        return False
    try:
        return all(isinstance(parse_json(line), dict) for line in first)
    except ValueError:
        return False


def _read_jsonl(path: Path, column: str) -> Iterator[tuple[str, str]]:
    lines = ((number, line) for number, line in _lines(path) if line.strip())
    is_first = True
    for number, line in lines:
        try:
            record = parse_json(line)
            if isinstance(record, list) and is_first:
                raise _not_lines(path, number, "array")
            yield f":{number}", _field(record, column)
        except KeyError as error:
            raise _missing_column(column, f"{path}, line {number}", error.args[0]) from None
        except UnicodeEncodeError as error:
            raise _invalid_line(path, number, f"not UTF-8 ({error.reason})") from None
        except (TypeError, ValueError) as error:
            kind = {b"{": "object", b"[": "array"}.get(line.lstrip()[:1])
            is_whole = line.rstrip()[-1:] in (b"}", b"]")
            if is_first and kind and not is_whole and next(lines, None):  # as in indented JSON
                raise _not_lines(path, number, kind) from None
            raise _invalid_line(path, number, str(error)) from None
        is_first = False


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


def _read_csv(path: Path, column: str) -> Iterator[tuple[str, str]]:
    def lines() -> Iterator[str]:
        for number, line in _lines(path):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _invalid_line(path, number, f"not UTF-8 ({error.reason})") from None

    reader = csv.reader(lines(), strict=True)
    begin = 1
    largest = csv.field_size_limit(2**31 - 1)  # a field is a whole document
    try:
        header = next(filter(None, reader), [column])
        if header.count(column) != 1:
            raise _missing_column(column, str(path), header)
        index = header.index(column)
        begin = reader.line_num + 1
        for row in reader:
            if row:  # no blank line
                if len(row) != len(header):
                    problem = f"{len(row)} fields, but the header has {len(header)}"
                    raise _invalid_line(path, begin, problem)
                yield f":{begin}", row[index]
            begin = reader.line_num + 1
    except csv.Error as error:
        raise _invalid_line(path, begin, f"not CSV ({error})") from None
    finally:
        csv.field_size_limit(largest)


def _read_parquet(path: Path, column: str) -> Iterator[tuple[str, str]]:
    is_string = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_null,
    )
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise _missing_column(column, str(path), file.schema_arrow.names)
            kind = file.schema_arrow.field(column).type
            values = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not any(is_kind(values) for is_kind in is_string):
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


_READERS: dict[str, Callable[[Path, str], Iterator[tuple[str, str]]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


def _invalid_line(path: Path, line: int, problem: str) -> UserError:
    return UserError(f"corpus.path: {path}, line {line}: {problem}; repair or remove it")


def _not_lines(path: Path, line: int, kind: str) -> UserError:
    has, program = (
        ("a JSON array", ".[]") if kind == "array" else ("only the beginning of a JSON object", ".")
    )
    return UserError(
        f"corpus.path: {path}, line {line}: {has}, but each line must be one JSON object; convert the file, for "
        f"example with jq -c '{program}' FILE > NEW.jsonl, or remove it"
    )


def _missing_column(column: str, where: str, columns: Sequence[str]) -> UserError:
    if column in columns:
        return UserError(
            f"corpus.column={column!r}: {columns.count(column)} columns of this name in {where}; rename all but one"
        )
    names = textwrap.shorten(", ".join(columns), 200, placeholder=" ...")
    return UserError(f"corpus.column={column!r}: no such column in {where}; choose one of {names}")


# Tables of texts


@dataclasses.dataclass(frozen=True)
class TextTable:
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


def read_table(path: Path, text_column: str = "text") -> TextTable:
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
    text_N = collect_errors(problems, lambda: _table_texts(table[text_column]))
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
    return TextTable(str(path), id_N, text_N, member_N, columns, left_out)


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
            arrow_csv.write_csv(table, temporary)
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


def _table_texts(values: Values) -> list[str]:
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
