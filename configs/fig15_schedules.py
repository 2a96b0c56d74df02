"""Figure 15: validation loss by size, and LiRA by optimizer settings (StrongMIA Appendix C).

    lm-mia run --config=configs/fig15_schedules.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper  1,970 rows  42,121 hours
    gpu      358 rows  0.19 hours
    cpu      314 rows  about 18 minutes of 2 cores

Larger models on their compute-optimal data have lower validation losses. Of 140M models of 7M samples the AUC is 0.675
with the cosine schedule, 0.676 with a linear one, 0.673 without weight decay and 0.660 without clipping.

Expect the same order of the losses at cpu, and small differences between schedules; the one without clipping stands
out, as in the paper.
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
