"""What the tables say of decisions and their stability, in short sentences; comparisons are made before worded."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from findings import plural, rows_there, spread
from workdir import Record, decides, percent

from lm_mia.stats import binomial


def cutoff(flips: Record) -> str:
    """What counts as a coin flip, with the numbers of this run; or that too few replicas cannot say."""
    low, replicas, alpha = (
        flips["k_low"],
        flips["replicas"],
        flips["config"]["alpha"],
    )
    if not decides(flips):
        return (
            f"With {plural(replicas, 'replica')} the exact two-sided binomial test at level "
            f"{alpha:g} has no power: it cannot tell any decision from a coin flip, not even one "
            f"on which all agree. {enough(alpha)} or more replicas are needed."
        )
    return (
        f"With {replicas} replicas, a decision counts as a coin flip when {low} to "
        f"{replicas - low} of them say “member”: an exact two-sided binomial test at level "
        f"{alpha:g} cannot tell such a split from a fair coin. "
        f"That is a flip rate of {flips['cutoff']:.3f} or more; "
        f"the largest possible is {flips['max_flip_rate']:.3f}."
    )


def notes(facts: Record) -> tuple[str, ...]:
    """What a figure of replicas is of: their number, references, samples left out, and what is like a coin flip."""
    left_out = facts["left_out"]
    said = (
        spread(facts["replicas"]),
        rows_there(facts)
        or f"Every replica is attacked with the same {facts['references']} references.",
        f"{plural(left_out, 'sample')} got no LiRA score and are left out." if left_out else "",
        cutoff(facts),
    )
    return tuple(sentence for sentence in said if sentence)


def enough(alpha: float) -> int:
    """The fewest replicas with which the coin-flip test can reject anything."""
    return next(b for b in itertools.count(2) if binomial.coin_flip_cutoff(b, alpha)[0])


def disagreement(flip_N: np.ndarray, member_N: np.ndarray, focus: float) -> str:
    """On how many samples the replicas do not all agree."""
    shares = []
    for side_N in (member_N, ~member_N):
        some_N = flip_N[side_N & ~np.isnan(flip_N)]
        shares.append(f"{100 * (some_N > 0).mean():.1f}%" if len(some_N) else "none")
    return (
        f"At an FPR of {percent(focus)} the replicas do not all agree about {shares[0]} of members "
        f"and {shares[1]} of non-members."
    )


def coin_flips(shares: Sequence[Record], focus: float) -> str:
    """Coin-flip shares at the focus FPR, and which class has more over all FPRs."""
    rows = [r for r in shares if r["bin"] == "coin flip"]
    said = ""
    for row in rows:
        if math.isclose(row["fpr"], focus):
            said = (
                f"At an FPR of {percent(focus)}, {row['members_percent']:.1f}% of members and "
                f"{row['nonmembers_percent']:.1f}% of non-members get a coin-flip decision. "
            )
    more = [r["fpr"] for r in rows if r["members_percent"] > r["nonmembers_percent"]]
    if not rows:
        return said
    if len(more) == len(rows):
        return said + "Members have the larger share at every FPR in the table."
    if not more:
        return said + "At no FPR in the table do members have the larger share."
    where = ", ".join(map(percent, more))
    return said + f"Members have the larger share at {len(more)} of {len(rows)} FPRs: {where}."


def hits(positives: Sequence[Record], focus: float) -> str:
    """Which part of all correct "member" decisions falls on coin-flip samples, from tables/true_positives.csv."""
    row = next((r for r in positives if math.isclose(r["fpr"], focus)), None)
    if row is None:
        return ""
    share = row["coin_flip_share_percent_mean"]
    if math.isnan(share):
        return f"At an FPR of {percent(focus)}, no member was ever called a member."
    said = (
        f"Of the members that a replica finds at an FPR of {percent(focus)}, {share:.1f}% have a decision that is a "
        f"coin flip (mean over replicas, ± {row['coin_flip_share_percent_std']:.1f}%)"
    )
    union = row["union_share_percent_mean"]
    if union > share:
        said += f"; with those that are very unstable it is {union:.1f}%"
    return said + "."


def without_coins(areas: Sequence[Record], band: Sequence[float]) -> str:
    """What coin flips contribute to the area under the curve, in the band and in all, from tables/partial_auc.csv."""
    by_band: dict[tuple[float, float], dict[str, Record]] = {}
    for row in areas:
        by_band.setdefault((row["low"], row["high"]), {})[row["curve"]] = row
    inside = by_band[band[0], band[1]]
    raw, free = inside["raw"], inside["coin-free"]
    said = (
        f"Between FPRs of {percent(band[0])} and {percent(band[1])} the mean TPR (the normalised partial AUC) is "
        f"{raw['pauc_normalised']:.3f}, and {free['pauc_normalised']:.3f} without true positives on coin-flip samples"
    )
    if not math.isnan(free["mean_tpr_dropped_percent"]):
        said += f": {free['mean_tpr_dropped_percent']:.1f}% of it rests on coin flips"
    lifts = f"{raw['lift_normalised']:.3f} and {free['lift_normalised']:.3f}"
    said += f". Above chance lie {lifts} (the lift)"
    retained = free["lift_retained_percent"]
    if not math.isnan(retained):
        said += (
            f", so {retained:.1f}% of the lift remains"
            if retained > 0
            else ", so nothing of the lift remains"
        )
    whole = by_band[0.0, 1.0]
    lost = whole["raw"]["pauc"] - whole["coin-free"]["pauc"]
    return (
        said
        + f". Of the area under the whole curve, {whole['raw']['pauc']:.3f}, {lost:.3f} rests on coin flips."
    )


def resampled(ways: Sequence[Record], alpha: float, samples: int) -> list[str]:
    """What each way of choosing references is, and of which samples its shares are.

    Args:
      ways: of ``sheets.resampled``.
      alpha: level of the test.
      samples: of the population.
    """
    said = []
    for way in ways:
        sets, left_out = way["sets"], way["left_out"]
        kind = (
            "They share no reference, so their decisions are independent and the test is exact."
            if way["how"] == "disjoint"
            else "They overlap, so their decisions depend on each other: the cutoff describes, and tests nothing."
        )
        size = plural(way["references_a_set"], "reference")
        sentence = f"{way['title']}: {plural(sets, 'set')} of {size}. {kind}"
        if not way["decides"]:
            sentence += (
                f" With so few sets the test has no power; {enough(alpha)} or more are needed."
            )
        if left_out:
            sentence += f" Of {samples:,} samples, {left_out:,} lack a score under one set or another and are left out."
        said.append(sentence)
    return said
