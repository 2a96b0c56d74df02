"""Open question 3: does recency, the step at which a replica last saw a sample, explain why its decisions flip?

Replicas have one training subset and one initialization, and differ in the order of their batches. Each replica last
saw a member at a step of its own, which follows from its seed. Bins of this step are compared with the loss, the
membership score and the decision at attack.focus_fpr (`stats.explained_within_samples`).

    recency.parquet         explained shares, with all models and samples, and with parts of them
    recency_rates.parquet   decision rate of members by bin, with all and with parts
    recency_shuffled.csv    explained shares where the last steps are those of other replicas, which explain nothing

B: replicas, N: the samples that are used, M: members, K: bins, Q: quantities, S: shares, A1, R1, H1: as in
`lm_mia.stats.jackknife`.
"""

import sys
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import io, plotting, studies
from analysis.claims.compare import Estimate, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from lm_mia import stats
from lm_mia.attacks import study_inputs
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.spec import Study, StudyNeed
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data.batch_order import Batches
from lm_mia.errors import Unavailable

TABLE, RATES, SHUFFLED = "recency.parquet", "recency_rates.parquet", "recency_shuffled.csv"
BINS = 8
QUANTITIES = ("loss", "score", "decision")
_SHARE_NAMES = ("share", "own_share", "own_curve_share")


def compute(
    view: StudyView,
    write: Write,
    *,
    focus_fpr: float,
    batches: Batches,
    variance: Literal["per_sample", "pooled"],
    finite_population: bool,
) -> None:
    """Computes the tables of the study.

    Raises:
      Unavailable: there are too few replicas or references, or the batch order is not known.
      UserError: scores are corrupt.
    """
    if view.store.design == "given":
        raise Unavailable("the batch order of imported losses is not known")
    lira = {"variance": variance, "finite_population": finite_population}
    inputs = study_inputs.replicas(view)
    parts = study_inputs.first_parts(inputs)
    loss_BxN = np.concatenate([part.loss_TxC for part in parts], axis=1).astype(np.float64)
    samples = loss_BxN.shape[1]
    member_N = inputs.target_member_TxN2[0, :samples]
    last_seen_BxN = _last_seen(batches, inputs, samples)
    edges = np.quantile(last_seen_BxN[:, member_N], np.arange(1, BINS) / BINS)
    bin_BxN = np.searchsorted(edges, last_seen_BxN, side="right")
    group_N = stats.sample_groups(view.attacked.document_N)[:samples]
    kept_A1xB = study_inputs.without_replicas(len(inputs.targets))
    shuffled: list[pd.DataFrame] = []

    def evaluate(references: int, score_BxN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns share_A1xH1xQxS, of `_SHARE_NAMES`, and rate_A1xH1xK."""
        present_N = ~np.isnan(score_BxN).any(axis=0)
        used_H1xN = study_inputs.sample_parts(group_N) & present_N
        share = np.full(
            (len(kept_A1xB), len(used_H1xN), len(QUANTITIES), len(_SHARE_NAMES)), np.nan
        )
        rate = np.full((*share.shape[:2], BINS), np.nan)
        for h, used_N in enumerate(used_H1xN):
            members_N, outside_BxN = used_N & member_N, score_BxN[:, used_N & ~member_N]
            if not (members_N.any() and study_inputs.has_threshold(outside_BxN, focus_fpr)):
                continue
            score_BxM, bin_BxM = score_BxN[:, members_N], bin_BxN[:, members_N]
            threshold_B = study_inputs.thresholds_at_fpr(outside_BxN, focus_fpr)
            decision_BxM = (score_BxM >= threshold_B[:, None]).astype(np.float64)
            value_QxBxM = (loss_BxN[:, members_N], score_BxM, decision_BxM)
            for a, kept_B in enumerate(kept_A1xB):
                share[a, h] = [_shares(v[kept_B], bin_BxM[kept_B]) for v in value_QxBxM]
                rate[a, h] = _bin_means(decision_BxM[kept_B], bin_BxM[kept_B])
            if h == references == 0:
                shuffled.append(_shuffled(value_QxBxM, bin_BxM))
        return share, rate

    halves = study_inputs.reference_halves(inputs.references)
    results = study_inputs.map_reference_sets(inputs, halves, lira, view.work.pool, evaluate)
    share_A1xR1xH1xQxS, rate_A1xR1xH1xK = (np.stack(v, axis=1) for v in zip(*results, strict=True))
    by_quantity = [
        study_inputs.parts_table(
            {name: share_A1xR1xH1xQxS[..., q, s] for s, name in enumerate(_SHARE_NAMES)}
        ).assign(quantity=quantity)
        for q, quantity in enumerate(QUANTITIES)
    ]
    mean_last_seen_K = _bin_means(last_seen_BxN[:, member_N], bin_BxN[:, member_N])
    by_bin = [
        study_inputs.parts_table({"decision_rate": rate_A1xR1xH1xK[..., k]}).assign(
            bin=k, last_seen=mean_last_seen_K[k], fpr=focus_fpr
        )
        for k in range(BINS)
    ]
    write(TABLE, pd.concat(by_quantity, ignore_index=True))
    write(RATES, pd.concat(by_bin, ignore_index=True))
    write(SHUFFLED, pd.concat(shuffled, ignore_index=True))


def _last_seen(batches: Batches, inputs: AttackInputs, samples: int) -> np.ndarray:
    """Returns last_seen_BxN of the first attacked samples, as a fraction of the steps; 0 if not seen."""
    store = inputs.store
    [(_, value)] = store.blocks({"member": ("member", inputs.targets[:1])}, sys.maxsize)
    used = slice(store.first_canary, store.first_canary + samples)
    return np.nan_to_num(
        [
            batches.last_seen_share(replica.order_seed, value["member"][0], store.step)[used]
            for replica in inputs.targets
        ]
    )


def _shares(value_BxM: np.ndarray, bin_BxM: np.ndarray) -> tuple[float, ...]:
    """Returns the numbers named in `_SHARE_NAMES`."""
    found = stats.explained_within_samples(value_BxM, bin_BxM, BINS)
    return found.share, found.own_share, found.own_curve_share


def _bin_means(value_BxM: np.ndarray, bin_BxM: np.ndarray) -> np.ndarray:
    """Returns mean_K, the mean over pairs of replica and member in each bin; NaN if there are none."""
    count_K = np.bincount(bin_BxM.ravel(), minlength=BINS)
    sum_K = np.bincount(bin_BxM.ravel(), value_BxM.ravel(), minlength=BINS)
    return sum_K / np.where(count_K > 0, count_K, np.nan)


def _shuffled(value_QxBxM: tuple[np.ndarray, ...], bin_BxM: np.ndarray) -> pd.DataFrame:
    """Returns recency_shuffled.csv: the shares where replica b + shift gives the last step of replica b."""
    rows = [
        {"quantity": quantity, "shift": shift}
        | dict(zip(_SHARE_NAMES, _shares(value_BxM, np.roll(bin_BxM, -shift, axis=0)), strict=True))
        for quantity, value_BxM in zip(QUANTITIES, value_QxBxM, strict=True)
        for shift in range(1, len(bin_BxM))
    ]
    return pd.DataFrame(rows)


STUDY = Study(
    "recency",
    compute,
    tables=(
        Table(
            "recency.parquet",
            (
                "Written for figures that need the study `recency`. Each row is a quantity and a choice of replicas, "
                "references and samples. The numbers are about members among the first 32,768 samples under replicas, "
                "which last saw them at different steps. The steps are divided into eight bins with about equally many "
                "members each. Shares are of the variance between replicas around the mean of each sample, and are "
                "adjusted for the number of parameters, so that they may be below 0."
            ),
            {
                "replicas, references, samples": Column(
                    "none", "as in `decision_jackknife.parquet`"
                ),
                "quantity": Column(
                    "none",
                    "`loss`, `score` of online LiRA, or `decision` at `attack.focus_fpr`, which is 0 or 1",
                ),
                "share": Column(
                    "fraction",
                    "variance that the means of the bins explain, apart from the differences between samples",
                ),
                "own_share": Column(
                    "fraction",
                    "variance that these means explain if each sample multiplies them by a factor of its own",
                ),
                "own_curve_share": Column(
                    "fraction",
                    "variance that curves explain if each sample has one of its own: the means of its own bins",
                ),
            },
            key=("quantity", "replicas", "references", "samples"),
        ),
        Table(
            "recency_rates.parquet",
            "Written with `recency.parquet`. Each row is a bin and a choice of replicas, references and samples.",
            {
                "replicas, references, samples": Column(
                    "none", "as in `decision_jackknife.parquet`"
                ),
                "decision_rate": Column(
                    "fraction",
                    'pairs of a replica and a member in the bin for which the decision is "member"',
                ),
                "bin": Column("none", "number of the bin, 0 for the earliest steps"),
                "last_seen": Column(
                    "fraction",
                    "mean over all members in the bin of the step, divided by the number of steps",
                ),
                **common("fpr"),
            },
            key=("bin", "replicas", "references", "samples"),
        ),
        Table(
            "recency_shuffled.csv",
            (
                "Written with `recency.parquet`. The same shares where the steps of each replica are replaced by "
                "those of another one, so that they explain nothing."
            ),
            {
                "quantity": Column("none", "as in `recency.parquet`"),
                "shift": Column(
                    "count",
                    "number of the other replica minus that of the replica; numbers begin again after the last one",
                ),
                "share, own_share, own_curve_share": Column("fraction", "as in `recency.parquet`"),
            },
            key=("quantity", "shift"),
        ),
    ),
)

RECIPE = "flip-140M"
_QUANTITIES = {"loss": "Loss", "score": "Score", "decision": "Decision"}
_SHARES = {
    "share": ("One curve for all samples", plotting.BLUE),
    "own_share": ("A factor for each sample", plotting.SKY),
    "own_curve_share": ("A curve for each sample", plotting.ORANGE),
}
STATEMENTS = (
    "A member that was seen later in training is more often called a member.",
    "Recency explains most of the variance of decisions between replicas.",
)


def draw(recipes: SweepResults) -> Drawing:
    """Draws the decision rate of members by their last step, and how much of the variance this step explains."""
    recipe = recipes[RECIPE]
    columns = io.read_samples(recipe, ["bin", "last_seen", "fpr"], RATES)
    bins = pd.DataFrame(columns).drop_duplicates()
    at = f"at an FPR of {percent(float(bins['fpr'].iloc[0]))}"
    rate_K = [studies.read_parts(recipe, RATES, "decision_rate", {"bin": k}) for k in bins["bin"]]
    rates = pd.DataFrame(
        _row(rate.estimate(), statistic="decision_rate", last_seen=x)
        for rate, x in zip(rate_K, bins["last_seen"], strict=True)
    )
    shares = _explained(recipe)
    of_decision = studies.read_parts(recipe, TABLE, "share", {"quantity": "decision"})
    later = rate_K[-1] - rate_K[0]
    claims = (
        claim_greater(
            STATEMENTS[0],
            f"Members called members {at}, last minus first eighth of the steps",
            later.estimate(),
        ),
        claim_greater(
            STATEMENTS[1],
            f"Share of the variance of decisions between replicas {at} that recency explains",
            of_decision.estimate(),
            level=0.5,
        ),
    )
    by_name = shares.set_index(["quantity", "statistic"])["value"]
    explained = {
        statistic: ", ".join(
            f"{percent(by_name[quantity, statistic])} of that of the {quantity}"
            for quantity in _QUANTITIES
        )
        for statistic in _SHARES
    }
    return Drawing(
        pd.concat([rates, shares], ignore_index=True),
        _figure(rates, shares, at),
        claims=claims,
        notes=(
            f"The {len(recipe.replicas)} replicas differ in the order of their batches only, so that each of them last "
            "saw a member at another step. The variance is that between replicas, around the mean of each sample. "
            "Shares are adjusted for the number of parameters. Bars are 95% intervals over replicas, references and "
            "samples.",
            f"A curve over {len(bins)} bins of the last step, the same for all samples, explains "
            f"{explained['share']}. If each sample multiplies this curve by a factor of its own, it explains "
            f"{explained['own_share']}; and if each sample has a curve of its own, {explained['own_curve_share']}.",
            "Grey lines are the range of these shares where the last steps of each replica are replaced by those of "
            "another one.",
            unsupported_note(claims),
        ),
    )


def _row(estimate: Estimate, **columns: object) -> dict[str, object]:
    return {**columns, "value": estimate.value, "low": estimate.low, "high": estimate.high}


def _explained(recipe: RecipeResults) -> pd.DataFrame:
    """Returns rows (quantity, statistic, value, low, high, shuffled_low, shuffled_high) of the explained shares."""
    shuffled = io.read_frame(recipe, SHUFFLED)
    rows = []
    for quantity in _QUANTITIES:
        of_quantity = shuffled[shuffled["quantity"] == quantity]
        for statistic in _SHARES:
            number = studies.read_parts(recipe, TABLE, statistic, {"quantity": quantity})
            chance = of_quantity[statistic]
            rows.append(
                _row(number.estimate(), quantity=quantity, statistic=statistic)
                | {"shuffled_low": chance.min(), "shuffled_high": chance.max()}
            )
    return pd.DataFrame(rows)


def _figure(rates: pd.DataFrame, shares: pd.DataFrame, at: str) -> Figure:
    figure = plotting.new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    plotting.errorbars(
        left, [*rates["last_seen"]], [*rates["value"]], [*rates["high"]], plotting.BLUE
    )
    left.set(
        xlabel="Last seen (fraction of the steps)",
        ylabel="Members called members",
        title=f"(a) Decisions {at}",
    )
    left.set_xlim(0, 1)
    left.set_ylim(bottom=0)
    for offset, (statistic, (label, color)) in zip((-0.24, 0, 0.24), _SHARES.items(), strict=True):
        rows = shares[shares["statistic"] == statistic]
        x = [k + offset for k in range(len(rows))]
        plotting.errorbars(right, x, [*rows["value"]], [*rows["high"]], color, label, "o")
        right.vlines(
            [position + 0.07 for position in x],
            rows["shuffled_low"],
            rows["shuffled_high"],
            color=plotting.GREY,
            linewidth=4,
        )
    right.axhline(0, color=plotting.GREY, linewidth=1)
    right.set_xticks(range(len(_QUANTITIES)), [*_QUANTITIES.values()])
    right.set_xlim(-0.5, len(_QUANTITIES) - 0.5)
    right.set(ylabel="Explained share of the variance", title="(b) Variance between replicas")
    right.set_ylim(top=1.3 * shares["high"].max())
    right.legend(fontsize=9, loc="upper right")
    for axes in (left, right):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


EXPERIMENTS = {
    "open_fig03_recency": Experiment(
        title="Open question 3: Recency and flips",
        about=(
            "Members that were last seen near the end of training are more vulnerable (Section 6.1, Figure 6a). The "
            "paper does not ask whether this explains why decisions differ between replicas, which last saw the same "
            "members at other steps."
        ),
        statements=STATEMENTS,
        draw=draw,
        reads=(StudyNeed((RECIPE,), STUDY),),
    )
}
