"""Experiments: studies, and the figures and claims that are drawn of them; each is one module.

The modules do not import each other. `lm_mia.attacks` imports none of them: commands pass the studies as data.
"""

from lm_mia.attacks.spec import StudyNeed


def of_every_recipe() -> list[StudyNeed]:
    """Returns the studies of every recipe whose settings ask for them."""
    # Imported here because they load SciPy.
    from analysis.experiments.causal import zero_run
    from analysis.experiments.open import tokens, variance
    from analysis.experiments.recipe import more_references
    from analysis.experiments.reliability import pooling

    modules = (more_references, pooling, zero_run, variance, tokens)
    return [StudyNeed(("*",), module.STUDY) for module in modules]
