import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_mia.data import text_files
from lm_mia.errors import UserError


def read(source: str, path: Path | str, column: str = "text") -> tuple[list[str], list[str]]:
    files = text_files.read(source, str(path), column, lambda done, total: None)
    return files.texts, files.records


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def test_text_files_are_sorted(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/z.txt").write_text("bz")
    (tmp_path / "b/a.txt").write_bytes("\ufeffbä".encode())
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "c.md").write_text("c")
    everything = ["a", "bä", "bz"], ["a.txt", "b/a.txt", "b/z.txt"]
    assert read("text", tmp_path) == everything
    assert read("text", tmp_path / "**/*.txt") == everything
    assert read("text", tmp_path / "?/*.txt") == (["bä", "bz"], ["b/a.txt", "b/z.txt"])
    assert read("text", tmp_path / "c.md") == (["c"], ["c.md"])


def test_text_files_that_are_not_utf8_are_left_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_bytes("caf\xe9".encode("latin-1"))
    files = text_files.read("text", str(tmp_path), "text", lambda done, total: None)
    assert (files.texts, files.files, files.not_utf8) == (["a"], ["a.txt", "b.txt"], ["b.txt"])


def test_globs_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a")
    assert (
        read("text", "*.txt") == read("text", "./*.txt") == read("text", ".") == (["a"], ["a.txt"])
    )


def test_jsonl_and_gzip_files_are_read(tmp_path: Path):
    (tmp_path / "b.jsonl").write_bytes(
        lines({"body": "one", "n": 1}) + b"\n" + lines({"body": "ü"})
    )
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines({"body": None}, {"body": "zipped"})))
    texts, records = read("jsonl", tmp_path, "body")
    assert texts == ["", "zipped", "one", "ü"]
    assert records == ["a.jsonl.gz:1", "a.jsonl.gz:2", "b.jsonl:1", "b.jsonl:3"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet_files_are_read(tmp_path: Path, kind: pa.DataType):
    table = pa.table({"n": [1, 2, 3], "text": pa.array(["x", None, "z"], kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    expected = ["x", "", "z"], ["t.parquet:0", "t.parquet:1", "t.parquet:2"]
    assert read("parquet", tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"fine\n\xff", r"none of the 1 file\(s\) is UTF-8, such as x.txt; convert them"),
        ("x.txt", b" \n", r"corpus.path=.*all 1 texts of 1 file\(s\) in .* are empty"),
        ("x.jsonl", b'{"text": "a"}\n{"text": ', r"x.jsonl, line 2: not JSON \(.* column 10\)"),
        ("x.jsonl", b'{"text": "a"}\n\xff\n', r"x.jsonl, line 2: not UTF-8"),
        ("x.jsonl", b'{"text": "\\ud800"}\n', r"x.jsonl, line 1: not UTF-8 \(surrogates"),
        ("x.jsonl", b"[1]\n", r"x.jsonl, line 1: not a JSON object"),
        ("x.jsonl", b'{"text": 5}\n', r"x.jsonl, line 1: column 'text' is not a string"),
        (
            "x.jsonl",
            b'{"a": "", "b": 2}',
            r"corpus.column='text': no such .* line 1; choose one of a, b",
        ),
        ("x.jsonl", b'{"text": ""}\n{"text": null}', r"corpus.column='text': all 2 texts .*empty"),
        ("x.jsonl", b"", r"corpus.column='text': all 0 texts"),
        ("x.jsonl.gz", b"plain", r"x.jsonl.gz, line 1: not a valid gzip file"),
        (
            "x.jsonl.gz",
            gzip.compress(b"{}" * 99, mtime=0)[:-9],
            r"x.jsonl.gz, line 1: not a valid gzip",
        ),
        ("x.parquet", b"PAR1 no", r"x.parquet is not a valid parquet file"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    source = {"txt": "text", "parquet": "parquet"}.get(name.split(".", 1)[1], "jsonl")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=message):
            read(source, path)


def test_invalid_parquet_columns_are_reported(tmp_path: Path):
    table = pa.table({"n": [1, 2], "empty": pa.nulls(2), "blank": ["", " "]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"column='text': no such .*choose one of n, empty, blank"):
        read("parquet", tmp_path)
    with pytest.raises(UserError, match=r"corpus.column='n': the column has type int64 in"):
        read("parquet", tmp_path, "n")
    for column in ("empty", "blank"):
        with pytest.raises(UserError, match=f"corpus.column='{column}': all 2 texts .* are empty"):
            read("parquet", tmp_path, column)


def test_missing_paths_are_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"corpus.path='.*nowhere': no such file or folder"):
        read("text", tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(
            UserError, match=r"corpus.path=.*: no matching file; folders are searched for \*.txt"
        ):
            read("text", path)


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.txt").write_text("x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"x.txt cannot be read \(.*Permission denied"):
        read("text", tmp_path)
