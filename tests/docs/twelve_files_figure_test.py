"""The page that walks through the code names files and functions that exist and call each other."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def twelve_files() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("twelve_files_figure")


def definitions(path: Path) -> set[str]:
    """Returns the functions, the classes and the methods (CLASS.METHOD) of a file."""
    names: set[str] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return names


def imports(path: Path) -> set[str]:
    """Returns the modules of all imports of a file, also of those inside functions, with dots."""
    nodes = [n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return names | {str(node.module) for node in nodes}


def test_every_file_and_function_exists(twelve_files: ModuleType):
    rows = twelve_files.rows()
    assert [number for number, _, _ in rows] == [*range(1, 13)]
    for _, file, functions in rows:
        assert functions, file
        assert {*functions} <= definitions(ROOT / file), file


def test_every_file_imports_those_that_it_calls(twelve_files: ModuleType):
    files = {number: file for number, file, _ in twelve_files.rows()}
    called = [number for numbers in twelve_files.CALLS.values() for number in numbers]
    assert {1, *called} == files.keys()
    for caller, numbers in twelve_files.CALLS.items():
        for number in numbers:
            module = files[number].removesuffix(".py").replace("/", ".")
            assert module in imports(ROOT / files[caller]), (files[caller], module)


def test_the_figure_is_up_to_date(twelve_files: ModuleType):
    drawn = twelve_files.FIGURE.read_text(encoding="utf-8")
    assert drawn == twelve_files.figure_text(), "run python docs/twelve_files_figure.py"
