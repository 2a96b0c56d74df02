"""Random choices are pure functions of (seed, purpose): one place that says how."""

import hashlib

import numpy as np

# Of up to so many, numbers are drawn by listing all: part of what a seed means, never to be changed.
_LISTED = 2**22
_BLOCK = 2**22


def rng(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the pair alone: another stream for every purpose.

    Args:
      seed: 0 or larger, of any size.
      purpose: what the choice is for, such as ``"population/draw"``.

    Returns:
      A Philox generator keyed by 128 bits of SHA-256 of ``seed:purpose``, on every platform.
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    key = int.from_bytes(digest[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


def permutation(seed: int, purpose: str, n: int) -> np.ndarray:
    """order_N, int64: a uniformly random permutation of 0..n-1, a pure function of its arguments.

    Made of the generator's raw stream, which numpy keeps for ever, rather than ``Generator.permutation``, which a later
    version may draw otherwise: who was a member, and when it was seen, must be computable years later.
    """
    # Two of n 64-bit keys are equal with a chance of n^2 / 2^65; a stable sort decides even then.
    return np.argsort(rng(seed, purpose).bit_generator.random_raw(n), kind="stable")


def coins(seed: int, purpose: str, n: int) -> np.ndarray:
    """coin_N, bool: n independent fair coins, from the raw stream as in `permutation`."""
    return rng(seed, purpose).bit_generator.random_raw(n) >> np.uint64(63) == 1


def draw(seed: int, purpose: str, n: int, k: int) -> np.ndarray:
    """drawn_K, int64: k distinct numbers of 0..n-1 in random order, every such sequence equally likely.

    The first numbers of a longer draw are those of a shorter one: ``draw(..., k)[:j]`` is ``draw(..., j)``. Of the raw
    stream, as in `permutation`, which it is for n up to 2^22. Of more, the stream's numbers below n are taken as they
    come and repeats are left out, so that time and memory (60 bytes a number) go with k rather than with n.

    Raises:
      ValueError: if k is negative or larger than n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"draw {k} of {n}")
    if n <= _LISTED:
        return permutation(seed, purpose, n)[:k]
    stream = rng(seed, purpose).bit_generator
    unused_bits = np.uint64(64 - (n - 1).bit_length())
    first_K = np.empty(0, np.int64)
    while len(first_K) < k:
        # So many numbers hold k distinct ones on average (coupons), and a few more.
        lacking = n * np.log((n - len(first_K)) / max(n - k, 0.5))
        count = min(int(1.001 * lacking) + 1000, max(2 * k, _BLOCK))
        more = _below(stream, n, unused_bits, count)
        taken = np.concatenate([first_K, more])
        at = np.unique(taken, return_index=True)[1]
        at.sort()
        first_K = taken[at]
    return first_K[:k]


def _below(
    stream: np.random.BitGenerator, n: int, unused_bits: np.uint64, count: int
) -> np.ndarray:
    """The stream's next ``count`` numbers below n, each of the leading bits of 64; int64."""
    out = np.empty(count, np.int64)
    filled = 0
    while filled < count:
        raw = stream.random_raw(min(count - filled, _BLOCK)) >> unused_bits
        good = raw[raw < n]
        out[filled : filled + len(good)] = good
        filled += len(good)
    return out
