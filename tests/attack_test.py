import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from lm_mia import attack, config, subsets
from lm_mia.errors import UserError
from lm_mia.population import Population
from lm_mia.store import Store

C = config.Attack(references=32, replicas=4, fprs=(0.05, 0.2), focus_fpr=0.05, variance="pooled")
SD, SPREAD, EFFECT = 0.2, 0.5, 0.3
ATTACKS = ("lira_online", "lira_offline", "reference_calibrated", "loss")


def losses(
    c: config.Attack, samples: int, design: subsets.Design = "exact", effect: float = EFFECT
) -> tuple[np.ndarray, np.ndarray]:
    """(loss_MxN, member_MxN): samples differ by SPREAD, models by SD; members lose `effect`."""
    rng = np.random.default_rng(0)
    member_MxN = subsets.members(subsets.rows(c.references, c.replicas), samples, design)
    level_N = rng.normal(4, SPREAD, samples)
    noise_MxN = rng.normal(0, SD, member_MxN.shape)
    return (level_N - effect * member_MxN + noise_MxN).astype(np.float32), member_MxN


def rows_of(c: config.Attack, loss_MxN: np.ndarray, member_MxN: np.ndarray) -> attack.Rows:
    r = c.references
    return attack.Rows(loss_MxN[r:], member_MxN[r], loss_MxN[:r], member_MxN[:r])


def stored(path: Path, c: config.Attack, loss_MxN: np.ndarray, member_MxN: np.ndarray) -> Store:
    store, rows = Store(path / "recipe_x" / "scores.zarr"), subsets.rows(c.references, c.replicas)
    store.path.parent.mkdir()
    store.ensure(rows, {"tokens": np.arange(loss_MxN.shape[1])}, {})
    for row, loss_N, member_N in zip(rows, loss_MxN, member_MxN, strict=True):
        store.write_row(row, loss_N, member_N)
    return store


class Texts:
    """What the tables ask of a population."""

    def __init__(self, samples: int):
        self.lengths_N = np.arange(samples) % 7 + 3

    def __len__(self) -> int:
        return len(self.lengths_N)

    def text(self, i: int) -> str:
        return f"text {i} " + "x" * 500


@dataclasses.dataclass
class Ran:
    folder: Path
    said: list[str]
    progress: list[tuple[str, int, int]]

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name)


def ran(path: Path, c: config.Attack, loss_MxN: np.ndarray, member_MxN: np.ndarray) -> Ran:
    store, out = stored(path, c, loss_MxN, member_MxN), Ran(path / "tables", [], [])
    texts = cast(Population, Texts(loss_MxN.shape[1]))
    attack.run(store, texts, c, out.folder, lambda *n: out.progress.append(n), out.said.append)
    return out


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("gaussian"), C, *losses(C, 1000))


def auc(rows: attack.Rows, name: str, c: config.Attack) -> float:
    """By comparing every member with every non-member."""
    score_TxN = attack.scores(name, rows, c)
    ins, out = score_TxN[:, rows.target_member_N], score_TxN[:, ~rows.target_member_N]
    wins = (ins[:, :, None] > out[:, None, :]).mean() + (
        ins[:, :, None] == out[:, None, :]
    ).mean() / 2
    return float(wins)


def test_auc_is_near_its_closed_form():
    """With many references LiRA orders samples by loss minus their own level; the loss attack by loss alone."""
    c = dataclasses.replace(C, references=128)
    rows = rows_of(c, *losses(c, 1200))
    expected = {
        "lira_online": norm.cdf(EFFECT / (SD * 2**0.5)),
        "lira_offline": norm.cdf(EFFECT / (SD * 2**0.5)),
        "reference_calibrated": norm.cdf(EFFECT / (SD * 2**0.5)),
        "loss": norm.cdf(EFFECT / (2 * (SD**2 + SPREAD**2)) ** 0.5),
    }
    for name in ATTACKS:
        assert auc(rows, name, c) == pytest.approx(float(expected[name]), abs=0.03)


@pytest.mark.parametrize("design", ["exact", "bernoulli", "balanced"])
@pytest.mark.parametrize("variance", ["per_sample", "pooled"])
def test_noise_is_at_chance_under_every_design(design: Any, variance: Any):
    """A count of IN references that told of the target's membership would show here (DESIGN section 6, traps)."""
    c = dataclasses.replace(C, references=16, variance=variance)
    loss_MxN, member_MxN = losses(c, 1600, design, effect=0)
    aucs = {
        name: [
            auc(dataclasses.replace(rows, target_loss_TxN=rows.target_loss_TxN[:1]), name, c)
            for rows in (rows_of(c, loss_MxN, member_MxN).shuffled(s) for s in range(3))
        ]
        for name in ATTACKS
    }
    for name in ATTACKS:  # STD of one AUC: 0.0144
        assert np.mean(aucs[name]) == pytest.approx(0.5, abs=0.035)


def test_shuffled_moves_labels_of_all_rows_alike_and_no_losses():
    rows = rows_of(C, *losses(C, 50))
    moved = rows.shuffled(3)
    assert moved.target_loss_TxN is rows.target_loss_TxN
    assert moved.reference_loss_MxN is rows.reference_loss_MxN
    together = np.vstack([rows.target_member_N, rows.reference_member_MxN])
    after = np.vstack([moved.target_member_N, moved.reference_member_MxN])
    assert sorted(map(tuple, together.T)) == sorted(map(tuple, after.T))
    assert (together != after).any()
    np.testing.assert_array_equal(rows.shuffled(3).target_member_N, moved.target_member_N)
    assert (rows.shuffled(4).target_member_N != moved.target_member_N).any()


def test_first_is_nested():
    rows = rows_of(C, *losses(C, 20))
    np.testing.assert_array_equal(rows.first(5).reference_loss_MxN, rows.reference_loss_MxN[:5])
    assert rows.first(5).reference_member_MxN.shape == (5, 20)
    assert rows.first(5).target_loss_TxN is rows.target_loss_TxN


def test_attacks_csv(gaussian: Ran):
    table = gaussian.csv("attacks.csv")
    by = {(row["attack"], row["references"]): row for row in table.to_dict("records")}
    counts = [1, 2, 4, 8, 16, 32]
    assert [k[1] for k in by if k[0] == "reference_calibrated"] == counts
    assert [k[1] for k in by if k[0] == "loss"] == [0]
    assert [k[1] for k in by if k[0] == "lira_online"] == counts[1:]  # one reference is IN or OUT
    rows = rows_of(C, *losses(C, 1000))
    for name, count in (("lira_online", 32), ("lira_offline", 32), ("loss", 0)):
        row, some = by[name, count], rows.first(count) if count else rows
        assert row["auc_mean"] == pytest.approx(auc(some, name, C), abs=1e-9)
        assert (row["targets"], row["left_out"]) == (4, 0)
    assert by["lira_online", 32]["auc_mean"] > by["loss", 0]["auc_mean"] + 0.15
    assert by["lira_online", 32]["auc_mean"] > by["lira_online", 4]["auc_mean"]
    assert by["lira_online", 2]["left_out"] > 300
    assert (table["tpr_at_0.2_mean"] >= table["tpr_at_0.05_mean"]).all()


def test_roc_csv(gaussian: Ran):
    for _, curve in gaussian.csv("roc.csv").groupby(["attack", "references"]):
        assert (len(curve), curve.fpr.min(), curve.fpr.max()) == (100, 1 / 500, 1)
        assert curve.fpr.is_monotonic_increasing
        assert curve.tpr_mean.is_monotonic_increasing
        assert curve.tpr_mean.iloc[-1] == 1


def test_shuffled_csv(gaussian: Ran):
    table = gaussian.csv("shuffled.csv").set_index("attack")
    assert list(table.index) == list(ATTACKS)
    assert (table.shuffles == 10).all()
    assert table.auc_mean.between(0.47, 0.53).all()
    assert ((table.auc_min <= table.auc_mean) & (table.auc_mean <= table.auc_max)).all()


def test_progress_and_what_is_said(gaussian: Ran):
    done = [n for label, n, _ in gaussian.progress if label == "attack"]
    total = 3 * 6 + 1 + 10
    assert done == list(range(1, total + 1))
    assert {t for _, _, t in gaussian.progress} == {total}
    assert gaussian.said == []


def test_flips_json_and_files(gaussian: Ran):
    facts = json.loads((gaussian.folder / "flips.json").read_text())
    assert facts == {
        "attack": "lira_online", "references": 32, "replicas": 4, "variance": "pooled", "alpha": 0.05,
        "k_low": 0, "cutoff": 0.0, "max_flip_rate": pytest.approx(2 / 3), "left_out": 0,
        "recipe": "recipe_x", "config": dataclasses.asdict(C) | {"fprs": list(C.fprs)},
    }  # fmt: skip
    assert sorted(p.name for p in gaussian.folder.iterdir()) == [
        *("archetypes.csv", "attacks.csv", "error_rates.csv", "flip_shares.csv", "flips.json"),
        *("roc.csv", "samples.parquet", "shuffled.csv"),
    ]


def test_the_same_rows_give_the_same_tables(gaussian: Ran, tmp_path: Path):
    again = ran(tmp_path, C, *losses(C, 1000))
    for path in gaussian.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes()


def test_too_few_references_are_nan_counted_and_said(tmp_path: Path):
    c = dataclasses.replace(C, references=6, variance="per_sample")
    loss_MxN, member_MxN = losses(c, 400)
    in_N = member_MxN[:6].sum(axis=0)
    short_N = (in_N < 2) | (in_N > 4)
    assert 50 < short_N.sum() < 150
    out = ran(tmp_path, c, loss_MxN, member_MxN)
    assert out.said == [
        f"attack.references=6: {short_N.sum()} of 400 samples have fewer than 2 IN or 2 OUT references; they are "
        "left out (NaN) and counted; more references or train.subset='balanced' mend it"
    ]
    samples = pd.read_parquet(out.folder / "samples.parquet")
    for column in ("mean_score", "votes_0.05", "flip_0.05", "mean_posterior"):
        np.testing.assert_array_equal(samples[column].isna(), short_N)
    table = out.csv("attacks.csv").set_index(["attack", "references"])
    assert table.loc[("lira_online", 6), "left_out"] == short_N.sum()
    assert (out.csv("flip_shares.csv").left_out == short_N.sum()).all()
    assert json.loads((out.folder / "flips.json").read_text())["left_out"] == short_N.sum()


@pytest.mark.parametrize("usable", ["none", "members", "non-members"])
def test_references_that_suffice_for_a_class_of_no_sample(tmp_path: Path, usable: str):
    c = dataclasses.replace(C, references=4)
    loss_MxN, member_MxN = losses(c, 40)
    target_N = member_MxN[-1]
    keep_N = {"none": target_N & False, "members": target_N, "non-members": ~target_N}[usable]
    member_MxN[:4] = np.where(keep_N, np.arange(4)[:, None] < 2, True)
    with pytest.raises(UserError) as caught:
        ran(tmp_path, c, loss_MxN, member_MxN)
    missing = "non-member" if usable == "members" else "member"
    assert str(caught.value) == (
        f"attack.references=4: no {missing} has enough IN and OUT references for LiRA; ask for more"
    )
    assert not (tmp_path / "tables").exists()


def test_missing_rows_are_named(tmp_path: Path):
    c = dataclasses.replace(C, references=4, replicas=2)
    store = stored(tmp_path, c, *losses(c, 20))
    (store.path / "loss" / "c" / "5" / "0").unlink()
    with pytest.raises(UserError, match=r"1 of 6 rows absent \(replica_2147483648_2147483648_1\)"):
        attack.read(store, c)
    more = dataclasses.replace(c, references=5)
    with pytest.raises(
        UserError, match=r"2 of 7 rows absent \(reference_4_4_4, replica_\d+_\d+_1\)"
    ):
        attack.run(store, cast(Population, SimpleNamespace()), more, tmp_path / "t", print, print)
    assert not (tmp_path / "t").exists()


def test_read_splits_targets_from_references(tmp_path: Path):
    c = dataclasses.replace(C, references=4, replicas=3)
    loss_MxN, member_MxN = losses(c, 20)
    rows = attack.read(stored(tmp_path, c, loss_MxN, member_MxN), c)
    expected = rows_of(c, loss_MxN, member_MxN)
    for field in dataclasses.fields(attack.Rows):
        np.testing.assert_array_equal(getattr(rows, field.name), getattr(expected, field.name))
