"""Figure 10: AUC of LiRA and RMIA by the number of references (StrongMIA Appendix B.2).

    lm-mia run --config=configs/fig10_auc_by_references.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

On a 140M model of 7M samples RMIA is ahead with 4 to 16 IN references (at 4: 0.643 against 0.594) and LiRA with more
(at 64: 0.678 against 0.658), and with 1 or 2. There are as many OUT references.

Expect at cpu RMIA to be ahead of LiRA with every number of references that there is, though by less and less: 64
references are 32 IN ones, just where the paper's curves have crossed.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
