"""Commands that are stopped by signals, and commands that continue their work."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia import cli
from lm_mia.run import supervisor

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("_on_cpu")]

FIRST, OTHER = "reference-00", "reference-03"  # the first models of two workers


def newest_state(workdir: Path, model: str) -> int:
    """Returns the number of steps of the newest saved state of a model."""
    states = tiny_run.recipe_of(workdir) / "checkpoints" / model
    return max(int(path.name) for path in states.iterdir())


def stopped(
    tiny: tiny_run.Tiny,
    workdir: Path,
    models: Sequence[str],
    step: int,
    stop: Callable[[int], None],
    code: int,
) -> None:
    """Runs a command with one worker per model, and stops it once the log shows all models at the step."""
    argv = tiny.argv("run", workdir, f"--config.train.workers={len(models)}")
    process = tiny.start(argv, {"HOLD_STEP": str(step)})
    while not {(model, step - 1) for model in models} <= {
        (event["model"], event["step"]) for event in tiny_run.logged(workdir, "train")
    }:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    workers = tiny_run.workers_of(process.pid)
    assert len(workers) == len(models)
    stop(process.pid)
    stderr = process.communicate()[1]
    assert process.returncode == code, stderr
    assert stderr.splitlines()[-1] == "stopped; run the same command again to continue"
    assert "Traceback" not in stderr
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    assert [newest_state(workdir, model) for model in models] == [step] * len(models)


def one_worker(pid: int) -> None:
    os.kill(tiny_run.workers_of(pid)[0], signal.SIGTERM)


def ctrl_c(pid: int) -> None:
    """Sends SIGINT to all processes of the group, as a terminal does."""
    os.killpg(pid, signal.SIGINT)


def test_stopped_run_resumed_by_two_commands_is_bitwise_equal(tiny: tiny_run.Tiny, tmp_path: Path):
    """Models in training are saved at their current step, and no process is left.

    `multi_host_test` stops a command by SIGTERM to the command itself.
    """
    w = tmp_path / "w"
    stopped(tiny, w, [FIRST, OTHER], 1, one_worker, 143)
    stopped(tiny, w, [FIRST], 3, ctrl_c, 130)
    pair = [tiny.start(tiny.argv("train", w, "--config.train.workers=1")) for _ in range(2)]
    stderr = [each.communicate()[1] for each in pair]
    assert [each.returncode for each in pair] == [0, 0], stderr
    after, expected = (tiny_run.events(d, "model_trained") for d in (w, tiny.workdir))
    assert after == expected
    resumed = {event["model"]: event["resumed_at"] for event in tiny_run.logged(w, "model_trained")}
    assert {model: step for model, step in resumed.items() if step} == {FIRST: 3, OTHER: 1}
    with tiny_run.on_cpu() as patch:
        patch.setattr(supervisor, "run", tiny_run.run_in_process)
        for verb in ("score", "attack"):
            assert cli.main(tiny.argv(verb, w)) == 0
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)
    assert tiny_run.content(w / "populations") == tiny_run.content(tiny.workdir / "populations")
    for name in ("attacks.csv", "flip_shares.csv", "samples.parquet"):
        files = [tiny_run.recipe_of(d) / "tables" / name for d in (w, tiny.workdir)]
        assert files[0].read_bytes() == files[1].read_bytes()
