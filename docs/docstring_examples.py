"""An extension of Griffe for mkdocs.yml: examples of docstrings are shown as code.

Griffe parses the section "Examples:" of a docstring, and shows "Example:", which our docstrings have, as plain text.
"""

from typing import Any

import griffe


class DocstringExamples(griffe.Extension):
    """Renames the section in what Griffe has loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Is called with each object after it was loaded."""
        if obj.docstring is not None:
            lines = obj.docstring.value.splitlines()
            renamed = ("Examples:" if line == "Example:" else line for line in lines)
            obj.docstring.value = "\n".join(renamed)
