import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_tokens import (
    IDS,
    MODELS,
    REFERENCES,
    SAMPLES,
    SETTINGS,
    VOCAB,
    World,
    population,
    run,
    write_token_tables,
)

from analysis.experiments.open import tokens
from lm_mia import stats
from lm_mia.attacks import spec
from lm_mia.attacks.experiment import TokenSettings
from lm_mia.data import batch_order


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_token_tables(tmp_path_factory.mktemp("recipe") / "tables")


@pytest.mark.parametrize(("models", "samples"), [(0, 0), (3, 0), (0, 5)])
def test_bins_of_tokens_equal_a_loop(world: World, models: int, samples: int):
    """Computes the mean gap and AUC of each bin of positions and of recency, one pair of model and token at a time."""
    group_M = np.array(spec.reference_groups(range(REFERENCES)))
    used = [m for m in range(REFERENCES) if not models or group_M[m] != models - 1]
    columns, document_N = world.columns, population().document_N
    half_N = np.ones(SAMPLES, bool)
    if samples:
        half_N = stats.HALVES_HxG[samples - 1, stats.sample_groups(document_N)]
    position_T = columns["token_position"]
    edges = np.quantile(position_T[position_T > 0], np.arange(1, 8) / 8)
    last_seen = {
        m: batch_order.last_seen(MODELS[m].order_seed, world.member_MxN[m], 4, 16) for m in used
    }
    pairs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for t, (n, position) in enumerate(zip(columns["token_sample"], position_T, strict=True)):
        outs = [world.log_prob_MxT[m, t] for m in used if not world.member_MxN[m, n]]
        for m in used:
            if position and half_N[n] and world.member_MxN[m, n] and outs:
                value = float(world.log_prob_MxT[m, t])
                auc = float(np.mean([(value > out) + (value == out) / 2 for out in outs]))
                pair = value - float(np.mean(outs, dtype=np.float64)), auc
                step = int(last_seen[m][n]) + 1
                keys = (
                    ("position", int(np.count_nonzero(edges <= position))),
                    ("recency", (step - 1) // 2),
                )
                for key in keys:
                    pairs.setdefault(key, []).append(pair)
    table = world.csv(tokens.MEMBERSHIP)
    table = table[(table["models"] == models) & (table["samples"] == samples)]
    rows: Any = table[table["kind"] != "frequency"].set_index(["kind", "bin"])
    assert {*rows.index} == {*pairs}
    for key, expected in pairs.items():
        row = rows.loc[key]
        assert row["pairs"] == len(expected)
        assert (row["gap_nats"], row["auc"]) == pytest.approx(np.mean(expected, axis=0), abs=1e-6)


def test_bins_of_frequency_are_sorted_by_the_count_of_the_piece(world: World):
    table = world.csv(tokens.MEMBERSHIP)
    rows: Any = table[
        (table["kind"] == "frequency") & (table["models"] == 0) & (table["samples"] == 0)
    ]
    count_V = np.bincount(population().tokens, minlength=VOCAB)
    share_V = count_V / count_V.sum()
    assert rows["x"].is_monotonic_increasing
    low, high = share_V[share_V > 0].min(), share_V.max() + 1e-9
    assert low <= rows["x"].min() < rows["x"].max() <= high


def test_suffixes_equal_separate_sums_and_attacks(world: World):
    rows: Any = pd.read_parquet(world.folder / tokens.SUFFIXES)
    long_ids = [n for n in IDS if n % 3]
    assert len(rows) == REFERENCES * len(long_ids)
    ids = [*IDS]
    score_MxS = stats.lira_leave_one_out(
        world.loss_MxN[:, ids], world.member_MxN[:, ids], variance="pooled"
    )
    sample_T, position_T = world.columns["token_sample"], world.columns["token_position"]
    for m in (0, 7):
        of_model = rows[rows["model"] == str(MODELS[m])].set_index("id")
        assert [*of_model.index] == long_ids
        for n in (4, 52):
            suffix = (sample_T == n) & (position_T >= 5) & (position_T < 9)
            log_p_M = world.log_prob_MxT[:, suffix].astype(float).sum(axis=1)
            out = [o for o in range(REFERENCES) if o != m and not world.member_MxN[o, n]]
            row = of_model.loc[n]
            assert row["member"] == world.member_MxN[m, n]
            expected = score_MxS[m, ids.index(n)], log_p_M[m], log_p_M[out].mean()
            assert [*row[["score", "log_p", "log_p_out"]]] == pytest.approx(expected)


def test_correlations_are_means_over_models(world: World):
    table: Any = world.csv(tokens.CORRELATIONS)
    rows: Any = pd.read_parquet(world.folder / tokens.SUFFIXES)
    everything = table[(table["models"] == 0) & (table["samples"] == 0)]
    value = everything.set_index(["statistic", "class"])["value"]
    rows["gain"] = rows["log_p"] - rows["log_p_out"]
    for name, of_class in (
        ("all", rows),
        ("members", rows[rows["member"]]),
        ("nonmembers", rows[~rows["member"]]),
    ):
        for x, y in (("score", "log_p"), ("score", "gain"), ("log_p", "log_p_out")):
            r = [
                float(of_model[x].corr(of_model[y], method="spearman"))
                for _, of_model in of_class.groupby("model")
            ]
            assert value[f"{x} and {y}", name] == pytest.approx(np.mean(r))
        gain = of_class.groupby("model")["gain"].mean().mean()
        assert value["gain_nats", name] == pytest.approx(gain)
    assert table.groupby(["models", "samples"]).ngroups == 9 * 15


def test_long_suffixes_and_no_tokens_are_left_out(world: World, tmp_path: Path):
    other = dataclasses.replace(world, folder=tmp_path)
    [message] = run(other, dataclasses.replace(SETTINGS, suffix_tokens=40))
    assert message.startswith("extract.prefix_tokens=5, extract.suffix_tokens=40: fewer than 16 ")
    assert {path.name for path in tmp_path.iterdir()} == {tokens.MEMBERSHIP, "tokens.json"}
    nothing = dataclasses.replace(world, folder=tmp_path / "nothing")
    assert run(nothing, TokenSettings()) == []
    assert not nothing.folder.exists()


def test_losses_of_the_tokens_of_shown_samples(tmp_path: Path):
    folder = tmp_path / "tables"
    folder.mkdir()
    shown = [0, 7, 12, 30, 59]  # 0 and 59 are not among the samples with stored tokens
    path = folder / "shown_samples.parquet"
    pd.DataFrame({"id": shown}).to_parquet(path)
    world = write_token_tables(folder)
    table = pd.read_parquet(folder / "shown_tokens.parquet")
    assert table["id"].unique().tolist() == [7, 12, 30]
    columns = world.columns
    for row in table.to_dict("records"):
        [t] = np.flatnonzero(
            (columns["token_sample"] == row["id"]) & (columns["token_position"] == row["position"])
        )
        is_in_M = world.member_MxN[:, row["id"]]
        loss_M = -world.log_prob_MxT[:, t].astype(float)
        assert row["piece"] == f"▁{columns['token_piece'][t]}"
        assert row["in_loss_nats"] == pytest.approx(loss_M[is_in_M].mean(), rel=1e-6)
        assert row["out_loss_nats"] == pytest.approx(loss_M[~is_in_M].mean(), rel=1e-6)
    assert len(table) == sum(len(population().sample(i)) - 1 for i in (7, 12, 30))
    # Other shown samples are noticed.
    pd.DataFrame({"id": shown[:2]}).to_parquet(path)
    assert run(world) == []
    assert pd.read_parquet(folder / "shown_tokens.parquet")["id"].unique().tolist() == [7]
