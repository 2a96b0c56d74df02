"""What random-token canaries add to natural ones: models trained on a corpus and on half of some canaries.

    lm-mia run --config=configs/canaries.py:cpu --workdir=runs/canaries

Every model is trained on the same text, and on a random half of the canaries at the end of the population. Half of the
canaries are text like the rest. The others are sequences of pieces that are drawn uniformly from the vocabulary. The
same models thus show how well an attack finds canaries of either kind, and which lower bound on epsilon each kind gives
in an audit of one model. docs/how-to/canaries.md explains the results.

The settings are those of strongmia.py. Cost, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small
models do not reach):

    paper   146 models   47 hours
    gpu     74 models    0.017 hours
    cpu     42 models    about 3 minutes on 2 cores

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses
from typing import Any

import strongmia

from lm_mia.config import Config, Extract
from lm_mia.config.paper import PaperConfig, Setting

FIGURES = {"canaries_fig01_random_tokens": ("canaries",)}
# Setting -> (samples of the population; canaries, half of them random; epochs).
SIZES = {"paper": (2**20, 2**14, 1), "gpu": (2**14, 2_048, 2), "cpu": (1_536, 512, 3)}
# Setting -> (references, targets, replicas).
MODELS = {"paper": (128, 16, 2), "gpu": (64, 8, 2), "cpu": (32, 8, 2)}


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of the models: 140M of strongmia.py, trained on more of the population."""
    c = strongmia.recipe(setting, "flip-140M")
    samples, canaries, epochs = SIZES[setting]
    references, targets, replicas = MODELS[setting]
    population = dataclasses.replace(
        c.population, samples=samples, random_samples=canaries // 2, validation_samples=0
    )
    # The coins of Bernoulli subsets are independent, so that an audit may use the canaries of one kind only.
    train = dataclasses.replace(
        c.train, subset="bernoulli", canaries=canaries, epochs=epochs, validations=0
    )
    attack: dict[str, Any] = {
        "references": references + targets,
        "targets": targets,
        "replicas": replicas,
        "attacks": ("lira_online", "lira_offline", "loss"),
    }
    return dataclasses.replace(
        c,
        name=name,
        population=population,
        train=train,
        attack=dataclasses.replace(c.attack, **attack),
        extract=Extract(),
    )


_CONFIG = PaperConfig("canaries.py", "canaries.py", FIGURES, recipe)
get_config, sweep = _CONFIG.get_config, _CONFIG.sweep
