"""AdamW, Lion and Muon by name, functions of users, and what applies to all of them."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import tiny_training
from same_bits import same
from slow_case import slow_case
from tiny_training import MODEL, OPTIMIZER, STEPS

from lm_mia import config, user_files
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.train import checkpoint, loop
from lm_mia.train.optimizer import (
    OPTIMIZERS,
    check_optimizer,
    learning_rates,
    matrix_axes,
    optimizer,
    parameter_paths,
)

CAUTIOUS_LION = """
import jax
import jax.numpy as jnp
import optax


def cautious_lion(learning_rate, *, b1, b2, weight_decay):
    '''Lion whose weights decay only where the update also brings them towards zero.'''

    def decay(updates, params):
        return jax.tree.map(lambda u, p: u + weight_decay * jnp.where(u * p > 0, p, 0), updates, params)

    return optax.chain(
        optax.scale_by_lion(b1, b2), optax.stateless(decay), optax.scale_by_learning_rate(learning_rate)
    )


def of_another_kind(learning_rate):
    return "sgd"


def with_a_python_rate(learning_rate):
    return optax.sgd(float(learning_rate))


def reads_what_does_not_exist(learning_rate, *, b3):
    return optax.sgd(learning_rate)


def in_half_precision(learning_rate):
    return optax.sgd(learning_rate, momentum=0.9, accumulator_dtype=jnp.bfloat16)


def transposed(learning_rate):
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u: u.T, updates))


sgd = optax.sgd
number = 3
"""
SHAPE = transformer.ModelConfig(layers=2, width=8, heads=2, vocab_size=16, length_tokens=8)
CHANGED = {  # parameters that are not at their defaults, for each optimizer
    "adamw": {"b1": 0.8, "b2": 0.9, "eps": 1e-3, "weight_decay": 0.2},
    "lion": {"b1": 0.8, "b2": 0.9, "weight_decay": 0.2},
    "muon": {
        **{"b1": 0.8, "b2": 0.9, "eps": 1e-3, "weight_decay": 0.2},
        **{"momentum": 0.7, "newton_schulz_steps": 3, "consistent_rms": "none"},
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CAUTIOUS_LION)
    return path


def of_user(file: Path, name: str = "cautious_lion", **changes: Any) -> config.Optimizer:
    full = f"{file}:{name}"
    settings = {"name": full, "source": user_files.source_digest(full), **changes}
    return dataclasses.replace(OPTIMIZER, **settings)


@functools.cache
def weights(seed: int = 0) -> Any:
    """Returns random numbers in the shapes of a model of two layers."""
    model, noise = transformer.TransformerLM(SHAPE), np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))
    return jax.tree.map(lambda x: noise.standard_normal(x.shape).astype(np.float32), shapes)


def train(
    update: Callable[..., Any],
    init: Callable[..., Any],
    params: Any,
    jit: Callable[..., Any] = jax.jit,
) -> list[Any]:
    """Returns the parameters after each of three updates by random gradients."""
    state, history = jit(init)(params), []
    for t, rate in enumerate(np.array([0.1, 0.3, 0.02], np.float32)):
        params, state = jit(update)(weights(t + 1), state, params, rate)
        history.append(jax.device_get(params))
    return history


def ours(
    settings: config.Optimizer,
    select: Callable[[Any], Any] = lambda params: params,
    jit: Callable[..., Any] = jax.jit,
) -> list[Any]:
    """Returns the parameters after each update by an optimizer of the config, of all parameters or of some."""
    tx = optimizer(settings)

    def update(grads: Any, state: Any, params: Any, rate: Any) -> Any:
        updates, state = tx.update(select(grads), state, params, learning_rate=rate)
        return optax.apply_updates(params, updates), state

    return train(update, tx.init, select(weights()), jit)


def one_kernel(params: Any) -> dict[str, Any]:
    """Returns the parameters with one kernel and one scale alone."""
    return {"blocks": {"mlp": {"up": params["blocks"]["mlp"]["up"]}}, "ln_out": params["ln_out"]}


def directly(make: Callable[[Any], Any], split: Callable[[Any], Any]) -> list[Any]:
    """Returns the same by an optimizer of optax, on parameters that are split in another way."""

    def update(grads: Any, state: Any, params: Any, rate: Any) -> Any:
        updates, state = make(rate).update(split(grads), state, params)
        return optax.apply_updates(params, updates), state

    return train(update, make(0.0).init, split(weights()))


@pytest.mark.parametrize("clip_norm", ["none", 0.5])
def test_adamw_has_the_bits_of_the_chain_without_a_learning_rate(clip_norm: Any):
    """Until models could have other optimizers, the caller multiplied the update by the learning rate."""
    settings = config.Optimizer(clip_norm=clip_norm)
    tx = optax.chain(
        *([optax.clip_by_global_norm(clip_norm)] if clip_norm != "none" else []),
        optax.scale_by_adam(b1=0.9, b2=0.98, eps=1e-9),
        optax.add_decayed_weights(0.1),
    )

    def update(grads: Any, state: Any, params: Any, rate: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        updates = jax.tree.map(lambda u: -rate * u, updates)
        return optax.apply_updates(params, updates), state

    assert same(ours(settings), train(update, tx.init, weights()))


@pytest.mark.parametrize("changes", [{}, CHANGED["lion"]])
def test_lion_equals_that_of_optax_on_a_list_of_layers(changes: dict[str, Any]):
    b1, b2, decay = (
        changes.get(k, v) for k, v in [("b1", 0.9), ("b2", 0.98), ("weight_decay", 0.1)]
    )
    expected = directly(
        lambda rate: optax.lion(rate, b1, b2, weight_decay=decay), transformer.unstack_blocks
    )
    actual = ours(config.Optimizer(name="lion", clip_norm="none", **changes))
    for one, other in zip(actual, expected, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            transformer.unstack_blocks(one),
            other,
        )


def as_matrices(params: Any) -> dict[str, Any]:
    """Returns the matrix of each kernel of each layer, inputs by outputs, and all other parameters."""
    blocks = params["blocks"]
    parts: dict[str, Any] = {"other": {name: params[name] for name in params if name != "blocks"}}
    parts["other"]["scales"] = [blocks[name] for name in ("ln_attn", "ln_mlp")]
    parts["matrices"] = [
        {name: blocks["attn"][name]["kernel"][y].reshape(8, 8) for name in blocks["attn"]}
        | {name: blocks["mlp"][name]["kernel"][y] for name in blocks["mlp"]}
        for y in range(SHAPE.layers)
    ]
    return parts


@pytest.mark.parametrize("changes", [{}, CHANGED["muon"]])
def test_muon_equals_that_of_optax_on_a_list_of_matrices(changes: dict[str, Any]):
    """Stacked kernels are not what optax takes for matrices; embeddings and stacked scales of layernorms are."""
    c = config.Optimizer(name="muon", clip_norm="none", **changes)

    def make(rate: Any) -> optax.GradientTransformation:
        muon = optax.contrib.muon(
            rate,
            ns_steps=c.newton_schulz_steps,
            beta=c.momentum,
            eps=c.eps,
            weight_decay=c.weight_decay,
            consistent_rms=config.number(c.consistent_rms) or None,
        )
        adamw = optax.adamw(rate, c.b1, c.b2, c.eps, weight_decay=c.weight_decay, nesterov=True)
        return optax.partition(
            {"muon": muon, "adamw": adamw}, {"matrices": "muon", "other": "adamw"}
        )

    for one, other in zip(ours(c), directly(make, as_matrices), strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
            as_matrices(one),
            other,
        )


def test_an_update_of_muon_is_orthogonal_in_each_layer():
    """The singular values are between 0.6 and 1.3 after five iterations; those of the gradients differ by 100."""
    c = config.Optimizer(name="muon", clip_norm="none", weight_decay=0, consistent_rms="none")
    matrices = as_matrices(jax.tree.map(lambda a, b: (b - a) / 0.1, ours(c)[0], weights()))
    for layer in matrices["matrices"]:
        for name, update in layer.items():
            size = 0.5 if name == "up" else 1.0  # sqrt(outputs / inputs) of 4 times as many outputs
            values = np.linalg.svd(update * size, compute_uv=False)
            assert 0.5 < values.min() < values.max() < 1.4, name


def test_only_kernels_of_layers_are_matrices_of_muon():
    axes = jax.tree.leaves(
        matrix_axes(weights()),
        is_leaf=lambda x: x is None or isinstance(x, optax.contrib.MuonDimensionNumbers),
    )
    found = dict(zip(parameter_paths(weights()), axes, strict=True))
    assert {path for path in found if found[path]} == {p for p in found if p.endswith("kernel")}
    assert found["blocks/attn/query/kernel"] == ((1,), (2, 3))
    assert found["blocks/attn/out/kernel"] == ((1, 2), (3,))
    assert found["blocks/mlp/up/kernel"] == ((1,), (2,))


SMALL = {
    "ln": {"scale": np.array([1.0], np.float32)},
    "mlp": {
        "down": {"kernel": np.array([4.0], np.float32)},
        "up": {"kernel": np.array([2.0, -1.0], np.float32)},
    },
}


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_multipliers_and_masks_worked_by_hand(name: str):
    """The first update of both optimizers is the sign of the gradient, here one, and the decay.

    Only kernels decay, by 0.2. The learning rate is 0.1; the first multiplier that fits is used.
    """
    settings = config.Optimizer(
        name=name,
        weight_decay=0.2,
        weight_decay_mask=("kernel$",),
        learning_rate_multipliers=(("up/", 0.5), ("^mlp", 0.0)),
    )
    tx: Any = optimizer(settings)
    ones = jax.tree.map(np.ones_like, SMALL)

    @jax.jit
    def step(params: Any, rate: Any) -> Any:
        updates, _ = tx.update(ones, tx.init(params), params, learning_rate=rate)
        return optax.apply_updates(params, updates)

    new = jax.device_get(step(SMALL, 0.1))
    np.testing.assert_allclose(new["ln"]["scale"], [1 - 0.1], rtol=1e-6)
    expected = [2 - 0.05 * (1 + 0.4), -1 - 0.05 * (1 - 0.2)]
    np.testing.assert_allclose(new["mlp"]["up"]["kernel"], expected, rtol=1e-6)
    assert new["mlp"]["down"]["kernel"] == [4.0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_registry_reads_the_fields_that_the_config_lists(name: str):
    """And each of them changes the parameters."""
    assert OPTIMIZERS.keys() == config.OPTIMIZER_PARAMETERS.keys() == CHANGED.keys()

    def trained(**changes: Any) -> list[Any]:
        # Single operations are compiled once for all fields.
        return ours(config.Optimizer(name=name, **changes), one_kernel, lambda update: update)

    before = trained()
    changes = CHANGED[name] | {"weight_decay_mask": ("kernel",)}
    assert changes.keys() == {*config.OPTIMIZER_PARAMETERS[name]}
    for field, value in changes.items():
        assert not same(trained(**{field: value}), before), field


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adamw", 8.0), ("lion", 4.0), ("muon", None)],
)
def test_the_bytes_of_the_state_are_those_of_its_arrays(name: str, expected: float | None):
    model = transformer.TransformerLM(SHAPE)
    settings = config.Optimizer(name=name)
    params = weights()
    state = jax.tree.leaves(jax.jit(optimizer(settings).init)(params))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    found = check_optimizer(settings, model)
    assert found == sum(leaf.nbytes for leaf in state) / size
    if expected is None:  # Muon keeps one moment of kernels, and two of the others
        kernels = sum(leaf.size for leaf in jax.tree.leaves(as_matrices(params)["matrices"]))
        expected = (4 * kernels + 8 * (size - kernels)) / size
    assert found == pytest.approx(expected, abs=30 / size)


def final_state(
    folder: Path, settings: config.Optimizer
) -> tuple[int | None, checkpoint.TrainState]:
    like = checkpoint.init_state(0, MODEL, optimizer(settings))
    with checkpoint.manager(folder) as checkpoints:
        step = checkpoints.latest_step()
        assert step is not None
        return step, checkpoint.restore(checkpoints, step, like)


@pytest.mark.parametrize(
    "name",
    [
        "muon with multipliers",
        "cautious_lion",
        *(slow_case(name) for name in ("lion", "muon")),
    ],
)
def test_resume_is_bitwise_equal(tiny: Population, tmp_path: Path, file: Path, name: str):
    settings = {
        "lion": dataclasses.replace(OPTIMIZER, name="lion", peak_learning_rate=3e-3),
        "muon": dataclasses.replace(OPTIMIZER, name="muon"),
        "muon with multipliers": dataclasses.replace(
            OPTIMIZER,
            name="muon",
            weight_decay_mask=("kernel",),
            learning_rate_multipliers=(("embed", 0.3),),
        ),
        "cautious_lion": of_user(file, peak_learning_rate=3e-3),
    }[name]
    tiny_training.run(tiny, tmp_path / "whole", optimizer_config=settings)
    step, whole = final_state(tmp_path / "whole", settings)
    assert step == STEPS
    for stop in (1, 4):
        with pytest.raises(loop.PreemptedError):
            tiny_training.run(
                tiny,
                tmp_path / "resumed",
                optimizer_config=settings,
                should_stop=lambda k, stop=stop: k == stop,
            )
        assert final_state(tmp_path / "resumed", settings)[0] == stop
    events = tiny_training.run(tiny, tmp_path / "resumed", optimizer_config=settings)
    assert events[-1]["resumed_at"] == 4
    assert same(final_state(tmp_path / "resumed", settings)[1], whole)
    tiny_training.run(tiny, tmp_path / "adamw")
    adamw = tiny_training.newest(tmp_path / "adamw")[1]
    assert not same(adamw.params, whole.params)


def test_a_function_of_the_user_reads_fields_and_decays_cautiously(file: Path):
    """The weights 2 and -1 decay only where the update moves them towards zero."""
    tx = optimizer(of_user(file, weight_decay=0.2, clip_norm="none"))
    params = {"w": np.array([2.0, -1.0, -1.0], np.float32)}
    grads = {"w": np.array([1.0, 1.0, -1.0], np.float32)}
    updates, _ = jax.jit(lambda g, p: tx.update(g, tx.init(p), p, learning_rate=0.1))(grads, params)
    np.testing.assert_allclose(updates["w"], [-0.1 * (1 + 0.4), -0.1, 0.1 * (1 + 0.2)], rtol=1e-6)


def test_a_function_of_the_user_is_checked_by_shapes(file: Path):
    model = transformer.TransformerLM(SHAPE)
    good = of_user(file, learning_rate_multipliers=(("embed", 0.1),))
    assert check_optimizer(good, model) == pytest.approx(4.0, abs=0.01)
    assert check_optimizer(of_user(file, "sgd"), model) == 0.0

    def message(name: str, **changes: Any) -> str:
        with pytest.raises(UserError) as caught:
            check_optimizer(of_user(file, name, **changes), model)
        return str(caught.value)

    for name, rule in {
        "of_another_kind": "it must return an optax GradientTransformation",
        "with_a_python_rate": "which is a traced array",
        "reads_what_does_not_exist": "there is no b3",
        "in_half_precision": "its state has arrays of type bfloat16",
        "transposed": "its updates must have the shapes and types of the parameters",
        "number": "is no function",
    }.items():
        assert message(name).startswith(f"optimizer.name={file}:{name}: ")
        assert rule in message(name)
    unread = message("cautious_lion", eps=1e-3)
    assert unread.startswith("optimizer.eps=0.001: ")
    unmatched = message("cautious_lion", learning_rate_multipliers=(("embed", 1.0), ("head", 2.0)))
    assert re.search(r"'head' .*\bblocks/attn/key", unmatched)


def test_a_file_that_changed_or_fails_trains_nothing(file: Path):
    settings = of_user(file, weight_decay=0.3)
    file.write_text(CAUTIOUS_LION.replace("u * p > 0", "u * p < 0"))
    with pytest.raises(UserError, match="changed after"):
        optimizer(settings)
    file.write_text(f"{CAUTIOUS_LION}\n1 / 0\n")
    with pytest.raises(UserError, match=r"ZeroDivisionError.*line \d+"):
        optimizer(of_user(file, weight_decay=0.3))
    file.unlink()
    with pytest.raises(UserError, match="no file"):
        optimizer(settings)
    file.write_text(f"# a comment\n{CAUTIOUS_LION}")
    optimizer(settings)


def test_models_with_different_numbers_of_steps_share_one_update():
    tx, params = optimizer(config.Optimizer(name="lion")), {"w": jnp.ones(3)}
    update: Any = jax.jit(lambda s, rate: tx.update(params, s, params, learning_rate=rate))
    for steps in (5, 9):
        state = tx.init(params)
        for rate in learning_rates(config.Optimizer(warmup_steps=2), steps):
            _, state = update(state, rate)
    assert update._cache_size() == 1
