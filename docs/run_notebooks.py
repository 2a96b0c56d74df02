"""Runs the notebooks in docs/notebooks and stores what their cells print, as text.

    python docs/run_notebooks.py

Each notebook runs in a new folder and an empty namespace. `python docs/notebook_pages.py` then writes the pages.
"""

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import notebook_pages

_WIDTH = 110


def run_cell(source: str, name: str, variables: dict[str, Any]) -> tuple[str, Any]:
    """Runs a cell; returns what it printed, and the value of its last expression (None if it ends otherwise)."""
    statements = ast.parse(source, name).body
    last = None
    if isinstance(statements[-1], ast.Expr):
        last = ast.Expression(statements.pop().value)  # type: ignore[union-attr]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), name, "exec"), variables)
        value = None if last is None else eval(compile(last, name, "eval"), variables)
    return printed.getvalue(), value


def run(notebook: Path) -> list[dict[str, Any]]:
    """Runs the cells of a notebook in the current folder; returns them with their outputs."""
    cells, variables, count = notebook_pages.cells(notebook), dict[str, Any](), 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed, value = run_cell("".join(cell["source"]), notebook.name, variables)
        cell["execution_count"], cell["outputs"] = count, []
        if printed:
            lines = printed.splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        if value is not None:
            data = {"text/plain": repr(value).splitlines(keepends=True)}
            result = {"output_type": "execute_result", "execution_count": count}
            cell["outputs"].append(result | {"metadata": {}, "data": data})
    return cells


def main() -> None:
    """Runs all notebooks, and writes them with their outputs."""
    import pandas as pd

    pd.set_option("display.width", _WIDTH, "display.max_columns", 12)
    for notebook in notebook_pages.NOTEBOOKS:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["PWD"] = folder
            content["cells"] = run(notebook)
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        notebook.write_text(text, encoding="utf-8")
        print(f"{notebook}: {len(content['cells'])} cells")


if __name__ == "__main__":
    main()
