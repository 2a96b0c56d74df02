"""Groups of devices that make models side by side, on this machine's CPUs."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia.data import subsets
from lm_mia.store.store import Store

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("_on_cpu")]

KILLED = "reference-00"


@pytest.mark.slow
def test_no_group_waits_for_another_and_a_killed_one_is_replaced(
    tiny: tiny_run.Tiny, tmp_path: Path
):
    """Two groups of two devices. One is held in its first model, and killed when the other has made all other models.

    The losses are those of one device per model, up to rounding.
    """
    w, release = tiny.population(tmp_path / "w"), tmp_path / "release"
    hold = {"HOLD_MODEL": KILLED, "HOLD_STEP": "2", "HOLD_RELEASE": str(release)}
    argv = tiny.argv("run", w, "--config.compute.devices_per_model=2")
    process = tiny.start(argv, {"JAX_NUM_CPU_DEVICES": "4"} | hold)
    models = subsets.requested_seeds(4, 2)
    others = sorted(str(model) for model in models if str(model) != KILLED)
    while tiny_run.events(w, "model_scored") != others:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    [held] = [e["index"] for e in tiny_run.logged(w, "model_started") if e["model"] == KILLED]
    workers = sorted(tiny_run.workers_of(process.pid))  # in the order in which they were started
    assert len(workers) == 2
    os.kill(workers[held], signal.SIGKILL)
    release.touch()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert f"worker {held}: cpu (cpu), 2 devices" in out + err
    [lost] = tiny_run.logged(w, "worker_lost")
    assert (lost["index"], lost["exit_code"], lost["left"]) == (held, -signal.SIGKILL, 1)
    assert all(map(tiny_run.has_ended, workers))
    [again] = [e for e in tiny_run.logged(w, "model_scored") if e["model"] == KILLED]
    assert again["index"] == 1 - held
    losses = [
        Store(tiny_run.recipe_of(path) / "scores.zarr").read(models)[0]
        for path in (w, tiny.workdir)
    ]
    np.testing.assert_allclose(*losses, rtol=2e-5)
    assert not np.array_equal(losses[0], losses[1])  # two devices add in another order
