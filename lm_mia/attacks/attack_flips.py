"""Flip rates and coin flips under every attack, and how they differ from those under online LiRA at the same FPR.

All attacks decide about the same samples under the same replicas, so their flip rates are compared in pairs. The
interval of a difference follows from a jackknife over the replicas and the samples, in which the same groups are left
out for both attacks (`stats.jackknife_variance`). It holds the training subset and the references fixed.

B: replicas, F: false positive rates of the config, C: samples of a block, K: numbers of votes (0 to B), N2: samples of
the population (2N), A1 and H1: as in `lm_mia.stats.jackknife`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks import decision_jackknife, tables
from lm_mia.attacks.decisions import DecisionCounts, Votes, add_votes, count_votes_by_class
from lm_mia.attacks.inputs import sample_slices
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.population import Population

TABLE = "attack_flips.csv"
"""Name of the table."""
_COMPARED = {
    "tpr": "tpr_mean",
    "member_flip_rate": "member_flip_rate",
    "member_coin_flips": "member_coin_flips",
    "coin_flip_tp_fraction": "coin_flip_tp_fraction",
}
"""The numbers that are compared with those of LiRA, with their columns."""
_PARTS = ("tpr", "member_flip_rate", "member_coin_flips", "coin_flip_tpr")
"""The columns of decision_jackknife.parquet from which they follow."""


@dataclasses.dataclass(frozen=True)
class AttackDecisions:
    """The decisions of all replicas under one attack with all its references, at the rates of the config."""

    attack: str
    references: int
    tpr_BxF: np.ndarray
    not_shared: float
    """Fraction of the samples that have a score under only one of the two, this attack and online LiRA."""
    num_samples: int
    """Number of samples of the population."""
    votes: Votes
    coin_flips: pd.DataFrame
    """The result of `tables.coin_flip_shares` for these votes."""
    parts: dict[str, np.ndarray]
    """Name of `_PARTS` -> value_A1xH1xF, without groups of replicas and on halves of the samples; empty for LiRA, whose
    values are in decision_jackknife.parquet."""


def count_decisions(
    attack: str,
    references: int,
    file: MembershipScoreFile,
    points: stats.OperatingPoints,
    member_N2: np.ndarray,
    not_shared: float,
    population: Population,
    c: config.Attack,
    pool: ThreadPoolExecutor,
) -> AttackDecisions:
    """Counts the decisions of all replicas under an attack other than online LiRA.

    Args:
      attack: name of the attack.
      references: number of references.
      file: its scores under the replicas, which are read in blocks of samples.
      points: its operating points, at attack.fprs first.
      member_N2: membership in the training subset of the replicas.
      not_shared: as in `AttackDecisions`.
      population: provides the documents, if they are split.
      c: settings of the recipe.
      pool: threads that count the votes of parts of the samples.
    """
    points = tables.select_fprs(points, slice(len(c.fprs)))
    has_decisions_F = tables.has_decisions(points)
    document_N2 = population.document_N
    group_N2 = document_N2 if population.has_split_documents else None

    def count(at: slice) -> Votes:
        group_C = None if group_N2 is None else group_N2[at]
        return count_votes_by_class(
            file.read_samples(at), points.threshold_TxF, has_decisions_F, member_N2[at], group_C
        )

    votes = functools.reduce(add_votes, map_in_order(pool, count, sample_slices(file.num_samples)))
    metrics = decision_jackknife.metrics_of_scores(file, member_N2, document_N2, c)
    coin_flips = tables.coin_flip_shares(
        votes, c.fprs, c.alpha, ranges=("member",), range_fprs=(c.focus_fpr,)
    )
    return AttackDecisions(
        attack,
        references,
        points.tpr_TxF,
        not_shared,
        file.num_samples,
        votes,
        coin_flips,
        {name: getattr(metrics, f"{name}_A1xH1xF") for name in _PARTS},
    )


def lira_decisions(
    references: int, points: stats.OperatingPoints, counts: DecisionCounts, num_samples: int
) -> AttackDecisions:
    """Returns the decisions under online LiRA, from the counts that the other tables of decisions are based on.

    Args:
      references: number of references.
      points: the operating points of the replicas, at attack.fprs first.
      counts: the counts of the other tables.
      num_samples: number of samples of the population.
    """
    return AttackDecisions(
        "lira_online",
        references,
        points.tpr_TxF[:, : len(counts.coin_flips)],
        0.0,
        num_samples,
        counts.votes,
        counts.coin_flips,
        {},
    )


def attack_flips(
    decisions: Sequence[AttackDecisions], lira_jackknife: pd.DataFrame, alpha: float
) -> pd.DataFrame:
    """Returns attack_flips.csv: a row for each attack and FPR.

    Args:
      decisions: the decisions under all attacks, online LiRA among them.
      lira_jackknife: the result of `decision_jackknife.decision_jackknife`.
      alpha: level of the coin-flip test.
    """
    [lira] = (d for d in decisions if d.attack == "lira_online")
    lira_table, lira_parts = _shares(lira, alpha), _lira_parts(lira_jackknife)
    return pd.concat(
        [_with_differences(_shares(d, alpha), d.parts, lira_table, lira_parts) for d in decisions]
    )


def _shares(decisions: AttackDecisions, alpha: float) -> pd.DataFrame:
    """Returns the columns about the attack itself."""
    coin_flips, votes = decisions.coin_flips, decisions.votes
    replicas = votes["member"].replicas
    votes_K = np.arange(replicas + 1)
    flip_K = stats.flip_rate(votes_K, replicas)
    is_coin_flip_K = stats.flip_bins(votes_K, replicas, alpha) == stats.COIN_FLIP_BIN
    scored_F = sum(histograms.samples_FxK.sum(axis=1) for histograms in votes.values())
    table = pd.DataFrame({"attack": decisions.attack, "references": decisions.references}, [0])
    table = table.merge(coin_flips[["fpr", "replicas", "cutoff"]], how="cross")
    table["tpr_mean"] = decisions.tpr_BxF.mean(axis=0)
    table["tpr_std"] = decisions.tpr_BxF.std(axis=0)
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
    return table.assign(
        left_out=decisions.num_samples - scored_F, not_shared_fraction=decisions.not_shared
    )


def _mean(votes: stats.VoteHistograms, value_K: np.ndarray) -> np.ndarray:
    """Returns the mean of value(votes) over samples, at each rate; NaN without samples."""
    samples_FxK = votes.samples_FxK
    total_F = samples_FxK.sum(axis=1)
    return samples_FxK @ value_K / np.where(total_F > 0, total_F, np.nan)


def _ratio(coin_flip_tpr: np.ndarray, tpr: np.ndarray) -> np.ndarray:
    """Returns the share of the true positives that are on coin flips; NaN without true positives."""
    return coin_flip_tpr / np.where(tpr > 0, tpr, np.nan)


def _lira_parts(jackknife: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns `AttackDecisions.parts` of LiRA with all references."""
    rows = jackknife[jackknife["references"] == 0]
    shape = tuple(int(rows[axis].max()) + 1 for axis in ("replicas", "samples"))
    return {name: rows[name].to_numpy().reshape(*shape, -1) for name in _PARTS}


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
