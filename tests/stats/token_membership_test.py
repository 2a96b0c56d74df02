import numpy as np
import pytest

from lm_mia import stats


def test_by_hand():
    # IN models 0.5 and 2 against OUT models 1, 1 and 2.
    value_5x1 = [[0.5], [1.0], [2.0], [1.0], [2.0]]
    share_5 = stats.shares_of_out_below(value_5x1, [[True], [False], [True], [False], [False]])[
        :, 0
    ]
    assert share_5[[0, 2]].tolist() == pytest.approx([0, 2.5 / 3])
    assert np.isnan(share_5[[1, 3, 4]]).all()


def test_mean_over_in_models_is_the_auc():
    rng = np.random.default_rng(0)
    value_MxN = rng.normal(size=(9, 40)).round(1)  # with ties
    member_MxN = rng.random((9, 40)) < 0.5
    member_MxN[0], member_MxN[1] = True, False
    share_MxN = stats.shares_of_out_below(value_MxN, member_MxN)
    expected_N = stats.auc(value_MxN.T, member_MxN.T).auc_T
    assert np.nanmean(share_MxN, axis=0) == pytest.approx(expected_N)


def test_no_out_model_and_wrong_arguments():
    assert np.isnan(stats.shares_of_out_below([[1.0], [2.0]], [[True], [True]])).all()
    with pytest.raises(ValueError, match="match members"):
        stats.shares_of_out_below([[1.0]], [[True], [False]])
    with pytest.raises(ValueError, match="some are NaN"):
        stats.shares_of_out_below([[1.0], [np.nan]], [[True], [False]])
