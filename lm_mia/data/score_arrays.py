"""Reads npz files of membership scores, or of the losses to compute them from, for `lm-mia audit`.

Files in which each model has a role are read by `role_losses`.

A file has either the arrays score_TxN and member_TxN, or those of `LOSS_ARRAYS`, and optionally users, covariates,
document_N and `SAMPLE_COLUMNS`. All problems of a file are reported together.

Legend: T targets (the models under attack), M references, N samples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lm_mia.data.array_files import ArrayFile, check_membership, check_real, open_npz
from lm_mia.data.covariates import Column, Covariates, read_covariates
from lm_mia.data.score_tables import (
    MAX_SCORE,
    Columns,
    ModelScores,
    parse_documents,
    parse_names,
    parse_texts,
)
from lm_mia.errors import UserError, collect_errors

LOSS_ARRAYS = (
    "target_loss_TxN",
    "target_member_TxN",
    "reference_loss_MxN",
    "reference_member_MxN",
)
SAMPLE_COLUMNS = ("tokens", "zlib_bytes", "tfidf")
"""Arrays of one number per sample, which the attacks shrunk and stacked use if all of them are there."""
DOCUMENTS = "document_N"
"""Array of the documents that samples are pieces of, as for `lm-mia import`."""
TEXTS = "text_N"
"""Array of the texts of the samples, as for `lm-mia import`."""
MAX_LOSS = 1e29
"""As `lm_mia.stats` requires, so that no sum of squares overflows."""
MIN_LOSS_SCALE = 1e-29
"""The largest loss must be at least this, unless all are 0, so that losses are not rounded to 0 in float32."""
_PREFIX = 4096  # samples that are compared first


@dataclasses.dataclass(frozen=True)
class Losses:
    """Losses of targets and references on the same samples; large arrays are mapped into memory."""

    target_loss_TxN: np.ndarray
    target_member_TxN: np.ndarray
    reference_loss_MxN: np.ndarray
    reference_member_MxN: np.ndarray
    columns_N: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Those of `SAMPLE_COLUMNS` that the file has."""
    user_N: np.ndarray | None = None
    users: Sequence[Any] = ()
    covariates: Covariates | None = None
    document_N: np.ndarray | None = None
    base_loss_N: np.ndarray | None = None
    """Losses of the model that the targets were fine-tuned from, which was trained on none of the samples."""
    names_T: tuple[str, ...] = ()
    """Names of the targets; empty: their numbers."""
    text_N: "pa.Array[Any] | pa.ChunkedArray[Any] | None" = None
    """The text of each sample; None if it is unknown."""

    def scores(self, score_TxN: np.ndarray) -> list[ModelScores]:
        """Returns the scores of an attack on the targets."""
        return _by_target(
            score_TxN,
            self.target_member_TxN,
            self.user_N,
            self.users,
            self.covariates,
            self.document_N,
            self.text_N,
            self.names_T,
        )


def read_npz(path: Path, columns: Columns) -> list[ModelScores] | Losses:
    """Reads the scores of each target, or losses.

    Args:
      path: the file.
      columns: names of the arrays of scores, membership and users.

    Raises:
      UserError: with one line per problem.
    """
    return parse_arrays(open_npz(path), str(path), columns)


def parse_arrays(
    arrays: Mapping[str, np.ndarray], source: str, columns: Columns
) -> list[ModelScores] | Losses:
    """As `read_npz`, for arrays; `source` is their name for error messages."""
    if columns.model:
        raise UserError(
            f"{columns.prefix}model={columns.model}: works only with tables; the rows of an array are models, so "
            "leave it out"
        )
    has_losses = not columns.score and LOSS_ARRAYS[0] in arrays
    names = (
        LOSS_ARRAYS
        if has_losses
        else (columns.score or "score_TxN", columns.member or "member_TxN")
    )
    others = filter(None, [columns.user, *columns.covariates, columns.text])
    _check_present(arrays, [*names, *others], source, has_losses, columns.prefix)
    problems: list[str] = []
    checks: tuple[Callable[[np.ndarray, str], np.ndarray], ...] = (
        _check_losses
        if has_losses
        else lambda array, label: check_real(array, label, limit=MAX_SCORE),
        check_membership,
    )
    values = [
        collect_errors(problems, lambda name=name, i=i: _rows(arrays, name, source, checks[i % 2]))
        for i, name in enumerate(names)
    ]
    shapes = [None if value is None else value.shape for value in values]
    problems += _shape_problems(source, names, shapes)
    if problems:
        raise UserError("\n".join(problems))
    samples = shapes[0][1] if shapes[0] else 0
    users: tuple[Any, Sequence[Any]] = None, ()
    if columns.user:
        users = collect_errors(problems, lambda: _users(arrays, columns.user, samples, source))
    covariates = collect_errors(problems, lambda: _covariates(arrays, columns, samples, source))
    documents = None
    if DOCUMENTS in arrays:
        documents = collect_errors(problems, lambda: _users(arrays, DOCUMENTS, samples, source))
    document_N = parse_documents(documents)
    text_N = _texts(arrays, columns.text or TEXTS, samples)
    if has_losses:
        columns_N = {
            name: collect_errors(
                problems, lambda name=name: _sample_column(arrays, name, samples, source)
            )
            for name in SAMPLE_COLUMNS
            if name in arrays
        }
        user_N, names_of_users = users or (None, ())
        losses = Losses(
            values[0],
            values[1],
            values[2],
            values[3],
            columns_N,
            user_N,
            names_of_users,
            covariates,
            document_N,
            text_N=text_N,
        )
        problems += _leaks(losses, source)
        if problems:
            raise UserError("\n".join(problems))
        return losses
    if problems:
        raise UserError("\n".join(problems))
    score_TxN, member_TxN = values
    member_TxN = np.broadcast_to(member_TxN, score_TxN.shape)
    return _by_target(score_TxN, member_TxN, *users, covariates, document_N, text_N)


def _check_losses(array: np.ndarray, label: str) -> np.ndarray:
    """Checks that an array holds finite losses that are not negative; raises UserError otherwise."""
    check_real(array, label, limit=MAX_LOSS)
    # A row at a time, since the array may be mapped into memory.
    negative = sum(int(np.count_nonzero(row < 0)) for row in np.atleast_2d(array))
    if negative:
        raise UserError(
            f"{label}: {negative:,} of {array.size:,} values are negative; a loss is the mean negative "
            "log-likelihood of the tokens, in nats; negate log-probabilities"
        )
    check_loss_scale(array, label)
    return array


def check_loss_scale(array: np.ndarray, label: str) -> None:
    """Raises UserError if all losses are tiny; some of them, or all, may be exactly 0."""
    rows = np.atleast_2d(array)
    largest = max((float(np.fmax.reduce(row, initial=0)) for row in rows), default=0.0)
    if 0 < largest < MIN_LOSS_SCALE:
        raise UserError(
            f"{label}: the largest loss is {largest:g}, but must be at least {MIN_LOSS_SCALE:g} unless all are 0; give "
            "losses in nats"
        )


def _by_target(
    score_TxN: np.ndarray,
    member_TxN: np.ndarray,
    user_N: np.ndarray | None,
    users: Sequence[Any],
    covariates: Covariates | None,
    document_N: np.ndarray | None,
    text_N: "pa.Array[Any] | pa.ChunkedArray[Any] | None",
    names_T: Sequence[str] = (),
) -> list[ModelScores]:
    names = (names_T or map(str, range(len(score_TxN)))) if len(score_TxN) > 1 else [""]
    return [
        ModelScores(
            name, score_N, member_N, user_N, users, covariates, document_N=document_N, text_N=text_N
        )
        for name, score_N, member_N in zip(names, score_TxN, member_TxN, strict=True)
    ]


def _check_present(
    arrays: Mapping[str, np.ndarray],
    names: Sequence[str],
    source: str,
    has_losses: bool,
    prefix: str,
) -> None:
    hint = "add it"
    if not has_losses:
        *flags, last = [
            f"{prefix}{name}=" for name in ("score", "member", "user", "covariates", "text")
        ]
        hint = f"name it by {', '.join(flags)} or {last}, or save {', '.join(LOSS_ARRAYS)}"
    missing = [name for name in names if name not in arrays]
    if missing:
        listed = ", ".join(repr(name) for name in [*arrays][:20])
        lacking = " and ".join(map(repr, missing))
        raise UserError(f"{source}: no array {lacking} among {listed}; {hint}")


def _rows(
    arrays: Mapping[str, np.ndarray],
    name: str,
    source: str,
    check: Callable[[np.ndarray, str], np.ndarray],
) -> np.ndarray:
    """Returns an array with one row per model, after the check."""
    shape = arrays.header(name).shape if isinstance(arrays, ArrayFile) else arrays[name].shape
    if len(shape) not in (1, 2):
        raise UserError(
            f"{source}: array {name!r}: has the shape {shape}; must have one row per model and one column per sample"
        )
    return np.atleast_2d(check(arrays[name], f"{source}: array {name!r}"))


def _shape_problems(
    source: str, names: Sequence[str], shapes: Sequence[tuple[int, int] | None]
) -> list[str]:
    """Returns the problems of values and membership whose shapes do not match; None is not checked."""
    problems = []
    for value, member, shape, member_shape in zip(
        names[::2], names[1::2], shapes[::2], shapes[1::2], strict=True
    ):
        is_shared = len(names) == 2 and shape and member_shape == (1, shape[1])
        if shape and member_shape and shape != member_shape and not is_shared:
            problems.append(
                f"{source}: array {value!r} has the shape {shape}, but {member!r} has {member_shape}: must be equal, "
                "with one row per model and one column per sample; check whether one is transposed"
            )
    if len(names) == 4 and shapes[0] and shapes[2] and shapes[0][1] != shapes[2][1]:
        problems.append(
            f"{source}: array {names[0]!r} has {shapes[0][1]:,} samples, but {names[2]!r} has {shapes[2][1]:,}: must "
            "be the same samples in the same order; save the losses of all models on all samples"
        )
    return problems


def _users(
    arrays: Mapping[str, np.ndarray], name: str, samples: int, source: str
) -> tuple[np.ndarray, Sequence[Any]]:
    label = f"{source}: array {name!r}"
    user_N = _of_samples(arrays[name], samples, label)
    if user_N.dtype.kind not in "biufU":
        raise UserError(f"{label}: holds values of type {user_N.dtype}; save numbers or strings")
    return parse_names(pa.array(user_N, from_pandas=True), label)


def _texts(
    arrays: Mapping[str, np.ndarray], name: str, samples: int
) -> "pa.Array[Any] | pa.ChunkedArray[Any] | None":
    """Returns the texts of the samples; None if the array is absent or holds something else."""
    if (
        name not in arrays
        or arrays[name].shape != (samples,)
        or arrays[name].dtype.kind not in "UO"
    ):
        return None
    try:
        return parse_texts(pa.array(arrays[name], from_pandas=True))
    except pa.ArrowException:
        return None


def _covariates(
    arrays: Mapping[str, np.ndarray], columns: Columns, samples: int, source: str
) -> Covariates | None:
    def label(name: str) -> str:
        return f"{source}: array {name!r}"

    def column(name: str) -> Column:
        array_N = _of_samples(arrays[name], samples, label(name))
        try:
            return pa.array(array_N, from_pandas=True)
        except pa.ArrowException:
            raise UserError(
                f"{label(name)}: holds values of type {array_N.dtype}; save numbers or strings"
            ) from None

    return read_covariates(column, columns.covariates, columns.text, samples, label)


def _sample_column(
    arrays: Mapping[str, np.ndarray], name: str, samples: int, source: str
) -> np.ndarray:
    """Returns a column of positive numbers; the mean TF-IDF may be 0, or missing."""
    label = f"{source}: array {name!r}"
    column_N = check_real(_of_samples(arrays[name], samples, label), label).astype(np.float64)
    may_miss = name == "tfidf"
    valid_N = (column_N >= 0) | np.isnan(column_N) if may_miss else column_N > 0
    if not valid_N.all():
        at = int(np.argmin(valid_N))
        rule = "0 or larger, or NaN" if may_miss else "above 0"
        raise UserError(
            f"{label}: {column_N[at]:g} at [{at}]: must be {rule}; leave the array out if it is unknown"
        )
    return column_N


def _of_samples(array: np.ndarray, samples: int, label: str) -> np.ndarray:
    if array.shape != (samples,):
        raise UserError(
            f"{label}: has the shape {array.shape}; must have one value for each of the {samples:,} samples"
        )
    return array


def _leaks(losses: Losses, source: str) -> list[str]:
    """Returns a problem for each target that is among the references."""
    problems = []
    target, _, reference, _ = LOSS_ARRAYS
    for t, loss_N in enumerate(losses.target_loss_TxN):
        first_N = loss_N[:_PREFIX]
        equal_M = (losses.reference_loss_MxN[:, :_PREFIX] == first_N).all(axis=1)
        problems += [
            f"{source}: row {t} of {target!r} equals row {m} of {reference!r}: a target must not be one of its "
            "references; leave it out there"
            for m in np.flatnonzero(equal_M).tolist()
            if np.array_equal(losses.reference_loss_MxN[m], loss_N)
        ]
    return problems
