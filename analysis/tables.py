"""Reads the tables of a recipe in the shape of the page's tables; the numbers are those on disk, only formatted."""

import math
import statistics
from collections.abc import Mapping, Sequence

from analysis import io
from analysis.formatting import plus_minus
from analysis.io import RecipeResults, Record
from lm_mia.attacks.registry import attack_name

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
CHANCE_MARGIN = 0.03
"""How far from 0.5 the mean AUC with shuffled labels may lie."""
MAX_NOT_SHARED = 0.01
"""Attacks are compared if at most this fraction of the samples has a score in only one of them and LiRA."""
REFERENCE_TARGETS = "reference_targets.csv"
_RESAMPLED = "resampled_references.csv"


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


def scores_same_samples(row: Record) -> bool:
    """Returns whether a row of tables/attacks.csv can be compared with LiRA with all references.

    An attack with too few references for some samples is evaluated on the others, which may be easier or harder.
    """
    return row["not_shared_fraction"] <= MAX_NOT_SHARED


def name_other_samples(rows: Sequence[Record]) -> str:
    """Names the attacks that `scores_same_samples` excludes: "LiRA (1, 2 and 4 references), loss"; empty if none."""
    counts: dict[str, list[str]] = {}
    for row in rows:
        if not scores_same_samples(row):
            counts.setdefault(attack_name(row["attack"]), []).extend(
                [str(row["references"])] * (row["references"] > 0)
            )
    parts = []
    for name, numbers in counts.items():
        word = "reference" if numbers == ["1"] else "references"
        listed = " and ".join([", ".join(numbers[:-1]), numbers[-1]] if numbers[1:] else numbers)
        parts.append(f"{name} ({listed} {word})" if numbers else name)
    return ", ".join(parts)


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


def shuffled_control(shuffled: Sequence[Record]) -> Record:
    """Evaluates the control with shuffled labels.

    Args:
      shuffled: rows of tables/shuffled.csv.

    Returns:
      "passed"; "farthest", the row whose mean AUC lies farthest from 0.5, or None without any AUC; "failed", the number
      of rows that lie too far; "tested", the number of rows with an AUC; "without", names of attacks without an AUC.
    """
    rows = [r for r in shuffled if not math.isnan(r["auc_mean"])]
    failed = sum(abs(r["auc_mean"] - 0.5) > CHANCE_MARGIN for r in rows)
    return {
        "passed": bool(rows) and not failed,
        "farthest": max(rows, key=lambda r: abs(r["auc_mean"] - 0.5), default=None),
        "failed": failed,
        "tested": len(rows),
        "without": [attack_name(r["attack"]) for r in shuffled if math.isnan(r["auc_mean"])],
    }


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


def format_percentage(fraction: float) -> str:
    """Formats a fraction as a percentage, such as "57.3%"; a dash for NaN."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f}%"


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


def read_coin_flips_by_replicas(recipe: RecipeResults) -> list[Record]:
    """Reads tables/flip_shares_by_replicas.csv, ordered by the number of replicas."""
    rows = io.read_table(recipe, "flip_shares_by_replicas.csv")
    return sorted(rows, key=lambda row: row["replicas"])


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


def read_intervals(recipe: RecipeResults, bootstraps: int) -> list[Record]:
    """Reads the rows of tables/intervals.csv; none if attack.bootstraps is 0."""
    if not bootstraps:
        return []
    return io.read_table(recipe, "intervals.csv")


def mean_intervals(rows: Sequence[Record], role: str) -> Mapping[tuple[str, str], Record]:
    """Returns the intervals of means over several models of a role ("replica", "target", "reference"), by attack and
    metric."""
    return {
        (row["attack"], row["metric"]): row
        for row in rows
        if row["role"] == role and row["models"] > 1
    }


def not_covered(intervals: Mapping[tuple[str, str], Record]) -> str:
    """Returns what none of these intervals covers; empty without intervals."""
    return next((row["not_covered"] for row in intervals.values()), "")


def read_partial_aucs(recipe: RecipeResults) -> dict[tuple[float, float], dict[str, Record]]:
    """Reads the rows of tables/partial_auc.csv by (lowest, highest) FPR and by curve.

    The curves are "raw", "coin-free" and "unstable-free".
    """
    bands: dict[tuple[float, float], dict[str, Record]] = {}
    for row in io.read_table(recipe, "partial_auc.csv"):
        bands.setdefault((row["low"], row["high"]), {})[row["curve"]] = row
    return bands


def read_resampled(recipe: RecipeResults) -> list[Record]:
    """Reads flip rates over sets of references (StrongMIA E.2.8), one entry per way of choosing the sets.

    Returns:
      For each way "sampling", "title", "kind" of test, "sets", "references_per_set", "has_power" (of that test),
      "cutoff", "left_out" and "shares" (bins by FPR); empty if the table was not requested.
    """
    if not recipe.view.has(_RESAMPLED):
        return []
    by_scheme: dict[str, list[Record]] = {}
    for row in io.read_table(recipe, _RESAMPLED):
        by_scheme.setdefault(row["sampling"], []).append(row)
    entries = []
    for sampling, rows in by_scheme.items():
        cutoff = next(r["low"] for r in rows if r["bin"] == "coin flip")
        entries.append(
            {
                "sampling": sampling,
                "title": "Disjoint sets" if sampling == "disjoint" else "Subsampled sets",
                "kind": "exact" if sampling == "disjoint" else "dependent",
                "sets": int(rows[0]["sets"]),
                "references_per_set": int(rows[0]["references_per_set"]),
                "has_power": cutoff > 0,
                "cutoff": cutoff,
                "left_out": max(int(r["left_out"]) for r in rows),
                "shares": shares_by_fpr(rows),
            }
        )
    return entries
