"""Figure 19: every target of Figure 4(b) (StrongMIA Appendix D).

    lm-mia run --config=configs/fig19_fixed_data_targets.py:cpu --workdir=runs/paper

Cost:

LiRA on 16 targets of each size on the same 2^23 samples: their AUCs are close, and at low FPRs one target of 604M is
not attacked at all.

Expect EXP19
"""

import recipes
from recipes import SIZES, Setting


def names(setting: Setting) -> list[str]:
    return [f"fixed-{size}" for size in SIZES[setting]]


get_config, sweep = recipes.of(__file__, names)
