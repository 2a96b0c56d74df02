"""AdamW with linear warm-up and decay: StrongMIA Appendix G's recipe and the variants of its Figure 15, on optax."""

import functools

import numpy as np
import optax

from lm_mia import config
from lm_mia.errors import UserError

# Not printed in the paper; NanoDO's defaults, which it used.
_B1, _B2, _EPS = 0.9, 0.98, 1e-9


def learning_rates(recipe: config.Optimizer, steps: int) -> np.ndarray:
    """The learning rate of every step of a row.

    Linear from init to peak over warmup_steps, then down to final along a cosine or a line; final is the value that
    the step after the last would have. Or constant at the peak.

    Returns:
      learning_rate_T, float32, T = steps.

    Raises:
      UserError: if the row ends before its warm-up does (a Bernoulli subset may be that small).
    """
    warmup, peak = recipe.warmup_steps, recipe.peak_learning_rate
    if steps <= warmup:
        raise UserError(
            f"optimizer.warmup_steps={warmup}: must be less than the {steps} steps of a row"
        )
    after = {
        "cosine": optax.cosine_decay_schedule(
            peak, steps - warmup, alpha=recipe.final_learning_rate / peak
        ),
        "linear": optax.linear_schedule(peak, recipe.final_learning_rate, steps - warmup),
        "constant": optax.constant_schedule(peak),
    }[recipe.schedule]
    start = optax.linear_schedule(recipe.init_learning_rate, peak, warmup)
    schedule = optax.join_schedules([start, after], [warmup]) if warmup else after
    rate_T = np.asarray(schedule(np.arange(steps)), np.float32)
    return np.broadcast_to(rate_T, (steps,))


@functools.cache  # so that what is compiled with it is found again
def optimizer(recipe: config.Optimizer) -> optax.GradientTransformation:
    """AdamW on gradients clipped by their global norm, up to the learning rate.

    The caller multiplies the update by minus the step's learning rate, so that rows of different lengths share one
    compiled step.
    """
    clip = [optax.clip_by_global_norm(recipe.clip_norm)] if recipe.clip_norm else []
    return optax.chain(
        *clip,
        optax.scale_by_adam(b1=_B1, b2=_B2, eps=_EPS),
        optax.add_decayed_weights(recipe.weight_decay),
    )
