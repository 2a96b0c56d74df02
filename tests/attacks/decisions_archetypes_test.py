import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, FakePopulation

from lm_mia import config, stats
from lm_mia.attacks import decisions
from lm_mia.data.population import Population

# 9 replicas: coin flips from 2 to 7 votes; flip rates of 0.22 with 1 or 8 votes, 0.39 with 2 or 7.
C = config.Attack(
    references=4,
    replicas=9,
    fprs=(0.1, 0.25),
    focus_fpr=0.25,
    clear_separation=2.0,
    ambiguous_separation=0.5,
    stable_flip=0.25,
    stable_member_flip=0.25,
)
KINDS = ["clear stable member", "clear stable non-member", "ambiguous stable", "ambiguous unstable"]
Sample = tuple[bool, float, float]  # member, votes, separation


def find_archetypes(
    samples: Sequence[Sample], c: config.Attack = C, block: int = 10**6
) -> pd.DataFrame:
    """Returns the archetypes of samples, which are given in blocks."""
    table = pd.DataFrame(samples, columns=["member", "votes", "separation"])
    B = c.replicas
    votes_N = table["votes"].to_numpy(float)
    rows = pd.DataFrame(
        {
            "id": np.arange(len(table)),
            "member": table["member"].to_numpy(bool),
            "separation": table["separation"].to_numpy(float),
            "votes": votes_N,
            "flip_rate": 2 * votes_N * (B - votes_N) / (B * (B - 1)),
        }
    )
    names = ("alpha", "ambiguous_separation", "clear_separation", "stable_flip")
    settings = {name: getattr(c, name) for name in (*names, "stable_member_flip")}
    blocks = (rows.iloc[low : low + block] for low in range(0, len(rows), block))
    rules = decisions.archetype_rules(B, **settings)
    population = cast(Population, FakePopulation(len(table)))
    out = decisions.find_archetypes(blocks, rules, population, c.focus)
    assert out.kind.tolist() == KINDS
    assert (out.fpr == c.focus).all()
    return out


def ids(table: pd.DataFrame) -> list[Any]:
    return [None if pd.isna(i) else int(i) for i in table.id]


def test_archetypes_satisfy_their_rules():
    samples: list[Sample] = [
        (True, 9, 1.99),  # 0: not clear
        (True, 7, 2.5),  # 1: not stable
        (True, 0, 2.5),  # 2: stable, but most replicas are wrong
        (False, 9, 2.5),  # 3: the same of a non-member
        (True, 8, 2.0),  # 4: the first clear stable member
        (True, 9, 5.0),
        (False, 1, 2.0),  # 6: the first clear stable non-member
        (False, 2, 3.0),
        (False, 5, -0.51),
        (True, 1, -0.5),  # 9: the first ambiguous stable sample
        (False, 9, 0.0),
        (False, 9, 0.51),
        (True, 2, 0.5),  # 12: the first ambiguous unstable one
        (False, 7, 0.1),
        (False, 8, 0.2),
    ]
    table = find_archetypes(samples)
    assert ids(table) == [4, 6, 9, 12]
    assert table.candidates.tolist() == [2, 1, 3, 2]
    assert table.member.tolist() == [True, False, True, True]
    assert table.votes.tolist() == [8, 1, 1, 2]
    np.testing.assert_allclose(table.flip_rate, [2 * 8 / 72, 2 * 8 / 72, 2 * 8 / 72, 2 * 14 / 72])
    assert table.separation.tolist() == [2.0, 2.0, -0.5, 0.5]
    assert [len(text) for text in table.text_preview] == [240] * 4
    assert [text[:8].strip(" x") for text in table.text_preview] == [
        "text 4",
        "text 6",
        "text 9",
        "text 12",
    ]
    assert table.rule.tolist() == [
        "member, separation >= 2, flip rate <= 0.25, most replicas decide member",
        "non-member, separation >= 2, flip rate <= 0.25, most replicas decide non-member",
        "|separation| <= 0.5, flip rate <= 0.25",
        "|separation| <= 0.5, coin flip: 2 to 7 of 9 votes",
    ]


@pytest.mark.parametrize("block", [1, 2, 100])
def test_first_candidate_is_selected_across_blocks(block: int):
    samples: list[Sample] = [(False, 5.0, 1.0)] * 3 + [
        (True, 9, 3.0),
        (True, 8, 9.0),
        (True, 9, 4.0),
    ]
    table = find_archetypes(samples, block=block)
    assert ids(table) == [3, None, None, None]
    assert table.candidates.tolist() == [3, 0, 0, 0]


def test_kinds_without_candidates_have_an_empty_id(tmp_path: Path):
    nan = math.nan
    for samples in ([(True, nan, 3.0), (False, nan, nan)], [(True, 9, nan), (False, 4, nan)], []):
        table = find_archetypes(cast(list[Sample], samples))
        assert ids(table) == [None] * 4
        assert table.candidates.tolist() == [0] * 4
        path = tmp_path / "archetypes.csv"
        table.to_csv(path, index=False)
        again = pd.read_csv(path)
        columns = ["id", "member", "votes", "flip_rate", "separation", "text_preview"]
        assert again[columns].isna().all(axis=None)
        assert again.rule.notna().all()


@pytest.mark.parametrize(("replicas", "low"), [(2, 1), (4, 1), (5, 1), (20, 6)])
def test_unanimous_samples_are_not_coin_flips(replicas: int, low: int):
    """With few replicas the test has no power, but a unanimous decision is not a coin flip."""
    c = dataclasses.replace(C, replicas=replicas)
    assert max(stats.coin_flip_cutoff(replicas, 0.05)[0], 1) == low
    samples = [(False, votes, 0.0) for votes in range(replicas + 1)]
    table = find_archetypes(samples, c).set_index("kind").loc["ambiguous unstable"]
    assert (table.id, table.candidates) == (low, replicas - 2 * low + 1)
    assert table.rule.endswith(f"{low} to {replicas - low} of {replicas} votes")


def test_half_of_the_replicas_are_no_majority():
    c = dataclasses.replace(C, replicas=4, stable_flip=0.5)
    samples = [(member, votes, 9.0) for member in (True, False) for votes in range(5)]
    limits = {"stable_flip": 0.7, "stable_member_flip": 0.7}
    table = find_archetypes(samples, dataclasses.replace(c, **limits))
    assert ids(table)[:2] == [3, 5]
    assert table.candidates.tolist()[:2] == [2, 2]


def test_flip_rate_at_the_limit_is_stable():
    # 1 of 20 votes: 38 / 380; 2 votes: 72 / 380 = 0.19; 3 votes: 102 / 380 = 0.27
    c = dataclasses.replace(C, replicas=20, stable_flip=0.1, stable_member_flip=0.19)
    samples: list[Sample] = [(False, 2, 9.0), (False, 1, 9.0), (True, 17, 9.0), (True, 18, 9.0)]
    table = find_archetypes([*samples, (True, 2, 0.0), (True, 19, 0.0)], c)
    assert ids(table)[:3] == [3, 1, 5]
    assert table.candidates.tolist()[:3] == [1, 1, 1]
    assert "flip rate <= 0.19" in table.rule[0]


@pytest.mark.parametrize("number", [1e-9, 1e-5, 123456789.125, 0.1 + 0.2])
def test_numbers_in_rules_are_exact_decimals(number: float):
    c = dataclasses.replace(C, clear_separation=number, ambiguous_separation=0.0)
    below = math.nextafter(number, 0)
    table = find_archetypes([(True, 9, below), (True, 9, number)], c)
    assert ids(table)[0] == 1
    rule = table.rule[0]
    assert "e" not in rule.partition(">=")[2].partition(",")[0]
    assert float(rule.partition(">=")[2].partition(",")[0]) == number


def test_archetypes_of_an_attack(attacked: AttackRun):
    table, samples = attacked.csv("archetypes.csv"), attacked.samples()
    flip, votes = samples["flip_rate_0.1"], samples["votes_0.1"].astype(float)
    k_low, _ = stats.coin_flip_cutoff(8, 0.05)
    clear, near = samples.separation >= 1.5, samples.separation.abs() <= 0.5
    stable = flip <= 0.1
    expected = [
        samples[samples.member & clear & (flip <= 0.2) & (votes > 4)],
        samples[~samples.member & clear & stable & (votes < 4)],
        samples[near & stable],
        samples[near & (votes >= k_low) & (votes <= 8 - k_low)],
    ]
    assert k_low == 1
    assert SMALL.focus_fpr == 0.1
    assert table.candidates.tolist() == [len(part) for part in expected]
    assert min(table.candidates) > 0
    for row, part in zip(table.to_dict("records"), expected, strict=True):
        first = part.sort_values("id").iloc[0]
        assert row["id"] == first["id"]
        assert row["member"] == first["member"]
        assert row["votes"] == first["votes_0.1"]
        assert row["flip_rate"] == pytest.approx(first["flip_rate_0.1"])
        assert row["separation"] == pytest.approx(first["separation"])
        assert row["text_preview"].startswith(f"text {row['id']} ")
