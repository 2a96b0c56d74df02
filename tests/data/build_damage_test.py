"""Complete and killed builds of a population of C4; only the files of the dataset are synthetic."""

import dataclasses
import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fake_c4
import numpy as np
import pytest

from lm_mia import config, seeds
from lm_mia.data import build, c4, hf_c4, tokenize
from lm_mia.data.documents import no_progress
from lm_mia.data.population import Population
from lm_mia.data.tokenizer import load_tokenizer
from lm_mia.errors import UserError

TEXTS = fake_c4.texts(3000)
SOURCE = config.Corpus("c4", min_chars=50, deduplicate="none", processes=2)
PIECES = config.Tokenizer(vocab_size=60, documents=500)
SIZES = config.Population(
    samples=1000,
    seed=1,
    length_tokens=32,
    distinct_prefix_tokens=10,
    validation_samples=100,
    frequency_samples=300,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> config.Corpus:
    """Returns C4 converted from five files of Hugging Face."""
    folder = tmp_path_factory.mktemp("c4")
    files = [TEXTS[low : low + 600] for low in range(0, 3000, 600)]
    pattern = fake_c4.hugging_face(folder / "hf", {"train": files})
    hf_c4.convert(pattern, str(folder / "tfds"), 1, no_progress, lambda line: None)
    return dataclasses.replace(SOURCE, path=str(folder / "tfds"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: config.Corpus) -> Population:
    """Returns the population that one process builds."""
    return build.build_population(
        source, PIECES, SIZES, tmp_path_factory.mktemp("built") / "population"
    )


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_population_of_c4(source: config.Corpus, built: Population):
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
    assert built.column("name").tolist() == [f"train:{i}" for i in expected[:1000]]
    assert built.validation is not None
    held_out = built.validation.column("name").tolist()
    assert held_out == [f"train:{i}" for i in expected[1000:]]
    for sample, i in enumerate(expected[:1000]):
        assert built.sample(sample).tolist() == [2, *spm.encode(TEXTS[i]), 1][:32]
    texts = built.texts(np.arange(1000))
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert built.column("text_sha256").tolist() == hashes
    files = [f"c4-train.array_record-{i // 600:05d}-of-00005" for i in expected[:1000]]
    assert built.column("source").tolist() == files
    counts = built.manifest["provenance"]["draw"]
    assert counts["documents"] == looked
    short = sum(len(TEXTS[i]) < 50 for i in order[:looked])
    identical, same_prefix = counts["identical_token_sequences"], counts["prefix_duplicates"]
    assert (counts["too_short"], identical + same_prefix) == (short, looked - 1100 - short)
    assert min(counts["too_short"], same_prefix) > 0
    assert np.load(built.folder / "document_frequency.npy")[2] == 300
    lines = build.describe(built)
    assert lines[0].startswith("corpus: 3000 documents, sha256 ")
    assert lines[-2].startswith("validation: 100 ")
    left_out = re.match(r"draw: (\d+) documents, (\d+) left out: (\d+) too short", lines[-1])
    assert left_out is not None
    assert [*map(int, left_out.groups())] == [looked, looked - 1100, short]
    assert re.search(rf"; {same_prefix} with the same first 10 tokens", lines[-1])
    provenance = built.manifest["provenance"]
    lengths = [len(spm.encode(TEXTS[i])) for i in expected[:1000]]
    text = {"documents": 1000, "document_tokens": sum(lengths)}
    text["sample_tokens"] = sum(min(length, 31) for length in lengths)
    assert provenance == {**c4.open_records(source.path).provenance, "draw": counts, "text": text}


def test_finished_populations_do_not_need_the_corpus(
    tmp_path: Path, source: config.Corpus, built: Population
):
    gone = dataclasses.replace(source, path=str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"corpus.path=.*: .*\bbuilt with"):
        build.build_population(gone, PIECES, SIZES, built.folder)
    assert build.build_population(source, PIECES, SIZES, built.folder).sha256 == built.sha256


def test_number_of_vocabulary_documents_changes_the_population(
    tmp_path: Path, source: config.Corpus, built: Population
):
    other = dataclasses.replace(PIECES, documents=499)
    assert build.build_population(source, other, SIZES, tmp_path / "p").sha256 != built.sha256


def test_invalid_input_writes_nothing(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "work" / "population"
    for change, message in (
        (
            {"samples": 2950},
            "population.samples=2950: the corpus has only 3000 documents; use at most 2900",
        ),
        (
            {"samples": 2800},
            r"population.samples=2800: the corpus has only \d+ documents that can be samples \(3000 read",
        ),
    ):
        with pytest.raises(UserError, match=message):
            build.build_population(source, PIECES, dataclasses.replace(SIZES, **change), folder)
        assert not folder.exists()
        assert not (tmp_path / "work" / ".population.unfinished").exists()


@pytest.mark.parametrize("when", ["vocabulary", "samples"])
def test_damaged_corpus_files_are_named(
    tmp_path: Path, source: config.Corpus, built: Population, when: str
):
    folder = fake_c4.tfds(tmp_path, {"train": TEXTS[:40]}, shards=2)
    path = folder / "c4-train.array_record-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-60_000])
    pieces = config.Tokenizer(vocab_size=60, documents=30)
    if when == "samples":
        pieces = config.Tokenizer(str(built.folder / "tokenizer.model"), 60)
    broken = dataclasses.replace(source, path=str(tmp_path))
    with pytest.raises(UserError, match=r"record of c4-train.array_record-00001-of-00002 "):
        build.build_population(broken, pieces, config.Population(20, 0, 32), tmp_path / "p")


BUILD = """
import os, pathlib, signal, sys
from lm_mia import config
from lm_mia.data import build, tokenize
tokenize._PART = 150
folder, enough, who = pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def kill_when_enough_parts_are_there(*_):
    if len(list(folder.parent.glob(".population.unfinished/parts-*/*.arrow"))) >= enough:
        os.killpg(0, signal.SIGKILL) if who == "all" else os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    build.build_population(
        config.Corpus("c4", sys.argv[1], min_chars=50, deduplicate="none", processes=2),
        config.Tokenizer(vocab_size=60, documents=500),
        config.Population(1000, 1, 32, distinct_prefix_tokens=10, validation_samples=100,
            frequency_samples=300),
        folder,
        kill_when_enough_parts_are_there,
    )
"""


def killed(script: Path, source: config.Corpus, folder: Path, min_parts: int, victims: str) -> int:
    """Returns the exit code of a build that is killed once it has min_parts parts.

    victims: "all" for all processes of the build, "parent" for its main process only.
    """
    script.write_text(BUILD)
    argv = [sys.executable, "-W", "error", str(script), source.path, str(folder)]
    return subprocess.run([*argv, str(min_parts), victims], start_new_session=True).returncode


@pytest.mark.slow
@pytest.mark.process
def test_killed_builds_resume(
    tmp_path: Path,
    source: config.Corpus,
    built: Population,
    monkeypatch: pytest.MonkeyPatch,
):
    """Two builds are killed. The third one loses a process, which another one replaces."""
    folder = tmp_path / "work" / "population"
    for min_parts, victims in ((1, "all"), (3, "parent")):
        assert killed(tmp_path / "build.py", source, folder, min_parts, victims) == -9
        assert not folder.exists()
    lost: list[int] = []
    messages: list[str] = []

    def kill_one(label: str, done: int, total: int) -> None:
        children = [p.pid for p in multiprocessing.active_children() if p.pid is not None]
        if label == "tokenize samples" and children and not lost:
            lost.append(children[0])
            os.kill(children[0], signal.SIGKILL)

    monkeypatch.setattr(tokenize, "_PART", 150)
    population = build.build_population(source, PIECES, SIZES, folder, kill_one, messages.append)
    assert messages[0].startswith("vocabulary: reusing ")
    assert messages[1].startswith("population: reusing ")
    assert messages[1].endswith("by an earlier command")
    assert "code -9; " in "\n".join(messages)
    assert content(population.folder) == content(built.folder)
    assert not (folder.parent / ".population.unfinished").exists()


def test_part_size_does_not_affect_the_population(
    tmp_path: Path,
    source: config.Corpus,
    built: Population,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tokenize, "_PART", 97)
    population = build.build_population(
        dataclasses.replace(source, processes=1), PIECES, SIZES, tmp_path / "p"
    )
    assert content(population.folder) == content(built.folder)
