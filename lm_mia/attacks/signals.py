"""Membership scores of all attacks, computed from the score store a block of samples at a time.

T: targets, M: references, R: selected references, C: samples of a block, Z: comparison samples of RMIA, N2: samples of
the population (2N).
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
"""Number of samples that are read at a time: a chunk of the store."""
_SLICE_SAMPLES = 2**13  # number of samples that a thread processes at a time
_LIRA, _RMIA = {"lira_online", "lira_offline"}, {"rmia", "rmia_offline"}

ReferenceIndex = slice | np.ndarray
"""Selects some of the references of `AttackInputs`."""


@dataclasses.dataclass(frozen=True)
class SampleBlock:
    """Losses, membership and statistics of consecutive samples, or of those that `select_samples` was given."""

    sample_slice: slice
    """Ids of the samples; for `select_samples`, positions in its argument."""
    target_loss_TxC: np.ndarray
    reference_loss_MxC: np.ndarray
    reference_member_MxC: np.ndarray
    statistics: Mapping[str, np.ndarray]
    """Name of a statistic other than the loss -> its value_TxC under the targets."""
    zlib_bytes_C: np.ndarray

    def with_references(self, index_R: "ReferenceIndex") -> "SampleBlock":
        """Returns the block with only the selected references."""
        return dataclasses.replace(
            self,
            reference_loss_MxC=self.reference_loss_MxC[index_R],
            reference_member_MxC=self.reference_member_MxC[index_R],
        )

    def split(self) -> Iterator["SampleBlock"]:
        """Yields parts of the block, one for each task of a thread."""
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
    """What an attack reads: the targets, each with its own membership, and the references. All models are present."""

    store: Store
    targets: Sequence[ModelSeeds]
    references: Sequence[ModelSeeds]
    target_member_TxN2: np.ndarray
    """For replicas, which share their training subset, this is a view of one array."""
    zlib_bytes_N2: np.ndarray
    statistics: tuple[str, ...] = ()
    label_shuffle_seed: int | None = None
    """If not None, membership labels are permuted within each block with this seed, in the same way for all models, so
    that they are noise."""
    observed: ObservedStatistic = "loss"
    """What the attacker observes of a sample. Logits are negated and used in place of losses (StrongMIA Figure 8)."""

    def blocks(self) -> Iterator[SampleBlock]:
        """Yields all samples in order; raises UserError for corrupt shards."""
        requests: dict[str, tuple[str, Sequence[ModelSeeds]]] = {
            "target_loss": (self.observed, self.targets),
            "reference_loss": (self.observed, self.references),
            "reference_member": ("member", self.references),
        }
        requests |= {name: (name, self.targets) for name in self.statistics}
        for at, value in self.store.blocks(requests, BLOCK_SAMPLES):
            member_MxC = value["reference_member"]
            if self.label_shuffle_seed is not None:
                member_MxC = member_MxC[:, _label_permutation(self.label_shuffle_seed, at)]
            if self.observed == "target_logit":
                value |= {name: -value[name] for name in ("target_loss", "reference_loss")}
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
        """Returns the inputs with only the selected references."""
        return dataclasses.replace(self, references=[self.references[i] for i in index_R])

    def with_shuffled_labels(self, seed: int) -> "AttackInputs":
        """Returns the first target and all references with permuted membership labels and unchanged losses."""
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
    """Returns the inputs of attacks on models that are all present.

    Args:
      store: the score store, with `step` set to the attacked step.
      population: provides the compressed sizes of texts.
      targets: either replicas, which share one training subset, or models with training subsets of their own.
      references: the reference models.
      statistics: names of the statistics that the attacks need in addition to the loss.
      observed: what the attacker observes of each sample.
    """
    is_replicas = targets[0].role == "replica"
    requests = {"member": ("member", targets[:1] if is_replicas else targets)}
    [(_, value)] = store.blocks(requests, sys.maxsize)
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
    """Attacks that use the same references with the same settings and share intermediate results."""

    attacks: tuple[AttackName, ...]
    config: config.Attack
    index_R: ReferenceIndex = dataclasses.field(default_factory=lambda: slice(None))


@dataclasses.dataclass(frozen=True)
class AttackFit:
    """Results over all samples that are needed before a block can be scored."""

    scatter_2x2: np.ndarray | None
    """Sums of squares and degrees of freedom for pooled variances, IN first; None for per-sample variances."""
    sorted_log_alpha_TxZ: Mapping[str, np.ndarray]
    """Name of an RMIA attack -> log alpha of its comparison samples, sorted for each target."""


def sample_slices(num_samples: int) -> Iterator[slice]:
    """Yields slices that divide samples into parts, one for each task of a thread."""
    for low in range(0, num_samples, _SLICE_SAMPLES):
        yield slice(low, min(low + _SLICE_SAMPLES, num_samples))


def fit_attacks(
    inputs: AttackInputs,
    groups: Sequence[AttackGroup],
    comparison_blocks: dict[int, SampleBlock] | None = None,
) -> list[AttackFit]:
    """Returns the results over all samples that are needed before a block can be scored, for each group.

    Takes one pass over the store if variances are pooled, and one for each number of comparison samples of RMIA.

    Args:
      inputs: the models.
      groups: the attacks.
      comparison_blocks: number of samples -> `comparison_block` of the inputs; missing ones are added.
    """
    comparison_blocks = {} if comparison_blocks is None else comparison_blocks
    for num_samples in {g.config.rmia_samples for g in groups if _RMIA & set(g.attacks)}:
        if num_samples not in comparison_blocks:
            comparison_blocks[num_samples] = comparison_block(inputs, num_samples)
    pooled = [g for g in groups if g.config.variance == "pooled" and _LIRA & set(g.attacks)]
    scatter = {id(group): np.zeros((2, 2)) for group in pooled}
    if pooled:
        for block in inputs.blocks():
            for group in pooled:
                gaussians = _reference_gaussians(
                    block.with_references(group.index_R), None, group.config
                )
                scatter[id(group)] += stats.within_sample_scatter(gaussians)
    fits = []
    for group in groups:
        sorted_TxZ = {}
        for name in sorted(_RMIA & set(group.attacks)):
            block = comparison_blocks[group.config.rmia_samples].with_references(group.index_R)
            sorted_TxZ[name] = np.sort(_rmia_log_alpha(name, block, group.config), axis=1)
        fits.append(AttackFit(scatter.get(id(group)), sorted_TxZ))
    return fits


def comparison_block(inputs: AttackInputs, num_samples: int) -> SampleBlock:
    """Returns randomly drawn comparison samples of RMIA, under all models; the draw is the same in every call."""
    order_N2 = permutation(0, "samples that RMIA compares with", inputs.num_samples)
    return select_samples(inputs, np.sort(order_N2[:num_samples]))


def select_samples(inputs: AttackInputs, ids_Z: np.ndarray) -> SampleBlock:
    """Returns the losses and membership of selected samples, from one pass over the store.

    The block has no statistics and no zlib_bytes_C.

    Args:
      inputs: the models.
      ids_Z: ids of the samples, ascending.
    """
    parts: list[SampleBlock] = []
    for block in inputs.blocks():
        first, end = np.searchsorted(ids_Z, (block.sample_slice.start, block.sample_slice.stop))
        index = ids_Z[first:end] - block.sample_slice.start
        parts.append(
            dataclasses.replace(
                block,
                target_loss_TxC=block.target_loss_TxC[:, index],
                reference_loss_MxC=block.reference_loss_MxC[:, index],
                reference_member_MxC=block.reference_member_MxC[:, index],
            )
        )
    return dataclasses.replace(
        parts[0],
        sample_slice=slice(0, len(ids_Z)),
        statistics={},
        zlib_bytes_C=np.empty(0),
        target_loss_TxC=np.concatenate([b.target_loss_TxC for b in parts], axis=1),
        reference_loss_MxC=np.concatenate([b.reference_loss_MxC for b in parts], axis=1),
        reference_member_MxC=np.concatenate([b.reference_member_MxC for b in parts], axis=1),
    )


def membership_scores(
    group: AttackGroup, block: SampleBlock, attack_fit: AttackFit
) -> dict[AttackName, np.ndarray]:
    """Returns the membership scores of a block, score_TxC for each attack; larger means more member-like.

    Scores are NaN where the references do not suffice.

    Args:
      group: the attacks.
      block: the samples, under all references of the inputs.
      attack_fit: the result of `fit_attacks` for the group.
    """
    block, c = block.with_references(group.index_R), group.config
    attacks, target_TxC = group.attacks, block.target_loss_TxC
    gaussians, log_alpha_TxC = None, None
    if _LIRA & set(attacks):
        gaussians = _reference_gaussians(block, attack_fit.scatter_2x2, c)
    if {"rmia", "rmia_simple"} & set(attacks):
        log_alpha_TxC = _rmia_log_alpha("rmia", block, c)

    def score_attack(attack: AttackName) -> np.ndarray:
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

    return {attack: score_attack(attack) for attack in attacks}


def separation(block: SampleBlock, attack_fit: AttackFit, config: config.Attack) -> np.ndarray:
    """Returns separation_C, (OUT mean - IN mean) / sqrt((IN variance + OUT variance) / 2) of the reference losses."""
    g = _reference_gaussians(block, attack_fit.scatter_2x2, config)
    variance_C = (g.var_in_N + g.var_out_N) / 2
    sd_C = np.sqrt(np.where(variance_C > 0, variance_C, np.nan))
    return (g.mean_out_N - g.mean_in_N) / sd_C


def _reference_gaussians(
    block: SampleBlock, scatter_2x2: np.ndarray | None, c: config.Attack
) -> stats.LiraGaussians:
    """Returns the Gaussians of each sample's reference losses, with pooled variances if a scatter is given."""
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
