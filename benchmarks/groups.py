"""Makes models on groups of CPU devices that work side by side, and interrupts groups; prints Markdown tables.

    python -m benchmarks groups DIR

Each run makes the same six small models, with four CPU devices in one process tree or in several that stand for
machines. On few cores the devices share cores, so seconds say nothing about accelerators. The tables show

- losses against those of one device per model: the largest relative difference. One device per model is run twice, and
  the second run must be bitwise equal to the first. A group of several machines is a job of its own, in which all
  devices make each model (`compute.devices_per_model=all`).
- that no group waits for another: one of two groups is stopped (SIGSTOP) while the other one makes models.
- that a group may be killed (SIGKILL) or asked to stop (SIGTERM) in the middle of a model while the other one
  continues: the losses must be bitwise equal to those of an uninterrupted run with groups of the same size.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import lm_mia
from lm_mia import events

_CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.py"
_SETTINGS = {
    "tokenizer.vocab_size": 512,
    "tokenizer.documents": 2000,
    "population.samples": 512,
    "population.length_tokens": 32,
    "model.layers": 1,
    "model.width": 32,
    "attack.references": 4,
    "attack.replicas": 2,
    "attack.resample_references": 0,
    "extract.samples": 0,
    "train.epochs": 40,
    "train.checkpoint_minutes": 0.01,
}
_NUM_MODELS = 6


class Run:
    """Commands that make the models in one workdir."""

    def __init__(self, folder: Path, name: str, populations: Path | None) -> None:
        self.workdir = folder / name
        self._cache = folder / "compiled"
        if populations:
            shutil.copytree(populations, self.workdir / "populations")

    def start(
        self,
        verb: Sequence[str],
        num_devices: int,
        devices_per_model: int | str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[bytes]:
        """Starts a command on a machine with this number of CPU devices."""
        settings = {**_SETTINGS, "compute.devices_per_model": devices_per_model}
        flags = [f"--config.{name}={value}" for name, value in settings.items()]
        log = self.workdir.with_suffix(".log")
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, *verb, f"--config={_CONFIG}", f"--workdir={self.workdir}", *flags],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "JAX_COMPILATION_CACHE_DIR": str(self._cache),
                    "JAX_NUM_CPU_DEVICES": str(num_devices),
                    **environment,
                },
                stdout=output,
                stderr=output,
            )

    def start_job(self, num_machines: int, num_devices: int) -> list[subprocess.Popen[bytes]]:
        """Starts a job of several machines, all devices of which make each model together, as SLURM would."""
        with socket.socket() as unused:
            unused.bind(("localhost", 0))
            port = unused.getsockname()[1]
        job = {
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": str(num_machines),
        }
        return [
            self.start(_MAKE_MODELS, num_devices, "all", job | {"JAX_PROCESS_ID": str(i)})
            for i in range(num_machines)
        ]

    def wait(self, *commands: subprocess.Popen[bytes]) -> None:
        """Waits for the commands, which must succeed."""
        for command in commands:
            if command.wait():
                sys.exit(f"a command failed; see {self.workdir.with_suffix('.log')}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Returns the events of a kind in the log."""
        logged = events.read(self.workdir, lambda line: kind.encode() in line)
        return [event for _, event in logged if event["event"] == kind]

    def jobs(self) -> list[dict[str, Any]]:
        """Returns the records of the running jobs of `launch local`, one for each group."""
        records = sorted(self.workdir.glob("recipes/*/running/*.json"))
        return [json.loads(path.read_text()) for path in records]

    def until(self, command: subprocess.Popen[bytes], is_reached: Callable[[], bool]) -> None:
        """Waits for a condition; the command must still be running."""
        while not is_reached():
            if command.poll() is not None:
                sys.exit(f"the command ended early; see {self.workdir.with_suffix('.log')}")
            time.sleep(0.05)

    def losses(self) -> np.ndarray:
        """Returns loss_MxN, in nats per token."""
        [recipe] = lm_mia.open(self.workdir).recipes.values()
        return recipe.scores()["loss"].to_numpy()


_LOCAL = ("-m", "launch", "local")
_WORKER = ("-m", "launch", "worker")
_MAKE_MODELS = ("-m", "launch", "make-models", "--recipe=quickstart", f"--models=0:{_NUM_MODELS}")


def arrangements(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Prints losses and seconds of each arrangement; returns the populations, and the losses by arrangement."""
    first = Run(folder, "corpus", None)
    first.wait(first.start(("-m", "launch", "corpus"), 1, 1))
    populations = first.workdir / "populations"
    print("| machines x devices | devices per model | groups | seconds | losses |")
    print("|---|---|---|---|---|", flush=True)
    losses: dict[str, np.ndarray] = {}
    for name, machines, devices, devices_per_model in (
        ("1", 1, 4, 1),
        ("1 again", 1, 4, 1),
        ("2", 1, 4, 2),
        ("4", 1, 4, 4),
        ("2 on two machines", 2, 2, 2),
        ("2 on four machines", 4, 1, 2),
        ("4 on two machines", 2, 2, 4),
    ):
        run = Run(folder, name.replace(" ", "-"), populations)
        groups = machines * devices // devices_per_model
        began = time.monotonic()
        if devices_per_model > devices:
            jobs = [run.start_job(machines // groups, devices) for _ in range(groups)]
            run.wait(*(command for job in jobs for command in job))
        else:
            verb = _LOCAL if machines == 1 else _WORKER
            run.wait(*(run.start(verb, devices, devices_per_model) for _ in range(machines)))
        seconds = time.monotonic() - began
        losses[name] = run.losses()
        difference = np.abs(losses[name] / losses["1"] - 1).max()
        equality = "bitwise equal" if difference == 0 else f"relative difference {difference:.1e}"
        equality = "-" if name == "1" else equality
        row = (f"{machines} x {devices}", devices_per_model, groups, f"{seconds:.1f}", equality)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    assert np.array_equal(losses["1"], losses["1 again"])
    return populations, losses


def waiting(folder: Path, populations: Path) -> None:
    """Prints the seconds per model of a group while the other group works and while it is stopped."""
    run = Run(folder, "stopped", populations)
    command = run.start(_LOCAL, 4, 2)
    run.until(command, lambda: len(run.jobs()) == 2 and len(run.events("model_started")) == 2)
    stopped = run.jobs()[0]
    [worker] = _children(stopped["pid"])
    os.kill(worker, signal.SIGSTOP)
    made_before = len(run.events("model_scored"))
    run.until(command, lambda: len(run.events("model_scored")) == _NUM_MODELS - 1)
    during = run.events("model_scored")[made_before:]
    assert stopped["job"] not in {event["job"] for event in during}
    os.kill(worker, signal.SIGCONT)
    run.wait(command)
    seconds = {event["model"]: event["seconds"] for event in run.events("model_trained")}
    both = Run(folder, "2", None).events("model_trained")
    print("\n| | models of the other group | median seconds of training per model |\n|---|---|---|")
    print(f"| both groups work | | {statistics.median(e['seconds'] for e in both):.1f} |")
    alone = statistics.median(seconds[event["model"]] for event in during)
    print(f"| one group is stopped | {len(during)} | {alone:.1f} |", flush=True)


def interrupted(folder: Path, populations: Path, expected_MxN: np.ndarray) -> None:
    """Prints what happened to the groups and to the losses after SIGKILL and SIGTERM in the middle of a model."""
    print("\n| signal to one group | its model resumed at step | other models | losses |")
    print("|---|---|---|---|", flush=True)
    for number in (signal.SIGKILL, signal.SIGTERM):
        run = Run(folder, number.name, populations)
        command = run.start(_LOCAL, 4, 2)
        run.until(command, lambda run=run: any(_saved_steps(run).values()))
        model = next(model for model, step in _saved_steps(run).items() if step)
        [job] = [job for job in run.jobs() if model in job["models"]]
        victim = _children(job["pid"])[0] if number == signal.SIGKILL else job["pid"]
        os.kill(victim, number)
        run.wait(command)
        resumed_at = {event["model"]: event["resumed_at"] for event in run.events("model_trained")}
        assert resumed_at[model] > 0
        others = sum(1 for other, step in resumed_at.items() if other != model and step == 0)
        is_equal = np.array_equal(run.losses(), expected_MxN)
        row = (number.name, resumed_at[model], f"{others} trained without interruption")
        print(f"| {' | '.join(map(str, row))} | {'bitwise equal' if is_equal else 'differ'} |")
        assert is_equal


def _saved_steps(run: Run) -> dict[str, int]:
    """Returns the step of the newest checkpoint of each model that is being trained by a job."""
    models = [model for job in run.jobs() for model in job["models"]]
    steps = {}
    for model in models:
        [recipe] = (run.workdir / "recipes").iterdir()
        saved = [
            int(p.name) for p in (recipe / "checkpoints" / model).glob("*") if p.name.isdecimal()
        ]
        steps[model] = max(saved, default=0)
    return steps


def _children(pid: int) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "spawn_main"], capture_output=True, text=True
    )
    return [int(line) for line in found.stdout.split()]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path, help="new folder for the workdirs")
    folder = parser.parse_args().dir
    if folder.exists():
        parser.error(f"{folder}: exists; give the path of a new folder")
    folder.mkdir(parents=True)
    populations, losses = arrangements(folder)
    waiting(folder, populations)
    interrupted(folder, populations, losses["2"])


if __name__ == "__main__":
    main()
