"""Attacks on losses that are in arrays instead of a score store, for `lm-mia audit`.

T: targets, M: references, N: samples, C: samples of a block, K: covariates of a sample.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lm_mia import config, stats
from lm_mia.attacks import registry, target_warnings
from lm_mia.attacks.designs import ModelDesign
from lm_mia.attacks.headline import headline_attack
from lm_mia.attacks.inputs import (
    BLOCK_SAMPLES,
    Block,
    FitInputs,
    covariate_names,
    sample_covariates,
    with_base,
)
from lm_mia.attacks.registry import FittedAttack
from lm_mia.attacks.score_matrix import map_in_order
from lm_mia.data import loss_units
from lm_mia.data.score_arrays import SAMPLE_COLUMNS, Losses
from lm_mia.errors import UserError

ATTACKS = tuple(n for n in config.Attack().attacks if not registry.ATTACKS[n].uses_texts)
"""The attacks that are made; they need nothing but the losses of targets and references."""


def attacks_on(losses: Losses, design: ModelDesign, *, is_random: bool) -> list[str]:
    """Returns the attacks that the losses allow, the one that the result is named by first (`headline_attack`).

    Args:
      losses: the losses of targets and references.
      design: the result of `find_design`.
      is_random: whether the members of the targets were drawn at random.
    """
    targets, references = len(losses.target_loss_TxN), len(losses.reference_loss_MxN)
    group_M = design.design.group_M
    is_left_out_R = np.isin(group_M[targets:], group_M[:targets])
    first = headline_attack(
        is_random=is_random,
        references=references - int(is_left_out_R.sum()) - design.design.columns,
        has_in=bool(design.has_members_M[targets:].any()),
        has_pairs=design.design.has_complements,
        has_base=losses.base_loss_N is not None,
    )
    attacks: list[str] = [*ATTACKS] if references else ["loss"]
    attacks = [*(["base_calibrated"] if losses.base_loss_N is not None else []), *attacks]
    return [first, *(attack for attack in attacks if attack != first)]


@dataclasses.dataclass(frozen=True)
class LossBlocks:
    """The losses of an npz file, a block of samples at a time."""

    losses: Losses
    design: ModelDesign
    """The design of the targets and then the references."""
    targets: range
    """The targets, which leave out the same references."""

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.losses.target_loss_TxN.shape[1]

    def blocks(self) -> Iterator[Block]:
        """Yields all samples in order."""
        losses, base_N = self.losses, self.losses.base_loss_N
        covariate_NxK, _ = _covariates(losses)
        for low in range(0, self.num_samples, BLOCK_SAMPLES):
            at = slice(low, min(low + BLOCK_SAMPLES, self.num_samples))
            members = losses.target_member_TxN[:, at], losses.reference_member_MxN[:, at]
            first = len(members[0])
            is_used_RxC, has_score_TxC = self.design.use(
                self.targets,
                range(first, first + len(members[1])),
                np.concatenate(members),
                np.arange(at.start, at.stop),
            )
            reference_loss_MxC = np.ascontiguousarray(losses.reference_loss_MxN[:, at])
            if not is_used_RxC.all():
                reference_loss_MxC = np.where(is_used_RxC, reference_loss_MxC, np.nan)
            yield Block(
                at,
                np.ascontiguousarray(losses.target_loss_TxN[self.targets, at]),
                reference_loss_MxC,
                np.ascontiguousarray(members[1]),
                {},
                np.zeros(at.stop - at.start),  # used only by attacks on texts
                covariate_NxK[at],
                has_score_TxC,
                None if base_N is None else base_N[at],
            )


def check_unit(losses: Losses, source: str) -> None:
    """Raises UserError if losses are not in nats per token, as far as a part of the samples shows."""
    drawn_S = loss_units.draw_samples(losses.target_loss_TxN.shape[1])
    names = [f"row {t} of 'target_loss_TxN'" for t in range(len(losses.target_loss_TxN))]
    names += [f"row {m} of 'reference_loss_MxN'" for m in range(len(losses.reference_loss_MxN))]
    tokens_N = losses.columns_N.get("tokens")
    loss_units.check_units(
        source,
        names,
        np.concatenate([losses.target_loss_TxN[:, drawn_S], losses.reference_loss_MxN[:, drawn_S]]),
        np.concatenate(
            [losses.target_member_TxN[:, drawn_S], losses.reference_member_MxN[:, drawn_S]]
        ),
        None if tokens_N is None else tokens_N[drawn_S],
    )


def find_design(losses: Losses, source: str) -> ModelDesign:
    """Returns how the training subsets of the targets and then the references are related.

    Raises:
      UserError: if they overlap, so that no attack is valid. The message names two rows.
    """
    member_MxN = np.concatenate([losses.target_member_TxN, losses.reference_member_MxN])
    targets = len(losses.target_member_TxN)
    design = stats.design_of(member_MxN, attacked_T=np.arange(targets))
    if design.overlap:
        first, second = (
            f"row {m} of 'target_member_TxN'"
            if m < targets
            else f"row {m - targets} of 'reference_member_MxN'"
            for m in design.overlap
        )
        raise UserError(
            f"{source}: the training subsets of {first} and {second} overlap more or less than independent ones do, so "
            "the references reveal the members of the targets; use models whose subsets were drawn independently"
        )
    return ModelDesign((), design, np.logical_or.reduce(member_MxN, axis=1))


def describe_design(model_design: ModelDesign, targets: int) -> list[str]:
    """Returns a sentence about references that are left out; none if none is."""
    design = model_design.design
    if design.columns:
        return [
            "every sample is in the same number of training subsets, so that the references reveal the members; a "
            "random reference of the other class is left out for each target and sample"
        ]
    is_of_target_M = np.isin(design.group_M, design.group_M[:targets])
    if left_out := int(is_of_target_M[targets:].sum()):
        return [
            f"{left_out} of {len(design.group_M) - targets} references were trained on the same samples as a target, "
            "or on all others, and are left out for it"
        ]
    return []


def find_warnings(losses: Losses, design: ModelDesign, *, is_random: bool) -> list[str]:
    """Returns sentences about targets whose membership may depend on properties of the samples.

    Args:
      losses: the losses of targets and references.
      design: the result of `find_design`.
      is_random: whether the members of the targets were drawn at random.
    """
    targets = [f"row {t}" for t in range(len(losses.target_loss_TxN))]
    covariate_NxK, names = _covariates(losses)
    sentences: list[str] = []
    if len(losses.reference_loss_MxN):
        sources = [LossBlocks(losses, design, part) for part in design.parts(range(len(targets)))]
        sentences = target_warnings.unusual_targets(sources, targets, names)
    if is_random:
        return sentences
    return sentences + target_warnings.unlike_classes(
        losses.target_member_TxN, covariate_NxK, targets, names
    )


def _covariates(losses: Losses) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the covariates of the samples and their names: the loss of the base, and what `SAMPLE_COLUMNS` say.

    The latter are left out unless the file has all of them.
    """
    column, base_N = losses.columns_N.__getitem__, losses.base_loss_N
    covariate_NxK, names = np.empty((losses.target_loss_TxN.shape[1], 0), np.float32), ()
    if len(losses.columns_N) == len(SAMPLE_COLUMNS):
        covariate_NxK, names = sample_covariates(column), covariate_names(column)
    return with_base(covariate_NxK, names, base_N)


def score_attack(
    losses: Losses, attack: str, design: ModelDesign, pool: ThreadPoolExecutor
) -> np.ndarray:
    """Returns score_TxN of an attack, with the default settings of `lm_mia.config.Attack`.

    Args:
      losses: the losses of targets and references.
      attack: one of `ATTACKS`.
      design: the result of `find_design`.
      pool: threads that compute parts of the samples.
    """
    score_TxN = np.empty(losses.target_loss_TxN.shape)
    for targets in design.parts(range(len(score_TxN))):
        inputs = LossBlocks(losses, design, targets)
        fitted = registry.fit_attack(attack, FitInputs(inputs), vars(config.Attack()))

        def score(part: Block, targets: range = targets, fitted: FittedAttack = fitted) -> None:
            score_TxN[targets.start : targets.stop, part.at] = fitted(part)

        for block in inputs.blocks():
            for _ in map_in_order(pool, score, block.split()):
                pass
    return score_TxN
