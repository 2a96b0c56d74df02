"""The attacks and evaluations that follow from what figures need, on the models that are present.

This is not in `lm_mia.attacks.spec`, which the registry of attacks and the evaluations import.
"""

import dataclasses
import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lm_mia.attacks import evaluations, registry
from lm_mia.attacks.spec import (
    JACKKNIFE_GROUPS,
    MIN_REFERENCES,
    AttackSpec,
    AttackTable,
    AttackTableNeed,
    FigureNeed,
    LossNeed,
    Need,
    RecipeModels,
    RecipeNeeds,
    Request,
    Study,
    StudyNeed,
    TargetKind,
    Variant,
    assign_roles,
    half_groups,
    num_reference_parts,
    reference_counts,
    reference_groups,
    score_step,
    scored_epochs,
    with_equal_counts,
)
from lm_mia.config.fields import number
from lm_mia.config.schema import Config, has_no_references, num_canaries


def recipe_needs(
    needs: Iterable[FigureNeed], recipes: Mapping[str, RecipeModels]
) -> dict[str, RecipeNeeds]:
    """Returns what the attacks stage computes for each recipe in addition to its tables of decisions.

    Recipes with targets are always attacked with all their references, for the comparison of recipes. Those without
    replicas are attacked by every attack of the config, for the table of membership scores.

    Args:
      needs: the needs of all figures.
      recipes: the recipes of the command, by key.
    """
    needs = list(needs)
    requests = target_requests((n for n in needs if isinstance(n, Need)), recipes)
    names = {key: recipe.names for key, recipe in recipes.items()}
    samples: dict[str, set[int]] = {key: set() for key in recipes}
    for need in (n for n in needs if isinstance(n, LossNeed)):
        for key in matching_recipes(need.recipes, names):
            size = recipes[key].config.population.samples
            samples[key] |= {size - position for position in need.from_end if position <= size}
    tables: dict[str, list[AttackTable]] = {key: [] for key in recipes}
    for need in (n for n in needs if isinstance(n, AttackTableNeed)):
        for key in matching_recipes(need.recipes, names):
            tables[key].append(need.table)
    studies: dict[str, list[Study]] = {key: [] for key in recipes}
    for need in (n for n in needs if isinstance(n, StudyNeed)):
        for key in matching_recipes(need.recipes, names):
            studies[key].append(need.study)
    result = {}
    for key, recipe in recipes.items():
        strongest = attack_spec(recipe, Variant())
        score_table = _attacks_of_score_table(recipe)
        added = [strongest, *score_table] if strongest else score_table
        points = [Request(attack, evaluations.operating_points) for attack in added]
        result[key] = RecipeNeeds(
            tuple(dict.fromkeys((*requests[key], *points))),
            score_table,
            tuple(sorted(samples[key])),
            tuple(dict.fromkeys(studies[key])),
            tuple(dict.fromkeys(tables[key])),
        )
    return result


def _attacks_of_score_table(recipe: RecipeModels) -> list[AttackSpec]:
    """Returns `RecipeNeeds.score_table`."""
    c = recipe.config.attack
    if c.replicas:
        return []
    step = number(c.step)
    attacks = (attack_spec(recipe, Variant(name, step=step)) for name in c.attacks)
    return [attack for attack in attacks if attack is not None]


def target_requests(
    needs: Iterable[Need], recipes: Mapping[str, RecipeModels]
) -> dict[str, list[Request]]:
    """Returns the evaluations of attacks that follow from needs, without duplicates.

    A recipe that has too few models for a need, or was not scored at its epochs, is skipped.

    Args:
      needs: the needs of all figures.
      recipes: the recipes of the command, by key.
    """
    requests: dict[str, dict[Request, None]] = {key: {} for key in recipes}
    names = {key: recipe.names for key, recipe in recipes.items()}
    for need in needs:
        group = {key: recipes[key] for key in matching_recipes(need.recipes, names)}
        for key, requests_of_need in _requests_of_need(need, group).items():
            requests[key] |= dict.fromkeys(requests_of_need)
    return {key: [*unique] for key, unique in requests.items()}


def _requests_of_need(need: Need, recipes: Mapping[str, RecipeModels]) -> dict[str, list[Request]]:
    compared = comparable_recipes(need.targets, recipes)
    references = [
        len(assign_roles(recipe.models, recipe.config.attack).references)
        for recipe in compared.values()
    ]
    common = min(references, default=0)
    if need.most_references is not None:
        common = min(common, need.most_references)
    requests: dict[str, list[Request]] = {key: [] for key in compared}
    for key, recipe in compared.items():
        for variant in _variants(need, recipe.config, common):
            whole = attack_spec(recipe, variant)
            if whole is not None:
                parts = reference_parts(recipe, variant) if need.jackknife else ()
                requests[key] += _evaluations_of(need, whole, parts)
    return requests


def _variants(need: Need, c: Config, references: int) -> Iterator[Variant]:
    """Yields the attacks that a need asks for of one recipe, with at most this many references."""
    vary = need.references == "powers"
    counts = reference_counts(c, references) if vary else [references]
    epochs = scored_epochs(c) if need.epochs == "all" else need.epochs
    steps = {0} if epochs == "end" else {score_step(c, epoch) for epoch in epochs}
    sizes = [round(share * num_canaries(c)) for share in need.rmia_shares]
    for attack in need.attacks:
        read = registry.find(attack).settings
        combinations = itertools.product(
            need.observed,
            sorted(step for step in steps if step is not None),
            counts,
            sizes if sizes and "rmia_samples" in read else [0],
            need.rmia_gammas if need.rmia_gammas and "rmia_gamma" in read else [0.0],
            need.rmia_as if need.rmia_as and "rmia_a" in read else [None],
        )
        for observed, step, count, size, gamma, a in combinations:
            replicas = attacks_replicas(need.targets, c)
            yield Variant(attack, count, replicas, step, observed, size, gamma, a, vary)


def _evaluations_of(
    need: Need, whole: AttackSpec, parts: tuple[AttackSpec, ...]
) -> Iterator[Request]:
    yield Request(whole, evaluations.operating_points)
    if need.jackknife:
        yield Request(whole, evaluations.halved_rates, parts)
    if need.epsilons:
        yield Request(whole, evaluations.epsilons, parts)
    if need.sample_scores:
        for attack in (whole, *parts):
            yield Request(attack, evaluations.sample_scores)


def reference_parts(recipe: RecipeModels, variant: Variant) -> tuple[AttackSpec, ...]:
    """Returns an attack with each part of its references, for intervals; none if there are too few references."""
    if not registry.find(variant.attack).uses_references:
        return ()
    available = len(assign_roles(recipe.models, recipe.config.attack).references)
    parts = num_reference_parts(variant.references or available, available)
    specs = (attack_spec(recipe, variant, part) for part in range(parts))
    return tuple(spec for spec in specs if spec is not None)


def attack_spec(
    recipe: RecipeModels, variant: Variant, part: int | None = None
) -> AttackSpec | None:
    """Returns an attack on all targets, or on all replicas, of a recipe.

    Args:
      recipe: the recipe, with the models that are present.
      variant: the attack.
      part: None, or the number of a part of the references, as `AttackSpec.reference_part`.

    Returns:
      The attack, or None if there are too few models for it, or if the groups of references are too small for the part.
    """
    c, entry = recipe.config, registry.find(variant.attack)
    roles = assign_roles(recipe.models, c.attack)
    targets = roles.replicas if variant.replicas else roles.targets
    count = variant.references or len(roles.references)
    # Nobody trains further references of imported models.
    fewest = max(count, 1 if c.corpus.source == "imported" else MIN_REFERENCES)
    if has_no_references(c) and not entry.uses_references:
        fewest = variant.references
    if not targets or len(roles.references) < fewest:
        return None
    used, pair = roles.references[:count], roles.references[:2]
    if part is not None:
        if not entry.uses_references:
            return None
        groups = reference_groups(roles.references)
        if count >= 2 * JACKKNIFE_GROUPS:
            half = half_groups(part)
            used = tuple(r for r, group in zip(used, groups[:count], strict=True) if group in half)
        else:
            numbered = zip(roles.references, groups, strict=True)
            used = tuple([r for r, group in numbered if group == part][:count])
            if len(used) < count:
                return None
            pair = used[:2]
    samples = min(variant.rmia_samples or c.attack.rmia_samples, num_canaries(c))
    gamma = variant.rmia_gamma or c.attack.rmia_gamma
    a = c.attack.rmia_a if variant.rmia_a is None else variant.rmia_a
    return AttackSpec(
        variant.attack,
        variant.replicas,
        targets,
        used if entry.uses_references else (),
        variant.step,
        variant.observed,
        samples if "rmia_samples" in entry.settings else 0,
        gamma if "rmia_gamma" in entry.settings else 0.0,
        a if "rmia_a" in entry.settings else None,
        part,
        pair if variant.is_count_study and entry.uses_references else (),
    )


def comparable_recipes(
    targets: TargetKind, recipes: Mapping[str, RecipeModels]
) -> dict[str, RecipeModels]:
    """Returns the recipes that have enough models, with equal numbers of references and targets in their configs.

    Args:
      targets: as `Need.targets`.
      recipes: the recipes, by key.
    """
    compared = [
        key
        for key, recipe in recipes.items()
        if recipe.config.attack.targets
        and not attacks_replicas(targets, recipe.config)
        and not has_no_references(recipe.config)
    ]
    equal = with_equal_counts([recipes[key].config for key in compared]) if compared else []
    configs = dict(zip(compared, equal, strict=True))
    restricted = {
        key: dataclasses.replace(recipe, config=configs.get(key, recipe.config))
        for key, recipe in recipes.items()
    }
    fewest = Variant(references=MIN_REFERENCES)
    return {
        key: recipe
        for key, recipe in restricted.items()
        if attack_spec(
            recipe,
            dataclasses.replace(fewest, replicas=attacks_replicas(targets, recipe.config)),
        )
    }


def attacks_replicas(targets: TargetKind, config: Config) -> bool:
    """Returns whether replicas are attacked, for a value of `Need.targets`."""
    return targets == "replicas" or (targets == "either" and not config.attack.targets)


def matching_recipes(
    patterns: Iterable[str], names_by_recipe: Mapping[str, Sequence[str]]
) -> list[str]:
    """Returns the keys of the recipes that have a name which matches one of the patterns, in the order of the recipes.

    Args:
      patterns: as `Need.recipes`.
      names_by_recipe: key of a recipe -> its names.
    """
    patterns = list(patterns)
    return [
        key
        for key, names in names_by_recipe.items()
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
    ]
