"""Points of ROC curves and bins of histograms for the tables of an audit.

Legend: S samples with a score, K points of a curve, B bins of a histogram.
"""

import numpy as np
import pandas as pd

_POINTS = 200
_BINS = 60


def roc_points(
    fpr_K: np.ndarray, tpr_K: np.ndarray, threshold_K: np.ndarray, nonmembers: int
) -> pd.DataFrame:
    """Returns at most a few hundred points of a ROC curve: fpr, tpr and threshold.

    Half of them are equally spaced on a logarithmic axis, whose first rate is 1 / (number of non-members).
    """
    wanted = np.union1d(np.geomspace(1 / nonmembers, 1, _POINTS), np.linspace(0, 1, _POINTS))
    # The last vertex of each rate, at which the TPR is highest.
    at = np.unique(np.searchsorted(fpr_K, wanted, side="right") - 1)
    return pd.DataFrame({"fpr": fpr_K[at], "tpr": tpr_K[at], "threshold": threshold_K[at]})


def histogram(
    value_S: np.ndarray, member_S: np.ndarray, weight_S: np.ndarray | None = None
) -> pd.DataFrame:
    """Returns low, high, members and nonmembers of each bin; the first and the last include all values beyond.

    Args:
      value_S: the values.
      member_S: booleans.
      weight_S: weights; adds the column nonmembers_weighted, the share of the weight of non-members in each bin.
    """
    edge_B1 = bin_edges(value_S)
    clipped_S = np.clip(value_S, edge_B1[0], edge_B1[-1])
    bins = pd.DataFrame({"low": edge_B1[:-1], "high": edge_B1[1:]})
    bins["members"] = np.histogram(clipped_S[member_S], edge_B1)[0]
    bins["nonmembers"] = np.histogram(clipped_S[~member_S], edge_B1)[0]
    if weight_S is not None:
        weight = np.histogram(clipped_S[~member_S], edge_B1, weights=weight_S[~member_S])[0]
        bins["nonmembers_weighted"] = weight / weight.sum()
    return bins


def bin_edges(value_S: np.ndarray) -> np.ndarray:
    """Returns edge_B1, float64, of equal bins that cover all values but 0.5% at each end.

    Unlike those of NumPy, bins may be narrower than the precision of the values, or as wide as all numbers.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.quantile(value_S, [0.005, 0.995])
    if not low < high:
        low, high = value_S.min(), value_S.max()
    if low == high:
        low, high = low - 0.5, high + 0.5
    share_B1 = np.linspace(0, 1, _BINS + 1)
    return np.maximum.accumulate(low * (1 - share_B1) + high * share_B1)
