"""The tiny run's config as a sweep of two recipes, for tests of launch."""

from pathlib import Path

from tiny_run import Tiny

SWEEP = """

def sweep():
    yield {"train.epochs": 2}
    yield {"attack.references": 4}
"""


def config_file(tiny: Tiny, folder: Path) -> str:
    """Writes a config file of two recipes: `tiny`, the tiny run's own, also called `references=4`; and `epochs=2`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.py"
    path.write_text(Path(tiny.config).read_text() + SWEEP)
    return str(path)
