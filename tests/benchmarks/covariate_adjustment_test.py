"""A small version of benchmarks/covariate_adjustment.py."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from lm_mia.audits.causal import ESTIMATORS

pytestmark = pytest.mark.montecarlo


def test_adjusted_audits_are_less_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    benchmark = importlib.import_module("covariate_adjustment")
    by_name = {name: (name, 600, *rest) for name, _, *rest in benchmark.SETTINGS}
    error_RxExS = np.array([benchmark.errors(by_name["curved"], r) for r in range(3)])
    size_ExS = np.abs(error_RxExS[:, :, :2].mean(axis=0))  # of the ATE and of the AUC
    unadjusted, aipw = ESTIMATORS.index("unadjusted"), ESTIMATORS.index("aipw")
    assert (size_ExS[aipw] < 0.5 * size_ExS[unadjusted]).all()
    # The models do not know about interactions, which the page on different sources says.
    error_ExS = np.mean([benchmark.errors(by_name["interaction"], r) for r in range(1)], axis=0)
    assert (error_ExS[:, 0] > 0.5).all()
