"""Attacks on targets, and their tables with one row per attack and target.

Rows are only added to the tables, so no attack is computed twice.

    targets.csv              AUC of every attack on every target
    target_roc.parquet       their true positive rates
    target_jackknife.parquet AUC and true positive rates on halves of the samples, for the attacks that need them
    target_epsilons.parquet  empirical epsilon, its one-run bound and balanced accuracy, for the attacks that need them
    target_scores/ID.parquet membership scores of every sample under every target, for the attacks that keep them, with
                             their digest in target_scores/ID.json
    targets.json             the settings on which all of these depend, and the digests of the tables

membership_scores.parquet, the scores of every sample from all attacks of the config, is written as a whole, and so are
advantage.csv, their membership advantage, intervals.csv, the intervals of their AUC and TPRs, and audit.csv and
audit_curve.csv, what they show about epsilon. membership_scores.json marks these as complete.

T: targets, F: false positive rates, H: halves of the samples, N2: samples of the population (2N).
"""

import contextlib
import dataclasses
import functools
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import (
    MEMBERSHIP_SCORES_JSON,
    TARGET_SCORES,
    TARGETS_JSON,
    is_current,
    replacing,
    write_completion_marker,
    write_csv,
)
from lm_mia.attacks import (
    advantage,
    audit,
    rate_intervals,
    registry,
    score_matrix,
    spec,
    target_epsilons,
    target_warnings,
)
from lm_mia.attacks.designs import ModelDesign, model_design
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.models import present_models
from lm_mia.attacks.registry import FittedAttack
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.attacks.score_table import TABLE as SCORE_TABLE
from lm_mia.attacks.score_table import MembershipScoreTable
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import raise_failed_read
from lm_mia.store.store import Store

_TABLE, _ROC, _JACKKNIFE, _EPSILONS, _SCORES = (
    "targets.csv",
    "target_roc.parquet",
    "target_jackknife.parquet",
    "target_epsilons.parquet",
    TARGET_SCORES,
)
_GROUP_SAMPLES = 2**17  # number of samples per row group of target_scores
_WRITE_SECONDS = 10  # minimum time between two writes, since each write replaces whole files


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    requested: RecipeNeeds,
    target_tables: "TargetTables",
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> dict[str, int]:
    """Computes the requested attacks that are not in the tables; returns their numbers as `runner.run`.

    An attack is left out, with a line for the user, if some of its models are not scored as it requires.

    Args:
      requested: the attacks, those of them whose membership scores are kept, those that are also evaluated on halves
        of the samples, and those in the table of membership scores.
      target_tables: the tables to which the attacks are added.
      pool: threads that compute parts of the samples.
      store, population, c, folder, progress, say: as in `runner.run`.

    Raises:
      UserError: if scores are corrupt.
    """
    in_score_table, identity = _missing_in_score_table(requested.score_table, store, c, folder)
    missing = [
        attack
        for attack in requested.attacks
        if attack not in target_tables
        or attack in in_score_table
        or (attack.id in requested.keep_scores and not target_tables.has_scores(attack))
        or (attack.id in requested.jackknife and not target_tables.has_jackknife(attack))
        or (attack.id in requested.epsilons and not target_tables.has_epsilons(attack))
    ]
    groups, missing_models = _group_by_inputs(missing, store)
    group_N2 = stats.sample_groups(population.document_N)
    design = model_design(store, present_models(store)) if groups else None
    computed, written_seconds = 0, time.monotonic()

    def show(before: int, done: float) -> None:
        progress("attack targets", before + done, len(missing))

    with _open_score_table(in_score_table, folder, population) as score_table:
        members: dict[str, np.ndarray] = {}
        advantage_rows: dict[AttackSpec, list[dict[str, Any]]] = {}
        audits: dict[AttackSpec, audit.Audit] = {}
        intervals: dict[AttackSpec, pd.DataFrame] = {}
        warnings: list[str] | None = None
        for same in groups:
            inputs = _open_inputs(same, store, population, design)
            shown = [a for a in same if a in in_score_table and a.references]
            if shown and warnings is None:  # attacks in the score table have the same targets
                used = max((a.references for a in shown), key=len)
                of_shown = (i for i, m in enumerate(inputs.references) if m.subset_seed in used)
                warnings = target_warnings.warnings(inputs.with_references(of_shown), population)
            for attack, fitted, file in score_matrix.score_attacks(
                same, inputs, c, folder, pool, functools.partial(show, computed)
            ):
                computed += 1
                if attack in in_score_table and score_table:
                    score_table.add(attack.attack, file, pool)
                    advantage_rows[attack] = advantage.advantage_rows(
                        attack.attack,
                        len(attack.references),
                        file,
                        inputs.target_member_TxN2,
                        c.priors,
                        pool,
                        document_N2=population.document_N,
                        has_split_documents=population.has_split_documents,
                    )
                    cluster_N2 = population.document_N if population.has_split_documents else None
                    audits[attack] = audit.audit(
                        attack.attack,
                        len(attack.references),
                        file.read_target(0),
                        inputs.target_member_TxN2[0],
                        store.design,
                        c,
                        cluster_N2,
                    )
                    if (estimates := audits[attack].intervals) is not None:
                        intervals[attack] = _intervals(
                            attack, inputs, file, cluster_N2, group_N2, estimates, c, pool
                        )
                    members = {
                        f"member/{target}": member_N2
                        for target, member_N2 in zip(
                            score_table.targets, inputs.target_member_TxN2, strict=False
                        )
                    }
                if attack.id in requested.keep_scores:
                    member_TxN2 = inputs.target_member_TxN2
                    target_tables.write_scores(
                        attack, inputs.targets, member_TxN2, file, population.first_id
                    )
                if attack not in target_tables:
                    # Attacks with a part of the references are computed only for variances of the AUC and the TPRs,
                    # so they need no ROC curve.
                    has_curve = attack.reference_part is None
                    curve = score_matrix.curve_fprs(c, inputs.target_member_TxN2[0])
                    points = score_matrix.operating_points(
                        file, inputs.target_member_TxN2, c.fprs, pool, curve if has_curve else ()
                    )
                    target_tables.add(attack, inputs.targets, points, len(c.fprs), fitted)
                if attack.id in requested.jackknife and not target_tables.has_jackknife(attack):
                    member_TxN2 = inputs.target_member_TxN2
                    rates = score_matrix.rates_of_halves(file, member_TxN2, group_N2, c.fprs, pool)
                    target_tables.add_jackknife(attack, inputs.targets, *rates, c.fprs)
                if attack.id in requested.epsilons and not target_tables.has_epsilons(attack):
                    names, member_TxN2 = [*map(str, inputs.targets)], inputs.target_member_TxN2
                    is_audited = attack.reference_part is None and store.design != "given"
                    table = target_epsilons.epsilons(
                        file, names, member_TxN2, group_N2, c, is_audited, pool
                    )
                    target_tables.add_epsilons(attack, table)
                if time.monotonic() - written_seconds > _WRITE_SECONDS:
                    target_tables.write()
                    written_seconds = time.monotonic()
        if score_table:
            (folder / MEMBERSHIP_SCORES_JSON.name).unlink(missing_ok=True)
            rows = [row for attack in in_score_table for row in advantage_rows.get(attack, [])]
            write_csv(folder / advantage.TABLE, pd.DataFrame(rows))
            in_order = [audits[attack] for attack in in_score_table if attack in audits]
            audit.write(folder, in_order)
            tables = [intervals[attack] for attack in in_score_table if attack in intervals]
            write_csv(
                folder / rate_intervals.TABLE,
                pd.concat(tables) if tables else pd.DataFrame(columns=rate_intervals.COLUMNS),
            )
            audit.say_if_delta_is_large(c, len(population), store.design, say)
            score_table.write_table(folder / SCORE_TABLE, members)
            written = [SCORE_TABLE, advantage.TABLE, rate_intervals.TABLE, *audit.TABLES]
            description = identity | {"warnings": warnings or []}
            write_completion_marker(folder / MEMBERSHIP_SCORES_JSON.name, description, written)
    target_tables.write()
    if missing:
        progress("attack targets", len(missing), len(missing))
    for requirement, models in missing_models.items():
        say(
            f"{len(models)} models are not scored{requirement}: attacks that need these scores are left out; run "
            "`lm-mia run` first"
        )
    left_out = len(missing) - sum(map(len, groups))
    return {"requested": len(requested.attacks), "computed": computed, "left_out": left_out}


def _intervals(
    attack: AttackSpec,
    inputs: AttackInputs,
    file: MembershipScoreFile,
    cluster_N2: np.ndarray | None,
    group_N2: np.ndarray,
    estimates: stats.EpsilonIntervals,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Returns the rows of intervals.csv of an attack."""
    member_TxN2, name = inputs.target_member_TxN2, attack.attack
    first = rate_intervals.of_first_model(
        name, "target", file.read_target(0), member_TxN2[0], cluster_N2, estimates, c
    )
    if len(member_TxN2) == 1:
        return first
    points = score_matrix.operating_points(file, member_TxN2, c.fprs, pool)
    mean = rate_intervals.of_mean(name, "target", file, member_TxN2, points, group_N2, c, pool)
    return pd.concat([first, mean])


def _missing_in_score_table(
    attacks: Sequence[AttackSpec], store: Store, c: config.Attack, folder: Path
) -> tuple[list[AttackSpec], dict[str, Any]]:
    """Returns the attacks for new tables of membership scores and of advantages, and what determines these tables.

    These are the attacks whose models are scored as they require; none if the tables already have exactly these.
    """
    groups, _ = _group_by_inputs(attacks, store)
    available = [attack for attack in attacks if any(attack in same for same in groups)]
    ids = [attack.id for attack in available]
    audited = {
        "delta": c.delta,
        "alpha": c.alpha,
        "bootstraps": c.bootstraps,
        "design": store.design,
    }
    identity = {
        "settings": spec.attack_settings(c),
        "attack_ids": ids,
        "priors": list(c.priors),
        "audit": audited,
    }
    is_complete = is_current(folder / MEMBERSHIP_SCORES_JSON.name, identity)
    return ([] if is_complete else available), identity


def _open_score_table(
    attacks: Sequence[AttackSpec], folder: Path, population: Population
) -> contextlib.AbstractContextManager[MembershipScoreTable | None]:
    """Returns the table of these attacks as a context manager; of None without attacks."""
    if not attacks:
        return contextlib.nullcontext()
    names, models = [attack.attack for attack in attacks], _target_models(attacks[0])
    return MembershipScoreTable(folder, names, models, len(population), population.first_id)


def _group_by_inputs(
    attacks: Sequence[AttackSpec], store: Store
) -> tuple[list[list[AttackSpec]], dict[str, set[ModelSeeds]]]:
    """Groups attacks that read the same scores, so that they share passes over the store.

    Returns:
      The groups, without attacks whose models are not all present, and {requirement: its missing models}.
    """
    groups: dict[tuple[object, ...], list[AttackSpec]] = {}
    present: dict[str, set[ModelSeeds]] = {}
    missing: dict[str, set[ModelSeeds]] = {}
    for attack in attacks:
        required = _required_store(attack, store)
        if required.requirement not in present:
            stored_models = required.models()
            absent = required.missing_models(stored_models, required.step)
            present[required.requirement] = {*stored_models} - {*absent}
        used = *attack.references, *attack.in_and_out_among
        models = {*_target_models(attack), *map(subsets.reference, used)}
        if absent := models - present[required.requirement]:
            missing.setdefault(required.requirement, set()).update(absent)
        else:
            key = (
                attack.targets_are_replicas,
                attack.targets,
                attack.step,
                attack.observed,
                required.statistics,
            )
            groups.setdefault(key, []).append(attack)
    return [*groups.values()], missing


def _open_inputs(
    attacks: Sequence[AttackSpec],
    store: Store,
    population: Population,
    design: ModelDesign | None,
) -> AttackInputs:
    """Returns the inputs of attacks that read the same scores, with the references of all of them."""
    first = attacks[0]
    references = sorted({n for a in attacks for n in (*a.references, *a.in_and_out_among)})
    return open_inputs(
        _required_store(first, store),
        population,
        _target_models(first),
        [*map(subsets.reference, references)],
        registry.statistics_of([first.attack]),
        first.observed,
        design,
    )


def _target_models(attack: AttackSpec) -> list[ModelSeeds]:
    return [
        *map(subsets.replica if attack.targets_are_replicas else subsets.reference, attack.targets)
    ]


def _required_store(attack: AttackSpec, store: Store) -> Store:
    """Returns the store with the requirements of an attack."""
    names = registry.statistics_of([attack.attack])
    names += (attack.observed,) if attack.observed != "loss" else ()
    return dataclasses.replace(store, statistics=names, token_samples=(), step=attack.step)


class TargetTables:
    """The tables of one recipe; additions are on disk after `write`.

    Tables that are damaged or were made with other settings or by an earlier version are deleted at construction.
    """

    def __init__(self, folder: Path, c: config.Attack) -> None:
        self._folder, self._settings = folder, spec.attack_settings(c)
        self._lines, self._ids, self._roc, self._jackknife = self._read()
        self._epsilons = self._read_epsilons()
        self._jackknife_ids = {*self._jackknife["attack_id"]}
        self._epsilon_ids = {*self._epsilons["attack_id"]}
        self._new_roc: list[pd.DataFrame] = []
        self._new_jackknife: list[pd.DataFrame] = []
        self._new_epsilons: list[pd.DataFrame] = []

    def __contains__(self, attack: AttackSpec) -> bool:
        return attack.id in self._ids

    def has_jackknife(self, attack: AttackSpec) -> bool:
        """Returns whether the tables have the attack and its rates on halves of the samples."""
        return attack in self and attack.id in self._jackknife_ids

    def has_scores(self, attack: AttackSpec) -> bool:
        """Returns whether the tables have the attack and its scores of all samples."""
        return attack in self and is_current(self._scores_file(attack).with_suffix(".json"), {})

    def add(
        self,
        attack: AttackSpec,
        targets: Sequence[ModelSeeds],
        points: stats.OperatingPoints,
        num_fprs: int,
        fitted: FittedAttack,
    ) -> None:
        """Adds the results of an attack.

        Args:
          attack: an attack that is not in the tables yet.
          targets: the models that were attacked.
          points: their operating points, at attack.fprs first and then at the rates of the ROC curve.
          num_fprs: number of rates of attack.fprs.
          fitted: the attack, for the parameter a that offline RMIA used, which is NaN if it could not be tuned.
        """
        names = [str(model) for model in targets]
        description = {
            "attack_id": attack.id,
            "attack": attack.attack,
            "references": len(attack.references),
            "reference_models": _format_ranges(attack.references),
            "reference_part": attack.reference_part,
            "in_and_out_among": _format_ranges(attack.in_and_out_among) or None,
            "observed": attack.observed,
            "step": attack.step,
            "rmia_samples": attack.rmia_samples or None,
            "rmia_gamma": attack.rmia_gamma or None,
            "rmia_a": None if attack.rmia_a is None else fitted.fit.a,
            "rmia_a_is_tuned": None if attack.rmia_a is None else attack.rmia_a == "tuned",
        }
        description |= {"target": names, "auc": points.auc_T, "members": points.members_T}
        description |= {"nonmembers": points.nonmembers_T, "left_out": points.left_out_T}
        assert [*description] == [*_COLUMNS]
        self._lines += pd.DataFrame(description).to_csv(index=False, header=False)
        rates = len(points.fpr_F)
        self._new_roc.append(
            pd.DataFrame(
                {
                    "attack_id": attack.id,
                    "target": np.repeat(names, rates),
                    "on_curve": np.tile(np.arange(rates) >= num_fprs, len(names)),
                    "fpr": np.tile(points.fpr_F, len(names)),
                    "tpr": points.tpr_TxF.ravel(),
                }
            )
        )
        self._ids.add(attack.id)

    def add_jackknife(
        self,
        attack: AttackSpec,
        targets: Sequence[ModelSeeds],
        auc_TxH: np.ndarray,
        tpr_TxHxF: np.ndarray,
        fprs: Sequence[float],
    ) -> None:
        """Adds the rates of an attack on halves of the samples, the result of `stats.rates_of_halves`."""
        names, halves = [str(model) for model in targets], auc_TxH.shape[1]
        table = {
            "attack_id": attack.id,
            "target": np.repeat(names, halves),
            "sample_half": np.tile(np.arange(halves), len(names)),
            "auc": auc_TxH.ravel(),
        }
        table |= {f"tpr_at_{fpr:g}": tpr_TxHxF[..., f].ravel() for f, fpr in enumerate(fprs)}
        self._new_jackknife.append(pd.DataFrame(table))
        self._jackknife_ids.add(attack.id)

    def has_epsilons(self, attack: AttackSpec) -> bool:
        """Returns whether the tables have the attack and its epsilons."""
        return attack in self and attack.id in self._epsilon_ids

    def add_epsilons(self, attack: AttackSpec, table: pd.DataFrame) -> None:
        """Adds the result of `target_epsilons.epsilons` for an attack."""
        self._new_epsilons.append(table.assign(attack_id=attack.id))
        self._epsilon_ids.add(attack.id)

    def write(self) -> None:
        """Writes the attacks that were added since the last call."""
        if not (self._new_roc or self._new_jackknife or self._new_epsilons):
            return
        self._roc, self._new_roc = _concatenate(self._roc, self._new_roc), []
        self._jackknife = _concatenate(self._jackknife, self._new_jackknife)
        self._epsilons = _concatenate(self._epsilons, self._new_epsilons)
        self._new_jackknife, self._new_epsilons = [], []
        tables = {_ROC: self._roc, _JACKKNIFE: self._jackknife}
        tables |= {_EPSILONS: self._epsilons} if len(self._epsilons) else {}
        with contextlib.ExitStack() as stack:
            # targets.csv is replaced last, since an attack counts as present if it is listed there. After a kill at any
            # moment, targets.json describes the old and the new tables.
            new_files = {
                name: stack.enter_context(replacing(self._folder / name))
                for name in (_TABLE, *tables)
            }
            new_files[_TABLE].write_text(self._lines, encoding="utf-8")
            for name, table in tables.items():
                table.to_parquet(new_files[name], index=False)
            self._write_marker(new_files)
        self._write_marker()

    def _write_marker(self, new_files: Mapping[str, Path] = MappingProxyType({})) -> None:
        """Writes targets.json; `new_files` are about to replace the tables of these names."""
        names = [n for n in (_TABLE, _ROC, _JACKKNIFE, _EPSILONS) if (self._folder / n).is_file()]
        settings = {"settings": self._settings}
        write_completion_marker(self._folder / TARGETS_JSON.name, settings, names, new_files)

    def write_scores(
        self,
        attack: AttackSpec,
        targets: Sequence[ModelSeeds],
        member_TxN2: np.ndarray,
        file: MembershipScoreFile,
        first_id: int,
    ) -> None:
        """Writes target_scores/ID.parquet: sample ids, and for each target its membership scores and its members.

        Attacks with a part of the references keep the scores of the first samples only.
        """
        path, samples = self._scores_file(attack), file.num_samples
        if attack.reference_part is not None:
            samples = min(samples, spec.JACKKNIFE_SAMPLES)
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        fields = [("id", pa.int64()), *((str(model), pa.float64()) for model in targets)]
        schema = pa.schema([*fields, *((f"member/{model}", pa.bool_()) for model in targets)])
        with replacing(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for low in range(0, samples, _GROUP_SAMPLES):
                at = slice(low, min(low + _GROUP_SAMPLES, samples))
                columns = [
                    first_id + np.arange(at.start, at.stop),
                    *file.read_samples(at),
                    *member_TxN2[:, at],
                ]
                writer.write_table(pa.table([pa.array(c) for c in columns], schema=schema))
        write_completion_marker(path.with_suffix(".json"), {}, [path.name])

    def _scores_file(self, attack: AttackSpec) -> Path:
        return self._folder / _SCORES / f"{attack.id}.parquet"

    def _read(self) -> tuple[str, set[str], pd.DataFrame, pd.DataFrame]:
        """Returns targets.csv, the attack ids in it, and the other two tables; empty if they cannot be continued."""
        header, key = ",".join(_COLUMNS) + "\n", ["attack_id", "target"]
        marker = self._folder / TARGETS_JSON.name
        try:
            if is_current(marker, {"settings": self._settings}):
                tables = json.loads(marker.read_text(encoding="utf-8"))["tables"]
                if any(isinstance(digest, list) for digest in tables.values()):
                    self._write_marker()  # a command was killed while it replaced the tables
                roc = pd.read_parquet(self._folder / _ROC, columns=[*_ROC_COLUMNS])
                lines = (self._folder / _TABLE).read_text(encoding="utf-8")
                listed = pd.read_csv(io.StringIO(lines), usecols=key)
                roc = roc[roc["attack_id"].isin(listed["attack_id"])]
                same = {*listed[key].itertuples(index=False, name=None)} == {
                    *roc[key].drop_duplicates().itertuples(index=False, name=None)
                }
                if same and lines.startswith(header) and lines.endswith("\n"):
                    ids = set(listed["attack_id"])
                    jackknife = pd.read_parquet(self._folder / _JACKKNIFE)
                    return lines, ids, roc, jackknife[jackknife["attack_id"].isin(ids)]
        except (OSError, ValueError, KeyError) as error:
            raise_failed_read(error, self._folder)
        # Deleted immediately, so that no reader combines old results with new settings.
        for path in (marker, *(self._folder / _SCORES).glob("*"), self._folder / _TABLE):
            path.unlink(missing_ok=True)
        rates = [f"tpr_at_{fpr:g}" for fpr in self._settings["fprs"]]
        jackknife = pd.DataFrame(columns=["attack_id", "target", "sample_half", "auc", *rates])
        return header, set(), pd.DataFrame(columns=[*_ROC_COLUMNS]), jackknife

    def _read_epsilons(self) -> pd.DataFrame:
        """Returns the epsilons of the attacks in targets.csv; none if the table is missing or damaged."""
        columns = ["attack_id", *target_epsilons.COLUMNS]
        try:
            table = pd.read_parquet(self._folder / _EPSILONS, columns=columns)
        except (OSError, ValueError, KeyError) as error:
            raise_failed_read(error, self._folder / _EPSILONS)
            table = pd.DataFrame(columns=columns)
        return table[table["attack_id"].isin(self._ids)]


_COLUMNS = (
    "attack_id",
    "attack",
    "references",
    "reference_models",
    "reference_part",
    "in_and_out_among",
    "observed",
    "step",
    "rmia_samples",
    "rmia_gamma",
    "rmia_a",
    "rmia_a_is_tuned",
    "target",
    "auc",
    "members",
    "nonmembers",
    "left_out",
)
_ROC_COLUMNS = ("attack_id", "target", "on_curve", "fpr", "tpr")


def _concatenate(table: pd.DataFrame, added: list[pd.DataFrame]) -> pd.DataFrame:
    # An empty table is left out, since pandas would take the types of its columns into account.
    return pd.concat([table, *added] if len(table) else added or [table], ignore_index=True)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Formats ascending numbers as ranges: (0, 1, 2, 5, 7, 8) -> "0-2 5 7-8"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return " ".join("-".join(map(str, run)) for run in runs)
