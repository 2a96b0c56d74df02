"""Figure 16: LiRA with and without samples that begin alike (StrongMIA Appendix D).

    lm-mia run --config=configs/fig16_duplicates.py:cpu --workdir=runs/paper

Cost:

A 140M model of 7M samples is attacked with an AUC of 0.683 on C4 and of 0.680 where samples that share a prefix are
left out, which are 4% of C4.

Expect EXP16
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main", "distinct"]


get_config, sweep = recipes.of(__file__, names)
