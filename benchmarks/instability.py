"""Times StrongMIA's figures and tables of decisions at the scale of the paper, with random losses.

    python -m benchmarks instability DIR [--samples 1048576] [--references 128] [--replicas 127]

By default there are 2^20 samples, 128 references and 127 replicas. Creates a score store in DIR once (1.4 GB, some
minutes), then times what a user runs, each in its own process: the attack stage, and the report with Figures 5, 22,
24-30 and Tables 1-6. One store stands for both model sizes, so every figure of two sizes shows it twice. Prints a table
for docs/results/figures.md.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import synthetic_sweep

from analysis.experiments import MODULES
from lm_mia.config import load

FIGURES = (
    "fig05",
    *(f"fig{n}" for n in (22, 24, 25, 26, 27, 28, 29, 30)),
    *(f"tab0{n}" for n in range(1, 7)),
)
CONFIG = """
from lm_mia.config import Attack, Config, Corpus, Model, Optimizer, Population, Tokenizer

def get_config():
    return Config(
        name="flip-140M",
        figures={figures!r},
        corpus=Corpus(source="parquet", path={corpus!r}, deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=150, documents=2_000),
        population=Population(samples={samples}, length_tokens=32),
        model=Model(size="custom", layers=2, width=64, heads=2),
        optimizer=Optimizer(warmup_steps=1),
        attack=Attack(references={references}, replicas={replicas}),
    )

def sweep():
    yield {{"name": "flip-302M"}}  # the same models under another name
"""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=2**20)
    parser.add_argument("--references", type=int, default=128)
    parser.add_argument("--replicas", type=int, default=127)
    args = parser.parse_args()
    folder, file = args.folder, args.folder / "paper_scale.py"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.parquet"
        synthetic_sweep.corpus(corpus, args.samples + 2_000)
        scripts = [
            full for name in FIGURES for full in MODULES if full.startswith(f"strongmia_{name}_")
        ]
        new = folder / "new.py"
        sizes = {n: getattr(args, n) for n in ("samples", "references", "replicas")}
        new.write_text(CONFIG.format(figures=tuple(scripts), corpus=str(corpus), **sizes))
        synthetic_sweep.write(folder / "sweep", load.load_sweep(str(new)))
        os.replace(new, file)
    options = [f"--config={file}", f"--workdir={folder / 'sweep'}"]
    for tables in folder.glob("sweep/recipes/*/tables"):  # otherwise they would not be recomputed
        shutil.rmtree(tables)
    print("| stage | seconds | peak memory, GiB |\n|---|---:|---:|")
    total = 0.0
    for verb in ("attack", "report"):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "lm_mia.cli", verb, *options], check=True)
        seconds = time.perf_counter() - start
        total += seconds
        # This is the largest child so far; the stages are in ascending order of memory.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"| `lm-mia {verb}` | {seconds:.0f} | {peak:.1f} |", flush=True)
    print(f"| both | {total:.0f} | {peak:.1f} |")


if __name__ == "__main__":
    main()
