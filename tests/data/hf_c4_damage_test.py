import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import fake_c4
import pytest

from lm_mia import cli
from lm_mia.data import c4, hf_c4
from lm_mia.errors import UserError

TRAIN = [["one", "two"], ["three"], ["four", "five"]]


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    return fake_c4.hugging_face(tmp_path / "hf", {"train": TRAIN, "validation": [["six"]]})


def convert(pattern: str, path: Path, processes: int = 1) -> list[str]:
    """Converts files and returns the messages."""
    messages: list[str] = []
    hf_c4.convert(pattern, str(path), processes, lambda *n: None, messages.append)
    return messages


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def refused(
    pattern: str, path: Path, message: str, field: str = "--from-hf-shards", processes: int = 1
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        convert(pattern, path, processes)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(field)


GOOD = b'{"text": "a", "url": "u", "timestamp": "t"}\n'


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"plain text, which nobody compressed\n", "line 1: .*gzip .*Not a gzipped"),
        (gzip.compress(GOOD * 9000, mtime=0)[:-200], r"line \d+: .*gzip"),
        (gzip.compress(GOOD + b'{"text": "a\n', mtime=0), "line 2: .*JSON .*column"),
        (
            gzip.compress(GOOD + b"\n" + b'{"url": "a"}\n', mtime=0),
            "line 3: .*'text', only 'url'",
        ),
        (
            gzip.compress(GOOD + b'{"text": "a", "n": %s}' % (b"9" * 5000), mtime=0),
            "line 2: .*integer",
        ),
        (gzip.compress(GOOD + b"[" * 100_000, mtime=0), "line 2: .*nested"),
        (gzip.compress(b'["text"]\n', mtime=0), "line 1: .*JSON object"),
        (gzip.compress(b'{"text": null}\n', mtime=0), "line 1: .*'text' .*string"),
        (
            gzip.compress(b'{"text": "a", "url": 3}\n', mtime=0),
            "line 1: .*'url' .*string",
        ),
        (gzip.compress(GOOD + b'{"text": "\xff"}\n', mtime=0), "line 2: not UTF-8"),
        (gzip.compress(b'{"text": "\\ud800"}\n', mtime=0), "line 1: not UTF-8"),
    ],
)
def test_invalid_files_are_named_with_the_line(
    tmp_path: Path, pattern: str, raw: bytes, message: str
):
    broken = tmp_path / "hf/c4-train.00001-of-01024.json.gz"
    original = broken.read_bytes()
    broken.write_bytes(raw)
    refused(
        pattern, tmp_path / "out", f"00001-of-01024.json.gz, {message}.*; download the file again$"
    )
    left = [p.name for p in (tmp_path / "out/c4/en/.3.1.0.unfinished").iterdir()]
    assert not [name for name in left if name.startswith("c4-train.array_record-00001")]
    # The repaired file has another size; only this file is converted again.
    broken.write_bytes(original)
    messages = convert(pattern, tmp_path / "out")
    assert messages[0].startswith("C4: 1 of 4 ")
    convert(pattern, tmp_path / "whole")
    assert content(tmp_path / "out/c4/en/3.1.0") == content(tmp_path / "whole/c4/en/3.1.0")


@pytest.fixture
def interrupted(tmp_path: Path, pattern: str) -> Path:
    """Returns the hidden folder of a conversion that stopped at its last file."""
    last = tmp_path / "hf/c4-validation.00000-of-01024.json.gz"
    original = last.read_bytes()
    last.write_bytes(original[:-9])
    refused(pattern, tmp_path / "out", "not a valid gzip file")
    last.write_bytes(original)
    return tmp_path / "out/c4/en/.3.1.0.unfinished"


def texts(path: Path) -> list[str]:
    return [text for text, *_ in c4.open_records(str(path))]


def test_only_changed_files_are_converted_again(tmp_path: Path, pattern: str, interrupted: Path):
    modified_ns = {
        p: p.stat().st_mtime_ns for p in interrupted.glob("c4-train.array_record-*-of-00003")
    }
    assert len(modified_ns) == 3
    with gzip.open(tmp_path / "hf/c4-train.00001-of-01024.json.gz", "at") as lines:
        lines.write('{"text": "more"}\n')
    assert convert(pattern, tmp_path / "out")[0].startswith("C4: 2 of 4 ")
    assert texts(tmp_path / "out") == ["one", "two", "three", "more", "four", "five"]
    finished = tmp_path / "out/c4/en/3.1.0"
    again = [
        p.name for p in modified_ns if (finished / p.name).stat().st_mtime_ns != modified_ns[p]
    ]
    assert again == ["c4-train.array_record-00001-of-00003"]


@pytest.mark.parametrize("damage", ["note", "no note", "other note", "file", "no file"])
def test_files_that_do_not_match_their_note_are_converted_again(
    tmp_path: Path, pattern: str, interrupted: Path, damage: str
):
    file = interrupted / "c4-train.array_record-00001-of-00003"
    note = interrupted / f"{file.name}.made.json"
    if damage.startswith("no "):
        (note if damage == "no note" else file).unlink()
    elif damage == "file":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        note.write_text('{"records": 1, "bytes": 9}' if damage == "other note" else "{")
    assert convert(pattern, tmp_path / "out")[0].startswith("C4: 2 of 4 ")
    assert texts(tmp_path / "out") == [text for file_texts in TRAIN for text in file_texts]


def test_sources_changed_before_the_final_rename(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
):
    replace = os.replace

    def stop(source: Path, target: Path) -> None:
        if Path(target).name == "3.1.0":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(pattern, tmp_path / "out")
    with gzip.open(tmp_path / "hf/c4-train.00001-of-01024.json.gz", "at") as lines:
        lines.write('{"text": "more"}\n')
    monkeypatch.undo()
    # The description of the unfinished conversion no longer matches the files.
    convert(pattern, tmp_path / "out")
    assert texts(tmp_path / "out") == ["one", "two", "three", "more", "four", "five"]


def test_unfinished_conversion_of_other_files_is_refused(
    tmp_path: Path, pattern: str, interrupted: Path
):
    before = content(interrupted)
    other = pattern.replace("c4-*", "c4-train.*")
    refused(
        other,
        tmp_path / "out",
        "contains an incomplete conversion of other files; .* or delete the folder",
    )
    assert content(interrupted) == before


def test_unwritable_folders_are_reported(
    tmp_path: Path, pattern: str, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("mine")
    for path in (Path("/proc/x"), tmp_path / "file"):
        message = r"cannot be written \(.*\); choose a writable folder, or free some space"
        refused(pattern, path, message, f"corpus.path={str(path)!r}: ")
    argv = ["corpus", "--config=configs/c4.py:140M", f"--workdir={tmp_path}/w"]
    assert cli.main([*argv, "--config.corpus.path=/proc/x", f"--from-hf-shards={pattern}"]) == 2
    err = capfd.readouterr().err
    assert "corpus.path='/proc/x': " in err
    assert "Traceback" not in err


def test_full_disk_is_reported(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch):
    """The file of records is a link to /dev/full."""
    unfinished = tmp_path / "out/c4/en/.3.1.0.unfinished"
    unfinished.mkdir(parents=True)
    full = unfinished / "full"
    full.symlink_to("/dev/full")

    @contextlib.contextmanager
    def replacing(path: Path) -> Iterator[Path]:
        yield full

    with monkeypatch.context() as patch:
        patch.setattr(hf_c4, "replacing", replacing)
        message = r"cannot be written \(.*No space left on device.*\)"
        refused(pattern, tmp_path / "out", message, f"corpus.path={str(tmp_path / 'out')!r}: ")
    full.unlink()
    assert not list(unfinished.glob("*array_record*"))
    convert(pattern, tmp_path / "out")  # now there is space
    assert texts(tmp_path / "out") == [text for file_texts in TRAIN for text in file_texts]
