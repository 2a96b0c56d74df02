"""Snapshots of small workdirs, and what moved, is missing or is new in others."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import snapshot
import xarray as xr
from snapshot import Renames

PAGE = """<!DOCTYPE html><html><head><title>Results</title><style>p {{ color: red }}</style></head><body>
<p class="made">Written on 2026-01-01</p><p>AUC of <b>LiRA</b>: 0.875 ± 0.006</p>
<table><tr><th>Attack</th><th>AUC</th></tr><tr><td>loss</td><td>{auc}</td></tr></table>
<dl><dt>Training time</dt><dd>{seconds} seconds</dd><dt>Vocabulary</dt><dd>512 tokens</dd></dl>
<section aria-labelledby="made"><section><p>Commit {seconds}</p></section><p>{seconds}</p></section>
<p>Text in /tmp/texts{seconds}/a</p>
</body></html>"""
ATTACKS = pd.DataFrame(
    {
        "attack": ["lira", "lira", "loss", "zlib"],
        "references": [4, 8, 0, 0],
        "auc": [0.7, 0.1 + 0.2, 0.6, np.nan],
        "text": ["0.7 ± 0.1", None, "0.6 ± 0.1", "–"],
        "left_out": [0, 1, 2, 3],
    }
)
SAMPLES = pd.DataFrame({"id": np.arange(20), "member": np.arange(20) % 3 == 0, "score": 0.5})
TARGETS = pd.DataFrame(
    {
        "attack_id": ["lira-8-0123abcd", "lira-8-0123abcd"],
        "attack": "lira",
        "references": 8,
        "rmia_a": np.nan,
        "target": ["replica-00", "replica-01"],
        "auc": [0.8, 0.9],
    }
)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return write_workdir(tmp_path / "old" / "small")


def write_workdir(workdir: Path) -> Path:
    tables, population = workdir / "recipes" / "main" / "tables", workdir / "populations" / "1f"
    for folder in (workdir / "tables", tables / "target_scores", population):
        folder.mkdir(parents=True)
    (workdir / "config.json").write_text("{}")
    (workdir / "report.html").write_text(PAGE.format(auc=0.6, seconds=12))
    claims = {
        "statement": ["a", "b"],
        "verdict": ["supported", "undecided"],
        "p_value": [0.01, 0.5],
    }
    pd.DataFrame(claims).to_csv(workdir / "tables" / "claims.csv", index=False)
    (workdir / "tables" / "tab01.tex").write_text("a & 0.71 \\\\\nb & 0.72 \\\\\n")
    (workdir / "recipes" / "main" / "config.json").write_text('{"population": "1f"}')
    SAMPLES.to_parquet(population / "samples.parquet")
    ATTACKS.to_csv(tables / "attacks.csv", index=False)
    SAMPLES.to_parquet(tables / "samples.parquet")
    TARGETS.to_csv(tables / "targets.csv", index=False)
    roc = pd.DataFrame({"attack_id": "lira-8-0123abcd", "fpr": [0.01, 0.05], "tpr": [0.1, 0.2]})
    roc.to_parquet(tables / "target_roc.parquet")
    SAMPLES.to_parquet(tables / "target_scores" / "lira-8-0123abcd.parquet")
    facts = {"k_low": 2, "shares": [0.1, 0.2], "sha256": "12ab", "tables": {"attacks.csv": "34cd"}}
    (tables / "flips.json").write_text(json.dumps(facts))
    return workdir


def change_csv(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_csv(path)).to_csv(path, index=False)


def set_value(row: int, column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        values = [value if i == row else v for i, v in enumerate(frame[column])]
        return frame.assign(**{column: pd.Series(values)})

    return change


def compare(
    workdir: Path, tmp_path: Path, change: Callable[[Path], object]
) -> snapshot.WorkdirComparison:
    """Returns the comparison of a workdir with a changed copy, after the snapshot was written and read."""
    copy = write_workdir(tmp_path / "new" / "small")
    change(copy)
    snapshot.save({"small": snapshot.read_workdir(workdir)}, tmp_path / "old.zip")
    new = {"small": snapshot.read_workdir(copy)}
    return snapshot.compare(snapshot.load(tmp_path / "old.zip"), new, Renames())["small"]


def test_snapshot_has_every_table(workdir: Path):
    tables = snapshot.read_workdir(workdir)
    assert tables.keys() == {
        *("claims", "tab01.tex", "report page", "main/attacks", "main/samples", "main/targets"),
        *("main/flips.json", "main/target_roc", "main/population"),
        "main/target_scores/attack=lira, references=8",
    }
    assert [*tables["main/flips.json"]] == ["k_low", "shares[0]", "shares[1]"]
    assert tables["main/attacks"]["auc"][1] == 0.1 + 0.2  # every bit of the number is read
    assert [*tables["report page"]["text"]] == [
        *("AUC of LiRA: 0.875 ± 0.006", "Attack | AUC", "loss | 0.6"),
        *("Vocabulary: 512 tokens", "Text in PATH"),
    ]


def test_order_format_and_place_of_the_workdir_do_not_matter(workdir: Path, tmp_path: Path):
    def change(copy: Path) -> None:
        tables = copy / "recipes" / "main" / "tables"
        shuffled = ATTACKS.sample(frac=1, random_state=0)[ATTACKS.columns[::-1]]
        shuffled.astype({"references": float}).to_parquet(tables / "attacks.parquet", index=False)
        (tables / "attacks.csv").unlink()
        SAMPLES[::-1].to_csv(tables / "samples.csv", index=False)
        (tables / "samples.parquet").unlink()
        (copy / "report.html").write_text(PAGE.format(auc=0.6, seconds=34))
        facts = {"shares": [0.1, 0.2], "k_low": 2, "sha256": "56ef"}
        (tables / "flips.json").write_text(json.dumps(facts))

    comparison = compare(workdir, tmp_path, change)
    assert not comparison.fails
    assert not comparison.new
    assert all(not table.new_columns for table in comparison.tables.values())
    assert comparison.tables["main/attacks"].equal == ATTACKS.size


@pytest.mark.parametrize(
    ("table", "column", "change"),
    [
        ("main/attacks", "auc", set_value(0, "auc", 0.7000000000000001)),
        ("main/attacks", "auc", set_value(3, "auc", 0)),
        ("main/attacks", "auc", set_value(0, "auc", np.nan)),
        ("main/attacks", "left_out", set_value(2, "left_out", 5)),
        ("main/attacks", "references", set_value(1, "references", 16)),
        ("main/attacks", "text", set_value(2, "text", "0.6 ± 0.2")),
        ("main/attacks", "text", set_value(1, "text", "0.6 ± 0.2")),
        ("claims", "verdict", set_value(1, "verdict", "supported")),
    ],
)
def test_a_changed_value_is_found(
    workdir: Path,
    tmp_path: Path,
    table: str,
    column: str,
    change: Callable[[pd.DataFrame], pd.DataFrame],
):
    folder, _, name = table.rpartition("/")
    file = Path("recipes", folder, "tables", name) if folder else Path("tables", name)
    result = compare(workdir, tmp_path, lambda copy: change_csv(copy / f"{file}.csv", change))
    assert result.fails
    assert [name for name, t in result.tables.items() if t.fails] == [table]
    [moved] = result.tables[table].moved
    assert (moved.column, moved.count) == (column, 1)


def test_a_changed_line_or_page_is_found(workdir: Path, tmp_path: Path):
    def change(copy: Path) -> None:
        (copy / "report.html").write_text(PAGE.format(auc=0.7, seconds=12))
        (copy / "tables" / "tab01.tex").write_text("a & 0.71 \\\\\nb & 0.73 \\\\\n")

    result = compare(workdir, tmp_path, change)
    assert {name for name, table in result.tables.items() if table.fails} == {
        "report page",
        "tab01.tex",
    }
    assert "'loss | 0.6' -> 'loss | 0.7'" in result.tables["report page"].moved[0].worst


def test_two_swapped_values_are_found_with_the_largest_difference():
    old = {"id": np.arange(4), "x": np.array([1.0, 2.0, 4.0, np.inf])}
    result = snapshot.compare_table(old, old | {"x": np.array([1.0, 4.0, 2.0, np.inf])})
    [moved] = result.moved
    assert (moved.count, moved.of, moved.difference, moved.relative) == (2, 4, 2, 1)
    assert moved.worst == "2.0 -> 4.0 at id=1"
    assert result.equal == 6


def test_swapped_texts_that_identify_rows_are_found():
    old = {"name": np.array(["a", "b", "c"], object), "x": np.array([1, 2, 3])}
    new = old | {"name": np.array(["b", "a", "c"], object)}
    assert [(moved.column, moved.count) for moved in snapshot.compare_table(old, new).moved] == [
        ("x", 2)
    ]


def test_missing_and_new_rows_are_named_with_repeated_rows_counted():
    old = {"name": np.array(["a", "b", "b", "b"], object), "x": np.array([1, 2, 2, 2])}
    new = {"name": np.array(["b", "c", "b"], object), "x": np.array([2, 3, 2])}
    result = snapshot.compare_table(old, new)
    assert result.missing_rows == ["name='a'", "name='b'"]
    assert result.new_rows == ["name='c'"]
    assert (result.equal, result.moved) == (4, [])


def test_missing_tables_columns_and_rows_are_found(workdir: Path, tmp_path: Path):
    def change(copy: Path) -> None:
        tables = copy / "recipes" / "main" / "tables"
        (tables / "targets.csv").unlink()
        SAMPLES.drop(columns="member").to_parquet(tables / "samples.parquet")
        change_csv(tables / "attacks.csv", lambda frame: frame.drop(index=2))
        (tables / "flips.json").write_text('{"k_low": 2, "shares": [0.1]}')

    result = compare(workdir, tmp_path, change)
    assert "main/targets" in result.missing
    assert {name for name, table in result.tables.items() if table.fails} == {
        *("main/samples", "main/flips.json", "main/attacks"),
        "main/target_roc",  # without targets.csv, an attack_id stands for nothing
    }
    assert result.tables["main/samples"].missing_columns == ["member"]
    assert result.tables["main/flips.json"].missing_columns == ["shares[1]"]
    [row] = result.tables["main/attacks"].missing_rows
    assert "attack='loss'" in row


def test_tables_of_one_name_and_two_formats_are_both_read(workdir: Path):
    tables = workdir / "recipes" / "main" / "tables"
    pd.DataFrame({"correlation": [0.5]}).to_csv(tables / "suffixes.csv", index=False)
    pd.DataFrame({"score": [1.0, 2.0]}).to_parquet(tables / "suffixes.parquet")
    read = snapshot.read_workdir(workdir)
    assert [*read["main/suffixes"]] == ["correlation"]
    assert [*read["main/suffixes.parquet"]] == ["score"]


def test_the_hash_of_an_attack_does_not_matter_but_its_settings_do(workdir: Path, tmp_path: Path):
    def change(copy: Path, attack_id: str, references: int) -> None:
        tables = copy / "recipes" / "main" / "tables"
        new = TARGETS.assign(attack_id=attack_id, references=references)
        new.to_csv(tables / "targets.csv", index=False)
        roc = pd.DataFrame({"attack_id": attack_id, "fpr": [0.01, 0.05], "tpr": [0.1, 0.2]})
        roc.to_parquet(tables / "target_roc.parquet")
        scores = tables / "target_scores" / "lira-8-0123abcd.parquet"
        scores.rename(scores.with_stem(attack_id))

    result = compare(workdir, tmp_path, lambda copy: change(copy, "lira-8-4567cdef", 8))
    assert not result.fails
    assert not result.new
    result = compare(workdir, tmp_path / "2", lambda copy: change(copy, "lira-8-0123abcd", 4))
    assert result.missing == ["main/target_scores/attack=lira, references=8"]
    assert result.tables["main/target_roc"].fails


def test_a_loss_in_the_score_store_that_moved_is_found(workdir: Path, tmp_path: Path):
    def write_scores(folder: Path, loss_MxKxN: np.ndarray) -> None:
        names = np.array(["reference-00", "replica-00"], "<U32")
        coords = {
            "model": ("model", names),
            "role": ("model", np.array(["reference", "replica"], "<U32")),
            "checkpoint": [10, 0],
            "tokens": ("sample", np.full(loss_MxKxN.shape[2], 64)),
        }
        loss = ("model", "checkpoint", "sample"), loss_MxKxN
        store = folder / "recipes" / "main" / "scores.zarr"
        xr.Dataset({"loss": loss}, coords).to_zarr(store, zarr_format=2)

    loss_MxKxN = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    write_scores(workdir, loss_MxKxN)
    moved_MxKxN = loss_MxKxN.copy()
    moved_MxKxN[1, 0, 2] += 0.5
    result = compare(workdir, tmp_path, lambda copy: write_scores(copy, moved_MxKxN))
    assert not result.tables["main/scores/models"].fails
    [moved] = result.tables["main/scores/loss"].moved
    assert (moved.column, moved.count, moved.of, moved.difference) == ("replica-00", 1, 6, 0.5)


def test_renamed_tables_columns_and_words_are_equal(workdir: Path, tmp_path: Path):
    copy = write_workdir(tmp_path / "new" / "small")
    tables = copy / "recipes" / "main" / "tables"
    ATTACKS.rename(columns={"auc": "auc_mean"}).to_parquet(tables / "rates.parquet")
    (tables / "attacks.csv").unlink()
    (tables / "flips.json").unlink()
    claims = copy / "tables" / "claims.csv"
    change_csv(claims, set_value(1, "verdict", "not decided"))
    old, new = ({"small": snapshot.read_workdir(folder)} for folder in (workdir, copy))
    assert snapshot.compare(old, new, Renames())["small"].fails
    renames = Renames(
        tables={r"(.+)/attacks": r"\1/rates", r".+/flips\.json": None},
        columns={r".+/rates": {r"(auc)": r"\1_mean"}},
        values={"verdict": {"undecided": "not decided"}},
    )
    result = snapshot.compare(old, new, renames)["small"]
    assert not result.fails
    assert not result.new


def test_commands_say_what_differs(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, copy = tmp_path / "snapshots" / "old.zip", write_workdir(tmp_path / "new" / "small")
    assert snapshot.main([str(workdir), f"--out={file}"]) == 0
    assert zipfile.is_zipfile(file)
    capsys.readouterr()
    assert snapshot.main([str(copy), f"--against={file}"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("small: 10 tables and ")
    assert line.endswith(" values equal")
    pd.DataFrame({"x": [1]}).to_csv(copy / "tables" / "added.csv", index=False)
    assert snapshot.main([str(copy), f"--against={file}"]) == 0
    assert "  new: table added" in capsys.readouterr().out.splitlines()
    (copy / "tables" / "claims.csv").unlink()
    assert snapshot.main([str(copy), f"--against={file}"]) == 1
    assert "  missing: table claims" in capsys.readouterr().out.splitlines()


def test_mistakes_are_all_named_and_nothing_is_written(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, twin = tmp_path / "old.zip", write_workdir(tmp_path / "other" / "small")
    missing = str(tmp_path / "missing")
    assert snapshot.main([str(workdir), str(twin), missing, f"--out={file}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not file.exists()
    assert snapshot.main([str(workdir)]) == 2
    assert snapshot.main([str(workdir), f"--against={file}"]) == 2
    file.write_text("not a snapshot")
    assert snapshot.main([str(workdir), f"--against={file}"]) == 2
    assert snapshot.main([str(workdir), f"--out={file}"]) == 0
    another = write_workdir(tmp_path / "another")
    assert snapshot.main([str(another), f"--against={file}"]) == 2
    (another / "tables" / "claims.csv").write_text("a,b\n1\n")
    assert snapshot.main([str(another), f"--out={tmp_path / 'another.zip'}"]) == 2
    capsys.readouterr()


def test_a_workdir_without_tables_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    assert snapshot.main([str(tmp_path), f"--out={tmp_path / 'old.zip'}"]) == 2
