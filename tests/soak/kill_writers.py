"""Run by hand (9 minutes on two free cores): kills one of four writers of a score store at 20 random moments.

    python tests/soak/kill_writers.py DIR [--kills 20] [--models 24] [--samples 8192]

Creates in DIR a corpus of random words, a workdir with trained tiny models, and their scores by an uninterrupted
`lm-mia score` with four workers. Shards have 1,024 samples here, so that each model has 56 of them. For each kill, the
scores are deleted, `lm-mia score` is started with four workers, and one that is writing a model is killed at a random
moment. In every other case the three others continue to the end; in the rest, the command and its workers are killed
shortly afterwards. After the kill, no existing shard may be corrupt. After a rerun, every file must be bitwise equal to
that of the uninterrupted run, and shards that existed at the kill must be the same files. Finally, one shard gets a
flipped bit, one is truncated and one is deleted: `lm-mia status --verify` must list these three and no others, and
`lm-mia score --repair` must rewrite these three and no others. Exits with 1 if a check fails.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lm_mia.store import schema

# Before any store is created; workers, which import this file again, read the sizes from the store.
schema.SHARD_SAMPLES, schema.CHUNK_SAMPLES = 1024, 256

_WORKERS = 4
_LM_MIA = "--lm-mia"
_LEFT_OVER = (".__lock", ".partial")  # of an interrupted atomic write
_CONFIG = """
from lm_mia import config
def get_config():
    return config.Config(
        corpus=config.Corpus("jsonl", {texts!r}, min_chars=1, deduplicate="none"),
        tokenizer=config.Tokenizer(vocab_size=100, documents=2000),
        population=config.Population(samples={samples}, length_tokens=8, frequency_samples=1000),
        model=config.Model(layers=1, width=16, heads=2),
        optimizer=config.Optimizer(peak_learning_rate=1e-2, warmup_steps=1),
        train=config.Train(subset="balanced", batch_size={samples} // 8, workers={workers}),
        score=config.Score(at_steps=(2,), statistics=("min_k", "summed_loss")),
        attack=config.Attack(references={models} - 4, replicas=4),
    )
"""


class Run:
    """Runs commands on a workdir and reads its score store."""

    def __init__(self, folder: Path, models: int, samples: int) -> None:
        texts = folder / "texts.jsonl"
        (folder / "config.py").write_text(
            _CONFIG.format(texts=str(texts), samples=samples, models=models, workers=_WORKERS)
        )
        draw = random.Random(0)
        words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 7))) for _ in range(500)]
        lines = (" ".join(draw.choices(words, k=draw.randint(1, 3))) for _ in range(samples))
        texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        self.folder, self.workdir = folder, folder / "workdir"

    def command(self, *argv: str) -> list[str]:
        """Returns an lm-mia command with the shard size of this file."""
        more = [f"--config={self.folder / 'config.py'}", f"--workdir={self.workdir}"]
        return [sys.executable, __file__, _LM_MIA, *argv, *more]

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Starts a command in its own process group, writing to a log."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.command(*argv), stdout=log, stderr=log, start_new_session=True
            )

    def do(self, *argv: str) -> None:
        """Runs a command; raises Wrong if it fails."""
        if code := self.start(*argv).wait():
            raise Wrong(f"lm-mia {' '.join(argv)} ended with {code}; see {self.folder / 'log'}")

    @property
    def store(self) -> Path:
        return self.workdir / "recipes" / "config" / "scores.zarr"

    def files(self) -> dict[str, bytes]:
        """Returns the files of the store, without leftovers of atomic writes."""
        return {p.relative_to(self.store).as_posix(): p.read_bytes() for p in self._paths()}

    def shards(self) -> dict[str, tuple[int, int]]:
        """Returns {shard: (inode, modification time)}, which changes if a shard is written again."""
        shards = {}
        for path in self._paths():
            name = path.relative_to(self.store)
            if name.parts[1:2] == ("c",) and name.parts[0] in schema.VARIABLES:
                with contextlib.suppress(FileNotFoundError):  # it is just being renamed
                    shards[name.as_posix()] = (path.stat().st_ino, path.stat().st_mtime_ns)
        return shards

    def left_over(self) -> list[Path]:
        """Returns the temporary files of atomic writes that were interrupted or are in progress."""
        return [p for p in self.store.glob("*/c/*/**/*") if p.suffix in _LEFT_OVER]

    def _paths(self) -> Iterator[Path]:
        return (p for p in self.store.rglob("*") if p.suffix not in _LEFT_OVER and p.is_file())

    def corrupt(self) -> list[Path]:
        """Returns the existing shards that are damaged."""
        from lm_mia.store import check
        from lm_mia.store.store import Store

        settings = json.loads((self.store.parent / "config.json").read_text())["config"]
        steps = -(-settings["population"]["samples"] // 2 // settings["train"]["batch_size"])
        statistics = tuple(settings["score"]["statistics"])
        store = Store(self.store, statistics, tuple(settings["score"]["at_steps"]), steps)
        return check.check_shards(store, store.models()).corrupt


class Wrong(Exception):
    """A failed check."""


def main() -> int:
    """Runs all checks, prints the results and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--samples", type=int, default=8192)
    c = parser.parse_args()
    c.folder.mkdir(parents=True)
    began, run = time.monotonic(), Run(c.folder.resolve(), c.models, c.samples)
    try:
        run.do("corpus")
        run.do("train")
        print(f"{time.monotonic() - began:.0f} s: {c.models} models trained", flush=True)
        window = _timed(run)
        uninterrupted, shards = run.files(), run.shards()
        # member once, three variables at a score point and at the end
        expected = c.models * 7 * -(-c.samples // schema.SHARD_SAMPLES)
        if len(shards) != expected:
            raise Wrong(
                f"{len(shards)} shards instead of {expected}: not the shard size of this file"
            )
        print(
            f"uninterrupted: {len(shards)} shards, written by {_WORKERS} workers in {window:.1f} s\n\n"
            "| kill | at | workers writing | model | its shards | left over | of all | then | shards | left over "
            "| made by the rerun | left over |\n|---|---|---|---|---|---|---|---|---|---|---|---|",
            flush=True,
        )
        for number in range(c.kills):
            _kill(run, number, window, uninterrupted)
        print(f"\n{c.kills} kills: every file is bitwise equal to that of the uninterrupted run")
        _damage(run, uninterrupted)
    except Wrong as wrong:
        print(f"WRONG: {wrong}", flush=True)
        return 1
    print(f"{time.monotonic() - began:.0f} s in total")
    return 0


def _timed(run: Run) -> float:
    """Scores everything; returns the seconds from the first shard to the last."""
    process = run.start("score")
    if code := process.wait():
        raise Wrong(f"lm-mia score ended with {code}; see {run.folder / 'log'}")
    times = [mtime for _, mtime in run.shards().values()]
    return (max(times) - min(times)) / 1e9


def _kill(run: Run, number: int, window: float, uninterrupted: dict[str, bytes]) -> None:
    """Kills a worker, checks the store, reruns the command and compares the result."""
    shutil.rmtree(run.store)
    process = run.start("score")
    _first_shard(run, process)
    began, delay = time.monotonic(), random.uniform(0, 0.8 * window)
    time.sleep(delay)
    while not (writers := _writers(run, process.pid)):
        if process.poll() is not None:
            raise Wrong("the command ended before a worker was killed")
    victim = random.choice([*writers])
    os.kill(victim, signal.SIGKILL)
    moment = time.monotonic() - began
    existing, index = run.shards(), _index(run, writers[victim])
    left = [path for path in run.left_over() if path.relative_to(run.store).parts[2] == index]
    of_model = [name for name in existing if name.split("/")[2] == index]
    if stop := number % 2:
        time.sleep(random.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
    if corrupt := run.corrupt():
        raise Wrong(f"after kill {number + 1}: corrupt {corrupt}")
    code = process.wait()
    while stop and any(_alive(pid) for pid in writers):
        time.sleep(0.05)
    if code and not stop:
        raise Wrong(f"after kill {number + 1} the other workers failed; see {run.folder / 'log'}")
    before, left_later = run.shards(), run.left_over()
    run.do("score")
    after = run.shards()
    cells = (
        number + 1,
        f"{moment:.1f} s",
        f"{len(writers)} of {_WORKERS}",
        writers[victim],
        len(of_model),
    )
    cells += (len(left), len(existing), "all are killed" if stop else "the others finish")
    cells += (len(before), len(left_later), len(after) - len(before), len(run.left_over()))
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    _compare(run, uninterrupted)
    if moved := [name for name in existing if after.get(name) != existing[name]]:
        raise Wrong(f"{len(moved)} existing shards were written again: {moved[:3]}")


def _damage(run: Run, uninterrupted: dict[str, bytes]) -> None:
    """Damages three shards and checks that exactly these are listed and rewritten."""
    before = run.shards()
    flipped, truncated, deleted = (run.store / name for name in random.sample(sorted(before), 3))
    original, position = flipped.read_bytes(), random.randrange(flipped.stat().st_size)
    bit = bytes([original[position] ^ 1 << position % 8])
    flipped.write_bytes(original[:position] + bit + original[position + 1 :])
    truncated.write_bytes(truncated.read_bytes()[: random.randrange(truncated.stat().st_size)])
    deleted.unlink()
    status = subprocess.run(run.command("status", "--verify"), capture_output=True, text=True)
    named = [line.split() for line in status.stdout.splitlines() if f"{run.store}/" in line]
    expected = [["missing", f"{deleted}"], ["corrupt", f"{flipped}"], ["corrupt", f"{truncated}"]]
    if status.returncode != 2 or sorted(named) != sorted(expected):
        raise Wrong(f"status --verify: exit code {status.returncode}, {named}, not {expected}")
    run.do("score", "--repair")
    _compare(run, uninterrupted)
    after = run.shards()
    again = {run.store / name for name in after if after[name] != before[name]}
    if again != {flipped, truncated, deleted}:
        raise Wrong(f"score --repair wrote {again}")
    names = ", ".join(p.relative_to(run.store).as_posix() for p in (flipped, truncated, deleted))
    print(
        f"a bit flipped, a shard truncated, one deleted ({names}): listed and rewritten, and no others"
    )


def _compare(run: Run, uninterrupted: dict[str, bytes]) -> None:
    files = run.files()
    names = sorted(files.keys() | uninterrupted.keys())
    if differ := [name for name in names if files.get(name) != uninterrupted.get(name)]:
        raise Wrong(f"{len(differ)} of {len(names)} files differ: {differ[:3]}")


def _first_shard(run: Run, process: subprocess.Popen[bytes]) -> None:
    while not (run.store.exists() and run.shards()):
        if process.poll() is not None:
            raise Wrong(f"lm-mia score ended with {process.returncode}; see {run.folder / 'log'}")
        time.sleep(0.02)


def _writers(run: Run, pid: int) -> dict[int, str]:
    """Returns {worker: model} of the command's workers that hold the lock of a model (Linux)."""
    writers = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{child}/fd").iterdir():
                path = link.readlink()
                if path.parent.name == "locks" and path.is_relative_to(run.workdir):
                    writers[int(child)] = path.stem
    return writers


def _index(run: Run, model: str) -> str:
    """Returns the index of a model in the store, as in the names of its files."""
    from lm_mia.store.schema import read_contents

    table = read_contents(run.store)
    assert table is not None
    return str([str(seeds) for seeds in table.models].index(model))


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == [_LM_MIA]:
        from lm_mia import cli

        sys.exit(cli.main(sys.argv[2:]))
    sys.exit(main())
