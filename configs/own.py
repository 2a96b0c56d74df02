"""Every figure of the paper, of your own texts.

    lm-mia run --config=configs/own.py --workdir=runs/own --config.corpus.path=texts

`texts` is a folder of .txt files, a document each: at least 7,168 of 20 characters, for all figures. With fewer, name
the figures in FIGURES: 2,304 are enough for fig05_instability and tables 1 to 6, 3,328 for fig01_references.
"""

import dataclasses

import paper

from lm_mia.config import Config

FIGURES = paper.FIGURES
get_paper, sweep_paper = paper.of(FIGURES)


def get_config() -> Config:
    c = get_paper("cpu")
    return dataclasses.replace(c, corpus=dataclasses.replace(c.corpus, source="text", path="texts"))


def sweep():
    return sweep_paper("cpu")
