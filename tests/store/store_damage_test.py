import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from slow_case import slow_case
from tiny_store import (
    FOUR,
    SAMPLES,
    SIX,
    Crash,
    _small_shards,
    check,
    content,
    crash,
    ensure,
    make_store,
    values,
)

from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.store import schema
from lm_mia.store.check import check_metadata, check_shards
from lm_mia.store.store import Store

__all__ = ["_small_shards"]  # the fixture, used here too


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("zarr.json", "zarr.json, model, role or seeds"),
        ("model/c/0", "model, role or seeds"),
        ("role/c/0", "model, role or seeds"),
        ("subset_seed/c/0", "model, role or seeds"),
        ("order_seed/c/0", "model, role or seeds"),
    ],
)
def test_damaged_metadata_and_coordinates_raise(tmp_path: Path, damage: str, message: str):
    s = Store(tmp_path / "scores.zarr")
    s.create_or_extend(FOUR, {"tokens": np.arange(5)}, {})
    path = s.path / damage
    if damage == "zarr.json":
        path.write_text("{")
    elif path.exists():
        path.unlink()
    for ask in (s.is_present, lambda: s.create_or_extend(SIX, {"tokens": np.arange(5)}, {})):
        with pytest.raises(UserError) as caught:
            ask()
        assert re.match(
            rf"{s.path}: damaged .*\({message}\); delete .*`lm-mia run` .*`lm-mia import` ",
            str(caught.value),
        )


@pytest.mark.parametrize("text", [None, "{"])
def test_damaged_array_metadata_raises(tmp_path: Path, text: str | None):
    s = Store(tmp_path / "scores.zarr")
    s.create_or_extend(FOUR, {"tokens": np.arange(5)}, {})
    (s.path / "loss" / "zarr.json").unlink()
    if text is not None:
        (s.path / "loss" / "zarr.json").write_text(text)
    with pytest.raises(UserError, match=r"damaged .*\(loss/zarr\.json\)"):
        s.is_present()


@pytest.mark.parametrize("stride", [3, slow_case(1)])
@pytest.mark.parametrize("statistics", [slow_case(()), ("min_k_plus_plus",)])
def test_extension_recovers_from_a_crash_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statistics: tuple[str, ...], stride: int
):
    """Adds models, and in one case a statistic; `store_checkpoints_test` crashes the creation of a store."""
    (tmp_path / "uninterrupted").mkdir()
    before = make_store(tmp_path / "uninterrupted")
    shutil.copytree(before.path, tmp_path / "before.zarr")
    ensure(Store(before.path, statistics), SIX)
    expected, crash_at, crashed = content(before), 1 - stride, True
    while crashed:
        crash_at += stride
        path = tmp_path / str(crash_at) / "scores.zarr"
        shutil.copytree(tmp_path / "before.zarr", path)
        s, later = Store(path), Store(path, statistics)
        crashed = crash(monkeypatch, crash_at, lambda later=later: ensure(later, SIX))
        assert s.models() in (FOUR, FOUR + SIX[4:6])
        # A reader sees the old state or the new one.
        assert s.missing_models(FOUR) == []
        assert later.missing_models(FOUR) == (FOUR if statistics else [])
        check(s, FOUR)
        ensure(later, SIX)
        assert content(s) == expected
    assert crash_at > 20


def test_crashed_statistic_is_extended_by_later_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The half-created variable is extended with the others, so that the store can be opened."""
    s = make_store(tmp_path)

    def cut(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as m:
        m.setattr(zarr, "consolidate_metadata", cut)
        with pytest.raises(Crash):
            ensure(Store(s.path, ("min_k",)), FOUR)
    ensure(s, SIX)
    with xr.open_zarr(s.path) as data:
        assert data["min_k"].shape == data["loss"].shape == (8, 10)
    assert Store(s.path, ("min_k",)).missing_models(SIX) == SIX
    check(s, FOUR)


def test_other_models_are_added_after_a_crashed_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Adds 2 models, crashes just before consolidation, then adds another model."""
    s, plain = make_store(tmp_path / "a"), make_store(tmp_path / "b")

    def cut(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as m:
        m.setattr(zarr, "consolidate_metadata", cut)
        with pytest.raises(Crash):
            ensure(s, SIX)
    other = ModelSeeds("reference", 9, 9, 9)
    for each in (s, plain):
        ensure(each, [*FOUR, other])
        assert each.models() == [*FOUR, other]
        assert each.missing_models([*FOUR, other]) == [other]
        each.write_model(other, *values(other))
        check(each, [*FOUR, other])


def test_models_appended_during_a_query_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    s, present = make_store(tmp_path), Store.is_present

    def then_grow(self: Store, *variables: object) -> np.ndarray:
        present_M = present(self, *variables)  # pyright: ignore
        ensure(self, SIX)
        return present_M

    monkeypatch.setattr(Store, "is_present", then_grow)
    assert s.missing_models(SIX) == SIX[4:6]


@pytest.mark.parametrize("name", ["loss/c/0/0", "loss/zarr.json", "model/c/0", "model/zarr.json"])
def test_a_file_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    s = make_store(tmp_path)
    path = s.path / name
    path.rename(tmp_path / "kept")
    path.symlink_to(path.name)  # the system fails to open it, also for root

    def verify() -> None:
        check_metadata(s, {})
        check_shards(s, FOUR)

    # It exists, but unlike other failures, Python takes a link to itself for a missing file.
    monkeypatch.setattr(Path, "exists", lambda path: os.path.lexists(path))
    # Readers use the consolidated metadata of coordinates instead of their own.
    for ask in (verify,) if name == "model/zarr.json" else (verify, lambda: s.read(FOUR)):
        with pytest.raises(OSError, match="symbolic links") as caught:
            ask()
        assert caught.value.filename == str(path)


def test_a_variable_of_a_later_version_is_ignored(tmp_path: Path):
    s = make_store(tmp_path)
    group = zarr.open_group(s.path, mode="a")
    shape, dims = (len(FOUR), SAMPLES), ["model", "sample"]
    group.create_array("later", shape=shape, dtype="float32", dimension_names=dims)[:] = -1.5
    with schema.no_zarr_warnings():
        zarr.consolidate_metadata(s.path)
    check_metadata(s, {})
    make_store(tmp_path, SIX)
    check(s, SIX)
    check_metadata(s, {})
    later = xr.open_zarr(s.path)["later"].to_numpy()
    assert (later[: len(FOUR)] == -1.5).all()
    assert later.shape == (len(SIX), SAMPLES)


def test_models_are_published_after_all_variables_have_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A crash between the two must not leave a store that xarray cannot open."""
    s = make_store(tmp_path)
    group = zarr.open_group(s.path, mode="a")
    shape, dims = (len(FOUR), 1), ["model", "later"]
    group.create_array("later", shape=shape, dtype="float32", dimension_names=dims)
    schema.consolidate(s.path)
    lengths = []

    def consolidate(path: Path) -> None:
        arrays = {
            name: array for name, array in zarr.open_group(path, use_consolidated=False).arrays()
        }
        lengths.append({arrays[name].shape[0] for name in ("model", "loss", "member", "later")})

    monkeypatch.setattr(schema, "consolidate", consolidate)
    s.create_or_extend(SIX, {}, {})
    assert lengths == [{len(SIX)}]


def test_an_unknown_statistic_is_a_mistake_of_the_program(tmp_path: Path):
    with pytest.raises(ValueError, match=r"mine.*VARIABLES"):
        Store(tmp_path / "scores.zarr", statistics=("min_k", "mine"))


def test_exchanged_seeds_that_names_do_not_show_are_damage(tmp_path: Path):
    s = make_store(tmp_path)
    [chunk], [other] = ([*(s.path / n / "c").iterdir()] for n in ("init_seed", "order_seed"))
    shutil.copy(other, chunk)
    with pytest.raises(UserError, match="role or seeds"):
        s.models()


def test_exchanged_steps_are_damage(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr", steps=(1, 2), total_steps=3)
    s.create_or_extend(FOUR, {"tokens": np.arange(5)}, {})
    shutil.copy(s.path / "order_seed" / "c" / "0", s.path / "step" / "c" / "0")
    with pytest.raises(UserError, match="step"):
        s.models()
