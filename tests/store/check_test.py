import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_store import (
    COLUMNS,
    FOUR,
    SAMPLES,
    SIX,
    _small_shards,
    content,
    ensure,
    make_store,
    open_with_points,
    values,
    write_store,
)

from lm_mia.errors import UserError
from lm_mia.store import check, schema
from lm_mia.store.store import Store

__all__ = ["_small_shards"]  # fixture


def test_intact_store_has_no_missing_or_corrupt_shards(tmp_path: Path):
    s = make_store(tmp_path)
    seen: list[tuple[int, int]] = []
    report = check.check_shards(s, FOUR, lambda done, total: seen.append((done, total)))
    # 6 models, 2 variables, 3 shards of each.
    assert (report.num_shards, report.missing, report.corrupt) == (36, [], [])
    assert seen == [(i, 36) for i in range(1, 37)]


@pytest.mark.parametrize("name", ["loss/c/2/1", "member/c/0/0", "loss/c/3/2"])
def test_damaged_shards_are_reported_and_repaired_bitwise(tmp_path: Path, name: str):
    s = make_store(tmp_path)
    before, path = content(s), s.path / name
    original = path.read_bytes()
    middle = len(original) // 2
    flipped = original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :]
    for damaged in (flipped, original[:-5], b""):
        path.write_bytes(damaged)
        report = check.check_shards(s, FOUR)
        assert (report.missing, report.corrupt) == ([], [path])
    path.unlink()
    report = check.check_shards(s, FOUR)
    assert (report.missing, report.corrupt) == ([path], [])
    variable, _, index, shard = name.split("/")
    model = FOUR[int(index)]
    [(low, high, names)] = s.missing_shards(model)
    assert names == [variable]
    total: dict[str, np.ndarray] = dict(zip(("loss", "member"), values(model), strict=True))
    assert low == int(shard) * (s.missing_shards(model)[0][1] - low) or high == len(total["loss"])
    s.write_shards(model, low, {variable: total[variable][low:high]})
    assert s.missing_models(FOUR) == [model]  # until it has a digest again
    assert s.write_digest(model)
    assert content(s) == before


def test_shards_of_unscored_models_are_missing(tmp_path: Path):
    s = Store(tmp_path / "scores.zarr")
    ensure(s, FOUR)
    s.write_model(FOUR[1], *values(FOUR[1]))
    report = check.check_shards(s, FOUR)
    assert (report.num_shards, len(report.missing), report.corrupt) == (36, 30, [])
    assert not any(path.parts[-2] == "1" for path in report.missing)


def test_shards_of_all_checkpoints_are_checked(tmp_path: Path):
    s = open_with_points(tmp_path / "scores.zarr", ())
    ensure(s, FOUR)
    report = check.check_shards(s, FOUR[:1])
    points = len(s.steps) + 1
    # Membership has no score points.
    assert report.num_shards == len(report.missing) == 3 + 3 * points


COORDINATES = {"sample": np.arange(SAMPLES), **COLUMNS}


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokens", lambda s: shutil.copy(s / "unk" / "c" / "0", s / "tokens" / "c" / "0")),
        ("unk", lambda s: (s / "unk" / "c" / "0").unlink()),
        ("unk", lambda s: (s / "unk" / "c" / "0").write_bytes(b"")),
        ("sample", lambda s: (s / "sample" / "zarr.json").unlink()),
        ("loss", lambda s: replace(s / "loss" / "zarr.json", "nats per token", "bits per token")),
        ("loss", lambda s: replace(s / "zarr.json", "nats per token", "bits per token")),
        ("min_k", lambda s: replace(s / "min_k" / "zarr.json", "checkpoint", "step")),
    ],
)
def test_damaged_metadata_and_coordinates_are_errors(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
):
    s = write_store(tmp_path, statistics=("min_k",))
    check.check_metadata(s, COORDINATES)
    damage(s.path)
    with pytest.raises(UserError, match=rf"scores\.zarr: damaged .*\({name}\); delete"):
        check.check_metadata(s, COORDINATES)


def test_missing_properties_of_imported_samples_are_no_damage(tmp_path: Path):
    columns = {"tokens": np.full(SAMPLES, np.nan), "tfidf": np.linspace(0, 1, SAMPLES)}
    columns["tfidf"][::2] = np.nan
    s = Store(tmp_path / "scores.zarr")
    s.create_or_extend(FOUR, columns, {})
    check.check_metadata(s, columns)
    with pytest.raises(UserError, match=r"\(tfidf\).*`lm-mia import`"):
        check.check_metadata(s, columns | {"tfidf": columns["tokens"]})


def test_models_that_a_killed_command_was_adding_are_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    s = make_store(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(schema, "consolidate", lambda path: None)
        ensure(s, SIX)
    assert s.models() == FOUR
    check.check_metadata(s, COORDINATES)
    check.check_metadata(Store(tmp_path / "missing"), COORDINATES)


def test_a_store_with_scores_is_not_created_again(tmp_path: Path):
    s = make_store(tmp_path, SIX)
    before = content(s)
    del before["zarr.json"]
    (s.path / "zarr.json").unlink()
    for act in (s.models, lambda: check.check_metadata(s, {}), lambda: ensure(s, FOUR)):
        with pytest.raises(UserError, match=r"damaged .*\(zarr\.json\); delete"):
            act()
    assert content(s) == before
