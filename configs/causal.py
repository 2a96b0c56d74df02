"""The figures of CausalMIA (Figures 3 and 4, Table 2, and three of our own) at three settings.

    lm-mia run --config=configs/causal.py:tab02,cpu --workdir=runs/papers
    lm-mia run --config=configs/causal.py:cpu --workdir=runs/papers

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number, such as fig03c or tab02. Several
may be named; if none is named, all are drawn. The settings are those of strongmia.py, and so is the recipe
epochs-140M, models that are trained for several epochs: in the workdir of strongmia.py or privacyguard.py, they are
trained only once.

The paper (Even et al., Membership Inference Attacks from Causal Principles) evaluates linear regression on synthetic
data (Figures 3a and 3b, Table 2), which is the same at every setting here, and classifiers of images (Figures 3c and
4), which are replaced by language models here. These two figures are drawn at cpu only: they compare members and
non-members from different sources, and the files of C4, the corpus of the other settings, are no such sources, since
their documents are in random order. Since every sample is a member of some models and not of others, both of its
potential outcomes are known, and so is the error of every estimator. Figures 1 and 2 are diagrams; Figures 5 to 7 are
ours.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   144 models   3,911 hours
    gpu     36 models    0.036 hours
    cpu     40 models    about 7 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs. Table 2 and Figures 3a and 3b are simulations without any.
FIGURES: dict[str, tuple[str, ...]] = {
    "causal_fig03a_ridge": (),
    "causal_fig03b_dp_sgd": (),
    "causal_fig03c_text": ("epochs-140M",),
    "causal_fig04_weights": ("epochs-140M",),
    "causal_fig05_interference": ("epochs-140M",),
    "causal_fig06_effects": ("epochs-140M",),
    "causal_fig07_estimators": ("epochs-140M",),
    "causal_tab02_regression": (),
}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe of strongmia.py, whose references are evaluated one by one."""
    c = strongmia.recipe(setting, name)
    attack = dataclasses.replace(
        c.attack,
        attacks=("lira_online", "loss"),
        zero_run=("groups", "graded", "disjoint"),
        zero_run_strengths=(0.0, 0.5, 1.0, 2.0, 4.0),
    )
    train = dataclasses.replace(c.train, validations=0)
    return dataclasses.replace(c, attack=attack, train=train, extract=Extract())


_CONFIG = PaperConfig("CausalMIA", "causal.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
