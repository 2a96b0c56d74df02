import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoint_test import same
from model_test import FORWARD

from lm_mia import batches, checkpoint, config, loss, model, score, subsets, train
from lm_mia.errors import UserError
from lm_mia.population import Population
from lm_mia.subsets import Row

SHAPE = model.Shape(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
RECIPE = config.Optimizer(1e-4, 3e-2, 1e-3, warmup_steps=2)
# N = 10 members in batches of 4, so 3 steps an epoch, of which the last is short.
TRAIN = config.Train(batch_size=4, epochs=2)
ROW, STEPS = Row("reference", 1, 2, 3), 6
OFTEN = config.Train(batch_size=4, epochs=2, checkpoint_minutes=1e-9)


@functools.cache
def step() -> train.Step:
    return train.make_step(SHAPE, RECIPE)


def run(
    population: Population,
    folder: Path,
    row: Row = ROW,
    settings: config.Train = TRAIN,
    recipe: config.Optimizer = RECIPE,
    step: Callable[..., Any] | None = None,
    report: Callable[[train.Event], None] | None = None,
) -> list[train.Event]:
    """Trains a row of STEPS steps to its end; what it reported."""
    events: list[train.Event] = []
    train.train_row(
        *(row, population, SHAPE, recipe, settings, STEPS, folder),
        *(step or globals()["step"](), report or events.append),
    )
    return events


def newest(folder: Path) -> tuple[int | None, checkpoint.State]:
    """The newest checkpoint of a row; a fresh state if there is none."""
    state = checkpoint.fresh(0, SHAPE, train.optimizer(RECIPE))
    with checkpoint.manager(folder) as checkpoints:
        steps_done = checkpoints.latest_step()
        if steps_done is None:
            return None, state
        return steps_done, checkpoint.restore(checkpoints, steps_done, state)


@pytest.fixture(scope="module")
def unbroken(tiny: Population, tmp_path_factory: pytest.TempPathFactory) -> checkpoint.State:
    folder = tmp_path_factory.mktemp("unbroken")
    run(tiny, folder)
    return newest(folder)[1]


@jax.jit
@jax.value_and_grad
def slow_gradient(params: model.Params, x_L: jax.Array, i: int) -> jax.Array:
    """Of the loss of token i alone."""
    return -jax.nn.log_softmax(model.forward(params, x_L[None])[0, i - 1])[x_L[i]]


def slow_row(population: Population, row: Row, design: subsets.Design, steps: int) -> Any:
    """Sums of gradients of single tokens, over a walk through the order; optax's own AdamW."""
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 3e-2, 2, steps, 1e-3)
    adamw = optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1)
    tx = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    ids = [i for i, m in enumerate(subsets.member(row.subset_seed, 20, design)) if m]
    plan: list[list[int]] = []
    for epoch in range(2):
        order = batches.epoch_order(row.order_seed, epoch, len(ids)).tolist()
        plan += [[ids[k] for k in order[low : low + 4]] for low in range(0, len(ids), 4)]
    assert len(plan) == steps

    params = checkpoint.fresh(row.init_seed, SHAPE, train.optimizer(RECIPE))["params"]
    state, losses = tx.init(params), []
    update = jax.jit(tx.update)
    for ids_B in plan:
        parts = [
            slow_gradient(params, population.pad(np.array([i]))[0], place)
            for i in ids_B
            for place in range(1, len(population.sample(i)))
        ]
        losses.append(sum(float(value) for value, _ in parts) / len(parts))
        grads = [jax.device_get(grad) for _, grad in parts]
        grads = jax.tree.map(lambda *g: np.mean(g, axis=0, dtype=np.float32), *grads)
        change, state = update(grads, state, params)
        params = optax.apply_updates(params, change)
    return params, losses


@pytest.mark.parametrize("design", ["exact", "bernoulli"])
def test_a_row_equals_a_slow_reference(tiny: Population, tmp_path: Path, design: subsets.Design):
    # Of Bernoulli rows, the seed is one with 12 members: 3 whole batches, and as many steps.
    row = Row("reference", {"exact": 1, "bernoulli": 5}[design], 2, 3)
    members = int(subsets.member(row.subset_seed, 20, design).sum())
    assert members == {"exact": 10, "bernoulli": 12}[design]
    params, losses = slow_row(tiny, row, design, STEPS)
    events = run(tiny, tmp_path, row, config.Train(subset=design, batch_size=4, epochs=2))
    logged = [event["loss_nats"] for event in events if event["event"] == "train"]
    np.testing.assert_allclose(logged, losses, rtol=1e-5)
    got = newest(tmp_path)[1]["params"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), got, params)


def test_k_steps_are_k_updates_and_the_last_state_is_saved(tiny: Population, tmp_path: Path):
    seen: list[Any] = []

    def counting(state: Any, *args: Any) -> Any:
        state, loss_nats = step()(state, *args)
        seen.append(jax.device_get(state))
        return state, loss_nats

    run(tiny, tmp_path, step=counting)
    steps_done, state = newest(tmp_path)
    assert steps_done == len(seen) == STEPS
    assert [int(state["opt"][1].count) for state in seen] == [1, 2, 3, 4, 5, 6]
    assert same(state, seen[-1])
    assert not same(state, seen[-2])


def test_events(tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "_REPORT_SECONDS", -1)
    monkeypatch.setattr(train, "_LOGGED", 2)
    events = run(tiny, tmp_path)
    kinds = {kind: [e for e in events if e["event"] == kind] for kind in ("train", "step")}
    assert [(e["step"], e["steps"]) for e in kinds["step"]] == [(t, 6) for t in range(1, 7)]
    assert [(e["step"], e["epoch"]) for e in kinds["train"]] == [(0, 0), (3, 1), (5, 1)]
    rates = train.learning_rates(RECIPE, STEPS)
    assert [e["learning_rate"] for e in kinds["train"]] == [float(rates[t]) for t in (0, 3, 5)]
    assert {e["row"] for e in events} == {"reference_1_2_3"}
    last = events[-1]
    assert (last["event"], last["role"], last["steps"]) == ("row_trained", "reference", 6)
    assert last["resumed_at"] == 0
    assert last["seconds"] > 0


def test_training_twice_is_bitwise_equal(
    tiny: Population, tmp_path: Path, unbroken: checkpoint.State
):
    run(tiny, tmp_path)
    assert same(newest(tmp_path)[1], unbroken)


def test_every_seed_counts_and_the_role_does_not(
    tiny: Population, tmp_path: Path, unbroken: checkpoint.State
):
    for row in (Row("reference", 0, 2, 3), Row("reference", 1, 0, 3), Row("reference", 1, 2, 0)):
        run(tiny, tmp_path / str(row), row)
        assert not same(newest(tmp_path / str(row))[1], unbroken)
    run(tiny, tmp_path / "replica", Row("replica", 1, 2, 3))
    assert same(newest(tmp_path / "replica")[1], unbroken)


class Stopped(Exception):
    """Stands for Ctrl-C."""


def stop_at(moment: int) -> Callable[[train.Event], None]:
    def report(event: train.Event) -> None:
        if event["event"] == "step" and event["step"] == moment:
            raise Stopped

    return report


@pytest.mark.parametrize("stop", range(1, STEPS + 1))
@pytest.mark.parametrize("saved", ["every step", "the second", "never"])
def test_a_row_stopped_at_any_step_resumes_bit_for_bit(
    tiny: Population,
    tmp_path: Path,
    unbroken: checkpoint.State,
    monkeypatch: pytest.MonkeyPatch,
    saved: str,
    stop: int,
):
    """Stopped after its update and before its checkpoint, when up to six updates are lost."""
    monkeypatch.setattr(train, "_REPORT_SECONDS", -1)
    wanted = {"every step": range(9), "the second": [2], "never": []}[saved]
    save = checkpoint.save
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", lambda c, k, s: k in wanted and save(c, k, s))
        with pytest.raises(Stopped):
            run(tiny, tmp_path, settings=OFTEN, report=stop_at(stop))
    before = {"every step": stop - 1, "the second": 2 if stop > 2 else 0, "never": 0}[saved]
    assert (newest(tmp_path)[0] or 0) == before
    events = run(tiny, tmp_path)
    assert events[-1]["resumed_at"] == before
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(before + 1, STEPS + 1))
    steps_done, state = newest(tmp_path)
    assert steps_done == STEPS
    assert same(state, unbroken)


def test_a_finished_row_is_not_trained_again(
    tiny: Population, tmp_path: Path, unbroken: checkpoint.State
):
    run(tiny, tmp_path)
    assert run(tiny, tmp_path, step=pytest.fail) == []
    assert same(newest(tmp_path)[1], unbroken)


def test_mid_row_checkpoints_change_nothing(
    tiny: Population, tmp_path: Path, unbroken: checkpoint.State, monkeypatch: pytest.MonkeyPatch
):
    saves: list[int] = []
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda c, k, s: (saves.append(k), save(c, k, s)))
    run(tiny, tmp_path, settings=OFTEN)
    assert saves == [1, 2, 3, 4, 5, 6]
    assert same(newest(tmp_path)[1], unbroken)
    run(tiny, tmp_path / "rarely")
    assert saves[6:] == [6]


@pytest.mark.parametrize("settings", [TRAIN, OFTEN])
def test_a_huge_learning_rate_is_told(tiny: Population, tmp_path: Path, settings: config.Train):
    recipe = config.Optimizer(1e-4, 1e38, 1e37, warmup_steps=2)
    message = r"^row reference_1_2_3: .* step \d; lower optimizer.peak_learning_rate"
    with pytest.raises(UserError, match=message):
        run(tiny, tmp_path, settings=settings, recipe=recipe)
    steps_done, state = newest(tmp_path)
    assert steps_done != STEPS
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("bad", range(1, STEPS + 1))
def test_no_state_that_is_not_finite_is_ever_saved(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
):
    """Between two logged losses, and after the last of them."""
    monkeypatch.setattr(train, "_LOGGED", 1)
    calls = 0

    def spoiling(state: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        state, loss_nats = step()(state, *args)
        if calls == bad:
            state["params"]["ln_D"] = state["params"]["ln_D"].at[3].set(jnp.nan)
        return state, loss_nats

    with pytest.raises(UserError, match=rf"^row reference_1_2_3: .* step {bad - 1}; lower"):
        run(tiny, tmp_path, settings=OFTEN, step=spoiling)
    steps_done, state = newest(tmp_path)
    assert (steps_done or 0) == bad - 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_the_loss_goes_down_and_members_are_remembered(tiny: Population, tmp_path: Path):
    settings = config.Train(batch_size=4, epochs=40)
    events: list[train.Event] = []
    train.train_row(
        *(ROW, tiny, SHAPE, RECIPE, settings, 120, tmp_path),
        *(step(), events.append),
    )
    losses = [event["loss_nats"] for event in events if event["event"] == "train"]
    assert len(losses) == 21  # 20 and the last
    assert losses[0] > 3
    assert losses[-1] < 0.6 * losses[0]
    params = score.restore_params(ROW, 120, SHAPE, tmp_path)
    loss_N2 = score.score_row(params, tiny, 20, score.make_score(SHAPE))
    member_N2 = subsets.member(1, 20, "exact")
    assert loss_N2[member_N2].mean() + 0.5 < loss_N2[~member_N2].mean()


def test_the_step_returns_the_loss_before_its_update(tiny: Population):
    state = checkpoint.fresh(0, SHAPE, train.optimizer(RECIPE))
    x_BxL, length_B = map(jnp.asarray, batches.padded(tiny, np.arange(4), 4))
    expected = float(loss.batch_loss(FORWARD(state["params"], x_BxL), x_BxL, length_B))
    shown = jax.device_get(state["params"])
    unchanged, loss_nats = step()(state, x_BxL, length_B, np.float32(0))
    assert float(loss_nats) == pytest.approx(expected, rel=1e-6)
    assert same(unchanged["params"], shown)
    assert int(unchanged["opt"][1].count) == 1


def test_bfloat16_keeps_weights_and_moments_in_float32(tiny: Population):
    rough = train.make_step(model.Shape(1, 8, 2, 32, 8, dtype="bfloat16"), RECIPE)
    x_BxL, length_B = batches.padded(tiny, np.arange(4), 4)
    states = [checkpoint.fresh(0, SHAPE, train.optimizer(RECIPE)) for _ in range(2)]
    state, loss_nats = rough(states[0], x_BxL, length_B, np.float32(0.01))
    _, exact = step()(states[1], x_BxL, length_B, np.float32(0.01))
    floats = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert {leaf.dtype for leaf in [*floats, loss_nats]} == {np.dtype("float32")}
    assert float(loss_nats) == pytest.approx(float(exact), rel=0.01)
    assert float(loss_nats) != float(exact)
