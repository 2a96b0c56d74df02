"""The figures of PrivacyGuard (Figures 3 to 7, Tables 1 to 3) on language models, at three settings.

    lm-mia run --config=configs/privacyguard.py:fig04,cpu --workdir=runs/papers
    lm-mia run --config=configs/privacyguard.py:cpu --workdir=runs/papers

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number, such as fig04 or tab02. Several
may be named; if none is named, all are drawn. The settings are those of strongmia.py, and so is the recipe, models
that are trained for several epochs: in the workdir of strongmia.py, they are trained only once.

The paper (Melis et al. 2025, PrivacyGuard: A Modular Framework for Privacy Auditing in Machine Learning) attacks image
classifiers with 7 references (LiRA) or 3 (RMIA), so no setting repeats these experiments: `paper` has the models of
StrongMIA. Figure 7 is a simulation, which is the same at every setting. Figures 1 and 2 are diagrams.

Cost of all figures, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):

    paper   144 models   4,983 hours
    gpu     36 models   0.036 hours
    cpu     40 models   about 7 minutes on 2 cores

Expect at cpu that of the 10 claims of the paper 3 are seen, 2 are seen in these models, 1 is opposite and 4 are
undecided: online LiRA is ahead of offline LiRA with all references, but RMIA with few references is not ahead of
offline LiRA, and with a = 0.3 far behind. docs/figures.md says what to expect of each figure.
"""

import dataclasses

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs: names of recipes of strongmia.py. Figure 7 is a simulation.
FIGURES: dict[str, tuple[str, ...]] = {
    "privacyguard_fig03_scores": ("epochs-140M",),
    "privacyguard_fig04_roc": ("epochs-140M",),
    "privacyguard_fig05_rmia_roc": ("epochs-140M",),
    "privacyguard_fig06_rmia_scores": ("epochs-140M",),
    "privacyguard_fig07_one_run": ("epochs-140M",),
    "privacyguard_tab01_models": ("epochs-140M",),
    "privacyguard_tab02_lira": ("epochs-140M",),
    "privacyguard_tab03_rmia": ("epochs-140M",),
}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe of strongmia.py, with the attacks that PrivacyGuard compares."""
    c = strongmia.recipe(setting, name)
    attack = dataclasses.replace(c.attack, attacks=("lira_online", "lira_offline", "rmia_offline"))
    train = dataclasses.replace(c.train, validations=0)
    return dataclasses.replace(c, attack=attack, train=train, extract=Extract())


_CONFIG = PaperConfig("PrivacyGuard", "privacyguard.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
