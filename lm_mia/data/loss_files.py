"""Reads losses of models that were trained elsewhere, from npz, parquet, zarr and netCDF files.

All formats have the same content: for each model and sample, the loss in nats per token and whether the model was
trained on the sample; optionally, the role of each model, and a text and other columns of each sample. Values are
read one model at a time, so that a file may be larger than the memory.

M: models, T: targets, R: references, N: samples of the population (2N).
"""

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from lm_mia.config.schema import Statistic
from lm_mia.data import loss_units
from lm_mia.data.array_files import check_is_file, check_membership, check_real, open_npz
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.data.score_arrays import MAX_LOSS, check_loss_scale
from lm_mia.data.zarr_metadata import check_zarr
from lm_mia.errors import UserError, collect_errors

if TYPE_CHECKING:
    import xarray as xr

ImportedRole = Literal["reference", "target", "replica", "base"]
"""A base is the model that the others were fine-tuned from: trained on none of the samples, and never a reference."""
ROLES: tuple[ImportedRole, ...] = get_args(ImportedRole)
STATISTICS: tuple[str, ...] = get_args(Statistic)
VOCABULARY = "vocabulary"
"""Column of the number of pieces of the vocabulary, usually the same for all samples; only the check of units needs it.
"""
_NOT_COLUMNS = ("id", "sample", "loss", "member", "role", "text", *STATISTICS)
_SHOWN = 5  # names listed in a message


@dataclasses.dataclass(frozen=True)
class LossFile:
    """Losses of M models on N samples, and what is known about models and samples."""

    source: str
    """Where the losses come from, for messages: the path, or "arrays"."""
    names_M: tuple[str, ...]
    """Names of the models in the file."""
    role_M: tuple[ImportedRole, ...]
    num_samples: int
    statistics: tuple[str, ...]
    """Names of the statistics that the file has in addition to the loss."""
    columns: Mapping[str, np.ndarray]
    """Name -> column_N of each property of the samples: numbers, except for `RECORD_COLUMNS` and `document`."""
    text_N: np.ndarray | None
    read: Callable[[str, int], np.ndarray]
    """Called as ``read(name, model)``; returns value_N of "loss", "member" or a statistic under one model."""
    are_nats: bool = False
    """Whether the user says that losses are in nats per token, so that their unit is not checked."""


def open_losses(path: Path, roles: Mapping[str, ImportedRole] = MappingProxyType({})) -> LossFile:
    """Opens a file of losses, and checks everything except the values of losses and membership.

    Args:
      path: a file whose name ends with .npz, .parquet or .nc, or a Zarr store.
      roles: name of a model -> its role, if the file does not say it; all other models are references then.

    Returns:
      Its content.

    Raises:
      UserError: with one line per problem. A file that could run code when its values are read is refused.
    """
    if (path / "zarr.json").is_file() or (path / ".zgroup").is_file():
        return _open_dataset(path, roles)
    check_is_file(path)
    match path.suffix:
        case ".npz":
            return from_mapping(str(path), open_npz(path), roles)
        case ".parquet":
            return _open_parquet(path, roles)
        case ".nc" | ".nc4" | ".netcdf" | ".h5":
            return _open_dataset(path, roles)
    if path.suffix == ".npy":
        raise UserError(
            f"{path}: holds a single array; save both in one file with "
            "np.savez(FILE, loss_MxN=losses, member_MxN=members), FILE ending with .npz"
        )
    if path.suffix == ".csv":
        raise UserError(
            f"{path}: losses are read from parquet, not from csv; convert it with "
            f"pandas.read_csv({str(path)!r}).to_parquet({str(path.with_suffix('.parquet'))!r})"
        )
    raise UserError(
        f"{path}: the name must end with .npz, .parquet or .nc, or be the folder of a Zarr store; rename the file, or "
        "convert it"
    )


def from_arrays(
    source: str,
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    role_M: ArrayLike | None = None,
    text_N: Sequence[str] | np.ndarray | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    statistics: Mapping[str, ArrayLike] | None = None,
    names_M: Sequence[str] | None = None,
    *,
    are_nats: bool = False,
) -> LossFile:
    """Returns the losses of arrays; raises UserError with one line per problem of their shapes, roles and columns.

    Args:
      source: where the arrays come from, for messages.
      loss_MxN: loss of each sample under each model, in nats per token.
      member_MxN: whether each model was trained on each sample.
      role_M: "reference", "target", "replica" or "base" for each model; None: all are references.
      text_N: texts of the samples.
      columns: name -> column_N, such as `tokens`.
      statistics: name -> value_MxN of other statistics.
      names_M: names of the models; None: their numbers.
      are_nats: as in `LossFile`.
    """
    problems = [
        f"{source}: {name} is of type {type(value).__name__}; it must be a dict of names and arrays"
        for name, value in (("columns", columns), ("statistics", statistics))
        if not isinstance(value, Mapping | None)
    ]
    if problems:
        raise UserError("\n".join(problems))
    given = {"loss_MxN": loss_MxN, "member_MxN": member_MxN}
    for name, value in (statistics or {}).items():
        if name in STATISTICS:
            given[f"{name}_MxN"] = value
        else:
            problems.append(
                f"{source}: statistics has the unknown name {name!r}; use one of {', '.join(STATISTICS)}"
            )
    arrays = {name: _to_array(value, f"{source}: {name}") for name, value in given.items()}
    shape = arrays["loss_MxN"].shape
    if len(shape) != 2 or 0 in shape:
        problems.append(
            f"{source}: loss_MxN has shape {shape}; it must have one row per model and one column per sample"
        )
    else:
        for name, value in arrays.items():
            if value.shape != shape:
                problems.append(
                    f"{source}: {name} has shape {value.shape}, but loss_MxN has shape {shape}; they must be equal"
                )
    if problems:
        raise UserError("\n".join(problems))
    models, samples = shape
    roles = _check_roles(source, ["reference"] * models if role_M is None else role_M, models)
    texts, checked = _check_columns(source, samples, columns or {}, text_N)
    return LossFile(
        source,
        tuple(map(str, range(models) if names_M is None else names_M)),
        roles,
        samples,
        tuple(statistics or {}),
        checked,
        texts,
        lambda name, model: arrays[f"{name}_MxN"][model],
        are_nats,
    )


def check_values(file: LossFile, progress: Callable[[int, int], None]) -> None:
    """Checks the losses, statistics and membership of every model, and the unit of the losses.

    Raises UserError with one line per problem.

    Args:
      file: an open file.
      progress: called with the number of models that were checked, and their total.
    """
    problems: list[str] = []
    replica_member_N: np.ndarray | None = None
    for model, role in enumerate(file.role_M):
        progress(model, len(file.role_M))
        for name in ("loss", *file.statistics):
            collect_errors(
                problems, lambda model=model, name=name: _check_losses(file, name, model)
            )
        member_N = collect_errors(problems, lambda model=model: read_member(file, model))
        if member_N is None or role == "reference":
            continue
        members = int(np.count_nonzero(member_N))
        if role == "base":
            if members:
                problems.append(
                    f"{_where(file, model)}: a base is trained on none of the samples, but this one was trained on "
                    f"{members:,}; make it a reference, or leave its membership out"
                )
            continue
        if not 0 < members < file.num_samples:
            problems.append(
                f"{_where(file, model)}: a {role} needs members and non-members, but this one was trained on "
                f"{members:,} of {file.num_samples:,} samples; make it a reference, or leave it out"
            )
        if role == "replica" and replica_member_N is None:
            replica_member_N = member_N
        elif role == "replica" and (member_N != replica_member_N).any():
            problems.append(
                f"{_where(file, model)}: all replicas must be trained on the same samples, but this one was not; "
                "make it a target"
            )
    progress(len(file.role_M), len(file.role_M))
    raise_first(problems)
    if not file.are_nats:
        _check_unit(file)


def _check_unit(file: LossFile) -> None:
    """Raises UserError if the losses are not in nats per token, as far as a part of the samples shows."""
    drawn_S = loss_units.draw_samples(file.num_samples)
    tokens_N, vocabulary_N = file.columns.get("tokens"), file.columns.get(VOCABULARY)
    models = range(len(file.role_M))
    loss_units.check_units(
        file.source,
        [f"model {name}" for name in file.names_M],
        np.array([file.read("loss", model)[drawn_S] for model in models]),
        np.array([read_member(file, model)[drawn_S] for model in models]),
        None if tokens_N is None else tokens_N[drawn_S],
        None if vocabulary_N is None else int(vocabulary_N.max()),
    )


def read_member(file: LossFile, model: int) -> np.ndarray:
    """Returns member_N, bool, of one model; raises UserError if its membership is not boolean, or 0 and 1."""
    return check_membership(file.read("member", model), f"{_where(file, model)}: membership")


def raise_first(problems: Sequence[str]) -> None:
    """Raises UserError with the first of the problems, if there are any, and the number of the others."""
    if problems:
        more = len(problems) - _SHOWN
        rest = [f"{more} more problems of this file are not shown"] if more > 0 else []
        raise UserError("\n".join([*problems[:_SHOWN], *rest]))


def _where(file: LossFile, model: int) -> str:
    return f"{file.source}: model {file.names_M[model]}"


def _check_losses(file: LossFile, name: str, model: int) -> None:
    where, value_N = f"{_where(file, model)}: {name}", file.read(name, model)
    check_real(value_N, where, limit=MAX_LOSS)
    invalid = np.flatnonzero(np.isnan(value_N))
    if invalid.size:
        raise UserError(
            f"{where} of sample {invalid[0]} is NaN ({invalid.size:,} of {file.num_samples:,} samples); leave these "
            "samples out of the file, or score them again"
        )
    invalid = np.flatnonzero(value_N < 0) if name == "loss" else np.zeros(0)
    if invalid.size:
        raise UserError(
            f"{where} of sample {invalid[0]} is {value_N[invalid[0]]:g} ({invalid.size:,} negative values); "
            "a loss is the mean negative log-likelihood of the tokens, in nats; negate log-probabilities"
        )
    if name == "loss":
        check_loss_scale(value_N, where)


def _to_array(value: Any, where: str) -> np.ndarray:
    """Returns a value as an array; raises UserError if that is impossible, as for lists of different lengths."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # PyTorch raises the last one
        raise UserError(
            f"{where} is not an array ({_first_line(error)}); give a NumPy array, or lists of equal lengths"
        ) from error


def _check_roles(source: str, role_M: Any, models: int) -> tuple[ImportedRole, ...]:
    roles = _to_array(role_M, f"{source}: role_M")
    if (roles == "base").sum() > 1:
        raise UserError(
            f"{source}: {(roles == 'base').sum()} models have the role base, but only one can be subtracted; make the "
            "others references, or leave them out"
        )
    if roles.shape != (models,):
        raise UserError(
            f"{source}: role_M has shape {roles.shape}; it must have one role for each of the {models} models"
        )
    unknown = sorted({str(role) for role in roles} - {*ROLES})
    if unknown:
        raise UserError(
            f"{source}: role_M has {', '.join(map(repr, unknown[:_SHOWN]))}; each role must be one of "
            f"{', '.join(ROLES)}"
        )
    return tuple(next(role for role in ROLES if role == found) for found in map(str, roles))


def _check_columns(
    source: str, samples: int, columns: Mapping[str, Any], text_N: Any
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Returns the texts and the columns as arrays; raises UserError with one line per problem."""
    problems: list[str] = []
    checked: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        where = f"{source}: {name}_N"
        column_N = _to_array(values, where)
        if not isinstance(name, str):
            problems.append(f"{source}: columns has the name {name!r}; it must be a string")
        elif name in _NOT_COLUMNS:
            remedy = "give texts as text_N" if name == "text" else "rename it"
            problems.append(
                f"{source}: a column may not have the name {name!r}, which lm_mia uses; {remedy}"
            )
        elif name.endswith("_N"):
            problems.append(
                f"{source}: column {name!r}: must be given without _N; name it {name.removesuffix('_N')!r}"
            )
        elif column_N.shape != (samples,):
            problems.append(
                f"{where} has shape {column_N.shape}; it must have one value for each of the {samples:,} samples"
            )
        elif name in RECORD_COLUMNS:
            strings_N = _as_strings(column_N)
            if strings_N is None:
                problems.append(
                    f"{where} must have strings or whole numbers; give an empty string where it is unknown"
                )
            else:
                checked[name] = strings_N
        elif name != "document" and column_N.dtype.kind not in "biuf":
            problems.append(
                f"{where} has values that are not numbers; only text_N, {', '.join(f'{n}_N' for n in RECORD_COLUMNS)} "
                "and document_N may have strings"
            )
        elif name != "document" and np.isinf(column_N).any():
            problems.append(f"{where} has infinite values; a missing value is NaN")
        elif name in ("tokens", "zlib_bytes") and (column_N < 1).any():
            problems.append(f"{where} has values below 1; it must be at least 1 for every sample")
        elif name == VOCABULARY and not (column_N >= 2).all():
            problems.append(
                f"{where} must be the number of pieces of the vocabulary, at least 2, for every sample; leave it out "
                "if it is unknown"
            )
        else:
            checked[name] = column_N.astype(np.int64) if column_N.dtype.kind == "b" else column_N
    texts = None if text_N is None else np.asarray(text_N, dtype=object)
    if texts is not None and (
        texts.shape != (samples,) or not all(isinstance(text, str) for text in texts)
    ):
        problems.append(f"{source}: text_N must have one text for each of the {samples:,} samples")
    raise_first(problems)
    return texts, checked


def _as_strings(column_N: np.ndarray) -> np.ndarray | None:
    """Returns strings or whole numbers as an array of str; None if some values are something else."""
    values = column_N.tolist()
    kind = int if column_N.dtype.kind in "iu" else str
    if not all(isinstance(value, kind) for value in values):
        return None
    return np.array([str(value) for value in values], object)


def from_mapping(
    source: str,
    arrays: Mapping[str, np.ndarray],
    roles: Mapping[str, ImportedRole] = MappingProxyType({}),
) -> LossFile:
    """Returns the losses of arrays with the names of those in an npz file; for the rest, see `open_losses`."""
    required = {"loss_MxN", "member_MxN"}
    if missing := sorted(required - {*arrays}):
        raise UserError(
            f"{source}: has no array {' and no '.join(missing)}; it has {listed(arrays) or 'no arrays'}; save "
            "loss_MxN and member_MxN"
        )
    statistics = {f"{name}_MxN": name for name in STATISTICS}
    known = {*required, *statistics, "role_M", "text_N"}
    others = {name for name in arrays if name not in known}
    columns = {name.removesuffix("_N"): name for name in others if name.endswith("_N")}
    unknown = others - {name for key, name in columns.items() if key not in _NOT_COLUMNS}
    if unknown:
        raise UserError(
            f"{source}: unknown arrays {listed(sorted(unknown))}; besides loss_MxN and member_MxN, a file may have "
            f"role_M, text_N, columns such as tokens_N, and {listed(statistics)}"
        )
    return from_arrays(
        source,
        arrays["loss_MxN"],
        arrays["member_MxN"],
        _role_array(
            source, [*map(str, range(len(arrays["loss_MxN"])))], arrays.get("role_M"), roles
        ),
        arrays.get("text_N"),
        {key: arrays[name] for key, name in columns.items()},
        {name: arrays[key] for key, name in statistics.items() if key in arrays},
    )


def _role_array(
    source: str, names: Sequence[str], stored_M: Any, roles: Mapping[str, ImportedRole]
) -> Any:
    """Returns the roles that a file says, or those of `roles` if it says none."""
    if not roles:
        return stored_M
    if unknown := [name for name in roles if name not in names]:
        raise UserError(f"{source}: has no model {listed(unknown)}; its models are {listed(names)}")
    if stored_M is not None:
        stored = dict(zip(names, map(str, stored_M), strict=True))
        if other := [name for name, role in roles.items() if stored[name] != role]:
            raise UserError(
                f"{source}: the file says that {other[0]} has the role {stored[other[0]]}; leave --target and --base "
                "out"
            )
        return stored_M
    return [roles.get(name, "reference") for name in names]


def _role_of_name(name: str) -> ImportedRole:
    """Returns the role with which the name of a model in a table begins; other models are references."""
    # A model named "baseline" is no base.
    for role in ROLES:
        if re.match(f"{role}(?![a-z])", name):
            return role
    return "reference"


def _open_parquet(path: Path, roles: Mapping[str, ImportedRole]) -> LossFile:
    """Opens a table with one row per sample, and columns loss_NAME and member_NAME for each model."""
    try:
        file = pq.ParquetFile(path)
        names, samples = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{path}: is not a readable parquet file ({_first_line(error)}); copy or save it again"
        ) from error
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: has several columns {listed(repeated)}; names must be distinct")
    models = [n.removeprefix("loss_") for n in names if n.startswith("loss_")]
    members = {n.removeprefix("member_") for n in names if n.startswith("member_")}
    named: list[ImportedRole] = [_role_of_name(model) for model in models]
    role_M = _role_array(str(path), models, None, roles) or named
    # The membership of a base is known: it was trained on none of the samples.
    bases = {model for model, role in zip(models, role_M, strict=True) if role == "base"}
    if not models or {*models} - bases != members - bases or not samples:
        unpaired = sorted(({*models} ^ members) - bases)
        raise UserError(
            f"{path}: must have one row per sample and, for each model, columns loss_NAME and member_NAME"
            + (
                f"; {_lacking(unpaired, members)} is missing; only a base needs no membership, which is named "
                "loss_base or by --base=NAME"
                if unpaired
                else ""
            )
        )

    def read_column(name: str) -> np.ndarray:
        try:
            column = pq.read_table(path, columns=[name])[name]
            if column.null_count:
                raise UserError(
                    f"{path}: column {name} has {column.null_count:,} missing values; leave these samples out"
                )
            return column.to_numpy()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(
                f"{path}: column {name} is not readable ({_first_line(error)}); copy or save the file again"
            ) from error

    model_columns = {f"{kind}_{model}" for model in models for kind in ("loss", "member")}
    others = [n for n in names if n not in model_columns and n not in _NOT_COLUMNS]
    if "id" in names:
        repeated = pd.Series(read_column("id"))
        repeated = repeated[repeated.duplicated()]
        if len(repeated):
            raise UserError(
                f"{path}: id {repeated.iloc[0]!r} stands in several rows ({len(repeated):,} repeated); must have one "
                "row per sample; leave out the others, or give the pieces of a document ids of their own"
            )
    text_N = read_column("text") if "text" in names else None
    texts, columns = _check_columns(str(path), samples, {n: read_column(n) for n in others}, text_N)

    def read(name: str, model: int) -> np.ndarray:
        if name == "member" and models[model] not in members:
            return np.zeros(samples, np.bool_)
        return read_column(f"{name}_{models[model]}")

    role_M = _check_roles(str(path), role_M, len(models))
    return LossFile(str(path), tuple(models), role_M, samples, (), columns, texts, read)


def _open_dataset(path: Path, given: Mapping[str, ImportedRole]) -> LossFile:
    """Opens a dataset with variables loss and member of dimensions (model, sample), such as our own score store."""
    import xarray as xr  # takes half a second

    check_zarr(path)
    try:
        dataset = _open_zarr(path) if path.is_dir() else xr.open_dataset(path)
    except Exception as error:  # each backend of xarray raises errors of its own
        hint = "copy or save it again"
        if not path.is_dir():
            hint += ", or run `pip install h5netcdf` if it is a netCDF4 file"
        raise UserError(
            f"{path}: xarray cannot read it ({type(error).__name__}: {_first_line(error)}); {hint}"
        ) from error
    problems: list[str] = []
    for name in ("loss", "member"):
        if name not in dataset:
            problems.append(f"{path}: has no variable {name}; it has {listed(dataset.data_vars)}")
        elif "checkpoint" in dataset[name].dims:
            problems.append(
                f"{path}: {name} has a dimension checkpoint; save one checkpoint, such as "
                "dataset.isel(checkpoint=-1)"
            )
        elif {*dataset[name].dims} != {"model", "sample"}:
            dims = ", ".join(map(str, dataset[name].dims))
            problems.append(
                f"{path}: {name} has the dimensions ({dims}); they must be (model, sample)"
            )
    if problems:
        raise UserError("\n".join(problems))
    dataset = dataset.transpose("model", "sample", ...)
    models, samples = dataset.sizes["model"], dataset.sizes["sample"]
    statistics = tuple(
        n for n in STATISTICS if n in dataset and dataset[n].dims == ("model", "sample")
    )
    columns = {
        str(name): value.to_numpy()
        for name, value in dataset.variables.items()
        if value.dims == ("sample",) and name not in _NOT_COLUMNS
    }
    if "population_sha256" in dataset.attrs and "digest" not in dataset:
        # A score store of release 0.2, which measured the whole documents from which the samples are cut.
        columns.pop("zlib_bytes", None)
    text_N = dataset["text"].to_numpy() if "text" in dataset else None
    texts, checked = _check_columns(str(path), samples, columns, text_N)
    names = dataset["model"].to_numpy() if "model" in dataset.coords else np.arange(models)
    stored_M = [str(role) for role in dataset["role"].to_numpy()] if "role" in dataset else None
    role_M = _role_array(str(path), [*map(str, names)], stored_M, given) or ["reference"] * models
    roles = _check_roles(str(path), role_M, models)

    def read(name: str, model: int) -> np.ndarray:
        return dataset[name][model].to_numpy()

    return LossFile(
        str(path), tuple(map(str, names)), roles, samples, statistics, checked, texts, read
    )


def _open_zarr(path: Path) -> "xr.Dataset":
    """Opens a Zarr store without taking zeros for missing values.

    Arrays of Zarr format 2 have the fill value 0 unless it is set, and xarray reads a fill value as a missing value.
    """
    import xarray as xr  # takes half a second

    with warnings.catch_warnings():
        # Consolidated metadata are only an accelerator.
        warnings.filterwarnings(
            "ignore", "Failed to open Zarr store with consolidated", RuntimeWarning
        )
        dataset = xr.open_zarr(path)
        if (path / "zarr.json").exists():
            return dataset
        stored = xr.open_zarr(path, mask_and_scale=False)
    zeros = [
        name
        for name, variable in dataset.variables.items()
        if variable.encoding.get("_FillValue") in (0, False)
        and not {"scale_factor", "add_offset"} & variable.encoding.keys()
    ]
    return dataset.assign({name: stored[name] for name in zeros})


def _lacking(unpaired: Sequence[str], members: Iterable[str]) -> str:
    """Returns the columns that models lack: the losses of those that have members, and the members of the others."""
    return listed(f"{'loss' if name in members else 'member'}_{name}" for name in unpaired)


def listed(names: Iterable[Any]) -> str:
    """Returns the first names, separated by commas, for a message."""
    words = [str(name) for name in names]
    return ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
