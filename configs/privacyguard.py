"""The figures of PrivacyGuard (Figures 3 to 8, Tables 1 to 4) on language models, at three settings.

    lm-mia run --config=configs/privacyguard.py:fig04,cpu --workdir=runs/papers
    lm-mia run --config=configs/privacyguard.py:cpu --workdir=runs/papers

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number, such as fig04 or tab02. Several
may be named; if none is named, all are drawn. The settings are those of strongmia.py, and so is the recipe
epochs-140M, models that are trained for several epochs: in the workdir of strongmia.py, they are trained only once.
Extraction (Figure 8, Table 4) has a recipe of its own, memorized, with few samples and more epochs.

The paper (Melis et al. 2025, PrivacyGuard: A Modular Framework for Privacy Auditing in Machine Learning) attacks image
classifiers with 7 references (LiRA) or 3 (RMIA), so no setting repeats these experiments: `paper` has the models of
StrongMIA. Figure 7 is a simulation, which is the same at every setting. Figures 1 and 2 are diagrams.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   150 models   3,913 hours
    gpu     42 models   0.041 hours
    cpu     46 models   about 7 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses

import strongmia

from lm_mia.config import Config, Extract, Score
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs. Figure 7 is a simulation.
FIGURES: dict[str, tuple[str, ...]] = {
    "privacyguard_fig03_scores": ("epochs-140M",),
    "privacyguard_fig04_roc": ("epochs-140M",),
    "privacyguard_fig05_rmia_roc": ("epochs-140M",),
    "privacyguard_fig06_rmia_scores": ("epochs-140M",),
    "privacyguard_fig07_one_run": (),
    "privacyguard_fig08_queries": ("memorized",),
    "privacyguard_tab01_models": ("epochs-140M",),
    "privacyguard_tab02_lira": ("epochs-140M",),
    "privacyguard_tab03_rmia": ("epochs-140M",),
    "privacyguard_tab04_extraction": ("memorized",),
}
# Setting -> training samples of the recipe memorized, and tokens of a prefix and of a suffix.
MEMORIZED = {"paper": (2**16, 50), "gpu": (4_096, 50), "cpu": (128, 32)}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe.

    The names of the recipes:

    - epochs-140M: that of strongmia.py, with the attacks that PrivacyGuard compares.
    - memorized: 28 epochs on few samples, after which models reproduce many of their members. Extraction is the same
      for any number of references, so there are only as many as an attack needs.
    """
    c = strongmia.recipe(setting, "epochs-140M-small" if name == "memorized" else name)
    if name == "memorized":
        samples, tokens = MEMORIZED[setting]
        return dataclasses.replace(
            c,
            name=name,
            population=dataclasses.replace(c.population, samples=2 * samples),
            train=dataclasses.replace(c.train, epochs=28, validations=0),
            score=Score(),
            attack=dataclasses.replace(c.attack, references=4, targets=0, replicas=2),
            extract=Extract(
                samples=2_000,
                choose="random",
                reference=True,
                prefix_tokens=tokens,
                suffix_tokens=tokens,
            ),
        )
    attack = dataclasses.replace(c.attack, attacks=("lira_online", "lira_offline", "rmia_offline"))
    train = dataclasses.replace(c.train, validations=0)
    return dataclasses.replace(c, attack=attack, train=train, extract=Extract())


_CONFIG = PaperConfig("PrivacyGuard", "privacyguard.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
