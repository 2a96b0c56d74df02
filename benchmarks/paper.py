"""Workloads that compute Tables 1-6 of StrongMIA from a score store, as the attacks stage does."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import synthetic
import threadpoolctl
from fresh import Clock, Results

from lm_mia import config, stats
from lm_mia.attacks import score_matrix
from lm_mia.attacks.evaluations import Scores, stored_scores
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.reference_targets import attack_references
from lm_mia.attacks.registry import FittedAttack
from lm_mia.attacks.replicas import DECISIONS
from lm_mia.attacks.results import Results as Pieces
from lm_mia.attacks.score_matrix import AttackTask, MembershipScoreFile
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import AttackSpec
from lm_mia.attacks.table_sets import Work
from lm_mia.data import subsets
from lm_mia.data.population import Population
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
        results = Pieces(folder / "pieces")
        task = AttackTask("lira_online", vars(c))
        with score_matrix.score_all([task], source, folder, pool) as [(fitted, file)]:
            seconds["scores"] = time.perf_counter() - start
            scores = _scores(source, fitted, file, pool)
            points = scores.operating_points(c.fprs, c.band)
            seconds["rates"] = time.perf_counter() - start - seconds["scores"]
            for name in _TABLES:
                evaluation = DECISIONS[name]
                results.write(
                    {"what": name}, evaluation(scores, **read_settings(evaluation, vars(c)))
                )
    seconds["decisions"] = clock.seconds - seconds["scores"] - seconds["rates"]
    shares = results.read({"what": "flip_shares.csv"})
    assert shares is not None
    return {name: np.array(value) for name, value in seconds.items()} | {
        "auc": points.auc_T,
        "rows": np.array(len(shares)),
    }


def reference_targets(
    clock: Clock, folder: Path, *, references: int, probabilities: bool
) -> Results:
    """Attacks every reference with the others; also writes the posteriors of each sample if requested (Figure 21)."""
    c = config.Attack(references=references, leave_one_out=probabilities, bootstraps=0)
    results = Pieces(folder / "pieces")
    with clock, ThreadPoolExecutor(available_cores()) as pool:
        source = _source(folder, references, 1)
        group_N2 = stats.sample_groups(np.arange(source.num_samples))
        work = Work(pool, folder, lambda *at: None, print)
        attack_references(
            source, c, group_N2, work, lambda name, table: results.write({"what": name}, table)
        )
    table = results.read({"what": "reference_targets.csv"})
    assert table is not None
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
    """Stores the membership scores of one attack, which are computed before the clock starts."""
    c, source = config.Attack(references=references), _source(folder, references, targets)
    task, results, key = AttackTask("lira_online", vars(c)), Pieces(folder), {"what": "scores"}
    with (
        ThreadPoolExecutor(available_cores()) as pool,
        score_matrix.score_all([task], source, folder, pool) as [(fitted, file)],
        clock,
    ):
        results.write(key, stored_scores(_scores(source, fitted, file, pool)))
    return {"bytes": np.array(results.path(key).stat().st_size)}


class _Population:
    """The part of a population that these evaluations use."""

    first_id, has_split_documents = 0, False

    def __init__(self, samples: int) -> None:
        self.document_N = np.arange(samples)

    def sample_columns(self) -> dict[str, np.ndarray]:
        return {}


def _scores(
    source: AttackInputs, fitted: FittedAttack, file: MembershipScoreFile, pool: ThreadPoolExecutor
) -> Scores:
    numbers = tuple(model.subset_seed for model in source.references)
    spec = AttackSpec("lira_online", True, tuple(range(len(source.targets))), numbers)
    population = cast(Population, _Population(source.num_samples))
    group_N = np.zeros(0, np.int64)
    return Scores(spec, file, fitted.fit, source, population, group_N, pool)


_TABLES = [name for name in DECISIONS if "archetype" not in name and "shown" not in name]


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
