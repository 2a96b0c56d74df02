"""Models that are sharded over the devices of several processes on this machine, which are also stopped and killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia.config import load
from lm_mia.data import subsets
from lm_mia.store.store import Store

__all__ = ["_on_cpu", "tiny"]  # fixtures
# SLURM runs jobs of two processes, also killed ones, and tests/train/sharding_test.py several devices.
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("_on_cpu")]

POINTS, STEPS = (3, 6), 8
KILLED, STOPPED = "reference-01", "reference-03"
FLAGS = (
    "--config.population.length_tokens=24",
    "--config.tokenizer.vocab_size=70",
    "--config.train.epochs=2",
    f"--config.score.at_steps={','.join(map(str, POINTS))}",
    "--config.score.statistics=min_k",
    "--config.score.token_samples=3,17",
)


def ended(job: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Returns the exit code and the output of each process of a job, which must all end by themselves."""
    output = [process.communicate() for process in job]
    return [(process.returncode, "".join(text)) for process, text in zip(job, output, strict=True)]


def stores(workdir: Path) -> list[Store]:
    """Returns the scores at every score point and at the end."""
    path = tiny_run.recipe_of(workdir) / "scores.zarr"
    return [Store(path, ("min_k",), POINTS, STEPS, step) for step in (*POINTS, 0)]


@pytest.fixture(scope="module")
def texts(tiny: tiny_run.Tiny, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns texts of all lengths, so that packed sequences contain several samples."""
    folder = tmp_path_factory.mktemp("texts")
    for i, path in enumerate(sorted((tiny.folder / "texts").glob("*.txt"))):
        (folder / path.name).write_text(path.read_text()[: 4 + 3 * (i % 20)])
    return f"--config.corpus.path={folder}"


@pytest.fixture(scope="module")
def flags(texts: str) -> tuple[str, ...]:
    return (*FLAGS, texts, "--config.corpus.min_chars=1", "--config.corpus.deduplicate=none")


@pytest.fixture(scope="module")
def uninterrupted(
    tiny: tiny_run.Tiny, flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Two processes with two devices each make the corpus, the models and the tables."""
    w = tmp_path_factory.mktemp("uninterrupted") / "w"
    (code, output), (other_code, other_output) = ended(tiny.start_job(w, 2, 2, *flags))
    assert (code, other_code) == (0, 0), output + other_output
    assert "worker 0: cpu (cpu), 4 devices in 2 processes" in output
    assert "  attack  " in output
    assert "  attack  " not in other_output  # one of them makes the tables
    return w


def test_two_processes_with_two_devices_equal_one_device(
    tiny: tiny_run.Tiny, flags: tuple[str, ...], uninterrupted: Path, tmp_path: Path
):
    """The reference is this process, which makes models as a worker with one device does."""
    w, models, events = (
        tmp_path / "w",
        subsets.requested_seeds(4, 2),
        {"train": [], "model_scored": []},
    )
    shutil.copytree(uninterrupted, w, ignore=shutil.ignore_patterns("checkpoints", "tables"))
    recipe = tiny_run.recipe_of(w)
    for name in tiny_run.scores(w):
        (recipe / "scores.zarr" / name).unlink()
    c = load.load_config(tiny.config, list(flags))
    report = lambda e: events.setdefault(e["event"], []).append(e)  # noqa: E731
    tiny_run.work("run", c, w, report)
    for actual, expected in zip(stores(w), stores(uninterrupted), strict=True):
        for variable in ("loss", "min_k"):
            [(_, a)] = actual.blocks({"values": (variable, models)})
            [(_, b)] = expected.blocks({"values": (variable, models)})
            np.testing.assert_allclose(a["values"], b["values"], rtol=2e-5)
        np.testing.assert_array_equal(actual.read(models)[1], expected.read(models)[1])
    end, first = stores(w)[-1].read(models)[0], stores(w)[0].read(models)[0]
    assert np.abs(end / first - 1).max() > 0.05
    for name in ("model_started", "model_trained"):
        assert tiny_run.events(uninterrupted, name) == sorted(map(str, models))
    for kind, keys in (
        ("train", ("loss_nats", "gradient_norm")),
        ("model_scored", ("member_loss_nats",)),
    ):
        actual_and_expected = [
            sorted((e["model"], e["step"], *(e[key] for key in keys)) for e in logged)
            for logged in (events[kind], tiny_run.logged(uninterrupted, kind))
        ]
        assert [e[:2] for e in actual_and_expected[0]] == [e[:2] for e in actual_and_expected[1]]
        assert len(actual_and_expected[0]) == 6 * (STEPS if kind == "train" else len(POINTS) + 1)
        np.testing.assert_allclose(
            *([e[2:] for e in logged] for logged in actual_and_expected), rtol=1e-4
        )
    shares = [
        np.mean([event["padding_share"] for event in logged])
        for logged in (events["train"], tiny_run.logged(uninterrupted, "train"))
    ]
    assert 0 < shares[0] < shares[1] < 0.9  # packed; more devices have more empty packed sequences


def started(workdir: Path, job: list[subprocess.Popen[str]], model: str, step: int) -> list[int]:
    """Waits until the log shows that a model is held at a step; returns the worker of every process."""
    while not any(
        e["model"] == model and e["step"] == step - 1 for e in tiny_run.logged(workdir, "train")
    ):
        assert all(process.poll() is None for process in job), ended(job)
        time.sleep(0.02)
    below = [tiny_run.workers_of(process.pid) for process in job]
    assert [len(workers) for workers in below] == [1, 1]
    return [workers[0] for workers in below]


def fingerprint(workdir: Path, model: str, step: int) -> str:
    """Returns the stored 32-bit checksums of the parameters and the moments of a saved state."""
    state = tiny_run.recipe_of(workdir) / "checkpoints" / model / str(step)
    file = state / "fingerprint" / "metadata"
    assert set(json.loads(file.read_text())) == {"params", "opt_state"}
    return file.read_text()


@pytest.mark.slow
def test_killed_and_stopped_job_resumes_bitwise_equal(
    tiny: tiny_run.Tiny, flags: tuple[str, ...], uninterrupted: Path, tmp_path: Path
):
    """Two models of the uninterrupted job are made again: one is killed at step 5, the other is stopped at step 6."""
    w, release = tmp_path / "w", tmp_path / "release"
    missing = shutil.ignore_patterns(KILLED, STOPPED, "metrics", "tables")
    shutil.copytree(uninterrupted, w, ignore=missing)
    store = tiny_run.recipe_of(w) / "scores.zarr"
    for number in (1, 3):
        for shards in store.glob(f"*/c/{number}"):
            if shards.is_dir():
                shutil.rmtree(shards)
            else:
                shards.unlink()  # the digest of the model

    hold = {"HOLD_MODEL": KILLED, "HOLD_STEP": "5", "HOLD_RELEASE": str(release)}
    job = tiny.start_job(w, 2, 2, *flags, environment=hold)
    workers = started(w, job, KILLED, 5)
    job[0].kill()
    # The worker of the killed command has no process to report to, and exits without waiting for the others.
    release.touch()
    (code, _), (other_code, output) = ended(job)
    assert code == -signal.SIGKILL
    assert other_code in (1, 2), output
    while not all(map(tiny_run.has_ended, workers)):
        time.sleep(0.02)

    hold = {"HOLD_MODEL": STOPPED, "HOLD_STEP": "6"}
    job = tiny.start_job(w, 2, 2, *flags, environment=hold)
    workers = started(w, job, STOPPED, 6)
    os.kill(job[1].pid, signal.SIGTERM)
    for code, output in ended(job):
        assert code == 143, output
        assert output.splitlines()[-1].startswith("stopped; ")
    assert all(map(tiny_run.has_ended, workers))

    [trained] = tiny_run.logged(w, "model_trained")
    assert (trained["model"], trained["resumed_at"]) == (KILLED, POINTS[0])  # saved before the kill
    assert fingerprint(w, KILLED, STEPS) == fingerprint(uninterrupted, KILLED, STEPS)
    actual, expected = tiny_run.scores(w), tiny_run.scores(uninterrupted)
    assert actual == {name: content for name, content in expected.items() if "/c/3/" not in name}
    # The state was saved at the step of the stop, which is a score point of the uninterrupted job.
    states = tiny_run.recipe_of(w) / "checkpoints" / STOPPED
    assert sorted(path.name for path in states.iterdir()) == ["3", "6"]
    assert fingerprint(w, STOPPED, 6) == fingerprint(uninterrupted, STOPPED, 6)
    assert fingerprint(w, STOPPED, 6) != fingerprint(uninterrupted, KILLED, 6)
