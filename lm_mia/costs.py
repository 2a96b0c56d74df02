"""What the rows of a config and its sweep cost: FLOPs, tokens, bytes and chip-hours. Numbers in, numbers out, no JAX.

Everything is counted from the config; only how long samples are must be measured or assumed.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_mia import config, flops, identity, points
from lm_mia.config import Config
from lm_mia.errors import UserError

# Lengths of C4 samples as assumed: lognormal, whose logarithms have this mean and standard deviation; cut at 1,024
# tokens the mean is 400 (StrongMIA Appendix G), and a tenth of the samples is cut.
_LOG_MEAN, _LOG_STD = 5.689, 1.0
_STATE_BYTES = 3 * 4  # a parameter and its two moments, float32
_TABLE_BYTES = (
    52  # a sample in samples.parquet, compressed, nearly all of it two names that look random
)

_MERGED = ("references", "replicas", "targets", "leave_one_out")
"""Fields of an attack of which a union has the most."""

Entry = tuple[dict[str, Any], Config]
"""What an entry of a sweep sets (nothing: the config itself), and its config."""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Means over samples of their numbers of tokens and of the squares of these."""

    mean_tokens: float
    mean_square_tokens: float
    said: str
    """Where they come from, for people."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the rows of one recipe come to, all of them together unless it says otherwise."""

    entries: tuple[int, ...]
    """Of the sweep, from 1; 0 is the config itself."""
    sets: dict[str, Any]
    """By the first of these entries."""
    name: str
    size: str
    layers: int
    width: int
    parameters: int
    rows: int
    present_rows: int
    """Of these, the ones that are trained and scored in the workdir."""
    row_steps: int
    """Of one row."""
    score_points: int
    """Of one row, its end among them."""
    mean_sample_tokens: float
    lengths: str
    train_tokens: float
    """Useful tokens trained on, epochs counted."""
    train_flops: float
    score_flops: float
    """At every score point and the end, of all samples, and for validation."""
    checkpoint_bytes: int
    """The last state of every row."""
    score_point_bytes: int
    """States at score points, which stay for statistics that are asked for later."""
    store_bytes: int
    population: str
    """Recipes of one population have the same name here."""
    population_bytes: int


def assumed(length_tokens: int, mean_tokens: float | None = None) -> Lengths:
    """Lengths of C4-like samples cut at length_tokens, or such that their mean, after the cut, is another."""
    if mean_tokens is None:
        mean, square = _cut(_LOG_MEAN, length_tokens)
        return Lengths(mean, square, "assumed as in C4")
    low, high = math.log(mean_tokens) - _LOG_STD, math.log(length_tokens) + 9 * _LOG_STD
    for _ in range(60):  # the mean grows with that of the logarithms
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _cut(middle, length_tokens)[0] < mean_tokens else (low, middle)
        )
    return Lengths(mean_tokens, _cut(low, length_tokens)[1], "as said")


def _cut(log_mean: float, length_tokens: int) -> tuple[float, float]:
    """First and second moment of lognormal lengths cut at length_tokens."""

    def below(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    z = (math.log(length_tokens) - log_mean) / _LOG_STD
    mean, square = (
        math.exp(k * log_mean + (k * _LOG_STD) ** 2 / 2) * below(z - k * _LOG_STD)
        + length_tokens**k * below(-z)
        for k in (1, 2)
    )
    return mean, square


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a sweep asks of one recipe, on one population: entries that differ in rows or statistics alone share it."""

    key: str
    """Eight hex digits that tell recipes of a sweep apart before there is a population."""
    entries: tuple[int, ...]
    sets: dict[str, Any]
    """By the first of these entries."""
    config: Config
    """Which asks for all that any of them does."""


def asked(entries: Sequence[Entry]) -> list[Asked]:
    """The recipes of a sweep (of `lm_mia.parse.sweep`), each once.

    Raises:
      UserError: entries want the same rows and attack or extract them otherwise, which one set of tables cannot be of.
    """
    found: dict[str, Asked] = {}
    for number, (sets, c) in enumerate(entries):
        p = c.population
        also = p.validation_samples, p.frequency_samples, p.group_prefix_tokens
        parts = [identity.recipe_hash(c, population_name(c)), points.score_steps(c), also]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]
        if old := found.get(key):
            _check_alike(old, number, c)
            both = union(old.config, c)
            found[key] = dataclasses.replace(old, entries=(*old.entries, number), config=both)
        else:
            found[key] = Asked(key, (number,), sets, c)
    return list(found.values())


def _check_alike(old: Asked, number: int, c: Config) -> None:
    told = []
    for section, merged in (("attack", _MERGED), ("extract", ("samples",))):
        a, b = getattr(old.config, section), getattr(c, section)
        if section == "extract" and not (a.samples and b.samples):
            continue
        told += [
            f"{section}.{f.name}: entries {old.entries[0]} and {number} of the sweep want the same rows with "
            f"{getattr(a, f.name)!r} and {getattr(b, f.name)!r}; say one for both, or give one a workdir of its own"
            for f in dataclasses.fields(a)
            if f.name not in merged and getattr(a, f.name) != getattr(b, f.name)
        ]
    if told:
        raise UserError("\n".join(told))


def recipes(
    entries: Sequence[Entry],
    lengths: Callable[[Config], Lengths],
    present: Callable[[Config], int] = lambda c: 0,
) -> list[Recipe]:
    """What a sweep comes to, each recipe once.

    Args:
      entries: as of `lm_mia.parse.sweep`.
      lengths: of a config's samples.
      present: rows that a config asks for and that are there.
    """
    return [recipe(a, lengths(a.config), present(a.config)) for a in asked(entries)]


def population_name(c: Config) -> str:
    """A name that configs of one population share: of what determines its samples."""
    parts = config.to_dict(c)
    named = {k: parts[k] for k in ("corpus", "tokenizer", "population")}
    for section, field in (
        *(("corpus", "processes"), ("population", "validation_samples")),
        *(("population", "frequency_samples"), ("population", "group_prefix_tokens")),
    ):
        del named[section][field]
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]


def union(a: Config, b: Config) -> Config:
    """A config that asks for the rows and statistics of both."""
    most = {name: max(getattr(a.attack, name), getattr(b.attack, name)) for name in _MERGED}
    attack = dataclasses.replace(a.attack, **most)
    extract = max(a.extract, b.extract, key=lambda e: e.samples)
    names = dict.fromkeys(name for c in (a, b) for name in c.name.split("+") if name)
    both = dict.fromkeys([*a.score.statistics, *b.score.statistics])
    ids = dict.fromkeys([*a.score.token_samples, *b.score.token_samples])
    score = dataclasses.replace(a.score, statistics=tuple(both), token_samples=tuple(ids))
    validations = max(a.train.validations, b.train.validations)
    return dataclasses.replace(
        a,
        name="+".join(names),
        attack=attack,
        score=score,
        extract=extract,
        train=dataclasses.replace(a.train, validations=validations),
    )


def recipe(of: Asked, lengths: Lengths, present_rows: int) -> Recipe:
    """What the rows of one recipe come to; of them, so many are there."""
    c = of.config
    m, samples, vocab_size = c.model, c.population.samples, c.tokenizer.vocab_size
    held_out = c.population.validation_samples
    rows = c.attack.references + c.attack.replicas
    at = len(points.score_steps(c)) + 1
    per_sample = (m.layers, m.width, vocab_size, lengths.mean_tokens, lengths.mean_square_tokens)
    trained = c.train.epochs * samples / 2
    # the lower-cased text is a second pass; all other statistics come with the loss
    passes = at * (2 if "lowercase_loss" in c.score.statistics else 1)
    scored = passes * samples + c.train.validations * held_out
    parameters = flops.parameters(m.layers, m.width, vocab_size, c.population.length_tokens)
    token_bytes = 2 if vocab_size <= 2**16 else 4
    sample_bytes = token_bytes * lengths.mean_tokens + 8 + _TABLE_BYTES  # 8: where it begins
    return Recipe(
        entries=of.entries,
        sets=of.sets,
        name=c.name,
        size=m.size,
        layers=m.layers,
        width=m.width,
        parameters=parameters,
        rows=rows,
        present_rows=present_rows,
        row_steps=points.total_steps(c),
        score_points=at,
        mean_sample_tokens=lengths.mean_tokens,
        lengths=lengths.said,
        train_tokens=rows * trained * lengths.mean_tokens,
        train_flops=rows * trained * flops.training(*per_sample),
        score_flops=rows * scored * flops.scoring(*per_sample),
        checkpoint_bytes=rows * _STATE_BYTES * parameters,
        score_point_bytes=rows * (at - 1) * _STATE_BYTES * parameters,
        store_bytes=rows * samples * (1 + at * 4 * (1 + len(c.score.statistics))),
        population=population_name(c),
        population_bytes=round((samples + held_out) * sample_bytes),
    )


def chip_hours(found: Recipe, flops_per_second: float) -> tuple[float, float]:
    """(hours of all rows, hours of those that are not present) of a chip that does so many useful FLOP/s."""
    hours = (found.train_flops + found.score_flops) / flops_per_second / 3600
    return hours, hours * (found.rows - found.present_rows) / found.rows


def totals(found: Sequence[Recipe]) -> dict[str, float]:
    """Sums over recipes; a population that several share is counted once."""
    names = (
        *("rows", "present_rows", "train_tokens", "train_flops", "score_flops"),
        *("checkpoint_bytes", "score_point_bytes", "store_bytes"),
    )
    largest: dict[str, int] = {}
    for r in found:
        largest[r.population] = max(largest.get(r.population, 0), r.population_bytes)
    sums: Mapping[str, float] = {name: sum(getattr(r, name) for r in found) for name in names}
    return {**sums, "population_bytes": sum(largest.values())}
