import os

import pytest

from lm_mia.config import listed_figures

FIGURES = ["/a/mine.py", "/b/mine.py", "/b/other.py", "scaling", "strongmia_fig05_instability"]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("/a/mine.py", FIGURES[1:]),
        (os.path.relpath("/a/mine.py"), FIGURES[1:]),
        ("mine.py", FIGURES[2:]),
        ("mine", FIGURES[2:]),
        ("other", [*FIGURES[:2], *FIGURES[3:]]),
        ("scaling", [*FIGURES[:3], FIGURES[4]]),
        ("fig05_instability", FIGURES[:4]),
        ("scal", FIGURES),
        ("fig05", FIGURES),
        ("/c/mine.py", FIGURES),
    ],
)
def test_names_of_removed_figures(name: str, left: list[str]):
    assert listed_figures.without(FIGURES, [name]) == left
    assert listed_figures.without(FIGURES, []) == FIGURES
