"""The figures of strongmia.py, drawn from your own texts.

    lm-mia run --config=configs/own.py --workdir=runs/own --config.corpus.path=texts
    lm-mia run --config=configs/own.py:fig05,cpu --workdir=runs/own --config.corpus.path=texts

`texts` is a folder of .txt files, one document each. The argument is that of strongmia.py, [FIGURE,]SETTING; without an
argument, all figures are drawn at the setting cpu.

Cost: as for strongmia.py, about an hour on 2 cores for all figures at cpu.

Requirements at cpu: 7,168 documents of 20 characters or more for all figures, 3,328 for fig01, and 2,304 for fig05 and
for tab01 to tab06.

At gpu, fig05 requires 33,792 documents of any length. Exact duplicates are dropped at every setting, and the
tokenizer is trained on all documents.

Expect the figures and tables that strongmia.py describes; the numbers depend on the texts.
"""

import dataclasses

import strongmia

from lm_mia.config import Config


def get_config(arg: str = "cpu") -> Config:
    config = strongmia.get_config(arg)
    corpus = dataclasses.replace(config.corpus, source="text", path="texts", deduplicate="exact")
    tokenizer = dataclasses.replace(config.tokenizer, documents=0)
    return dataclasses.replace(config, corpus=corpus, tokenizer=tokenizer)


def sweep(arg: str = "cpu"):
    return strongmia.sweep(arg)
