"""Run by hand (15 minutes on 2 cores): stops and kills jobs of two processes with two devices each in several ways.

    PYTHONPATH=tests/shared python tests/soak/multi_host.py DIR [--only NAME ...] [--random KILLS] [--seed 0]

Each case stops or kills one process of a job while a model is trained, waits until the whole job has ended by itself,
and runs the same command again. On the same number of devices, the scores must be bitwise equal to those of an
uninterrupted job; on another number, losses must agree to 2e-5. With --random, there are only this many kills, each of
a random process, at a random step of a random model. Prints one line per case; exits with 1 if one failed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny_run

from lm_mia.data import subsets
from lm_mia.store.store import Store

FLAGS = ("--config.train.epochs=20", "--config.score.at_steps=5,40")
STEPS, TOLERANCE, MAX_SECONDS = 80, 2e-5, 180
Hit = Callable[[list[subprocess.Popen[str]], list[int]], None]


def command(index: int, kind: signal.Signals) -> Hit:
    """Returns a function that sends a signal to the command of one process of the job."""
    return lambda job, workers: os.kill(job[index].pid, kind)


def worker(index: int, kind: signal.Signals) -> Hit:
    """Returns a function that sends a signal to the worker of one process of the job."""
    return lambda job, workers: os.kill(workers[index], kind)


def host(index: int) -> Hit:
    """Returns a function that kills command and worker at once, as when a host is lost."""

    def hit(job: list[subprocess.Popen[str]], workers: list[int]) -> None:
        job[index].kill()
        os.kill(workers[index], signal.SIGKILL)

    return hit


TERM, KILL = signal.SIGTERM, signal.SIGKILL
MODELS = [str(model) for model in subsets.requested_seeds(4, 2)]
# The signal, and the numbers of processes and devices of the rerun.
CASES: dict[str, tuple[Hit, int, int]] = {
    "SIGTERM command 0": (command(0, TERM), 2, 2),
    "SIGTERM command 1": (command(1, TERM), 2, 2),
    "SIGTERM worker 0": (worker(0, TERM), 2, 2),
    "SIGTERM worker 1": (worker(1, TERM), 1, 1),
    "kill -9 command 0": (command(0, KILL), 2, 2),
    "kill -9 worker 0": (worker(0, KILL), 2, 2),
    "kill -9 worker 1": (worker(1, KILL), 2, 2),
    "kill -9 host 0": (host(0), 1, 4),
    "kill -9 host 1": (host(1), 2, 2),
    "kill -9 host 1, rerun on one": (host(1), 1, 2),
}


def losses(workdir: Path) -> np.ndarray:
    """Returns the losses of every model at every score point and at the end."""
    path = tiny_run.recipe_of(workdir) / "scores.zarr"
    models = subsets.requested_seeds(4, 2)
    return np.stack([Store(path, (), (5, 40), STEPS, step).read(models)[0] for step in (5, 40, 0)])


def finish(job: list[subprocess.Popen[str]]) -> tuple[list[int | None], float]:
    """Returns the exit codes of a job (None: killed after the time limit) and the seconds until the last exit."""
    began = time.monotonic()
    while any(p.poll() is None for p in job) and time.monotonic() - began < MAX_SECONDS:
        time.sleep(0.05)
    codes, seconds = [p.poll() for p in job], time.monotonic() - began
    for process in job:
        process.kill()
        process.communicate()
    return codes, seconds


def run(tiny: tiny_run.Tiny, workdir: Path, processes: int, devices: int) -> None:
    codes, _ = finish(tiny.start_job(workdir, processes, devices, *FLAGS))
    if any(codes):
        sys.exit(f"{workdir}: {processes} x {devices} ended with {codes}")


def case(
    tiny: tiny_run.Tiny,
    workdir: Path,
    name: str,
    uninterrupted: Path,
    model: str = "reference-02",
    after_step: int = 9,
) -> bool:
    """Runs a case, which interrupts a model after a step; prints its line, and returns whether it passed."""
    hit, processes, devices = CASES[name]
    tiny.population(workdir)
    job = tiny.start_job(workdir, 2, 2, *FLAGS)
    while [
        e["step"] > after_step
        for e in tiny_run.logged(workdir, "train")[-1:]
        if e["model"] == model
    ] != [True]:
        if any(process.poll() is not None for process in job):
            sys.exit(f"{workdir}: ended with {finish(job)[0]} before the signal")
        time.sleep(0.01)
    workers = [tiny_run.workers_of(process.pid)[0] for process in job]
    hit(job, workers)
    codes, seconds = finish(job)
    while not all(map(tiny_run.has_ended, workers)):
        seconds += 0.1
        time.sleep(0.1)
    states = tiny_run.recipe_of(workdir) / "checkpoints" / model
    step = max(int(path.name) for path in states.iterdir() if path.name.isdigit())
    run(tiny, workdir, processes, devices)
    rerun = {e["model"]: e["resumed_at"] for e in tiny_run.logged(workdir, "model_trained")}
    is_same = tiny_run.scores(workdir) == tiny_run.scores(uninterrupted)
    max_difference = float(np.abs(losses(workdir) / losses(uninterrupted) - 1).max())
    stopped = codes == [143, 143] if "SIGTERM" in name else None not in codes and seconds < 120
    passed = stopped and (is_same if (processes, devices) == (2, 2) else max_difference < TOLERANCE)
    print(
        f"| {name} in {model} | {codes[0]}, {codes[1]} | {seconds:.1f} | {step} of {STEPS} | {processes} x {devices} "
        f"| {rerun.get(model)} | {'equal' if is_same else 'not equal'} | {max_difference:.1e} "
        f"| {'ok' if passed else 'FAILED'} |",
        flush=True,
    )
    return passed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--only",
        choices=CASES,
        nargs="+",
        help="run only these, without the uninterrupted reruns",
    )
    parser.add_argument(
        "--random", type=int, default=0, metavar="KILLS", help="run only kills at random moments"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tiny, draw = tiny_run.Tiny(args.folder / "tiny"), random.Random(args.seed)
    if not tiny.workdir.exists():
        tiny_run.make(tiny.folder)
    uninterrupted = args.folder / "uninterrupted"
    if not uninterrupted.exists():
        run(tiny, tiny.population(uninterrupted), 2, 2)
    print(
        "| hit | exit codes | s until all ended | saved at | rerun on | resumed at | bytes | max rel diff | |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    passed = True
    for processes, devices in () if args.only or args.random else ((1, 1), (1, 4), (2, 1)):
        other = tiny.population(args.folder / f"uninterrupted_{processes}x{devices}")
        run(tiny, other, processes, devices)
        max_difference = float(np.abs(losses(other) / losses(uninterrupted) - 1).max())
        is_close = max_difference < TOLERANCE
        passed &= is_close
        print(
            f"| nothing | 0 | | | {processes} x {devices} | | | {max_difference:.1e} "
            f"| {'ok' if is_close else 'FAILED'} |",
            flush=True,
        )
    for number in range(args.random):
        kills = [n for n, (_, *rerun) in CASES.items() if "kill" in n and rerun == [2, 2]]
        name, model, after_step = draw.choice(kills), draw.choice(MODELS), draw.randint(9, 60)
        workdir = args.folder / f"random_{args.seed}_{number:02}"
        passed &= case(tiny, workdir, name, uninterrupted, model, after_step)
    for name in args.only or ([] if args.random else CASES):
        workdir = args.folder / name.replace(" ", "_")
        passed &= case(tiny, workdir, name, uninterrupted)
    return not passed


if __name__ == "__main__":
    sys.exit(main())
