import os
from pathlib import Path

import pytest

from lm_mia import atomic


def test_write_atomically_replaces_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path, error: type[BaseException]):
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
