"""The simulation of intervals of claims, with few and small recipes."""

import dataclasses
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.stats
import zarr


@pytest.fixture(scope="module")
def claims() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("claims")


@pytest.fixture(scope="module")
def workdirs(claims: ModuleType) -> ModuleType:
    del claims  # which makes the folder of benchmarks importable
    return importlib.import_module("claims_of_workdirs")


@pytest.mark.montecarlo
def test_alike_recipes_are_rarely_told_apart(claims: ModuleType):
    """A correct interval misses 5 or more of 12 with probability 1/5000."""
    for design in (
        lambda rng: claims.same_population(rng, 256, 4, 16),
        lambda rng: claims.other_population(rng, 256, 4, 16),
        lambda rng: claims.unrelated_property(rng, 256, 4, 16),
    ):
        for name, missed_Sx2 in claims.find_misses(design, 12, 0).items():
            assert missed_Sx2[:, 0].sum() < 5, name


@pytest.mark.montecarlo
def test_alike_replicas_are_rarely_told_apart(claims: ModuleType):
    """A correct interval misses 3 or more of 6 with probability 1/450."""
    missed = claims.find_misses(
        lambda rng: claims.replicas(rng, 256, 8, 16, subset_noise=False), 6, 0
    )
    assert all(missed_Sx2[:, 0].sum() < 3 for missed_Sx2 in missed.values())


def test_recipes_that_differ_are_told_apart(claims: ModuleType, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    population = claims.Population.draw(rng, 512)
    subsets = claims.balanced_subsets(rng, 24, 512)
    more = dataclasses.replace(population, gain_N2=2 * population.gain_N2)
    new, old = (
        claims.target_jackknife(
            claims.simulate_recipe(rng, p, subsets), 16 + np.arange(8), np.arange(16)
        )
        for p in (more, population)
    )
    gap = (new["AUC"] - old["AUC"]).estimate()
    assert gap.low > 0.03


def test_rows_of_the_table(
    claims: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    small = "few models", lambda rng: claims.same_population(rng, 64, 2, 4)
    monkeypatch.setattr(claims, "DESIGNS", {"small": small})
    monkeypatch.setattr("sys.argv", ["claims.py", "--simulations=3"])
    claims.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| few models | AUC | 3 | ")
    assert claims._percent(np.array([0, math.nan])) == "–"


@pytest.fixture
def simulated_recipe(claims: Any) -> Any:
    """A recipe whose replicas have the effect of one subset: 40 models and 16 replicas."""
    rng = np.random.default_rng(0)
    population = claims.Population.draw(rng, 256)
    subsets = claims.balanced_subsets(rng, 40, 256)
    return claims.simulate_recipe(rng, population, subsets, replicas=16)


def test_recipes_of_a_workdir_are_compared_with_themselves(
    claims: Any,
    simulated_recipe: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    store = zarr.open_group(tmp_path / "recipes" / "small" / "scores.zarr", mode="w", zarr_format=2)
    recipe = simulated_recipe
    loss = np.concatenate([recipe.replica_loss_BxN2, recipe.loss_MxN2])
    member_BxN2 = np.broadcast_to(recipe.replica_member_N2, recipe.replica_loss_BxN2.shape)
    store["loss"] = np.stack([np.zeros_like(loss), loss], axis=1)
    store["member"] = np.concatenate([member_BxN2, recipe.member_MxN2])
    store["role"] = np.array(["replica"] * 16 + ["reference"] * 40)
    read = claims.Recipe.read(tmp_path / "recipes" / "small")
    for name, array in dataclasses.asdict(recipe).items():
        np.testing.assert_array_equal(getattr(read, name), array)

    monkeypatch.setattr("sys.argv", ["claims.py", "--workdir", str(tmp_path), "--splits=1"])
    claims.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| targets, halves of the models; 16 references | AUC | 1 | 1 | ")
    assert lines[-3].startswith("| recipe | models | replicas | SD over models |")
    assert lines[-1].startswith("| small | 40 | 16 | 0.0")


def test_halves_of_the_models_have_no_model_in_common(workdirs: Any):
    for models in (40, 41, 42, 43):
        half_2xM = workdirs.split_models(np.random.default_rng(0), models)
        assert half_2xM.shape == (2, 20)
        assert np.unique(half_2xM).size == 40
        assert set(half_2xM[0] ^ 1) == set(half_2xM[0])


def test_the_effect_of_subsets_is_found(workdirs: Any):
    """Models differ by 0.03, replicas by 0.01 and halves of the samples by 2 x 0.02."""
    rng = np.random.default_rng(0)
    sign_H = np.tile([1, -1], 7)
    noise_M, noise_B = 0.03 * rng.normal(size=4000), 0.01 * rng.normal(size=4000)
    aucs = workdirs.ModelAucs(noise_M[:, None] + 0 * sign_H, noise_B[:, None] + 0.02 * sign_H)
    *counts, models, order, subset, samples, misses = map(float, aucs.cells())
    assert counts == [4000, 4000]
    assert [models, order, subset, samples] == [0.03, 0.01, 0.028, 0.02]
    interval = math.sqrt(0.01**2 / 4000 + 0.02**2)
    subset = math.sqrt(0.03**2 - 0.01**2)
    expected = 2 * scipy.stats.norm.sf(1.96 * interval / math.hypot(interval, subset))
    assert misses == pytest.approx(100 * expected, abs=1)


def test_the_effect_of_subsets_on_a_difference_is_paired(workdirs: Any):
    """Subsets have the same effect in both recipes."""
    rng = np.random.default_rng(0)
    own_2xMxH = 0.5 + 0.01 * rng.normal(size=(2, 2, 16, 14))
    effect_Mx1 = 0.2 * rng.normal(size=(16, 1))
    new, old = (workdirs.ModelAucs(m + effect_Mx1, b) for m, b in own_2xMxH)
    assert float(new.cells()[2]) > 0.1
    assert float((new - old).cells()[2]) < 0.01
