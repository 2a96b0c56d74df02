"""Figure 1: LiRA with up to 512 references (StrongMIA Section 3.1).

    lm-mia run --config=configs/fig01_references.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

The paper attacks a 140M model of 7M samples: the AUC grows by 13.3% from 1 to 8 IN references, by 7.6% from 8 to 64, by
0.2% from 128 to 256, and stays below 0.7.

Expect the same shape at reduced scale.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
