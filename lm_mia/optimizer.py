"""AdamW with linear warm-up and cosine decay: StrongMIA Appendix G's recipe, on optax."""

import numpy as np
import optax

from lm_mia import config
from lm_mia.errors import UserError

# Not printed in the paper; NanoDO's defaults, which it used.
_B1, _B2, _EPS = 0.9, 0.98, 1e-9


def learning_rates(recipe: config.Optimizer, steps: int) -> np.ndarray:
    """The learning rate of every step of a row.

    Linear from init to peak over warmup_steps, then cosine down to final, which is the value that the step after the
    last would have.

    Returns:
      learning_rate_T, float32, T = steps.

    Raises:
      UserError: if the row ends before its warm-up does (a Bernoulli subset may be that small).
    """
    if steps <= recipe.warmup_steps:
        raise UserError(
            f"optimizer.warmup_steps={recipe.warmup_steps}: must be less than the {steps} steps of a row"
        )
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=recipe.init_learning_rate,
        peak_value=recipe.peak_learning_rate,
        warmup_steps=recipe.warmup_steps,
        decay_steps=steps,
        end_value=recipe.final_learning_rate,
    )
    return np.asarray(schedule(np.arange(steps)), np.float32)


def optimizer(recipe: config.Optimizer) -> optax.GradientTransformation:
    """AdamW on gradients clipped by their global norm, up to the learning rate.

    The caller multiplies the update by minus the step's learning rate, so that rows of different lengths share one
    compiled step.
    """
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm),
        optax.scale_by_adam(b1=_B1, b2=_B2, eps=_EPS),
        optax.add_decayed_weights(recipe.weight_decay),
    )
