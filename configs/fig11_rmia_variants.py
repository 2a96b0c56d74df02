"""Figure 11: LiRA, RMIA and simple RMIA (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig11_rmia_variants.py:cpu --workdir=runs/paper

Cost:

On a 10M model of 2^19 samples with 128 references all three have about the same AUC. RMIA compares with 10,000 samples,
so its scores take few values, and it tells nothing at the lowest false positive rates.

Expect EXP11
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
