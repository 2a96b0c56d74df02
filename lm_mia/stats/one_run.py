"""Lower bounds on epsilon from a single training run.

Canaries are samples whose membership was drawn at random, by independent fair coins or as a random subset. An attack
guesses the membership of some of them and abstains on the rest. A private mechanism limits the number of guesses that
are correct, although all canaries are in the same run.

Legend: N samples, G numbers of guesses, P pairs, C tests (a number of guesses and a choice of sides each).

Source: Steinke, Nasr and Jagielski 2024, Privacy Auditing with One (1) Training Run; Mahloujifar, Melis and Chaudhuri
2025, Auditing f-Differential Privacy in One Run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.drawn_membership import drawn_by_cluster, unlike_fair_coins
from lm_mia.stats.gaussian_dp import gaussian_dp_epsilon
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_delta
from lm_mia.stats.intervals import check_confidence
from lm_mia.stats.ties import as_ids, order_with_keys, tie_keys

Sides = Literal["both", "members"]
"""Which guesses are made: both that the highest scores are members and that the lowest are not, or only the former."""
Membership = Literal["coins", "half"]
Adjacency = Literal["add_remove", "replace_one"]
_FEWEST_GUESSES = 16


@dataclasses.dataclass(frozen=True)
class Guesses:
    """Numbers of guesses that were made and that were correct, for each requested number."""

    made_G: IntArray
    """The requested number, or the number of samples with a score if that is smaller."""
    correct_G: IntArray


@dataclasses.dataclass(frozen=True)
class PairedCanaries:
    """Pairs of a member and a non-member; which of the two is the member is a fair coin."""

    difference_P: FloatArray
    """Absolute difference of the scores; NaN if one is missing, which is a canary on which the attack abstains."""
    correct_P: BoolArray
    """Whether the member has the larger score; if the scores are equal, whether it has the larger key."""


@dataclasses.dataclass(frozen=True)
class OneRunCurve:
    """Bounds for each number of guesses, each at the level that is divided among all of them."""

    guesses_C: IntArray
    sides_C: tuple[Sides, ...]
    correct_C: IntArray
    epsilon_C: FloatArray
    mu_C: FloatArray


@dataclasses.dataclass(frozen=True)
class OneRunBound:
    """Lower bounds on epsilon and on mu from one run.

    Each of the two holds with the requested confidence on its own, but not both together.
    """

    epsilon: float
    """The guesses reject (epsilon', delta)-differential privacy for every smaller epsilon'. 0 if they show no
    leakage."""
    mu: float
    """The guesses reject mu'-GDP for every smaller mu'."""
    epsilon_if_gaussian: float
    """Epsilon of mu-GDP at delta. **It is a lower bound only for a Gaussian mechanism**, whose epsilon and mu are
    linked by `gaussian_dp_epsilon`; it says nothing about other mechanisms."""
    canaries: int
    guesses: int
    """Number of guesses that gave ``epsilon``; those that missing scores prevent count as wrong."""
    correct: int
    guesses_gaussian: int
    """Number of guesses that gave ``mu``."""
    correct_gaussian: int
    sides: Sides
    sides_gaussian: Sides
    adjacency: Adjacency
    """Which data sets are neighbors: they differ by adding or removing a sample, or by replacing one."""
    level: float
    """1 - confidence."""
    hypotheses: int
    """Number of tests among which the level is divided (Bonferroni correction)."""
    ceiling: float
    """``epsilon`` of an attack whose guesses are all correct."""
    ceiling_if_gaussian: float
    """``epsilon_if_gaussian`` of such an attack."""
    left_out: int
    """Number of NaN scores: canaries on which the attack abstains."""
    curve: OneRunCurve


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Computes the p-value of (epsilon, delta)-differential privacy, given the number of correct guesses.

    It is an upper bound on the probability of at least as many correct guesses. With q = exp(epsilon) /
    (1 + exp(epsilon)) and W ~ Binomial(guesses, q), it is P(W >= correct) plus
    2 canaries delta max_i (P(W >= correct - i) - P(W >= correct)) / i over i = 1 .. correct.

    Args:
      canaries: number of samples whose membership was drawn by independent fair coins.
      guesses: number of guesses, fixed beforehand; the attack may have made fewer.
      correct: number of correct guesses.
      epsilon: 0 or larger.
      delta: in [0, 1).

    Returns:
      A p-value of the hypothesis that the mechanism is (epsilon, delta)-differentially private.

    Raises:
      ValueError: unless the numbers are whole and 0 <= correct <= guesses <= canaries, or if epsilon or delta is out of
        range.

    Source: Steinke et al. 2024, Theorem 5.2 and Appendix D. In PrivacyGuard, Section 3.2.2, the binomial distribution
    has as many trials as there are canaries; it must have as many as there are guesses.
    """
    canaries, guesses, correct = _as_counts(canaries, guesses, correct)
    check_delta(delta)
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: must be 0 or larger")
    return _p_value(canaries, guesses, correct, epsilon, delta)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float = 0.0, level: float = 0.05
) -> float:
    """Computes the largest epsilon that the guesses reject, which is a lower bound on the true epsilon.

    Args:
      canaries: number of samples whose membership was drawn by independent fair coins.
      guesses: number of guesses, fixed beforehand; the attack may have made fewer.
      correct: number of correct guesses.
      delta: in [0, 1). With delta above level / (2 canaries), a few guesses cannot show anything.
      level: significance level of the test, in (0, 1).

    Returns:
      The largest epsilon whose p-value is below the level; 0 if the guesses show nothing.

    Raises:
      ValueError: as for `one_run_p_value`, or if the level is out of range.

    Source: Steinke et al. 2024, Section 5.

    Example:
      >>> from lm_mia.stats import one_run_epsilon
      >>> round(one_run_epsilon(1000, 100, 100), 4), round(one_run_epsilon(1000, 100, 100, delta=1e-5), 4)
      (3.493, 3.4654)
    """
    canaries, guesses, correct = _as_counts(canaries, guesses, correct)
    check_delta(delta)
    _check_level(level)
    return _epsilon(canaries, guesses, correct, delta, level)


def gaussian_rejected(mu: float, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Tests whether the number of correct guesses rejects that a mechanism is mu-GDP.

    Args:
      mu: 0 or larger.
      canaries: number of samples whose membership was drawn by independent fair coins.
      guesses: number of guesses, fixed beforehand; the attack may have made fewer.
      correct: number of correct guesses.
      level: significance level of the test, in (0, 1).

    Returns:
      Whether mu-GDP is rejected.

    Raises:
      ValueError: as for `one_run_p_value`, or if mu or the level is out of range.

    Source: Mahloujifar et al. 2025, Algorithm 3 for an alphabet of two, with the trade-off function of mu-GDP.
    """
    canaries, guesses, correct = _as_counts(canaries, guesses, correct)
    _check_level(level)
    if not mu >= 0:
        raise ValueError(f"mu={mu}: must be 0 or larger")
    return _gaussian_rejected(mu, canaries, guesses, correct, level)


def one_run_mu(canaries: int, guesses: int, correct: int, *, level: float = 0.05) -> float:
    """Computes the largest mu for which the correct guesses reject mu-GDP.

    Args:
      canaries: number of samples whose membership was drawn by independent fair coins.
      guesses: number of guesses, fixed beforehand; the attack may have made fewer.
      correct: number of correct guesses.
      level: significance level of the test, in (0, 1).

    Returns:
      mu; 0 if the guesses show nothing.

    Raises:
      ValueError: as for `gaussian_rejected`.

    Source: Mahloujifar et al. 2025. PrivacyGuard searches a grid of noise levels instead, and reports the largest mu on
    it that is rejected (`noise_grid_epsilon`).

    Example:
      >>> from lm_mia.stats import gaussian_dp_epsilon, one_run_mu
      >>> mu = one_run_mu(2000, 252, 249)
      >>> round(mu, 3), round(float(gaussian_dp_epsilon(mu, 1e-5)), 3)
      (1.202, 5.425)
    """
    canaries, guesses, correct = _as_counts(canaries, guesses, correct)
    _check_level(level)
    return _mu(canaries, guesses, correct, level)


def count_guesses(
    score_N: ArrayLike,
    member_N: ArrayLike,
    guesses_G: ArrayLike,
    sides: Sides = "both",
    *,
    id_N: ArrayLike | None = None,
    seed: int = 0,
) -> Guesses:
    """Counts the correct guesses of an attack that guesses the samples it is most certain about.

    Tied scores are ordered by keys, which are functions of the seed and of the id of the sample alone: an order by
    position could reveal the membership. NaN is not guessed.

    Args:
      score_N: scores, larger for members.
      member_N: booleans, whether each sample is a member.
      guesses_G: numbers of guesses.
      sides: "both": the highest scores are guessed to be members, and as many of the lowest not to be (of an odd
        number, one more is a member); "members": only the highest scores are guessed, to be members.
      id_N: ids of the samples, by which ties are broken: different integers, 0 or larger. By default, their positions.
      seed: seed of the keys.

    Returns:
      Numbers of guesses that were made, and that were correct.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, if a number of guesses is not an integer, or
        if two ids are equal.

    Example:
      >>> from lm_mia.stats import count_guesses
      >>> count_guesses([0.0, 1.0, 1.0, 2.0], [False, False, True, True], [2, 3])
      Guesses(made_G=array([2, 3]), correct_G=array([2, 3]))
    """
    if sides not in get_args(Sides):
        raise ValueError(f"sides={sides!r}: must be one of {', '.join(get_args(Sides))}")
    score_N, member_N = _scores(score_N, member_N)
    guesses_G = np.atleast_1d(as_counts(guesses_G, "guesses_G"))
    present_N = ~np.isnan(score_N)
    samples = int(present_N.sum())
    order_S = order_with_keys(score_N, as_ids(id_N, score_N.size), seed)[:samples]
    members_S1 = np.concatenate([[0], np.cumsum(member_N[order_S])])
    made_G = np.minimum(guesses_G, samples)
    low_G = made_G // 2 if sides == "both" else np.zeros_like(made_G)
    # In ascending order, samples from `not_high` on are guessed to be members, and those before `low` not to be.
    not_high_G = samples - (made_G - low_G)
    correct_G = members_S1[-1] - members_S1[not_high_G] + low_G - members_S1[low_G]
    return Guesses(made_G, correct_G)


def paired_canaries(
    score_N: ArrayLike, member_N: ArrayLike, seed: int, *, id_N: ArrayLike | None = None
) -> PairedCanaries:
    """Pairs each member with a random non-member, so that members of an exact half become independent coins.

    If the members are a uniformly random subset of fixed size, their memberships depend on each other. Given random
    pairs, however, it is an independent fair coin in each pair which of the two is the member. The attack guesses that
    the member is the sample with the larger score, or with the larger key if the scores are equal: that is a fair coin.
    Neighbors then differ by replacing one sample.

    Args:
      score_N: scores, larger for members; NaN is missing.
      member_N: booleans, whether each sample is a member. If one class is larger, random samples of it are in no pair.
      seed: seed of the pairs and of the keys.
      id_N: ids of the samples: different integers, 0 or larger. By default, their positions. The pairs depend on the
        ids and not on the order of the samples.

    Returns:
      The pairs, in random order.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, or if two ids are equal.
    """
    score_N, member_N = _scores(score_N, member_N)
    id_N = as_ids(id_N, score_N.size)
    rng = np.random.default_rng(seed)
    by_id_N = np.argsort(id_N, kind="stable")
    members, nonmembers = (
        rng.permutation(by_id_N[class_N[by_id_N]]) for class_N in (member_N, ~member_N)
    )
    pairs = min(members.size, nonmembers.size)
    in_P, out_P = members[:pairs], nonmembers[:pairs]
    key_N = tie_keys(id_N, seed)
    is_tied_P = score_N[in_P] == score_N[out_P]
    with np.errstate(invalid="ignore"):  # of equal infinite scores, whose difference is 0
        difference_P = np.where(is_tied_P, 0, score_N[in_P] - score_N[out_P])
    correct_P = np.where(is_tied_P, key_N[in_P] > key_N[out_P], difference_P > 0)
    return PairedCanaries(np.abs(difference_P), correct_P)


def one_run_bound(
    score_N: ArrayLike,
    member_N: ArrayLike,
    *,
    membership: Membership = "coins",
    delta: float,
    confidence: float = 0.95,
    guesses_G: ArrayLike | None = None,
    id_N: ArrayLike | None = None,
    cluster_N: ArrayLike | None = None,
    seed: int = 0,
) -> OneRunBound:
    """Computes lower bounds on epsilon and on mu from the scores of one run, over several numbers of guesses.

    **"coins" is valid only if each membership was drawn by an independent fair coin, and the data cannot show this**: a
    coin with a probability of 0.55 is not found out, but makes the bound exceed 0 on noise far too often. "half" is
    valid if every subset with this number of members was equally likely, whatever their share. Neither is valid if
    whole documents, users or other clusters were drawn instead of single samples.

    The scores may depend on the memberships in other runs, such as those of references, but on those in this run only
    through its result. A threshold that was calibrated on the non-members of this run is therefore not allowed.

    Canaries of several runs may be pooled if their memberships are independent and no run was a reference of another.
    Pooled leave-one-out scores are not valid: the membership in each run changes the scores of the others, and then the
    number of correct guesses varies more than that of independent coins even without any leakage.

    Args:
      score_N: the score of each canary, larger for members. NaN is not guessed; these guesses count as wrong. Ties are
        broken as by `count_guesses` and `paired_canaries`.
      member_N: booleans, whether each canary is a member.
      membership: how the membership was drawn. "coins": each canary by an independent fair coin. "half": as a uniformly
        random subset of fixed size; members and non-members are then paired by `paired_canaries`.
      delta: of (epsilon, delta)-differential privacy, in [0, 1). With delta above 1 / canaries, hardly anything can be
        shown.
      confidence: in (0, 1).
      guesses_G: numbers of guesses, chosen without knowing the scores; by default 16, 32, 64, ... up to the number of
        canaries. With "coins", each is tried with both `Sides`. The level is divided by the number of all tests.
      id_N: ids of the canaries, by which ties are broken and pairs are drawn, so that the bound does not depend on the
        order of the canaries: different integers, 0 or larger. By default, their positions.
      cluster_N: the cluster of each canary, such as its document, as any integer. They are used only to check that
        canaries were drawn one by one.
      seed: seed of the pairs and of the keys.

    Returns:
      The largest bounds, and the bounds for every number of guesses.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, if delta, confidence or a number of guesses is
        out of range, if there are no canaries, if their number of members is implausible for "coins"
        (`unlike_fair_coins`), or if clusters were drawn as a whole (`drawn_by_cluster`).

    Source: Steinke et al. 2024; Mahloujifar et al. 2025, with a Bonferroni correction for the number of guesses, which
    both leave out.

    Example:
      The Gaussian mechanism with mu = 1, whose epsilon at delta = 1e-5 is 4.38:

      >>> import numpy as np
      >>> from lm_mia.stats import one_run_bound
      >>> rng = np.random.default_rng(0)
      >>> member_N = rng.random(2000) < 0.5
      >>> bound = one_run_bound(member_N + rng.normal(size=2000), member_N, delta=1e-5)
      >>> 0 < bound.epsilon < bound.epsilon_if_gaussian < 4.38
      True
    """
    check_confidence(confidence)
    check_delta(delta)
    if membership not in get_args(Membership):
        raise ValueError(
            f"membership={membership!r}: must be one of {', '.join(get_args(Membership))}"
        )
    score_N, member_N = _scores(score_N, member_N)
    if membership == "coins" and unlike_fair_coins(member_N):
        raise ValueError(
            f"membership='coins': {int(member_N.sum()):,} of {member_N.size:,} canaries are members, which independent "
            "fair coins practically never give; use membership='half', which is valid for a random subset of any size"
        )
    if cluster_N is not None and drawn_by_cluster(member_N, cluster_N):
        raise ValueError(
            "cluster_N: so many clusters have only members or only non-members that canaries were not drawn one by "
            "one, and the membership of one reveals that of others; keep one canary of each cluster"
        )
    left_out = int(np.isnan(score_N).sum())
    tried: tuple[Sides, ...] = ("both", "members")
    adjacency: Adjacency = "add_remove"
    if membership == "half":
        pairs = paired_canaries(score_N, member_N, seed, id_N=id_N)
        # A correct guess plays the role of a member: the pairs with the largest differences are guessed. The order of
        # the pairs does not depend on that of the samples, so their positions are their ids.
        score_N, member_N, id_N = pairs.difference_P, pairs.correct_P, None
        tried, adjacency = ("members",), "replace_one"
    canaries = score_N.size
    if not canaries:
        raise ValueError(f"member_N: there must be canaries for membership={membership!r}")
    guesses_G = _numbers_of_guesses(guesses_G, canaries)
    guesses_C = np.tile(guesses_G, len(tried))
    sides_C: tuple[Sides, ...] = tuple(sides for sides in tried for _ in guesses_G)
    correct_C = np.concatenate(
        [
            count_guesses(score_N, member_N, guesses_G, sides, id_N=id_N, seed=seed).correct_G
            for sides in tried
        ]
    )
    level = 1 - confidence
    each = level / guesses_C.size

    def bounds(correct_C: IntArray, guesses_C: IntArray) -> tuple[FloatArray, FloatArray]:
        tests = [*zip(guesses_C.tolist(), correct_C.tolist(), strict=True)]
        epsilons = [one_run_epsilon(canaries, *t, delta=delta, level=each) for t in tests]
        mus = [one_run_mu(canaries, *t, level=each) for t in tests]
        return np.array(epsilons), np.array(mus)

    epsilon_C, mu_C = bounds(correct_C, guesses_C)
    ceilings, mu_ceilings = bounds(guesses_G, guesses_G)
    best, best_gaussian = int(np.argmax(epsilon_C)), int(np.argmax(mu_C))
    return OneRunBound(
        epsilon=float(epsilon_C[best]),
        mu=float(mu_C[best_gaussian]),
        epsilon_if_gaussian=float(gaussian_dp_epsilon(mu_C[best_gaussian], delta)),
        canaries=canaries,
        guesses=int(guesses_C[best]),
        correct=int(correct_C[best]),
        guesses_gaussian=int(guesses_C[best_gaussian]),
        correct_gaussian=int(correct_C[best_gaussian]),
        sides=sides_C[best],
        sides_gaussian=sides_C[best_gaussian],
        adjacency=adjacency,
        level=level,
        hypotheses=guesses_C.size,
        ceiling=float(ceilings.max()),
        ceiling_if_gaussian=float(gaussian_dp_epsilon(mu_ceilings.max(), delta)),
        left_out=left_out,
        curve=OneRunCurve(guesses_C, sides_C, correct_C, epsilon_C, mu_C),
    )


def _numbers_of_guesses(guesses_G: ArrayLike | None, canaries: int) -> IntArray:
    """Returns the numbers of guesses, by default powers of two; all canaries if these are fewer than 16."""
    if guesses_G is None:
        first = _FEWEST_GUESSES.bit_length() - 1
        powers = [2**i for i in range(first, canaries.bit_length())]
        return np.array(powers or [canaries], dtype=np.int64)
    guesses_G = np.atleast_1d(as_counts(guesses_G, "guesses_G"))
    if guesses_G.ndim != 1 or not guesses_G.size or not np.all(guesses_G <= canaries):
        raise ValueError(f"guesses_G: must be one or more numbers up to {canaries}, the canaries")
    return guesses_G


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Computes `one_run_p_value`."""
    if correct == 0:
        return 1.0
    q = float(scipy.special.expit(epsilon))

    def at_least(k: int) -> float:
        return float(scipy.special.betainc(k, guesses - k + 1, q)) if k > 0 else 1.0

    tail = at_least(correct)
    if delta == 0:
        return tail

    def log_probability(k: int) -> float:
        log_choose = -scipy.special.betaln(k + 1, guesses - k + 1) - np.log1p(guesses)
        return float(
            log_choose + scipy.special.xlogy(k, q) + scipy.special.xlog1py(guesses - k, -q)
        )

    def mean_below(i: int) -> float:
        """Returns the mean probability of correct - i .. correct - 1."""
        return (at_least(correct - i) - tail) / i

    # The probabilities rise up to their mode and fall again. Seen downwards from correct - 1, their mean therefore
    # rises as long as the next one is above it, and then falls: the largest mean is found by bisection.
    low, high = 1, correct
    while low < high:
        middle = (low + high) // 2
        if np.exp(log_probability(correct - middle - 1)) > mean_below(middle):
            low = middle + 1
        else:
            high = middle
    return min(1.0, tail + 2 * canaries * delta * mean_below(low))


# Bounds of several attacks and repeated audits ask for the same numbers, such as those of perfect attacks.
@functools.lru_cache(maxsize=2**14)
def _epsilon(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """Computes `one_run_epsilon`."""

    def excess(epsilon: float) -> float:
        return _p_value(canaries, guesses, correct, epsilon, delta) - level

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    root = float(scipy.optimize.root_scalar(excess, bracket=(0.0, high), xtol=1e-10).root)
    return max(0.0, root - 2e-10)  # on the side that is rejected


@functools.lru_cache(maxsize=2**14)
def _mu(canaries: int, guesses: int, correct: int, level: float) -> float:
    """Computes `one_run_mu`."""
    if not _gaussian_rejected(0.0, canaries, guesses, correct, level):
        return 0.0
    low, high = 0.0, 1.0
    while _gaussian_rejected(high, canaries, guesses, correct, level):
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if _gaussian_rejected(middle, canaries, guesses, correct, level):
            low = middle
        else:
            high = middle
    return low


def _gaussian_rejected(mu: float, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Computes `gaussian_rejected`.

    If a mechanism is mu-GDP and at least `correct` guesses were right with probability `level`, then the probabilities
    of fewer correct ones must be so large that they add up to more than 1: r and h are sums over numbers of correct
    guesses of right and of wrong guesses, as shares of the canaries.
    """
    share = guesses / canaries
    right = level * correct / canaries
    wrong = level * (guesses - correct) / canaries
    quantile = NormalDist().inv_cdf
    for i in range(correct - 1, -1, -1):
        # Functions of single numbers: those of scipy take ten times as long.
        more = 0.5 * math.erfc((mu - quantile(right)) / math.sqrt(2))
        if more <= wrong:
            break  # Nothing changes any more.
        right += i / (guesses - i) * (more - wrong)
        wrong = more
        if right + wrong > share or right >= 1:
            return True  # Both only grow.
    return right + wrong > share


def _scores(score_N: ArrayLike, member_N: ArrayLike) -> tuple[FloatArray, BoolArray]:
    score_N, member_N = as_float64(score_N, "scores"), as_members(member_N, "member_N")
    if score_N.ndim != 1 or member_N.shape != score_N.shape:
        raise ValueError(
            f"scores of shape {score_N.shape} do not match members of shape {member_N.shape}"
        )
    return score_N, member_N


def _as_counts(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    """Returns the numbers as Python integers, which cannot overflow, as those of NumPy may.

    Raises:
      ValueError: if they are not whole numbers, or in the wrong order.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"canaries={canaries}, guesses={guesses}, correct={correct}: must satisfy "
            "0 <= correct <= guesses <= canaries"
        )
    a, b, c = as_counts([canaries, guesses, correct], "canaries, guesses and correct").tolist()
    return a, b, c


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1, both excluded")
