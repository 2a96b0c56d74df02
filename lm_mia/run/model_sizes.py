"""Sizes of models, counted by shapes alone in a process that may load JAX, and checks of kinds and optimizers."""

import concurrent.futures
import dataclasses
import multiprocessing
import os
from collections.abc import Sequence

from lm_mia.config import Config, Model, Optimizer
from lm_mia.model import memory
from lm_mia.model.memory import ModelSize

_STATE_BYTES = {"adamw": 8.0, "lion": 4.0}
"""Bytes per parameter of optimizers that keep the same for every parameter: two moments in float32, and one."""

_Case = tuple[Model, Optimizer, int, int]
_counted: dict[_Case, ModelSize] = {}


def check(configs: Sequence[Config]) -> None:
    """Raises UserError if a kind of model cannot be built, or an optimizer cannot train the models of its config.

    Only users' files, kinds with settings of their own, and regular expressions may be wrong after a config is
    validated. Without these, and if the sizes are known, no process is started, which takes seconds.
    """
    _count(
        [
            c
            for c in configs
            if _known_size(c) is None
            or c.optimizer.weight_decay_mask
            or c.optimizer.learning_rate_multipliers
        ]
    )


def size(c: Config) -> ModelSize:
    """Returns what memory and FLOPs of the models of a config follow from; raises UserError as `check`."""
    known = _known_size(c)
    if known is None:
        _count([c])
        return _counted[_case(c)]
    return known


def _known_size(c: Config) -> ModelSize | None:
    """Returns the size of the default kind with a known optimizer, or one that was counted before; None for others."""
    m, name = c.model, c.optimizer.name
    if m.kind == "gpt" and name in _STATE_BYTES:
        numbers = *m.shape, c.tokenizer.vocab_size, c.population.length_tokens
        return dataclasses.replace(
            memory.gpt_size(*numbers, m.dtype), state_bytes=_STATE_BYTES[name]
        )
    return _counted.get(_case(c))


def _count(configs: Sequence[Config]) -> None:
    """Counts the sizes of models that are not counted yet, all in one process."""
    cases = [case for case in dict.fromkeys(map(_case, configs)) if case not in _counted]
    if not cases:
        return
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as process:
        _counted.update(process.submit(_count_with_jax, cases).result())


def _count_with_jax(cases: Sequence[_Case]) -> dict[_Case, ModelSize]:
    """Returns the size of each case. It loads JAX, so it needs a process of its own."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # users' functions may create arrays
    from lm_mia.model import kinds
    from lm_mia.model.transformer import ModelConfig
    from lm_mia.train.optimizer import check_optimizer

    sizes = {}
    for case in cases:
        model, optimizer, vocab_size, length_tokens = case
        model_config = ModelConfig.from_settings(model, vocab_size, length_tokens)
        state_bytes = check_optimizer(optimizer, kinds.build(model_config))
        sizes[case] = dataclasses.replace(kinds.size(model_config), state_bytes=state_bytes)
    return sizes


def _case(c: Config) -> _Case:
    return c.model, c.optimizer, c.tokenizer.vocab_size, c.population.length_tokens
