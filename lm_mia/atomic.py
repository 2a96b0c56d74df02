"""Replaces files atomically, and appends lines to logs.

A reader sees either the old or the new content of a file, never a partial write.
"""

import contextlib
import errno
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TEMPORARY = ".new-"
"""How the names of temporary files begin."""
_ABANDONED_SECONDS = 24 * 3600


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that replaces a file atomically.

    Yields the path of a temporary file, which the block writes, and which replaces ``path`` when the block ends. If the
    block fails, the temporary file is removed and ``path`` is unchanged.
    """
    # A process id would not be unique on all hosts that share the folder.
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def abandoned(folder: Path) -> list[Path]:
    """Returns the temporary files of `replacing` in a folder that belong to processes that were killed a day ago."""
    old = time.time() - _ABANDONED_SECONDS
    # Another process may just have renamed its file.
    with contextlib.suppress(FileNotFoundError):
        return sorted(p for p in folder.glob(f"{TEMPORARY}*") if p.stat().st_mtime < old)
    return []


def write_atomically(path: Path, text: str) -> None:
    """Replaces the content of a file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
