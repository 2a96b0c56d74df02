"""Builds of a population of C4, whole and killed; nothing but the files of a data set is made up."""

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_c4
import pytest

from lm_mia import c4, config, corpus, draw, hf_shards, population, seeds
from lm_mia.documents import silent
from lm_mia.errors import UserError
from lm_mia.tokenizer import load_tokenizer

TEXTS = fake_c4.texts(3000)
SOURCE = config.Corpus("c4", min_chars=50, deduplicate="none", processes=2)
PIECES = config.Tokenizer(vocab_size=60, documents=500)
SIZES = config.Population(
    *(1000, 1, 32),
    distinct_prefix_tokens=10,
    validation_samples=100,
    frequency_samples=300,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> config.Corpus:
    """C4 made of five files of Hugging Face's."""
    folder = tmp_path_factory.mktemp("c4")
    files = [TEXTS[low : low + 600] for low in range(0, 3000, 600)]
    pattern = fake_c4.hugging_face(folder / "hf", {"train": files})
    hf_shards.convert(pattern, str(folder / "tfds"), 1, silent, lambda line: None)
    return dataclasses.replace(SOURCE, path=str(folder / "tfds"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: config.Corpus) -> population.Population:
    """The population, by one process."""
    return corpus.build(source, PIECES, SIZES, tmp_path_factory.mktemp("built") / "population")


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_population_of_c4(source: config.Corpus, built: population.Population):
    spm = load_tokenizer(built.folder / "tokenizer.model")
    order = seeds.draw(1, "population/draw", 3000, 3000)
    prefixes: set[tuple[int, ...]] = set()
    expected: list[int] = []
    looked = 0
    for i in order:
        if len(expected) == 1100:
            break
        looked += 1
        prefix = tuple([*spm.encode(TEXTS[i]), 1][:31][:10])
        if len(TEXTS[i]) >= 50 and prefix not in prefixes:
            prefixes.add(prefix)
            expected.append(int(i))
    assert built.column("source_record").tolist() == [f"train:{i}" for i in expected[:1000]]
    assert built.validation is not None
    held_out = built.validation.column("source_record").tolist()
    assert held_out == [f"train:{i}" for i in expected[1000:]]
    for sample, i in enumerate(expected[:1000]):
        assert built.sample(sample).tolist() == [2, *spm.encode(TEXTS[i]), 1][:32]
    hashes = [hashlib.sha256(TEXTS[i].encode()).hexdigest() for i in expected[:1000]]
    assert built.column("text_sha256").tolist() == hashes
    counts = built.manifest["provenance"]["draw"]
    assert counts["documents"] == looked
    short = sum(len(TEXTS[i]) < 50 for i in order[:looked])
    assert (counts["too_short"], counts["prefix_duplicates"]) == (short, looked - 1100 - short)
    assert min(counts.values()) > 0
    assert built.document_frequency_V is not None
    assert built.document_frequency_V[2] == 300
    lines = corpus.facts(built)
    assert lines[0].startswith("corpus: 3000 documents, sha256 ")
    assert lines[-2].startswith("held out: 100 samples, sha256 ")
    assert lines[-1] == (
        f"drawn: {looked} documents, {looked - 1100} of them left out ({short} too short, "
        f"{looked - 1100 - short} with the first 10 tokens of another)"
    )
    provenance = built.manifest["provenance"]
    assert provenance == {**c4.open_records(source.path).provenance, "draw": counts}


def test_nothing_of_the_corpus_is_needed_again(
    tmp_path: Path, source: config.Corpus, built: population.Population
):
    gone = dataclasses.replace(source, path=str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"corpus.path=.*: the population in .* was built with"):
        corpus.build(gone, PIECES, SIZES, built.folder)
    assert corpus.build(source, PIECES, SIZES, built.folder).sha256 == built.sha256


def test_the_vocabulary_is_trained_on_documents_drawn_by_seed(
    tmp_path: Path, source: config.Corpus, built: population.Population
):
    other = dataclasses.replace(PIECES, documents=499)
    assert corpus.build(source, other, SIZES, tmp_path / "p").sha256 != built.sha256


def test_bad_input_writes_nothing(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "work" / "population"
    for change, message in (
        (
            {"samples": 2950},
            "population.samples=2950: the corpus has 3000 documents to draw from; use at most 2900",
        ),
        (
            {"samples": 2800},
            r"population.samples=2800: the corpus has \d+ documents that can be samples \(3000 read",
        ),
    ):
        with pytest.raises(UserError, match=message):
            corpus.build(source, PIECES, dataclasses.replace(SIZES, **change), folder)
        assert not folder.exists()
        assert not (tmp_path / "work" / ".population.unfinished").exists()


@pytest.mark.parametrize("when", ["vocabulary", "samples"])
def test_a_broken_file_is_told(
    tmp_path: Path, source: config.Corpus, built: population.Population, when: str
):
    folder = fake_c4.tfds(tmp_path, {"train": TEXTS[:40]}, shards=2)
    path = folder / "c4-train.array_record-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-60_000])
    pieces = config.Tokenizer(vocab_size=60, documents=30)
    if when == "samples":
        pieces = config.Tokenizer(str(built.folder / "tokenizer.model"), 60)
    broken = dataclasses.replace(source, path=str(tmp_path))
    with pytest.raises(UserError, match=r"a record of c4-train.array_record-00001-of-00002 in"):
        corpus.build(broken, pieces, config.Population(20, 0, 32), tmp_path / "p")


BUILD = """
import pathlib, sys
from lm_mia import config, corpus, draw
draw._PART = 150
if __name__ == "__main__":
    corpus.build(
        config.Corpus("c4", sys.argv[1], min_chars=50, deduplicate="none", processes=2),
        config.Tokenizer(vocab_size=60, documents=500),
        config.Population(1000, 1, 32, distinct_prefix_tokens=10, validation_samples=100,
            frequency_samples=300),
        pathlib.Path(sys.argv[2]),
        say=lambda line: print(line, flush=True),
    )
"""


def start(script: Path, source: config.Corpus, folder: Path) -> subprocess.Popen[str]:
    script.write_text(BUILD)
    argv = [sys.executable, "-W", "error", str(script), source.path, str(folder)]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, start_new_session=True)


def parts(folder: Path) -> list[Path]:
    return list((folder / ".population.unfinished").glob("parts-*/*.arrow"))


def workers(pid: int) -> list[int]:
    """Children of a process that were spawned to tokenise."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = []
    for child in children:
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_killed_builds_go_on(tmp_path: Path, source: config.Corpus, built: population.Population):
    folder = tmp_path / "work" / "population"
    for enough, who in ((1, "all"), (3, "parent")):
        run = start(tmp_path / "build.py", source, folder)
        while len(parts(folder.parent)) < enough and run.poll() is None:
            time.sleep(0.005)
        if who == "all":
            os.killpg(run.pid, signal.SIGKILL)
        run.kill()
        run.communicate()
        assert run.returncode == -9
        assert not folder.exists()
    run = start(tmp_path / "build.py", source, folder)
    said, _ = run.communicate()
    assert run.returncode == 0
    assert said.startswith("vocabulary: trained by an earlier command\npopulation: ")
    assert "parts were tokenised by an earlier command" in said
    assert content(folder) == content(built.folder)
    assert not (folder.parent / ".population.unfinished").exists()


def test_a_killed_process_of_a_build_is_replaced(
    tmp_path: Path, source: config.Corpus, built: population.Population
):
    run = start(tmp_path / "build.py", source, tmp_path / "population")
    while not (pids := workers(run.pid)) and run.poll() is None:
        time.sleep(0.005)
    os.kill(pids[0], signal.SIGKILL)
    said, _ = run.communicate()
    assert run.returncode == 0
    assert "a process that tokenises ended with code -9; " in said
    assert content(tmp_path / "population") == content(built.folder)


def test_parts_of_another_size_give_the_same(
    tmp_path: Path,
    source: config.Corpus,
    built: population.Population,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(draw, "_PART", 97)
    found = corpus.build(dataclasses.replace(source, processes=1), PIECES, SIZES, tmp_path / "p")
    assert content(found.folder) == content(built.folder)
