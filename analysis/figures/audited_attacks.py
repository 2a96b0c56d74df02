"""PrivacyGuard Figures 3 to 6: scores and ROC curves of LiRA, and of offline RMIA with different values of a.

N: samples with a score, S: those of a class, K: bins, T: targets, H1: all samples, and then each half of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import attacks, few_references, plotting
from analysis.claims.compare import claim_all, claim_equivalent, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, not_seen_note
from analysis.few_references import (
    DEFAULT_A,
    LIRA,
    LIRA_NEED,
    LIRA_WITH_ALL,
    LIRA_WITH_ALL_NEED,
    RECIPE,
    RMIA,
    RMIA_NEED,
    FewReferences,
)
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from lm_mia import stats

_BINS = 40
_TAIL = 0.005
"""The share of the scores beyond each end of a histogram."""
_MARGIN = 0.01
_FNR = 0.05

FIG03_STATEMENTS = ("Online and offline, members have higher scores than non-members.",)
FIG04_STATEMENTS = (
    "With 8 references, online LiRA has a higher AUC than offline LiRA.",
    "With all references, online LiRA has a higher AUC than offline LiRA.",
)


def draw_fig03(recipes: SweepResults) -> Drawing:
    """Draws histograms of the scores of online and of offline LiRA under one target."""
    recipe = recipes[RECIPE]
    panels = {
        f"{label} LiRA": _first_target_scores(recipe, attack) for label, attack in LIRA.items()
    }
    figure, data, outside = _draw_histograms(panels, "Membership score of LiRA")
    shifts = [
        claim_greater("", f"AUC of {label.lower()} LiRA", attack.auc.estimate(), 0.5)
        for label, attack in few_references.read_attacks(recipe, LIRA).items()
    ]
    claims = (claim_all(FIG03_STATEMENTS[0], shifts),)
    count = LIRA["Online"].count(recipe)
    notes = (
        f"Scores under the first target, with the first {count} references. The online score is the log likelihood "
        "ratio. The offline score is minus the log of the probability of an even lower loss under the references that "
        "were not trained on the sample.",
        outside,
        "The loss of a sample takes the place of the logit of its label, which the paper attacks.",
        "The claim that members have higher scores is tested as an AUC above 0.5.",
        not_seen_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of online and of offline LiRA."""
    recipe = recipes[RECIPE]
    lira = few_references.read_attacks(recipe, LIRA)
    curves = [
        plotting.RocCurve("Online LiRA", lira["Online"].result, plotting.BLUE),
        plotting.RocCurve("Offline LiRA", lira["Offline"].result, plotting.VERMILLION, "--"),
    ]
    by_count = lira, few_references.read_attacks(recipe, LIRA_WITH_ALL)
    claims = tuple(
        claim_greater(
            statement,
            f"AUC of online minus offline LiRA with {attacks['Online'].result.references} references",
            (attacks["Online"].auc - attacks["Offline"].auc).estimate(),
        )
        for statement, attacks in zip(FIG04_STATEMENTS, by_count, strict=True)
    )
    return Drawing(
        plotting.panels_frame([("", curves)]),
        _draw_roc(curves),
        claims=claims,
        ours={
            f"{label.lower()}_auc": plotting.auc_mean_std(attack.result)
            for label, attack in lira.items()
        },
        notes=(
            f"With the first {lira['Online'].result.references} references. Left: both axes are logarithmic, to show "
            "low false positive rates; right: both are linear.",
            plotting.curves_note(curves),
            not_seen_note(claims),
        ),
    )


FIG05_STATEMENTS = ("With a = 0.3 and with a tuned a, offline RMIA has the same AUC.",)
FIG06_STATEMENTS = ("With a tuned a, the lowest scores separate non-members from members better.",)


def draw_fig05(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of offline RMIA, with the default a and with a tuned one."""
    recipe = recipes[RECIPE]
    rmia = few_references.read_attacks(recipe, RMIA)
    (default, at_default), (tuned, at_tuned) = rmia.items()
    curves = [
        plotting.RocCurve(f"RMIA, {default}", at_default.result, plotting.GREEN),
        plotting.RocCurve(f"RMIA, {tuned}", at_tuned.result, plotting.ORANGE, "--"),
    ]
    difference = (at_tuned.auc - at_default.auc).estimate()
    what = f"AUC with a tuned a minus with a = {DEFAULT_A:g}"
    claims = (claim_equivalent(FIG05_STATEMENTS[0], what, difference, _MARGIN),)
    return Drawing(
        plotting.panels_frame([("", curves)]),
        _draw_roc(curves),
        claims=claims,
        ours={
            "default_auc": plotting.auc_mean_std(at_default.result),
            "tuned_auc": plotting.auc_mean_std(at_tuned.result),
        },
        notes=(
            f"With the first {at_default.result.references} references, of which only those that were not trained on a "
            f"sample are used, and {attacks.default_rmia_samples(recipe):,} samples to compare with. Left: both axes "
            "are logarithmic, to show low false positive rates; right: both are linear.",
            f"{few_references.TUNED_NOTE} With these references it is {at_tuned.result.rmia_a:g}.",
            plotting.curves_note(curves),
            not_seen_note(claims),
        ),
    )


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws histograms of the scores of offline RMIA under one target, with the default a and with a tuned one."""
    recipe = recipes[RECIPE]
    panels = {
        f"RMIA, {label}": _first_target_scores(recipe, attack) for label, attack in RMIA.items()
    }
    figure, data, outside = _draw_histograms(panels, "Membership score of RMIA")
    default, tuned = (_tnr(recipe, attack) for attack in RMIA.values())
    what = f"TNR at an FNR of {percent(_FNR)}, with a tuned a minus with a = {DEFAULT_A:g}"
    claims = (claim_greater(FIG06_STATEMENTS[0], what, (tuned - default).estimate()),)
    count = next(iter(RMIA.values())).count(recipe)
    notes = (
        f"Scores under the first target, with the first {count} references. The score of a sample is the share of "
        "samples whose ratio of the probability under the target to the mean probability under the references is at "
        "most that of the sample.",
        outside,
        few_references.TUNED_NOTE,
        f"How well low scores separate the classes is measured by the TNR at an FNR of {percent(_FNR)}: the share of "
        f"non-members below the threshold that {percent(_FNR)} of the members are below.",
        not_seen_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def _tnr(recipe: RecipeResults, attack: FewReferences) -> Jackknife:
    """Returns the mean over targets of the TNR at an FNR of `_FNR`, with its values on halves of the samples."""
    group_N2 = stats.sample_groups(recipe.attacked.document_N)
    rows = []
    for _, member_N2, score_N2 in attack.sample_scores(recipe):
        # With the signs reversed, non-members take the place of members.
        whole = stats.tpr_at_fpr(-score_N2, ~member_N2, [_FNR]).tpr_TxF
        halves = stats.rates_of_halves(-score_N2, ~member_N2, group_N2, [_FNR])[1]
        rows.append(np.concatenate([whole[0], halves[0, :, 0]]))
    value_Tx1xH1 = np.array(rows)[:, None]
    over = f"{len(rows)} targets and the samples"
    return Jackknife.from_targets(value_Tx1xH1, over, ("the references",))


def _first_target_scores(
    recipe: RecipeResults, attack: FewReferences
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (member_N, score_N) of an attack on the first target, without samples that have no score."""
    _, member_N2, score_N2 = next(attack.sample_scores(recipe))
    has_score_N2 = ~np.isnan(score_N2)
    return member_N2[has_score_N2], score_N2[has_score_N2]


def _draw_histograms(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]], label: str
) -> tuple[Figure, pd.DataFrame, str]:
    """Draws the shares of members and of non-members by score, a panel per attack.

    Args:
      panels: title -> (member_N, score_N).
      label: the label of the horizontal axes.

    Returns:
      The figure, rows (panel, class, low, high, share) of the bins, and a note on scores outside the panels.
    """
    figure = plotting.new_figure(10.4, 4.2)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    frames, outside = [], []
    for axes, (title, (member_N, score_N)) in zip(grid, panels.items(), strict=True):
        low, high = np.quantile(score_N, [_TAIL, 1 - _TAIL])
        edges_K1 = np.linspace(low, high, _BINS + 1)
        outside.append(np.mean((score_N < low) | (score_N > high)))
        for name, is_member, color, dash in plotting.CLASSES:
            class_S = score_N[member_N == is_member]
            share_K = np.histogram(class_S, edges_K1)[0] / max(len(class_S), 1)
            axes.stairs(share_K, edges_K1, color=color, linestyle=dash, label=name, linewidth=1.6)
            frames.append(
                pd.DataFrame({"low": edges_K1[:-1], "high": edges_K1[1:], "share": share_K}).assign(
                    panel=title, **{"class": name}
                )
            )
        axes.set(title=title, xlabel=label, xlim=(low, high), ylim=(0, None))
        plotting.use_percent_axis(axes)
    grid[0].set_ylabel("Share of the class in each bin")
    grid[0].legend(frameon=False)
    note = f"At most {percent(max(outside))} of the scores are outside a panel."
    return figure, pd.concat(frames, ignore_index=True), note


def _draw_roc(curves: Sequence[plotting.RocCurve]) -> Figure:
    """Draws ROC curves on logarithmic axes, and on linear axes."""
    figure = plotting.new_figure(10.4, 4.6)
    low, whole = figure.subplots(1, 2)
    plotting.draw_roc(low, curves, "Low false positive rates")
    plotting.draw_roc(whole, curves, "All false positive rates")
    whole.set(xscale="linear", yscale="linear", xlim=(0, 1), ylim=(0, 1))
    for axis in (whole.xaxis, whole.yaxis):  # linear scales have formatters of their own
        axis.set_major_formatter(lambda share, _: percent(share))
    return figure


FIGURES = {
    "privacyguard_fig03_scores": Experiment(
        title="PrivacyGuard Figure 3: Scores of LiRA",
        paper=(
            "For 25,000 members and as many non-members of a CIFAR-10 classifier, the LiRA scores of members are "
            "shifted to larger values, online and offline. Online, both tails of the scores tell the classes apart "
            "(Section 3.1.1)."
        ),
        expect=(
            "At cpu the classes are further apart than in the paper, since the models have seen each of only 1,536 "
            "samples four times: the AUC is 0.87 online and 0.86 offline."
        ),
        statements=FIG03_STATEMENTS,
        draw=draw_fig03,
        reads=(LIRA_NEED, dataclasses.replace(LIRA_NEED, jackknife=False, sample_scores=True)),
    ),
    "privacyguard_fig04_roc": Experiment(
        title="PrivacyGuard Figure 4: ROC curves of LiRA",
        paper=(
            "With 7 references, online LiRA has a significantly higher AUC, 0.6074, than offline LiRA, 0.5297 "
            "(Section 3.1.1)."
        ),
        expect=(
            "At cpu online LiRA is hardly ahead: by 0.005 with 8 references, which is undecided, and by 0.008 with all "
            "32."
        ),
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
        reads=(LIRA_NEED, LIRA_WITH_ALL_NEED),
    ),
    "privacyguard_fig05_rmia_roc": Experiment(
        title="PrivacyGuard Figure 5: ROC curves of RMIA by the parameter a",
        paper=(
            "With 3 references, offline RMIA has about the same AUC with the default a = 0.3, 0.5673, and with an a "
            "that is tuned on the references, 0.5675 (Section 3.1.2, which writes alpha for a)."
        ),
        expect=(
            "At cpu the opposite is seen: the AUC is 0.64 with a = 0.3 and 0.84 with a tuned a, which is 1. RMIA takes "
            "a p_OUT + 1 - a for the probability of a sample under models that were trained on it. Here p_OUT, the "
            "geometric mean of the probabilities of the tokens, is about 0.01. Unless a is nearly 1, 1 - a outweighs "
            "it, and the attack uses hardly more than the loss under the target."
        ),
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
        reads=(RMIA_NEED,),
    ),
    "privacyguard_fig06_rmia_scores": Experiment(
        title="PrivacyGuard Figure 6: Scores of RMIA by the parameter a",
        paper=(
            "A tuned a separates members and non-members better in the left tail of the scores than a = 0.3 (Section "
            "3.1.2)."
        ),
        expect="At cpu a tuned a separates the classes better, at low and at high scores.",
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
        reads=(dataclasses.replace(RMIA_NEED, jackknife=False, sample_scores=True),),
    ),
}
