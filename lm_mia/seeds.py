"""Random draws that are pure functions of a seed and a purpose."""

import hashlib

import numpy as np

# `draw` permutes all numbers if there are at most this many. The limit determines what is drawn, so it never changes.
_MAX_PERMUTED = 2**22
_BLOCK = 2**22  # random numbers that are generated at a time


def rng(seed: int, purpose: str) -> np.random.Generator:
    """Returns a random generator that is determined by the seed and the purpose.

    Args:
      seed: a non-negative integer of any size.
      purpose: what is drawn, such as ``"population/draw"``; different purposes have independent streams.

    Returns:
      A Philox generator whose key is the first 128 bits of the SHA-256 of ``seed:purpose``, on every platform.
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    key = int.from_bytes(digest[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


def permutation(seed: int, purpose: str, n: int) -> np.ndarray:
    """Returns order_N, int64: a uniformly random permutation of 0..n-1.

    It sorts numbers of the generator's raw stream, which NumPy guarantees never to change, rather than calling
    ``Generator.permutation``, whose result may differ in later versions: memberships and batch orders must be
    reproducible years later.
    """
    # Two of n 64-bit keys are equal with probability n^2 / 2^65; a stable sort makes even that case deterministic.
    return np.argsort(rng(seed, purpose).bit_generator.random_raw(n), kind="stable")


def coins(seed: int, purpose: str, n: int) -> np.ndarray:
    """Returns coin_N, bool: n independent fair coin flips, from the raw stream as in `permutation`."""
    return rng(seed, purpose).bit_generator.random_raw(n) >> np.uint64(63) == 1


def keys(seed: int, purpose: str, id_N: np.ndarray) -> np.ndarray:
    """Returns key_N, uint64: a random key for each id, by which ties are broken and random partners are chosen.

    A key is a function of the seed, the purpose and its id alone, so a sample has the same key in any block, order or
    subset of the samples. Different ids never have equal keys. The streams of `rng` are different ones, so keys reveal
    nothing of memberships that were drawn from the same seed.

    Args:
      seed, purpose: as for `rng`.
      id_N: integers from 0 to 2^64 - 1, of any shape, such as the ids of samples.
    """
    digest = hashlib.sha256(f"keys:{seed}:{purpose}".encode()).digest()
    # The output function of SplitMix64 (Steele, Lea and Flood 2014): one-to-one, and every bit of the id changes about
    # half of the bits of the key.
    x_N = np.asarray(id_N).astype(np.uint64) ^ np.uint64(int.from_bytes(digest[:8], "little"))
    with np.errstate(over="ignore"):  # numpy reports that single numbers wrap around, as they must
        x_N += np.uint64(0x9E3779B97F4A7C15)
        x_N = (x_N ^ (x_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x_N = (x_N ^ (x_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_N ^ (x_N >> np.uint64(31))


def draw(seed: int, purpose: str, n: int, k: int) -> np.ndarray:
    """Draws k distinct numbers of 0..n-1 in random order, with every such sequence equally likely.

    A longer draw starts with the numbers of a shorter one: ``draw(..., k)[:j]`` equals ``draw(..., j)``. For n up to
    2^22 the result is the start of `permutation`. For larger n, numbers below n are taken from the raw stream in order
    and repetitions are dropped, so that time and memory (60 bytes per number) grow with k instead of n.

    Returns:
      drawn_K, int64.

    Raises:
      ValueError: if k is negative or larger than n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"k={k}: must be from 0 to n={n}")
    if n <= _MAX_PERMUTED:
        return permutation(seed, purpose, n)[:k]
    stream = rng(seed, purpose).bit_generator
    first_K = np.empty(0, np.int64)
    while len(first_K) < k:
        # The expected number of draws until k distinct numbers have been seen (coupon collector), and some more.
        expected = n * np.log((n - len(first_K)) / max(n - k, 0.5))
        count = min(int(1.001 * expected) + 1000, max(2 * k, _BLOCK))
        new_numbers = uniform_below(stream, n, count)
        candidates = np.concatenate([first_K, new_numbers])
        first_index = np.unique(candidates, return_index=True)[1]
        first_index.sort()
        first_K = candidates[first_index]
    return first_K[:k]


def uniform_below(stream: np.random.BitGenerator, n: int, count: int) -> np.ndarray:
    """Returns the next ``count`` uniform numbers of a stream that are below n, int64.

    Each is made of the leading bits of a raw number. Any division of a draw into several calls gives the same numbers.
    """
    if n == 1:
        return np.zeros(count, np.int64)
    unused_bits = np.uint64(64 - (n - 1).bit_length())
    out = np.empty(count, np.int64)
    filled = 0
    while filled < count:
        raw = stream.random_raw(min(count - filled, _BLOCK)) >> unused_bits
        below = raw[raw < n]
        out[filled : filled + len(below)] = below
        filled += len(below)
    return out
