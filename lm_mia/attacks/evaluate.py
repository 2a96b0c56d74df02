"""The loop: computes the pieces that are missing, each an evaluation of an attack.

Attacks on the same models share passes over the score store. Their scores are written to temporary files, which the
evaluations read by model or by blocks of samples, so that memory grows neither with samples nor with models.

T: attacked models, N: attacked samples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks import registry, score_matrix
from lm_mia.attacks.designs import ModelDesign, model_design
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.models import present_models
from lm_mia.attacks.results import RESULTS_FORMAT, Key, Results
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store, open_store

FOLDER = "pieces"
"""Name of the folder of a recipe in which its pieces are."""


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a recipe, and what their keys name."""

    recipe_hash: str
    digests: Mapping[str, str]
    """Name of a model in the store -> digest of its scores; "" if it is not scored at all of its score points."""
    always: tuple[str, ...]
    """Names of the models on which all attacks depend: the base and, if the subsets were given, all models, since
    attacks leave out models with related subsets."""
    c: config.Attack
    """Settings of the recipe."""
    design: str
    """How the training subsets were drawn, which some evaluations read as a setting."""
    results: Results

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that attacks and evaluations may read, by name."""
        return {**vars(self.c), "design": self.design}

    def key(self, request: Request) -> Key:
        """Returns what determines the evaluation of an attack."""
        names = [
            *self.always,
            *(str(m) for s in (request.spec, *request.parts) for m in models_of(s)),
        ]
        return {
            "what": request.evaluation.__name__,
            "format": RESULTS_FORMAT,
            "recipe": self.recipe_hash,
            "models": {name: self.digests.get(name, "") for name in sorted({*names})},
            "spec": _spec_key(request.spec, self.c),
            "parts": [[*part.references] for part in request.parts],
            "settings": read_settings(request.evaluation, self.settings),
        }

    def read(self, request: Request, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
        """Returns a piece, or some of its columns; None if it is missing or damaged."""
        return self.results.read(self.key(request), columns)

    def has(self, request: Request) -> bool:
        """Returns whether a piece is there and intact."""
        return self.results.has(self.key(request))


def open_pieces(c: config.Config, recipe_dir: Path) -> Pieces:
    """Returns the pieces of a recipe; raises UserError if its score store is damaged."""
    attack = config.measurable_attack(c)
    return pieces_of(open_store(c, recipe_dir), recipe_hash(c), attack, recipe_dir / FOLDER)


def pieces_of(store: Store, recipe: str, c: config.Attack, folder: Path) -> Pieces:
    """Returns the pieces in a folder.

    Args:
      store: the score store of the recipe.
      recipe: the hash of the recipe.
      c: settings of the recipe.
      folder: where the pieces are.
    """
    digests = {str(model): digest for model, digest in store.known_digests().items()}
    always = [model for model in store.models() if model.role == "base"]
    if store.design == "given":
        always = store.models()
    names = tuple(map(str, always))
    return Pieces(recipe, digests, names, c, store.design, Results(folder))


def models_of(spec: AttackSpec) -> list[ModelSeeds]:
    """Returns the models that take part in an attack."""
    references = *spec.references, *spec.in_and_out_among
    return [*target_models(spec), *map(subsets.reference, dict.fromkeys(references))]


def target_models(spec: AttackSpec) -> list[ModelSeeds]:
    """Returns the attacked models."""
    return [*map(subsets.replica if spec.targets_are_replicas else subsets.reference, spec.targets)]


def evaluate(
    requests: Sequence[Request],
    pieces: Pieces,
    store: Store,
    population: Population,
    pool: ThreadPoolExecutor,
    progress: Callable[[float, float], None],
    say: Callable[[str], None],
    also: Mapping[AttackSpec, Callable[[Scores, AttackInputs], None]] = MappingProxyType({}),
) -> dict[str, int]:
    """Computes the requested pieces that are missing or damaged.

    Each is written as soon as it is computed, so that a command that was killed continues after the last one. An attack
    is left out, with a line for the user, if some of its models are not scored as it requires.

    Args:
      requests: the evaluations; repeated ones are computed once.
      pieces: where they are stored.
      store, population: the scores and the attacked samples.
      pool: threads that compute parts of the samples.
      progress: called with the number of attacks that are done, which may be fractional, and their number.
      say: called with lines for the user.
      also: further attacks that are made in any case, and what is called with their scores.

    Returns:
      The numbers of attacks: "requested", "computed", and "left_out" because models are not scored as required.

    Raises:
      UserError: if scores are corrupt.
    """
    requests = [*dict.fromkeys(requests)]
    missing = [request for request in requests if not pieces.has(request)]
    uses: dict[AttackSpec, list[tuple[Request, int]]] = {spec: [] for spec in also}
    for request in missing:
        for part, spec in enumerate((request.spec, *request.parts)):
            uses.setdefault(spec, []).append((request, part))
    specs = [*uses]
    groups, missing_models = group_by_inputs(specs, store)
    design = model_design(store, present_models(store)) if groups else None
    group_N = stats.sample_groups(population.document_N)
    tables: dict[Request, dict[int, pd.DataFrame]] = {r: {} for r in missing if r.parts}
    folder, done = pieces.results.folder, 0
    folder.mkdir(parents=True, exist_ok=True)  # for the temporary files of scores
    for same in groups:
        inputs = open_group(same, store, population, design)

        def show(count: float, before: int = done) -> None:
            progress(before + count, len(specs))

        for spec, fitted, file in score_matrix.score_attacks(
            same, inputs, pieces.c, folder, pool, show
        ):
            done += 1
            scores = Scores(
                file,
                inputs.target_member_TxN2,
                [*map(str, inputs.targets)],
                population.first_id,
                group_N,
                fitted.fit,
                spec.reference_part is not None,
                pool,
            )
            for request, part in uses[spec]:
                table = request.evaluation(
                    scores, **read_settings(request.evaluation, pieces.settings)
                )
                if request.parts:
                    assert isinstance(table, pd.DataFrame), "only whole attacks are streamed"
                    tables[request][part] = table.assign(part=part)
                    if len(tables[request]) <= len(request.parts):
                        continue
                    by_part = tables.pop(request)
                    table = pd.concat([by_part[p] for p in sorted(by_part)], ignore_index=True)
                pieces.results.write(pieces.key(request), table)
            if spec in also:
                also[spec](scores, inputs)
    if specs:
        progress(len(specs), len(specs))
    for requirement, models in missing_models.items():
        say(
            f"{len(models)} models are not scored{requirement}: attacks that need these scores are left out; run "
            "`lm-mia run` first"
        )
    requested = {s for request in requests for s in (request.spec, *request.parts)} | {*also}
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


def _required_store(spec: AttackSpec, store: Store) -> Store:
    """Returns the store with the requirements of an attack."""
    names = registry.statistics_of([spec.attack])
    names += (spec.observed,) if spec.observed != "loss" else ()
    return dataclasses.replace(store, statistics=names, token_samples=(), step=spec.step)


def _spec_key(spec: AttackSpec, c: config.Attack) -> dict[str, Any]:
    """Returns what a piece depends on of an attack, with the values of the settings that the attack reads."""
    settings = score_matrix.settings_of(spec, c)
    own = {name: settings[name] for name in registry.find(spec.attack).settings}
    left_out = "rmia_samples", "rmia_gamma", "rmia_a"  # among the settings
    fields = {k: v for k, v in dataclasses.asdict(spec).items() if k not in left_out}
    return fields | {"settings": own}
