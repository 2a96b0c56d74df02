"""How strong each attack is: numbers with intervals, compared with computations on the parts of whole arrays."""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from array_scores import array_scores

from analysis.experiments.recipe import strength
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.evaluations import Scores
from lm_mia.errors import Unavailable

FPRS, FOCUS, BAND = (0.02, 0.05, 0.1, 0.2), 0.05, (0.0, 0.1)
SETTINGS: dict[str, Any] = {"band": BAND, "focus_fpr": FOCUS, "fprs": FPRS}


def draw(
    models: int, samples: int = 400, gap: float = 1.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns score_TxN, of which half of the variance is that of samples, and member_N of replicas."""
    rng = np.random.default_rng(seed)
    member_N = rng.permuted(np.arange(samples) < samples // 2)
    noise_TxN = rng.normal(size=samples) + rng.normal(size=(models, samples))
    return noise_TxN / math.sqrt(2) + gap * member_N, member_N


def parts_of(scores: Scores) -> pd.DataFrame:
    return strength.strength_parts(scores, alpha=0.05, **SETTINGS)


def evaluate(
    score_TxN: np.ndarray, member: np.ndarray, folder: Path, **how: Any
) -> tuple[Any, Any, Any]:
    """Returns attacked_models.csv, strength_parts.parquet and headline_roc.csv of one attack."""
    member_TxN = np.broadcast_to(member, score_TxN.shape)
    with array_scores(score_TxN, member_TxN, folder, **how) as scores:
        return (
            strength.attacked_models(scores, **SETTINGS),
            parts_of(scores),
            strength.headline_roc(scores),
        )


def summarize(
    attacks: Mapping[str, tuple[pd.DataFrame, ...]],
    headline: str,
    flips: pd.DataFrame | None = None,
    focus_fpr: float = FOCUS,
) -> Any:
    """Returns strength.csv of the tables of several attacks, by attack and metric."""
    tables = {
        table.file: pd.concat(
            [found[i].assign(attack=name, references=0) for name, found in attacks.items()]
        )
        for i, table in enumerate((strength.MODELS, strength.PARTS))
    }

    def table(name: str) -> pd.DataFrame:
        if name == "attack_flips.csv" and flips is None:
            raise Unavailable("there are no replicas")
        return flips if name == "attack_flips.csv" and flips is not None else tables[name]

    written: dict[str, pd.DataFrame] = {}
    view = cast(Any, SimpleNamespace(table=table))
    strength.strength(
        view, cast(Any, written.__setitem__), headline=headline, focus_fpr=focus_fpr, fprs=FPRS
    )
    [found] = written.values()
    assert {*found} == {*strength.STRENGTH.column_names}
    return found.set_index(["attack", "metric"])


def found_members(score_TxN: np.ndarray, member_N: np.ndarray) -> np.ndarray:
    """Returns whether each model finds each member."""
    threshold_T = [stats.threshold_at_fpr(s[~member_N & ~np.isnan(s)], FOCUS) for s in score_TxN]
    return (score_TxN >= np.array(threshold_T)[:, None])[:, member_N]


def slow_missed(found_BxM: np.ndarray, kept: list[int], seekers: list[int]) -> float:
    """Returns the share of hits of the kept replicas that another one of some replicas misses.

    Where one of two replicas is left, it is the mean of this share and of that of both (`stats.missed_share`).
    """
    if len(kept) == 1 and len(found_BxM) == 2:
        return (
            _slow_missed(found_BxM, kept, seekers) + _slow_missed(found_BxM, [0, 1], [0, 1])
        ) / 2
    return _slow_missed(found_BxM, kept, seekers)


def _slow_missed(found_BxM: np.ndarray, kept: list[int], seekers: list[int]) -> float:
    pairs = [(a, b) for a, b in itertools.product(kept, seekers) if a != b]
    hits = sum(found_BxM[a].sum() for a, _ in pairs)
    return sum((found_BxM[a] & ~found_BxM[b]).sum() for a, b in pairs) / hits


@pytest.mark.parametrize("replicas", [2, 3, 10])
def test_parts_of_replicas_against_a_slow_computation(replicas: int, tmp_path: Path):
    score_TxN, member_N = draw(replicas)
    score_TxN[0, 7] = score_TxN[1, 11] = np.nan
    document_N = np.arange(400) // 2
    models, parts, _ = evaluate(score_TxN, member_N, tmp_path, document_N=document_N)
    groups = min(replicas, 8)
    assert len(parts) == (1 + groups) * 15
    assert models["left_out"].tolist() == [1, 1, *[0] * (replicas - 2)]
    group_N = stats.sample_groups(document_N)
    rows = parts.set_index(["models", "samples"])
    for left_out, half in itertools.product(range(1 + groups), (0, 1, 14)):
        used_N = stats.HALVES_HxG[half - 1, group_N] if half else np.ones(400, bool)
        kept = [b for b in range(replicas) if b % groups != left_out - 1]
        points = stats.tpr_at_fpr(score_TxN[kept][:, used_N], member_N[used_N], [FOCUS, 0.2])
        row: Any = rows.loc[(left_out, half)]
        assert row["auc"] == pytest.approx(points.auc_T.mean())
        assert [row["tpr"], row["second_tpr"]] == pytest.approx(points.tpr_TxF.mean(axis=0))
        both_N = used_N & ~np.isnan(score_TxN).any(axis=0)
        found_BxM = found_members(score_TxN[:, both_N], member_N[both_N])
        seekers = kept if len(kept) > 1 else [0, 1]
        assert row["missed"] == pytest.approx(slow_missed(found_BxM, kept, seekers))


def test_parts_of_two_replicas_are_about_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of large populations, the first samples; the members among the others are much easier to find."""
    for module in (study_inputs, strength.decision_jackknife):
        name = "FIRST_SAMPLES" if module is study_inputs else "_SAMPLES"
        monkeypatch.setattr(module, name, 200)
    score_TxN, member_N = draw(2)
    score_TxN[:, 200:] += 3 * member_N[200:]
    _, parts, _ = evaluate(score_TxN, member_N, tmp_path)
    found_BxM = found_members(score_TxN[:, :200], member_N[:200])
    missed = parts[parts["samples"] == 0]["missed"].tolist()
    expected = [slow_missed(found_BxM, kept, [0, 1]) for kept in ([0, 1], [1], [0])]
    assert missed == pytest.approx(expected)


def test_numbers_and_intervals_of_the_table(tmp_path: Path):
    score_TxN, member_N = draw(4)
    other_TxN = score_TxN + np.random.default_rng(1).normal(size=score_TxN.shape)
    found = {
        "strong": evaluate(score_TxN, member_N, tmp_path),
        "weak": evaluate(other_TxN, member_N, tmp_path),
    }
    table: Any = summarize(found, "folder/file.py:strong")
    assert [*table.index] == [*itertools.product(found, ("tpr", "second_tpr", "auc", "missed"))]
    value_A1xH1 = {
        (attack, name): tables[1][name].to_numpy().reshape(5, 15)
        for attack, tables in found.items()
        for name in ("tpr", "second_tpr", "auc", "missed")
    }
    for (attack, metric), row in table.iterrows():
        own_A1xH1 = value_A1xH1[attack, metric]
        assert row["value"] == own_A1xH1[0, 0]
        ends = stats.share_interval(own_A1xH1, count=200)
        assert (row["low"], row["high"]) == pytest.approx(ends)
        assert row["low"] < row["value"] < row["high"]
        names = ["minus_headline", "minus_headline_low", "minus_headline_high"]
        if attack == "strong":
            assert row[names].isna().all()
        else:
            other_A1xH1 = value_A1xH1["strong", metric]
            ends = stats.difference_interval(own_A1xH1, other_A1xH1)
            expected = own_A1xH1[0, 0] - other_A1xH1[0, 0], *ends
            assert tuple(row[names]) == pytest.approx(expected)
    assert table.loc[("weak", "auc"), "minus_headline_high"] < 0
    fprs = table["fpr"].to_numpy().reshape(2, 4)
    np.testing.assert_array_equal(fprs, [[FOCUS, 0.2, np.nan, FOCUS]] * 2)
    assert (table["models"] == 4).all()
    assert (table["left_out"] == 0).all()
    # Without the headline attack, which may have no scores, there are no differences.
    assert summarize(found, "other")["minus_headline"].isna().all()


def test_missed_hits_are_those_among_all_samples(tmp_path: Path):
    """The parts are of the first samples; the interval is around the number of all samples."""
    found = {"a": evaluate(*draw(4), tmp_path), "b": evaluate(*draw(4, seed=1), tmp_path)}
    flips = pd.DataFrame(
        {"attack": ["a", "a"], "fpr": [FOCUS, 0.2], "tpr_mean": 0.4, "member_flip_rate": 0.1}
    )
    table: Any = summarize(found, "a", flips)
    row, other = table.loc[("a", "missed")], table.loc[("b", "missed")]
    assert row["value"] == pytest.approx(0.125)
    assert row["low"] < 0.125 < row["high"]
    assert other["minus_headline"] == pytest.approx(other["value"] - 0.125)
    assert other["minus_headline_low"] < other["minus_headline"] < other["minus_headline_high"]
    flips = flips.assign(member_flip_rate=0.8)  # all hits are missed
    assert summarize(found, "a", flips).loc[("a", "missed"), "value"] == 1


@pytest.mark.parametrize("replicas", [False, True])
def test_noise_finds_as_many_members_as_its_rate(replicas: bool, tmp_path: Path):
    rng = np.random.default_rng(0)
    member_N = rng.permuted(np.arange(4000) < 2000)
    found = evaluate(rng.normal(size=(6, 4000)), member_N, tmp_path, replicas=replicas)
    table: Any = summarize({"loss": found}, "loss").loc["loss"]
    for metric, expected in (("tpr", FOCUS), ("second_tpr", 0.2), ("auc", 0.5)):
        row = table.loc[metric]
        assert row["low"] < expected < row["high"]
        assert row["value"] == pytest.approx(expected, abs=0.02)
    if replicas:
        assert table.loc["missed", "low"] < 1 - FOCUS < table.loc["missed", "high"]
        assert table.loc["missed", "value"] == pytest.approx(1 - FOCUS, abs=0.02)
    else:
        assert table.loc["missed", ["value", "low", "high"]].isna().all()
    roc = found[2]
    assert (roc["tpr"] - roc["fpr"]).abs().max() < 0.03


def test_targets_have_members_of_their_own(tmp_path: Path):
    rng = np.random.default_rng(0)
    member_TxN = rng.random((3, 300)) < 0.5
    score_TxN = rng.normal(size=(3, 300)) + member_TxN
    models, parts, _ = evaluate(score_TxN, member_TxN, tmp_path, replicas=False)
    points = stats.tpr_at_fpr(score_TxN, member_TxN, [FOCUS])
    np.testing.assert_allclose(models["auc"], points.auc_T)
    np.testing.assert_allclose(models["tpr"], points.tpr_TxF[:, 0])
    assert models["model"].tolist() == ["reference-00", "reference-01", "reference-02"]
    assert models["members"].tolist() == member_TxN.sum(axis=1).tolist()
    assert parts["auc"][0] == pytest.approx(points.auc_T.mean())


def test_one_target(tmp_path: Path):
    score_TxN, member_N = draw(1)
    found = evaluate(score_TxN, member_N, tmp_path, replicas=False)
    assert len(found[1]) == 15
    row: Any = summarize({"loss": found}, "loss").loc[("loss", "tpr")]
    assert row["low"] < row["value"] < row["high"]
    assert row["models"] == 1


def test_rates_that_no_nonmember_shows_are_unknown(tmp_path: Path):
    """Ten non-members have a score: none of them is a false positive at the focus rate."""
    score_TxN, member_N = draw(3)
    score_TxN[:, np.flatnonzero(~member_N)[10:]] = np.nan
    found = evaluate(score_TxN, member_N, tmp_path)
    table: Any = summarize({"loss": found}, "loss").loc["loss"]
    assert table.loc[["tpr", "missed"], ["value", "low", "high"]].isna().all(axis=None)
    assert table.loc["auc", "value"] > 0.7
    assert table["left_out"].tolist() == [190] * 4


def test_no_member_is_found(tmp_path: Path):
    score_TxN, member_N = draw(3)
    found = evaluate(np.where(member_N, -9.0, score_TxN), member_N, tmp_path)
    table: Any = summarize({"loss": found}, "loss").loc["loss"]
    assert table["value"].tolist()[:3] == [0, 0, 0]
    assert table["low"].tolist()[:3] == [0, 0, 0]
    assert 0 < table.loc["tpr", "high"] < 0.1
    assert table.loc["missed", ["value", "low", "high"]].isna().all()


def test_tied_scores_are_not_separated(tmp_path: Path):
    score_TxN, member_N = draw(3)
    found = evaluate(np.zeros_like(score_TxN), member_N, tmp_path)
    table: Any = summarize({"loss": found}, "loss").loc["loss"]
    assert table["value"].tolist()[:3] == [0, 0, 0.5]
    assert (found[2]["tpr"].iloc[:-1] == 0).all()


def test_attacks_without_scores_of_both_classes(tmp_path: Path):
    score_TxN, member_N = draw(3)
    score_TxN[1, member_N] = np.nan
    without = evaluate(score_TxN, member_N, tmp_path)
    assert without[1].empty
    assert without[2].empty
    assert [*without[2]] == ["fpr", "tpr", "low", "high"]
    with pytest.raises(Unavailable):
        summarize({"loss": without}, "loss")
    found = {"loss": without, "other": evaluate(*draw(3), tmp_path)}
    assert {*summarize(found, "loss").reset_index()["attack"]} == {"other"}


def test_points_of_the_roc_curve(tmp_path: Path):
    score_TxN, member_N = draw(3)
    score_TxN[:, np.flatnonzero(~member_N)[:50]] = np.nan
    _, parts, roc = evaluate(score_TxN, member_N, tmp_path)
    assert len(roc) == 40
    assert roc["fpr"].iloc[[0, -1]].tolist() == [1 / 150, 1]
    points = stats.tpr_at_fpr(score_TxN, member_N, roc["fpr"])
    np.testing.assert_allclose(roc["tpr"], points.tpr_TxF.mean(axis=0))
    has_interval = roc["fpr"] * 150 > 10 - 1e-6
    assert roc["low"].notna().tolist() == has_interval.tolist()
    shown = roc[has_interval]
    assert ((shown["low"] <= shown["tpr"]) & (shown["tpr"] <= shown["high"])).all()
    # All samples are called members at a rate of 1, whatever their scores.
    assert roc.iloc[-1].tolist() == [1, 1, 1, 1]
    assert parts["tpr"].notna().all()


@pytest.mark.parametrize(("members", "nonmembers"), [(1, 300), (300, 1), (1, 1)])
def test_a_class_of_one_sample(members: int, nonmembers: int, tmp_path: Path):
    """A half of the samples without it has no rates, so there is no interval."""
    member_N = np.arange(members + nonmembers) < members
    score_TxN = np.random.default_rng(0).normal(size=(3, member_N.size)) + member_N
    found = evaluate(score_TxN, member_N, tmp_path)
    table: Any = summarize({"loss": found}, "loss").loc["loss"]
    assert table.loc["auc", "value"] == pytest.approx(stats.auc(score_TxN, member_N).auc_T.mean())
    assert table["low"].isna().all()
    assert found[2]["fpr"].is_unique
    assert len(found[2]) == (40 if nonmembers > 1 else 1)


@pytest.mark.parametrize(
    ("focus", "fprs", "second"),
    [
        (0.01, (0.001, 0.01, 0.02, 0.05, 0.1), 0.05),
        (0.1, (0.1, 0.2, 0.5, 1.0), 0.5),
        (0.05, (0.01, 0.05, 0.5), 0.05),
        (0.06, (0.06, 0.3), 0.3),  # 5 times as high but for rounding
    ],
)
def test_second_rate(focus: float, fprs: tuple[float, ...], second: float):
    assert strength.second_rate(focus, fprs) == second


@pytest.mark.montecarlo
def test_the_interval_of_missed_hits_covers_its_expectation(tmp_path: Path):
    rounds = 60

    def repeated(function: Callable[[int], Any]) -> list[Any]:
        return [function(seed) for seed in range(rounds)]

    tables = repeated(
        lambda seed: summarize({"loss": evaluate(*draw(5, 600, seed=seed), tmp_path)}, "loss").loc[
            ("loss", "missed")
        ]
    )
    truth = np.mean([table["value"] for table in tables])
    covered = np.mean([table["low"] <= truth <= table["high"] for table in tables])
    assert covered > 0.9
