"""The score store: losses of every (row, sample), in Zarr v3, written by any number of processes, read by xarray.

What makes it safe without a database:
  * a shard never spans two rows, and one process writes a row's shards, whole and once, each by an atomic rename;
  * presence is asked from the key listing, never from values: a row is present when all its shards are;
  * rows are only ever appended; the group's consolidated metadata, replaced atomically, says how many there are.

M: rows, N2: samples of the population (2N).
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import filelock
import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import Crc32cCodec
from zarr.errors import ZarrUserWarning

from lm_mia.errors import UserError
from lm_mia.subsets import Role, Row

_SHARD_SAMPLES, _CHUNK_SAMPLES = 2**22, 2**16
_VARIABLES = {"member": ("bool", False), "loss": ("float32", "NaN")}  # name -> type and fill value
_SEEDS = ("subset_seed", "init_seed", "order_seed")


@dataclasses.dataclass(frozen=True)
class Store:
    """A score store at a path; every method reads the state on disk afresh."""

    path: Path

    def ensure(
        self,
        wanted: Sequence[Row],
        sample_columns: Mapping[str, np.ndarray],
        attributes: dict[str, Any],
    ) -> None:
        """Creates the store if need be and appends the wanted rows that it lacks (as absent rows).

        Args:
          wanted: rows, in the order in which new ones are appended.
          sample_columns: int64 coordinates of the sample dimension, each of shape N2.
          attributes: of the group, at creation.
        """
        with filelock.FileLock(self.path.with_suffix(".lock")):
            old = self.rows()
            table = list(dict.fromkeys([*old, *wanted]))
            if table == old:
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
            for name, (dtype, fill) in _VARIABLES.items():
                if not (self.path / name / "zarr.json").exists():
                    ts.open(
                        _spec(self.path / name, len(table), samples, dtype, fill), create=True
                    ).result()
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
        if not (self.path / "zarr.json").exists():
            return []
        try:
            group = zarr.open_group(self.path, mode="r")
            known = group.metadata.consolidated_metadata
            if known is None or "loss" not in known.metadata:
                return []
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
        return table

    def present(self) -> np.ndarray:
        """present_M, bool: which rows are whole; a listing of keys, no data read."""
        known = len(self.rows())
        whole_M = np.ones(known, bool)
        for name in _VARIABLES if known else ():
            array = self._open(name)
            found_M = np.zeros(known, np.int64)
            assert array.kvstore is not None
            for key in array.kvstore.list().result():
                prefix, *place = key.decode().split("/")
                if prefix == "c" and len(place) == 2 and int(place[0]) < known:
                    found_M[int(place[0])] += 1
            whole_M &= found_M == -(-array.shape[1] // _shard_samples(array))
        return whole_M

    def missing(self, wanted: Sequence[Row]) -> list[Row]:
        """Those of the wanted rows that are not present, in their order."""
        there = {row for row, ok in zip(self.rows(), self.present(), strict=True) if ok}
        return [row for row in wanted if row not in there]

    def write_row(self, row: Row, loss_nats_N2: np.ndarray, member_N2: np.ndarray) -> None:
        """Writes a row that the store knows; it is present once its last shard is."""
        index = self.rows().index(row)
        for name, values_N2 in (("member", member_N2), ("loss", loss_nats_N2)):
            array = self._open(name, write=True)
            step = _shard_samples(array)
            for low in range(0, len(values_N2), step):
                high = min(low + step, len(values_N2))
                with ts.Transaction() as transaction:  # one write a shard, not one a chunk
                    part = array.with_transaction(transaction)[index, low:high]
                    part.write(values_N2[low:high]).result()

    def read(self, wanted: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
        """(loss_nats_MxN2 float32, member_MxN2 bool) of rows that must be present.

        Raises:
          UserError: naming each absent row, or each shard whose checksum fails, and how to get it rebuilt.
        """
        if absent := self.missing(wanted):
            names = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
            raise UserError(
                f"{self.path}: {len(absent)} of {len(wanted)} rows absent ({names}); run `lm-mia run` first"
            )
        table = self.rows()
        found: list[list[np.ndarray]] = []
        bad: list[Path] = []
        for name in ("loss", "member"):
            array = self._open(name)
            pending = [(i, array[i].read()) for i in (table.index(row) for row in wanted)]
            values = []
            for index, future in pending:
                try:
                    values.append(future.result())
                except ValueError:  # tensorstore's DATA_LOSS
                    bad += self._bad_shards(name, index)
            found.append(values)
        if bad:
            shards = "\n".join(
                f"{p}: corrupt score shard; delete it and run `lm-mia run` again" for p in bad
            )
            raise UserError(shards)
        return np.stack(found[0]), np.stack(found[1])

    def _bad_shards(self, name: str, index: int) -> list[Path]:
        array = self._open(name)
        step = _shard_samples(array)
        bad = []
        for shard in range(-(-array.shape[1] // step)):
            try:
                array[index, shard * step : min((shard + 1) * step, array.shape[1])].read().result()
            except ValueError:
                bad.append(self.path / name / "c" / str(index) / str(shard))
        return bad

    def _open(self, name: str, write: bool = False) -> ts.TensorStore:
        spec = {"driver": "zarr3", "kvstore": _kvstore(self.path / name)}
        # Else a shard of nothing but fill values would never be written, and its row never be present.
        spec |= {"store_data_equal_to_fill_value": True}
        try:
            return ts.open(spec, read=True, write=write, open=True).result()
        except ValueError as error:
            raise self._damaged(f"{name}/zarr.json") from error

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{self.path}: damaged score store ({what}); delete it and run `lm-mia run` again: "
            "rows are scored again from their checkpoints"
        )


def _shard_samples(array: ts.TensorStore) -> int:
    shape = array.chunk_layout.write_chunk.shape
    assert shape is not None
    assert shape[1] is not None
    return shape[1]


def _kvstore(path: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{path.absolute()}/"}


def _spec(path: Path, rows: int, samples: int, dtype: str, fill: Any) -> dict[str, Any]:
    chunk = min(_CHUNK_SAMPLES, samples)
    shard = min(_SHARD_SAMPLES, -(-samples // chunk) * chunk)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [1, chunk],
        "codecs": [little, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "driver": "zarr3",
        "kvstore": _kvstore(path),
        "metadata": {
            "shape": [rows, samples],
            "data_type": dtype,
            "fill_value": fill,
            "dimension_names": ["row", "sample"],
            "attributes": {"units": "nats per token"} if path.name == "loss" else {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, shard]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }


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
