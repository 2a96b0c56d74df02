"""How the training subsets of models are related, and what an attack must leave out because of it.

The score of a sample under a target is a function of the target's loss and of the losses and memberships of its
references. On noise it says nothing about membership only if the target's membership is independent of those of the
references that are used. Models with the same subset, complementary halves and designs in which every sample is in
equally many subsets break this rule, each in its own way.

Legend: M models, N samples, C samples of a block, V samples that show how subsets are related, G groups of models.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.seeds import keys
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_members

_MAX_SAMPLES = 2**14  # samples on which subsets are compared
_RELATED = 0.9  # correlation of subsets that are equal, or complements, but for a few samples
# With fewer members or non-members among the compared samples, independent subsets may agree by chance.
_MIN_OF_CLASS = 16
_COLUMNS_SHARE = 0.99
_MIN_MODELS = 4  # with fewer, the correlations of independent subsets vary too much to be judged
_TOLERATED_BIAS = 0.004  # s / R^1.5; it moves the AUC of LiRA on noise by at most half of this with pooled variances
_MAX_STEPS = 1000
_DEVIATIONS = 5  # standard deviations by which correlations may be off by chance


@dataclasses.dataclass(frozen=True)
class Design:
    """How the training subsets of models are related, the result of `design_of`."""

    group_M: IntArray
    """The group of each model, numbered from 0 in the order of the models. The subsets of a group are equal or
    complements of each other, so a target is attacked without its whole group."""
    subset_M: IntArray
    """The subset of each model, numbered in the same way: equal subsets have the same number."""
    columns: bool = False
    """Whether every sample is in the same number of subsets, so that each target needs `partners`. Then groups have
    equal subsets only."""
    fixed: tuple[int, ...] = ()
    """Models that were trained on all of the samples that vary over the other models, or on none of them."""
    overlap: tuple[int, int] | None = None
    """If the subsets overlap otherwise than by independent draws, two models whose subsets do; None: they do not."""

    @property
    def has_complements(self) -> bool:
        """Whether some models were trained on complements of the subsets of others, as in a balanced design."""
        return bool((self.group_M != self.subset_M).any())

    @property
    def is_independent(self) -> bool:
        """Whether all subsets may have been drawn independently, so that only the target itself is left out."""
        return len(np.unique(self.group_M)) == len(self.group_M) and not (
            self.columns or self.overlap
        )

    def select(self, index_R: np.ndarray) -> Design:
        """Returns the design of some of the models, in the given order.

        Partners cannot be drawn among some of the models only, so it is not for designs with columns.
        """
        assert not self.columns, "partners are drawn among all models"
        return Design(
            _numbered(self.group_M[index_R]),
            _numbered(self.subset_M[index_R]),
            overlap=self.overlap,
        )


def design_of(member_MxN: ArrayLike, attacked_T: ArrayLike | None = None) -> Design:
    """Finds how the training subsets of models are related.

    Correlations of subsets are computed on the samples that some models were trained on and others were not, so that
    samples that no model was trained on change nothing.

    - Two models are in one group if the correlation of their subsets is above 0.9 or below -0.9 and both have at least
      16 members and 16 non-members among these samples. If there are two models only, all samples are compared.
    - If there are no complements and 99% of the samples are in the same number of distinct subsets (at least 2, and at
      most 2 fewer than there are subsets), every member has one IN reference fewer than every non-member. The training
      script of Carlini et al. 2022 makes such designs.
    - Otherwise the correlations of each model with all models outside its group are added, after subtracting what
      independent subsets have. On noise, the sum s moves the AUC of LiRA with pooled variances by s / (2 R^1.5) for R
      references. Subsets overlap if s is too large, or its mean over the models is, both for this bias and for chance.
      If only the models `attacked_T` are attacked, the subsets of the others may be related in any way, as long as none
      of these models has a sum that is too large. It is the sum of the correlations with the other models, on the
      samples that vary over the models outside its group, where those of independent subsets are 0.

    Args:
      member_MxN: booleans, whether each sample was in each model's training subset.
      attacked_T: positions of the models that are attacked, with the other models as references. By default, each model
        is attacked with all others as references.

    Returns:
      The design. Models without a relation each have a group of their own.

    Raises:
      ValueError: if member_MxN is not boolean or has not two dimensions.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import design_of
      >>> half_2xN = np.random.default_rng(0).random((2, 1000)) < 0.5
      >>> design_of(np.concatenate([half_2xN, ~half_2xN])).group_M
      array([0, 1, 0, 1])
    """
    member_MxN = as_members(member_MxN)
    if member_MxN.ndim != 2:
        raise ValueError(f"members of shape {member_MxN.shape}: must be models x samples")
    models = len(member_MxN)
    is_attacked_M = np.ones(models, np.bool_)
    if attacked_T is not None:
        is_attacked_M = np.isin(np.arange(models), np.asarray(attacked_T, np.int64))
    any_N, all_N = np.logical_or.reduce(member_MxN), np.logical_and.reduce(member_MxN)
    member_MxV = member_MxN[:, design_samples(any_N, all_N, models)]
    alone_M = np.arange(models)
    if not member_MxV.size:
        return Design(alone_M, alone_M)
    is_fixed_M, is_varying = np.zeros(models, np.bool_), bool((any_N & ~all_N).any())
    if models > 2 and is_varying:
        is_fixed_M, member_MxV = _drawn(member_MxV)
    fixed = tuple(np.flatnonzero(is_fixed_M).tolist())
    phi_MxM = _correlations(member_MxV)
    if (
        fixed and models - len(fixed) == 2
    ):  # any two are complements on the samples that vary over them
        phi_MxM = np.eye(models)
    has_enough_M = (member_MxV.sum(axis=1) >= _MIN_OF_CLASS) & (
        (~member_MxV).sum(axis=1) >= _MIN_OF_CLASS
    )
    is_related_MxM = (np.abs(phi_MxM) > _RELATED) & has_enough_M & has_enough_M[:, None]
    subset_M, group_M = _classes(is_related_MxM & (phi_MxM > 0)), _classes(is_related_MxM)
    if models < 3 or not is_varying or not member_MxV.size:
        return Design(group_M, subset_M, fixed=fixed)
    first_G = np.unique(subset_M, return_index=True)[1]
    first_G = first_G[~is_fixed_M[first_G]]
    count_V = member_MxV[first_G].sum(axis=0)
    has_complements = bool((group_M != subset_M).any())
    if not has_complements and _is_constant(count_V, len(first_G)):
        return Design(group_M, subset_M, columns=True, fixed=fixed)
    overlap = None
    if len(alone_M) - len(fixed) >= _MIN_MODELS and not is_attacked_M.all():
        overlap = _overlap_of_attacked(member_MxV, group_M, subset_M, is_fixed_M, is_attacked_M)
    elif len(alone_M) - len(fixed) >= _MIN_MODELS:
        if not has_complements:
            phi0_GxG = independent_phi(member_MxV[first_G].mean(axis=1))
            place_M = np.searchsorted(first_G, _first_of_subset(subset_M)[~is_fixed_M])
            phi_MxM[np.ix_(~is_fixed_M, ~is_fixed_M)] -= phi0_GxG[np.ix_(place_M, place_M)]
        is_other_MxM = (group_M[:, None] != group_M) & ~is_fixed_M & ~is_fixed_M[:, None]
        excess_MxM = np.where(is_other_MxM, phi_MxM, 0.0)
        if _is_too_large(excess_MxM, is_other_MxM, subset_M[~is_fixed_M], len(count_V)):
            low, high = sorted(divmod(int(np.abs(excess_MxM).argmax()), models))
            overlap = low, high
    return Design(group_M, subset_M, fixed=fixed, overlap=overlap)


def check_no_overlap(design: Design) -> None:
    """Raises ValueError, naming two models, if the subsets of a design overlap otherwise than by independent draws."""
    if design.overlap:
        first, second = design.overlap
        raise ValueError(
            f"member_MxN: the training subsets of models {first} and {second} overlap more or less than independent "
            "ones do, so the other models reveal the members of each; use models with independently drawn subsets, "
            "complementary halves, or every sample in the same number of subsets"
        )


def design_samples(any_N: BoolArray, all_N: BoolArray, models: int) -> IntArray:
    """Returns index_V, the samples on which `design_of` compares subsets.

    They are at most 2^14, evenly spaced among the samples that vary over models. The result of `design_of` for these
    samples is that for all samples. Of two models, all samples are compared: on those that vary, any two are
    complements. If none varies, these are all samples, too.

    Args:
      any_N: booleans, whether each sample is in the subset of some model.
      all_N: whether it is in those of all models.
      models: number of models.
    """
    varying_V = np.flatnonzero(any_N & ~all_N)
    if models < 3 or not len(varying_V):
        return np.arange(len(any_N))
    used = np.linspace(0, max(len(varying_V) - 1, 0), min(len(varying_V), _MAX_SAMPLES))
    return varying_V[used.astype(np.int64)]


def independent_phi(share_G: ArrayLike) -> FloatArray:
    """Returns phi_GxG, the correlations that independent subsets have on the samples that vary over the models.

    Given that a sample is in at least one and not in all subsets, its memberships are correlated, by
    -1 / (2^(G - 1) - 1) for halves. The diagonal has no meaning.

    Args:
      share_G: the share of these samples that is in each subset, above 0 and below 1.
    """
    share_G = np.asarray(share_G, np.float64)
    # With shares p_G of all samples, of which the share v varies, share_G = (p_G - prod p_G) / v.
    p_G, varying = share_G, 0.0
    for _ in range(_MAX_STEPS):
        in_all = float(np.prod(p_G))
        last, varying = varying, 1 - in_all - float(np.prod(1 - p_G))
        p_G = share_G * varying + in_all
        if abs(varying - last) < 1e-12:
            break
    sd_G = np.sqrt(share_G * (1 - share_G))
    both_GxG = (p_G[:, None] * p_G - np.prod(p_G)) / varying
    return (both_GxG - share_G[:, None] * share_G) / (sd_G[:, None] * sd_G)


def partners(design: Design, member_MxC: BoolArray, id_C: IntArray) -> IntArray:
    """Draws what else is left out where every sample is in the same number k of G subsets (`Design.columns`).

    Each (subset, sample) has a random partner among the subsets of the other class. Without a target and its partner,
    k - 1 IN and G - k - 1 OUT subsets remain for members and non-members alike, and each choice of them is equally
    likely in both cases. So nothing about membership is revealed, whatever the losses and the attack. A partner is a
    function of the ids, so it is the same in any block of samples. Scores must not be averaged over several draws.

    Args:
      design: the design of all models.
      member_MxC: booleans, the members of all models of the design, even if only some of them are references.
      id_C: ids of the samples.

    Returns:
      partner_GxC: for each group, the one that is left out as well; -1 where all subsets are in the same class, and for
      fixed models.
    """
    first_M = np.unique(design.group_M, return_index=True)[1]
    drawn_G = np.flatnonzero(~np.isin(first_M, design.fixed))  # fixed models are never partners
    member_GxC = member_MxC[first_M[drawn_G]]
    G = len(drawn_G)
    key_GxC = np.stack([keys(0, f"partner of subset {g}", id_C) for g in drawn_G])
    # All IN subsets come first, each class in the order of the upper 63 bits of its keys.
    key_GxC = (key_GxC >> np.uint64(1)) | (~member_GxC).astype(np.uint64) << np.uint64(63)
    order_GxC = np.argsort(key_GxC, axis=0, kind="stable")
    place_GxC = np.empty_like(order_GxC)
    np.put_along_axis(place_GxC, order_GxC, np.arange(G)[:, None], axis=0)
    in_C = member_GxC.sum(axis=0)
    out_C = G - in_C
    # The subset with the place r in its class has the partner with the place r modulo the size of the other class.
    of_in_GxC = in_C + place_GxC % np.maximum(out_C, 1)
    of_out_GxC = (place_GxC - in_C) % np.maximum(in_C, 1)
    partner_place_GxC = np.minimum(np.where(member_GxC, of_in_GxC, of_out_GxC), G - 1)
    partner_of_drawn_GxC = drawn_G[np.take_along_axis(order_GxC, partner_place_GxC, axis=0)]
    partner_GxC = np.full((len(first_M), member_MxC.shape[1]), -1)
    partner_GxC[drawn_G] = np.where((in_C == 0) | (out_C == 0), -1, partner_of_drawn_GxC)
    return partner_GxC


def left_out(design: Design, member_MxC: BoolArray, model: int, id_C: IntArray) -> BoolArray:
    """Returns is_left_out_MxC: what must not be used in an attack on a model: its group, and partners if needed.

    Args:
      design: the design of all models, of which the target is one.
      member_MxC: booleans, the members of all models of the design.
      model: index of the target.
      id_C: ids of the samples.
    """
    group = design.group_M[model]
    is_left_out_MxC = np.broadcast_to((design.group_M == group)[:, None], member_MxC.shape)
    if design.columns:
        partner_C = partners(design, member_MxC, id_C)[group]
        is_left_out_MxC = is_left_out_MxC | (design.group_M[:, None] == partner_C)
    return is_left_out_MxC


def complements(design: Design) -> IntArray:
    """Returns complement_M: for each model one with the complement of its subset, another one for each; -1 without."""
    complement_M = np.full(len(design.group_M), -1)
    for group in np.unique(design.group_M[design.group_M != design.subset_M]):
        index_R = np.flatnonzero(design.group_M == group)
        is_first_R = design.subset_M[index_R] == design.subset_M[index_R[0]]
        for m, other in zip(index_R[is_first_R], index_R[~is_first_R], strict=False):
            complement_M[m], complement_M[other] = other, m
    return complement_M


def _drawn(member_MxV: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Returns is_fixed_M, and member_MxV on the samples that vary over the other models.

    Models that were trained on none of the samples, or on all, would hide which samples vary over the others.
    """
    while True:
        is_fixed_M = (member_MxV == member_MxV[:, :1]).all(axis=1)
        drawn_RxV = member_MxV[~is_fixed_M]
        is_varying_V = np.logical_or.reduce(drawn_RxV) & ~np.logical_and.reduce(drawn_RxV)
        if is_varying_V.all():
            return is_fixed_M, member_MxV
        member_MxV = member_MxV[:, is_varying_V]


def _correlations(member_MxV: BoolArray) -> FloatArray:
    """Returns phi_MxM; 0 for a model with no member or no non-member."""
    # Counts below 2^24 are exact in float32.
    value_MxV = member_MxV.astype(np.float32)
    both_MxM = (value_MxV @ value_MxV.T).astype(np.float64)
    V, count_M = value_MxV.shape[1], np.diag(both_MxM)
    sd_M = np.sqrt(count_M * (V - count_M))
    scale_MxM = sd_M[:, None] * sd_M
    covariance_MxM = both_MxM * V - count_M[:, None] * count_M
    zeros_MxM = np.zeros_like(scale_MxM)
    return np.divide(covariance_MxM, scale_MxM, out=zeros_MxM, where=scale_MxM > 0)


def _classes(is_related_MxM: BoolArray) -> IntArray:
    """Returns the class of each model: models that are related, also by way of others, have the same."""
    return _numbered(scipy.sparse.csgraph.connected_components(is_related_MxM, directed=False)[1])


def _numbered(class_M: ArrayLike) -> IntArray:
    """Numbers classes from 0 in the order in which they appear."""
    _, first_K, class_M = np.unique(class_M, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_K))[class_M]


def _is_constant(count_V: IntArray, subsets: int) -> bool:
    """Returns whether nearly all samples are in the same number of subsets, of which some remain in both classes."""
    k = int(np.bincount(count_V).argmax())
    has_enough = len(count_V) >= 2 * _MIN_OF_CLASS and 2 <= k <= subsets - 2
    return bool(has_enough and (count_V == k).mean() >= _COLUMNS_SHARE)


def _first_of_subset(subset_M: IntArray) -> IntArray:
    _, first_K, number_M = np.unique(subset_M, return_index=True, return_inverse=True)
    return first_K[number_M]


def _overlap_of_attacked(
    member_MxV: BoolArray,
    group_M: IntArray,
    subset_M: IntArray,
    is_fixed_M: BoolArray,
    is_attacked_M: BoolArray,
) -> tuple[int, int] | None:
    """Returns an attacked model and the reference with which its subset overlaps most, if it overlaps too much.

    The subsets of references may be related, since only those of attacked models must be independent of theirs.
    """
    worst, overlap = 1.0, None
    for t in np.flatnonzero(is_attacked_M & ~is_fixed_M):
        is_other_M = (group_M != group_M[t]) & ~is_fixed_M
        is_reference_M = is_other_M & ~is_attacked_M
        if not is_reference_M.any():
            continue
        other_RxV = member_MxV[is_other_M]
        is_varying_V = np.logical_or.reduce(other_RxV) & ~np.logical_and.reduce(other_RxV)
        phi_R = _correlations(
            member_MxV[np.append(np.flatnonzero(is_reference_M), t)][:, is_varying_V]
        )[-1, :-1]
        size_G = np.bincount(subset_M[is_reference_M])
        chance = _DEVIATIONS * np.sqrt(np.square(size_G).sum() / max(int(is_varying_V.sum()), 1))
        allowed = max(_TOLERATED_BIAS * len(phi_R) ** 1.5, chance)
        if (ratio := abs(phi_R.sum()) / allowed) > worst:
            most = np.flatnonzero(is_reference_M)[int(np.abs(phi_R).argmax())]
            low, high = sorted((int(t), int(most)))
            worst, overlap = ratio, (low, high)
    return overlap


def _is_too_large(
    excess_MxM: FloatArray, is_other_MxM: BoolArray, subset_M: IntArray, samples: int
) -> bool:
    """Returns whether sums of correlations bias scores by more than is tolerated and more than they vary by chance."""
    sum_M = excess_MxM.sum(axis=1)
    references = int(is_other_MxM.sum(axis=1).max())
    tolerated = _TOLERATED_BIAS * references**1.5
    size_G = np.bincount(subset_M)  # models with the same subset vary together
    chance = _DEVIATIONS * np.sqrt(np.square(size_G).sum() / samples)
    chance_of_mean = _DEVIATIONS * size_G.max() * np.sqrt(2 / samples)
    return bool(
        np.abs(sum_M).max() > max(tolerated, chance)
        or abs(sum_M.mean()) > max(tolerated, chance_of_mean)
    )
