"""The tiny run's config as a sweep of two recipes, for tests of launch."""

from pathlib import Path

from tiny_run import Tiny

SWEEP = """

def sweep():
    yield {"train.epochs": 2}
    yield {"attack.references": 4}
"""


def config_file(tiny: Tiny, folder: Path) -> str:
    """A config file with a sweep of three entries: recipe 0 is the tiny run's own, recipe 1 trains for two epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_sweep.py"
    path.write_text(Path(tiny.config).read_text() + SWEEP)
    return str(path)
