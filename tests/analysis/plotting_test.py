"""Positions of labels, and which tick labels are shown."""

import numpy as np
import pytest

from analysis import plotting


def test_labels_are_spread_with_the_smallest_shifts() -> None:
    assert plotting.spread_labels([0.5, 0.9], 0.1, 0, 1) == [0.5, 0.9]
    near = plotting.spread_labels([0.52, 0.50, 0.1], 0.1, 0, 1)
    assert near == pytest.approx([0.56, 0.46, 0.1])
    high = plotting.spread_labels([0.99, 0.98, 1.0], 0.1, 0, 1)
    assert high == pytest.approx([0.9, 0.8, 1.0])
    crowded = plotting.spread_labels([0.1] * 20, 0.1, 0, 1)
    assert np.diff(crowded) == pytest.approx(0.1)


def test_tick_labels_of_log_axes_do_not_overlap() -> None:
    fprs = [1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0]
    kept = plotting.separated_ticks(fprs)
    assert kept == [1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 1.0]
    assert plotting.separated_ticks([3.0]) == [3.0]
    assert plotting.separated_ticks([]) == []
