import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import config
from lm_mia.errors import UserError
from lm_mia.train.optimizer import learning_rates, optimizer

PAPER = config.Optimizer()
FAST = config.Optimizer(1e-3, 0.1, 0.01, warmup_steps=3, weight_decay=0.2, clip_norm=1.5)


def slow_rates(recipe: config.Optimizer, steps: int) -> list[float]:
    rates = []
    for t in range(steps):
        low, high, end = dataclasses.astuple(recipe)[:3]
        if t < recipe.warmup_steps:
            rates.append(low + (high - low) * t / recipe.warmup_steps)
            continue
        share = (t - recipe.warmup_steps) / (steps - recipe.warmup_steps)
        left = {
            "cosine": (1 + math.cos(math.pi * share)) / 2,
            "linear": 1 - share,
            "constant": 1,
        }[recipe.schedule]
        rates.append(end + (high - end) * left)
    return rates


def problem(size: float, steps: int) -> tuple[Any, list[Any]]:
    """Returns parameters, and gradients whose norms are alternately above and below ``size``."""
    rng = np.random.default_rng(0)

    def tree(scale: float) -> Any:
        parts = {"a": rng.normal(0, 1, (3, 2)), "b": [rng.normal(0, 1, 4), rng.normal(0, 1, ())]}
        norm = math.sqrt(sum(float((np.asarray(p) ** 2).sum()) for p in jax.tree.leaves(parts)))
        return jax.tree.map(lambda p: np.asarray(p * scale / norm, np.float32), parts)

    return tree(4.0), [tree(size * (0.5 if t % 2 else 3.0)) for t in range(steps)]


def test_schedule_of_the_paper():
    rate_T = learning_rates(PAPER, 4096)
    assert (rate_T.dtype, rate_T.shape) == (np.float32, (4096,))
    assert rate_T[0] == pytest.approx(1e-7)
    assert rate_T[375] == pytest.approx((1e-7 + 3e-4) / 2)
    assert rate_T[750] == pytest.approx(3e-4)
    assert int(rate_T.argmax()) == 750
    assert rate_T[(750 + 4096) // 2] == pytest.approx((3e-4 + 3e-5) / 2, rel=1e-5)
    # The last step is one before the end of the cosine: step T would have 3e-5 itself.
    assert 3e-5 < rate_T[-1] < 3.0001e-5
    schedule = optax.warmup_cosine_decay_schedule(1e-7, 3e-4, 750, 4096, 3e-5)
    assert float(jnp.asarray(schedule(4096))) == pytest.approx(3e-5)
    assert (np.diff(rate_T[:751]) > 0).all()
    assert (np.diff(rate_T[750:]) <= 0).all()


SCHEDULES = ("cosine", "linear", "constant")


@given(
    st.floats(0, 1e-3),
    st.floats(1e-3, 1),
    st.floats(0, 1e-3),
    st.integers(0, 39),
    st.sampled_from(SCHEDULES),
)
@settings(deadline=None, max_examples=40)
def test_schedules_equal_slow_reference(
    low: float, high: float, end: float, warmup: int, schedule: Any
):
    recipe = config.Optimizer(low, high, end, warmup_steps=warmup, schedule=schedule)
    rates = learning_rates(recipe, 40)
    np.testing.assert_allclose(rates, slow_rates(recipe, 40), rtol=1e-4, atol=1e-6 * high)


def test_schedules_worked_by_hand():
    """Two steps of warm-up from 0 to 8, then four toward 0, which is never reached."""
    recipe = config.Optimizer(0, 8, 0, warmup_steps=2, schedule="linear")
    assert learning_rates(recipe, 6).tolist() == [0, 4, 8, 6, 4, 2]
    recipe = dataclasses.replace(recipe, schedule="constant", final_learning_rate=5)
    assert learning_rates(recipe, 6).tolist() == [0, 4, 8, 8, 8, 8]
    recipe = dataclasses.replace(recipe, schedule="cosine", final_learning_rate=0)
    half = 4 * math.sqrt(0.5)
    np.testing.assert_allclose(
        learning_rates(recipe, 6), [0, 4, 8, 4 + half, 4, 4 - half], rtol=1e-6
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_first_learning_rate_is_peak_without_warm_up(schedule: Any):
    recipe = dataclasses.replace(PAPER, warmup_steps=0, schedule=schedule)
    for steps in (1, 2, 9):
        rate_T = learning_rates(recipe, steps)
        assert (rate_T.dtype, rate_T.shape) == (np.float32, (steps,))
        assert rate_T[0] == pytest.approx(3e-4, rel=1e-6)
        assert (rate_T[1:] == rate_T[0]).all() == (schedule == "constant" or steps == 1)
        np.testing.assert_allclose(rate_T, slow_rates(recipe, steps), rtol=1e-5)


def test_shortest_schedules():
    without = dataclasses.replace(PAPER, warmup_steps=0)
    assert learning_rates(without, 4)[0] == np.float32(3e-4)
    assert learning_rates(without, 1).tolist() == [np.float32(3e-4)]
    one = learning_rates(dataclasses.replace(PAPER, warmup_steps=1), 2)
    np.testing.assert_allclose(one, [1e-7, 3e-4], rtol=1e-5)


def ours(recipe: config.Optimizer, params: Any, grads: list[Any], steps: int) -> list[Any]:
    tx, rate_T = optimizer(recipe), learning_rates(recipe, steps)

    @jax.jit
    def step(grads: Any, state: Any, params: Any, rate: Any) -> tuple[Any, Any]:
        update, state = tx.update(grads, state, params, learning_rate=rate)
        return optax.apply_updates(params, update), state

    state, updated = jax.jit(tx.init)(params), []
    for t in range(len(grads)):
        params, state = step(grads[t], state, params, rate_T[t])
        updated.append(params)
    return updated


def test_updates_equal_adamw_in_numpy():
    """Clipping by the global norm, bias-corrected moments, and weight decay that does not enter the moments."""
    params, grads = problem(config.number(FAST.clip_norm), 8)
    rates = slow_rates(FAST, 8)
    p = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    m, v = [np.zeros_like(x) for x in p], [np.zeros_like(x) for x in p]
    norms = []
    for t, updated in enumerate(ours(FAST, params, grads, 8)):
        g = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads[t])]
        norms.append(math.sqrt(sum((x**2).sum() for x in g)))
        g = [x * min(1, 1.5 / norms[-1]) for x in g]
        m = [0.9 * a + 0.1 * x for a, x in zip(m, g, strict=True)]
        v = [0.98 * a + 0.02 * x**2 for a, x in zip(v, g, strict=True)]
        for i in range(len(p)):
            m_hat, v_hat = m[i] / (1 - 0.9 ** (t + 1)), v[i] / (1 - 0.98 ** (t + 1))
            p[i] = p[i] - rates[t] * (m_hat / (np.sqrt(v_hat) + 1e-9) + 0.2 * p[i])
        for actual, expected in zip(jax.tree.leaves(updated), p, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert min(norms) < 1.5 < max(norms)


def test_updates_equal_optax_adamw():
    params, grads = problem(config.number(FAST.clip_norm), 8)
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 0.1, 3, 8, 0.01)
    tx = optax.chain(
        optax.clip_by_global_norm(1.5),
        optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.2),
    )

    @jax.jit
    def step(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        update, state = tx.update(grads, state, params)
        return optax.apply_updates(params, update), state

    state, other = jax.jit(tx.init)(params), params
    for t, updated in enumerate(ours(FAST, params, grads, 8)):
        other, state = step(grads[t], state, other)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), updated, other
        )


def test_first_update_is_sign_of_gradient_plus_decay():
    params = {"w": np.array([2.0, -1.0, 0.5], np.float32)}
    (updated,) = ours(FAST, params, [{"w": np.array([0.3, -0.2, 0.0], np.float32)}], 8)
    expected = [2 - 1e-3 * (1 + 0.4), -1 - 1e-3 * (-1 - 0.2), 0.5 - 1e-3 * 0.1]
    np.testing.assert_allclose(updated["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(("clip_norm", "factor"), [("none", 1), (1e9, 1), (1.5, 1.5 / 400)])
def test_clip_norm_none_disables_clipping(clip_norm: Any, factor: float):
    """The first moment is a tenth of the clipped gradient, which has norm 400 before clipping."""
    grads = {
        "a": np.full((3, 2), 400 / math.sqrt(16), np.float32),
        "b": [np.full(9, 100, np.float32), np.float32(-100)],
    }
    params = jax.tree.map(np.zeros_like, grads)
    tx = optimizer(dataclasses.replace(FAST, clip_norm=clip_norm))
    _, state = jax.jit(lambda g, p: tx.update(g, tx.init(p), p, learning_rate=1.0))(grads, params)
    moment = optax.tree.get(state, "mu")
    jax.tree.map(
        lambda m, g: np.testing.assert_allclose(m, 0.1 * factor * g, rtol=1e-5), moment, grads
    )


def test_equal_configs_share_one_optimizer():
    """Functions that are compiled with it are then reused."""
    assert optimizer(PAPER) is optimizer(config.Optimizer())
    assert optimizer(PAPER) is not optimizer(FAST)


def test_zero_gradients_only_decay_the_weights():
    params = {"w": np.array([2.0, -1.0, 3.0], np.float32)}
    updated = ours(FAST, params, [{"w": np.zeros(3, np.float32)}] * 3, 8)[-1]
    shrink = math.prod(1 - 0.2 * rate for rate in slow_rates(FAST, 8)[:3])
    np.testing.assert_allclose(updated["w"], [2 * shrink, -shrink, 3 * shrink], rtol=1e-6)


def test_training_that_ends_during_warm_up_is_refused():
    with pytest.raises(
        UserError,
        match=r"optimizer.warmup_steps=5: .*\b5\b",
    ):
        learning_rates(config.Optimizer(warmup_steps=5), 5)
    assert len(learning_rates(config.Optimizer(warmup_steps=5), 6)) == 6
