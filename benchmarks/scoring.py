"""Compares scoring of a population with NanoDO's evaluator and PyTorch: samples/s and FLOPs, as Markdown tables.

    python -m benchmarks scoring [SECTION ...] [--nanodo PATH] [--transformers]

Sections, all by default: speed, flops. Samples have C4-like lengths (`c4_like`): 400 of 1,024 tokens on average. In
"speed", both numbers are --scale times smaller, so that it takes minutes on 2 CPU cores (--scale 1: the real ones).
All methods score the same samples with the same parameters, in turn, each with all cores. The benchmark fails unless
the losses of all samples agree with ours.

Ours is the scorer of `lm-mia score`, created as a worker does. Its time includes packing.

--nanodo: batches padded to L as in NanoDO's evaluator, with its own model and loss, from a checkout (see
`nanodo_peer`). --transformers: GPT-2 of Hugging Face transformers on PyTorch, with our parameters (see
`transformers_peer`), in the loops that attack code commonly uses: one sample at a time, untuned and tuned, and batches
padded to their longest sample. Batch sizes are tuned first for each method and model: doubled from 1 until two in a row
are slower than the best one, which is then used.

Goal: 3 times the samples/s of the others. One sample at a time wastes no FLOPs (see "flops"), so there the only gain is
in using the device better. `taskset -c 0` before the command restricts all methods to one core.
"""

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import c4_like
import jax
import nanodo_peer
import numpy as np
import steps
import transformers_peer

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import flops, kinds, transformer
from lm_mia.run import backend
from lm_mia.score.scorer import Scorer, choose_micro_batch_size, make_score
from lm_mia.train import batching, execution, sharding

Table = tuple[Sequence[str], Iterable[Sequence[str]]]
Losses = Callable[[int, int], np.ndarray]
"""(samples, batch size) -> loss_N, in nats per token, of the first samples of a population."""

PACKED, THEIRS = "packed", "NanoDO padded"
LOOPS = {
    "transformers as it comes": "as_it_comes",
    (ONE_BY_ONE := "transformers one by one"): "one_by_one",
    (BATCHES := "transformers padded"): "padded",
}
_MAX_BATCH = 1024  # samples per batch
_TUNING_SAMPLES = 64  # samples on which each batch size is tried
_TORCH_BATCH = 8  # samples per padded batch in the FLOPs of torch


def make_scorer(
    population: Population, model_config: transformer.ModelConfig, call_sequences: int = 0
) -> Scorer:
    """Returns our scorer on the first device, created as a worker does.

    Args:
      population: the samples.
      model_config: config of the model.
      call_sequences: packed sequences per call; 0: chosen as a worker does.
    """
    device = jax.local_devices()[0]
    plan = execution.plan_execution(
        config.Compute(),
        model_config,
        config.Train().batch_size,
        device.platform,
        backend.memory_bytes(),
    )
    call_sequences = choose_micro_batch_size(
        call_sequences, model_config.length_tokens, device.platform
    )
    mesh = sharding.make_mesh([device])
    model = transformer.TransformerLM(plan.model_config)
    return Scorer(model, population, plan.chunk_tokens, call_sequences, mesh)


def scoring_methods(
    population: Population, model_config: transformer.ModelConfig, c: argparse.Namespace
) -> tuple[Scorer, dict[str, Losses]]:
    """Returns our scorer, and all methods of scoring by name, ours first; all with the same parameters."""
    scorer = make_scorer(population, model_config, c.micro_batch_size)
    params = transformer.init_params(scorer.model, jax.random.key(0))
    methods: dict[str, Losses] = {PACKED: lambda N, _: scorer.score(params, [], 0, N)["loss"]}
    if c.nanodo:
        bound = functools.partial(
            _nanodo(c.nanodo, model_config), nanodo_peer.to_nanodo_params(params)
        )
        methods[THEIRS] = functools.partial(padded, bound, population)
    if c.transformers:
        samples = [population.sample(i) for i in range(len(population))]
        gpt2 = transformers_peer.scorer(model_config, params, samples)
        methods |= {name: functools.partial(gpt2, loop) for name, loop in LOOPS.items()}
    return scorer, methods


def _nanodo(path: Path, model_config: transformer.ModelConfig) -> Any:
    nanodo_settings = nanodo_peer.settings(model_config, config.Optimizer(), 1, 1)
    return nanodo_peer.sample_losses(nanodo_peer.load(path), nanodo_settings)


def padded(
    losses: Callable[[np.ndarray], jax.Array], population: Population, samples: int, batch_size: int
) -> np.ndarray:
    """Returns loss_N of the first samples, in batches padded to L; a batch is computed while the one before it is
    read."""
    parts: list[np.ndarray] = []
    previous = None
    for low in range(0, samples, batch_size):
        ids = np.arange(low, low + batch_size) % len(population)  # the last batch is filled up
        current = losses(population.pad(ids))
        if previous is not None:
            parts.append(np.asarray(previous))
        previous = current
    return np.concatenate([*parts, np.asarray(previous)])[:samples]


def best_batch(losses: Losses, samples: int) -> tuple[int, dict[int, float]]:
    """Returns the batch size with the most samples/s, and the samples/s of each batch size tried: 1, 2, 4, ...

    Stops at the first batch size that does not fit into memory, or at the second in a row that is slower than the best.
    Each is timed twice, after a batch to warm up, on `_TUNING_SAMPLES` samples or on one batch if that is more.
    """
    best, rates = 1, dict[int, float]()
    for B in (2**k for k in range(min(samples, _MAX_BATCH).bit_length())):
        try:
            losses(B, B)
            count = max(B, min(samples, _TUNING_SAMPLES))
            rates[B] = count / min(_seconds(losses, count, B) for _ in range(2))
        except RuntimeError as error:  # JAX and torch have no common error for this
            if not rates or "memory" not in str(error):
                raise
            break
        best = max(rates, key=lambda B: rates[B])
        if best <= B // 4:
            break
    return best, rates


def _seconds(losses: Losses, samples: int, batch_size: int) -> float:
    began = time.perf_counter()
    losses(samples, batch_size)
    return time.perf_counter() - began


def in_turn(
    run: dict[str, Callable[[], np.ndarray]], rounds: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the seconds of each method in each round, and its result in the first; the order rotates every round."""
    names = list(run)
    seconds, losses = {name: np.zeros(rounds) for name in names}, {}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            loss_N = run[name]()
            seconds[name][i] = time.perf_counter() - began
            losses.setdefault(name, loss_N)
    return seconds, losses


def speed(c: argparse.Namespace) -> Table:
    """Samples/s of scoring, run in turn: medians over rounds, and medians of the ratios in each round

    Tokens are those of samples, without padding. MFU counts useful FLOPs only, and is shown if the device's peak is
    known.
    """
    header = (
        "model",
        "L",
        "method",
        "per call",
        "samples/s",
        "tokens/s",
        "ours / this",
        "in rounds",
    )
    peak = flops.device_peak(jax.local_devices()[0].device_kind)

    def rows() -> Iterator[Sequence[str]]:
        for size in c.sizes:
            model_config = steps.sized_model_config(size, c.scale, c.dtype)
            N = c.samples or default_samples(size)
            population = c4_like.population(N, model_config.vocab_size, c.scale)
            length_N = population.lengths_N
            useful = flops.scoring(kinds.size(model_config), length_N.sum(), (length_N**2).sum())
            scorer, methods = scoring_methods(population, model_config, c)
            batch = dict.fromkeys(methods, 1)
            call = dict.fromkeys(methods, "1") | {PACKED: f"{scorer.micro_batch_size} sequences"}
            for name in [name for name in (THEIRS, BATCHES) if name in methods]:
                batch[name], rates = best_batch(methods[name], N)
                tried = ", ".join(f"{B}: {rate:.3g}" for B, rate in rates.items())
                print(f"{size}, {name}, samples/s by batch size: {tried}", file=sys.stderr)
                call[name] = f"{batch[name]} (best)"
            run = {
                name: functools.partial(losses, N, batch[name]) for name, losses in methods.items()
            }
            in_turn(run, 1)  # compiles
            seconds, loss = in_turn(run, c.rounds)
            for name in methods:
                difference = float(np.abs(loss[name] / loss[PACKED] - 1).max())
                if not difference < steps.ROUNDING[c.dtype]:
                    raise AssertionError(
                        f"{name}: losses differ from ours by up to {difference:.1g}"
                    )
                s = float(np.median(seconds[name]))
                ratio_T = seconds[name] / seconds[PACKED]
                cells = (f"{N / s:.1f}", f"{length_N.sum() / s:,.0f}", f"{np.median(ratio_T):.2f}")
                spread = f"{ratio_T.min():.2f} to {ratio_T.max():.2f}"
                cells += (spread, f"{useful / s / peak:.1%}" if peak else "--", f"{difference:.1g}")
                yield (size, str(model_config.length_tokens), name, call[name], *cells)

    return (*header, "MFU", "losses differ by"), rows()


def default_samples(size: str) -> int:
    """Returns the number of samples to score: a window of the population on accelerators, and fewer on CPUs."""
    if jax.local_devices()[0].platform != "cpu":
        return batching.WINDOW_SAMPLES
    return 512 if size == "small" else 128


def arithmetic(c: argparse.Namespace) -> Table:
    """FLOPs of scoring a sample, L = 1,024, V = 32,000, in units of 1e9

    JAX's as XLA counts them in the lowered program: those of one call, times the number of calls per window of the
    population, divided by the window's samples. PyTorch's as its own counter reports them (matrix products only), in
    padded batches of 8. Useful: matrix products over the tokens of samples, and attention to earlier tokens only.
    """
    names = (THEIRS,) * bool(c.nanodo) + (ONE_BY_ONE, BATCHES) * c.transformers
    header = ("model", PACKED, "useful", *(cell for n in names for cell in (n, f"{n} / packed")))

    def rows() -> Iterator[Sequence[str]]:
        length_N = c4_like.lengths(batching.WINDOW_SAMPLES)
        squares = (length_N.astype(np.float64) ** 2).mean()
        for size in ("10M", "85M", "302M"):
            model_config = steps.sized_model_config(size)
            ours = packed_flops(model_config, length_N, c.micro_batch_size)
            useful = flops.scoring(kinds.size(model_config), length_N.mean(), squares)
            peers = peer_flops(model_config, length_N, c)
            cells = (cell for name in names for cell in (peers[name] / 1e9, peers[name] / ours))
            yield (size, *(f"{x:,.2f}" for x in (ours / 1e9, useful / 1e9, *cells)))

    return header, rows()


def packed_flops(
    model_config: transformer.ModelConfig, length_N: np.ndarray, call_sequences: int = 0
) -> float:
    """Returns the FLOPs per sample of our scorer on one window of samples; all of the XLA attention is counted."""
    R = make_scorer(
        c4_like.population(0, model_config.vocab_size), model_config, call_sequences
    ).micro_batch_size
    L = model_config.length_tokens
    # XLA counts the body of a loop once, so there is no loop: neither over layers nor over chunks of tokens.
    model = transformer.TransformerLM(model_config)
    mesh = sharding.make_mesh(jax.local_devices()[:1])
    scorer: Any = make_score(model, R * L, frozenset(), mesh)
    params = jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))
    lowered = scorer.lower(params, *[jax.ShapeDtypeStruct((R, L), np.int32)] * 3)
    calls = -(-batching.plan_packing(length_N, L).num_sequences // R)
    return lowered.cost_analysis()["flops"] * calls / len(length_N)


def peer_flops(
    model_config: transformer.ModelConfig, length_N: np.ndarray, c: argparse.Namespace
) -> dict[str, float]:
    """Returns the FLOPs per sample of the other methods, by name."""
    flops_by_method = {}
    if c.nanodo:
        model = transformer.TransformerLM(model_config)
        params = jax.eval_shape(
            lambda: nanodo_peer.to_nanodo_params(transformer.init_params(model, jax.random.key(0)))
        )
        x_1xL = jax.ShapeDtypeStruct((1, model_config.length_tokens), np.int32)
        lowered = _nanodo(c.nanodo, model_config).lower(params, x_1xL)
        flops_by_method[THEIRS] = lowered.cost_analysis()["flops"]
    if c.transformers:
        N = len(length_N) // _TORCH_BATCH * _TORCH_BATCH
        longest = length_N[:N].reshape(-1, _TORCH_BATCH).max(1)
        both = transformers_peer.sample_flops(model_config, np.append(length_N, longest))
        flops_by_method[ONE_BY_ONE] = float(both[: len(length_N)].mean())
        flops_by_method[BATCHES] = float(both[len(length_N) :].mean())
    return flops_by_method


SECTIONS = {"speed": speed, "flops": arithmetic}


def main() -> None:
    """Prints one table per section."""
    c = _arguments()
    if c.transformers:
        # Torch needs part of the GPU's memory, of which JAX would take three quarters.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for name in c.sections or SECTIONS:
        title, _, notes = (SECTIONS[name].__doc__ or name).partition("\n\n")
        header, rows = SECTIONS[name](c)
        print(f"\n### {title}\n\n{' '.join(notes.split())}\n")
        print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
        for cells in rows:
            print(f"| {' | '.join(cells)} |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    add("--nanodo", type=Path, help="a checkout of google-deepmind/nanodo")
    add("--transformers", action="store_true", help="GPT-2 of transformers, on torch")
    add(
        "--sizes",
        type=lambda text: text.split(","),
        default=["small", "10M"],
        help="model sizes in speed",
    )
    add("--scale", type=int, default=4, help="in speed, 1,024 and 400 tokens are divided by this")
    add("--samples", type=int, help='samples in speed; default on a CPU: 512 for "small", else 128')
    add(
        "--dtype",
        choices=list(steps.ROUNDING),
        default="float32",
        help="type of activations in speed",
    )
    add(
        "--micro-batch-size",
        type=int,
        default=0,
        help="packed sequences per call of ours; 0: chosen as a worker does",
    )
    add("--rounds", type=int, default=7, help="rounds of speed, after one to warm up")
    c = parser.parse_args()
    if unknown := set(c.sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if unknown := set(c.sizes) - {"small", *config.MODEL_SIZES}:
        parser.error(f"--sizes: unknown sizes: {', '.join(sorted(unknown))}")
    if min(c.rounds, 1 if c.samples is None else c.samples, c.micro_batch_size + 1) < 1:
        parser.error("--rounds, --samples: must be 1 or more; --micro-batch-size: 0 or more")
    c4_like.check_scale(parser, c.scale)
    if c.nanodo:
        nanodo_peer.check(c.nanodo)
    if c.transformers:
        transformers_peer.check()
    return c


if __name__ == "__main__":
    main()
