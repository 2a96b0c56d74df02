"""Extraction: how well the first replica reproduces the samples with the highest membership scores, or random ones.

The first tokens of a sample are the prefix, and the next ones the suffix. Both are the tokens that the model was
trained on, including <bos>: nothing is padded or tokenized again. Extraction is measured by the probability of the
suffix (`lm_mia.stats.suffix_log_prob`), and by comparing the suffix with texts that the model generates, both as tokens
and as decoded texts.

B: samples per call, P: tokens of a prefix, S: tokens of a suffix, L = P + S, G: tokens of a generated text,
V: tokens in the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd

from lm_mia import config, seeds, stats
from lm_mia.data.documents import ProgressCallback
from lm_mia.data.population import Population
from lm_mia.errors import UserError
from lm_mia.model import decoding, transformer

_CALL_TOKENS = 8192
_PROBABILITIES = (0.1, 0.5, 0.9, 0.99, 0.999)
_MAX_QUERIES_EXPONENT = 18  # curves have 1, 10, ..., 10^18 queries
_OVERLAP, _LIKELY = 0.8, (0.5, 0.01)  # thresholds of PrivacyGuard's Table 4
_GREEDY, _SAMPLED = stats.SamplingScheme(temperature=0), stats.SamplingScheme()


def select_samples(
    samples: pd.DataFrame, population: Population, extract_config: config.Extract
) -> pd.DataFrame:
    """Selects the samples with the highest membership scores, or random members and non-members.

    Args:
      samples: columns id, member and score. Samples whose score is NaN are never among the highest scores.
      population: gives the samples' lengths. Samples too short for prefix and suffix are left out.
      extract_config: the number of samples and how to choose them, and the lengths of prefix and suffix.

    Returns:
      id, member and score of at most ``extract_config.samples`` samples, by decreasing score; ties by increasing id,
      and those without a score last. With ``choose="random"``, half of them are members, and each class is a uniform
      draw without replacement from all samples of the class that are long enough.

    Raises:
      UserError: if no sample is long enough, or none of these has a score although the highest are requested.
    """
    prefix_tokens, suffix_tokens = extract_config.prefix_tokens, extract_config.suffix_tokens
    min_tokens, is_random = prefix_tokens + suffix_tokens, extract_config.choose == "random"
    is_long_enough = population.lengths_N[samples["id"]] >= min_tokens
    eligible = samples.loc[
        is_long_enough & (samples["score"].notna() | is_random), ["id", "member", "score"]
    ]
    if not len(eligible):
        raise UserError(
            f"extract.prefix_tokens={prefix_tokens}, extract.suffix_tokens={suffix_tokens}: no sample has {min_tokens} "
            f"tokens{'' if is_random else ' and a membership score'} (the longest sample has "
            f"{population.lengths_N.max()} tokens); lower one of the two"
        )
    if is_random:
        eligible = _draw_classes(eligible, extract_config.samples)
    ranked = eligible.sort_values(["score", "id"], ascending=[False, True])
    return ranked.head(extract_config.samples)


def _draw_classes(eligible: pd.DataFrame, num_samples: int) -> pd.DataFrame:
    """Draws half of the samples from the members and half from the non-members, or all of a class that is smaller."""
    classes = []
    for is_member, number in ((True, num_samples - num_samples // 2), (False, num_samples // 2)):
        samples = eligible[eligible["member"] == is_member]
        purpose = f"extraction, {'members' if is_member else 'non-members'}"
        classes.append(
            samples.iloc[seeds.draw(0, purpose, len(samples), min(number, len(samples)))]
        )
    return pd.concat(classes)


def sampling_schemes(extract_config: config.Extract) -> dict[str, stats.SamplingScheme]:
    """Returns the sampling schemes by name: "greedy", "sampled" (from the model itself), "chosen" (by the config)."""
    chosen = stats.SamplingScheme(
        extract_config.temperature, config.number(extract_config.top_k), extract_config.top_p
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
      ``samples`` with the column in_prompt, 1 if the text of the suffix is also in the text of the prefix, so that a
      model can copy it, and the following columns for each NAME of `sampling_schemes`:

        log_p_NAME: log-probability of the suffix in nats; -inf if it is never generated.
        exact_NAME: 1 if a generated text begins with the suffix.
        contained_NAME: 1 if a generated text contains the suffix.
        overlap_NAME: length of the longest common subsequence of suffix and generated text, over S.
        included_NAME, substring_NAME, edit_NAME: similarity of the decoded texts, as in `compare_texts`.

      With several generated texts per sample, all but log_p_NAME are those of the best of
      ``extract_config.generations`` texts. If this number is 0, they are absent for schemes that draw at random. Texts
      are compared after `stats.clean_text`. If nothing remains of the suffix, in_prompt and the similarities of texts
      are NaN.
    """
    rows: list[dict[str, Any]] = []

    def decode(tokens_BxS: Iterable[np.ndarray]) -> list[str]:
        texts_B = population.tokenizer.decode_batch([tokens.tolist() for tokens in tokens_BxS])
        return [stats.clean_text(text) for text in texts_B]

    P = extract_config.prefix_tokens
    L = P + extract_config.suffix_tokens
    generated_tokens = max(
        extract_config.suffix_tokens, config.number(extract_config.written_tokens)
    )
    B = max(_CALL_TOKENS // (P + generated_tokens), 1)
    for low in range(0, len(samples), B):
        ids_B = samples["id"].to_numpy()[low : low + B]
        x_BxL = np.stack([population.sample(i)[:L] for i in ids_B]).astype(np.int32)
        prompts_B, targets_B = decode(x_BxL[:, :P]), decode(x_BxL[:, P:])
        in_prompt_B = map(stats.is_included, targets_B, prompts_B)
        log_probs_B = suffix_log_probs(params, model, x_BxL, extract_config)
        rows += [{"in_prompt": i} | p for i, p in zip(in_prompt_B, log_probs_B, strict=True)]
        texts_by_scheme = generate_texts(params, model, x_BxL[:, :P], ids_B, extract_config)
        for name, texts_B in texts_by_scheme.items():
            for row, suffix_S, target, texts in zip(
                rows[low:], x_BxL[:, P:], targets_B, texts_B, strict=True
            ):
                comparisons = [
                    compare_with_suffix(suffix_S, text_G) | compare_texts(target, text)
                    for text_G, text in zip(texts, decode(texts), strict=True)
                ]
                for measure in comparisons[0]:
                    row[f"{measure}_{name}"] = max(c[measure] for c in comparisons)
        progress("extract", min(low + B, len(samples)), len(samples))
    return pd.concat([samples.reset_index(drop=True), pd.DataFrame(rows)], axis=1)


def suffix_log_probs(
    params: transformer.Params,
    model: transformer.TransformerLM,
    x_BxL: np.ndarray,
    extract_config: config.Extract,
) -> Iterator[dict[str, Any]]:
    """Yields {log_p_NAME: nats} for each sample: the log-probability of its suffix, summed over its tokens in
    float64."""
    P = extract_config.prefix_tokens
    for x_L in x_BxL:  # one sample at a time, since each token has V logits
        logits_SxV = np.asarray(_logits(model, params, x_L[None]))[0, P - 1 : -1]
        yield {
            f"log_p_{name}": float(
                stats.suffix_log_prob(stats.token_log_probs(logits_SxV, x_L[P:], scheme))
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
    G = config.number(extract_config.written_tokens) or extract_config.suffix_tokens

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
    rows = [
        {
            "scheme": name,
            "class": class_name,
            "queries": n,
            "probability": p,
        }
        | dataclasses.asdict(stats.extraction_rate(samples[f"log_p_{name}"], n, p))
        for name in ("greedy", "sampled", "chosen")
        for class_name, samples in _by_class(results).items()
        for p in _PROBABILITIES
        for n in (10**k for k in range(_MAX_QUERIES_EXPONENT + 1))
    ]
    return pd.DataFrame(rows)


def add_reference(
    results: pd.DataFrame, reference_results: pd.DataFrame, member_N: np.ndarray
) -> pd.DataFrame:
    """Adds what `extract` measured for a reference model on the same samples.

    Args:
      results: result of `extract` for the target.
      reference_results: result of `extract` for the reference.
      member_N: whether the reference was trained on each sample of the population.

    Returns:
      ``results`` with the columns reference_member and reference_COLUMN for each column that depends on the model.
    """
    measured = reference_results.columns.drop(["id", "member", "score", "in_prompt"])
    is_member = pd.Series(member_N[results["id"]], name="member")
    added = pd.concat([is_member, reference_results[measured]], axis=1)
    return pd.concat([results, added.add_prefix("reference_")], axis=1)


def extraction_rates(results: pd.DataFrame, extract_config: config.Extract) -> pd.DataFrame:
    """Computes the shares of samples that are extracted by the criteria of PrivacyGuard's Table 4.

    Args:
      results: result of `extract`.
      extract_config: how the samples were chosen.

    Returns:
      A row per scheme and class, with the columns scheme, class, samples (that the shares are of), left_out (see
      `extracted`), and for each CRITERION the columns CRITERION, CRITERION_low and CRITERION_high: share and 95%
      interval. Shares that need generated texts are NaN if there are none.

      The intervals are for the share among all samples of the class that are long enough. They are Clopper-Pearson
      intervals, which draws without replacement make longer than necessary. Unless samples were chosen at random, they
      are NaN, since samples with high scores are not a random sample.
    """
    rows = []
    for name in ("greedy", "sampled", "chosen"):
        for class_name, samples in _by_class(results).items():
            is_extracted = extracted(samples, name)
            used = int(is_extracted.iloc[:, -1].count())
            row = {"scheme": name, "class": class_name, "samples": used}
            row |= {"left_out": len(samples) - used}
            for criterion, values in is_extracted.items():
                count, low, high = values.count(), np.nan, np.nan
                if count and extract_config.choose == "random":
                    low, high = map(float, stats.clopper_pearson(values.sum(), count))
                row |= {str(criterion): values.mean()}
                row |= {f"{criterion}_low": low, f"{criterion}_high": high}
            rows.append(row)
    return pd.DataFrame(rows)


def compare_with_reference(results: pd.DataFrame) -> pd.DataFrame:
    """Counts the samples that are extracted from both models, from one of them, or from neither.

    The target and the reference were trained in the same way on random halves of the same samples. The samples on which
    only the target was trained, and which are extracted from the target only, therefore show the effect of training on
    a sample, apart from chance. The samples on which neither model was trained show the effect of chance.

    Args:
      results: result of `add_reference`.

    Returns:
      A row per scheme, criterion and pair of memberships that occurs, with the columns scheme, criterion, in_target,
      in_reference, samples, left_out (see `extracted`), both, target_only, reference_only and neither.
    """
    rows = []
    for name in ("greedy", "sampled", "chosen"):
        by_target, by_reference = extracted(results, name), extracted(results, name, "reference_")
        for (in_target, in_reference), group in results.groupby(["member", "reference_member"]):
            for criterion in by_target.columns:
                pairs = pd.concat([by_target[criterion], by_reference[criterion]], axis=1)
                pairs = pairs.loc[group.index].dropna()
                if not len(pairs):
                    continue
                target_N, reference_N = pairs.to_numpy(bool).T
                row = {"scheme": name, "criterion": criterion}
                row |= {"in_target": in_target, "in_reference": in_reference}
                row |= {"samples": len(pairs), "left_out": len(group) - len(pairs)}
                row |= {
                    "both": (target_N & reference_N).sum(),
                    "target_only": (target_N & ~reference_N).sum(),
                    "reference_only": (~target_N & reference_N).sum(),
                    "neither": (~target_N & ~reference_N).sum(),
                }
                rows.append(row)
    return pd.DataFrame(rows)


def extracted(results: pd.DataFrame, name: str, prefix: str = "") -> pd.DataFrame:
    """Returns which samples are extracted with a scheme, by each criterion.

    Args:
      results: result of `extract`, or of `add_reference`.
      name: name of the scheme.
      prefix: "reference_" for the reference.

    Returns:
      A column per criterion: inclusion (the generated text contains that of the suffix), overlap_above_0.8 (of the
      suffix's tokens), p_above_0.5 and p_above_0.01 (probability of the suffix). 1.0 or 0.0; NaN for samples that are
      left out, and without generated texts. A sample is left out if its suffix has no text after `stats.clean_text`, or
      one that is also in the prefix, since generating it takes no memory of the training data, and if it has no
      log-probability.
    """
    log_p_N = results[f"{prefix}log_p_{name}"]
    is_extracted = pd.DataFrame({f"p_above_{p:g}": log_p_N > np.log(p) for p in _LIKELY})
    has_texts = f"{prefix}included_{name}" in results
    included_N = results[f"{prefix}included_{name}"] == 1 if has_texts else np.nan
    overlap_N = results[f"{prefix}overlap_{name}"] > _OVERLAP if has_texts else np.nan
    is_extracted.insert(0, "inclusion", included_N)
    is_extracted.insert(1, f"overlap_above_{_OVERLAP:g}", overlap_N)
    return is_extracted.astype(float).where((results["in_prompt"] == 0) & log_p_N.notna())


def _by_class(results: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Returns {"members": rows, "nonmembers": rows}, without classes that have no samples."""
    classes = {"members": results[results.member], "nonmembers": results[~results.member]}
    return {name: samples for name, samples in classes.items() if len(samples)}


def tables(results: pd.DataFrame, extract_config: config.Extract) -> dict[str, pd.DataFrame]:
    """Returns the tables of the extraction by file name.

    Args:
      results: result of `extract`, or of `add_reference` if ``extract_config.reference`` is set.
      extract_config: the settings of the extraction.
    """
    by_name = {
        "extraction.csv": results,
        "extraction_curves.csv": extraction_curves(results),
        "extraction_rates.csv": extraction_rates(results, extract_config),
    }
    if extract_config.reference:
        by_name["extraction_reference.csv"] = compare_with_reference(results)
    return by_name


def summary(results: pd.DataFrame, extract_config: config.Extract) -> str:
    """Returns one line with the largest suffix probability and the number of samples above 0.001."""
    log_p = results["log_p_sampled"]
    num_above = int((log_p > np.log(1e-3)).sum())
    is_random = extract_config.choose == "random"
    return (
        f"extraction: {len(results)} {'random samples' if is_random else 'samples with the highest membership scores'} "
        f"({int(results.member.sum())} members); largest suffix probability {np.exp(log_p.max()):.2g}; suffix "
        f"probability above 0.001 for {num_above}"
    )


@functools.partial(jax.jit, static_argnames="model")
def _logits(
    model: transformer.TransformerLM, params: transformer.Params, x_BxL: jax.Array
) -> jax.Array:
    logits_BxLxV: Any = model.apply({"params": params}, x_BxL)
    return logits_BxLxV


def compare_with_suffix(suffix_S: np.ndarray, text_G: np.ndarray) -> dict[str, float]:
    """Returns the measures "exact", "contained" and "overlap" of a generated text; see `extract`."""
    S, suffix, text = len(suffix_S), suffix_S.tolist(), text_G.tolist()
    return {
        "exact": float(text[:S] == suffix),
        "contained": stats.is_included(suffix, text),
        "overlap": stats.common_subsequence(suffix, text) / S,
    }


def compare_texts(target: str, text: str) -> dict[str, float]:
    """Compares a generated text with the target.

    Returns:
      included: 1 if the text contains the target, else 0. substring: length of the longest contiguous part of the
      target that is in the text, over the target's length. edit: `stats.edit_similarity`. All are NaN for an empty
      target.
    """
    return {
        "included": stats.is_included(target, text),
        "substring": stats.common_substring(target, text) / len(target) if target else np.nan,
        "edit": stats.edit_similarity(target, text),
    }
