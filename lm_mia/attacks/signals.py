"""Membership scores of all attacks, computed from the score store a block of samples at a time.

Only the samples that training subsets are drawn from are attacked: the whole population or, if train.canaries is set,
its last samples. Positions in arrays count from the first of them; tables list the ids of samples in the population.

T: targets, M: references, R: selected references, C: samples of a block, Z: drawn samples, K: covariates of a sample,
N: samples, L: samples with a TF-IDF, N2: attacked samples, the population (2N) or the canaries.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from lm_mia import config, stats
from lm_mia.attacks.designs import ModelDesign
from lm_mia.config import AttackName
from lm_mia.config.needs import REFERENCE_FREE, ObservedStatistic, RmiaA
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.seeds import permutation
from lm_mia.store.store import Store

BLOCK_SAMPLES = 2**16
"""Number of samples that are read at a time: a chunk of the store."""
_SLICE_SAMPLES = 2**13  # number of samples that a thread processes at a time
_LIRA, _RMIA = {"lira_online", "lira_offline"}, {"rmia", "rmia_offline"}
_LOSS_MODEL = {"shrunk", "shrunk_offline", "stacked"}

BASE_LOSS = "the loss of the base"
"""Names the covariate of `with_base` in messages."""

ReferenceIndex = slice | np.ndarray
"""Selects some of the references of `AttackInputs`."""


@dataclasses.dataclass(frozen=True)
class SampleBlock:
    """Losses, membership and statistics of consecutive samples, or of those that `select_samples` was given."""

    sample_slice: slice
    """Positions of the samples; for `select_samples`, positions in its argument."""
    target_loss_TxC: np.ndarray
    reference_loss_MxC: np.ndarray
    reference_member_MxC: np.ndarray
    statistics: Mapping[str, np.ndarray]
    """Name of a statistic other than the loss -> its value_TxC under the targets."""
    zlib_bytes_C: np.ndarray
    covariate_CxK: np.ndarray
    """The result of `sample_covariates` for these samples."""
    has_score_TxC: np.ndarray | None = None
    """Whether attacks that use references have a score, as `ModelDesign.use`; None: all have."""
    base_loss_C: np.ndarray | None = None
    """Losses of the model that the targets were fine-tuned from; None: unknown."""

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
                self.covariate_CxK[at],
                None if self.has_score_TxC is None else self.has_score_TxC[:, at],
                None if self.base_loss_C is None else self.base_loss_C[at],
            )


class BlockSource(Protocol):
    """Samples under the models of an attack, which are read a block at a time."""

    def blocks(self) -> Iterator[SampleBlock]:
        """Yields all samples in order."""
        ...

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        ...


@dataclasses.dataclass(frozen=True)
class AttackInputs:
    """What an attack reads: the targets, each with its own membership, and the references. All models are present."""

    store: Store
    targets: Sequence[ModelSeeds]
    references: Sequence[ModelSeeds]
    target_member_TxN2: np.ndarray
    """For replicas, which share their training subset, this is a view of one array."""
    zlib_bytes_N2: np.ndarray
    covariate_N2xK: np.ndarray
    """The result of `with_base` for `sample_covariates`."""
    statistics: tuple[str, ...] = ()
    label_shuffle_seed: int | None = None
    """If not None, membership labels are permuted within each block with this seed, in the same way for all models, so
    that they are noise."""
    observed: ObservedStatistic = "loss"
    """What the attacker observes of a sample. Logits are negated and used in place of losses (StrongMIA Figure 8)."""
    design: ModelDesign | None = None
    """How the training subsets of all models are related; None: they were drawn independently of each target's. If
    references are left out because of it, the targets must be those of one group, as in `by_target`."""
    covariate_names: tuple[str, ...] = ()
    """The names of the covariates."""
    base_loss_N2: np.ndarray | None = None
    """Losses of the model that the targets were fine-tuned from; None: unknown."""

    def by_target(self) -> Iterator[tuple[int, "AttackInputs"]]:
        """Yields inputs of targets that leave out the same references, and the position of the first of them.

        These are all targets, unless the subsets of imported models are related.
        """
        targets = range(len(self.targets))
        for at in self.design.parts(self.design.index(self.targets)) if self.design else [targets]:
            part = slice(at.start, at.stop)
            yield (
                at.start,
                dataclasses.replace(
                    self,
                    targets=self.targets[part],
                    target_member_TxN2=self.target_member_TxN2[part],
                ),
            )

    def blocks(self) -> Iterator[SampleBlock]:
        """Yields all samples in order; raises UserError for corrupt shards."""
        requests: dict[str, tuple[str, Sequence[ModelSeeds]]] = {
            "target_loss": (self.observed, self.targets),
            "reference_loss": (self.observed, self.references),
            "reference_member": ("member", self.references),
        }
        requests |= {name: (name, self.targets) for name in self.statistics}
        index_T, index_R = list[int](), list[int]()
        if self.design:
            requests["design_member"] = "member", self.design.models
            index_T, index_R = map(self.design.index, (self.targets, self.references))
        for at, value in self.store.canary_blocks(requests, BLOCK_SAMPLES):
            member_MxC = value["reference_member"]
            if self.label_shuffle_seed is not None:
                member_MxC = member_MxC[:, _label_permutation(self.label_shuffle_seed, at)]
            if self.observed == "target_logit":
                value |= {name: -value[name] for name in ("target_loss", "reference_loss")}
            has_score_TxC = None
            if self.design:
                is_used_RxC, has_score_TxC = self.design.use(
                    index_T, index_R, value["design_member"], self.ids(at)
                )
                value["reference_loss"] = np.where(is_used_RxC, value["reference_loss"], np.nan)
            yield SampleBlock(
                at,
                value["target_loss"],
                value["reference_loss"],
                member_MxC,
                {name: value[name] for name in self.statistics},
                self.zlib_bytes_N2[at],
                self.covariate_N2xK[at],
                has_score_TxC,
                None if self.base_loss_N2 is None else self.base_loss_N2[at],
            )

    @property
    def num_samples(self) -> int:
        """The number of attacked samples."""
        return self.target_member_TxN2.shape[1]

    def ids(self, sample_slice: slice) -> np.ndarray:
        """Returns the ids in the population of samples at some positions."""
        return self.store.first_canary + np.arange(sample_slice.start, sample_slice.stop)

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
    design: ModelDesign | None = None,
) -> AttackInputs:
    """Returns the inputs of attacks on models that are all present.

    Args:
      store: the score store, with `step` set to the attacked step.
      population: provides the lengths, compressed sizes and TF-IDF of texts; only the attacked samples.
      targets: either replicas and crossed models, which share one training subset, or models with training subsets of
        their own.
      references: the reference models.
      statistics: names of the statistics that the attacks need in addition to the loss.
      observed: what the attacker observes of each sample.
      design: the result of `model_design` for all models that are present.
    """
    shares_subset = targets[0].role != "reference"
    requests = {"member": ("member", targets[:1] if shares_subset else targets)}
    [(_, value)] = store.canary_blocks(requests, sys.maxsize)
    shape = len(targets), value["member"].shape[1]
    base_N2 = None
    if base := [model for model in store.models() if model.role == "base"]:
        [(_, value_of_base)] = store.canary_blocks({"loss": (observed, base)}, sys.maxsize)
        base_N2 = value_of_base["loss"][0] * (-1 if observed == "target_logit" else 1)
    covariates = sample_covariates(population.column), covariate_names(population.column)
    covariate_N2xK, names = with_base(*covariates, base_N2)
    return AttackInputs(
        store,
        targets,
        references,
        np.broadcast_to(value["member"], shape),
        population.column("zlib_bytes"),
        covariate_N2xK,
        statistics,
        observed=observed,
        design=design,
        covariate_names=names,
        base_loss_N2=base_N2,
    )


def sample_covariates(column: Callable[[str], np.ndarray]) -> np.ndarray:
    """Returns covariate_NxK, float32, for the attacks shrunk and stacked.

    The covariates are the logarithm of the number of tokens, the logarithm of the compressed bytes per token, and the
    mean TF-IDF. Samples of unknown tokens have no TF-IDF and get the median. A property that is missing (NaN) for all
    samples, as may be the case for imported losses, is left out.

    Args:
      column: returns a column of the sample table, such as `Population.column`.
    """
    covariates = [*_named_covariates(column).values()]
    samples = len(column("tokens"))
    return np.stack(covariates, axis=1) if covariates else np.zeros((samples, 0), np.float32)


def covariate_names(column: Callable[[str], np.ndarray]) -> tuple[str, ...]:
    """Returns what each of `sample_covariates` measures, in words."""
    return tuple(_named_covariates(column))


def with_base(
    covariate_NxK: np.ndarray, names: tuple[str, ...], base_loss_N: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns covariates and their names with the loss of the base, if there is one, as one more covariate."""
    if base_loss_N is None:
        return covariate_NxK, names
    base_Nx1 = np.asarray(base_loss_N, np.float32)[:, None]
    return np.concatenate([covariate_NxK, base_Nx1], axis=1), (*names, BASE_LOSS)


def _named_covariates(column: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    tokens_N, zlib_bytes_N, tfidf_N = (
        column(name).astype(np.float32) for name in ("tokens", "zlib_bytes", "tfidf")
    )
    log_tokens_N = np.log(tokens_N)
    has_tokens = not np.isnan(log_tokens_N).all()
    log_zlib_N = np.log(zlib_bytes_N)
    zlib = "compressed bytes per token" if has_tokens else "compressed bytes"
    covariates = {}
    for name, covariate_N in (
        ("length in tokens", log_tokens_N),
        (zlib, log_zlib_N - log_tokens_N if has_tokens else log_zlib_N),
        ("mean TF-IDF", tfidf_N),
    ):
        known_L = covariate_N[~np.isnan(covariate_N)]
        if known_L.size:
            missing = float(np.median(known_L)) if known_L.size < covariate_N.size else 0.0
            covariates[name] = np.nan_to_num(covariate_N, nan=missing)
    return covariates


@dataclasses.dataclass(frozen=True)
class AttackGroup:
    """Attacks that use the same references with the same settings and share intermediate results."""

    attacks: tuple[AttackName, ...]
    config: config.Attack
    index_R: ReferenceIndex = dataclasses.field(default_factory=lambda: slice(None))
    rmia_a: RmiaA | None = None
    """As in `needs.TargetAttack`; None: attack.rmia_a."""
    in_and_out_among: tuple[int, ...] = ()
    """Positions of references: a sample has a score only if some of them are IN and others OUT; empty: any sample."""


@dataclasses.dataclass(frozen=True)
class AttackFit:
    """Results over all samples that are needed before a block can be scored."""

    scatter_2x2: np.ndarray | None
    """Sums of squares and degrees of freedom for pooled variances, IN first; None for per-sample variances."""
    sorted_log_alpha_TxZ: Mapping[str, np.ndarray]
    """Name of an RMIA attack -> log alpha of its comparison samples, sorted for each target."""
    loss_models: Mapping[AttackName, stats.LossModel]
    """Attack -> the parameters that all samples have in common."""
    regression: stats.StackedRegression | None
    """The regression of the attack stacked."""
    rmia_a: float | None = 1.0
    """The parameter a of offline RMIA; None if it is to be tuned, but there are too few references."""


def sample_slices(num_samples: int) -> Iterator[slice]:
    """Yields slices that divide samples into parts, one for each task of a thread."""
    for low in range(0, num_samples, _SLICE_SAMPLES):
        yield slice(low, min(low + _SLICE_SAMPLES, num_samples))


def fit_attacks(
    inputs: BlockSource,
    groups: Sequence[AttackGroup],
    drawn_blocks: dict[int, SampleBlock] | None = None,
) -> list[AttackFit]:
    """Returns the results over all samples that are needed before a block can be scored, for each group.

    Takes one pass over the store if variances are pooled, and one for each number of samples that RMIA or a loss model
    draws.

    Args:
      inputs: the models.
      groups: the attacks.
      drawn_blocks: number of samples -> `draw_samples` of the inputs; missing ones are added.
    """
    drawn_blocks = {} if drawn_blocks is None else drawn_blocks
    for group in groups:
        for num_samples in num_drawn_samples(group.attacks, group.config.rmia_samples):
            if num_samples not in drawn_blocks:
                drawn_blocks[num_samples] = draw_samples(inputs, num_samples)
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
        sorted_TxZ, rmia_a = {}, 1.0
        for name in sorted(_RMIA & set(group.attacks)):
            block = drawn_blocks[group.config.rmia_samples].with_references(group.index_R)
            rmia_a = _choose_a(group, block) if name == "rmia_offline" else rmia_a
            sorted_TxZ[name] = np.sort(_rmia_log_alpha(name, block, rmia_a), axis=1)
        loss_models, regression = {}, None
        if _LOSS_MODEL & set(group.attacks):
            block = drawn_blocks[stats.MAX_FIT_SAMPLES].with_references(group.index_R)
            loss_models, regression = _fit_loss_models(group.attacks, block)
        fits.append(AttackFit(scatter.get(id(group)), sorted_TxZ, loss_models, regression, rmia_a))
    return fits


def _choose_a(group: AttackGroup, block: SampleBlock) -> float | None:
    """Returns the parameter a of offline RMIA, tuned on the references and the samples that RMIA compares with.

    None if it is to be tuned, but there is no reference besides the first one and its complement, or no member or no
    non-member of the first one has an OUT reference among the others.
    """
    a = group.config.rmia_a if group.rmia_a is None else group.rmia_a
    if a != "tuned":
        return a
    references = -block.reference_loss_MxC, block.reference_member_MxC
    try:
        return stats.tuned_rmia_a(*references, *references)
    except ValueError:
        return None


def _fit_loss_models(
    attacks: Sequence[AttackName], block: SampleBlock
) -> tuple[dict[AttackName, stats.LossModel], stats.StackedRegression | None]:
    """Returns `AttackFit.loss_models` and `AttackFit.regression`, fitted on the samples of a block."""
    losses = block.target_loss_TxC, block.reference_loss_MxC, block.reference_member_MxC
    covariate_ZxK = block.covariate_CxK
    models: dict[AttackName, stats.LossModel] = {}
    regression = None
    if "shrunk" in attacks or "stacked" in attacks:
        online = stats.fit_loss_model(*losses, covariate_NxK=covariate_ZxK)
        models |= {"shrunk": online, "stacked": online}
        if "stacked" in attacks:
            regression = stats.fit_stacked_regression(
                *losses[1:], online, covariate_NxK=covariate_ZxK
            )
    if "shrunk_offline" in attacks:
        models["shrunk_offline"] = stats.fit_loss_model(
            *losses, covariate_NxK=covariate_ZxK, offline=True
        )
    return models, regression


def num_drawn_samples(attacks: Iterable[AttackName], rmia_samples: int) -> set[int]:
    """Returns the numbers of samples that `fit_attacks` draws for attacks.

    Args:
      attacks: the names of attacks with the same settings.
      rmia_samples: the number of samples that RMIA compares with.
    """
    numbers = {rmia_samples} if _RMIA & set(attacks) else set[int]()
    return numbers | ({stats.MAX_FIT_SAMPLES} if _LOSS_MODEL & set(attacks) else set())


def draw_samples(inputs: BlockSource, num_samples: int) -> SampleBlock:
    """Returns randomly drawn samples under all models; the draw is the same in every call.

    RMIA compares with them, and loss models are fitted on them. If fewer samples are attacked, these are all of them.
    """
    order_N2 = permutation(0, "samples that RMIA compares with", inputs.num_samples)
    return select_samples(inputs, np.sort(order_N2[:num_samples]))


def select_samples(inputs: BlockSource, ids_Z: np.ndarray) -> SampleBlock:
    """Returns the losses and membership of selected samples, from one pass over the store.

    The block has no statistics and no losses of a base, and all samples count as having a score.

    Args:
      inputs: the models.
      ids_Z: positions of the samples, ascending.
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
                zlib_bytes_C=block.zlib_bytes_C[index],
                covariate_CxK=block.covariate_CxK[index],
                has_score_TxC=None,
                base_loss_C=None,
            )
        )
    return dataclasses.replace(
        parts[0],
        sample_slice=slice(0, len(ids_Z)),
        statistics={},
        zlib_bytes_C=np.concatenate([b.zlib_bytes_C for b in parts]),
        covariate_CxK=np.concatenate([b.covariate_CxK for b in parts]),
        target_loss_TxC=np.concatenate([b.target_loss_TxC for b in parts], axis=1),
        reference_loss_MxC=np.concatenate([b.reference_loss_MxC for b in parts], axis=1),
        reference_member_MxC=np.concatenate([b.reference_member_MxC for b in parts], axis=1),
    )


def membership_scores(
    group: AttackGroup, block: SampleBlock, attack_fit: AttackFit
) -> dict[AttackName, np.ndarray]:
    """Returns the membership scores of a block, score_TxC for each attack; larger means more member-like.

    Scores are NaN where the references do not suffice, and where `AttackGroup.in_and_out_among` is not satisfied. Those
    of attacks that use references are also NaN where `SampleBlock.has_score_TxC` says so.

    Args:
      group: the attacks.
      block: the samples, under all references of the inputs.
      attack_fit: the result of `fit_attacks` for the group.
    """
    has_score_C = np.ones(block.target_loss_TxC.shape[1], np.bool_)
    if group.in_and_out_among:
        member_RxC = block.reference_member_MxC[[*group.in_and_out_among]]
        has_score_C = member_RxC.any(axis=0) & ~member_RxC.all(axis=0)
    block, c = block.with_references(group.index_R), group.config
    attacks, target_TxC = group.attacks, block.target_loss_TxC
    gaussians, log_alpha_TxC = None, None
    if _LIRA & set(attacks):
        gaussians = _reference_gaussians(block, attack_fit.scatter_2x2, c)
    if {"rmia", "rmia_simple"} & set(attacks):
        log_alpha_TxC = _rmia_log_alpha("rmia", block, attack_fit.rmia_a)

    losses = target_TxC, block.reference_loss_MxC, block.reference_member_MxC

    def score_attack(attack: AttackName) -> np.ndarray:
        match attack:
            case "lira_online" | "lira_offline":
                assert gaussians is not None
                return stats.lira_from_gaussians(
                    target_TxC, gaussians, offline=attack == "lira_offline"
                )
            case "rmia" | "rmia_offline":
                alpha_TxC = log_alpha_TxC
                if attack == "rmia_offline":
                    alpha_TxC = _rmia_log_alpha(attack, block, attack_fit.rmia_a)
                assert alpha_TxC is not None
                return stats.rmia_from_log_alpha(
                    alpha_TxC, attack_fit.sorted_log_alpha_TxZ[attack], c.rmia_gamma
                )
            case "rmia_simple":
                assert log_alpha_TxC is not None
                return log_alpha_TxC
            case "reference_calibrated":
                return stats.reference_calibrated_loss(target_TxC, block.reference_loss_MxC)
            case "shrunk" | "shrunk_offline":
                model = attack_fit.loss_models[attack]
                return stats.shrunk_from_model(*losses, model, covariate_NxK=block.covariate_CxK)
            case "stacked":
                model, regression = attack_fit.loss_models[attack], attack_fit.regression
                assert regression is not None
                return stats.stacked_from_regression(
                    *losses, model, regression, covariate_NxK=block.covariate_CxK
                )
            case "base_calibrated":
                if block.base_loss_C is None:
                    raise UserError(
                        "attack.attacks=base_calibrated: there are no losses of a base to subtract; import them with "
                        "the role base, or leave this attack out"
                    )
                return stats.reference_calibrated_loss(target_TxC, block.base_loss_C[None])
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

    def has_score(attack: AttackName) -> np.ndarray:
        if block.has_score_TxC is None or attack in REFERENCE_FREE:
            return np.asarray(has_score_C)
        return np.stack([has_score_C & own_C for own_C in block.has_score_TxC])

    if has_score_C.all() and block.has_score_TxC is None:
        return {attack: score_attack(attack) for attack in attacks}
    scores: dict[AttackName, np.ndarray] = {
        attack: np.where(has_score(attack), score_attack(attack), np.nan) for attack in attacks
    }
    return scores


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


def _rmia_log_alpha(attack: str, block: SampleBlock, a: float | None) -> np.ndarray:
    """Returns log alpha of the attacks on RMIA's ratio; NaN without a for offline RMIA."""
    offline = attack == "rmia_offline"
    if offline and a is None:
        return np.full(block.target_loss_TxC.shape, np.nan)
    return stats.rmia_log_alpha(
        -block.target_loss_TxC,
        -block.reference_loss_MxC,
        reference_member_MxN=block.reference_member_MxC if offline else None,
        offline=offline,
        a=a if offline and a is not None else 1.0,
    )


def _label_permutation(seed: int, at: slice) -> np.ndarray:
    return permutation(seed, f"shuffled labels {at.start}", at.stop - at.start)
