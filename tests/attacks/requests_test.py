import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tiny_config import TINY, change

from lm_mia.attacks import evaluations, registry, spec
from lm_mia.attacks.requests import attack_spec, recipe_needs, target_requests
from lm_mia.attacks.spec import (
    AttackSpec,
    Need,
    PresentModels,
    RecipeModels,
    Request,
    Variant,
)

C = change(change(TINY, "attack.references", 12), "attack.targets", 4)


def models(references: Sequence[int], replicas: Sequence[int] = ()) -> PresentModels:
    return PresentModels(tuple(references), tuple(replicas))


ALL = models(range(12), range(2))


@pytest.mark.parametrize(
    ("subset", "most", "expected"),
    [
        ("exact", 2, [2]),
        ("exact", 3, [2, 3]),
        ("exact", 20, [2, 4, 8, 16, 20]),
        ("balanced", 4, [4]),
        ("balanced", 16, [4, 8, 16]),
    ],
)
def test_reference_counts_are_powers_of_two(subset: str, most: int, expected: list[int]):
    assert spec.reference_counts(change(C, "train.subset", subset), most) == expected


def test_all_numbers_of_references_attack_the_same_samples():
    many, c = models(range(24)), change(change(C, "attack.references", 24), "attack.targets", 4)

    def study(count: int, part: int | None = None, name: str = "rmia") -> AttackSpec:
        result = attack_spec(
            RecipeModels((), c, many), Variant(name, count, is_count_study=True), part
        )
        assert result is not None
        return result

    whole = [study(count) for count in (2, 4, 8, 16, 20)]
    assert {attack.in_and_out_among for attack in whole} == {(4, 5)}
    assert [attack.pools_variances for attack in whole] == [True, True, False, False, False]
    # Halves of the references are on these samples, too, and disjoint sets on those of their own first references.
    assert {study(16, half).in_and_out_among for half in range(14)} == {(4, 5)}
    assert [study(2, g).in_and_out_among for g in (0, 3)] == [(4, 5), (10, 11)]
    assert study(4, name="loss").in_and_out_among == ()
    other = attack_spec(RecipeModels((), c, many), Variant("lira_online", 4))
    assert other is not None
    assert (other.in_and_out_among, other.pools_variances) == ((), False)


def test_target_attack_uses_the_first_references():
    result = attack_spec(
        RecipeModels((), C, ALL), Variant("lira_online", 6, step=3, observed="target_logit")
    )
    assert result == AttackSpec(
        "lira_online", False, (0, 1, 2, 3), (4, 5, 6, 7, 8, 9), 3, "target_logit"
    )
    on_replicas = attack_spec(RecipeModels((), C, ALL), Variant("lira_online", 2, replicas=True))
    assert on_replicas == AttackSpec("lira_online", True, (0, 1), (4, 5))


def test_too_few_models_give_no_attack():
    assert attack_spec(RecipeModels((), C, ALL), Variant("lira_online", 8))
    assert attack_spec(RecipeModels((), C, ALL), Variant("lira_online", 9)) is None
    assert (
        attack_spec(RecipeModels((), C, models(range(5))), Variant("loss", 1)) is None
    )  # one reference is too few
    assert (
        attack_spec(RecipeModels((), C, models(range(8))), Variant("lira_online", 2, replicas=True))
        is None
    )
    assert (
        attack_spec(
            RecipeModels((), change(C, "attack.targets", 0), ALL), Variant("lira_online", 2)
        )
        is None
    )


@pytest.mark.parametrize("name", registry.ATTACKS)
def test_attacks_have_only_the_fields_that_they_use(name: str):
    result = attack_spec(RecipeModels((), C, ALL), Variant(name, 4))
    assert result is not None
    free = name in {"base_calibrated", "loss", "zlib", "min_k", "min_k_plus_plus", "lowercase"}
    assert result.references == (() if free else (4, 5, 6, 7))
    rmia = name in {"rmia", "rmia_offline"}
    # attack.rmia_samples is 10,000; the population has 16 samples
    assert (result.rmia_samples, result.rmia_gamma) == ((16, 1.0) if rmia else (0, 0.0))
    assert result.rmia_a == (1.0 if name == "rmia_offline" else None)
    explicit = attack_spec(
        RecipeModels((), C, ALL), Variant(name, 4, rmia_samples=5, rmia_gamma=1.5, rmia_a=0.0)
    )
    assert explicit is not None
    assert (explicit.rmia_samples, explicit.rmia_gamma) == ((5, 1.5) if rmia else (0, 0.0))
    assert explicit.rmia_a == (0.0 if name == "rmia_offline" else None)


def test_parts_of_references_are_whole_pairs():
    many = models(range(24))
    c = change(change(C, "attack.references", 24), "attack.targets", 4)
    for half in range(0, spec.NUM_HALVES, 2):
        used = []
        for part in (half, half + 1):
            result = attack_spec(RecipeModels((), c, many), Variant("lira_online", 20), part)
            assert result is not None
            assert [i + 1 for i in result.references[::2]] == list(result.references[1::2])
            assert all(i % 2 == 0 for i in result.references[::2])
            used += result.references
        assert sorted(used) == list(range(4, 24))
    sets = [
        attack_spec(RecipeModels((), c, many), Variant("lira_online", 2), g)
        for g in range(spec.JACKKNIFE_GROUPS)
    ]
    assert [s.references for s in sets if s] == [(4 + 2 * g, 5 + 2 * g) for g in range(8)]
    assert [spec.num_reference_parts(n, 20) for n in (2, 3, 15, 16, 20)] == [8, 0, 0, 14, 14]
    assert attack_spec(RecipeModels((), c, many), Variant("lira_online", 15), 0) is None
    assert attack_spec(RecipeModels((), c, many), Variant("lira_online", 16), 0)
    assert (
        attack_spec(RecipeModels((), c, many), Variant("loss", 16), 0) is None
    )  # has no references


def test_missing_references_do_not_split_the_pairs_of_others():
    assert spec.reference_groups(range(18)) == [i // 2 % 8 for i in range(18)]
    assert spec.reference_groups([4, 7, 8, 9, 12, 13]) == [0, 1, 2, 2, 3, 3]
    many = models([i for i in range(30) if i not in (4, 9, 10)])
    c = change(change(C, "attack.references", 30), "attack.targets", 4)
    for half in range(spec.NUM_HALVES):
        result = attack_spec(RecipeModels((), c, many), Variant("lira_online", 23), half)
        assert result is not None
        present = {*many.references} & {r ^ 1 for r in result.references}
        assert present <= {*result.references}


BASE = AttackSpec("rmia", False, (8, 9), (0, 1, 2), 3, "loss", 100, 1.0)


def recipe(*names: str, present: PresentModels = ALL, **changes: Any) -> RecipeModels:
    """Returns a recipe with changed fields; two underscores separate section and field."""
    c = C
    for field, value in changes.items():
        c = change(c, field.replace("__", "."), value)
    return RecipeModels(names, c, present)


def attacks(
    need: Need | Sequence[Need], recipes: Mapping[str, RecipeModels]
) -> dict[str, list[AttackSpec]]:
    """Returns the attacks, each before its parts."""
    needs = [need] if isinstance(need, Need) else need
    requests = target_requests(needs, recipes)
    return {
        key: [*dict.fromkeys(attack for r in of_recipe for attack in (r.spec, *r.parts))]
        for key, of_recipe in requests.items()
    }


def expected(recipe: RecipeModels, name: str, references: int, **options: Any) -> AttackSpec:
    result = attack_spec(recipe, Variant(name, references, **options))
    assert result is not None
    return result


def test_needs_are_merged_without_duplicates():
    main = recipe("main")
    lira, loss = expected(main, "lira_online", 8), expected(main, "loss", 8)
    two = [Need(("main",), ("lira_online", "loss"), sample_scores=False)]
    two += [Need(("ma*",), ("lira_online",), sample_scores=True), Need(("other",), ("rmia",))]
    assert target_requests(two, {"main": main}) == {
        "main": [
            Request(lira, evaluations.operating_points),
            Request(loss, evaluations.operating_points),
            Request(lira, evaluations.sample_scores),
        ]
    }
    # the same attack with any number of references
    powers = Need(("main",), ("loss", "lira_online"), references="powers")
    assert attacks(powers, {"main": main}) == {
        "main": [
            loss,
            *(expected(main, "lira_online", n, is_count_study=True) for n in (2, 4, 8)),
        ]
    }
    assert attacks([], {"main": main}) == {"main": []}


def test_recipes_are_matched_by_patterns():
    recipes = {
        "a": recipe("chinchilla-10M"),
        "b": recipe("fixed-10M", "chinchilla-44M"),
        "c": recipe("Chinchilla-85M"),
        "d": recipe("main"),
    }
    for patterns, keys in {
        ("chinchilla-*",): ["a", "b"],
        ("fixed-10M",): ["b"],
        ("chinchilla-44M",): ["b"],
        ("*",): ["a", "b", "c", "d"],
        ("main", "chinchilla-10M"): ["a", "d"],
        ("chinchilla",): [],
    }.items():
        assert [
            key for key, of_recipe in attacks(Need(patterns), recipes).items() if of_recipe
        ] == keys


def test_recipes_are_attacked_with_equal_numbers_of_references():
    incomplete = models([*range(5), *range(8, 12)])
    recipes = {"a": recipe("a"), "b": recipe("b", present=incomplete)}
    result = attacks(Need(("*",)), recipes)
    assert result == {key: [expected(recipe, "lira_online", 5)] for key, recipe in recipes.items()}
    assert result["b"][0].references == (4, 8, 9, 10, 11)
    # All recipes use the numbers of the one that requests the fewest models, so targets have the same seeds, too.
    with_fewer_replicas = {**recipes, "b": recipe("b", attack__references=8, attack__targets=2)}
    for [attack] in attacks(Need(("*",)), with_fewer_replicas).values():
        assert (attack.references, attack.targets) == (tuple(range(2, 8)), (0, 1))
    assert attacks(Need(("a",)), with_fewer_replicas)["a"] == [
        expected(recipes["a"], "lira_online", 8)
    ]


@pytest.mark.parametrize(("most", "count"), [(3, 3), (8, 8), (None, 140), (128, 128)])
def test_most_references_limits_the_count(most: int | None, count: int):
    large = recipe(
        "a", present=models(range(144)), attack__references=144 if (most or 128) > 8 else 12
    )
    [attack] = attacks(Need(("a",), most_references=most), {"a": large})["a"]
    assert len(attack.references) == count


def test_recipes_with_too_few_models_are_ignored():
    few = recipe("few", present=models(range(5)))  # one reference, four targets
    without_targets = recipe("none", attack__targets=0)
    only = recipe("only", present=models(range(12)))  # no replicas
    result = attacks(Need(("*",)), {"a": recipe("a"), "few": few, "only": only})
    assert {
        key: [len(x.references) for x in attacks_of_key] for key, attacks_of_key in result.items()
    } == {
        "a": [8],
        "few": [],
        "only": [8],
    }
    result = attacks(
        Need(("*",), targets="replicas"), {"none": without_targets, "few": few, "only": only}
    )
    assert {
        key: [x.targets_are_replicas for x in attacks_of_key]
        for key, attacks_of_key in result.items()
    } == {
        "none": [True],
        "few": [],
        "only": [],
    }


def test_models_without_references_are_attacked():
    """Imported losses of targets alone; recipes beside them are attacked with as many references as before."""
    alone = recipe("main-0", present=models(range(2)))
    c = dataclasses.replace(
        alone.config,
        corpus=dataclasses.replace(alone.config.corpus, source="imported"),
        attack=dataclasses.replace(
            alone.config.attack, references=2, targets=2, replicas=0, attacks=("loss",)
        ),
    )
    alone = dataclasses.replace(alone, config=c)
    attack = attack_spec(alone, Variant("loss"))
    assert attack is not None
    assert (attack.targets, attack.references) == ((0, 1), ())
    for variant in (Variant(), Variant("loss", references=2), Variant("loss", replicas=True)):
        assert attack_spec(alone, variant) is None
    other = recipe("main-1")
    need = Need(("main-*",))
    both = target_requests([need], {"a": alone, "b": other})
    assert both["b"] == target_requests([need], {"b": other})["b"] != []
    assert both["a"] == []
    assert [request.spec.attack for request in recipe_needs([], {"a": alone})["a"].requests] == [
        "loss"
    ]
    # In other recipes, too few references give no attack at all: they are still being made.
    few = recipe("main-2", present=models(range(5)))
    assert attack_spec(few, Variant("loss")) is None


def test_either_targets_or_replicas():
    recipes = {"a": recipe("a"), "none": recipe("none", attack__targets=0)}
    [of_targets], [of_replicas] = attacks(Need(("*",), targets="either"), recipes).values()
    assert (of_targets.targets_are_replicas, of_targets.targets) == (False, (0, 1, 2, 3))
    assert (of_replicas.targets_are_replicas, of_replicas.targets) == (True, (0, 1))
    assert of_targets.references == tuple(range(4, 12))
    assert of_replicas.references == tuple(range(8))


def test_parts_of_references_need_enough_references():
    present = models(range(20))
    sixteen = recipe("a", present=present, attack__references=20)
    need = Need(("a",), jackknife=True, references="powers")
    result = attacks(need, {"a": sixteen})["a"]
    assert [(len(x.references), x.reference_part) for x in result] == [
        (2, None),
        *((2, part) for part in range(8)),
        (4, None),
        (8, None),
        (16, None),
        *((8, half) for half in range(14)),
    ]
    fifteen = recipe("a", present=models([*range(4), *range(5, 20)]), attack__references=20)
    parts = [x.reference_part for x in attacks(need, {"a": fifteen})["a"]]
    assert parts == [None] * 4  # eight sets of two need 16
    sets = [x.references for x in result if len(x.references) == 2]
    assert sets == [(4, 5), *((4 + 2 * g, 5 + 2 * g) for g in range(8))]


def test_attacks_for_intervals_are_marked():
    present = models(range(20))
    recipes = {"a": recipe("a", present=present, attack__references=20)}
    [plain] = recipe_needs([Need(("a",))], recipes)["a"].requests
    assert plain.evaluation is evaluations.operating_points
    need = Need(("a",), jackknife=True, epsilons=True, sample_scores=True)
    points, halves, epsilons, *scores = recipe_needs([need], recipes)["a"].requests
    assert points == plain
    assert (halves.evaluation, epsilons.evaluation) == (
        evaluations.halved_rates,
        evaluations.epsilons,
    )
    assert [part.reference_part for part in halves.parts] == [*range(14)]
    assert halves.parts == epsilons.parts
    # The scores of all samples are too large for one piece.
    assert [request.spec for request in scores] == [points.spec, *halves.parts]
    assert {request.evaluation for request in scores} == {evaluations.sample_scores}


def test_recipes_without_replicas_are_attacked_by_every_attack():
    names = ("lira_online", "rmia", "loss")
    settings = {"attack__references": 16, "attack__attacks": names, "attack__targets": 4}
    present, few = models(range(20), range(2)), models(range(1))
    recipes = {
        "targets": recipe("targets", present=present, attack__replicas=0, **settings),
        "both": recipe("both", present=present, attack__replicas=2, **settings),
        "few": recipe("few", present=few, attack__replicas=0, **settings),
    }
    results = recipe_needs([Need(("*",), jackknife=True)], recipes)
    table = results["targets"].score_table
    assert [attack.attack for attack in table] == [*names]
    assert all(len(a.references) in (0, 12) and len(a.targets) == 4 for a in table)
    requests = results["targets"].requests
    assert {Request(a, evaluations.operating_points) for a in table} <= {*requests}
    assert len({*requests}) == len(requests)
    assert (results["both"].score_table, results["few"].score_table) == ([], [])
    assert {r.spec.attack for r in results["both"].requests} == {"lira_online"}


def test_epochs_select_score_steps():
    c = {"train__epochs": 4, "score__at_epochs": (1.0, 2.5)}
    a, end = recipe("a", **c), recipe("b")
    recipes = {"a": a, "b": end}
    for epochs, steps in {"end": [0], "all": [0, 2, 5], (1,): [2], (1, 3): [2], (3,): []}.items():
        result = attacks(Need(("a",), epochs=epochs), {"a": a})["a"]  # pyright: ignore
        assert [x.step for x in result] == steps
    result = attacks(Need(("*",), epochs=(1, 4)), recipes)
    assert [x.step for x in result["a"]] == [0, 2]
    assert [x.step for x in result["b"]] == [0]  # whose training ends after one epoch


def test_shares_and_gammas_affect_rmia_only():
    large = recipe("a", population__samples=1000)
    need = Need(
        ("a",),
        ("lira_online", "rmia"),
        observed=("loss", "target_logit"),
        rmia_shares=(0.01, 0.5),
        rmia_gammas=(1.0, 1.5),
    )
    result = [
        (x.attack, x.observed, x.rmia_samples, x.rmia_gamma)
        for x in attacks(need, {"a": large})["a"]
    ]
    assert result == [("lira_online", observed, 0, 0.0) for observed in need.observed] + [
        ("rmia", observed, samples, gamma)
        for observed in need.observed
        for samples in (10, 500)
        for gamma in (1.0, 1.5)
    ]
    [default] = attacks(Need(("a",), ("rmia",)), {"a": large})["a"]
    assert (default.rmia_samples, default.rmia_gamma) == (1000, 1.0)


def test_values_of_a_affect_offline_rmia_only():
    offline = Need(("a",), ("lira_offline", "rmia", "rmia_offline"), rmia_as=(0.0, 0.3))
    result = attacks(offline, {"a": recipe("a", attack__rmia_a=0.3)})["a"]
    assert [(x.attack, x.rmia_a) for x in result] == [
        ("lira_offline", None),
        ("rmia", None),
        ("rmia_offline", 0.0),
        ("rmia_offline", 0.3),
    ]
    [default] = attacks(Need(("a",), ("rmia_offline",)), {"a": recipe("a", attack__rmia_a=0.3)})[
        "a"
    ]
    assert default == result[-1]
