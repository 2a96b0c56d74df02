import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator

import jax
import pytest
from jax.experimental import multihost_utils

from lm_mia.run import preemption


@pytest.fixture(autouse=True)
def _handlers_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_exits_at_once_outside_training():
    stop = preemption.Stop()
    stop.install()
    with pytest.raises(SystemExit) as ended:
        ask()
    assert ended.value.code == 143


def test_sigterm_is_deferred_during_training():
    stop = preemption.Stop()
    stop.install()
    with stop.defer_sigterm() as should_stop:
        assert not should_stop(1)
        ask()
        assert should_stop(2)
        assert should_stop(3)
    assert stop.should_stop()
    ask()  # a second SIGTERM, from the command, has no effect while the process exits
    assert stop.should_stop()


def test_sigterm_during_a_garbage_collection_is_not_lost():
    """Python ignores exceptions of the garbage collector's callbacks."""
    stop = preemption.Stop()
    stop.install()

    def ask_once(*_: object) -> None:
        gc.callbacks.remove(ask_once)
        ask()

    gc.callbacks.append(ask_once)
    with pytest.raises(SystemExit) as ended:  # noqa: PT012
        gc.collect()
        time.sleep(5)
    assert ended.value.code == 143


def test_deferral_ends_if_training_fails():
    stop = preemption.Stop()
    stop.install()
    with pytest.raises(ZeroDivisionError), stop.defer_sigterm():
        raise ZeroDivisionError
    assert not stop.should_stop()
    with pytest.raises(SystemExit):
        ask()


def test_ctrl_c_is_ignored_by_workers():
    preemption.Stop().install()
    os.kill(os.getpid(), signal.SIGINT)  # would raise KeyboardInterrupt


def test_sync_points_of_a_job_only_increase(monkeypatch: pytest.MonkeyPatch):
    """They increase during and between models. A positive answer, which JAX gives only once, is kept."""
    numbers: list[int] = []

    def reached(number: int) -> bool:
        numbers.append(number)
        return len(numbers) == 5

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", reached)
    before = signal.getsignal(signal.SIGTERM)
    stop = preemption.Stop()
    stop.install()
    assert signal.getsignal(signal.SIGTERM) is before  # JAX's preemption service handles it
    with stop.defer_sigterm() as should_stop:
        assert [should_stop(1), should_stop(2)] == [False, False]
    assert not stop.should_stop()
    with stop.defer_sigterm() as should_stop:
        assert [should_stop(1), should_stop(2), should_stop(3)] == [False, True, True]
    assert stop.should_stop()
    assert len(numbers) == 7
    assert all(a < b for a, b in itertools.pairwise(numbers))
