"""The page about StrongMIA at paper scale, which a script writes."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def paper_scale_page() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("paper_scale_page")


def test_the_page_has_the_costs_of_plans(paper_scale_page: ModuleType):
    text = paper_scale_page.PAGE.read_text(encoding="utf-8")
    assert text == paper_scale_page.page_text(), "run python docs/paper_scale_page.py"
    total = paper_scale_page.planned("tab01")["total"]
    assert total["models"] == 253
    assert total["checkpoint_bytes"] == 253 * 12 * 131_554_560  # three numbers for each parameter
