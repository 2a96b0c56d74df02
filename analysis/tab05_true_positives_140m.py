"""Table 5: true positives on members whose decisions are very unstable or like coin flips, 140M."""

import sys

import figures
import flips
import pandas as pd
import sheets
import stability
import workdir
from drawn import Drawn
from findings import plus_minus
from measured import Recipe, Recipes

TITLE = "Table 5: What unstable members contribute to the TPR, 140M"
PAPER = (
    "Over 125 replicas at an FPR of 0.1%, 6.8% ± 0.3% of the true positives are on members whose decisions are like "
    "coin flips, and 19.9% ± 0.8% on those or very unstable ones; at 10%, 31.4% ± 0.9% and 70.5% ± 2.7%."
)
STATEMENTS = ()


def draw(recipes: Recipes) -> Drawn:
    """A row an FPR."""
    return of(recipes["flip-140M"])


def of(recipe: Recipe) -> Drawn:
    """The table of one recipe; shares are means of those of the replicas."""
    facts = workdir.flip_facts(recipe.folder)
    rows = sheets.true_positives(recipe.folder)
    shares = workdir.table(recipe.folder, "flip_shares.csv", flips.SHARE_COLUMNS)
    parts = sheets.parts(sheets.bins(shares))
    heads = [("TPR", "mean ± STD"), ("TP", "mean ± STD")]
    for part in parts:
        heads += [(f"{part['title']} {part['range']}", of) for of in ("TPs", "Share of TPR")]
    cells, ours = [], {}
    for row in rows:
        at = f"fpr={row['fpr']:g}"
        cells.append([plus_minus(row["tpr_mean"], row["tpr_std"]), sheets.count(row, "tp")])
        for part in sheets.PARTS:
            cells[-1] += [
                sheets.count(row, f"{part}_tp"),
                sheets.share(row, f"{part}_share_percent"),
            ]
        names = [f"{part}_{of}" for part in sheets.PARTS for of in ("tp", "share_percent")]
        for name in ("tpr", "tp", *names):
            ours[f"{at} {name}"] = row[f"{name}_mean"], row[f"{name}_std"]
    table = pd.DataFrame(
        cells,
        index=pd.Index([f"{row['fpr']:g}" for row in rows], name="FPR"),
        columns=pd.MultiIndex.from_tuples(heads),
    )
    return Drawn(pd.DataFrame(rows), table=table, ours=ours, notes=stability.notes(facts))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
