import numpy as np
import pytest

from lm_mia import stats
from lm_mia.stats import robust_mia

inf = np.inf


@pytest.mark.parametrize("ends", [[], [-inf, inf]])
def test_many_levels_and_their_ties_are_counted_exactly(ends):
    # Large enough for every way through the table: empty bins, bins of one, fuller bins, tails.
    rng = np.random.default_rng(0)
    z = np.sort(np.concatenate([rng.standard_t(3, 20_000), ends]))
    near = [z, np.nextafter(z, inf), np.nextafter(z, -inf), rng.standard_t(3, 50_000)]
    x = np.concatenate([*near, [inf, -inf]])
    want = np.searchsorted(z, x, side="right") / z.size
    np.testing.assert_array_equal(stats.rmia_from_log_alpha(x, z), want[None])


def test_most_levels_are_not_searched_for(monkeypatch):
    # The table is for speed alone, so results would not show its loss.
    true, searched = np.searchsorted, []
    spy = lambda z, x, side: searched.append(x.size) or true(z, x, side)  # noqa: E731
    monkeypatch.setattr(robust_mia.np, "searchsorted", spy)
    rng = np.random.default_rng(0)
    stats.rmia_from_log_alpha(rng.normal(size=40_000), np.sort(rng.normal(size=10_000)))
    assert 0 < sum(searched) < 0.1 * 40_000
