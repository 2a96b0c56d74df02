"""Figure 8: LiRA on the loss and on the logit (StrongMIA Appendix B.1).

    lm-mia run --config=configs/fig08_statistic.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

On a 140M model of 7M samples with 128 references the AUC is 0.678 on the loss and 0.576 on the logit of the next token,
averaged over the sequence.

Expect the same order, and at cpu a smaller lead of the loss, about 0.02.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
