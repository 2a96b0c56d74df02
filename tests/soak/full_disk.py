"""Run by hand, as root (a minute of CPU time per round): fills the disk of a run at random moments of all its stages.

    PYTHONPATH=tests/shared python tests/soak/full_disk.py DIR [--trials 40] [--seed 0]

Creates DIR/uninterrupted, the workdir of an uninterrupted command. Each round mounts a tmpfs as an empty workdir and
starts the command once for each stage (corpus, train, score, attack, extract, report). A random time after the stage
has begun, the tmpfs is shrunk so that at most 64 KiB can still be written. The command must then end with exit code 2
or 3 and one line about the full disk, unless it can finish its work. Before the tmpfs is enlarged again, it is mounted
read-only, and one of the commands `run`, `attack`, `report`, `launch local`, `status` and `plan` is started: the first
four must end with exit code 2 and a single line, and the other two must work. At the end of a round the command runs to
its end, all six commands are started on the read-only workdir, and the workdir is compared with the uninterrupted one.
In every third round the command is `lm-mia launch local`, which has the first three stages and is followed by `lm-mia
run`.

Prints a table of the trials by stage. Exits with 1 if a check fails, if a byte of the populations, the score stores or
the tables differs, if the report differs in a part that `digests` compares, or if a model was trained again although it
was scored.
"""

import argparse
import collections
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kill_resume
import rich.progress
from kill_resume import Runner, Wrong

_LARGE_BYTES = 2**28
_LEFT_BYTES = (0, 4096, 2**14, 2**16)
_READERS = ("status", "plan")
_VERBS = ("run", "attack", "report", "launch local", *_READERS)
_FULL = "No space left on device"


class Disk:
    """A tmpfs that holds a workdir."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Mounts the tmpfs during the block; raises OSError if that is not permitted."""
        self.path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_LARGE_BYTES}", "tmpfs", str(self.path)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{self.path}: a tmpfs cannot be mounted: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def remount(self, option: str) -> bool:
        """Changes an option, such as ro or size=4096; returns whether it was possible."""
        command = ["mount", "-o", f"remount,{option}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def fill(self, left_bytes: int) -> None:
        """Shrinks the tmpfs until only this number of bytes can be written, although files may be growing."""
        while True:
            room = os.statvfs(self.path)
            used_bytes = (room.f_blocks - room.f_bfree) * room.f_frsize
            if self.remount(f"size={max(used_bytes + left_bytes, 4096)}"):  # 0 would be no limit
                return

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        if not self.remount("ro"):
            raise Wrong(f"{self.path}: a process still writes, although its command has ended")
        try:
            yield
        finally:
            self.remount("rw")


def run_to_end(runner: Runner, workdir: Path, verb: str, timeout: float) -> tuple[int, list[str]]:
    """Runs a command to its end; returns its exit code and the lines that it printed."""
    log = workdir.with_suffix(".log")
    before_bytes = log.stat().st_size if log.exists() else 0
    code = runner.start(workdir, verb.split()).wait(timeout=timeout)
    return code, log.read_bytes()[before_bytes:].decode().strip().splitlines()


def fill_in_stage(
    runner: Runner, disk: Disk, stage: str, draw: random.Random
) -> tuple[str, str] | None:
    """Starts the command and fills the disk in a stage, or later; returns (stage, outcome), or None if it had ended."""
    workdir, log = disk.path, disk.path.with_suffix(".log")
    before_bytes = log.stat().st_size if log.exists() else 0
    command = runner.start(workdir, runner.verb)
    if not kill_resume.is_reached(command, workdir, stage):
        return None
    time.sleep(draw.uniform(0, kill_resume.MAX_DELAY_SECONDS[stage]))
    if command.poll() is not None:
        return None
    at = kill_resume.current_stage(workdir)
    disk.fill(draw.choice(_LEFT_BYTES))
    code = command.wait(timeout=kill_resume.DEADLINE_SECONDS)
    output = log.read_bytes()[before_bytes:].decode()
    if code == 0:
        return at, "finished"
    lines = [line for line in output.splitlines() if _FULL in line]
    if code not in (2, 3) or len(lines) != 1 or "Traceback" in output:
        raise Wrong(f"{workdir}: full disk in {at}: exit code {code}:\n{output[-2000:]}")
    return at, "reported"


def check_read_only(runner: Runner, disk: Disk, verb: str) -> None:
    """Runs a command on the read-only workdir; raises Wrong unless it ends as the module docstring says."""
    with disk.read_only():
        code, lines = run_to_end(runner, disk.path, verb, kill_resume.DEADLINE_SECONDS)
    text = "\n".join(lines)
    is_right = code == 0 if verb in _READERS else code == 2 and len(lines) == 1
    if not is_right or "Traceback" in text:
        raise Wrong(f"{disk.path}: read-only: lm-mia {verb}: exit code {code}:\n{text[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder, draw = args.folder.resolve(), random.Random(args.seed)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Disk(folder / "probe").mounted():
            pass
    except OSError as error:
        print(f"{error}; run this script as root", file=sys.stderr)
        return 2
    finally:
        (folder / "probe").rmdir()
    one_worker = ["--config.train.workers=1"]
    runners = {name: Runner(folder, name, None, one_worker) for name in ("run", "local")}
    uninterrupted = folder / "uninterrupted"
    if not (uninterrupted / "report.html").exists():
        runners["run"].finish(uninterrupted)
    num_files = len(kill_resume.digests(uninterrupted))
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    read_only: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    rounds = trials = 0
    with rich.progress.Progress() as bar:
        task = bar.add_task("trials", total=args.trials)
        while trials < args.trials:
            runner = runners["local" if rounds % 3 == 2 else "run"]
            disk = Disk(folder / f"disk_{args.seed}_{rounds:02}")
            rounds += 1
            try:
                with disk.mounted():
                    for stage in runner.stages:
                        if outcome := fill_in_stage(runner, disk, stage, draw):
                            outcomes[outcome] += 1
                            trials += 1
                            bar.advance(task)
                        verb = draw.choice(_VERBS)
                        check_read_only(runner, disk, verb)
                        read_only[verb] += 1
                        disk.remount(f"size={_LARGE_BYTES}")
                    runner.finish(disk.path)
                    kill_resume.check_result(disk.path, uninterrupted)
                    for verb in _VERBS:
                        check_read_only(runner, disk, verb)
                        read_only[verb] += 1
            except (Wrong, subprocess.TimeoutExpired) as error:
                trials += 1
                wrong.append(str(error))
                bar.console.print(f"WRONG: {error}", markup=False)
    stages = kill_resume.STAGES
    print(f"\n| disk filled in | {' | '.join(stages)} | all |\n|---|{'---:|' * (len(stages) + 1)}")
    for name in ("reported", "finished"):
        counts = [outcomes[stage, name] for stage in stages]
        print(f"| {name} | {' | '.join(map(str, counts))} | {sum(counts)} |")
    print(f"\n| read-only | {' | '.join(_VERBS)} |\n|---|{'---:|' * len(_VERBS)}")
    print(f"| as it must be | {' | '.join(str(read_only[verb]) for verb in _VERBS)} |")
    print(
        f"\n{trials} trials in {rounds} workdirs, seed {args.seed}: {num_files} files compared in each workdir, "
        f"{len(wrong)} wrong"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
