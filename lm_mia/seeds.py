"""Random choices are pure functions of (seed, purpose): one place that says how."""

import hashlib

import numpy as np


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
