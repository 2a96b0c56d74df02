"""Run by hand (15 minutes of CPU time for 300 trials): corrupts files of a finished workdir, and then runs commands.

    PYTHONPATH=tests/shared python tests/soak/corrupt.py DIR [--corruptions 300] [--seed 0]

Creates in DIR a tiny workdir with scores, tables, an extraction and a report. Each trial takes a copy of it and
corrupts one file: it flips a bit, truncates or deletes the file, or replaces it with another file of the same kind or
with an older version. The kinds of files take turns. Then `lm-mia report` (`lm-mia status --verify` for scores, `lm-mia
launch status` for the files of launched jobs) and `lm-mia run` are called in this process; if a message names a remedy,
the remedy is applied and `lm-mia run` is called again. The outcome of a trial is

- reported and repaired: a command ended with an error of one line per problem, and after the remedy that it names the
  populations, scores, tables and figures are equal to the original ones;
- reported, to be restored by the user: a command ended with such an error, but only the user can restore the file, or
  the remedy is to choose another folder;
- repaired without an error: a command replaced the file, and all results are equal. So are exported tables, which no
  command reads, and settings of attacks in config.json, which `lm-mia run --config` replaces;
- not noticed: the scores of a model were replaced by intact ones of another model, and results were not computed again;
- harmless: no result depends on the file, and all results are equal;
- WRONG: a result differs without an error, or a command ends with an unexpected exception, or does not end.

The page is drawn only in the trials that corrupt the page or a figure, since that takes 5 seconds. The records of how
models were trained are not compared, since a store that is deleted as a message says loses them. The files in diverged/
are left out, since commands only check whether they exist.
Exits with 1 if a trial is wrong.
"""

import argparse
import collections
import contextlib
import io
import random
import re
import shutil
import sys
import traceback
from pathlib import Path

import fuzz
import held_command
import kill_resume
import rich.progress
import tiny_run

from analysis import page
from launch import heartbeats
from lm_mia import cli
from lm_mia.run import supervisor
from lm_mia.store import schema

_SECONDS = 120  # a command that takes longer counts as hanging
_DAMAGES = ("flip", "truncate", "delete", "swap", "older version")
# Kind of file -> glob in the workdir.
_KINDS = {
    "population: tokens and offsets": "populations/*/*.npy",
    "population: sample table": "populations/*/samples.parquet",
    "population: vocabulary": "populations/*/tokenizer.model",
    "population: manifest": "populations/*/manifest.json",
    "config.json of the workdir": "config.json",
    "config.json of a recipe": "recipes/*/config.json",
    "scores: values": "recipes/*/scores.zarr/[lm][oe]*/c/**/*",  # loss, member
    "scores: metadata and coordinates": "recipes/*/scores.zarr/**/*",
    "checkpoints": "recipes/*/checkpoints/**/*",
    "attack pieces": "recipes/*/pieces/*",
    "tables: csv": "recipes/*/tables/*.csv",
    "tables: parquet": "recipes/*/tables/**/*.parquet",
    "tables: json": "recipes/*/tables/**/*.json",
    "log": "metrics/*.jsonl",
    "failures of models": "recipes/*/failures/*.jsonl",
    "running jobs": "recipes/*/running/*.json",
    "page": "*.html",
    "figures": "figures/*",
}
_DRAWN_KINDS = ("page", "figures")
_JOB_KINDS = ("failures of models", "running jobs")


class Trial:
    """A copy of the workdir with one corrupted file."""

    def __init__(self, original: Path, workdir: Path, config: str, draw: random.Random) -> None:
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(original, workdir)
        self._original, self.workdir, self._config, self._draw = original, workdir, config, draw

    def corrupt(self, kind: str, damage: str) -> Path | None:
        """Damages a random file of a kind; returns its path, or None if the damage would change nothing."""
        files = sorted(path for path in self.workdir.glob(_KINDS[kind]) if path.is_file())
        if kind == "scores: metadata and coordinates":
            values = {*self.workdir.glob(_KINDS["scores: values"])}
            files = [file for file in files if file not in values]
        path = self._draw.choice(files)
        data = path.read_bytes()
        new: bytes | None = None
        if damage == "flip" and data:
            at = self._draw.randrange(len(data))
            new = data[:at] + bytes([data[at] ^ 1 << self._draw.randrange(8)]) + data[at + 1 :]
        elif damage == "truncate" and data:
            new = data[: self._draw.randrange(len(data))]
        elif damage == "swap":
            others = [f for f in files if f.suffix == path.suffix and f != path]
            new = self._draw.choice(others).read_bytes() if others else None
        elif damage == "older version":
            new = (_older(self._original) / path.relative_to(self.workdir)).read_bytes()
        if damage == "delete":
            path.unlink()
        elif new is None or new == data:
            return None
        else:
            path.write_bytes(new)
        if kind == "checkpoints":  # these are read only if something has to be computed from them
            for table in self.workdir.glob("recipes/*/tables/extraction*"):
                table.unlink()
        return path

    def lm_mia(self, *verb: str) -> tuple[int, str]:
        """Runs a command; returns its exit code and its messages. The code is -1 after an unexpected exception."""
        argv = [*verb, f"--workdir={self.workdir}"]
        if verb[0] == "run":
            argv += [
                f"--config={self._config}",
                *(f"--config.extract.{s}" for s in kill_resume.EXTRACT),
            ]
        out, err = io.StringIO(), io.StringIO()
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        try:
            with fuzz.time_limit(_SECONDS), streams[0], streams[1]:
                code = cli.main(argv)
        except KeyboardInterrupt:
            raise
        except BaseException:  # every exception that reaches this point would be a traceback
            return -1, traceback.format_exc(limit=-4)
        return code, out.getvalue() + err.getvalue()

    def differences(self) -> list[str]:
        """Returns the results that differ from the original ones."""
        ours, theirs = results(self.workdir), results(self._original)
        return [n for n in sorted(ours.keys() | theirs.keys()) if ours.get(n) != theirs.get(n)]


def _older(original: Path) -> Path:
    return original.with_name("older")


def results(workdir: Path) -> dict[str, bytes]:
    """Returns the files of the populations, the scores, the tables and the figures that are compared."""
    # The pages of figures have the time at which they were written.
    files = [p for p in workdir.glob("figures/*") if p.suffix != ".html"]
    figures = {str(p.relative_to(workdir)): p.read_bytes() for p in files}
    recorded = tuple(f"scores.zarr/{name}/c/" for name in (schema.COMPUTATION, schema.DETAILS))
    compared = kill_resume.results(workdir) | figures
    return {n: data for n, data in compared.items() if not any(r in n for r in recorded)}


def write_job_files(workdir: Path) -> None:
    """Writes the files that a launched job leaves behind if it vanishes, for models that are present."""
    [recipe_dir] = (workdir / "recipes").iterdir()
    job = heartbeats.WorkerInfo("job", "host", 1, "log", "0")
    heartbeats.RunningRecord(recipe_dir, job).begin("reference-00")
    heartbeats.record_failure(recipe_dir, "reference-01", "out of memory", job)


def outcome_of(trial: Trial, kind: str, damage: str, path: Path) -> tuple[str, str]:
    """Runs the commands on a corrupted workdir; returns (outcome, messages)."""
    corrupted = path.read_bytes() if path.exists() else None
    first = ("report",)
    if kind.startswith("scores"):
        first = ("status", "--verify")
    if kind in _JOB_KINDS:
        first = ("launch", "status")
    messages, reported = [], False
    for verb in (first, ("run",)):
        code, text = trial.lm_mia(*verb)
        messages.append(f"lm-mia {' '.join(verb)}: {code}: {text[-1500:]}")
        if code not in (0, 2, 3):
            return "WRONG: an exception", "\n".join(messages)
        reported |= code != 0
        if code:
            for remedy in remedies(text):
                if remedy.startswith("/") and Path(remedy).is_relative_to(trial.workdir):
                    shutil.rmtree(remedy, ignore_errors=True)
                else:
                    trial.lm_mia(*remedy.split())
    code, text = trial.lm_mia("run")
    messages.append(f"lm-mia run: {code}: {text[-1500:]}")
    if code == -1:
        return "WRONG: an exception", "\n".join(messages)
    differing = trial.differences()
    is_only_file = differing == [str(path.relative_to(trial.workdir))]
    if kind == "scores: values" and damage == "swap" and is_only_file:
        return "not noticed: intact scores of another model", ""
    if code:
        return "reported, to be restored by the user", "\n".join(messages)
    if differing:
        return "WRONG: results differ", f"{differing}\n" + "\n".join(messages)
    if reported:
        return "reported and repaired", ""
    now = path.read_bytes() if path.exists() else None
    if now != corrupted:
        return "repaired without an error", ""
    return "harmless", ""


def remedies(text: str) -> list[str]:
    """Returns the remedies that messages name: commands without `lm-mia`, and folders to delete."""
    folders = re.findall(r"delete (?:the folder )?(/\S+?)[,;]? and", text)
    folders += re.findall(r"(/\S+): damaged score store .*; delete it", text)
    commands = re.findall(r"`lm-mia ([a-z]+(?: --repair)?)\b[^`]*`", text)
    return [*folders, *dict.fromkeys(c for c in commands if c != "run")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corruptions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder, draw = args.folder.resolve(), random.Random(args.seed)
    tiny, original = tiny_run.Tiny(folder / "tiny"), folder / "original"
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    tried: collections.Counter[str] = collections.Counter()
    write_page = page.write_page
    with tiny_run.on_cpu() as patch, rich.progress.Progress() as bar:
        patch.setattr(supervisor, "run", tiny_run.run_in_process)
        patch.setattr(page, "write_page", held_command.write_no_page)
        if not Path(tiny.config).exists():
            tiny_run.make(tiny.folder)
        if not original.exists():  # other numbers, as from an earlier command with fewer models
            older = Trial(tiny.workdir, _older(original), tiny.config, draw)
            flags = ("--config.attack.bootstraps=77", "--config.attack.alpha=0.2")
            assert (
                older.lm_mia(
                    "run", *flags, "--config.attack.fprs=0.2,0.5", "--config.attack.focus-fpr=0.2"
                )[0]
                == 0
            )
            patch.setattr(page, "write_page", write_page)
            code, text = Trial(tiny.workdir, original, tiny.config, draw).lm_mia("run")
            assert code == 0, text
            write_job_files(original)
        task = bar.add_task("corruptions", total=args.corruptions)
        kinds = [*_KINDS]
        number = done = 0
        while done < args.corruptions:
            kind, damage = kinds[number % len(kinds)], draw.choice(_DAMAGES)
            number += 1
            trial = Trial(original, folder / "trial", tiny.config, draw)
            patch.setattr(
                page,
                "write_page",
                write_page if kind in _DRAWN_KINDS else held_command.write_no_page,
            )
            with contextlib.suppress(FileNotFoundError):  # the older version has no such file
                if (path := trial.corrupt(kind, damage)) is None:
                    continue
                outcome, messages = outcome_of(trial, kind, damage, path)
                counts[kind, outcome] += 1
                tried[kind] += 1
                done += 1
                bar.advance(task)
                if outcome.startswith("WRONG") or "restored" in outcome:
                    name = path.relative_to(folder / "trial")
                    bar.console.print(f"{outcome}: {damage}: {name}: {messages}", markup=False)
    outcomes = sorted({outcome for _, outcome in counts})
    print(f"\n| file | tried | {' | '.join(outcomes)} |\n|---|---|{'---|' * len(outcomes)}")
    for kind in _KINDS:
        print(f"| {kind} | {tried[kind]} | {' | '.join(str(counts[kind, o]) for o in outcomes)} |")
    totals = [sum(counts[kind, o] for kind in _KINDS) for o in outcomes]
    print(f"| all | {tried.total()} | {' | '.join(map(str, totals))} |\n\nseed {args.seed}")
    return any(outcome.startswith("WRONG") for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
