"""Groups of members by posterior, and properties that correlate with it."""

import re
from typing import Any

import numpy as np
import pytest
from verdicts import SUPPORTED_HERE

from analysis.experiments.strongmia import samples
from lm_mia import stats
from lm_mia.data.subsets import ModelSeeds


def target(posterior_S: np.ndarray, count: int = 40, step: int = 2) -> Any:
    ids_S = np.arange(len(posterior_S)) * step
    member_N2 = np.zeros(count, bool)
    member_N2[ids_S] = True
    return samples.Target(ModelSeeds("reference", 1, 1, 1), member_N2, ids_S, posterior_S)


def test_groups_are_the_extremes_and_the_middle():
    example = target(np.array([0.9, 0.1, 0.45, 0.7, 0.2, 0.52, 0.8, 0.3, 0.95, 0.05]))
    assert example.group_size == 2
    groups = {name: sorted(ids.tolist()) for name, ids in example.groups().items()}
    assert groups == {
        "least vulnerable": [2, 18],
        "most ambiguous": [4, 10],
        "most vulnerable": [0, 16],
    }
    x_N2 = np.arange(40.0)
    x_N2[18] = np.nan
    values = samples.property_by_group([example], x_N2)
    assert values["least vulnerable"].tolist() == [2]


def test_correlated_property_is_seen_and_noise_is_not():
    rng = np.random.default_rng(0)
    posterior_TxS = rng.random((6, 300))
    # Attacks with halves of the references find slightly different posteriors.
    targets_R1xT = [
        [target(posterior_S + 0.05 * rng.random(300), 800, step=1) for posterior_S in posterior_TxS]
        for _ in range(15)
    ]

    def with_noise(weight: float) -> list[np.ndarray]:
        x_TxN2 = []
        for t in targets_R1xT[0]:
            x_N2 = rng.random(800)
            x_N2[t.ids_S] = weight * t.posterior_S + rng.random(300)
            x_TxN2.append(x_N2)
        return x_TxN2

    def verdict(weight: float, parts: int = 15) -> str:
        claim = samples.claim_rises(
            "", "length", targets_R1xT[:parts], with_noise(weight), np.arange(800)
        )
        return claim.verdict

    assert (verdict(0.5), verdict(-0.5), verdict(0)) == ("supported", "contradicted", "undecided")
    assert verdict(0.5, parts=1) == SUPPORTED_HERE


def test_statistics_of_members_on_halves():
    example = target(np.linspace(0, 1, 16), step=1)
    halves = stats.HALVES_HxG[:, stats.sample_groups(example.ids_S)]
    x_N2 = np.arange(40.0) ** 2
    value = samples.member_jackknife(
        [[example, example]],
        lambda x_S, y_S: float((x_S * y_S).sum()),
        [x_N2, 2 * x_N2],
        np.arange(40),
    )
    whole_S = 1.5 * x_N2[example.ids_S] * example.posterior_S
    assert value.value == pytest.approx(whole_S.sum())
    expected = [whole_S[half_S].sum() for half_S in halves]
    assert value.value_A1xR1xH1[0, 0, 1:] == pytest.approx(expected)


def test_nearly_constant_properties_are_not_tested():
    x_N2 = np.zeros(40)
    claim = samples.claim_rises(
        "Longer.", "length", [[target(np.linspace(0, 1, 10))]], [x_N2], x_N2
    )
    assert claim.verdict == "not tested"
    assert re.fullmatch(r"10 of 10 members\b.*\breference-01\b.*same length", claim.finding)


def test_histogram_shares_ignore_values_outside_the_bins():
    share_K = samples.histogram_shares(np.array([1.0, 2.0, 2.5, 99.0]), np.array([0.0, 2.0, 4.0]))
    assert share_K == pytest.approx([0.25, 0.5])
