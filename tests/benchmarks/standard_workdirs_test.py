"""The standard workdirs: their commands, what they are made from, and copies without results."""

import csv
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import standard_workdirs

from lm_mia.config import load
from lm_mia.config.validate import problems
from lm_mia.data import losses
from lm_mia.data.arrays import open_arrays

PROVENANCE = {"commit": "c0ffee", "cpu_cores": 2}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces processes; returns the arguments of lm-mia that would have run."""
    commands: list[list[str]] = []

    def run(argv: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        assert (cwd / "benchmarks" / "standard_workdirs.py").is_file()
        commands.append([*argv[3:]])
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(standard_workdirs.subprocess, "run", run)
    monkeypatch.setattr(standard_workdirs, "provenance", lambda: PROVENANCE)
    return commands


def test_every_config_exists_and_is_valid(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert standard_workdirs.main([str(tmp_path / "made")]) == 0
    configs = [
        word.removeprefix("--config=") for c in commands for word in c if "--config=" in word
    ]
    loaded = {arg: [c for _, c in load.load_sweep(arg)] for arg in configs}
    assert [Path(arg.partition(":")[0]).name for arg in loaded] == [
        *("quickstart.py", "own.py", "finetune.py", "canaries.py", "reliability.py"),
        *("mace.py", "privacyguard.py", "causal.py", "strongmia_open.py", "strongmia.py"),
    ]
    assert [p for recipes in loaded.values() for c in recipes for p in problems(c)] == []
    [own] = next(recipes for arg, recipes in loaded.items() if "own.py" in arg)
    assert own.extract.samples > 0
    folders = [word for c in commands for word in c if word.startswith("--workdir=")]
    assert {Path(word.partition("=")[2]).parent for word in folders} == {tmp_path / "made"}


def test_losses_are_of_nine_models_of_all_roles(tmp_path: Path):
    standard_workdirs.write_losses(tmp_path)
    file = losses.read_losses(open_arrays(tmp_path / "nine.npz"))
    roles = ["reference"] * 5 + ["target"] * 2 + ["replica"] * 2
    assert [*file.role_M] == roles
    with np.load(tmp_path / "nine.npz") as arrays:
        assert arrays["member_MxN"].sum(axis=1).tolist() == [file.num_samples // 2] * 9


def write_made(folder: Path, name: str, extract_samples: int) -> Path:
    workdir = folder / name
    recipe_dir = workdir / "recipes" / "main"
    for path in (workdir, recipe_dir):
        for part in ("tables", "figures"):
            (path / part).mkdir(parents=True)
            (path / part / "x.csv").write_text("a\n1\n")
    (workdir / "report.html").write_text("page")
    (recipe_dir / "samples.html").write_text("page")
    (recipe_dir / "checkpoints" / "tables").mkdir(parents=True)
    (recipe_dir / "checkpoints" / "tables" / "state").write_text("state")
    config = {"config": {"extract": {"samples": extract_samples}}}
    (recipe_dir / "config.json").write_text(json.dumps(config))
    return workdir


def test_copies_have_no_results_and_run_what_they_need(commands: list[list[str]], tmp_path: Path):
    write_made(tmp_path / "made", "quickstart", 400)
    write_made(tmp_path / "made", "import", 0)
    copies = tmp_path / "copies"
    argv = [str(copies), f"--copies-of={tmp_path / 'made'}"]
    assert standard_workdirs.main(argv) == 0
    assert commands == [
        [verb, f"--workdir={copies / name}"]
        for name, verbs in (
            ("quickstart", ["attack", "extract", "report"]),
            ("import", ["attack", "report"]),
        )
        for verb in verbs
    ]
    assert [p.relative_to(copies / "import").as_posix() for p in files(copies / "import")] == [
        "recipes/main/checkpoints/tables/state",
        "recipes/main/config.json",
    ]
    # Nothing is copied over an earlier copy.
    assert standard_workdirs.main(argv) == 2
    assert len(commands) == 5


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_folder_without_standard_workdirs_is_refused(tmp_path: Path):
    argv = [str(tmp_path / "copies"), f"--copies-of={tmp_path}"]
    assert standard_workdirs.main(argv) == 2


def test_the_first_failure_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[Sequence[str]] = []

    def fail(argv: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(argv)
        return subprocess.CompletedProcess(argv, 3)

    monkeypatch.setattr(standard_workdirs.subprocess, "run", fail)
    monkeypatch.setattr(standard_workdirs, "provenance", lambda: PROVENANCE)
    assert standard_workdirs.main([str(tmp_path / "made"), "--quick"]) == 3
    assert len(calls) == 1


def rows_of(folder: Path) -> list[dict[str, str]]:
    with folder.with_name(f"{folder.name}.csv").open(newline="") as file:
        return [*csv.DictReader(file)]


def test_only_commands_that_ran_whole_have_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "made"
    exit_codes: dict[str, int] = {"mace.py:cpu": 130}

    def run(argv: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        workdir = next(word for word in argv if word.startswith("--workdir=")).partition("=")[2]
        Path(workdir).mkdir(parents=True, exist_ok=True)
        exit_code = next((code for name, code in exit_codes.items() if name in argv[4]), 0)
        return subprocess.CompletedProcess(argv, exit_code)

    monkeypatch.setattr(standard_workdirs.subprocess, "run", run)
    monkeypatch.setattr(standard_workdirs, "provenance", lambda: PROVENANCE)
    assert standard_workdirs.main([str(folder)]) == 130
    rows = rows_of(folder)
    assert [row["command"] for row in rows] == [
        "lm-mia run --config=configs/quickstart.py",
        "lm-mia run --config=configs/own.py:texts",
        "lm-mia import nine.npz --subset=exact",
        "lm-mia attack",
        "lm-mia report",
        "lm-mia run --config=configs/finetune.py:checkpoint,texts --config.optimizer.peak_learning_rate=2e-3",
        "lm-mia run --config=configs/canaries.py:cpu",
        "lm-mia run --config=configs/reliability.py:cpu",
        "lm-mia run --config=configs/mace.py:cpu",
    ]
    assert [bool(row["minutes"]) for row in rows] == [True] * 8 + [False]
    assert {row["commit"] for row in rows} == {"c0ffee"}

    # What was interrupted has no minutes after it has continued; the rows of finished commands stay.
    exit_codes.clear()
    monkeypatch.setattr(standard_workdirs, "provenance", lambda: PROVENANCE | {"commit": "later"})
    (folder / "causal").mkdir()  # made by something else
    assert standard_workdirs.main([str(folder)]) == 0
    continued = rows_of(folder)
    assert continued[:9] == rows
    made_later = ["reliability", "privacyguard", "strongmia_open", "strongmia"]
    assert [row["workdir"] for row in continued[9:]] == made_later
    assert all(row["minutes"] and row["commit"] == "later" for row in continued[9:])

    # A workdir that is made again from nothing has new rows.
    (folder / "reliability").rmdir()
    assert standard_workdirs.main([str(folder)]) == 0
    commits = [row["commit"] for row in rows_of(folder) if row["workdir"] == "reliability"]
    assert commits == ["later"] * 3
    assert all(row["minutes"] for row in rows_of(folder))


def test_copies_have_no_minutes(commands: list[list[str]], tmp_path: Path):
    write_made(tmp_path / "made", "import", 0)
    argv = [str(tmp_path / "copies"), f"--copies-of={tmp_path / 'made'}"]
    assert standard_workdirs.main(argv) == 0
    assert len(commands) == 2
    assert not (tmp_path / "copies.csv").exists()
