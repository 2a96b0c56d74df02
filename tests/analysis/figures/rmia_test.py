"""RMIA by gamma."""

import numpy as np

from analysis.figures import rmia


def test_gamma_lowers_nothing_from_0():
    none, some, more = np.zeros(3), np.array([0.1, 0.12, 0.11]), np.array([0.3, 0.29, 0.32])
    verdicts = [rmia._lowered(*pair, 20, "TPR").verdict for pair in ((none, some), (more, some))]
    assert verdicts == ["not tested", "seen"]
