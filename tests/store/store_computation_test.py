"""The record of how each model was trained."""

from pathlib import Path

import pytest
import xarray as xr
from tiny_store import FOUR, make_store

from lm_mia.errors import UserError
from lm_mia.store.store import NOT_REPRODUCIBLE

KERNEL, OTHER = "pallas_gpu on 1 x NVIDIA H100", f"{NOT_REPRODUCIBLE}: cudnn on 1 x NVIDIA H100"
CPU = "xla on 1 x cpu"


def test_each_model_has_the_record_of_its_last_training(tmp_path: Path):
    s = make_store(tmp_path)
    assert set(s.computations().values()) == {""}
    digests = s.digests(FOUR)
    s.add_computation(FOUR[0], OTHER, is_continued=False)
    s.add_computation(FOUR[0], KERNEL, is_continued=False)  # trained again from the start
    s.add_computation(FOUR[1], KERNEL, is_continued=False)
    s.add_computation(FOUR[1], KERNEL, is_continued=True)  # continued in the same way
    s.add_computation(FOUR[2], KERNEL, is_continued=True)  # nothing is known about its first part
    assert [s.computations()[model] for model in FOUR[:3]] == [KERNEL] * 3
    assert list(s.computations()) == s.models()
    assert s.digests(FOUR) == digests
    with xr.open_zarr(s.path) as data:
        assert data["computation"].values.tolist() == [*s.computations().values()]


def test_a_model_continued_in_another_way_is_not_reproducible(tmp_path: Path):
    s = make_store(tmp_path)
    s.add_computation(FOUR[0], KERNEL, is_continued=False)
    s.add_computation(FOUR[0], CPU, is_continued=True)
    assert s.computations()[FOUR[0]] == f"{NOT_REPRODUCIBLE}: {KERNEL}; {CPU}"
    s.add_computation(FOUR[0], KERNEL, is_continued=True)  # nothing new
    assert s.computations()[FOUR[0]] == f"{NOT_REPRODUCIBLE}: {KERNEL}; {CPU}"


def test_a_store_of_an_earlier_version_has_no_record_and_gets_one(tmp_path: Path):
    s = make_store(tmp_path)
    for file in sorted((s.path / "computation").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (s.path / "computation").rmdir()
    assert set(s.computations().values()) == {""}
    s.add_computation(FOUR[1], KERNEL, is_continued=False)
    assert s.computations()[FOUR[1]] == KERNEL
    assert s.computations()[FOUR[0]] == ""


def test_a_damaged_record_is_named(tmp_path: Path):
    s = make_store(tmp_path)
    s.add_computation(FOUR[0], KERNEL, is_continued=False)
    [file] = [f for f in (s.path / "computation" / "c").iterdir() if f.is_file()]
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(UserError, match="computation"):
        s.computations()
