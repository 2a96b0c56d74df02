import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from padded_batches import padded_plan
from same_bits import same
from slow_case import slow_case
from tiny_training import (
    DEFAULT_PLAN,
    MODEL,
    OPTIMIZER,
    PLAN,
    SAVE_OFTEN,
    SEEDS,
    STEPS,
    TRAIN,
    ids_of_steps,
    newest,
    run,
    slow_gradient,
    trainer,
)

from lm_mia import config
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.score.scorer import Scorer, restore_params
from lm_mia.train import batching, checkpoint, loop, sharding
from lm_mia.train.optimizer import optimizer


@pytest.fixture(scope="module")
def uninterrupted(
    tiny: Population, tmp_path_factory: pytest.TempPathFactory
) -> checkpoint.TrainState:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(tiny, folder)
    return newest(folder)[1]


def train_slowly(
    population: Population, seeds: ModelSeeds, design: subsets.Design, canaries: int
) -> Any:
    """Trains with sums of the gradients of single tokens, in the documented order, by optax's own AdamW."""
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 3e-2, 2, STEPS, 1e-3)
    adamw = optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1)
    tx = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    ids_by_step = ids_of_steps(seeds, design, canaries)
    assert len(ids_by_step) == STEPS

    params = checkpoint.init_state(seeds.init_seed, MODEL, optimizer(OPTIMIZER)).params
    state, losses, norms = jax.jit(tx.init)(params), [], []

    @jax.jit
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        change, state = tx.update(grads, state, params)
        return optax.apply_updates(params, change), state

    for ids_B in ids_by_step:
        parts = [
            slow_gradient(params, population.pad(np.array([i]))[0], position)
            for i in ids_B
            for position in range(1, len(population.sample(i)))
        ]
        losses.append(sum(float(value) for value, _ in parts) / len(parts))
        grads = [jax.device_get(grad) for _, grad in parts]
        grads = jax.tree.map(lambda *g: np.mean(g, axis=0, dtype=np.float32), *grads)
        norms.append(np.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(grads))))
        params, state = update(grads, state, params)
    return params, losses, norms


@pytest.mark.parametrize(
    ("design", "canaries", "members"), [("exact", 0, 10), ("bernoulli", 0, 12), ("exact", 16, 12)]
)
def test_training_equals_slow_reference(
    tiny: Population, tmp_path: Path, design: subsets.Design, canaries: int, members: int
):
    # 12 members are 3 full batches, and as many steps as 10 members.
    seeds = ModelSeeds("reference", {"exact": 1, "bernoulli": 5}[design], 2, 3)
    assert int(subsets.member(seeds.subset_seed, 20, design, canaries).sum()) == members
    expected, losses, norms = train_slowly(tiny, seeds, design, canaries)
    train_config = config.Train(subset=design, batch_size=4, epochs=2, canaries=canaries or "all")
    events = run(tiny, tmp_path, seeds, train_config=train_config)
    logged = [event for event in events if event["event"] == "train"]
    np.testing.assert_allclose([e["loss_nats"] for e in logged], losses, rtol=1e-5)
    np.testing.assert_allclose([e["gradient_norm"] for e in logged], norms, rtol=1e-4)
    params = newest(tmp_path)[1].params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), params, expected)


def test_padded_batches_give_the_same_model(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seeds = ModelSeeds("reference", 3, 2, 0)
    ids_by_step = ids_of_steps(seeds, "exact")
    runs = [
        run(tiny, tmp_path / name, seeds, plan=plan)
        for name, plan in (("two", PLAN), ("packed", DEFAULT_PLAN))
    ]
    monkeypatch.setattr(batching, "plan_packing", lambda length_B, _: padded_plan(length_B))
    runs.append(run(tiny, tmp_path / "padded", seeds, plan=DEFAULT_PLAN))
    train_events = [[event for event in events if event["event"] == "train"] for events in runs]
    for events in train_events[:2]:
        for name in ("loss_nats", "gradient_norm"):
            both = ([event[name] for event in which] for which in (events, train_events[2]))
            np.testing.assert_allclose(*both, rtol=1e-5)
    states = [newest(tmp_path / name)[1].params for name in ("two", "packed", "padded")]
    for state in states[:2]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), state, states[2]
        )
    # The share of padding with the fewest pairs of packed sequences, the fewest packed sequences, and one per sample.
    for events, min_sequences in zip(
        train_events, (fewest_pairs, fewest_sequences, len), strict=True
    ):
        lengths = [tiny.lengths_N[ids].tolist() for ids in ids_by_step]
        padded_tokens = [8 * min_sequences(length_B) for length_B in lengths]
        shares = [
            round(1 - sum(length_B) / tokens, 4)
            for length_B, tokens in zip(lengths, padded_tokens, strict=True)
        ]
        assert [event["padding_share"] for event in events] == shares
    assert sum(e["padding_share"] for e in train_events[1]) < sum(
        e["padding_share"] for e in train_events[2]
    )


def fewest_sequences(lengths: list[int]) -> int:
    """Returns the fewest packed sequences of 8 tokens that hold the samples, by trying all assignments."""
    return min(
        len(set(sequences))
        for sequences in itertools.product(range(len(lengths)), repeat=len(lengths))
        if all(
            sum(n for n, r in zip(lengths, sequences, strict=True) if r == k) <= 8
            for k in sequences
        )
    )


def fewest_pairs(lengths: list[int]) -> int:
    return 2 * -(-fewest_sequences(lengths) // 2)


def test_k_steps_are_k_updates_and_the_last_state_is_saved(tiny: Population, tmp_path: Path):
    seen: list[Any] = []

    def counting(state: Any, *args: Any) -> Any:
        state, metrics = trainer(tiny).step(state, *args)
        seen.append(jax.device_get(state))
        return state, metrics

    run(tiny, tmp_path, step=counting)
    steps_done, state = newest(tmp_path)
    assert steps_done == len(seen) == STEPS
    assert [int(optax.tree.get(state.opt_state, "count")) for state in seen] == [1, 2, 3, 4, 5, 6]
    assert same(state, seen[-1])
    assert not same(state, seen[-2])


def test_each_seed_changes_the_model_and_the_role_does_not(
    tiny: Population, tmp_path: Path, uninterrupted: checkpoint.TrainState
):
    for seeds in (
        ModelSeeds("reference", 0, 2, 3),
        ModelSeeds("reference", 1, 0, 3),
        ModelSeeds("reference", 1, 2, 0),
    ):
        run(tiny, tmp_path / str(seeds), seeds)
        assert not same(newest(tmp_path / str(seeds))[1], uninterrupted)
    run(tiny, tmp_path / "replica", ModelSeeds("replica", 1, 2, 3))
    assert same(newest(tmp_path / "replica")[1], uninterrupted)


def test_second_model_compiles_nothing(tiny: Population, tmp_path: Path):
    compiled: list[float] = []

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        compiled.extend([duration_secs] * (event == "/jax/core/compile/backend_compile_duration"))

    run(tiny, tmp_path / "a", ModelSeeds("reference", 0, 0, 0), train_config=SAVE_OFTEN)
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    run(tiny, tmp_path / "b", ModelSeeds("reference", 2, 5, 7), train_config=SAVE_OFTEN)
    assert compiled == []
    jax.jit(lambda x: x + len(compiled) + 12345)(1)
    assert len(compiled) == 1  # the listener receives events


class Stopped(Exception):
    """Stands in for Ctrl-C."""


def stop_at(moment: int) -> Callable[[loop.Event], None]:
    def report(event: loop.Event) -> None:
        if event["event"] == "step" and event["step"] == moment:
            raise Stopped

    return report


@pytest.mark.parametrize(
    ("saved", "stop"),
    [
        (saved, stop) if stop in stops else slow_case(saved, stop)
        for saved, stops in {"every step": (1, 4), "the second": (3, STEPS), "never": (5,)}.items()
        for stop in range(1, STEPS + 1)
    ],
)
def test_resume_after_interruption_is_bitwise_equal(
    tiny: Population,
    tmp_path: Path,
    uninterrupted: checkpoint.TrainState,
    monkeypatch: pytest.MonkeyPatch,
    saved: str,
    stop: int,
):
    """Interrupted after an update and before its checkpoint, when up to six updates are lost."""
    monkeypatch.setattr(loop, "_PROGRESS_SECONDS", -1)
    saved_steps = {"every step": range(9), "the second": [2], "never": []}[saved]
    save = checkpoint.save
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", lambda c, s: int(s.step) in saved_steps and save(c, s))
        with pytest.raises(Stopped):
            run(tiny, tmp_path, train_config=SAVE_OFTEN, report=stop_at(stop))
    before = {"every step": stop - 1, "the second": 2 if stop > 2 else 0, "never": 0}[saved]
    assert (newest(tmp_path)[0] or 0) == before
    events = run(tiny, tmp_path)
    assert events[-1]["resumed_at"] == before
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(before + 1, STEPS + 1))
    steps_done, state = newest(tmp_path)
    assert steps_done == STEPS
    assert same(state, uninterrupted)


# A test below stops after each step.
@pytest.mark.parametrize("last_step", [3, *(slow_case(k) for k in (1, 2, 4, 5))])
def test_resume_after_preemption_is_bitwise_equal(
    tiny: Population, tmp_path: Path, uninterrupted: checkpoint.TrainState, last_step: int
):
    queried_steps: list[int] = []
    events: list[loop.Event] = []
    with pytest.raises(loop.PreemptedError):
        run(
            tiny,
            tmp_path,
            should_stop=lambda k: queried_steps.append(k) or k == last_step,
            report=events.append,
        )
    assert queried_steps == list(range(1, last_step + 1))
    assert newest(tmp_path)[0] == last_step
    assert "model_trained" not in [event["event"] for event in events]
    again = run(tiny, tmp_path)
    assert again[-1]["resumed_at"] == last_step
    assert [e["step"] for e in again if e["event"] == "train"] == list(range(last_step, STEPS))
    assert same(newest(tmp_path)[1], uninterrupted)


def test_repeated_preemption_is_bitwise_equal(
    tiny: Population, tmp_path: Path, uninterrupted: checkpoint.TrainState
):
    """Each start makes one more step. A stop that is requested at the last step has no effect."""
    for num_starts in itertools.count(1):
        if num_starts == STEPS:
            run(tiny, tmp_path, should_stop=lambda k: True)
            break
        with pytest.raises(loop.PreemptedError):
            run(tiny, tmp_path, should_stop=lambda k: True)
        assert newest(tmp_path)[0] == num_starts
    assert same(newest(tmp_path)[1], uninterrupted)


def test_finished_model_is_not_trained_again(
    tiny: Population, tmp_path: Path, uninterrupted: checkpoint.TrainState
):
    run(tiny, tmp_path)
    assert run(tiny, tmp_path, step=pytest.fail) == []
    assert same(newest(tmp_path)[1], uninterrupted)


def test_intermediate_checkpoints_change_no_bit(
    tiny: Population,
    tmp_path: Path,
    uninterrupted: checkpoint.TrainState,
    monkeypatch: pytest.MonkeyPatch,
):
    saves: list[int] = []
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda c, s: (saves.append(int(s.step)), save(c, s)))
    run(tiny, tmp_path, train_config=SAVE_OFTEN)
    assert saves == [1, 2, 3, 4, 5, 6]
    assert same(newest(tmp_path)[1], uninterrupted)
    run(tiny, tmp_path / "rarely")
    assert saves[6:] == [6]


@pytest.mark.parametrize("settings", [TRAIN, SAVE_OFTEN])
def test_states_of_keep_steps_are_kept(
    tiny: Population, tmp_path: Path, uninterrupted: checkpoint.TrainState, settings: config.Train
):
    """They are kept besides the newest, whether or not others are saved too, and across an interruption."""
    with pytest.raises(loop.PreemptedError):
        run(
            tiny,
            tmp_path / "a",
            keep_steps=(2, 5),
            should_stop=lambda k: k == 3,
            train_config=settings,
        )
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["2", "3"]
    run(tiny, tmp_path / "a", keep_steps=(2, 5), train_config=settings)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["2", "5", "6"]
    assert same(newest(tmp_path / "a")[1], uninterrupted)
    for step in (2, 5):
        with pytest.raises(loop.PreemptedError):
            run(tiny, tmp_path / str(step), should_stop=lambda k, step=step: k == step)
        assert same(newest(tmp_path / "a", step)[1], newest(tmp_path / str(step))[1])


def test_loss_decreases_and_is_lower_for_members(tiny: Population, tmp_path: Path):
    events: list[loop.Event] = []
    settings = config.Train(batch_size=4, epochs=40)
    loop.train_model(trainer(tiny, settings), SEEDS, 120, tmp_path, events.append)
    losses = [event["loss_nats"] for event in events if event["event"] == "train"]
    assert len(losses) == 21  # 20 during training, and the last one
    assert losses[0] > 3
    assert losses[-1] < 0.6 * losses[0]
    mesh = sharding.make_mesh(jax.devices()[:1])
    params = restore_params(SEEDS, 120, MODEL, tmp_path, mesh, mesh)
    scorer = Scorer(MODEL, tiny, 64, 4, mesh)
    loss_N2 = scorer.score(params, (), 0, 20)["loss"]
    member_N2 = subsets.member(1, 20, "exact")
    assert loss_N2[member_N2].mean() + 0.5 < loss_N2[~member_N2].mean()
