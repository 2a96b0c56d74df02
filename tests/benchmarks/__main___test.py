import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command

ROOT = Path(__file__).resolve().parents[2]


def test_every_benchmark_backs_a_page():
    found = command.benchmarks()
    assert len(found) > 20
    assert [name for name in found if not command.pages(name)] == []


def test_unknown_names_get_a_similar_one(capsys: pytest.CaptureFixture[str]):
    assert command.main(["memry"]) == 2
    assert "memory" in capsys.readouterr().err


def test_a_benchmark_gets_its_arguments():
    argv = [sys.executable, "-m", "benchmarks", "noise", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert "noise" in done.stdout
