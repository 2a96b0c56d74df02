"""Figure 14: LiRA, simple RMIA and RMIA, offline and online (StrongMIA Appendix B.3).

    lm-mia run --config=configs/fig14_offline.py:cpu --workdir=runs/paper

Cost:

On a 10M model of 2^19 samples, with 128 references online and their OUT ones, 64 on average, offline, RMIA beats LiRA
offline, in AUC and at low FPRs. Online their AUCs are about the same, and LiRA is ahead at low FPRs.

Expect EXP14
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
