import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import batches
from lm_mia.population import Population

quick = settings(deadline=None, max_examples=60)
seeds, sizes = st.integers(0, 2**40), st.integers(1, 50)


@pytest.mark.parametrize(
    ("members", "batch_size", "steps"), [(1, 1, 1), (8, 4, 2), (9, 4, 3), (3, 8, 1), (7, 1, 7)]
)
def test_steps_per_epoch(members: int, batch_size: int, steps: int):
    assert batches.steps_per_epoch(members, batch_size) == steps


@pytest.mark.parametrize(
    ("seed", "epoch", "order", "steps"),
    [
        (0, 0, [4, 3, 0, 2, 7, 6, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
        (0, 1, [7, 3, 1, 0, 5, 4, 6, 2], [4, 3, 5, 3, 4, 4, 5, 3]),
        (7, 0, [3, 4, 0, 6, 2, 7, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
    ],
)
def test_the_order_never_changes(seed: int, epoch: int, order: list[int], steps: list[int]):
    assert batches.epoch_order(seed, epoch, 8).tolist() == order
    assert batches.step_of_members(seed, epoch, 8, 3).tolist() == steps


def test_hand_worked_batches():
    order_N, ids_N = np.array([4, 3, 0, 2, 1]), np.array([10, 11, 15, 17, 20])
    got = [batches.batch(order_N, ids_N, step, 2).tolist() for step in range(3)]
    assert got == [[20, 17], [10, 15], [11]]


@given(seeds, st.integers(0, 9), sizes)
@quick
def test_an_epoch_is_a_permutation(seed: int, epoch: int, members: int):
    order_N = batches.epoch_order(seed, epoch, members)
    assert sorted(order_N.tolist()) == list(range(members))
    assert np.array_equal(batches.epoch_order(seed, epoch, members), order_N)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(batches.epoch_order(s, e, 30)) for s in range(20) for e in range(20)}
    assert len(orders) == 400


def test_every_member_is_equally_often_at_every_place():
    """Counts of (member, place) over 4,000 epochs within 5 standard errors, their chi-square too."""
    count_NxN = np.zeros((5, 5))
    for epoch in range(4000):
        count_NxN[np.arange(5), batches.epoch_order(11, epoch, 5)] += 1
    assert np.abs(count_NxN - 800).max() < 5 * (4000 * 0.2 * 0.8) ** 0.5
    # (n - 1)^2 degrees of freedom after scaling by (n - 1) / n: mean 16, variance 32.
    assert abs((4 / 5) * ((count_NxN - 800) ** 2 / 800).sum() - 16) < 5 * 32**0.5


@given(seeds, sizes, st.integers(1, 60), st.integers(0, 3))
@quick
def test_step_of_members_equals_a_walk(seed: int, members: int, batch_size: int, epoch: int):
    ids_N = np.sort(np.random.default_rng(members).choice(200, members, replace=False))
    seen: dict[int, int] = {}
    t = sizes_seen = 0
    for e in range(epoch + 1):
        order_N = batches.epoch_order(seed, e, members)
        for step in range(batches.steps_per_epoch(members, batch_size)):
            ids_B = batches.batch(order_N, ids_N, step, batch_size)
            left = members - step * batch_size
            assert len(ids_B) == min(batch_size, left)
            if e == epoch:
                assert not seen.keys() & set(ids_B.tolist())
                seen |= dict.fromkeys(ids_B.tolist(), t)
                sizes_seen += len(ids_B)
            t += 1
    assert sizes_seen == members
    step_N = batches.step_of_members(seed, epoch, members, batch_size)
    assert step_N.dtype == np.int64
    assert step_N.tolist() == [seen[i] for i in ids_N.tolist()]


def test_padded_holds_the_samples_and_fills_up(tiny: Population):
    x_BxL, length_B = batches.padded(tiny, np.array([7, 0, 19]), 5)
    assert (x_BxL.dtype, length_B.dtype) == (np.int32, np.int32)
    assert x_BxL.shape == (5, 8)
    assert length_B.tolist() == [len(tiny.sample(i)) for i in (7, 0, 19)] + [0, 0]
    for x_L, i in zip(x_BxL, (7, 0, 19), strict=False):
        tokens = tiny.sample(i).tolist()
        assert x_L.tolist() == tokens + [0] * (8 - len(tokens))
    assert not x_BxL[3:].any()


def test_padded_edges(tiny: Population):
    x_BxL, length_B = batches.padded(tiny, np.array([], np.int64), 2)
    assert x_BxL.tolist() == [[0] * 8] * 2
    assert length_B.tolist() == [0, 0]
    x_BxL, length_B = batches.padded(tiny, np.arange(20), 20)
    assert length_B.tolist() == tiny.lengths_N.tolist()
    assert length_B.min() < 8 == length_B.max()  # the fixture has short samples and cut ones
    with pytest.raises(ValueError, match="broadcast"):
        batches.padded(tiny, np.arange(3), 2)
