"""Figure 18: every target of Figure 2 (StrongMIA Appendix D).

    lm-mia run --config=configs/fig18_compute_optimal_targets.py:cpu --workdir=runs/paper

Cost:

LiRA on 16 targets of each size on its compute-optimal data: some large models vary more over targets.

Expect EXP18
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [f"chinchilla-{size}" for size in CHINCHILLA[setting]]


get_config, sweep = recipes.of(__file__, names)
