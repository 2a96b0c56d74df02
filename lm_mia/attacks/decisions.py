"""Decisions of many replicas under one attack, per class and per sample (StrongMIA Section 5, Appendix E.2).

These are evaluations of an attack whose models share their training subset. Those that count decisions share one pass
over the scores, in blocks of samples; those of single samples take another one each. The archetypes are selected by
explicit rules: example samples with stable and with unstable decisions (StrongMIA Figure 22).

T: replicas (B), F: false positive rates of the config, K: these rates and then those of the curve, C: samples of a
block, N: all samples, 5: bins of flip rates.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from lm_mia import stats
from lm_mia.attacks import registry, tables
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import Block, sample_slices
from lm_mia.attacks.models import archetype_losses as losses_of_archetypes
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.data.population import Population
from lm_mia.errors import UserError

Votes = Mapping[str, stats.VoteHistograms]
"""Votes on members ("member") and on non-members ("nonmember")."""

_ROW_GROUP = 2**17  # number of samples per row group of samples.parquet
_BINS = 50  # number of bins of the curves of flip rate against distance and posterior
_FEWEST_REPLICAS = 8  # The coin-flip test has little power with fewer.
_PREVIEW_CHARS = 240


ERROR_RATES_TABLE = Table(
    "error_rates.csv",
    "Each row is an FPR of `attack.fprs`, for online LiRA with all references. StrongMIA Tables 1 and 2.",
    {
        "attack": Column("none", "always `lira_online`"),
        **common("fpr"),
        "acc_mean, acc_std": Column("fraction", "accuracy, (TP + TN) / samples with a score"),
        "balanced_acc_mean, balanced_acc_std": Column(
            "fraction", "(TPR + TNR) / 2; the accuracy if both classes have the same size"
        ),
        "fnr_mean, fnr_std": Column("fraction", "false negative rate, 1 - TPR"),
        "realized_fpr_mean, realized_fpr_std": Column(
            "fraction", "realized FPR, at most `fpr`; the paper takes it as given"
        ),
        "tnr_mean, tnr_std": Column("fraction", "true negative rate, 1 - realized FPR"),
        "tpr_mean, tpr_std": Column(
            "fraction",
            (
                "true positive rate, TP / members with a score; like the accuracies and the FNR, empty if the "
                "non-members cannot show this FPR"
            ),
        ),
        **common("replicas", "left_out"),
    },
    key=("fpr",),
)


def error_rates(
    scores: Scores, *, band: tuple[float, float], fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns error_rates.csv: StrongMIA Tables 1 and 2, with the balanced accuracy and the realized FPR."""
    return tables.error_rates(_points_at_fprs(scores, band, fprs))


THRESHOLDS_TABLE = Table(
    "thresholds.csv",
    "Each row is a replica and an FPR of `attack.fprs`, for online LiRA with all references. StrongMIA Figure 25.",
    {
        "order_seed": Column("none", "number of the replica, its order seed"),
        **common("fpr"),
        "threshold": Column(
            "nats",
            (
                "the replica's [threshold](#conventions): a score of a non-member, `-inf` at an FPR of 1, or `inf` if "
                "there is none"
            ),
        ),
        "tpr": Column(
            "fraction",
            "true positive rate at the threshold; empty if the non-members cannot show this FPR",
        ),
        "realized_fpr": Column("fraction", "false positive rate at the threshold, at most `fpr`"),
    },
    key=("order_seed", "fpr"),
)


def thresholds(
    scores: Scores, *, band: tuple[float, float], fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns thresholds.csv: the threshold of each replica at each FPR (StrongMIA Figure 25)."""
    return tables.thresholds(_points_at_fprs(scores, band, fprs), _order_seeds(scores))


FLIP_SHARES_TABLE = Table(
    "flip_shares.csv",
    "Each row is an FPR of `attack.fprs` and a bin of flip rates. StrongMIA Tables 3 and 4, Figures 5, 28 and 29.",
    {
        **common("fpr"),
        "bin": Column("none", "one of the five [bins](#conventions)"),
        "low, high": Column(
            "fraction",
            "range of flip rates of the bin; `low` is included, `high` only in the last bin",
        ),
        "member_fraction, nonmember_fraction": Column(
            "fraction", "fraction of the members, or non-members, with votes that are in the bin"
        ),
        "members, nonmembers": Column("count", "samples of the class in the bin"),
        **common("replicas", "left_out"),
        "cutoff": Column(
            "fraction", "t; this and all following columns only in rows of the bin `coin flip`"
        ),
        "member_fraction_se, nonmember_fraction_se": Column(
            "fraction",
            (
                "standard errors over samples (documents, if they are split) and replicas "
                "(`lm_mia.stats.mean_std_error`)"
            ),
        ),
        "member_fraction_127_low, member_fraction_127_high": Column(
            "fraction", "[range at 127 replicas](#conventions)"
        ),
        "nonmember_fraction_127_low, nonmember_fraction_127_high": Column(
            "fraction", "the same of non-members"
        ),
    },
    key=("fpr", "bin"),
)


def flip_shares(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns flip_shares.csv: StrongMIA Tables 3 and 4, with the uncertainty of coin flips."""
    settings = {"alpha": alpha, "band": band, "focus_fpr": focus_fpr, "fprs": fprs}
    counts = scores.once(count_decisions, **settings).bin_counts
    shares = tables.flip_shares(counts, len(scores.targets), fprs, alpha)
    return tables.with_uncertainty(shares, scores.once(coin_flips, **settings))


FLIP_SHARES_BY_REPLICAS_TABLE = Table(
    "flip_shares_by_replicas.csv",
    (
        "Each row is a number of replicas: the first 8, 16, 32, ... and all of them, at `attack.focus_fpr`. It shows "
        "how the share of coin flips falls with the number of replicas while its range narrows."
    ),
    {
        **common("fpr", "replicas", "cutoff"),
        "member_fraction, member_fraction_se, member_fraction_127_low, member_fraction_127_high": Column(
            "fraction", "as in `flip_shares.csv`, of the bin `coin flip`"
        ),
        "nonmember_fraction, nonmember_fraction_se, nonmember_fraction_127_low, nonmember_fraction_127_high": Column(
            "fraction", "as in `flip_shares.csv`, of the bin `coin flip`"
        ),
    },
    key=("replicas",),
)


def flip_shares_by_replicas(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns flip_shares_by_replicas.csv: coin flips among the first 8, 16, 32, ... replicas at the focus FPR."""
    settings = {"alpha": alpha, "band": band, "focus_fpr": focus_fpr, "fprs": fprs}
    of_all = scores.once(coin_flips, **settings)
    parts = [
        tables.coin_flip_shares(votes, [focus_fpr], alpha)
        for count, votes in scores.once(count_decisions, **settings).votes.items()
        if count < len(scores.targets)
    ]
    return pd.concat([*parts, of_all[of_all["fpr"] == focus_fpr]])


TRUE_POSITIVES_TABLE = Table(
    "true_positives.csv",
    (
        "Each row is an FPR of `attack.fprs`. Bins are made from the votes of all replicas; true positives are counted "
        "for each replica. Fractions are means of each replica's ratio, as in the paper: a replica without a true "
        "positive has a fraction of 0, and if no replica has any, fractions are empty. StrongMIA Tables 5 and 6, "
        "Appendix E.2.6."
    ),
    {
        **common("fpr"),
        "tpr_mean, tpr_std": Column("fraction", "true positives / members with votes"),
        "tp_mean, tp_std": Column(
            "count",
            (
                "true positives among members with votes; empty, like all numbers of true positives, if no member has "
                "votes"
            ),
        ),
        "very_unstable_tp_mean, very_unstable_tp_std, coin_flip_tp_mean, coin_flip_tp_std": Column(
            "count", "those in the bins `very unstable` and `coin flip`"
        ),
        "very_unstable_fraction_mean, very_unstable_fraction_std": Column(
            "fraction", "these as fractions of the replica's true positives"
        ),
        "coin_flip_fraction_mean, coin_flip_fraction_std, union_fraction_mean, union_fraction_std": Column(
            "fraction", "likewise"
        ),
        "union_tp_mean, union_tp_std": Column(
            "count", "those in either bin; the standard deviation is of each replica's sum"
        ),
        "very_unstable_ratio_of_means, coin_flip_ratio_of_means, union_ratio_of_means": Column(
            "fraction", "their mean numbers divided by the mean number of all true positives"
        ),
        **common("replicas", "left_out"),
    },
    key=("fpr",),
)


def true_positives(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns true_positives.csv: true positives of members with unstable decisions (StrongMIA Tables 5 and 6)."""
    total = scores.once(count_decisions, alpha=alpha, band=band, focus_fpr=focus_fpr, fprs=fprs)
    return tables.true_positives(total.true_positives_TxFx5, total.bin_counts, fprs)


REPLICA_TRUE_POSITIVES_TABLE = Table(
    "replica_true_positives.csv",
    (
        "Each row is a replica and an FPR of `attack.fprs`; `true_positives.csv` has the means over replicas. "
        "StrongMIA Appendix E.2.6."
    ),
    {
        "order_seed": Column("none", "number of the replica"),
        **common("fpr"),
        "tp, very_unstable_tp, coin_flip_tp": Column("count", "as in `true_positives.csv`"),
    },
    key=("order_seed", "fpr"),
)


def replica_true_positives(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns replica_true_positives.csv: the true positives of each replica, by bin of flip rates."""
    total = scores.once(count_decisions, alpha=alpha, band=band, focus_fpr=focus_fpr, fprs=fprs)
    has_decisions_F = tables.has_decisions(_points_at_fprs(scores, band, fprs))
    return tables.replica_true_positives(
        total.true_positives_TxFx5, _order_seeds(scores), fprs, has_decisions_F
    )


COIN_FREE_ROC_TABLE = Table(
    "coin_free_roc.csv",
    (
        "Each row is a point of the mean ROC curve of online LiRA with all references, at the rates of `roc.csv`. "
        "StrongMIA Eq. 24, Figure 30."
    ),
    {
        **common("fpr"),
        "tpr_mean": Column("fraction", "true positive rate among members with votes"),
        "tpr_coin_free": Column(
            "fraction",
            (
                "the same without the true positives whose decisions are coin flips at this FPR; since other members "
                "are removed at each rate, it is not the curve of a threshold rule, and may fall"
            ),
        ),
        "tpr_unstable_free": Column(
            "fraction",
            "the same without the true positives whose decisions are very unstable, either",
        ),
    },
    key=("fpr",),
)


def coin_free_roc(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns coin_free_roc.csv: the mean ROC curve with and without unstable decisions (StrongMIA Figure 30)."""
    total = scores.once(count_decisions, alpha=alpha, band=band, focus_fpr=focus_fpr, fprs=fprs)
    fpr_G = scores.operating_points(fprs, band).fpr_F[len(fprs) :]
    return tables.coin_free_roc(fpr_G, total.vote_counts, len(scores.targets))


PARTIAL_AUC_TABLE = Table(
    "partial_auc.csv",
    (
        "Each row is a range of FPRs (`attack.band`, then 0 to 1) and a curve of `coin_free_roc.csv`, whose points are "
        "connected by straight lines. StrongMIA Appendix E.2.6."
    ),
    {
        "low, high": Column("fraction", "ends a and b of the range of FPRs"),
        "curve": Column(
            "none",
            "`raw` (`tpr_mean`), `coin-free` (`tpr_coin_free`) or `unstable-free` (`tpr_unstable_free`)",
        ),
        "pauc": Column(
            "fraction",
            "area under the curve between a and b, at most b - a",
        ),
        "pauc_normalized": Column("fraction", "`pauc` / (b - a): the mean TPR over the range"),
        "lift": Column(
            "fraction",
            "`pauc` minus that of guessing, (b^2 - a^2) / 2; may be negative",
        ),
        "lift_normalized": Column(
            "fraction",
            "`lift` / (b - a): the mean of TPR - FPR over the range",
        ),
        "lift_retained_fraction": Column(
            "fraction",
            (
                "lift of the curve divided by that of the raw curve; negative if it is below chance; not in rows of "
                "the raw curve, and empty unless the raw lift is above 0"
            ),
        ),
        "mean_tpr_dropped_fraction": Column(
            "fraction",
            (
                "fraction of the raw curve's mean TPR over the range that is missing in the curve; not in rows of "
                "the raw curve, and empty if the raw area is 0"
            ),
        ),
    },
    key=("low", "high", "curve"),
)


def partial_auc(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns partial_auc.csv: areas and lifts of the curves of `coin_free_roc`, over a band and from 0 to 1."""
    curves = coin_free_roc(scores, alpha=alpha, band=band, focus_fpr=focus_fpr, fprs=fprs)
    return tables.partial_auc(curves, band)


@dataclasses.dataclass(frozen=True)
class DecisionCounts:
    """Counts of the decisions of all replicas on samples."""

    bin_counts: stats.FlipBinCounts
    """The number of samples in each bin of flip rates, as in StrongMIA Tables 3 and 4."""
    true_positives_TxFx5: np.ndarray
    vote_counts: stats.MemberVoteCounts
    """At the points of the curve."""
    votes: Mapping[int, Votes]
    """Votes of the first replicas, by their number: of all replicas at all rates, and of fewer replicas at
    the focus FPR."""

    def __add__(self, other: "DecisionCounts") -> "DecisionCounts":
        """Adds the counts of other samples."""
        return DecisionCounts(
            self.bin_counts + other.bin_counts,
            self.true_positives_TxFx5 + other.true_positives_TxFx5,
            self.vote_counts + other.vote_counts,
            {count: add_votes(votes, other.votes[count]) for count, votes in self.votes.items()},
        )


def count_decisions(
    scores: Scores,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> DecisionCounts:
    """Returns the decisions on all samples; raises UserError if no member or no non-member has a score."""
    points, replicas = scores.operating_points(fprs, band), len(scores.targets)
    for count_T, name in ((points.members_T, "member"), (points.nonmembers_T, "non-member")):
        if not count_T.all():
            raise UserError(
                f"attack.references={len(scores.spec.references)}: no {name} has enough IN and OUT references with "
                "different losses for LiRA; request more references"
            )
    member_N, cluster_N = scores.member_TxN[0], scores.cluster_N
    threshold_TxK, num_fprs, focus = points.threshold_TxF, len(fprs), [fprs.index(focus_fpr)]
    threshold_TxF = threshold_TxK[:, :num_fprs]
    has_decisions_F = tables.has_decisions(points)[:num_fprs]

    def count(at: slice) -> DecisionCounts:
        score_TxC, member_C = scores.file.read_samples(at), member_N[at]
        cluster_C = None if cluster_N is None else cluster_N[at]
        votes_KxC = stats.count_votes(score_TxC, threshold_TxK).votes_FxN
        votes_FxC = votes_KxC[:num_fprs]
        votes_FxC[~has_decisions_F] = np.nan
        bin_FxC = stats.flip_bins(votes_FxC, replicas, alpha)
        return DecisionCounts(
            stats.count_flip_bins(votes_FxC, member_C, replicas, alpha),
            stats.count_true_positives(score_TxC, threshold_TxF, bin_FxC, member_C),
            stats.count_member_votes(votes_KxC[num_fprs:], member_C, replicas, alpha),
            {
                count: count_votes_by_class(
                    score_TxC[:count],
                    threshold_TxF if count == replicas else threshold_TxF[:count, focus],
                    has_decisions_F if count == replicas else has_decisions_F[focus],
                    member_C,
                    cluster_C,
                )
                for count in _replica_counts(replicas)
            },
        )

    counts = map_in_order(scores.pool, count, sample_slices(scores.file.num_samples))
    return functools.reduce(DecisionCounts.__add__, counts)


def coin_flips(
    scores: Scores,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns `tables.coin_flip_shares` of all replicas at all rates."""
    total = scores.once(count_decisions, alpha=alpha, band=band, focus_fpr=focus_fpr, fprs=fprs)
    return tables.coin_flip_shares(total.votes[len(scores.targets)], fprs, alpha)


def count_votes_by_class(
    score_TxC: np.ndarray,
    threshold_TxF: np.ndarray,
    has_decisions_F: np.ndarray,
    member_C: np.ndarray,
    document_C: np.ndarray | None,
) -> Votes:
    """Returns the votes on the members and on the non-members of a block.

    Args:
      score_TxC: membership scores of the replicas.
      threshold_TxF: their thresholds.
      has_decisions_F: the result of `tables.has_decisions`; at the other rates, no sample has votes.
      member_C: membership in the training subset of the replicas.
      document_C: document of each sample, or None if documents are not split.
    """
    votes = {
        name: stats.count_vote_histograms(
            score_TxC[:, class_C],
            threshold_TxF,
            None if document_C is None else document_C[class_C],
        )
        for name, class_C in (("member", member_C), ("nonmember", ~member_C))
    }
    has_decisions_Fx1x1 = has_decisions_F[:, None, None]
    return {
        name: stats.VoteHistograms(
            histograms.samples_FxGxK * has_decisions_Fx1x1,
            histograms.called_FxRxK * has_decisions_Fx1x1,
        )
        for name, histograms in votes.items()
    }


def add_votes(first: Votes, second: Votes) -> Votes:
    """Returns the votes on the samples of two blocks."""
    return {name: votes + second[name] for name, votes in first.items()}


def _replica_counts(replicas: int) -> list[int]:
    """Returns the numbers of replicas whose votes are counted: 8, 16, 32, ... and all."""
    fewer = (_FEWEST_REPLICAS * 2**i for i in range(replicas.bit_length()))
    return [*(count for count in fewer if count < replicas), replicas]


# Single samples


SAMPLES_TABLE = Table(
    "samples.parquet",
    "Each row is a sample; scores are those of online LiRA with all references. StrongMIA Figures 6, 26, 27 and 31.",
    {
        **common(
            "id",
            "member",
            "tokens",
            "unk",
            "zlib_bytes",
            "tfidf",
            "prefix_group",
            "document",
            "piece",
        ),
        "score": Column("nats", "score under the first replica"),
        "mean_score": Column("nats", "mean score over replicas"),
        "mean_posterior": Column(
            "fraction", "mean posterior of the score; not the posterior of `mean_score`"
        ),
        "separation": Column(
            "standard deviations",
            (
                "(OUT mean - IN mean) / sqrt((IN variance + OUT variance) / 2), of the losses under the references; "
                "pooled variances if `attack.variance=pooled`; NaN where the score is"
            ),
        ),
        "votes_FPR": Column(
            "count",
            (
                'B1, the number of replicas that decide "member"; null, like the next two, if the sample has no score '
                "under one of the replicas"
            ),
        ),
        "flip_rate_FPR": Column("fraction", "flip rate"),
        "p_value_FPR": Column(
            "fraction",
            "two-sided equal-tail p-value of the votes if they were fair coins, at most 1 (StrongMIA Eq. 22)",
        ),
        "distance_FPR": Column(
            "fraction",
            (
                "mean absolute difference between the sample's posterior and that of the replica's threshold (Appendix "
                "E.2.5); a threshold of `-inf` has posterior 0"
            ),
        ),
    },
    key=("id",),
)


def samples(
    scores: Scores,
    *,
    band: tuple[float, float],
    finite_population: bool,
    fprs: tuple[float, ...],
) -> Iterator[pa.Table]:
    """Yields samples.parquet: scores, separation, votes, flip rates and distances to the threshold of each sample."""
    rows = _sample_rows(scores, band, finite_population, fprs, fprs)
    pending: list[pa.Table] = []
    for table in rows:
        pending.append(table)
        if sum(map(len, pending)) >= _ROW_GROUP:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


def _sample_rows(
    scores: Scores,
    band: tuple[float, float],
    finite_population: bool,
    all_fprs: tuple[float, ...],
    fprs: Sequence[float],
) -> Iterator[pa.Table]:
    """Yields the rows of `samples`, a block at a time, with the columns of decisions at some of all the rates."""
    points, replicas = scores.operating_points(all_fprs, band), len(scores.targets)
    index = [all_fprs.index(fpr) for fpr in fprs]
    threshold_TxF = points.threshold_TxF[:, index]
    has_decisions_F = tables.has_decisions(points)[index]
    threshold_posterior_TxF = stats.posterior(threshold_TxF)
    sample_columns, inputs = scores.population.sample_columns(), scores.inputs

    def rows(block: Block) -> pa.Table:
        at, score_TxC = block.at, scores.file.read_samples(block.at)
        votes_FxC = stats.count_votes(score_TxC, threshold_TxF).votes_FxN
        votes_FxC[~has_decisions_F] = np.nan
        posterior_TxC = stats.posterior(score_TxC)
        distance_FxC = stats.mean_distance_to_threshold(posterior_TxC, threshold_posterior_TxF)
        distance_FxC[~has_decisions_F] = np.nan
        columns = {"id": inputs.ids(at), "member": scores.member_TxN[0][at]}
        columns |= {name: column_N[at] for name, column_N in sample_columns.items()}
        columns["score"] = score_TxC[0]
        columns["mean_score"] = score_TxC.mean(axis=0)
        columns["mean_posterior"] = posterior_TxC.mean(axis=0)
        columns["separation"] = registry.separation(
            block, scores.fit, finite_population=finite_population
        )
        for f, fpr in enumerate(fprs):
            columns[f"votes_{fpr:g}"] = pa.array(
                votes_FxC[f].astype(np.float32), mask=np.isnan(votes_FxC[f])
            ).cast(pa.int16())
            columns[f"flip_rate_{fpr:g}"] = stats.flip_rate(votes_FxC[f], replicas)
            columns[f"p_value_{fpr:g}"] = stats.p_value(votes_FxC[f], replicas)
            columns[f"distance_{fpr:g}"] = distance_FxC[f].astype(np.float32)
        return pa.table(columns)

    # The scores of the replicas are in the file, so their losses are not read again.
    references = dataclasses.replace(inputs, targets=inputs.targets[:1], statistics=())
    parts = (part for block in references.blocks() for part in block.split())
    yield from map_in_order(scores.pool, rows, parts)


FLIP_CURVES_TABLE = Table(
    "flip_curves.csv",
    (
        "Each row is a bin of samples of one class, at an FPR of `attack.fprs`: 50 bins of equal size, or fewer, since "
        "equal values stay in one bin. StrongMIA Figures 26 and 27."
    ),
    {
        **common("fpr"),
        "binned_by": Column(
            "none",
            "`distance` (`distance_FPR` of `samples.parquet`) or `posterior` (`mean_posterior`)",
        ),
        **common("class"),
        "x_mean": Column("fraction", "its mean in the bin"),
        "flip_rate_mean": Column("fraction", "mean `flip_rate_FPR` in the bin"),
        "samples": Column("count", "samples in the bin"),
        "left_out": Column(
            "count", "samples of the class without a flip rate or distance, which are in no bin"
        ),
    },
    key=("fpr", "binned_by", "class", "x_mean"),
)


def flip_curves(
    scores: Scores, *, band: tuple[float, float], fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns mean flip rates in equal-count bins of mean distance and of mean posterior (Figures 26 and 27)."""
    points, replicas = _points_at_fprs(scores, band, fprs), len(scores.targets)
    has_decisions_F, threshold_TxF = tables.has_decisions(points), points.threshold_TxF
    threshold_posterior_TxF = stats.posterior(threshold_TxF)
    num_samples, member_N = scores.file.num_samples, scores.member_TxN[0]
    distance_FxN = np.empty((len(fprs), num_samples), np.float32)
    votes_FxN = np.empty((len(fprs), num_samples), np.float32)
    posterior_N = np.empty(num_samples)

    def fill(at: slice) -> None:
        score_TxC = scores.file.read_samples(at)
        votes_FxN[:, at] = stats.count_votes(score_TxC, threshold_TxF).votes_FxN
        posterior_TxC = stats.posterior(score_TxC)
        distance_FxN[:, at] = stats.mean_distance_to_threshold(
            posterior_TxC, threshold_posterior_TxF
        )
        posterior_N[at] = posterior_TxC.mean(axis=0)

    for _ in map_in_order(scores.pool, fill, sample_slices(num_samples)):
        pass
    votes_FxN[~has_decisions_F] = distance_FxN[~has_decisions_F] = np.nan

    def bin_samples(curve: tuple[int, str]) -> pd.DataFrame:
        f, binned_by = curve
        x_N = distance_FxN[f] if binned_by == "distance" else posterior_N
        flip_rate_N = stats.flip_rate(votes_FxN[f].astype(np.float64), replicas)
        parts = []
        for class_N, name in ((member_N, "members"), (~member_N, "nonmembers")):
            bins = stats.equal_count_bins(x_N[class_N], flip_rate_N[class_N], _BINS)
            parts.append(
                pd.DataFrame(
                    {"fpr": fprs[f], "binned_by": binned_by, "class": name, "x_mean": bins.x_mean_K}
                    | {"flip_rate_mean": bins.y_mean_K, "samples": bins.count_K}
                    | {"left_out": bins.left_out}
                )
            )
        return pd.concat(parts)

    curves = [(f, name) for f in range(len(fprs)) for name in ("distance", "posterior")]
    return pd.concat([*map_in_order(scores.pool, bin_samples, curves)])


# Archetypes


ARCHETYPES_TABLE = Table(
    "archetypes.csv",
    (
        "Each row is one of four kinds of samples, with the first sample by id that satisfies its rule, if there is "
        "one. StrongMIA Figure 22."
    ),
    {
        "kind": Column(
            "none",
            "`clear stable member`, `clear stable non-member`, `ambiguous stable` or `ambiguous unstable`",
        ),
        "rule": Column(
            "none",
            (
                "the rule in words, with the numbers of `attack.clear_separation`, `ambiguous_separation`, "
                "`stable_flip` and, for clear members, `stable_member_flip`"
            ),
        ),
        "candidates": Column("count", "samples that satisfy the rule"),
        "fpr": Column("fraction", "`attack.focus_fpr`, at which votes and flip rates are taken"),
        **common("id", "member"),
        "votes": Column("count", "its `votes_FPR` of `samples.parquet`"),
        "flip_rate": Column("fraction", "its `flip_rate_FPR`"),
        "separation": Column("standard deviations", "its `separation`"),
        "text_preview": Column(
            "none", "the first 240 characters of its text, decoded from its tokens"
        ),
    },
    key=("kind",),
)


def archetypes(
    scores: Scores,
    *,
    alpha: float,
    ambiguous_separation: float,
    band: tuple[float, float],
    clear_separation: float,
    finite_population: bool,
    focus_fpr: float,
    fprs: tuple[float, ...],
    stable_flip: float,
    stable_member_flip: float,
) -> pd.DataFrame:
    """Returns archetypes.csv: for each kind, its rule, the number of candidates and the first candidate.

    The documents of the population are in random order, so the first candidate is a random one. Rules are never
    relaxed: a kind without a candidate has an empty id. The numbers in the rules are settings.
    """
    rules = archetype_rules(
        len(scores.targets),
        alpha=alpha,
        ambiguous_separation=ambiguous_separation,
        clear_separation=clear_separation,
        stable_flip=stable_flip,
        stable_member_flip=stable_member_flip,
    )
    return scores.once(
        _find_archetypes,
        rules=rules,
        band=band,
        finite_population=finite_population,
        focus_fpr=focus_fpr,
        fprs=fprs,
    )


def archetype_losses(
    scores: Scores,
    *,
    alpha: float,
    ambiguous_separation: float,
    band: tuple[float, float],
    clear_separation: float,
    finite_population: bool,
    focus_fpr: float,
    fprs: tuple[float, ...],
    stable_flip: float,
    stable_member_flip: float,
) -> pd.DataFrame:
    """Returns archetype_losses.csv: the losses of the archetypes under the references and replicas of the attack."""
    found = archetypes(
        scores,
        alpha=alpha,
        ambiguous_separation=ambiguous_separation,
        band=band,
        clear_separation=clear_separation,
        finite_population=finite_population,
        focus_fpr=focus_fpr,
        fprs=fprs,
        stable_flip=stable_flip,
        stable_member_flip=stable_member_flip,
    )
    inputs = scores.inputs
    return losses_of_archetypes(inputs.store, inputs.references, inputs.targets, found)


@dataclasses.dataclass(frozen=True)
class ArchetypeRule:
    """What a sample must satisfy to be the example of a kind."""

    kind: str
    description: str
    """In words."""
    query: str
    """The same as a pandas query."""


def _find_archetypes(
    scores: Scores,
    rules: tuple[ArchetypeRule, ...],
    band: tuple[float, float],
    finite_population: bool,
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the result of `archetypes`."""
    names = {f"votes_{focus_fpr:g}": "votes", f"flip_rate_{focus_fpr:g}": "flip_rate"}
    rows = (
        table.select(["id", "member", "separation", *names]).to_pandas().rename(columns=names)
        for table in _sample_rows(scores, band, finite_population, fprs, [focus_fpr])
    )
    return find_archetypes(rows, rules, scores.population, focus_fpr)


def find_archetypes(
    rows: Iterator[pd.DataFrame],
    rules: Sequence[ArchetypeRule],
    population: Population,
    fpr: float,
) -> pd.DataFrame:
    """Returns the number of candidates and the first candidate of each rule.

    Args:
      rows: the samples in order, with the columns id, member, separation, votes and flip_rate.
      rules: the rules.
      population: provides the texts.
      fpr: the false positive rate of the votes.
    """
    first: list[dict[str, object]] = [{} for _ in rules]
    candidates = [0] * len(rules)
    for table in rows:
        for k, rule in enumerate(rules):
            matches = table.query(rule.query)
            candidates[k] += len(matches)
            if len(matches) and not first[k]:
                row = matches.iloc[0]
                text = population.text(int(row["id"]) - population.first_id)[:_PREVIEW_CHARS]
                first[k] = {"id": int(row["id"]), "member": bool(row["member"])}
                first[k] |= {"votes": int(row["votes"]), "flip_rate": row["flip_rate"]}
                first[k] |= {"separation": row["separation"], "text_preview": text}
    empty = dict.fromkeys(("id", "member", "votes", "flip_rate", "separation", "text_preview"))
    found = [
        {"kind": rule.kind, "rule": rule.description, "candidates": count, "fpr": fpr}
        | empty
        | sample
        for rule, count, sample in zip(rules, candidates, first, strict=True)
    ]
    types = {"id": "Int64", "member": object, "votes": "Int64"}
    types |= {"flip_rate": float, "separation": float, "text_preview": object}
    return pd.DataFrame(found).astype(types)


def archetype_rules(
    replicas: int,
    *,
    alpha: float,
    ambiguous_separation: float,
    clear_separation: float,
    stable_flip: float,
    stable_member_flip: float,
) -> tuple[ArchetypeRule, ...]:
    """Returns the rules of the archetypes for a number of replicas."""
    k_low, _ = stats.coin_flip_cutoff(replicas, alpha)
    # With few replicas k_low is 0, but a unanimous decision is never a coin flip.
    low = max(k_low, 1)
    clear, ambiguous = clear_separation, ambiguous_separation
    majority, minority = f"votes > {replicas / 2}", f"votes < {replicas / 2}"
    coin_flip = f"votes >= {low} and votes <= {replicas - low}"
    number = functools.partial(np.format_float_positional, trim="-")
    return (
        ArchetypeRule(
            "clear stable member",
            f"member, separation >= {number(clear)}, flip rate <= {number(stable_member_flip)}, "
            "most replicas decide member",
            f"member and separation >= {clear} and flip_rate <= {stable_member_flip} and {majority}",
        ),
        ArchetypeRule(
            "clear stable non-member",
            f"non-member, separation >= {number(clear)}, flip rate <= {number(stable_flip)}, "
            "most replicas decide non-member",
            f"not member and separation >= {clear} and flip_rate <= {stable_flip} and {minority}",
        ),
        ArchetypeRule(
            "ambiguous stable",
            f"|separation| <= {number(ambiguous)}, flip rate <= {number(stable_flip)}",
            f"separation.abs() <= {ambiguous} and flip_rate <= {stable_flip}",
        ),
        ArchetypeRule(
            "ambiguous unstable",
            f"|separation| <= {number(ambiguous)}, coin flip: {low} to {replicas - low} of {replicas} votes",
            f"separation.abs() <= {ambiguous} and {coin_flip}",
        ),
    )


def _points_at_fprs(
    scores: Scores, band: tuple[float, float], fprs: tuple[float, ...]
) -> stats.OperatingPoints:
    """Returns the operating points at the rates without those of the curve."""
    return tables.select_fprs(scores.operating_points(fprs, band), slice(len(fprs)))


def _order_seeds(scores: Scores) -> list[int]:
    return [model.order_seed for model in scores.inputs.targets]
