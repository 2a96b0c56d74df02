"""Seconds and peak memory of `lm-mia audit` on files of scores and of losses.

    python -m benchmarks audit_file [--largest=20] [--only=covariates]

Scores are those of a Gaussian mechanism with mu = 1 under fair coins, in csv, parquet and npz files; losses are of one
target and 128 references; covariates are four numbers, or texts of 100 words, in which members and non-members differ.
Each row runs the command in a new process: "seconds" is the time of the command with its imports, "CPU seconds" that of
all its threads. Peak memory includes pages of memory-mapped losses, which the system may drop.
--largest=20 uses up to 2^20 samples, --only=covariates only files with covariates. Prints a Markdown table; takes
12 CPU minutes, and 2 GB of disk.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.lib.format import open_memmap

REFERENCES = 128
_CODE = """
import json, resource, sys
from lm_mia import cli
code = cli.main(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10]))
"""


def measure(path: Path, *flags: str) -> tuple[float, float, float]:
    """Returns (seconds, CPU seconds, peak MiB) of the command, with tables and page."""
    start = time.perf_counter()
    argv = ["audit", str(path), f"--out={path.parent / 'out'}", *flags]
    done = subprocess.run([sys.executable, "-c", _CODE, *argv], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    code, cpu_seconds, mib = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return seconds, cpu_seconds, mib


def write_scores(folder: Path, samples: int) -> list[Path]:
    """Writes the same scores in all formats."""
    rng = np.random.default_rng(0)
    member_N = rng.random(samples) < 0.5
    score_N = (rng.normal(size=samples) + member_N).round(6)
    table = pd.DataFrame({"score": score_N, "member": member_N.astype(np.int8)})
    paths = [folder / f"scores.{suffix}" for suffix in ("csv", "parquet", "npz")]
    table.to_csv(paths[0], index=False)
    table.to_parquet(paths[1])
    np.savez(paths[2], score_MxN=score_N, member_MxN=member_N)
    return paths


def write_covariates(folder: Path, samples: int, *, has_texts: bool) -> Path:
    """Writes scores with four numbers, or with texts, in which members and non-members differ."""
    rng = np.random.default_rng(0)
    number_Nx4 = rng.normal(size=(samples, 4))
    member_N = rng.random(samples) < 1 / (1 + np.exp(-number_Nx4[:, 0]))
    score_N = number_Nx4[:, 0] + rng.normal(size=samples) + member_N
    table = pd.DataFrame({"score": score_N, "member": member_N.astype(np.int8)})
    if not has_texts:
        table = table.assign(**dict(zip("abcd", number_Nx4.T, strict=True)))
    else:
        # Words by Zipf's law; members have more of the word that begins each text.
        word_V = np.array([f"word{v}" for v in range(50_000)], object)
        share_V = 1 / np.arange(1, word_V.size + 1)
        share_V = np.cumsum(share_V / share_V.sum())
        texts = []
        for is_large in number_Nx4[:, 0] > 0:
            words = word_V[np.searchsorted(share_V[:-1], rng.random(100))]
            texts.append(" ".join(["large " * 5 if is_large else "small", *words]))
        table["text"] = texts
    path = folder / ("texts.parquet" if has_texts else "numbers.parquet")
    table.to_parquet(path)
    return path


def write_losses(folder: Path, samples: int) -> Path:
    """Writes losses that depend on membership, without holding all of them in memory."""
    rng = np.random.default_rng(0)
    difficulty_N = rng.standard_normal(samples, dtype=np.float32) + 3
    path = folder / "losses.npz"
    shape = (1 + REFERENCES, samples)
    loss = open_memmap(folder / "loss.npy", "w+", np.float32, shape)
    member = open_memmap(folder / "member.npy", "w+", np.bool_, shape)
    for m in range(len(loss)):
        member[m] = rng.random(samples) < 0.5
        noise_N = rng.standard_normal(samples, dtype=np.float32)
        loss[m] = difficulty_N + 0.3 * (noise_N - member[m])
    roles = np.array(["target", *["reference"] * REFERENCES])
    arrays = {"loss_MxN": loss, "member_MxN": member, "role_M": roles}
    np.savez(path, **arrays)
    return path


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Seconds and peak memory of `lm-mia audit`")
    parser.add_argument("--largest", type=int, default=20, help="log2 of the most samples")
    parser.add_argument("--only", choices=("covariates",), help="only files with covariates")
    options = parser.parse_args()
    largest = options.largest
    print("| file | samples | MB | seconds | CPU seconds | peak MiB |")
    print("|---|---|---|---|---|---|")

    def row(path: Path, samples: int, *flags: str) -> None:
        seconds, cpu_seconds, mib = measure(path, *flags)
        mb = path.stat().st_size / 1e6
        name = f"{path.name} {' '.join(flags)}".strip()
        numbers = f"{mb:,.1f} | {seconds:.1f} | {cpu_seconds:.1f} | {mib:,.0f}"
        print(f"| `{name}` | {samples:,} | {numbers} |", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for log_samples in (12, 16, largest):
            for has_texts, flag in ((False, "--covariates=a,b,c,d"), (True, "--text=text")):
                path = write_covariates(Path(folder), 2**log_samples, has_texts=has_texts)
                row(path, 2**log_samples, flag)
        if options.only:
            return
        for log_samples in range(12, largest, 4):
            row(write_scores(Path(folder), 2**log_samples)[0], 2**log_samples, "--membership=coins")
        paths = write_scores(Path(folder), 2**largest)
        for path in paths:
            row(path, 2**largest, "--membership=coins")
        row(paths[0], 2**largest, "--membership=half")
        row(paths[0], 2**largest, "--membership=independent")
        row(write_losses(Path(folder), 2**largest), 2**largest)


if __name__ == "__main__":
    main()
