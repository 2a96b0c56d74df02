"""PrivacyGuard Figure 7: epsilon of simulated scores from the guesses of one run.

The scores of members and of non-members are normal, as those of a Gaussian mechanism. The figure repeats the public
tutorial of PrivacyGuard with its seed. Claims are about means over simulations with further seeds.

G: numbers of guesses, B: simulations.
"""

import dataclasses
from typing import Literal, Self

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import plotting
from analysis.claims.compare import Claim, Estimate, VarianceTerm, claim_all, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.io import SweepResults
from lm_mia import stats

Sides = Literal["both", "members"]
SEED, DELTA, LEVEL = 42, 1e-5, 0.05
MEMBER_MEAN, NONMEMBER_MEAN, SD = 0.8, 0.3, 0.3
SIZES = {"samples": 1_000, "guesses": 50, "simulations": 16}
"""Number of samples of each class, of numbers of guesses, and of simulations for the claims."""
_SIDES: dict[Sides, tuple[str, str, plotting.LineStyle]] = {
    "both": ("members and non-members", plotting.BLUE, "-"),
    "members": ("members only", plotting.VERMILLION, "--"),
}
FIG07_STATEMENTS = (
    "Guessing members and non-members gives a higher epsilon than guessing members only.",
    "The best number of guesses is neither the fewest nor all.",
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Epsilon by the number of guesses, at the whole level for each of them, as in the paper."""

    guesses_G: np.ndarray
    correct_G: np.ndarray
    mu_G: np.ndarray
    """The largest mu such that mu-GDP is rejected."""
    epsilon_if_gaussian_G: np.ndarray
    """Epsilon of mu-GDP."""
    epsilon_G: np.ndarray
    """The largest rejected epsilon, whatever the mechanism."""

    @classmethod
    def of(cls, score_N: np.ndarray, member_N: np.ndarray, sides: Sides) -> Self:
        """Returns the curve of scores."""
        guesses_G = 2 * np.geomspace(10, len(score_N) // 2, SIZES["guesses"]).astype(int)
        correct_G = stats.count_guesses(score_N, member_N, guesses_G, sides).correct_G
        counts = [*zip(guesses_G.tolist(), correct_G.tolist(), strict=True)]
        mu_G = [stats.one_run_mu(len(score_N), *count, level=LEVEL) for count in counts]
        epsilon_G = [
            stats.one_run_epsilon(len(score_N), *count, delta=DELTA, level=LEVEL)
            for count in counts
        ]
        epsilon_if_gaussian_G = [float(stats.gaussian_dp_epsilon(mu, DELTA)) for mu in mu_G]
        values = (np.array(values) for values in (mu_G, epsilon_if_gaussian_G, epsilon_G))
        return cls(guesses_G, correct_G, *values)

    @property
    def best(self) -> int:
        """The position of the largest epsilon of Gaussian mechanisms."""
        return int(np.argmax(self.epsilon_if_gaussian_G))


def simulate(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (score_N, member_N), members first, with the numbers of the tutorial for its seed."""
    samples, generator = SIZES["samples"], np.random.RandomState(seed)  # as in the tutorial
    means = MEMBER_MEAN, NONMEMBER_MEAN
    score_N = np.concatenate([generator.normal(mean, SD, samples) for mean in means])
    return score_N, np.arange(2 * samples) < samples


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the simulated scores, and epsilon by the number of guesses."""
    del recipes  # a simulation
    score_N, member_N = simulate(SEED)
    curves: dict[Sides, Curve] = {s: Curve.of(score_N, member_N, s) for s in _SIDES}
    both = curves["both"]
    guesses, correct = int(both.guesses_G[both.best]), int(both.correct_G[both.best])
    on_grid = stats.noise_grid_epsilon(len(score_N), guesses, correct, delta=DELTA)
    coins, half = (
        stats.one_run_bound(score_N, member_N, membership=membership, delta=DELTA)
        for membership in ("coins", "half")
    )
    figure = plotting.new_figure(10.8, 4.8)
    left, right = figure.subplots(1, 2)
    frames = [_draw_scores(left, score_N, member_N), _draw_curves(right, curves, on_grid)]
    claims = _claims()
    true_mu = (MEMBER_MEAN - NONMEMBER_MEAN) / SD
    notes = (
        f"Right: epsilon at delta = 1e-5, at a level of {LEVEL:g} for each number of guesses on its own. As in the "
        "paper, the number with the largest epsilon is chosen after the fact, so the star is not a bound.",
        f"At the star, {correct} of {guesses} guesses are correct. The tutorial walks a grid of noise levels 0.001, "
        f"0.011, 0.021, ... and reports epsilon of the first Gaussian mechanism that is rejected: {on_grid:.3f}. "
        f"Epsilon of the mechanism at the boundary is {both.epsilon_if_gaussian_G[both.best]:.3f}. It is "
        f"{coins.epsilon_if_gaussian:.3f} with the level divided among {coins.hypotheses} tests, and without the "
        f"assumption that the mechanism is Gaussian {coins.epsilon:.3f} ({both.epsilon_G.max():.3f} undivided).",
        "All of these treat memberships as coin tosses, but exactly half of the samples are members. Combined into "
        f"{half.canaries:,} pairs, the scores show an epsilon of {half.epsilon:.3f}, and of "
        f"{half.epsilon_if_gaussian:.3f} if the mechanism is Gaussian, where neighbors differ by replacing a sample.",
        f"The scores are those of a Gaussian mechanism with mu = {true_mu:.3f}, whose epsilon is "
        f"{float(stats.gaussian_dp_epsilon(true_mu, DELTA)):.3f}.",
        f"Claims are about epsilon of Gaussian mechanisms in {SIZES['simulations']} simulations with other seeds. The "
        "best number of guesses in each is that of the mean over the others, so that it is not chosen by chance.",
        unsupported_note(claims),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        ours={"epsilon": (on_grid, np.nan), "correct": (correct, np.nan)},
        notes=notes,
    )


def _draw_scores(axes: Axes, score_N: np.ndarray, member_N: np.ndarray) -> pd.DataFrame:
    """Draws histograms of both classes; returns rows (panel, series, x, y)."""
    edges_K1 = np.histogram_bin_edges(score_N, 40)
    frames = []
    for name, is_member, color, dash in plotting.CLASSES:
        share_K = np.histogram(score_N[member_N == is_member], edges_K1)[0] / SIZES["samples"]
        axes.stairs(share_K, edges_K1, color=color, linestyle=dash, label=name, linewidth=1.6)
        frames.append(
            pd.DataFrame({"panel": "a", "series": name, "x": edges_K1[:-1], "y": share_K})
        )
    axes.set(title="(a) Scores", xlabel="Score", ylabel="Share of the class in each bin")
    plotting.use_percent_axis(axes)
    axes.legend(frameon=False)
    return pd.concat(frames)


def _draw_curves(axes: Axes, curves: dict[Sides, Curve], on_grid: float) -> pd.DataFrame:
    """Draws epsilon by the number of guesses; returns rows (panel, series, x, y, correct)."""
    frames = []
    for sides, curve in curves.items():
        label, color, dash = _SIDES[sides]
        kinds = {
            f"Gaussian mechanisms, {label}": curve.epsilon_if_gaussian_G,
            f"Any mechanism, {label}": curve.epsilon_G,
        }
        for (series, epsilon_G), width in zip(kinds.items(), (1.8, 0.9), strict=True):
            axes.plot(
                curve.guesses_G,
                epsilon_G,
                color=color,
                linestyle=dash,
                linewidth=width,
                label=series,
            )
            frames.append(
                pd.DataFrame(
                    {"panel": "b", "series": series, "x": curve.guesses_G, "y": epsilon_G}
                ).assign(correct=curve.correct_G)
            )
    best = curves["both"].guesses_G[curves["both"].best]
    axes.plot(
        best, on_grid, "*", color=plotting.BLACK, markersize=12, label=f"Paper ({on_grid:.3f})"
    )
    axes.set(title="(b) Epsilon", xlabel="Number of guesses", ylabel=r"$\epsilon$", xscale="log")
    axes.set_ylim(0, None)
    plotting.set_x_ticks(
        axes, [(ticks, f"{ticks:,}") for ticks in (20, 50, 100, 200, 500, 1_000, 2_000)]
    )
    axes.legend(fontsize=8, loc="lower left")
    return pd.concat(frames)


def _claims() -> tuple[Claim, ...]:
    count = SIZES["simulations"]
    epsilon = {
        sides: np.array(
            [
                Curve.of(*simulate(seed), sides).epsilon_if_gaussian_G
                for seed in range(SEED + 1, SEED + 1 + count)
            ]
        )
        for sides in _SIDES
    }
    # The number of guesses that is best on average over the other simulations.
    best = {
        sides: (epsilon_BxG.sum(axis=0) - epsilon_BxG).argmax(axis=1)
        for sides, epsilon_BxG in epsilon.items()
    }
    at_best = {
        sides: epsilon_BxG[np.arange(count), best[sides]] for sides, epsilon_BxG in epsilon.items()
    }
    ends = {"the fewest": 0, "all": -1}
    return (
        claim_greater(
            FIG07_STATEMENTS[0],
            "Epsilon with the best number of guesses, both classes minus members only",
            _mean(at_best["both"] - at_best["members"]),
        ),
        claim_all(
            FIG07_STATEMENTS[1],
            [
                claim_greater(
                    "",
                    f"Epsilon with the best number of guesses minus with {name}, both classes",
                    _mean(at_best["both"] - epsilon["both"][:, end]),
                )
                for name, end in ends.items()
            ],
        ),
    )


def _mean(value_B: np.ndarray) -> Estimate:
    term = VarianceTerm(float(value_B.var(ddof=1)) / len(value_B), len(value_B) - 1)
    return Estimate.from_variance(float(value_B.mean()), [term], f"{len(value_B)} simulations")


EXPERIMENTS = {
    "privacyguard_fig07_one_run": Experiment(
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
