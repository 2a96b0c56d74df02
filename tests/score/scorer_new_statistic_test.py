"""The page about a new statistic of each sample, applied to a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "new-statistic.md"
CHECK = """
import numpy as np
from lm_mia.config import Config, Score, validate
from lm_mia.attacks import registry
from lm_mia.score.scorer import sample_statistics
from lm_mia.store.schema import VARIABLES

# Samples of 3 and 2 tokens, of which the first is not predicted.
loss_T = np.array([9.0, 0.5, 2.0, 9.0, 1.0], np.float32)
value_C = sample_statistics(np.array([3, 2]), {"loss": loss_T}, ["worst_loss"])["worst_loss"]
assert value_C.tolist() == [2.0, 1.0]
assert VARIABLES["worst_loss"] == ("float32", "NaN", "nats")
assert not validate.problems(Config(score=Score(statistics=("worst_loss",))))
assert registry.find("worst.py:worst").statistics == ("worst_loss",)
"""


def apply(patch: str, root: Path) -> str:
    """Applies a patch of the page, whose hunks have no line numbers; returns the name of the file."""
    name = re.findall(r"^\+\+\+ b/(.*)$", patch, re.MULTILINE)[0]
    text = (root / name).read_text()
    for hunk in patch.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"{name} has no lines\n{old}"
        text = text.replace(old, new)
    (root / name).write_text(text)
    return name


@pytest.mark.process
def test_the_page_adds_a_statistic_in_two_files(tmp_path: Path):
    page = PAGE.read_text()
    shutil.copytree(ROOT / "lm_mia", tmp_path / "lm_mia")
    patches = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len({apply(patch, tmp_path) for patch in patches}) == 2
    (tmp_path / "worst.py").write_text(
        re.findall(r'title="worst.py"\n(.*?)^```$', page, re.M | re.S)[0]
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-c", CHECK]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
