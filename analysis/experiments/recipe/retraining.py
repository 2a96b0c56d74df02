"""Would a decision survive retraining: how often another replica finds the hits of one again, by their score.

The decisions are those of the headline attack. Of large populations, the first samples are used, a random choice since
populations are shuffled.

B: replicas, N: the samples that are used, G: groups of hits, A1: all replicas, and then without each group of them, H1:
all samples, and then each half of them.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.formatting import MIN_HEADLINE_REPLICAS
from analysis.io import RecipeResults
from analysis.report import charts, document, numbers
from analysis.report.numbers import Estimate
from analysis.report.strength import Strength
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.spec import AttackTable

GROUPS = 8
FEWEST_HITS = 80
"""With fewer hits, there are no groups of them."""

FOUND_AGAIN = Table(
    "found_again.csv",
    (
        "Written with the tables of decisions. The hits of all replicas under `attack.headline` at `attack.focus_fpr`, "
        "members and false positives, among the first 32,768 samples, are divided into 8 groups of equal size by how "
        "far their scores are above the threshold; each row is a group. There are no rows with fewer than 80 hits."
    ),
    {
        "group": Column("none", "1 has the lowest scores"),
        "margin": Column(
            "none", "membership score minus threshold, mean over the hits of the group"
        ),
        "hits": Column("count", "hits of the group"),
        "found_again": Column(
            "fraction", "other replicas that call the sample a member too, mean over the hits"
        ),
        "low, high": Column(
            "fraction",
            "95 % interval over samples and batch orders (`stats.share_interval`), for these thresholds",
        ),
    },
    key=("group",),
)


def found_again(
    scores: Scores, *, band: tuple[float, float], focus_fpr: float, fprs: tuple[float, ...]
) -> pd.DataFrame:
    """Returns found_again.csv."""
    points = scores.operating_points(fprs, band)
    focus = fprs.index(focus_fpr)
    replicas = len(scores.targets)
    empty = pd.DataFrame(
        {name: [] for name in ("group", "margin", "hits", "found_again", "low", "high")}
    )
    if not scores.spec.targets_are_replicas or np.isnan(points.tpr_TxF[:, focus]).any():
        return empty
    samples = min(scores.file.num_samples, study_inputs.FIRST_SAMPLES)
    margin_BxN = scores.file.read_samples(slice(0, samples)) - points.threshold_TxF[:, focus, None]
    is_scored_N = ~np.isnan(margin_BxN).any(axis=0)
    margin_BxN = margin_BxN[:, is_scored_N]
    is_hit_BxN = margin_BxN >= 0
    hit_K = margin_BxN[is_hit_BxN]
    if hit_K.size < FEWEST_HITS:
        return empty
    edge_G = np.quantile(hit_K, np.linspace(0, 1, GROUPS + 1)[1:-1])
    group_BxN = np.where(is_hit_BxN, np.searchsorted(edge_G, margin_BxN, side="right"), -1)
    used_H1xN = study_inputs.sample_parts(scores.group_N[:samples])[:, is_scored_N]
    kept_A1xB = study_inputs.without_replicas(replicas)
    again_GxA1xH1 = np.full((GROUPS, len(kept_A1xB), len(used_H1xN)), np.nan)
    for a, kept_B in enumerate(kept_A1xB):
        # A single replica that remains has no others. Its hits are looked for in the one that is left out, as in
        # `stats.missed_share`.
        other_B = kept_B if kept_B.sum() > 1 else np.ones_like(kept_B)
        share_N = (is_hit_BxN[other_B].sum(axis=0) - 1) / (other_B.sum() - 1)
        for g in range(GROUPS):
            hits_N = (group_BxN[kept_B] == g).sum(axis=0)
            hits_H1 = used_H1xN @ hits_N
            again_GxA1xH1[g, a] = (used_H1xN @ (hits_N * share_N)) / np.where(
                hits_H1 > 0, hits_H1, np.nan
            )
    rows = []
    for g in range(GROUPS):
        margins = margin_BxN[group_BxN == g]
        # Hits of one sample under several replicas tell little more than one of them.
        count = max(int((group_BxN == g).any(axis=0).sum()), 1)
        low, high = stats.share_interval(again_GxA1xH1[g], count=count)
        rows.append(
            {"group": g + 1, "margin": float(margins.mean()) if margins.size else np.nan}
            | {"hits": margins.size, "found_again": float(again_GxA1xH1[g, 0, 0])}
            | {"low": low, "high": high}
        )
    return pd.DataFrame(rows)


# --- What the page shows ----------------------------------------------------------------------------------------------


def section(recipe: RecipeResults, strength: Strength, unit: str) -> document.Section:
    """Returns the section "Would a decision survive retraining?"; ``unit`` is that of the scores."""
    title = "Would a decision survive retraining?"
    if not strength.has_replicas:
        return document.Section("trust", "Trust", title, _unknown(recipe))
    table = recipe.view.table("headline_samples.parquet", ["member", "votes"]).dropna()
    trainings = strength.trainings
    member_K, nonmember_K = (
        np.bincount(table.loc[is_class, "votes"].astype(int), minlength=trainings + 1)
        for is_class in (table["member"], ~table["member"])
    )
    k_low, cutoff = stats.coin_flip_cutoff(trainings, recipe.view.c.alpha)
    votes = document.Figure(
        charts.votes(member_K, nonmember_K, k_low=k_low, key="votes"),
        _votes_caption(recipe, strength, member_K, nonmember_K, cutoff),
        _votes_title(member_K, k_low),
    )
    groups = [
        charts.ScoreGroup(
            row["margin"], Estimate(row["found_again"], row["low"], row["high"]), int(row["hits"])
        )
        for row in recipe.view.table(FOUND_AGAIN.file).to_dict("records")
    ]
    again = document.Figure(
        charts.found_again(groups, unit=unit, key="again"),
        _again_caption(groups),
        "A hit is worth more the higher its score" if _is_rising(groups) else "Hits by their score",
    )
    blocks = (_first_sentences(member_K), document.FigurePair(votes, again))
    return document.Section("trust", "Trust", title, blocks)


def _first_sentences(member_K: np.ndarray) -> str:
    """Returns how often members that were found at all are found in every training, in words and counts."""
    trainings, total = len(member_K) - 1, int(member_K.sum())
    ever, always = int(member_K[1:].sum()), int(member_K[-1])
    share = always / max(ever, 1)
    word = "rarely" if share < 0.25 else "mostly" if share < 0.75 else "nearly always"
    return (
        f"Of a single text, {word}. The {trainings} trainings share data and initial weights, yet {ever:,} of "
        f"{total:,} members ({100 * ever / max(total, 1):.0f} %) are found in at least one of them and only {always:,} "
        f"({100 * always / max(total, 1):.0f} %) in all."
    )


def _votes_title(member_K: np.ndarray, k_low: int) -> str:
    # With few trainings, the test takes nearly all votes for those of a coin.
    if not k_low or len(member_K) - 1 < MIN_HEADLINE_REPLICAS:
        return "How many trainings find each text"
    coins = member_K[k_low : len(member_K) - k_low].sum() / max(member_K.sum(), 1)
    return f"{100 * coins:.0f} % of the members are decided by a coin flip"


def _votes_caption(
    recipe: RecipeResults,
    strength: Strength,
    member_K: np.ndarray,
    nonmember_K: np.ndarray,
    cutoff: float,
) -> str:
    trainings, alpha = strength.trainings, recipe.view.c.alpha
    k_low, _ = stats.coin_flip_cutoff(trainings, alpha)
    if not k_low:
        return (
            f"{trainings} trainings cannot rule out a coin flip for any text: even {trainings} equal decisions happen "
            "by chance too often. 12 or more trainings can."
        )
    in_region = slice(k_low, trainings - k_low + 1)
    members, nonmembers = int(member_K[in_region].sum()), int(nonmember_K[in_region].sum())
    sentences = [
        f"An exact two-sided test at {100 * alpha:g} % cannot tell {k_low} to {trainings - k_low} votes of {trainings} "
        f"from a fair coin (flip rate {cutoff:.3f} or more): {members:,} members "
        f"({100 * members / max(member_K.sum(), 1):.0f} %) and {nonmembers:,} non-members "
        f"({100 * nonmembers / max(nonmember_K.sum(), 1):.0f} %)."
    ]
    flips = recipe.view.table("attack_flips.csv")
    flips = flips[(flips["attack"] == strength.headline) & np.isclose(flips["fpr"], strength.fpr)]
    if trainings < stats.STRONGMIA_REPLICAS and len(flips):
        low, high = (
            float(flips[f"member_coin_flips_127_{end}"].iloc[0]) for end in ("low", "high")
        )
        if not np.isnan(low):
            sentences.append(
                f"{trainings} votes cannot rule out a coin more finely: 127 would leave {100 * low:.0f} to "
                f"{100 * high:.0f} % of the members."
            )
    return " ".join(sentences)


def _again_caption(groups: Sequence[charts.ScoreGroup]) -> str:
    if not groups:
        return ""
    first, last = (numbers.value(group.found_again) for group in (groups[0], groups[-1]))
    return (
        "All hits of the trainings, members and false alarms, in eight groups by score. Just above the threshold, "
        f"another training repeats {first} % of them; in the highest eighth, {last} %. Bars: 95 % intervals."
    )


def _is_rising(groups: Sequence[charts.ScoreGroup]) -> bool:
    """Returns whether the hits with the highest scores are found again more often than those with the lowest."""
    return bool(groups) and groups[-1].found_again.low > groups[0].found_again.high


def _unknown(recipe: RecipeResults) -> tuple[document.Block, ...]:
    """Returns what cannot be said without replicas, and how to find out."""
    if recipe.is_imported:
        remedy = Markup(
            "To find out, train the model at least 12 times on the same data in other batch orders, and import the "
            "losses with the role <code>replica</code>."
        )
    else:
        remedy = Markup(
            "To find out, train the model again in other batch orders: <code>lm-mia run "
            "--config.attack.replicas=16</code> with this workdir."
        )
    return (
        "Cannot be said: each attacked model was trained once on its data. A hit far above its threshold is the safer "
        "one.",
        remedy,
    )


ATTACK_TABLES = (AttackTable(FOUND_AGAIN, found_again, of_headline=True),)
