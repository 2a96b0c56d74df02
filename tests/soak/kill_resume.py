"""Run by hand (10 minutes): kills a run at ten random moments and compares it with an uninterrupted run.

    python tests/soak/kill_resume.py configs/quickstart.py DIR [--config.field=value ...]

Creates DIR/uninterrupted and DIR/interrupted. Each kill sends SIGKILL to the command, to it and its workers, or to a
worker and shortly afterwards to the command, at a random moment of a stage. Models save a checkpoint every 2 seconds,
so that they are resumed in the middle. Exits with 1 if a byte of the score stores, the populations or the tables
differs, or if a model that was present was trained again. The config may be a sweep.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

# (stage, the text in the command's output that shows its start), in order.
KILLS = (
    [("corpus", "")] * 2
    + [("models", "worker 0")] * 6
    + [("attack", "present, 0 to train and score")] * 2
)


def command(config: str, workdir: Path, flags: list[str]) -> list[str]:
    verb = [sys.executable, "-m", "lm_mia.cli", "run", f"--config={config}", f"--workdir={workdir}"]
    return [*verb, "--config.train.checkpoint_minutes=0.033", *flags]


def digests(workdir: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of the populations, of the score stores and of the tables."""
    patterns = ("populations/*/*", "recipes/*/scores.zarr/**/*", "recipes/*/tables/*")
    files = [path for pattern in patterns for path in workdir.glob(pattern)]
    return {
        str(p.relative_to(workdir)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(files)
        if p.is_file()
    }


def children(pid: int) -> list[int]:
    """Returns the process ids of the children of a process (Linux)."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def kill_once(
    config: str, workdir: Path, flags: list[str], stage: str, start_text: str, chance: random.Random
) -> None:
    """Starts the command, waits for the start of the stage and a random time, kills, and waits for all processes."""
    log = workdir.with_suffix(".log")
    seen = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        run = subprocess.Popen(command(config, workdir, flags), stdout=out, stderr=out)
        while (
            start_text and start_text.encode() not in log.read_bytes()[seen:] and run.poll() is None
        ):
            time.sleep(0.05)
        time.sleep(chance.uniform(0, {"corpus": 12, "models": 25, "attack": 5}[stage]))
        workers = [pid for pid in children(run.pid) if b"spawn_main" in _cmdline(pid)]
        victims = chance.choice(["the command", "the command and its workers", "a worker"])
        print(f"kill -9 in {stage}, {len(workers)} workers running: {victims}", flush=True)
        if victims == "a worker" and workers:  # the others continue until the command is killed too
            os.kill(workers[0], signal.SIGKILL)
            time.sleep(chance.uniform(0, 10))
        run.kill()
        for pid in workers if victims == "the command and its workers" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.wait()
        while any(b"spawn_main" in _cmdline(pid) for pid in workers):
            time.sleep(0.1)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _model(event: dict[str, str]) -> str:
    return f"{event['recipe']}/{event['model']}"


def main() -> int:
    config, folder, *flags = sys.argv[1:]
    uninterrupted, interrupted = Path(folder) / "uninterrupted", Path(folder) / "interrupted"
    Path(folder).mkdir(parents=True, exist_ok=True)
    subprocess.run(command(config, uninterrupted, flags), check=True)
    chance = random.Random()
    for stage, start_text in KILLS:
        kill_once(config, interrupted, flags, stage, start_text, chance)
    subprocess.run(command(config, interrupted, flags), check=True)

    events = [json.loads(line) for line in (interrupted / "metrics.jsonl").read_text().splitlines()]
    for kind in ("model_trained", "model_scored"):
        models = [_model(event) for event in events if event["event"] == kind]
        print(f"{kind}: {len(models)} events of {len(set(models))} models")
    scored: set[str] = set()
    again = []
    for event in events:
        again += (
            [_model(event)] if event["event"] == "model_trained" and _model(event) in scored else []
        )
        scored |= {_model(event)} if event["event"] == "model_scored" else set()
    resumed = sum(event["event"] == "model_trained" and event["resumed_at"] > 0 for event in events)
    print(
        f"models resumed from the middle: {resumed}; models trained again although scored: {len(again)}"
    )
    one, other = digests(uninterrupted), digests(interrupted)
    differ = [
        name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)
    ]
    print(f"{len(one)} files compared, {len(differ)} differ {differ[:5]}")
    return bool(differ or again)


if __name__ == "__main__":
    sys.exit(main())
