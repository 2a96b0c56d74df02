"""Figure 3: LiRA after more and more epochs (StrongMIA Section 4.1).

    lm-mia run --config=configs/fig03_epochs.py:cpu --workdir=runs/paper

Cost:

A 44M model reaches an AUC of 0.620 after one epoch of its compute-optimal data, and on half of it 0.628 after one epoch
and 0.744 after two. A 140M model goes from 0.573 after one epoch of its compute-optimal data to 0.797 after ten.

Expect EXP03
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["chinchilla-44M", "epochs-44M", "epochs-140M"]


get_config, sweep = recipes.of(__file__, names)
