"""Flip rates and coin flips under every attack, and how they differ from those under online LiRA at the same FPR.

All attacks decide about the same samples under the same replicas, so their flip rates are compared in pairs. The
interval of a difference follows from a jackknife over the replicas and the samples, in which the same groups are left
out for both attacks (`stats.jackknife_variance`). It holds the training subset and the references fixed.

B: replicas, F: false positive rates of the config, C: samples of a block, K: numbers of votes (0 to B), N2: samples of
the population (2N), A1 and H1: as in `lm_mia.stats.jackknife`.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import decision_jackknife, decisions, tables
from lm_mia.attacks.decisions import Votes, add_votes, count_votes_by_class
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import sample_slices
from lm_mia.attacks.score_matrix import map_in_order

_COMPARED = {
    "tpr": "tpr_mean",
    "member_flip_rate": "member_flip_rate",
    "member_coin_flips": "member_coin_flips",
    "coin_flip_tp_fraction": "coin_flip_tp_fraction",
}
"""The numbers that are compared with those of LiRA, with their columns."""
_PARTS = ("tpr", "member_flip_rate", "member_coin_flips", "coin_flip_tpr")
"""The columns of decision_jackknife.parquet from which they follow."""


def attack_flips(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the columns of attack_flips.csv about one attack other than online LiRA, a row for each FPR.

    The range of coin flips among 127 replicas is computed at the focus FPR. There are no rows if some replica has no
    member or no non-member with a score.
    """
    if not scores.has_both_classes:
        return pd.DataFrame()
    points = tables.select_fprs(scores.operating_points(fprs, band), slice(len(fprs)))
    has_decisions_F = tables.has_decisions(points)
    member_N, group_N = scores.member_TxN[0], scores.cluster_N

    def count(at: slice) -> Votes:
        group_C = None if group_N is None else group_N[at]
        score_TxC = scores.file.read_samples(at)
        return count_votes_by_class(
            score_TxC, points.threshold_TxF, has_decisions_F, member_N[at], group_C
        )

    slices = sample_slices(scores.file.num_samples)
    votes = functools.reduce(add_votes, map_in_order(scores.pool, count, slices))
    shares = tables.coin_flip_shares(
        votes, fprs, alpha, ranges=("member",), range_fprs=(focus_fpr,)
    )
    return shares_of_votes(votes, shares, points.tpr_TxF, len(member_N), alpha)


def lira_flips(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pd.DataFrame:
    """Returns the same columns of online LiRA, from the counts on which the other tables of decisions are based."""
    settings = {"alpha": alpha, "band": band, "focus_fpr": focus_fpr, "fprs": fprs}
    votes = scores.once(decisions.count_decisions, **settings).votes[len(scores.targets)]
    shares = scores.once(decisions.coin_flips, **settings)
    tpr_BxF = scores.operating_points(fprs, band).tpr_TxF[:, : len(fprs)]
    return shares_of_votes(votes, shares, tpr_BxF, scores.file.num_samples, alpha)


def flip_parts(
    scores: Scores, *, alpha: float, focus_fpr: float, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns what the intervals of differences follow from, without groups of replicas and on halves of the samples.

    The columns are those of decision_jackknife.parquet. There are no rows if there are none of `attack_flips`.
    """
    if not scores.has_both_classes:
        return pd.DataFrame()
    metrics = scores.once(
        decision_jackknife.metrics_of_scores, alpha=alpha, focus_fpr=focus_fpr, fprs=fprs
    )
    table = decision_jackknife.to_frame(metrics, 0, fprs)
    return table[["replicas", "samples", "fpr", *_PARTS]]


ATTACK_FLIPS_TABLE = Table(
    "attack_flips.csv",
    (
        "Each row is an attack of `attack.attacks` with all references, and an FPR of `attack.fprs`; each replica's "
        "threshold is calibrated for the attack. The other tables of decisions are based on `lira_online` alone.\n"
        "\n"
        "Columns with `_minus_lira` are differences from `lira_online` at the same FPR. Their 95% intervals (Student's "
        "t, `lm_mia.stats.jackknife_variance`) are over replicas and samples (documents, if they are split): both "
        "attacks are evaluated without the same groups of replicas and on the same halves of the first 32,768 samples. "
        "The intervals hold the training subset and the references fixed. An interval is empty if the difference is "
        "not zero but is the same in all these parts, or if a part has no true positives."
    ),
    {
        **common("attack", "references", "fpr", "replicas", "cutoff"),
        "tpr_mean, tpr_std": Column("fraction", "true positive rate"),
        "coin_flip_tpr": Column(
            "fraction",
            "the part of `tpr_mean` that is due to members whose decisions are coin flips",
        ),
        "coin_flip_tp_fraction": Column(
            "fraction", "`coin_flip_tpr` / `tpr_mean`; empty without true positives"
        ),
        "member_flip_rate, nonmember_flip_rate": Column("fraction", "mean flip rate of the class"),
        "member_coin_flips, member_coin_flips_se": Column(
            "fraction",
            "members whose decisions are coin flips, and the standard error as in `flip_shares.csv`",
        ),
        "member_coin_flips_127_low, member_coin_flips_127_high": Column(
            "fraction",
            "[range at 127 replicas](#conventions); for attacks other than `lira_online` only at `attack.focus_fpr`",
        ),
        "nonmember_coin_flips, nonmember_coin_flips_se": Column(
            "fraction", "the same of non-members"
        ),
        **common("left_out"),
        "not_shared_fraction": Column("fraction", "as in `attacks.csv`"),
        "tpr_minus_lira, tpr_minus_lira_low, tpr_minus_lira_high": Column(
            "fraction",
            (
                "of `tpr_mean`; all differences are empty for `lira_online`, without references, and if one of the two "
                "has no TPR at this FPR"
            ),
        ),
        "member_flip_rate_minus_lira, member_flip_rate_minus_lira_low, member_flip_rate_minus_lira_high": Column(
            "fraction", "of `member_flip_rate`"
        ),
        "member_coin_flips_minus_lira, member_coin_flips_minus_lira_low, member_coin_flips_minus_lira_high": Column(
            "fraction", "of `member_coin_flips`"
        ),
        "coin_flip_tp_fraction_minus_lira": Column("fraction", "of `coin_flip_tp_fraction`"),
        "coin_flip_tp_fraction_minus_lira_low, coin_flip_tp_fraction_minus_lira_high": Column(
            "fraction", "ends of its interval"
        ),
    },
    key=("attack", "fpr"),
)


def compare(
    shares: Sequence[pd.DataFrame],
    parts: Mapping[str, pd.DataFrame],
    lira_jackknife: pd.DataFrame | None,
) -> pd.DataFrame:
    """Returns attack_flips.csv: a row for each attack and FPR, with the differences from online LiRA.

    Args:
      shares: the rows of each attack, online LiRA among them unless there are no references, with the column attack.
      parts: name of each attack but online LiRA -> the result of `flip_parts`.
      lira_jackknife: the result of `decision_jackknife.decision_jackknife`; None without references, and thus without
        differences.
    """
    if lira_jackknife is None:
        ends = "", "_low", "_high"
        columns = [f"{name}_minus_lira{end}" for name in _COMPARED for end in ends]
        return pd.concat(shares).assign(**dict.fromkeys(columns, np.nan))
    [lira] = (table for table in shares if table["attack"].iloc[0] == "lira_online")
    lira_parts = _part_values(lira_jackknife[lira_jackknife["references"] == 0])
    by_attack = {name: _part_values(table) for name, table in parts.items()}
    return pd.concat(
        [
            _with_differences(
                table, by_attack.get(str(table["attack"].iloc[0]), {}), lira, lira_parts
            )
            for table in shares
        ]
    )


def shares_of_votes(
    votes: Votes,
    coin_flips: pd.DataFrame,
    tpr_BxF: np.ndarray,
    num_samples: int,
    alpha: float,
) -> pd.DataFrame:
    """Returns the columns about an attack itself, a row for each FPR.

    Args:
      votes: the votes of all replicas.
      coin_flips: the result of `tables.coin_flip_shares` for these votes.
      tpr_BxF: the true positive rates of the replicas.
      num_samples: the number of samples.
      alpha: level of the coin-flip test.
    """
    replicas = votes["member"].replicas
    votes_K = np.arange(replicas + 1)
    flip_K = stats.flip_rate(votes_K, replicas)
    is_coin_flip_K = stats.flip_bins(votes_K, replicas, alpha) == stats.COIN_FLIP_BIN
    scored_F = sum(histograms.samples_FxK.sum(axis=1) for histograms in votes.values())
    table = coin_flips[["fpr", "replicas", "cutoff"]].copy()
    table["tpr_mean"] = tpr_BxF.mean(axis=0)
    table["tpr_std"] = tpr_BxF.std(axis=0)
    table["coin_flip_tpr"] = _mean(votes["member"], is_coin_flip_K * votes_K / replicas)
    table["coin_flip_tp_fraction"] = _ratio(
        table["coin_flip_tpr"].to_numpy(), table["tpr_mean"].to_numpy()
    )
    for name, histograms in votes.items():
        table[f"{name}_flip_rate"] = _mean(histograms, flip_K)
    for suffix in ("", "_se", "_127_low", "_127_high"):
        table[f"member_coin_flips{suffix}"] = coin_flips[f"member_fraction{suffix}"]
    for suffix in ("", "_se"):
        table[f"nonmember_coin_flips{suffix}"] = coin_flips[f"nonmember_fraction{suffix}"]
    return table.assign(left_out=num_samples - scored_F)


def _mean(votes: stats.VoteHistograms, value_K: np.ndarray) -> np.ndarray:
    """Returns the mean of value(votes) over samples, at each rate; NaN without samples."""
    samples_FxK = votes.samples_FxK
    total_F = samples_FxK.sum(axis=1)
    return samples_FxK @ value_K / np.where(total_F > 0, total_F, np.nan)


def _ratio(coin_flip_tpr: np.ndarray, tpr: np.ndarray) -> np.ndarray:
    """Returns the share of the true positives that are on coin flips; NaN without true positives."""
    return coin_flip_tpr / np.where(tpr > 0, tpr, np.nan)


def _part_values(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns name of `_PARTS` -> value_A1xH1xF, from rows in the order of `flip_parts`."""
    shape = tuple(int(table[axis].max()) + 1 for axis in ("replicas", "samples"))
    return {name: table[name].to_numpy().reshape(*shape, -1) for name in _PARTS}


def _with_differences(
    table: pd.DataFrame,
    parts: dict[str, np.ndarray],
    lira_table: pd.DataFrame,
    lira_parts: dict[str, np.ndarray],
) -> pd.DataFrame:
    """Adds the differences from LiRA, which are NaN for LiRA itself and where one of the two has no TPR."""
    has_tpr_F = table["tpr_mean"].notna() & lira_table["tpr_mean"].notna()
    numbers, lira_numbers = (
        p | {"coin_flip_tp_fraction": _ratio(p["coin_flip_tpr"], p["tpr"])} if p else {}
        for p in (parts, lira_parts)
    )
    for name, column in _COMPARED.items():
        difference_F = (table[column] - lira_table[column]).where(has_tpr_F & bool(parts))
        margin_F = np.full(len(table), np.nan)
        if parts:
            part_A1xH1xF = numbers[name] - lira_numbers[name]
            rates = range(part_A1xH1xF.shape[2])
            margin_F = np.array(
                [stats.jackknife_margin(part_A1xH1xF[:, None, :, f]) for f in rates]
            )
        table[f"{name}_minus_lira"] = difference_F
        table[f"{name}_minus_lira_low"] = difference_F - margin_F
        table[f"{name}_minus_lira_high"] = difference_F + margin_F
    return table
