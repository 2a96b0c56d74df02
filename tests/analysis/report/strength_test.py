"""The attacks of the page: their order, which does not depend on results, and which of them are shown."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from strength_cases import of_attacks

from analysis.report.numbers import Estimate
from analysis.report.strength import FAMILIES, Strength
from lm_mia import config

ALL = [attack for family in FAMILIES for attack in family]
DEFAULT = config.Attack().attacks


def test_the_order_of_attacks_does_not_depend_on_their_results():
    for attacks in (DEFAULT, DEFAULT[::-1], sorted(DEFAULT)):
        ordered = of_attacks(attacks, "stacked").attacks
        assert ordered == [attack for attack in ALL if attack in DEFAULT]
    assert ordered[0] == "stacked"
    assert ordered.index("rmia") < ordered.index("lira_online") < ordered.index("loss")


@pytest.mark.parametrize(
    ("attacks", "headline", "expected"),
    [
        (DEFAULT, "stacked", ["stacked", "rmia", "reference_calibrated", "lira_online", "loss"]),
        (DEFAULT, "rmia", ["rmia", "stacked", "reference_calibrated", "lira_online", "loss"]),
        (DEFAULT, "lira_online", ["lira_online", "stacked", "rmia", "reference_calibrated", "loss"]),
        (("loss", "zlib"), "loss", ["loss"]),
        (("loss", "base_calibrated"), "base_calibrated", ["base_calibrated", "loss"]),
        (("lira_online",), "lira_online", ["lira_online"]),
        (("shrunk_offline", "lira_offline", "loss"), "shrunk_offline", ["shrunk_offline", "lira_offline", "loss"]),
        (("mine", *DEFAULT), "stacked", ["stacked", "mine", "rmia", "lira_online", "loss"]),
        (("mine", *DEFAULT), "mine", ["mine", "stacked", "rmia", "lira_online", "loss"]),
    ],
)  # fmt: skip
def test_shown_attacks(attacks: Sequence[str], headline: str, expected: list[str]):
    shown = of_attacks(attacks, headline).shown
    assert shown[0] == headline
    assert shown == expected


@pytest.mark.parametrize("own", range(6))
@pytest.mark.parametrize("headline", ["stacked", "own_0", "zlib"])
def test_lira_and_the_loss_are_always_shown(own: int, headline: str):
    names = [f"own_{i}" for i in range(own)]
    attacks = [*names, *DEFAULT]
    if headline not in attacks:
        return
    shown = of_attacks(attacks, headline).shown
    assert shown[0] == headline
    assert {"lira_online", "loss"} <= {*shown}
    assert len({*shown}) == len(shown) == 5
    assert not own or {*names} & {*shown}


def test_numbers_and_differences():
    strength = of_attacks(("stacked", "loss"), "stacked", models=3)
    assert strength.found == strength.estimate("stacked", "tpr") == Estimate(0.1, 0.05, 0.1 + 0.05)
    assert (strength.auc, strength.missed) == (
        strength.estimate("stacked", "auc"),
        strength.estimate("stacked", "missed"),
    )
    assert strength.estimate("loss", "auc").value == pytest.approx(0.31)
    assert strength.minus_headline("loss", "tpr").value == pytest.approx(0.11 - 0.3)
    assert not strength.minus_headline("stacked", "tpr").is_known
    assert not strength.estimate("rmia", "tpr").is_known
    assert not strength.minus_headline("rmia", "tpr").is_known
    assert (strength.trainings, strength.members, strength.nonmembers) == (3, 1024, 1000)
    assert (strength.references, strength.found_by_model) == (32, (0.2, 0.2 + 0.01, 0.22))


def test_findings_are_those_of_the_headline():
    strength = of_attacks(("stacked", "loss"), "stacked", models=3)
    found = strength.findings
    assert (found.fpr, found.found, found.auc, found.missed) == (
        0.01,
        strength.found,
        strength.auc,
        strength.missed,
    )
    assert (found.members, found.nonmembers, found.trainings, found.has_replicas) == (
        1024,
        1000,
        3,
        True,
    )


def test_values_of_tables_become_floats():
    """A table has NumPy's numbers, and missing ones as NaN or None."""
    table = pd.DataFrame(
        {"attack": ["loss"], "metric": ["tpr"], "value": np.array([0.5], np.float32), "low": [None], "high": [math.nan]}
    )  # fmt: skip
    rows = {("loss", "tpr"): table.astype({"low": float}).to_dict("records")[0]}
    estimate = Strength("loss", 0.01, 0.05, rows, [], has_replicas=False).found
    assert type(estimate.value) is float
    assert not estimate.has_interval
