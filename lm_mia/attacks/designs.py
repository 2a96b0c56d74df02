"""How the training subsets of the models of a store are related, and what attacks on them leave out because of it.

The subsets that we draw ourselves are independent, or complements of each other in the balanced design. Imported models
may have any subsets, so theirs are compared (`stats.design_of`).

M: models, T: targets, R: references, C: samples of a block, V: samples that show how subsets are related.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lm_mia import stats
from lm_mia.data import subsets
from lm_mia.data.subsets import Design, ModelSeeds
from lm_mia.errors import UserError
from lm_mia.stats import design as stats_design


class LossSource(Protocol):
    """Losses and members of models, which attacks read: those of a score store, or in memory."""

    @property
    def design(self) -> Design:
        """How the training subsets were drawn."""
        ...

    @property
    def path(self) -> Any:
        """Where the losses come from, for messages."""
        ...

    @property
    def first_canary(self) -> int:
        """The id of the first sample that training subsets are drawn from."""
        ...

    def models(self) -> list[ModelSeeds]:
        """Returns all models, also those without losses."""
        ...

    def canary_blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int = ...
    ) -> Iterable[tuple[slice, dict[str, np.ndarray]]]:
        """Yields blocks of attacked samples: their positions, and {name of a request: value_MxC}.

        Args:
          requests: name -> (variable, models), such as ("loss", models).
          size: the number of samples of a block.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ModelDesign:
    """The subsets of all models whose memberships are known, of which some are targets and some are references."""

    models: tuple[ModelSeeds, ...]
    """References, and the first replica in place of all models that share its subset; for arrays there are none."""
    design: stats.Design
    has_members_M: np.ndarray
    """Whether each model was trained on any sample."""

    def index(self, models: Sequence[ModelSeeds]) -> list[int]:
        """Returns the positions of models, or of the models in whose place they are."""
        return [self.models.index(_of_subset(model)) for model in models]

    def parts(self, index_T: Sequence[int]) -> Iterator[range]:
        """Yields consecutive targets that leave out the same references: all, if no reference is left out."""
        design, first = self.design, 0
        is_related = design.columns or len(np.unique(design.group_M)) < len(design.group_M)
        groups = [design.group_M[m] if is_related else 0 for m in index_T]
        for t in range(1, len(groups) + 1):
            if t == len(groups) or groups[t] != groups[first]:
                yield range(first, t)
                first = t

    def use(
        self,
        index_T: Sequence[int],
        index_R: Sequence[int],
        member_MxC: np.ndarray,
        id_C: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what attacks on some targets may use.

        Args:
          index_T: positions of targets of one part.
          index_R: positions of the references of the attack.
          member_MxC: the members of all models of the design.
          id_C: ids of the samples.

        Returns:
          ``(is_used_RxC, has_score_TxC)``: the losses of the references that may be used, and whether the models that
          are not left out include one that was trained on the sample and one that was not. If no reference was trained
          on any sample, all samples have a score, since they do not differ in the number of references.
        """
        is_used_by = {
            m: ~stats_design.left_out(self.design, member_MxC, m, id_C) for m in {*index_T}
        }
        has_score = {
            m: np.logical_or.reduce(member_MxC & is_used_MxC)
            & np.logical_or.reduce(~member_MxC & is_used_MxC)
            for m, is_used_MxC in is_used_by.items()
        }
        has_score_TxC = np.array([has_score[m] for m in index_T])
        if not self.has_members_M[index_R].any():
            has_score_TxC[:] = True
        # All targets of a part leave out the same references. Targets without a relation leave out only themselves.
        return (
            np.logical_and.reduce([is_used_MxC[index_R] for is_used_MxC in is_used_by.values()]),
            has_score_TxC,
        )


def _of_subset(model: ModelSeeds) -> ModelSeeds:
    """Returns the model in whose place a model is: the first replica for all that share its subset."""
    return model if model.role == "reference" else subsets.replica(0)


def model_design(
    store: LossSource,
    models: Sequence[ModelSeeds],
    attacked: Sequence[ModelSeeds] | None = None,
) -> ModelDesign | None:
    """Returns the design of imported models whose subsets were not drawn in a known way; None for all others.

    Args:
      store: the score store.
      models: all models that are present; of those that share the subset of replicas, one is compared.
      attacked: the attacked models; None: each model is attacked with all others.

    Raises:
      UserError: if their subsets overlap, or if scores are corrupt.
    """
    if store.design != "given":
        return None
    own = [model for model in models if model.role == "reference"]
    own += [subsets.replica(0)] if any(model.role != "reference" for model in models) else []
    has_members_M = _has_members(store, own)
    attacked_T = None
    if attacked is not None:
        those = {*map(_of_subset, attacked)}
        attacked_T = np.array([m for m, model in enumerate(own) if model in those], np.intp)
    return ModelDesign(tuple(own), _compare(store, own, attacked_T), has_members_M)


def reference_design(store: LossSource, references: Sequence[ModelSeeds]) -> stats.Design:
    """Returns how the training subsets of references are related.

    Raises:
      UserError: as `model_design`.
    """
    if store.design == "balanced":  # known even if there are too few samples to see it
        pair_M = np.array([model.subset_seed // 2 for model in references], np.int64)
        group_M = np.unique(pair_M, return_inverse=True)[1]
        return stats.Design(group_M, np.arange(len(references)))
    return _compare(store, references)


def _has_members(store: LossSource, models: Sequence[ModelSeeds]) -> np.ndarray:
    """Returns whether each model was trained on any of the attacked samples."""
    has_members_M = np.zeros(len(models), np.bool_)
    for _, value in store.canary_blocks({"member": ("member", models)}):
        has_members_M |= value["member"].any(axis=1)
    return has_members_M


def _compare(
    store: LossSource, models: Sequence[ModelSeeds], attacked_T: np.ndarray | None = None
) -> stats.Design:
    """Returns the design that the members of the models show; raises UserError as `model_design`."""
    parts = []
    for _, value in store.canary_blocks({"member": ("member", models)}):
        member_MxC = value["member"]
        any_C, all_C = np.logical_or.reduce(member_MxC), np.logical_and.reduce(member_MxC)
        parts.append(member_MxC[:, stats_design.design_samples(any_C, all_C, len(models))])
    design = stats.design_of(np.concatenate(parts, axis=1), attacked_T)
    if not design.overlap:
        return design
    if store.design != "given":  # drawn independently, so it is a coincidence
        return dataclasses.replace(design, overlap=None)
    first, second = (models[m] for m in design.overlap)
    raise UserError(
        f"{store.path}: the training subsets of {first} and {second} overlap more or less than independent ones do, so "
        "that the models reveal the members of each other; import models whose subsets were drawn independently"
    )
