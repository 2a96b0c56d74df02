"""Random losses that resemble those of trained models: Gaussians whose mean, gap and spread differ between samples.

Losses are in nats per token, float32, as in a score store. The targets are replicas, which share one training subset.
LiRA's AUC on them is about 0.7.

N: samples, M: references, T: targets, Z: population samples.
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
    """The distribution of losses: mean, gap and spread of each sample."""

    level_N: NDArray[np.float32]
    gap_N: NDArray[np.float32]
    """How much training on the sample lowers its loss."""
    spread_N: NDArray[np.float32]
    seed: int

    def members(self, models: int) -> Iterator[NDArray[np.bool_]]:
        """Yields the membership of each model: fair coin flips, with complements as pairs (a balanced design)."""
        coin_N = np.zeros(len(self.level_N), bool)
        for model in range(models):
            if model % 2 == 0:
                coin_N = np.random.default_rng([self.seed, 1, model]).random(len(coin_N)) < 0.5
            yield coin_N if model % 2 == 0 else ~coin_N

    def losses(self, role: int, model: int, member_N: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Returns the losses of one model; `role` is 2 for references and 3 for targets."""
        rng = np.random.default_rng([self.seed, role, model])
        noise_N = rng.standard_normal(len(member_N), dtype=np.float32)
        loss_N = self.level_N - self.gap_N * member_N + self.spread_N * noise_N
        return loss_N.astype(np.float32, copy=False)


def world(samples: int, seed: int = 0) -> World:
    """Returns a world with means of 3 +- 0.6 nats, spreads from 0.05 to 0.15, and gaps of 0.8 spreads on average."""
    rng = np.random.default_rng([seed, 0])
    level_N = rng.normal(3, 0.6, samples).clip(0.5).astype(np.float32)
    spread_N = rng.uniform(0.05, 0.15, samples).astype(np.float32)
    gap_N = (spread_N * rng.gamma(2, 0.4, samples)).astype(np.float32)
    return World(level_N, gap_N, spread_N, seed)


def write(folder: Path, samples: int, references: int, targets: int, population: int = 0) -> None:
    """Writes the arrays of an attack as .npy files, one model at a time.

    The arrays are target_loss (T x N), target_member (N), reference_loss and reference_member (M x N), and, for samples
    that no model was trained on, population_target (T x Z) and population_reference (M x Z).
    """
    folder.mkdir(parents=True, exist_ok=True)
    main, unseen = world(samples), world(population, seed=1)
    member_N = next(world(samples, seed=2).members(1))
    nobody_Z = np.zeros(population, bool)
    np.save(folder / "target_member.npy", member_N)
    member = _new(folder / "reference_member.npy", (references, samples), np.bool_)
    for model, coin_N in enumerate(main.members(references)):
        member[model] = coin_N
    for name, role, models in (("reference", 2, references), ("target", 3, targets)):
        loss = _new(folder / f"{name}_loss.npy", (models, samples), np.float32)
        loss_Z = _new(folder / f"population_{name}.npy", (models, population), np.float32)
        for model in range(models):
            loss[model] = main.losses(
                role, model, member[model] if name == "reference" else member_N
            )
            loss_Z[model] = unseen.losses(role, model, nobody_Z)


def write_store(folder: Path, samples: int, references: int, targets: int) -> Store:
    """Writes a score store as training and scoring would."""
    store, models = Store(folder / "scores.zarr"), subsets.requested_seeds(references, targets)
    store.create_or_extend(models, {"tokens": np.full(samples, 128)}, {})
    main = world(samples)
    member_N = next(world(samples, seed=2).members(1))
    for i, coin_N in enumerate(main.members(references)):
        store.write_model(models[i], main.losses(2, i, coin_N), coin_N)
    for i, model in enumerate(models[references:]):
        store.write_model(model, main.losses(3, i, member_N), member_N)
    return store


def read(folder: Path, name: str) -> NDArray:
    """Returns one of the arrays of `write`."""
    return np.load(folder / f"{name}.npy")


def _new(path: Path, shape: tuple[int, int], dtype: type) -> NDArray:
    if 0 in shape:  # an empty file cannot be memory-mapped
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, "w+", dtype, shape)
