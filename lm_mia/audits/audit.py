"""Audits scores or losses from anywhere: AUC, TPR at FPR, epsilon estimates, and lower bounds on epsilon.

`lm-mia audit FILE` and `lm_mia.audit` call `audit`. Which bound is valid depends on how the members were drawn, which
the scores do not show, so the user must state it.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import threadpoolctl

from lm_mia import config
from lm_mia.atomic import write_csv
from lm_mia.attacks import text_membership
from lm_mia.audits import causal as audit_causal
from lm_mia.audits.statistics import Frames, Settings, audit_model, make_units
from lm_mia.data import loss_units, losses, scores
from lm_mia.data.arrays import Arrays, Source, Values, listed, open_arrays
from lm_mia.data.covariates import Covariates, read_covariates
from lm_mia.data.losses import LossFile
from lm_mia.data.scores import ModelScores
from lm_mia.errors import UserError, collect_errors
from lm_mia.machine import available_cores

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
    source: "Source",
    settings: Settings,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> Audit:
    """Audits scores, or losses, to which attacks are applied first.

    Args:
      source: what `lm_mia.data.arrays.open_arrays` opens: a path, a data frame, a table or a mapping of arrays.
      settings: how to read and audit it.
      progress: called as ``progress("audit", done, total)``.

    Raises:
      UserError: with one line per problem of the settings and the source.
    """
    problems = [*settings.problems()]
    given = collect_errors(problems, lambda: read(source, settings))
    if problems or given is None:
        raise UserError("\n".join(problems))
    name = given.source
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
    ):
        if isinstance(given, Losses):
            return _audit_losses(given, settings, pool, progress)
        models = given.models
        if settings.text:
            covariates_T = audit_causal.describe_texts(
                [model.covariates for model in models if model.covariates is not None]
            )
            models = [
                dataclasses.replace(model, covariates=covariates)
                for model, covariates in zip(models, covariates_T, strict=True)
            ]
        warnings = _compare_texts(models[0], len(models)) if settings.membership == "given" else ()
        settings = _with_headline_rate(settings, int(np.sum(~models[0].member_N)))
        parts = [*_audit_scores("score", models, name, settings, pool, progress)]
        return dataclasses.replace(_combine(parts, settings), warnings=warnings)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Membership scores, which are audited as they are."""

    source: str
    models: Sequence[ModelScores]


@dataclasses.dataclass(frozen=True)
class Losses:
    """Losses of models, whose targets and replicas are attacked, and what the audit needs to know of their samples."""

    file: LossFile
    user_N: np.ndarray | None
    users: Sequence[str]
    covariates: Covariates | None
    document_N: np.ndarray | None

    @property
    def source(self) -> str:
        """Where the losses come from."""
        return self.file.source


def read(source: "Source", settings: Settings) -> Scores | Losses:
    """Reads a source of `audit`; raises UserError with one line per problem."""
    columns = settings.columns
    strings = [name for name in (columns.user, columns.model) if name]
    arrays = open_arrays(source, strings)
    has_scores = (columns.score or "score") in arrays or "score_MxN" in arrays
    if settings.target or settings.base or (losses.has_losses(arrays) and not has_scores):
        return _read_losses(arrays, settings)
    return Scores(arrays.source, scores.read_scores(arrays, columns))


def _read_losses(arrays: Arrays, settings: Settings) -> Losses:
    """Returns losses of models, of which one is a target or a replica; all values are checked."""
    p, where = settings.prefix, arrays.source
    problems = [
        f"{p}{name}={value}: is for scores, but {where} has losses of models; leave it out"
        for name in ("score", "member", "model")
        if (value := getattr(settings, name))
    ]
    if settings.lower_is_member:
        problems.append(
            f"{p}lower-is-member: is for scores, but {where} has losses of models, which are lower for members; leave "
            "it out"
        )
    if settings.base and not settings.target:
        problems.append(f"{p}base={settings.base}: name the attacked model, too, by {p}target=")
    if problems:
        raise UserError("\n".join(problems))
    file = losses.read_losses(
        arrays,
        target=settings.target,
        base=settings.base,
        are_nats=settings.losses_are_nats,
        prefix=p,
    )
    if len(file.role_M) == 1:
        file = dataclasses.replace(file, role_M=("target",))  # a single model needs no role
    if not file.models("target", "replica"):
        raise UserError(
            f"{where}: no model has the role target; name the attacked one by {p}target=NAME and, if it is there, the "
            f"model that it was fine-tuned from by {p}base=NAME; the models are {listed(file.names_M)}"
        )
    losses.check_values(file, lambda *_: None)
    columns = _columns(file)
    users = document_N = covariates = None
    needed = [*settings.columns.covariates, *filter(None, [settings.user, settings.text])]
    if missing := [name for name in needed if name not in columns]:
        raise UserError(
            f"{where}: has no column {' and '.join(map(repr, missing))}; {p}user, {p}covariates and {p}text can name "
            f"{listed(columns) or 'none, since it has no columns'}"
        )
    if settings.user:
        users = collect_errors(problems, columns[settings.user].names)
    if "document" in columns:
        document_N = collect_errors(problems, lambda: scores.parse_documents(columns["document"]))
    covariates = collect_errors(
        problems,
        lambda: read_covariates(
            columns, settings.columns.covariates, settings.text, file.num_samples
        ),
    )
    if problems:
        raise UserError("\n".join(problems))
    if settings.text and covariates is not None:
        [covariates] = audit_causal.describe_texts([covariates])
    user_N, names = users or (None, ())
    return Losses(file, user_N, names, covariates, document_N)


def _columns(file: LossFile) -> dict[str, Values]:
    """Returns the properties of the samples, their texts among them, as columns."""
    arrays = dict(file.columns)
    if file.text_N is not None:
        arrays["text"] = file.text_N
    return {
        name: Values(f"{file.source}: column {name!r}", array.shape, lambda array=array: array)
        for name, array in arrays.items()
    }


def _compare_texts(first: ModelScores, models: int) -> tuple[str, ...]:
    """Returns a sentence about what the texts tell of the members of the first model; none without texts."""
    if first.text_N is None:
        return ()
    drawn_S = text_membership.draw_texts(len(first.text_N))
    groups = [name_N[drawn_S] for name_N in (first.document_N, first.user_N) if name_N is not None]
    auc = text_membership.compare_texts(
        first.text_N.take(pa.array(drawn_S)).to_pylist(), first.member_N[drawn_S], groups
    )
    model = f"model {first.model}" if models > 1 else ""
    return () if auc is None else (text_membership.describe(auc, model),)


def _audit_losses(
    given: Losses,
    settings: Settings,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
) -> Audit:
    """Audits all attacks on losses, one after another, so that the scores of one attack are in memory at a time."""
    from lm_mia.attacks import loss_arrays, registry
    from lm_mia.audits import importing  # here: these take a second to load

    file, source = given.file, given.source
    subset = _SUBSETS[settings.membership]
    prepared = importing.prepare(file, "audit", subset)
    attacked_T = file.models("target", "replica")
    nonmembers = min(int(np.sum(~losses.read_member(file, t))) for t in attacked_T)
    settings = _with_headline_rate(settings, nonmembers)
    index_M, related = importing.subset_design(file, prepared.models, attacked_T)
    if related.overlap:
        first, second = (file.names_M[index_M[m]] for m in related.overlap)
        raise UserError(
            f"{source}: the training subsets of models {first} and {second} overlap more or less than independent "
            "ones do, so the references reveal the members of the targets; use models whose subsets were drawn "
            "independently"
        )
    design = subset
    if importing.subset_problems(file, prepared.models, subset):
        design = "given"  # the members of the targets were drawn in this way, but those of others were not
    arrays = loss_arrays.LossArrays(
        source,
        design,
        {model: row for row, model in enumerate(prepared.models)},
        read_rows(file, [*prepared.models.values()]),
        prepared.table,
    )
    groups = loss_arrays.attacked_groups(arrays, prepared.config)
    if not all(group.specs for group in groups):
        raise UserError(
            f"{source}: has targets and replicas, but no reference; give all of them the role target, or leave one "
            "kind out"
        )
    name_of = {str(model): file.names_M[i] for model, i in prepared.models.items()}
    notes = [f"unit of the losses: {loss_units.describe(are_nats=settings.losses_are_nats)}"]
    parts: dict[str, list[tuple[Frames, list[str]]]] = {}
    total, done, without_scores = sum(len(group.specs) for group in groups), 0.0, list[str]()
    warnings: tuple[str, ...] = ()
    attacked = sum(len(group.inputs.targets) for group in groups)
    text_N = None if file.text_N is None else pa.array(file.text_N, pa.large_string())
    with tempfile.TemporaryDirectory(prefix="lm-mia-audit-") as folder:
        for group in groups:
            names = [name_of[str(model)] for model in group.inputs.targets]
            if settings.membership in ("coins", "half") and (
                clauses := loss_arrays.find_contradictions(group, names, given.user_N)
            ):
                raise UserError(
                    f"{settings.prefix}membership={settings.membership}: in {source}, {' and '.join(clauses)}, which "
                    "practically never happens if members were drawn at random: bounds on epsilon would not be valid; "
                    f"use {settings.prefix}membership=given"
                )
            notes += loss_arrays.describe_design(group)
            notes += loss_arrays.find_warnings(
                group, names, is_random=settings.membership != "given"
            )
            of_models = [
                ModelScores(
                    name if attacked > 1 else "",
                    np.empty(0),
                    member_N,
                    given.user_N,
                    given.users,
                    given.covariates,
                    document_N=given.document_N,
                    text_N=text_N,
                )
                for name, member_N in zip(names, group.inputs.target_member_TxN2, strict=True)
            ]
            if settings.membership == "given" and not warnings:
                warnings = _compare_texts(of_models[0], attacked)

            def show(fraction: float, before: float = done) -> None:
                progress("audit", before + fraction, total)

            for attack, score_TxN in loss_arrays.score(
                group, prepared.config, Path(folder), pool, show
            ):
                if np.isnan(score_TxN).all():
                    without_scores.append(attack)
                    continue
                scored = [
                    dataclasses.replace(model, score_N=score_N)
                    for model, score_N in zip(of_models, score_TxN, strict=True)
                ]
                parts.setdefault(attack, []).extend(
                    _audit_scores(attack, scored, source, settings, pool)
                )
            done += len(group.specs)
    progress("audit", total, total)
    if without_scores:
        notes.append(
            f"{', '.join(without_scores)}: no scores, since these attacks need more references: one that was trained "
            "on a sample and one that was not at least, and LiRA two of each with variances of each sample"
        )
    c = prepared.config.attack
    if any(group.inputs.references for group in groups):
        pooled = "one variance for all samples" if c.variance == "pooled" else "a variance for each"
        notes.append(f"LiRA estimates {pooled} (attack.variance={c.variance}), as `lm-mia import`")
    in_order = [c.headline, *registry.ATTACKS]
    by_attack = [part for name in dict.fromkeys(in_order) for part in parts.get(name, ())]
    result = _combine(by_attack, settings)
    return dataclasses.replace(result, notes=(*result.notes, *notes), warnings=warnings)


_SUBSETS: Mapping[str, Literal["given", "exact", "bernoulli"]] = {
    "given": "given",
    "coins": "bernoulli",
    "half": "exact",
    "independent": "given",
}
"""How `lm-mia import` calls the design of an audit."""


def read_rows(file: LossFile, index_M: Sequence[int]) -> dict[str, list[np.ndarray]]:
    """Returns the values of all models: name of a variable -> value_N of each; large arrays stay mapped to the file."""
    rows = {name: [file.read(name, m) for m in index_M] for name in ("loss", *file.statistics)}
    return rows | {"member": [losses.read_member(file, m) for m in index_M]}


def _with_headline_rate(settings: Settings, nonmembers: int) -> Settings:
    """Returns settings whose rates, if they are the usual ones, include that by which a recipe's results are named."""
    if settings.fprs != Settings().fprs:
        return settings
    rate = config.automatic_focus_fpr(nonmembers)
    return dataclasses.replace(settings, fprs=tuple(sorted({*settings.fprs, rate})))


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
