"""Reading rows of score variables, a block of samples at a time.

R: rows of a part, C: samples of a block.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorstore as ts

from lm_mia.errors import UserError

Blocks = Iterator[tuple[slice, dict[str, np.ndarray]]]
"""Which samples, and each part's values_RxC of them."""


@dataclasses.dataclass(frozen=True)
class ModelSelection:
    """Rows of one variable, at one score point, in the order wanted."""

    folder: Path
    """Of the variable, for messages."""
    array: ts.TensorStore
    """Rows x samples."""
    index_R: list[int]
    checkpoint_key: tuple[int, ...] = ()
    """What stands between row and shard in the files' names."""


def read_blocks(selections: Mapping[str, ModelSelection], samples: int, size: int) -> Blocks:
    """All samples in order, `size` at a time; the next block is read while the caller is at work on one.

    Held at any time: the block that the caller has and the one being read.

    Raises:
      UserError: naming every shard of the parts whose checksum fails, and how to get it rebuilt.
    """
    ahead = _start_reading(selections, 0, min(size, samples))
    for low in range(0, samples, size):
        high = min(low + size, samples)
        try:
            block = {name: future.result() for name, future in ahead.items()}
        except ValueError:  # tensorstore's DATA_LOSS
            if bad := corrupt_shards(selections):
                raise _corrupt_shards_error(bad) from None
            raise
        ahead = _start_reading(selections, high, min(high + size, samples))
        yield slice(low, high), block
        del block  # else it would outlive the caller's own while the next one is awaited


def read_samples(
    selections: Mapping[str, ModelSelection], ids_S: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns {name: values_RxS} of some samples; only the chunks that hold them are read; errors as in `blocks`."""
    reading = {
        name: part.array.oindex[part.index_R, list(ids_S)].read()
        for name, part in selections.items()
    }
    try:
        return {name: future.result() for name, future in reading.items()}
    except ValueError:  # tensorstore's DATA_LOSS
        if bad := corrupt_shards(selections):
            raise _corrupt_shards_error(bad) from None
        raise


def corrupt_shards(selections: Mapping[str, ModelSelection]) -> list[Path]:
    """Files of the parts' rows that cannot be read, each once; reads them all, one after another."""
    bad: dict[Path, None] = {}
    for part in selections.values():
        size, samples = samples_per_shard(part.array), part.array.shape[1]
        for index in part.index_R:
            for shard, low in enumerate(range(0, samples, size)):
                try:
                    part.array[index, low : min(low + size, samples)].read().result()
                except ValueError:
                    bad[
                        part.folder.joinpath("c", *map(str, (index, *part.checkpoint_key, shard)))
                    ] = None
    return list(bad)


def samples_per_shard(array: ts.TensorStore) -> int:
    """Samples of a shard, which is one file; they are the last dimension."""
    shape = array.chunk_layout.write_chunk.shape
    assert shape is not None
    assert shape[-1] is not None
    return shape[-1]


@dataclasses.dataclass(frozen=True)
class _PendingRead:
    """A part's values_RxC, which tensorstore may still be at."""

    values_RxC: np.ndarray
    done: ts.WriteFutures

    def result(self) -> np.ndarray:
        self.done.result()
        return self.values_RxC


def _start_reading(
    parts: Mapping[str, ModelSelection], low: int, high: int
) -> dict[str, _PendingRead]:
    """Begins to read a block: one read a part, which tensorstore spreads over its threads."""
    found = {}
    for name, part in parts.items() if low < high else ():
        # into numpy's memory: it asks for huge pages, which the system has ready sooner than as many small ones
        shape = len(part.index_R), high - low
        values_RxC = np.empty(shape, part.array.dtype.numpy_dtype)
        target = ts.array(values_RxC, copy=False, write=True)
        found[name] = _PendingRead(values_RxC, target.write(part.array[part.index_R, low:high]))
    return found


def _corrupt_shards_error(bad: list[Path]) -> UserError:
    return UserError(
        "\n".join(f"{p}: corrupt score shard; `lm-mia score --repair` makes it again" for p in bad)
    )
