"""Runs the same commands with two versions of the code in turn: seconds, CPU seconds, peak memory and their ratios.

    python -m benchmarks releases FOLDER --before=CHECKOUT [--rounds 2] [--sections quickstart imported large]

"Before" is the code of CHECKOUT, for example of the last release, and "after" that of the current folder. Both run with
the packages of this environment, so CHECKOUT must work with them. In each round, each side starts with an empty workdir
and an empty compilation cache, and both run every command before either runs the next one; which side is first
alternates. The table shows the medians of the rounds; "memory" is that of the largest process. Nothing else should run
on the machine.

quickstart: its stages, the same `run` once more, which finds everything done, and the help text, which is little more
  than the imports.
imported: `import`, `attack` and `report` of drawn losses of 24 references and 8 targets on 20,000 samples.
large: the same of 120 references and 8 targets on 2^20 samples; needs about 4 GB in FOLDER for each round.
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TARGETS = 8
SIZES = {"imported": (24, 20_000), "large": (120, 2**20)}
"""References and samples of the losses of a section."""
RUN = ("run", "--config=configs/quickstart.py", "--workdir=quickstart")


def _of_losses(section: str) -> dict[str, tuple[str, ...]]:
    references, samples = SIZES[section]
    size, workdir = f"{references + TARGETS} x {samples:,}", f"--workdir={section}"
    return {
        f"import, {size}": ("import", f"../{section}.npz", workdir, "--subset=bernoulli"),
        f"attack, {size}": ("attack", workdir),
        f"report, {size}": ("report", workdir),
    }


SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "quickstart": {
        "help text": ("--help",),
        "vocabulary and population": ("corpus", *RUN[1:]),
        "train 48 models": ("train", *RUN[1:]),
        "score 48 models": ("score", *RUN[1:]),
        "attack": ("attack", *RUN[1:]),
        "extract": ("extract", *RUN[1:]),
        "report": ("report", "--workdir=quickstart"),
        "run, nothing left to do": RUN,
    },
    "imported": _of_losses("imported"),
    "large": _of_losses("large"),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one command took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Memory of the largest process of the command."""


def main() -> None:
    """Prints a row of a Markdown table for each command, after the last round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of other code")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sections", nargs="*", default=[*SECTIONS], choices=SECTIONS)
    args = parser.parse_args()
    commands = {name: c for section in args.sections for name, c in SECTIONS[section].items()}
    sides = {"before": args.before.resolve(), "after": ROOT}
    costs: dict[tuple[str, str], list[Cost]] = {}
    args.folder.mkdir(parents=True, exist_ok=True)
    for section in SIZES.keys() & args.sections:
        write_losses(args.folder / f"{section}.npz", *SIZES[section])
    for round_index in range(args.rounds):
        folders = {side: args.folder / f"{side}-{round_index}" for side in sides}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        names = list(sides)[:: 1 if round_index % 2 == 0 else -1]
        for command, arguments in commands.items():
            for side in names:
                cost = run(arguments, sides[side], folders[side])
                costs.setdefault((command, side), []).append(cost)
                print(f"{round_index}, {command}, {side}: {cost}", file=sys.stderr, flush=True)
    print("| command | before s | after s | ratio | CPU ratio | before GB | after GB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for command in commands:
        before, after = (_median(costs[command, side]) for side in sides)
        cells = f"{before.seconds:.1f} | {after.seconds:.1f} | {after.seconds / before.seconds:.2f}"
        cpu_ratio = f"{after.cpu_seconds / before.cpu_seconds:.2f}"
        memory = f"{before.peak_bytes / 2**30:.2f} | {after.peak_bytes / 2**30:.2f}"
        print(f"| {command} | {cells} | {cpu_ratio} | {memory} |", flush=True)


def write_losses(path: Path, references: int, samples: int) -> None:
    """Writes losses for `lm-mia import` in which members have a loss that is 0.15 nats lower."""
    rng = np.random.default_rng(0)
    models = references + TARGETS
    member_MxN = rng.random((models, samples), np.float32) < 0.5
    loss_MxN = rng.standard_normal((models, samples), np.float32) * np.float32(0.1)
    loss_MxN += (3 + rng.normal(0, 0.5, samples)).astype(np.float32)
    loss_MxN -= np.float32(0.15) * member_MxN
    role_M = np.repeat(["reference", "target"], [references, TARGETS])
    np.savez(path, loss_MxN=loss_MxN, member_MxN=member_MxN, role_M=role_M)


def run(arguments: Sequence[str], code: Path, folder: Path) -> Cost:
    """Runs lm-mia in a folder with the code of a checkout.

    Raises:
        subprocess.CalledProcessError: if the command fails; its output is in ``folder / "log"``.
    """
    project = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["lm-mia"].split(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    arguments = [x.replace("=configs/", f"={code}/configs/") for x in arguments]
    command = [sys.executable, "-c", script, *arguments]
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder.resolve() / "compiled")}
    environment = {**os.environ, **compiled, "PYTHONPATH": str(code), "JAX_PLATFORMS": "cpu"}
    # On Linux, the memory of a process includes that of the program that started it, so a small one does.
    with open(folder / "log", "ab") as log:
        arguments = [sys.executable, "-c", _STARTER, str(log.fileno()), *command]
        started = subprocess.run(
            arguments,
            cwd=folder,
            env=environment,
            pass_fds=[log.fileno()],
            stdout=subprocess.PIPE,
            check=True,
        )
    returncode, seconds, cpu_seconds, peak_bytes = map(float, started.stdout.split())
    if returncode:
        raise subprocess.CalledProcessError(int(returncode), command)
    return Cost(seconds, cpu_seconds, int(peak_bytes))


_STARTER = """
import os, subprocess, sys, time
began = time.monotonic()
log = int(sys.argv[1])
process = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log)
_, status, usage = os.wait4(process.pid, 0)
seconds = time.monotonic() - began
process.returncode = os.waitstatus_to_exitcode(status)
print(process.returncode, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
"""
"""Prints the exit code, the seconds, the CPU seconds and the peak bytes of a program."""


def _median(costs: Sequence[Cost]) -> Cost:
    seconds = statistics.median(cost.seconds for cost in costs)
    cpu_seconds = statistics.median(cost.cpu_seconds for cost in costs)
    return Cost(seconds, cpu_seconds, max(cost.peak_bytes for cost in costs))


if __name__ == "__main__":
    main()
