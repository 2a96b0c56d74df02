import dataclasses
import json
from typing import Any

import pytest
from conftest import TINY, change

from lm_mia import config
from lm_mia.config import Config


def fields() -> list[str]:
    sections = [f.name for f in dataclasses.fields(Config) if f.name != "report"]
    names = {s: [f.name for f in dataclasses.fields(getattr(TINY, s))] for s in sections}
    return [f"{s}.{name}" for s in sections for name in names[s]] + ["report"]


def other(field: str) -> Any:
    """A value of the field that differs from TINY's."""
    value: Any = TINY
    for part in field.split("."):
        value = getattr(value, part)
    if isinstance(value, str):
        return value + "x"
    return (0.2,) if isinstance(value, tuple) else value + 1


def test_to_dict_is_plain_and_whole():
    tree = config.to_dict(TINY)
    assert json.loads(json.dumps(tree)) == tree
    assert tree["attack"]["fprs"] == [0.1, 0.5]
    assert tree["report"] == "analysis/report.py"
    assert set(tree) == {f.name for f in dataclasses.fields(Config)}


FREE = {"train.workers", "train.checkpoint_minutes", "score.statistics", "report"} | {
    f"attack.{f.name}" for f in dataclasses.fields(config.Attack)
}


@pytest.mark.parametrize("field", fields())
def test_differences_tells_every_field_that_is_not_free(field: str):
    stored = config.to_dict(TINY)
    new = change(TINY, field, other(field))
    assert len(config.differences(stored, TINY)) == 0
    found = config.differences(stored, new)
    assert [line.partition(":")[0] for line in found] == ([] if field in FREE else [field])


def test_differences_says_old_and_new_and_what_is_absent():
    stored = config.to_dict(TINY)
    del stored["model"]["width"]
    stored["model"]["depth"] = 3
    stored["train"]["epochs"] = 2
    assert config.differences(stored, TINY) == [
        "model.depth: 3 -> 'absent'",
        "model.width: 'absent' -> 8",
        "train.epochs: 2 -> 1",
    ]


def test_recipe_hash_is_what_it_always_was():
    """Another hash would orphan every store there is: change it only with a note in the changelog."""
    assert config.recipe_hash(TINY, "0" * 64) == "6c3548b8"


@pytest.mark.parametrize("field", fields())
def test_recipe_hash_moves_with_what_a_model_is(field: str):
    section = field.partition(".")[0]
    moves = section in ("model", "optimizer", "train") and field not in FREE
    moves |= field == "population.length_tokens"  # the model has as many positions
    before, after = (config.recipe_hash(c, "p") for c in (TINY, change(TINY, field, other(field))))
    assert (before != after) == moves
    assert config.recipe_hash(TINY, "q") != before
