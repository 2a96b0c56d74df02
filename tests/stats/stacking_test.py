"""Stacked LiRA against a slow reference, what it learns, what it must not see, and edges; see also shrinkage_test."""

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hierarchical_losses import Losses, draw_losses
from scipy.optimize import minimize
from scipy.special import expit

from lm_mia import stats
from lm_mia.stats import stacking
from lm_mia.stats.design import Design, design_of
from lm_mia.stats.shrinkage import check_losses

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)


def fit(data: Losses, **covariates: Any) -> tuple[stats.LossModel, stats.StackedRegression]:
    """Returns both fits, which `stacked_lira` hides."""
    model = stats.fit_loss_model(*data.arguments, **covariates)
    return model, stats.fit_stacked_regression(*data.arguments[1:], model, **covariates)


def features_of(
    loss: float, references: list[tuple[float, bool]], x_P: np.ndarray, model: stats.LossModel
) -> np.ndarray:
    """Computes the features of one aligned loss from the references' aligned losses of one sample."""
    loss_in = [v for v, z in references if z]
    loss_out = [v for v, z in references if not z]
    n1, n0, n = len(loss_in), len(loss_out), len(references)
    if n == 0:
        return np.full(len(x_P) + 2, np.nan)
    c, d0, kappa = x_P @ model.gap_P, model.freedom, model.gap_spread
    freedom = d0 + max(n1 - 1, 0) + max(n0 - 1, 0)
    scatter = d0 * np.exp(x_P @ model.log_variance_P)
    scatter += sum(np.var(v) * len(v) for v in (loss_in, loss_out) if v)
    gap, spread = c, kappa
    shared = model.pair_correlation * min(model.pairs, n1, n0)
    if n1 and n0:
        d, h = np.mean(loss_out) - np.mean(loss_in), 1 / n1 + 1 / n0 - 2 * shared / (n1 * n0)
        scatter += (d - c) ** 2 / (kappa + h)
        freedom += 1
        gap, spread = c + kappa / (kappa + h) * (d - c), kappa * h / (kappa + h)
    variance, mean = scatter / freedom, np.mean(loss_in + loss_out)
    location_in, location_out = mean - gap * n0 / n, mean + gap * n1 / n
    center_spread = (1 + 2 * shared / n) / n
    sd_in = np.sqrt(variance * (1 + center_spread + (n0 / n) ** 2 * spread))
    sd_out = np.sqrt(variance * (1 + center_spread + (n1 / n) ** 2 * spread))
    score = scipy.stats.t.logpdf(loss, freedom, location_in, sd_in)
    score -= scipy.stats.t.logpdf(loss, freedom, location_out, sd_out)
    distance = ((location_in + location_out) / 2 - loss) / np.sqrt(variance)
    return np.concatenate([[score], distance * x_P, [1.0]])


def slow_logistic_regression(X: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = X @ w
        value = np.logaddexp(0, margin).mean() - (margin * y).mean() + penalty / 2 * w[:-1] @ w[:-1]
        return float(value), X.T @ (expit(margin) - y) / len(y) + penalty * np.append(w[:-1], 0)

    options: Any = {"gtol": 1e-9, "maxiter": 1000}
    return minimize(objective, np.zeros(X.shape[1]), jac=True, method="BFGS", options=options).x


def stacked_by_loop(
    data: Losses, covariate_NxK: np.ndarray, model: stats.LossModel
) -> tuple[np.ndarray, float]:
    """Returns score_TxN and the penalty, from a loop over left-out references and samples."""
    target_TxN, loss_MxN, member_MxN = data.arguments
    (T, N), M = target_TxN.shape, len(loss_MxN)
    design_NxP = np.ones((N, 2 + covariate_NxK.shape[1]))
    for i in range(N):
        present = ~np.isnan(loss_MxN[:, i])
        n1, n0 = (present & member_MxN[:, i]).sum(), (present & ~member_MxN[:, i]).sum()
        with np.errstate(invalid="ignore"):
            mean = (loss_MxN[present, i].sum() + model.mean_gap * (n1 - n0) / 2) / (n1 + n0)
        design_NxP[i, 1:] = [mean, *covariate_NxK[i]]
    design_NxP = (design_NxP - model.center_P) / model.scale_P
    aligned_MxN = loss_MxN - model.reference_effect_MxP @ design_NxP.T
    aligned_TxN = target_TxN - model.target_effect_TxP @ design_NxP.T

    def references(i: int, left_out: set[int]) -> list[tuple[float, bool]]:
        return [
            (aligned_MxN[m, i], bool(member_MxN[m, i]))
            for m in range(M)
            if m not in left_out and not np.isnan(aligned_MxN[m, i])
        ]

    X, y, fold, groups = [], [], [], []
    for m in range(M):
        same = {k for k in range(M) if (member_MxN[k] != member_MxN[m]).all()} | {m}
        if same not in groups:
            groups.append(same)
        for i in range(N):
            features = features_of(aligned_MxN[m, i], references(i, same), design_NxP[i], model)
            if np.isfinite(features).all():
                X.append(features)
                y.append(member_MxN[m, i])
                fold.append(groups.index(same))
    fold, y, X = np.array(fold) % min(4, len(groups)), np.array(y, dtype=float), np.array(X)
    scale = np.append(X[:, :-1].std(axis=0), 1.0)
    X = X / scale
    log_loss = []
    for penalty in PENALTIES:
        total = 0.0
        for k in set(fold):
            w = slow_logistic_regression(X[fold != k], y[fold != k], penalty)
            margin = X[fold == k] @ w
            total += (np.logaddexp(0, margin) - margin * y[fold == k]).sum()
        log_loss.append(total)
    penalty = PENALTIES[int(np.argmin(log_loss))]
    weight = slow_logistic_regression(X, y, penalty) / scale
    score_TxN = [
        [
            weight @ features_of(aligned_TxN[t, i], references(i, set()), design_NxP[i], model)
            for i in range(N)
        ]
        for t in range(T)
    ]
    return np.array(score_TxN), penalty


@pytest.mark.parametrize(
    ("references", "design", "missing"),
    [(4, "exact", 0.0), (6, "balanced", 0.0), (6, "bernoulli", 0.2)],
)
def test_scores_equal_a_slow_reference(references: int, design: Any, missing: float):
    data = draw_losses(1, references, 80, design=design)
    rng = np.random.default_rng(1)
    data.reference_MxN[rng.random(data.reference_MxN.shape) < missing] = np.nan
    x_NxK = data.covariate_Nx1
    actual_TxN = stats.stacked_lira(*data.arguments, covariate_NxK=x_NxK)
    model, regression = fit(data, covariate_NxK=x_NxK)
    expected_TxN, penalty = stacked_by_loop(data, x_NxK, model)
    assert regression.penalty == penalty
    np.testing.assert_allclose(actual_TxN, expected_TxN, rtol=1e-5, atol=1e-5)
    assert np.isfinite(actual_TxN).mean() > 0.9


def test_penalty_is_chosen_on_held_out_references():
    """Many covariates of few samples mislead; with many samples, the weights need no penalty."""
    noise = draw_losses(2, 8, 150, gap=(0.0, 0.0), gap_spread=0.0)
    covariate_NxK = np.random.default_rng(2).normal(size=(150, 30))
    assert fit(noise, covariate_NxK=covariate_NxK)[1].penalty == max(PENALTIES)
    strong = draw_losses(3, 8, 3000, gap=(0.8, 0.3))
    assert fit(strong, covariate_NxK=strong.covariate_Nx1)[1].penalty == min(PENALTIES)


def test_folds_keep_groups_together():
    assert stacking._folds(np.arange(6)).tolist() == [0, 1, 2, 3, 0, 1]
    assert stacking._folds(np.arange(12) // 2).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]
    assert stacking._folds(np.array([0, 1, 2, 0])).tolist() == [0, 1, 2, 0]
    assert stacking._folds(np.array([0, 0])).tolist() == [0, 0]


def reference_aucs(data: Losses, group_M: np.ndarray) -> np.ndarray:
    """Returns the AUC, on the references, of the score of `shrunk_lira` that the regression sees.

    The gap is given, since a gap that is estimated with the left-out reference reveals a little of its membership.
    """
    _, loss_MxN, member_MxN, covariate_NxK = check_losses(*data.arguments, None)
    model = dataclasses.replace(
        stats.fit_loss_model(*data.arguments), gap_P=np.array([0.1, 0.0]), gap_spread=0.3
    )
    feature_FxMxN = stacking._reference_features(
        loss_MxN, member_MxN, covariate_NxK, model, group_M
    )
    return stats.auc(feature_FxMxN[0], member_MxN).auc_T


@pytest.mark.parametrize("references", [8, 16])
def test_complements_are_left_out(references: int):
    """On noise, a complement among the others would reveal the members by the number of IN references."""
    noise: Any = {"gap": (0.0, 0.0), "gap_spread": 0.0, "design": "balanced"}
    without, with_complement, targets = [], [], []
    for seed in range(60 if references == 8 else 30):
        data = draw_losses([seed, references], references, 512, targets=4, **noise)
        group_M = design_of(data.reference_member_MxN).group_M
        np.testing.assert_array_equal(group_M, np.arange(references) // 2)
        without.append(reference_aucs(data, group_M))
        with_complement.append(reference_aucs(data, np.arange(references)))
        score_TxN = stats.stacked_lira(*data.arguments)
        targets.append(stats.auc(score_TxN, data.target_member_TxN).auc_T)
    # The STD of an AUC is 0.026; that of the means is at most 0.002.
    assert np.mean(without) == pytest.approx(0.5, abs=0.006)
    assert np.mean(targets) == pytest.approx(0.5, abs=0.006)
    assert abs(np.mean(with_complement) - 0.5) > 0.01  # this test would detect it


def test_learns_what_the_model_of_the_losses_misses():
    """The gap is proportional to the square of the covariate, so its mean is constant as far as a line can tell."""
    rng = np.random.default_rng(4)
    x_N, member_MxN = rng.normal(size=2000), rng.random((16, 2000)) < 0.5
    loss_MxN = rng.normal(4, 1, 2000) - 0.2 * np.square(x_N) * member_MxN
    loss_MxN += rng.normal(0, 0.2, loss_MxN.shape)
    data = Losses(loss_MxN[8:], loss_MxN[:8], member_MxN[:8], member_MxN[8:], x_N[:, None])
    log_losses, aucs = [], []
    for attack in (stats.shrunk_lira, stats.stacked_lira):
        score_TxN = attack(*data.arguments, covariate_NxK=data.covariate_Nx1)
        log_losses.append(np.logaddexp(0, score_TxN * (1 - 2 * data.target_member_TxN)).mean())
        aucs.append(stats.auc(score_TxN, data.target_member_TxN).auc_T.mean())
    assert log_losses[1] < log_losses[0] - 0.004
    assert aucs[1] > aucs[0] + 0.006


def test_scores_are_calibrated_log_odds():
    data = draw_losses(5, 8, 4000, targets=10, gap=(0.4, 0.1), model_effect=0.02)
    score_TxN = stats.stacked_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    for low, high in ((-9, -2), (-2, -1), (-1, 0), (0, 1), (1, 2), (2, 9)):
        is_near = (score_TxN >= low) & (score_TxN < high)
        share = data.target_member_TxN[is_near].mean()
        assert share == pytest.approx(expit(score_TxN[is_near]).mean(), abs=0.02)


def test_order_of_targets_and_samples_does_not_matter():
    data = draw_losses(6, 6, 200, targets=3)
    targets, samples = [2, 0, 1], np.random.default_rng(6).permutation(200)
    score_TxN = stats.stacked_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    actual = stats.stacked_lira(
        data.target_TxN[targets][:, samples],
        data.reference_MxN[:, samples],
        data.reference_member_MxN[:, samples],
        covariate_NxK=data.covariate_Nx1[samples],
    )
    np.testing.assert_allclose(actual, score_TxN[targets][:, samples], rtol=1e-5, atol=1e-6)
    alone = stats.stacked_lira(
        data.target_TxN[1], *data.arguments[1:], covariate_NxK=data.covariate_Nx1
    )
    np.testing.assert_allclose(alone[0], score_TxN[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("factor", "offset"), [(1e-6, 0.0), (1e8, 1e3), (1.0, 1e5)])
def test_scale_and_origin_of_losses_do_not_matter(factor: float, offset: float):
    target_TxN, loss_MxN, member_MxN = draw_losses(7, 6, 200).arguments
    score_TxN = stats.stacked_lira(target_TxN, loss_MxN, member_MxN)
    actual = stats.stacked_lira(
        target_TxN * factor + offset, loss_MxN * factor + offset, member_MxN
    )
    np.testing.assert_allclose(actual, score_TxN, rtol=1e-5, atol=1e-6)


def test_references_without_losses_equal_their_absence():
    data = draw_losses(8, 6, 300)
    target_TxN, loss_MxN, member_MxN = data.arguments
    loss_MxN[[4, 5]] = np.nan  # the last ones, so that the others stay in their folds
    actual = stats.stacked_lira(target_TxN, loss_MxN, member_MxN)
    expected = stats.stacked_lira(target_TxN, loss_MxN[:4], member_MxN[:4])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_blocks_of_samples_equal_the_whole(monkeypatch: pytest.MonkeyPatch):
    data = draw_losses(9, 6, 101)
    x_NxK = data.covariate_Nx1
    whole = stats.stacked_lira(*data.arguments, covariate_NxK=x_NxK)
    model, regression = fit(data, covariate_NxK=x_NxK)
    for block in (slice(0, 50), slice(50, 51), slice(51, 101), slice(0, 0)):
        target_TxN, loss_MxN, member_MxN = (a[:, block] for a in data.arguments)
        actual = stats.stacked_from_regression(
            target_TxN, loss_MxN, member_MxN, model, regression, covariate_NxK=x_NxK[block]
        )
        np.testing.assert_allclose(actual, whole[:, block], rtol=1e-12)
    monkeypatch.setattr(sys.modules["lm_mia.stats.lira"], "_CHUNK", 7)
    actual = stats.stacked_lira(*data.arguments, covariate_NxK=x_NxK)
    np.testing.assert_allclose(actual, whole, rtol=1e-6, atol=1e-8)


def test_regression_is_fitted_on_a_subsample(monkeypatch: pytest.MonkeyPatch):
    """Complements are found on all samples: 31 of them would be too few."""
    data = draw_losses(10, 8, 301, design="balanced")
    model, whole = fit(data)
    monkeypatch.setattr(stacking, "_MAX_PAIRS", 8 * 31)
    fifth = stats.fit_stacked_regression(*data.arguments[1:], model)
    assert not np.allclose(fifth.weight_F, whole.weight_F, rtol=1e-3)
    loss_MxN, member_MxN = (a[:, ::10] for a in data.arguments[1:])
    pairs = Design(np.arange(8) // 2, np.arange(8))
    monkeypatch.setattr(stacking, "design_of", lambda member_MxN: pairs)
    expected = stats.fit_stacked_regression(loss_MxN, member_MxN, model)
    np.testing.assert_allclose(fifth.weight_F, expected.weight_F, rtol=1e-12)


def test_separable_classes():
    """The weights stay finite, and so do the scores."""
    data = draw_losses(11, 6, 300, gap=(50.0, 0.0), gap_spread=0.0, freedom=np.inf)
    for references in (2, 3, 6):
        target_TxN, loss_MxN, member_MxN = data.arguments
        score_TxN = stats.stacked_lira(target_TxN, loss_MxN[:references], member_MxN[:references])
        assert np.isfinite(score_TxN).all()
        assert stats.auc(score_TxN, data.target_member_TxN).auc_T == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("references", "design", "is_finite"),
    [
        (0, "exact", False),
        (1, "exact", False),
        (2, "balanced", False),
        (2, "exact", True),
        (3, "exact", True),
        (4, "balanced", True),
    ],
)
def test_few_references(references: int, design: Any, is_finite: bool):
    data = draw_losses(12, references, 300, design=design)
    score_TxN = stats.stacked_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    assert score_TxN.shape == (2, 300)
    assert (np.isfinite(score_TxN) if is_finite else np.isnan(score_TxN)).all()
    regression = fit(data)[1]
    assert np.isfinite([*regression.weight_F, regression.penalty]).all() == is_finite


def test_losses_without_information_give_nan():
    target_TxN, loss_MxN, member_MxN = draw_losses(13, 6, 100).arguments
    for losses in (0 * loss_MxN + 0.1, 0 * loss_MxN + loss_MxN[0], loss_MxN * np.nan):
        assert np.isnan(stats.stacked_lira(target_TxN, losses, member_MxN)).all()
    for members in (member_MxN | True, member_MxN & False):
        assert np.isnan(stats.stacked_lira(target_TxN, loss_MxN, members)).all()
    assert np.isnan(stats.stacked_lira(target_TxN * np.nan, loss_MxN, member_MxN)).all()


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 10])
def test_few_samples(samples: int):
    data = draw_losses(14, 8, samples)
    score_TxN = stats.stacked_lira(*data.arguments)
    assert score_TxN.shape == (2, samples)
    assert not np.isinf(score_TxN).any()
    if samples == 10:
        assert np.isfinite(score_TxN).all()
