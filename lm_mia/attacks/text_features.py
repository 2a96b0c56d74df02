"""Covariates of a population's samples: properties of the texts that do not depend on any model.

They are computed once for a population, from its tokens and sample table, and never from membership or scores. Training
on a sample must not change its covariates, so its loss is never one of them.

N: samples, V: pieces of the vocabulary, K: covariates.
"""

from collections.abc import Mapping

import numpy as np
import scipy.sparse

COLUMNS = ("tokens", "unk", "zlib_bytes", "chars", "tfidf")
"""Columns of the sample table from which `column_features` computes covariates."""


def token_features(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    samples: Mapping[str, np.ndarray],
    vocab_size: int,
    *,
    components: int = 64,
    seed: int = 0,
) -> np.ndarray:
    """Returns covariates of texts from their tokens.

    The TF-IDF vectors of the samples, in a sparse matrix, are projected on the directions that explain most of them
    (truncated SVD, also known as latent semantic analysis). The covariates of `column_features` are added.

    Args:
      tokens: tokens of all samples, concatenated.
      offsets_N1: start of each sample in ``tokens``, and the end of the last one.
      samples: columns of the sample table, name -> column_N; some of `COLUMNS`.
      vocab_size: V.
      components: the number of directions; fewer if the vocabulary or the samples do not have that many.
      seed: seed of the randomized SVD.

    Returns:
      feature_NxK, float64, without missing values. Directions come first, the largest singular value at the front.

    Source: Deerwester et al. 1990, "Indexing by latent semantic analysis"; CausalMIA, Section 6, suggests a classifier
    on a representation of the text.

    Example:
      >>> import numpy as np
      >>> tokens, offsets_N1 = np.array([0, 1, 0, 1, 2, 3, 2, 3]), np.array([0, 2, 4, 6, 8])
      >>> columns = {"tokens": np.array([2, 2, 2, 2]), "zlib_bytes": np.array([9, 9, 8, 8]), "chars": np.full(4, 6)}
      >>> token_features(tokens, offsets_N1, columns, 4, components=2)[:, 2].tolist()  # compressed bytes per character
      [1.5, 1.5, 1.3333333333333333, 1.3333333333333333]
    """
    from sklearn.decomposition import TruncatedSVD  # here: it takes seconds to load
    from sklearn.feature_extraction.text import TfidfTransformer

    num_samples = len(offsets_N1) - 1
    directions = min(components, vocab_size - 1, num_samples - 1)
    named = column_features(samples, num_samples)
    if directions < 1:
        return named
    begin, end = int(offsets_N1[0]), int(offsets_N1[-1])
    count_NxV = scipy.sparse.csr_matrix(
        (
            np.ones(end - begin),
            np.asarray(tokens[begin:end], np.int32),
            np.asarray(offsets_N1) - begin,
        ),
        shape=(num_samples, vocab_size),
    )
    count_NxV.sum_duplicates()
    tfidf_NxV = TfidfTransformer().fit_transform(count_NxV)
    svd = TruncatedSVD(directions, n_iter=6, n_oversamples=16, random_state=seed)
    return np.hstack([svd.fit_transform(tfidf_NxV), named])


def column_features(samples: Mapping[str, np.ndarray], num_samples: int) -> np.ndarray:
    """Returns the covariates that are in the sample table.

    They are the logarithm of the number of tokens, the share of unknown tokens, the compressed bytes per character, and
    the mean TF-IDF. A covariate whose columns are absent, or that is the same for all samples, is left out. Missing
    values are replaced by the median.

    Args:
      samples: name -> column_N; some of `COLUMNS`.
      num_samples: N.

    Returns:
      feature_NxK, float64, without missing values; K may be 0.
    """
    column = {name: np.asarray(column_N, np.float64) for name, column_N in samples.items()}
    features = []
    if "tokens" in column:
        features.append(np.log(column["tokens"]))
        if "unk" in column:
            features.append(column["unk"] / column["tokens"])
    if "zlib_bytes" in column and "chars" in column:
        features.append(column["zlib_bytes"] / column["chars"])
    if "tfidf" in column:
        features.append(column["tfidf"])
    feature_NxK = np.array(features, np.float64).reshape(len(features), num_samples).T
    known_NxK = np.isfinite(feature_NxK)
    feature_NxK = feature_NxK[:, known_NxK.any(axis=0)]
    known_NxK = known_NxK[:, known_NxK.any(axis=0)]
    for feature_N, known_N in zip(feature_NxK.T, known_NxK.T, strict=True):
        feature_N[~known_N] = np.median(feature_N[known_N])
    return feature_NxK[:, np.ptp(feature_NxK, axis=0) > 0] if num_samples else feature_NxK
