"""What the tables say, in short sentences: comparisons are made before they are worded.

First of rows and attacks, then of decisions and their stability.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from analysis.io import Record, attack_name, decides, percent
from lm_mia.stats import coin_flip

CHANCE_MARGIN = 0.03
"""How far from 0.5 the mean AUC with shuffled labels may lie."""


def plural(count: int, word: str) -> str:
    """1 sample, 2,000 samples."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def plus_minus(mean: float, std: float, digits: int = 3) -> str:
    """0.831 ± 0.004; a dash for NaN."""
    if mean is None or math.isnan(mean):
        return "–"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def full(attacks: Sequence[Record]) -> list[Record]:
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


def pick(rows: Sequence[Record], attack: str) -> Record | None:
    """The row of an attack among those of full()."""
    return next((r for r in rows if r["attack"] == attack and not math.isnan(r["auc_mean"])), None)


def rows_there(facts: Record) -> str:
    """Which rows the tables lack of those that were asked for; empty if none."""
    asked, lacking = facts["config"], []
    for role in ("reference", "replica"):
        there, wanted = facts[f"{role}s"], asked[f"{role}s"]
        if there < wanted:
            lacking.append(f"{there} of the {wanted} {role}s that were asked for")
    if not lacking:
        return ""
    return (
        f"The tables are of {' and '.join(lacking)}: the other models were not present. Every number and cutoff is of "
        f"the {plural(facts['references'], 'reference')} and {plural(facts['replicas'], 'replica')} that were."
    )


def lira_against_loss(attacks: Sequence[Record], samples: int) -> str:
    """AUC of LiRA with all references, and of the loss attack, out of so many samples."""
    lira, loss = pick(full(attacks), "lira_online"), pick(full(attacks), "loss")
    if lira is None:
        return "LiRA has no AUC here: no sample has enough IN and OUT references."
    said = (
        f"LiRA with {plural(lira['references'], 'reference')} reaches an AUC of "
        f"{plus_minus(lira['auc_mean'], lira['auc_std'])}"
    )
    if loss is None:
        return said + "."
    auc = plus_minus(loss["auc_mean"], loss["auc_std"])
    said += f"; the loss attack, which needs no references, {auc}."
    if lira["left_out"] != loss["left_out"]:
        return said + (
            f" The two are not of the same samples: {samples - lira['left_out']:,} have a LiRA "
            f"score, {samples - loss['left_out']:,} a loss."
        )
    ahead = lira["auc_mean"] - loss["auc_mean"]
    if round(ahead, 3) == 0:
        return said + " To three digits they are equal."
    return said + f" {'LiRA' if ahead > 0 else 'The loss attack'} is ahead by {abs(ahead):.3f}."


def ahead_of_lira(attacks: Sequence[Record]) -> str:
    """The attacks that do better than online LiRA, if there are any on the same samples."""
    lira = pick(full(attacks), "lira_online")
    better = [
        f"{attack_name(row['attack'])} ({plus_minus(row['auc_mean'], row['auc_std'])})"
        for row in full(attacks)
        if lira is not None
        and row["left_out"] == lira["left_out"]
        and round(row["auc_mean"], 3) > round(lira["auc_mean"], 3)
    ]
    return f"Ahead of LiRA here, on average: {', '.join(better)}." if better else ""


def interval(intervals: Sequence[Record]) -> str:
    """95 % interval of LiRA's AUC on the first replica; empty if none was made."""
    row = next((r for r in intervals if (r["attack"], r["metric"]) == ("lira_online", "auc")), None)
    if row is None:
        return ""
    return (
        f"Of the first replica alone, LiRA's AUC is {row['value']:.3f}; had other samples been drawn, it could be "
        f"between {row['bootstrap_low']:.3f} and {row['bootstrap_high']:.3f} (95% bootstrap interval)."
    )


def focus_tpr(attacks: Sequence[Record], focus: float) -> str:
    """True positive rate at the focus FPR, against guessing."""
    row = pick(full(attacks), "lira_online")
    if row is None or math.isnan(row[f"tpr_at_{focus:g}_mean"]):
        return ""
    return (
        f"When at most {percent(focus)} of non-members may be called members, LiRA finds "
        f"{percent(row[f'tpr_at_{focus:g}_mean'])} of the members on average; "
        f"a guess that ignores the model would find about {percent(focus)}."
    )


def spread(replicas: int) -> str:
    """What ± on the page is, and what it is not, with so many replicas."""
    return (
        f"The attack's numbers are means over {plural(replicas, 'replica')} of one target (same "
        "subset, same initial weights, another batch order); ± is the spread over these replicas, "
        "not over other targets."
    )


def growth(attacks: Sequence[Record], samples: int, attack: str = "lira_online") -> str:
    """How the AUC of an attack changes with the number of references, on the same samples."""
    rows = [r for r in attacks if r["attack"] == attack and not math.isnan(r["auc_mean"])]
    rows.sort(key=lambda r: r["references"])
    if len(rows) < 2:
        few = "only one number" if rows else "no number"
        return f"{attack_name(attack)} has an AUC for {few} of references, so nothing is known of more or fewer."
    # With more references no sample loses its score, so the same number means the same samples.
    alike = [r for r in rows if r["left_out"] == rows[-1]["left_out"]]
    others = ", ".join(
        f"{r['auc_mean']:.3f} with {plural(r['references'], 'reference')} "
        f"(on {plural(int(samples - r['left_out']), 'sample')})"
        for r in rows
        if len(alike) == 1 or r["left_out"] != alike[0]["left_out"]
    )
    if len(alike) == 1:
        return (
            f"{attack_name(attack)} has an AUC of {others}: not of the same samples, so these "
            "numbers do not show what references add."
        )
    said = _change(alike, attack)
    if others:
        said += (
            f" All of these are on {plural(int(samples - alike[0]['left_out']), 'sample')}. The AUCs with "
            f"fewer references are of other sets of samples and do not compare: {others}."
        )
    return said


def _change(rows: Sequence[Record], attack: str) -> str:
    """From the first AUC to the last, and how many of the steps between raised it."""
    first, last = rows[0], rows[-1]
    said = (
        f"From {first['references']} to {last['references']} references the AUC of "
        f"{attack_name(attack)} goes from {first['auc_mean']:.3f} to {last['auc_mean']:.3f}"
    )
    if len(rows) == 2:
        return said + "."
    steps = np.diff([r["auc_mean"] for r in rows])
    if (steps > 0).all():
        return said + "; every step up adds to it."
    return said + f"; of the {len(steps)} steps up, {int((steps > 0).sum())} raised it."


def left_out(attacks: Sequence[Record]) -> str:
    """How many samples got no score with all references."""
    row = next((r for r in full(attacks) if r["attack"] == "lira_online"), None)
    if row is None:
        return ""
    if row["left_out"]:
        return (
            f"{plural(int(row['left_out']), 'sample')} got no LiRA score "
            "(too few IN or OUT references, or no spread among them); LiRA's numbers omit them."
        )
    return "Every sample got a LiRA score."


def control(shuffled: Sequence[Record]) -> tuple[bool, str]:
    """(passed, verdict) of the control with shuffled membership labels."""
    rows = [r for r in shuffled if not math.isnan(r["auc_mean"])]
    if not rows:
        return False, "The control has no result: no attack got an AUC with shuffled labels."
    without = [attack_name(r["attack"]) for r in shuffled if math.isnan(r["auc_mean"])]
    but = f" Without a result: {', '.join(without)}." if without else ""
    worst = max(rows, key=lambda r: abs(r["auc_mean"] - 0.5))
    references = f" with {plural(worst['references'], 'reference')}" if worst["references"] else ""
    who = f"{attack_name(worst['attack'])}{references}, AUC {worst['auc_mean']:.3f}"
    if abs(worst["auc_mean"] - 0.5) <= CHANCE_MARGIN:
        return True, (
            f"Passed: with shuffled labels every {'other ' if without else ''}attack's mean AUC lies within "
            f"{CHANCE_MARGIN:g} of 0.5 (farthest: {who}). The control finds no sign of a leak.{but}"
        )
    bad = sum(abs(r["auc_mean"] - 0.5) > CHANCE_MARGIN for r in rows)
    return False, (
        f"Failed: with shuffled labels {bad} of {plural(len(rows), 'mean AUC')} lie more than "
        f"{CHANCE_MARGIN:g} from 0.5 (farthest: {who}). Something other than membership may drive "
        f"the scores, or there are too few samples; explain this before you trust the numbers.{but}"
    )


def training(
    curves: Mapping[str, tuple[str, Mapping[int, float]]],
    trained: Sequence[Record],
    scored: Sequence[Record],
) -> str:
    """First and last training loss, time, and loss of members and others, median over rows.

    Args:
      curves: role and loss by step of every row.
      trained: row_trained events.
      scored: row_scored events.
    """
    said = []
    if curves:
        first = float(np.median([curve[min(curve)] for _, curve in curves.values()]))
        last = float(np.median([curve[max(curve)] for _, curve in curves.values()]))
        verb = "fell" if last < first else "rose" if last > first else "went"
        said.append(
            f"The training loss {verb} from {first:.2f} to {last:.2f} nats a token "
            f"(first and last logged step, median of {plural(len(curves), 'model')})."
        )
    whole = [
        e for e in trained if not e.get("resumed_at")
    ]  # of a resumed row only the rest is timed
    seconds = _of_rows(whole, "seconds")
    if seconds:
        said.append(f"Training took {np.median(seconds):.1f} seconds a model (median).")
    members = _of_rows(scored, "member_loss_nats")
    others = _of_rows(scored, "nonmember_loss_nats")
    if members and others:
        said.append(
            f"Afterwards a model's mean loss is {np.median(members):.2f} on its members and "
            f"{np.median(others):.2f} on its non-members (medians)."
        )
    return " ".join(said)


def _of_rows(events: Sequence[Record], field: str) -> list[float]:
    """The last value that each row reported."""
    found = {str(e.get("row")): e[field] for e in events if isinstance(e.get(field), int | float)}
    return list(found.values())


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
    return next(b for b in itertools.count(2) if coin_flip.coin_flip_cutoff(b, alpha)[0])


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
      ways: of ``tables.resampled``.
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
