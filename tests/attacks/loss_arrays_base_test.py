"""Attacks with the losses of a base: their values, and that a base says nothing where nothing was learned."""

import dataclasses
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import subset_designs as draw

from lm_mia import stats
from lm_mia.attacks import loss_arrays
from lm_mia.attacks.loss_arrays import LossArrays
from lm_mia.audits import audit, importing
from lm_mia.data.arrays import open_arrays
from lm_mia.data.losses import LossFile, read_losses


def losses(
    rng: np.random.Generator, samples: int, references: int, gap: float, *, has_base: bool = True
) -> LossFile:
    """Returns losses of a target and of references, all fine-tuned from a base that knows how hard each sample is."""
    base_N = rng.gamma(9, 0.35, samples)
    member_MxN = draw.exact(rng, 1 + references, samples)
    loss_MxN = 0.8 * base_N - gap * member_MxN + rng.normal(0, 0.2, member_MxN.shape) + 1
    roles = ["target", *["reference"] * references]
    if has_base:
        roles.append("base")
        loss_MxN = np.concatenate([loss_MxN, base_N[None]])
        member_MxN = np.concatenate([member_MxN, np.zeros((1, samples), bool)])
    return read_losses(
        open_arrays({"loss_MxN": loss_MxN, "member_MxN": member_MxN, "role_M": roles})
    )


def scores(file: LossFile, only: str = "") -> dict[str, np.ndarray]:
    """Returns score_N of the target by attack; the attack that results are named by comes first."""
    prepared = importing.prepare(file, "a", "given")
    if only:
        attack = dataclasses.replace(prepared.config.attack, attacks=(only,), headline=only)
        c = dataclasses.replace(prepared.config, attack=attack)
        prepared = dataclasses.replace(prepared, config=c)
    rows = {model: i for i, model in enumerate(prepared.models)}
    value = audit.read_rows(file, [*prepared.models.values()])
    arrays = LossArrays("losses", "given", rows, value, prepared.table)
    [group] = loss_arrays.attacked_groups(arrays, prepared.config)
    with ThreadPoolExecutor(1) as pool, tempfile.TemporaryDirectory() as folder:
        scored = loss_arrays.score(group, prepared.config, Path(folder), pool, lambda _: None)
        score_N = {attack: score_TxN[0] for attack, score_TxN in scored}
    return {spec.attack: score_N[spec.attack] for spec in group.specs}


def test_base_calibrated_is_the_difference_of_the_losses():
    file = losses(np.random.default_rng(0), 100, 0, 0.3)
    expected = file.read("loss", 1) - file.read("loss", 0)
    np.testing.assert_allclose(scores(file)["base_calibrated"], expected, rtol=1e-4, atol=1e-6)


def test_the_base_is_a_covariate_of_shrunk_and_of_no_other_attack():
    with_base, without = (
        scores(losses(np.random.default_rng(0), 400, 6, 0.3, has_base=has_base))
        for has_base in (True, False)
    )
    for attack in ("lira_online", "lira_offline", "rmia", "reference_calibrated", "loss"):
        np.testing.assert_array_equal(with_base[attack], without[attack])
    for attack in ("shrunk", "stacked"):
        assert (with_base[attack] != without[attack]).any()


def test_attacks_that_the_losses_allow():
    assert [*scores(losses(np.random.default_rng(0), 400, 0, 0.3))] == ["base_calibrated", "loss"]
    attacks = [*scores(losses(np.random.default_rng(0), 400, 5, 0.3))]
    assert attacks[0] == "rmia"  # the members were given
    assert {"base_calibrated", "stacked", "lira_online", "loss"} < {*attacks}
    assert "zlib" not in attacks  # there are no texts


@pytest.mark.montecarlo
@pytest.mark.parametrize("attack", ["base_calibrated", "shrunk", "stacked"])
def test_noise_is_at_chance(attack: str):
    """Over 200 draws, AUC and TPR at 10 % of a base that is related to the losses, but not to membership."""
    fpr, samples, draws = 0.1, 400, 200
    values = []
    for seed in range(draws):
        file = losses(np.random.default_rng(seed), samples, 4, 0.0)
        score_N, member_N = scores(file, attack)[attack], file.read("member", 0)
        tpr = stats.tpr_at_fpr(score_N, member_N, fprs=[fpr]).tpr_TxF[0, 0]
        values.append((stats.auc(score_N, member_N).auc_T[0], tpr))
    mean_2 = np.mean(values, axis=0)
    error_2 = np.std(values, axis=0, ddof=1) / np.sqrt(draws)
    expected_2 = np.array([0.5, 20 / 201])  # floor(fpr n) / (n + 1) of 200 non-members
    assert (np.abs(mean_2 - expected_2) < 4 * error_2).all()
    assert (error_2 < [0.003, 0.003]).all()
