from pathlib import Path

import pytest

from lm_mia.config import Corpus
from lm_mia.data.reading_cache import files_digest, load_or_compute, user_cache_folder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text")
    return Corpus("text", str(tmp_path / "texts"))


def test_values_are_computed_once_for_each_version_of_the_program(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program, numbers = tmp_path / "program.py", iter(range(9))
    program.write_text("1")
    for version, expected in (("1", 0), ("1", 0), ("2", 1), ("1", 0)):
        program.write_text(version)
        assert load_or_compute(corpus, program, lambda: {"n": next(numbers)}) == {"n": expected}


def test_a_cache_that_cannot_be_written_is_no_error(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    numbers = iter(range(9))
    for expected in (0, 1):
        assert load_or_compute(corpus, Path(__file__), lambda: {"n": next(numbers)}) == {
            "n": expected
        }
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_folder() == Path.home() / ".cache" / "lm_mia"


def test_the_digest_depends_on_files_and_on_how_they_are_read(corpus: Corpus):
    folder = Path(corpus.path)
    digests = {files_digest(corpus), files_digest(Corpus("text", corpus.path, min_chars=1))}
    (folder / "a.txt").write_text("a longer text")
    digests.add(files_digest(corpus))
    (folder / "b.txt").write_text("another text")
    digests.add(files_digest(corpus))
    assert len(digests) == 4
    assert files_digest(corpus) == files_digest(Corpus("text", corpus.path, split_documents=True))
