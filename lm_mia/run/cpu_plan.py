"""``lm-mia plan --device=cpu``: estimates how long `lm-mia run` takes on this machine, by stage.

The times of models come from metrics.jsonl if the workdir has models of the recipe, and otherwise from a probe
(`cpu_probe`). All probes together take about 20 seconds; for recipes that do not fit into this time, the times of a
probed recipe are scaled by FLOPs. The times of stages that neither train nor score models are guesses, unless
metrics.jsonl has them from an earlier run.
"""

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import rich.box
from rich.table import Table

from lm_mia import config, seeds
from lm_mia.config import Config
from lm_mia.durations import format_duration
from lm_mia.machine import available_cores
from lm_mia.model import flops
from lm_mia.run import cpu_probe, devices, model_sizes, plan, stage_times
from lm_mia.run.cpu_probe import Speed
from lm_mia.run.model_times import Timeline, durations
from lm_mia.run.plan import RecipeCost
from lm_mia.run.progress import Display
from lm_mia.run.stages import requested_table_stages
from lm_mia.run.stored_results import unfinished_table_stages
from lm_mia.run.sweep import Sweep, SweepRecipe

STAGES: tuple[str, ...] = ("corpus", "start", "train", "score", "attack", "extract", "report")
"""The stages of a plan; "start" is the start of workers, including compilation."""
_METRICS = "metrics.jsonl"
_IDLE_CORE_SHARE = 0.8
# Docstrings of installed packages: their numbers of characters are lognormal, with this median and standard deviation
# of the logarithm. Characters per token are those of a vocabulary of 1,024 pieces, and rise with each doubling of it.
_MEDIAN_CHARS, _LOG_STD_CHARS = 160, 1.6
_CHARS_PER_TOKEN, _CHARS_PER_DOUBLING = 2.2, 0.36


@dataclasses.dataclass(frozen=True)
class RecipeTime:
    """The estimated seconds that a command spends on a recipe."""

    recipe: SweepRecipe
    cost: RecipeCost
    workers: int
    """Number of workers that make its missing models."""
    source: str
    """Where the times of models come from: "probe", "scaled" (from the probe of another recipe) or "metrics.jsonl"; ""
    if no model is missing."""
    seconds: dict[str, float]
    """Seconds by stage, without "report"."""
    guessed: frozenset[str]
    """The stages whose times are guesses."""
    core_share: float | None
    """The fraction of a core that each worker of the probe got on average; None without a probe."""
    probe: str
    """The probed recipe and what was measured, such as "main: 4 small models"; "" without a probe."""


@dataclasses.dataclass(frozen=True)
class CpuPlan:
    """The estimated duration of a command."""

    recipes: list[RecipeTime]
    report_seconds: float
    is_report_guessed: bool


@dataclasses.dataclass(frozen=True)
class ModelSeconds:
    """The seconds that workers take to make models of a recipe side by side."""

    start: float
    """Starting the workers, and compilation during their first models."""
    train: float
    """Training a model, without compilation."""
    score: float
    """Scoring a model, without compilation."""
    source: str
    """As in `RecipeTime`."""
    core_share: float | None = None
    """As in `RecipeTime`."""
    probe: str = ""
    """As in `RecipeTime`."""


def print_plan(times: CpuPlan, as_json_text: bool) -> None:
    """Prints how long `lm-mia run` takes on this machine, as a table or as JSON."""
    if as_json_text:
        print(json.dumps(as_json(times), indent=1))
    else:
        _print_table(times)


@dataclasses.dataclass(frozen=True)
class _RecipeWork:
    """What a command still has to do for a recipe."""

    recipe: SweepRecipe
    lengths: plan.SampleLengths
    cost: RecipeCost
    workers: int
    timeline: Timeline
    """The events of the recipe in metrics.jsonl."""

    @property
    def missing(self) -> int:
        """The number of missing models."""
        return self.cost.models - self.cost.present_models

    @property
    def sample_flops(self) -> tuple[float, float]:
        """The FLOPs of training on a sample, and of scoring one."""
        c, lengths = self.recipe.config, self.lengths
        size = model_sizes.size(c)
        means = lengths.mean_tokens, lengths.mean_square_tokens
        return flops.training(size, *means), flops.scoring(size, *means)


def make_plan(sweep: Sweep, tokens_per_sample: float | None, display: Display) -> CpuPlan:
    """Estimates how long `lm-mia run` takes. Writes nothing to the workdir.

    Args:
      sweep: the recipes.
      tokens_per_sample: mean tokens of a sample; None: measured if the population exists, else assumed.
      display: shows the progress.

    Raises:
      UserError: if samples of a recipe cannot have ``tokens_per_sample`` tokens on average, or models are too large to
        be measured.
    """
    timelines = _read_timelines(sweep)
    works = [
        _recipe_work(recipe, tokens_per_sample, timelines.get(recipe.name, Timeline()))
        for recipe in sweep.recipes
    ]
    model_seconds = _model_seconds_by_recipe(works, display)
    built, has_vocabulary, times = set[str](), False, []
    for work in works:
        recipe, c, cost = work.recipe, work.recipe.config, work.cost
        seconds, guessed = dict.fromkeys(STAGES[:-1], 0.0), set[str]()
        if not (recipe.population_dir.exists() or cost.population in built):
            seconds["corpus"] = stage_times.corpus_seconds(c, is_first=not has_vocabulary)
            guessed.add("corpus")
            has_vocabulary = True
        built.add(cost.population)
        models = model_seconds.get(recipe.name, ModelSeconds(0.0, 0.0, 0.0, ""))
        if work.missing:
            # If there are more workers than cores, they slow each other down, also when they are measured.
            rounds = math.ceil(work.missing / work.workers)
            seconds |= {"start": models.start, "train": rounds * models.train}
            seconds["score"] = rounds * models.score
        if models.source == "scaled":
            guessed |= {"train", "score"}
        guesses = {
            "attack": stage_times.attack_seconds(c),
            "extract": stage_times.extract_seconds(c),
        }
        logged = work.timeline.stage_seconds
        unfinished = requested_table_stages(c)
        if not work.missing:
            unfinished = unfinished_table_stages(recipe)
        for stage in unfinished:
            seconds[stage] = logged.get(stage, guesses[stage])
            if stage not in logged:
                guessed.add(stage)
        times.append(
            RecipeTime(
                recipe,
                cost,
                work.workers,
                models.source,
                seconds,
                frozenset(guessed),
                models.core_share,
                models.probe,
            )
        )
    # The report is drawn once for all recipes, and is logged as a stage of the first one.
    report = works[0].timeline.stage_seconds.get("report")
    guess = stage_times.report_seconds(sweep.recipes)
    return CpuPlan(times, guess if report is None else report, report is None)


def _recipe_work(
    recipe: SweepRecipe, tokens_per_sample: float | None, timeline: Timeline
) -> _RecipeWork:
    lengths = _sample_lengths(recipe, tokens_per_sample)
    cost = plan.recipe_cost(recipe, lengths, plan.count_present(recipe))
    requested = len(devices.assign(recipe.config.train.workers, 1).environments)
    workers = min(requested, cost.models - cost.present_models)
    return _RecipeWork(recipe, lengths, cost, workers, timeline)


def _model_seconds_by_recipe(
    works: Sequence[_RecipeWork], display: Display
) -> dict[str, ModelSeconds]:
    """Returns the times of models of each recipe with missing models, by the name of the recipe.

    Recipes with the same shapes share a probe. The most expensive ones are probed first, until a probe that takes as
    long as the longest so far would exceed the time limit.
    """
    times: dict[str, ModelSeconds] = {}
    to_probe: dict[Any, list[_RecipeWork]] = {}
    for work in works:
        if work.missing:
            logged = logged_model_seconds(work.timeline)
            if logged is not None:
                times[work.recipe.name] = logged
                continue
            shapes = _shapes(work.recipe.config)
            key = shapes, round(work.lengths.mean_tokens), work.workers
            to_probe.setdefault(key, []).append(work)
    groups = sorted(to_probe.values(), key=lambda group: -sum(map(_missing_flops, group)))
    probed: list[tuple[_RecipeWork, Speed]] = []
    began, longest = time.monotonic(), 0.0
    for number, group in enumerate(groups):
        display.update("plan", number, len(groups))
        first, spent = group[0], time.monotonic() - began
        if not probed or spent + longest <= cpu_probe.LIMIT_SECONDS:
            name, c = first.recipe.name, first.recipe.config
            display.say(f"{name}: making small models to measure this machine")
            draw = _length_sampler(first.recipe, first.lengths)
            left = cpu_probe.LIMIT_SECONDS - spent
            speed = cpu_probe.probe(c, draw, first.workers, name, left)
            longest = max(longest, time.monotonic() - began - spent)
            probed.append((first, speed))
            source, measured = "probe", f"{name}: {speed.description}"
        else:
            source, measured, speed = "scaled", "", _scaled_speed(first, probed)
        for work in group:
            models = _model_seconds(speed, work.recipe.config, work.cost)
            times[work.recipe.name] = dataclasses.replace(models, source=source, probe=measured)
    if groups:  # without work, the bar would stay at 0%
        display.update("plan", len(groups), len(groups))
    return times


def _missing_flops(work: _RecipeWork) -> float:
    return (work.cost.train_flops + work.cost.score_flops) * work.missing / work.cost.models


def _scaled_speed(work: _RecipeWork, probed: Sequence[tuple[_RecipeWork, Speed]]) -> Speed:
    """Returns the speed of the probed recipe with the most similar models, scaled by FLOPs."""
    train, score = work.sample_flops

    def distance(candidate: tuple[_RecipeWork, Speed]) -> float:
        return abs(math.log(candidate[0].sample_flops[0] / train))

    other, speed = min(probed, key=distance)
    other_train, other_score = other.sample_flops
    batches = work.recipe.config.train.batch_size / other.recipe.config.train.batch_size
    return dataclasses.replace(
        speed,
        step_seconds=speed.step_seconds * batches * train / other_train,
        score_seconds_per_sample=speed.score_seconds_per_sample * score / other_score,
    )


def _shapes(c: Config) -> tuple[Any, ...]:
    """Returns the settings that determine the speed of training and scoring."""
    return (
        c.model,
        c.tokenizer.vocab_size,
        c.population.length_tokens,
        c.train.batch_size,
        c.compute,
        c.score.micro_batch_size,
        c.score.statistics,
    )


def _model_seconds(speed: Speed, c: Config, cost: RecipeCost) -> ModelSeconds:
    """Returns the times of a recipe's models from the speed that a probe has measured."""
    passes = 2 if "lowercase_loss" in c.score.statistics else 1
    score = speed.score_seconds_per_sample * c.population.samples * passes * cost.score_points
    steps = speed.step_seconds * cost.steps_per_model
    trained = c.train.epochs * config.training_samples(c)
    # The loss of a held-out sample costs a third of a training sample.
    held_out = c.population.validation_samples * c.train.validations / 3
    train = steps * (1 + held_out / trained) + speed.train_extra_seconds
    return ModelSeconds(
        speed.start_seconds + speed.compile_seconds,
        train,
        score,
        "probe",
        speed.core_share,
    )


def _sample_lengths(recipe: SweepRecipe, tokens_per_sample: float | None) -> plan.SampleLengths:
    """Returns `plan.sample_lengths`, or lengths that are assumed as in docstrings if these are not tokenized yet."""
    c = recipe.config
    is_known = tokens_per_sample is not None or recipe.population_dir.exists()
    if is_known or c.corpus.source != "docstrings" or c.corpus.split_documents:
        return plan.sample_lengths(recipe, tokens_per_sample)
    quantile = statistics.NormalDist().inv_cdf
    chars = _MEDIAN_CHARS * np.exp(
        _LOG_STD_CHARS * np.array([quantile((i + 0.5) / 2000) for i in range(2000)])
    )
    chars = chars[chars >= min(c.corpus.min_chars, chars[-1])]
    doublings = math.log2(c.tokenizer.vocab_size / 1024)
    chars_per_token = max(_CHARS_PER_TOKEN + _CHARS_PER_DOUBLING * doublings, 1.0)
    tokens = np.clip(chars / chars_per_token + 2, 3, c.population.length_tokens)
    return plan.SampleLengths(
        float(tokens.mean()),
        float((tokens**2).mean()),
        "assumed as in docstrings of installed packages",
    )


def _length_sampler(
    recipe: SweepRecipe, lengths: plan.SampleLengths
) -> Callable[[int], np.ndarray]:
    """Returns a function from N to length_N: lengths of the population if it exists, otherwise random ones."""
    if lengths.description.startswith("measured"):
        from lm_mia.data.population import open_population  # pandas takes a second

        length_N = open_population(recipe.population_dir, verify=False).lengths_N
        return lambda samples: np.resize(length_N, samples)
    limit = recipe.config.population.length_tokens
    mean, square = lengths.mean_tokens, lengths.mean_square_tokens
    std = math.sqrt(max(square - mean**2, 0.0))

    def draw(samples: int) -> np.ndarray:
        values = seeds.rng(0, "lengths of a probe").normal(mean, std, samples)
        # Clipping changes the mean, so the difference is spread over the samples, several times.
        for _ in range(20):
            values = np.clip(values, 3, limit)
            values += mean - values.mean()
        return np.clip(np.round(values), 3, limit).astype(np.int64)

    return draw


def logged_model_seconds(timeline: Timeline) -> ModelSeconds | None:
    """Returns the times of a recipe's models from metrics.jsonl; None if times of training or of scoring are missing.

    The first model of each worker is left out, since it includes compilation, unless no worker has made a second one.
    """
    workers = [worker for worker in timeline.all_workers if worker.models]
    models = [model for worker in workers for model in worker.models]
    # Medians, since the longest times may include a pause between two commands.
    medians = []
    for part in ("train_seconds", "score_seconds"):
        known = durations(models, part)
        if not known:
            return None
        medians.append(statistics.median(known))
    starts = [w.start_seconds for w in workers if w.start_seconds is not None]
    compilations = [w.models[0].compile_seconds for w in workers if w.compilation]
    start = sum(statistics.fmean(values) for values in (starts, compilations) if values)
    return ModelSeconds(start, medians[0], medians[1], _METRICS)


def _read_timelines(sweep: Sweep) -> dict[str, Timeline]:
    """Returns the timeline of each recipe in metrics.jsonl, by name."""
    timelines: dict[str, Timeline] = {}
    path = sweep.workdir.path / _METRICS
    if not path.exists():
        return timelines
    with open(path, "rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
                now = datetime.fromisoformat(event["time"]).timestamp()
                timelines.setdefault(event["recipe"], Timeline()).add(now, event)
            except (ValueError, KeyError, TypeError):
                continue  # an event of another kind, or a line that a full disk truncated
    return timelines


def as_json(times: CpuPlan) -> dict[str, Any]:
    """Returns the plan as plain values: {"device", "cores", "recipes", "total"}, with units in the names."""
    total = totals(times)
    return {
        "device": "cpu",
        "cores": available_cores(),
        "recipes": [
            {name: value for name, value in dataclasses.asdict(t.cost).items() if name != "batches"}
            | {
                "workers": t.workers,
                "source": t.source,
                "probe": t.probe,
                "core_share": t.core_share,
                "minutes": _minutes(t.seconds),
                "guessed_stages": sorted(t.guessed),
            }
            for t in times.recipes
        ],
        "total": plan.totals([t.cost for t in times.recipes])
        | {"minutes": _minutes(total), "guessed_share": round(_guessed_share(times), 3)},
    }


def totals(times: CpuPlan) -> dict[str, float]:
    """Returns the seconds of each stage, over all recipes."""
    sums = {stage: sum(t.seconds[stage] for t in times.recipes) for stage in STAGES[:-1]}
    return sums | {"report": times.report_seconds}


def _minutes(seconds: dict[str, float]) -> dict[str, float]:
    """Converts the seconds of stages to minutes, and adds "total"."""
    minutes = {stage: round(value / 60, 3) for stage, value in seconds.items()}
    return minutes | {"total": round(sum(seconds.values()) / 60, 3)}


def _guessed_share(times: CpuPlan) -> float:
    """Returns the fraction of the total time that is guessed."""
    guessed = sum(t.seconds[stage] for t in times.recipes for stage in t.guessed)
    guessed += times.report_seconds * times.is_report_guessed
    return guessed / max(sum(totals(times).values()), 1e-9)


def _print_table(times: CpuPlan) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    names = ("model", "models", "missing", "steps\nper model", *STAGES, "total")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)

    def cells(seconds: dict[str, float]) -> list[str]:
        durations = [seconds.get(stage, 0.0) for stage in STAGES]
        return [format_duration(round(d)) if d else "" for d in [*durations, sum(durations)]]

    for t in times.recipes:
        cost = t.cost
        table.add_row(
            cost.name,
            cost.size if cost.size != "custom" else f"{cost.layers}x{cost.width}",
            f"{cost.models:,}",
            f"{cost.models - cost.present_models:,}",
            f"{cost.steps_per_model:,}",
            *cells(t.seconds),
        )
    table.add_section()
    table.add_row("total", "", "", "", "", *cells(totals(times)))
    plan.print_table(table, _notes(times))


def _notes(times: CpuPlan) -> list[str]:
    """Returns the lines below the table, which explain its columns."""
    workers = sorted({t.workers for t in times.recipes if t.workers})
    by = f", by {' or '.join(map(str, workers))} workers" if workers else ""
    lines = [f"time         of `lm-mia run` on this machine, with {available_cores()} cores{by}"]
    for source, how in (
        ("probe", "measured in worker processes"),
        (
            "scaled",
            "scaled by FLOPs from the most similar measured recipe, since the time for measurements was over",
        ),
        (_METRICS, "as in metrics.jsonl of the workdir"),
    ):
        names = [t.recipe.name for t in times.recipes if t.source == source]
        listed = "" if len(names) == len(times.recipes) else f" of {', '.join(names)}"
        probes = dict.fromkeys(t.probe for t in times.recipes if t.source == source == "probe")
        measured = f" ({'; '.join(probes)})" if probes else ""
        if names:
            lines.append(f"models       start, train and score{listed}: {how}{measured}")
    shares = [t.core_share for t in times.recipes if t.core_share is not None]
    if shares and min(shares) < _IDLE_CORE_SHARE:
        lines.append(
            f"busy         other programs were running, so that each worker had only {min(shares):.0%} of a core; the "
            "times assume that the machine stays as busy"
        )
    assumed = {t.cost.lengths for t in times.recipes}
    lines.append(f"tokens       {'; '.join(sorted(assumed))} (--tokens-per-sample sets a mean)")
    stages = [stage for stage in STAGES if any(stage in t.guessed for t in times.recipes)]
    stages += ["report"] * times.is_report_guessed
    if stages:
        lines.append(f"guesses      {', '.join(stages)}: {_guessed_share(times):.0%} of the total")
    return lines
