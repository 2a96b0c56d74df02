"""Studies are computed on request, kept while they are current, and say why they are not possible."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docstring_population
import numpy as np
import pandas as pd
import pytest
from slow_case import slow_case
from synthetic_scores import SMALL, SyntheticScores, write_scores
from table_case import compute
from views import view_of

from analysis.experiments.open import fragile_hits, recency, reference_numbers, text_groups
from analysis.experiments.strongmia import samples
from lm_mia import config, stats
from lm_mia.attacks import spec, study_inputs
from lm_mia.attacks.experiment import TokenSettings
from lm_mia.attacks.requests import recipe_needs
from lm_mia.attacks.studies import study_set
from lm_mia.data import batch_order
from lm_mia.data.batch_order import Batches
from lm_mia.errors import Unavailable, UserError

BATCH_SIZE, EPOCHS = 5, 2  # 16 steps in an epoch of 80 members
C = dataclasses.replace(SMALL, references=18, replicas=10, focus_fpr=0.1)
FEW = dataclasses.replace(
    C, references=12
)  # not divided into halves, so that studies take little time


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("studies"), C, 160)


def run(scores: SyntheticScores, c: config.Attack, folder: Path, study: spec.Study) -> None:
    """Writes the tables of a study."""
    tokens = TokenSettings(batches=Batches(BATCH_SIZE, EPOCHS))
    view = view_of(scores.store, scores.population, c, folder.parent / "pieces", tokens=tokens)
    compute(study_set(study)(view), folder)


def test_true_positives_are_compared_with_the_other_replicas(
    scores: SyntheticScores, tmp_path: Path
):
    run(scores, C, tmp_path, fragile_hits.STUDY)
    table = pd.read_parquet(tmp_path / "fragile_hits.parquet")
    assert len(table) == 9 * 15 * 15
    group_N = stats.sample_groups(np.arange(160))
    group_R = np.array(spec.reference_groups(range(18)))
    for kept, half_R, half_N in ((0, 0, 0), (3, 5, 0), (0, 0, 7)):
        index_R = np.isin(group_R, [*(spec.half_groups(half_R - 1) if half_R else range(8))])
        used_N = stats.HALVES_HxG[half_N - 1, group_N] if half_N else np.ones(160, bool)
        score_BxN = stats.lira(
            scores.target_TxN, scores.reference_MxN[index_R], scores.reference_member_MxN[index_R]
        )
        used_N = used_N & ~np.isnan(score_BxN).any(axis=0)
        outside_N, member_N = used_N & ~scores.member_N, used_N & scores.member_N
        threshold_B = np.array([stats.threshold_at_fpr(s[outside_N], 0.1) for s in score_BxN])
        kept_B = np.arange(10) % 8 != kept - 1
        found = stats.hit_stability(score_BxN[kept_B][:, member_N], threshold_B[kept_B])
        row = table[table[[*study_inputs.PARTS]].eq([kept, half_R, half_N]).all(axis=1)].iloc[0]
        assert row["flip_correlation"] == pytest.approx(np.nanmean(found.flip_correlation_B))
        assert row["stable_auc"] == pytest.approx(np.nanmean(found.stable_auc_B), nan_ok=True)
        assert row["stable"] == pytest.approx(np.nanmean(found.stable_B))
        assert row["lowest_stable"] == pytest.approx(np.nanmean(found.stable_BxK[:, 0]))
        assert row["highest_stable"] == pytest.approx(np.nanmean(found.stable_BxK[:, -1]))
        assert row["hits"] == pytest.approx(found.hits_B.mean())
    bins = pd.read_csv(tmp_path / "fragile_hit_bins.csv")
    assert bins["bin"].tolist() == [*range(10)]
    assert bins["margin_mean"].is_monotonic_increasing


def test_recency_is_that_of_each_replica(scores: SyntheticScores, tmp_path: Path):
    run(scores, FEW, tmp_path, recency.STUDY)
    shares, rates = (
        pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("recency", "recency_rates")
    )
    shuffled = pd.read_csv(tmp_path / "recency_shuffled.csv")
    steps = EPOCHS * 80 // BATCH_SIZE
    step_BxN = np.array(
        [batch_order.last_seen(b, scores.member_N, BATCH_SIZE, steps) for b in range(10)]
    )
    first = (EPOCHS - 1) * 80 // BATCH_SIZE  # members are last seen in the last epoch
    bin_BxN = np.maximum((step_BxN - first) * 8 // (steps - first), 0)
    group_N = stats.sample_groups(np.arange(160))
    score_BxN = stats.lira(
        scores.target_TxN, scores.reference_MxN[:12], scores.reference_member_MxN[:12]
    )
    for kept, half_N in ((0, 0), (3, 0), (0, 7)):
        used_N = stats.HALVES_HxG[half_N - 1, group_N] if half_N else np.ones(160, bool)
        used_N = used_N & ~np.isnan(score_BxN).any(axis=0)
        outside_N, member_N = used_N & ~scores.member_N, used_N & scores.member_N
        threshold_B = np.array([stats.threshold_at_fpr(s[outside_N], 0.1) for s in score_BxN])
        kept_B = np.arange(10) % 8 != kept - 1
        decision_BxN = (score_BxN >= threshold_B[:, None]).astype(float)
        values = {"loss": scores.target_TxN, "score": score_BxN, "decision": decision_BxN}
        at = [kept, 0, half_N]
        part: Any = shares[shares[[*study_inputs.PARTS]].eq(at).all(axis=1)].set_index("quantity")
        for name, value_BxN in values.items():
            chosen = value_BxN[kept_B][:, member_N], bin_BxN[kept_B][:, member_N]
            found = stats.explained_within_samples(*chosen, 8)
            assert part["share"][name] == pytest.approx(found.share)
            assert part["own_share"][name] == pytest.approx(found.own_share)
            if not (kept or half_N):
                chance = stats.explained_within_samples(chosen[0], np.roll(chosen[1], -4, 0), 8)
                row = shuffled[(shuffled["quantity"] == name) & (shuffled["shift"] == 4)]
                assert row["share"].item() == pytest.approx(chance.share)
        of_bin = rates[rates[[*study_inputs.PARTS]].eq(at).all(axis=1)]
        for k, rate in zip(of_bin["bin"], of_bin["decision_rate"], strict=True):
            in_bin = (bin_BxN == k) & kept_B[:, None] & member_N
            assert rate == pytest.approx(decision_BxN[in_bin].mean())
    seen_K = rates.groupby("bin")["last_seen"].first()
    np.testing.assert_allclose(seen_K, (17.5 + 2 * np.arange(8)) / 32)  # each bin has two steps


def test_the_order_of_imported_losses_is_not_known(scores: SyntheticScores, tmp_path: Path):
    imported = dataclasses.replace(scores, store=dataclasses.replace(scores.store, design="given"))
    run(imported, FEW, tmp_path, recency.STUDY)
    facts = json.loads((tmp_path / "recency.json").read_text())
    assert "batch order" in facts["reason"]


SETS = {
    18: {8: [range(8), range(8, 16)], 16: [range(16)], 18: [range(18)]},
    32: {
        4: [(2 * g, 2 * g + 1, 2 * g + 16, 2 * g + 17) for g in range(8)],
        8: [range(8 * s, 8 * s + 8) for s in range(4)],
        16: [range(16), range(16, 32)],
        32: [range(32)],
    },
}
"""Number of references -> number in a set -> the sets."""


@pytest.mark.parametrize("references", [18, slow_case(32)])
def test_decisions_with_more_references(references: int, tmp_path: Path):
    """All numbers of references are compared on the same samples, and at the TPR that the fewest have on these."""
    c, sets = dataclasses.replace(C, references=references), SETS[references]
    scores = write_scores(tmp_path, c, 480)
    run(scores, c, tmp_path / "tables", reference_numbers.STUDY)
    table = pd.read_parquet(tmp_path / "tables" / "reference_numbers.parquet")
    assert len(table) == len(sets) * 2 * 9 * 15 * 15
    group_R = np.array(spec.reference_groups(range(references)))

    def score_of(index: Any) -> np.ndarray:
        references = scores.reference_MxN[[*index]], scores.reference_member_MxN[[*index]]
        return stats.lira(scores.target_TxN, *references, variance="pooled")

    whole = {n: [score_of(index) for index in chosen] for n, chosen in sets.items()}
    common_N = ~np.isnan(np.concatenate([s for many in whole.values() for s in many])).any(axis=0)
    assert 0 < common_N.sum() < 480

    def metrics(score_BxN: np.ndarray, kept: int, tpr: float | None) -> list[float]:
        used_N = common_N & ~np.isnan(score_BxN).any(axis=0)
        score_BxM = score_BxN[:, used_N & scores.member_N]
        decisions = []
        for score_M, score_N in zip(score_BxM, score_BxN, strict=True):
            if tpr is None:
                outside_N = score_N[used_N & ~scores.member_N]
                decisions.append(score_M >= stats.threshold_at_fpr(outside_N, 0.1))
            else:
                decisions.append(np.argsort(np.argsort(-score_M)) < round(tpr * len(score_M)))
        kept_B = np.arange(10) % 8 != kept - 1
        votes_M, replicas = np.sum(decisions, axis=0, where=kept_B[:, None]), kept_B.sum()
        cutoff = stats.coin_flip_cutoff(int(replicas))[0]
        coin_flips = np.mean(np.minimum(votes_M, replicas - votes_M) >= cutoff)
        rate = stats.flip_rate(votes_M, int(replicas)).mean()
        return [rate, float(coin_flips), votes_M.mean() / replicas]

    fewest = min(sets)
    fewest_tpr = float(np.mean([metrics(score, 0, None)[2] for score in whole[fewest]]))
    for n, kept, half in (
        (fewest, 0, 0),
        (fewest, 2, 5),
        (8, 0, 8),
        (16, 0, 3),
        (references, 1, 0),
    ):
        in_half_R = np.isin(group_R, [*(spec.half_groups(half - 1) if half else range(8))])
        parts = [[r for r in index if in_half_R[r]] for index in sets[n]]
        for point, tpr in (("fpr", None), ("tpr", fewest_tpr)):
            expected = np.mean([metrics(score_of(p), kept, tpr) for p in parts if p], axis=0)
            at = table[["reference_count", "at_equal", *study_inputs.PARTS]].eq(
                [n, point, kept, half, 0]
            )
            row = table[at.all(axis=1)].iloc[0]
            found = row[["flip_rate", "coin_flips", "tpr"]].to_numpy(float)
            np.testing.assert_allclose(found, expected)


def test_thresholds_of_groups_of_texts(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    population: Any = scores.population
    number_N = np.arange(160)
    population.columns["prefix_group"] = np.where(number_N < 80, number_N // 2 * 2, number_N)
    population.columns["tfidf"][3] = np.nan
    monkeypatch.setattr(SyntheticScores, "population", population)
    monkeypatch.setattr(text_groups, "FEWEST_FALSE_POSITIVES", 0.8)  # 8 non-members
    run(scores, FEW, tmp_path, text_groups.STUDY)
    table = pd.read_parquet(tmp_path / "text_groups.parquet")
    score_BxN = stats.lira(
        scores.target_TxN, scores.reference_MxN[:12], scores.reference_member_MxN[:12]
    )
    # Lengths from 3 to 9 and five values of TF-IDF in equal numbers: equal values stay together.
    groups = {
        "tokens": np.array([0, 0, 1, 1, 2, 2, 3])[number_N % 7],
        "tfidf": np.array([0, 0, 1, 2, 3])[number_N % 5],
        "prefix": (number_N < 80).astype(int),
    }
    groups["tfidf"][3] = -2
    lengths = table[table["division"] == "tokens"].groupby("group")[["lowest", "highest"]].first()
    assert lengths.to_numpy().tolist() == [[3, 9], [3, 4], [5, 6], [7, 8], [9, 9]]
    for kept, half in ((0, 0), (4, 0), (0, 3)):
        used_N = stats.HALVES_HxG[half - 1, number_N % 8] if half else np.ones(160, bool)
        used_N = used_N & ~np.isnan(score_BxN).any(axis=0)
        kept_B = np.arange(10) % 8 != kept - 1
        for division, group_N in groups.items():
            for thresholds in ("one", "by_group"):
                decision_BxN = np.zeros((10, 160), bool)
                for b, n in np.ndindex(10, 160):
                    others_N = used_N & ~scores.member_N & (number_N % 8 != n % 8)
                    if thresholds == "by_group":
                        others_N = others_N & (group_N == group_N[n])
                    if used_N[n] and others_N.any():
                        sorted_K = np.sort(score_BxN[b, others_N])
                        ranks = np.arange(1, 1 + len(sorted_K)) / (1 + len(sorted_K))
                        decision_BxN[b, n] = score_BxN[b, n] >= np.interp(0.9, ranks, sorted_K)
                for group in (*range(group_N.max() + 1), text_groups.ALL):
                    in_group_N = (group_N == group) | ((group == text_groups.ALL) & (group_N >= 0))
                    size, in_group_N = in_group_N.sum(), in_group_N & used_N
                    member_N = in_group_N & scores.member_N
                    called_BxM = decision_BxN[kept_B][:, member_N]
                    false_BxN = decision_BxN[kept_B][:, in_group_N & ~scores.member_N]
                    precision = called_BxM.sum() / (called_BxM.sum() + false_BxN.sum())
                    flips = stats.flip_rate(called_BxM.sum(axis=0), int(kept_B.sum())).mean()
                    at = table[["division", "group", "thresholds", *study_inputs.PARTS]].eq(
                        [division, group, thresholds, kept, 0, half]
                    )
                    assert table[at.all(axis=1)]["samples_in_group"].item() == size
                    row = table[at.all(axis=1)].iloc[0][["fpr", "tpr", "precision", "flip_rate"]]
                    expected = [false_BxN.mean(), called_BxM.mean(), precision, flips]
                    np.testing.assert_allclose(row.to_numpy(float), expected)


def test_thresholds_of_groups_have_the_rate_of_one_threshold():
    """Thresholds that were calibrated on few samples do not call more other non-members members."""
    rng = np.random.default_rng(0)
    for nonmembers in (30, 300):
        rates = [
            np.mean(rng.normal(size=2000) >= threshold)
            for threshold in text_groups._thresholds(rng.normal(size=(2000, nonmembers)), 0.05)
        ]
        error = np.std(rates) / np.sqrt(2000)
        assert abs(np.mean(rates) - 0.05) < 4 * error + 0.001


def test_groups_of_texts_are_not_possible(scores: SyntheticScores, tmp_path: Path):
    run(scores, FEW, tmp_path, text_groups.STUDY)
    facts = json.loads((tmp_path / "text_groups.json").read_text())
    assert "40 or more non-members" in facts["reason"]
    population: Any = scores.population
    population.columns = {"tokens": population.lengths_N}
    view, write = cast(Any, SimpleNamespace(attacked=population)), cast(Any, None)
    with pytest.raises(Unavailable, match="no tfidf, prefix_group"):
        text_groups.compute(
            view, write, focus_fpr=0.1, variance="per_sample", finite_population=False
        )


def test_too_few_replicas_are_a_reason(scores: SyntheticScores, tmp_path: Path):
    run(scores, dataclasses.replace(FEW, replicas=8), tmp_path, fragile_hits.STUDY)
    facts = json.loads((tmp_path / "fragile_hits.json").read_text())
    numbers = re.match(
        r"(\d+) replicas\D+(\d+) references\D+(\d+)\D+(\d+)\b.*; run lm-mia run ", facts["reason"]
    )
    assert numbers is not None
    assert numbers.groups() == ("8", "12", "9", "4")
    assert [path.name for path in tmp_path.iterdir()] == ["fragile_hits.json"]


def test_a_recipe_has_the_studies_of_its_figures():
    names = {"a": "flip-140M", "b": "main"}
    none = spec.PresentModels((), ())
    recipes = {k: spec.RecipeModels((n,), config.Config(), none) for k, n in names.items()}
    wanted = spec.StudyNeed(("flip-*",), fragile_hits.STUDY)
    found = recipe_needs([wanted, wanted], recipes)
    assert found["a"].studies == (fragile_hits.STUDY,)
    assert found["b"].studies == ()
    with pytest.raises(ValueError, match=r"^StudyNeed: study='x': must be a Study"):
        spec.StudyNeed(("main",), "x")  # pyright: ignore
    with pytest.raises(ValueError, match=r"^Study: name='two words'"):
        spec.Study("two words", fragile_hits.compute, fragile_hits.STUDY.tables)
    with pytest.raises(ValueError, match=r"^Study: tables=\('a.csv',\): .*\bTable\b"):
        spec.Study("word", fragile_hits.compute, ("a.csv",))  # pyright: ignore


def test_tfidf_over_all_tokens_of_a_population(tmp_path: Path):
    population = docstring_population.write(tmp_path / "p", frequency_samples=40).from_sample(2)
    written: dict[str, pd.DataFrame] = {}
    view: Any = SimpleNamespace(attacked=population)
    samples.compute_tfidf(view, cast(Any, written.__setitem__))
    table = written["token_tfidf.parquet"]
    assert table["id"].tolist() == [*range(2, 2 + len(population))]
    frequency_V = np.load(population.folder / "document_frequency.npy")
    for n in (0, 5, len(population) - 1):
        text = [t for t in population.sample(n).tolist() if t not in (1, 2)]  # <eos>, <bos>
        value = [text.count(t) * (np.log(41 / (1 + frequency_V[t])) + 1) for t in text]
        assert table["tfidf"][n] == pytest.approx(np.mean(value))
    imported = SimpleNamespace(attacked=SimpleNamespace(is_imported=True))
    with pytest.raises(Unavailable, match="imported"):
        samples.compute_tfidf(cast(Any, imported), cast(Any, written.__setitem__))


def refused(scores: SyntheticScores, folder: Path, *studies: spec.Study) -> str:
    """Returns the message of a view, or of the first study."""
    needs = spec.RecipeNeeds(studies=studies)
    try:
        view = view_of(scores.store, scores.population, FEW, folder / "pieces", needs)
        compute(study_set(studies[0])(view), folder)
    except UserError as error:
        return str(error)
    return ""


def test_mistakes_of_a_study_are_one_line(scores: SyntheticScores, tmp_path: Path):
    [table] = samples.TFIDF_STUDY.tables

    def study(function: Any, name: str = "mine", file: str = "mine.csv") -> spec.Study:
        return spec.Study(name, function, (dataclasses.replace(table, file=file),))

    def misspelled(view: Any, write: Any, *, focus_fprs: float) -> None: ...

    def undeclared(view: Any, write: Any) -> None:
        write("other.csv", pd.DataFrame({"id": [0]}))

    def reads(view: Any, write: Any) -> None:
        view.table("samples.parquet")

    assert "focus_fprs: keyword-only" in refused(scores, tmp_path, study(misspelled))
    assert "writes other.csv" in refused(scores, tmp_path, study(undeclared))
    assert "reads samples.parquet" in refused(scores, tmp_path, study(reads))
    for others in (
        [study(reads, file="samples.parquet")],
        [study(reads), study(undeclared, file="other.csv")],
        [study(reads), study(undeclared, "other")],
        [study(reads, "pooling")],
    ):
        assert "choose another name" in refused(scores, tmp_path, *others)
