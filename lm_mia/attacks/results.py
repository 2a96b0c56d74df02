"""Pieces: results that are stored under the hash of everything that determines them.

A piece is one Parquet file, written atomically. It is there and intact, or it is computed again: no marker says which
pieces are current, nothing is deleted before it is computed again, and several processes may write the same piece at
once, since they write the same values under the same name.

Checksums of Parquet's pages cover the values, but neither the headers of pages nor the footer, where a flipped bit may
rename a column or drop rows. So the key, the columns with their types and the number of rows are stored a second time,
and are compared when the piece is read.
"""

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.atomic import TEMPORARY, abandoned, replacing
from lm_mia.attacks.unchanged import digest
from lm_mia.errors import UserError

RESULTS_FORMAT = 1
"""Part of every key. It is increased whenever code of lm_mia gives other numbers or columns for the same scores; the
test of golden values says when."""

Key = Mapping[str, Any]
"""What determines a piece, as JSON values; its field "what" names the piece."""
Part = pd.DataFrame | pa.Table
Table = pd.DataFrame | pa.Table | Iterable[pd.DataFrame | pa.Table]
"""A table, or its row groups one after another if the whole would take too much memory."""


class Results:
    """The pieces in a folder, which is created when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked: set[str] = set()
        self._kept: dict[str, pa.Table] = {}  # in a folder that cannot be written

    def read(self, key: Key, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
        """Returns a piece, or some of its columns; None if it is missing or cannot be read, for whatever reason.

        It must be computed then. Nothing is deleted, since the disk may only have failed to read it for a moment.
        """
        try:
            return to_frame(pa.concat_tables(self._parts(key, columns)))
        except Exception:
            return None  # A flipped bit may raise anything, NotImplementedError among others.

    def has(self, key: Key) -> bool:
        """Returns whether a piece is there and intact, which takes reading it (about 1 GB/s)."""
        try:
            for _ in self._parts(key, None):
                pass
        except Exception:
            return False
        return True

    def parts(self, key: Key) -> Iterator[pa.Table]:
        """Yields the row groups of a piece.

        Raises:
          UserError: the piece is missing or cannot be read.
        """
        try:
            yield from self._parts(key, None)
        except Exception as error:
            raise UserError(
                f"{self.path(key)}: missing or damaged; run `lm-mia attack` again"
            ) from error

    def write(self, key: Key, table: Table) -> None:
        """Writes a piece; an error while it is computed or written leaves no file, and deletes none.

        If the folder cannot be written, the piece is kept in memory.
        """
        is_whole = isinstance(table, pd.DataFrame | pa.Table)
        parts: Iterator[Part] = iter([table] if is_whole else table)
        if not self._is_writable():
            whole = [_to_arrow(next(parts), None)]
            whole += [_to_arrow(part, whole[0].schema) for part in parts]
            self._kept[self.path(key).name] = pa.concat_tables(whole)
            return
        first = _to_arrow(next(parts), None)
        schema, rows = first.schema, len(first)
        with (
            replacing(self.path(key)) as temporary,
            pq.ParquetWriter(
                temporary,
                schema,
                write_page_checksum=True,
                use_compliant_nested_type=False,  # which would rename the values of lists
            ) as writer,
        ):
            writer.write_table(first)
            for part in parts:
                writer.write_table(_to_arrow(part, schema))
                rows += len(part)
            description = _description(key, schema, rows)
            writer.add_key_value_metadata({"lm_mia": json.dumps(description)})

    def scratch(self) -> Path:
        """Returns a folder for temporary files: that of the pieces, if it can be written."""
        return self.folder if self._is_writable() else Path(tempfile.gettempdir())

    def _is_writable(self) -> bool:
        """Returns whether pieces can be written; creates the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            return False
        return os.access(self.folder, os.W_OK)

    def path(self, key: Key) -> Path:
        """Returns the path of a piece, and remembers that it was asked for."""
        name = f"{key['what']}-{digest(key)}.parquet"
        self._asked.add(name)
        return self.folder / name

    def unused(self) -> list[Path]:
        """Returns the pieces that nobody asked this object for, and the files of processes that were killed a day ago.

        They may be deleted at any time: a reader that has opened a piece keeps it, and any other computes it again.
        """
        finished = (p for p in self.folder.glob("*.parquet") if not p.name.startswith(TEMPORARY))
        unused = [path for path in finished if path.name not in self._asked]
        return sorted([*unused, *abandoned(self.folder)])

    def _parts(self, key: Key, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yields the row groups of a piece; raises any exception at all if one is damaged."""
        if (kept := self._kept.get(self.path(key).name)) is not None:
            yield kept if columns is None else kept.select([*columns])
            return
        with pq.ParquetFile(self.path(key), page_checksum_verification=True) as file:
            stored, rows = json.loads(file.metadata.metadata[b"lm_mia"]), 0
            if stored != _description(key, file.schema_arrow, stored["rows"]):
                raise ValueError(f"{self.path(key)}: not the piece of this key")
            if not file.num_row_groups:
                yield file.schema_arrow.empty_table().select(columns or file.schema_arrow.names)
            for group in range(file.num_row_groups):
                part = file.read_row_group(group, columns)
                rows += part.num_rows
                yield part.replace_schema_metadata(None)
            if rows != stored["rows"]:
                raise ValueError(f"{self.path(key)}: {rows} rows instead of {stored['rows']}")


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Returns a table as a data frame, in which columns of integers stay integers if some are missing."""
    frame = table.to_pandas()
    for name in table.column_names:
        column = table[name]
        if column.null_count and pa.types.is_integer(column.type):
            value_N = column.fill_null(0).to_numpy()
            missing_N = np.asarray(column.is_null())
            frame[name] = pd.arrays.IntegerArray(value_N, missing_N)
    return frame


def _to_arrow(part: Part, schema: pa.Schema | None) -> pa.Table:
    is_frame = isinstance(part, pd.DataFrame)
    # More threads take longer to start than they save.
    table: pa.Table = (
        pa.Table.from_pandas(part, schema, preserve_index=False, nthreads=1) if is_frame else part
    )
    return table.replace_schema_metadata(None)


def _description(key: Key, schema: pa.Schema, rows: int) -> dict[str, Any]:
    columns = schema.remove_metadata().to_string()
    return {"key": json.loads(json.dumps(key)), "columns": columns, "rows": rows}
