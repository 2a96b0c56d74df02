"""The figures of MACE (Figures 2, 4, 5, 6 and 8) on language models, at three settings.

    lm-mia run --config=configs/mace.py:fig02,cpu --workdir=runs/papers
    lm-mia run --config=configs/mace.py:cpu --workdir=runs/papers

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number: fig02, fig04, fig05, fig06 or
fig08. Several may be named; if none is named, all are drawn. The settings are those of strongmia.py, and the recipes
too: in the workdir of strongmia.py or reliability.py, models are trained only once.

The paper (Liu et al. 2020, MACE: A flexible framework for membership privacy estimation in generative models) attacks
generative models of images, so no setting repeats its experiments: `paper` has the models of StrongMIA. Figures 3
and 7(b), on released synthetic data, and 7(a) and 9, on other generative models, have no counterpart here.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   816 models   2,336 hours
    gpu     104 models   0.066 hours
    cpu     112 models   about 7 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs: names of recipes of strongmia.py. Figure 6 is a simulation, which also shows the
# recipe main if the workdir has it.
FIGURES: dict[str, tuple[str, ...]] = {
    "mace_fig02_progress": ("epochs-140M-small",),
    "mace_fig04_vector_queries": ("main",),
    "mace_fig05_metrics": ("epochs-140M-small",),
    "mace_fig06_dp_bound": (),
    "mace_fig08_subgroups": ("fixed-140M",),
}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe of strongmia.py, without replicas, which these figures do not need.

    main and fixed-140M are the same recipe at cpu. Its models are trained once.
    """
    c = strongmia.recipe(setting, name)
    attack = dataclasses.replace(c.attack, replicas=0, leave_one_out=False)
    train = dataclasses.replace(c.train, validations=0)
    return dataclasses.replace(c, attack=attack, train=train, extract=Extract())


_CONFIG = PaperConfig("MACE", "mace.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
