"""Figures 1, 10 and 14: attacks with increasing numbers of references, and with OUT references only."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis import attacks, plotting
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
from analysis.io import SweepResults
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import Need, Variant
from lm_mia.config import num_canaries

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


EXPERIMENTS = {
    "strongmia_fig01_references": Experiment(
        statements=FIG01_STATEMENTS,
        draw=draw_fig01,
        reads=(Need(("main",), references="powers", most_references=None, jackknife=True),),
    ),
    "strongmia_fig10_auc_by_references": Experiment(
        statements=FIG10_STATEMENTS,
        draw=draw_fig10,
        reads=(attacks.LIRA_AND_RMIA_BY_REFERENCES,),
    ),
    "strongmia_fig14_offline": Experiment(
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
