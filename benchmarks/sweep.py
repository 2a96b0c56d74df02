"""Times a sweep of references of the quickstart's size, trained and scored, from process start to end.

    python -m benchmarks sweep [--nanodo PATH]

Ours is two commands, `lm-mia train` and `lm-mia score`, with one or two workers (of one thread each, as always on CPU),
on an existing population, with an empty compilation cache. NanoDO (github.com/google-deepmind/nanodo, from a checkout)
has no sweeps and needs one process per reference. It runs one process at a time with all cores, first as it comes and
then "lean", with metrics every T / 20 steps and no trace; then lean, two processes at a time with one core each; then
the two lean variants with JAX's compilation cache, which it does not use by default, filled by an earlier process.
`nanodo_peer` describes what it needs and where its training loop is changed, always in its favor.

Both train on the same members in the same order and score the whole population. Two of NanoDO's processes are run per
round, and their seconds are extrapolated to all references. "Without imports" subtracts the seconds that NanoDO's
imports take (mostly TensorFlow's), while ours keeps its own. Losses are means over samples and references; the initial
weights of the two sides differ.

Goal: 10 times faster than one NanoDO process per reference.
"""

import argparse
import dataclasses
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nanodo_peer
import numpy as np

from lm_mia import config
from lm_mia.config import load
from lm_mia.config.recipe import population_hash
from lm_mia.data import batch_order, subsets
from lm_mia.data.population import open_population
from lm_mia.machine import available_cores
from lm_mia.model import transformer
from lm_mia.store.store import Store

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.py"
_REPLICAS = 2  # the minimum; they are trained and scored like references, and counted as references
_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one method."""

    seconds: float
    """Seconds for all references."""
    without_imports: float
    loss_nats: float


def run_ours(
    base: Path, scratch: Path, c: config.Config, flags: Sequence[str], workers: int
) -> Run:
    """Trains and scores all models in a fresh copy of the workdir."""
    workdir = scratch / "ours"
    shutil.copytree(base, workdir)
    flags = [*flags, f"--config.train.workers={workers}"]
    began = time.perf_counter()
    for verb in ("train", "score"):
        _lm_mia(verb, workdir, flags, cache=workdir / "cache")
    seconds = time.perf_counter() - began
    store = workdir / "recipes" / CONFIG.stem / "scores.zarr"
    models = subsets.requested_seeds(c.attack.references, c.attack.replicas)
    loss_nats = float(np.mean(Store(store).read(models)[0]))
    shutil.rmtree(workdir)
    return Run(seconds, seconds, loss_nats)


def run_nanodo(
    nanodo: Path,
    folders: Sequence[Path],
    references: int,
    at_once: int,
    cache: Path | None,
    as_it_comes: bool = False,
) -> Run:
    """Runs one process per folder, at_once at a time; the seconds are extrapolated to all references."""
    cores = sorted(os.sched_getaffinity(0))
    # Concurrent processes share the cores equally.
    share = [set(cores[i::at_once]) for i in range(at_once)]
    imports: list[float] = []
    began = time.perf_counter()
    for i in range(0, len(folders), at_once):
        running = [
            _reference(nanodo, folder, core, cache, as_it_comes)
            for folder, core in zip(folders[i : i + at_once], share, strict=True)
        ]
        for process in running:
            out, err = process.communicate()
            if process.returncode:
                raise RuntimeError(f"NanoDO failed:\n{err}")
            imports.append(float(out.splitlines()[-1]))
    seconds = time.perf_counter() - began
    loss_nats = float(np.mean([np.load(folder / "losses.npy") for folder in folders]))
    import_seconds = statistics.mean(imports) * len(folders) / at_once
    factor = references / len(folders)
    return Run(seconds * factor, (seconds - import_seconds) * factor, loss_nats)


def _reference(
    nanodo: Path, folder: Path, cores: set[int], cache: Path | None, as_it_comes: bool
) -> subprocess.Popen[str]:
    command = [sys.executable, nanodo_peer.__file__, f"--nanodo={nanodo}", f"--folder={folder}"]
    return subprocess.Popen(
        [*command, f"--out={folder / 'losses.npy'}", *(["--as-it-comes"] if as_it_comes else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(cache),
        preexec_fn=functools.partial(os.sched_setaffinity, 0, cores),
    )


def write_reference(
    folder: Path, population_dir: Path, c: config.Config, model: subsets.ModelSeeds
) -> None:
    """Writes the input of `nanodo_peer.train_reference`: the batches of our model, padded, and the population."""
    population = open_population(population_dir)
    ids_N = np.flatnonzero(subsets.member(model.subset_seed, len(population), c.train.subset))
    B, batches = c.train.batch_size, []
    for epoch in range(c.train.epochs):
        order_N = batch_order.epoch_order(model.order_seed, epoch, len(ids_N))
        for step in range(batch_order.steps_per_epoch(len(ids_N), B)):
            ids_B = batch_order.batch(order_N, ids_N, step, B)
            x_BxL = np.zeros((B, population.length_tokens), np.int32)
            x_BxL[: len(ids_B)] = population.pad(ids_B)  # the last batch of an epoch may be smaller
            batches.append(x_BxL)
    shape = transformer.ModelConfig(
        *c.model.shape,
        vocab_size=population.vocab_size,
        length_tokens=population.length_tokens,
        dtype=c.model.dtype,
    )
    folder.mkdir()
    nanodo_settings = nanodo_peer.settings(shape, c.optimizer, B, config.total_steps(c))
    (folder / "settings.json").write_text(json.dumps(nanodo_settings))
    np.save(folder / "batches.npy", np.stack(batches))
    np.save(folder / "population.npy", population.pad(np.arange(len(population))))
    shutil.copy(population_dir / "tokenizer.model", folder)


def sweep_methods(scratch: Path, args: argparse.Namespace) -> dict[str, Callable[[], Run]]:
    """Returns the methods by name, ready to run, after building the population and NanoDO's input."""
    references, base = args.references, scratch / "base"
    flags = [
        f"--config.attack.references={references - _REPLICAS}",
        f"--config.attack.replicas={_REPLICAS}",
        "--config.attack.resample_references=0",
    ]
    c = load.load_config(str(CONFIG), flags)
    _lm_mia("corpus", base, flags)
    methods = {
        f"ours, {workers} worker{'s' * (workers > 1)}": functools.partial(
            run_ours, base, scratch, c, flags, workers
        )
        for workers in (2, 1)
    }
    if not args.nanodo:
        return methods
    folders = [scratch / f"reference_{i}" for i in range(_AT_ONCE)]
    for folder, model in zip(folders, subsets.requested_seeds(_AT_ONCE, 0), strict=True):
        write_reference(folder, base / "populations" / population_hash(c), c, model)
    # Fills the compilation cache and the page cache.
    run_nanodo(args.nanodo, folders[:1], 1, 1, scratch / "cache")
    run = functools.partial(run_nanodo, args.nanodo, folders, references)
    methods["NanoDO as it comes"] = functools.partial(run, 1, None, as_it_comes=True)
    names = ("NanoDO, lean", "NanoDO, lean, two at a time, a core each")
    for at_once, name in enumerate(names, 1):
        methods[name] = functools.partial(run, at_once, None)
    for at_once, name in enumerate(names, 1):
        methods[f"{name}, cached"] = functools.partial(run, at_once, scratch / "cache")
    return methods


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanodo", type=Path, help="a checkout of google-deepmind/nanodo")
    parser.add_argument("--references", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all methods in turn")
    args = parser.parse_args()
    if args.references < 6 or args.references % 2:
        parser.error(f"--references={args.references}: must be even, and 6 or more")
    if args.rounds < 1:
        parser.error(f"--rounds={args.rounds}: must be 1 or more")
    if args.nanodo:
        nanodo_peer.check(args.nanodo)
    with tempfile.TemporaryDirectory(prefix="lm_mia_sweep_") as scratch:
        methods = sweep_methods(Path(scratch), args)
        runs: dict[str, list[Run]] = {name: [] for name in methods}
        for i in range(args.rounds):
            names = list(methods)
            for name in names[i % len(names) :] + names[: i % len(names)]:
                runs[name].append(methods[name]())
                print(f"round {i + 1}: {name}: {runs[name][-1].seconds:.1f} s", file=sys.stderr)
    medians = {
        name: statistics.median(run.seconds for run in repeats) for name, repeats in runs.items()
    }
    best = min((name for name in runs if name.startswith("ours")), key=lambda name: medians[name])
    print(f"### {args.references} references on {available_cores()} CPU cores\n")
    print(f"| method | seconds | to {best} | in rounds | without imports | loss |\n|{'---|' * 6}")
    for name, repeats in runs.items():
        ratios = [run.seconds / base.seconds for run, base in zip(repeats, runs[best], strict=True)]
        without_imports = [
            run.without_imports / base.seconds
            for run, base in zip(repeats, runs[best], strict=True)
        ]
        print(
            f"| {name} | {medians[name]:.1f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} | {statistics.median(without_imports):.2f} "
            f"| {statistics.mean(run.loss_nats for run in repeats):.3f} |"
        )


def _lm_mia(verb: str, workdir: Path, flags: Sequence[str], cache: Path | None = None) -> None:
    command = [sys.executable, "-m", "lm_mia.cli", verb, f"--config={CONFIG}"]
    done = subprocess.run(
        [*command, f"--workdir={workdir}", *flags],
        capture_output=True,
        text=True,
        env=_environment(cache),
    )
    if done.returncode:
        raise RuntimeError(f"lm-mia {verb} failed:\n{done.stderr}")


def _environment(cache: Path | None) -> dict[str, str]:
    """Returns this process's environment with JAX's compilation cache in a folder, or without one if cache is None."""
    names = ("MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if cache:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment |= {f"JAX_PERSISTENT_CACHE_{name}": "-1" for name in names}
    return environment


if __name__ == "__main__":
    main()
