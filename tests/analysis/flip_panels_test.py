"""Distributions of flip rates, and points of the flip curves."""

import math

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer

from analysis import flip_panels, plotting


def test_ccdf_counts_ties_and_ignores_nan() -> None:
    values, share = flip_panels.ccdf(np.array([0.0, 0.5, 0.5, 0.25, np.nan]))
    assert values.tolist() == [0.0, 0.25, 0.5]
    assert share.tolist() == [1.0, 0.75, 0.5]


def test_flip_curves_use_one_fpr() -> None:
    rows = [{"fpr": f, "samples": n} for f, n in ((0.05, 20), (0.05, 21), (0.1, 9))]
    assert flip_panels.bin_sizes(flip_panels.rows_at_fpr(rows, 0.05)) == (20, 21)
    assert flip_panels.bin_sizes([]) == (0, 0)
    assert math.isclose(plotting.separated_ticks([0.05])[0], 0.05)


def test_coin_flips_by_replicas_show_shares_and_ranges() -> None:
    rows = [
        {"fpr": 0.05, "replicas": 8, "cutoff": 0.25}
        | {f"{name}_fraction": 0.5, f"{name}_fraction_se": 0.03}
        | {f"{name}_fraction_127_low": 0.1, f"{name}_fraction_127_high": 0.3}
        for name in ("member",)
    ]
    rows = [
        row | {k.replace("member", "nonmember"): v / 2 for k, v in row.items() if "member" in k}
        for row in rows
    ]
    rows.append(rows[0] | {"replicas": 16, "member_fraction": 0.4})
    [axes] = flip_panels.draw_coin_flips_by_replicas(rows).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]
    assert axes.get_ylabel() == "Coin-flip decisions at 5% FPR"
    container = axes.containers[0]
    assert isinstance(container, ErrorbarContainer)
    members = container.lines[0]
    assert members is not None
    assert np.asarray(members.get_ydata()).tolist() == [50, 40]
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == sorted(
        [
            "Members",
            "Non-members",
            "Members, range at 127 replicas",
            "Non-members, range at 127 replicas",
        ]
    )
    ranges = axes.collections[1]
    assert isinstance(ranges, LineCollection)
    bars = [segment[:, 1].tolist() for segment in ranges.get_segments()]
    assert bars[0] == [10, 30]
