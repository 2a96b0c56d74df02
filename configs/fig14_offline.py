"""Figure 14: LiRA, simple RMIA and RMIA, offline and online (StrongMIA Appendix B.3).

    lm-mia run --config=configs/fig14_offline.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    144 rows  5.7 hours
    gpu       68 rows  0.0024 hours
    cpu       72 rows  about 1 minutes of 2 cores

On a 10M model of 2^19 samples, with 128 references online and their OUT ones, 64 on average, offline, RMIA beats LiRA
offline, in AUC and at low FPRs. Online their AUCs are about the same, and LiRA is ahead at low FPRs.

Expect no difference between offline RMIA and offline LiRA at cpu, and online LiRA behind RMIA: with pooled variances
offline LiRA ranks almost as RMIA does.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["small"]


get_config, sweep = recipes.of(__file__, names)
