"""Costs of commands with the code of a checkout: its program, its configs, and a command that fails."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import releases

from lm_mia.data import losses
from lm_mia.data.arrays import open_arrays

PROGRAM = """
import pathlib, sys

def main():
    print(*sys.argv[1:], pathlib.Path.cwd().name)
    held = b"x" * 100 * 2**20
    return sys.argv[1] == "fail"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns other code than this project's, whose program uses more than 100 MiB."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project.scripts]\nlm-mia = "program_of_test:main"\n')
    (folder / "program_of_test.py").write_text(PROGRAM)
    (tmp_path / "here").mkdir()
    return folder


def test_runs_the_program_of_the_checkout_in_the_folder(checkout: Path, tmp_path: Path):
    held = b"x" * 400 * 2**20  # which is not counted, unlike the 100 MiB of the program
    cost = releases.run(["run", "--config=configs/a.py"], checkout, tmp_path / "here")
    assert (tmp_path / "here/log").read_text() == f"run --config={checkout}/configs/a.py here\n"
    assert cost.seconds > 0
    assert cost.cpu_seconds > 0
    assert 100 * 2**20 < cost.peak_bytes < 200 * 2**20 < len(held)


def test_a_command_that_fails_ends_the_benchmark(checkout: Path, tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError) as e:
        releases.run(["fail"], checkout, tmp_path / "here")
    assert e.value.returncode == 1
    assert (tmp_path / "here/log").read_text() == "fail here\n"


def test_both_sides_run_every_command_in_turn(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    argv = ["releases", str(tmp_path / "made"), f"--before={checkout}", "--rounds=2"]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(releases, "SIZES", {"imported": (4, 50), "large": (5, 60)})
    done = []

    def run(arguments, code, folder):
        done.append((arguments[0], "after" if code == releases.ROOT else "before", folder.name))
        seconds = 3.0 if code == releases.ROOT else 2.0
        return releases.Cost(seconds, seconds, 2**30)

    monkeypatch.setattr(releases, "run", run)
    releases.main()
    sections = releases.SECTIONS.values()
    names = [arguments[0] for section in sections for arguments in section.values()]
    first = [(name, side, f"{side}-0") for name in names for side in ("before", "after")]
    second = [(name, side, f"{side}-1") for name in names for side in ("after", "before")]
    assert done == first + second
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[1:] for row in rows] == (
        [["2.0", "3.0", "1.50", "1.50", "1.00", "1.00 |"]] * len(names)
    )


def test_losses_are_of_references_and_targets(tmp_path: Path):
    releases.write_losses(tmp_path / "losses.npz", 24, 100)
    file = losses.read_losses(open_arrays(tmp_path / "losses.npz"))
    assert np.unique(file.role_M, return_counts=True)[1].tolist() == [24, 8]
