import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def figure_costs() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("figure_costs")


def test_docstrings_say_what_the_plan_says(figure_costs: ModuleType):
    old = [p.name for p in figure_costs.files() if figure_costs.filled(p) != p.read_text()]
    assert old == [], "run python benchmarks/figure_costs.py"


def test_costs_take_the_place_of_older_ones(figure_costs: ModuleType, tmp_path: Path):
    text = (ROOT / "configs" / "fig01_references.py").read_text()
    blank = figure_costs._HEAD
    assert text.count(blank) == 1
    path = tmp_path / "fig01_references.py"
    (tmp_path / "recipes.py").symlink_to(ROOT / "configs" / "recipes.py")
    path.write_text(text.replace("70 rows", "71 rows"))
    assert figure_costs.filled(path) == text
    path.write_text(text.replace(figure_costs.block(path), "Cost:"))
    assert figure_costs.filled(path) == text.rstrip("\n") + "\n"
    path.write_text('"""Nothing."""\n')
    with pytest.raises(ValueError, match="no line that begins with Cost"):
        figure_costs.filled(path)
