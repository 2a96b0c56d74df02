"""Table 3: shares of members and of non-members in each range of flip rates, 140M."""

import math
import sys

import figures
import flips
import pandas as pd
import sheets
import stability
import workdir
from drawn import Drawn
from measured import Recipe, Recipes

TITLE = "Table 3: Flip rates, 140M"
PAPER = (
    "Of 125 replicas, with 0.490 as the cutoff: at an FPR of 1% a share of 57.48% of members and 94.88% of non-members "
    "is very stable, and 5.00% and 0.00% are like coin flips."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The table of one recipe."""
    facts = workdir.flip_facts(recipe.folder)
    shares = workdir.table(recipe.folder, "flip_shares.csv", flips.SHARE_COLUMNS)
    bins, by_fpr = sheets.bins(shares), sheets.by_fpr(shares)
    classes = {"members_percent": "Mem.", "nonmembers_percent": "Non-mem."}
    heads = [(f"{b['bin']} {b['range']}", name) for b in bins for name in classes.values()]
    table = pd.DataFrame(
        [
            [f"{of_bin[b['bin']][column]:.2f}%" for b in bins for column in classes]
            for of_bin in by_fpr.values()
        ],
        index=pd.Index([f"{fpr:g}" for fpr in by_fpr], name="FPR"),
        columns=pd.MultiIndex.from_tuples(heads),
    )
    ours = {
        f"fpr={r['fpr']:g} {r['bin']} {name}": (r[f"{name}_percent"], math.nan)
        for r in shares
        for name in ("members", "nonmembers")
    }
    return Drawn(pd.DataFrame(shares), table=table, ours=ours, notes=stability.notes(facts))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
