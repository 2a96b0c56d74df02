import numpy as np
import pytest

from lm_mia import stats
from lm_mia.stats import multi_run

FPRS = [0.0, 0.2, 0.9, 1.0]
Matrices = tuple[np.ndarray, np.ndarray]


def in_blocks(score_MxN: np.ndarray, member_MxN: np.ndarray, size: int = 10**9):
    """Returns a function that returns blocks of this many samples."""

    def blocks():
        for start in range(0, score_MxN.shape[1], size):
            yield score_MxN[:, start : start + size], member_MxN[:, start : start + size]

    return blocks


def simulated(
    rng: np.random.Generator, models: int, effect_N: np.ndarray, pairs: bool = False
) -> Matrices:
    """Draws scores of models that differ in their mean score and in the effect of membership."""
    member_MxN = rng.random((models, effect_N.size)) < 0.5
    if pairs:
        member_MxN[1::2] = ~member_MxN[0::2]
    effect_Mx1 = 1 + 0.3 * rng.normal(size=(models, 1))
    score_MxN = rng.normal(size=member_MxN.shape) + 0.3 * rng.normal(size=(models, 1))
    return score_MxN + effect_Mx1 * effect_N * member_MxN, member_MxN


def by_pairs_of_scores(
    score_MxN: np.ndarray, member_MxN: np.ndarray, weight_N: np.ndarray
) -> tuple[float, float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Computes ATE and AUC from lists of IN and OUT scores with their weights."""
    has_both_N = (member_MxN & ~np.isnan(score_MxN)).any(axis=0)
    has_both_N &= (~member_MxN & ~np.isnan(score_MxN)).any(axis=0)
    classes = []
    for is_class_MxN in (member_MxN, ~member_MxN):
        value, weight = [], []
        for i in np.flatnonzero(has_both_N):
            score = score_MxN[is_class_MxN[:, i], i]
            score = score[~np.isnan(score)]
            value += list(score)
            weight += [weight_N[i] / score.size] * score.size
        classes.append((np.array(value), np.array(weight) / np.sum(weight)))
    (in_P, in_weight_P), (out_P, out_weight_P) = classes
    ate = in_P @ in_weight_P - out_P @ out_weight_P
    wins_PxP = (in_P[:, None] > out_P) + 0.5 * (in_P[:, None] == out_P)
    return ate, float(in_weight_P @ wins_PxP @ out_weight_P), in_P, in_weight_P, out_P, out_weight_P


def test_hand_case():
    # Two samples, three models. Sample 0: IN 5 and 3, OUT 1. Sample 1: IN 2, OUT 1 and 4.
    score_MxN = np.array([[5.0, 2.0], [3.0, 1.0], [1.0, 4.0]])
    member_MxN = np.array([[True, True], [True, False], [False, False]])
    truth = stats.potential_outcomes(in_blocks(score_MxN, member_MxN), [3.0, 1.0], FPRS)
    np.testing.assert_allclose(truth.mean_in_N, [4, 2])
    np.testing.assert_allclose(truth.mean_out_N, [1, 2.5])
    np.testing.assert_allclose(truth.effect_N, [3, -0.5])
    assert np.isnan(truth.effect_se_N).all()  # one OUT model, one IN model
    np.testing.assert_array_equal(truth.num_in_N, [2, 1])
    np.testing.assert_array_equal(truth.num_out_N, [1, 2])
    assert truth.ate == pytest.approx((3 * 3 - 0.5) / 4)
    # Y(1) is 5 and 3 with 3/8 each and 2 with 1/4; Y(0) is 1 with 7/8 and 4 with 1/8.
    assert truth.auc == pytest.approx(3 / 8 + 5 / 8 * 7 / 8)
    np.testing.assert_allclose(truth.tpr_F, [0, 3 / 8, 3 / 8, 1])
    np.testing.assert_allclose(truth.threshold_F, [np.inf, 4, 4, 1])  # OUT scores
    assert (truth.left_out, truth.models) == (0, 3)


def test_against_loops_with_ties_and_missing_scores():
    rng = np.random.default_rng(0)
    score_MxN, member_MxN = simulated(rng, 7, rng.random(30))
    score_MxN = score_MxN.round(1)
    score_MxN[rng.random(score_MxN.shape) < 0.1] = np.nan
    member_MxN[:, 3] = True  # no OUT model
    weight_N = rng.random(30)
    ate, auc, in_P, in_weight_P, out_P, out_weight_P = by_pairs_of_scores(
        score_MxN, member_MxN, weight_N
    )
    fprs = [0.05, 0.3]
    truth = stats.potential_outcomes(in_blocks(score_MxN, member_MxN, 11), weight_N, fprs)
    assert truth.left_out == 1
    np.testing.assert_allclose([truth.ate, truth.auc], [ate, auc])
    for threshold, tpr, fpr in zip(truth.threshold_F, truth.tpr_F, fprs, strict=True):
        assert tpr == pytest.approx(in_weight_P[in_P >= threshold].sum())
        assert out_weight_P[out_P >= threshold].sum() <= fpr
        assert threshold in out_P
        lower = np.max(out_P[out_P < threshold])
        assert out_weight_P[out_P >= lower].sum() > fpr
    in_N = [score_MxN[member_MxN[:, i], i] for i in range(30)]
    out_N = [score_MxN[~member_MxN[:, i], i] for i in range(30)]
    in_0, out_0 = in_N[0][~np.isnan(in_N[0])], out_N[0][~np.isnan(out_N[0])]
    welch = np.sqrt(in_0.var(ddof=1) / in_0.size + out_0.var(ddof=1) / out_0.size)
    assert truth.effect_se_N[0] == pytest.approx(welch)
    # The jackknife of the ATE is exact, with samples that have a single IN or OUT model, too.
    left_out_M = [
        by_pairs_of_scores(np.delete(score_MxN, m, 0), np.delete(member_MxN, m, 0), weight_N)[0]
        for m in range(7)
    ]
    assert truth.ate_se == pytest.approx(np.std(left_out_M) * np.sqrt(6))


@pytest.mark.parametrize("missing", [False, True])
def test_jackknife_over_pairs(missing: bool):
    rng = np.random.default_rng(1)
    score_MxN, member_MxN = simulated(rng, 8, rng.random(40), pairs=True)
    if missing:  # leaves some samples with a single IN model
        score_MxN[rng.random(score_MxN.shape) < 0.5] = np.nan
    blocks = in_blocks(score_MxN, member_MxN)
    truth = stats.potential_outcomes(blocks, np.ones(40), 0.1, pairs=True)
    left_out_G = [
        by_pairs_of_scores(
            np.delete(score_MxN, [2 * g, 2 * g + 1], 0),
            np.delete(member_MxN, [2 * g, 2 * g + 1], 0),
            np.ones(40),
        )[0]
        for g in range(4)
    ]
    assert truth.ate_se == pytest.approx(np.std(left_out_G) * np.sqrt(3))
    with pytest.raises(ValueError, match="must be complements"):
        stats.potential_outcomes(
            blocks_with_row_flipped(score_MxN, member_MxN), np.ones(40), 0.1, pairs=True
        )
    with pytest.raises(ValueError, match="even number"):
        stats.potential_outcomes(
            in_blocks(score_MxN[1:], member_MxN[1:]), np.ones(40), 0.1, pairs=True
        )


def test_jackknife_leaves_out_models_with_the_same_subset_together():
    rng = np.random.default_rng(6)
    half_4xN = rng.random((4, 200)) < 0.5
    member_MxN = np.concatenate([half_4xN, half_4xN[:3], ~half_4xN[:1]])
    score_MxN = rng.normal(size=member_MxN.shape) + member_MxN
    score_MxN[rng.random(score_MxN.shape) < 0.2] = (
        np.nan
    )  # leaves some samples with one class or group only
    truth = stats.potential_outcomes(in_blocks(score_MxN, member_MxN, 150), np.ones(200), 0.1)
    group_M = np.array([0, 1, 2, 3, 0, 1, 2, 0])
    left_out_G = [
        by_pairs_of_scores(score_MxN[group_M != g], member_MxN[group_M != g], np.ones(200))[0]
        for g in range(4)
    ]
    assert truth.ate_se == pytest.approx(np.std(left_out_G) * np.sqrt(3))
    assert truth.models == 8


def test_rates_below_the_weight_of_one_out_score_have_no_tpr():
    score_MxN, member_MxN = simulated(np.random.default_rng(7), 4, np.ones(50))
    member_MxN[0], member_MxN[1] = True, False
    low, needed = 0.004, stats.nonmembers_needed(0.004)
    assert needed > 3 * 50
    truth = stats.potential_outcomes(in_blocks(score_MxN, member_MxN), np.ones(50), [0.0, low, 0.1])
    assert np.isnan(truth.tpr_F).tolist() == [False, True, False]
    assert np.isnan(truth.tpr_se_F).tolist() == [False, True, False]
    assert truth.threshold_F[1] == np.inf


def blocks_with_row_flipped(score_MxN: np.ndarray, member_MxN: np.ndarray):
    member_MxN = member_MxN.copy()
    member_MxN[0, 5] ^= True
    return in_blocks(score_MxN, member_MxN)


def test_bins_of_many_scores_are_narrow(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(2)
    score_MxN, member_MxN = simulated(rng, 10, rng.random(2000))
    score_MxN[:, 600:700] = 20 + 3 * rng.standard_t(2, size=(10, 100))  # unlike the first block
    score_MxN[2, 5:50] = np.nan
    args = in_blocks(score_MxN, member_MxN, 300), rng.random(2000), [0.01, 0.2]
    exact = stats.potential_outcomes(*args)
    monkeypatch.setattr(multi_run, "_EXACT_SCORES", 0)
    monkeypatch.setattr(multi_run, "_PIECE", 500)
    binned = stats.potential_outcomes(*args)
    np.testing.assert_allclose(binned.effect_se_N, exact.effect_se_N)
    assert binned.ate == pytest.approx(exact.ate)
    assert binned.ate_se == pytest.approx(exact.ate_se)
    assert binned.auc == pytest.approx(exact.auc, abs=5e-4)
    np.testing.assert_allclose(binned.tpr_F, exact.tpr_F, atol=1e-3)
    np.testing.assert_allclose(binned.threshold_F, exact.threshold_F, rtol=1e-2, atol=0.2)
    np.testing.assert_allclose(binned.auc_se, exact.auc_se, rtol=0.02)
    np.testing.assert_allclose(binned.tpr_se_F, exact.tpr_se_F, rtol=0.1)


def test_standard_errors_are_those_of_new_models():
    rng = np.random.default_rng(3)
    effect_N = rng.random(150)
    runs = 120
    truths = [
        stats.potential_outcomes(in_blocks(*simulated(rng, 16, effect_N)), np.ones(150), [0.1, 0.3])
        for _ in range(runs)
    ]
    value_RxQ = np.array([[t.ate, t.auc, *t.tpr_F] for t in truths])
    se_RxQ = np.array([[t.ate_se, t.auc_se, *t.tpr_se_F] for t in truths])
    ratio_Q = np.sqrt((se_RxQ**2).mean(axis=0)) / value_RxQ.std(axis=0, ddof=1)
    np.testing.assert_allclose(ratio_Q, 1, atol=0.25)


def test_one_run_estimates_agree_with_the_truth():
    # Without interference, the mean of one-run estimates is the truth.
    rng = np.random.default_rng(4)
    member_MxN = rng.random((30, 400)) < 0.5
    score_MxN = rng.normal(size=member_MxN.shape) + 0.7 * member_MxN
    truth = stats.potential_outcomes(in_blocks(score_MxN, member_MxN), np.ones(400), 0.1)
    one_run = [
        stats.unadjusted_estimate(*run, 0.1) for run in zip(score_MxN, member_MxN, strict=True)
    ]
    assert np.mean([e.ate for e in one_run]) == pytest.approx(truth.ate, abs=3 * truth.ate_se)
    assert np.mean([e.auc for e in one_run]) == pytest.approx(truth.auc, abs=3 * truth.auc_se)
    assert np.mean([e.tpr_F for e in one_run]) == pytest.approx(truth.tpr_F[0], abs=0.02)


def test_multi_run_trials():
    score_MxN = np.arange(12.0).reshape(3, 4)
    member_MxN = score_MxN % 3 == 0
    sample_M, score_M, member_M = stats.multi_run_trials(score_MxN, member_MxN, seed=0)
    assert len(set(sample_M)) == 3
    np.testing.assert_array_equal(score_M, 4 * np.arange(3) + sample_M)
    np.testing.assert_array_equal(member_M, score_M % 3 == 0)
    draws = [stats.multi_run_trials(score_MxN, member_MxN, seed)[0] for seed in range(40)]
    assert np.unique(draws, axis=0).shape[0] > 10
    with pytest.raises(ValueError, match="for each model"):
        stats.multi_run_trials(score_MxN.T, member_MxN.T, seed=0)


def test_errors():
    score_MxN, member_MxN = simulated(np.random.default_rng(5), 4, np.ones(6))
    blocks = in_blocks(score_MxN, member_MxN)
    with pytest.raises(ValueError, match="5 weights"):
        stats.potential_outcomes(blocks, np.ones(5), 0.1)
    with pytest.raises(ValueError, match="7 weights"):
        stats.potential_outcomes(blocks, np.ones(7), 0.1)
    with pytest.raises(ValueError, match="0 or larger"):
        stats.potential_outcomes(blocks, [1, 1, 1, 1, 1, -1], 0.1)
    with pytest.raises(ValueError, match="with a weight"):
        stats.potential_outcomes(blocks, np.zeros(6), 0.1)
    with pytest.raises(ValueError, match="must be finite"):
        stats.potential_outcomes(in_blocks(np.full((4, 6), np.inf), member_MxN), np.ones(6), 0.1)
    with pytest.raises(ValueError, match="two dimensions"):
        stats.potential_outcomes(lambda: [], np.ones(6), 0.1)
