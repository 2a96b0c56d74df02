"""Cross-fitted models of membership and of non-members' scores given covariates, for zero-run evaluation.

Members and non-members from different sources differ in more than membership. Two models of their covariates correct
for it: a logistic regression of membership, whose odds weight the non-members so that they resemble the members, and a
ridge regression of the scores of non-members, which predicts what members would have scored without training on them.

Every sample is predicted by a model that was fitted without its group (cross-fitting), since a model that was fitted to
the membership of a sample is overconfident about it. The penalty of each model is chosen by its loss on training folds
that were set aside.

N: samples, K: features, F: folds, G: groups, J: non-members with a score, P: penalties, S: samples of some folds.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse, special

from lm_mia import seeds, stats

FOLDS = 5
MAX_FEATURES = 4096
"""The models need a square matrix with this many rows."""
TEXT_COMPONENTS = 64
"""Number of components to which `text_features` reduces the words of texts."""
TEXT_STYLE = ("log characters", "compressed bytes per byte", "share of digits")
"""What the first columns of `text_features` are; the components of the words follow."""
_RELATIVE_PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Penalties relative to the curvature of the loss in a coefficient; 1 halves a small coefficient."""
_TOLERANCE = 1e-4
"""Largest slope of the mean loss in a coefficient at which a logistic regression counts as fitted."""
_MAX_SELECTION = 2**15  # samples from which the penalty is chosen
_WORD = r"\w+|[^\w\s]"
_MAX_WORDS = 2**16
_MAX_FITTED_TEXTS = 2**15
_TEXT_BLOCK = 2**13

Predict = Callable[[np.ndarray], np.ndarray]
"""Returns the predictions of a fitted model for samples at the given positions."""
Fit = Callable[[np.ndarray, float], Predict]
"""Fits a model to the samples at the given positions with the given penalty."""


@dataclasses.dataclass(frozen=True)
class _Folds:
    """Standardized features and the fold of each sample."""

    feature_NxK: np.ndarray
    fold_N: np.ndarray
    selection_N: np.ndarray
    """Whether each sample is used to choose penalties."""

    def within(self, fold: int) -> np.ndarray:
        """Returns the positions of the samples of a fold."""
        return np.flatnonzero(self.fold_N == fold)

    def without(self, fold: int) -> np.ndarray:
        """Returns the positions of the samples of all other folds."""
        return np.flatnonzero(self.fold_N != fold)


def cross_fitted_log_odds(
    feature_NxK: np.ndarray, member_N: np.ndarray, group_N: np.ndarray, *, seed: int = 0
) -> np.ndarray:
    """Returns the log odds of membership given features, each predicted without the sample's own group.

    The model is a logistic regression on standardized features with an L2 penalty.

    Args:
      feature_NxK: finite numbers; nothing that training on a sample changes, such as its loss under
        the model under attack. At most 4,096 features.
      member_N: membership, booleans.
      group_N: integers; samples with the same number, such as near-duplicates, are in the same fold.
      seed: determines the folds.

    Returns:
      log_odds_N, float64, finite: log P(member | x) - log P(non-member | x), for members and non-members that are as
      frequent as in member_N. The model of each fold was fitted to slightly different frequencies, which is corrected.
      Estimates with self-normalized weights depend only on the density ratio, so a constant would not matter to them.
      Where the weights are divided by the number of members it matters, and these log odds are right.
      If the features separate the classes perfectly, the log odds are large but finite; see
      `share_beyond_nonmembers`.

    Raises:
      ValueError: if the shapes differ, a feature is not finite, there are too many features, or a class has fewer than
        two groups.

    Source:
      Even et al., "Membership Inference Attacks from Causal Principles", Section 6; Chernozhukov et al. 2018,
      "Double/debiased machine learning", for cross-fitting.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> x_N = rng.normal(size=2000)
      >>> member_N = rng.random(2000) < 1 / (1 + np.exp(-x_N))  # the log odds are x
      >>> log_odds_N = cross_fitted_log_odds(x_N[:, None], member_N, np.arange(2000))
      >>> bool(abs(np.polyfit(x_N, log_odds_N, 1)[0] - 1) < 0.15)
      True
    """
    from sklearn.linear_model import LogisticRegression  # takes seconds to load

    member_N = np.asarray(member_N, bool)
    folds = _make_folds(feature_NxK, group_N, member_N, ~member_N, seed)
    for name, is_member in (("member", True), ("non-member", False)):
        _check_groups(np.asarray(group_N)[member_N == is_member], name)
    feature_NxK = folds.feature_NxK

    def fit(training_S: np.ndarray, penalty: float) -> Predict:
        feature_SxK, member_S = feature_NxK[training_S], member_N[training_S]
        share = member_S.mean()
        # If no feature is related to membership, scikit-learn warns that it finds nothing to improve.
        if not (np.abs((member_S - share) @ feature_SxK) > _TOLERANCE * member_S.size).any():
            return lambda at_S: np.full(at_S.size, special.logit(share))
        model = LogisticRegression(
            C=1 / penalty, solver="newton-cholesky", max_iter=1000, tol=_TOLERANCE
        )
        model.fit(feature_SxK, member_S)
        return lambda at_S: model.decision_function(feature_NxK[at_S])

    def loss(predicted_S: np.ndarray, at_S: np.ndarray) -> float:
        return float(np.logaddexp(0, np.where(member_N[at_S], -predicted_S, predicted_S)).sum())

    share = member_N.mean()
    penalty_F = _choose_penalties(
        folds,
        fit,
        loss,
        share * (1 - share),
        is_usable=lambda at_S: bool(0 < member_N[at_S].mean() < 1),
    )
    log_odds_N = np.empty(member_N.size)
    for fold, penalty in enumerate(penalty_F):
        at_S, training_S = folds.within(fold), folds.without(fold)
        if at_S.size:
            correction = special.logit(share) - special.logit(member_N[training_S].mean())
            log_odds_N[at_S] = fit(training_S, penalty)(at_S) + correction
    return log_odds_N


def cross_fitted_outcome(
    feature_NxK: np.ndarray,
    score_N: np.ndarray,
    member_N: np.ndarray,
    group_N: np.ndarray,
    *,
    seed: int = 0,
) -> stats.OutcomeModel:
    """Returns the mean score of a sample that was not trained on, given features, and residuals of non-members.

    The model is a ridge regression of the scores of non-members on standardized features; each sample, member or not,
    is predicted without its own group.

    Args:
      feature_NxK: as for `cross_fitted_log_odds`.
      score_N: membership scores; non-members whose score is NaN are left out.
      member_N: membership, booleans.
      group_N: as for `cross_fitted_log_odds`.
      seed: determines the folds; they are those of `cross_fitted_log_odds` unless scores are missing.

    Returns:
      The model: ``mean_N`` of all samples, and ``residual_J``, the scores of the J non-members that have one minus
      their predictions, in the order of the samples. The distribution of a non-member's score is that of its mean plus
      a residual: the model assumes that only the mean depends on the features.

    Raises:
      ValueError: as `cross_fitted_log_odds`; only non-members need two groups.

    Source:
      Even et al., "Membership Inference Attacks from Causal Principles", Eqs. 7 and 8 and Appendix D.
    """
    from sklearn.linear_model import Ridge  # takes seconds to load

    member_N, score_N = np.asarray(member_N, bool), np.asarray(score_N, np.float64)
    if score_N.shape != member_N.shape:
        raise ValueError(
            f"score_N of shape {score_N.shape}, member_N of {member_N.shape}: must be equal; check their lengths"
        )
    scored_N = ~member_N & np.isfinite(score_N)
    folds = _make_folds(feature_NxK, group_N, member_N, scored_N, seed)
    _check_groups(np.asarray(group_N)[scored_N], "non-member")
    feature_NxK = folds.feature_NxK

    def fit(training_S: np.ndarray, penalty: float) -> Predict:
        training_J = training_S[scored_N[training_S]]
        model = Ridge(penalty, solver="cholesky")
        model.fit(feature_NxK[training_J], score_N[training_J])
        return lambda at_S: model.predict(feature_NxK[at_S])

    def loss(predicted_S: np.ndarray, at_S: np.ndarray) -> float:
        return float(np.sum((score_N[at_S] - predicted_S)[scored_N[at_S]] ** 2))

    penalty_F = _choose_penalties(
        folds, fit, loss, scored_N.mean(), is_usable=lambda at_S: bool(scored_N[at_S].any())
    )
    mean_N = np.empty(member_N.size)
    for fold, penalty in enumerate(penalty_F):
        at_S = folds.within(fold)
        if at_S.size:
            mean_N[at_S] = fit(folds.without(fold), penalty)(at_S)
    return stats.OutcomeModel(mean_N, (score_N - mean_N)[scored_N])


def share_beyond_nonmembers(log_odds_N: np.ndarray, member_N: np.ndarray) -> float:
    """Returns the share of members whose log odds are larger than those of all non-members.

    No non-member, however weighted, stands for these members. If the covariates separate the classes, the share is near
    1, while the weights of non-members may be almost equal: all of them are equally unlike members, and the effective
    number of non-members does not show it.
    """
    log_odds_N, member_N = np.asarray(log_odds_N), np.asarray(member_N, bool)
    return float(np.mean(log_odds_N[member_N] > log_odds_N[~member_N].max()))


def _make_folds(
    feature_NxK: np.ndarray,
    group_N: np.ndarray,
    first_N: np.ndarray,
    second_N: np.ndarray,
    seed: int,
) -> _Folds:
    """Checks and standardizes the features, and divides the samples into folds.

    Groups are dealt to the folds one by one, large ones first, after sorting by whether they contain samples of the
    first class only, of both, or of the second class only. So the groups with samples of a class are consecutive, and
    two of them are never in the same fold unless there are more than five.
    """
    from sklearn.preprocessing import StandardScaler

    group_N, feature_NxK = np.asarray(group_N), np.asarray(feature_NxK, np.float64)
    shape, samples = feature_NxK.shape, first_N.size
    if len(shape) != 2 or shape[0] != samples or group_N.shape != (samples,):
        raise ValueError(
            f"feature_NxK of shape {shape}, member_N of {samples}, group_N of {group_N.shape}: must have one row or "
            "value for each sample; check their order and lengths"
        )
    if shape[1] > MAX_FEATURES:
        raise ValueError(
            f"feature_NxK: has {shape[1]:,} features; must be at most {MAX_FEATURES:,}; reduce them by a truncated SVD"
        )
    if not np.isfinite(feature_NxK).all():
        raise ValueError(
            "feature_NxK: has NaN or infinite values; leave out or fill in such samples"
        )
    group_N = np.unique(group_N, return_inverse=True)[1]
    size_G = np.bincount(group_N)
    has_first_G, has_second_G = (np.bincount(group_N, weights=at) > 0 for at in (first_N, second_N))
    kind_G = np.select([has_first_G & ~has_second_G, has_first_G, has_second_G], [0, 1, 2], 3)
    random_G = seeds.permutation(seed, "propensity/groups", size_G.size)
    fold_G = np.empty(size_G.size, np.intp)
    fold_G[np.lexsort((random_G, -size_G, kind_G))] = np.arange(size_G.size) % FOLDS
    selection_N = seeds.permutation(seed, "propensity/samples", samples) < _MAX_SELECTION
    return _Folds(StandardScaler().fit_transform(feature_NxK), fold_G[group_N], selection_N)


def _check_groups(group_J: np.ndarray, name: str) -> None:
    """Raises ValueError if a class has fewer than two groups."""
    count = np.unique(group_J).size
    if count < 2:
        raise ValueError(
            f"member_N: {count} groups of {name}s: each class needs at least 2, since every sample is predicted "
            f"without its own group; add {name}s"
        )


def _choose_penalties(
    folds: _Folds,
    fit: Fit,
    loss: Callable[[np.ndarray, np.ndarray], float],
    curvature: float,
    is_usable: Callable[[np.ndarray], bool],
) -> np.ndarray:
    """Returns penalty_F: the penalty for the samples outside each fold, chosen by held-out loss among these samples.

    A model that leaves out two neighboring folds is evaluated on each of them. This chooses the penalty for the other
    one, so five models per penalty give two held-out folds for each choice.

    Args:
      folds: the features and folds.
      fit: fits a model.
      loss: sums the loss of predictions over the samples at the given positions.
      curvature: mean second derivative of the loss in a coefficient, where all coefficients are 0.
      is_usable: whether a model can be fitted to the samples at the given positions; with few groups, a class may be
        missing.
    """
    selected = int(folds.selection_N.sum())
    penalty_P = np.array(_RELATIVE_PENALTIES) * curvature * selected * (FOLDS - 1) / FOLDS
    loss_FxP = np.zeros((FOLDS, penalty_P.size))
    for fold in range(FOLDS):
        other = (fold + 1) % FOLDS
        is_held_out_N = np.isin(folds.fold_N, (fold, other))
        training_S = np.flatnonzero(folds.selection_N & ~is_held_out_N)
        if not (training_S.size and is_usable(training_S)):
            continue
        for p, penalty in enumerate(penalty_P):
            predict = fit(training_S, float(penalty))
            for chosen, evaluated in ((fold, other), (other, fold)):
                at_S = np.flatnonzero(folds.selection_N & (folds.fold_N == evaluated))
                if at_S.size:
                    loss_FxP[chosen, p] += loss(predict(at_S), at_S)
    return penalty_P[loss_FxP.argmin(axis=1)]


def text_features(texts: Sequence[str], *, seed: int = 0) -> np.ndarray:
    """Returns feature_NxK, float32: how texts are written and what they are about, without regard to membership.

    The columns are log(1 + characters); zlib-compressed bytes per byte, at most 2; the share of digits among the
    characters; and the TF-IDF of words and punctuation, reduced by a truncated singular value decomposition to at most
    64 components. The vocabulary and the decomposition are learned from at most 32,768 of the texts, drawn at random,
    and applied in blocks: only the features grow with the number of texts. It takes two minutes per million texts of
    100 words, on one core.

    Args:
      texts: the texts.
      seed: determines which texts are drawn, and the decomposition.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    drawn = np.sort(
        seeds.draw(seed, "propensity/texts", len(texts), min(len(texts), _MAX_FITTED_TEXTS))
    )
    fitted = [texts[i] for i in drawn.tolist()]
    # A word that occurs in only one text carries no information about other texts.
    settings: dict[str, Any] = {"min_df": 2, "max_features": _MAX_WORDS, "dtype": np.float32}
    vectorizer = TfidfVectorizer(token_pattern=_WORD, sublinear_tf=True, **settings)
    svd = None
    try:
        tfidf: Any = vectorizer.fit_transform(fitted)
    except ValueError:  # no word occurs in two texts
        tfidf = sparse.csr_array((len(fitted), 0))
    components = min(TEXT_COMPONENTS, tfidf.shape[1] - 1, len(fitted) - 1)
    if components > 0:
        svd = TruncatedSVD(components, random_state=seed).fit(tfidf)
    blocks: list[np.ndarray] = []
    for start in range(0, len(texts), _TEXT_BLOCK):
        block = texts[start : start + _TEXT_BLOCK]
        columns: list[np.ndarray] = [
            np.array([_style(text) for text in block], np.float32).reshape(len(block), -1)
        ]
        if svd is not None:
            columns.append(svd.transform(vectorizer.transform(block)).astype(np.float32))
        blocks.append(np.hstack(columns))
    return np.concatenate(blocks)


def _style(text: str) -> tuple[float, float, float]:
    """Returns log(1 + characters), compressed bytes per byte, and the share of digits among the characters."""
    encoded = text.encode("utf-8", "surrogatepass")
    compressed = len(zlib.compress(encoded)) / max(len(encoded), 1)
    digits = sum(map(text.count, "0123456789")) / max(len(text), 1)
    return math.log1p(len(text)), min(compressed, 2.0), digits
