"""MACE Figure 6: the bound that differential privacy puts on the advantage, and mechanisms with a known epsilon.

B: simulations, N: samples of a simulation.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import attacks, plotting
from analysis.claims.compare import Claim, Estimate, VarianceTerm, claim_all, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks.spec import JACKKNIFE_SAMPLES, Need, Variant

EPSILONS = (0.5, 1.0, 2.0, 4.0)
"""Privacy budgets at which mechanisms are simulated."""
SIZES = {"simulations": 16, "samples": 2**16}
_MARGIN = 0.01
_STYLES: dict[str, tuple[str, str, plotting.LineStyle, str]] = {
    "randomized_response": ("Randomized response", plotting.VERMILLION, "--", "s"),
    "laplace": ("Laplace mechanism", plotting.BLUE, "-.", "o"),
}
FIG06_STATEMENTS = ("No mechanism has an advantage above the bound.",)


def exact_advantage(mechanism: str, epsilon: np.ndarray) -> np.ndarray:
    """Returns the advantage of the best adversary at a prior of 1/2, which is the total variation distance.

    Args:
      mechanism: "randomized_response", which reports one bit, or "laplace", which adds noise of scale 1 / epsilon to a
        number that is larger by 1 for members.
      epsilon: the privacy budget.
    """
    if mechanism == "randomized_response":
        return np.tanh(epsilon / 2)
    return -np.expm1(-epsilon / 2)


def simulate_advantage(mechanism: str, epsilon: float, seed: int) -> float:
    """Returns the held-out advantage of the output of a mechanism, at a prior of 1/2."""
    generator = np.random.default_rng([seed, round(1_000 * epsilon)])
    member_N = np.arange(SIZES["samples"]) % 2 == 0
    fit_N = np.arange(SIZES["samples"]) < SIZES["samples"] // 2
    if mechanism == "randomized_response":
        truth = 1 / (1 + math.exp(-epsilon))
        bins, bin_N = 2, member_N == (generator.random(len(member_N)) < truth)
    else:
        query_N = member_N + generator.laplace(scale=1 / epsilon, size=len(member_N))
        bins = stats.num_bins(SIZES["samples"] // 4)
        bin_N = stats.quantile_bins(query_N, query_N[fit_N], bins)
    ratio = stats.log_ratio_bins(bin_N[fit_N], member_N[fit_N], bin_N[~fit_N], bins)
    f = stats.privacy_loss(ratio.value_N, 0.5)
    return stats.held_out_advantage(f, member_N[~fit_N], 0.5).value


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws the bound with both mechanisms by epsilon and, if there are language models, |f| of their samples."""
    main = recipes.get("main")
    figure = plotting.new_figure(10.4 if main else 5.4, 4.4)
    left, *others = figure.subplots(1, 2 if main else 1, squeeze=False)[0]
    frames = [_draw_bound(left)]
    parts, simulated = [], []
    for mechanism, (label, color, _, marker) in _STYLES.items():
        for epsilon in EPSILONS:
            estimate = _estimate(mechanism, epsilon)
            simulated.append(
                {"panel": "a", "series": f"{mechanism}, simulated", "x": epsilon}
                | {"value": estimate.value}
            )
            left.plot(epsilon, estimate.value, marker, color=color, mfc="none", markersize=6)
            parts.append(_claim_below_bound(label, epsilon, estimate))
    frames.append(pd.DataFrame(simulated))
    of_models = ""
    if main:
        count, used = attacks.common_references([main]), slice(0, JACKKNIFE_SAMPLES)
        variant = Variant(references=count)
        scores = [
            score_N2[used][member_N2[used]]
            for _, member_N2, score_N2 in attacks.read_sample_scores(main, variant)
        ]
        frames.append(_draw_privacy_loss(others[0], scores))
        of_models = (
            f"Right: |f| of LiRA with {count} references, at a prior of 1/2, for the members of {len(scores)} targets "
            "that were not trained with differential privacy. The upper axis shows the smallest epsilon that allows "
            "this |f|."
        )
    claims = (claim_all(FIG06_STATEMENTS[0], parts),)
    panel = "Left: mechanisms" if main else "Mechanisms"
    notes = (
        f"{panel} with a known epsilon, which report the membership of a sample with noise. Lines "
        f"are exact, markers are means of {SIZES['simulations']} simulations on held-out samples. Randomized response "
        f"attains the bound, so the claim allows {_MARGIN:g} above it.",
        "The bound is for |f| of each sample. For a prior other than 1/2 it is far above the advantage, since the "
        "prior alone reveals |1 - 2p|.",
        of_models,
        unsupported_note(claims),
    )
    tanh = float(stats.dp_advantage_bound(1.0, 0.5))
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        ours={
            "bound_1": (tanh, math.nan),
            "bound_2": (float(stats.dp_advantage_bound(2.0, 0.5)), math.nan),
            "bound_10": (float(stats.dp_advantage_bound(10.0, 0.5)), math.nan),
        },
        notes=notes,
    )


def _draw_bound(axes: Axes) -> pd.DataFrame:
    """Draws the bounds and the exact advantages by epsilon; returns rows (panel, series, x, value)."""
    epsilon_K = np.linspace(0, 5, 101)
    curves = {f"bound, p={prior:g}": stats.dp_advantage_bound(epsilon_K, prior) for prior in (0.5, 0.1)}  # fmt: skip
    axes.plot(epsilon_K, curves["bound, p=0.5"], color=plotting.BLACK, label="Bound, p = 0.5")
    axes.plot(epsilon_K, curves["bound, p=0.1"], ":", color=plotting.GREY, label="Bound, p = 0.1")
    for mechanism, (label, color, dash, _) in _STYLES.items():
        curves[mechanism] = exact_advantage(mechanism, epsilon_K)
        axes.plot(epsilon_K, curves[mechanism], color=color, linestyle=dash, label=label)
    axes.set(xlabel=r"Privacy budget $\epsilon$", ylabel="Advantage, or bound on |f|")
    axes.set(ylim=(0, 1.03), xlim=(0, 5), title="Mechanisms with a known budget")
    axes.legend(loc="lower right", fontsize=9)
    return pd.concat(
        pd.DataFrame({"panel": "a", "series": name, "x": epsilon_K, "value": value_K})
        for name, value_K in curves.items()
    )


def _draw_privacy_loss(axes: Axes, scores: list[np.ndarray]) -> pd.DataFrame:
    """Draws the share of members with at least a given |f|; returns rows as `_draw_bound`."""
    f_S = np.concatenate([stats.privacy_loss(score_S, 0.5) for score_S in scores])
    f_S = np.sort(np.abs(f_S[~np.isnan(f_S)]))
    x_K = np.linspace(0, 1, 201)
    share_K = 1 - np.searchsorted(f_S, x_K, side="left") / len(f_S)
    axes.plot(x_K, share_K, color=plotting.GREEN)
    axes.set(xlabel="|f| of a member, p = 0.5", ylabel="Share of members with at least this |f|")
    axes.set(xlim=(0, 1), ylim=(0, 1.03))
    plotting.use_percent_axis(axes)
    with np.errstate(divide="ignore"):
        top = axes.secondary_xaxis("top", functions=(lambda f: f, lambda f: f))
    ticks = (0.5, 1, 2, 3, 6)
    top.set_xticks([math.tanh(epsilon / 2) for epsilon in ticks], [f"{e:g}" for e in ticks])
    top.set_xlabel(r"Smallest $\epsilon$ that allows it")
    return pd.DataFrame({"panel": "b", "series": "lira_online", "x": x_K, "value": share_K})


def _estimate(mechanism: str, epsilon: float) -> Estimate:
    """Returns the mean held-out advantage over the simulations, with its interval."""
    count = SIZES["simulations"]
    value_B = np.array([simulate_advantage(mechanism, epsilon, seed) for seed in range(count)])
    term = VarianceTerm(float(value_B.var(ddof=1)) / count, count - 1)
    return Estimate.from_variance(float(value_B.mean()), [term], f"{count} simulations")


def _claim_below_bound(label: str, epsilon: float, advantage: Estimate) -> Claim:
    bound = float(stats.dp_advantage_bound(epsilon, 0.5))
    distance = Estimate(
        bound - advantage.value,
        advantage.standard_error,
        advantage.degrees_of_freedom,
        advantage.over,
    )
    what = f"Bound minus advantage, {label.lower()}, epsilon {epsilon:g}"
    return claim_greater("", what, distance, -_MARGIN)


EXPERIMENTS = {
    "mace_fig06_dp_bound": Experiment(
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
        reads=(Need(("main",), sample_scores=True),),
    ),
}
