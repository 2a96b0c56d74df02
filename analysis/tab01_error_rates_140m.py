"""Table 1: accuracy and error rates of LiRA on 140M replicas at fixed false positive rates."""

import math
import sys

import figures
import pandas as pd
import sheets
import workdir
from drawn import Drawn
from findings import rows_there, spread
from measured import Recipe, Recipes

TITLE = "Table 1: Error rates, 140M"
PAPER = (
    "Accuracy and error rates of classes, means ± STD over 125 replicas: they hardly vary. What a threshold fixes for "
    "all replicas alike, the FPR and the TNR, has no deviation."
)
STATEMENTS = ()
_OF = {"acc": "All", "fnr": "Members", "tpr": "Members"}


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The table of one recipe."""
    facts = workdir.flip_facts(recipe.folder)
    rows = sheets.error_rates(recipe.folder)
    heads = [(name.upper(), _OF.get(name, "Non-members")) for name in sheets.RATES]
    table = pd.DataFrame(
        [[sheets.rate(row, name) for name in sheets.RATES] for row in rows],
        index=pd.Index([f"{row['fpr']:g}" for row in rows], name="FPR"),
        columns=pd.MultiIndex.from_tuples(heads),
    )
    ours = {
        f"fpr={row['fpr']:g} {name}": (
            row[f"{name}_mean"],
            math.nan if name in ("fpr", "tnr") else row[f"{name}_std"],
        )
        for row in rows
        for name in sheets.RATES
    }
    told = (spread(facts["replicas"]), rows_there(facts))
    return Drawn(pd.DataFrame(rows), table=table, ours=ours, notes=tuple(filter(None, told)))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
