"""Run by hand (20 minutes of CPU time): corrupts every variable and coordinate of a score store, and then reads it.

    PYTHONPATH=tests/shared python tests/soak/corrupt_scores.py DIR [--arrays loss,tokens] [--models 2] [--seed 0]

Creates in DIR a tiny workdir whose scores have all statistics, log-probabilities of tokens, a checkpoint during
training, and two shards for each model and checkpoint. For every array of the store, for files of several models, a
trial flips a bit of the file, truncates it, deletes it, or replaces it with another file that is intact: that of
another model, checkpoint, shard, or array. So does it with the metadata of each array. Then each of four commands is
tried:

- api: `lm_mia.open(...).recipes[...].scores()`, all of whose values are read;
- verify: `lm-mia status --verify`;
- attack: `lm-mia attack`, after all results of attacks were deleted;
- repair: `lm-mia score --repair`, and the values that the API reads afterwards.

The outcome of a command is

- told: it ended with an error that names the file, its array, its model or the store, or `status --verify` listed the
  file as missing;
- repaired: the command ended without an error, and the values are equal bit by bit to the original ones;
- harmless: it ended without an error, and what it returned or wrote is equal bit by bit, since nothing that it reads
  was damaged (for `verify`: the API returns the original values);
- SILENT: it ended without an error, and a value differs;
- WRONG: it ended with an unexpected exception, or its error names nothing.

Exits with 1 if an outcome is SILENT or WRONG.
"""

import argparse
import collections
import contextlib
import io
import random
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np
import rich.progress
import tiny_run

import lm_mia
from lm_mia import cli
from lm_mia.config.schema import STATISTIC_UNITS
from lm_mia.errors import UserError
from lm_mia.run import supervisor
from lm_mia.store import schema

_COMMANDS = {
    "api": (),
    "verify": ("status", "--verify"),
    "attack": ("attack",),
    "repair": ("score", "--repair"),
}
_FLAGS = (
    f"--config.score.statistics={','.join(STATISTIC_UNITS)}",
    "--config.score.token-samples=3,20",
    "--config.score.at-steps=2",
)
_BAD = ("SILENT", "WRONG")


def values_of(workdir: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of the score store as the API reads them."""
    with lm_mia.open(workdir).recipes["tiny"].scores() as scores:
        return {str(name): array.to_numpy() for name, array in scores.variables.items()}


def tables_of(workdir: Path) -> dict[str, bytes]:
    """Returns the content of the tables that `lm-mia attack` wrote."""
    files = (p for p in workdir.glob("recipes/*/tables/**/*") if p.is_file())
    return {str(p.relative_to(workdir)): p.read_bytes() for p in files}


def differing(ours: dict[str, np.ndarray], original: dict[str, np.ndarray]) -> list[str]:
    """Returns the names of the arrays that do not equal the original ones bit by bit."""
    names = sorted(ours.keys() | original.keys())
    return [
        name
        for name in names
        if name not in ours
        or name not in original
        or ours[name].dtype != original[name].dtype
        or ours[name].tobytes() != original[name].tobytes()
    ]


def lm_mia_command(workdir: Path, *verb: str) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code, which is -1 after an exception, and its messages."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([*verb, f"--workdir={workdir}"])
        except Exception:
            return -1, traceback.format_exc(limit=-4)
    return code, out.getvalue() + err.getvalue()


def files_of(store: Path, array: str, num_models: int, draw: random.Random) -> list[Path]:
    """Returns files of an array: those of `num_models` models, or all of an array that is not stored by model."""
    folder = store / array / "c"
    by_model = sorted(folder.iterdir())
    if len(by_model) > num_models:
        by_model = draw.sample(by_model, num_models)
    files = [
        draw.choice(sorted(p for p in [path, *path.rglob("*")] if p.is_file())) for path in by_model
    ]
    return [*files, store / array / "zarr.json"]


def replacements(store: Path, file: Path) -> dict[str, Path]:
    """Returns intact files of the same size and other content, by how they differ from a file."""
    array, *key = file.relative_to(store).parts
    same_size = [
        p
        for p in sorted(store.rglob(file.name if file.name == "zarr.json" else "c/**/*"))
        if p.is_file() and p != file and p.read_bytes() != file.read_bytes()
    ]
    found: dict[str, Path] = {}
    for path in same_size:
        other_array, *other_key = path.relative_to(store).parts
        if other_array != array:
            if path.stat().st_size == file.stat().st_size or file.name == "zarr.json":
                found.setdefault("swap with another array", path)
            continue
        if (
            differences := [
                i for i, (a, b) in enumerate(zip(key, other_key, strict=True)) if a != b
            ]
        ) == [1]:
            found.setdefault("swap with another model", path)
        elif differences == [len(key) - 1]:
            found.setdefault("swap with another shard", path)
        elif differences == [2]:
            found.setdefault("swap with another checkpoint", path)
    return found


def damages_of(store: Path, file: Path, draw: random.Random) -> dict[str, bytes | None]:
    """Returns {damage: new content of the file}, None if it is deleted."""
    data = file.read_bytes()
    at = draw.randrange(len(data))
    flipped = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    swaps = {name: path.read_bytes() for name, path in replacements(store, file).items()}
    return {
        "flip": flipped,
        "delete": None,
        "truncate": data[: draw.randrange(len(data))],
        **swaps,
    }


class Original:
    """The intact workdir and what is read from it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.store = workdir / "recipes" / "tiny" / "scores.zarr"
        self.content = tiny_run.content(self.store)
        self.values, self.tables = values_of(workdir), tables_of(workdir)

    def outcome(self, command: str, trial: Path, file: Path, new: bytes | None) -> tuple[str, str]:
        """Damages a file of the trial, and tries a command on it; returns (outcome, messages)."""
        self.restore(trial)
        damaged = trial / file.relative_to(self.workdir)
        damaged.unlink() if new is None else damaged.write_bytes(new)
        if command == "attack":  # nothing that was computed before is used
            for folder in ("pieces", "tables"):
                shutil.rmtree(trial / "recipes" / "tiny" / folder, ignore_errors=True)
        text = ""
        if command != "api":
            code, text = lm_mia_command(trial, *_COMMANDS[command])
            if code == -1:
                return "WRONG", text
            # A deleted shard is a missing one: `status` lists it, and succeeds.
            if code or (command == "verify" and str(damaged) in text):
                return self._told(damaged, trial, text)
        if command == "attack":
            differs = [n for n, data in self.tables.items() if tables_of(trial).get(n) != data]
            return ("SILENT", f"{differs}\n{text}") if differs else ("harmless", text)
        try:
            differs = differing(values_of(trial), self.values)
        except UserError as error:
            if command == "api":
                return self._told(damaged, trial, str(error))
            return "SILENT", f"lm-mia {command} ends without an error; api: {error}\n{text}"
        except Exception:
            return "WRONG", traceback.format_exc(limit=-4)
        if (
            command == "repair"
            and {*differs} == {"computation", schema.DETAILS}
            and "not known any more" in " ".join(text.split())
        ):
            return "told", text  # only training could record this again
        if differs:
            return "SILENT", f"{differs}\n{text}"
        now = damaged.read_bytes() if damaged.exists() else None
        return ("harmless" if now == new else "repaired"), text

    def restore(self, trial: Path) -> None:
        """Makes the scores of the trial equal to the original ones, and copies the workdir for the first trial."""
        if not trial.exists():
            shutil.copytree(self.workdir, trial)
        store = trial / self.store.relative_to(self.workdir)
        ours, original = tiny_run.content(store), self.content
        for name in ours.keys() - original.keys():
            (store / name).unlink()
        for name, data in original.items():
            # The time of the store's metadata file tells this process that it was changed.
            if ours.get(name) != data or name == "zarr.json":
                (store / name).parent.mkdir(parents=True, exist_ok=True)
                (store / name).write_bytes(data)

    def _told(self, damaged: Path, trial: Path, text: str) -> tuple[str, str]:
        """Returns the outcome of an error, which must name the array, or the model by its name or its files.

        `lm-mia attack` may name the store instead, and say how many models it lacks.
        """
        store = trial / self.store.relative_to(self.workdir)
        array, *key = damaged.relative_to(store).parts
        names = [array, "model, role or seeds", f"{store}: "]
        if len(key) > 1 and array not in ("model", "role"):
            names += [str(self.values["model"][int(key[1])]), f"/c/{key[1]}"]
        joined = text.replace("\n", "")  # long paths are wrapped
        return ("told" if any(name in joined for name in names) else "WRONG"), text


def make(folder: Path) -> Path:
    """Creates the workdir."""
    tiny, workdir = tiny_run.Tiny(folder / "tiny"), folder / "original"
    if not Path(tiny.config).exists():
        tiny_run.make(tiny.folder)
    if not workdir.exists():
        code, text = lm_mia_command(workdir, "run", f"--config={tiny.config}", *_FLAGS)
        assert code == 0, text
    return workdir


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arrays", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = args.folder.resolve()
    counts: collections.Counter[tuple[str, str, str, str]] = collections.Counter()
    with tiny_run.on_cpu() as patch, rich.progress.Progress() as bar:
        patch.setattr(supervisor, "run", tiny_run.run_in_process)
        patch.setattr(schema, "SHARD_SAMPLES", 16)
        patch.setattr(schema, "CHUNK_SAMPLES", 8)
        original = Original(make(folder))
        arrays = [*filter(None, args.arrays.split(","))] or sorted(original.values)
        for array in bar.track(arrays, description="arrays"):
            draw = random.Random(f"{args.seed} {array}")
            for file in files_of(original.store, array, args.models, draw):
                part = f"{array}/zarr.json" if file.name == "zarr.json" else array
                for damage, new in damages_of(original.store, file, draw).items():
                    for command in _COMMANDS:
                        outcome, text = original.outcome(command, folder / "trial", file, new)
                        counts[part, damage.split(" ")[0], command, outcome] += 1
                        if outcome in _BAD:
                            name = file.relative_to(original.store)
                            bar.console.print(
                                f"{outcome}: {damage}: {name}: {command}: {text[-900:]}",
                                markup=False,
                            )
    print(table(counts))
    return any(outcome in _BAD for *_, outcome in counts)


def table(counts: collections.Counter[tuple[str, str, str, str]]) -> str:
    """Returns a Markdown table with a row for each array, and a column for each damage and command."""
    outcomes = ("told", "repaired", "harmless", *_BAD)
    lines = [f"| array | damage | {' | '.join(_COMMANDS)} |", f"|---|---|{'---|' * len(_COMMANDS)}"]
    for part, damage in dict.fromkeys((part, damage) for part, damage, *_ in counts):
        cells = [
            ", ".join(
                f"{counts[part, damage, c, o]} {o}" for o in outcomes if counts[part, damage, c, o]
            )
            for c in _COMMANDS
        ]
        lines.append(f"| {part} | {damage} | {' | '.join(cells)} |")
    totals = collections.Counter[str]()
    for (*_, outcome), count in counts.items():
        totals[outcome] += count
    lines.append("")
    lines.append(", ".join(f"{totals[outcome]} {outcome}" for outcome in outcomes))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
