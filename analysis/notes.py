"""Notes that the page and the figures share: what the numbers are averaged over, and what counts as a coin flip."""

import itertools
from collections.abc import Iterable

from analysis.formatting import MIN_HEADLINE_REPLICAS, percent
from analysis.io import Record, coin_flip_test_has_power
from lm_mia import stats
from lm_mia.printing import plural

COMPARABLE_REPLICAS = range(125, 129)
"""Numbers of replicas with which shares of flip rates are compared with those of the paper, which requested 128
and has 125 at 140M and 127 at 302M, because some runs crashed."""


def replicas_note(replicas: int, *, imported: bool = False) -> str:
    """Returns a note on what the numbers are means over, and what ± stands for.

    Args:
      replicas: number of replicas.
      imported: whether the models were trained elsewhere, so that only their training subset is known to be the same.
    """
    same = "subset" if imported else "subset and initial weights, different batch order"
    return (
        f"Unless noted otherwise, numbers are means over {plural(replicas, 'replica')} of one target (same training "
        f"{same}); ± is the standard deviation over these replicas, not over other targets."
    )


def missing_models_note(facts: Record) -> str:
    """Returns how many of the requested models the tables have; empty if none is missing."""
    roles, requested = ("references", "replicas"), facts["config"]
    if all(facts[role] >= requested[role] for role in roles):
        return ""
    counts = " and ".join(f"{facts[role]} of {requested[role]} requested {role}" for role in roles)
    return f"Some models are missing: the tables have {counts}. All numbers and the cutoff are based on these."


def coin_flip_note(facts: Record) -> str:
    """Returns what counts as a coin flip with the replicas of the tables, or that there are too few replicas."""
    low, replicas, alpha = facts["k_low"], facts["replicas"], facts["config"]["alpha"]
    if not coin_flip_test_has_power(facts):
        return (
            f"With {plural(replicas, 'replica')} the exact two-sided binomial test at level {alpha:g} has no power: "
            "it cannot tell any decision from a coin flip, not even one on which all replicas agree. "
            f"At least {min_replicas_for_test(alpha)} replicas are needed."
        )
    return (
        f"With {replicas} replicas, a decision counts as a coin flip when {low} to {replicas - low} of them say "
        f"“member”: an exact two-sided binomial test at level {alpha:g} cannot tell such a split from a fair coin. "
        f"That is a flip rate of {facts['cutoff']:.3f} or more; the largest possible is {facts['max_flip_rate']:.3f}."
    )


def coin_flip_power_note(facts: Record) -> str:
    """Returns how often decisions that are no coin flips are labeled so, and that the share depends on the replicas."""
    replicas, alpha = facts["replicas"], facts["config"]["alpha"]
    labeled = {
        p: percent(float(stats.coin_flip_probability(p, replicas, alpha))) for p in (0.8, 0.9)
    }
    note = (
        f"With {plural(replicas, 'replica')}, a sample that each replica calls a member with probability 0.8 is "
        f"labeled a coin flip in {labeled[0.8]} of the cases, and one with probability 0.9 in {labeled[0.9]}. The "
        "share of coin flips therefore falls with the number of replicas, and shares for different numbers of replicas "
        f"are not comparable. Ranges are those of the share that {stats.STRONGMIA_REPLICAS} replicas, as many as in "
        "StrongMIA (Hayes et al., 2025), would show."
    )
    if replicas >= MIN_HEADLINE_REPLICAS:
        return note
    return (
        f"Too few replicas: with fewer than {MIN_HEADLINE_REPLICAS}, the share of coin flips says more about the test "
        f"than about the decisions, so it is not among the main numbers. {note}"
    )


def depends_on_replicas(facts: Record, keys: Iterable[str]) -> frozenset[str]:
    """Returns the keys of numbers that depend on the number of replicas, if it is not that of the paper; else none."""
    return frozenset() if facts["replicas"] in COMPARABLE_REPLICAS else frozenset(keys)


def not_comparable_note(facts: Record) -> str:
    """Returns a note on the numbers of `depends_on_replicas`; empty if they are comparable."""
    if facts["replicas"] in COMPARABLE_REPLICAS:
        return ""
    return (
        f"Numbers that are marked as not comparable are based on {plural(facts['replicas'], 'replica')}, and would "
        f"differ with {COMPARABLE_REPLICAS[0]} to {COMPARABLE_REPLICAS[-1]}, as in the paper: with more replicas, flip "
        "rates are measured more precisely, and fewer decisions count as coin flips."
    )


def min_replicas_for_test(alpha: float) -> int:
    """Returns the smallest number of replicas with which the coin-flip test can reject any split of votes."""
    return next(b for b in itertools.count(2) if stats.coin_flip_cutoff(b, alpha)[0])


def replica_notes(facts: Record) -> tuple[str, ...]:
    """Returns the notes of a figure or table of decisions of replicas."""
    left_out = facts["left_out"]
    notes = (
        replicas_note(facts["replicas"]),
        missing_models_note(facts)
        or f"Every replica is attacked with the same {facts['references']} references.",
        f"Samples without a LiRA score, which are left out: {left_out:,}." if left_out else "",
        coin_flip_note(facts),
        coin_flip_power_note(facts) if coin_flip_test_has_power(facts) else "",
    )
    return tuple(note for note in notes if note)
