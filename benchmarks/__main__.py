"""``python -m benchmarks [NAME [ARGUMENTS]]``: lists benchmarks and the pages of their results, or runs one.

A benchmark is a script of this folder; ``python -m benchmarks NAME --help`` says what it measures and how. Modules
without a command line, which benchmarks share, are not listed.
"""

import ast
import difflib
import functools
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent


def benchmarks() -> dict[str, str]:
    """Returns the first line of the docstring of each benchmark."""
    found = {}
    for path in sorted(_HERE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "__main__.py" and 'if __name__ == "__main__":' in text:
            docstring = ast.get_docstring(ast.parse(text)) or ""
            found[path.stem] = docstring.partition("\n")[0]
    return found


def pages(name: str) -> list[str]:
    """Returns the pages of the documentation that name a benchmark."""
    words = f"benchmarks {name}", f"benchmarks/{name}.py", f"benchmarks.{name}"
    return [page for page, text in _texts().items() if any(word in text for word in words)]


@functools.cache
def _texts() -> dict[str, str]:
    files = (_ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").rglob("*.md")))
    return {str(file.relative_to(_ROOT)): file.read_text(encoding="utf-8") for file in files}


def main(argv: Sequence[str]) -> int:
    """Runs a command line; returns its exit code."""
    found = benchmarks()
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        for name, line in found.items():
            print(f"{name:22} {line}\n{'':22} {', '.join(pages(name))}")
        return 0
    name, *rest = argv
    if name not in found:
        similar = difflib.get_close_matches(name, found, 1)
        hint = f"did you mean {similar[0]}? " if similar else ""
        print(f"{name}: no such benchmark; {hint}python -m benchmarks lists them", file=sys.stderr)
        return 2
    path = _HERE / f"{name}.py"
    sys.argv = [str(path), *rest]
    sys.path.insert(0, str(_HERE))  # benchmarks import each other by name
    runpy.run_path(str(path), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
