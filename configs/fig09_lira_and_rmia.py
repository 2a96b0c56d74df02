"""Figure 9: ROC curves of LiRA and RMIA by the number of references (StrongMIA Appendix B.2).

    lm-mia run --config=configs/fig09_lira_and_rmia.py:cpu --workdir=runs/paper

Cost:

On a 140M model of 7M samples LiRA keeps gaining as references are added, and RMIA, with 10,000 samples to compare with,
levels off; neither reaches an AUC of 0.7.

Expect EXP09
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
