"""What makes two configs the same run, and two rows of the same kind."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any, get_type_hints

from lm_mia import config

# Fields that say how fast, how many or how shown, never what a row is: they may change in a used workdir.
_FREE = (
    *("corpus.processes", "train.checkpoint_minutes", "train.workers", "train.validations"),
    *("train.trackers", "compute.", "score.statistics", "score.token_samples", "attack."),
    *("extract.", "report", "name", "figures"),
)


def differences(old: dict[str, Any], c: config.Config) -> list[str]:
    """Fields, other than those free to change, in which a stored config differs: ``field: old -> new``."""
    new, was = dict(_flatten(config.to_dict(c))), dict(_flatten(old))
    return [
        f"{k}: {was.get(k, 'absent')!r} -> {new.get(k, 'absent')!r}"
        for k in sorted(new.keys() | was.keys())
        if not k.startswith(_FREE) and was.get(k) != new.get(k)
    ]


def from_dict(stored: dict[str, Any]) -> config.Config:
    """The config that `config.to_dict` made; TypeError if it is of other fields."""

    def build(kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            kinds = get_type_hints(kind)
            return kind(**{k: build(kinds.get(k), v) for k, v in dict(value).items()})
        return tuple(value) if isinstance(value, list) else value

    return build(config.Config, stored)


def recipe_hash(c: config.Config, population_sha256: str) -> str:
    """Eight hex digits that name everything that determines a row except its seeds."""
    parts = {
        k: v
        for k, v in _flatten(config.to_dict(c))
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
