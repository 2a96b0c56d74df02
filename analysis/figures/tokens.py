"""Open questions (f) and (g): extraction of random samples against membership scores, and the tokens that tell members.

A1, H1: as in `analysis.claims.jackknife`; K: bins.
"""

import math

import pandas as pd
from matplotlib.axes import Axes

from analysis import io, plotting
from analysis.claims.compare import claim_equivalent, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, not_seen_note
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia.errors import Unavailable

RECIPE = "tokens-140M"
FACTS, MEMBERSHIP, SUFFIXES, CORRELATIONS = (
    "tokens.json",
    "token_membership.csv",
    "suffix_extraction.parquet",
    "suffix_extraction.csv",
)
_BINS = 8
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
            not_seen_note(claims),
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
            not_seen_note(claims),
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
    """Returns a note on the share of the rarest tokens in the whole signal."""
    of_tokens = rows[rows["kind"] == "frequency"]
    gap = of_tokens["gap_nats"] * of_tokens["pairs"]
    tokens, signal = (
        float(total.iloc[: _BINS // 4].sum() / total.sum()) for total in (of_tokens["pairs"], gap)
    )
    if not signal > 0 or math.isnan(signal):
        return ""
    return f"The rarest {tokens:.0%} of the tokens carry {signal:.0%} of the difference in log-probability."


FIGURES = {
    "open_fig06_extraction": Experiment(
        title="Open question 6: Extraction of random samples and their membership scores",
        paper=(
            "For the 1,000 samples with the highest LiRA scores, the score says nothing about the probability of the "
            "next 50 tokens (Figure 7, Section 6.2). Only one model is prompted, and other samples are left out, which "
            "restricts the range of the scores."
        ),
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
        expect=(
            "At cpu the suffixes of 32 tokens have probabilities below e^-130, members or not, and models that were "
            "not trained on a sample rank them in the same way (a rank correlation of 0.96). The rank correlation with "
            "the score is 0.15 over all samples. It is 0.57 among members for what training on the sample adds, which "
            "is 1.9 nats on average."
        ),
    ),
    "open_fig07_tokens": Experiment(
        title="Open question 7: The tokens that carry membership",
        paper=(
            "Members that were seen late in training, that are long, or that have unusual words are more vulnerable "
            "(Figures 6 and 31). The paper does not look at single tokens."
        ),
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
        expect=(
            "At cpu the AUC of a single token is 0.53 on average, 0.58 for the rarest eighth of the tokens and 0.52 "
            "for frequent ones: the rarest quarter carries half of the signal. It hardly depends on the position, and "
            "is largest for samples that were last seen after two thirds of the training."
        ),
    ),
}
"""Name of a figure -> its definition."""
