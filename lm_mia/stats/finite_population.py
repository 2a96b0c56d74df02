"""How training subsets of one finite population make losses vary less than training sets drawn anew.

Legend: M models, N samples of the population, D dimensions.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.lira import fit_gaussians


@dataclasses.dataclass(frozen=True)
class FinitePopulationSimulation:
    """Standard deviations (SD) of the statistic of each sample, over models with and without the sample."""

    norm_N: FloatArray
    """Euclidean norm of each sample."""
    empirical_sd_in_N: FloatArray
    """Estimated from the models that were trained on the sample; all training subsets are from one population."""
    empirical_sd_out_N: FloatArray
    """The same for the models that were not trained on the sample."""
    analytical_sd_in_N: FloatArray
    """The true SD over training sets that are drawn anew for each model and contain the sample."""
    analytical_sd_out_N: FloatArray
    """The true SD over training sets that are drawn anew for each model and do not contain the sample."""


def simulate_finite_population(
    models: int = 2048,
    population: int = 1000,
    training_samples: int = 500,
    dimensions: int = 500,
    *,
    seed: int = 0,
) -> FinitePopulationSimulation:
    """Simulates models whose training subsets are drawn from one population, and compares the spread with theory.

    Samples are standard normal vectors. The population is drawn once. A model is the mean of its n training samples,
    which are drawn from the P samples of the population without replacement, and the statistic of a sample x is its
    inner product with the model.

    If the training samples were drawn anew for each model, inner products of x with them would be independent and
    normal with mean 0 and variance |x|^2, so that the SD of the statistic would be

    - |x| / sqrt(n) for models without x, which average n such products, and
    - |x| sqrt(n - 1) / n for models with x, where the product of x with itself is constant.

    Given the population, a mean of n of the P - 1 other samples has a variance that is smaller by the factor
    1 - n / (P - 1), and a sum of n - 1 of them by 1 - (n - 1) / (P - 1). With f = n / P, both SDs are smaller by nearly
    sqrt(1 - f), so the ratios tend to 0, rather than to 1, as f tends to 1. Reliability's caption of Figure A3 says
    that the empirical SD fails as f tends to 0: this is reversed.

    Args:
      models: number of models.
      population: number of samples of the population, P.
      training_samples: number of training samples of each model, n, from 2 to P - 2.
      dimensions: number of dimensions of a sample.
      seed: the seed of the population and of the subsets.

    Returns:
      The empirical and the analytical standard deviations of each sample. The empirical ones are NaN if fewer than two
      models are of the class.

    Raises:
      ValueError: if training_samples is not in its range, or another number is below 1.

    Source: Reliability, section 6.2 and Figures 2 and A3. Its factor 1 - f (Eq. 27) is relative to draws from the
    distribution of the population. Relative to draws with replacement from the population itself, as the text says, it
    would be (P - n) / (P - 1).

    Example:
      >>> from lm_mia.stats import simulate_finite_population
      >>> result = simulate_finite_population(models=512, population=200, training_samples=100)
      >>> float((result.empirical_sd_out_N / result.analytical_sd_out_N).mean().round(2))
      0.71
    """
    for name, number in (("models", models), ("dimensions", dimensions)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if not 2 <= training_samples <= population - 2:
        raise ValueError(
            f"training_samples={training_samples}: must be from 2 to {population - 2}, 2 below the population"
        )
    generator = np.random.default_rng(seed)
    sample_NxD = generator.standard_normal((population, dimensions))
    # The samples with the smallest of N random numbers are a random subset.
    order_MxN = np.argpartition(generator.random((models, population)), training_samples - 1)
    member_MxN = np.zeros((models, population), np.bool_)
    np.put_along_axis(member_MxN, order_MxN[:, :training_samples], True, axis=1)
    statistic_MxN = member_MxN @ sample_NxD @ sample_NxD.T / training_samples
    gaussians = fit_gaussians(statistic_MxN, member_MxN)
    norm_N = np.linalg.norm(sample_NxD, axis=1)
    return FinitePopulationSimulation(
        norm_N=norm_N,
        empirical_sd_in_N=np.sqrt(gaussians.var_in_N),
        empirical_sd_out_N=np.sqrt(gaussians.var_out_N),
        analytical_sd_in_N=norm_N * np.sqrt(training_samples - 1) / training_samples,
        analytical_sd_out_N=norm_N / np.sqrt(training_samples),
    )
