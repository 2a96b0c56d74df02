"""Figure 20: targets of Figure 2 by the number of references (StrongMIA Appendix D).

    lm-mia run --config=configs/fig20_targets_by_references.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  1,152 rows  39,285 hours
    gpu      216 rows  0.15 hours
    cpu      160 rows  about 11 minutes of 2 cores

LiRA on 8 targets of each size on its compute-optimal data, with up to 128 references: more references help at every
size.

Expect the same at cpu, with up to 32 references: the AUC grows by about 0.1 from 2 references on.
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [f"chinchilla-{size}" for size in CHINCHILLA[setting]]


get_config, sweep = recipes.of(__file__, names)
