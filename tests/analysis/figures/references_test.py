"""Claims on the number of references."""

import numpy as np

from analysis.figures import references


def test_claims_with_few_references_are_not_tested():
    auc = {count: np.array([0.6, 0.61]) + count / 100 for count in (2, 4)}
    assert [claim.verdict for claim in references._fig01_claims(auc)] == ["not tested"] * 2
