"""Figure 23: samples that stand for clear and ambiguous, stable and unstable decisions, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig23_archetypes_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    255 rows  132 hours
    gpu       64 rows  0.021 hours
    cpu       64 rows  about 3 minutes of 2 cores

At an FPR of 1% of 127 replicas the paper shows a clear, stable non-member and an ambiguous sample that is stable and
one that is not; it found no clear member with a flip rate of 0.2 or less.

Expect, at cpu, no clear, stable member either, and a few clear non-members.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
