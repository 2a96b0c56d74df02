"""Reuse of a vocabulary that was trained for another population or by a killed command."""

import dataclasses
from pathlib import Path

import pytest
from docstring_corpus import PIECES, SIZES, content, source, stop

from lm_mia import config
from lm_mia.data import build, corpus

__all__ = ["source"]  # a fixture


def changed(change: str, source: config.Corpus) -> tuple[config.Tokenizer, config.Population]:
    """Returns settings that give another vocabulary."""
    pieces, sizes = PIECES, SIZES
    if change == "corpus":
        (Path(source.path) / "000.txt").unlink()
    elif change == "seed":
        sizes = dataclasses.replace(SIZES, seed=2)
    else:
        pieces = dataclasses.replace(
            PIECES, **{change: {"documents": 150, "vocab_size": 290}[change]}
        )
    return pieces, sizes


OF_VOCABULARY = ["documents", "vocab_size", "seed", "corpus"]


@pytest.mark.parametrize("change", OF_VOCABULARY)
def test_saved_vocabulary_of_other_settings_is_not_reused(
    tmp_path: Path, source: config.Corpus, change: str
):
    with pytest.raises(KeyboardInterrupt):
        build.build_population(source, PIECES, SIZES, tmp_path / "population", stop)
    messages: list[str] = []
    pieces, sizes = changed(change, source)
    build.build_population(source, pieces, sizes, tmp_path / "population", log=messages.append)
    assert not [line for line in messages if "earlier command" in line]


def test_vocabulary_of_a_sibling_population_is_reused(tmp_path: Path, source: config.Corpus):
    build.build_population(source, PIECES, SIZES, tmp_path / "a")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text("{}")
    sizes = dataclasses.replace(SIZES, samples=40, length_tokens=8)
    messages: list[str] = []
    labels: list[str] = []
    population = build.build_population(
        source, PIECES, sizes, tmp_path / "b", lambda *n: labels.append(n[0]), messages.append
    )
    assert messages[0].startswith(f"vocabulary: reusing that of {tmp_path / 'a'}, ")
    assert "train tokenizer" not in labels
    alone = build.build_population(source, PIECES, sizes, tmp_path / "alone" / "b")
    assert content(population.folder) == content(alone.folder)


@pytest.mark.parametrize("change", [*OF_VOCABULARY, "given", "damaged"])
def test_sibling_vocabulary_of_other_settings_is_not_reused(
    tmp_path: Path, source: config.Corpus, change: str
):
    first = PIECES
    if change == "given":  # a given tokenizer with the same bytes as a trained one
        model = (
            build.build_population(source, PIECES, SIZES, tmp_path / "g" / "p").folder
            / "tokenizer.model"
        )
        first = dataclasses.replace(PIECES, path=str(model))
    sibling_model = (
        build.build_population(source, first, SIZES, tmp_path / "a").folder / "tokenizer.model"
    )
    pieces, sizes = PIECES, SIZES
    if change == "damaged":
        raw = sibling_model.read_bytes()
        sibling_model.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif change != "given":
        pieces, sizes = changed(change, source)
    labels: list[str] = []
    population = build.build_population(
        source, pieces, sizes, tmp_path / "b", lambda *n: labels.append(n[0])
    )
    assert "train tokenizer" in labels
    alone = build.build_population(source, pieces, sizes, tmp_path / "alone" / "b")
    assert content(population.folder) == content(alone.folder)


def test_caching_opener_reads_a_corpus_once(tmp_path: Path, source: config.Corpus):
    labels: list[str] = []
    opens = corpus.caching_opener()
    progress = lambda *n: labels.append(n[0])  # noqa: E731
    read = []
    for seed in (1, 2):
        sizes = dataclasses.replace(SIZES, seed=seed)
        population = build.build_population(
            source, PIECES, sizes, tmp_path / f"p{seed}", progress, opener=opens
        )
        alone = build.build_population(source, PIECES, sizes, tmp_path / f"alone{seed}" / "p")
        assert content(population.folder) == content(alone.folder)
        read.append(labels.count("read files"))
    assert read[0] == read[1] > 0
