"""The digest of each model's values of samples in the score store."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from tiny_store import (
    COLUMNS,
    FOUR,
    SAMPLES,
    SIX,
    _small_shards,
    ensure,
    make_store,
    open_with_points,
    values,
    write,
    write_store,
)

import lm_mia
from lm_mia.data.subsets import requested_seeds
from lm_mia.errors import UserError
from lm_mia.store import check, schema
from lm_mia.store.store import Store

__all__ = ["_small_shards"]  # fixture


def test_digests_are_equal_exactly_if_all_values_are(tmp_path: Path):
    loss_N, member_N = values(FOUR[0])
    other_loss_N, other_member_N = loss_N.copy(), member_N.copy()
    other_loss_N[SAMPLES - 1] = np.nextafter(loss_N[-1], np.float32(9))
    other_member_N[0] ^= True
    s = Store(tmp_path / "scores.zarr")
    ensure(s, FOUR)
    written = (loss_N, member_N), (loss_N, member_N), (other_loss_N, member_N)
    for model, each in zip(FOUR, (*written, (loss_N, other_member_N)), strict=False):
        s.write_model(model, *each)
    first, same, other_loss, other_member = s.digests(FOUR[:4])
    assert first == same
    assert len({first, other_loss, other_member}) == 3
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in s.digests(FOUR[:4]))
    assert s.digests([FOUR[3], FOUR[0]]) == [other_member, first]
    with pytest.raises(UserError, match=r"1 of 2 .*\(replica-00\)"):
        s.digests([FOUR[0], FOUR[4]])


def test_shards_do_not_affect_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = make_store(tmp_path / "a").digests(FOUR)
    monkeypatch.setattr(schema, "SHARD_SAMPLES", 2**22)
    assert make_store(tmp_path / "b").digests(FOUR[::-1]) == small[::-1]


def test_values_at_every_checkpoint_count(tmp_path: Path):
    before = write_store(tmp_path / "a").digests(FOUR)
    s = open_with_points(tmp_path / "b/scores.zarr")
    s.path.parent.mkdir()
    ensure(s, FOUR)
    for step in (3, 0):
        write(s, FOUR[1], step)
        assert not s.write_digest(FOUR[1])
    loss_N = np.zeros(SAMPLES, np.float32)
    s.write_model(FOUR[1], loss_N, values(FOUR[1])[1], step=6)
    assert s.digests(FOUR[1:2]) != before[1:2]


def test_a_new_statistic_changes_the_digest(tmp_path: Path):
    old = make_store(tmp_path)
    before = old.digests(FOUR)
    s = Store(old.path, ("min_k",))
    s.create_or_extend(SIX, COLUMNS, {})
    s.write_model(FOUR[0], *values(FOUR[0]), {"min_k": values(FOUR[0])[0]})
    after = s.digests(FOUR)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    # The same values written again, after a shard was lost, give the same digest.
    (s.path / "min_k" / "c" / "0" / "1").unlink()
    s.write_model(FOUR[0], *values(FOUR[0]), {"min_k": values(FOUR[0])[0]})
    assert s.digests(FOUR) == after


def test_no_digest_while_a_model_is_rewritten(tmp_path: Path):
    """A process that is killed between two shards leaves no digest of other values."""
    s = make_store(tmp_path)
    before = s.digests(FOUR)
    s.write_shards(FOUR[2], 4, {"loss": np.zeros(4, np.float32)})
    assert s.missing_models(FOUR) == [FOUR[2]]
    with pytest.raises(UserError, match=r"1 of 6 models"):
        s.digests(FOUR)
    with xr.open_zarr(s.path) as data:
        assert data["digest"].dims == ("model",)
        assert data["digest"].dtype.kind == "U"
        assert data["digest"].values.tolist() == [d if m != 2 else "" for m, d in enumerate(before)]
    assert s.write_digest(FOUR[2])
    assert s.digests(FOUR)[2] != before[2]


def test_a_damaged_digest_is_found_and_computed_again(tmp_path: Path):
    s = make_store(tmp_path)
    before = s.digests(FOUR)
    file = schema.digest_file(s.path, 1)
    raw = file.read_bytes()
    for damaged in (raw[:9] + bytes([raw[9] ^ 1]) + raw[10:], raw[:-3], b""):
        file.write_bytes(damaged)
        assert check.check_shards(s, FOUR).corrupt == [file]
        with pytest.raises(UserError, match=r"`lm-mia score --repair`"):
            s.digests(FOUR)
    file.unlink()
    assert s.missing_models(FOUR) == [FOUR[1]]
    assert s.write_digest(FOUR[1])
    assert s.digests(FOUR) == before
    assert check.check_shards(s, FOUR).corrupt == []


@pytest.mark.parametrize("text", [None, "{"])
def test_damaged_metadata_of_digests_raises(tmp_path: Path, text: str | None):
    s = make_store(tmp_path)
    file = s.path / "digest" / "zarr.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    for act in (lambda: s.digests(FOUR), lambda: check.check_metadata(s, {})):
        with pytest.raises(UserError, match=r"damaged .*\(digest"):
            act()


def test_imported_losses_have_the_digests_of_scored_ones(tmp_path: Path):
    models = requested_seeds(8, 0)
    rng = np.random.default_rng(0)
    member_MxN = rng.permuted(np.tile(np.arange(40) < 20, (8, 1)), axis=1)
    loss_MxN = (3 - member_MxN + rng.normal(0, 0.1, (8, 40))).astype(np.float32)
    s = Store(tmp_path / "scores.zarr")
    s.create_or_extend(models, {"tokens": np.arange(40)}, {})
    for model, loss_N, member_N in zip(models, loss_MxN, member_MxN, strict=True):
        s.write_model(model, loss_N, member_N)
    results = lm_mia.open_arrays(tmp_path / "w", loss_MxN, member_MxN)
    imported = results.recipes["imported"].scores()["digest"].values.tolist()
    assert imported == s.digests(models)


def swap_shards(first: Path, second: Path) -> None:
    """Exchanges the contents of two files, whose checksums stay right."""
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


@pytest.mark.parametrize("name", ["loss", "member"])
def test_shards_of_other_models_and_deleted_ones_are_noticed(tmp_path: Path, name: str):
    s = make_store(tmp_path)
    assert s.models_with_other_values(FOUR) == []
    shards = [s.path / name / "c" / str(i) / "0" for i in range(4)]
    swap_shards(shards[0], shards[2])
    assert s.models_with_other_values(FOUR) == [FOUR[0], FOUR[2]]
    with pytest.raises(UserError, match=r"scores\.zarr: .*\breference-00, .*\breplaced"):
        s.check_digests(FOUR)
    s.check_digests([FOUR[1], FOUR[3]])
    report = check.check_shards(s, FOUR)
    assert {path.relative_to(s.path).parts[2] for path in report.corrupt} == {"0", "2"}
    swap_shards(shards[0], shards[2])
    assert s.models_with_other_values(FOUR) == []
    assert check.check_shards(s, FOUR).corrupt == []
    shards[1].unlink()
    assert s.models_with_other_values(FOUR) == [FOUR[1]]


def test_models_in_progress_have_no_digest_to_differ_from(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr")
    ensure(s, FOUR)
    s.write_model(FOUR[0], *values(FOUR[0]))
    s.write_shards(FOUR[1], 0, {"member": values(FOUR[1])[1][:2]})
    assert s.models_with_other_values(FOUR) == []


def test_repaired_models_have_their_values_again(tmp_path: Path):
    s = make_store(tmp_path)
    files = [s.path / "member" / "c" / str(i) / "0" for i in (0, 2)]
    swap_shards(*files)
    for path in check.check_shards(s, FOUR).corrupt:
        path.unlink()
    assert s.missing_models(FOUR) == [FOUR[0], FOUR[2]]
    for model in (FOUR[0], FOUR[2]):
        s.write_model(model, *values(model))
    s.check_digests(FOUR)


def details_store(path: Path) -> Store:
    """Returns a store with log-probabilities of tokens and records of training, which its digests are computed of."""
    s = Store(path / "scores.zarr", token_samples=(0,))
    tokens = {name: np.arange(6) for name in schema.TOKEN_COLUMNS}
    s.create_or_extend(FOUR, {"tokens": np.arange(5)}, {}, tokens)
    for m, model in enumerate(FOUR):
        s.add_computation(model, f"xla on {m + 1} x cpu", is_continued=False)
        s.write_tokens(model, np.linspace(-m - 1, 0, 6, dtype=np.float32))
        s.write_model(model, np.full(5, m, np.float32), np.arange(5) % 2 == 0)
    assert s.is_present().all()
    s.check_digests(FOUR)
    return s


@pytest.mark.parametrize("damage", ["delete", "swap"])
@pytest.mark.parametrize("name", [schema.TOKENS, schema.COMPUTATION, schema.DETAILS, schema.DIGEST])
def test_deleted_or_exchanged_details_and_digests_are_noticed(
    tmp_path: Path, name: str, damage: str
):
    s = details_store(tmp_path)
    shard = "0" if name == schema.TOKENS else ""
    file, other = (s.path / name / "c" / str(i) / shard for i in (1, 2))
    if damage == "delete":
        file.unlink()
    else:
        shutil.copy(other, file)
    with pytest.raises(UserError, match=r"/c/1|N = 1"):
        s.check_digests(FOUR)
    report = check.check_shards(s, FOUR)
    named = report.missing + report.corrupt + report.lost_records
    assert named
    assert {path.relative_to(s.path).parts[2] for path in named} == {"1"}
    # What `lm-mia score --repair` does.
    for path in report.corrupt + report.lost_records:
        path.unlink(missing_ok=True)
    s.write_tokens(FOUR[1], np.linspace(-2, 0, 6, dtype=np.float32))
    s.write_model(FOUR[1], np.full(5, 1, np.float32), np.arange(5) % 2 == 0)
    s.check_digests(FOUR)
    report = check.check_shards(s, FOUR)
    assert report.missing + report.corrupt + report.lost_records == []
    assert s.is_present().all()
    assert (s.computations()[FOUR[1]] == "") == (name == schema.COMPUTATION)


def test_an_older_store_gets_details_when_models_are_added(tmp_path: Path):
    s = details_store(tmp_path)
    shutil.rmtree(s.path / schema.DETAILS)
    with schema.no_zarr_warnings():
        group = zarr.open_group(s.path, mode="a")
        names = str(group.attrs["coordinates"]).split()
        group.attrs["coordinates"] = " ".join(n for n in names if n != schema.DETAILS)
        schema.consolidate(s.path)
    s.check_digests(FOUR)
    assert s.is_present().all()
    tokens = {name: np.arange(6) for name in schema.TOKEN_COLUMNS}
    s.create_or_extend(SIX, {"tokens": np.arange(5)}, {}, tokens)
    assert not s.is_present().any()
    for model in FOUR:
        assert s.write_digest(model)
    assert s.is_present().tolist() == [True] * len(FOUR) + [False] * 2
    s.check_digests(FOUR)
