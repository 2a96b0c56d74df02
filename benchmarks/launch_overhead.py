"""Measures the overhead of `launch local` for tiny models: wall time against the models' own time, cold and warm.

    python -m benchmarks launch_overhead DIR [--models 64]

Makes the quickstart's models (2 layers of width 64, 192 steps, 2,048 samples) by `launch local` twice, with one
process per core, in separate folders: first with an empty compilation cache, then with the cache of the first run.
The population is built beforehand. A model's own seconds are those of training and scoring in the log; the wall time
is that of the whole command, including its imports and those of its jobs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from launch import jobs
from lm_mia import events
from lm_mia.run import devices, sweep

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Prints a line for each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--models", type=int, default=64)
    args = parser.parse_args()
    config = str(ROOT / "configs" / "quickstart.py")
    overrides = [
        f"--config.attack.references={args.models - 16}",
        "--config.attack.resample-references=0",
    ]
    cache = args.dir / "compiled"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    slots = devices.assign(0, 1).environments
    populations = None
    for name in ("cold", "warm"):
        folder = args.dir / name
        shutil.rmtree(folder, ignore_errors=True)
        full_sweep = sweep.read_sweep(config, str(folder), overrides)
        if populations is None:
            corpus = jobs.command(full_sweep, [sys.executable], "corpus")
            subprocess.run(corpus, check=True, env=environment, capture_output=True)
            populations = folder / "populations"
        else:
            folder.mkdir()
            shutil.copytree(populations, folder / "populations")
        began = time.monotonic()
        local = jobs.command(full_sweep, [sys.executable], "local")
        subprocess.run(local, check=True, env=environment, capture_output=True)
        wall_seconds = time.monotonic() - began
        logged = [event for _, event in events.read(folder, lambda line: True)]
        own_seconds = sum(
            e["seconds"] for e in logged if e["event"] in ("model_trained", "model_scored")
        )
        compiled = sum(e["seconds"] for e in logged if e["event"] == "compiled")
        print(
            f"{name}: {args.models} models on {len(slots)} cores: {wall_seconds:.1f} s of wall time, "
            f"{own_seconds:.1f} s of models ({compiled:.1f} s to compile): "
            f"{wall_seconds * len(slots) / own_seconds:.3f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
