"""Figure 13: RMIA with larger and larger gamma (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig13_rmia_gamma.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    144 rows  5.7 hours
    gpu       68 rows  0.0024 hours
    cpu       72 rows  about 1 minutes of 2 cores

On a 10M model of 2^19 samples the AUC hardly depends on gamma. With 10,000 comparison samples the TPR at an FPR of
0.0001 falls as gamma grows, to 0 from 1.1 on; with 300,000 it does not.

Expect the same at cpu with many comparison samples. With about 20 of them the AUC falls at a gamma of 1.2, which leaves
too few that a sample can beat; at low FPRs such scores differ too much between targets to tell.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
