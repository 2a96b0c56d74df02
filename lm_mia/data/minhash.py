"""Finds near duplicates in a stream of documents with MinHash, for corpora that are too large to compare exactly.

Each document gets 25 digests, which depend on nothing but its text. Two documents with a common digest in the same
place, called a band, are near duplicates (locality-sensitive hashing). The minima come from the library datasketch.

The shingles are those by which `lm_mia.data.dedup` compares the documents of a corpus in memory exactly.

D: documents, B: bands.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

SHINGLE_WORDS = 8
BANDS, BAND_MINIMA = 25, 5
"""Number of bands, and of minima of each. These are the numbers with which datasketch finds pairs with a Jaccard
similarity of 0.5 or more with at most 128 minima: false positives and false negatives are about equally frequent."""
DIGEST_BYTES = 8
"""Size of a digest. Of 2^24 documents, two different bands have the same digest with a probability of 0.0002."""

_SEED = 1
# Named, so that documents have the same digests if a later version of the library has another default.
_SCHEME = "affine32"


def band_digests(texts: Sequence[str]) -> list[bytes]:
    """Returns the digests of the bands of each document, concatenated: ``BANDS * DIGEST_BYTES`` bytes.

    A shingle is a run of 8 consecutive words, separated by whitespace; a document with fewer words is a single shingle.
    Two documents whose sets of shingles have the Jaccard similarity s (common shingles, divided by the shingles of both
    together) have a common band with the probability ``1 - (1 - s**5)**25``: 0.01 at s=0.2, 0.23 at 0.4, 0.55 at 0.5,
    0.87 at 0.6, 0.99 at 0.7, and 1 at 1.

    Source: Broder 1997, "On the resemblance and containment of documents"; Leskovec, Rajaraman and Ullman, "Mining of
    Massive Datasets", Section 3.4.
    """
    # Imported here, because the library takes a while to load and most commands do not need it.
    from datasketch import MinHash

    shingles = [_shingles(text) for text in texts]
    sketches = MinHash.generator(shingles, num_perm=BANDS * BAND_MINIMA, seed=_SEED, scheme=_SCHEME)
    return [
        b"".join(
            hashlib.blake2b(band.astype("<u4").tobytes(), digest_size=DIGEST_BYTES).digest()
            for band in sketch.hashvalues.reshape(BANDS, BAND_MINIMA)
        )
        for sketch in sketches
    ]


def _shingles(text: str) -> set[bytes]:
    words = text.split()
    last = max(len(words) - SHINGLE_WORDS, 0)
    return {" ".join(words[i : i + SHINGLE_WORDS]).encode() for i in range(last + 1)}


def follows_near_duplicate(digests_of_bands: Iterable[np.ndarray]) -> np.ndarray:
    """Returns is_duplicate_D, bool: whether a document is a near duplicate of an earlier one.

    Earlier documents count even if they are near duplicates of others themselves. Whether a document is left out then
    depends only on the documents before it, so that it remains the same if more documents follow. No two of the
    documents that are not left out have a common band.

    Args:
      digests_of_bands: for each band, its digests, uint64 of shape D; one band at a time is in memory.
    """
    is_duplicate_D = np.zeros(0, bool)
    for digest_D in digests_of_bands:
        if not len(is_duplicate_D):
            is_duplicate_D = np.zeros(len(digest_D), bool)
        is_repeated_D = np.ones(len(digest_D), bool)
        is_repeated_D[np.unique(digest_D, return_index=True)[1]] = False
        is_duplicate_D |= is_repeated_D
    return is_duplicate_D
