"""Trains one model in several processes, some of which are stopped, as a part of `accelerator.py`."""

import contextlib
import hashlib
import signal
from pathlib import Path

import c4_like
import fresh
import jax
import numpy as np
import scoring
import steps

from lm_mia.data import subsets
from lm_mia.model import transformer
from lm_mia.run import preemption
from lm_mia.train import checkpoint, loop

NUM_STEPS = 12  # more than those of the warm-up of `steps.OPTIMIZER`


def train(
    clock: fresh.Clock,
    folder: Path,
    *,
    name: str,
    stop_step: int,
    model_config: transformer.ModelConfig,
    scale: int,
    batch_size: int,
) -> fresh.Results:
    """Trains a model from its newest checkpoint, as `lm-mia run` does, as a workload for `fresh.measure`.

    Args:
      clock: measures the time of training.
      folder: the folder of the runs.
      name: name of the run, whose checkpoints are in a folder of this name.
      stop_step: number of steps after which this process sends SIGTERM to itself; 0: the model is trained to its end.
      model_config: the model.
      scale: divisor of the lengths of samples.
      batch_size: number of samples per step.

    Returns:
      "steps", the number of the newest checkpoint, "resumed_at", the step from which training continued, "sha256", the
      hash of the state of the newest checkpoint, and "losses", the hash of the losses of the first samples under it.
    """
    population = c4_like.population(2 * NUM_STEPS * batch_size, model_config.vocab_size, scale)
    trainer = steps.make_trainer(population, model_config, batch_size)
    [seeds, *_] = subsets.requested_seeds(1, 1)
    checkpoint_dir = folder / name
    with checkpoint.manager(checkpoint_dir) as checkpoints:
        resumed_at = checkpoints.latest_step() or 0
    stop = preemption.Stop()
    stop.install()
    with clock, contextlib.suppress(loop.PreemptedError), stop.defer_sigterm() as should_stop:

        def should_stop_after(step: int) -> bool:
            if step == stop_step:
                signal.raise_signal(signal.SIGTERM)
            return should_stop(step)

        loop.train_model(
            trainer,
            seeds,
            NUM_STEPS,
            checkpoint_dir,
            report=lambda event: None,
            should_stop=should_stop_after,
        )
    digest = hashlib.sha256()
    with checkpoint.manager(checkpoint_dir) as checkpoints:
        saved_steps = checkpoints.latest_step() or 0
        state = trainer.restore_state(checkpoints, saved_steps)
    for leaf in jax.tree.leaves(state):
        digest.update(np.asarray(leaf).tobytes())
    scorer = scoring.make_scorer(population, model_config)
    loss_N = scorer.score(state.params, [], 0, min(len(population), 4 * batch_size))["loss"]
    return {
        "steps": np.array(saved_steps),
        "resumed_at": np.array(resumed_at),
        "sha256": np.array(digest.hexdigest()),
        "losses": np.array(hashlib.sha256(loss_N.tobytes()).hexdigest()),
    }
