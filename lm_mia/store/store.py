"""The score store: the loss and other statistics of every sample under every model, in Zarr v3.

Many processes write it at once, and xarray reads it. Its dimensions are (model, sample). If models are also scored
during training, they are (model, checkpoint, sample), and the coordinate `step` holds each checkpoint's training step.

The store is safe without a database:
  * A shard belongs to one model and one checkpoint. One process writes it once, as a whole, by an atomic rename.
  * Whether a model is present follows from the keys on disk, never from values: a model is present if all shards of
    its membership, of its loss and of all required statistics exist at every checkpoint.
  * The coordinate `digest` is a hash of all of a model's values of samples. It is removed before a shard is written,
    and written after the last one, when it completes the model. So a digest is never that of other values. The same
    holds for `details_digest`, of the log-probabilities of tokens and of the record of how the model was trained.
  * Models are only appended. Readers take the number of models from the group's consolidated metadata, which is
    replaced atomically.

M: models, K: checkpoints, the last of which is the end of training, N2: samples of the population (2N), C: samples of a
shard, S: selected samples, R: models of one request, W: tokens.
"""

import dataclasses
import functools
import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import filelock
import numpy as np
import tensorstore as ts

from lm_mia import config
from lm_mia.data.subsets import Design, ModelSeeds
from lm_mia.errors import UserError, raise_failed_read
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

MEAN_LOSSES = ("member_loss_nats", "nonmember_loss_nats")
"""The mean losses of a model on members and on non-members, in the order of `Store.mean_losses`."""
NOT_REPRODUCIBLE = "not reproducible"
"""First words of the record of a model whose seeds do not determine its bits."""
_COMPUTATION_LENGTH = 160  # characters that the coordinate holds
_DETAIL_LENGTH = 16  # hex digits of each half of a details digest


@dataclasses.dataclass(frozen=True)
class Store:
    """A score store and the values that its models must have; every method reads the current state on disk."""

    path: Path
    statistics: tuple[str, ...] = ()
    """Variables that a model must have in addition to `loss` and `member`; the store may contain others."""
    steps: tuple[int, ...] = ()
    """Training steps, ascending, after which every model is scored in addition to the end of training."""
    total_steps: int = 0
    """Number of training steps of a model; required if `steps` is not empty."""
    step: int = 0
    """The step whose values `read`, `blocks` and `samples` return: one of `steps`, or 0 for the end of training."""
    token_samples: tuple[int, ...] = ()
    """Ids of the samples for whose tokens a model must have log-probabilities."""
    first_canary: int = 0
    """Id of the first sample in which training subsets differ; those before it are in all of them."""
    design: Design = "exact"
    """How the members of the models were drawn."""

    def __post_init__(self) -> None:
        if any(a >= b for a, b in itertools.pairwise((0, *self._checkpoint_steps))):
            raise ValueError(
                f"steps={self.steps}, total_steps={self.total_steps}: must be positive and in ascending order"
            )
        self._checkpoint_index(self.step)
        if unknown := [name for name in self.statistics if name not in VARIABLES]:
            raise ValueError(
                f"statistics={unknown}: the score store has no such variable; add it to VARIABLES in "
                "lm_mia/store/schema.py"
            )

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that a model must have, in the order in which they are written."""
        return ("member", "loss", *self.statistics, *((TOKENS,) if self.token_samples else ()))

    @property
    def requirement(self) -> str:
        """The values that models must have in addition to the loss at the end of training, for the end of a message.

        For example " (with min_k, at step 64)"; empty if there are none.
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
        """Creates the store if it does not exist, and adds the models and statistics that it does not have yet.

        New models have no values until these are written.

        Args:
          models: the required models; new ones are appended in this order.
          sample_columns: coordinates of the sample dimension, each of shape N2; nonnegative integers or float64.
          attributes: attributes of the Zarr group.
          token_columns: the result of `population.token_columns`, if `token_samples` is not empty.

        Raises:
          UserError: if the store is damaged.
          ValueError: if two models have the same name.
        """
        with filelock.FileLock(self.path.with_suffix(".lock")):
            old_models, names = self._read_contents()  # raises UserError if the store is damaged
            schema.remove_deleted_tokens(self.path)
            all_models = list(dict.fromkeys([*old_models, *models]))
            counts = Counter(map(str, all_models))
            if repeated := [name for name, count in counts.items() if count > 1]:
                raise ValueError(f"{repeated[0]}: two models have this name")
            if all_models == old_models and names.issuperset(self.variables):
                return
            columns = {"sample": sample_columns, "token": token_columns}
            sizes = {
                dimension: len(next(iter(named.values()), ()))
                for dimension, named in columns.items()
            }
            coordinates = {"model": schema.model_columns(all_models)}
            if not old_models:
                coordinates["checkpoint"] = {"step": np.array(self._checkpoint_steps, np.int64)}
                coordinates["sample"] = {"sample": np.arange(sizes["sample"]), **sample_columns}
            if TOKENS not in names:
                coordinates["token"] = dict(token_columns)
            schema.write_coordinates(self.path, coordinates, attributes)
            for name in VARIABLES:
                self._create_or_extend_variable(name, names, len(all_models), sizes)
            schema.extend_other_variables(self.path, len(all_models))
            schema.consolidate(self.path)

    def _create_or_extend_variable(
        self, name: str, consolidated_names: set[str], num_models: int, sizes: Mapping[str, int]
    ) -> None:
        """Creates a required variable, or resizes an existing one; ``sizes`` are those of "sample" and "token"."""
        path = self.path / name
        exists = (path / "zarr.json").exists()
        # A token variable that was never consolidated has no values and may be for other tokens.
        recreate = name == TOKENS and name not in consolidated_names
        if name in self.variables and (not exists or recreate):
            size = sizes[last_dimension(name)]
            spec = variable_spec(
                path, num_models, len(self._checkpoint_steps), size, self.token_samples
            )
            ts.open(spec, create=True, delete_existing=recreate).result()
        elif not exists:
            return
        array = self._open_variable(name, write=True)
        # This also undoes an interrupted extension, whose models have no values yet.
        shape = [num_models, *[None] * (array.rank - 1)]
        array.resize(exclusive_max=shape, resize_metadata_only=True).result()

    def models(self) -> list[ModelSeeds]:
        """Returns the models of the store, present or not, in store order; empty if there is no store."""
        return self._read_contents()[0]

    def _index(self, model: ModelSeeds) -> int:
        return self._known()[0][model]

    def _known(self) -> tuple[dict[ModelSeeds, int], set[str]]:
        """Returns ({model: index}, names of variables); reads the store only if it has changed since the last call.

        Adding models or variables replaces the metadata file, so a sweep that writes many models reads the store once.
        """
        stamp = schema.file_stamp(self.path / "zarr.json")
        return _known_at(self, stamp) if stamp else _read_known(self)

    def is_present(self, step: int | None = None) -> np.ndarray:
        """Returns present_M, bool: whether each model of the store has all required values.

        Lists the keys on disk and reads no values.

        Args:
          step: one of `steps`, or 0 for the end of training; None requires the values at all of these, and the digest.
        """
        stored, names = self._read_contents()
        return self._is_present(range(len(stored)), len(stored), names, step)

    def missing_models(
        self, models: Sequence[ModelSeeds], step: int | None = None
    ) -> list[ModelSeeds]:
        """Returns the models that are not present, in the given order; `step` as in `is_present`.

        Lists the keys of these models only.
        """
        stored, names = self._read_contents()
        index = {model: i for i, model in enumerate(stored)}
        index_R = [index[model] for model in models if model in index]
        present_R = self._is_present(index_R, len(stored), names, step)
        present = {
            stored[i] for i, is_present in zip(index_R, present_R, strict=True) if is_present
        }
        return [model for model in models if model not in present]

    def _is_present(
        self, index_R: Sequence[int], num_models: int, names: set[str], step: int | None
    ) -> np.ndarray:
        """Returns present_R of the models with these indices, of all `num_models`; `step` as in `is_present`."""
        checkpoints = slice(None) if step is None else [self._checkpoint_index(step)]
        present_R = np.ones(len(index_R), bool)
        for name in self.variables if len(index_R) else ():
            complete_RxK = self._complete(name, names, index_R, num_models)
            present_R &= complete_RxK[:, checkpoints].all(axis=1)
        if step is None:
            for name in {schema.DIGEST, *({schema.DETAILS} & names)}:
                exists_R = [schema.digest_file(self.path, i, name).exists() for i in index_R]
                present_R &= np.array(exists_R, bool)
        return present_R

    def write_model(
        self,
        model: ModelSeeds,
        loss_nats_N2: np.ndarray,
        member_N2: np.ndarray,
        statistics: Mapping[str, np.ndarray] = MappingProxyType({}),
        step: int = 0,
    ) -> None:
        """Writes the missing shards of a model at one step.

        The model is present at that step as soon as its last shard is written, and its digest is written when it is
        present at all steps. Existing shards are kept as they are:
        adding a statistic later does not change the losses.

        Args:
          model: a model of the store.
          loss_nats_N2, member_N2: loss and membership of every sample.
          statistics: name -> value_N2; must include the required statistics that the model does not have yet.
          step: one of `steps`, or 0 for the end of training.
        """
        values = {"member": member_N2, "loss": loss_nats_N2, **statistics}
        index = self._index(model)
        for low, high, names in self._missing_shards(index, step):
            self._write(index, low, {n: values[n][low:high] for n in names}, step)
        self.write_digest(model)

    def copy_untrained(self, model: ModelSeeds, source: "Store") -> None:
        """Writes what a model that is not trained, such as a base, lacks at any step: its values in another store.

        Args:
          model: a model of both stores, with the same values at every step.
          source: has all that this store requires of the model, at the end of training. It may be this store.
        """
        names = [name for name in self.variables if name != TOKENS]
        [(_, values)] = source.blocks({name: (name, [model]) for name in names}, sys.maxsize)
        value_N2 = {name: value_1xN2[0] for name, value_1xN2 in values.items()}
        loss_nats_N2, member_N2 = value_N2.pop("loss"), value_N2.pop("member")
        for step in (*self.steps, 0):
            self.write_model(model, loss_nats_N2, member_N2, value_N2, step)
            if self.is_missing_tokens(model, step):
                [(_, tokens)] = source.blocks({TOKENS: (TOKENS, [model])}, sys.maxsize)
                self.write_tokens(model, tokens[TOKENS][0], step)
        self.write_digest(model)

    def write_shards(
        self, model: ModelSeeds, low: int, values: Mapping[str, np.ndarray], step: int = 0
    ) -> None:
        """Writes one shard of each of several variables of a model, each by one atomic rename.

        Args:
          model: a model of the store.
          low: index of the shard's first sample.
          values: name of a variable -> value_C of all samples of the shard.
          step: one of `steps`, or 0 for the end of training.
        """
        self._write(self._index(model), low, values, step)

    def _write(self, index: int, low: int, values: Mapping[str, np.ndarray], step: int) -> None:
        schema.digest_file(self.path, index, schema.DETAILS).unlink(missing_ok=True)
        if {*values} != {TOKENS}:
            schema.digest_file(self.path, index).unlink(missing_ok=True)
        for name, value_C in values.items():
            with ts.Transaction() as transaction:  # one write per shard instead of one per chunk
                array = self.open_array(name, step, write=True).with_transaction(transaction)
                array[index, low : low + len(value_C)].write(value_C).result()

    def write_digest(self, model: ModelSeeds) -> bool:
        """Writes the digests of a model if it lacks them; returns False if the model lacks values, and so has none.

        `digest` is a hash of the membership, the losses and all other statistics that are complete, with their names,
        at all of `steps` and the end of training. Models with equal values have equal digests, whether lm_mia scored
        them or they were imported. Log-probabilities of tokens, of which other samples may be stored later, and the
        record of how the model was trained are no part of it: they have the two halves of `details_digest`.
        """
        index = self._index(model)
        complete = self._complete_variables(index)
        if not {*self.variables} - {TOKENS} <= {*complete}:
            return False
        if not schema.digest_file(self.path, index).exists():
            schema.write_digest(self.path, index, self._digest(index, complete))
        self._write_details(index)
        return True

    def _write_details(self, index: int) -> None:
        """Writes the details digest of a model if it lacks it; only one that has a digest can have it."""
        file = schema.digest_file(self.path, index, schema.DETAILS)
        is_complete = schema.digest_file(self.path, index).exists()
        if is_complete and schema.DETAILS in self._known()[1] and not file.exists():
            record = _record_digest(schema.read_computations(self.path)[index])
            tokens = self._digest(index, self._complete_tokens(index))[:_DETAIL_LENGTH]
            schema.write_digest(self.path, index, record + tokens, schema.DETAILS)

    def _complete_tokens(self, index: int) -> tuple[str, ...]:
        """Returns the variable of tokens if a model has all shards of it at all steps; otherwise nothing."""
        index_of, names = self._known()
        is_complete = self._complete(TOKENS, names, [index], len(index_of)).all()
        return (TOKENS,) if is_complete else ()

    def damaged_details(self) -> dict[Path, str]:
        """Returns {file: what happened to it} of digests, records of training and log-probabilities of tokens.

        The files were deleted, or replaced by those of other models; a model that is not complete has no digests.

        Raises:
          UserError: if the store is damaged, or shards have wrong checksums.
        """
        if schema.DETAILS not in self._known()[1]:
            return {}
        digests, details = (
            schema.read_digests(self.path, n) for n in (schema.DIGEST, schema.DETAILS)
        )
        computations = schema.read_computations(self.path)
        damaged: dict[Path, str] = {}
        stored = zip(digests, details, computations, strict=True)
        for index, (digest, detail, computation) in enumerate(stored):
            if bool(digest) != bool(detail):
                name = schema.DETAILS if digest else schema.DIGEST
                damaged[schema.digest_file(self.path, index, name)] = "was deleted"
            if not detail:
                continue
            is_record = detail.startswith(_record_digest(computation))
            tokens = self._complete_tokens(index)
            stamps = tuple(schema.file_stamp(file) for file in self._files(index, tokens))
            is_tokens = _has_digest(self, index, tokens, detail[_DETAIL_LENGTH:], stamps)
            files: list[Path] = []
            if not (is_record or is_tokens):  # rather the digest than both
                files = [schema.digest_file(self.path, index, schema.DETAILS)]
            elif not is_record:
                files = [schema.computation_file(self.path, index)]
            elif not is_tokens:
                files = [*self._files(index, [TOKENS])]
            damaged |= dict.fromkeys(files, "was deleted, or replaced by that of another model")
        return damaged

    def _complete_variables(self, index: int) -> list[str]:
        """Returns the variables of samples of which a model has all shards at all steps, in alphabetical order."""
        index_of, names = self._known()
        return [
            name
            for name in sorted(VARIABLES.keys() & names - {TOKENS})
            if self._complete(name, names, [index], len(index_of)).all()
        ]

    def models_with_other_values(self, models: Sequence[ModelSeeds]) -> list[ModelSeeds]:
        """Returns the models whose values are not those that their digests were computed of.

        Checksums show that a shard was changed. Digests also show that it was deleted, or replaced by a shard of
        another model. Models without a digest, which are not complete yet, are left out. Reading takes about a second
        for each GB; models that this process has read before are read again only if their files have changed.

        Args:
          models: models of the store.

        Raises:
          UserError: if the store is damaged, or shards have wrong checksums.
        """
        known, index_of = self.known_digests(), self._known()[0]
        other = []
        for model in (model for model in models if known.get(model)):
            index = index_of[model]
            names = tuple(self._complete_variables(index))
            stamps = tuple(schema.file_stamp(file) for file in self._files(index, names))
            if not _has_digest(self, index, names, known[model], stamps):
                other.append(model)
        return other

    def check_digests(self, models: Sequence[ModelSeeds]) -> None:
        """Raises UserError if the values of models are not those that their digests were computed of.

        So do the details of all models of the store, see `damaged_details`.
        """
        if damaged := self.damaged_details():
            lines = [
                f"{path}: {what}; run `lm-mia score --repair`" for path, what in damaged.items()
            ]
            raise UserError("\n".join(lines))
        if other := self.models_with_other_values(models):
            named = ", ".join(map(str, other[:5])) + (", ..." if len(other) > 5 else "")
            files = ", ".join(str(self.path / name / "c" / "N") for name in ("loss", "member"))
            indices = ", ".join(str(self._index(model)) for model in other[:5])
            raise UserError(
                f"{self.path}: the values of {named} are not those that were written: a file in {files} "
                f"(N = {indices}) was deleted, or replaced by that of another model; run `lm-mia score --repair` to "
                "compute them again from checkpoints, or `lm-mia import` if the losses were imported"
            )

    def _files(self, index: int, names: Sequence[str]) -> Iterator[Path]:
        for name in names:
            for step in (*self.steps, 0) if name != "member" else (0,):
                array = self.open_array(name, step)
                folder = self.path.joinpath(
                    name, "c", *map(str, (index, *self.checkpoint_key(name, step)))
                )
                for shard in range(-(-array.shape[-1] // samples_per_shard(array))):
                    yield folder / str(shard)

    def _digest(self, index: int, names: Sequence[str]) -> str:
        """Returns 32 hex digits; memory does not grow with the number of samples beyond one shard."""
        total = hashlib.sha256()
        for name in names:
            for step in (*self.steps, 0) if name != "member" else (0,):
                array, key = self.open_array(name, step), self.checkpoint_key(name, step)
                selection = reader.ModelSelection(self.path / name, array, [index], key)
                total.update(f"{name} {step} {array.shape[-1]}\0".encode())
                size = samples_per_shard(array)
                for _, block in reader.read_blocks({name: selection}, array.shape[-1], size):
                    total.update(block[name].tobytes())
        return total.hexdigest()[: schema.STRING.itemsize // 4]

    def digests(self, models: Sequence[ModelSeeds]) -> list[str]:
        """Returns the digest of each of these models; see `write_digest`.

        Raises:
          UserError: if models are missing, or the store is damaged.
        """
        known = self.known_digests()
        if missing := {model for model in models if not known.get(model)}:
            self._raise_missing(missing, {schema.DIGEST: list(models)})
        return [known[model] for model in models]

    def known_digests(self) -> dict[ModelSeeds, str]:
        """Returns the digest of each model in the store, in its order; "" for models whose scores are not complete."""
        stored = self.models()
        return dict(zip(stored, schema.read_digests(self.path) if stored else [], strict=True))

    def add_computation(self, model: ModelSeeds, computation: str, is_continued: bool) -> None:
        """Records how a model is trained: the kernel of attention, the devices, and whether it is reproducible.

        Args:
          model: a model of the store.
          computation: as `computations` returns it.
          is_continued: whether training continues from a checkpoint. If it was computed in another way before, the
            record names both, and the model is not reproducible.
        """
        index = self._index(model)
        before = schema.read_computations(self.path)[index] if is_continued else ""
        if before:
            is_same = computation in before
            computation = before if is_same else f"{NOT_REPRODUCIBLE}: {before}; {computation}"
        if computation != before:
            schema.digest_file(self.path, index, schema.DETAILS).unlink(missing_ok=True)
            schema.write_computation(self.path, index, computation[:_COMPUTATION_LENGTH])
            self._write_details(index)

    def computations(self) -> dict[ModelSeeds, str]:
        """Returns how each model in the store was trained; "" where that was not recorded, as for imported losses.

        Those that are not reproducible begin with `NOT_REPRODUCIBLE`.
        """
        stored = self.models()
        return dict(zip(stored, schema.read_computations(self.path) if stored else [], strict=True))

    def write_tokens(self, model: ModelSeeds, log_prob_W: np.ndarray, step: int = 0) -> None:
        """Writes the log-probabilities of the tokens of `token_samples` under a model; `step` as in `write_model`."""
        size = samples_per_shard(self._open_variable(TOKENS))
        for low in range(0, len(log_prob_W), size):
            self.write_shards(model, low, {TOKENS: log_prob_W[low : low + size]}, step)
        self._write_details(self._index(model))

    def is_missing_tokens(self, model: ModelSeeds, step: int = 0) -> bool:
        """Returns whether a model lacks required log-probabilities of tokens; `step` as in `write_model`."""
        if not self.token_samples:
            return False
        key = {TOKENS: (self._index(model), *self.checkpoint_key(TOKENS, step))}
        return bool(find_missing_shards({TOKENS: self._open_variable(TOKENS)}, key))

    def missing_shards(self, model: ModelSeeds, step: int = 0) -> list[tuple[int, int, list[str]]]:
        """Returns (low, high, variables) of each range of samples for which a model has missing shards, in order.

        Tokens are not included; see `is_missing_tokens`.

        Args:
          model: a model of the store.
          step: one of `steps`, or 0 for the end of training.

        Returns:
          The first sample of the shard, the end of the shard (exclusive), and the variables for which it is missing, in
          the order in which they are written.
        """
        return self._missing_shards(self._index(model), step)

    def _missing_shards(self, index: int, step: int) -> list[tuple[int, int, list[str]]]:
        names = (n for n in self.variables if n != TOKENS)
        keys = {name: (index, *self.checkpoint_key(name, step)) for name in names}
        return find_missing_shards({name: self._open_variable(name) for name in keys}, keys)

    def read(self, models: Sequence[ModelSeeds]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (loss_nats_MxN2 float32, member_MxN2 bool) of models at `Store.step`; raises errors as `blocks`."""
        requests = {name: (name, models) for name in ("loss", "member")}
        [(_, values)] = self.blocks(requests, sys.maxsize)
        return values["loss"], values["member"]

    def blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int = CHUNK_SAMPLES
    ) -> reader.Blocks:
        """Returns an iterator over blocks of consecutive samples, with their values at `Store.step`.

        The next block is read while the caller uses the current one, so that two blocks are in memory. Reading is about
        as fast as reading the files.

        Args:
          requests: name of a result -> (variable, models). The models must be present; a model may be repeated.
          size: number of samples per block, preferably a multiple of 2^16, the chunk size of the store; the last block
            may be shorter.

        Returns:
          An iterator of (slice of samples, {name of a result: value_RxC}), in the data type of the variable: bool or
          float32.

        Raises:
          UserError: immediately if models are missing, and while reading if shards have wrong checksums. The message
            names them and the remedy.
        """
        return self._blocks(requests, size, 0)

    def canary_blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int = CHUNK_SAMPLES
    ) -> reader.Blocks:
        """Returns an iterator over blocks of the canaries, as `blocks`; the slices count from `first_canary`.

        Attacks read only these samples. All others are in every training subset, so there is nothing to infer.
        """
        return self._blocks(requests, size, self.first_canary)

    def mean_losses(self, models: Sequence[ModelSeeds]) -> np.ndarray:
        """Returns mean_Mx2, the mean loss of each model on members and on non-members, in nats per token.

        With canaries, these are the means over canaries. The mean over no samples is NaN.

        Raises:
          UserError: as in `blocks`.
        """
        if not models:
            return np.zeros((0, 2))
        total_Mx2, count_Mx2 = np.zeros((len(models), 2)), np.zeros((len(models), 2))
        for _, block in self.canary_blocks({name: (name, models) for name in ("loss", "member")}):
            for m, (loss_C, member_C) in enumerate(
                zip(block["loss"], block["member"], strict=True)
            ):
                groups = member_C, ~member_C
                total_Mx2[m] += [loss_C[group_C].sum(dtype="float64") for group_C in groups]
                count_Mx2[m] += [group_C.sum() for group_C in groups]
        return total_Mx2 / np.where(count_Mx2 > 0, count_Mx2, np.nan)

    def _blocks(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], size: int, first: int
    ) -> reader.Blocks:
        if size < 1:
            raise ValueError(f"size={size}: must be 1 or larger")
        selections = self._select(requests)
        num_samples = max((s.array.shape[1] for s in selections.values()), default=0)
        return reader.read_blocks(selections, num_samples, size, first)

    def samples(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]], ids_S: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Returns {name of a result: value_RxS} of selected samples at `Store.step`; otherwise as `blocks`."""
        return reader.read_samples(self._select(requests), ids_S)

    def _select(
        self, requests: Mapping[str, tuple[str, Sequence[ModelSeeds]]]
    ) -> dict[str, reader.ModelSelection]:
        """Opens the arrays of the requests of `blocks`; raises UserError for missing models."""
        requested: dict[str, list[ModelSeeds]] = {}
        for variable, models in requests.values():
            requested[variable] = list(dict.fromkeys([*requested.get(variable, ()), *models]))
        store_models, names = self._read_contents()
        index = {model: i for i, model in enumerate(store_models)}
        checkpoint = self._checkpoint_index(self.step)
        missing: set[ModelSeeds] = set()
        opened = {name: self._open_variable(name) for name in requested if name in names}
        for variable, models in requested.items():
            stored = [model for model in models if model in index]
            complete_RxK = complete_models(
                opened.get(variable),
                [index[model] for model in stored],
                len(store_models),
                len(self.steps) + 1,
            )
            missing |= {model for model in models if model not in index}
            missing |= {
                m for m, k in zip(stored, complete_RxK[:, checkpoint], strict=True) if not k
            }
        if missing:
            self._raise_missing(missing, requested)
        arrays = {name: self._at_step(name, array, self.step) for name, array in opened.items()}
        return {
            name: reader.ModelSelection(
                self.path / variable,
                arrays[variable],
                [index[model] for model in models],
                self.checkpoint_key(variable, self.step),
            )
            for name, (variable, models) in requests.items()
        }

    def _raise_missing(
        self, missing: set[ModelSeeds], requested: Mapping[str, list[ModelSeeds]]
    ) -> NoReturn:
        all_models = list(dict.fromkeys(m for models in requested.values() for m in models))
        names = [str(model) for model in all_models if model in missing]
        names_text = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        at_step = f" at step {self.step}" if self.step else ""
        raise UserError(
            f"{self.path}: {len(names)} of {len(all_models)} models are missing{at_step} ({names_text}); run "
            "`lm-mia run` first"
        )

    def _read_contents(self) -> tuple[list[ModelSeeds], set[str]]:
        """Returns (models in store order, names of variables and coordinates); both are empty if there is no store."""
        if (contents := schema.read_contents(self.path)) is None:
            return [], set()
        schema.check_contents(self.path, contents, self._checkpoint_steps, self.token_samples)
        return [*contents.models], {*contents.names}

    def _complete(
        self, name: str, names: set[str], index_R: Sequence[int], num_models: int
    ) -> np.ndarray:
        """Returns complete_RxK of one variable; see `complete_models`."""
        array = self._open_variable(name) if name in names else None
        return complete_models(array, index_R, num_models, len(self.steps) + 1)

    @property
    def _checkpoint_steps(self) -> tuple[int, ...]:
        """The coordinate `step`; empty if the store has no checkpoint dimension."""
        return (*self.steps, self.total_steps) if self.steps else ()

    def _checkpoint_index(self, step: int) -> int:
        """Returns the index of a step in the checkpoint dimension; the end of training, step 0, is the last."""
        if step and step not in self.steps:
            raise ValueError(f"step={step}: must be 0 or one of {self.steps}")
        return self.steps.index(step) if step else len(self.steps)

    def checkpoint_key(self, name: str, step: int) -> tuple[int, ...]:
        """Returns the indices between model and shard in the keys of a variable: that of the checkpoint, or none."""
        if checkpoint_shape(name, len(self._checkpoint_steps)):
            return (self._checkpoint_index(step),)
        return ()

    def open_array(self, name: str, step: int, write: bool = False) -> ts.TensorStore:
        """Returns a variable at one step as an array of shape (models, samples or tokens)."""
        return self._at_step(name, self._open_variable(name, write), step)

    def _at_step(self, name: str, array: ts.TensorStore, step: int) -> ts.TensorStore:
        for checkpoint in self.checkpoint_key(name, step):
            array = array[:, checkpoint]
        return array

    def _open_variable(self, name: str, write: bool = False) -> ts.TensorStore:
        stamp = schema.file_stamp(self.path / name / "zarr.json")
        return self._open(name, write) if write or not stamp else _opened_at(self, name, stamp)

    def _open(self, name: str, write: bool) -> ts.TensorStore:
        spec = {"driver": "zarr3", "kvstore": kvstore(self.path / name)}
        # Otherwise, a shard with only fill values would never be written, and its model would stay missing.
        spec |= {"store_data_equal_to_fill_value": True}
        try:
            array = ts.open(spec, read=True, write=write, open=True).result()
        except ValueError as error:
            raise_failed_read(error, self.path / name / "zarr.json")
            raise schema.damaged_store_error(self.path, f"{name}/zarr.json") from error
        if array.shape[1:-1] != checkpoint_shape(name, len(self._checkpoint_steps)):
            raise schema.damaged_store_error(self.path, f"{name}/zarr.json")
        return array


@functools.lru_cache(maxsize=2**16)
def _has_digest(
    store: Store, index: int, names: tuple[str, ...], digest: str, stamps: tuple[object, ...]
) -> bool:
    """Returns whether the digest of a model's values begins so; the stamps of their files only serve as a cache key."""
    return store._digest(index, names).startswith(digest)


def _record_digest(computation: str) -> str:
    return hashlib.sha256(computation.encode()).hexdigest()[:_DETAIL_LENGTH]


@functools.lru_cache(maxsize=8)
def _known_at(store: Store, stamp: tuple[int, int, int]) -> tuple[dict[ModelSeeds, int], set[str]]:
    """Returns `_read_known` of a store whose metadata file has this stamp, which only serves as a key of the cache."""
    return _read_known(store)


@functools.lru_cache(maxsize=64)
def _opened_at(store: Store, name: str, stamp: tuple[int, int, int]) -> ts.TensorStore:
    """Returns a variable whose metadata file has this stamp, which only serves as a key of the cache, for reading."""
    return store._open(name, write=False)


def _read_known(store: Store) -> tuple[dict[ModelSeeds, int], set[str]]:
    models, names = store._read_contents()
    return {model: index for index, model in enumerate(models)}, names


def complete_models(
    array: ts.TensorStore | None, index_R: Sequence[int], num_models: int, num_checkpoints: int
) -> np.ndarray:
    """Returns complete_RxK, bool: which of these models have all shards of a variable at each checkpoint.

    Args:
      array: the variable, or None if the store does not have it, so that no model is complete. Membership, which has no
        checkpoints, counts at each of them.
      index_R: indices of the models. If these are a third of all models or more, all keys are listed at once.
      num_models: number of models of the store, M.
      num_checkpoints: number of checkpoints, K.
    """
    shards_MxK = np.zeros((num_models, num_checkpoints), np.int64)
    if array is None:
        return shards_MxK[index_R].astype(bool)
    distinct = {*index_R}
    # Each list takes time of its own, about as long as the folders of six models in one list.
    is_at_once = 3 * len(distinct) >= num_models
    prefixes = [()] if is_at_once else [(index,) for index in distinct]
    for prefix in prefixes:
        for indices in _list_shards(array, prefix):
            if len(indices) == array.rank and int(indices[0]) < num_models:
                checkpoint = int(indices[1]) if array.rank == 3 else slice(None)
                shards_MxK[int(indices[0]), checkpoint] += 1
    return shards_MxK[index_R] == -(-array.shape[-1] // samples_per_shard(array))


def find_missing_shards(
    arrays: Mapping[str, ts.TensorStore], key_prefixes: Mapping[str, tuple[int, ...]]
) -> list[tuple[int, int, list[str]]]:
    """Returns (low, high, names) of each range of samples whose shard is missing from some arrays, in order.

    Args:
      arrays: name -> array; all have the same number of samples per shard.
      key_prefixes: name -> the indices that precede the number of a shard in its key.
    """
    names: dict[int, list[str]] = {}
    size = num_samples = 0
    for name, array in arrays.items():
        size, num_samples = samples_per_shard(array), array.shape[-1]
        existing = {int(indices[-1]) for indices in _list_shards(array, key_prefixes[name])}
        for shard in range(-(-num_samples // size)):
            if shard not in existing:
                names.setdefault(shard, []).append(name)
    return [(n * size, min((n + 1) * size, num_samples), names[n]) for n in sorted(names)]


def _list_shards(array: ts.TensorStore, prefix: tuple[int, ...]) -> Iterator[list[str]]:
    """Yields the indices in the key of each shard on disk whose first ones are these; reads only their folders."""
    assert array.kvstore is not None
    folder = "/".join(("c", *map(str, prefix), ""))
    # "0" is the character that follows "/" in ASCII.
    for key in array.kvstore.list(ts.KvStore.KeyRange(folder, folder[:-1] + "0")).result():
        yield key.decode().split("/")[1:]


def open_store(c: config.Config, recipe_dir: Path) -> Store:
    """Returns the score store of a recipe; its models are required to have what the config requests."""
    return Store(
        recipe_dir / "scores.zarr",
        c.score.statistics,
        config.score_steps(c),
        config.total_steps(c),
        token_samples=c.score.token_samples,
        first_canary=config.first_canary(c),
        design=c.train.subset,
    )


def with_stored_statistics(c: config.Config, recipe_dir: Path) -> config.Config:
    """Returns the config, extended by all statistics and token samples in the recipe's score store."""
    path = recipe_dir / "scores.zarr"
    if (contents := schema.read_contents(path)) is None:
        return c
    stored = [n for n in VARIABLES if n in contents.names and n not in ("member", "loss", TOKENS)]
    statistics: Any = tuple(dict.fromkeys([*c.score.statistics, *stored]))
    ids = schema.token_samples(path) if TOKENS in contents.names else c.score.token_samples
    score = dataclasses.replace(c.score, statistics=statistics, token_samples=ids)
    return dataclasses.replace(c, score=score)
