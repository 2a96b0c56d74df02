"""Training that diverges: what is saved, reported and kept as evidence."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import SAVE_OFTEN, SEEDS, STEPS, TRAIN, finite, newest, run, trainer

from lm_mia import config
from lm_mia.data import batch_order, subsets
from lm_mia.data.population import Population
from lm_mia.train import loop


def ids_of_step(step: int) -> list[int]:
    members = np.flatnonzero(subsets.member(SEEDS.subset_seed, 20, "exact"))
    epoch, step_of_epoch = divmod(step, 3)
    order = batch_order.epoch_order(SEEDS.order_seed, epoch, 10)
    return members[order[4 * step_of_epoch : 4 * step_of_epoch + 4]].tolist()


@pytest.mark.parametrize("settings", [pytest.param(TRAIN, marks=pytest.mark.slow), SAVE_OFTEN])
def test_huge_learning_rate_raises_diverged_error(
    tiny: Population, tmp_path: Path, settings: config.Train
):
    recipe = config.Optimizer(1e-4, 1e38, 1e37, warmup_steps=2)
    message = r"^model reference-01: .* step \d; lower optimizer.peak_learning_rate"
    with pytest.raises(loop.DivergedError, match=message) as caught:
        run(tiny, tmp_path, train_config=settings, optimizer_config=recipe)
    evidence = caught.value.evidence
    assert evidence["samples"] == ids_of_step(evidence["step"])
    assert (evidence["model"], evidence["role"]) == ("reference-01", "reference")
    assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence
    steps_done, state = newest(tmp_path)
    assert steps_done != STEPS
    assert finite(state)


@pytest.mark.parametrize("bad", range(1, STEPS + 1))
def test_only_finite_states_are_saved(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
):
    """Holds between two logged losses, and after the last of them."""
    monkeypatch.setattr(loop, "_LOGS_PER_MODEL", 1)
    calls = 0

    def corrupting_step(state: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        state, metrics = trainer(tiny).step(state, *args)
        if calls == bad:
            scale = state.params["ln_out"]["scale"]
            state.params["ln_out"]["scale"] = scale.at[3].set(jnp.nan)
        return state, metrics

    message = rf"^model reference-01: .* step {bad - 1}; lower"
    with pytest.raises(loop.DivergedError, match=message) as caught:
        run(tiny, tmp_path, train_config=SAVE_OFTEN, step=corrupting_step)
    assert caught.value.evidence["what"].startswith("weights or moments")
    assert caught.value.evidence["samples"] == ids_of_step(bad - 1)
    assert math.isfinite(float(caught.value.evidence["loss_nats"]))
    steps_done, state = newest(tmp_path)
    assert (steps_done or 0) == bad - 1
    assert finite(state)


@pytest.mark.parametrize("bad", range(STEPS))
def test_nonfinite_loss_stops_training_at_most_one_step_later(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
):
    """The loss of every step is checked, even of steps that are neither logged nor saved."""
    monkeypatch.setattr(loop, "_LOGS_PER_MODEL", 1)
    calls = 0

    def corrupting_step(state: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        state, metrics = trainer(tiny).step(state, *args)
        if calls == bad + 1:
            metrics["loss_nats"] = jnp.float32(jnp.inf)
        return state, metrics

    with pytest.raises(loop.DivergedError, match=rf"loss=inf at step {bad}; lower") as caught:
        run(tiny, tmp_path, step=corrupting_step)
    assert calls <= bad + 2
    evidence = caught.value.evidence
    assert (evidence["step"], evidence["what"], evidence["loss_nats"]) == (bad, "loss=inf", "inf")
    assert float(evidence["gradient_norm"]) > 0
    assert evidence["samples"] == ids_of_step(bad)
    assert newest(tmp_path)[0] is None


def test_nonfinite_moments_raise_diverged_error(tiny: Population, tmp_path: Path):
    def corrupting_step(state: Any, *args: Any) -> Any:
        state, metrics = trainer(tiny).step(state, *args)
        opt_state = jax.tree.map(lambda x: x * np.nan if x.ndim else x, state.opt_state)
        return state.replace(opt_state=opt_state), metrics

    with pytest.raises(loop.DivergedError, match=r"weights or moments .*\bstep 0\b"):
        run(tiny, tmp_path, train_config=SAVE_OFTEN, step=corrupting_step)
