from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia.data.population import Population
from lm_mia.train import batching

quick = settings(deadline=None, max_examples=60)
seeds, sizes = st.integers(0, 2**40), st.integers(1, 50)


@pytest.mark.parametrize(
    ("members", "batch_size", "steps"), [(1, 1, 1), (8, 4, 2), (9, 4, 3), (3, 8, 1), (7, 1, 7)]
)
def test_steps_per_epoch(members: int, batch_size: int, steps: int):
    assert batching.steps_per_epoch(members, batch_size) == steps


@pytest.mark.parametrize(
    ("seed", "epoch", "order", "steps"),
    [
        (0, 0, [4, 3, 0, 2, 7, 6, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
        (0, 1, [7, 3, 1, 0, 5, 4, 6, 2], [4, 3, 5, 3, 4, 4, 5, 3]),
        (7, 0, [3, 4, 0, 6, 2, 7, 5, 1], [0, 2, 1, 0, 0, 2, 1, 1]),
    ],
)
def test_the_order_never_changes(seed: int, epoch: int, order: list[int], steps: list[int]):
    assert batching.epoch_order(seed, epoch, 8).tolist() == order
    member_2N = np.array([0, *[1] * 8, 0], bool)
    seen_2N = batching.last_seen(seed, member_2N, 3, 3 * (epoch + 1))
    assert seen_2N.tolist() == [-1, *steps, -1]


def test_hand_worked_batches():
    order_N, ids_N = np.array([4, 3, 0, 2, 1]), np.array([10, 11, 15, 17, 20])
    got = [batching.batch(order_N, ids_N, step, 2).tolist() for step in range(3)]
    assert got == [[20, 17], [10, 15], [11]]


@given(seeds, st.integers(0, 9), sizes)
@quick
def test_an_epoch_is_a_permutation(seed: int, epoch: int, members: int):
    order_N = batching.epoch_order(seed, epoch, members)
    assert sorted(order_N.tolist()) == list(range(members))
    assert np.array_equal(batching.epoch_order(seed, epoch, members), order_N)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(batching.epoch_order(s, e, 30)) for s in range(20) for e in range(20)}
    assert len(orders) == 400


def test_every_member_is_equally_often_at_every_place():
    """Counts of (member, place) over 4,000 epochs within 5 standard errors, their chi-square too."""
    count_NxN = np.zeros((5, 5))
    for epoch in range(4000):
        count_NxN[np.arange(5), batching.epoch_order(11, epoch, 5)] += 1
    assert np.abs(count_NxN - 800).max() < 5 * (4000 * 0.2 * 0.8) ** 0.5
    # (n - 1)^2 degrees of freedom after scaling by (n - 1) / n: mean 16, variance 32.
    assert abs((4 / 5) * ((count_NxN - 800) ** 2 / 800).sum() - 16) < 5 * 32**0.5


@given(seeds, sizes, st.integers(1, 60), st.integers(0, 3))
@quick
def test_an_epoch_sees_every_member_once(seed: int, members: int, batch_size: int, epoch: int):
    ids_N = np.sort(np.random.default_rng(members).choice(200, members, replace=False))
    order_N = batching.epoch_order(seed, epoch, members)
    parts = [
        batching.batch(order_N, ids_N, step, batch_size).tolist()
        for step in range(batching.steps_per_epoch(members, batch_size))
    ]
    assert sorted(i for part in parts for i in part) == ids_N.tolist()
    assert all(len(part) == batch_size for part in parts[:-1])


@given(seeds, st.integers(0, 30), st.integers(1, 12), st.integers(0, 40))
@quick
def test_last_seen_equals_a_walk(seed: int, members: int, batch_size: int, steps: int):
    member_2N = np.zeros(60, bool)
    ids_N = np.sort(np.random.default_rng(members).choice(60, members, replace=False))
    member_2N[ids_N] = True
    expected_2N, per_epoch = np.full(60, -1), batching.steps_per_epoch(members, batch_size)
    for t in range(steps if members else 0):
        epoch, step = divmod(t, per_epoch)
        order_N = batching.epoch_order(seed, epoch, members)
        expected_2N[batching.batch(order_N, ids_N, step, batch_size)] = t
    step_2N = batching.last_seen(seed, member_2N, batch_size, steps)
    assert step_2N.dtype == np.int64
    np.testing.assert_array_equal(step_2N, expected_2N)


def test_padded_holds_the_samples_and_fills_up(tiny: Population):
    x_BxL, length_B = batching.padded(tiny, np.array([7, 0, 19]), 5)
    assert (x_BxL.dtype, length_B.dtype) == (np.int32, np.int32)
    assert x_BxL.shape == (5, 8)
    assert length_B.tolist() == [len(tiny.sample(i)) for i in (7, 0, 19)] + [0, 0]
    for x_L, i in zip(x_BxL, (7, 0, 19), strict=False):
        tokens = tiny.sample(i).tolist()
        assert x_L.tolist() == tokens + [0] * (8 - len(tokens))
    assert not x_BxL[3:].any()


def test_padded_edges(tiny: Population):
    x_BxL, length_B = batching.padded(tiny, np.array([], np.int64), 2)
    assert x_BxL.tolist() == [[0] * 8] * 2
    assert length_B.tolist() == [0, 0]
    x_BxL, length_B = batching.padded(tiny, np.arange(20), 20)
    assert length_B.tolist() == tiny.lengths_N.tolist()
    assert length_B.min() < 8 == length_B.max()  # the fixture has short samples and cut ones
    with pytest.raises(ValueError, match="broadcast"):
        batching.padded(tiny, np.arange(3), 2)


def of_lengths(length_N: list[int], length_tokens: int) -> Population:
    """Samples of so many tokens: 100, 101, ... in the first, 200, 201, ... in the second."""
    tokens = np.concatenate([100 * (i + 1) + np.arange(n) for i, n in enumerate(length_N)])
    settings = {"population.length_tokens": length_tokens}
    offsets_N1 = np.append(0, np.cumsum(length_N))
    return Population(Path(), tokens.astype(np.uint32), offsets_N1, {"settings": settings})


def test_hand_worked_rows():
    """Samples of 2, 4 and 1 tokens (ids 2, 0, 1) in rows of 4: the longest alone, the others together."""
    samples = of_lengths([4, 1, 2], 4)
    ids_B = np.array([2, 0, 1])
    plan = batching.packed_plan(samples.lengths_N[ids_B], 4)
    rows, sizes = batching.rows(samples, ids_B, plan, micro_batches=3, micro_rows=1)
    none = [0, 0, 0, 0]
    assert rows.x_NxMxL.tolist() == [[[100, 101, 102, 103]], [[300, 301, 200, 0]], [none]]
    assert rows.segment_NxMxL.tolist() == [[[1, 1, 1, 1]], [[1, 1, 2, 0]], [none]]
    assert rows.position_NxMxL.tolist() == [[[0, 1, 2, 3]], [[0, 1, 0, 0]], [none]]
    assert {a.dtype for a in rows} == {np.dtype("int32")}
    assert sizes == batching.Sizes(trips=2, tokens=7, predicted=4, square_tokens=16 + 4 + 1)
    assert all(type(size) is int for size in sizes)


def test_padded_rows_hold_one_sample_each(tiny: Population):
    ids_B = np.array([7, 0, 19])
    plan = batching.padded_plan(tiny.lengths_N[ids_B])
    rows, sizes = batching.rows(tiny, ids_B, plan, micro_batches=2, micro_rows=2)
    x_BxL, length_B = batching.padded(tiny, ids_B, 4)
    np.testing.assert_array_equal(rows.x_NxMxL.reshape(4, 8), x_BxL)
    real_BxL = np.arange(8) < length_B[:, None]
    np.testing.assert_array_equal(rows.segment_NxMxL.reshape(4, 8), real_BxL)
    np.testing.assert_array_equal(rows.position_NxMxL.reshape(4, 8), real_BxL * np.arange(8))
    assert sizes.trips == 2


packable = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(packable, st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
@quick
def test_rows_hold_every_sample_once_wherever_the_devices_are(
    lengths: list[int], micro_rows: int, devices: int, random
):
    samples, length_B = of_lengths(lengths, 9), np.array(lengths)
    ids_B = np.arange(len(lengths))
    plan = batching.packed_plan(length_B, 9)
    count = batching.micro_batches(len(lengths), micro_rows, devices)
    rows, sizes = batching.rows(samples, ids_B, plan, count, micro_rows, devices)
    M = micro_rows * devices
    assert rows.x_NxMxL.shape == (count, M, 9)
    assert sizes.trips <= count
    # The layout is the plan's, row after row.
    x_RxL, segment_RxL, position_RxL = (a.reshape(count * M, 9) for a in rows)
    assert not segment_RxL[plan.rows :].any()
    assert not segment_RxL[sizes.trips * M :].any()
    assert segment_RxL[(sizes.trips - 1) * M :].any()
    for i, n in enumerate(lengths):
        at = plan.row_B[i], slice(plan.start_B[i], plan.start_B[i] + n)
        assert x_RxL[at].tolist() == samples.sample(i).tolist()
        assert position_RxL[at].tolist() == list(range(n))
        assert (segment_RxL[at] == plan.segment_B[i]).all()
    assert (segment_RxL > 0).sum() == sum(lengths) == sizes.tokens
    # A host has the rows of its devices, and sizes of the whole batch.
    mine = sorted(random.sample(range(devices), random.randint(1, devices)))
    own, of_all = batching.rows(samples, ids_B, plan, count, micro_rows, devices, mine)
    assert of_all == sizes
    for whole_NxMxL, own_NxMxL in zip(rows, own, strict=True):
        by_device = whole_NxMxL.reshape(count, devices, micro_rows, 9)[:, mine]
        np.testing.assert_array_equal(own_NxMxL, by_device.reshape(own_NxMxL.shape))


def test_a_host_reads_no_sample_of_another():
    read: list[int] = []

    class Watched(Population):
        def sample(self, i: int) -> np.ndarray:
            read.append(i)
            return super().sample(i)

    whole = of_lengths([4] * 8, 4)
    samples = Watched(Path(), whole.tokens, whole.offsets_N1, whole.manifest)
    plan = batching.packed_plan(samples.lengths_N, 4)
    # Micro-batches of 2 devices x 1 row: even rows are the first device's.
    batching.rows(samples, np.arange(8), plan, 4, 1, 2, mine=[1])
    assert read == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("samples", "micro_rows", "devices", "count"),
    [(128, 2, 1, 64), (128, 8, 8, 2), (129, 8, 8, 3), (1, 8, 8, 1), (7, 1, 1, 7)],
)
def test_micro_batches_are_enough_for_rows_of_one_sample(
    samples: int, micro_rows: int, devices: int, count: int
):
    assert batching.micro_batches(samples, micro_rows, devices) == count


def test_too_many_rows_for_the_micro_batches_are_refused():
    samples = of_lengths([4, 4, 4], 4)
    with pytest.raises(IndexError):
        batching.rows(samples, np.arange(3), batching.padded_plan(samples.lengths_N), 2, 1)
