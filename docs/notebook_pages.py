"""Writes the pages of the notebooks in docs/notebooks: NAME.ipynb -> NAME.md.

    python docs/notebook_pages.py [--check]

The outputs on the pages are those in the notebooks, which `python docs/run_notebooks.py` stores. With --check nothing
is written, and the exit code is 1 if a page is not what this script would write.
"""

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generated_page

FOLDER = Path(__file__).resolve().parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Returns the cells of a notebook."""
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def page_text(notebook: Path) -> str:
    """Returns the page of a notebook."""
    return "\n\n".join(_blocks(notebook)) + "\n"


def _blocks(notebook: Path) -> Iterator[str]:
    title, *others = cells(notebook)
    yield "".join(title["source"])
    yield (
        f"*This page is a notebook: [download it]({notebook.name}), and run it in Jupyter, in the environment of "
        "lm_mia.*"
    )
    for cell in others:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace(".ipynb)", ".md)")  # the page of another notebook
            continue
        yield f"```python\n{source}\n```"
        if output := "".join(map(_text, cell["outputs"])).rstrip():
            yield f"```text\n{output}\n```"


def _text(output: dict[str, Any]) -> str:
    """Returns what an output shows as text."""
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"]) + "\n"


def main() -> int:
    """Writes the pages, or compares them; returns the exit code."""
    pages = {n.with_suffix(".md"): functools.partial(page_text, n) for n in NOTEBOOKS}
    return generated_page.main(pages, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
