"""What pages share: templates, embedded images, and the first lines of errors."""

import base64
import functools
from pathlib import Path

import jinja2

from analysis.formatting import needs_nonmembers


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the template environment; values are escaped, and undefined variables are errors."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["needs_nonmembers"] = needs_nonmembers
    return environment


def data_uri(png: Path | bytes) -> str:
    """Returns an image, a file or its content, as a data URI, so that the page needs no other files."""
    content = png if isinstance(png, bytes) else png.read_bytes()
    return "data:image/png;base64," + base64.b64encode(content).decode()


def reason(error: Exception) -> str:
    """Returns why a part of the page could not be drawn: the first line of an error without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().removesuffix(".")
