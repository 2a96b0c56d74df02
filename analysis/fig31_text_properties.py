"""Figure 31: how surely members are found, by TF-IDF and by unknown tokens."""

import sys
from collections.abc import Mapping, Sequence

import figures
import numpy as np
import pandas as pd
import posteriors
import series
import style
from claims import Claim, above, mean, untested
from drawn import Drawn
from matplotlib.axes import Axes
from measured import Recipes
from posteriors import Target

TITLE = "Figure 31: TF-IDF and unknown tokens of members by vulnerability"
PAPER = (
    "Of a 140M model, the most vulnerable members tend to have a higher mean TF-IDF than the least vulnerable, and are "
    "likelier to have an unknown token."
)
STATEMENTS = (
    "Members with a higher mean TF-IDF are more vulnerable.",
    "Members with an unknown token are more vulnerable.",
)
_BINS, _MOST_UNKNOWN, _FEWEST = 30, 3, 20


def draw(recipes: Recipes) -> Drawn:
    """Mean TF-IDF and counts of unknown tokens of three groups of members."""
    main = recipes["main"]
    targets, population = posteriors.of(main), main.population
    tfidf_N2, unk_N2 = population.column("tfidf"), population.column("unk").astype(float)
    tfidf, unk = (posteriors.grouped(targets, x_N2) for x_N2 in (tfidf_N2, unk_N2))
    # the highest hundredth would leave no room for the others
    edges_K1 = np.linspace(np.nanmin(tfidf_N2), np.nanquantile(tfidf_N2, 0.99), _BINS + 1)
    figure = style.new_figure(10.2, 4.2)
    left, right = figure.subplots(1, 2)
    posteriors.draw_shares(left, tfidf, edges_K1)
    left.set(xlabel="Mean TF-IDF of a sample's tokens", title="(a) TF-IDF by vulnerability")
    left.legend(loc="upper right")
    counted = _draw_unknown(right, unk)
    parts = [
        pd.DataFrame({"x": edges_K1[:-1], "y": posteriors.shares(x_G, edges_K1)}).assign(
            panel="a", series=name
        )
        for name, x_G in tfidf.items()
    ]
    having = int((unk_N2 > 0).sum())
    return Drawn(
        data=pd.concat([*parts, counted.assign(panel="b")]),
        figure=figure,
        claims=(
            posteriors.rises(STATEMENTS[0], "mean TF-IDF", targets, [tfidf_N2] * len(targets)),
            _unknown(targets, unk_N2 > 0),
        ),
        notes=(
            posteriors.groups_said(targets, main),
            f"{having:,} of {len(unk_N2):,} samples have an unknown token. The hundredth of the samples with the "
            "highest TF-IDF lies beyond the axis.",
        ),
    )


def _unknown(targets: Sequence[Target], has_N2: np.ndarray) -> Claim:
    """Whether members with an unknown token have higher posteriors on average."""
    more_T = []
    for target in targets:
        has_S = has_N2[target.ids_S]
        if min(has_S.sum(), (~has_S).sum()) < _FEWEST:
            return untested(
                STATEMENTS[1],
                f"{has_S.sum():,} of {len(has_S):,} members of {target.row} have an unknown token",
            )
        more_T.append(target.posterior_S[has_S].mean() - target.posterior_S[~has_S].mean())
    said = "posterior of members with an unknown token less of those without"
    return above(STATEMENTS[1], said, mean(np.array(more_T)))


def _draw_unknown(axes: Axes, unk: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Shares of each group with at least so many unknown tokens; rows (series, x, y)."""
    at_least_K = np.arange(1, _MOST_UNKNOWN + 1)
    width, found = 0.8 / len(unk), []
    for place, (name, x_G) in enumerate(unk.items()):
        share_K = np.array([(x_G >= k).mean() for k in at_least_K])
        color = posteriors.GROUPS[name][0]
        axes.bar(
            at_least_K + (place - (len(unk) - 1) / 2) * width,
            share_K,
            width,
            color=color,
            label=name,
        )
        found.append(pd.DataFrame({"series": name, "x": at_least_K, "y": share_K}))
    axes.set_xticks(at_least_K, [f"≥ {k}" for k in at_least_K])
    series.percent_axis(axes)
    axes.set(
        xlabel="Unknown tokens of a sample",
        ylabel="Share of the group",
        title="(b) Unknown tokens by vulnerability",
    )
    axes.legend(loc="upper right")
    return pd.concat(found)


if __name__ == "__main__":
    sys.exit(figures.script(__file__))
