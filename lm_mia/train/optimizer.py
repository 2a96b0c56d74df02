"""Optimizers by name, with linear warm-up and decay: AdamW, Lion and Muon of optax, and functions of users.

An optimizer is a function of the learning rate, and of the fields of `lm_mia.config.Optimizer` that it reads as its
keyword-only parameters. It returns an optax transformation whose updates are added to the parameters::

    def adamw(learning_rate, *, b1, b2, eps, weight_decay, weight_decay_mask):
        return optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=weight_decay_mask)

``weight_decay_mask`` is what optax calls a mask: None, or a function of the parameters that returns a tree of booleans.

S: training steps.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import optax
import optax.contrib

from lm_mia import config, user_files
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.model.transformer import Params, TransformerLM

Factory = Callable[..., optax.GradientTransformation]
Mask = Callable[[Params], Any] | None

_STATE_DTYPES = {
    np.dtype(name) for name in ("float32", "int32", "uint32")
}  # checkpoints have 32-bit checksums


def learning_rates(optimizer_config: config.Optimizer, steps: int) -> np.ndarray:
    """Computes the learning rate of each training step.

    The rate rises linearly from its initial value to the peak over ``warmup_steps``, then falls to its final value
    along a cosine or a line, or stays at the peak. The final value is that of the step after the last one.

    Returns:
      learning_rate_S, float32, with S = steps.

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
    learning_rate_S = np.asarray(schedule(np.arange(steps)), np.float32)
    return np.broadcast_to(learning_rate_S, (steps,))


@functools.cache  # returns the same object for equal configs, so that jitted functions that close over it are reused
def optimizer(optimizer_config: config.Optimizer) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a config, after gradients are clipped by their global norm.

    Its update takes the learning rate of the step, one of `learning_rates`, as the keyword argument ``learning_rate``.
    The schedule is data and not part of the compiled step, so that models with different numbers of steps share one.

    Raises:
      UserError: if the user's function cannot be loaded, or its source is not that of the config.
    """
    factory = _factory(optimizer_config)
    settings = {name: getattr(optimizer_config, name) for name in _keywords(factory)}
    if "weight_decay_mask" in settings:
        settings["weight_decay_mask"] = _mask(optimizer_config.weight_decay_mask)
    clip_norm, multipliers = optimizer_config.clip_norm, optimizer_config.learning_rate_multipliers
    before = [] if clip_norm == "none" else [optax.clip_by_global_norm(clip_norm)]
    after = [_multiply(multipliers)] if multipliers else []

    def at(learning_rate: Any) -> optax.GradientTransformation:
        return optax.chain(*before, factory(learning_rate, **settings), *after)

    def init(params: Any) -> optax.OptState:
        return at(0.0).init(params)

    def update(
        updates: Any, state: optax.OptState, params: Any = None, *, learning_rate: Any
    ) -> tuple[Any, optax.OptState]:
        return at(learning_rate).update(updates, state, params)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def check_optimizer(optimizer_config: config.Optimizer, model: TransformerLM) -> float:
    """Checks an optimizer by shapes alone, without any device.

    Returns:
      Bytes of the optimizer's state per parameter of the model, 8 for the two moments of AdamW.

    Raises:
      UserError: if the user's function cannot be loaded, reads a field that does not exist, ignores a field that is not
        at its default, fails, or returns no optax transformation of float32 or 32-bit integers, or if a regular
        expression matches no parameter.
    """
    params = transformer.abstract_params(model)
    _check_patterns(optimizer_config, parameter_paths(params))
    field = f"optimizer.name={optimizer_config.name}"
    factory = _factory(optimizer_config)
    if optimizer_config.source:
        _check_signature(optimizer_config, factory)
    tx = optimizer(optimizer_config)

    def init_and_update(params: Params, learning_rate: jax.Array) -> tuple[Any, Any, Any]:
        state = tx.init(params)
        return state, *tx.update(params, state, params, learning_rate=learning_rate)

    rate = jax.ShapeDtypeStruct((), np.float32)
    try:
        state, updates, new_state = jax.eval_shape(init_and_update, params, rate)
    except Exception as error:
        if not optimizer_config.source:
            raise
        file = str(user_files.file_of(optimizer_config.name))
        raise UserError(
            f"{field}: fails with {user_files.describe(error, file)}; it must return an optax "
            "GradientTransformation for any learning rate, which is a traced array; correct it"
        ) from error
    if _shapes(updates) != _shapes(params) or _shapes(new_state) != _shapes(state):
        raise UserError(
            f"{field}: its updates must have the shapes and types of the parameters, and its new state those of the "
            "old one; correct it"
        )
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state)}
    if dtypes - _STATE_DTYPES:
        listed = ", ".join(sorted(map(str, dtypes - _STATE_DTYPES)))
        raise UserError(
            f"{field}: its state has arrays of type {listed}, but only float32, int32 and uint32 can be saved; convert "
            "them"
        )
    return _num_bytes(state) / sum(leaf.size for leaf in jax.tree.leaves(params))


def adamw(
    learning_rate: Any,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    weight_decay_mask: Mask,
) -> optax.GradientTransformation:
    """Returns AdamW (Loshchilov and Hutter 2019)."""
    return optax.adamw(
        learning_rate, b1, b2, eps, weight_decay=weight_decay, mask=weight_decay_mask
    )


def lion(
    learning_rate: Any, *, b1: float, b2: float, weight_decay: float, weight_decay_mask: Mask
) -> optax.GradientTransformation:
    """Returns Lion (Chen et al. 2023)."""
    return optax.lion(learning_rate, b1, b2, weight_decay=weight_decay, mask=weight_decay_mask)


def muon(
    learning_rate: Any,
    *,
    b1: float,
    b2: float,
    eps: float,
    momentum: float,
    newton_schulz_steps: int,
    consistent_rms: float | Literal["none"],
    weight_decay: float,
    weight_decay_mask: Mask,
) -> optax.GradientTransformation:
    """Returns Muon (Jordan et al. 2024) for the kernels of layers, and AdamW with Nesterov momentum for the rest."""
    return optax.chain(
        # Learning rate and weight decay follow, since the AdamW inside takes no mask.
        optax.contrib.muon(
            None,  # pyright: ignore[reportArgumentType]
            ns_steps=newton_schulz_steps,
            beta=momentum,
            eps=eps,
            adam_b1=b1,
            adam_b2=b2,
            consistent_rms=None if consistent_rms == "none" else consistent_rms,
            muon_weight_dimension_numbers=matrix_axes,  # pyright: ignore[reportArgumentType]
        ),
        optax.add_decayed_weights(weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(learning_rate),
    )


OPTIMIZERS: dict[str, Factory] = {"adamw": adamw, "lion": lion, "muon": muon}


def matrix_axes(params: Params) -> Any:
    """Returns which axes of each parameter Muon takes as the inputs and the outputs of a matrix; None: AdamW's.

    Only the kernels of layers are matrices for Muon. Their first axis, over layers, is in neither of the two, so that
    each layer's matrix is orthogonalized by itself. Optax would take every array of two axes, which are the embeddings
    and the stacked scales of layernorms, and no kernel. The heads of the attention are part of the outputs, but for the
    projection "out", of whose inputs they are part.
    """

    def axes(path: str, weight: Any) -> optax.contrib.MuonDimensionNumbers | None:
        if not re.fullmatch(r"blocks/(.*/)?kernel", path) or weight.ndim < 3:
            return None
        last = weight.ndim - 1
        if path.endswith("attn/out/kernel"):
            return optax.contrib.MuonDimensionNumbers(tuple(range(1, last)), (last,))
        return optax.contrib.MuonDimensionNumbers((1,), tuple(range(2, last + 1)))

    return _map_with_path(axes, params)


def parameter_paths(params: Params) -> list[str]:
    """Returns the path of each parameter, such as ``blocks/mlp/up/kernel``."""
    return jax.tree.leaves(_map_with_path(lambda path, _: path, params))


def _map_with_path(function: Callable[[str, Any], Any], params: Params) -> Any:
    return jax.tree.map_with_path(
        lambda keys, leaf: function(jax.tree_util.keystr(keys, simple=True, separator="/"), leaf),
        params,
    )


def _mask(patterns: tuple[str, ...]) -> Mask:
    """Returns the mask of the parameters whose weights decay; None if those of all do."""
    if not patterns:
        return None
    return lambda params: _map_with_path(
        lambda path, _: any(re.search(pattern, path) for pattern in patterns), params
    )


def _multiply(multipliers: tuple[tuple[str, float], ...]) -> optax.GradientTransformation:
    """Returns a transformation that multiplies the update of each parameter, as its learning rate does."""

    def factor(path: str) -> float:
        return next((number for pattern, number in multipliers if re.search(pattern, path)), 1.0)

    return optax.stateless(
        lambda updates, params: _map_with_path(lambda path, u: factor(path) * u, updates)  # pyright: ignore
    )


def _factory(optimizer_config: config.Optimizer) -> Factory:
    name = optimizer_config.name
    if not user_files.is_in_file(name):
        return OPTIMIZERS[name]
    return user_files.load("optimizer.name", name, optimizer_config.source)


def _keywords(factory: Factory) -> list[str]:
    """Returns the names of the keyword-only parameters of a function."""
    kinds = inspect.signature(factory).parameters.values()
    return [parameter.name for parameter in kinds if parameter.kind is parameter.KEYWORD_ONLY]


def _check_signature(optimizer_config: config.Optimizer, factory: Factory) -> None:
    """Raises UserError if a user's function reads fields that do not exist, or ignores one that is set."""
    field = f"optimizer.name={optimizer_config.name}"
    if not callable(factory):
        raise UserError(f"{field}: is no function; name one that takes the learning rate")
    readable = dict.fromkeys(name for read in config.OPTIMIZER_PARAMETERS.values() for name in read)
    keywords = _keywords(factory)
    if unknown := [name for name in keywords if name not in readable]:
        raise UserError(
            f"{field}: keyword-only parameters are fields of the section optimizer, one of {', '.join(readable)}, but "
            f"there is no {', '.join(unknown)}; give it a value in the function"
        )
    default = config.Optimizer()
    for name in readable:
        value = getattr(optimizer_config, name)
        if name not in keywords and value != getattr(default, name):
            raise UserError(
                f"optimizer.{name}={value!r}: is not read by optimizer.name={optimizer_config.name}; leave it out, or "
                f"make it a keyword-only parameter of the function"
            )


def _check_patterns(optimizer_config: config.Optimizer, paths: list[str]) -> None:
    """Raises UserError if a regular expression is found in no path of a parameter."""
    patterns = {
        "weight_decay_mask": optimizer_config.weight_decay_mask,
        "learning_rate_multipliers": [p for p, _ in optimizer_config.learning_rate_multipliers],
    }
    for name, listed in patterns.items():
        for pattern in listed:
            if not any(re.search(pattern, path) for path in paths):
                raise UserError(
                    f"optimizer.{name}: {pattern!r} is found in the path of no parameter; the paths are "
                    f"{', '.join(paths)}"
                )


def _shapes(tree: Any) -> Any:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
