"""Replaces files atomically, appends lines to logs, and marks sets of tables as complete.

A reader sees either the old or the new content of a file, never a partial write. The completion marker of a set of
tables is a JSON file in their folder, with their digests.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lm_mia.errors import raise_failed_read

if TYPE_CHECKING:
    import pandas as pd

FLIPS_JSON = Path("tables", "flips.json")
"""Completion marker of the tables of decisions, which `lm-mia attack` writes. It is deleted before the first of these
tables is written and created after the last one, so that the tables are complete if it exists."""
EXTRACTION_JSON = Path("tables", "extraction.json")
"""Completion marker of the tables of `lm-mia extract`."""
MORE_REFERENCES_JSON = Path("tables", "more_references.json")
"""Completion marker of more_references.csv, which `lm-mia attack` writes."""
POOLING_JSON = Path("tables", "pooling.json")
"""Completion marker of pooling.csv and the tables of vulnerability, which `lm-mia attack` writes."""
ZERO_RUN_JSON = Path("tables", "zero_run.json")
"""Completion marker of the tables of zero-run evaluation and interference, which `lm-mia attack` writes."""
VARIANCE_JSON = Path("tables", "variance_components.json")
"""Completion marker of variance_components.csv, which `lm-mia attack` writes."""
TOKENS_JSON = Path("tables", "tokens.json")
"""Completion marker of the tables of single tokens, which `lm-mia attack` writes."""
MEMBERSHIP_SCORES_JSON = Path("tables", "membership_scores.json")
"""Completion marker of membership_scores.parquet and the tables of advantages and audits, if there are no replicas."""
MODELS_JSON = Path("tables", "models.json")
"""Completion marker of models.csv and sample_losses.csv, which `lm-mia attack` writes."""
STUDY_JSONS = tuple(
    Path("tables", f"{study}.json")
    for study in ("fragile_hits", "recency", "reference_numbers", "text_groups", "token_tfidf")
)
"""Completion markers of the tables of studies, which `lm-mia attack` writes for the figures that need them."""
_MARKER_NAMES = {
    path.name
    for path in (
        FLIPS_JSON,
        EXTRACTION_JSON,
        MORE_REFERENCES_JSON,
        POOLING_JSON,
        ZERO_RUN_JSON,
        VARIANCE_JSON,
        TOKENS_JSON,
        MEMBERSHIP_SCORES_JSON,
        MODELS_JSON,
        *STUDY_JSONS,
    )
}
CHANGED_TABLE = "missing, changed, damaged or written by an earlier version"
"""What messages say about a table or its JSON file that is not as it was when it was written."""
TARGETS_CSV = Path("tables", "targets.csv")
"""The requested attacks, one line per attack and target."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that replaces a file atomically.

    Yields the path of a temporary file, which the block writes, and which replaces ``path`` when the block ends. If the
    block fails, the temporary file is removed and ``path`` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replaces the content of a file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


CSV_MISSING_VALUES = ("", "nan", "NaN")
"""The cells of a CSV table that stand for a missing value; other words, such as NA, are texts."""


def append_line(path: Path, text: str) -> None:
    """Appends a line to a file; lines stay intact if several processes append at the same time.

    Raises:
      OSError: if the disk is full. No part of the line remains then, so that the next line stays intact.
    """
    data = f"{text}\n".encode()
    with open(path, "ab", buffering=0) as file:
        written = file.write(data)
        if written < len(data):
            end = file.tell()
            if os.fstat(file.fileno()).st_size == end:  # no other process has appended since
                file.truncate(end - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Writes a table as CSV, without its index, and replaces the file atomically."""
    write_atomically(path, table.to_csv(index=False))


def write_completion_marker(
    path: Path,
    description: Mapping[str, Any],
    tables: Iterable[str],
    replaced: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """Writes the completion marker of tables, which also serves to detect later changes of the tables.

    Args:
      path: path of the marker, a JSON file in the folder of the tables.
      description: the settings and models from which the tables were computed, and results; its values must be valid
        JSON.
      tables: names of the tables' files; their SHA-256 digests are added to the marker as "tables". A digest of the
        marker itself is added as "sha256".
      replaced: name of a table -> the file that is about to replace it. The digest of this file is added to that of the
        present table, so that the table counts as unchanged both before and after it is replaced.
    """
    digests: dict[str, Any] = {name: file_sha256(path.parent / name) for name in tables}
    for name, new_file in replaced.items():
        digests[name] = [file_sha256(new_file), *([digests[name]] if name in digests else [])]
    content = json.loads(json.dumps({**description, "tables": digests}))
    write_atomically(
        path, json.dumps({**content, "sha256": _own_sha256(path, content)}, indent=1) + "\n"
    )


def is_current(path: Path, expected: Mapping[str, Any]) -> bool:
    """Returns whether tables are complete, have the expected description, and have not been changed.

    Args:
      path: path of the marker; the result is False if it is missing or damaged.
      expected: fields of the description that must have these values; the file may have more fields.

    Raises:
      OSError: if the marker or a table exists but cannot be read.
    """
    try:
        marker = _read_marker(path)
        if any(marker[name] != json.loads(json.dumps(expected[name])) for name in expected):
            return False
    except (OSError, ValueError, LookupError) as error:
        raise_failed_read(error, path)
        return False  # missing or damaged; the tables will be computed again
    return not _changed(path, marker["tables"])


def changed_tables(path: Path) -> list[Path]:
    """Returns the tables that were changed or deleted after their marker was written.

    Args:
      path: path of the marker. If it is missing or damaged, only this path is returned.

    Raises:
      OSError: if the marker or a table exists but cannot be read.
    """
    try:
        tables = _read_marker(path)["tables"]
    except (OSError, ValueError, LookupError) as error:
        raise_failed_read(error, path)
        return [path]
    return _changed(path, tables)


def all_changed_tables(folder: Path) -> dict[Path, Path]:
    """Returns {table: marker}, the `changed_tables` of each completion marker in a folder; reads about 1 GB/s."""
    return {table: marker for marker in _markers(folder) for table in changed_tables(marker)}


def is_changed(table: Path) -> bool:
    """Returns whether a table was changed after it was written: a marker in its folder has another digest of it."""
    markers = (path for path in _markers(table.parent) if path.parent == table.parent)
    for marker in markers:
        try:
            tables = _read_marker(marker)["tables"]
        except (OSError, ValueError, LookupError) as error:
            raise_failed_read(error, marker)
            continue
        if table.name in tables:
            return not _is_unchanged(marker, tables, table.name)
    return False


def remove_changed_tables(folder: Path) -> list[Path]:
    """Deletes every table of attacks that was changed, with all tables of the same marker, and this marker.

    The tables of `lm-mia extract` are kept: if these were missing, the report would leave them out without an error.

    Returns:
      The changed tables, as `all_changed_tables`.
    """
    all_changed: list[Path] = []
    for marker in _markers(folder):
        if marker.name == EXTRACTION_JSON.name:
            continue
        if changed := changed_tables(marker):
            all_changed += changed
            for name in [] if changed == [marker] else _read_marker(marker)["tables"]:
                (marker.parent / name).unlink(missing_ok=True)
            marker.unlink()
    return all_changed


def _markers(folder: Path) -> list[Path]:
    """Returns the completion markers in a folder of tables; JSON files with other names belong to the user."""
    return sorted(path for path in folder.glob("*.json") if path.name in _MARKER_NAMES)


def _read_marker(path: Path) -> dict[str, Any]:
    """Returns the content of a marker without its own digest; raises ValueError or LookupError if it is damaged."""
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object")
    digest = content.pop("sha256")
    if digest != _own_sha256(path, content):
        raise ValueError(f"{path}: changed or damaged")
    names = [Path(name) for name in content["tables"]]
    if any(name.is_absolute() or ".." in name.parts for name in names):
        raise ValueError(f"{path}: names a file in another folder")
    return content


def _changed(marker: Path, tables: Mapping[str, Any]) -> list[Path]:
    return [marker.parent / name for name in tables if not _is_unchanged(marker, tables, name)]


def _is_unchanged(marker: Path, tables: Mapping[str, Any], name: str) -> bool:
    try:
        digest = file_sha256(marker.parent / name)
    except OSError as error:
        raise_failed_read(error, marker.parent / name)
        return False  # missing
    return digest in ([tables[name]] if isinstance(tables[name], str) else tables[name])


def _own_sha256(path: Path, content: Mapping[str, Any]) -> str:
    """Returns the digest of a marker's name and content; a copy of the marker under another name counts as damaged."""
    return hashlib.sha256(json.dumps([path.name, content], sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
