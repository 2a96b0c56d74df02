"""Distributions of flip rates, and points of the flip curves."""

import math

import numpy as np

from analysis import plotting
from analysis.experiments.strongmia import instability


def test_ccdf_counts_ties_and_ignores_nan() -> None:
    values, share = instability.ccdf(np.array([0.0, 0.5, 0.5, 0.25, np.nan]))
    assert values.tolist() == [0.0, 0.25, 0.5]
    assert share.tolist() == [1.0, 0.75, 0.5]


def test_flip_curves_use_one_fpr() -> None:
    rows = [{"fpr": f, "samples": n} for f, n in ((0.05, 20), (0.05, 21), (0.1, 9))]
    assert instability.bin_sizes(instability.rows_at_fpr(rows, 0.05)) == (20, 21)
    assert instability.bin_sizes([]) == (0, 0)
    assert math.isclose(plotting.separated_ticks([0.05])[0], 0.05)
