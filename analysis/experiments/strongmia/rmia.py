"""Figures 9, 11, 12 and 13: RMIA compared with LiRA, by the number of comparison samples and by gamma."""

from collections.abc import Mapping

from analysis import attacks, plotting
from analysis.attacks import read_jackknife
from analysis.claims.compare import (
    Claim,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment
from analysis.formatting import percent
from analysis.io import SweepResults
from lm_mia.attacks.spec import Need, Variant

# Figure 9: ROC curves of LiRA and RMIA with increasing numbers of references.
FIG09_STATEMENTS = (
    "The AUC of LiRA grows with the number of references.",
    "The AUC of RMIA grows with the number of references.",
    "The AUC of both attacks stays below 0.7 with every number of references.",
)


def draw_fig09(recipes: SweepResults) -> Drawing:
    """Draws a panel per attack, with a curve per number of references."""
    main = recipes["main"]
    counts = attacks.reference_counts(main)
    results = {
        name: [read_jackknife(main, Variant(name, n, is_count_study=True)) for n in counts]
        for name in ("lira_online", "rmia")
    }
    titles = ("(a) LiRA", "(b) RMIA")
    panels = [
        (
            title,
            [
                plotting.RocCurve(f"{attack.result.references} references", attack.result)
                for attack in group
            ],
        )
        for title, group in zip(titles, results.values(), strict=True)
    ]
    what = f"AUC, {counts[-1]} minus {counts[0]} references"
    claims = [
        claim_greater(statement, what, (group[-1].auc - group[0].auc).estimate())
        for statement, group in zip(FIG09_STATEMENTS[:2], results.values(), strict=True)
    ]
    auc = {
        name: dict(zip(counts, (attack.auc for attack in group), strict=True))
        for name, group in zip(("of LiRA ", "of RMIA "), results.values(), strict=True)
    }
    claims.append(attacks.claim_auc_bound(FIG09_STATEMENTS[2], auc))
    return Drawing(
        data=plotting.panels_frame(panels),
        figure=plotting.roc_panels(panels),
        claims=tuple(claims),
        notes=(
            "About half of the references were trained on a sample (IN), the others were not (OUT).",
            attacks.COUNT_STUDY_NOTE,
            f"RMIA compares with {attacks.default_rmia_samples(main):,} samples.",
            plotting.curves_note([curve for _, curves in panels for curve in curves]),
        ),
    )


# Figure 11: LiRA, simple RMIA, and RMIA with few comparison samples.
FIG11_STATEMENTS = (
    "LiRA, simple RMIA and RMIA have about the same AUC.",
    "With few comparison samples, RMIA is behind simple RMIA at low false positive rates.",
    "LiRA is ahead of RMIA at low false positive rates.",
)
MARGIN = 0.02


def draw_fig11(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of the three attacks, with the same models."""
    small = recipes["small"]
    count, few = attacks.common_references([small]), attacks.rmia_sample_counts(small)[0]
    lira = read_jackknife(small, Variant(references=count))
    simple = read_jackknife(small, Variant("rmia_simple", count))
    rmia = read_jackknife(small, Variant("rmia", count, rmia_samples=few))
    curves = [
        plotting.RocCurve("LiRA", lira.result, plotting.BLUE),
        plotting.RocCurve("Simple RMIA", simple.result, plotting.PURPLE, "-."),
        plotting.RocCurve(f"RMIA, |Z| = {few:,}", rmia.result, plotting.GREEN, "--"),
    ]
    low = attacks.unresolved_rmia_fpr(small, few)
    at = f"TPR at an FPR of {low:g}"
    return Drawing(
        data=plotting.panels_frame([("", curves)]),
        figure=plotting.roc_figure(curves),
        claims=(
            claim_all(
                FIG11_STATEMENTS[0],
                [
                    claim_equivalent("", f"AUC of {a} minus {b}", (x - y).estimate(), MARGIN)
                    for a, x, b, y in (
                        ("LiRA", lira.auc, "simple RMIA", simple.auc),
                        ("RMIA", rmia.auc, "simple RMIA", simple.auc),
                    )
                ],
            ),
            claim_greater(
                FIG11_STATEMENTS[1],
                f"{at} of simple RMIA minus RMIA",
                (simple.tpr(low) - rmia.tpr(low)).estimate(),
            ),
            claim_greater(
                FIG11_STATEMENTS[2],
                f"{at} of LiRA minus RMIA",
                (lira.tpr(low) - rmia.tpr(low)).estimate(),
            ),
        ),
        notes=(
            f"Attacks use {count} references; |Z| counts the samples that RMIA compares with.",
            attacks.RMIA_NOTE,
            plotting.curves_note(curves),
        ),
    )


# Figure 12: RMIA with increasing numbers of comparison samples.
FIG12_STATEMENTS = (
    "The AUC of RMIA does not depend on the number of comparison samples.",
    "More comparison samples raise the TPR of RMIA at low false positive rates.",
    "Even with the most comparison samples, LiRA is ahead at low false positive rates.",
)


def draw_fig12(recipes: SweepResults) -> Drawing:
    """Draws a curve per number of comparison samples, and those of simple RMIA and LiRA."""
    small = recipes["small"]
    count, sizes = attacks.common_references([small]), attacks.rmia_sample_counts(small)
    rmia = [read_jackknife(small, Variant("rmia", count, rmia_samples=z)) for z in sizes]
    lira = read_jackknife(small, Variant(references=count))
    simple = read_jackknife(small, Variant("rmia_simple", count))
    curves = [
        *(plotting.RocCurve(f"|Z| = {z:,}", a.result) for z, a in zip(sizes, rmia, strict=True)),
        plotting.RocCurve("Simple RMIA", simple.result, plotting.VERMILLION, "--"),
        plotting.RocCurve("LiRA", lira.result, plotting.BLACK, "-."),
    ]
    low = attacks.unresolved_rmia_fpr(small, sizes[0])
    at = f"TPR at an FPR of {low:g}"
    return Drawing(
        data=plotting.panels_frame([("", curves)]),
        figure=plotting.roc_figure(curves),
        claims=(
            claim_equivalent(
                FIG12_STATEMENTS[0],
                f"AUC, {sizes[-1]:,} minus {sizes[0]:,} comparison samples",
                (rmia[-1].auc - rmia[0].auc).estimate(),
                MARGIN,
            ),
            claim_greater(
                FIG12_STATEMENTS[1],
                f"{at}, {sizes[-1]:,} minus {sizes[0]:,} comparison samples",
                (rmia[-1].tpr(low) - rmia[0].tpr(low)).estimate(),
            ),
            claim_greater(
                FIG12_STATEMENTS[2],
                f"{at}, LiRA minus RMIA with {sizes[-1]:,} comparison samples",
                (lira.tpr(low) - rmia[-1].tpr(low)).estimate(),
            ),
        ),
        notes=(
            f"Attacks use {count} references; |Z| counts the samples that RMIA compares with.",
            attacks.RMIA_NOTE,
            plotting.curves_note(curves),
        ),
    )


# Figure 13: RMIA with different values of gamma, with few and with many comparison samples.
FIG13_STATEMENTS = (
    "The AUC of RMIA is stable as gamma grows.",
    "With few comparison samples a larger gamma lowers the TPR at low false positive rates.",
    "With a large gamma, many comparison samples are ahead of few at low false positive rates.",
    "With few comparison samples the TPR at a low false positive rate reaches 0 for a gamma of 1.1 or more.",
)
GAMMAS = (1.0, 1.02, 1.05, 1.1, 1.2)
_ZERO_FROM = 1.1


def draw_fig13(recipes: SweepResults) -> Drawing:
    """Draws a panel per number of comparison samples, with a curve per gamma."""
    small = recipes["small"]
    count, sizes = attacks.common_references([small]), attacks.rmia_sample_counts(small)
    few, many = sizes[0], sizes[-1]
    results = {
        z: [
            read_jackknife(small, Variant("rmia", count, rmia_samples=z, rmia_gamma=gamma))
            for gamma in GAMMAS
        ]
        for z in (few, many)
    }
    panels = [
        (
            f"({letter}) {z:,} comparison samples",
            [
                plotting.RocCurve(f"γ = {g:g}", attack.result)
                for g, attack in zip(GAMMAS, group, strict=True)
            ],
        )
        for letter, (z, group) in zip("ab", results.items(), strict=True)
    ]
    low = attacks.resolved_rmia_fpr(small, few)
    at = f"TPR at an FPR of {low:g}"
    stable = [
        claim_equivalent(
            "",
            f"AUC with gamma {GAMMAS[-1]:g} minus with 1, {z:,} comparison samples",
            (group[-1].auc - group[0].auc).estimate(),
            MARGIN,
        )
        for z, group in results.items()
    ]
    return Drawing(
        data=plotting.panels_frame(panels),
        figure=plotting.roc_panels(panels),
        claims=(
            claim_all(FIG13_STATEMENTS[0], stable),
            _lowered(results[few][0].tpr(low), results[few][-1].tpr(low), few, at),
            claim_greater(
                FIG13_STATEMENTS[2],
                f"{at} with {many:,} minus with {few:,} comparison samples, gamma {GAMMAS[-1]:g}",
                (results[many][-1].tpr(low) - results[few][-1].tpr(low)).estimate(),
            ),
            _reaches_zero(
                {
                    gamma: attack.tpr(low)
                    for gamma, attack in zip(GAMMAS, results[few], strict=True)
                },
                low,
                few,
            ),
        ),
        notes=(
            f"Attacks use {count} references.",
            attacks.RMIA_NOTE,
            plotting.curves_note([curve for _, curves in panels for curve in curves]),
        ),
        paper_notes=(
            f"The paper's low FPR is 0.01% with 10,000 comparison samples. Claims are tested at {percent(low)}, the "
            f"FPR of the config that is nearest to 1 / |Z| with {few:,} of them. A TPR counts as 0 if it is below the "
            "FPR, the TPR of guessing.",
        ),
    )


def _lowered(least: Jackknife, most: Jackknife, few: int, at: str) -> Claim:
    """Returns the claim that a larger gamma lowers the TPR; untested if the TPR is already 0 with gamma 1."""
    what = f"{at} with gamma 1 minus with {GAMMAS[-1]:g}, {few:,} comparison samples"
    if not least.value:
        return claim_untested(FIG13_STATEMENTS[1], f"{at} is 0 with gamma 1")
    return claim_greater(FIG13_STATEMENTS[1], what, (least - most).estimate())


def _reaches_zero(tpr: Mapping[float, Jackknife], fpr: float, few: int) -> Claim:
    """Returns the claim that the TPR is below the FPR for a large gamma; untested if it is so already with gamma 1.

    That a number is exactly 0 cannot be shown by an interval, so the TPR must be below that of guessing.

    Args:
      tpr: the TPR by gamma.
      fpr: the FPR at which it is taken.
      few: the number of comparison samples.
    """
    at = f"TPR at an FPR of {fpr:g}"
    if not tpr[GAMMAS[0]].value > fpr:
        return claim_untested(FIG13_STATEMENTS[3], f"{at} is not above {fpr:g} with gamma 1")
    return claim_all(
        FIG13_STATEMENTS[3],
        [
            claim_equivalent(
                "", f"{at} with gamma {gamma:g}, {few:,} comparison samples", x.estimate(), fpr
            )
            for gamma, x in tpr.items()
            if gamma >= _ZERO_FROM
        ],
    )


EXPERIMENTS = {
    "strongmia_fig09_lira_and_rmia": Experiment(
        statements=FIG09_STATEMENTS,
        draw=draw_fig09,
        reads=(attacks.LIRA_AND_RMIA_BY_REFERENCES,),
    ),
    "strongmia_fig11_rmia_variants": Experiment(
        statements=FIG11_STATEMENTS,
        draw=draw_fig11,
        reads=(
            Need(("small",), ("lira_online", "rmia_simple"), jackknife=True),
            Need(("small",), ("rmia",), rmia_shares=attacks.RMIA_SHARES[:1], jackknife=True),
        ),
    ),
    "strongmia_fig12_rmia_population": Experiment(
        statements=FIG12_STATEMENTS,
        draw=draw_fig12,
        reads=(
            Need(("small",), ("lira_online", "rmia_simple"), jackknife=True),
            Need(("small",), ("rmia",), rmia_shares=attacks.RMIA_SHARES, jackknife=True),
        ),
    ),
    "strongmia_fig13_rmia_gamma": Experiment(
        statements=FIG13_STATEMENTS,
        draw=draw_fig13,
        reads=(
            Need(
                ("small",),
                ("rmia",),
                rmia_shares=(attacks.RMIA_SHARES[0], attacks.RMIA_SHARES[-1]),
                rmia_gammas=GAMMAS,
                jackknife=True,
            ),
        ),
    ),
}
