"""Attacks: the score store -> scores, decisions and metrics -> tables.

T: targets, M: references, N2: samples of the population (2N), F: false positive rates.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from lm_mia import config, subsets, tables
from lm_mia.errors import UserError
from lm_mia.population import Population, Progress
from lm_mia.seeds import permutation
from lm_mia.stats import baselines, binomial, flips, lira, roc
from lm_mia.store import Store
from lm_mia.workdir import replacing, write_atomically

_SHUFFLES = 10


@dataclasses.dataclass(frozen=True)
class Rows:
    """Losses and membership of the rows under attack and of the references, all of them present."""

    target_loss_TxN: np.ndarray
    target_member_N: np.ndarray
    reference_loss_MxN: np.ndarray
    reference_member_MxN: np.ndarray

    def shuffled(self, seed: int) -> "Rows":
        """The same losses with membership labels moved to other samples, in all rows alike: pure noise."""
        order_N = permutation(seed, "shuffled labels", len(self.target_member_N))
        return dataclasses.replace(
            self,
            target_member_N=self.target_member_N[order_N],
            reference_member_MxN=self.reference_member_MxN[:, order_N],
        )

    def first(self, references: int) -> "Rows":
        """With the first so many references only."""
        return dataclasses.replace(
            self,
            reference_loss_MxN=self.reference_loss_MxN[:references],
            reference_member_MxN=self.reference_member_MxN[:references],
        )


def read(store: Store, c: config.Attack) -> Rows:
    """The rows of an attack; UserError if one is absent or corrupt."""
    rows = subsets.rows(c.references, c.replicas)
    loss_MxN, member_MxN = store.read(rows)
    return Rows(
        target_loss_TxN=loss_MxN[c.references :],
        target_member_N=member_MxN[c.references],
        reference_loss_MxN=loss_MxN[: c.references],
        reference_member_MxN=member_MxN[: c.references],
    )


def scores(attack: str, rows: Rows, c: config.Attack) -> np.ndarray:
    """score_TxN of a named attack, larger = more member-like; NaN where the references do not suffice."""
    target_TxN, reference_MxN = rows.target_loss_TxN, rows.reference_loss_MxN
    if attack == "loss":
        return baselines.loss_attack(target_TxN)
    if attack == "reference_calibrated":
        return baselines.reference_calibrated(target_TxN, reference_MxN)
    gaussians = lira.fit(reference_MxN, rows.reference_member_MxN, variance=c.variance)
    return lira.score(target_TxN, gaussians, offline=attack == "lira_offline")


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    folder: Path,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Attacks every target and writes the tables.

    Args:
      store: with all rows of the attack present.
      population: for lengths and texts.
      c: which rows, rates and levels.
      folder: of the tables.
      progress: called as ``progress("attack", done, total)``.
      say: told, in one line, what a person must know, such as samples without enough references.

    Raises:
      UserError: rows are missing or corrupt, or the references suffice for no sample of a class; nothing is written.
    """
    rows = read(store, c)
    gaussians = lira.fit(rows.reference_loss_MxN, rows.reference_member_MxN, variance=c.variance)
    in_N, out_N = gaussians.count_in_N, gaussians.count_out_N
    need = 2 if c.variance == "per_sample" else 1
    if short := int(((in_N < need) | (out_N < need)).sum()):
        say(
            f"attack.references={c.references}: {short} of {len(in_N)} samples have fewer than {need} IN or {need} OUT "
            "references; they are left out (NaN) and counted; more references or train.subset='balanced' mend it"
        )
    score_TxN = lira.score(rows.target_loss_TxN, gaussians)
    usable_N, member_N = ~np.isnan(score_TxN).any(axis=0), rows.target_member_N
    for some_N, kind in ((member_N, "member"), (~member_N, "non-member")):
        if not (usable_N & some_N).any():
            raise UserError(
                f"attack.references={c.references}: no {kind} has enough IN and OUT references for LiRA; ask for more"
            )

    folder.mkdir(parents=True, exist_ok=True)
    settings = list(_settings(c.references))
    total = len(settings) + _SHUFFLES
    attacks, curves = [], []
    for done, (attack, references) in enumerate(settings):
        summary, curve = _attack(attack, references, rows, c)
        attacks += summary
        curves.append(curve)
        progress("attack", done + 1, total)
    shuffled = _shuffled(rows, c, lambda done: progress("attack", len(settings) + done, total))
    _csv(folder / "attacks.csv", pd.DataFrame(attacks))
    _csv(folder / "roc.csv", pd.concat(curves))
    _csv(folder / "shuffled.csv", shuffled)
    _csv(folder / "error_rates.csv", tables.error_rates(score_TxN, rows.target_member_N, c))

    votes_FxN = tables.votes(score_TxN, rows.target_member_N, c)
    _csv(folder / "flip_shares.csv", tables.flip_shares(votes_FxN, rows.target_member_N, c))
    samples = tables.samples(votes_FxN, score_TxN, rows.target_member_N, population, c)
    with replacing(folder / "samples.parquet") as part:
        samples.to_parquet(part, index=False)
    _csv(folder / "archetypes.csv", tables.archetypes(samples, population, c))
    k_low, cutoff = binomial.coin_flip_cutoff(c.replicas, c.alpha)
    facts = {
        "recipe": store.path.parent.name,
        "config": dataclasses.asdict(c),
        "attack": "lira_online",
        "references": c.references,
        "replicas": c.replicas,
        "variance": c.variance,
        "alpha": c.alpha,
        "k_low": k_low,
        "cutoff": cutoff,
        "max_flip_rate": flips.max_flip_rate(c.replicas),
        "left_out": int(np.isnan(votes_FxN[0]).sum()),
    }
    write_atomically(folder / "flips.json", json.dumps(facts, indent=1) + "\n")


def _settings(references: int) -> Iterator[tuple[str, int]]:
    """(attack, number of references used): nested, 1, 2, 4, ... and all."""
    counts = sorted(
        {2**i for i in range(references.bit_length()) if 2**i < references} | {references}
    )
    for attack in ("lira_online", "lira_offline", "reference_calibrated"):
        yield from ((attack, count) for count in counts)
    yield "loss", 0


def _attack(
    attack: str, references: int, rows: Rows, c: config.Attack
) -> tuple[list[dict], pd.DataFrame]:
    """Row(s) of attacks.csv and of roc.csv; none where the references suffice for no sample."""
    some = rows.first(references)
    score_TxN = scores(attack, some, c)
    usable_N = ~np.isnan(score_TxN).any(axis=0)
    if not (usable_N & rows.target_member_N).any() or not (usable_N & ~rows.target_member_N).any():
        return [], pd.DataFrame()
    auc_T = roc.auc(score_TxN, rows.target_member_N).auc_T
    points = roc.tpr_at_fpr(score_TxN, rows.target_member_N, c.fprs)
    summary = {
        "attack": attack,
        "references": references,
        "targets": len(auc_T),
        "auc_mean": auc_T.mean(),
        "auc_std": auc_T.std(),
    }
    for fpr, tpr_T in zip(c.fprs, points.tpr_TxF.T, strict=True):
        summary |= {f"tpr_at_{fpr:g}_mean": tpr_T.mean(), f"tpr_at_{fpr:g}_std": tpr_T.std()}
    summary |= {"left_out": int((~usable_N).sum())}
    nonmembers = int((~rows.target_member_N).sum())
    grid_K = np.geomspace(1 / nonmembers, 1, 100)
    mean = roc.mean_roc(score_TxN, rows.target_member_N, grid_K)
    curve = pd.DataFrame(
        {"fpr": mean.fpr_F, "tpr_mean": mean.tpr.mean_F, "tpr_std": mean.tpr.std_F}
        | {"left_out": int(mean.left_out_T.max())}
    )
    curve.insert(0, "attack", attack)
    curve.insert(1, "references", references)
    return [summary], curve


def _shuffled(rows: Rows, c: config.Attack, progress: Callable[[int], None]) -> pd.DataFrame:
    """AUC of every attack where membership is noise; anything but 0.5 would be a leak in our own machinery."""
    attacks = {
        "lira_online": c.references,
        "lira_offline": c.references,
        "reference_calibrated": c.references,
        "loss": 0,
    }
    auc: dict[str, list[float]] = {attack: [] for attack in attacks}
    left_out = dict.fromkeys(attacks, 0)
    for shuffle in range(_SHUFFLES):
        noise = rows.shuffled(shuffle)
        for attack in attacks:
            found = roc.auc(scores(attack, noise, c), noise.target_member_N)
            auc[attack].append(float(found.auc_T.mean()))
            left_out[attack] = max(left_out[attack], int(found.left_out_T.max()))
        progress(shuffle + 1)
    return pd.DataFrame(
        {"attack": attack, "references": attacks[attack], "shuffles": _SHUFFLES}
        | {"auc_mean": np.mean(a), "auc_std": np.std(a), "auc_min": np.min(a), "auc_max": np.max(a)}
        | {"left_out": left_out[attack]}
        for attack, a in auc.items()
    )


def _csv(path: Path, table: pd.DataFrame) -> None:
    write_atomically(path, table.to_csv(index=False))
