import json
import os
from pathlib import Path

import pytest
import tiny_run
from tiny_run import tiny

from lm_mia import cli
from lm_mia.run import status
from lm_mia.run.workdir import Workdir

__all__ = ["tiny"]  # a fixture


def test_the_last_words_say_so_if_the_report_is_old(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    report = w / "report.html"
    os.utime(report, (0, 0))
    assert cli.main(tiny.argv("attack", w)) == 0
    old = "older than the tables: `lm-mia report` makes it again"
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
