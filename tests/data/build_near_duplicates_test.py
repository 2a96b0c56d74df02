"""Near duplicates in C4 are left out of the draw; only the files of the dataset are synthetic.

Builds in several processes, and killed ones, are in build_damage_test.py and, with near duplicates, in
benchmarks/population.py.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import fake_c4
import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from lm_mia import config, seeds
from lm_mia.data import build, minhash, tokenize
from lm_mia.data.tokenizer import load_tokenizer
from lm_mia.errors import UserError

PIECES = config.Tokenizer(vocab_size=60, documents=100)
SIZES = config.Population(samples=120, seed=1, length_tokens=48, validation_samples=20)


def edited_texts() -> list[str]:
    """Returns 300 texts, of which a third are copies of others with new words at one of their ends."""
    originals = fake_c4.texts(200, mean_words=40)
    copies = [
        f"{text} thank you for reading" if i % 2 else f"breaking news {text}"
        for i, text in enumerate(originals[:100])
    ]
    return [*originals, *copies]


TEXTS = edited_texts()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> config.Corpus:
    folder = tmp_path_factory.mktemp("tfds")
    fake_c4.tfds(folder, {"train": TEXTS}, shards=3)
    return config.Corpus("c4", str(folder), min_chars=80, processes=1)


def slow_draw(
    texts: list[str], spm: Any, prefix_tokens: int, num_samples: int
) -> tuple[list[int], dict[str, int]]:
    """Takes one document of the draw after another, and looks for similar ones with the library's own index."""
    lsh = MinHashLSH(params=(minhash.BANDS, minhash.BAND_MINIMA), num_perm=125)
    taken: list[int] = []
    counts = dict.fromkeys(
        ["documents", "too_short", "identical_token_sequences", "prefix_duplicates"], 0
    ) | {"near_duplicates": 0}
    sequences: set[tuple[int, ...]] = set()
    prefixes: set[tuple[int, ...]] = set()
    for i in seeds.draw(1, "population/draw", len(texts), len(texts)).tolist():
        if len(taken) == num_samples:
            break
        counts["documents"] += 1
        if len(texts[i]) < 80:
            counts["too_short"] += 1
            continue
        words = texts[i].split()
        sketch = MinHash(num_perm=125, seed=1, scheme="affine32")
        for at in range(max(len(words) - 7, 1)):
            sketch.update(" ".join(words[at : at + 8]).encode())
        sequence = tuple([2, *spm.encode(texts[i]), 1][:48])
        prefix = sequence[1 : 1 + prefix_tokens]
        if sequence in sequences:
            counts["identical_token_sequences"] += 1
        elif prefix_tokens and prefix in prefixes:
            counts["prefix_duplicates"] += 1
        elif lsh.query(sketch):
            counts["near_duplicates"] += 1
        else:
            taken.append(i)
        sequences.add(sequence)
        prefixes.add(prefix)
        lsh.insert(i, sketch)
    return taken, counts


@pytest.mark.parametrize(("part", "prefix_tokens"), [(4096, 0), (17, 14)])
def test_near_duplicates_of_earlier_documents_are_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: config.Corpus,
    part: int,
    prefix_tokens: int,
):
    monkeypatch.setattr(tokenize, "_PART", part)
    sizes = dataclasses.replace(SIZES, distinct_prefix_tokens=prefix_tokens)
    built = build.build_population(source, PIECES, sizes, tmp_path / "p")
    taken, counts = slow_draw(TEXTS, built.tokenizer, prefix_tokens, 140)
    assert built.column("name").tolist() == [f"train:{i}" for i in taken[:120]]
    assert built.manifest["provenance"]["draw"] == counts
    assert counts["near_duplicates"] > 10
    assert built.validation is not None
    held_out = built.validation.column("name").tolist()
    assert held_out == [f"train:{i}" for i in taken[120:]]
    *_, left_out = build.describe(built)[-1].split("; ")
    assert left_out.startswith(f"{counts['near_duplicates']} that are near duplicates")


def test_parts_with_and_without_near_duplicates_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: config.Corpus
):
    """A build that fails at its end leaves parts, which another build of the folder uses only if they have digests."""
    monkeypatch.setattr(tokenize, "_PART", 40)
    expected = build.build_population(source, PIECES, SIZES, tmp_path / "p")

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    keep_all = dataclasses.replace(source, deduplicate="none")
    for corpus in (keep_all, source):
        with monkeypatch.context() as patch:
            patch.setattr(build, "_write_files", fail)
            with pytest.raises(KeyboardInterrupt):
                build.build_population(corpus, PIECES, SIZES, tmp_path / "q")
    lines: list[str] = []
    again = build.build_population(source, PIECES, SIZES, tmp_path / "q", log=lines.append)
    assert any("by an earlier command" in line for line in lines)
    assert again.manifest == expected.manifest


def test_all_pieces_of_a_near_duplicate_are_left_out(tmp_path: Path, source: config.Corpus):
    split = dataclasses.replace(source, split_documents=True)
    sizes = dataclasses.replace(SIZES, samples=300, length_tokens=24, validation_samples=0)
    built = build.build_population(split, PIECES, sizes, tmp_path / "p")
    spm = load_tokenizer(built.folder / "tokenizer.model")
    order, _ = slow_draw(TEXTS, spm, 0, 140)
    documents = [f"train:{i}" for i in order]
    records = [record for record, _ in itertools.groupby(built.column("name").tolist())]
    assert records == documents[: len(records)]
    assert len(np.unique(built.document_N)) == len(records) > 20
    assert built.manifest["provenance"]["draw"]["near_duplicates"] > 0
    assert "of near duplicates" in build.describe(built)[-1]


def test_too_few_documents_are_left(tmp_path: Path, source: config.Corpus):
    sizes = dataclasses.replace(SIZES, samples=280)
    with pytest.raises(UserError, match=r", other near duplicates: \d\d"):
        build.build_population(source, PIECES, sizes, tmp_path / "p")
