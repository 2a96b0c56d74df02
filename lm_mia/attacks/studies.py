"""Studies: tables of a recipe that belong to an experiment, and what the functions that compute them see.

A study is data (`lm_mia.attacks.spec.Study`). Its function is called with a `StudyView`, with a function that stores a
table, and with the settings that it names as keyword-only parameters. Together with the scores of the models and the
code of the study these settings determine the tables, so that the function can read no others.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lm_mia.attacks import models, registry, user_code
from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.results import Table
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import ModelRoles, Study, assign_roles, decision_settings
from lm_mia.attacks.table_sets import Facts, TableSet, Work, Write
from lm_mia.attacks.user_code import UserCodeError
from lm_mia.config import number
from lm_mia.data import subsets
from lm_mia.data.batch_order import Batches
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable
from lm_mia.store.schema import TOKENS
from lm_mia.store.store import Store

SETTINGS = "attack_settings"
"""A parameter of this name stands for all settings of attacks; studies that run any attack need it."""


class UndeclaredError(UserCodeError):
    """A study reads a table that it does not declare; its author must add the name to ``Study.reads``."""


@dataclasses.dataclass(frozen=True, eq=False)
class StudyView:
    """What a study sees of a recipe: its models, scores and samples, and the tables that the study declares."""

    _recipe: RecipeView
    _study: Study

    @functools.cached_property
    def store(self) -> Store:
        """The scores at the attacked step; no statistic but the loss is required."""
        store, step = self._recipe.store, number(self._recipe.c.step)
        return dataclasses.replace(store, statistics=(), token_samples=(), step=step)

    @functools.cached_property
    def present(self) -> list[ModelSeeds]:
        """The models that are scored at this step, without the base."""
        return models.present_models(self.store, self.store.step)

    @functools.cached_property
    def roles(self) -> ModelRoles:
        """The numbers of the present models that the config asks for, by role."""
        return assign_roles(models.model_numbers(self.present), self._recipe.c)

    @property
    def population(self) -> Population:
        """All samples of the recipe."""
        return self._recipe.population

    @property
    def attacked(self) -> Population:
        """The attacked samples: all of them, or the canaries."""
        return self._recipe.attacked

    @property
    def work(self) -> Work:
        """Threads that compute, a folder for temporary files, and functions that tell the user about progress."""
        return self._recipe.work

    @property
    def references(self) -> list[ModelSeeds]:
        """All models with training subsets of their own, of which the first ones are targets."""
        return [*map(subsets.reference, (*self.roles.targets, *self.roles.references))]

    @property
    def replicas(self) -> list[ModelSeeds]:
        """The models that share one training subset."""
        return [*map(subsets.replica, self.roles.replicas)]

    def with_statistics(self, names: Sequence[str]) -> Store:
        """Returns the scores with statistics other than the loss, which attacks may need."""
        return dataclasses.replace(self.store, statistics=tuple(names))

    def with_log_probs(self, samples: Sequence[int]) -> list[ModelSeeds]:
        """Returns the references that have log-probabilities of the tokens of samples (`score.token_samples`)."""
        store = dataclasses.replace(self.store, token_samples=tuple(samples))
        missing = {*store.missing_models(self.references, store.step)}
        return [model for model in self.references if model not in missing]

    def log_probs(self, models: Sequence[ModelSeeds], samples: Sequence[int]) -> np.ndarray:
        """Returns log_prob_MxT, the log-probabilities in nats of the tokens of samples, float32.

        Args:
          models: some of the models of `with_log_probs`.
          samples: `score.token_samples`; `lm_mia.data.population.token_columns` says what the tokens are.
        """
        store = dataclasses.replace(self.store, token_samples=tuple(samples))
        [(_, value)] = store.blocks({"log_prob": (TOKENS, models)}, sys.maxsize)
        return value["log_prob"]

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Returns a table that the study declares to read, or some of its columns.

        Raises:
          Unavailable: the models or the settings of the recipe do not allow the table.
          UndeclaredError: the study does not declare that it reads the table.
        """
        if name not in self._study.reads:
            raise UndeclaredError(
                f"study {self._study.name}: reads {name}, which it does not declare; add it to reads, which are "
                f"{self._study.reads!r}"
            )
        return self._recipe.table(name, columns)


@functools.cache
def study_set(study: Study) -> Callable[[RecipeView], TableSet]:
    """Returns the function that returns the tables of a study.

    It raises `Unavailable` if the settings do not ask for the study. If the models of the recipe do not allow it, there
    are no tables, and the facts have the reason.
    """
    code = user_code.code_of(study.compute)

    def make(recipe: RecipeView) -> TableSet:
        settings, view = _settings(recipe), StudyView(recipe, study)
        tables = recipe.declared.attack_tables
        with user_code.blamed(study.compute, f"study {study.name}"):
            if study.not_requested is not None:
                reason = study.not_requested(**read_settings(study.not_requested, settings))
                if reason:
                    raise Unavailable(f"{recipe.name}: {reason}")
            models_M = study.models(view) if study.models else [*view.references, *view.replicas]
        values = read_settings(study.compute, settings)
        # Tables that the study reads may depend on any setting, but few on the attack that results are named by.
        named = {*values, *([SETTINGS] if study.reads else [])}
        if any(made.of_headline and made.table.file in study.reads for made in tables):
            named.add("headline")
        key = {
            "settings": {name: _as_json(name, settings[name], recipe) for name in sorted(named)},
            "step": number(recipe.c.step),
            "roles": {role: [*n] for role, n in dataclasses.asdict(view.roles).items()},
        }

        def compute(write: Write) -> Facts:
            try:
                with user_code.blamed(study.compute, f"study {study.name}"):
                    facts = study.compute(view, _declared_only(study, write), **values)
            except Unavailable as error:
                return {"reason": str(error).removeprefix(f"{recipe.name}: ")}
            return {"reason": "", **(facts or {})}

        return TableSet(study.name, models_M, key, compute, code)

    return make


def _declared_only(study: Study, write: Write) -> Write:
    """Returns the function that stores a table of a study, and refuses one that the study does not declare."""

    def write_declared(file: str, table: Table) -> None:
        if file not in {declared.file for declared in study.tables}:
            raise UserCodeError(
                f"study {study.name}: writes {file}, which it does not declare; add a Table of this name to tables"
            )
        write(file, table)

    return write_declared


def _settings(recipe: RecipeView) -> dict[str, Any]:
    """Returns all settings that a study may name."""
    of_attack, tokens = vars(recipe.c), recipe.token_settings
    of_tokens = {
        "token_samples": tokens.samples,
        "prefix_tokens": tokens.prefix_tokens,
        "suffix_tokens": tokens.suffix_tokens,
        "batches": tokens.batches,
    }
    return of_attack | of_tokens | {SETTINGS: of_attack}


def _as_json(name: str, value: Any, recipe: RecipeView) -> Any:
    """Returns what stands for a setting in the key."""
    if name == SETTINGS:
        used = [registry.find(attack) for attack in recipe.c.attacks]
        return {**decision_settings(recipe.c), "code": [attack.code for attack in used]}
    return dataclasses.asdict(value) if isinstance(value, Batches) else value
