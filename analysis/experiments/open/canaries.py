"""What random-token canaries add to natural ones: attacks and one-run audits of both kinds in the same models.

T: targets, N: canaries, or those of one kind, R1: all references, and then each half of them, H1: all canaries of a
kind, and then each half of them, G: points of a ROC curve.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import attacks, plotting
from analysis.claims.compare import Estimate, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from lm_mia import stats
from lm_mia.attacks import registry
from lm_mia.attacks.spec import Need, Variant, num_reference_parts
from lm_mia.config import num_canaries
from lm_mia.errors import Unavailable

Metric = Callable[[np.ndarray, np.ndarray], float]
"""Returns a number from (score_N, member_N)."""
KINDS = {
    "random": ("Random tokens", plotting.VERMILLION, "o"),
    "natural": ("Natural text", plotting.BLUE, "s"),
}
"""Kind of canaries -> its label, color and marker."""
ATTACKS: dict[str, tuple[str, plotting.LineStyle]] = {
    "lira_online": ("LiRA", "-"),
    "loss": ("Loss", "--"),
}
DELTA = 1e-5
LOW_FPR = 0.05
FIG01_STATEMENTS = (
    "LiRA has a higher AUC on random-token canaries than on natural canaries.",
    "The loss attack has a higher AUC on random-token canaries than on natural canaries.",
    "At an FPR of 5%, LiRA has a higher TPR on random-token canaries than on natural canaries.",
    "Random-token canaries give a larger lower bound on epsilon from one model than as many natural canaries.",
)
_CURVE_FPRS = np.geomspace(1e-3, 1, 60)


@dataclasses.dataclass(frozen=True)
class KindScores:
    """Scores of the canaries of one kind under every target."""

    score_R1xTxN: np.ndarray
    """With all references, and then with each half of them."""
    member_TxN: np.ndarray
    uses_references: bool
    """Whether the attack uses references."""

    @property
    def has_parts(self) -> bool:
        """Whether there are scores with parts of the references."""
        return len(self.score_R1xTxN) > 1

    def select(self, used_N: np.ndarray) -> "KindScores":
        """Returns the scores of some of the canaries."""
        return dataclasses.replace(
            self,
            score_R1xTxN=self.score_R1xTxN[:, :, used_N],
            member_TxN=self.member_TxN[:, used_N],
        )

    def per_target(self, metric: Metric) -> np.ndarray:
        """Returns value_TxR1 of a function of (score_N, member_N)."""
        return np.array(
            [
                [metric(score_N, member_N) for score_N in score_R1xN]
                for score_R1xN, member_N in zip(
                    self.score_R1xTxN.swapaxes(0, 1), self.member_TxN, strict=True
                )
            ]
        )


def read_kinds(recipe: RecipeResults, name: str) -> dict[str, KindScores]:
    """Reads the scores of an attack on every target, by kind of canaries.

    Args:
      recipe: a recipe with train.canaries and population.random_samples.
      name: the attack.

    Raises:
      Unavailable, UserError: the recipe has canaries of one kind only, or as `attacks.read_sample_scores`.
    """
    canaries, random = num_canaries(recipe.config), recipe.config.population.random_samples
    if not 0 < random < canaries:
        raise Unavailable(
            f"{recipe.name}: its canaries are all of one kind (population.random_samples={random}, {canaries} "
            "canaries); run lm-mia run with some of each kind"
        )
    count = attacks.common_references([recipe])
    uses_references = registry.find(name).uses_references
    parts = num_reference_parts(count, 0) if uses_references else 0
    score_R1xTxN, member_TxN = [], np.zeros((0, 0), bool)
    for part in (None, *range(parts)):
        read = [*attacks.read_sample_scores(recipe, Variant(name, count), part)]
        score_R1xTxN.append([score_N for _, _, score_N in read])
        member_TxN = np.array([member_N for _, member_N, _ in read])
    whole = KindScores(np.array(score_R1xTxN), member_TxN, uses_references)
    is_random_N = np.arange(member_TxN.shape[1]) >= canaries - random
    return {"random": whole.select(is_random_N), "natural": whole.select(~is_random_N)}


def over_targets(scores: KindScores, metric: Metric, *, halves: bool = True) -> Jackknife:
    """Returns the mean over targets of a metric, with what its interval needs.

    Args:
      scores: the scores.
      metric: returns a number from (score_N, member_N).
      halves: whether it is also computed on halves of the canaries. The interval holds them fixed otherwise.
    """
    targets, canaries = scores.member_TxN.shape
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(np.arange(canaries))]
    parts = [np.ones(canaries, bool), *(half_HxN if halves else ())]
    value_TxR1xH1 = np.stack([scores.select(part_N).per_target(metric) for part_N in parts], axis=2)
    varied = {
        f"{targets} targets": True,
        "their references": scores.has_parts,
        "the canaries": halves,
    }
    *over, last = [name for name, is_varied in varied.items() if is_varied]
    fixed = ["the references"] * (scores.uses_references and not scores.has_parts)
    fixed += ["the canaries"] * (not halves)
    return Jackknife.from_targets(
        value_TxR1xH1, f"{', '.join(over)} and {last}" if over else last, tuple(fixed)
    )


def auc(score_N: np.ndarray, member_N: np.ndarray) -> float:
    """Returns the AUC."""
    return float(stats.auc(score_N, member_N).auc_T[0])


def low_tpr(score_N: np.ndarray, member_N: np.ndarray) -> float:
    """Returns the TPR at `LOW_FPR`."""
    return float(stats.tpr_at_fpr(score_N, member_N, [LOW_FPR]).tpr_TxF[0, 0])


def one_run_epsilon(score_N: np.ndarray, member_N: np.ndarray) -> float:
    """Returns the lower bound on epsilon from one model, whose canaries were drawn by independent coins."""
    return stats.one_run_bound(score_N, member_N, membership="coins", delta=DELTA).epsilon


def draw_fig01(recipes: SweepResults) -> Drawing:
    """Draws the scores of both kinds, ROC curves, and the bounds on epsilon of every target."""
    recipe = recipes["canaries"]
    if recipe.config.train.subset != "bernoulli":
        raise Unavailable(
            f"{recipe.name}: train.subset={recipe.config.train.subset!r}: the audit of one kind of canaries needs "
            "independent coins; set train.subset=bernoulli"
        )
    kinds: dict[str, dict[str, KindScores]] = {n: read_kinds(recipe, n) for n in ATTACKS}
    figure = plotting.new_figure(10.6, 8.2)
    grid = figure.subplots(2, 2)
    frames = [
        _draw_scores(grid[0, 0], kinds["loss"], "Mean loss in nats per token", "a", -1.0),
        _draw_scores(grid[0, 1], kinds["lira_online"], "LiRA score", "b", 1.0),
        _draw_roc(grid[1, 0], kinds),
        _draw_epsilon(grid[1, 1], kinds),
    ]
    grid[0, 0].set_title("(a) Losses under the targets")
    grid[0, 1].set_title("(b) LiRA scores")
    grid[0, 0].legend(fontsize=9)
    size = kinds["loss"]["random"].member_TxN.shape[1]

    def difference(name: str, metric: Metric, *, halves: bool = True) -> Estimate:
        random, natural = (
            over_targets(kinds[name][kind], metric, halves=halves) for kind in ("random", "natural")
        )
        return (random - natural).estimate()

    claims = (
        claim_greater(
            FIG01_STATEMENTS[0],
            "AUC of LiRA, random minus natural",
            difference("lira_online", auc),
        ),
        claim_greater(
            FIG01_STATEMENTS[1],
            "AUC of the loss attack, random minus natural",
            difference("loss", auc),
        ),
        claim_greater(
            FIG01_STATEMENTS[2],
            f"TPR of LiRA at an FPR of {percent(LOW_FPR)}, random minus natural",
            difference("lira_online", low_tpr),
        ),
        claim_greater(
            FIG01_STATEMENTS[3],
            "Bound by LiRA, random minus natural",
            # With half of the canaries, a bound is smaller, so that halves do not show how much it varies.
            difference("lira_online", one_run_epsilon, halves=False),
        ),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            f"{size:,} canaries of each kind; each target was trained on about half of them, and on all other samples "
            f"of the population. LiRA uses {attacks.common_references([recipe])} references.",
            f"(d) Lower bounds on epsilon at delta = {DELTA:g} from one model each, with a confidence of 95% that is "
            "divided among all numbers of guesses. Large markers are means over targets. No mechanism with a smaller "
            "epsilon fits the guesses about one model; the models themselves were trained without noise.",
            unsupported_note(claims),
        ),
    )


def _draw_scores(
    axes: Axes, scores: Mapping[str, KindScores], label: str, panel: str, sign: float
) -> pd.DataFrame:
    series = {}
    for kind, (kind_label, color, _) in KINDS.items():
        score_TxN, member_TxN = sign * scores[kind].score_R1xTxN[0], scores[kind].member_TxN
        for is_member, dash in ((True, "-"), (False, ":")):
            value_S = score_TxN[(member_TxN == is_member) & np.isfinite(score_TxN)]
            class_label = "members" if is_member else "non-members"
            series[f"{kind_label}, {class_label}"] = value_S, color, dash
    pooled = np.concatenate([value_S for value_S, _, _ in series.values()])
    low, high = np.quantile(pooled, [0.002, 0.998])
    edges = np.linspace(low, high, 81)
    frames = []
    for name, (value_S, color, dash) in series.items():
        share_K = np.histogram(value_S, edges)[0] / max(len(value_S), 1)
        axes.stairs(share_K, edges, color=color, linestyle=dash, linewidth=1.6, label=name)
        frames.append(pd.DataFrame({"series": name, "x": edges[:-1], "y": share_K}))
    axes.set(xlabel=label, ylabel="Share of the canaries", ylim=(0, None))
    plotting.use_percent_axis(axes)
    return pd.concat(frames).assign(panel=panel)


def _draw_roc(axes: Axes, kinds: Mapping[str, Mapping[str, KindScores]]) -> pd.DataFrame:
    frames, lowest = [], 1.0
    for name, (attack_label, dash) in ATTACKS.items():
        for kind, (kind_label, color, _) in KINDS.items():
            scores = kinds[name][kind]
            fewest = int((~scores.member_TxN).sum(axis=1).min())
            fpr_G = _CURVE_FPRS[1 / fewest <= _CURVE_FPRS]
            lowest = min(lowest, fpr_G[0])
            points = stats.tpr_at_fpr(scores.score_R1xTxN[0], scores.member_TxN, fpr_G, at="vertex")
            tpr_G = points.tpr_TxF.mean(axis=0)
            label = f"{attack_label}, {kind_label.lower()} (AUC {points.auc_T.mean():.2f})"
            axes.plot(fpr_G, tpr_G, color=color, linestyle=dash, label=label)
            frames.append(pd.DataFrame({"series": f"{name}, {kind}", "x": fpr_G, "y": tpr_G}))
    plotting.finish_roc_axes(axes, [float(lowest)])
    axes.set(title="(c) ROC curves, means over targets")
    axes.legend(loc="lower right", fontsize=8.5)
    return pd.concat(frames).assign(panel="c")


def _draw_epsilon(axes: Axes, kinds: Mapping[str, Mapping[str, KindScores]]) -> pd.DataFrame:
    frames, ticks, ceiling = [], [], 0.0
    for name, (attack_label, _) in ATTACKS.items():
        for kind, (kind_label, color, marker) in KINDS.items():
            scores, at = kinds[name][kind], len(ticks)
            epsilon_T = scores.per_target(one_run_epsilon)[:, 0]
            spread_T = np.linspace(-0.22, 0.22, len(epsilon_T)) if len(epsilon_T) > 1 else [0.0]
            axes.plot(at + np.asarray(spread_T), epsilon_T, marker, color=color, mfc="none")
            axes.plot(at, epsilon_T.mean(), marker, color=color, markersize=11)
            ticks.append(f"{attack_label},\n{kind_label.lower()}")
            frames.append(pd.DataFrame({"series": f"{name}, {kind}", "x": at, "y": epsilon_T}))
            member_N = scores.member_TxN[0]
            perfect = stats.one_run_bound(member_N.astype(float), member_N, delta=DELTA)
            ceiling = max(ceiling, perfect.ceiling)
    axes.axhline(ceiling, color=plotting.GREY, linestyle=":", linewidth=1.4)
    axes.annotate(
        "All guesses correct", (0, ceiling), (0, -3), textcoords="offset points", va="top"
    )
    axes.set_xticks(range(len(ticks)), ticks, fontsize=9)
    axes.set(ylabel=r"Lower bound on $\epsilon$", ylim=(-0.03 * ceiling, 1.06 * ceiling))
    axes.set(title="(d) Audits of one model")
    return pd.concat(frames).assign(panel="d")


EXPERIMENTS = {
    "canaries_fig01_random_tokens": Experiment(
        title="Canaries Figure 1: Random tokens and natural text",
        about=(
            "The Secret Sharer (Carlini et al. 2019) measures memorization with random sequences that are inserted "
            "into the training data. PrivacyGuard (Sections 3.1.1 and 3.2) attacks canaries whose membership is "
            "decided by coins, and bounds epsilon from the guesses about those of one model."
        ),
        statements=FIG01_STATEMENTS,
        draw=draw_fig01,
        reads=(Need(("canaries",), attacks=tuple(ATTACKS), jackknife=True, sample_scores=True),),
    ),
}
