import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_batches import padded, padded_plan

from lm_mia.data.population import Population
from lm_mia.train import batching

quick = settings(deadline=None, max_examples=60)


def population_with(length_N: list[int], length_tokens: int) -> Population:
    """Returns samples of these lengths; the first has tokens 100, 101, ..., the second 200, 201, ..."""
    tokens = np.concatenate([100 * (i + 1) + np.arange(n) for i, n in enumerate(length_N)])
    settings = {"population.length_tokens": length_tokens}
    offsets_N1 = np.append(0, np.cumsum(length_N))
    return Population(Path(), tokens.astype(np.uint32), offsets_N1, {"settings": settings})


def test_packed_batch_worked_by_hand():
    """With L = 4 and samples of 2, 4 and 1 tokens (ids 2, 0, 1), the longest is alone, and the others are together."""
    samples = population_with([4, 1, 2], 4)
    ids_B = np.array([2, 0, 1])
    plan = batching.plan_packing(samples.lengths_N[ids_B], 4)
    batch, stats = batching.pack_batch(samples, ids_B, plan, micro_batches=3, micro_batch_size=1)
    none = [0, 0, 0, 0]
    assert batch.x_UxBxL.tolist() == [[[100, 101, 102, 103]], [[300, 301, 200, 0]], [none]]
    assert batch.segment_UxBxL.tolist() == [[[1, 1, 1, 1]], [[1, 1, 2, 0]], [none]]
    assert batch.position_UxBxL.tolist() == [[[0, 1, 2, 3]], [[0, 1, 0, 0]], [none]]
    assert {a.dtype for a in batch} == {np.dtype("int32")}
    assert stats == batching.BatchStats(
        num_micro_batches=2,
        micro_batch_size=1,
        num_tokens=7,
        num_targets=4,
        sum_squared_lengths=16 + 4 + 1,
    )
    assert all(type(size) is int for size in stats)


@pytest.mark.parametrize(
    ("num_sequences", "num_devices", "size"),
    [
        (24, 1, 8),  # three micro-batches
        (22, 1, 8),  # 7 would need four
        (17, 1, 6),  # three micro-batches, one place of which is empty
        (8, 1, 8),
        (3, 1, 5),
        (25, 2, 7),  # two micro-batches of 14; those of 12 would be three
    ],
)
def test_micro_batches_are_few_and_of_the_smallest_size_that_suffices(
    num_sequences: int, num_devices: int, size: int
):
    assert batching.choose_micro_batch_size((5, 6, 7, 8), num_sequences, num_devices) == size


def test_c4_like_batches_fill_micro_batches_to_98_percent():
    sequences_N = np.random.default_rng(0).normal(50.5, 2.5, 1000).round().astype(int)
    for sizes in (range(2, 65, 2), range(1, 33), range(1, 21)):
        chosen = [batching.choose_micro_batch_size(sizes, n, 1) for n in sequences_N]
        places = [-(-n // m) * m for n, m in zip(sequences_N, chosen, strict=True)]
        assert sequences_N.sum() / sum(places) > 0.98


def test_padded_plan_gives_one_sample_per_sequence(tiny: Population):
    ids_B = np.array([7, 0, 19])
    plan = padded_plan(tiny.lengths_N[ids_B])
    batch, stats = batching.pack_batch(tiny, ids_B, plan, micro_batches=2, micro_batch_size=2)
    x_BxL, length_B = padded(tiny, ids_B, 4)
    np.testing.assert_array_equal(batch.x_UxBxL.reshape(4, 8), x_BxL)
    real_BxL = np.arange(8) < length_B[:, None]
    np.testing.assert_array_equal(batch.segment_UxBxL.reshape(4, 8), real_BxL)
    np.testing.assert_array_equal(batch.position_UxBxL.reshape(4, 8), real_BxL * np.arange(8))
    assert stats.num_micro_batches == 2


packable = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(packable, st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
@quick
def test_batch_holds_every_sample_once_for_any_devices(
    lengths: list[int], micro_batch_size: int, devices: int, random
):
    samples, length_B = population_with(lengths, 9), np.array(lengths)
    ids_B = np.arange(len(lengths))
    plan = batching.plan_packing(length_B, 9)
    count = batching.max_micro_batches(len(lengths), micro_batch_size, devices)
    batch, stats = batching.pack_batch(samples, ids_B, plan, count, micro_batch_size, devices)
    M = micro_batch_size * devices
    assert batch.x_UxBxL.shape == (count, M, 9)
    assert stats.num_micro_batches <= count
    # The layout is that of the plan.
    x_BxL, segment_BxL, position_BxL = (a.reshape(count * M, 9) for a in batch)
    assert not segment_BxL[plan.num_sequences :].any()
    assert not segment_BxL[stats.num_micro_batches * M :].any()
    assert segment_BxL[(stats.num_micro_batches - 1) * M :].any()
    for i, n in enumerate(lengths):
        index = plan.sequence_C[i], slice(plan.start_C[i], plan.start_C[i] + n)
        assert x_BxL[index].tolist() == samples.sample(i).tolist()
        assert position_BxL[index].tolist() == list(range(n))
        assert (segment_BxL[index] == plan.segment_C[i]).all()
    assert (segment_BxL > 0).sum() == sum(lengths) == stats.num_tokens
    # A process has the packed sequences of its own devices, and the stats of the whole batch.
    devices_of_process = sorted(random.sample(range(devices), random.randint(1, devices)))
    own, stats_of_process = batching.pack_batch(
        samples, ids_B, plan, count, micro_batch_size, devices, devices_of_process
    )
    assert stats_of_process == stats
    for whole_UxBxL, own_UxBxL in zip(batch, own, strict=True):
        by_device = whole_UxBxL.reshape(count, devices, micro_batch_size, 9)[:, devices_of_process]
        np.testing.assert_array_equal(own_UxBxL, by_device.reshape(own_UxBxL.shape))


def test_process_reads_samples_of_its_devices_only():
    read: list[int] = []

    class Watched(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            read.extend(index.tolist())
            return super().__getitem__(index)

    population = population_with([4] * 8, 4)
    samples = dataclasses.replace(population, tokens=population.tokens.view(Watched))
    plan = batching.plan_packing(samples.lengths_N, 4)
    # Micro-batches of 2 devices x 1 packed sequence: even packed sequences belong to the first device.
    batching.pack_batch(samples, np.arange(8), plan, 4, 1, 2, device_indices=[1])
    assert read == [4 * i + k for i in (1, 3, 5, 7) for k in range(4)]


@pytest.mark.parametrize(
    ("samples", "micro_batch_size", "devices", "count"),
    [(128, 2, 1, 64), (128, 8, 8, 2), (129, 8, 8, 3), (1, 8, 8, 1), (7, 1, 1, 7)],
)
def test_max_micro_batches_allow_one_sample_per_sequence(
    samples: int, micro_batch_size: int, devices: int, count: int
):
    assert batching.max_micro_batches(samples, micro_batch_size, devices) == count


def test_plan_with_too_many_sequences_is_refused():
    samples = population_with([4, 4, 4], 4)
    with pytest.raises(IndexError):
        batching.pack_batch(samples, np.arange(3), padded_plan(samples.lengths_N), 2, 1)
