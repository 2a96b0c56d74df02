"""The notebooks of the documentation run, and their pages show them as they are."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from slow_case import slow_case

DOCS = Path(__file__).resolve().parents[2] / "docs"
SLOW = {"losses-to-report"}  # what it does is also tested without a notebook
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Returns the modules that run notebooks and that write their pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("run_notebooks"), importlib.import_module("notebook_pages")


@pytest.mark.process
@pytest.mark.parametrize(
    "notebook",
    [slow_case(p) if p.stem in SLOW else p for p in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(
    scripts: tuple[ModuleType, ModuleType],
    notebook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    stored, cells = scripts[1].cells(notebook), scripts[0].run(notebook)
    printed = [[output["output_type"] for output in cell.get("outputs", ())] for cell in cells]
    assert printed == [[o["output_type"] for o in cell.get("outputs", ())] for cell in stored]


def test_pages_of_notebooks_are_up_to_date(scripts: tuple[ModuleType, ModuleType]):
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        page = notebook.with_suffix(".md").read_text(encoding="utf-8")
        assert page == scripts[1].page_text(notebook), "run python docs/notebook_pages.py"


def test_notebooks_have_the_format_of_jupyter():
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in content["cells"]]
        assert len({*ids}) == len(ids)
        for cell in content["cells"]:
            required = {"cell_type", "id", "metadata", "source"}
            code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
            assert cell.keys() == required | code
