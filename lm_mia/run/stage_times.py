"""Guesses how long the stages take that neither train nor score models.

The guesses were fitted to runs of three included configs on two CPU cores, partly shared with other programs. They are
used only if the workdir has no times of an earlier run.
"""

from collections.abc import Sequence

from lm_mia import config
from lm_mia.config import Config
from lm_mia.run import model_sizes
from lm_mia.run.stages import requested_table_stages
from lm_mia.run.sweep import SweepRecipe

_READ_SECONDS = {"docstrings": 5.0, "text": 1.0, "c4": 1.0}
"""Seconds to open the documents of a corpus; for docstrings, all installed packages are parsed."""
_VOCABULARY_SECONDS = 12.0  # if it is trained on all docstrings
_VOCABULARY_SECONDS_PER_DOCUMENT = 1.2e-3
_TOKENIZED_PER_SECOND = 2000.0  # documents

# Loading, and work that does not depend on the numbers of samples and models.
_ATTACK_SECONDS = 1.5
_ATTACK_SECONDS_PER_VALUE = 0.9e-5  # for each sample, model and attack
_EXTRACT_SECONDS = 3.0  # loading and compilation
_EXTRACT_FLOPS_PER_SECOND = 4e9
_REPORT_SECONDS = 1.0  # loading and writing the page
_SECTION_SECONDS = 5.0  # for the figures of each recipe with tables of decisions
_FIGURE_SECONDS = 0.5  # for each figure of a paper


def corpus_seconds(c: Config, *, is_first: bool) -> float:
    """Returns the seconds that it takes to build a population.

    Args:
      c: the config.
      is_first: whether the command reads the documents and trains the vocabulary for this population; later
        populations reuse both.
    """
    seconds = (c.population.samples + c.population.validation_samples) / _TOKENIZED_PER_SECOND
    if is_first:
        seconds += _READ_SECONDS.get(c.corpus.source, 0.0)
        seconds += 0.0 if c.tokenizer.path else _vocabulary_seconds(c.tokenizer.documents)
    return seconds


def _vocabulary_seconds(documents: int) -> float:
    """Returns the seconds that it takes to train a vocabulary on a number of documents; 0 stands for all."""
    return (
        min(documents * _VOCABULARY_SECONDS_PER_DOCUMENT, _VOCABULARY_SECONDS)
        or _VOCABULARY_SECONDS
    )


def attack_seconds(c: Config) -> float:
    """Returns the seconds of the attacks on a recipe, except those that only figures of papers need."""
    a = c.attack
    if "attack" not in requested_table_stages(c):
        return 0.0
    models = a.references + a.replicas
    values = config.num_canaries(c) * models * len(a.attacks)
    return _ATTACK_SECONDS + _ATTACK_SECONDS_PER_VALUE * values


def extract_seconds(c: Config) -> float:
    """Returns the seconds of extraction, which runs in one process."""
    e = c.extract
    if "extract" not in requested_table_stages(c):
        return 0.0
    size = model_sizes.size(c)
    weights = size.kernels + size.vocab_size * size.width
    # Each scheme generates its own continuations, one token after another.
    tokens = e.prefix_tokens + 3 * max(e.generations, 1) * max(e.suffix_tokens, e.written_tokens)
    flops = 2.0 * weights * tokens * e.samples * (1 + e.reference)
    return _EXTRACT_SECONDS + flops / _EXTRACT_FLOPS_PER_SECOND


def report_seconds(recipes: Sequence[SweepRecipe]) -> float:
    """Returns the seconds that it takes to draw the report of the recipes, which all request the same figures."""
    sections = sum(bool(recipe.config.attack.replicas) for recipe in recipes)
    figures = max((len(recipe.config.figures) for recipe in recipes), default=0)
    return _REPORT_SECONDS + _SECTION_SECONDS * sections + _FIGURE_SECONDS * figures
