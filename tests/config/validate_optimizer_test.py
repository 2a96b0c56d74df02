"""The rules of ``optimizer.name`` and of what an optimizer reads."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from tiny_config import FILE, TINY, error_lines

from lm_mia import config
from lm_mia.config import load
from lm_mia.config.recipe import recipe_hash
from lm_mia.config.validate import problems


def lines(**changes: Any) -> list[str]:
    """Returns the broken rules of a config whose optimizer has these fields."""
    optimizer = dataclasses.replace(TINY.optimizer, **changes)
    return problems(config.resolve(dataclasses.replace(TINY, optimizer=optimizer)))


VALID: list[dict[str, Any]] = [
    {"name": "lion", "b1": 0.95, "weight_decay": 1.0},
    {
        "name": "muon",
        "momentum": 0.9,
        "newton_schulz_steps": 3,
        "consistent_rms": "none",
        "eps": 1e-8,
    },
    {"name": "adamw", "b1": 0.0, "weight_decay_mask": ("kernel$",)},
    {"learning_rate_multipliers": (("^blocks/(attn|mlp)", 0.5), (".", 0.0))},
]


@pytest.mark.parametrize("changes", VALID)
def test_valid_optimizers(changes: dict[str, Any]):
    assert lines(**changes) == []


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "adam"}, "name", "did you mean adamw?"),
    ({"name": "shampoo2"}, "name", "see lm-mia fields"),
    ({"name": "lion", "eps": 1e-8}, "eps", "set --config.optimizer.name to adamw or muon"),
    ({"momentum": 0.9}, "momentum", "set --config.optimizer.name to muon"),
    ({"b1": 1.0}, "b1", "below 1; the default is 0.9"),
    ({"b2": math.nan}, "b2", "below 1"),
    ({"eps": 0.0}, "eps", "above 0"),
    ({"clip_norm": 0.0}, "clip_norm", "above 0, or none"),
    ({"name": "muon", "newton_schulz_steps": 0}, "newton_schulz_steps", "at least 1"),
    ({"name": "muon", "consistent_rms": -1.0}, "consistent_rms", "above 0, or none"),
    ({"weight_decay_mask": ("kernel", "(")}, "weight_decay_mask", "regular expressions"),
    ({"learning_rate_multipliers": (("mlp", -1.0),)}, "learning_rate_multipliers", "pairs"),
    ({"source": "1234"}, "source", "leave it out"),
]


@pytest.mark.parametrize(("changes", "field", "words"), BROKEN)
def test_broken_rules(changes: dict[str, Any], field: str, words: str):
    [line] = lines(**changes)
    assert line.startswith(f"optimizer.{field}={changes[field]!r}: ")
    assert words in line


def test_a_user_function_must_be_in_the_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    texts = ("there is no file", "does not define 'sgd'", "cannot be read")
    for text, content in zip(texts, (None, "def lion(rate): pass", "def sgd(rate:"), strict=True):
        if content:
            file.write_text(content)
        [line] = lines(name=f"{file}:sgd")
        assert line.startswith(f"optimizer.name='{file}:sgd': ")
        assert text in line
    file.write_text("def sgd(learning_rate): pass")
    assert lines(name=f"{file}:sgd", eps=1e-4) == []  # what it reads is known when it is loaded


def test_the_digest_of_the_source_is_filled_in_once(tmp_path: Path):
    """A flag with another function replaces it; a config that has one keeps it when the file has changed."""
    tiny, file = tmp_path / "tiny.py", tmp_path / "mine.py"
    tiny.write_text(FILE)
    file.write_text("def one(learning_rate): return 1\ndef two(learning_rate): return 2")
    flag = f"--config.optimizer.name={file}:"
    first = load.load_config(str(tiny), [f"{flag}one"])
    assert len(first.optimizer.source) == 20
    file.write_text("def one(learning_rate): return 3\ndef two(learning_rate): return 2")
    assert config.resolve(first) == first
    again = load.load_config(str(tiny), [f"{flag}one"])
    other = load.apply_overrides(first, [f"{flag}two"])
    named = load.apply_overrides(first, ["--config.optimizer.name=lion"])
    assert len({c.optimizer.source for c in (first, again, other)}) == 3
    assert named.optimizer.source == ""
    assert len({recipe_hash(c) for c in (first, again, other, named)}) == 4


def test_flags_of_an_optimizer(tmp_path: Path):
    tiny = tmp_path / "tiny.py"
    tiny.write_text(FILE)
    flags = ["--config.optimizer.name=muon", "--config.optimizer.newton-schulz-steps=4"]
    assert load.load_config(str(tiny), flags).optimizer == dataclasses.replace(
        load.load_config(str(tiny)).optimizer, name="muon", newton_schulz_steps=4
    )
    [line, *_] = error_lines(str(tiny), "--config.optimizer.beta1=0.5")
    assert line.startswith("--config.optimizer.beta1: ")
