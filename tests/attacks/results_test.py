import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lm_mia.attacks.results import Results
from lm_mia.attacks.unchanged import digest

KEY = {"what": "rates", "settings": {"fprs": [0.1, 0.2]}, "names": ["a", "b"]}
TABLE = pd.DataFrame(
    {
        "target": ["reference-00", "reference-01"] * 3,
        "fpr": [0.01, 0.1, 0.5, 1.0, np.nan, 1e-300],
        "votes": np.arange(6),
        "is_member": [True, False] * 3,
    }
)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "pieces")


def only_file(results: Results) -> Path:
    [path] = results.folder.iterdir()
    return path


def test_a_piece_is_read_as_it_was_written(results: Results):
    assert results.read(KEY) is None
    assert not results.folder.exists()
    results.write(KEY, TABLE)
    read = results.read(KEY)
    assert read is not None
    pd.testing.assert_frame_equal(read, TABLE, check_exact=True)
    some = results.read(KEY, ["fpr"])
    assert some is not None
    pd.testing.assert_frame_equal(some, TABLE[["fpr"]], check_exact=True)
    assert only_file(results).name == f"rates-{digest(KEY)}.parquet"


def test_row_groups_are_one_table(results: Results):
    results.write(KEY, (TABLE.iloc[[i]] for i in range(len(TABLE))))
    read = results.read(KEY)
    assert read is not None
    pd.testing.assert_frame_equal(read, TABLE, check_exact=True)


def test_every_field_of_the_key_counts(results: Results):
    results.write(KEY, TABLE)
    for other in (
        {**KEY, "settings": {"fprs": [0.1, 0.3]}},
        {**KEY, "names": ["b", "a"]},
        {**KEY, "format": 2},
        {"what": "rates"},
    ):
        assert not results.has(other)
    assert results.has(dict(reversed(KEY.items())))


def test_a_file_under_the_name_of_another_piece_is_not_taken_for_it(results: Results):
    results.write(KEY, TABLE)
    other = {**KEY, "names": []}
    only_file(results).rename(results.path(other))
    assert results.read(other) is None


def test_flipped_bits_give_the_same_values_or_none(results: Results):
    """In the pages, in their headers, which have no checksums, and in the footer."""
    results.write(KEY, TABLE)
    path = only_file(results)
    data, survived = path.read_bytes(), 0
    for position in range(0, len(data), 97):
        for bit in (0, 5):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            read = results.read(KEY)
            if read is not None:
                survived += 1
                pd.testing.assert_frame_equal(read, TABLE, check_exact=True)
    assert survived < len(data) / 97  # most are noticed; some change nothing


def test_a_truncated_piece_is_missing(results: Results):
    results.write(KEY, TABLE)
    path = only_file(results)
    data = path.read_bytes()
    for size in (0, 1, 4, 100, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:size])
        assert results.read(KEY) is None, size
    results.write(KEY, TABLE)
    assert path.read_bytes() == data


def test_an_error_while_a_piece_is_computed_leaves_the_old_one(results: Results):
    def fails() -> Iterator[pd.DataFrame]:
        yield TABLE
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        results.write(KEY, fails())
    assert [*results.folder.iterdir()] == []
    results.write(KEY, TABLE)
    with pytest.raises(OSError, match="no space left"):
        results.write(KEY, fails())
    assert results.has(KEY)


def test_an_unreadable_piece_is_computed_again_and_not_deleted(
    results: Results, monkeypatch: pytest.MonkeyPatch
):
    results.write(KEY, TABLE)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as failing:
        failing.setattr("lm_mia.attacks.results.pq.ParquetFile", fails)
        assert not results.has(KEY)
    assert results.has(KEY)


def test_pieces_that_nobody_asked_for_are_unused(results: Results):
    other = {**KEY, "names": []}
    for key in (KEY, other):
        results.write(key, TABLE)
    again = Results(results.folder)
    assert again.has(KEY)
    abandoned, recent = (results.folder / f".new-{name}.parquet" for name in ("old", "recent"))
    for path, age_hours in ((abandoned, 25), (recent, 1)):
        path.write_text("half")
        then = time.time() - 3600 * age_hours
        os.utime(path, (then, then))
    assert again.unused() == [abandoned, again.path(other)]
    assert again.unused() == [abandoned]  # now it was asked for
