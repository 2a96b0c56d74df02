"""StrongMIA's figures and tables, grouped by topic; the modules here do not import each other."""

from pathlib import Path

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
"""Maps the name of a figure to the module that defines it in `FIGURES`, in the order of the paper."""


def draws(path: Path) -> bool:
    """Whether a file defines a custom figure: it must define TITLE, PAPER, STATEMENTS and draw(recipes)."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    return all(f"\n{part}" in text for part in ("TITLE = ", "PAPER = ", "STATEMENTS", "def draw("))
