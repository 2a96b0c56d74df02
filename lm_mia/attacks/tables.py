"""The tables of attacks on replicas as data frames, one function per table.

Tables of StrongMIA have the columns of the paper. Fractions are from 0 to 1. docs/tables.md defines all columns.

T: targets, F: false positive rates of the config, G: points of a curve, 5: bins of flip rates.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lm_mia import config, stats
from lm_mia.attacks.declarations import Column, Table, common


def select_fprs(points: stats.OperatingPoints, fpr_slice: slice) -> stats.OperatingPoints:
    """Returns the operating points at some of the false positive rates."""
    fields = {field.name: getattr(points, field.name) for field in dataclasses.fields(points)}
    return stats.OperatingPoints(
        **{
            name: value[..., fpr_slice] if name.endswith("F") else value
            for name, value in fields.items()
        }
    )


def has_decisions(points: stats.OperatingPoints) -> np.ndarray:
    """Returns whether every target has a TPR at each rate.

    The non-members with a score of some target may be too few for a rate. Votes are over all targets, and missing then.
    """
    return np.logical_not(np.isnan(points.tpr_TxF).any(axis=0))


ATTACKS_TABLE = Table(
    "attacks.csv",
    (
        "Each row is an attack of `attack.attacks` with the first 1, 2, 4, ... references (by number) and with all of "
        "them, on all replicas. Attacks without references have one row. Numbers of references for which a class has "
        "no score at all have no row. StrongMIA Figures 1, 9-11."
    ),
    {
        **common("attack", "references"),
        "targets": Column("count", "number of attacked replicas"),
        "auc_mean, auc_std": Column("fraction", "`auc` over replicas"),
        "tpr_at_FPR_mean, tpr_at_FPR_std": Column("fraction", "`tpr_at_FPR` over replicas"),
        **common("left_out"),
        "not_shared_fraction": Column(
            "fraction",
            (
                "samples that have a score, under the first replica, in only one of this row and online LiRA with all "
                "references, divided by all samples; rows above 0.01 are not comparable with the others, since they "
                "are evaluated on other samples"
            ),
        ),
    },
    key=("attack", "references"),
)


def attack_row(
    name: str,
    references: int,
    points: stats.OperatingPoints,
    not_shared: float,
    c: config.Attack,
) -> Mapping[str, object]:
    """Returns a row of attacks.csv.

    Args:
      name: name of the attack.
      references: number of references.
      points: operating points of the targets, at attack.fprs first.
      not_shared: fraction of the samples with a score in only one of this row and online LiRA with all references.
      c: settings of the recipe.
    """
    summary = {
        "attack": name,
        "references": references,
        "targets": len(points.auc_T),
        "auc_mean": points.auc_T.mean(),
        "auc_std": points.auc_T.std(),
    }
    for f, fpr in enumerate(c.fprs):
        tpr_T = points.tpr_TxF[:, f]
        summary |= {f"tpr_at_{fpr:g}_mean": tpr_T.mean(), f"tpr_at_{fpr:g}_std": tpr_T.std()}
    left_out = {"left_out": int(points.left_out_T.max()), "not_shared_fraction": not_shared}
    return summary | left_out


ROC_TABLE = Table(
    "roc.csv",
    (
        "Each row is a point of the mean ROC curve of a row of `attacks.csv`. The points are the rates 0, the ends of "
        "`attack.band`, and 100 rates from 1 / (number of non-members) to 1 at equal ratios. StrongMIA Figures 1, 24."
    ),
    {
        **common("attack", "references"),
        "fpr": Column(
            "fraction",
            "FPR of a point, the vertex at which the FPR of each replica is at most this",
        ),
        "tpr_mean, tpr_std": Column("fraction", "true positive rate at the vertex"),
        **common("left_out"),
    },
    key=("attack", "references", "fpr"),
)


def roc_rows(
    name: str, references: int, points: stats.OperatingPoints, c: config.Attack
) -> pd.DataFrame:
    """Returns the rows of roc.csv: mean and STD over targets of the TPR at the rates after attack.fprs."""
    mean = stats.mean_roc_curve(select_fprs(points, slice(len(c.fprs), None)))
    table = pd.DataFrame(
        {"attack": name, "references": references, "fpr": mean.fpr_F}
        | {"tpr_mean": mean.tpr.mean_F, "tpr_std": mean.tpr.std_F}
    )
    return table.assign(left_out=int(points.left_out_T.max()))


def error_rates(points: stats.OperatingPoints) -> pd.DataFrame:
    """Returns error_rates.csv: StrongMIA Tables 1 and 2, with the balanced accuracy and the realized FPR."""
    rates = stats.error_rates(points)
    table = pd.DataFrame({"attack": "lira_online", "fpr": rates.nominal_fpr_F})
    columns = {"acc": rates.accuracy, "balanced_acc": rates.balanced_accuracy, "fnr": rates.fnr}
    columns |= {"realized_fpr": rates.fpr, "tnr": rates.tnr, "tpr": rates.tpr}
    for name, rate in columns.items():
        table[f"{name}_mean"], table[f"{name}_std"] = rate.mean_F, rate.std_F
    return table.assign(replicas=len(points.auc_T), left_out=int(rates.left_out_T.max()))


def thresholds(points: stats.OperatingPoints, order_seed_T: list[int]) -> pd.DataFrame:
    """Returns thresholds.csv: the threshold of each target at each FPR (StrongMIA Figure 25)."""
    return pd.DataFrame(
        {"order_seed": seed, "fpr": fpr, "threshold": points.threshold_TxF[t, f]}
        | {"tpr": points.tpr_TxF[t, f], "realized_fpr": points.realized_fpr_TxF[t, f]}
        for t, seed in enumerate(order_seed_T)
        for f, fpr in enumerate(points.fpr_F)
    )


def flip_shares(
    counts: stats.FlipBinCounts, replicas: int, fprs: tuple[float, ...], alpha: float
) -> pd.DataFrame:
    """Returns flip_shares.csv: StrongMIA Tables 3 and 4, one row per FPR and bin."""
    shares = stats.flip_bin_shares(counts, replicas, alpha)
    return pd.DataFrame(
        {"fpr": fpr, "bin": label, "low": shares.edges_6[b], "high": shares.edges_6[b + 1]}
        | {"member_fraction": shares.member_Fx5[f, b]}
        | {"nonmember_fraction": shares.nonmember_Fx5[f, b]}
        | {"members": counts.member_Fx5[f, b], "nonmembers": counts.nonmember_Fx5[f, b]}
        | {"replicas": replicas, "left_out": counts.left_out_F[f]}
        for f, fpr in enumerate(fprs)
        for b, label in enumerate(stats.FLIP_BIN_NAMES)
    )


def coin_flip_shares(
    votes: Mapping[str, stats.VoteHistograms],
    fprs: Sequence[float],
    alpha: float,
    ranges: Sequence[str] = ("member", "nonmember"),
    range_fprs: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Returns the shares of coin flips with their uncertainty, one row per FPR.

    Args:
      votes: votes on members ("member") and on non-members ("nonmember"), by class.
      fprs: rates of the votes.
      alpha: level of the coin-flip test.
      ranges: classes for which the range is computed, which takes longer than all other columns.
      range_fprs: rates for which it is computed; None: all.

    Returns:
      The columns fpr, replicas, cutoff, and for each class the observed share (CLASS_fraction), its standard error
      over samples and replicas (CLASS_fraction_se), and for the classes in ``ranges`` the ends of the range of the
      share that 127 replicas would show (CLASS_fraction_127_low, CLASS_fraction_127_high). Both are over documents if
      the votes are counted by document.
    """
    replicas = votes["member"].replicas
    _, cutoff = stats.coin_flip_cutoff(replicas, alpha)
    is_coin_flip_K = (
        stats.flip_bins(np.arange(replicas + 1), replicas, alpha) == stats.COIN_FLIP_BIN
    )
    rows = []
    for f, fpr in enumerate(fprs):
        row: dict[str, float] = {"fpr": fpr, "replicas": replicas, "cutoff": cutoff}
        for name, histograms in votes.items():
            samples_GxK, called_RxK = histograms.samples_FxGxK[f], histograms.called_FxRxK[f]
            samples_K = samples_GxK.sum(axis=0)
            total = samples_K.sum()
            row[f"{name}_fraction"] = samples_K @ is_coin_flip_K / total if total else np.nan
            row[f"{name}_fraction_se"] = stats.mean_std_error(
                samples_GxK, called_RxK, is_coin_flip_K
            )
            if name in ranges:
                low = high = np.nan
                if range_fprs is None or fpr in range_fprs:
                    limits = stats.coin_flip_range(samples_GxK, called_RxK, alpha)
                    low, high = limits.low, limits.high
                row[f"{name}_fraction_127_low"], row[f"{name}_fraction_127_high"] = low, high
        rows.append(row)
    return pd.DataFrame(rows)


def with_uncertainty(shares: pd.DataFrame, coin_flips: pd.DataFrame) -> pd.DataFrame:
    """Returns flip_shares.csv: `flip_shares` with the columns of `coin_flip_shares`, which are NaN in other bins."""
    name = stats.FLIP_BIN_NAMES[stats.COIN_FLIP_BIN]
    new = coin_flips.drop(columns=[c for c in shares.columns if c in coin_flips and c != "fpr"])
    return shares.merge(new.assign(bin=name), on=["fpr", "bin"], how="left", validate="1:1")


def true_positives(
    tp_TxFx5: np.ndarray, counts: stats.FlipBinCounts, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns true_positives.csv: the true positives of members with unstable decisions (StrongMIA Tables 5 and 6)."""
    contributions = stats.tpr_contributions(tp_TxFx5, counts.member_Fx5.sum(axis=1))
    table = pd.DataFrame({"fpr": fprs})

    def add(name: str, value: stats.MeanStd) -> None:
        table[f"{name}_mean"], table[f"{name}_std"] = value.mean_F, value.std_F

    add("tpr", contributions.tpr)
    add("tp", contributions.tp)
    for name in ("very_unstable", "coin_flip", "union"):
        part: stats.BinContribution = getattr(contributions, name)
        add(f"{name}_tp", part.tp)
        add(f"{name}_fraction", part.share)
        table[f"{name}_ratio_of_means"] = part.ratio_of_means_F
    # Without decisions, there is no number of true positives, and not 0 of them.
    is_count = table.columns.str.contains("tp_")
    table.loc[table["tpr_mean"].isna(), is_count] = np.nan
    return table.assign(replicas=contributions.replicas, left_out=counts.left_out_F)


def replica_true_positives(
    tp_TxFx5: np.ndarray,
    order_seeds: Sequence[int],
    fprs: Sequence[float],
    has_decisions_F: np.ndarray,
) -> pd.DataFrame:
    """Returns replica_true_positives.csv: the true positives of each replica by bin, as in StrongMIA Tables 5 and 6.

    Args:
      tp_TxFx5: the true positives.
      order_seeds: the replicas.
      fprs: the rates.
      has_decisions_F: the result of `has_decisions`; at the other rates, numbers are missing.
    """
    table = pd.DataFrame(
        {
            "order_seed": np.repeat(order_seeds, len(fprs)),
            "fpr": np.tile(fprs, len(order_seeds)),
            "tp": tp_TxFx5.sum(axis=2).ravel(),
            "very_unstable_tp": tp_TxFx5[:, :, stats.VERY_UNSTABLE_BIN].ravel(),
            "coin_flip_tp": tp_TxFx5[:, :, stats.COIN_FLIP_BIN].ravel(),
        }
    )
    is_missing = np.tile(np.logical_not(has_decisions_F), len(order_seeds))
    for name in ("tp", "very_unstable_tp", "coin_flip_tp"):
        table[name] = table[name].astype("Int64").mask(is_missing)
    return table


def coin_free_roc(fpr_G: np.ndarray, counts: stats.MemberVoteCounts, replicas: int) -> pd.DataFrame:
    """Returns coin_free_roc.csv: the mean ROC curve with and without unstable decisions (StrongMIA Figure 30)."""
    raw_G, coin_free_G, unstable_free_G = stats.coin_flip_free_roc(counts, replicas)
    return pd.DataFrame(
        {"fpr": fpr_G, "tpr_mean": raw_G}
        | {"tpr_coin_free": coin_free_G, "tpr_unstable_free": unstable_free_G}
    )


def partial_auc(curves: pd.DataFrame, band: tuple[float, float]) -> pd.DataFrame:
    """Returns partial_auc.csv: areas and lifts of the curves of `coin_free_roc`, over a band and from 0 to 1."""
    fpr_G = curves["fpr"].to_numpy()
    rows = []
    for low, high in dict.fromkeys((band, (0.0, 1.0))):
        areas = {}
        for name in ("tpr_mean", "tpr_coin_free", "tpr_unstable_free"):
            tpr_G = curves[name].to_numpy()
            areas[name] = {
                "pauc": stats.partial_auc(tpr_G, fpr_G, low, high),
                "pauc_normalized": stats.partial_auc(tpr_G, fpr_G, low, high, normalized=True),
                "lift": stats.lift(tpr_G, fpr_G, low, high),
                "lift_normalized": stats.lift(tpr_G, fpr_G, low, high, normalized=True),
            }
        raw = areas["tpr_mean"]
        rows.append({"low": low, "high": high, "curve": "raw"} | raw)
        for curve in ("coin-free", "unstable-free"):
            free = areas[f"tpr_{curve.replace('-', '_')}"]
            retained = free["lift"] / raw["lift"] if raw["lift"] > 0 else np.nan
            dropped = 1 - free["pauc"] / raw["pauc"] if raw["pauc"] > 0 else np.nan
            rows.append(
                {"low": low, "high": high, "curve": curve}
                | free
                | {"lift_retained_fraction": retained, "mean_tpr_dropped_fraction": dropped}
            )
    return pd.DataFrame(rows)
