"""A command at work: the stages that a verb names, in order, each making what is missing."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.atomic import FACTS
from lm_mia.config import Config
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import build, subsets
from lm_mia.data.population import MEASURES, Population, open_population, token_columns
from lm_mia.data.subsets import Row
from lm_mia.errors import UserError
from lm_mia.run import devices, inventory, progress, report, supervisor, trackers
from lm_mia.run.workdir import Workdir
from lm_mia.store import check
from lm_mia.store.store import Store, scores_of, with_stored


@dataclasses.dataclass(frozen=True)
class Job:
    """A command at work: its config, its folder and its display."""

    config: Config
    workdir: Workdir
    display: progress.Display
    repair: bool = False
    """Whether corrupt scores are removed, and made again."""
    from_hf_shards: str = ""
    """A glob of files that C4 is made of before it is read."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What every line of the log also says, such as who is at work."""

    def population(self) -> Population:
        """The corpus stage: the population, built if it is not there."""
        c = self.config
        show = self.display.update, self.display.say
        if self.from_hf_shards:
            from lm_mia.data import hf_c4

            hf_c4.convert(self.from_hf_shards, c.corpus.path, c.corpus.processes, *show)
        found = build.build(c.corpus, c.tokenizer, c.population, self.workdir.population, *show)
        self.display.say("\n".join(build.facts(found)))
        return found

    def make_rows(
        self,
        todo: str,
        population: Population,
        recipe: Path,
        only: Sequence[Row] | None = None,
        watch: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> bool:
        """Train, score or both, by workers, until no row is missing; whether to go on with what comes after.

        Args:
          todo: "train", "score", or "run" for both.
          population: which the store's samples are.
          recipe: folder in the workdir.
          only: as of `supervisor.run`, whose errors are raised too.
          watch: also called with every event.
        """
        rows = subsets.rows_of(self.config)
        columns = {name: population.column(name) for name in MEASURES}
        facts = {
            "recipe": recipe.name,
            "population_sha256": population.sha256,
            "subset": self.config.train.subset,
        }
        recipe.mkdir(exist_ok=True)
        of_tokens = token_columns(population, self.config.score.token_samples)
        scores_of(self.config, recipe).ensure(rows, columns, facts, of_tokens)
        if self.repair:
            self._remove_corrupt(recipe)
        rows = rows if only is None else list(only)
        missing, lead = inventory.missing(todo, self.config, recipe, rows), True
        verb = {"train": "train", "score": "score", "run": "train and score"}[todo]
        trained = sum(inventory.trained(self.config, recipe, row) for row in missing)
        left = f"{len(missing)} to {verb}"
        if todo == "run" and trained:
            left = f"{len(missing) - trained} to train, {len(missing)} to score"
        self.display.say(f"rows: {len(rows)} wanted, {len(rows) - len(missing)} present, {left}")
        about = {"recipe": recipe.name, **self.about}
        self.workdir.log(
            {"event": "rows", "todo": todo, "wanted": len(rows), "missing": len(missing)} | about
        )
        if missing:
            tally = progress.Tally(self.display, todo, len(rows), len(missing))
            settings = config.to_dict(self.config)
            opened = trackers.open(
                self.config.train.trackers,
                self.workdir.path,
                recipe.name,
                settings,
                self.display.say,
            )
            with opened as track:

                def on_event(event: dict[str, Any]) -> None:
                    tally.on_event(event)
                    track(event)
                    if event["event"] not in ("step", "scoring", "waiting", "stopping"):
                        self.workdir.log(event | about)
                    watch(event)

                lead = supervisor.run(todo, self.config, self.workdir.path, recipe, on_event, only)
            if only is None:
                tally.finish()  # others may have made some
        return lead

    def _remove_corrupt(self, recipe: Path) -> None:
        store = scores_of(self.config, recipe)
        found = check.check(
            store, store.rows(), lambda done, of: self.display.update("verify", done, of)
        )
        for path in found.corrupt:
            self.display.say(f"{path}: corrupt; removed, to be made again")
            path.unlink()
        self.display.say(
            f"scores: {found.shards} shards, {len(found.missing)} missing, {len(found.corrupt)} corrupt"
        )

    def attack(self, population: Population, recipe: Path, *, decisions_only: bool = False) -> None:
        """Scores -> tables, as of `lm_mia.attacks.runner.run`."""
        from lm_mia.attacks import (
            runner,  # here: scipy and pandas take a second, and most jobs make rows alone
        )

        tables = self.workdir.path / "tables"
        runner.run(
            self._attacked(recipe),
            population,
            self.config.attack,
            tables,
            self.display.update,
            self.display.say,
            decisions_only=decisions_only,
        )

    def _attacked(self, recipe: Path) -> Store:
        """The score store, whose rows have what the attacks need, and perhaps not all that the config asks for."""
        attacks = self.config.attack.attacks
        needed = tuple(config.NEEDED[name] for name in attacks if name in config.NEEDED)
        store = scores_of(self.config, recipe)
        return dataclasses.replace(store, statistics=needed, token_samples=())

    def extract(self, population: Population, recipe: Path) -> None:
        """The first replica and the tables -> how far the samples with the highest scores can be extracted."""
        c, tables = self.config, self.workdir.path / "tables"
        [environment, *_] = devices.environments(1, "device")[1]
        os.environ |= environment
        # here, since they load JAX, which no other stage needs in this process
        from lm_mia.model import transformer
        from lm_mia.run import backend
        from lm_mia.score import extraction
        from lm_mia.score.scorer import restore_params

        facts = self.workdir.table_facts()
        assert facts is not None, "checked before, or just written"
        [row] = [row for row in subsets.rows_of(c) if str(row) == facts["first_target"]]
        shape = transformer.Shape.of(c.model, population.vocab_size, population.length_tokens)
        asked = extraction.chosen(
            extraction.scored(tables / "samples.parquet"), population, c.extract
        )
        if len(asked) < c.extract.samples:
            self.display.say(
                f"extract.samples={c.extract.samples}: {len(asked)} samples have a score and are long enough; all are "
                "asked"
            )
        here = backend.start("device")
        step = c.attack.step or inventory.total_steps(c, row)
        folder = inventory.checkpoints(recipe, row)
        params = restore_params(row, step, shape, folder, here.mesh, here.own)
        found = extraction.extract(params, shape, population, asked, c.extract, self.display.update)
        extraction.write(tables, found, c.extract, str(row), step)
        self.display.say(extraction.summary(found))

    def report(self) -> None:
        """Tables -> figures and report.html, by the script that the config names."""
        report.run(report.script(self.config), [str(self.workdir.path)], self.display)


def work(
    verb: str, c: Config, workdir: Workdir, from_hf_shards: str = "", repair: bool = False
) -> None:
    """Does what a verb other than plan and status says.

    Args:
      verb: of `lm_mia.cli`.
      c: the config.
      workdir: the run's folder.
      from_hf_shards: files that C4 is made of first, for "corpus".
      repair: whether corrupt scores are made again, for "score".

    Raises:
      UserError: bad input of any kind.
      SystemExit: with code 143, if a worker was stopped from outside.
    """
    report.script(c, verb in ("run", "report"))
    if verb in ("run", "train", "score"):
        trackers.check(c.train.trackers)
    population = None
    if verb not in ("run", "corpus"):
        population = open_population(workdir.population)  # a verb too early writes nothing
    if verb == "extract" and not c.extract.samples:
        raise UserError("extract.samples=0: nothing to extract; try --config.extract.samples=1000")
    if verb in ("extract", "report"):
        check_tables(c, workdir)
    created = workdir.claim(c)
    with progress.display(overall=verb == "run") as display:
        job = Job(c, workdir, display, repair, from_hf_shards)
        display.stage(0.1, steps=4)  # read, find duplicates, train the vocabulary, tokenise
        try:
            population = job.population() if population is None else population
        except UserError:
            workdir.disclaim(created)
            raise
        workdir.check(c)  # once more: another command may have claimed a new workdir meanwhile
        recipe = workdir.recipe(recipe_hash(c, population.sha256))
        if repair:
            job = dataclasses.replace(job, config=with_stored(c, recipe))
        display.stage(0.85, steps=2)  # train, score
        if verb in ("run", "train", "score"):
            lead = job.make_rows(verb, population, recipe)
            supervisor.check_diverged(recipe, subsets.rows_of(c))
            display.say("rows: all present")
            if not lead:
                return  # the first process of the job does the rest
        # Two commands may get here at once; tables and figures are written by one at a time.
        with report.alone(workdir.path / ".report.lock", display):
            display.stage(0.01)
            if verb in ("run", "attack"):
                job.attack(population, recipe)
            if verb == "extract" or (verb == "run" and c.extract.samples):
                job.extract(population, recipe)
            display.stage(0.04)
            if verb in ("run", "report"):
                job.report()
    from lm_mia.run import status  # here: pandas

    status.summary(verb, workdir, recipe)


def check_tables(c: Config, workdir: Workdir) -> None:
    """UserError if the tables belong to other settings of the attack than the config's."""
    if workdir.table_facts() is None:
        raise UserError(f"{workdir.path / FACTS}: no finished tables; run `lm-mia attack` first")
    different = [
        f"attack.{name}={_said(asked)}: the tables were made with {_said(made)}; say that here too, or "
        "run `lm-mia attack` first"
        for name, (asked, made) in workdir.other_settings(c).items()
    ]
    if different:
        raise UserError("\n".join(different))


def _said(value: object) -> str:
    """As a flag takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)
