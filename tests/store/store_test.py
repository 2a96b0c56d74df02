import itertools
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import xarray as xr
from tiny_store import (
    COLUMNS,
    FOUR,
    SAMPLES,
    SIX,
    _small_shards,
    check,
    content,
    ensure,
    lacking,
    make_store,
    values,
)

from lm_mia.data.subsets import ModelSeeds, requested_seeds
from lm_mia.errors import UserError
from lm_mia.store import schema
from lm_mia.store.store import Store

__all__ = ["_small_shards"]  # fixture


def test_nonexistent_store_has_no_models(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr")
    assert (s.models(), s.is_present().tolist(), s.missing_models(FOUR)) == ([], [], FOUR)
    with pytest.raises(UserError, match=r"6 of 6 .*\(reference-00, .*, \.\.\.\); run"):
        s.read(FOUR)
    assert list(tmp_path.iterdir()) == []


def test_models_are_present_once_written(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr")
    ensure(s, FOUR)
    assert s.models() == FOUR
    assert not s.is_present().any()
    for model in (FOUR[3], FOUR[5]):
        s.write_model(model, *values(model))
    assert s.is_present().tolist() == [False, False, False, True, False, True]
    assert s.missing_models(FOUR[::-1]) == [FOUR[i] for i in (4, 2, 1, 0)]
    check(s, [FOUR[5], FOUR[3]])
    with pytest.raises(UserError, match=r"1 of 2 .*\(reference-01\)"):
        s.read([FOUR[3], FOUR[1]])


def test_repeated_creation_changes_nothing(tmp_path: Path):
    s = make_store(tmp_path)
    before = content(s)
    ensure(s, FOUR)
    ensure(s, FOUR[:2])
    assert content(s) == before


def test_new_models_are_appended_and_existing_bytes_kept(tmp_path: Path):
    s = make_store(tmp_path)
    before = {k: v for k, v in content(s).items() if k.startswith(("loss/c", "member/c"))}
    ensure(s, SIX)
    assert s.models() == FOUR + SIX[4:6]
    assert s.missing_models(SIX) == SIX[4:6]
    for model in SIX[4:6]:
        s.write_model(model, *values(model))
    check(s, SIX)
    after = content(s)
    assert {k: after[k] for k in before} == before


def test_existing_shards_are_never_rewritten(tmp_path: Path):
    """If a model lacks a membership shard and is scored again, its loss shards are kept."""
    s = make_store(tmp_path)
    before = content(s)
    loss_N, member_N = values(FOUR[2])
    s.write_model(FOUR[2], loss_N + 1, ~member_N)
    assert content(s) == before
    (s.path / "member" / "c" / "2" / "1").unlink()
    assert lacking(s, FOUR[2]) == ["member"]
    s.write_model(FOUR[2], loss_N + 1, member_N)
    assert content(s) == before
    assert lacking(s, FOUR[2]) == []


def test_model_of_fill_values_is_present(tmp_path: Path):
    """Presence does not depend on values, such as NaN losses and no members."""
    s = Store(tmp_path / "scores.zarr")
    ensure(s, FOUR)
    s.write_model(FOUR[0], np.full(SAMPLES, np.nan, np.float32), np.zeros(SAMPLES, bool))
    assert s.is_present().tolist() == [True] + [False] * 5
    loss_MxN, member_MxN = s.read(FOUR[:1])
    assert np.isnan(loss_MxN).all()
    assert not member_MxN.any()


def test_model_is_missing_until_its_last_shard(tmp_path: Path):
    s, part = make_store(tmp_path / "a"), Store(tmp_path / "b" / "scores.zarr")
    part.path.parent.mkdir()
    ensure(part, FOUR)
    shards = sorted(p for p in content(s) if p.startswith(("loss/c/1/", "member/c/1/")))
    assert len(shards) == 6
    for name in shards:
        assert not part.is_present()[1]
        (part.path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(s.path / name, part.path / name)
    # Another process is still writing it.
    assert part.is_present(0)[1]
    assert not part.is_present()[1]
    assert part.write_digest(FOUR[1])
    assert part.is_present()[1]
    assert part.digests([FOUR[1]]) == s.digests([FOUR[1]])


def test_deleted_shard_makes_the_model_missing(tmp_path: Path):
    s = make_store(tmp_path)
    for name, shard in itertools.product(("loss", "member"), range(3)):
        (s.path / name / "c" / "3" / str(shard)).unlink()
        assert s.missing_models(FOUR) == [FOUR[3]]
        s.write_model(FOUR[3], *values(FOUR[3]))
        check(s, FOUR)


@pytest.mark.parametrize("name", ["loss", "member"])
def test_any_damaged_byte_is_detected(tmp_path: Path, name: str):
    s = make_store(tmp_path)
    shard = s.path / name / "c" / "2" / "1"
    raw = shard.read_bytes()
    damaged = [raw[:i] + bytes([raw[i] ^ 16]) + raw[i + 1 :] for i in range(len(raw))]
    for bad in [*damaged, b"", raw[:-1], raw[:3], raw + b"\0"]:
        shard.write_bytes(bad)
        with pytest.raises(UserError) as caught:
            s.read(FOUR)
        assert str(caught.value) == (
            f"{shard}: corrupt score shard; run `lm-mia score --repair` to compute it again"
        )
    shard.unlink()
    s.write_model(FOUR[2], *values(FOUR[2]))
    check(s, FOUR)


def _fill(path: Path, models: list[ModelSeeds], own_models: list[ModelSeeds]) -> None:
    schema.SHARD_SAMPLES, schema.CHUNK_SAMPLES = 4, 2
    s = Store(path)
    ensure(s, models)
    for model in own_models:
        s.write_model(model, *values(model))


@pytest.mark.process
def test_two_processes_create_and_write_concurrently(tmp_path: Path):
    context, path = multiprocessing.get_context("spawn"), tmp_path / "scores.zarr"
    processes = [
        context.Process(target=_fill, args=(path, FOUR, FOUR[:3])),
        context.Process(target=_fill, args=(path, SIX, SIX[3:])),
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    s = Store(path)
    assert set(s.models()) == set(SIX)
    assert len(s.models()) == len(SIX)
    assert s.missing_models(SIX) == []
    check(s, SIX)


def test_xarray_opens_the_store(tmp_path: Path):
    s = make_store(tmp_path)
    with xr.open_zarr(s.path) as data:
        assert dict(data.sizes) == {"model": 6, "sample": SAMPLES}
        assert data.attrs["recipe"] == "abc"
        assert set(data.data_vars) == {"loss", "member"}
        assert set(data.coords) == {
            "model",
            "role",
            "digest",
            "computation",
            "details_digest",
            "subset_seed",
            "init_seed",
            "order_seed",
            "sample",
            "tokens",
            "unk",
        }
        assert data["loss"].dims == data["member"].dims == ("model", "sample")
        assert data["loss"].attrs["units"] == "nats per token"
        assert data["model"].values.tolist() == [str(model) for model in FOUR]
        assert data["role"].values.tolist() == ["reference"] * 4 + ["replica"] * 2
        assert data["order_seed"].values.tolist() == [0, 1, 2, 3, 0, 1]
        assert data["subset_seed"].values.tolist() == [0, 1, 2, 3, 2**31, 2**31]
        assert data["tokens"].values.tolist() == COLUMNS["tokens"].tolist()
        assert data["sample"].values.tolist() == list(range(SAMPLES))
        for i, model in enumerate(FOUR):
            loss_N, member_N = values(model)
            np.testing.assert_array_equal(data["loss"].values[i], loss_N)
            np.testing.assert_array_equal(data["member"].values[i], member_N)


def test_models_are_selected_by_name_and_role_without_warnings(tmp_path: Path):
    """Warnings are errors in tests; a new process also shows warnings that zarr and xarray emit only once."""
    s = make_store(tmp_path)
    with xr.open_zarr(s.path) as data:
        np.testing.assert_array_equal(data["loss"].sel(model="reference-03"), values(FOUR[3])[0])
        selected = data["member"].sel(model=["replica-01", "reference-00"])
        np.testing.assert_array_equal(selected, [values(FOUR[5])[1], values(FOUR[0])[1]])
        replicas = data.isel(model=np.flatnonzero(data["role"] == "replica"))
        assert replicas["model"].values.tolist() == ["replica-00", "replica-01"]
        assert data.where(data["role"] == "reference", drop=True).sizes["model"] == 4
        for name in ("model", "role"):
            assert data[name].dims == ("model",)
            assert data[name].dtype == data[name].values.dtype == schema.STRING
            assert data[name].dtype.kind == "U"
            assert data[name].astype(str).values.tolist() == data[name].values.tolist()
            assert not any(data[name].str.len() == 0)
        with pytest.raises(KeyError):
            data.sel(model="reference-04")
    program = "import sys, xarray; print(xarray.open_zarr(sys.argv[1]).load().role.dtype.kind)"
    command = [sys.executable, "-W", "always", "-c", program, str(s.path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "U\n"
    assert "zarr" not in ran.stderr.lower()


def test_growth_to_200_references_keeps_string_type_and_files(
    tmp_path: Path,
):
    first, all_models = requested_seeds(2, 1), requested_seeds(200, 1)
    s = make_store(tmp_path, first)
    before = content(s)
    ensure(s, all_models)
    after = content(s)
    assert s.models() == [*first, *all_models[2:200]]
    assert s.missing_models(all_models) == all_models[2:200]
    is_score = ("loss/c", "member/c")
    assert {k for k in after if k.startswith(is_score)} == {
        k for k in before if k.startswith(is_score)
    }
    for k in before:
        if k.startswith(is_score):
            assert after[k] == before[k]
    s.write_model(all_models[199], *values(all_models[199]))
    check(s, [*first, all_models[199]])
    with xr.open_zarr(s.path) as data:
        assert {data[name].dtype for name in ("model", "role")} == {schema.STRING}
        names = data["model"].values.tolist()
        assert names[:5] == [
            "reference-00",
            "reference-01",
            "replica-00",
            "reference-02",
            "reference-03",
        ]
        assert (names[-1], len(set(names))) == ("reference-199", 201)
        last_N = data["loss"].sel(model="reference-199").values
        np.testing.assert_array_equal(last_N, values(all_models[199])[0])
    assert len(after["model/c/0"]) < 2000  # bytes: a chunk has room for 4096 names


def test_longest_model_name_fits(tmp_path: Path):
    seed = 2**63 - 1
    models = [ModelSeeds("reference", seed, seed, seed), ModelSeeds("replica", seed, seed, seed)]
    s = Store(tmp_path / "scores.zarr")
    ensure(s, models)
    assert s.models() == models
    with xr.open_zarr(s.path) as data:
        assert data["model"].values.tolist() == [f"reference-{seed}", f"replica-{seed}"]


def test_duplicate_model_names_raise(tmp_path: Path):
    """Their checkpoints would be in the same folder."""
    s = Store(tmp_path / "scores.zarr")
    with pytest.raises(ValueError, match="replica-00: two models"):
        ensure(s, [ModelSeeds("replica", 5, 5, 0), ModelSeeds("replica", 6, 6, 0)])
    assert not s.path.exists()


OTHER_STATISTICS = ("min_k", "lowercase_loss")


def statistics_of_model(
    model: ModelSeeds, names: tuple[str, ...] = OTHER_STATISTICS
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([model.order_seed, 7])
    return {name: rng.normal(size=SAMPLES).astype(np.float32) for name in names}


def test_later_statistic_makes_models_missing_and_keeps_losses(tmp_path: Path):
    old = make_store(tmp_path)
    before = {k: v for k, v in content(old).items() if k.startswith(("loss", "member"))}
    s = Store(old.path, OTHER_STATISTICS)
    assert s.missing_models(FOUR) == FOUR  # also before the store is extended
    ensure(s, FOUR)
    assert (s.missing_models(FOUR), old.missing_models(FOUR)) == (FOUR, [])
    assert lacking(s, FOUR[0]) == list(OTHER_STATISTICS)
    for model in FOUR[:3]:
        loss_N, member_N = values(model)
        s.write_model(model, loss_N + 1, member_N, statistics_of_model(model))
    assert s.missing_models(FOUR) == FOUR[3:]
    assert {k: v for k, v in content(s).items() if k.startswith(("loss", "member"))} == before
    [(_, block)] = s.blocks({name: (name, FOUR[:3]) for name in OTHER_STATISTICS})
    for name in OTHER_STATISTICS:
        assert block[name].dtype == np.float32
        np.testing.assert_array_equal(
            block[name], [statistics_of_model(model)[name] for model in FOUR[:3]]
        )
    after = content(s)
    for again in (s, old, Store(s.path, OTHER_STATISTICS[:1])):  # requiring less removes nothing
        ensure(again, FOUR)
    assert content(s) == after
    check(s, FOUR[3:])  # its losses can still be read


def test_deleted_statistic_shard_matters_only_if_required(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr", OTHER_STATISTICS)
    ensure(s, FOUR)
    for model in FOUR:
        s.write_model(model, *values(model), statistics_of_model(model))
    before = content(s)
    for name, shard in itertools.product(OTHER_STATISTICS, range(3)):
        (s.path / name / "c" / "3" / str(shard)).unlink()
        assert s.missing_models(FOUR) == [FOUR[3]]
        assert lacking(s, FOUR[3]) == [name]
        [other] = set(OTHER_STATISTICS) - {name}
        assert Store(s.path, (other,)).missing_models(FOUR) == []
        s.write_model(FOUR[3], *values(FOUR[3]), {name: statistics_of_model(FOUR[3])[name]})
        assert content(s) == before


def test_new_models_extend_unrequested_statistics(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr", OTHER_STATISTICS)
    ensure(s, FOUR)
    for model in FOUR:
        s.write_model(model, *values(model), statistics_of_model(model))
    plain = Store(s.path)
    ensure(plain, SIX)
    for model in SIX[4:6]:
        plain.write_model(model, *values(model))
    assert (plain.missing_models(SIX), s.missing_models(SIX)) == ([], SIX[4:6])
    with xr.open_zarr(s.path) as data:
        assert set(data.data_vars) == {"loss", "member", *OTHER_STATISTICS}
        assert {data[name].dims for name in OTHER_STATISTICS} == {("model", "sample")}
        assert data["min_k"].attrs["units"] == "nats per token"
        assert data["min_k"].isnull().sum("sample").values.tolist() == [0] * 6 + [SAMPLES] * 2
        np.testing.assert_array_equal(
            data["lowercase_loss"][2], statistics_of_model(FOUR[2])["lowercase_loss"]
        )


def test_missing_statistic_values_raise(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr", OTHER_STATISTICS)
    ensure(s, FOUR)
    with pytest.raises(KeyError, match="lowercase_loss"):
        s.write_model(FOUR[0], *values(FOUR[0]), statistics_of_model(FOUR[0], ("min_k",)))
    assert s.missing_models(FOUR) == FOUR


def test_asking_about_one_model_lists_its_own_shards_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    models = requested_seeds(64, 0)
    s, list_keys, listed = make_store(tmp_path, models), ts.KvStore.list, list[bytes]()

    def counting(self: ts.KvStore, *args: Any) -> Any:
        listed.extend(list_keys(self, *args).result())
        return list_keys(self, *args)

    monkeypatch.setattr(ts.KvStore, "list", counting)
    for model in models:
        assert s.missing_models([model]) == []
    assert len(listed) == 64 * 2 * 3  # each of 3 shards of 2 variables once
    listed.clear()
    s.mean_losses(models[:1])
    assert len(listed) == 2 * 3
    # What another process writes is seen at once.
    path = s.path / "loss" / "c" / "7" / "0"
    shard = path.read_bytes()
    path.unlink()
    assert s.missing_models([models[7]]) == [models[7]]
    path.write_bytes(shard)
    assert s.missing_models([models[7]]) == []
