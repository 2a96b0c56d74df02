import datetime
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import cli, heartbeats, jobs, model_block, status
from lm_mia.cli import main as run
from lm_mia.data import subsets
from lm_mia.run.sweep import link

__all__ = ["tiny"]  # a fixture

ROWS = [str(row) for row in subsets.rows(4, 2)]


@pytest.fixture
def of(tiny: tiny_run.Tiny, tmp_path: Path) -> jobs.Sweep:
    """A sweep whose first recipe has all rows but the last three, and whose second has none."""
    found = jobs.read(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())
    task = found.tasks[0]
    shutil.copytree(tiny.workdir, task.folder)
    shutil.move(task.folder / "population", task.population)
    link(task)
    for shard in task.folder.glob("recipe_*/scores.zarr/loss/c/[345]/*"):
        shard.unlink()
    return found


def recipe_of(of: jobs.Sweep) -> Path:
    found = of.tasks[0].recipe()
    assert found is not None
    return found


def told(of: jobs.Sweep, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    argv = ["status", f"--config={of.config}", f"--workdir={of.folder}", "--json"]
    assert cli.main(argv) == 0
    return json.loads(capsys.readouterr().out)["recipes"]


def test_where_a_sweep_stands(of: jobs.Sweep, capsys: pytest.CaptureFixture[str]):
    before = tiny_run.content(of.folder)
    state = heartbeats.Running(recipe_of(of), model_block.who("17_3", "a.log"))
    with state.alive():
        state.begin(ROWS[3])
        state.begin(ROWS[0])  # present already
        first, second = told(of, capsys)
    assert (first["rows"], first["done"], first["missing"]) == (6, 3, 2)
    [running] = first["running"]
    assert (running["row"], running["job"], running["log"]) == (ROWS[3], "17_3", "a.log")
    assert datetime.datetime.fromisoformat(running["since"]).tzinfo is not None
    assert (second["rows"], second["done"], second["missing"]) == (6, 0, 6)
    assert second["workdir"] == str(of.tasks[1].folder)
    after = tiny_run.content(of.folder)
    assert {k: v for k, v in after.items() if not k.endswith(".lock")} == {
        k: v for k, v in before.items() if not k.endswith(".lock")
    }


def test_failures_by_row_and_by_machine(of: jobs.Sweep, capsys: pytest.CaptureFixture[str]):
    recipe, by = recipe_of(of), heartbeats.By("j", "bad7", 1, "j.log", "0.1")
    heartbeats.failed(recipe, ROWS[0], "x", by)  # made since
    heartbeats.failed(recipe, ROWS[3], "ValueError: [/a]", by)
    for reason in ("b", "c", "out of memory"):
        heartbeats.failed(recipe, ROWS[4], reason, by)
    (recipe / "diverged").mkdir()
    (recipe / "diverged" / f"{ROWS[5]}.json").write_text("{}")
    first, _ = told(of, capsys)
    [failing], [aside], [diverged] = first["failing"], first["set_aside"], first["diverged"]
    assert (failing["row"], failing["failures"], failing["reason"]) == (
        ROWS[3],
        1,
        "ValueError: [/a]",
    )
    assert (aside["row"], aside["failures"], aside["reason"]) == (ROWS[4], 3, "out of memory")
    assert aside["log"] == "j.log"
    assert diverged["row"] == ROWS[5]
    assert first["missing"] == 1
    assert first["hosts"] == {"bad7": {"rows": 0, "failures": 5}}
    assert status.show(of, as_json=False, watch=False) is None
    out = " ".join(capsys.readouterr().out.split())
    assert "machine bad7: 5 failures, 0 rows" in out
    assert f"failing {ROWS[3]} 1 times, last on bad7: ValueError: [/a]; log: j.log" in out
    assert f"set aside {ROWS[4]} after 3 failures, last on bad7: out of memory; log: j.log" in out
    assert status.summary(of) == 3


def test_a_job_that_vanished(
    of: jobs.Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    recipe = recipe_of(of)
    heartbeats.Running(recipe, model_block.who("17_3", "a.log")).begin(ROWS[3])
    monkeypatch.setattr(heartbeats, "LOST_SECONDS", 0.0)
    first, _ = told(of, capsys)
    assert [r["row"] for r in first["vanished"]] == [ROWS[3]]
    assert first["running"] == []
    assert first["missing"] == 3


def test_rate_and_time_left_are_of_the_log(of: jobs.Sweep, capsys: pytest.CaptureFixture[str]):
    lines = [
        {"event": "row_scored", "row": row, "last": last, "recipe": name, "host": "h"}
        | {"time": f"2026-01-01T00:{minute:02}:00.000+00:00"}
        for row, last, name, minute in (
            (ROWS[0], True, recipe_of(of).name, 0),
            (ROWS[1], False, recipe_of(of).name, 1),  # a score point
            (ROWS[1], True, recipe_of(of).name, 10),
            (ROWS[1], True, "recipe_other", 11),
            (ROWS[2], True, recipe_of(of).name, 20),
        )
    ]
    path, trained = of.tasks[0].folder / "metrics.jsonl", {"event": "row_trained", "seconds": 300}
    lines = [{**lines[0], "time": "2025-12-31T00:00:00.000+00:00"}, *lines]  # before a pause
    lines.append({**trained, "recipe": recipe_of(of).name})
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"event": "row_scored", "ti'
    )
    first, second = told(of, capsys)
    assert first["rows_per_hour"] == pytest.approx(6)
    assert first["seconds_left"] is None  # nothing is running
    state = heartbeats.Running(recipe_of(of), model_block.who("j", ""))
    with state.alive():
        state.begin(ROWS[3])
        first, second = told(of, capsys)
    assert first["seconds_left"] == pytest.approx(3 * 600)
    assert first["hosts"] == {"h": {"rows": 4, "failures": 0}}
    assert (second["rows_per_hour"], second["seconds_left"]) == (None, None)


def test_versions_that_differ_and_folders_of_other_recipes_are_told(
    of: jobs.Sweep, capsys: pytest.CaptureFixture[str]
):
    task, began = of.tasks[0], json.loads((of.tasks[0].folder / "config.json").read_text())
    scored = tiny_run.logged(task.folder, "row_scored")
    with open(task.folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**scored[0], "version": "9.9.9 abc"}) + "\n")
    shutil.copytree(of.tasks[0].folder, of.folder / "old_12345678", symlinks=True)
    status.show(of, as_json=False, watch=False)
    out = " ".join(capsys.readouterr().out.split())
    first = f"{began['lm_mia']} {(began['commit'] or '')[:9]}".strip()
    assert (
        f"versions {task.folder}: its rows are by several of lm_mia: {first} (6), 9.9.9 abc (1)"
        in out
    )
    assert (
        f"other {of.folder / 'old_12345678'}: a recipe that the config does not ask for now" in out
    )


def test_watching_ends_when_no_row_is_left(tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]):
    argv = ["status", f"--config={tiny.config}", f"--workdir={tiny.workdir}", "--watch"]
    assert cli.main(argv) == 0
    assert "6 of 6 done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0:00:00"), (59.6, "0:01:00"), (3 * 86400 + 3661, "3 d 1:01:01")]
)
def test_time_for_people(seconds: float, said: str):
    assert status._time(seconds) == said


def test_when_all_is_there_one_command_attacks_and_reports(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = jobs.read(tiny.config, str(tiny.copy(tmp_path / "s x")), ("--config.attack.alpha=0.1",))
    assert status.summary(found) == 0
    said, command = capsys.readouterr().out.splitlines()[-2:]
    assert said == "all rows are there; attack and report:"
    verb, *argv = shlex.split(command)
    assert verb == "lm-mia"
    assert argv[0] == "run"
    assert argv[3:] == ["--config.attack.alpha=0.1"]
    # Without the slow report, which is no part of what is said.
    no_report = f"--config.report={tiny.folder / 'no_report.py'}"
    assert run([*argv, "--config.train.workers=1", no_report]) == 0
