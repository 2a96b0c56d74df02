"""Which texts are most exposed: every sample under the headline attack, and lists with their expected wrong entries.

Of replicas, which share their members, a sample's score is the mean over them. Of targets, each of which has members of
its own, the tables describe the first one.

T: attacked models that are described, N: samples, S: samples of the page, R: references.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from analysis.io import RecipeResults
from analysis.report import document, numbers
from analysis.report.strength import Strength
from lm_mia import stats
from lm_mia.attacks import user_code
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.inputs import select_samples
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import AttackTable, Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data.population import RECORD_COLUMNS
from lm_mia.errors import Unavailable

MOST_EXPOSED = 10_000
"""The largest number of rows of exposed.csv."""
CALLED_AT = (0.001, 0.01, 0.05, 0.1, 0.2)
"""Rates at which a sample may be called a member, of which the strictest is shown."""
TOP, COIN_FLIPS, FALSE_ALARMS = "top", "coin", "alarm"
"""Keys of the choices of samples on the page."""
_MODELS = "attacked_models.csv"
_NUM_SHOWN = {TOP: 150, COIN_FLIPS: 100, FALSE_ALARMS: 75}
_GROUP_SAMPLES = 2**17  # number of samples in a row group
_MAX_CHARS = 600  # of a text on the page

HEADLINE_SAMPLES = Table(
    "headline_samples.parquet",
    (
        "Each row is a sample under `attack.headline` with all references: under all replicas together or, without "
        "replicas, under the first target."
    ),
    {
        **common("id", "member"),
        "score": Column("none", "mean membership score; empty without a score from every replica"),
        "above": Column("fraction", "non-members with a lower score, mean over the replicas"),
        "votes": Column("count", "replicas that call it a member at `attack.focus_fpr`"),
        "flip_rate, coin_flip_p": Column(
            "fraction", "flip rate of these votes, and their p-value if they were fair coins"
        ),
        "called_at": Column(
            "fraction",
            (
                "the lowest of the rates 0.001, 0.01, 0.05, 0.1 and 0.2 at which the first attacked model calls it a "
                "member"
            ),
        ),
        "p_value": Column(
            "fraction",
            "of members: conformal p-value of the score among those of the non-members (`stats.conformal_p_value`)",
        ),
    },
    key=("id",),
)
PAGE_SAMPLES = Table(
    "page_samples.parquet",
    (
        "Written for the report page. Each row is a sample of the page, in the order of their scores under "
        "`attack.headline`: the 150 members with the highest scores, up to 100 members that are decided by a coin "
        "flip, and the 75 non-members with the highest scores. With replicas, these non-members are called members by "
        "at least one. Each value of a list belongs to a model."
    ),
    {
        **common("id"),
        "chosen_by": Column("none", "list: `top`, `coin`, `alarm`"),
        "text": Column(
            "none", "first 600 characters of the text, as it was tokenized; empty without a text"
        ),
        "in_loss_nats, out_loss_nats, model_loss_nats": Column(
            "nats per token",
            (
                "lists: losses under the references that were trained on it, under the others (without references, "
                "under the base), and under the attacked models"
            ),
        ),
        "called": Column(
            "none", "list: whether each attacked model calls it a member at `attack.focus_fpr`"
        ),
    },
    key=("id",),
)
EXPOSED = Table(
    "exposed.csv",
    (
        "Each row is a member, in the order of membership scores under `attack.headline`, up to 10,000 of them. An "
        "entry of a list of the first members is wrong if training did not raise the score of the member. The expected "
        "share of wrong entries is the number of members times the share of non-members with scores as high as those "
        "of the list, divided by the length of the list (Benjamini and Hochberg 1995, with conformal p-values: Bates "
        "et al. 2023). It is as if all members were like non-members, and thus rather too large. The longest list in "
        "which it is at most 5 % has at most 5 % of wrong entries in the mean over samples; in a single list the share "
        "varies around its expectation. Samples must be independent: for documents that are split, the intervals are "
        "too narrow."
    ),
    {
        "rank": Column("count", "position in the list, from 1"),
        **common("id"),
        "name, source, user": Column(
            "none", "the record in the corpus, where it is from, and whose it is; empty if unknown"
        ),
        "score": Column("none", "as in `headline_samples.parquet`"),
        "p_value": Column("fraction", "as in `headline_samples.parquet`"),
        "found_in": Column("count", "attacked models that call it a member at `attack.focus_fpr`"),
        "models": Column("count", "number of these models"),
        "wrong_share": Column(
            "fraction",
            (
                "expected share of wrong entries in the list up to this row, or in the longer list that has the "
                "smallest one, since the members with the highest scores are the least likely to be wrong"
            ),
        ),
        "wrong_share_low, wrong_share_high": Column(
            "fraction",
            (
                "its interval, from the Clopper-Pearson interval of the share of non-members with scores as high as "
                "those of the list"
            ),
        ),
    },
    key=("rank",),
)


@dataclasses.dataclass(frozen=True)
class _Samples:
    """All samples under the attacked models that are described."""

    member_N: np.ndarray
    score_N: np.ndarray
    above_N: np.ndarray
    votes_N: np.ndarray
    called_at_N: np.ndarray
    threshold_T: np.ndarray
    """Of the focus rate, under each model."""


def _models(scores: Scores) -> int:
    """Returns how many attacked models are described: all replicas, or one target."""
    return len(scores.targets) if scores.spec.targets_are_replicas else 1


def _samples(
    scores: Scores, band: tuple[float, float], focus_fpr: float, fprs: tuple[float, ...]
) -> _Samples:
    """Describes all samples, from one pass over the models."""
    models, member_N = _models(scores), scores.member_TxN[0]
    points = scores.operating_points(fprs, band)
    threshold_T = points.threshold_TxF[:models, fprs.index(focus_fpr)]
    # Nothing is called a member at a rate that the non-members cannot show.
    threshold_T = np.where(
        np.isnan(points.tpr_TxF[:models, fprs.index(focus_fpr)]), np.inf, threshold_T
    )
    sum_N, above_N = np.zeros(member_N.size), np.zeros(member_N.size)
    votes_N, called_at_N = np.zeros(member_N.size, np.int64), np.full(member_N.size, np.nan)
    for t in range(models):
        score_N = scores.file.read_target(t)
        outside_K = np.sort(score_N[~member_N & ~np.isnan(score_N)])
        sum_N += score_N
        above_N += np.searchsorted(outside_K, score_N, side="left") / (outside_K.size or np.nan)
        votes_N += score_N >= threshold_T[t]
        if t == 0:
            for fpr in reversed(CALLED_AT):
                if outside_K.size >= stats.nonmembers_needed(fpr):
                    called_at_N[score_N >= stats.threshold_at_fpr(outside_K, fpr)] = fpr
    is_missing_N = np.isnan(sum_N)
    above_N[is_missing_N] = np.nan
    return _Samples(member_N, sum_N / models, above_N / models, votes_N, called_at_N, threshold_T)


def headline_samples(
    scores: Scores, *, band: tuple[float, float], focus_fpr: float, fprs: tuple[float, ...]
) -> Iterator[pd.DataFrame]:
    """Yields headline_samples.parquet."""
    samples = scores.once(_samples, band=band, focus_fpr=focus_fpr, fprs=fprs)
    models, member_N = _models(scores), samples.member_N
    id_N = scores.first_id + np.arange(member_N.size)
    p_N = np.full(member_N.size, np.nan)
    outside_N = ~member_N & ~np.isnan(samples.score_N)
    if outside_N.any():
        p_N[member_N] = stats.conformal_p_value(
            samples.score_N[member_N],
            samples.score_N[outside_N],
            id_N=id_N[member_N],
            nonmember_id_K=id_N[outside_N],
        )
    votes_N = np.where(np.isnan(samples.score_N), np.nan, samples.votes_N)
    flip_N = coin_N = np.full(member_N.size, np.nan)
    if models > 1:
        of_votes_K = np.arange(models + 1)
        flip_K, coin_K = stats.flip_rate(of_votes_K, models), stats.p_value(of_votes_K, models)
        flip_N, coin_N = (
            np.where(np.isnan(votes_N), np.nan, value_K[samples.votes_N])
            for value_K in (flip_K, coin_K)
        )
    columns = {
        "id": id_N,
        "member": member_N,
        "score": samples.score_N,
        "above": samples.above_N,
        "votes": votes_N,
        "flip_rate": flip_N,
        "coin_flip_p": coin_N,
        "called_at": samples.called_at_N,
        "p_value": p_N,
    }
    for low in range(0, member_N.size, _GROUP_SAMPLES):
        at = slice(low, low + _GROUP_SAMPLES)
        yield pd.DataFrame({name: value_N[at] for name, value_N in columns.items()})


def page_samples(
    scores: Scores,
    *,
    alpha: float,
    band: tuple[float, float],
    focus_fpr: float,
    fprs: tuple[float, ...],
) -> pa.Table:
    """Returns page_samples.parquet."""
    samples = scores.once(_samples, band=band, focus_fpr=focus_fpr, fprs=fprs)
    models, member_N = _models(scores), samples.member_N
    order_N = np.argsort(-samples.score_N, kind="stable")
    order_N = order_N[~np.isnan(samples.score_N[order_N])]
    is_member_N = member_N[order_N]
    chosen: dict[int, list[str]] = {}
    candidates = {TOP: order_N[is_member_N], FALSE_ALARMS: order_N[~is_member_N]}
    if models > 1:
        k_low, _ = stats.coin_flip_cutoff(models, alpha)
        if k_low:  # otherwise the votes cannot rule out a coin flip for any sample
            is_coin_N = (samples.votes_N >= k_low) & (samples.votes_N <= models - k_low)
            flip_N = stats.flip_rate(samples.votes_N, models)
            coins = order_N[is_member_N & is_coin_N[order_N]]
            candidates[COIN_FLIPS] = coins[np.argsort(-flip_N[coins], kind="stable")]
        alarms = candidates[FALSE_ALARMS]
        candidates[FALSE_ALARMS] = alarms[samples.votes_N[alarms] > 0]
    for key, found in candidates.items():
        for i in found[: _NUM_SHOWN[key]]:
            chosen.setdefault(int(i), []).append(key)
    position_S = np.sort(np.array([*chosen], np.int64))
    # Models that are described together leave out the same references.
    _, inputs = next(iter(scores.inputs.by_target()))
    block = select_samples(dataclasses.replace(inputs, statistics=()), position_S)
    in_S, out_S = [], []
    base_N = scores.inputs.base_loss_N2
    for s, i in enumerate(position_S):
        loss_R, member_R = block.reference_loss_RxC[:, s], block.reference_member_RxC[:, s]
        is_known_R = ~np.isnan(loss_R)
        in_S.append(loss_R[member_R & is_known_R])
        out_S.append(loss_R[~member_R & is_known_R])
        if not loss_R.size and base_N is not None:
            out_S[-1] = base_N[[i]]
    score_TxS = np.stack([scores.file.read_target(t)[position_S] for t in range(models)])
    columns = {
        "id": scores.first_id + position_S,
        "chosen_by": [chosen[int(i)] for i in position_S],
        "text": [_shortened(text) for text in scores.population.texts(position_S)],
        "in_loss_nats": _lists(in_S),
        "out_loss_nats": _lists(out_S),
        "model_loss_nats": _lists(list(block.loss_TxC[:models].T)),
        "called": (score_TxS >= samples.threshold_T[:, None]).T.tolist(),
    }
    table = pa.table(columns)
    return table.take(np.argsort(-samples.score_N[position_S], kind="stable"))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} …"


def _lists(values: list[np.ndarray]) -> pa.Array:
    return pa.array([np.asarray(value, np.float64) for value in values], pa.list_(pa.float64()))


def exposed(view: StudyView, write: Write, *, headline: str) -> Mapping[str, Any]:
    """Computes exposed.csv."""
    table = view.table(HEADLINE_SAMPLES.file, ["id", "member", "score", "votes", "p_value"]).dropna(
        subset=["score"]
    )
    members, nonmembers = table[table["member"]], int((~table["member"]).sum())
    if not len(members) or not nonmembers:
        raise Unavailable(
            "no member or no non-member has a score; run lm-mia run for more models, or choose another attack.headline"
        )
    attack_M = view.table(_MODELS, ["attack"])["attack"]
    models = int((attack_M == user_code.short(headline)).sum()) if view.roles.replicas else 1
    listed = members.sort_values(["p_value", "score"], ascending=[True, False], kind="stable")
    p_K = listed["p_value"].to_numpy()
    rank_K = np.arange(1, len(listed) + 1)
    # The least that a longer list has: members that are added to it are no more likely to be wrong.
    share_K = p_K * len(listed) / rank_K
    wrong_K = np.minimum.accumulate(share_K[::-1])[::-1]
    shown = slice(MOST_EXPOSED)
    least_K = np.flatnonzero(share_K == wrong_K)  # lists whose share is that of all shorter ones
    list_K = least_K[np.searchsorted(least_K, np.arange(len(listed))[shown])]
    alarms_K = np.rint(p_K[list_K] * (nonmembers + 1)).astype(int) - 1
    low_K, high_K = stats.clopper_pearson(alarms_K, nonmembers)
    scale_K = len(members) / rank_K[list_K]
    listed, population = listed[shown], view.population
    positions = listed["id"].to_numpy()
    of_records = {
        name: population.column(name)[positions] if name in population.column_names else ""
        for name in RECORD_COLUMNS
    }
    columns = {
        "rank": rank_K[shown],
        "id": positions,
        **of_records,
        "score": listed["score"].to_numpy(),
        "p_value": p_K[shown],
        "found_in": listed["votes"].to_numpy().astype(int),
        "models": models,
        "wrong_share": np.minimum(wrong_K[shown], 1.0),
        "wrong_share_low": np.minimum(low_K * scale_K, 1.0),
        "wrong_share_high": np.minimum(high_K * scale_K, 1.0),
    }
    write(EXPOSED.file, pd.DataFrame(columns))
    return {}


def longest_list(exposed: pd.DataFrame, wrong_share: float) -> int:
    """Returns the length of the longest list of members with at most an expected share of wrong entries."""
    below = exposed.loc[exposed["wrong_share"] <= wrong_share, "rank"]
    return int(below.max()) if len(below) else 0


# --- What the page shows ----------------------------------------------------------------------------------------------

_UNITS = {
    "stacked": "log odds",
    "lira_online": "log likelihood ratio",
    "loss": "nats per token",
    "reference_calibrated": "nats per token",
    "base_calibrated": "nats per token",
}
"""Units of the scores of attacks that have one which a reader knows."""
_WRONG_SHARE = 0.05
"""Of the list that the page names."""


def score_unit(attack: str) -> str:
    """Returns the unit of the scores of an attack; "score" for those without a known one."""
    return _UNITS.get(attack, "score")


def section(recipe: RecipeResults, strength: Strength, from_workdir: str = "") -> document.Section:
    """Returns the section "Which texts are most exposed?"; ``from_workdir`` leads from the page to the workdir."""
    columns = ["id", "member", "score", "above", "votes", "called_at"]
    table = recipe.view.table(HEADLINE_SAMPLES.file, columns)
    blocks: tuple[document.Block, ...] = (
        _summary(recipe, strength, table),
        _samples_table(recipe, strength, table),
        document.Note(_files(recipe, from_workdir)),
    )
    return document.Section("samples", "Samples", "Which texts are most exposed?", blocks)


def _summary(recipe: RecipeResults, strength: Strength, table: pd.DataFrame) -> str:
    members = table[table["member"] & table["votes"].notna()]
    trainings, total = strength.trainings, len(members)
    at = numbers.false_alarms(strength.fpr)
    sentences = []
    if strength.has_replicas:
        k_low, _ = stats.coin_flip_cutoff(trainings, recipe.view.c.alpha)
        always = int((members["votes"] == trainings).sum())
        if k_low > 1:
            steady = int((members["votes"] > trainings - k_low).sum())
            sentences.append(
                f"{steady:,} of {total:,} members ({100 * steady / total:.0f} %) are steady hits: found in "
                f"{trainings - k_low + 1} or more of {trainings} trainings. {always:,} are found in all {trainings}."
            )
        else:
            sentences.append(
                f"{always:,} of {total:,} members ({100 * always / total:.0f} %) are found in all {trainings} "
                "trainings."
            )
    else:
        found = int((members["votes"] > 0).sum())
        strict = int((members["called_at"] <= CALLED_AT[0]).sum())
        sentences.append(
            f"{found:,} of {total:,} members are found at {at}"
            + (f", {strict:,} of them even at 1 per 1,000." if strict else ".")
        )
        if trainings > 1:
            sentences.append(f"The list is that of the first of the {trainings} attacked models.")
    exposed = recipe.view.table(EXPOSED.file)
    length = longest_list(exposed, _WRONG_SHARE)
    if length:
        sentences.append(
            f"Of the {length:,} members with the highest scores, at most {100 * _WRONG_SHARE:.0f} % are expected to "
            "be there by chance, not by training."
        )
    else:
        sentences.append(
            f"Even of the members with the highest scores, {100 * exposed['wrong_share'].min():.0f} % are expected to "
            "be there by chance, not by training."
        )
    if strength.has_replicas:
        sentences.append("Another training reorders similar scores.")
    sentences.append("Choose one for its text and losses.")
    return " ".join(sentences)


def _files(recipe: RecipeResults, from_workdir: str) -> Markup:
    folder = f"recipes/{recipe.name}"
    link = Markup('<a href="{}/samples.html">search and filter</a>').format(from_workdir + folder)
    return Markup(
        "All {:,} samples: {}, or <code>{}/tables/{}</code>; the list with expected wrong entries: {}."
    ).format(
        len(recipe.view.attacked),
        link,
        folder,
        HEADLINE_SAMPLES.file,
        Markup("<code>{}/tables/{}</code>").format(folder, EXPOSED.file),
    )


def _samples_table(
    recipe: RecipeResults, strength: Strength, table: pd.DataFrame
) -> document.SamplesTable:
    trainings, attack = strength.trainings, recipe.view.c.headline
    k_low = 0
    has_votes = strength.has_replicas
    if has_votes:
        k_low, _ = stats.coin_flip_cutoff(trainings, recipe.view.c.alpha)
    shown = recipe.view.table(PAGE_SAMPLES.file)
    of_sample = table.set_index("id").loc[shown["id"]]
    position_S = shown["id"].to_numpy()
    population = recipe.population
    record_columns = [
        population.column(name)[position_S]
        for name in ("name", "source")
        if name in population.column_names
    ]
    samples = []
    for s, row in enumerate(shown.to_dict("records")):
        numbers_of = of_sample.iloc[s]
        called_at = float(numbers_of["called_at"])
        samples.append(
            document.Sample(
                str(row["id"]),
                bool(numbers_of["member"]),
                float(numbers_of["score"]),
                float(numbers_of["above"]),
                tuple(row["chosen_by"]),
                str(row["text"]),
                next((str(column_S[s]) for column_S in record_columns if column_S[s]), ""),
                int(numbers_of["votes"]) if has_votes else None,
                "" if math.isnan(called_at) else numbers.rate(called_at),
                tuple(map(float, row["in_loss_nats"])),
                tuple(map(float, row["out_loss_nats"])),
                tuple(map(float, row["model_loss_nats"])),
                tuple(map(bool, row["called"])),
            )
        )
    members = table["member"] & table["votes"].notna()
    filters = [document.SampleFilter(TOP, "Most exposed members", int(members.sum()))]
    unit = score_unit(attack)
    columns = [
        document.SampleColumn("text", "Text"),
        document.SampleColumn(
            "score", "Score", "" if unit == "score" else unit, "score", _decimals(samples)
        ),
        document.SampleColumn(
            "above", "Higher than", "% of non-members", "higher than (% of non-members)"
        ),
    ]
    if has_votes:
        columns.append(
            document.SampleColumn("votes", "Found in", f"of {trainings} trainings", "found in")
        )
        if k_low:
            coins = members & table["votes"].between(k_low, trainings - k_low)
            filters.append(
                document.SampleFilter(
                    COIN_FLIPS, "Members decided by a coin flip", int(coins.sum())
                )
            )
        alarms = ~table["member"] & (table["votes"] > 0)
        filters.append(document.SampleFilter(FALSE_ALARMS, "False alarms", int(alarms.sum())))
        caption = (
            f"Score: of {attack_name(attack)}, mean of {trainings} trainings. Found in: trainings that call the text "
            f"a member at {numbers.false_alarms(strength.fpr)}."
        )
    else:
        columns.append(
            document.SampleColumn(
                "label", "Called a member at", "false alarms per 100", "called a member at"
            )
        )
        outside = ~table["member"] & table["votes"].notna()
        filters.append(
            document.SampleFilter(
                FALSE_ALARMS, "Non-members with the highest scores", int(outside.sum())
            )
        )
        caption = (
            f"Score: of {attack_name(attack)}. Called a member at: the strictest of 0.1, 1, 5, 10 and 20 false alarms "
            "per 100 at which the text is called a member."
        )
    has_references = bool(strength.references)
    return document.SamplesTable(
        caption,
        tuple(columns),
        tuple(f for f in filters if f.total),
        tuple(samples),
        trainings if has_votes else 1,
        k_low,
        out_title="References without it" if has_references else "Base model",
        loss_note=_loss_note(has_votes, has_references, trainings),
    )


def _decimals(samples: Sequence[document.Sample]) -> int:
    """Returns the number of decimals of scores: three digits of the largest one, so that few scores look equal."""
    largest = max((abs(sample.score) for sample in samples), default=1.0)
    return 3 if largest < 2 else 2 if largest < 5 else 1


def _loss_note(has_votes: bool, has_references: bool, trainings: int) -> str:
    own = (
        f"the {trainings} trainings of the model under attack (filled: “member”)"
        if has_votes
        else "the model under attack"
    )
    if has_references:
        return (
            "Loss of this text under the references that were trained on it, under those that were not, and under "
            f"{own}."
        )
    return f"Loss of this text under the base model, if there is one, and under {own}."


ATTACK_TABLES = (
    AttackTable(HEADLINE_SAMPLES, headline_samples, of_headline=True),
    AttackTable(PAGE_SAMPLES, page_samples, of_headline=True),
)
STUDY = Study("exposed", exposed, (EXPOSED,), reads=(HEADLINE_SAMPLES.file, _MODELS))
