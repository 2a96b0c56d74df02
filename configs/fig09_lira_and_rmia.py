"""Figure 9: ROC curves of LiRA and RMIA by the number of references (StrongMIA Appendix B.2).

    lm-mia run --config=configs/fig09_lira_and_rmia.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

On a 140M model of 7M samples LiRA keeps gaining as references are added, and RMIA, with 10,000 samples to compare with,
levels off; neither reaches an AUC of 0.7.

Expect the same shapes at cpu: LiRA gains about 0.15 from 2 to 64 references, RMIA about 0.04.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
