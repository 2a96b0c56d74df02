"""Figures 22 and 23: losses of clear and ambiguous samples under references and replicas."""

import pandas as pd

from analysis import archetype_panels, io, notes
from analysis.experiment import Drawing, Experiment
from analysis.formatting import plural
from analysis.io import RecipeResults


def _archetypes(recipe: RecipeResults) -> Drawing:
    """Draws a panel per kind of sample of one recipe; their rules and texts are notes."""
    facts = io.read_flip_facts_with_power(recipe)
    archetypes = archetype_panels.read_archetypes(recipe)
    rows = [
        {
            "kind": a.kind,
            "sample": a.sample,
            "member": a.member,
            "votes": a.votes,
            "flip_rate": a.flip_rate,
        }
        | {"group": group, "loss_nats": loss}
        for a in archetypes
        for group, losses in (
            ("in", a.loss_in),
            ("out", a.loss_out),
            ("replica", a.loss_replicas),
        )
        for loss in losses
    ]
    shown = [
        f"{a.kind.capitalize()} ({a.rule}): {plural(a.candidates, 'sample')}. "
        f"The text of the first one, a {a.label}, begins: “{a.text}”"
        for a in archetypes
    ]
    unmatched = [
        f"{row['kind'].capitalize()} ({row['rule']}): no sample."
        for row in archetype_panels.read_unmatched_kinds(recipe)
    ]
    columns = ["kind", "sample", "member", "votes", "flip_rate", "group", "loss_nats"]
    return Drawing(
        data=pd.DataFrame(rows, columns=pd.Index(columns)),
        figure=archetype_panels.draw_archetypes(archetypes) if archetypes else None,
        notes=(*shown, *unmatched, *notes.replica_notes(facts)),
    )


FIGURES = {
    "strongmia_fig22_archetypes_140m": Experiment(
        title="Figure 22: Sample archetypes, 140M",
        paper=(
            "At an FPR of 1%, 125 replicas show clear, stable members and non-members, and ambiguous samples, stable "
            "or not. A stable member was found only once flip rates up to 0.2 counted as stable (Appendix E.2.5)."
        ),
        expect=(
            "At cpu there are no clear, stable members, also with flip rates up to 0.2, few clear non-members, and "
            "hundreds of ambiguous, stable samples. The rules are applied at attack.focus_fpr and are not relaxed."
        ),
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-140M"]),
    ),
    "strongmia_fig23_archetypes_302m": Experiment(
        title="Figure 23: Sample archetypes, 302M",
        paper=(
            "At an FPR of 1%, 127 replicas show clear, stable non-members and ambiguous samples, stable or not; a "
            "clear member with a flip rate of 0.2 or less was not found (Appendix E.2.5)."
        ),
        expect=("At cpu there are no clear, stable members either, and a few clear non-members."),
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-302M"]),
    ),
}
