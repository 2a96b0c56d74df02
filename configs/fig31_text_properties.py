"""Figure 31: which members are found, by TF-IDF and by unknown tokens (StrongMIA Appendix F).

    lm-mia run --config=configs/fig31_text_properties.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

The paper attacks a 140M model of 7M samples: the most vulnerable members tend to have a higher mean TF-IDF than the
least vulnerable, and more of them have an unknown token.

Expect a weak rise with TF-IDF at cpu, and a weaker one with unknown tokens, which one sample in 25 has there.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
