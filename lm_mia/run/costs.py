"""The cost of the models of a recipe: tokens, FLOPs and bytes, computed from its config without JAX.

Only the lengths of samples must be measured or assumed.
"""

import dataclasses
import math
import statistics
from typing import Any, Literal

import numpy as np

from lm_mia import config
from lm_mia.config.recipe import population_hash
from lm_mia.model import flops, memory
from lm_mia.run import model_sizes
from lm_mia.run.sweep import SweepRecipe

# Assumed lengths of C4 samples: lognormal, with this mean and standard deviation of the logarithms. Truncated to 1,024
# tokens, the mean is 400 (StrongMIA Appendix G), and a tenth of the samples is truncated.
_LOG_MEAN, _LOG_STD = 5.689, 1.0
# Compressed bytes per sample of samples.parquet; nearly all are those of name and text_sha256.
_TABLE_BYTES = 52

_MEASURED_SAMPLES = 2**20  # lengths are measured on the first samples, which are in random order
# Tokens of samples, as a share of the tokens of packed sequences, in batches of C4-like samples.
_PACKING_EFFICIENCY = 0.985


@dataclasses.dataclass(frozen=True)
class Batches:
    """The settings and sample lengths that determine how much of a batch is padding."""

    devices_per_model: int | Literal["auto"]
    """``compute.devices_per_model`` of the config; 0: all."""
    batch_size: int
    micro_batch_size: int
    """``compute.micro_batch_size`` of the config; 0: auto."""
    sequences: float
    """Mean number of packed sequences of a batch."""
    sequences_std: float
    """Standard deviation of this number between batches."""
    size: memory.ModelSize
    attention: str
    """``compute.attention`` of the config."""


@dataclasses.dataclass(frozen=True)
class SampleLengths:
    """The mean length of samples, and the mean of their squared lengths."""

    mean_tokens: float
    mean_square_tokens: float
    description: str
    """How the means were determined, such as "assumed as in C4"."""
    text_share: float | None = None
    """The fraction of the text of the drawn documents that is in the samples; None if it is unknown."""


@dataclasses.dataclass(frozen=True)
class RecipeCost:
    """The cost of one recipe: totals over its models, unless stated otherwise."""

    entries: tuple[int, ...]
    """Indices of the sweep's entries that request the recipe; 0 is the config itself. Empty without ``--config``."""
    overrides: dict[str, Any]
    """The overrides of the first of these entries."""
    name: str
    size: str
    layers: int
    width: int
    parameters: int
    models: int
    present_models: int
    """Number of models that are already trained and scored in the workdir."""
    steps_per_model: int
    """Training steps of one model."""
    score_points: int
    """Number of steps at which each model is scored, including the last."""
    mean_sample_tokens: float
    lengths: str
    text_share: float | None
    """The fraction of the text of the drawn documents that is in the samples; None before the corpus stage."""
    train_tokens: float
    """Tokens trained on, without padding, over all epochs."""
    train_flops: float
    score_flops: float
    """FLOPs of scoring all samples at every score point, and of validation."""
    checkpoint_bytes: int
    """Bytes of the final states, once all models are scored."""
    score_point_bytes: int
    """Bytes of the states at score points, which are kept for statistics that are requested later."""
    keep_moments: bool
    """Whether these states include that of the optimizer."""
    store_bytes: int
    population: str
    """Name of the population; recipes with the same name share it."""
    population_bytes: int
    batches: Batches
    """What determines how much of a training batch is padding."""


def assumed_lengths(c: config.Config, mean_tokens: float | None = None) -> SampleLengths:
    """Returns lengths of the samples of C4-like documents.

    Args:
      c: the config, which says how documents become samples.
      mean_tokens: the mean length of a sample, if not as in C4.
    """
    length_tokens = c.population.length_tokens
    moments = _piece_moments if c.corpus.split_documents else _truncated_moments
    if mean_tokens is None:
        mean, square = moments(_LOG_MEAN, length_tokens)
        return SampleLengths(mean, square, "assumed as in C4")
    low, high = math.log(mean_tokens) - _LOG_STD, math.log(length_tokens) + 9 * _LOG_STD
    for _ in range(60):  # bisection: the mean increases with the mean of the logarithms
        middle = (low + high) / 2
        low, high = (
            (middle, high) if moments(middle, length_tokens)[0] < mean_tokens else (low, middle)
        )
    return SampleLengths(mean_tokens, moments(low, length_tokens)[1], "set by --tokens-per-sample")


def _truncated_moments(log_mean: float, length_tokens: int) -> tuple[float, float]:
    """Returns the first and second moment of lognormal lengths truncated to length_tokens."""

    def below(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    z = (math.log(length_tokens) - log_mean) / _LOG_STD
    mean, square = (
        math.exp(k * log_mean + (k * _LOG_STD) ** 2 / 2) * below(z - k * _LOG_STD)
        + length_tokens**k * below(-z)
        for k in (1, 2)
    )
    return mean, square


def _piece_moments(log_mean: float, length_tokens: int) -> tuple[float, float]:
    """Returns the first and second moment of the pieces of at most length_tokens of documents of lognormal lengths."""
    quantile = statistics.NormalDist().inv_cdf
    documents = [math.exp(log_mean + _LOG_STD * quantile((i + 0.5) / 2000)) for i in range(2000)]
    full_pieces = [math.ceil(length / length_tokens) - 1 for length in documents]
    rest = [
        length - full * length_tokens for length, full in zip(documents, full_pieces, strict=True)
    ]
    pieces = len(documents) + sum(full_pieces)
    squares = sum(full_pieces) * length_tokens**2 + sum(length**2 for length in rest)
    return sum(documents) / pieces, squares / pieces


def recipe_cost(recipe: SweepRecipe, lengths: SampleLengths, present_models: int = 0) -> RecipeCost:
    """Returns the total cost of all models of one recipe; `present_models` of them already exist."""
    c = recipe.config
    m, samples, vocab_size = c.model, c.population.samples, c.tokenizer.vocab_size
    held_out = c.population.validation_samples
    num_models = sum(model.role != "base" for model in recipe.models)
    num_score_points = len(config.score_steps(c)) + 1
    packed = batches(c, lengths.mean_tokens, lengths.mean_square_tokens)
    per_sample = (packed.size, lengths.mean_tokens, lengths.mean_square_tokens)
    trained = c.train.epochs * config.training_samples(c)
    # "lowercase_loss" needs a second forward pass; all other statistics come with the loss
    passes = num_score_points * (2 if "lowercase_loss" in c.score.statistics else 1)
    scored = passes * samples + c.train.validations * held_out
    parameters = packed.size.parameters
    kept_bytes = packed.size.state_bytes if c.train.keep_moments else 0
    checkpoint_bytes = round((4 + kept_bytes) * parameters)
    token_bytes = 2 if vocab_size <= 2**16 else 4
    sample_bytes = token_bytes * lengths.mean_tokens + 8 + _TABLE_BYTES  # 8: its offset
    layers, width, _ = m.shape
    return RecipeCost(
        entries=recipe.entries,
        overrides=recipe.overrides,
        name=recipe.name,
        size=m.size,
        layers=layers,
        width=width,
        parameters=parameters,
        models=num_models,
        present_models=present_models,
        steps_per_model=config.total_steps(c),
        score_points=num_score_points,
        mean_sample_tokens=lengths.mean_tokens,
        lengths=lengths.description,
        text_share=lengths.text_share,
        train_tokens=num_models * trained * lengths.mean_tokens,
        train_flops=num_models * trained * flops.training(*per_sample),
        score_flops=num_models * scored * flops.scoring(*per_sample),
        checkpoint_bytes=num_models * checkpoint_bytes,
        score_point_bytes=num_models * (num_score_points - 1) * checkpoint_bytes,
        keep_moments=c.train.keep_moments,
        store_bytes=num_models
        * samples
        * (1 + num_score_points * 4 * (1 + len(c.score.statistics))),
        population=population_hash(c),
        population_bytes=round((samples + held_out) * sample_bytes),
        batches=packed,
    )


def batches(c: config.Config, mean_tokens: float, mean_square_tokens: float) -> Batches:
    """Returns the settings and the number of packed sequences of the batches of a recipe.

    Args:
      c: the config.
      mean_tokens: mean length of a sample in tokens.
      mean_square_tokens: mean of the squared lengths of samples.
    """
    length_tokens = c.population.length_tokens
    capacity_tokens = _PACKING_EFFICIENCY * length_tokens
    devices = c.compute.devices_per_model
    variance = max(mean_square_tokens - mean_tokens**2, 0)
    return Batches(
        devices_per_model="auto" if devices == "auto" else config.number(devices),
        batch_size=c.train.batch_size,
        micro_batch_size=config.number(c.compute.micro_batch_size),
        sequences=c.train.batch_size * mean_tokens / capacity_tokens,
        sequences_std=math.sqrt(c.train.batch_size * variance) / capacity_tokens,
        size=model_sizes.size(c),
        attention=c.compute.attention,
    )


def sample_lengths(recipe: SweepRecipe, tokens_per_sample: float | None = None) -> SampleLengths:
    """Returns the sample lengths: by tokens_per_sample, or measured if the population exists, or assumed."""
    if tokens_per_sample is not None or not recipe.population_dir.exists():
        return assumed_lengths(recipe.config, tokens_per_sample)
    from lm_mia.data.population import open_population  # here: pandas and pyarrow take a second

    population = open_population(recipe.population_dir, verify=False)
    lengths_N = np.diff(population.offsets_N1[: _MEASURED_SAMPLES + 1]).astype(float)
    return SampleLengths(
        float(lengths_N.mean()),
        float((lengths_N**2).mean()),
        f"measured in {recipe.population_dir}",
        population.text_use.share if population.text_use else None,
    )


def count_present(recipe: SweepRecipe) -> int:
    """Returns the number of a recipe's models that are trained and scored, judging by file names alone."""
    if not recipe.folder.exists():
        return 0
    from lm_mia.store.store import open_store  # here: tensorstore and zarr take half a second

    models = [model for model in recipe.models if model.role != "base"]
    return len(models) - len(open_store(recipe.config, recipe.folder).missing_models(models))
