"""The membership advantage of attacks, compared with estimates from whole arrays, sample by sample."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_scores import array_scores
from synthetic_scores import SMALL, AttackRun

from analysis.experiments.mace import advantage
from lm_mia import seeds, stats


def rows_of(
    score_TxN: np.ndarray,
    member_TxN: np.ndarray,
    folder: Path,
    priors: tuple[float, ...] = (0.5, 0.1),
    document_N: np.ndarray | None = None,
) -> list[dict[Any, Any]]:
    with array_scores(score_TxN, member_TxN, folder, document_N=document_N) as scores:
        return advantage.membership_advantage(scores, priors=priors).to_dict("records")


def slow_estimates(score_N: np.ndarray, member_N: np.ndarray, prior: float) -> dict[str, float]:
    """Returns the numbers of one target, from functions that evaluate each sample."""
    order_N = seeds.permutation(0, "advantage/halves", len(score_N))
    fitted_N = np.zeros(len(score_N), bool)
    for class_N in (member_N, ~member_N):
        ids = [i for i in order_N if class_N[i] and not np.isnan(score_N[i])]
        fitted_N[ids[: -(-len(ids) // 2)]] = True
    held_out_N = ~fitted_N & ~np.isnan(score_N)
    per_class = int(min((fitted_N & member_N).sum(), (fitted_N & ~member_N).sum()))
    bins = stats.num_bins(per_class)
    bin_N = stats.quantile_bins(score_N, score_N[fitted_N], bins)
    ratio = stats.log_ratio_bins(bin_N[fitted_N], member_N[fitted_N], bin_N[held_out_N], bins)
    f, low, high = (
        stats.privacy_loss(x, prior) for x in (ratio.value_N, ratio.low_N, ratio.high_N)
    )
    member_H = member_N[held_out_N]
    result = stats.held_out_advantage(f, member_H, prior)
    ends = (stats.plug_in_advantage(end, member_H, prior) for end in stats.absolute_ends(low, high))
    numbers = {"held_out": result.value, "held_out_low": result.low, "held_out_high": result.high}
    numbers["plug_in"] = stats.plug_in_advantage(f, member_H, prior)
    return numbers | dict(zip(("pointwise_low", "pointwise_high"), ends, strict=True))


def check(row: Mapping[Any, Any], score_TxN: np.ndarray, member_TxN: np.ndarray) -> None:
    of_targets = [
        slow_estimates(score_N, member_N, row["prior"])
        for score_N, member_N in zip(score_TxN, member_TxN, strict=True)
    ]
    for name, value in of_targets[0].items():
        assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-14), name
    for name in ("held_out", "plug_in"):
        value_T = np.array([numbers[name] for numbers in of_targets])
        assert row[f"{name}_mean"] == pytest.approx(value_T.mean(), rel=1e-12, abs=1e-14)
        assert row[f"{name}_std"] == pytest.approx(value_T.std(), rel=1e-9, abs=1e-14)
    assert row["targets"] == len(score_TxN)
    assert row["left_out"] == np.isnan(score_TxN).sum(axis=1).max()
    assert row["baseline"] == pytest.approx(abs(1 - 2 * row["prior"]))


def test_rows_are_those_of_whole_arrays(tmp_path: Path):
    rng = np.random.default_rng(0)
    member_TxN = rng.random((5, 400)) < 0.5
    score_TxN = rng.normal(size=(5, 400)) + member_TxN
    score_TxN[1] = np.round(score_TxN[1])  # with ties
    score_TxN[2, :60] = np.nan
    score_TxN[3, :20] = np.inf * (2 * member_TxN[3, :20] - 1)
    score_TxN[4] = 1.0
    # The first target is the one with intervals.
    for order in ([0, 1, 2, 3, 4], [1, 0], [2, 0], [3, 0], [4, 0]):
        rows = rows_of(score_TxN[order], member_TxN[order], tmp_path)
        assert [row["prior"] for row in rows] == [0.5, 0.1]
        for row in rows:
            check(row, score_TxN[order], member_TxN[order])


def test_scores_are_only_compared(tmp_path: Path):
    rng = np.random.default_rng(1)
    member_TxN = rng.random((2, 200)) < 0.5
    score_TxN = rng.normal(size=(2, 200)) + member_TxN
    same = rows_of(np.exp(score_TxN), member_TxN, tmp_path)
    assert same == rows_of(score_TxN, member_TxN, tmp_path)


def test_shuffled_labels_show_the_bias_of_the_plug_in(tmp_path: Path):
    rng = np.random.default_rng(2)
    member_TxN = np.repeat(rng.random((1, 4096)) < 0.5, 2, axis=0)
    score_TxN = rng.normal(size=(2, 4096)) + 3 * member_TxN
    row, at_tenth = rows_of(score_TxN, member_TxN, tmp_path)
    assert row["held_out"] > 0.8
    bias = np.sqrt(row["bins"] / (np.pi * 1024))
    assert row["shuffled_plug_in"] == pytest.approx(bias, rel=0.25)
    assert abs(row["shuffled_held_out"]) < 4 * np.sqrt(2 / 2048 / 10)
    assert at_tenth["shuffled_held_out"] == pytest.approx(0.8)


def test_shuffled_counts_have_the_distribution_of_shuffled_labels():
    # 6 samples in bins of 1, 2 and 3 with 2 members: the mean and the covariance of the members in each bin.
    total_J = np.array([1, 2, 3])
    count_2xJ = np.array([[0, 1, 1], [1, 1, 2]])
    counts = advantage._BinCounts(count_2xJ, count_2xJ, 0)
    member_RxJ = np.array([advantage._shuffled(counts, s).fitted_2xJ[0] for s in range(3000)])
    labels = np.repeat(np.arange(3), total_J)
    rng = np.random.default_rng(3)
    slow_RxJ = np.array(
        [np.bincount(rng.permutation(labels)[:2], minlength=3) for _ in range(3000)]
    )
    np.testing.assert_allclose(member_RxJ.mean(axis=0), total_J / 3, atol=0.05)
    np.testing.assert_allclose(np.cov(member_RxJ.T), np.cov(slow_RxJ.T), atol=0.04)
    np.testing.assert_array_equal(member_RxJ.sum(axis=1), 2)


def test_pieces_of_documents_have_no_intervals(tmp_path: Path):
    member_TxN = np.arange(60)[None] % 2 == 0
    score_TxN = member_TxN + 0.01 * np.arange(60)
    [row] = rows_of(score_TxN, member_TxN, tmp_path, (0.5,), np.arange(60))
    assert row["held_out"] > 0.5
    assert np.isnan([row["held_out_low"], row["held_out_high"]]).all()


def test_pieces_of_a_document_are_in_one_half(tmp_path: Path):
    # The pieces of a document have nearly equal scores. If some of them were fitted and the others held out, documents
    # would be recognized, and the mean without any leakage would be 0.42.
    rng = np.random.default_rng(0)
    targets, pieces = 100, 20
    document_N = np.repeat(np.arange(24), pieces)
    member_TxN = rng.permuted(np.arange(24) < 12 + np.zeros((targets, 1)), axis=1)[:, document_N]
    score_TxN = rng.normal(size=(targets, 24))[:, document_N]
    score_TxN += 0.01 * rng.normal(size=score_TxN.shape)
    [row] = rows_of(score_TxN, member_TxN, tmp_path, (0.5,), document_N)
    assert abs(row["held_out_mean"]) < 3 * row["held_out_std"] / targets**0.5
    # All samples are of one document, so nothing is held out.
    [row] = rows_of(score_TxN, member_TxN, tmp_path, (0.5,), 0 * document_N)
    assert np.isnan(row["held_out_mean"])


def test_too_few_scores_of_a_class(tmp_path: Path):
    member_TxN = np.arange(20)[None] < 10
    score_TxN = np.where(np.arange(20) < 9, np.nan, 1.0)[None]  # One member has a score.
    [row] = rows_of(score_TxN, member_TxN, tmp_path, (0.5,))
    assert np.isnan([row["held_out"], row["plug_in_mean"], row["shuffled_plug_in"]]).all()
    assert row["left_out"] == 9


def test_advantage_csv(attacked: AttackRun):
    table = attacked.csv(advantage.ADVANTAGE_TABLE.file)
    assert table["attack"].tolist() == np.repeat(SMALL.attacks, 2).tolist()
    assert table["prior"].tolist() == [0.5, 0.1] * len(SMALL.attacks)
    assert {*table["references"]} == {0, 12}
    target_TxN, member_N = attacked.scores.target_TxN, attacked.scores.member_N
    member_TxN = np.broadcast_to(member_N, target_TxN.shape)
    rows = table[table["attack"] == "loss"].to_dict("records")
    assert [row["references"] for row in rows] == [0, 0]
    for row in rows:
        check(row, -target_TxN, member_TxN)
