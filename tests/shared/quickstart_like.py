"""A synthetic workdir with as many models as the quickstart, and texts as long: its page is as full as they get."""

from pathlib import Path

import numpy as np
from synthetic_workdir import write_workdir

from analysis.io import RecipeResults

SAMPLES = 1200
ATTACKS = ("lira_online", "rmia", "reference_calibrated", "shrunk", "stacked", "loss", "zlib")


def write(folder: Path) -> RecipeResults:
    """Writes the workdir; texts have 30 words of six letters, about as many as 64 tokens of its vocabulary."""
    words = [f"{a}{b}{c}" for a in ("pa", "ne", "so") for b in ("lo", "mi") for c in ("ra", "ke")]
    drawn_NxW = np.random.default_rng(0).choice(words, (SAMPLES, 30))
    return write_workdir(
        folder,
        samples=SAMPLES,
        texts=[f"{' '.join(drawn_W)}." for drawn_W in drawn_NxW],
        references=32,
        attacks=ATTACKS,
        bootstraps=0,
        resample_references=4,
        leave_one_out=True,
    )
