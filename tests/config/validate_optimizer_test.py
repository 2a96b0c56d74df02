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
    {"name": "muon", "momentum": 0.9, "newton_schulz_steps": 3, "consistent_rms": 0.0, "eps": 1e-8},
    {"name": "adamw", "b1": 0.0, "weight_decay_mask": ("kernel$",)},
    {"learning_rate_multipliers": (("^blocks/(attn|mlp)", 0.5), (".", 0.0))},
]


@pytest.mark.parametrize("changes", VALID)
def test_valid_optimizers(changes: dict[str, Any]):
    assert lines(**changes) == []


BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"name": "adam"},
        "optimizer.name='adam': must be one of adamw, lion, muon, or FILE.py:FUNCTION; did you mean adamw?",
    ),
    (
        {"name": "shampoo2"},
        "optimizer.name='shampoo2': must be one of adamw, lion, muon, or FILE.py:FUNCTION; see lm-mia fields",
    ),
    (
        {"name": "lion", "eps": 1e-8},
        "optimizer.eps=1e-08: is not read by optimizer.name=lion; leave it out, or set --config.optimizer.name to "
        "adamw or muon",
    ),
    (
        {"momentum": 0.9},
        "optimizer.momentum=0.9: is not read by optimizer.name=adamw; leave it out, or set --config.optimizer.name to "
        "muon",
    ),
    ({"b1": 1.0}, "optimizer.b1=1.0: must be at least 0 and below 1"),
    ({"b2": math.nan}, "optimizer.b2=nan: must be at least 0 and below 1"),
    ({"eps": 0.0}, "optimizer.eps=0.0: must be a finite number larger than 0"),
    (
        {"name": "muon", "newton_schulz_steps": 0},
        "optimizer.newton_schulz_steps=0: must be 1 or larger",
    ),
    (
        {"name": "muon", "consistent_rms": -1.0},
        "optimizer.consistent_rms=-1.0: must be a finite number, 0 or larger",
    ),
    (
        {"weight_decay_mask": ("kernel", "(")},
        "optimizer.weight_decay_mask=('kernel', '('): '(' is no regular expression of Python: missing ), unterminated "
        "subpattern at position 0; correct it",
    ),
    (
        {"learning_rate_multipliers": (("mlp", -1.0),)},
        "optimizer.learning_rate_multipliers=(('mlp', -1.0),): the multiplier of 'mlp' must be a finite number, 0 or "
        "larger",
    ),
    (
        {"source": "1234"},
        "optimizer.source='1234': is filled in for optimizer.name=FILE.py:FUNCTION, and must be empty otherwise; leave "
        "it out",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_broken_rules(changes: dict[str, Any], message: str):
    assert lines(**changes) == [message]


def test_a_user_function_must_be_in_the_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    assert lines(name=f"{file}:sgd") == [
        f"optimizer.name={file}:sgd: there is no file {file}; correct the path before .py:NAME"
    ]
    file.write_text("def lion(learning_rate): pass")
    assert lines(name=f"{file}:sgd") == [
        f"optimizer.name={file}:sgd: the file does not define 'sgd'; correct the name, or add the function"
    ]
    file.write_text("def sgd(learning_rate:")
    [line] = lines(name=f"{file}:sgd")
    assert line.startswith(f"optimizer.name={file}:sgd: the file cannot be read: ")
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
    assert error_lines(str(tiny), "--config.optimizer.beta1=0.5")[0].startswith(
        "--config.optimizer.beta1: no such field"
    )
