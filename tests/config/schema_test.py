import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY, change

from lm_mia import config
from lm_mia.config import SIZES, Config, Model, resolve
from lm_mia.config.recipe import differences, recipe_hash


def fields() -> list[str]:
    whole = [f.name for f in dataclasses.fields(Config)]
    sections = [s for s in whole if dataclasses.is_dataclass(getattr(TINY, s))]
    names = {s: [f.name for f in dataclasses.fields(getattr(TINY, s))] for s in sections}
    return [f"{s}.{name}" for s in sections for name in names[s]] + [
        name for name in whole if name not in sections
    ]


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


FREE = {
    "train.workers",
    "train.checkpoint_minutes",
    "train.validations",
    "train.trackers",
    "corpus.processes",
    "score.statistics",
    "score.token_samples",
    "report",
    "name",
    "figures",
    *(f"attack.{f.name}" for f in dataclasses.fields(config.Attack)),
    *(f"compute.{f.name}" for f in dataclasses.fields(config.Compute)),
    *(f"extract.{f.name}" for f in dataclasses.fields(config.Extract)),
}


@pytest.mark.parametrize("field", fields())
def test_differences_tells_every_field_that_is_not_free(field: str):
    stored = config.to_dict(TINY)
    new = change(TINY, field, other(field))
    assert len(differences(stored, TINY)) == 0
    found = differences(stored, new)
    assert [line.partition(":")[0] for line in found] == ([] if field in FREE else [field])


def test_differences_says_old_and_new_and_what_is_absent():
    stored = config.to_dict(TINY)
    del stored["model"]["width"]
    stored["model"]["depth"] = 3
    stored["train"]["epochs"] = 2
    assert differences(stored, TINY) == [
        "model.depth: 3 -> 'absent'",
        "model.width: 'absent' -> 8",
        "train.epochs: 2 -> 1",
    ]


def test_recipe_hash_is_what_it_always_was():
    """Another hash would orphan every store there is: change it only with a note in the changelog."""
    assert recipe_hash(TINY, "0" * 64) == "624e2711"


@pytest.mark.parametrize("field", fields())
def test_recipe_hash_moves_with_what_a_model_is(field: str):
    section = field.partition(".")[0]
    moves = section in ("model", "optimizer", "train") and field not in {*FREE, "model.size"}
    moves |= field == "population.length_tokens"  # the model has as many positions
    before, after = (recipe_hash(c, "p") for c in (TINY, change(TINY, field, other(field))))
    assert (before != after) == moves
    assert recipe_hash(TINY, "q") != before


def resolved(**model: Any) -> Model:
    return resolve(Config(model=Model(**model))).model


def test_sizes_are_those_of_the_paper_by_name():
    assert get_args(config.Size) == (*SIZES, "custom")
    for name, (layers, width) in SIZES.items():
        millions = 12 * layers * width**2 / 1e6
        assert millions == pytest.approx(int(name.removesuffix("M")), rel=0.06), name
        m = resolved(size=name)
        assert (m.size, m.layers, m.width, m.heads) == (name, layers, width, width // 64)
    assert len(set(SIZES.values())) == len(SIZES)  # else a shape would have two names


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({}, ("85M", 12, 768, 12)),
        ({"size": "302M"}, ("302M", 24, 1024, 16)),
        ({"size": "302M", "layers": 2}, ("custom", 2, 1024, 16)),
        ({"size": "302M", "width": 512}, ("custom", 24, 512, 8)),
        ({"size": "302M", "heads": 8}, ("302M", 24, 1024, 8)),
        ({"layers": 20}, ("140M", 20, 768, 12)),  # it is that size, whatever it was called
        ({"size": "custom", "layers": 3, "width": 512}, ("10M", 3, 512, 8)),
        ({"size": "custom", "layers": 2, "width": 48}, ("custom", 2, 48, 1)),
        ({"size": "custom", "layers": 2, "width": 100}, ("custom", 2, 100, 1)),
        ({"size": "custom", "layers": 2, "width": 191, "heads": 1}, ("custom", 2, 191, 1)),
        ({"size": "custom"}, ("custom", 0, 0, 1)),
    ],
)
def test_a_size_gives_what_is_not_said(model: dict[str, Any], expected: tuple[str, int, int, int]):
    m = resolved(**model)
    assert (m.size, m.layers, m.width, m.heads) == expected


@given(
    st.sampled_from([*SIZES, "custom"]),
    st.integers(0, 40),
    st.sampled_from([0, 8, 512, 768, 1024]),
    st.integers(0, 20),
)
def test_what_is_resolved_stays(size: Any, layers: int, width: int, heads: int):
    once = resolve(Config(model=Model(size, layers, width, heads)))
    assert resolve(once) == once
    m = once.model
    assert (m.layers, m.width) == (layers or m.layers, width or m.width)
    assert SIZES.get(m.size, (m.layers, m.width)) == (m.layers, m.width)


def test_a_row_is_what_its_numbers_say_not_what_its_size_is_called():
    plain = Config(model=Model(size="custom", layers=3, width=512, heads=8))
    assert recipe_hash(resolve(plain), "p") == recipe_hash(
        resolve(Config(model=Model(size="10M"))), "p"
    )
