"""How surely LiRA calls the members of each target members: what Figures 6 and 31 are of.

T: targets, N2: samples of the population, S: members of a target that have a posterior, G: members of a group.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import series
import style
from claims import Claim, above, mean, untested
from matplotlib.axes import Axes
from measured import Recipe, scored
from trend import Trend

from lm_mia.stats import lira
from lm_mia.subsets import Row

GROUPS: dict[str, tuple[str, style.Dash]] = {
    "least vulnerable": (style.SKY, "-"),
    "most ambiguous": (style.GREY, "--"),
    "most vulnerable": (style.VERMILLION, "-"),
}
"""Members with the lowest posterior, nearest to one half, and with the highest: colour and line."""
_ALIKE = 0.9
"""Of a target's members, with the same of a property: more leave too few others to compare."""
_MOST, _SHARE = 1_000, 5
"""A group has so many members, and at most one of so many of a target's."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The members of one target that LiRA can score, and the posterior of their membership."""

    row: Row
    member_N2: np.ndarray
    ids_S: np.ndarray
    posterior_S: np.ndarray
    """p_in / (p_in + p_out)."""

    @property
    def group_size(self) -> int:
        """G."""
        return min(_MOST, len(self.ids_S) // _SHARE)

    def groups(self) -> dict[str, np.ndarray]:
        """ids_G of each of `GROUPS`."""
        size = self.group_size
        order_S = np.argsort(self.posterior_S, kind="stable")
        near_S = np.argsort(np.abs(self.posterior_S - 0.5), kind="stable")
        found = order_S[:size], near_S[:size], order_S[len(order_S) - size :]
        return {name: self.ids_S[at_G] for name, at_G in zip(GROUPS, found, strict=True)}


@functools.cache
def of(recipe: Recipe) -> list[Target]:
    """Every target of a recipe, attacked with all references, at most those of the paper; errors as of `scored`."""
    found, count = [], series.references([recipe])
    for row, member_N2, score_N2 in scored(recipe, references=count):
        ids_S = np.flatnonzero(member_N2 & ~np.isnan(score_N2))
        found.append(Target(row, member_N2, ids_S, lira.posterior(score_N2[ids_S])))
    return found


def grouped(targets: Sequence[Target], x_N2: np.ndarray) -> dict[str, np.ndarray]:
    """A property of the members of each of `GROUPS`, of all targets one after another; those without it left out."""
    ids = [target.groups() for target in targets]
    values = {name: np.concatenate([x_N2[of[name]] for of in ids]) for name in GROUPS}
    return {name: x[~np.isnan(x)] for name, x in values.items()}


def rises(
    statement: str, what: str, targets: Sequence[Target], x_TxN2: Sequence[np.ndarray]
) -> Claim:
    """Whether members that have more of a property have higher posteriors, by a rank correlation a target.

    Not tested where nearly all members of a target have the same of it, such as samples cut at one length.
    """
    r_T = []
    for target, x_N2 in zip(targets, x_TxN2, strict=True):
        x_S = x_N2[target.ids_S].astype(float)
        same = np.unique(x_S[~np.isnan(x_S)], return_counts=True)[1].max(initial=0)
        if same > _ALIKE * len(x_S):
            return untested(
                statement, f"{same:,} of {len(x_S):,} members of {target.row} have the same {what}"
            )
        trend = Trend.of(x_S, target.posterior_S)
        r_T.append(np.nan if trend is None else trend.r)
    said = f"rank correlation of {what} and posterior among the members of a target"
    return above(statement, said, mean(np.array(r_T)))


def draw_shares(axes: Axes, values: Mapping[str, np.ndarray], edges_K1: np.ndarray) -> None:
    """A histogram of each group as a line, in shares of the group; on a log axis where one bin has nearly all."""
    for name, x_G in values.items():
        color, dash = GROUPS[name]
        share_K = shares(x_G, edges_K1)
        axes.stairs(share_K, edges_K1, color=color, linestyle=dash, label=name, linewidth=1.8)
        if share_K.max() > 0.5:
            axes.set_yscale("log")
    series.percent_axis(axes)
    axes.set_ylabel("Share of the group")


def shares(x_G: np.ndarray, edges_K1: np.ndarray) -> np.ndarray:
    """share_K of a group in each bin; what lies outside is in none."""
    return np.histogram(x_G, edges_K1)[0] / max(len(x_G), 1)


def groups_said(targets: Sequence[Target], recipe: Recipe) -> str:
    """Which members the groups are of, and with how many references."""
    size, members = targets[0].group_size, len(targets[0].ids_S)
    return (
        f"Each group has {size:,} of the {members:,} members of each of {len(targets)} targets, which are "
        f"attacked with {series.references([recipe])} references; the paper shows 1,000 members of one target."
    )
