"""The simulation of differences between two attacks, with few and small experiments."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("attack_flips")


@pytest.mark.montecarlo
@pytest.mark.parametrize("pieces", [1, 4])
def test_intervals_contain_the_true_difference(benchmark: ModuleType, pieces: int):
    """A correct interval misses 2 of 40 on average, and 8 or more with probability 1/1400."""
    design = benchmark.Design(256, 8, pieces)
    differences = benchmark.simulate(design, 40, 0)
    assert len(differences) == 4
    for name, difference in differences.items():
        missed_F = (~benchmark.is_covered(difference)).sum(axis=0)
        assert missed_F[1] < 8, (
            name
        )  # At an FPR of 1%, halves of 128 non-members allow none or one.


@pytest.mark.montecarlo
def test_intervals_are_paired_and_not_vacuous(benchmark: ModuleType):
    differences = benchmark.simulate(benchmark.Design(512, 16), 20, 1)
    for name in ("TPR", "flip rate of members", "coin flips of members"):
        difference = differences[name]
        assert np.median(difference.margin_F[:, 1] / difference.unpaired_margin_F[:, 1]) < 0.9
        assert np.median(difference.margin_F[:, 1]) < 5 * difference.value_F[:, 1].std()


def test_table_has_a_row_per_number_and_rate(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(benchmark, "DESIGNS", {"tiny": benchmark.Design(128, 8, 2)})
    table = list(benchmark.rows(["tiny"], 2, 0))
    assert len(table) == 8
    assert table[0][:2] == ("128 samples, 2 per document; 8 replicas", "TPR at 1%")


@pytest.mark.slow
def test_intervals_of_a_recipe(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those with the references held fixed are those of `compare`; halves of the references are attacks, too."""
    rng = np.random.default_rng(0)
    member_MxN = rng.random((17, 256)) < 0.5
    member_MxN = np.concatenate([member_MxN, np.repeat(member_MxN[-1:], 7, axis=0)])
    loss_MxN = 3 + rng.normal(size=256) - 0.5 * member_MxN + 0.3 * rng.normal(size=(24, 256))
    recipe = benchmark.Recipe(loss_MxN[:16], member_MxN[:16], loss_MxN[16:], member_MxN[-1])
    monkeypatch.setattr(benchmark.Recipe, "read", lambda _: recipe)
    rows = {row[1:3]: row[3:] for row in benchmark.recipe_rows([tmp_path / "demo"])}
    assert len(rows) == 3 * 4 * 2
    scores = benchmark.attack_scores(recipe, np.arange(16))
    result = benchmark.compare(
        scores["LiRA"], scores["Calibrated loss"], member_MxN[-1], np.arange(256)
    )
    for name, difference in result.items():
        value, fixed, covered = rows["Calibrated loss", f"{name} at 5%"]
        assert value == f"{difference.value_F[1]:+.3f}"
        assert fixed == f"{difference.margin_F[1]:.3f}"
        assert float(covered) > 0
    assert any(covered != fixed for _, fixed, covered in rows.values())
