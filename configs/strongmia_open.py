"""Questions that StrongMIA leaves open, answered with its own models: figures of our own, at three settings.

    lm-mia run --config=configs/strongmia_open.py:fig04,cpu --workdir=runs/strongmia
    lm-mia run --config=configs/strongmia_open.py:cpu --workdir=runs/strongmia

The argument is [FIGURE,]SETTING, as for strongmia.py. A figure is named by its number, such as fig04. Several may be
named; if none is named, all are drawn. The settings are those of strongmia.py, and so are the models: in one workdir,
each is trained only once.

The names of the figures begin with open_, such as open_fig04_variance. docs/figures.md lists the
questions, and docs/results/strongmia-open.md the answers.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   309 models   63 hours
    gpu     120 models   0.02 hours
    cpu     104 models   about 3 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

# Figure -> the recipes that it needs, of strongmia.py or of `recipe` below.
FIGURES: dict[str, tuple[str, ...]] = {
    "open_fig01_references": ("flip-140M",),
    "open_fig02_fragile_hits": ("flip-140M",),
    "open_fig03_recency": ("flip-140M",),
    "open_fig04_variance": ("crossed-140M",),
    "open_fig05_groups": ("flip-140M",),
    "open_fig06_extraction": ("tokens-140M",),
    "open_fig07_tokens": ("tokens-140M",),
}
# Setting -> (initializations of the target, batch orders of each, references of a set).
CROSSED = {"paper": (8, 8, 32), "gpu": (8, 8, 8), "cpu": (6, 8, 8)}
# Setting -> samples whose tokens are stored, the first ones of the population, which is in random order.
TOKEN_SAMPLES = {"paper": 1_024, "gpu": 1_024, "cpu": 512}
# Setting -> tokens of a suffix, and of a prefix without <bos>, as for Figure 7.
SUFFIX_TOKENS = {"paper": 50, "gpu": 50, "cpu": 32}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe of strongmia.py, or of one of two that add to its flip-140M.

    crossed-140M also trains the target from further initializations, and tokens-140M stores the log-probabilities of
    the tokens of some samples. In one workdir, the three share their models and a folder.
    """
    if name not in ("crossed-140M", "tokens-140M"):
        return strongmia.recipe(setting, name)
    c = strongmia.recipe(setting, "flip-140M")
    if name == "crossed-140M":
        inits, orders, size = CROSSED[setting]
        attack = dataclasses.replace(
            c.attack, replica_inits=inits, orders_per_init=orders, resample_references=size
        )
        return dataclasses.replace(c, name=name, attack=attack)
    tokens = SUFFIX_TOKENS[setting]
    score = dataclasses.replace(c.score, token_samples=tuple(range(TOKEN_SAMPLES[setting])))
    extract = Extract(prefix_tokens=1 + tokens, suffix_tokens=tokens)
    return dataclasses.replace(c, name=name, score=score, extract=extract)


_CONFIG = PaperConfig("StrongMIA (open questions)", "strongmia_open.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
