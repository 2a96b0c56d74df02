"""Configuration: the dataclasses, their validation, loading from a file and flags, and the hash of a recipe.

Config files import the dataclasses from here:

    from lm_mia.config import Config, Model, Train
"""

from lm_mia.config.schema import (
    ATTACK_STATISTICS,
    HEAD_WIDTH,
    MODEL_SIZES,
    Attack,
    AttackName,
    Compute,
    Config,
    Corpus,
    Extract,
    Model,
    Optimizer,
    Population,
    Score,
    Size,
    Tokenizer,
    Train,
    epoch_steps,
    first_canary,
    lowest_fpr,
    measurable_attack,
    num_canaries,
    resolve,
    score_steps,
    to_dict,
    total_steps,
    training_samples,
)

__all__ = [
    "ATTACK_STATISTICS",
    "HEAD_WIDTH",
    "MODEL_SIZES",
    "Attack",
    "AttackName",
    "Compute",
    "Config",
    "Corpus",
    "Extract",
    "Model",
    "Optimizer",
    "Population",
    "Score",
    "Size",
    "Tokenizer",
    "Train",
    "epoch_steps",
    "first_canary",
    "lowest_fpr",
    "measurable_attack",
    "num_canaries",
    "resolve",
    "score_steps",
    "to_dict",
    "total_steps",
    "training_samples",
]
