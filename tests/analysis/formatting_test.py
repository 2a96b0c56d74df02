"""Numbers for readers."""

import pytest

from analysis.formatting import lower_bound


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (2.669, "2.66"),
        (0.264, "0.26"),
        (0.29, "0.29"),  # 100 * 0.29 is less than 29
        (3.0, "3.00"),
        (12.3456, "12.34"),
        (0.0048, "0.004"),
        (1.9e-5, "0.00001"),
        (0.0, "0.00"),
    ],
)
def test_lower_bounds_are_rounded_down(epsilon: float, text: str):
    assert lower_bound(epsilon) == text
    assert float(text) <= epsilon
