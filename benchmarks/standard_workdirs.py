"""Makes the workdirs whose results are compared before and after a change of the code, by `benchmarks/snapshot.py`.

    python -m benchmarks.standard_workdirs FOLDER [--quick]
    python -m benchmarks.standard_workdirs FOLDER --copies-of=MADE [--quick]

The first command makes the workdirs in FOLDER from nothing: about an hour on 2 cores, or under 10 minutes with --quick.
It continues where it was stopped. The second command copies the workdirs in MADE, without tables, figures and pages,
and attacks, extracts and reports again. If a change leaves training and the format of stores as they are, one commit
makes the workdirs once, and then both commits run the second command:

    python -m benchmarks.standard_workdirs MADE                           # one of the two commits
    python -m benchmarks.standard_workdirs BEFORE --copies-of=MADE        # the commit before the change
    python -m benchmarks.snapshot BEFORE/* --out=before.zip               # the same commit
    python -m benchmarks.standard_workdirs AFTER --copies-of=MADE         # the commit after the change
    python -m benchmarks.snapshot AFTER/* --against=before.zip            # the same commit

Otherwise both commits run the first command, on one machine with the same packages. FOLDER has nothing but workdirs:
the texts and losses that two of them are made from are written to FOLDER.inputs, and FOLDER.csv says when each command
of the first kind began, how many minutes it took, and with which commit. The minutes of a command that was interrupted
stay empty. The code of the current folder runs, which must be the root of a checkout.
"""

import argparse
import csv
import dataclasses
import datetime
import io
import json
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.trainers

from lm_mia.atomic import write_atomically
from lm_mia.errors import UserError, run_action
from lm_mia.run.workdir import provenance

ROOT = Path(__file__).resolve().parents[1]
_RESULTS = ("tables", "pieces", "figures", "report.html", "samples.html")
"""The files and folders that attacks, extraction and reports write, in a workdir and in the folder of a recipe."""


@dataclasses.dataclass(frozen=True)
class Standard:
    """A workdir, and the commands that make it."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """Arguments of lm-mia, without --workdir; INPUTS stands for a folder with what `write_inputs` writes."""
    write_inputs: Callable[[Path], None] | None = None
    is_quick: bool = False


def _run(*configs: str) -> tuple[tuple[str, ...], ...]:
    """Returns a command for each config, all of which run in the same workdir."""
    return tuple(("run", f"--config={ROOT / 'configs' / config}") for config in configs)


def write_texts(folder: Path) -> None:
    """Writes 300 short texts of random syllables, from which `own.py` chooses an audit with extraction."""
    rng = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    for i in range(300):
        text = " ".join(rng.choices(words, k=rng.randint(60, 120)))
        (folder / "texts" / f"{i:03d}.txt").write_text(text, encoding="utf-8")


def write_losses(folder: Path) -> None:
    """Writes losses of nine models on 400 samples: five references, two targets and two replicas."""
    rng = np.random.default_rng(0)
    models, samples = 9, 400
    member_MxN = np.array([rng.permutation(samples) < samples // 2 for _ in range(models)])
    member_MxN[-1] = member_MxN[-2]  # replicas share their training set
    level_N, gain_N = rng.gamma(9, 0.35, samples), rng.gamma(2, 0.1, samples)
    noise_MxN = rng.normal(0, 0.15, (models, samples))
    words = [f"word{i}" for i in range(200)]
    length_N = rng.integers(10, 60, samples)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "nine.npz",
        loss_MxN=np.maximum(level_N - gain_N * member_MxN + noise_MxN, 0.01),
        member_MxN=member_MxN,
        role_M=np.array(["reference"] * 5 + ["target"] * 2 + ["replica"] * 2),
        tokens_N=length_N,
        text_N=np.array([" ".join(rng.choice(words, length)) for length in length_N]),
    )


def write_checkpoint(folder: Path) -> None:
    """Writes the texts of "own", and a GPT-2 with random weights and a tokenizer of these texts.

    Both are written as save_pretrained of Transformers does, since the package is not among those of the core.
    """
    write_texts(folder)
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=sorted(alphabet), show_progress=False
    )
    texts = [path.read_text(encoding="utf-8") for path in sorted((folder / "texts").iterdir())]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    layers, width, positions, vocabulary = 2, 64, 128, tokenizer.get_vocab_size()
    config = {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": 2}
    config |= {"n_positions": positions, "vocab_size": vocabulary}
    (checkpoint / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (vocabulary, width),
        "wpe.weight": (positions, width),
    }
    norms = ["ln_f"]
    for i in range(layers):
        norms += [f"h.{i}.ln_1", f"h.{i}.ln_2"]
        for name, inputs, outputs in (
            ("attn.c_attn", 1, 3),
            ("attn.c_proj", 1, 1),
            ("mlp.c_fc", 1, 4),
            ("mlp.c_proj", 4, 1),
        ):
            shapes[f"h.{i}.{name}.weight"] = (inputs * width, outputs * width)
            shapes[f"h.{i}.{name}.bias"] = (outputs * width,)
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
    for name in norms:
        tensors |= {f"{name}.weight": np.ones(width), f"{name}.bias": np.zeros(width)}
    safetensors.numpy.save_file(
        {f"transformer.{name}": array.astype(np.float32) for name, array in tensors.items()},
        checkpoint / "model.safetensors",
    )


STANDARD = (
    Standard("quickstart", _run("quickstart.py"), is_quick=True),
    Standard("own", _run("own.py:INPUTS/texts"), write_texts, is_quick=True),
    Standard(
        "import",
        (("import", "INPUTS/nine.npz", "--subset=exact"), ("attack",), ("report",)),
        write_losses,
        is_quick=True,
    ),
    Standard(
        "finetune",
        (
            (
                "run",
                f"--config={ROOT / 'configs' / 'finetune.py'}:INPUTS/checkpoint,INPUTS/texts",
                "--config.optimizer.peak_learning_rate=2e-3",
            ),
        ),
        write_checkpoint,
        is_quick=True,
    ),
    Standard("canaries", _run("canaries.py:cpu"), is_quick=True),
    # mace.py uses the models of reliability.py. The last command reports the figures of both.
    Standard("reliability", (*_run("reliability.py:cpu", "mace.py:cpu"), ("report",))),
    Standard("privacyguard", _run("privacyguard.py:cpu")),
    Standard("causal", _run("causal.py:cpu")),
    Standard("strongmia_open", _run("strongmia_open.py:cpu")),
    Standard("strongmia", _run("strongmia.py:cpu")),
)


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.standard_workdirs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--copies-of",
        metavar="MADE",
        type=Path,
        help="copy the workdirs in this folder, and attack, extract and report again",
    )
    quick = ", ".join(standard.name for standard in STANDARD if standard.is_quick)
    parser.add_argument("--quick", action="store_true", help=f"only {quick}")
    options = parser.parse_args(argv)
    chosen = [standard for standard in STANDARD if standard.is_quick or not options.quick]
    return run_action(lambda: _make(chosen, options.folder.resolve(), options.copies_of), argv)


def _make(chosen: Sequence[Standard], folder: Path, made: Path | None) -> int:
    """Makes or copies workdirs; returns the exit code of the first command that fails, or 0."""
    if made:
        chosen = [standard for standard in chosen if (made / standard.name).is_dir()]
        if not chosen:
            raise UserError(f"--copies-of={made}: it has no standard workdirs; make them first")
        existing = [standard.name for standard in chosen if (folder / standard.name).exists()]
        if existing:
            raise UserError(
                f"{folder}: it has {', '.join(existing)} already; name another folder for the copies"
            )
    for standard in chosen:
        begin, workdir = time.monotonic(), folder / standard.name
        if made:
            copy_without_results(made / standard.name, workdir)
            commands = commands_again(workdir)
            times = None
        else:
            inputs = folder.with_name(f"{folder.name}.inputs")
            if standard.write_inputs:
                standard.write_inputs(inputs)
            commands = [
                [argument.replace("INPUTS", str(inputs)) for argument in command]
                for command in standard.commands
            ]
            times = CommandTimes(folder.with_name(f"{folder.name}.csv"), standard, workdir.exists())
        for number, command in enumerate(commands):
            argv = [sys.executable, "-m", "lm_mia.cli", *command, f"--workdir={workdir}"]
            print("+", "lm-mia", *argv[3:], flush=True)
            is_whole = times is not None and times.begin(number)
            begin_command = time.monotonic()
            if exit_code := subprocess.run(argv, cwd=ROOT).returncode:
                print(f"{standard.name}: the command failed; nothing else was run", file=sys.stderr)
                return exit_code
            if times is not None and is_whole:
                times.end(number, (time.monotonic() - begin_command) / 60)
        print(f"{standard.name}: {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    return 0


class CommandTimes:
    """The rows of FOLDER.csv for the commands of one workdir.

    A row is written when a command begins, and its minutes when it ends. A command that was interrupted has a row
    without minutes, and keeps it when it continues. A workdir that exists without rows was not made from nothing by
    these commands, and gets none.
    """

    COLUMNS: tuple[str, ...] = (
        *("workdir", "command", "began", "minutes", "commit", "python", "cpu_cores"),
    )

    def __init__(self, path: Path, standard: Standard, exists: bool):
        self._path, self._name = path, standard.name
        self._commands = [as_written_by_users(command) for command in standard.commands]
        self._exists = exists
        if not exists:
            self._write([row for row in self._read() if row["workdir"] != self._name])

    def begin(self, number: int) -> bool:
        """Adds the row of a command that begins; returns False if it has one, or if its workdir has no rows."""
        rows = self._read()
        commands = [row["command"] for row in rows if row["workdir"] == self._name]
        if len(commands) != number or (self._exists and not commands):
            return False
        origin = provenance()
        row = {
            "workdir": self._name,
            "command": self._commands[number],
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "minutes": "",
            "commit": origin["commit"] or "",
            "python": platform.python_version(),
            "cpu_cores": str(origin["cpu_cores"]),
        }
        self._write([*rows, row])
        return True

    def end(self, number: int, minutes: float) -> None:
        """Writes the minutes of a command that ran whole."""
        rows = self._read()
        own = [row for row in rows if row["workdir"] == self._name]
        own[number]["minutes"] = f"{minutes:.2f}"
        self._write(rows)

    def _read(self) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return [*csv.DictReader(file)]

    def _write(self, rows: Sequence[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, text.getvalue())


def as_written_by_users(command: Sequence[str]) -> str:
    """Returns a command as a user would write it in the root of a checkout, without --workdir."""
    words = [word.replace(f"{ROOT}/", "").replace("INPUTS/", "") for word in command]
    return " ".join(["lm-mia", *words])


def copy_without_results(made: Path, workdir: Path) -> None:
    """Copies a workdir without the tables, figures and pages of itself and its recipes."""
    folders = {made, *(made / "recipes").glob("*/")}

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) in folders and name in _RESULTS]

    shutil.copytree(made, workdir, ignore=left_out)


def commands_again(workdir: Path) -> list[list[str]]:
    """Returns the commands that make the results of a workdir again; without `extract` if no recipe asks for it."""
    records = [json.loads(p.read_text()) for p in (workdir / "recipes").glob("*/config.json")]
    extracts = any(record["config"].get("extract", {}).get("samples", 0) for record in records)
    return [["attack"], *([["extract"]] if extracts else []), ["report"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
