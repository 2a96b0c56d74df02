"""Notes that the page and the figures share: which models the numbers are over, and what counts as a coin flip."""

import itertools

from analysis.formatting import plural
from analysis.io import Record, decides
from lm_mia import stats


def spread(replicas: int) -> str:
    """What the numbers are over, and what ± is."""
    return (
        f"Unless noted otherwise, numbers are means over {plural(replicas, 'replica')} of one target (same training "
        "subset, same initial weights, another order of the batches); ± is the standard deviation over these replicas, "
        "not over other targets."
    )


def missing_models(facts: Record) -> str:
    """How many of the requested models the tables have; empty if they have all."""
    roles, requested = ("references", "replicas"), facts["config"]
    if all(facts[role] >= requested[role] for role in roles):
        return ""
    counts = " and ".join(f"{facts[role]} of {requested[role]} requested {role}" for role in roles)
    return (
        f"Some models are missing: the tables have {counts}. Every number and cutoff is over these."
    )


def cutoff(facts: Record) -> str:
    """What counts as a coin flip with the replicas of the tables, or that there are too few of them to tell."""
    low, replicas, alpha = facts["k_low"], facts["replicas"], facts["config"]["alpha"]
    if not decides(facts):
        return (
            f"With {plural(replicas, 'replica')} the exact two-sided binomial test at level {alpha:g} has no power: "
            "it cannot tell any decision from a coin flip, not even one on which all replicas agree. "
            f"{fewest_replicas(alpha)} or more replicas are needed."
        )
    return (
        f"With {replicas} replicas, a decision counts as a coin flip when {low} to {replicas - low} of them say "
        f"“member”: an exact two-sided binomial test at level {alpha:g} cannot tell such a split from a fair coin. "
        f"That is a flip rate of {facts['cutoff']:.3f} or more; the largest possible is {facts['max_flip_rate']:.3f}."
    )


def fewest_replicas(alpha: float) -> int:
    """The fewest replicas with which the coin-flip test can reject anything."""
    return next(b for b in itertools.count(2) if stats.coin_flip_cutoff(b, alpha)[0])


def of_replicas(facts: Record) -> tuple[str, ...]:
    """The notes of a figure or table of decisions of replicas."""
    left_out = facts["left_out"]
    notes = (
        spread(facts["replicas"]),
        missing_models(facts)
        or f"Every replica is attacked with the same {facts['references']} references.",
        f"Samples without a LiRA score, which are left out: {left_out:,}." if left_out else "",
        cutoff(facts),
    )
    return tuple(note for note in notes if note)
