"""The most exposed texts: each sample under the headline attack, and lists with their expected wrong entries."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from array_scores import array_scores
from synthetic_scores import SMALL, FakePopulation, SyntheticScores, write_scores
from views import view_of

from analysis.experiments.recipe import exposed
from lm_mia import config, stats
from lm_mia.attacks import runner
from lm_mia.errors import Unavailable

FPRS, FOCUS = (0.02, 0.1, 0.2), 0.1
SETTINGS: dict[str, Any] = {"band": (0.0, 0.1), "focus_fpr": FOCUS, "fprs": FPRS}


def draw(models: int, samples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Returns score_TxN, with ties, and member_N."""
    rng = np.random.default_rng(0)
    member_N = rng.permuted(np.arange(samples) < samples // 2)
    score_TxN = rng.normal(size=samples) + rng.normal(size=(models, samples)) + 2 * member_N
    return np.round(score_TxN, 1), member_N


def headline_samples(
    score_TxN: np.ndarray, member: np.ndarray, folder: Path, first_id: int = 0, **how: Any
) -> pd.DataFrame:
    member_TxN = np.broadcast_to(member, score_TxN.shape)
    with array_scores(score_TxN, member_TxN, folder, **how) as scores:
        cast(Any, scores.population).first_id = first_id
        return pd.concat(exposed.headline_samples(scores, **SETTINGS), ignore_index=True)


@pytest.mark.parametrize("replicas", [2, 9])
def test_samples_of_replicas_one_by_one(replicas: int, tmp_path: Path):
    score_TxN, member_N = draw(replicas)
    score_TxN[0, 3] = score_TxN[1, 5] = np.nan
    table = headline_samples(score_TxN, member_N, tmp_path, first_id=50)
    assert [*table] == exposed.HEADLINE_SAMPLES.column_names
    assert table["id"].tolist() == [*range(50, 450)]
    assert table["member"].tolist() == member_N.tolist()
    outside_T = [s[~member_N & ~np.isnan(s)] for s in score_TxN]
    numbers = ["score", "above", "votes", "flip_rate", "coin_flip_p", "p_value"]
    assert table.loc[[3, 5], numbers].isna().all(axis=None)
    mean_N = score_TxN.mean(axis=0)
    for i in (0, 1, 77, int(np.nanargmax(mean_N)), int(np.nanargmin(mean_N))):
        row, score_T = table.iloc[i], score_TxN[:, i]
        votes = sum(
            s >= stats.threshold_at_fpr(o, FOCUS) for s, o in zip(score_T, outside_T, strict=True)
        )
        assert row["score"] == pytest.approx(mean_N[i])
        below = [np.mean(o < s) for s, o in zip(score_T, outside_T, strict=True)]
        assert row["above"] == pytest.approx(np.mean(below))
        assert row["votes"] == votes
        assert row["flip_rate"] == pytest.approx(
            2 * votes * (replicas - votes) / replicas / (replicas - 1)
        )
        assert row["coin_flip_p"] == pytest.approx(stats.p_value(votes, replicas))
        # 200 non-members do not show a rate of 0.001.
        called = [
            f
            for f in (0.01, 0.05, 0.1, 0.2)
            if score_T[0] >= stats.threshold_at_fpr(outside_T[0], f)
        ]
        assert row["called_at"] == pytest.approx(min(called, default=np.nan), nan_ok=True)
    known_N = ~np.isnan(mean_N)
    ids = np.arange(50, 450)
    chosen = member_N & known_N, ~member_N & known_N
    expected = stats.conformal_p_value(
        *(mean_N[c] for c in chosen), id_N=ids[chosen[0]], nonmember_id_K=ids[chosen[1]]
    )
    np.testing.assert_array_equal(table["p_value"][chosen[0]], expected)
    assert table["p_value"][~member_N].isna().all()


def test_the_first_of_several_targets_is_described(tmp_path: Path):
    score_TxN, member_N = draw(3)
    member_TxN = np.stack([member_N, ~member_N, member_N])
    several = headline_samples(score_TxN, member_TxN, tmp_path, replicas=False)
    first = headline_samples(score_TxN[:1], member_N, tmp_path, replicas=False)
    pd.testing.assert_frame_equal(several, first)
    assert several[["flip_rate", "coin_flip_p"]].isna().all(axis=None)
    assert {*several["votes"]} == {0, 1}


def test_nothing_is_called_at_rates_that_nonmembers_do_not_show(tmp_path: Path):
    score_TxN, member_N = draw(2)
    score_TxN[:, np.flatnonzero(~member_N)[9:]] = np.nan
    table = headline_samples(score_TxN, member_N, tmp_path)
    assert (table["votes"].dropna() == 0).all()
    assert {*table["called_at"].dropna()} == {0.2}
    score_TxN[:, ~member_N] = np.nan
    table = headline_samples(score_TxN, member_N, tmp_path)
    assert table[["above", "called_at", "p_value"]].isna().all(axis=None)
    assert (table["votes"].dropna() == 0).all()


def test_many_samples_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    score_TxN, member_N = draw(2)
    whole = headline_samples(score_TxN, member_N, tmp_path)
    monkeypatch.setattr(exposed, "_GROUP_SAMPLES", 150)
    with array_scores(score_TxN, np.tile(member_N, (2, 1)), tmp_path) as scores:
        parts = [*exposed.headline_samples(scores, **SETTINGS)]
    assert [len(part) for part in parts] == [150, 150, 100]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole)


def exposed_table(
    samples: pd.DataFrame,
    population: FakePopulation | None = None,
    replicas: int = 0,
) -> pd.DataFrame:
    """Returns exposed.csv of a table of samples."""
    of_models = pd.DataFrame({"attack": ["loss", *["own"] * max(replicas, 1)]})
    tables = {exposed.HEADLINE_SAMPLES.file: samples, "attacked_models.csv": of_models}
    view = SimpleNamespace(
        table=lambda name, columns: tables[name][columns],
        roles=SimpleNamespace(replicas=range(replicas)),
        population=population or FakePopulation(int(samples["id"].max()) + 1),
    )
    written: dict[str, pd.DataFrame] = {}
    exposed.exposed(cast(Any, view), cast(Any, written.__setitem__), headline="attacks.py:own")
    return written[exposed.EXPOSED.file]


def samples_of(score_N: np.ndarray, member_N: np.ndarray) -> pd.DataFrame:
    """Returns the columns of headline_samples.parquet that are read."""
    p_N = np.full(score_N.size, np.nan)
    p_N[member_N] = stats.conformal_p_value(score_N[member_N], score_N[~member_N])
    columns = {"id": np.arange(score_N.size), "member": member_N, "score": score_N, "votes": 1.0}
    return pd.DataFrame(columns | {"p_value": p_N})


def test_lists_by_hand():
    """Four members and four non-members, of which none, one, one and three are above the members."""
    score_N = np.array([9.0, 7.0, 6.0, 1.0, 8.0, 4.0, 3.0, 0.0])
    table = exposed_table(samples_of(score_N, np.arange(8) < 4))
    assert [*table] == exposed.EXPOSED.column_names
    assert table["id"].tolist() == [0, 1, 2, 3]
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert table["p_value"].tolist() == [0.2, 0.4, 0.4, 0.8]
    # 4 x 0.2 / 1 = 0.8, 0.8, 4 x 0.4 / 3 = 0.533, 0.8: the third list is the best one for the first two members.
    assert table["wrong_share"].tolist() == pytest.approx([1.6 / 3] * 3 + [0.8])
    low, high = stats.clopper_pearson([1, 1, 1, 3], 4)
    scale = 4 / np.array([3, 3, 3, 4])
    np.testing.assert_allclose(table["wrong_share_low"], low * scale)
    np.testing.assert_allclose(table["wrong_share_high"], np.minimum(high * scale, 1))
    assert (table["models"] == 1).all()
    assert {*table["name"], *table["source"], *table["user"]} == {""}
    assert exposed.longest_list(table, 0.5) == 0
    assert exposed.longest_list(table, 0.6) == 3
    assert exposed.longest_list(table, 0.8) == 4


def test_the_interval_contains_the_number(tmp_path: Path):
    for models, seed in ((1, 0), (3, 1)):
        score_TxN, member_N = draw(models)
        score_TxN[0, np.random.default_rng(seed).random(400) < 0.1] = np.nan
        samples = headline_samples(score_TxN, member_N, tmp_path, replicas=models > 1)
        table = exposed_table(samples, replicas=models if models > 1 else 0)
        assert len(table) == samples.loc[samples["member"], "score"].notna().sum()
        assert (table["models"] == models).all()
        assert table["wrong_share"].is_monotonic_increasing
        assert table["p_value"].is_monotonic_increasing
        assert table["score"].is_monotonic_decreasing
        assert (table["wrong_share_low"] <= table["wrong_share"]).all()
        assert (table["wrong_share"] <= table["wrong_share_high"]).all()
        assert table["wrong_share_high"].max() <= 1


def test_records_are_those_of_the_population(monkeypatch: pytest.MonkeyPatch):
    """The ids of canaries count from the first sample of the population."""
    monkeypatch.setattr(exposed, "MOST_EXPOSED", 3)
    samples = samples_of(np.array([5.0, 6.0, 7.0, 8.0, 1.0, 2.0]), np.arange(6) < 4)
    samples["id"] += 10
    population = FakePopulation(16)
    population.columns["source"] = np.array([f"book {i}" for i in range(16)], object)
    table = exposed_table(samples, population)
    assert table["source"].tolist() == ["book 13", "book 12", "book 11"]
    assert table["name"].tolist() == ["", "", ""]


def test_lists_need_scores_of_both_classes():
    samples = samples_of(np.arange(6.0), np.arange(6) < 3)
    for missing in (samples["member"], ~samples["member"]):
        with pytest.raises(Unavailable):
            exposed_table(samples.assign(score=samples["score"].mask(missing)))


def list_of(rng: np.random.Generator, members: int, exposed_members: int, gap: float):
    """Returns exposed.csv and, for each of its rows, whether the member is like a non-member, and its score."""
    score_N = rng.normal(size=members + 500)
    score_N[:exposed_members] += gap
    table = exposed_table(samples_of(score_N, np.arange(score_N.size) < members))
    return table, table["id"].to_numpy() >= exposed_members


@pytest.mark.montecarlo
def test_noise_has_no_list_of_exposed_members():
    rng, lengths, shares, rounds = np.random.default_rng(0), [], [], 150
    for _ in range(rounds):
        table, _ = list_of(rng, 500, 0, 0.0)
        lengths.append(exposed.longest_list(table, 0.05))
        shares.append(table["wrong_share"].to_numpy()[[99, 499]])
    assert np.mean(np.array(lengths) > 0) < 0.08
    share_2 = np.mean(shares, axis=0)
    assert 0.85 < share_2[0] < share_2[1]
    assert share_2[1] > 0.99


@pytest.mark.montecarlo
@pytest.mark.parametrize(("exposed_members", "gap"), [(150, 3.0), (150, 1.5), (400, 2.5)])
def test_wrong_entries_of_a_mixture(exposed_members: int, gap: float):
    """In the mean at most 5 % of the list are wrong, and intervals cover what they are of."""
    rng, rounds, members, rows = np.random.default_rng(0), 150, 500, np.array([4, 49, 149])
    wrong, covered, bounded = [], [], []
    for _ in range(rounds):
        table, is_wrong_K = list_of(rng, members, exposed_members, gap)
        length = exposed.longest_list(table, 0.05)
        wrong.append(is_wrong_K[:length].mean() if length else 0)
        share_K = pd.Series(np.cumsum(is_wrong_K)) / table["rank"]
        bounded.append(share_K.to_numpy()[rows] <= table["wrong_share_high"].to_numpy()[rows])
        # The list whose share the row shows, and the share of non-members that would be above its last member.
        last = [
            int(np.flatnonzero(table["wrong_share"] == table["wrong_share"][k])[-1]) for k in rows
        ]
        above = scipy.stats.norm.sf(table["score"].to_numpy()[last])
        truth = np.minimum(members * above / (np.array(last) + 1), 1)
        low, high = (table[f"wrong_share_{end}"].to_numpy()[rows] for end in ("low", "high"))
        covered.append((low <= truth) & (truth <= high))
    assert np.mean(wrong) < 0.05
    assert (np.mean(covered, axis=0) > 0.92).all()
    assert (np.mean(bounded, axis=0) > 0.93).all()


C = dataclasses.replace(
    SMALL, headline="reference_calibrated", attacks=("lira_online", "reference_calibrated")
)


def page(
    scores: SyntheticScores, c: config.Attack, folder: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns page_samples.parquet and headline_samples.parquet of a store."""
    view = view_of(scores.store, scores.population, c, folder)
    page, samples = (view.table(t.file) for t in (exposed.PAGE_SAMPLES, exposed.HEADLINE_SAMPLES))
    return page, samples.set_index("id")


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("exposed"), C, 800)


def test_samples_of_the_page(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exposed, "_NUM_SHOWN", {"top": 20, "coin": 15, "alarm": 10})
    table, samples = page(scores, C, tmp_path)
    assert [*table] == exposed.PAGE_SAMPLES.column_names
    score_K = samples.loc[table["id"], "score"].to_numpy()
    assert (np.diff(score_K) <= 0).all()
    by_score = samples.sort_values("score", ascending=False, kind="stable")
    members, others = by_score[by_score["member"]], by_score[~by_score["member"]]
    is_in = {key: [key in keys for keys in table["chosen_by"]] for key in ("top", "coin", "alarm")}
    assert table["id"][is_in["top"]].tolist() == members.index[:20].tolist()
    assert table["id"][is_in["alarm"]].tolist() == others.index[others["votes"] > 0][:10].tolist()
    coins = table["id"][is_in["coin"]]
    k_low, _ = stats.coin_flip_cutoff(8)
    assert len(coins) == 15
    assert samples.loc[coins, "votes"].between(k_low, 8 - k_low).all()
    assert samples.loc[coins, "member"].all()
    assert samples.loc[coins, "flip_rate"].min() >= members["flip_rate"].nlargest(15).min()
    assert not {*table["id"][is_in["alarm"]]} & {*table["id"][is_in["top"]]}
    for row in table.itertuples():
        i = cast(int, row.id)
        is_in_R = scores.reference_member_MxN[:, i]
        np.testing.assert_allclose(cast(Any, row.in_loss_nats), scores.reference_MxN[is_in_R, i])
        np.testing.assert_allclose(cast(Any, row.out_loss_nats), scores.reference_MxN[~is_in_R, i])
        np.testing.assert_allclose(cast(Any, row.model_loss_nats), scores.target_TxN[:, i])
        assert sum(cast(Any, row.called)) == samples.loc[i, "votes"]
        assert row.text == f"text {i} {'x' * 500}"


def test_long_texts_are_cut(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exposed, "_MAX_CHARS", 20)
    table, _ = page(scores, C, tmp_path)
    assert {*table["text"].str.len()} == {22}
    assert table["text"].str.endswith(" …").all()


def test_few_replicas_reject_no_coin(scores: SyntheticScores, tmp_path: Path):
    """Where votes cannot rule out a coin flip for any sample, the page has no list of such samples."""
    c = dataclasses.replace(C, replicas=2)
    table, _ = page(scores, c, tmp_path)
    assert not any("coin" in keys for keys in table["chosen_by"])


def test_attacks_without_references_and_with_canaries(tmp_path: Path):
    """Samples before the canaries are in every training subset, and are not attacked."""
    c = dataclasses.replace(C, headline="loss", attacks=("lira_online", "loss"))
    scores = write_scores(tmp_path / "r", c, 400)
    first = 300
    store = dataclasses.replace(scores.store, first_canary=first)
    canaries = dataclasses.replace(scores, store=store)
    table, samples = page(canaries, c, tmp_path / "pieces")
    assert samples.index.tolist() == [*range(first, 400)]
    assert table["id"].between(first, 399).all()
    for row in table.itertuples():
        i = cast(int, row.id)
        np.testing.assert_allclose(cast(Any, row.model_loss_nats), scores.target_TxN[:, i])
        assert samples.loc[i, "score"] == pytest.approx(-scores.target_TxN[:, i].mean())
        assert not len(cast(Any, row.in_loss_nats))


def test_scores_that_are_missing_are_not_shown(tmp_path: Path):
    """LiRA has no score of samples that all references, or none, were trained on."""
    c = dataclasses.replace(C, headline="lira_online", replicas=3, references=4)
    scores = write_scores(tmp_path / "r", c, 400, "bernoulli")
    table, samples = page(scores, c, tmp_path / "pieces")
    assert samples["score"].isna().any()
    assert samples.loc[table["id"], "score"].notna().all()
    view = view_of(scores.store, scores.population, c, tmp_path / "pieces")
    listed = view.table(exposed.EXPOSED.file)
    assert len(listed) == samples.loc[samples["member"], "score"].notna().sum()
    assert (listed["models"] == 3).all()
    assert listed["found_in"].between(0, 3).all()


def test_another_headline_attack_recomputes_only_what_is_about_it(
    scores: SyntheticScores, tmp_path: Path
):
    """Results of before are kept, so that going back to the first attack computes nothing."""
    attacks = "lira_online", "reference_calibrated", "loss"
    c = dataclasses.replace(C, replicas=3, attacks=attacks, headline="loss")

    def run(c: config.Attack) -> tuple[dict[str, bytes], set[str]]:
        before = {path.name for path in (tmp_path / "pieces").glob("*")}
        view = view_of(scores.store, scores.population, c, tmp_path / "pieces")
        runner.run(view, tmp_path / "tables")
        tables = {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
        return tables, {path.name for path in (tmp_path / "pieces").glob("*")} - before

    first, new = run(c)
    assert new
    second, new = run(dataclasses.replace(c, headline="reference_calibrated"))
    of_headline = {
        *("headline_roc.csv", "headline_samples.parquet", "page_samples.parquet"),
        *("exposed.csv", "found_again.csv", "found_by_text.csv", "strength.csv"),
    }
    assert {name for name in first if first[name] != second[name]} == of_headline
    assert second.keys() == first.keys()
    assert {name.partition("-")[0] for name in new} == {n.partition(".")[0] for n in of_headline}
    third, new = run(c)
    assert third == first
    assert not new
