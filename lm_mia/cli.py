"""The command line: ``lm-mia VERB --config=FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

run = corpus, then train and score row by row, then attack, then report. Every verb makes what is missing and leaves
what is there, so that the same command goes on where an earlier one stopped, however it stopped.
"""

import argparse
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import filelock
import tyro

from lm_mia import attack, config, corpus, progress, status, workers
from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.parse import parse
from lm_mia.population import Population, open_population
from lm_mia.store import Store
from lm_mia.workdir import FACTS, Workdir

VERBS = {
    "run": "everything below, in order",
    "corpus": "documents -> vocabulary and population",
    "train": "train the rows that are missing",
    "score": "score the rows that are trained",
    "attack": "scores -> tables",
    "report": "tables -> figures and report.html",
    "status": "what is there and what is missing",
}


@dataclasses.dataclass(frozen=True)
class Job:
    """A command at work: its config, its folder and its display."""

    config: Config
    workdir: Workdir
    display: progress.Display

    def population(self) -> Population:
        """The corpus stage: the population, built if it is not there."""
        c = self.config
        found = corpus.build(
            c.corpus, c.tokenizer, c.population, self.workdir.population, self.display.update
        )
        corpus_facts, model = (
            found.manifest["provenance"],
            found.manifest["files"]["tokenizer.model"],
        )
        for line in (
            f"corpus: {corpus_facts['documents']} documents, sha256 {corpus_facts['corpus_sha256']}",
            f"vocabulary: {found.vocab_size} pieces, sha256 {model['sha256']}",
            f"population: {len(found)} samples, sha256 {found.sha256}",
        ):
            self.display.say(line)
        return found

    def make_rows(self, todo: str, population: Population, recipe: Path) -> None:
        """Train, score or both, by workers, until no row is missing."""
        rows = workers.rows_of(self.config)
        columns = {k: population.table[k].to_numpy() for k in ("tokens", "unk", "zlib_bytes")}
        facts = {
            "recipe": recipe.name,
            "population_sha256": population.sha256,
            "subset": self.config.train.subset,
        }
        recipe.mkdir(exist_ok=True)
        workers.scores_of(self.config, recipe).ensure(rows, columns, facts)
        missing = workers.missing(todo, self.config, recipe, rows)
        verb = {"train": "train", "score": "score", "run": "train and score"}[todo]
        trained = sum(workers.trained(self.config, recipe, row) for row in missing)
        self.display.say(
            f"rows: {len(rows)} wanted, {len(rows) - len(missing)} present, {len(missing)} to {verb}"
            + (f" ({trained} of them trained already)" if trained and todo == "run" else "")
        )
        about = {"recipe": recipe.name}
        self.workdir.log(
            {"event": "rows", "todo": todo, "wanted": len(rows), "missing": len(missing)} | about
        )
        if missing:
            tally = progress.Tally(self.display, todo, len(rows), len(missing))

            def on_event(event: dict[str, Any]) -> None:
                tally.on_event(event)
                if event["event"] not in ("step", "waiting"):
                    self.workdir.log(event | about)

            workers.run(todo, self.config, self.workdir.path, recipe, on_event)
            tally.finish()
        self.display.say("rows: all present")

    def attack(self, population: Population, recipe: Path) -> None:
        """Scores -> tables."""
        attacks = self.config.attack.attacks
        needed = tuple(config.NEEDED[name] for name in attacks if name in config.NEEDED)
        store, tables = Store(recipe / "scores.zarr", needed), self.workdir.path / "tables"
        attack.run(
            store, population, self.config.attack, tables, self.display.update, self.display.say
        )

    def report(self) -> None:
        """Tables -> figures and report.html, by the script that the config names."""
        script = _report_script(self.config)
        self.display.update("report", 0, 1)
        command = [sys.executable, str(script.absolute()), str(self.workdir.path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 2:
            raise UserError(done.stderr.strip())
        if done.returncode:
            raise RuntimeError(f"{script} failed:\n{done.stderr}")
        self.display.update("report", 1, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 2 for a user's mistake, 130 or 143 if stopped."""
    # A SIGTERM unwinds like an exception, so that workers are stopped; nothing on disk needs it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        verb, c, workdir = _arguments(sys.argv[1:] if argv is None else argv)
        if verb == "status":
            status.show(c, workdir)
        else:
            _work(verb, c, workdir)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _work(verb: str, c: Config, workdir: Workdir) -> None:
    if verb in ("run", "report"):
        _report_script(c)  # a misspelt name is told now, not after hours of training
    population = None
    if verb not in ("run", "corpus"):
        population = open_population(workdir.population)  # a verb too early writes nothing
    if verb == "report":
        _check_tables(c, workdir)
    created = workdir.claim(c)
    with progress.display(overall=verb == "run") as display:
        job = Job(c, workdir, display)
        display.stage(0.1, steps=4)  # read, find duplicates, train the vocabulary, tokenise
        try:
            population = job.population() if population is None else population
        except UserError:
            workdir.disclaim(created)
            raise
        workdir.check(c)  # once more: another command may have claimed a new workdir meanwhile
        recipe = workdir.recipe(config.recipe_hash(c, population.sha256))
        display.stage(0.85, steps=2)  # train, score
        if verb in ("run", "train", "score"):
            job.make_rows(verb, population, recipe)
        # Two commands may get here at once; tables and figures are written by one at a time.
        with _alone(workdir.path / ".report.lock", display):
            display.stage(0.01)
            if verb in ("run", "attack"):
                job.attack(population, recipe)
            display.stage(0.04)
            if verb in ("run", "report"):
                job.report()
    status.summary(verb, workdir, recipe)


@contextlib.contextmanager
def _alone(path: Path, display: progress.Display) -> Iterator[None]:
    """Holds a lock; says so if another command has it."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        display.say("waiting for another command, which writes the tables of this workdir")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_tables(c: Config, workdir: Workdir) -> None:
    """UserError if the tables belong to other settings of the attack than the config's."""
    path = workdir.path / FACTS
    if path.exists():
        try:
            made = dict(json.loads(path.read_text())["config"])
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path}: damaged; run `lm-mia attack` again") from error
        asked = config.to_dict(c)["attack"]
        different = [
            f"attack.{name}={asked[name]!r}: the tables were made with {made.get(name)!r}; say that here too, or run "
            "`lm-mia attack` first"
            for name in asked
            if made.get(name) != asked[name]
        ]
        if different:
            raise UserError("\n".join(different))


def _report_script(c: Config) -> Path:
    places = [Path(__file__).parent.parent / c.report, Path(c.report)]
    script = next((p for p in places if p.is_file()), None)
    if script is None:
        raise UserError(f"report={c.report!r}: no such script in the checkout or here")
    return script


def _arguments(argv: Sequence[str]) -> tuple[str, Config, Workdir]:
    parser = _Parser(
        prog="lm-mia", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.description = "Membership inference on language models, from text to attack tables."
    parser.epilog = "\n".join(
        [
            *(f"  {verb:8} {what}" for verb, what in VERBS.items()),
            "",
            "Fields of the config: lm-mia fields. Example:",
            "  lm-mia run --config=configs/quickstart.py --workdir=runs/quickstart --config.model.layers=3",
        ]
    )
    parser.add_argument("verb", choices=[*VERBS, "fields"], metavar="VERB")
    parser.add_argument(
        "--config", metavar="FILE.py[:ARG]", help="defines get_config(); ARG goes to it"
    )
    parser.add_argument(
        "--workdir", metavar="DIR", help="where everything is written; used again to go on"
    )
    known, rest = parser.parse_known_args(argv)
    if known.verb == "fields":
        tyro.cli(_Fields, prog="lm-mia VERB", args=["--help"])
    needed = [
        f"--{name}: missing; say --{name}={what}"
        for name, what in (("config", "configs/quickstart.py"), ("workdir", "runs/quickstart"))
        if not getattr(known, name)
    ]
    if needed:
        raise UserError("\n".join(needed))
    return known.verb, parse(known.config, rest), Workdir(Path(known.workdir))


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Every field of a config, its default and what it means; a config file sets its own defaults."""

    config: Config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"lm-mia: {message}; see lm-mia --help")


if __name__ == "__main__":
    sys.exit(main())
