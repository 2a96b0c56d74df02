"""Reads variables of the score store for several models, a block of samples at a time.

R: models of a selection, C: samples of a block, S: selected samples.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorstore as ts

from lm_mia.errors import UserError, raise_failed_read

Blocks = Iterator[tuple[slice, dict[str, np.ndarray]]]
"""Pairs of a slice of samples and {name of a selection: value_RxC}."""


@dataclasses.dataclass(frozen=True)
class ModelSelection:
    """Models of one variable at one checkpoint, in the requested order."""

    folder: Path
    """The folder of the variable, for error messages."""
    array: ts.TensorStore
    """The variable at the checkpoint, of shape (models of the store, samples)."""
    index_R: list[int]
    """Indices of the models in the store."""
    checkpoint_key: tuple[int, ...] = ()
    """The indices between model and shard in the names of the files."""


def read_blocks(
    selections: Mapping[str, ModelSelection], num_samples: int, size: int, first: int = 0
) -> Blocks:
    """Yields the samples in order, in blocks of `size`; the next block is read while the caller uses the current one.

    Only these two blocks are in memory.

    Args:
      selections: what is read.
      num_samples: number of samples.
      size: number of samples per block; the last one may be shorter.
      first: id of the first sample that is read. The slices count from this sample.

    Raises:
      UserError: if shards of the selections have wrong checksums; the message names all of them and the remedy.
    """
    pending = _start_reading(selections, first, min(first + size, num_samples))
    for low in range(first, num_samples, size):
        high = min(low + size, num_samples)
        try:
            block = {name: read.result() for name, read in pending.items()}
        except ValueError as error:  # tensorstore's DATA_LOSS
            _raise_unreadable(error, selections)
        pending = _start_reading(selections, high, min(high + size, num_samples))
        yield slice(low - first, high - first), block
        # Otherwise, this reference would keep the block in memory until the next one is read.
        del block


def read_samples(
    selections: Mapping[str, ModelSelection], ids_S: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns {name: value_RxS} of selected samples, reading only their chunks; raises the errors of `read_blocks`."""
    pending = {
        name: selection.array.oindex[selection.index_R, list(ids_S)].read()
        for name, selection in selections.items()
    }
    try:
        return {name: read.result() for name, read in pending.items()}
    except ValueError as error:  # tensorstore's DATA_LOSS
        _raise_unreadable(error, selections)


def corrupt_shards(selections: Mapping[str, ModelSelection]) -> list[Path]:
    """Returns the files of all unreadable shards of the selections, without duplicates, by reading them one by one."""
    corrupt: dict[Path, None] = {}
    for selection in selections.values():
        array, size = selection.array, samples_per_shard(selection.array)
        num_samples = array.shape[1]
        for index in selection.index_R:
            for shard, low in enumerate(range(0, num_samples, size)):
                try:
                    array[index, low : min(low + size, num_samples)].read().result()
                except ValueError as error:
                    key = (index, *selection.checkpoint_key, shard)
                    path = selection.folder.joinpath("c", *map(str, key))
                    raise_failed_read(error, path)
                    corrupt[path] = None
    return list(corrupt)


def samples_per_shard(array: ts.TensorStore) -> int:
    """Returns the number of samples (the last dimension) per shard; a shard is one file."""
    shape = array.chunk_layout.write_chunk.shape
    assert shape is not None
    assert shape[-1] is not None
    return shape[-1]


@dataclasses.dataclass(frozen=True)
class _PendingRead:
    """The value_RxC of a selection, which tensorstore may not have filled yet."""

    value_RxC: np.ndarray
    done: ts.WriteFutures

    def result(self) -> np.ndarray:
        self.done.result()
        return self.value_RxC


def _start_reading(
    selections: Mapping[str, ModelSelection], low: int, high: int
) -> dict[str, _PendingRead]:
    """Starts to read a block: one read per selection, which tensorstore spreads over its threads."""
    pending = {}
    for name, selection in selections.items() if low < high else ():
        # NumPy's memory is faster than tensorstore's own, since NumPy requests huge pages.
        shape = len(selection.index_R), high - low
        value_RxC = np.empty(shape, selection.array.dtype.numpy_dtype)
        target = ts.array(value_RxC, copy=False, write=True)
        done = target.write(selection.array[selection.index_R, low:high])
        pending[name] = _PendingRead(value_RxC, done)
    return pending


def _raise_unreadable(error: ValueError, selections: Mapping[str, ModelSelection]) -> NoReturn:
    """Raises the error of shards that could not be read, which are read again, one by one, to find the damaged ones."""
    if corrupt := corrupt_shards(selections):
        remedy = "run `lm-mia score --repair` to compute it again"
        raise UserError(
            "\n".join(f"{path}: corrupt score shard; {remedy}" for path in corrupt)
        ) from None
    for selection in selections.values():  # if the disk fails for a moment only
        raise_failed_read(error, selection.folder)
    raise error
