"""Simulates how often intervals of `stats.share_interval` contain the expectation, and prints Markdown tables.

    python -m benchmarks.headline_coverage [SECTION ...] [--rounds=400] [--replicates=300]

The sections are one (one training), targets (several, each on a random half of its own), few_replicas and many_replicas
(trainings that differ in the order of batches), and bootstrap, which compares one training and replicas with bootstraps
in a quarter of the rounds. All of them run by default, in about 10 minutes on one core.

Each round draws new trainings and new samples. The score of sample i under training t is

    sqrt(c) common_i + sqrt(1 - c) noise_ti + exposed_i (gap + shift_t) if i is a member of t

with c the correlation of the trainings, two kinds of noise with heavy tails beside the normal one, and shift_t normal
with the given SD. Exposed are all members or a random part. The gap gives the TPR of the table with infinitely many
samples. A second attack on the same trainings and samples has the same distribution, with four fifths of the variance
of both kinds of noise, and half of that of the shift, in common with the first.

The truth is the expectation of AUC and TPR with this number of samples over all trainings and samples, and for the
missed share one minus the ratio of the expectations of "found by both" and "found by one", from independent rounds.
The coverage is the percentage of the rounds with an interval that contain it, and in brackets is the median width in
percentage points. "Differs" is the percentage of rounds in which the interval of the difference of the two attacks
excludes 0, although their expectations are equal. The standard error of a coverage is 1.1 points at 95 % of 400 rounds.
"""

import argparse
import collections
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from lm_mia import stats

_HALVES_H1xG = np.vstack([np.ones((1, 8), bool), stats.HALVES_HxG])
_SHARED, _SHARED_SHIFT = 0.8, 0.5
_SCORES_AT_ONCE, _SCORES_OF_TRUTH = 2**21, 2**23
_SIGMA = 0.75  # of the logarithm of log-normal noise


@dataclasses.dataclass(frozen=True)
class Setting:
    """A distribution of scores and the size of the experiment."""

    trainings: int
    samples: int
    """Number of members, and of non-members."""
    fpr: float
    tpr: float
    """With infinitely many samples."""
    correlation: float = 0.5
    noise: str = "normal"
    exposed: float = 1.0
    """The share of members with a gap."""
    shift: float = 0.0
    """SD over trainings of a shift of the scores of exposed members."""
    are_replicas: bool = False
    """Whether the trainings share their members."""

    @property
    def name(self) -> str:
        """The row of a table."""
        exposed = "" if self.exposed == 1 else f", {self.exposed:.0%} exposed"
        shift = f", shift {self.shift:g}" if self.shift else ""
        return f"{self.noise}, {self.correlation:g}{exposed}{shift}"


ONE = (
    Setting(1, 100, 0.1, 0.1),
    Setting(1, 100, 0.1, 0.4, noise="t, 4 df"),
    Setting(1, 100, 0.1, 0.7, exposed=0.8),
    Setting(1, 100, 0.1, 0.95, noise="log-normal"),
    Setting(1, 200, 0.05, 0.2),
    Setting(1, 512, 0.05, 0.05, noise="t, 4 df"),
    Setting(1, 512, 0.05, 0.2),
    Setting(1, 512, 0.05, 0.6, noise="log-normal", exposed=0.7),
    Setting(1, 512, 0.05, 0.95),
    Setting(1, 1024, 0.01, 0.01),
    Setting(1, 1024, 0.01, 0.04, exposed=0.3),
    Setting(1, 1024, 0.01, 0.2, noise="t, 4 df"),
    Setting(1, 1024, 0.01, 0.95),
    Setting(1, 2048, 0.01, 0.02),
    Setting(1, 2048, 0.01, 0.2, noise="log-normal"),
    Setting(1, 2048, 0.01, 0.95, noise="t, 4 df"),
)
TARGETS = (
    Setting(2, 100, 0.1, 0.4, shift=0.1),
    Setting(2, 512, 0.05, 0.2, correlation=0.9, noise="t, 4 df"),
    Setting(2, 512, 0.05, 0.95),
    Setting(2, 1024, 0.01, 0.04, correlation=0.0, shift=0.2),
    Setting(2, 1024, 0.01, 0.2, exposed=0.3, shift=0.2),
    Setting(4, 100, 0.1, 0.1),
    Setting(4, 512, 0.05, 0.6, correlation=0.9, noise="log-normal", shift=0.2),
    Setting(4, 1024, 0.01, 0.04, correlation=0.9, exposed=0.3, shift=0.2),
    Setting(4, 1024, 0.01, 0.2, shift=0.1),
    Setting(4, 2048, 0.01, 0.95, noise="t, 4 df", shift=0.1),
    Setting(16, 100, 0.1, 0.7, noise="t, 4 df", shift=0.2),
    Setting(16, 512, 0.05, 0.05, correlation=0.0),
    Setting(16, 512, 0.05, 0.2, correlation=0.9, shift=0.2),
    Setting(16, 1024, 0.01, 0.04, shift=0.1),
    Setting(16, 1024, 0.01, 0.2, noise="log-normal", exposed=0.5, shift=0.1),
)
FEW_REPLICAS = (
    Setting(2, 100, 0.1, 0.1),
    Setting(2, 100, 0.1, 0.4, correlation=0.9, noise="t, 4 df", shift=0.1),
    Setting(2, 512, 0.05, 0.6, exposed=0.7, shift=0.2),
    Setting(2, 512, 0.05, 0.95),
    Setting(2, 1024, 0.01, 0.04, correlation=0.0),
    Setting(2, 1024, 0.01, 0.2, correlation=0.9, noise="log-normal"),
    Setting(2, 2048, 0.01, 0.2, correlation=0.0, shift=0.2),
    Setting(2, 2048, 0.01, 0.2, correlation=0.9, shift=0.2),
    Setting(3, 100, 0.1, 0.7, correlation=0.0),
    Setting(3, 100, 0.1, 0.95, correlation=0.9),
    Setting(3, 512, 0.05, 0.05, correlation=0.9),
    Setting(3, 512, 0.05, 0.2, noise="t, 4 df"),
    Setting(3, 1024, 0.01, 0.01),
    Setting(3, 1024, 0.01, 0.2, exposed=0.3, shift=0.1),
    Setting(3, 2048, 0.01, 0.2, shift=0.2),
    Setting(5, 100, 0.1, 0.1, correlation=0.9),
    Setting(5, 100, 0.1, 0.4, noise="log-normal", shift=0.1),
    Setting(5, 512, 0.05, 0.6, correlation=0.0),
    Setting(5, 512, 0.05, 0.95, correlation=0.9, shift=0.1),
    Setting(5, 1024, 0.01, 0.04, noise="t, 4 df"),
    Setting(5, 1024, 0.01, 0.2, correlation=0.9, exposed=0.3, shift=0.2),
)
MANY_REPLICAS = (
    Setting(8, 100, 0.1, 0.95, noise="t, 4 df"),
    Setting(8, 512, 0.05, 0.2, correlation=0.9, shift=0.2),
    Setting(8, 1024, 0.01, 0.01, correlation=0.0),
    Setting(8, 1024, 0.01, 0.04, exposed=0.3),
    Setting(8, 1024, 0.01, 0.2, noise="log-normal", shift=0.2),
    Setting(8, 2048, 0.01, 0.95, shift=0.1),
    Setting(12, 100, 0.1, 0.4, correlation=0.9),
    Setting(12, 512, 0.05, 0.6, noise="log-normal", exposed=0.7),
    Setting(12, 512, 0.05, 0.95, shift=0.2),
    Setting(12, 1024, 0.01, 0.04, correlation=0.9, shift=0.2),
    Setting(12, 1024, 0.01, 0.2, correlation=0.0, noise="t, 4 df"),
    Setting(16, 100, 0.1, 0.1),
    Setting(16, 512, 0.05, 0.2, shift=0.1),
    Setting(16, 512, 0.05, 0.95, correlation=0.9),
    Setting(16, 1024, 0.01, 0.04, exposed=0.3, shift=0.1),
    Setting(16, 1024, 0.01, 0.2, correlation=0.9, noise="t, 4 df"),
    Setting(32, 100, 0.1, 0.4, shift=0.2),
    Setting(32, 512, 0.05, 0.05),
    Setting(32, 512, 0.05, 0.2, correlation=0.9, exposed=0.3),
    Setting(32, 1024, 0.01, 0.2, noise="t, 4 df"),
)


def _replicas(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    return tuple(dataclasses.replace(setting, are_replicas=True) for setting in settings)


def _noise(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws noise of mean 0 and variance 1."""
    normal = rng.standard_normal(shape, np.float32)
    if kind == "t, 4 df":
        # Half of a chi-squared number with 4 degrees of freedom has a gamma distribution of shape 2.
        normal /= np.sqrt(rng.standard_gamma(2, shape, np.float32))
    elif kind == "log-normal":
        mean = math.exp(_SIGMA**2 / 2)
        normal = (np.exp(_SIGMA * normal) - mean) / (mean * math.sqrt(math.expm1(_SIGMA**2)))
    return normal.astype(np.float32)


def _partly_shared(
    rng: np.random.Generator, kind: str, shape: tuple[int, ...], shared: np.ndarray
) -> np.ndarray:
    return math.sqrt(_SHARED) * shared + math.sqrt(1 - _SHARED) * _noise(rng, kind, shape)


def gap_of(setting: Setting) -> float:
    """Finds the gap that gives the TPR of the setting, apart from shifts of trainings."""
    if setting.tpr <= setting.fpr:
        return 0.0
    rng, shape = np.random.default_rng(1), (2, 2**18)
    score_2xN = np.zeros(shape)
    for share in (setting.correlation, 1 - setting.correlation):
        shared = _noise(rng, setting.noise, shape)
        score_2xN += math.sqrt(share) * _partly_shared(rng, setting.noise, shape, shared)
    of_exposed = (setting.tpr - (1 - setting.exposed) * setting.fpr) / setting.exposed
    threshold = np.quantile(score_2xN[0], 1 - setting.fpr)
    return float(threshold - np.quantile(score_2xN[1], 1 - of_exposed))


@dataclasses.dataclass(frozen=True)
class Draws:
    """Scores of two attacks in some rounds. Members are the first half of the samples of each training."""

    score_KxExTxN2: np.ndarray
    group_ExTxN2: np.ndarray


def draw(setting: Setting, gap: float, rounds: int, rng: np.random.Generator) -> Draws:
    """Draws trainings and samples."""
    trainings, samples, kind = setting.trainings, setting.samples, setting.noise
    shape_N2, shape = (rounds, 2 * samples), (rounds, trainings, 2 * samples)
    subsets = 1 if setting.are_replicas else trainings
    # The order of the samples of each training; its first half are the members.
    order_ExUxN2 = rng.random((rounds, subsets, 2 * samples), np.float32).argsort(axis=2)
    exposed_ExN2 = (rng.random(shape_N2) < setting.exposed).astype(np.float32)
    gap_ExUxN = gap * np.take_along_axis(exposed_ExN2[:, None], order_ExUxN2, 2)[..., :samples]
    common_ExN2, noise_ExTxN2 = _noise(rng, kind, shape_N2), _noise(rng, kind, shape)
    shift_ExTx1 = rng.standard_normal((rounds, trainings, 1))
    scores = []
    for _ in range(2):
        common = _partly_shared(rng, kind, shape_N2, common_ExN2)
        score_ExTxN2 = math.sqrt(1 - setting.correlation) * _partly_shared(
            rng, kind, shape, noise_ExTxN2
        ) + math.sqrt(setting.correlation) * np.take_along_axis(common[:, None], order_ExUxN2, 2)
        own_ExTx1 = rng.standard_normal((rounds, trainings, 1))
        shift = setting.shift * (
            math.sqrt(_SHARED_SHIFT) * shift_ExTx1 + math.sqrt(1 - _SHARED_SHIFT) * own_ExTx1
        )
        exposed_ExUxN = np.take_along_axis(exposed_ExN2[:, None], order_ExUxN2, 2)[..., :samples]
        score_ExTxN2[..., :samples] += gap_ExUxN + shift * exposed_ExUxN
        scores.append(score_ExTxN2.astype(np.float32))
    group_ExTxN2 = np.broadcast_to((order_ExUxN2 % 8).astype(np.int8), shape)
    return Draws(np.stack(scores), group_ExTxN2)


def _thresholds(
    nonmember_ExTxN: np.ndarray, group_ExTxN: np.ndarray, fpr: float, half_H1xG: np.ndarray
) -> np.ndarray:
    """Returns the threshold of the paper on each half: the score with j - 1 larger ones, where j are allowed."""
    order = np.argsort(-nonmember_ExTxN, axis=2)
    score_ExTxN = np.take_along_axis(nonmember_ExTxN, order, 2)
    sorted_group_ExTxN = np.take_along_axis(group_ExTxN, order, 2)
    # Halves reach their thresholds among these highest scores, except with a negligible probability.
    top = min(score_ExTxN.shape[2], int(4 * fpr * score_ExTxN.shape[2]) + 60)
    thresholds = []
    for half_G in half_H1xG:
        allowed_ExT = np.floor(half_G[group_ExTxN].sum(axis=2) * fpr + 1e-9).astype(int)
        count = np.cumsum(half_G[sorted_group_ExTxN[..., :top]], axis=2, dtype=np.int32)
        position = np.argmax(count == allowed_ExT[..., None], axis=2)
        thresholds.append(np.take_along_axis(score_ExTxN, position[..., None], 2)[..., 0])
    return np.stack(thresholds, axis=2)


def _aucs(score_ExTxN2: np.ndarray, group_ExTxN2: np.ndarray, half_H1xG: np.ndarray) -> np.ndarray:
    """Returns the AUC on each half, from the pairs of each group of members with each one of non-members."""
    *shape, samples = score_ExTxN2.shape
    is_nonmember = np.arange(samples) >= samples // 2
    code_QxN2 = (group_ExTxN2 + 8 * is_nonmember).reshape(-1, samples)
    order_QxN2 = np.argsort(score_ExTxN2.reshape(-1, samples), axis=1)
    code_QxN2 = np.take_along_axis(code_QxN2, order_QxN2, 1)
    weight_H1xG = half_H1xG.astype(np.float32)
    aucs = []
    for code in np.array_split(code_QxN2, 1 + code_QxN2.size // 2**17):
        is_of_code = code[:, None] == np.arange(16)[:, None]
        below = np.cumsum(is_of_code[:, 8:], axis=2, dtype=np.float32)
        pairs_QxGxG = is_of_code[:, :8].astype(np.float32) @ below.transpose(0, 2, 1)
        count_Qx16 = is_of_code.sum(axis=2)
        won = np.einsum("hg,qgk,hk->qh", weight_H1xG, pairs_QxGxG, weight_H1xG)
        aucs.append(
            won / ((count_Qx16[:, :8] @ weight_H1xG.T) * (count_Qx16[:, 8:] @ weight_H1xG.T))
        )
    return np.concatenate(aucs).reshape(*shape, len(half_H1xG))


def rates(
    setting: Setting, draws: Draws, half_H1xG: np.ndarray = _HALVES_H1xG
) -> tuple[np.ndarray, np.ndarray]:
    """Computes what the intervals are made of, on all samples and on each half.

    Returns:
      (auc_KxExTxH1, found_KxExTxTxH1): AUCs, and the shares of members that both of two trainings find, which on the
      diagonal are the TPRs; 0 beside the diagonal for trainings with members of their own.
    """
    samples, group = setting.samples, draws.group_ExTxN2
    aucs, founds = [], []
    for score_ExTxN2 in draws.score_KxExTxN2:
        threshold_ExTxH1 = _thresholds(
            score_ExTxN2[..., samples:], group[..., samples:], setting.fpr, half_H1xG
        )
        found_H1 = []
        for h, half_G in enumerate(half_H1xG):
            in_half = half_G[group[..., :samples]]
            is_found = score_ExTxN2[..., :samples] >= threshold_ExTxH1[..., h, None]
            is_found = (is_found & in_half).astype(np.float32)
            if setting.are_replicas:
                count = is_found @ is_found.transpose(0, 2, 1)
            else:
                count = is_found.sum(axis=2)[..., None] * np.eye(setting.trainings)
            found_H1.append(count / in_half.sum(axis=2)[..., None])
        aucs.append(_aucs(score_ExTxN2, group, half_H1xG))
        founds.append(np.stack(found_H1, axis=3))
    return np.stack(aucs).astype(float), np.stack(founds).astype(float)


@dataclasses.dataclass(frozen=True)
class Experiments:
    """The numbers of two attacks in each round, and their expectations."""

    rate_KxExTxH1: dict[str, np.ndarray]
    """AUC and TPR of each training."""
    value_KxExA1xH1: dict[str, np.ndarray]
    """AUC, TPR and missed share, also without groups of trainings."""
    truth: dict[str, float]


def simulate(setting: Setting, rounds: int) -> Experiments:
    """Draws rounds and computes the numbers of each."""
    gap = gap_of(setting)
    seed = [setting.trainings, setting.samples, int(1000 * setting.tpr), setting.are_replicas]
    rng = np.random.default_rng([*seed, int(10 * setting.correlation)])
    parts = []
    at_once = max(1, _SCORES_AT_ONCE // (2 * setting.samples * setting.trainings))
    for start in range(0, rounds, at_once):
        draws = draw(setting, gap, min(at_once, rounds - start), rng)
        parts.append(rates(setting, draws))
    auc, found = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return numbers_of(setting, auc, found, gap, rng)


def numbers_of(
    setting: Setting,
    auc_KxExTxH1: np.ndarray,
    found_KxExTxTxH1: np.ndarray,
    gap: float,
    rng: np.random.Generator,
) -> Experiments:
    """Computes the numbers of each round from those of its trainings, and their expectations."""
    rate = {"AUC": auc_KxExTxH1, "TPR": np.einsum("kettH->ketH", found_KxExTxTxH1)}
    value = {name: _without_groups(rate_KxExTxH1) for name, rate_KxExTxH1 in rate.items()}
    if setting.are_replicas:
        flip_KxExA1xH1 = _flip_rates(found_KxExTxTxH1, rate["TPR"])
        # The groups of trainings are its first axis.
        share_A1xKxExH1 = stats.missed_share(
            *(np.moveaxis(array, 2, 0) for array in (flip_KxExA1xH1, value["TPR"]))
        )
        value["missed"] = np.moveaxis(share_A1xKxExH1, 0, 2)
    return Experiments(rate, value, _truth(setting, gap, rng))


def _without_groups(rate_KxExTxH1: np.ndarray) -> np.ndarray:
    """Applies `stats.rates_without_groups` to the rates of all attacks and rounds; returns value_KxExA1xH1."""
    attacks, rounds, trainings, halves = rate_KxExTxH1.shape
    rate_TxH1xS = rate_KxExTxH1.transpose(2, 3, 0, 1).reshape(trainings, halves, attacks * rounds)
    value_A1xH1xS = stats.rates_without_groups(rate_TxH1xS[:, 0], rate_TxH1xS[:, 1:])
    return value_A1xH1xS.reshape(-1, halves, attacks, rounds).transpose(2, 3, 0, 1)


def _flip_rates(found_KxExTxTxH1: np.ndarray, tpr_KxExTxH1: np.ndarray) -> np.ndarray:
    """Returns mean flip rates of members, as of `stats.decision_metrics`; NaN with one replica."""
    trainings = tpr_KxExTxH1.shape[2]
    group_T = np.arange(trainings) % min(8, trainings)
    flip_rates = []
    for left_out in range(-1, group_T.max() + 1):
        kept = np.flatnonzero(group_T != left_out)
        tpr = tpr_KxExTxH1[:, :, kept].sum(axis=2)
        both = found_KxExTxTxH1[:, :, kept][:, :, :, kept].sum(axis=(2, 3)) - tpr
        pairs = kept.size * (kept.size - 1)
        flip_rates.append(
            2 * (tpr / kept.size - both / pairs) if pairs else np.full(tpr.shape, np.nan)
        )
    return np.stack(flip_rates, axis=2)


def _truth(setting: Setting, gap: float, rng: np.random.Generator) -> dict[str, float]:
    """Estimates the expectations from independent rounds of one or two trainings."""
    few = dataclasses.replace(setting, trainings=2 if setting.are_replicas else 1)
    at_once = max(1, _SCORES_AT_ONCE // (2 * few.samples * few.trainings))
    sums: collections.Counter[str] = collections.Counter()
    rounds = max(1, _SCORES_OF_TRUTH // (2 * few.samples * at_once))
    for _ in range(rounds):
        auc, found = rates(few, draw(few, gap, at_once, rng), _HALVES_H1xG[:1])
        sums["AUC"] += auc.mean() / rounds
        sums["TPR"] += np.einsum("kettH->", found) / found[:, :, 0].size / rounds
        sums["both"] += found[:, :, 0, -1].mean() / rounds
    return {"AUC": sums["AUC"], "TPR": sums["TPR"], "missed": 1 - sums["both"] / sums["TPR"]}


Interval = tuple[float, float]


def chosen(
    value_A1xH1: np.ndarray, setting: Setting, truth: dict[str, float], name: str
) -> Interval:
    """Logit scale"""
    count = setting.samples * (truth["TPR"] if name == "missed" else 1)
    return stats.share_interval(value_A1xH1, count=count)


def unchanged(
    value_A1xH1: np.ndarray, setting: Setting, truth: dict[str, float], name: str
) -> Interval:
    """Without the logit scale"""
    del setting, truth, name
    margin = stats.jackknife_margin(value_A1xH1[:, None])
    return float(value_A1xH1[0, 0] - margin), float(value_A1xH1[0, 0] + margin)


def logits_of_parts(
    value_A1xH1: np.ndarray, setting: Setting, truth: dict[str, float], name: str
) -> Interval:
    """Logit of each part"""
    del setting, truth, name
    with np.errstate(divide="ignore"):
        logit_A1xH1 = scipy.special.logit(value_A1xH1)
    if not np.isfinite(logit_A1xH1).all():
        return math.nan, math.nan
    margin = stats.jackknife_margin(logit_A1xH1[:, None])
    low, high = scipy.special.expit(logit_A1xH1[0, 0] + np.array([-margin, margin]))
    return float(low), float(high)


def samples_only(
    value_A1xH1: np.ndarray, setting: Setting, truth: dict[str, float], name: str
) -> Interval:
    """Samples only"""
    return chosen(value_A1xH1[:1], setting, truth, name)


METHODS: tuple[Callable[..., Interval], ...] = (chosen, unchanged, logits_of_parts, samples_only)


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How often intervals contain the truth, and how wide they are."""

    covered: float
    """Share of the rounds with an interval."""
    given: float
    """Share of the rounds that have an interval."""
    width: float
    """Median width."""
    relative_width: float
    """Median width divided by that of an interval from the true standard deviation."""
    mean_relative_width: float

    @property
    def text(self) -> str:
        """Returns a cell of a table."""
        none = f"; none in {100 * (1 - self.given):.0f} %" if self.given < 0.995 else ""
        width = 100 * self.width
        digits = f"{width:.0f}" if width >= 10 else f"{width:.2g}"
        return f"{100 * self.covered:.1f} ({digits}{none})"


def coverage_of(intervals: Sequence[Interval], estimate_E: np.ndarray, truth: float) -> Coverage:
    """Summarizes the intervals of all rounds."""
    low_E, high_E = np.array(intervals).T
    given_E = ~np.isnan(low_E)
    if not given_E.any():
        return Coverage(math.nan, 0.0, math.nan, math.nan, math.nan)
    width_E = (high_E - low_E)[given_E]
    known = 2 * 1.96 * np.nanstd(estimate_E)
    covered_E = (low_E <= truth) & (truth <= high_E)
    return Coverage(
        float(covered_E[given_E].mean()),
        float(given_E.mean()),
        float(np.median(width_E)),
        float(np.median(width_E) / known),
        float(width_E.mean() / known),
    )


def evaluate(
    setting: Setting, rounds: int
) -> tuple[dict[str, float], dict[tuple[str, str], Coverage], dict[str, float]]:
    """Returns (truth, {(method, number): coverage}, {number: share of rounds in which the attacks seem to differ})."""
    experiments = simulate(setting, rounds)
    coverages, differs = {}, {}
    for name, value_KxExA1xH1 in experiments.value_KxExA1xH1.items():
        first_ExA1xH1, second_ExA1xH1 = value_KxExA1xH1
        estimate_E, truth = first_ExA1xH1[:, 0, 0], experiments.truth[name]
        for method in METHODS:
            if method is samples_only and setting.trainings == 1:
                continue
            intervals = [method(v, setting, experiments.truth, name) for v in first_ExA1xH1]
            coverages[str(method.__doc__), name] = coverage_of(intervals, estimate_E, truth)
        if name == "missed":
            continue
        if setting.trainings > 1:
            rate_ExTxH1 = experiments.rate_KxExTxH1[name][0]
            ends = [stats.mean_rate_interval(r[:, :1], r[:, 1:, None]) for r in rate_ExTxH1]
            intervals = [(float(low[0]), float(high[0])) for low, high in ends]
            coverages["`mean_rate_interval`", name] = coverage_of(intervals, estimate_E, truth)
        ends = [
            stats.difference_interval(first, second)
            for first, second in zip(first_ExA1xH1, second_ExA1xH1, strict=True)
        ]
        differs[name] = float(np.mean([low > 0 or high < 0 for low, high in ends]))
    return experiments.truth, coverages, differs


def section(title: str, settings: Sequence[Setting], rounds: int) -> None:
    """Prints a row for each setting, a summary by number of trainings, and one by method."""
    numbers = ("TPR", "AUC", "missed") if settings[0].are_replicas else ("TPR", "AUC")
    chosen_name = str(chosen.__doc__)
    header = "trainings", "samples of a class, FPR", "noise, correlation", "true TPR"
    print(f"\n{title}, {rounds} rounds:\n")
    _print_row(*header, *numbers, "TPR differs", "AUC differs")
    print("|---" * (6 + len(numbers)) + "|", flush=True)
    results = []
    for setting in settings:
        truth, coverages, differs = evaluate(setting, rounds)
        results.append((setting.trainings, coverages, differs))
        _print_row(
            str(setting.trainings),
            f"{setting.samples:,}, {setting.fpr:.0%}",
            setting.name,
            f"{100 * truth['TPR']:.1f}",
            *(coverages[chosen_name, name].text for name in numbers),
            *(f"{100 * differs[name]:.1f}" for name in ("TPR", "AUC")),
        )
    print("\nMean, lowest and highest:\n")
    _print_row("trainings", *numbers, "median width, 1 = known SD", "TPR differs", "AUC differs")
    print("|---" * (4 + len(numbers)) + "|")
    for trainings in sorted({count for count, _, _ in results}):
        of_count = [(c, d) for count, c, d in results if count == trainings]
        widths = (
            f"{np.mean([c[chosen_name, name].relative_width for c, _ in of_count]):.2f}"
            for name in numbers
        )
        _print_row(
            str(trainings),
            *(
                _mean_and_ends([c[chosen_name, name].covered for c, _ in of_count])
                for name in numbers
            ),
            ", ".join(widths),
            *(_mean_and_ends([d[name] for _, d in of_count]) for name in ("TPR", "AUC")),
        )
    print("\nMean and lowest coverage; mean of the median and of the mean widths, 1 = known SD:\n")
    _print_row("method", *numbers)
    print("|---" * (1 + len(numbers)) + "|")
    for method in dict.fromkeys(method for _, c, _ in results for method, _ in c):
        cells = []
        for name in numbers:
            of_method = [c[method, name] for _, c, _ in results if (method, name) in c]
            cells.append(_summary(of_method))
        _print_row(method, *cells)


def _summary(coverages: Sequence[Coverage]) -> str:
    if not coverages:
        return ""
    covered = np.array([c.covered for c in coverages])
    given = np.mean([c.given for c in coverages])
    none = f"; none in {100 * (1 - given):.0f} %" if given < 0.995 else ""
    widths = [
        np.nanmean([getattr(c, n) for c in coverages])
        for n in ("relative_width", "mean_relative_width")
    ]
    return f"{100 * np.nanmean(covered):.1f}, {100 * np.nanmin(covered):.1f}; {widths[0]:.2f}, {widths[1]:.2f}{none}"


def _mean_and_ends(shares: Sequence[float]) -> str:
    return f"{100 * np.mean(shares):.1f} ({100 * min(shares):.1f} to {100 * max(shares):.1f})"


def _print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def two_way_bootstrap(
    score_TxN2: np.ndarray, fpr: float, replicates: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws trainings and samples with replacement; returns (tpr_R, missed_R).

    A pair of two copies of one training is no pair.
    """
    trainings, samples = len(score_TxN2), score_TxN2.shape[1] // 2
    member_TxN = score_TxN2[:, :samples]
    nonmember_TxN = -np.sort(-score_TxN2[:, samples:], axis=1)
    order_TxN = np.argsort(-score_TxN2[:, samples:], axis=1)
    allowed = int(fpr * samples + 1e-9)
    tpr_R, missed_R = np.full((2, replicates), np.nan)
    for r in range(replicates):
        weight_T = np.bincount(rng.integers(trainings, size=trainings), minlength=trainings)
        weight_2xN = [
            np.bincount(rng.integers(samples, size=samples), minlength=samples) for _ in range(2)
        ]
        reached_TxN = np.cumsum(weight_2xN[0][order_TxN], axis=1)
        position_T = np.maximum((reached_TxN <= allowed).sum(axis=1) - 1, 0)
        threshold_Tx1 = nonmember_TxN[np.arange(trainings), position_T][:, None]
        is_found_TxN = (member_TxN >= threshold_Tx1).astype(float)
        both_TxT = (is_found_TxN * weight_2xN[1]) @ is_found_TxN.T / samples
        tpr_T = np.diag(both_TxT)
        tpr_R[r] = weight_T @ tpr_T / trainings
        pairs_TxT = np.outer(weight_T, weight_T) * (1 - np.eye(trainings))
        found = (pairs_TxT * tpr_T).sum()
        if found:
            missed_R[r] = 1 - (pairs_TxT * both_TxT).sum() / found
    return tpr_R, missed_R


def bootstrap(rounds: int, replicates: int) -> None:
    """Prints the coverage of bootstraps beside that of the chosen intervals, on the same rounds."""
    print(f"\nBootstraps with {replicates} replicates, {rounds} rounds:\n")
    names = "TPR", "TPR, bootstrap", "TPR, exact", "AUC", "AUC, bootstrap"
    _print_row("one training", "noise, correlation", "true TPR", *names)
    print("|---" * 8 + "|", flush=True)
    for setting in ONE[::3]:
        experiments, scores, _ = _with_scores(setting, rounds)
        member_N2 = np.arange(2 * setting.samples) < setting.samples
        cells: dict[str, list[Interval]] = {name: [] for name in names}
        for e, score_TxN2 in enumerate(scores):
            shown = stats.bootstrap_intervals(
                score_TxN2, member_N2, [setting.fpr], replicates=replicates, seed=e
            )
            exact = stats.tpr_interval(score_TxN2, member_N2, [setting.fpr])
            values = [experiments.value_KxExA1xH1[name][0, e] for name in ("TPR", "AUC")]
            ends = [stats.share_interval(v, count=setting.samples) for v in values]
            cells["TPR"].append(ends[0])
            cells["TPR, bootstrap"].append((shown.tpr_low_TxF[0, 0], shown.tpr_high_TxF[0, 0]))
            cells["TPR, exact"].append((float(exact[0][0, 0]), float(exact[1][0, 0])))
            cells["AUC"].append(ends[1])
            cells["AUC, bootstrap"].append((shown.auc_low_T[0], shown.auc_high_T[0]))
        _print_row(
            f"{setting.samples:,}, {setting.fpr:.0%}",
            setting.name,
            f"{100 * experiments.truth['TPR']:.1f}",
            *(_cell(intervals, experiments, name[:3]) for name, intervals in cells.items()),
        )
    print()
    names = "TPR", "TPR, two-way bootstrap", "missed", "missed, two-way bootstrap"
    _print_row("replicas", "samples of a class, FPR", "noise, correlation", "true TPR", *names)
    print("|---" * 8 + "|", flush=True)
    for setting in _replicas((*FEW_REPLICAS, *MANY_REPLICAS)):
        if setting.samples != 512 or setting.trainings > 12 or not setting.correlation:
            continue
        experiments, scores, rng = _with_scores(setting, rounds)
        cells = {name: [] for name in names}
        for e, score_TxN2 in enumerate(scores):
            for name in ("TPR", "missed"):
                value = experiments.value_KxExA1xH1[name][0, e]
                cells[name].append(chosen(value, setting, experiments.truth, name))
            resampled = two_way_bootstrap(score_TxN2, setting.fpr, replicates, rng)
            for name, value_R in zip(names[1::2], resampled, strict=True):
                low, high = np.nanquantile(value_R, [0.025, 0.975])
                cells[name].append((float(low), float(high)))
        _print_row(
            str(setting.trainings),
            f"{setting.samples:,}, {setting.fpr:.0%}",
            setting.name,
            f"{100 * experiments.truth['TPR']:.1f}",
            *(
                _cell(intervals, experiments, name.split(",")[0])
                for name, intervals in cells.items()
            ),
        )


def _with_scores(
    setting: Setting, rounds: int
) -> tuple[Experiments, np.ndarray, np.random.Generator]:
    """Returns the experiments with the scores of the first attack, score_ExTxN2."""
    gap, rng = gap_of(setting), np.random.default_rng([setting.samples, setting.trainings])
    draws = draw(setting, gap, rounds, rng)
    auc, found = rates(setting, draws)
    return numbers_of(setting, auc, found, gap, rng), draws.score_KxExTxN2[0], rng


def _cell(intervals: Sequence[Interval], experiments: Experiments, name: str) -> str:
    estimate_E = experiments.value_KxExA1xH1[name][0, :, 0, 0]
    return coverage_of(intervals, estimate_E, experiments.truth[name]).text


SECTIONS: dict[str, tuple[str, Sequence[Setting]]] = {
    "one": ("One training", ONE),
    "targets": ("Several targets", TARGETS),
    "few_replicas": ("Two to five replicas", _replicas(FEW_REPLICAS)),
    "many_replicas": ("Eight replicas and more", _replicas(MANY_REPLICAS)),
}


def main() -> None:
    """Prints the tables of the chosen sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*SECTIONS, "bootstrap"]
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--replicates", type=int, default=300)
    args = parser.parse_args()
    if unknown := set(args.sections) - set(names):
        parser.error(f"unknown section: {', '.join(sorted(unknown))}")
    for name in args.sections or names:
        if name == "bootstrap":
            bootstrap(max(args.rounds // 4, 1), args.replicates)
        else:
            section(*SECTIONS[name], args.rounds)


if __name__ == "__main__":
    main()
