import pytest

from lm_mia.printing import format_duration, format_rate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.5e-8, "< 1 ms"),
        (0.0123, "0.012 s"),
        (1.25, "1.2 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (25.4, "25 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (2590, "43 min"),
        (3569, "59 min"),
        (3571, "1 h"),
        (4800, "1 h 20 min"),
        (35_900, "9 h 58 min"),
        (36_100, "10 h"),
        (1842.4 * 3600, "1,842 h"),
    ],
)
def test_a_duration_is_shown_in_the_unit_that_people_would_use(seconds: float, text: str):
    assert format_duration(seconds) == text


def test_rates_have_three_digits():
    rates = [format_rate(rate) for rate in (0.254, 12.53, 99.96, 1842.4)]
    assert rates == ["0.254", "12.5", "100", "1,842"]
