from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lm_mia.data.arrays import open_arrays
from lm_mia.data.covariates import Covariates, read_covariates
from lm_mia.data.scores import Columns, read_scores
from lm_mia.errors import UserError


def read(text: str = "", **columns: object) -> Covariates:
    table = pa.table(columns)
    names = [name for name in columns if name != text]
    covariates = read_covariates(open_arrays(table), names, text, table.num_rows)
    assert covariates is not None
    return covariates


def test_line_breaks_in_texts_may_cross_blocks_of_a_file(tmp_path: Path) -> None:
    """PyArrow reads blocks of 1 MB, and by default a row must be within a block."""
    texts = [f"a text,\nof {i} lines\n\n" * 60 for i in range(1500)]
    frame = pd.DataFrame({"text": texts, "member": np.arange(1500) % 2, "score": 0.5})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    assert (tmp_path / "scores.csv").stat().st_size > 2**20
    [scores] = read_scores(open_arrays(tmp_path / "scores.csv"), Columns())
    np.testing.assert_array_equal(scores.member_N, np.arange(1500) % 2 == 1)


def test_numbers_dates_and_categories() -> None:
    covariates = read(
        length=[3, 5, 4],
        share=[0.5, 0.25, 0.0],
        seen=[True, False, True],
        day=np.array(["2024-01-02", "2024-01-01", "2024-01-01T12"], "datetime64[us]"),
        source=pd.Categorical(["web", "news", "code"]),
        split=["b", "a", "b"],
    )
    names = (
        "length",
        "share",
        "seen",
        "day",
        "source=code",
        "source=news",
        "source=web",
        "split=b",
    )
    assert covariates.names == names
    days = covariates.value_NxC[:, 3] - covariates.value_NxC[1, 3]
    np.testing.assert_array_equal(days, [1, 0, 0.5])
    expected = [[3, 0.5, 1, 0, 0, 1, 1], [5, 0.25, 0, 0, 1, 0, 0], [4, 0, 1, 1, 0, 0, 1]]
    np.testing.assert_array_equal(np.delete(covariates.value_NxC, 3, axis=1), expected)
    np.testing.assert_array_equal(covariates.is_number_C, [1, 1, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(covariates.take(np.array([2, 0])).value_NxC[:, 0], [4, 3])


def test_texts_are_numbered() -> None:
    covariates = read("body", body=["one", "two", "one"])
    assert covariates.texts == ["one", "two"]
    np.testing.assert_array_equal(covariates.text_N, [0, 1, 0])
    assert covariates.value_NxC.shape == (3, 0)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1.0, None, float("nan")], r"missing\b.*\b2\b.*\brow 2\b"),
        ([1.0, float("inf"), 2], "1 invalid value, inf at row 2"),
        (["a", "", None], r"missing\b.*\b2\b.*\brow 2\b"),
        (pa.array([1, None, 3], pa.date32()), r"missing\b.*\b1\b.*\brow 2\b"),
        ([f"s{i}" for i in range(51)], r"51 distinct strings\b.*\b50\b"),
        ([[1], [2]], "type list"),
        (pa.array([None, None]), r"missing\b.*\b2 rows"),
    ],
)
def test_bad_covariates(column: object, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(x=column)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1, 2], "must hold the text"),
        (["a", ""], r"missing\b.*\b1 rows"),
        ([b"caf\xe9", b"tea"], "holds bytes; .*UTF-8"),
        (pa.array([None, None]), "is empty"),
    ],
)
def test_bad_texts(column: object, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read("x", x=column)
