"""A hook of MkDocs that fills the reference of the command line with the help texts of the commands."""

import contextlib
import io
import os
import re
from typing import Any

from lm_mia import cli


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces each line ``<!-- help: lm-mia VERB -->`` of a page with the help text of that command."""
    return re.sub(r"<!-- help: lm-mia ?(.*?) -->", _help, markdown)


def _help(match: re.Match[str]) -> str:
    text = io.StringIO()
    os.environ["COLUMNS"] = "100"  # the width to which argparse and tyro format their texts
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        cli.main([*match[1].split(), "--help"])
    return f"```text\n{text.getvalue().rstrip()}\n```"
