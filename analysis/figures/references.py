"""Figures 1, 10 and 14: attacks with increasing numbers of references, and with OUT references only.

Also the figures of a recipe's section: ROC curves, and the AUC against the number of references.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import attacks, io, plotting, tables
from analysis.attacks import JackknifedAttack, read_jackknife
from analysis.claims.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.io import RecipeResults, Record, SweepResults
from analysis.plotting import finish_roc_axes
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import Need, Variant
from lm_mia.config import num_canaries

ROC_COLUMNS = ("attack", "references", "fpr", "tpr_mean", "tpr_std")
Key = tuple[str, int]
"""An attack and its number of references."""


def draw_roc_references(
    roc: Mapping[Key, list[Record]], attacks: Sequence[Record], attack: str = "lira_online"
) -> Figure:
    """Draws ROC curves of an attack per number of references and of the loss attack: means with bands of one deviation.

    Args:
      roc: the rows of tables/roc.csv from `by_curve`.
      attacks: rows of tables/attacks.csv, for the AUCs in the legend.
      attack: the attack with a curve per number of references.
    """
    counts = _evenly_chosen(sorted({count for name, count in roc if name == attack}), 6)
    figure = plotting.new_figure(6.2, 4.9)
    axes = figure.subplots()
    shades = dict(zip(counts, plotting.shades(len(counts)), strict=True))
    lowest = [
        _curve(axes, roc[attack, count], shades[count], "-", _label(attack, count, attacks), True)
        for count in reversed(counts)
    ]
    if ("loss", 0) in roc:
        color, dash, _ = plotting.ATTACKS["loss"]
        lowest.append(
            _curve(axes, roc["loss", 0], color, dash, _label("loss", 0, attacks), band=True)
        )
    finish_roc_axes(axes, lowest)
    axes.legend(loc="lower right")
    return figure


def draw_roc_attacks(roc: Mapping[Key, list[Record]], attacks: Sequence[Record]) -> Figure:
    """Draws a mean ROC curve per main attack; as `draw_roc_references`, with one number of references per attack."""
    count = dict(roc.keys())
    figure = plotting.new_figure(6.5, 5.3)
    axes, lowest = figure.subplots(), []
    for name, (color, dash, _) in plotting.ATTACKS.items():
        if name in count:
            key = name, count[name]
            label = attack_name(name) + _auc(*key, attacks)
            lowest.append(_curve(axes, roc[key], color, dash, label, band=False))
    finish_roc_axes(axes, lowest)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def by_curve(rows: Sequence[Record]) -> dict[Key, list[Record]]:
    """Groups the rows of tables/roc.csv by attack and number of references."""
    curves: dict[Key, list[Record]] = {}
    for row in rows:
        curves.setdefault((row["attack"], row["references"]), []).append(row)
    return curves


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figures of a recipe: ROC curves and the AUC by references; None if there is nothing to compare.

    Attacks that score other samples than LiRA with all references are not drawn, since their AUCs are not comparable.
    """
    attacks = io.read_table(recipe, "attacks.csv")
    strongest = [r for r in tables.best_per_attack(attacks) if tables.scores_same_samples(r)]
    attacks = [r for r in attacks if tables.scores_same_samples(r)]
    roc = by_curve(io.read_table(recipe, "roc.csv"))
    roc, roc_strongest = (
        {(r["attack"], r["references"]): roc[r["attack"], r["references"]] for r in rows}
        for rows in (attacks, strongest)
    )
    counts = {row["references"] for row in attacks} - {0}
    return {
        "roc": draw_roc_references(roc, attacks),
        "roc_attacks": draw_roc_attacks(roc_strongest, strongest) if len(strongest) > 1 else None,
        "auc_references": draw_auc_references(attacks) if len(counts) > 1 else None,
    }


def _curve(
    axes: Axes,
    curve: Sequence[Record],
    color: str | tuple[float, ...],
    dash: plotting.LineStyle,
    label: str,
    band: bool,
) -> float:
    """Draws the points of a curve that log axes can show; returns its lowest FPR there, 0 if there are none."""
    fpr, mean, std = (np.array([r[c] for r in curve], float) for c in ROC_COLUMNS[2:])
    shown = (fpr > 0) & (mean > 0)
    if not shown.any():
        return 0.0
    axes.plot(fpr[shown], mean[shown], color=color, linestyle=dash, label=label)
    if band:
        low, high = np.maximum(mean - std, 1e-12)[shown], np.minimum(mean + std, 1)[shown]
        axes.fill_between(fpr[shown], low, high, color=color, alpha=0.18, linewidth=0)
    return float(fpr[shown].min())


def _label(attack: str, references: int, attacks: Sequence[Record]) -> str:
    name = attack_name(attack) + (f", {references} references" if references else " attack")
    return name + _auc(attack, references, attacks)


def _auc(attack: str, references: int, attacks: Sequence[Record]) -> str:
    auc = {(r["attack"], r["references"]): (r["auc_mean"], r["auc_std"]) for r in attacks}
    mean, std = auc.get((attack, references), (math.nan, math.nan))
    return "" if math.isnan(mean) else f" (AUC {mean:.3f} ± {0 if math.isnan(std) else std:.3f})"


def _evenly_chosen(values: list[int], max_values: int) -> list[int]:
    """Returns at most ``max_values`` evenly spaced values, including the first and the last."""
    if len(values) <= max_values:
        return values
    return [
        values[i] for i in sorted({round(p) for p in np.linspace(0, len(values) - 1, max_values)})
    ]


AUC_COLUMNS = ("attack", "references", "auc_mean", "auc_std")
_LABEL_X = 1.35
"""Where labels begin, as a multiple of the right end of the x axis."""


def draw_auc_references(attacks: Sequence[Record]) -> Figure:
    """Draws the mean AUC with its deviation against references, with labels on the right; the loss is a level line."""
    rows = [r for r in attacks if r["attack"] in plotting.ATTACKS and not math.isnan(r["auc_mean"])]
    counts = sorted({r["references"] for r in rows if r["references"] > 0}) or [1]
    names = [n for n in plotting.ATTACKS if any(r["attack"] == n for r in rows)]
    figure = plotting.new_figure(6.2, 4.6)
    axes = figure.subplots()
    ends = {}
    for i, name in enumerate(names):
        color, dash, marker = plotting.ATTACKS[name]
        attack_rows = sorted(
            (r for r in rows if r["attack"] == name), key=lambda r: r["references"]
        )
        count, mean, std = (np.array([r[c] for r in attack_rows], float) for c in AUC_COLUMNS[1:])
        std, ends[name] = np.nan_to_num(std), float(mean[-1])
        if not count.any():
            axes.axhline(mean[-1], color=color, linestyle=dash)
            low, high = mean[-1] - std[-1], mean[-1] + std[-1]
            axes.axhspan(low, high, color=color, alpha=0.15, linewidth=0)
            continue
        apart = 2 ** (0.06 * (i - (len(names) - 1) / 2))
        axes.errorbar(
            count * apart,
            mean,
            yerr=std,
            color=color,
            marker=marker,
            linestyle=dash,
            capsize=2.5,
            markersize=4.5,
            markerfacecolor="white" if dash != "-" else color,
        )
    axes.axhline(0.5, color=plotting.GREY, linestyle=":")
    axes.set_xscale("log", base=2)
    shown = plotting.separated_ticks(counts)
    axes.set_xticks(shown, [str(c) for c in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="Reference models", ylabel="AUC", xlim=(counts[0] / 1.2, counts[-1] * 1.2))
    low, high = axes.get_ylim()
    low, high = min(low, 0.48), max(high, 0.52)
    axes.set_ylim(low, high)
    labels = [(attack_name(n), y, *plotting.ATTACKS[n][:2]) for n, y in ends.items()]
    labels.append(("Chance", 0.5, plotting.GREY, ":"))
    heights = plotting.spread_labels([y for _, y, _, _ in labels], 0.062 * (high - low), low, high)
    line = {"arrowstyle": "-", "linewidth": 1.6, "shrinkA": 2, "shrinkB": 0, "relpos": (0, 0.5)}
    for (label, y, color, dash), height in zip(labels, heights, strict=True):
        axes.annotate(
            label,
            xy=(counts[-1] * 1.2, y),
            xytext=(counts[-1] * 1.2 * _LABEL_X, height),
            va="center",
            fontsize=10.5,
            annotation_clip=False,
            arrowprops=line | {"color": color, "linestyle": dash},
        )
    return figure


# Figure 1: ROC curves of LiRA with increasing numbers of references.
FIG01_STATEMENTS = (
    "The AUC of LiRA grows with the number of references.",
    "Its growth has diminishing returns.",
    "The AUC stays below 0.7 with every number of references.",
)


def draw_fig01(recipes: SweepResults) -> Drawing:
    """Draws mean ROC curves per number of references, and tests the growth of the AUC."""
    main = recipes["main"]
    counts = attacks.reference_counts(main)
    lira = {
        count: read_jackknife(main, Variant(references=count, is_count_study=True))
        for count in counts
    }
    curves = [plotting.RocCurve(f"{count} references", lira[count].result) for count in counts]
    auc = {count: attack.result.auc_T for count, attack in lira.items()}
    ours = {
        f"growth_{a}_{b}": (100 * float((auc[2 * b] / auc[2 * a] - 1).mean()), float("nan"))
        for a, b in ((1, 8), (8, 64), (128, 256))
        if 2 * a in auc and 2 * b in auc
    }
    return Drawing(
        data=pd.concat([curve.to_frame() for curve in curves]),
        figure=plotting.roc_figure(curves),
        claims=_fig01_claims({count: attack.auc for count, attack in lira.items()}),
        ours=ours,
        notes=(attacks.COUNT_STUDY_NOTE, plotting.curves_note(curves)),
    )


def _fig01_claims(auc: Mapping[int, Jackknife]) -> tuple[Claim, ...]:
    """Compares the smallest, the middle and the largest number of references."""
    counts = list(auc)
    if len(counts) < 3:
        reason = f"{counts[-1]} references are too few to compare three numbers of references"
        return (
            *(claim_untested(statement, reason) for statement in FIG01_STATEMENTS[:2]),
            attacks.claim_auc_bound(FIG01_STATEMENTS[2], {"": auc}),
        )
    few, middle, many = counts[0], counts[len(counts) // 2], counts[-1]
    grows = [
        claim_greater("", f"AUC, {b} minus {a} references", (auc[b] - auc[a]).estimate())
        for a, b in ((few, middle), (middle, many))
    ]
    early, late = (
        (auc[b] - auc[a]).scaled(1 / math.log2(b / a)) for a, b in ((few, middle), (middle, many))
    )
    doubling = (
        f"AUC gained per doubling, {few} to {middle} references minus {middle} to {many} references"
    )
    return (
        claim_all(FIG01_STATEMENTS[0], grows),
        claim_greater(FIG01_STATEMENTS[1], doubling, (early - late).estimate()),
        attacks.claim_auc_bound(FIG01_STATEMENTS[2], {"": auc}),
    )


# Figure 10: AUC of LiRA and RMIA against the number of references.
FIG10_STATEMENTS = (
    "With few references RMIA is ahead of LiRA.",
    "With many references LiRA is ahead of RMIA.",
    "As references are added, LiRA gains more than RMIA.",
    "With 1 or 2 IN references LiRA is ahead of RMIA.",
)
FEWEST_REFERENCES = (2, 4)
"""1 and 2 IN references, and as many OUT references."""
FEW_REFERENCES, MORE_REFERENCES = 8, 16


def draw_fig10(recipes: SweepResults) -> Drawing:
    """Draws the AUC of each attack against the number of references, with a band over targets."""
    main = recipes["main"]
    counts = attacks.reference_counts(main)
    on_lira, on_rmia = (
        {n: read_jackknife(main, Variant(name, n, is_count_study=True)) for n in counts}
        for name in ("lira_online", "rmia")
    )
    lira, rmia = (
        {count: attack.result for count, attack in by_count.items()}
        for by_count in (on_lira, on_rmia)
    )
    figure = plotting.new_figure(6.2, 4.4)
    axes = figure.subplots()
    for name, results in (("lira_online", lira), ("rmia", rmia)):
        color, dash, marker = plotting.ATTACKS[name]
        auc_KxT = [result.auc_T for result in results.values()]
        plotting.plot_mean_and_std(axes, counts, auc_KxT, attack_name(name), color, dash, marker)
    axes.set(xlabel="References, IN and OUT", ylabel="AUC")
    plotting.set_x_ticks(axes, [(count, str(count)) for count in counts])
    axes.legend(loc="upper left")
    frames = [
        plotting.per_target_frame(result, attack=name, references=count)
        for name, results in (("lira_online", lira), ("rmia", rmia))
        for count, result in results.items()
    ]
    published = {4: FEW_REFERENCES, 64: min(2 * 64, counts[-1])}  # IN references -> references here
    ours = {
        f"{name}_{in_references}": plotting.auc_mean_std(results[count])
        for name, results in (("lira", lira), ("rmia", rmia))
        for in_references, count in published.items()
        if count in results
    }
    return Drawing(
        data=pd.concat(frames, ignore_index=True),
        figure=figure,
        claims=_fig10_claims(on_lira, on_rmia),
        ours=ours,
        notes=(
            "About half of the references were trained on a sample (IN), the others were not (OUT).",
            attacks.COUNT_STUDY_NOTE,
            f"RMIA compares with {attacks.default_rmia_samples(main):,} samples.",
            plotting.curves_note(
                [plotting.RocCurve(f"LiRA, {n} references", result) for n, result in lira.items()]
            ),
        ),
        paper_notes=("The paper counts only IN references.",),
    )


def _fig10_claims(
    lira: dict[int, JackknifedAttack], rmia: dict[int, JackknifedAttack]
) -> tuple[Claim, ...]:
    most = max(lira)
    if most <= MORE_REFERENCES or not {FEW_REFERENCES, MORE_REFERENCES} <= set(lira):
        reason = f"{most} references are too few"
        return tuple(claim_untested(statement, reason) for statement in FIG10_STATEMENTS)

    def lead(count: int) -> Jackknife:
        return lira[count].auc - rmia[count].auc

    fewest = [
        claim_greater("", f"AUC of LiRA minus RMIA with {count} references", lead(count).estimate())
        if count in lira
        else claim_untested("", f"there is no attack with {count} references")
        for count in FEWEST_REFERENCES
    ]
    return (
        claim_greater(
            FIG10_STATEMENTS[0],
            f"AUC of RMIA minus LiRA with {FEW_REFERENCES} references",
            -lead(FEW_REFERENCES).estimate(),
        ),
        claim_greater(
            FIG10_STATEMENTS[1],
            f"AUC of LiRA minus RMIA with {most} references",
            lead(most).estimate(),
        ),
        claim_greater(
            FIG10_STATEMENTS[2],
            f"AUC gained from {MORE_REFERENCES} to {most} references, LiRA minus RMIA",
            (lead(most) - lead(MORE_REFERENCES)).estimate(),
        ),
        claim_all(FIG10_STATEMENTS[3], fewest),
    )


# Figure 14: LiRA, simple RMIA and RMIA with OUT references only, and with all.
FIG14_STATEMENTS = (
    "Offline, RMIA has a higher AUC than LiRA.",
    "Offline, RMIA is ahead of LiRA at low false positive rates.",
    "Online, LiRA and RMIA have about the same AUC.",
    "Online, LiRA is ahead of RMIA at low false positive rates.",
)
MARGIN = 0.02


def draw_fig14(recipes: SweepResults) -> Drawing:
    """Draws a panel for the offline and the online setting, with a curve per attack."""
    small = recipes["small"]
    count, many = attacks.common_references([small]), attacks.rmia_sample_counts(small)[-1]
    whole = num_canaries(small.config)
    lira_off = read_jackknife(small, Variant("lira_offline", count))
    rmia_off = read_jackknife(small, Variant("rmia_offline", count, rmia_samples=many))
    # With gamma 1 and all samples as comparison samples, RMIA ranks samples by their ratio, as simple RMIA does.
    simple_off = read_jackknife(small, Variant("rmia_offline", count, rmia_samples=whole))
    lira = read_jackknife(small, Variant(references=count))
    rmia = read_jackknife(small, Variant("rmia", count, rmia_samples=many))
    simple = read_jackknife(small, Variant("rmia_simple", count))
    panels = [
        (
            title,
            [
                plotting.RocCurve("LiRA", a.result, plotting.BLUE),
                plotting.RocCurve("Simple RMIA", b.result, plotting.PURPLE, "-."),
                plotting.RocCurve("RMIA", c.result, plotting.GREEN, "--"),
            ],
        )
        for title, a, b, c in (
            ("(a) Offline", lira_off, simple_off, rmia_off),
            ("(b) Online", lira, simple, rmia),
        )
    ]
    low = attacks.lowest_resolved_fpr(small)
    at = f"TPR at an FPR of {low:g}"
    return Drawing(
        data=plotting.panels_frame(panels),
        figure=plotting.roc_panels(panels),
        claims=(
            claim_greater(
                FIG14_STATEMENTS[0],
                "AUC of offline RMIA minus offline LiRA",
                (rmia_off.auc - lira_off.auc).estimate(),
            ),
            claim_greater(
                FIG14_STATEMENTS[1],
                f"{at} of offline RMIA minus offline LiRA",
                (rmia_off.tpr(low) - lira_off.tpr(low)).estimate(),
            ),
            claim_equivalent(
                FIG14_STATEMENTS[2],
                "AUC of LiRA minus RMIA",
                (lira.auc - rmia.auc).estimate(),
                MARGIN,
            ),
            claim_greater(
                FIG14_STATEMENTS[3],
                f"{at} of LiRA minus RMIA",
                (lira.tpr(low) - rmia.tpr(low)).estimate(),
            ),
        ),
        notes=(
            f"Online attacks use {count} references; offline attacks use the OUT references among them, on average "
            "half.",
            f"RMIA compares with {many:,} samples; offline simple RMIA is computed as RMIA that compares with all "
            f"{whole:,}, which ranks samples identically.",
            plotting.curves_note([curve for _, curves in panels for curve in curves]),
        ),
    )


FIGURES = {
    "strongmia_fig01_references": Experiment(
        title="Figure 1: LiRA with different numbers of references",
        paper=(
            "The AUC of a 140M model grows with the number of references, with diminishing returns: by 13.3% from 1 "
            "to 8 IN references, by 7.6% from 8 to 64, and by 0.2% from 128 to 256; it never reaches 0.7 (Section "
            "3.1)."
        ),
        expect=(
            "The AUC grows with the number of references with diminishing returns, as in the paper. At cpu it gains "
            "about 0.08 from 2 to 16 references and 0.03 from 16 to 64, and stays below 0.7."
        ),
        statements=FIG01_STATEMENTS,
        draw=draw_fig01,
        reads=(Need(("main",), references="powers", most_references=None, jackknife=True),),
    ),
    "strongmia_fig10_auc_by_references": Experiment(
        title="Figure 10: AUC of LiRA and RMIA by the number of references",
        paper=(
            "On a 140M model of 7M samples RMIA is ahead with 4 to 16 IN references (at 4: AUC 0.643 against 0.594), "
            "LiRA with more (at 64: 0.678 against 0.658) and with 1 or 2. There are as many OUT references. LiRA "
            "keeps gaining where RMIA levels off (Appendix B.2)."
        ),
        expect=(
            "At cpu RMIA is ahead of LiRA with every number of references, also with 1 or 2 IN references, by a "
            "margin that shrinks from 8 references on. The largest "
            "number there, 64, is 32 IN references, about where the curves of the paper cross."
        ),
        statements=FIG10_STATEMENTS,
        draw=draw_fig10,
        reads=(attacks.LIRA_AND_RMIA_BY_REFERENCES,),
    ),
    "strongmia_fig14_offline": Experiment(
        title="Figure 14: Offline and online attacks",
        paper=(
            "On a 10M model of 2^19 samples RMIA beats LiRA offline, where only OUT references are used (64 on "
            "average), in AUC and in TPR at low FPRs. Online, with 128 references, their AUCs are about the same, "
            "and LiRA is ahead at low FPRs (Appendix B.3)."
        ),
        expect=(
            "At cpu offline RMIA and offline LiRA do not differ, since with pooled variances offline LiRA ranks "
            "samples almost as RMIA does. Online, LiRA is behind RMIA."
        ),
        statements=FIG14_STATEMENTS,
        draw=draw_fig14,
        reads=(
            Need(("small",), ("lira_online", "lira_offline", "rmia_simple"), jackknife=True),
            Need(("small",), ("rmia",), rmia_shares=attacks.RMIA_SHARES[-1:], jackknife=True),
            Need(
                ("small",),
                ("rmia_offline",),
                rmia_shares=(attacks.RMIA_SHARES[-1], 1.0),
                jackknife=True,
            ),
        ),
    ),
}
