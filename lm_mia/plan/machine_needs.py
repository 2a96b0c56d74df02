"""What a job asks of its machines by default: CPUs, and memory of the hosts.

The rules are simple ones, on the safe side of what was observed:

- On accelerators there is one worker process per chip, with 4 CPUs: one packs batches, the others compile, and save
  states. It has 8 GiB for Python, JAX with its driver, compilation and batches, and twice the state of its model
  (parameters and moments, 12 bytes per parameter with AdamW), since a state that is saved or restored is in memory
  twice.
- Without accelerators, each worker has one CPU, 2 GiB, twice the state of its model, and what training takes.
- The corpus is built by 8 processes with 2 GiB each and 8 GiB in all, and training the vocabulary takes 41 kB per
  document.
"""

import dataclasses
import math

from lm_mia.config import Config, number
from lm_mia.model import memory
from lm_mia.model.memory import ModelSize

_GIB = 2**30
_CHIP_GIB, _CPU_WORKER_GIB = 8.0, 2.0
_STATES_PER_WORKER = 2
_CPUS_PER_CHIP = 4
_MOST_CPU_WORKERS = 8
"""Number of workers on a machine without accelerators, unless train.workers or --cpus-per-task sets it."""
_CORPUS_CPUS = 8
_CORPUS_GIB, _CORPUS_PROCESS_GIB = 8.0, 2.0
_VOCABULARY_BYTES = 41_000
"""Bytes of memory that SentencePiece needs per document of C4; a million documents took 41 GB."""
_SAMPLE_BYTES = 100
"""Bytes per sample while a population is drawn; the digests that exclude duplicates take 57."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What one machine of a job is asked for."""

    cpus: int
    memory_gib: int


def of_models(c: Config, size: ModelSize, chips: int, cpus: int = 0, models: int = 0) -> Needs:
    """Returns what a machine needs to make models.

    Args:
      c: the config of the recipe.
      size: the size of its models.
      chips: number of accelerators of the machine; 0: models are trained on its CPUs.
      cpus: number of CPUs, if the user gives it; 0: chosen here.
      models: number of models of a job, more workers than which would be idle; 0: unknown.
    """
    state_bytes = (4 + size.state_bytes) * size.parameters
    worker_bytes = _STATES_PER_WORKER * state_bytes
    if chips:
        worker_bytes += _CHIP_GIB * _GIB
        return Needs(cpus or _CPUS_PER_CHIP * chips, math.ceil(chips * worker_bytes / _GIB))
    workers = cpus or min(number(c.train.workers) or _MOST_CPU_WORKERS, models or _MOST_CPU_WORKERS)
    micro_batch_size = memory.micro_batch_size(
        number(c.compute.micro_batch_size),
        c.population.length_tokens,
        c.train.batch_size,
        micro_batch_tokens=memory.CPU_TOKENS,
    )
    worker_bytes += _CPU_WORKER_GIB * _GIB
    worker_bytes += memory.training_bytes(size, "xla", micro_batch_size, 1, is_scanned=False)
    return Needs(workers, math.ceil(workers * worker_bytes / _GIB))


def of_corpus(configs: list[Config], cpus: int = 0) -> Needs:
    """Returns what a machine needs to build the populations of recipes, one after another.

    Args:
      configs: their configs.
      cpus: number of CPUs, if the user gives it; 0: chosen here.
    """
    cpus = cpus or max(number(c.corpus.processes) for c in configs) or _CORPUS_CPUS
    samples = max(c.population.samples + c.population.validation_samples for c in configs)
    # All documents of a corpus, whose number is not known here, are at least those of the samples.
    documents = max(
        0 if c.tokenizer.path else number(c.tokenizer.documents) or c.population.samples
        for c in configs
    )
    needed = (
        _CORPUS_GIB * _GIB
        + cpus * _CORPUS_PROCESS_GIB * _GIB
        + documents * _VOCABULARY_BYTES
        + samples * _SAMPLE_BYTES
    )
    return Needs(cpus, math.ceil(needed / _GIB))
