"""Defines when two configs describe the same recipe, and lists the recipes of a config and its sweep."""

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
"""Part of every recipe's hash. It is increased whenever the same settings would give different models or another
storage format, so that incompatible models never share a folder."""

# Fields that affect speed, the number of models or the report, but not the models themselves. They may change in a
# workdir that already has models.
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
"""Fields of `Attack` for which a merged config takes the larger value."""

_LONGEST_NAME = 48  # in characters, of a name that is derived from the overrides of a sweep entry

SweepEntry = tuple[dict[str, Any], Config]
"""The overrides of a sweep entry (empty for the config itself), and the resulting config."""


def differences(old: dict[str, Any], c: Config) -> list[str]:
    """Returns a line ``field: old -> new`` for each differing field that may not change in a workdir that has models.

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
    """Inverse of `to_dict`; raises TypeError if the fields are not those of this version."""

    def build(kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            kinds = get_type_hints(kind)
            return kind(**{k: build(kinds.get(k), v) for k, v in dict(value).items()})
        return tuple(value) if isinstance(value, list) else value

    return build(Config, stored)


def population_hash(c: Config) -> str:
    """Returns eight hex digits that identify the population: a hash of its corpus, tokenizer and other settings."""
    return _hash(_determinants(schema.to_dict(c), ("corpus.", "tokenizer.", "population.")))


def recipe_hash(c: Config) -> str:
    """Returns eight hex digits: a hash of everything that determines a model except its seeds, including `FORMAT`."""
    return stored_recipe_hash(schema.to_dict(c))


def stored_recipe_hash(stored: dict[str, Any]) -> str:
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


def recipe_key(c: Config) -> tuple[str, tuple[int, ...]]:
    """Returns the recipe's hash and the score points; configs for which these are equal share one folder."""
    return recipe_hash(c), schema.score_steps(c)


@dataclasses.dataclass(frozen=True)
class RecipeRequest:
    """The part of a config and its sweep that is about one recipe; entries with equal `key` are merged."""

    names: tuple[str, ...]
    """The names that the entries give the recipe, without duplicates; the first is the name of its folder."""
    entries: tuple[int, ...]
    """Indices of the entries; 0 is the config itself."""
    overrides: dict[str, Any]
    """The overrides of the first of these entries."""
    config: Config
    """The merged config, which requests everything that any of the entries requests."""


def recipe_requests(entries: Sequence[SweepEntry], default_name: str) -> list[RecipeRequest]:
    """Returns the distinct recipes of a config and its sweep.

    Args:
      entries: as returned by `lm_mia.config.load.sweep`.
      default_name: used for the config itself if it has no name. An entry of the sweep without a name is named after
        its overrides, such as ``layers=4,epochs=2``.

    Raises:
      UserError: if two recipes have the same name, or if entries with the same models have different settings for the
        attack or the extraction, since a recipe has only one set of tables.
    """
    found: dict[Any, RecipeRequest] = {}
    for number, (sets, c) in enumerate(entries):
        name = c.name or (_name_of(sets) if sets else folder_name(default_name))
        if old := found.get(recipe_key(c)):
            _check_alike(old, number, c)
            found[recipe_key(c)] = dataclasses.replace(
                old,
                names=tuple(dict.fromkeys([*old.names, name])),
                entries=(*old.entries, number),
                config=merge_configs(old.config, c),
            )
        else:
            found[recipe_key(c)] = RecipeRequest((name,), (number,), sets, c)
    return _with_own_names(list(found.values()))


def _with_own_names(found: list[RecipeRequest]) -> list[RecipeRequest]:
    """Makes derived names unique by adding a hash of the recipe; raises UserError if an explicit name is not unique."""
    count: dict[str, int] = {}
    for request in found:
        for name in request.names:
            count[name] = count.get(name, 0) + 1
    given = {n for r in found for n in [r.config.name] if n}
    if twice := sorted(name for name in given if count[name] > 1):
        raise UserError(
            f"name={twice[0]!r}: two recipes of the sweep have this name; give each entry its own name"
        )
    return [
        dataclasses.replace(
            r, names=tuple(n if count[n] == 1 else f"{n}-{_key_hash(r.config)}" for n in r.names)
        )
        for r in found
    ]


def _key_hash(c: Config) -> str:
    """The recipe's hash, or, if models are also scored before their end, one that says at which steps."""
    return _hash(recipe_key(c)) if schema.score_steps(c) else recipe_hash(c)


def _name_of(sets: dict[str, Any]) -> str:
    return folder_name(",".join(f"{k.rpartition('.')[2]}={v}" for k, v in sets.items()))


def folder_name(text: str) -> str:
    """Turns a text into a folder name; characters other than letters, digits and ``.+=,-`` become ``_``."""
    return re.sub(r"[^A-Za-z0-9.+=,-]+", "_", text)[:_LONGEST_NAME].strip("_.,-") or "recipe"


def _check_alike(old: RecipeRequest, number: int, c: Config) -> None:
    problems = []
    for section, counts in (("attack", _COUNTS), ("extract", ("samples",))):
        a, b = getattr(old.config, section), getattr(c, section)
        if section == "extract" and not (a.samples and b.samples):
            continue
        problems += [
            f"{section}.{f.name}: entries {old.entries[0]} and {number} of the sweep have the same models but "
            f"different values, {getattr(a, f.name)!r} and {getattr(b, f.name)!r}; use one value, or separate workdirs"
            for f in dataclasses.fields(a)
            if f.name not in counts and getattr(a, f.name) != getattr(b, f.name)
        ]
    if problems:
        raise UserError("\n".join(problems))


def merge_configs(a: Config, b: Config) -> Config:
    """Returns the first config, extended by the models and statistics that the second requests."""
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
