import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lm_mia.attacks import score_matrix
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order

RNG = np.random.default_rng(0)


def test_written_blocks_are_read_by_target_and_by_block(tmp_path: Path):
    score_TxN = RNG.normal(size=(5, 103))
    score_TxN[2, 7], score_TxN[0, 1] = np.nan, -np.inf
    with MembershipScoreFile(tmp_path, 5, 103) as file:
        assert (file.num_targets, file.num_samples) == (5, 103)
        for part in (slice(60, 103), slice(0, 10), slice(11, 60), slice(10, 11)):  # in any order
            file.write(0, part, score_TxN[:, part])
        for t in range(5):
            np.testing.assert_array_equal(file.read_target(t), score_TxN[t])
        for part in (slice(0, 103), slice(9, 12), slice(102, 103), slice(5, 5)):
            np.testing.assert_array_equal(file.read_samples(part), score_TxN[:, part])


def test_write_starts_at_first_target(tmp_path: Path):
    score_TxN = RNG.normal(size=(4, 20))
    with MembershipScoreFile(tmp_path, 4, 20) as file:
        file.write(3, slice(0, 20), score_TxN[3:])
        file.write(0, slice(0, 20), score_TxN[:1])
        file.write(1, slice(5, 20), score_TxN[1:3, 5:])
        file.write(1, slice(0, 5), score_TxN[1:3, :5])
        np.testing.assert_array_equal(file.read_samples(slice(0, 20)), score_TxN)


def test_any_layout_and_dtype_of_scores(tmp_path: Path):
    score_NxT = RNG.normal(size=(20, 3)).astype(np.float32)
    with MembershipScoreFile(tmp_path, 3, 20) as file:
        file.write(0, slice(0, 20), score_NxT.T)
        np.testing.assert_array_equal(file.read_samples(slice(0, 20)), score_NxT.T)
        file.write(0, slice(4, 6), np.broadcast_to(np.float64(7), (3, 2)))
        np.testing.assert_array_equal(
            file.read_target(2)[3:7], [score_NxT[3, 2], 7, 7, score_NxT[6, 2]]
        )


def test_file_of_float32(tmp_path: Path):
    score_TxN = RNG.normal(size=(3, 20)).astype(np.float32)
    with MembershipScoreFile(tmp_path, 3, 20, np.dtype(np.float32)) as file:
        file.write(1, slice(0, 20), score_TxN[1:])
        file.write(0, slice(5, 20), score_TxN[:1, 5:].astype(np.float64))
        assert file.read_target(0).dtype == np.float32
        np.testing.assert_array_equal(file.read_samples(slice(5, 20)), score_TxN[:, 5:])


def test_partial_reads_and_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One call transfers 2 GiB at most, and less if the disk is full."""
    pwrite, preadv = score_matrix.os.pwrite, score_matrix.os.preadv
    monkeypatch.setattr(
        score_matrix.os, "pwrite", lambda f, data, offset: pwrite(f, data[:100], offset)
    )
    monkeypatch.setattr(
        score_matrix.os, "preadv", lambda f, to, offset: preadv(f, [to[0][:72]], offset)
    )
    score_TxN = RNG.normal(size=(2, 50))
    with MembershipScoreFile(tmp_path, 2, 50) as file:
        file.write(0, slice(0, 50), score_TxN)
        np.testing.assert_array_equal(file.read_samples(slice(0, 50)), score_TxN)


def test_file_is_unnamed_and_deleted_on_close(tmp_path: Path):
    with MembershipScoreFile(tmp_path, 2, 10) as file:
        file.write(0, slice(0, 10), np.ones((2, 10)))
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed file"):
        file.read_target(0)


def test_map_in_order_keeps_the_order():
    has_ended = [threading.Event() for _ in range(40)]

    def after_the_next(i: int) -> int:
        """Even items end after the odd ones that follow them."""
        if i % 2 == 0:
            assert has_ended[i + 1].wait(60)
        has_ended[i].set()
        return i * i

    with ThreadPoolExecutor(4) as pool:
        assert list(map_in_order(pool, after_the_next, range(40))) == [i * i for i in range(40)]
        assert list(map_in_order(pool, after_the_next, [])) == []
        assert list(map_in_order(pool, after_the_next, [3])) == [9]


def test_map_in_order_takes_few_items_in_advance():
    taken, returned = 0, 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in range(50):
            taken += 1
            yield i

    with ThreadPoolExecutor(2) as pool:
        for _ in map_in_order(pool, lambda i: i, items()):
            returned += 1
            assert taken <= returned + score_matrix._MAX_PENDING
    assert returned == 50


@pytest.mark.parametrize("who", ["call", "items", "caller"])
def test_map_in_order_raises_after_running_calls_end(who: str):
    """Otherwise, threads would write into closed files."""
    num_started, num_running, lock = 0, 0, threading.Lock()
    two_at_once = threading.Barrier(2)

    def call(i: int) -> int:
        nonlocal num_started, num_running
        with lock:
            num_started += 1
            num_running += 1
        if i < 2:
            two_at_once.wait(60)
        time.sleep(0.02)  # long enough that it would still be running if nothing waited for it
        with lock:
            num_running -= 1
        if who == "call" and i == 3:
            raise KeyError("here")
        return i

    def items() -> Iterator[int]:
        yield from range(6)
        if who == "items":
            raise KeyError("here")
        yield from range(6, 30)

    def consume(pool: ThreadPoolExecutor) -> None:
        for i in map_in_order(pool, call, items()):
            if who == "caller" and i == 3:
                raise KeyError("here")

    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(KeyError, match="here"):
            consume(pool)
        assert num_running == 0
        before = num_started
    # No further call has started, although the pool ends only when nothing is queued.
    assert num_started == before
