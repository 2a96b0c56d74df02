"""Scoring: loss and statistics of every sample of the population under a row, one forward pass over packed rows.

Values of tokens come back from the devices and are reduced to samples here, in float64 and always in the same order.
Rows a call, packing and the number of hosts move a loss by rounding alone: with activations of float32 by 2e-6 of its
value at most, with bfloat16 by 5e-3 (tests/score/scorer_test.py).

C: samples of a window, T: their tokens, W: rows of a window, R: rows of a call, L: tokens of a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lm_mia import stats
from lm_mia.data import subsets
from lm_mia.data.population import Population, lowercase, take_samples
from lm_mia.errors import UserError
from lm_mia.model import losses, transformer
from lm_mia.train import checkpoint, sharding
from lm_mia.train.batching import Window, packed_windows

_CPU_TOKENS, _DEVICE_TOKENS = 1024, 65_536  # of a call, on each device
_TOKEN_VALUES = {
    "target_logit": "target_logit",
    "greedy_match": "greedy",
    "min_k_plus_plus": "z_score",
}

Score = Callable[..., dict[str, jax.Array]]


def micro_batch_size(asked: int, length_tokens: int, platform: str) -> int:
    """Rows a call on a device: as many as asked for, or what did best on a platform ("cpu" or another), if 0."""
    return asked or max((_CPU_TOKENS if platform == "cpu" else _DEVICE_TOKENS) // length_tokens, 1)


@functools.cache
def make_score(
    shape: transformer.ModelConfig,
    way: transformer.Way,
    chunk_tokens: int,
    names: frozenset[str],
    mesh: Mesh,
) -> Score:
    """The compiled scorer: (params, x_RxL, segment_RxL, position_RxL) -> {name: value_RxL}, float32.

    Args:
      shape: of the model.
      way: how layers are computed.
      chunk_tokens: whose logits are held at once.
      names: of `losses.token_statistics`.
      mesh: this process's devices, each with whole parameters and its part of the rows.
    """

    def score(
        params: Any, x_RxL: jax.Array, segment_RxL: jax.Array, position_RxL: jax.Array
    ) -> Any:
        whole = params if way.scanned else transformer.unstacked(params)
        h_RxLxD = transformer.hidden(whole, x_RxL, segment_RxL, position_RxL, shape.dtype, way)
        return losses.token_statistics(h_RxLxD, params["embed_VxD"], x_RxL, names, chunk_tokens)

    split, whole = PartitionSpec(sharding.AXIS), PartitionSpec()
    return jax.jit(
        jax.shard_map(
            score,
            mesh=mesh,
            in_specs=(whole, split, split, split),
            out_specs=split,
            check_vma=False,
        )
    )


@dataclasses.dataclass(frozen=True)
class Scorer:
    """What a worker scores rows with: compiled scorers and the population in lower case, made on first use and kept."""

    model: transformer.ModelConfig
    population: Population
    way: transformer.Way
    chunk_tokens: int
    micro_batch_size: int
    """Rows a call on each device."""
    mesh: Mesh
    """This process's devices."""

    def values(
        self,
        params: transformer.Params,
        statistics: Collection[str],
        low: int,
        high: int,
        progress: Callable[[float], None] = lambda share: None,
    ) -> dict[str, np.ndarray]:
        """{name: value_C}, float32, of samples low to high (exclusive) under a row: "loss" and the statistics named.

        All but "lowercase_loss" come from one forward pass, and that from one more.

        Args:
          params: of `restore_params`.
          statistics: of `config.Score.statistics`.
          low, high: best multiples of `batching.WINDOW_SAMPLES`.
          progress: told which share of the samples is done.
        """
        # in one order in all processes of a job, which then exchange one after another
        names = ["loss", *(name for name in statistics if name != "lowercase_loss")]
        passes = 2 if "lowercase_loss" in statistics else 1
        found = self._samples(
            params, self.population, names, low, high, lambda share: progress(share / passes)
        )
        if passes == 2:
            of_lowercase = self._samples(
                params,
                self._lowercase,
                ["loss"],
                low,
                high,
                lambda share: progress((1 + share) / passes),
            )
            found["lowercase_loss"] = of_lowercase["loss"]
        return found

    def token_log_probs(self, params: transformer.Params, ids_S: Sequence[int]) -> np.ndarray:
        """log_prob_T, float32, nats: of every token of some samples, one after another, given those before it.

        NaN of the first token of each, which nothing predicts.
        """
        some = take_samples(self.population, ids_S)
        parts = self.tokens(params, some, ["loss"], 0, len(some))
        log_prob_T = np.concatenate([-value_T["loss"] for _, value_T in parts])
        log_prob_T[some.offsets_N1[:-1]] = np.nan
        return log_prob_T

    def _samples(
        self,
        params: transformer.Params,
        population: Population,
        names: list[str],
        low: int,
        high: int,
        progress: Callable[[float], None],
    ) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for window, value_T in self.tokens(params, population, names, low, high):
            for name, value_C in reduced(window.length_C, value_T, names).items():
                parts[name].append(value_C)
            progress((window.first_id + len(window.length_C) - low) / (high - low))
        empty = np.zeros(0, np.float32)
        return {name: np.concatenate([empty, *of]) for name, of in parts.items()}

    def tokens(
        self,
        params: transformer.Params,
        population: Population,
        names: Collection[str],
        low: int,
        high: int,
    ) -> Iterator[tuple[Window, dict[str, np.ndarray]]]:
        """Windows of samples, and {name of `losses.token_statistics`: value_T} of all their tokens, in their order.

        A window is packed, and the one before it reduced, while the devices are at work.
        """
        wanted = frozenset(_TOKEN_VALUES[name] for name in names if name in _TOKEN_VALUES)
        score = make_score(self.model, self.way, self.chunk_tokens, wanted, self.mesh)
        R = self.micro_batch_size * self.mesh.size
        split = NamedSharding(self.mesh, PartitionSpec(sharding.AXIS))

        def start(window: Window) -> list[dict[str, jax.Array]]:
            rows = window.x_WxL, window.segment_WxL, window.position_WxL
            return [
                score(params, *(jax.device_put(array[at : at + R], split) for array in rows))
                for at in range(0, len(window.x_WxL), R)
            ]

        def end(window: Window, calls: list[dict[str, jax.Array]]) -> Any:
            value_WxL = jax.tree.map(lambda *of: np.concatenate(of), *jax.device_get(calls))
            return window, {
                name: window.in_sample_order(value) for name, value in value_WxL.items()
            }

        before = None
        for window in packed_windows(population, low, high, R):
            calls = start(window)
            if before:
                yield end(*before)
            before = window, calls
        if before:
            yield end(*before)

    @functools.cached_property
    def _lowercase(self) -> Population:
        return lowercase(self.population)


def reduced(
    length_C: np.ndarray, value_T: dict[str, np.ndarray], names: Collection[str]
) -> dict[str, np.ndarray]:
    """{name: value_C}, float32: statistics of samples from values of their tokens, sums in float64.

    Args:
      length_C: tokens of each sample, 2 or more; the first is never predicted, and left out.
      value_T: {name of `losses.token_statistics`: values of all tokens, sample after sample}.
      names: "loss" (mean, nats a token), "summed_loss" (nats), "target_logit" (mean), "greedy_match" (share of the
        tokens that were the likeliest), "min_k" (nats), "min_k_plus_plus".
    """
    count_C = length_C - 1
    predicted_T = np.ones(int(length_C.sum()), bool)
    predicted_T[np.cumsum(length_C) - length_C] = False
    of = {name: value[predicted_T] for name, value in value_T.items()}
    begin_C = np.cumsum(count_C) - count_C

    def total(name: str) -> np.ndarray:
        return np.add.reduceat(of[name], begin_C, dtype=np.float64)

    make = {
        "loss": lambda: total("loss") / count_C,
        "summed_loss": lambda: total("loss"),
        "target_logit": lambda: total("target_logit") / count_C,
        "greedy_match": lambda: total("greedy") / count_C,
        "min_k": lambda: stats.min_k(-of["loss"], count_C),
        "min_k_plus_plus": lambda: stats.min_k(of["z_score"], count_C),
    }
    return {name: make[name]().astype(np.float32) for name in names}


def restore_params(
    row: subsets.ModelSeeds,
    step: int,
    shape: transformer.ModelConfig,
    folder: Path,
    mesh: Mesh,
    local: Mesh,
) -> transformer.Params:
    """Parameters of a row after so many updates, at a score point or its end; UserError if they are not there.

    Whole on each of this process's devices, however many they were trained on.

    Args:
      row: for messages.
      step: of the state.
      shape: of the model.
      folder: of the row's states.
      mesh: all devices of the job, which restore together.
      local: this process's.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    shapes: Any = jax.eval_shape(lambda: transformer.init(jax.random.key(0), shape))
    like = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=whole), shapes)
    with checkpoint.manager(folder) as checkpoints:
        if step not in (there := checkpoints.all_steps()):
            if max(there, default=0) > step:
                raise UserError(
                    f"model {row}: its state after step {step} is lost; delete {folder} and run `lm-mia run` again, "
                    "which trains the row anew"
                )
            raise UserError(
                f"model {row}: not trained yet; run `lm-mia train` first (its state after step {step} is not there)"
            )
        params = checkpoint.restore(checkpoints, step, {"params": like})["params"]
    here = NamedSharding(local, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.device_put(leaf.addressable_data(0), here), params)
