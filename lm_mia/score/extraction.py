"""Extraction: how well the first replica reproduces the samples with the highest membership scores.

The first tokens of a sample are the prefix and the next ones the suffix, both as the model was trained on them, <bos>
included: nothing is padded, decoded or tokenised again. Extraction is measured by the probability of the suffix
(`lm_mia.stats.extraction`), and by comparing the suffix with text that the model writes.

S: tokens of a suffix, B: samples of a call, V: pieces.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from lm_mia import config, seeds, stats
from lm_mia.atomic import EXTRACTION_JSON, write_completion_marker, write_csv
from lm_mia.data.documents import ProgressCallback
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import decoding, transformer

_TOKENS = 8192  # of a call
_PROBABILITIES = (0.1, 0.5, 0.9, 0.99, 0.999)
_MOST_QUERIES = 18  # powers of ten
_GREEDY, _SAMPLED = stats.SamplingScheme(temperature=0), stats.SamplingScheme()


def scored(path: Path) -> pd.DataFrame:
    """The samples of the tables, as `chosen` takes them; UserError if they cannot be read."""
    try:
        return pd.read_parquet(path, columns=["id", "member", "score"])
    except (OSError, ValueError) as error:  # of pyarrow too
        raise UserError(f"{path}: missing or damaged; run `lm-mia attack` again") from error


def chosen(samples: pd.DataFrame, population: Population, c: config.Extract) -> pd.DataFrame:
    """The samples that are asked for: id, member and score of those with the highest scores, best first.

    Args:
      samples: columns id, member and score; NaN scores are left out.
      population: samples too short for prefix and suffix are left out.
      c: how many, and how long.

    Raises:
      UserError: if no sample is long enough.
    """
    wanted = c.prefix_tokens + c.suffix_tokens
    long_enough = population.lengths_N[samples["id"]] >= wanted
    found = samples.loc[long_enough & samples["score"].notna(), ["id", "member", "score"]]
    if not len(found):
        raise UserError(
            f"extract.prefix_tokens={c.prefix_tokens}, extract.suffix_tokens={c.suffix_tokens}: no sample has "
            f"{wanted} tokens and a score; the longest has {population.lengths_N.max()}"
        )
    return found.sort_values(["score", "id"], ascending=[False, True]).head(c.samples)


def schemes(c: config.Extract) -> dict[str, stats.SamplingScheme]:
    """{name: scheme}: greedy, sampled (from the model itself), and chosen (by the config)."""
    asked = stats.SamplingScheme(c.temperature, c.top_k, c.top_p)
    return {"greedy": _GREEDY, "sampled": _SAMPLED, "chosen": asked}


def extract(
    params: transformer.Params,
    shape: transformer.ModelConfig,
    population: Population,
    samples: pd.DataFrame,
    c: config.Extract,
    progress: ProgressCallback,
) -> pd.DataFrame:
    """A row a sample: log probabilities of its suffix, and what became of it in written text.

    Args:
      params, shape: of the model.
      population: of which the samples are.
      samples: of `chosen`.
      c: what is asked for.
      progress: told of samples.

    Returns:
      ``samples`` with, for each of `schemes`, log_p_NAME (nats, -inf for never), exact_NAME (written at the place of
      the suffix), contained_NAME (anywhere in what was written) and overlap_NAME (length of the longest common
      subsequence of suffix and what was written, over S): of drawn texts the best of ``c.generations``, and none of
      the three where that is 0.
    """
    rows: list[dict[str, Any]] = []
    B = max(_TOKENS // (c.prefix_tokens + max(c.suffix_tokens, c.written_tokens)), 1)
    for low in range(0, len(samples), B):
        ids = samples["id"].to_numpy()[low : low + B]
        P, end = c.prefix_tokens, c.prefix_tokens + c.suffix_tokens
        x_BxT = np.stack([population.sample(i)[:end] for i in ids]).astype(np.int32)
        rows += probabilities(params, shape, x_BxT, c)
        for name, written in texts(params, shape, x_BxT[:, :P], ids, c).items():
            for row, suffix_S, of_sample in zip(rows[low:], x_BxT[:, P:], written, strict=True):
                found = [compared(suffix_S, text_G) for text_G in of_sample]
                for what in ("exact", "contained", "overlap"):
                    row[f"{what}_{name}"] = max(of[what] for of in found)
        progress("extract", min(low + B, len(samples)), len(samples))
    return pd.concat([samples.reset_index(drop=True), pd.DataFrame(rows)], axis=1)


def probabilities(
    params: transformer.Params, shape: transformer.ModelConfig, x_BxT: np.ndarray, c: config.Extract
) -> Iterator[dict[str, Any]]:
    """{log_p_NAME: nats} of every sample's suffix, each token given those before it; sums in float64."""
    P = c.prefix_tokens
    for x_T in x_BxT:  # logits of all pieces: one sample at a time
        logits_SxV = np.asarray(_logits(params, x_T[None], shape.dtype))[0, P - 1 : -1]
        yield {
            f"log_p_{name}": float(
                stats.suffix_log_prob(stats.token_log_probs(logits_SxV, x_T[P:], scheme))
            )
            for name, scheme in schemes(c).items()
        }


def texts(
    params: transformer.Params,
    shape: transformer.ModelConfig,
    prefix_BxP: np.ndarray,
    ids_B: np.ndarray,
    c: config.Extract,
) -> dict[str, list[list[np.ndarray]]]:
    """{name of a scheme: texts of every sample}: ``c.generations`` each, or one where nothing is drawn.

    What is drawn depends on the scheme's name, the sample's id and the number of the text alone.
    """
    tokens = c.written_tokens or c.suffix_tokens

    def write(name: str, scheme: stats.SamplingScheme, number: int) -> np.ndarray:
        drawn = seeds.rng(number, f"extraction, {name}").bit_generator.random_raw() >> 32
        key_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(int(drawn)), ids_B)
        return np.asarray(decoding.write(params, prefix_BxP, key_B, shape, tokens, scheme))

    written = {
        name: [write(name, scheme, n) for n in range(c.generations if scheme.temperature else 1)]
        for name, scheme in schemes(c).items()
    }
    return {
        name: [list(of) for of in zip(*texts, strict=True)]
        for name, texts in written.items()
        if texts
    }


def curves(found: pd.DataFrame) -> pd.DataFrame:
    """Shares of samples that are (n, p)-discoverably extractable: scheme, class, queries, probability, share."""
    rows = [
        {
            "scheme": name,
            "class": of,
            "queries": n,
            "probability": p,
            "share": stats.extraction_rate(samples[f"log_p_{name}"], n, p),
        }
        for name in ("greedy", "sampled", "chosen")
        for of, samples in (("members", found[found.member]), ("nonmembers", found[~found.member]))
        if len(samples)
        for p in _PROBABILITIES
        for n in (10**k for k in range(_MOST_QUERIES + 1))
    ]
    return pd.DataFrame(rows)


def write(folder: Path, found: pd.DataFrame, c: config.Extract, about: dict[str, Any]) -> None:
    """Writes extraction.csv, extraction_curves.csv and, last, extraction.json, which says what they are about.

    Args:
      folder: of the tables.
      found: of `extract`.
      c: what was asked for.
      about: which model, settings and scores the tables are about.
    """
    path = folder / EXTRACTION_JSON.name
    path.unlink(missing_ok=True)
    write_csv(folder / "extraction.csv", found)
    write_csv(folder / "extraction_curves.csv", curves(found))
    about = about | {"schemes": {name: str(scheme) for name, scheme in schemes(c).items()}}
    write_completion_marker(path, about, ["extraction.csv", "extraction_curves.csv"])


def summary(found: pd.DataFrame) -> str:
    """One line: the largest p_z, and how many samples are above 0.001."""
    log_p = found["log_p_sampled"]
    return (
        f"extraction: of the {len(found)} samples with the highest scores ({int(found.member.sum())} members), the "
        f"largest suffix probability is {np.exp(log_p.max()):.2g}, {int((log_p > np.log(1e-3)).sum())} are above 0.001"
    )


@functools.partial(jax.jit, static_argnames="dtype")
def _logits(params: transformer.Params, x_BxT: jax.Array, dtype: str) -> jax.Array:
    return transformer.forward(params, x_BxT, dtype)


def compared(suffix_S: np.ndarray, text_G: np.ndarray) -> dict[str, float]:
    """How much of a suffix a text has; see `extract`."""
    S = len(suffix_S)
    places = np.lib.stride_tricks.sliding_window_view(text_G, S) if len(text_G) >= S else ()
    return {
        "exact": float(np.array_equal(text_G[:S], suffix_S)),
        "contained": float(any(np.array_equal(place, suffix_S) for place in places)),
        "overlap": common_subsequence(suffix_S, text_G) / S,
    }


def common_subsequence(a_S: np.ndarray, b_G: np.ndarray) -> int:
    """Length of the longest common subsequence of tokens."""
    longest_G1 = np.zeros(len(b_G) + 1, np.int64)
    for token in a_S:
        diagonal = longest_G1[:-1] + (b_G == token)
        longest_G1[1:] = np.maximum.accumulate(np.maximum(longest_G1[1:], diagonal))
    return int(longest_G1[-1])
