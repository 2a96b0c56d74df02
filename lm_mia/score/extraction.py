"""Extraction: how well the first replica reproduces the samples with the highest membership scores.

The first tokens of a sample are the prefix, and the next ones the suffix. Both are the tokens that the model was
trained on, including <bos>: nothing is padded, decoded or tokenized again. Extraction is measured by the probability of
the suffix (`lm_mia.stats.suffix_log_prob`), and by comparing the suffix with texts that the model generates.

B: samples per call, P: tokens of a prefix, S: tokens of a suffix, T = P + S, G: tokens of a generated text,
V: tokens in the vocabulary.
"""

import dataclasses
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

_CALL_TOKENS = 8192
_PROBABILITIES = (0.1, 0.5, 0.9, 0.99, 0.999)
_MAX_QUERIES_EXPONENT = 18  # curves have 1, 10, ..., 10^18 queries
_GREEDY, _SAMPLED = stats.SamplingScheme(temperature=0), stats.SamplingScheme()


def read_membership_scores(path: Path) -> pd.DataFrame:
    """Reads the columns id, member and score of the attack's table of samples.

    Raises:
      UserError: if the table is missing or cannot be read.
    """
    try:
        return pd.read_parquet(path, columns=["id", "member", "score"])
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise UserError(f"{path}: missing or damaged; run `lm-mia attack` again") from error


def select_samples(
    samples: pd.DataFrame, population: Population, extract_config: config.Extract
) -> pd.DataFrame:
    """Selects the samples with the highest membership scores.

    Args:
      samples: columns id, member and score. Samples whose score is NaN are left out.
      population: gives the samples' lengths. Samples too short for prefix and suffix are left out.
      extract_config: the number of samples, and the lengths of prefix and suffix.

    Returns:
      id, member and score of at most ``extract_config.samples`` samples, by decreasing score; ties by increasing id.

    Raises:
      UserError: if no sample is long enough and has a score.
    """
    prefix_tokens, suffix_tokens = extract_config.prefix_tokens, extract_config.suffix_tokens
    min_tokens = prefix_tokens + suffix_tokens
    is_long_enough = population.lengths_N[samples["id"]] >= min_tokens
    selected = samples.loc[is_long_enough & samples["score"].notna(), ["id", "member", "score"]]
    if not len(selected):
        raise UserError(
            f"extract.prefix_tokens={prefix_tokens}, extract.suffix_tokens={suffix_tokens}: no sample has {min_tokens} "
            f"tokens and a membership score (the longest sample has {population.lengths_N.max()} tokens); lower one of "
            "the two"
        )
    ranked = selected.sort_values(["score", "id"], ascending=[False, True])
    return ranked.head(extract_config.samples)


def sampling_schemes(extract_config: config.Extract) -> dict[str, stats.SamplingScheme]:
    """Returns the sampling schemes by name: "greedy", "sampled" (from the model itself), "chosen" (by the config)."""
    chosen = stats.SamplingScheme(
        extract_config.temperature, extract_config.top_k, extract_config.top_p
    )
    return {"greedy": _GREEDY, "sampled": _SAMPLED, "chosen": chosen}


def extract(
    params: transformer.Params,
    model: transformer.TransformerLM,
    population: Population,
    samples: pd.DataFrame,
    extract_config: config.Extract,
    progress: ProgressCallback,
) -> pd.DataFrame:
    """Measures how well a model reproduces the suffix of each sample.

    Args:
      params: parameters of the model.
      model: the model.
      population: the samples' tokens.
      samples: result of `select_samples`.
      extract_config: lengths, sampling scheme and number of generated texts.
      progress: called as ``progress("extract", samples_done, samples)``.

    Returns:
      ``samples`` with the following columns for each NAME of `sampling_schemes`:

        log_p_NAME: log-probability of the suffix in nats; -inf if it is never generated.
        exact_NAME: 1 if a generated text begins with the suffix.
        contained_NAME: 1 if a generated text contains the suffix.
        overlap_NAME: length of the longest common subsequence of suffix and generated text, over S.

      With several generated texts per sample, the last three are those of the best of ``extract_config.generations``
      texts. If this number is 0, they are absent for schemes that draw at random.
    """
    rows: list[dict[str, Any]] = []
    P = extract_config.prefix_tokens
    T = P + extract_config.suffix_tokens
    generated_tokens = max(extract_config.suffix_tokens, extract_config.written_tokens)
    B = max(_CALL_TOKENS // (P + generated_tokens), 1)
    for low in range(0, len(samples), B):
        ids_B = samples["id"].to_numpy()[low : low + B]
        x_BxT = np.stack([population.sample(i)[:T] for i in ids_B]).astype(np.int32)
        rows += suffix_log_probs(params, model, x_BxT, extract_config)
        texts_by_scheme = generate_texts(params, model, x_BxT[:, :P], ids_B, extract_config)
        for name, texts_B in texts_by_scheme.items():
            for row, suffix_S, texts in zip(rows[low:], x_BxT[:, P:], texts_B, strict=True):
                comparisons = [compare_with_suffix(suffix_S, text_G) for text_G in texts]
                for measure in ("exact", "contained", "overlap"):
                    row[f"{measure}_{name}"] = max(c[measure] for c in comparisons)
        progress("extract", min(low + B, len(samples)), len(samples))
    return pd.concat([samples.reset_index(drop=True), pd.DataFrame(rows)], axis=1)


def suffix_log_probs(
    params: transformer.Params,
    model: transformer.TransformerLM,
    x_BxT: np.ndarray,
    extract_config: config.Extract,
) -> Iterator[dict[str, Any]]:
    """Yields {log_p_NAME: nats} for each sample: the log-probability of its suffix, summed over its tokens in
    float64."""
    P = extract_config.prefix_tokens
    for x_T in x_BxT:  # one sample at a time, since each token has V logits
        logits_SxV = np.asarray(_logits(model, params, x_T[None]))[0, P - 1 : -1]
        yield {
            f"log_p_{name}": float(
                stats.suffix_log_prob(stats.token_log_probs(logits_SxV, x_T[P:], scheme))
            )
            for name, scheme in sampling_schemes(extract_config).items()
        }


def generate_texts(
    params: transformer.Params,
    model: transformer.TransformerLM,
    prefix_BxP: np.ndarray,
    ids_B: np.ndarray,
    extract_config: config.Extract,
) -> dict[str, list[list[np.ndarray]]]:
    """Generates texts that continue the samples' prefixes.

    Random draws depend only on the scheme's name, the sample's id and the number of the text.

    Returns:
      {name of a scheme: texts_G of each sample}: ``extract_config.generations`` texts per sample, or one if the scheme
      is deterministic. Schemes without texts are absent.
    """
    G = extract_config.written_tokens or extract_config.suffix_tokens

    def generate(name: str, scheme: stats.SamplingScheme, number: int) -> np.ndarray:
        bits = seeds.rng(number, f"extraction, {name}").bit_generator.random_raw() >> 32
        key_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(int(bits)), ids_B)
        return np.asarray(decoding.generate(model, params, prefix_BxP, key_B, G, scheme))

    texts_by_scheme = {}
    for name, scheme in sampling_schemes(extract_config).items():
        num_texts = extract_config.generations if scheme.temperature else 1
        if num_texts:
            texts_BxG_by_number = [generate(name, scheme, number) for number in range(num_texts)]
            texts_by_scheme[name] = [
                list(texts) for texts in zip(*texts_BxG_by_number, strict=True)
            ]
    return texts_by_scheme


def extraction_curves(results: pd.DataFrame) -> pd.DataFrame:
    """Computes the shares of samples that are (n, p)-discoverably extractable.

    Args:
      results: result of `extract`.

    Returns:
      Columns scheme, class, queries (n), probability (p), share and left_out.
    """
    classes = {"members": results[results.member], "nonmembers": results[~results.member]}
    rows = [
        {
            "scheme": name,
            "class": class_name,
            "queries": n,
            "probability": p,
        }
        | dataclasses.asdict(stats.extraction_rate(samples[f"log_p_{name}"], n, p))
        for name in ("greedy", "sampled", "chosen")
        for class_name, samples in classes.items()
        if len(samples)
        for p in _PROBABILITIES
        for n in (10**k for k in range(_MAX_QUERIES_EXPONENT + 1))
    ]
    return pd.DataFrame(rows)


def write_tables(
    tables_dir: Path,
    results: pd.DataFrame,
    extract_config: config.Extract,
    inputs: dict[str, Any],
) -> None:
    """Writes extraction.csv and extraction_curves.csv and, last, extraction.json, which describes them.

    Args:
      tables_dir: folder of the recipe's tables.
      results: result of `extract`.
      extract_config: the settings of the extraction.
      inputs: the model, settings and membership scores from which the tables were computed.
    """
    path = tables_dir / EXTRACTION_JSON.name
    path.unlink(missing_ok=True)
    write_csv(tables_dir / "extraction.csv", results)
    write_csv(tables_dir / "extraction_curves.csv", extraction_curves(results))
    schemes = {name: str(scheme) for name, scheme in sampling_schemes(extract_config).items()}
    write_completion_marker(
        path, inputs | {"schemes": schemes}, ["extraction.csv", "extraction_curves.csv"]
    )


def summary(results: pd.DataFrame) -> str:
    """Returns one line with the largest suffix probability and the number of samples above 0.001."""
    log_p = results["log_p_sampled"]
    num_above = int((log_p > np.log(1e-3)).sum())
    return (
        f"extraction: {len(results)} samples with the highest membership scores ({int(results.member.sum())} members); "
        f"largest suffix probability {np.exp(log_p.max()):.2g}; suffix probability above 0.001 for {num_above}"
    )


@functools.partial(jax.jit, static_argnames="model")
def _logits(
    model: transformer.TransformerLM, params: transformer.Params, x_BxT: jax.Array
) -> jax.Array:
    logits_BxTxV: Any = model.apply({"params": params}, x_BxT)
    return logits_BxTxV


def compare_with_suffix(suffix_S: np.ndarray, text_G: np.ndarray) -> dict[str, float]:
    """Returns the measures "exact", "contained" and "overlap" of a generated text; see `extract`."""
    S = len(suffix_S)
    windows = np.lib.stride_tricks.sliding_window_view(text_G, S) if len(text_G) >= S else ()
    return {
        "exact": float(np.array_equal(text_G[:S], suffix_S)),
        "contained": float(any(np.array_equal(window_S, suffix_S) for window_S in windows)),
        "overlap": longest_common_subsequence(suffix_S, text_G) / S,
    }


def longest_common_subsequence(a_S: np.ndarray, b_G: np.ndarray) -> int:
    """Returns the length of the longest common subsequence of two token sequences."""
    longest_G1 = np.zeros(len(b_G) + 1, np.int64)
    for token in a_S:
        diagonal = longest_G1[:-1] + (b_G == token)
        longest_G1[1:] = np.maximum.accumulate(np.maximum(longest_G1[1:], diagonal))
    return int(longest_G1[-1])
