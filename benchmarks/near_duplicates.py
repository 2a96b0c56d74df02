"""Compares what leaves out near duplicates: a common prefix, the exact comparison of all texts, and MinHash.

    python -m benchmarks near_duplicates [--min-chars 20] [--prefix-tokens 16] [--vocab-size 1024]

This prints Markdown tables and takes about a minute on one core. The documents are the distinct docstrings of the
installed packages, in the order in which a population draws them:

- prefix: the first tokens after <bos> equal those of an earlier document (`population.distinct_prefix_tokens`).
- exact: the document is not the first of its cluster (`corpus.deduplicate=near` for all sources but C4).
- MinHash: a band of the document equals that of an earlier document (`corpus.deduplicate=near` for C4).

The last table says how often MinHash leaves out a document by its largest Jaccard similarity with an earlier document,
which is computed exactly. Since there may be several similar documents, the share may exceed the probability for one.

D: documents, S: distinct shingles.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import sentencepiece

from lm_mia import config, seeds
from lm_mia.data import corpus, dedup, features, minhash, tokenizer

_BLOCK_DOCUMENTS = 512
_BINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--min-chars", type=int, default=20, help="corpus.min_chars")
    parser.add_argument(
        "--prefix-tokens", type=int, default=16, help="population.distinct_prefix_tokens"
    )
    parser.add_argument("--vocab-size", type=int, default=1024, help="tokenizer.vocab_size")
    c = parser.parse_args()
    documents = corpus.read(config.Corpus(min_chars=c.min_chars, deduplicate="exact"))
    model = tokenizer.train_on_corpus(documents, c.vocab_size, 0, 0, 0, lambda *n: None)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    order_D = seeds.draw(0, "population/draw", len(documents), len(documents))
    texts: list[str] = [documents[i][0] for i in order_D.tolist()]
    print(f"{len(texts):,} documents, {np.mean([len(t.split()) for t in texts]):.0f} words each\n")
    removed = {
        f"prefix of {c.prefix_tokens} tokens": _timed(
            lambda: by_prefix(texts, spm, c.prefix_tokens)
        ),
        "exact": _timed(lambda: by_cluster(texts)),
        "MinHash": _timed(lambda: by_minhash(texts)),
    }
    print_sets({name: is_removed_D for name, (is_removed_D, _) in removed.items()})
    for name, (_, seconds) in removed.items():
        print(f"- {name}: {seconds:.1f} CPU seconds, {len(texts) / seconds:,.0f} documents/s")
    print()
    print_by_similarity(largest_similarity(texts), removed["exact"][0], removed["MinHash"][0])


def _timed(work: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """Returns the result and the CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def by_prefix(
    texts: Sequence[str], spm: sentencepiece.SentencePieceProcessor, prefix_tokens: int
) -> np.ndarray:
    """Returns is_removed_D, bool."""
    digests = b"".join(
        features.prefix_digest([spm.bos_id(), *ids, spm.eos_id()], prefix_tokens)
        for ids in spm.encode(texts)
    )
    digest_Dx2 = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return features.first_with_same_digest(digest_Dx2) != np.arange(len(texts))


def by_cluster(texts: Sequence[str]) -> np.ndarray:
    """Returns is_removed_D, bool."""
    is_removed_D = np.ones(len(texts), bool)
    is_removed_D[dedup.without_near_duplicates(texts)] = False
    return is_removed_D


def by_minhash(texts: Sequence[str]) -> np.ndarray:
    """Returns is_removed_D, bool."""
    digests = b"".join(minhash.band_digests(texts))
    digest_DxB = np.frombuffer(digests, np.uint64).reshape(-1, minhash.BANDS)
    return minhash.follows_near_duplicate(digest_DxB.T)


def largest_similarity(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the largest Jaccard similarity and containment of each text with an earlier one, of shape D.

    The containment is the number of common shingles, divided by the number of shingles of the text that has fewer.
    """
    shingles_DxS = dedup.shingle_matrix(texts)
    transposed_SxD = shingles_DxS.T.tocsr()
    size_D = np.diff(shingles_DxS.indptr)
    jaccard_D, containment_D = np.zeros((2, len(texts)))
    for low in range(0, len(texts), _BLOCK_DOCUMENTS):
        common = (shingles_DxS[low : low + _BLOCK_DOCUMENTS] @ transposed_SxD).tocoo()
        is_earlier = common.col < common.row + low
        row, col = common.row[is_earlier] + low, common.col[is_earlier]
        shared = common.data[is_earlier]
        np.maximum.at(jaccard_D, row, shared / (size_D[row] + size_D[col] - shared))
        np.maximum.at(containment_D, row, shared / np.minimum(size_D[row], size_D[col]))
    return jaccard_D, containment_D


def print_sets(removed: dict[str, np.ndarray]) -> None:
    """Prints how many documents each filter removes, and how many of these another one removes too."""
    print(f"| filter | removes | remain | {' | '.join(f'also removed by {n}' for n in removed)} |")
    print("|---" * (3 + len(removed)) + "|")
    for name, is_removed_D in removed.items():
        count = int(is_removed_D.sum())
        shares = [
            "" if other is is_removed_D else f"{(is_removed_D & other).sum() / count:.0%}"
            for other in removed.values()
        ]
        percent = count / len(is_removed_D)
        print(
            f"| {name} | {count:,} ({percent:.1%}) | {len(is_removed_D) - count:,} | {' | '.join(shares)} |"
        )
    is_any_D, is_all_D = np.any([*removed.values()], axis=0), np.all([*removed.values()], axis=0)
    print(f"\nRemoved by any filter: {is_any_D.sum():,}; by all three: {is_all_D.sum():,}.\n")


def print_by_similarity(
    similarity: tuple[np.ndarray, np.ndarray], by_cluster_D: np.ndarray, by_minhash_D: np.ndarray
) -> None:
    """Prints the share of documents that MinHash removes by their largest similarity with an earlier document."""
    jaccard_D, containment_D = similarity
    print(
        "| largest Jaccard similarity | documents | removed by MinHash | removed by exact |\n|---|---|---|---|"
    )
    for low, high in itertools.pairwise(_BINS):
        is_in_D = (jaccard_D >= low) & ((jaccard_D < high) | (high == 1))
        print(
            f"| {low:g} to {high:g} | {is_in_D.sum():,} | {by_minhash_D[is_in_D].mean():.1%} "
            f"| {by_cluster_D[is_in_D].mean():.1%} |"
        )
    missed_D = by_cluster_D & ~by_minhash_D
    is_contained_D = (containment_D >= 0.5) & (jaccard_D < 0.5)
    print(
        f"\nExact removes {missed_D.sum():,} documents that MinHash keeps. "
        f"Of these, {(missed_D & is_contained_D).sum():,} share half of the shingles of the shorter text with an "
        "earlier document, but less than half of all shingles; "
        f"{(missed_D & (containment_D < 0.5)).sum():,} resemble only later documents of their cluster."
    )


if __name__ == "__main__":
    main()
