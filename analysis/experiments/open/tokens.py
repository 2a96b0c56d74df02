"""Tables of single tokens: which tokens carry membership, and how likely samples are extracted from each model.

    token_membership.csv          signal of tokens by position, frequency, and the step at which models last saw them
    suffix_extraction.parquet     log-probability of the suffix of each sample under each reference, and its LiRA score
    suffix_extraction.csv         rank correlations between them
    shown_tokens.parquet          losses of the tokens of the samples in shown_samples.parquet

All need the log-probabilities of single tokens under the references (`score.token_samples`). A token's signal is how
much more likely it is under models that were trained on its sample (IN) than under the others (OUT). Each reference is
also attacked with all others, which are the OUT models that its suffixes are compared with.

M: references, S: samples, T: tokens of these samples, P: pairs of a model and a token, K: bins, A1: all references, and
then without each group of them, H1: all samples, and then each half of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import scipy

from analysis import io, plotting
from analysis.claims.compare import claim_equivalent, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import stats
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import reference_design
from lm_mia.attacks.spec import JACKKNIFE_GROUPS, Study, reference_groups
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Facts, Write
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population, token_columns
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMBERSHIP, SUFFIXES, CORRELATIONS, SHOWN_TOKENS = (
    "token_membership.csv",
    "suffix_extraction.parquet",
    "suffix_extraction.csv",
    "shown_tokens.parquet",
)
SHOWN_SAMPLES = "shown_samples.parquet"
_BINS = 8
_COUNTED_SAMPLES = 2**16
"""The maximum number of samples over which the occurrences of each piece are counted."""
_MIN_REFERENCES = 8
_CLASSES = ("all", "members", "nonmembers")


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """The log-probabilities of the tokens of some samples under the references."""

    models: Sequence[ModelSeeds]
    log_prob_MxT: np.ndarray
    sample_T: np.ndarray
    """The position of each token's sample among the S samples."""
    position_T: np.ndarray
    """The position of each token in its sample; <bos> has position 0 and NaN log-probabilities."""
    piece_T: np.ndarray
    ids_S: np.ndarray
    document_S: np.ndarray
    loss_MxS: np.ndarray
    member_MxS: np.ndarray
    last_seen_MxS: np.ndarray
    """The result of `Batches.last_seen_share`."""

    @functools.cached_property
    def model_parts_A1xM(self) -> np.ndarray:
        """Which references each part uses: all, and then all without each group."""
        group_M = np.array(reference_groups(model.subset_seed for model in self.models))
        without_GxM = np.arange(JACKKNIFE_GROUPS)[:, None] != group_M
        return np.concatenate([np.ones((1, len(group_M)), bool), without_GxM])

    @functools.cached_property
    def sample_parts_H1xS(self) -> np.ndarray:
        """Which samples each part uses: all, and then each half."""
        half_HxS = stats.HALVES_HxG[:, stats.sample_groups(self.document_S)]
        return np.concatenate([np.ones((1, len(self.ids_S)), bool), half_HxS])


def not_requested(*, token_samples: tuple[int, ...]) -> str:
    """Returns why the settings do not ask for the study; empty if they do."""
    return "" if token_samples else "score.token_samples must be set, and scored; run lm-mia run"


def compute(
    view: StudyView,
    write: Write,
    *,
    token_samples: tuple[int, ...],
    prefix_tokens: int,
    suffix_tokens: int,
    batches: Batches,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> Facts:
    """Computes the tables; the user is told what is not possible.

    Raises:
      Unavailable: no token of an attacked sample is scored, or too few references have log-probabilities.
    """
    ids = tuple(i for i in token_samples if i >= view.store.first_canary)
    if not ids:
        raise Unavailable(
            "score.token_samples has no attacked sample; run lm-mia run with canaries in it"
        )
    references = view.with_log_probs(token_samples)
    if len(references) < _MIN_REFERENCES:
        reason = (
            f"score.token_samples: {len(references)} references have log-probabilities of tokens, but the tables of "
            f"tokens need at least {_MIN_REFERENCES}; they are not written; run `lm-mia run` to make the missing ones"
        )
        view.work.say(reason)
        raise Unavailable(reason)
    population = view.population
    tokens = _read(view, references, token_samples, ids, batches)
    write(MEMBERSHIP, _token_membership(tokens, _piece_counts(population)))
    sampled_share = 0.5 if finite_population else 0.0
    design = reference_design(view.store, references)
    suffix = slice(prefix_tokens, prefix_tokens + suffix_tokens)
    suffixes = _suffixes(tokens, suffix, variance, sampled_share, design)
    with contextlib.suppress(Unavailable):
        shown_S = view.table(SHOWN_SAMPLES, ["id"])["id"].to_numpy()
        write(SHOWN_TOKENS, _shown_tokens(tokens, population, shown_S))
    if suffixes is None:
        view.work.say(
            f"extract.prefix_tokens={prefix_tokens}, extract.suffix_tokens={suffix_tokens}: fewer than 16 of "
            f"score.token_samples have {suffix.stop} tokens; {SUFFIXES} is not written; lower one of the two"
        )
    else:
        rows, correlations = suffixes
        write(SUFFIXES, rows)
        write(CORRELATIONS, correlations)
    return {"references": len(references), "samples": len(ids)}


def _read(
    view: StudyView,
    references: Sequence[ModelSeeds],
    token_samples: Sequence[int],
    ids: Sequence[int],
    batches: Batches,
) -> _Tokens:
    """Reads the log-probabilities, losses and membership of the samples."""
    store, population = view.store, view.population
    columns = token_columns(population, token_samples)
    is_used_T = np.isin(columns["token_sample"], ids)
    log_prob_MxT = view.log_probs(references, token_samples)
    ids_S = np.unique(columns["token_sample"][is_used_T])
    names = ("loss", "member")
    of_samples = store.samples({name: (name, references) for name in names}, ids_S.tolist())
    last_seen_MxS = np.empty(of_samples["loss"].shape)
    for m, model in enumerate(references):  # one by one, since each has 2N samples
        [(_, member)] = store.blocks({"member": ("member", [model])}, sys.maxsize)
        share_N = batches.last_seen_share(model.order_seed, member["member"][0], store.step)
        last_seen_MxS[m] = share_N[ids_S]
    return _Tokens(
        references,
        log_prob_MxT[:, is_used_T].astype(np.float64),
        np.searchsorted(ids_S, columns["token_sample"][is_used_T]),
        columns["token_position"][is_used_T],
        columns["token_piece"][is_used_T],
        ids_S,
        population.document_N[ids_S],
        of_samples["loss"].astype(np.float64),
        of_samples["member"],
        last_seen_MxS,
    )


def _piece_counts(population: Population) -> np.ndarray:
    """Returns count_V, how often each piece occurs in the first samples of the population."""
    begin, end = population.offsets_N1[[0, min(_COUNTED_SAMPLES, len(population))]]
    return np.bincount(population.tokens[begin:end], minlength=population.vocab_size)


def _token_membership(tokens: _Tokens, count_V: np.ndarray) -> pd.DataFrame:
    """Returns token_membership.csv."""
    is_predicted_T = tokens.position_T > 0
    log_prob_MxT = tokens.log_prob_MxT[:, is_predicted_T]
    sample_T, position_T = tokens.sample_T[is_predicted_T], tokens.position_T[is_predicted_T]
    count_T = count_V[tokens.piece_T[is_predicted_T]]
    member_MxT, last_seen_MxT = tokens.member_MxS[:, sample_T], tokens.last_seen_MxS[:, sample_T]
    shape = log_prob_MxT.shape
    bin_by_kind = {
        "position": np.broadcast_to(_equal_bins(position_T), shape),
        "frequency": np.broadcast_to(_equal_bins(count_T), shape),
        "recency": _recency_bins(last_seen_MxT),
    }
    x_by_kind = {
        "position": np.broadcast_to(position_T, shape),
        "frequency": np.broadcast_to(count_T / count_V.sum(), shape),
        "recency": last_seen_MxT,
    }
    frames = []
    for a, used_M in enumerate(tokens.model_parts_A1xM):
        member = member_MxT[used_M]
        log_prob = log_prob_MxT[used_M]
        out_T = (~member).sum(axis=0)
        mean_out_T = np.where(~member, log_prob, 0).sum(axis=0) / np.where(out_T > 0, out_T, np.nan)
        share = stats.shares_of_out_below(log_prob, member)
        gap = np.where(member, log_prob - mean_out_T, np.nan)
        for h, used_S in enumerate(tokens.sample_parts_H1xS):
            for kind, bin_MxT in bin_by_kind.items():
                used = member & used_S[sample_T] & ~np.isnan(share) & (bin_MxT[used_M] >= 0)
                bin_P = bin_MxT[used_M][used]
                pairs_K = np.bincount(bin_P, minlength=_BINS)
                sums = {
                    name: np.bincount(bin_P, value[used], minlength=_BINS)
                    for name, value in (
                        ("x", x_by_kind[kind][used_M]),
                        ("gap_nats", gap),
                        ("auc", share),
                    )
                }
                filled_K = np.flatnonzero(pairs_K)
                means = {name: sum_K[filled_K] / pairs_K[filled_K] for name, sum_K in sums.items()}
                frames.append(
                    pd.DataFrame(
                        {"kind": kind, "bin": filled_K, **means, "pairs": pairs_K[filled_K]}
                        | {"models": a, "samples": h}
                    )
                )
    return pd.concat(frames, ignore_index=True)


def _shown_tokens(tokens: _Tokens, population: Population, shown_S: np.ndarray) -> pd.DataFrame:
    """Returns shown_tokens.parquet."""
    used_T = np.isin(tokens.ids_S[tokens.sample_T], shown_S) & (tokens.position_T > 0)
    sample_T, loss_MxT = tokens.sample_T[used_T], -tokens.log_prob_MxT[:, used_T]
    member_MxT = tokens.member_MxS[:, sample_T]
    table = pd.DataFrame(
        {"id": tokens.ids_S[sample_T], "position": tokens.position_T[used_T]}
        | {"piece": [*map(population.tokenizer.piece, tokens.piece_T[used_T].tolist())]}
    )
    for name, used_MxT in (("in", member_MxT), ("out", ~member_MxT)):
        count_T = used_MxT.sum(axis=0)
        sum_T = np.where(used_MxT, loss_MxT, 0).sum(axis=0)
        mean_T = sum_T / np.where(count_T > 0, count_T, np.nan)
        table[f"{name}_loss_nats"] = mean_T.astype(np.float32)
    return table


def _equal_bins(value_T: np.ndarray) -> np.ndarray:
    """Returns bin_T, up to `_BINS` bins of about equally many tokens; equal values are in one bin."""
    edges = np.quantile(value_T, np.arange(1, _BINS) / _BINS)
    return np.searchsorted(edges, value_T, side="right")


def _recency_bins(last_seen_MxT: np.ndarray) -> np.ndarray:
    """Returns bin_MxT, `_BINS` bins of equally many steps; -1 where the model never saw the sample."""
    bin_MxT = np.ceil(np.nan_to_num(last_seen_MxT) * _BINS).astype(np.int64) - 1
    return np.minimum(bin_MxT, _BINS - 1)


def _suffixes(
    tokens: _Tokens,
    suffix: slice,
    variance: Literal["per_sample", "pooled"],
    sampled_share: float,
    design: stats.Design,
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Returns suffix_extraction.parquet and suffix_extraction.csv; None if too few samples are long enough."""
    is_suffix_T = (suffix.start <= tokens.position_T) & (tokens.position_T < suffix.stop)
    length_S = np.bincount(tokens.sample_T)
    long_S = length_S >= suffix.stop
    if long_S.sum() < 16:
        return None
    # The tokens of a sample are consecutive, so that sums over suffixes have equally many terms.
    in_suffix_T = is_suffix_T & long_S[tokens.sample_T]
    log_p_MxS = (
        tokens.log_prob_MxT[:, in_suffix_T]
        .reshape(len(tokens.models), -1, suffix.stop - suffix.start)
        .sum(axis=2)
    )
    member_MxS = tokens.member_MxS[:, long_S]
    sample_parts_H1xS = tokens.sample_parts_H1xS[:, long_S]
    rows, correlations = pd.DataFrame(), []
    for a, used_M in enumerate(tokens.model_parts_A1xM):
        score_MxS = stats.lira_leave_one_out(
            tokens.loss_MxS[used_M],
            tokens.member_MxS[used_M],
            variance=variance,
            sampled_share=sampled_share,
            design=design.select(used_M),
            id_N=tokens.ids_S,
        )[:, long_S]
        part = log_p_MxS[used_M], member_MxS[used_M]
        log_p_out_MxS = _mean_of_other_out(*part)
        if a == 0:
            index_M, index_S = (index.ravel() for index in np.indices(score_MxS.shape))
            rows = pd.DataFrame(
                {"model": np.array([*map(str, tokens.models)])[index_M]}
                | {"id": tokens.ids_S[long_S][index_S], "member": member_MxS.ravel()}
                | {"score": score_MxS.ravel(), "log_p": log_p_MxS.ravel()}
                | {"log_p_out": log_p_out_MxS.ravel()}
            )
        for h, used_S in enumerate(sample_parts_H1xS):
            selected = (v[:, used_S] for v in (score_MxS, part[0], log_p_out_MxS, part[1]))
            correlations += [{**row, "models": a, "samples": h} for row in _correlations(*selected)]
    return rows, pd.DataFrame(correlations)


def _mean_of_other_out(value_MxS: np.ndarray, member_MxS: np.ndarray) -> np.ndarray:
    """Returns the mean of the OUT models of each sample, without the model itself; NaN if there is none."""
    sum_S = np.where(member_MxS, 0, value_MxS).sum(axis=0)
    out_MxS = (~member_MxS).sum(axis=0) - ~member_MxS
    sum_MxS = sum_S - np.where(member_MxS, 0, value_MxS)
    return sum_MxS / np.where(out_MxS > 0, out_MxS, np.nan)


def _correlations(
    score_MxS: np.ndarray, log_p_MxS: np.ndarray, log_p_out_MxS: np.ndarray, member_MxS: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a row (statistic, class, value) for each mean over models of a statistic of the samples of a class."""
    gain_MxS = log_p_MxS - log_p_out_MxS
    usable_MxS = ~np.isnan(score_MxS + gain_MxS)
    for name in _CLASSES:
        class_MxS = (
            usable_MxS & {"all": True, "members": member_MxS, "nonmembers": ~member_MxS}[name]
        )
        for statistic, x_MxS, y_MxS in (
            ("score and log_p", score_MxS, log_p_MxS),
            ("score and gain", score_MxS, gain_MxS),
            ("log_p and log_p_out", log_p_MxS, log_p_out_MxS),
        ):
            r_M = [
                _rank_correlation(x_S[class_S], y_S[class_S])
                for x_S, y_S, class_S in zip(x_MxS, y_MxS, class_MxS, strict=True)
            ]
            yield {"statistic": statistic, "class": name, "value": float(np.mean(r_M))}
        gain_M = [
            gain_S[class_S].mean() for gain_S, class_S in zip(gain_MxS, class_MxS, strict=True)
        ]
        yield {"statistic": "gain_nats", "class": name, "value": float(np.mean(gain_M))}


def _rank_correlation(x_S: np.ndarray, y_S: np.ndarray) -> float:
    """Returns Spearman's rank correlation; NaN if one of the two is constant."""
    if len(x_S) < 3:
        return np.nan
    rank_2xS = scipy.stats.rankdata(np.stack([x_S, y_S]), axis=1)
    rank_2xS -= rank_2xS.mean(axis=1, keepdims=True)
    scale = np.sqrt((rank_2xS**2).sum(axis=1).prod())
    return float(rank_2xS[0] @ rank_2xS[1] / scale) if scale > 0 else np.nan


STUDY = Study(
    "tokens",
    compute,
    tables=(
        Table(
            MEMBERSHIP,
            (
                "Written if `score.token_samples` has samples and at least 8 references have the log-probabilities of "
                "their tokens. It shows which tokens carry membership. For each predicted token, every reference that "
                "was trained on its sample (IN) is compared with those that were not (OUT). Each row is a mean over "
                "pairs of a token and an IN reference."
            ),
            {
                "kind": Column(
                    "none",
                    (
                        "by what tokens are divided into bins: `position` in the sample, `frequency` of the piece in "
                        "the population (the first 65,536 samples), or `recency`: the step at which the IN reference "
                        "last saw the sample"
                    ),
                ),
                "bin": Column(
                    "none",
                    (
                        "number of the bin: 8 bins of about equally many tokens or, for `recency`, of equally many "
                        "steps"
                    ),
                ),
                "x": Column(
                    "none",
                    (
                        "mean of the position (0: `<bos>`), of the share of the piece among all tokens, or of the step "
                        "divided by the number of steps"
                    ),
                ),
                "gap_nats": Column(
                    "nats",
                    "log-probability of the token under the IN reference, minus its mean over the OUT references",
                ),
                "auc": Column(
                    "fraction",
                    (
                        "share of the OUT references under which the token is less likely than under the IN reference "
                        "(`lm_mia.stats.shares_of_out_below`); its mean is the AUC of the token between IN and OUT "
                        "references"
                    ),
                ),
                "pairs": Column("count", "pairs of a token and an IN reference"),
                "models": Column(
                    "none",
                    "0: all references; g: without group g - 1 of 8 groups of pairs of references",
                ),
                "samples": Column("none", "as `half` of `target_jackknife.parquet`"),
            },
            key=("models", "samples", "kind", "bin"),
        ),
        Table(
            SUFFIXES,
            (
                "Written with `token_membership.csv` if at least 16 of the samples have `extract.prefix_tokens` + "
                "`extract.suffix_tokens` tokens. Every reference is attacked with all the others. Each row is a "
                "reference and one of these samples, which are not chosen by their score."
            ),
            {
                **common("model", "id", "member"),
                "score": Column(
                    "nats",
                    (
                        "online LiRA, with all other references (in the balanced design, without the complement of the "
                        "reference)"
                    ),
                ),
                "log_p": Column(
                    "nats", "log-probability of the suffix given the prefix, under the reference"
                ),
                "log_p_out": Column(
                    "nats",
                    "mean of this log-probability over the other references that were not trained on the sample",
                ),
            },
            key=("model", "id"),
        ),
        Table(
            CORRELATIONS,
            (
                "Written with `suffix_extraction.parquet`. Each row is a statistic of the samples of a class, the "
                "mean over the references."
            ),
            {
                "statistic": Column(
                    "none",
                    (
                        "`score and log_p`, `score and gain`, `log_p and log_p_out`: rank correlations over samples, "
                        "where the gain is `log_p` - `log_p_out`; `gain_nats`: the mean gain"
                    ),
                ),
                "class": Column(
                    "none",
                    "`all`, `members` or `nonmembers` of the reference",
                ),
                "value": Column("none", "the rank correlation, or nats"),
                "models, samples": Column("none", "as in `token_membership.csv`"),
            },
            key=("models", "samples", "class", "statistic"),
        ),
        Table(
            SHOWN_TOKENS,
            (
                "Written with `token_membership.csv` if there are tables of decisions. Each row is a predicted token "
                "of one of `score.token_samples` that is also in `shown_samples.parquet`."
            ),
            {
                **common("id"),
                "position": Column(
                    "none",
                    "position of the token in the sample (0: `<bos>`, which is not predicted)",
                ),
                "piece": Column("none", "the piece of the vocabulary; `▁` stands for a space"),
                "in_loss_nats, out_loss_nats": Column(
                    "nats",
                    (
                        "negative log-probability of the token: mean over the references that were trained on the "
                        "sample, and over the others; NaN if there are none"
                    ),
                ),
            },
            key=("id", "position"),
        ),
    ),
    reads=(SHOWN_SAMPLES,),
    not_requested=not_requested,
    facts={
        "references": Column("count", "number of references"),
        "samples": Column("count", "number of samples"),
    },
)


RECIPE = "tokens-140M"
FACTS = "tokens.json"
_SHOWN_MODELS = 4
_MARGIN = 0.2


def _read_facts(recipe: RecipeResults, table: str) -> Record:
    """Reads tokens.json; raises Unavailable if there is no such table."""
    if not recipe.view.has(FACTS) or not recipe.view.has(table):
        raise Unavailable(
            f"{recipe.name}: there is no {table}, since score.token_samples is empty, or its samples are too short for "
            "prefix and suffix; run lm-mia run"
        )
    return recipe.view.facts("tokens")


def _jackknife(values: pd.Series, facts: Record) -> Jackknife:
    """Returns a number of which ``values`` has all parts, by (models, samples)."""
    value_A1xH1 = values.unstack().to_numpy(float)
    over = f"{facts['references']} references, each of which is also attacked, and the samples"
    return Jackknife(value_A1xH1[:, None, :], over)


# Question (f): extraction of random samples.
FIG06_STATEMENTS = (
    "Over random members and non-members, the membership score says little about how likely a suffix is.",
    "Among members, the score rises with how much more likely the suffix is than under models that were not trained on "
    "it.",
    "This relation is closer among members than among non-members.",
)


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws the suffixes under the model and under OUT models, and their ratio against the membership score."""
    recipe = recipes[RECIPE]
    facts = _read_facts(recipe, SUFFIXES)
    rows = io.read_frame(recipe, SUFFIXES)
    table = io.read_frame(recipe, CORRELATIONS)

    def number(statistic: str, of_class: str) -> Jackknife:
        chosen = table[(table["statistic"] == statistic) & (table["class"] == of_class)]
        return _jackknife(chosen.set_index(["models", "samples"])["value"], facts)

    models = [*dict.fromkeys(rows["model"])]
    shown = rows[rows["model"].isin(models[:_SHOWN_MODELS])].assign(
        gain=lambda r: r["log_p"] - r["log_p_out"]
    )
    figure = plotting.new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    _scatter(left, shown, -shown["log_p_out"], -shown["log_p"])
    low, high = left.get_xlim()
    left.axline((low, low), slope=1, color=plotting.GREY, linewidth=1)
    left.set_xlim(low, high)
    left.set(
        xlabel="−log p of the suffix, mean of OUT models (nats)",
        ylabel="−log p under the attacked model (nats)",
        title="(a) Probability of the suffix",
    )
    _scatter(right, shown, shown["score"], shown["gain"])
    right.axhline(0, color=plotting.GREY, linewidth=1)
    right.set(
        xlabel="LiRA score",
        ylabel="log p, attacked minus OUT models (nats)",
        title="(b) What training on the sample adds",
    )
    right.set_xscale("symlog", linthresh=1)
    left.legend(loc="upper left", fontsize=9)
    level, gain, gain_out = (
        number("score and log_p", "all"),
        number("score and gain", "members"),
        number("score and gain", "nonmembers"),
    )
    claims = (
        claim_equivalent(
            FIG06_STATEMENTS[0],
            "Rank correlation of score and log p of the suffix, all samples",
            level.estimate(),
            _MARGIN,
        ),
        claim_greater(
            FIG06_STATEMENTS[1],
            "Rank correlation of score and log p of the suffix less that under OUT models, members",
            gain.estimate(),
        ),
        claim_greater(
            FIG06_STATEMENTS[2],
            "This correlation, members minus non-members",
            (gain - gain_out).estimate(),
        ),
    )
    settings = facts["settings"]
    extracted = float(rows["log_p"].max())
    return Drawing(
        shown,
        figure,
        claims=claims,
        notes=(
            f"{rows['id'].nunique():,} samples that were not chosen by their score; the first "
            f"{settings['prefix_tokens']} tokens, with <bos>, are the prefix, and the next {settings['suffix_tokens']} "
            f"the suffix. Each of {facts['references']} references is attacked with all others; points are of the "
            f"first {min(_SHOWN_MODELS, len(models))}. Correlations are means over these models.",
            f"Under the attacked model and under OUT models, log p has a rank correlation of "
            f"{number('log_p and log_p_out', 'all').estimate()}. What training on a sample adds to log p of its "
            f"suffix, in nats: {number('gain_nats', 'members').estimate()}. The most likely suffix has a "
            f"probability of e^{extracted:.1f}.",
            f"Rank correlation of score and log p: {number('score and log_p', 'members').estimate()} among members, "
            f"{number('score and log_p', 'nonmembers').estimate()} among non-members. “Little” means within "
            f"±{_MARGIN:g}, as for Figure 7.",
            "The suffix is a part of the sample that the score is computed from, so some relation is expected.",
            unsupported_note(claims),
        ),
    )


def _scatter(axes: Axes, rows: pd.DataFrame, x: pd.Series, y: pd.Series) -> None:
    for label, is_member, color, _ in plotting.CLASSES:
        at = rows["member"] == is_member
        axes.scatter(
            x[at], y[at], s=8, color=color, alpha=0.4, linewidth=0, label=label, rasterized=True
        )


# Question (g): which tokens carry membership.
FIG07_STATEMENTS = (
    "Rare tokens tell members better than frequent ones.",
    "Tokens later in a sample tell members better than earlier ones.",
    "Tokens of samples that were seen later in training tell members better.",
)
_KINDS = {
    "frequency": ("Share of the piece in the corpus", "(a) Rarity"),
    "position": ("Position in the sample", "(b) Position"),
    "recency": ("Last seen (fraction of the steps)", "(c) Recency"),
}


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the AUC of single tokens, and how much more likely IN models find them, by rarity, position and recency."""
    recipe = recipes[RECIPE]
    facts = _read_facts(recipe, MEMBERSHIP)
    table = io.read_frame(recipe, MEMBERSHIP)
    table = table.set_index(["models", "samples"])
    figure = plotting.new_figure(12, 7)
    grid = figure.subplots(2, 3, sharey="row", sharex="col")
    frames = []
    for (kind, (label, title)), column in zip(_KINDS.items(), grid.T, strict=True):
        for axes, (name, color) in zip(
            column, (("auc", plotting.BLUE), ("gap_nats", plotting.VERMILLION)), strict=True
        ):
            rows = _curve(table[table["kind"] == kind], name, facts)
            axes.errorbar(
                rows["x"], rows["y"], yerr=rows["margin"], fmt="o-", color=color, capsize=3
            )
            axes.axhline(0.5 if name == "auc" else 0, color=plotting.GREY, linewidth=1)
            frames.append(rows.assign(kind=kind, statistic=name))
        if kind == "frequency":
            column[1].set_xscale("log")
        column[0].set_title(title)
        column[1].set_xlabel(label)
    grid[0, 0].set_ylabel("AUC of a single token")
    grid[1, 0].set_ylabel("log p, IN minus OUT models (nats)")
    upper_half = {kind: _upper_minus_lower(table, kind, facts) for kind in _KINDS}
    claims = (
        claim_greater(
            FIG07_STATEMENTS[0],
            "AUC of a token, rarer half minus more frequent half of the tokens",
            -upper_half["frequency"].estimate(),
        ),
        claim_greater(
            FIG07_STATEMENTS[1],
            "AUC of a token, later half minus earlier half of the positions",
            upper_half["position"].estimate(),
        ),
        claim_greater(
            FIG07_STATEMENTS[2],
            "AUC of a token, samples last seen in the second half of training minus the first half",
            upper_half["recency"].estimate(),
        ),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            f"Tokens of {facts['samples']:,} samples under {facts['references']} references. The AUC of a token is the "
            "probability that it is more likely under a model that was trained on its sample (IN) than under one that "
            "was not (OUT). Bars are 95% intervals over models and samples.",
            _share_note(table.loc[(0, 0)]),
            unsupported_note(claims),
        ),
    )


def _curve(rows: pd.DataFrame, name: str, facts: Record) -> pd.DataFrame:
    """Returns rows (x, y, margin) of the bins of one kind."""
    curve = []
    for _, of_bin in rows.groupby("bin"):
        estimate = _jackknife(of_bin[name], facts).estimate()
        x = float(of_bin["x"].loc[(0, 0)])
        curve.append({"x": x, "y": estimate.value, "margin": estimate.high - estimate.value})
    return pd.DataFrame(curve)


def _upper_minus_lower(table: pd.DataFrame, kind: str, facts: Record) -> Jackknife:
    """Returns the mean AUC of the upper half of the bins minus that of the lower half."""
    rows = table[table["kind"] == kind]
    upper, lower = (
        rows[is_half].groupby(level=["models", "samples"])["auc"].mean()
        for is_half in (rows["bin"] >= _BINS / 2, rows["bin"] < _BINS / 2)
    )
    return _jackknife(upper - lower, facts)


def _share_note(rows: pd.DataFrame) -> str:
    of_tokens = rows[rows["kind"] == "frequency"]
    gap = of_tokens["gap_nats"] * of_tokens["pairs"]
    tokens, signal = (
        float(total.iloc[: _BINS // 4].sum() / total.sum()) for total in (of_tokens["pairs"], gap)
    )
    if not signal > 0 or math.isnan(signal):
        return ""
    return f"The rarest {tokens:.0%} of the tokens carry {signal:.0%} of the difference in log-probability."


EXPERIMENTS = {
    "open_fig06_extraction": Experiment(
        title="Open question 6: Extraction of random samples and their membership scores",
        about=(
            "For the 1,000 samples with the highest LiRA scores, the score says nothing about the probability of the "
            "next 50 tokens (Figure 7, Section 6.2). Only one model is prompted, and other samples are left out, which "
            "restricts the range of the scores."
        ),
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
    ),
    "open_fig07_tokens": Experiment(
        title="Open question 7: The tokens that carry membership",
        about=(
            "Members that were seen late in training, that are long, or that have unusual words are more vulnerable "
            "(Figures 6 and 31). The paper does not look at single tokens."
        ),
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
