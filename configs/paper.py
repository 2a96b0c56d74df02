"""Every figure and table of StrongMIA, in one run and on one page.

    lm-mia run --config=configs/paper.py:cpu --workdir=runs/paper

Figures that are of the same models share their rows: trained once, whichever figure asks first.

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  5,504 rows  63,600 hours
    gpu    1,130 rows  0.54 hours
    cpu      994 rows  about 54 minutes of 2 cores

At `cpu` the text is docstrings of the installed packages, samples have up to 96 tokens, and models 12 thousand to 0.6
million parameters without embeddings. What of the paper is seen there, and what not: docs/results/figures.md.
"""

import runpy
from collections.abc import Sequence
from pathlib import Path

import recipes
from recipes import Setting

from lm_mia.errors import UserError

HERE = Path(__file__).parent
ALL = [p.stem for p in sorted([*HERE.glob("fig[0-9]*.py"), *HERE.glob("tab[0-9]*.py")])]


def of(figures: Sequence[str]) -> recipes.Pair:
    """get_config and sweep of some figures, and of the comparison of all their recipes; UserError if they are none."""
    wrong = (
        [figures]
        if isinstance(figures, str) or not figures
        else [f for f in figures if f not in ALL]
    )
    if wrong:
        raise UserError(f"FIGURES: {wrong[0]!r}: no such figure; name some of {', '.join(ALL)}")

    def names(setting: Setting) -> list[str]:
        found = [runpy.run_path(str(HERE / f"{f}.py"))["names"](setting) for f in figures]
        return list(dict.fromkeys(name for some in found for name in some))

    return recipes.several([*figures, "scaling"], names)


FIGURES = ALL
get_config, sweep = of(FIGURES)
