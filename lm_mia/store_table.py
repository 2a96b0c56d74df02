"""What the score store knows beside its variables: rows, score points, and coordinates of its dimensions."""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from lm_mia.errors import UserError
from lm_mia.subsets import Role, Row

SEEDS = ("subset_seed", "init_seed", "order_seed")


@dataclasses.dataclass(frozen=True)
class Table:
    """A store as its readers see it."""

    rows: list[Row]
    """In store order."""
    names: set[str]
    """Of variables and coordinates."""
    points: tuple[int, ...]
    """Steps after which rows are scored, the end last; empty: at the end alone, and there is no such dimension."""


def read(path: Path) -> Table | None:
    """The table of a store, None if there is no store yet; UserError if it is damaged."""
    if not (path / "zarr.json").exists():
        return None
    try:
        group = zarr.open_group(path, mode="r")
        consolidated = group.metadata.consolidated_metadata
        names = set() if consolidated is None else set(consolidated.metadata)
        if "loss" not in names:
            return None
        role_M = _values(group, "role")
        seeds_3xM = [_values(group, name) for name in SEEDS]
        step_K = _values(group, "step") if "step" in names else np.zeros(0, np.int64)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise damaged(path, "zarr.json, role or seeds") from error
    rows = [
        Row(cast(Role, str(role)), *map(int, seeds))
        for role, *seeds in zip(role_M, *seeds_3xM, strict=True)
    ]
    # A lost chunk of a coordinate reads as its fill value, without an error.
    if "" in role_M or any((seeds_M < 0).any() for seeds_M in seeds_3xM):
        raise damaged(path, "role or seeds")
    if (step_K < 0).any():
        raise damaged(path, "step")
    return Table(rows, names, tuple(map(int, step_K)))


def damaged(path: Path, what: str) -> UserError:
    """The error of a store whose metadata or coordinates are not what was written."""
    return UserError(
        f"{path}: damaged score store ({what}); delete it and run `lm-mia run` again: "
        "rows are scored again from their checkpoints"
    )


def write_coordinate(group: zarr.Group, name: str, dimension: str, values: np.ndarray) -> None:
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


def _values(group: zarr.Group, name: str) -> np.ndarray:
    return np.asarray(cast(zarr.Array, group[name])[:])
