"""Seeds of the models of a recipe, and membership as a pure function of (subset_seed, 2N, design, canaries).

Each reference has a training subset of its own. The replicas of a target share their subset and initial weights, and
differ in the order of their batches. Crossed models share the subset of the replicas and have other initial weights;
each of their initializations is combined with the orders of the first replicas. With canaries, subsets differ in the
last samples only, and contain all others.

M: models, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from lm_mia import config
from lm_mia.seeds import coins, permutation

Design = Literal["exact", "bernoulli", "balanced", "given"]
Role = Literal["reference", "replica", "crossed", "base"]
"""A base is the model that the others were fine-tuned from. It is never a reference, and no design contains it."""

# Subset seed and init seed of the target, larger than those of any reference. It is even, so that in the
# balanced design the target is the first model of its own pair, never the complement of a reference.
TARGET_SEED = 2**31


@dataclasses.dataclass(frozen=True)
class ModelSeeds:
    """The role and the three seeds that identify a model of a recipe; folders, logs and tables use its `name`."""

    role: Role
    subset_seed: int
    init_seed: int
    order_seed: int

    @property
    def name(self) -> str:
        """The role and a number, such as reference-07 or replica-03, or two numbers, such as crossed-01-03.

        A number has at least two digits. It is the subset seed of a reference, the order seed of a replica, and the
        number of the initialization and the order seed of a crossed model, so that names are unique among the
        `requested_seeds` and do not change when models are added.
        """
        if self.role == "crossed":
            return f"crossed-{self.init_seed - TARGET_SEED:02d}-{self.order_seed:02d}"
        number = self.subset_seed if self.role == "reference" else self.order_seed
        return f"{self.role}-{number:02d}"

    def __str__(self) -> str:
        return self.name


def requested_seeds(
    references: int, replicas: int, inits: int = 1, orders_per_init: int = 0
) -> list[ModelSeeds]:
    """Returns the models of an attack: references 0, 1, ..., then the replicas of one target, then crossed models.

    If a number is increased, all previous models remain.

    Args:
      references: number of references.
      replicas: number of replicas, all of which have initialization 0.
      inits: number of initializations of the target.
      orders_per_init: number of crossed models of each initialization other than 0.
    """
    crossed_models = [crossed(i, b) for i in range(1, inits) for b in range(orders_per_init)]
    return [*map(reference, range(references)), *map(replica, range(replicas)), *crossed_models]


def reference(i: int) -> ModelSeeds:
    """Returns the seeds of reference i."""
    return ModelSeeds("reference", i, i, i)


def replica(b: int) -> ModelSeeds:
    """Returns the seeds of replica b of the target."""
    return ModelSeeds("replica", TARGET_SEED, TARGET_SEED, b)


def base() -> ModelSeeds:
    """Returns the seeds of the base, which was trained on none of the samples: placeholders, like those of imports."""
    return ModelSeeds("base", 0, 0, 0)


def crossed(init: int, b: int) -> ModelSeeds:
    """Returns the seeds of the target in the order of replica b from another initialization, 1, 2, and so on."""
    return ModelSeeds("crossed", TARGET_SEED, TARGET_SEED + init, b)


def member(subset_seed: int, samples: int, design: Design, canaries: int = 0) -> np.ndarray:
    """Returns which samples are in the training subset of a model.

    Args:
      subset_seed: the model's subset seed.
      samples: 2N, the number of samples.
      design: "exact": a uniformly drawn half of the samples. "bernoulli": each sample with probability 1/2, so that the
        size varies. "balanced": the subsets of seeds 2i and 2i + 1 are an exact half and its complement, so that each
        sample is IN exactly half of the models of any block that has an even first seed and an even size.
      canaries: number of samples, the last ones, that the design draws from; all others are in the subset. 0: it draws
        from all samples.

    Returns:
      member_N2, bool.

    Raises:
      ValueError: for "given", the membership of imported losses, which is not drawn.
    """
    if design == "given":
        raise ValueError("design='given': the membership of imported losses is not drawn; read it")
    if canaries:
        always_in = np.ones(samples - canaries, bool)
        return np.concatenate([always_in, member(subset_seed, canaries, design)])
    if design == "bernoulli":
        return coins(subset_seed, "subset bernoulli", samples)
    if design == "balanced":
        first, complement = subset_seed - subset_seed % 2, subset_seed % 2 == 1
        return _half(first, "subset balanced", samples) ^ complement
    return _half(subset_seed, "subset exact", samples)


def members(
    models: Iterable[ModelSeeds], samples: int, design: Design, canaries: int = 0
) -> np.ndarray:
    """Returns member_MxN2, bool: the `member` array of each model."""
    return np.stack([member(model.subset_seed, samples, design, canaries) for model in models])


def member_of_config(model: ModelSeeds, c: config.Config) -> np.ndarray:
    """Returns member_N2, bool: the `member` array of a model that a config requests."""
    train, samples = c.train, c.population.samples
    if model.role == "base":  # trained on none of them
        return np.zeros(samples, bool)
    return member(model.subset_seed, samples, train.subset, config.number(train.canaries))


def _half(seed: int, purpose: str, samples: int) -> np.ndarray:
    member_N2 = np.zeros(samples, bool)
    member_N2[permutation(seed, purpose, samples)[: samples // 2]] = True
    return member_N2


def models_of_config(c: config.Config) -> list[ModelSeeds]:
    """Returns the references, replicas and crossed models that a config requests, and the base if they have one."""
    a = c.attack
    bases = [base()] if config.starts_from_checkpoint(c) else []
    trained = requested_seeds(a.references, a.replicas, a.replica_inits, a.orders_per_init)
    return [*trained, *bases]
