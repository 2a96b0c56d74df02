"""What makes two configs the same recipe, and the recipes that a config and its sweep ask for."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from lm_mia.config import schema
from lm_mia.config.schema import Config
from lm_mia.errors import UserError

FORMAT = 1
"""A part of every recipe's hash. It is raised whenever the same settings would train other models or be stored in
another form, so that such models never share a folder."""

# Fields that say how fast, how many or how shown, but never what a model is. They may change in a used workdir.
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
    "name",
    "figures",
)

_COUNTS = ("references", "replicas", "targets", "leave_one_out")
"""Fields of `Attack` of which merged configs have the larger value."""

_LONGEST_NAME = 48  # characters of a name that is made of what an entry of a sweep sets

Entry = tuple[dict[str, Any], Config]
"""What an entry of a sweep sets (nothing for the config itself), and the resulting config."""


def differences(old: dict[str, Any], c: Config) -> list[str]:
    """Returns a line ``field: old -> new`` for each field that differs and may not change in a used workdir.

    Args:
      old: a config as `to_dict` returns it.
      c: the new config.
    """
    new, was = dict(_flatten(schema.to_dict(c))), dict(_flatten(old))
    return [
        f"{k}: {was.get(k, 'absent')!r} -> {new.get(k, 'absent')!r}"
        for k in sorted(new.keys() | was.keys())
        if not k.startswith(_FREE) and was.get(k) != new.get(k)
    ]


def from_dict(stored: dict[str, Any]) -> Config:
    """Returns the config that `to_dict` was given; raises TypeError if the fields are not those of this version."""

    def build(kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            kinds = get_type_hints(kind)
            return kind(**{k: build(kinds.get(k), v) for k, v in dict(value).items()})
        return tuple(value) if isinstance(value, list) else value

    return build(Config, stored)


def population_hash(c: Config) -> str:
    """Returns eight hex digits that name the population: corpus, tokenizer and all settings of the population."""
    return _hash(_determinants(schema.to_dict(c), ("corpus.", "tokenizer.", "population.")))


def recipe_hash(c: Config) -> str:
    """Returns eight hex digits that name everything that determines a model except its seeds, `FORMAT` included."""
    return stored_hash(schema.to_dict(c))


def stored_hash(stored: dict[str, Any]) -> str:
    """Returns the `recipe_hash` of a config as `to_dict` returned it, perhaps in a version with other fields."""
    sections = ("corpus.", "tokenizer.", "population.", "model.", "optimizer.", "train.")
    parts = _determinants(stored, sections)
    parts.pop("model.size", None)  # a name for layers and width
    return _hash(parts | {"format": FORMAT})


def _determinants(tree: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    flat = _flatten(tree)
    return {k: v for k, v in flat if k.startswith(sections) and not k.startswith(_FREE)}


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def key(c: Config) -> tuple[str, tuple[int, ...]]:
    """Returns what configs whose models share a folder have in common: the recipe's hash, and the score points."""
    return recipe_hash(c), schema.score_steps(c)


@dataclasses.dataclass(frozen=True)
class RecipeRequest:
    """What a config and its sweep ask of one recipe; entries with equal `key` are merged into one request."""

    names: tuple[str, ...]
    """What the entries call the recipe, without duplicates; the first one names its folder."""
    entries: tuple[int, ...]
    """Numbers of the entries; 0 is the config itself."""
    sets: dict[str, Any]
    """What the first of these entries sets."""
    config: Config
    """Asks for all that any of the entries asks for."""


def requests(entries: Sequence[Entry], default_name: str) -> list[RecipeRequest]:
    """Returns the recipes of a config and its sweep, each once.

    Args:
      entries: as returned by `lm_mia.config.load.sweep`.
      default_name: the name of the config itself if it has none. An entry of the sweep without a name is called after
        what it sets, such as ``layers=4,epochs=2``.

    Raises:
      UserError: if two recipes have the same name, or entries with the same models attack or extract them differently,
        since a recipe has only one set of tables.
    """
    found: dict[Any, RecipeRequest] = {}
    for number, (sets, c) in enumerate(entries):
        name = c.name or (_name_of(sets) if sets else plain_name(default_name))
        if old := found.get(key(c)):
            _check_alike(old, number, c)
            found[key(c)] = dataclasses.replace(
                old,
                names=tuple(dict.fromkeys([*old.names, name])),
                entries=(*old.entries, number),
                config=merged(old.config, c),
            )
        else:
            found[key(c)] = RecipeRequest((name,), (number,), sets, c)
    return _with_own_names(list(found.values()))


def _with_own_names(found: list[RecipeRequest]) -> list[RecipeRequest]:
    """Adds a hash of the recipe to derived names that are not unique; UserError for given names that are not."""
    count: dict[str, int] = {}
    for request in found:
        for name in request.names:
            count[name] = count.get(name, 0) + 1
    given = {n for r in found for n in [r.config.name] if n}
    if twice := sorted(name for name in given if count[name] > 1):
        raise UserError(
            f"name={twice[0]!r}: two recipes of the sweep have this name; give each entry a name of its own"
        )
    return [
        dataclasses.replace(
            r, names=tuple(n if count[n] == 1 else f"{n}-{_key_hash(r.config)}" for n in r.names)
        )
        for r in found
    ]


def _key_hash(c: Config) -> str:
    """The recipe's hash, or, if models are also scored before their end, one that says at which steps."""
    return _hash(key(c)) if schema.score_steps(c) else recipe_hash(c)


def _name_of(sets: dict[str, Any]) -> str:
    return plain_name(",".join(f"{k.rpartition('.')[2]}={v}" for k, v in sets.items()))


def plain_name(text: str) -> str:
    """Returns a text as a name of a folder: other characters than those of ``layers=4,epochs=2`` become ``_``."""
    return re.sub(r"[^A-Za-z0-9.+=,-]+", "_", text)[:_LONGEST_NAME].strip("_.,-") or "recipe"


def _check_alike(old: RecipeRequest, number: int, c: Config) -> None:
    told = []
    for section, counts in (("attack", _COUNTS), ("extract", ("samples",))):
        a, b = getattr(old.config, section), getattr(c, section)
        if section == "extract" and not (a.samples and b.samples):
            continue
        told += [
            f"{section}.{f.name}: entries {old.entries[0]} and {number} of the sweep have the same models but "
            f"{getattr(a, f.name)!r} and {getattr(b, f.name)!r}; use one value for both, or another workdir for one"
            for f in dataclasses.fields(a)
            if f.name not in counts and getattr(a, f.name) != getattr(b, f.name)
        ]
    if told:
        raise UserError("\n".join(told))


def merged(a: Config, b: Config) -> Config:
    """Returns the first config, asking also for the models and statistics of the second."""
    most = {name: max(getattr(a.attack, name), getattr(b.attack, name)) for name in _COUNTS}
    statistics = dict.fromkeys([*a.score.statistics, *b.score.statistics])
    token_samples = dict.fromkeys([*a.score.token_samples, *b.score.token_samples])
    validations = max(a.train.validations, b.train.validations)
    return dataclasses.replace(
        a,
        name=a.name or b.name,
        attack=dataclasses.replace(a.attack, **most),
        extract=max(a.extract, b.extract, key=lambda e: e.samples),
        score=dataclasses.replace(
            a.score, statistics=tuple(statistics), token_samples=tuple(token_samples)
        ),
        train=dataclasses.replace(a.train, validations=validations),
    )
