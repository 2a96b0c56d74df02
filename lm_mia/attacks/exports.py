"""Exports: files in the folder ``tables`` of a recipe, for users and their programs.

They are written last by a command that ended, each under a temporary name that then replaces the old file, and those
that the config does not ask for any more are removed at the same moment. They consist of pieces; anyone may edit or
delete them, and the next command writes them again.
"""

import filecmp
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
from lm_mia.atomic import abandoned, replacing
from lm_mia.attacks import (
    advantage,
    attack_flips,
    audit,
    evaluations,
    fragile_hits,
    models,
    more_references,
    pooling,
    rate_intervals,
    recency,
    reference_numbers,
    reference_targets,
    studies,
    tables,
    text_groups,
    token_tables,
    token_tfidf,
    variance,
    vulnerability,
    zero_run,
)
from lm_mia.attacks.pieces import Pieces, target_models
from lm_mia.attacks.replicas import DECISIONS, Replicas
from lm_mia.attacks.results import Table, to_frame
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.attacks.table_sets import StoredTables
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store

Export = Callable[[], Table | Mapping[str, Any]]
"""Returns a table or, for a JSON file, an object."""

SCORE_TABLE = "membership_scores.parquet"
OF_SCORES = (advantage.TABLE, *audit.TABLES, rate_intervals.TABLE, SCORE_TABLE)
"""Tables of the attacks of the config with all references, on replicas or on targets."""
OF_REPLICAS = (
    *DECISIONS,
    *OF_SCORES,
    "attacks.csv",
    "roc.csv",
    attack_flips.TABLE,
    "shuffled.csv",
    "decision_jackknife.parquet",
    reference_targets.TABLE,
    reference_targets.PROBABILITIES,
    "resampled_references.csv",
    "flips.json",
)
"""Tables that need replicas; the last ones are written only if settings request them."""
OF_REQUESTS = (
    "targets.csv",
    "target_roc.parquet",
    "target_jackknife.parquet",
    "target_epsilons.parquet",
)
"""Tables of the evaluations that figures need."""
MODELS = models.MODELS
OF_SETS = (
    more_references.TABLE,
    "more_references.json",
    pooling.TABLE,
    pooling.JACKKNIFE,
    vulnerability.TABLE,
    vulnerability.SAMPLE_FPR,
    "pooling.json",
    zero_run.TABLE,
    zero_run.CURVES,
    zero_run.SAMPLES,
    zero_run.INTERFERENCE,
    zero_run.EFFECTS,
    "zero_run.json",
    variance.TABLE,
    "variance_components.json",
    *token_tables.TABLES,
    "tokens.json",
    fragile_hits.TABLE,
    fragile_hits.BINS,
    recency.TABLE,
    recency.RATES,
    recency.SHUFFLED,
    reference_numbers.TABLE,
    text_groups.TABLE,
    token_tfidf.TABLE,
    *(f"{study}.json" for study in studies.STUDIES),
)
"""Tables that are no evaluation of one attack."""


def of_set(stored: StoredTables, pieces: Pieces) -> dict[str, Export]:
    """Returns the tables of a set."""
    results, tables_of = pieces.results, stored.of
    return {
        name: lambda name=name: results.parts(tables_of.key(pieces, name)) for name in stored.names
    }


def facts_of(stored: StoredTables) -> dict[str, Export]:
    """Returns NAME.json, the settings and models of the tables of a set, and facts about them."""
    if not (stored.names or stored.facts.get("reason")):
        return {}
    return {f"{stored.of.name}.json": lambda: {**stored.of.settings, **stored.facts}}


def of_replicas(
    replicas: Replicas, sets: Mapping[str, StoredTables], pieces: Pieces
) -> dict[str, Export]:
    """Returns all tables of decisions.

    Args:
      replicas: the attacks.
      sets: name of `Replicas.sets` -> its tables.
      pieces: where the evaluations are stored.
    """
    c, main = replicas.c, replicas.main
    exports: dict[str, Export] = {
        name: lambda evaluation=evaluation: pieces.parts(Request(main, evaluation))
        for name, evaluation in DECISIONS.items()
    }
    for stored in sets.values():
        exports |= of_set(stored, pieces)
    exports.pop(reference_targets.INTERVALS, None)
    points = {spec: _points(spec, pieces) for spec in replicas.specs}
    specs = [spec for spec in replicas.specs if _have_scores(points[spec])]
    complete = [spec for spec in replicas.complete if spec in specs]
    jackknife, of_references = sets["decision_jackknife"], sets["reference_targets"]

    def intervals() -> pd.DataFrame:
        parts = [rows_of_attacks(complete, rate_intervals.rate_intervals, pieces, count=False)]
        if reference_targets.INTERVALS in of_references.names:
            rows = _read_table(of_references, reference_targets.INTERVALS, pieces)
            rows.insert(0, "attack", "lira_online")
            parts.append(rows)
        return pd.concat(parts)

    def flips() -> dict[str, Any]:
        shares = pieces.table(Request(main, DECISIONS["flip_shares.csv"]))
        warnings = sets["replica_warnings"].facts["warnings"]
        left_out = int(shares["left_out"].iloc[0])
        return {**replicas.facts(), "left_out": left_out, "warnings": warnings}

    exports |= {
        "attacks.csv": lambda: _attacks(specs, points, main, c, pieces),
        "roc.csv": lambda: pd.concat(
            [tables.roc_rows(spec.name, len(spec.references), points[spec], c) for spec in specs]
        ),
        attack_flips.TABLE: lambda: _attack_flips(
            complete, main, _read_table(jackknife, "decision_jackknife.parquet", pieces), pieces
        ),
        "flips.json": flips,
    }
    exports |= of_scores(complete, pieces)

    def members() -> dict[str, np.ndarray]:
        return {"member": _members(replicas.store, replicas.targets[:1])[0]}

    first_id = replicas.population.first_id
    exports[SCORE_TABLE] = lambda: membership_scores(replicas.complete, members, first_id, pieces)
    if c.bootstraps:
        exports[rate_intervals.TABLE] = intervals
    return exports


def of_score_table(
    specs: Sequence[AttackSpec],
    warnings: Sequence[str],
    store: Store,
    population: Population,
    pieces: Pieces,
) -> dict[str, Export]:
    """Returns the tables of the attacks of the config on targets.

    Args:
      specs: the attacks.
      warnings: what users should know about the targets.
      store: the score store of the recipe.
      population: the attacked samples.
      pieces: where the evaluations are stored.
    """
    specs = [spec for spec in specs if pieces.has(Request(spec, evaluations.stored_scores))]
    if not specs:
        return {}
    targets = target_models(specs[0])
    shown = targets[: evaluations.num_stored(len(targets), len(population))]

    def members() -> dict[str, np.ndarray]:
        names = (f"member/{target}" for target in shown)
        return dict(zip(names, _members(store, shown), strict=True))

    def intervals() -> pd.DataFrame:
        empty = pd.DataFrame(columns=rate_intervals.COLUMNS)
        if not pieces.c.bootstraps:
            return empty
        rows = rows_of_attacks(specs, rate_intervals.rate_intervals, pieces, count=False)
        return rows if len(rows) else empty

    return of_scores(specs, pieces) | {
        rate_intervals.TABLE: intervals,
        SCORE_TABLE: lambda: membership_scores(specs, members, population.first_id, pieces),
        "membership_scores.json": lambda: {"warnings": [*warnings]},
    }


def of_scores(specs: Sequence[AttackSpec], pieces: Pieces) -> dict[str, Export]:
    """Returns the tables of advantages and audits of attacks."""
    return {
        advantage.TABLE: lambda: rows_of_attacks(specs, advantage.membership_advantage, pieces),
        audit.TABLE: lambda: rows_of_attacks(specs, audit.epsilon_audit, pieces),
        audit.CURVE_TABLE: lambda: rows_of_attacks(specs, audit.audit_curve, pieces),
    }


def of_requests(requests: Sequence[Request], pieces: Pieces) -> dict[str, Export]:
    """Returns the tables of the evaluations that figures need, `OF_REQUESTS`; attacks that were left out are not in
    them."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for request in dict.fromkeys(requests):
        if request.evaluation not in (
            evaluations.operating_points,
            evaluations.halved_rates,
            evaluations.epsilons,
        ):
            continue
        for name, table in _exported(request, pieces).items():
            table.insert(0, "attack_id", request.spec.id)
            parts.setdefault(name, []).append(table)
    return {
        name: lambda found=found: pd.concat(found, ignore_index=True)
        for name, found in parts.items()
    }


def write(folder: Path, exports: Mapping[str, Export], names: Iterable[str]) -> None:
    """Writes all tables, and then removes others.

    An equal file keeps its time, by which the report is found to be older than the tables.

    Args:
      folder: folder of the tables.
      exports: name -> table.
      names: names of files that are removed unless they are among the exports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, export in exports.items():
        path = folder / name
        with replacing(path) as temporary:
            _write(temporary, path.suffix, export())
            if path.is_file() and filecmp.cmp(path, temporary, shallow=False):
                os.utime(temporary, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    for path in (*(folder / name for name in {*names} - {*exports}), *abandoned(folder)):
        path.unlink(missing_ok=True)


def _write(path: Path, suffix: str, content: Table | Mapping[str, Any]) -> None:
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
    parts = iter(content)
    first = next(parts)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


def rows_of_attacks(
    specs: Sequence[AttackSpec],
    evaluation: evaluations.Evaluation,
    pieces: Pieces,
    *,
    count: bool = True,
) -> pd.DataFrame:
    """Returns the rows of attacks one after another, after the columns attack and, by default, references."""
    rows = []
    for spec in specs:
        table = pieces.table(Request(spec, evaluation))
        if count:
            table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        rows.append(table)
    # A column of an attack without rows has no type.
    return pd.concat([table for table in rows if len(table)] or rows[:1], ignore_index=True)


def membership_scores(
    specs: Sequence[AttackSpec],
    members: Callable[[], Mapping[str, np.ndarray]],
    first_id: int,
    pieces: Pieces,
) -> Iterator[pa.Table]:
    """Yields membership_scores.parquet: id, columns of membership, and a column ATTACK/MODEL for each attack and model.

    Args:
      specs: the attacks.
      members: returns name of a column -> member_N, membership of the samples in a training subset.
      first_id: id of the first sample.
      pieces: where the scores are stored.
    """
    member_N, low = members(), 0
    of_attacks = [pieces.parts(Request(spec, evaluations.stored_scores)) for spec in specs]
    for parts in zip(*of_attacks, strict=True):  # row groups of the same samples
        high = low + len(parts[0])
        columns = {"id": pa.array(first_id + np.arange(low, high))}
        columns |= {name: pa.array(value_N[low:high]) for name, value_N in member_N.items()}
        for spec, part in zip(specs, parts, strict=True):
            columns |= {f"{spec.name}/{name}": part[name] for name in part.column_names}
        yield pa.table(columns)
        low = high


def _members(store: Store, models: Sequence[ModelSeeds]) -> np.ndarray:
    """Returns member_MxN of the attacked samples."""
    [(_, value)] = store.canary_blocks({"member": ("member", models)}, sys.maxsize)
    return value["member"]


def _read_table(stored: StoredTables, name: str, pieces: Pieces) -> pd.DataFrame:
    """Returns a table of a set."""
    return to_frame(pa.concat_tables([*pieces.results.parts(stored.of.key(pieces, name))]))


def _points(spec: AttackSpec, pieces: Pieces) -> stats.OperatingPoints:
    return evaluations.read_points(pieces.table(Request(spec, evaluations.operating_points)))


def _have_scores(points: stats.OperatingPoints) -> bool:
    """Returns whether all models have members and non-members with scores; with few references, there may be none."""
    return bool(points.members_T.all() and points.nonmembers_T.all())


def _attacks(
    specs: Sequence[AttackSpec],
    points: Mapping[AttackSpec, stats.OperatingPoints],
    main: AttackSpec,
    c: config.Attack,
    pieces: Pieces,
) -> pd.DataFrame:
    """Returns attacks.csv."""
    return pd.DataFrame(
        [
            tables.attack_row(
                spec.name,
                len(spec.references),
                points[spec],
                _not_shared(spec, main, pieces),
                c,
            )
            for spec in specs
        ]
    )


def _not_shared(spec: AttackSpec, main: AttackSpec, pieces: Pieces) -> float:
    """Returns the fraction of the samples that have a score under only one of two attacks."""
    missing_2xN = [
        pieces.table(Request(s, evaluations.missing_scores))["missing"].to_numpy()
        for s in (spec, main)
    ]
    return float(np.mean(missing_2xN[0] ^ missing_2xN[1]))


def _attack_flips(
    specs: Sequence[AttackSpec], main: AttackSpec, jackknife: pd.DataFrame, pieces: Pieces
) -> pd.DataFrame:
    """Returns attack_flips.csv."""
    shares, parts = [], {}
    for spec in specs:
        of_attack = attack_flips.lira_flips if spec == main else attack_flips.attack_flips
        table = pieces.table(Request(spec, of_attack))
        table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        shares.append(table.assign(not_shared_fraction=_not_shared(spec, main, pieces)))
        if spec != main:
            parts[spec.name] = pieces.table(Request(spec, attack_flips.flip_parts))
    return attack_flips.compare(shares, parts, jackknife)


def _exported(request: Request, pieces: Pieces) -> dict[str, pd.DataFrame]:
    """Returns the rows of a piece in `OF_REQUESTS`; none if there is no piece, because the attack was left out."""
    if not pieces.has(request):
        return {}
    table = pieces.table(request)
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
