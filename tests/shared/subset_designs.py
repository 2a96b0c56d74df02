"""Training subsets of models, drawn in the ways that people draw them."""

import numpy as np


def exact(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN: each model has a random half of the samples."""
    return np.argsort(rng.random((models, samples)), axis=1).argsort(axis=1) < samples // 2


def pairs(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN: models 2i and 2i + 1 have complementary halves."""
    half_PxN = exact(rng, models // 2, samples)
    return np.stack([half_PxN, ~half_PxN], axis=1).reshape(models, samples)


def columns(rng: np.random.Generator, models: int, samples: int) -> np.ndarray:
    """Returns member_MxN: each sample is in exactly half of the subsets."""
    return np.argsort(rng.random((models, samples)), axis=0).argsort(axis=0) < models // 2


def seeds(member_SxN: np.ndarray, count: int = 2) -> np.ndarray:
    """Returns member_MxN: each subset is that of several models, one after another."""
    return np.repeat(member_SxN, count, axis=0)


def with_untrained(member_MxN: np.ndarray, samples: int) -> np.ndarray:
    """Appends samples that no model is trained on."""
    return np.pad(member_MxN, ((0, 0), (0, samples)))


def with_always_trained(member_MxN: np.ndarray, samples: int) -> np.ndarray:
    """Appends samples that all models are trained on."""
    return np.pad(member_MxN, ((0, 0), (0, samples)), constant_values=True)


def overlapping(
    rng: np.random.Generator, models: int, samples: int, correlation: float
) -> np.ndarray:
    """Returns member_MxN: any two subsets have the same positive correlation."""
    common_N, own_MxN = rng.random(samples) < 0.5, rng.random((models, samples)) < 0.5
    return np.where(rng.random((models, samples)) < np.sqrt(correlation), common_N, own_MxN)
