"""Sets of references for the other question: would a decision survive other references?

Flip rates usually hold the references fixed and vary the target. Here the target is fixed and every
set of references is a replica: score the target with each set, calibrate a threshold on its
non-members for each, and give the scores, one row a set, to `lm_mia.stats.flips.votes`.

Shapes: S sets of R references each, as indices of rows. StrongMIA Appendix E.2.8.
"""

import numpy as np
from numpy.typing import NDArray


def disjoint_sets(references: int, size: int) -> NDArray[np.int64]:
    """As many sets as there are without a common reference, in the order of the references.

    Models of different subset seeds are independent draws, so these sets are too, and so are a
    sample's decisions given the target: the exact test of `lm_mia.stats.binomial` and its
    coin-flip cutoff apply with B = S. Under the balanced design, where references 2i and 2i + 1
    complement each other, this takes sets of an even size, which split no pair. Few sets give
    little power: below 6 nothing can be told from a coin at alpha = 0.05.

    Args:
      references: how many there are.
      size: references a set, 1 or more.

    Returns:
      index_SxR with S = references // size; what is left over is in no set.

    Raises:
      ValueError: size outside 1 to references.

    Source: StrongMIA Appendix E.2.8.
    """
    _check_size(references, size)
    sets = references // size
    return np.arange(sets * size, dtype=np.int64).reshape(sets, size)


def subsampled_sets(
    references: int, size: int, sets: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Sets drawn from one pool, each without replacement: they overlap and are dependent.

    The votes of such sets are not independent draws. Flip rates over them say how much the choice
    among these references matters, and understate that of references trained anew; the exact test
    of `lm_mia.stats.binomial` does not hold, and its coin-flip cutoff is a mark on the scale, no
    more: descriptive. Label results as such.

    Args:
      references: size of the pool.
      size: references a set, 1 or more; at references all sets are the same.
      sets: how many to draw, 1 or more.
      rng: source of the draws.

    Returns:
      index_SxR, rising within each set.

    Raises:
      ValueError: size outside 1 to references, or sets below 1.

    Source: StrongMIA Appendix E.2.8, its last resort.
    """
    _check_size(references, size)
    if sets < 1:
        raise ValueError(f"sets={sets}: must be 1 or more")
    drawn = [np.sort(rng.choice(references, size, replace=False)) for _ in range(sets)]
    return np.array(drawn, dtype=np.int64)


def _check_size(references: int, size: int) -> None:
    if not 1 <= size <= references:
        raise ValueError(f"size={size}: must be from 1 to references={references}")
