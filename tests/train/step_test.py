import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from padded_batches import batch_loss, padded
from slow_case import slow_case
from step_case import (
    LENGTHS,
    MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    arguments,
    make_plan,
    one_device,
    pack,
    parameters,
    population,
    state,
)
from unoptimized import without_optimizations

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import losses
from lm_mia.model.transformer import TransformerLM
from lm_mia.train import batching, sharding
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import local_device_indices, make_loss, make_step, to_global_array

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture
MESH = one_device()
# Without decay and clipping, the first moment after one step is a tenth of the gradient.
PLAIN = dataclasses.replace(OPTIMIZER, weight_decay=0, clip_norm="none")
LEARNING_RATE = np.float32(0.01)
ALL = np.arange(len(LENGTHS))


cached_make_step = functools.cache(make_step)


def compiled_step(plan: ExecutionPlan, optimizer_config: config.Optimizer = PLAIN) -> Any:
    model = TransformerLM(plan.model_config)
    return cached_make_step(model, optimizer_config, plan.chunk_tokens, MESH)


def first_step(
    plan: ExecutionPlan,
    ids_B: np.ndarray = ALL,
    samples: Population | None = None,
    optimizer_config: config.Optimizer = PLAIN,
    packed: bool = True,
) -> tuple[dict[str, float], Any, Any]:
    """Returns metrics, gradient and new parameters of the first step on a batch, with space for all samples."""
    batch, stats = pack(samples or population(), ids_B, plan, MESH, len(ALL), packed)
    new_state, metrics = compiled_step(plan, optimizer_config)(
        state(MESH, optimizer_config), *arguments(batch, stats, MESH), LEARNING_RATE
    )
    assert int(new_state.step) == 1
    moment = optax.tree.get(new_state.opt_state, "mu")
    grads = jax.tree.map(lambda m: np.asarray(m, np.float64) / 0.1, moment)
    return {k: float(v) for k, v in metrics.items()}, grads, jax.device_get(new_state.params)


@jax.jit
def _mean(params: Any, x_BxL: Any, length_B: Any) -> Any:
    def mean(params: Any) -> jax.Array:
        logits_BxLxV: Any = MODEL.apply({"params": params}, x_BxL)
        return batch_loss(logits_BxLxV, x_BxL, length_B)

    return jax.value_and_grad(mean)(params)


def reference(ids_B: np.ndarray = ALL, samples: Population | None = None) -> tuple[float, Any]:
    """Returns loss and gradient of the padded batch, from all its logits."""
    x_BxL, length_B = padded(samples or population(), ids_B, len(ALL))
    value, grads = _mean(parameters(), x_BxL, length_B)
    return float(value), jax.device_get(grads)


def difference(actual: Any, expected: Any) -> float:
    """Returns the largest difference, relative to the largest number of the leaf (or 1 if all are 0)."""

    def leaf_difference(a: Any, b: Any) -> float:
        return float(np.abs(np.asarray(a) - np.asarray(b)).max() / (np.abs(b).max() or 1))

    return max(jax.tree.leaves(jax.tree.map(leaf_difference, actual, expected)))


PLANS = [
    make_plan(1, 7),
    make_plan(3, 24),
    make_plan(16, 4096, remat="dots"),
    make_plan(5, 33, remat="full"),
    make_plan(2, 24, scan_layers=True),
    make_plan(1, 64, scan_layers=True, remat="dots"),
    make_plan(3, 512, scan_layers=True, remat="full"),
]


def name_of(value: Any) -> str:
    if not isinstance(value, ExecutionPlan):
        return str(value)
    model = value.model_config
    layers = "scanned" if model.scan_layers else "unrolled"
    return f"{layers}-{model.remat}-{value.micro_batch_size}-{value.chunk_tokens}tokens"


@pytest.mark.parametrize(
    ("plan", "packed"),
    [
        *((PLANS[i], True) for i in (0, 1, 3, 5)),
        (PLANS[1], False),
        # Other combinations of what these have.
        *(slow_case(PLANS[i], True) for i in (2, 4, 6)),
    ],
    ids=name_of,
)
def test_a_step_equals_the_padded_reference(plan: ExecutionPlan, packed: bool):
    """Loss, norm, and every leaf of the gradient, for whole batches, short batches and a single sample.

    This also holds for packed sequences of one sample each, so that packing changes nothing.
    """
    for ids_B in (ALL, ALL[5:0:-1], ALL[3:5], ALL[:1]):
        metrics, grads, _ = first_step(plan, ids_B, packed=packed)
        value, expected = reference(ids_B)
        norm = math.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(expected)))
        assert metrics["loss_nats"] == pytest.approx(value, rel=1e-6)
        assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-6)
        assert difference(grads, expected) < 3e-6
    assert compiled_step(plan)._cache_size() == 1


def test_batches_of_all_sizes_share_one_executable():
    """From 1 to 6 micro-batches, with any learning rate."""
    step = compiled_step(PLANS[0])
    counts = set()
    for ids_B in (ALL[:1], ALL[:2], ALL[:5], ALL):
        batch, stats = pack(population(), ids_B, PLANS[0], MESH, len(ALL))
        counts.add(stats.num_micro_batches)
        rate = np.float32(stats.num_micro_batches)
        step(state(MESH, PLAIN), *arguments(batch, stats, MESH), rate)
    assert len(counts) == 4
    assert step._cache_size() == 1


def test_unused_micro_batches_do_not_matter():
    batch, stats = pack(population(), ALL[:6], PLANS[1], MESH, len(ALL))
    other = batching.PackedBatch(*(array.copy() for array in batch))
    assert stats.num_micro_batches < len(batch.x_UxBxL)
    for array, value in zip(other, (63, 1, 5), strict=True):
        array[stats.num_micro_batches :] = value
    results = [
        compiled_step(PLANS[1])(state(MESH, PLAIN), *arguments(b, stats, MESH), LEARNING_RATE)
        for b in (batch, other)
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)


@jax.jit
def _weighted_loss(params: Any, batch: batching.PackedBatch, weight_BxL: Any) -> Any:
    """Returns the weighted loss of tokens of packed sequences, and its gradient."""
    x_BxL, segments_BxL, positions_BxL = (jnp.asarray(array)[0] for array in batch)

    def total(params: Any) -> jax.Array:
        h_BxLxD: Any = MODEL.apply(
            {"params": params}, x_BxL, segments_BxL, positions_BxL, method="hidden"
        )
        h_TxD, embedding_VxD = (
            h_BxLxD.reshape(-1, MODEL_CONFIG.width),
            params["token_embed"]["embedding"],
        )
        target_T = jnp.roll(x_BxL, -1, 1).ravel()
        return losses.weighted_cross_entropy(h_TxD, embedding_VxD, target_T, weight_BxL.ravel(), 24)

    return jax.value_and_grad(total)(params)


SEVERAL = ALL[1:8]  # 5, 9, 1, 20, 31, 2 and 14 tokens in three packed sequences
LAYOUT = batching.plan_packing(np.array(LENGTHS)[SEVERAL], MODEL_CONFIG.length_tokens)


@pytest.mark.parametrize("i", range(len(SEVERAL)))
def test_packed_samples_have_the_same_loss_and_gradient_as_alone(i: int):
    """Up to rounding. Different neighbors in its packed sequence change no bit."""
    samples, other = population(), population(seed=1)
    tokens = np.concatenate(
        [
            (samples if sample_id == SEVERAL[i] else other).sample(sample_id)
            for sample_id in ALL.tolist()
        ]
    )
    changed = dataclasses.replace(other, tokens=tokens)
    plan = make_plan(micro_batch_size=LAYOUT.num_sequences)
    sequence, start, n = LAYOUT.sequence_C[i], LAYOUT.start_C[i], LENGTHS[SEVERAL[i]]
    weight_BxL = np.zeros((LAYOUT.num_sequences, MODEL_CONFIG.length_tokens), np.float32)
    weight_BxL[sequence, start : start + n - 1] = 1 / max(n - 1, 1)
    results = [
        jax.device_get(_weighted_loss(parameters(), pack(s, SEVERAL, plan, MESH)[0], weight_BxL))
        for s in (samples, changed)
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)
    value, grads = results[0]
    if n == 1:
        assert value == 0
        assert not any(leaf.any() for leaf in jax.tree.leaves(grads))
        return
    expected, expected_grads = reference(SEVERAL[i : i + 1])
    assert value == pytest.approx(expected, rel=1e-6)
    assert difference(grads, expected_grads) < 3e-6


@pytest.mark.parametrize("name", [slow_case("lion"), "muon"])
def test_optimizers_see_stacked_layers_on_gpus_too(monkeypatch: pytest.MonkeyPatch, name: str):
    settings = dataclasses.replace(OPTIMIZER, name=name)
    batch, stats = pack(population(), ALL, PLANS[1], MESH, len(ALL))
    states = []
    for is_gpu in (False, True):
        monkeypatch.setattr(sharding, "is_gpu", lambda mesh, is_gpu=is_gpu: is_gpu)
        step = make_step(TransformerLM(MODEL_CONFIG), settings, PLANS[1].chunk_tokens, MESH)
        new, _ = step(state(MESH, settings), *arguments(batch, stats, MESH), LEARNING_RATE)
        states.append(jax.device_get(new))
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    assert difference(states[1].opt_state, states[0].opt_state) < 3e-6
    assert difference(states[1].params, states[0].params) < (1e-4 if name == "muon" else 0.2)


def test_layers_that_are_unstacked_on_gpus_give_the_same_step(monkeypatch: pytest.MonkeyPatch):
    expected = first_step(PLANS[1])
    monkeypatch.setattr(sharding, "is_gpu", lambda mesh: True)
    cached_make_step.cache_clear()
    actual = first_step(PLANS[1])
    cached_make_step.cache_clear()
    assert actual[0] == pytest.approx(expected[0], rel=1e-6)
    assert difference(actual[1], expected[1]) < 3e-6


def test_the_validation_loss_equals_that_of_a_step():
    """This holds for many samples and for a few."""
    mean_loss: Any = make_loss(TransformerLM(PLANS[1].model_config), PLANS[1].chunk_tokens, MESH)
    params = state(MESH).params
    for ids_B in (ALL, ALL[4:6]):
        batch, stats = pack(population(), ids_B, PLANS[1], MESH, len(ALL))
        loss = float(mean_loss(params, *arguments(batch, stats, MESH)))
        assert loss == pytest.approx(reference(ids_B)[0], rel=1e-6)
        assert loss == pytest.approx(first_step(PLANS[1], ids_B)[0]["loss_nats"], rel=1e-7)
    assert mean_loss._cache_size() == 1
    assert not params["token_embed"]["embedding"].is_deleted()


def test_update_equals_the_optimizer_and_state_is_donated():
    """With decay and clipping; the reported norm is the one before clipping."""
    metrics, _, params = first_step(PLANS[1], optimizer_config=OPTIMIZER)
    assert metrics["gradient_norm"] > 2 * config.number(OPTIMIZER.clip_norm)
    tx = optimizer(OPTIMIZER)
    expected = parameters()
    change, _ = jax.jit(lambda g, p: tx.update(g, tx.init(p), p, learning_rate=LEARNING_RATE))(
        reference()[1], expected
    )
    expected = jax.tree.map(lambda p, u: p + np.asarray(u), expected, change)
    # The first update is the sign of the gradient, even where the gradient is only rounding.
    pairs = zip(*map(jax.tree.leaves, (params, expected)), strict=True)
    differences = [np.abs(a - b) for a, b in pairs]
    assert max(float(d.max()) for d in differences) <= 2.1 * LEARNING_RATE
    assert np.mean(np.concatenate([d.ravel() > 1e-6 for d in differences])) < 1e-3

    before = state(MESH, OPTIMIZER)
    batch, stats = pack(population(), ALL, PLANS[1], MESH, len(ALL))
    compiled_step(PLANS[1], OPTIMIZER)(before, *arguments(batch, stats, MESH), LEARNING_RATE)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))


def lowered_step(plan: ExecutionPlan) -> Any:
    batch, stats = pack(population(), ALL, plan, MESH, len(ALL))
    initial = state(MESH, PLAIN, plan.model_config)
    return compiled_step(plan).lower(initial, *arguments(batch, stats, MESH), LEARNING_RATE)


def sizes_with_axis(text: str, axis_size: int) -> Iterator[int]:
    """Yields the sizes of a program's arrays that have an axis of a certain size."""
    for shape in re.findall(r"(?:tensor<|\[)(\d+(?:[x,]\d+)+)", text):
        axes = [int(n) for n in re.split("[x,]", shape)]
        if axis_size in axes:
            yield math.prod(axes)


def with_model(plan: ExecutionPlan, **changes: Any) -> ExecutionPlan:
    return dataclasses.replace(plan, model_config=dataclasses.replace(plan.model_config, **changes))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_no_array_holds_the_logits_of_more_than_a_chunk(scan_layers: bool):
    """V = 997 is the size of no other axis; 16 of 64 tokens at once, both in the program and compiled."""
    plan = with_model(
        make_plan(2, 16, scan_layers, "full" if scan_layers else "none"), vocab_size=997
    )
    program = lowered_step(plan)
    for text in (program.as_text(), program.compile().as_text()):
        assert max(sizes_with_axis(text, 997)) == 16 * 997
    if not scan_layers:
        unchunked = lowered_step(dataclasses.replace(plan, chunk_tokens=64)).as_text()
        assert max(sizes_with_axis(unchunked, 997)) == 64 * 997, "larger arrays are found"


def loop_dtypes(jaxpr: Any) -> Iterator[set[str]]:
    """Yields the dtypes that each while loop of a program carries from one iteration to the next."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "while":
            yield {str(v.aval.dtype) for v in eqn.outvars}
        for inner in jax.tree.leaves(list(eqn.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from loop_dtypes(inner)


@pytest.mark.parametrize("scan_layers", [False, slow_case(True)])
def test_only_activations_and_kernels_are_bfloat16(scan_layers: bool):
    """The state and the sums of gradients and losses are float32; the loss is close to the exact one."""
    plan = with_model(make_plan(1, scan_layers=scan_layers), dtype="bfloat16")
    step = compiled_step(plan)
    batch, stats = pack(population(), ALL, plan, MESH, len(ALL))
    args = arguments(batch, stats, MESH)
    jaxpr = jax.make_jaxpr(step)(state(MESH, PLAIN), *args, LEARNING_RATE)
    (carried,) = loop_dtypes(jaxpr)
    assert carried <= {"float32", "int32"}
    for name, shape in {"mlp": "2,16,64", "out": "2,2,8,16"}.items():
        assert re.search(rf":bf16\[{shape}\] = convert_element_type", str(jaxpr)), name
    assert not re.search(r":bf16\[2,16\] = convert_element_type", str(jaxpr)), "layernorm scales"
    new_state, metrics = step(state(MESH, PLAIN), *args, LEARNING_RATE)
    leaves = jax.tree.leaves(new_state)
    assert {str(x.dtype) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)} == {"float32"}
    assert {str(x.dtype) for x in metrics.values()} == {"float32"}
    value, expected = reference()
    assert float(metrics["loss_nats"]) == pytest.approx(value, rel=0.01)
    assert float(metrics["loss_nats"]) != pytest.approx(value, rel=1e-7)
    moment = optax.tree.get(new_state.opt_state, "mu")
    assert difference(jax.tree.map(lambda m: np.asarray(m) / 0.1, moment), expected) < 0.05


def test_to_global_array_keeps_values():
    batch, _ = pack(population(), ALL, PLANS[1], MESH)
    jax.tree.map(np.testing.assert_array_equal, to_global_array(batch, MESH), batch)
    assert local_device_indices(MESH) == [0]
