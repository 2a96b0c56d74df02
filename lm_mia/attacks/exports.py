"""Exports: files in the folder ``tables`` of a recipe, for users and their programs.

They are written last by a command that ended, each under a temporary name that then replaces the old file, and those
that the config does not ask for any more are removed at the same moment. They consist of pieces; anyone may edit or
delete them, and the next command writes them again.
"""

import contextlib
import dataclasses
import filecmp
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import abandoned, replacing, write_atomically
from lm_mia.attacks import (
    advantage,
    attack_flips,
    audit,
    evaluations,
    models,
    more_references,
    pooling,
    rate_intervals,
    reference_targets,
    registry,
    tables,
    targets,
    token_tables,
    user_code,
    variance,
    vulnerability,
    zero_run,
)
from lm_mia.attacks.experiment import Content, RecipeView, silent
from lm_mia.attacks.pieces import open_pieces, target_models
from lm_mia.attacks.replicas import DECISIONS
from lm_mia.attacks.results import digest, to_frame
from lm_mia.attacks.shown_samples import shown_samples
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request, Study, decision_settings
from lm_mia.attacks.study_inputs import StudyError
from lm_mia.attacks.table_sets import Facts, TableSet, Write
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable
from lm_mia.store.store import Store, open_store

OF_REQUESTS = (
    "targets.csv",
    "target_roc.parquet",
    "target_jackknife.parquet",
    "target_epsilons.parquet",
)
"""Tables of the evaluations that figures read."""
SCORE_TABLE = "membership_scores.parquet"
_EXPORTED = "exported.json"
"""In the folder of the pieces: the names of the exported tables, since those of studies are known only while figures
name them."""


# Sets of tables that one function computes together


def models_set(view: RecipeView) -> TableSet:
    """Returns models.csv."""
    return models.models_set(view.store, view.present)


def sample_losses_set(view: RecipeView) -> TableSet:
    """Returns sample_losses.csv; raises Unavailable if no figure reads it."""
    if not view.declared.loss_samples:
        raise Unavailable(
            f"{view.name}: no figure of the config reads losses of single samples; run lm-mia attack with such a "
            "figure in figures"
        )
    references = [model for model in view.present if model.role == "reference"]
    ids, document_N = view.declared.loss_samples, view.population.document_N
    return models.sample_losses_set(view.store, references, ids, document_N)


def replica_set(name: str) -> Callable[[RecipeView], TableSet]:
    """Returns the function that returns a set of `Replicas.sets`."""

    def make(view: RecipeView) -> TableSet:
        sets = view.once(_replica_sets)
        if name not in sets:
            raise Unavailable(f"{view.name}: attack.resample_references must be set")
        return sets[name]

    return make


def _replica_sets(view: RecipeView) -> Mapping[str, TableSet]:
    return view.replicas.sets(view.work)


SHUFFLED, JACKKNIFE, RESAMPLED = map(
    replica_set, ("shuffled", "decision_jackknife", "resampled_references")
)
REFERENCE_TARGETS, REPLICA_WARNINGS = map(replica_set, ("reference_targets", "replica_warnings"))


def more_references_set(view: RecipeView) -> TableSet:
    """Returns what more references would add."""
    return more_references.table_set(view.store, view.attacked, view.c, view.work)


def pooling_set(view: RecipeView) -> TableSet:
    """Returns attacks on each reference with the others; raises Unavailable unless attack.leave_one_out is set."""
    tables = pooling.table_set(view.store, view.attacked, view.c, view.work)
    return _requested(view, tables, "attack.leave_one_out must be set; run lm-mia attack with it")


def zero_run_set(view: RecipeView) -> TableSet:
    """Returns zero-run evaluation; raises Unavailable unless attack.zero_run is set."""
    tables = zero_run.table_set(view.store, view.attacked, view.c, view.work)
    return _requested(view, tables, "attack.zero_run must be set; run lm-mia attack with it")


def variance_set(view: RecipeView) -> TableSet:
    """Returns components of variance; raises Unavailable without crossed models."""
    tables = variance.table_set(view.store, view.attacked, view.c, view.work)
    reason = "attack.replica_inits must be above 1, and all of its models present; run lm-mia run with it"
    return _requested(view, tables, reason)


def tokens_set(view: RecipeView) -> TableSet:
    """Returns tables of tokens; raises Unavailable without their log-probabilities."""
    shown_S = np.zeros(0, np.int64)
    with contextlib.suppress(Unavailable):
        shown = view.pieces.read(Request(view.replicas.main, shown_samples), ["id"])
        shown_S = shown_S if shown is None else shown["id"].to_numpy()
    tables = token_tables.table_set(
        view.store, view.population, view.c, view.token_settings, shown_S, view.work
    )
    return _requested(view, tables, "score.token_samples must be set, and scored; run lm-mia run")


def extraction_set(view: RecipeView) -> TableSet:
    """Returns the extraction of samples; raises Unavailable unless extract.samples is set."""
    c, replicas = view.extraction, view.replicas
    if not c.samples:
        raise Unavailable(f"{view.name}: extract.samples=0; run lm-mia extract with more")
    target = replicas.targets[0]
    reference = replicas.references[0] if c.reference else None
    settings = {
        "model": str(target),
        "reference": str(reference or ""),
        "step": view.c.step,
        "config": dataclasses.asdict(c),
        "samples": digest(view.pieces.key(Request(replicas.main, DECISIONS["samples.parquet"]))),
    }

    def compute(write: Write) -> Facts:
        if view.extract is None:
            raise Unavailable(f"{view.name}: no samples were extracted yet; run lm-mia extract")
        return view.extract(write)

    return TableSet("extraction", [target, reference] if reference else [target], settings, compute)


@functools.cache
def study_set(study: Study) -> Callable[[RecipeView], TableSet]:
    """Returns the function that returns the tables of a study.

    If the recipe does not allow it, for example because it has too few models, there are none, and the facts have the
    reason.
    """
    source = inspect.getsourcefile(study.compute)
    code = user_code.code_digest(f"{source}:{study.compute.__name__}")

    def make(view: RecipeView) -> TableSet:
        present = models.present_models(view.store, view.c.step)
        settings = {
            "config": decision_settings(view.c),
            "batches": dataclasses.asdict(view.token_settings.batches),
            "models": [*map(str, present)],
        }

        def compute(write: Write) -> Facts:
            try:
                tables = study.compute(view)
            except StudyError as error:
                return {"reason": str(error)}
            for file in study.files:
                if file in tables:
                    write(file, tables[file])
            return {"reason": ""}

        return TableSet(study.name, present, settings, compute, code)

    return make


def target_warnings_set(view: RecipeView) -> TableSet:
    """Returns warnings about the targets; raises Unavailable if none is attacked with references."""
    tables = targets.warnings_set(view.declared.score_table, view.store, view.attacked)
    return _requested(view, tables, "no target is attacked with references")


def _requested(view: RecipeView, tables: TableSet | None, reason: str) -> TableSet:
    if tables is None:
        raise Unavailable(f"{view.name}: {reason}")
    return tables


SETS = {
    models_set: (models.MODELS,),
    sample_losses_set: (models.SAMPLE_LOSSES,),
    SHUFFLED: ("shuffled.csv",),
    JACKKNIFE: ("decision_jackknife.parquet",),
    RESAMPLED: ("resampled_references.csv",),
    REFERENCE_TARGETS: (reference_targets.TABLE, reference_targets.PROBABILITIES),
    more_references_set: (more_references.TABLE,),
    pooling_set: (
        pooling.TABLE,
        pooling.JACKKNIFE,
        vulnerability.TABLE,
        vulnerability.SAMPLE_FPR,
    ),
    zero_run_set: (
        zero_run.TABLE,
        zero_run.CURVES,
        zero_run.SAMPLES,
        zero_run.INTERFERENCE,
        zero_run.EFFECTS,
    ),
    variance_set: (variance.TABLE,),
    tokens_set: token_tables.TABLES,
    extraction_set: (
        "extraction.csv",
        "extraction_curves.csv",
        "extraction_rates.csv",
        "extraction_reference.csv",
    ),
}
"""Function that returns a set -> the file names of its tables."""
WITH_FACTS = {
    "more_references": more_references_set,
    "pooling": pooling_set,
    "zero_run": zero_run_set,
    "variance_components": variance_set,
    "tokens": tokens_set,
    "extraction": extraction_set,
}
"""Sets with a JSON file of their name."""


# Tables that consist of several evaluations


def attacks_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the rates of each attack on the replicas, by number of references."""
    main, points = view.replicas.main, view.once(_points_of_replicas)
    rows = [
        tables.attack_row(
            spec.name, len(spec.references), points[spec], _not_shared(spec, main, view), view.c
        )
        for spec in _specs_with_scores(view)
    ]
    return pd.DataFrame(rows)


def roc_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the mean ROC curve of each attack on the replicas."""
    points = view.once(_points_of_replicas)
    rows = [
        tables.roc_rows(spec.name, len(spec.references), points[spec], view.c)
        for spec in _specs_with_scores(view)
    ]
    return pd.concat(rows)


def attack_flips_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the flip rates under each attack, compared with those under LiRA."""
    main = view.replicas.main
    jackknife = view.table("decision_jackknife.parquet")
    shares, parts = [], {}
    for spec in _complete_specs(view):
        of_attack = attack_flips.lira_flips if spec == main else attack_flips.attack_flips
        table = view.pieces.table(Request(spec, of_attack))
        table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        shares.append(table.assign(not_shared_fraction=_not_shared(spec, main, view)))
        if spec != main:
            parts[spec.name] = view.pieces.table(Request(spec, attack_flips.flip_parts))
    return attack_flips.compare(shares, parts, jackknife)


def flips_json(view: RecipeView) -> dict[str, Any]:
    """Returns what the tables of decisions are of."""
    shares = view.pieces.table(Request(view.replicas.main, DECISIONS["flip_shares.csv"]))
    warnings = view.stored_set(REPLICA_WARNINGS).facts["warnings"]
    left_out = int(shares["left_out"].iloc[0])
    return {**view.replicas.facts(), "left_out": left_out, "warnings": warnings}


def intervals_csv(view: RecipeView) -> pd.DataFrame:
    """Returns bootstrap intervals of AUC and TPRs of each attack with all references."""
    empty = pd.DataFrame(columns=rate_intervals.COLUMNS)
    if not view.c.bootstraps:
        if view.c.replicas:
            raise Unavailable(f"{view.name}: attack.bootstraps=0: there are no intervals")
        _complete_specs(view)
        return empty
    rows = rows_of_attacks(view, rate_intervals.rate_intervals, count=False)
    if not view.c.replicas:
        return rows if len(rows) else empty
    of_references = view.stored_set(REFERENCE_TARGETS)
    if reference_targets.INTERVALS not in of_references.names:
        return rows
    parts = of_references.parts(reference_targets.INTERVALS, view.pieces)
    others = to_frame(pa.concat_tables([*parts]))
    others.insert(0, "attack", "lira_online")
    return pd.concat([rows, others])


def advantage_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the membership advantage of each attack."""
    return rows_of_attacks(view, advantage.membership_advantage)


def audit_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the epsilons of each attack."""
    return rows_of_attacks(view, audit.epsilon_audit)


def audit_curve_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the curve of epsilon of each attack."""
    return rows_of_attacks(view, audit.audit_curve)


def membership_scores(view: RecipeView) -> Iterator[pa.Table]:
    """Returns the scores of each sample, in a column ATTACK/MODEL for each attack and model, and its membership."""
    if view.c.replicas:
        specs: Sequence[AttackSpec] = view.replicas.complete
        members = {"member": view.replicas.targets[:1]}
    else:
        specs = _complete_specs(view)
        models_T = target_models(specs[0])
        shown = models_T[: evaluations.num_stored(len(models_T), len(view.attacked))]
        members = {f"member/{model}": [model] for model in shown}
    return _membership_scores(view, specs, members)


def _membership_scores(
    view: RecipeView, specs: Sequence[AttackSpec], members: Mapping[str, Sequence[ModelSeeds]]
) -> Iterator[pa.Table]:
    models_M = [model for [model] in members.values()]
    member_N = dict(zip(members, _members(view.store, models_M), strict=True))
    low, first_id = 0, view.attacked.first_id
    of_attacks = [view.pieces.parts(Request(s, evaluations.stored_scores)) for s in specs]
    for parts in zip(*of_attacks, strict=True):  # row groups of the same samples
        high = low + len(parts[0])
        columns = {"id": pa.array(first_id + np.arange(low, high))}
        columns |= {name: pa.array(value_N[low:high]) for name, value_N in member_N.items()}
        for spec, part in zip(specs, parts, strict=True):
            columns |= {f"{spec.name}/{name}": part[name] for name in part.column_names}
        yield pa.table(columns)
        low = high


def membership_scores_json(view: RecipeView) -> dict[str, Any]:
    """Returns warnings about the targets."""
    if view.c.replicas:
        raise Unavailable(f"{view.name}: flips.json has the warnings about replicas")
    _complete_specs(view)
    try:
        return {"warnings": view.stored_set(target_warnings_set).facts["warnings"]}
    except Unavailable:
        return {"warnings": []}


def _request_tables(view: RecipeView) -> dict[str, pd.DataFrame]:
    """Returns the tables of the evaluations that figures read; attacks that were left out are not in them."""
    requests = [*view.declared.requests]
    with contextlib.suppress(Unavailable):
        specs = view.replicas.specs
        requests = [Request(s, evaluations.operating_points) for s in specs] + requests
    view.ensure(requests)
    parts: dict[str, list[pd.DataFrame]] = {}
    for request in dict.fromkeys(requests):
        if request.evaluation not in (
            evaluations.operating_points,
            evaluations.halved_rates,
            evaluations.epsilons,
        ):
            continue
        for name, table in _exported(request, view).items():
            table.insert(0, "attack_id", request.spec.id)
            parts.setdefault(name, []).append(table)
    return {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}


def _of_requests(name: str) -> Callable[[RecipeView], pd.DataFrame]:
    def table(view: RecipeView) -> pd.DataFrame:
        found = view.once(_request_tables)
        if name not in found:
            raise Unavailable(f"{view.name}: there are no attacks for {name}")
        return found[name]

    return table


def _of_decisions(evaluation: evaluations.Evaluation) -> Callable[[RecipeView], Iterator[pa.Table]]:
    return lambda view: view.pieces.parts(Request(view.replicas.main, evaluation))


def _of_set(make: Callable[[RecipeView], TableSet], name: str) -> Callable[[RecipeView], Content]:
    def table(view: RecipeView) -> Iterator[pa.Table]:
        stored = view.stored_set(make)
        if name not in stored.names:
            reason = stored.facts.get("reason") or f"its models or settings do not allow {name}"
            raise Unavailable(f"{view.name}: {reason}")
        return stored.parts(name, view.pieces)

    return table


def _facts(make: Callable[[RecipeView], TableSet]) -> Callable[[RecipeView], dict[str, Any]]:
    def facts(view: RecipeView) -> dict[str, Any]:
        stored = view.stored_set(make)
        if not (stored.names or stored.facts.get("reason")):
            raise Unavailable(f"{view.name}: {stored.of.name} has no tables")
        return {**stored.of.settings, **stored.facts}

    return facts


TABLES: Mapping[str, Callable[[RecipeView], Content]] = {
    **{name: _of_decisions(evaluation) for name, evaluation in DECISIONS.items()},
    **{name: _of_set(make, name) for make, names in SETS.items() for name in names},
    **{f"{name}.json": _facts(make) for name, make in WITH_FACTS.items()},
    "attacks.csv": attacks_csv,
    "roc.csv": roc_csv,
    attack_flips.TABLE: attack_flips_csv,
    "flips.json": flips_json,
    rate_intervals.TABLE: intervals_csv,
    advantage.TABLE: advantage_csv,
    audit.TABLE: audit_csv,
    audit.CURVE_TABLE: audit_curve_csv,
    SCORE_TABLE: membership_scores,
    "membership_scores.json": membership_scores_json,
    **{name: _of_requests(name) for name in OF_REQUESTS},
}
"""File name of a table -> the function that returns it."""
WITHOUT_STUDIES = {
    name: TABLES[name] for name in (models.MODELS, models.SAMPLE_LOSSES, *OF_REQUESTS)
}
"""Tables that tell of models and attacks on targets alone."""


def open_view(
    c: config.Config,
    recipe_dir: Path,
    open_population: Callable[[], Population],
    declared: RecipeNeeds,
    progress: Callable[[str, float, float], None] = silent,
    say: Callable[[str], None] = silent,
) -> RecipeView:
    """Opens a recipe; raises UserError if its score store is damaged.

    Args:
      c: config of the recipe.
      recipe_dir: the folder of the recipe.
      open_population: returns its samples.
      declared: what figures read in addition to the tables of decisions.
      progress, say: as `RecipeView`.
    """
    store = open_store(c, recipe_dir)
    return RecipeView(
        recipe_dir.name,
        # Only the statistics that the attacks need must be present.
        dataclasses.replace(
            store, statistics=registry.statistics_of(c.attack.attacks), token_samples=()
        ),
        open_population,
        config.measurable_attack(c),
        open_pieces(c, recipe_dir),
        with_studies(TABLES, declared.studies),
        declared,
        token_tables.TokenSettings(
            c.score.token_samples,
            c.extract.prefix_tokens,
            c.extract.suffix_tokens,
            Batches(c.train.batch_size, c.train.epochs),
        ),
        c.extract,
        progress=progress,
        say=say,
    )


def with_studies(
    tables: Mapping[str, Callable[[RecipeView], Content]], studies: Iterable[Study]
) -> dict[str, Callable[[RecipeView], Content]]:
    """Returns tables and those of studies."""
    of_studies: dict[str, Callable[[RecipeView], Content]] = {}
    for study in studies:
        make = study_set(study)
        of_studies |= {name: _of_set(make, name) for name in study.files}
        of_studies[f"{study.name}.json"] = _facts(make)
    return {**tables, **of_studies}


def write_tables(view: RecipeView, folder: Path, *, keeps_others: bool = False) -> None:
    """Writes all tables of a view, and then removes those that it does not have any more, unless they are kept."""
    listed = view.stored.results.folder / _EXPORTED
    earlier: list[str] = []
    with contextlib.suppress(FileNotFoundError, ValueError):  # it may be damaged
        earlier = json.loads(listed.read_text())
    written, missing = [], []
    for name in view.tables:
        try:
            write(folder, name, view.content(name))
            written.append(name)
        except Unavailable:
            missing.append(name)
    others = {*missing, *earlier} - {*written}
    for path in (*(() if keeps_others else (folder / name for name in others)), *abandoned(folder)):
        path.unlink(missing_ok=True)
    kept = {*written, *(others if keeps_others else ())}
    listed.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(listed, json.dumps(sorted(kept), indent=1) + "\n")


def write_extraction(view: RecipeView, folder: Path) -> None:
    """Writes the tables of the extraction, which are computed if they are missing."""
    for name in (*SETS[extraction_set], "extraction.json"):
        try:
            write(folder, name, view.content(name))
        except Unavailable:
            (folder / name).unlink(missing_ok=True)


def is_report_outdated(workdir: Path) -> bool:
    """Returns whether the report of a workdir is older than an exported table of one of its recipes."""
    tables = [path.stat().st_mtime for path in workdir.glob("recipes/*/tables/*")]
    report = workdir / "report.html"
    return report.exists() and bool(tables) and report.stat().st_mtime < max(tables)


def write(folder: Path, name: str, content: Content) -> None:
    """Writes a table or a JSON file.

    An equal file keeps its time, by which the report is found to be older than the tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with replacing(path) as temporary:
        _write(temporary, path.suffix, content)
        if path.is_file() and filecmp.cmp(path, temporary, shallow=False):
            os.utime(temporary, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))


def _write(path: Path, suffix: str, content: Content) -> None:
    if isinstance(content, Mapping):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return
    if suffix == ".csv":
        if not isinstance(content, pd.DataFrame):
            content = to_frame(pa.concat_tables([*content]))
        path.write_text(content.to_csv(index=False), encoding="utf-8")
        return
    if isinstance(content, pd.DataFrame):
        content.to_parquet(path, index=False)
        return
    first = next(content)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in content:
            writer.write_table(part)


def rows_of_attacks(
    view: RecipeView, evaluation: evaluations.Evaluation, *, count: bool = True
) -> pd.DataFrame:
    """Returns the rows of attacks one after another, after the columns attack and, by default, references."""
    rows = []
    for spec in _complete_specs(view):
        table = view.pieces.table(Request(spec, evaluation))
        if count:
            table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        rows.append(table)
    # A column of an attack without rows has no type.
    return pd.concat([table for table in rows if len(table)] or rows[:1], ignore_index=True)


def _complete_specs(view: RecipeView) -> list[AttackSpec]:
    """Returns the attacks of the config with all references that have scores; raises Unavailable if there are none."""
    if view.c.replicas:
        with_scores = _specs_with_scores(view)
        return [spec for spec in view.replicas.complete if spec in with_scores]
    specs = view.declared.score_table
    stored = [Request(spec, evaluations.stored_scores) for spec in specs]
    view.ensure(stored)
    stored = [request for request in stored if view.pieces.has(request)]
    if not stored:
        raise Unavailable(f"{view.name}: too few models are present to attack a target")
    return [request.spec for request in stored]


def _points_of_replicas(view: RecipeView) -> dict[AttackSpec, stats.OperatingPoints]:
    return {
        spec: evaluations.read_points(
            view.pieces.table(Request(spec, evaluations.operating_points))
        )
        for spec in view.replicas.specs
    }


def _specs_with_scores(view: RecipeView) -> list[AttackSpec]:
    """Returns the attacks under which all replicas have members and non-members with scores."""
    points = view.once(_points_of_replicas)
    return [spec for spec, found in points.items() if _have_scores(found)]


def _members(store: Store, models: Sequence[ModelSeeds]) -> np.ndarray:
    """Returns member_MxN of the attacked samples."""
    [(_, value)] = store.canary_blocks({"member": ("member", models)}, sys.maxsize)
    return value["member"]


def _have_scores(points: stats.OperatingPoints) -> bool:
    """Returns whether all models have members and non-members with scores; with few references, there may be none."""
    return bool(points.members_T.all() and points.nonmembers_T.all())


def _not_shared(spec: AttackSpec, main: AttackSpec, view: RecipeView) -> float:
    """Returns the fraction of the samples that have a score under only one of two attacks."""
    missing_2xN = [
        view.pieces.table(Request(s, evaluations.missing_scores))["missing"].to_numpy()
        for s in (spec, main)
    ]
    return float(np.mean(missing_2xN[0] ^ missing_2xN[1]))


def _exported(request: Request, view: RecipeView) -> dict[str, pd.DataFrame]:
    """Returns the rows of a piece as `_request_tables`; none if there is no piece, because the attack was left out."""
    if not view.pieces.has(request):
        return {}
    table = view.pieces.table(request)
    if not request.parts and request.evaluation is not evaluations.operating_points:
        table = table.assign(part=0)
    if request.evaluation is evaluations.halved_rates:
        return {"target_jackknife.parquet": table}
    if request.evaluation is evaluations.epsilons:
        return {"target_epsilons.parquet": table}
    attack, of_target = request.spec, table.drop_duplicates("target")
    rmia_a = of_target["rmia_a"] if attack.rmia_a is not None else None
    described = {
        "attack": attack.name,
        "references": len(attack.references),
        "reference_models": _format_ranges(attack.references),
        "in_and_out_among": _format_ranges(attack.in_and_out_among) or None,
        "observed": attack.observed,
        "step": attack.step,
        "rmia_samples": attack.rmia_samples or None,
        "rmia_gamma": attack.rmia_gamma or None,
        "rmia_a": rmia_a,
        "rmia_a_is_tuned": None if attack.rmia_a is None else attack.rmia_a == "tuned",
    }
    columns = ("target", "auc", "members", "nonmembers", "left_out")
    described |= {name: of_target[name] for name in columns}
    return {
        "targets.csv": pd.DataFrame(described),
        "target_roc.parquet": table[["target", "on_curve", "fpr", "tpr"]].copy(),
    }


def _format_ranges(numbers: Sequence[int]) -> str:
    """Formats ascending numbers as ranges: (0, 1, 2, 5, 7, 8) -> "0-2 5 7-8"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return " ".join("-".join(map(str, run)) for run in runs)
