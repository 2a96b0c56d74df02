"""CausalMIA Table 2 and Figures 3a and 3b: an attack on linear regression, evaluated in three regimes.

Ridge regression and SGD with differential privacy (DP-SGD) are attacked by their losses. Each seed draws new data,
trains all models, and evaluates the attack in several ways. The results of all seeds are tables of the workdir, from
which figures are drawn, so that a second report takes no time. Intervals of claims are over seeds.

S: seeds, N: samples, D: features, F: false positive rates.

Source: CausalMIA, sections 3 to 7 and Appendix G.1.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pandas as pd
import threadpoolctl
from matplotlib.axes import Axes

from analysis import papers, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_equivalent,
    claim_greater,
)
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.io import SweepResults
from lm_mia import seeds, stats
from lm_mia.atomic import replacing, write_csv
from lm_mia.attacks.declarations import Column, Table, common
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
            "none", "`ridge`: ridge regression; `dp_sgd`: SGD with clipped gradients and noise"
        ),
        "evaluation": Column(
            "none",
            (
                "`multi_run`, `one_run`, `raw` (zero-run with shifted non-members, unadjusted), `oracle` (with true "
                "weights, the density ratio), `learned` (with learned weights, by a cross-fitted logistic regression) "
                "or `same_samples` (with weights by a logistic regression that is fitted to the same samples)"
            ),
        ),
        "seed": Column("none", "seed of the data and the models, from 0"),
        **common("auc"),
        "youden": Column("fraction", "as in `zero_run.csv`"),
        "ate": Column(
            "none",
            "mean score of members minus that of (weighted) non-members; the score is the negative loss",
        ),
        "tpr": Column("fraction", "TPR at an FPR of 20%"),
        "effective_nonmembers": Column("count", "as in `zero_run.csv`"),
    },
    key=("algorithm", "evaluation", "seed"),
)


REGRESSION_CURVES_TABLE = Table(
    "regression_curves.parquet",
    "Written with `regression.csv`: the ROC curves, at 101 FPRs.",
    {
        "algorithm, evaluation, seed": Column("none", "as in `regression.csv`"),
        **common("fpr"),
        "tpr": Column("fraction", "TPR at the last vertex of the ROC curve with at most this FPR"),
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


_TABLE = "causal_tab02_regression"
_MARGIN = 0.02
PUBLISHED_EPSILON = 0.602
"""At delta = 0.01, according to the paper."""
_METRICS = {
    "auc": "AUC",
    "youden": "Largest TPR - FPR",
    "ate": "ATE on the loss",
    "tpr": "TPR at 20% FPR",
}
_CURVES: dict[str, tuple[str, plotting.LineStyle]] = {
    "multi_run": (plotting.BLUE, "-"),
    "one_run": (plotting.ORANGE, "--"),
    "raw": (plotting.VERMILLION, "-"),
    "oracle": (plotting.GREEN, "-."),
    "learned": (plotting.PURPLE, ":"),
}
"""Color and line style of each evaluation of the paper."""
TAB02_STATEMENTS = (
    "Multi-run and one-run evaluations of ridge regression have the same AUC.",
    "Unadjusted zero-run evaluation has a higher AUC than one-run evaluation.",
    "With true weights, zero-run evaluation of ridge regression has the same AUC as one-run evaluation.",
    "Learned weights remove part of the bias.",
)
FIG03B_STATEMENTS = (
    "The unadjusted ROC curve of DP-SGD is above the bound for epsilon = 0.602, which the paper states.",
    "The unadjusted ROC curve of DP-SGD is above the bound for its actual epsilon.",
)


def draw_tab02(recipes: SweepResults) -> Drawing:
    """Draws a table of all metrics of each algorithm and evaluation, each row followed by the paper's."""
    results = load(recipes)
    numbers = papers.item(_TABLE).numbers
    cells, data, ours = {}, [], {}
    for algorithm, algorithm_name in ALGORITHMS.items():
        for evaluation, evaluation_name in EVALUATIONS.items():
            here, paper = {}, {}
            values: dict[str, object] = {"algorithm": algorithm, "evaluation": evaluation}
            for metric, heading in _METRICS.items():
                value_S = results.metric_S(algorithm, evaluation, metric)
                if metric == "ate":
                    value_S = -value_S  # the score is the negative loss
                mean, std = float(value_S.mean()), float(value_S.std(ddof=1))
                values |= {f"{metric}_mean": mean, f"{metric}_std": std}
                here[heading] = _cell(metric, mean, std)
                key = f"{algorithm}_{evaluation}_{metric}"
                if key in numbers:
                    ours[key] = mean, std
                    paper[heading] = _cell(metric, numbers[key].value, numbers[key].std)
            effective_S = results.metric_S(algorithm, evaluation, "effective_nonmembers")
            here["Effective non-members"] = f"{effective_S.mean():,.0f}"
            data.append(values | {"effective_nonmembers": float(effective_S.mean())})
            label = f"{algorithm_name}, {evaluation_name[0].lower()}{evaluation_name[1:]}"
            cells[label] = here
            if paper:
                cells[f"{label} (paper)"] = paper
    claims = _claims(results)
    table = pd.DataFrame.from_dict(cells, orient="index").fillna("–")
    table.index.name = "algorithm, evaluation"
    return Drawing(
        pd.DataFrame(data),
        table=table,
        claims=claims,
        ours=ours,
        notes=(*_table_notes(results), unsupported_note(claims)),
    )


def _cell(metric: str, mean: float, std: float) -> str:
    digits = 0 if metric == "ate" else 3
    return f"{mean:,.{digits}f} ± {std:,.{digits}f}"


def _table_notes(results: RegressionResults) -> tuple[str, ...]:
    s = SIZES

    def mean(evaluation: str, metric: str) -> float:
        return float(results.metric_S("ridge", evaluation, metric).mean())

    def std(evaluation: str) -> float:
        return float(results.metric_S("ridge", evaluation, "tpr").std(ddof=1))

    return (
        "This is a simulation without language models, so it is the same at every setting. Numbers are means ± "
        f"standard deviations over seeds: {s['ridge_seeds']} for ridge regression and {s['dp_sgd_seeds']} for "
        "DP-SGD.",
        f"Ridge regression has {s['ridge_dimensions']:,} features and DP-SGD {s['dp_sgd_dimensions']:,}; both have "
        f"{s['samples']:,} training samples. Multi-run evaluation has {s['ridge_trials']:,} trials of ridge regression "
        f"and {s['dp_sgd_trials']:,} of DP-SGD. In half of the trials, the sample is a member.",
        "The ATE is the average treatment effect, the mean effect of membership.",
        "A few non-members carry much of the weight. For ridge regression with true weights, the effective number of "
        "non-members, (sum of weights)² / sum of squared weights, is "
        f"{mean('oracle', 'effective_nonmembers'):,.0f} of {s['samples']:,}. "
        "Nevertheless, the standard deviation of the TPR with true weights is about that of one-run evaluation here "
        f"({std('oracle'):.3f} and {std('one_run'):.3f}); in the paper it is 0.068, and the TPR is lower.",
        "Learned weights are the odds predicted by a logistic regression that was fitted without the sample; "
        "same-sample weights are those of one that was fitted to the samples that it weights.",
    )


def _claims(results: RegressionResults) -> tuple[Claim, ...]:
    def difference(algorithm: str, first: str, second: str) -> tuple[str, Estimate]:
        values = (results.metric_S(algorithm, name, "auc") for name in (first, second))
        names = [EVALUATIONS[name] for name in (first, second)]
        what = f"AUC of {ALGORITHMS[algorithm]}, {names[0].lower()} minus {names[1].lower()}"
        first_S, second_S = values
        return what, _mean(first_S - second_S)

    return (
        claim_equivalent(
            TAB02_STATEMENTS[0], *difference("ridge", "multi_run", "one_run"), _MARGIN
        ),
        claim_all(
            TAB02_STATEMENTS[1],
            [claim_greater("", *difference(a, "raw", "one_run")) for a in ALGORITHMS],
        ),
        claim_equivalent(TAB02_STATEMENTS[2], *difference("ridge", "oracle", "one_run"), _MARGIN),
        claim_all(
            TAB02_STATEMENTS[3],
            [
                claim_greater("", *difference("ridge", "raw", "learned")),
                claim_greater("", *difference("ridge", "learned", "oracle")),
                claim_greater("", *difference("dp_sgd", "raw", "learned")),
            ],
        ),
    )


def draw_fig03a(recipes: SweepResults) -> Drawing:
    """Draws the mean ROC curves of ridge regression over seeds."""
    results = load(recipes)
    figure = plotting.new_figure(6.2, 5.2)
    data = _draw_curves(figure.subplots(), results, "ridge")
    return Drawing(
        data,
        figure,
        notes=(_curves_note("ridge"),),
    )


def draw_fig03b(recipes: SweepResults) -> Drawing:
    """Draws the mean ROC curves of DP-SGD over seeds, and the bounds that differential privacy sets."""
    results = load(recipes)
    epsilon = dp_sgd_epsilon()
    figure = plotting.new_figure(6.2, 5.2)
    axes = figure.subplots()
    frames = [_draw_curves(axes, results, "dp_sgd")]
    for value, color, dash in (
        (PUBLISHED_EPSILON, plotting.GREY, "--"),
        (epsilon, plotting.BLACK, "-"),
    ):
        bound_F = stats.dp_tpr_bound(FPRS, value, DELTA)
        label = rf"Bound, $\epsilon$ = {value:.3f}"
        axes.plot(FPRS, bound_F, color=color, linestyle=dash, linewidth=1.2, label=label)
        frames.append(
            pd.DataFrame({"series": f"bound_{value:.3f}", "fpr": FPRS, "tpr_mean": bound_F})
        )
    axes.legend(loc="lower right", fontsize=8.5)
    claims = tuple(
        claim_greater(
            statement,
            f"TPR minus its bound at epsilon = {value:.3f}, at the FPR where the excess is largest",
            _excess(results.tpr_SxF("dp_sgd", "raw"), value),
        )
        for statement, value in zip(FIG03B_STATEMENTS, (PUBLISHED_EPSILON, epsilon), strict=True)
    )
    settings, samples = DP_SGD, SIZES["samples"]
    if_variance = stats.dp_sgd_mu(
        settings.sampling_rate(samples), math.sqrt(3), settings.steps(samples)
    )
    notes = (
        _curves_note("dp_sgd"),
        "At an FPR of x the bound is min(1, e^epsilon x + delta, 1 - e^-epsilon (1 - delta - x)), with delta = "
        f"{DELTA:g}. The bound holds for multi-run evaluation, which compares training with and without a "
        "sample.",
        f"The paper states epsilon = {PUBLISHED_EPSILON}. For its batches of {settings.batch_size} of {samples:,} "
        f"samples, {settings.steps(samples):,} steps and a noise multiplier of {settings.noise_multiplier:g}, epsilon "
        f"is {epsilon:.3f}, by the limit of Gaussian differential privacy (1.590 by numerical accounting); it is "
        f"{float(stats.gaussian_dp_epsilon(if_variance, DELTA)):.2f} if N(0, 3 I) means a variance of 3.",
        "For each seed, the TPR is compared with its bound at the FPR, between 5% and 95%, at which the mean of the "
        "other seeds exceeds the bound the most. Choosing the FPR from the other seeds avoids selecting a chance "
        "maximum.",
        unsupported_note(claims),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        ours={"epsilon": (epsilon, math.nan)},
        notes=notes,
    )


def _curves_note(algorithm: str) -> str:
    count = SIZES[f"{algorithm}_seeds"]
    return (
        f"This is a simulation without language models. Curves are means over {count} seeds with bands of one standard "
        "deviation, and AUCs are means."
    )


def _draw_curves(axes: Axes, results: RegressionResults, algorithm: str) -> pd.DataFrame:
    """Draws the mean ROC curve of each evaluation; returns rows (series, fpr, tpr_mean, tpr_std)."""
    frames = []
    for evaluation, (color, dash) in _CURVES.items():
        tpr_SxF = results.tpr_SxF(algorithm, evaluation)
        mean_F, std_F = tpr_SxF.mean(axis=0), tpr_SxF.std(axis=0, ddof=1)
        auc = results.metric_S(algorithm, evaluation, "auc").mean()
        label = f"{EVALUATIONS[evaluation]} (AUC {auc:.3f})"
        axes.plot(FPRS, mean_F, color=color, linestyle=dash, label=label)
        ends = np.clip(mean_F - std_F, 0, 1), np.clip(mean_F + std_F, 0, 1)
        axes.fill_between(FPRS, *ends, color=color, alpha=0.12, linewidth=0)
        frames.append(
            pd.DataFrame({"series": evaluation, "fpr": FPRS, "tpr_mean": mean_F, "tpr_std": std_F})
        )
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linestyle=":", linewidth=1)
    axes.set(xlabel="False positive rate", ylabel="True positive rate", title=ALGORITHMS[algorithm])
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="lower right", fontsize=8.5)
    return pd.concat(frames, ignore_index=True)


def _excess(tpr_SxF: np.ndarray, epsilon: float) -> Estimate:
    """Returns how far the ROC curve is above its bound, at the FPR where that of the other seeds is furthest.

    Only rates from 5% to 95% are considered: at 0 and 1 all curves meet.
    """
    excess_SxF = tpr_SxF - stats.dp_tpr_bound(FPRS, epsilon, DELTA)
    others_SxF = excess_SxF.sum(axis=0) - excess_SxF
    others_SxF[:, (FPRS < 0.049) | (FPRS > 0.951)] = -np.inf
    return _mean(excess_SxF[np.arange(len(tpr_SxF)), others_SxF.argmax(axis=1)])


def _mean(value_S: np.ndarray) -> Estimate:
    term = VarianceTerm(float(value_S.var(ddof=1)) / len(value_S), len(value_S) - 1)
    return Estimate.from_variance(float(value_S.mean()), [term], f"{len(value_S)} seeds")


EXPERIMENTS = {
    _TABLE: Experiment(
        statements=TAB02_STATEMENTS,
        draw=draw_tab02,
        stored_keys=keys,
    ),
    "causal_fig03a_ridge": Experiment(
        statements=(),
        draw=draw_fig03a,
        stored_keys=keys,
    ),
    "causal_fig03b_dp_sgd": Experiment(
        statements=FIG03B_STATEMENTS,
        draw=draw_fig03b,
        stored_keys=keys,
    ),
}
