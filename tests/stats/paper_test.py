"""Consistency of the numbers printed in StrongMIA, Appendix E.2, with the functions of this package.

The constants list the rows of the paper's tables that contradict themselves; the tests check that no others do.
"""

import numpy as np
import pytest

from analysis import papers
from lm_mia import stats

N = 524_288  # number of members, and of non-members
REPLICAS = {"140M": 125, "302M": 127}

# Columns of Tables 1 and 2, 3 and 4, 5 and 6, as they are called in the file of published numbers.
RATES = ("acc", "fnr", "fpr", "tnr", "tpr")
SHARES = tuple(
    f"{name} {side}"
    for name in ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
    for side in ("members", "nonmembers")
)
PARTS = (
    "tpr",
    "tp",
    *(f"{p}_{w}" for p in ("very_unstable", "coin_flip", "union") for w in ("tp", "share_percent")),
)
TABLES = {
    RATES: ("strongmia_tab01_error_rates_140m", "strongmia_tab02_error_rates_302m"),
    SHARES: ("strongmia_tab03_flip_shares_140m", "strongmia_tab04_flip_shares_302m"),
    PARTS: ("strongmia_tab05_true_positives_140m", "strongmia_tab06_true_positives_302m"),
}
FPRS = (1e-5, 1e-4, 1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)


# The inconsistent rows, by false positive rate.
PERCENT_DO_NOT_ADD = {  # 101.00 percent
    "140M": {"members": [], "non-members": [0.2]},
    "302M": {"members": [], "non-members": []},
}
TP_DO_NOT_ADD = {"140M": [], "302M": [1e-3, 1e-2, 0.1]}  # by 53, 62 and 325
SHARES_DO_NOT_ADD = {"140M": [1e-3], "302M": []}  # by 0.2 percent
SHARES_ARE_NOT_THE_TP = {  # at 1e-3 of the 140M model by 6.0, 2.6 and 8.8 percent, else below 1
    "140M": {
        "very unstable": [1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2],
        "coin flip": [1e-3, 1e-2, 0.02, 0.05, 0.1, 0.2],
        "union": [1e-3],
    },
    "302M": {"very unstable": [0.1], "coin flip": [], "union": []},
}
STD_ABOVE_THE_SUM = {"140M": [1e-2, 0.02, 0.05, 0.1, 0.2], "302M": []}
TP_DO_NOT_FIT = {  # true positives are 66 and 60 % of the members of a bin that ends at 73 of 125 votes
    "140M": {stats.VERY_UNSTABLE_BIN: [], stats.COIN_FLIP_BIN: [0.5, 0.75]},
    "302M": {stats.VERY_UNSTABLE_BIN: [], stats.COIN_FLIP_BIN: []},
}


def printed_columns(columns, model):
    """Returns fpr_F and columns_CxF; a column with printed STDs is followed by a column of these STDs."""
    numbers = papers.item(TABLES[columns][model == "302M"]).numbers
    values = []
    for column in columns:
        at_F = [numbers[f"fpr={fpr:g} {column}"] for fpr in FPRS]
        values.append([n.value for n in at_F])
        if not np.isnan(at_F[0].std):
            values.append([n.std for n in at_F])
    return np.array(FPRS), np.array(values)


@pytest.mark.parametrize(
    ("replicas", "cutoff", "tail", "largest"),
    [(125, 0.490, 0.03661, 0.504), (127, 0.487, 0.02524, 0.50394)],
)
def test_coin_flip_cutoffs_equal_those_of_the_paper(replicas, cutoff, tail, largest):
    k_low, t = stats.coin_flip_cutoff(replicas)
    assert k_low == 52
    assert round(t, 3) == cutoff
    assert round(float(stats.p_value(52, replicas)) / 2, 5) == tail
    assert stats.p_value(51, replicas) < 0.05
    assert round(stats.max_flip_rate(replicas), 3 if replicas == 125 else 5) == largest
    np.testing.assert_allclose(
        stats.flip_bin_edges(replicas), [0, 0.1, 0.25, 0.4, t, largest], atol=1e-5
    )


@pytest.mark.parametrize("model", ["140M", "302M"])
def test_printed_error_rates_are_consistent(model):
    # Two targets, one STD above and one below the printed TPR, have the printed mean and STD (ddof=0).
    fpr_F, (acc_F, acc_std_F, fnr_F, fnr_std_F, fpr_print_F, tnr_F, tpr_F, tpr_std_F) = (
        printed_columns(RATES, model)
    )
    actual = stats.error_rates(points_with_tpr(fpr_F, [tpr_F - tpr_std_F, tpr_F + tpr_std_F]))
    # Rounding error of one number, and of one number plus half a TPR.
    last, both = 0.5e-3 + 1e-9, 0.75e-3 + 1e-9
    np.testing.assert_allclose(actual.tpr.mean_F, tpr_F, atol=1e-12)
    np.testing.assert_allclose(actual.tpr.std_F, tpr_std_F, atol=1e-12)
    np.testing.assert_allclose(actual.balanced_accuracy.mean_F, acc_F, rtol=0, atol=both)
    np.testing.assert_allclose(actual.accuracy.mean_F, acc_F, rtol=0, atol=both)
    np.testing.assert_allclose(actual.balanced_accuracy.std_F, acc_std_F, rtol=0, atol=both)
    np.testing.assert_allclose(actual.fnr.mean_F, fnr_F, rtol=0, atol=last)
    np.testing.assert_allclose(actual.fnr.std_F, fnr_std_F, rtol=0, atol=last)
    np.testing.assert_allclose(actual.fpr.mean_F, fpr_print_F, rtol=0, atol=last)
    np.testing.assert_allclose(actual.tnr.mean_F, tnr_F, rtol=0, atol=last)
    assert np.all(actual.fpr.std_F < 1e-15)


def points_with_tpr(fpr_F, tpr_TxF, samples=100_000):
    """Returns operating points of scores that have exactly these rates."""
    # Non-members score 0, 1, ...; a member is detected at a rate if its score equals the threshold of that rate.
    threshold_F = samples - np.rint(fpr_F * samples)
    nonmember_N = np.arange(samples)
    members_TxF = np.diff(np.rint(np.array(tpr_TxF) * samples).astype(int), prepend=0)
    score_TxN = [
        np.concatenate([nonmember_N, np.repeat(threshold_F, members_F)])
        for members_F in members_TxF
    ]
    return stats.tpr_at_fpr(score_TxN, np.arange(2 * samples) >= samples, fpr_F)


@pytest.mark.parametrize("model", ["140M", "302M"])
def test_printed_flip_bin_shares_sum_to_one(model):
    fpr_F, percent_CxF = printed_columns(SHARES, model)
    member_Fx5, nonmember_Fx5 = percent_CxF[::2].T, percent_CxF[1::2].T
    counts = stats.FlipBinCounts(  # of 10,000 samples, up to the rounding of five numbers
        np.rint(100 * member_Fx5).astype(np.int64),
        np.rint(100 * nonmember_Fx5).astype(np.int64),
        np.zeros(len(member_Fx5), np.int64),
    )
    shares = stats.flip_bin_shares(counts, REPLICAS[model])
    for name, class_Fx5, actual_Fx5, samples_F in (
        ("members", member_Fx5, shares.member_Fx5, shares.members_F),
        ("non-members", nonmember_Fx5, shares.nonmember_Fx5, shares.nonmembers_F),
    ):
        off_F = np.abs(samples_F - 10_000) > 2.5
        assert fpr_F[off_F].tolist() == PERCENT_DO_NOT_ADD[model][name]
        np.testing.assert_allclose(
            100 * actual_Fx5[~off_F], class_Fx5[~off_F], rtol=0, atol=0.025 + 1e-9
        )


@pytest.mark.parametrize("model", ["140M", "302M"])
def test_printed_contributions_are_consistent(model):
    fpr_F, (tpr_F, tpr_std_F, tp_F, tp_std_F, *parts) = printed_columns(PARTS, model)
    unstable_F, unstable_std_F, _, _, coin_F, coin_std_F, _, _, union_F, *_ = parts
    tp_RxFx5 = np.zeros((2, fpr_F.size, 5), dtype=np.int64)
    for r, sign in enumerate((-1, 1)):  # one STD below and one above
        tp_RxFx5[r, :, stats.VERY_UNSTABLE_BIN] = unstable_F + sign * unstable_std_F
        tp_RxFx5[r, :, stats.COIN_FLIP_BIN] = coin_F + sign * coin_std_F
        tp_RxFx5[r, :, 0] = tp_F + sign * tp_std_F - tp_RxFx5[r].sum(axis=1)
    actual = stats.tpr_contributions(tp_RxFx5, np.full(fpr_F.size, N))
    np.testing.assert_array_equal(actual.tp.mean_F, tp_F)
    np.testing.assert_array_equal(actual.tp.std_F, tp_std_F)
    np.testing.assert_allclose(actual.tpr.mean_F, tpr_F, rtol=0, atol=0.5e-3 + 0.5 / N)
    np.testing.assert_allclose(actual.tpr.std_F, tpr_std_F, rtol=0, atol=0.5e-3 + 0.5 / N)
    # Three numbers that are rounded to integers differ by at most 1 in total.
    off_F = np.abs(actual.union.tp.mean_F - union_F) > 1
    assert fpr_F[off_F].tolist() == TP_DO_NOT_ADD[model]
    np.testing.assert_array_equal(tpr_F, printed_columns(RATES, model)[1][6])


@pytest.mark.parametrize("model", ["140M", "302M"])
def test_printed_true_positive_shares_are_consistent(model):
    fpr_F, (_, _, tp_F, tp_std_F, *parts) = printed_columns(PARTS, model)
    half = 0.05 + 1e-9  # rounding error in percent
    unstable, coin, union = (parts[i : i + 4] for i in (0, 4, 8))
    off_F = np.abs(unstable[2] + coin[2] - union[2]) > 3 * half
    assert fpr_F[off_F].tolist() == SHARES_DO_NOT_ADD[model]
    # The STD of a sum is at most the sum of the STDs.
    assert fpr_F[union[3] > unstable[3] + coin[3] + 3 * half].tolist() == STD_ABOVE_THE_SUM[model]
    # Ratio of means = mean of ratios + Cov(S, TP) / mean TP, and |Cov(S, TP)| <= STD(S) STD(TP).
    for name, (bin_F, _, share_F, share_std_F) in (
        ("very unstable", unstable),
        ("coin flip", coin),
        ("union", union),
    ):
        bound_F = ((share_std_F + half) * (tp_std_F + 0.5) + 50) / tp_F + half
        off_F = np.abs(100 * bin_F / tp_F - share_F) > bound_F
        assert fpr_F[off_F].tolist() == SHARES_ARE_NOT_THE_TP[model][name], name


@pytest.mark.parametrize("model", ["140M", "302M"])
@pytest.mark.parametrize("bin_", [stats.VERY_UNSTABLE_BIN, stats.COIN_FLIP_BIN])
def test_printed_true_positives_fit_their_flip_bins(model, bin_):
    # The members of a bin have between the lowest and the highest number of votes of the bin.
    replicas = REPLICAS[model]
    votes = np.flatnonzero(stats.flip_bins(np.arange(replicas + 1), replicas) == bin_) / replicas
    fpr_F, percent_CxF = printed_columns(SHARES, model)
    _, parts = printed_columns(PARTS, model)
    members_F = percent_CxF[2 * bin_] / 100 * N
    tp_F = parts[4 if bin_ == stats.VERY_UNSTABLE_BIN else 8]
    rounding = 0.005 / 100 * N
    assert np.all(tp_F + 0.5 >= votes.min() * (members_F - rounding))
    off_F = tp_F - 0.5 > votes.max() * (members_F + rounding)
    assert fpr_F[off_F].tolist() == TP_DO_NOT_FIT[model][bin_]
