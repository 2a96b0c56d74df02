import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece as spm
from sample_table import table_of

from lm_mia import config
from lm_mia.data import build, population, tokenizer
from lm_mia.data.population import Population, lowercase
from lm_mia.data.tokenizer import train_tokenizer

NAMES = ["The", "CAT", "Sat", "On", "A", "Mat", "Dog", "RAN", "Far", "Ask", "Ö"]
WORDS = [word for name in NAMES for word in (name, name.lower())]
L = 8


def texts() -> list[str]:
    draw = np.random.default_rng(3)
    return list(
        dict.fromkeys(" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(90))
    )


def written(folder: Path, documents: list[str], num_samples: int = 0) -> Population:
    return build.write_population(
        folder,
        [(text, str(i), "") for i, text in enumerate(documents)],
        build.PopulationSpec(
            config.Population(samples=num_samples or len(documents), seed=0, length_tokens=L),
            train_tokenizer(texts(), 50),
        ),
    )


def test_samples_are_tokens_of_the_lowercase_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(population, "_BATCH", 7)
    p = written(tmp_path / "p", texts())
    low = lowercase(p)
    assert (len(low), low.length_tokens, low.tokens.dtype) == (len(p), L, p.tokens.dtype)
    cut = np.array([p.sample(i)[-1] != 1 for i in range(len(p))])
    assert 10 < cut.sum() < len(p) - 10
    changed = 0
    for i in range(len(p)):
        # <bos> is 2, <eos> is 1.
        tokens = [2, *p.tokenizer.encode(p.text(i).lower()), *([] if cut[i] else [1])]
        assert low.sample(i).tolist() == tokens[:L]
        changed += tokens[:L] != p.sample(i).tolist()
    assert changed > 40
    np.testing.assert_array_equal(low.lengths_N, np.diff(low.offsets_N1))
    assert max(low.lengths_N) == L


def test_unknown_tokens_decoded_as_an_empty_text_stay_unknown(tmp_path: Path):
    """A given sentencepiece model may have any text for them (--unk_surface)."""
    documents = ["The ☃ CAT", "A Mat", "Sat On"]
    usual = lowercase(written(tmp_path / "usual", documents))
    model = io.BytesIO()
    special: dict[str, Any] = {f"{name}_id": i for name, i in tokenizer.SPECIAL_IDS.items()}
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()),
        model_writer=model,
        vocab_size=50,
        unk_surface="",
        minloglevel=2,
        **special,
    )
    spec = build.PopulationSpec(
        config.Population(samples=len(documents), seed=0, length_tokens=L), model.getvalue()
    )
    p = build.write_population(
        tmp_path / "p", [(t, str(i), "") for i, t in enumerate(documents)], spec
    )
    assert p.tokenizer.decode([3]) == ""
    low = lowercase(p)
    assert sum(low.tokens == 3) == sum(p.tokens == 3) == sum(usual.tokens == 3) == 1


def test_lowercase_texts_keep_their_tokens(tmp_path: Path):
    """This also holds for cut texts, whose last token may be a space, which a lowercase text drops."""
    p = written(tmp_path / "p", list(dict.fromkeys(text.lower() for text in texts())))
    low, space, spaces = lowercase(p), [p.tokenizer.piece(i) for i in range(50)].index("\u2581"), 0
    assert (p.lengths_N == L).sum() > 20
    for i in range(len(p)):
        tokens = p.sample(i).tolist()
        spaces += tokens[-1] == space
        assert low.sample(i).tolist() == (tokens[:-1] if tokens[-1] == space else tokens)
    assert spaces < 10


def test_unknown_tokens_stay_unknown(tmp_path: Path):
    p = written(
        tmp_path / "p", ["a\u4e2d cat", "\u4e2d\u6587", "the ?\u6587\ue000? dog \u6587", "a"]
    )
    assert sorted(table_of(p)["unk"]) == [0, 1, 1, 2]  # a run of unknown characters is one
    low = lowercase(p)
    np.testing.assert_array_equal(low.tokens, p.tokens)


def test_empty_texts_get_a_token_to_predict(tmp_path: Path):
    """The text is empty if a sample was cut so early that its only token is a space."""
    p = written(tmp_path / "p", ["a", "on"])
    blank = [p.tokenizer.piece(i) for i in range(50)].index("\u2581")
    blank_sample = Population(
        p.folder, np.array([2, blank, 2, 1], p.tokens.dtype), np.array([0, 2, 4]), p.manifest
    )
    low = lowercase(blank_sample)
    assert low.tokens.tolist() == [2, 1, 2, 1]
    assert low.offsets_N1.tolist() == [0, 2, 4]


def test_original_population_is_unchanged(tmp_path: Path):
    p = written(tmp_path / "p", texts())
    before = {f.name: f.read_bytes() for f in p.folder.iterdir()}
    low = lowercase(p)
    assert low is not p
    assert low.sha256 == p.sha256
    assert {f.name: f.read_bytes() for f in p.folder.iterdir()} == before
