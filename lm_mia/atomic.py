"""Atomic replacement of files, and the paths of the files that mark a set of tables as complete.

A reader sees either the old or the new content of a file, never a partial write.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FACTS = Path("tables", "flips.json")
"""What the tables of `lm-mia attack` are about. It is deleted before the first table is written and written after the
last, so that the tables are complete where it exists."""
EXTRACTION = Path("tables", "extraction.json")
"""The same for the tables of `lm-mia extract`."""


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
