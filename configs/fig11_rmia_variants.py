"""Figure 11: LiRA, RMIA and simple RMIA (StrongMIA Appendix B.2.1).

    lm-mia run --config=configs/fig11_rmia_variants.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    144 rows  5.7 hours
    gpu       68 rows  0.0024 hours
    cpu       72 rows  about 1 minutes of 2 cores

On a 10M model of 2^19 samples with 128 references all three have about the same AUC. RMIA compares with 10,000 samples,
so its scores take few values, and it tells nothing at the lowest false positive rates.

Expect the staircase of RMIA at cpu, which compares with 1% of the samples, as in the paper, and hence with about 20.
The AUC of LiRA is about 0.02 behind those of both RMIAs there.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
