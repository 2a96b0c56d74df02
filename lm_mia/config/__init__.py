"""Configuration: the dataclasses, their validation, loading from a file and flags, and the hash of a recipe.

Config files import the dataclasses from here:

    from lm_mia.config import Config, Model, Train
"""

from lm_mia.config.schema import (
    FEWEST_FOR_LEAVE_ONE_OUT,
    HEAD_WIDTH,
    MODEL_SIZES,
    Attack,
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
    size_label,
    to_dict,
    total_steps,
    training_samples,
)

__all__ = [
    "FEWEST_FOR_LEAVE_ONE_OUT",
    "HEAD_WIDTH",
    "MODEL_SIZES",
    "Attack",
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
    "size_label",
    "to_dict",
    "total_steps",
    "training_samples",
]
