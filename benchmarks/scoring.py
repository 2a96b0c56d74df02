"""Scoring: samples/s and FLOPs of one pass over a population, beside NanoDO's evaluator and PyTorch; Markdown tables.

    python benchmarks/scoring.py [SECTION ...] [--nanodo PATH] [--transformers]

Sections, all by default: speed, flops. Samples have C4-like lengths (`c4_like`): 400 of 1,024 tokens on
average; in "speed" both are --scale times smaller, so that it takes minutes on 2 CPU cores (--scale 1
for the real ones). All ways score the same samples with the same parameters, in turn, each with all
cores. The losses of all samples must agree with ours, or it fails.

Ours is the scorer of `lm-mia score`, as a worker makes it; it packs its rows within the time.

--nanodo: batches padded to L, as NanoDO's evaluator has them, by its own model and loss, from a checkout
(see `nanodo_peer`). --transformers: GPT-2 of Hugging Face transformers on PyTorch, with our parameters
(see `transformers_peer`), by the loops that attacks are written with: a sample at a time, as it comes
and tuned, and batches padded to their longest sample. Batch sizes are tuned first, for each way and
model: doubled from 1 until two in a row are slower than the best one, which is then taken.

Aim: 3 times the samples/s of the others. A sample at a time wastes no FLOPs (see "flops"), so there it
is a matter of keeping a device busy. `taskset -c 0` before the command gives all ways one core.
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
from lm_mia.model import flops, transformer
from lm_mia.run import backend
from lm_mia.score.scorer import Scorer, choose_micro_batch_size, make_score
from lm_mia.train import batching, execution, sharding

Table = tuple[Sequence[str], Iterable[Sequence[str]]]
Losses = Callable[[int, int], np.ndarray]
"""(samples, batch size) -> loss_N, nats a token, of the first so many samples of a population."""

PACKED, THEIRS = "packed", "NanoDO padded"
LOOPS = {
    "transformers as it comes": "as_it_comes",
    (ONE_BY_ONE := "transformers one by one"): "one_by_one",
    (BATCHES := "transformers padded"): "padded",
}
_MOST = 1024  # samples a batch
_TUNED = 64  # samples that every batch size is tried on
_TORCH_BATCH = 8  # of its FLOPs: of padding to the longest of so many
_ROUNDING = {"float32": 1e-5, "bfloat16": 1e-2}  # relative, of the loss of a sample


def ours(population: Population, shape: transformer.ModelConfig, rows_per_call: int = 0) -> Scorer:
    """Our scorer on the first device, as a worker makes it; rows a call as it chooses, if 0."""
    device = jax.local_devices()[0]
    choice = execution.plan_execution(
        config.Compute(),
        shape,
        config.Train().batch_size,
        device.platform,
        backend.memory_bytes(),
    )
    rows = choose_micro_batch_size(rows_per_call, shape.length_tokens, device.platform)
    mesh = sharding.make_mesh([device])
    model = transformer.TransformerLM(choice.model_config)
    return Scorer(model, population, choice.chunk_tokens, rows, mesh)


def ways(
    population: Population, shape: transformer.ModelConfig, c: argparse.Namespace
) -> tuple[Scorer, dict[str, Losses]]:
    """Our scorer, and all ways to score a population by their names, ours first; all of the same parameters."""
    scorer = ours(population, shape, c.micro_batch_size)
    params = transformer.init_params(scorer.model, jax.random.key(0))
    found: dict[str, Losses] = {PACKED: lambda N, _: scorer.score(params, [], 0, N)["loss"]}
    if c.nanodo:
        bound = functools.partial(_nanodo(c.nanodo, shape), nanodo_peer.theirs(params))
        found[THEIRS] = functools.partial(padded, bound, population)
    if c.transformers:
        samples = [population.sample(i) for i in range(len(population))]
        gpt2 = transformers_peer.scorer(shape, params, samples)
        found |= {name: functools.partial(gpt2, loop) for name, loop in LOOPS.items()}
    return scorer, found


def _nanodo(path: Path, shape: transformer.ModelConfig) -> Any:
    given = nanodo_peer.settings(shape, config.Optimizer(), 1, 1)
    return nanodo_peer.sample_losses(nanodo_peer.load(path), given)


def padded(
    losses: Callable[[np.ndarray], jax.Array], population: Population, samples: int, batch_size: int
) -> np.ndarray:
    """loss_N of the first samples, in batches padded to L; one is under way while the one before it is read."""
    found: list[np.ndarray] = []
    before = None
    for low in range(0, samples, batch_size):
        ids = np.arange(low, low + batch_size) % len(population)  # the last one is filled
        now = losses(population.pad(ids))
        if before is not None:
            found.append(np.asarray(before))
        before = now
    return np.concatenate([*found, np.asarray(before)])[:samples]


def best_batch(losses: Losses, samples: int) -> tuple[int, dict[int, float]]:
    """The batch size of most samples/s, and the samples/s of each one tried: 1, 2, 4, ...

    Up to the first that does not fit memory, or the second in a row that is slower than the best; each twice on
    `_TUNED` samples, or on a batch if that is more, after a batch to warm up.
    """
    best, rates = 1, dict[int, float]()
    for B in (2**k for k in range(min(samples, _MOST).bit_length())):
        try:
            losses(B, B)
            count = max(B, min(samples, _TUNED))
            rates[B] = count / min(_seconds(losses, count, B) for _ in range(2))
        except RuntimeError as error:  # JAX and torch have no word for it in common
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
    """Seconds of every way in each round, and what it found in the first; who begins a round changes."""
    names = list(run)
    seconds, found = {name: np.zeros(rounds) for name in names}, {}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            loss_N = run[name]()
            seconds[name][i] = time.perf_counter() - began
            found.setdefault(name, loss_N)
    return seconds, found


def speed(c: argparse.Namespace) -> Table:
    """Useful samples/s of scoring: medians of rounds in turn, medians of the ratios of each round

    Tokens are those of samples, without padding. MFU is of useful FLOPs, where the device's peak is known.
    """
    header = ("model", "L", "way", "a call", "samples/s", "tokens/s", "ours / this", "in rounds")
    peak = flops.device_peak(jax.local_devices()[0].device_kind)

    def rows() -> Iterator[Sequence[str]]:
        for size in c.sizes:
            shape = steps.shape_of(size, c.scale, c.dtype)
            N = c.samples or _samples(size)
            population = c4_like.population(N, shape.vocab_size, c.scale)
            length_N = population.lengths_N
            sizes = shape.layers, shape.width, shape.vocab_size
            useful = flops.scoring(*sizes, length_N.sum(), (length_N**2).sum())
            scorer, found = ways(population, shape, c)
            batch = dict.fromkeys(found, 1)
            call = dict.fromkeys(found, "1") | {PACKED: f"{scorer.micro_batch_size} rows"}
            for name in [name for name in (THEIRS, BATCHES) if name in found]:
                batch[name], rates = best_batch(found[name], N)
                tried = ", ".join(f"{B}: {rate:.3g}" for B, rate in rates.items())
                print(f"{size}, {name}, samples/s by batch size: {tried}", file=sys.stderr)
                call[name] = f"{batch[name]} (best)"
            run = {name: functools.partial(of, N, batch[name]) for name, of in found.items()}
            in_turn(run, 1)  # compiles
            seconds, loss = in_turn(run, c.rounds)
            for name in found:
                apart = float(np.abs(loss[name] / loss[PACKED] - 1).max())
                if not apart < _ROUNDING[c.dtype]:
                    raise AssertionError(f"{name}: losses differ from ours by up to {apart:.1g}")
                s = float(np.median(seconds[name]))
                ratio_T = seconds[name] / seconds[PACKED]
                cells = (f"{N / s:.1f}", f"{length_N.sum() / s:,.0f}", f"{np.median(ratio_T):.2f}")
                spread = f"{ratio_T.min():.2f} to {ratio_T.max():.2f}"
                cells += (spread, f"{useful / s / peak:.1%}" if peak else "--", f"{apart:.1g}")
                yield (size, str(shape.length_tokens), name, call[name], *cells)

    return (*header, "MFU", "losses differ by"), rows()


def _samples(size: str) -> int:
    if jax.local_devices()[0].platform != "cpu":
        return batching.WINDOW_SAMPLES
    return 512 if size == "small" else 128


def arithmetic(c: argparse.Namespace) -> Table:
    """FLOPs of scoring a sample, L = 1,024, V = 32,000, in units of 1e9

    JAX's as XLA counts them in the lowered program: of one call, times the calls that a window of the population makes,
    over its samples. PyTorch's as its own counter says (matrix products alone), padded in batches of 8. Useful: matrix
    products over the tokens of samples alone, attention to earlier tokens alone.
    """
    names = (THEIRS,) * bool(c.nanodo) + (ONE_BY_ONE, BATCHES) * c.transformers
    header = ("model", PACKED, "useful", *(cell for n in names for cell in (n, f"{n} / packed")))

    def rows() -> Iterator[Sequence[str]]:
        length_N = c4_like.lengths(batching.WINDOW_SAMPLES)
        squares = (length_N.astype(np.float64) ** 2).mean()
        for size in ("10M", "85M", "302M"):
            shape = steps.shape_of(size)
            mine = packed_flops(shape, length_N, c.micro_batch_size)
            sizes = shape.layers, shape.width, shape.vocab_size
            useful = flops.scoring(*sizes, length_N.mean(), squares)
            peers = peer_flops(shape, length_N, c)
            cells = (cell for name in names for cell in (peers[name] / 1e9, peers[name] / mine))
            yield (size, *(f"{x:,.2f}" for x in (mine / 1e9, useful / 1e9, *cells)))

    return header, rows()


def packed_flops(
    shape: transformer.ModelConfig, length_N: np.ndarray, micro_batch_size: int = 0
) -> float:
    """FLOPs a sample of our scorer on samples of such lengths, as one window; attention is XLA's, all of it counted."""
    R = ours(c4_like.population(0, shape.vocab_size), shape, micro_batch_size).micro_batch_size
    L = shape.length_tokens
    # XLA counts a loop's body once, so there is none: neither over layers nor over chunks of tokens
    model = transformer.TransformerLM(shape)
    mesh = sharding.make_mesh(jax.local_devices()[:1])
    scorer: Any = make_score(model, R * L, frozenset(), mesh)
    params = jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))
    one = scorer.lower(params, *[jax.ShapeDtypeStruct((R, L), np.int32)] * 3)
    calls = -(-batching.plan_packing(length_N, L).num_sequences // R)
    return one.cost_analysis()["flops"] * calls / len(length_N)


def peer_flops(
    shape: transformer.ModelConfig, length_N: np.ndarray, c: argparse.Namespace
) -> dict[str, float]:
    """FLOPs a sample of the others, by name."""
    found = {}
    if c.nanodo:
        model = transformer.TransformerLM(shape)
        params = jax.eval_shape(
            lambda: nanodo_peer.theirs(transformer.init_params(model, jax.random.key(0)))
        )
        x_1xL = jax.ShapeDtypeStruct((1, shape.length_tokens), np.int32)
        one = _nanodo(c.nanodo, shape).lower(params, x_1xL)
        found[THEIRS] = one.cost_analysis()["flops"]
    if c.transformers:
        N = len(length_N) // _TORCH_BATCH * _TORCH_BATCH
        longest = length_N[:N].reshape(-1, _TORCH_BATCH).max(1)
        both = transformers_peer.sample_flops(shape, np.append(length_N, longest))
        found[ONE_BY_ONE] = float(both[: len(length_N)].mean())
        found[BATCHES] = float(both[len(length_N) :].mean())
    return found


SECTIONS = {"speed": speed, "flops": arithmetic}


def main() -> None:
    """Prints one table a section."""
    c = _arguments()
    if c.transformers:  # a GPU's memory is shared, and JAX would take three quarters of it
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
    add("--sizes", type=lambda text: text.split(","), default=["small", "10M"], help="of speed")
    add("--scale", type=int, default=4, help="of speed: 1,024 and 400 tokens are divided by it")
    add("--samples", type=int, help='of speed; on a CPU 512 for "small", else 128')
    add("--dtype", choices=list(_ROUNDING), default="float32", help="of activations, in speed")
    add(
        "--micro-batch-size",
        type=int,
        default=0,
        help="rows a call of ours; 0: as a worker chooses",
    )
    add("--rounds", type=int, default=7, help="of speed, after one to warm up")
    c = parser.parse_args()
    if unknown := set(c.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    if unknown := set(c.sizes) - {"small", *config.MODEL_SIZES}:
        parser.error(f"--sizes: no such size: {', '.join(sorted(unknown))}")
    if min(c.rounds, 1 if c.samples is None else c.samples, c.micro_batch_size + 1) < 1:
        parser.error("--rounds, --samples: must be 1 or more; --micro-batch-size: 0 or more")
    if c.scale < 1 or c4_like.LENGTH_TOKENS % c.scale:
        parser.error(f"--scale={c.scale}: must divide {c4_like.LENGTH_TOKENS}")
    if c.nanodo:
        nanodo_peer.check(c.nanodo)
    if c.transformers:
        transformers_peer.check()
    return c


if __name__ == "__main__":
    main()
