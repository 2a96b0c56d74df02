"""Writes the help texts of the commands into docs/reference/cli.md.

    python docs/cli_page.py [--check]

Each comment ``<!-- help: lm-mia VERB -->`` of the page is followed by the help text of that command. With --check
nothing is written, and the exit code is 1 if the page is not what this script would write.
"""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import generated_page

from lm_mia import cli

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"
WIDTH = 100
"""The number of characters to which argparse and tyro format their texts."""

_PART = re.compile(
    r"^(<!-- help: lm-mia((?: [a-z-]+)*) -->)\n(?:\n```text\n.*?^```\n)?", re.M | re.S
)


def help_text(verb: str) -> str:
    """Returns what ``lm-mia VERB --help`` prints."""
    os.environ["COLUMNS"] = str(WIDTH)  # read by argparse and tyro
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        cli.main([*verb.split(), "--help"])
    return text.getvalue().rstrip()


def page_text() -> str:
    """Returns the text of docs/reference/cli.md."""
    text = PAGE.read_text(encoding="utf-8")
    return _PART.sub(lambda part: f"{part[1]}\n\n```text\n{help_text(part[2])}\n```\n", text)


def main() -> int:
    """Writes the page, or compares it; returns the exit code."""
    return generated_page.main({PAGE: page_text}, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
