"""Figure 13: RMIA with larger and larger gamma (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig13_rmia_gamma.py:cpu --workdir=runs/paper

Cost:

On a 10M model of 2^19 samples the AUC hardly depends on gamma. With 10,000 comparison samples the TPR at an FPR of
0.0001 falls as gamma grows, to 0 from 1.1 on; with 300,000 it does not.

Expect EXP13
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
