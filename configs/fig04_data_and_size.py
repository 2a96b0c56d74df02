"""Figure 4: LiRA by the size of the data and by the size of the model (StrongMIA Section 4.2).

    lm-mia run --config=configs/fig04_data_and_size.py:cpu --workdir=runs/paper

Cost:

140M models on 50K to 10M samples: the AUC is highest, 0.753, at about 1M samples, and below 0.7 at both ends. Models of
10M to 1018M on the same 2^23 samples: the TPR at fixed FPRs grows with the model, and varies more for large ones.

Expect EXP04
"""

import recipes
from recipes import DATA, SIZES, Setting


def names(setting: Setting) -> list[str]:
    return [
        *(f"data-{n}" for n in DATA[setting]),
        *(f"fixed-{size}" for size in SIZES[setting]),
    ]


get_config, sweep = recipes.of(__file__, names)
