import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import config
from lm_mia.config import Config


def change(base: Config, field: str, value: Any) -> Config:
    section, _, leaf = field.rpartition(".")
    if not section:
        return dataclasses.replace(base, **{leaf: value})
    part = dataclasses.replace(getattr(base, section), **{leaf: value})
    return dataclasses.replace(base, **{section: part})


TINY = Config(
    population=config.Population(samples=16, length_tokens=8),
    model=config.Model(layers=1, width=8, heads=2),
    optimizer=config.Optimizer(warmup_steps=1),
    train=config.Train(batch_size=4),
    attack=config.Attack(references=4, replicas=2, fprs=(0.1, 0.5), focus_fpr=0.1),
)


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


def test_sound_configs_have_no_problems():
    assert config.problems(TINY) == []
    assert config.problems(Config()) == []


# Each: what is changed, and all that is said of it.
BROKEN: list[tuple[dict[str, Any], list[str]]] = [
    *(
        ({field: bad}, [f"{field}={bad!r}: must be a finite number larger than 0"])
        for field in (
            *("corpus.min_chars", "tokenizer.vocab_size", "model.layers", "model.width"),
            *("model.heads", "train.batch_size", "train.epochs", "score.batch_size"),
            *("optimizer.clip_norm", "optimizer.peak_learning_rate", "train.checkpoint_minutes"),
        )
        for bad in ((0, -1, math.nan, math.inf) if "optimizer" in field else (0, -1))
    ),
    *(
        ({field: bad}, [f"{field}={bad!r}: must be a finite number, 0 or larger"])
        for field in (
            *("population.seed", "train.workers", "optimizer.weight_decay"),
            *("optimizer.init_learning_rate", "optimizer.final_learning_rate"),
        )
        for bad in ((-1, math.nan, math.inf) if "optimizer" in field else (-1,))
    ),
    (
        {"population.samples": 17},
        ["population.samples=17: must be even (2N); 18 is"],
    ),
    (
        {"population.samples": 0},
        ["population.samples=0: must be a finite number larger than 0"],
    ),
    (
        {"population.samples": -3},
        ["population.samples=-3: must be a finite number larger than 0"],
    ),
    (
        {"population.length_tokens": 2},
        ["population.length_tokens=2: must be 3 or more (<bos>, a piece, <eos>)"],
    ),
    (
        {"train.batch_size": 9, "optimizer.warmup_steps": 0},
        [
            "train.batch_size=9: must be at most N = population.samples / 2 = 8, the size of a subset; "
            "try --config.train.batch_size=1"
        ],
    ),
    (
        {"model.heads": 3},
        ["model.heads=3: must divide model.width=8; try --config.model.heads=2"],
    ),
    (
        {"model.heads": 100},
        ["model.heads=100: must divide model.width=8; try --config.model.heads=8"],
    ),
    (
        {"corpus.path": "x"},
        [
            "corpus.path='x': corpus.source='docstrings' needs no path; "
            "set --config.corpus.source=text, jsonl or parquet"
        ],
    ),
    (
        {"corpus.source": "text"},
        ["corpus.path='': corpus.source='text' needs a file, a folder or a glob"],
    ),
    (
        {"optimizer.warmup_steps": 2},
        [
            "optimizer.warmup_steps=2: must be less than the 2 steps of a row, which population.samples, "
            "train.batch_size and train.epochs make; try --config.optimizer.warmup_steps=0"
        ],
    ),
    (
        {"train.subset": "balanced", "attack.references": 5},
        ["attack.references=5: must be even for train.subset='balanced' (pairs)"],
    ),
    (
        {"attack.references": 3},
        ["attack.references=3: must be 4 or more, for 2 IN and 2 OUT of a sample"],
    ),
    ({"attack.replicas": 1}, ["attack.replicas=1: must be 2 or more, for a flip rate"]),
    *(
        ({"attack.alpha": bad}, [f"attack.alpha={bad!r}: must lie between 0 and 1"])
        for bad in (0.0, 1.0, math.nan, -1.0)
    ),
    *(
        (
            {"attack.fprs": bad, "attack.focus_fpr": bad[0]},
            [
                f"attack.fprs={bad!r}: must be rates between 0 and 1 in ascending order, distinct in their "
                "first 6 digits"
            ],
        )
        for bad in (
            (0.0, 0.1),
            (0.1, 1.0),
            (0.2, 0.1),
            (0.1, 0.1),
            (0.1, 0.10000001),
            (0.1, math.nan),
        )
    ),
    (
        {"attack.focus_fpr": 0.3},
        ["attack.focus_fpr=0.3: must be one of attack.fprs=(0.1, 0.5)"],
    ),
]


@pytest.mark.parametrize(("changes", "said"), BROKEN, ids=[str(c) for c, _ in BROKEN])
def test_every_broken_rule_is_one_line(changes: dict[str, Any], said: list[str]):
    broken = TINY
    for field, value in changes.items():
        broken = change(broken, field, value)
    assert config.problems(broken) == said


def test_rules_that_just_hold():
    for changes in (
        {"train.batch_size": 8, "optimizer.warmup_steps": 0},
        {"population.length_tokens": 3},
        {"optimizer.warmup_steps": 0},
        {"optimizer.init_learning_rate": 0.0, "optimizer.weight_decay": 0.0},
        {"train.subset": "balanced"},
        {"corpus.source": "jsonl", "corpus.path": "x"},
    ):
        sound = TINY
        for field, value in changes.items():
            sound = change(sound, field, value)
        assert config.problems(sound) == []


def test_all_problems_are_told_at_once():
    broken = change(change(change(TINY, "train.epochs", 0), "model.heads", 3), "attack.replicas", 1)
    assert [line.partition("=")[0] for line in config.problems(broken)] == [
        "train.epochs",
        "model.heads",
        "attack.replicas",
    ]


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_problems_never_raises_and_names_a_field(samples: int, batch: int, width: int, heads: int):
    c = TINY
    for field, value in (
        *(("population.samples", samples), ("train.batch_size", batch)),
        *(("model.width", width), ("model.heads", heads), ("optimizer.warmup_steps", 0)),
    ):
        c = change(c, field, value)
    found = config.problems(c)
    assert all(line.partition("=")[0] in fields() for line in found)
    sound = samples > 0 and samples % 2 == 0 and 0 < batch <= samples // 2
    assert (found == []) == (sound and width > 0 and heads > 0 and width % heads == 0)


def test_to_dict_is_plain_and_whole():
    tree = config.to_dict(TINY)
    assert json.loads(json.dumps(tree)) == tree
    assert tree["attack"]["fprs"] == [0.1, 0.5]
    assert tree["report"] == "analysis/report.py"
    assert set(tree) == {f.name for f in dataclasses.fields(Config)}


FREE = {"train.workers", "train.checkpoint_minutes", "report"} | {
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
