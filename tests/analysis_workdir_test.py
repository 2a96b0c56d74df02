"""What the scripts of analysis say of a workdir that lacks something, or holds something else."""

import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
from synthetic_workdir import write_extraction, write_workdir

sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
report, workdir = map(importlib.import_module, ("report", "workdir"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every table that there is."""
    folder = tmp_path_factory.mktemp("run") / "demo"
    more = {"resample_references": 4, "leave_one_out": True}
    write_workdir(folder, samples=100, attacks=("lira_online", "loss"), **more)
    write_extraction(folder, 20)
    return folder


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the last digit; with the types of the whole column; text with line breaks and quotes; empty is NaN."""
    (tmp_path / "tables").mkdir()
    text = 'a line\nand ""more"", with NaN'
    lines = ["fpr,id,none,text", "0.1,,,nan", f'0.30000000000000004,7,,"{text}"', "-inf,8,,x"]
    (tmp_path / "tables" / "x.csv").write_text("\n".join(lines) + "\n")
    first, second, third = workdir.table(tmp_path, "x.csv", ("fpr", "id"))
    assert first["fpr"] == 0.1
    assert math.isnan(first["id"])
    assert (second["fpr"], second["id"]) == (0.1 + 0.2, 7)
    assert math.isnan(second["none"])
    assert second["text"] == text.replace('""', '"')
    assert third["fpr"] == -float("inf")
    with pytest.raises(workdir.WorkdirError, match=r"x\.csv has no column tpr; run lm-mia attack"):
        workdir.table(tmp_path, "x.csv", ("fpr", "tpr"))


@pytest.mark.parametrize("script", ["report", *(m.__name__ for m in report.FIGURES)])
def test_exits_with_two_and_one_line(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"event": "train", "row": "a", "step": 0, "loss_nats": 1.0}\n'
    )
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])
    module = importlib.import_module(script)
    if script in ("probability", "extraction"):  # nothing to draw without their tables
        assert module.figures(tmp_path) == {script: None}
        return
    run = module.main if script == "report" else lambda: workdir.script("", module.figures)
    assert run() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}: no \S+; run lm-mia attack first\n", err)


@pytest.mark.parametrize("name", [*report.TABLES, "intervals.csv"])
def test_a_missing_table_is_named_before_anything_is_written(
    finished: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "config.json").symlink_to(finished / "config.json")
    (tmp_path / "tables").mkdir()
    for table in (finished / "tables").iterdir():
        if table.name != name:
            (tmp_path / "tables" / table.name).symlink_to(table)
    with pytest.raises(
        workdir.WorkdirError, match=rf"no tables/{re.escape(name)}; run lm-mia attack first$"
    ):
        report.write(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "tables"}


@pytest.mark.parametrize("name", sorted({*report.TABLES, *report.MORE_TABLES}))
def test_a_table_that_is_none_is_said_in_one_line(
    finished: Path, tmp_path: Path, name: str
) -> None:
    for path in finished.iterdir():
        if path.name.startswith(("recipe", "config", "population", "metrics")):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tables").mkdir()
    for table in (finished / "tables").iterdir():
        if table.name != name:
            (tmp_path / "tables" / table.name).symlink_to(table)
    (tmp_path / "tables" / name).write_text("something else\n1\n")
    verb = "extract" if name.startswith("extraction") else "attack"
    with pytest.raises(workdir.WorkdirError, match=rf"tables/{re.escape(name)}[^\n]*{verb} again$"):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_tables_without_replicas_are_not_promised(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "w")
    stored = json.loads((copy / "config.json").read_text())
    stored["config"]["attack"]["replicas"] = 0
    (copy / "config.json").write_text(json.dumps(stored))
    (copy / "tables" / "flips.json").unlink()
    with pytest.raises(workdir.WorkdirError, match=r"attack.replicas=0, and tables of decisions"):
        workdir.flip_facts(copy)
