"""The attacks stage as a whole."""

import dataclasses
from pathlib import Path

import pytest
import threadpoolctl
from synthetic_scores import SMALL, run_attacks, write_scores

from lm_mia.attacks import experiment


def blas_threads() -> set[int]:
    libraries = threadpoolctl.threadpool_info()
    return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}


def test_blas_has_one_thread_during_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    during, evaluate = [], experiment.evaluate

    def spy(*args):
        during.append(blas_threads())
        return evaluate(*args)

    monkeypatch.setattr(experiment, "evaluate", spy)
    c = dataclasses.replace(SMALL, attacks=("lira_online",), bootstraps=0)
    scores = write_scores(tmp_path, c, 200)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        run_attacks(scores, c, tmp_path / "tables")
        assert blas_threads() == {2}
    assert during == [{1}, {1}]  # replicas and targets
