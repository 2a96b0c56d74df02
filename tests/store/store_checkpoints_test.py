"""Stores of models that are also scored during training."""

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from slow_case import slow_case
from tiny_store import (
    COLUMNS,
    END,
    FOUR,
    POINTS,
    SAMPLES,
    SCORED_STEPS,
    SIX,
    STATISTICS,
    Crash,
    _small_shards,
    content,
    crash,
    ensure,
    lacking,
    loss,
    make_store,
    open_with_points,
    values,
    write,
    write_store,
)

from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.store import store
from lm_mia.store.store import Store

__all__ = ["_small_shards"]  # the fixture, used here too


def check(s: Store, models: list[ModelSeeds], steps: tuple[int, ...] = SCORED_STEPS) -> None:
    for step in steps:
        loss_MxN, member_MxN = open_with_points(s.path, step=step).read(models)
        np.testing.assert_array_equal(loss_MxN, [loss(model, step) for model in models])
        np.testing.assert_array_equal(member_MxN, [values(model)[1] for model in models])
        block = open_with_points(s.path, step=step).samples({"x": ("loss", models)}, [7, 0])
        np.testing.assert_array_equal(block["x"], loss_MxN[:, [7, 0]])


def test_xarray_opens_the_store_with_checkpoints(tmp_path: Path):
    s = write_store(tmp_path, statistics=STATISTICS)
    with xr.open_zarr(s.path) as data:
        assert dict(data.sizes) == {"model": 6, "checkpoint": 3, "sample": SAMPLES}
        assert set(data.data_vars) == {"loss", "member", "min_k"}
        assert set(data.coords) == {
            "model",
            "role",
            "digest",
            "computation",
            "details_digest",
            "subset_seed",
            "init_seed",
            "order_seed",
            "step",
            "sample",
            "tokens",
            "unk",
        }
        assert data["loss"].dims == data["min_k"].dims == ("model", "checkpoint", "sample")
        assert data["member"].dims == ("model", "sample")
        assert data["step"].dims == ("checkpoint",)
        assert data["step"].dtype == np.int64
        assert data["step"].values.tolist() == [3, 6, 9]
        assert data["loss"].attrs["units"] == "nats per token"
        for i, model in enumerate(FOUR):
            np.testing.assert_array_equal(data["member"][i], values(model)[1])
            for k, step in enumerate(SCORED_STEPS):
                np.testing.assert_array_equal(data["loss"][i, k], loss(model, step))
                np.testing.assert_array_equal(data["min_k"][i, k], loss(model, step, "min_k"))
    # Three files per model and checkpoint; membership once.
    assert {name for name in content(s) if name.startswith(("loss/c/", "member/c/"))} == {
        *(f"loss/c/{m}/{k}/{shard}" for m in range(6) for k in range(3) for shard in range(3)),
        *(f"member/c/{m}/{shard}" for m in range(6) for shard in range(3)),
    }


def test_model_is_present_if_all_checkpoints_are(tmp_path: Path):
    s = open_with_points(tmp_path / "scores.zarr", STATISTICS)
    assert (s.missing_models(FOUR), s.missing_models(FOUR, 3), s.missing_models(FOUR, 0)) == (
        FOUR,
        FOUR,
        FOUR,
    )
    ensure(s, FOUR)
    model, others = FOUR[1], [FOUR[0], *FOUR[2:]]
    assert [lacking(s, model, step) for step in SCORED_STEPS] == [["member", "loss", "min_k"]] * 3
    write(s, model, 6)
    assert lacking(s, model) == lacking(s, model, 3) == ["loss", "min_k"]
    assert lacking(s, model, 6) == []
    assert [s.missing_models(FOUR, step) for step in SCORED_STEPS] == [FOUR, others, FOUR]
    write(s, model, 0)
    assert [s.missing_models(FOUR, step) for step in SCORED_STEPS] == [FOUR, others, others]
    assert (s.missing_models(FOUR), s.is_present().any()) == (FOUR, np.False_)
    check(s, [model], (6, 0))
    with pytest.raises(UserError) as caught:
        open_with_points(s.path, step=3).read([model])
    assert re.fullmatch(
        rf"{s.path}: 1 of 1 models .*\bstep 3 \({model}\); run `lm-mia run` first",
        str(caught.value),
    )
    write(s, model, 3)
    assert s.missing_models(FOUR) == others
    assert s.is_present().tolist() == [m == 1 for m in range(6)]
    check(s, [model])


def test_deleted_shard_is_missing_at_its_checkpoint_only(tmp_path: Path):
    s = write_store(tmp_path, statistics=STATISTICS)
    before = content(s)
    for name, (k, step) in itertools.product(("loss", "min_k"), enumerate(SCORED_STEPS)):
        (s.path / name / "c" / "3" / str(k) / "1").unlink()
        assert s.missing_models(FOUR) == s.missing_models(FOUR, step) == [FOUR[3]]
        for other_step in SCORED_STEPS:
            assert lacking(s, FOUR[3], other_step) == ([name] if other_step == step else [])
        values_of_model = {name: loss(FOUR[3], step, name) for name in ("loss", "min_k")}
        s.write_model(
            FOUR[3], values_of_model.pop("loss"), values(FOUR[3])[1], values_of_model, step
        )
        assert content(s) == before


def test_deleted_membership_shard_is_missing_at_all_checkpoints(tmp_path: Path):
    s = write_store(tmp_path)
    before = content(s)
    (s.path / "member" / "c" / "3" / "2").unlink()
    assert all(lacking(s, FOUR[3], step) == ["member"] for step in SCORED_STEPS)
    s.write_model(FOUR[3], np.zeros(SAMPLES, np.float32), values(FOUR[3])[1], {}, 6)
    assert content(s) == before  # existing losses are not rewritten


def test_damaged_byte_is_detected_at_its_checkpoint_only(tmp_path: Path):
    """`store_test` damages every byte."""
    s = write_store(tmp_path)
    for k, step in enumerate(SCORED_STEPS):
        shard = s.path / "loss" / "c" / "2" / str(k) / "1"
        original = shard.read_bytes()
        middle = len(original) // 2
        shard.write_bytes(
            original[:middle] + bytes([original[middle] ^ 16]) + original[middle + 1 :]
        )
        with pytest.raises(UserError) as caught:
            open_with_points(s.path, step=step).read(FOUR)
        assert str(caught.value).startswith(f"{shard}: corrupt ")
        check(s, FOUR, tuple(other_step for other_step in SCORED_STEPS if other_step != step))
        shard.write_bytes(original)


def test_interrupted_write_is_continued_at_any_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Membership, loss and a statistic have three shards each; the next write adds the missing ones."""
    model, transaction = FOUR[4], store.ts.Transaction
    complete = open_with_points(tmp_path / "scores.zarr", STATISTICS)
    ensure(complete, FOUR)
    shutil.copytree(complete.path, tmp_path / "before.zarr")
    write(complete, model, 6)
    for cut in range(9):
        left = [transaction] * cut

        def next_one(left: list = left) -> object:
            if not left:
                raise Crash
            return left.pop()()

        s = open_with_points(
            shutil.copytree(tmp_path / "before.zarr", tmp_path / f"{cut}.zarr"), STATISTICS
        )
        with monkeypatch.context() as m:
            m.setattr(store.ts, "Transaction", next_one)
            with pytest.raises(Crash):
                write(s, model, 6)
        assert s.missing_models(FOUR, 6) == FOUR
        assert lacking(s, model, 6) == ["member", "loss", "min_k"][max(cut - 6, 0) :]
        assert lacking(s, model, 3) == ["member", "loss", "min_k"][cut >= 7 :]
        write(s, model, 6)
        assert content(s) == content(complete)


@pytest.mark.parametrize("stride", [3, slow_case(1)])
def test_creation_recovers_from_a_crash_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
):
    """With a statistic and with checkpoints, which add a coordinate."""
    complete = open_with_points(tmp_path / "scores.zarr", STATISTICS)
    ensure(complete, SIX)
    expected, crash_at, crashed = content(complete), 1 - stride, True
    while crashed:
        crash_at += stride
        (tmp_path / str(crash_at)).mkdir()
        s = open_with_points(tmp_path / str(crash_at) / "scores.zarr", STATISTICS)
        crashed = crash(monkeypatch, crash_at, lambda s=s: ensure(s, SIX))
        # A reader sees no store, or the new one without values.
        assert s.models() in ([], SIX)
        assert s.missing_models(SIX) == SIX
        ensure(s, SIX)
        assert content(s) == expected
    assert crash_at > 20


def test_extension_keeps_existing_shards_bitwise(tmp_path: Path):
    old = write_store(tmp_path)
    before = {k: v for k, v in content(old).items() if k.startswith(("loss/c", "member/c"))}
    s = open_with_points(old.path, STATISTICS)
    ensure(s, SIX)
    assert (old.missing_models(SIX), s.missing_models(SIX)) == (SIX[4:6], SIX)
    for model in SIX:
        for step in SCORED_STEPS:
            write(s, model, step)
    assert s.missing_models(SIX) == []
    check(s, SIX)
    assert {k: content(s)[k] for k in before} == before


@pytest.mark.parametrize(
    ("stored", "other", "message"),
    [
        ((POINTS, END), ((), 9), r"at steps 3, 6, 9, not at the end\b"),
        ((POINTS, END), ((3,), 9), "3, 6, 9, not .* 3, 9;"),
        ((POINTS, END), (POINTS, 10), "3, 6, 9, not .* 3, 6, 10;"),
        (((), 9), (POINTS, END), r"\bend\b.*, not .* 3, 6, 9;"),
    ],
)
def test_other_checkpoints_than_stored_raise(
    tmp_path: Path, stored: tuple[Any, int], other: tuple[Any, int], message: str
):
    s, path = Store(tmp_path / "scores.zarr", (), *stored), tmp_path / "scores.zarr"
    ensure(s, FOUR)
    before, wrong = content(s), Store(path, (), *other)
    for ask in (
        wrong.models,
        wrong.is_present,
        lambda: ensure(wrong, SIX),
        lambda: wrong.missing_models(FOUR),
        lambda: wrong.missing_shards(FOUR[0]),
        lambda: wrong.write_model(FOUR[0], *values(FOUR[0])),
        lambda: wrong.read(FOUR),
    ):
        with pytest.raises(UserError) as caught:
            ask()
        assert re.match(rf"{path}: .*{message}.*\bscore\.at_steps\b.*--workdir$", str(caught.value))
    assert content(s) == before


def test_total_steps_alone_add_no_checkpoint_dimension(tmp_path: Path):
    """The end of training is not an additional checkpoint."""
    s = make_store(tmp_path)
    before = content(s)
    without_points = Store(s.path, (), (), END)
    ensure(without_points, FOUR)
    assert without_points.missing_models(FOUR) == without_points.missing_models(FOUR, 0) == []
    assert content(s) == before
    assert not (s.path / "step").exists()


def test_damaged_steps_and_shapes_raise(tmp_path: Path):
    s = write_store(tmp_path)
    member = (s.path / "member" / "zarr.json").read_bytes()
    (s.path / "loss" / "zarr.json").write_bytes(member)
    with pytest.raises(UserError, match=r"damaged .*\(loss/zarr\.json\); delete"):
        s.is_present()
    (s.path / "step" / "c" / "0").unlink()
    with pytest.raises(UserError, match=r"damaged .*\(step\); delete"):
        s.is_present()


@pytest.mark.parametrize(
    ("steps", "total", "step", "message"),
    [
        ((3, 6), 0, 0, "positive .*ascending"),
        ((6, 3), 9, 0, "positive .*ascending"),
        ((3, 3), 9, 0, "positive .*ascending"),
        ((0, 3), 9, 0, "positive .*ascending"),
        ((3, 9), 9, 0, "positive .*ascending"),
        ((3, 6), 9, 4, r"step=4: .*\(3, 6\)"),
        ((3, 6), 9, 9, r"step=9: .*\(3, 6\)"),
        ((), 9, 3, r"step=3: .*\(\)"),
    ],
)
def test_invalid_steps_raise(
    tmp_path: Path, steps: tuple[int, ...], total: int, step: int, message: str
):
    with pytest.raises(ValueError, match=message):
        Store(tmp_path / "scores.zarr", (), steps, total, step)


def test_unscored_step_raises(tmp_path: Path):
    s = open_with_points(tmp_path / "scores.zarr")
    s.create_or_extend(FOUR, COLUMNS, {})
    before = content(s)
    bad = (
        lambda: write(s, FOUR[0], 4),
        lambda: lacking(s, FOUR[0], 9),
        lambda: s.missing_models(FOUR, 1),
    )
    for ask in bad:
        with pytest.raises(ValueError, match=r"step=.* 0 or one"):
            ask()
    assert content(s) == before
