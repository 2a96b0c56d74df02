from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_case import slow_case
from slow_model import parameters, slow_forward
from unoptimized import without_optimizations

from lm_mia import stats
from lm_mia.model import decoding
from lm_mia.model.transformer import ModelConfig, Params, TransformerLM, unstack_blocks

CONFIG = ModelConfig(layers=2, width=8, heads=2, vocab_size=11, length_tokens=12)
MODEL = TransformerLM(CONFIG)
GREEDY, SAMPLED = stats.SamplingScheme(temperature=0), stats.SamplingScheme()
KEYS = jax.random.split(jax.random.key(5), 6)
# Logits that are smaller than those of a trained model, and larger than those of a new one.
PARAMS: Params = jax.tree.map(lambda p: 3 * p, parameters(CONFIG))
pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture


def prefixes(B: int = 6, P: int = 4) -> np.ndarray:
    """Returns random prefixes; <eos> (1) and <unk> (3) inside them are tokens like any other."""
    x_BxP = np.random.default_rng(0).integers(0, 11, (B, P)).astype(np.int32)
    x_BxP[1, 2], x_BxP[2, 1] = 1, 3
    return x_BxP


def generate(
    prefix_BxP, key_B=KEYS, num_tokens: int = 8, scheme: stats.SamplingScheme = SAMPLED
) -> np.ndarray:
    return np.asarray(decoding.generate(MODEL, PARAMS, prefix_BxP, key_B, num_tokens, scheme))


def slow_generate(prefix_P: np.ndarray, num_tokens: int) -> list[int]:
    """Returns greedy text, for which everything is computed again for every token."""
    x = prefix_P
    for _ in range(num_tokens):
        x = np.append(x, slow_forward(PARAMS, x)[-1].argmax())
    return x[len(prefix_P) :].tolist()


@pytest.mark.parametrize("P", [1, 4, 7])
def test_greedy_text_equals_that_of_a_model_without_a_cache(P: int):
    x_BxP = prefixes(P=max(P, 3))[:, :P]
    text_BxG = generate(x_BxP, num_tokens=5, scheme=GREEDY)
    assert text_BxG.tolist() == [slow_generate(prefix_P, 5) for prefix_P in x_BxP]
    assert len({tuple(text) for text in text_BxG.tolist()}) > 1


@pytest.mark.parametrize("calls", [(4, 5), (1, 1, 7)])
def test_cached_activations_equal_those_of_one_call(calls: tuple[int, ...]):
    """This holds for any division of a sequence into calls. The cache counts all tokens."""
    x_BxT = prefixes(P=9)
    decoder, params = MODEL.clone(decode=True), unstack_blocks(PARAMS)
    cache: Any = decoding.empty_cache(decoder, len(x_BxT), 12)

    @jax.jit
    def call(cache: Any, x_BxL: Any, positions_BxL: Any) -> Any:
        variables = {"params": params, "cache": cache}
        return decoder.apply(variables, x_BxL, None, positions_BxL, mutable=["cache"])

    low, parts = 0, []
    for size in calls:
        positions = np.broadcast_to(np.arange(low, low + size), (len(x_BxT), size))
        logits, updated = call(cache, x_BxT[:, low : low + size], positions)
        cache, low = updated["cache"], low + size
        parts.append(logits)
    expected = jax.jit(MODEL.apply)({"params": PARAMS}, x_BxT)
    np.testing.assert_allclose(np.concatenate(parts, 1), np.asarray(expected), atol=5e-4)
    for attn in (cache["blocks_0"]["attn"], cache["blocks_1"]["attn"]):
        assert attn["cache_index"] == 9
        assert attn["cached_key"].shape == attn["cached_value"].shape == (6, 12, 2, 4)


SCHEMES = [
    GREEDY,
    SAMPLED,
    stats.SamplingScheme(0.7),
    stats.SamplingScheme(1.3, 4),
    stats.SamplingScheme(1, 0, 0.6),
    stats.SamplingScheme(0.8, 5, 0.7),
]
# Filters act on the logits of one sample alone, which another test compares with their definition.
MORE_SCHEMES = [slow_case(scheme) for scheme in SCHEMES[2:-1]]
MANY = 4000


def generate_many(x_BxP: np.ndarray, keys_B: jax.Array, scheme: stats.SamplingScheme) -> np.ndarray:
    """Generates three tokens after MANY prefixes: one shape for all tests, so that each scheme is compiled once."""
    assert len(x_BxP) == len(keys_B) == MANY
    return generate(x_BxP, keys_B, 3, scheme)


@pytest.mark.parametrize("scheme", [GREEDY, SAMPLED, SCHEMES[-1], *MORE_SCHEMES], ids=str)
def test_a_text_does_not_depend_on_the_other_samples(scheme: stats.SamplingScheme):
    """It depends neither on their contents nor on their order; samples may occur more than once."""
    x_BxP, keys_B = np.resize(prefixes(), (MANY, 4)), jax.random.split(jax.random.key(5), MANY)
    expected = generate_many(x_BxP, keys_B, scheme)
    order = np.random.default_rng(1).integers(0, MANY, MANY)
    assert len(set(order.tolist())) < 0.7 * MANY
    np.testing.assert_array_equal(
        generate_many(x_BxP[order], keys_B[order], scheme), expected[order]
    )


@pytest.mark.parametrize("order", [([3], [0]), ([5, 0, 2], [4, 4, 1])], ids=["1", "3"])
def test_a_text_does_not_depend_on_the_number_of_samples(order: tuple[list[int], list[int]]):
    expected = generate(prefixes())
    for ids in order:
        part = generate(prefixes()[ids], KEYS[np.array(ids)])
        np.testing.assert_array_equal(part, expected[ids])


def test_a_longer_text_begins_like_a_shorter_one():
    short, long = (generate(prefixes(), num_tokens=n) for n in (3, 8))
    np.testing.assert_array_equal(long[:, :3], short)


@pytest.mark.montecarlo
@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_tokens_are_drawn_with_the_probabilities_of_the_scheme(scheme: stats.SamplingScheme):
    """Pairs of tokens after one prefix, 4,000 times, within 5 standard deviations; never an impossible pair."""
    prefix_P, keys_B = prefixes()[1], jax.random.split(jax.random.key(1), MANY)
    text_Bx3 = generate_many(np.tile(prefix_P, (MANY, 1)), keys_B, scheme)

    def probabilities(x_L: np.ndarray) -> np.ndarray:
        logits_V = slow_forward(PARAMS, x_L)[-1]
        return np.exp(stats.token_log_probs(np.tile(logits_V, (11, 1)), np.arange(11), scheme))

    first_V = probabilities(prefix_P)
    p_VxV = np.stack([p * probabilities(np.append(prefix_P, a)) for a, p in enumerate(first_V)])
    frequency_VxV = np.zeros((11, 11))
    np.add.at(frequency_VxV, (text_Bx3[:, 0], text_Bx3[:, 1]), 1 / MANY)
    assert (frequency_VxV[p_VxV == 0] == 0).all()
    tolerance_VxV = 5 * (p_VxV * (1 - p_VxV) / MANY) ** 0.5 + 1 / MANY
    assert (np.abs(frequency_VxV - p_VxV) <= tolerance_VxV).all()


@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=str)
def test_filtered_logits_equal_the_definition_in_stats(scheme: stats.SamplingScheme):
    """Including ties, with the k-th token and where top_p is reached."""
    logits_BxV = np.random.default_rng(4).integers(-2, 3, (200, 9)).astype(np.float32)
    scaled_BxV = jnp.asarray(logits_BxV) / scheme.temperature
    log_p_BxV = np.asarray(jax.nn.log_softmax(decoding.filter_logits(scaled_BxV, scheme)))
    for logits_V, log_p_V in zip(logits_BxV, log_p_BxV, strict=True):
        expected_V = stats.token_log_probs(np.tile(logits_V, (9, 1)), np.arange(9), scheme)
        np.testing.assert_allclose(log_p_V, expected_V, atol=1e-5)


def test_a_text_longer_than_the_model_allows_is_refused():
    with pytest.raises(ValueError, match=r"P \+ G = 4 \+ 9: .*length_tokens=12"):
        generate(prefixes(), num_tokens=9)
