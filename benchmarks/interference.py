"""Simulates one-run estimates of models that share their samples, and the truth with references.

    python -m benchmarks interference [--experiments 400]

Prints two Markdown tables, in about a minute on one core. In each experiment, M models are trained on halves of the
same 400 samples. A sample's score is Y(0) ~ N(0, 1) in a model without it, and its effect ~ N(0.5, 0.5^2) is added in a
model with it; models add noise ~ N(0, 0.5^2) to each score. With interference, a model also multiplies all effects by
1 + s z, z ~ N(0, 1), as models do that memorize more or less.

The first table compares the standard deviation of one-run estimates over models with that of independent samples. The
second table shows why the references of the truth must not be the models that it is computed from.

M: models, N: samples.
"""

import argparse

import numpy as np

from lm_mia import stats

SAMPLES = 400
DESIGNS = ("exact", "bernoulli")


def simulate(
    rng: np.random.Generator, models: int, design: str, interference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns score_MxN and member_MxN."""
    out_N, effect_N = rng.normal(size=SAMPLES), rng.normal(0.5, 0.5, SAMPLES)
    if design == "exact":
        half_MxN = np.tile(np.arange(SAMPLES) < SAMPLES // 2, (models, 1))
        member_MxN = rng.permuted(half_MxN, axis=1)
    else:
        member_MxN = rng.random((models, SAMPLES)) < 0.5
    scale_Mx1 = 1 + interference * rng.normal(size=(models, 1))
    noise_MxN = rng.normal(0, 0.5, member_MxN.shape)
    return out_N + member_MxN * effect_N * scale_Mx1 + noise_MxN, member_MxN


def variance_of_effects(value_MxN: np.ndarray, member_MxN: np.ndarray) -> float:
    """Returns `stats.effect_variance` of scores or placements."""
    truth = stats.potential_outcomes(
        lambda: [(value_MxN, member_MxN)], np.ones(value_MxN.shape[1]), 0.1
    )
    return stats.effect_variance(truth.effect_N, truth.effect_se_N)


def spread(experiments: int) -> None:
    """Prints standard deviations over models, as shares of the observed one."""
    print(
        "| models | subsets | interference s | metric | observed SD | expected SD | as if samples were new |"
    )
    print("|---|---|---|---|---|---|---|")
    for models in (16, 40):
        for design in DESIGNS:
            for interference in (0.0, 0.2):
                rng = np.random.default_rng(0)
                variances = np.zeros((2, 3))
                for _ in range(experiments):
                    score_MxN, member_MxN = simulate(rng, models, design, interference)
                    rows = [*zip(score_MxN, member_MxN, strict=True)]
                    placement_MxN = np.array([stats.placements(*row) for row in rows])
                    ate_M = [s[m].mean() - s[~m].mean() for s, m in rows]
                    estimates = ate_M, stats.auc(score_MxN, member_MxN).auc_T
                    for i, value_MxN in enumerate((score_MxN, placement_MxN)):
                        rows = [*zip(value_MxN, member_MxN, strict=True)]
                        of_effects = variance_of_effects(value_MxN, member_MxN)
                        variances[i] += (
                            np.var(estimates[i], ddof=1),
                            np.mean([stats.independent_sd(*row, of_effects) ** 2 for row in rows]),
                            np.mean([stats.independent_sd(*row) ** 2 for row in rows]),
                        )
                for metric, of_metric in zip(("ATE", "AUC"), variances, strict=True):
                    values = " | ".join(f"{sd:.4f}" for sd in np.sqrt(of_metric / experiments))
                    print(f"| {models} | {design} | {interference:g} | {metric} | {values} |")
    print()


def references(experiments: int) -> None:
    """Prints the mean truth about calibrated scores, by the references of the models that it is computed from."""
    print("| models | references of each model | ATE (right: 0.500) | AUC | AUC of new models |")
    print("|---|---|---|---|---|")
    for models in (8, 16, 40):
        for name in ("all others", "the other half"):
            rng = np.random.default_rng(0)
            total = np.zeros(3)
            for _ in range(experiments):
                score_MxN, member_MxN = simulate(rng, models, "exact", 0.0)
                half = models // 2
                if name == "all others":
                    mean_MxN = (score_MxN.sum(axis=0) - score_MxN) / (models - 1)
                    groups, count = [slice(None)], models - 1
                else:
                    parts = score_MxN[half:].mean(axis=0), score_MxN[:half].mean(axis=0)
                    mean_MxN = np.repeat(parts, half, axis=0)
                    groups, count = [slice(0, half), slice(half, None)], half
                for group in groups:
                    calibrated = (score_MxN - mean_MxN)[group], member_MxN[group]
                    truth = stats.potential_outcomes(
                        lambda calibrated=calibrated: [calibrated], np.ones(SAMPLES), 0.1
                    )
                    total[:2] += np.array([truth.ate, truth.auc]) / len(groups)
                total[2] += independent_auc(rng, count)
            print(
                f"| {models} | {name} | "
                + " | ".join(f"{v:.3f}" for v in total / experiments)
                + " |"
            )
    print()


def independent_auc(rng: np.random.Generator, count: int) -> float:
    """Returns the AUC of one new model, calibrated by the mean of new references."""
    score_MxN, member_MxN = simulate(rng, count + 1, "exact", 0.0)
    calibrated_N = score_MxN[0] - score_MxN[1:].mean(axis=0)
    return float(stats.auc(calibrated_N, member_MxN[0]).auc_T[0])


def main() -> None:
    """Runs the simulations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experiments", type=int, default=400)
    experiments = parser.parse_args().experiments
    spread(experiments)
    references(experiments)


if __name__ == "__main__":
    main()
