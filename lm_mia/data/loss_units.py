"""Tells losses in nats per token from values in other units, which would be attacked without any sign of a mistake.

M: models, N: samples, P: pairs of samples, J: losses that may show a grid.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from lm_mia import seeds
from lm_mia.errors import UserError

FLAG = "--losses-are-nats (in Python, losses_are_nats=True)"
"""Turns the check off."""
MAX_MEAN = 13.0
"""Largest mean loss if the vocabulary is unknown: a model that gives 442,000 pieces the same probability has it."""
MAX_SAMPLES = 4096
"""As many samples show the unit."""
UNTRAINED = 0.1
"""An untrained model may have a mean loss that is by so much above the logarithm of the vocabulary."""
IMPOSSIBLE = 26.0
"""Nats per token that not one text in a hundred has: each of its tokens would have a probability of 5e-12."""
_FEWEST_IMPOSSIBLE = 3
_LONG = 5  # tokens; fewer of them may all be improbable
_MIN_SLOPE = (
    0.5  # of log loss in log tokens: 0 for means that do not depend on the length, 1 for sums
)
_MAX_RESIDUAL_SD = (
    1.0  # of log losses around the line; among texts that none knows by heart, it is about 0.5
)
_SIMILAR_LENGTHS = (1.2, 2.5)  # lengths of the texts of a pair differ by a factor between these
_FEWEST_TEXTS, _MOST_TEXTS = 20, 512
_FEWEST_EDGE = 20  # different values just above 1, none below, that show an edge rather than a tail
_EDGE = 1.05
_MAX_DENOMINATOR = 2048
_RATIO_ERROR = 1e-7  # of a ratio of integers up to 1 in float32; a random number is so close to one in 25 % of cases
_MIN_RATIOS = 0.9
_FEWEST_RATIOS, _MOST_RATIOS = 20, 200
_STANDARD_ERRORS = 6
_SHOWN = 3


def draw_samples(samples: int) -> np.ndarray:
    """Returns the positions of the samples that `find_problems` is given, in order: at most `MAX_SAMPLES`."""
    return np.sort(seeds.draw(0, "loss units", samples, min(samples, MAX_SAMPLES)))


def check_units(
    where: str,
    names_M: Sequence[str],
    loss_MxN: np.ndarray,
    member_MxN: np.ndarray,
    tokens_N: np.ndarray | None = None,
    vocabulary: int | None = None,
) -> None:
    """Raises UserError with one line per problem, ``where`` in front; the rest is as for `find_problems`."""
    found = find_problems(names_M, loss_MxN, member_MxN, tokens_N, vocabulary)
    if found:
        raise UserError(
            "\n".join(
                f"{where}: {problem}; if they are in nats per token, add {FLAG}"
                for problem in found
            )
        )


def describe(*, are_nats: bool) -> str:
    """Returns in which unit losses are that were accepted, for the user to notice a mistake that they do not show."""
    if are_nats:
        return f"nats per token, as {FLAG} says"
    return "nats per token, as far as the values show; save no bits, whose values can look the same"


def find_problems(
    names_M: Sequence[str],
    loss_MxN: np.ndarray,
    member_MxN: np.ndarray,
    tokens_N: np.ndarray | None = None,
    vocabulary: int | None = None,
) -> list[str]:
    """Returns a sentence for each reason why losses cannot be in nats per token, which ends with a remedy.

    Every model is judged by itself, since losses may come from several programs. Bits, perplexities of well predicted
    texts, and a mean over bytes or characters can look like losses in nats per token, and are not noticed then.

    Args:
      names_M: what messages call the models, such as "model target".
      loss_MxN: the values, not negative; for large files, those of `draw_samples`.
      member_MxN: whether each model was trained on each sample.
      tokens_N: lengths of the samples in tokens, NaN where unknown; None: all unknown.
      vocabulary: the number of pieces of the vocabulary; None: unknown.
    """
    loss_MxN = np.asarray(loss_MxN, np.float64)
    problems: list[str] = []
    is_sum_M = np.zeros(len(loss_MxN), bool)
    if tokens_N is not None:
        is_sum_M = np.array([_grows_as_tokens(loss_N, tokens_N) for loss_N in loss_MxN])
    if is_sum_M.any():
        problems.append(
            f"the losses of {_listed(names_M, is_sum_M)} grow in proportion to the tokens of the texts, as sums over "
            "tokens and means over padded texts do: they must be means over the tokens of each text, in nats; divide "
            "sums by the number of tokens"
        )
    limit = MAX_MEAN if vocabulary is None else math.log(vocabulary) + UNTRAINED
    mean_M = loss_MxN.mean(axis=1)
    is_large_M = (mean_M > limit) & ~is_sum_M  # one reason for each model, the most specific one
    if is_large_M.any():
        of = "that any usual vocabulary allows"
        if vocabulary is not None:
            of = f"of equal probabilities for all {vocabulary:,} pieces of the vocabulary"
        problems.append(
            f"the losses of {_listed(names_M, is_large_M)} have a mean of {mean_M[is_large_M].max():.4g}, above the "
            f"{limit:.4g} nats per token {of}: sums over tokens, perplexities and bits are as large, and so are the "
            "losses of a model that has diverged; they must be means over the tokens of each text, in nats: "
            "divide sums by the number of tokens, take the logarithm of perplexities, multiply bits by 0.6931"
        )
    is_long_N = np.ones(loss_MxN.shape[1], bool) if tokens_N is None else ~(tokens_N < _LONG)
    impossible_M = (loss_MxN[:, is_long_N] > IMPOSSIBLE).sum(axis=1)
    is_edge_M = np.array([_begins_at_one(loss_N) for loss_N in loss_MxN])
    is_many_M = impossible_M >= max(_FEWEST_IMPOSSIBLE, 0.01 * loss_MxN.shape[1])
    is_perplexity_M = (is_edge_M | is_many_M) & ~is_large_M & ~is_sum_M
    if is_perplexity_M.any():
        problems.append(
            f"the losses of {_listed(names_M, is_perplexity_M)} look like perplexities, since "
            + (
                "many are just above 1 and none is below"
                if (is_edge_M & is_perplexity_M).any()
                else f"one in a hundred is above {IMPOSSIBLE:g}"
            )
            + ": they must be in nats per token; save the logarithm of perplexities"
        )
    is_share_M = np.array([_are_ratios(loss_N) for loss_N in loss_MxN])
    if is_share_M.any():
        problems.append(
            f"the losses of {_listed(names_M, is_share_M)} are ratios of small integers between 0 and 1, as accuracies "
            "are: they must be in nats per token; save mean negative log-likelihoods"
        )
    elif (loss_MxN <= 1).all() and _rises_by_training(loss_MxN, member_MxN):
        problems.append(
            "the losses are at most 1 and rise if a model is trained on a text, as accuracies and probabilities do: "
            "they must be in nats per token, and lower for members; save mean negative log-likelihoods, and check that "
            "membership is 1 for members"
        )
    return problems


def _grows_as_tokens(loss_N: np.ndarray, tokens_N: np.ndarray) -> bool:
    """Returns whether losses grow in proportion to the tokens, among all texts and among texts of similar lengths.

    Short texts that a model knows by heart and long ones that it does not know have such a slope, too, but have none
    among texts of similar lengths, or have losses that lie far from the line.
    """
    known_N = (loss_N > 0) & np.isfinite(tokens_N) & (tokens_N > 0)
    x_N, y_N = np.log(np.asarray(tokens_N, np.float64)[known_N]), np.log(loss_N[known_N])
    if x_N.size < _FEWEST_TEXTS:
        return False
    step = -(-x_N.size // _MOST_TEXTS)
    x_N, y_N = x_N[::step], y_N[::step]
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    if np.ptp(x_N) < 1e-9:
        return False
    slope = float(x_N @ y_N / (x_N @ x_N))
    residual_sd = math.sqrt(float(np.sum((y_N - slope * x_N) ** 2)) / (x_N.size - 2))
    error = residual_sd / math.sqrt(float(x_N @ x_N))
    if slope - 3 * error < _MIN_SLOPE or residual_sd > _MAX_RESIDUAL_SD:
        return False
    low, high = np.log(_SIMILAR_LENGTHS)
    dx_NxN, dy_NxN = np.subtract.outer(x_N, x_N), np.subtract.outer(y_N, y_N)
    is_pair_NxN = (dx_NxN > low) & (dx_NxN < high)
    slope_P = dy_NxN[is_pair_NxN] / dx_NxN[is_pair_NxN]
    return not slope_P.size or bool(np.median(slope_P) > _MIN_SLOPE)


def _begins_at_one(loss_N: np.ndarray) -> bool:
    """Returns whether values have an edge at 1, which perplexities of texts that a model knows by heart approach."""
    return not (loss_N < 1).any() and np.unique(loss_N[loss_N < _EDGE]).size >= _FEWEST_EDGE


def _are_ratios(loss_N: np.ndarray) -> bool:
    """Returns whether values are ratios of small integers from 0 to 1, other than rounded numbers."""
    if not (loss_N <= 1).all():
        return False
    # Values of bfloat16 and float16 are multiples of powers of 1/2, and rounded ones of powers of 1/10.
    halved_N, rounded_N = loss_N * 2**20, loss_N * 1e4
    is_grid_N = halved_N == np.rint(halved_N)
    is_grid_N |= np.abs(rounded_N - np.rint(rounded_N)) < 1e4 * _RATIO_ERROR
    informative_J = loss_N[~is_grid_N][:_MOST_RATIOS].tolist()
    if len(informative_J) < max(_FEWEST_RATIOS, 0.01 * loss_N.size):
        return False
    ratios = sum(
        abs(float(ratio) - value) < _RATIO_ERROR and ratio > 0
        for value in informative_J
        for ratio in [Fraction(value).limit_denominator(_MAX_DENOMINATOR)]
    )
    return ratios >= _MIN_RATIOS * len(informative_J)


def _rises_by_training(loss_MxN: np.ndarray, member_MxN: np.ndarray) -> bool:
    """Returns whether the values of a text are clearly larger under the models that were trained on it.

    The mean of each model and of each text is subtracted, so that neither a better model nor easier members matter.
    """
    member_MxN = _double_centered(np.asarray(member_MxN, np.float64))
    loss_MxN = _double_centered(loss_MxN)
    squares = float(np.sum(member_MxN**2))
    if squares < 1e-9 * member_MxN.size:  # a single model, or the same members in all of them
        return False
    effect = float(np.sum(member_MxN * loss_MxN)) / squares
    # Texts are independent of each other, while the models of a text need not be.
    error_N = (member_MxN * (loss_MxN - effect * member_MxN)).sum(axis=0)
    return effect * squares > _STANDARD_ERRORS * math.sqrt(float(error_N @ error_N)) > 0


def _double_centered(value_MxN: np.ndarray) -> np.ndarray:
    value_MxN = value_MxN - value_MxN.mean(axis=1, keepdims=True)
    return value_MxN - value_MxN.mean(axis=0, keepdims=True)


def _listed(names_M: Sequence[str], is_concerned_M: np.ndarray) -> str:
    """Returns words for the models that are concerned, such as "all 8 models" or "model a, model b and 3 more"."""
    names = [
        name for name, is_concerned in zip(names_M, is_concerned_M, strict=True) if is_concerned
    ]
    if len(names) == len(names_M) > 1:
        return f"all {len(names)} models"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
