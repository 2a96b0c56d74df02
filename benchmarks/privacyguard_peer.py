"""Runs PrivacyGuard's analyses of membership scores and ours on the same arrays: numbers side by side, and seconds.

    python -m benchmarks privacyguard_peer --privacyguard PATH [--privacy-meter PATH] [--sizes 1000 20000] [--repeats 3]

PATH is a checkout of github.com/facebookresearch/PrivacyGuard (commit fb9c26c was used); none of its code is copied. It
needs torch (the CPU build is enough), pandas below 3, scikit-learn, scipy and tqdm, in any environment; our statistics
need only NumPy, SciPy and rapidfuzz, so that the same Python can run both. Never install the PyPI package
privacy-guard, which is unrelated. --privacy-meter adds the one-run audit of a checkout of
github.com/privacytrustlab/ml_privacy_meter (commit e384af8), in the same environment.

The scores are those of a Gaussian mechanism with mu = 1: N(1, 1) for members, N(0, 1) for others, whose true epsilon at
delta = 1e-5 is 4.38. Both run in turn, with one thread, and CPU seconds are medians, so that load on the machine
matters little. Prints Markdown tables; takes 5 minutes.

N: scores, of members and non-members together.
"""

import argparse
import importlib
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lm_mia import stats
from lm_mia.stats.user_groups import GroupScore

DELTA = 1e-5
REPLICATES = 1000
_ANALYSIS = "privacy_guard.analysis.mia"


def draw_scores(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns (score_N, member_N), half of them members."""
    rng = np.random.default_rng(seed)
    member_N = np.arange(samples) < samples // 2
    return rng.normal(size=samples) + member_N, member_N


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Returns (result, CPU seconds)."""
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def in_turn(
    theirs: Callable[[], Any], ours: Callable[[], Any], repeats: int
) -> tuple[Any, Any, float, float]:
    """Returns both results, and the medians of their CPU seconds."""
    runs = [(timed(theirs), timed(ours)) for _ in range(repeats)]
    (their_result, _), (our_result, _) = runs[-1]
    seconds = [float(np.median([run[side][1] for run in runs])) for side in (0, 1)]
    return their_result, our_result, seconds[0], seconds[1]


def interval(value: float, low: float, high: float) -> str:
    """Formats a value with its interval."""
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def seconds_cells(theirs: float, ours: float) -> str:
    """Formats seconds and their ratio."""
    return f"{theirs:.3g} | {ours:.2g} | {theirs / max(ours, 1e-9):,.2g}"


def bootstrap(sizes: list[int], repeats: int) -> None:
    """Prints AUC, accuracy and epsilon estimates with bootstrap intervals."""
    pd = importlib.import_module("pandas")
    node = importlib.import_module(f"{_ANALYSIS}.analysis_node")
    inputs = importlib.import_module("privacy_guard.analysis.base_analysis_input")
    print(
        "| N | quantity | PrivacyGuard | lm_mia | s | ours s | ratio |\n|---|---|---|---|---|---|---|"
    )
    for samples in sizes:
        score_N, member_N = draw_scores(samples)
        frames = [pd.DataFrame({"score": score_N[m]}) for m in (member_N, ~member_N)]
        analysis = node.AnalysisNode(
            inputs.BaseAnalysisInput(df_train_user=frames[0], df_test_user=frames[1]),
            delta=DELTA,
            n_users_for_eval=samples,
            use_fnr_tnr=True,
            num_bootstrap_resampling_times=REPLICATES,
        )

        def theirs(analysis: Any = analysis) -> Any:
            np.random.seed(0)  # noqa: NPY002, which their draws use
            # Without their Clopper-Pearson epsilon, which the next table has.
            analysis._calculate_one_off_eps = lambda: float("nan")
            return analysis.run_analysis()

        def ours(score_N: np.ndarray = score_N, member_N: np.ndarray = member_N) -> Any:
            auc = stats.bootstrap_intervals(score_N, member_N, replicates=REPLICATES)
            return auc, stats.epsilon_intervals(
                score_N, member_N, delta=DELTA, replicates=REPLICATES
            )

        pg, (auc, epsilon), their_s, our_s = in_turn(theirs, ours, repeats)
        rows = [
            (
                "AUC (theirs: the mean of the bootstrap)",
                interval(pg.auc, *pg.auc_ci),
                interval(auc.auc_T[0], auc.auc_low_T[0], auc.auc_high_T[0]),
            ),
            (
                "largest balanced accuracy (the same)",
                interval(pg.accuracy, *pg.accuracy_ci),
                interval(
                    epsilon.balanced_accuracy_T[0],
                    epsilon.balanced_accuracy_low_T[0],
                    epsilon.balanced_accuracy_high_T[0],
                ),
            ),
            (
                "epsilon at 1% TPR: ends of the interval (their result is the upper)",
                f"{pg.eps_lb:.4f}, {pg.eps:.4f}",
                f"{epsilon.at_tpr_low_T[0]:.4f}, {epsilon.at_tpr_high_T[0]:.4f}",
            ),
            (
                "largest epsilon: upper end",
                f"{np.nanmax(pg.eps_max_ub):.4f}",
                f"{epsilon.largest_high_T[0]:.4f}",
            ),
        ]
        for i, (name, their_text, our_text) in enumerate(rows):
            cells = seconds_cells(their_s, our_s) if i == 0 else "| | "
            print(f"| {samples:,} | {name} | {their_text} | {our_text} | {cells} |", flush=True)


def clopper_pearson(sizes: list[int], repeats: int) -> None:
    """Prints epsilons by Clopper-Pearson intervals of the error rates."""
    torch = importlib.import_module("torch")
    results = importlib.import_module(f"{_ANALYSIS}.mia_results")
    print("| N | PrivacyGuard | lm_mia | s | ours s | ratio |\n|---|---|---|---|---|---|")
    for samples in sizes:
        score_N, member_N = draw_scores(samples)
        of_class = [torch.from_numpy(score_N[m]) for m in (member_N, ~member_N)]
        theirs, ours, their_s, our_s = in_turn(
            lambda of_class=of_class: results.MIAResults(*of_class).compute_acc_auc_ci_epsilon(
                DELTA
            ),
            lambda s=score_N, m=member_N: stats.independent_trials_bound(s, m, delta=DELTA),
            repeats,
        )
        cells = seconds_cells(their_s, our_s)
        print(f"| {samples:,} | {theirs[2]:.4f} | {ours.epsilon:.4f} | {cells} |", flush=True)


def one_run(repeats: int) -> None:
    """Prints epsilons of Gaussian mechanisms from counts of guesses."""
    node = importlib.import_module(f"{_ANALYSIS}.fdp_analysis_node")
    print(
        "| canaries | guesses | correct | PrivacyGuard | lm_mia, on their grid | lm_mia | lm_mia, any mechanism "
        "| s | ours s | ratio |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for canaries, guesses, correct in (
        (2000, 252, 249),
        (2000, 1000, 760),
        (2000, 100, 50),
        (100_000, 2048, 1990),
    ):
        analysis = node.FDPAnalysisNode(canaries, correct, guesses, delta=DELTA)

        def ours(
            counts: tuple[int, int, int] = (canaries, guesses, correct),
        ) -> tuple[float, float]:
            mu = stats.one_run_mu(*counts)
            return float(stats.gaussian_dp_epsilon(mu, DELTA)), mu

        theirs, (epsilon, _), their_s, our_s = in_turn(analysis.run_analysis, ours, repeats)
        noises = 0.001 + 0.01 * np.arange(1000)
        rejected = [
            stats.gaussian_rejected(1 / noise, canaries, guesses, correct, 0.05)
            for noise in noises.tolist()
        ]
        # They walk from little noise (a large epsilon) until the test no longer passes.
        first = next((i for i, is_rejected in enumerate(rejected) if is_rejected), len(noises) - 1)
        on_grid = float(stats.gaussian_dp_epsilon(1 / noises[first], DELTA))
        any_mechanism = stats.one_run_epsilon(canaries, guesses, correct, delta=DELTA)
        print(
            f"| {canaries:,} | {guesses:,} | {correct:,} | {theirs.eps:.4f} | {on_grid:.4f} | {epsilon:.4f} "
            f"| {any_mechanism:.4f} | {seconds_cells(their_s, our_s)} |",
            flush=True,
        )


def privacy_meter(sizes: list[int], repeats: int, noise_runs: int = 200) -> None:
    """Prints one-run bounds of ML Privacy Meter, at delta = 0 as in its pipeline, and how often they are wrong."""
    audit = importlib.import_module("audit")
    print(
        "| N | scores | ML Privacy Meter | numbers of guesses | lm_mia | s | ours s | ratio |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for samples in sizes:
        member_N = np.random.default_rng(1).random(samples) < 0.5
        score_N = np.random.default_rng(2).normal(size=samples) + member_N
        theirs, ours, their_s, our_s = in_turn(
            lambda s=score_N, m=member_N: audit.compute_abstain_attack_results(s, m.astype(int)),
            lambda s=score_N, m=member_N: stats.one_run_bound(s, m, delta=0.0),
            repeats,
        )
        tried, cells = len(theirs["eps"]), seconds_cells(their_s, our_s)
        print(
            f"| {samples:,} | mu = 1 | {theirs['eps_opt']:.4f} | {tried:,} | {ours.epsilon:.4f} | {cells} |",
            flush=True,
        )
    above, tried = np.zeros(2), 0
    rng = np.random.default_rng(0)
    for _ in range(noise_runs):
        member_N, score_N = rng.random(1000) < 0.5, rng.normal(size=1000)
        theirs = audit.compute_abstain_attack_results(score_N, member_N.astype(int))
        # Their search ends with an interval of width 1e-5.
        ours = stats.one_run_bound(score_N, member_N, delta=0.0)
        above += theirs["eps_opt"] > 1e-4, ours.epsilon > 0
        tried = len(theirs["eps"])
    their_share, our_share = above / noise_runs
    print(
        f"| 1,000 | noise, {noise_runs} times | above 0 in {their_share:.1%} | {tried:,} "
        f"| above 0 in {our_share:.1%} | | | |"
    )


def users(samples: int) -> None:
    """Prints how far the scores of users agree."""
    pd = importlib.import_module("pandas")
    inputs = importlib.import_module(f"{_ANALYSIS}.aggregate_analysis_input")
    score_N, member_N = draw_scores(samples)
    # Positive, for the geometric mean; users have 4 samples.
    positive_N, user_N = score_N - score_N.min() + 0.01, np.arange(samples) // 4
    print("| aggregation | largest difference of a score |\n|---|---|")
    for ours in typing.get_args(GroupScore):
        theirs = "AVG" if ours == "mean" else ours.upper()
        values_N = positive_N if ours == "gmean" else score_N
        frames = [
            pd.DataFrame({"score": values_N[m], "user": user_N[m]}) for m in (member_N, ~member_N)
        ]
        kind = getattr(inputs.AggregationType, theirs)
        aggregated = inputs.AggregateAnalysisInput(kind, *frames, "user")
        score_G = stats.aggregate_by_group(values_N[member_N], user_N[member_N], ours).score_G
        difference = np.abs(aggregated.df_train_user["score"].to_numpy() - score_G).max()
        print(f"| {ours} | {difference:.1e} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="PrivacyGuard's analyses and ours, side by side")
    parser.add_argument("--privacyguard", type=Path, required=True, help="path of a checkout")
    parser.add_argument("--privacy-meter", type=Path, help="path of a checkout")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(args.privacyguard.resolve()))
    importlib.import_module("torch").set_num_threads(1)
    bootstrap(args.sizes, args.repeats)
    print()
    clopper_pearson(args.sizes, args.repeats)
    print()
    one_run(args.repeats)
    print()
    users(2000)
    if args.privacy_meter:
        sys.path.insert(0, str(args.privacy_meter.resolve()))
        print()
        privacy_meter([1000, 4000], args.repeats)


if __name__ == "__main__":
    main()
