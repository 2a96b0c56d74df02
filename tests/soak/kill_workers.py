"""By hand, about three minutes on two cores: six workers on one sweep, each killed twice at a random moment.

    PYTHONPATH=tests/shared python tests/soak/kill_workers.py DIR [--models 200] [--seed 0]

DIR gets a corpus of random words, a workdir whose models `launch local` makes without a break, and one that six `launch
worker` share. Each worker gets SIGKILL twice, the first time alone, so that its job must find out, the second time with
its job, as when a machine is lost; it is started again at once. At the end every model must be present, the scores must
be those of the unbroken sweep, bit for bit, and no model may be in the log as scored twice. Prints what was lost: the
seconds of models that a killed job had begun, of the seconds of all. Exits 1 if anything is not so, or if 10 %
were lost.
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
    """One of six, in its present life."""

    number: int
    process: subprocess.Popen[bytes]
    lives: int = 1


def start(
    of: sweep.Sweep, number: int, folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = jobs.command(of, [sys.executable], "worker")
    with (
        open(folder / f"worker_{number}.out", "ab") as out,
        open(folder / f"worker_{number}.err", "ab") as err,
    ):
        return subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **environment})


def with_its_job(worker: Worker) -> None:
    """As when a machine is lost: whatever runs below a worker is killed with it."""
    pids, found = [worker.process.pid], []
    while pids:
        pid = pids.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lost_share(workdir: Path, kills: dict[str, float]) -> tuple[float, int, float]:
    """(share of the seconds of models that were begun and not ended, how many, seconds of all).

    Args:
      workdir: with the log.
      kills: seconds since 1970 by id of the killed process.
    """
    began: dict[tuple[str, str], float] = {}
    lost = of_all = 0.0
    count = 0
    for kind in ("model_started", "model_scored"):
        for event in tiny_run.logged(workdir, kind):
            at = datetime.fromisoformat(event["time"]).timestamp()
            if kind == "model_started":
                began[event["job"], event["model"]] = at
            elif event["last"]:
                of_all += at - began.pop((event["job"], event["model"]))
    for (job, _), at in began.items():
        seconds = max(kills[job.split("-")[-2]] - at, 0.0)
        lost, of_all, count = lost + seconds, of_all + seconds, count + 1
    return lost / of_all, count, of_all


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    known = parser.parse_args()
    tiny, draw = tiny_run.Tiny(known.dir / "tiny"), random.Random(known.seed)
    known.dir.mkdir(parents=True, exist_ok=True)
    if not (tiny.folder / "done").exists():
        tiny_run.make(tiny)
    overrides = [f"--config.attack.references={known.models - 2}", "--config.train.workers=1"]
    whole = sweep.read_sweep(tiny.config, str(known.dir / "whole"), overrides)
    environment = tiny.environment
    subprocess.run(
        jobs.command(whole, [sys.executable], "local"),
        check=True,
        env={**os.environ, **environment},
    )
    folder = known.dir / f"killed_{time.strftime('%H%M%S')}"
    folder.mkdir()
    of = sweep.read_sweep(tiny.config, str(folder / "sweep"), overrides)
    subprocess.run(
        jobs.command(of, [sys.executable], "corpus"), check=True, env={**os.environ, **environment}
    )
    # Two moments a worker, in models done: with some left to do at the last of them.
    moments = sorted((draw.randint(4, known.models * 9 // 10), n) for n in [*range(WORKERS)] * 2)
    kills: dict[str, float] = {}  # process -> when
    began = time.monotonic()
    workers = [Worker(n, start(of, n, folder, environment)) for n in range(WORKERS)]
    while any(w.process.poll() is None for w in workers) or moments:
        done = known.models - len(jobs.missing_indices(of.recipes[0]))
        while moments and moments[0][0] <= done:
            _, n = moments.pop(0)
            worker = workers[n]
            if worker.process.poll() is not None:
                print(f"worker {n} had ended: {worker.process.returncode}")
                return 1
            time.sleep(draw.uniform(0, 2))
            kills[str(worker.process.pid)] = time.time()
            worker.process.kill() if worker.lives == 1 else with_its_job(worker)
            worker.process.wait()
            print(
                f"{time.monotonic() - began:5.0f} s: {done} models; killed worker {n}"
                + " and its job" * (worker.lives > 1),
                flush=True,
            )
            worker.process = start(of, n, folder, environment)
            worker.lives += 1
        time.sleep(0.2)
    seconds = time.monotonic() - began
    scored = tiny_run.events(of.workdir.path, "model_scored")
    share, count, of_all = lost_share(of.workdir.path, kills)
    facts = {
        "exit codes are 0": all(w.process.returncode == 0 for w in workers),
        "every worker was killed twice": [w.lives for w in workers] == [3] * WORKERS,
        "every model is present": jobs.missing_indices(of.recipes[0]) == [],
        "no model is in the log as scored twice": len(set(scored)) == len(scored),
        "scores are those of the unbroken sweep": tiny_run.scores(of.workdir.path)
        == tiny_run.scores(whole.workdir.path),
        "less than 10 % was lost": share < 0.1,
    }
    for fact, holds in facts.items():
        print(f"{'ok ' if holds else 'NOT'} {fact}")
    print(
        f"{known.models} models by {WORKERS} workers in {seconds:.0f} s, {len(kills)} kills; {count} models cut short, "
        f"{share:.1%} of {of_all:.0f} s lost; {len(scored)} models in the log (one may be whole before its line)"
    )
    return 0 if all(facts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
