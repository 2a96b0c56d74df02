"""Attacks with the losses of a base: their values, and that a base says nothing where nothing was learned."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import subset_designs as draw

from lm_mia import stats
from lm_mia.attacks import loss_arrays
from lm_mia.data.score_arrays import Losses


def losses(rng: np.random.Generator, samples: int, references: int, gap: float) -> Losses:
    """Returns losses of a target and of references, all fine-tuned from a base that knows how hard each sample is."""
    base_N = rng.gamma(9, 0.35, samples)
    member_MxN = draw.exact(rng, 1 + references, samples)
    loss_MxN = 0.8 * base_N - gap * member_MxN + rng.normal(0, 0.2, member_MxN.shape) + 1
    return Losses(loss_MxN[:1], member_MxN[:1], loss_MxN[1:], member_MxN[1:], base_loss_N=base_N)


def scores(found: Losses, attack: str) -> np.ndarray:
    design = loss_arrays.find_design(found, "losses")
    with ThreadPoolExecutor(1) as pool:
        return loss_arrays.score_attack(found, attack, design, pool)


def test_base_calibrated_is_the_difference_of_the_losses():
    found = losses(np.random.default_rng(0), 100, 0, 0.3)
    expected = found.base_loss_N - found.target_loss_TxN
    np.testing.assert_allclose(scores(found, "base_calibrated"), expected, rtol=1e-6)


def test_other_attacks_leave_the_base_out_and_shrunk_takes_it_as_a_covariate():
    with_base = losses(np.random.default_rng(0), 400, 6, 0.3)
    arrays = (with_base.target_loss_TxN, with_base.target_member_TxN)
    without = Losses(*arrays, with_base.reference_loss_MxN, with_base.reference_member_MxN)
    for attack in ("lira_online", "lira_offline", "rmia", "reference_calibrated", "loss"):
        np.testing.assert_array_equal(scores(with_base, attack), scores(without, attack))
    for attack in ("shrunk", "stacked"):
        assert (scores(with_base, attack) != scores(without, attack)).any()


def test_attacks_that_the_losses_allow():
    found = losses(np.random.default_rng(0), 400, 0, 0.3)
    design = loss_arrays.find_design(found, "losses")
    assert loss_arrays.attacks_on(found, design, is_random=True) == ["base_calibrated", "loss"]
    found = losses(np.random.default_rng(0), 400, 5, 0.3)
    attacks = loss_arrays.attacks_on(found, loss_arrays.find_design(found, "l"), is_random=True)
    assert attacks[0] == "stacked"
    assert sorted(attacks) == sorted({"base_calibrated", *loss_arrays.ATTACKS})


@pytest.mark.montecarlo
@pytest.mark.parametrize("attack", ["base_calibrated", "shrunk", "stacked"])
def test_noise_is_at_chance(attack: str):
    """Over 200 draws, AUC and TPR at 10 % of a base that is related to the losses, but not to membership."""
    fpr, samples, draws = 0.1, 400, 200
    values = []
    for seed in range(draws):
        found = losses(np.random.default_rng(seed), samples, 4, 0.0)
        score_TxN, member_N = scores(found, attack), found.target_member_TxN[0]
        tpr = stats.tpr_at_fpr(score_TxN[0], member_N, fprs=[fpr]).tpr_TxF[0, 0]
        values.append((stats.auc(score_TxN[0], member_N).auc_T[0], tpr))
    mean_2 = np.mean(values, axis=0)
    error_2 = np.std(values, axis=0, ddof=1) / np.sqrt(draws)
    expected_2 = np.array([0.5, 20 / 201])  # floor(fpr n) / (n + 1) of 200 non-members
    assert (np.abs(mean_2 - expected_2) < 4 * error_2).all()
    assert (error_2 < [0.003, 0.003]).all()
