"""Attacks on losses that are in memory instead of a score store: the same functions, with the same results.

M: models, N: samples, U: users.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from lm_mia.attacks import models, target_warnings
from lm_mia.attacks.designs import ModelDesign, model_design
from lm_mia.attacks.headline import effective_attack
from lm_mia.attacks.inputs import AttackInputs, open_inputs
from lm_mia.attacks.registry import ATTACKS
from lm_mia.attacks.requests import attack_spec
from lm_mia.attacks.score_matrix import score_attacks
from lm_mia.attacks.spec import AttackSpec, RecipeModels, Variant, assign_roles
from lm_mia.config import Config
from lm_mia.data import subsets
from lm_mia.data.subsets import Design, ModelSeeds

if TYPE_CHECKING:  # tensorstore takes a while to load
    from lm_mia.store.store import Store


@dataclasses.dataclass(frozen=True)
class LossArrays:
    """Losses of models in memory, which attacks read as those of a score store, and properties of the samples."""

    path: str
    """Where the losses come from, for messages."""
    design: Design
    index: Mapping[ModelSeeds, int]
    """The row of each model."""
    rows: Mapping[str, Sequence[np.ndarray]]
    """Name of a variable, such as "loss" or "member" -> value_N of each model, which may be mapped to a file."""
    table: Mapping[str, np.ndarray]
    """The sample table: name -> column_N."""
    first_canary: int = 0

    def models(self) -> list[ModelSeeds]:
        """Returns all models."""
        return [*self.index]

    def canary_blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int = 2**16
    ) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Yields blocks of samples: their positions, and {name of a request: value_MxC}; as `Store.canary_blocks`."""
        samples = len(self.rows["loss"][0])
        for low in range(0, samples, size):
            at = slice(low, min(low + size, samples))
            yield (
                at,
                {name: self._read(variable, of, at) for name, (variable, of) in requests.items()},
            )

    def _read(self, variable: str, of: Sequence[ModelSeeds], at: slice) -> np.ndarray:
        """Returns value_MxC in the type of a score store, so that attacks have the same results."""
        dtype = np.bool_ if variable == "member" else np.float32
        value_MxC = np.empty((len(of), at.stop - at.start), dtype)
        for value_C, model in zip(value_MxC, of, strict=True):
            value_C[:] = self.rows[variable][self.index[model]][at]
        return value_MxC

    def column(self, name: str) -> np.ndarray:
        """Returns a column of the sample table."""
        return self.table[name]


@dataclasses.dataclass(frozen=True)
class Group:
    """Models that are attacked together: all targets, or all replicas."""

    inputs: AttackInputs
    specs: tuple[AttackSpec, ...]


def attacked_groups(losses: LossArrays, c: Config) -> list[Group]:
    """Returns the attacked models, with the attacks of the config that their number of references allows.

    The headline attack is the first one of each group.

    Args:
      losses: the losses.
      c: the config, as `lm-mia import` makes it.

    Raises:
      UserError: if training subsets overlap, so that the models reveal the members of each other.
    """
    attack = effective_attack(c)
    present = sorted(
        (model for model in losses.models() if model.role != "base"), key=dataclasses.astuple
    )
    numbers = models.model_numbers(present)
    roles = assign_roles(numbers, attack)
    names = [attack.headline, *(name for name in attack.attacks if name != attack.headline)]
    targets = [*map(subsets.reference, roles.targets)]
    replicas = [*map(subsets.replica, roles.replicas)]
    design, groups = model_design(losses, present, targets + replicas), list[Group]()
    for attacked, are_replicas in ((targets, False), (replicas, True)):
        if not attacked:
            continue
        if (
            are_replicas
        ):  # Targets have training subsets of their own, and are references of replicas.
            c = dataclasses.replace(c, attack=dataclasses.replace(c.attack, targets=0))
            roles = assign_roles(numbers, c.attack)
        recipe = RecipeModels((), c, numbers)
        inputs = open_inputs(
            cast("Store", losses),  # attacks on losses read nothing else of a store
            losses,
            attacked,
            [*map(subsets.reference, roles.references)],
            tuple(dict.fromkeys(s for name in names for s in ATTACKS[name].statistics)),
            design=design,
        )
        specs = (attack_spec(recipe, Variant(name, replicas=are_replicas)) for name in names)
        groups.append(Group(inputs, tuple(spec for spec in specs if spec is not None)))
    return groups


def score(
    group: Group,
    c: Config,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (attack, score_TxN) for each attack on a group, those with the most references first.

    Args:
      group: the attacked models.
      c: the config.
      folder: for temporary files.
      pool: threads that compute parts of the samples.
      progress: called with the number of attacks that are done, which may be fractional.
    """
    attack = effective_attack(c)
    for spec, _, file in score_attacks(group.specs, group.inputs, attack, folder, pool, progress):
        yield spec.attack, file.read_samples(slice(0, file.num_samples))


def describe_design(group: Group) -> list[str]:
    """Returns a sentence about references that are left out; none if none is."""
    model_design: ModelDesign | None = group.inputs.design
    if model_design is None:
        return []
    design, references = model_design.design, group.inputs.references
    if design.columns:
        return [
            "every sample is in the same number of training subsets, so that the references reveal the members; a "
            "random reference of the other class is left out for each target and sample"
        ]
    attacked, own = map(model_design.index, (group.inputs.targets, references))
    left_out = int(np.isin(design.group_M[own], design.group_M[attacked]).sum())
    if left_out:
        return [
            f"{left_out} of {len(references)} references were trained on the same samples as a target, or on all "
            "others, and are left out for it"
        ]
    return []


def find_contradictions(
    group: Group, names: Sequence[str], user_N: np.ndarray | None = None
) -> list[str]:
    """Returns clauses about properties in which members differ too much for members that were drawn at random.

    Args:
      group: the attacked models.
      names: their names.
      user_N: the user of each sample, if users were drawn instead of samples, as integers from 0 without gaps.
    """
    inputs = group.inputs
    member_TxN, covariate_NxK = inputs.target_member_TxN2, inputs.covariate_N2xK
    if user_N is not None:
        count_U = np.bincount(user_N)
        member_TxN = np.array([np.bincount(user_N, member_N) > 0 for member_N in member_TxN])
        covariate_NxK = (
            np.array([np.bincount(user_N, value_N) / count_U for value_N in covariate_NxK.T])
            .reshape(-1, count_U.size)
            .T
        )
    return target_warnings.unlike_random(member_TxN, covariate_NxK, names, inputs.covariate_names)


def find_warnings(group: Group, names: Sequence[str], *, is_random: bool) -> list[str]:
    """Returns sentences about attacked models whose membership may depend on properties of the samples.

    Args:
      group: the attacked models.
      names: their names.
      is_random: whether their members were drawn at random.
    """
    inputs, sentences = group.inputs, list[str]()
    if inputs.references:
        parts = [part for _, part in inputs.by_target()]
        sentences = target_warnings.unusual_targets(parts, names, inputs.covariate_names)
    if is_random:
        return sentences
    return sentences + target_warnings.unlike_classes(
        inputs.target_member_TxN2, inputs.covariate_N2xK, names, inputs.covariate_names
    )
