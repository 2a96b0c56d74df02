"""Figure 5: coin-flip decisions by false positive rate, and one unstable sample (StrongMIA Section 5.2).

    lm-mia run --config=configs/fig05_instability.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    255 rows  132 hours
    gpu       64 rows  0.021 hours
    cpu       64 rows  about 3 minutes of 2 cores

Over 127 replicas of a 302M model trained on 2^19 samples the AUC is 0.752 ± 0.007. At an FPR of 2%, 18.4% of members
and 0.03% of non-members have decisions like coin flips (flip rate 0.487 or more), 39.8% and 0.2% if very unstable ones
are added.

Expect, at cpu, an AUC near 0.69 ± 0.02 and coin flips on about 7% of members and 1% of non-members at an FPR of 2%;
most, about half of members, at 20%. With 32 replicas a flip rate of 0.444 counts as a coin flip already.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
