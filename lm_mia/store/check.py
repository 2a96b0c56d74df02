"""Checks that a score store is complete and intact, for `lm-mia status --verify` and `score --repair`."""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
import zarr

from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError, raise_failed_read
from lm_mia.store import reader, schema
from lm_mia.store.store import Store

_MAX_PENDING = 4  # number of shards that are read at the same time


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """The state of the shards of the checked models."""

    num_shards: int
    """Number of shards that should exist."""
    missing: list[Path]
    corrupt: list[Path]
    """Files that exist but do not match their checksums, and all files of models that do not match their digests."""
    lost_records: list[Path]
    """Deleted or exchanged records of how models were trained, which only their training could write again."""


def check_shards(
    store: Store,
    models: Sequence[ModelSeeds],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ShardReport:
    """Reads all shards of models, at all of `Store.steps` and the end of training, and checks checksums and digests.

    Unreadable digests are among the corrupt files. So are all shards of a model whose values are not those that its
    digest was computed of, because one of them was replaced by that of another model. The same holds for
    log-probabilities of tokens and the record of how a model was trained. Deleted records and digests are missing.

    Args:
      store: the score store; its `variables` are checked.
      models: models of the store.
      progress: called as ``progress(done, total)`` with numbers of existing shards.

    Raises:
      UserError: if the metadata of the store is damaged.
    """
    shards = list(_shards(store, models))
    missing = [path for path, _ in shards if not path.exists()]
    corrupt: list[Path] = []
    existing = [(path, array) for path, array in shards if path.exists()]
    for done, (path, values) in enumerate(_read_ahead(existing), 1):
        try:
            values.result()
        except ValueError as error:  # tensorstore's DATA_LOSS
            raise_failed_read(error, path)
            corrupt.append(path)
        progress(done, len(existing))
    corrupt += _corrupt_digests(store, models)
    lost_records: list[Path] = []
    if not corrupt:  # damaged files are repaired first
        corrupt += _files_of_other_models(store, models, missing)
        damaged = store.damaged_details()
        lost_records = [path for path in damaged if path.parts[-3] == schema.COMPUTATION]
        damaged_scores = [path for path in damaged if path not in lost_records]
        missing += [p for p in damaged_scores if not p.exists() and p not in missing]
        corrupt += [p for p in damaged_scores if p.exists()]
        corrupt += [p for p in _details_to_write_again(store, damaged) if p not in corrupt]
    return ShardReport(len(shards), missing, corrupt, lost_records)


def _files_of_other_models(
    store: Store, models: Sequence[ModelSeeds], missing: Sequence[Path]
) -> list[Path]:
    """Returns the shards of models whose values have another digest, although no shard is missing."""
    incomplete = {path.relative_to(store.path).parts[2] for path in missing}
    index = {model: str(i) for i, model in enumerate(store.models())}
    complete = [model for model in models if index[model] not in incomplete]
    other = store.models_with_other_values(complete)
    return [path for path, _ in _shards(store, other) if path.exists()]


def _details_to_write_again(store: Store, damaged: Iterable[Path]) -> list[Path]:
    """Returns the details digests of models with damaged files, since the repaired files have others."""
    indices = dict.fromkeys(int(path.relative_to(store.path).parts[2]) for path in damaged)
    files = [schema.digest_file(store.path, index, schema.DETAILS) for index in indices]
    return [file for file in files if file.exists()]


def _corrupt_digests(store: Store, models: Sequence[ModelSeeds]) -> list[Path]:
    index = {model: i for i, model in enumerate(store.models())}
    names = [n for n in (schema.DIGEST, schema.DETAILS) if (store.path / n / "zarr.json").exists()]
    corrupt: list[Path] = []
    for name in names:
        with contextlib.suppress(UserError):
            schema.read_digests(store.path, name)
            continue
        corrupt += [
            schema.digest_file(store.path, index[model], name)
            for model in models
            if not schema.is_readable_digest(store.path, index[model], name)
        ]
    return corrupt


def check_scores(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Checks that the scores in a store are those that were written; models in progress are left out.

    Args:
      path: folder of the store.
      columns: as in `check_metadata`.

    Raises:
      UserError: if anything is damaged, was deleted, or was replaced by that of another model.
    """
    contents = schema.read_contents(path)
    steps = contents.checkpoint_steps if contents else ()
    store = Store(path, steps=steps[:-1], total_steps=steps[-1] if steps else 0)
    check_metadata(store, columns)
    store.check_digests(store.models())


@schema.no_zarr_warnings()
def check_metadata(store: Store, columns: Mapping[str, np.ndarray]) -> None:
    """Checks what readers such as xarray read besides the shards: the metadata of all arrays, and the coordinates.

    The metadata of each array is stored twice: in its own folder, and together with that of all other arrays. Both
    copies must be equal.

    Args:
      store: the score store.
      columns: expected values of coordinates by name, such as the columns of the population; other coordinates only
        have to be readable.

    Variables that this version does not know, such as those of a later version, are not checked.

    Raises:
      UserError: if anything is damaged; the message names the arrays, and the remedy.
    """
    # store.models() raises UserError if the coordinates of models or checkpoints are damaged.
    if not store.models():
        return
    group = zarr.open_group(store.path, mode="r")
    consolidated = group.metadata.consolidated_metadata
    assert consolidated is not None
    known = {*schema.VARIABLES, *schema.coordinate_names(group), *columns}
    damaged = []
    for name, metadata in consolidated.metadata.items():
        if name not in known:
            continue
        try:
            own = zarr.open_array(store.path / name, mode="r")
            described: dict[str, Any] = metadata.to_dict()
            is_intact = _text(own.metadata.to_dict()) == _text(described)
            # A damaged digest is one of the corrupt files of `check_shards`.
            if name not in schema.VARIABLES and name not in (schema.DIGEST, schema.DETAILS):
                value = np.asarray(own[: described["shape"][0]])
                is_intact &= value.dtype.kind == "U" or not (value < 0).any()
                # Properties of imported samples may be missing.
                has_nan = value.dtype.kind == "f"
                is_intact &= np.array_equal(value, columns.get(name, value), equal_nan=has_nan)
        except (ValueError, LookupError, TypeError, OSError, RuntimeError) as error:
            raise_failed_read(error, store.path / name)
            is_intact = False
        if not is_intact:
            damaged.append(name)
    if damaged:
        raise schema.damaged_store_error(store.path, ", ".join(damaged))


def _text(metadata: Mapping[str, Any]) -> str:
    """Returns an array's metadata as text, without the number of models, which killed commands may have increased."""
    return json.dumps({**metadata, "shape": metadata["shape"][1:]}, sort_keys=True, default=str)


def _read_ahead(shards: list[tuple[Path, ts.TensorStore]]) -> Iterator[tuple[Path, ts.Future]]:
    pending: collections.deque[tuple[Path, ts.Future]] = collections.deque()
    for path, array in shards:
        pending.append((path, array.read()))
        if len(pending) == _MAX_PENDING:
            yield pending.popleft()
    yield from pending


def _shards(store: Store, models: Sequence[ModelSeeds]) -> Iterator[tuple[Path, ts.TensorStore]]:
    """Yields the file and the array of each shard."""
    index = {model: i for i, model in enumerate(store.models())}
    for name in store.variables:
        if not (store.path / name / "zarr.json").exists():
            continue  # a statistic that was not requested yet when models were scored
        for step in (*store.steps, 0) if name != "member" else (0,):
            array = store.open_array(name, step)
            size, num_samples = reader.samples_per_shard(array), array.shape[-1]
            for model in models:
                key = (index[model], *store.checkpoint_key(name, step))
                for shard, low in enumerate(range(0, num_samples, size)):
                    path = store.path.joinpath(name, "c", *map(str, (*key, shard)))
                    yield path, array[index[model], low : min(low + size, num_samples)]
