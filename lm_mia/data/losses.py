"""Losses of models that were trained elsewhere: what `lm-mia import` and `lm-mia audit` read.

For each model and sample, a source has the loss in nats per token and whether the model was trained on the sample;
optionally, the role of each model, and a text and other properties of each sample. They have one of three forms:

- arrays: loss_MxN and member_MxN with a row for each model; role_M and name_M; properties of samples such as text_N,
  tokens_N or user_N; other statistics such as min_k_MxN,
- a table with a row for each sample, and columns loss_NAME and member_NAME for each model,
- a table with a row for each model and sample, and columns model, id, loss and member.

Values are read one model at a time, so that a file may be larger than the memory.

M: models, N: samples of the population (2N).
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from lm_mia.config.schema import Statistic
from lm_mia.data import loss_units
from lm_mia.data.arrays import Arrays, Values, check_membership, check_real, listed, printable
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.errors import UserError, collect_errors

ImportedRole = Literal["reference", "target", "replica", "base"]
"""A base is the model that the others were fine-tuned from: trained on none of the samples, and never a reference."""
ROLES: tuple[ImportedRole, ...] = get_args(ImportedRole)
STATISTICS: tuple[str, ...] = get_args(Statistic)
VOCABULARY = "vocabulary"
"""Column of the number of pieces of the vocabulary, usually the same for all samples; only the check of units needs it.
"""
MAX_LOSS = 1e29
"""As `lm_mia.stats` requires, so that no sum of squares overflows."""
MIN_LOSS_SCALE = 1e-29
"""The largest loss must be at least this, unless all are 0, so that losses are not rounded to 0 in float32."""
_NOT_COLUMNS = ("id", "sample", "loss", "member", "role", "text", *STATISTICS)
_FEWEST_SAMPLES = 10  # an array with more rows than columns, and fewer columns, is transposed
_PREFIX = 4096  # samples that are compared first
_SHOWN = 5  # problems listed in a message


@dataclasses.dataclass(frozen=True)
class LossFile:
    """Losses of M models on N samples, and what is known about models and samples."""

    source: str
    """Where the losses come from, for messages: the path, or what kind of object it is."""
    names_M: tuple[str, ...]
    """Names of the models in the source."""
    role_M: tuple[ImportedRole, ...]
    num_samples: int
    statistics: tuple[str, ...]
    """Names of the statistics that the source has in addition to the loss."""
    columns: Mapping[str, np.ndarray]
    """Name -> column_N of each property of the samples: numbers, except for `RECORD_COLUMNS` and `document`."""
    text_N: np.ndarray | None
    read: Callable[[str, int], np.ndarray]
    """Called as ``read(name, model)``; returns value_N of "loss", "member" or a statistic under one model."""
    are_nats: bool = False
    """Whether the user says that losses are in nats per token, so that their unit is not checked."""

    def models(self, *roles: ImportedRole) -> list[int]:
        """Returns the positions of the models that have one of the roles."""
        return [m for m, role in enumerate(self.role_M) if role in roles]


@dataclasses.dataclass(frozen=True)
class _Models:
    """The losses of a source in one of its forms, before roles and properties of samples are known."""

    names_M: tuple[str, ...]
    num_samples: int
    role_M: Sequence[str] | None
    """The roles that the source says."""
    statistics: tuple[str, ...]
    read: Callable[[str, int], np.ndarray]
    columns: Mapping[str, np.ndarray | Values]
    """The properties of samples, by their names without a shape."""


def has_losses(arrays: Arrays) -> bool:
    """Returns whether a source has losses of models, in one of the forms that `read_losses` reads."""
    if not arrays.is_table:
        return "loss_MxN" in arrays
    return "loss" in arrays or any(name.startswith("loss_") for name in arrays)


def read_losses(
    arrays: Arrays,
    *,
    target: Sequence[str] = (),
    base: str = "",
    text: str = "text",
    are_nats: bool = False,
    prefix: str = "--",
) -> LossFile:
    """Returns losses of models, of which everything is checked except the values of losses and membership.

    Args:
      arrays: the arrays or columns.
      target, base: names of the attacked models, and of the model that these were fine-tuned from, unless the source
        says the role of each model. Other models are references.
      text: name of the column of texts.
      are_nats: as in `LossFile`.
      prefix: precedes the names of these arguments in messages.

    Raises:
      UserError: with one line per problem.
    """
    source = arrays.source
    roles: dict[str, ImportedRole] = {name: "target" for name in target}
    if base in roles:
        raise UserError(f"{prefix}base={base}: is the target, too; name another model")
    if base:
        roles[base] = "base"
    if not arrays.is_table:
        models = _of_arrays(arrays)
    elif "loss" in arrays:
        models = _of_long_table(arrays)
    else:
        models = _of_wide_table(arrays, roles)
    if text != "text":
        if text not in models.columns:
            raise UserError(
                f"{prefix}text-column={text}: {source} has no such column; "
                + (f"choose from {listed(models.columns)}" if models.columns else "it has no texts")
            )
        columns = {name: values for name, values in models.columns.items() if name != text}
        models = dataclasses.replace(models, columns=columns | {"text": models.columns[text]})
    role_M = _check_roles(models, source, roles, prefix)
    problems: list[str] = []
    columns = _check_columns(models, source, problems)
    text_N = collect_errors(problems, lambda: _texts(models, source))
    raise_first(problems)
    return LossFile(
        source,
        models.names_M,
        role_M,
        models.num_samples,
        models.statistics,
        columns,
        text_N,
        models.read,
        are_nats,
    )


def name_arrays(
    loss_MxN: Any,
    member_MxN: Any,
    role_M: Any = None,
    text_N: Any = None,
    columns: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns arrays by the names that `read_losses` knows; raises UserError, with one line per name that is wrong."""
    named = {"loss_MxN": loss_MxN, "member_MxN": member_MxN, "role_M": role_M, "text_N": text_N}
    problems = [
        f"{argument}: is of type {type(values).__name__}; it must be a dict of names and arrays"
        for argument, values in (("columns", columns), ("statistics", statistics))
        if not isinstance(values, Mapping | None)
    ]
    if problems:
        raise UserError("\n".join(problems))
    for name in columns or {}:
        if not isinstance(name, str):
            problems.append(f"columns has the name {name!r}; it must be a string")
        elif name in _NOT_COLUMNS:
            remedy = "give texts as text_N" if name == "text" else "rename it"
            problems.append(f"a column may not have the name {name!r}, which lm_mia uses; {remedy}")
        elif name.endswith("_N"):
            problems.append(
                f"column {name!r}: must be given without _N; name it {name.removesuffix('_N')!r}"
            )
    problems += [
        f"statistics has the unknown name {name!r}; use one of {', '.join(STATISTICS)}"
        for name in statistics or {}
        if name not in STATISTICS
    ]
    if problems:
        raise UserError("\n".join(problems))
    named |= {f"{name}_N": values for name, values in (columns or {}).items()}
    named |= {f"{name}_MxN": values for name, values in (statistics or {}).items()}
    return {name: values for name, values in named.items() if values is not None}


# The three forms


def _of_arrays(arrays: Arrays) -> _Models:
    """Returns the models of arrays with a row for each model."""
    source, required = arrays.source, ("loss_MxN", "member_MxN")
    if missing := [name for name in required if name not in arrays]:
        raise UserError(
            f"{source}: has no array {' and no '.join(missing)}; it has {listed(arrays) or 'no arrays'}; save "
            "loss_MxN and member_MxN"
        )
    matrices = [*required, *(f"{n}_MxN" for n in STATISTICS if f"{n}_MxN" in arrays)]
    others = {name for name in arrays if name not in (*matrices, "role_M", "name_M")}
    columns = {name.removesuffix("_N"): name for name in others if name.endswith("_N")}
    allowed = {"text", "id", *(name for name in columns if name not in _NOT_COLUMNS)}
    unknown = others - {name for key, name in columns.items() if key in allowed}
    if unknown and arrays.attributes is None:  # a dataset may have variables of any kind
        raise UserError(
            f"{source}: unknown arrays {listed(sorted(unknown))}; besides loss_MxN and member_MxN, a file may have "
            f"role_M, name_M, text_N, columns such as tokens_N, and "
            f"{listed(f'{name}_MxN' for name in STATISTICS)}"
        )
    shape = arrays["loss_MxN"].shape
    sample_shapes = [arrays[columns[key]].shape for key in allowed & {*columns}]
    _check_shapes(arrays, matrices, sample_shapes)
    stored = {
        name.removesuffix("_MxN"): arrays[name]
        if arrays[name].read_row
        else dataclasses.replace(arrays[name], read_row=arrays[name].array().__getitem__)
        for name in matrices
    }
    names = arrays["name_M"].strings() if "name_M" in arrays else np.arange(shape[0])
    role_M = arrays["role_M"].strings() if "role_M" in arrays else None
    for name, values in (("name_M", names), ("role_M", role_M)):
        if values is not None and values.shape != (shape[0],):
            raise UserError(
                f"{source}: {name} has shape {values.shape}; it must have one value for each of the {shape[0]} models"
            )
    kept = {key: arrays[columns[key]] for key in columns if key in allowed}
    if "population_sha256" in (arrays.attributes or {}) and "digest_M" not in arrays:
        # A score store of release 0.2, which measured the whole documents from which the samples are cut.
        kept.pop("zlib_bytes", None)
    return _Models(
        tuple(map(str, names)),
        shape[1],
        None if role_M is None else [*map(str, role_M)],
        tuple(name.removesuffix("_MxN") for name in matrices[2:]),
        lambda name, m: stored[name].row(m),
        kept,
    )


def _check_shapes(
    arrays: Arrays, names: Sequence[str], sample_shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raises UserError, with one line per problem, unless all arrays have one row per model and as many columns."""
    problems, shape = [], arrays[names[0]].shape
    if len(shape) != 2 or 0 in shape:
        raise UserError(
            f"{arrays[names[0]].label}: has the shape {shape}; it must have one row per model and one column per "
            "sample"
        )
    for name in names[1:]:
        if arrays[name].shape != shape:
            problems.append(other_shape(arrays, name, arrays[name].shape, names[0], shape))
    if not problems:
        check_orientation(arrays.source, names[0], shape, sample_shapes)
    if problems:
        raise UserError("\n".join(problems))


def check_orientation(
    source: str, name: str, shape: tuple[int, ...], sample_shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raises UserError if an array has a row for each sample, although a row should be a model.

    Args:
      source, name: where the array is from, and its name, for the message.
      shape: that of an array of two dimensions.
      sample_shapes: those of arrays with one value for each sample.
    """
    rows, columns = shape
    has_rows = any(other == (rows,) for other in sample_shapes)
    has_columns = any(other == (columns,) for other in sample_shapes)
    if rows > columns and not has_columns and (has_rows or columns < _FEWEST_SAMPLES):
        raise UserError(
            f"{source}: {name} has {rows:,} rows and {columns:,} columns, but a row is a model and a column a sample; "
            f"transpose the arrays, as in {name}=array.T"
        )


def other_shape(
    arrays: Arrays, name: str, shape: tuple[int, ...], first: str, first_shape: tuple[int, ...]
) -> str:
    """Returns a line about an array whose shape is not that of the first one, and may be its reverse."""
    if shape == first_shape[::-1]:
        transposed = [
            at
            for at, of_array in ((name, shape), (first, first_shape))
            if _is_transposed(arrays, of_array)
        ]
        remedy = " or ".join(f"{at}=array.T" for at in transposed or (name, first))
        return (
            f"{arrays.source}: {name} has the shape {shape}, and {first} has the shape {first_shape}: one of the two "
            f"is transposed; a row is a model and a column a sample, so save {remedy}"
        )
    return (
        f"{arrays.source}: {name} has the shape {shape}, but {first} has the shape {first_shape}; they must be equal, "
        "with one row per model and one column per sample"
    )


def _is_transposed(arrays: Arrays, shape: tuple[int, ...]) -> bool:
    """Returns whether an array has the shape (samples, models), by what else says how many of these there are.

    With nothing that says it, an array with more rows than columns is transposed if it has few columns.
    """
    models = {arrays[name].shape for name in ("name_M", "role_M") if name in arrays}
    samples = {arrays[name].shape for name in arrays if name.endswith("_N")}
    rows, columns = shape
    fits = (rows,) in models or (columns,) in samples
    if fits or (columns,) in models or (rows,) in samples:
        return not fits
    return columns < _FEWEST_SAMPLES and rows > columns


def _of_wide_table(arrays: Arrays, roles: Mapping[str, ImportedRole]) -> _Models:
    """Returns the models of a table with one row per sample, and columns loss_NAME and member_NAME for each model."""
    source, samples = arrays.source, arrays.num_rows
    models = [name.removeprefix("loss_") for name in arrays if name.startswith("loss_")]
    members = {name.removeprefix("member_") for name in arrays if name.startswith("member_")}
    named = [roles.get(model) or _role_of_name(model) for model in models]
    # The membership of a base is known: it was trained on none of the samples.
    bases = {model for model, role in zip(models, named, strict=True) if role == "base"}
    if not samples:
        raise UserError(f"{source}: has no rows; save one row per sample")
    unpaired = sorted(({*models} ^ members) - bases)
    _check_names(source, models, roles)
    if unpaired:
        lacking = listed(f"{'loss' if name in members else 'member'}_{name}" for name in unpaired)
        raise UserError(
            f"{source}: must have one row per sample and, for each model, columns loss_NAME and member_NAME; "
            f"{lacking} is missing; only a base needs no membership, which is named loss_base or by --base=NAME"
        )
    if "id" in arrays:
        _check_ids(arrays["id"])

    def read(name: str, m: int) -> np.ndarray:
        if name == "member" and models[m] not in members:
            return np.zeros(samples, np.bool_)
        values = arrays[f"{name}_{models[m]}"]
        return values.membership() if name == "member" else values.real()

    of_models = {f"{kind}_{model}" for model in models for kind in ("loss", "member")}
    columns = {name: arrays[name] for name in arrays if name not in of_models}
    if roles:
        # Only a base needs no membership, whichever models are said to be attacked.
        known = set() if "base" in roles.values() else bases - members
        named = [roles.get(model, "base" if model in known else "reference") for model in models]
    return _Models(tuple(models), samples, named, (), read, columns)


def _check_ids(ids: Values) -> None:
    """Raises UserError if two rows of a table of samples have the same id."""
    index_N, names = ids.names()
    count = len(index_N) - len(names)
    if count:
        first = np.flatnonzero(np.bincount(index_N) > 1)[0]
        raise UserError(
            f"{ids.label}: {names[first]!r} stands in several rows ({count:,} repeated); must have one row per sample; "
            "leave out the others, or give the pieces of a document ids of their own"
        )


def _of_long_table(arrays: Arrays) -> _Models:
    """Returns the models of a table with a row for each model and sample: columns model, id, loss and member.

    Without the column model, there is one model; without ids, the samples of each model are in the same order.
    """
    source, rows = arrays.source, arrays.num_rows
    if "member" not in arrays:
        raise UserError(
            f"{source}: no column 'member' among {listed(map(repr, arrays))}; a table with one row per "
            "sample needs the columns loss and member, and with several models also model and id"
        )
    if not rows:
        raise UserError(f"{source}: has no rows; save one row per model and sample")
    problems: list[str] = []
    model_K, names = np.zeros(rows, np.intp), ["0"]
    if "model" in arrays:
        parsed = collect_errors(problems, arrays["model"].names)
        model_K, names = parsed or (model_K, names)
    count_M = np.bincount(model_K, minlength=len(names))
    if "id" in arrays:
        parsed = collect_errors(problems, arrays["id"].names)
        sample_K, ids = parsed or (np.zeros(rows, np.intp), [""])
    else:
        # Without ids, the k-th row of every model is the k-th sample.
        order_K = np.argsort(model_K, kind="stable")
        sample_K = np.empty(rows, np.intp)
        sample_K[order_K] = np.arange(rows) - np.repeat(np.cumsum(count_M) - count_M, count_M)
        ids = [*map(str, range(count_M.max()))]
    if problems:
        raise UserError("\n".join(problems))
    samples = len(ids)
    at_K = model_K * samples + sample_K
    count_MxN = np.bincount(at_K, minlength=len(names) * samples).reshape(len(names), samples)
    for wrong_MxN, what, remedy in (
        (count_MxN > 1, "more than one row", "leave out the others"),
        (count_MxN < 1, "no row", "save the losses of all models on all samples"),
    ):
        if wrong_MxN.any():
            m, n = map(int, np.argwhere(wrong_MxN)[0])
            raise UserError(
                f"{source}: there is {what} for {int(wrong_MxN.sum()):,} pairs of a model and a sample, such as model "
                f"{names[m]} and id {ids[n]}; {remedy}"
            )
    # Rows may be in any order, so values are looked up by model and sample.
    row_MxN = np.empty(len(names) * samples, np.intp)
    row_MxN[at_K] = np.arange(rows)
    row_MxN = row_MxN.reshape(len(names), samples)
    statistics = tuple(name for name in STATISTICS if name in arrays)
    value_K = {name: arrays[name].real() for name in ("loss", *statistics)}
    value_K["member"] = arrays["member"].membership()
    role_M = None
    if "role" in arrays:
        role_K = arrays["role"].strings()
        role_M = [str(role) for role in role_K[row_MxN[:, 0]]]
        if (role_K != np.array(role_M, object)[model_K]).any():
            raise UserError(f"{arrays['role'].label}: a model has several roles; give it one")
    elif "model" in arrays:
        role_M = [_role_of_name(name) for name in names]
        role_M = None if {*role_M} == {"reference"} else role_M
    columns: dict[str, np.ndarray | Values] = {}
    for name in arrays:
        if name in ("model", "role", "loss", "member", *statistics):
            continue
        values_K = arrays[name].array()
        first_N = values_K[row_MxN[0]]
        same_K = first_N[sample_K] == values_K
        if values_K.dtype.kind == "f":
            same_K |= np.isnan(values_K)  # not equal to itself, but no contradiction
        if not np.all(same_K):
            n = int(sample_K[np.flatnonzero(~same_K)[0]])
            raise UserError(
                f"{arrays[name].label}: has several values for the sample with id {ids[n]}, although properties of "
                "samples do not depend on the model; leave the column out"
            )
        columns[name] = first_N
    return _Models(
        tuple(names),
        samples,
        role_M,
        statistics,
        lambda name, m: value_K[name][row_MxN[m]],
        columns,
    )


# Roles and properties of samples


def _role_of_name(name: str) -> ImportedRole:
    """Returns the role with which the name of a model in a table begins; other models are references."""
    # A model named "baseline" is no base.
    for role in ROLES:
        if re.match(f"{role}(?![a-z])", name):
            return role
    return "reference"


def _check_names(source: str, names: Sequence[str], given: Mapping[str, ImportedRole]) -> None:
    """Raises UserError if a role is given to a model that the source does not have."""
    if unknown := [name for name in given if name not in names]:
        known = f"its models are {listed(names)}" if names else "it has no losses of models"
        raise UserError(f"{source}: has no model {listed(unknown)}; {known}")


def _check_roles(
    models: _Models, source: str, given: Mapping[str, ImportedRole], prefix: str
) -> tuple[ImportedRole, ...]:
    """Returns the roles that the source says, or those of `given`; raises UserError with one line per problem."""
    names, stored = models.names_M, models.role_M
    if unprintable := [name for name in names if printable(name) != name]:
        raise UserError(
            f"{source}: the name {unprintable[0]!r} of a model has control characters; rename it"
        )
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{source}: several models are named {listed(repeated)}; give each a name")
    _check_names(source, names, given)
    if stored is None:
        of_names: list[ImportedRole] = [given.get(name, "reference") for name in names]
        return tuple(of_names)
    if unknown := sorted({*stored} - {*ROLES}):
        raise UserError(
            f"{source}: role_M has {', '.join(map(repr, unknown[:_SHOWN]))}; each role must be one of "
            f"{', '.join(ROLES)}"
        )
    role_M: tuple[ImportedRole, ...] = tuple(
        next(role for role in ROLES if role == name) for name in stored
    )
    of_name = dict(zip(names, role_M, strict=True))
    if other := [name for name, role in given.items() if of_name[name] != role]:
        raise UserError(
            f"{source}: the file says that {other[0]} has the role {of_name[other[0]]}; leave {prefix}target and "
            f"{prefix}base out"
        )
    if role_M.count("base") > 1:
        raise UserError(
            f"{source}: {role_M.count('base')} models have the role base, but only one can be subtracted; make the "
            "others references, or leave them out"
        )
    return role_M


def _check_columns(models: _Models, source: str, problems: list[str]) -> dict[str, np.ndarray]:
    """Returns the properties of samples other than their texts; appends a line for each that cannot be used."""
    columns: dict[str, np.ndarray] = {}
    for name, values in models.columns.items():
        if name in ("id", "sample", "text"):
            continue
        column_N = collect_errors(
            problems,
            lambda name=name, values=values: _check_column(
                name, values, models.num_samples, source
            ),
        )
        if column_N is not None:
            columns[name] = column_N
    if "id" in models.columns and "name" not in columns:
        # The name of a sample is its id in the source.
        id_N = collect_errors(problems, lambda: _strings(models.columns["id"], source))
        if id_N is not None:
            columns["name"] = id_N
    return columns


def _strings(values: np.ndarray | Values, source: str) -> np.ndarray:
    if isinstance(values, Values):
        return values.strings()
    return Values(source, values.shape, lambda: values).strings()


def _check_column(name: str, values: np.ndarray | Values, samples: int, source: str) -> np.ndarray:
    """Returns a property of the samples; raises UserError if it cannot be used."""
    where = values.label if isinstance(values, Values) else f"{source}: column {name!r}"
    if name in _NOT_COLUMNS:
        raise UserError(
            f"{source}: a column may not have the name {name!r}, which lm_mia uses; rename it"
        )
    if values.shape != (samples,):
        raise UserError(
            f"{where} has shape {values.shape}; it must have one value for each of the {samples:,} samples"
        )
    if name in RECORD_COLUMNS or name == "document":
        return _strings(values, where)
    column_N = values.array() if isinstance(values, Values) else values
    if column_N.dtype.kind not in "biuf":
        raise UserError(
            f"{where} has values that are not numbers; only text, {', '.join(RECORD_COLUMNS)} and document may be "
            "strings"
        )
    if np.isinf(column_N).any():
        raise UserError(f"{where} has infinite values; a missing value is NaN")
    if name in ("tokens", "zlib_bytes") and (column_N < 1).any():
        raise UserError(
            f"{where} has values below 1, such as that of sample {int(np.argmax(column_N < 1))}; it must be at least 1 "
            "for every sample"
        )
    if name == VOCABULARY and not (column_N >= 2).all():
        raise UserError(
            f"{where} must be the number of pieces of the vocabulary, at least 2, for every sample; leave it out if it "
            "is unknown"
        )
    return column_N.astype(np.int64) if column_N.dtype.kind == "b" else column_N


def _texts(models: _Models, source: str) -> np.ndarray | None:
    if "text" not in models.columns:
        return None
    values = models.columns["text"]
    texts = np.asarray(values.array() if isinstance(values, Values) else values, dtype=object)
    if texts.shape != (models.num_samples,) or not all(isinstance(text, str) for text in texts):
        kinds = {type(text).__name__ for text in texts.ravel()[:1000]} - {"str"}
        what = f"; it has values of type {', '.join(sorted(kinds))}" if kinds else ""
        raise UserError(
            f"{source}: text must be one text for each of the {models.num_samples:,} samples{what}"
        )
    return texts


# Values


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
    problems += _leaks(file) if not problems else []
    raise_first(problems)
    if not file.are_nats:
        _check_unit(file)


def _leaks(file: LossFile) -> list[str]:
    """Returns a line for each target that is among the references, too."""
    problems = []
    for t in file.models("target"):
        loss_N = file.read("loss", t)
        for m in file.models("reference"):
            other_N = file.read("loss", m)
            is_equal = np.array_equal(other_N[:_PREFIX], loss_N[:_PREFIX])
            if is_equal and np.ptp(loss_N) and np.array_equal(other_N, loss_N):
                problems.append(
                    f"{_where(file, t)}: has the losses of model {file.names_M[m]}: a target must not be one of its "
                    "references; leave one of them out"
                )
    return problems


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
    label = f"{_where(file, model)}: membership"
    member_N = file.read("member", model)
    if member_N.dtype.kind in "OU":
        return Values(label, member_N.shape, lambda: member_N).membership()
    return check_membership(member_N, label)


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
    if name != "loss":
        return
    invalid = np.flatnonzero(value_N < 0)
    if invalid.size:
        raise UserError(
            f"{where} of sample {invalid[0]} is {value_N[invalid[0]]:g} ({invalid.size:,} negative values); "
            "a loss is the mean negative log-likelihood of the tokens, in nats; negate log-probabilities"
        )
    if 0 < (largest := float(value_N.max(initial=0))) < MIN_LOSS_SCALE:
        raise UserError(
            f"{where}: the largest loss is {largest:g}, but must be at least {MIN_LOSS_SCALE:g} unless all are 0; give "
            "losses in nats"
        )
