"""Score stores of synthetic losses and attacks on them, shared by tests."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from views import view_of

from lm_mia import config
from lm_mia.attacks import runner
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.store.store import Store


class FakePopulation:
    """The part of a population that attacks use."""

    first_id = 0
    is_imported = True
    """As for imported losses, there are no tokens."""
    is_shuffled = False

    def __init__(self, samples: int, pieces: int = 1) -> None:
        """Creates a population whose documents have this number of consecutive samples."""
        self.lengths_N = np.arange(samples) % 7 + 3
        number_N = np.arange(samples)
        self.columns = {"tokens": self.lengths_N, "unk": number_N % 3}
        self.columns |= {"zlib_bytes": 40 + number_N * 13 % 101}
        self.columns |= {"tfidf": 1 + number_N % 5 / 4, "prefix_group": number_N // 2 * 2}
        self.columns |= {"source": np.full(samples, "", object)}
        self.has_split_documents, self.document_N = pieces > 1, number_N // pieces
        if self.has_split_documents:
            self.columns |= {"document": self.document_N, "piece": number_N % pieces}

    def column(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def column_names(self) -> frozenset[str]:
        return frozenset(self.columns)

    def sample_columns(self) -> dict[str, np.ndarray]:
        return {name: column_N for name, column_N in self.columns.items() if name != "source"}

    def __len__(self) -> int:
        return len(self.lengths_N)

    def from_sample(self, first: int) -> "FakePopulation":
        rest = copy.copy(self)
        rest.first_id, rest.lengths_N = first, self.lengths_N[first:]
        rest.document_N = self.document_N[: len(rest)]
        rest.columns = {name: column_N[first:] for name, column_N in self.columns.items()}
        return rest

    def text(self, i: int) -> str:
        return f"text {i} " + "x" * 500

    def texts(self, i_S: np.ndarray) -> list[str]:
        return [self.text(i) for i in i_S]


@dataclasses.dataclass(frozen=True)
class SyntheticScores:
    """A score store, with references first, and its values."""

    store: Store
    references: int
    loss_MxN: np.ndarray
    member_MxN: np.ndarray
    statistics: Mapping[str, np.ndarray]
    pieces: int = 1
    """Number of samples per document."""

    @property
    def population(self) -> Population:
        return cast(Population, FakePopulation(self.loss_MxN.shape[1], self.pieces))

    @property
    def reference_MxN(self) -> np.ndarray:
        return self.loss_MxN[: self.references]

    @property
    def reference_member_MxN(self) -> np.ndarray:
        return self.member_MxN[: self.references]

    @property
    def target_TxN(self) -> np.ndarray:
        return self.loss_MxN[self.references :]

    @property
    def member_N(self) -> np.ndarray:
        return self.member_MxN[self.references]


def write_scores(
    folder: Path,
    c: config.Attack,
    samples: int,
    design: subsets.Design = "exact",
    effect: float = 0.3,
    statistics: Sequence[str] = (),
    absent: Sequence[int] = (),
    labels: Callable[[np.ndarray], None] = lambda member_MxN: None,
) -> SyntheticScores:
    """Writes a store in which samples differ by 0.5 nats, models by 0.2, and members have lower losses.

    Args:
      folder: folder of the recipe's folder.
      c: numbers of references and replicas.
      samples: number of samples.
      design: of the training subsets.
      effect: how much training on a sample lowers its loss, in nats.
      statistics: names of further statistics.
      absent: indices of models without values.
      labels: may change the membership in place.
    """
    rng = np.random.default_rng(0)
    models = subsets.requested_seeds(c.references, c.replicas)
    member_MxN = subsets.members(models, samples, design)
    labels(member_MxN)
    level_N, noise_MxN = rng.normal(4, 0.5, samples), rng.normal(0, 0.2, member_MxN.shape)
    loss_MxN = (level_N - effect * member_MxN + noise_MxN).astype(np.float32)
    values = {
        "min_k": -1.5 * loss_MxN,
        "min_k_plus_plus": -loss_MxN / level_N,
        "lowercase_loss": level_N + 0.4 + rng.normal(0, 0.1, loss_MxN.shape),
    }
    values = {name: values[name].astype(np.float32) for name in statistics}
    store = Store(folder / "recipe_x" / "scores.zarr", tuple(statistics))
    store.path.parent.mkdir(parents=True)
    store.create_or_extend(models, {"tokens": np.arange(samples)}, {})
    for m, model in enumerate(models):
        if m not in absent:
            statistics_of_model = {name: value_MxN[m] for name, value_MxN in values.items()}
            store.write_model(model, loss_MxN[m], member_MxN[m], statistics_of_model)
    present = [m for m in range(len(models)) if m not in absent]
    return SyntheticScores(
        store,
        sum(m < c.references for m in present),
        loss_MxN[present],
        member_MxN[present],
        {name: value_MxN[present] for name, value_MxN in values.items()},
    )


@dataclasses.dataclass(frozen=True)
class AttackRun:
    """An attack on a store, with its tables, messages and progress."""

    scores: SyntheticScores
    c: config.Attack
    folder: Path
    messages: list[str]
    progress: list[tuple[str, int, int]]

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name)

    def samples(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "samples.parquet")


def run_attacks(scores: SyntheticScores, c: config.Attack, folder: Path) -> AttackRun:
    """Runs the attacks on a store."""
    out = AttackRun(scores, c, folder, [], [])
    view = view_of(
        scores.store,
        scores.population,
        c,
        folder.with_name(f"{folder.name}-pieces"),
        progress=lambda *n: out.progress.append(n),
        say=out.messages.append,
    )
    runner.run(view, folder)
    return out


SMALL = config.Attack(
    references=12,
    replicas=8,
    fprs=(0.02, 0.1, 0.5, 1.0),
    focus_fpr=0.1,
    band=(0.01, 0.2),
    rmia_samples=100,
    bootstraps=30,
    clear_separation=1.5,
)

TABLES_OF_REPLICAS = (
    "error_rates.csv",
    "thresholds.csv",
    "flip_shares.csv",
    "flip_shares_by_replicas.csv",
    "true_positives.csv",
    "replica_true_positives.csv",
    "coin_free_roc.csv",
    "partial_auc.csv",
    "samples.parquet",
    "flip_curves.csv",
    "archetypes.csv",
    "archetype_losses.csv",
    "shown_samples.parquet",
    "advantage.csv",
    "audit.csv",
    "audit_curve.csv",
    "intervals.csv",
    "attack_flips.csv",
    "reference_targets.csv",
    "true_positive_probability.parquet",
    "membership_scores.parquet",
    "attacks.csv",
    "roc.csv",
    "shuffled.csv",
    "decision_jackknife.parquet",
    "resampled_references.csv",
    "flips.json",
    "attacked_models.csv",
    "strength_parts.parquet",
    "strength.csv",
    "headline_roc.csv",
    "headline_samples.parquet",
    "page_samples.parquet",
    "exposed.csv",
    "found_again.csv",
    "found_by_text.csv",
)
"""Tables of attacks on replicas; some are written only if settings request them."""
