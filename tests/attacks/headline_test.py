"""Which attack a result is named by, a case for each line of the rule."""

from typing import Any

import pytest

from lm_mia.attacks.headline import headline_attack

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
