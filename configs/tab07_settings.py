"""Table 7: what each figure trains at the published setting (StrongMIA Appendix G).

    lm-mia run --config=configs/tab07_settings.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    530 rows  1,842 hours
    gpu       70 rows  0.021 hours
    cpu       74 rows  about 4 minutes of 2 cores

The paper trains models of 10M to 1018M parameters on 50,000 to 50.9M samples of C4, of about 400 tokens each, with 128
references by default. The table is made of the configs beside this one, so that it cannot say anything else.

Expect the same at every setting, with the models of the run beside it.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["main"]


get_config, sweep = recipes.of(__file__, names)
