"""Figure 3: LiRA after more and more epochs (StrongMIA Section 4.1).

    lm-mia run --config=configs/fig03_epochs.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    432 rows  5,099 hours
    gpu      108 rows  0.039 hours
    cpu      120 rows  about 8 minutes of 2 cores

A 44M model reaches an AUC of 0.620 after one epoch of its compute-optimal data, and on half of it 0.628 after one epoch
and 0.744 after two. A 140M model goes from 0.573 after one epoch of its compute-optimal data to 0.797 after ten.

Expect more at cpu: two epochs on half of the data raise the AUC by about 0.2, at low FPRs too, where the paper sees no
gain. As few samples are seen, AUCs are higher from the first epoch on.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["chinchilla-44M", "epochs-44M", "epochs-140M"]


get_config, sweep = recipes.of(__file__, names)
