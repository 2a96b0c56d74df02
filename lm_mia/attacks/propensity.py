"""Cross-fitted models of membership and of non-members' scores given covariates, for zero-run evaluation.

Members and non-members from different sources differ in more than membership. Two models of their covariates correct
for it: a logistic regression of membership, whose odds weight the non-members such that they resemble members, and a
ridge regression of the scores of non-members, which predicts what members would have scored without training on them.

Every sample is predicted by a model that was fitted without its group (cross-fitting), since a model that has seen a
sample's own membership is too certain of it. The penalty of each model is chosen by its loss on training folds that
were set aside.

The models are fitted here by Newton's method and by normal equations, since a text evaluation fits thousands of them:
this takes a quarter of scikit-learn's time, gives the same coefficients, and reads the samples in blocks.

N: samples, K: features, D: coefficients of the features and, last, the intercept, F: folds, G: groups, J: non-members
with a score, P: penalties.
"""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import linalg, sparse, special

from lm_mia import seeds, stats

FOLDS = 5
MAX_FEATURES = 4096
"""The models need a square matrix of this size."""
TEXT_COMPONENTS = 64
"""Number of components to which `text_features` reduces the words of texts."""
TEXT_STYLE = ("log characters", "compressed bytes per byte", "share of digits")
"""What the first columns of `text_features` are; the components of the words follow."""
_RELATIVE_PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)
"""1 is the curvature of the loss in a coefficient, so that it halves a small coefficient."""
_MAX_SELECTION = 2**15  # samples from which the penalty is chosen
_BLOCK = 2**15  # samples
_MAX_ITERATIONS = 50
_TOLERANCE = 1e-7  # nats per sample, before the last Newton step
_WORD = r"\w+|[^\w\s]"
_MAX_WORDS = 2**16
_MAX_FITTED_TEXTS = 2**15
_TEXT_BLOCK = 2**13

Features: TypeAlias = "np.ndarray | sparse.sparray | sparse.spmatrix"


@dataclasses.dataclass(frozen=True)
class _Folds:
    """Standardized features, sorted by fold, with a column of ones."""

    feature_NxD: Any
    """An array, or a sparse array in CSR format."""
    order_N: np.ndarray
    """Position of each sample before sorting; random within a fold."""
    start_F1: np.ndarray
    """Where each fold starts, and the number of samples."""

    def rows(self, fold: int, limit: int | None = None) -> slice:
        """Returns the samples of a fold, or only the first ones."""
        start, end = self.start_F1[fold : fold + 2].tolist()
        return slice(start, end if limit is None else min(end, start + limit))

    def without(self, *folds: int, limit: int | None = None) -> list[slice]:
        """Returns the samples of all other folds, as slices that are not empty."""
        slices: list[slice] = []
        for fold in range(FOLDS):
            rows = self.rows(fold, limit)
            if fold in folds or rows.start == rows.stop:
                continue
            if slices and slices[-1].stop == rows.start:
                rows = slice(slices.pop().start, rows.stop)
            slices.append(rows)
        return slices


def cross_fitted_log_odds(
    feature_NxK: Features, member_N: np.ndarray, group_N: np.ndarray, *, seed: int = 0
) -> np.ndarray:
    """Returns the log odds of membership given features, each predicted without the sample's own group.

    The model is a logistic regression on standardized features with an L2 penalty.

    Args:
      feature_NxK: finite numbers, dense or sparse; nothing that training on a sample changes, such as its loss under
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
    member_N = np.asarray(member_N, bool)
    folds = _make_folds(feature_NxK, group_N, member_N, ~member_N, seed)
    for name, is_member in (("member", True), ("non-member", False)):
        _check_groups(np.asarray(group_N)[member_N == is_member], name)
    feature_NxD, target_N = folds.feature_NxD, member_N[folds.order_N].astype(np.float64)

    def fit(training: Sequence[slice], penalty_P: Sequence[float]) -> list[np.ndarray]:
        return _fit_logistic(feature_NxD, target_N, training, penalty_P)

    def loss(rows: slice, coefficient_D: np.ndarray) -> float:
        return _log_loss(feature_NxD[rows] @ coefficient_D, target_N[rows])

    share = member_N.mean()
    penalty_F = _choose_penalties(folds, fit, loss, curvature=share * (1 - share))
    log_odds_N = np.empty(member_N.size)
    for fold, penalty in enumerate(penalty_F):
        rows, training = folds.rows(fold), folds.without(fold)
        [coefficient_D] = fit(training, [penalty])
        frequency = np.concatenate([target_N[part] for part in training]).mean()
        coefficient_D[-1] += special.logit(share) - special.logit(frequency)
        log_odds_N[folds.order_N[rows]] = feature_NxD[rows] @ coefficient_D
    return log_odds_N


def cross_fitted_outcome(
    feature_NxK: Features,
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
    member_N, score_N = np.asarray(member_N, bool), np.asarray(score_N, np.float64)
    if score_N.shape != member_N.shape:
        raise ValueError(
            f"score_N of shape {score_N.shape}, member_N of {member_N.shape}: must be equal; check their lengths"
        )
    scored_N = ~member_N & np.isfinite(score_N)
    folds = _make_folds(feature_NxK, group_N, member_N, scored_N, seed)
    _check_groups(np.asarray(group_N)[scored_N], "non-member")
    center = score_N[scored_N].mean()  # so that large scores with a small spread keep their digits
    target_N = np.where(scored_N, score_N - center, 0)[folds.order_N]
    weight_N = scored_N[folds.order_N].astype(np.float64)
    feature_NxD = folds.feature_NxD

    def fit(training: Sequence[slice], penalty_P: Sequence[float]) -> list[np.ndarray]:
        return _fit_ridge(feature_NxD, target_N, weight_N, training, penalty_P)

    def loss(rows: slice, coefficient_D: np.ndarray) -> float:
        residual_S = target_N[rows] - feature_NxD[rows] @ coefficient_D
        return float(weight_N[rows] @ residual_S**2)

    mean_N = np.empty(member_N.size)
    for fold, penalty in enumerate(_choose_penalties(folds, fit, loss, curvature=scored_N.mean())):
        rows = folds.rows(fold)
        [coefficient_D] = fit(folds.without(fold), [penalty])
        mean_N[folds.order_N[rows]] = feature_NxD[rows] @ coefficient_D + center
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
    feature_NxK: Any, group_N: np.ndarray, first_N: np.ndarray, second_N: np.ndarray, seed: int
) -> _Folds:
    """Checks and standardizes the features, and sorts them by fold.

    Groups are dealt to the folds one by one, large ones first, after sorting by whether they contain samples of the
    first class only, of both, or of the second class only. So the groups with samples of a class are consecutive, and
    two of them are never in the same fold unless there are more than five.
    """
    group_N = np.asarray(group_N)
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
    values = feature_NxK.data if sparse.issparse(feature_NxK) else feature_NxK
    if not np.isfinite(values).all():
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
    fold_N = fold_G[group_N]
    order_N = np.lexsort((seeds.permutation(seed, "propensity/samples", samples), fold_N))
    start_F1 = np.searchsorted(fold_N[order_N], np.arange(FOLDS + 1))
    return _Folds(_standardized(feature_NxK, order_N), order_N, start_F1)


def _standardized(feature_NxK: Any, order_N: np.ndarray) -> Any:
    """Returns the features in the given order with standard deviation 1, and a column of ones.

    Dense features have mean 0. Sparse ones are not centered, so that they remain sparse: the intercept has no penalty,
    so the fitted model is the same.
    """
    if sparse.issparse(feature_NxK):
        feature_NxK = sparse.csr_array(feature_NxK, dtype=np.float64)[order_N]
        mean_K = np.asarray(feature_NxK.mean(axis=0)).ravel()
        square_K = np.asarray(feature_NxK.power(2).mean(axis=0)).ravel()
        scale_K = np.sqrt(np.maximum(square_K - mean_K**2, 0))
        scale_K[scale_K <= 1e-6 * np.sqrt(square_K)] = 1
        ones = sparse.csr_array(np.ones((order_N.size, 1)))
        return sparse.hstack([feature_NxK @ sparse.diags_array(1 / scale_K), ones], format="csr")
    feature_NxD = np.ones((order_N.size, feature_NxK.shape[1] + 1))
    feature_NxD[:, :-1] = feature_NxK[order_N]
    scaled_NxK = feature_NxD[:, :-1]
    mean_K = scaled_NxK.mean(axis=0)
    scaled_NxK -= mean_K
    scale_K = np.sqrt(np.einsum("nk,nk->k", scaled_NxK, scaled_NxK) / order_N.size)
    scale_K[scale_K <= 1e-12 * np.abs(mean_K)] = 1  # constant, apart from rounding
    scaled_NxK /= np.where(scale_K > 0, scale_K, 1)
    return feature_NxD


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
    fit: Callable[[Sequence[slice], Sequence[float]], list[np.ndarray]],
    loss: Callable[[slice, np.ndarray], float],
    curvature: float,
) -> np.ndarray:
    """Returns penalty_F: the penalty for the samples outside each fold, chosen by held-out loss among these samples.

    A model that leaves out two neighboring folds is evaluated on each of them. This chooses the penalty for the other
    one, so five models per penalty give two held-out folds for each choice.

    Args:
      folds: the features.
      fit: fits one model per penalty, in decreasing order, to training samples.
      loss: sums the loss over held-out samples.
      curvature: mean second derivative of the loss in a coefficient, where all coefficients are 0.
    """
    limit = _MAX_SELECTION // FOLDS
    selected = sum(min(limit, int(size)) for size in np.diff(folds.start_F1))
    penalty_P = np.array(_RELATIVE_PENALTIES) * curvature * selected * (FOLDS - 1) / FOLDS
    loss_FxP = np.zeros((FOLDS, penalty_P.size))
    for fold in range(FOLDS):
        other = (fold + 1) % FOLDS
        training = folds.without(fold, other, limit=limit)
        for p, coefficient_D in enumerate(fit(training, penalty_P.tolist())):
            loss_FxP[fold, p] += loss(folds.rows(other, limit), coefficient_D)
            loss_FxP[other, p] += loss(folds.rows(fold, limit), coefficient_D)
    return penalty_P[loss_FxP.argmin(axis=1)]


def _fit_logistic(
    feature_NxD: Any, target_N: np.ndarray, training: Sequence[slice], penalty_P: Sequence[float]
) -> list[np.ndarray]:
    """Returns coefficient_D for each penalty, by Newton's method from the coefficients of the previous one.

    There are none if the training samples lack a class: only few groups can lead to this, and only when the penalty is
    chosen.
    """
    target_S = np.concatenate([target_N[rows] for rows in training] or [target_N[:0]])
    if target_S.min(initial=1) == target_S.max(initial=0):
        return []
    blocks = [*_blocks(training)]
    start = np.cumsum([0, *(rows.stop - rows.start for rows in blocks)]).tolist()
    parts = [slice(*ends) for ends in itertools.pairwise(start)]
    coefficient_D = np.zeros(feature_NxD.shape[1])
    coefficient_D[-1] = special.logit(target_S.mean())
    predicted_S = np.full(target_S.size, coefficient_D[-1])
    fitted = []
    for penalty in penalty_P:
        penalty_D = np.full(coefficient_D.size, float(penalty))
        penalty_D[-1] = 0
        objective = _log_loss(predicted_S, target_S) + penalty_D @ coefficient_D**2 / 2
        for _ in range(_MAX_ITERATIONS):
            probability_S = special.expit(predicted_S)
            gradient_D, hessian_DxD = penalty_D * coefficient_D, np.diag(penalty_D)
            for rows, part in zip(blocks, parts, strict=True):
                p = probability_S[part]
                gradient_D += feature_NxD[rows].T @ (p - target_S[part])
                hessian_DxD += _gram(feature_NxD[rows], p * (1 - p))
            step_D = linalg.cho_solve(linalg.cho_factor(hessian_DxD), gradient_D)
            change_S = np.concatenate([feature_NxD[rows] @ step_D for rows in blocks])
            decrease, size = gradient_D @ step_D, 1.0
            while True:  # half the step until the objective decreases enough
                new_D = coefficient_D - size * step_D
                new_S = predicted_S - size * change_S
                new = _log_loss(new_S, target_S) + penalty_D @ new_D**2 / 2
                is_last = decrease <= _TOLERANCE * target_S.size
                if is_last or new <= objective - 1e-4 * size * decrease:
                    break
                size /= 2
            coefficient_D, predicted_S, objective = new_D, new_S, new
            if is_last:
                break
        fitted.append(coefficient_D.copy())
    return fitted


def _fit_ridge(
    feature_NxD: Any,
    target_N: np.ndarray,
    weight_N: np.ndarray,
    training: Sequence[slice],
    penalty_P: Sequence[float],
) -> list[np.ndarray]:
    """Returns coefficient_D for each penalty; none without a training sample of positive weight."""
    dimensions = feature_NxD.shape[1]
    gram_DxD, moment_D = np.zeros((dimensions, dimensions)), np.zeros(dimensions)
    for rows in _blocks(training):
        gram_DxD += _gram(feature_NxD[rows], weight_N[rows])
        moment_D += feature_NxD[rows].T @ (weight_N[rows] * target_N[rows])
    if not gram_DxD[-1, -1]:
        return []
    penalty_DxD = np.eye(dimensions)
    penalty_DxD[-1, -1] = 0
    return [
        linalg.cho_solve(linalg.cho_factor(gram_DxD + penalty * penalty_DxD), moment_D)
        for penalty in penalty_P
    ]


def _log_loss(predicted_S: np.ndarray, target_S: np.ndarray) -> float:
    """Returns the summed log-loss of predicted log odds."""
    return float(np.logaddexp(0, predicted_S).sum() - predicted_S @ target_S)


def _gram(feature_SxD: Any, weight_S: np.ndarray) -> np.ndarray:
    """Returns X^T diag(w) X for weights that are not negative."""
    if sparse.issparse(feature_SxD):
        return (feature_SxD.T @ feature_SxD.multiply(weight_S[:, None]).tocsr()).toarray()
    scaled_SxD = feature_SxD * np.sqrt(weight_S)[:, None]
    return scaled_SxD.T @ scaled_SxD


def _blocks(training: Sequence[slice]) -> Iterator[slice]:
    for rows in training:
        for start in range(rows.start, rows.stop, _BLOCK):
            yield slice(start, min(start + _BLOCK, rows.stop))


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
    # A word that occurs in a single text tells nothing about other texts.
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
