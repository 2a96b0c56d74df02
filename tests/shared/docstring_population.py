"""A small population of the docstrings of one package, for tests of the content of populations."""

import functools
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.data import build, docstrings
from lm_mia.data.documents import Document, Log, ProgressCallback, no_log, no_progress
from lm_mia.data.population import Population
from lm_mia.data.tokenizer import train_tokenizer


@functools.cache
def documents() -> list[Document]:
    texts, names = docstrings.read(["rich"])
    return [(t, name, "rich") for t, name in zip(texts, names, strict=True) if len(t) >= 100]


@functools.cache
def model() -> bytes:
    return train_tokenizer([text for text, *_ in documents()], 400)


def write(
    folder: Path,
    min_chars: int = 0,
    settings: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
    log: Log = no_log,
    **changes: Any,
) -> Population:
    """Writes 100 samples of at most 64 tokens; changes are of the fields of `config.Population`."""
    fields: dict[str, Any] = {"seed": 3, "samples": 100, "length_tokens": 64} | changes
    spec = build.PopulationSpec(
        config.Population(**fields), model(), min_chars, settings or {}, provenance or {}
    )
    return build.write_population(folder, documents(), spec, 1, progress, log)


def content(folder: Path) -> dict[str, bytes]:
    """Returns {file name: bytes}."""
    return {p.name: p.read_bytes() for p in folder.iterdir()}
