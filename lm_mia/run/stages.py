"""The verbs of the command line that compute something, and the stages that each of them runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from lm_mia.config import Config

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


def requested_table_stages(c: Config) -> frozenset[Stage]:
    """Returns those of the stages "attack" and "extract" that a config requests."""
    attacks = c.attack.replicas or c.attack.targets or c.attack.leave_one_out
    attacks = attacks or len(c.attack.zero_run)
    extracts = c.extract.samples and c.attack.replicas
    stages: dict[Stage, int] = {"attack": attacks, "extract": extracts}
    return frozenset(stage for stage, is_requested in stages.items() if is_requested)
