"""Measures training and scoring on one GPU or TPU, as a section of Markdown for docs/results/accelerators.md.

    python -m benchmarks accelerator [--nanodo PATH] > section.md

Models of 140M, 302M and 1018M parameters with a vocabulary of 32,000 are trained in bfloat16, on batches of 128 samples
of at most 1,024 random tokens with C4-like lengths (400 on average, see `c4_like`). Everything runs on the first device
of this machine. Nothing is downloaded, and files are written to a temporary folder only. Tables are printed to stdout,
progress to stderr. Each part runs in a process of its own, so that its peak memory is not that of other parts; if it
runs out of memory, its row in the table says so, and the other parts continue.

- training: median over rounds of several steps each, packing included; the device computes while the next batch is
  packed. Tokens are counted without padding, and MFU counts useful FLOPs only.
- compilation: the duration of the first steps (for scoring, of the first pass over the samples), minus that of as many
  later ones; with an empty compilation cache (cold) and, in another process, with the cache that was filled (warm).
- peak memory: as the device reports it, or that of the process on a CPU.
- attention: loss and gradient norm of the first batch, with the default implementation of attention and with XLA's. The
  benchmark fails if the losses differ by more than rounding.
- same bits: the first model of --sizes is trained for 12 steps, once without interruption, once more in a process
  that reads nothing from the compilation cache, and once in a process that receives SIGTERM after 6 steps and another
  one that continues from the checkpoint. The benchmark fails if the final states (parameters and moments) or the losses
  of samples under them are not bitwise equal. The temporary folder needs 48 bytes per parameter.
- kernels: where the GPU time of a step goes, by kind of kernel, from JAX's profiler.
- --csv: adds the MFU to the table that `lm-mia plan` reads.
- --nanodo: NanoDO's training step, with one sample per sequence, from a checkout (see `nanodo_peer`). If a batch does
  not fit in memory, NanoDO accumulates gradients over the smallest number of parts (2, 4, 8, ...) that fits.

Most of the time is compilation: about 10 s for each size of micro-batches of a 140M model on an H100. The whole
benchmark has been run on CPUs only. To try it on a CPU:

    python -m benchmarks accelerator --sizes=small --scale=8 --batch-size=16 --steps=2 --rounds=2 --samples=64
"""

import argparse
import contextlib
import csv
import datetime
import os
import shlex
import sys
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
import profile_kernels
import resume
import scoring
import steps

from lm_mia import config
from lm_mia.model import flops, kinds, transformer

_WARM_UP = 3  # steps before the first round, since NanoDO compiles twice
_MAX_PARTS = 64  # into which NanoDO divides a batch
MFU_COLUMNS = (
    "chip",
    "layers",
    "width",
    "train_mfu",
    "score_mfu",
    "card",
    "jax",
    "date",
    "command",
)


def describe(clock: fresh.Clock, folder: Path) -> fresh.Results:
    """Returns the description of the first device."""
    device = jax.local_devices()[0]
    return {
        "platform": np.array(device.platform),
        "kind": np.array(device.device_kind),
        "devices": np.array(jax.local_device_count()),
        "memory_bytes": np.array((device.memory_stats() or {}).get("bytes_limit", 0)),
    }


def train(
    clock: fresh.Clock,
    folder: Path,
    *,
    name: str,
    model_config: transformer.ModelConfig,
    scale: int,
    batch_size: int,
    nanodo: Path | None,
    attention: steps.Attention,
    parts: int,
    warm_up: int,
    rounds: int,
    round_steps: int,
) -> fresh.Results:
    """Runs training steps, as a workload for `fresh.measure`.

    Returns:
      "warm_up_seconds", "loss_nats" and "gradient_norm" of the first batch, "seconds_R", "tokens_R" and
      "sum_squared_lengths_R" of each round, and "device_bytes" (0 if the device does not report it); of our step also
      "execution" and "attention".
    """
    batches = warm_up + rounds * round_steps
    population = c4_like.population(batches * batch_size, model_config.vocab_size, scale)
    ids_TxB = np.arange(batches * batch_size).reshape(batches, batch_size)
    step = steps.make_step(name, population, model_config, batch_size, nanodo, attention, parts)
    seconds: list[float] = []
    with clock:
        began = time.perf_counter()
        first = step(ids_TxB[0])
        jax.block_until_ready([first, *(step(ids_B) for ids_B in ids_TxB[1:warm_up])])
        if name == steps.PACKED:  # all sizes of micro-batches are compiled before the first round
            for ids_B in steps.one_batch_a_size(population, model_config, attention, ids_TxB):
                jax.block_until_ready(step(ids_B))
        warm_up_seconds = time.perf_counter() - began
        for low in range(warm_up, batches, round_steps):
            began = time.perf_counter()
            jax.block_until_ready([step(ids_B) for ids_B in ids_TxB[low : low + round_steps]])
            seconds.append(time.perf_counter() - began)
    length_RxS = population.lengths_N[warm_up * batch_size :].reshape(
        rounds, round_steps * batch_size
    )
    results = {}
    if name == steps.PACKED:
        plan = steps.make_trainer(population, model_config, batch_size, attention).plan
        results["execution"] = np.array(str(plan))
        results["attention"] = np.array(plan.model_config.attention)
    return results | {
        "warm_up_seconds": np.array(warm_up_seconds),
        "loss_nats": np.array(first.get("loss_nats", first.get("train_loss"))),
        "gradient_norm": np.array(first.get("gradient_norm", np.nan)),
        "seconds_R": np.array(seconds),
        "tokens_R": length_RxS.sum(1),
        "sum_squared_lengths_R": (length_RxS**2).sum(1),
        "device_bytes": _device_bytes(),
    }


def score(
    clock: fresh.Clock,
    folder: Path,
    *,
    size: str,
    model_config: transformer.ModelConfig,
    scale: int,
    samples: int | None,
    rounds: int,
) -> fresh.Results:
    """Scores samples, as a workload for `fresh.measure`.

    Returns:
      "samples", "tokens", "sum_squared_lengths", "warm_up_seconds" of the first pass, "seconds_R" of each later one,
      "sequences" per call, and "device_bytes" (0 if the device does not report it).
    """
    N = samples or scoring.default_samples(size)
    population = c4_like.population(N, model_config.vocab_size, scale)
    scorer = scoring.make_scorer(population, model_config)
    params = jax.jit(lambda key: transformer.init_params(scorer.model, key))(jax.random.key(0))
    seconds: list[float] = []
    with clock:
        for _ in range(1 + rounds):
            began = time.perf_counter()
            scorer.score(params, [], 0, N)
            seconds.append(time.perf_counter() - began)
    return {
        "samples": np.array(N),
        "tokens": population.lengths_N.sum(),
        "sum_squared_lengths": (population.lengths_N**2).sum(),
        "warm_up_seconds": np.array(seconds[0]),
        "seconds_R": np.array(seconds[1:]),
        "sequences": np.array(scorer.micro_batch_size),
        "device_bytes": _device_bytes(),
    }


def _device_bytes() -> np.ndarray:
    """Returns the peak memory of the first device in this process, or 0 if it does not report it."""
    return np.array((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


class Session:
    """Runs the parts of the benchmark, each in a new process, and reports progress and failures."""

    def __init__(self, c: argparse.Namespace, folder: Path):
        self.c = c
        self.failures: list[str] = []
        self.train_mfu: dict[str, float] = {}
        self.score_mfu: dict[str, float] = {}
        self.folder = folder
        self._began = time.monotonic()
        # The device, and four parts of the same bits; for each size, two parts of training, two of scoring, one of
        # attention, one of kernels, and two of NanoDO.
        self._num_parts = 5 + len(c.sizes) * (6 + 2 * bool(c.nanodo))
        self._part = 0

    def run(self, description: str, work: fresh.Work, **settings: Any) -> fresh.Measured | str:
        """Returns the measurements of a part, or the reason for its failure in a few words."""
        self._part += 1
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._say(f"[{self._part}/{self._num_parts}, {minutes}:{seconds:02}] {description}")
        try:
            return fresh.measure(work, self.folder, **settings)
        except Exception as error:  # the other parts continue
            lines = str(error).splitlines() or [type(error).__name__]
            if any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory")):
                self._say(f"    out of memory: {lines[0]}")
                return "out of memory"
            if "terminated abruptly" in str(error):
                self._say("    the process was killed; the machine may have too little memory")
                return "killed (memory?)"
            self.fail(f"{description}: {lines[0]}")
            return "failed"

    def more_parts(self, count: int) -> None:
        """Changes the number of parts that progress shows, if a part is added (or removed, for negative counts)."""
        self._num_parts += count

    def fail(self, message: str) -> None:
        """Reports a failure, which makes the exit status 1."""
        self.failures.append(message)
        self._say(f"    failed: {message}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def training_rows(
    session: Session, peak: float | None, first_batches: dict[str, fresh.Results]
) -> Iterator[Sequence[str]]:
    """Yields a row for each size and method, and keeps the results of the first batches by size."""
    c = session.c
    for size in c.sizes:
        model_config = steps.sized_model_config(size, c.scale, c.dtype)
        our_rate: float | None = None
        for name in (steps.PACKED, *((steps.THEIRS,) if c.nanodo else ())):
            settings = {
                "name": name,
                "model_config": model_config,
                "scale": c.scale,
                "batch_size": c.batch_size,
                "nanodo": c.nanodo,
                "attention": "auto",
                "warm_up": _WARM_UP,
                "round_steps": c.steps,
            }
            cold, parts = _train_with_parts(session, f"{size}, {name}", settings)
            label = name if parts == 1 else f"{name}, {parts} parts"
            if isinstance(cold, str):
                session.more_parts(-1)  # without the part that reads the cache
                yield (size, label, cold, *["--"] * 7)
                continue
            warm = session.run(
                f"{size}, {name}: training, compilation from the cache",
                train,
                **settings,
                parts=parts,
                rounds=0,
            )
            r = cold.results
            assert r is not None
            rate_R = r["tokens_R"] / r["seconds_R"]
            rate = float(np.median(rate_R))
            our_rate = rate if name == steps.PACKED else our_rate
            if name == steps.PACKED:
                first_batches[size] = r
            elif our_rate is not None and parts == 1:
                _check_nanodo(session, size, float(r["loss_nats"]), first_batches[size])
            useful_R = _training_flops(model_config, r["tokens_R"], r["sum_squared_lengths_R"])
            if name == steps.PACKED and peak:
                session.train_mfu[size] = float(np.median(useful_R / r["seconds_R"])) / peak
            step_seconds = float(np.median(r["seconds_R"])) / c.steps
            yield (
                size,
                label,
                f"{rate:,.0f}",
                f"{rate_R.min():,.0f} to {rate_R.max():,.0f}",
                _share(float(np.median(useful_R / r["seconds_R"])), peak),
                f"{our_rate / rate:.2f}" if our_rate else "--",
                f"{step_seconds:.3g}",
                *_compilation(cold, warm, _WARM_UP * step_seconds),
                _gibibytes(cold),
            )


def _train_with_parts(
    session: Session, description: str, settings: dict[str, Any]
) -> tuple[fresh.Measured | str, int]:
    """Returns the measurements, or the reason for a failure, and the number of parts into which a batch is divided."""
    parts = 1
    while True:
        divided = f" in {parts} parts" if parts > 1 else ""
        measured = session.run(
            f"{description}: training{divided}, {session.c.rounds} rounds of {session.c.steps} steps",
            train,
            **settings,
            parts=parts,
            rounds=session.c.rounds,
        )
        can_divide = settings["name"] == steps.THEIRS and 2 * parts <= _MAX_PARTS
        if measured != "out of memory" or not can_divide or settings["batch_size"] % (2 * parts):
            return measured, parts
        parts *= 2
        session.more_parts(1)


def _check_nanodo(session: Session, size: str, loss: float, ours: fresh.Results) -> None:
    difference = abs(loss / float(ours["loss_nats"]) - 1)
    if not difference < steps.ROUNDING[session.c.dtype]:
        session.fail(f"{size}: NanoDO's loss of the first batch differs by {difference:.1g}")


def scoring_rows(session: Session, peak: float | None) -> Iterator[Sequence[str]]:
    """Yields a row for each size."""
    c = session.c
    for size in c.sizes:
        model_config = steps.sized_model_config(size, c.scale, c.dtype)
        settings = {
            "size": size,
            "model_config": model_config,
            "scale": c.scale,
            "samples": c.samples,
        }
        cold = session.run(
            f"{size}: scoring, {c.rounds} rounds", score, **settings, rounds=c.rounds
        )
        if isinstance(cold, str):
            session.more_parts(-1)
            yield (size, cold, *["--"] * 8)
            continue
        warm = session.run(
            f"{size}: scoring, compilation from the cache", score, **settings, rounds=0
        )
        r = cold.results
        assert r is not None
        seconds = float(np.median(r["seconds_R"]))
        rate_R = float(r["samples"]) / r["seconds_R"]
        useful = _training_flops(model_config, r["tokens"], r["sum_squared_lengths"]) / 3
        if peak:
            session.score_mfu[size] = float(useful / seconds) / peak
        yield (
            size,
            f"{np.median(rate_R):,.1f}",
            f"{rate_R.min():,.1f} to {rate_R.max():,.1f}",
            f"{float(r['tokens']) / seconds:,.0f}",
            _share(useful / seconds, peak),
            f"{int(r['samples']):,}",
            f"{int(r['sequences'])}",
            *_compilation(cold, warm, seconds),
            _gibibytes(cold),
        )


def attention_rows(
    session: Session, first_batches: dict[str, fresh.Results]
) -> Iterator[Sequence[str]]:
    """Yields a row for each size whose training was measured: the default implementation compared with XLA's."""
    c = session.c
    for size in c.sizes:
        measured = session.run(
            f"{size}: one step with XLA's attention",
            train,
            name=steps.PACKED,
            model_config=steps.sized_model_config(size, c.scale, c.dtype),
            scale=c.scale,
            batch_size=c.batch_size,
            nanodo=None,
            attention="xla",
            parts=1,
            warm_up=1,
            rounds=0,
            round_steps=1,
        )
        default = first_batches.get(size)
        if default is None or isinstance(measured, str):
            reason = measured if isinstance(measured, str) else "not trained"
            yield (size, str(default["attention"]) if default else "--", reason, *["--"] * 3)
            continue
        xla = measured.results
        assert xla is not None
        names = ("loss_nats", "gradient_norm")
        loss, norm = (abs(float(default[name]) / float(xla[name]) - 1) for name in names)
        if not loss < steps.ROUNDING[c.dtype]:
            session.fail(f"{size}: the losses of the implementations of attention differ")
        losses = (f"{float(r['loss_nats']):.6f}" for r in (default, xla))
        yield (size, str(default["attention"]), *losses, f"{loss:.1g}", f"{norm:.1g}")


def same_bits_rows(session: Session) -> Iterator[Sequence[str]]:
    """Yields a row for each way in which the first model is trained again: whether it ends in the same state."""
    c = session.c
    size, half = c.sizes[0], resume.NUM_STEPS // 2
    settings = {
        "model_config": steps.sized_model_config(size, c.scale, c.dtype),
        "scale": c.scale,
        "batch_size": c.batch_size,
    }

    def run(words: str, name: str, stop_step: int) -> fresh.Measured | str:
        description = f"{size}: {resume.NUM_STEPS} steps, {words}"
        return session.run(description, resume.train, **settings, name=name, stop_step=stop_step)

    runs = [run("without interruption", "whole", 0)]
    with _empty_cache(session):
        runs.append(run("again, without the compilation cache", "again", 0))
    runs += [run("stopped by SIGTERM", "stopped", half), run("continued", "stopped", 0)]
    results = [measured.results for measured in runs if not isinstance(measured, str)]
    if len(results) < len(runs):
        yield size, "--", next(measured for measured in runs if isinstance(measured, str)), "--"
        return
    whole, again, stopped, continued = (r for r in results if r is not None)
    if not (int(stopped["steps"]) == int(continued["resumed_at"]) == half):
        session.fail(f"{size}: the model was not stopped and continued at step {half}")
    for words, other in (
        ("in a new process, compiled again", again),
        (f"stopped after step {half} and continued", continued),
    ):
        cells = []
        for name in ("sha256", "losses"):
            is_equal = str(whole[name]) == str(other[name])
            cells.append("bitwise equal" if is_equal else "differ")
            if not is_equal:
                session.fail(f"{size}, {words}: the {name} of the final state differ")
        yield size, words, *cells


@contextlib.contextmanager
def _empty_cache(session: Session) -> Iterator[None]:
    """Gives the processes that are started inside it a compilation cache of their own, which is empty."""
    before = os.environ["JAX_COMPILATION_CACHE_DIR"]
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(session.folder / "empty_cache")
    try:
        yield
    finally:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = before


def kernel_rows(session: Session) -> Iterator[Sequence[str]]:
    """Yields a row for each size: milliseconds of a training step by kind of kernel."""
    c = session.c
    for size in c.sizes:
        measured = session.run(
            f"{size}: {c.steps} steps with the profiler",
            profile_kernels.profile,
            model_config=steps.sized_model_config(size, c.scale, c.dtype),
            scale=c.scale,
            batch_size=c.batch_size,
            num_steps=c.steps,
        )
        if isinstance(measured, str):
            yield (size, measured, *["--"] * len(profile_kernels.KINDS))
            continue
        r = measured.results
        assert r is not None
        if not r["milliseconds_K"].size:
            yield (size, "no GPU", *["--"] * len(profile_kernels.KINDS))
            continue
        yield (size, f"{float(r['kernels']):,.0f}", *(f"{ms:.1f}" for ms in r["milliseconds_K"]))


def _training_flops(
    model_config: transformer.ModelConfig, tokens: Any, sum_squared_lengths: Any
) -> Any:
    """Returns the useful FLOPs of training on samples, three times those of scoring them; numbers or arrays."""
    return flops.training(kinds.size(model_config), tokens, sum_squared_lengths)


def _share(flops_per_second: float, peak: float | None) -> str:
    return f"{flops_per_second / peak:.1%}" if peak else "--"


def _compilation(
    cold: fresh.Measured, warm: fresh.Measured | str, other_seconds: float
) -> tuple[str, str]:
    """Returns the seconds of compilation, cold and warm, without those of the computation itself."""

    def cell(run: fresh.Measured | str) -> str:
        if isinstance(run, str) or run.results is None:
            return "--"
        return f"{max(float(run.results['warm_up_seconds']) - other_seconds, 0):.1f}"

    return cell(cold), cell(warm)


def _gibibytes(measured: fresh.Measured) -> str:
    assert measured.results is not None
    return f"{(int(measured.results['device_bytes']) or measured.peak_bytes) / 2**30:.1f}"


_TRAINING_HEADER = ("model", "step", "tokens/s", "in rounds", "MFU", "packed / this", "s per step")
_SCORING_HEADER = ("model", "samples/s", "in rounds", "tokens/s", "MFU", "samples", "per call")
_COSTS_HEADER = ("compilation s: cold", "warm", "peak GiB")
_ATTENTION_HEADER = (
    "model",
    "default",
    "its loss",
    "XLA's loss",
    "losses differ by",
    "gradient norms differ by",
)
_SAME_BITS_HEADER = ("model", "trained again", "parameters and moments", "losses of samples")
_KERNEL_HEADER = ("model", "kernels per step", *(f"{name} ms" for name in profile_kernels.KINDS))


def report(session: Session) -> None:
    """Prints the section: a heading with the device and the command, and five tables."""
    c = session.c
    described = session.run("description of the device", describe)
    if isinstance(described, str) or described.results is None:
        raise SystemExit("JAX found no device; the message above says why")
    device = {name: value.item() for name, value in described.results.items()}
    peak = flops.device_peak(device["kind"])
    print(f"## {device['kind']}, JAX {jax.__version__}\n")
    arguments = shlex.join(sys.argv[1:])
    if c.nanodo:
        arguments = arguments.replace(shlex.quote(str(c.nanodo)), "PATH")  # to be published
    print(f"    python -m benchmarks accelerator {arguments}".rstrip() + "\n")
    memory = f", {device['memory_bytes'] / 2**30:.1f} GiB for JAX" if device["memory_bytes"] else ""
    rate = f", peak {peak / 1e12:g} TFLOP/s" if peak else ", no known peak rate, hence no MFU"
    print(
        f"One of {device['devices']} devices{memory}{rate}. {c.dtype}, batches of {c.batch_size} samples"
    )
    print(
        f"of at most {c4_like.LENGTH_TOKENS // c.scale:,} tokens, vocabulary of 32,000 (small: 4,096).\n"
    )
    first_batches: dict[str, fresh.Results] = {}
    rows = training_rows(session, peak, first_batches)
    _print_table("Training", (*_TRAINING_HEADER, *_COSTS_HEADER), rows)
    for size, results in first_batches.items():
        print(f"- {size}: {results['execution']}")
    print()
    rows = scoring_rows(session, peak)
    _print_table("Scoring", (*_SCORING_HEADER, *_COSTS_HEADER), rows)
    rows = attention_rows(session, first_batches)
    _print_table("Attention", _ATTENTION_HEADER, rows)
    _print_table("Same bits", _SAME_BITS_HEADER, same_bits_rows(session))
    _print_table("Kernels", _KERNEL_HEADER, kernel_rows(session))
    if c.csv:
        write_csv(c.csv, session, device["kind"])
    for failure in session.failures:
        print(f"Failed: {failure}\n")


def write_csv(path: Path, session: Session, kind: str) -> None:
    """Adds the MFU of training and scoring to a table, or replaces those of the same chip and sizes."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[row["chip"], row["layers"], row["width"]] = row
    chip = flops.chip_name(kind) or kind
    for size in session.train_mfu.keys() & session.score_mfu.keys():
        m = steps.sized_model_config(size, session.c.scale, session.c.dtype)
        rows[chip, str(m.layers), str(m.width)] = {
            "chip": chip,
            "layers": str(m.layers),
            "width": str(m.width),
            "train_mfu": f"{session.train_mfu[size]:.4f}",
            "score_mfu": f"{session.score_mfu[size]:.4f}",
            "card": kind,
            "jax": jax.__version__,
            "date": f"{datetime.date.today()}",
            "command": f"benchmarks/accelerator.py --sizes={size}",
        }
    with path.open("w", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, MFU_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            rows[key] for key in sorted(rows, key=lambda k: (k[0], int(k[1]) * int(k[2]) ** 2))
        )


def _print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)
    print(flush=True)


def main() -> None:
    """Prints the section; the exit status is 1 if a part failed for another reason than memory."""
    c = _arguments()
    with tempfile.TemporaryDirectory(prefix="lm_mia_accelerator_") as scratch:
        # Processes of the parts read these when they import JAX.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = scratch
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        session = Session(c, Path(scratch))
        report(session)
    sys.exit(1 if session.failures else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--nanodo",
        type=Path,
        help="path of a checkout of google-deepmind/nanodo, to compare with it",
    )
    names = ", ".join(("small", *config.MODEL_SIZES))
    add(
        "--sizes",
        type=lambda text: text.split(","),
        default=["140M", "302M", "1018M"],
        help=f"model sizes, of {names} (default: 140M,302M,1018M)",
    )
    add("--scale", type=int, default=1, help="divisor of the lengths of samples (default: 1)")
    add("--batch-size", type=int, default=128, help="samples per batch (default: 128)")
    add("--dtype", choices=list(steps.ROUNDING), default="bfloat16", help="type of activations")
    add("--csv", type=Path, help="table of measured MFU to which the sizes are added")
    add("--steps", type=int, default=10, help="training steps per round (default: 10)")
    add("--rounds", type=int, default=5, help="rounds of training and of scoring (default: 5)")
    add(
        "--samples",
        type=int,
        help="samples to score (default: 8,192; on a CPU 128, or 512 with small)",
    )
    c = parser.parse_args()
    if unknown := set(c.sizes) - {"small", *config.MODEL_SIZES}:
        parser.error(f"--sizes={','.join(sorted(unknown))}: unknown sizes; choose from {names}")
    for flag in ("batch_size", "steps", "rounds", "samples"):
        value = getattr(c, flag)
        if value is not None and value < 1:
            parser.error(f"--{flag.replace('_', '-')}={value}: must be at least 1")
    c4_like.check_scale(parser, c.scale)
    if c.nanodo:
        nanodo_peer.check(c.nanodo)
    return c


if __name__ == "__main__":
    main()
