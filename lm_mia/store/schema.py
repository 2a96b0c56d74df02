"""The layout of the score store on disk: its variables in Zarr v3, its models, checkpoints and coordinates.

The first dimension is `model`. Variables have chunks of 2^16 samples with checksums, grouped into shards of 2^22. Each
shard holds one model at one checkpoint.

The coordinates `model` (short names), `role`, `digest` and `computation` are strings of a fixed width, which xarray
reads as NumPy's `U` type. Zarr's strings of variable width would be read as `StringDType`, which much code does not
expect. Zarr-Python 3.1 warns when it writes fixed-width strings, and later versions do not; no version warns when it
reads them.

M: models, K: checkpoints.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.errors import UnstableSpecificationWarning, ZarrUserWarning

from lm_mia.config.schema import STATISTIC_UNITS
from lm_mia.data.subsets import ModelSeeds, Role
from lm_mia.data.zarr_metadata import check_zarr
from lm_mia.errors import UserError, raise_failed_read

SHARD_SAMPLES, CHUNK_SAMPLES = 2**22, 2**16
TOKENS = "token_log_prob"
"""The only variable with one value per token of selected samples instead of one value per sample."""
TOKEN_COLUMNS = ("token_sample", "token_position", "token_piece")
"""Coordinates of these tokens: id of the sample, position in the sample (0: <bos>), and id in the vocabulary."""
VARIABLES = {  # name -> type, fill value and units
    "member": ("bool", False, ""),
    "loss": ("float32", "NaN", "nats per token"),
    **{name: ("float32", "NaN", unit) for name, unit in STATISTIC_UNITS.items()},
    TOKENS: ("float32", "NaN", "nats"),
}

DIGEST = "digest"
"""Coordinate of the digest of each model's scores, "" before they are complete; each is a file of its own, so that many
processes can write them."""
COMPUTATION = "computation"
"""Coordinate of how each model was trained, see `Store.add_computation`; each is a file of its own, too."""
DETAILS = "details_digest"
"""Coordinate of the digests of what `digest` leaves out, see `Store.write_digest`; each is a file of its own, too.
Stores of earlier versions do not have it until models are added."""
_FILE_A_MODEL = {
    DIGEST: np.dtype("<U32"),
    COMPUTATION: np.dtype("<U160"),
    DETAILS: np.dtype("<U32"),
}
SEEDS = ("subset_seed", "init_seed", "order_seed")
_MODELS = "models"  # attribute of the group, see `_models_record`
STRING = np.dtype("<U32")
"""The type of names, roles and digests; a fixed width suffices, since a name with the largest int64 seed has 29
characters."""


def kvstore(path: Path) -> dict[str, str]:
    """Returns tensorstore's specification of a folder."""
    return {"driver": "file", "path": f"{path.resolve()}/"}  # tensorstore does not accept ".."


def last_dimension(name: str) -> str:
    """Returns the name of the last dimension of a variable."""
    return "token" if name == TOKENS else "sample"


def checkpoint_shape(name: str, num_checkpoints: int) -> tuple[int, ...]:
    """Returns the shape of a variable between its models and its samples: (num_checkpoints,) or ().

    Membership is the same at all checkpoints, so it never has this dimension.

    Args:
      name: name of the variable.
      num_checkpoints: 0 if models are scored only at the end of training.
    """
    return (num_checkpoints,) if num_checkpoints and name != "member" else ()


def variable_spec(
    path: Path,
    num_models: int,
    num_checkpoints: int,
    size: int,
    token_samples: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Returns tensorstore's specification of a new variable.

    Args:
      path: folder of the variable, which has its name.
      num_models, num_checkpoints: lengths of these dimensions; the second as in `checkpoint_shape`.
      size: number of samples, or of tokens for `TOKENS`.
      token_samples: ids of the samples of `TOKENS`, which are stored in its attributes.
    """
    middle = checkpoint_shape(path.name, num_checkpoints)
    ones = [1] * (1 + len(middle))
    dtype, fill, units = VARIABLES[path.name]
    chunk = min(CHUNK_SAMPLES, size)
    shard = min(SHARD_SAMPLES, -(-size // chunk) * chunk)
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
            "shape": [num_models, *middle, size],
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
    """The models, variables and checkpoints of a store, as readers see them."""

    models: tuple[ModelSeeds, ...]
    """In store order."""
    names: frozenset[str]
    """Names of variables and coordinates."""
    checkpoint_steps: tuple[int, ...]
    """Training steps of the checkpoints, the end of training last; empty if models are scored only at the end, since
    there is no checkpoint dimension then."""


def read_contents(path: Path) -> StoreContents | None:
    """Returns the contents of a store, or None if it does not exist yet; raises UserError if it is damaged."""
    return _contents_at(path, _metadata_stamps(path))


def _metadata_stamps(path: Path) -> tuple[object, ...]:
    """Returns what changes if one of the files is replaced that `read_contents` reads."""
    files = [path / "zarr.json", path / TOKENS / "zarr.json", path / "member" / "c"]
    for name in ("model", "role", *SEEDS, "step"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            files += sorted((path / name / "c").iterdir())
    return tuple((file, file_stamp(file)) for file in files)


@functools.lru_cache(maxsize=64)
def _contents_at(path: Path, stamps: tuple[object, ...]) -> StoreContents | None:
    """Returns `read_contents` of a store whose files have these stamps, which only serve as a key of the cache."""
    _check_codecs(path, file_stamp(path / "zarr.json"))
    if not (path / "zarr.json").exists():
        return _new_store(path)
    try:
        group = zarr.open_group(path, mode="r")
        names = consolidated_names(group)
        if not (path / TOKENS / "zarr.json").exists():
            names.discard(TOKENS)  # the user deleted it, to store other samples
        if "loss" not in names:
            return _new_store(path)
        name_M, role_M = _read_coordinate(group, "model"), _read_coordinate(group, "role")
        seeds_3xM = [_read_coordinate(group, name) for name in SEEDS]
        step_K = _read_coordinate(group, "step") if "step" in names else np.zeros(0, np.int64)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise_failed_read(error, path)
        raise damaged_store_error(path, "zarr.json, model, role or seeds") from error
    models = _models(role_M, *seeds_3xM)
    # A missing chunk of a coordinate is read as its fill value, without an error.
    if name_M.tolist() != [model.name for model in models] or any((s < 0).any() for s in seeds_3xM):
        raise damaged_store_error(path, "model, role or seeds")
    # Names do not have all seeds. A command that was killed may have recorded models that readers do not see yet.
    record = str(group.attrs.get(_MODELS, ""))
    count = record.partition(" ")[0]
    if (
        count.isdecimal()
        and record != _models_record(models[: int(count)])
        and int(count) <= len(models)
    ):
        raise damaged_store_error(path, "model, role or seeds")
    if (np.diff(step_K, prepend=0) <= 0).any():  # they are positive and ascend
        raise damaged_store_error(path, "step")
    return StoreContents(tuple(models), frozenset(names), tuple(map(int, step_K)))


def _models(role_M: np.ndarray, *seeds_3xM: np.ndarray) -> list[ModelSeeds]:
    return [
        ModelSeeds(cast(Role, str(role)), *map(int, seeds))
        for role, *seeds in zip(role_M, *seeds_3xM, strict=True)
    ]


def _models_record(models: Sequence[ModelSeeds]) -> str:
    """Returns the number of models and a hash of their roles and seeds, by which exchanged seeds are noticed."""
    text = "\n".join(f"{m.role} {m.subset_seed} {m.init_seed} {m.order_seed}" for m in models)
    return f"{len(models)} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def file_stamp(file: Path) -> tuple[int, int, int] | None:
    """Returns what changes if a file is replaced; None if it does not exist."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=64)
def _check_codecs(path: Path, stamp: tuple[int, int, int] | None) -> None:
    """Checks the codecs of a store whose metadata file has this stamp, which only serves as a key of the cache."""
    check_zarr(path, formats=(3,))


def _new_store(path: Path) -> None:
    """Returns None, the contents of a store that does not exist yet; raises UserError if there are scores."""
    if (path / "member" / "c").exists():
        # If this store were created again, its models might be in another order than their scores.
        raise damaged_store_error(path, "zarr.json")


def check_contents(
    path: Path,
    contents: StoreContents,
    checkpoint_steps: tuple[int, ...],
    requested_samples: tuple[int, ...],
) -> None:
    """Raises UserError if a store has other checkpoints than requested, or log-probabilities for other samples."""
    if contents.checkpoint_steps != checkpoint_steps:
        stored, requested = (
            f"steps {', '.join(map(str, steps))}" if steps else "the end of training only"
            for steps in (contents.checkpoint_steps, checkpoint_steps)
        )
        raise UserError(
            f"{path}: the models are scored at {stored}, not at {requested}; restore score.at_steps and "
            "score.at_epochs, or choose another --workdir"
        )
    if not requested_samples or TOKENS not in contents.names:
        return
    if (stored_samples := token_samples(path)) != requested_samples:
        ids_text = ", ".join(map(str, stored_samples[:5])) + (", ..." if stored_samples[5:] else "")
        raise UserError(
            f"score.token_samples: {path} has log-probabilities of the tokens of other samples, or in another order "
            f"({len(stored_samples)} samples: {ids_text}); request these samples, or delete {path / TOKENS} to store "
            "those of the requested samples instead"
        )


def token_samples(path: Path) -> tuple[int, ...]:
    """Returns the ids of the samples whose token log-probabilities a store has; raises UserError if it is damaged."""
    file = path / TOKENS / "zarr.json"
    try:
        return tuple(map(int, json.loads(file.read_text())["attributes"]["samples"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise_failed_read(error, file)
        raise UserError(
            f"{file}: the file is damaged; delete {file.parent} and run `lm-mia score` to compute it again from "
            "checkpoints"
        ) from error


@contextmanager
def no_zarr_warnings() -> Iterator[None]:
    """Hides warnings that consolidated metadata and fixed-width strings (Zarr-Python 3.1) are not in Zarr's standard.

    xarray and Zarr-Python support both; the warnings concern other readers.
    """
    with warnings.catch_warnings():
        for category in (ZarrUserWarning, UnstableSpecificationWarning):
            warnings.simplefilter("ignore", category)
        yield


@no_zarr_warnings()
def remove_deleted_tokens(path: Path) -> None:
    """Removes the metadata and coordinates of a token variable that was deleted, so that readers do not expect it."""
    if not (path / "zarr.json").exists() or (path / TOKENS / "zarr.json").exists():
        return
    group = zarr.open_group(path, mode="a")
    if TOKENS in consolidated_names(group):
        for name in (TOKENS, *TOKEN_COLUMNS):
            shutil.rmtree(path / name, ignore_errors=True)
        names = str(group.attrs["coordinates"]).split()
        group.attrs["coordinates"] = " ".join(n for n in names if n not in TOKEN_COLUMNS)
        consolidate(path)


def damaged_store_error(path: Path, what: str) -> UserError:
    """Returns the error of a store whose metadata or coordinates are damaged.

    Args:
      path: folder of the store.
      what: name of the damaged part.
    """
    return UserError(
        f"{path}: damaged score store ({what}); delete it and run `lm-mia run` to score the models again from their "
        "checkpoints, or `lm-mia import` if the losses were imported"
    )


def model_columns(models: Sequence[ModelSeeds]) -> dict[str, np.ndarray]:
    """Returns the coordinates of the model dimension: short name, role and seeds."""
    seeds = {name: np.array([getattr(model, name) for model in models], np.int64) for name in SEEDS}
    names = {"model": [model.name for model in models], "role": [model.role for model in models]}
    return {name: np.array(values, STRING) for name, values in names.items()} | seeds


@no_zarr_warnings()
def write_coordinates(
    path: Path, coordinates: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Any]
) -> None:
    """Creates the group if it does not exist, and creates, extends or replaces coordinates.

    Readers see the coordinates after `consolidate`.

    Args:
      path: folder of the store.
      coordinates: dimension -> name -> values. Empty ones are not written, and existing other ones are kept.
      attributes: attributes of the group.
    """
    group = zarr.open_group(path, mode="a")
    names = dict.fromkeys(str(group.attrs.get("coordinates", "")).split())
    for dimension, columns in coordinates.items():
        for name, values in columns.items():
            if len(values):
                names[name] = None
                _write_coordinate(path / name, dimension, values)
    for name in _FILE_A_MODEL:
        _create_or_resize_file_a_model(path, name, len(coordinates["model"]["model"]))
        names[name] = None
    models = _models(*(coordinates["model"][name] for name in ("role", *SEEDS)))
    record = {_MODELS: _models_record(models), "coordinates": " ".join(names)}
    group.update_attributes({**attributes, **record})


def digest_file(path: Path, index: int, name: str = DIGEST) -> Path:
    """Returns the file with a digest of a model; it exists only if the scores of the model are complete.

    Args:
      path: folder of the store.
      index: index of the model.
      name: `DIGEST` or `DETAILS`.
    """
    return path / name / "c" / str(index)


def computation_file(path: Path, index: int) -> Path:
    """Returns the file with the record of how a model was trained, if there is one."""
    return path / COMPUTATION / "c" / str(index)


@no_zarr_warnings()
def write_digest(path: Path, index: int, digest: str, name: str = DIGEST) -> None:
    """Writes a digest of a model of the store; `name` as in `digest_file`."""
    _open_file_a_model(path, name, "r+")[index] = digest


@no_zarr_warnings()
def write_computation(path: Path, index: int, computation: str) -> None:
    """Writes how a model of the store was trained."""
    if not (path / COMPUTATION / "zarr.json").exists():  # a store that an earlier version made
        _create_or_resize_file_a_model(path, COMPUTATION, len(read_digests(path)))
    _open_file_a_model(path, COMPUTATION, "r+")[index] = computation


def read_computations(path: Path) -> list[str]:
    """Returns how each model of the store was trained; "" where that is not known.

    Raises:
      UserError: if they are damaged.
    """
    if not (path / COMPUTATION / "zarr.json").exists():
        return [""] * len(read_digests(path))
    try:
        return np.asarray(_open_file_a_model(path, COMPUTATION, "r")[:]).tolist()
    except (ValueError, LookupError, TypeError, OSError, RuntimeError) as error:
        raise_failed_read(error, path / COMPUTATION)
        raise damaged_store_error(path, COMPUTATION) from error


def read_digests(path: Path, name: str = DIGEST) -> list[str]:
    """Returns a digest of each model of the store; "" if its scores are not complete.

    Args:
      path: folder of the store.
      name: `DIGEST` or `DETAILS`.

    Raises:
      UserError: if the digests are damaged.
    """
    try:
        return np.asarray(_open_file_a_model(path, name, "r")[:]).tolist()
    except (ValueError, LookupError, TypeError, OSError, RuntimeError) as error:
        raise_failed_read(error, path / name)
        raise UserError(
            f"{path / name}: damaged; run `lm-mia score --repair` to compute the digests again"
        ) from error


def is_readable_digest(path: Path, index: int, name: str = DIGEST) -> bool:
    """Returns whether a digest of a model is intact or has not been written; `name` as in `digest_file`."""
    try:
        _open_file_a_model(path, name, "r")[index]
    except (ValueError, LookupError, TypeError, OSError, RuntimeError) as error:
        raise_failed_read(error, digest_file(path, index, name))
        return False
    return True


def _open_file_a_model(path: Path, name: str, mode: Literal["r", "r+"]) -> zarr.Array:
    try:
        return zarr.open_array(path / name, mode=mode)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise_failed_read(error, path / name / "zarr.json")
        raise damaged_store_error(path, f"{name}/zarr.json") from error


def _create_or_resize_file_a_model(path: Path, name: str, num_models: int) -> None:
    if (path / name / "zarr.json").exists():
        _open_file_a_model(path, name, "r+").resize((num_models,))
        return
    zarr.create_array(
        path / name,
        shape=(num_models,),
        dtype=_FILE_A_MODEL[name],
        chunks=(1,),
        dimension_names=["model"],
        compressors=[Crc32cCodec()],
        fill_value="",
    )


@no_zarr_warnings()
def extend_other_variables(path: Path, num_models: int) -> None:
    """Gives the variables that this version does not know, such as those of a later version, a new number of models.

    Models that are new have no values in them. With another number of models, xarray could not open the store.
    """
    group = zarr.open_group(path, mode="r")
    for name in consolidated_names(group) - VARIABLES.keys() - coordinate_names(group):
        array = zarr.open_array(path / name, mode="r+")
        if "model" in (getattr(array.metadata, "dimension_names", None) or ())[:1]:
            array.resize((num_models, *array.shape[1:]))


def consolidated_names(group: zarr.Group) -> set[str]:
    """Returns the names of the variables and coordinates that readers see."""
    consolidated = group.metadata.consolidated_metadata
    return set() if consolidated is None else {*consolidated.metadata}


def coordinate_names(group: zarr.Group) -> set[str]:
    """Returns the names of the coordinates of a store."""
    return {*str(group.attrs.get("coordinates", "")).split()}


@no_zarr_warnings()
def consolidate(path: Path) -> None:
    """Makes new variables, models and coordinates visible to readers, by one atomic rename."""
    zarr.consolidate_metadata(path)


def _write_coordinate(path: Path, dimension: str, values: np.ndarray) -> None:
    """Creates or extends a one-dimensional coordinate; its chunks are so long that extending it rewrites one file."""
    # Looks for the file, since the coordinate of a command that crashed may not be in the consolidated metadata.
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
            # A chunk of strings would take 512 KiB without compression.
            compressors=[ZstdCodec(), Crc32cCodec()] if is_text else [Crc32cCodec()],
            # An invalid value, so that a missing chunk is noticed.
            fill_value="" if is_text else -1,
        )
    array[:] = values


def _read_coordinate(group: zarr.Group, name: str) -> np.ndarray:
    return np.asarray(cast(zarr.Array, group[name])[:])
