"""AdamW with linear warm-up and decay: the recipe of StrongMIA Appendix G and the variants of its Figure 15, in optax.

T: steps.
"""

import functools

import numpy as np
import optax

from lm_mia import config
from lm_mia.errors import UserError

# The paper does not report these; they are the defaults of NanoDO, which it used.
_B1, _B2, _EPS = 0.9, 0.98, 1e-9


def learning_rates(optimizer_config: config.Optimizer, steps: int) -> np.ndarray:
    """Computes the learning rate of each training step.

    The rate rises linearly from its initial value to the peak over ``warmup_steps``, then falls to its final value
    along a cosine or a line, or stays at the peak. The final value is that of the step after the last one.

    Returns:
      learning_rate_T, float32, with T = steps.

    Raises:
      UserError: if training ends before the warm-up does, which can happen with a small Bernoulli subset.
    """
    warmup, peak = optimizer_config.warmup_steps, optimizer_config.peak_learning_rate
    final = optimizer_config.final_learning_rate
    if steps <= warmup:
        raise UserError(
            f"optimizer.warmup_steps={warmup}: must be less than the number of training steps, {steps}; lower it"
        )
    decay = {
        "cosine": optax.cosine_decay_schedule(peak, steps - warmup, alpha=final / peak),
        "linear": optax.linear_schedule(peak, final, steps - warmup),
        "constant": optax.constant_schedule(peak),
    }[optimizer_config.schedule]
    rise = optax.linear_schedule(optimizer_config.init_learning_rate, peak, warmup)
    schedule = optax.join_schedules([rise, decay], [warmup]) if warmup else decay
    learning_rate_T = np.asarray(schedule(np.arange(steps)), np.float32)
    return np.broadcast_to(learning_rate_T, (steps,))


@functools.cache  # returns the same object for equal configs, so that jitted functions that close over it are reused
def optimizer(optimizer_config: config.Optimizer) -> optax.GradientTransformation:
    """Returns AdamW on gradients clipped by their global norm, without the learning rate.

    The caller multiplies the update by minus the learning rate of the step, so that models with different numbers of
    steps share one compiled step.
    """
    clip_norm = optimizer_config.clip_norm
    clipping = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    return optax.chain(
        *clipping,
        optax.scale_by_adam(b1=_B1, b2=_B2, eps=_EPS),
        optax.add_decayed_weights(optimizer_config.weight_decay),
    )
