"""The reader of arrays and tables: formats, and the forms in which values are asked for."""

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from pyarrow import feather, parquet

from lm_mia.data import arrays as reader
from lm_mia.data.arrays import Arrays, as_array, open_arrays
from lm_mia.errors import UserError

N = 60
LONG_IDS = [f"2024010100000000{n:04d}" for n in range(N)]
"""Ids of 20 digits, which neither int64 nor float64 can tell apart."""
FRAME = pd.DataFrame(
    {
        "id": LONG_IDS,
        "score": np.linspace(-1, 1, N),
        "member": np.arange(N) % 2,
        "user": [f"00{n % 3}" for n in range(N)],
        "text": [f'text, "{n}"\nof two lines' for n in range(N)],
    }
)


def compressed(path: Path) -> Path:
    """Returns a compressed copy of a file, by gzip or zstd in turn."""
    with pa.OSFile(str(path)) as file:
        content = file.read()
    target = path.with_name(path.name + ".zst")
    with pa.output_stream(str(target), compression="zstd") as file:
        file.write(content)
    return target


def write(folder: Path, suffix: str) -> Any:
    path = folder / f"a{suffix}"
    match suffix.split(".")[1]:
        case "csv" | "tsv":
            separator = "\t" if "tsv" in suffix else ","
            FRAME.to_csv(path, index=False, sep=separator, compression="infer")
        case "jsonl" | "json":
            records = [json.dumps(row) for row in FRAME.to_dict("records")]
            content = "\n".join(records) if "jsonl" in suffix else f"[{', '.join(records)}]"
            is_compressed = suffix.endswith(".gz")
            path.write_bytes(gzip.compress(content.encode()) if is_compressed else content.encode())
        case "parquet":
            FRAME.to_parquet(path)
        case "arrow":
            with pa.OSFile(str(path), "wb") as file:
                table = pa.Table.from_pandas(FRAME)
                with pa.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table)
        case "feather":
            feather.write_feather(pa.Table.from_pandas(FRAME), path)
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    **{
        suffix: lambda folder, suffix=suffix: write(folder, suffix)
        for suffix in (
            *(".csv", ".csv.gz", ".tsv", ".jsonl", ".jsonl.gz", ".json", ".parquet"),
            *(".arrow", ".feather"),
        )
    },
    ".csv.zst": lambda folder: compressed(write(folder, ".csv")),
    ".jsonl.zst": lambda folder: compressed(write(folder, ".jsonl")),
    "a data frame": lambda folder: FRAME,
    "a table of pyarrow": lambda folder: pa.Table.from_pandas(FRAME),
    "categories": lambda folder: FRAME.astype({"id": "category", "user": "category"}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_all_tables_have_the_same_content(kind: str, tmp_path: Path):
    table = open_arrays(SOURCES[kind](tmp_path))
    assert table.is_table
    assert table.num_rows == N
    np.testing.assert_allclose(table["score"].real(), FRAME["score"], rtol=1e-15)
    assert table["member"].membership().tolist() == [n % 2 == 1 for n in range(N)]
    assert table["id"].strings().tolist() == LONG_IDS
    index_N, users = table["user"].names()
    assert users == ["000", "001", "002"]
    assert index_N.tolist() == [n % 3 for n in range(N)]
    texts = table["text"].texts()
    assert texts is not None
    assert texts.to_pylist() == FRAME["text"].tolist()


@pytest.mark.parametrize("mark", [",", ", ", "\t", ";"])
def test_the_first_line_shows_what_separates_columns(mark: str, tmp_path: Path):
    lines = [f"score{mark}member", f"1.5{mark}1", f"N/A{mark}0"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    table = open_arrays(tmp_path / "a.csv")
    np.testing.assert_array_equal(table["score"].real(), [1.5, np.nan])
    assert table["member"].membership().tolist() == [True, False]


def test_a_compressed_column_may_begin_with_whole_numbers(tmp_path: Path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("score,member\n" + "1,0\n" * 5_000_000 + "0.5,1\n")
    assert open_arrays(tmp_path / "a.csv.gz")["score"].real()[-1] == 0.5


def test_columns_that_a_flag_names_are_strings(tmp_path: Path):
    FRAME.rename(columns={"user": "person"}).to_csv(tmp_path / "a.csv", index=False)
    assert open_arrays(tmp_path / "a.csv", ["person"])["person"].names()[1][0] == "000"


@pytest.mark.parametrize(
    "kind", ["npz", "mapping", "nc", "nc named", "zarr 2", "zarr 3", "nested lists"]
)
def test_all_arrays_have_the_same_content(kind: str, tmp_path: Path):
    loss_MxN = np.random.default_rng(0).random((3, N))
    member_MxN, name_M = loss_MxN > 0.5, ["a", "b", "c"]
    arrays: dict[str, Any] = {"loss_MxN": loss_MxN, "member_MxN": member_MxN}
    arrays |= {"name_M": np.array(name_M), "tokens_N": np.arange(N)}
    source: Any = arrays
    match kind:
        case "npz":
            np.savez(tmp_path / "a.npz", **arrays)
            source = tmp_path / "a.npz"
        case "nested lists":
            source = {name: array.tolist() for name, array in arrays.items()}
        case "nc":
            dataset = xr.Dataset(
                {"loss": (("sample", "model"), loss_MxN.T), "member": (("model", "sample"), member_MxN)},
                {"model": name_M, "tokens": ("sample", np.arange(N))},
            )  # fmt: skip
            source = tmp_path / "a.nc"
            dataset.to_netcdf(source, engine="scipy")
        case "nc named":  # by the names that arrays have in an npz file
            dims = {"loss_MxN": ("a", "b"), "member_MxN": ("a", "b"), "tokens_N": "b"}
            dataset = xr.Dataset({name: (dims[name], arrays[name]) for name in dims})
            source = tmp_path / "a.nc"
            dataset.assign(name_M=("a", ["a", "b", "c"])).to_netcdf(source, engine="scipy")
        case "zarr 2" | "zarr 3":
            source = tmp_path / "a.zarr"
            version: Any = int(kind[-1])
            group = zarr.open_group(source, mode="w", zarr_format=version)
            for name, dims, values in (
                ("loss", ["model", "sample"], loss_MxN),
                ("member", ["model", "sample"], member_MxN),
                ("tokens", ["sample"], np.arange(N)),
                ("model", ["model"], np.arange(3)),
            ):
                names: dict[str, Any] = {"dimension_names": dims} if version == 3 else {}
                array = group.create_array(name, shape=values.shape, dtype=values.dtype, **names)
                array[:] = values
                array.attrs["_ARRAY_DIMENSIONS"] = dims
            name_M = ["0", "1", "2"]
    opened = open_arrays(source)
    assert not opened.is_table
    np.testing.assert_array_equal(opened["loss_MxN"].real(), loss_MxN)
    np.testing.assert_array_equal(opened["loss_MxN"].row(1), loss_MxN[1])
    np.testing.assert_array_equal(opened["member_MxN"].membership(), member_MxN)
    assert opened["name_M"].strings().tolist() == name_M
    assert opened["tokens_N"].array().tolist() == list(range(N))
    assert opened.of_samples("tokens") == "tokens_N"
    assert opened.of_samples("texts") is None


class Tensor:
    """As much of a tensor of PyTorch as is used; its bfloat16 has no equivalent in NumPy."""

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.values, self.dtype, self.shape = array, dtype, array.shape

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def float(self) -> "Tensor":
        return Tensor(self.values, "torch.float32")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


def test_bfloat16_of_jax_and_pytorch_becomes_float32():
    loss_MxN = np.array([[1.5, 2.25]], np.float32)
    for value in (loss_MxN.astype(ml_dtypes.bfloat16), Tensor(loss_MxN, "torch.bfloat16")):
        array = open_arrays({"loss_MxN": value})["loss_MxN"].real()
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, loss_MxN)


def test_bfloat16_in_an_npz_file_is_named(tmp_path: Path):
    np.savez(tmp_path / "a.npz", loss_MxN=np.ones((1, 2)).astype(ml_dtypes.bfloat16))
    with pytest.raises(UserError, match=r"astype\(np.float32\)"):
        open_arrays(tmp_path / "a.npz")


def test_ragged_lists_are_named():
    with pytest.raises(UserError, match="'loss_MxN' "):
        open_arrays({"loss_MxN": [[1.0, 2.0], [1.0]]})


def test_texts_in_lists_do_not_take_the_width_of_the_longest():
    assert as_array(["a", "b" * 100_000], "texts").nbytes < 100


@pytest.mark.parametrize(
    "words",
    [
        [1, 0], [1.0, 0.0], [True, False], ["1", "0"], ["true", "False"], ["Yes", "no"],
        ["member", "nonmember"], [" Member", "non-member "], ["in", "out"],
    ],
)  # fmt: skip
def test_words_for_membership(words: list[Any], tmp_path: Path):
    pd.DataFrame({"member": words}).to_csv(tmp_path / "a.csv", index=False)
    for source in (tmp_path / "a.csv", {"member": words}, pd.DataFrame({"member": words})):
        assert open_arrays(source)["member"].membership().tolist() == [True, False]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([1, -1], "-1 at row 2"),
        ([1, 0.5], "0.5 at row 2"),
        (["member", "maybe"], "'maybe'"),
        (["member", ""], "missing for 1 samples"),
        ([True, None], "missing for 1 samples"),
        ([1, None], "missing for 1 samples"),
    ],
)
def test_membership_that_is_unknown_is_refused(words: list[Any], problem: str):
    with pytest.raises(UserError, match=problem):
        open_arrays(pd.DataFrame({"member": words}))["member"].membership()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([3, 1, 3], ["3", "1"]),
        ([3.0, 1.0, 3.0], ["3", "1"]),
        ([2**63 + 1, 2**63, 2**63 + 1], [str(2**63 + 1), str(2**63)]),
        ([True, False, True], ["True", "False"]),
        (["b", "a", "b"], ["b", "a"]),
    ],
)
def test_names_are_strings(values: list[Any], names: list[str]):
    for source in ({"user": values}, pd.DataFrame({"user": values})):
        index_N, found = open_arrays(source)["user"].names()
        assert [name.lower() for name in found] == [name.lower() for name in names]
        assert index_N.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.5, 2.0], r"fractions\b.*\b1\.5"),
        ([1e17, 2.0], "last digits"),
        (["a", None], r"missing\b.*\b1\b.*\brow 2\b"),
        ([b"a", b"b"], "holds bytes"),
        ([[1], [2]], "nested values|type list"),
    ],
)
def test_names_that_are_none_are_refused(values: list[Any], problem: str):
    with pytest.raises(UserError, match=problem):
        open_arrays(pd.DataFrame({"user": values}))["user"].names()


def test_all_invalid_lines_of_json_are_reported_at_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"score": 1}\n[1]\n{"score": \n\n' + '{"a": ' + 5000 * "9" + "}\n")
    with pytest.raises(UserError) as error:
        open_arrays(path)
    lines = str(error.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "3", "5"]


def test_compressed_files_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    csv = tmp_path / "bomb.csv.gz"
    with gzip.open(csv, "wt") as file:
        file.write("score,member\n" + "0.5,1\n" * 3_000_000)
    assert csv.stat().st_size < 100_000
    rows = tmp_path / "bomb.jsonl.gz"
    with gzip.open(rows, "wt") as file:
        file.write('{"score": 1}\n' * 100_000)
    monkeypatch.setattr(reader, "memory_bytes", lambda: 2**22)
    for path in (csv, rows):
        with pytest.raises(UserError, match="machine's memory"):
            open_arrays(path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", b"PK\x03\x04" + bytes(40), "zip file"),
        ("a.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "compressed by gzip"),
        ("a.csv.gz", b"a,b\n1,2\n", "valid csv|be read"),
        (
            "a.csv.gz",
            gzip.compress(b"a,b\n1,2\n" * 999, mtime=0)[:-20],
            "valid csv|be read",
        ),
        ("a.jsonl.zst", b"{}", "cannot be read"),
        ("a.parquet", b"PAR1", "valid parquet"),
        ("a.arrow", b"ARROW1\0\0" + bytes(60), "file of Arrow"),
        ("a.npy", b"\x93NUMPY", "single array"),
        ("a.txt", b"score", "must end in"),
        ("a.gz", b"\x1f\x8b", "must end in"),
        ("a.nc", b"CDF", "xarray cannot read"),
        ("a.csv", b"score,member\n1,\x1b[31m\n", "\\?|holds strings"),
    ],
)
def test_files_that_are_something_else(name: str, content: bytes, problem: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem) as error:
        open_arrays(tmp_path / name)["member"].membership()
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).isprintable()


def test_columns_of_a_parquet_file_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path, ".parquet")
    read = []

    def read_table(path: Path, columns: list[str], original: Any = reader.pq.read_table) -> Any:
        read.extend(columns)
        return original(path, columns=columns)

    monkeypatch.setattr(reader.pq, "read_table", read_table)
    table: Arrays = open_arrays(path)
    table["score"].real()
    assert read == ["score"]


def test_decimals_are_numbers(tmp_path: Path):
    values = [Decimal(f"{score:.3f}") for score in FRAME["score"]]
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"score": values, "member": FRAME["member"]}), file)
    np.testing.assert_allclose(open_arrays(file)["score"].real(), [float(v) for v in values], 1e-15)


def test_a_zarr_store_without_dimensions_is_told_how_to_name_them(tmp_path: Path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("loss_MxN", data=np.zeros((3, N)))
    with pytest.raises(UserError, match=r"dataset\.to_zarr"):
        open_arrays(tmp_path / "a.zarr")
