"""Figure 32: losses of three samples under IN and OUT references and a target, by model size."""

import dataclasses
import sys
from collections.abc import Sequence
from itertools import pairwise

import figures
import measured
import numpy as np
import pandas as pd
import series
import style
from claims import above, every, mean
from drawn import Drawn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from measured import Absent, Recipe, Recipes
from scipy import stats

from lm_mia.subsets import Row

TITLE = "Figure 32: Losses of three samples by model size"
PAPER = (
    "The loss of a sample falls as the model grows from 10M to 302M, on the same 2^23 training samples, while the IN "
    "and OUT distributions of these three samples stay about as far apart."
)
STATEMENTS = ("The mean loss of the same samples falls with every step up in size.",)
_SIZES = ("10M", "44M", "85M", "140M", "302M")
_FROM_END = (5, 4, 3)
"""The paper's samples: 16,777,211 to 16,777,213 of 2^24."""
_BINS = 10
_CLASSES = (("IN", True, style.MEMBER), ("OUT", False, style.NONMEMBER))


@dataclasses.dataclass(frozen=True)
class Losses:
    """What models of one size say of three samples; R: references, and last the target."""

    size: str
    loss_Rx3: np.ndarray
    """Nats a token."""
    member_Rx3: np.ndarray
    mean_R: np.ndarray
    """Over all samples of the population."""


def draw(recipes: Recipes) -> Drawn:
    """A row a size and a column a sample: histograms of reference losses with normals, and the target's loss."""
    family = series.alike([r for size, r in recipes.family("fixed") if size in _SIZES])
    references, target = _shared_rows(family)
    rows, ids_3 = [*references, target], len(family[0].population) - np.array(_FROM_END)
    found = [_losses(recipe, rows, ids_3) for recipe in family]
    data = [
        pd.DataFrame(
            {"size": of.size, "sample": sample, "row": list(map(str, rows))}
            | {"loss": of.loss_Rx3[:, k], "member": of.member_Rx3[:, k]}
            | {"mean_loss": of.mean_R}
        )
        for of in found
        for k, sample in enumerate(ids_3)
    ]
    falls = [
        above(
            "",
            f"mean loss of all samples under {a.size} less that under {b.size}, nats a token",
            mean(a.mean_R[:-1] - b.mean_R[:-1], "pairs of references"),
        )
        for a, b in pairwise(found)
    ]
    return Drawn(
        data=pd.concat(data),
        figure=_draw(found, ids_3),
        claims=(every(STATEMENTS[0], falls),),
        notes=(
            f"Bars and normals are of the losses under {len(references)} references, trained on the sample (IN) or not "
            f"(OUT); the dashed line is the loss under {target}, which is none of them.",
            "References of two sizes with the same subset are a pair.",
        ),
    )


def _shared_rows(family: Sequence[Recipe]) -> tuple[list[Row], Row]:
    """(references, one target) that all sizes have; Absent without them."""
    if lacking := [r.config.name for r in family if len(r.rows[0]) < 4 or not r.rows[1]]:
        raise Absent(f"too few references or no target of {', '.join(lacking)}")
    references = family[0].rows[0][: measured.fewest_references(family)]
    target = family[0].rows[1][0]
    if any(not {*references, target} <= {*r.rows[0], *r.rows[1]} for r in family):
        raise Absent("fixed-...: rows of some sizes are of other subsets, or absent")
    return references, target


def _losses(recipe: Recipe, rows: Sequence[Row], ids_3: np.ndarray) -> Losses:
    store = dataclasses.replace(recipe.store, statistics=(), token_samples=())
    total_R, samples = np.zeros(len(rows)), len(recipe.population)
    loss_Rx3, member_Rx3 = np.zeros((len(rows), 3)), np.zeros((len(rows), 3), bool)
    for at, value in store.blocks({name: (name, rows) for name in ("loss", "member")}):
        total_R += value["loss"].sum(axis=1, dtype=float)
        here_3 = (at.start <= ids_3) & (ids_3 < at.stop)
        loss_Rx3[:, here_3] = value["loss"][:, ids_3[here_3] - at.start]
        member_Rx3[:, here_3] = value["member"][:, ids_3[here_3] - at.start]
    return Losses(measured.size_of(recipe), loss_Rx3, member_Rx3, total_R / samples)


def _draw(found: Sequence[Losses], ids_3: np.ndarray) -> Figure:
    figure = style.new_figure(9.6, 0.9 + 1.65 * len(found))
    grid = figure.subplots(len(found), 3, squeeze=False)
    for of, row in zip(found, grid, strict=True):
        for k, axes in enumerate(row):
            _panel(axes, of.loss_Rx3[:, k], of.member_Rx3[:, k])
        row[0].set_ylabel(of.size)
    for k, (axes, sample) in enumerate(zip(grid[0], ids_3, strict=True)):
        known = "member" if found[0].member_Rx3[-1, k] else "non-member"
        axes.set_title(f"Sample {sample:,}, {known}")
    figure.supxlabel("Loss (nats a token)", fontsize="medium")
    figure.supylabel("Reference models of a size (density)", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, loss_R: np.ndarray, member_R: np.ndarray) -> None:
    *_, target = loss_R
    loss_M, member_M = loss_R[:-1], member_R[:-1]
    margin = 0.15 * (np.ptp(loss_R) or 1)
    x_G = np.linspace(loss_R.min() - margin, loss_R.max() + margin, 200)
    edges = np.linspace(loss_M.min(), loss_M.max(), _BINS + 1)
    for label, kind, color in _CLASSES:
        some = loss_M[member_M == kind]
        axes.hist(some, edges, density=True, color=color, alpha=0.35, label=f"{label} references")
        if len(some) > 1 and some.std():
            axes.plot(x_G, stats.norm.pdf(x_G, some.mean(), some.std(ddof=1)), color=color)
    axes.axvline(target, color=style.BLACK, linestyle="--", linewidth=1.5, label="target")
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5))


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
