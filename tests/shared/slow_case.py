"""Cases of tests that differ little from others: `check.sh --all` runs them."""

from typing import Any

import pytest


def slow_case(*values: Any) -> Any:
    """Returns the values of a case that only `check.sh --all` runs, for `pytest.mark.parametrize`."""
    return pytest.param(*values, marks=pytest.mark.slow)
