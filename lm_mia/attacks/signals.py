"""Scores of attacks, a block of samples of the score store at a time.

T: targets, M: references, C: samples of a block, Z: samples that RMIA compares with, N2: samples of the population.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lm_mia import config, stats
from lm_mia.config import AttackName
from lm_mia.config.needs import ObservedStatistic
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.seeds import permutation
from lm_mia.store.store import Store

BLOCK_SAMPLES = 2**16
"""Read at once: a chunk of the store."""
_SLICE_SAMPLES = 2**13  # worked on at once by a thread
_LIRA, _RMIA = {"lira_online", "lira_offline"}, {"rmia", "rmia_offline"}


ReferenceIndex = slice | np.ndarray
"""Which of the references of a source."""


@dataclasses.dataclass(frozen=True)
class SampleBlock:
    """Losses, memberships and statistics of some samples: consecutive ones, or those that `gather` was given."""

    sample_slice: slice
    target_loss_TxC: np.ndarray
    reference_loss_MxC: np.ndarray
    reference_member_MxC: np.ndarray
    statistics: Mapping[str, np.ndarray]
    """Name of a statistic beside the loss -> its values under the targets, TxC."""
    zlib_bytes_C: np.ndarray

    def with_references(self, index_R: "ReferenceIndex") -> "SampleBlock":
        """With these references only."""
        return dataclasses.replace(
            self,
            reference_loss_MxC=self.reference_loss_MxC[index_R],
            reference_member_MxC=self.reference_member_MxC[index_R],
        )

    def split(self) -> Iterator["SampleBlock"]:
        """The block, cut for threads."""
        low = self.sample_slice.start
        for at in sample_slices(self.sample_slice.stop - low):
            yield SampleBlock(
                slice(low + at.start, low + at.stop),
                self.target_loss_TxC[:, at],
                self.reference_loss_MxC[:, at],
                self.reference_member_MxC[:, at],
                {name: value_TxC[:, at] for name, value_TxC in self.statistics.items()},
                self.zlib_bytes_C[at],
            )


@dataclasses.dataclass(frozen=True)
class AttackInputs:
    """Models of a store that are all present: targets, each with its own membership, and references."""

    store: Store
    targets: Sequence[ModelSeeds]
    references: Sequence[ModelSeeds]
    target_member_TxN2: np.ndarray
    """Replicas share their subset, so theirs is a view of one array."""
    zlib_bytes_N2: np.ndarray
    statistics: tuple[str, ...] = ()
    label_shuffle_seed: int | None = None
    """A seed: membership labels moved to other samples of their block, in all rows alike, which makes them noise."""
    observed: ObservedStatistic = "loss"
    """What the attacker observes of a sample. The negative logit takes the place of the loss (StrongMIA Figure 8)."""

    def blocks(self) -> Iterator[SampleBlock]:
        """All samples in order; raises UserError for a corrupt shard."""
        parts: dict[str, tuple[str, Sequence[ModelSeeds]]] = {
            "target_loss": (self.observed, self.targets),
            "reference_loss": (self.observed, self.references),
            "reference_member": ("member", self.references),
        }
        parts |= {name: (name, self.targets) for name in self.statistics}
        for at, value in self.store.blocks(parts, BLOCK_SAMPLES):
            member_MxC = value["reference_member"]
            if self.label_shuffle_seed is not None:
                member_MxC = member_MxC[:, _label_permutation(self.label_shuffle_seed, at)]
            if self.observed == "target_logit":
                value |= {k: -value[k] for k in ("target_loss", "reference_loss")}
            yield SampleBlock(
                at,
                value["target_loss"],
                value["reference_loss"],
                member_MxC,
                {name: value[name] for name in self.statistics},
                self.zlib_bytes_N2[at],
            )

    @property
    def num_samples(self) -> int:
        """The number of samples of the population."""
        return self.target_member_TxN2.shape[1]

    def with_references(self, index_R: Iterable[int]) -> "AttackInputs":
        """With these references only."""
        return dataclasses.replace(self, references=[self.references[i] for i in index_R])

    def with_shuffled_labels(self, seed: int) -> "AttackInputs":
        """The first target with labels that are pure noise; losses stay where they are."""
        member_N2 = self.target_member_TxN2[0].copy()
        for low in range(0, len(member_N2), BLOCK_SAMPLES):
            at = slice(low, min(low + BLOCK_SAMPLES, len(member_N2)))
            member_N2[at] = member_N2[at][_label_permutation(seed, at)]
        return dataclasses.replace(
            self,
            targets=self.targets[:1],
            target_member_TxN2=member_N2[None],
            label_shuffle_seed=seed,
        )


def open_inputs(
    store: Store,
    population: Population,
    targets: Sequence[ModelSeeds],
    references: Sequence[ModelSeeds],
    statistics: tuple[str, ...],
    observed: ObservedStatistic = "loss",
) -> AttackInputs:
    """Returns the scores of models that are all present.

    Args:
      store: at the step that is attacked.
      population: for the compressed sizes of texts.
      targets: only replicas, which share one subset, or only models with subsets of their own.
      references: with which they are attacked.
      statistics: what the attacks need in addition to the loss.
      observed: what the attacker observes of each sample.
    """
    replicas = targets[0].role == "replica"
    members = {"member": ("member", targets[:1] if replicas else targets)}
    [(_, value)] = store.blocks(members, sys.maxsize)
    shape = len(targets), value["member"].shape[1]
    return AttackInputs(
        store,
        targets,
        references,
        np.broadcast_to(value["member"], shape),
        population.column("zlib_bytes"),
        statistics,
        observed=observed,
    )


@dataclasses.dataclass(frozen=True)
class AttackGroup:
    """Attacks that use the same references with the same settings, and share what they compute of a block."""

    attacks: tuple[AttackName, ...]
    config: config.Attack
    index_R: ReferenceIndex = dataclasses.field(default_factory=lambda: slice(None))


@dataclasses.dataclass(frozen=True)
class AttackFit:
    """What must be known from all samples before any block is scored."""

    scatter_2x2: np.ndarray | None
    """Of the pooled variances; None for per-sample ones."""
    sorted_log_alpha_TxZ: Mapping[str, np.ndarray]
    """Variant of RMIA -> log alpha of its comparison samples under each target, sorted."""


def sample_slices(num_samples: int) -> Iterator[slice]:
    """Yields slices that divide the samples into parts, one for each task of a thread."""
    for low in range(0, num_samples, _SLICE_SAMPLES):
        yield slice(low, min(low + _SLICE_SAMPLES, num_samples))


def fit_attacks(
    inputs: AttackInputs,
    groups: Sequence[AttackGroup],
    comparison_blocks: dict[int, SampleBlock] | None = None,
) -> list[AttackFit]:
    """Returns what must be known from all samples before any block is scored, for each group of attacks.

    Takes one pass over the scores if variances are pooled, and one for each number of samples that RMIA compares with.

    Args:
      source: the scores.
      groups: the attacks.
      compared: `comparisons` of the source by their number, which are added to it where they are missing.
    """
    comparison_blocks = {} if comparison_blocks is None else comparison_blocks
    for samples in {group.config.rmia_samples for group in groups if _RMIA & set(group.attacks)}:
        if samples not in comparison_blocks:
            comparison_blocks[samples] = comparison_block(inputs, samples)
    pooled = [g for g in groups if g.config.variance == "pooled" and _LIRA & set(g.attacks)]
    scatter = {id(group): np.zeros((2, 2)) for group in pooled}
    if pooled:
        for block in inputs.blocks():
            for group in pooled:
                some = block.with_references(group.index_R)
                scatter[id(group)] += stats.within_sample_scatter(
                    _reference_gaussians(some, None, group.config)
                )
    found = []
    for group in groups:
        sorted_TxZ = {}
        for name in sorted(_RMIA & set(group.attacks)):
            block = comparison_blocks[group.config.rmia_samples].with_references(group.index_R)
            sorted_TxZ[name] = np.sort(_rmia_log_alpha(name, block, group.config), axis=1)
        found.append(AttackFit(scatter.get(id(group)), sorted_TxZ))
    return found


def comparison_block(inputs: AttackInputs, num_samples: int) -> SampleBlock:
    """Returns the samples that RMIA compares with, drawn by seed, under all models of the source."""
    order_N2 = permutation(0, "samples that RMIA compares with", inputs.num_samples)
    return select_samples(inputs, np.sort(order_N2[:num_samples]))


def select_samples(inputs: AttackInputs, ids_Z: np.ndarray) -> SampleBlock:
    """Returns the losses and memberships of chosen samples (ids ascending), from one pass over the scores.

    The block has no statistics and no zlib_bytes_C; its ``samples`` count places in ids_Z.
    """
    found: list[SampleBlock] = []
    for block in inputs.blocks():
        at, stop = np.searchsorted(ids_Z, (block.sample_slice.start, block.sample_slice.stop))
        here = ids_Z[at:stop] - block.sample_slice.start
        found.append(
            dataclasses.replace(
                block,
                target_loss_TxC=block.target_loss_TxC[:, here],
                reference_loss_MxC=block.reference_loss_MxC[:, here],
                reference_member_MxC=block.reference_member_MxC[:, here],
            )
        )
    return dataclasses.replace(
        found[0],
        sample_slice=slice(0, len(ids_Z)),
        statistics={},
        zlib_bytes_C=np.empty(0),
        target_loss_TxC=np.concatenate([b.target_loss_TxC for b in found], axis=1),
        reference_loss_MxC=np.concatenate([b.reference_loss_MxC for b in found], axis=1),
        reference_member_MxC=np.concatenate([b.reference_member_MxC for b in found], axis=1),
    )


def membership_scores(
    group: AttackGroup, block: SampleBlock, attack_fit: AttackFit
) -> dict[AttackName, np.ndarray]:
    """Returns score_TxC of each attack, larger = more member-like; NaN where the references do not suffice.

    Args:
      group: the attacks.
      block: of samples, under all references of the source.
      fitted: as `fit` returned it for the group.
    """
    block, c = block.with_references(group.index_R), group.config
    attacks, target_TxC = group.attacks, block.target_loss_TxC
    gaussians, log_alpha_TxC = None, None
    if _LIRA & set(attacks):
        gaussians = _reference_gaussians(block, attack_fit.scatter_2x2, c)
    if {"rmia", "rmia_simple"} & set(attacks):
        log_alpha_TxC = _rmia_log_alpha("rmia", block, c)

    def one(attack: AttackName) -> np.ndarray:
        match attack:
            case "lira_online" | "lira_offline":
                assert gaussians is not None
                return stats.lira_from_gaussians(
                    target_TxC, gaussians, offline=attack == "lira_offline"
                )
            case "rmia" | "rmia_offline":
                alpha_TxC = log_alpha_TxC if attack == "rmia" else _rmia_log_alpha(attack, block, c)
                assert alpha_TxC is not None
                return stats.rmia_from_log_alpha(
                    alpha_TxC, attack_fit.sorted_log_alpha_TxZ[attack], c.rmia_gamma
                )
            case "rmia_simple":
                assert log_alpha_TxC is not None
                return log_alpha_TxC
            case "reference_calibrated":
                return stats.reference_calibrated_loss(target_TxC, block.reference_loss_MxC)
            case "loss":
                return stats.loss_attack(target_TxC)
            case "zlib":
                return stats.zlib_ratio(target_TxC, block.zlib_bytes_C)
            case "lowercase":
                return stats.lowercase_loss_difference(
                    target_TxC, block.statistics["lowercase_loss"]
                )
            case "min_k" | "min_k_plus_plus":
                return block.statistics[attack].astype(np.float64)

    return {attack: one(attack) for attack in attacks}


def separation(block: SampleBlock, attack_fit: AttackFit, config: config.Attack) -> np.ndarray:
    """separation_C: how far the IN mean lies below the OUT mean, in roots of the mean of both variances."""
    g = _reference_gaussians(block, attack_fit.scatter_2x2, config)
    variance_C = (g.var_in_N + g.var_out_N) / 2
    sd_C = np.sqrt(np.where(variance_C > 0, variance_C, np.nan))
    return (g.mean_out_N - g.mean_in_N) / sd_C


def _reference_gaussians(
    block: SampleBlock, scatter_2x2: np.ndarray | None, c: config.Attack
) -> stats.LiraGaussians:
    """Of each sample; with a scatter, its pooled variances instead of their own."""
    gaussians = stats.fit_gaussians(
        block.reference_loss_MxC,
        block.reference_member_MxC,
        sampled_share=0.5 if c.finite_population else 0.0,
    )
    return gaussians if scatter_2x2 is None else stats.with_pooled_variance(gaussians, scatter_2x2)


def _rmia_log_alpha(attack: str, block: SampleBlock, c: config.Attack) -> np.ndarray:
    offline = attack == "rmia_offline"
    return stats.rmia_log_alpha(
        -block.target_loss_TxC,
        -block.reference_loss_MxC,
        reference_member_MxN=block.reference_member_MxC if offline else None,
        offline=offline,
        a=c.rmia_a if offline else 1.0,
    )


def _label_permutation(seed: int, at: slice) -> np.ndarray:
    return permutation(seed, f"shuffled labels {at.start}", at.stop - at.start)
