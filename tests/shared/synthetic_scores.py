"""Score stores of made-up losses, and attacks on them, shared by tests of attacks."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from lm_mia import config
from lm_mia.attacks import runner
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.store.store import Store


class Texts:
    """What an attack asks of a population."""

    def __init__(self, samples: int) -> None:
        self.lengths_N = np.arange(samples) % 7 + 3
        number_N = np.arange(samples)
        self.columns = {"tokens": self.lengths_N, "unk": number_N % 3}
        self.columns |= {"zlib_bytes": 40 + number_N * 13 % 101}
        self.columns |= {"tfidf": 1 + number_N % 5 / 4, "prefix_group": number_N // 2 * 2}

    def column(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.lengths_N)

    def text(self, i: int) -> str:
        return f"text {i} " + "x" * 500


@dataclasses.dataclass(frozen=True)
class Scored:
    """A score store, references first, and all that is in it."""

    store: Store
    references: int
    loss_MxN: np.ndarray
    member_MxN: np.ndarray
    statistics: Mapping[str, np.ndarray]

    @property
    def population(self) -> Population:
        return cast(Population, Texts(self.loss_MxN.shape[1]))

    @property
    def reference_MxN(self) -> np.ndarray:
        return self.loss_MxN[: self.references]

    @property
    def reference_member_MxN(self) -> np.ndarray:
        return self.member_MxN[: self.references]

    @property
    def target_TxN(self) -> np.ndarray:
        return self.loss_MxN[self.references :]

    @property
    def member_N(self) -> np.ndarray:
        return self.member_MxN[self.references]


def scored(
    folder: Path,
    c: config.Attack,
    samples: int,
    design: subsets.Design = "exact",
    effect: float = 0.3,
    statistics: Sequence[str] = (),
    absent: Sequence[int] = (),
    labels: Callable[[np.ndarray], None] = lambda member_MxN: None,
) -> Scored:
    """A store of rows whose samples differ by 0.5 nats and models by 0.2, and whose members' losses are lower.

    Rows that are absent are in the store's list alone; labels may change who is a member.
    """
    rng = np.random.default_rng(0)
    rows = subsets.requested_seeds(c.references, c.replicas)
    member_MxN = subsets.members(rows, samples, design)
    labels(member_MxN)
    level_N, noise_MxN = rng.normal(4, 0.5, samples), rng.normal(0, 0.2, member_MxN.shape)
    loss_MxN = (level_N - effect * member_MxN + noise_MxN).astype(np.float32)
    values = {
        "min_k": -1.5 * loss_MxN,
        "min_k_plus_plus": -loss_MxN / level_N,
        "lowercase_loss": level_N + 0.4 + rng.normal(0, 0.1, loss_MxN.shape),
    }
    values = {name: values[name].astype(np.float32) for name in statistics}
    store = Store(folder / "recipe_x" / "scores.zarr", tuple(statistics))
    store.path.parent.mkdir(parents=True)
    store.create_or_extend(rows, {"tokens": np.arange(samples)}, {})
    for m, row in enumerate(rows):
        if m not in absent:
            row_values = {name: value_MxN[m] for name, value_MxN in values.items()}
            store.write_model(row, loss_MxN[m], member_MxN[m], row_values)
    there = [m for m in range(len(rows)) if m not in absent]
    return Scored(
        store,
        sum(m < c.references for m in there),
        loss_MxN[there],
        member_MxN[there],
        {name: value_MxN[there] for name, value_MxN in values.items()},
    )


@dataclasses.dataclass(frozen=True)
class Ran:
    """An attack on a store, and what it left and said."""

    of: Scored
    c: config.Attack
    folder: Path
    said: list[str]
    progress: list[tuple[str, int, int]]

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name)

    def samples(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "samples.parquet")


def ran(of: Scored, c: config.Attack, folder: Path) -> Ran:
    """Attacks a store."""
    out = Ran(of, c, folder, [], [])
    runner.run(
        of.store, of.population, c, folder, lambda *n: out.progress.append(n), out.said.append
    )
    return out


SMALL = config.Attack(
    references=12,
    replicas=8,
    fprs=(0.02, 0.1, 0.5, 1.0),
    focus_fpr=0.1,
    band=(0.01, 0.2),
    rmia_samples=100,
    bootstraps=30,
    clear_separation=1.5,
)
