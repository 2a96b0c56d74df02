"""The figures and tables of papers, grouped by topic; the modules here do not import each other."""

import difflib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lm_mia.attacks import user_code
from lm_mia.attacks.spec import FigureNeed
from lm_mia.config.paper import figure_number
from lm_mia.errors import UserError

if TYPE_CHECKING:
    from analysis.experiment import Experiment

MODULES: dict[str, str] = {
    "strongmia_fig01_references": "analysis.figures.references",
    "strongmia_fig02_compute_optimal": "analysis.figures.scaling",
    "strongmia_fig03_epochs": "analysis.figures.epochs",
    "strongmia_fig04_data_and_size": "analysis.figures.scaling",
    "strongmia_fig05_instability": "analysis.figures.instability",
    "strongmia_fig06_vulnerability": "analysis.figures.samples",
    "strongmia_fig07_extraction": "analysis.figures.extraction",
    "strongmia_fig08_statistic": "analysis.figures.signals",
    "strongmia_fig09_lira_and_rmia": "analysis.figures.rmia",
    "strongmia_fig10_auc_by_references": "analysis.figures.references",
    "strongmia_fig11_rmia_variants": "analysis.figures.rmia",
    "strongmia_fig12_rmia_population": "analysis.figures.rmia",
    "strongmia_fig13_rmia_gamma": "analysis.figures.rmia",
    "strongmia_fig14_offline": "analysis.figures.references",
    "strongmia_fig15_schedules": "analysis.figures.training",
    "strongmia_fig16_duplicates": "analysis.figures.scaling",
    "strongmia_fig17_overtraining": "analysis.figures.epochs",
    "strongmia_fig18_compute_optimal_targets": "analysis.figures.targets",
    "strongmia_fig19_fixed_data_targets": "analysis.figures.targets",
    "strongmia_fig20_targets_by_references": "analysis.figures.targets",
    "strongmia_fig21_true_positive_probability": "analysis.figures.samples",
    "strongmia_fig22_archetypes_140m": "analysis.figures.archetypes",
    "strongmia_fig23_archetypes_302m": "analysis.figures.archetypes",
    "strongmia_fig24_mean_roc": "analysis.figures.targets",
    "strongmia_fig25_thresholds": "analysis.figures.targets",
    "strongmia_fig26_flip_detail_140m": "analysis.figures.instability",
    "strongmia_fig27_flip_detail_302m": "analysis.figures.instability",
    "strongmia_fig28_flip_by_fpr_140m": "analysis.figures.instability",
    "strongmia_fig29_flip_by_fpr_302m": "analysis.figures.instability",
    "strongmia_fig30_coin_free": "analysis.figures.instability",
    "strongmia_fig31_text_properties": "analysis.figures.samples",
    "strongmia_fig32_losses_by_size": "analysis.figures.training",
    "strongmia_tab01_error_rates_140m": "analysis.figures.instability_tables",
    "strongmia_tab02_error_rates_302m": "analysis.figures.instability_tables",
    "strongmia_tab03_flip_shares_140m": "analysis.figures.instability_tables",
    "strongmia_tab04_flip_shares_302m": "analysis.figures.instability_tables",
    "strongmia_tab05_true_positives_140m": "analysis.figures.instability_tables",
    "strongmia_tab06_true_positives_302m": "analysis.figures.instability_tables",
    "strongmia_tab07_settings": "analysis.figures.settings",
    "reliability_fig01_strategies": "analysis.figures.thresholds",
    "reliability_fig02_finite_population": "analysis.figures.finite_population",
    "reliability_figA1_oracle": "analysis.figures.thresholds",
    "reliability_figA2_sample_fpr": "analysis.figures.thresholds",
    "reliability_figA3_sampling_ratio": "analysis.figures.finite_population",
    "mace_fig02_progress": "analysis.figures.advantage",
    "mace_fig04_vector_queries": "analysis.figures.advantage",
    "mace_fig05_metrics": "analysis.figures.advantage",
    "mace_fig06_dp_bound": "analysis.figures.dp_bound",
    "mace_fig08_subgroups": "analysis.figures.advantage",
    "privacyguard_fig03_scores": "analysis.figures.audited_attacks",
    "privacyguard_fig04_roc": "analysis.figures.audited_attacks",
    "privacyguard_fig05_rmia_roc": "analysis.figures.audited_attacks",
    "privacyguard_fig06_rmia_scores": "analysis.figures.audited_attacks",
    "privacyguard_fig07_one_run": "analysis.figures.one_run",
    "privacyguard_fig08_queries": "analysis.figures.extraction",
    "privacyguard_tab01_models": "analysis.figures.audit_tables",
    "privacyguard_tab02_lira": "analysis.figures.audit_tables",
    "privacyguard_tab03_rmia": "analysis.figures.audit_tables",
    "privacyguard_tab04_extraction": "analysis.figures.extraction",
    "causal_fig03a_ridge": "analysis.figures.regression",
    "causal_fig03b_dp_sgd": "analysis.figures.regression",
    "causal_fig03c_text": "analysis.figures.zero_run",
    "causal_fig04_weights": "analysis.figures.zero_run",
    "causal_fig05_interference": "analysis.figures.interference",
    "causal_fig06_effects": "analysis.figures.interference",
    "causal_fig07_estimators": "analysis.figures.zero_run",
    "causal_tab02_regression": "analysis.figures.regression",
    "canaries_fig01_random_tokens": "analysis.figures.canaries",
    "open_fig01_references": "analysis.experiments.open.reference_numbers",
    "open_fig02_fragile_hits": "analysis.experiments.open.fragile_hits",
    "open_fig03_recency": "analysis.experiments.open.recency",
    "open_fig04_variance": "analysis.figures.variance",
    "open_fig05_groups": "analysis.experiments.open.text_groups",
    "open_fig06_extraction": "analysis.figures.tokens",
    "open_fig07_tokens": "analysis.figures.tokens",
    "scaling": "analysis.scaling",
}
"""Name of a figure -> module whose dict `FIGURES` defines it, in the order of the papers.

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
        return importlib.import_module(MODULES[name]).FIGURES[name]
    path = Path(name)
    if path.suffix != ".py":
        raise UserError(f"figures={name!r}: there is no such figure; {_hint(name)}")
    if not exists(name):
        raise UserError(
            f"figures={name!r}: there is no such file; it must define EXPERIMENT = Experiment(...)"
        )
    if path.stem in MODULES:
        raise UserError(f"figures={name!r}: an included figure has this name; rename the file")
    from analysis.experiment import Experiment  # imported late because it loads matplotlib

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
