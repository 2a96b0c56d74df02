"""The synthetic experiment of CausalMIA: membership inference on linear regression, evaluated in three regimes.

Ridge regression and SGD with differential privacy (DP-SGD) are attacked by their losses. Each seed draws new data,
trains all models, and evaluates the attack in several ways. The results of all seeds are tables of the workdir, from
which figures are drawn, so that a second report takes no time.

S: seeds, N: samples, D: features, F: false positive rates.

Source: CausalMIA, sections 3 to 7 and Appendix G.1.
"""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pandas as pd
import threadpoolctl

from analysis.io import SweepResults
from lm_mia import seeds, stats
from lm_mia.atomic import replacing, write_csv
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.pieces import FOLDER
from lm_mia.attacks.results import Key, Results
from lm_mia.machine import available_cores

FORMAT = 1
"""Incremented whenever the same sizes would give different numbers, so that tables in workdirs are recomputed."""
SIZES = {
    "samples": 2_000,
    "ridge_dimensions": 2_500,
    "ridge_trials": 1_000,
    "ridge_seeds": 20,
    "dp_sgd_dimensions": 400,
    "dp_sgd_trials": 400,
    "dp_sgd_seeds": 10,
}
"""The sizes are those of the paper, except that the paper has 100 seeds, and 400 trials of ridge regression.
Trials of ridge regression cost little, and with 1,000 of them the multi-run AUC is precise enough after 20 seeds."""
RIDGE_PENALTY = 1e4
DP_SGD = stats.DpSgd()
DELTA = 0.01
"""The delta at which epsilon of DP-SGD is reported, as in the paper."""
ALGORITHMS = {"ridge": "Ridge", "dp_sgd": "DP-SGD"}
_LOSS_FACTORS = {"ridge": 0.5, "dp_sgd": 1.0}
"""The loss is this number times the squared residual; only with these are the paper's average effects reproduced."""
EVALUATIONS = {
    "multi_run": "Multi-run",
    "one_run": "One-run",
    "raw": "Zero-run, unadjusted",
    "oracle": "Zero-run, true weights",
    "learned": "Zero-run, learned weights",
    "same_samples": "Zero-run, same-sample weights",
}
"""How the attack is evaluated. The last one is not in the paper: its logistic regression is fitted to the same samples
that it weights, with scikit-learn's default penalty."""
TPR_FPR = 0.2
FPRS = np.linspace(0, 1, 101)
METRICS = ("auc", "youden", "ate", "tpr")
_TABLES = ("regression.csv", "regression_curves.parquet")
_FOLDS = 5
_RELATIVE_PENALTIES = (0.1, 1.0, 10.0)
"""Candidates for the inverse penalty of the logistic regression, times the number of features."""


@dataclasses.dataclass(frozen=True)
class RegressionResults:
    """Metrics and ROC curves of all algorithms, seeds and evaluations."""

    metrics: pd.DataFrame
    """Columns algorithm, evaluation, seed, those of `METRICS`, and effective_nonmembers. The average treatment effect
    ``ate`` is that on the score, which is the negative loss."""
    curves: pd.DataFrame
    """Columns algorithm, evaluation, seed, fpr (`FPRS`) and tpr."""

    def metric_S(self, algorithm: str, evaluation: str, metric: str) -> np.ndarray:
        """Returns a metric of each seed, in the order of the seeds."""
        m = self.metrics
        rows = m[(m["algorithm"] == algorithm) & (m["evaluation"] == evaluation)]
        return rows.sort_values("seed")[metric].to_numpy(float)

    def tpr_SxF(self, algorithm: str, evaluation: str) -> np.ndarray:
        """Returns the ROC curve of each seed at `FPRS`, its vertices."""
        c = self.curves
        rows = c[(c["algorithm"] == algorithm) & (c["evaluation"] == evaluation)]
        return rows.sort_values(["seed", "fpr"])["tpr"].to_numpy(float).reshape(-1, len(FPRS))


def dp_sgd_epsilon() -> float:
    """Returns epsilon of DP-SGD at `DELTA`, from the limit of Gaussian differential privacy."""
    samples = SIZES["samples"]
    mu = stats.dp_sgd_mu(
        DP_SGD.sampling_rate(samples), DP_SGD.noise_multiplier, DP_SGD.steps(samples)
    )
    return float(stats.gaussian_dp_epsilon(mu, DELTA))


REGRESSION_TABLE = Table(
    "regression.csv",
    (
        "Written with the page if its figures include the linear regressions of CausalMIA (`causal_tab02`, "
        "`causal_fig03a` and `causal_fig03b`), which are simulations and take a minute. They are computed again only "
        "if the simulation or the version of a package has changed. Each row is an algorithm, an evaluation of the "
        "loss attack, and a seed."
    ),
    {
        "algorithm": Column(
            "none",
            "`ridge`: ridge regression; `dp_sgd`: SGD with clipped gradients and noise",
        ),
        "evaluation": Column(
            "none",
            (
                "`multi_run`, `one_run`, `raw` (zero-run with shifted non-members, unadjusted), `oracle` (with true "
                "weights, the density ratio), `learned` (with learned weights, by a cross-fitted logistic "
                "regression) or `same_samples` (with weights by a logistic regression that is fitted to the same "
                "samples)"
            ),
        ),
        "seed": Column("none", "seed of the data and the models, from 0"),
        "auc": Column("fraction", "area under the ROC curve"),
        "youden": Column("fraction", "largest TPR - FPR"),
        "ate": Column(
            "none",
            "mean score of members minus that of (weighted) non-members; the score is the negative loss",
        ),
        "tpr": Column("fraction", "TPR at an FPR of 20%"),
        "effective_nonmembers": Column("count", "(sum of weights)^2 / sum of squared weights"),
    },
    key=("algorithm", "evaluation", "seed"),
)


REGRESSION_CURVES_TABLE = Table(
    "regression_curves.parquet",
    "Written with `regression.csv`: the ROC curves, at 101 FPRs.",
    {
        "algorithm, evaluation, seed": Column("none", "as in `regression.csv`"),
        "fpr": Column("fraction", "requested FPR"),
        "tpr": Column(
            "fraction",
            "TPR at the last vertex of the ROC curve with at most this FPR",
        ),
    },
    key=("algorithm", "evaluation", "seed", "fpr"),
)


def load(recipes: SweepResults) -> RegressionResults:
    """Returns the results, from the pieces of the workdir if they are there.

    Otherwise they are computed with all cores, which takes about a minute, and stored. The tables are exported.

    Args:
      recipes: results of a sweep; only its workdir and its progress bar are used.
    """
    if recipes.workdir is None:
        return compute(recipes.progress)
    pieces, folder = Results(recipes.workdir / FOLDER), recipes.workdir / "tables"
    metrics, curves = map(pieces.read, keys())
    if metrics is None or curves is None:
        results = compute(recipes.progress)
        for key, table in zip(keys(), (results.metrics, results.curves), strict=True):
            pieces.write(key, table)
        metrics, curves = results.metrics, results.curves
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / _TABLES[0], metrics)
    with replacing(folder / _TABLES[1]) as temporary:
        curves.to_parquet(temporary, index=False)
    return RegressionResults(metrics, curves)


def keys() -> list[Key]:
    """Returns the keys of the stored results."""
    return [*map(_key, _TABLES)]


def _key(table: str) -> Key:
    """Returns everything that the results depend on."""
    return {
        "what": "regression",
        "table": table,
        "format": FORMAT,
        "sizes": SIZES,
        "ridge_penalty": RIDGE_PENALTY,
        "dp_sgd": dataclasses.asdict(DP_SGD),
    }


def compute(progress: Callable[[str, float, float], None]) -> RegressionResults:
    """Computes the results of all seeds on all cores.

    Args:
      progress: called as ``progress("regression", done, total)`` whenever a seed is finished.
    """
    # The slowest seeds come first, so that the cores finish at about the same time.
    tasks = [(a, seed) for a in ("dp_sgd", "ridge") for seed in range(SIZES[f"{a}_seeds"])]
    progress("regression", 0, len(tasks))
    # Each seed has its own thread. Threads of BLAS would wait for each other longer than they compute.
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(available_cores()) as pool,
    ):
        futures = [pool.submit(run, *task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress("regression", done, len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    results = [future.result() for future in futures]
    return RegressionResults(
        *(
            pd.concat(frames)
            .sort_values(["algorithm", "evaluation", "seed"], kind="stable")
            .reset_index(drop=True)
            for frames in zip(*results, strict=True)
        )
    )


def run(
    algorithm: str,
    seed: int,
    *,
    penalty: float = RIDGE_PENALTY,
    dp_sgd: stats.DpSgd = DP_SGD,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draws data, trains all models of a seed and evaluates them.

    Args:
      algorithm: "ridge" or "dp_sgd".
      seed: the seed of everything that is random.
      penalty: the penalty of ridge regression.
      dp_sgd: the settings of DP-SGD.

    Returns:
      The rows of both tables of `RegressionResults`.
    """
    data = stats.simulate_regression(
        SIZES[f"{algorithm}_dimensions"],
        samples=SIZES["samples"],
        trials=SIZES[f"{algorithm}_trials"],
        seed=seed,
    )
    residuals = (
        stats.ridge_residuals(data, penalty)
        if algorithm == "ridge"
        else stats.dp_sgd_residuals(data, dp_sgd, seed=seed)
    )
    metrics, curves = [], []
    for evaluation, estimate in _evaluate(data, residuals, _LOSS_FACTORS[algorithm], seed):
        names = {"algorithm": algorithm, "evaluation": evaluation, "seed": seed}
        metrics.append(
            names
            | {"auc": estimate.auc, "youden": estimate.youden, "ate": estimate.ate}
            | {"tpr": float(estimate.tpr_F[0])}
            | {"effective_nonmembers": estimate.effective_nonmembers}
        )
        curve = estimate.curve
        tpr_F = curve.tpr_K[np.searchsorted(curve.fpr_K, FPRS, side="right") - 1]
        curves.append(pd.DataFrame({**names, "fpr": FPRS, "tpr": tpr_F}))
    return pd.DataFrame(metrics), pd.concat(curves)


def _evaluate(
    data: stats.RegressionData,
    residuals: stats.RegressionResiduals,
    loss_factor: float,
    seed: int,
) -> Iterator[tuple[str, stats.CausalEstimate]]:
    """Yields (key of `EVALUATIONS`, estimate); the score is the negative loss."""

    def score(residual_N: np.ndarray) -> np.ndarray:
        return -loss_factor * residual_N**2

    trials = score(residuals.trial_M)
    yield "multi_run", stats.unadjusted_estimate(trials, data.trial_member_M, TPR_FPR)
    members, held_out, shifted = (
        score(r) for r in (residuals.training_N, residuals.held_out_N, residuals.shifted_N)
    )
    member_N = np.arange(2 * len(members)) < len(members)
    one_run, zero_run = np.append(members, held_out), np.append(members, shifted)
    yield "one_run", stats.unadjusted_estimate(one_run, member_N, TPR_FPR)
    yield "raw", stats.unadjusted_estimate(zero_run, member_N, TPR_FPR)
    feature_NxD = np.concatenate([data.training.feature_NxD, data.shifted.feature_NxD])
    log_odds = {
        "oracle": data.log_density_ratio(feature_NxD),
        "learned": cross_fitted_log_odds(feature_NxD, member_N, seed),
        "same_samples": _fit(feature_NxD, member_N, 1.0).decision_function(feature_NxD),
    }
    for evaluation, log_odds_N in log_odds.items():
        yield evaluation, stats.ipw_estimate(zero_run, member_N, log_odds_N, TPR_FPR)


def cross_fitted_log_odds(feature_NxD: np.ndarray, member_N: np.ndarray, seed: int) -> np.ndarray:
    """Returns the log odds of membership of each sample, by a logistic regression on the samples of other folds.

    The density ratio is exactly of this form. The penalty is chosen by the loss on one of
    the training folds, after fitting the others.

    Args:
      feature_NxD: the features.
      member_N: membership.
      seed: determines the folds.
    """
    fold_N = seeds.permutation(seed, "regression/folds", len(member_N)) % _FOLDS
    log_odds_N, dimensions = np.empty(len(member_N)), feature_NxD.shape[1]
    for fold in range(_FOLDS):
        selection_N = fold_N == (fold + 1) % _FOLDS
        fitted_N = (fold_N != fold) & ~selection_N

        def loss(
            inverse_penalty: float,
            fitted_N: np.ndarray = fitted_N,
            selection_N: np.ndarray = selection_N,
        ) -> float:
            model = _fit(feature_NxD[fitted_N], member_N[fitted_N], inverse_penalty)
            margin_S = model.decision_function(feature_NxD[selection_N])
            return float(
                np.logaddexp(0, np.where(member_N[selection_N], -margin_S, margin_S)).mean()
            )

        inverse_penalty = min((c / dimensions for c in _RELATIVE_PENALTIES), key=loss)
        model = _fit(feature_NxD[fold_N != fold], member_N[fold_N != fold], inverse_penalty)
        log_odds_N[fold_N == fold] = model.decision_function(feature_NxD[fold_N == fold])
    return log_odds_N


def _fit(feature_NxD: np.ndarray, member_N: np.ndarray, inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # loads for seconds

    return LogisticRegression(C=inverse_penalty, max_iter=1_000).fit(feature_NxD, member_N)
