"""Near duplicates among texts: exact counts of shared shingles, no sketching."""

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

SHINGLE_WORDS = 8
_WORK = 20_000_000


def without_exact_duplicates(texts: Sequence[str]) -> np.ndarray:
    """kept_K, ascending int64: the first of each group of equal texts."""
    first: dict[str, int] = {}
    for i, text in enumerate(texts):
        first.setdefault(text, i)
    return np.fromiter(first.values(), np.int64, len(first))


def without_near_duplicates(
    texts: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> np.ndarray:
    """kept_K, ascending int64: the first text of every cluster of near duplicates.

    A shingle is a run of 8 words (whitespace-separated, as they are); a text of fewer words is one
    shingle. Two texts are linked where they share at least half of the distinct shingles of one of
    them, that is of the shorter one; clusters are the connected components, so a chain of links is
    one cluster.

    Exact. Memory is bounded (the products are formed in blocks and reduced to components at once);
    time grows with the sum over shingles of their squared document counts, so a shingle that k
    texts share costs k^2: meant for up to about 10^5 documents.

    Args:
      texts: any number.
      progress: ``progress(texts done, texts)``, called after every block.
    """
    size = len(texts)
    shingles_DxS = shingle_matrix(texts)
    total_D = np.diff(shingles_DxS.indptr)
    documents_S = np.bincount(shingles_DxS.indices)
    shared_DxS = shingles_DxS[:, documents_S > 1].tocsr()
    transposed_SxD = shared_DxS.T.tocsr()
    work_D = shared_DxS @ documents_S[documents_S > 1].astype(np.int64)
    ends = np.searchsorted(
        np.cumsum(work_D), np.arange(1, work_D.sum() // _WORK + 1) * _WORK, side="right"
    )
    label_D = np.arange(size)
    start = 0
    for end in (*np.unique(ends[ends > 0]).tolist(), size):
        counts = (shared_DxS[start:end] @ transposed_SxD).tocoo()
        row, col = counts.row + start, counts.col
        linked = 2 * counts.data >= np.minimum(total_D[row], total_D[col])
        # The clusters so far are links as well: from every text to its cluster's first text.
        row = np.concatenate([row[linked], np.arange(size)])
        col = np.concatenate([col[linked], first_of_each_label(label_D)[label_D]])
        graph = sp.coo_array((np.ones(len(row), bool), (row, col)), shape=(size, size))
        label_D = connected_components(graph.tocsr(), directed=False)[1]
        start = end
        progress(end, size)
    return np.sort(first_of_each_label(label_D))


def first_of_each_label(label_D: np.ndarray) -> np.ndarray:
    """first_C, int64: the position at which each label 0..C-1 occurs first."""
    return np.unique(label_D, return_index=True)[1]


def shingle_matrix(texts: Sequence[str]) -> sp.csr_array:
    """Binary int32 matrix, texts x distinct shingles: which text contains which."""
    word_id: dict[str, int] = {"": 0}
    ids: list[int] = []
    lengths: list[int] = []
    for text in texts:
        words = text.split()
        ids += [word_id.setdefault(w, len(word_id)) for w in words]
        ids += [0] * (SHINGLE_WORDS - len(words))
        lengths.append(max(len(words), SHINGLE_WORDS))
    # The id of 2 (4, 8) words is the rank of the pair of ids of their halves: exact, no hashing.
    gram_id = np.asarray(ids, np.int64)
    width = 1
    while width < SHINGLE_WORDS:
        pairs = gram_id[:-width] * (gram_id.max(initial=0) + 1) + gram_id[width:]
        gram_id = np.unique(pairs, return_inverse=True)[1]
        width *= 2
    document = np.repeat(np.arange(len(lengths)), lengths)[: len(gram_id)]
    ends = np.repeat(np.cumsum(lengths), lengths)[: len(gram_id)]
    inside = np.arange(len(gram_id)) + SHINGLE_WORDS <= ends
    columns = np.unique(gram_id[inside], return_inverse=True)[1]
    coordinates = document[inside], columns
    shape = (len(texts), int(columns.max(initial=-1)) + 1)
    ones = np.ones(len(columns), np.int32)
    matrix = sp.csr_array(sp.coo_array((ones, coordinates), shape=shape))  # sums duplicates
    matrix.data[:] = 1
    return matrix
