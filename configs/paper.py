"""Every figure and table of StrongMIA, in one run and on one page.

lm-mia run --config=configs/paper.py:cpu --workdir=runs/paper
"""

import runpy
from pathlib import Path

import recipes
from recipes import Setting

HERE = Path(__file__).parent
FILES = sorted([*HERE.glob("fig[0-9]*.py"), *HERE.glob("tab[0-9]*.py")])


def names(setting: Setting) -> list[str]:
    """The recipes of all figures, each once."""
    found = [name for file in FILES for name in runpy.run_path(str(file))["names"](setting)]
    return list(dict.fromkeys(found))


get_config, sweep = recipes.several([file.stem for file in FILES], names)
