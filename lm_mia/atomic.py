"""Atomic replacement of files, and the paths of the files that mark a set of tables as complete.

A reader sees either the old or the new content of a file, never a partial write.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FLIPS_JSON = Path("tables", "flips.json")
"""What the tables of decisions of `lm-mia attack` are about. It is deleted before the first of them is written, and
written after the last, so that the tables are complete where it exists."""
EXTRACTION_JSON = Path("tables", "extraction.json")
"""The same for the tables of `lm-mia extract`."""
TARGETS_CSV = Path("tables", "targets.csv")
"""Every attack that was computed, one line per attack and target. Lines are only added; other settings begin anew."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write in the block, which then takes the path's place: a reader sees the old or the new one.

    Where the block fails, nothing is left beside the path.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content, whatever happens in between."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Replaces a table on disk, whole."""
    write_atomically(path, table.to_csv(index=False))


def write_completion_marker(path: Path, about: Mapping[str, Any], tables: Iterable[str]) -> None:
    """Writes the JSON file that marks tables as complete.

    Args:
      path: of the file, in the folder of the tables.
      about: what the tables are about; its values are JSON.
      tables: names of the files; their SHA-256 digests are added as "tables".
    """
    digests = {name: _sha256(path.with_name(name)) for name in tables}
    write_atomically(path, json.dumps({**about, "tables": digests}, indent=1) + "\n")


def is_current(path: Path, about: Mapping[str, Any]) -> bool:
    """Returns whether tables are complete, about the same things, and unchanged since the marker was written.

    Args:
      path: of the file; if it is missing or damaged, the answer is no.
      about: fields that must have these values; the file may have more.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if any(facts[name] != json.loads(json.dumps(about[name])) for name in about):
            return False
        return all(_sha256(path.with_name(n)) == digest for n, digest in facts["tables"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False  # missing or damaged: the tables are made again


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
