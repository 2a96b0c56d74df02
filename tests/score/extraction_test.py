import dataclasses
import functools
import math

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_model import parameters, slow_forward
from unoptimized import without_optimizations

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.score import extraction

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture
MODEL_CONFIG = transformer.ModelConfig(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
EXTRACT = config.Extract(
    samples=6, prefix_tokens=3, suffix_tokens=2, temperature=0.8, top_k=5, top_p=0.9
)
MODEL = transformer.TransformerLM(MODEL_CONFIG)
PARAMS: transformer.Params = jax.tree.map(lambda p: 2 * p, parameters(MODEL_CONFIG, seed=3))
tokens = st.lists(st.integers(0, 3), max_size=9).map(tuple)


def random_scores(n: int = 20) -> pd.DataFrame:
    score_N = np.random.default_rng(0).normal(size=n)
    return pd.DataFrame({"id": np.arange(n), "member": score_N > 0, "score": score_N})


def test_select_samples_takes_highest_scores_of_long_samples(tiny: Population):
    samples = random_scores()
    samples.loc[4, "score"], samples.loc[5, "score"] = np.nan, 99.0
    samples.loc[[2, 7], "score"] = 5.0  # ties are sorted by id
    results = extraction.select_samples(samples, tiny, EXTRACT)
    expected = [
        i
        for i in samples.sort_values(["score", "id"], ascending=[False, True]).id
        if tiny.lengths_N[i] >= 5 and i != 4
    ][:6]
    assert results["id"].tolist() == expected
    too_long = dataclasses.replace(EXTRACT, prefix_tokens=7, suffix_tokens=7)
    with pytest.raises(
        UserError,
        match=r"no sample has 14 tokens and a membership score \(the longest sample has 8",
    ):
        extraction.select_samples(samples, tiny, too_long)


def test_log_probs_equal_slow_reference(tiny: Population):
    """Computed token by token in float64. They do not depend on the other samples of a call."""
    samples = extraction.select_samples(random_scores(), tiny, EXTRACT)
    results = extraction.extract(PARAMS, MODEL, tiny, samples, EXTRACT, lambda *_: None)
    assert results[["id", "member", "score"]].equals(samples.reset_index(drop=True))
    for row in results.itertuples():
        x_T = tiny.sample(int(row.id))[:5]  # pyright: ignore
        logits = slow_forward(PARAMS, x_T)[2:4]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = float(log_p[0, x_T[3]] + log_p[1, x_T[4]])
        assert row.log_p_sampled == pytest.approx(expected, rel=1e-5)
        greedy = all(log_p[i].argmax() == x_T[3 + i] for i in range(2))
        assert row.log_p_greedy == (0.0 if greedy else -math.inf)
        assert row.exact_greedy == greedy
    order = [3, 5, 0, 3, 1, 3]
    other = extraction.extract(PARAMS, MODEL, tiny, samples.iloc[order], EXTRACT, lambda *_: None)
    texts = [c for c in map(str, results) if c.startswith(("exact", "contained", "overlap"))]
    assert len(texts) == 9
    assert other[texts].equals(results.loc[order, texts].reset_index(drop=True))
    for name in ("log_p_sampled", "log_p_chosen"):
        np.testing.assert_allclose(other[name], results.loc[order, name], rtol=1e-6)


def test_more_generated_texts_never_lower_the_measures(tiny: Population):
    samples = extraction.select_samples(random_scores(), tiny, EXTRACT)
    one, many = (
        extraction.extract(
            PARAMS,
            MODEL,
            tiny,
            samples,
            dataclasses.replace(EXTRACT, generations=n),
            lambda *_: None,
        )
        for n in (1, 12)
    )
    for name in ("exact_sampled", "contained_sampled", "overlap_sampled"):
        assert (many[name] >= one[name]).all()
    assert many["overlap_sampled"].sum() > one["overlap_sampled"].sum()
    none = dataclasses.replace(EXTRACT, generations=0)
    results = extraction.extract(PARAMS, MODEL, tiny, samples, none, lambda *_: None)
    assert "exact_sampled" not in results


@functools.cache
def slow_subsequence(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + slow_subsequence(a[:-1], b[:-1])
    return max(slow_subsequence(a[:-1], b), slow_subsequence(a, b[:-1]))


@given(tokens, tokens)
def test_longest_common_subsequence_equals_slow_reference(a: tuple[int, ...], b: tuple[int, ...]):
    assert extraction.longest_common_subsequence(np.array(a), np.array(b)) == slow_subsequence(a, b)


def test_compare_with_suffix():
    suffix = np.array([4, 5, 6])
    for text, expected in (
        ([4, 5, 6, 9], (1, 1, 1)),
        ([9, 4, 5, 6], (0, 1, 1)),
        ([4, 9, 5, 6], (0, 0, 1)),
        ([6, 5, 4], (0, 0, 1 / 3)),
        ([7, 8], (0, 0, 0)),
    ):
        results = extraction.compare_with_suffix(suffix, np.array(text))
        assert tuple(results.values()) == expected


def test_extraction_curves_and_summary():
    results = pd.DataFrame({"id": range(4), "member": [True, True, True, False], "score": 0.0})
    log_p = [0.0, math.log(0.01), -np.inf, math.log(0.002)]
    for name in ("greedy", "sampled", "chosen"):
        results[f"log_p_{name}"] = log_p
    curves = extraction.extraction_curves(results)
    curve = curves[(curves.scheme == "sampled") & (curves.probability == 0.5)]
    members = curve[curve["class"] == "members"].set_index("queries")["share"]
    assert members[1] == pytest.approx(1 / 3)
    assert members[100] == pytest.approx(2 / 3)  # 69 queries
    others = curve[curve["class"] == "nonmembers"].set_index("queries")["share"]
    assert (others[100], others[1000]) == (0, 1)  # 347 queries
    assert extraction.summary(results) == (
        "extraction: 4 samples with the highest membership scores (3 members); largest suffix probability 1; "
        "suffix probability above 0.001 for 3"
    )
