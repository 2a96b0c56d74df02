"""Figure 22: losses of a clear and of ambiguous samples, of 140M references and replicas."""

import sys

import archetypes
import figures
import flips
import pandas as pd
import stability
from drawn import Drawn
from findings import plural
from measured import Recipe, Recipes

TITLE = "Figure 22: Sample archetypes, 140M"
PAPER = (
    "At an FPR of 1% of 125 replicas there are clear, stable members and non-members, and ambiguous samples, stable or "
    "not. A stable member was found only once flip rates up to 0.2 counted as stable."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A panel for each kind that has a sample."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The samples of a recipe, with their rules and texts as notes."""
    facts = flips.decisive(recipe.folder)
    found = archetypes.read(recipe.folder)
    rows = [
        {"kind": a.kind, "sample": a.sample, "member": a.member, "votes": a.votes, "flip": a.flip}
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
        for row in archetypes.none_found(recipe.folder)
    ]
    columns = ["kind", "sample", "member", "votes", "flip", "of", "loss"]
    return Drawn(
        data=pd.DataFrame(rows, columns=pd.Index(columns)),
        figure=archetypes.draw(found) if found else None,
        notes=(*picked, *lacking, *stability.notes(facts)),
    )


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
