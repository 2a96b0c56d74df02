"""Commands that are stopped by signals, and what the next ones make of what they leave."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = pytest.mark.usefixtures("_on_cpu")

STEPS = 800  # of a row: long enough to be met in the middle
LONG = ("--config.train.epochs=200", "--config.train.workers=2")


@pytest.fixture(scope="module")
def unbroken(tiny: tiny_run.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    w = tiny.population(tmp_path_factory.mktemp("unbroken"))
    process = tiny.start(tiny.argv("run", w, *LONG))
    said = process.communicate()[1]
    assert process.returncode == 0, said
    return w


def at_work(workdir: Path) -> dict[str, int]:
    """The rows of a workdir that are begun and not ended, and how far each is by the log."""
    ended = {*tiny_run.events(workdir, "row_trained")}
    steps = {e["row"]: e["step"] for e in tiny_run.logged(workdir, "train")}
    return {row: step for row, step in steps.items() if row not in ended}


def saved(workdir: Path, row: str) -> int:
    """The newest state of a row."""
    [folder] = workdir.glob(f"recipe_*/checkpoints/{row}")
    return max(int(p.name) for p in folder.iterdir())


def the_command(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def one_worker(pid: int) -> None:
    os.kill(tiny_run.workers_of(pid)[0], signal.SIGTERM)


def ctrl_c(pid: int) -> None:
    """As a terminal does it: to all processes of the group."""
    os.killpg(pid, signal.SIGINT)


def test_rows_stopped_in_the_middle_are_saved_and_go_on_bit_for_bit(
    tiny: tiny_run.Tiny, tmp_path: Path, unbroken: Path
):
    w = tiny.population(tmp_path / "w")
    cut: list[str] = []
    ways: list[tuple[Callable[[int], None], int]] = [
        (the_command, 143),
        (one_worker, 143),
        (ctrl_c, 130),
    ]
    for way, code in ways:
        seen = len(tiny_run.logged(w, "train"))
        process = tiny.start(tiny.argv("run", w, *LONG))
        # until a row is in its first half, by a step that this command made
        while not any(0 < e["step"] < STEPS // 2 for e in tiny_run.logged(w, "train")[seen:][-1:]):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
        below = tiny_run.workers_of(process.pid)
        assert len(below) == 2
        way(process.pid)
        said = process.communicate()[1]
        assert process.returncode == code, said
        assert said.splitlines()[-1] == "stopped; the same command goes on from here"
        assert "Traceback" not in said
        assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
        for row, step in at_work(w).items():
            assert step <= saved(w, row) <= STEPS
            cut += [row] if saved(w, row) < STEPS else []
    assert len(cut) >= len(ways)
    process = tiny.start(tiny.argv("run", w, *LONG))
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert tiny_run.scores(w) == tiny_run.scores(unbroken)
    resumed = [event for event in tiny_run.logged(w, "row_trained") if event["resumed_at"]]
    assert {event["row"] for event in resumed} >= set(cut)


def test_stopped_then_two_at_once_give_what_an_unbroken_run_gives(
    tiny: tiny_run.Tiny, tmp_path: Path
):
    """SIGTERM after the first row is trained leaves no process; two commands then share the rows that are left."""
    w = tmp_path / "w"
    process = tiny.start(tiny.argv("run", w, "--config.train.workers=2"))
    while not tiny_run.events(w, "row_trained"):
        assert process.poll() is None
        time.sleep(0.02)
    below = tiny_run.workers_of(process.pid)
    assert len(below) == 2
    process.terminate()
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 143
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    done = tiny_run.events(w, "row_trained")
    pair = [tiny.start(tiny.argv("run", w, "--config.train.workers=1")) for _ in range(2)]
    said = [each.communicate()[1] for each in pair]
    assert [each.returncode for each in pair] == [0, 0], said
    after, expected = (tiny_run.events(d, "row_trained") for d in (w, tiny.workdir))
    # A row that ended just before SIGTERM may be missing from the log, never from the store.
    assert len(after) == len(set(after))
    assert set(done) <= set(after) <= set(expected)
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)
    assert tiny_run.content(w / "population") == tiny_run.content(tiny.workdir / "population")
    for name in ("attacks.csv", "flip_shares.csv", "samples.parquet"):
        assert (w / "tables" / name).read_bytes() == (tiny.workdir / "tables" / name).read_bytes()
