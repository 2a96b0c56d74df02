"""A small population of the docstrings of one package, for tests of what populations hold."""

import functools
from pathlib import Path
from typing import Any

from lm_mia.data import build, docstrings
from lm_mia.data.population import Population
from lm_mia.data.tokenizer import train_tokenizer


@functools.cache
def documents() -> list[tuple[str, str]]:
    texts, records = docstrings.read(["rich"])
    return [(t, r) for t, r in zip(texts, records, strict=True) if len(t) >= 100]


@functools.cache
def model() -> bytes:
    return train_tokenizer([text for text, _ in documents()], 400)


def write(folder: Path, **changes: Any) -> Population:
    """100 samples of at most 64 tokens, or with other arguments of `build.write_population`."""
    kwargs: dict[str, Any] = {"seed": 3, "samples": 100, "length_tokens": 64} | changes
    return build.write_population(folder, documents(), model(), **kwargs)


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of every file by its name."""
    return {p.name: p.read_bytes() for p in folder.iterdir()}
