"""Figure 21: how surely each sample is found by the models that saw it (StrongMIA Appendix E.1).

    lm-mia run --config=configs/fig21_true_positive_probability.py:cpu --workdir=runs/paper

Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper    146 rows  605 hours
    gpu       38 rows  0.011 hours
    cpu       42 rows  about 2 minutes of 2 cores

The paper attacks each of 128 models of 140M parameters, trained on halves of 2^24 samples, with all the others: over
the 64 or so that saw a sample, its posterior has a mean of 0.543 and a standard deviation of 0.143, averaged over
samples; many samples have means above 0.6 or deviations above 0.2. Ours are the references of
`fixed-140M`.

Expect nearly the same two averages at cpu.
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["fixed-140M"]


get_config, sweep = recipes.of(__file__, names)
