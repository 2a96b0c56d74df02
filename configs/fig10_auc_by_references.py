"""Figure 10: AUC of LiRA and RMIA by the number of references (StrongMIA Appendix B.2).

    lm-mia run --config=configs/fig10_auc_by_references.py:cpu --workdir=runs/paper

Cost:

On a 140M model of 7M samples RMIA is ahead with 4 to 16 IN references (at 4: 0.643 against 0.594) and LiRA with more
(at 64: 0.678 against 0.658), and with 1 or 2. There are as many OUT references.

Expect EXP10
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
