import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tiny_config import TINY, change

from lm_mia.attacks import spec
from lm_mia.attacks.spec import (
    AttackSpec,
    LossNeed,
    ModelRoles,
    Need,
    PresentModels,
)
from lm_mia.config import Attack, Config, Train, score_steps

C = change(change(TINY, "attack.references", 12), "attack.targets", 4)


def models(references: Sequence[int], replicas: Sequence[int] = ()) -> PresentModels:
    return PresentModels(tuple(references), tuple(replicas))


ALL = models(range(12), range(2))


@pytest.mark.parametrize(
    ("present", "references", "targets"),
    [
        (range(12), range(4, 12), range(4)),
        (
            [0, 1, 3, 4, 7, 8, 10, 11],
            [4, 7, 8, 10, 11],
            [0, 1, 3],
        ),  # missing models are not replaced
        ([*range(4, 12)], range(4, 12), []),
        (range(7), range(4, 7), range(4)),  # more references are requested than are trained yet
        (range(20), range(4, 12), range(4)),  # another command trained more models
        ([], [], []),
    ],
)
def test_the_first_models_are_the_targets(
    present: Sequence[int], references: Sequence[int], targets: Sequence[int]
):
    result = spec.assign_roles(models(present), C.attack)
    assert result == ModelRoles(tuple(references), tuple(targets), ())


def test_replicas_are_limited_by_the_config():
    assert spec.assign_roles(models([], [0, 1, 2, 5]), C.attack).replicas == (0, 1)
    without = change(C, "attack.targets", 0)
    assert spec.assign_roles(ALL, without.attack) == ModelRoles(tuple(range(12)), (), (0, 1))


def test_with_equal_counts_changes_only_the_counts():
    first = change(change(C, "attack.references", 30), "attack.targets", 2)
    second = change(C, "train.epochs", 3)
    smaller = change(change(TINY, "attack.references", 12), "attack.targets", 2)
    assert spec.with_equal_counts([first, second]) == [smaller, change(smaller, "train.epochs", 3)]


def test_score_step_is_none_where_models_are_not_scored():
    """16 samples in batches of 4 make two steps per epoch."""
    c = change(change(C, "train.epochs", 4), "score.at_epochs", (0.1, 1.0, 2.5, 4.0))
    assert score_steps(c) == (1, 2, 5)
    steps = {0.1: 1, 1: 2, 2.5: 5, 2: None, 3: None, 4: 0, 7: 0}
    assert {epochs: spec.score_step(c, epochs) for epochs in steps} == steps
    assert spec.score_step(change(c, "score.at_steps", (4,)), 2) == 4
    assert spec.scored_epochs(c) == [0.1, 1, 2.5, 4]
    # 3.99 epochs are rounded to the end of training.
    assert spec.score_step(change(c, "score.at_epochs", (3.99,)), 3.99) is None


def test_halves_are_balanced():
    halves = [spec.half_groups(h) for h in range(spec.NUM_HALVES)]
    assert all(len(half) == 4 for half in halves)
    for h, half in enumerate(halves):
        for other, groups in enumerate(halves):
            shared = 4 if h == other else 0 if h // 2 == other // 2 else 2
            assert len(half & groups) == shared


BASE = AttackSpec("rmia", False, (8, 9), (0, 1, 2), 3, "loss", 100, 1.0)


def test_any_field_changes_the_id():
    changes: dict[str, Any] = {
        "attack": "lira_online",
        "targets_are_replicas": True,
        "targets": (8,),
        "references": (0, 1, 3),
        "step": 4,
        "observed": "target_logit",
        "rmia_samples": 101,
        "rmia_gamma": 1.1,
        "rmia_a": 0.3,
        "reference_part": 0,
        "in_and_out_among": (0, 1),
    }
    assert set(changes) == {field.name for field in dataclasses.fields(AttackSpec)}
    ids = [dataclasses.replace(BASE, **{name: value}).id for name, value in changes.items()]
    assert len({BASE.id, *ids}) == 12
    assert dataclasses.replace(BASE).id == BASE.id
    assert BASE.id.startswith("rmia-3-")


def test_a_new_format_changes_the_id(monkeypatch: pytest.MonkeyPatch):
    before = BASE.id
    monkeypatch.setattr(spec, "FORMAT", spec.FORMAT + 1)
    assert dataclasses.replace(BASE).id != before


@pytest.mark.process
def test_the_id_does_not_depend_on_the_process():
    """Unlike Python's hashes of strings."""
    code = "from lm_mia.attacks.spec import AttackSpec\n"
    code += f"print({BASE!r}.id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == BASE.id


def changed(c: Config, **values: Any) -> dict[str, Any]:
    return spec.attack_settings(dataclasses.replace(c.attack, **values))


def test_attack_settings_exclude_the_fields_of_attacks():
    same = spec.attack_settings(C.attack)
    assert changed(C, references=99, targets=9, replicas=0, rmia_gamma=2.0) == same
    assert changed(C, rmia_samples=3, rmia_a=0.5, bootstraps=0, attacks=("loss",)) == same
    for name, value in {
        "fprs": (0.1,),
        "band": (0.0, 0.2),
        "variance": "pooled",
        "finite_population": True,
        "delta": 1e-6,
        "alpha": 0.01,
    }.items():
        assert changed(C, **{name: value}) != same, name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recipes": "main"}, "recipes='main': "),
        ({"recipes": ()}, r"recipes=\(\): "),
        ({"attacks": "rmia"}, "attacks='rmia': "),
        ({"observed": ("logit",)}, "observed=.*loss, target_logit"),
        ({"references": "power"}, "references='power': "),
        ({"targets": "replica"}, "targets='replica': "),
        ({"most_references": 1}, "most_references=1: "),
        ({"epochs": 1}, "epochs=1: "),
        ({"epochs": "al"}, "epochs='al'"),
        ({"rmia_shares": (0.0,)}, "rmia_shares=.*at most 1"),
        ({"rmia_shares": (5.0,)}, "at most 1"),
        ({"rmia_gammas": (-1.0,)}, "rmia_gammas=.* above 0"),
        ({"rmia_gammas": (float("nan"),)}, "rmia_gammas"),
        ({"rmia_as": (-0.1,)}, "rmia_as=.*from 0 to 1"),
        ({"rmia_as": (float("nan"),)}, "rmia_as"),
        ({"rmia_as": ("tune",)}, "rmia_as"),
        ({"attacks": (), "epochs": (0,)}, "attacks=.*; epochs="),
    ],
)
def test_mistakes_in_a_need_are_named(fields: dict[str, Any], message: str):
    arguments: dict[str, Any] = {"recipes": ("main",), **fields}
    with pytest.raises(ValueError, match=f"^Need: .*{message}"):
        Need(**arguments)


@pytest.mark.parametrize("from_end", [3, (0,), (1.5,), (-5,), [1]])
def test_mistakes_in_a_loss_need_are_named(from_end: Any):
    with pytest.raises(ValueError, match=r"^LossNeed: from_end="):
        LossNeed(("main",), from_end)


def test_balanced_recipes_are_compared_without_splitting_a_pair():
    """A reference that is the complement of a target would reveal the target's members."""
    c = Config(attack=Attack(references=28, targets=4), train=Train(subset="balanced"))
    config_of_odd_count = Config(attack=Attack(references=27, targets=3))
    parts = spec.assign_roles(
        PresentModels(tuple(range(28)), ()),
        spec.with_equal_counts([c, config_of_odd_count])[0].attack,
    )
    assert (parts.references, parts.targets) == (tuple(range(2, 26)), (0, 1))
    assert spec.with_equal_counts([config_of_odd_count, config_of_odd_count])[0].attack.targets == 3


def test_tables_of_decisions_do_not_depend_on_zero_run_evaluation():
    attack = Attack()
    changed = dataclasses.replace(attack, zero_run=("graded",), zero_run_strengths=(1.0,))
    assert spec.decision_settings(changed) == spec.decision_settings(attack)
    other = dataclasses.replace(attack, alpha=0.1)
    assert spec.decision_settings(other) != spec.decision_settings(attack)
    # Workdirs from before that evaluation existed keep their tables.
    assert "zero_run" not in spec.decision_settings(attack)
