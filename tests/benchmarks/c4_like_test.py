import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lm_mia.train import batching


@pytest.fixture(scope="module")
def c4_like() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("c4_like")


@pytest.mark.parametrize("scale", [1, 4, 16])
def test_lengths_have_the_mean_and_maximum_of_c4(c4_like: ModuleType, scale: int):
    length_N = c4_like.lengths(100_000, scale)
    # The standard deviation of a length is below 0.32 L, so that of this mean is 0.001 L.
    assert length_N.mean() == pytest.approx(400 / scale, abs=0.004 * 1024 / scale)
    assert length_N.max() == 1024 // scale
    assert length_N.min() >= 3
    assert (length_N == 1024 // scale).mean() == pytest.approx(0.108, abs=0.005)


def test_log_median_gives_the_requested_mean_of_cut_lengths(c4_like: ModuleType):
    drawn_N = np.random.default_rng(3).lognormal(c4_like.log_median(400, 1024), 1, 400_000)
    assert np.minimum(drawn_N, 1024).mean() == pytest.approx(400, abs=2.5)


def test_batches_of_128_fill_50_packed_sequences(c4_like: ModuleType):
    length_IxB = c4_like.lengths(100 * 128).reshape(100, 128)
    num_sequences = np.mean(
        [batching.plan_packing(length_B, 1024).num_sequences for length_B in length_IxB]
    )
    assert num_sequences == pytest.approx(50.5, abs=1.5)


def test_population_has_these_lengths_and_no_padding(c4_like: ModuleType):
    samples = c4_like.population(50, vocab_size=40, scale=8)
    assert len(samples) == 50
    assert samples.length_tokens == 128
    assert samples.lengths_N.tolist() == c4_like.lengths(50, 8).tolist()
    assert {int(token) for i in range(50) for token in samples.sample(i)} == set(range(4, 40))
    same = c4_like.population(50, vocab_size=40, scale=8)
    other = c4_like.population(50, vocab_size=40, scale=8, seed=1)
    assert samples.tokens.tolist() == same.tokens.tolist()
    assert samples.lengths_N.tolist() != other.lengths_N.tolist()
