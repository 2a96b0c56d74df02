"""Attacks on the replicas of one target, and the tables of their decisions.

T: targets, F: false positive rates, N2: samples of the population (2N).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.atomic import (
    FLIPS_JSON,
    MEMBERSHIP_SCORES_JSON,
    is_current,
    replacing,
    write_completion_marker,
    write_csv,
)
from lm_mia.attacks import (
    advantage,
    attack_flips,
    audit,
    decision_jackknife,
    decisions,
    evaluations,
    models,
    rate_intervals,
    reference_targets,
    registry,
    resampling,
    score_matrix,
    shown_samples,
    tables,
    target_warnings,
)
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.evaluate import Pieces, evaluate
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.score_table import TABLE as SCORE_TABLE
from lm_mia.attacks.score_table import MembershipScoreTable
from lm_mia.attacks.spec import FORMAT, AttackSpec, Request, decision_settings
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.store.store import Store

_NUM_SHUFFLES = 10
DECISION_TABLES = (
    "attacks.csv",
    "roc.csv",
    "error_rates.csv",
    "thresholds.csv",
    "flip_shares.csv",
    "flip_shares_by_replicas.csv",
    attack_flips.TABLE,
    advantage.TABLE,
    *audit.TABLES,
    "true_positives.csv",
    "replica_true_positives.csv",
    "coin_free_roc.csv",
    "partial_auc.csv",
    "decision_jackknife.parquet",
    "flip_curves.csv",
    "samples.parquet",
    shown_samples.TABLE,
    SCORE_TABLE,
    "reference_targets.csv",
    "archetypes.csv",
    "archetype_losses.csv",
    "shuffled.csv",
    rate_intervals.TABLE,
    "resampled_references.csv",
    "true_positive_probability.parquet",
)
"""The tables of decisions; the last three are written only if settings request them."""


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    token_samples: Sequence[int],
    pieces: Pieces,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> tuple[dict[str, int], list[Request]]:
    """Attacks all replicas and writes the tables of their decisions, unless the tables are current.

    Args:
      token_samples: ids of the samples for whose tokens the store has log-probabilities.
      pieces: where the operating points of the attacks are stored.
      pool: threads that compute parts of the samples.
      store, population, c, folder, progress, say: as in `runner.run`.

    Returns:
      The numbers of attacks, as `runner.run`, and the pieces.

    Raises:
      UserError: if too few models are present or one is corrupt, or if no member or no non-member has enough
        references.
    """
    inputs = replica_inputs(store, population, c, say)
    attacks = _replica_attacks(inputs, c)
    counts = {"requested": len(attacks), "computed": 0, "left_out": 0}
    shown = _shown_token_samples(inputs, token_samples)
    identity = _identity(inputs, c) | {"shown_token_samples": shown}
    facts_path = folder / FLIPS_JSON.name
    requests = [Request(attack, evaluations.operating_points) for attack in attacks]
    if is_current(facts_path, identity) and all(map(pieces.has, requests)):
        return counts, requests
    steps = len(attacks) + _NUM_SHUFFLES + 2

    def show(done: float) -> None:
        progress("attack", done, steps)

    bin_counts, attack_decisions, intervals = _run_attacks(
        requests, inputs, population, c, shown, pieces, folder, pool, show, say
    )
    _write_shuffled(inputs, c, folder, pool, lambda done: show(len(attacks) + done))
    of_references = _write_reference_targets(inputs, population, c, folder, pool)
    _write_or_remove(
        folder / rate_intervals.TABLE, [*intervals, of_references] if intervals else []
    )
    show(steps - 1)
    _write_resampled_references(inputs, c, folder, pool, say)
    jackknife = decision_jackknife.decision_jackknife(inputs, population.document_N, c, pool)
    with replacing(folder / "decision_jackknife.parquet") as temporary:
        jackknife.to_parquet(temporary, index=False)
    write_csv(
        folder / attack_flips.TABLE, attack_flips.attack_flips(attack_decisions, jackknife, c.alpha)
    )
    archetypes = decisions.find_archetypes(
        folder / "samples.parquet", population, len(inputs.targets), c
    )
    write_csv(folder / "archetypes.csv", archetypes)
    losses = models.archetype_losses(inputs.store, inputs.references, inputs.targets, archetypes)
    write_csv(folder / "archetype_losses.csv", losses)
    written = [name for name in DECISION_TABLES if (folder / name).is_file()]
    found = {"warnings": target_warnings.warnings(inputs, population)}
    write_completion_marker(facts_path, identity | _facts(inputs, bin_counts, c) | found, written)
    show(steps)
    return counts | {"computed": len(attacks)}, requests


def _run_attacks(
    requests: Sequence[Request],
    inputs: AttackInputs,
    population: Population,
    c: config.Attack,
    shown_token_samples: Sequence[int],
    pieces: Pieces,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None],
    say: Callable[[str], None],
) -> tuple[stats.FlipBinCounts, list[attack_flips.AttackDecisions], list[pd.DataFrame]]:
    """Computes the attacks with their pieces, and writes the tables that follow from their scores.

    The tables of decisions are those of online LiRA with all references; flips.json is deleted before the first one.

    Returns:
      The number of samples in each bin of flip rates, the decisions under every attack with all references, and rows
      of intervals.csv, which are none without bootstrap draws.
    """
    num_references, member_N2 = len(inputs.references), inputs.target_member_TxN2[0]
    attack_rows: dict[AttackSpec, Mapping[str, object]] = {}
    roc_tables: dict[AttackSpec, pd.DataFrame] = {}
    counts: decisions.DecisionCounts | None = None
    interval_tables: dict[AttackSpec, list[pd.DataFrame]] = {}
    group_N2 = stats.sample_groups(population.document_N)
    advantage_rows: dict[AttackSpec, list[dict[str, Any]]] = {}
    audits: dict[AttackSpec, audit.Audit] = {}
    attack_decisions: dict[AttackSpec, attack_flips.AttackDecisions] = {}
    unscored_N2 = np.zeros(0, bool)  # by online LiRA with all references, which is computed first
    attacks = [request.spec for request in requests]
    main_first = sorted(attacks, key=lambda attack: attack.attack != "lira_online")
    progress(0)
    first_id = inputs.store.first_canary
    with MembershipScoreTable(
        folder, c.attacks, inputs.targets, len(member_N2), first_id
    ) as score_table:

        def add(scores: Scores, _: AttackInputs, attack: AttackSpec) -> None:
            nonlocal counts, unscored_N2
            file, name, count = scores.file, attack.attack, len(attack.references)
            points = scores.operating_points(c.fprs, c.band)
            score_N2 = file.read_target(0)
            has_all_references = count == num_references or not _uses_references(name)
            is_main = has_all_references and name == "lira_online"
            if is_main:
                _check_scored_samples(points, num_references, c, say)
                for marker in (FLIPS_JSON, MEMBERSHIP_SCORES_JSON):
                    (folder / marker.name).unlink(missing_ok=True)
                unscored_N2 = np.isnan(score_N2)
                columns = population.sample_columns()
                counts = decisions.write_decision_tables(
                    inputs, scores.fit, file, points, columns, c, folder, pool
                )
                shown_samples.write(
                    folder,
                    inputs,
                    population,
                    file,
                    tables.select_fprs(points, slice(len(c.fprs))),
                    shown_token_samples,
                    c,
                )
            if has_all_references:
                score_table.add(name, file, pool)
            if not (points.members_T.all() and points.nonmembers_T.all()):
                return  # With so few references, no sample of a class has a score.
            not_shared = float(np.mean(np.isnan(score_N2) ^ unscored_N2))
            attack_rows[attack] = tables.attack_row(name, count, points, not_shared, c)
            roc_tables[attack] = tables.roc_rows(name, count, points, c)
            if is_main:
                assert counts is not None, "they were just computed"
                attack_decisions[attack] = attack_flips.lira_decisions(
                    count, points, counts, len(member_N2)
                )
            elif has_all_references:
                attack_decisions[attack] = attack_flips.count_decisions(
                    name, count, file, points, member_N2, not_shared, population, c, pool
                )
            if has_all_references:
                advantage_rows[attack] = advantage.advantage_rows(
                    name,
                    count,
                    file,
                    inputs.target_member_TxN2,
                    c.priors,
                    pool,
                    document_N2=population.document_N,
                    has_split_documents=population.has_split_documents,
                )
                cluster_N2 = population.document_N if population.has_split_documents else None
                audits[attack] = audit.audit(
                    name, count, score_N2, member_N2, inputs.store.design, c, cluster_N2
                )
                if (estimates := audits[attack].intervals) is not None:
                    interval_tables[attack] = [
                        rate_intervals.of_first_model(
                            name, "replica", score_N2, member_N2, cluster_N2, estimates, c
                        ),
                        rate_intervals.of_mean(
                            name,
                            "replica",
                            file,
                            inputs.target_member_TxN2,
                            points,
                            group_N2,
                            c,
                            pool,
                        ),
                    ]

        evaluate(
            sorted(requests, key=lambda request: request.spec.attack != "lira_online"),
            pieces,
            inputs.store,
            population,
            pool,
            lambda done, _: progress(done),
            say,
            {attack: functools.partial(add, attack=attack) for attack in main_first},
        )
        score_table.write_table(folder / SCORE_TABLE, {"member": member_N2})
    assert counts is not None, "lira_online is always one of the attacks"
    rows = [attack_rows[attack] for attack in attacks if attack in attack_rows]
    write_csv(folder / "attacks.csv", pd.DataFrame(rows))
    write_csv(folder / "roc.csv", pd.concat([roc_tables[a] for a in attacks if a in roc_tables]))
    in_order = [row for attack in attacks for row in advantage_rows.get(attack, [])]
    write_csv(folder / advantage.TABLE, pd.DataFrame(in_order))
    audit.write(folder, [audits[attack] for attack in attacks if attack in audits])
    audit.say_if_delta_is_large(c, len(member_N2), inputs.store.design, say)
    intervals = [part for attack in attacks for part in interval_tables.get(attack, ())]
    in_order = [attack_decisions[a] for a in attacks if a in attack_decisions]
    return counts.bin_counts, in_order, intervals


def _replica_attacks(inputs: AttackInputs, c: config.Attack) -> list[AttackSpec]:
    """Returns every attack of the config, with the first 1, 2, 4, ... references and with all of them."""
    references = tuple(model.subset_seed for model in inputs.references)
    targets = tuple(model.order_seed for model in inputs.targets)
    counts = sorted({len(references), *(2**i for i in range(len(references).bit_length()))})
    samples = min(c.rmia_samples, inputs.num_samples)
    return [
        AttackSpec(
            name,
            True,
            targets,
            references[:count] if _uses_references(name) else (),
            c.step,
            rmia_samples=samples if "rmia_samples" in registry.find(name).settings else 0,
            rmia_gamma=c.rmia_gamma if "rmia_gamma" in registry.find(name).settings else 0.0,
        )
        for name in c.attacks
        for count in counts
        if count == len(references) or _uses_references(name)
    ]


def replica_inputs(
    store: Store, population: Population, c: config.Attack, say: Callable[[str], None]
) -> AttackInputs:
    """Returns the models of an attack that are present at its step; raises UserError if there are too few."""
    store = dataclasses.replace(store, step=c.step)
    requested = subsets.requested_seeds(c.references, c.replicas)
    missing = set(store.missing_models(requested, store.step))
    present = [model for model in requested if model not in missing]
    references = [model for model in present if model.role == "reference"]
    targets = [model for model in present if model.role == "replica"]
    if len(references) < 4 or len(targets) < 2:
        raise UserError(
            f"{store.path}: {len(references)} of {c.references} references and {len(targets)} of {c.replicas} replicas "
            f"are present{store.requirement}, but an attack needs at least 4 and 2; run `lm-mia run` first"
        )
    if missing:
        say(
            f"{len(missing)} of {len(requested)} models are missing{store.requirement}: attacking {len(targets)} of "
            f"{c.replicas} replicas with {len(references)} of {c.references} references; run `lm-mia run` to make the "
            "others"
        )
    statistics = registry.statistics_of(c.attacks)
    design = model_design(store, models.present_models(store, c.step))
    return open_inputs(store, population, targets, references, statistics, design=design)


def _uses_references(attack: str) -> bool:
    return registry.find(attack).uses_references


def _check_scored_samples(
    points: stats.OperatingPoints, references: int, c: config.Attack, say: Callable[[str], None]
) -> None:
    """Tells the user how many samples have no score; raises UserError if these are all samples of a class."""
    needed, left_out = 2 if c.variance == "per_sample" else 1, int(points.left_out_T.max())
    for count_T, name in ((points.members_T, "member"), (points.nonmembers_T, "non-member")):
        if not count_T.all():
            raise UserError(
                f"attack.references={references}: no {name} has enough IN and OUT references with different losses for "
                "LiRA; request more references"
            )
    if left_out:
        say(
            f"attack.references={references}: {left_out} samples have fewer than {needed} IN or {needed} OUT "
            "references, or references with equal losses, and have no score (NaN); more references or "
            "train.subset='balanced' avoid this"
        )


def _write_shuffled(
    inputs: AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[int], None],
) -> None:
    """Writes shuffled.csv: AUC and one-run epsilon of every attack with shuffled membership labels.

    They should be near 0.5 and 0.
    """
    auc: dict[str, list[float]] = {name: [] for name in c.attacks}
    left_out = dict.fromkeys(c.attacks, 0)
    epsilon: dict[str, list[float]] = {name: [] for name in c.attacks}
    for shuffle in range(_NUM_SHUFFLES):
        noise = inputs.with_shuffled_labels(shuffle)
        tasks = [score_matrix.AttackTask(name, vars(c)) for name in c.attacks]
        with score_matrix.score_all(tasks, noise, folder, pool) as results:
            for name, (_, file) in zip(c.attacks, results, strict=True):
                score_N2, member_N2 = file.read_target(0), noise.target_member_TxN2[0]
                result = stats.auc(score_N2, member_N2)
                bound = audit.one_run_bound(score_N2, member_N2, inputs.store.design, c)
                epsilon[name].append(np.nan if bound is None else bound.epsilon)
                auc[name].append(float(result.auc_T[0]))
                left_out[name] = max(left_out[name], int(result.left_out_T[0]))
        progress(shuffle + 1)
    rows = [
        {"attack": name, "references": len(inputs.references) * _uses_references(name)}
        | {"shuffles": _NUM_SHUFFLES, "auc_mean": np.mean(values), "auc_std": np.std(values)}
        | {"auc_min": np.min(values), "auc_max": np.max(values)}
        | {"one_run_epsilon_mean": np.mean(epsilon[name])}
        | {"one_run_epsilon_max": np.max(epsilon[name]), "left_out": left_out[name]}
        for name, values in auc.items()
    ]
    write_csv(folder / "shuffled.csv", pd.DataFrame(rows))


def _write_reference_targets(
    inputs: AttackInputs,
    population: Population,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
) -> pd.DataFrame:
    """Writes reference_targets.csv, and writes or removes true_positive_probability.parquet, which is optional.

    Returns:
      Rows of intervals.csv.
    """
    probabilities = folder / "true_positive_probability.parquet"
    if not c.leave_one_out:
        probabilities.unlink(missing_ok=True)
    group_N2 = stats.sample_groups(population.document_N)
    table, intervals = reference_targets.attack_references(
        inputs, c, group_N2, probabilities if c.leave_one_out else None, folder, pool
    )
    write_csv(folder / "reference_targets.csv", table)
    return intervals


def _write_resampled_references(
    inputs: AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    say: Callable[[str], None],
) -> None:
    """Writes resampled_references.csv if it is requested and there are enough references; else removes it."""
    resampled = []
    units = resampling.reference_units(inputs.references, inputs.design)
    present, size = sum(map(len, units)), c.resample_references // 2 * 2
    if c.resample_references and (present < size or len(resampling.disjoint_sets(units, size)) < 2):
        say(
            f"attack.resample_references={c.resample_references}: the {present // 2} pairs of references that are "
            "present are too few for two sets; resampled_references.csv is not written"
        )
    elif c.resample_references:
        table = resampling.resampled_references(inputs, c, folder, pool)
        resampled.append(table)
        if left_out := table["left_out"].max():
            say(
                f"attack.resample_references={c.resample_references}: up to {left_out} of {inputs.num_samples} "
                "samples have too few IN or OUT references in a set and are left out; use larger sets"
            )
    _write_or_remove(folder / "resampled_references.csv", resampled)


def _write_or_remove(path: Path, parts: list[pd.DataFrame]) -> None:
    if parts:
        write_csv(path, pd.concat(parts))
    else:
        path.unlink(missing_ok=True)


def _identity(inputs: AttackInputs, c: config.Attack) -> dict[str, Any]:
    """Returns what determines the tables of decisions, for flips.json."""
    return {
        "format": FORMAT,
        "config": decision_settings(c),
        "design": inputs.store.design,
        "reference_models": [str(model) for model in inputs.references],
        "replica_models": [str(model) for model in inputs.targets],
    }


def _shown_token_samples(inputs: AttackInputs, token_samples: Sequence[int]) -> Sequence[int]:
    """Returns the ids that `shown_samples.write` shows in any case; empty if it shows all samples."""
    if inputs.num_samples <= shown_samples.MAX_SAMPLES:
        return []
    attacked = [i for i in token_samples if i >= inputs.store.first_canary]
    return attacked[: shown_samples.MAX_TOKEN_SAMPLES]


def _facts(
    inputs: AttackInputs, bin_counts: stats.FlipBinCounts, c: config.Attack
) -> dict[str, object]:
    """Returns the other fields of flips.json, which describe the tables."""
    replicas = len(inputs.targets)
    k_low, cutoff = stats.coin_flip_cutoff(replicas, c.alpha)
    return {
        "recipe": inputs.store.path.parent.name,
        "attack": "lira_online",
        "first_target": str(inputs.targets[0]),
        "references": len(inputs.references),
        "replicas": replicas,
        "k_low": k_low,
        "cutoff": cutoff,
        "max_flip_rate": stats.max_flip_rate(replicas),
        "left_out": int(bin_counts.left_out_F[0]),
    }
