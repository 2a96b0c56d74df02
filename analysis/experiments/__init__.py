"""Experiments: studies, and the figures, tables and claims that are drawn of them.

The modules do not import each other. `lm_mia.attacks` imports none of them: commands pass the studies as data.
"""

import dataclasses
import difflib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lm_mia.attacks import user_code
from lm_mia.attacks.spec import (
    AttackTable,
    AttackTableNeed,
    FigureNeed,
    Need,
    RecipeNeeds,
    Study,
    StudyNeed,
)
from lm_mia.config.paper import figure_number
from lm_mia.errors import UserError

if TYPE_CHECKING:
    from analysis.experiment import Experiment

MODULES: dict[str, str] = {
    "strongmia_fig01_references": "analysis.experiments.strongmia.references",
    "strongmia_fig02_compute_optimal": "analysis.experiments.strongmia.scaling",
    "strongmia_fig03_epochs": "analysis.experiments.strongmia.epochs",
    "strongmia_fig04_data_and_size": "analysis.experiments.strongmia.scaling",
    "strongmia_fig05_instability": "analysis.experiments.strongmia.instability",
    "strongmia_fig06_vulnerability": "analysis.experiments.strongmia.samples",
    "strongmia_fig07_extraction": "analysis.experiments.strongmia.extraction",
    "strongmia_fig08_statistic": "analysis.experiments.strongmia.signals",
    "strongmia_fig09_lira_and_rmia": "analysis.experiments.strongmia.rmia",
    "strongmia_fig10_auc_by_references": "analysis.experiments.strongmia.references",
    "strongmia_fig11_rmia_variants": "analysis.experiments.strongmia.rmia",
    "strongmia_fig12_rmia_population": "analysis.experiments.strongmia.rmia",
    "strongmia_fig13_rmia_gamma": "analysis.experiments.strongmia.rmia",
    "strongmia_fig14_offline": "analysis.experiments.strongmia.references",
    "strongmia_fig15_schedules": "analysis.experiments.strongmia.training",
    "strongmia_fig16_duplicates": "analysis.experiments.strongmia.scaling",
    "strongmia_fig17_overtraining": "analysis.experiments.strongmia.epochs",
    "strongmia_fig18_compute_optimal_targets": "analysis.experiments.strongmia.targets",
    "strongmia_fig19_fixed_data_targets": "analysis.experiments.strongmia.targets",
    "strongmia_fig20_targets_by_references": "analysis.experiments.strongmia.targets",
    "strongmia_fig21_true_positive_probability": "analysis.experiments.strongmia.samples",
    "strongmia_fig22_archetypes_140m": "analysis.experiments.strongmia.instability",
    "strongmia_fig23_archetypes_302m": "analysis.experiments.strongmia.instability",
    "strongmia_fig24_mean_roc": "analysis.experiments.strongmia.targets",
    "strongmia_fig25_thresholds": "analysis.experiments.strongmia.targets",
    "strongmia_fig26_flip_detail_140m": "analysis.experiments.strongmia.instability",
    "strongmia_fig27_flip_detail_302m": "analysis.experiments.strongmia.instability",
    "strongmia_fig28_flip_by_fpr_140m": "analysis.experiments.strongmia.instability",
    "strongmia_fig29_flip_by_fpr_302m": "analysis.experiments.strongmia.instability",
    "strongmia_fig30_coin_free": "analysis.experiments.strongmia.instability",
    "strongmia_fig31_text_properties": "analysis.experiments.strongmia.samples",
    "strongmia_fig32_losses_by_size": "analysis.experiments.strongmia.training",
    "strongmia_tab01_error_rates_140m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab02_error_rates_302m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab03_flip_shares_140m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab04_flip_shares_302m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab05_true_positives_140m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab06_true_positives_302m": "analysis.experiments.strongmia.instability_tables",
    "strongmia_tab07_settings": "analysis.experiments.strongmia.settings",
    "reliability_fig01_strategies": "analysis.experiments.reliability.pooling",
    "reliability_fig02_finite_population": "analysis.experiments.reliability.finite_population",
    "reliability_figA1_oracle": "analysis.experiments.reliability.pooling",
    "reliability_figA2_sample_fpr": "analysis.experiments.reliability.pooling",
    "reliability_figA3_sampling_ratio": "analysis.experiments.reliability.finite_population",
    "mace_fig02_progress": "analysis.experiments.mace.adversaries",
    "mace_fig04_vector_queries": "analysis.experiments.mace.adversaries",
    "mace_fig05_metrics": "analysis.experiments.mace.adversaries",
    "mace_fig06_dp_bound": "analysis.experiments.mace.dp_bound",
    "mace_fig08_subgroups": "analysis.experiments.mace.adversaries",
    "privacyguard_fig03_scores": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_fig04_roc": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_fig05_rmia_roc": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_fig06_rmia_scores": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_fig07_one_run": "analysis.experiments.privacyguard.one_run",
    "privacyguard_fig08_queries": "analysis.experiments.privacyguard.extraction",
    "privacyguard_tab01_models": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_tab02_lira": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_tab03_rmia": "analysis.experiments.privacyguard.audited_attacks",
    "privacyguard_tab04_extraction": "analysis.experiments.privacyguard.extraction",
    "causal_fig03a_ridge": "analysis.experiments.causal.regression",
    "causal_fig03b_dp_sgd": "analysis.experiments.causal.regression",
    "causal_fig03c_text": "analysis.experiments.causal.zero_run",
    "causal_fig04_weights": "analysis.experiments.causal.zero_run",
    "causal_fig05_interference": "analysis.experiments.causal.interference",
    "causal_fig06_effects": "analysis.experiments.causal.interference",
    "causal_fig07_estimators": "analysis.experiments.causal.zero_run",
    "causal_tab02_regression": "analysis.experiments.causal.regression",
    "canaries_fig01_random_tokens": "analysis.experiments.open.canaries",
    "open_fig01_references": "analysis.experiments.open.reference_numbers",
    "open_fig02_fragile_hits": "analysis.experiments.open.fragile_hits",
    "open_fig03_recency": "analysis.experiments.open.recency",
    "open_fig04_variance": "analysis.experiments.open.variance",
    "open_fig05_groups": "analysis.experiments.open.text_groups",
    "open_fig06_extraction": "analysis.experiments.open.tokens",
    "open_fig07_tokens": "analysis.experiments.open.tokens",
    "scaling": "analysis.scaling",
}
"""Name of a figure -> module whose dict `EXPERIMENTS` defines it, in the order of the papers.

A name is ``PAPER_NUMBER_SUBJECT``; files of the figure have this name, too."""

RECIPE_FIGURES = (
    "advantage",
    "audit",
    "extraction",
    "gaussian_tpr",
    "pooling",
    "training",
    "vulnerability",
    "zero_run",
)
"""Figures of a recipe, to which its page links; their files are named ``RECIPE-FIGURE``."""
PAGE_FILES = ("claims", "comparison", "regression")
"""Names of other files that the page, or a figure in `MODULES`, writes for the workdir."""


def exists(name: str) -> bool:
    """Returns whether there is a figure of a name, or a file at a path; the file may not define a figure."""
    return name in MODULES or (name.endswith(".py") and os.path.isfile(name))


def find(name: str) -> "Experiment":
    """Returns a figure by its name in `MODULES`, or the EXPERIMENT of a user's Python file.

    Args:
      name: a name in `MODULES`, or the path of a file, such as ``mine.py``.

    Raises:
      UserError: there is no such figure, or the file fails or does not define ``EXPERIMENT = Experiment(...)``.
    """
    if name in MODULES:
        return importlib.import_module(MODULES[name]).EXPERIMENTS[name]
    path = Path(name)
    if path.suffix != ".py":
        raise UserError(f"figures={name!r}: there is no such figure; {_hint(name)}")
    if not exists(name):
        raise UserError(
            f"figures={name!r}: there is no such file; it must define EXPERIMENT = Experiment(...)"
        )
    if path.stem in MODULES:
        raise UserError(f"figures={name!r}: an included figure has this name; rename the file")
    # Imported late because they load matplotlib and SciPy.
    from analysis.experiment import Experiment
    from lm_mia.attacks import registry

    try:
        module = user_code.import_file(path)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"figures={name!r}: the file fails with {reason}; correct it") from error
    figure = getattr(module, "EXPERIMENT", None)
    if not isinstance(figure, Experiment):
        raise UserError(
            f"figures={name!r}: the file does not define EXPERIMENT = Experiment(...) of analysis.experiment; add it"
        )
    if not isinstance(figure.reads, tuple) or not all(
        isinstance(need, FigureNeed) for need in figure.reads
    ):
        raise UserError(
            f"figures={name!r}: reads={figure.reads!r} must be a tuple of Need, LossNeed and StudyNeed, such as "
            '(Need(("main",)),); correct it'
        )
    for attack in (a for need in figure.reads if isinstance(need, Need) for a in need.attacks):
        try:
            registry.find(attack)
        except UserError as error:
            raise UserError(f"figures={name!r}: reads: {error}; correct it") from error
    return figure


def _hint(name: str) -> str:
    """Returns a hint for a name that no figure has: the figures that it may stand for, or all figures."""
    by_name: dict[str, list[str]] = {}
    paper, _, rest = name.partition("_")
    is_paper = any(full.startswith(f"{paper}_") for full in MODULES)
    for full in MODULES:
        if not is_paper or full.startswith(f"{paper}_"):
            for short in dict.fromkeys((full.partition("_")[2] or full, figure_number(full))):
                by_name.setdefault(short, []).append(full)
    wanted = rest if is_paper else name
    close = [wanted] if wanted in by_name else difflib.get_close_matches(wanted, by_name, 3)
    meant = dict.fromkeys(full for short in close for full in by_name[short])
    return f"did you mean {' or '.join(meant)}?" if meant else f"choose from {', '.join(MODULES)}"


def file_name(name: str) -> str:
    """Returns the name of a figure's files without suffix: its name, or the stem of its Python file."""
    return name if name in MODULES else Path(name).stem


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
