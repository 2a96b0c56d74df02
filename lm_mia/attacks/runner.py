"""Attacks: the score store -> scores, decisions and metrics -> tables.

T: targets, M: references, F: false positive rates, G: points of a curve, N2: samples of the population (2N).
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from lm_mia import config
from lm_mia.atomic import FACTS, write_atomically, write_csv
from lm_mia.attacks import decisions, resampling, score_matrix, signals, tables
from lm_mia.attacks.score_matrix import ScoreFile
from lm_mia.config import NEEDED, AttackName
from lm_mia.data import subsets
from lm_mia.data.population import MEASURES, Population
from lm_mia.errors import UserError
from lm_mia.seeds import permutation
from lm_mia.stats import coin_flip, flips, intervals, roc
from lm_mia.store.store import Store

_SHUFFLES = 10
_CURVE_POINTS = 100
_REFERENCE_FREE = ("loss", "zlib", "min_k", "min_k_plus_plus", "lowercase")


def run(
    store: Store,
    population: Population,
    c: config.Attack,
    folder: Path,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> None:
    """Attacks every target that is there and writes the tables.

    Args:
      store: with rows of the attack present, at its step; those absent there are left out, and the tables say so.
      population: for lengths and texts.
      c: which rows, attacks, rates and levels.
      folder: of the tables.
      progress: called as ``progress("attack", done, total)``.
      say: told, in one line, what a person must know, such as absent rows or samples without enough references.

    Raises:
      UserError: too few rows are present or one is corrupt, or the references suffice for no sample of a class.
    """
    source = open_source(store, population, c, say)
    if c.leave_one_out:
        resampling.refuse_balanced(source)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.[0-9]*"):  # by a killed attack
        left.unlink()
    facts_path = folder / FACTS.name
    member_N2, references = source.target_member_N2, len(source.references)
    counts = {references, *(2**i for i in range(references.bit_length()))}
    settings: list[tuple[AttackName, int]] = [
        (name, count)
        for name in c.attacks
        for count in sorted(counts)
        if count == references or name not in _REFERENCE_FREE
    ]
    steps = len(settings) + _SHUFFLES + 1
    attacks, curves, intervals, counted = [], [], [], None
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        of_rmia = comparisons(source, c)
        for step, (name, count) in enumerate(settings):

            def part(share: float, step: int = step) -> None:
                progress("attack", step + share, steps)

            part(0)
            whole, used = count == references, 0 if name in _REFERENCE_FREE else count
            some = source.with_references(range(count))
            fitted = signals.fit(some, [name], signals.first(of_rmia, count), c)
            with ScoreFile(folder, len(source.targets), len(member_N2)) as file:
                score_matrix.fill(
                    {name: file}, some, fitted, c, pool, progress=lambda x: part(0.4 * x)
                )
                points = score_matrix.points(file, member_N2, rates(c, member_N2), pool)
                if whole and name == "lira_online":
                    _check(points, references, c, say)
                    part(0.6)
                    facts_path.unlink(missing_ok=True)
                    columns = {name: population.column(name) for name in MEASURES}
                    counted = decisions.write(some, fitted, file, points, columns, c, folder, pool)
                if not (points.members_T.all() and points.nonmembers_T.all()):
                    continue  # so few references are enough for no sample of a class
                part(0.8)
                attacks.append(tables.attack(name, used, points, c))
                curves.append(tables.curve(name, used, points, c))
                if whole and c.bootstraps:
                    intervals.append(_intervals(name, points, file.target(0), member_N2, c))
        assert counted is not None, "lira_online is among the attacks"
        write_csv(folder / "attacks.csv", pd.DataFrame(attacks))
        write_csv(folder / "roc.csv", pd.concat(curves))
        _write_or_remove(folder / "intervals.csv", intervals)
        _shuffled(source, c, folder, pool, lambda n: progress("attack", step + 1 + n, steps))
        _diagnose(source, c, folder, pool, say)
    found = decisions.find(folder / "samples.parquet", population, len(source.targets), c)
    write_csv(folder / "archetypes.csv", found)
    facts = _facts(source, counted, c)
    write_atomically(facts_path, json.dumps(facts, indent=1) + "\n")
    progress("attack", steps, steps)


def rates(c: config.Attack, member_N2: np.ndarray) -> list[float]:
    """False positive rates at which every target is measured: attack.fprs, then the points of the curves."""
    grid_G = np.geomspace(1 / max(int((~member_N2).sum()), 1), 1, _CURVE_POINTS)
    return [*c.fprs, *np.unique([0.0, *c.band, *grid_G])]


def open_source(
    store: Store, population: Population, c: config.Attack, say: Callable[[str], None]
) -> signals.Source:
    """The rows of an attack that are there at its step; UserError if they are too few."""
    store = dataclasses.replace(store, step=c.step)
    wanted = subsets.rows(c.references, c.replicas)
    absent = set(store.missing(wanted, store.step))
    rows = [row for row in wanted if row not in absent]
    references = [row for row in rows if row.role == "reference"]
    targets = [row for row in rows if row.role == "replica"]
    if len(references) < 4 or len(targets) < 2:
        raise UserError(
            f"{store.path}: {len(references)} of {c.references} references and {len(targets)} of {c.replicas} replicas "
            f"are there{_with(store)}, of 4 and 2 that an attack needs at least; run `lm-mia run` first"
        )
    if absent:
        say(
            f"{len(absent)} of {len(wanted)} models are absent{_with(store)}: attacking {len(targets)} of {c.replicas} "
            f"replicas with {len(references)} of {c.references} references; `lm-mia run` makes the others"
        )
    _, member_1xN2 = store.read(targets[:1])
    return signals.Source(
        store,
        targets,
        references,
        member_1xN2[0],
        population.column("zlib_bytes"),
        tuple(NEEDED[a] for a in c.attacks if a in NEEDED),
    )


def _with(store: Store) -> str:
    said = [f"with {', '.join(store.statistics)}"] if store.statistics else []
    said += [f"at step {store.step}"] if store.step else []
    return f" ({', '.join(said)})" if said else ""


def comparisons(source: signals.Source, c: config.Attack) -> signals.Block | None:
    """The samples that RMIA compares with, drawn by seed from the population, under all rows."""
    if not {"rmia", "rmia_offline"} & set(c.attacks):
        return None
    order_N2 = permutation(0, "samples that RMIA compares with", len(source.target_member_N2))
    return signals.gather(source, np.sort(order_N2[: c.rmia_samples]))


@contextlib.contextmanager
def _files(
    folder: Path, names: Sequence[AttackName], targets: int, samples: int
) -> Iterator[dict[AttackName, ScoreFile]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(ScoreFile(folder, targets, samples)) for name in names}


def _check(
    points: roc.OperatingPoints, references: int, c: config.Attack, say: Callable[[str], None]
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
    points: roc.OperatingPoints,
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    c: config.Attack,
) -> pd.DataFrame:
    """Rows of intervals.csv, 95 %, over the choice of samples: AUC and TPRs of the first target."""
    found = intervals.intervals(score_N2, member_N2, c.fprs, replicates=c.bootstraps)
    members = points.members_T[0]
    exact = intervals.clopper_pearson(np.rint(found.tpr_TxF[0] * members), members)
    table = pd.DataFrame({"attack": name, "metric": [f"tpr_at_{fpr:g}" for fpr in c.fprs]})
    table["value"], table["bootstrap_low"] = found.tpr_TxF[0], found.tpr_low_TxF[0]
    table["bootstrap_high"] = found.tpr_high_TxF[0]
    table["clopper_pearson_low"], table["clopper_pearson_high"] = exact
    area = {"attack": name, "metric": "auc", "value": found.auc_T[0]}
    area |= {"bootstrap_low": found.auc_low_T[0], "bootstrap_high": found.auc_high_T[0]}
    return pd.concat([pd.DataFrame([area]), table]).assign(left_out=int(found.left_out_T[0]))


def _shuffled(
    source: signals.Source,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[int], None],
) -> None:
    """AUC of every attack where membership is noise; anything but 0.5 would be a leak in our own machinery."""
    auc: dict[AttackName, list[float]] = {name: [] for name in c.attacks}
    left_out = dict.fromkeys(c.attacks, 0)
    for shuffle in range(_SHUFFLES):
        noise = source.shuffled(shuffle)
        fitted = signals.fit(noise, c.attacks, comparisons(noise, c), c)
        with _files(folder, c.attacks, 1, len(noise.target_member_N2)) as files:
            score_matrix.fill(files, noise, fitted, c, pool)
            for name, file in files.items():
                found = roc.auc(file.target(0), noise.target_member_N2)
                auc[name].append(float(found.auc_T[0]))
                left_out[name] = max(left_out[name], int(found.left_out_T[0]))
        progress(shuffle + 1)
    rows = [
        {"attack": name, "references": 0 if name in _REFERENCE_FREE else len(source.references)}
        | {"shuffles": _SHUFFLES, "auc_mean": np.mean(a), "auc_std": np.std(a)}
        | {"auc_min": np.min(a), "auc_max": np.max(a), "left_out": left_out[name]}
        for name, a in auc.items()
    ]
    write_csv(folder / "shuffled.csv", pd.DataFrame(rows))


def _diagnose(
    source: signals.Source,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    say: Callable[[str], None],
) -> None:
    """The tables that are made when asked for; what an earlier attack left is removed."""
    resampled = []
    pairs = len(resampling.pairs(source))
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
                f"attack.resample_references={c.resample_references}: up to {short} of {len(source.target_member_N2)} "
                "samples lack IN or OUT references in some set and are left out; larger sets mend it"
            )
    _write_or_remove(folder / "resampled_references.csv", resampled)
    probabilities = folder / "true_positive_probability.parquet"
    if c.leave_one_out:
        resampling.true_positive_probability(source, c, probabilities, pool)
    else:
        probabilities.unlink(missing_ok=True)


def _write_or_remove(path: Path, parts: list[pd.DataFrame]) -> None:
    if parts:
        write_csv(path, pd.concat(parts))
    else:
        path.unlink(missing_ok=True)


def _facts(
    source: signals.Source, counted: flips.FlipCounts, c: config.Attack
) -> dict[str, object]:
    """What the tables are about."""
    replicas = len(source.targets)
    k_low, cutoff = coin_flip.coin_flip_cutoff(replicas, c.alpha)
    return {
        "recipe": source.store.path.parent.name,
        "config": dataclasses.asdict(c),
        "attack": "lira_online",
        "first_target": str(source.targets[0]),
        "references": len(source.references),
        "replicas": replicas,
        "k_low": k_low,
        "cutoff": cutoff,
        "max_flip_rate": flips.max_flip_rate(replicas),
        "left_out": int(counted.left_out_F[0]),
    }
