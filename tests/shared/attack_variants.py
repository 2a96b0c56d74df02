"""Variants of LiRA, and a fixture of blocks of samples, for tests of attacks on one reference after another."""

from typing import Any

import pytest

from lm_mia.attacks import inputs

SAMPLES = 300
VARIANTS: list[dict[str, Any]] = [
    {"variance": "per_sample"},
    {"variance": "pooled"},
    {"variance": "pooled", "finite_population": True},
    {"variance": "per_sample", "finite_population": True},
]


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Uses one block with one part, or several blocks of three parts, the last of which are shorter."""
    if request.param == "many blocks":
        monkeypatch.setattr(inputs, "BLOCK_SAMPLES", 128)
        monkeypatch.setattr(inputs, "_SLICE_SAMPLES", 50)
    return request.param
