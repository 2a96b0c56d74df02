"""Attacks on targets with different training subsets, and the tables of these attacks."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import FakePopulation
from views import view_of

from lm_mia import config, stats
from lm_mia.attacks import evaluations, exports, models, runner, score_matrix, spec, target_warnings
from lm_mia.attacks.pieces import Pieces, pieces_of
from lm_mia.attacks.requests import attack_spec, reference_parts
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.seeds import permutation
from lm_mia.store.store import Store

SAMPLES, PIECES = 300, 3
C = config.Attack(
    references=20,
    targets=4,
    replicas=0,
    fprs=(0.02, 0.1, 0.5),
    focus_fpr=0.1,
    band=(0.01, 0.2),
    rmia_samples=100,
)


@dataclasses.dataclass(frozen=True)
class World:
    """A score store of 20 models, the first four of which are the targets, and the values in it."""

    store: Store
    loss_MxN: np.ndarray
    logit_MxN: np.ndarray
    member_MxN: np.ndarray
    messages: list[str]

    def attack(self, name: str, references: int = 16, **changes: Any) -> AttackSpec:
        present = models.model_numbers(models.present_models(self.store))
        full_config = config.Config(population=config.Population(samples=SAMPLES), attack=C)
        attack = attack_spec(
            spec.RecipeModels((), full_config, present), spec.Variant(name, references, **changes)
        )
        assert attack is not None
        return attack

    def parts(self, name: str, references: int = 16) -> tuple[AttackSpec, ...]:
        """Returns the attack with each part of its references."""
        present = models.model_numbers(models.present_models(self.store))
        full_config = config.Config(population=config.Population(samples=SAMPLES), attack=C)
        return reference_parts(
            spec.RecipeModels((), full_config, present), spec.Variant(name, references)
        )

    def pieces(self, folder: Path, c: config.Attack = C) -> Pieces:
        return pieces_of(self.store, "recipe", c, folder / "pieces")

    def run(
        self,
        folder: Path,
        attacks: Sequence[AttackSpec],
        c: config.Attack = C,
        more: Sequence[Request] = (),
        score_table: Sequence[AttackSpec] = (),
    ) -> tuple[int, int, int]:
        """Returns the numbers of attacks that were requested, computed and left out."""
        view = view_of(
            self.store,
            cast(Population, FakePopulation(SAMPLES, PIECES)),
            c,
            folder / "pieces",
            RecipeNeeds([*points_of(attacks), *more], score_table),
            say=self.messages.append,
        )
        counts = runner.run(view, folder)
        assert list(counts) == ["requested", "computed", "left_out"]
        return counts["requested"], counts["computed"], counts["left_out"]


def points_of(attacks: Sequence[AttackSpec]) -> list[Request]:
    return [Request(attack, evaluations.operating_points) for attack in attacks]


def make_world(
    folder: Path, effect: float, design: subsets.Design, lacks_logit: Sequence[int] = ()
) -> World:
    """A world in which training on a sample lowers its loss by the effect."""
    rng, rows = np.random.default_rng(0), subsets.requested_seeds(20, 0)
    member_MxN = subsets.members(rows, SAMPLES, design)
    level_N, noise_MxN = rng.normal(4, 0.5, SAMPLES), rng.normal(0, 0.2, member_MxN.shape)
    loss_MxN = (level_N - effect * member_MxN + noise_MxN).astype(np.float32)
    logit_MxN = (rng.normal(0, 0.2, member_MxN.shape) - loss_MxN).astype(np.float32)
    store = Store(folder / "recipe_x" / "scores.zarr", ("target_logit",))
    store.path.parent.mkdir(parents=True)
    store.create_or_extend(rows, {"tokens": np.arange(SAMPLES)}, {})
    for m, row in enumerate(rows):
        values = {} if m in lacks_logit else {"target_logit": logit_MxN[m]}
        with_statistics = dataclasses.replace(store, statistics=tuple(values))
        with_statistics.write_model(row, loss_MxN[m], member_MxN[m], values)
    return World(dataclasses.replace(store, statistics=()), loss_MxN, logit_MxN, member_MxN, [])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), 0.3, "exact")


def attacks_of_every_kind(world: World) -> list[AttackSpec]:
    return [
        world.attack("lira_online"),
        world.attack("lira_online", 6),
        world.attack("lira_offline", 5),
        world.attack("rmia"),
        world.attack("rmia_offline", 6, rmia_samples=40, rmia_gamma=1.2, rmia_a=0.3),
        world.attack("rmia_simple", 4),
        world.attack("loss"),
        world.attack("zlib"),
        world.attack("loss", observed="target_logit"),
        world.attack("lira_online", observed="target_logit"),
    ]


@pytest.fixture(scope="module")
def computed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of attacks of every kind; tests that change them take a copy."""
    folder = tmp_path_factory.mktemp("computed")
    attacks = attacks_of_every_kind(world)
    more = [
        Request(attacks[0], evaluations.halved_rates, world.parts("lira_online")),
        Request(attacks[3], evaluations.halved_rates),
        Request(attacks[0], evaluations.sample_scores),
    ]
    assert world.run(folder, attacks, more=more) == (24, 24, 0)
    assert world.messages == []
    return folder


def slow_scores(world: World, attack: AttackSpec, t: int) -> np.ndarray:
    """Returns score_N under one target, from lm_mia.stats."""
    observed_MxN = world.loss_MxN if attack.observed == "loss" else -world.logit_MxN
    target_1xN, index = observed_MxN[[t]], [*attack.references]
    reference_MxN, member_MxN = observed_MxN[index], world.member_MxN[index]
    ids_Z = np.sort(
        permutation(0, "samples that RMIA compares with", SAMPLES)[: attack.rmia_samples]
    )
    log_p = -target_1xN, -reference_MxN
    match attack.attack:
        case "lira_online":
            return stats.lira(target_1xN, reference_MxN, member_MxN)[0]
        case "lira_offline":
            return stats.lira(target_1xN, reference_MxN, member_MxN, offline=True)[0]
        case "rmia":
            compared = (log_p_RxN[:, ids_Z] for log_p_RxN in log_p)
            return stats.rmia(*log_p, *compared, gamma=attack.rmia_gamma)[0]
        case "rmia_offline":
            compared = (log_p_RxN[:, ids_Z] for log_p_RxN in log_p)
            members = {
                "reference_member_MxN": member_MxN,
                "reference_member_MxZ": member_MxN[:, ids_Z],
            }
            settings: dict[str, Any] = {"gamma": attack.rmia_gamma, "a": attack.rmia_a}
            return stats.rmia(*log_p, *compared, offline=True, **settings, **members)[0]
        case "rmia_simple":
            return stats.rmia_simple(*log_p)[0]
        case "loss":
            return -target_1xN[0].astype(float)
        case _:
            assert attack.attack == "zlib"
            return -target_1xN[0].astype(float) / FakePopulation(SAMPLES).column("zlib_bytes")


def test_targets_are_evaluated_with_their_own_membership(world: World, computed: Path):
    table = pd.read_csv(computed / "targets.csv")
    lines = {(line["attack_id"], line["target"]): line for line in table.to_dict("records")}
    curves = pd.read_parquet(computed / "target_roc.parquet").groupby(["attack_id", "target"])
    assert len(table) == len(curves) == 4 * len(attacks_of_every_kind(world))
    unlike = 0
    for attack in attacks_of_every_kind(world):
        for t in range(4):
            key, member_N = (attack.id, f"reference-{t:02d}"), world.member_MxN[t]
            score_N = slow_scores(world, attack, t)
            line, operating_points = lines[key], stats.tpr_at_fpr(score_N, member_N, C.fprs)
            assert line["auc"] == pytest.approx(operating_points.auc_T[0], rel=1e-12)
            counts = [line[name] for name in ("members", "nonmembers", "left_out")]
            assert counts == [
                operating_points.members_T[0],
                operating_points.nonmembers_T[0],
                np.isnan(score_N).sum(),
            ]
            first_member_auc = stats.auc(score_N, world.member_MxN[0]).auc_T[0]
            unlike += t > 0 and abs(line["auc"] - first_member_auc) > 0.05
            points = curves.get_group(key)
            for on_curve in (False, True):
                part = points[points["on_curve"] == on_curve]
                rates = C.fprs
                if on_curve:
                    rates = score_matrix.curve_fprs(C.band, world.member_MxN[0])
                assert part["fpr"].tolist() == list(rates)
                at = "vertex" if on_curve else "paper"
                expected = stats.tpr_at_fpr(score_N, member_N, rates, at=at).tpr_TxF[0]
                # The non-members with a score cannot show lower rates.
                scored = operating_points.nonmembers_T[0]
                expected[[0 < rate * scored < 1 - 1e-9 for rate in rates]] = np.nan
                np.testing.assert_allclose(part["tpr"], expected, rtol=1e-12)
    assert unlike > 25  # the membership of the first target would give other numbers
    assert (table["left_out"] > 0).any()


def test_columns_describe_the_attack(world: World, computed: Path):
    table = pd.read_csv(computed / "targets.csv", dtype=str, keep_default_na=False)
    described = table.drop(columns=["target", "auc", "members", "nonmembers", "left_out"])
    described_columns = described.drop_duplicates().set_index("attack_id").agg(",".join, axis=1)
    expected = [
        "lira_online,16,4-19,,loss,0,,,,",
        "lira_online,6,4-9,,loss,0,,,,",
        "lira_offline,5,4-8,,loss,0,,,,",
        "rmia,16,4-19,,loss,0,100,1.0,,",
        "rmia_offline,6,4-9,,loss,0,40,1.2,0.3,False",
        "rmia_simple,4,4-7,,loss,0,,,,",
        "loss,0,,,loss,0,,,,",
        "zlib,0,,,loss,0,,,,",
        "loss,0,,,target_logit,0,,,,",
        "lira_online,16,4-19,,target_logit,0,,,,",
    ]
    assert described_columns.to_dict() == {
        attack.id: line for attack, line in zip(attacks_of_every_kind(world), expected, strict=True)
    }
    assert exports._format_ranges((0, 1, 2, 5, 7, 8)) == "0-2 5 7-8"


def test_rates_of_halves_of_the_samples(world: World, computed: Path):
    table = pd.read_parquet(computed / "target_jackknife.parquet")
    attacks, parts = attacks_of_every_kind(world), world.parts("lira_online")
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(FakePopulation(SAMPLES, PIECES).document_N)]
    used_H1xN = np.concatenate([np.ones((1, SAMPLES), bool), half_HxN])
    assert len(parts) == 14
    assert set(table["attack_id"]) == {attacks[0].id, attacks[3].id}
    for part, whole, attack in (
        (0, attacks[0], attacks[0]),
        (0, attacks[3], attacks[3]),
        (1, attacks[0], parts[0]),
        (14, attacks[0], parts[13]),
    ):
        of_part = table[(table["attack_id"] == whole.id) & (table["part"] == part)]
        for t in (0, 3):
            rows = of_part[of_part["target"] == f"reference-{t:02d}"]
            assert rows["half"].tolist() == list(range(15))
            score_N = slow_scores(world, attack, t)
            for h, used_N in enumerate(used_H1xN):
                points = stats.tpr_at_fpr(score_N[used_N], world.member_MxN[t, used_N], C.fprs)
                expected = [points.auc_T[0], *points.tpr_TxF[0]]
                names = ["auc", "tpr_at_0.02", "tpr_at_0.1", "tpr_at_0.5"]
                np.testing.assert_allclose(rows.iloc[h][names].astype(float), expected, rtol=1e-12)


def test_scores_of_every_sample(
    world: World, computed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    attack = world.attack("lira_online")
    request = Request(attack, evaluations.sample_scores)
    kept = world.pieces(computed).read(request)
    assert kept is not None
    names = [f"reference-{t:02d}" for t in range(4)]
    assert kept.columns.tolist() == ["id", *names, *(f"member/{name}" for name in names)]
    assert kept["id"].tolist() == list(range(SAMPLES))
    for t in range(4):
        np.testing.assert_array_equal(kept[f"reference-{t:02d}"], slow_scores(world, attack, t))
        member_N2 = subsets.member(t, SAMPLES, "exact")
        np.testing.assert_array_equal(kept[f"member/reference-{t:02d}"], member_N2)
    monkeypatch.setattr(evaluations, "JACKKNIFE_SAMPLES", 200)
    [part] = world.parts("lira_online")[:1]
    request = Request(part, evaluations.sample_scores)
    world.run(tmp_path, [], more=[request])
    of_part = world.pieces(tmp_path).read(request)
    assert of_part is not None
    np.testing.assert_array_equal(of_part[names[3]], slow_scores(world, part, 3)[:200])


def test_epsilons_of_targets(world: World, tmp_path: Path):
    folder, attack = tmp_path / "t", world.attack("lira_online")
    assert world.run(folder, [attack]) == (1, 1, 0)
    assert not (folder / "target_epsilons.parquet").exists()
    request = Request(attack, evaluations.epsilons, world.parts("lira_online"))
    assert world.run(folder, [attack], more=[request]) == (15, 15, 0)
    assert world.run(folder, [attack], more=[request]) == (15, 0, 0)
    table = pd.read_parquet(folder / "target_epsilons.parquet")
    half_HxN = stats.HALVES_HxG[:, stats.sample_groups(FakePopulation(SAMPLES, PIECES).document_N)]
    used_H1xN = np.concatenate([np.ones((1, SAMPLES), bool), half_HxN])
    assert len(table) == 15 * 4 * len(used_H1xN)
    for t in (0, 3):
        of_target = (table["part"] == 0) & (table["target"] == f"reference-{t:02d}")
        rows = table[of_target].to_dict("records")
        assert [row["half"] for row in rows] == [*range(15)]
        score_N, member_N = slow_scores(world, attack, t), world.member_MxN[t]
        members = np.count_nonzero(member_N & ~np.isnan(score_N))
        for row, used_N in zip(rows, used_H1xN, strict=True):
            scored = score_N[used_N], member_N[used_N]
            for tpr in (0.01, 0.1):
                [epsilon] = stats.empirical_epsilons(*scored, delta=1e-5, rates_G=tpr).tpr_G
                assert row[f"epsilon_at_tpr_{tpr:g}"] == min(epsilon, np.log(members))
            [accuracy] = stats.max_balanced_accuracy(*scored).balanced_accuracy_T
            assert row["balanced_accuracy"] == accuracy
        bound = stats.one_run_bound(score_N, member_N, membership="half", delta=1e-5)
        assert rows[0]["bound_epsilon"] == bound.epsilon
        assert rows[0]["bound_canaries"] == bound.canaries
        assert all(np.isnan(row["bound_epsilon"]) for row in rows[1:])
    # Attacks with a part of the references are for intervals only.
    assert table.loc[table["part"] > 0, "bound_epsilon"].isna().all()
    # Another level of the bounds.
    changed = dataclasses.replace(C, alpha=0.3)
    whole = [Request(attack, evaluations.epsilons)]
    assert world.run(folder, [attack], c=changed, more=whole) == (1, 1, 0)
    higher = pd.read_parquet(folder / "target_epsilons.parquet")["bound_epsilon"].max()
    assert higher > table["bound_epsilon"].max() > 0


def check_score_table(world: World, folder: Path, attacks: Sequence[AttackSpec]) -> None:
    """Compares membership_scores.parquet with slow scores."""
    table = pd.read_parquet(folder / "membership_scores.parquet")
    targets = [f"reference-{t:02d}" for t in range(4)]
    names = [f"{attack.attack}/{target}" for attack in attacks for target in targets]
    assert table.columns.tolist() == ["id", *(f"member/{t}" for t in targets), *names]
    assert table["id"].tolist() == list(range(SAMPLES))
    for t, target in enumerate(targets):
        np.testing.assert_array_equal(table[f"member/{target}"], world.member_MxN[t])
        for attack in attacks:
            np.testing.assert_allclose(
                table[f"{attack.attack}/{target}"],
                slow_scores(world, attack, t),
                rtol=2e-6,
                atol=1e-6,
            )


def test_table_of_membership_scores(world: World, tmp_path: Path):
    attacks = [world.attack(name) for name in ("lira_online", "loss", "zlib")]
    more = [*attacks, world.attack("lira_online", 4)]
    assert world.run(tmp_path, more[2:]) == (2, 2, 0)
    # Zlib is in targets.csv, but its scores are not in any table.
    assert world.run(tmp_path, more, score_table=attacks) == (4, 3, 0)
    check_score_table(world, tmp_path, attacks)
    path = tmp_path / "membership_scores.parquet"
    written = [p.stat().st_mtime_ns for p in (path, tmp_path / "targets.csv")]
    assert len(pd.read_csv(tmp_path / "targets.csv")) == 16
    assert world.run(tmp_path, more, score_table=attacks) == (4, 0, 0)
    assert [p.stat().st_mtime_ns for p in (path, tmp_path / "targets.csv")] == written
    for damage in (path.unlink, lambda: path.write_bytes(b"x" * 100)):
        damage()
        assert world.run(tmp_path, more, score_table=attacks) == (4, 0, 0)
        check_score_table(world, tmp_path, attacks)
    assert world.run(tmp_path, more, score_table=attacks[1:]) == (4, 0, 0)
    check_score_table(world, tmp_path, attacks[1:])


def test_warnings_are_written_with_the_membership_scores(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are those of all references of the attacks in the table."""
    used: list[Any] = []

    def unusual_targets(sources: Any, names: Sequence[str], covariates: Sequence[str]) -> list[str]:
        used.extend((sources, names, covariates))
        return ["a warning"]

    monkeypatch.setattr(target_warnings, "unusual_targets", unusual_targets)
    attacks = [world.attack("loss"), world.attack("lira_online"), world.attack("lira_online", 4)]
    world.run(tmp_path, attacks, score_table=attacks[:2])
    assert json.loads((tmp_path / "membership_scores.json").read_text())["warnings"] == [
        "a warning"
    ]
    [inputs], names, covariates = used
    assert [model.subset_seed for model in inputs.references] == [*range(4, 20)]
    assert names == [f"reference-0{t}" for t in range(4)]
    assert len(covariates) == inputs.covariate_N2xK.shape[1] > 0


def test_tables_of_advantages_and_audits(world: World, tmp_path: Path):
    attacks = [world.attack(name) for name in ("lira_online", "loss")]
    assert world.run(tmp_path, attacks, score_table=attacks) == (2, 2, 0)
    table = pd.read_csv(tmp_path / "advantage.csv")
    assert table["attack"].tolist() == ["lira_online"] * 2 + ["loss"] * 2
    assert table["references"].tolist() == [16, 16, 0, 0]
    assert {*table["targets"]} == {4}
    lira, loss = table["held_out"][[0, 2]]
    assert lira > loss > 0
    assert table["held_out_low"].isna().all()  # The samples are pieces of documents.
    audits = pd.read_csv(tmp_path / "audit.csv")
    assert audits["attack"].tolist() == ["lira_online"] * 4 + ["loss"] * 4
    # Only the first target is audited: canaries are its pairs.
    assert {*audits["canaries"][audits["method"] == "one_run"]} == {SAMPLES // 2}
    other = dataclasses.replace(C, priors=(0.3,), delta=1e-3)
    assert world.run(tmp_path, attacks, c=other, score_table=attacks) == (2, 2, 0)
    assert pd.read_csv(tmp_path / "advantage.csv")["prior"].tolist() == [0.3, 0.3]
    assert {*pd.read_csv(tmp_path / "audit.csv")["delta"]} == {1e-3}
    assert world.run(tmp_path, attacks, c=other, score_table=attacks) == (2, 0, 0)


def test_membership_scores_leave_out_attacks_without_scores(world: World, tmp_path: Path):
    attacks = [world.attack("loss"), world.attack("min_k")]
    assert world.run(tmp_path, attacks, score_table=attacks) == (2, 1, 1)
    check_score_table(world, tmp_path, attacks[:1])
    assert world.run(tmp_path, attacks, score_table=attacks) == (2, 0, 1)


def test_no_table_of_membership_scores_without_attacks(computed: Path):
    assert not (computed / "membership_scores.parquet").exists()


def test_a_large_table_of_scores_has_the_first_target_and_the_mean(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evaluations, "MAX_SCORES", 3 * SAMPLES)
    attacks = [world.attack("loss")]
    world.run(tmp_path, attacks, score_table=attacks)
    table = pd.read_parquet(tmp_path / "membership_scores.parquet")
    names = ["id", "member/reference-00", "loss/mean", "loss/reference-00"]
    assert table.columns.tolist() == names
    np.testing.assert_allclose(table["loss/mean"], -world.loss_MxN[:4].mean(axis=0), rtol=1e-6)


def test_larger_logit_is_more_member_like(world: World, computed: Path):
    table = pd.read_csv(computed / "targets.csv")
    with_logit = table[table["observed"] == "target_logit"]
    assert len(with_logit) == 8
    assert (with_logit["auc"] > 0.55).all()


@pytest.mark.parametrize("design", ["exact", "balanced", "bernoulli"])
def test_noise_has_an_auc_of_one_half(tmp_path: Path, design: subsets.Design):
    """The standard deviation of one AUC is 0.033, that of the mean of eight about 0.012."""
    noise = make_world(tmp_path, 0, design)
    noise.run(tmp_path / "t", [noise.attack("lira_online"), noise.attack("rmia")])
    auc = pd.read_csv(tmp_path / "t" / "targets.csv")["auc"]
    assert auc.mean() == pytest.approx(0.5, abs=0.05)
    assert auc.between(0.38, 0.62).all()


def test_models_without_a_statistic_are_reported_on_one_line(tmp_path: Path):
    world = make_world(tmp_path, 0.3, "exact", lacks_logit=(2, 11, 18))
    few = world.attack("lira_online", 8, observed="target_logit")
    with_logit = [few, world.attack("loss", observed="target_logit")]
    with_logit += [world.attack("lira_online", observed="target_logit")]
    attacks = [*with_logit, world.attack("lira_online")]
    for done in (1, 0):
        assert world.run(tmp_path / "t", attacks) == (4, done, 3)
        [message] = world.messages
        assert re.match(r"3 models .*\(with target_logit\): .*; run `lm-mia run` first", message)
        world.messages.clear()
    table = pd.read_csv(tmp_path / "t" / "targets.csv")
    assert table["attack_id"].unique().tolist() == [attacks[3].id]
