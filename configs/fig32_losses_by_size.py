"""Figure 32: losses of three samples under references and a target of several sizes (StrongMIA Appendix F.2).

    lm-mia run --config=configs/fig32_losses_by_size.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    722 rows  2,498 hours
    gpu      182 rows  0.042 hours
    cpu      162 rows  about 7 minutes of 2 cores

The paper shows 10M to 302M models of 2^23 samples, as a check: the loss of a sample falls as the model grows, while the
IN and OUT distributions of these three stay about as far apart.

Expect the fall from the smallest to the largest at cpu, not from 44M to 140M, which there are one and two layers of
width 64 and see 192 steps. With 16 references of each kind, histograms are rough.
"""

import recipes
from recipes import SIZES, Setting


def names(setting: Setting) -> list[str]:
    return [
        f"fixed-{size}" for size in ("10M", "44M", "85M", "140M", "302M") if size in SIZES[setting]
    ]


get_config, sweep = recipes.of(__file__, names)
