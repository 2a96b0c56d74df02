"""Whether one quantity of samples goes with another: a rank correlation with its interval, and means of bins."""

import dataclasses
import math
from typing import Self

import numpy as np
from scipy import stats

from lm_mia.stats import binomial, per_sample

_Z = float(stats.norm.ppf(0.975))


@dataclasses.dataclass(frozen=True)
class Trend:
    """Spearman's rank correlation of two quantities, with its 95 % interval over the choice of samples."""

    r: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of 0, otherwise 0: nothing can be said."""
        return int(self.low > 0) - int(self.high < 0)

    def __str__(self) -> str:
        return (
            f"rank correlation {_two(self.r)}, 95% interval {_two(self.low)} to {_two(self.high)}"
        )

    @classmethod
    def of(cls, x_N: np.ndarray, y_N: np.ndarray) -> Self | None:
        """The trend of numbers, of which some may be infinite; None if one of both is the same for all samples.

        Samples with a NaN are left out. The interval is Fisher's, with the deviation of Bonett and Wright (2000) for
        ranks; of three samples or fewer there is none.
        """
        there_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S = (stats.rankdata(v[there_N]) for v in (x_N, y_N))
        if len(x_S) <= 3 or np.ptp(x_S) == 0 or np.ptp(y_S) == 0:
            return None
        r = float(np.clip(np.corrcoef(x_S, y_S)[0, 1], -1, 1))
        far = _Z * math.sqrt((1 + r * r / 2) / (len(x_S) - 3))
        with np.errstate(divide="ignore"):
            z = np.arctanh(r)
        return cls(r, float(np.tanh(z - far)), float(np.tanh(z + far)))


@dataclasses.dataclass(frozen=True)
class Curve:
    """Means of y in bins of x with 95 % bands over the choice of samples; K bins of about equally many samples."""

    x_K: np.ndarray
    y_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    count_K: np.ndarray

    @classmethod
    def of(cls, x_N: np.ndarray, y_N: np.ndarray, bins: int) -> Self:
        """The curve of shares: Clopper-Pearson bands where every y is 0 or 1, normal ones otherwise.

        Samples with a NaN are left out; equal x stay together, so that bins may be fewer (`equal_count_bins`).
        """
        found = per_sample.equal_count_bins(x_N, y_N, bins)
        y_K, count_K = found.y_mean_K, found.count_K
        if np.isin(y_N[~np.isnan(y_N)], (0, 1)).all():
            low_K, high_K = binomial.clopper_pearson(np.rint(y_K * count_K), count_K)
        else:
            square_K = per_sample.equal_count_bins(x_N, y_N**2, bins).y_mean_K
            # the variance within a bin, over samples - 1; of one sample it is not known
            with np.errstate(divide="ignore", invalid="ignore"):
                variance_K = np.maximum(square_K - y_K**2, 0) / (count_K - 1)
            far_K = _Z * np.sqrt(variance_K)
            low_K, high_K = np.clip(y_K - far_K, 0, 1), np.clip(y_K + far_K, 0, 1)
        return cls(found.x_mean_K, y_K, low_K, high_K, count_K)


def _two(number: float) -> str:
    """Two digits, and no minus before a zero."""
    return f"{round(number, 2) + 0:.2f}".replace("-", "−")
