"""Which attack a result is named by, a case for each line of the rule, and at which rate."""

import dataclasses
from typing import Any

import pytest

from lm_mia import config
from lm_mia.attacks.headline import effective_attack, headline_attack, headline_fpr

RANDOM = {"is_random": True, "references": 8, "has_in": True, "has_pairs": False, "has_base": False}


@pytest.mark.parametrize(
    ("changes", "attack"),
    [
        ({}, "stacked"),
        ({"references": 2}, "stacked"),
        ({"references": 1}, "loss"),
        ({"references": 1, "has_base": True}, "base_calibrated"),
        ({"references": 2, "has_pairs": True}, "reference_calibrated"),
        ({"references": 4, "has_pairs": True}, "stacked"),
        ({"is_random": False}, "rmia"),
        ({"is_random": False, "references": 3}, "reference_calibrated"),
        ({"is_random": False, "references": 3, "has_base": True}, "base_calibrated"),
        ({"has_in": False}, "shrunk_offline"),
        ({"has_in": False, "references": 1}, "reference_calibrated"),
        ({"has_base": True}, "stacked"),
        ({"references": 0, "has_in": False, "has_base": True}, "base_calibrated"),
        ({"references": 0, "has_in": False}, "loss"),
    ],
)
def test_rule(changes: dict[str, Any], attack: str):
    assert headline_attack(**RANDOM | changes) == attack


def effective(subset: Any = "exact", samples: int = 2048, **attack: Any) -> config.Attack:
    return effective_attack(
        config.Config(
            population=config.Population(samples=samples),
            train=config.Train(subset=subset),
            attack=config.Attack(**attack),
        )
    )


@pytest.mark.parametrize(
    ("subset", "settings", "attack"),
    [
        ("exact", {"references": 16, "replicas": 4}, "stacked"),
        ("bernoulli", {"references": 6, "targets": 4, "replicas": 0}, "stacked"),
        ("balanced", {"references": 8, "targets": 4, "replicas": 0}, "stacked"),
        ("balanced", {"references": 6, "targets": 4, "replicas": 0}, "reference_calibrated"),
        # Replicas are attacked with all models that have subsets of their own.
        ("balanced", {"references": 6, "targets": 4, "replicas": 4}, "stacked"),
        ("exact", {"references": 5, "targets": 4, "replicas": 0}, "loss"),
        ("exact", {"references": 4, "targets": 4, "replicas": 0}, "loss"),
        ("given", {"references": 8, "replicas": 2}, "rmia"),
        ("given", {"references": 6, "targets": 3, "replicas": 0}, "reference_calibrated"),
        (
            "given",
            {
                "references": 1,
                "targets": 1,
                "replicas": 0,
                "attacks": ("lira_online", "base_calibrated"),
            },
            "base_calibrated",
        ),
        ("exact", {"references": 16, "headline": "zlib"}, "zlib"),
        ("exact", {"references": 16, "headline": "/a/b.py:score"}, "/a/b.py:score"),
    ],
)
def test_the_attack_of_a_recipe(subset: str, settings: dict[str, Any], attack: str):
    found = effective(subset, **settings)
    assert found.headline == attack
    assert attack in found.attacks


def test_the_headline_attack_is_added_once():
    listed = "lira_online", "rmia", "stacked"
    assert effective(attacks=listed).attacks == listed
    assert effective(attacks=listed[:2]).attacks == listed
    assert effective(attacks=listed[:2], headline="rmia").attacks == listed[:2]
    c = config.Config()
    once = dataclasses.replace(c, attack=effective_attack(c))
    assert effective_attack(once) == once.attack


@pytest.mark.parametrize(
    ("samples", "fprs", "focus"),
    [
        (2000, (0.001, 0.01, 0.05), 0.01),
        (1998, (0.001002, 0.01, 0.05), 0.05),
        (400, (0.01, 0.05, 0.5), 0.05),
        (398, (0.01, 0.5), 0.1),
        (20, (0.5,), 0.1),
        # Of 9 non-members, none is a false positive at 0.1.
        (18, (0.2, 0.5), 0.2),
    ],
)
def test_the_rate_of_a_recipe_allows_ten_false_positives(
    samples: int, fprs: tuple[float, ...], focus: float
):
    found = effective(samples=samples, fprs=fprs)
    assert found.focus_fpr == found.focus == focus
    assert found.fprs == tuple(sorted({*found.fprs, focus}))
    assert {*found.fprs} <= {*fprs, focus}
    assert effective(samples=samples, fprs=fprs, focus_fpr=fprs[-1]).focus == fprs[-1]


def test_a_rate_that_depends_on_the_recipe_is_no_number():
    with pytest.raises(ValueError, match="auto"):
        _ = config.Attack().focus


@pytest.mark.parametrize(
    ("fprs", "nonmembers", "fpr"),
    [
        ((0.001, 0.01, 0.05, 0.1), 1_000, 0.01),
        ((0.001, 0.01, 0.05, 0.1), 999, 0.05),
        ((0.001, 0.01, 0.05, 0.1), 100_000, 0.01),
        # None allows 10 false positives, so the highest one is taken.
        ((0.01, 0.05, 0.1), 20, 0.1),
        ((0.001, 0.002), 100_000, 0.001),
    ],
)
def test_the_rate_allows_ten_false_positives(fprs: tuple[float, ...], nonmembers: int, fpr: float):
    assert headline_fpr(fprs, nonmembers) == fpr
