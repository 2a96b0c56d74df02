import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import xarray as xr
from tiny_run import _on_cpu, here, tiny

from lm_mia import cli
from lm_mia.run import status, supervisor
from lm_mia.run.workdir import Workdir

__all__ = ["_on_cpu", "tiny"]  # fixtures


def test_what_is_there_and_what_is_missing(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    [recipe] = w.glob("recipe_*")
    (recipe / "scores.zarr" / "loss" / "c" / "1" / "0").unlink()
    shutil.rmtree(recipe / "checkpoints" / "reference-01")
    (w / "report.html").unlink()
    before = tiny_run.content(w)
    assert cli.main(tiny.argv("status", w, "--config.attack.replicas=3")) == 0
    out, _ = capsys.readouterr()
    cells = [line.replace("│", " ").split() for line in out.splitlines()]
    assert ["reference", "4", "3", "3", "1"] in cells
    assert ["replica", "3", "2", "2", "1"] in cells
    assert "tables      present, of other settings: attack.replicas=2" in out.splitlines()
    assert ["report.html", "missing"] in cells
    sha256 = json.loads((w / "population" / "manifest.json").read_text())["sha256"]
    assert ["population", "32", "samples,", "sha256", sha256] in cells
    assert tiny_run.content(w) == before
    (w / "tables" / "flips.json").unlink()  # as an attack does before it begins to write
    assert cli.main(tiny.argv("status", w)) == 0
    assert "tables      unfinished" in capsys.readouterr().out.splitlines()


def test_tables_of_other_settings_and_an_old_report(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    assert cli.main(tiny.argv("status", w, "--config.attack.alpha=0.1")) == 0
    assert "tables      present, of other settings: attack.alpha=0.05" in (
        capsys.readouterr().out.splitlines()
    )
    report = w / "report.html"
    report.touch()
    assert cli.main(tiny.argv("status", w)) == 0
    assert "report.html present" in capsys.readouterr().out.splitlines()
    os.utime(report, (0, 0))
    old = "older than the tables: `lm-mia report` makes it again"
    assert cli.main(tiny.argv("status", w)) == 0
    assert f"report.html present, {old}" in capsys.readouterr().out.splitlines()
    assert cli.main(tiny.argv("attack", w)) == 0
    assert f"report      {report} ({old})" in capsys.readouterr().out.splitlines()


def test_the_last_words_name_the_attacks_that_there_are(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    for attacks, named in (
        ("rmia,lira_online", ["lira_online"]),
        ("loss,lira_online", ["lira_online", "loss"]),
    ):
        assert cli.main(tiny.argv("attack", w, f"--config.attack.attacks={attacks}")) == 0
        lines = capsys.readouterr().out.splitlines()
        aucs = [line.split(":")[0] for line in lines if line.startswith("AUC of ")]
        assert sorted(aucs) == [f"AUC of {name}" for name in named]


@pytest.mark.parametrize(("step", "after"), [(0, ""), (96, " after step 96")])
def test_the_last_words_name_the_score_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int, after: str
):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "flips.json").write_text(json.dumps({"config": {"step": step}}))
    (tables / "attacks.csv").write_text(
        "attack,auc_mean,auc_std,targets\nlira_online,0.75,0.01,4\n"
    )
    status.summary("attack", Workdir(tmp_path), tmp_path / "recipe_x")
    assert capsys.readouterr().out.splitlines() == [
        f"AUC of lira_online{after}: 0.750 +- 0.010 over 4 targets",
        f"tables      {tables}",
    ]


def test_another_config_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    assert cli.main(tiny.argv("status", w, "--config.model.width=16")) == 2
    assert "  model.width: 8 -> 16" in capsys.readouterr().err.splitlines()


@pytest.mark.usefixtures("_on_cpu")
def test_statistics_asked_for_later_are_scored_and_nothing_is_trained(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(supervisor, "run", here)
    w, old = tiny.copy(tmp_path / "w"), tiny_run.scores(tiny.workdir)
    (w / "metrics.jsonl").unlink()

    def scored() -> list[list[str]]:
        cells = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
        return [line[1:] for line in cells if line[:1] in (["reference"], ["replica"])]

    one = ["--config.score.statistics", "min_k_plus_plus"]
    all_three = ["--config.score.statistics", "lowercase_loss,min_k_plus_plus,min_k"]
    for flags in (one, all_three):
        assert cli.main(tiny.argv("status", w, *flags)) == 0
        assert scored() == [["4", "4", "0", "4"], ["2", "2", "0", "2"]]
        assert cli.main(tiny.argv("run", w, *flags)) == 0
        said = capsys.readouterr().err
        assert "rows: 6 wanted, 0 present, 0 to train, 6 to score" in said
    for flags in (one, all_three, []):
        assert cli.main(tiny.argv("status", w, *flags)) == 0
        assert scored() == [["4", "4", "4", "0"], ["2", "2", "2", "0"]]
    assert tiny_run.events(w, "row_trained") == []
    assert len(tiny_run.events(w, "row_scored")) == 12
    new = tiny_run.scores(w)
    assert {k: new[k] for k in old} == old
    assert len(new) == len(old) + 3 * 6
    [store] = w.glob("recipe_*/scores.zarr")
    with xr.open_zarr(store) as data:
        values = {
            name: data[name].values
            for name in ("loss", "min_k", "min_k_plus_plus", "lowercase_loss")
        }
    assert all(np.isfinite(value).all() for value in values.values())
    assert (values["min_k"] <= -values["loss"] + 1e-6).all()
    assert (values["min_k_plus_plus"] < 0).mean() > 0.9
    assert (
        values["lowercase_loss"] != values["loss"]
    ).mean() > 0.8  # each text begins with a capital, most of them known


@pytest.mark.parametrize("damage", ["{", "{}", "[]"])
def test_damaged_facts_of_the_tables(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
):
    w = tiny.copy(tmp_path / "w")
    facts = w / "tables" / "flips.json"
    facts.write_text(damage)
    assert cli.main(tiny.argv("report", w)) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"{facts}: damaged; run `lm-mia attack` again"
