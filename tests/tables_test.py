import dataclasses
import math
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from lm_mia import config, tables
from lm_mia.population import Population
from lm_mia.stats import binomial

C = config.Attack(references=4, replicas=9, fprs=(0.1, 0.25), focus_fpr=0.25)
T, N2 = C.replicas, 40
RNG = np.random.default_rng(1)
MEMBER_N = np.arange(N2) % 2 == 0
SCORE_TxN = RNG.normal(size=(T, N2)) + 2 * MEMBER_N * RNG.random(N2)
HOLES_TxN = np.where(np.arange(N2) == 6, np.nan, SCORE_TxN)


class Texts:
    lengths_N = np.arange(N2) + 3

    def __len__(self) -> int:
        return N2

    def text(self, i: int) -> str:
        return f"{i} " + "long " * 100


TEXTS = cast(Population, Texts())


def slow_decisions(score_TxN: np.ndarray, fpr: float) -> np.ndarray:
    """decision_TxN: threshold just above as many non-members as must stay below."""
    decisions = np.zeros(score_TxN.shape, bool)
    for t, score_N in enumerate(score_TxN):
        best = math.inf
        for threshold in sorted(score_N[~np.isnan(score_N)]):
            wrong = np.mean(score_N[~MEMBER_N & ~np.isnan(score_N)] >= threshold)
            if wrong <= fpr and threshold in score_N[~MEMBER_N]:
                best = threshold
                break
        decisions[t] = score_N >= best
    return decisions


@pytest.mark.parametrize("score_TxN", [SCORE_TxN, HOLES_TxN], ids=["whole", "holes"])
def test_error_rates(score_TxN: np.ndarray):
    table = tables.error_rates(score_TxN, MEMBER_N, C)
    assert table.fpr.tolist() == [0.1, 0.25]
    assert (table.attack == "lira_online").all()
    there_N = ~np.isnan(score_TxN[0])
    for row, fpr in zip(table.to_dict("records"), C.fprs, strict=True):
        decisions = slow_decisions(score_TxN, fpr)
        tpr_T = decisions[:, MEMBER_N & there_N].mean(axis=1)
        fpr_T = decisions[:, ~MEMBER_N & there_N].mean(axis=1)
        right_T = (decisions == MEMBER_N)[:, there_N].mean(axis=1)
        for name, rate_T in (("tpr", tpr_T), ("fpr", fpr_T), ("acc", right_T)):
            assert row[f"{name}_mean"] == pytest.approx(rate_T.mean())
            assert row[f"{name}_std"] == pytest.approx(rate_T.std())
        assert row["fnr_mean"] == pytest.approx(1 - row["tpr_mean"])
        assert row["tnr_mean"] == pytest.approx(1 - row["fpr_mean"])
        assert row["fpr_mean"] <= fpr


def test_accuracy_of_equal_classes():
    table = tables.error_rates(SCORE_TxN, MEMBER_N, C)
    expected = (table.tpr_mean + 1 - table.fpr_mean) / 2
    np.testing.assert_allclose(table.acc_mean, expected)


def test_votes_are_counted_decisions():
    votes_FxN = tables.votes(HOLES_TxN, MEMBER_N, C)
    assert votes_FxN.shape == (2, N2)
    for votes_N, fpr in zip(votes_FxN, C.fprs, strict=True):
        expected_N = slow_decisions(HOLES_TxN, fpr).sum(axis=0).astype(float)
        expected_N[6] = np.nan
        np.testing.assert_array_equal(votes_N, expected_N)


def test_flip_shares_against_counting():
    votes_FxN = tables.votes(HOLES_TxN, MEMBER_N, C)
    table = tables.flip_shares(votes_FxN, MEMBER_N, C)
    k_low, cutoff = binomial.coin_flip_cutoff(T, C.alpha)
    assert k_low > 0  # so that the bins are not all coin flips
    assert (table.left_out == 1).all()
    for f, fpr in enumerate(C.fprs):
        part = table[table.fpr == fpr]
        assert part.bin.tolist() == [
            *("very stable", "low/mid", "mid/high", "very unstable", "coin flip"),
        ]
        assert part.low.tolist()[1:] == part.high.tolist()[:-1]
        assert (part.low.iloc[0], part.low.iloc[-1]) == (0, cutoff)
        for kind, of_N in (("members", MEMBER_N), ("nonmembers", ~MEMBER_N)):
            assert part[f"{kind}_percent"].sum() == pytest.approx(100)
            votes = [v for v in votes_FxN[f, of_N] if not np.isnan(v)]
            assert part[kind].sum() == len(votes)
            counted = [0] * 5
            for v in votes:
                flip = 2 * v * (T - v) / (T * (T - 1))
                inner = sum(flip >= edge - 1e-12 for edge in (0.1, 0.25, 0.4))
                counted[4 if k_low <= v <= T - k_low else inner] += 1
            assert part[kind].tolist() == counted
            np.testing.assert_allclose(
                part[f"{kind}_percent"], [100 * n / len(votes) for n in counted]
            )


def test_samples():
    votes_FxN = tables.votes(HOLES_TxN, MEMBER_N, C)
    table = tables.samples(votes_FxN, HOLES_TxN, MEMBER_N, TEXTS, C)
    assert table.columns.tolist() == [
        *("id", "member", "tokens", "mean_score", "mean_posterior"),
        *("votes_0.1", "flip_0.1", "votes_0.25", "flip_0.25"),
    ]
    assert table.id.tolist() == list(range(N2))
    assert table.tokens.tolist() == Texts.lengths_N.tolist()
    for row in table.to_dict("records"):
        i = row["id"]
        assert row["member"] == MEMBER_N[i]
        if i == 6:
            assert all(math.isnan(row[k]) for k in table.columns[3:])
            continue
        assert row["mean_score"] == pytest.approx(SCORE_TxN[:, i].mean())
        assert row["mean_posterior"] == pytest.approx((1 / (1 + np.exp(-SCORE_TxN[:, i]))).mean())
        votes = row["votes_0.25"]
        assert votes == votes_FxN[1, i]
        assert row["flip_0.25"] == pytest.approx(2 * votes * (9 - votes) / (9 * 8))


def frame(rows: list[tuple[bool, float, float]]) -> pd.DataFrame:
    """A sample table of (member, votes at the focus rate, mean score)."""
    table = pd.DataFrame(rows, columns=["member", "votes_0.25", "mean_score"])
    table["id"] = np.arange(len(table))
    table["flip_0.25"] = table["votes_0.25"] / 100
    return table


def picked(rows: list[tuple[bool, float, float]], c: config.Attack = C) -> dict[str, Any]:
    table = tables.archetypes(frame(rows), TEXTS, c)
    assert table.columns.tolist() == ["kind", "id", "fpr", "votes", "flip", "text_preview"]
    return dict(zip(table.kind, table.id, strict=True))


def test_archetypes_are_the_median_members_of_their_kind():
    stable = [(True, 9.0, s) for s in (5.0, 1.0, 3.0)]  # ids 0-2: the median score is 3
    coins = [(True, 4.0, 8.0), (True, 5.0, 7.0), (True, 5.0, 6.0), (True, 3.0, 7.1)]  # ids 3-6
    others = [(False, 9.0, 3.0), (False, 4.0, 7.0), (True, math.nan, 3.0), (True, 0.0, 0.0)]
    assert picked(stable + coins + others) == {"stable member": 2, "coin flip": 4}


def test_archetypes_without_such_a_sample_are_left_out():
    assert picked([(True, 0.0, 1.0), (False, 9.0, 1.0), (False, 4.0, 1.0)]) == {}
    assert picked([(True, 9.0, 1.0), (True, 1.0, 1.0)]) == {"stable member": 0}
    assert picked([(True, math.nan, 1.0), (True, 4.0, 1.0)]) == {"coin flip": 1}
    assert picked([(True, math.nan, math.nan)]) == {}


def test_with_few_replicas_a_sample_that_is_found_always_is_no_coin_flip():
    """With 4 replicas no split differs from a coin at 5 %: the cutoff says nothing, the sample is still stable."""
    few = dataclasses.replace(C, replicas=4)
    assert binomial.coin_flip_cutoff(4, 0.05) == (0, 0.0)
    assert picked([(True, 4.0, 1.0), (True, 2.0, 1.0)], few) == {"stable member": 0, "coin flip": 1}
    assert picked([(True, 4.0, 1.0)], few) == {"stable member": 0}


def test_preview_is_cut():
    table = tables.archetypes(frame([(True, 9.0, 1.0)]), TEXTS, C)
    [row] = table.to_dict("records")
    assert (len(row["text_preview"]), row["votes"], row["fpr"]) == (240, 9, 0.25)
    assert row["flip"] == pytest.approx(0.09)
