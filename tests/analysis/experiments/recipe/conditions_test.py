"""Which texts are found more often, compared with shares that are counted part by part."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from array_scores import array_scores

from analysis.experiments.recipe import conditions
from lm_mia import stats

FPRS, FOCUS, SAMPLES = (0.05, 0.1), 0.1, 1200
COLUMNS = ["property", "quarter", "members", "found", "low", "high"]


def draw(models: int, effect: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns score_BxN, member_N and the rarity of the words; members with rare words are easier to find."""
    rng = np.random.default_rng(0)
    member_N = rng.permuted(np.arange(SAMPLES) < SAMPLES // 2)
    tfidf_N = rng.normal(size=SAMPLES)
    noise_BxN = rng.normal(size=SAMPLES) + rng.normal(size=(models, SAMPLES))
    return noise_BxN / math.sqrt(2) + (1 + effect * tfidf_N) * member_N, member_N, tfidf_N


def found_by_text(
    score_BxN: np.ndarray,
    member: np.ndarray,
    columns: dict[str, Any],
    folder: Path,
    **how: Any,
) -> pd.DataFrame:
    member_BxN = np.broadcast_to(member, score_BxN.shape)
    with array_scores(score_BxN, member_BxN, folder, **how) as scores:
        population: Any = scores.population
        population.columns = columns
        return conditions.found_by_text(scores, band=(0.0, 0.1), focus_fpr=FOCUS, fprs=FPRS)


@pytest.mark.parametrize("models", [1, 2, 5])
def test_table_against_a_slow_computation(models: int, tmp_path: Path):
    score_BxN, member_N, tfidf_N = draw(models)
    score_BxN[0, :25] = np.nan
    tfidf_N[15:40] = np.nan
    document_N = np.arange(SAMPLES) // 2
    how = {"replicas": models > 1, "document_N": document_N}
    table = found_by_text(score_BxN, member_N, {"tfidf": tfidf_N}, tmp_path, **how)
    assert table["property"].tolist() == ["tfidf"] * 3
    assert table["quarter"].tolist() == ["lowest", "highest", "ratio"]
    scored_N = np.arange(SAMPLES) >= 25
    lowest, highest = np.quantile(tfidf_N[member_N & (np.arange(SAMPLES) >= 40)], [0.25, 0.75])
    group_N = stats.sample_groups(document_N)
    parts = [scored_N, *(scored_N & half_N for half_N in stats.HALVES_HxG[:, group_N])]
    values = []
    for quarter_N in (tfidf_N <= lowest, tfidf_N >= highest):
        share_BxH1 = np.array(
            [
                [
                    np.mean(
                        s[quarter_N & member_N & u]
                        >= stats.threshold_at_fpr(s[~member_N & u], FOCUS)
                    )
                    for u in parts
                ]
                for s in score_BxN
            ]
        )
        kept = [range(models), *([b for b in range(models) if b != a] for a in range(models))]
        values.append(np.array([share_BxH1[[*k]].mean(axis=0) for k in kept if k]))
        row = table.iloc[len(values) - 1]
        count = int((quarter_N & member_N & scored_N).sum())
        ends = stats.share_interval(values[-1], count=count)
        assert row["members"] == count
        assert [row["found"], row["low"], row["high"]] == pytest.approx([values[-1][0, 0], *ends])
    ratio = table.iloc[2]
    assert pd.isna(ratio["members"])
    assert ratio["found"] == pytest.approx(values[1][0, 0] / values[0][0, 0])
    ends = stats.difference_interval(*map(np.log, reversed(values)))
    assert [ratio["low"], ratio["high"]] == pytest.approx(np.exp(ends))
    assert ratio["low"] > 1


def test_texts_that_do_not_matter_are_found_equally_often(tmp_path: Path):
    score_BxN, member_N, tfidf_N = draw(4, effect=0)
    table = found_by_text(score_BxN, member_N, {"tfidf": tfidf_N}, tmp_path).set_index("quarter")
    ratio: Any = table.loc["ratio"]
    assert ratio["low"] < 1 < ratio["high"]


def test_the_first_of_several_targets_is_described(tmp_path: Path):
    score_TxN, member_N, tfidf_N = draw(3)
    member_TxN = np.stack([member_N, ~member_N, member_N])
    several = found_by_text(score_TxN, member_TxN, {"tfidf": tfidf_N}, tmp_path, replicas=False)
    first = found_by_text(score_TxN[:1], member_N, {"tfidf": tfidf_N}, tmp_path, replicas=False)
    pd.testing.assert_frame_equal(several, first)


def test_properties_without_quarters_have_no_rows(tmp_path: Path):
    score_BxN, member_N, tfidf_N = draw(2)
    of_tokens = np.where(tfidf_N < 0.5, 32, np.arange(SAMPLES) % 30 + 40)
    for columns in (
        {},
        {"tfidf": np.full(SAMPLES, np.nan), "tokens": np.full(SAMPLES, 64)},
        {"tokens": of_tokens},  # most texts have the smallest length
        {"tfidf": np.where(np.cumsum(member_N) <= 159, tfidf_N, np.nan)},
    ):
        table = found_by_text(score_BxN, member_N, columns, tmp_path)
        assert table.empty
        assert [*table] == COLUMNS
    known = np.where(np.cumsum(member_N) <= 160, tfidf_N, np.nan)
    assert not found_by_text(score_BxN, member_N, {"tfidf": known}, tmp_path).empty
    # Texts are truncated: many have the largest length.
    table = found_by_text(score_BxN, member_N, {"tokens": -of_tokens}, tmp_path)
    assert table["members"][:2].tolist() == [
        pytest.approx(150, abs=15),
        (member_N & (of_tokens == 32)).sum(),
    ]


def test_a_ratio_needs_hits_in_both_quarters(tmp_path: Path):
    score_BxN, member_N, tfidf_N = draw(2)
    score_BxN[:, member_N & (tfidf_N < np.quantile(tfidf_N, 0.3))] = -9
    table = found_by_text(score_BxN, member_N, {"tfidf": tfidf_N}, tmp_path)
    assert table["quarter"].tolist() == ["lowest", "highest"]
    assert table["found"][0] == table["low"][0] == 0 < table["high"][0]


def test_few_nonmembers_show_no_rate(tmp_path: Path):
    score_BxN, member_N, tfidf_N = draw(2)
    score_BxN[:, np.flatnonzero(~member_N)[12:]] = np.nan  # some half has fewer than 10
    table = found_by_text(score_BxN, member_N, {"tfidf": tfidf_N}, tmp_path)
    assert table.empty


def test_a_quarter_of_one_document_has_no_interval(tmp_path: Path):
    """Halves of the samples are whole documents, so that one of each pair has none of them."""
    score_BxN, member_N, tfidf_N = draw(2)
    lowest_N = member_N & (tfidf_N <= np.quantile(tfidf_N[member_N], 0.25))
    document_N = np.where(lowest_N, 0, 1 + np.arange(SAMPLES) // 2)
    table = found_by_text(score_BxN, member_N, {"tfidf": tfidf_N}, tmp_path, document_N=document_N)
    assert table["quarter"].tolist() == ["lowest", "highest"]
    assert table["found"].notna().all()
    assert table["low"].isna().tolist() == [True, False]
