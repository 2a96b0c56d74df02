"""Tables 1 to 6: error rates of replicas, and how often their decisions flip."""

import math

import numpy as np
import pandas as pd

from analysis import notes, tables
from analysis.claims.compare import Claim, claim_different, claim_untested
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent, plus_minus
from analysis.io import RecipeResults, Record

# Tables 1 and 2: accuracy and error rates of LiRA on replicas at fixed false positive rates.
_RATE_CLASSES = {"acc": "All", "fnr": "Members", "tpr": "Members"}


def _error_rates(recipe: RecipeResults) -> Drawing:
    facts = recipe.view.facts("flips")
    rows = tables.read_error_rates(recipe)
    headings = [(name.upper(), _RATE_CLASSES.get(name, "Non-members")) for name in tables.RATES]
    table = pd.DataFrame(
        [[tables.format_rate(row, name) for name in tables.RATES] for row in rows],
        index=pd.Index([f"{row['fpr']:g}" for row in rows], name="FPR"),
        columns=pd.MultiIndex.from_tuples(headings),
    )
    ours = {
        f"fpr={row['fpr']:g} {name}": (
            row[f"{column}_mean"],
            math.nan if name in ("fpr", "tnr") else row[f"{column}_std"],
        )
        for row in rows
        for name, column in tables.RATES.items()
    }
    shown = (notes.replicas_note(facts["replicas"]), notes.missing_models_note(facts))
    return Drawing(pd.DataFrame(rows), table=table, ours=ours, notes=tuple(filter(None, shown)))


# Tables 3 and 4: shares of members and of non-members in each range of flip rates.


def _flip_shares(recipe: RecipeResults) -> Drawing:
    facts = recipe.view.facts("flips")
    shares = tables.read_flip_shares(recipe)
    bins, by_fpr = tables.flip_bins(shares), tables.shares_by_fpr(shares)
    classes = {"member_fraction": "Mem.", "nonmember_fraction": "Non-mem."}
    headings = [(f"{b['bin']} {b['range']}", name) for b in bins for name in classes.values()]
    table = pd.DataFrame(
        [
            [f"{100 * of_bin[b['bin']][column]:.2f}%" for b in bins for column in classes]
            for of_bin in by_fpr.values()
        ],
        index=pd.Index([f"{fpr:g}" for fpr in by_fpr], name="FPR"),
        columns=pd.MultiIndex.from_tuples(headings),
    )
    ours = {
        f"fpr={r['fpr']:g} {r['bin']} {name}s": (100 * r[f"{name}_fraction"], math.nan)
        for r in shares
        for name in tables.CLASS_NAMES
    }
    ranges = {
        f"fpr={fpr:g} coin flip {kind}": limits
        for (fpr, kind), limits in tables.coin_flip_percent_ranges(shares).items()
    }
    ours = {key: number for key, number in ours.items() if key not in ranges}
    return Drawing(
        pd.DataFrame(shares),
        table=table,
        ours=ours,
        our_ranges=ranges,
        not_comparable=notes.depends_on_replicas(facts, ours),
        not_comparable_note=notes.not_comparable_note(facts),
        notes=notes.replica_notes(facts),
    )


# Tables 5 and 6: true positives on members whose decisions are very unstable or like coin flips.
TAB05_STATEMENTS = (
    "The mean over replicas of the share of coin flips differs from the ratio of the means.",
)
_PAPER_MEMBERS = 2**19
_PRINTED_PERCENT = 0.1
"""The two summaries differ if they do by more than the last digit of the shares in percent."""


def _true_positives(recipe: RecipeResults) -> Drawing:
    """Draws a table with a row per FPR for one recipe; shares are means over the replicas."""
    facts = recipe.view.facts("flips")
    rows = tables.read_true_positives(recipe)
    shares = tables.read_flip_shares(recipe)
    parts = tables.unstable_groups(tables.flip_bins(shares))
    headings = [("TPR", "mean ± STD"), ("TP", "mean ± STD")]
    for part in parts:
        headings += [
            (f"{part['title']} {part['range']}", value) for value in ("TPs", "Share of TPR")
        ]
    cells, ours, of_flips, counts = [], {}, set(), set()
    for row in rows:
        at = f"fpr={row['fpr']:g}"
        cells.append([plus_minus(row["tpr_mean"], row["tpr_std"]), tables.format_count(row, "tp")])
        for part in tables.UNSTABLE_GROUPS:
            cells[-1] += [
                tables.format_count(row, f"{part}_tp"),
                tables.format_share(row, f"{part}_fraction"),
            ]
        for name in ("tpr", "tp", *(f"{part}_tp" for part in tables.UNSTABLE_GROUPS)):
            ours[f"{at} {name}"] = row[f"{name}_mean"], row[f"{name}_std"]
        for part in tables.UNSTABLE_GROUPS:
            fraction = row[f"{part}_fraction_mean"], row[f"{part}_fraction_std"]
            ours[f"{at} {part}_share_percent"] = 100 * fraction[0], 100 * fraction[1]
            of_flips |= {f"{at} {part}_tp", f"{at} {part}_share_percent"}
        counts.add(f"{at} tp")
    table = pd.DataFrame(
        cells,
        index=pd.Index([f"{row['fpr']:g}" for row in rows], name="FPR"),
        columns=pd.MultiIndex.from_tuples(headings),
    )
    members, note = recipe.nonmembers, ""
    if members != _PAPER_MEMBERS:
        note = (
            f"Numbers of true positives are not comparable, either: they are among {members:,} members here, and among "
            f"{_PAPER_MEMBERS:,} in the paper."
        )
    return Drawing(
        pd.DataFrame(rows),
        table=table,
        claims=(_claim_ratios_differ(recipe, facts),),
        ours=ours,
        not_comparable=notes.depends_on_replicas(facts, of_flips)
        | (counts if members != _PAPER_MEMBERS else frozenset()),
        not_comparable_note=" ".join(filter(None, (notes.not_comparable_note(facts), note))),
        notes=(
            *notes.replica_notes(facts),
            "Shares are means of each replica's ratio; the columns ratio_of_means of the CSV file are the ratios of "
            "the means over replicas.",
        ),
        paper_notes=("The paper defines both summaries, and shows the means of the ratios.",),
    )


def _claim_ratios_differ(recipe: RecipeResults, facts: Record) -> Claim:
    """Compares the mean of each replica's share of coin flips with the ratio of the mean counts."""
    fpr = facts["config"]["focus_fpr"]
    rows = tables.read_replica_true_positives(recipe, fpr)
    tp_B, coin_flip_tp_B = (
        np.array([row[name] for row in rows]) for name in ("tp", "coin_flip_tp")
    )
    if not np.nansum(tp_B):
        return claim_untested(
            TAB05_STATEMENTS[0], f"there are no true positives at an FPR of {percent(fpr)}"
        )
    gap = Jackknife.from_targets(
        np.stack([tp_B, coin_flip_tp_B], axis=1)[:, None],
        f"{len(rows)} replicas",
        ("the training subset", "the references", "the samples and their flip rates"),
        summary=ratio_gap,
    )
    return claim_different(
        TAB05_STATEMENTS[0],
        f"Mean of ratios minus ratio of means at an FPR of {percent(fpr)}, percentage points",
        gap.estimate(),
        _PRINTED_PERCENT,
    )


def ratio_gap(tp_Bx1x2: np.ndarray) -> np.ndarray:
    """Returns the mean of ratios minus the ratio of means, in percent, of shape 1 x 1.

    Args:
      tp_Bx1x2: the number of true positives of each replica, and that of coin flips among them. The share of a replica
        without true positives is 0.
    """
    tp_Bx1, coin_flip_tp_Bx1 = tp_Bx1x2[..., 0].astype(float), tp_Bx1x2[..., 1]
    share_Bx1 = np.divide(coin_flip_tp_Bx1, tp_Bx1, out=np.zeros(tp_Bx1.shape), where=tp_Bx1 > 0)
    total_1 = tp_Bx1.sum(axis=0)
    ratio_1 = coin_flip_tp_Bx1.sum(axis=0) / np.where(total_1 > 0, total_1, np.nan)
    return 100 * (share_Bx1.mean(axis=0) - ratio_1)[:, None]


EXPERIMENTS = {
    "strongmia_tab01_error_rates_140m": Experiment(
        statements=(),
        draw=lambda recipes: _error_rates(recipes["flip-140M"]),
    ),
    "strongmia_tab02_error_rates_302m": Experiment(
        statements=(),
        draw=lambda recipes: _error_rates(recipes["flip-302M"]),
    ),
    "strongmia_tab03_flip_shares_140m": Experiment(
        statements=(),
        draw=lambda recipes: _flip_shares(recipes["flip-140M"]),
    ),
    "strongmia_tab04_flip_shares_302m": Experiment(
        statements=(),
        draw=lambda recipes: _flip_shares(recipes["flip-302M"]),
    ),
    "strongmia_tab05_true_positives_140m": Experiment(
        statements=TAB05_STATEMENTS,
        draw=lambda recipes: _true_positives(recipes["flip-140M"]),
    ),
    "strongmia_tab06_true_positives_302m": Experiment(
        statements=TAB05_STATEMENTS,
        draw=lambda recipes: _true_positives(recipes["flip-302M"]),
    ),
}
