"""Figure 12: RMIA with more and more samples to compare with (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig12_rmia_population.py:cpu --workdir=runs/paper

Cost:

On a 10M model of 2^19 samples the AUC is about the same with 10,000 to 300,000 comparison samples. The TPR at low FPRs
grows with their number, and LiRA stays ahead there.

Expect EXP12
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
