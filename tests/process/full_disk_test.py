import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from launch import cli, jobs
from lm_mia.errors import DISK_REMEDY
from lm_mia.run.sweep import read_sweep

__all__ = ["_on_cpu", "tiny"]  # fixtures

pytestmark = pytest.mark.process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yields the folder of a small disk."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to mount a small disk, as root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("_on_cpu")
def test_full_disk_is_reported_and_models_are_kept(tiny: tiny_run.Tiny, disk: Path):
    workdir = tiny.copy(disk / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    room = os.statvfs(disk)
    left_bytes = 120_000
    (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - left_bytes))
    command = jobs.command(sweep, [sys.executable], "local")
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    full = [line for line in lines if "No space left on device" in line]
    assert full == [f"{full[0].split(':')[0]}: {os.strerror(errno.ENOSPC)}; {DISK_REMEDY}"]
    (disk / "filler").unlink()
    [task] = sweep.recipes
    assert jobs.missing_indices(task)
    # One job makes the missing models, as in a rerun of the same command.
    command = jobs.command(
        sweep, ["python"], "make-models", f"--recipe={task.name}", "--models=0:6"
    )
    assert cli.main(command[4:]) == 0
    assert jobs.missing_indices(task) == []
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)
    assert not list(task.folder.glob("failures/*"))


@pytest.mark.usefixtures("_on_cpu")
def test_read_only_disk_is_reported_on_one_line(
    tiny: tiny_run.Tiny, disk: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(disk / "w", models=False)
    before = tiny_run.content(workdir)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert cli.main(["local", f"--config={tiny.config}", f"--workdir={workdir}"]) == 2
    line = capsys.readouterr().err.strip()
    assert re.fullmatch(rf"--workdir={workdir}: {os.strerror(errno.EROFS)}; .*", line)
    assert tiny_run.content(workdir) == before
