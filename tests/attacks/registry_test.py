import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from attack_variants import blocks
from synthetic_scores import SMALL, SyntheticScores, write_scores

from lm_mia import config, stats
from lm_mia.attacks import registry, replicas, score_matrix
from lm_mia.attacks.inputs import (
    AttackInputs,
    Block,
    FitInputs,
    draw_samples,
    sample_covariates,
    select_samples,
)
from lm_mia.attacks.score_matrix import AttackTask, MembershipScoreFile
from lm_mia.attacks.spec import AttackSpec
from lm_mia.config.schema import Statistic
from lm_mia.errors import UserError
from lm_mia.seeds import permutation
from lm_mia.store import schema

__all__ = ["blocks"]  # a fixture

# All but the one that needs the losses of a base.
ALL_ATTACKS: tuple[str, ...] = tuple(name for name in registry.ATTACKS if name != "base_calibrated")
C = dataclasses.replace(SMALL, attacks=ALL_ATTACKS)
INEXACT = (
    "shrunk",
    "shrunk_offline",
    "stacked",
)  # matrix products depend on the number of samples in a block
SAMPLES = 600
VARIANTS: list[dict[str, Any]] = [
    {},
    {"variance": "pooled"},
    {"finite_population": True},
    {"finite_population": True, "variance": "pooled"},
    {"rmia_gamma": 1.3, "rmia_a": 0.4},
    {"rmia_gamma": 0.5, "rmia_samples": SAMPLES + 1},
    {"rmia_a": "tuned"},
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    folder = tmp_path_factory.mktemp("scores")
    return write_scores(folder, C, SAMPLES, statistics=registry.statistics_of(registry.ATTACKS))


def source_of(world: SyntheticScores, c: config.Attack = C) -> AttackInputs:
    return replicas.find_replicas(world.store, world.population, c, pytest.fail).inputs


def expected(world: SyntheticScores, c: config.Attack) -> dict[str, np.ndarray]:
    """Returns score_TxN of every attack, from lm_mia.stats on whole arrays."""
    target_TxN, reference_MxN = world.target_TxN, world.reference_MxN
    member_MxN = world.reference_member_MxN
    ids_Z = permutation(0, "samples that RMIA compares with", SAMPLES)[: c.rmia_samples]
    gaussians = stats.fit_gaussians(
        reference_MxN,
        member_MxN,
        variance=c.variance,
        sampled_share=0.5 if c.finite_population else 0.0,
    )
    log_p = -target_TxN, -reference_MxN
    x_and_z = *log_p, *(log_p_RxN[:, ids_Z] for log_p_RxN in log_p)
    out: dict[str, Any] = {
        "reference_member_MxN": member_MxN,
        "reference_member_MxZ": member_MxN[:, ids_Z],
    }
    target_values = {
        name: value_MxN[world.references :] for name, value_MxN in world.statistics.items()
    }
    zlib_N = world.population.column("zlib_bytes")
    losses = target_TxN, reference_MxN, member_MxN
    covariate_NxK = sample_covariates(world.population.column)
    log_p_Z, member_MxZ = -reference_MxN[:, np.sort(ids_Z)], member_MxN[:, np.sort(ids_Z)]
    tuned = stats.tuned_rmia_a(log_p_Z, member_MxZ, log_p_Z, member_MxZ)
    a = tuned if c.rmia_a == "tuned" else c.rmia_a
    return {
        "lira_online": stats.lira_from_gaussians(target_TxN, gaussians),
        "lira_offline": stats.lira_from_gaussians(target_TxN, gaussians, offline=True),
        "rmia": stats.rmia(*x_and_z, gamma=c.rmia_gamma),
        "rmia_offline": stats.rmia(*x_and_z, gamma=c.rmia_gamma, offline=True, a=a, **out),
        "rmia_simple": stats.rmia_simple(*log_p),
        "reference_calibrated": stats.reference_calibrated_loss(target_TxN, reference_MxN),
        "shrunk": stats.shrunk_lira(*losses, covariate_NxK=covariate_NxK),
        "shrunk_offline": stats.shrunk_lira(*losses, covariate_NxK=covariate_NxK, offline=True),
        "stacked": stats.stacked_lira(*losses, covariate_NxK=covariate_NxK),
        "loss": -target_TxN.astype(np.float64),
        "zlib": -target_TxN.astype(np.float64) / zlib_N,
        "min_k": target_values["min_k"].astype(np.float64),
        "min_k_plus_plus": target_values["min_k_plus_plus"].astype(np.float64),
        "lowercase": target_values["lowercase_loss"].astype(np.float64) - target_TxN,
    }


def filled(source: AttackInputs, c: config.Attack, folder: Path) -> dict[str, np.ndarray]:
    """Returns score_TxN of every attack, from the package."""
    shares: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        tasks = [AttackTask(name, vars(c)) for name in c.attacks]
        with score_matrix.score_all(tasks, source, folder, pool, shares.append) as results:
            scores = {
                name: file.read_samples(slice(0, SAMPLES))
                for name, (_, file) in zip(c.attacks, results, strict=True)
            }
    assert shares == sorted(shares)
    assert (min(shares) > 0, shares[-1]) == (True, 1)
    return scores


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_attacks_equal_stats_on_whole_arrays(
    world: SyntheticScores, blocks: str, changes: dict[str, Any], tmp_path: Path
):
    c = dataclasses.replace(C, **changes)
    actual, expected_scores = filled(source_of(world), c, tmp_path), expected(world, c)
    assert set(actual) == set(ALL_ATTACKS)
    for name in ALL_ATTACKS:
        if name in INEXACT or ("lira" in name and c.variance == "pooled"):
            rtol = 1e-9 if name in INEXACT else 1e-12
            np.testing.assert_allclose(
                actual[name], expected_scores[name], rtol, rtol, err_msg=name
            )
        else:
            np.testing.assert_array_equal(actual[name], expected_scores[name], err_msg=name)


def test_larger_scores_are_more_member_like(world: SyntheticScores, tmp_path: Path):
    for name, score_TxN in filled(source_of(world), C, tmp_path).items():
        assert stats.auc(score_TxN, world.member_N).auc_T.min() > 0.55, name


def test_finite_population_changes_only_lira(world: SyntheticScores):
    plain, moved = (expected(world, dataclasses.replace(C, finite_population=f)) for f in (0, 1))
    assert {n for n in ALL_ATTACKS if not np.array_equal(plain[n], moved[n], equal_nan=True)} == {
        "lira_online",
        "lira_offline",
    }


def test_blocks_hold_the_values_of_the_store(world: SyntheticScores, blocks: str):
    source, low = source_of(world), 0
    for block in source.blocks():
        samples = block.at
        assert samples.start == low
        low = samples.stop
        np.testing.assert_array_equal(block.loss_TxC, world.target_TxN[:, samples])
        np.testing.assert_array_equal(block.reference_loss_RxC, world.reference_MxN[:, samples])
        in_MxN = world.reference_member_MxN
        np.testing.assert_array_equal(block.reference_member_RxC, in_MxN[:, samples])
        assert set(block.statistics) == set(registry.statistics_of(registry.ATTACKS))
        for name, value_TxC in block.statistics.items():
            target_values = world.statistics[name][world.references :]
            np.testing.assert_array_equal(value_TxC, target_values[:, samples])
        parts = list(block.split())
        assert [parts[0].at.start, parts[-1].at.stop] == [
            samples.start,
            samples.stop,
        ]
        for name in ("loss_TxC", "reference_loss_RxC", "reference_member_RxC"):
            joined = np.concatenate([getattr(part, name) for part in parts], axis=1)
            np.testing.assert_array_equal(joined, getattr(block, name))
        zlib_C = np.concatenate([part.zlib_bytes_C for part in parts])
        np.testing.assert_array_equal(zlib_C, source.zlib_bytes_N2[samples])
        assert len(parts) == (
            1 if blocks == "one block" else -(-(samples.stop - samples.start) // 50)
        )
    assert low == SAMPLES
    np.testing.assert_array_equal(source.target_member_TxN2, [world.member_N] * C.replicas)


def test_with_references_keeps_the_requested_order(world: SyntheticScores):
    [block] = source_of(world).with_references([7, 2, 0]).blocks()
    np.testing.assert_array_equal(block.reference_loss_RxC, world.reference_MxN[[7, 2, 0]])
    in_MxN = world.reference_member_MxN
    np.testing.assert_array_equal(block.reference_member_RxC, in_MxN[[7, 2, 0]])


def test_labels_of_all_models_are_shuffled_alike(world: SyntheticScores, blocks: str):
    source = source_of(world)
    noise = source.with_shuffled_labels(3)
    assert noise.targets == source.targets[:1]
    read = list(noise.blocks())
    loss_MxN = np.concatenate([b.reference_loss_RxC for b in read], axis=1)
    np.testing.assert_array_equal(loss_MxN, world.reference_MxN)
    loss_TxN = np.concatenate([b.loss_TxC for b in read], axis=1)
    np.testing.assert_array_equal(loss_TxN, world.target_TxN[:1])
    moved_MxN = np.concatenate([b.reference_member_RxC for b in read], axis=1)
    before = np.vstack([world.member_N, world.reference_member_MxN])
    after = np.vstack([noise.target_member_TxN2, moved_MxN])
    for block in read:  # the same columns in another order, in each block
        pair = before[:, block.at], after[:, block.at]
        assert sorted(map(tuple, pair[0].T)) == sorted(map(tuple, pair[1].T))
        assert (pair[0] != pair[1]).any()
    again, other = source.with_shuffled_labels(3), source.with_shuffled_labels(4)
    np.testing.assert_array_equal(again.target_member_TxN2, noise.target_member_TxN2)
    assert (other.target_member_TxN2 != noise.target_member_TxN2).any()
    # The labels of the original are not changed.
    np.testing.assert_array_equal(source.target_member_TxN2, [world.member_N] * C.replicas)


def test_select_samples(world: SyntheticScores, blocks: str):
    for ids_Z in (np.array([0, 3, 127, 128, 130, 599]), np.array([300]), np.arange(SAMPLES)):
        block = select_samples(source_of(world), ids_Z)
        assert block.at == slice(0, len(ids_Z))
        np.testing.assert_array_equal(block.loss_TxC, world.target_TxN[:, ids_Z])
        np.testing.assert_array_equal(block.reference_loss_RxC, world.reference_MxN[:, ids_Z])
        in_MxN = world.reference_member_MxN
        np.testing.assert_array_equal(block.reference_member_RxC, in_MxN[:, ids_Z])


@pytest.mark.parametrize("changes", VARIANTS[:4], ids=str)
def test_separation_equals_slow_reference(
    world: SyntheticScores, blocks: str, changes: dict[str, Any]
):
    c = dataclasses.replace(C, **changes)
    source = source_of(world)
    scatter_2x2 = registry.fit_attack("lira_online", FitInputs(source), vars(c)).fit
    actual = np.concatenate(
        [
            registry.separation(part, scatter_2x2, finite_population=c.finite_population)
            for block in source.blocks()
            for part in block.split()
        ]
    )
    ins = [
        world.reference_MxN[m, n].astype(float) for n, m in enumerate(world.reference_member_MxN.T)
    ]
    outs = [
        world.reference_MxN[~m, n].astype(float) for n, m in enumerate(world.reference_member_MxN.T)
    ]

    def variances(groups: list[np.ndarray]) -> np.ndarray:
        own_N = np.array([g.var(ddof=1) if len(g) > 1 else np.nan for g in groups])
        if c.variance == "pooled":
            squares = sum(((g - g.mean()) ** 2).sum() for g in groups if len(g))
            own_N[:] = squares / sum(max(len(g) - 1, 0) for g in groups)
        return own_N * (2 if c.finite_population else 1)

    means_in, means_out = (
        np.array([g.mean() if len(g) else np.nan for g in x]) for x in (ins, outs)
    )
    expected_TxN = (means_out - means_in) / np.sqrt((variances(ins) + variances(outs)) / 2)
    np.testing.assert_allclose(actual, expected_TxN, rtol=1e-9)
    assert np.isnan(actual).sum() == (1 if c.variance == "pooled" else 3)
    assert np.nanmean(actual) > 0.5


def test_separation_is_nan_without_variance():
    one = np.ones((4, 1))
    in_MxC = np.array([[True], [True], [False], [False]])
    block = Block(slice(0, 1), one, one, in_MxC, {}, np.ones(1), np.ones((1, 1)))
    assert np.isnan(registry.separation(block, None, finite_population=False)).all()


def test_operating_points_of_each_target(tmp_path: Path):
    rng = np.random.default_rng(0)
    score_TxN, member_TxN = rng.normal(size=(11, 90)), rng.random((11, 90)) < 0.5
    score_TxN[3, :9] = np.nan
    with MembershipScoreFile(tmp_path, 11, 90) as file, ThreadPoolExecutor(2) as pool:
        file.write(0, slice(0, 90), score_TxN)
        actual = score_matrix.operating_points(file, member_TxN, [0.1, 0.5], pool)
    expected_points = stats.tpr_at_fpr(score_TxN, member_TxN, [0.1, 0.5])
    for field in dataclasses.fields(expected_points):
        name = field.name
        np.testing.assert_array_equal(
            getattr(actual, name), getattr(expected_points, name), err_msg=name
        )


def test_unneeded_fits_read_nothing(world: SyntheticScores, monkeypatch: pytest.MonkeyPatch):
    pooled = dataclasses.replace(C, variance="pooled")
    monkeypatch.setattr(AttackInputs, "blocks", lambda self: pytest.fail("a pass over the store"))
    attacks = [("loss", pooled), ("rmia_simple", pooled), ("lira_online", C)]
    inputs = FitInputs(source_of(world))
    tasks = [registry.Task(registry.find(name), inputs, vars(c)) for name, c in attacks]
    assert [fitted.fit for fitted in registry.fit_attacks(tasks)] == [None] * 3


@pytest.mark.parametrize("most", [1, 2, 16])
def test_batched_attacks_equal_single_attacks(
    world: SyntheticScores, blocks: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The attacks have different references, not always the first ones, and different settings of RMIA."""
    monkeypatch.setattr(score_matrix, "_MAX_ATTACKS_PER_PASS", most)
    source, c = source_of(world), dataclasses.replace(C, variance="pooled")
    targets = tuple(model.order_seed for model in source.targets)
    four, five, others = (0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 3, 4, 6)
    attacks = [
        AttackSpec("lira_online", True, targets, four),
        AttackSpec("lira_offline", True, targets, four),
        AttackSpec("rmia", True, targets, five, rmia_samples=20, rmia_gamma=1.0),
        AttackSpec("rmia", True, targets, five, rmia_samples=20, rmia_gamma=1.1),
        *(
            AttackSpec("rmia_offline", True, targets, five, rmia_samples=50, rmia_a=a)
            for a in (0.0, 0.3, "tuned", None)
        ),
        AttackSpec("lira_online", True, targets, others),
        AttackSpec("shrunk", True, targets, others),
        AttackSpec("stacked", True, targets, five),
        AttackSpec("loss", True, targets, ()),
    ]
    done: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        batched = {
            attack.id: file.read_samples(slice(0, SAMPLES))
            for attack, _, file in score_matrix.score_attacks(
                attacks, source, c, tmp_path, pool, done.append
            )
        }
        assert set(batched) == {attack.id for attack in attacks}
        for attack in attacks:
            single = source.with_references(attack.references or range(2))
            settings = {**vars(c), "rmia_samples": attack.rmia_samples or c.rmia_samples}
            settings["rmia_gamma"] = attack.rmia_gamma or c.rmia_gamma
            settings["rmia_a"] = c.rmia_a if attack.rmia_a is None else attack.rmia_a
            task = AttackTask(attack.attack, settings)
            with score_matrix.score_all([task], single, tmp_path, pool) as [(_, file)]:
                expected_TxN = file.read_samples(slice(0, SAMPLES))
            rtol = 1e-9 if attack.attack in INEXACT else 0.0
            np.testing.assert_allclose(
                batched[attack.id], expected_TxN, rtol, rtol, err_msg=attack.id
            )
    assert done == sorted(done)
    assert done[-1] == len(attacks)


def test_studies_of_the_number_of_references_are_on_the_same_samples(
    world: SyntheticScores, tmp_path: Path
):
    source, c = source_of(world), dataclasses.replace(C, variance="per_sample")
    targets = tuple(model.order_seed for model in source.targets)
    attacks = [
        attack
        for references in ((1, 2), (0, 3, 4, 5), tuple(range(8)))
        for attack in (
            AttackSpec("lira_online", True, targets, references, in_and_out_among=(1, 2)),
            AttackSpec("rmia", True, targets, references, rmia_samples=20, in_and_out_among=(1, 2)),
        )
    ]
    with ThreadPoolExecutor(2) as pool:
        scores = {
            attack.id: file.read_samples(slice(0, SAMPLES))
            for attack, _, file in score_matrix.score_attacks(attacks, source, c, tmp_path, pool)
        }
    member_MxN = world.reference_member_MxN
    same_N = member_MxN[1] ^ member_MxN[2]
    for attack in attacks:
        index_R = [*attack.references]
        reference_MxN = world.reference_MxN[index_R]
        if attack.attack == "rmia":
            np.testing.assert_array_equal(np.isnan(scores[attack.id]), [~same_N] * len(targets))
            continue
        variance = "pooled" if len(index_R) < 8 else "per_sample"
        expected_TxN = stats.lira(
            world.target_TxN, reference_MxN, member_MxN[index_R], variance=variance
        )
        expected_TxN = np.where(same_N, expected_TxN, np.nan)
        np.testing.assert_allclose(scores[attack.id], expected_TxN, 1e-9)
        assert (~np.isnan(expected_TxN)).sum() > 0


def test_samples_without_a_tfidf_have_the_median():
    columns = {
        "tokens": np.array([2, 4, 8, 16]),
        "zlib_bytes": np.array([20, 20, 40, 64]),
        "tfidf": np.array([1.0, np.nan, 3.0, 4.0]),
    }
    expected_NxK = [
        [np.log(2), np.log(10), 1],
        [np.log(4), np.log(5), 3],
        [np.log(8), np.log(5), 3],
        [np.log(16), np.log(4), 4],
    ]
    np.testing.assert_allclose(sample_covariates(columns.__getitem__), expected_NxK, rtol=1e-6)
    columns["tfidf"] = np.full(4, np.nan)
    # A property that all samples lack is left out.
    assert sample_covariates(columns.__getitem__).shape == (4, 2)


def test_a_is_tuned_on_the_references(world: SyntheticScores):
    inputs, index_R = source_of(world), np.array([1, 3, 4, 6])

    def fit(a: float | str, index_R: np.ndarray) -> registry.FittedAttack:
        settings = {**vars(C), "rmia_a": a}
        return registry.fit_attack("rmia_offline", FitInputs(inputs, index_R), settings)

    block = draw_samples(inputs, C.rmia_samples).with_references(index_R)
    references = -block.reference_loss_RxC, block.reference_member_RxC
    tuned = stats.tuned_rmia_a(*references, *references)
    assert [fit(a, index_R).fit.a for a in (0.3, "tuned")] == [0.3, tuned]
    alone = fit("tuned", np.array([1]))  # nothing to tune on, and no score
    assert np.isnan(alone.fit.a)
    for part in inputs.blocks():
        assert np.isnan(alone(part.with_references(np.array([1])))).all()


def config_of(attacks: tuple[str, ...], statistics: Any = ()) -> config.Config:
    c = config.Config()
    attack = dataclasses.replace(c.attack, attacks=attacks)
    return dataclasses.replace(c, attack=attack, score=config.Score(statistics=statistics))


def test_rules_of_each_attack():
    assert registry.problems(config.Config()) == []
    for name, attack in registry.ATTACKS.items():
        if attack.statistics:
            needed = ",".join(attack.statistics)
            line = (
                f"attack.attacks=lira_online,{name}: {name} requires more than the loss; set "
                f"--config.score.statistics={needed}"
            )
            assert registry.problems(config_of(("lira_online", name))) == [line]
            assert registry.problems(config_of(("lira_online", name), attack.statistics)) == []


def test_all_rules_about_attacks_are_listed_at_once():
    unknown, of_base, unmet = registry.problems(
        config_of(("LIRA_onlin", "base_calibrated", "lowercase", "min_k"), ("min_k",))
    )
    assert re.search(r"'LIRA_onlin'.* lira_online or lira_offline\?$", unknown)
    assert re.search(r"\bbase_calibrated\b.*\bbase\b", of_base)
    assert re.search(
        r"\blowercase\b.*; set --config\.score\.statistics=min_k,lowercase_loss$", unmet
    )
    with pytest.raises(UserError, match=r"attack 'xyz': .*\blira_online, "):
        registry.find("xyz")


@pytest.mark.parametrize(
    ("headline", "problem"),
    [
        ("auto", None),
        ("lira_online", None),
        ("zlib", None),  # it is not listed
        ("zlip", r"'zlip'; did you mean zlib\?"),
        ("Auto", "'Auto'"),
        ("min_k", r"min_k .*; set --config\.score\.statistics=min_k"),
        ("base_calibrated", "base_calibrated needs"),
        ("nowhere.py:score", r"nowhere\.py: .*no such file"),
    ],
)
def test_rules_of_the_headline_attack(headline: str, problem: str | None):
    c = config_of(("lira_online",))
    c = dataclasses.replace(c, attack=dataclasses.replace(c.attack, headline=headline))
    lines = registry.problems(c)
    assert len(lines) == (problem is not None)
    assert all(re.search(str(problem), line) for line in lines)


def test_statistics_of_attacks_are_variables_of_the_store():
    needed = {*registry.statistics_of(registry.ATTACKS)}
    # The other statistics are only for figures.
    assert needed < {*get_args(Statistic)} <= {*schema.VARIABLES}
    # The default attacks need no further statistics.
    assert registry.statistics_of(config.Config().attack.attacks) == ()


def test_results_that_attacks_share_are_computed_once(
    world: SyntheticScores, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []

    def counted(name: str) -> None:
        function = getattr(stats, name)
        monkeypatch.setattr(stats, name, lambda *a, **k: calls.append(name) or function(*a, **k))

    for name in ("fit_gaussians", "rmia_log_alpha", "fit_loss_model"):
        counted(name)
    inputs = FitInputs(source_of(world))
    names = ("lira_online", "lira_offline", "rmia", "rmia_simple", "shrunk", "stacked")
    fits = registry.fit_attacks(
        [registry.Task(registry.find(name), inputs, vars(C)) for name in names]
    )
    assert calls == ["rmia_log_alpha", "fit_loss_model"]  # of drawn samples
    [block] = inputs.blocks()
    for fitted in fits:
        fitted(block)
    assert calls[2:] == ["fit_gaussians", "rmia_log_alpha"]
