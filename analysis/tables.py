"""The tables of a workdir, shaped for the rows and columns of a page; numbers are those of the tables on disk."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis import io
from analysis.formatting import plus_minus
from analysis.io import Record

RATES = {"acc": "acc", "fnr": "fnr", "fpr": "realized_fpr", "tnr": "tnr", "tpr": "tpr"}
"""The rates of StrongMIA Tables 1 and 2, in their order -> their columns in error_rates.csv, without _mean or _std."""
PARTS = {
    "very_unstable": ("Very unstable", 3, 3),
    "coin_flip": ("Coin flip", 4, 4),
    "union": ("Very unstable + coin flip", 3, 4),
}
"""Of StrongMIA Tables 5 and 6: name and the first and last flip bin of each."""
INTERVAL_COLUMNS = (
    "attack",
    "metric",
    "value",
    "bootstrap_low",
    "bootstrap_high",
    "clopper_pearson_low",
    "clopper_pearson_high",
    "left_out",
)
AREA_COLUMNS = (
    "low",
    "high",
    "curve",
    "pauc",
    "pauc_normalized",
    "lift",
    "lift_normalized",
    "lift_retained_fraction",
    "mean_tpr_dropped_fraction",
)
CHANCE_MARGIN = 0.03
"""How far from 0.5 the mean AUC with shuffled labels may lie."""
_RESAMPLED = "resampled_references.csv"


def with_most_references(attacks: Sequence[Record]) -> list[Record]:
    """Each attack once, with the most references that it was given; the highest AUC first."""
    best: dict[str, Record] = {}
    for row in attacks:
        if row["attack"] not in best or row["references"] > best[row["attack"]]["references"]:
            best[row["attack"]] = row
    return sorted(
        best.values(),
        key=lambda r: -math.inf if math.isnan(r["auc_mean"]) else r["auc_mean"],
        reverse=True,
    )


def of_attack(rows: Sequence[Record], attack: str) -> Record | None:
    """The row of an attack that has an AUC, among those of `with_most_references`."""
    return next((r for r in rows if r["attack"] == attack and not math.isnan(r["auc_mean"])), None)


def control(shuffled: Sequence[Record]) -> Record:
    """The verdict of the control with shuffled labels.

    Args:
      shuffled: rows of tables/shuffled.csv.

    Returns:
      "passed"; "farthest", the row whose mean AUC lies farthest from 0.5, or None without any AUC; "failed", how many
      lie too far; "tested", how many there are; and "without", names of the attacks that have no AUC.
    """
    rows = [r for r in shuffled if not math.isnan(r["auc_mean"])]
    failed = sum(abs(r["auc_mean"] - 0.5) > CHANCE_MARGIN for r in rows)
    return {
        "passed": bool(rows) and not failed,
        "farthest": max(rows, key=lambda r: abs(r["auc_mean"] - 0.5), default=None),
        "failed": failed,
        "tested": len(rows),
        "without": [io.attack_name(r["attack"]) for r in shuffled if math.isnan(r["auc_mean"])],
    }


def error_rates(folder: Path) -> list[Record]:
    """Rows of StrongMIA Tables 1 and 2."""
    rates = (*RATES.values(), "balanced_acc")
    columns = [f"{r}_{what}" for r in rates for what in ("mean", "std")]
    return io.table(folder, "error_rates.csv", ("fpr", "replicas", "left_out", *columns))


def rate(row: Record, name: str) -> str:
    """A cell of Tables 1 and 2; what the threshold fixes alike for all replicas has no deviation."""
    column = RATES.get(name, name)
    mean, std = row[f"{column}_mean"], row[f"{column}_std"]
    if name in ("fpr", "tnr") and std == 0:
        return plus_minus(mean, math.nan) if name == "tnr" else f"{mean:.3g}"
    return plus_minus(mean, std)


def true_positives(folder: Path) -> list[Record]:
    """Rows of StrongMIA Tables 5 and 6."""
    parts = [f"{part}_{what}" for part in PARTS for what in ("tp", "fraction")]
    columns = [f"{name}_{what}" for name in ("tpr", "tp", *parts) for what in ("mean", "std")]
    return io.table(folder, "true_positives.csv", ("fpr", "replicas", "left_out", *columns))


def count(row: Record, name: str) -> str:
    """1,114 ± 305, a cell of Tables 5 and 6."""
    return f"{row[f'{name}_mean']:,.0f} ± {row[f'{name}_std']:,.0f}"


def percentage(fraction: float) -> str:
    """57.3%; a dash for NaN."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f}%"


def share(row: Record, name: str) -> str:
    """5.8% ± 1.4%; a dash where it is suppressed since no member was found."""
    mean, std = row[f"{name}_mean"], row[f"{name}_std"]
    return "–" if math.isnan(mean) else f"{100 * mean:.1f}% ± {100 * std:.1f}%"


def bins(shares: Sequence[Record]) -> list[Record]:
    """The flip bins in table order, each once, with their range in words."""
    found = list({r["bin"]: {k: r[k] for k in ("bin", "low", "high")} for r in shares}.values())
    for b in found:
        b["last"] = b is found[-1]
        b["empty"] = b["low"] >= b["high"] and not b["last"]
        b["range"] = between(b["low"], b["high"], b["last"])
    return found


def between(low: float, high: float, closed: bool) -> str:
    """A range of flip rates as in the heads of Tables 3 to 6."""
    if low >= high and not closed:
        return "(empty range)"
    return f"[{low:.3g}, {high:.3g}{']' if closed else ')'}"


def by_fpr(shares: Sequence[Record]) -> dict[float, dict[str, Record]]:
    """Rows of StrongMIA Tables 3 and 4: bins by FPR."""
    rows: dict[float, dict[str, Record]] = {}
    for row in shares:
        rows.setdefault(row["fpr"], {})[row["bin"]] = row
    return dict(sorted(rows.items()))


def parts(bins: Sequence[Record]) -> list[Record]:
    """The groups of columns of Tables 5 and 6, with the range of flip rates of each."""
    found = []
    for name, (title, first, last) in PARTS.items():
        low, high, closed = bins[first]["low"], bins[last]["high"], bins[last]["last"]
        empty = low >= high and not closed
        found.append(
            {"name": name, "title": title, "range": between(low, high, closed), "empty": empty}
        )
    return found


def intervals(folder: Path, facts: Record) -> list[Record]:
    """Rows of tables/intervals.csv; none if attack.bootstraps is 0."""
    if not facts["config"]["bootstraps"]:
        return []
    return io.table(folder, "intervals.csv", INTERVAL_COLUMNS)


def of_metric(rows: Sequence[Record], metric: str) -> Mapping[str, Record]:
    """The intervals of one metric by attack."""
    return {r["attack"]: r for r in rows if r["metric"] == metric}


def areas(folder: Path) -> dict[tuple[float, float], dict[str, Record]]:
    """Rows of tables/partial_auc.csv by (lowest, highest FPR) and by curve, "raw" or "coin-free"."""
    bands: dict[tuple[float, float], dict[str, Record]] = {}
    for row in io.table(folder, "partial_auc.csv", AREA_COLUMNS):
        bands.setdefault((row["low"], row["high"]), {})[row["curve"]] = row
    return bands


def resampled(folder: Path) -> list[Record]:
    """One entry for each way of choosing sets of references (StrongMIA E.2.8); none if not asked for.

    Each has "sampling", "title", "sets", "references_per_set", "decides" (whether the test has power), "cutoff",
    "left_out" and "shares", bins by FPR.
    """
    if not io.has(folder, _RESAMPLED):
        return []
    columns = ("sampling", "sets", "references_per_set", *SHARE_COLUMNS, "left_out")
    ways: dict[str, list[Record]] = {}
    for row in io.table(folder, _RESAMPLED, columns):
        ways.setdefault(row["sampling"], []).append(row)
    found = []
    for sampling, rows in ways.items():
        low = next(r["low"] for r in rows if r["bin"] == "coin flip")
        found.append(
            {
                "sampling": sampling,
                "title": "Disjoint sets" if sampling == "disjoint" else "Subsampled sets",
                "kind": "exact" if sampling == "disjoint" else "dependent",
                "sets": int(rows[0]["sets"]),
                "references_per_set": int(rows[0]["references_per_set"]),
                "decides": low > 0,
                "cutoff": low,
                "left_out": max(int(r["left_out"]) for r in rows),
                "shares": by_fpr(rows),
            }
        )
    return found


SHARE_COLUMNS = (
    "fpr",
    "bin",
    "low",
    "high",
    "member_fraction",
    "nonmember_fraction",
    "members",
    "nonmembers",
)
