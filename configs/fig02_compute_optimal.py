"""Figure 2: LiRA on models of several sizes, each on its compute-optimal data (StrongMIA Section 3.2).

    lm-mia run --config=configs/fig02_compute_optimal.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  1,152 rows  39,285 hours
    gpu      216 rows  0.15 hours
    cpu      160 rows  about 11 minutes of 2 cores

The paper attacks six sizes with 128 references. The AUC is 0.592 at 10M, 0.699 at 85M, 0.689 at 302M, 0.547 at 489M,
0.654 at 604M and 0.553 at 1018M (0.678 at 140M, Figure 1): all below 0.7, and not monotone in size.

Expect the AUC to fall with size at cpu, with no rise again: the smallest data are the most exposed, with an AUC of
about 0.7. Single steps between sizes are too small to tell.
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [f"chinchilla-{size}" for size in CHINCHILLA[setting]]


get_config, sweep = recipes.of(__file__, names)
