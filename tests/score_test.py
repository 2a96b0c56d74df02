import math
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoint_test import same
from model_test import slow_forward

from lm_mia import checkpoint, config, model, score
from lm_mia.errors import UserError
from lm_mia.optimizer import optimizer
from lm_mia.population import Population
from lm_mia.subsets import Row

SHAPE = model.Shape(layers=2, width=8, heads=2, vocab_size=32, length_tokens=8)
ROW = Row("replica", 4, 5, 6)


@pytest.fixture(scope="module")
def state() -> checkpoint.State:
    """Unlike a fresh one, it does not give every piece nearly the same probability."""
    fresh = checkpoint.fresh(0, SHAPE, optimizer(config.Optimizer()))
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: p + 0.5 * noise.standard_normal(p.shape).astype(np.float32), fresh["params"]
    )
    return fresh | {"params": params}


@pytest.fixture(scope="module")
def expected_N2(tiny: Population, state: checkpoint.State) -> np.ndarray:
    """One sample at a time, without padding, in float64."""
    means = []
    for i in range(len(tiny)):
        x_L = tiny.sample(i)
        nats = [
            math.log(np.exp(z_V - z_V.max()).sum()) + z_V.max() - z_V[token]
            for z_V, token in zip(slow_forward(state["params"], x_L), x_L[1:], strict=False)
        ]
        means.append(sum(nats) / len(nats))
    return np.array(means)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 20, 64])
def test_scores_equal_a_slow_reference_at_any_batch_size(
    tiny: Population, state: checkpoint.State, expected_N2: np.ndarray, batch_size: int
):
    scorer = score.make_score(SHAPE)
    loss_N2 = score.score_row(state["params"], tiny, batch_size, scorer)
    assert (loss_N2.dtype, loss_N2.shape) == (np.float32, (20,))
    np.testing.assert_allclose(loss_N2, expected_N2, rtol=1e-5)
    assert loss_N2.argsort().tolist() == expected_N2.argsort().tolist()


def test_the_batch_size_changes_a_loss_by_rounding_only(tiny: Population, state: checkpoint.State):
    """By 1e-6 of its value at most; the same batch size gives the same bits."""
    scorer = score.make_score(SHAPE)
    whole, again, parts = (score.score_row(state["params"], tiny, b, scorer) for b in (20, 20, 7))
    assert whole.tobytes() == again.tobytes()
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_params_of_a_trained_row(tmp_path: Path, state: checkpoint.State):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 9, state)
    assert same(score.restore_params(ROW, 9, SHAPE, tmp_path), state["params"])


def test_a_row_without_its_last_state_is_refused(tmp_path: Path, state: checkpoint.State):
    message = "^row replica_4_5_6: not trained yet; run `lm-mia train` first$"
    with pytest.raises(UserError, match=message):
        score.restore_params(ROW, 9, SHAPE, tmp_path / "nothing")
    with checkpoint.manager(tmp_path / "half") as checkpoints:
        checkpoint.save(checkpoints, 8, state)
    with pytest.raises(UserError, match=message):
        score.restore_params(ROW, 9, SHAPE, tmp_path / "half")
