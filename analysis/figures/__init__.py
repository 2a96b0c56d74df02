"""StrongMIA's figures and tables, grouped by topic; the modules here do not import each other."""

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lm_mia.config.needs import LossNeed, Need
from lm_mia.errors import UserError

if TYPE_CHECKING:
    from analysis.paper_figure import PaperFigure

MODULES: dict[str, str] = {
    "fig01_references": "analysis.figures.references",
    "fig02_compute_optimal": "analysis.figures.scaling",
    "fig03_epochs": "analysis.figures.epochs",
    "fig04_data_and_size": "analysis.figures.scaling",
    "fig05_instability": "analysis.figures.instability",
    "fig06_vulnerability": "analysis.figures.samples",
    "fig07_extraction": "analysis.figures.extraction",
    "fig08_statistic": "analysis.figures.signals",
    "fig09_lira_and_rmia": "analysis.figures.rmia",
    "fig10_auc_by_references": "analysis.figures.references",
    "fig11_rmia_variants": "analysis.figures.rmia",
    "fig12_rmia_population": "analysis.figures.rmia",
    "fig13_rmia_gamma": "analysis.figures.rmia",
    "fig14_offline": "analysis.figures.references",
    "fig15_schedules": "analysis.figures.training",
    "fig16_duplicates": "analysis.figures.scaling",
    "fig17_overtraining": "analysis.figures.epochs",
    "fig18_compute_optimal_targets": "analysis.figures.targets",
    "fig19_fixed_data_targets": "analysis.figures.targets",
    "fig20_targets_by_references": "analysis.figures.targets",
    "fig21_true_positive_probability": "analysis.figures.samples",
    "fig22_archetypes_140m": "analysis.figures.archetypes",
    "fig23_archetypes_302m": "analysis.figures.archetypes",
    "fig24_mean_roc": "analysis.figures.targets",
    "fig25_thresholds": "analysis.figures.targets",
    "fig26_flip_detail_140m": "analysis.figures.instability",
    "fig27_flip_detail_302m": "analysis.figures.instability",
    "fig28_flip_by_fpr_140m": "analysis.figures.instability",
    "fig29_flip_by_fpr_302m": "analysis.figures.instability",
    "fig30_coin_free": "analysis.figures.instability",
    "fig31_text_properties": "analysis.figures.samples",
    "fig32_losses_by_size": "analysis.figures.training",
    "tab01_error_rates_140m": "analysis.figures.instability_tables",
    "tab02_error_rates_302m": "analysis.figures.instability_tables",
    "tab03_flip_shares_140m": "analysis.figures.instability_tables",
    "tab04_flip_shares_302m": "analysis.figures.instability_tables",
    "tab05_true_positives_140m": "analysis.figures.instability_tables",
    "tab06_true_positives_302m": "analysis.figures.instability_tables",
    "tab07_settings": "analysis.figures.settings",
    "scaling": "analysis.scaling",
}
"""Name of a figure -> module whose dict `FIGURES` defines it, in the order of the paper."""


def find(name: str) -> "PaperFigure":
    """Returns a figure by its name in `MODULES`, or the FIGURE of a user's Python file.

    Args:
      name: a name in `MODULES`, or the path of a file, such as ``mine.py``.

    Raises:
      UserError: there is no such figure, or the file fails or does not define ``FIGURE = PaperFigure(...)``.
    """
    if name in MODULES:
        return importlib.import_module(MODULES[name]).FIGURES[name]
    path = Path(name)
    if path.suffix != ".py":
        full_names = {full: full for full in MODULES} | {
            full.partition("_")[0]: full for full in MODULES
        }
        close = [name] if name in full_names else difflib.get_close_matches(name, full_names, 3)
        suggestions = " or ".join(full_names[n] for n in close)
        hint = f"did you mean {suggestions}?" if close else f"choose from {', '.join(MODULES)}"
        raise UserError(f"figures={name!r}: there is no such figure; {hint}")
    if not path.is_file():
        raise UserError(
            f"figures={name!r}: there is no such file; it must define FIGURE = PaperFigure(...)"
        )
    if path.stem in MODULES:
        raise UserError(f"figures={name!r}: an included figure has this name; rename the file")
    from analysis.paper_figure import PaperFigure  # imported late because it loads matplotlib

    spec = importlib.util.spec_from_file_location(f"custom_figure_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses in the file
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"figures={name!r}: the file fails with {type(error).__name__}: {error}; correct it"
        ) from error
    figure = getattr(module, "FIGURE", None)
    if not isinstance(figure, PaperFigure):
        raise UserError(
            f"figures={name!r}: the file does not define FIGURE = PaperFigure(...) of analysis.paper_figure; add it"
        )
    if not isinstance(figure.needs, tuple) or not all(
        isinstance(need, Need | LossNeed) for need in figure.needs
    ):
        raise UserError(
            f"figures={name!r}: needs={figure.needs!r} must be a tuple of Need and LossNeed, such as "
            '(Need(("main",)),); correct it'
        )
    return figure


def file_name(name: str) -> str:
    """Returns the name of a figure's files without suffix: its name, or the stem of its Python file."""
    return name if name in MODULES else Path(name).stem
