"""The check of units on files that are right, none of which it may refuse, and on files in other units."""

from typing import Any

import numpy as np
import pytest

from lm_mia.data import loss_units
from lm_mia.errors import UserError

M = 6


def losses(
    rng: np.random.Generator,
    tokens_N: np.ndarray,
    level: float,
    *,
    spread: float = 0.25,
    context: float = -0.1,
    effect: float = 0.2,
    models: int = M,
) -> dict[str, Any]:
    """Returns losses in nats per token that are means over the tokens of texts, and lower for members.

    Args:
      rng: source of randomness.
      tokens_N: lengths of the texts.
      level: loss of a usual text of 100 tokens.
      spread: standard deviation of the logarithm of the difficulty of a text.
      context: exponent of the length, negative since later tokens are easier.
      effect: share by which the loss of a member is lower.
      models: number of models.
    """
    member_MxN = rng.random((models, tokens_N.size)) < 0.5
    mean_N = level * (tokens_N / 100) ** context * np.exp(rng.normal(0, spread, tokens_N.size))
    mean_MxN = mean_N * (1 - effect * member_MxN) * rng.normal(1, 0.02, (models, 1))
    # The losses of tokens have a standard deviation of 0.7 means, so that short texts have large and small losses.
    loss_MxN = rng.gamma(np.broadcast_to(2 * tokens_N, mean_MxN.shape)) / tokens_N / 2 * mean_MxN
    return {"loss_MxN": loss_MxN, "member_MxN": member_MxN, "tokens_N": tokens_N}


def lengths(rng: np.random.Generator, middle: float, samples: int = 400, sd: float = 0.7) -> Any:
    return np.maximum(np.rint(np.exp(rng.normal(np.log(middle), sd, samples))), 1)


def concatenate(*parts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.concatenate([part[name] for part in parts], axis=-1)
        for name in ("loss_MxN", "member_MxN", "tokens_N")
    }


def changed(part: dict[str, Any], change: Any) -> dict[str, Any]:
    return part | {"loss_MxN": change(part["loss_MxN"])}


def to_bfloat16(loss_MxN: np.ndarray) -> np.ndarray:
    return (loss_MxN.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def memorized(rng: np.random.Generator) -> dict[str, Any]:
    part = losses(rng, lengths(rng, 30), 0.4)
    return changed(part, lambda loss_MxN: loss_MxN * np.where(part["member_MxN"], 1e-4, 1))


def members_from_a_harder_source(rng: np.random.Generator) -> dict[str, Any]:
    """Returns losses of a fine-tuned model and its base, which know non-members better."""
    member_MxN = np.tile(np.arange(400) < 200, (2, 1)) & [[True], [False]]
    part = losses(rng, lengths(rng, 100), 0.3, effect=0, models=2) | {"member_MxN": member_MxN}
    harder_MxN = np.where(member_MxN[0], 1.5, 1) * (1 - 0.1 * member_MxN)
    return changed(part, lambda loss_MxN: np.minimum(loss_MxN * harder_MxN, 1))


RIGHT = {
    "news": lambda rng: losses(rng, lengths(rng, 200), 3.1) | {"vocabulary": 50257},
    "short texts": lambda rng: (
        losses(rng, lengths(rng, 6), 3, context=-0.3) | {"vocabulary": 32000}
    ),
    "texts of one token": lambda rng: losses(rng, np.ones(400), 3.5),
    "a trained model": lambda rng: losses(rng, lengths(rng, 300), 1.9, effect=0.5),
    "code": lambda rng: losses(rng, lengths(rng, 800, sd=1), 0.7, spread=0.5),
    "code in bfloat16": lambda rng: changed(
        losses(rng, np.full(400, 1024.0), 0.65, spread=0.2), to_bfloat16
    ),
    "characters": lambda rng: losses(rng, lengths(rng, 500), 1.3, spread=0.1) | {"vocabulary": 65},
    "a large vocabulary": lambda rng: losses(rng, lengths(rng, 60), 8.5) | {"vocabulary": 262144},
    "memorized members": memorized,
    "memorized short canaries and new long texts": lambda rng: concatenate(
        losses(rng, lengths(rng, 10, 150), 0.02), losses(rng, lengths(rng, 500), 2.8)
    ),
    "memorized canaries half as long as new texts": lambda rng: concatenate(
        losses(rng, lengths(rng, 10), 0.02), losses(rng, lengths(rng, 20), 4)
    ),
    "random canaries among texts": lambda rng: concatenate(
        losses(rng, np.full(20, 16.0), 13.5, spread=0.05), losses(rng, lengths(rng, 200), 2.6)
    ),
    "texts of three lengths and difficulties": lambda rng: concatenate(
        losses(rng, lengths(rng, 8, 150), 0.05),
        losses(rng, lengths(rng, 60, 150), 1),
        losses(rng, lengths(rng, 900, 150), 4),
    ),
    "zeros": lambda rng: changed(
        losses(rng, lengths(rng, 20), 0.01),
        lambda loss_MxN: np.where(loss_MxN < 0.008, 0, loss_MxN),
    ),
    "an untrained model": lambda rng: (
        changed(
            losses(rng, lengths(rng, 100), 1),
            lambda loss_MxN: np.log(50257) + 0.03 + rng.normal(0, 0.05, loss_MxN.shape),
        )
        | {"vocabulary": 50257}
    ),
    "rounded": lambda rng: changed(
        losses(rng, lengths(rng, 100), 0.5, spread=0.1), lambda loss_MxN: loss_MxN.round(2)
    ),
    "float16": lambda rng: changed(
        losses(rng, lengths(rng, 100), 0.5, spread=0.2),
        lambda loss_MxN: loss_MxN.astype(np.float16),
    ),
    "float32 below 1": lambda rng: changed(
        losses(rng, lengths(rng, 300), 0.3, spread=0.2),
        lambda loss_MxN: loss_MxN.astype(np.float32),
    ),
    "all above 1": lambda rng: losses(rng, lengths(rng, 400, 20000, sd=0.3), 2, spread=0.12),
    "harder long texts": lambda rng: losses(rng, lengths(rng, 200), 2.5, context=0.25),
    "few samples": lambda rng: losses(rng, lengths(rng, 100, 20), 3),
    "unknown lengths": lambda rng: losses(rng, lengths(rng, 100), 3) | {"tokens_N": None},
    "members from a harder source": members_from_a_harder_source,
}
_TEXTS = {"middle": 200.0, "level": 3.1}


def summed(rng: np.random.Generator, middle: float, level: float) -> dict[str, Any]:
    part = losses(rng, lengths(rng, middle), level)
    return changed(part, lambda loss_MxN: loss_MxN * part["tokens_N"])


def accuracies(rng: np.random.Generator, tokens_N: np.ndarray) -> dict[str, Any]:
    part = losses(rng, tokens_N, 1)
    chance_MxN = np.where(part["member_MxN"], 0.5, 0.45)
    correct_MxN = rng.binomial(tokens_N.astype(int) - 1, chance_MxN)
    return changed(part, lambda _: (correct_MxN / (tokens_N - 1)).astype(np.float32))


WRONG = {
    "sums": (lambda rng: summed(rng, 200, 3.1) | {"tokens_N": None}, "sums"),
    "sums with tokens": (lambda rng: summed(rng, 200, 3.1), "proportion to the tokens"),
    "sums of short code": (lambda rng: summed(rng, 12, 0.6), "proportion to the tokens"),
    "means over padded texts": (
        lambda rng: changed(summed(rng, 50, 3), lambda sum_MxN: sum_MxN / 512),
        "proportion to the tokens",
    ),
    "sums of one model": (
        lambda rng: changed(
            summed(rng, 12, 0.6), lambda sum_MxN: np.vstack([sum_MxN[:1], sum_MxN[1:] * 0 + 2])
        ),
        "losses of model 0 grow",
    ),
    "perplexities": (
        lambda rng: changed(losses(rng, lengths(rng, 200), 3.1), np.exp),
        "perplexities",
    ),
    "perplexities of code": (
        lambda rng: changed(losses(rng, lengths(rng, 100), 1.4, spread=0.5), np.exp),
        "perplexities",
    ),
    "perplexities of memorized texts": (
        lambda rng: changed(losses(rng, lengths(rng, 100), 0.06), np.exp),
        "none is below",
    ),
    "bits of an untrained model": (
        lambda rng: changed(
            losses(rng, lengths(rng, 100), 1),
            lambda loss_MxN: 15.6 + rng.normal(0, 0.05, loss_MxN.shape),
        ),
        "bits",
    ),
    "bits above the vocabulary": (
        lambda rng: (
            changed(losses(rng, lengths(rng, 100), 3.5), lambda loss_MxN: loss_MxN / np.log(2))
            | {"vocabulary": 65}
        ),
        "vocabulary",
    ),
    "accuracies": (lambda rng: accuracies(rng, lengths(rng, 60) + 5), "accuracies"),
    "accuracies of one length": (lambda rng: accuracies(rng, np.full(400, 128.0)), "accuracies"),
    "accuracies in percent": (
        lambda rng: changed(accuracies(rng, lengths(rng, 60) + 5), lambda share: 100 * share),
        "mean",
    ),
    "probabilities": (
        lambda rng: changed(losses(rng, lengths(rng, 60), 3), lambda loss_MxN: np.exp(-loss_MxN)),
        "probabilities",
    ),
}


def find_problems(part: dict[str, Any]) -> list[str]:
    names = [f"model {m}" for m in range(len(part["loss_MxN"]))]
    return loss_units.find_problems(names, **part)


@pytest.mark.parametrize("name", RIGHT)
def test_no_right_file_is_refused(name: str):
    for seed in range(20):
        assert find_problems(RIGHT[name](np.random.default_rng(seed))) == [], seed


@pytest.mark.parametrize("name", WRONG)
def test_losses_in_other_units_are_refused(name: str):
    make, word = WRONG[name]
    for seed in range(20):
        problems = find_problems(make(np.random.default_rng(seed)))
        assert any(word in problem for problem in problems), (seed, problems)


def test_the_message_names_the_file_and_the_flag():
    part = summed(np.random.default_rng(0), **_TEXTS)
    with pytest.raises(UserError, match=r"^FILE: .*\b6 models .*--losses-are-nats"):
        loss_units.check_units("FILE", ["m"] * M, **part)


def test_a_part_of_a_large_file_is_drawn_from_all_of_it():
    drawn_S = loss_units.draw_samples(10**6)
    assert drawn_S.size == loss_units.MAX_SAMPLES
    assert abs(drawn_S.mean() / 1e6 - 0.5) < 0.05
    np.testing.assert_array_equal(loss_units.draw_samples(30), np.arange(30))
