"""Run by hand (three minutes on two cores): six workers on one sweep, each killed twice at a random moment.

    PYTHONPATH=tests/shared python tests/soak/kill_workers.py DIR [--models 200] [--seed 0]

Creates in DIR a corpus of random words, a workdir whose models `launch local` makes without interruption, and one that
six `launch worker` processes share. Each worker is killed twice and restarted at once: first alone, so that its job has
to notice, then with its job, as when a machine is lost. At the end every model must be present, the scores must be
bitwise equal to those of the uninterrupted sweep, and the log must not list a model as scored twice. Prints the seconds
spent on models that a killed job had started, as a share of the total. Exits with 1 if a check fails or if the share is
10 % or more.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import tiny_run

from launch import jobs
from lm_mia.run import sweep

WORKERS = 6


@dataclasses.dataclass
class Worker:
    """One of six workers."""

    number: int
    process: subprocess.Popen[bytes]
    num_starts: int = 1


def start(
    swept: sweep.Sweep, number: int, folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = jobs.command(swept, [sys.executable], "worker")
    with (
        open(folder / f"worker_{number}.out", "ab") as out,
        open(folder / f"worker_{number}.err", "ab") as err,
    ):
        return subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **environment})


def kill_with_job(worker: Worker) -> None:
    """Kills a worker and all its descendants, as when a machine is lost."""
    pids, descendants = [worker.process.pid], []
    while pids:
        pid = pids.pop()
        descendants.append(pid)
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lost_share(workdir: Path, kills: dict[str, float]) -> tuple[float, int, float]:
    """Returns (share of the seconds spent on models that were not finished, their number, seconds of all models).

    Args:
      workdir: the workdir with the log.
      kills: {id of the killed process: time of the kill, in seconds since 1970}.
    """
    began: dict[tuple[str, str], float] = {}
    lost = total = 0.0
    count = 0
    for kind in ("model_started", "model_scored"):
        for event in tiny_run.logged(workdir, kind):
            start_time = datetime.fromisoformat(event["time"]).timestamp()
            if kind == "model_started":
                began[event["job"], event["model"]] = start_time
            elif event["last"]:
                total += start_time - began.pop((event["job"], event["model"]))
    for (job, _), start_time in began.items():
        seconds = max(kills[job.split("-")[-2]] - start_time, 0.0)
        lost, total, count = lost + seconds, total + seconds, count + 1
    return lost / total, count, total


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tiny, draw = tiny_run.Tiny(args.dir / "tiny"), random.Random(args.seed)
    args.dir.mkdir(parents=True, exist_ok=True)
    if not (tiny.folder / "err").exists():
        tiny_run.make(tiny.folder)
    overrides = [f"--config.attack.references={args.models - 2}", "--config.train.workers=1"]
    uninterrupted = sweep.read_sweep(tiny.config, str(args.dir / "whole"), overrides)
    environment = tiny.environment
    subprocess.run(
        jobs.command(uninterrupted, [sys.executable], "local"),
        check=True,
        env={**os.environ, **environment},
    )
    folder = args.dir / f"killed_{time.strftime('%H%M%S')}"
    folder.mkdir()
    swept = sweep.read_sweep(tiny.config, str(folder / "sweep"), overrides)
    subprocess.run(
        jobs.command(swept, [sys.executable], "corpus"),
        check=True,
        env={**os.environ, **environment},
    )
    # Two moments per worker, as numbers of present models; at the last one, some models are still missing.
    moments = sorted((draw.randint(4, args.models * 9 // 10), n) for n in [*range(WORKERS)] * 2)
    kills: dict[str, float] = {}  # process id -> time
    began = time.monotonic()
    workers = [Worker(n, start(swept, n, folder, environment)) for n in range(WORKERS)]
    while any(w.process.poll() is None for w in workers) or moments:
        done = args.models - len(jobs.missing_indices(swept.recipes[0]))
        while moments and moments[0][0] <= done:
            _, n = moments.pop(0)
            worker = workers[n]
            if worker.process.poll() is not None:
                print(f"worker {n} had exited: {worker.process.returncode}")
                return 1
            time.sleep(draw.uniform(0, 2))
            kills[str(worker.process.pid)] = time.time()
            worker.process.kill() if worker.num_starts == 1 else kill_with_job(worker)
            worker.process.wait()
            print(
                f"{time.monotonic() - began:5.0f} s: {done} models; killed worker {n}"
                + " and its job" * (worker.num_starts > 1),
                flush=True,
            )
            worker.process = start(swept, n, folder, environment)
            worker.num_starts += 1
        time.sleep(0.2)
    seconds = time.monotonic() - began
    scored = tiny_run.events(swept.workdir.path, "model_scored")
    share, count, total = lost_share(swept.workdir.path, kills)
    facts = {
        "exit codes are 0": all(w.process.returncode == 0 for w in workers),
        "every worker was killed twice": [w.num_starts for w in workers] == [3] * WORKERS,
        "every model is present": jobs.missing_indices(swept.recipes[0]) == [],
        "no model is logged as scored twice": len(set(scored)) == len(scored),
        "scores equal those of the uninterrupted sweep": tiny_run.scores(swept.workdir.path)
        == tiny_run.scores(uninterrupted.workdir.path),
        "less than 10 % was lost": share < 0.1,
    }
    for fact, holds in facts.items():
        print(f"{'ok ' if holds else 'NOT'} {fact}")
    print(
        f"{args.models} models by {WORKERS} workers in {seconds:.0f} s, {len(kills)} kills; {count} models cut short, "
        f"{share:.1%} of {total:.0f} s lost; {len(scored)} models in the log (one may be complete before it is logged)"
    )
    return 0 if all(facts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
