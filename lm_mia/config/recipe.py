"""Defines when two configs describe the same recipe, and lists the recipes of a config and its sweep."""

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from lm_mia.config import schema
from lm_mia.config.fields import before
from lm_mia.config.schema import Config
from lm_mia.errors import UserError

FORMAT = 4
"""Part of every recipe's hash. It is increased whenever the same settings would give different models or another
storage format, so that incompatible models never share a folder."""

POPULATION_FORMAT = 4
"""Format of the files of a population, as recorded in its manifest; part of every population's hash. It is increased,
and `FORMAT` with it, whenever the same settings would give other samples or other files."""

_REASON = "its settings have 0 where this version has auto, all, none or last"
"""How a workdir of the format before `FORMAT` differs."""

# Fields that affect speed, the number of models or the report, but not the models themselves. They may change in a
# workdir that already has models.
_CHANGEABLE = (
    "corpus.processes",
    "population.folder",
    "train.checkpoint_minutes",
    "train.keep_moments",
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
    "has_recipe",
    "compare_with_papers",
)

_COUNTS = (
    "references",
    "replicas",
    "targets",
    "replica_inits",
    "orders_per_init",
    "resample_references",
    "leave_one_out",
)
"""Fields of `Attack` for which a merged config takes the larger value."""

_MAX_NAME_LENGTH = 48
"""Maximum number of characters of a name that is derived from the overrides of a sweep entry."""

SweepEntry = tuple[dict[str, Any], Config]
"""The overrides of a sweep entry (empty for the config itself), and the resulting config."""


def check_format(stored: Mapping[str, Any], recipe_dir: Path) -> None:
    """Raises UserError, with the command that imports its losses, if a recipe was made in another format.

    Args:
      stored: the content of its config.json.
      recipe_dir: its folder, WORKDIR/recipes/NAME.
    """
    if stored["format"] == FORMAT:
        return
    workdir = recipe_dir.parent.parent
    made = f"--workdir={workdir}: was made by lm_mia {stored.get('lm_mia')}, in format {stored['format']}"
    if not isinstance(stored["format"], int) or stored["format"] > FORMAT:
        raise UserError(
            f"{made}, but this version reads format {FORMAT}; use that version, or choose another --workdir"
        )
    stores = sorted(recipe_dir.parent.glob("*/scores.zarr"))
    if not stores:
        raise UserError(
            f"{made}, but this version reads format {FORMAT}; it has no losses to import; choose another "
            "--workdir"
        )
    store = recipe_dir / "scores.zarr" if recipe_dir / "scores.zarr" in stores else stores[0]
    train = stored["config"].get("train", {})
    # With canaries, most samples are members of every model, which no other design allows.
    has_canaries = train.get("canaries", 0) not in (0, "all")  # 0 in format 3
    design = "given" if has_canaries else train.get("subset", "given")
    command = ["lm-mia", "import", str(store), "--workdir=NEW", f"--subset={design}"]
    command += [f"--name={store.parent.name}"]
    others = [path.parent.name for path in stores if path != store]
    likewise = f", and likewise for {', '.join(others)}" if others else ""
    raise UserError(
        f"{made}, but this version reads format {FORMAT} ({_REASON}); choose another --workdir, or import its losses: "
        f"`{shlex.join(command)}`{likewise}"
    )


def differences(stored: dict[str, Any], config: Config) -> list[str]:
    """Returns a line ``field: old -> new`` for each differing field that may not change in a workdir that has models.

    Args:
      stored: the old config, as returned by `to_dict`.
      config: the new config.
    """
    new, old = dict(_flatten(schema.to_dict(config))), before(Config) | dict(_flatten(stored))
    for name, source in schema.SOURCES.items():
        if new.get(source) and old.get(source):
            new.pop(name)
            old.pop(name)
    new_numbers, old_numbers = _with_numbers(new), _with_numbers(old)
    return [
        f"{field}: {old.get(field, 'absent')!r} -> {new.get(field, 'absent')!r}"
        for field in sorted(new.keys() | old.keys())
        if not field.startswith(_CHANGEABLE)
        and old.get(field) != new.get(field)
        and old_numbers.get(field) != new_numbers.get(field)
    ]


def from_dict(stored: dict[str, Any]) -> Config:
    """Returns the config that `to_dict` was given; raises TypeError if the fields are not those of this version.

    Fields that were added later, which it may lack, have the values that give the models of earlier versions.
    """
    earlier = before(Config)

    def build(kind: Any, value: Any, prefix: str = "") -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            kinds = get_type_hints(kind)
            values = {name: earlier[prefix + name] for name in kinds if prefix + name in earlier}
            values |= dict(value)
            return kind(
                **{name: build(kinds.get(name), v, f"{name}.") for name, v in values.items()}
            )
        return tuple(build(None, v) for v in value) if isinstance(value, list) else value

    return build(Config, stored)


def population_hash(config: Config) -> str:
    """Returns eight hex digits that identify the population: a hash of its corpus, tokenizer and other settings."""
    sections = ("corpus.", "tokenizer.", "population.")
    parts = _determinants(schema.to_dict(config), sections)
    return _hash(parts | {"format": POPULATION_FORMAT})


def recipe_hash(config: Config) -> str:
    """Returns eight hex digits: a hash of everything that determines a model except its seeds, including `FORMAT`."""
    return stored_recipe_hash(schema.to_dict(config))


def stored_recipe_hash(stored: dict[str, Any]) -> str:
    """Returns the `recipe_hash` of a config that `to_dict` returned, perhaps in a version with other fields."""
    sections = ("corpus.", "tokenizer.", "population.", "model.", "optimizer.", "train.")
    determinants = _determinants(stored, sections)
    determinants.pop("model.size", None)  # only a name for layers and width
    return _hash(determinants | {"format": FORMAT})


def _determinants(stored: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of some sections that determine models: name -> value."""
    earlier = before(Config)
    fields = {
        field: value
        for field, value in _with_numbers(dict(_flatten(stored))).items()
        if field.startswith(sections)
        and not field.startswith(_CHANGEABLE)
        and (field not in earlier or value != earlier[field])
    }
    for name, source in schema.SOURCES.items():
        if fields.get(source):
            fields.pop(name, None)
    return fields


def _with_numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config with the numbers that "auto" stands for, so that both are the same recipe.

    Those of a kind of a user are left as they are, since its code determines what "auto" is.
    """
    kind, width, heads = (fields.get(f"model.{name}") for name in ("kind", "width", "heads"))
    numbers = {"model.vocab_size": fields.get("tokenizer.vocab_size")}
    if (
        isinstance(width, int)
        and isinstance(heads, int)
        and heads > 0
        and not fields.get("model.kind_source")
    ):
        of_kind = schema.automatic_numbers(str(kind), width, heads)
        numbers |= {f"model.{name}": number for name, number in of_kind.items()}
    return {name: numbers.get(name, v) if v == "auto" else v for name, v in fields.items()}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if prefix + key == "model.kind":
            # Of FILE.py:CLASS, the class and model.kind_source count, not where the file lies.
            yield prefix + key, value.rpartition(":")[2]
        elif isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def recipe_key(config: Config) -> tuple[str, tuple[int, ...]]:
    """Returns the recipe's hash and the score points; configs for which these are equal share one folder."""
    return recipe_hash(config), schema.score_steps(config)


@dataclasses.dataclass(frozen=True)
class RecipeRequest:
    """One recipe of a config and its sweep. Entries with equal `recipe_key` are merged into one request."""

    names: tuple[str, ...]
    """The names that the entries give the recipe, without duplicates. The first one is the name of its folder."""
    entries: tuple[int, ...]
    """Indices of the entries; 0 is the config itself."""
    overrides: dict[str, Any]
    """The overrides of the first of these entries."""
    config: Config
    """The merged config, which requests everything that any of the entries requests."""


def recipe_requests(entries: Sequence[SweepEntry], default_name: str) -> list[RecipeRequest]:
    """Returns the distinct recipes of a config and its sweep.

    Args:
      entries: as returned by `lm_mia.config.load.load_sweep`; those without a recipe are left out.
      default_name: the name of the config itself if it has none. An entry of the sweep without a name is named after
        its overrides, such as ``layers=4,epochs=2``.

    Raises:
      UserError: if two recipes have the same name, or if entries with the same models have different settings of the
        attack or the extraction, since a recipe has only one set of tables.
    """
    requests: dict[Any, RecipeRequest] = {}
    for number, (overrides, config) in enumerate(entries):
        if not config.has_recipe:
            continue
        key = recipe_key(config)
        name = config.name or (_derived_name(overrides) if overrides else folder_name(default_name))
        if request := requests.get(key):
            _check_same_tables(request, number, config)
            requests[key] = dataclasses.replace(
                request,
                names=tuple(dict.fromkeys([*request.names, name])),
                entries=(*request.entries, number),
                config=merge_configs(request.config, config),
            )
        else:
            requests[key] = RecipeRequest((name,), (number,), overrides, config)
    return _with_unique_names(list(requests.values()))


def _with_unique_names(requests: list[RecipeRequest]) -> list[RecipeRequest]:
    """Makes derived names unique by adding a hash of the recipe; raises UserError if an explicit name is not unique."""
    count: dict[str, int] = {}
    for request in requests:
        for name in request.names:
            count[name] = count.get(name, 0) + 1
    explicit = {request.config.name for request in requests if request.config.name}
    if repeated := sorted(name for name in explicit if count[name] > 1):
        raise UserError(
            f"name={repeated[0]!r}: two recipes of the sweep have this name; give each entry its own name"
        )
    return [
        dataclasses.replace(
            request,
            names=tuple(
                name if count[name] == 1 else f"{name}-{_key_hash(request.config)}"
                for name in request.names
            ),
        )
        for request in requests
    ]


def _key_hash(config: Config) -> str:
    """Returns the recipe's hash, or a hash of the recipe's key if models are also scored before the end."""
    return _hash(recipe_key(config)) if schema.score_steps(config) else recipe_hash(config)


def _derived_name(overrides: dict[str, Any]) -> str:
    return folder_name(
        ",".join(f"{field.rpartition('.')[2]}={value}" for field, value in overrides.items())
    )


def folder_name(text: str) -> str:
    """Turns a text into a folder name; characters other than letters, digits and ``.+=,-`` become ``_``."""
    return re.sub(r"[^A-Za-z0-9.+=,-]+", "_", text)[:_MAX_NAME_LENGTH].strip("_.,-") or "recipe"


def _check_same_tables(request: RecipeRequest, number: int, config: Config) -> None:
    """Raises UserError if an entry's settings of the attack or the extraction differ from those of a request."""
    problems = []
    for section, counts in (("attack", _COUNTS), ("extract", ("samples",))):
        a, b = getattr(request.config, section), getattr(config, section)
        if section == "extract" and not (a.samples and b.samples):
            continue
        problems += [
            f"{section}.{field.name}: entries {request.entries[0]} and {number} of the sweep have the same models but "
            f"different values, {getattr(a, field.name)!r} and {getattr(b, field.name)!r}; use one value, or separate "
            "workdirs"
            for field in dataclasses.fields(a)
            if field.name not in counts and getattr(a, field.name) != getattr(b, field.name)
        ]
    if problems:
        raise UserError("\n".join(problems))


def merge_configs(a: Config, b: Config) -> Config:
    """Returns the first of two configs of a recipe, with the models and statistics that the second requests added."""
    counts = {name: max(getattr(a.attack, name), getattr(b.attack, name)) for name in _COUNTS}
    statistics = dict.fromkeys([*a.score.statistics, *b.score.statistics])
    token_samples = dict.fromkeys([*a.score.token_samples, *b.score.token_samples])
    validations = max(a.train.validations, b.train.validations)
    return dataclasses.replace(
        a,
        name=a.name or b.name,
        attack=dataclasses.replace(a.attack, **counts),
        # Tables of tokens use the lengths of prefix and suffix even if no samples are to be extracted.
        extract=max(
            a.extract, b.extract, key=lambda extract: (extract.samples, extract != schema.Extract())
        ),
        score=dataclasses.replace(
            a.score, statistics=tuple(statistics), token_samples=tuple(token_samples)
        ),
        train=dataclasses.replace(a.train, validations=validations),
    )
