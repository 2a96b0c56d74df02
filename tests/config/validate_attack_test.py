import math
from typing import Any

import pytest
from tiny_config import TINY, change

from lm_mia.config import Config, load, schema
from lm_mia.config.validate import nothing_attacked, problems

FIELDS = [*load.field_types()]

NAN, INF = math.nan, math.inf
Changes = dict[str, Any]
IMPORTED = {"corpus.source": "imported", "corpus.path": "x", "train.subset": "given"}
BALANCED = {"references": 8, "train.subset": "balanced"}
INITS = {"replica_inits": 2, "replicas": 4, "references": 8, "resample_references": 4}
# Rules of the attack: (field, changes that break a rule, the nearest changes that are valid).
OF_ATTACK: list[tuple[str, list[Changes], list[Changes]]] = [
    ("references", [{"references": 3}], [{"references": 5}]),
    (
        "step",
        [{"step": 1}, {"step": 0}],
        [{"step": 1, "score.at_steps": (1,)}, {"step": 1, "score.at_epochs": (0.5,)}, {"score.at_steps": (1,)}],
    ),
    ("replicas", [{"replicas": 1}], [{"replicas": 3}, {"replicas": 0}]),
    (
        "targets",
        [*({"references": 8, "targets": bad} for bad in (-1, 5)), BALANCED | {"targets": 3}],
        [*({"references": 8, "targets": valid} for valid in (1, 4)), BALANCED | {"targets": 2}],
    ),
    (
        "attacks",
        [{"attacks": bad} for bad in ((), ("loss",), ("lira_online", "loss", "loss"))],
        [{"attacks": ("lira_online",)}, {"attacks": ("loss", "lira_online")}],
    ),
    ("alpha", [{"alpha": bad} for bad in (0.0, 1.0, NAN, -1.0)], [{"alpha": 1e-9}, {"alpha": 0.999}]),
    (
        "fprs",
        [
            *(
                {"fprs": bad, "focus_fpr": "auto"}
                for bad in (
                    *((0.0, 0.1), (-0.1, 0.1), (0.1, 1.1), (0.2, 0.1), (0.1, 0.1), (0.1, 0.10000001), (0.1, NAN)),
                    (),
                    (0.001, 0.1),  # of 8 non-members
                )
            )
        ],
        [{"fprs": (0.1, 1.0)}, {"fprs": (1e-9, 0.1, 0.5, 0.500001)}, {"fprs": (0.001, 0.1, 0.125)}],
    ),
    ("focus_fpr", [{"focus_fpr": 0.3}, {"focus_fpr": "low"}], [{"focus_fpr": 0.5}, {"focus_fpr": "auto"}]),
    (
        "band",
        [{"band": bad} for bad in ((0.1, 0.1), (0.2, 0.1), (-0.1, 0.1), (0.1, 1.1), (NAN, 0.1), (0.1, NAN))],
        [{"band": (0.0, 1.0)}, {"band": (0.2, 0.200001)}],
    ),
    ("delta", [{"delta": bad} for bad in (0.0, 1.0, -1e-5, NAN)], [{"delta": 1e-12}, {"delta": 0.5}]),
    ("rmia_samples", [{"rmia_samples": bad} for bad in (0, -1)], [{"rmia_samples": 1}, {"rmia_samples": 10**6}]),
    (
        "rmia_gamma",
        [{"rmia_gamma": bad} for bad in (0.0, -1.0, INF, NAN)],
        [{"rmia_gamma": 1e-9}, {"rmia_gamma": 100.0}],
    ),
    ("rmia_a", [{"rmia_a": bad} for bad in (-0.1, 1.1, NAN)], [{"rmia_a": 0.0}, {"rmia_a": "tuned"}]),
    (
        "priors",
        [{"priors": x} for x in ((), (0.0,), (1.0,), (0.5, -0.1), (NAN,), (0.5, 0.1, 0.5), (0.5, 0.5000000001))],
        [{"priors": (0.5,)}, {"priors": (1e-6, 0.999)}, {"priors": (0.5, 0.1)}],
    ),
    ("bootstraps", [{"bootstraps": -1}], [{"bootstraps": 0}, {"bootstraps": 1}]),
    (
        "resample_references",
        [
            *({"resample_references": bad, "references": 9} for bad in (-4, 1, 3, 5)),
            {"resample_references": 4, "references": 6},
        ],
        [
            {"resample_references": 4, "references": 8},
            {"resample_references": 4, "references": 10},
            {"resample_references": 0},
        ],
    ),
    (
        "replica_inits",
        [
            {"replica_inits": 2, "replicas": 3, "orders_per_init": 3, "references": 6},
            {"replica_inits": 2, "replicas": 3, "orders_per_init": 3, "references": 9},
            {"replica_inits": 0},
        ],
        [{"replica_inits": 1}, INITS | {"orders_per_init": 3}],
    ),
    ("orders_per_init", [INITS | {"orders_per_init": bad} for bad in (1, 5)], [{"orders_per_init": 5}]),
    ("zero_run", [{"zero_run": ("graded", "graded")}], [{"zero_run": ("graded", "groups")}]),
    (
        "zero_run_strengths",
        [{"zero_run_strengths": bad} for bad in ((), (1.0, 1.0), (-0.1,), (20.1,), (NAN,))],
        [{"zero_run_strengths": (0.0, 20.0)}],
    ),
    (
        "ambiguous_separation",
        [{"ambiguous_separation": bad} for bad in (-0.1, 2.1, NAN)],
        [{"ambiguous_separation": x, "clear_separation": x} for x in (0.0, 1.0)],
    ),
    ("clear_separation", [{"clear_separation": bad} for bad in (INF, NAN)], []),
    *(
        (name, [{name: bad} for bad in (-0.1, 0.51, NAN)], [{name: 0.0}])
        for name in ("stable_flip", "stable_member_flip")
    ),
]  # fmt: skip


def changed(changes: Changes) -> Config:
    """Returns TINY with changed fields; names without a section are fields of the attack."""
    new = TINY
    for field, value in changes.items():
        is_full_name = "." in field or field == "name"
        new = change(new, field if is_full_name else f"attack.{field}", value)
    return new


@pytest.mark.parametrize(
    ("field", "broken", "valid"), OF_ATTACK, ids=[field for field, *_ in OF_ATTACK]
)
def test_each_rule_of_the_attack(field: str, broken: list[Changes], valid: list[Changes]):
    """A broken one is one line, field=value: rule; remedy."""
    for changes in broken:
        [line] = problems(changed(changes))
        assert line.startswith(f"attack.{field}={getattr(changed(changes).attack, field)!r}: ")
        assert "; " in line
    for changes in valid:
        assert problems(changed(changes)) == []


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({}, "attack.replicas=0", "references=8 --config.attack.targets=2"),
        ({"references": 5}, "attack.replicas=0", "references=8 --config.attack.targets=2"),
        (
            {"references": 6, "leave_one_out": True},
            "attack.replicas=0",
            "try --config.attack.targets=2",
        ),
        (
            {"references": 7, "zero_run": ("graded",)},
            "attack.replicas=0",
            "--config.attack.targets=2",
        ),
        ({"references": 99}, "attack.replicas=0", "--config.attack.targets=2"),
        ({"references": 8, "leave_one_out": True, "fprs": (1.0,)}, "attack.fprs=(1.0,)", "rate"),
        ({"references": 8, "leave_one_out": True, "fprs": (1e-9, 1.0)}, "attack.fprs=", "rate"),
        (IMPORTED | {"references": 5}, "attack.targets=0", "try --config.attack.targets=1"),
        (IMPORTED | {"references": 9}, "attack.targets=0", "try --config.attack.targets=2"),
        (IMPORTED | {"references": 9, "zero_run": ("graded",)}, "attack.targets=0", "targets=2"),
    ],
)
def test_a_config_of_which_nothing_is_attacked_is_noticed(
    changes: Changes, field: str, remedy: str
):
    [line] = nothing_attacked(changed({"replicas": 0} | changes))
    assert line.startswith(field)
    assert line.endswith(remedy)


@pytest.mark.parametrize("subset", ["exact", "bernoulli", "balanced"])
@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2},
        {"targets": 2, "references": 6},
        {"leave_one_out": True, "references": 8},
        {"leave_one_out": True, "references": 8, "fprs": (1e-9, 0.5, 1.0)},
        {"zero_run": ("groups",), "references": 8, "fprs": (1.0,)},
    ],
)
def test_configs_that_give_results_are_accepted(changes: Changes, subset: str):
    assert nothing_attacked(changed({"replicas": 0, "train.subset": subset} | changes)) == []


def test_the_lowest_rate_that_the_samples_can_show_is_enough():
    settings = {"replicas": 0, "leave_one_out": True, "references": 8}
    lowest = schema.lowest_fpr(schema.num_canaries(changed(settings)))
    assert nothing_attacked(changed(settings | {"fprs": (lowest,)})) == []
    assert len(nothing_attacked(changed(settings | {"fprs": (0.99 * lowest,)}))) == 1


@pytest.mark.parametrize("subset", ["exact", "bernoulli", "balanced"])
def test_every_design_allows_leave_one_out(subset: str):
    assert problems(changed({"leave_one_out": True, "train.subset": subset})) == []


def test_each_field_of_the_attack_has_a_rule():
    with_rules = {f"attack.{field}" for field, *_ in OF_ATTACK}
    free = {"attack.variance", "attack.finite_population"}
    free |= {"attack.leave_one_out", "attack.headline"}  # `registry.problems` checks attacks
    assert with_rules | free == {field for field in FIELDS if field.startswith("attack.")}
