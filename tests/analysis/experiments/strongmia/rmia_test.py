"""Claims on the gamma of RMIA."""

import numpy as np

from analysis.claims.jackknife import Jackknife
from analysis.experiments.strongmia import rmia


def test_claims_on_gamma_with_zero_tpr_are_not_tested():
    zero, low, high = (
        Jackknife.from_targets(np.reshape(tpr, (3, 1, 1)), "3 targets")
        for tpr in ([0.0, 0, 0], [0.1, 0.12, 0.11], [0.3, 0.29, 0.32])
    )
    verdicts = [rmia._lowered(*pair, 20, "TPR").verdict for pair in ((zero, low), (high, low))]
    assert verdicts == ["not tested", "supported"]
