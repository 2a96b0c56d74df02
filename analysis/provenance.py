"""The version of lm_mia, which pages name."""

import importlib.metadata


def version() -> str:
    """Returns the installed version of lm_mia, which writes the page."""
    return importlib.metadata.version("lm-mia")
