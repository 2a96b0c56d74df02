import collections
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import seeds
from lm_mia.seeds import draw, permutation, rng


def test_streams_depend_on_seed_and_purpose():
    draws = {
        (seed, purpose): tuple(rng(seed, purpose).integers(2**62, size=4))
        for seed in (0, 1, 10**30)
        for purpose in ("a", "b")
    }
    assert len(set(draws.values())) == 6
    assert tuple(rng(0, "a").integers(2**62, size=4)) == draws[0, "a"]


def test_raw_stream_is_reproducible():
    assert rng(0, "a").bit_generator.random_raw() == 13920770739053282023


def test_keys_depend_on_seed_purpose_and_id_only():
    id_N = np.arange(1000)
    order_N = permutation(0, "order", 1000)
    key_N = seeds.keys(0, "ties", id_N)
    np.testing.assert_array_equal(seeds.keys(0, "ties", id_N[order_N]), key_N[order_N])
    np.testing.assert_array_equal(seeds.keys(0, "ties", id_N[10:12]), key_N[10:12])
    assert key_N[:2].tolist() == [16548234224174796273, 143889617897532268]
    assert not np.isin(seeds.keys(1, "ties", id_N), key_N).any()
    assert not np.isin(seeds.keys(0, "partners", id_N), key_N).any()


def test_keys_are_distinct_and_uniform():
    # Consecutive ids, and ids that differ in their highest bits only.
    for id_N in (np.arange(2**16), np.arange(2**16, dtype=np.uint64) << np.uint64(48)):
        key_N = seeds.keys(0, "ties", id_N)
        assert key_N.dtype == np.uint64
        assert len(np.unique(key_N)) == 2**16
        bit_Nx64 = np.unpackbits(key_N.view(np.uint8)).reshape(-1, 64)
        # Each bit is a fair coin, and so is whether it equals that of the next id: 5 standard deviations of 64 coins.
        assert np.abs(bit_Nx64.mean(axis=0) - 0.5).max() < 5 * 0.5 / 2**8
        assert np.abs((bit_Nx64[1:] == bit_Nx64[:-1]).mean(axis=0) - 0.5).max() < 5 * 0.5 / 2**8


C4_RECORDS = 364_868_892


def test_draw_is_reproducible():
    assert draw(0, "a", C4_RECORDS, 4).tolist() == [256240522, 208296831, 209198480, 239742229]
    assert draw(0, "a", 10, 4).tolist() == permutation(0, "a", 10)[:4].tolist() == [6, 7, 2, 3]
    assert draw(0, "a", 2**22 + 1, 3).tolist() == [4003758, 3254637, 3268726]
    assert draw(0, "a", 2**22, 3).tolist() == [3478593, 1987820, 3103469]


@pytest.fixture
def nothing_listed(monkeypatch: pytest.MonkeyPatch):
    """Makes all draws by the method for large corpora."""
    monkeypatch.setattr(seeds, "_MAX_PERMUTED", 0)


def slow_draw(seed: int, purpose: str, n: int, k: int) -> list[int]:
    """Draws by reading one number of the raw stream after another."""
    stream, taken = rng(seed, purpose).bit_generator, dict[int, None]()
    while len(taken) < k:
        number = int(stream.random_raw()) >> (64 - (n - 1).bit_length())
        if number < n:
            taken.setdefault(number)
    return list(taken)


@given(n=st.integers(2, 300), part=st.floats(0, 1), seed=st.integers(0, 9))
def test_large_draws_equal_a_slow_reference(n: int, part: float, seed: int):
    k = round(n * part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "_MAX_PERMUTED", 0)
        patch.setattr(seeds, "_BLOCK", 7)
        drawn = draw(seed, "p", n, k)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == slow_draw(seed, "p", n, k)


@pytest.mark.parametrize("n", [1000, 2**22 + 3])
@pytest.mark.parametrize("k", [0, 1, 10, 999])
def test_longer_draws_extend_shorter_ones(n: int, k: int):
    long = draw(3, "p", n, 1000)
    assert len(set(long.tolist())) == 1000
    assert 0 <= long.min() <= long.max() < n
    assert draw(3, "p", n, k).tolist() == long[:k].tolist()


@pytest.mark.usefixtures("nothing_listed")
def test_all_numbers_can_be_drawn():
    assert sorted(draw(1, "p", 1000, 1000).tolist()) == list(range(1000))


@pytest.mark.montecarlo
@pytest.mark.usefixtures("nothing_listed")
def test_sequences_are_equally_likely():
    n, k, times = 5, 3, 6000
    seen = collections.Counter(tuple(draw(seed, "p", n, k).tolist()) for seed in range(times))
    assert set(seen) == set(itertools.permutations(range(n), k))
    expected = times / math.perm(n, k)
    chi_squared = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi_squared < 97  # 59 degrees of freedom: exceeded with a probability of 0.001


def test_seed_and_purpose_change_the_draw():
    assert len({tuple(draw(s, p, 10**9, 5).tolist()) for s in (0, 1) for p in ("a", "b")}) == 4


@pytest.mark.parametrize("k", [-1, 11])
def test_invalid_sizes_are_refused(k: int):
    with pytest.raises(ValueError, match=f"k={k}: .*n=10"):
        draw(0, "p", 10, k)
