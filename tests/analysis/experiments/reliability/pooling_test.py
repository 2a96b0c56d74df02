"""TPRs averaged over models and samples: every strategy by a slow reference, intervals, and when the tables change."""

import collections
import dataclasses
import itertools
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from synthetic_scores import SMALL, SyntheticScores, write_scores
from table_case import compute, set_of_study, working

from analysis.experiments.reliability import pooling
from lm_mia import config, stats
from lm_mia.data import subsets

SAMPLES = 200
C = dataclasses.replace(
    SMALL, references=18, replicas=2, fprs=(0.0, 0.1, 0.3, 1.0), focus_fpr=0.1, leave_one_out=True
)
LIRA = pooling.LiraSettings(C.variance, C.finite_population)
DESIGNS: tuple[subsets.Design, ...] = ("exact", "balanced")
FPRS = (0.1, 0.3)


def run(world: SyntheticScores, c: config.Attack, folder: Path) -> list[tuple[str, float, float]]:
    """Computes the tables; returns the progress that was reported."""
    folder.mkdir(exist_ok=True)
    with working(folder) as (work, progress):
        compute(set_of_study(pooling.STUDY, world.store, world.population, c, work), folder)
    return progress


@pytest.fixture(scope="module", params=DESIGNS)
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("pooling"), C, SAMPLES, design=request.param)


@pytest.fixture(scope="module")
def folder(world: SyntheticScores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    assert run(world, C, folder) == [("thresholds", done, 3) for done in range(4)]
    return folder


def is_balanced(world: SyntheticScores) -> bool:
    return bool((world.reference_member_MxN[0] ^ world.reference_member_MxN[1]).all())


def slow_scores(
    world: SyntheticScores, evaluated: int, moments: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns LiRA scores, standardized losses and numbers of OUT references, one model at a time."""
    index_M, rows = np.arange(moments), []
    loss_MxN, member_MxN = world.reference_MxN.astype(float), world.reference_member_MxN
    for m in range(evaluated):
        used_M = index_M // 2 != m // 2 if is_balanced(world) else index_M != m
        others = loss_MxN[:moments][used_M], member_MxN[:moments][used_M]
        out_RxN = np.where(others[1], np.nan, others[0])
        with warnings.catch_warnings(action="ignore"):  # samples without OUT losses
            mean_N, sd_N = np.nanmean(out_RxN, axis=0), np.nanstd(out_RxN, axis=0, ddof=1)
        [lira_N] = stats.lira(loss_MxN[m], *others)
        score_N = (mean_N - loss_MxN[m]) / sd_N
        score_N[~others[1].any(axis=0)] = np.nan  # only if the others include both classes
        rows.append((lira_N, score_N, (~others[1]).sum(axis=0)))
    lira_MxN, standardized_MxN, count_MxN = map(np.array, zip(*rows, strict=True))
    return lira_MxN, standardized_MxN, count_MxN


def threshold_of(score: np.ndarray, member: np.ndarray, fpr: float) -> float:
    nonmembers = score[~member]
    return float(stats.threshold_at_fpr(nonmembers[~np.isnan(nonmembers)], fpr))


@pytest.mark.parametrize(("evaluated", "moments"), [(8, 8), (8, 18), (18, 18)])
def test_every_strategy_equals_a_slow_reference(
    world: SyntheticScores, folder: Path, evaluated: int, moments: int
):
    lira_MxN, standardized_MxN, count_MxN = slow_scores(world, evaluated, moments)
    member_MxN = world.reference_member_MxN[:evaluated]
    table = pd.read_csv(folder / pooling.TABLE)
    chosen = table[(table["models"] == evaluated) & (table["oracle"] == (moments > evaluated))]
    assert sorted({*table["models"]}) == [8, 16, 18]
    assert [*chosen["strategy"]] == [s for s in pooling.STRATEGIES for _ in FPRS]
    df = stats.fit_student_t(standardized_MxN, member_MxN)

    def rates(score: np.ndarray, threshold: Any) -> list[float]:
        called, known = score >= threshold, ~np.isnan(score)
        return [float(called[of & known].mean()) for of in (member_MxN, ~member_MxN)]

    def over_samples(score: np.ndarray, threshold: Any) -> list[float]:
        called, known = score >= threshold, ~np.isnan(score)
        return [
            float(
                np.mean(
                    [called[of_M, n].mean() for n, of_M in enumerate((of & known).T) if of_M.any()]
                )
            )
            for of in (member_MxN, ~member_MxN)
        ]

    for fpr in FPRS:
        threshold = {
            "naive": threshold_of(lira_MxN, member_MxN, fpr),
            "standardized": threshold_of(standardized_MxN, member_MxN, fpr),
            "standardized_normal": scipy.stats.norm.isf(fpr),
            "standardized_student_t": scipy.stats.t.isf(fpr, df)
            if np.isfinite(df)
            else scipy.stats.norm.isf(fpr),
        }
        expected = {
            name: rates(lira_MxN if name == "naive" else standardized_MxN, value)
            for name, value in threshold.items()
        }
        predictive = np.sqrt(1 + 1 / np.maximum(count_MxN, 1)) * scipy.stats.t.isf(
            fpr, count_MxN - 1
        )
        expected["standardized_predictive"] = rates(standardized_MxN, predictive)
        out_MxN = np.where(member_MxN, np.nan, lira_MxN)
        quantile_N = [
            np.quantile(s[~np.isnan(s)], 1 - fpr) if not np.isnan(s).all() else np.nan
            for s in out_MxN.T
        ]
        expected["per_sample"] = over_samples(lira_MxN, np.nextafter(quantile_N, np.inf))
        expected["per_sample_normal"] = over_samples(standardized_MxN, scipy.stats.norm.isf(fpr))
        points = stats.tpr_at_fpr(lira_MxN, member_MxN, [fpr])
        expected["per_model"] = [points.tpr_TxF.mean(), points.realized_fpr_TxF.mean()]
        at_fpr = chosen[chosen["fpr"] == fpr].set_index("strategy")
        for name, (tpr, realized) in expected.items():
            assert at_fpr.loc[name, "tpr"] == pytest.approx(tpr, abs=1e-12), name
            assert at_fpr.loc[name, "realized_fpr"] == pytest.approx(realized, abs=1e-12), name
            assert at_fpr.loc[name, "threshold"] == pytest.approx(
                threshold.get(name.replace("per_sample_normal", "standardized_normal"), np.nan),
                rel=1e-6,
                nan_ok=True,
            )
        for name in pooling.STRATEGIES:
            is_lira = name in ("naive", "per_sample", "per_model")
            known_MxN = ~np.isnan(lira_MxN if is_lira else standardized_MxN)
            counts = [(member_MxN & known_MxN).sum(), (~member_MxN & known_MxN).sum()]
            assert [at_fpr.loc[name, f"{of}_cells"] for of in ("in", "out")] == counts
            assert at_fpr.loc[name, "left_out"] == (~known_MxN).sum()
    assert {*chosen["samples"]} == {SAMPLES}


def test_a_model_without_losses_is_left_out():
    rng = np.random.default_rng(4)
    member_MxN = rng.random((10, 300)) < 0.5
    loss_MxN = rng.normal(size=member_MxN.shape) - member_MxN
    with_model, without = [
        pooling.evaluate(
            pooling.compute_scores(*grid, np.arange(300), LIRA, stats.design_of(grid[1])), [*FPRS]
        )
        for grid in (
            (
                np.vstack([loss_MxN, np.full((1, 300), np.nan)]),
                np.vstack([member_MxN, rng.random(300) < 0.5]),
            ),
            (loss_MxN, member_MxN),
        )
    ]
    assert not without[["tpr", "realized_fpr"]].isna().any(axis=None)
    names = ["fpr", "strategy", "tpr", "realized_fpr", "in_cells", "out_cells"]
    pd.testing.assert_frame_equal(with_model[names], without[names])
    assert (with_model["left_out"] == without["left_out"] + 300).all()


def test_intervals_are_those_of_the_jackknife(folder: Path):
    table = pd.read_csv(folder / pooling.TABLE)
    jackknife = pd.read_parquet(folder / pooling.JACKKNIFE)
    key = ["fpr", "strategy", "oracle", "models"]
    for row in table[table["strategy"] != "per_model"].to_dict("records"):
        at = tuple(row[name] for name in key)
        values = jackknife[(jackknife[key] == [*at]).all(axis=1)]
        groups = 8 if row["models"] > 8 or row["oracle"] else 4
        value_A1xH1 = values.pivot(index="part", columns="half", values="tpr").to_numpy()
        assert value_A1xH1.shape == (1 + groups, 15)
        assert not np.isnan(value_A1xH1).any()
        assert value_A1xH1[0, 0] == pytest.approx(row["tpr"])
        margin = stats.jackknife_margin(value_A1xH1[:, None, :])
        assert row["tpr_low"] == pytest.approx(max(row["tpr"] - margin, 0), nan_ok=True)
        assert row["tpr_high"] == pytest.approx(min(row["tpr"] + margin, 1), nan_ok=True)
    assert table[table["strategy"] == "per_model"][["tpr_low", "tpr_high"]].isna().all(axis=None)


def test_parts_without_a_group_of_models_are_evaluated(world: SyntheticScores, folder: Path):
    part = 3  # without models 4 and 5
    used_M = np.arange(18) // 2 % 8 != part - 1
    kept = dataclasses.replace(
        world,
        loss_MxN=world.reference_MxN[used_M],
        member_MxN=world.reference_member_MxN[used_M],
        references=16,
    )
    _, standardized_MxN, _ = slow_scores(kept, 16, 16)
    member_MxN = kept.reference_member_MxN
    half_N = stats.HALVES_HxG[4, np.arange(SAMPLES) % 8]
    jackknife = pd.read_parquet(folder / pooling.JACKKNIFE)
    is_row = (jackknife["models"] == 18) & ~jackknife["oracle"] & (jackknife["part"] == part)
    is_row &= (jackknife["strategy"] == "standardized") & (jackknife["fpr"] == 0.1)
    for half, used_N in ((0, np.ones(SAMPLES, bool)), (5, half_N)):
        score_MxN, is_in_MxN = standardized_MxN[:, used_N], member_MxN[:, used_N]
        threshold = threshold_of(score_MxN, is_in_MxN, 0.1)
        [tpr] = jackknife[is_row & (jackknife["half"] == half)]["tpr"]
        assert tpr == pytest.approx((score_MxN >= threshold)[is_in_MxN].mean())


def test_vulnerability_of_each_sample_equals_a_slow_reference(world: SyntheticScores, folder: Path):
    table = pd.read_parquet(folder / pooling.VULNERABILITY)
    loss_MxN, member_MxN = world.reference_MxN.astype(float), world.reference_member_MxN
    _, standardized_MxN, count_MxN = slow_scores(world, 18, 18)
    called_MxN = standardized_MxN >= np.sqrt(1 + 1 / count_MxN) * scipy.stats.t.isf(
        0.1, count_MxN - 1
    )
    order_share = json.loads((folder / "pooling.json").read_text())["order_share"]
    assert 0 < order_share <= 1
    assert table["id"].tolist() == [*range(SAMPLES)]
    for n in range(0, SAMPLES, 7):
        row, is_in = table.iloc[n], member_MxN[:, n]
        mean_in, mean_out = loss_MxN[is_in, n].mean(), loss_MxN[~is_in, n].mean()
        sd_in, sd_out = loss_MxN[is_in, n].std(ddof=1), loss_MxN[~is_in, n].std(ddof=1)
        assert row["gap"] == pytest.approx((mean_out - mean_in) / sd_out)
        assert row["sd_ratio"] == pytest.approx(sd_in / sd_out)
        assert row["tpr"] == pytest.approx(called_MxN[is_in, n].mean())
        assert row["fpr"] == pytest.approx(called_MxN[~is_in, n].mean())
        assert (row["in_models"], row["out_models"]) == (is_in.sum(), (~is_in).sum())
        quantile = scipy.stats.norm.isf(0.1)
        gaussian = scipy.stats.norm.cdf((mean_out - mean_in - quantile * sd_out) / sd_in)
        assert row["tpr_gaussian"] == pytest.approx(gaussian)
        more = np.sqrt(order_share + (1 - order_share) / 0.5)
        corrected = scipy.stats.norm.cdf(
            (mean_out - mean_in) / (more * sd_in) - quantile * sd_out / sd_in
        )
        assert row["tpr_gaussian_population"] == pytest.approx(corrected)


def test_false_positive_rates_of_samples_on_other_targets(
    world: SyntheticScores, folder: Path, tmp_path: Path
):
    assert not (folder / pooling.SAMPLE_FPR).exists()  # no targets
    run(world, dataclasses.replace(C, references=12, targets=4), tmp_path)
    table = pd.read_csv(tmp_path / pooling.SAMPLE_FPR)
    loss_MxN, member_MxN = world.reference_MxN.astype(float), world.reference_member_MxN
    references, targets = (loss_MxN[4:12], member_MxN[4:12]), (loss_MxN[:4], member_MxN[:4])
    out_MxN = np.where(references[1], np.nan, references[0])
    with warnings.catch_warnings(action="ignore"):  # samples without OUT losses
        mean_N, sd_N = np.nanmean(out_MxN, axis=0), np.nanstd(out_MxN, axis=0, ddof=1)
    standardized_TxN, count_N = (mean_N - targets[0]) / sd_N, (~references[1]).sum(axis=0)
    score = {"naive": stats.lira(targets[0], *references), "standardized": standardized_TxN}
    score["standardized_predictive"] = standardized_TxN
    for strategy, fpr in itertools.product(score, FPRS):
        rows = table[(table["strategy"] == strategy) & (table["fpr"] == fpr)]
        score_TxN = score[strategy]
        threshold = (
            np.sqrt(1 + 1 / np.maximum(count_N, 1)) * scipy.stats.t.isf(fpr, count_N - 1)
            if strategy == "standardized_predictive"
            else threshold_of(score_TxN, targets[1], fpr)
        )
        called_N = ((score_TxN >= threshold) & ~targets[1]).sum(axis=0)
        known_TxN = ~targets[1] & ~np.isnan(score_TxN)
        pairs = collections.Counter(zip(known_TxN.sum(axis=0), called_N, strict=True))
        actual = rows.set_index(["nonmember_models", "called"])["samples"].to_dict()
        assert actual == {pair: n for pair, n in pairs.items() if pair[0] > 0}
    assert {*table["strategy"]} == {*score}
    assert sorted({*table["fpr"]}) == [*FPRS]


def test_reasons_why_there_are_no_tables(world: SyntheticScores, tmp_path: Path):
    run(world, dataclasses.replace(C, references=6), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pooling.json"]
    reason = json.loads((tmp_path / "pooling.json").read_text())["reason"]
    assert re.match(r"6 references\b.*\b8\b", reason)
    run(world, dataclasses.replace(C, fprs=(0.0, 1.0), focus_fpr=1.0), tmp_path)
    reason = json.loads((tmp_path / "pooling.json").read_text())["reason"]
    assert "attack.fprs" in reason
    run(world, dataclasses.replace(C, leave_one_out=False), tmp_path / "other")
    assert [*(tmp_path / "other").iterdir()] == []


def test_without_scores_of_nonmembers_there_are_no_rates():
    member_MxN = np.arange(200).reshape(10, 20) % 3 == 0
    score_MxN = np.where(member_MxN, 1.0, np.nan)
    grid = pooling.ScoreGrid(score_MxN, score_MxN, np.full((10, 20), 5), member_MxN)
    table = pooling.evaluate(grid, [*FPRS])
    assert (table["in_cells"] == member_MxN.sum()).all()
    assert table[["tpr", "realized_fpr"]].isna().all(axis=None)


def test_few_samples_have_rates_without_intervals(tmp_path: Path):
    # Some halves of 4 samples are empty.
    c = dataclasses.replace(C, references=8, fprs=(0.3,), focus_fpr=0.3)
    world = write_scores(tmp_path, c, 4, design="balanced")
    run(world, c, tmp_path / "tables")
    table = pd.read_csv(tmp_path / "tables" / pooling.TABLE)
    assert table["samples"].eq(4).all()
    # No model has the 4 non-members that an FPR of 0.3 needs, but all models together do.
    assert table["tpr"].isna().tolist() == table["strategy"].eq("per_model").tolist()
    assert table[["tpr_low", "tpr_high"]].isna().all(axis=None)


def test_all_samples_replace_the_first_ones_where_all_models_are_used(
    world: SyntheticScores, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pooling, "_STUDY_SAMPLES", 64)
    monkeypatch.setattr(pooling, "_STEP_SAMPLES", 60)
    run(world, dataclasses.replace(C, references=10), tmp_path)
    table = pd.read_csv(tmp_path / pooling.TABLE)
    assert {*table[table["models"] == 10]["samples"]} == {SAMPLES}
    assert {*table[table["models"] == 8]["samples"]} == {64}
    inputs = world.reference_MxN[:10], world.reference_member_MxN[:10]
    design = stats.design_of(inputs[1])
    grid = pooling.compute_scores(*inputs, np.arange(SAMPLES), LIRA, design)
    expected, columns = pooling.evaluate(grid, [*FPRS]), ["tpr", "realized_fpr", "in_cells"]
    for oracle in (False, True):
        rows = table[(table["models"] == 10) & (table["oracle"] == oracle)]
        np.testing.assert_allclose(rows[columns], expected[columns], rtol=1e-12)
