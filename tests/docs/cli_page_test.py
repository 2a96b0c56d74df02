"""The page of the command line, whose help texts a script writes."""

import importlib
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="argparse of Python 3.13 lists flags in another form"
)
def test_the_page_has_the_help_texts_of_all_its_commands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.syspath_prepend(DOCS)
    cli_page = importlib.import_module("cli_page")
    text = cli_page.PAGE.read_text(encoding="utf-8")
    assert text == cli_page.page_text(), "run python docs/cli_page.py"
    assert text.count("```text\nusage: lm-mia") == text.count("<!-- help: lm-mia")
