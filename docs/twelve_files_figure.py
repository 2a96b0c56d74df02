"""Draws docs/reference/twelve-files.svg from the table of docs/reference/twelve-files.md.

    python docs/twelve_files_figure.py [--check]

With --check nothing is written, and the exit code is 1 if the figure is not what this script would draw.
"""

import itertools
import re
import sys
from html import escape
from pathlib import Path

import generated_page

PAGE = Path(__file__).resolve().parent / "reference" / "twelve-files.md"
FIGURE = PAGE.with_suffix(".svg")
ROW = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)
COLUMNS = {
    "the command": (1, 2, 3, 4),
    "worker process, one per device": (5, 6, 7, 11, 12),
    "compiled by JAX": (8, 9, 10),
}
"""Where each file runs, from top to bottom."""
CALLS = {1: (2,), 2: (3, 4), 4: (5,), 5: (6,), 6: (7, 11, 12), 7: (8,), 8: (9, 10), 11: (9, 10)}
"""The files that each file calls."""

_WIDTH, _HEIGHT, _COLUMN, _ROW, _TOP = 210, 44, 270, 72, 44
_MONOSPACE = "font-family: monospace; font-size: 12px"
_STYLE = "font-family: sans-serif; font-size: 13px; fill: #222"


def rows() -> list[tuple[int, str, list[str]]]:
    """Returns (number, file, functions) of each row of the table."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        (int(n), file, re.findall(r"`([\w.]+)`", names)) for n, file, names, _ in ROW.findall(text)
    ]


def _places() -> dict[int, tuple[int, int]]:
    """Returns the upper left corner of the box of each file."""
    return {
        number: (20 + column * _COLUMN, _TOP + row * _ROW)
        for column, numbers in enumerate(COLUMNS.values())
        for row, number in enumerate(numbers)
    }


def _arrow(caller: tuple[int, int], called: tuple[int, int], is_next: bool) -> str:
    (x, y), (to_x, to_y) = caller, called
    if x != to_x:  # from side to side
        begin_x, end_x = (x + _WIDTH, to_x)
        middle = _HEIGHT // 2
        path = f"M {begin_x} {y + middle} L {end_x - 4} {to_y + middle}"
    elif is_next:
        path = f"M {x + _WIDTH // 2} {y + _HEIGHT} V {to_y - 4}"
    else:  # around the boxes between them
        path = f"M {x} {y + 30} H {x - 14} V {to_y + 22} H {x - 4}"
    return f'<path d="{path}" fill="none" stroke="#666" marker-end="url(#head)"/>'


def figure_text() -> str:
    """Returns the figure as SVG."""
    places = _places()
    width = 20 + len(COLUMNS) * _COLUMN
    height = _TOP + max(map(len, COLUMNS.values())) * _ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{_STYLE}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<marker id="head" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">'
        '<path d="M 0 1 L 6 4 L 0 7 z" fill="#666"/></marker>',
    ]
    for column, title in enumerate(COLUMNS):
        lines.append(f'<text x="{20 + column * _COLUMN}" y="26" font-weight="bold">{title}</text>')
    below = [pair for column in COLUMNS.values() for pair in itertools.pairwise(column)]
    for caller, numbers in CALLS.items():
        for number in numbers:
            lines.append(_arrow(places[caller], places[number], (caller, number) in below))
    for number, file, functions in rows():
        x, y = places[number]
        lines += [
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="#e8eaf6" stroke="#3f51b5"/>',
            f'<text x="{x + 8}" y="{y + 18}">{number}  {file.removeprefix("lm_mia/")}</text>',
            f'<text x="{x + 8}" y="{y + 35}" style="{_MONOSPACE}">{escape(functions[0])}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Draws the figure, or compares it; returns the exit code."""
    return generated_page.main({FIGURE: figure_text}, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
