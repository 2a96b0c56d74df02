"""Attacks on targets: the tables that are exported from their pieces, and the tables of membership scores.

    targets.csv              AUC of every requested attack on every target
    target_roc.parquet       their true positive rates
    target_jackknife.parquet AUC and true positive rates on halves of the samples, for the attacks that need them
    target_epsilons.parquet  empirical epsilon, its one-run bound and balanced accuracy, for the attacks that need them

They are written last by a command that ended. If there are no replicas, membership_scores.parquet, the scores of every
sample from all attacks of the config, is written as a whole, and so are advantage.csv, their membership advantage,
intervals.csv, the intervals of their AUC and TPRs, and audit.csv and audit_curve.csv, what they show about epsilon.
membership_scores.json marks these as complete.

T: targets, F: false positive rates, N2: samples of the population (2N).
"""

import contextlib
import filecmp
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.atomic import (
    MEMBERSHIP_SCORES_JSON,
    is_current,
    replacing,
    write_completion_marker,
    write_csv,
)
from lm_mia.attacks import (
    advantage,
    audit,
    evaluations,
    rate_intervals,
    spec,
    target_warnings,
)
from lm_mia.attacks.evaluate import Pieces, evaluate, group_by_inputs, target_models
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.score_table import TABLE as SCORE_TABLE
from lm_mia.attacks.score_table import MembershipScoreTable
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request
from lm_mia.data.population import Population
from lm_mia.store.store import Store

TABLES = (
    "targets.csv",
    "target_roc.parquet",
    "target_jackknife.parquet",
    "target_epsilons.parquet",
)
"""The tables that `export` writes."""


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    requested: RecipeNeeds,
    pieces: Pieces,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> dict[str, int]:
    """Computes the requested pieces that are missing, and the tables of membership scores; returns as `runner.run`.

    An attack is left out, with a line for the user, if some of its models are not scored as it requires.

    Args:
      requested: the evaluations, and the attacks in the table of membership scores.
      pieces: where the evaluations are stored.
      pool: threads that compute parts of the samples.
      store, population, c, folder, progress, say: as in `runner.run`.

    Raises:
      UserError: if scores are corrupt.
    """
    in_score_table, identity = _missing_in_score_table(requested.score_table, store, c, folder)
    cluster_N2 = population.document_N if population.has_split_documents else None
    members: dict[str, np.ndarray] = {}
    advantage_rows: dict[AttackSpec, list[dict[str, Any]]] = {}
    audits: dict[AttackSpec, audit.Audit] = {}
    intervals: dict[AttackSpec, pd.DataFrame] = {}
    warnings: list[str] | None = None

    with _open_score_table(in_score_table, folder, population) as score_table:

        def add(scores: Scores, inputs: AttackInputs, attack: AttackSpec) -> None:
            nonlocal warnings
            assert score_table, "it is open if there are attacks for it"
            score_table.add(attack.attack, scores.file, pool)
            advantage_rows[attack] = advantage.advantage_rows(
                attack.attack,
                len(attack.references),
                scores.file,
                scores.member_TxN,
                c.priors,
                pool,
                document_N2=population.document_N,
                has_split_documents=population.has_split_documents,
            )
            audits[attack] = audit.audit(
                attack.attack,
                len(attack.references),
                scores.file.read_target(0),
                scores.member_TxN[0],
                store.design,
                c,
                cluster_N2,
            )
            if (estimates := audits[attack].intervals) is not None:
                intervals[attack] = _intervals(attack, scores, cluster_N2, estimates, c)
            if not members:
                # A large table has the first model only.
                named = zip(score_table.targets, scores.member_TxN, strict=False)
                members.update({f"member/{target}": member_N2 for target, member_N2 in named})
            if warnings is None and attack.references:
                of_shown = (
                    i for i, m in enumerate(inputs.references) if m.subset_seed in most_references
                )
                warnings = target_warnings.warnings(inputs.with_references(of_shown), population)

        most_references = max((a.references for a in in_score_table), key=len, default=())
        result = evaluate(
            requested.requests,
            pieces,
            store,
            population,
            pool,
            lambda done, total: progress("attack targets", done, total),
            say,
            {attack: functools.partial(add, attack=attack) for attack in in_score_table},
        )
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
    return result


def _intervals(
    attack: AttackSpec,
    scores: Scores,
    cluster_N2: np.ndarray | None,
    estimates: stats.EpsilonIntervals,
    c: config.Attack,
) -> pd.DataFrame:
    """Returns the rows of intervals.csv of an attack."""
    file, member_TxN2, name, pool = scores.file, scores.member_TxN, attack.attack, scores.pool
    first = rate_intervals.of_first_model(
        name, "target", file.read_target(0), member_TxN2[0], cluster_N2, estimates, c
    )
    if len(member_TxN2) == 1:
        return first
    points = scores.operating_points(c.fprs, c.band)
    mean = rate_intervals.of_mean(
        name, "target", file, member_TxN2, points, scores.group_N, c, pool
    )
    return pd.concat([first, mean])


def _missing_in_score_table(
    attacks: Sequence[AttackSpec], store: Store, c: config.Attack, folder: Path
) -> tuple[list[AttackSpec], dict[str, Any]]:
    """Returns the attacks for new tables of membership scores and of advantages, and what determines these tables.

    These are the attacks whose models are scored as they require; none if the tables already have exactly these.
    """
    groups, _ = group_by_inputs(attacks, store)
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
    names, models = [attack.attack for attack in attacks], target_models(attacks[0])
    return MembershipScoreTable(folder, names, models, len(population), population.first_id)


def export(requests: Sequence[Request], pieces: Pieces, folder: Path) -> None:
    """Writes the tables of attacks from their pieces; attacks that were left out are not in them.

    Each table is replaced at once, and tables that are not requested are removed. Nothing of ours reads them. An equal
    table keeps its time, by which the report is found to be older than its tables.
    """
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for request in dict.fromkeys(requests):
        if request.evaluation is evaluations.sample_scores or not (
            parts := _exported(request, pieces)
        ):
            continue
        for name, table in parts.items():
            table.insert(0, "attack_id", request.spec.id)
            tables[name].append(table)
    for name, parts in tables.items():
        path = folder / name
        if not parts:
            path.unlink(missing_ok=True)
            continue
        with replacing(path) as temporary:
            table = pd.concat(parts, ignore_index=True)
            if path.suffix == ".csv":
                table.to_csv(temporary, index=False)
            else:
                table.to_parquet(temporary, index=False)
            if path.is_file() and filecmp.cmp(path, temporary, shallow=False):
                os.utime(temporary, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))


def _exported(request: Request, pieces: Pieces) -> dict[str, pd.DataFrame]:
    """Returns the rows of a piece in `TABLES`; none if there is no piece, because the attack was left out."""
    table = pieces.read(request)
    if table is None:
        return {}
    if not request.parts and request.evaluation is not evaluations.operating_points:
        table = table.assign(part=0)
    if request.evaluation is evaluations.halved_rates:
        return {"target_jackknife.parquet": table}
    if request.evaluation is evaluations.epsilons:
        return {"target_epsilons.parquet": table}
    attack, of_target = request.spec, table.drop_duplicates("target")
    rmia_a = of_target["rmia_a"] if attack.rmia_a is not None else None
    described = {
        "attack": attack.attack,
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
