import dataclasses
import functools
import math

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick_compilation import quickly_compiled
from slow_model import parameters, slow_forward

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.score import extraction

pytestmark = pytest.mark.usefixtures("quickly_compiled")
__all__ = ["quickly_compiled"]  # a fixture
SHAPE = transformer.ModelConfig(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
ASKED = config.Extract(
    samples=6, prefix_tokens=3, suffix_tokens=2, temperature=0.8, top_k=5, top_p=0.9
)
MODEL = transformer.TransformerLM(SHAPE)
PARAMS: transformer.Params = jax.tree.map(lambda p: 2 * p, parameters(SHAPE, seed=3))
tokens = st.lists(st.integers(0, 3), max_size=9).map(tuple)


def scored(n: int = 20) -> pd.DataFrame:
    score_N = np.random.default_rng(0).normal(size=n)
    return pd.DataFrame({"id": np.arange(n), "member": score_N > 0, "score": score_N})


def test_the_highest_scores_of_long_enough_samples_are_chosen(tiny: Population):
    samples = scored()
    samples.loc[4, "score"], samples.loc[5, "score"] = np.nan, 99.0
    samples.loc[[2, 7], "score"] = 5.0  # tied: the lower id first
    found = extraction.select_samples(samples, tiny, ASKED)
    expected = [
        i
        for i in samples.sort_values(["score", "id"], ascending=[False, True]).id
        if tiny.lengths_N[i] >= 5 and i != 4
    ][:6]
    assert found["id"].tolist() == expected
    too_long = dataclasses.replace(ASKED, prefix_tokens=7, suffix_tokens=7)
    with pytest.raises(
        UserError, match=r"no sample has 14 tokens and a membership score; the longest sample has 8"
    ):
        extraction.select_samples(samples, tiny, too_long)


def test_probabilities_equal_a_slow_reference(tiny: Population):
    """Prefix and suffix token by token in float64; samples in any company."""
    samples = extraction.select_samples(scored(), tiny, ASKED)
    found = extraction.extract(PARAMS, MODEL, tiny, samples, ASKED, lambda *_: None)
    assert found[["id", "member", "score"]].equals(samples.reset_index(drop=True))
    for row in found.itertuples():
        x_T = tiny.sample(int(row.id))[:5]  # pyright: ignore
        logits = slow_forward(PARAMS, x_T)[2:4]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = float(log_p[0, x_T[3]] + log_p[1, x_T[4]])
        assert row.log_p_sampled == pytest.approx(expected, rel=1e-5)
        greedy = all(log_p[i].argmax() == x_T[3 + i] for i in range(2))
        assert row.log_p_greedy == (0.0 if greedy else -math.inf)
        assert row.exact_greedy == greedy
    order = [3, 5, 0, 3, 1, 3]
    other = extraction.extract(PARAMS, MODEL, tiny, samples.iloc[order], ASKED, lambda *_: None)
    texts = [c for c in map(str, found) if c.startswith(("exact", "contained", "overlap"))]
    assert len(texts) == 9
    assert other[texts].equals(found.loc[order, texts].reset_index(drop=True))
    for name in ("log_p_sampled", "log_p_chosen"):
        np.testing.assert_allclose(other[name], found.loc[order, name], rtol=1e-6)


def test_more_texts_find_no_less(tiny: Population):
    samples = extraction.select_samples(scored(), tiny, ASKED)
    one, many = (
        extraction.extract(
            PARAMS, MODEL, tiny, samples, dataclasses.replace(ASKED, generations=n), lambda *_: None
        )
        for n in (1, 12)
    )
    for name in ("exact_sampled", "contained_sampled", "overlap_sampled"):
        assert (many[name] >= one[name]).all()
    assert many["overlap_sampled"].sum() > one["overlap_sampled"].sum()
    none = dataclasses.replace(ASKED, generations=0)
    found = extraction.extract(PARAMS, MODEL, tiny, samples, none, lambda *_: None)
    assert "exact_sampled" not in found


@functools.cache
def slow_subsequence(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + slow_subsequence(a[:-1], b[:-1])
    return max(slow_subsequence(a[:-1], b), slow_subsequence(a, b[:-1]))


@given(tokens, tokens)
def test_the_longest_common_subsequence(a: tuple[int, ...], b: tuple[int, ...]):
    assert extraction.longest_common_subsequence(np.array(a), np.array(b)) == slow_subsequence(a, b)


def test_what_a_text_has_of_a_suffix():
    suffix = np.array([4, 5, 6])
    for text, expected in (
        ([4, 5, 6, 9], (1, 1, 1)),
        ([9, 4, 5, 6], (0, 1, 1)),
        ([4, 9, 5, 6], (0, 0, 1)),
        ([6, 5, 4], (0, 0, 1 / 3)),
        ([7, 8], (0, 0, 0)),
    ):
        found = extraction.compare_with_suffix(suffix, np.array(text))
        assert tuple(found.values()) == expected


def test_curves_and_the_line_that_is_said():
    found = pd.DataFrame({"id": range(4), "member": [True, True, True, False], "score": 0.0})
    log_p = [0.0, math.log(0.01), -np.inf, math.log(0.002)]
    for name in ("greedy", "sampled", "chosen"):
        found[f"log_p_{name}"] = log_p
    curves = extraction.extraction_curves(found)
    at = curves[(curves.scheme == "sampled") & (curves.probability == 0.5)]
    members = at[at["class"] == "members"].set_index("queries")["share"]
    assert members[1] == pytest.approx(1 / 3)
    assert members[100] == pytest.approx(2 / 3)  # 69 queries
    others = at[at["class"] == "nonmembers"].set_index("queries")["share"]
    assert (others[100], others[1000]) == (0, 1)  # 347 queries
    assert extraction.summary(found) == (
        "extraction: 4 samples with the highest membership scores (3 members); largest suffix probability 1; "
        "suffix probability above 0.001 for 3"
    )
