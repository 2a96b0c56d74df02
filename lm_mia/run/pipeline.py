"""Runs the stages of a command on all recipes of a sweep; each stage computes only what is missing.

The models of all recipes are made before any tables.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import filelock

from lm_mia import config
from lm_mia.attacks import spec
from lm_mia.attacks.headline import effective_attack
from lm_mia.attacks.spec import FigureNeed, PresentModels, RecipeModels, RecipeNeeds
from lm_mia.config import validate
from lm_mia.data import build, corpus, subsets
from lm_mia.data.population import Population, open_population, token_columns
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.printing import plural
from lm_mia.run import (
    base_scores,
    devices,
    inventory,
    model_sizes,
    progress,
    supervisor,
    trackers,
)
from lm_mia.run import sweep as sweeps
from lm_mia.run.costs import RecipeCost, assumed_lengths, recipe_cost
from lm_mia.run.progress import Display
from lm_mia.run.remaining import RecipeWork, RemainingTime
from lm_mia.run.stages import STAGES, ModelVerb, Stage, Verb, requested_table_stages
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.worker_task import WorkerTask
from lm_mia.store.store import open_store, with_stored_statistics

if TYPE_CHECKING:
    import pandas as pd

    from lm_mia.attacks.experiment import RecipeView
    from lm_mia.attacks.results import Key, Results
    from lm_mia.attacks.unchanged import Inputs

RecipePopulations = list[tuple[SweepRecipe, Population]]

_MADE = ("pieces", "tables")
"""Folders of a recipe that the stages attack and extract write."""
_CHECK_SECONDS = 10.0  # between checks for models that other processes have finished
_MAX_CHECK_SHARE = 0.02  # of the time is spent on these checks, even if the file system is slow


def run(
    verb: Verb,
    sweep: Sweep,
    draw: "Callable[[Sweep, Display, Inputs | None], None] | None" = None,
    figure_needs: Callable[[], Sequence[FigureNeed]] = tuple,
    *,
    from_hf_shards: str = "",
    repair: bool = False,
) -> tuple[Sweep | None, list[str]]:
    """Runs the stages of a verb.

    Args:
      verb: a key of `STAGES`.
      sweep: the recipes.
      draw: makes the report page; called last, and required if the verb has the stage "report". Its last argument is
        what the page follows from; None: this is not known, so that nothing is unchanged.
      figure_needs: returns what the figures need from the stage "attack" in addition to the tables of decisions. It is
        called only if tables are made, since it loads the modules of all figures.
      from_hf_shards: for "corpus", a glob of files that are first converted to a C4 dataset.
      repair: for "score", whether corrupt scores are removed and computed again.

    Returns:
      The sweep with the recipes whose stages succeeded (None in all processes of a job except the first, which alone
      runs the stages after "score"), and a line for each failure, such as models that diverged.

    Raises:
      UserError: if any input is invalid, or no recipe could be attacked.
      SystemExit: with code 143, if a worker was terminated from outside.
    """
    stages = STAGES[verb]
    if "report" not in stages:
        sweeps.require_recipes(sweep, f"lm-mia {verb}")
    _check(verb, sweep)
    diverged: list[str] = []
    failed: dict[str, str] = {}
    with progress.display(overall=verb == "run" and bool(sweep.recipes)) as display:
        if from_hf_shards:
            from lm_mia.data import hf_c4

            corpus = sweep.recipes[0].config.corpus
            hf_c4.convert(
                from_hf_shards,
                corpus.path,
                config.number(corpus.processes),
                display.update,
                display.say,
            )
        if "corpus" not in stages:
            # Fails before anything is written if there is no population.
            for recipe in sweep.recipes:
                open_population(recipe.population_dir, verify=False)
        sweep, recipe_populations = build_populations(sweep, display)
        if sweep.recipes and {"train", "score"} & {*stages}:
            assert verb in ("run", "train", "score")
            is_primary, diverged = _make_all_models(verb, recipe_populations, display, repair)
            if not is_primary:
                return None, diverged
        if {"attack", "extract", "report"} & {*stages}:
            # Only one command at a time may write tables and figures.
            with _exclusive_lock(sweep.workdir.path / ".report.lock", display):
                inputs = read_inputs(sweep)
                failed = _make_tables(stages, recipe_populations, figure_needs, inputs, display)
                if failed:  # whose settings may be others now
                    inputs = None
                if failed and len(failed) == len(recipe_populations):
                    raise UserError("\n".join([*failed.values(), *diverged]))
                display.stage(0.04)
                if "report" in stages:
                    assert draw is not None
                    try:
                        with _logged_seconds("report", sweep.recipes[:1]):
                            draw(sweep, display, inputs)
                    except UserError as error:
                        lines = [str(error), *failed.values(), *diverged]
                        if verb == "report":  # which computes what is missing
                            restored = [
                                sweeps.restore_settings(recipe, keeps_models=False)
                                for recipe in sweep.recipes
                            ]
                            lines += filter(None, restored)
                        raise UserError("\n".join(lines)) from error
    recipes = tuple(recipe for recipe in sweep.recipes if recipe.name not in failed)
    return dataclasses.replace(sweep, recipes=recipes), [*failed.values(), *diverged]


@contextlib.contextmanager
def _logged_seconds(stage: Stage, recipes: Sequence[SweepRecipe]) -> Iterator[None]:
    """Logs the duration of the block as that of a stage, once for each of the recipes, unless the block fails."""
    began = time.monotonic()
    yield
    seconds = round(time.monotonic() - began, 3)
    for recipe in recipes:
        event = {"event": "stage", "stage": stage, "recipe": recipe.name, "seconds": seconds}
        recipe.workdir.log_event(event)


def _check(verb: Verb, sweep: Sweep) -> None:
    """Raises UserError for errors that would otherwise be noticed only after hours, or in the middle of a stage."""
    configs = [recipe.config for recipe in sweep.recipes]
    if verb in ("run", "train", "score"):
        sweeps.check_attacked(sweep.recipes)
        if verb != "score":
            model_sizes.check(configs)
        trackers.check_trackers(sorted({name for c in configs for name in c.train.trackers}))
        for c in configs:
            if c.compute.devices_per_model != "auto":  # which always suits the machine
                count = config.number(c.compute.devices_per_model)
                devices.assign(config.number(c.train.workers), count)
    requested_by_recipe = [requested_table_stages(c) for c in configs]
    if verb == "attack" and all(validate.nothing_attacked(c) for c in configs):
        sweeps.check_attacked(sweep.recipes)
    if verb == "extract" and not any(c.extract.samples for c in configs):
        raise UserError("extract.samples=0: nothing to extract; try --config.extract.samples=1000")
    if verb == "extract" and not any("extract" in requested for requested in requested_by_recipe):
        raise UserError(
            "attack.replicas=0: extraction needs a replica to extract from; try --config.attack.replicas=2"
        )


def build_populations(sweep: Sweep, display: Display) -> tuple[Sweep, RecipePopulations]:
    """Runs the corpus stage: claims the folders of all recipes, and builds or opens the population of each.

    Returns:
      The sweep, with the final folders of the recipes, and each recipe with its population.

    Raises:
      UserError: if the input is invalid; what this command created is then removed, unless a population exists.
    """
    others = sorted({*sweep.workdir.recipe_names()} - {recipe.name for recipe in sweep.recipes})
    added = [recipe.name for recipe in sweep.recipes if recipe.stored_config() is None]
    if others and added:
        display.say(
            f"--workdir={sweep.workdir.path}: already has {', '.join(others)}; this command adds {', '.join(added)}"
        )
    for line in sweeps.unlisted_removals(sweep):
        display.say(line)
    sweep, disclaim = sweeps.claim_folders(sweep)
    for message in dict.fromkeys(m for recipe in sweep.recipes for m in recipe.kept_settings):
        display.say(message)
    open_corpus = corpus.caching_opener()
    built: dict[Path, Population] = {}
    # The largest population first, since the corpus may have too few documents for it.
    by_size = sorted(sweep.recipes, key=lambda recipe: -recipe.config.population.samples)
    for recipe in by_size:
        # Read, deduplicate, train the vocabulary, tokenize.
        display.stage(0.1 / len(sweep.recipes), num_parts=4)
        c = recipe.config
        try:
            if recipe.population_dir not in built:
                is_new = not recipe.population_dir.exists()
                with _logged_seconds("corpus", [recipe] if is_new else []):
                    population = build.build_population(
                        c.corpus,
                        c.tokenizer,
                        c.population,
                        recipe.population_dir,
                        display.update,
                        display.say,
                        open_corpus,
                    )
                built[recipe.population_dir] = population
                display.say("\n".join(build.describe(population)))
        except UserError as error:
            disclaim()
            if len(sweep.recipes) > 1 and str(error).startswith("population.samples="):
                raise UserError(
                    f"{recipe.name}: {error}; or leave out the entries or figures of the sweep that need more samples"
                ) from error
            raise
        sweeps.record_population(recipe, built[recipe.population_dir].sha256)
    return sweep, [(recipe, built[recipe.population_dir]) for recipe in sweep.recipes]


def _make_all_models(
    verb: ModelVerb, recipe_populations: RecipePopulations, display: Display, repair: bool
) -> tuple[bool, list[str]]:
    """Makes the models of all recipes.

    Returns:
      Whether this process runs the stages that follow, and a line for each recipe with models that diverged.
    """
    costs = [
        recipe_cost(recipe, assumed_lengths(recipe.config)) for recipe, _ in recipe_populations
    ]
    flops = [cost.train_flops + cost.score_flops for cost in costs]
    is_primary, diverged = True, []
    work = [
        _recipe_work(verb, recipe, cost)
        for (recipe, _), cost in zip(recipe_populations, costs, strict=True)
    ]
    display.estimate_from_models(RemainingTime(work, verb))
    for number, ((recipe, population), share) in enumerate(
        zip(recipe_populations, flops, strict=True), 1
    ):
        display.stage(0.8 * share / sum(flops), num_parts=2)
        if len(recipe_populations) > 1:
            display.say(f"recipe {number} of {len(recipe_populations)}: {recipe.name}")
        is_primary &= make_models(verb, recipe, population, display, repair=repair)
        display.track({"event": "models_present", "recipe": recipe.name})
        try:
            supervisor.check_diverged(recipe.folder, recipe.models)
        except UserError as error:
            diverged.append(_with_recipe_name(recipe, error, len(recipe_populations)))
        else:
            display.say("models: all present")
    return is_primary, diverged


def _recipe_work(verb: ModelVerb, recipe: SweepRecipe, cost: RecipeCost) -> RecipeWork:
    """Returns the work that a command has to do on a recipe, to estimate the remaining time."""
    c, num_missing = recipe.config, len(recipe.models)
    if (recipe.folder / "scores.zarr").exists():
        num_missing = len(inventory.missing_models(verb, c, recipe.folder, recipe.models))
    model_flops = (
        cost.train_flops * (verb != "score") + cost.score_flops * (verb != "train")
    ) / cost.models
    return RecipeWork(recipe.name, num_missing, model_flops)


def _with_recipe_name(recipe: SweepRecipe, error: UserError, num_recipes: int) -> str:
    return f"{recipe.name}: {error}" if num_recipes > 1 else str(error)


def make_models(
    verb: ModelVerb,
    recipe: SweepRecipe,
    population: Population,
    display: Display,
    *,
    repair: bool = False,
    selected_models: Sequence[ModelSeeds] | None = None,
    log_fields: Mapping[str, Any] = MappingProxyType({}),
    watch: Callable[[dict[str, Any]], None] = lambda event: None,
) -> bool:
    """Trains and/or scores models in worker processes until no model of a recipe is missing.

    Args:
      verb: whether to train models, score them, or both ("run").
      recipe: the recipe, whose folder must be claimed.
      population: the samples of the recipe.
      display: shows progress.
      repair: whether corrupt scores are removed first and computed again.
      selected_models: as in `WorkerTask`.
      log_fields: fields that are added to each event in the log, such as the name of the job.
      watch: also called with each event.

    Returns:
      Whether this process runs the stages that follow: True only in the first process of a job.

    Raises:
      UserError, RuntimeError, SystemExit: as in `supervisor.run`.
    """
    c, recipe_dir = recipe.config, recipe.folder
    if repair:
        c = with_stored_statistics(c, recipe_dir)
    columns = population.sample_columns()
    facts = {
        "recipe": recipe.name,
        "population_sha256": population.sha256,
        "subset": c.train.subset,
    }
    token_data = token_columns(population, c.score.token_samples)
    open_store(c, recipe_dir).create_or_extend(recipe.models, columns, facts, token_data)
    if repair:
        _remove_corrupt(recipe, population, display)
    if verb != "train" and (other := base_scores.copy_from_another_recipe(recipe)):
        display.say(
            f"{subsets.base()}: scored before, in the recipe {other}; its scores were copied"
        )
    requested = recipe.models if selected_models is None else list(selected_models)
    missing, is_primary = inventory.missing_models(verb, c, recipe_dir, requested), True
    trained = sum(inventory.is_trained(c, recipe_dir, model) for model in missing)
    work = f"{len(missing)} to {'train and score' if verb == 'run' else verb}"
    if verb == "run" and trained:
        work = f"{len(missing) - trained} to train, {len(missing)} to score"
    display.say(
        f"models: {len(requested)} requested, {len(requested) - len(missing)} present, {work}"
    )
    log_fields = {"recipe": recipe.name, **log_fields}
    event = {"event": "models", "verb": verb, "requested": len(requested), "missing": len(missing)}
    recipe.workdir.log_event(event | log_fields)
    if not c.train.keep_moments:  # which earlier commands may have kept
        unscored = {*inventory.unscored_models(c, recipe_dir, requested)}
        for model in requested:
            if model not in unscored:
                inventory.drop_moments(recipe_dir, model)
    if not missing:
        return is_primary
    if not display.estimates_models:  # of this recipe alone
        work = RecipeWork(recipe.name, len(missing), 1.0)
        display.estimate_from_models(RemainingTime([work], verb))
    display.track(event | {"recipe": recipe.name})
    finished_elsewhere = _FinishedElsewhere(verb, recipe, missing)
    tally = progress.Tally(display, verb, len(requested), len(missing))
    tracker = trackers.open_trackers(
        c.train.trackers, recipe.workdir.path, recipe.name, config.to_dict(c), display.say
    )
    with tracker as track_event:

        def on_event(event: dict[str, Any]) -> None:
            tally.on_event(event)
            finished_elsewhere.on_event(event, display)
            track_event(event)
            if event["event"] not in ("step", "scoring", "waiting", "stopping"):
                recipe.workdir.log_event(event | log_fields)
            watch(event)

        task = WorkerTask(verb, c, recipe.population_dir, recipe_dir, selected_models)
        is_primary = supervisor.run(task, on_event)
    if selected_models is None:
        tally.finish()  # other processes may have made some of the models
    return is_primary


class _FinishedElsewhere:
    """Counts the models of a recipe that other processes finish, for the estimate of the remaining time.

    Args:
      verb: whether models are trained, scored, or both.
      recipe: the recipe.
      missing: the models that were missing when this command began to make models.
    """

    def __init__(self, verb: ModelVerb, recipe: SweepRecipe, missing: list[ModelSeeds]):
        self._verb: ModelVerb = verb
        self._recipe, self._missing = recipe, missing
        self._started_here: set[str] = set()
        self._next_check = time.monotonic() + _CHECK_SECONDS

    def on_event(self, event: dict[str, Any], display: Display) -> None:
        """Handles an event of a worker; looks for finished models in the workdir from time to time."""
        if event["event"] == "model_started":
            self._started_here.add(event["model"])
        began = time.monotonic()
        if began < self._next_check:
            return
        recipe = self._recipe
        missing = inventory.missing_models(self._verb, recipe.config, recipe.folder, self._missing)
        present = {str(model) for model in self._missing} - {str(model) for model in missing}
        display.track({"event": "finished_elsewhere", "count": len(present - self._started_here)})
        now = time.monotonic()
        self._next_check = now + max(_CHECK_SECONDS, (now - began) / _MAX_CHECK_SHARE)


def _remove_corrupt(recipe: SweepRecipe, population: Population, display: Display) -> None:
    report = inventory.check_store(
        recipe.config,
        recipe.folder,
        population,
        lambda done, total: display.update("verify", done, total),
    )
    for path in report.corrupt:
        display.say(f"{path}: corrupt; it was removed and will be computed again")
        path.unlink()
    for path in report.lost_records:
        display.say(
            f"{path}: was deleted or exchanged; it is not known any more how this model was trained"
        )
        path.unlink(missing_ok=True)
    display.say(
        f"scores: {report.num_shards} shards, {len(report.missing)} missing, {len(report.corrupt)} corrupt"
    )


@contextlib.contextmanager
def _exclusive_lock(path: Path, display: Display) -> Iterator[None]:
    """Holds a lock during the block; prints a message before waiting for another command that holds it."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        display.say("waiting for another process that is writing the tables of this workdir")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def read_inputs(sweep: Sweep) -> "Inputs | None":
    """Returns what the results of a sweep follow from; None if that is not known."""
    from lm_mia.attacks import unchanged

    recipes = {recipe.folder: (recipe.config, recipe.names) for recipe in sweep.recipes}
    return unchanged.read_inputs(recipes, sweep.figures)


def _make_tables(
    stages: Sequence[Stage],
    recipe_populations: RecipePopulations,
    figure_needs: Callable[[], Sequence[FigureNeed]],
    inputs: "Inputs | None",
    display: Display,
) -> dict[str, str]:
    """Runs the attack and extract stages for each recipe; returns the failures: name of the recipe -> message.

    Tables that were made of the same inputs, and were not edited since, are not made again. Recipes without new tables
    get their earlier settings back.
    """
    from lm_mia.attacks.unchanged import Made, files_in
    from lm_mia.attacks.user_code import UserCodeError

    made_here = [stage for stage in ("attack", "extract") if stage in stages]
    if not made_here or not recipe_populations:
        return {}
    workdir = recipe_populations[0][0].workdir.path
    made, name = Made(workdir), f"tables of {' and '.join(made_here)}"
    key = inputs.key() if inputs else ""
    counts_by_recipe = made.find(name, key)
    if counts_by_recipe is not None:
        for recipe, _ in recipe_populations:
            _say_unchanged(recipe, made_here, counts_by_recipe.get(recipe.name), display)
        return {}
    failed, counts_by_recipe = dict[str, str](), {}
    with_tables: set[str] = set()
    try:
        needed_by_recipe = (
            requested_attacks(recipe_populations, figure_needs()) if "attack" in stages else {}
        )
        for recipe, population in recipe_populations:
            display.stage(0.06 / len(recipe_populations), num_parts=4)
            try:
                needed = needed_by_recipe.get(recipe.name)
                counts = _make_tables_of(recipe, population, made_here, needed, display)
                if counts is not None:
                    counts_by_recipe[recipe.name] = counts
                with_tables.add(recipe.name)
            except UserError as error:  # for example too few models, because some diverged
                failed[recipe.name] = _with_recipe_name(recipe, error, len(recipe_populations))
                if isinstance(error, UserCodeError):  # all other tables are made
                    with_tables.add(recipe.name)
    finally:
        for recipe, _ in recipe_populations:
            if recipe.name not in with_tables:
                line = sweeps.restore_settings(recipe, keeps_models="train" in stages)
                if line and recipe.name in failed:
                    failed[recipe.name] += f"\n{line}"
    if inputs and not failed:
        folders = [recipe.folder / part for recipe, _ in recipe_populations for part in _MADE]
        made.store(name, key, files_in(*folders), counts_by_recipe)
    return failed


def _make_tables_of(
    recipe: SweepRecipe,
    population: Population,
    stages: Sequence[str],
    needed: RecipeNeeds | None,
    display: Display,
) -> dict[str, int] | None:
    """Runs the attack and extract stages for one recipe; returns what `attack` counted, None if it did not run.

    ``needed`` is what the recipe needs of the attack stage; None without this stage.
    """
    counts, requested = None, requested_table_stages(recipe.config)
    if needed is not None and ("attack" in requested or needed.loss_samples):
        with _logged_seconds("attack", [recipe]):
            counts = attack(recipe, population, needed, display.update, display.say)
    if "extract" in stages and "extract" in requested:
        with _logged_seconds("extract", [recipe]):
            extract(recipe, population, display)
    return counts


def _say_unchanged(
    recipe: SweepRecipe,
    made_here: Sequence[str],
    counts: Mapping[str, int] | None,
    display: Display,
) -> None:
    """Says that the tables of a recipe, of the stages ``made_here``, are there; without attacks, counts is None."""
    if counts is not None:
        counts = {**counts, "computed": 0}
        display.say(_describe_counts(recipe, counts))
        recipe.workdir.log_event({"event": "attack", "recipe": recipe.name, **counts})
    if "extract" in made_here and "extract" in requested_table_stages(recipe.config):
        display.say(f"extract: {recipe.name}: the results are already in its tables")


def requested_attacks(
    recipe_populations: RecipePopulations, figure_needs: Sequence[FigureNeed]
) -> dict[str, RecipeNeeds]:
    """Returns what the stage "attack" computes for each recipe in addition to its tables of decisions."""
    # Imported here because scipy and pandas take a second to load, and most jobs only make models.
    from lm_mia.attacks import models
    from lm_mia.attacks.requests import recipe_needs

    recipes = {}
    for recipe, _ in recipe_populations:
        try:
            present = models.model_numbers(
                models.present_models(open_store(recipe.config, recipe.folder))
            )
        except UserError:  # `attack` reports the damaged store; the other recipes continue
            present = PresentModels((), ())
        c = dataclasses.replace(recipe.config, attack=effective_attack(recipe.config))
        recipes[recipe.name] = RecipeModels((recipe.name, *recipe.names), c, present)
    return recipe_needs(figure_needs, recipes)


def attack(
    recipe: SweepRecipe,
    population: Population,
    requested: RecipeNeeds,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> dict[str, int]:
    """Computes the tables of a recipe from its scores, and returns the numbers of attacks.

    These, and errors, are those of `lm_mia.attacks.runner.run`. Also raises UserError if there are too few models for
    any attack.

    Args:
      recipe, population: the recipe and its samples.
      requested: what figures need in addition to the tables of decisions.
      progress: called as ``progress(label, done, total)``.
      say: called with lines for the user.
    """
    from lm_mia.attacks import runner
    from lm_mia.attacks.exports import open_view

    c = recipe.config
    settings = config.measurable_attack(c)
    if left_out := sorted({*c.attack.fprs} - {*settings.fprs}):
        focus = settings.focus_fpr
        say(
            f"attack.fprs: the tables of {recipe.name} leave out {', '.join(f'{fpr:g}' for fpr in left_out)}, because "
            f"the lowest rate that half of the {config.num_canaries(c):,} samples can show, as non-members, is "
            f"{config.lowest_fpr(config.num_canaries(c)):.3g}"
            + (
                f"; attack.focus_fpr becomes {focus:g}"
                if c.attack.focus_fpr not in ("auto", focus)
                else ""
            )
        )
    view = open_view(c, recipe.folder, lambda: population, requested, progress, say)
    counts = runner.run(view, recipe.folder / "tables")
    other_tables = requested.loss_samples or settings.leave_one_out or settings.zero_run
    if not (counts["requested"] or other_tables):
        raise UserError(
            f"{recipe.folder}: too few models are present to attack any of its attack.targets={c.attack.targets} "
            f"targets with at least {spec.MIN_REFERENCES} references; run `lm-mia run` first"
        )
    say(_describe_counts(recipe, counts))
    recipe.workdir.log_event({"event": "attack", "recipe": recipe.name, **counts})
    return counts


def _describe_counts(recipe: SweepRecipe, counts: Mapping[str, int]) -> str:
    already_computed = counts["requested"] - counts["computed"] - counts["left_out"]
    left_out = f", {counts['left_out']} left out" if counts["left_out"] else ""
    return (
        f"attack: {recipe.name}: {plural(counts['requested'], 'attack')} requested, {already_computed} "
        f"already in its tables, {counts['computed']} computed{left_out}"
    )


def remove_unused(
    sweep: Sweep, figure_needs: Sequence[FigureNeed], keys: Sequence["Key"], display: Display
) -> list[tuple[str, int, int, int]]:
    """Deletes the pieces of recipes, and of the workdir, that neither the configs nor the figures ask for.

    Args:
      sweep: the recipes.
      figure_needs: what the figures need from the stage "attack".
      keys: what figures keep in the workdir, as those that are simulations.
      display: says that another command holds the lock.

    Returns:
      For each recipe its name, the number of deleted files and their bytes, and the number of those that are kept; then
      the same for the pieces of the workdir, if there were any.
    """
    from lm_mia.attacks import runner
    from lm_mia.attacks.exports import open_view
    from lm_mia.attacks.pieces import FOLDER
    from lm_mia.attacks.results import Results

    counts = []
    with _exclusive_lock(sweep.workdir.path / ".report.lock", display):
        populations = [
            (recipe, open_population(recipe.population_dir, verify=False))
            for recipe in sweep.recipes
        ]
        needs_by_recipe = requested_attacks(populations, figure_needs)
        for recipe, population in populations:
            view = open_view(
                recipe.config, recipe.folder, lambda p=population: p, needs_by_recipe[recipe.name]
            )
            runner.ask(view)
            counts.append((recipe.name, *_delete_unused(view.stored.results)))
        of_workdir = Results(sweep.workdir.path / FOLDER)
        for key in keys:
            of_workdir.path(key)
        if of_workdir.folder.is_dir():
            counts.append(("workdir", *_delete_unused(of_workdir)))
    return counts


def _delete_unused(results: "Results") -> tuple[int, int, int]:
    """Deletes the pieces that nobody asked for; returns their number and bytes, and the number of the others."""
    unused = results.unused()
    deleted_bytes = sum(path.stat().st_size for path in unused)
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused), deleted_bytes, len([*results.folder.glob("*.parquet")])


def extract(recipe: SweepRecipe, population: Population, display: Display) -> None:
    """Computes how easily samples can be extracted from the first replica, and from the first reference if requested.

    Nothing is computed if the results are stored.
    """
    from lm_mia.attacks import exports, table_sets

    view = exports.open_view(
        recipe.config, recipe.folder, lambda: population, RecipeNeeds(), display.update, display.say
    )
    view = dataclasses.replace(view, extract=lambda write: _extract(recipe, view, display, write))
    if table_sets.find(exports.extraction_set(view), view.stored):
        display.say(f"extract: {recipe.name}: the results are already in its tables")
    exports.write_extraction(view, recipe.folder / "tables")


def _attacked_step(c: config.Config, model_seeds: ModelSeeds) -> int:
    return config.number(c.attack.step) or inventory.total_steps(c, model_seeds)


def _extract(
    recipe: SweepRecipe,
    view: "RecipeView",
    display: Display,
    write: Callable[[str, "pd.DataFrame"], None],
) -> Mapping[str, Any]:
    """Computes the tables of the extraction; returns what its JSON file says about them."""
    c, population, replicas = recipe.config, view.population, view.replicas
    target = replicas.targets[0]
    scores = view.table("samples.parquet", ["id", "member", "score"])
    os.environ |= devices.assign(1, 1).environments[0]
    # Imported here because they load JAX, which no other stage needs in this process.
    from lm_mia.model import kinds, transformer
    from lm_mia.run import backend
    from lm_mia.score import extraction
    from lm_mia.score.scorer import restore_params

    model_config = transformer.ModelConfig.from_settings(
        c.model, population.vocab_size, population.length_tokens
    )
    model = kinds.build(model_config)
    samples = extraction.select_samples(scores, population, c.extract)
    if len(samples) < c.extract.samples:
        members, is_random = int(samples["member"].sum()), c.extract.choose == "random"
        display.say(
            f"extract.samples={c.extract.samples}: only {plural(members, 'member')} and "
            f"{plural(len(samples) - members, 'non-member')} are used, since no more are long enough"
            + ("" if is_random else " and have a score")
        )
    this_backend = backend.start(1)

    def measure(model_seeds: ModelSeeds) -> "pd.DataFrame":
        params = restore_params(
            model_seeds,
            _attacked_step(c, model_seeds),
            model,
            inventory.checkpoint_dir(recipe.folder, model_seeds),
            this_backend.mesh,
            this_backend.local_mesh,
        )
        return extraction.extract(params, model, population, samples, c.extract, display.update)

    results = measure(target)
    if c.extract.reference:
        reference = replicas.references[0]
        member_N = subsets.member_of_config(reference, c)
        results = extraction.add_reference(results, measure(reference), member_N)
    for name, table in extraction.tables(results, c.extract).items():
        write(name, table)
    display.say(extraction.summary(results, c.extract))
    schemes = extraction.sampling_schemes(c.extract)
    return {
        "step": _attacked_step(c, target),
        "schemes": {name: str(scheme) for name, scheme in schemes.items()},
    }
