"""Figures 6, 21 and 31: how vulnerable each sample is, and which properties of samples that depends on.

The study "token_tfidf" has the mean TF-IDF over all tokens of each sample. The column tfidf of the sample table is the
mean over distinct tokens, in which a token that occurs several times counts once.

T: targets, N2: samples of the population (2N), S: members of a target with a posterior, G: members of a group, K: bins,
P: pairs of a target and a member.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import attacks, io, plotting
from analysis.attacks import read_sample_scores
from analysis.claims.compare import Claim, claim_greater, claim_untested
from analysis.claims.jackknife import Jackknife
from analysis.claims.trends import BinnedMeans, rank_correlation
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import stats
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.spec import (
    JACKKNIFE_SAMPLES,
    Need,
    Study,
    StudyNeed,
    Variant,
    num_reference_parts,
)
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.config import first_canary, number
from lm_mia.data import batch_order, features
from lm_mia.data.documents import no_progress
from lm_mia.data.population import FREQUENCY_FILE
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable, UserError

GROUPS: dict[str, tuple[str, plotting.LineStyle]] = {
    "least vulnerable": (plotting.SKY, "-"),
    "most ambiguous": (plotting.GREY, "--"),
    "most vulnerable": (plotting.VERMILLION, "-"),
}
"""Groups of members: with the lowest posterior, nearest to one half, and the highest; color and line style."""
_MAX_EQUAL_SHARE = 0.9
"""The largest share of a target's members with the same value of a property; above it a claim is not tested."""
_MAX_GROUP_SIZE, _MIN_MEMBERS_PER_GROUP_MEMBER = 1_000, 5
"""A group has at most 1,000 members, and at most a fifth of a target's members."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The members of one target that have a LiRA score, and their posteriors of membership."""

    model: ModelSeeds
    member_N2: np.ndarray
    ids_S: np.ndarray
    posterior_S: np.ndarray
    """p_in / (p_in + p_out)."""

    @property
    def group_size(self) -> int:
        """The number of members in each group, G."""
        return min(_MAX_GROUP_SIZE, len(self.ids_S) // _MIN_MEMBERS_PER_GROUP_MEMBER)

    def groups(self) -> dict[str, np.ndarray]:
        """Returns the sample ids ids_G of each of `GROUPS`."""
        size = self.group_size
        order_S = np.argsort(self.posterior_S, kind="stable")
        near_S = np.argsort(np.abs(self.posterior_S - 0.5), kind="stable")
        ids = order_S[:size], near_S[:size], order_S[len(order_S) - size :]
        return {name: self.ids_S[at_G] for name, at_G in zip(GROUPS, ids, strict=True)}


def target_posteriors(recipe: RecipeResults, reference_part: int | None = None) -> list[Target]:
    """Returns the targets of a recipe, attacked with the paper's number of references.

    Args:
      recipe: the recipe.
      reference_part: as in `spec.AttackSpec`.

    Raises:
      UserError: as `read_sample_scores`.
    """
    targets, count = [], attacks.common_references([recipe])
    for model, member_N2, score_N2 in read_sample_scores(
        recipe, Variant(references=count), reference_part
    ):
        ids_S = np.flatnonzero(member_N2 & ~np.isnan(score_N2))
        targets.append(Target(model, member_N2, ids_S, stats.posterior(score_N2[ids_S])))
    return targets


def property_by_group(targets: Sequence[Target], x_N2: np.ndarray) -> dict[str, np.ndarray]:
    """Returns a property of the members of each of `GROUPS`, concatenated over targets, without missing values."""
    ids = [target.groups() for target in targets]
    values = {name: np.concatenate([x_N2[group[name]] for group in ids]) for name in GROUPS}
    return {name: x[~np.isnan(x)] for name, x in values.items()}


def targets_by_reference_part(recipe: RecipeResults) -> list[list[Target]]:
    """Returns the targets, attacked with all references and, if there are enough, with each half of them."""
    parts = num_reference_parts(attacks.common_references([recipe]), 0)
    return [target_posteriors(recipe, part) for part in (None, *range(parts))]


def member_jackknife(
    targets_R1xT: Sequence[Sequence[Target]],
    statistic: Callable[[np.ndarray, np.ndarray], float],
    x_TxN2: Sequence[np.ndarray],
    document_N2: np.ndarray,
) -> Jackknife:
    """Returns the mean over targets of a statistic of a property and the posterior of the members.

    It is computed from the first `JACKKNIFE_SAMPLES` samples of the population.

    Args:
      targets_R1xT: the result of `targets_by_reference_part`.
      statistic: returns a number from (the property, the posterior) of some members.
      x_TxN2: the property of each sample, for each target.
      document_N2: the document of each sample; those of one document are in the same half.
    """
    value_R1xTxH1 = np.array(
        [
            [
                _on_halves(target, x_N2, statistic, document_N2)
                for target, x_N2 in zip(targets, x_TxN2, strict=True)
            ]
            for targets in targets_R1xT
        ]
    )
    over, fixed = f"{len(x_TxN2)} targets, their references and the samples", ()
    if len(targets_R1xT) == 1:
        over, fixed = f"{len(x_TxN2)} targets and the samples", ("the references",)
    return Jackknife.from_targets(value_R1xTxH1.swapaxes(0, 1), over, fixed)


def _on_halves(
    target: Target,
    x_N2: np.ndarray,
    statistic: Callable[[np.ndarray, np.ndarray], float],
    document_N2: np.ndarray,
) -> list[float]:
    """Returns the statistic of all members, and of those in each half of the samples."""
    used_S = target.ids_S < JACKKNIFE_SAMPLES
    ids_S, posterior_S = target.ids_S[used_S], target.posterior_S[used_S]
    x_S, half_HxS = x_N2[ids_S], stats.HALVES_HxG[:, stats.sample_groups(document_N2[ids_S])]
    halves = [statistic(x_S[half_S], posterior_S[half_S]) for half_S in half_HxS]
    return [statistic(x_S, posterior_S), *halves]


def claim_rises(
    statement: str,
    what: str,
    targets_R1xT: Sequence[Sequence[Target]],
    x_TxN2: Sequence[np.ndarray],
    document_N2: np.ndarray,
) -> Claim:
    """Returns the claim that the posterior of members rises with a property, by the mean rank correlation over targets.

    Not tested if nearly all members of a target have the same value, such as samples truncated at the same length.
    """
    for target, x_N2 in zip(targets_R1xT[0], x_TxN2, strict=True):
        x_S = x_N2[target.ids_S].astype(float)
        equal = np.unique(x_S[~np.isnan(x_S)], return_counts=True)[1].max(initial=0)
        if equal > _MAX_EQUAL_SHARE * len(x_S):
            return claim_untested(
                statement,
                f"{equal:,} of {len(x_S):,} members of {target.model} have the same {what}",
            )
    description = f"Rank correlation of {what} and posterior among the members of a target"
    trend = member_jackknife(targets_R1xT, rank_correlation, x_TxN2, document_N2)
    return claim_greater(statement, description, trend.estimate())


def draw_shares(axes: Axes, values: Mapping[str, np.ndarray], edges_K1: np.ndarray) -> None:
    """Draws a histogram per group, in shares of the group; on a log axis if one bin has more than half of a group."""
    for name, x_G in values.items():
        color, dash = GROUPS[name]
        share_K = histogram_shares(x_G, edges_K1)
        axes.stairs(share_K, edges_K1, color=color, linestyle=dash, label=name, linewidth=1.8)
        if share_K.max() > 0.5:
            axes.set_yscale("log")
    plotting.use_percent_axis(axes)
    axes.set_ylabel("Share of the group")


def histogram_shares(x_G: np.ndarray, edges_K1: np.ndarray) -> np.ndarray:
    """Returns share_K, the share of a group in each bin; values outside the bins are in none."""
    return np.histogram(x_G, edges_K1)[0] / max(len(x_G), 1)


def groups_note(targets: Sequence[Target], recipe: RecipeResults) -> str:
    """Returns a note on the size of the groups, the targets and the number of references."""
    size, members = targets[0].group_size, len(targets[0].ids_S)
    return (
        f"Each group has {size:,} of the {members:,} members of each of {len(targets)} targets, which are "
        f"attacked with {attacks.common_references([recipe])} references."
    )


PROBABILITY_TABLE = "true_positive_probability.parquet"


# Figure 6: vulnerability of members by the step at which they were last seen, and by length.
FIG06_STATEMENTS = (
    "Members seen later in training are more vulnerable.",
    "Longer members are more vulnerable.",
)
_MAX_POINTS, _STEP_BINS, _LENGTH_BINS = 5_000, 20, 32


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws posteriors against steps with binned means, and the lengths of three groups of members."""
    points, means, num_pairs, claim_steps = _vulnerability_by_step(recipes["fixed-140M"])
    main = recipes["main"]
    targets_R1xT, longest = targets_by_reference_part(main), main.population.length_tokens
    targets, document_N2 = targets_R1xT[0], main.attacked.document_N
    tokens_N2 = main.attacked.lengths_N.astype(float)
    lengths = property_by_group(targets, tokens_N2)
    edges_K1 = _edges(float(tokens_N2.min()), longest)
    by_length = [
        pd.DataFrame({"x": edges_K1[:-1], "y": histogram_shares(x_G, edges_K1)}).assign(
            panel="b", series=name
        )
        for name, x_G in lengths.items()
    ]
    figure = plotting.new_figure(10.2, 4.2)
    left, right = figure.subplots(1, 2)
    _draw_steps(left, points, means)
    draw_shares(right, lengths, edges_K1)
    right.set(xlabel="Tokens", title="(b) Lengths by vulnerability")
    right.legend(loc="upper left")
    truncated_share = float((tokens_N2 == longest).mean())
    return Drawing(
        data=pd.concat(
            [
                points.assign(panel="a", series="member"),
                means.assign(panel="a", series="mean"),
                *by_length,
            ]
        ),
        figure=figure,
        claims=(
            claim_steps,
            claim_rises(
                FIG06_STATEMENTS[1],
                "length",
                targets_R1xT,
                [tokens_N2] * len(targets),
                document_N2,
            ),
        ),
        notes=(
            f"(a) shows {len(points):,} of the {num_pairs:,} pairs of a target and a member of the models on "
            f"{recipes['fixed-140M'].samples:,} samples, and binned means of all pairs.",
            f"(b) is of the models on {main.samples:,} samples. {groups_note(targets, main)} {truncated_share:.1%} of "
            f"the samples are truncated at {longest:,} tokens.",
        ),
    )


def _vulnerability_by_step(
    recipe: RecipeResults,
) -> tuple[pd.DataFrame, pd.DataFrame, int, Claim]:
    """Returns the points of Figure 6(a), their binned means, the number of pairs that these are of, and the claim."""
    targets_R1xT, document_N2 = targets_by_reference_part(recipe), recipe.attacked.document_N
    targets, train = targets_R1xT[0], dataclasses.asdict(recipe.config.train)
    first = first_canary(recipe.config)
    seen_TxN2 = [
        last_seen(t.model.order_seed, t.member_N2, train, 0, first).astype(float) for t in targets
    ]
    step_P = np.concatenate([s[t.ids_S] for s, t in zip(seen_TxN2, targets, strict=True)])
    posterior_P = np.concatenate([t.posterior_S for t in targets])
    shown_P = np.unique(np.linspace(0, len(step_P) - 1, _MAX_POINTS).astype(int))
    points = pd.DataFrame({"x": step_P[shown_P], "y": posterior_P[shown_P]})
    # A sample is a member of several targets.
    document_P = np.concatenate([document_N2[t.ids_S] for t in targets])
    curve = BinnedMeans.from_samples(step_P, posterior_P, document_P, _STEP_BINS)
    means = pd.DataFrame({"x": curve.x_K, "y": curve.y_K, "low": curve.low_K, "high": curve.high_K})
    claim = claim_rises(FIG06_STATEMENTS[0], "step", targets_R1xT, seen_TxN2, document_N2)
    return points, means, len(step_P), claim


def _edges(shortest: float, longest: int) -> np.ndarray:
    """Returns the edges of about `_LENGTH_BINS` bins of whole tokens up to the longest."""
    width = max(round((longest + 1 - shortest) / _LENGTH_BINS), 1)
    return np.arange(longest + 1, shortest - width, -width)[::-1] - 0.5


def _draw_steps(axes: Axes, points: pd.DataFrame, means: pd.DataFrame) -> None:
    axes.scatter(
        points["x"],
        points["y"],
        s=6,
        color=plotting.SKY,
        alpha=0.35,
        linewidth=0,
        rasterized=True,  # keeps the PDF small
    )
    axes.plot(means["x"], means["y"], color=plotting.BLACK, label="mean")
    axes.fill_between(
        means["x"], means["low"], means["high"], color=plotting.BLACK, alpha=0.2, linewidth=0
    )
    axes.axhline(0.5, color=plotting.VERMILLION, linestyle="--", linewidth=1, label="undecided")
    axes.set(
        xlabel="Step at which the member was last seen",
        ylabel="Probability of membership",
        title="(a) Members by step",
        ylim=(0, 1),
    )
    axes.legend(loc="lower left", ncols=2)


# Figure 21: mean and deviation of the posterior of each sample over the models that were trained on it.
_FIG21_COLUMNS = ("mean", "std", "targets")
_CURVE_BINS, _HISTOGRAM_BINS = 400, 40


def draw_fig21(recipes: SweepResults) -> Drawing:
    """Draws the sorted means with a band of one standard deviation, and histograms of means and deviations."""
    columns = io.read_samples(recipes["fixed-140M"], _FIG21_COLUMNS, PROBABILITY_TABLE)
    has_two_N = columns["targets"] > 1
    mean_S, std_S = columns["mean"][has_two_N], columns["std"][has_two_N]
    order_S = np.argsort(mean_S, kind="stable")
    parts = np.array_split(order_S, min(_CURVE_BINS, len(order_S)))
    at = np.cumsum([len(part) for part in parts]) - [len(part) / 2 for part in parts]
    curve = pd.DataFrame(
        {"panel": "a", "x": at}
        | {"y": [mean_S[p].mean() for p in parts], "std": [std_S[p].mean() for p in parts]}
    )
    histograms = [
        pd.DataFrame({"panel": panel, "x": edges[:-1], "y": count})
        for panel, x_S in (("b", mean_S), ("c", std_S))
        for count, edges in [np.histogram(x_S, _HISTOGRAM_BINS)]
    ]
    figure = plotting.new_figure(12.4, 3.9)
    left, middle, right = figure.subplots(1, 3)
    _draw_curve(left, curve)
    _draw_histogram(middle, mean_S, "Mean over models trained on the sample", "(b) Means")
    _draw_histogram(right, std_S, "Standard deviation over these models", "(c) Standard deviations")
    models = columns["targets"][has_two_N]
    return Drawing(
        data=pd.concat([curve, *histograms]),
        figure=figure,
        ours={
            "mean": (float(mean_S.mean()), math.nan),
            "std": (float(std_S.mean()), math.nan),
        },
        notes=(
            f"Each reference is attacked with all others as references; each sample is a member of {models.min()} to "
            f"{models.max()} of them. {int((~has_two_N).sum()):,} samples with fewer than two of them are left out.",
            "All samples share the same models, so these averages have no interval.",
            f"Each point of (a) averages the means and standard deviations of {len(mean_S) / len(parts):.3g} samples."
            if len(parts) < len(mean_S)
            else "Each point of (a) is one sample.",
        ),
    )


def _draw_curve(axes: Axes, curve: pd.DataFrame) -> None:
    low, high = (np.clip(curve["y"] + sign * curve["std"], 0, 1) for sign in (-1, 1))
    axes.fill_between(
        curve["x"], low, high, color=plotting.SKY, alpha=0.5, linewidth=0, label="± 1 STD"
    )
    axes.plot(curve["x"], curve["y"], color=plotting.BLUE, label="mean")
    axes.axhline(0.5, color=plotting.GREY, linestyle="--", linewidth=1)
    axes.set(
        xlabel="Samples sorted by mean",
        ylabel="Probability of membership",
        title="(a) Each sample",
        ylim=(0, 1),
    )
    axes.legend(loc="upper left")


def _draw_histogram(axes: Axes, x_S: np.ndarray, label: str, title: str) -> None:
    axes.hist(x_S, _HISTOGRAM_BINS, color=plotting.BLUE, alpha=0.8)
    average = float(x_S.mean())
    axes.axvline(average, color=plotting.VERMILLION, linestyle="--", label=f"average {average:.3f}")
    axes.set(xlabel=label, ylabel="Samples", title=title)
    axes.legend(loc="upper right")


# Figure 31: vulnerability of members by TF-IDF and by unknown tokens.
FIG31_STATEMENTS = (
    "Members with a higher mean TF-IDF are more vulnerable.",
    "Members with an unknown token are more vulnerable.",
)
_TFIDF_BINS, _MAX_UNKNOWN, _MIN_MEMBERS = 30, 3, 20


def draw_fig31(recipes: SweepResults) -> Drawing:
    """Draws the mean TF-IDF and the numbers of unknown tokens of three groups of members."""
    main = recipes["main"]
    targets_R1xT, population = targets_by_reference_part(main), main.attacked
    targets = targets_R1xT[0]
    [over_all_N2] = io.read_samples(main, ["tfidf"], TFIDF_TABLE).values()
    over_distinct_N2 = population.column("tfidf")
    unk_N2 = population.column("unk").astype(float)
    figure = plotting.new_figure(14, 4.2)
    left, middle, right = figure.subplots(1, 3)
    shares = [
        _draw_tfidf(axes, property_by_group(targets, x_N2), x_N2, kind).assign(panel=f"a, {kind}")
        for axes, x_N2, kind in ((left, over_all_N2, "all"), (middle, over_distinct_N2, "distinct"))
    ]
    left.legend(loc="upper right")
    counted = _draw_unknown(right, property_by_group(targets, unk_N2))
    distinct = member_jackknife(
        targets_R1xT, rank_correlation, [over_distinct_N2] * len(targets), population.document_N
    )
    num_with_unknown = int((unk_N2 > 0).sum())
    return Drawing(
        data=pd.concat([*shares, counted.assign(panel="b")]),
        figure=figure,
        claims=(
            claim_rises(
                FIG31_STATEMENTS[0],
                "mean TF-IDF",
                targets_R1xT,
                [over_all_N2] * len(targets),
                population.document_N,
            ),
            _claim_unknown(targets_R1xT, unk_N2 > 0, population.document_N),
        ),
        notes=(
            groups_note(targets, main),
            "In the mean over all tokens of a sample, a token that occurs k times counts k times. With the mean over "
            f"distinct tokens, the rank correlation is {distinct.estimate()}.",
            f"{num_with_unknown:,} of {len(unk_N2):,} samples have an unknown token. The 1% of samples with the "
            "highest TF-IDF lie beyond the axis.",
        ),
    )


def _draw_tfidf(
    axes: Axes, by_group: Mapping[str, np.ndarray], tfidf_N2: np.ndarray, kind: str
) -> pd.DataFrame:
    """Draws histograms of the mean TF-IDF of each group; returns rows (series, x, y)."""
    # Without the highest percentile, which would compress the rest.
    edges_K1 = np.linspace(np.nanmin(tfidf_N2), np.nanquantile(tfidf_N2, 0.99), _TFIDF_BINS + 1)
    draw_shares(axes, by_group, edges_K1)
    axes.set(xlabel=f"Mean TF-IDF over {kind} tokens", title=f"(a) TF-IDF, {kind} tokens")
    shares = {name: histogram_shares(x_G, edges_K1) for name, x_G in by_group.items()}
    return pd.concat(
        pd.DataFrame({"series": name, "x": edges_K1[:-1], "y": share_K})
        for name, share_K in shares.items()
    )


def _claim_unknown(
    targets_R1xT: Sequence[Sequence[Target]], has_N2: np.ndarray, document_N2: np.ndarray
) -> Claim:
    """Returns the claim that members with an unknown token have higher posteriors on average."""
    for target in targets_R1xT[0]:
        has_S = has_N2[target.ids_S]
        if min(has_S.sum(), (~has_S).sum()) < _MIN_MEMBERS:
            return claim_untested(
                FIG31_STATEMENTS[1],
                f"{has_S.sum():,} of {len(has_S):,} members of {target.model} have an unknown token",
            )
    what = "Posterior of members with an unknown token minus those without"
    more = member_jackknife(targets_R1xT, _mean_gap, [has_N2] * len(targets_R1xT[0]), document_N2)
    return claim_greater(FIG31_STATEMENTS[1], what, more.estimate())


def _mean_gap(has_S: np.ndarray, posterior_S: np.ndarray) -> float:
    if not 0 < has_S.sum() < len(has_S):
        return math.nan
    return float(posterior_S[has_S].mean() - posterior_S[~has_S].mean())


def _draw_unknown(axes: Axes, unk: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Draws the share of each group with at least 1, 2, ... unknown tokens; returns rows (series, x, y)."""
    at_least_K = np.arange(1, _MAX_UNKNOWN + 1)
    width, frames = 0.8 / len(unk), []
    for i, (name, x_G) in enumerate(unk.items()):
        share_K = np.array([(x_G >= k).mean() for k in at_least_K])
        color = GROUPS[name][0]
        axes.bar(
            at_least_K + (i - (len(unk) - 1) / 2) * width,
            share_K,
            width,
            color=color,
            label=name,
        )
        frames.append(pd.DataFrame({"series": name, "x": at_least_K, "y": share_K}))
    axes.set_xticks(at_least_K, [f"≥ {k}" for k in at_least_K])
    plotting.use_percent_axis(axes)
    axes.set(
        xlabel="Unknown tokens of a sample",
        ylabel="Share of the group",
        title="(b) Unknown tokens by vulnerability",
    )
    axes.legend(loc="upper right")
    return pd.concat(frames)


TFIDF_TABLE = "token_tfidf.parquet"


def compute_tfidf(
    view: StudyView,
    write: Write,
) -> None:
    """Computes the table of the study.

    Raises:
      Unavailable: the losses were imported, so that the tokens are not known.
    """
    population = view.attacked
    if population.is_imported:
        raise Unavailable(
            "the losses were imported, so that the tokens of the samples are not known"
        )
    tokenizer, frequency_V = population.tokenizer, np.load(population.folder / FREQUENCY_FILE)
    if tokenizer.bos_id is None:
        raise Unavailable(
            "the samples have no <bos>, by which they are counted, as the tokenizer of the checkpoint says"
        )
    tfidf_N = features.mean_tfidf(
        population.tokens,
        population.offsets_N1,
        frequency_V,
        int(
            frequency_V[tokenizer.bos_id]
        ),  # Every sample over which frequencies were counted begins with <bos>.
        (*tokenizer.before, *tokenizer.after),
        no_progress,
        over="all",
    )
    ids_N = population.first_id + np.arange(len(population))
    write(TFIDF_TABLE, pd.DataFrame({"id": ids_N, "tfidf": tfidf_N}))


TFIDF_STUDY = Study(
    "token_tfidf",
    compute_tfidf,
    tables=(
        Table(
            TFIDF_TABLE,
            "Written for figures that need the study `token_tfidf`. Each row is an attacked sample.",
            {
                **common("id"),
                "tfidf": Column(
                    "none",
                    (
                        "mean TF-IDF over all tokens of the sample, where a token that occurs k times counts k times; "
                        "`tfidf` of `samples.parquet` of the population is the mean over distinct tokens"
                    ),
                ),
            },
            key=("id",),
        ),
    ),
)


COLUMNS = ("member", "tokens", "unk", "tfidf", "score")
MIN_GROUP_MEMBERS = 30
"""The fewest members of a group that is compared with another."""
_MEMBERS_PER_BIN, _MAX_BINS = 100, 20


PROPERTIES = {
    "last_seen": ("Last seen", "Step at which it was last seen"),
    "tokens": ("Length", "Tokens"),
    "tfidf": ("TF-IDF", "Mean TF-IDF of its tokens"),
    "unk": ("Unknown tokens", "Has unknown tokens"),
}
"""The title and the x axis label of each property."""


@dataclasses.dataclass(frozen=True)
class Property:
    """A property of the samples, and how often each sample is called a member; NaN where either is unknown."""

    title: str
    axis: str
    """The label of the x axis."""
    x_N: np.ndarray
    """The property; NaN for non-members if only members have it."""
    y_N: np.ndarray
    """1 or 0, the decision of the first replica, or the share of all replicas that call the sample a member."""
    member_N: np.ndarray
    document_N: np.ndarray
    """The document of each sample; intervals are over documents."""

    @property
    def is_binary(self) -> bool:
        """Whether every sample either has the property (1) or does not (0)."""
        return bool(np.isin(self.x_N[~np.isnan(self.x_N)], (0, 1)).all())

    def member_groups(self) -> BinnedMeans:
        """Returns means over thirds of the members by the property, or over two groups if it is binary."""
        return BinnedMeans.from_samples(*self._members(), 2 if self.is_binary else 3)

    def member_curve(self) -> BinnedMeans:
        """Returns means over the members in 3 to 20 bins of at least about a hundred, or 2 if binary."""
        bins = int(np.clip(self.member_N.sum() // _MEMBERS_PER_BIN, 3, _MAX_BINS))
        return BinnedMeans.from_samples(*self._members(), 2 if self.is_binary else bins)

    def nonmember_curve(self) -> BinnedMeans:
        """Returns means over the non-members in the same number of bins; no bins if only members have the property."""
        bins = len(self.member_curve().x_K)
        x_S, y_S, document_S = (v[~self.member_N] for v in (self.x_N, self.y_N, self.document_N))
        return BinnedMeans.from_samples(x_S, y_S, document_S, bins)

    def nonmember_rate(self) -> float:
        """Returns how often a non-member is called a member, on average."""
        return float(np.nanmean(self.y_N[~self.member_N]))

    def is_comparable(self) -> bool:
        """Returns whether the lowest and the highest group both have enough members."""
        count_K = self.member_groups().count_K
        return len(count_K) > 1 and min(count_K[0], count_K[-1]) >= MIN_GROUP_MEMBERS

    def _members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (x_S, y_S, document_S)."""
        at = self.member_N
        return self.x_N[at], self.y_N[at], self.document_N[at]


def read(recipe: RecipeResults) -> list[Property]:
    """Reads the properties that are known, in the order of `PROPERTIES`; of imported losses, some are not."""
    facts, config = recipe.view.facts("flips"), io.read_run_record(recipe)["config"]
    train = config["train"]
    focus = facts["config"]["focus_fpr"]
    votes = f"votes_{focus:g}"
    columns = io.read_samples(recipe, (*COLUMNS, votes))
    member_N, score_N = columns["member"].astype(bool), columns["score"].astype(float)
    document_N = io.read_documents(recipe)
    replica = first_replica(recipe, focus)
    decision_N = np.where(np.isnan(score_N), np.nan, score_N >= replica["threshold"])
    vote_share_N = columns[votes].astype(float) / facts["replicas"]
    if config["corpus"]["source"] == "imported":
        seen_N = np.full(len(member_N), -1)
    else:
        always_in = config["population"]["samples"] - len(member_N)
        step = number(facts["config"]["step"])
        seen_N = last_seen(int(replica["order_seed"]), member_N, train, step, always_in)
    unknown_N = columns["unk"].astype(float)
    x = {
        "last_seen": np.where(seen_N < 0, np.nan, seen_N),
        "tokens": columns["tokens"].astype(float),
        "tfidf": columns["tfidf"].astype(float),
        "unk": np.where(np.isnan(unknown_N), np.nan, unknown_N > 0),
    }
    return [
        Property(
            title,
            axis,
            x[name],
            decision_N if name == "last_seen" else vote_share_N,
            member_N,
            document_N,
        )
        for name, (title, axis) in PROPERTIES.items()
        if not np.isnan(x[name]).all()
    ]


def first_replica(recipe: RecipeResults, fpr: float) -> Record:
    """Returns the row of tables/thresholds.csv of the first replica at one FPR.

    The membership scores of samples.parquet are those of this replica.
    """
    rows = io.read_table(recipe, "thresholds.csv")
    seed = rows[0]["order_seed"] if rows else None
    matches = [r for r in rows if r["order_seed"] == seed and math.isclose(r["fpr"], fpr)]
    if not matches:
        raise UserError(
            f"{recipe.name}: thresholds.csv has no FPR of {percent(fpr)}; add it to attack.fprs"
        )
    return matches[0]


def last_seen(
    order_seed: int, member_N: np.ndarray, train: Mapping[str, int], step: int, always_in: int
) -> np.ndarray:
    """Returns step_N, the last training step at which a model saw each attacked sample; -1 if never.

    Args:
      order_seed: the seed of the model's batch order.
      member_N: whether the model was trained on each attacked sample.
      train: the section train of the config.
      step: only steps before this one count; 0 is the end of training.
      always_in: number of samples before these, on which all models are trained.
    """
    batch_size = train["batch_size"]
    member_2N = np.concatenate([np.ones(always_in, bool), member_N])
    total = train["epochs"] * batch_order.steps_per_epoch(int(member_2N.sum()), batch_size)
    return batch_order.last_seen(order_seed, member_2N, batch_size, step or total)[always_in:]


def draw(properties: list[Property]) -> Figure | None:
    """Draws a panel per property in which enough members differ; returns None if there is none."""
    shown = [p for p in properties if p.is_comparable()]
    if not shown:
        return None
    rows, columns = -(-len(shown) // 2), min(len(shown), 2)
    figure = plotting.new_figure(6.2, 0.7 + 2.7 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, prop in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, prop)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    top = max(axes.get_ylim()[1] for axes in grid.flat)
    grid[0, 0].set_ylim(0, min(top, 1.02))
    figure.supylabel("Called a member", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_panel(axes: Axes, prop: Property) -> None:
    members, nonmembers = prop.member_curve(), prop.nonmember_curve()
    style = {"color": plotting.MEMBER, "label": "Members", "markersize": 3.5, "linewidth": 1.2}
    if prop.is_binary:
        error_2xK = np.abs(np.stack([members.low_K, members.high_K]) - members.y_K)
        axes.errorbar(
            members.x_K,
            members.y_K,
            yerr=error_2xK,
            marker="o",
            linestyle="",
            capsize=3,
            **style,
        )
        axes.set_xticks([0, 1], ["no", "yes"])
        axes.set_xlim(-0.6, 1.6)
    else:
        axes.plot(members.x_K, members.y_K, marker="o", **style)
        axes.fill_between(
            members.x_K,
            members.low_K,
            members.high_K,
            color=plotting.MEMBER,
            alpha=0.18,
            linewidth=0,
        )
    style = {"color": plotting.NONMEMBER, "label": "Non-members", "linewidth": 1.2}
    if len(nonmembers.x_K):
        dash = "" if prop.is_binary else "--"
        axes.plot(
            nonmembers.x_K, nonmembers.y_K, marker="s", markersize=3.5, linestyle=dash, **style
        )
    else:
        axes.axhline(prop.nonmember_rate(), linestyle="--", **style)
    axes.set(xlabel=prop.axis, title=prop.title)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if too few members differ in any property."""
    return {"vulnerability": draw(read(recipe))}


EXPERIMENTS = {
    "strongmia_fig06_vulnerability": Experiment(
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
        reads=(
            Need(("fixed-140M",), sample_scores=True, jackknife=True),
            Need(("main",), sample_scores=True, jackknife=True),
        ),
    ),
    "strongmia_fig21_true_positive_probability": Experiment(
        statements=(),
        draw=draw_fig21,
    ),
    "strongmia_fig31_text_properties": Experiment(
        statements=FIG31_STATEMENTS,
        draw=draw_fig31,
        reads=(
            Need(("main",), sample_scores=True, jackknife=True),
            StudyNeed(("main",), TFIDF_STUDY),
        ),
    ),
}
