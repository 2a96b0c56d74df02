from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia.stats import ranking

TIED = st.lists(st.integers(-4, 4), min_size=0, max_size=60).map(
    lambda x: np.sort(np.array(x, float))
)


def slow_auc(out, ins):
    """Computes the AUC from all pairs."""
    return ((ins[:, None] > out) + 0.5 * (ins[:, None] == out)).mean()


def test_sorted_classes_by_hand():
    member = np.array([True, False, True, False, True])
    rows = list(ranking.sorted_classes([[3.0, 5.0, np.nan, 4.0, 1.0], [np.nan] * 5], member))
    out, ins, left_out = rows[0]
    np.testing.assert_array_equal(out, [4, 5])
    np.testing.assert_array_equal(ins, [1, 3])
    assert left_out == 1
    out, ins, left_out = rows[1]
    assert (out.size, ins.size, left_out) == (0, 0, 5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8", "int64", "int8"])
def test_sorted_classes_of_any_type(dtype):
    rng = np.random.default_rng(0)
    score = np.round(rng.normal(size=400) * 20).astype(dtype)
    member = rng.random(400) < 0.3
    out, ins, left_out = next(ranking.sorted_classes(score, member))
    expected_dtype = {"float16": "float16", "float32": "float32", ">f4": "float32"}.get(
        dtype, "float64"
    )
    assert (out.dtype, ins.dtype, left_out) == (expected_dtype, expected_dtype, 0)
    np.testing.assert_array_equal(out, np.sort(score[~member]))
    np.testing.assert_array_equal(ins, np.sort(score[member]))


def test_input_scores_are_not_changed():
    score = np.random.default_rng(0).normal(size=(2, 99)).astype(np.float32)
    score[0, 3:9] = np.nan
    before, member = score.copy(), np.arange(99) % 2 == 0
    list(ranking.sorted_classes(score, member))
    list(ranking.sorted_classes(np.ones(99, np.float32), np.ones(99, bool)))
    np.testing.assert_array_equal(score, before)
    # An array that is not contiguous gives the same result.
    strided = next(ranking.sorted_classes(score.T.copy().T[1], member))
    np.testing.assert_array_equal(strided[0], next(ranking.sorted_classes(score[1], member))[0])


def test_infinite_scores_are_kept():
    out, ins, left_out = next(
        ranking.sorted_classes([np.inf, -np.inf, np.nan, 0.0], np.array([False, True, True, True]))
    )
    np.testing.assert_array_equal(out, [np.inf])
    np.testing.assert_array_equal(ins, [-np.inf, 0])
    assert left_out == 1


def test_float32_thresholds_are_scores_or_float32_numbers_above():
    scores = np.sort(np.random.default_rng(1).normal(size=1000).astype(np.float32))
    fpr_F = ranking.as_fprs([0.0, 0.001, 0.1, 0.45, 1.0])
    paper_F = ranking.thresholds_at_fprs(scores, fpr_F)
    np.testing.assert_array_equal(paper_F, [np.inf, *scores[[999, 900, 550]], -np.inf])
    threshold_F = ranking.thresholds_at_fprs(scores, fpr_F, is_vertex_F=True)
    assert threshold_F.dtype == paper_F.dtype == np.float64
    # The k-th smallest has index k - 1, for k = 1000, 999, 900 and 550.
    above_F = np.nextafter(scores[[999, 998, 899, 549]], np.float32(np.inf))
    np.testing.assert_array_equal(threshold_F, [*above_F, -np.inf])
    assert not np.isin(threshold_F, scores).any()
    for at_F in (paper_F, threshold_F):
        np.testing.assert_array_equal(
            ranking.count_at_or_above(scores, at_F), [0, 1, 100, 450, 1000]
        )
    np.testing.assert_array_equal(ranking.min_true_negatives(1000, fpr_F), [1000, 999, 900, 550, 0])
    assert np.isnan(ranking.thresholds_at_fprs(scores[:0], fpr_F)).all()


@settings(max_examples=200, deadline=None)
@given(TIED, TIED, st.integers(1, 20))
def test_auc_equals_all_pairs_for_any_step(out, ins, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_STEP", step)
        actual = ranking.auc_from_sorted(out, ins)
    if not (out.size and ins.size):
        assert np.isnan(actual)
        return
    assert actual == ((ins[:, None] > out).sum() + 0.5 * (ins[:, None] == out).sum()) / (
        out.size * ins.size
    )


@pytest.mark.parametrize(("outs", "inside"), [(3000, 3000), (20, 5000), (5000, 20), (5000, 900)])
@pytest.mark.parametrize("digits", [0, 1, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_auc_of_many_scores(outs, inside, digits, dtype, monkeypatch):
    rng = np.random.default_rng(outs + digits)
    out = np.sort(np.round(rng.normal(size=outs), digits).astype(dtype))
    ins = np.sort(np.round(rng.normal(size=inside) + 0.5, digits).astype(dtype))
    expected = slow_auc(out, ins)
    for step in (64, 1000, 2**16):
        monkeypatch.setattr(ranking, "_STEP", step)
        np.testing.assert_allclose(ranking.auc_from_sorted(out, ins), expected, rtol=1e-13)


def test_auc_of_more_ties_than_a_step():
    ones = np.ones(2**17)
    assert ranking.auc_from_sorted(np.zeros(2**17), ones) == 1
    assert ranking.auc_from_sorted(ones, ones) == 0.5
    assert ranking.auc_from_sorted(ones, ones * 0) == 0


def test_targets_can_be_ranked_in_threads():
    rng = np.random.default_rng(2)
    member = rng.random(5000) < 0.5
    score_TxN = rng.normal(size=(8, 5000)) + member

    def one(score_N):
        out, ins, _ = next(ranking.sorted_classes(score_N, member))
        return ranking.auc_from_sorted(out, ins)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, score_TxN)) == [one(row) for row in score_TxN]
