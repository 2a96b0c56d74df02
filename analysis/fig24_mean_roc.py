"""Figure 24: mean ROC curves over the replicas of a target, for two sizes on the same data."""

import sys

import figures
import pandas as pd
import series
import style
from claims import above, difference
from drawn import Drawn
from findings import spread
from measured import Recipe, Recipes, attacked, fewest_references, size_of

TITLE = "Figure 24: Mean ROC curves over replicas"
PAPER = (
    "The mean AUC is 0.706 ± 0.004 over 125 replicas of 140M and 0.752 ± 0.007 over 127 of 302M, both trained on 2^19 "
    "samples: stable over the order of batches, and higher than for compute-optimal models."
)
STATEMENTS = ("On the same data the larger model has the higher AUC.",)
SIZES = ("140M", "302M")


def draw(recipes: Recipes) -> Drawn:
    """A panel a size; bands over replicas."""
    of = {size: recipes[f"flip-{size}"] for size in SIZES}
    count = fewest_references(list(of.values()))
    found = {size: attacked(r, references=count, replicas=True) for size, r in of.items()}
    lines = {titled(size, of[size]): series.Line("LiRA", found[size], style.BLUE) for size in SIZES}
    small, large = (found[size].auc_T for size in SIZES)
    gain = difference(large, small, paired=False, over="replicas of one target")
    rows = [line.data().assign(series=title) for title, line in lines.items()]
    replicas = {size: len(found[size].auc_T) for size in SIZES}
    told = {spread(n): None for n in replicas.values()}
    return Drawn(
        data=pd.concat(rows),
        figure=series.panels([(title, [line]) for title, line in lines.items()]),
        claims=(above(STATEMENTS[0], f"AUC of {SIZES[1]} less of {SIZES[0]}", gain),),
        ours={
            f"auc {size}": (float(f.auc_T.mean()), float(f.auc_T.std()))
            for size, f in found.items()
        },
        notes=(
            *told,
            f"Both sizes are attacked with {count} references. The interval is over replicas: these references and the "
            "target's training subset are held fixed.",
        ),
    )


def titled(size: str, recipe: Recipe) -> str:
    """A size of the paper, and what it is in this run if that is something else."""
    here = size_of(recipe)
    return size if here == size else f"{size} (here {here})"


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
