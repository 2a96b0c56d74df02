import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia.data import batch_order

quick = settings(deadline=None, max_examples=60)
seeds, sizes = st.integers(0, 2**40), st.integers(1, 50)


@pytest.mark.parametrize(
    ("members", "batch_size", "steps"), [(1, 1, 1), (8, 4, 2), (9, 4, 3), (3, 8, 1), (7, 1, 7)]
)
def test_steps_per_epoch(members: int, batch_size: int, steps: int):
    assert batch_order.steps_per_epoch(members, batch_size) == steps


@pytest.mark.parametrize(
    ("seed", "epoch", "order", "steps"),
    [
        (0, 0, [4, 3, 0, 2, 7, 6, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
        (0, 1, [7, 3, 1, 0, 5, 4, 6, 2], [4, 3, 5, 3, 4, 4, 5, 3]),
        (7, 0, [3, 4, 0, 6, 2, 7, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
    ],
)
def test_order_is_reproducible(seed: int, epoch: int, order: list[int], steps: list[int]):
    assert batch_order.epoch_order(seed, epoch, 8).tolist() == order
    member_2N = np.array([0, *[1] * 8, 0], bool)
    seen_2N = batch_order.last_seen(seed, member_2N, 3, 3 * (epoch + 1))
    assert seen_2N.tolist() == [-1, *steps, -1]


def test_hand_computed_batches():
    order_N, ids_N = np.array([4, 3, 0, 2, 1]), np.array([10, 11, 15, 17, 20])
    batches = [batch_order.batch(order_N, ids_N, step, 2).tolist() for step in range(3)]
    assert batches == [[20, 17], [10, 15], [11]]


@given(seeds, st.integers(0, 9), sizes)
@quick
def test_epoch_is_a_permutation(seed: int, epoch: int, members: int):
    order_N = batch_order.epoch_order(seed, epoch, members)
    assert sorted(order_N.tolist()) == list(range(members))
    assert np.array_equal(batch_order.epoch_order(seed, epoch, members), order_N)


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(batch_order.epoch_order(s, e, 30)) for s in range(20) for e in range(20)}
    assert len(orders) == 400


def test_positions_of_members_are_uniform():
    """Counts of (member, position) over 4,000 epochs, and their chi-square, are within 5 standard errors."""
    count_NxN = np.zeros((5, 5))
    for epoch in range(4000):
        count_NxN[np.arange(5), batch_order.epoch_order(11, epoch, 5)] += 1
    assert np.abs(count_NxN - 800).max() < 5 * (4000 * 0.2 * 0.8) ** 0.5
    # (n - 1)^2 degrees of freedom after scaling by (n - 1) / n: mean 16, variance 32.
    assert abs((4 / 5) * ((count_NxN - 800) ** 2 / 800).sum() - 16) < 5 * 32**0.5


@given(seeds, sizes, st.integers(1, 60), st.integers(0, 3))
@quick
def test_epoch_visits_each_member_once(seed: int, members: int, batch_size: int, epoch: int):
    ids_N = np.sort(np.random.default_rng(members).choice(200, members, replace=False))
    order_N = batch_order.epoch_order(seed, epoch, members)
    parts = [
        batch_order.batch(order_N, ids_N, step, batch_size).tolist()
        for step in range(batch_order.steps_per_epoch(members, batch_size))
    ]
    assert sorted(i for part in parts for i in part) == ids_N.tolist()
    assert all(len(part) == batch_size for part in parts[:-1])


@given(seeds, st.integers(0, 30), st.integers(1, 12), st.integers(0, 40))
@quick
def test_last_seen_equals_a_slow_reference(seed: int, members: int, batch_size: int, steps: int):
    member_2N = np.zeros(60, bool)
    ids_N = np.sort(np.random.default_rng(members).choice(60, members, replace=False))
    member_2N[ids_N] = True
    expected_2N, per_epoch = np.full(60, -1), batch_order.steps_per_epoch(members, batch_size)
    for t in range(steps if members else 0):
        epoch, step = divmod(t, per_epoch)
        order_N = batch_order.epoch_order(seed, epoch, members)
        expected_2N[batch_order.batch(order_N, ids_N, step, batch_size)] = t
    step_2N = batch_order.last_seen(seed, member_2N, batch_size, steps)
    assert step_2N.dtype == np.int64
    np.testing.assert_array_equal(step_2N, expected_2N)
