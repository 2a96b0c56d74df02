"""Figure 22: samples that stand for clear and ambiguous, stable and unstable decisions, 140M (StrongMIA E.2.5).

    lm-mia run --config=configs/fig22_archetypes_140m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    253 rows  66 hours
    gpu       64 rows  0.011 hours
    cpu       64 rows  about 2 minutes of 2 cores

At an FPR of 1% of 125 replicas the paper shows a clear, stable member (only with flip rates up to 0.2 allowed), a
clear, stable non-member, and an ambiguous sample that is stable and one that is not.

Expect, at cpu, no clear, stable member, few clear non-members and hundreds of ambiguous, stable samples: the rules hold
at attack.focus_fpr and are not relaxed.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-140M"]


get_config, sweep = recipes.of(__file__, names)
