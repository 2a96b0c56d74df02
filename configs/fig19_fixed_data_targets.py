"""Figure 19: every target of Figure 4(b) (StrongMIA Appendix D).

    lm-mia run --config=configs/fig19_fixed_data_targets.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  1,442 rows  14,000 hours
    gpu      362 rows  0.2 hours
    cpu      202 rows  about 14 minutes of 2 cores

LiRA on 16 targets of each size on the same 2^23 samples: their AUCs are close, and at low FPRs one target of 604M is
not attacked at all.

Expect at cpu curves of one size that are close, except at FPRs of a few samples.
"""

import recipes
from recipes import SIZES, Setting


def names(setting: Setting) -> list[str]:
    return [f"fixed-{size}" for size in SIZES[setting]]


get_config, sweep = recipes.of(__file__, names)
