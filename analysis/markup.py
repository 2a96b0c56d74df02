"""What all parts of the report page share: templates, embedded images, ids, and messages about failures."""

import base64
import functools
import re
from pathlib import Path

import jinja2


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the templates; values are escaped, and an undefined variable is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_uri(png: Path) -> str:
    """Returns an image as a data URI, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def anchor(name: str, section: str = "") -> str:
    """The id of a recipe's section on the page; no other id has a slash."""
    return re.sub(r"\s", "_", name) + "/" + section


def reason(error: Exception) -> str:
    """Returns why a part of the page could not be made: one line without a full stop at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().removesuffix(".")
