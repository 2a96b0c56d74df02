"""The figures of strongmia.py, drawn from your own texts.

    lm-mia run --config=configs/own.py --workdir=runs/own --config.corpus.path=texts
    lm-mia run --config=configs/own.py:fig05,cpu --workdir=runs/own --config.corpus.path=texts

`texts` is a folder of .txt files, one document each. The argument is that of strongmia.py, [FIGURE,]SETTING; without it
all figures are drawn at cpu. At cpu all figures together need at least 7,168 documents of 20 characters or more. With
fewer, name the figures to draw: 2,304 are enough for fig05 and for the tables 1 to 6, and 3,328 for fig01.
"""

import dataclasses

import strongmia

from lm_mia.config import Config


def get_config(arg: str = "cpu") -> Config:
    c = strongmia.get_config(arg)
    return dataclasses.replace(c, corpus=dataclasses.replace(c.corpus, source="text", path="texts"))


def sweep(arg: str = "cpu"):
    return strongmia.sweep(arg)
