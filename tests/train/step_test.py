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
from quick_compilation import quickly_compiled
from step_case import (
    LENGTHS,
    ONE_BY_ONE,
    RECIPE,
    SHAPE,
    arguments,
    choice,
    laid_out,
    one_device,
    parameters,
    population,
    state,
)

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import losses, transformer
from lm_mia.train import batching
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import local_device_indices, make_loss, make_step, to_global_array

pytestmark = pytest.mark.usefixtures("quickly_compiled")
__all__ = ["quickly_compiled"]  # a fixture
MESH = one_device()
# Nothing but the gradient goes into the first moment: it is then a tenth of it.
PLAIN = dataclasses.replace(RECIPE, weight_decay=0, clip_norm=0)
RATE = np.float32(0.01)
ALL = np.arange(len(LENGTHS))


made = functools.cache(make_step)


def step(
    chosen: ExecutionPlan, recipe: config.Optimizer = PLAIN, shape: transformer.ModelConfig = SHAPE
) -> Any:
    return made(shape, recipe, chosen, MESH)


def run(
    chosen: ExecutionPlan,
    ids_B: np.ndarray = ALL,
    samples: Population | None = None,
    recipe: config.Optimizer = PLAIN,
    packed: bool = True,
) -> tuple[dict[str, float], Any, Any]:
    """Metrics, gradient and new parameters of the first step on a batch, with room for all samples."""
    rows, sizes = laid_out(samples or population(), ids_B, chosen, MESH, len(ALL), packed)
    args = arguments(rows, sizes, MESH)
    new, metrics = step(chosen, recipe)(state(MESH, recipe), *args, RATE)
    moment = optax.tree.get(new["opt"], "mu")
    grads = jax.tree.map(lambda m: np.asarray(m, np.float64) / 0.1, moment)
    return {k: float(v) for k, v in metrics.items()}, grads, jax.device_get(new["params"])


@jax.jit
def _mean(params: Any, x_BxL: Any, length_B: Any) -> Any:
    def mean(params: Any) -> jax.Array:
        return batch_loss(transformer.forward(params, x_BxL), x_BxL, length_B)

    return jax.value_and_grad(mean)(params)


def reference(ids_B: np.ndarray = ALL, samples: Population | None = None) -> tuple[float, Any]:
    """Loss and gradient of the padded batch, from all its logits."""
    x_BxL, length_B = padded(samples or population(), ids_B, len(ALL))
    value, grads = _mean(parameters(), x_BxL, length_B)
    return float(value), jax.device_get(grads)


def difference(got: Any, expected: Any) -> float:
    """The largest over leaves of the largest difference relative to the leaf's largest number (1 if all are 0)."""

    def of_leaf(a: Any, b: Any) -> float:
        return float(np.abs(np.asarray(a) - np.asarray(b)).max() / (np.abs(b).max() or 1))

    return max(jax.tree.leaves(jax.tree.map(of_leaf, got, expected)))


CHOICES = [
    choice(ONE_BY_ONE, 1, 7),
    choice(ONE_BY_ONE, 3, 24),
    choice(transformer.Way(remat="dots"), 16, 4096),
    choice(transformer.Way(remat="full"), 5, 33),
    choice(transformer.Way(scanned=True), 2, 24),
    choice(transformer.Way(scanned=True, remat="dots"), 1, 64),
    choice(transformer.Way(scanned=True, remat="full"), 3, 512),
]


def named(chosen: ExecutionPlan) -> str:
    way = f"{'scanned' if chosen.way.scanned else 'unrolled'}-{chosen.way.remat}"
    return f"{way}-{chosen.micro_batch_size}rows-{chosen.chunk_tokens}tokens"


@pytest.mark.parametrize(
    ("chosen", "packed"),
    [*((chosen, True) for chosen in CHOICES), (CHOICES[1], False)],
    ids=lambda value: named(value) if isinstance(value, ExecutionPlan) else str(value),
)
def test_a_step_equals_the_padded_reference(chosen: ExecutionPlan, packed: bool):
    """Loss, norm, and every leaf of the gradient; whole batches, short ones, and a single sample.

    The same holds of a step of rows of one sample each, so a step of packed rows equals one of these.
    """
    for ids_B in (ALL, ALL[5:0:-1], ALL[3:5], ALL[:1]):
        metrics, grads, _ = run(chosen, ids_B, packed=packed)
        value, expected = reference(ids_B)
        norm = math.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(expected)))
        assert metrics["loss_nats"] == pytest.approx(value, rel=1e-6)
        assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-6)
        assert difference(grads, expected) < 3e-6
    assert step(chosen)._cache_size() == 1, "one executable for batches of any number of rows"


def test_batches_have_other_numbers_of_trips_and_share_one_executable():
    """Of 1 to 6 micro-batches; learning rates and seeds are no part of it either."""
    compiled = step(CHOICES[0])
    trips = set()
    for ids_B in (ALL[:1], ALL[:2], ALL[:5], ALL):
        rows, sizes = laid_out(population(), ids_B, CHOICES[0], MESH, len(ALL))
        trips.add(sizes.num_micro_batches)
        compiled(
            state(MESH, PLAIN), *arguments(rows, sizes, MESH), np.float32(sizes.num_micro_batches)
        )
    assert len(trips) == 4
    assert compiled._cache_size() == 1


def test_rows_after_the_last_trip_are_never_looked_at():
    rows, sizes = laid_out(population(), ALL[:6], CHOICES[1], MESH, len(ALL))
    other = batching.PackedBatch(*(a.copy() for a in rows))
    assert sizes.num_micro_batches < len(rows.x_NxMxL)
    for array, value in zip(other, (63, 1, 5), strict=True):
        array[sizes.num_micro_batches :] = value
    found = [
        step(CHOICES[1])(state(MESH, PLAIN), *arguments(r, sizes, MESH), RATE)
        for r in (rows, other)
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)


@jax.jit
def _own(params: Any, rows: batching.PackedBatch, weight_RxL: Any) -> Any:
    """Weighted loss of tokens of packed rows, and its gradient."""
    x_RxL, segment_RxL, position_RxL = (jnp.asarray(a)[0] for a in rows)

    def total(params: Any) -> jax.Array:
        whole = transformer.unstacked(params)
        h_RxLxD = transformer.hidden(whole, x_RxL, segment_RxL, position_RxL)
        flat = h_RxLxD.reshape(-1, SHAPE.width), params["embed_VxD"]
        return losses.weighted_cross_entropy(
            *flat, jnp.roll(x_RxL, -1, 1).ravel(), weight_RxL.ravel(), 24
        )

    return jax.value_and_grad(total)(params)


SEVERAL = ALL[1:8]  # 5, 9, 1, 20, 31, 2 and 14 tokens in three rows
PLAN = batching.plan_packing(np.array(LENGTHS)[SEVERAL], SHAPE.length_tokens)


@pytest.mark.parametrize("i", range(len(SEVERAL)))
def test_each_sample_of_a_row_has_the_loss_and_gradient_that_it_has_alone(i: int):
    """To rounding; and bitwise whatever the others of its row are."""
    samples, other = population(), population(seed=1)
    same = np.concatenate(
        [(samples if place == SEVERAL[i] else other).sample(place) for place in ALL.tolist()]
    )
    changed = dataclasses.replace(other, tokens=same)
    chosen = choice(micro_batch_size=PLAN.num_sequences)
    row, start, n = PLAN.sequence_B[i], PLAN.start_B[i], LENGTHS[SEVERAL[i]]
    weight_RxL = np.zeros((PLAN.num_sequences, SHAPE.length_tokens), np.float32)
    weight_RxL[row, start : start + n - 1] = 1 / max(n - 1, 1)
    found = [
        jax.device_get(_own(parameters(), laid_out(s, SEVERAL, chosen, MESH)[0], weight_RxL))
        for s in (samples, changed)
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
    value, grads = found[0]
    if n == 1:
        assert value == 0
        assert not any(leaf.any() for leaf in jax.tree.leaves(grads))
        return
    expected, expected_grads = reference(SEVERAL[i : i + 1])
    assert value == pytest.approx(expected, rel=1e-6)
    assert difference(grads, expected_grads) < 3e-6


def test_a_loss_is_that_of_a_step_without_the_step():
    """Of held-out samples too many for a batch, and of few."""
    compiled = make_loss(SHAPE, CHOICES[1], MESH)
    params = state(MESH)["params"]
    for ids_B in (ALL, ALL[4:6]):
        rows, sizes = laid_out(population(), ids_B, CHOICES[1], MESH, len(ALL))
        got = float(compiled(params, *arguments(rows, sizes, MESH)))
        assert got == pytest.approx(reference(ids_B)[0], rel=1e-6)
        assert got == pytest.approx(run(CHOICES[1], ids_B)[0]["loss_nats"], rel=1e-7)
    assert compiled._cache_size() == 1  # type: ignore[attr-defined]
    assert not params["embed_VxD"].is_deleted()


def test_the_update_is_the_optimizers_and_the_state_is_given_away():
    """Decay and clipping included; the norm that is told is the one before clipping."""
    metrics, _, params = run(CHOICES[1], recipe=RECIPE)
    assert metrics["gradient_norm"] > 2 * RECIPE.clip_norm
    tx = optimizer(RECIPE)
    expected = parameters()
    change, _ = jax.jit(lambda g, p: tx.update(g, tx.init(p), p))(reference()[1], expected)
    expected = jax.tree.map(lambda p, u: p - RATE * np.asarray(u), expected, change)
    # the first update is the gradient's sign, also where the gradient is rounding alone
    apart = [np.abs(a - b) for a, b in zip(*map(jax.tree.leaves, (params, expected)), strict=True)]
    assert max(float(a.max()) for a in apart) <= 2.1 * RATE
    assert np.mean(np.concatenate([a.ravel() > 1e-6 for a in apart])) < 1e-3

    before = state(MESH, RECIPE)
    rows, sizes = laid_out(population(), ALL, CHOICES[1], MESH, len(ALL))
    step(CHOICES[1], RECIPE)(before, *arguments(rows, sizes, MESH), RATE)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before["params"]))


def lowered(chosen: ExecutionPlan, shape: transformer.ModelConfig = SHAPE) -> Any:
    rows, sizes = laid_out(population(), ALL, chosen, MESH, len(ALL))
    of = arguments(rows, sizes, MESH)
    return step(chosen, PLAIN, shape).lower(state(MESH, PLAIN, shape), *of, RATE)


def with_pieces(text: str, pieces: int) -> Iterator[int]:
    """Numbers held by arrays of a program that have an axis of so many pieces."""
    for shape in re.findall(r"(?:tensor<|\[)(\d+(?:[x,]\d+)+)", text):
        axes = [int(n) for n in re.split("[x,]", shape)]
        if pieces in axes:
            yield math.prod(axes)


@pytest.mark.parametrize("scanned", [False, True])
def test_no_array_holds_the_logits_of_more_than_a_chunk(scanned: bool):
    """V = 997 is the size of no other axis: 16 tokens of 64 at once. Neither as written nor as compiled."""
    shape = dataclasses.replace(SHAPE, vocab_size=997)
    way = transformer.Way(scanned=scanned, remat="full" if scanned else "none")
    program = lowered(choice(way, 2, 16), shape)
    for text in (program.as_text(), program.compile().as_text()):
        assert max(with_pieces(text, 997)) == 16 * 997
    whole = lowered(choice(way, 2, 64), shape).as_text()
    assert max(with_pieces(whole, 997)) == 64 * 997, "the search finds them where they are"


def loop_types(jaxpr: Any) -> Iterator[set[str]]:
    """Types that each while loop of a program carries from turn to turn."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "while":
            yield {str(v.aval.dtype) for v in eqn.outvars}
        for inner in jax.tree.leaves(list(eqn.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from loop_types(inner)


@pytest.mark.parametrize("scanned", [False, True])
def test_bfloat16_is_of_activations_only(scanned: bool):
    """Parameters, moments, sums of gradients and losses stay float32; a loss is near the exact one."""
    shape = dataclasses.replace(SHAPE, dtype="bfloat16")
    chosen = choice(transformer.Way(scanned=scanned), micro_batch_size=1)
    rows, sizes = laid_out(population(), ALL, chosen, MESH, len(ALL))
    args = arguments(rows, sizes, MESH)
    jaxpr = jax.make_jaxpr(step(chosen, PLAIN, shape))(state(MESH, PLAIN), *args, RATE)
    (carried,) = loop_types(jaxpr)
    assert carried <= {"float32", "int32"}
    assert "bf16[" in str(jaxpr)
    new, metrics = step(chosen, PLAIN, shape)(state(MESH, PLAIN), *args, RATE)
    floats = {str(x.dtype) for x in jax.tree.leaves(new) if jnp.issubdtype(x.dtype, jnp.floating)}
    assert floats == {"float32"}
    assert {str(x.dtype) for x in metrics.values()} == {"float32"}
    value, expected = reference()
    assert float(metrics["loss_nats"]) == pytest.approx(value, rel=0.01)
    assert float(metrics["loss_nats"]) != pytest.approx(value, rel=1e-7)
    moment = optax.tree.get(new["opt"], "mu")
    assert difference(jax.tree.map(lambda m: np.asarray(m) / 0.1, moment), expected) < 0.05


def test_rows_are_placed_as_they_are():
    rows, _ = laid_out(population(), ALL, CHOICES[1], MESH)
    jax.tree.map(np.testing.assert_array_equal, to_global_array(rows, MESH), rows)
    assert local_device_indices(MESH) == [0]
