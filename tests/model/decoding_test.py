import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quickly_compiled
from slow_model import parameters, slow_forward

from lm_mia import stats
from lm_mia.model import decoding, transformer

SHAPE = transformer.ModelConfig(layers=2, width=8, heads=2, vocab_size=11, length_tokens=12)
GREEDY, SAMPLED = stats.SamplingScheme(temperature=0), stats.SamplingScheme()
KEYS = jax.random.split(jax.random.key(5), 6)
# Less sure of itself than after training, and less unsure than when fresh.
PARAMS: transformer.Params = jax.tree.map(lambda p: 3 * p, parameters(SHAPE))
pytestmark = pytest.mark.usefixtures("quickly_compiled")
__all__ = ["quickly_compiled"]  # a fixture


def prefixes(B: int = 6, P: int = 4) -> np.ndarray:
    """<eos> (1) and <unk> (3) inside them are tokens like any other."""
    x_BxP = np.random.default_rng(0).integers(0, 11, (B, P)).astype(np.int32)
    x_BxP[1, 2], x_BxP[2, 1] = 1, 3
    return x_BxP


def slow(prefix_P: np.ndarray, tokens: int) -> list[int]:
    """Everything computed anew for every token."""
    x = prefix_P
    for _ in range(tokens):
        x = np.append(x, slow_forward(PARAMS, x)[-1].argmax())
    return x[len(prefix_P) :].tolist()


@pytest.mark.parametrize("P", [1, 4, 7])
def test_greedy_text_is_that_of_a_model_without_a_cache(P: int):
    x_BxP = prefixes(P=max(P, 3))[:, :P]
    written_BxG = decoding.write(PARAMS, x_BxP, KEYS, SHAPE, 5, GREEDY)
    assert written_BxG.tolist() == [slow(prefix_P, 5) for prefix_P in x_BxP]
    assert len({tuple(text) for text in written_BxG.tolist()}) > 1


SCHEMES = [
    GREEDY,
    SAMPLED,
    stats.SamplingScheme(0.7),
    stats.SamplingScheme(1.3, 4),
    stats.SamplingScheme(1, 0, 0.6),
    stats.SamplingScheme(0.8, 5, 0.7),
]
MANY = 4000


def many(x_BxP: np.ndarray, keys_B: jax.Array, scheme: stats.SamplingScheme) -> np.ndarray:
    """Three tokens after each of MANY prefixes: one shape for all tests, so that each scheme is compiled once."""
    assert len(x_BxP) == len(keys_B) == MANY
    return np.asarray(decoding.write(PARAMS, x_BxP, keys_B, SHAPE, 3, scheme))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_written_does_not_depend_on_the_others(scheme: stats.SamplingScheme):
    """Neither on which they are, nor on where among them a sample is; one comes twice."""
    x_BxP, keys_B = np.resize(prefixes(), (MANY, 4)), jax.random.split(jax.random.key(5), MANY)
    whole = many(x_BxP, keys_B, scheme)
    order = np.random.default_rng(1).integers(0, MANY, MANY)
    assert len(set(order.tolist())) < 0.7 * MANY
    np.testing.assert_array_equal(many(x_BxP[order], keys_B[order], scheme), whole[order])


@pytest.mark.parametrize("B", [1, 3])
def test_what_is_written_does_not_depend_on_how_many_there_are(B: int):
    whole = np.asarray(decoding.write(PARAMS, prefixes(), KEYS, SHAPE, 8, SAMPLED))
    for order in {1: ([3], [0]), 3: ([5, 0, 2], [4, 4, 1])}[B]:
        part = decoding.write(PARAMS, prefixes()[order], KEYS[np.array(order)], SHAPE, 8, SAMPLED)
        np.testing.assert_array_equal(part, whole[order])


def test_longer_text_begins_like_shorter():
    short, long = (
        np.asarray(decoding.write(PARAMS, prefixes(), KEYS, SHAPE, n, SAMPLED)) for n in (3, 8)
    )
    np.testing.assert_array_equal(long[:, :3], short)


@pytest.mark.montecarlo
@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_tokens_are_drawn_as_often_as_the_scheme_says(scheme: stats.SamplingScheme):
    """Pairs of tokens after one prefix, drawn 4,000 times: never one that cannot be; 5 standard deviations."""
    prefix_P, keys_B = prefixes()[1], jax.random.split(jax.random.key(1), MANY)
    drawn_Bx3 = many(np.tile(prefix_P, (MANY, 1)), keys_B, scheme)

    def probabilities(x_L: np.ndarray) -> np.ndarray:
        logits_V = slow_forward(PARAMS, x_L)[-1]
        return np.exp(stats.token_log_probs(np.tile(logits_V, (11, 1)), np.arange(11), scheme))

    first_V = probabilities(prefix_P)
    p_VxV = np.stack([p * probabilities(np.append(prefix_P, a)) for a, p in enumerate(first_V)])
    seen_VxV = np.zeros((11, 11))
    np.add.at(seen_VxV, (drawn_Bx3[:, 0], drawn_Bx3[:, 1]), 1 / MANY)
    assert (seen_VxV[p_VxV == 0] == 0).all()
    assert (np.abs(seen_VxV - p_VxV) <= 5 * (p_VxV * (1 - p_VxV) / MANY) ** 0.5 + 1 / MANY).all()


@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_the_pieces_that_are_kept_are_those_of_the_statistics(scheme: stats.SamplingScheme):
    """Ties included: of the k-th, and where top_p is reached."""
    logits_BxV = np.random.default_rng(4).integers(-2, 3, (200, 9)).astype(np.float32)
    scaled_BxV = jnp.asarray(logits_BxV) / scheme.temperature
    found_BxV = jax.nn.log_softmax(decoding.kept(scaled_BxV, scheme))
    for logits_V, found_V in zip(logits_BxV, np.asarray(found_BxV), strict=True):
        expected_V = stats.token_log_probs(np.tile(logits_V, (9, 1)), np.arange(9), scheme)
        np.testing.assert_allclose(found_V, expected_V, atol=1e-5)


def test_text_longer_than_the_model_takes_is_refused():
    with pytest.raises(ValueError, match="4 \\+ 9 tokens: the model takes 12"):
        decoding.write(PARAMS, prefixes(), KEYS, SHAPE, 9, GREEDY)
