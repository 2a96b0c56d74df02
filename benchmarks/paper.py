"""Workloads that compute Tables 1-6 of StrongMIA from a score store, as the attacks stage does."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import synthetic
import threadpoolctl
from fresh import Clock, Results

from lm_mia import config, stats
from lm_mia.attacks import decisions, score_matrix
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.reference_targets import attack_references
from lm_mia.attacks.score_matrix import AttackTask
from lm_mia.attacks.score_table import MembershipScoreTable
from lm_mia.data import subsets
from lm_mia.machine import available_cores
from lm_mia.store.store import Store


def write_store(
    clock: Clock, folder: Path, *, samples: int, references: int, targets: int
) -> Results:
    """Writes a store to the folder. Timed, since writing is part of our code."""
    with clock:
        synthetic.write_store(folder, samples, references, targets)
    return {}


def tables(clock: Clock, folder: Path, *, references: int, targets: int) -> Results:
    """Computes online LiRA of all targets at 11 FPRs, and writes every table of decisions and samples.parquet.

    The results hold the seconds of each step: scores (reading, fitting, scoring), rates (sorting, thresholds, AUC) and
    decisions (votes, flip rates, tables).
    """
    c = config.Attack(references=references, replicas=targets)
    seconds = {}
    with (
        clock,
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
    ):
        start = time.perf_counter()
        source = _source(folder, references, targets)
        member_TxN2 = source.target_member_TxN2
        curve = score_matrix.curve_fprs(c.band, member_TxN2[0])
        task = AttackTask("lira_online", vars(c))
        with score_matrix.score_all([task], source, folder, pool) as [(fitted, file)]:
            seconds["scores"] = time.perf_counter() - start
            points = score_matrix.operating_points(file, member_TxN2, c.fprs, pool, curve)
            seconds["rates"] = time.perf_counter() - start - seconds["scores"]
            decisions.write_decision_tables(source, fitted.fit, file, points, {}, c, folder, pool)
    seconds["decisions"] = clock.seconds - seconds["scores"] - seconds["rates"]
    shares = pd.read_csv(folder / "flip_shares.csv")
    return {name: np.array(value) for name, value in seconds.items()} | {
        "auc": points.auc_T,
        "rows": np.array(len(shares)),
    }


def reference_targets(
    clock: Clock, folder: Path, *, references: int, probabilities: bool
) -> Results:
    """Attacks every reference with the others; also writes the posteriors of each sample if requested (Figure 21)."""
    c, path = config.Attack(references=references), folder / "probabilities.parquet"
    with clock, ThreadPoolExecutor(available_cores()) as pool:
        source = _source(folder, references, 1)
        group_N2 = stats.sample_groups(np.arange(source.num_samples))
        table, _ = attack_references(
            source, c, group_N2, path if probabilities else None, folder, pool
        )
    return {"auc": table["auc"].to_numpy()}


def attack_scores(
    clock: Clock, folder: Path, *, attack: str, references: int, targets: int
) -> Results:
    """Computes the membership scores of one attack, streamed from the store to a file."""
    c, source = config.Attack(references=references), _source(folder, references, targets)
    task = AttackTask(attack, vars(c))
    with (
        clock,
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
        score_matrix.score_all([task], source, folder, pool) as [(_, file)],
    ):
        auc = stats.auc(file.read_target(0), source.target_member_TxN2[0]).auc_T
    return {"auc": auc}


def score_table(clock: Clock, folder: Path, *, references: int, targets: int) -> Results:
    """Writes membership_scores.parquet of one attack, whose scores are computed before the clock starts."""
    c, source = config.Attack(references=references), _source(folder, references, targets)
    task, models = AttackTask("lira_online", vars(c)), source.targets
    with (
        ThreadPoolExecutor(available_cores()) as pool,
        score_matrix.score_all([task], source, folder, pool) as [(_, file)],
        clock,
        MembershipScoreTable(folder, ["lira_online"], models, source.num_samples) as table,
    ):
        table.add("lira_online", file, pool)
        table.write_table(
            folder / "membership_scores.parquet", {"member": source.target_member_TxN2[0]}
        )
    return {"bytes": np.array((folder / "membership_scores.parquet").stat().st_size)}


def _source(folder: Path, references: int, targets: int) -> AttackInputs:
    models, store = subsets.requested_seeds(references, targets), Store(folder / "scores.zarr")
    _, member_1xN2 = store.read(models[references : references + 1])
    nothing_N2 = np.zeros(member_1xN2.shape[1])
    member_TxN2 = np.broadcast_to(member_1xN2, (targets, len(nothing_N2)))
    return AttackInputs(
        store,
        models[references:],
        models[:references],
        member_TxN2,
        nothing_N2,
        np.random.default_rng(0).normal(size=(len(nothing_N2), 3)).astype(np.float32),
    )
