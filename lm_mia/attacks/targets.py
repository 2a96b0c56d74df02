"""The tables of attacks on targets: one line per attack and target. They only grow, so nothing is computed twice.

    targets.csv              AUC of every attack on every target
    target_roc.parquet       their true positive rates
    target_scores/ID.parquet the score of every sample under every target, for attacks whose scores are kept
    targets.json             the settings on which all of these depend

T: targets, F: false positive rates, N2: samples of the population (2N).
"""

import dataclasses
import io
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import replacing, write_atomically
from lm_mia.attacks import score_matrix, signals
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.config import ATTACK_STATISTICS, needs
from lm_mia.config.needs import RecipeNeeds, TargetAttack
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store

_TABLE, _ROC, _SETTINGS, _SCORES = (
    "targets.csv",
    "target_roc.parquet",
    "targets.json",
    "target_scores",
)
_GROUP_SAMPLES = 2**17  # of a row group of kept scores
_WRITE_SECONDS = 10  # at least, between two writes; each write replaces whole files


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
    """Computes the requested attacks that the tables lack; returns their numbers as `runner.run` does.

    An attack is left out, with a line for the user, if some of its models were not scored as it needs.

    Args:
      requested: the attacks, and of which of them all scores are kept.
      target_tables: the tables to which they are added.
      pool: computes parts of the samples.
      store, population, c, folder, progress, say: as in `runner.run`.

    Raises:
      UserError: scores are corrupt.
    """
    missing = [
        attack
        for attack in requested.attacks
        if attack not in target_tables
        or (attack.id in requested.keep_scores and not target_tables.has_scores(attack))
    ]
    # Attacks on the same scores share passes over them.
    alike: dict[tuple[object, ...], list[TargetAttack]] = {}
    absent_models: dict[str, set[ModelSeeds]] = {}
    present: dict[str, set[ModelSeeds]] = {}
    for attack in missing:
        needed = _required_store(attack, store)
        if needed.requirement not in present:
            rows = needed.models()
            present[needed.requirement] = {*rows} - {*needed.missing_models(rows, needed.step)}
        models = {*_target_models(attack), *map(subsets.reference, attack.references)}
        if absent := models - present[needed.requirement]:
            absent_models.setdefault(needed.requirement, set()).update(absent)
        else:
            same = (
                attack.targets_are_replicas,
                attack.targets,
                attack.step,
                attack.observed,
                needed.statistics,
            )
            alike.setdefault(same, []).append(attack)
    left_out = len(missing) - sum(map(len, alike.values()))
    computed, written_seconds = 0, time.monotonic()
    for some in alike.values():
        first, before = some[0], computed
        source = signals.open_inputs(
            _required_store(first, store),
            population,
            _target_models(first),
            [*map(subsets.reference, sorted({n for attack in some for n in attack.references}))],
            (ATTACK_STATISTICS[first.attack],) if first.attack in ATTACK_STATISTICS else (),
            first.observed,
        )

        def show(done: float, before: int = before) -> None:
            progress("attack targets", before + done, len(missing))

        for attack, _, file in score_matrix.score_attacks(some, source, c, folder, pool, show):
            computed += 1
            if attack.id in requested.keep_scores:
                target_tables.write_scores(attack, source.targets, file)
            if attack not in target_tables:
                # Attacks without a group of references only show how much the AUC and the TPRs vary.
                on_curve = attack.group_left_out is None
                rates = score_matrix.evaluation_fprs(c, source.target_member_TxN2[0])
                fprs = rates if on_curve else rates[: len(c.fprs)]
                points = score_matrix.operating_points(file, source.target_member_TxN2, fprs, pool)
                target_tables.add(attack, source.targets, points, len(c.fprs))
            if time.monotonic() - written_seconds > _WRITE_SECONDS:
                target_tables.write()
                written_seconds = time.monotonic()
    target_tables.write()
    if missing:
        progress("attack targets", len(missing), len(missing))
    for where, absent in absent_models.items():
        say(
            f"{len(absent)} models are not scored{where}: attacks that need these scores were left out; run `lm-mia "
            "run` first"
        )
    return {"requested": len(requested.attacks), "computed": computed, "left_out": left_out}


def _target_models(attack: TargetAttack) -> list[ModelSeeds]:
    return [
        *map(subsets.replica if attack.targets_are_replicas else subsets.reference, attack.targets)
    ]


def _required_store(attack: TargetAttack, store: Store) -> Store:
    """The scores that an attack needs."""
    names = [ATTACK_STATISTICS[attack.attack]] if attack.attack in ATTACK_STATISTICS else []
    names += [attack.observed] if attack.observed != "loss" else []
    return dataclasses.replace(store, statistics=tuple(names), token_samples=(), step=attack.step)


class TargetTables:
    """The tables of one recipe: what is in them, and additions, which are on disk after `write`.

    Tables that are damaged, or were made with other settings or by an earlier version, are deleted when this object is
    created.
    """

    def __init__(self, folder: Path, c: config.Attack) -> None:
        self._folder, self._settings = folder, needs.attack_settings(c)
        self._lines, self._ids, self._roc = self._read()
        self._new_roc: list[pd.DataFrame] = []

    def __contains__(self, attack: TargetAttack) -> bool:
        return attack.id in self._ids

    def has_scores(self, attack: TargetAttack) -> bool:
        """Returns whether the tables have the attack and its scores of all samples."""
        try:
            pq.read_schema(self._scores_file(attack))
        except (OSError, ValueError):  # missing or damaged
            return False
        return attack in self

    def add(
        self,
        attack: TargetAttack,
        targets: Sequence[ModelSeeds],
        points: stats.OperatingPoints,
        num_fprs: int,
    ) -> None:
        """Adds the results of an attack.

        Args:
          attack: an attack that is not in the tables yet.
          targets: the models that were attacked.
          points: their operating points.
          fprs: how many of the points are at attack.fprs; the points after them are those of the ROC curve.
        """
        names = [str(row) for row in targets]
        about = {
            "attack_id": attack.id,
            "attack": attack.attack,
            "references": len(attack.references),
            "reference_models": _format_ranges(attack.references),
            "group_left_out": attack.group_left_out,
            "observed": attack.observed,
            "step": attack.step,
            "rmia_samples": attack.rmia_samples or None,
            "rmia_gamma": attack.rmia_gamma or None,
        }
        found = pd.DataFrame({"target": names, "auc": points.auc_T})
        found = found.assign(members=points.members_T, nonmembers=points.nonmembers_T)
        found = found.assign(left_out=points.left_out_T, **about)[[*_COLUMNS]]
        self._lines += found.to_csv(index=False, header=False)
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

    def write(self) -> None:
        """Writes what was added since the last call."""
        if not self._new_roc:
            return
        # pandas would take the types of empty columns into account
        parts = [self._roc, *self._new_roc] if len(self._roc) else self._new_roc
        self._roc, self._new_roc = pd.concat(parts, ignore_index=True), []
        # targets.csv is written last, since an attack is present if it is listed there.
        write_atomically(self._folder / _SETTINGS, json.dumps(self._settings, indent=1) + "\n")
        with replacing(self._folder / _ROC) as temporary:
            self._roc.to_parquet(temporary, index=False)
        write_atomically(self._folder / _TABLE, self._lines)

    def write_scores(
        self, attack: TargetAttack, targets: Sequence[ModelSeeds], file: MembershipScoreFile
    ) -> None:
        """Writes target_scores/ID.parquet: the sample ids, and one float64 column of scores per target."""
        path = self._scores_file(attack)
        path.parent.mkdir(exist_ok=True)
        schema = pa.schema([("id", pa.int64()), *((str(row), pa.float64()) for row in targets)])
        with replacing(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for low in range(0, file.num_samples, _GROUP_SAMPLES):
                at = slice(low, min(low + _GROUP_SAMPLES, file.num_samples))
                columns = [np.arange(at.start, at.stop), *file.read_samples(at)]
                writer.write_table(pa.table([pa.array(c) for c in columns], schema=schema))

    def _scores_file(self, attack: TargetAttack) -> Path:
        return self._folder / _SCORES / f"{attack.id}.parquet"

    def _read(self) -> tuple[str, set[str], pd.DataFrame]:
        """Returns targets.csv, the ids in it, and target_roc.parquet, all empty if they are to be begun anew."""
        header, key = ",".join(_COLUMNS) + "\n", ["attack_id", "target"]
        try:
            if json.loads((self._folder / _SETTINGS).read_text()) == self._settings:
                roc = pd.read_parquet(self._folder / _ROC, columns=[*_ROC_COLUMNS])
                lines = (self._folder / _TABLE).read_text(encoding="utf-8")
                listed = pd.read_csv(io.StringIO(lines), usecols=key)
                roc = roc[roc["attack_id"].isin(listed["attack_id"])]
                same = {*listed[key].itertuples(index=False, name=None)} == {
                    *roc[key].drop_duplicates().itertuples(index=False, name=None)
                }
                if same and lines.startswith(header) and lines.endswith("\n"):
                    return lines, set(listed["attack_id"]), roc
        except (OSError, ValueError, KeyError):
            pass
        # Removed at once: a reader must not combine old results with the settings of new ones.
        for path in (*(self._folder / _SCORES).glob("*"), self._folder / _TABLE):
            path.unlink(missing_ok=True)
        return header, set(), pd.DataFrame(columns=[*_ROC_COLUMNS])


_COLUMNS = (
    "attack_id",
    "attack",
    "references",
    "reference_models",
    "group_left_out",
    "observed",
    "step",
    "rmia_samples",
    "rmia_gamma",
    "target",
    "auc",
    "members",
    "nonmembers",
    "left_out",
)
_ROC_COLUMNS = ("attack_id", "target", "on_curve", "fpr", "tpr")


def _format_ranges(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 5, 7, 8) -> "0-2 5 7-8"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return " ".join("-".join(map(str, run)) for run in runs)
