import dataclasses
import itertools
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
def made(tmp_path: Path) -> Store:
    s, rng = Store(tmp_path / "scores.zarr"), np.random.default_rng(0)
    s.create_or_extend(SIX, {"tokens": np.arange(SAMPLES)}, {})
    for model in SIX:
        s.write_model(model, rng.normal(size=SAMPLES).astype(np.float32), rng.random(SAMPLES) < 0.5)
    return s


def expected(s: Store, part: str) -> np.ndarray:
    """Returns the values of tensorstore's own full read."""
    variable, wanted = PARTS[part]
    whole = np.asarray(s._open_variable(variable).read().result())
    return np.stack([whole[SIX.index(model)] for model in wanted])


@pytest.mark.parametrize("size", [1, 3, 4, 8, 16, 22, 23, 24, 2**16, 2**70])
def test_blocks_cover_all_samples_in_order(made: Store, size: int):
    found = list(made.blocks(PARTS, size))
    edges = [*range(0, SAMPLES, size), SAMPLES]
    assert [samples for samples, _ in found] == [
        slice(low, high) for low, high in itertools.pairwise(edges)
    ]
    for part in PARTS:
        pieces = [block[part] for _, block in found]
        assert {piece.dtype for piece in pieces} == {
            np.dtype(bool if part == "member" else np.float32)
        }
        np.testing.assert_array_equal(np.concatenate(pieces, axis=1), expected(made, part))


def test_small_store_is_one_block_by_default(made: Store):
    [(samples, block)] = made.blocks(PARTS)
    assert samples == slice(0, SAMPLES)
    assert {part: block[part].shape for part in block} == {
        "target": (2, SAMPLES),
        "reference": (4, SAMPLES),
        "member": (3, SAMPLES),
    }


def test_blocks_of_one_model_no_model_and_no_request(made: Store):
    [first, *_] = made.blocks({"a": ("loss", SIX[2:3]), "b": ("loss", [])}, 8)
    np.testing.assert_array_equal(first[1]["a"], made.read(SIX[2:3])[0][:, :8])
    assert first[1]["b"].shape == (0, 8)
    assert list(made.blocks({})) == []


@pytest.mark.parametrize("size", [0, -1])
def test_block_size_must_be_positive(made: Store, size: int):
    with pytest.raises(ValueError, match=f"size={size}: must be 1 or larger"):
        made.blocks(PARTS, size)


def test_missing_models_raise_immediately_for_requested_variables_only(made: Store):
    for name, index in (("loss", 1), ("member", 4), ("member", 5)):
        (made.path / name / "c" / str(index) / "1").unlink()
    with pytest.raises(UserError) as caught:
        made.blocks(PARTS)
    assert str(caught.value) == (
        f"{made.path}: 2 of 6 models are missing ({SIX[4]}, {SIX[1]}); run `lm-mia run` first"
    )
    assert len(list(made.blocks({"target": PARTS["target"]}))) == 1  # losses of 4 and 5 are there
    unknown = ModelSeeds("reference", 7, 7, 7)
    with pytest.raises(UserError, match=r"1 of 1 models are missing \(reference-07\); run"):
        made.blocks({"x": ("loss", [unknown])})
    with pytest.raises(UserError, match=r"1 of 1 models are missing \(reference-00\); run"):
        made.blocks({"x": ("min_k", SIX[:1])})  # a statistic that the store does not have


def corrupt(s: Store, *shards: str) -> list[Path]:
    paths = [s.path / shard for shard in shards]
    for path in paths:
        path.write_bytes(b"x" * path.stat().st_size)
    return paths


def test_corrupt_shards_raise_at_their_block_and_are_all_named(made: Store):
    """Shard 1 begins in the second block of 8, so the first block is returned before the error."""
    bad = corrupt(made, "loss/c/5/1", "loss/c/2/2", "loss/c/0/1", "member/c/4/1")
    other = corrupt(made, "member/c/1/0")  # of a model that is not requested
    found = made.blocks(PARTS, 8)
    _, first = next(found)
    np.testing.assert_array_equal(first["target"], expected_of_first(made))
    with pytest.raises(UserError) as caught:
        next(found)
    assert str(caught.value).split("\n") == [
        f"{path}: corrupt score shard; run `lm-mia score --repair` to compute it again"
        for path in bad
    ]
    whole = [SIX[3]]  # models without damage can still be read
    [(_, block)] = made.blocks({"loss": ("loss", whole), "member": ("member", whole)})
    np.testing.assert_array_equal(block["loss"], made._open_variable("loss")[3:4].read().result())
    np.testing.assert_array_equal(
        block["member"], made._open_variable("member")[3:4].read().result()
    )
    for path in [*bad, *other]:
        path.unlink()
    assert made.missing_models(SIX) == [SIX[i] for i in (0, 1, 2, 4, 5)]


def expected_of_first(s: Store) -> np.ndarray:
    array = s._open_variable("loss")
    return np.stack([np.asarray(array[i, :8].read().result()) for i in (4, 5)])


def test_other_read_errors_are_not_called_corruption(made: Store, monkeypatch: pytest.MonkeyPatch):
    """A disk may fail once; no shard is corrupt then."""

    class Broken:
        def result(self) -> None:
            raise ValueError("input/output error")

    monkeypatch.setattr(reader, "_start_reading", lambda *_: {"target": Broken()})
    with pytest.raises(ValueError, match="input/output error"):
        next(made.blocks(PARTS))


def test_exactly_one_block_is_read_ahead(made: Store, monkeypatch: pytest.MonkeyPatch):
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
    for samples, block in made.blocks({"x": ("loss", SIX)}, 4):
        assert samples == slice(*started[len(alive)])
        alive.append(weakref.ref(block["x"]))
        assert len(started) == min(len(alive) + 1, 6)
        del block
    assert len(alive) == 6


@pytest.mark.parametrize("ids", [[0], [22, 3, 3, 8], [*range(SAMPLES)], []])
def test_selected_samples_come_in_requested_order(made: Store, ids: list[int]):
    found = made.samples(PARTS, ids)
    assert list(found) == list(PARTS)
    for part in PARTS:
        np.testing.assert_array_equal(found[part], expected(made, part)[:, ids])


def test_selected_samples_name_all_corrupt_shards(made: Store):
    """If any corrupt shard is read, all corrupt shards of the models are named, so that one repair is enough."""
    bad = corrupt(made, "loss/c/5/1", "loss/c/0/2", "member/c/4/1")
    corrupt(made, "member/c/1/0")  # of a model that is not requested
    with pytest.raises(UserError) as caught:
        made.samples(PARTS, [9])
    assert str(caught.value).split("\n") == [
        f"{path}: corrupt score shard; run `lm-mia score --repair` to compute it again"
        for path in bad
    ]
    assert made.samples(PARTS, [3])["target"].shape == (2, 1)
    bad[0].unlink()
    with pytest.raises(
        UserError, match=r"1 of 6 models are missing \(replica-01\); run `lm-mia run`"
    ):
        made.samples(PARTS, [3])
