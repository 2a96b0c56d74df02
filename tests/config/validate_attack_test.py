import math
from typing import Any

import pytest
from tiny_config import TINY, change

from lm_mia.config import Config, load
from lm_mia.config.validate import nothing_attacked, problems

FIELDS = [*load.field_types()]

# Rules of the attack: (changes that break a rule, the message, the nearest changes that are valid).
ATTACKS = "attack.attacks={}: must include lira_online, whose decisions the tables show, and have no duplicates"
FPRS = "attack.fprs={}: must be rates above 0 and at most 1, in ascending order, distinct in their first 6 digits"
BAND = "attack.band={}: must be two rates in [0, 1], the lower one first"
RESAMPLED = (
    "attack.resample_references={}: must be 0, or an even number from 4 to attack.references / 2 = 4; sets are made of "
    "pairs"
)
AMBIGUOUS = "attack.ambiguous_separation={}: must be between 0 and attack.clear_separation={}"
NAN, INF = math.nan, math.inf
Changes = dict[str, Any]
IMPORTED = {"corpus.source": "imported", "corpus.path": "x", "train.subset": "given"}
OF_ATTACK: list[tuple[Changes, str, list[Changes]]] = [
    (
        {"references": 3},
        "attack.references=3: must be 4 or more, for 2 IN and 2 OUT losses per sample",
        [{"references": 5}],
    ),
    (
        {"step": 1},
        "attack.step=1: must be 0 (the end of training), since models are not scored at other steps; add the step to "
        "score.at_steps",
        [{"step": 1, "score.at_steps": (1,)}, {"step": 1, "score.at_epochs": (0.5,)}, {"score.at_steps": (1,)}],
    ),
    (
        {"replicas": 1},
        "attack.replicas=1: must be 0 (no replicas) or at least 2, since a flip rate needs two decisions",
        [{"replicas": 3}, {"replicas": 0}],
    ),
    *(
        (
            {"references": 8, "targets": bad, "train.subset": "exact"},
            f"attack.targets={bad}: must leave at least 4 of attack.references=8",
            [{"references": 8, "targets": valid, "train.subset": "exact"} for valid in (1, 4)],
        )
        for bad in (-1, 5)
    ),
    (
        {"references": 8, "targets": 3, "train.subset": "balanced"},
        "attack.targets=3: must be even for train.subset='balanced', where references come in pairs",
        [{"references": 8, "targets": 2, "train.subset": "balanced"}],
    ),
    *(
        ({"attacks": bad}, ATTACKS.format(bad), [{"attacks": ("lira_online",)}, {"attacks": ("loss", "lira_online")}])
        for bad in ((), ("loss",), ("lira_online", "loss", "loss"))
    ),
    *(
        ({"alpha": bad}, f"attack.alpha={bad!r}: must be between 0 and 1", [{"alpha": 1e-9}, {"alpha": 0.999}])
        for bad in (0.0, 1.0, NAN, -1.0)
    ),
    *(
        (
            {"fprs": bad, "focus_fpr": bad[0]},
            FPRS.format(bad),
            [{"fprs": (0.1, 1.0)}, {"fprs": (1e-9, 0.1, 0.5, 0.500001)}, {"fprs": (0.5,), "focus_fpr": 0.5}],
        )
        for bad in ((0.0, 0.1), (-0.1, 0.1), (0.1, 1.1), (0.2, 0.1), (0.1, 0.1), (0.1, 0.10000001), (0.1, NAN))
    ),
    (  # of 8 non-members
        {"fprs": (0.001, 0.1)},
        "attack.fprs=(0.001, 0.1): must be at least 0.125, the lowest rate that 8 non-members (population.samples / 2) "
        "can show; add a higher rate",
        [{"fprs": (0.001, 0.1, 0.125)}],
    ),
    (
        {"focus_fpr": 0.3},
        "attack.focus_fpr=0.3: must be auto or one of attack.fprs=(0.1, 0.5)",
        [{"focus_fpr": 0.5}, {"focus_fpr": "auto"}],
    ),
    *(
        ({"band": bad}, BAND.format(bad), [{"band": (0.0, 1.0)}, {"band": (0.2, 0.200001)}])
        for bad in ((0.1, 0.1), (0.2, 0.1), (-0.1, 0.1), (0.1, 1.1), (NAN, 0.1), (0.1, NAN))
    ),
    *(
        (
            {"delta": bad},
            f"attack.delta={bad!r}: must be between 0 and 1, both excluded; try --config.attack.delta=1e-5",
            [{"delta": 1e-12}, {"delta": 0.5}],
        )
        for bad in (0.0, 1.0, -1e-5, NAN)
    ),
    *(
        (
            {"rmia_samples": bad},
            f"attack.rmia_samples={bad}: must be 1 or larger",
            [{"rmia_samples": 1}, {"rmia_samples": 10**6}],
        )
        for bad in (0, -1)
    ),
    *(
        (
            {"rmia_gamma": bad},
            f"attack.rmia_gamma={bad!r}: must be a finite number larger than 0",
            [{"rmia_gamma": 1e-9}, {"rmia_gamma": 100.0}],
        )
        for bad in (0.0, -1.0, INF, NAN)
    ),
    *(
        ({"rmia_a": bad}, f"attack.rmia_a={bad!r}: must be in [0, 1], or tuned", [{"rmia_a": 0.0}, {"rmia_a": "tuned"}])
        for bad in (-0.1, 1.1, NAN)
    ),
    *(
        (
            {"priors": bad},
            f"attack.priors={bad!r}: must be probabilities between 0 and 1, both excluded, distinct in their first 6 "
            "digits; try --config.attack.priors=0.5,0.1",
            [{"priors": (0.5,)}, {"priors": (1e-6, 0.999)}, {"priors": (0.5, 0.1)}],
        )
        for bad in ((), (0.0,), (1.0,), (0.5, -0.1), (NAN,), (0.5, 0.1, 0.5), (0.5, 0.5000000001))
    ),
    ({"bootstraps": -1}, "attack.bootstraps=-1: must be 0 or larger", [{"bootstraps": 0}, {"bootstraps": 1}]),
    *(
        (
            {"resample_references": bad, "references": 9},
            RESAMPLED.format(bad),
            [
                {"resample_references": 4, "references": 8},
                {"resample_references": 4, "references": 10},
            ],
        )
        for bad in (-4, 1, 3, 5)
    ),
    (
        {"resample_references": 4, "references": 6},
        "attack.resample_references=4: needs 8 or more references instead of 6, for two disjoint sets of 4, the "
        "smallest size; set it to 0, or increase attack.references",
        [{"resample_references": 0}, {"references": 8}],
    ),
    (
        {"replica_inits": 2, "replicas": 3, "orders_per_init": 3, "references": 6},
        "attack.replica_inits=2: needs sets of references, since the effect of the references is compared with that of "
        "the initialization; set --config.attack.resample_references to 4, and --config.attack.references to 8 or more",
        [{"resample_references": 4, "references": 8}],
    ),
    (
        {"replica_inits": 0},
        "attack.replica_inits=0: must be 1 or larger",
        [{"replica_inits": 1, "resample_references": 0}],
    ),
    (
        {"replica_inits": 2, "replicas": 3, "orders_per_init": 3, "references": 9},
        "attack.replica_inits=2: needs sets of references, since the effect of the references is compared with that of "
        "the initialization; set --config.attack.resample_references to an even number from 4 to attack.references / 2 "
        "= 4",
        [{"replica_inits": 2, "replicas": 3, "orders_per_init": 3, "references": 9, "resample_references": 4}],
    ),
    *(
        (
            {"replica_inits": 2, "orders_per_init": bad, "replicas": 4, "references": 8, "resample_references": 4},
            f"attack.orders_per_init={bad}: must be from 2 to attack.replicas=4, whose orders are used",
            [{"orders_per_init": bad}],
        )
        for bad in (1, 5)
    ),
    (
        {"zero_run": ("graded", "graded")},
        "attack.zero_run=('graded', 'graded'): must have no duplicates",
        [{"zero_run": ("graded", "groups")}],
    ),
    *(
        (
            {"zero_run_strengths": bad},
            f"attack.zero_run_strengths={bad}: must be distinct numbers from 0 (no shift) to 20",
            [{"zero_run_strengths": (0.0, 20.0)}],
        )
        for bad in ((), (1.0, 1.0), (-0.1,), (20.1,), (NAN,))
    ),
    *(
        (
            {"ambiguous_separation": low, "clear_separation": high},
            AMBIGUOUS.format(low, high),
            [{"ambiguous_separation": x, "clear_separation": x} for x in (0.0, 1.0)],
        )
        for low, high in ((-0.1, 2.0), (2.1, 2.0), (NAN, 2.0), (0.5, INF), (0.5, NAN))
    ),
    *(
        ({name: bad}, f"attack.{name}={bad!r}: must be in [0, 0.5]", [{name: 0.0}])
        for name in ("stable_flip", "stable_member_flip")
        for bad in (-0.1, 0.51, NAN)
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
    ("changes", "message", "valid_changes"), OF_ATTACK, ids=[str(r[0]) for r in OF_ATTACK]
)
def test_each_rule_of_the_attack(changes: Changes, message: str, valid_changes: list[Changes]):
    assert problems(changed(changes)) == [message]
    for valid in valid_changes:
        assert problems(changed(valid)) == []


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


@pytest.mark.parametrize("subset", ["exact", "bernoulli", "balanced"])
def test_every_design_allows_leave_one_out(subset: str):
    assert problems(changed({"leave_one_out": True, "train.subset": subset})) == []


def test_each_field_of_the_attack_has_a_rule():
    fields_with_rules = {line.partition("=")[0] for _, line, _ in OF_ATTACK}
    free = {"attack.variance", "attack.finite_population", "attack.clear_separation"}
    free |= {"attack.leave_one_out", "attack.headline"}  # `registry.problems` checks attacks
    assert fields_with_rules | free == {field for field in FIELDS if field.startswith("attack.")}
