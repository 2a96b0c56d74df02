"""Covariates of texts: the TF-IDF by its definition, directions that tell topics apart, and missing values."""

import itertools
import math

import numpy as np
import pytest

from lm_mia.attacks import text_features

VOCABULARY = 30


def texts(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns tokens and offsets of texts about one of two topics, and the topics."""
    rng = np.random.default_rng(0)
    topic_N = np.arange(samples) % 2
    parts = [rng.integers(0, 10, 12) + 10 * rng.integers(0, 1 + t, 12) for t in topic_N]
    parts[3] = parts[3][:0]  # a text without tokens
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)]), topic_N


def test_directions_are_the_truncated_svd_of_the_tfidf_vectors():
    tokens, offsets_N1, topic_N = texts(40)
    counts = [
        np.bincount(tokens[a:b], minlength=VOCABULARY) for a, b in itertools.pairwise(offsets_N1)
    ]
    frequency_V = (np.array(counts) > 0).sum(axis=0)
    tfidf_NxV = np.array(counts) * (np.log(41 / (1 + frequency_V)) + 1)
    length_Nx1 = np.linalg.norm(tfidf_NxV, axis=1, keepdims=True)
    tfidf_NxV = tfidf_NxV / np.where(length_Nx1 > 0, length_Nx1, 1)
    left, size, _ = np.linalg.svd(tfidf_NxV)
    feature_NxK = text_features.token_features(tokens, offsets_N1, {}, VOCABULARY, components=3)
    np.testing.assert_allclose(np.abs(feature_NxK), np.abs(left[:, :3] * size[:3]), atol=1e-5)
    second_N = feature_NxK[:, 1] * np.sign(feature_NxK[0, 1])
    known_N = np.arange(40) != 3
    assert np.mean((second_N > 0) == (topic_N == topic_N[0]), where=known_N) > 0.9
    again = text_features.token_features(tokens, offsets_N1, {}, VOCABULARY, components=3)
    np.testing.assert_array_equal(feature_NxK, again)


def test_a_part_of_the_population_has_the_features_of_its_own_texts():
    tokens, offsets_N1, _ = texts(40)
    part = text_features.token_features(tokens, offsets_N1[10:31], {}, VOCABULARY)
    own = tokens[offsets_N1[10] : offsets_N1[30]]
    expected = text_features.token_features(own, offsets_N1[10:31] - offsets_N1[10], {}, VOCABULARY)
    np.testing.assert_array_equal(part, expected)
    assert part.shape == (20, 19)  # fewer samples than components


def test_columns_that_are_missing_or_constant_are_left_out():
    columns = {
        "tokens": np.array([1, 10, 100]),
        "unk": np.array([0, 1, 50]),
        "zlib_bytes": np.array([8, 8, 9]),
        "chars": np.array([4, 8, 3]),
        "tfidf": np.array([1.0, math.nan, 4.0]),
    }
    expected = [[0, 0, 2, 1], [math.log(10), 0.1, 1, 2.5], [math.log(100), 0.5, 3, 4]]
    np.testing.assert_allclose(text_features.column_features(columns, 3), expected)
    unknown = np.full(3, math.nan)
    columns |= {"unk": np.zeros(3), "chars": unknown, "tfidf": np.ones(3)}
    assert text_features.column_features(columns, 3)[:, 0] == pytest.approx(np.log([1, 10, 100]))
    assert text_features.column_features(columns, 3).shape == (3, 1)
    for nothing in ({}, {"tokens": unknown, "tfidf": unknown}):
        assert text_features.column_features(nothing, 3).shape == (3, 0)
