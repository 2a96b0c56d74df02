"""The figures of Reliability (Figures 1, 2 and A1-A3) on language models, at three settings.

    lm-mia run --config=configs/reliability.py:fig01,cpu --workdir=runs/papers
    lm-mia run --config=configs/reliability.py:cpu --workdir=runs/papers

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number: fig01, fig02, figA1, figA2 or
figA3. Several may be named; if none is named, all are drawn. The settings are those of strongmia.py, and the recipes
too, with other numbers of models: in the workdir of strongmia.py or mace.py, models are trained only once.

The paper (Jälkö, Pradhan, Räisä and Honkela 2026, On Reliability of Efficient Membership Inference Vulnerability
Evaluation) attacks models of tabular data, so no setting repeats its experiments: `paper` has the models of
StrongMIA. Figures 2 and A3 are simulations without models, which are the same at every setting. Panel (c) of Figure 2
also has a curve of flip-140M of strongmia.py, or else of main, if the workdir has attacked it with replicas.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   786 models   1,450 hours
    gpu     198 models   0.022 hours
    cpu     266 models   about 7 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses
from typing import Any

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs, which `recipe` describes. Figures 2 and A3 are simulations, which need none.
FIGURES: dict[str, tuple[str, ...]] = {
    "reliability_fig01_strategies": ("main",),
    "reliability_fig02_finite_population": (),
    "reliability_figA1_oracle": ("main",),
    "reliability_figA2_sample_fpr": ("small",),
    "reliability_figA3_sampling_ratio": (),
}
# Setting -> (references, targets) of the recipe main. With more references, one can see where strategies agree.
MAIN_MODELS = {"paper": (512, 16), "gpu": (64, 4), "cpu": (128, 8)}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe of strongmia.py, in which each reference is also attacked with all others.

    The names of the recipes:

    - main: more references at cpu.
    - small: as many targets as references, to measure the false positive rate on each sample.
    """
    c = strongmia.recipe(setting, name)
    changed: dict[str, Any] = {"leave_one_out": True}
    if name == "main":
        references, targets = MAIN_MODELS[setting]
        changed |= {"references": references + targets, "targets": targets}
    elif name == "small":
        references = c.attack.references - c.attack.targets
        changed |= {"references": 2 * references, "targets": references}
    attack = dataclasses.replace(c.attack, **changed)
    train = dataclasses.replace(c.train, validations=0)
    return dataclasses.replace(c, attack=attack, train=train, extract=Extract())


_CONFIG = PaperConfig("Reliability", "reliability.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
