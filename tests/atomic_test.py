import errno
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from failed_reads import fail_reads

from lm_mia import atomic
from lm_mia.attacks.spec import Study


def test_write_atomically_replaces_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    atomic.write_atomically(path, "old")
    atomic.write_atomically(path, "new")
    assert path.read_text() == "new"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_atomically(path, "half")
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_writes_leave_no_file(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "t.parquet"
    path.write_text("old")

    def half() -> None:
        with atomic.replacing(path) as temporary:
            temporary.write_text("ha")
            raise error

    with pytest.raises(error):
        half()
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "old")
    with atomic.replacing(path) as temporary:
        temporary.write_text("new")
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "new")


ABOUT = {"config": {"fprs": (0.1, 0.5), "name": "a"}, "models": ["m"]}


def facts(folder: Path) -> Path:
    """The file that marks two tables as complete."""
    (folder / "a.csv").write_text("a")
    (folder / "b.csv").write_text("b")
    path = folder / "flips.json"
    atomic.write_completion_marker(path, ABOUT, ["a.csv", "b.csv"])
    return path


def test_marker_has_the_digests_of_the_tables(tmp_path: Path):
    path = facts(tmp_path)
    digests = {f"{name}.csv": hashlib.sha256(name.encode()).hexdigest() for name in "ab"}
    description = {"fprs": [0.1, 0.5], "name": "a"}
    marker = json.loads(path.read_text())
    assert len(marker.pop("sha256")) == 64
    assert marker == {"config": description, "models": ["m"], "tables": digests}
    assert atomic.is_current(path, ABOUT)
    assert atomic.is_current(path, {"models": ["m"]})  # facts beyond these are not compared
    with pytest.raises(FileNotFoundError):
        atomic.write_completion_marker(path, ABOUT, ["absent.csv"])
    assert atomic.is_current(path, ABOUT)


@pytest.mark.parametrize(
    "description",
    [
        {**ABOUT, "models": []},
        {**ABOUT, "config": {"fprs": (0.1,), "name": "a"}},
        {**ABOUT, "new": None},
        {**ABOUT, "tables": {}},
    ],
    ids=str,
)
def test_tables_with_another_description_are_not_current(
    tmp_path: Path, description: dict[str, Any]
):
    assert not atomic.is_current(facts(tmp_path), description)


@pytest.mark.parametrize("name", ["a.csv", "b.csv"])
def test_changed_tables_are_not_current(tmp_path: Path, name: str):
    path, table = facts(tmp_path), tmp_path / name
    for text in ("c", "a\n", ""):
        table.write_text(text)
        assert not atomic.is_current(path, ABOUT)
    table.unlink()
    assert not atomic.is_current(path, ABOUT)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"null", b"\xff", None])
def test_damaged_marker_is_not_current(tmp_path: Path, text: bytes | None):
    path = facts(tmp_path)
    path.unlink()
    if text is not None:
        path.write_bytes(text)
    assert not atomic.is_current(path, ABOUT)


@pytest.mark.parametrize("tables", [None, [], 3, {"a.csv": None}, {"a.csv/..": "0"}])
def test_marker_without_digests_is_not_current(tmp_path: Path, tables: Any):
    path = facts(tmp_path)
    marker = json.loads(path.read_text()) | {"tables": tables}
    path.write_text(json.dumps(marker))
    assert not atomic.is_current(path, ABOUT)
    del marker["tables"]
    path.write_text(json.dumps(marker))
    assert not atomic.is_current(path, ABOUT)


def test_a_changed_table_is_detected_and_removed_with_its_set(tmp_path: Path):
    path = facts(tmp_path)
    (tmp_path / "c.csv").write_text("c")
    atomic.write_completion_marker(tmp_path / "models.json", {}, ["c.csv"])
    assert atomic.all_changed_tables(tmp_path) == {}
    (tmp_path / "b.csv").write_text("B")
    assert atomic.is_changed(tmp_path / "b.csv")
    assert not atomic.is_changed(tmp_path / "a.csv")
    assert atomic.remove_changed_tables(tmp_path) == [tmp_path / "b.csv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.csv", "models.json"]
    assert not path.exists()


def test_json_files_of_the_user_are_no_markers(tmp_path: Path):
    facts(tmp_path)
    (tmp_path / "a.csv").write_text("A")
    for notes in (tmp_path / "notes.json", tmp_path / "own" / "flips.json"):
        notes.parent.mkdir(exist_ok=True)
        notes.write_text('["a.csv"]')
    changed = [tmp_path / "a.csv"]
    assert [*atomic.all_changed_tables(tmp_path)] == changed
    assert atomic.remove_changed_tables(tmp_path) == changed
    remaining = {"notes.json", "own/flips.json"}
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")} == remaining


def test_every_study_has_a_marker():
    assert {path.stem for path in atomic.STUDY_JSONS} == {*get_args(Study)}


def test_a_marker_that_names_files_of_other_folders_or_replaces_another_is_damaged(tmp_path: Path):
    folder, outside = tmp_path / "tables", tmp_path / "outside.csv"
    folder.mkdir()
    outside.write_text("kept")
    path = facts(folder)
    atomic.write_completion_marker(folder / "models.json", {}, ["../outside.csv"])
    outside.write_text("changed")
    assert atomic.remove_changed_tables(folder) == [folder / "models.json"]
    assert outside.read_text() == "changed"
    (folder / "pooling.json").write_bytes(path.read_bytes())
    assert atomic.changed_tables(folder / "pooling.json") == [folder / "pooling.json"]


def test_tables_are_unchanged_before_and_after_their_replacement(tmp_path: Path):
    path, new_file = facts(tmp_path), tmp_path / ".a.csv.1"
    new_file.write_text("new")
    atomic.write_completion_marker(path, ABOUT, ["a.csv", "b.csv"], {"a.csv": new_file})
    assert atomic.is_current(path, ABOUT)
    os.replace(new_file, tmp_path / "a.csv")
    assert atomic.is_current(path, ABOUT)


def test_a_line_that_a_full_disk_truncates_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "log.jsonl"
    atomic.append_line(path, "first")

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:3])

    with monkeypatch.context() as m:
        m.setattr(atomic, "open", lambda *args, **kwargs: FullDisk(args[0], args[1]), raising=False)
        with pytest.raises(OSError, match="No space left on device"):
            atomic.append_line(path, "second")
    atomic.append_line(path, "third")
    assert path.read_text() == "first\nthird\n"


@pytest.mark.parametrize("name", ["flips.json", "a.csv"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
def test_a_failed_read_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
):
    path = facts(tmp_path)
    asked = [
        lambda: atomic.is_current(path, ABOUT),
        lambda: atomic.changed_tables(path),
        lambda: atomic.is_changed(path.with_name("a.csv")),
        lambda: atomic.remove_changed_tables(tmp_path),
    ]
    with monkeypatch.context() as failing:
        fail_reads(failing, tmp_path / name, number)
        for ask in asked:
            with pytest.raises(OSError) as caught:  # noqa: PT011
                ask()
            assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / name))
    assert atomic.is_current(path, ABOUT)
    (tmp_path / name).unlink()
    assert not atomic.is_current(path, ABOUT)
