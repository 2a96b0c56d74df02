import numpy as np
import pytest

from lm_mia.stats.baselines import loss_attack, reference_calibrated, zlib_ratio


def test_loss_by_hand():
    np.testing.assert_array_equal(
        loss_attack([[1.0, 2.0], [np.nan, 0.5]]), [[-1, -2], [np.nan, -0.5]]
    )
    assert loss_attack(np.array([1, 2, 3], np.float32)).shape == (1, 3)
    assert loss_attack(np.array([1], np.float32)).dtype == np.float64


def test_reference_calibrated_by_hand():
    score = reference_calibrated([[1.0, 5.0, 1.0]], [[2.0, 4.0, np.nan], [4.0, np.nan, np.nan]])
    np.testing.assert_array_equal(score, [[2.0, -1.0, np.nan]])


def test_reference_calibrated_against_nanmean():
    rng = np.random.default_rng(0)
    target_TxN, reference_MxN = rng.normal(3, 1, (5, 40)), rng.normal(3, 1, (9, 40))
    reference_MxN[rng.random((9, 40)) < 0.2] = np.nan
    want = np.nanmean(reference_MxN, axis=0) - target_TxN
    np.testing.assert_allclose(reference_calibrated(target_TxN, reference_MxN), want, atol=1e-12)
    np.testing.assert_allclose(
        reference_calibrated(target_TxN, reference_MxN[rng.permutation(9)]), want, atol=1e-12
    )
    np.testing.assert_allclose(
        reference_calibrated(target_TxN + 1e6, reference_MxN + 1e6), want, atol=1e-8
    )


def test_float32_references_are_averaged_in_float64():
    reference_MxN = np.array([[16777216], [1], [1]], np.float32)
    np.testing.assert_allclose(reference_calibrated([[0.0]], reference_MxN), [[16777218 / 3]])


def test_zlib_by_hand():
    score = zlib_ratio([[2.0, 3.0, 1.0]], [100, 300, np.nan])
    np.testing.assert_array_equal(score, [[-0.02, -0.01, np.nan]])


def test_zlib_ranks_low_loss_for_its_size_first():
    # Equal losses: the text that compresses worst should have been hardest, so it looks memorised.
    assert np.argmax(zlib_ratio([[2.0, 2.0]], [50, 500])) == 1
    assert np.argmax(zlib_ratio([[2.0, 1.0]], [50, 50])) == 1


def test_no_samples():
    assert reference_calibrated(np.empty((2, 0)), np.empty((3, 0))).shape == (2, 0)
    assert np.isnan(reference_calibrated([[1.0]], np.empty((0, 1)))).all()


def test_bad_arguments():
    with pytest.raises(ValueError, match="finite"):
        reference_calibrated([[1.0]], [[np.inf]])
    with pytest.raises(ValueError, match="same samples"):
        reference_calibrated([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="1 or more"):
        zlib_ratio([[1.0]], [0])
    with pytest.raises(ValueError, match="one size"):
        zlib_ratio([[1.0]], [[1], [2]])
