"""Attacks on the replicas of one target, and the tables of their decisions.

T: targets, M: references, F: false positive rates, G: points of a curve, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.atomic import FLIPS_JSON, is_current, write_completion_marker, write_csv
from lm_mia.attacks import decisions, models, resampling, score_matrix, signals, tables
from lm_mia.attacks.targets import TargetTables
from lm_mia.config import ATTACK_STATISTICS, AttackName
from lm_mia.config.needs import FORMAT, REFERENCE_FREE, TargetAttack
from lm_mia.data import subsets
from lm_mia.data.population import SAMPLE_COLUMNS, Population
from lm_mia.errors import UserError
from lm_mia.store.store import Store

_NUM_SHUFFLES = 10


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    target_tables: TargetTables,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> dict[str, int]:
    """Attacks all replicas and writes the tables of their decisions, unless these are current.

    Returns:
      The numbers of attacks, as `runner.run` does.

    Raises:
      UserError: too few models are present or one is corrupt, no member or no non-member has enough references, or
        attack.leave_one_out is set and the subsets are balanced.
    """
    source = open_inputs(store, population, c, say)
    if c.leave_one_out:
        resampling.check_not_balanced(source)
    attacks = _replica_attacks(source, c)
    counts = {"requested": len(attacks), "computed": 0, "left_out": 0}
    about = _identity(source, c)
    facts_path = folder / FLIPS_JSON.name
    if is_current(facts_path, about) and all(attack in target_tables for attack in attacks):
        return counts
    member_N2, references = source.target_member_TxN2[0], len(source.references)
    steps = len(attacks) + _NUM_SHUFFLES + 1
    lines, curves, interval_tables, counted = {}, {}, {}, None
    fprs = score_matrix.evaluation_fprs(c, member_N2)
    scored = score_matrix.score_attacks(
        attacks, source, c, folder, pool, lambda done: progress("attack", done, steps)
    )
    progress("attack", 0, steps)
    for attack, fitted, file in scored:
        name, count = attack.attack, len(attack.references)
        points = score_matrix.operating_points(file, source.target_member_TxN2, fprs, pool)
        whole = count == references or name in REFERENCE_FREE
        if whole and name == "lira_online":
            _check_scored_samples(points, references, c, say)
        if attack not in target_tables:
            target_tables.add(attack, source.targets, points, len(c.fprs))
        if whole and name == "lira_online":
            facts_path.unlink(missing_ok=True)
            columns = {name: population.column(name) for name in SAMPLE_COLUMNS}
            counted = decisions.write_decision_tables(
                source, fitted, file, points, columns, c, folder, pool
            )
        if not (points.members_T.all() and points.nonmembers_T.all()):
            continue  # so few references are enough for no sample of a class
        lines[attack] = tables.attack_row(name, count, points, c)
        curves[attack] = tables.roc_rows(name, count, points, c)
        if whole and c.bootstraps:
            interval_tables[attack] = _intervals(name, points, file.read_target(0), member_N2, c)
    assert counted is not None, "lira_online is among the attacks"
    target_tables.write()
    write_csv(folder / "attacks.csv", pd.DataFrame([lines[a] for a in attacks if a in lines]))
    write_csv(folder / "roc.csv", pd.concat([curves[a] for a in attacks if a in curves]))
    intervals_of = [interval_tables[a] for a in attacks if a in interval_tables]
    _write_or_remove(folder / "intervals.csv", intervals_of)
    _write_shuffled(source, c, folder, pool, lambda n: progress("attack", len(attacks) + n, steps))
    _write_optional_tables(source, c, folder, pool, say)
    found = decisions.find_archetypes(
        folder / "samples.parquet", population, len(source.targets), c
    )
    write_csv(folder / "archetypes.csv", found)
    losses = models.archetype_losses(source.store, source.references, source.targets, found)
    write_csv(folder / "archetype_losses.csv", losses)
    written = [name for name in DECISION_TABLES if (folder / name).is_file()]
    write_completion_marker(facts_path, about | _facts(source, counted, c), written)
    progress("attack", steps, steps)
    return counts | {"computed": len(attacks)}


def _replica_attacks(source: signals.AttackInputs, c: config.Attack) -> list[TargetAttack]:
    """Every attack of the config with 1, 2, 4, ... references and with all of them."""
    references = tuple(row.subset_seed for row in source.references)
    targets = tuple(row.order_seed for row in source.targets)
    counts = sorted({len(references), *(2**i for i in range(len(references).bit_length()))})
    samples = min(c.rmia_samples, source.num_samples)
    return [
        TargetAttack(
            name,
            True,
            targets,
            () if name in REFERENCE_FREE else references[:count],
            c.step,
            rmia_samples=samples if _uses_rmia([name]) else 0,
            rmia_gamma=c.rmia_gamma if _uses_rmia([name]) else 0.0,
        )
        for name in c.attacks
        for count in counts
        if count == len(references) or name not in REFERENCE_FREE
    ]


DECISION_TABLES = (
    "attacks.csv",
    "roc.csv",
    "error_rates.csv",
    "thresholds.csv",
    "flip_shares.csv",
    "true_positives.csv",
    "coin_free_roc.csv",
    "partial_auc.csv",
    "flip_curves.csv",
    "samples.parquet",
    "archetypes.csv",
    "archetype_losses.csv",
    "shuffled.csv",
    "intervals.csv",
    "resampled_references.csv",
    "true_positive_probability.parquet",
)
"""The tables of decisions, the last three of which are made only if settings request them."""


def open_inputs(
    store: Store, population: Population, c: config.Attack, say: Callable[[str], None]
) -> signals.AttackInputs:
    """The rows of an attack that are there at its step; UserError if they are too few."""
    store = dataclasses.replace(store, step=c.step)
    wanted = subsets.requested_seeds(c.references, c.replicas)
    absent = set(store.missing_models(wanted, store.step))
    rows = [row for row in wanted if row not in absent]
    references = [row for row in rows if row.role == "reference"]
    targets = [row for row in rows if row.role == "replica"]
    if len(references) < 4 or len(targets) < 2:
        raise UserError(
            f"{store.path}: {len(references)} of {c.references} references and {len(targets)} of {c.replicas} replicas "
            f"are there{store.requirement}, of 4 and 2 that an attack needs at least; run `lm-mia run` first"
        )
    if absent:
        say(
            f"{len(absent)} of {len(wanted)} models are absent{store.requirement}: attacking {len(targets)} of "
            f"{c.replicas} replicas with {len(references)} of {c.references} references; `lm-mia run` makes the others"
        )
    statistics = tuple(ATTACK_STATISTICS[a] for a in c.attacks if a in ATTACK_STATISTICS)
    return signals.open_inputs(store, population, targets, references, statistics)


def _uses_rmia(attacks: Sequence[AttackName]) -> bool:
    return not {"rmia", "rmia_offline"}.isdisjoint(attacks)


def _check_scored_samples(
    points: stats.OperatingPoints, references: int, c: config.Attack, say: Callable[[str], None]
) -> None:
    need, short = 2 if c.variance == "per_sample" else 1, int(points.left_out_T.max())
    for left, kind in ((points.members_T, "member"), (points.nonmembers_T, "non-member")):
        if not left.all():
            raise UserError(
                f"attack.references={references}: no {kind} has enough IN and OUT references, with some spread among "
                "them, for LiRA; ask for more"
            )
    if short:
        say(
            f"attack.references={references}: {short} samples have fewer than {need} IN or {need} OUT references, or "
            "no spread among them; they are left out (NaN) and counted; more references or train.subset='balanced' "
            "mend it"
        )


def _intervals(
    name: str,
    points: stats.OperatingPoints,
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    c: config.Attack,
) -> pd.DataFrame:
    """Rows of intervals.csv, 95 %, over the choice of samples: AUC and TPRs of the first target."""
    found = stats.bootstrap_intervals(score_N2, member_N2, c.fprs, replicates=c.bootstraps)
    members = points.members_T[0]
    exact = stats.clopper_pearson(np.rint(found.tpr_TxF[0] * members), members)
    table = pd.DataFrame({"attack": name, "metric": [f"tpr_at_{fpr:g}" for fpr in c.fprs]})
    table["value"], table["bootstrap_low"] = found.tpr_TxF[0], found.tpr_low_TxF[0]
    table["bootstrap_high"] = found.tpr_high_TxF[0]
    table["clopper_pearson_low"], table["clopper_pearson_high"] = exact
    area = {"attack": name, "metric": "auc", "value": found.auc_T[0]}
    area |= {"bootstrap_low": found.auc_low_T[0], "bootstrap_high": found.auc_high_T[0]}
    return pd.concat([pd.DataFrame([area]), table]).assign(left_out=int(found.left_out_T[0]))


def _write_shuffled(
    source: signals.AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[int], None],
) -> None:
    """Writes shuffled.csv: the AUC of every attack after membership labels were shuffled, which should be near 0.5."""
    auc: dict[AttackName, list[float]] = {name: [] for name in c.attacks}
    left_out = dict.fromkeys(c.attacks, 0)
    for shuffle in range(_NUM_SHUFFLES):
        noise = source.with_shuffled_labels(shuffle)
        with score_matrix.score_all([signals.AttackGroup(c.attacks, c)], noise, folder, pool) as [
            (_, files)
        ]:
            for name, file in files.items():
                found = stats.auc(file.read_target(0), noise.target_member_TxN2[0])
                auc[name].append(float(found.auc_T[0]))
                left_out[name] = max(left_out[name], int(found.left_out_T[0]))
        progress(shuffle + 1)
    rows = [
        {"attack": name, "references": 0 if name in REFERENCE_FREE else len(source.references)}
        | {"shuffles": _NUM_SHUFFLES, "auc_mean": np.mean(a), "auc_std": np.std(a)}
        | {"auc_min": np.min(a), "auc_max": np.max(a), "left_out": left_out[name]}
        for name, a in auc.items()
    ]
    write_csv(folder / "shuffled.csv", pd.DataFrame(rows))


def _write_optional_tables(
    source: signals.AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    say: Callable[[str], None],
) -> None:
    """Writes the optional tables that the settings request, and removes those that they do not."""
    resampled = []
    pairs = len(resampling.reference_pairs(source))
    if c.resample_references and 2 * pairs // c.resample_references < 2:
        say(
            f"attack.resample_references={c.resample_references}: the {pairs} pairs of references that are there make "
            "no two sets; left out"
        )
    elif c.resample_references:
        found = resampling.resampled_references(source, c, folder, pool)
        resampled.append(found)
        if short := found["left_out"].max():
            say(
                f"attack.resample_references={c.resample_references}: up to {short} of {source.num_samples} "
                "samples lack IN or OUT references in some set and are left out; larger sets mend it"
            )
    _write_or_remove(folder / "resampled_references.csv", resampled)
    probabilities = folder / "true_positive_probability.parquet"
    if c.leave_one_out:
        resampling.write_true_positive_probability(source, c, probabilities, pool)
    else:
        probabilities.unlink(missing_ok=True)


def _write_or_remove(path: Path, parts: list[pd.DataFrame]) -> None:
    if parts:
        write_csv(path, pd.concat(parts))
    else:
        path.unlink(missing_ok=True)


def _identity(source: signals.AttackInputs, c: config.Attack) -> dict[str, Any]:
    """What determines the tables of decisions."""
    return {
        "format": FORMAT,
        "config": dataclasses.asdict(c),
        "reference_models": [str(row) for row in source.references],
        "replica_models": [str(row) for row in source.targets],
    }


def _facts(
    source: signals.AttackInputs, counted: stats.FlipBinCounts, c: config.Attack
) -> dict[str, object]:
    """What the tables are about."""
    replicas = len(source.targets)
    k_low, cutoff = stats.coin_flip_cutoff(replicas, c.alpha)
    return {
        "recipe": source.store.path.parent.name,
        "attack": "lira_online",
        "first_target": str(source.targets[0]),
        "references": len(source.references),
        "replicas": replicas,
        "k_low": k_low,
        "cutoff": cutoff,
        "max_flip_rate": stats.max_flip_rate(replicas),
        "left_out": int(counted.left_out_F[0]),
    }
