"""Figures and report of a synthetic workdir."""

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import NASTY, write_workdir

ANALYSIS = Path(__file__).resolve().parents[1] / "analysis"
if (
    str(ANALYSIS) not in sys.path
):  # the scripts import each other by bare name, as when they are run
    sys.path.append(str(ANALYSIS))
report, findings, flips, training, workdir = map(
    importlib.import_module, ("report", "findings", "flips", "training", "workdir")
)
FIGURES = ("training", "roc", "auc_references", "coin_flip_share", "flip_ccdf", "archetypes")


class _Page(HTMLParser):
    """Collects tags, what src and href point to, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_workdir(tmp_path_factory.mktemp("run") / "demo")
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def page(finished: Path) -> _Page:
    return _Page((finished / "report.html").read_text(encoding="utf-8"))


def _records(finished: Path, name: str) -> list[dict[str, Any]]:
    return workdir.table(finished, name)


def test_every_figure_is_written_as_png_and_pdf(finished: Path) -> None:
    for name in FIGURES:
        png, pdf = (
            (finished / "figures" / f"{name}.{suffix}").read_bytes() for suffix in ("png", "pdf")
        )
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        assert pdf.startswith(b"%PDF")
        assert len(pdf) > 5_000
        assert b"CreationDate" not in pdf
    assert not list(finished.rglob("*.part"))


def test_page_needs_no_other_file(finished: Path, page: _Page) -> None:
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == len(FIGURES)
    assert all(
        (i["src"] or "").startswith("data:image/png;base64,") and len(i["alt"] or "") > 40
        for i in images
    )
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"}
    assert all("src" not in attrs for tag, attrs in page.tags if tag != "img")
    hrefs = [attrs["href"] or "" for _, attrs in page.tags if "href" in attrs]
    assert len(hrefs) > 8
    assert all(not re.match(r"[a-z]+:|//|/", h) and (finished / h).is_file() for h in hrefs)
    assert "url(" not in (finished / "report.html").read_text(encoding="utf-8")


def test_headings_are_nested_and_tables_scroll_in_their_own_box(
    finished: Path, page: _Page
) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    html = (finished / "report.html").read_text(encoding="utf-8")
    boxed = re.findall(r'<div class="scroll"[^>]*>\s*<table', html)
    assert html.count("<table") == len(boxed) == 4


def test_numbers_on_the_page_are_those_of_the_tables(finished: Path, page: _Page) -> None:
    text = " ".join(page.text.split())
    attacks = _records(finished, "attacks.csv")
    lira = max((r for r in attacks if r["attack"] == "lira_online"), key=lambda r: r["references"])
    loss = next(r for r in attacks if r["attack"] == "loss")
    assert f"an AUC of {lira['auc_mean']:.3f} ± {lira['auc_std']:.3f} over 16 targets" in text
    assert f"LiRA is ahead by {lira['auc_mean'] - loss['auc_mean']:.3f}." in text
    assert f"LiRA finds {100 * lira['tpr_at_0.05_mean']:.3g}% of the members" in text
    for row in _records(finished, "error_rates.csv"):
        for rate in ("acc", "fnr", "fpr", "tnr", "tpr"):
            assert f"{row[f'{rate}_mean']:.3f} ± {row[f'{rate}_std']:.3f}" in text
    for row in _records(finished, "flip_shares.csv"):
        assert f"{row['members_percent']:.1f}%" in text
        assert f"{row['nonmembers_percent']:.1f}%" in text
    assert "when 4 to 12 of them say “member”" in text
    assert "flip rate of 0.400 or more; the largest possible is 0.533" in text


def test_text_of_samples_is_escaped(finished: Path, page: _Page) -> None:
    assert page.text.count(NASTY) == 2
    assert "<script" not in (finished / "report.html").read_text(encoding="utf-8")


def test_runs_from_another_folder_and_gives_the_same_bytes_again(tmp_path: Path) -> None:
    folder = write_workdir(
        tmp_path / "demo", samples=100, references=8, replicas=4, coin_flip=False
    )
    (folder / "metrics.jsonl").unlink()
    command = [sys.executable, "-W", "error::UserWarning", str(ANALYSIS / "report.py"), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report_path = folder / "report.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{report_path}\n", "")
    page = _Page(report_path.read_text(encoding="utf-8"))
    assert "No coin-flip sample is shown" in page.text
    assert "The log holds no training curve" in page.text
    paths = [report_path, *(folder / "figures").iterdir()]
    before = {p: p.read_bytes() for p in paths}
    report.write(folder)
    assert {p: p.read_bytes() for p in paths} == before
    (folder / "tables" / "archetypes.csv").write_text("kind,id,fpr,votes,flip,text_preview\n")
    assert report.archetypes.figures(folder) == {}
    page = _Page(report.render(report.facts(folder), {n: "data:," for n in FIGURES[1:5]}))
    assert "No sample of this run qualified" in page.text


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


@pytest.mark.parametrize(
    "name",
    [
        "attacks.csv",
        "shuffled.csv",
        "error_rates.csv",
        "flip_shares.csv",
        "samples.parquet",
        "archetypes.csv",
        "flips.json",
    ],
)
def test_a_missing_table_is_named_before_anything_is_written(
    finished: Path, tmp_path: Path, name: str
) -> None:
    for path in ("tables", "config.json", "recipe_0123abcd"):
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


def test_sentences_stay_true_when_the_numbers_turn() -> None:
    def row(attack: str, references: int, auc: float) -> dict[str, Any]:
        return {
            "attack": attack,
            "references": references,
            "auc_mean": auc,
            "auc_std": 0.01,
            "targets": 4,
        }

    falling = [row("lira_online", r, auc) for r, auc in ((4, 0.6), (8, 0.65), (16, 0.5))]
    falling.append(row("loss", 0, 0.7))
    assert "The loss attack is ahead by 0.200." in findings.lira_against_loss(falling)
    assert "of the 2 steps up, 1 raised it" in findings.growth(falling)
    assert "no AUC" in findings.lira_against_loss([row("lira_online", 4, float("nan"))])
    passed, verdict = findings.control([row("lira_online", 8, 0.55), row("loss", 0, 0.51)])
    assert not passed
    assert "1 of 2 mean AUCs" in verdict
    assert "LiRA with 8 references, AUC 0.550" in verdict
    coin = {"bin": "coin flip", "fpr": 0.1, "members_percent": 1.0, "nonmembers_percent": 2.0}
    assert "At no FPR" in findings.coin_flips([coin], 0.1)


def test_ccdf_counts_ties_and_leaves_nan_out() -> None:
    values, share = flips.ccdf(np.array([0.0, 0.5, 0.5, 0.25, np.nan]))
    assert values.tolist() == [0.0, 0.25, 0.5]
    assert share.tolist() == [1.0, 0.75, 0.5]


def test_training_curves_take_the_later_of_two_lines_for_a_step() -> None:
    lines = [{"row": 1, "role": "replica", "step": 5, "loss_nats": loss} for loss in (9.0, 3.0)]
    assert training.curves([*lines, {"row": 1}]) == {"1": ("replica", {5: 3.0})}
