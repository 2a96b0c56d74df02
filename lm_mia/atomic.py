"""Replaces files atomically, and marks sets of tables as complete.

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
TARGETS_CSV = Path("tables", "targets.csv")
"""Every attack that was computed, one line per attack and target. Lines are only added, until the settings change."""


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


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Writes a table as CSV, without its index, and replaces the file atomically."""
    write_atomically(path, table.to_csv(index=False))


def write_completion_marker(
    path: Path, description: Mapping[str, Any], tables: Iterable[str]
) -> None:
    """Writes the JSON file that marks tables as complete.

    Args:
      path: path of the JSON file, in the folder of the tables.
      description: the settings and models from which the tables were computed, and results; its values must be valid
        JSON.
      tables: names of the tables' files; their SHA-256 digests are added to the JSON file as "tables".
    """
    digests = {name: _sha256(path.with_name(name)) for name in tables}
    write_atomically(path, json.dumps({**description, "tables": digests}, indent=1) + "\n")


def is_current(path: Path, expected: Mapping[str, Any]) -> bool:
    """Returns whether tables are complete, have the expected description, and have not been changed.

    Args:
      path: path of the JSON file that `write_completion_marker` wrote; the result is False if it is missing or damaged.
      expected: fields of the description that must have these values; the file may have more fields.
    """
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        if any(marker[name] != json.loads(json.dumps(expected[name])) for name in expected):
            return False
        return all(_sha256(path.with_name(n)) == digest for n, digest in marker["tables"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False  # missing or damaged; the tables will be computed again


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
