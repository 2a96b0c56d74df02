import numpy as np
import pytest

from lm_mia.data.population import Population
from lm_mia.train import batching


@pytest.mark.parametrize("size", [1, 6, 20, 100])
@pytest.mark.parametrize(("low", "high"), [(0, 20), (7, 20), (3, 4), (5, 5)])
def test_windows_hold_every_token_once_and_restore_its_order(
    tiny: Population, monkeypatch: pytest.MonkeyPatch, size: int, low: int, high: int
):
    monkeypatch.setattr(batching, "WINDOW_SAMPLES", size)
    offset = low
    for w in batching.packed_windows(tiny, low, high, 3):
        count = len(w.length_C)
        assert w.first_id == offset
        assert (offset + count) % size == 0 or offset + count == high
        assert len(w.x_BxL) % 3 == 0
        begin, end = tiny.offsets_N1[offset], tiny.offsets_N1[offset + count]
        np.testing.assert_array_equal(w.in_sample_order(w.x_BxL), tiny.tokens[begin:end])
        np.testing.assert_array_equal(
            w.in_sample_order(w.position_BxL), np.concatenate([np.arange(n) for n in w.length_C])
        )
        assert len(set(w.index_W.tolist())) == len(w.index_W) == (w.segment_BxL > 0).sum()
        # A sample is one segment of one packed sequence, and its tokens are adjacent.
        sequence_T, segment_T = w.index_W // tiny.length_tokens, w.in_sample_order(w.segment_BxL)
        sample_W = np.repeat(np.arange(count), w.length_C)
        for i in range(count):
            is_i = sample_W == i
            assert (
                len({*zip(sequence_T[is_i].tolist(), segment_T[is_i].tolist(), strict=True)}) == 1
            )
            assert np.all(np.diff(w.index_W[is_i]) == 1)
        assert len({*zip(sequence_T.tolist(), segment_T.tolist(), strict=True)}) == count
        offset += count
    assert offset == high


def test_c4_like_windows_fill_99_percent(tiny: Population):
    rng = np.random.default_rng(0)
    length_N = np.clip(rng.lognormal(5.5, 1, batching.WINDOW_SAMPLES), 3, 1024).astype(int)
    offsets_N1 = np.append(0, np.cumsum(length_N))
    facts = {"settings": {"population.length_tokens": 1024}}
    tokens = np.zeros(offsets_N1[-1], np.uint16)
    made = Population(tiny.folder, tokens, offsets_N1, facts)
    w = batching.pack_window(made, 0, batching.WINDOW_SAMPLES, 8)
    assert length_N.sum() / w.x_BxL.size > 0.99
