"""Who is a member: rows, their seeds, and membership as a pure function of (subset_seed, 2N, design).

A row is one trained model of a recipe. References have subsets of their own; replicas of a target share the subset and
the initial weights and differ in the order of their batches.
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from lm_mia import config
from lm_mia.seeds import coins, permutation

Design = Literal["exact", "bernoulli", "balanced"]
Role = Literal["reference", "replica"]

# Subset and init seeds of targets start here, out of the way of any number of references. It is even, so that under
# the balanced design a target is the first of a pair of its own, never the complement of a reference.
TARGET_SEED = 2**31


@dataclasses.dataclass(frozen=True)
class ModelSeeds:
    """One model of a recipe. The role and the three seeds identify it; folders, logs and tables use its `name`."""

    role: Role
    subset_seed: int
    init_seed: int
    order_seed: int

    @property
    def name(self) -> str:
        """The short name, such as reference-07 or replica-03: the role and the number within it.

        The number has at least two digits. It is the subset seed of a reference and the order seed of a replica, so
        names are unique among the models that `rows` returns and do not change when models are added.
        """
        number = self.subset_seed if self.role == "reference" else self.order_seed
        return f"{self.role}-{number:02d}"

    def __str__(self) -> str:
        return self.name


def requested_seeds(references: int, replicas: int) -> list[ModelSeeds]:
    """The rows of an attack: references 0, 1, ..., then the replicas of one target.

    Growing either number keeps every row that was there before.
    """
    return [*map(reference, range(references)), *map(replica, range(replicas))]


def reference(i: int) -> ModelSeeds:
    """Reference number i."""
    return ModelSeeds("reference", i, i, i)


def replica(b: int) -> ModelSeeds:
    """Replica number b of the target."""
    return ModelSeeds("replica", TARGET_SEED, TARGET_SEED, b)


def member(subset_seed: int, samples: int, design: Design) -> np.ndarray:
    """Membership of every sample in one row's training subset.

    exact: a uniformly drawn half. bernoulli: each sample with probability 1/2, so that the size varies. balanced:
    seeds 2i and 2i+1 are an exact half and its complement, so that in any block of references that starts at an even
    seed and has an even number of rows every sample is IN exactly half of them (and every row still has N members).

    Returns:
      member_N2, bool over the 2N samples.
    """
    if design == "bernoulli":
        return coins(subset_seed, "subset bernoulli", samples)
    if design == "balanced":
        first, complement = subset_seed - subset_seed % 2, subset_seed % 2 == 1
        return _half(first, "subset balanced", samples) ^ complement
    return _half(subset_seed, "subset exact", samples)


def members(models: Iterable[ModelSeeds], samples: int, design: Design) -> np.ndarray:
    """member_MxN2, bool: ``member`` of every row."""
    return np.stack([member(row.subset_seed, samples, design) for row in models])


def _half(seed: int, purpose: str, samples: int) -> np.ndarray:
    member_N2 = np.zeros(samples, bool)
    member_N2[permutation(seed, purpose, samples)[: samples // 2]] = True
    return member_N2


def models_of_config(c: config.Config) -> list[ModelSeeds]:
    """The rows that a config asks for."""
    return requested_seeds(c.attack.references, c.attack.replicas)
