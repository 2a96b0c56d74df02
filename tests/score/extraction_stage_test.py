"""`lm-mia extract`, and repair of damaged scores, through the command line."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia import cli
from lm_mia.data import subsets
from lm_mia.errors import with_flags
from lm_mia.score import extraction
from lm_mia.store.store import Store

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = pytest.mark.process  # a process makes the finished run
# The same for all tests, so that the functions that generate text are compiled once.
SIZES = {"samples": 9, "prefix_tokens": 4, "suffix_tokens": 3}
FLAGS = tuple(f"--config.extract.{field}={size}" for field, size in SIZES.items())


@pytest.mark.usefixtures("_on_cpu")
def test_extract_stage_writes_tables_and_skips_finished_ones(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    w = tiny.copy(tmp_path / "w")
    assert cli.main(tiny.argv("extract", w)) == 2
    assert capsys.readouterr().err.startswith("extract.samples=0: ")
    assert cli.main(tiny.argv("extract", w, *FLAGS[:2], "--config.extract.suffix_tokens=5")) == 2
    assert re.match(
        r"extract\.suffix_tokens=5: .*extract\.prefix_tokens=4 ", capsys.readouterr().err
    )
    assert cli.main(tiny.argv("extract", w, *FLAGS)) == 0
    assert "extraction: 9 samples with the highest" in capsys.readouterr().err
    tables = tiny_run.recipe_of(w) / "tables"
    table = pd.read_csv(tables / "extraction.csv")
    samples = pd.read_parquet(tables / "samples.parquet")
    assert table["score"].is_monotonic_decreasing
    assert table["score"].max() == samples["score"].max()
    assert (table["log_p_sampled"] < 0).all()
    curves = pd.read_csv(tables / "extraction_curves.csv")
    assert set(curves["scheme"]) == {"greedy", "sampled", "chosen"}

    # A second run computes nothing, unless tables or settings have changed.
    before = tiny_run.content(tables)
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "extract", lambda *_: pytest.fail("recomputed"))
        assert cli.main(tiny.argv("extract", w, *FLAGS)) == 0
    assert "extract: tiny: " in capsys.readouterr().err
    assert tiny_run.content(tables) == before
    for path in (tiny_run.recipe_of(w) / "pieces").glob("extraction-*.parquet"):
        path.write_bytes(path.read_bytes()[:-5])
    (tables / "extraction_curves.csv").write_text("")
    assert cli.main(tiny.argv("extract", w, *FLAGS)) == 0
    assert tiny_run.content(tables) == before
    assert cli.main(tiny.argv("extract", w, "--config.extract.samples=5", *FLAGS[1:])) == 0
    assert len(pd.read_csv(tables / "extraction.csv")) == 5


@pytest.mark.usefixtures("_on_cpu")
def test_random_samples_are_extracted_from_both_models(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    tables = tiny_run.recipe_of(w) / "tables"
    flags = (*FLAGS, "--config.extract.choose=random", "--config.extract.reference=True")
    assert cli.main(tiny.argv("extract", w, *flags)) == 0
    assert "extraction: 9 random samples (5 members)" in capsys.readouterr().err
    table = pd.read_csv(tables / "extraction.csv")
    [name] = {json.loads((tables / "extraction.json").read_text())["reference"]}
    _, member_MxN = Store(tiny_run.recipe_of(w) / "scores.zarr").read([subsets.reference(0)])
    assert name == "reference-00"
    assert table["reference_member"].tolist() == member_MxN[0, table["id"]].tolist()
    assert (table["reference_log_p_sampled"] != table["log_p_sampled"]).all()
    reference = pd.read_csv(tables / "extraction_reference.csv")
    assert (reference["samples"] + reference["left_out"] <= 9).all()
    assert cli.main(tiny.argv("extract", w, *flags)) == 0
    assert "already in its" in capsys.readouterr().err
    assert cli.main(tiny.argv("extract", w, *FLAGS)) == 0
    assert not (tables / "extraction_reference.csv").exists()
    assert "reference_member" not in pd.read_csv(tables / "extraction.csv")


@pytest.mark.usefixtures("_on_cpu")
def test_missing_results_are_computed(tiny: tiny_run.Tiny, tmp_path: Path):
    w = tiny.copy(tmp_path / "w")
    [samples] = (tiny_run.recipe_of(w) / "pieces").glob("samples-*.parquet")
    whole = samples.read_bytes()
    samples.write_text("junk")
    assert cli.main(tiny.argv("extract", w, *FLAGS)) == 0
    assert samples.read_bytes() == whole


@pytest.mark.usefixtures("_on_cpu")
def test_damaged_scores_are_reported_and_repaired_bitwise(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    before = tiny_run.scores(w)
    store = tiny_run.recipe_of(w) / "scores.zarr"
    flipped, truncated, deleted = (store / f"loss/c/{model}/0" for model in (0, 2, 5))
    original = flipped.read_bytes()
    flipped.write_bytes(original[:9] + bytes([original[9] ^ 64]) + original[10:])
    truncated.write_bytes(truncated.read_bytes()[:-3])
    deleted.unlink()
    assert cli.main(tiny.argv("status", w, "--verify")) == 2
    shown = capsys.readouterr()
    for path, word in ((flipped, "corrupt"), (truncated, "corrupt"), (deleted, "missing")):
        assert f"{word}     {path}" in shown.out
    assert ", 1 missing, 2 corrupt" in shown.out
    repair = with_flags("`lm-mia score --repair`", tiny.argv("status", w))
    last = shown.err.splitlines()[-1]
    assert last.startswith(f"{store}: 2 shards corrupt and 1 missing; ")
    assert repair in last
    assert cli.main(tiny.argv("score", w, "--repair", "--config.train.workers=1")) == 0
    assert tiny_run.scores(w) == before
    assert cli.main(tiny.argv("status", w, "--verify")) == 0
    for verb, flag in (("run", "repair"), ("score", "verify")):
        assert cli.main(tiny.argv(verb, w, f"--{flag}")) == 2
        assert f"--{flag}: " in capsys.readouterr().err
