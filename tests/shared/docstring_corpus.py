"""A small corpus of text files, the docstrings of one package, for tests of how populations are built."""

import functools
from pathlib import Path

import pytest

from lm_mia import config
from lm_mia.data import docstrings

SIZES = config.Population(samples=60, seed=1, length_tokens=32)
PIECES = config.Tokenizer(vocab_size=300)


@functools.cache
def texts() -> list[str]:
    return [text for text in docstrings.read(["rich"])[0] if len(text) >= 200]


@pytest.fixture
def source(tmp_path: Path) -> config.Corpus:
    (tmp_path / "source").mkdir()
    for i, text in enumerate(texts()):
        (tmp_path / f"source/{i:03}.txt").write_text(text, "utf-8")
    return config.Corpus("text", str(tmp_path / "source"))


def content(folder: Path) -> dict[str, bytes]:
    """Returns {file name: bytes}."""
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def stop(label: str, done: int, total: int) -> None:
    """Progress callback that stops a build once its samples are tokenized."""
    if label == "assemble population":
        raise KeyboardInterrupt
