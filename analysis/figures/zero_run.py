"""CausalMIA Figures 3c and 4, and our Figure 7: members and non-members from different sources, with known truth.

Every reference is the one run that an evaluator sees. The evaluation set of a run has members and non-members that
differ in more than membership. The error of an estimator is its difference from the truth, which is computed from the
other models (see `lm_mia.attacks.zero_run`).

M: runs, K: non-members.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import io, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.experiment import Drawing, Experiment, not_seen_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from analysis.zero_run import ESTIMATORS, METRICS, STYLES, TABLE, shift_title
from analysis.zero_run import read as read_zero_run
from lm_mia.attacks.registry import attack_name
from lm_mia.errors import Unavailable

RECIPE = "epochs-140M"
STRENGTH = 2.0
"""The strength of the graded shift in figures that show one."""
SHIFTS = {name: shift_title(name, STRENGTH) for name in ("groups", "graded", "disjoint")}
"""Shift -> its title."""
CORRECTED = ("ipw", "g_formula", "aipw")
"""Estimators that learn the difference between members and non-members from covariates."""
COMPARED = ("naive", "ipw", "iid")
"""Estimators whose AUCs are in the paper."""
MARGIN = 0.02
"""AUCs that differ by less than this agree."""
NOT_COVERED = ("the samples",)
"""All runs share the samples of the population, so intervals over runs hold them fixed."""
FIG03C_STATEMENTS = (
    "The unadjusted AUC is above the truth.",
    "Learned weights bring the AUC closer to the truth.",
    "With learned weights, the AUC agrees with the AUC on non-members from the same source.",
)
FIG04_STATEMENTS = ("The largest 10% of the weights carry more than half of the total weight.",)
FIG07_STATEMENTS = (
    "The error of the unadjusted AUC grows with the strength of the shift.",
    "At a strength of 2, IPW, the G-formula and AIPW each have a smaller error than the unadjusted AUC.",
)


def read(recipe: RecipeResults) -> pd.DataFrame:
    """Reads zero_run.csv of a recipe, with the column pair: the number of each run, shared with its complement if any.

    Raises:
      Unavailable: the recipe has no zero-run evaluation.
    """
    zero_run = read_zero_run(recipe)
    if zero_run is None or not zero_run.settings:
        raise Unavailable(
            f"{recipe.name}: there is no zero-run evaluation; run lm-mia attack with "
            "--config.attack.zero_run=groups,graded,disjoint"
        )
    table = io.read_frame(recipe, TABLE)
    position = {name: i for i, name in enumerate(table["model"].unique())}
    return table.assign(pair=table["model"].map(position) // (2 if zero_run.pairs else 1))


def values(
    table: pd.DataFrame, shift: str, attack: str, strength: float | None = None
) -> pd.DataFrame:
    """Returns the rows of one shift and attack.

    Args:
      table: the result of `read`.
      shift, attack: which rows.
      strength: the strength of the graded shift; None: `STRENGTH`.

    Raises:
      Unavailable: there are none.
    """
    rows = table[(table["shift"] == shift) & (table["attack"] == attack)]
    if shift == "graded":
        rows = rows[rows["strength"] == (STRENGTH if strength is None else strength)]
    if rows.empty:
        raise Unavailable(
            f"{TABLE} has no rows of {attack} with the shift {shift}; run lm-mia attack with it in "
            "--config.attack.zero_run"
        )
    return rows


def errors(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the error of each estimator (column) in each run, or pair of complementary runs.

    A model and its complement share every draw, so that they count once.
    """
    value = rows.pivot(index=["pair", "model"], columns="estimator", values=metric)
    error = value.drop(columns="truth").sub(value["truth"], axis=0)
    return error.groupby("pair").mean()


def over_runs(value_M: pd.Series | np.ndarray) -> Estimate:
    """Returns the mean over runs with its t interval, which holds the samples of the population fixed."""
    value_M = np.asarray(value_M, float)
    value_M = value_M[~np.isnan(value_M)]
    count = len(value_M)
    if count < 2:
        mean = float(value_M.mean()) if count else np.nan
        return Estimate(mean, np.nan, np.nan, f"{count} runs", NOT_COVERED)
    term = VarianceTerm(float(value_M.var(ddof=1)) / count, count - 1)
    return Estimate.from_variance(float(value_M.mean()), [term], f"{count} runs", NOT_COVERED)


def draw_fig03c(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of the first run under each shift, and the AUCs of all runs."""
    recipe = recipes[RECIPE]
    table = read(recipe)
    curves = io.read_frame(recipe, "zero_run_curves.csv")
    shifts = [shift for shift in SHIFTS if shift in set(table["shift"])]
    figure = plotting.new_figure(5.2 * len(shifts), 8.6)
    grid = figure.subplots(2, len(shifts), squeeze=False)
    frames = []
    for column, shift in enumerate(shifts):
        rows = values(table, shift, "loss")
        frames.append(_draw_curves(grid[0, column], curves, shift))
        frames.append(_draw_errors(grid[1, column], rows, shift))
    grid[0, 0].legend(fontsize=9, loc="lower right")
    rows = values(table, "groups", "loss")
    error = errors(rows, "auc")
    claims = (
        claim_greater(
            FIG03C_STATEMENTS[0], "Error of the unadjusted AUC", over_runs(error["naive"])
        ),
        claim_greater(
            FIG03C_STATEMENTS[1],
            "Absolute error of the unadjusted AUC minus that with learned weights",
            over_runs(error["naive"].abs() - error["ipw"].abs()),
        ),
        claim_equivalent(
            FIG03C_STATEMENTS[2],
            "AUC with learned weights minus that with non-members from the same source",
            over_runs(error["ipw"] - error["iid"]),
            MARGIN,
        ),
    )
    auc = rows.groupby("estimator")["auc"]
    ours = {f"auc_{name}": (float(auc.mean()[name]), float(auc.std()[name])) for name in COMPARED}
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        ours=ours,
        not_comparable=frozenset(ours),
        notes=(
            "Each reference in turn is the model under evaluation, the run. The truth is the AUC on its members, "
            "computed from their losses under the other models, some of which were trained on each member and some of "
            "which were not. ROC curves are those of the first run.",
            "Groups: 90% of the members and 10% of the non-members are from packages with a low loss. Graded: samples "
            "with a high TF-IDF are more often members. Disjoint: members and non-members have no package in common, "
            "so no estimator can adjust for the difference.",
            "; ".join(
                f"{label}: learned weights lack overlap in {percent(_share_flagged(table, shift))} of the runs"
                for shift, label in SHIFTS.items()
                if shift in shifts
            )
            + ".",
            not_seen_note(claims),
        ),
    )


def _draw_curves(axes: Axes, curves: pd.DataFrame, shift: str) -> pd.DataFrame:
    """Draws the ROC curve of each estimator in the first run; returns rows of the data."""
    rows = curves[(curves["shift"] == shift) & (curves["attack"] == "loss")]
    if shift == "graded":
        rows = rows[rows["strength"] == STRENGTH]
    frames = []
    for estimator, label in {"truth": "Truth", **ESTIMATORS}.items():
        color, dash = _style(estimator)
        curve = rows[rows["estimator"] == estimator]
        if not curve.empty:
            axes.plot(curve["fpr"], curve["tpr"], color=color, linestyle=dash, label=label)
            series = {"series": estimator, "x": curve["fpr"], "y": curve["tpr"]}
            frames.append(pd.DataFrame(series))
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="FPR", ylabel="TPR", title=f"First run, {SHIFTS[shift]}", xlim=(0, 1), ylim=(0, 1)
    )
    return pd.concat(frames).assign(panel=f"roc, {shift}")


def _style(estimator: str) -> tuple[str, plotting.LineStyle]:
    """Returns color and line style; true weights and the truth are black."""
    color, _ = STYLES.get(estimator, (plotting.BLACK, ""))
    return color, "--" if estimator == "oracle" else "-"


def _draw_errors(axes: Axes, rows: pd.DataFrame, shift: str) -> pd.DataFrame:
    """Draws the AUC of each estimator in each run, and the true AUCs; returns rows of the data."""
    names = {"truth": "Truth", **ESTIMATORS}
    by_estimator = {name: rows[rows["estimator"] == name] for name in names}
    present = [name for name, of_name in by_estimator.items() if of_name["auc"].notna().any()]
    frames = []
    for at, name in enumerate(present):
        color, _ = _style(name)
        value_M = by_estimator[name]["auc"].to_numpy()
        spread_M = np.linspace(-0.25, 0.25, len(value_M))
        axes.plot(at + spread_M, value_M, ".", color=color, markersize=4, alpha=0.6)
        axes.plot([at - 0.32, at + 0.32], [np.nanmean(value_M)] * 2, color=color, linewidth=2.4)
        frames.append(
            pd.DataFrame({"series": name, "x": by_estimator[name]["model"], "y": value_M})
        )
    truth = by_estimator["truth"]["auc"].mean()
    axes.axhline(truth, color=plotting.BLACK, linewidth=0.9, linestyle="--")
    labels = [names[name] for name in present]
    axes.set_xticks(range(len(present)), labels, rotation=30, ha="right", fontsize=9)
    axes.set(ylabel="AUC", title=f"All runs, {SHIFTS[shift]}")
    return pd.concat(frames).assign(panel=f"auc, {shift}")


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws the losses of members and of both kinds of non-members, and the inequality of the weights."""
    recipe = recipes[RECIPE]
    table = read(recipe)
    columns = ["shift", "strength", "group", "score", "log_odds_oracle", "log_odds_learned"]
    samples = io.read_frame(recipe, "zero_run_samples.parquet", columns)
    samples = samples[samples["shift"] == "groups"]
    if samples.empty:
        raise Unavailable(
            f"{recipe.name}: there is no evaluation with the shift groups; run lm-mia attack with "
            "--config.attack.zero_run=groups,graded,disjoint"
        )
    figure = plotting.new_figure(10.6, 4.4)
    loss_axes, weight_axes = figure.subplots(1, 2)
    frames = [_draw_losses(loss_axes, samples), _draw_weights(weight_axes, samples)]
    rows = values(table, "groups", "loss")
    share_M = rows[rows["estimator"] == "ipw"].groupby("pair")["top_tenth_share"].mean()
    claims = (
        claim_greater(
            FIG04_STATEMENTS[0], "Share of the largest 10% of the weights", over_runs(share_M), 0.5
        ),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            "Both panels show the first run under the shift groups. The weights of non-members are their odds of being "
            "a member, true or learned from the text. (b) Non-members are sorted by weight, largest first.",
            not_seen_note(claims),
        ),
    )


_KINDS = {
    "member": ("Members", plotting.MEMBER),
    "iid": ("Non-members, same source", plotting.GREEN),
    "shifted": ("Non-members, other source", plotting.VERMILLION),
}


def _draw_losses(axes: Axes, samples: pd.DataFrame) -> pd.DataFrame:
    """Draws histograms of the losses of the three groups; returns rows of the data."""
    loss = -samples["score"]
    low, high = np.nanquantile(loss, [0.002, 0.998])
    edges = np.linspace(low, high, 41)
    frames = []
    for kind, (label, color) in _KINDS.items():
        value_S = loss[samples["group"] == kind]
        share_K = np.histogram(value_S, edges)[0] / max(len(value_S), 1)
        axes.stairs(share_K, edges, color=color, linewidth=1.6, label=label)
        frames.append(pd.DataFrame({"series": kind, "x": edges[:-1], "y": share_K}))
    axes.set(xlabel="Mean loss in nats per token", ylabel="Share of the samples")
    highest = max(frame["y"].max() for frame in frames)
    axes.set(title="(a) Losses under the first run", ylim=(0, 1.35 * highest))
    plotting.use_percent_axis(axes)
    axes.legend(fontsize=9, loc="upper left")
    return pd.concat(frames).assign(panel="a")


def _draw_weights(axes: Axes, samples: pd.DataFrame) -> pd.DataFrame:
    """Draws the share of the total weight that the largest weights carry; returns rows of the data."""
    shifted = samples[samples["group"] == "shifted"]
    frames = []
    for column, label, dash in (
        ("log_odds_oracle", "True weights", "--"),
        ("log_odds_learned", "Learned weights", "-"),
    ):
        log_odds_K = np.sort(shifted[column].dropna().to_numpy())[::-1]
        weight_K = np.exp(log_odds_K - log_odds_K[0])
        share_K = np.cumsum(weight_K) / weight_K.sum()
        at_K = np.arange(1, len(share_K) + 1) / len(share_K)
        axes.plot(at_K, share_K, color=plotting.GREEN, linestyle=dash, label=label)
        frames.append(pd.DataFrame({"series": column, "x": at_K, "y": share_K}))
    axes.plot(
        [0, 1], [0, 1], color=plotting.GREY, linewidth=0.8, linestyle=":", label="Equal weights"
    )
    axes.axvline(0.1, color=plotting.GREY, linewidth=0.8)
    axes.set(xlabel="Share of the non-members", ylabel="Share of the total weight", ylim=(0, 1.02))
    axes.set(title="(b) Weights, largest first", xlim=(0, 1))
    plotting.use_percent_axis(axes)
    axes.legend(fontsize=9, loc="lower right")
    return pd.concat(frames).assign(panel="b")


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the mean error of each estimator by the strength of the shift, by attack and metric."""
    table = read(recipes[RECIPE])
    graded = table[table["shift"] == "graded"]
    strengths = sorted(set(graded["strength"]))
    if len(strengths) < 2:
        raise Unavailable(
            f"{RECIPE}: needs the graded shift at several strengths; run lm-mia attack with several "
            "--config.attack.zero_run_strengths"
        )
    attacks = [name for name in ("loss", "reference_calibrated") if name in set(graded["attack"])]
    figure = plotting.new_figure(4.6 * len(METRICS), 3.9 * len(attacks))
    grid = figure.subplots(len(attacks), len(METRICS), squeeze=False, sharex=True)
    frames = []
    for line, attack in enumerate(attacks):
        error_by_strength = {b: values(table, "graded", attack, b) for b in strengths}
        for column, (metric, label) in enumerate(METRICS.items()):
            axes = grid[line, column]
            frames.append(_draw_strengths(axes, error_by_strength, metric, attack))
            axes.set_title(f"{attack_name(attack)}: {label}", fontsize=11)
            if line == len(attacks) - 1:
                axes.set_xlabel("Strength of the shift")
        grid[line, 0].set_ylabel("Error, mean over runs")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(ESTIMATORS), fontsize=10)
    claims = _fig07_claims(table, strengths)
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            "A member is selected, and a non-member is left out, with a probability of sigmoid(strength * z), where z "
            "is the standardized TF-IDF of the sample. Bars are 95% intervals over runs, which hold the "
            "samples fixed.",
            "The calibrated loss is the mean loss under reference models minus the loss under the run, which removes "
            "most of the differences in difficulty between texts.",
            not_seen_note(claims),
        ),
    )


def _draw_strengths(
    axes: Axes, rows_by_strength: Mapping[float, pd.DataFrame], metric: str, attack: str
) -> pd.DataFrame:
    """Draws the mean errors of a metric with intervals by the strength of the shift; returns rows of the data."""
    frames = []
    strengths = [*rows_by_strength]
    step = (strengths[-1] - strengths[0]) * 0.012
    error = {b: errors(rows, metric) for b, rows in rows_by_strength.items()}
    for k, (name, label) in enumerate(ESTIMATORS.items()):
        color, dash = _style(name)
        estimates = [over_runs(error[b][name]) for b in strengths]
        mean = [e.value for e in estimates]
        margin = [(e.high - e.low) / 2 for e in estimates]
        x = np.array(strengths) + step * (k - len(ESTIMATORS) / 2)
        axes.errorbar(
            x, mean, margin, color=color, linestyle=dash, marker="o", markersize=4, label=label
        )
        frames.append(pd.DataFrame({"series": name, "x": strengths, "y": mean, "margin": margin}))
    axes.axhline(0, color=plotting.BLACK, linewidth=0.9)
    return pd.concat(frames).assign(panel=f"{attack}, {metric}")


def _fig07_claims(table: pd.DataFrame, strengths: Sequence[float]) -> tuple[Claim, ...]:
    naive = [errors(values(table, "graded", "loss", b), "auc")["naive"].abs() for b in strengths]
    rises = [
        claim_greater("", f"From {low:g} to {high:g}", over_runs(after - before))
        for low, high, before, after in zip(
            strengths, strengths[1:], naive, naive[1:], strict=False
        )
    ]
    first = claim_all(FIG07_STATEMENTS[0], rises)
    if STRENGTH not in strengths:
        return first, claim_untested(FIG07_STATEMENTS[1], f"there is no strength {STRENGTH:g}")
    error = errors(values(table, "graded", "loss"), "auc").abs()
    smaller = [
        claim_greater(
            "", f"Unadjusted minus {ESTIMATORS[name]}", over_runs(error["naive"] - error[name])
        )
        for name in CORRECTED
    ]
    return first, claim_all(FIG07_STATEMENTS[1], smaller)


def _share_flagged(table: pd.DataFrame, shift: str) -> float:
    """Returns the share of the runs in which learned weights lack overlap."""
    rows = values(table, shift, "loss")
    return float((rows[rows["estimator"] == "ipw"]["has_overlap"].astype(str) != "True").mean())


FIGURES = {
    "causal_fig03c_text": Experiment(
        title="CausalMIA Figure 3c: Members and non-members from different sources",
        paper=(
            "The loss attack on a ResNet has an AUC of 0.75 if 90% of the members and 10% of the non-members are clean "
            "images of CIFAR-10 and the others are noisy. The AUC is 0.66 with learned weights, and 0.65 with "
            "non-members from the same source as the members (Section 7)."
        ),
        expect=(
            "At cpu the unadjusted AUC is 0.06 too high with the shift groups (0.690 instead of 0.628). IPW with "
            "learned weights leaves an error of 0.02, the G-formula one of 0.035, and AIPW one of 0.006. If members "
            "and non-members have no package in common (disjoint), no estimator is right, and learned weights do not "
            "show this."
        ),
        statements=FIG03C_STATEMENTS,
        draw=draw_fig03c,
    ),
    "causal_fig04_weights": Experiment(
        title="CausalMIA Figure 4: Losses and weights",
        paper=(
            "Losses of non-members from the other source are higher than those of non-members from the same source, "
            "and the weights are heavy-tailed: the few clean non-members have large weights (Appendix G.2)."
        ),
        expect=(
            "At cpu the losses of the three groups overlap much more than those of clean and noisy images, and the "
            "learned weights are less unequal than the true ones: the largest 10% carry 45% of the total weight, so "
            "the claim is undecided. The largest 10% of the true weights are 81 times as large as the others."
        ),
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
    ),
    "causal_fig07_estimators": Experiment(
        title="CausalMIA Figure 7 (ours): Error of each estimator by the strength of the shift",
        paper="The paper evaluates one shift per experiment, and does not know the truth for real data.",
        expect=(
            "At cpu the unadjusted AUC of the loss is 0.08 too low at a strength of 2, because texts with a high "
            "TF-IDF are harder to predict. IPW and the G-formula each leave an error of 0.02, with opposite signs; "
            "AIPW is right within 0.01 up to a strength of 4. Both claims are seen in these models."
        ),
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
