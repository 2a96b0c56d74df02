"""A tiny config, as an object and as a file, for tests."""

import dataclasses
from typing import Any

import pytest

from lm_mia import config
from lm_mia.config import Config, load
from lm_mia.errors import UserError

TINY = Config(
    population=config.Population(samples=16, length_tokens=8),
    model=config.Model(layers=1, width=8, heads=2),
    optimizer=config.Optimizer(warmup_steps=1),
    train=config.Train(batch_size=4),
    attack=config.Attack(references=4, replicas=2, fprs=(0.1, 0.5), focus_fpr=0.1),
)


def change(base: Config, field: str, value: Any) -> Config:
    """Returns the config with another value of a field such as train.epochs."""
    section, _, leaf = field.rpartition(".")
    if not section:
        return dataclasses.replace(base, **{leaf: value})
    part = dataclasses.replace(getattr(base, section), **{leaf: value})
    return dataclasses.replace(base, **{section: part})


FILE = """
from lm_mia import config
def get_config(size="1"):
    return config.Config(
        population=config.Population(samples=16, length_tokens=8),
        model=config.Model(layers=int(size), width=8, heads=2),
        optimizer=config.Optimizer(warmup_steps=1, weight_decay=0),
        train=config.Train(batch_size=4),
        attack=config.Attack(
            references=4, replicas=2, fprs=(0.1, 0.5), focus_fpr=0.1, band=(0, 0.1)
        ),
    )
"""


def error_lines(file: str, *overrides: str) -> list[str]:
    """Returns the error message of a config with overrides, as lines."""
    with pytest.raises(UserError) as caught:
        load.load_config(file, overrides)
    return str(caught.value).split("\n")
