"""Evaluations and studies of users that are wrong or fail: one line, and all other tables are made."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from slow_case import slow_case
from synthetic_scores import SMALL, SyntheticScores, write_scores
from views import view_of

from lm_mia.attacks import replicas, runner
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.evaluations import Scores
from lm_mia.attacks.spec import AttackTable, RecipeNeeds, Study
from lm_mia.errors import UserError

C = dataclasses.replace(SMALL, attacks=("lira_online", "loss"), bootstraps=0)
ANY = Column("none", "a number")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("scores"), C, 200)


def study(compute: Callable[..., Any], *columns: str) -> Study:
    names = columns or ("value",)
    file = f"{compute.__name__}.csv"
    return Study(compute.__name__, compute, (Table(file, "", dict.fromkeys(names, ANY)),))


def attack_table(evaluation: Callable[..., Any], *columns: str) -> AttackTable:
    names = "attack", "references", *columns
    return AttackTable(
        Table(f"{evaluation.__name__}.csv", "", dict.fromkeys(names, ANY)), evaluation
    )


def works(view: Any, write: Any) -> None:
    write("works.csv", pd.DataFrame({"value": [1]}))


def divides(view: Any, write: Any) -> None:
    write("divides.csv", pd.DataFrame({"value": [1 / 0]}))


def misspelled(view: Any, write: Any, *, focus_fprs: float) -> None: ...


def counts(scores: Scores) -> pd.DataFrame:
    return pd.DataFrame({"samples": [len(scores.population)]})


def indexes(scores: Scores) -> pd.DataFrame:
    return pd.DataFrame({"samples": [].pop()})


def misspells(scores: Scores, *, fpr: float) -> pd.DataFrame:
    raise AssertionError("is not called")


def run(
    scores: SyntheticScores,
    folder: Path,
    studies: list[Study],
    attack_tables: list[AttackTable],
    **settings: Any,
) -> list[str]:
    """Returns the lines of the error; none without one."""
    needs = RecipeNeeds(studies=studies, attack_tables=attack_tables)
    c = dataclasses.replace(C, **settings)
    view = view_of(scores.store, scores.population, c, folder / "pieces", needs)
    try:
        runner.run(view, folder / "tables")
    except UserError as error:
        return str(error).splitlines()
    return []


def test_what_fails_is_one_line_and_the_other_tables_are_made(
    scores: SyntheticScores, tmp_path: Path
):
    tables = tmp_path / "tables"
    assert run(scores, tmp_path, [study(works)], [attack_table(counts, "samples")]) == []
    expected = {path.name: path.read_bytes() for path in tables.iterdir()}
    assert pd.read_csv(tables / "counts.csv")["samples"].tolist() == [200] * 2
    (tables / "divides.csv").write_text("value\n7\n")
    for path in tables.iterdir():
        path.write_text("edited" if path.name != "divides.csv" else path.read_text())
    lines = run(
        scores,
        tmp_path,
        [study(divides), study(works), study(misspelled)],
        [attack_table(indexes), attack_table(counts, "samples"), attack_table(misspells)],
    )
    failures = {line.partition(":")[0]: line for line in lines}
    assert len(failures) == 3  # the two wrong settings are in one file
    assert len(lines) == 4
    here = f"{__file__}, line "
    assert "ZeroDivisionError" in failures["study divides"]
    assert f"({here}{divides.__code__.co_firstlineno + 1})" in failures["study divides"]
    assert "IndexError" in failures["evaluation indexes"]
    assert f"({here}{indexes.__code__.co_firstlineno + 1})" in failures["evaluation indexes"]
    settings = [line for line in lines if line.startswith(f"{__file__}: ")]
    assert any("focus_fprs" in line and "misspelled" in line for line in settings)
    assert any("fpr: " in line and "misspells" in line and "fprs" in line for line in settings)
    made = {path.name: path.read_bytes() for path in tables.iterdir()}
    assert made.pop("divides.csv") == b"value\n7\n"  # that of an earlier command stays
    assert made == expected
    # Nothing is asked for again, and what failed is tried again by the next command.
    assert run(scores, tmp_path, [study(works)], [attack_table(counts, "samples")]) == []
    assert not (tables / "divides.csv").exists()


def columns_of_rates(view: Any, write: Any) -> None:
    names = ("value", "tpr_at_0.02", "tpr_at_0.1", "tpr_at_0.5", "low_a", "low_b", "RATE")
    write("columns_of_rates.csv", pa.table({name: [1] for name in names}))


@pytest.mark.parametrize(
    ("declared", "undeclared", "missing"),
    [
        (("value", "tpr_at_FPR, RATE", "low_GROUP"), "", "tpr_at_1"),
        slow_case(("value", "tpr_at_0.02, tpr_at_0.1, tpr_at_0.5", "low_GROUP"), "RATE", ""),
        slow_case(
            ("tpr_at_0.02, tpr_at_0.1, tpr_at_0.5", "low_a, low_b", "RATE", "value, x"), "", "x"
        ),
        (
            ("tpr_at_0.02, tpr_at_0.1, tpr_at_0.5", "low_OTHER", "RATE", "value"),
            "low_a, low_b",
            "low_OTHER",
        ),
        (("tpr_at_0.02, tpr_at_0.1, tpr_at_0.5", "low_GROUP", "RATE", "value"), "", ""),
    ],
)
def test_columns_are_those_of_the_declaration(
    scores: SyntheticScores,
    tmp_path: Path,
    declared: tuple[str, ...],
    undeclared: str,
    missing: str,
):
    made = study(columns_of_rates, *declared)
    [table] = made.tables
    table = dataclasses.replace(table, rows="GROUP is a group of texts.")
    lines = run(scores, tmp_path, [dataclasses.replace(made, tables=(table,)), study(works)], [])
    assert (tmp_path / "tables" / "works.csv").is_file()
    assert (tmp_path / "tables" / "columns_of_rates.csv").is_file() == (lines == [])
    if undeclared or missing:
        [line] = lines
        assert line.startswith("study columns_of_rates: columns_of_rates.csv ")
        assert (f"undeclared columns ({undeclared})" in line) == bool(undeclared)
        assert (f"declared columns ({missing})" in line) == bool(missing)
        assert __file__ in line


def test_columns_of_an_evaluation_are_those_of_the_declaration(
    scores: SyntheticScores, tmp_path: Path
):
    [line] = run(scores, tmp_path, [], [attack_table(counts, "tpr_at_FPR")])
    assert re.match(r"evaluation counts: counts\.csv has undeclared columns \(samples\)", line)
    assert "(tpr_at_0.02, tpr_at_0.1, tpr_at_0.5, tpr_at_1)" in line
    # A correct declaration suffices: nothing is computed again.
    pieces = {path: path.stat().st_mtime_ns for path in (tmp_path / "pieces").glob("counts-*")}
    assert run(scores, tmp_path, [], [attack_table(counts, "samples")]) == []
    assert {path: path.stat().st_mtime_ns for path in pieces} == pieces


def test_too_few_models_and_a_failing_study_are_both_reported(
    scores: SyntheticScores, tmp_path: Path
):
    few = {"references": 2, "replicas": 8, "targets": 2}
    lines = run(scores, tmp_path, [study(divides)], [], **few)
    assert len(lines) == 2
    assert "at least 4 and 2" in lines[0]
    assert lines[1].startswith("study divides: ")


def test_a_bug_of_ours_has_a_traceback(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for function in (divides, indexes):
        monkeypatch.setattr(function, "__module__", "analysis.experiments.open.recency")
    with pytest.raises(ZeroDivisionError):
        run(scores, tmp_path, [study(divides)], [])
    with pytest.raises(IndexError):
        run(scores, tmp_path, [], [attack_table(indexes)])


def test_a_disk_that_is_full_is_not_the_fault_of_a_study(scores: SyntheticScores, tmp_path: Path):
    def fills(view: Any, write: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        run(scores, tmp_path, [study(fills)], [])
