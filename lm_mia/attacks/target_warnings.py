"""Warnings about targets whose membership may depend on properties of the samples.

Attacks then find members by these properties, so that true positive rates at low false positive rates may be large even
if the losses of members and non-members do not differ.

T: targets, N: samples, K: covariates, P: columns of the design matrix of a loss model.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import scipy  # its parts are loaded when they are first used

from lm_mia import stats
from lm_mia.attacks import text_membership
from lm_mia.attacks.inputs import AttackInputs, BlockSource, draw_samples
from lm_mia.data.population import Population

MEAN_LOSS = "the mean loss of the references"
_MIN_DIFFERENCE = 0.1  # in standard deviations; a smaller one is usually not considered
_STANDARD_ERRORS = 5  # by which a difference must be more than chance
_MOST_NAMES = 3
_DOUBT = "so TPRs at a low FPR may show that difference instead of what the models learned"


def unusual_targets(
    sources: Iterable[BlockSource], targets: Sequence[str], covariates: Sequence[str]
) -> list[str]:
    """Returns a sentence for each column on which the losses of some targets depend as those of no reference.

    Takes one pass over each source.

    Args:
      sources: the samples under targets that leave out the same references, and under all references.
      targets: the names of all targets, in the order of the sources.
      covariates: the names of the covariates of the samples.
    """
    z_TxP, is_unusual_TxP = [], []
    for source in sources:
        block = draw_samples(source, stats.MAX_FIT_SAMPLES)
        model = stats.fit_loss_model(
            block.loss_TxC,
            block.reference_loss_RxC,
            block.reference_member_RxC,
            covariate_NxK=block.covariate_CxK,
        )
        z_TxP.extend(model.target_z_TxP)
        is_unusual_TxP.extend(model.is_unusual_TxP)
    sentences = []
    columns = MEAN_LOSS, *covariates
    for column, z_T, is_unusual_T in zip(
        columns, np.transpose(z_TxP)[1:], np.transpose(is_unusual_TxP)[1:], strict=True
    ):
        if is_unusual_T.any():
            who, is_one = _who(targets, is_unusual_T)
            sentences.append(
                f"the losses of {who} depend on {column} as those of no reference (|z| up to "
                f"{np.abs(z_T[is_unusual_T]).max():.1f}): {'its' if is_one else 'their'} membership may depend on it, "
                f"{_DOUBT}"
            )
    return sentences


def unlike_classes(
    member_TxN: np.ndarray,
    covariate_NxK: np.ndarray,
    targets: Sequence[str],
    covariates: Sequence[str],
) -> list[str]:
    """Returns a sentence for each covariate in which members and non-members of some targets differ.

    It is for memberships that were not drawn at random, and names differences of means above 0.1 standard deviations
    that are not due to chance.
    """
    sentences = []
    for name, value_N in zip(covariates, np.asarray(covariate_NxK, np.float64).T, strict=True):
        difference_T, chance_T = _differences(member_TxN, value_N)
        differs_T = np.abs(difference_T) > np.maximum(_MIN_DIFFERENCE, chance_T)
        if differs_T.any():
            who, _ = _who(targets, differs_T)
            sentences.append(
                f"members and non-members of {who} differ in {name} by up to "
                f"{np.abs(difference_T[differs_T]).max():.2f} standard deviations, {_DOUBT}"
            )
    return sentences


def unlike_random(
    member_TxN: np.ndarray,
    covariate_NxK: np.ndarray,
    targets: Sequence[str],
    covariates: Sequence[str],
) -> list[str]:
    """Returns a clause for each covariate in which members differ as those drawn at random practically never do.

    Ranks are compared instead of values, since a few extreme values may well be on one side by chance.
    """
    clauses = []
    for name, value_N in zip(covariates, np.asarray(covariate_NxK, np.float64).T, strict=True):
        difference_T, chance_T = _differences(member_TxN, scipy.stats.rankdata(value_N))
        differs_T = np.abs(difference_T) > chance_T
        if differs_T.any():
            who, _ = _who(targets, differs_T)
            clauses.append(f"members and non-members of {who} differ in {name}")
    return clauses


def _differences(member_TxN: np.ndarray, value_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns difference_T of the means of members and non-members, and chance_T, which it rarely exceeds by chance.

    Both are in standard deviations of the values; values that are all equal do not differ.
    """
    difference_T, chance_T = np.zeros(len(member_TxN)), np.full(len(member_TxN), np.inf)
    sd = float(value_N.std())
    if not sd > 1e-9 * float(np.abs(value_N).max(initial=0.0)):
        return difference_T, chance_T
    for t, member_N in enumerate(member_TxN):
        members, nonmembers = int(member_N.sum()), int((~member_N).sum())
        if members and nonmembers:
            means = value_N[member_N].mean(), value_N[~member_N].mean()
            difference_T[t] = (means[0] - means[1]) / sd
            chance_T[t] = _STANDARD_ERRORS * np.sqrt(1 / members + 1 / nonmembers)
    return difference_T, chance_T


def unlike_texts(inputs: AttackInputs, population: Population) -> list[str]:
    """Returns the sentence of `text_membership.describe` about the first target; none if there are too few texts."""
    if not population.has_texts:
        return []
    drawn_S = text_membership.draw_texts(len(population))
    users = [population.column("user")[drawn_S]] if "user" in population.column_names else []
    auc = text_membership.compare_texts(
        population.texts(drawn_S),
        inputs.target_member_TxN2[0][drawn_S],
        [population.document_N[drawn_S], *users],
    )
    of_one = len(inputs.targets) == 1 or inputs.targets[0].role == "replica"
    model = "" if of_one else f"target {inputs.targets[0]}"
    return [] if auc is None else [text_membership.describe(auc, model)]


def warnings(inputs: AttackInputs, population: Population) -> list[str]:
    """Returns the sentences of `unusual_targets`, if there are references, and of the other functions.

    The latter are for memberships that were not drawn at random. What the texts alone tell comes first.
    """
    targets = [*map(str, inputs.targets)]
    sentences: list[str] = []
    if inputs.references:
        sources = [part for _, part in inputs.by_target()]
        sentences = unusual_targets(sources, targets, inputs.covariate_names)
    if inputs.store.design != "given":
        return sentences
    member_TxN2 = inputs.target_member_TxN2
    sentences += unlike_classes(member_TxN2, inputs.covariate_N2xK, targets, inputs.covariate_names)
    return unlike_texts(inputs, population) + sentences


def _who(targets: Sequence[str], is_concerned_T: np.ndarray) -> tuple[str, bool]:
    """Returns words for the targets that are concerned, and whether it is one."""
    names = [
        name for name, is_concerned in zip(targets, is_concerned_T, strict=True) if is_concerned
    ]
    if len(targets) == 1:
        return "the target", True
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{len(names)} of {len(targets)} targets ({shown})", len(names) == 1
