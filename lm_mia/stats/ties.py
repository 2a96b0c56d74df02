"""The order of tied scores in bounds on epsilon and conformal p-values: by keys that know nothing of the membership.

The position of a sample may reveal whether it is a member, for instance if a file has the members first, so tied scores
must not be ordered by it. To leave out all tied scores is valid, but it costs most of a bound if scores are coarse, as
losses in bfloat16 are. A key is a function of a seed and of the id of the sample alone. A private mechanism stays
private if such keys are added to its result, so the order by (score, key) is valid, and it leaves no ties.

Legend: N samples, J samples with a tied score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lm_mia import seeds
from lm_mia.stats.array_types import FloatArray, IntArray

_PURPOSE = "ties"


def as_ids(id_N: ArrayLike | None, samples: int, name: str = "id_N") -> np.ndarray:
    """Returns the ids of samples, uint64; by default their positions.

    Raises:
      ValueError: unless there is one integer, 0 or larger, per sample, and no two are equal: tied scores of samples
        with equal ids would be in the order of their positions.
    """
    if id_N is None:
        return np.arange(samples, dtype=np.uint64)
    ids = np.asarray(id_N)
    is_valid = ids.dtype.kind in "iu" and ids.shape == (samples,) and not (ids < 0).any()
    if not is_valid or np.unique(ids).size < samples:
        raise ValueError(
            f"{name}: must be one integer, 0 or larger, for each of {samples:,} samples, and no two may be equal; "
            "leave it out to use the positions"
        )
    return ids.astype(np.uint64)


def tie_keys(id_N: np.ndarray, seed: int) -> np.ndarray:
    """Returns key_N, uint64, of samples with these ids."""
    return seeds.keys(seed, _PURPOSE, id_N)


def order_with_keys(score_N: FloatArray, id_N: np.ndarray, seed: int) -> IntArray:
    """Returns the order of ascending scores, in which tied scores are in the order of their keys; NaN is last."""
    order_N = np.argsort(score_N)
    is_equal = score_N[order_N[1:]] == score_N[order_N[:-1]]
    is_tied_N = (
        np.append(is_equal, False) | np.append(False, is_equal) if score_N.size else is_equal
    )
    # Only the tied ones have to be sorted again, and usually these are few.
    tied_J = order_N[is_tied_N]
    key_J = tie_keys(id_N[tied_J], seed)
    order_N[is_tied_N] = tied_J[np.lexsort((key_J, score_N[tied_J]))]
    return order_N
