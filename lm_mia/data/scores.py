"""Membership scores that somebody else computed: what `lm-mia audit` reads besides losses.

They have one of two forms:

- a table with one row per score, and the columns score and member; optionally model, id, document, text, a column of
  users, and covariates,
- arrays score_MxN and member_MxN with a row for each model, or one row of members for all of them; optionally
  document_N, text_N, and users and covariates of the samples.

All problems of a source are reported together.

M: models, N: samples (rows of one model).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lm_mia.data.arrays import Arrays, Column, Values, listed, printable
from lm_mia.data.covariates import Covariates, read_covariates
from lm_mia.data.losses import check_orientation, other_shape
from lm_mia.errors import UserError, collect_errors

MAX_SCORE = 1e100
"""Magnitudes must be below it, so that axes of figures and differences of scores do not overflow."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of columns or arrays; "" for the default name, or none."""

    score: str = ""
    member: str = ""
    model: str = ""
    user: str = ""
    covariates: tuple[str, ...] = ()
    text: str = ""
    lower_is_member: bool = False
    """Whether scores are smaller for members, so that they are negated."""
    prefix: str = ""
    """Precedes these names in messages: "--" on the command line, where they are flags."""


@dataclasses.dataclass(frozen=True)
class ModelScores:
    """The scores of all samples under one model."""

    model: str
    """The name of the model; empty if there is only one and it has no name."""
    score_N: np.ndarray
    """Larger for members; NaN where it is missing."""
    member_N: np.ndarray
    """Booleans."""
    user_N: np.ndarray | None = None
    """The user of each sample, as an index of `users`."""
    users: Sequence[str] = ()
    """The users of all models."""
    covariates: Covariates | None = None
    id_N: np.ndarray | None = None
    """A different integer for each sample, which does not depend on the order of the samples; None: the position."""
    document_N: np.ndarray | None = None
    """The document of each sample, as an integer; None if samples are not pieces of documents."""
    text_N: "Column | None" = None
    """The text of each sample; None if it is unknown for some."""


def read_scores(arrays: Arrays, columns: Columns) -> list[ModelScores]:
    """Returns the scores of each model, in the order in which models first appear.

    Args:
      arrays: the arrays or columns.
      columns: names of those that are used.

    Raises:
      UserError: with one line per problem.
    """
    if not arrays.is_table:
        return _of_arrays(arrays, columns)
    return _of_table(arrays, columns)


def parse_documents(values: Values) -> np.ndarray | None:
    """Returns the documents as integers; None if each has a single sample."""
    document_N, names = values.names()
    return None if len(names) == len(document_N) else document_N


def _of_table(table: Arrays, columns: Columns) -> list[ModelScores]:
    """Returns the scores of a table with one row per score."""
    score, member, *others = _find_columns(table, columns)
    if not table.num_rows:
        raise UserError(f"{table.source}: has no rows; save one row per score")
    problems: list[str] = []
    score_N = collect_errors(problems, lambda: _scores(table[score], columns))
    member_N = collect_errors(problems, table[member].membership)
    users = collect_errors(problems, table[columns.user].names) if columns.user else None
    user_N, names_of_users = users or (None, ())
    model = columns.model or ("model" if "model" in others else "")
    models: tuple[np.ndarray, list[str]] | None = np.zeros(table.num_rows, np.intp), [""]
    if model:
        models = collect_errors(problems, table[model].names)
    id_N = document_N = text_N = None
    if "id" in others and models:
        model_N = models[0]
        id_N = collect_errors(problems, lambda: _ids(table["id"], model_N))
    if "document" in others:
        document_N = collect_errors(problems, lambda: parse_documents(table["document"]))
    text = columns.text or "text"
    if text in others:
        text_N = collect_errors(problems, table[text].texts)
    covariates = collect_errors(
        problems, lambda: read_covariates(table, columns.covariates, columns.text, table.num_rows)
    )
    if problems or models is None or score_N is None or member_N is None:
        raise UserError("\n".join(problems))
    model_N, names = models
    order = np.argsort(model_N, kind="stable")
    ends = np.cumsum(np.bincount(model_N, minlength=len(names)))[:-1]
    return [
        ModelScores(
            printable(name),
            score_N[rows],
            member_N[rows],
            None if user_N is None else user_N[rows],
            names_of_users,
            covariates and covariates.take(rows),
            None if id_N is None else id_N[rows],
            None if document_N is None else document_N[rows],
            None if text_N is None else text_N.take(pa.array(rows)),
        )
        for name, rows in zip(names, np.split(order, ends), strict=True)
    ]


def _find_columns(table: Arrays, columns: Columns) -> list[str]:
    """Returns the columns that are used, score and member first; raises UserError for missing and repeated ones."""
    wanted = [columns.score or "score", columns.member or "member"]
    wanted += filter(None, [columns.model, columns.user, *columns.covariates, columns.text])
    problems = []
    if missing := [name for name in dict.fromkeys(wanted) if name not in table]:
        p = columns.prefix
        hint = f"name the columns by {p}score=, {p}member=, {p}model= and {p}user="
        if columns.covariates or columns.text:
            hint += f", and by {p}covariates= and {p}text="
        listed_names = ", ".join(repr(name) for name in [*table][:20]) or "no columns"
        lacking = " and ".join(map(repr, missing))
        problems.append(f"{table.source}: no column {lacking} among {listed_names}; {hint}")
    if repeated := [name for name in dict.fromkeys(wanted) if wanted.count(name) > 1]:
        problems.append(
            f"{table.source}: {', '.join(map(repr, repeated))}: a column has two roles; name a different one for each"
        )
    if problems:
        raise UserError("\n".join(problems))
    return wanted + [
        name
        for name in ("id", "document", "text", *(() if columns.model else ("model",)))
        if name in table and name not in wanted
    ]


def _scores(values: Values, columns: Columns) -> np.ndarray:
    score = values.real(MAX_SCORE)
    return -score.astype(np.float64) if columns.lower_is_member else score


def _ids(values: Values, model_N: np.ndarray) -> np.ndarray:
    """Returns the rank of each id among all of them; raises UserError if a model has two scores of the same sample."""
    import pandas as pd

    ids = pd.DataFrame({"model": model_N, "id": values.strings()})
    repeated = np.flatnonzero(ids.duplicated().to_numpy())
    if repeated.size:
        value = ids["id"].iloc[repeated[0]]
        raise UserError(
            f"{values.label}: {value} appears again in row {repeated[0] + 1}: a model has one score per sample; remove "
            f"the {repeated.size:,} repeated rows"
        )
    return pd.factorize(ids["id"], sort=True)[0]


def _of_arrays(arrays: Arrays, columns: Columns) -> list[ModelScores]:
    """Returns the scores of arrays with a row for each model."""
    source, p = arrays.source, columns.prefix
    if columns.model:
        raise UserError(
            f"{p}model={columns.model}: works only with tables; the rows of an array are models, so leave it out"
        )
    score, member = columns.score or "score_MxN", columns.member or "member_MxN"
    named = dict.fromkeys(filter(None, [columns.user, *columns.covariates, columns.text]))
    missing = [name for name in (score, member) if name not in arrays]
    missing += [name for name in named if arrays.of_samples(name) is None]
    if missing:
        flags = [f"{p}{name}=" for name in ("score", "member", "user", "covariates", "text")]
        listed_names = ", ".join(repr(name) for name in [*arrays][:20])
        raise UserError(
            f"{source}: no array {' and '.join(map(repr, missing))} among {listed_names}; name it by "
            f"{', '.join(flags[:-1])} or {flags[-1]}, or save losses as loss_MxN and member_MxN"
        )
    for name in (score, member):
        if len(arrays[name].shape) not in (1, 2):
            raise UserError(
                f"{arrays[name].label}: has the shape {arrays[name].shape}; must have one row per model and one column "
                "per sample"
            )
    # A vector is of one model.
    shape, member_shape = ((1, *arrays[n].shape)[-2:] for n in (score, member))
    sample_shapes = [arrays[name].shape for name in arrays if name.endswith("_N")]
    if member_shape not in (shape, (1, shape[1])):  # one row is the membership of all models
        raise UserError(other_shape(arrays, member, member_shape, score, shape))
    check_orientation(source, score, shape, sample_shapes)
    problems: list[str] = []
    score_MxN = collect_errors(problems, lambda: _scores(arrays[score], columns))
    member_MxN = collect_errors(problems, arrays[member].membership)
    of_samples = {
        name: arrays[stored]
        for name in (*named, "document", "text")
        if (stored := arrays.of_samples(name)) is not None
    }
    for values in of_samples.values():
        if values.shape != (shape[1],):
            problems.append(
                f"{values.label}: has the shape {values.shape}; must have one value for each of the {shape[1]:,} "
                "samples"
            )
    if problems or score_MxN is None or member_MxN is None:
        raise UserError("\n".join(problems))
    users = document_N = text_N = None
    if columns.user:
        users = collect_errors(problems, of_samples[columns.user].names)
    if "document" in of_samples:
        document_N = collect_errors(problems, lambda: parse_documents(of_samples["document"]))
    text = columns.text or "text"
    if text in of_samples:
        text_N = collect_errors(problems, of_samples[text].texts)
    covariates = collect_errors(
        problems, lambda: read_covariates(of_samples, columns.covariates, columns.text, shape[1])
    )
    if problems:
        raise UserError("\n".join(problems))
    names = [*map(str, range(shape[0]))] if shape[0] > 1 else [""]
    if "name_M" in arrays:
        names = [printable(str(name)) for name in arrays["name_M"].strings()]
        if len(names) != shape[0]:
            raise UserError(
                f"{arrays['name_M'].label}: names {len(names)} models, but there are {shape[0]}: {listed(names)}"
            )
    user_N, names_of_users = users or (None, ())
    member_MxN = np.broadcast_to(np.atleast_2d(member_MxN), shape)
    return [
        ModelScores(
            name, score_N, member_N, user_N, names_of_users, covariates, None, document_N, text_N
        )
        for name, score_N, member_N in zip(names, np.atleast_2d(score_MxN), member_MxN, strict=True)
    ]
