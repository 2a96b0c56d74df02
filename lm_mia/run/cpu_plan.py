"""``lm-mia plan --device=cpu``: how long `lm-mia run` takes on this machine, by stage.

The times of models come from metrics.jsonl if the workdir has models of the recipe, and otherwise from a probe
(`cpu_probe`). Stages that neither train nor score models are guesses, unless the workdir knows how long they took.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import rich.box
from rich.table import Table

from lm_mia import config, seeds
from lm_mia.config import Config
from lm_mia.durations import format_duration
from lm_mia.run import cpu_probe, devices, plan, stage_times
from lm_mia.run.cpu_probe import Speed
from lm_mia.run.plan import RecipeCost
from lm_mia.run.progress import Display
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.workdir import table_metadata

STAGES: tuple[str, ...] = ("corpus", "start", "train", "score", "attack", "extract", "report")
"""The stages of a plan; "start" is the start of workers and compilation."""
_METRICS = "metrics.jsonl"
_IDLE_CORE_SHARE = 0.8
# Docstrings of installed packages: lognormal numbers of characters, with this median and standard deviation of the
# logarithms, and characters per token with a vocabulary of 1,024 pieces, and more for each doubling of the vocabulary.
_MEDIAN_CHARS, _LOG_STD_CHARS = 160, 1.6
_CHARS_PER_TOKEN, _CHARS_PER_DOUBLING = 2.2, 0.36


@dataclasses.dataclass(frozen=True)
class RecipeTime:
    """The seconds that a command spends on a recipe."""

    recipe: SweepRecipe
    cost: RecipeCost
    workers: int
    """Number of workers that make its missing models."""
    source: str
    """Where the times of models come from: "probe", "metrics.jsonl" or "" if no model is missing."""
    seconds: dict[str, float]
    """By stage, without "report"."""
    guessed: frozenset[str]
    """The stages whose times are guesses."""
    core_share: float | None
    """The fraction of a core that each worker of the probe had; None without a probe."""


@dataclasses.dataclass(frozen=True)
class ModelSeconds:
    """How long workers take that make models of a recipe side by side."""

    start: float
    """From the start of the workers until they make their second models, without these first models."""
    train: float
    """Training of a model."""
    score: float
    """Scoring of a model."""
    source: str
    """As in `RecipeTime`."""
    core_share: float | None = None
    """As in `RecipeTime`."""


def print_plan(sweep: Sweep, times: Sequence[RecipeTime], as_json_text: bool) -> None:
    """Prints how long `lm-mia run` takes on this machine, as a table or as JSON.

    Args:
      sweep: the recipes.
      times: the result of `recipe_times`.
      as_json_text: whether to print JSON.
    """
    report = _report_seconds(sweep)
    if as_json_text:
        print(json.dumps(as_json(times, *report), indent=1))
    else:
        _print_table(times, *report)


def recipe_times(
    sweep: Sweep, tokens_per_sample: float | None, display: Display
) -> list[RecipeTime]:
    """Returns the times of all recipes; recipes with the same shapes are measured once. Writes nothing to the workdir.

    Args:
      sweep: the recipes.
      tokens_per_sample: mean tokens of a sample; None: measured if the population exists, else assumed.
      display: shows the progress.

    Raises:
      UserError: if samples of a recipe cannot have ``tokens_per_sample`` tokens on average, or models are too large to
        be measured.
    """
    speeds: dict[Any, Speed] = {}
    built, has_vocabulary, times = set[str](), False, []
    for number, recipe in enumerate(sweep.recipes):
        display.update("plan", number, len(sweep.recipes))
        c = recipe.config
        lengths = _sample_lengths(recipe, tokens_per_sample)
        cost = plan.recipe_cost(recipe, lengths, plan.count_present(recipe))
        missing = cost.models - cost.present_models
        requested = len(devices.assign(c.train.workers, 1).environments)
        workers = min(requested, missing)
        logged = _logged_stages(recipe)
        seconds, guessed = dict.fromkeys(STAGES[:-1], 0.0), set[str]()
        if not (recipe.population_dir.exists() or cost.population in built):
            seconds["corpus"] = stage_times.corpus_seconds(c, is_first=not has_vocabulary)
            guessed.add("corpus")
            has_vocabulary = True
        built.add(cost.population)
        source, core_share = "", None
        if missing:
            models = logged_model_seconds(recipe)
            if models is None:
                key = _shapes(c), round(lengths.mean_tokens), workers
                if key not in speeds:
                    display.say(f"{recipe.name}: making small models to measure this machine")
                    draw = _length_drawer(recipe, lengths)
                    speeds[key] = cpu_probe.probe(c, draw, workers, recipe.name)
                models = _model_seconds(speeds[key], c, cost)
            source, core_share = models.source, models.core_share
            # Workers beyond the cores were measured as such: they slow each other down.
            rounds = math.ceil(missing / workers)
            seconds |= {"start": models.start, "train": rounds * models.train}
            seconds["score"] = rounds * models.score
        if missing or table_metadata(recipe.folder) is None:
            guesses = {
                "attack": stage_times.attack_seconds(c),
                "extract": stage_times.extract_seconds(c),
            }
            for stage, guess in guesses.items():
                seconds[stage] = logged.get(stage, guess)
                if guess and stage not in logged:
                    guessed.add(stage)
        times.append(
            RecipeTime(recipe, cost, workers, source, seconds, frozenset(guessed), core_share)
        )
    display.update("plan", len(sweep.recipes), len(sweep.recipes))
    return times


def _shapes(c: Config) -> tuple[Any, ...]:
    """Returns the settings that determine the speed of training and scoring; recipes that share them share a probe."""
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
        speed.start_seconds + speed.compile_seconds, train, score, "probe", speed.core_share
    )


def _sample_lengths(recipe: SweepRecipe, tokens_per_sample: float | None) -> plan.SampleLengths:
    """Returns the lengths of `plan.sample_lengths`, but those of docstrings where these are used and not measured."""
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
        float(tokens.mean()), float((tokens**2).mean()), "assumed as in docstrings of packages"
    )


def _length_drawer(recipe: SweepRecipe, lengths: plan.SampleLengths) -> Callable[[int], np.ndarray]:
    """Returns a function that returns length_N of N samples: those of the population if it exists, else random ones."""
    if lengths.description.startswith("measured"):
        from lm_mia.data.population import open_population  # pandas takes a second

        length_N = open_population(recipe.population_dir, verify=False).lengths_N
        return lambda samples: np.resize(length_N, samples)
    limit = recipe.config.population.length_tokens
    mean, square = lengths.mean_tokens, lengths.mean_square_tokens
    std = math.sqrt(max(square - mean**2, 0.0))

    def draw(samples: int) -> np.ndarray:
        values = seeds.rng(0, "lengths of a probe").normal(mean, std, samples)
        # Truncation at both ends keeps the mean if the excess is moved to the other samples.
        for _ in range(20):
            values = np.clip(values, 3, limit)
            values += mean - values.mean()
        return np.clip(np.round(values), 3, limit).astype(np.int64)

    return draw


def logged_model_seconds(recipe: SweepRecipe) -> ModelSeconds | None:
    """Returns the times of a recipe's models from metrics.jsonl, or None if it does not have those of any model.

    The first model of each worker is not counted, since it includes compilation, unless no worker has made a second
    one.
    """
    began, starts, compilation = math.nan, list[float](), list[float]()
    first, later = list[tuple[float, float]](), list[tuple[float, float]]()
    started: dict[tuple[str, int], float] = {}
    trained: dict[str, tuple[float, float]] = {}
    for now, event in _events(recipe):
        kind, worker = event["event"], (event.get("job", ""), event.get("index", 0))
        if kind == "models":
            began = now
        elif kind == "worker":
            starts.append(now - began)
            started.pop(worker, None)
        elif kind == "model_trained" and not event["resumed_at"]:
            trained[event["model"]] = now, event["seconds"]
        elif kind == "model_scored" and event["last"]:
            if event["model"] in trained:
                trained_at, train = trained[event["model"]]
                score = now - trained_at
                if worker in started:
                    # From the end of one model to that of the next, so that nothing between them is forgotten.
                    later.append((max(now - started[worker] - score, train), score))
                else:
                    first.append((train, score))
            started[worker] = now
        elif kind == "compiled":
            compilation.append(event["seconds"])
    models = later or first
    if not models:
        return None
    # The longest ones may include a pause between two commands.
    train, score = (statistics.median(values) for values in zip(*models, strict=True))
    start = statistics.fmean(starts) if starts else 0.0
    if compilation and later:
        start += statistics.fmean(compilation)
    return ModelSeconds(start, train, score, _METRICS)


def _logged_stages(recipe: SweepRecipe) -> dict[str, float]:
    """Returns the seconds that stages of a recipe took, by metrics.jsonl; of several runs, the longest."""
    seconds: dict[str, float] = {}
    for _, event in _events(recipe):
        if event["event"] == "stage":
            seconds[event["stage"]] = max(seconds.get(event["stage"], 0.0), event["seconds"])
    return seconds


_LOGGED = ("models", "worker", "model_trained", "model_scored", "compiled", "stage")


def _events(recipe: SweepRecipe) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yields the events of a recipe in metrics.jsonl that tell how long something took, with their times."""
    kinds = [f'"event": "{kind}"'.encode() for kind in _LOGGED]
    path = recipe.workdir.path / _METRICS
    if not path.exists():
        return
    with open(path, "rb") as lines:
        for line in lines:
            if any(kind in line for kind in kinds):
                try:
                    event = json.loads(line)
                    now = datetime.fromisoformat(event["time"]).timestamp()
                except (ValueError, KeyError):  # a line that was truncated by a full disk
                    continue
                if event.get("recipe") == recipe.name:
                    yield now, event


def _report_seconds(sweep: Sweep) -> tuple[float, bool]:
    """Returns the seconds in which the report is drawn, and whether they are a guess."""
    logged = [_logged_stages(recipe).get("report") for recipe in sweep.recipes[:1]]
    if logged[0] is not None:
        return logged[0], False
    return stage_times.report_seconds(sweep.recipes), True


def as_json(times: Sequence[RecipeTime], report: float, is_report_guess: bool) -> dict[str, Any]:
    """Returns the plan as plain values: {"device", "cores", "recipes", "total"}, with units in the names."""
    total = totals(times, report)
    guessed = _guessed_seconds(times, report, is_report_guess)
    return {
        "device": "cpu",
        "cores": devices.num_cores(),
        "recipes": [
            {name: value for name, value in dataclasses.asdict(t.cost).items() if name != "batches"}
            | {
                "workers": t.workers,
                "source": t.source,
                "core_share": t.core_share,
                "minutes": _minutes(t.seconds),
                "guessed_stages": sorted(t.guessed),
            }
            for t in times
        ],
        "total": plan.totals([t.cost for t in times])
        | {
            "minutes": _minutes(total),
            "guessed_share": round(guessed / max(sum(total.values()), 1e-9), 3),
        },
    }


def totals(times: Sequence[RecipeTime], report: float) -> dict[str, float]:
    """Returns the seconds of each stage, over all recipes."""
    sums = {stage: sum(t.seconds[stage] for t in times) for stage in STAGES[:-1]}
    return sums | {"report": report}


def _minutes(seconds: dict[str, float]) -> dict[str, float]:
    """Returns the minutes of each stage, and "total"."""
    minutes = {stage: round(value / 60, 3) for stage, value in seconds.items()}
    return minutes | {"total": round(sum(seconds.values()) / 60, 3)}


def _guessed_seconds(times: Sequence[RecipeTime], report: float, is_report_guess: bool) -> float:
    return sum(t.seconds[s] for t in times for s in t.guessed) + report * is_report_guess


def _print_table(times: Sequence[RecipeTime], report: float, is_report_guess: bool) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    names = ("model", "models", "missing", "steps\nper model", *STAGES, "total")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)

    def cells(seconds: dict[str, float]) -> list[str]:
        durations = [seconds.get(stage, 0.0) for stage in STAGES]
        return [format_duration(round(d)) if d else "" for d in [*durations, sum(durations)]]

    for t in times:
        cost = t.cost
        table.add_row(
            cost.name,
            cost.size if cost.size != "custom" else f"{cost.layers}x{cost.width}",
            f"{cost.models:,}",
            f"{cost.models - cost.present_models:,}",
            f"{cost.steps_per_model:,}",
            *cells(t.seconds),
        )
    total = totals(times, report)
    table.add_section()
    table.add_row("total", "", "", "", "", *cells(total))
    plan.print_table(table, _notes(times, total, report, is_report_guess))


def _notes(
    times: Sequence[RecipeTime], total: dict[str, float], report: float, is_report_guess: bool
) -> list[str]:
    """Returns explanations of the columns."""
    workers = sorted({t.workers for t in times if t.workers})
    by = f", by {' or '.join(map(str, workers))} workers" if workers else ""
    lines = [f"time         of `lm-mia run` on this machine, with {devices.num_cores()} cores{by}"]
    for source, how in (
        ("probe", "measured by making a few small models in worker processes"),
        (_METRICS, "as the models of the recipe took that are in metrics.jsonl of the workdir"),
    ):
        names = [t.recipe.name for t in times if t.source == source]
        listed = "" if len(names) == len(times) else f" of {', '.join(names)}"
        if names:
            lines.append(f"models       {how}{listed}: start, train and score")
    shares = [t.core_share for t in times if t.core_share is not None]
    if shares and min(shares) < _IDLE_CORE_SHARE:
        lines.append(
            f"busy         other programs were running: workers had {min(shares):.0%} of a core each, and the times "
            "are those of a machine that stays as busy"
        )
    assumed = {t.cost.lengths for t in times}
    lines.append(f"tokens       {'; '.join(sorted(assumed))} (--tokens-per-sample sets a mean)")
    guessed = _guessed_seconds(times, report, is_report_guess)
    stages = [stage for stage in STAGES if any(stage in t.guessed for t in times)]
    stages += ["report"] * is_report_guess
    if stages:
        share = guessed / max(sum(total.values()), 1e-9)
        lines.append(f"guesses      {', '.join(stages)}: {share:.0%} of the total")
    return lines
