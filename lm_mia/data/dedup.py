"""Finds exact and near duplicates among texts in memory; shared shingles are counted exactly, without sketching.

Near duplicates in C4, which does not fit into memory, are found by `lm_mia.data.minhash`.

D: texts, S: distinct shingles, K: texts that are kept, C: clusters.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from lm_mia.data.minhash import SHINGLE_WORDS

_BLOCK_PRODUCTS = 20_000_000  # multiplications per block of the matrix product


def without_exact_duplicates(texts: Sequence[str]) -> np.ndarray:
    """Returns kept_K, int64: the ascending indices of the first of each group of equal texts."""
    first: dict[str, int] = {}
    for i, text in enumerate(texts):
        first.setdefault(text, i)
    return np.fromiter(first.values(), np.int64, len(first))


def without_near_duplicates(
    texts: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> np.ndarray:
    """Returns the index of the first text of each cluster of near duplicates.

    A shingle is a run of 8 consecutive words, separated by whitespace; a text with fewer words is a single shingle. Two
    texts are linked if they share at least half of the distinct shingles of the text that has fewer of them. Clusters
    are the connected components of these links, so that texts that are linked through others are in one cluster.

    The result is exact. Memory is bounded, since the products are computed in blocks and reduced to components at once.
    Time grows with the sum over shingles of their squared document counts: a shingle that k texts share costs k^2.
    This is meant for up to about 10^5 texts.

    Args:
      texts: any number of texts.
      progress: ``progress(texts done, texts)``, called after each block.

    Returns:
      kept_K, int64, in ascending order.
    """
    size = len(texts)
    shingles_DxS = shingle_matrix(texts)
    total_D = np.diff(shingles_DxS.indptr)
    documents_S = np.bincount(shingles_DxS.indices)
    shared_DxS = shingles_DxS[:, documents_S > 1].tocsr()
    transposed_SxD = shared_DxS.T.tocsr()
    products_D = shared_DxS @ documents_S[documents_S > 1].astype(np.int64)
    ends = np.searchsorted(
        np.cumsum(products_D),
        np.arange(1, products_D.sum() // _BLOCK_PRODUCTS + 1) * _BLOCK_PRODUCTS,
        side="right",
    )
    cluster_D = np.arange(size)
    start = 0
    for end in (*np.unique(ends[ends > 0]).tolist(), size):
        counts = (shared_DxS[start:end] @ transposed_SxD).tocoo()
        row, col = counts.row + start, counts.col
        linked = 2 * counts.data >= np.minimum(total_D[row], total_D[col])
        # Clusters of earlier blocks are kept as links from each text to the first text of its cluster.
        row = np.concatenate([row[linked], np.arange(size)])
        col = np.concatenate([col[linked], first_of_each_label(cluster_D)[cluster_D]])
        graph = sp.coo_array((np.ones(len(row), bool), (row, col)), shape=(size, size))
        cluster_D = connected_components(graph.tocsr(), directed=False)[1]
        start = end
        progress(end, size)
    return np.sort(first_of_each_label(cluster_D))


def first_of_each_label(label_D: np.ndarray) -> np.ndarray:
    """Returns first_C, int64: the first index of each label 0..C-1."""
    return np.unique(label_D, return_index=True)[1]


def shingle_matrix(texts: Sequence[str]) -> sp.csr_array:
    """Returns shingles_DxS, int32: 1 where a text contains a distinct shingle, and 0 elsewhere."""
    word_id: dict[str, int] = {"": 0}
    ids: list[int] = []
    lengths: list[int] = []
    for text in texts:
        words = text.split()
        ids += [word_id.setdefault(w, len(word_id)) for w in words]
        ids += [0] * (SHINGLE_WORDS - len(words))
        lengths.append(max(len(words), SHINGLE_WORDS))
    # The ID of a run of 2 (4, 8) words is the rank of the pair of IDs of its halves, which is exact without hashing.
    gram_id = np.asarray(ids, np.int64)
    width = 1
    while width < SHINGLE_WORDS:
        pairs = gram_id[:-width] * (gram_id.max(initial=0) + 1) + gram_id[width:]
        gram_id = np.unique(pairs, return_inverse=True)[1]
        width *= 2
    document = np.repeat(np.arange(len(lengths)), lengths)[: len(gram_id)]
    ends = np.repeat(np.cumsum(lengths), lengths)[: len(gram_id)]
    is_inside = np.arange(len(gram_id)) + SHINGLE_WORDS <= ends
    columns = np.unique(gram_id[is_inside], return_inverse=True)[1]
    coordinates = document[is_inside], columns
    shape = (len(texts), int(columns.max(initial=-1)) + 1)
    ones = np.ones(len(columns), np.int32)
    matrix = sp.csr_array(sp.coo_array((ones, coordinates), shape=shape))  # sums repeated entries
    matrix.data[:] = 1
    return matrix
