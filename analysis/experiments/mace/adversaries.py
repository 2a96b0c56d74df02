"""MACE Figures 2, 4, 5 and 8: the membership advantage of adversaries that observe the loss of a sample, or a vector.

Densities are estimated from a part of the samples of a target, whose membership is known, and evaluated on the others.
All figures use the first `spec.JACKKNIFE_SAMPLES` samples of the population at most.

T: targets, N2: samples, D: numbers per query, S: samples with a query, H1: all samples, and then each half of them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import attacks, plotting
from analysis.claims.compare import (
    Claim,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import stats
from lm_mia.attacks import spec
from lm_mia.attacks.spec import Need, ObservedStatistic, Variant

PRIOR = 0.5
"""The probability of membership, unless a figure says otherwise."""
_BLOCK = 8  # documents; every second block is fitted, so that both parts have each group of the halves of samples
_FEWEST = 20
"""The fewest samples of each class in a part of the samples; with fewer there is no estimate."""


@dataclasses.dataclass(frozen=True)
class Query:
    """What an adversary observes of each sample of a target, and the truth."""

    query_N2xD: np.ndarray
    """One row of D numbers per sample; NaN for a missing one."""
    member_N2: np.ndarray
    document_N2: np.ndarray

    @property
    def fit_N2(self) -> np.ndarray:
        """Whether a sample is one of those that densities are estimated from; samples of a document stay together."""
        return self.document_N2 // _BLOCK % 2 == 0

    def select(self, selected_N2: np.ndarray) -> "Query":
        """Returns the query for some of the samples."""
        return Query(*(getattr(self, f.name)[selected_N2] for f in dataclasses.fields(self)))

    def has_enough(self) -> bool:
        """Whether both classes have enough samples in both parts."""
        known_N2 = ~np.isnan(self.query_N2xD).any(axis=1)
        parts = (
            known_N2 & (self.fit_N2 == fit) & (self.member_N2 == member)
            for fit in (True, False)
            for member in (True, False)
        )
        return min(int(part_N2.sum()) for part_N2 in parts) >= _FEWEST


def read_queries(
    recipe: RecipeResults,
    name: str = "loss",
    *,
    step: int = 0,
    observed: ObservedStatistic = "loss",
) -> list[Query]:
    """Reads the score of an attack under each target, as a query of one number per sample.

    Args:
      recipe, name, step, observed: as for `attacks.read_attack`; all references are used, at most those of the paper.

    Raises:
      UserError: as `attacks.read_sample_scores`.
    """
    count, document_N2 = attacks.common_references([recipe]), recipe.attacked.document_N
    used = slice(0, spec.JACKKNIFE_SAMPLES)
    return [
        Query(score_N2[used, None], member_N2[used], document_N2[used])
        for _, member_N2, score_N2 in attacks.read_sample_scores(
            recipe, Variant(name, count, step=step, observed=observed)
        )
    ]


def binned_ratio(query: Query) -> stats.LogRatio:
    """Returns the log ratio of the samples that are not fitted, by equal-count bins of a query of one number."""
    query_N2, fit_N2 = query.query_N2xD[:, 0], query.fit_N2
    fitted = query.member_N2[fit_N2]
    bins = stats.num_bins(min(int(fitted.sum()), int((~fitted).sum())))
    bin_N2 = stats.quantile_bins(query_N2, query_N2[fit_N2], bins)
    return stats.log_ratio_bins(bin_N2[fit_N2], fitted, bin_N2[~fit_N2], bins)


def kernel_ratio(query: Query) -> stats.LogRatio:
    """Returns the log ratio of the samples that are not fitted, by kernel density estimates on normal scores."""
    query_N2xD, fit_N2 = query.query_N2xD, query.fit_N2
    fitted = query.member_N2[fit_N2]
    smaller = min(int(fitted.sum()), int((~fitted).sum()))
    score_N2xD = stats.normal_scores(query_N2xD, query_N2xD[fit_N2])
    bandwidth = stats.silverman_bandwidth(smaller, query_N2xD.shape[1])
    return stats.log_ratio_kde(score_N2xD[fit_N2], fitted, score_N2xD[~fit_N2], bandwidth=bandwidth)


def held_out(
    query: Query, ratio: Callable[[Query], stats.LogRatio] = binned_ratio, prior: float = PRIOR
) -> float:
    """Returns the advantage of the fitted rule on the samples that are not fitted; NaN with too few samples."""
    if not query.has_enough():
        return math.nan
    f_S = stats.privacy_loss(ratio(query).value_N, prior)
    return stats.held_out_advantage(f_S, query.member_N2[~query.fit_N2], prior).value


def plug_in(query: Query, ratio: Callable[[Query], stats.LogRatio] = binned_ratio) -> float:
    """Returns the mean |f| over the samples that are not fitted, which is biased upwards; NaN with too few samples."""
    if not query.has_enough():
        return math.nan
    f_S = stats.privacy_loss(ratio(query).value_N, PRIOR)
    return stats.plug_in_advantage(f_S, query.member_N2[~query.fit_N2], PRIOR)


def over_targets(
    queries: Sequence[Query], value: Callable[[Query], float], not_covered: tuple[str, ...] = ()
) -> Jackknife:
    """Returns the mean over targets of a number, with what its interval over targets and samples needs."""
    value_TxH1 = np.array([[value(part) for part in _with_halves(query)] for query in queries])
    over = f"{len(queries)} targets and the samples"
    return Jackknife.from_targets(value_TxH1[:, None, :], over, not_covered)


def _with_halves(query: Query) -> list[Query]:
    half_HxN2 = stats.HALVES_HxG[:, stats.sample_groups(query.document_N2)]
    return [query, *(query.select(half_N2) for half_N2 in half_HxN2)]


HELD_OUT_NOTE = (
    "Densities are estimated from half of the samples. The held-out advantage is that of the rule “member where the "
    "density of members is higher” on the other half; on average it is at most that of the best adversary. Plug-in "
    "estimates, which average |f|, are too high where few samples are fitted, even without leakage, and too low where "
    "kernels are wide."
)

# Figure 2: the advantage by epoch.
FIG02_STATEMENTS = (
    "The advantage is larger after the last epoch than after the first.",
    "After the first epoch it is about 0.",
    "The band of kernel density estimates is inside that of bins after every epoch.",
)
_MARGIN = 0.05
_BINS = 100
_METHODS: dict[str, tuple[str, str]] = {
    "bins": (f"{_BINS} bins of equal width", plotting.VERMILLION),
    "kde": ("Kernels, bandwidth 1", plotting.SKY),
}


def same_sample_estimates(query: Query) -> dict[str, tuple[float, float, float]]:
    """Returns the estimates of the paper, fitted and evaluated on the same samples.

    Returns:
      Method -> (mean |f|, mean lower end, mean upper end), for bins of equal width and kernels of bandwidth 1, in the
      units of the query.
    """
    known_N2 = ~np.isnan(query.query_N2xD[:, 0])
    query_S, member_S = query.query_N2xD[known_N2, 0], query.member_N2[known_N2]
    low, width = query_S.min(), (np.ptp(query_S) or 1.0) / _BINS
    bin_S = np.minimum((query_S - low) // width, _BINS - 1)
    ratios = {
        "bins": stats.log_ratio_bins(bin_S, member_S, bin_S, _BINS),
        "kde": stats.log_ratio_kde(query_S, member_S, query_S, bandwidth=1.0),
    }
    estimates = {}
    for method, ratio in ratios.items():
        f_S, low_S, high_S = (
            stats.privacy_loss(end_S, PRIOR) for end_S in (ratio.value_N, ratio.low_N, ratio.high_N)
        )
        estimates[method] = tuple(
            stats.plug_in_advantage(end_S, member_S, PRIOR)
            for end_S in (f_S, *stats.absolute_ends(low_S, high_S))
        )
    return estimates


def draw_fig02(recipes: SweepResults) -> Drawing:
    """Draws the advantage of the loss by epoch, as estimated in the paper and on held-out samples."""
    recipe = recipes["epochs-140M-small"]
    epochs = spec.scored_epochs(recipe.config)
    queries = {e: read_queries(recipe, step=recipe.step_after(e)) for e in epochs}
    ours = {e: over_targets(q, held_out) for e, q in queries.items()}
    rows = []
    for epoch, queries_T in queries.items():
        estimates = [same_sample_estimates(query) for query in queries_T]
        for method in _METHODS:
            values_Tx3 = np.array([estimate[method] for estimate in estimates])
            rows += [
                {"epoch": epoch, "series": method, "target": t}
                | dict(zip(("value", "low", "high"), values, strict=True))
                for t, values in enumerate(values_Tx3)
            ]
        estimate, plugged = ours[epoch].estimate(), over_targets(queries_T, plug_in).value
        rows.append(
            {"epoch": epoch, "series": "held_out", "value": estimate.value}
            | {"low": estimate.low, "high": estimate.high}
        )
        rows.append({"epoch": epoch, "series": "plug_in", "value": plugged})
    data = pd.DataFrame(rows)
    figure = plotting.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    means = data.groupby(["series", "epoch"])[["value", "low", "high"]].mean()
    for method, (label, color) in _METHODS.items():
        _plot_band(left, means.loc[[method]].droplevel(0), label, color, "-")
    _plot_band(right, means.loc[["held_out"]].droplevel(0), "Held-out", plotting.BLUE, "-")
    plugged = means.loc["plug_in"]
    right.plot(plugged.index, plugged["value"], ":", color=plotting.BLUE, label="Plug-in")
    left.set_title("As in the paper: same samples")
    right.set_title("Equal-count bins, half of the samples fitted")
    left.set(ylabel="Advantage")
    for axes in (left, right):
        axes.set_xlabel("Epochs")
        axes.axhline(0, color=plotting.GREY, linestyle=":", linewidth=1)
        axes.legend(loc="upper left")
    first, last = epochs[0], epochs[-1]
    claims = (
        claim_greater(
            FIG02_STATEMENTS[0],
            f"Held-out advantage, epoch {last:g} minus epoch {first:g}",
            (ours[last] - ours[first]).estimate(),
        ),
        claim_equivalent(
            FIG02_STATEMENTS[1],
            f"Held-out advantage after epoch {first:g}",
            ours[first].estimate(),
            _MARGIN,
        ),
        _claim_inside(data),
    )
    notes = (
        HELD_OUT_NOTE,
        "On the left, densities are estimated from the samples on which they are evaluated, and bands are between the "
        "means of the ends of pointwise 95% intervals, which are not an interval of the advantage. A kernel of "
        "bandwidth 1 is as wide as most differences of losses.",
        unsupported_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def _claim_inside(data: pd.DataFrame) -> Claim:
    """Returns the claim that, after every epoch, the ends of the band of kernels are inside those of bins."""
    frame = data[data["series"].isin(_METHODS)]
    by_target = frame.pivot(index=["target", "epoch"], columns="series", values=["low", "high"])
    inside = np.minimum(
        by_target["low"]["kde"] - by_target["low"]["bins"],
        by_target["high"]["bins"] - by_target["high"]["kde"],
    )
    value_T = inside.groupby("target").min().to_numpy()
    over = f"{len(value_T)} targets"
    distance = Jackknife.from_targets(value_T[:, None, None], over, ("the samples",)).estimate()
    what = "Smallest distance over the epochs of an end from that of bins"
    return claim_greater(FIG02_STATEMENTS[2], what, distance)


def _plot_band(
    axes: Axes, frame: pd.DataFrame, label: str, color: str, dash: plotting.LineStyle
) -> None:
    style = {"color": color, "linestyle": dash, "marker": "o", "markersize": 4}
    axes.plot(frame.index, frame["value"], label=label, **style)
    axes.fill_between(
        frame.index, frame["low"], frame["high"], color=color, alpha=0.15, linewidth=0
    )


# Figure 4: queries of two numbers.
FIG04_STATEMENTS = (
    "The loss and the mean reference loss have a larger advantage than the loss alone.",
    "The loss and the target logit have a larger advantage than the loss alone.",
)
_QUERIES = {
    "loss": "Loss",
    "loss_and_references": "Loss and mean\nreference loss",
    "loss_and_logit": "Loss and\ntarget logit",
}


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws the advantage of the loss, alone and with a second number."""
    main = recipes["main"]
    loss = read_queries(main)
    logit = read_queries(main, observed="target_logit")
    # The score is the mean reference loss minus the loss. Together with the loss, it tells the same as the mean
    # reference loss, but kernels, which have no direction, blur it less, since both losses are nearly equal.
    calibrated = read_queries(main, "reference_calibrated")
    queries = {
        "loss": loss,
        "loss_and_references": [*map(_joined, loss, calibrated)],
        "loss_and_logit": [*map(_joined, loss, logit)],
    }
    fixed = {"loss_and_references": ("the references",)}
    values, rows = {}, []
    for name, queries_T in queries.items():
        values[name] = over_targets(
            queries_T, lambda q: held_out(q, kernel_ratio), fixed.get(name, ())
        )
        plugged = [plug_in(query, kernel_ratio) for query in queries_T]
        estimate = values[name].estimate()
        rows.append(
            {"query": name, "held_out": estimate.value, "low": estimate.low, "high": estimate.high}
            | {"plug_in": float(np.mean(plugged)), "targets": len(queries_T)}
        )
    data = pd.DataFrame(rows)
    figure = plotting.new_figure(6.2, 4.2)
    axes, at = figure.subplots(), np.arange(len(data))
    margin = np.stack([data["held_out"] - data["low"], data["high"] - data["held_out"]])
    axes.bar(
        at,
        data["held_out"],
        0.55,
        yerr=np.nan_to_num(margin),
        color=plotting.BLUE,
        capsize=4,
        label="Held-out, with 95% interval",
    )
    axes.plot(at, data["plug_in"], "o", color=plotting.VERMILLION, mfc="none", label="Plug-in")
    axes.set_xticks(at, [_QUERIES[name] for name in data["query"]])
    axes.set(ylabel="Advantage", ylim=(min(0.0, float(data["low"].min())), None))
    axes.grid(False, axis="x")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    others = ("loss_and_references", "loss_and_logit")
    claims = tuple(
        claim_greater(
            statement,
            f"Held-out advantage, {_QUERIES[name].lower().replace(chr(10), ' ')} minus loss",
            (values[name] - values["loss"]).estimate(),
        )
        for statement, name in zip(FIG04_STATEMENTS, others, strict=True)
    )
    count = attacks.common_references([main])
    notes = (
        HELD_OUT_NOTE,
        f"The mean reference loss is over {count} references, trained on the sample or not. The second number is its "
        "difference from the loss, which reveals the same together with the loss.",
        unsupported_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def _joined(first: Query, second: Query) -> Query:
    return dataclasses.replace(
        first, query_N2xD=np.concatenate([first.query_N2xD, second.query_N2xD], axis=1)
    )


# Figure 5: metrics other than the advantage.
FIG05_STATEMENTS = (
    "By accuracy, calling the share p of samples with the lowest losses is as good as the optimal rule, for p = 0.5.",
    "By the mean of TPR and TNR, the optimal rule is better, for p = 0.1.",
)
_METRICS = (("accuracy", 0.5), ("balanced_accuracy", 0.1))
_METRIC_NAMES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Mean of TPR and TNR",
}
_TOLERANCE = 0.02
_RULES: dict[str, tuple[str, plotting.LineStyle]] = {
    "optimal": (plotting.BLUE, "-"),
    "heuristic": (plotting.ORANGE, "--"),
}


def optimal_and_heuristic(query: Query, metric: str, prior: float) -> tuple[float, float]:
    """Returns a metric of two rules on the samples that are not fitted, NaN with too few samples.

    The optimal rule calls samples members whose estimated probability of membership is at least the threshold of MACE's
    Theorem 1. The heuristic rule knows nothing but the prior: it calls the share ``prior`` of samples with the highest
    scores, after members and non-members are weighted by the prior.
    """
    if not query.has_enough():
        return math.nan, math.nan
    definition = stats.METRICS[metric]
    member_S, score_S = (
        query.member_N2[~query.fit_N2],
        query.query_N2xD[~query.fit_N2, 0],
    )
    known_S = ~np.isnan(score_S)
    eta_S = (1 + stats.privacy_loss(binned_ratio(query).value_N, prior)) / 2
    optimal_S = eta_S >= stats.optimal_threshold(definition, prior)
    weight_S = np.where(
        member_S, prior / (member_S & known_S).sum(), (1 - prior) / (~member_S & known_S).sum()
    )
    order_S = np.argsort(-score_S, kind="stable")[: int(known_S.sum())]  # NaN is last
    called = order_S[np.cumsum(weight_S[order_S]) <= prior + 1e-9]
    heuristic_S = np.zeros(len(score_S), bool)
    heuristic_S[called] = True
    values = []
    for called_S in (optimal_S, heuristic_S):
        tp, fp = (called_S & member_S & known_S).sum(), (called_S & ~member_S & known_S).sum()
        fn, tn = (member_S & known_S).sum() - tp, (~member_S & known_S).sum() - fp
        values.append(float(stats.metric_value(definition, tp, fp, fn, tn, prior)))
    return values[0], values[1]


def draw_fig05(recipes: SweepResults) -> Drawing:
    """Draws two metrics of the optimal and the heuristic rule by epoch."""
    recipe = recipes["epochs-140M-small"]
    epochs = spec.scored_epochs(recipe.config)
    queries = {e: read_queries(recipe, step=recipe.step_after(e)) for e in epochs}
    figure = plotting.new_figure(10.4, 4.2)
    rows, gains = [], []
    for axes, (metric, prior) in zip(figure.subplots(1, 2), _METRICS, strict=True):
        values = {
            e: tuple(
                over_targets(q, lambda part, i=i: optimal_and_heuristic(part, metric, prior)[i])  # noqa: B023
                for i in (0, 1)
            )
            for e, q in queries.items()
        }
        for i, (name, (color, dash)) in enumerate(_RULES.items()):
            estimates = [values[e][i].estimate() for e in epochs]
            frame = pd.DataFrame(
                {"value": [x.value for x in estimates], "low": [x.low for x in estimates]}
                | {"high": [x.high for x in estimates]},
                index=epochs,
            )
            _plot_band(axes, frame, name.capitalize(), color, dash)
            rows.append(frame.assign(metric=metric, prior=prior, rule=name, epoch=frame.index))
        title = f"{_METRIC_NAMES[metric]}, p = {prior:g}"
        axes.set(title=title, xlabel="Epochs", ylabel=_METRIC_NAMES[metric])
        axes.legend(loc="upper left")
        differences = [values[e][0] - values[e][1] for e in epochs]
        mean = np.mean([d.value_A1xR1xH1 for d in differences], axis=0)
        gains.append(dataclasses.replace(differences[0], value_A1xR1xH1=mean).estimate())
    what = "Mean over epochs of {}, optimal minus heuristic rule"
    claims = (
        claim_equivalent(FIG05_STATEMENTS[0], what.format("the accuracy"), gains[0], _TOLERANCE),
        claim_greater(FIG05_STATEMENTS[1], what.format("the mean of TPR and TNR"), gains[1]),
    )
    notes = (
        "The query is the loss. The optimal rule needs the densities of members and non-members, which are estimated "
        "from half of the samples; both rules are evaluated on the other half, where classes are weighted by p. The "
        "mean of TPR and TNR does not depend on p, but the heuristic rule does: it calls the share p members. Bands "
        "are 95% intervals over targets and samples.",
        unsupported_note(claims),
    )
    return Drawing(pd.concat(rows, ignore_index=True), figure, claims=claims, notes=notes)


# Figure 8: small groups of samples.
FIG08_STATEMENTS = (
    "Samples with rare tokens have a larger advantage than the others.",
    "Short samples have a larger advantage than the others.",
    "Samples in the smaller of the groups with and without unknown tokens have a larger advantage.",
    "Samples in the smaller of the groups with shared and unshared first tokens have a larger advantage.",
)
_SMALL_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Group:
    """A small group of samples, and the larger rest."""

    small: str
    """The name of the small group."""
    rest: str
    small_N2: np.ndarray


def groups(recipe: RecipeResults) -> dict[str, Group]:
    """Returns a small group of the samples by each property."""
    column = recipe.attacked.column
    tfidf_N2, tokens_N2 = column("tfidf").astype(float), column("tokens").astype(float)
    rare = np.nan_to_num(tfidf_N2, nan=-np.inf) >= np.nanquantile(tfidf_N2, 1 - _SMALL_SHARE)
    short = tokens_N2 <= np.quantile(tokens_N2, _SMALL_SHARE)
    unknown, prefix_N2 = column("unk") > 0, column("prefix_group")
    _, at_N2, count = np.unique(prefix_N2, return_inverse=True, return_counts=True)
    shared = count[at_N2] > 1
    return {
        "tfidf": Group("rare tokens", "other", rare),
        "tokens": Group("short", "longer", short),
        "unk": _smaller("unknown tokens", "none", unknown),
        "prefix_group": _smaller("shared prefix", "own prefix", shared),
    }


def _smaller(name: str, rest: str, small_N2: np.ndarray) -> Group:
    """Returns the group if it is at most half of the samples, else the rest."""
    if small_N2.mean() <= 0.5:
        return Group(name, rest, small_N2)
    return Group(rest, name, ~small_N2)


def draw_fig08(recipes: SweepResults) -> Drawing:
    """Draws the advantage in small groups of samples beside that in the rest, of the loss and the calibrated loss."""
    recipe = recipes["fixed-140M"]
    by_property, frames, claims = groups(recipe), [], []
    figure = plotting.new_figure(11.0, 4.4)
    for axes, name in zip(figure.subplots(1, 2), _SUBGROUP_QUERIES, strict=True):
        queries, rows = read_queries(recipe, name), []
        for (column, group), statement in zip(by_property.items(), FIG08_STATEMENTS, strict=True):
            small_N2 = group.small_N2[: len(queries[0].member_N2)]
            fixed = () if name == "loss" else ("the references",)
            rest_N2 = with_equal_fit(queries[0].fit_N2, small_N2)
            sides = [
                over_targets([q.select(selected_N2) for q in queries], held_out, fixed)
                for selected_N2 in (small_N2, rest_N2)
            ]
            labels, sizes = (group.small, group.rest), (small_N2.sum(), (~small_N2).sum())
            for side, label, size in zip(sides, labels, sizes, strict=True):
                estimate = side.estimate()
                rows.append(
                    {"query": name, "property": column, "group": label, "samples": int(size)}
                    | {"held_out": estimate.value, "low": estimate.low, "high": estimate.high}
                )
            if name == "loss":
                what = (
                    f"Held-out advantage, {group.small} ({sizes[0]:,} samples) minus {group.rest}"
                )
                claims.append(_claim_of_group(statement, what, sides, int(sizes[0])))
        _draw_groups(axes, rows)
        axes.set_title(_SUBGROUP_QUERIES[name])
        frames.append(pd.DataFrame(rows))
    figure.axes[0].set_ylabel("Held-out advantage")
    notes = (
        f"The smaller group of each pair is red: the {percent(_SMALL_SHARE)} of samples with the highest TF-IDF, about "
        f"the {percent(_SMALL_SHARE)} with the fewest tokens, those with unknown tokens, and those that share their "
        "first tokens with another sample (or those that do not, if these are fewer). Densities are estimated within "
        f"each group, if it has at least {_FEWEST} samples of each class to fit and to evaluate.",
        "Bars have 95% intervals over targets and samples; those on the right hold the references fixed.",
        unsupported_note(claims),
    )
    return Drawing(pd.concat(frames, ignore_index=True), figure, claims=tuple(claims), notes=notes)


def with_equal_fit(fit_N2: np.ndarray, small_N2: np.ndarray) -> np.ndarray:
    """Returns the rest of the samples, with the first of the fitted ones only, as many as in the small group."""
    fitted_rest_N2 = fit_N2 & ~small_N2
    return ~small_N2 & (~fit_N2 | (np.cumsum(fitted_rest_N2) <= (fit_N2 & small_N2).sum()))


_SUBGROUP_QUERIES: dict[str, str] = {
    "loss": "Loss",
    "reference_calibrated": "Mean reference loss minus loss",
}


def _claim_of_group(
    statement: str, what: str, sides: Sequence[Jackknife], num_samples: int
) -> Claim:
    if any(math.isnan(side.value) for side in sides):
        return claim_untested(statement, f"the group of {num_samples:,} samples is too small")
    small, rest = sides
    return claim_greater(statement, what, (small - rest).estimate())


def _draw_groups(axes: Axes, rows: Sequence[Record]) -> None:
    ticks = []
    for number, row in enumerate(rows):
        at = 1.2 * number - 0.12 * (number % 2)
        ticks.append((at, row["group"].replace(" ", "\n")))
        if math.isnan(row["held_out"]):
            axes.text(at, 0, "too few ", rotation=90, size=8.5, ha="center", va="bottom")
            continue
        color = plotting.SKY if number % 2 else plotting.VERMILLION
        axes.bar(at, row["held_out"], 0.85, color=color)
        if not math.isnan(row["low"]):
            axes.plot([at, at], [row["low"], row["high"]], color=plotting.BLACK, linewidth=1.4)
    axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=9)
    axes.set_xlim(ticks[0][0] - 0.8, ticks[-1][0] + 0.8)
    axes.axhline(0, color=plotting.GREY, linewidth=1)
    axes.grid(False, axis="x")


def _need(recipe: str, **fields: object) -> Need:
    settings: Mapping[str, object] = {"attacks": ("loss",), "sample_scores": True} | fields
    return Need((recipe,), **settings)  # pyright: ignore[reportArgumentType]


EXPERIMENTS = {
    "mace_fig02_progress": Experiment(
        statements=FIG02_STATEMENTS,
        draw=draw_fig02,
        reads=(_need("epochs-140M-small", epochs="all"),),
    ),
    "mace_fig04_vector_queries": Experiment(
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
        reads=(
            _need("main", attacks=("loss", "reference_calibrated")),
            _need("main", observed=("target_logit",)),
        ),
    ),
    "mace_fig05_metrics": Experiment(
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
        reads=(_need("epochs-140M-small", epochs="all"),),
    ),
    "mace_fig08_subgroups": Experiment(
        statements=FIG08_STATEMENTS,
        draw=draw_fig08,
        reads=(_need("fixed-140M", attacks=("loss", "reference_calibrated")),),
    ),
}
