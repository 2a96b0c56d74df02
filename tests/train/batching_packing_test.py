import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia.train import batching

batches_of_lengths = st.lists(st.integers(1, 40), max_size=60)
quick = settings(deadline=None, max_examples=100)


def c4_like(*shape: int, seed: int) -> np.ndarray:
    """Draws lognormal lengths, cut at 1,024 tokens, with a mean of 400 tokens."""
    drawn = np.random.default_rng(seed).lognormal(5.689, 1.0, shape)
    return np.clip(np.rint(drawn), 3, 1024).astype(np.int64)


def occupied(plan: batching.PackingPlan, length_B: np.ndarray, length_tokens: int) -> np.ndarray:
    """Returns owner_BxL, the sample at each position, -1 for none; fails if samples overlap or do not fit."""
    owner_BxL = np.full((plan.num_sequences, length_tokens), -1)
    for i, n in enumerate(length_B):
        sequence, start = plan.sequence_C[i], plan.start_C[i]
        assert 0 <= sequence < plan.num_sequences
        assert 0 <= start <= length_tokens - n
        assert (owner_BxL[sequence, start : start + n] == -1).all(), "two samples on one token"
        owner_BxL[sequence, start : start + n] = i
    return owner_BxL


def slow_best_fit(length_B: list[int], length_tokens: int) -> list[tuple[int, int]]:
    """Returns (sequence, start) of each sample, trying all packed sequences and taking the fullest with enough
    space."""
    used: list[int] = []
    positions = [(0, 0)] * len(length_B)
    for i in sorted(range(len(length_B)), key=lambda i: (-length_B[i], i)):
        fits = [sequence for sequence, n in enumerate(used) if n + length_B[i] <= length_tokens]
        sequence = (
            max(fits, key=lambda sequence: (used[sequence], -sequence)) if fits else len(used)
        )
        if not fits:
            used.append(0)
        positions[i] = (sequence, used[sequence])
        used[sequence] += length_B[i]
    return positions


def test_plan_worked_by_hand():
    """20 and 18 begin packed sequences of 30; 11 fits only into the second; the 1s go where the least space is left."""
    plan = batching.plan_packing(np.array([1, 18, 20, 11, 1]), 30)
    assert plan.num_sequences == 2
    assert plan.sequence_C.tolist() == [1, 1, 0, 1, 0]
    assert plan.start_C.tolist() == [29, 0, 0, 18, 20]
    assert plan.segment_C.tolist() == [3, 1, 1, 2, 2]


@given(batches_of_lengths, st.integers(40, 90))
@quick
def test_plan_equals_slow_best_fit(lengths: list[int], length_tokens: int):
    plan = batching.plan_packing(np.array(lengths, np.int64), length_tokens)
    assignments = list(zip(plan.sequence_C.tolist(), plan.start_C.tolist(), strict=True))
    assert assignments == slow_best_fit(lengths, length_tokens)


@given(batches_of_lengths, st.integers(40, 90))
@quick
def test_samples_do_not_overlap_leave_no_gaps_and_are_numbered(
    lengths: list[int], length_tokens: int
):
    length_B = np.array(lengths, np.int64)
    plan = batching.plan_packing(length_B, length_tokens)
    owner_BxL = occupied(plan, length_B, length_tokens)
    for sequence, owner_L in enumerate(owner_BxL):
        taken = int((owner_L >= 0).sum())
        assert taken > 0, "empty"
        assert (owner_L[:taken] >= 0).all(), "a gap"
        ids = np.flatnonzero(plan.sequence_C == sequence)
        order = ids[np.argsort(plan.start_C[ids])]
        assert plan.segment_C[order].tolist() == list(range(1, len(order) + 1))


@given(batches_of_lengths, st.integers(40, 90), st.randoms(use_true_random=False))
@quick
def test_order_of_samples_does_not_change_packed_lengths(
    lengths: list[int], length_tokens: int, random
):
    def contents(lengths: list[int]) -> list[list[int]]:
        plan = batching.plan_packing(np.array(lengths, np.int64), length_tokens)
        lengths_of_sequences: list[list[int]] = [[] for _ in range(plan.num_sequences)]
        for sequence, n in sorted(zip(plan.sequence_C.tolist(), lengths, strict=True)):
            lengths_of_sequences[sequence].append(n)
        return lengths_of_sequences

    shuffled = lengths.copy()
    random.shuffle(shuffled)
    assert contents(shuffled) == contents(lengths)


def test_c4_like_batches_fill_98_percent():
    """B = 128 with 400 of 1,024 tokens on average: 0.98 on average, and never less than 0.95."""
    length_SxB = c4_like(200, 128, seed=3)
    fills = [
        length_B.sum() / 1024 / batching.plan_packing(length_B, 1024).num_sequences
        for length_B in length_SxB
    ]
    assert min(fills) >= 0.95
    assert np.mean(fills) >= 0.98
    assert np.mean(length_SxB) == pytest.approx(400, rel=0.02)


def test_plan_depends_on_lengths_only():
    length_B = c4_like(128, seed=1)
    one, again = (batching.plan_packing(length_B.astype(t), 1024) for t in (np.int64, np.int32))
    for field in ("sequence_C", "start_C", "segment_C"):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))
    assert one.num_sequences == again.num_sequences


def test_plans_of_no_full_and_one_token_samples():
    none = batching.plan_packing(np.array([], np.int64), 8)
    assert (none.num_sequences, len(none.sequence_C)) == (0, 0)
    full = batching.plan_packing(np.array([8, 8, 8]), 8)
    assert full.sequence_C.tolist() == [0, 1, 2]
    ones = batching.plan_packing(np.ones(17, np.int64), 8)
    assert ones.num_sequences == 3
    assert ones.start_C.tolist() == [*range(8), *range(8), 0]
    assert ones.segment_C.tolist() == [*range(1, 9), *range(1, 9), 1]


@pytest.mark.parametrize("bad", [0, -1, 9])
def test_sample_of_invalid_length_is_refused(bad: int):
    with pytest.raises(ValueError, match=rf" {bad} tokens: .*\b1 to 8\b"):
        batching.plan_packing(np.array([3, bad, 8]), 8)
