"""Pieces: results that are stored under the hash of everything that determines them.

A piece is one Parquet file, written atomically. It is there and intact, or it is computed again: no marker says which
pieces are current, nothing is deleted before it is computed again, and several processes may write the same piece at
once, since they write the same values under the same name.

Checksums of Parquet's pages cover the values, but neither the headers of pages nor the footer, where a flipped bit may
rename a column or drop rows. So the key, the columns with their types and the number of rows are stored a second time,
and are compared when the piece is read.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS_FORMAT = 1
"""Part of every key. It is increased whenever code of lm_mia gives other numbers or columns for the same scores; the
test of golden values says when."""

_TEMPORARY = ".new-"
_ABANDONED_SECONDS = 24 * 3600  # A temporary file of this age belongs to a process that was killed.

Key = Mapping[str, Any]
"""What determines a piece, as JSON values; its field "what" names the piece."""
Frames = pd.DataFrame | Iterable[pd.DataFrame]
"""A table, or its row groups one after another if the whole would take too much memory."""


class Results:
    """The pieces in a folder, which is created when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked: set[str] = set()

    def read(self, key: Key, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
        """Returns a piece, or some of its columns; None if it is missing or cannot be read, for whatever reason.

        It must be computed then. Nothing is deleted, since the disk may only have failed to read it for a moment.
        """
        table = self._load(key, columns)
        return None if table is None else table.to_pandas()

    def has(self, key: Key) -> bool:
        """Returns whether a piece is there and intact, which takes reading it (about 1 GB/s)."""
        return self._load(key, None) is not None

    def write(self, key: Key, frames: Frames) -> None:
        """Writes a piece; an error while it is computed or written leaves no file, and deletes none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = iter([frames] if isinstance(frames, pd.DataFrame) else frames)
        table = pa.Table.from_pandas(next(parts), preserve_index=False)
        schema, rows = table.schema.remove_metadata(), len(table)
        with (
            _replacing(self.path(key)) as temporary,
            pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer,
        ):
            writer.write_table(table.replace_schema_metadata(None))
            for frame in parts:
                writer.write_table(pa.Table.from_pandas(frame, schema, preserve_index=False))
                rows += len(frame)
            description = _description(key, schema, rows)
            writer.add_key_value_metadata({"lm_mia": json.dumps(description)})

    def path(self, key: Key) -> Path:
        """Returns the path of a piece, and remembers that it was asked for."""
        name = f"{key['what']}-{digest(key)}.parquet"
        self._asked.add(name)
        return self.folder / name

    def unused(self) -> list[Path]:
        """Returns the pieces that nobody asked this object for, and the files of processes that were killed a day ago.

        They may be deleted at any time: a reader that has opened a piece keeps it, and any other computes it again.
        """
        old = time.time() - _ABANDONED_SECONDS
        finished = (p for p in self.folder.glob("*.parquet") if not p.name.startswith(_TEMPORARY))
        unused = [path for path in finished if path.name not in self._asked]
        # Another process may just have renamed its file.
        with contextlib.suppress(FileNotFoundError):
            unused += [p for p in self.folder.glob(f"{_TEMPORARY}*") if p.stat().st_mtime < old]
        return sorted(unused)

    def _load(self, key: Key, columns: Sequence[str] | None) -> pa.Table | None:
        try:
            with pq.ParquetFile(self.path(key), page_checksum_verification=True) as file:
                table, schema = file.read(columns), file.schema_arrow
                stored = json.loads(file.metadata.metadata[b"lm_mia"])
            is_intact = stored == _description(key, schema, table.num_rows)
            return table.replace_schema_metadata(None) if is_intact else None
        except Exception:
            return None  # A flipped bit may raise anything, NotImplementedError among others.


def digest(value: Any) -> str:
    """Returns 20 hexadecimal digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, which replaces ``path`` when the block ends."""
    # A process id would not be unique on all hosts that share the folder.
    temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _description(key: Key, schema: pa.Schema, rows: int) -> dict[str, Any]:
    columns = schema.remove_metadata().to_string()
    return {"key": json.loads(json.dumps(key)), "columns": columns, "rows": rows}
