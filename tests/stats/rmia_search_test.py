import numpy as np
import pytest

from lm_mia import stats

inf = np.inf


@pytest.mark.parametrize("ends", [[], [-inf, inf]])
def test_many_levels_and_ties_are_counted_exactly(ends):
    # The sizes reach all cases of the table: empty bins, bins with one z, bins with several, and the tails.
    rng = np.random.default_rng(0)
    z = np.sort(np.concatenate([rng.standard_t(3, 20_000), ends]))
    levels = [z, np.nextafter(z, inf), np.nextafter(z, -inf), rng.standard_t(3, 50_000)]
    x = np.concatenate([*levels, [inf, -inf]])
    expected = np.searchsorted(z, x, side="right") / z.size
    np.testing.assert_array_equal(stats.rmia_from_log_alpha(x, z), expected[None])


def test_most_levels_are_not_searched(monkeypatch):
    # The table only saves time, so results would not reveal that it is not used.
    true, searched = np.searchsorted, []
    spy = lambda z, x, side: searched.append(x.size) or true(z, x, side)  # noqa: E731
    monkeypatch.setattr(np, "searchsorted", spy)
    rng = np.random.default_rng(0)
    stats.rmia_from_log_alpha(rng.normal(size=40_000), np.sort(rng.normal(size=10_000)))
    assert 0 < sum(searched) < 0.1 * 40_000
