"""A command at work on a sweep: a verb done for every recipe, and one report of all."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import filelock
from rich.console import Console
from rich.table import Table

from lm_mia.config import Config
from lm_mia.config.recipe import from_dict, recipe_hash, union
from lm_mia.data import build, corpus
from lm_mia.data.population import Population, open_population
from lm_mia.errors import UserError
from lm_mia.run import pipeline, plan, progress, report, supervisor, sweep, trackers
from lm_mia.run.pipeline import Job
from lm_mia.run.status import counts
from lm_mia.run.sweep import Task
from lm_mia.store import check
from lm_mia.store.store import scores_of, with_stored


def work(verb: str, tasks: Sequence[Task], folder: Path, c: Config, repair: bool = False) -> None:
    """Does what a verb other than plan and status says, recipe by recipe.

    Rows of all recipes come before the tables of any, so that a report can be made as soon as the last row is there.

    Args:
      verb: of `lm_mia.cli`.
      tasks: the recipes.
      folder: of the sweep.
      c: the config itself, for what is not of a recipe: the report.
      repair: whether corrupt scores are made again, for "score".

    Raises:
      UserError: bad input of any kind; what is so of one recipe, such as rows that diverged, once all others are done.
      SystemExit: with code 143, if a worker was stopped from outside.
    """
    drawn = verb in ("run", "report") and bool(c.figures)
    if verb == "report" and not drawn:
        raise UserError("figures=(): nothing to draw; try --config.figures=scaling")
    if c.report == Config.report:  # which is of one recipe
        c = dataclasses.replace(c, report="analysis/page.py")
    script = report.script(c, drawn)
    asked = [t for t in tasks if t.config.extract.samples]
    extracts = [t for t in asked if t.config.attack.replicas]
    if verb == "extract" and not extracts:
        raise UserError(
            "attack.replicas=0: extraction is from the first replica; try --config.attack.replicas=2"
            if asked
            else "extract.samples=0: nothing to extract; try --config.extract.samples=1000"
        )
    for task in extracts if verb == "extract" else tasks if verb == "report" else []:
        if verb == "extract" or task.workdir.table_facts():
            c_tables = tasks_with_stored(task)
            of_lira = dataclasses.replace(c_tables.attack, attacks=("lira_online",))
            pipeline.check_tables(dataclasses.replace(c_tables, attack=of_lira), task.workdir)
    if verb in ("run", "train", "score"):
        trackers.check(c.train.trackers)
    with progress.display(overall=verb == "run") as display:
        jobs, lead, wrong = [], True, list[str]()
        # what asks for most first: a corpus may have too few documents
        largest = max(tasks, key=lambda t: t.config.population.samples)
        opens = corpus.remembering()
        if verb in ("run", "corpus") and not largest.population.exists():
            population(largest, display, opens)
        for number, task in enumerate(tasks, 1):
            display.stage(0.1 / len(tasks), steps=4)
            display.say(f"recipe {number} of {len(tasks)}: {task.label}, in {task.folder}")
            if verb not in ("run", "corpus"):
                open_population(task.population, verify=False)  # a verb too early writes nothing
            found = population(task, display, opens)
            recipe = task.workdir.recipe(recipe_hash(task.config, found.sha256))
            jobs.append((task, Job(task.config, task.workdir, display, repair), found, recipe))
        del opens  # and the texts, before hours of training
        if verb in ("run", "train", "score"):
            lead, wrong = _rows(verb, jobs, display)
        if not lead:  # the first process of the job does the rest
            if wrong:
                raise UserError("\n".join(wrong))
            return
        with report.alone(folder / ".report.lock", display):
            for task, at_work, found, recipe in jobs:
                display.stage(0.06 / len(jobs), steps=2)
                whole = dataclasses.replace(at_work, config=tasks_with_stored(task))
                try:
                    if verb in ("run", "attack") and task.config.attack.replicas:
                        display.say(f"attack: {task.label}")
                        whole.attack(found, recipe, decisions_only=True)
                    if verb in ("run", "extract") and task in extracts:
                        whole.extract(found, recipe)
                except UserError as error:  # such as too few rows, where some diverged
                    wrong.append(f"{task.label}: {error}")
            display.stage(0.04)
            if drawn:
                recipes = [f"--recipe={task.folder}" for task in tasks]
                figures = [f"--figure={name}" for name in c.figures]
                report.run(script, [str(folder), *recipes, *figures], display)
    if drawn:
        print(f"figures     {folder / 'figures'}\nreport      {folder / 'report.html'}")
    if wrong:
        raise UserError("\n".join(wrong))


_Jobs = list[tuple[Task, Job, Population, Path]]


def _rows(verb: str, jobs: _Jobs, display: progress.Display) -> tuple[bool, list[str]]:
    """The rows of all recipes; whether to go on with what comes after, and a line a recipe of rows that diverged."""
    lengths = [
        plan.recipe(t.asked, plan.assumed(t.config.population.length_tokens), 0) for t, *_ in jobs
    ]
    flops = [r.train_flops + r.score_flops for r in lengths]
    lead, diverged = True, []
    for number, ((task, at_work, found, recipe), share) in enumerate(
        zip(jobs, flops, strict=True), 1
    ):
        display.stage(0.8 * share / sum(flops), steps=2)
        display.say(f"recipe {number} of {len(jobs)}: {task.label}")
        if at_work.repair:
            at_work = dataclasses.replace(at_work, config=with_stored(task.config, recipe))
        lead = at_work.make_rows(verb, found, recipe) and lead
        try:
            supervisor.check_diverged(recipe, task.rows)
        except UserError as error:
            diverged.append(f"{task.label}: {error}")
    return lead, diverged


def population(
    task: Task, display: progress.Display, opens: corpus.Opens = corpus.open_corpus
) -> Population:
    """The samples of a task, made if they are not there; its workdir is claimed for its config."""
    c, (created, linked) = task.config, _claim(task)
    show = display.update, display.say
    try:
        found = build.build(c.corpus, c.tokenizer, c.population, task.population, *show, opens)
    except UserError as error:
        if linked:
            task.workdir.population.unlink(missing_ok=True)
        task.workdir.disclaim(created)
        if task.shared is not None and str(error).startswith("population.samples="):
            raise UserError(
                f"{task.label}: {error}; or, where the sweep sets it, leave out figures or entries that want as many"
            ) from error
        raise
    task.workdir.check(c)  # once more: another command may have claimed a new workdir meanwhile
    return found


def _claim(task: Task) -> tuple[list[Path], bool]:
    """What was created of the task's workdir, and whether it was linked to its population.

    One command of a sweep does so at a time, so that two that begin at once share a folder, and its config.json has the
    names and rows of both.
    """
    if task.shared is None:
        return task.workdir.claim(task.config), False
    lock = task.home / ".sweep.lock"
    created = [p for p in (*reversed(task.home.parents), task.home, lock) if not p.exists()]
    try:
        task.home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            return created + task.workdir.claim(tasks_with_stored(task)), sweep.link(task)
    except OSError as error:
        raise UserError(
            f"--workdir={task.home}: {error.strerror}; choose a folder that can be written"
        ) from error


def tasks_with_stored(task: Task) -> Config:
    """The task's config, asking also for what earlier commands asked of the recipe: names, rows, statistics.

    So a figure that needs fewer rows of a recipe leaves what others have of it. A name that the sweep now gives to
    another recipe is that one's.
    """
    stored = task.workdir.check(task.config)
    if stored is None or task.shared is None:
        return task.config
    both = union(task.config, from_dict(stored["config"]))
    names = [name for name in both.name.split("+") if name not in task.others]
    return dataclasses.replace(both, name="+".join(names))


def status(tasks: Sequence[Task], folder: Path, verify: bool) -> None:
    """Prints a line a recipe: which rows and tables are there; reads every score if asked to verify."""
    table = Table(title=str(folder))
    for column in ("recipe", "rows wanted", "trained", "scored", "missing", "tables"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    missing, corrupt = list[str](), list[str]()
    for task in tasks:
        c, rows, recipe = task.config, task.rows, task.recipe()
        if recipe is None:
            table.add_row(task.label, str(len(rows)), "0", "0", str(len(rows)), "")
            continue
        task.workdir.check(c)
        there = "present" if task.workdir.table_facts() else "missing"
        tables = there if c.attack.replicas else "none asked"
        table.add_row(task.label, *counts(c, recipe, rows), tables)
        if verify:
            store = scores_of(with_stored(c, recipe), recipe)
            found = check.check(store, store.rows(), lambda done, of: None)
            missing += [f"missing     {path}" for path in found.missing]
            corrupt += [f"{path}: corrupt" for path in found.corrupt]
    Console().print(table)
    print(*missing, sep="\n", end="\n" if missing else "")
    print(f"report      {'present' if (folder / 'report.html').exists() else 'missing'}")
    if corrupt:
        raise UserError("\n".join([*corrupt, "`lm-mia score --repair` makes these again"]))
