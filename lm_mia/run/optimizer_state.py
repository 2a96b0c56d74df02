"""Checks optimizers and measures their state before any work, by shapes alone, in a process that may load JAX."""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Sequence

from lm_mia.config import Config, Model, Optimizer

_STATE_BYTES = {"adamw": 8.0, "lion": 4.0}
"""Bytes per parameter of optimizers that keep the same for every parameter: two moments in float32, and one."""

_Case = tuple[Optimizer, Model, int, int]
_measured: dict[_Case, float] = {}


def check(configs: Sequence[Config]) -> None:
    """Raises UserError if an optimizer cannot train the models of its config.

    Only users' functions and regular expressions may be wrong after a config is validated. Without these, and if the
    state is known, no process is started, which takes seconds.
    """
    _measure(
        [
            c
            for c in configs
            if c.optimizer.name not in _STATE_BYTES
            or c.optimizer.weight_decay_mask
            or c.optimizer.learning_rate_multipliers
        ]
    )


def state_bytes(c: Config) -> float:
    """Returns the bytes of the optimizer's state per parameter of the model; raises UserError as `check`."""
    name = c.optimizer.name
    if name not in _STATE_BYTES:
        _measure([c])
    return _STATE_BYTES[name] if name in _STATE_BYTES else _measured[_case(c)]


def _measure(configs: Sequence[Config]) -> None:
    """Measures the states of optimizers that are not measured yet, all in one process."""
    cases = [case for case in dict.fromkeys(map(_case, configs)) if case not in _measured]
    if not cases:
        return
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as process:
        _measured.update(process.submit(_measure_with_jax, cases).result())


def _measure_with_jax(cases: Sequence[_Case]) -> dict[_Case, float]:
    """Returns the bytes per parameter of each case. It loads JAX, so it needs a process of its own."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # users' functions may create arrays
    from lm_mia.model.transformer import ModelConfig, TransformerLM
    from lm_mia.train.optimizer import check_optimizer

    return {
        case: check_optimizer(case[0], TransformerLM(ModelConfig.from_settings(*case[1:])))
        for case in cases
    }


def _case(c: Config) -> _Case:
    return c.optimizer, c.model, c.tokenizer.vocab_size, c.population.length_tokens
