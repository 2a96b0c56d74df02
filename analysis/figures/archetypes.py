"""Figures 22 and 23: losses of a clear and of ambiguous samples, of references and replicas."""

import pandas as pd

from analysis import archetype_panels, io, notes
from analysis.formatting import plural
from analysis.io import RecipeResults
from analysis.paper_figure import FigureResult, PaperFigure


def _archetypes(recipe: RecipeResults) -> FigureResult:
    """A panel for each kind that has a sample, of one recipe, with their rules and texts as notes."""
    facts = io.read_flip_facts_with_power(recipe.recipe_dir)
    found = archetype_panels.read_archetypes(recipe.recipe_dir)
    rows = [
        {
            "kind": a.kind,
            "sample": a.sample,
            "member": a.member,
            "votes": a.votes,
            "flip_rate": a.flip_rate,
        }
        | {"of": of, "loss": loss}
        for a in found
        for of, losses in (
            ("in", a.loss_in),
            ("out", a.loss_out),
            ("replica", a.loss_replicas),
        )
        for loss in losses
    ]
    picked = [
        f"{a.kind.capitalize()} ({a.rule}): {plural(a.candidates, 'sample')}. "
        f"The first, a {a.label}, begins: “{a.text}”"
        for a in found
    ]
    lacking = [
        f"{row['kind'].capitalize()} ({row['rule']}): no sample."
        for row in archetype_panels.read_unmatched_kinds(recipe.recipe_dir)
    ]
    columns = ["kind", "sample", "member", "votes", "flip_rate", "of", "loss"]
    return FigureResult(
        data=pd.DataFrame(rows, columns=pd.Index(columns)),
        figure=archetype_panels.draw_archetypes(found) if found else None,
        notes=(*picked, *lacking, *notes.replica_notes(facts)),
    )


FIGURES = {
    "fig22_archetypes_140m": PaperFigure(
        title="Figure 22: Sample archetypes, 140M",
        paper=(
            "At an FPR of 1% of 125 replicas there are clear, stable members and non-members, and ambiguous samples, "
            "stable or not. A stable member was found only once flip rates up to 0.2 counted as stable (Appendix "
            "E.2.5)."
        ),
        expect=(
            "At cpu there is no clear, stable member, there are few clear non-members, and there are hundreds of "
            "ambiguous, stable samples. The rules are applied at attack.focus_fpr and are not relaxed."
        ),
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-140M"]),
    ),
    "fig23_archetypes_302m": PaperFigure(
        title="Figure 23: Sample archetypes, 302M",
        paper=(
            "At an FPR of 1% of 127 replicas there are clear, stable non-members and ambiguous samples, stable or "
            "not; a clear member with a flip rate of 0.2 or less was not found (Appendix E.2.5)."
        ),
        expect=(
            "At cpu there is no clear, stable member either, and there are a few clear non-members."
        ),
        statements=(),
        draw=lambda recipes: _archetypes(recipes["flip-302M"]),
    ),
}
