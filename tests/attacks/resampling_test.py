import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from attack_variants import SAMPLES, VARIANTS, blocks
from synthetic_scores import SMALL, AttackRun, SyntheticScores, run_attacks, write_scores

from lm_mia import config, stats
from lm_mia.attacks import replicas, resampling
from lm_mia.attacks.designs import ModelDesign
from lm_mia.data import subsets
from lm_mia.seeds import rng

__all__ = ["blocks"]  # a fixture

C = dataclasses.replace(SMALL, references=21, fprs=(0.1, 0.3))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("diagnostics"), C, SAMPLES)


def lira_mode(c: config.Attack) -> Any:
    return {"variance": c.variance, "sampled_share": 0.5 if c.finite_population else 0.0}


def flip_fractions(
    world: SyntheticScores, sets: list[np.ndarray], c: config.Attack
) -> list[dict[str, Any]]:
    """Returns flip fractions of the first target over sets of references, by counting."""
    members_N, S = world.member_N, len(sets)
    references = [(world.reference_MxN[s], world.reference_member_MxN[s]) for s in sets]
    score_SxN = np.array(
        [stats.lira(world.target_TxN[:1], *r, **lira_mode(c))[0] for r in references]
    )
    k_low, cutoff = stats.coin_flip_cutoff(S, c.alpha)
    scored_N, rows = ~np.isnan(score_SxN).any(axis=0), []
    for fpr in c.fprs:
        votes_N = np.zeros(SAMPLES)
        for score_N in score_SxN:
            outs = score_N[~members_N & ~np.isnan(score_N)]
            allowed = [s for s in outs if np.mean(outs >= s) <= fpr]
            votes_N += score_N >= (-np.inf if fpr == 1 else min(allowed, default=np.inf))
        edges = [0.0, *(min(e, cutoff) for e in (0.1, 0.25, 0.4)), cutoff]
        for b in range(5):
            row: dict[str, Any] = {"fpr": fpr, "low": edges[b]}
            for kind, class_N in (("member", members_N), ("nonmember", ~members_N)):
                bins = []
                for v in votes_N[class_N & scored_N]:
                    flip = 2 * v * (S - v) / (S * (S - 1))
                    coin = k_low <= v <= S - k_low
                    bins.append(4 if coin else sum(flip >= e - 1e-12 for e in (0.1, 0.25, 0.4)))
                row[f"{kind}s"] = bins.count(b)
                row[f"{kind}_fraction"] = bins.count(b) / len(bins) if bins else np.nan
            rows.append(row | {"left_out": (~scored_N).sum()})
    return rows


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", [4, 10])
@pytest.mark.parametrize("changes", VARIANTS[1:], ids=str)
def test_resampled_references(
    world: SyntheticScores, changes: dict[str, Any], size: int, tmp_path: Path
):
    c = dataclasses.replace(C, **changes, resample_references=size)
    source = replicas.find_replicas(world.store, world.population, c, pytest.fail).inputs
    with ThreadPoolExecutor(2) as pool:
        table = resampling.resampled_references(source, c, tmp_path, pool)
    assert list(tmp_path.iterdir()) == []
    draw = rng(0, "subsampled reference sets")
    sets_by_sampling = {
        "disjoint": [np.arange(i * size, (i + 1) * size) for i in range(21 // size)],
        "subsampled (dependent)": [
            np.concatenate([[2 * p, 2 * p + 1] for p in draw.choice(10, size // 2, replace=False)])
            for _ in range(8)
        ],
    }
    assert table.sampling.unique().tolist() == list(sets_by_sampling)
    for sampling, sets in sets_by_sampling.items():
        part, expected_rows = table[table.sampling == sampling], flip_fractions(world, sets, c)
        assert part.sets.tolist() == [len(sets)] * 10
        assert part.references_per_set.tolist() == [size] * 10
        assert "replicas" not in part  # there is one vote per set
        for row, expected in zip(part.to_dict("records"), expected_rows, strict=True):
            for name, value in expected.items():
                assert row[name] == pytest.approx(value, nan_ok=True), (sampling, name)
    # With few references per set, per-sample variances leave out all samples, which left_out counts.
    assert (table.left_out < SAMPLES).all() or (size, c.variance) == (4, "per_sample")


@pytest.fixture
def optional_run(
    world: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AttackRun:
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(C, variance="pooled", attacks=("lira_online",), bootstraps=0)
    c = dataclasses.replace(c, resample_references=7)
    return run_attacks(world, c, tmp_path / "tables")


def test_attack_writes_resampled_references(optional_run: AttackRun):
    table = optional_run.csv("resampled_references.csv")
    sets = [np.arange(0, 7), np.arange(7, 14), np.arange(14, 21)]
    part = table[table.sampling == "disjoint"].reset_index()
    expected_rows = pd.DataFrame(flip_fractions(optional_run.scores, sets, optional_run.c))
    np.testing.assert_allclose(part.member_fraction, expected_rows.member_fraction)
    np.testing.assert_allclose(part.nonmember_fraction, expected_rows.nonmember_fraction)
    facts = json.loads((optional_run.folder / "flips.json").read_text())
    assert facts["config"]["resample_references"] == 7


def test_reference_pairs_are_never_split(world: SyntheticScores):
    source = replicas.find_replicas(world.store, world.population, C, pytest.fail).inputs
    pairs = [[2 * p, 2 * p + 1] for p in range(10)]  # the last of 21 references has no partner
    assert np.array(resampling.reference_units(source.references)).tolist() == pairs
    fewer = source.with_references([0, 1, 3, 4, 5, 8])  # seeds 2, 7, ... are lost
    units = resampling.reference_units(fewer.references)
    assert np.array(units).tolist() == [[0, 1], [3, 4]]
    assert resampling.reference_units(source.with_references([3]).references) == []


def test_references_with_related_subsets_are_never_split():
    references = [*map(subsets.reference, range(8))]
    half_4xN = np.random.default_rng(0).random((4, 200)) < 0.5
    member_MxN = np.concatenate([half_4xN, half_4xN[[3]], ~half_4xN[[3]], half_4xN[2:]])
    member_MxN[6] = np.random.default_rng(1).random(200) < 0.5
    design = ModelDesign(tuple(references), stats.design_of(member_MxN), np.ones(8, bool))
    # Models 3, 4, 5 and 7 are related, so the pairs that they are in are one unit.
    units = resampling.reference_units(references, design)
    assert [unit_R.tolist() for unit_R in units] == [[0, 1], [2, 3, 4, 5, 6, 7]]
    units = resampling.reference_units(references[1:], design)
    assert [unit_R.tolist() for unit_R in units] == [[1, 2, 3, 4, 5, 6]]


def test_too_few_references_for_two_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(SMALL, references=8, replicas=2, variance="pooled", bootstraps=0)
    c = dataclasses.replace(c, attacks=("lira_online",), resample_references=4)
    out = run_attacks(write_scores(tmp_path, c, 60, absent=(2,)), c, tmp_path / "tables")
    [message] = out.messages[1:]
    assert re.match(
        r"attack\.resample_references=4: .*\b3 pairs\b.*; resampled_references\.csv ", message
    )
    assert not (out.folder / "resampled_references.csv").exists()
