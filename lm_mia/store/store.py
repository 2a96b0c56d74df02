"""The score store: loss and statistics of every (model, sample), in Zarr v3, written by many processes, read by xarray.

Models that are also scored before their end have one more dimension, (model, checkpoint, sample), with the coordinate
step.

What makes it safe without a database:
  * a shard never spans two rows or score points; one process writes a row's, whole and once, each by an atomic rename;
  * presence is asked from the key listing, never from values: a row is present when all its shards are, of the loss
    and of every statistic asked for at every score point, and of membership;
  * rows are only ever appended; the group's consolidated metadata, replaced atomically, says how many there are.

M: rows, K: score points and the end, which is the last; N2: samples of the population (2N).
"""

import dataclasses
import itertools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import filelock
import numpy as np
import tensorstore as ts

from lm_mia import config
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.store import reader, schema
from lm_mia.store.reader import samples_per_shard
from lm_mia.store.schema import (
    CHUNK_SAMPLES,
    TOKENS,
    VARIABLES,
    checkpoint_shape,
    kvstore,
    last_dimension,
    variable_spec,
)


@dataclasses.dataclass(frozen=True)
class Store:
    """A score store at a path; every method reads the state on disk afresh."""

    path: Path
    statistics: tuple[str, ...] = ()
    """Variables beside loss and member that a row must have; a store may hold others too, which stay."""
    steps: tuple[int, ...] = ()
    """Score points: the steps, ascending, after which every row is scored beside its end."""
    total_steps: int = 0
    """The step that is the end of a row; must be given where there are score points."""
    step: int = 0
    """The score point that `read` and `blocks` read: one of `steps`, or 0, the end."""
    token_samples: tuple[int, ...] = ()
    """Samples of whose tokens a row must have log-probabilities, one sample after another."""

    def __post_init__(self) -> None:
        if any(a >= b for a, b in itertools.pairwise((0, *self._checkpoint_steps))):
            raise ValueError(
                f"{self._checkpoint_steps}: score points and the end must ascend from 1"
            )
        self._checkpoint_index(self.step)

    @property
    def variables(self) -> tuple[str, ...]:
        """What a row must have, in the order in which it is written."""
        return ("member", "loss", *self.statistics, *((TOKENS,) if self.token_samples else ()))

    @property
    def requirement(self) -> str:
        """What models must have in addition to the loss at the end of training, as the end of a message.

        For example " (with min_k, at step 64)"; empty if that loss is enough.
        """
        parts = [f"with {', '.join(self.statistics)}"] if self.statistics else []
        parts += [f"at step {self.step}"] if self.step else []
        return f" ({', '.join(parts)})" if parts else ""

    def create_or_extend(
        self,
        models: Sequence[ModelSeeds],
        sample_columns: Mapping[str, np.ndarray],
        attributes: dict[str, Any],
        token_columns: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Creates the store if need be and appends what it lacks: wanted rows (absent as yet), statistics.

        Args:
          wanted: rows, in the order in which new ones are appended.
          sample_columns: coordinates of the sample dimension, whole numbers from 0 or float64, each of shape N2.
          attributes: of the group.
          token_columns: of `population.token_columns`, where the store has `token_samples`.

        Raises:
          UserError: the store is damaged.
          ValueError: two models would have the same name.
        """
        with filelock.FileLock(self.path.with_suffix(".lock")):
            old, names = self._read_contents()  # which tells of damage
            schema.remove_deleted_tokens(self.path)
            table = list(dict.fromkeys([*old, *models]))
            if repeated := [n for n, count in Counter(map(str, table)).items() if count > 1]:
                raise ValueError(f"{repeated[0]}: the name of more than one model")
            if table == old and names.issuperset(self.variables):
                return
            columns = {"sample": sample_columns, "token": token_columns}
            size = {of: len(next(iter(named.values()), ())) for of, named in columns.items()}
            coordinates = {"model": schema.model_columns(table)}
            if not old:
                coordinates["checkpoint"] = {"step": np.array(self._checkpoint_steps, np.int64)}
                coordinates["sample"] = {"sample": np.arange(size["sample"]), **sample_columns}
            if TOKENS not in names:
                coordinates["token"] = dict(token_columns)
            schema.write_coordinates(self.path, coordinates, attributes)
            for name in VARIABLES:
                there = (self.path / name / "zarr.json").exists()
                again = name == TOKENS and name not in names
                if name in self.variables and (not there or again):
                    of = size[last_dimension(name)], self.token_samples
                    new = variable_spec(
                        self.path / name, len(table), len(self._checkpoint_steps), *of
                    )
                    # again: what was never consolidated holds nothing, and may be of other tokens
                    ts.open(new, create=True, delete_existing=again).result()
                elif not there:
                    continue
                array = self._open_variable(name, write=True)
                # also undoes a growth that was cut short, whose rows hold nothing yet
                top = [len(table), *[None] * (array.rank - 1)]
                array.resize(exclusive_max=top, resize_metadata_only=True).result()
            schema.consolidate(self.path)

    def models(self) -> list[ModelSeeds]:
        """The rows that the store knows, present or not, in store order; empty if there is no store."""
        return self._read_contents()[0]

    def is_present(self, step: int | None = None) -> np.ndarray:
        """present_M, bool: which rows are whole at a score point (0: the end), or at all; lists keys, reads no data."""
        table, names = self._read_contents()
        at = slice(None) if step is None else [self._checkpoint_index(step)]
        whole_M = np.ones(len(table), bool)
        for name in self.variables if table else ():
            whole_M &= self._complete(name, names, len(table))[:, at].all(axis=1)
        return whole_M

    def missing_models(
        self, models: Sequence[ModelSeeds], step: int | None = None
    ) -> list[ModelSeeds]:
        """Those of the wanted rows that are not present (at a score point, 0: the end; or at all), in their order."""
        present_M = self.is_present(step)
        # Not strict: rows that another command appends just now are absent.
        there = {row for row, ok in zip(self.models(), present_M, strict=False) if ok}
        return [row for row in models if row not in there]

    def write_model(
        self,
        model: ModelSeeds,
        loss_nats_N2: np.ndarray,
        member_N2: np.ndarray,
        statistics: Mapping[str, np.ndarray] = MappingProxyType({}),
        step: int = 0,
    ) -> None:
        """Writes what a row that the store knows lacks at a score point; it is present there once its last shard is.

        A shard that is there stays as it is: a statistic asked for later moves no loss.

        Args:
          row: known to the store.
          loss_nats_N2, member_N2: of every sample.
          statistics: of every sample, at least those of this Store that the row lacks.
          step: of the score point; 0: the end.
        """
        values = {"member": member_N2, "loss": loss_nats_N2, **statistics}
        index = self.models().index(model)
        for low, high, names in self._missing_shards(index, step):
            self._write(index, low, {n: values[n][low:high] for n in names}, step)

    def write_shards(
        self, model: ModelSeeds, low: int, values: Mapping[str, np.ndarray], step: int = 0
    ) -> None:
        """Writes one shard of some variables of a row that the store knows, each by one atomic rename.

        Args:
          row: known to the store.
          low: where the shard begins.
          values: name -> values_C of all its samples.
          step: of the score point; 0: the end.
        """
        self._write(self.models().index(model), low, values, step)

    def _write(self, index: int, low: int, values: Mapping[str, np.ndarray], step: int) -> None:
        for name, value_C in values.items():
            with ts.Transaction() as transaction:  # one write a shard, not one a chunk
                array = self.open_array(name, step, write=True).with_transaction(transaction)
                array[index, low : low + len(value_C)].write(value_C).result()

    def write_tokens(self, model: ModelSeeds, log_prob_T: np.ndarray, step: int = 0) -> None:
        """Writes the log-probabilities of the chosen samples' tokens under a row, at a score point (0: the end)."""
        size = samples_per_shard(self._open_variable(TOKENS))
        for low in range(0, len(log_prob_T), size):
            self.write_shards(model, low, {TOKENS: log_prob_T[low : low + size]}, step)

    def is_missing_tokens(self, model: ModelSeeds, step: int = 0) -> bool:
        """Whether a row lacks log-probabilities of tokens that this Store asks for, at a score point (0: the end)."""
        if not self.token_samples:
            return False
        place = {TOKENS: (self.models().index(model), *self.checkpoint_key(TOKENS, step))}
        return bool(find_missing_shards({TOKENS: self._open_variable(TOKENS)}, place))

    def missing_shards(self, model: ModelSeeds, step: int = 0) -> list[tuple[int, int, list[str]]]:
        """(low, high, variables) of every shard of samples, in order, that a row lacks at a score point (0: the end).

        The variables are of this Store, in the order in which they are written; `lacks_tokens` tells of tokens.
        """
        return self._missing_shards(self.models().index(model), step)

    def _missing_shards(self, index: int, step: int) -> list[tuple[int, int, list[str]]]:
        names = (n for n in self.variables if n != TOKENS)
        place = {name: (index, *self.checkpoint_key(name, step)) for name in names}
        return find_missing_shards({name: self._open_variable(name) for name in place}, place)

    def read(self, models: Sequence[ModelSeeds]) -> tuple[np.ndarray, np.ndarray]:
        """(loss_nats_MxN2 float32, member_MxN2 bool) of rows, all present at `Store.step`; errors as of `blocks`."""
        parts = {name: (name, models) for name in ("loss", "member")}
        [(_, whole)] = self.blocks(parts, sys.maxsize)
        return whole["loss"], whole["member"]

    def blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int = CHUNK_SAMPLES
    ) -> reader.Blocks:
        """All samples at `Store.step` in order, a block at a time, in the memory of two blocks.

        The next block is read while the caller is at work on one: about as fast as the files can be read at all.

        Args:
          parts: name -> (variable, rows); the rows must be present. Order and repetition are the caller's.
          size: samples of a block, best a multiple of 2^16, the store's own chunk; the last block may be shorter.

        Returns:
          An iterator of (samples, {name: values_RxC}), with the variable's own type: bool or float32.

        Raises:
          UserError: naming each absent row, at once; or, while reading, each shard whose checksum fails. Both say how
            to get it rebuilt.
        """
        if size < 1:
            raise ValueError(f"size={size}: must be 1 or larger")
        opened = self._select(requests)
        samples = max((part.array.shape[1] for part in opened.values()), default=0)
        return reader.read_blocks(opened, samples, size)

    def samples(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], ids_S: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Returns {name: values_RxS} of some samples, at `Store.step`; arguments and errors are those of `blocks`."""
        return reader.read_samples(self._select(requests), ids_S)

    def _select(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]]
    ) -> dict[str, reader.ModelSelection]:
        """Opens the arrays of `blocks`; raises UserError for absent models."""
        asked: dict[str, list[ModelSeeds]] = {}
        for variable, wanted in requests.values():
            asked[variable] = list(dict.fromkeys([*asked.get(variable, ()), *wanted]))
        rows, known = self._read_contents()
        table = {row: index for index, row in enumerate(rows)}
        absent: set[ModelSeeds] = set()
        for variable, wanted in asked.items():
            whole_M = self._complete(variable, known, len(rows))[
                :, self._checkpoint_index(self.step)
            ]
            absent |= {row for row in wanted if row not in table or not whole_M[table[row]]}
        if absent:
            everything = list(dict.fromkeys(row for wanted in asked.values() for row in wanted))
            missing = [row for row in everything if row in absent]
            names = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            at = f" at step {self.step}" if self.step else ""
            raise UserError(
                f"{self.path}: {len(missing)} of {len(everything)} models absent{at} ({names}); run `lm-mia run` first"
            )
        arrays = {name: self.open_array(name, self.step) for name in asked}
        return {
            name: reader.ModelSelection(
                self.path / variable,
                arrays[variable],
                [table[row] for row in wanted],
                self.checkpoint_key(variable, self.step),
            )
            for name, (variable, wanted) in requests.items()
        }

    def _read_contents(self) -> tuple[list[ModelSeeds], set[str]]:
        """(rows in store order, names of variables and coordinates) as readers see them; empty if there is no store."""
        if (table := schema.read_contents(self.path)) is None:
            return [], set()
        schema.check_contents(self.path, table, self._checkpoint_steps, self.token_samples)
        return table.models, table.names

    def _complete(self, name: str, names: set[str], known: int) -> np.ndarray:
        """whole_MxK: which of the known rows have all their shards of a variable at each score point."""
        array = self._open_variable(name) if name in names else None
        return complete_models(array, known, len(self.steps) + 1)

    @property
    def _checkpoint_steps(self) -> tuple[int, ...]:
        """The coordinate step of the checkpoint dimension; empty where there is no such dimension."""
        return (*self.steps, self.total_steps) if self.steps else ()

    def _checkpoint_index(self, step: int) -> int:
        """Where a score point is among all of them; the end, 0, is the last."""
        if step and step not in self.steps:
            raise ValueError(f"step={step}: must be 0 or one of {self.steps}")
        return self.steps.index(step) if step else len(self.steps)

    def checkpoint_key(self, name: str, step: int) -> tuple[int, ...]:
        """What stands between row and shard in the keys of a variable at a score point."""
        return (
            (self._checkpoint_index(step),)
            if checkpoint_shape(name, len(self._checkpoint_steps))
            else ()
        )

    def open_array(self, name: str, step: int, write: bool = False) -> ts.TensorStore:
        """A variable at a score point, rows x samples."""
        array = self._open_variable(name, write)
        for place in self.checkpoint_key(name, step):
            array = array[:, place]
        return array

    def _open_variable(self, name: str, write: bool = False) -> ts.TensorStore:
        opening = {"driver": "zarr3", "kvstore": kvstore(self.path / name)}
        # Else a shard of nothing but fill values would never be written, and its row never be present.
        opening |= {"store_data_equal_to_fill_value": True}
        try:
            array = ts.open(opening, read=True, write=write, open=True).result()
        except ValueError as error:
            raise schema.damaged_store_error(self.path, f"{name}/zarr.json") from error
        if array.shape[1:-1] != checkpoint_shape(name, len(self._checkpoint_steps)):
            raise schema.damaged_store_error(self.path, f"{name}/zarr.json")
        return array


def complete_models(array: ts.TensorStore | None, known: int, points: int) -> np.ndarray:
    """whole_MxK: which of the known rows have all shards of a variable at each score point; of None, no row has.

    Membership, which is the same at all score points, counts at each of them.
    """
    found_MxK = np.zeros((known, points), np.int64)
    if array is None:
        return found_MxK.astype(bool)
    assert array.kvstore is not None
    for key in array.kvstore.list().result():
        prefix, *place = key.decode().split("/")
        if prefix == "c" and len(place) == array.rank and int(place[0]) < known:
            at = int(place[1]) if array.rank == 3 else slice(None)
            found_MxK[int(place[0]), at] += 1
    return found_MxK == -(-array.shape[-1] // samples_per_shard(array))


def find_missing_shards(
    arrays: Mapping[str, ts.TensorStore], places: Mapping[str, tuple[int, ...]]
) -> list[tuple[int, int, list[str]]]:
    """(low, high, names) of every shard of samples that one of the arrays lacks, in order.

    Args:
      arrays: name -> array, all of as many samples a shard.
      places: name -> what stands before the shard's number in its key.
    """
    found: dict[int, list[str]] = {}
    size = samples = 0
    for name, array in arrays.items():
        size, samples = samples_per_shard(array), array.shape[-1]
        assert array.kvstore is not None
        folder = "/".join(("c", *map(str, places[name]), ""))
        # "0" is the character after "/"
        keys = array.kvstore.list(ts.KvStore.KeyRange(folder, folder[:-1] + "0")).result()
        there = {int(key.decode().rpartition("/")[2]) for key in keys}
        for shard in range(-(-samples // size)):
            if shard not in there:
                found.setdefault(shard, []).append(name)
    return [(n * size, min((n + 1) * size, samples), found[n]) for n in sorted(found)]


def open_store(c: config.Config, recipe: Path) -> Store:
    """The recipe's score store, whose rows have what the config asks for."""
    steps, total = config.score_steps(c), config.total_steps(c)
    asked = c.score.token_samples
    return Store(recipe / "scores.zarr", c.score.statistics, steps, total, token_samples=asked)


def with_stored_statistics(c: config.Config, recipe: Path) -> config.Config:
    """The config, asking also for all that the recipe's score store has: statistics, and tokens of samples."""
    path = recipe / "scores.zarr"
    if (table := schema.read_contents(path)) is None:
        return c
    more = [n for n in VARIABLES if n in table.names and n not in ("member", "loss", TOKENS)]
    statistics: Any = tuple(dict.fromkeys([*c.score.statistics, *more]))
    ids = schema.token_samples(path) if TOKENS in table.names else c.score.token_samples
    score = dataclasses.replace(c.score, statistics=statistics, token_samples=ids)
    return dataclasses.replace(c, score=score)
