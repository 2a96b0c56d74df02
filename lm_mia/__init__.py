"""lm_mia: membership-inference research on language models, from text to the tables and figures of a paper.

Each stage reads files that the stage before it wrote, makes what is missing, and keeps what exists:

    corpus      documents (docstrings, text files, jsonl, csv, parquet, C4) and a vocabulary
    population  2N token sequences drawn by seed and stored once, with the ids 0..2N-1
    subsets     (subset_seed, 2N, design) -> the samples that a model is trained on, its members
    batches     (order_seed, epoch, step) -> the members of a training step
    train       models, one per device at a time, all with the same compiled step
    score       the loss of all 2N samples under each model -> the score store
    attack      score store -> membership scores, decisions and flip rates -> tables
    extract     prefixes of samples -> how easily the model can be made to generate what follows
    report      tables -> figures and one page, report.html
    api         scores, tables and texts of a workdir in xarray and pandas, for notebooks

The command ``lm-mia run`` runs all stages. Public names:

    lm_mia.audit(file)     audits membership scores of any model, as `lm-mia audit FILE` does
    lm_mia.open(workdir)   the results of a workdir, as `lm_mia.api.Results`
    lm_mia.open_arrays     the same for losses of models that were trained elsewhere
    lm_mia.stats           attacks and statistics on arrays, such as ``lm_mia.stats.lira``
    lm_mia.config          the dataclasses of config files, such as ``lm_mia.config.Config``
    lm_mia.__version__     the installed version
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_mia import config, stats
    from lm_mia.api import audit, open, open_arrays

    __version__: str

__all__ = ["__version__", "audit", "config", "open", "open_arrays", "stats"]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that ``import lm_mia`` itself is fast."""
    if name == "__version__":
        return importlib.import_module("lm_mia.machine").package_version("lm-mia")
    if name in ("audit", "open", "open_arrays"):
        return getattr(importlib.import_module("lm_mia.api"), name)
    if name in ("config", "stats"):
        return importlib.import_module(f"lm_mia.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
