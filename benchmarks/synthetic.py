"""Losses like those of trained models, but drawn: Gaussians of every sample's own mean, gap and spread.

N samples, M references, T targets, Z population samples. Nats a token, float32, as a score store
has them. The targets are replicas: they share one training subset. LiRA's AUC on them is about 0.7.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm_mia.data import subsets
from lm_mia.store.store import Store


@dataclasses.dataclass(frozen=True)
class World:
    """How the losses of any row are drawn: of each sample its mean, its gap and its spread."""

    level_N: NDArray[np.float32]
    gap_N: NDArray[np.float32]
    """How far training on the sample lowers its loss."""
    spread_N: NDArray[np.float32]
    seed: int

    def members(self, rows: int) -> Iterator[NDArray[np.bool_]]:
        """Fair coins, balanced in pairs: of an even number of rows just half have a sample."""
        coin_N = np.zeros(len(self.level_N), bool)
        for row in range(rows):
            if row % 2 == 0:
                coin_N = np.random.default_rng([self.seed, 1, row]).random(len(coin_N)) < 0.5
            yield coin_N if row % 2 == 0 else ~coin_N

    def losses(self, name: int, row: int, member_N: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The losses of one row; `name` tells references (2) from targets (3)."""
        rng = np.random.default_rng([self.seed, name, row])
        noise_N = rng.standard_normal(len(member_N), dtype=np.float32)
        loss_N = self.level_N - self.gap_N * member_N + self.spread_N * noise_N
        return loss_N.astype(np.float32, copy=False)


def world(samples: int, seed: int = 0) -> World:
    """Means of 3 +- 0.6 nats, spreads of 0.05 to 0.15, gaps of 0.8 spreads on average."""
    rng = np.random.default_rng([seed, 0])
    level_N = rng.normal(3, 0.6, samples).clip(0.5).astype(np.float32)
    spread_N = rng.uniform(0.05, 0.15, samples).astype(np.float32)
    gap_N = (spread_N * rng.gamma(2, 0.4, samples)).astype(np.float32)
    return World(level_N, gap_N, spread_N, seed)


def write(folder: Path, samples: int, references: int, targets: int, population: int = 0) -> None:
    """Arrays of an attack as .npy files in the folder, written a row at a time.

    target_loss (T x N), target_member (N), reference_loss and reference_member (M x N), and, of
    samples that no row has trained on, population_target (T x Z) and population_reference (M x Z).
    """
    folder.mkdir(parents=True, exist_ok=True)
    here, far = world(samples), world(population, seed=1)
    member_N = next(world(samples, seed=2).members(1))
    nobody_Z = np.zeros(population, bool)
    np.save(folder / "target_member.npy", member_N)
    member = _new(folder / "reference_member.npy", (references, samples), np.bool_)
    for row, coin_N in enumerate(here.members(references)):
        member[row] = coin_N
    for kind, name, rows in (("reference", 2, references), ("target", 3, targets)):
        loss = _new(folder / f"{kind}_loss.npy", (rows, samples), np.float32)
        loss_Z = _new(folder / f"population_{kind}.npy", (rows, population), np.float32)
        for row in range(rows):
            loss[row] = here.losses(name, row, member[row] if kind == "reference" else member_N)
            loss_Z[row] = far.losses(name, row, nobody_Z)


def write_store(folder: Path, samples: int, references: int, targets: int) -> Store:
    """A score store, as training and scoring of the rows would leave it, written by its own code."""
    store, rows = Store(folder / "scores.zarr"), subsets.requested_seeds(references, targets)
    store.create_or_extend(rows, {"tokens": np.full(samples, 128)}, {})
    here = world(samples)
    member_N = next(world(samples, seed=2).members(1))
    for i, coin_N in enumerate(here.members(references)):
        store.write_model(rows[i], here.losses(2, i, coin_N), coin_N)
    for i, row in enumerate(rows[references:]):
        store.write_model(row, here.losses(3, i, member_N), member_N)
    return store


def read(folder: Path, name: str) -> NDArray:
    """One of the arrays that `write` wrote."""
    return np.load(folder / f"{name}.npy")


def _new(path: Path, shape: tuple[int, int], dtype: type) -> NDArray:
    if 0 in shape:  # no file can be mapped empty
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, "w+", dtype, shape)
