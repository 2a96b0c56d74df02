"""What all parts of the report page share: templates, embedded images, ids, and how a failure is said."""

import base64
import functools
import re
from pathlib import Path

import jinja2


@functools.cache
def environment() -> jinja2.Environment:
    """The templates; what they show is escaped, and a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_uri(png: Path) -> str:
    """An image as the source of an <img>, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def anchor(name: str, section: str = "") -> str:
    """The id of a recipe's section on the page; no other id has a slash."""
    return re.sub(r"\s", "_", name) + "/" + section


def reason(error: Exception) -> str:
    """One line that says why a part of the page could not be made, without a full stop at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().removesuffix(".")
