"""The tables of decisions against slow counting over whole arrays."""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest
from slow_case import slow_case
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores

from lm_mia import stats
from lm_mia.attacks import decisions, inputs, score_matrix

# Enough replicas that every flip bin has samples.
MANY = dataclasses.replace(
    SMALL, replicas=40, variance="pooled", attacks=("lira_online",), bootstraps=0, fprs=(0.1, 0.3)
)
BINS = ["very stable", "low/mid", "mid/high", "very unstable", "coin flip"]


@dataclasses.dataclass(frozen=True, eq=False)
class Slow:
    """Results of an attack from whole arrays, by code that is independent of the package."""

    run: AttackRun

    @functools.cached_property
    def score_TxN(self) -> np.ndarray:
        world, c = self.run.scores, self.run.c
        references = world.reference_MxN, world.reference_member_MxN
        return stats.lira(world.target_TxN, *references, variance=c.variance)

    @property
    def member_N(self) -> np.ndarray:
        return self.run.scores.member_N

    @property
    def scored_N(self) -> np.ndarray:
        return np.asarray(~np.isnan(self.score_TxN).any(axis=0))

    @property
    def replicas(self) -> int:
        return len(self.score_TxN)

    @functools.cached_property
    def called_TxC(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each target: scores of non-members, and the number of them at or above each."""
        out_TxN = [score_N[~self.member_N] for score_N in self.score_TxN]
        outs = [out_N[~np.isnan(out_N)] for out_N in out_TxN]
        return [(out_C, (out_C[:, None] >= out_C).sum(axis=0)) for out_C in outs]

    def threshold(self, t: int, fpr: float) -> float:
        """Returns the lowest non-member score that at most this FPR reaches, or -inf for an FPR of 1."""
        out_C, called_C = self.called_TxC[t]
        if fpr == 1:
            return -math.inf
        return min(out_C[called_C <= fpr * len(out_C) + 1e-9], default=math.inf)

    @functools.cache  # noqa: B019, one entry per rate
    def decisions(self, fpr: float) -> np.ndarray:
        """Returns decision_TxN, False without a score."""
        threshold_T = np.array([self.threshold(t, fpr) for t in range(self.replicas)])
        return self.score_TxN >= threshold_T[:, None]

    def votes_at_vertex(self, fpr: float) -> np.ndarray:
        """Returns the votes at the last vertex of each ROC curve: above all non-members that must not be called."""
        below_T = [
            max(out_C[called_C > fpr * len(out_C) + 1e-9], default=-math.inf)
            for out_C, called_C in self.called_TxC
        ]
        votes_N = (self.score_TxN > np.array(below_T)[:, None]).sum(axis=0)
        return np.where(self.scored_N, votes_N, np.nan)

    def votes(self, fpr: float) -> np.ndarray:
        return np.where(self.scored_N, self.decisions(fpr).sum(axis=0), np.nan)

    def bin(self, votes: float) -> int:
        k_low, _ = stats.coin_flip_cutoff(self.replicas, self.run.c.alpha)
        if k_low <= votes <= self.replicas - k_low:
            return 4
        return sum(self.flip(votes) >= edge - 1e-12 for edge in (0.1, 0.25, 0.4))

    def flip(self, votes: float) -> float:
        agree = self.replicas * (self.replicas - 1)
        return 2 * votes * (self.replicas - votes) / agree


@pytest.fixture(scope="module", params=["few", "many"])
def slow(
    request: pytest.FixtureRequest, attacked: AttackRun, tmp_path_factory: pytest.TempPathFactory
) -> Slow:
    if request.param == "few":
        return Slow(attacked)
    folder = tmp_path_factory.mktemp("many")
    scores = dataclasses.replace(write_scores(folder, MANY, 300, "balanced"), pieces=3)
    return Slow(run_attacks(scores, MANY, folder / "tables"))


def assert_close(table: pd.DataFrame, column: str, expected: Any) -> None:
    np.testing.assert_allclose(table[column], expected, rtol=1e-11, atol=1e-13, err_msg=column)


def test_error_rates(slow: Slow):
    table, scored_N = slow.run.csv("error_rates.csv"), slow.scored_N
    assert (table.attack == "lira_online").all()
    assert table.fpr.tolist() == list(slow.run.c.fprs)
    assert (table.replicas == slow.replicas).all()
    assert (table.left_out == (~scored_N).sum()).all()
    for f, fpr in enumerate(slow.run.c.fprs):
        decision_TxN, row = slow.decisions(fpr), table.iloc[[f]]
        tpr_T = decision_TxN[:, slow.member_N & scored_N].mean(axis=1)
        fpr_T = decision_TxN[:, ~slow.member_N & scored_N].mean(axis=1)
        right_T = (decision_TxN == slow.member_N)[:, scored_N].mean(axis=1)
        for name, rate_T in {
            "tpr": tpr_T, "realized_fpr": fpr_T, "acc": right_T, "fnr": 1 - tpr_T, "tnr": 1 - fpr_T,
            "balanced_acc": (tpr_T + 1 - fpr_T) / 2,
        }.items():  # fmt: skip
            assert_close(row, f"{name}_mean", rate_T.mean())
            assert_close(row, f"{name}_std", rate_T.std())
        assert (fpr_T <= fpr).all()


def test_thresholds(slow: Slow):
    table, fprs = slow.run.csv("thresholds.csv"), slow.run.c.fprs
    assert len(table) == slow.replicas * len(fprs)
    for row in table.to_dict("records"):
        t, fpr = row["order_seed"], row["fpr"]
        assert row["threshold"] == pytest.approx(slow.threshold(t, fpr), rel=1e-12)
        decision_N = slow.decisions(fpr)[t]
        assert row["tpr"] == pytest.approx(decision_N[slow.member_N & slow.scored_N].mean())
        called = decision_N[~slow.member_N & slow.scored_N].mean()
        assert row["realized_fpr"] == pytest.approx(called)


def test_samples(slow: Slow):
    table, c, world = slow.run.samples(), slow.run.c, slow.run.scores
    kinds = ("votes", "flip_rate", "p_value", "distance")
    names = [f"{kind}_{fpr:g}" for fpr in c.fprs for kind in kinds]
    assert table.columns.tolist() == [
        "id",
        "member",
        "tokens",
        "unk",
        "zlib_bytes",
        "tfidf",
        "prefix_group",
        *(("document", "piece") if world.pieces > 1 else ()),
        "score",
        "mean_score",
        "mean_posterior",
        "separation",
        *names,
    ]
    assert table.id.tolist() == list(range(len(slow.member_N)))
    assert table.member.tolist() == slow.member_N.tolist()
    assert table.tokens.tolist() == world.population.lengths_N.tolist()
    for name in ("unk", "zlib_bytes", "tfidf", "prefix_group"):
        assert table[name].tolist() == world.population.column(name).tolist()
    posterior_TxN = 1 / (1 + np.exp(-np.clip(slow.score_TxN, -700, 700)))
    assert_close(table, "score", slow.score_TxN[0])
    assert_close(table, "mean_score", slow.score_TxN.mean(axis=0))
    assert_close(table, "mean_posterior", posterior_TxN.mean(axis=0))
    g = stats.fit_gaussians(world.reference_MxN, world.reference_member_MxN, variance=c.variance)
    apart_N = (g.mean_out_N - g.mean_in_N) / np.sqrt((g.var_in_N + g.var_out_N) / 2)
    assert_close(table, "separation", apart_N)
    for fpr in c.fprs:
        votes_N = slow.votes(fpr)
        np.testing.assert_array_equal(table[f"votes_{fpr:g}"].astype(float), votes_N)
        assert_close(table, f"flip_rate_{fpr:g}", [slow.flip(v) for v in votes_N])
        tests = [v if np.isnan(v) else binomtest(int(v), slow.replicas).pvalue for v in votes_N]
        assert_close(table, f"p_value_{fpr:g}", tests)
        threshold_T = np.array([slow.threshold(t, fpr) for t in range(slow.replicas)])
        at_T = 1 / (1 + np.exp(-np.clip(threshold_T, -700, 700)))
        distance_N = np.abs(posterior_TxN - at_T[:, None]).mean(axis=0)
        np.testing.assert_allclose(table[f"distance_{fpr:g}"], distance_N, atol=1e-6)
    types = pq.read_schema(slow.run.folder / "samples.parquet")
    assert [str(types.field(n).type) for n in names[:4]] == ["int16", "double", "double", "float"]


def test_flip_shares(slow: Slow):
    table = slow.run.csv("flip_shares.csv")
    _, cutoff = stats.coin_flip_cutoff(slow.replicas, slow.run.c.alpha)
    most = slow.flip(slow.replicas // 2)
    assert table.replicas.unique().tolist() == [slow.replicas]
    assert table.left_out.unique().tolist() == [(~slow.scored_N).sum()]
    full = set()
    for fpr in slow.run.c.fprs:
        part = table[table.fpr == fpr]
        assert part.bin.tolist() == BINS
        edges = [min(edge, cutoff) for edge in (0, 0.1, 0.25, 0.4)] + [cutoff, most]
        np.testing.assert_allclose(part.low, edges[:-1])
        np.testing.assert_allclose(part.high, edges[1:])
        for kind, class_N in (("member", slow.member_N), ("nonmember", ~slow.member_N)):
            bins = [slow.bin(v) for v in slow.votes(fpr)[class_N & slow.scored_N]]
            counted = [bins.count(b) for b in range(5)]
            assert part[f"{kind}s"].tolist() == counted
            assert_close(part, f"{kind}_fraction", [n / len(bins) for n in counted])
            full |= {b for b, n in enumerate(counted) if n}
    assert full == ({0, 1, 2, 3, 4} if slow.replicas == 40 else {0, 4})


def test_coin_flip_shares_of_fewer_replicas(slow: Slow):
    """The shares of the first replicas, and the columns of all replicas as in flip_shares.csv."""
    table, c = slow.run.csv("flip_shares_by_replicas.csv"), slow.run.c
    few = slow.replicas < 40
    assert table.replicas.tolist() == ([slow.replicas] if few else [8, 16, 32, 40])
    assert (table.fpr == c.focus_fpr).all()
    decision_TxN = slow.decisions(c.focus_fpr)
    document_N = slow.run.scores.population.document_N
    is_wider = []
    for row in table.to_dict("records"):
        replicas = row["replicas"]
        k_low, cutoff = stats.coin_flip_cutoff(replicas, c.alpha)
        assert row["cutoff"] == pytest.approx(cutoff)
        scored_N = ~np.isnan(slow.score_TxN[:replicas]).any(axis=0)
        for name, class_N in (("member", slow.member_N), ("nonmember", ~slow.member_N)):
            vote_BxN = decision_TxN[:replicas, class_N & scored_N]
            votes_N, group_N = vote_BxN.sum(axis=0), document_N[class_N & scored_N] % 64
            is_coin_flip_K = np.abs(np.arange(replicas + 1) - replicas / 2) <= replicas / 2 - k_low
            assert row[f"{name}_fraction"] == pytest.approx(is_coin_flip_K[votes_N].mean())
            samples_K = np.bincount(votes_N, minlength=replicas + 1)
            called_RxK = [np.bincount(votes_N[v], minlength=replicas + 1) for v in vote_BxN]
            error = stats.mean_std_error(samples_K, called_RxK, is_coin_flip_K)
            samples = samples_K
            if slow.run.scores.pieces > 1:  # The few replicas are attacked on independent samples.
                samples = [
                    np.bincount(votes_N[group_N == g], minlength=replicas + 1) for g in range(64)
                ]
            error_of_table = stats.mean_std_error(samples, called_RxK, is_coin_flip_K)
            is_wider.append(error_of_table > error)
            assert row[f"{name}_fraction_se"] == pytest.approx(error_of_table)
            limits = stats.coin_flip_range(samples, called_RxK, c.alpha)
            assert row[f"{name}_fraction_127_low"] == pytest.approx(limits.low, abs=1e-9)
            assert row[f"{name}_fraction_127_high"] == pytest.approx(limits.high, abs=1e-9)
    assert any(is_wider) == (slow.run.scores.pieces > 1)
    shares = slow.run.csv("flip_shares.csv").query("bin == 'coin flip' and fpr == @c.focus_fpr")
    np.testing.assert_array_equal(shares[table.columns], table[table.replicas == slow.replicas])


def test_true_positives(slow: Slow):
    table = slow.run.csv("true_positives.csv")
    by_replica = slow.run.csv("replica_true_positives.csv")
    assert table.fpr.tolist() == list(slow.run.c.fprs)
    assert table.replicas.unique().tolist() == [slow.replicas]
    assert table.left_out.unique().tolist() == [(~slow.scored_N).sum()]
    in_N = slow.member_N & slow.scored_N
    for f, fpr in enumerate(slow.run.c.fprs):
        row = table.iloc[[f]]
        bin_N = np.array([slow.bin(v) for v in slow.votes(fpr)[in_N]])
        decision_TxN = slow.decisions(fpr)[:, in_N]
        tp_T = decision_TxN.sum(axis=1)
        assert_close(row, "tp_mean", tp_T.mean())
        assert_close(row, "tp_std", tp_T.std())
        assert_close(row, "tpr_mean", (tp_T / in_N.sum()).mean())
        assert_close(row, "tpr_std", (tp_T / in_N.sum()).std())
        at_fpr = by_replica[np.isclose(by_replica.fpr, fpr)]
        assert at_fpr.order_seed.is_unique
        assert at_fpr.tp.tolist() == tp_T.tolist()
        for name, bins in (("very_unstable", [3]), ("coin_flip", [4]), ("union", [3, 4])):
            part_T = decision_TxN[:, np.isin(bin_N, bins)].sum(axis=1)
            fractions = [p / tp if tp else 0 for p, tp in zip(part_T, tp_T, strict=True)]
            assert_close(row, f"{name}_tp_mean", part_T.mean())
            assert_close(row, f"{name}_tp_std", part_T.std())
            assert_close(row, f"{name}_fraction_mean", np.mean(fractions))
            assert_close(row, f"{name}_fraction_std", np.std(fractions))
            ratio = part_T.sum() / tp_T.sum() if tp_T.any() else math.nan
            assert_close(row, f"{name}_ratio_of_means", ratio)
            if name != "union":
                assert at_fpr[f"{name}_tp"].tolist() == part_T.tolist()


def test_coin_free_roc_and_partial_auc(slow: Slow):
    table, c = slow.run.csv("coin_free_roc.csv"), slow.run.c
    nonmembers = (~slow.member_N).sum()
    grid = [0, *c.band, *np.geomspace(1 / nonmembers, 1, score_matrix._CURVE_POINTS)]
    np.testing.assert_allclose(table.fpr, sorted(set(grid)), rtol=1e-12)
    in_N = slow.member_N & slow.scored_N
    for row in table.iloc[::7].to_dict("records"):
        votes = slow.votes_at_vertex(row["fpr"])[in_N]
        assert row["tpr_mean"] == pytest.approx(votes.mean() / slow.replicas)
        free = [0 if slow.bin(v) == 4 else v for v in votes]
        assert row["tpr_coin_free"] == pytest.approx(np.mean(free) / slow.replicas)
        stable = [0 if slow.bin(v) >= 3 else v for v in votes]
        assert row["tpr_unstable_free"] == pytest.approx(np.mean(stable) / slow.replicas)
    areas = slow.run.csv("partial_auc.csv")
    assert areas[["low", "high"]].to_numpy().tolist() == [[*c.band]] * 3 + [[0, 1]] * 3
    assert areas.curve.tolist() == ["raw", "coin-free", "unstable-free"] * 2
    pairs = [
        (areas.iloc[first], areas.iloc[first + k], name)
        for first in (0, 3)
        for k, name in ((1, "tpr_coin_free"), (2, "tpr_unstable_free"))
    ]
    for raw, free, free_name in pairs:
        for row, name in ((raw, "tpr_mean"), (free, free_name)):
            low, high = row["low"], row["high"]
            x = np.linspace(low, high, 400_001)
            area = np.trapezoid(np.interp(x, table.fpr, table[name]), x)
            assert row["pauc"] == pytest.approx(area, rel=1e-5)
            assert row["pauc_normalized"] == pytest.approx(area / (high - low), rel=1e-5)
            lift = area - (high**2 - low**2) / 2
            assert row["lift"] == pytest.approx(lift, rel=1e-4)
            assert row["lift_normalized"] == pytest.approx(lift / (high - low), rel=1e-4)
        assert free["lift_retained_fraction"] == pytest.approx(free["lift"] / raw["lift"])
        dropped = 1 - free["pauc"] / raw["pauc"]
        assert free["mean_tpr_dropped_fraction"] == pytest.approx(dropped)
        assert math.isnan(raw["lift_retained_fraction"])


def test_flip_curves(slow: Slow):
    curves, samples = slow.run.csv("flip_curves.csv"), slow.run.samples()
    pairs = [(fpr, against) for fpr in slow.run.c.fprs for against in ("distance", "posterior")]
    assert list(dict.fromkeys(zip(curves.fpr, curves.binned_by, strict=True))) == pairs
    for (fpr, against, kind), curve in curves.groupby(["fpr", "binned_by", "class"]):
        x = f"distance_{fpr:g}" if against == "distance" else "mean_posterior"
        part = samples[samples.member == (kind == "members")][[x, f"flip_rate_{fpr:g}"]].astype(
            float
        )
        points = sorted(part.dropna().itertuples(index=False, name=None))
        assert (curve.left_out == len(part) - len(points)).all()
        bins: dict[int, list[tuple[float, float]]] = {}
        for x_value, y_value in points:  # equal x are in the bin of the first of them
            rank = next(i for i, pair in enumerate(points) if pair[0] == x_value)
            bins.setdefault(rank * 50 // len(points), []).append((x_value, y_value))
        assert curve.samples.tolist() == [len(b) for b in bins.values()]
        np.testing.assert_allclose(
            curve.x_mean, [np.mean([p[0] for p in b]) for b in bins.values()]
        )
        assert_close(curve, "flip_rate_mean", [np.mean([p[1] for p in b]) for b in bins.values()])


@pytest.mark.parametrize("variance", ["per_sample", slow_case("pooled")])
def test_results_do_not_depend_on_block_sizes(
    attacked: AttackRun, variance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names: tuple[str, ...] = ("lira_online", "rmia_offline")
    c = dataclasses.replace(SMALL, variance=variance, attacks=names, bootstraps=0)
    single_block = run_attacks(attacked.scores, c, tmp_path / "whole")
    monkeypatch.setattr(inputs, "BLOCK_SAMPLES", 128)
    monkeypatch.setattr(inputs, "_SLICE_SAMPLES", 50)
    monkeypatch.setattr(decisions, "_ROW_GROUP", 120)
    blocks = run_attacks(attacked.scores, c, tmp_path / "blocks")
    assert pq.ParquetFile(blocks.folder / "samples.parquet").num_row_groups > 3
    assert blocks.messages == single_block.messages
    tolerance = {"per_sample": 0, "pooled": 1e-12}[variance]
    pd.testing.assert_frame_equal(
        blocks.samples(), single_block.samples(), rtol=tolerance, atol=tolerance
    )
    files = {path.name for path in single_block.folder.iterdir()}
    assert "attack_flips.csv" in files
    assert files == {path.name for path in blocks.folder.iterdir()}
    folders = blocks.folder, single_block.folder
    # Labels are shuffled block by block, and what more references would add is computed from the first block.
    others = {"samples.parquet", "shuffled.csv", "more_references.csv", "more_references.json"}
    for name in files - others:
        if name.endswith("json"):
            described = [json.loads((folder / name).read_text()) for folder in folders]
            assert described[0] == described[1], name
        elif variance == "per_sample":
            texts = [(folder / name).read_bytes() for folder in folders]
            assert texts[0] == texts[1], name
        else:
            read = pd.read_parquet if name.endswith("parquet") else pd.read_csv
            in_blocks, in_one = (read(folder / name) for folder in folders)
            pd.testing.assert_frame_equal(in_blocks, in_one, rtol=1e-12, atol=1e-12)
    shuffled = blocks.csv("shuffled.csv").auc_mean
    assert shuffled.between(0.45, 0.55).all()
    assert (shuffled != single_block.csv("shuffled.csv").auc_mean).any()
