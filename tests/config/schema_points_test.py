import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY, change

from lm_mia.config import Config, epoch_steps, score_steps, total_steps
from lm_mia.data import batch_order


def config_of(samples: int, batch_size: int, epochs: int) -> Config:
    c = change(change(TINY, "population.samples", samples), "train.batch_size", batch_size)
    return change(c, "train.epochs", epochs)


def points(c: Config, steps: tuple[int, ...], epochs: tuple[float, ...]) -> tuple[int, ...]:
    return score_steps(change(change(c, "score.at_steps", steps), "score.at_epochs", epochs))


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs", "steps"),
    [(16, 4, 1, 2), (16, 8, 1, 1), (18, 4, 1, 3), (18, 4, 3, 9), (2**20, 128, 10, 40_960)],
)
def test_the_last_batch_of_an_epoch_may_be_short(samples, batch_size, epochs, steps):
    c = config_of(samples, batch_size, epochs)
    assert total_steps(c) == steps
    assert steps == epochs * batch_order.steps_per_epoch(samples // 2, batch_size)


@pytest.mark.parametrize(
    ("steps", "epochs", "expected"),
    [
        ((), (), ()),
        ((7, 3), (), (3, 7)),
        ((), (1, 0.5, 2.0), (5, 10, 20)),
        ((10, 4), (1.0,), (4, 10)),  # a step that is requested twice is one point
        ((), (0.04,), (1,)),  # the first step at the earliest
        ((), (0.26, 0.34), (3,)),
        ((1,), (2.99,), (1,)),  # rounds to the end, which is always scored
        ((29,), (2.94,), (29,)),
    ],
)
def test_score_points_are_steps_in_order(steps, epochs, expected):
    assert points(config_of(80, 4, 3), steps, epochs) == expected


def test_epoch_steps_keeps_the_order_of_the_epochs():
    c = change(config_of(80, 4, 3), "score.at_epochs", (2.99, 0.001, 0.1, 1.0))
    assert epoch_steps(c) == [30, 1, 1, 10]


@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(1, 4),
    st.lists(st.floats(0.001, 0.999), max_size=5),
)
def test_score_points_are_within_the_training_steps(half, batch_size, epochs, shares):
    c = config_of(2 * half, min(batch_size, half), epochs)
    total = total_steps(c)
    result = points(c, (), tuple(share * epochs for share in shares))
    assert list(result) == sorted(set(result))
    assert all(0 < step < total for step in result)
