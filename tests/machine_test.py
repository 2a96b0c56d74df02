import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lm_mia
from lm_mia import cli
from lm_mia.machine import available_cores, memory_bytes

# Functions of os on Linux that macOS does not have.
LINUX_ONLY = (
    *("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "fdatasync"),
    *("copy_file_range", "memfd_create", "splice", "eventfd", "O_DIRECT"),
)


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates the functions of os that macOS has."""
    sysconf = os.sysconf

    def without_page_size(name: str) -> int:
        if name == "SC_PAGE_SIZE":
            raise ValueError("unrecognized configuration name")
        return sysconf(name)

    for name in LINUX_ONLY:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os, "sysconf", without_page_size)


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5}, raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_memory_is_unlimited_if_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch):
    assert 2**28 < memory_bytes() < 2**50

    def refuse(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", refuse)
    assert memory_bytes() > 2**50


@pytest.mark.usefixtures("macos")
@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_files_are_audited_on_macos(suffix: str, tmp_path: Path):
    path, score_N, member_N = tmp_path / f"scores.{suffix}", np.arange(40.0), np.arange(40) % 2
    table = pd.DataFrame({"score": score_N, "member": member_N})
    match suffix:
        case "csv":
            table.to_csv(path)
        case "parquet":
            table.to_parquet(path)
        case _:
            np.savez_compressed(path, score_MxN=score_N, member_MxN=member_N)
    assert 0.5 < lm_mia.audit(path).summary["auc"].iloc[0] < 0.6


@pytest.mark.usefixtures("macos")
def test_losses_are_imported_attacked_and_reported_on_macos(tmp_path: Path):
    rng = np.random.default_rng(0)
    member_MxN = rng.random((8, 40)) < 0.5
    loss_MxN = 3 - 0.5 * member_MxN + rng.normal(0, 0.2, (8, 40))
    np.savez_compressed(tmp_path / "a.npz", loss_MxN=loss_MxN, member_MxN=member_MxN)
    workdir = f"--workdir={tmp_path / 'w'}"
    assert cli.main(["import", str(tmp_path / "a.npz"), workdir]) == 0
    settings = ["--config.attack.fprs=0.1,0.5", "--config.attack.focus_fpr=0.1"]
    settings += ["--config.attack.bootstraps=0", "--config.attack.band=0.1,0.5"]
    assert cli.main(["attack", workdir, *settings]) == 0
    assert cli.main(["report", workdir]) == 0
    assert lm_mia.open(tmp_path / "w").recipes["a"].table("targets")["auc"].mean() > 0.5
