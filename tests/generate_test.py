import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lm_mia import generate, model
from lm_mia.stats.extraction import Scheme, token_log_probs

SHAPE = model.Shape(layers=2, width=8, heads=2, vocab_size=11, length_tokens=12)
GREEDY, SAMPLED = Scheme(temperature=0), Scheme()
KEYS = jax.random.split(jax.random.key(5), 6)


@pytest.fixture(scope="module")
def params() -> model.Params:
    """Less sure of itself than after training, and less unsure than when fresh."""
    return jax.tree.map(lambda p: 3 * p, model.init(jax.random.key(0), SHAPE))


def prefixes(B: int = 6, P: int = 4) -> np.ndarray:
    """<eos> (1) and <unk> (3) inside them are tokens like any other."""
    x_BxP = np.random.default_rng(0).integers(0, 11, (B, P)).astype(np.int32)
    x_BxP[1, 2], x_BxP[2, 1] = 1, 3
    return x_BxP


def slow(params: model.Params, prefix_P: np.ndarray, tokens: int) -> list[int]:
    """Everything computed anew for every token."""
    x = prefix_P.tolist()
    for _ in range(tokens):
        logits_V = np.asarray(model.forward(params, jnp.array([x])))[0, -1]
        x.append(int(logits_V.argmax()))
    return x[len(prefix_P) :]


@pytest.mark.parametrize("P", [1, 4, 7])
def test_greedy_text_is_that_of_a_model_without_a_cache(params: model.Params, P: int):
    x_BxP = prefixes(P=max(P, 3))[:, :P]
    written_BxG = generate.write(params, x_BxP, KEYS, SHAPE, 5, GREEDY)
    assert written_BxG.tolist() == [slow(params, prefix_P, 5) for prefix_P in x_BxP]
    assert len({tuple(text) for text in written_BxG.tolist()}) > 1


SCHEMES = [GREEDY, SAMPLED, Scheme(0.7), Scheme(1.3, 4), Scheme(1, 0, 0.6), Scheme(0.8, 5, 0.7)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_written_does_not_depend_on_the_others(params: model.Params, scheme: Scheme):
    x_BxP = prefixes()
    whole = np.asarray(generate.write(params, x_BxP, KEYS, SHAPE, 8, scheme))
    for order in ([3], [5, 0, 2], [4, 4, 1]):
        part = generate.write(params, x_BxP[order], KEYS[np.array(order)], SHAPE, 8, scheme)
        np.testing.assert_array_equal(part, whole[order])


def test_longer_text_begins_like_shorter(params: model.Params):
    short, long = (
        np.asarray(generate.write(params, prefixes(), KEYS, SHAPE, n, SAMPLED)) for n in (3, 8)
    )
    np.testing.assert_array_equal(long[:, :3], short)


@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_tokens_are_drawn_as_often_as_the_scheme_says(params: model.Params, scheme: Scheme):
    """Pairs of tokens after one prefix, drawn 4,000 times: never one that cannot be; 5 standard deviations."""
    n, prefix_P = 4000, prefixes()[1]
    keys = jax.random.split(jax.random.key(1), n)
    drawn_Nx2 = np.asarray(
        generate.write(params, np.tile(prefix_P, (n, 1)), keys, SHAPE, 2, scheme)
    )
    every_V = np.arange(11)
    logits_V = np.asarray(model.forward(params, prefix_P[None])[0, -1])
    first_V = np.exp(token_log_probs(np.tile(logits_V, (11, 1)), every_V, scheme))
    for a in range(11):
        after = jnp.append(prefix_P, a)[None]
        logits_V = np.asarray(model.forward(params, after)[0, -1])
        second_V = np.exp(token_log_probs(np.tile(logits_V, (11, 1)), every_V, scheme))
        for b in range(11):
            p = float(first_V[a] * second_V[b])
            seen = ((drawn_Nx2[:, 0] == a) & (drawn_Nx2[:, 1] == b)).mean()
            assert (seen == 0) if p == 0 else abs(seen - p) <= 5 * (p * (1 - p) / n) ** 0.5 + 1 / n


@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_the_pieces_that_are_kept_are_those_of_the_statistics(scheme: Scheme):
    """Ties included: of the k-th, and where top_p is reached."""
    logits_BxV = np.random.default_rng(4).integers(-2, 3, (200, 9)).astype(np.float32)
    scaled_BxV = jnp.asarray(logits_BxV) / scheme.temperature
    found_BxV = jax.nn.log_softmax(generate.kept(scaled_BxV, scheme))
    for logits_V, found_V in zip(logits_BxV, np.asarray(found_BxV), strict=True):
        expected_V = token_log_probs(np.tile(logits_V, (9, 1)), np.arange(9), scheme)
        np.testing.assert_allclose(found_V, expected_V, atol=1e-5)


def test_text_longer_than_the_model_takes_is_refused(params: model.Params):
    with pytest.raises(ValueError, match="4 \\+ 9 tokens: the model takes 12"):
        generate.write(params, prefixes(), KEYS, SHAPE, 9, GREEDY)
