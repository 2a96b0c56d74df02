"""Figure 18: every target of Figure 2 (StrongMIA Appendix D).

    lm-mia run --config=configs/fig18_compute_optimal_targets.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  1,152 rows  39,285 hours
    gpu      216 rows  0.15 hours
    cpu      160 rows  about 11 minutes of 2 cores

LiRA on 16 targets of each size on its compute-optimal data: some large models vary more over targets.

Expect at cpu the smallest data to have the largest differences between targets, as few samples tell their curves.
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [f"chinchilla-{size}" for size in CHINCHILLA[setting]]


get_config, sweep = recipes.of(__file__, names)
