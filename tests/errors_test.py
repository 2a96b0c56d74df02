import errno
import os

import pytest

from lm_mia import errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_disk_is_seen_however_deep_it_is(number: int):
    assert errors.disk_problem(OSError(number, "x")) == os.strerror(number)
    assert errors.disk_problem(
        ValueError(f"FAILED: {os.strerror(number)} [tensorstore]")
    ) == os.strerror(number)
    behind, shown = OSError(number, "x"), RuntimeError("orbax failed")
    shown.__cause__ = behind
    assert errors.disk_problem(shown) == os.strerror(number)
    shown.__cause__, shown.__context__ = None, behind
    assert errors.disk_problem(shown) == os.strerror(number)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "no file"), ValueError("space"), KeyError(28)]
)
def test_other_errors_are_no_disk_problem(error: Exception):
    assert errors.disk_problem(error) == ""


def test_causes_that_go_in_a_circle_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert errors.disk_problem(first) == ""
