"""What attacks read: losses and members under the attacked models and the references, a block of samples at a time.

Only the samples that training subsets are drawn from are attacked: the whole population or, if train.canaries is set,
its last samples. Positions in arrays count from the first of them; tables list the ids of samples in the population.

T: attacked models, R: references, C: samples of a block, Z: drawn samples, K: covariates of a sample, N: samples, L:
samples with a TF-IDF, N2: attacked samples, the population (2N) or the canaries.
"""

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from lm_mia.attacks.designs import ModelDesign
from lm_mia.attacks.spec import ObservedStatistic
from lm_mia.data.subsets import ModelSeeds
from lm_mia.seeds import permutation

if TYPE_CHECKING:  # The registry is read by commands that open no store.
    from lm_mia.store.store import Store

BLOCK_SAMPLES = 2**16
"""Number of samples that are read at a time: a chunk of the store."""
_SLICE_SAMPLES = 2**13  # number of samples that a thread processes at a time

BASE_LOSS = "the loss of the base"
"""Names the covariate of `with_base` in messages."""

ReferenceIndex = slice | np.ndarray
"""Selects some of the references of `AttackInputs`."""

Out = TypeVar("Out")


@dataclasses.dataclass(frozen=True)
class Block:
    """Losses, membership and statistics of consecutive samples, or of samples that were drawn."""

    at: slice
    """Positions of the samples; of drawn samples, positions in the draw."""
    loss_TxC: np.ndarray
    """Nats per token under the attacked models; negated logits if the target logits are observed."""
    reference_loss_RxC: np.ndarray
    """The same under the references; NaN where a reference may not be used for a sample."""
    reference_member_RxC: np.ndarray
    """Whether each reference was trained on each sample."""
    statistics: Mapping[str, np.ndarray]
    """Name of a statistic other than the observed one -> its value_TxC under the attacked models."""
    zlib_bytes_C: np.ndarray
    covariate_CxK: np.ndarray
    """The result of `sample_covariates` for these samples."""
    has_score_TxC: np.ndarray | None = None
    """Whether attacks that use references have a score, as `ModelDesign.use`; None: all have."""
    base_loss_C: np.ndarray | None = None
    """Losses of the model that the attacked ones were fine-tuned from; None: unknown."""
    _once: dict[Hashable, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        # All attacks share the arrays, so that one which changed them would change the scores of the others.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, field.name, _read_only(value))
        statistics = {name: _read_only(value) for name, value in self.statistics.items()}
        object.__setattr__(self, "statistics", statistics)

    def once(self, function: Callable[..., Out], **arguments: Hashable) -> Out:
        """Returns ``function(self, **arguments)``, which is computed once for all attacks on this block."""
        return call_once(self._once, function, self, arguments)

    def with_references(self, index_R: "ReferenceIndex") -> "Block":
        """Returns the block with only the selected references."""
        return dataclasses.replace(
            self,
            reference_loss_RxC=self.reference_loss_RxC[index_R],
            reference_member_RxC=self.reference_member_RxC[index_R],
        )

    def split(self) -> Iterator["Block"]:
        """Yields parts of the block, one for each task of a thread."""
        for at in sample_slices(self.at.stop - self.at.start):
            yield self.part(at)

    def part(self, at: slice) -> "Block":
        """Returns some samples of the block, by their positions in it."""
        return Block(
            slice(self.at.start + at.start, self.at.start + at.stop),
            self.loss_TxC[:, at],
            self.reference_loss_RxC[:, at],
            self.reference_member_RxC[:, at],
            {name: value_TxC[:, at] for name, value_TxC in self.statistics.items()},
            self.zlib_bytes_C[at],
            self.covariate_CxK[at],
            None if self.has_score_TxC is None else self.has_score_TxC[:, at],
            None if self.base_loss_C is None else self.base_loss_C[at],
        )


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


class SampleTable(Protocol):
    """Properties of the attacked samples, such as a population."""

    def column(self, name: str) -> np.ndarray:
        """Returns column_N: tokens, zlib_bytes or tfidf."""
        ...


class BlockSource(Protocol):
    """Samples under the models of an attack, which are read a block at a time."""

    def blocks(self) -> Iterator[Block]:
        """Yields all samples in order."""
        ...

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        ...


@dataclasses.dataclass(frozen=True)
class FitInputs:
    """What an attack may read before it scores any sample: the attacked models and the references that it uses."""

    source: BlockSource
    """All references are in its blocks."""
    index_R: ReferenceIndex = dataclasses.field(default_factory=lambda: slice(None))
    """Which of them the attack uses."""
    whole: "FitInputs | None" = None
    """The inputs of attacks with all references, whose draws are shared."""
    _once: dict[Hashable, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, function: Callable[..., Out], **arguments: Hashable) -> Out:
        """Returns ``function(self, **arguments)``, which is computed once for all attacks with these references."""
        return call_once(self._once, function, self, arguments)

    def blocks(self) -> Iterator[Block]:
        """Yields all samples in order."""
        for block in self.source.blocks():
            yield block.with_references(self.index_R)

    def draw(self, num_samples: int) -> Block:
        """Returns randomly drawn samples, the same in every call; all samples if there are not more.

        The first draw of a size takes one pass over the samples.
        """
        if self.whole:
            return self.whole.draw(num_samples).with_references(self.index_R)
        drawn = self.once(_draw, num_samples=num_samples)
        return drawn.with_references(self.index_R)

    def select(self, index_R: ReferenceIndex) -> "FitInputs":
        """Returns the inputs of attacks with some of the references of the source."""
        return FitInputs(self.source, index_R, self.whole or self)


@dataclasses.dataclass(frozen=True)
class AttackInputs:
    """What an attack reads: the targets, each with its own membership, and the references. All models are present."""

    store: "Store"
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

    def blocks(self) -> Iterator[Block]:
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
            yield Block(
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
    store: "Store",
    population: SampleTable,
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


def sample_slices(num_samples: int) -> Iterator[slice]:
    """Yields slices that divide samples into parts, one for each task of a thread."""
    for low in range(0, num_samples, _SLICE_SAMPLES):
        yield slice(low, min(low + _SLICE_SAMPLES, num_samples))


def _draw(inputs: FitInputs, num_samples: int) -> Block:
    return draw_samples(inputs.source, num_samples)


def draw_samples(source: BlockSource, num_samples: int) -> Block:
    """Returns randomly drawn samples under all models; the draw is the same in every call.

    RMIA compares with them, and loss models are fitted on them. If fewer samples are attacked, these are all of them.
    """
    order_N2 = permutation(0, "samples that RMIA compares with", source.num_samples)
    return select_samples(source, np.sort(order_N2[:num_samples]))


def select_samples(source: BlockSource, ids_Z: np.ndarray) -> Block:
    """Returns the losses and membership of selected samples, from one pass over the store.

    The block has no statistics and no losses of a base, and all samples count as having a score.

    Args:
      source: the models.
      ids_Z: positions of the samples, ascending.
    """
    parts: list[Block] = []
    for block in source.blocks():
        first, end = np.searchsorted(ids_Z, (block.at.start, block.at.stop))
        index = ids_Z[first:end] - block.at.start
        parts.append(
            dataclasses.replace(
                block,
                loss_TxC=block.loss_TxC[:, index],
                reference_loss_RxC=block.reference_loss_RxC[:, index],
                reference_member_RxC=block.reference_member_RxC[:, index],
                zlib_bytes_C=block.zlib_bytes_C[index],
                covariate_CxK=block.covariate_CxK[index],
                has_score_TxC=None,
                base_loss_C=None,
            )
        )
    return dataclasses.replace(
        parts[0],
        at=slice(0, len(ids_Z)),
        statistics={},
        zlib_bytes_C=np.concatenate([b.zlib_bytes_C for b in parts]),
        covariate_CxK=np.concatenate([b.covariate_CxK for b in parts]),
        loss_TxC=np.concatenate([b.loss_TxC for b in parts], axis=1),
        reference_loss_RxC=np.concatenate([b.reference_loss_RxC for b in parts], axis=1),
        reference_member_RxC=np.concatenate([b.reference_member_RxC for b in parts], axis=1),
    )


def _label_permutation(seed: int, at: slice) -> np.ndarray:
    return permutation(seed, f"shuffled labels {at.start}", at.stop - at.start)


def call_once(
    results: dict[Hashable, Any],
    function: Callable[..., Out],
    source: object,
    arguments: Mapping[str, Hashable],
) -> Out:
    """Returns ``function(source, **arguments)``, which is computed unless it is among the results."""
    key = function, *sorted(arguments.items())  # callers name them in any order
    if key not in results:
        results[key] = function(source, **arguments)
    return results[key]
