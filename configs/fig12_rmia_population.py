"""Figure 12: RMIA with more and more samples to compare with (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig12_rmia_population.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    144 rows  5.7 hours
    gpu       68 rows  0.0024 hours
    cpu       72 rows  about 1 minutes of 2 cores

On a 10M model of 2^19 samples the AUC is about the same with 10,000 to 300,000 comparison samples. The TPR at low FPRs
grows with their number, and LiRA stays ahead there.

Expect the same at cpu, except that LiRA is behind RMIA at low FPRs.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
