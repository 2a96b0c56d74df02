import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from same_bits import same
from slow_model import parameters, slow_forward, slow_losses

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.score import scorer as scorer_module
from lm_mia.score.scorer import Scorer, choose_micro_batch_size, restore_params
from lm_mia.train import batching, checkpoint, sharding
from lm_mia.train.optimizer import optimizer

MODEL_CONFIG = transformer.ModelConfig(layers=2, width=8, heads=2, vocab_size=32, length_tokens=8)
SEEDS = ModelSeeds("replica", 4, 5, 6)
MODEL = transformer.TransformerLM(MODEL_CONFIG)
MESH = sharding.make_mesh(jax.devices()[:1])


@pytest.fixture(scope="module")
def state() -> checkpoint.TrainState:
    """Unlike an initial state, it does not give all tokens nearly the same probability."""
    like = checkpoint.abstract_state(MODEL, optimizer(config.Optimizer()), MESH)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like.opt_state)
    numbers = like.replace(
        step=np.int32(9), params=parameters(MODEL_CONFIG, noise=0.5), opt_state=zeros
    )
    return jax.device_put(numbers, jax.tree.map(lambda leaf: leaf.sharding, like))


@pytest.fixture(scope="module")
def logits(tiny: Population, state: checkpoint.TrainState) -> list[np.ndarray]:
    """Returns the logits of each sample, computed one at a time, without padding, in float64."""
    return [slow_forward(state.params, tiny.sample(i)) for i in range(len(tiny))]


@pytest.fixture(scope="module")
def expected_N2(tiny: Population, logits: list[np.ndarray]) -> np.ndarray:
    return np.array([slow_losses(z_LxV, tiny.sample(i)).mean() for i, z_LxV in enumerate(logits)])


def scorer(population: Population, micro_batch_size: int = 4, chunk_tokens: int = 16) -> Scorer:
    return Scorer(MODEL, population, chunk_tokens, micro_batch_size, MESH)


# Calls have 1, 3 or more packed sequences of 8 tokens than exist; chunks have 1, several or all tokens.
@pytest.mark.parametrize(
    ("micro_batch_size", "chunk_tokens"), [(1, 1), (1, 13), (3, 13), (64, 4096)]
)
def test_losses_equal_a_slow_reference(
    tiny: Population,
    state: checkpoint.TrainState,
    expected_N2: np.ndarray,
    micro_batch_size: int,
    chunk_tokens: int,
):
    small_scorer = scorer(tiny, micro_batch_size, chunk_tokens)
    loss_N2 = small_scorer.score(state.params, (), 0, 20)["loss"]
    assert (loss_N2.dtype, loss_N2.shape) == (np.float32, (20,))
    np.testing.assert_allclose(loss_N2, expected_N2, rtol=1e-5)
    assert loss_N2.argsort().tolist() == expected_N2.argsort().tolist()


def test_the_default_micro_batch_size_depends_on_the_platform():
    sizes = [
        choose_micro_batch_size(0, L, kind) for kind in ("cpu", "gpu") for L in (64, 1024, 4096)
    ]
    assert sizes == [16, 1, 1, 1024, 64, 16]
    assert choose_micro_batch_size(7, 64, "gpu") == 7


@pytest.mark.parametrize("window", [1, 6, 20])
def test_packing_and_hosts_change_losses_only_by_rounding(
    tiny: Population, state: checkpoint.TrainState, monkeypatch: pytest.MonkeyPatch, window: int
):
    """By at most 2e-6 of a loss, and without a change of their order; repeated calls are bitwise equal."""
    first, again = (scorer(tiny).score(state.params, STATISTICS[:2], 0, 20) for _ in range(2))
    monkeypatch.setattr(batching, "WINDOW_SAMPLES", window)
    for cuts in ((0, 20), (0, 9, 20), (0, 6, 12, 18, 20)):
        seen: list[float] = []
        parts = [
            scorer(tiny, 3).score(state.params, STATISTICS[:2], low, high, seen.append)
            for low, high in itertools.pairwise(cuts)
        ]
        assert seen.count(1.0) == len(parts)
        for name, whole_N2 in first.items():
            assert again[name].tobytes() == whole_N2.tobytes()
            actual_N2 = np.concatenate([part[name] for part in parts])
            np.testing.assert_allclose(actual_N2, whole_N2, rtol=2e-6)
            assert actual_N2.argsort().tolist() == whole_N2.argsort().tolist()


def test_packing_changes_bfloat16_losses_by_their_precision(
    tiny: Population, state: checkpoint.TrainState, monkeypatch: pytest.MonkeyPatch
):
    shape = dataclasses.replace(MODEL_CONFIG, dtype="bfloat16")

    def losses(micro_batch_size: int) -> np.ndarray:
        bfloat16_scorer = dataclasses.replace(
            scorer(tiny, micro_batch_size), model=transformer.TransformerLM(shape)
        )
        return bfloat16_scorer.score(state.params, (), 0, 20)["loss"]

    whole_N2 = losses(4)
    monkeypatch.setattr(batching, "WINDOW_SAMPLES", 6)
    np.testing.assert_allclose(losses(3), whole_N2, rtol=5e-3)


def test_a_host_without_samples_returns_empty_arrays(
    tiny: Population, state: checkpoint.TrainState
):
    scores = scorer(tiny).score(state.params, STATISTICS, 7, 7)
    assert {name: (value_N.dtype, value_N.shape) for name, value_N in scores.items()} == {
        name: (np.float32, (0,)) for name in ("loss", *STATISTICS)
    }


def test_missing_checkpoint_of_a_score_point_is_an_error_with_remedy(
    tmp_path: Path, state: checkpoint.TrainState
):
    with checkpoint.manager(tmp_path, kept_steps=[6]) as checkpoints:
        checkpoint.save(checkpoints, state)
    message = f"model replica-06: the checkpoint of step 6 is lost; delete {tmp_path} and run `lm-mia run` again"
    with pytest.raises(UserError, match=message):
        restore_params(SEEDS, 6, MODEL, tmp_path, MESH, MESH)


STATISTICS = (
    "min_k",
    "min_k_plus_plus",
    "summed_loss",
    "target_logit",
    "greedy_match",
    "lowercase_loss",
)


def slow_statistics(logits: list[np.ndarray], tiny: Population) -> dict[str, list[float]]:
    """Returns statistics of one sample at a time; of at most 7 tokens, the lowest fifth is one."""
    statistics: dict[str, list[float]] = {name: [] for name in STATISTICS[:-1]}
    for i, of_sample in enumerate(logits):
        x_L = tiny.sample(i)
        z_LxV = of_sample[: len(x_L) - 1]
        log_p_LxV = z_LxV - np.log(np.exp(z_LxV).sum(1, keepdims=True))
        mean_L = (np.exp(log_p_LxV) * log_p_LxV).sum(1)
        square_L = (np.exp(log_p_LxV) * log_p_LxV**2).sum(1)
        chosen_L = log_p_LxV[range(len(x_L) - 1), x_L[1:]]
        logit_L = z_LxV[range(len(x_L) - 1), x_L[1:]]
        statistics["summed_loss"].append(-chosen_L.sum())
        statistics["target_logit"].append(logit_L.mean())
        statistics["greedy_match"].append((logit_L == z_LxV.max(1)).mean())
        statistics["min_k"].append(chosen_L.min())
        statistics["min_k_plus_plus"].append(
            ((chosen_L - mean_L) / np.sqrt(square_L - mean_L**2)).min()
        )
    return statistics


def test_statistics_equal_a_slow_reference(
    tiny: Population, state: checkpoint.TrainState, logits: list[np.ndarray]
):
    params, small_scorer = state.params, scorer(tiny)
    loss_N2 = small_scorer.score(params, (), 0, 20)["loss"]
    expected = slow_statistics(logits, tiny)
    for names in ((), ("min_k_plus_plus",), STATISTICS[:2], STATISTICS[:-1]):
        scores = small_scorer.score(params, names, 0, 20)
        assert set(scores) == {"loss", *names}
        assert scores["loss"].tobytes() == loss_N2.tobytes()
        for name in names:
            assert (scores[name].dtype, scores[name].shape) == (np.float32, (20,))
            np.testing.assert_allclose(scores[name], expected[name], rtol=2e-5)


def test_only_the_lowercase_loss_needs_a_second_pass(
    tiny: Population, state: checkpoint.TrainState, monkeypatch: pytest.MonkeyPatch
):
    """Lower-cased samples are made once, and only if requested; here, they are the samples in reverse order."""
    passes, lowercased = [], []
    token_statistics = Scorer.token_statistics

    def backwards(population: Population) -> Population:
        lowercased.append(population)
        samples = [population.sample(i) for i in reversed(range(20))]
        ends_N = np.cumsum([len(sample) for sample in samples])
        return dataclasses.replace(
            population, tokens=np.concatenate(samples), offsets_N1=np.append(0, ends_N)
        )

    def counted(self: Scorer, params: Any, population: Population, *rest: Any) -> Any:
        passes.append(population)
        return token_statistics(self, params, population, *rest)

    monkeypatch.setattr(scorer_module, "lowercase", backwards)
    monkeypatch.setattr(Scorer, "token_statistics", counted)
    small_scorer = scorer(tiny)
    for names, count in (((), 1), (STATISTICS[:-1], 1)):
        small_scorer.score(state.params, names, 0, 20)
        assert (len(passes), passes.pop()) == (count, tiny)
    assert lowercased == []
    for names in (STATISTICS[-1:], STATISTICS):
        scores = small_scorer.score(state.params, names, 0, 20)
        assert set(scores) == {"loss", *names}
        np.testing.assert_allclose(scores["lowercase_loss"], scores["loss"][::-1], rtol=1e-6)
        assert len(passes) == 2
        passes.clear()
    assert lowercased == [tiny]


def test_parameters_are_restored_at_score_points_and_at_the_end(
    tmp_path: Path, state: checkpoint.TrainState
):
    def after(step: int) -> checkpoint.TrainState:
        params = jax.tree.map(lambda p: p + step, state.params)
        return state.replace(step=np.int32(step), params=params)

    with checkpoint.manager(tmp_path, kept_steps=[6]) as checkpoints:
        for step in (6, 8, 9):
            checkpoint.save(checkpoints, after(step))
    for step in (6, 9):
        assert same(restore_params(SEEDS, step, MODEL, tmp_path, MESH, MESH), after(step).params)
    with pytest.raises(UserError, match=r"checkpoint of step 8"):  # no score point
        restore_params(SEEDS, 8, MODEL, tmp_path, MESH, MESH)


@pytest.mark.parametrize("step", [6, 9])
def test_restoring_a_step_without_a_checkpoint_is_an_error(
    tmp_path: Path, state: checkpoint.TrainState, step: int
):
    message = (
        rf"^model replica-06: not trained yet, there is no checkpoint of step {step}; "
        r"run `lm-mia train` first$"
    )
    with pytest.raises(UserError, match=message):
        restore_params(SEEDS, step, MODEL, tmp_path / "nothing", MESH, MESH)
    with checkpoint.manager(tmp_path / "half") as checkpoints:
        checkpoint.save(checkpoints, state.replace(step=np.int32(5)))
    with pytest.raises(UserError, match=message):
        restore_params(SEEDS, step, MODEL, tmp_path / "half", MESH, MESH)
