import dataclasses
import itertools
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_mia.data.subsets import ModelSeeds, requested_seeds
from lm_mia.errors import UserError
from lm_mia.store import reader, schema
from lm_mia.store.store import Store

SAMPLES = 23
SIX = requested_seeds(4, 2)
PARTS = {
    "target": ("loss", SIX[4:]),
    "reference": ("loss", SIX[3::-1]),
    "member": ("member", [SIX[0], SIX[4], SIX[0]]),
}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses three shards per model, the last one short, of two chunks each."""
    monkeypatch.setattr(schema, "SHARD_SAMPLES", 8)
    monkeypatch.setattr(schema, "CHUNK_SAMPLES", 4)


@pytest.fixture
def filled_store(tmp_path: Path) -> Store:
    s, rng = Store(tmp_path / "scores.zarr"), np.random.default_rng(0)
    s.create_or_extend(SIX, {"tokens": np.arange(SAMPLES)}, {})
    for model in SIX:
        s.write_model(model, rng.normal(size=SAMPLES).astype(np.float32), rng.random(SAMPLES) < 0.5)
    return s


def expected(s: Store, part: str) -> np.ndarray:
    """Returns the values of tensorstore's own full read."""
    variable, models = PARTS[part]
    full = np.asarray(s._open_variable(variable).read().result())
    return np.stack([full[SIX.index(model)] for model in models])


@pytest.mark.parametrize("size", [1, 3, 4, 8, 16, 22, 23, 24, 2**16, 2**70])
def test_blocks_cover_all_samples_in_order(filled_store: Store, size: int):
    blocks = list(filled_store.blocks(PARTS, size))
    edges = [*range(0, SAMPLES, size), SAMPLES]
    assert [samples for samples, _ in blocks] == [
        slice(low, high) for low, high in itertools.pairwise(edges)
    ]
    for part in PARTS:
        pieces = [block[part] for _, block in blocks]
        assert {piece.dtype for piece in pieces} == {
            np.dtype(bool if part == "member" else np.float32)
        }
        np.testing.assert_array_equal(np.concatenate(pieces, axis=1), expected(filled_store, part))


def test_small_store_is_one_block_by_default(filled_store: Store):
    [(samples, block)] = filled_store.blocks(PARTS)
    assert samples == slice(0, SAMPLES)
    assert {part: block[part].shape for part in block} == {
        "target": (2, SAMPLES),
        "reference": (4, SAMPLES),
        "member": (3, SAMPLES),
    }


def test_blocks_of_one_model_no_model_and_no_request(filled_store: Store):
    [first, *_] = filled_store.blocks({"a": ("loss", SIX[2:3]), "b": ("loss", [])}, 8)
    np.testing.assert_array_equal(first[1]["a"], filled_store.read(SIX[2:3])[0][:, :8])
    assert first[1]["b"].shape == (0, 8)
    assert list(filled_store.blocks({})) == []


@pytest.mark.parametrize("size", [0, -1])
def test_block_size_must_be_positive(filled_store: Store, size: int):
    with pytest.raises(ValueError, match=f"size={size}: "):
        filled_store.blocks(PARTS, size)


def test_missing_models_raise_at_once_for_requested_variables(filled_store: Store):
    for name, index in (("loss", 1), ("member", 4), ("member", 5)):
        (filled_store.path / name / "c" / str(index) / "1").unlink()
    with pytest.raises(UserError) as caught:
        filled_store.blocks(PARTS)
    assert re.fullmatch(
        rf"{filled_store.path}: 2 of 6 models .*\({SIX[4]}, {SIX[1]}\); run `lm-mia run` first",
        str(caught.value),
    )
    # The losses of models 4 and 5 are present.
    assert len(list(filled_store.blocks({"target": PARTS["target"]}))) == 1
    unknown = ModelSeeds("reference", 7, 7, 7)
    with pytest.raises(UserError, match=r"1 of 1 .*\(reference-07\); run"):
        filled_store.blocks({"x": ("loss", [unknown])})
    with pytest.raises(UserError, match=r"1 of 1 .*\(reference-00\); run"):
        filled_store.blocks({"x": ("min_k", SIX[:1])})  # a statistic that the store does not have


def corrupt(s: Store, *shards: str) -> list[Path]:
    paths = [s.path / shard for shard in shards]
    for path in paths:
        path.write_bytes(b"x" * path.stat().st_size)
    return paths


def test_corrupt_shards_raise_at_their_block_and_are_all_named(filled_store: Store):
    """Shard 1 begins in the second block of 8, so the first block is returned before the error."""
    corrupt_names = corrupt(filled_store, "loss/c/5/1", "loss/c/2/2", "loss/c/0/1", "member/c/4/1")
    other = corrupt(filled_store, "member/c/1/0")  # of a model that is not requested
    blocks = filled_store.blocks(PARTS, 8)
    _, first = next(blocks)
    np.testing.assert_array_equal(first["target"], expected_of_first(filled_store))
    with pytest.raises(UserError) as caught:
        next(blocks)
    assert [line.partition(": corrupt ")[0] for line in str(caught.value).split("\n")] == [
        *map(str, corrupt_names)
    ]
    whole = [SIX[3]]  # models without damage can still be read
    [(_, block)] = filled_store.blocks({"loss": ("loss", whole), "member": ("member", whole)})
    np.testing.assert_array_equal(
        block["loss"], filled_store._open_variable("loss")[3:4].read().result()
    )
    np.testing.assert_array_equal(
        block["member"], filled_store._open_variable("member")[3:4].read().result()
    )
    for path in [*corrupt_names, *other]:
        path.unlink()
    assert filled_store.missing_models(SIX) == [SIX[i] for i in (0, 1, 2, 4, 5)]


def expected_of_first(s: Store) -> np.ndarray:
    array = s._open_variable("loss")
    return np.stack([np.asarray(array[i, :8].read().result()) for i in (4, 5)])


def test_other_read_errors_are_not_reported_as_corruption(
    filled_store: Store, monkeypatch: pytest.MonkeyPatch
):
    """A disk may fail once; no shard is corrupt then."""

    class Broken:
        def result(self) -> None:
            raise ValueError("input/output error")

    monkeypatch.setattr(reader, "_start_reading", lambda *_: {"target": Broken()})
    with pytest.raises(ValueError, match="input/output error"):
        next(filled_store.blocks(PARTS))


def test_exactly_one_block_is_read_ahead(filled_store: Store, monkeypatch: pytest.MonkeyPatch):
    """While the caller has one block, one is read; the caller's block is freed before the next is awaited."""
    started: list[tuple[int, int]] = []
    alive: list[weakref.ref] = []
    start: Callable = reader._start_reading

    @dataclasses.dataclass
    class Noted:
        future: Any

        def result(self) -> np.ndarray:
            assert not any(ref() is not None for ref in alive)
            return self.future.result()

    def noted(parts: object, low: int, high: int) -> dict[str, Noted]:
        started.extend([(low, high)] if low < high else [])
        return {name: Noted(future) for name, future in start(parts, low, high).items()}

    monkeypatch.setattr(reader, "_start_reading", noted)
    for samples, block in filled_store.blocks({"x": ("loss", SIX)}, 4):
        assert samples == slice(*started[len(alive)])
        alive.append(weakref.ref(block["x"]))
        assert len(started) == min(len(alive) + 1, 6)
        del block
    assert len(alive) == 6


@pytest.mark.parametrize("ids", [[0], [22, 3, 3, 8], [*range(SAMPLES)], []])
def test_selected_samples_come_in_requested_order(filled_store: Store, ids: list[int]):
    block = filled_store.samples(PARTS, ids)
    assert list(block) == list(PARTS)
    for part in PARTS:
        np.testing.assert_array_equal(block[part], expected(filled_store, part)[:, ids])


def test_selected_samples_name_all_corrupt_shards(filled_store: Store):
    """If any corrupt shard is read, all corrupt shards of the models are named, so that one repair is enough."""
    corrupt_names = corrupt(filled_store, "loss/c/5/1", "loss/c/0/2", "member/c/4/1")
    corrupt(filled_store, "member/c/1/0")  # of a model that is not requested
    with pytest.raises(UserError) as caught:
        filled_store.samples(PARTS, [9])
    assert [line.partition(": corrupt ")[0] for line in str(caught.value).split("\n")] == [
        *map(str, corrupt_names)
    ]
    assert filled_store.samples(PARTS, [3])["target"].shape == (2, 1)
    corrupt_names[0].unlink()
    with pytest.raises(UserError, match=r"1 of 6 .*\(replica-01\); run `lm-mia run`"):
        filled_store.samples(PARTS, [3])
