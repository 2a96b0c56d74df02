import dataclasses
import math
import re

import jax
import numpy as np
import pandas as pd
import pytest
from slow_model import parameters, slow_forward
from unoptimized import without_optimizations

from lm_mia import config, stats
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
        match=r"\b14 tokens\b.*\bscore \(.*\b8\b",
    ):
        extraction.select_samples(samples, tiny, too_long)


def test_random_samples_are_uniform_draws_of_both_classes(tiny: Population):
    samples = random_scores()
    samples.loc[::3, "score"] = np.nan  # a random draw needs no scores
    chosen = dataclasses.replace(EXTRACT, choose="random", samples=7)
    results = extraction.select_samples(samples, tiny, chosen)
    assert results["member"].sum() == 4
    assert len(results) == len({*results["id"]}) == 7
    assert (tiny.lengths_N[results["id"]] >= 5).all()
    more = extraction.select_samples(samples, tiny, dataclasses.replace(chosen, samples=9))
    assert {*results["id"]} <= {*more["id"]}
    everything = extraction.select_samples(samples, tiny, dataclasses.replace(chosen, samples=99))
    assert {*everything["id"]} == {*samples["id"][tiny.lengths_N[samples["id"]] >= 5]}
    too_long = dataclasses.replace(chosen, prefix_tokens=7, suffix_tokens=7)
    with pytest.raises(UserError, match=r"\b14 tokens \("):
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
    kinds = ("exact", "contained", "overlap", "included", "substring", "edit", "in_prompt")
    texts = [c for c in map(str, results) if c.startswith(kinds)]
    assert len(texts) == 19
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


def test_compare_texts():
    same = {"included": 1.0, "substring": 1.0, "edit": 1.0}
    assert extraction.compare_texts("abcd", "abcd") == same
    assert extraction.compare_texts("abcd", "xabcdxxx") == same | {"edit": 0.5}
    assert extraction.compare_texts("abcd", "abxd") == {
        "included": 0.0,
        "substring": 0.5,
        "edit": 0.75,
    }
    assert all(math.isnan(value) for value in extraction.compare_texts("", "a").values())


def test_texts_are_decoded_and_cleaned_before_they_are_compared(tiny: Population):
    samples = extraction.select_samples(random_scores(), tiny, EXTRACT)
    results = extraction.extract(PARAMS, MODEL, tiny, samples, EXTRACT, lambda *_: None)
    ids_B = samples["id"].to_numpy()
    x_BxT = np.stack([tiny.sample(i)[:5] for i in ids_B]).astype(np.int32)
    texts = extraction.generate_texts(PARAMS, MODEL, x_BxT[:, :3], ids_B, EXTRACT)
    for row, x_T, [text_G] in zip(results.to_dict("records"), x_BxT, texts["greedy"], strict=True):
        prompt, target, text = (
            stats.clean_text(tiny.tokenizer.decode(tokens.tolist()))
            for tokens in (x_T[:3], x_T[3:], text_G)
        )
        expected = (stats.is_included(target, prompt), stats.edit_similarity(target, text))
        np.testing.assert_equal((row["in_prompt"], row["edit_greedy"]), expected)


def measured() -> pd.DataFrame:
    """Returns made results of 6 members and 4 non-members; one member is in the prompt, one has no text."""
    log_p = [0.0, math.log(0.6), math.log(0.02), math.log(0.005), 0.0, 0.0]
    columns: dict[str, list[float]] = {}
    for name in ("greedy", "sampled", "chosen"):
        columns[f"log_p_{name}"] = [*log_p, math.log(0.02), -math.inf, -math.inf, math.nan]
    columns["included_greedy"] = [1, 0, 0, 0, 1, math.nan, 0, 0, 0, 0]
    columns["overlap_greedy"] = [1, 0.9, 0.8, 0, 1, 1, 0, 0, 0, 1]
    results = pd.DataFrame({"id": range(10), "member": np.arange(10) < 6, "score": 0.0})
    results["in_prompt"] = [0, 0, 0, 0, 1, math.nan, 0, 0, 0, 0]
    return results.assign(**columns)


def test_rates_leave_out_texts_of_the_prompt_and_have_exact_intervals():
    rates = extraction.extraction_rates(measured(), dataclasses.replace(EXTRACT, choose="random"))
    greedy = {row["class"]: row for row in rates.to_dict("records") if row["scheme"] == "greedy"}
    criteria = ["inclusion", "overlap_above_0.8", "p_above_0.5", "p_above_0.01"]
    names = ("samples", "left_out", *criteria)
    assert [greedy["members"][name] for name in names] == [4, 2, 1 / 4, 2 / 4, 2 / 4, 3 / 4]
    assert [greedy["nonmembers"][name] for name in names] == [3, 1, 0, 0, 0, 1 / 3]
    ends = [greedy["members"][f"inclusion_{end}"] for end in ("low", "high")]
    assert ends == [*stats.clopper_pearson(1, 4)]
    sampled = rates[rates["scheme"] == "sampled"]
    assert sampled[["inclusion", "inclusion_high"]].isna().all(axis=None)  # no texts
    assert sampled["p_above_0.5"].notna().all()
    by_score = extraction.extraction_rates(measured(), EXTRACT)
    pd.testing.assert_frame_equal(by_score[criteria], rates[criteria])
    assert (
        by_score[[f"{c}_{end}" for c in criteria for end in ("low", "high")]].isna().all(axis=None)
    )


def test_intervals_cover_shares_of_a_finite_population():
    """A draw without replacement of 20 of 60 samples: the coverage for every share, by exact enumeration."""
    population, drawn = 60, 20
    low_K, high_K = stats.clopper_pearson(np.arange(drawn + 1), drawn)
    for extractable in range(population + 1):
        ways_K = [
            math.comb(extractable, k) * math.comb(population - extractable, drawn - k)
            for k in range(drawn + 1)
        ]
        share = extractable / population
        covered = sum(w for w, a, b in zip(ways_K, low_K, high_K, strict=True) if a <= share <= b)
        assert covered / math.comb(population, drawn) >= 0.95


def test_reference_table_counts_by_membership_in_both_models():
    results = measured()
    reference = results.assign(log_p_greedy=math.log(0.02), included_greedy=0.0)
    member_N = np.arange(20) % 2 == 0  # of the population
    table = extraction.compare_with_reference(
        extraction.add_reference(results, reference, member_N)
    )
    by_key = {
        (row["scheme"], row["criterion"], row["in_target"], row["in_reference"]): row
        for row in table.to_dict("records")
    }
    counts = ["samples", "left_out", "both", "target_only", "reference_only", "neither"]
    # Members 1 and 3 are not in the reference, 5 has no text. Members 0 and 2 are, and 4 is in the prompt.
    expected = {
        ("inclusion", True, False): [2, 1, 0, 0, 0, 2],
        ("inclusion", True, True): [2, 1, 0, 1, 0, 1],
        ("p_above_0.01", True, False): [2, 1, 1, 0, 1, 0],
        ("p_above_0.5", True, False): [2, 1, 0, 1, 0, 1],
        ("p_above_0.01", False, True): [2, 0, 1, 0, 1, 0],
        ("p_above_0.01", False, False): [1, 1, 0, 0, 1, 0],
    }
    for key, values in expected.items():
        assert [by_key["greedy", *key][count] for count in counts] == values, key
    assert ("sampled", "inclusion", True, True) not in by_key  # no texts


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
    numbers = re.findall(r"[\d.]+\d|\d", extraction.summary(results, EXTRACT))
    assert numbers == ["4", "3", "1", "0.001", "3"]
    assert "highest" in extraction.summary(results, EXTRACT)
    is_random = dataclasses.replace(EXTRACT, choose="random")
    assert extraction.summary(results, is_random).startswith("extraction: 4 random samples ")
