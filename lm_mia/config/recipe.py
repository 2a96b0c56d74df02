"""What makes two configs the same recipe, and which recipes a config and its sweep ask for."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from lm_mia.config import schema
from lm_mia.config.schema import Config
from lm_mia.errors import UserError

# Fields that say how fast, how many or how shown, never what a row is: they may change in a used workdir.
_FREE = (
    "corpus.processes",
    "train.checkpoint_minutes",
    "train.workers",
    "train.validations",
    "train.trackers",
    "compute.",
    "score.statistics",
    "score.token_samples",
    "attack.",
    "extract.",
    "report",
    "name",
    "figures",
)

_MERGED = ("references", "replicas", "targets", "leave_one_out")
"""Fields of an attack of which a union has the most."""

Entry = tuple[dict[str, Any], Config]
"""What an entry of a sweep sets (nothing: the config itself), and its config."""


def differences(old: dict[str, Any], c: Config) -> list[str]:
    """Fields, other than those free to change, in which a stored config differs: ``field: old -> new``."""
    new, was = dict(_flatten(schema.to_dict(c))), dict(_flatten(old))
    return [
        f"{k}: {was.get(k, 'absent')!r} -> {new.get(k, 'absent')!r}"
        for k in sorted(new.keys() | was.keys())
        if not k.startswith(_FREE) and was.get(k) != new.get(k)
    ]


def from_dict(stored: dict[str, Any]) -> Config:
    """The config that `config.to_dict` made; TypeError if it is of other fields."""

    def build(kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            kinds = get_type_hints(kind)
            return kind(**{k: build(kinds.get(k), v) for k, v in dict(value).items()})
        return tuple(value) if isinstance(value, list) else value

    return build(Config, stored)


def recipe_hash(c: Config, population_sha256: str) -> str:
    """Eight hex digits that name everything that determines a row except its seeds."""
    parts = {
        k: v
        for k, v in _flatten(schema.to_dict(c))
        if k.startswith(("model.", "optimizer.", "train.", "population.length_tokens"))
        and k != "model.size"  # a name for layers and width
    }
    parts = {k: v for k, v in parts.items() if not k.startswith(_FREE)} | {
        "population": population_sha256
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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
    """The recipes of a sweep (of `lm_mia.config.load.sweep`), each once.

    Raises:
      UserError: entries want the same rows and attack or extract them otherwise, which one set of tables cannot be of.
    """
    found: dict[str, Asked] = {}
    for number, (sets, c) in enumerate(entries):
        p = c.population
        also = p.validation_samples, p.frequency_samples, p.group_prefix_tokens
        parts = [recipe_hash(c, population_name(c)), schema.score_steps(c), also]
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


def population_name(c: Config) -> str:
    """A name that configs of one population share: of what determines its samples."""
    parts = schema.to_dict(c)
    named = {k: parts[k] for k in ("corpus", "tokenizer", "population")}
    for section, field in (
        ("corpus", "processes"),
        ("population", "validation_samples"),
        ("population", "frequency_samples"),
        ("population", "group_prefix_tokens"),
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
