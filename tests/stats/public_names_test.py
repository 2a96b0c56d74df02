"""Tests of the flat namespace `lm_mia.stats`, and of the examples in its docstrings."""

import doctest
import importlib
import inspect
import pkgutil
import pydoc
import subprocess
import sys

import pytest

from lm_mia import stats

MODULES = sorted(module.name for module in pkgutil.iter_modules(stats.__path__))
FUNCTIONS = [name for name in stats.__all__ if inspect.isfunction(getattr(stats, name))]
WITH_EXAMPLE = (
    "auc",
    "bootstrap_intervals",
    "clopper_pearson",
    "coin_flip_cutoff",
    "extraction_probability",
    "extraction_rate",
    "flip_rate",
    "lira",
    "lira_leave_one_out",
    "min_k",
    "nonmembers_needed",
    "p_value",
    "posterior",
    "predict_more_references",
    "required_queries",
    "rmia",
    "rmia_simple",
    "roc_curve",
    "threshold_at_fpr",
    "token_log_probs",
    "tpr_at_fpr",
    "tpr_interval",
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str):
    results = doctest.testmod(importlib.import_module(f"lm_mia.stats.{module}"))
    assert results.failed == 0


def test_modules_have_other_names_than_public_objects():
    """But for two, where the function is what `from lm_mia.stats import` gives."""
    assert {*MODULES} & {*stats.__all__} == {"lira", "rmia"}
    assert callable(stats.lira)
    assert callable(stats.rmia)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_is_complete(name: str):
    text = pydoc.plain(pydoc.render_doc(getattr(stats, name)))
    signature = text.split("\n")[2]
    assert len(signature) <= 350
    for long_type in ("numpy.", "typing.", "Union[", "ndarray"):
        assert long_type not in signature
    for section in ("Args:", "Returns:"):
        assert f"    {section}" in text, section
    assert ("Example:" in text) >= (name in WITH_EXAMPLE)


@pytest.mark.process
def test_import_loads_numpy_and_scipy_only():
    code = "import sys, lm_mia.stats; sys.exit(bool({'jax', 'pandas', 'xarray'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
