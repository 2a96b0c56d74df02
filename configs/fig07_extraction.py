"""Figure 7: whether the samples with the highest scores can be extracted (StrongMIA Section 6.2).

    lm-mia run --config=configs/fig07_extraction.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

The paper gives a 140M model of 7M samples the first 50 tokens of the 1,000 samples with the highest LiRA scores, 713 of
them members, and asks for the next 50: the likeliest suffix has a probability of 0.0067, most are below 1e-43, and
vulnerable samples are no easier to extract.

Expect about as many members at cpu, and no suffix that could be extracted: the likeliest of 32 tokens has 1e-53. There
the 1,000 samples are a third of all.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
