"""Figure 4: LiRA by the size of the data and by the size of the model (StrongMIA Section 4.2).

    lm-mia run --config=configs/fig04_data_and_size.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  2,306 rows  15,185 hours
    gpu      470 rows  0.23 hours
    cpu      362 rows  about 19 minutes of 2 cores

140M models on 50K to 10M samples: the AUC is highest, 0.753, at about 1M samples, and below 0.7 at both ends. Models of
10M to 1018M on the same 2^23 samples: the TPR at fixed FPRs grows with the model, and varies more for large ones.

Expect (a) the AUC to fall with the data at cpu, without the paper's fall at the small end: even 192 samples train this
model for long enough. (b) the largest model to be ahead of the smallest at FPRs of 1% and more, while single steps go
both ways.
"""

import recipes
from recipes import DATA, SIZES, Setting


def names(setting: Setting) -> list[str]:
    return [
        *(f"data-{n}" for n in DATA[setting]),
        *(f"fixed-{size}" for size in SIZES[setting]),
    ]


get_config, sweep = recipes.of(__file__, names)
