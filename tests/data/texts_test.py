import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_mia.data import texts
from lm_mia.errors import UserError


def read(source: str, path: Path | str, column: str = "text") -> tuple[list[str], list[str]]:
    files = texts.read(source, str(path), column, lambda done, total: None)
    return files.texts, files.names


def sources(source: str, path: Path, column: str = "text") -> list[str]:
    return texts.read(source, str(path), column, lambda done, total: None).sources


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


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
    assert sources("text", tmp_path) == ["", "b", "b"]


def test_text_files_that_are_not_utf8_are_left_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_bytes("caf\xe9".encode("latin-1"))
    files = texts.read("text", str(tmp_path), "text", lambda done, total: None)
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
    texts, names = read("jsonl", tmp_path, "body")
    assert texts == ["", "zipped", "one", "ü"]
    assert names == ["a.jsonl.gz:1", "a.jsonl.gz:2", "b.jsonl:1", "b.jsonl:3"]
    assert sources("jsonl", tmp_path, "body") == ["a.jsonl.gz"] * 2 + ["b.jsonl"] * 2


def test_compressed_files_are_recognized_by_their_content(tmp_path: Path):
    one, two = lines({"text": "one"}), lines({"text": "two"})
    for name, content in (
        ("members.jsonl.gz", gzip.compress(one) + gzip.compress(two) + bytes(512)),
        ("frames.json.zst", zstd(one) + zstd(two)),
        ("plain.json.gz", one + two),
        ("compressed.jsonl", gzip.compress(one + two)),
    ):
        (tmp_path / name).write_bytes(content)
        assert texts.source_of(str(tmp_path / name)) == "jsonl"
        assert read("jsonl", tmp_path / name) == (["one", "two"], [f"{name}:1", f"{name}:2"])
    for name, content in (("a.md", gzip.compress(b"a\nb")), ("a.txt.zst", zstd(b"a\nb"))):
        (tmp_path / name).write_bytes(content)
        assert read("text", tmp_path / name) == (["a\nb"], [name])


def test_csv_files_are_read(tmp_path: Path):
    texts = ["a, b", 'x "y"\r\nz', "", "NA", "long " * 100_000, "é"]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("n", "text"), *enumerate(texts)])
    before = csv.field_size_limit()
    numbers = [2, 3, 5, 6, 7, 8]
    assert read("csv", tmp_path) == (texts, [f"t.csv:{n}" for n in numbers])
    assert csv.field_size_limit() == before
    (tmp_path / "t.csv").write_bytes(zstd(b"text\nfirst\n\nsecond\n"))
    assert read("csv", tmp_path) == (["first", "second"], ["t.csv:2", "t.csv:4"])


def test_a_folder_is_read_in_one_format_and_others_are_counted(tmp_path: Path):
    def found() -> tuple[str, list[str], dict[str, int]]:
        source = texts.source_of(str(tmp_path))
        files = texts.read(source, str(tmp_path), "text", lambda done, total: None)
        return source, files.files, files.other_files

    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/hidden.txt~").write_text("hidden")
    (tmp_path / "README.MD").write_text("text")
    (tmp_path / "license").write_text("text")
    assert found() == ("text", ["README.MD"], {"": 1})
    (tmp_path / "b.json").write_bytes(lines({"text": "b"}))
    assert found() == ("jsonl", ["b.json"], {"": 1, ".md": 1})
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"text\nc\n"))
    assert found() == ("csv", ["c.csv.gz"], {"": 1, ".json": 1, ".md": 1})
    (tmp_path / "d.jsonl.zst").write_bytes(zstd(lines({"text": "d"})))
    assert found() == ("jsonl", ["d.jsonl.zst"], {"": 1, ".csv": 1, ".json": 1, ".md": 1})
    (tmp_path / "e.txt").write_text("e")
    assert found()[:2] == ("text", ["e.txt"])


def test_files_of_unknown_or_several_formats_are_refused(tmp_path: Path):
    for name in ("a.txt", "b.md", "c.csv", "d.docx"):
        (tmp_path / name).write_text("text")
    for pattern, message in (
        ("d.docx", r"d.docx has none of the suffixes .txt, .md, .jsonl, .json, .csv .* .parquet; "),
        ("*", r"d.docx has none"),
        ("?.[tmc]*", r"several formats \(1 .csv, 1 .md and 1 .txt files\); choose a glob of one"),
    ):
        with pytest.raises(UserError, match=message):
            texts.source_of(str(tmp_path / pattern))
    assert texts.source_of(str(tmp_path / "?.[tm]*")) == "text"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet_files_are_read(tmp_path: Path, kind: pa.DataType):
    text = pa.array(["x", None, "z"], kind)
    expected = ["x", "", "z"], ["t.parquet:0", "t.parquet:1", "t.parquet:2"]
    for column in (text, text.dictionary_encode()):  # a categorical column of pandas
        pq.write_table(pa.table({"n": [1, 2, 3], "text": column}), tmp_path / "t.parquet")
        assert read("parquet", tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"fine\n\xff", r"\b1 file\(s\) is UTF-8\b.*\bx\.txt; "),
        ("x.txt", b" \n", r"corpus.path=.*all 1 texts .* empty"),
        ("x.jsonl", b"", r"corpus.path=.*: .*\b1 file\(s\) .*no texts"),
        (
            "x.csv",
            b"text,id\n",
            r"corpus.path=.*: .*\b1 file\(s\) .*no texts",
        ),
        ("x.jsonl", b'{"text": "a"}\n{"text": ', r"x.jsonl, line 2: .*JSON \(.*column 10\)"),
        ("x.jsonl", b'{"text": "a"}\n\xff\n', r"x.jsonl, line 2: .*UTF-8"),
        ("x.jsonl", b'{"text": "\\ud800"}\n', r"x.jsonl, line 1: .*UTF-8 \(surrogates"),
        ("x.jsonl", b"[1]\n", r"x.jsonl, line 1: .*JSON array, .*jq -c '.\[\]'"),
        ("x.jsonl", b'{"text": "a"}\n[1]\n', r"x.jsonl, line 2: .*JSON object"),
        ("x.json", b'[{"text": "a"},\n{"text": "b"}]', r"x.json, line 1: .*JSON array, .*jq -c"),
        ("x.json", b'\n{\n "text": "a"\n}\n', r"x.json, line 2: .*beginning\b.*\bJSON"),
        ("x.jsonl", b'{"text": "a" "b"}\n{}\n', r"x.jsonl, line 1: .*JSON \(.*column 14\)"),
        ("x.jsonl", b'{"text": ""}\n{"n": %s}' % (b"9" * 5000), r"x.jsonl, line 2: .*integer"),
        ("x.jsonl", b'{"text": ""}\n' + b"[" * 100_000, r"x.jsonl, line 2: .*nested"),
        ("x.jsonl", b'{"text": 5}\n', r"x.jsonl, line 1: .*'text' .*string"),
        (
            "x.jsonl",
            b'{"a": "", "b": 2}',
            r"corpus.column='text': .* line 1; .*\ba, b$",
        ),
        ("x.jsonl", b'{"text": ""}\n{"text": null}', r"corpus.column='text': .*\b2 texts .*empty"),
        ("x.jsonl.gz", b"\x1f\x8bplain", r"x.jsonl.gz, line 1: .*gzip"),
        ("x.txt", gzip.compress(b"a" * 99, mtime=0)[:-9], r"x.txt, line 1: .*gzip"),
        ("x.txt", b"PK\x03\x04", r"x.txt .*zip file; "),
        ("x.jsonl.zst", zstd(b'{"text": "a"}\n')[:-5], r"x.jsonl.zst, line 1: .*zstd"),
        ("x.csv", b'n,text\n1,"a\nb"\n2,c,d\n', r"x.csv, line 4: 3 fields\b.*\b2\b"),
        ("x.csv", b'n,text\n1,"a\nb"\n2,"c\nd', r"x.csv, line 4: .*CSV \(unexpected end"),
        ("x.csv", b'text\n"a" b\n', r"x.csv, line 2: .*CSV"),
        ("x.csv", b"text\na\ncaf\xe9\n", r"x.csv, line 3: .*UTF-8"),
        (
            "x.csv",
            b"n,body\n1,a\n",
            r"corpus.column='text': .*x.csv; .*\bn, body$",
        ),
        ("x.csv", b"text,text\na,b\n", r"corpus.column='text': 2 columns .*; rename"),
        (
            "x.jsonl.gz",
            gzip.compress(b"{}" * 99, mtime=0)[:-9],
            r"x.jsonl.gz, line 1: .*gzip",
        ),
        ("x.parquet", b"PAR1 no", r"x\.parquet .*valid parquet"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    source = texts.source_of(str(tmp_path))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=message):
            read(source, path)


def test_invalid_parquet_columns_are_reported(tmp_path: Path):
    table = pa.table({"n": [1, 2], "empty": pa.nulls(2), "blank": ["", " "]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"column='text': .*\bn, empty, blank"):
        read("parquet", tmp_path)
    with pytest.raises(UserError, match=r"corpus.column='n': .*\bint64 "):
        read("parquet", tmp_path, "n")
    for column in ("empty", "blank"):
        with pytest.raises(UserError, match=f"corpus.column='{column}': all 2 .* empty"):
            read("parquet", tmp_path, column)


def test_missing_paths_are_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"corpus.path='.*nowhere': "):
        read("text", tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(UserError, match=r"corpus.path=.*: .*matching file; "):
            read("text", path)


def test_unreadable_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their files would be left out without a word, and the audit would be of other texts."""
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "a.txt").write_text("a")
    (tmp_path / "x.txt").write_text("x")
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"locked .*\(Permission denied\)"):
        read("text", tmp_path)


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.txt").write_text("x")

    def refuse(self: Path, mode: str) -> BinaryIO:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"x\.txt .*\(.*Permission denied"):
        read("text", tmp_path)


def test_json_lines_with_the_suffix_of_text_are_refused(tmp_path: Path):
    for name in ("a.txt", "a.txt.gz", "a.md"):
        content = b'\n{"text": "one"}\n{"text": "two"}\n'
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        with pytest.raises(UserError, match=r"JSON object"):
            texts.read("text", str(path), "text", lambda *_: None)
    for content in ('{"one": "object"}\n', "{\n{\n", '{"a": 1}\nand a text\n'):
        path = tmp_path / "b.txt"
        path.write_text(content)
        assert texts.read("text", str(path), "text", lambda *_: None).texts == [content]


def test_hidden_files_of_a_folder_are_not_read(tmp_path: Path):
    for name in ("a.txt", ".hidden.txt", "._a.txt", ".cache/b.txt", "c/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = texts.read("text", str(tmp_path), "text", lambda *_: None)
    assert found.files == ["a.txt", "c/d.txt"]
    assert not found.other_files
    assert texts.read("text", str(tmp_path / ".hidden.txt"), "text", lambda *_: None).texts
