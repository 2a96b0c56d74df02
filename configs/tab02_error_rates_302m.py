"""Table 2: accuracy and error rates at fixed false positive rates, 302M (StrongMIA E.2.5).

    lm-mia run --config=configs/tab02_error_rates_302m.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    255 rows  132 hours
    gpu       64 rows  0.021 hours
    cpu       64 rows  about 3 minutes of 2 cores

Over 127 replicas the TPR is 0.181 ± 0.013 at an FPR of 0.01 and 0.435 ± 0.014 at 0.1; the accuracy is highest, 0.685,
at 0.2.

Expect lower TPRs at reduced scale, higher than those of 140M: at cpu 0.06 ± 0.01 and 0.32 ± 0.02.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
