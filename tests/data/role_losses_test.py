"""Losses of models with roles, which `lm-mia audit` reads: what is read, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lm_mia.data import role_losses
from lm_mia.data.score_tables import Columns
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


@pytest.mark.parametrize("kind", ["roles in the file", "flags", "table", "arrays"])
def test_each_model_has_the_role_that_is_said(kind: str, tmp_path: Path):
    arrays = {"loss_MxN": LOSS_MxN, "member_MxN": MEMBER_MxN, "role_M": np.array(ROLES)}
    match kind:
        case "roles in the file":
            source, columns = npz(tmp_path, role_M=np.array(ROLES)), Columns()
        case "flags":
            source, columns = npz(tmp_path), Columns(target=("0",), base="3")
        case "table":
            source = parquet(tmp_path)
            columns = Columns(target=("tuned",), base="gpt2", user="user")
        case _:
            source, columns = arrays, Columns()
    assert role_losses.has_roles(source)
    losses = role_losses.read_losses(source, columns)
    np.testing.assert_array_equal(losses.target_loss_TxN, LOSS_MxN[:1])
    np.testing.assert_array_equal(losses.target_member_TxN, MEMBER_MxN[:1])
    np.testing.assert_array_equal(losses.reference_loss_MxN, LOSS_MxN[1:3])
    np.testing.assert_array_equal(losses.reference_member_MxN, MEMBER_MxN[1:3])
    np.testing.assert_array_equal(losses.base_loss_N, LOSS_MxN[3])
    assert losses.names_T == (("tuned",) if kind == "table" else ("0",))
    assert (losses.user_N is not None) == (kind == "table")
    if kind == "table":
        assert (losses.columns_N["tokens"] == 7).all()
        assert (losses.columns_N["zlib_bytes"] > 0).all()


def test_names_of_columns_say_roles(tmp_path: Path):
    frame = table().rename(columns={"loss_gpt2": "loss_base"})
    frame = frame.rename(columns={"loss_tuned": "loss_target", "member_tuned": "member_target"})
    frame.to_parquet(tmp_path / "a.parquet")
    losses = role_losses.read_losses(tmp_path / "a.parquet", Columns())
    np.testing.assert_array_equal(losses.base_loss_N, LOSS_MxN[3])
    np.testing.assert_array_equal(losses.target_loss_TxN, LOSS_MxN[:1])


def test_csv_files_of_losses_are_refused_with_their_conversion(tmp_path: Path):
    table().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match=r"read_csv\(.*to_parquet\("):
        role_losses.read_losses(tmp_path / "a.csv", Columns(target=("tuned",), base="gpt2"))


def test_flags_may_repeat_what_the_file_says(tmp_path: Path):
    file = npz(tmp_path, role_M=np.array(ROLES))
    losses = role_losses.read_losses(file, Columns(target=("0",), base="3"))
    np.testing.assert_array_equal(losses.base_loss_N, LOSS_MxN[3])


def test_a_name_that_only_resembles_a_role_is_that_of_a_reference(tmp_path: Path):
    frame = table(member_gpt2=MEMBER_N)
    frame.columns = [str(name).replace("gpt2", "baseline") for name in frame]
    frame.to_parquet(tmp_path / "a.parquet")
    losses = role_losses.read_losses(tmp_path / "a.parquet", Columns(target=("tuned",)))
    assert len(losses.reference_loss_MxN) == 3


def test_a_target_needs_neither_references_nor_a_base():
    arrays = {"loss_MxN": LOSS_MxN[:1], "member_MxN": MEMBER_MxN[:1]}
    losses = role_losses.read_losses(arrays, Columns())  # a single model is the target
    assert losses.target_loss_TxN.shape == (1, N)
    assert losses.reference_loss_MxN.shape == (0, N)
    assert losses.base_loss_N is None


BOTH = {"target": ("tuned",), "base": "gpt2"}
BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "no target": (npz, {}, "no model has the role target"),
    "unknown name": (parquet, BOTH | {"base": "gpt3"}, "has no model gpt3"),
    "the base is the target": (parquet, BOTH | {"base": "tuned"}, "is the target, too"),
    "a base without a target": (parquet, {"base": "gpt2"}, "name the attacked model"),
    "other roles": (lambda f: npz(f, role_M=np.array(ROLES)), {"target": ("1",)}, "leave --target"),
    "two bases": (lambda f: npz(f, role_M=np.array(["target", *["base"] * 3])), {}, "only one can"),
    "a base with members": (
        lambda f: parquet(f, member_gpt2=MEMBER_N),
        BOTH,
        "trained on none of the samples",
    ),
    "no membership": (parquet, {"target": ("tuned",)}, "member_gpt2 is missing"),
    "a target without members": (npz, {"target": ("3",)}, "needs members and non-members"),
    "a column of scores": (parquet, BOTH | {"score": "loss_tuned"}, "is for scores"),
    "repeated ids": (lambda f: parquet(f, id=[1, 1, *range(2, N)]), BOTH, "several rows"),
    "unknown user": (parquet, BOTH | {"user": "person"}, "has no column 'person'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_right_is_refused(name: str, tmp_path: Path):
    write, columns, problem = BAD[name]
    with pytest.raises(UserError, match=problem):
        role_losses.read_losses(write(tmp_path), Columns(**columns, prefix="--"))
