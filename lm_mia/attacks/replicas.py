"""Attacks on the replicas of one target, and what is computed of their decisions.

An attack on replicas is an attack like any other, whose models share their training subset. Its evaluations are those
of `lm_mia.attacks.decisions` and others; `Replicas.sets` has what is no evaluation of one attack.

T: targets, F: false positive rates, N2: samples of the population (2N).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks import (
    attack_flips,
    decision_jackknife,
    decisions,
    evaluations,
    models,
    privacy_bounds,
    rate_intervals,
    reference_targets,
    registry,
    resampling,
    score_matrix,
    target_warnings,
    user_code,
)
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.shown_samples import shown_samples
from lm_mia.attacks.spec import AttackSpec, Request, decision_settings
from lm_mia.attacks.table_sets import Facts, TableSet, Work, Write
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable
from lm_mia.store.store import NOT_REPRODUCIBLE, Store

DECISIONS = {
    "error_rates.csv": decisions.error_rates,
    "thresholds.csv": decisions.thresholds,
    "flip_shares.csv": decisions.flip_shares,
    "flip_shares_by_replicas.csv": decisions.flip_shares_by_replicas,
    "true_positives.csv": decisions.true_positives,
    "replica_true_positives.csv": decisions.replica_true_positives,
    "coin_free_roc.csv": decisions.coin_free_roc,
    "partial_auc.csv": decisions.partial_auc,
    "samples.parquet": decisions.samples,
    "flip_curves.csv": decisions.flip_curves,
    "archetypes.csv": decisions.archetypes,
    "archetype_losses.csv": decisions.archetype_losses,
    "shown_samples.parquet": shown_samples,
}
"""Name of a table of online LiRA with all references -> the evaluation that returns it."""
_NUM_SHUFFLES = 10


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The replicas and references of a recipe that are present, and their attacks."""

    store: Store
    """With the statistics that the attacks need, and `step` set to the attacked step."""
    population: Population
    """The attacked samples."""
    c: config.Attack
    targets: Sequence[ModelSeeds]
    references: Sequence[ModelSeeds]

    @functools.cached_property
    def specs(self) -> tuple[AttackSpec, ...]:
        """Every attack of the config, with the first 1, 2, 4, ... references and with all of them."""
        c, references = self.c, tuple(model.subset_seed for model in self.references)
        targets = tuple(model.order_seed for model in self.targets)
        counts = sorted({len(references), *(2**i for i in range(len(references).bit_length()))})
        samples = min(c.rmia_samples, len(self.population))
        return tuple(
            AttackSpec(
                name,
                True,
                targets,
                references[:count] if _uses_references(name) else (),
                config.number(c.step),
                rmia_samples=samples if "rmia_samples" in registry.find(name).settings else 0,
                rmia_gamma=c.rmia_gamma if "rmia_gamma" in registry.find(name).settings else 0.0,
            )
            for name in c.attacks
            for count in counts
            if count == len(references) or _uses_references(name)
        )

    @property
    def complete(self) -> tuple[AttackSpec, ...]:
        """The attacks with all references, and those without references."""
        most = len(self.references)
        return tuple(
            s for s in self.specs if len(s.references) == most or not _uses_references(s.attack)
        )

    @property
    def main(self) -> AttackSpec:
        """Online LiRA with all references, whose decisions have tables; raises Unavailable without references."""
        if not self.references:
            raise Unavailable(
                f"{self.store.path.parent.name}: LiRA needs references, and all imported models are replicas; import 4 "
                "or more references too"
            )
        [main] = (spec for spec in self.complete if spec.attack == "lira_online")
        return main

    def requests(self) -> list[Request]:
        """Returns the evaluations of all attacks."""
        requests: list[Request] = []
        if self.references:
            requests += [Request(self.main, evaluation) for evaluation in DECISIONS.values()]
            requests.append(Request(self.main, attack_flips.lira_flips))
        for spec in self.specs:
            requests.append(Request(spec, evaluations.operating_points))
            requests.append(Request(spec, evaluations.missing_scores))
        for spec in self.complete:
            requests += complete_requests(spec, self.c)
            if not self.references or spec != self.main:
                requests.append(Request(spec, attack_flips.attack_flips))
                requests.append(Request(spec, attack_flips.flip_parts))
        return requests

    @functools.cached_property
    def inputs(self) -> AttackInputs:
        """The models, opened when they are first used."""
        statistics = registry.statistics_of(self.c.attacks)
        design = model_design(self.store, models.present_models(self.store, self.store.step))
        return open_inputs(
            self.store, self.population, self.targets, self.references, statistics, design=design
        )

    def sets(self, work: Work) -> dict[str, TableSet]:
        """Returns name -> the tables that are no evaluation of one attack."""
        c, document_N2 = self.c, self.population.document_N
        everything = [*self.targets, *self.references]
        settings = {"config": decision_settings(c), "models": [*map(str, everything)]}

        def table_set(name: str, compute: Callable[[Write], Facts]) -> TableSet:
            return TableSet(name, everything, settings, compute)

        def shuffled(write: Write) -> Facts:
            write("shuffled.csv", shuffled_labels(self.inputs, c, work))
            return {}

        def jackknife(write: Write) -> Facts:
            table = decision_jackknife.decision_jackknife(self.inputs, document_N2, c, work.pool)
            write("decision_jackknife.parquet", table)
            return {}

        def warnings(_: Write) -> Facts:
            return {"warnings": target_warnings.warnings(self.inputs, self.population)}

        sets = {
            "shuffled": table_set("shuffled", shuffled),
            "replica_warnings": table_set("replica_warnings", warnings),
        }
        if self.references:
            sets["decision_jackknife"] = table_set("decision_jackknife", jackknife)
            sets["reference_targets"] = reference_targets.table_set(
                lambda: self.inputs,
                self.references,
                c,
                lambda: stats.sample_groups(document_N2),
                work,
            )
        if c.resample_references:
            resample = functools.partial(_resample, self, work)
            sets["resampled_references"] = table_set("resampled_references", resample)
        return sets

    def facts(self) -> dict[str, object]:
        """Returns what flips.json says about the tables of decisions."""
        replicas = len(self.targets)
        k_low, cutoff = stats.coin_flip_cutoff(replicas, self.c.alpha)
        return {
            "config": decision_settings(self.c),
            "design": self.store.design,
            "reference_models": [*map(str, self.references)],
            "replica_models": [*map(str, self.targets)],
            "recipe": self.store.path.parent.name,
            "attack": "lira_online" if self.references else user_code.short(self.c.headline),
            "first_target": str(self.targets[0]),
            "references": len(self.references),
            "replicas": replicas,
            "k_low": k_low,
            "cutoff": cutoff,
            "max_flip_rate": stats.max_flip_rate(replicas),
        }


def find_replicas(
    store: Store, population: Population, c: config.Attack, say: Callable[[str], None]
) -> Replicas:
    """Returns the models of an attack that are present at its step; raises Unavailable if there are too few.

    Imported replicas may have no references at all.

    Args:
      store: the score store of the recipe, with the statistics that the attacks need.
      population: the attacked samples.
      c: settings of the recipe.
      say: called with a line for the user if models are missing.
    """
    store = dataclasses.replace(store, step=config.number(c.step))
    requested = subsets.requested_seeds(c.references, c.replicas)
    missing = set(store.missing_models(requested, store.step))
    present = [model for model in requested if model not in missing]
    references = [model for model in present if model.role == "reference"]
    targets = [model for model in present if model.role == "replica"]
    if (c.references and len(references) < 4) or len(targets) < 2:
        raise Unavailable(
            f"{store.path}: {len(references)} of {c.references} references and {len(targets)} of {c.replicas} replicas "
            f"are present{store.requirement}, but an attack needs at least 4 and 2; run `lm-mia run` first"
        )
    _check_reproducible(store, targets + references)
    if missing:
        say(
            f"{len(missing)} of {len(requested)} models are missing{store.requirement}: attacking {len(targets)} of "
            f"{c.replicas} replicas with {len(references)} of {c.references} references; run `lm-mia run` to make the "
            "others"
        )
    return Replicas(store, population, c, targets, references)


def _check_reproducible(store: Store, models: Sequence[ModelSeeds]) -> None:
    """Raises Unavailable if the seeds determine the bits of some models of a table of decisions, but not of others.

    Models without a record were imported, trained on CPUs, or trained by a version whose models differed between runs
    on GPUs. Beside models of a GPU, they count as not reproducible.
    """
    computations = store.computations()
    records = {computations[model] for model in models}
    is_on_gpu = any(record and not record.endswith("x cpu") for record in records)
    is_reproducible = {
        not record.startswith(NOT_REPRODUCIBLE) and bool(record or not is_on_gpu)
        for record in records
    }
    if len(is_reproducible) > 1:
        named = "; ".join(sorted(record or "not recorded" for record in records))
        raise Unavailable(
            f"{store.path}: some models are the same in every run from the same seeds and others are not ({named}), so "
            "that their decisions cannot be compared; make the models again with `lm-mia run` in a new workdir, "
            "without --config.compute.attention=cudnn"
        )


def complete_requests(spec: AttackSpec, c: config.Attack) -> list[Request]:
    """Returns the evaluations of every attack of the config with all references, on replicas or on targets."""
    functions: list[Callable[..., Any]] = [evaluations.stored_scores]
    functions += [rate_intervals.rate_intervals] if c.bootstraps else []
    return [Request(spec, function) for function in functions]


def _uses_references(attack: str) -> bool:
    return registry.find(attack).uses_references


SHUFFLED_TABLE = Table(
    "shuffled.csv",
    (
        "Each row is an attack of `attack.attacks` with all references, on the first replica, 10 times with permuted "
        "membership labels, in the same way for the target and all references (within blocks of 65,536 samples). An "
        "AUC far from 0.5 would show a leak."
    ),
    {
        **common("attack", "references"),
        "shuffles": Column("count", "repetitions, 10"),
        "auc_mean, auc_std, auc_min, auc_max": Column(
            "fraction", "AUC over repetitions: mean, standard deviation, smallest and largest"
        ),
        "one_run_epsilon_mean, one_run_epsilon_max": Column(
            "none",
            (
                "mean and largest of the bounds `one_run` of `audit.csv` over repetitions: each is above 0 with a "
                "probability of at most `attack.alpha`. Empty if `train.subset` is `given`"
            ),
        ),
        **common("left_out"),
    },
    key=("attack",),
)


def shuffled_labels(inputs: AttackInputs, c: config.Attack, work: Work) -> pd.DataFrame:
    """Returns shuffled.csv: AUC and one-run epsilon of every attack with shuffled membership labels.

    They should be near 0.5 and 0.
    """
    auc: dict[str, list[float]] = {name: [] for name in c.attacks}
    left_out = dict.fromkeys(c.attacks, 0)
    epsilon: dict[str, list[float]] = {name: [] for name in c.attacks}
    work.progress("shuffled labels", 0, _NUM_SHUFFLES)
    for shuffle in range(_NUM_SHUFFLES):
        noise = inputs.with_shuffled_labels(shuffle)
        tasks = [score_matrix.AttackTask(name, vars(c)) for name in c.attacks]
        with score_matrix.score_all(tasks, noise, work.folder, work.pool) as results:
            for name, (_, file) in zip(c.attacks, results, strict=True):
                score_N2, member_N2 = file.read_target(0), noise.target_member_TxN2[0]
                result = stats.auc(score_N2, member_N2)
                bound = privacy_bounds.one_run_bound(
                    score_N2, member_N2, inputs.store.design, c.alpha, c.delta
                )
                epsilon[name].append(np.nan if bound is None else bound.epsilon)
                auc[name].append(float(result.auc_T[0]))
                left_out[name] = max(left_out[name], int(result.left_out_T[0]))
        work.progress("shuffled labels", shuffle + 1, _NUM_SHUFFLES)
    rows = [
        {"attack": user_code.short(name)}
        | {"references": len(inputs.references) * _uses_references(name)}
        | {"shuffles": _NUM_SHUFFLES, "auc_mean": np.mean(values), "auc_std": np.std(values)}
        | {"auc_min": np.min(values), "auc_max": np.max(values)}
        | {"one_run_epsilon_mean": np.mean(epsilon[name])}
        | {"one_run_epsilon_max": np.max(epsilon[name]), "left_out": left_out[name]}
        for name, values in auc.items()
    ]
    return pd.DataFrame(rows)


def _resample(replicas: Replicas, work: Work, write: Write) -> Facts:
    """Computes resampled_references.csv if there are enough references."""
    c, inputs = replicas.c, replicas.inputs
    units = resampling.reference_units(inputs.references, inputs.design)
    present, size = sum(map(len, units)), c.resample_references // 2 * 2
    if present < size or len(resampling.disjoint_sets(units, size)) < 2:
        work.say(
            f"attack.resample_references={c.resample_references}: the {present // 2} pairs of references that are "
            "present are too few for two sets; resampled_references.csv is not written"
        )
        return {}
    table = resampling.resampled_references(inputs, c, work.folder, work.pool)
    write("resampled_references.csv", table)
    if left_out := table["left_out"].max():
        work.say(
            f"attack.resample_references={c.resample_references}: up to {left_out} of {inputs.num_samples} "
            "samples have too few IN or OUT references in a set and are left out; use larger sets"
        )
    return {}
