"""Audits scores or losses from anywhere: AUC, TPR at FPR, epsilon estimates, and lower bounds on epsilon.

`lm-mia audit FILE` and `lm_mia.audit` call `audit`. Which bound is valid depends on how the members were drawn, which
the scores do not show, so the user must state it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import threadpoolctl

from lm_mia.atomic import write_csv
from lm_mia.attacks import text_membership
from lm_mia.data import loss_units, role_losses, score_arrays, score_tables
from lm_mia.data.array_files import check_is_file
from lm_mia.data.score_arrays import Losses
from lm_mia.data.score_tables import Columns, ModelScores
from lm_mia.errors import UserError, collect_errors
from lm_mia.machine import available_cores
from lm_mia.run import audit_causal
from lm_mia.run.audit_statistics import Frames, Settings, audit_model, make_units

Source = Path | pd.DataFrame | Mapping[Any, Any]

_TABLES = ("summary", "tpr_at_fpr", "audit", "audit_curve", "roc", "histogram")
_OPTIONAL_TABLES = ("groups", *audit_causal.TABLES)
TABLES = (*_TABLES, *_OPTIONAL_TABLES)
"""Names of the csv files of an audit, without suffix."""
NOT_ADJUSTED = (
    "numbers that are not adjusted, such as the estimates of epsilon, also measure how the sources of members and "
    "non-members differ; no bound on epsilon is valid then"
)


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit, as data frames. Rows begin with the attack ("score" for scores) and the model."""

    summary: pd.DataFrame
    """Numbers of members and non-members, AUC and largest balanced accuracy, with intervals (low, high)."""
    tpr_at_fpr: pd.DataFrame
    """TPR at each FPR, with intervals: of a bootstrap or, for a TPR that rests on fewer than 10 samples, exact ones, as
    the column "interval" says. With documents, a TPR that rests on fewer than 10 of them has none. The TPR and the
    number of true positives are missing if the FPR needs more non-members (`lm_mia.stats.nonmembers_needed`)."""
    epsilon: pd.DataFrame
    """Estimates (is_bound False) and lower bounds (True) on epsilon; the columns are those of audit.csv."""
    curve: pd.DataFrame
    """Lower bounds for each number of guesses, for the membership designs coins and half."""
    roc: pd.DataFrame
    """Points of the ROC curves, thinned."""
    histogram: pd.DataFrame
    """Numbers of members and of non-members in bins of the score; the first and the last bin include all scores
    beyond them."""
    groups: pd.DataFrame
    """The score of each user; empty without users."""
    causal: pd.DataFrame
    """With covariates, metrics with and without adjustment for them: a row for each estimator. Empty without."""
    causal_roc: pd.DataFrame
    """Points of the ROC curve of each estimator."""
    causal_weights: pd.DataFrame
    """Histogram of the log odds of membership given the covariates."""
    covariate_balance: pd.DataFrame
    """Means of each covariate, and their differences before and after weighting, in standard deviations."""
    counts: pd.DataFrame
    """Numbers of members and non-members of each model, also of those without a score, and what they are: samples or
    users."""
    notes: tuple[str, ...]
    """What a reader of the result must know, in sentences."""
    warnings: tuple[str, ...]
    """What a reader must know before any number, in sentences."""

    def write(self, folder: Path) -> None:
        """Writes the data frames as csv files, and deletes those of an earlier audit in this folder.

        Raises:
          OSError: if the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tables = self.tables()
        for name in {*TABLES} - {*tables}:
            (folder / f"{name}.csv").unlink(missing_ok=True)
        for name, frame in tables.items():
            write_csv(folder / f"{name}.csv", frame)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Returns the data frames by the names of their files; some only if there are users or covariates."""
        frames = (
            self.summary,
            self.tpr_at_fpr,
            self.epsilon,
            self.curve,
            self.roc,
            self.histogram,
        )
        tables = dict(zip(_TABLES, frames, strict=True))
        optional = {name: getattr(self, name) for name in _OPTIONAL_TABLES}
        return tables | {name: frame for name, frame in optional.items() if len(frame)}


def audit(
    source: Source,
    settings: Settings,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> Audit:
    """Audits a file, a data frame, or a mapping of arrays.

    Args:
      source: a csv, parquet or npz file of scores; a file of losses (`role_losses.read_losses`); a data frame with the
        columns of a table of scores; or arrays with the names of
        such an npz file.
      settings: how to read and audit it.
      progress: called as ``progress("audit", done, total)``.

    Raises:
      UserError: with one line per problem of the settings and the source.
    """
    problems = [*settings.problems()]
    scores = collect_errors(
        problems, lambda: read(source, settings.columns, settings.losses_are_nats)
    )
    if problems:
        raise UserError("\n".join(problems))
    assert scores is not None
    if settings.text:
        scores = _with_text_features(scores)
    name = "arrays" if isinstance(source, Mapping) else "data frame"
    name = str(source) if isinstance(source, Path) else name
    warnings = _compare_texts(scores) if settings.membership == "given" else ()
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
    ):
        if isinstance(scores, Losses):
            result = _audit_losses(scores, name, settings, pool, progress)
        else:
            parts = [*_audit_scores("score", scores, name, settings, pool, progress)]
            result = _combine(parts, settings)
    return dataclasses.replace(result, warnings=warnings)


def _compare_texts(scores: list[ModelScores] | Losses) -> tuple[str, ...]:
    """Returns a sentence about what the texts tell of the members of the first model; none without texts."""
    if isinstance(scores, Losses):
        scores = scores.scores(scores.target_loss_TxN)
    first = scores[0]
    if first.text_N is None:
        return ()
    drawn_S = text_membership.draw_texts(len(first.text_N))
    groups = [name_N[drawn_S] for name_N in (first.document_N, first.user_N) if name_N is not None]
    auc = text_membership.compare_texts(
        first.text_N.take(pa.array(drawn_S)).to_pylist(), first.member_N[drawn_S], groups
    )
    model = f"model {first.model}" if len(scores) > 1 else ""
    return () if auc is None else (text_membership.describe(auc, model),)


def read(
    source: Source, columns: Columns, losses_are_nats: bool = False
) -> list[ModelScores] | Losses:
    """Reads a source of `audit`; raises UserError with one line per problem. The last is as in `Settings`."""
    if isinstance(source, pd.DataFrame):
        return score_tables.read_frame(source, columns)
    if isinstance(source, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in source.items()}
        if role_losses.has_roles(arrays):
            return role_losses.read_losses(arrays, columns, losses_are_nats)
        return score_arrays.parse_arrays(arrays, "arrays", columns)
    if not isinstance(source, Path):
        raise UserError(
            f"source: must be a path, a data frame or a mapping of arrays, not {type(source).__name__}"
        )
    if columns.target or columns.base or role_losses.has_roles(source):
        return role_losses.read_losses(source, columns, losses_are_nats)
    check_is_file(source)
    if source.suffix == ".npz":
        return score_arrays.read_npz(source, columns)
    if source.suffix not in score_tables.SUFFIXES:
        suffixes = ", ".join((*score_tables.SUFFIXES, ".npz"))
        raise UserError(
            f"{source}: the name must end in one of {suffixes}; save the scores in one of these formats"
        )
    return score_tables.read_table(source, columns)


def _with_text_features(scores: list[ModelScores] | Losses) -> list[ModelScores] | Losses:
    """Returns scores whose covariates describe the texts."""
    if isinstance(scores, Losses):
        assert scores.covariates is not None
        [covariates] = audit_causal.describe_texts([scores.covariates])
        return dataclasses.replace(scores, covariates=covariates)
    covariates_T = audit_causal.describe_texts(
        [model.covariates for model in scores if model.covariates is not None]
    )
    return [
        dataclasses.replace(model, covariates=covariates)
        for model, covariates in zip(scores, covariates_T, strict=True)
    ]


def _audit_losses(
    losses: Losses,
    source: str,
    settings: Settings,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
) -> Audit:
    """Audits all attacks on losses, one after another, so that the scores of one attack are in memory at a time."""
    from lm_mia.attacks import loss_arrays  # here: zarr takes a second to load

    parts: list[tuple[Frames, list[str]]] = []
    if not settings.losses_are_nats and not losses.names_T:  # others were checked by their names
        loss_arrays.check_unit(losses, source)
    design = loss_arrays.find_design(losses, source)
    notes = [f"unit of the losses: {loss_units.describe(are_nats=settings.losses_are_nats)}"]
    notes += loss_arrays.describe_design(design, len(losses.target_loss_TxN))
    is_random = settings.membership in ("coins", "half")
    notes += loss_arrays.find_warnings(losses, design, is_random=is_random)
    attacks = loss_arrays.attacks_on(losses, design, is_random=is_random)
    total, without_scores = len(attacks), list[str]()
    for done, attack in enumerate(attacks):
        progress("audit", done, total)
        score_TxN = loss_arrays.score_attack(losses, attack, design, pool)
        if np.isnan(score_TxN).all():
            without_scores.append(attack)
            continue
        scores = losses.scores(score_TxN)
        parts += _audit_scores(attack, scores, source, settings, pool)
    progress("audit", total, total)
    if without_scores:
        notes.append(
            f"{', '.join(without_scores)}: no scores, since these attacks need more references: one that was trained "
            "on a sample and one that was not at least, and LiRA two of each with variances of each sample"
        )
    result = _combine(parts, settings)
    return dataclasses.replace(result, notes=(*result.notes, *notes))


def _combine(parts: Sequence[tuple[Frames, list[str]]], settings: Settings) -> Audit:
    frames = {
        name: pd.concat([part[name] for part, _ in parts], ignore_index=True)
        for name in parts[0][0]
    }
    frames["counts"] = frames["counts"].drop_duplicates("model", ignore_index=True)
    # A note that concerns several attacks or models is shown once.
    concerned: dict[str, list[str]] = {}
    for part, notes_of_part in parts:
        [attack], [model] = part["summary"]["attack"], part["summary"]["model"]
        name = " ".join(filter(None, [attack * (attack != "score"), model and f"model {model}"]))
        for note in notes_of_part:
            concerned.setdefault(note, []).append(name)
    notes = [
        note if len(names) == len(parts) else f"{', '.join(names)}: {note}"
        for note, names in concerned.items()
    ]
    bounds = frames["epsilon"].query("is_bound")
    if len(frames["causal"]):
        notes.append(NOT_ADJUSTED)
    elif settings.membership == "given":
        notes.append(
            "no bound on epsilon is valid until you state how members were drawn: "
            f"{settings.prefix}membership=coins, half or independent"
        )
    elif len(bounds) > 1:
        notes.append(
            f"each of the {len(bounds)} bounds holds with a confidence of {settings.confidence:g} on its own; the "
            "largest of them does not"
        )
    return Audit(**frames, notes=tuple(notes), warnings=())


def _audit_scores(
    attack: str,
    models: Sequence[ModelScores],
    source: str,
    settings: Settings,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> Iterator[tuple[Frames, list[str]]]:
    """Yields the rows and the notes of each model; raises UserError with one line per problem."""
    if settings.membership == "independent":
        models = [_join_trials(models, source, settings)]
    problems: list[str] = []
    units = [
        collect_errors(problems, lambda scores=scores: make_units(scores, source, settings))
        for scores in models
    ]
    if problems:
        raise UserError("\n".join(problems))
    for done, unit in enumerate(units):
        step = done * settings.steps
        total = len(units) * settings.steps

        def advance(steps: int, step: int = step, total: int = total) -> None:
            progress("audit", step + steps, total)

        yield audit_model(attack, unit, settings, pool, advance)


def _join_trials(models: Sequence[ModelScores], source: str, settings: Settings) -> ModelScores:
    """Returns the scores of all training runs, one each, as those of one model."""
    if len(models) == 1:
        return models[0]
    if any(scores.score_N.size > 1 for scores in models):
        largest = max(models, key=lambda scores: scores.score_N.size)
        raise UserError(
            f"{settings.prefix}membership=independent: {source} has {largest.score_N.size:,} scores of model "
            f"{largest.model}, but trials are independent only if each is a training run of its own; if the members "
            f"of a run were drawn by coins, use {settings.prefix}membership=coins"
        )
    return ModelScores(
        "",
        np.concatenate([scores.score_N for scores in models]),
        np.concatenate([scores.member_N for scores in models]),
        # Ties are broken by the names of the runs, whose order in the file does not matter.
        id_N=np.argsort(np.argsort([scores.model for scores in models])),
    )
