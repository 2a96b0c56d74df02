"""Reads the tables of a recipe in the shape of tables of the paper; the numbers are those on disk, only formatted."""

import math
import statistics
from collections.abc import Sequence

from analysis import io
from analysis.formatting import plus_minus
from analysis.io import RecipeResults, Record

RATES = {"acc": "acc", "fnr": "fnr", "fpr": "realized_fpr", "tnr": "tnr", "tpr": "tpr"}
"""The rates of StrongMIA Tables 1 and 2, in their order -> their columns in error_rates.csv, without _mean or _std."""
UNSTABLE_GROUPS = {
    "very_unstable": ("Very unstable", 3, 3),
    "coin_flip": ("Coin flip", 4, 4),
    "union": ("Very unstable + coin flip", 3, 4),
}
"""The groups of columns of StrongMIA Tables 5 and 6: title, first and last flip bin."""
CLASS_NAMES = ("member", "nonmember")
"""The classes in the names of columns."""
REFERENCE_TARGETS = "reference_targets.csv"


def best_per_attack(rows: Sequence[Record]) -> list[Record]:
    """Returns one row of tables/attacks.csv per attack, that with the most references; the highest AUC first."""
    best: dict[str, Record] = {}
    for row in rows:
        if row["attack"] not in best or row["references"] > best[row["attack"]]["references"]:
            best[row["attack"]] = row
    return sorted(
        best.values(),
        key=lambda r: -math.inf if math.isnan(r["auc_mean"]) else r["auc_mean"],
        reverse=True,
    )


def find_attack(rows: Sequence[Record], attack: str) -> Record | None:
    """Returns the row of an attack from `best_per_attack`; None if there is none or it has no AUC."""
    return next((r for r in rows if r["attack"] == attack and not math.isnan(r["auc_mean"])), None)


def read_reference_targets(recipe: RecipeResults, fprs: Sequence[float]) -> Record:
    """Reads tables/reference_targets.csv and summarizes the attacks on the references as targets.

    Args:
      recipe: the folder of the recipe.
      fprs: the FPRs of the table.

    Returns:
      "targets", the number of targets with an AUC; "references", the number with which each is attacked; "left_out",
      the largest number of samples that have no score under one of them; and mean and standard deviation over targets,
      as in tables/attacks.csv: "auc_mean", "auc_std", "tpr_at_FPR_mean" and so on, NaN for fewer than two targets
      and for a TPR that one of them lacks.
    """
    values = ("auc", *(f"tpr_at_{fpr:g}" for fpr in fprs))
    rows = io.read_table(recipe, REFERENCE_TARGETS)
    scored = [row for row in rows if not math.isnan(row["auc"])]
    summary: Record = {
        "targets": len(scored),
        "references": max((row["references"] for row in rows), default=0),
        "left_out": max((row["left_out"] for row in scored), default=0),
    }
    for name in values:
        numbers = [float(row[name]) for row in scored]
        # A TPR is NaN if too few non-members have a score for its FPR.
        enough = len(numbers) > 1 and not any(map(math.isnan, numbers))
        summary[f"{name}_mean"] = statistics.fmean(numbers) if enough else math.nan
        summary[f"{name}_std"] = statistics.pstdev(numbers) if enough else math.nan
    return summary


def read_error_rates(recipe: RecipeResults) -> list[Record]:
    """Reads the rows of StrongMIA Tables 1 and 2."""
    return io.read_table(recipe, "error_rates.csv")


def format_rate(row: Record, name: str) -> str:
    """Formats a cell of Tables 1 and 2; no deviation for rates that the threshold fixes equally for all replicas."""
    column = RATES.get(name, name)
    mean, std = row[f"{column}_mean"], row[f"{column}_std"]
    if name in ("fpr", "tnr") and std == 0:
        return plus_minus(mean, math.nan) if name == "tnr" else f"{mean:.3g}"
    return plus_minus(mean, std)


def read_true_positives(recipe: RecipeResults) -> list[Record]:
    """Reads the rows of StrongMIA Tables 5 and 6."""
    groups = [f"{name}_{value}" for name in UNSTABLE_GROUPS for value in ("tp", "fraction")]
    columns = [f"{n}_{statistic}" for n in ("tpr", "tp", *groups) for statistic in ("mean", "std")]
    columns += [f"{name}_ratio_of_means" for name in UNSTABLE_GROUPS]
    return io.read_table(recipe, "true_positives.csv")


def read_replica_true_positives(recipe: RecipeResults, fpr: float) -> list[Record]:
    """Reads the rows of tables/replica_true_positives.csv at an FPR, one per replica."""
    rows = io.read_table(recipe, "replica_true_positives.csv")
    return [row for row in rows if math.isclose(row["fpr"], fpr)]


def format_count(row: Record, name: str) -> str:
    """Formats a count of Tables 5 and 6, such as "1,114 ± 305"; a dash for NaN."""
    if math.isnan(row[f"{name}_mean"]):
        return "–"
    return f"{row[f'{name}_mean']:,.0f} ± {row[f'{name}_std']:,.0f}"


def format_share(row: Record, name: str) -> str:
    """Formats a share of Tables 5 and 6, such as "5.8% ± 1.4%"; a dash if no member was found."""
    mean, std = row[f"{name}_mean"], row[f"{name}_std"]
    return "–" if math.isnan(mean) else f"{100 * mean:.1f}% ± {100 * std:.1f}%"


def flip_bins(shares: Sequence[Record]) -> list[Record]:
    """Returns the bins of flip rates in table order.

    Args:
      shares: rows of tables/flip_shares.csv.

    Returns:
      For each bin "bin" (its name), "low", "high", "range" (as text), "last" and "empty".
    """
    bins = list({r["bin"]: {k: r[k] for k in ("bin", "low", "high")} for r in shares}.values())
    for row in bins:
        row["last"] = row is bins[-1]
        row["empty"] = row["low"] >= row["high"] and not row["last"]
        row["range"] = format_range(row["low"], row["high"], row["last"])
    return bins


def format_range(low: float, high: float, closed: bool) -> str:
    """Formats a range of flip rates as in the headings of Tables 3 to 6, such as "[0.1, 0.25)"."""
    if low >= high and not closed:
        return "(empty range)"
    return f"[{low:.3g}, {high:.3g}{']' if closed else ')'}"


def shares_by_fpr(shares: Sequence[Record]) -> dict[float, dict[str, Record]]:
    """Returns the rows of StrongMIA Tables 3 and 4 by FPR and by bin."""
    rows: dict[float, dict[str, Record]] = {}
    for row in shares:
        rows.setdefault(row["fpr"], {})[row["bin"]] = row
    return dict(sorted(rows.items()))


def read_flip_shares(recipe: RecipeResults) -> list[Record]:
    """Reads tables/flip_shares.csv."""
    return io.read_table(recipe, "flip_shares.csv")


def coin_flip_rows(shares: Sequence[Record]) -> list[Record]:
    """Returns the rows of coin flips among the rows of tables/flip_shares.csv, one per FPR."""
    return [row for row in shares if row["bin"] == "coin flip"]


def coin_flip_percent_ranges(
    shares: Sequence[Record],
) -> dict[tuple[float, str], tuple[float, float]]:
    """Returns what 127 replicas would show, in percent: (FPR, "members" or "nonmembers") -> (low, high)."""
    return {
        (row["fpr"], f"{name}s"): (
            100 * row[f"{name}_fraction_127_low"],
            100 * row[f"{name}_fraction_127_high"],
        )
        for row in coin_flip_rows(shares)
        for name in CLASS_NAMES
    }


def unstable_groups(bins: Sequence[Record]) -> list[Record]:
    """Returns the groups of columns of Tables 5 and 6: "name", "title", "range" of flip rates, and "empty"."""
    groups = []
    for name, (title, first, last) in UNSTABLE_GROUPS.items():
        low, high, closed = bins[first]["low"], bins[last]["high"], bins[last]["last"]
        flip_range, empty = format_range(low, high, closed), low >= high and not closed
        groups.append({"name": name, "title": title, "range": flip_range, "empty": empty})
    return groups


def read_partial_aucs(recipe: RecipeResults) -> dict[tuple[float, float], dict[str, Record]]:
    """Reads the rows of tables/partial_auc.csv by (lowest, highest) FPR and by curve.

    The curves are "raw", "coin-free" and "unstable-free".
    """
    bands: dict[tuple[float, float], dict[str, Record]] = {}
    for row in io.read_table(recipe, "partial_auc.csv"):
        bands.setdefault((row["low"], row["high"]), {})[row["curve"]] = row
    return bands
