"""The score store: loss and statistics of every (row, sample), in Zarr v3, written by many processes, read by xarray.

What makes it safe without a database:
  * a shard never spans two rows, and one process writes a row's shards, whole and once, each by an atomic rename;
  * presence is asked from the key listing, never from values: a row is present when all its shards are, of the loss,
    of membership and of every statistic asked for;
  * rows are only ever appended; the group's consolidated metadata, replaced atomically, says how many there are.

M: rows, N2: samples of the population (2N).
"""

import dataclasses
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import filelock
import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import Crc32cCodec
from zarr.errors import ZarrUserWarning

from lm_mia import block_reader
from lm_mia.errors import UserError
from lm_mia.store_format import CHUNK_SAMPLES, VARIABLES, kvstore, spec
from lm_mia.subsets import Role, Row

_SEEDS = ("subset_seed", "init_seed", "order_seed")


@dataclasses.dataclass(frozen=True)
class Store:
    """A score store at a path; every method reads the state on disk afresh."""

    path: Path
    statistics: tuple[str, ...] = ()
    """Variables beside loss and member that a row must have; a store may hold others too, which stay."""

    @property
    def variables(self) -> tuple[str, ...]:
        """What a row must have, in the order in which it is written."""
        return ("member", "loss", *self.statistics)

    def ensure(
        self,
        wanted: Sequence[Row],
        sample_columns: Mapping[str, np.ndarray],
        attributes: dict[str, Any],
    ) -> None:
        """Creates the store if need be and appends what it lacks: wanted rows (absent as yet), statistics.

        Args:
          wanted: rows, in the order in which new ones are appended.
          sample_columns: int64 coordinates of the sample dimension, each of shape N2.
          attributes: of the group, at creation.
        """
        with filelock.FileLock(self.path.with_suffix(".lock")):
            old, names = self._table()
            table = list(dict.fromkeys([*old, *wanted]))
            if table == old and names.issuperset(self.variables):
                return
            samples = len(next(iter(sample_columns.values())))
            group = zarr.open_group(
                self.path,
                mode="a",
                attributes=attributes
                | {"coordinates": " ".join(("role", *_SEEDS, "sample", *sample_columns))},
            )
            if not old:
                for name, column_N2 in {"sample": np.arange(samples), **sample_columns}.items():
                    _write_coordinate(group, name, "sample", column_N2.astype(np.int64))
            _write_coordinate(group, "role", "row", np.array([r.role for r in table], object))
            for name in _SEEDS:
                _write_coordinate(
                    group, name, "row", np.array([getattr(r, name) for r in table], np.int64)
                )
            for name in VARIABLES:
                if not (self.path / name / "zarr.json").exists():
                    if name not in self.variables:
                        continue
                    ts.open(spec(self.path / name, len(table), samples), create=True).result()
                # Also undoes a growth that was cut short before it was consolidated: such rows hold nothing yet.
                self._open(name, write=True).resize(
                    exclusive_max=[len(table), None], resize_metadata_only=True
                ).result()
            with (
                warnings.catch_warnings()
            ):  # xarray and zarr agree on this extension; it only warns of other readers
                warnings.simplefilter("ignore", ZarrUserWarning)
                zarr.consolidate_metadata(self.path)

    def rows(self) -> list[Row]:
        """The rows that the store knows, present or not, in store order; empty if there is no store."""
        return self._table()[0]

    def present(self, variables: Sequence[str] | None = None) -> np.ndarray:
        """present_M, bool: which rows are whole, in these or all variables; a listing of keys, no data read."""
        table, names = self._table()
        whole_M = np.ones(len(table), bool)
        for name in (self.variables if variables is None else variables) if table else ():
            whole_M &= self._whole(name, names, len(table))
        return whole_M

    def missing(self, wanted: Sequence[Row], variables: Sequence[str] | None = None) -> list[Row]:
        """Those of the wanted rows that are not present (in these or all variables), in their order."""
        present_M = self.present(variables)
        # Not strict: rows that another command appends just now are absent.
        there = {row for row, ok in zip(self.rows(), present_M, strict=False) if ok}
        return [row for row in wanted if row not in there]

    def write_row(
        self,
        row: Row,
        loss_nats_N2: np.ndarray,
        member_N2: np.ndarray,
        statistics: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Writes what a row that the store knows lacks; it is present once its last shard is.

        A variable whose shards are all there stays as it is: a statistic asked for later moves no loss.

        Args:
          row: known to the store.
          loss_nats_N2, member_N2: of every sample.
          statistics: of every sample, at least those of this Store that the row lacks.
        """
        index = self.rows().index(row)
        values = {"member": member_N2, "loss": loss_nats_N2, **statistics}
        for name in self.lacking(row):
            array = self._open(name, write=True)
            step = block_reader.shard_samples(array)
            for low in range(0, len(values[name]), step):
                high = min(low + step, len(values[name]))
                with ts.Transaction() as transaction:  # one write a shard, not one a chunk
                    part = array.with_transaction(transaction)[index, low:high]
                    part.write(values[name][low:high]).result()

    def lacking(self, row: Row) -> list[str]:
        """The variables of this Store in which a row is not whole."""
        table, names = self._table()
        index = table.index(row)
        return [name for name in self.variables if not self._whole(name, names, len(table))[index]]

    def read(self, wanted: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
        """(loss_nats_MxN2 float32, member_MxN2 bool) of rows that must be present; errors as of `blocks`."""
        parts = {name: (name, wanted) for name in ("loss", "member")}
        [(_, whole)] = self.blocks(parts, step=sys.maxsize)
        return whole["loss"], whole["member"]

    def blocks(
        self, parts: Mapping[str, tuple[str, Sequence[Row]]], step: int = CHUNK_SAMPLES
    ) -> block_reader.Blocks:
        """All samples in order, a block at a time, in the memory of two blocks.

        The next block is read while the caller is at work on one: about as fast as the files can be read at all.

        Args:
          parts: name -> (variable, rows); the rows must be present. Order and repetition are the caller's.
          step: samples of a block, best a multiple of 2^16, the store's own chunk; the last block may be shorter.

        Returns:
          An iterator of (samples, {name: values_RxC}), with the variable's own type: bool or float32.

        Raises:
          UserError: naming each absent row, at once; or, while reading, each shard whose checksum fails. Both say how
            to get it rebuilt.
        """
        if step < 1:
            raise ValueError(f"step={step}: must be 1 or larger")
        asked: dict[str, list[Row]] = {}
        for variable, wanted in parts.values():
            asked[variable] = list(dict.fromkeys([*asked.get(variable, ()), *wanted]))
        rows, known = self._table()
        table = {row: index for index, row in enumerate(rows)}
        absent: set[Row] = set()
        for variable, wanted in asked.items():
            whole_M = self._whole(variable, known, len(rows))
            absent |= {row for row in wanted if row not in table or not whole_M[table[row]]}
        if absent:
            everything = list(dict.fromkeys(row for wanted in asked.values() for row in wanted))
            missing = [row for row in everything if row in absent]
            names = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise UserError(
                f"{self.path}: {len(missing)} of {len(everything)} rows absent ({names}); run `lm-mia run` first"
            )
        arrays = {name: self._open(name) for name in asked}
        opened = {
            name: block_reader.Part(
                self.path / variable, arrays[variable], [table[row] for row in wanted]
            )
            for name, (variable, wanted) in parts.items()
        }
        samples = max((array.shape[1] for array in arrays.values()), default=0)
        return block_reader.blocks(opened, samples, step)

    def _table(self) -> tuple[list[Row], set[str]]:
        """(rows in store order, names of variables and coordinates) as readers see them; empty if there is no store."""
        if not (self.path / "zarr.json").exists():
            return [], set()
        try:
            group = zarr.open_group(self.path, mode="r")
            consolidated = group.metadata.consolidated_metadata
            names = set() if consolidated is None else set(consolidated.metadata)
            if "loss" not in names:
                return [], names
            role_M = np.asarray(cast(zarr.Array, group["role"])[:])
            seeds_3xM = [np.asarray(cast(zarr.Array, group[name])[:]) for name in _SEEDS]
        except (ValueError, LookupError, TypeError, OSError) as error:
            raise self._damaged("zarr.json, role or seeds") from error
        table = [
            Row(cast(Role, str(role)), *map(int, seeds))
            for role, *seeds in zip(role_M, *seeds_3xM, strict=True)
        ]
        # A lost chunk of a coordinate reads as its fill value, without an error.
        if "" in role_M or any((seeds_M < 0).any() for seeds_M in seeds_3xM):
            raise self._damaged("role or seeds")
        return table, names

    def _whole(self, name: str, names: set[str], known: int) -> np.ndarray:
        """whole_M: which of the known rows have all their shards of a variable."""
        found_M = np.zeros(known, np.int64)
        if name not in names:
            return found_M.astype(bool)
        array = self._open(name)
        assert array.kvstore is not None
        for key in array.kvstore.list().result():
            prefix, *place = key.decode().split("/")
            if prefix == "c" and len(place) == 2 and int(place[0]) < known:
                found_M[int(place[0])] += 1
        return found_M == -(-array.shape[1] // block_reader.shard_samples(array))

    def _open(self, name: str, write: bool = False) -> ts.TensorStore:
        opening = {"driver": "zarr3", "kvstore": kvstore(self.path / name)}
        # Else a shard of nothing but fill values would never be written, and its row never be present.
        opening |= {"store_data_equal_to_fill_value": True}
        try:
            return ts.open(opening, read=True, write=write, open=True).result()
        except ValueError as error:
            raise self._damaged(f"{name}/zarr.json") from error

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{self.path}: damaged score store ({what}); delete it and run `lm-mia run` again: "
            "rows are scored again from their checkpoints"
        )


def _write_coordinate(group: zarr.Group, name: str, dimension: str, values: np.ndarray) -> None:
    """Creates or grows a one-dimensional coordinate; chunks are long enough that growing rewrites one file."""
    if name in group:
        array = cast(zarr.Array, group[name])
        array.resize(values.shape)
    else:
        dtype = "str" if values.dtype == object else values.dtype
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=dtype,
            chunks=(min(max(4096, len(values)), 2**20),),
            dimension_names=[dimension],
            compressors=[Crc32cCodec()],
            fill_value="" if dtype == "str" else -1,  # no coordinate is: a lost chunk shows
        )
    array[:] = values
