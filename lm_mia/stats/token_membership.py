"""How well single tokens tell the models that were trained on a sample from those that were not.

M: models, N: tokens, or other quantities that each model has.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64, as_members


def shares_of_out_below(value_MxN: ArrayLike, member_MxN: ArrayLike) -> FloatArray:
    """Computes which share of the OUT models has a smaller value than each IN model.

    The mean of these shares over the IN models is the AUC with which the value tells IN from OUT models (the statistic
    of Mann and Whitney). Since each IN model has a share of its own, means over parts of the models, such as those that
    saw a sample late, can be compared.

    Args:
      value_MxN: a number of each model, larger for members, such as the log-probability of a token.
      member_MxN: booleans, whether each model was trained on the sample of the token.

    Returns:
      share_MxN, from 0 to 1; OUT models with an equal value count half. NaN for OUT models, and for IN models if there
      is no OUT model.

    Raises:
      ValueError: if the shapes differ, or if a value is NaN.

    Source: Hanley and Hajian-Tilaki (1997), Sampling variability of nonparametric estimates of the areas under ROC
    curves, who call these shares placement values.

    Example:
      >>> from lm_mia.stats import shares_of_out_below
      >>> value_4x1 = [[3.0], [1.0], [2.0], [1.0]]
      >>> shares_of_out_below(value_4x1, [[True], [True], [False], [False]]).T
      array([[1.  , 0.25,  nan,  nan]])
    """
    value_MxN, member_MxN = as_float64(value_MxN, "values"), as_members(member_MxN)
    if value_MxN.shape != member_MxN.shape or value_MxN.ndim != 2:
        raise ValueError(
            f"values of shape {value_MxN.shape} do not match members of shape {member_MxN.shape}"
        )
    if np.isnan(value_MxN).any():
        raise ValueError("values: some are NaN; leave out their tokens")
    # The rank among all models counts smaller IN and OUT models; that among the IN models only the former.
    rank_MxN = scipy.stats.rankdata(value_MxN, axis=0)
    rank_in_MxN = scipy.stats.rankdata(np.where(member_MxN, value_MxN, np.inf), axis=0)
    out_N = (~member_MxN).sum(axis=0)
    share_MxN = (rank_MxN - rank_in_MxN) / np.where(out_N > 0, out_N, np.nan)
    return np.where(member_MxN, share_MxN, np.nan)
