import dataclasses
from typing import Any

import pytest

from lm_mia import config
from lm_mia.config import Config, Model
from lm_mia.plan import machine_needs
from lm_mia.run import model_sizes


def needs(size: Any, chips: int, **given: int) -> machine_needs.Needs:
    c = config.resolve(Config(model=Model(size=size)))
    return machine_needs.of_models(c, model_sizes.size(c), chips, **given)


def test_a_chip_needs_cpus_and_memory_for_its_worker():
    one, eight = needs("85M", 1), needs("85M", 8)
    assert (one.cpus, eight.cpus) == (4, 32)
    assert eight.memory_gib == pytest.approx(8 * one.memory_gib, abs=8)
    assert needs("85M", 8, cpus=64).cpus == 64


def test_memory_holds_two_states_of_the_model():
    difference = needs("1018M", 8).memory_gib - needs("10M", 8).memory_gib
    parameters = [
        model_sizes.size(config.resolve(Config(model=Model(size=size)))).parameters
        for size in ("1018M", "10M")
    ]
    assert difference * 2**30 >= 0.99 * 8 * 2 * 12 * (parameters[0] - parameters[1])


def test_workers_on_cpus_have_one_each():
    assert needs("10M", 0).cpus == 8
    assert needs("10M", 0, models=3).cpus == 3
    assert needs("10M", 0, cpus=2).memory_gib < needs("10M", 0).memory_gib
    c = config.resolve(Config(train=config.Train(workers=5)))
    assert machine_needs.of_models(c, model_sizes.size(c), 0).cpus == 5


def test_corpus_needs_memory_for_the_documents_of_its_vocabulary():
    def gib(documents: int, path: str = "") -> int:
        c = Config(tokenizer=config.Tokenizer(path=path, documents=documents))
        return machine_needs.of_corpus([c]).memory_gib

    assert gib(1_000_000) - gib(200_000) == pytest.approx(31, abs=1)
    assert gib(1_000_000, "a.model") < gib(200_000)
    more = dataclasses.replace(Config(), corpus=config.Corpus(processes=32))
    assert machine_needs.of_corpus([Config(), more]).cpus == 32
