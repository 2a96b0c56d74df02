"""Figures and report of a synthetic workdir."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import FAR, LATER, NASTY, OTHER_RECIPE, RECIPE, Page, write_workdir

ANALYSIS = Path(__file__).resolve().parents[1] / "analysis"
sys.path.append(str(ANALYSIS))  # the scripts import each other by bare name, as when they are run
_NAMES = ("report", "findings", "flips", "training", "workdir", "archetypes", "rows")
report, findings, flips, training, workdir, archetypes, rows = map(importlib.import_module, _NAMES)
FIGURES = ("training", "roc", "auc_references", "coin_flip_share", "flip_ccdf", "archetypes")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_workdir(tmp_path_factory.mktemp("run") / "demo")
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return Page((finished / "report.html").read_text(encoding="utf-8"))


def test_every_figure_is_written_as_png_and_pdf(finished: Path) -> None:
    for name in FIGURES:
        png = (finished / "figures" / f"{name}.png").read_bytes()
        pdf = (finished / "figures" / f"{name}.pdf").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        assert pdf.startswith(b"%PDF")
        assert len(pdf) > 5_000
        assert b"CreationDate" not in pdf
    assert not list(finished.rglob("*.part"))


def test_page_needs_no_other_file(finished: Path, page: Page) -> None:
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == len(FIGURES)
    assert all(
        (i["src"] or "").startswith("data:image/png;base64,") and len(i["alt"] or "") > 40
        for i in images
    )
    assert page.text.count(NASTY) == 2  # texts of samples are escaped
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"}
    assert all("src" not in attrs for tag, attrs in page.tags if tag != "img")
    hrefs = [attrs["href"] or "" for _, attrs in page.tags if "href" in attrs]
    assert len(hrefs) > 8
    assert all(not re.match(r"[a-z]+:|//|/", h) and (finished / h).is_file() for h in hrefs)
    assert "url(" not in (finished / "report.html").read_text(encoding="utf-8")


def test_headings_are_nested_and_tables_scroll_in_their_own_box(finished: Path, page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    html = (finished / "report.html").read_text(encoding="utf-8")
    boxed = re.findall(r'<div class="scroll"[^>]*>\s*<table', html)
    assert html.count("<table") == len(boxed) == 4


def test_numbers_on_the_page_are_those_of_the_tables(finished: Path, page: Page) -> None:
    text = " ".join(page.text.split())
    attacks = workdir.table(finished, "attacks.csv")
    lira = max((r for r in attacks if r["attack"] == "lira_online"), key=lambda r: r["references"])
    loss = next(r for r in attacks if r["attack"] == "loss")
    assert f"an AUC of {lira['auc_mean']:.3f} ± {lira['auc_std']:.3f};" in text
    assert text.count("± is the spread over these replicas, not over other targets") == 2
    assert f"LiRA is ahead by {lira['auc_mean'] - loss['auc_mean']:.3f}." in text
    assert f"LiRA finds {100 * lira['tpr_at_0.05_mean']:.3g}% of the members" in text
    for row in workdir.table(finished, "error_rates.csv"):
        for rate in ("acc", "fnr", "fpr", "tnr", "tpr"):
            assert f"{row[f'{rate}_mean']:.3f} ± {row[f'{rate}_std']:.3f}" in text
    for row in workdir.table(finished, "flip_shares.csv"):
        assert f"{row['members_percent']:.1f}%" in text
        assert f"{row['nonmembers_percent']:.1f}%" in text
    assert "when 4 to 12 of them say “member”" in text
    assert "flip rate of 0.400 or more; the largest possible is 0.533" in text


def test_tables_and_settings_belong_together(finished: Path, page: Page) -> None:
    """config.json has the attack section of another attack than that of the tables."""
    settings = json.loads((finished / "tables" / "flips.json").read_text())["config"]
    shown = json.JSONDecoder().raw_decode(page.text, page.text.rindex('{\n  "corpus"'))[0]
    older = json.loads((finished / "config.json").read_text())["config"]
    assert older["attack"] != settings
    assert shown == older | {"attack": settings}
    assert "Membership inference on 32 language models" in page.text


def test_only_rows_of_the_tables_are_shown(finished: Path) -> None:
    """The store holds more rows, the log more rows and trainings, and there is another recipe."""
    assert (finished / OTHER_RECIPE / "scores.zarr").is_dir()
    read, log = rows.read(finished), training.read(finished)
    assert (read.names[1], read.names[-1]) == ("reference_1_1_1", f"replica_{2**31}_{2**31}_15")
    assert len(read.names) == 32
    assert set(log.curves) == set(read.names)
    assert max(max(curve.values()) for _, curve in log.curves.values()) < 10
    said = findings.training(log.curves, log.trained, log.scored)
    assert "5.1 seconds" in said
    assert "77" not in said
    assert len({e["row"] for e in log.trained}) == len({e["row"] for e in log.scored}) == 32
    for a in archetypes.read(finished):
        assert (len(a.loss_in) + len(a.loss_out), len(a.loss_replicas)) == (16, 16)
        assert max(*a.loss_in, *a.loss_out, *a.loss_replicas) < FAR / 2


def test_few_replicas_from_another_folder_and_the_same_bytes_again(tmp_path: Path) -> None:
    folder = write_workdir(
        tmp_path / "demo", samples=100, references=8, replicas=4, coin_flip=False, later=(LATER,)
    )
    (folder / "metrics.jsonl").unlink()
    (folder / "figures").mkdir()
    for name in ("training.png", "coin_flip_share.pdf", "roc.png"):
        (folder / "figures" / name).write_text("of an earlier report")
    command = [sys.executable, "-W", "error::UserWarning", str(ANALYSIS / "report.py"), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report_path = folder / "report.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{report_path}\n", "")
    drawn = {"roc", "auc_references", "flip_ccdf", "archetypes"}
    assert {p.stem for p in (folder / "figures").iterdir()} == drawn
    page = Page(report_path.read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert "The log holds no training curve" in text
    assert "No split decision is shown" in text
    assert "With 4 replicas the exact two-sided binomial test at level 0.05 has no power" in text
    assert "6 or more replicas are needed" in text
    assert "coin-flip decision" not in text
    assert len([tag for tag, _ in page.tags if tag == "table"]) == 3
    assert "very stable" not in text
    lira = next(r for r in report.facts(folder)["attacks"] if r["attack"] == "lira_online")
    shown = rf"LiRA8{lira['auc_mean']:.3f}± [^A-Z]*\.\d\d\d{lira['left_out']}\n"
    assert re.search(shown, page.text)
    assert f"{lira['left_out']} samples without a score left out" in text
    assert "made by several versions" in text
    for part in ("0.1.0", "0.2.0", "abc123+", "0.10.2", "9.9.9", "CPU cores96"):
        assert part in page.text.replace("\n", "")
    paths = [report_path, *(folder / "figures").iterdir()]
    before = {p: p.read_bytes() for p in paths}
    report.write(folder)
    assert {p: p.read_bytes() for p in paths} == before
    (folder / "tables" / "archetypes.csv").write_text("kind,id,fpr,votes,flip,text_preview\n")
    assert workdir.save(folder, archetypes.figures(folder)) == {}
    assert {p.stem for p in (folder / "figures").iterdir()} == drawn - {"archetypes"}
    images = {n: "data:," for n in ("roc", "auc_references", "flip_ccdf")}
    page = Page(report.render(report.facts(folder), images))
    assert "No sample of this run qualified" in page.text


DAMAGED = r"scores\.zarr: damaged \(\w+\); delete it, then run lm-mia score and attack"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("part", "damage", "said"),
    [
        ("", shutil.rmtree, rf"demo: no {RECIPE}/scores\.zarr; run lm-mia score first"),
        ("zarr.json", cut, DAMAGED),
        ("zarr.json", Path.unlink, DAMAGED),
        ("role/c/0", cut, DAMAGED),
        ("loss/c/3/0", cut, DAMAGED),
        ("loss/c/3/0", lambda path: path.write_bytes(b""), r"row reference_3_3_3 is absent; .*"),
        ("loss/c/9", shutil.rmtree, r"row reference_9_9_9 is absent; run lm-mia score first"),
        ("member/c/3/0", Path.unlink, r"row reference_3_3_3 is absent; run lm-mia score first"),
    ],
)
def test_a_damaged_store_is_said_in_one_line(
    damage: Callable[[Path], None], part: str, said: str, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("figures", "report.html"))
    damage(folder / RECIPE / "scores.zarr" / part)
    with pytest.raises(workdir.WorkdirError, match=f"^{tmp_path}[^\n]*{said}$"):
        report.write(folder)
    assert not (folder / "figures").exists()


def test_a_store_with_fewer_rows_than_the_tables_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / RECIPE).symlink_to(finished / RECIPE)
    (tmp_path / "tables").mkdir()
    facts = json.loads((finished / "tables" / "flips.json").read_text())
    for changed, said in (
        ({"config": facts["config"] | {"references": 21}}, "20 of the 21 reference rows"),
        ({"config": {}}, "config has no field references"),
        ({"recipe": "../recipe_1"}, "names no recipe"),
    ):
        (tmp_path / "tables" / "flips.json").write_text(json.dumps(facts | changed))
        with pytest.raises(workdir.WorkdirError, match=said):
            rows.read(tmp_path)


@pytest.mark.parametrize(
    "script", ["report", "roc", "references", "flips", "archetypes", "training"]
)
def test_exits_with_two_and_one_line(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"event": "train", "row": "a", "step": 0, "loss_nats": 1.0}\n'
    )
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])
    module = importlib.import_module(script)
    run = module.main if script == "report" else lambda: workdir.script("", module.figures)
    assert run() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}: no \S+; run lm-mia attack first\n", err)


@pytest.mark.parametrize("name", report.TABLES)
def test_a_missing_table_is_named_before_anything_is_written(
    finished: Path, tmp_path: Path, name: str
) -> None:
    for path in ("tables", "config.json", RECIPE):
        (tmp_path / path).symlink_to(finished / path)
    (tmp_path / "tables").unlink()
    (tmp_path / "tables").mkdir()
    for table in (finished / "tables").iterdir():
        if table.name != name:
            (tmp_path / "tables" / table.name).symlink_to(table)
    with pytest.raises(
        workdir.WorkdirError, match=rf"no tables/{re.escape(name)}; run lm-mia attack first$"
    ):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "figures").exists()


def _row(attack: str, references: int, auc: float, left_out: int = 0) -> dict[str, Any]:
    return dict(attack=attack, references=references, auc_mean=auc, auc_std=0.01, left_out=left_out)


def test_sentences_stay_true_when_the_numbers_turn() -> None:
    falling = [_row("lira_online", r, auc) for r, auc in ((4, 0.6), (8, 0.65), (16, 0.5))]
    falling.append(_row("loss", 0, 0.7))
    assert "The loss attack is ahead by 0.200." in findings.lira_against_loss(falling, 9)
    said = [findings.ahead_of_lira(rows) for rows in (falling, falling[:3])]
    assert said == ["Ahead of LiRA here: Loss (0.700 ± 0.010).", ""]
    assert "of the 2 steps up, 1 raised it." in findings.growth(falling, 9)
    assert "no AUC" in findings.lira_against_loss([_row("lira_online", 4, float("nan"))], 9)
    passed, verdict = findings.control([_row("lira_online", 8, 0.55), _row("loss", 0, 0.51)])
    assert not passed
    assert "1 of 2 mean AUCs" in verdict
    assert "LiRA with 8 references, AUC 0.550" in verdict
    coin = {"bin": "coin flip", "fpr": 0.1, "members_percent": 1.0, "nonmembers_percent": 2.0}
    assert "At no FPR" in findings.coin_flips([coin], 0.1)


def test_aucs_of_different_samples_are_not_compared() -> None:
    results = ((4, 0.61, 40), (8, 0.7, 2), (16, 0.8, 0), (32, 0.9, 0))
    attacks = [_row("lira_online", *result) for result in results]
    said = findings.growth(attacks, 100)
    assert said.startswith("From 16 to 32 references the AUC of LiRA goes from 0.800 to 0.900. All")
    assert "on 100 samples" in said
    assert "0.610 with 4 references (on 60 samples), 0.700 with 8 references (on 98" in said
    said = findings.growth(attacks[:3], 100)
    assert "From" not in said
    assert "0.700 with 8 references (on 98 samples), 0.800 with 16 references (on 100" in said
    said = findings.lira_against_loss([attacks[1], _row("loss", 0, 0.6)], 100)
    assert "ahead" not in said
    assert "98 have a LiRA score, 100 a loss" in said


def test_the_test_says_when_it_has_no_power() -> None:
    assert [findings.enough(alpha) for alpha in (0.05, 0.01, 0.5)] == [6, 8, 3]
    flip_N, member_N = np.array([0, 1, np.nan, 0, 0]), np.array([True, True, True, False, False])
    said = findings.disagreement(flip_N, member_N, 0.1)
    assert "about 50.0% of members and 0.0% of non-members" in said


def test_ccdf_counts_ties_and_leaves_nan_out() -> None:
    values, share = flips.ccdf(np.array([0.0, 0.5, 0.5, 0.25, np.nan]))
    assert values.tolist() == [0.0, 0.25, 0.5]
    assert share.tolist() == [1.0, 0.75, 0.5]


def test_training_curves_are_those_of_the_last_training() -> None:
    def curve(*steps: int) -> dict[int, float]:
        of = {"row": "a", "role": "replica"}
        lines = [of | {"step": step, "loss_nats": float(i)} for i, step in enumerate(steps)]
        return training.curves([*lines, {"row": "a"}])["a"][1]

    assert curve(0, 5, 10, 0, 5) == {0: 3.0, 5: 4.0}
    assert curve(0, 5, 10, 5, 10, 15) == {0: 0.0, 5: 3.0, 10: 4.0, 15: 5.0}
