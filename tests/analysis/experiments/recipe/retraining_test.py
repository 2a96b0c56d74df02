"""How often other replicas find a hit again, by its score, counted hit by hit."""

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from array_scores import array_scores

from analysis.experiments.recipe import retraining
from lm_mia import stats
from lm_mia.attacks import study_inputs

FPRS, FOCUS, SAMPLES = (0.02, 0.1, 0.2), 0.1, 1200


def draw(replicas: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns score_BxN and member_N; scores vary over samples as much as over replicas."""
    rng = np.random.default_rng(seed)
    member_N = rng.permuted(np.arange(SAMPLES) < SAMPLES // 2)
    noise_BxN = rng.normal(size=SAMPLES) + rng.normal(size=(replicas, SAMPLES))
    return noise_BxN / math.sqrt(2) + member_N, member_N


def found_again(
    score_BxN: np.ndarray,
    member_N: np.ndarray,
    folder: Path,
    *,
    replicas: bool = True,
    document_N: np.ndarray | None = None,
    fpr: float = FOCUS,
) -> pd.DataFrame:
    member_BxN = np.broadcast_to(member_N, score_BxN.shape)
    how = {"replicas": replicas, "document_N": document_N}
    with array_scores(score_BxN, member_BxN, folder, **how) as scores:  # type: ignore[arg-type]
        return retraining.found_again(scores, band=(0.0, 0.1), focus_fpr=fpr, fprs=FPRS)


def slow_table(score_BxN: np.ndarray, member_N: np.ndarray, document_N: np.ndarray) -> pd.DataFrame:
    """Returns the table from a list of hits, each with its replica, sample and margin."""
    replicas = len(score_BxN)
    threshold_B = [stats.threshold_at_fpr(s[~member_N & ~np.isnan(s)], FOCUS) for s in score_BxN]
    scored = np.flatnonzero(~np.isnan(score_BxN).any(axis=0))
    hits = [
        (float(score_BxN[b, i] - threshold_B[b]), b, i)
        for b, i in itertools.product(range(replicas), scored)
        if score_BxN[b, i] >= threshold_B[b]
    ]
    edges = np.quantile([margin for margin, _, _ in hits], np.arange(1, 8) / 8)
    calls = {(b, i) for _, b, i in hits}
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(document_N)]
    groups, rows = min(replicas, 8), []
    for g in range(8):
        of_group = [hit for hit in hits if np.searchsorted(edges, hit[0], side="right") == g]
        value_A1xH1 = np.empty((1 + groups, 15))
        for a, h in itertools.product(range(1 + groups), range(15)):
            kept = [b for b in range(replicas) if b % groups != a - 1]
            others = kept if len(kept) > 1 else [*range(replicas)]
            shares = [
                np.mean([(other, i) in calls for other in others if other != b])
                for _, b, i in of_group
                if b in kept and (h == 0 or half_HxN[h - 1, i])
            ]
            value_A1xH1[a, h] = np.mean(shares)
        count = len({i for _, _, i in of_group})
        low, high = stats.share_interval(value_A1xH1, count=count)
        margin = np.mean([margin for margin, _, _ in of_group])
        rows.append([g + 1, margin, len(of_group), value_A1xH1[0, 0], low, high])
    return pd.DataFrame(rows, columns=["group", "margin", "hits", "found_again", "low", "high"])


@pytest.mark.parametrize("replicas", [2, 3, 9])
def test_table_against_a_count_of_each_hit(replicas: int, tmp_path: Path):
    score_BxN, member_N = draw(replicas)
    score_BxN[0, :30] = score_BxN[1, 20:50] = np.nan
    document_N = np.arange(SAMPLES) // 3
    table = found_again(score_BxN, member_N, tmp_path, document_N=document_N)
    expected = slow_table(score_BxN, member_N, document_N)
    pd.testing.assert_frame_equal(table, expected, check_dtype=False)
    assert table["hits"].max() - table["hits"].min() <= 1
    assert ((table["low"] < table["found_again"]) & (table["found_again"] < table["high"])).all()
    assert table["found_again"].iloc[-1] > table["found_again"].iloc[0]


def test_hits_of_noise_are_found_again_at_the_rate(tmp_path: Path):
    rng = np.random.default_rng(0)
    _, member_N = draw(1)
    table = found_again(rng.normal(size=(8, SAMPLES)), member_N, tmp_path)
    covered = (table["low"] < FOCUS) & (table["high"] > FOCUS)
    assert covered.sum() >= 7
    assert np.average(table["found_again"], weights=table["hits"]) == pytest.approx(FOCUS, abs=0.02)


def test_equal_replicas_find_all_hits_again(tmp_path: Path):
    """The number of samples says how certain that is, whatever the number of replicas."""
    score_BxN, member_N = draw(1)
    few, many = (found_again(np.repeat(score_BxN, b, 0), member_N, tmp_path) for b in (4, 16))
    for table in few, many:
        assert (table["found_again"] == 1).all()
        assert (table["high"] == 1).all()
    np.testing.assert_allclose(many["low"], few["low"], atol=0.02)
    assert (many["low"] < 0.97).all()


def test_large_populations_are_described_by_their_first_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Thresholds are those of all samples."""
    monkeypatch.setattr(study_inputs, "FIRST_SAMPLES", 700)
    score_BxN, member_N = draw(3)
    table = found_again(score_BxN, member_N, tmp_path)
    threshold_B = [stats.threshold_at_fpr(s[~member_N], FOCUS) for s in score_BxN]
    assert table["hits"].sum() == (score_BxN >= np.array(threshold_B)[:, None])[:, :700].sum()


def test_tied_hits_are_in_one_group(tmp_path: Path):
    _, member_N = draw(1)
    hit_N = np.random.default_rng(0).random(SAMPLES) < np.where(member_N, 0.5, 0.05)
    table = found_again(np.tile(hit_N * 1.0, (3, 1)), member_N, tmp_path)
    assert table["hits"].tolist() == [0] * 7 + [3 * hit_N.sum()]
    assert table["found_again"].tolist()[7] == 1
    assert table.loc[:6, ["margin", "found_again", "low", "high"]].isna().all(axis=None)


def test_there_are_no_rows_without_replicas_or_hits(tmp_path: Path):
    score_BxN, member_N = draw(3)
    few_BxN = score_BxN[:, :120]  # about 25 hits of each replica
    assert len(found_again(score_BxN, member_N, tmp_path)) == 8
    of_one = found_again(score_BxN[:1], member_N, tmp_path, replicas=False)
    assert of_one.empty
    assert [*of_one] == ["group", "margin", "hits", "found_again", "low", "high"]
    assert found_again(score_BxN, member_N, tmp_path, replicas=False).empty
    assert found_again(few_BxN, member_N[:120], tmp_path, fpr=0.02).empty
    # Non-members that cannot show the rate, and none at all.
    score_BxN[:, np.flatnonzero(~member_N)[9:]] = np.nan
    assert found_again(score_BxN, member_N, tmp_path).empty
    score_BxN[:, ~member_N] = np.nan
    assert found_again(score_BxN, member_N, tmp_path).empty
