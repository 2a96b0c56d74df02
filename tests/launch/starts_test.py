import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from slow_case import slow_case
from slurm_cluster import Cluster
from tiny_run import tiny

from launch import model_block, slurm, starts
from launch.slurm import SlurmOptions
from lm_mia.errors import SIGTERM_EXIT_CODE
from lm_mia.run import inventory, pipeline
from lm_mia.run.sweep import Sweep, read_sweep

__all__ = ["tiny"]  # a fixture

KILLED = 137


def test_starts_without_progress_are_counted_in_a_row(tmp_path: Path):
    path = tmp_path / "logs" / "job.starts.json"
    first, second = {"reference-0": [0, 0]}, {"reference-0": [10, 0]}
    counts = [starts.count(path, now) for now in (first, first, first, second, second, {})]
    assert counts == [0, 1, 2, 0, 1, 0]
    before = path.read_text()
    starts.count(path, {})
    assert path.read_text() != before  # by which the script of a job notices the start
    path.write_text("{")
    assert starts.count(path, {}) == 0


@dataclasses.dataclass
class Simulation:
    """A model of 158 hours, in jobs that end after 4 hours, with the clock in hours."""

    sweep: Sweep
    saves_every_hours: float
    """Time between checkpoints."""
    saves_when_stopped: bool
    """Whether a job saves at its limit; otherwise it is killed."""
    clock: float = 0.0
    needed_hours: float = 158.0
    limit_hours: float = 4.0
    compile_hours: float = 0.1

    @property
    def checkpoints(self) -> Path:
        recipe = self.sweep.recipes[0]
        return inventory.checkpoint_dir(recipe.folder, recipe.models[0])

    def saved_minutes(self) -> int:
        return max((int(path.name) for path in self.checkpoints.glob("*")), default=0)

    def missing_models(self, verb: str, c: Any, recipe_dir: Path, models: list[Any]) -> list[Any]:
        is_done = self.saved_minutes() >= 60 * self.needed_hours
        return [] if is_done else list(models)

    def make_models(self, *_: Any, **__: Any) -> bool:
        """Trains until the model is finished, or the job reaches its limit."""
        done = self.saved_minutes() / 60
        hours = min(self.needed_hours - done, self.limit_hours - self.compile_hours)
        self.clock += self.compile_hours + hours
        is_finished = done + hours >= self.needed_hours
        if not (is_finished or self.saves_when_stopped):
            hours -= hours % self.saves_every_hours
        if hours:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            (self.checkpoints / f"{round(60 * (done + hours))}").mkdir()
        if is_finished:
            return True
        if self.saves_when_stopped:
            raise SystemExit(SIGTERM_EXIT_CODE)
        raise KilledError


class KilledError(BaseException):
    pass


@pytest.fixture
def simulate(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Simulation, int, int]]:
    """Returns a function that runs a simulation to its end: the simulation, its starts, and the last exit code.

    The script of the job decides whether it is requeued; what srun would run is simulated.
    """
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ())
    cluster = Cluster(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    logs, counted = workdir / "logs", workdir / "logs" / "17_0.starts.json"
    text = slurm.script("lm", ["python"], [0], 1, 1, logs, tmp_path, SlurmOptions("4:00:00"))

    def run(saves_every_hours: float, saves_when_stopped: bool) -> tuple[Simulation, int, int]:
        simulation = Simulation(sweep, saves_every_hours, saves_when_stopped)
        monkeypatch.setattr(inventory, "missing_models", simulation.missing_models)
        monkeypatch.setattr(pipeline, "make_models", simulation.make_models)
        for restarts in range(1000):
            before = counted.read_text() if counted.exists() else None
            try:
                code = model_block.run(sweep, sweep.recipes[0], "0:1", "17_0")
            except SystemExit as error:
                code = int(str(error))
            except KilledError:
                code = KILLED
            after = tmp_path / "after.json"
            after.unlink(missing_ok=True)
            if counted.exists():
                counted.rename(after)
            if before is not None:
                counted.write_text(before)
            cluster.forget("scontrol")
            job = f"cp '{after}' '{counted}'" if after.exists() else f"rm -f '{counted}'"
            ended = cluster.run(text, code, restarts=str(restarts or ""), job=job)
            if not cluster.called("scontrol"):
                return simulation, restarts + 1, ended
        pytest.fail("the job is requeued without end")

    return run


@pytest.mark.process
@pytest.mark.parametrize("saves_when_stopped", [True, slow_case(False)])
def test_model_of_158_hours_is_finished_by_jobs_of_4_hours(
    simulate: Callable[..., tuple[Simulation, int, int]], saves_when_stopped: bool
):
    """Whether jobs save when they reach their limit, or are killed and lose the time since the last checkpoint."""
    simulation, number, code = simulate(1 / 6, saves_when_stopped)
    assert code == 0
    assert simulation.saved_minutes() == 60 * 158
    assert number == 41 if saves_when_stopped else 41 <= number <= 43
    assert 158 < simulation.clock < 175


@pytest.mark.process
def test_job_that_never_saves_gives_up(simulate: Callable[..., tuple[Simulation, int, int]]):
    simulation, number, code = simulate(5, saves_when_stopped=False)
    assert (number, code) == (1 + starts.MAX_WITHOUT_PROGRESS, 3)
    assert simulation.saved_minutes() == 0
