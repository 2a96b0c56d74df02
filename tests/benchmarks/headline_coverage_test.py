"""The simulated numbers of benchmarks/headline_coverage.py, against those of lm_mia.stats, and a small simulation."""

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_mia import stats


@pytest.fixture(scope="module")
def coverage() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("headline_coverage")


@pytest.fixture
def no_truth(coverage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the expectations, from millions of scores, for tests that compare only the numbers of a round."""
    monkeypatch.setattr(coverage, "_truth", lambda *_: {})


@pytest.mark.usefixtures("no_truth")
@pytest.mark.parametrize("are_replicas", [False, True])
@pytest.mark.parametrize("trainings", [1, 2, 5])
def test_numbers_are_those_of_the_package(coverage: Any, are_replicas: bool, trainings: int):
    if are_replicas and trainings == 1:
        pytest.skip("one replica has no pairs")
    setting = coverage.Setting(
        trainings, 100, 0.1, 0.4, noise="t, 4 df", shift=0.2, are_replicas=are_replicas
    )
    draws = coverage.draw(setting, coverage.gap_of(setting), 3, np.random.default_rng(0))
    auc_KxExTxH1, found_KxExTxTxH1 = coverage.rates(setting, draws)
    numbers = coverage.numbers_of(
        setting, auc_KxExTxH1, found_KxExTxTxH1, 1.0, np.random.default_rng(0)
    )
    member_N2 = np.arange(200) < 100
    score_TxN2, group_TxN2 = draws.score_KxExTxN2[1, 2], draws.group_ExTxN2[2]
    for t in range(trainings):
        points = stats.tpr_at_fpr(score_TxN2[t], member_N2, [0.1])
        auc_1xH, tpr_1xHx1 = stats.rates_of_halves(score_TxN2[t], member_N2, group_TxN2[t], [0.1])
        expected_H1 = np.r_[points.auc_T, auc_1xH[0]]
        np.testing.assert_allclose(numbers.rate_KxExTxH1["AUC"][1, 2, t], expected_H1, rtol=1e-6)
        expected_H1 = np.r_[points.tpr_TxF[0], tpr_1xHx1[0, :, 0]]
        np.testing.assert_allclose(numbers.rate_KxExTxH1["TPR"][1, 2, t], expected_H1, rtol=1e-6)
    if trainings == 5 and are_replicas:
        metrics = stats.decision_metrics(score_TxN2, member_N2, group_TxN2[0], [0.1], 0)
        for name, value_A1xH1 in (
            ("TPR", metrics.tpr_A1xH1xF[..., 0]),
            ("AUC", metrics.auc_A1xH1),
            (
                "missed",
                stats.missed_share(
                    metrics.member_flip_rate_A1xH1xF[..., 0], metrics.tpr_A1xH1xF[..., 0]
                ),
            ),
        ):
            np.testing.assert_allclose(numbers.value_KxExA1xH1[name][1, 2], value_A1xH1, rtol=1e-5)


@pytest.mark.parametrize("noise", ["normal", "t, 4 df", "log-normal"])
def test_gap_gives_the_tpr(coverage: Any, noise: str):
    setting = coverage.Setting(1, 40_000, 0.05, 0.4, noise=noise, exposed=0.7)
    gap = coverage.gap_of(setting)
    draws = coverage.draw(setting, gap, 2, np.random.default_rng(3))
    scores = draws.score_KxExTxN2[:, 0, 0]
    points = stats.tpr_at_fpr(scores, np.arange(80_000) < 40_000, [0.05])
    np.testing.assert_allclose(points.tpr_TxF, 0.4, atol=0.02)
    assert scores[:, 40_000:].var() == pytest.approx(1, abs=0.1)
    # The two attacks share four fifths of their noise.
    assert np.corrcoef(scores[:, 40_000:])[0, 1] == pytest.approx(0.8, abs=0.03)


@pytest.mark.usefixtures("no_truth")
def test_the_two_way_bootstrap_draws_the_rates_of_the_paper(coverage: Any):
    """With many samples, resampled rates are close to the observed ones."""
    setting = coverage.Setting(3, 20_000, 0.05, 0.4, are_replicas=True)
    draws = coverage.draw(setting, coverage.gap_of(setting), 1, np.random.default_rng(0))
    numbers = coverage.numbers_of(
        setting, *coverage.rates(setting, draws), 1.0, np.random.default_rng(0)
    )
    resampled = coverage.two_way_bootstrap(
        draws.score_KxExTxN2[0, 0], 0.05, 5, np.random.default_rng(1)
    )
    for name, value_R in zip(("TPR", "missed"), resampled, strict=True):
        expected = numbers.value_KxExA1xH1[name][0, 0, 0, 0]
        np.testing.assert_allclose(value_R, expected, atol=0.03)


@pytest.mark.montecarlo
def test_intervals_cover(coverage: Any, monkeypatch: pytest.MonkeyPatch):
    """Of 150 intervals with a coverage of 95%, 132 or fewer cover with a probability of 1/1,000."""
    # The error of the expectations is still below a hundredth of the width of an interval.
    monkeypatch.setattr(coverage, "_SCORES_OF_TRUTH", 2**21)
    for setting in (
        coverage.ONE[4],
        dataclasses.replace(coverage.ONE[4], trainings=5, are_replicas=True),
    ):
        _, coverages, differs = coverage.evaluate(setting, 150)
        for name in ("TPR", "AUC", *(["missed"] if setting.are_replicas else [])):
            assert coverages["Logit scale", name].covered > 132 / 150
        assert max(differs.values()) < 0.12
