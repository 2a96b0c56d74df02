"""Figure 15: validation loss by size, and LiRA by optimizer settings (StrongMIA Appendix C).

    lm-mia run --config=configs/fig15_schedules.py:cpu --workdir=runs/paper

Cost:

Larger models on their compute-optimal data have lower validation losses. Of 140M models of 7M samples the AUC is 0.675
with the cosine schedule, 0.676 with a linear one, 0.673 without weight decay and 0.660 without clipping.

Expect EXP15
"""

import recipes
from recipes import CHINCHILLA, Setting


def names(setting: Setting) -> list[str]:
    return [
        *(f"chinchilla-{size}" for size in CHINCHILLA[setting]),
        "main",
        *(f"schedule-{changed}" for changed in ("linear", "nodecay", "noclip")),
    ]


get_config, sweep = recipes.of(__file__, names)
