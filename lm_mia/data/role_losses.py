"""Reads a file of losses, in which each model has a role, for `lm-mia audit`: targets, references and a base.

M: models, T: targets, R: references, N: samples.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.data import loss_files
from lm_mia.data.array_files import open_npz
from lm_mia.data.covariates import Column, read_covariates
from lm_mia.data.imported import TEXT, sample_table
from lm_mia.data.loss_files import ImportedRole, LossFile
from lm_mia.data.score_arrays import SAMPLE_COLUMNS, Losses
from lm_mia.data.score_tables import Columns, parse_documents, parse_names
from lm_mia.errors import UserError, collect_errors


def has_roles(source: Path | Mapping[str, np.ndarray]) -> bool:
    """Returns whether a file has the losses of models with roles, and not scores or arrays of `score_arrays`."""
    if isinstance(source, Mapping):
        return "loss_MxN" in source
    path = source
    if path.is_dir() or path.suffix in (".nc", ".nc4", ".netcdf", ".h5"):
        return (path / "zarr.json").is_file() or (path / ".zgroup").is_file() or path.is_file()
    if not path.is_file():
        return False
    if path.suffix == ".npz":
        return "loss_MxN" in open_npz(path)
    if path.suffix == ".parquet":
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError, ValueError):
            return False  # read as scores, which reports what is wrong with the file
        return any(name.startswith("loss_") for name in names) and "score" not in names
    return False


def read_losses(
    source: Path | Mapping[str, np.ndarray], columns: Columns, are_nats: bool = False
) -> Losses:
    """Returns the losses of a file under its targets, its references and its base.

    Args:
      source: a file that `loss_files.open_losses` reads, or the arrays of such an npz file.
      columns: names of the target and of the base, unless the file says their roles, and of the columns of users,
        covariates and texts.
      are_nats: as in `LossFile`.

    Raises:
      UserError: with one line per problem, also of the values. A file must have a target, or replicas.
    """
    p, where = columns.prefix, "arrays" if isinstance(source, Mapping) else str(source)
    problems = [
        f"{p}{name}={value}: is for scores, but {where} has losses of models; leave it out"
        for name in ("score", "member", "model")
        if (value := getattr(columns, name))
    ]
    roles: dict[str, ImportedRole] = {name: "target" for name in columns.target}
    if columns.base:
        if columns.base in roles:
            problems.append(f"{p}base={columns.base}: is the target, too; name another model")
        roles[columns.base] = "base"
        if not columns.target:
            problems.append(f"{p}base={columns.base}: name the attacked model, too, by {p}target=")
    if problems:
        raise UserError("\n".join(problems))
    if isinstance(source, Mapping):
        file = loss_files.from_mapping(where, source, roles)
    else:
        file = loss_files.open_losses(source, roles)
    index = {
        role: [m for m, own in enumerate(file.role_M) if own == role] for role in loss_files.ROLES
    }
    targets, references, bases = (
        index["target"] + index["replica"],
        index["reference"],
        index["base"],
    )
    if len(file.role_M) == 1:
        targets, references, bases = [0], [], []  # a single model needs no role
    if not targets:
        raise UserError(
            f"{where}: no model has the role target; name the attacked one by {p}target=NAME and, if it is there, the "
            f"model that it was fine-tuned from by {p}base=NAME; the models are {loss_files.listed(file.names_M)}"
        )
    loss_files.check_values(dataclasses.replace(file, are_nats=are_nats), lambda *_: None)

    def label(name: str) -> str:
        return f"{where}: column {name!r}"

    def column(name: str) -> Column:
        return pa.array(_column(file, name, p), from_pandas=True)

    covariates = collect_errors(
        problems,
        lambda: read_covariates(column, columns.covariates, columns.text, file.num_samples, label),
    )
    users = None
    if columns.user:
        users = collect_errors(
            problems, lambda: parse_names(column(columns.user), label(columns.user))
        )
    documents = None
    if "document" in file.columns:
        documents = parse_names(column("document"), label("document"))
    if problems:
        raise UserError("\n".join(problems))
    table = sample_table(file.num_samples, file.columns, file.text_N)
    user_N, names_of_users = users or (None, ())
    return Losses(
        _stack(file, "loss", targets),
        _stack(file, "member", targets),
        _stack(file, "loss", references),
        _stack(file, "member", references),
        {name: np.asarray(table[name], np.float64) for name in SAMPLE_COLUMNS},
        user_N,
        names_of_users,
        covariates,
        parse_documents(documents),
        file.read("loss", bases[0]) if bases else None,
        tuple(file.names_M[m] for m in targets),
        None if file.text_N is None else pa.array(file.text_N),
    )


def _stack(file: LossFile, name: str, models: list[int]) -> np.ndarray:
    """Returns the losses or the members of some models, one row each."""
    if not models:
        return np.zeros((0, file.num_samples), np.bool_ if name == "member" else np.float32)
    if name == "member":
        return np.stack([loss_files.read_member(file, m) for m in models])
    return np.stack([file.read(name, m) for m in models])


def _column(file: LossFile, name: str, prefix: str) -> np.ndarray:
    """Returns a column of the samples, or their texts."""
    if name == TEXT and file.text_N is not None:
        return file.text_N
    if name in file.columns:
        return file.columns[name]
    names = [*file.columns, *([TEXT] if file.text_N is not None else [])]
    raise UserError(
        f"{file.source}: has no column {name!r}; {prefix}user, {prefix}covariates and {prefix}text can name "
        f"{loss_files.listed(names) or 'none, since it has no columns'}"
    )
