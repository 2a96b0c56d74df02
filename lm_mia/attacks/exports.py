"""Exports: files in the folder ``tables`` of a recipe, for users and their programs.

They are written last by a command that ended, each under a temporary name that then replaces the old file, and those
that the config does not ask for any more are removed at the same moment. They consist of pieces; anyone may edit or
delete them, and the next command writes them again.
"""

import collections
import contextlib
import dataclasses
import filecmp
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import abandoned, replacing, write_atomically
from lm_mia.attacks import (
    attack_flips,
    decision_jackknife,
    decisions,
    evaluations,
    models,
    rate_intervals,
    reference_targets,
    registry,
    replicas,
    resampling,
    shown_samples,
    tables,
    targets,
    user_code,
)
from lm_mia.attacks.declarations import Column, Table, column_mismatches, common
from lm_mia.attacks.experiment import Content, RecipeView, TokenSettings, silent
from lm_mia.attacks.headline import effective_attack
from lm_mia.attacks.pieces import open_pieces, target_models
from lm_mia.attacks.replicas import DECISIONS
from lm_mia.attacks.results import to_frame
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request
from lm_mia.attacks.studies import study_set
from lm_mia.attacks.table_sets import Facts, TableSet, Write
from lm_mia.attacks.unchanged import digest
from lm_mia.attacks.user_code import UserCodeError
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable, UserError
from lm_mia.store.store import Store, open_store

_EXPORTED = "exported.json"
"""In the folder of the pieces: the names of the exported tables, since those of studies are known only while figures
name them."""


# Sets of tables that one function computes together


def models_set(view: RecipeView) -> TableSet:
    """Returns models.csv."""
    return models.models_set(view.store, view.present)


def sample_losses_set(view: RecipeView) -> TableSet:
    """Returns sample_losses.csv; raises Unavailable if no figure reads it."""
    if not view.declared.loss_samples:
        raise Unavailable(
            f"{view.name}: no figure of the config reads losses of single samples; run lm-mia attack with such a "
            "figure in figures"
        )
    references = [model for model in view.present if model.role == "reference"]
    ids, document_N = view.declared.loss_samples, view.population.document_N
    return models.sample_losses_set(view.store, references, ids, document_N)


def replica_set(name: str) -> Callable[[RecipeView], TableSet]:
    """Returns the function that returns a set of `Replicas.sets`."""

    def make(view: RecipeView) -> TableSet:
        sets = view.once(_replica_sets)
        if name not in sets:
            _ = view.replicas.main  # says that references are missing
            raise Unavailable(
                f"{view.name}: attack.resample_references must be set; run lm-mia attack with it"
            )
        return sets[name]

    return make


def _replica_sets(view: RecipeView) -> Mapping[str, TableSet]:
    return view.replicas.sets(view.work)


SHUFFLED, JACKKNIFE, RESAMPLED = map(
    replica_set, ("shuffled", "decision_jackknife", "resampled_references")
)
REFERENCE_TARGETS, REPLICA_WARNINGS = map(replica_set, ("reference_targets", "replica_warnings"))


EXTRACTION_TABLE = Table(
    "extraction.csv",
    (
        "Each row is one of the `extract.samples` samples, in descending order of their scores (ties: lowest id "
        "first). `extract.choose` says which: those with the highest scores, among those with a score and enough "
        "tokens, or (`random`) a uniform draw of members and an equally large one of non-members, without replacement, "
        "from all samples with enough tokens. The first replica is prompted with the first `extract.prefix_tokens` "
        "tokens of the sample; the next `extract.suffix_tokens` tokens are the *suffix*. SCHEME is each `scheme`. "
        "StrongMIA Figure 7, PrivacyGuard Table 4.\n"
        "\n"
        "Greedy decoding generates one text, and the other schemes `extract.generations`; if that is 0, the latter "
        "have only the column `log_p_SCHEME`. If there are several texts, values are the largest over these. *Texts* "
        "are decoded from the tokens, in lower case, without ASCII punctuation "
        "([`clean_text`](reference/stats.md#lm_mia.stats.clean_text)); where nothing remains of the suffix, values are "
        "empty."
    ),
    {
        **common("id", "member"),
        "score": Column(
            "nats", "its `score` of `samples.parquet`; may be empty for random samples"
        ),
        "in_prompt": Column(
            "none",
            "1 if the text of the suffix is also in that of the prefix, so that a model can copy it, else 0",
        ),
        "log_p_SCHEME": Column(
            "nats",
            (
                "log-probability that the scheme draws the suffix after the prefix, the sum over its tokens; `-inf`: "
                "never"
            ),
        ),
        "exact_SCHEME": Column(
            "none", "1 if a generated text begins with the suffix, token by token, else 0"
        ),
        "contained_SCHEME": Column(
            "none", "1 if a generated text contains the tokens of the suffix anywhere, else 0"
        ),
        "overlap_SCHEME": Column(
            "fraction",
            (
                "length of the longest common subsequence of the tokens of the suffix and of a generated text, divided "
                "by the suffix's length; it grows with the length of the text, `extract.written_tokens`"
            ),
        ),
        "included_SCHEME": Column(
            "none", "1 if a generated text contains the text of the suffix, else 0"
        ),
        "substring_SCHEME": Column(
            "fraction",
            (
                "length of the longest contiguous part of the suffix's text that is in a generated text, in "
                "characters, divided by its length"
            ),
        ),
        "edit_SCHEME": Column(
            "fraction",
            (
                "1 minus the edit distance of the suffix's text and a generated text, divided by the length of the "
                "longer one"
            ),
        ),
        "reference_member": Column(
            "none",
            (
                "whether the first reference was trained on the sample; this and the next columns exist only with "
                "`extract.reference`"
            ),
        ),
        "reference_log_p_SCHEME": Column(
            "nats", "`log_p_SCHEME` of the first reference, given the same prefix"
        ),
        "reference_exact_SCHEME, reference_contained_SCHEME, reference_included_SCHEME": Column(
            "none", "the same measures for texts that the first reference generates"
        ),
        "reference_overlap_SCHEME, reference_substring_SCHEME, reference_edit_SCHEME": Column(
            "fraction", "the same"
        ),
    },
    key=("id",),
)


EXTRACTION_CURVES_TABLE = Table(
    "extraction_curves.csv",
    (
        "Each row is a scheme, a class of the samples of `extraction.csv`, a number of queries (1, 10, ..., 10^18) and "
        "a probability (0.1, 0.5, 0.9, 0.99, 0.999). A class without samples has no rows. Definition: (n, "
        "p)-discoverable extraction, Hayes et al. 2025, *Measuring memorization in language models via probabilistic "
        "extraction*."
    ),
    {
        **common("scheme", "class"),
        "queries": Column("count", "n, independent queries"),
        "probability": Column("fraction", "p"),
        "share": Column(
            "fraction",
            (
                "samples of the class whose suffix is drawn at least once in n queries with probability 1 - (1 - "
                "p_z)^n >= p, where log p_z is `log_p_SCHEME`"
            ),
        ),
        "left_out": Column("count", "samples of the class without a log p_z"),
    },
    key=("scheme", "class", "probability", "queries"),
)


EXTRACTION_RATES_TABLE = Table(
    "extraction_rates.csv",
    (
        "Each row is a scheme and a class of the samples of `extraction.csv`, without the samples that can be "
        '"extracted" without any memory of the training data: those whose suffix has a text that is also in the prefix '
        "(`in_prompt`), or no text at all. Shares that need generated texts are empty if there are none. Intervals are "
        "exact (Clopper-Pearson), for the share among all samples of the class that have enough tokens. They are valid "
        "only if the samples are a random draw, and empty unless `extract.choose=random`. PrivacyGuard Table 4."
    ),
    {
        **common("scheme", "class"),
        "samples": Column("count", "samples that the shares are of"),
        "left_out": Column("count", "samples of the class that are left out"),
        "inclusion, inclusion_low, inclusion_high": Column(
            "fraction", "samples with `included_SCHEME` = 1"
        ),
        "overlap_above_0.8, overlap_above_0.8_low, overlap_above_0.8_high": Column(
            "fraction", "samples with `overlap_SCHEME` > 0.8"
        ),
        "p_above_0.5, p_above_0.5_low, p_above_0.5_high, p_above_0.01, p_above_0.01_low, p_above_0.01_high": Column(
            "fraction", "samples whose suffix has a probability (exp of `log_p_SCHEME`) above this"
        ),
    },
    key=("scheme", "class"),
)


EXTRACTION_REFERENCE_TABLE = Table(
    "extraction_reference.csv",
    (
        "With `extract.reference`: how many samples are extracted from the first replica, from the first reference, "
        "from both or from neither. Each row is a scheme, a criterion and a pair of memberships that occurs. Samples "
        "that only the replica was trained on, and that are extracted from it alone, show the effect of training; "
        "samples that neither was trained on show the effect of chance."
    ),
    {
        **common("scheme"),
        "criterion": Column(
            "none", "name of a share of `extraction_rates.csv`, such as `inclusion`"
        ),
        "in_target, in_reference": Column(
            "none",
            "whether the first replica, and the first reference, were trained on the samples",
        ),
        "samples": Column("count", "samples of the row"),
        "left_out": Column("count", "samples that are left out, as in `extraction_rates.csv`"),
        "both, target_only, reference_only, neither": Column(
            "count",
            "samples extracted from both models, from the replica only, from the reference only, and from neither",
        ),
    },
    key=("scheme", "samples", "criterion"),
)


EXTRACTION_JSON_TABLE = Table(
    "extraction.json",
    "Describes the tables of extraction.",
    {
        "model": Column("none", "name of the replica that was queried"),
        "reference": Column(
            "none",
            "name of the reference that was also queried; empty without `extract.reference`",
        ),
        "step": Column("steps", "training step of the replica"),
        "config": Column("none", "all settings `extract.*` (see `lm-mia fields`)"),
        "samples": Column(
            "none",
            "hash of what determines the `samples.parquet` that the samples were taken from",
        ),
        "schemes": Column("none", "each scheme in words, by name"),
    },
)


def extraction_set(view: RecipeView) -> TableSet:
    """Returns the extraction of samples; raises Unavailable unless extract.samples is set."""
    c, replicas = view.extraction, view.replicas
    if not c.samples:
        raise Unavailable(f"{view.name}: extract.samples=0; run lm-mia extract with more")
    target = replicas.targets[0]
    reference = replicas.references[0] if c.reference else None
    settings = {
        "model": str(target),
        "reference": str(reference or ""),
        "step": config.number(view.c.step),
        "config": dataclasses.asdict(c),
        "samples": digest(view.pieces.key(Request(replicas.main, DECISIONS["samples.parquet"]))),
    }

    def compute(write: Write) -> Facts:
        if view.extract is None:
            raise Unavailable(f"{view.name}: no samples were extracted yet; run lm-mia extract")
        return view.extract(write)

    return TableSet("extraction", [target, reference] if reference else [target], settings, compute)


def target_warnings_set(view: RecipeView) -> TableSet:
    """Returns warnings about the targets; raises Unavailable if none is attacked."""
    tables = targets.warnings_set(view.declared.score_table, view.store, view.attacked)
    return _requested(view, tables, "no target is attacked")


def _requested(view: RecipeView, tables: TableSet | None, reason: str) -> TableSet:
    if tables is None:
        raise Unavailable(f"{view.name}: {reason}")
    return tables


SETS = (
    models_set,
    sample_losses_set,
    SHUFFLED,
    JACKKNIFE,
    RESAMPLED,
    REFERENCE_TARGETS,
    extraction_set,
)
"""Functions that return sets."""


# Tables that consist of several evaluations


def attacks_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the rates of each attack on the replicas, by number of references."""
    points = view.once(_points_of_replicas)
    rows = [
        tables.attack_row(
            spec.name, len(spec.references), points[spec], _not_shared(spec, view), view.c
        )
        for spec in _specs_with_scores(view)
    ]
    return pd.DataFrame(rows)


def roc_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the mean ROC curve of each attack on the replicas."""
    points = view.once(_points_of_replicas)
    rows = [
        tables.roc_rows(spec.name, len(spec.references), points[spec], view.c)
        for spec in _specs_with_scores(view)
    ]
    return pd.concat(rows)


def attack_flips_csv(view: RecipeView) -> pd.DataFrame:
    """Returns the flip rates under each attack, compared with those under LiRA."""
    jackknife = None
    if view.replicas.references:
        jackknife = view.table("decision_jackknife.parquet")
    shares, parts = [], {}
    for spec in _complete_specs(view):
        is_main = bool(view.replicas.references) and spec == view.replicas.main
        of_attack = attack_flips.lira_flips if is_main else attack_flips.attack_flips
        table = view.pieces.table(Request(spec, of_attack))
        table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        shares.append(table.assign(not_shared_fraction=_not_shared(spec, view)))
        if not is_main:
            parts[spec.name] = view.pieces.table(Request(spec, attack_flips.flip_parts))
    return attack_flips.compare(shares, parts, jackknife)


FLIPS_JSON_TABLE = Table(
    "flips.json",
    "Describes the tables of decisions.",
    {
        "config": Column("none", "all settings `attack.*` (see `lm-mia fields`)"),
        "reference_models, replica_models": Column(
            "none", "names of the references and of the replicas"
        ),
        "design": Column("none", "how the training subsets were drawn, `train.subset`"),
        **common("recipe"),
        "attack": Column(
            "none",
            "the attack whose decisions are analyzed: `lira_online`, or without references `attack.headline`",
        ),
        "first_target": Column("none", "name of the first replica"),
        "references, replicas": Column(
            "count", "numbers of models that were used; fewer than requested if some are missing"
        ),
        "k_low": Column(
            "count",
            "smallest number of votes that is a coin flip; 0 if there are too few replicas for the test",
        ),
        **common("cutoff"),
        "max_flip_rate": Column("fraction", "the largest possible flip rate of B replicas"),
        **common("left_out"),
        "warnings": Column(
            "none",
            (
                "sentences about targets whose membership may depend on a property of the samples; printed by `lm-mia "
                "attack` and shown on the page"
            ),
        ),
    },
)


def flips_json(view: RecipeView) -> dict[str, Any]:
    """Returns what the tables of decisions are of."""
    facts = view.replicas.facts()
    if view.replicas.references:
        shares = view.pieces.table(Request(view.replicas.main, DECISIONS["flip_shares.csv"]))
    else:
        flips = view.table("attack_flips.csv")
        shares = flips[flips["attack"] == facts["attack"]]
    warnings = view.stored_set(REPLICA_WARNINGS).facts["warnings"]
    left_out = int(shares["left_out"].iloc[0])
    return {**facts, "left_out": left_out, "warnings": warnings}


def intervals_csv(view: RecipeView) -> pd.DataFrame:
    """Returns bootstrap intervals of AUC and TPRs of each attack with all references."""
    empty = pd.DataFrame(columns=rate_intervals.COLUMNS)
    if not view.c.bootstraps:
        if view.c.replicas:
            raise Unavailable(
                f"{view.name}: attack.bootstraps=0: there are no intervals; run lm-mia attack with more"
            )
        _complete_specs(view)
        return empty
    rows = rows_of_attacks(view, rate_intervals.rate_intervals, count=False)
    if not view.c.replicas:
        return rows if len(rows) else empty
    if not view.replicas.references:
        return rows
    of_references = view.stored_set(REFERENCE_TARGETS)
    if reference_targets.INTERVALS not in of_references.names:
        return rows
    parts = of_references.parts(reference_targets.INTERVALS, view.pieces)
    others = to_frame(pa.concat_tables([*parts]))
    others.insert(0, "attack", "lira_online")
    return pd.concat([rows, others])


MEMBERSHIP_SCORES_TABLE = Table(
    "membership_scores.parquet",
    (
        "Written with the tables of decisions, or for recipes without replicas with the tables of targets. Each row is "
        "a sample, with its scores from each attack of `attack.attacks` with all references. If an attack has more "
        f"than {evaluations.MAX_SCORES:,} scores (targets x samples), the table has only the scores under the first "
        "target, and the mean over targets. ATTACK is the name of an attack, and TARGET that of a replica (without "
        "replicas, of a target with a training subset of its own) or `mean`."
    ),
    {
        **common("id", "member"),
        "member/TARGET": Column("none", "instead of `member` in recipes without replicas"),
        "ATTACK/TARGET": Column(
            "none",
            (
                "score as float32, in the [unit of the attack](#conventions); of `mean`, empty if one is missing; "
                "infinite beyond the range of float32"
            ),
        ),
    },
    key=("id",),
)


def membership_scores(view: RecipeView) -> Iterator[pa.Table]:
    """Returns the scores of each sample, in a column ATTACK/MODEL for each attack and model, and its membership."""
    if view.c.replicas:
        specs: Sequence[AttackSpec] = view.replicas.complete
        members = {"member": view.replicas.targets[:1]}
    else:
        specs = _complete_specs(view)
        models_T = target_models(specs[0])
        shown = models_T[: evaluations.num_stored(len(models_T), len(view.attacked))]
        members = {f"member/{model}": [model] for model in shown}
    return _membership_scores(view, specs, members)


def _membership_scores(
    view: RecipeView, specs: Sequence[AttackSpec], members: Mapping[str, Sequence[ModelSeeds]]
) -> Iterator[pa.Table]:
    models_M = [model for [model] in members.values()]
    member_N = dict(zip(members, _members(view.store, models_M), strict=True))
    low, first_id = 0, view.attacked.first_id
    of_attacks = [view.pieces.parts(Request(s, evaluations.stored_scores)) for s in specs]
    for parts in zip(*of_attacks, strict=True):  # row groups of the same samples
        high = low + len(parts[0])
        columns = {"id": pa.array(first_id + np.arange(low, high))}
        columns |= {name: pa.array(value_N[low:high]) for name, value_N in member_N.items()}
        for spec, part in zip(specs, parts, strict=True):
            columns |= {f"{spec.name}/{name}": part[name] for name in part.column_names}
        yield pa.table(columns)
        low = high


MEMBERSHIP_SCORES_JSON_TABLE = Table(
    "membership_scores.json",
    "Written if targets are attacked but no replicas; with replicas, `flips.json` has the warnings.",
    {
        "warnings": Column("none", "as in `flips.json`"),
    },
)


def membership_scores_json(view: RecipeView) -> dict[str, Any]:
    """Returns warnings about the targets."""
    if view.c.replicas:
        raise Unavailable(f"{view.name}: flips.json has the warnings about replicas")
    _complete_specs(view)
    try:
        return {"warnings": view.stored_set(target_warnings_set).facts["warnings"]}
    except Unavailable:
        return {"warnings": []}


TARGETS_TABLE = Table(
    "targets.csv",
    (
        "Each row is an attack and a target. It lists the attacks of `attacks.csv` on each replica, the attacks that "
        "the figures of the command need, and, for recipes with `attack.targets`, online LiRA with all references that "
        "are not targets."
    ),
    {
        **common("attack_id", "attack", "references"),
        "reference_models": Column("none", "numbers of the references, as ranges: `0-2 5 7-8`"),
        "in_and_out_among": Column(
            "none",
            (
                "in studies of the number of references, two references: only samples that one of them was trained on, "
                "and the other was not, have a score"
            ),
        ),
        "observed": Column(
            "none",
            "what the attacker observes of each sample: `loss`, or `target_logit` (StrongMIA Figure 8)",
        ),
        "step": Column("steps", "training step at which all models were scored"),
        "rmia_samples": Column("count", "comparison samples of RMIA"),
        "rmia_gamma, rmia_a": Column("none", "gamma of RMIA, and the parameter a of offline RMIA"),
        "rmia_a_is_tuned": Column("none", "whether a was tuned on the references"),
        **common("target", "auc", "members", "nonmembers", "left_out"),
    },
    key=("attack_id", "target"),
)


TARGET_ROC_TABLE = Table(
    "target_roc.parquet",
    "Written with `targets.csv`. Each row is a row of `targets.csv` and an FPR.",
    {
        **common("attack_id", "target"),
        "on_curve": Column(
            "none",
            (
                "false: the FPR is one of `attack.fprs`; true: it is a point of the ROC curve, at the rates of "
                "`roc.csv`"
            ),
        ),
        **common("fpr"),
        "tpr": Column(
            "fraction",
            (
                "true positive rate at the threshold or, if `on_curve` is true, at the vertex of the ROC curve; empty "
                "if a class has no score, or if the non-members cannot show this FPR"
            ),
        ),
    },
    key=("attack_id", "target", "on_curve", "fpr"),
)


TARGET_JACKKNIFE_TABLE = Table(
    "target_jackknife.parquet",
    (
        "Written with `targets.csv`, for the attacks from which intervals of claims are computed. Each row is a row of "
        "`targets.csv`, with all references or a part of them, on all samples or half of them. References are divided "
        "into 8 groups of pairs: with 16 references or more, a part is half of the groups; with fewer, it is one "
        "group, if each has as many. Samples are divided into 8 groups by their number or, if `corpus.split_documents` "
        "is set, that of their document; a half has 4 groups. The TPRs are at thresholds that are calibrated on the "
        "half."
    ),
    {
        **common("attack_id", "target", "half", "auc", "tpr_at_FPR"),
        "part": Column(
            "none",
            "0: all references; above 0: a part of them. Halves of the references 2i - 1 and 2i are complements",
        ),
    },
    key=("attack_id", "part", "target", "half"),
)


TARGET_EPSILONS_TABLE = Table(
    "target_epsilons.parquet",
    (
        "Written with `targets.csv`, for the attacks whose epsilon a figure shows (PrivacyGuard's Tables 2 and 3). "
        "Each row is a row of `targets.csv` with all samples or with half of them, as in `target_jackknife.parquet`. "
        "Epsilons are at `attack.delta`. Estimates of epsilon are not bounds. Each bound is valid with a confidence of "
        "1 - `attack.alpha` on its own, for training sets that differ by replacing a sample: members and non-members "
        "are paired at random, and the attack guesses that the one with the larger score is the member."
    ),
    {
        **common("attack_id", "target", "half"),
        "epsilon_at_tpr_0.01, epsilon_at_tpr_0.1": Column(
            "none",
            (
                "ln((TPR - delta) / FPR) at the highest threshold with at least this TPR; at most the logarithm of the "
                "number of members, its value without false positives; empty if a class has no score"
            ),
        ),
        "balanced_accuracy": Column(
            "fraction",
            "largest mean of TPR and TNR over all thresholds; empty if a class has no score",
        ),
        "bound_canaries": Column(
            "count",
            (
                "pairs; this and the following columns are empty on halves of the samples and with a part of the "
                "references"
            ),
        ),
        "bound_guesses, bound_correct": Column(
            "count", "number of guesses that gave the bound, and how many were correct"
        ),
        "bound_epsilon": Column("none", "one-run bound on epsilon"),
        "bound_epsilon_if_gaussian": Column(
            "none", "the same for a Gaussian mechanism; not a bound for other mechanisms"
        ),
        "bound_mu": Column("none", "one-run bound on mu of Gaussian differential privacy"),
        "bound_ceiling": Column("none", "bound of an attack whose guesses are all correct"),
        "part": Column("none", "as in `target_jackknife.parquet`"),
    },
    key=("attack_id", "part", "target", "half"),
)


def _request_tables(view: RecipeView) -> dict[str, pd.DataFrame]:
    """Returns the tables of the evaluations that figures read; attacks that were left out are not in them."""
    requests = [*view.declared.requests]
    with contextlib.suppress(Unavailable):
        specs = view.replicas.specs
        requests = [Request(s, evaluations.operating_points) for s in specs] + requests
    view.ensure(requests)
    parts: dict[str, list[pd.DataFrame]] = {}
    with_parts = {request[:2] for request in requests if request.parts}
    for request in dict.fromkeys(requests):
        if request[:2] in with_parts and not request.parts:
            continue  # another figure needs the same, and parts of it
        if request.evaluation not in (
            evaluations.operating_points,
            evaluations.halved_rates,
            evaluations.epsilons,
        ):
            continue
        for name, table in _exported(request, view).items():
            table.insert(0, "attack_id", request.spec.id)
            parts.setdefault(name, []).append(table)
    return {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}


Export = tuple[Table, Callable[[RecipeView], Content]]
"""A table, and the function that returns it."""


def _of_requests(declared: Table) -> Export:
    def table(view: RecipeView) -> pd.DataFrame:
        found = view.once(_request_tables)
        if declared.file not in found:
            raise Unavailable(
                f"{view.name}: no attack has results for {declared.file}; run lm-mia attack with a figure that "
                "reads them in figures"
            )
        return found[declared.file]

    return declared, table


def _of_decisions(declared: Table) -> Export:
    evaluation = DECISIONS[declared.file]
    return declared, lambda view: view.pieces.parts(Request(view.replicas.main, evaluation))


def _in_set(make: Callable[[RecipeView], TableSet], declared: Table) -> Export:
    return declared, _of_set(make, declared.file)


def _of_set(make: Callable[[RecipeView], TableSet], name: str) -> Callable[[RecipeView], Content]:
    def table(view: RecipeView) -> Iterator[pa.Table]:
        stored = view.stored_set(make)
        if name not in stored.names:
            reason = stored.facts.get("reason") or f"its models or settings do not allow {name}"
            raise Unavailable(f"{view.name}: {reason}")
        return stored.parts(name, view.pieces)

    return table


def _facts(make: Callable[[RecipeView], TableSet]) -> Callable[[RecipeView], dict[str, Any]]:
    def facts(view: RecipeView) -> dict[str, Any]:
        stored = view.stored_set(make)
        if not (stored.names or stored.facts.get("reason")):
            raise Unavailable(f"{view.name}: {stored.of.name} has no tables")
        return {**stored.of.settings, **stored.facts}

    return facts


DECLARED: Sequence[Export] = (
    _in_set(models_set, models.MODELS_TABLE),
    (tables.ATTACKS_TABLE, attacks_csv),
    (tables.ROC_TABLE, roc_csv),
    _of_decisions(decisions.ERROR_RATES_TABLE),
    _of_decisions(decisions.THRESHOLDS_TABLE),
    _of_decisions(decisions.FLIP_SHARES_TABLE),
    _of_decisions(decisions.FLIP_SHARES_BY_REPLICAS_TABLE),
    (attack_flips.ATTACK_FLIPS_TABLE, attack_flips_csv),
    _of_decisions(decisions.TRUE_POSITIVES_TABLE),
    _of_decisions(decisions.REPLICA_TRUE_POSITIVES_TABLE),
    _of_decisions(decisions.COIN_FREE_ROC_TABLE),
    _of_decisions(decisions.PARTIAL_AUC_TABLE),
    _in_set(JACKKNIFE, decision_jackknife.DECISION_JACKKNIFE_TABLE),
    _of_decisions(decisions.FLIP_CURVES_TABLE),
    _of_decisions(decisions.SAMPLES_TABLE),
    _of_decisions(shown_samples.SHOWN_SAMPLES_TABLE),
    (MEMBERSHIP_SCORES_TABLE, membership_scores),
    (MEMBERSHIP_SCORES_JSON_TABLE, membership_scores_json),
    _in_set(REFERENCE_TARGETS, reference_targets.REFERENCE_TARGETS_TABLE),
    _of_decisions(decisions.ARCHETYPES_TABLE),
    _of_decisions(models.ARCHETYPE_LOSSES_TABLE),
    _in_set(SHUFFLED, replicas.SHUFFLED_TABLE),
    (rate_intervals.INTERVALS_TABLE, intervals_csv),
    _in_set(RESAMPLED, resampling.RESAMPLED_REFERENCES_TABLE),
    _in_set(REFERENCE_TARGETS, reference_targets.TRUE_POSITIVE_PROBABILITY_TABLE),
    (FLIPS_JSON_TABLE, flips_json),
    _of_requests(TARGETS_TABLE),
    _of_requests(TARGET_ROC_TABLE),
    _of_requests(TARGET_JACKKNIFE_TABLE),
    _of_requests(TARGET_EPSILONS_TABLE),
    _in_set(sample_losses_set, models.SAMPLE_LOSSES_TABLE),
    _in_set(extraction_set, EXTRACTION_TABLE),
    _in_set(extraction_set, EXTRACTION_CURVES_TABLE),
    _in_set(extraction_set, EXTRACTION_RATES_TABLE),
    _in_set(extraction_set, EXTRACTION_REFERENCE_TABLE),
    (EXTRACTION_JSON_TABLE, _facts(extraction_set)),
)
"""All tables of a recipe but those that experiments declare, in the order of docs/tables.md."""
TABLES: Mapping[str, Callable[[RecipeView], Content]] = {
    table.file: content for table, content in DECLARED
}
"""File name of a table -> the function that returns it."""
WITHOUT_STUDIES = {
    table.file: TABLES[table.file]
    for table in (
        models.MODELS_TABLE,
        models.SAMPLE_LOSSES_TABLE,
        TARGETS_TABLE,
        TARGET_ROC_TABLE,
        TARGET_JACKKNIFE_TABLE,
        TARGET_EPSILONS_TABLE,
    )
}
"""Tables that tell of models and attacks on targets alone."""


def open_view(
    c: config.Config,
    recipe_dir: Path,
    open_population: Callable[[], Population],
    declared: RecipeNeeds,
    progress: Callable[[str, float, float], None] = silent,
    say: Callable[[str], None] = silent,
) -> RecipeView:
    """Opens a recipe; raises UserError if its score store is damaged.

    Args:
      c: config of the recipe.
      recipe_dir: the folder of the recipe.
      open_population: returns its samples.
      declared: what figures read in addition to the tables of decisions.
      progress, say: as `RecipeView`.
    """
    store, attack = open_store(c, recipe_dir), effective_attack(c)
    return RecipeView(
        recipe_dir.name,
        # Only the statistics that the attacks need must be present.
        dataclasses.replace(
            store, statistics=registry.statistics_of(attack.attacks), token_samples=()
        ),
        open_population,
        attack,
        open_pieces(c, recipe_dir),
        with_declared(TABLES, declared),
        declared,
        TokenSettings(
            c.score.token_samples,
            c.extract.prefix_tokens,
            c.extract.suffix_tokens,
            Batches(c.train.batch_size, c.train.epochs),
        ),
        c.extract,
        progress=progress,
        say=say,
    )


def with_declared(
    tables: Mapping[str, Callable[[RecipeView], Content]], declared: RecipeNeeds
) -> dict[str, Callable[[RecipeView], Content]]:
    """Returns tables, and those that experiments declare.

    Raises:
      UserError: two experiments declare the same table or study, or one that lm_mia writes itself.
    """
    of_experiments: dict[str, Callable[[RecipeView], Content]] = {}
    files = [made.table.file for made in declared.attack_tables]
    files += [table.file for study in declared.studies for table in study.tables]
    names = [study.name for study in declared.studies]
    for kind, found in (("table", [*tables, *files]), ("study", names)):
        for name, count in collections.Counter(found).items():
            if count > 1 and (kind == "study" or name in files):
                raise UserError(
                    f"{kind} {name!r}: two experiments, or an experiment and lm_mia itself, have a {kind} of this "
                    "name; choose another name in your file"
                )
    for made in declared.attack_tables:
        function = made.evaluation
        content = _of_headline(function) if made.of_headline else _of_evaluation(function)
        what = f"evaluation {function.__name__}"
        of_experiments[made.table.file] = _as_declared(made.table, function, what, content)
    for study in declared.studies:
        make = study_set(study)
        for table in study.tables:
            content = _of_set(make, table.file)
            what = f"study {study.name}"
            of_experiments[table.file] = _as_declared(table, study.compute, what, content)
        if study.facts:
            of_experiments[f"{study.name}.json"] = _facts(make)
    return {**tables, **of_experiments}


def _of_evaluation(evaluation: evaluations.Evaluation) -> Callable[[RecipeView], pd.DataFrame]:
    return lambda view: rows_of_attacks(view, evaluation)


def _of_headline(
    evaluation: evaluations.Evaluation,
) -> Callable[[RecipeView], Iterator[pa.Table]]:
    def table(view: RecipeView) -> Iterator[pa.Table]:
        for spec in _complete_specs(view):
            if spec.attack == view.c.headline:
                return view.pieces.parts(Request(spec, evaluation))
        raise Unavailable(
            f"{view.name}: {view.c.headline} has no score of members and non-members; run lm-mia run for more models, "
            "or choose another attack.headline"
        )

    return table


def _as_declared(
    table: Table,
    function: Callable[..., Any],
    what: str,
    content: Callable[[RecipeView], Content],
) -> Callable[[RecipeView], Content]:
    """Returns the function that returns a table, which raises `UserCodeError` if its columns are not the declared ones.

    Tables of our own are compared with their declarations by a test.

    Args:
      table: the declaration.
      function: the evaluation, or the function of the study.
      what: what the message calls it, such as "study compressed_size".
      content: returns the table.
    """
    if not user_code.is_of_user(function):
        return content

    def check(columns: Sequence[str], view: RecipeView) -> None:
        undeclared, missing = column_mismatches(table, columns, view.c.fprs)
        problems: list[str] = []
        if undeclared:
            problems.append(f"has undeclared columns ({', '.join(undeclared)})")
        if missing:
            problems.append(f"lacks declared columns ({', '.join(missing)})")
        if problems:
            raise UserCodeError(
                f"{what}: {table.file} {' and '.join(problems)}; correct the columns of its Table in "
                f"{inspect.getsourcefile(function)}, or what {function.__name__} writes"
            )

    def checked(view: RecipeView) -> Content:
        found = content(view)
        if isinstance(found, pd.DataFrame):
            check([*found.columns], view)
            return found
        assert not isinstance(found, Mapping), f"{table.file} is no table"
        return checked_parts(found, view)

    def checked_parts(parts: Iterator[pa.Table], view: RecipeView) -> Iterator[pa.Table]:
        for i, part in enumerate(parts):
            if i == 0:  # all parts have the same columns
                check(part.column_names, view)
            yield part

    return checked


def write_tables(view: RecipeView, folder: Path, *, keeps_others: bool = False) -> list[str]:
    """Writes all tables of a view, and then removes those that it does not have any more, unless they are kept.

    Returns:
      One line for each evaluation or study of the user that failed, whose earlier tables stay.
    """
    listed = view.stored.results.folder / _EXPORTED
    earlier: list[str] = []
    with contextlib.suppress(FileNotFoundError, ValueError):  # it may be damaged
        earlier = json.loads(listed.read_text())
    written, missing, failures = [], [], dict[str, UserCodeError]()
    for name in view.tables:
        try:
            write(folder, name, view.content(name))
            written.append(name)
        except Unavailable:
            missing.append(name)
        except UserCodeError as error:
            failures[name] = error
    others = {*missing, *earlier} - {*written, *failures}
    for path in (*(() if keeps_others else (folder / name for name in others)), *abandoned(folder)):
        path.unlink(missing_ok=True)
    kept = {*written, *failures, *(others if keeps_others else ())}
    listed.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(listed, json.dumps(sorted(kept), indent=1) + "\n")
    return [*dict.fromkeys(map(str, failures.values()))]


def write_extraction(view: RecipeView, folder: Path) -> None:
    """Writes the tables of the extraction, which are computed if they are missing."""
    for table in (
        EXTRACTION_TABLE,
        EXTRACTION_CURVES_TABLE,
        EXTRACTION_RATES_TABLE,
        EXTRACTION_REFERENCE_TABLE,
        EXTRACTION_JSON_TABLE,
    ):
        try:
            write(folder, table.file, view.content(table.file))
        except Unavailable:
            (folder / table.file).unlink(missing_ok=True)


def write(folder: Path, name: str, content: Content) -> None:
    """Writes a table or a JSON file.

    An equal file keeps its time, by which the report is found to be older than the tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with replacing(path) as temporary:
        _write(temporary, path.suffix, content)
        if path.is_file() and filecmp.cmp(path, temporary, shallow=False):
            os.utime(temporary, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))


def _write(path: Path, suffix: str, content: Content) -> None:
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
    first = next(content)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in content:
            writer.write_table(part)


def rows_of_attacks(
    view: RecipeView, evaluation: evaluations.Evaluation, *, count: bool = True
) -> pd.DataFrame:
    """Returns the rows of attacks one after another, after the columns attack and, by default, references."""
    rows = []
    for spec in _complete_specs(view):
        table = view.pieces.table(Request(spec, evaluation))
        if count:
            table.insert(0, "references", len(spec.references))
        table.insert(0, "attack", spec.name)
        rows.append(table)
    # A column of an attack without rows has no type.
    return pd.concat([table for table in rows if len(table)] or rows[:1], ignore_index=True)


def _complete_specs(view: RecipeView) -> list[AttackSpec]:
    """Returns the attacks of the config with all references that have scores; raises Unavailable if there are none."""
    if view.c.replicas:
        with_scores = _specs_with_scores(view)
        return [spec for spec in view.replicas.complete if spec in with_scores]
    specs = view.declared.score_table
    stored = [Request(spec, evaluations.stored_scores) for spec in specs]
    view.ensure(stored)
    stored = [request for request in stored if view.pieces.has(request)]
    if not stored:
        raise Unavailable(
            f"{view.name}: too few models are present to attack a target; run lm-mia run"
        )
    return [request.spec for request in stored]


def _points_of_replicas(view: RecipeView) -> dict[AttackSpec, stats.OperatingPoints]:
    return {
        spec: evaluations.read_points(
            view.pieces.table(Request(spec, evaluations.operating_points))
        )
        for spec in view.replicas.specs
    }


def _specs_with_scores(view: RecipeView) -> list[AttackSpec]:
    """Returns the attacks under which all replicas have members and non-members with scores."""
    points = view.once(_points_of_replicas)
    return [spec for spec, found in points.items() if _have_scores(found)]


def _members(store: Store, models: Sequence[ModelSeeds]) -> np.ndarray:
    """Returns member_MxN of the attacked samples."""
    [(_, value)] = store.canary_blocks({"member": ("member", models)}, sys.maxsize)
    return value["member"]


def _have_scores(points: stats.OperatingPoints) -> bool:
    """Returns whether all models have members and non-members with scores; with few references, there may be none."""
    return bool(points.members_T.all() and points.nonmembers_T.all())


def _not_shared(spec: AttackSpec, view: RecipeView) -> float:
    """Returns the fraction of the samples with a score under only one of an attack and LiRA; NaN without references."""
    if not view.replicas.references:
        return math.nan
    missing_2xN = [
        view.pieces.table(Request(s, evaluations.missing_scores))["missing"].to_numpy()
        for s in (spec, view.replicas.main)
    ]
    return float(np.mean(missing_2xN[0] ^ missing_2xN[1]))


def _exported(request: Request, view: RecipeView) -> dict[str, pd.DataFrame]:
    """Returns the rows of a piece as `_request_tables`; none if there is no piece, because the attack was left out."""
    if not view.pieces.has(request):
        return {}
    table = view.pieces.table(request)
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
