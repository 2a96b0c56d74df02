"""Computes the loss and the statistics of every sample under a model, in one forward pass over packed sequences.

Values per token are copied from the devices and reduced to values per sample on the host, in float64 and in fixed
order. The number of packed sequences per call, packing and the number of hosts change a loss only by rounding: by at
most 2e-6 of its value if activations are float32, and by at most 5e-3 if they are bfloat16
(tests/score/scorer_test.py).

C: samples of a window, W: tokens of these samples, B: packed sequences of a window or a call, L: tokens of a packed
sequence, S: requested samples.
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
from lm_mia.model.transformer import Params, TransformerLM
from lm_mia.train import checkpoint, sharding
from lm_mia.train.batching import Window, packed_windows

_CPU_TOKENS, _DEVICE_TOKENS = 1024, 65_536  # tokens per call and device
_TOKEN_STATISTICS = {
    "target_logit": "target_logit",
    "greedy_match": "greedy",
    "min_k_plus_plus": "z_score",
}  # the value of `losses.token_statistics` from which each statistic is computed, if not from the loss

ScoreFunction = Callable[..., dict[str, jax.Array]]


def choose_micro_batch_size(requested: int, length_tokens: int, platform: str) -> int:
    """Returns the number of packed sequences per call and device: as requested, or what is fastest if that is 0.

    Args:
      requested: ``score.micro_batch_size`` of a config.
      length_tokens: L.
      platform: "cpu", "gpu" or "tpu".
    """
    tokens = _CPU_TOKENS if platform == "cpu" else _DEVICE_TOKENS
    return requested or max(tokens // length_tokens, 1)


@functools.cache
def make_score(
    model: TransformerLM, chunk_tokens: int, names: frozenset[str], mesh: Mesh
) -> ScoreFunction:
    """Returns the compiled function ``(params, x_BxL, segments_BxL, positions_BxL) -> {name: value_BxL}``, float32.

    Args:
      model: the model.
      chunk_tokens: number of tokens whose logits are in memory at once.
      names: names of `losses.token_statistics`.
      mesh: this process's devices, each of which has all parameters and a part of the packed sequences.
    """

    def score(
        params: Params, x_BxL: jax.Array, segments_BxL: jax.Array, positions_BxL: jax.Array
    ) -> dict[str, jax.Array]:
        h_BxLxD: Any = model.apply(
            {"params": params}, x_BxL, segments_BxL, positions_BxL, method="hidden"
        )
        embedding_VxD = model.output_embedding(params)
        return losses.token_statistics(h_BxLxD, embedding_VxD, x_BxL, names, chunk_tokens)

    replicated, split = PartitionSpec(), PartitionSpec(sharding.AXIS)
    return jax.jit(
        jax.shard_map(
            score,
            mesh=mesh,
            in_specs=(replicated, split, split, split),
            out_specs=split,
            check_vma=False,
        ),
        compiler_options=sharding.compiler_options(mesh),
    )


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores samples under any model of a recipe; compiled functions and lowercase samples are cached."""

    model: TransformerLM
    population: Population
    chunk_tokens: int
    """Number of tokens whose logits are in memory at once."""
    micro_batch_size: int
    """Number of packed sequences per call and device."""
    mesh: Mesh
    """The devices of this process."""

    def score(
        self,
        params: Params,
        statistics: Collection[str],
        low: int,
        high: int,
        progress: Callable[[float], None] = lambda share: None,
    ) -> dict[str, np.ndarray]:
        """Returns the loss and other statistics of the samples from low to high (exclusive), ``{name: value_C}``.

        All come from one forward pass, except "lowercase_loss", which needs another one.

        Args:
          params: as `restore_params` returns them.
          statistics: names of `config.Score.statistics`; "loss" is always included.
          low: the first sample, preferably a multiple of `batching.WINDOW_SAMPLES`.
          high: the sample after the last one.
          progress: called with the fraction of the work that is done.

        Returns:
          float32 arrays.
        """
        # In the same order in all processes of a job, which exchange the values one after another.
        names = ["loss", *(name for name in statistics if name != "lowercase_loss")]
        num_passes = 2 if "lowercase_loss" in statistics else 1
        values = self._score(
            params, self.population, names, low, high, lambda share: progress(share / num_passes)
        )
        if num_passes == 2:
            lowercase_values = self._score(
                params,
                self._lowercase,
                ["loss"],
                low,
                high,
                lambda share: progress((1 + share) / num_passes),
            )
            values["lowercase_loss"] = lowercase_values["loss"]
        return values

    def token_log_probs(self, params: Params, ids_S: Sequence[int]) -> np.ndarray:
        """Returns the log-probability of every token of some samples, given the tokens before it.

        Args:
          params: as `restore_params` returns them.
          ids_S: ids of samples.

        Returns:
          log_prob_W, float32, nats, sample after sample; NaN for the first token of a sample, which is not predicted.
        """
        samples = take_samples(self.population, ids_S)
        parts = self.token_statistics(params, samples, ["loss"], 0, len(samples))
        log_prob_W = np.concatenate([-value_W["loss"] for _, value_W in parts])
        log_prob_W[samples.offsets_N1[:-1]] = np.nan
        return log_prob_W

    def _score(
        self,
        params: Params,
        population: Population,
        names: list[str],
        low: int,
        high: int,
        progress: Callable[[float], None],
    ) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.float32)] for name in names}
        for window, value_W in self.token_statistics(params, population, names, low, high):
            for name, value_C in sample_statistics(window.length_C, value_W, names).items():
                parts[name].append(value_C)
            progress((window.first_id + len(window.length_C) - low) / (high - low))
        return {name: np.concatenate(values) for name, values in parts.items()}

    def token_statistics(
        self,
        params: Params,
        population: Population,
        names: Collection[str],
        low: int,
        high: int,
    ) -> Iterator[tuple[Window, dict[str, np.ndarray]]]:
        """Yields windows of samples, and ``{name: value_W}`` of all their tokens, sample after sample.

        While the devices compute a window, the next one is packed and the previous one is reduced.

        Args:
          params: as `restore_params` returns them.
          population: the samples.
          names: names of statistics; the values of `losses.token_statistics` that they need are computed.
          low: the first sample.
          high: the sample after the last one.
        """
        needed = frozenset(_TOKEN_STATISTICS[name] for name in names if name in _TOKEN_STATISTICS)
        score = make_score(self.model, self.chunk_tokens, needed, self.mesh)
        B = self.micro_batch_size * self.mesh.size
        split = NamedSharding(self.mesh, PartitionSpec(sharding.AXIS))

        def start(window: Window) -> list[dict[str, jax.Array]]:
            arrays = window.x_BxL, window.segment_BxL, window.position_BxL
            return [
                score(params, *(jax.device_put(array[i : i + B], split) for array in arrays))
                for i in range(0, len(window.x_BxL), B)
            ]

        def finish(window: Window, calls: list[dict[str, jax.Array]]) -> Any:
            value_BxL = jax.tree.map(lambda *parts: np.concatenate(parts), *jax.device_get(calls))
            return window, {
                name: window.in_sample_order(value) for name, value in value_BxL.items()
            }

        previous = None
        for window in packed_windows(population, low, high, B):
            calls = start(window)
            if previous:
                yield finish(*previous)
            previous = window, calls
        if previous:
            yield finish(*previous)

    @functools.cached_property
    def _lowercase(self) -> Population:
        return lowercase(self.population)


def sample_statistics(
    length_C: np.ndarray, value_W: dict[str, np.ndarray], names: Collection[str]
) -> dict[str, np.ndarray]:
    """Returns ``{name: value_C}``, float32: statistics of samples, from values of their tokens; sums are float64.

    Args:
      length_C: number of tokens of each sample, at least 2. The first token is not predicted and not used.
      value_W: ``{name of losses.token_statistics: value_W}`` of all tokens, sample after sample.
      names: "loss" (mean, nats per token), "summed_loss" (nats), "target_logit" (mean), "greedy_match" (fraction of
        tokens that were the most likely ones), "min_k" (nats), "min_k_plus_plus".
    """
    count_C = length_C - 1
    is_predicted_W = np.ones(int(length_C.sum()), bool)
    is_predicted_W[np.cumsum(length_C) - length_C] = False
    predicted = {name: value[is_predicted_W] for name, value in value_W.items()}
    begin_C = np.cumsum(count_C) - count_C

    def total(name: str) -> np.ndarray:
        return np.add.reduceat(predicted[name], begin_C, dtype=np.float64)

    compute = {
        "loss": lambda: total("loss") / count_C,
        "summed_loss": lambda: total("loss"),
        "target_logit": lambda: total("target_logit") / count_C,
        "greedy_match": lambda: total("greedy") / count_C,
        "min_k": lambda: stats.min_k(-predicted["loss"], count_C),
        "min_k_plus_plus": lambda: stats.min_k(predicted["z_score"], count_C),
    }
    return {name: compute[name]().astype(np.float32) for name in names}


def restore_params(
    seeds: subsets.ModelSeeds,
    step: int,
    model: TransformerLM,
    folder: Path,
    mesh: Mesh,
    local_mesh: Mesh,
) -> Params:
    """Restores the parameters of a trained model; each of this process's devices holds all of them.

    Args:
      seeds: the seeds of the model, for messages.
      step: the number of updates, of a score point or of the whole training.
      model: the model.
      folder: the folder of its checkpoints.
      mesh: all devices of the job, whose processes restore together.
      local_mesh: the devices of this process.

    Raises:
      UserError: if there is no checkpoint of that step, or if it is damaged.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    like = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=replicated),
        transformer.abstract_params(model),
    )
    with checkpoint.manager(folder) as checkpoints:
        if step not in (saved_steps := checkpoints.all_steps()):
            if max(saved_steps, default=0) > step:
                raise UserError(
                    f"model {seeds}: the checkpoint of step {step} is lost; delete {folder} and run `lm-mia run` "
                    "again, which trains the model from the start"
                )
            raise UserError(
                f"model {seeds}: not trained yet, there is no checkpoint of step {step}; run `lm-mia train` first"
            )
        params = checkpoint.restore_params(checkpoints, step, like)
    return place_params(jax.tree.map(lambda leaf: leaf.addressable_data(0), params), local_mesh)


def place_params(params: Any, local_mesh: Mesh) -> Params:
    """Returns the parameters, each of which is on all of this process's devices."""
    return jax.device_put(params, NamedSharding(local_mesh, PartitionSpec()))
