"""Effects of targets whose membership may depend on a column: by hand, in loops, and with simulated losses.

Legend: T targets, M references, N samples, W simulated worlds, P columns of the design matrix.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hierarchical_losses import draw_losses
from scipy.special import expit

from lm_mia import stats
from lm_mia.stats.model_effects import (
    attenuation,
    is_unusual,
    model_effects,
    target_effects,
    target_z,
)


class Effects:
    """Effects of targets, their z and its degrees of freedom."""

    def __init__(self, estimate: Any, reference_effect: Any, gap: float, bias: Any = 0.0) -> None:
        estimate_TxP = np.atleast_2d(np.array(estimate, float))
        bias_TxP = np.broadcast_to(bias, estimate_TxP.shape)
        reference_MxP = np.array(reference_effect, float)
        self.effect_TxP = target_effects(estimate_TxP, bias_TxP, reference_MxP, gap, 0.0)
        self.z_TxP = target_z(estimate_TxP, bias_TxP, reference_MxP, 0.0)
        self.freedom = len(reference_MxP) - 1


@pytest.mark.parametrize("gap", [1.0, -1.0])
def test_hand_worked_effects(gap: float):
    """The references' effects have the mean 0.2 and s^2 = 0.02 * 3 / 2 = 0.03, so w = 0.04 / 0.07 = 4 / 7."""
    reference_effect_2x2 = [[5.0, 0.1], [7.0, 0.3]]
    result = Effects([[1.0, 0.27], [2.0, 2.2], [3.0, -1.8]], reference_effect_2x2, gap)
    np.testing.assert_allclose(
        result.effect_TxP, [[1, 0.27 - 0.04], [2, 2.2 - 0.4], [3, -1.8 + 0.4]]
    )
    np.testing.assert_allclose(result.z_TxP[:, 1], np.array([0.07, 2, -2]) / np.sqrt(0.03))
    assert np.isnan(result.z_TxP[:, 0]).all()
    # A bias of the estimate is removed with the rest, and is no evidence.
    biased = Effects([1.0, 0.37], reference_effect_2x2, gap, [0.0, 0.1])
    np.testing.assert_allclose(biased.effect_TxP, [[1, 0.37 - 0.04]])


def test_effects_equal_a_loop():
    rng = np.random.default_rng(0)
    estimate_TxP, bias_TxP = rng.normal(0, 0.2, (2, 30, 4))
    effect_MxP = rng.normal(0, [1, 0.3, 0.1, 0.01], (5, 4))
    result = Effects(estimate_TxP, effect_MxP, 0.7, bias_TxP)
    for t, estimate_P in enumerate(estimate_TxP):
        assert result.effect_TxP[t, 0] == estimate_P[0]
        for p in range(1, 4):
            values = effect_MxP[:, p].tolist()
            mean = sum(values) / 5
            s2 = sum((v - mean) ** 2 for v in values) / 4 * 6 / 5
            d = estimate_P[p] - bias_TxP[t, p] - mean
            a = min(max(0.14**2 / (0.14**2 + s2) * d, -0.28), 0.28)
            assert result.effect_TxP[t, p] == pytest.approx(estimate_P[p] - a, abs=1e-12)
            assert result.z_TxP[t, p] == pytest.approx(d / s2**0.5)


def test_effects_at_the_edges():
    estimate = [[1.0, 2.0]]
    varying, equal = [[0.0, 0.1], [0.0, 0.3]], [[0.0, 0.3], [0.0, 0.3]]
    # Without a gap, membership explains nothing.
    for references in (varying, equal):
        np.testing.assert_array_equal(Effects(estimate, references, 0.0).effect_TxP, estimate)
    # If references do not differ, membership explains all that it can.
    result = Effects([[1.0, 0.5], [1.0, 2.0], [1.0, 0.3]], equal, 1.0)
    np.testing.assert_allclose(result.effect_TxP[:, 1], [0.3, 1.6, 0.3])
    # One reference or none shows no variance.
    for references in (varying[:1], np.empty((0, 2))):
        result = Effects(estimate, references, 1.0)
        np.testing.assert_array_equal(result.effect_TxP, estimate)
        assert np.isnan(result.z_TxP).all()
        assert not is_unusual(result.z_TxP, result.freedom).any()
    # The square of the gap underflows.
    result = Effects([1.0, 5e-200], np.array(equal) * 1e-300, 1e-200)
    np.testing.assert_allclose(result.effect_TxP[0, 1], 4.6e-200)


def test_one_in_a_thousand_targets_is_unusual_by_chance():
    """In each column; of three columns together, three in a thousand."""
    rng, columns = np.random.default_rng(1), 150_000
    for references in (2, 8, 32):
        effect_BxP = rng.normal(0.1, 0.3, (references + 1, columns + 1))
        result = Effects(effect_BxP[0], effect_BxP[1:], 1.0)
        z_P = result.z_TxP[0, 1:]
        assert scipy.stats.kstest(z_P, scipy.stats.t(references - 1).cdf).pvalue > 1e-3
        unusual_P = is_unusual(result.z_TxP, result.freedom)[0, 1:]
        assert unusual_P.mean() == pytest.approx(0.001, abs=5 * 0.001**0.5 / columns**0.5)
        of_three = unusual_P.reshape(-1, 3).any(axis=1)
        assert of_three.mean() == pytest.approx(0.003, abs=5 * (0.003 * 3 / columns) ** 0.5)


@pytest.mark.parametrize("references", [3, 8])
def test_errors_of_the_mean_loss_attenuate_effects_of_targets(references: int):
    """Not those of references; the mean loss is correlated with another column."""
    rng, targets, N = np.random.default_rng(2), 300, 3000
    x_N = rng.normal(size=N)
    sd_N = np.exp(0.5 * x_N)
    level_N = x_N + rng.normal(size=N)
    loss_BxN = level_N + sd_N * rng.normal(size=(targets + references, N))
    target_TxN, loss_MxN = loss_BxN[references:], loss_BxN[:references]
    target_TxN[:, ::3] = np.nan
    mean_N, weight_N = loss_MxN.mean(axis=0), 1 / (1 + sd_N**2)
    scale = float(mean_N.std())
    design_NxP = np.column_stack([np.ones(N), (mean_N - mean_N.mean()) / scale, x_N])
    estimate_TxP, inverse_TxPxP = model_effects(target_TxN - mean_N, design_NxP, weight_N)
    expected_TxP = attenuation(
        ~np.isnan(target_TxN), sd_N**2 / references, weight_N, scale, inverse_TxPxP
    )
    # All targets share the errors of the mean.
    slack = 4 * np.sqrt(1 / targets + 1 / references) * estimate_TxP.std(axis=0)
    assert (np.abs(estimate_TxP.mean(axis=0) - expected_TxP.mean(axis=0)) < slack).all()
    assert (np.abs(expected_TxP.mean(axis=0)) > 2 * slack)[1:].all()
    reference_effect_MxP, _ = model_effects(loss_MxN - mean_N, design_NxP, weight_N)
    assert (np.abs(reference_effect_MxP.mean(axis=0)) < 1e-12).all()


def z_of_worlds(worlds: int, references: int, model_effect: float, gap: float) -> np.ndarray:
    """Returns z_Wx2 of the mean loss and of the covariate; membership is random.

    Effects of models on both have the standard deviation ``model_effect``.
    """
    z_W = []
    for world in range(worlds):
        data = draw_losses(
            [world, references],
            references,
            2000,
            targets=1,
            gap=(gap, gap / 3),
            gap_spread=0.5 if gap else 0.0,
            model_effect=model_effect,
        )
        level_N = data.reference_MxN.mean(axis=0)
        level_N = (level_N - level_N.mean()) / level_N.std()
        slope_B = np.random.default_rng([world, 1]).normal(0, model_effect, references + 1)
        model = stats.fit_loss_model(
            data.target_TxN + slope_B[references] * level_N,
            data.reference_MxN + slope_B[:references, None] * level_N,
            data.reference_member_MxN,
            covariate_NxK=data.covariate_Nx1,
        )
        assert model.z_freedom == references - 1
        z_W.append(model.target_z_TxP[0, 1:])
    return np.array(z_W)


def check_z(z_Wx2: np.ndarray, references: int, *, models_differ: bool) -> None:
    """Checks that z has the distribution of Student's t, nearly so if models do not differ."""
    # One world in a thousand is unusual: three of 75 by a chance of 6e-5.
    assert (is_unusual(z_Wx2, references - 1).sum(axis=0) <= 2).all()
    if not models_differ:
        # Errors of the mean loss, without a correction, would make its median -11 with 4 references.
        assert (np.abs(np.median(z_Wx2, axis=0)) < 0.5).all()
        return
    for z_W in z_Wx2.T:
        assert scipy.stats.kstest(z_W, scipy.stats.t(references - 1).cdf).pvalue > 1e-4


@pytest.mark.parametrize("model_effect", [0.0, 0.1])
def test_z_is_a_student_t_variable(model_effect: float):
    check_z(z_of_worlds(75, 4, model_effect, 0.3), 4, models_differ=model_effect > 0)


@pytest.mark.montecarlo
@pytest.mark.parametrize("references", [4, 32])
@pytest.mark.parametrize(("model_effect", "gap"), [(0.0, 0.3), (0.1, 0.0)])
def test_z_is_a_student_t_variable_everywhere(references: int, model_effect: float, gap: float):
    z_Wx2 = z_of_worlds(75, references, model_effect, gap)
    check_z(z_Wx2, references, models_differ=model_effect > 0)


@dataclasses.dataclass(frozen=True)
class World:
    """Losses under a target whose membership depends on the covariate."""

    target_N: np.ndarray
    loss_MxN: np.ndarray
    reference_member_MxN: np.ndarray
    member_N: np.ndarray
    covariate_Nx1: np.ndarray

    def score(self, attack: Any, **settings: Any) -> np.ndarray:
        return attack(
            self.target_N,
            self.loss_MxN,
            self.reference_member_MxN,
            covariate_NxK=self.covariate_Nx1,
            **settings,
        )

    def auc(self, attack: Any, **settings: Any) -> float:
        return float(stats.auc(self.score(attack, **settings), self.member_N).auc_T[0])


def draw_world(seed: int, slopes: float, beta: float, gap: float = 1.0) -> World:
    """Draws losses of 8 references and a target.

    Args:
      seed: seed.
      slopes: standard deviation of the slopes of the models in x, in standard deviations of a loss.
      beta: a sample is a member of the target with probability sigmoid(beta x).
      gap: mean difference between OUT and IN losses, in standard deviations of a loss.
    """
    rng, N = np.random.default_rng(seed), 3000
    x_N = rng.normal(size=N)
    share_9xN = np.stack([*np.full((8, N), 0.5), expit(beta * x_N)])
    member_9xN = rng.random((9, N)) < share_9xN
    sd_N = np.exp(rng.normal(-2, 0.3, N) + 0.5 * x_N)
    loss_9xN = rng.normal(3, 0.5, N) + 0.3 * x_N - gap * sd_N * member_9xN
    loss_9xN += sd_N * rng.normal(size=(9, N)) + rng.normal(0, slopes * sd_N.mean(), (9, 1)) * x_N
    return World(loss_9xN[8], loss_9xN[:8], member_9xN[:8], member_9xN[8], x_N[:, None])


SECTION_4 = {  # (slopes, beta): AUC of shrunk and of stacked
    (0.0, 3.0): (0.762, 0.764),
    (0.2, 0.0): (0.733, 0.738),
    (0.6, 3.0): (0.611, 0.609),
}


def mean_aucs(worlds: int, slopes: float, beta: float, gap: float = 1.0) -> np.ndarray:
    """Returns the mean AUC of shrunk and of stacked over worlds."""
    return np.mean(
        [
            [
                draw_world(world, slopes, beta, gap).auc(attack)
                for attack in (stats.shrunk_lira, stats.stacked_lira)
            ]
            for world in range(worlds)
        ],
        axis=0,
    )


def test_attacks_keep_members_that_depend_on_a_covariate():
    """If all of the target's effect is removed, the AUC is 0.63."""
    shrunk, stacked = mean_aucs(3, 0.0, 3.0)
    assert shrunk >= 0.74
    assert stacked >= 0.74
    shrunk, stacked = mean_aucs(2, 0.0, 3.0, gap=0.0)
    assert shrunk == pytest.approx(0.5, abs=0.03)
    assert stacked == pytest.approx(0.5, abs=0.03)


def test_offline_all_of_the_effect_is_removed():
    """OUT references show no gap, so nothing shows how much of the effect membership may explain."""
    world = draw_world(0, 0.0, 3.0)
    losses = world.target_N, world.loss_MxN, world.reference_member_MxN
    model = stats.fit_loss_model(*losses, covariate_NxK=world.covariate_Nx1, offline=True)
    assert np.isnan(model.target_z_TxP).all()
    assert not model.is_unusual_TxP.any()
    tilted = world.target_N + 0.5 * world.covariate_Nx1[:, 0]
    np.testing.assert_allclose(
        world.score(stats.shrunk_lira, offline=True),
        dataclasses.replace(world, target_N=tilted).score(stats.shrunk_lira, offline=True),
        atol=1e-8,
    )


@pytest.mark.montecarlo
@pytest.mark.parametrize(("slopes", "beta"), SECTION_4)
def test_aucs_of_members_that_depend_on_a_covariate(slopes: float, beta: float):
    """The standard error is about 0.002, and 0.006 in the last row; so it is for the expected values."""
    aucs = mean_aucs(30, slopes, beta)
    slack = 0.024 if slopes and beta else 0.009
    np.testing.assert_allclose(aucs, SECTION_4[slopes, beta], atol=slack)


@pytest.mark.montecarlo
@pytest.mark.parametrize(("slopes", "beta"), [(0.0, 3.0), (0.6, 0.0)])
def test_noise_has_an_auc_of_one_half(slopes: float, beta: float):
    """The standard error is about 0.003, so the difference is larger by a chance of 4e-5."""
    np.testing.assert_allclose(mean_aucs(15, slopes, beta, gap=0.0), 0.5, atol=0.0125)


def test_membership_that_depends_on_a_covariate_is_unusual():
    """Only in the covariate, and only for the targets whose membership does."""
    for beta in (0.0, 3.0):
        for seed in range(5):
            world = draw_world(seed, 0.02, beta)
            losses = world.target_N, world.loss_MxN, world.reference_member_MxN
            model = stats.fit_loss_model(*losses, covariate_NxK=world.covariate_Nx1)
            assert model.is_unusual_TxP.tolist() == [[False, False, beta > 0]]


def test_targets_with_few_or_no_losses_have_no_z():
    data = draw_losses(3, 8, 300, targets=3)
    target_TxN = data.target_TxN
    target_TxN[1] = np.nan
    target_TxN[2, 3:] = np.nan
    data.reference_MxN[:2] = np.nan  # as references that are left out are
    model = stats.fit_loss_model(*data.arguments, covariate_NxK=data.covariate_Nx1)
    assert np.isfinite(model.target_z_TxP).tolist() == [[False, True, True]] + 2 * [3 * [False]]
    assert model.z_freedom == 5
    assert not model.is_unusual_TxP[1:].any()
    without = stats.fit_loss_model(
        target_TxN,
        data.reference_MxN[2:],
        data.reference_member_MxN[2:],
        covariate_NxK=data.covariate_Nx1,
    )
    np.testing.assert_allclose(model.target_effect_TxP, without.target_effect_TxP, atol=1e-12)
