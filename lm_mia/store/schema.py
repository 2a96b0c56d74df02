"""The layout of the score store on disk: its variables in Zarr v3, its models, score points and coordinates.

The first dimension is `model`. Variables have chunks of 2^16 samples with checksums, grouped into shards of 2^22. Each
shard holds one model at one score point.

The coordinates `model` (the short names) and `role` are strings of a fixed width, which xarray reads as numpy's `U`
type. Zarr's strings of variable width would be read as `StringDType`, which much code does not expect. Zarr-Python 3.1
warns when it writes fixed-width strings, and later versions do not; no version warns when it reads them.
"""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.errors import UnstableSpecificationWarning, ZarrUserWarning

from lm_mia.data.subsets import ModelSeeds, Role
from lm_mia.errors import UserError

SHARD_SAMPLES, CHUNK_SAMPLES = 2**22, 2**16
TOKENS = "token_log_prob"
"""The one variable that is not of samples, but of the tokens of chosen ones."""
TOKEN_COLUMNS = ("token_sample", "token_position", "token_piece")
"""What is known of these tokens: of which sample, where in it (0: <bos>), and which piece of the vocabulary."""
_NATS = "nats per token"
VARIABLES = {  # name -> type, fill value and units
    "member": ("bool", False, ""),
    "loss": ("float32", "NaN", _NATS),
    "summed_loss": ("float32", "NaN", "nats"),
    "target_logit": ("float32", "NaN", ""),
    "greedy_match": ("float32", "NaN", "share of tokens"),
    "min_k": ("float32", "NaN", _NATS),
    "min_k_plus_plus": ("float32", "NaN", "standard deviations"),
    "lowercase_loss": ("float32", "NaN", _NATS),
    TOKENS: ("float32", "NaN", "nats"),
}

SEEDS = ("subset_seed", "init_seed", "order_seed")
STRING = np.dtype("<U32")
"""The type of names and roles; a fixed width suffices, since a name with the largest int64 seed has 29 characters."""


def kvstore(path: Path) -> dict[str, str]:
    """Tensorstore's specification of a folder."""
    return {"driver": "file", "path": f"{path.resolve()}/"}  # it takes no ".."


def last_dimension(name: str) -> str:
    """The last dimension of a variable."""
    return "token" if name == TOKENS else "sample"


def checkpoint_shape(name: str, points: int) -> tuple[int, ...]:
    """The shape of a variable between its rows and its samples, in a store of so many score points (0: the end alone).

    Membership is the same at all of them.
    """
    return (points,) if points and name != "member" else ()


def variable_spec(
    path: Path, rows: int, points: int, samples: int, token_samples: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Tensorstore's specification of a new variable, named by its path, of so many rows, score points and samples.

    `TOKENS` has tokens for samples, and says in its attributes of which samples they are.
    """
    middle = checkpoint_shape(path.name, points)
    ones = [1] * (1 + len(middle))
    dtype, fill, units = VARIABLES[path.name]
    chunk = min(CHUNK_SAMPLES, samples)
    shard = min(SHARD_SAMPLES, -(-samples // chunk) * chunk)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [*ones, chunk],
        "codecs": [little, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "driver": "zarr3",
        "kvstore": kvstore(path),
        "metadata": {
            "shape": [rows, *middle, samples],
            "data_type": dtype,
            "fill_value": fill,
            "dimension_names": ["model", *["checkpoint"] * len(middle), last_dimension(path.name)],
            "attributes": ({"units": units} if units else {})
            | ({"samples": list(token_samples)} if path.name == TOKENS else {}),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*ones, shard]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }


@dataclasses.dataclass(frozen=True)
class StoreContents:
    """A store as its readers see it."""

    models: list[ModelSeeds]
    """In store order."""
    names: set[str]
    """Of variables and coordinates."""
    checkpoint_steps: tuple[int, ...]
    """Steps after which rows are scored, the end last; empty: at the end alone, and there is no such dimension."""


def read_contents(path: Path) -> StoreContents | None:
    """The table of a store, None if there is no store yet; UserError if it is damaged."""
    if not (path / "zarr.json").exists():
        return None
    try:
        group = zarr.open_group(path, mode="r")
        consolidated = group.metadata.consolidated_metadata
        names = set() if consolidated is None else set(consolidated.metadata)
        if not (path / TOKENS / "zarr.json").exists():
            names.discard(TOKENS)  # deleted, to make room for those of other samples
        if "loss" not in names:
            return None
        name_M, role_M = _read_coordinate(group, "model"), _read_coordinate(group, "role")
        seeds_3xM = [_read_coordinate(group, name) for name in SEEDS]
        step_K = _read_coordinate(group, "step") if "step" in names else np.zeros(0, np.int64)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise damaged_store_error(path, "zarr.json, model, role or seeds") from error
    rows = [
        ModelSeeds(cast(Role, str(role)), *map(int, seeds))
        for role, *seeds in zip(role_M, *seeds_3xM, strict=True)
    ]
    # A lost chunk of a coordinate reads as its fill value, without an error.
    if name_M.tolist() != [row.name for row in rows] or any((s < 0).any() for s in seeds_3xM):
        raise damaged_store_error(path, "model, role or seeds")
    if (step_K < 0).any():
        raise damaged_store_error(path, "step")
    return StoreContents(rows, names, tuple(map(int, step_K)))


def check_contents(
    path: Path, table: StoreContents, points: tuple[int, ...], samples: tuple[int, ...]
) -> None:
    """UserError if a store has other score points, or token log-probabilities of other samples (if of any)."""
    if table.checkpoint_steps != points:
        there, asked = (
            f"steps {', '.join(map(str, points))}" if points else "the end alone"
            for points in (table.checkpoint_steps, points)
        )
        raise UserError(
            f"{path}: its rows are scored at {there}, not at {asked}; put score.at_steps and score.at_epochs "
            "back, or choose another --workdir"
        )
    if samples and TOKENS in table.names and (there := token_samples(path)) != samples:
        few = ", ".join(map(str, there[:5])) + (", ..." if there[5:] else "")
        raise UserError(
            f"score.token_samples: {path} has log-probabilities of the tokens of other samples, or in another order "
            f"({len(there)}: {few}); ask for these, or delete {path / TOKENS} to have those asked for instead"
        )


def token_samples(path: Path) -> tuple[int, ...]:
    """Samples of which a store has token log-probabilities, in their order; UserError if that is damaged."""
    file = path / TOKENS / "zarr.json"
    try:
        return tuple(map(int, json.loads(file.read_text())["attributes"]["samples"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{file}: damaged; delete {file.parent} and run `lm-mia score` again: these are made again from checkpoints"
        ) from error


@contextmanager
def _no_zarr_warnings() -> Iterator[None]:
    """Hides Zarr's warnings that consolidated metadata and, up to 3.1, fixed-width strings are not in its standard.

    xarray and Zarr-Python agree on both; the warnings are about other readers.
    """
    with warnings.catch_warnings():
        for category in (ZarrUserWarning, UnstableSpecificationWarning):
            warnings.simplefilter("ignore", category)
        yield


@_no_zarr_warnings()
def remove_deleted_tokens(path: Path) -> None:
    """Forgets tokens whose variable was deleted, and their coordinates, so that readers no longer expect them."""
    if not (path / "zarr.json").exists() or (path / TOKENS / "zarr.json").exists():
        return
    group = zarr.open_group(path, mode="a")
    known = group.metadata.consolidated_metadata
    if known is not None and TOKENS in known.metadata:
        for name in (TOKENS, *TOKEN_COLUMNS):
            shutil.rmtree(path / name, ignore_errors=True)
        names = str(group.attrs["coordinates"]).split()
        group.attrs["coordinates"] = " ".join(n for n in names if n not in TOKEN_COLUMNS)
        consolidate(path)


def damaged_store_error(path: Path, what: str) -> UserError:
    """The error of a store whose metadata or coordinates are not what was written."""
    return UserError(
        f"{path}: damaged score store ({what}); delete it and run `lm-mia run` again: "
        "rows are scored again from their checkpoints"
    )


def model_columns(rows: Sequence[ModelSeeds]) -> dict[str, np.ndarray]:
    """Coordinates of the model dimension: short name, role and seeds."""
    seeds = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in SEEDS}
    names = {"model": [row.name for row in rows], "role": [row.role for row in rows]}
    return {name: np.array(values, STRING) for name, values in names.items()} | seeds


@_no_zarr_warnings()
def write_coordinates(
    path: Path, coordinates: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Any]
) -> None:
    """Creates the group if need be, and creates, grows or replaces coordinates; readers see them once consolidated.

    Args:
      path: of the store.
      coordinates: dimension -> name -> values, where there are any; others that are there stay.
      attributes: of the group.
    """
    group = zarr.open_group(path, mode="a")
    names: dict[str, None] = {}
    there = dict.fromkeys(str(group.attrs.get("coordinates", "")).split())
    for dimension, columns in coordinates.items():
        for name, values in columns.items():
            if len(values):
                names[name] = None
                _write_coordinate(path / name, dimension, values)
    group.update_attributes({**attributes, "coordinates": " ".join(there | names)})


@_no_zarr_warnings()
def consolidate(path: Path) -> None:
    """Lets readers see what was written: one atomic rename."""
    zarr.consolidate_metadata(path)


def _write_coordinate(path: Path, dimension: str, values: np.ndarray) -> None:
    """Creates or grows a one-dimensional coordinate; chunks are long enough that growing rewrites one file."""
    # asked of files: a command that crashed may have left one that readers do not see
    if (path / "zarr.json").exists():
        array = zarr.open_array(path, mode="r+")
        array.resize(values.shape)
    else:
        is_text = values.dtype == STRING
        array = zarr.create_array(
            path,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(min(max(4096, len(values)), 2**20),),
            dimension_names=[dimension],
            # a chunk of strings would take 512 KiB uncompressed
            compressors=[ZstdCodec(), Crc32cCodec()] if is_text else [Crc32cCodec()],
            fill_value="" if is_text else -1,  # no valid value: shows a lost chunk
        )
    array[:] = values


def _read_coordinate(group: zarr.Group, name: str) -> np.ndarray:
    return np.asarray(cast(zarr.Array, group[name])[:])
