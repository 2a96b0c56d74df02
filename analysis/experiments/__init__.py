"""Experiments: studies, and the figures and claims that are drawn of them; each is one module.

The modules do not import each other. `lm_mia.attacks` imports none of them: commands pass the studies as data.
"""

import dataclasses

from lm_mia.attacks.spec import (
    AttackTable,
    AttackTableNeed,
    FigureNeed,
    RecipeNeeds,
    Study,
    StudyNeed,
)

EVERY = ("*",)


def of_every_recipe() -> list[FigureNeed]:
    """Returns the tables of every recipe: those of all attacks, and studies that the settings of a recipe ask for."""
    return [
        *(AttackTableNeed(EVERY, table) for table in _attack_tables()),
        *(StudyNeed(EVERY, study) for study in _studies()),
    ]


def with_those_of_every_recipe(declared: RecipeNeeds) -> RecipeNeeds:
    """Returns what figures need of a recipe, and the tables of every recipe."""
    return dataclasses.replace(
        declared,
        studies=[*dict.fromkeys((*_studies(), *declared.studies))],
        attack_tables=[*dict.fromkeys((*_attack_tables(), *declared.attack_tables))],
    )


# The modules are imported in functions because they load SciPy.


def _attack_tables() -> list[AttackTable]:
    from analysis.experiments.mace import advantage
    from analysis.experiments.privacyguard import audit
    from analysis.experiments.recipe import conditions, exposed, retraining, strength

    modules = advantage, audit, strength, exposed, retraining, conditions
    return [table for module in modules for table in module.ATTACK_TABLES]


def _studies() -> list[Study]:
    from analysis.experiments.causal import zero_run
    from analysis.experiments.open import tokens, variance
    from analysis.experiments.recipe import exposed, more_references, strength
    from analysis.experiments.reliability import pooling

    modules = more_references, strength, exposed, pooling, zero_run, variance, tokens
    return [module.STUDY for module in modules]
