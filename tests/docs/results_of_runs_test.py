"""The tables of published runs agree with the workdirs that they are made from, and the pages with the tables."""

import csv
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from analysis import papers
from lm_mia import config
from lm_mia.config import training_samples

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIGURE = "strongmia_fig24_mean_roc"
TABLE_2 = "privacyguard_tab02_lira"


@pytest.fixture(scope="module")
def results() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("results_of_runs")


@pytest.fixture(scope="module")
def release_page() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("release_page")


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def command(workdir: str, config_name: str, began: str, minutes: str) -> dict[str, str]:
    return {
        "workdir": workdir,
        "command": f"lm-mia run --config=configs/{config_name}.py:cpu",
        "began": f"2026-11-29T{began}:00.000+00:00",
        "minutes": minutes,
        "commit": "0123456789abcdef",
        "python": "3.11.7",
        "cpu_cores": "2",
    }


@pytest.fixture
def folder(tmp_path: Path, results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with a workdir of two commands, the second of which was interrupted."""
    standard = SimpleNamespace(name="strongmia", commands=(("run",), ("run",)))
    monkeypatch.setattr(results, "STANDARD", (standard,))
    folder = tmp_path / "made"
    workdir = folder / "strongmia"
    commands = [
        command("strongmia", "strongmia", "10:00", "30.00"),
        command("strongmia", "strongmia_open", "11:00", ""),
    ]
    pd.DataFrame(commands).to_csv(tmp_path / "made.csv", index=False)
    for name, kernels in (("small", 100), ("large", 900)):
        c = config.Config(population=config.Population(samples=kernels))
        record = {
            "config": config.to_dict(c),
            "model_size": {"kernels": kernels},
            "packages": {"jax": "0.10.2", "numpy": "2.4.6", "scipy": "1.17.1"},
            "later": [],
        }
        write_json(workdir / "recipes" / name / "config.json", record)
    events = [
        ("10:01", {"event": "stage", "stage": "corpus", "recipe": "small", "seconds": 5.0}),
        ("10:02", {"event": "models", "recipe": "small"}),
        ("10:03", {"event": "model_trained", "recipe": "small", "model": "target-00"}),
        ("10:04", {"event": "model_trained", "recipe": "small", "model": "target-00"}),
        ("10:05", {"event": "model_scored", "recipe": "small", "model": "target-00"}),
        ("10:06", {"event": "stage", "stage": "attack", "recipe": "small", "seconds": 2.0}),
        ("10:07", {"event": "stage", "stage": "attack", "recipe": "large", "seconds": 4.0}),
        ("11:01", {"event": "models", "recipe": "small"}),
        ("11:02", {"event": "models", "recipe": "large"}),
        ("11:03", {"event": "model_trained", "recipe": "large", "model": "target-00"}),
        ("11:04", {"event": "stage", "stage": "attack", "recipe": "large", "seconds": 1.0}),
    ]
    log = workdir / "metrics" / "log.jsonl"
    log.parent.mkdir()
    log.write_text(
        "".join(
            json.dumps({"time": f"2026-11-29T{time}:00+00:00", **event}) + "\n"
            for time, event in events
        )
    )
    claims = {
        "figure": [FIGURE, FIGURE],
        "statement": ["It grows.", "It stays, |Z| large."],
        "verdict": ["supported", "not tested"],
        "p_value": [0.012345, None],
        "p_holm": [0.02469, None],
        "value": [0.1, None],
        "low": [0.05, None],
        "high": [0.15, None],
        "over": ["8 targets", None],
        "not_covered": [None, None],
        "finding": ["AUC: 0.1, 95% interval 0.05 to 0.15", "too few"],
    }
    (workdir / "tables").mkdir()
    pd.DataFrame(claims).to_csv(workdir / "tables" / "claims.csv", index=False)
    first, second = papers.item(FIGURE).numbers
    drawing = {"ours": {first: [0.64321, 0.017]}, "our_ranges": {second: [0.1, 0.2]}}
    value = {"drawing": drawing, "not_comparable": []}
    write_json(workdir / "made.json", {f"figure {FIGURE}": {"value": value}})
    return folder


def test_runs_have_what_the_log_says_of_each_command(results: ModuleType, folder: Path):
    first, second = results.runs_of(folder, results.read_commands(folder)).to_dict("records")
    assert (first["minutes"], first["models"]) == (30.0, 1)
    assert (first["corpus_seconds"], first["models_seconds"]) == (5.0, 180.0)
    assert first["attack_seconds"] == 6.0
    assert (first["fewest_parameters"], first["most_parameters"]) == (100, 100)
    assert (second["fewest_parameters"], second["most_parameters"]) == (100, 900)
    samples = [
        training_samples(config.Config(population=config.Population(samples=n))) for n in (100, 900)
    ]
    assert [second["fewest_samples"], second["most_samples"]] == samples
    # What an interrupted command did is counted, but it has no times.
    assert second["models"] == 1
    assert pd.isna(second["minutes"])
    assert pd.isna(second["attack_seconds"])
    assert (second["commit"], second["jax"]) == ("01234567", "0.10.2")


def test_claims_and_numbers_have_the_commit(results: ModuleType, folder: Path):
    commands = results.read_commands(folder)
    claims = results.claims_of(folder, commands)
    assert [*claims.columns] == [*results.COLUMNS_OF_CLAIMS]
    assert claims["p_holm"].tolist()[0] == 0.02469
    assert {*claims["commit"]} == {"01234567"}
    numbers = results.numbers_of(folder, commands)
    assert numbers["here"].tolist()[0] == 0.64321
    assert numbers[["here_low", "here_high"]].to_numpy()[1].tolist() == [0.1, 0.2]


def test_numbers_that_cannot_be_compared_are_left_out(results: ModuleType, folder: Path):
    path = folder / "strongmia" / "made.json"
    made = json.loads(path.read_text())
    made[f"figure {FIGURE}"]["value"]["not_comparable"] = [*papers.item(FIGURE).numbers][:1]
    path.write_text(json.dumps(made))
    assert len(results.numbers_of(folder, results.read_commands(folder))) == 1


def test_what_is_not_of_one_uninterrupted_commit_is_named(results: ModuleType, folder: Path):
    commands = results.read_commands(folder)
    [warning] = results.warnings(folder, commands)
    assert "strongmia_open.py:cpu was interrupted" in warning
    commands[1] |= {"commit": "fedcba98+", "minutes": "1.00"}
    several, changed = results.warnings(folder, commands)
    assert "several commits" in several
    assert "fedcba98+" in changed


def test_missing_commands_are_refused(results: ModuleType, folder: Path):
    path = folder.with_name("made.csv")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert results.main([str(folder), "--check"]) == 2


def test_drawn_tables_have_the_cells_of_the_report(results: ModuleType, folder: Path):
    path = folder / "privacyguard" / "tables" / f"{TABLE_2}.md"
    path.parent.mkdir(parents=True)
    path.write_text("|  | AUC, all |\n| --- | ---: |\n| Online, 8 | 0.9 (0.8, 1.0) |\n")
    text = results.drawn_table(folder, TABLE_2)
    assert [*csv.reader(text.splitlines())] == [["", "AUC, all"], ["Online, 8", "0.9 (0.8, 1.0)"]]


def test_causal_errors_are_estimate_minus_truth(results: ModuleType, folder: Path):
    rows = [
        {
            "shift": "groups",
            "attack": attack,
            "model": f"reference-{model:02d}",
            "estimator": estimator,
            **dict.fromkeys(("auc", "tpr_0.05", "ate"), value + 0.1 * model),
            "effective_nonmembers": 10,
            "has_overlap": model == 0,
        }
        for attack in ("reference_calibrated", "loss")
        for model in range(2)
        for estimator, value in (("truth", 0.5), ("naive", 0.75 + 0.1 * model))
    ]
    tables = folder / "causal" / "recipes" / "main" / "tables"
    write_json(tables / "zero_run.json", {"pairs": False})
    pd.DataFrame(rows).assign(strength=float("nan")).to_csv(tables / "zero_run.csv", index=False)
    errors = results.causal_errors(folder)
    assert errors["Attack"].tolist() == ["Loss"] * 2 + ["Calibrated loss"] * 2
    assert errors["Estimator"].tolist() == ["Truth", "Unadjusted"] * 2
    assert errors["AUC"].tolist()[0] == "0.550"
    assert errors["AUC"].tolist()[1].startswith("+0.300 ± 0.6")
    assert errors["No overlap"].tolist()[1] == "50%"


def test_the_pages_are_up_to_date(release_page: ModuleType):
    for page, page_text in release_page.pages().items():
        written = page.read_text(encoding="utf-8")
        assert written == page_text(), f"{page.name}: run python docs/release_page.py"


def test_pages_show_what_the_tables_have(
    results: ModuleType,
    release_page: ModuleType,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    figures_page = results.figures_page
    commands = results.read_commands(folder)
    tables = {"CLAIMS": results.claims_of, "NUMBERS": results.numbers_of}
    for name, make in tables.items():
        path = tmp_path / f"{name}.csv"
        make(folder, commands).to_csv(path, index=False, float_format="%.4g")
        monkeypatch.setattr(figures_page, name, path)
    monkeypatch.setattr(release_page, "RUNS", tmp_path / "runs.csv")
    results.runs_of(folder, commands).to_csv(release_page.RUNS, index=False, float_format="%.4g")
    section = figures_page._section(FIGURE)
    assert "| It grows. | supported | AUC: 0.1 (0.05 to 0.15) | 0.012 | 0.025 |" in section
    assert r"| It stays, \|Z\| large. | not tested |  |  |  |" in section
    assert "| 0.643 ± 0.017 |" in section
    assert "| 0.1 to 0.2 |" in section
    monkeypatch.setattr(figures_page, "MOST_NUMBERS", 1)
    assert "numbers.csv) has 2 numbers of the paper" in figures_page._section(FIGURE)
    text = release_page.page_text()
    assert text.split("\n\n")[1].startswith("Models of 100 to 900 parameters without embeddings")
    assert "| `lm-mia run --config=configs/strongmia.py:cpu` | 30.0 | 1 | 100 |" in text
    assert "| supported | 1 | 1 |" in text
    times = release_page.times_text()
    assert "| 5 | 180 | 6 | – | – | 1609 | 1800 |" in times
