"""Figure 20: targets of Figure 2 by the number of references (StrongMIA Appendix D).

    lm-mia run --config=configs/fig20_targets_by_references.py:cpu --workdir=runs/paper

Cost:

LiRA on 8 targets of each size on its compute-optimal data, with up to 128 references: more references help at every
size.

Expect EXP20
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [f"chinchilla-{size}" for size in CHINCHILLA[setting]]


get_config, sweep = recipes.of(__file__, names)
