"""A synthetic sweep that has every recipe of configs/strongmia.py:cpu, with few rows and samples."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest

from analysis.figures import MODULES
from lm_mia.config import Config, Corpus, Tokenizer, load

ROOT = Path(__file__).resolve().parents[2]


def entries(corpus: Path) -> list[tuple[dict[str, Any], Config]]:
    """Of the paper's figures at cpu, with an eighth of the samples and fewer rows."""
    return [
        (sets, smaller(c, corpus)) for sets, c in load.sweep(f"{ROOT}/configs/strongmia.py:cpu")
    ]


def smaller(c: Config, corpus: Path) -> Config:
    n, a = max(c.population.samples // 16, 24), c.attack
    population = dataclasses.replace(c.population, samples=2 * n, validation_samples=8)
    attack = dataclasses.replace(
        a,
        references=16 + 4 * bool(a.targets) + 8 * (a.references > 40),
        targets=4 * bool(a.targets),
        replicas=min(a.replicas, 8),
    )
    return dataclasses.replace(
        c,
        corpus=Corpus(source="parquet", path=str(corpus), deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=150),
        population=population,
        train=dataclasses.replace(c.train, validations=2),
        optimizer=dataclasses.replace(c.optimizer, warmup_steps=1),
        attack=attack,
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir of many recipes, made by whichever test process asks first; nothing is extracted."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "figures"
    with filelock.FileLock(found.with_suffix(".lock")):
        if not (found / "done").exists():
            make(found)
            (found / "done").write_text("")
    return found / "sweep"


def make(folder: Path, gain: float = 1.0, only: tuple[str, ...] = ("",)) -> None:
    """A sweep, of the recipes whose names begin with one of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        synthetic_sweep = importlib.import_module("synthetic_sweep")
        folder.mkdir(parents=True, exist_ok=True)
        synthetic_sweep.corpus(folder / "corpus.parquet", 1000)
        some = [e for e in entries(folder / "corpus.parquet") if e[1].name.startswith(only)]
        tasks = synthetic_sweep.write(folder / "sweep", some, gain)
        synthetic_sweep.attacked(tasks, [*MODULES])


if __name__ == "__main__":
    make(Path(sys.argv[1]), float(sys.argv[2]))
