"""Figure 8: LiRA on the loss and on the logit (StrongMIA Appendix B.1).

    lm-mia run --config=configs/fig08_statistic.py:cpu --workdir=runs/paper

Cost:

On a 140M model of 7M samples with 128 references the AUC is 0.678 on the loss and 0.576 on the logit of the next token,
averaged over the sequence.

Expect EXP08
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
