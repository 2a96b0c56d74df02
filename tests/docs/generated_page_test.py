"""The scripts that generate pages of the documentation write a page, or compare it."""

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("script", ["figures_page", "release_page", "tables_page"])
def test_a_check_writes_nothing(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(DOCS)
    module = importlib.import_module(script)
    page = tmp_path / "page.md"
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "page_text", lambda: "generated")

    def run(*flags: str) -> int:
        monkeypatch.setattr("sys.argv", [f"{script}.py", *flags])
        return module.main()

    assert run("--check") == 1
    assert not page.exists()
    assert run() == 0
    assert run("--check") == 0
    page.write_text("edited")
    assert run("--check") == 1
    assert page.read_text() == "edited"
