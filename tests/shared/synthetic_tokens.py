"""A score store with log-probabilities of tokens, and the tables of tokens that are made from it."""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from synthetic_scores import SMALL
from table_case import compute, set_of_study, working

from analysis.experiments.open import tokens
from lm_mia.attacks.experiment import TokenSettings
from lm_mia.data import subsets
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population, token_columns
from lm_mia.seeds import rng
from lm_mia.store.store import Store

SAMPLES, LENGTH, VOCAB, REFERENCES = 60, 12, 50, 16
IDS = tuple(range(3, 55))
SETTINGS = TokenSettings(IDS, prefix_tokens=5, suffix_tokens=4, batches=Batches(4, 2))
C = dataclasses.replace(SMALL, references=REFERENCES, variance="pooled")
MODELS = [*map(subsets.reference, range(REFERENCES))]


@dataclasses.dataclass(frozen=True)
class Texts:
    """The part of a population that tables of tokens use; every third sample is too short for a suffix."""

    tokens: np.ndarray
    offsets_N1: np.ndarray
    vocab_size = VOCAB
    document_N = np.arange(SAMPLES)

    @property
    def lengths_N(self) -> np.ndarray:
        return np.diff(self.offsets_N1)

    def __len__(self) -> int:
        return len(self.offsets_N1) - 1

    @property
    def tokenizer(self) -> "Pieces":
        return Pieces()

    def sample(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets_N1[i] : self.offsets_N1[i + 1]]


class Pieces:
    """The part of a tokenizer that tables of tokens use."""

    def piece(self, token: int) -> str:
        return f"▁{token}"


def population() -> Population:
    offsets_N1 = np.append(0, np.cumsum(np.where(np.arange(SAMPLES) % 3 == 0, 8, LENGTH)))
    tokens = np.minimum(rng(0, "pieces").geometric(0.1, offsets_N1[-1]), VOCAB - 1)
    return cast(Population, Texts(tokens, offsets_N1))


@dataclasses.dataclass(frozen=True)
class World:
    store: Store
    folder: Path
    columns: dict[str, np.ndarray]
    """The result of `token_columns`."""
    log_prob_MxT: np.ndarray
    loss_MxN: np.ndarray
    member_MxN: np.ndarray

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name)


def run(world: World, settings: TokenSettings = SETTINGS) -> list[str]:
    messages: list[str] = []
    path = world.folder / "shown_samples.parquet"
    shown = {path.name: pd.read_parquet(path, columns=["id"])} if path.exists() else {}
    with working(world.folder, messages.append) as (work, _):
        tables = set_of_study(tokens.STUDY, world.store, population(), C, work, settings, shown)
        compute(tables, world.folder)
    return messages


def write_token_tables(folder: Path) -> World:
    """Writes a store and the tables of tokens in a folder; tokens of members are more likely by 0.5 nats."""
    columns = token_columns(population(), IDS)
    member_MxN = subsets.members(MODELS, SAMPLES, "exact")
    noise = rng(0, "noise")
    member_MxT = member_MxN[:, columns["token_sample"]]
    level_T = noise.normal(-4, 1, member_MxT.shape[1])
    log_prob_MxT = np.minimum(
        level_T + 0.5 * member_MxT + noise.normal(0, 0.5, member_MxT.shape), -0.01
    ).astype(np.float32)
    log_prob_MxT[:, columns["token_position"] == 0] = np.nan
    loss_MxN = noise.normal(4, 0.3, member_MxN.shape).astype(np.float32)
    for n in IDS:
        of_sample = columns["token_sample"] == n
        loss_MxN[:, n] = -np.nanmean(log_prob_MxT[:, of_sample], axis=1)
    path = folder.with_name("scores.zarr")
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(path, token_samples=IDS)
    store.create_or_extend(MODELS, {"tokens": np.arange(SAMPLES)}, {}, columns)
    for m, model in enumerate(MODELS):
        store.write_model(model, loss_MxN[m], member_MxN[m])
        store.write_tokens(model, log_prob_MxT[m])
    # The runner opens the store without the tokens, which attacks do not need.
    store = dataclasses.replace(store, token_samples=())
    made = World(store, folder, columns, log_prob_MxT, loss_MxN, member_MxN)
    assert run(made) == []
    return made
