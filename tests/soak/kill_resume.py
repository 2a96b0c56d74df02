"""Run by hand (a minute of CPU time per round): kills or terminates a run at random moments of all its stages.

    PYTHONPATH=tests/shared python tests/soak/kill_resume.py DIR [--kills 50] [--terminations 20] [--seed 0]
        [--engine run|local] [--config FILE.py] [--config.field=value ...]

Creates DIR/uninterrupted, the workdir of an uninterrupted command, and one workdir for each round. A round starts the
command again and again; each time it waits for the next stage (corpus, train, score, attack, extract, report) and a
random time, and then sends a signal. A kill is SIGKILL to the command, to the command and its workers, or to a worker
and shortly afterwards to the command. A termination is SIGTERM to the command, which must end with exit code 143 unless
it had only just started or just finished. After the last stage the command runs to its end, and the workdir is compared
with the uninterrupted one.

The command is `lm-mia run`, or `lm-mia launch local`, which has only the first three stages and is followed by
`lm-mia run`. Models save a checkpoint after every step, so that they are resumed in the middle. Without --config, the
models and the corpus are tiny.

Prints a table of the signals by the stage that they hit. Exits with 1 if a byte of the populations, the score stores or
the tables differs, if the report differs in a part that `digests` compares, if a model was trained again although it
was scored, if a command prints a traceback, if a terminated command has another exit code, or if a command that is
started again fails.
"""

import argparse
import collections
import contextlib
import difflib
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import rich.progress
import tiny_run

from lm_mia import events

STAGES = ("corpus", "train", "score", "attack", "extract", "report")
MODEL_STAGES = STAGES[:3]
EXTRACT = ("samples=8", "prefix-tokens=3", "suffix-tokens=3")
MAX_DELAY_SECONDS = {"corpus": 3, "train": 4, "score": 2, "attack": 2, "extract": 4, "report": 6}
DEADLINE_SECONDS = 300


class Wrong(Exception):
    """A check has failed."""


class Runner:
    """Starts the command with one config, on any workdir."""

    def __init__(self, folder: Path, engine: str, config: str | None, flags: list[str]) -> None:
        tiny = tiny_run.Tiny(folder / "tiny")
        if config is None and not Path(tiny.config).exists():
            tiny_run.make(tiny.folder)
        self._config = config or tiny.config
        self._flags = ["--config.train.checkpoint_minutes=0.0001", *flags]
        if config is None:
            self._flags += [f"--config.extract.{setting}" for setting in EXTRACT]
            self._flags += ["--config.train.epochs=8"]
        self.verb = ["launch", "local"] if engine == "local" else ["run"]
        self.stages = MODEL_STAGES if engine == "local" else STAGES

    def start(self, workdir: Path, verb: list[str]) -> subprocess.Popen[bytes]:
        """Starts a command; its output is appended to WORKDIR.log."""
        argv = [*verb, f"--config={self._config}", f"--workdir={workdir}", *self._flags]
        with workdir.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "lm_mia.cli", *argv],
                stdout=log,
                stderr=log,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )

    def finish(self, workdir: Path) -> None:
        """Runs the command to its end, and `lm-mia run` after `lm-mia launch local`; raises Wrong if one fails."""
        for verb in dict.fromkeys([" ".join(self.verb), "run"]):
            if code := self.start(workdir, verb.split()).wait(timeout=2 * DEADLINE_SECONDS):
                raise Wrong(f"{workdir}: lm-mia {verb} ended with {code}")


def current_stage(workdir: Path) -> str:
    """Returns the stage that a command on a workdir is in, or that it reaches next, as its files and its log show."""
    recipes = workdir / "recipes"
    if (workdir / "report.html").exists():
        return "finished"
    if any(recipes.glob("*/tables/extraction.json")):
        return "report"
    if any(recipes.glob("*/tables/flips.json")):
        return "extract"
    requested = sum(e["requested"] for e in tiny_run.logged(workdir, "models")[:1])
    if requested and len({*tiny_run.events(workdir, "model_scored")}) >= requested:
        return "attack"
    started, trained = (tiny_run.events(workdir, f"model_{e}") for e in ("started", "trained"))
    if len({*trained}) > len({*tiny_run.events(workdir, "model_scored")}):
        return "score"
    return "train" if started or requested else "corpus"


def is_reached(command: subprocess.Popen[bytes], workdir: Path, stage: str) -> bool:
    """Waits until a command has reached a stage; returns False if the command ended before that."""
    began = time.monotonic()
    while STAGES.index(stage) > [*STAGES, "finished"].index(current_stage(workdir)):
        if command.poll() is not None:
            return False
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise Wrong(f"{workdir}: the stage {stage} was not reached in {DEADLINE_SECONDS} s")
        time.sleep(0.05)
    return True


def interrupt(
    runner: Runner, workdir: Path, stage: str, is_kill: bool, draw: random.Random
) -> tuple[str, str] | None:
    """Starts the command and interrupts it in a stage, or later; returns (stage, signal), or None if it had ended."""
    command = runner.start(workdir, runner.verb)
    began = time.monotonic()
    if not is_reached(command, workdir, stage):
        return None
    time.sleep(draw.uniform(0, MAX_DELAY_SECONDS[stage]))
    workers = tiny_run.workers_of(command.pid)
    if command.poll() is not None:
        return None
    at = current_stage(workdir)
    if is_kill:
        victims = draw.choice(["the command", "the command and its workers", "a worker"])
        if victims == "a worker" and workers:  # the others continue until the command is killed too
            _kill(workers[0])
            time.sleep(draw.uniform(0, 2))
        command.kill()
        for pid in workers if victims == "the command and its workers" else ():
            _kill(pid)
        command.wait()
    else:
        command.terminate()
        code = command.wait(timeout=DEADLINE_SECONDS)
        # 0: it had just finished. -SIGTERM: Python was still loading modules, so nothing had been started.
        if code not in (0, 143, -signal.SIGTERM):
            raise Wrong(f"{workdir}: SIGTERM in {at}: exit code {code} instead of 143")
    while not all(map(tiny_run.has_ended, workers)):
        if time.monotonic() - began > 2 * DEADLINE_SECONDS:
            raise Wrong(f"{workdir}: a worker continues although its command has ended")
        time.sleep(0.1)
    return at, "SIGKILL" if is_kill else "SIGTERM"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def digests(workdir: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of the populations, the score stores and the tables, and of the report's text.

    Durations, dates, times, the commit and the logged training losses are left out of the text.
    """
    content = results(workdir)
    content["report.html"] = report_text(workdir).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def results(workdir: Path) -> dict[str, bytes]:
    """Returns the content of every file of the populations, the score stores and the tables."""
    patterns = ("populations/*/*", "recipes/*/scores.zarr/**/*", "recipes/*/tables/**/*")
    files = sorted(path for pattern in patterns for path in workdir.glob(pattern))
    content = {str(p.relative_to(workdir)): p.read_bytes() for p in files if p.is_file()}
    return {name: data for name, data in content.items() if not name.endswith(".__lock")}


def report_text(workdir: Path) -> str:
    """Returns the text of the report without the parts that may differ, which `digests` lists."""
    page = (workdir / "report.html").read_text(encoding="utf-8")
    page = page.replace(workdir.name, "WORKDIR")
    page = re.sub(r"commit <code>\w+</code>", "", page)
    page = re.sub(
        r"\d{4}-\d\d-\d\d|\d+ [A-Z][a-z]+ \d{4}|\d\d:\d\d(:\d\d)?|[\d.,]+ ?(s|ms|seconds?|minutes?|hours?)\b",
        "",
        page,
    )
    # The mean over the steps since the last line of the log, which begins again when a model is resumed.
    return re.sub(r"<p>Loss on the batches.*", "", page)


def check_result(workdir: Path, uninterrupted: Path) -> None:
    """Raises Wrong if a finished workdir differs from the uninterrupted one."""
    expected, actual = digests(uninterrupted), digests(workdir)
    names = sorted(expected.keys() | actual.keys())
    if differ := [name for name in names if expected.get(name) != actual.get(name)]:
        before, after = (report_text(path).splitlines() for path in (uninterrupted, workdir))
        lines = [*difflib.unified_diff(before, after, n=0, lineterm="")][3:7]
        raise Wrong(f"{workdir}: {len(differ)} of {len(names)} files differ: {differ} {lines}")
    log = workdir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    if "Traceback" in log:
        raise Wrong(f"{workdir}: a traceback in {workdir.with_suffix('.log')}")
    if again := trained_again(workdir):
        raise Wrong(f"{workdir}: trained again although scored: {again}")


def trained_again(workdir: Path) -> list[str]:
    """Returns the models that were trained after they had been scored."""
    scored: set[str] = set()
    again = []
    for _, event in events.read(workdir, lambda line: b"model_" in line):
        if event["event"] == "model_trained" and event["model"] in scored:
            again.append(event["model"])
        if event["event"] == "model_scored" and event.get("last", True):
            scored.add(event["model"])
    return again


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--terminations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("run", "local"), default="run")
    parser.add_argument("--config")
    args, flags = parser.parse_known_args()
    folder, draw = args.folder.resolve(), random.Random(args.seed)
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(folder, args.engine, args.config, flags)
    uninterrupted = folder / f"uninterrupted_{args.engine}"
    runner.finish(uninterrupted)
    num_files = len(digests(uninterrupted))
    signals = [True] * args.kills + [False] * args.terminations
    draw.shuffle(signals)
    hits: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong: list[str] = []
    rounds = resumed = 0
    with rich.progress.Progress() as bar:
        task = bar.add_task("signals", total=len(signals))
        while signals:
            workdir = folder / f"{args.engine}_{args.seed}_{rounds:02}"
            rounds += 1
            try:
                for stage in runner.stages:
                    if signals and (sent := interrupt(runner, workdir, stage, signals[-1], draw)):
                        signals.pop()
                        hits[sent] += 1
                        bar.advance(task)
                runner.finish(workdir)
                check_result(workdir, uninterrupted)
                resumed += sum(
                    e["resumed_at"] > 0 for e in tiny_run.logged(workdir, "model_trained")
                )
            except (Wrong, subprocess.TimeoutExpired) as error:
                wrong.append(str(error))
                bar.console.print(f"WRONG: {error}")
    print(f"\n| stage | {' | '.join(STAGES)} | all |\n|---|{'---|' * (len(STAGES) + 1)}")
    for name in ("SIGKILL", "SIGTERM"):
        counts = [hits[stage, name] for stage in STAGES]
        finished = hits["finished", name]
        print(f"| {name} | {' | '.join(map(str, counts))} | {sum(counts) + finished} |")
    print(
        f"\n{sum(hits.values())} signals in {rounds} workdirs by lm-mia {' '.join(runner.verb)}, seed {args.seed}: "
        f"{resumed} models resumed in the middle, {num_files} files compared in each workdir, {len(wrong)} wrong"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
