"""Zero-run evaluation on planted losses: the shift biases the naive estimate, and true weights correct it."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import FakePopulation
from table_case import compute, set_of_study, working

from analysis.experiments.causal import zero_run
from lm_mia import config, stats
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.store.store import Store

SAMPLES, MODELS, EFFECT, VOCABULARY = 480, 8, 0.4, 40
C = config.Attack(
    references=MODELS,
    replicas=0,
    zero_run=("groups", "graded", "disjoint"),
    zero_run_strengths=(1.5,),
)


class Sources(FakePopulation):
    """Texts of two packages with a low loss and of two with a high one, which use other words."""

    vocab_size = VOCABULARY

    is_imported = False

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        rng = np.random.default_rng(1)
        self.package_N = np.arange(SAMPLES) % 4
        names = np.array(["a", "b", "c", "d"])[self.package_N]
        tokens_NxL = rng.integers(0, 20, (SAMPLES, 12)) + 10 * (self.package_N // 2)[:, None]
        self.tokens, self.offsets_N1 = tokens_NxL.ravel(), 12 * np.arange(SAMPLES + 1)
        self.columns |= {
            "source": names,
            "tfidf": rng.normal(3, 1, SAMPLES),
            "prefix_group": np.arange(SAMPLES),
        }


def write_store(
    folder: Path, design: subsets.Design = "exact", effect: float = EFFECT
) -> tuple[Store, Population]:
    """Writes losses that depend on the package, on the TF-IDF, and by `effect` on membership."""
    rng, texts = np.random.default_rng(0), Sources()
    models = subsets.requested_seeds(MODELS, 0)
    member_MxN = subsets.members(models, SAMPLES, design)
    level_N = 3 + (texts.package_N >= 2) + 0.3 * texts.columns["tfidf"]
    level_N = level_N + rng.normal(0, 0.3, SAMPLES)
    loss_MxN = level_N - effect * member_MxN + rng.normal(0, 0.2, member_MxN.shape)
    store = Store(folder / "scores.zarr", design=design)
    folder.mkdir(parents=True, exist_ok=True)
    store.create_or_extend(models, {"tokens": np.arange(SAMPLES)}, {})
    for model, loss_N, member_N in zip(
        models, loss_MxN.astype(np.float32), member_MxN, strict=True
    ):
        store.write_model(model, loss_N, member_N)
    return store, cast(Population, texts)


def run(
    world: tuple[Store, Population], folder: Path, c: config.Attack = C
) -> tuple[list[str], list[Any]]:
    """Computes the tables; returns messages and progress."""
    folder.mkdir(exist_ok=True)
    said: list[str] = []
    with working(folder, said.append) as (work, progress):
        compute(set_of_study(zero_run.STUDY, *world, c, work), folder)
    return said, progress


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Population]:
    return write_store(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def folder(world: tuple[Store, Population], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    said, progress = run(world, folder)
    assert not said
    steps = 3 * MODELS + 2 * MODELS
    assert progress == [("zero-run", done, steps) for done in range(steps + 1)]
    return folder


def errors(folder: Path, shift: str, strength: float = 0.0, attack: str = "loss") -> pd.DataFrame:
    """Returns the mean over runs of AUC and effect minus the truth, by estimator."""
    table = pd.read_csv(folder / "zero_run.csv")
    chosen = table.query("shift == @shift and strength == @strength and attack == @attack")
    by_run = chosen.set_index(["model", "estimator"])[["auc", "ate"]].unstack("estimator")
    means = {
        metric: by_run[metric].sub(by_run[metric]["truth"], axis=0).mean()
        for metric in ("auc", "ate")
    }
    return pd.DataFrame(means)


def test_truth_is_the_planted_effect_and_weights_correct_the_shift(folder: Path):
    table = pd.read_csv(folder / "zero_run.csv")
    truth = table[table["estimator"] == "truth"]
    for attack in zero_run.ATTACKS:
        # With references that depend on the membership of the models, that of the calibrated loss would be 0.44.
        of_attack = truth[truth["attack"] == attack]["ate"]
        assert of_attack.mean() == pytest.approx(EFFECT, abs=0.02), attack
    assert truth["ate_se"].between(0.001, 0.1).all()
    groups, graded = errors(folder, "groups"), errors(folder, "graded", 1.5)
    # Packages differ by 1 nat, and 80 % of the members are in other packages than the non-members.
    assert groups["ate"]["naive"] == pytest.approx(0.8, abs=0.05)
    assert groups["auc"]["naive"] > 0.1
    # z and b z differ by about 1.1 standard deviations of 0.3 nats; non-members have the lower loss.
    assert graded["ate"]["naive"] < -0.25
    for table in (groups, graded):
        for estimator in ("iid", "oracle", "ipw", "aipw"):
            assert abs(table["ate"][estimator]) < 0.12, estimator
            assert abs(table["auc"][estimator]) < 0.05, estimator
    calibrated = errors(folder, "groups", attack="reference_calibrated")
    assert abs(calibrated["ate"]["naive"]) < 0.03  # references know how hard each package is


def test_missing_overlap_is_flagged(folder: Path):
    table = pd.read_csv(folder / "zero_run.csv").query("shift == 'disjoint'")
    oracle = table[table["estimator"] == "oracle"]
    assert len(oracle) == 2 * MODELS
    assert oracle[["ate", "auc"]].isna().all(axis=None)
    assert (oracle["effective_nonmembers"] == 0).all()
    assert not oracle["has_overlap"].astype(str).eq("True").any()
    # Packages are easily told apart by their words, so that learned weights show it, too.
    learned = table[table["estimator"] == "ipw"]
    assert (learned["has_overlap"].astype(str) == "False").mean() > 0.8
    assert table[table["estimator"] == "g_formula"]["has_overlap"].isna().all()


@pytest.fixture
def without_covariates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the estimators that learn, which take most of the time."""
    monkeypatch.setattr(zero_run, "_features", lambda *_: np.zeros((SAMPLES, 0)))


@pytest.mark.usefixtures("without_covariates")
def test_noise_has_an_auc_of_one_half_and_no_shift_no_error(tmp_path: Path):
    c = dataclasses.replace(C, zero_run=("groups", "graded"), zero_run_strengths=(0.0,))
    run(write_store(tmp_path / "noise", effect=0.0), tmp_path, c)
    table = pd.read_csv(tmp_path / "zero_run.csv")
    auc = table.groupby(["shift", "attack", "estimator"])["auc"].mean()
    for attack in zero_run.ATTACKS:
        for estimator in ("truth", "iid", "oracle"):
            assert auc["groups", attack, estimator] == pytest.approx(0.5, abs=0.05)
    assert auc["groups", "loss", "naive"] > 0.65
    # Without a shift, the naive estimate is as good as that of an evaluation without one.
    no_shift = errors(tmp_path, "graded")
    assert no_shift["ate"]["naive"] == no_shift["ate"]["oracle"]
    assert abs(no_shift["ate"]["naive"] - no_shift["ate"]["iid"]) < 0.1
    interference = pd.read_csv(tmp_path / "interference.csv").set_index(["attack", "model"])
    assert interference["auc"]["loss"].drop("trials").to_numpy() == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("pairs", [False, True])
def test_neither_a_run_nor_its_complement_is_its_reference(
    pairs: bool,
):
    rng, texts = np.random.default_rng(0), Sources()
    member_MxN = subsets.members(
        subsets.requested_seeds(8, 0), SAMPLES, "balanced" if pairs else "exact"
    )
    loss_MxN = rng.normal(4, 0.5, SAMPLES) - 0.3 * member_MxN + rng.normal(0, 0.2, (8, SAMPLES))
    package_N = texts.package_N
    known = texts.columns["tfidf"], package_N, "", 0
    ids = np.arange(SAMPLES)
    experiment = zero_run._Experiment(
        [*map(str, range(8))],
        range(8),
        loss_MxN,
        member_MxN,
        pairs,
        rng.normal(size=(SAMPLES, 2)),
        ids,
        *known,
    )
    setting = zero_run._Setting("groups")
    rows = zero_run._evaluate(experiment, setting, 3).rows

    def with_other_losses(m: int) -> list[dict[str, Any]]:
        changed_MxN = loss_MxN.copy()
        changed_MxN[m] = rng.normal(4, 0.5, SAMPLES)
        changed = dataclasses.replace(experiment, loss_MxN=changed_MxN)
        return zero_run._evaluate(changed, setting, 3).rows

    own, complement = with_other_losses(3), with_other_losses(2)
    for row, with_own, with_complement in zip(rows, own, complement, strict=True):
        if pairs:
            assert pd.Series(row).equals(pd.Series(with_complement))
        elif row["estimator"] == "truth":
            assert row["ate"] != with_complement["ate"]  # just another model
        if row["estimator"] == "truth":
            assert pd.Series(row).equals(pd.Series(with_own))
        else:
            assert row["ate"] != with_own["ate"]


def test_curves_and_samples_are_those_of_the_first_run(
    world: tuple[Store, Population], folder: Path
):
    curves = pd.read_csv(folder / "zero_run_curves.csv")
    table = pd.read_csv(folder / "zero_run.csv").query("model == 'reference-00'")
    keys = ["shift", "strength", "attack", "estimator"]
    for key, curve in curves.groupby(keys):
        assert len(curve) <= zero_run._CURVE_POINTS + 1
        assert (curve[["fpr", "tpr"]].diff().dropna() >= -1e-12).all(axis=None), key
        [auc] = table.set_index(keys).loc[[key]]["auc"]
        if key[3] != "aipw":
            assert np.trapezoid(curve["tpr"], curve["fpr"]) == pytest.approx(auc, abs=0.02), key
    samples = pd.read_parquet(folder / "zero_run_samples.parquet")
    loss_MxN, member_MxN = world[0].read(world[0].models())
    np.testing.assert_allclose(samples["score"], -loss_MxN[0][samples["sample"]])
    members = samples["group"] == "member"
    np.testing.assert_array_equal(members, member_MxN[0][samples["sample"]])
    assert samples["log_odds_learned"].isna().equals(samples["group"] == "iid")
    groups = samples.query("shift == 'groups' and group != 'iid'")
    row = table.query("shift == 'groups' and attack == 'loss'").set_index("estimator")
    estimate = stats.ipw_estimate(
        groups["score"].to_numpy(),
        (groups["group"] == "member").to_numpy(),
        groups["log_odds_learned"].to_numpy(),
        zero_run.FPRS,
    )
    assert estimate.auc == pytest.approx(row["auc"]["ipw"], rel=1e-12)


def test_effects_and_interference(world: tuple[Store, Population], folder: Path):
    loss_MxN, member_MxN = world[0].read(world[0].models())
    effects = pd.read_parquet(folder / "effects.parquet")
    mean_in_N = np.ma.masked_array(-loss_MxN.astype(float), ~member_MxN).mean(axis=0).filled(np.nan)
    np.testing.assert_allclose(effects["mean_in"], mean_in_N, rtol=1e-9)
    np.testing.assert_array_equal(effects["num_in"], member_MxN.sum(axis=0))
    table = pd.read_csv(folder / "interference.csv")
    of_loss = table[table["attack"] == "loss"].set_index("model")
    assert of_loss.index.tolist() == [
        *(f"reference-{m:02d}" for m in range(MODELS)),
        "multi_run",
        "trials",
    ]
    aucs = stats.auc(-loss_MxN, member_MxN).auc_T
    np.testing.assert_allclose(of_loss["auc"][:MODELS], aucs)
    # Losses of samples are independent here, so that the spread is as expected, up to chance with 10 models.
    for attack, of_attack in table.groupby("attack"):
        models = of_attack.iloc[:MODELS]
        for metric in ("ate", "auc"):
            ratio = models[metric].std() / np.sqrt((models[f"sd_{metric}"] ** 2).mean())
            assert 0.5 < ratio < 1.7, (attack, metric)
    assert of_loss["members"]["trials"] + of_loss["nonmembers"]["trials"] == MODELS


def test_shifts_do_not_depend_on_each_other(
    world: tuple[Store, Population], folder: Path, tmp_path: Path
):
    run(world, tmp_path, dataclasses.replace(C, zero_run=("graded",)))
    for name in ("effects.parquet", "interference.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    for name in ("zero_run.csv", "zero_run_curves.csv"):
        all_rows, rows = ((f / name).read_text().splitlines() for f in (folder, tmp_path))
        assert rows == [row for row in all_rows if row.startswith(("graded", "shift"))]
    assert run(world, tmp_path / "none", dataclasses.replace(C, zero_run=())) == ([], [])
    assert not [*(tmp_path / "none").iterdir()]


@pytest.mark.usefixtures("without_covariates")
def test_only_canaries_are_used(tmp_path: Path):
    c = dataclasses.replace(C, zero_run=("groups",))
    store, _ = write_store(tmp_path / "alone")
    texts = Sources()
    run((store, cast(Population, texts)), tmp_path / "expected", c)
    more = Store(tmp_path / "more" / "scores.zarr", first_canary=7)
    more.path.parent.mkdir()
    more.create_or_extend(store.models(), {"tokens": np.arange(7 + SAMPLES)}, {})
    loss_MxN, member_MxN = store.read(store.models())
    for model, loss_N, member_N in zip(store.models(), loss_MxN, member_MxN, strict=True):
        loss_N, member_N = (
            np.append(np.zeros(7, np.float32), loss_N),
            np.append(np.ones(7, bool), member_N),
        )
        more.write_model(model, loss_N, member_N)
    texts.first_id = 7
    run((more, cast(Population, texts)), tmp_path / "tables", c)
    for name in ("zero_run.csv", "interference.csv", "zero_run_curves.csv"):
        assert (tmp_path / "tables" / name).read_bytes() == (
            tmp_path / "expected" / name
        ).read_bytes()
    for name in ("effects.parquet", "zero_run_samples.parquet"):
        expected = pd.read_parquet(tmp_path / "expected" / name)
        expected["sample"] += 7
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "tables" / name), expected)


def test_reasons_are_said_and_recorded(world: tuple[Store, Population], tmp_path: Path):
    def reasons(
        store: Store, population: Any, c: config.Attack = C
    ) -> tuple[list[str], dict[str, Any]]:
        said, _ = run((store, cast(Population, population)), tmp_path, c)
        return said, json.loads((tmp_path / "zero_run.json").read_text())

    plain = Sources()  # as imported losses without properties
    plain.is_imported = True
    plain.columns["source"] = np.full(SAMPLES, "", object)
    plain.columns |= dict.fromkeys(("tokens", "zlib_bytes", "tfidf"), np.full(SAMPLES, np.nan))
    said, facts = reasons(world[0], plain)
    assert facts["shift_reasons"].keys() == {*("groups", "disjoint", "graded, strength 1.5")}
    assert "of unknown source" in facts["shift_reasons"]["groups"]
    assert said[0].startswith("attack.zero_run=groups: ")
    assert facts["shift_reasons"]["groups"] in said[0]
    assert "(ipw, g_formula, aipw)" in said[-1]
    assert (facts["covariates"], pd.read_csv(tmp_path / "zero_run.csv").shape[0]) == (0, 0)
    assert not (tmp_path / "zero_run_samples.parquet").exists()
    assert len(pd.read_csv(tmp_path / "interference.csv")) == 2 * (MODELS + 2)

    shuffled = Sources()
    shuffled.is_shuffled = True
    run((world[0], cast(Population, shuffled)), tmp_path / "shuffled")
    facts = json.loads((tmp_path / "shuffled/zero_run.json").read_text())
    assert "random order" in facts["shift_reasons"]["disjoint"]
    shutil.rmtree(tmp_path / "shuffled")

    for path in tmp_path.iterdir():
        path.unlink()
    [line], facts = reasons(dataclasses.replace(world[0], design="given"), plain)
    assert "--subset=exact" in line
    assert facts["reason"] in line
    [line], facts = reasons(world[0], plain, dataclasses.replace(C, references=7))
    assert re.search(r"\b7 references\b.*\b8\b", line)
    assert [p.name for p in tmp_path.iterdir()] == ["zero_run.json"]
