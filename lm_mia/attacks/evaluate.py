"""The loop: computes the pieces that are missing, each an evaluation of an attack.

Attacks on the same models share passes over the score store. Their scores are written to temporary files, which the
evaluations read by model or by blocks of samples, so that memory grows neither with samples nor with models.

T: attacked models, N: attacked samples.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pandas as pd

from lm_mia import stats
from lm_mia.attacks import registry, score_matrix, user_code
from lm_mia.attacks.designs import ModelDesign, model_design
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.models import check_scores, present_models
from lm_mia.attacks.pieces import Pieces, models_of, target_models
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.attacks.user_code import UserCodeError
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store


def evaluate(
    requests: Sequence[Request],
    pieces: Pieces,
    store: Store,
    population: Population,
    pool: ThreadPoolExecutor,
    progress: Callable[[float, float], None],
    say: Callable[[str], None],
    failed: dict[Hashable, UserCodeError],
) -> dict[str, int]:
    """Computes the requested pieces that are missing or damaged.

    Each is written as soon as it is computed, so that a command that was killed continues after the last one. An attack
    is left out, with a line for the user, if some of its models are not scored as it requires.

    Args:
      requests: the evaluations; repeated ones are computed once.
      pieces: where they are stored.
      store, population: the scores and the attacked samples.
      pool: threads that compute parts of the samples.
      progress: called with the number of attacks that are done, which may be fractional, and their number. An attack of
        which only the scores are computed counts half.
      say: called with lines for the user.
      failed: evaluations that are left out -> the error. Those of the user that fail are added.

    Returns:
      The numbers of attacks: "requested", "computed", and "left_out" because models are not scored as required.

    Raises:
      UserError: if scores are corrupt, or if an evaluation is not possible.
    """
    requests = [r for r in dict.fromkeys(requests) if r.evaluation not in failed]
    missing = [request for request in requests if not pieces.has(request)]
    if missing:
        check_scores(store)
    uses: dict[AttackSpec, list[tuple[Request, int]]] = {}
    for request in missing:
        for part, spec in enumerate((request.spec, *request.parts)):
            uses.setdefault(spec, []).append((request, part))
    specs = [*uses]
    groups, missing_models = group_by_inputs(specs, store)
    design = model_design(store, present_models(store)) if groups else None
    group_N = stats.sample_groups(population.document_N)
    tables: dict[Request, dict[int, pd.DataFrame]] = {r: {} for r in missing if r.parts}
    folder, scored, done = pieces.results.scratch(), 0.0, 0

    def show() -> None:
        # With many samples, the evaluations of an attack take longer than its scores.
        progress((scored + done) / 2, len(specs))

    if specs:
        progress(0, len(specs))
    # Each score is computed once and passes through all its evaluations, since all scores would not fit into memory.
    for same in groups:
        inputs = open_group(same, store, population, design)

        def count_scores(count: float, before: int = done) -> None:
            nonlocal scored
            scored = before + count
            show()

        for spec, fitted, file in score_matrix.score_attacks(
            same, inputs, pieces.c, folder, pool, count_scores
        ):
            used = _inputs_of(spec, inputs)
            scores = Scores(spec, file, fitted.fit, used, population, group_N, pool)
            for request, part in uses[spec]:
                evaluation = request.evaluation
                if evaluation in failed:
                    continue
                try:
                    with user_code.blamed(evaluation, f"evaluation {evaluation.__name__}"):
                        table = evaluation(scores, **read_settings(evaluation, pieces.settings))
                        if request.parts:
                            assert isinstance(table, pd.DataFrame), "parts are not streamed"
                            tables[request][part] = table.assign(part=part)
                            if len(tables[request]) <= len(request.parts):
                                continue  # the whole and its parts are one piece, stored once all are there
                            by_part = tables.pop(request)
                            parts = [by_part[p] for p in sorted(by_part)]
                            table = pd.concat(parts, ignore_index=True)
                        pieces.results.write(pieces.key(request), table)
                except UserCodeError as error:
                    failed[evaluation] = error
            done += 1
            show()
    if specs:
        progress(len(specs), len(specs))
    for requirement, models in missing_models.items():
        say(
            f"{len(models)} models are not scored{requirement}: attacks that need these scores are left out; run "
            "`lm-mia run` first"
        )
    requested = {s for request in requests for s in (request.spec, *request.parts)}
    left_out = {*specs} - {spec for same in groups for spec in same}
    return {"requested": len(requested), "computed": done, "left_out": len(left_out)}


def group_by_inputs(
    specs: Sequence[AttackSpec], store: Store
) -> tuple[list[list[AttackSpec]], dict[str, set[ModelSeeds]]]:
    """Groups attacks that read the same scores, so that they share passes over the store.

    Returns:
      The groups, without attacks whose models are not all present, and {requirement: its missing models}.
    """
    groups: dict[tuple[object, ...], list[AttackSpec]] = {}
    present: dict[str, set[ModelSeeds]] = {}
    missing: dict[str, set[ModelSeeds]] = {}
    for spec in specs:
        required = _required_store(spec, store)
        if required.requirement not in present:
            stored_models = required.models()
            absent = required.missing_models(stored_models, required.step)
            present[required.requirement] = {*stored_models} - {*absent}
        if absent := {*models_of(spec)} - present[required.requirement]:
            missing.setdefault(required.requirement, set()).update(absent)
        else:
            key = (
                spec.targets_are_replicas,
                spec.targets,
                spec.step,
                spec.observed,
                required.statistics,
            )
            groups.setdefault(key, []).append(spec)
    return [*groups.values()], missing


def open_group(
    specs: Sequence[AttackSpec], store: Store, population: Population, design: ModelDesign | None
) -> AttackInputs:
    """Returns the inputs of attacks that read the same scores, with the references of all of them."""
    first = specs[0]
    references = sorted({n for spec in specs for n in (*spec.references, *spec.in_and_out_among)})
    return open_inputs(
        _required_store(first, store),
        population,
        target_models(first),
        [*map(subsets.reference, references)],
        registry.statistics_of([first.attack]),
        first.observed,
        design,
    )


def _inputs_of(spec: AttackSpec, inputs: AttackInputs) -> AttackInputs:
    used = {*spec.references}
    return inputs.with_references(
        i for i, model in enumerate(inputs.references) if model.subset_seed in used
    )


def _required_store(spec: AttackSpec, store: Store) -> Store:
    names = registry.statistics_of([spec.attack])
    names += (spec.observed,) if spec.observed != "loss" else ()
    return dataclasses.replace(store, statistics=names, token_samples=(), step=spec.step)
