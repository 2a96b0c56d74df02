"""The rules of samples that are asked for one by one: for log-probabilities of their tokens, and for extraction."""

import collections
import math

from lm_mia import config

_TOKEN_SAMPLES = 2**13  # a window of the scorer: seconds


def tokens(c: config.Config) -> list[str]:
    """What is wrong with the samples whose tokens are stored."""
    ids, samples = collections.Counter(c.score.token_samples), c.population.samples
    odd = [i for i, times in ids.items() if times > 1 or not 0 <= i < samples]
    if not odd and len(ids) <= _TOKEN_SAMPLES:
        return []
    said = ", ".join(map(str, odd[:5])) + (", ..." if odd[5:] else "") or f"{len(ids)} samples"
    rule = f"must be at most {_TOKEN_SAMPLES} ids of samples, from 0 to population.samples - 1"
    return [f"score.token_samples: {said}: {rule} = {samples - 1}, none twice"]


def extraction(c: config.Config) -> list[str]:
    """What is wrong with what is to be extracted."""
    e, length = c.extract, c.population.length_tokens
    whole = e.prefix_tokens + e.suffix_tokens
    rules: list[tuple[bool, str, str]] = [
        (e.samples >= 0, "samples", "must be 0 or larger"),
        (e.prefix_tokens >= 1, "prefix_tokens", "must be 1 or larger"),
        (e.suffix_tokens >= 1, "suffix_tokens", "must be 1 or larger"),
        (
            not e.samples or whole <= length,
            "suffix_tokens",
            f"with extract.prefix_tokens={e.prefix_tokens} must be at most population.length_tokens={length}; try "
            f"--config.extract.prefix_tokens={length // 2} --config.extract.suffix_tokens={length // 2}",
        ),
        (
            e.temperature == 0 or 1e-6 <= e.temperature < math.inf,
            "temperature",
            "must be 0 (greedy), or a finite number of 1e-6 or larger",
        ),
        (e.top_k >= 0, "top_k", "must be 0 or larger"),
        (
            not e.samples or e.top_k <= max(c.tokenizer.vocab_size, 0),
            "top_k",
            f"must be at most tokenizer.vocab_size={c.tokenizer.vocab_size}; 0 for all pieces",
        ),
        (0 < e.top_p <= 1, "top_p", "must lie above 0 and be at most 1"),
        (e.generations >= 0, "generations", "must be 0 or larger"),
        (
            e.written_tokens == 0 or e.written_tokens >= e.suffix_tokens,
            "written_tokens",
            f"must be 0, or extract.suffix_tokens={e.suffix_tokens} or more",
        ),
        (
            not (e.samples and e.written_tokens) or e.prefix_tokens + e.written_tokens <= length,
            "written_tokens",
            f"with extract.prefix_tokens={e.prefix_tokens} must be at most population.length_tokens={length}",
        ),
    ]
    return [f"extract.{name}={getattr(e, name)!r}: {rule}" for ok, name, rule in rules if not ok]
