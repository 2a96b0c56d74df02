"""Compares training steps, packed, padded and NanoDO's: tokens/s, memory and FLOPs, as Markdown tables.

    python -m benchmarks trainer [SECTION ...] [--nanodo PATH]

Sections, all by default: speed, memory, flops. Samples have C4-like lengths (`c4_like`): 400 of 1,024 tokens on
average. In "speed", both numbers are --scale times smaller, so that it takes minutes on 2 CPU cores (--scale 1 gives
the real ones). Each batch holds the same samples on both sides, and model, AdamW, schedule and clipping are the same.
The benchmark fails unless the losses of the first batch agree.

Goals: 3 times the useful tokens/s of NanoDO's padded step on a CPU, and 1 / 2.4 of its FLOPs.

NanoDO (github.com/google-deepmind/nanodo) is imported from a checkout; `nanodo_peer` describes how it is called and
what it needs. Its padded step has one sample per sequence. Its own packing concatenates samples, which then attend to
each other and are cut anywhere; this is different work, and shown for comparison. Arrays are in memory on both sides.
The time of our step includes packing.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import c4_like
import fresh
import jax
import nanodo_peer
import numpy as np
import steps
from steps import CONCATENATED, PACKED, PADDED, THEIRS, Step

from lm_mia import config
from lm_mia.model import flops, kinds
from lm_mia.train import batching

Table = tuple[Sequence[str], Iterable[Sequence[str]]]
PAPER_BATCH = 128
_PLANNED = 200  # batches over which the number of micro-batches is averaged


def speed(scratch: Path, c: argparse.Namespace) -> Table:
    """Useful tokens/s of whole steps, run in turn: medians over steps, and medians of the ratios in each round"""
    names = (PACKED, PADDED, *((THEIRS, CONCATENATED) if c.nanodo else ()))
    base = THEIRS if c.nanodo else PADDED
    header = ("model", "L", "B", "step", "tokens/s", f"to {base}", "in rounds", "first loss")

    def rows() -> Iterator[Sequence[str]]:
        for size in c.sizes:
            model_config = steps.sized_model_config(size, c.scale, c.dtype)
            B = c.batch_size or (PAPER_BATCH if size == "small" else 32)
            # Two to warm up, since NanoDO compiles twice.
            L, count = (
                model_config.length_tokens,
                c.rounds + 2,
            )
            # B x L tokens hold about 2.6 B samples.
            population = c4_like.population(4 * count * B, model_config.vocab_size, c.scale)
            tokens_C = population.lengths_N[: count * B].reshape(count, B).sum(1)
            run = {n: steps.make_step(n, population, model_config, B, c.nanodo) for n in names}
            seconds, loss = _in_turn(run, count, B)
            comparable = [value for name, value in loss.items() if name != CONCATENATED]
            if not np.allclose(comparable, comparable[0], rtol=steps.ROUNDING[c.dtype], atol=0):
                raise AssertionError(f"the models differ: losses of the first batch are {loss}")
            rates = {n: (B * L if n == CONCATENATED else tokens_C) / seconds[n] for n in names}
            for name in names:
                rate_C, ratio_C = rates[name][2:], (rates[name] / rates[base])[2:]
                cells = (f"{np.median(rate_C):,.0f}", f"{np.median(ratio_C):.2f}")
                spread = f"{ratio_C.min():.2f} to {ratio_C.max():.2f}"
                yield (size, str(L), str(B), name, *cells, spread, f"{loss[name]:.6f}")

    return header, rows()


def _in_turn(
    run: dict[str, Step], count: int, batch_size: int
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns the seconds of each step on each batch, and its loss on the first; the order rotates every round."""
    names = list(run)
    seconds, loss = {name: np.zeros(count) for name in names}, {}
    for i in range(count):
        ids_B = np.arange(i * batch_size, (i + 1) * batch_size)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            metrics = jax.block_until_ready(run[name](ids_B))
            seconds[name][i] = time.perf_counter() - began
            loss.setdefault(name, float(metrics.get("loss_nats", metrics.get("train_loss"))))
    return seconds, loss


def memory(scratch: Path, c: argparse.Namespace) -> Table:
    """Memory of a step of the 10M model, L = 1,024, V = 32,000

    Measured: peak memory of a fresh process that makes two steps, including Python and libraries. Compiled: arguments,
    outputs and temporary arrays, by XLA's analysis for this device.
    """
    names = (*((THEIRS,) if c.nanodo else ()), PADDED, PACKED)
    base = f"{names[0]} / this"
    header = ("B", "step", "measured GB", base, "compiled GB", base)

    def rows() -> Iterator[Sequence[str]]:
        model_config = steps.sized_model_config("10M")
        for B in (c.memory_batch_size, PAPER_BATCH):
            first: dict[str, int] = {}
            for name in names:
                step_settings = {
                    "name": name,
                    "model_config": model_config,
                    "batch_size": B,
                    "nanodo": c.nanodo,
                }
                num_bytes = {"compiled": steps.compiled_bytes(steps.lowered(**step_settings))}
                if c.memory_batch_size == B:
                    measured = fresh.measure(steps.two_steps, scratch, **step_settings)
                    num_bytes["measured"] = measured.peak_bytes
                first = first or num_bytes
                cells = [
                    cell
                    for kind in ("measured", "compiled")
                    for cell in _cells(num_bytes.get(kind), first.get(kind))
                ]
                yield (str(B), name, *cells)

    return header, rows()


def _cells(num_bytes: float | None, first_bytes: float | None) -> tuple[str, str]:
    if num_bytes is None or first_bytes is None:
        return "--", "--"
    return f"{num_bytes / 2**30:.2f}", f"{first_bytes / num_bytes:.1f}"


def arithmetic(scratch: Path, c: argparse.Namespace) -> Table:
    """FLOPs of a step, B = 128, L = 1,024, V = 32,000, in units of 1e12

    As XLA counts them in the lowered program. XLA counts the body of a loop once, so ours is the count of one
    micro-batch times the mean number of micro-batches per batch (which counts the optimizer's few FLOPs as often).
    Useful: matrix products over the tokens of samples only.
    """
    header = ("model", THEIRS, PADDED, PACKED, f"{THEIRS} / packed", "useful", "micro-batches")

    def rows() -> Iterator[Sequence[str]]:
        length_IxB = c4_like.lengths(_PLANNED * PAPER_BATCH).reshape(_PLANNED, PAPER_BATCH)
        sequences_I = np.array(
            [batching.plan_packing(n_B, c4_like.LENGTH_TOKENS).num_sequences for n_B in length_IxB]
        )
        for size in ("10M", "85M", "302M"):
            model_config = steps.sized_model_config(size)
            step_settings = {
                "model_config": model_config,
                "batch_size": PAPER_BATCH,
                "nanodo": c.nanodo,
            }
            nothing = c4_like.population(0, model_config.vocab_size)
            M = steps.make_trainer(nothing, model_config, PAPER_BATCH).plan.micro_batch_size
            micro_batch = _tera(steps.lowered(name=PACKED, whole_chunks=True, **step_settings))
            mean_micro_batches = float(np.mean(-(-sequences_I // M)))
            ours, padded = micro_batch * mean_micro_batches, micro_batch * (PAPER_BATCH / M)
            theirs = (
                _tera(steps.lowered(name=THEIRS, **step_settings)) if c.nanodo else float("nan")
            )
            sums = length_IxB.sum() / _PLANNED, (length_IxB**2).sum() / _PLANNED
            useful = flops.training(kinds.size(model_config), *sums) / 1e12
            cells = (f"{x:,.2f}" for x in (theirs, padded, ours, theirs / ours, useful))
            yield (size, *cells, f"{mean_micro_batches:.1f} of {M}")

    return header, rows()


def _tera(step: Any) -> float:
    return step.cost_analysis()["flops"] / 1e12


SECTIONS = {"speed": speed, "memory": memory, "flops": arithmetic}


def main() -> None:
    """Prints one table per section."""
    c = _arguments()
    for name in c.sections or SECTIONS:
        title, _, notes = (SECTIONS[name].__doc__ or name).partition("\n\n")
        with tempfile.TemporaryDirectory(prefix="lm_mia_trainer_") as scratch:
            header, rows = SECTIONS[name](Path(scratch), c)
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
    add(
        "--sizes",
        type=lambda text: text.split(","),
        default=["small", "10M"],
        help="model sizes in speed",
    )
    add("--scale", type=int, default=4, help="in speed, 1,024 and 400 tokens are divided by this")
    add(
        "--batch-size",
        type=int,
        help='samples per batch in speed; default: 128 for "small", else 32',
    )
    add(
        "--dtype",
        choices=list(steps.ROUNDING),
        default="float32",
        help="type of activations in speed",
    )
    add("--rounds", type=int, default=7, help="rounds of speed, after two to warm up")
    add(
        "--memory-batch-size",
        type=int,
        default=8,
        help="samples per batch whose memory is measured",
    )
    c = parser.parse_args()
    if unknown := set(c.sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if unknown := set(c.sizes) - {"small", *config.MODEL_SIZES}:
        parser.error(f"--sizes: unknown sizes: {', '.join(sorted(unknown))}")
    if min(c.rounds, c.memory_batch_size, 1 if c.batch_size is None else c.batch_size) < 1:
        parser.error("--rounds, --batch-size, --memory-batch-size: must be 1 or more")
    c4_like.check_scale(parser, c.scale)
    if c.nanodo:
        nanodo_peer.check(c.nanodo)
    return c


if __name__ == "__main__":
    main()
