"""Warnings about targets whose membership may depend on properties of the samples."""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest

from lm_mia.attacks import target_warnings
from lm_mia.attacks.inputs import Block, covariate_names

N, M, T = 3000, 8, 5


@dataclasses.dataclass(frozen=True)
class OneBlock:
    """Samples that are read at a time."""

    block: Block

    def blocks(self) -> Iterator[Block]:
        yield self.block

    @property
    def num_samples(self) -> int:
        return len(self.block.covariate_CxK)


def draw(beta_T: list[float], *, of_mean: bool = False) -> OneBlock:
    """Draws losses; membership in each target depends on the covariate, or on what the losses have in common."""
    rng = np.random.default_rng(0)
    x_N, level_N = rng.normal(size=(2, N))
    column_N = level_N if of_mean else x_N
    share_BxN = 1 / (1 + np.exp(-np.outer([0.0] * M + beta_T, column_N)))
    member_BxN = rng.random(share_BxN.shape) < share_BxN
    loss_BxN = 4 + level_N - 0.3 * member_BxN + rng.normal(0, 0.3, member_BxN.shape)
    return OneBlock(
        Block(
            slice(0, N),
            loss_BxN[M:],
            loss_BxN[:M],
            member_BxN[:M],
            {},
            np.ones(N),
            x_N[:, None],
        )
    )


def test_unusual_targets_are_named_with_their_column():
    names = list("abcdef")
    assert not target_warnings.unusual_targets([draw([0.0, 0.0])], names[:2], ["length"])
    parts = [draw([0.0, 3.0]), draw([-3.0, 3.0, 3.0, 0.0])]
    [sentence] = target_warnings.unusual_targets(parts, names, ["length"])
    assert re.match(r".*\b4 of 6 targets \(b, c, d, \.\.\.\) .*\blength\b", sentence)
    [sentence] = target_warnings.unusual_targets([draw([3.0], of_mean=True)], ["a"], ["length"])
    assert "mean loss" in sentence


def test_members_that_are_unlike_non_members_are_named():
    rng = np.random.default_rng(1)
    x_Nx2 = rng.normal(size=(N, 2))
    random_N = rng.random(N) < 0.5
    unlike_N = rng.random(N) < np.where(x_Nx2[:, 1] > 0, 0.7, 0.3)
    columns = ["length", "words"]
    assert not target_warnings.unlike_classes(random_N[None], x_Nx2, ["a"], columns)
    [sentence] = target_warnings.unlike_classes(
        np.stack([random_N, unlike_N]), x_Nx2, ["a", "b"], columns
    )
    assert "1 of 2 targets (b) " in sentence
    # Differences of few samples may be chance; a class may be empty, and a covariate constant.
    few = np.argsort(~unlike_N)[[0, 1, 2, -1, -2, -3]]
    assert not target_warnings.unlike_classes(unlike_N[None, few], x_Nx2[few], ["a"], columns)
    assert not target_warnings.unlike_classes(np.ones((1, N), bool), x_Nx2, ["a"], columns)
    constant_Nx1 = np.full((N, 1), 0.1, np.float32)
    assert not target_warnings.unlike_classes(unlike_N[None], constant_Nx1, ["a"], ["length"])


def test_members_that_were_drawn_at_random_do_not_differ():
    rng = np.random.default_rng(3)
    value_Nx1 = rng.normal(size=(N, 1))
    random_N, longer_N = rng.random(N) < 0.5, value_Nx1[:, 0] + rng.normal(size=N) > 0
    assert not target_warnings.unlike_random(random_N[None], value_Nx1, ["a"], ["length"])
    [clause] = target_warnings.unlike_random(
        np.stack([random_N, longer_N]), value_Nx1, ["a", "b"], ["length"]
    )
    assert "1 of 2 targets (b) " in clause
    assert clause.endswith(" length")
    # One of ten members has an extreme value, by chance.
    few_N = np.arange(N) < 10
    extreme_Nx1 = np.where(np.arange(N) == 0, 1e6, rng.random(N))[:, None]
    assert target_warnings.unlike_classes(few_N[None], extreme_Nx1, ["a"], ["length"])
    assert not target_warnings.unlike_random(few_N[None], extreme_Nx1, ["a"], ["length"])
    assert not target_warnings.unlike_random(few_N[None], np.ones((N, 1)), ["a"], ["length"])


@pytest.mark.parametrize("has_tokens", [True, False])
def test_covariates_have_names_in_words(has_tokens: bool):
    columns = {"tokens": np.array([2.0, 3]) if has_tokens else np.full(2, np.nan)}
    columns |= {"zlib_bytes": np.array([5, 6]), "tfidf": np.full(2, np.nan)}
    names = ("length in tokens", "compressed bytes per token")
    assert covariate_names(columns.__getitem__) == (names if has_tokens else ("compressed bytes",))
