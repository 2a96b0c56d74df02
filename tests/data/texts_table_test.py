import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_mia.data import texts
from lm_mia.errors import UserError

ROWS = [
    {"id": "007", "text": "NA", "user": "ann", "member": 1, "year": 2020, "note": "x"},
    {"id": "8", "text": 'a "quoted"\nline', "user": "", "member": 0, "year": 2021, "note": "y"},
]


def write(folder: Path, suffix: str, rows: list[dict] = ROWS) -> Path:
    path, frame = folder / f"texts{suffix}", pd.DataFrame(rows)
    match suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".parquet":
            frame.to_parquet(path)
        case ".jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_all_formats_have_the_same_content(tmp_path: Path, suffix: str):
    found = texts.read_table(write(tmp_path, suffix))
    assert found.id_N == ["007", "8"]
    assert found.text_N == ["NA", 'a "quoted"\nline']
    assert found.member_N is not None
    assert found.member_N.tolist() == [True, False]
    assert found.columns["user"].tolist() == ["ann", ""]
    assert found.columns["year"].tolist() == [2020, 2021]
    assert found.left_out == ("note",)


def test_without_ids_texts_are_counted(tmp_path: Path):
    path = write(tmp_path, ".jsonl", [{"text": "a"}, {"text": None}, {"text": ""}])
    found = texts.read_table(path)
    assert found.id_N == ["0", "1", "2"]
    assert found.text_N == ["a", "", ""]
    assert found.member_N is None


def test_large_and_mixed_ids_stay_distinct(tmp_path: Path):
    ids = [20240101000000000000, 20240101000000000001, "a"]
    path = write(tmp_path, ".jsonl", [{"id": i, "text": "x"} for i in ids])
    assert texts.read_table(path).id_N == [str(i) for i in ids]
    rows = [{"id": str(i), "text": "x"} for i in ids]
    assert texts.read_table(write(tmp_path, ".csv", rows)).id_N == [str(i) for i in ids]


def test_columns_that_would_mislead_an_import_are_left_out(tmp_path: Path):
    rows = [{"text": "a", "tokens": 3, "loss_a": 1.0, "member_a": 1, "zlib_bytes": 9, "age": None}]
    found = texts.read_table(write(tmp_path, ".parquet", [*rows, {"text": "b", "age": 4.0}]))
    assert {*found.left_out} == {"tokens", "loss_a", "member_a", "zlib_bytes"}
    assert np.isnan(found.columns["age"][0])


def test_all_mistakes_of_texts_are_reported_at_once(tmp_path: Path):
    rows = [{"id": "a", "text": "x", "member": 2}, {"id": "a", "text": "y", "member": 0}]
    with pytest.raises(UserError) as error:
        texts.read_table(write(tmp_path, ".jsonl", rows))
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert "column 'id'" in lines[0]
    assert "column 'member'" in lines[1]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"text": "a"}\n{"text": ', ":2:"),
        ("[1]", ":1:"),
        ('{"text": "a", "n": ' + 5000 * "9" + "}", ":1:"),
        ('{"body": "a"}', "'text'"),
        ('{"text": 3.5}', "'text'"),
        ("\n", "'text'"),
        ('{"id": null, "text": "a"}', "'id'"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, content: str, word: str):
    path = tmp_path / "texts.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=word):
        texts.read_table(path)


def test_files_that_are_not_tables_are_refused(tmp_path: Path):
    (tmp_path / "texts.txt").write_text("a")
    (tmp_path / "texts.parquet").write_text("a")
    (tmp_path / "latin.jsonl").write_bytes('{"text": "ü"}'.encode("latin1"))
    for name in ("texts.txt", "texts.parquet", "latin.jsonl", "missing.csv"):
        with pytest.raises(UserError, match=name):
            texts.read_table(tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_members_are_read_as_they_were_written(tmp_path: Path, suffix: str):
    path = tmp_path / f"members{suffix}"
    members = {"model-00": np.array([True, False]), "model-01": np.array([False, False])}
    texts.write_members(path, ["007", "NA"], members)
    found = texts.read_members(path)
    assert [*found] == [*members]
    for name, member_N in members.items():
        found_N = texts.members_of(found, name, ["NA", "007"], "members")
        assert found_N is not None
        assert found_N.tolist() == member_N[::-1].tolist()
    assert texts.members_of(found, "another", ["007"], "members") is None


def test_a_text_without_membership_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"model a.*lost"):
        texts.members_of({"a": {"x": True}}, "a", ["x", "lost"], "members.csv")


def test_members_with_repeated_rows_are_refused(tmp_path: Path):
    path = tmp_path / "members.csv"
    path.write_text("model,id,member\na,x,1\na,x,0\n")
    with pytest.raises(UserError, match="a, x"):
        texts.read_members(path)
    path.write_text("model,member\na,1\n")
    with pytest.raises(UserError, match="'id'"):
        texts.read_members(path)
