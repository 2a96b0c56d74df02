import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import held_command
import numpy as np
import pytest
import tiny_run
import tiny_sweep
import xarray as xr
from tiny_run import _on_cpu, run_in_process, tiny

from analysis import page
from launch import cli, heartbeats, model_block, status
from lm_mia import events
from lm_mia.cli import main as run
from lm_mia.data import subsets
from lm_mia.errors import with_flags
from lm_mia.run import supervisor
from lm_mia.run.sweep import Sweep, claim_folders, read_sweep

__all__ = ["_on_cpu", "tiny"]  # fixtures

MODELS = [str(model) for model in subsets.requested_seeds(4, 2)]


@pytest.fixture
def sweep(tiny: tiny_run.Tiny, tmp_path: Path) -> Sweep:
    """Returns a sweep whose first recipe lacks its last three models, and whose second recipe has none."""
    workdir = tiny.copy(tmp_path / "s")
    for shard in tiny_run.recipe_of(workdir).glob("scores.zarr/loss/c/[345]/*"):
        shard.unlink()
    return read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(workdir), ())


def first_recipe(sweep: Sweep) -> Path:
    return sweep.recipes[0].folder


def read_status(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return read_json(sweep, capsys)["recipes"]


def argv(sweep: Sweep, *more: str) -> list[str]:
    flags, overrides = sweep.flags()
    return ["status", *flags, *overrides, *more]


def read_json(sweep: Sweep, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(argv(sweep, "--json", *more)) == 0
    return json.loads(capsys.readouterr().out)


def read_lines(sweep: Sweep, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """Returns the lines below the table."""
    capsys.readouterr()
    assert cli.main(argv(sweep, *more)) == 0
    lines = capsys.readouterr().out.splitlines()
    [end] = [i for i, line in enumerate(lines) if line.startswith("└")]
    return [line.rstrip() for line in lines[end + 1 :]]


def read_tiny_sweep(tiny: tiny_run.Tiny, workdir: Path, *overrides: str) -> Sweep:
    return read_sweep(tiny.config, str(workdir), overrides)


def test_status_counts_models(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    before = tiny_run.content(sweep.workdir.path)
    state = heartbeats.RunningRecord(first_recipe(sweep), model_block.this_worker("17_3", "a.log"))
    with state.alive():
        state.begin(MODELS[3])
        state.begin(MODELS[0])  # already present
        first, second = read_status(sweep, capsys)
    assert (first["models"], first["done"], first["to_score"], first["missing"]) == (6, 3, 3, 2)
    [running] = first["running"]
    assert (running["model"], running["job"], running["log"]) == (MODELS[3], "17_3", "a.log")
    assert datetime.datetime.fromisoformat(running["since"]).tzinfo is not None
    assert (second["models"], second["done"], second["missing"]) == (6, 0, 6)
    assert (first["recipe"], first["names"]) == ("tiny", ["tiny", "references=4"])
    assert (second["recipe"], second["names"]) == ("epochs=2", ["epochs=2"])
    assert (first["tables"], second["tables"]) == ("missing", "missing")  # too few models
    assert second["folder"] == str(sweep.recipes[1].folder)
    after = tiny_run.content(sweep.workdir.path)
    assert {k: v for k, v in after.items() if not k.endswith(".lock")} == {
        k: v for k, v in before.items() if not k.endswith(".lock")
    }


def test_failures_per_model_and_per_machine(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    recipe, worker = first_recipe(sweep), heartbeats.WorkerInfo("j", "bad7", 1, "j.log", "0.1")
    heartbeats.record_failure(recipe, MODELS[0], "x", worker)  # succeeded since
    heartbeats.record_failure(recipe, MODELS[3], "ValueError: [/a]", worker)
    for reason in ("b", "c", "out of memory"):
        heartbeats.record_failure(recipe, MODELS[4], reason, worker)
    (recipe / "diverged").mkdir()
    (recipe / "diverged" / f"{MODELS[5]}.json").write_text("{}")
    first, _ = read_status(sweep, capsys)
    [failing], [set_aside], [diverged] = first["failing"], first["set_aside"], first["diverged"]
    assert (failing["model"], failing["failures"], failing["reason"]) == (
        MODELS[3],
        1,
        "ValueError: [/a]",
    )
    assert (set_aside["model"], set_aside["failures"], set_aside["reason"]) == (
        MODELS[4],
        3,
        "out of memory",
    )
    assert set_aside["log"] == "j.log"
    assert diverged["model"] == MODELS[5]
    assert first["missing"] == 1
    assert first["hosts"] == {"bad7": {"models": 0, "failures": 5}}
    status.print_status(sweep)
    out = " ".join(capsys.readouterr().out.split())
    label = sweep.recipes[0].name
    assert "bad7: 5 failures, 0 models" in out
    for start, end in (
        (
            f"failing {MODELS[3]} of {label}: 1 failure, ",
            r"\bbad7: ValueError: \[/a\]; log: j\.log",
        ),
        (f"set aside {MODELS[4]} of {label}: 3 failures, ", r"\bbad7: out of memory; log: j\.log"),
    ):
        assert re.search(re.escape(start) + ".*?" + end, out)
    assert status.print_summary(sweep) == 3


def test_vanished_job_is_listed(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    recipe = first_recipe(sweep)
    heartbeats.RunningRecord(recipe, model_block.this_worker("17_3", "a.log")).begin(MODELS[3])
    monkeypatch.setattr(heartbeats, "LOST_SECONDS", 0.0)
    first, _ = read_status(sweep, capsys)
    assert [r["model"] for r in first["vanished"]] == [MODELS[3]]
    assert first["running"] == []
    assert first["missing"] == 3


def test_rate_and_remaining_time_come_from_the_log(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
):
    name = first_recipe(sweep).name
    lines = [
        {"event": kind, "model": model, "recipe": recipe, "host": "h"}
        | {"time": f"2026-01-{day:02}T00:{minute:02}:00.000+00:00"}
        | ({"last": last} if kind == "model_scored" else {})
        for kind, model, last, recipe, day, minute in (
            ("model_started", MODELS[0], None, name, 1, 0),  # before a pause
            ("model_scored", MODELS[0], True, name, 1, 10),
            ("model_started", MODELS[1], None, name, 2, 0),
            ("model_scored", MODELS[1], False, name, 2, 1),  # a score point
            ("model_trained", MODELS[1], None, name, 2, 9),
            ("model_scored", MODELS[1], True, name, 2, 10),
            ("model_started", MODELS[2], None, name, 2, 10),
            ("model_scored", MODELS[1], True, "another", 2, 11),
            ("model_scored", MODELS[2], True, name, 2, 20),
        )
    ]

    def write(lines: Sequence[Mapping[str, object]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        tiny_run.write_log(sweep.workdir.path, text + '{"event": "model_scored", "ti')

    write(lines)
    first, second = read_status(sweep, capsys)
    assert first["models_per_hour"] == pytest.approx(6)
    assert first["seconds_left"] is None  # nothing is running
    state = heartbeats.RunningRecord(first_recipe(sweep), model_block.this_worker("j", ""))
    with state.alive():
        state.begin(MODELS[3])
        first, second = read_status(sweep, capsys)
    assert first["seconds_left"] == pytest.approx(3 * 600)
    assert first["hosts"] == {"h": {"models": 3, "failures": 0}}
    assert (second["models_per_hour"], second["seconds_left"]) == (None, None)
    # `lm-mia run` records only what it has finished.
    read = datetime.datetime.fromisoformat
    shift = datetime.datetime.now(datetime.UTC) - read(f"{lines[-1]['time']}")
    write([{**line, "time": (read(f"{line['time']}") + shift).isoformat()} for line in lines])
    first, _ = read_status(sweep, capsys)
    assert first["seconds_left"] == pytest.approx(3 * 600)


def test_versions_and_other_recipes_are_listed(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    began, workdir = json.loads((first_recipe(sweep) / "config.json").read_text()), sweep.workdir
    scored = tiny_run.logged(workdir.path, "model_scored")
    del scored[0]["time"]
    workdir.log_event({**scored[0], "version": "9.9.9 abc"})
    shutil.copytree(first_recipe(sweep), workdir.recipe_dir("old"))
    workdir.config_file.write_text(json.dumps({"recipes": ["tiny", "old"], "figures": []}))
    status.print_status(sweep)
    out = " ".join(capsys.readouterr().out.split())
    first = f"{began['lm_mia']} {(began['commit'] or '')[:9]}".strip()
    assert re.search(rf"versions tiny: .*?: {re.escape(first)} \(6\), 9\.9\.9 abc \(1\)", out)
    assert f"other {workdir.recipe_dir('old')}: " in out


def test_other_names_of_a_recipe_are_shown(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, file = tiny.copy(tmp_path / "w"), tmp_path / "small.py"
    file.write_text(Path(tiny.config).read_text())
    claim_folders(read_sweep(str(file), str(w), ()))
    assert cli.main(["status", f"--workdir={w}"]) == 0
    assert "tiny (also: small)" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["status", f"--workdir={w}", "--json"]) == 0
    [recipe] = json.loads(capsys.readouterr().out)["recipes"]
    assert (recipe["recipe"], recipe["names"]) == ("tiny", ["tiny", "small"])


def test_watch_ends_if_no_model_is_missing(tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]):
    assert cli.main(argv(read_tiny_sweep(tiny, tiny.workdir), "--watch")) == 0
    assert "6 of 6 done" in capsys.readouterr().err


def test_next_command_attacks_and_reports(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    workdir = tiny.copy(tmp_path / "s x")
    sweep = read_tiny_sweep(tiny, workdir)
    assert status.print_summary(sweep) == 0
    assert "All models" not in capsys.readouterr().out  # tables and report exist
    sweep = read_tiny_sweep(tiny, workdir, "--config.attack.alpha=0.1")
    assert read_lines(sweep, capsys)[-2].startswith("All models are ")
    assert status.print_summary(sweep) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    verb, *argv = shlex.split(command)
    assert verb == "lm-mia"
    flags, overrides = sweep.flags()
    assert argv == ["run", *flags, *overrides]
    monkeypatch.setattr(page, "write_page", held_command.write_no_page)
    assert run(argv) == 0
    assert [r["tables"] for r in read_json(sweep, capsys)["recipes"]] == ["present"]


def test_next_command_omits_config_if_stored(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "s x")
    (workdir / "report.html").unlink()
    sweep = read_tiny_sweep(tiny, workdir, "--config.train.workers=1")
    assert read_lines(sweep, capsys)[-1] == f"  lm-mia run '--workdir={workdir}'"
    sweep = read_sweep(None, str(workdir), ["--config.attack.alpha=0.1"])
    last = f"  lm-mia run '--workdir={workdir}' --config.attack.alpha=0.1"
    assert read_lines(sweep, capsys)[-1] == last


def test_next_command_is_limited_to_the_config(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    (workdir / "report.html").unlink()
    claim_folders(read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(workdir), ()))
    first = read_tiny_sweep(tiny, workdir)
    flags, _ = first.flags()
    assert shlex.split(read_lines(first, capsys)[-1]) == ["lm-mia", "run", *flags]


def test_recipe_without_replicas_has_no_tables(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    shutil.rmtree(tiny_run.recipe_of(workdir) / "tables")
    sweep = read_tiny_sweep(tiny, workdir, "--config.attack.replicas=0")
    [r] = read_json(sweep, capsys)["recipes"]
    assert (r["models"], r["done"], r["tables"]) == (4, 4, "no replicas")
    assert read_lines(sweep, capsys)[-1] == "report      present"  # nothing is left to do


def test_status_of_a_recipe_with_only_a_config(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tmp_path / "w"
    sweep, _ = claim_folders(read_tiny_sweep(tiny, workdir))
    [r] = read_json(sweep, capsys, "--verify")["recipes"]
    assert (r["models"], r["done"], r["missing"], r["tables"]) == (6, 0, 6, "missing")
    assert r["population"] == {
        "path": str(sweep.recipes[0].population_dir),
        "samples": None,
        "sha256": None,
    }
    assert f"population  missing: {sweep.recipes[0].population_dir}" in read_lines(sweep, capsys)


def test_status_fits_on_a_screen(
    tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sweep = read_tiny_sweep(tiny, tiny.workdir)
    whole = status.sweep_status(sweep)
    [r] = whole["recipes"]
    running = {"model": "m", "job": "j", "host": "h", "since": "2026-01-01T00:00:00"}
    many = [r | {"recipe": f"r{i}", "answer": "Of 100, 2. Guessing: 1."} for i in range(40)]
    many[38] |= {"done": 0, "missing": 6, "running": 30 * [running]}
    monkeypatch.setattr(status, "sweep_status", lambda _: whole | {"recipes": many})
    status.print_status(sweep)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert sum(-(-len(line) // 100) for line in lines) <= 40
    assert "│ r38 " in out  # which is not finished
    assert "25 others" in out
    [total] = [line for line in lines if line.startswith("│ all")]
    assert f"{39 * r['models']} of {40 * r['models']}" in total
    assert lines[-1].startswith("report")
    for kind in ("running", "answer"):
        assert any(line.startswith(f"{kind:12}and ") for line in lines)
        assert sum(line.startswith(kind) for line in lines) > 2


def test_few_lines_are_all_kept():
    lines = [f"{kind:12}{i}" for kind in ("running", "answer") for i in range(3)]
    assert status.fitting(lines, 6) == lines
    fewer = status.fitting(lines, 5)
    assert len(fewer) == 5
    assert status.fitting([*lines, "report      " + 200 * "x"], 9)[-1][-1] == "x"


def test_lm_mia_and_launch_print_the_same_status(
    tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]
):
    """Fields may be set before the flags of the verb, and values may be separate words."""
    flags = ["--config.train.workers", "1", f"--workdir={tiny.workdir}"]
    outputs = []
    for main in (run, cli.main):
        for argv in (["status", *flags], ["status", *flags, "--json"]):
            assert main(argv) == 0
            outputs.append(capsys.readouterr().out)
        assert main(["status", *flags, "--json", "--watch"]) == 2
        assert re.match(r"--watch: .*--json or --verify;", capsys.readouterr().err)
    assert outputs[:2] == outputs[2:]
    assert run(["status", *flags, "--repair"]) == 2
    assert re.fullmatch(r"--repair: [^\n]*lm-mia score; [^\n]*\n", capsys.readouterr().err)


def test_status_reports_missing_models_tables_and_report(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(w)
    (recipe / "scores.zarr" / "loss" / "c" / "1" / "0").unlink()
    (recipe / "scores.zarr" / "loss" / "c" / "2" / "0").unlink()
    shutil.rmtree(recipe / "checkpoints" / MODELS[1])
    (w / "report.html").unlink()
    before = tiny_run.content(w)
    sweep = read_tiny_sweep(tiny, w, "--config.attack.replicas=3")
    status.print_status(sweep)
    out = capsys.readouterr().out.splitlines()
    [cells] = [[cell.strip() for cell in line.split("│")] for line in out if " of 7" in line]
    assert cells[1:6] == ["tiny", "4 of 7", "0", "1", "3"]
    assert "missing" in cells
    [r] = read_json(sweep, capsys)["recipes"]
    assert (r["models"], r["done"], r["to_score"], r["missing"]) == (7, 4, 1, 3)
    assert r["tables"] == "missing"
    lines = read_lines(sweep, capsys)
    sha256 = json.loads((tiny_run.population_of(w) / "manifest.json").read_text())["sha256"]
    assert f"population  32 samples, sha256 {sha256}" in lines
    assert "report      missing" in lines
    assert tiny_run.content(w) == before


def test_results_of_other_settings_are_unfinished(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")

    def tables(*overrides: str) -> str:
        return read_json(read_tiny_sweep(tiny, w, *overrides), capsys)["recipes"][0]["tables"]

    assert tables() == "present"
    assert tables("--config.attack.alpha=0.5") == "unfinished"
    shutil.rmtree(tiny_run.recipe_of(w) / "tables")  # exports, which nothing reads
    assert tables() == "present"
    next((tiny_run.recipe_of(w) / "pieces").glob("flip_shares-*")).unlink()
    assert tables() == "unfinished"
    shutil.rmtree(tiny_run.recipe_of(w) / "pieces")
    assert tables() == "missing"


def test_an_outdated_report_is_reported(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sweep = read_tiny_sweep(tiny, tiny.copy(tmp_path / "w"))
    report = sweep.workdir.path / "report.html"
    report.touch()
    lines = read_lines(sweep, capsys)
    assert [line for line in lines if line.startswith("tables")] == []
    assert lines[-1] == "report      present"
    os.utime(report, (0, 0))
    [line] = [line for line in read_lines(sweep, capsys) if line.startswith("report      ")]
    assert re.search(r"\bolder\b.*`lm-mia report`", line)
    assert read_json(sweep, capsys)["report"].startswith("older ")


@pytest.mark.parametrize("more", [[], ["--json"], ["--watch"], ["--verify"]])
def test_missing_or_empty_workdir_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
):
    new = tmp_path / "new"
    for config in [f"--config={tiny.config}"], []:
        for rule in "no such folder", "no command has been started in this folder":
            assert cli.main(["status", *config, f"--workdir={new}", *more]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            [line] = err.splitlines()
            assert line.startswith(f"--workdir={new}: {rule}")
            start = "`lm-mia run --config=quickstart`" if not config else "`lm-mia run`"
            flags = [*config, f"--workdir={new}"]
            assert line.endswith(f"or start with {with_flags(start, flags)}")
            if new.exists():
                assert list(new.iterdir()) == []
                new.rmdir()
            else:
                new.mkdir()


def test_another_config_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = tiny.argv("status", tiny.workdir, "--config.model.width=16")
    assert cli.main(flags) == 2
    assert "  model.width: 8 -> 16" in capsys.readouterr().err.splitlines()


def test_verify_lists_missing_and_corrupt_shards(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    """One recipe of the sweep has no store yet; three models lack their losses."""
    missing = [first_recipe(sweep) / f"scores.zarr/loss/c/{model}/0" for model in (3, 4, 5)]
    lines = read_lines(sweep, capsys, "--verify")
    assert [line for line in lines if line.startswith("missing ")] == [
        f"missing     {path}" for path in missing
    ]
    assert any(
        re.match(rf"scores +{sweep.recipes[0].name}: 12 .*, 3 missing, 0 corrupt", line)
        for line in lines
    )
    damaged = first_recipe(sweep) / "scores.zarr/member/c/2/0"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    capsys.readouterr()
    assert cli.main(argv(sweep, "--verify")) == 2
    out, err = capsys.readouterr()
    assert f"corrupt     {damaged}" in out.splitlines()
    repair = with_flags("`lm-mia score --repair`", argv(sweep))
    last = err.splitlines()[-1]
    assert last.startswith(
        f"{first_recipe(sweep) / 'scores.zarr'}: 1 shard corrupt and 3 missing; "
    )
    assert repair in last
    assert cli.main(argv(sweep, "--verify", "--json")) == 2
    first, second = json.loads(capsys.readouterr().out)["recipes"]
    assert first["shards"] == {
        "wanted": 12,
        "missing": [str(path) for path in missing],
        "corrupt": [str(damaged)],
    }
    assert second["shards"] == {"wanted": 0, "missing": [], "corrupt": []}


def test_watch_excludes_json_and_verify(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    for flag in ("--json", "--verify"):
        assert cli.main(argv(sweep, "--watch", flag)) == 2
        assert capsys.readouterr().err.startswith("--watch: ")


@pytest.mark.process
def test_status_does_not_load_jax(sweep: Sweep):
    code = (
        f"import sys; from launch import cli; assert cli.main({argv(sweep, '--verify')!r}) == 0; "
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("_on_cpu")
def test_statistics_requested_later_need_no_training(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(supervisor, "run", run_in_process)
    w, old = tiny.copy(tmp_path / "w"), tiny_run.scores(tiny.workdir)
    shutil.rmtree(w / events.FOLDER)

    def counts(flags: list[str]) -> tuple[int, int, int]:
        [r] = read_json(read_tiny_sweep(tiny, w, *flags), capsys)["recipes"]
        return r["models"], r["done"], r["to_score"]

    one = ["--config.score.statistics", "min_k_plus_plus"]
    all_three = ["--config.score.statistics", "lowercase_loss,min_k_plus_plus,min_k"]
    for flags in (one, all_three):
        assert counts(flags) == (6, 0, 6)
        assert run(tiny.argv("run", w, *flags)) == 0
        err = capsys.readouterr().err
        assert tiny_run.models_counted(err) == [6, 0, 0, 6]
    for flags in (one, all_three, []):
        assert counts(flags) == (6, 6, 0)
    assert tiny_run.events(w, "model_trained") == []
    assert len(tiny_run.events(w, "model_scored")) == 12
    new = tiny_run.scores(w)
    assert {k: new[k] for k in old} == old
    assert len(new) == len(old) + 3 * 6
    with xr.open_zarr(tiny_run.recipe_of(w) / "scores.zarr") as data:
        values = {
            name: data[name].values
            for name in ("loss", "min_k", "min_k_plus_plus", "lowercase_loss")
        }
    assert all(np.isfinite(value).all() for value in values.values())
    assert (values["min_k"] <= -values["loss"] + 1e-6).all()
    assert (values["min_k_plus_plus"] < 0).mean() > 0.9
    # Each text begins with a capital letter, which is rarely an unknown token.
    assert (values["lowercase_loss"] != values["loss"]).mean() > 0.8
