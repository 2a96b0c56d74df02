"""Whether every shard of a score store is there and whole: what `lm-mia status --verify` and `score --repair` ask."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tensorstore as ts

from lm_mia.data.subsets import ModelSeeds
from lm_mia.store import reader
from lm_mia.store.store import Store

_AHEAD = 4  # shards that are read at a time


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """What there is of the rows' shards."""

    num_shards: int
    """That there should be."""
    missing: list[Path]
    corrupt: list[Path]
    """There, but not as they were written: cut, or with other bytes."""


def check_shards(
    store: Store,
    models: Sequence[ModelSeeds],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> ShardReport:
    """Reads every shard of all variables of rows, at every score point, against its checksums.

    Args:
      store: with the variables that the rows should have.
      rows: known to the store.
      progress: told of shards.

    Raises:
      UserError: if the store's own metadata is damaged.
    """
    wanted = list(_shards(store, models))
    missing = [path for path, _ in wanted if not path.exists()]
    corrupt: list[Path] = []
    there = [(path, array) for path, array in wanted if path.exists()]
    for done, (path, values) in enumerate(_read_ahead(there), 1):
        try:
            values.result()
        except ValueError:  # tensorstore's DATA_LOSS
            corrupt.append(path)
        progress(done, len(there))
    return ShardReport(len(wanted), missing, corrupt)


def _read_ahead(there: list[tuple[Path, ts.TensorStore]]) -> Iterator[tuple[Path, ts.Future]]:
    reading: collections.deque[tuple[Path, ts.Future]] = collections.deque()
    for path, array in there:
        reading.append((path, array.read()))
        if len(reading) == _AHEAD:
            yield reading.popleft()
    yield from reading


def _shards(store: Store, rows: Sequence[ModelSeeds]) -> Iterator[tuple[Path, ts.TensorStore]]:
    """Every shard's file and what is in it."""
    table = {row: index for index, row in enumerate(store.models())}
    for name in store.variables:
        if not (store.path / name / "zarr.json").exists():
            continue  # a statistic that no row was asked for yet
        for step in (*store.steps, 0) if name != "member" else (0,):
            array = store.open_array(name, step)
            size, samples = reader.samples_per_shard(array), array.shape[-1]
            for row in rows:
                place = (table[row], *store.checkpoint_key(name, step))
                for shard, low in enumerate(range(0, samples, size)):
                    path = store.path.joinpath(name, "c", *map(str, (*place, shard)))
                    yield path, array[table[row], low : min(low + size, samples)]
