"""Figure 17: LiRA after each epoch of over-training (StrongMIA Appendix D).

    lm-mia run --config=configs/fig17_overtraining.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    288 rows  5,535 hours
    gpu       72 rows  0.085 hours
    cpu       80 rows  about 11 minutes of 2 cores

A 140M model of 7M samples goes from an AUC of 0.573 after one epoch to 0.797 after ten; of 2^19 samples from 0.604
after one, 0.864 after two and 0.944 after three to about 1 after thirteen.

Expect the same at cpu, faster: four epochs bring the AUC from about 0.61 to 0.89 on the larger data, and eight to 0.995
on the smaller. The second epoch gains as much on either.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["epochs-140M", "epochs-140M-small"]


get_config, sweep = recipes.of(__file__, names)
