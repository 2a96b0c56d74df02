import subprocess
import sys

import pytest

from lm_mia.data import docstrings
from lm_mia.errors import UserError

SOURCE = b'''"""Module.

    Indented.
"""
if True:
    def f():
        """F."""
        class Inner:
            "Inner."
try:
    pass
except ValueError:
    async def g(x=lambda: 0):
        """G."""
match 1:
    case 1:
        def h():
            """H \\d."""
def none():
    1
    """No docstring."""
'''


def test_parse_finds_every_docstring_in_order_of_lines():
    assert docstrings.parse(SOURCE) == [
        (1, "Module.\n\nIndented."),
        (7, "F."),
        (9, "Inner."),
        (14, "G."),
        (18, "H \\d."),
    ]


def test_parse_returns_nothing_for_invalid_python():
    assert docstrings.parse(b"def {{ name }}:\n  pass") == []
    assert docstrings.parse(b"\0") == []
    assert docstrings.parse(b"") == []


def test_docstrings_are_ordered_by_path_and_line():
    seen: list[tuple[int, int]] = []
    texts, records = docstrings.read(["zarr", "rich"], lambda *n: seen.append(n))
    assert (texts, records) == docstrings.read(["rich", "zarr"])
    locations = [(name, int(line)) for name, _, line in (r.partition(":") for r in records)]
    assert locations == sorted(locations)
    assert {name.split("/")[0] for name, _ in locations} == {"rich", "zarr"}
    assert not any("tests" in name.split("/") for name, _ in locations)
    assert sum(len(text) >= 200 for text in texts) > 500
    assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))


@pytest.mark.process
def test_reading_does_not_import_packages():
    code = (
        "import sys; from lm_mia.data import docstrings; docstrings.read(['zarr', 'xarray']); "
        "print({'zarr', 'xarray', 'jax'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
    assert run.stderr == ""


def test_versions_cover_every_package():
    versions = docstrings.versions()
    assert set(versions) == set(docstrings.PACKAGES)
    with pytest.raises(UserError, match=r"no-such-package .*installed"):
        docstrings.versions(["no-such-package"])
