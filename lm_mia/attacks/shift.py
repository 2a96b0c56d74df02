"""Members and non-members from different sources, drawn from one model's samples so that the difference is known.

In a zero-run evaluation, members and non-members differ in more than membership (CausalMIA, Section 6). Here, some
members and some non-members of a model are selected by a rule that depends on the text. Since the membership of a
sample was drawn independently of its text, the density ratio of the selected members and non-members, dP_T / dP_0, is
known exactly. Other non-members, selected by the rule for members, are those of an evaluation without a shift.

Positions count from the first sample that is used. N: samples, G: groups.
"""

import dataclasses

import numpy as np
import scipy.special

from lm_mia import seeds

MIN_CLASS = 10
"""Minimum number of selected members, and of non-members."""
_SHARE_A = 9  # of 10 members are in A, and 1 of 10 non-members


@dataclasses.dataclass(frozen=True)
class Shift:
    """An evaluator's samples of one model, and the true difference between members and non-members."""

    name: str
    """groups, graded or disjoint."""
    strength: float
    """The strength of graded; 0 for the others."""
    member_ids: np.ndarray
    """Positions of the selected members, ascending: draws of the target distribution P_T."""
    nonmember_ids: np.ndarray
    """Positions of the selected non-members, ascending: draws of another distribution, P_0."""
    iid_nonmember_ids: np.ndarray
    """Positions of other non-members, ascending: draws of P_T."""
    log_odds_N: np.ndarray
    """log dP_T / dP_0 of every sample, up to a constant; inf where P_0 is 0, and -inf where P_T is 0."""


class ShiftError(ValueError):
    """A shift is not possible with these samples; the message says why."""


def source_groups(source_N: np.ndarray) -> np.ndarray:
    """Returns group_N, int64: the number of the source of each sample, from 0.

    Args:
      source_N: the column `source` of the sample table; all samples of unknown source ("") are one group.

    Raises:
      ShiftError: if there is only one group.
    """
    names, group_N = np.unique(source_N.astype(str), return_inverse=True)
    if len(names) < 2:
        where = f"from {str(names[0])!r}" if len(names) and names[0] else "of unknown source"
        raise ShiftError(
            f"the samples must be from two or more packages, files or folders, but all are {where}"
        )
    return group_N.astype(np.int64)


def lowest_loss_groups(group_N: np.ndarray, out_loss_N: np.ndarray) -> np.ndarray:
    """Returns is_in_a_N: whether each sample is in A, the groups with the lowest mean loss, up to half of the samples.

    Groups are added in the order of their mean losses while A has at most half of the samples, and at least one group.

    Args:
      group_N: number of the group of each sample, from 0; at least two groups.
      out_loss_N: mean loss of each sample under models that were not trained on it; NaN if there is none.
    """
    known_N = ~np.isnan(out_loss_N)
    size_G = np.bincount(group_N)
    known_G = np.bincount(group_N[known_N], minlength=len(size_G))
    sum_G = np.bincount(group_N[known_N], out_loss_N[known_N], len(size_G))
    mean_G = np.where(known_G > 0, sum_G / np.maximum(known_G, 1), np.inf)
    order_G = np.argsort(mean_G, kind="stable")
    fits_G = np.cumsum(size_G[order_G]) <= len(group_N) / 2
    return np.isin(group_N, order_G[: max(int(fits_G.sum()), 1)])


def groups(is_in_a_N: np.ndarray, member_N: np.ndarray, seed: int) -> Shift:
    """Selects members of which 90% are in A, and equally many non-members of which 10% are in A (CausalMIA, G.2).

    The density ratio is (9/10) / (1/10) = 9 in A and 1/9 outside: within each part, members and non-members have the
    same distribution.

    Args:
      is_in_a_N: whether each sample is in A.
      member_N: membership in the training subset of the model.
      seed: determines the selection.

    Raises:
      ShiftError: if there are fewer than `MIN_CLASS` members or non-members.
    """
    drawn = {
        (member, in_a): _shuffled((member_N == member) & (is_in_a_N == in_a), seed)
        for member in (True, False)
        for in_a in (True, False)
    }
    tenths = min(
        len(drawn[True, True]) // _SHARE_A,
        len(drawn[True, False]),
        *(len(drawn[False, in_a]) // (_SHARE_A + 1) for in_a in (True, False)),
    )
    _check_size("groups", 10 * tenths)
    many, few = _SHARE_A * tenths, tenths
    return Shift(
        "groups",
        0.0,
        _join(drawn[True, True][:many], drawn[True, False][:few]),
        _join(drawn[False, True][:few], drawn[False, False][:many]),
        _join(drawn[False, True][few : few + many], drawn[False, False][many : many + few]),
        np.where(is_in_a_N, 1.0, -1.0) * np.log(_SHARE_A),
    )


def graded(covariate_N: np.ndarray, member_N: np.ndarray, strength: float, seed: int) -> Shift:
    """Selects members with probability sigmoid(b z), and non-members with probability sigmoid(-b z).

    z is the standardized covariate and b the strength. Before the selection, members and non-members have the same
    distribution, so the density ratio is proportional to sigmoid(b z) / sigmoid(-b z) = exp(b z). A non-member is not
    selected with probability 1 - sigmoid(-b z) = sigmoid(b z), the rule for members, so the remaining non-members are
    draws of the members' distribution. The same random numbers are used for every strength.

    Args:
      covariate_N: the covariate; the mean replaces missing values (NaN).
      member_N, seed: as for `groups`.
      strength: b, 0 or larger; 0: no shift.

    Raises:
      ShiftError: if the covariate is the same for all samples, or if there are fewer than `MIN_CLASS` members or
        non-members.
    """
    known_N = covariate_N[~np.isnan(covariate_N)]
    if not known_N.size or np.ptp(known_N) == 0:
        raise ShiftError("the samples must have TF-IDF values that are not all the same")
    z_N = np.nan_to_num((covariate_N - known_N.mean()) / known_N.std(), nan=0.0)
    uniform_N = seeds.rng(seed, "zero-run/graded").random(len(z_N))
    sign_N = np.where(member_N, 1.0, -1.0)
    selected_N = uniform_N < scipy.special.expit(sign_N * strength * z_N)
    parts = [member_N & selected_N, ~member_N & selected_N, ~member_N & ~selected_N]
    members, nonmembers, iid = (np.flatnonzero(part_N) for part_N in parts)
    _check_size("graded", min(map(len, (members, nonmembers, iid))))
    return Shift("graded", strength, members, nonmembers, iid, strength * z_N)


def disjoint(is_in_a_N: np.ndarray, member_N: np.ndarray, seed: int) -> Shift:
    """Selects members in A only and equally many non-members outside A only, so that no adjustment is possible.

    No non-member resembles a member: dP_T / dP_0 is infinite in A and 0 outside. Arguments and errors are those of
    `groups`.
    """
    member, nonmember, iid = (
        _shuffled(part_N, seed)
        for part_N in (member_N & is_in_a_N, ~member_N & ~is_in_a_N, ~member_N & is_in_a_N)
    )
    count = min(len(member), len(nonmember), len(iid))
    _check_size("disjoint", count)
    member, nonmember, iid = (np.sort(drawn[:count]) for drawn in (member, nonmember, iid))
    return Shift("disjoint", 0.0, member, nonmember, iid, np.where(is_in_a_N, np.inf, -np.inf))


def _shuffled(selected_N: np.ndarray, seed: int) -> np.ndarray:
    """Returns the positions of the selected samples in random order."""
    order_N = seeds.permutation(seed, "zero-run/groups", len(selected_N))
    return order_N[selected_N[order_N]]


def _join(*parts: np.ndarray) -> np.ndarray:
    return np.sort(np.concatenate(parts))


def _check_size(name: str, count: int) -> None:
    if count < MIN_CLASS:
        raise ShiftError(
            f"{name} selects only {count} members or non-members; at least {MIN_CLASS} of each are needed"
        )
