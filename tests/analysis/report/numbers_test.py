import math

import pytest

from analysis.report import numbers
from analysis.report.numbers import FRACTION, PER_100, Estimate, Unit

NAN = math.nan


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(0.2512, 0.1811, 0.3203), "25 (18 to 32)"),
        (Estimate(0.034, 0.0312, 0.0371), "3.4 (3.1 to 3.7)"),  # half of the interval: 0.3
        (Estimate(0.014, 0.007, 0.026), "1.4 (0.7 to 2.6)"),  # 0.95
        (Estimate(0.03, 0.02, 0.05), "3 (2 to 5)"),  # 1.5
        (Estimate(0.5, 0.3, 0.9), "50 (30 to 90)"),
        (Estimate(0.5, 0.499, 0.501), "50.0 (49.9 to 50.1)"),  # 0.1, which is not exact
        (Estimate(0.5, 0.49, 0.51), "50 (49 to 51)"),  # 1
        (Estimate(0.5, 0.4999999, 0.5000001), "50.0000 (50.0000 to 50.0000)"),
        (Estimate(0.2512), "25"),
        (Estimate(0.0), "0"),
        (Estimate(1.0), "100"),
        (Estimate(0.0, 0.0, 0.02), "0 (0 to 2)"),
        (Estimate(1.0, 1.0, 1.0), "100 (100 to 100)"),
        (Estimate(NAN), "–"),
        (Estimate(NAN, 0.1, 0.2), "–"),
        (Estimate(0.25, NAN, 0.3), "25"),
        (Estimate(0.25, 0.2, math.inf), "25"),
        (Estimate(-0.001, -0.03, 0.02), "0 (−3 to 2)"),
        (Estimate(-0.0), "0"),
        (Estimate(-0.12, -0.2, -0.04), "−12 (−20 to −4)"),
    ],
)
def test_plain(estimate: Estimate, expected: str):
    assert numbers.plain(estimate) == expected


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(0.8812, 0.8611, 0.9013), "0.88 (0.86 to 0.90)"),
        (Estimate(0.71, 0.61, 0.8), "0.71 (0.61 to 0.80)"),
        (Estimate(0.7, 0.5, 0.9), "0.7 (0.5 to 0.9)"),
        (Estimate(0.88123, 0.8782, 0.8841), "0.881 (0.878 to 0.884)"),
        (Estimate(0.8812), "0.88"),
        (Estimate(1.0), "1.00"),
        (Estimate(0.0), "0.00"),
        (Estimate(NAN), "–"),
    ],
)
def test_plain_fraction(estimate: Estimate, expected: str):
    assert numbers.plain(estimate, FRACTION) == expected


def test_half_of_the_interval_has_one_significant_digit():
    for exponent in range(-3, 2):
        for digit in range(1, 10):
            half = digit * 10.0**exponent
            digits = numbers.decimals(Estimate(0.5, 0.5 - half, 0.5 + half), Unit(1, 0))
            assert digits == max(0, -exponent), (digit, exponent)


def test_three_forms_show_the_same_digits():
    estimate = Estimate(0.25, 0.18, 0.32)
    assert numbers.value(estimate) == "25"
    assert numbers.interval(estimate) == "18 to 32"
    assert numbers.label(estimate) == "25 (18–32)"
    assert numbers.percent(estimate) == "25 % (18 to 32)"
    assert numbers.markup(estimate) == '25 <small class="interval">18 to 32</small>'
    assert numbers.markup(Estimate(0.25)) == "25"
    assert numbers.percent(Estimate(0.25)) == "25 %"
    assert numbers.interval(Estimate(0.25)) == ""
    unknown = Estimate(NAN)
    forms = numbers.value, numbers.label, numbers.percent, numbers.markup
    assert {form(unknown) for form in forms} == {"–"}


def test_labels_have_no_dash_before_a_minus():
    assert numbers.label(Estimate(-0.01, -0.03, 0.02)) == "−1 (−3 to 2)"


def test_rates_counts_and_words():
    assert [numbers.rate(fpr) for fpr in (0.001, 0.01, 0.05, 0.1, 0.07, 0.00015)] == [
        "0.1",
        "1",
        "5",
        "10",
        "7",
        "0.015",
    ]
    assert numbers.false_alarms(0.01) == "1 false alarm per 100"
    assert numbers.false_alarms(0.001) == "0.1 false alarms per 100"
    assert numbers.count(1024) == "1,024"
    assert numbers.words([]) == ""
    assert numbers.words(["LiRA"]) == "LiRA"
    assert numbers.words(["LiRA", "RMIA"]) == "LiRA and RMIA"
    assert numbers.words(["LiRA", "RMIA", "loss"]) == "LiRA, RMIA and loss"


def test_units():
    assert numbers.value(Estimate(0.5), PER_100) == "50"
    assert numbers.value(Estimate(3.94), Unit(1, 1)) == "3.9"
    assert numbers.value(Estimate(1234.5), Unit(1, 0)) == "1,234"
