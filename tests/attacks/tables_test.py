import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_mia import atomic, config, stats
from lm_mia.attacks import tables

C = config.Attack(references=4, replicas=9, fprs=(0.1, 0.25), focus_fpr=0.25)
T, N2 = C.replicas, 40
RNG = np.random.default_rng(1)
MEMBER_N = np.arange(N2) % 2 == 0
SCORE_TxN = RNG.normal(size=(T, N2)) + 2 * MEMBER_N * RNG.random(N2)
HOLES_TxN = np.where(np.arange(N2) == 6, np.nan, SCORE_TxN)
CURVE = (0.0, 0.05, 0.5, 1.0)
BINS = ["very stable", "low/mid", "mid/high", "very unstable", "coin flip"]


def points(
    score_TxN: np.ndarray = HOLES_TxN, member_N: np.ndarray = MEMBER_N
) -> stats.OperatingPoints:
    """Returns operating points at the rates of the config, then at those of a curve."""
    at = ["paper"] * len(C.fprs) + ["vertex"] * len(CURVE)
    return stats.tpr_at_fpr(score_TxN, member_N, (*C.fprs, *CURVE), at=at)


def slow_decisions(score_TxN: np.ndarray, fpr: float) -> np.ndarray:
    """decision_TxN: a member reaches the lowest score of a non-member that the rate allows."""
    decisions = np.zeros(score_TxN.shape, bool)
    for t, score_N in enumerate(score_TxN):
        outs = score_N[~MEMBER_N & ~np.isnan(score_N)]
        decisions[t] = score_N >= min(s for s in outs if np.mean(outs >= s) <= fpr)
    return decisions


def slow_vertex(fpr: float) -> np.ndarray:
    """decision_TxN: a member scores above as many non-members as the rate requires."""
    decisions = np.zeros(HOLES_TxN.shape, bool)
    for t, score_N in enumerate(HOLES_TxN):
        outs = score_N[~MEMBER_N & ~np.isnan(score_N)]
        decisions[t] = score_N > min(s for s in outs if np.mean(outs > s) <= fpr)
    return decisions


def test_select_fprs():
    both = points()
    first, rest = tables.select_fprs(both, slice(2)), tables.select_fprs(both, slice(2, None))
    for actual, rates, at in ((first, C.fprs, "paper"), (rest, CURVE, "vertex")):
        expected = stats.tpr_at_fpr(HOLES_TxN, MEMBER_N, rates, at=at)
        for field in dataclasses.fields(expected):
            value = getattr(actual, field.name)
            np.testing.assert_array_equal(value, getattr(expected, field.name), err_msg=field.name)


def test_attack_row():
    row = tables.attack_row("loss", 3, points(), 0.25, C)
    assert list(row) == [
        "attack",
        "references",
        "targets",
        "auc_mean",
        "auc_std",
        "tpr_at_0.1_mean",
        "tpr_at_0.1_std",
        "tpr_at_0.25_mean",
        "tpr_at_0.25_std",
        "left_out",
        "not_shared_fraction",
    ]
    assert [row[k] for k in ("attack", "references", "targets", "left_out")] == ["loss", 3, T, 1]
    assert row["not_shared_fraction"] == 0.25
    scored_N = ~np.isnan(HOLES_TxN[0])
    ins, out = (HOLES_TxN[:, class_N & scored_N] for class_N in (MEMBER_N, ~MEMBER_N))
    auc_T = (ins[:, :, None] > out[:, None]).mean(axis=(1, 2))
    assert row["auc_mean"] == pytest.approx(auc_T.mean())
    assert row["auc_std"] == pytest.approx(auc_T.std())
    for fpr in C.fprs:
        tpr_T = slow_decisions(HOLES_TxN, fpr)[:, MEMBER_N & scored_N].mean(axis=1)
        assert row[f"tpr_at_{fpr}_mean"] == pytest.approx(tpr_T.mean())
        assert row[f"tpr_at_{fpr}_std"] == pytest.approx(tpr_T.std())


def test_left_out_is_the_maximum_over_targets():
    score_TxN = SCORE_TxN.copy()
    score_TxN[0, 0] = score_TxN[4, 2] = score_TxN[4, 3] = np.nan
    assert tables.attack_row("loss", 0, points(score_TxN), 0.0, C)["left_out"] == 2
    assert (tables.roc_rows("loss", 0, points(score_TxN), C).left_out == 2).all()
    assert (tables.error_rates(points(score_TxN)).left_out == 2).all()


def test_roc_rows_use_the_fprs_of_the_curve():
    curve = tables.roc_rows("rmia", 8, points(), C)
    assert curve.columns.tolist() == [
        "attack",
        "references",
        "fpr",
        "tpr_mean",
        "tpr_std",
        "left_out",
    ]
    assert curve.fpr.tolist() == list(CURVE)
    assert (curve.attack == "rmia").all()
    assert (curve.references == 8).all()
    assert curve.tpr_mean.iloc[3] == 1
    scored_N = MEMBER_N & ~np.isnan(HOLES_TxN[0])
    tpr_T = slow_vertex(0.0)[:, scored_N].mean(axis=1)
    assert curve.tpr_mean[0] == pytest.approx(tpr_T.mean())
    assert tpr_T.mean() > 0
    tpr_T = slow_vertex(0.5)[:, scored_N].mean(axis=1)
    assert curve.tpr_mean[2] == pytest.approx(tpr_T.mean())
    assert curve.tpr_std[2] == pytest.approx(tpr_T.std())


@pytest.mark.parametrize("score_TxN", [SCORE_TxN, HOLES_TxN], ids=["whole", "holes"])
def test_error_rates(score_TxN: np.ndarray):
    table = tables.error_rates(tables.select_fprs(points(score_TxN), slice(2)))
    assert table.fpr.tolist() == [0.1, 0.25]
    assert (table.attack == "lira_online").all()
    assert (table.replicas == T).all()
    scored_N = ~np.isnan(score_TxN[0])
    for row, fpr in zip(table.to_dict("records"), C.fprs, strict=True):
        decisions = slow_decisions(score_TxN, fpr)
        tpr_T = decisions[:, MEMBER_N & scored_N].mean(axis=1)
        fpr_T = decisions[:, ~MEMBER_N & scored_N].mean(axis=1)
        right_T = (decisions == MEMBER_N)[:, scored_N].mean(axis=1)
        balanced_T = (tpr_T + 1 - fpr_T) / 2
        for name, rate_T in (
            ("tpr", tpr_T),
            ("realized_fpr", fpr_T),
            ("acc", right_T),
            ("balanced_acc", balanced_T),
            ("fnr", 1 - tpr_T),
            ("tnr", 1 - fpr_T),
        ):
            assert row[f"{name}_mean"] == pytest.approx(rate_T.mean())
            assert row[f"{name}_std"] == pytest.approx(rate_T.std(), abs=1e-12)
        assert row["realized_fpr_mean"] <= fpr
    if score_TxN is SCORE_TxN:  # classes of one size
        np.testing.assert_allclose(table.acc_mean, table.balanced_acc_mean)


def test_thresholds():
    table = tables.thresholds(tables.select_fprs(points(), slice(2)), [7, *range(1, T)])
    assert table.order_seed.tolist() == [s for s in [7, *range(1, T)] for _ in C.fprs]
    assert table.fpr.tolist() == list(C.fprs) * T
    for i, row in enumerate(table.to_dict("records")):
        decision_N = HOLES_TxN[i // 2] >= row["threshold"]
        np.testing.assert_array_equal(decision_N, slow_decisions(HOLES_TxN, row["fpr"])[i // 2])
        assert row["tpr"] == pytest.approx(decision_N[MEMBER_N].sum() / 19)
        assert row["realized_fpr"] == pytest.approx(decision_N[~MEMBER_N].sum() / 20)


def true_positives_and_counts() -> tuple[np.ndarray, stats.FlipBinCounts]:
    threshold_TxF = tables.select_fprs(points(), slice(2)).threshold_TxF
    votes_FxN = stats.count_votes(HOLES_TxN, threshold_TxF).votes_FxN
    bin_FxN = stats.flip_bins(votes_FxN, T, C.alpha)
    tp = stats.count_true_positives(HOLES_TxN, threshold_TxF, bin_FxN, MEMBER_N)
    return tp, stats.count_flip_bins(votes_FxN, MEMBER_N, T, C.alpha)


def slow_bins(fpr: float) -> list[int]:
    """Returns the flip bin of each sample, -1 for the one without votes."""
    k_low, _ = stats.coin_flip_cutoff(T, C.alpha)
    assert k_low > 0  # so that the bins are not all coin flips
    bins = []
    for n, v in enumerate(slow_decisions(HOLES_TxN, fpr).sum(axis=0)):
        flip = 2 * v * (T - v) / (T * (T - 1))
        inner = sum(flip >= edge - 1e-12 for edge in (0.1, 0.25, 0.4))
        bins.append(-1 if n == 6 else 4 if k_low <= v <= T - k_low else inner)
    return bins


def test_flip_shares():
    table = tables.flip_shares(true_positives_and_counts()[1], T, C.fprs, C.alpha)
    _, cutoff = stats.coin_flip_cutoff(T, C.alpha)
    assert (table.left_out == 1).all()
    assert (table.replicas == T).all()
    for fpr in C.fprs:
        part = table[table.fpr == fpr]
        assert part.bin.tolist() == BINS
        assert part.low.tolist()[1:] == part.high.tolist()[:-1]
        assert (part.low.iloc[0], part.low.iloc[-1]) == (0, cutoff)
        assert part.high.iloc[-1] == pytest.approx(2 * 4 * 5 / 72)
        for kind, class_N in (("member", MEMBER_N), ("nonmember", ~MEMBER_N)):
            bins = [
                b
                for b, is_in_class in zip(slow_bins(fpr), class_N, strict=True)
                if is_in_class and b >= 0
            ]
            assert part[f"{kind}s"].tolist() == [bins.count(b) for b in range(5)]
            fractions = [bins.count(b) / len(bins) for b in range(5)]
            np.testing.assert_allclose(part[f"{kind}_fraction"], fractions)


def test_coin_flip_shares_and_their_columns_in_flip_shares():
    points_at_fprs = tables.select_fprs(points(), slice(2))
    votes = {
        name: stats.count_vote_histograms(HOLES_TxN[:, class_N], points_at_fprs.threshold_TxF)
        for name, class_N in (("member", MEMBER_N), ("nonmember", ~MEMBER_N))
    }
    coin_flips = tables.coin_flip_shares(votes, C.fprs, C.alpha)
    k_low, cutoff = stats.coin_flip_cutoff(T, C.alpha)
    assert coin_flips.fpr.tolist() == list(C.fprs)
    assert (coin_flips.replicas == T).all()
    assert (coin_flips.cutoff == cutoff).all()
    is_coin_flip_K = [k_low <= k <= T - k_low for k in range(T + 1)]
    for f, fpr in enumerate(C.fprs):
        row = coin_flips.iloc[f]
        for name, class_N in (("member", MEMBER_N), ("nonmember", ~MEMBER_N)):
            bins = [b for b, of in zip(slow_bins(fpr), class_N, strict=True) if of and b >= 0]
            assert row[f"{name}_fraction"] == pytest.approx(bins.count(4) / len(bins))
            counts = votes[name].samples_FxK[f], votes[name].called_FxRxK[f]
            error = stats.mean_std_error(*counts, is_coin_flip_K)
            assert row[f"{name}_fraction_se"] == pytest.approx(error)
            limits = stats.coin_flip_range(*counts, C.alpha)
            assert row[f"{name}_fraction_127_low"] == limits.low
            assert row[f"{name}_fraction_127_high"] == limits.high
            assert 0 <= limits.low < limits.high < 1
    shares = tables.flip_shares(true_positives_and_counts()[1], T, C.fprs, C.alpha)
    table = tables.with_uncertainty(shares, coin_flips)
    assert table.columns.tolist() == [
        *shares.columns,
        "cutoff",
        *(
            f"{name}_fraction_{column}"
            for name in ("member", "nonmember")
            for column in ("se", "127_low", "127_high")
        ),
    ]
    pd.testing.assert_frame_equal(table[shares.columns], shares)
    new = [name for name in table.columns if name not in shares.columns]
    assert table[table.bin != "coin flip"][new].isna().all(axis=None)
    in_bin = table[table.bin == "coin flip"].reset_index(drop=True)
    pd.testing.assert_frame_equal(in_bin[coin_flips.columns], coin_flips)


def test_true_positives():
    tp_TxFx5, counts = true_positives_and_counts()
    table = tables.true_positives(tp_TxFx5, counts, C.fprs)
    assert table.columns.tolist() == [
        "fpr",
        *(f"{name}_{kind}" for name in ("tpr", "tp") for kind in ("mean", "std")),
        *(
            f"{part}_{name}"
            for part in ("very_unstable", "coin_flip", "union")
            for name in ("tp_mean", "tp_std", "fraction_mean", "fraction_std", "ratio_of_means")
        ),
        "replicas",
        "left_out",
    ]
    assert (table.replicas == T).all()
    assert (table.left_out == 1).all()
    for f, fpr in enumerate(C.fprs):
        row, bin_N = table.iloc[f], np.array(slow_bins(fpr))
        decision_TxN = slow_decisions(HOLES_TxN, fpr) & MEMBER_N
        tp_T = decision_TxN.sum(axis=1)
        assert row["tp_mean"] == pytest.approx(tp_T.mean())
        assert row["tp_std"] == pytest.approx(tp_T.std())
        assert row["tpr_mean"] == pytest.approx(tp_T.mean() / 19)
        for name, bins in (("very_unstable", [3]), ("coin_flip", [4]), ("union", [3, 4])):
            part_T = decision_TxN[:, np.isin(bin_N, bins)].sum(axis=1)
            fraction_T = part_T / np.maximum(tp_T, 1)
            assert row[f"{name}_tp_mean"] == pytest.approx(part_T.mean())
            assert row[f"{name}_fraction_mean"] == pytest.approx(fraction_T.mean())
            assert row[f"{name}_fraction_std"] == pytest.approx(fraction_T.std())


def test_fractions_are_nan_without_true_positives():
    counts = stats.FlipBinCounts(np.full((1, 5), 4), np.full((1, 5), 4), np.zeros(1, int))
    table = tables.true_positives(np.zeros((T, 1, 5), int), counts, (0.1,))
    assert table["coin_flip_fraction_mean"].isna().all()
    assert table["tpr_mean"].tolist() == [0]


def test_coin_free_roc():
    votes_KxN = np.array([[9.0, 4, 0, 9], [9, 9, 5, np.nan]])
    member_N = np.array([True, True, True, False])
    counts = stats.count_member_votes(votes_KxN, member_N, T, 0.05)
    table = tables.coin_free_roc(np.array([0.1, 0.2]), counts, T)
    assert table.fpr.tolist() == [0.1, 0.2]
    np.testing.assert_allclose(table.tpr_mean, [13 / 27, 23 / 27])
    np.testing.assert_allclose(table.tpr_coin_free, [9 / 27, 18 / 27])
    np.testing.assert_allclose(table.tpr_unstable_free, [9 / 27, 18 / 27])


def test_true_positives_of_each_replica():
    tp_TxFx5 = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    has_decisions_F = np.array([False, True, True])
    table = tables.replica_true_positives(tp_TxFx5, [7, 9], (0.01, 0.1, 1.0), has_decisions_F)
    assert table.order_seed.tolist() == [7] * 3 + [9] * 3
    assert table.fpr.tolist() == [0.01, 0.1, 1.0] * 2
    assert table.tp.tolist() == [pd.NA, 35, 60, pd.NA, 110, 135]
    assert table.very_unstable_tp.tolist() == [pd.NA, 8, 13, pd.NA, 23, 28]
    assert table.coin_flip_tp.tolist() == [pd.NA, 9, 14, pd.NA, 24, 29]


def test_partial_auc_by_hand():
    # Raw: straight from (0, 0) by (0.5, 0.8) to (1, 1); coin-free: half of it; unstable-free: a quarter.
    fpr, raw = np.array([0.0, 0.1, 0.5, 1.0]), np.array([0.0, 0.16, 0.8, 1.0])
    curves = pd.DataFrame({"fpr": fpr, "tpr_mean": raw, "tpr_coin_free": raw / 2})
    curves["tpr_unstable_free"] = raw / 4
    table = tables.partial_auc(curves, (0.1, 0.5))
    assert table[["low", "high", "curve"]].to_numpy().tolist() == [
        [0.1, 0.5, "raw"],
        [0.1, 0.5, "coin-free"],
        [0.1, 0.5, "unstable-free"],
        [0.0, 1.0, "raw"],
        [0.0, 1.0, "coin-free"],
        [0.0, 1.0, "unstable-free"],
    ]
    np.testing.assert_allclose(table.pauc, [0.192, 0.096, 0.048, 0.65, 0.325, 0.1625])
    np.testing.assert_allclose(table.pauc_normalized, [0.48, 0.24, 0.12, 0.65, 0.325, 0.1625])
    np.testing.assert_allclose(table.lift, [0.072, -0.024, -0.072, 0.15, -0.175, -0.3375])
    lift_normalized = [0.18, -0.06, -0.18, 0.15, -0.175, -0.3375]
    np.testing.assert_allclose(table.lift_normalized, lift_normalized)
    retained = [np.nan, -1 / 3, -1, np.nan, -3.5 / 3, -2.25]
    np.testing.assert_allclose(table.lift_retained_fraction, retained)
    dropped = [np.nan, 0.5, 0.75] * 2
    np.testing.assert_allclose(table.mean_tpr_dropped_fraction, dropped)


def test_partial_auc_of_the_paper_example():
    """StrongMIA Appendix E.2.6: normalized areas 0.314748 and 0.190810 over [1e-4, 0.1]: 53 % and 39.4 %."""
    fpr = np.array([0.0, 1e-4, 0.1, 1.0])
    heights = {"tpr_mean": 0.314748, "tpr_coin_free": 0.190810, "tpr_unstable_free": 0.1}
    table = tables.partial_auc(
        pd.DataFrame({"fpr": fpr} | {name: [0, h, h, 1] for name, h in heights.items()}),
        (1e-4, 0.1),
    )
    np.testing.assert_allclose(table.pauc_normalized[:3], [*heights.values()])
    np.testing.assert_allclose(table.lift_normalized[:2], [0.264698, 0.140760], atol=5e-7)
    assert table.lift_retained_fraction[1] == pytest.approx(0.53, abs=0.005)
    assert table.mean_tpr_dropped_fraction[1] == pytest.approx(0.394, abs=0.0005)


def test_fractions_are_nan_without_lift():
    fpr = np.array([0.0, 0.5, 1.0])
    flat = pd.DataFrame(
        {"fpr": fpr, "tpr_mean": 0.0, "tpr_coin_free": 0.0, "tpr_unstable_free": 0.0}
    )
    table = tables.partial_auc(flat, (0.1, 0.5))
    assert table.lift_retained_fraction.isna().all()
    assert table.mean_tpr_dropped_fraction.isna().all()


def test_write_csv_replaces_the_table(tmp_path: Path):
    path = tmp_path / "t.csv"
    atomic.write_csv(path, pd.DataFrame({"a": [1, 2], "b": ["x,\n", None]}, index=[5, 6]))
    assert path.read_text() == 'a,b\n1,"x,\n"\n2,\n'
    atomic.write_csv(path, pd.DataFrame({"a": [0.1 + 0.2]}))
    assert path.read_text() == "a\n0.30000000000000004\n"
    assert list(tmp_path.iterdir()) == [path]
