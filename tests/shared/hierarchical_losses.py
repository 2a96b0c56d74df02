"""Losses drawn from the model of `shrunk_lira`.

Legend: T targets, M references, N samples, B both (references, then targets). One covariate x, standard normal.
"""

import dataclasses
from typing import Any, Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class Losses:
    target_TxN: Any  # float arrays
    reference_MxN: Any
    reference_member_MxN: Any  # boolean arrays
    target_member_TxN: Any
    covariate_Nx1: Any

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """The arguments of the attacks."""
        return self.target_TxN, self.reference_MxN, self.reference_member_MxN


def draw_losses(
    seed: int | list[int],
    references: int,
    samples: int,
    *,
    targets: int = 2,
    design: Literal["exact", "bernoulli", "balanced"] = "exact",
    gap: tuple[float, float] = (0.3, 0.1),
    log_variance: tuple[float, float] = (-3.0, 0.5),
    freedom: float = 8.0,
    gap_spread: float = 0.5,
    model_effect: float = 0.1,
    level_sd: float = 0.5,
) -> Losses:
    """Draws losses whose gap and log variance are (intercept, slope) in x; other priors are named as in `LossModel`."""
    rng = np.random.default_rng(seed)
    x_N = rng.normal(size=samples)
    variance_N = np.exp(log_variance[0] + log_variance[1] * x_N)
    if np.isfinite(freedom):
        variance_N = variance_N * freedom / rng.chisquare(freedom, samples)
    gap_N = gap[0] + gap[1] * x_N + rng.normal(size=samples) * np.sqrt(gap_spread * variance_N)

    def members(models: int) -> np.ndarray:
        if design == "bernoulli":
            return rng.random((models, samples)) < 0.5
        return rng.random((models, samples)).argsort(axis=1) < samples // 2

    if design == "balanced":
        reference_member_MxN = np.repeat(members(references // 2), 2, axis=0)
        reference_member_MxN[1::2] ^= True
    else:
        reference_member_MxN = members(references)
    member_BxN = np.concatenate([reference_member_MxN, members(targets)])
    loss_BxN = rng.normal(4, level_sd, samples) - gap_N * member_BxN
    loss_BxN += rng.normal(0, model_effect, (len(member_BxN), 2)) @ [np.ones(samples), x_N]
    loss_BxN += rng.normal(size=member_BxN.shape) * np.sqrt(variance_N)
    return Losses(
        loss_BxN[references:],
        loss_BxN[:references],
        member_BxN[:references],
        member_BxN[references:],
        x_N[:, None],
    )
