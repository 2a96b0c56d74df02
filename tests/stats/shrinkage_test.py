"""Empirical-Bayes LiRA against a hand-worked case, numerical integration, plain loops and draws from its model."""

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hierarchical_losses import Losses, draw_losses
from hypothesis import given
from hypothesis import strategies as st
from loss_moments import difficult_losses
from scipy.optimize import bisect
from scipy.special import betaln, expit, hyp2f1, log_ndtr, polygamma, psi

from lm_mia import stats
from lm_mia.stats.moments import Moments
from lm_mia.stats.shrinkage import (
    LossModel,
    SamplePosterior,
    _log_student_cdf,
    fit_samples,
    sample_posterior,
)


def loss_model(
    *,
    variance: float,
    freedom: float,
    gap: float,
    gap_spread: float,
    offline: bool = False,
    pairs: int = 0,
    pair_correlation: float = 0.0,
) -> LossModel:
    """Returns a model whose prior is the same for all samples, without model effects."""
    none = np.zeros((0, 1))
    one = np.ones(1)
    return LossModel(
        none,
        none,
        none,
        0,
        gap,
        0 * one,
        one,
        math.log(variance) * one,
        (-math.inf, math.inf),
        freedom,
        gap * one,
        gap_spread,
        pairs,
        pair_correlation,
        offline,
    )


def moments(losses: Any) -> Moments:
    values = np.array(losses, dtype=float)
    mean = values.mean() if len(values) else 0.0
    squares = np.square(values - mean).sum()
    return Moments(*(np.array([v]) for v in (float(len(values)), mean, squares)))


def posterior(loss_in: Any, loss_out: Any, model: LossModel) -> SamplePosterior:
    """Returns the posterior of one sample."""
    return sample_posterior(moments(loss_in), moments(loss_out), np.ones((1, 1)), model)


def test_hand_worked_posterior_and_score():
    """IN losses 1 and 3, OUT losses 4, 5 and 6; d0 = 4, s^2 = 2, c = 1, kappa = 1/6."""
    model = loss_model(variance=2.0, freedom=4.0, gap=1.0, gap_spread=1 / 6)
    actual = posterior([1, 3], [4, 5, 6], model)
    # h = 1/2 + 1/3 = 5/6, w = (1/6) / (1/6 + 5/6) = 1/6, d = 5 - 2 = 3, f = 1 + 2 = 3, SS = 2 + 2 = 4.
    assert actual.center == pytest.approx(19 / 5)
    assert actual.gap == pytest.approx(1 + (3 - 1) / 6)
    assert actual.gap_spread == pytest.approx(5 / 36)
    assert actual.freedom == pytest.approx(8)
    assert actual.variance == pytest.approx((4 * 2 + 4 + 2**2 / 1) / 8)
    # IN: 3.8 - 4/3 * 3/5 = 3, OUT: 3.8 + 4/3 * 2/5 = 13/3.
    assert actual.middle == pytest.approx((3 + 13 / 3) / 2)
    sd_in = math.sqrt(2 * (1 + 1 / 5 + 9 / 25 * 5 / 36))
    sd_out = math.sqrt(2 * (1 + 1 / 5 + 4 / 25 * 5 / 36))
    for loss in (-2.0, 3.0, 3.7, 10.0):
        log_p_in = scipy.stats.t.logpdf(loss, 8, 3, sd_in)
        log_p_out = scipy.stats.t.logpdf(loss, 8, 13 / 3, sd_out)
        assert actual.log_ratio(np.array([loss])) == pytest.approx(log_p_in - log_p_out)
        log_cdf = scipy.stats.t.logcdf(loss, 8, 13 / 3, sd_out)
        assert actual.log_p_value(np.array([loss])) == pytest.approx(log_cdf)


def integrated_log_p(
    target_X: np.ndarray, loss_in: Any, loss_out: Any, model: LossModel, *, is_in: bool
) -> np.ndarray:
    """Integrates the predictive density over log v, g and mu with the trapezoidal rule."""
    d0, s2 = model.freedom, math.exp(model.log_variance_P[0])
    gap, kappa = model.gap_P[0], model.gap_spread
    losses = np.array([*loss_in, *loss_out], dtype=float)
    z = np.array([1.0] * len(loss_in) + [0.0] * len(loss_out))
    log_v = np.linspace(-12, 14, 130)[:, None, None] + math.log(s2)
    v = np.exp(log_v)
    # Standardized offsets; both integrands are Gaussian in g and mu, with these or smaller standard deviations.
    unit = np.linspace(-9, 9, 90)
    h = 1 / max(len(loss_in), 1) + 1 / max(len(loss_out), 1) if all((loss_in, loss_out)) else np.inf
    difference = np.mean(loss_out) - np.mean(loss_in) if np.isfinite(h) else gap
    weight = kappa / (kappa + h)
    g_sd = math.sqrt(kappa) * math.sqrt(h / (kappa + h)) if np.isfinite(h) else math.sqrt(kappa)
    g = gap + weight * (difference - gap) + unit[None, :, None] * g_sd * np.sqrt(v)
    mu = (losses + z * g[..., None]).mean(axis=-1) + unit * np.sqrt(v / len(losses))
    log_joint = -d0 / 2 * log_v - d0 * s2 / (2 * v)  # density of log v
    log_joint = log_joint - log_v / 2 - np.square(g - gap) / (2 * kappa * v)
    for loss, z_m in zip(losses, z, strict=True):
        log_joint = log_joint - log_v / 2 - np.square(loss - mu + z_m * g) / (2 * v)
    log_joint = log_joint + log_v  # the steps of g and mu are proportional to sqrt(v)
    weight_VGU = np.exp(log_joint - log_joint.max())
    weight_VGU /= weight_VGU.sum()
    location, sd = mu - is_in * g, np.sqrt(v)
    density = [
        (weight_VGU * np.exp(-np.square((t - location) / sd) / 2) / sd).sum() for t in target_X
    ]
    return np.log(np.array(density) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize(
    ("loss_in", "loss_out"),
    [
        ([2.0, 2.4], [2.9, 3.3, 2.6]),
        ([2.2], [2.5]),
        ([1.0, 1.4, 1.9], [1.5]),
        ([], [2.0, 2.7, 2.9]),
        ([1.9, 2.2], []),
        ([], [2.0]),
    ],
)
def test_scores_equal_numerical_integration_of_the_model(loss_in: list, loss_out: list):
    model = loss_model(variance=0.1, freedom=5.0, gap=0.4, gap_spread=0.7)
    target_X = np.array([0.5, 2.0, 2.6, 4.0])
    actual = posterior(loss_in, loss_out, model)
    expected = [
        integrated_log_p(target_X, loss_in, loss_out, model, is_in=is_in) for is_in in (True, False)
    ]
    np.testing.assert_allclose(actual.log_ratio(target_X), expected[0] - expected[1], rtol=1e-6)


def test_limit_of_equal_priors_ranks_as_the_calibrated_loss():
    """Without spread of gaps and variances, the score is c / (s^2 (1 + 1/n)) times the calibrated loss."""
    data = draw_losses(1, 8, 500, design="balanced", model_effect=0.0)
    model = loss_model(variance=0.05, freedom=1e9, gap=0.3, gap_spread=0.0)
    in_moments = [moments(column[z]) for column, z in columns(data)]
    out_moments = [moments(column[~z]) for column, z in columns(data)]
    log_ratio = [
        sample_posterior(i, o, np.ones((1, 1)), model).log_ratio(t)
        for i, o, t in zip(in_moments, out_moments, data.target_TxN.T, strict=True)
    ]
    calibrated_TxN = stats.reference_calibrated_loss(data.target_TxN, data.reference_MxN)
    expected = calibrated_TxN * 0.3 / (0.05 * (1 + 1 / 8))
    np.testing.assert_allclose(np.array(log_ratio).T, expected, rtol=1e-5, atol=1e-6)


def columns(data: Losses) -> zip:
    """Returns pairs of the reference losses and the membership of each sample."""
    return zip(data.reference_MxN.T, data.reference_member_MxN.T, strict=True)


def test_equal_gaps_are_ranked_almost_as_by_the_calibrated_loss():
    """The priors are estimated here, and 16 references suffice to see that they have no spread."""
    constant: Any = {"gap": (0.3, 0.0), "log_variance": (-3.0, 0.0), "model_effect": 0.0}
    data = draw_losses(
        2, 16, 4000, design="balanced", freedom=np.inf, gap_spread=0.0, level_sd=5, **constant
    )
    score_TxN = stats.shrunk_lira(*data.arguments)
    calibrated_TxN = stats.reference_calibrated_loss(data.target_TxN, data.reference_MxN)
    for score_N, calibrated_N in zip(score_TxN, calibrated_TxN, strict=True):
        ranks = scipy.stats.rankdata(score_N), scipy.stats.rankdata(calibrated_N)
        assert np.corrcoef(*ranks)[0, 1] > 0.998


def test_the_limit_of_flat_priors_is_lira_with_one_variance():
    rng = np.random.default_rng(3)
    model = loss_model(variance=1.0, freedom=1e-9, gap=0.0, gap_spread=1e9)
    loss_in, loss_out = rng.normal(2, 0.5, 3000), rng.normal(3, 0.5, 2000)
    target_X = np.linspace(0, 5, 11)
    actual = posterior(loss_in, loss_out, model).log_ratio(target_X)
    squares = loss_in.var() * 3000 + loss_out.var() * 2000
    sd = math.sqrt(squares / 4998)
    expected = scipy.stats.norm.logpdf(target_X, loss_in.mean(), sd)
    expected -= scipy.stats.norm.logpdf(target_X, loss_out.mean(), sd)
    np.testing.assert_allclose(actual, expected, rtol=0.01, atol=0.005)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Finds where the function is 0 by bisection."""
    solution: Any = bisect(function, low, high, xtol=1e-12, maxiter=300)
    return solution


def shrunk_by_loop(
    data: Losses, covariate_NxK: np.ndarray | None = None, *, offline: bool = False
) -> np.ndarray:
    """Computes `shrunk_lira` sample by sample, with another solver at each step."""
    target_TxN, loss_MxN, member_MxN = data.arguments
    M, N = loss_MxN.shape
    losses = [
        [
            (m, loss_MxN[m, i], bool(member_MxN[m, i]))
            for m in range(M)
            if not np.isnan(loss_MxN[m, i]) and not (offline and member_MxN[m, i])
        ]
        for i in range(N)
    ]

    def means(triples: list) -> tuple[float, float, int, int]:
        values = [[v for _, v, z in triples if z == is_in] for is_in in (True, False)]
        mean_in, mean_out = (math.fsum(v) / len(v) if v else 0.0 for v in values)
        return mean_in, mean_out, len(values[0]), len(values[1])

    gaps = [o - i for i, o, n1, n0 in map(means, losses) if n1 and n0]
    mean_gap = math.fsum(gaps) / len(gaps) if gaps else 0.0
    used = [i for i in range(N) if losses[i]]
    mean = np.full(N, np.nan)
    for i in used:
        mean_in, mean_out, n1, n0 = means(losses[i])
        mean[i] = (n1 * (mean_in + mean_gap / 2) + n0 * (mean_out - mean_gap / 2)) / (n1 + n0)
    cov = np.zeros((N, 0)) if covariate_NxK is None else covariate_NxK
    raw = np.column_stack([mean, cov])
    design = np.column_stack([np.ones(N), (raw - raw[used].mean(0)) / raw[used].std(0)])

    # Weights of samples.
    model_mean = np.zeros(M)
    for m in range(M):
        present = [v for triples in losses for k, v, _ in triples if k == m]
        model_mean[m] = np.mean(present) if present else 0.0
    variance = {}
    for i in used:
        centered = [v - model_mean[m] for m, v, _ in losses[i]]
        if len(centered) > 1:
            variance[i] = np.var(centered, ddof=1)
    typical = np.median([v for v in variance.values() if v > 0])
    weight = np.array([1 / (1 + variance.get(i, typical) / typical) for i in range(N)])

    def effect(model_losses: dict[int, float]) -> np.ndarray:
        index = [i for i in model_losses if i in set(used)]
        if not index:
            return np.zeros(design.shape[1])
        root = np.sqrt(weight[index])
        y = np.array([model_losses[i] - mean[i] for i in index])
        return np.linalg.lstsq(design[index] * root[:, None], y * root, rcond=None)[0]

    reference_effect = [
        effect({i: v for i in used for k, v, _ in losses[i] if k == m}) for m in range(M)
    ]
    aligned = [
        [(m, v - float(design[i] @ reference_effect[m]), z) for m, v, z in losses[i]]
        for i in range(N)
    ]

    # Correlation of pairs with complementary subsets.
    pairs = [
        (a, b)
        for a in range(M)
        for b in range(a + 1, M)
        if not offline and N >= 64 and (member_MxN[a] != member_MxN[b]).all()
    ]
    products, own_squares = [0.0], [0.0]
    for i in used:
        mean_in, mean_out, _, _ = means(aligned[i])
        deviation = {m: v - (mean_in if z else mean_out) for m, v, z in aligned[i]}
        for a, b in pairs:
            if a in deviation and b in deviation:
                products.append(deviation[a] * deviation[b])
                own_squares += [deviation[a] ** 2 / 2, deviation[b] ** 2 / 2]
    rho = math.fsum(products) / math.fsum(own_squares) if any(own_squares) else 0.0

    # Priors.
    difference, h, f, squares = np.zeros(N), np.ones(N), np.zeros(N), np.zeros(N)
    has_both = np.zeros(N, dtype=bool)
    for i in used:
        mean_in, mean_out, n1, n0 = means(aligned[i])
        has_both[i] = n1 > 0 and n0 > 0
        if has_both[i]:
            shared = rho * min(len(pairs), n1, n0)
            difference[i] = mean_out - mean_in
            h[i] = 1 / n1 + 1 / n0 - 2 * shared / (n1 * n0)
        f[i] = max(n1 - 1, 0) + max(n0 - 1, 0)
        squares[i] = sum((v - (mean_in if z else mean_out)) ** 2 for _, v, z in aligned[i])

    def fit(value: np.ndarray, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        root = np.sqrt(weights[rows])
        return np.linalg.lstsq(design[rows] * root[:, None], value[rows] * root, rcond=None)[0]

    def variance_prior(squares: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns s^2 of each sample, and d0."""
        rows = np.flatnonzero((f > 0) & (squares > 0))
        log_v, noise = np.zeros(N), np.ones(N)
        log_v[rows] = np.log(squares[rows] / f[rows]) - psi(f[rows] / 2) + np.log(f[rows] / 2)
        noise[rows] = polygamma(1, f[rows] / 2)
        coefficient = fit(log_v, 1 / noise, rows)
        residual = (log_v - design @ coefficient)[rows]
        correction = len(rows) / (len(rows) - design.shape[1])
        excess = np.average(residual**2 * correction - noise[rows], weights=1 / noise[rows])
        d0 = 1e6
        if excess > polygamma(1, 5e5):
            d0 = 2 * root(lambda x: polygamma(1, x) - excess, 1e-6, 1e6)
        coefficient[0] += psi(d0 / 2) - math.log(d0 / 2)
        log_s2 = design @ coefficient
        return np.exp(np.clip(log_s2, log_s2[rows].min(), log_s2[rows].max())), d0

    kappa, gap = 0.0, np.zeros(design.shape[1])
    rows = np.flatnonzero(has_both)
    if len(rows) and not f.any():
        gap = fit(difference, 1 / h, rows)
        s2, d0 = variance_prior(
            np.square(difference - design @ gap) / h * has_both, has_both.astype(float)
        )
    else:
        s2, d0 = variance_prior(squares, f)
        if len(rows):
            nu = d0 + f
            v = (d0 * s2 + squares) / nu
            for _ in range(8):
                gap = fit(difference, 1 / ((kappa + h) * v), rows)
                scaled = np.square(difference - design @ gap) / v * np.maximum(nu - 2, 0.5) / nu
                kappa = np.average((scaled - h)[rows], weights=1 / (kappa + h[rows]))
                kappa = max(kappa, 0.0)

    # Posteriors of samples: (V, degrees of freedom, gap and its spread, center and its spread, n1, n0).
    posterior = {}
    for i in used:
        mean_in, mean_out, n1, n0 = means(aligned[i])
        n, c = n1 + n0, float(design[i] @ gap)
        V = d0 * s2[i] + squares[i]
        m, spread, freedom = c, kappa, d0 + f[i]
        if has_both[i]:
            V += (difference[i] - c) ** 2 / (kappa + h[i])
            w = kappa / (kappa + h[i])
            m, spread, freedom = c + w * (difference[i] - c), w * h[i], freedom + 1
        center = (n1 * mean_in + n0 * mean_out) / n
        center_spread = (1 + 2 * rho * min(len(pairs), n1, n0) / n) / n
        posterior[i] = V / freedom, freedom, m, spread, center, center_spread, n1, n0

    def explained(target: dict[int, float]) -> np.ndarray:
        """Returns what membership may explain of the effect of a target, for each column."""
        M_P = [
            np.array(e) for m, e in enumerate(reference_effect) if not np.isnan(loss_MxN[m]).all()
        ]
        error = [0.0]
        gram = np.zeros((design.shape[1],) * 2)
        for i in target:
            V, freedom, m, spread, _, center_spread, n1, n0 = posterior[i]
            variance = V * freedom / max(freedom - 2, 0.5)
            of_gap = ((m - mean_gap) ** 2 + spread * variance) * ((n1 - n0) / (2 * (n1 + n0))) ** 2
            error.append(weight[i] * (variance * center_spread + of_gap))
            gram += weight[i] * np.outer(design[i], design[i])
        right = np.zeros(len(gram))
        right[1] = -math.fsum(error) / raw[used, 0].std()
        distance = effect(target) - np.linalg.solve(gram, right) - np.mean(M_P, axis=0)
        a = np.zeros(len(gram))
        for p in range(1, len(gram)):
            s2 = np.var([e[p] for e in M_P], ddof=1) * (1 + 1 / len(M_P))
            prior = (0.2 * gap[0]) ** 2
            limit = 0.4 * abs(gap[0])
            a[p] = min(max(prior / (prior + s2) * distance[p], -limit), limit)
        return a

    # Scores.
    score = np.full(target_TxN.shape, np.nan)
    for t, losses_N in enumerate(target_TxN):
        target = {i: losses_N[i] for i in used if not np.isnan(losses_N[i])}
        target_effect = effect(target) - (0 if offline else explained(target))
        for i in used:
            V, freedom, m, spread, center, center_spread, n1, n0 = posterior[i]
            n = n1 + n0
            loss = losses_N[i] - design[i] @ target_effect
            sd_in = math.sqrt(V * (1 + center_spread + (n0 / n) ** 2 * spread))
            sd_out = math.sqrt(V * (1 + center_spread + (n1 / n) ** 2 * spread))
            student = scipy.stats.t
            if offline:
                score[t, i] = -student.logcdf(loss, freedom, center, sd_out)
            else:
                score[t, i] = student.logpdf(loss, freedom, center - m * n0 / n, sd_in)
                score[t, i] -= student.logpdf(loss, freedom, center + m * n1 / n, sd_out)
    return score


def with_missing(data: Losses, share: float, seed: int = 0) -> Losses:
    """Returns the losses, some of which are missing."""
    rng = np.random.default_rng(seed)
    target_TxN, loss_MxN, member_MxN = (np.array(a) for a in data.arguments)
    loss_MxN[rng.random(loss_MxN.shape) < share] = np.nan
    target_TxN[rng.random(target_TxN.shape) < share] = np.nan
    return Losses(target_TxN, loss_MxN, member_MxN, data.target_member_TxN, data.covariate_Nx1)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("design", ["exact", "bernoulli", "balanced"])
def test_scores_equal_plain_loops(design: Any, offline: bool):
    for references, missing, has_covariate in ((4, 0.0, True), (6, 0.2, True), (6, 0.0, False)):
        data = with_missing(draw_losses(4, references, 150, design=design), missing)
        covariate_NxK = data.covariate_Nx1 if has_covariate else None
        actual = stats.shrunk_lira(*data.arguments, covariate_NxK=covariate_NxK, offline=offline)
        expected = shrunk_by_loop(data, covariate_NxK, offline=offline)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
        assert np.isfinite(actual).mean() > 0.6


def test_two_balanced_references_equal_plain_loops():
    data = draw_losses(5, 2, 150, design="balanced")
    actual = stats.shrunk_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    expected = shrunk_by_loop(data, data.covariate_Nx1)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    assert np.isfinite(actual).all()


def student_log_cdf(z: np.ndarray, freedom: float) -> np.ndarray:
    """Computes log P(t <= z) for z < 0 from the incomplete beta function as a hypergeometric series."""
    a, x = freedom / 2, freedom / (freedom + np.square(z))
    series = np.log(hyp2f1(a + 0.5, 1, a + 1, x))
    return a * np.log(x) + np.log1p(-x) / 2 - np.log(2 * a) - betaln(a, 0.5) + series


@pytest.mark.parametrize("freedom", [0.1, 1.0, 2.5, 10.0, 100.0, 1000.0])
def test_log_student_cdf_equals_series_and_scipy(freedom: float):
    z = -np.logspace(0.7, 28, 400)
    actual = _log_student_cdf(z, np.array(freedom))
    np.testing.assert_allclose(actual, student_log_cdf(z, freedom), rtol=1e-9)
    assert (np.diff(actual) < 0).all()
    z = np.linspace(-20, 20, 41)
    actual = _log_student_cdf(z, np.array(freedom))
    np.testing.assert_allclose(actual, scipy.stats.t.logcdf(z, freedom), rtol=1e-9)


def test_log_student_cdf_with_many_degrees_of_freedom_is_normal():
    z = np.concatenate([np.linspace(-60, -30, 301), np.linspace(-30, 8, 100)])
    actual = _log_student_cdf(z, np.array(1e12))
    np.testing.assert_allclose(actual, log_ndtr(z), rtol=1e-5)


@pytest.mark.parametrize("freedom", [20.0, 300.0, 1e6])
def test_log_student_cdf_is_continuous_at_underflow(freedom: float):
    def log_cdf(z: float) -> float:
        return float(_log_student_cdf(np.array([z]), np.array(freedom))[0])

    switch = root(lambda z: log_cdf(z) - math.log(1e-290), -1e20, -1.0)
    below, above = log_cdf(switch * (1 + 1e-9)), log_cdf(switch * (1 - 1e-9))
    assert below < above
    assert below == pytest.approx(above, abs=1e-5)


@pytest.mark.parametrize("references", [4, 8, 32])
@pytest.mark.parametrize(
    ("freedom", "gap_spread"), [(8.0, 0.5), (4.0, 1.0), (20.0, 0.0), (np.inf, 0.3)]
)
def test_priors_are_recovered(references: int, freedom: float, gap_spread: float):
    """Levels vary so much that they tell nothing about gaps, as under their flat prior."""
    data = draw_losses(
        references, references, 4000, freedom=freedom, gap_spread=gap_spread, level_sd=100
    )
    model = stats.fit_loss_model(*data.arguments, covariate_NxK=data.covariate_Nx1)
    few = references == 4
    assert 1 / model.freedom == pytest.approx(1 / freedom, abs=0.05 if few else 0.02)
    assert model.gap_spread == pytest.approx(gap_spread, abs=0.25 if few else 0.1)
    slope_P = np.array([model.gap_P, model.log_variance_P]) / model.scale_P
    intercept = [model.gap_P[0], model.log_variance_P[0]] - slope_P[:, 1:] @ model.center_P[1:]
    np.testing.assert_allclose(slope_P[0, 1:], [0, 0.1], atol=0.02)
    np.testing.assert_allclose(slope_P[1, 1:], [0, 0.5], atol=0.1 if few else 0.04)
    assert intercept[0] == pytest.approx(0.3, abs=0.02)
    assert intercept[1] == pytest.approx(-3, abs=0.1 if few else 0.05)


@pytest.mark.parametrize("design", ["exact", "balanced"])
def test_scores_are_calibrated_log_likelihood_ratios(design: Any):
    """Among samples with a score near s, the share of members is expit(s)."""
    data = draw_losses(11, 6, 8000, targets=10, design=design, gap=(0.4, 0.1), gap_spread=0.3)
    score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    edges = [-np.inf, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, np.inf]
    for low, high in itertools.pairwise(edges):
        is_near = (score_TxN >= low) & (score_TxN < high)
        assert is_near.sum() > 300
        share = data.target_member_TxN[is_near].mean()
        assert share == pytest.approx(expit(score_TxN[is_near]).mean(), abs=0.03)


def test_p_values_of_nonmembers_are_uniform():
    """The effects of these targets are estimated on their non-members only."""
    data = draw_losses(12, 8, 4000, targets=5)
    data.target_TxN[data.target_member_TxN] = np.nan
    score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=data.covariate_Nx1, offline=True)
    p_value = np.exp(-score_TxN[np.isfinite(score_TxN)])
    for level in (0.01, 0.1, 0.5, 0.9):
        assert (p_value <= level).mean() == pytest.approx(level, rel=0.15, abs=0.01)


MODES = [{"offline": False}, {"offline": True}]


@pytest.mark.parametrize("mode", MODES)
def test_order_of_references_targets_and_samples_does_not_matter(mode: Any):
    data = with_missing(draw_losses(6, 6, 200, targets=3), 0.1)
    rng = np.random.default_rng(6)
    models, targets, samples = rng.permutation(6), rng.permutation(3), rng.permutation(200)
    score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=data.covariate_Nx1, **mode)
    actual = stats.shrunk_lira(
        data.target_TxN[targets][:, samples],
        data.reference_MxN[models][:, samples],
        data.reference_member_MxN[models][:, samples],
        covariate_NxK=data.covariate_Nx1[samples],
        **mode,
    )
    np.testing.assert_allclose(actual, score_TxN[targets][:, samples], rtol=1e-8, atol=1e-9)
    alone = stats.shrunk_lira(
        data.target_TxN[1], *data.arguments[1:], covariate_NxK=data.covariate_Nx1, **mode
    )
    np.testing.assert_allclose(alone[0], score_TxN[1], rtol=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("factor", "offset"), [(1e-6, 0.0), (37.0, -5.0), (1e8, 1e3), (1.0, 1e5)])
def test_scale_and_origin_of_losses_do_not_matter(factor: float, offset: float, mode: Any):
    target_TxN, loss_MxN, member_MxN = draw_losses(7, 6, 200).arguments
    score_TxN = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, **mode)
    actual = stats.shrunk_lira(
        target_TxN * factor + offset, loss_MxN * factor + offset, member_MxN, **mode
    )
    np.testing.assert_allclose(actual, score_TxN, rtol=1e-7, atol=1e-7)


def test_units_and_order_of_covariates_do_not_matter():
    data, rng = draw_losses(8, 6, 300), np.random.default_rng(8)
    covariate_NxK = np.column_stack([data.covariate_Nx1, rng.integers(1, 90, 300)])
    score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=covariate_NxK)
    for others in (
        covariate_NxK * [1e-6, -1e7] + [3, 1e6],
        covariate_NxK[:, ::-1],
        np.column_stack([covariate_NxK, np.full(300, 0.1), np.zeros(300)]),
    ):
        actual = stats.shrunk_lira(*data.arguments, covariate_NxK=others)
        np.testing.assert_allclose(actual, score_TxN, rtol=1e-6, atol=1e-6)
    # What membership may explain is found for each column, so copies of a column matter, but not if there is no gap.
    copies = np.column_stack([covariate_NxK, covariate_NxK.sum(axis=1), -covariate_NxK])
    actual, expected = (
        stats.shrunk_lira(*data.arguments, covariate_NxK=covariates, offline=True)
        for covariates in (copies, covariate_NxK)
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    integers_NxK = covariate_NxK[:, 1:].astype(np.int8)
    np.testing.assert_array_equal(
        stats.shrunk_lira(*data.arguments, covariate_NxK=integers_NxK),
        stats.shrunk_lira(*data.arguments, covariate_NxK=integers_NxK.astype(float)),
    )


@pytest.mark.parametrize("offline", [False, True])
def test_effects_of_models_do_not_matter(offline: bool):
    """A model may have other losses on all samples; without a gap, the effect may depend on the covariates, too."""
    data = draw_losses(9, 4, 1000, design="balanced")
    target_TxN, loss_MxN, member_MxN = data.arguments
    x_N = data.covariate_Nx1[:, 0]

    def scores(target_TxN: Any, loss_MxN: Any) -> np.ndarray:
        return stats.shrunk_lira(
            target_TxN, loss_MxN, member_MxN, covariate_NxK=data.covariate_Nx1, offline=offline
        )

    score_TxN = scores(target_TxN, loss_MxN)
    for effect_N in [0.7 + 0 * x_N] + [0.7 - 0.3 * x_N] * offline:
        actual = scores(target_TxN + np.array([[0.0], [1.0]]) * effect_N, loss_MxN)
        np.testing.assert_allclose(actual, score_TxN, rtol=1e-8, atol=1e-8)
    if offline:  # the mean OUT loss depends on which references are OUT, and so on their effects
        return
    one_4x1 = np.array([[1.0], [0], [0], [0]])
    actual = scores(target_TxN, loss_MxN + 0.7 * one_4x1)
    np.testing.assert_allclose(actual, score_TxN, rtol=1e-8, atol=1e-8)
    # The weights of samples in the estimation change if the differences between references do.
    actual = scores(target_TxN, loss_MxN + 0.3 * one_4x1 * x_N)
    assert np.corrcoef(actual.ravel(), score_TxN.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("mode", MODES)
def test_references_without_losses_equal_their_absence(mode: Any):
    data = draw_losses(10, 6, 300)
    target_TxN, loss_MxN, member_MxN = data.arguments
    loss_MxN[[1, 4]] = np.nan
    left = [0, 2, 3, 5]
    actual = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, **mode)
    expected = stats.shrunk_lira(target_TxN, loss_MxN[left], member_MxN[left], **mode)
    np.testing.assert_allclose(actual, expected, rtol=1e-10)
    assert np.isfinite(actual).mean() > 0.9
    # Offline, losses of IN references are not used.
    loss_MxN[member_MxN] = np.nan
    if mode["offline"]:
        actual = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, **mode)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("offline", [False, True])
def test_blocks_of_samples_equal_the_whole(monkeypatch: pytest.MonkeyPatch, offline: bool):
    data = with_missing(draw_losses(13, 6, 101), 0.2)
    x_NxK = data.covariate_Nx1
    whole = stats.shrunk_lira(*data.arguments, covariate_NxK=x_NxK, offline=offline)
    model = stats.fit_loss_model(*data.arguments, covariate_NxK=x_NxK, offline=offline)
    for block in (slice(0, 50), slice(50, 51), slice(51, 101), slice(0, 0)):
        target_TxN, loss_MxN, member_MxN = (a[:, block] for a in data.arguments)
        actual = stats.shrunk_from_model(
            target_TxN, loss_MxN, member_MxN, model, covariate_NxK=x_NxK[block]
        )
        np.testing.assert_allclose(actual, whole[:, block], rtol=1e-12)
    monkeypatch.setattr(sys.modules["lm_mia.stats.lira"], "_CHUNK", 7)
    actual = stats.shrunk_lira(*data.arguments, covariate_NxK=x_NxK, offline=offline)
    np.testing.assert_allclose(actual, whole, rtol=1e-12)


def test_parameters_are_estimated_on_a_subsample(monkeypatch: pytest.MonkeyPatch):
    data = draw_losses(14, 6, 1000)
    monkeypatch.setattr("lm_mia.stats.shrinkage.fit_samples", lambda n: fit_samples(n, 300))
    index_S = fit_samples(1000, 300)
    assert len(index_S) == 300
    assert index_S[[0, -1]].tolist() == [0, 999]
    target_TxS, loss_MxS, member_MxS = (a[:, index_S] for a in data.arguments)
    model = stats.fit_loss_model(target_TxS, loss_MxS, member_MxS)
    actual = stats.shrunk_lira(*data.arguments)
    np.testing.assert_array_equal(actual, stats.shrunk_from_model(*data.arguments, model))


def test_fit_samples_are_spaced_evenly():
    assert fit_samples(0).tolist() == []
    assert fit_samples(1).tolist() == [0]
    assert fit_samples(5).tolist() == [0, 1, 2, 3, 4]
    assert fit_samples(9, 3).tolist() == [0, 4, 8]
    assert len(fit_samples(2**20)) == 2**15


def test_float32_losses_give_the_same_scores():
    data = draw_losses(15, 6, 300)
    target_TxN, loss_MxN, member_MxN = data.arguments
    target_TxN, loss_MxN = target_TxN.astype(np.float32), loss_MxN.astype(np.float32)
    actual = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN)
    assert actual.dtype == np.float64
    doubles = target_TxN.astype(np.float64), loss_MxN.astype(np.float64)
    expected = stats.shrunk_lira(doubles[0], doubles[1], member_MxN)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("design", ["exact", "balanced"])
def test_two_references_are_better_than_calibration(design: Any):
    data = draw_losses(16, 2, 4000, targets=8, design=design, gap=(0.3, 0.2))
    score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=data.covariate_Nx1)
    assert np.isfinite(score_TxN).all()
    calibrated_TxN = stats.reference_calibrated_loss(data.target_TxN, data.reference_MxN)
    aucs = [
        stats.auc(s_TxN, data.target_member_TxN).auc_T.mean()
        for s_TxN in (score_TxN, calibrated_TxN)
    ]
    assert aucs[0] > aucs[1] + 0.03


def test_too_few_references_give_nan():
    for references, mode in ((0, {}), (1, {}), (0, {"offline": True}), (1, {"offline": True})):
        data = draw_losses(17, 4, 100)
        target_TxN, loss_MxN, member_MxN = data.arguments
        score_TxN = stats.shrunk_lira(
            target_TxN, loss_MxN[:references], member_MxN[:references], **mode
        )
        assert score_TxN.shape == target_TxN.shape
        assert np.isnan(score_TxN).all()
    # Two references have the same subset: there is no difference between IN and OUT losses.
    data = draw_losses(17, 2, 100)
    members_2xN = np.repeat(data.reference_member_MxN[:1], 2, axis=0)
    assert np.isnan(stats.shrunk_lira(*data.arguments[:2], members_2xN)).all()


def test_samples_without_some_losses():
    data = draw_losses(18, 8, 200)
    target_TxN, loss_MxN, member_MxN = data.arguments
    loss_MxN[:, :10] = np.nan
    loss_MxN[:, 10:20][member_MxN[:, 10:20]] = np.nan
    loss_MxN[:, 20:30][~member_MxN[:, 20:30]] = np.nan
    target_TxN[0, 30] = np.nan
    online_TxN = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN)
    offline_TxN = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, offline=True)
    assert np.isnan(online_TxN[:, :10]).all()
    assert np.isfinite(online_TxN[:, 10:30]).all()
    assert np.isnan(offline_TxN[:, [*range(10), *range(20, 30)]]).all()
    assert np.isfinite(offline_TxN[:, 10:20]).all()
    assert np.isnan([online_TxN[0, 30], offline_TxN[0, 30]]).all()
    assert np.isfinite([online_TxN[1, 30], offline_TxN[1, 30]]).all()
    assert np.isfinite(online_TxN[:, 31:]).all()


@pytest.mark.parametrize("mode", MODES)
def test_losses_without_information_give_nan(mode: Any):
    target_TxN, loss_MxN, member_MxN = draw_losses(19, 6, 100).arguments
    for losses in (0 * loss_MxN, 0 * loss_MxN + 0.1, 0 * loss_MxN + loss_MxN[0], loss_MxN * np.nan):
        assert np.isnan(stats.shrunk_lira(target_TxN, losses, member_MxN, **mode)).all()
    assert np.isnan(stats.shrunk_lira(target_TxN * np.nan, loss_MxN, member_MxN, **mode)).all()
    assert np.isnan(stats.shrunk_lira(target_TxN, loss_MxN, member_MxN | True, **mode)).all()
    none = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN & False, **mode)
    assert np.isfinite(none).all() if mode["offline"] else np.isnan(none).all()


@pytest.mark.parametrize("mode", MODES)
def test_rounding_errors_are_no_variance(mode: Any):
    """The losses differ by the effects of models only; subtracting these leaves rounding errors."""
    data = draw_losses(19, 6, 100)
    target_TxN, _, member_MxN = data.arguments
    loss_MxN = 1000 + np.arange(6)[:, None] * (0.1 + 0.3 * data.covariate_Nx1[:, 0])
    score_TxN = stats.shrunk_lira(
        target_TxN, loss_MxN, member_MxN, covariate_NxK=data.covariate_Nx1, **mode
    )
    assert np.isnan(score_TxN).all()


def test_prior_variance_is_not_extrapolated():
    """The samples that determine it have losses around 4, and one other sample has losses around 100,000."""
    target_TxN, loss_MxN, member_MxN = draw_losses(20, 2, 100, model_effect=0.0).arguments
    member_MxN[:, 0] = [True, False]
    target_TxN[:, 0] += 1e5
    loss_MxN[:, 0] += 1e5
    assert np.isfinite(stats.shrunk_lira(target_TxN, loss_MxN, member_MxN)).all()


@pytest.mark.parametrize("mode", MODES)
def test_samples_with_equal_losses_among_others(mode: Any):
    """Samples without variance borrow it from the others."""
    target_TxN, loss_MxN, member_MxN = draw_losses(20, 6, 200, model_effect=0.0).arguments
    loss_MxN[:, :5] = loss_MxN[0, :5]
    score_TxN = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, **mode)
    has_out_N = ~member_MxN.all(axis=0)
    assert np.isfinite(score_TxN[:, has_out_N]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_difficult_losses(kind: type, mode: Any):
    loss_MxN, member_MxN = difficult_losses(kind)
    score_TxN = stats.shrunk_lira(loss_MxN[8], loss_MxN[:8], member_MxN[:8], **mode)
    has_out_N = (~member_MxN[:8] & ~np.isnan(loss_MxN[:8])).any(axis=0)
    assert np.isfinite(score_TxN[:, has_out_N]).all()


@pytest.mark.parametrize("mode", MODES)
def test_losses_around_a_million(mode: Any):
    data = draw_losses(21, 8, 500)
    target_TxN, loss_MxN, member_MxN = data.arguments
    score_TxN = stats.shrunk_lira(target_TxN, loss_MxN, member_MxN, **mode)
    actual = stats.shrunk_lira(target_TxN + 1e6, loss_MxN + 1e6, member_MxN, **mode)
    np.testing.assert_allclose(actual, score_TxN, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("samples", [0, 1, 2, 3, 4, 10])
def test_few_samples(samples: int, mode: Any):
    """Model effects and variances take more samples than the two columns of the design matrix."""
    data = draw_losses(22, 8, samples, design="balanced")
    score_TxN = stats.shrunk_lira(*data.arguments, **mode)
    assert score_TxN.shape == (2, samples)
    if samples <= 2:
        assert np.isnan(score_TxN).all()
    if samples == 10:
        assert np.isfinite(score_TxN).all()


def test_fewer_samples_than_columns_give_nan():
    data, rng = draw_losses(23, 8, 20), np.random.default_rng(23)
    for covariates, is_finite in ((0, True), (10, True), (18, False), (19, False), (50, False)):
        covariate_NxK = rng.normal(size=(20, covariates))
        score_TxN = stats.shrunk_lira(*data.arguments, covariate_NxK=covariate_NxK)
        assert (np.isfinite(score_TxN) if is_finite else np.isnan(score_TxN)).all()


ATTACKS: list[Any] = [stats.shrunk_lira, stats.stacked_lira]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e29, -1e200])
def test_infinite_losses_are_refused(attack: Any, value: float):
    for is_target, offline in itertools.product((True, False), repeat=2):
        target_TxN, loss_MxN, member_MxN = draw_losses(24, 6, 100).arguments
        if is_target:
            target_TxN[0, 3] = value
        else:
            loss_MxN[(~member_MxN[:, 3]).argmax(), 3] = value
        mode = {"offline": True} if offline and attack is stats.shrunk_lira else {}
        with pytest.raises(ValueError, match=r"^losses .*finite \(.*1e\+29 "):
            attack(target_TxN, loss_MxN, member_MxN, **mode)


@pytest.mark.parametrize("attack", ATTACKS)
def test_wrong_arguments_are_refused(attack: Any):
    target_TxN, loss_MxN, member_MxN = draw_losses(25, 6, 100).arguments

    def refused(message: str, *arguments: Any, **covariates: Any) -> None:
        with pytest.raises(ValueError, match=message):
            attack(*arguments, **covariates)

    refused("targets? losses of shape", target_TxN[:, :99], loss_MxN, member_MxN)
    refused("do not match members", target_TxN, loss_MxN[:5], member_MxN)
    refused("must be booleans, not int64", target_TxN, loss_MxN, member_MxN.astype(int))
    masked = np.ma.masked_less(loss_MxN, 3)
    refused("losses: some values are masked", target_TxN, masked, member_MxN)
    masked = np.ma.masked_less(target_TxN, 3)
    refused("target losses: some values are masked", masked, loss_MxN, member_MxN)
    masked = np.ma.masked_array(np.ones((100, 1)), mask=np.arange(100)[:, None] == 0)
    arguments = target_TxN, loss_MxN, member_MxN
    refused("covariates: some values are masked", *arguments, covariate_NxK=masked)
    shape = r"covariates of shape \(.*\) must have shape \(100, number of covariates\)"
    for wrong in (np.ones(100), np.ones((1, 100)), np.ones((99, 2)), 1.0):
        refused(shape, *arguments, covariate_NxK=wrong)
    for wrong in (np.nan, np.inf, 1e200):
        finite = "covariates must be finite .* replace missing ones by a typical value"
        refused(finite, *arguments, covariate_NxK=np.full((100, 1), wrong))
    refused("covariates: must be real", *arguments, covariate_NxK=np.full((100, 1), "a"))


def test_a_model_of_other_references_is_refused():
    data = draw_losses(26, 6, 100)
    target_TxN, loss_MxN, member_MxN = data.arguments
    model = stats.fit_loss_model(target_TxN, loss_MxN, member_MxN)
    for wrong in (
        (target_TxN[:1], loss_MxN, member_MxN),
        (target_TxN, loss_MxN[:5], member_MxN[:5]),
    ):
        with pytest.raises(ValueError, match=r"\bloss model\b.*\b2 and 6"):
            stats.shrunk_from_model(*wrong, model)


@given(
    seed=st.integers(0, 2**32 - 1),
    references=st.integers(0, 7),
    samples=st.integers(0, 40),
    missing=st.sampled_from([0.0, 0.2, 0.9]),
    decimals=st.sampled_from([0, 1, 9]),
)
def test_any_losses_give_scores_or_nan(
    seed: int, references: int, samples: int, missing: float, decimals: int
):
    data = with_missing(draw_losses(seed, references, samples, design="bernoulli"), missing, seed)
    target_TxN, loss_MxN, member_MxN = data.arguments
    x_NxK = np.round(data.covariate_Nx1)
    for attack in (stats.shrunk_lira, stats.stacked_lira):
        score_TxN = attack(
            target_TxN.round(decimals), loss_MxN.round(decimals), member_MxN, covariate_NxK=x_NxK
        )
        assert score_TxN.shape == target_TxN.shape
        assert not np.isinf(score_TxN).any()
        assert np.isnan(score_TxN[np.isnan(target_TxN)]).all()


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.4])
def test_correlated_pairs_equal_conditioning_on_all_losses(correlation: float):
    """With a known variance, everything is normal: the prediction is that of linear algebra."""
    pairs, variance, gap, kappa = 3, 0.5, 0.7, 0.4
    member_M, loss_M = np.arange(2 * pairs) % 2 == 0, np.array([1.0, 1.6, 0.8, 2.1, 1.3, 1.7])
    model = loss_model(
        variance=variance,
        freedom=1e9,
        gap=gap,
        gap_spread=kappa,
        pairs=pairs,
        pair_correlation=correlation,
    )
    actual = posterior(loss_M[member_M], loss_M[~member_M], model)
    # Losses are A (mu, g) + noise, with a nearly flat prior of mu; the last two losses are to be predicted.
    design = np.column_stack([np.ones(8), [*(-1.0 * member_M), -1, 0]])
    noise = variance * np.eye(8)
    for i in range(0, 2 * pairs, 2):
        noise[i, i + 1] = noise[i + 1, i] = correlation * variance
    covariance = design @ np.diag([1e4, kappa * variance]) @ design.T + noise
    known, new = slice(6), slice(6, 8)
    gain = covariance[new, known] @ np.linalg.inv(covariance[known, known])
    mean = design @ [0.0, gap]
    predicted_2 = mean[new] + gain @ (loss_M - mean[known])
    variance_2 = np.diag(covariance[new, new] - gain @ covariance[known, new])
    for is_in, expected_mean, expected_variance in zip(
        (True, False), predicted_2, variance_2, strict=True
    ):
        location, scale = actual._predictive(is_in=is_in)
        assert location == pytest.approx(expected_mean, abs=1e-3)
        assert scale**2 == pytest.approx(expected_variance, rel=1e-3)


@pytest.mark.parametrize("correlation", [-0.5, 0.3])
def test_correlation_of_pairs_is_recovered(correlation: float):
    rng = np.random.default_rng(0)
    pairs, samples = 4, 4000
    half_PxN = rng.random((pairs, samples)) < 0.5
    member_MxN = np.stack([half_PxN, ~half_PxN], axis=1).reshape(2 * pairs, samples)
    noise_Px2xN = rng.multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], (pairs, samples)
    ).swapaxes(1, 2)
    loss_MxN = 0.1 * noise_Px2xN.reshape(2 * pairs, samples) - 0.1 * member_MxN
    loss_MxN = loss_MxN + rng.normal(3, 0.5, samples)
    model = stats.fit_loss_model(loss_MxN[:1], loss_MxN, member_MxN)
    assert model.pairs == pairs
    assert model.pair_correlation == pytest.approx(correlation, abs=0.03)
    independent = stats.fit_loss_model(loss_MxN[:1], loss_MxN[::2], member_MxN[::2])
    assert (independent.pairs, independent.pair_correlation) == (0, 0.0)
    offline = stats.fit_loss_model(loss_MxN[:1], loss_MxN, member_MxN, offline=True)
    assert (offline.pairs, offline.pair_correlation) == (0, 0.0)
