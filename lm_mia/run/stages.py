"""The verbs of the command line that compute something, and the stages that each of them runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Stage = Literal["corpus", "train", "score", "attack", "extract", "report"]
Verb = Literal["run", "corpus", "train", "score", "attack", "extract", "report"]
ModelVerb = Literal["run", "train", "score"]
"""The verbs that make models: "run" trains and scores them, "train" and "score" do one of the two."""

STAGES: Mapping[Verb, tuple[Stage, ...]] = MappingProxyType(
    {
        "run": ("corpus", "train", "score", "attack", "extract", "report"),
        "corpus": ("corpus",),
        "train": ("train",),
        "score": ("score",),
        "attack": ("attack",),
        "extract": ("extract",),
        "report": ("report",),
    }
)
"""The stages of each verb, in order."""
