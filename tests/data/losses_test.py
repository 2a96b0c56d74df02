"""Losses of models in arrays, wide tables and long tables: what is read, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from lm_mia.data.arrays import open_arrays
from lm_mia.data.losses import LossFile, check_values, read_losses, read_member
from lm_mia.errors import UserError

N = 40
MEMBER_N = np.arange(N) < N // 2
LOSS_MxN = np.random.default_rng(0).gamma(9, 0.3, (4, N))
MEMBER_MxN = np.stack([MEMBER_N, ~MEMBER_N, np.roll(MEMBER_N, 5), np.zeros(N, bool)])
NAMES = ("tuned", "one", "two", "gpt2")
ROLES = ["target", "reference", "reference", "base"]


def npz(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "a.npz", **{"loss_MxN": LOSS_MxN, "member_MxN": MEMBER_MxN} | changes)
    return folder / "a.npz"


def table(**changes: Any) -> pd.DataFrame:
    columns = {f"loss_{name}": LOSS_MxN[m] for m, name in enumerate(NAMES)}
    columns |= {f"member_{name}": MEMBER_MxN[m] for m, name in enumerate(NAMES[:3])}
    columns |= {"text": [f"text {i}" for i in range(N)], "user": [f"u{i % 4}" for i in range(N)]}
    return pd.DataFrame(columns | {"tokens": np.full(N, 7), "year": np.arange(N)} | changes)


def parquet(folder: Path, **changes: Any) -> Path:
    table(**changes).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def read(source: Any, **roles: Any) -> LossFile:
    return read_losses(open_arrays(source), **roles)


@pytest.mark.parametrize(
    "kind", ["roles in the file", "flags", "parquet", "csv", "frame", "arrays", "long table"]
)
def test_each_model_has_the_role_that_is_said(kind: str, tmp_path: Path):
    roles: dict[str, Any] = {"target": ("tuned",), "base": "gpt2"}
    match kind:
        case "roles in the file":
            file = read(npz(tmp_path, role_M=np.array(ROLES), name_M=np.array(NAMES)))
        case "flags":
            file = read(npz(tmp_path, name_M=np.array(NAMES)), **roles)
        case "parquet":
            file = read(parquet(tmp_path), **roles)
        case "csv":
            table().to_csv(tmp_path / "a.csv", index=False)
            file = read(tmp_path / "a.csv", **roles)
        case "frame":
            file = read(table(), **roles)
        case "long table":
            file = read(long_table().sample(frac=1, random_state=0), **roles)
        case _:
            arrays = {"loss_MxN": LOSS_MxN, "member_MxN": MEMBER_MxN, "name_M": NAMES}
            file = read(arrays | {"role_M": ROLES})
    at = {name: file.names_M.index(name) for name in NAMES}
    assert [file.role_M[at[name]] for name in NAMES] == ROLES
    order_N = np.arange(N)
    if kind == "long table":
        order_N = np.array([int(name[2:]) for name in file.columns["name"]])
    for m, name in enumerate(NAMES):
        np.testing.assert_allclose(file.read("loss", at[name]), LOSS_MxN[m][order_N])
        np.testing.assert_array_equal(read_member(file, at[name]), MEMBER_MxN[m][order_N])
    if kind in ("parquet", "csv", "frame", "long table"):
        assert (file.columns["tokens"] == 7).all()
        assert file.columns["user"].tolist() == [f"u{n % 4}" for n in order_N]
        assert file.text_N is not None
        assert file.text_N.tolist() == [f"text {n}" for n in order_N]


def long_table() -> pd.DataFrame:
    """Returns a row for each model and sample."""
    model_K, sample_K = np.repeat(NAMES, N), np.tile(np.arange(N), len(NAMES))
    columns = {"model": model_K, "id": [f"id{n}" for n in sample_K]}
    columns |= {"loss": LOSS_MxN.ravel(), "member": np.where(MEMBER_MxN.ravel(), "yes", "no")}
    columns |= {"text": [f"text {n}" for n in sample_K], "user": [f"u{n % 4}" for n in sample_K]}
    return pd.DataFrame(columns | {"tokens": 7})


def test_long_tables_without_ids_have_samples_in_order():
    file = read(long_table().drop(columns="id"), target=("tuned",), base="gpt2")
    np.testing.assert_array_equal(file.read("loss", file.names_M.index("two")), LOSS_MxN[2])
    alone = read(long_table().query("model == 'tuned'").drop(columns=["id", "model"]))
    assert alone.names_M == ("0",)
    np.testing.assert_array_equal(alone.read("loss", 0), LOSS_MxN[0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.iloc[1:], r"no row\b.*\b1 pairs"),
        (lambda t: pd.concat([t, t.iloc[:2]]), r"one row\b.*\b2 pairs"),
        (lambda t: t.assign(tokens=np.arange(len(t))), "several values"),
        (lambda t: t.assign(role=np.arange(len(t)) % 2), "several roles"),
        (lambda t: t.assign(member="maybe"), "holds strings.* 'maybe'"),
        (lambda t: t.drop(columns="member"), "no column 'member'"),
    ],
)
def test_long_tables_must_be_complete(change: Callable[[pd.DataFrame], pd.DataFrame], problem: str):
    with pytest.raises(UserError, match=problem):
        read(change(long_table()))


def test_names_of_columns_say_roles():
    frame = table().rename(columns={"loss_gpt2": "loss_base"})
    frame = frame.rename(columns={"loss_tuned": "loss_target", "member_tuned": "member_target"})
    assert read(frame).role_M == ("target", "reference", "reference", "base")


def test_flags_may_repeat_what_the_file_says(tmp_path: Path):
    file = read(npz(tmp_path, role_M=np.array(ROLES)), target=("0",), base="3")
    assert file.role_M == tuple(ROLES)


def test_a_name_that_only_resembles_a_role_is_that_of_a_reference():
    frame = table(member_gpt2=MEMBER_N)
    frame.columns = [str(name).replace("gpt2", "baseline") for name in frame]
    assert read(frame, target=("tuned",)).role_M == ("target", *["reference"] * 3)


def test_a_dataset_may_have_variables_of_any_kind(tmp_path: Path):
    dataset = xr.Dataset(
        {"loss": (("model", "sample"), LOSS_MxN), "member": (("model", "sample"), MEMBER_MxN)},
        {"subset_seed": ("model", np.arange(4)), "other": (("model", "sample"), LOSS_MxN)},
    )
    dataset.to_netcdf(tmp_path / "a.nc", engine="scipy")
    assert read(tmp_path / "a.nc").columns == {}


def test_the_column_of_texts_may_have_another_name():
    file = read(
        table(body="a text").drop(columns="text"), target=("tuned",), text="body", base="gpt2"
    )
    assert file.text_N is not None
    assert {*file.text_N} == {"a text"}
    with pytest.raises(UserError, match="text-column=text2"):
        read(table(), target=("tuned",), base="gpt2", text="text2")


def test_ids_are_strings_and_name_the_samples():
    ids = [f"2024010100000000{n:04d}" for n in range(N)]
    file = read(table(id=ids), target=("tuned",), base="gpt2")
    assert file.columns["name"].tolist() == ids
    named = read(table(id=ids, name="x"), target=("tuned",), base="gpt2")
    assert {*named.columns["name"]} == {"x"}


@pytest.mark.parametrize("shape", [(2, N), (N, 2)])
def test_transposed_arrays_are_one_line(shape: tuple[int, int]):
    arrays = {"loss_MxN": LOSS_MxN[:2].T, "member_MxN": MEMBER_MxN[:2].T.reshape(shape)}
    with pytest.raises(UserError, match=r"=array\.T") as error:
        read(arrays)
    assert len(str(error.value).splitlines()) == 1
    # Many models of few samples have a row each, if there is something that says how many samples there are.
    tall = {"loss_MxN": LOSS_MxN.T, "member_MxN": MEMBER_MxN.T, "tokens_N": np.full(4, 9)}
    assert read(tall).num_samples == 4


@pytest.mark.parametrize("transposed", ["loss_MxN", "member_MxN"])
@pytest.mark.parametrize("known", ["name_M", "role_M", "tokens_N", None])
def test_of_two_orientations_the_wrong_one_is_named(transposed: str, known: str | None):
    models, samples = 25, 800
    arrays = {
        "loss_MxN": np.ones((models, samples)),
        "member_MxN": np.ones((models, samples), bool),
    }
    arrays[transposed] = arrays[transposed].T
    if known:
        of_known = {"name_M": [*map(str, range(models))], "role_M": ["reference"] * models}
        arrays[known] = np.array(of_known.get(known, np.full(samples, 9)))
    with pytest.raises(UserError, match="is transposed") as error:
        read(arrays)
    advised = re.findall(r"(\w+)=array\.T", str(error.value))
    assert advised == [transposed] if known else {*advised} == {"loss_MxN", "member_MxN"}


BOTH = {"target": ("tuned",), "base": "gpt2"}
BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "unknown name": (parquet, BOTH | {"base": "gpt3"}, "has no model gpt3"),
    "the base is the target": (parquet, BOTH | {"base": "tuned"}, "is the target, too"),
    "other roles": (lambda f: npz(f, role_M=np.array(ROLES)), {"target": ("1",)}, "leave --target"),
    "two bases": (lambda f: npz(f, role_M=np.array(["target", *["base"] * 3])), {}, "only one can"),
    "a base with members": (
        lambda f: parquet(f, member_gpt2=MEMBER_N),
        BOTH,
        "trained on none of the samples",
    ),
    "no membership": (parquet, {"target": ("tuned",)}, "member_gpt2 is missing"),
    "a target without members": (npz, {"target": ("3",)}, "needs members and non-members"),
    "a target twice": (
        lambda f: npz(f, loss_MxN=LOSS_MxN[[0, 0, 1, 2]]),
        {"target": ("0",)},
        "has the losses of model 1",
    ),
    "repeated ids": (lambda f: parquet(f, id=[1, 1, *range(2, N)]), BOTH, "several rows"),
    "repeated names": (lambda f: npz(f, name_M=np.array(list("aabc"))), {}, "several models"),
    "names for other models": (lambda f: npz(f, name_M=np.array(["a"])), {}, "one value for each"),
    "unknown array": (lambda f: npz(f, losses_MxN=LOSS_MxN), {}, "unknown arrays losses_MxN"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_right_is_refused(name: str, tmp_path: Path):
    write, roles, problem = BAD[name]
    with pytest.raises(UserError, match=problem):
        check_values(read(write(tmp_path), **roles), lambda *_: None)
