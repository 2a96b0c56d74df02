"""The tables of attacks on targets: one line per attack and target. They only grow, so nothing is computed twice.

    targets.csv              AUC of every attack on every target
    target_roc.parquet       their true positive rates
    target_scores/ID.parquet the score of every sample under every target, for attacks whose scores are kept
    targets.json             the settings on which all of these depend

T: targets, F: false positive rates, N2: samples of the population (2N).
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config
from lm_mia.atomic import replacing, write_atomically, write_csv
from lm_mia.attacks.score_matrix import ScoreFile
from lm_mia.config import needs
from lm_mia.config.needs import TargetAttack
from lm_mia.data.subsets import Row
from lm_mia.stats.roc import OperatingPoints

_TABLE, _ROC, _SETTINGS, _SCORES = (
    "targets.csv",
    "target_roc.parquet",
    "targets.json",
    "target_scores",
)
_GROUP_SAMPLES = 2**17  # of a row group of kept scores


class TargetTables:
    """The tables of one recipe: what is in them, and additions, which are on disk after `write`.

    Tables that were made with other settings, by an earlier version, or that cannot be read, are begun anew.
    """

    def __init__(self, folder: Path, c: config.Attack) -> None:
        self._folder, self._settings = folder, needs.settings(c)
        self._targets, self._roc = self._read()
        self._ids = set(self._targets["attack_id"])
        self._new: list[pd.DataFrame] = []
        self._new_roc: list[pd.DataFrame] = []

    def __contains__(self, attack: TargetAttack) -> bool:
        return attack.id in self._ids

    def has_scores(self, attack: TargetAttack) -> bool:
        """Returns whether the scores of all samples are kept of an attack."""
        return attack in self and self._scores_file(attack).is_file()

    def add(
        self, attack: TargetAttack, targets: Sequence[Row], points: OperatingPoints, fprs: int
    ) -> None:
        """Adds the results of an attack.

        Args:
          attack: which is not in the tables yet.
          targets: the models that were attacked.
          points: their operating points.
          fprs: how many of the points are at attack.fprs; the points after them are those of the ROC curve.
        """
        names = [str(row) for row in targets]
        about = {
            "attack_id": attack.id,
            "attack": attack.attack,
            "references": len(attack.references),
            "reference_models": _ranges(attack.references),
            "group_left_out": attack.group_left_out,
            "observed": attack.observed,
            "step": attack.step,
            "rmia_samples": attack.rmia_samples or None,
            "rmia_gamma": attack.rmia_gamma or None,
        }
        found = pd.DataFrame({"target": names, "auc": points.auc_T})
        found = found.assign(members=points.members_T, nonmembers=points.nonmembers_T)
        self._new.append(found.assign(left_out=points.left_out_T, **about)[[*_COLUMNS]])
        rates = len(points.fpr_F)
        self._new_roc.append(
            pd.DataFrame(
                {
                    "attack_id": attack.id,
                    "target": np.repeat(names, rates),
                    "on_curve": np.tile(np.arange(rates) >= fprs, len(names)),
                    "fpr": np.tile(points.fpr_F, len(names)),
                    "tpr": points.tpr_TxF.ravel(),
                }
            )
        )
        self._ids.add(attack.id)

    def write(self) -> None:
        """Writes what was added since the last call."""
        if not self._new:
            return
        self._targets = _joined(self._targets, self._new)
        self._roc = _joined(self._roc, self._new_roc)
        # targets.csv is written last, since an attack is present if it is listed there.
        write_atomically(self._folder / _SETTINGS, json.dumps(self._settings, indent=1) + "\n")
        with replacing(self._folder / _ROC) as temporary:
            self._roc.to_parquet(temporary, index=False)
        write_csv(self._folder / _TABLE, self._targets)
        self._new, self._new_roc = [], []

    def write_scores(self, attack: TargetAttack, targets: Sequence[Row], file: ScoreFile) -> None:
        """Keeps the scores of all samples: a column per target, and the samples' ids."""
        path = self._scores_file(attack)
        path.parent.mkdir(exist_ok=True)
        schema = pa.schema([("id", pa.int64()), *((str(row), pa.float64()) for row in targets)])
        with replacing(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for low in range(0, file.samples, _GROUP_SAMPLES):
                at = slice(low, min(low + _GROUP_SAMPLES, file.samples))
                columns = [np.arange(at.start, at.stop), *file.block(at)]
                writer.write_table(pa.table([pa.array(c) for c in columns], schema=schema))

    def _scores_file(self, attack: TargetAttack) -> Path:
        return self._folder / _SCORES / f"{attack.id}.parquet"

    def _read(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Returns (targets.csv, target_roc.parquet), both empty if they are to be begun anew."""
        nothing = pd.DataFrame(columns=[*_COLUMNS]), pd.DataFrame(columns=[*_ROC_COLUMNS])
        try:
            if json.loads((self._folder / _SETTINGS).read_text()) == self._settings:
                roc = pd.read_parquet(self._folder / _ROC)
                targets = pd.read_csv(self._folder / _TABLE, engine="pyarrow")
                complete = targets["attack_id"].isin(roc["attack_id"]).all()
                if complete and [*targets] == [*_COLUMNS] and [*roc] == [*_ROC_COLUMNS]:
                    return targets, roc[roc["attack_id"].isin(targets["attack_id"])]
        except (OSError, ValueError, KeyError):
            pass
        # Removed at once: a reader must not combine old results with the settings of new ones.
        for path in (*(self._folder / _SCORES).glob("*"), self._folder / _TABLE):
            path.unlink(missing_ok=True)
        return nothing


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


def _joined(old: pd.DataFrame, new: Sequence[pd.DataFrame]) -> pd.DataFrame:
    # pandas would take the types of empty columns into account
    return pd.concat([old, *new] if len(old) else new, ignore_index=True)


def _ranges(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 5, 7, 8) -> "0-2 5 7-8"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return " ".join("-".join(map(str, run)) for run in runs)
