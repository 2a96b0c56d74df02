import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import tiny_run
import xarray as xr

from lm_mia import cli, workers


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_run.Tiny:
    return tiny_run.finished(tmp_path_factory)


@pytest.fixture(autouse=True)
def _on_cpu_signals_kept(tiny: tiny_run.Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in tiny.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setenv("COLUMNS", "80")
    old = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, old)


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a command that is refused says, a line each, without the bars that were drawn so far."""
    assert cli.main(argv) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in said
    return [
        line
        for line in said.splitlines()
        if line.strip() and "0:00:0" not in line and "%" not in line
    ]


def test_the_whole_run(tiny: tiny_run.Tiny):
    w, said, out = (
        tiny.workdir,
        (tiny.folder / "said").read_text(),
        (tiny.folder / "out").read_text(),
    )
    assert "rows: 6 wanted, 0 present, 6 to train and score" in said
    for place in ("population", "scores", "metrics", "tables", "figures", "report"):
        assert f"\n{place} " in out
    for name in (
        "config.json",
        "metrics.jsonl",
        "report.html",
        "figures/roc.png",
        "figures/roc.pdf",
    ):
        assert (w / name).stat().st_size > 0
    table = pd.read_csv(w / "tables" / "attacks.csv").set_index(["attack", "references"])
    for name, count in (("lira_online", 4), ("loss", 0)):
        assert f"AUC of {name}: {table.loc[(name, count), 'auc_mean']:.3f} +- " in out
    rows = [f"reference_{i}_{i}_{i}" for i in range(4)]
    rows += [f"replica_{2**31}_{2**31}_{i}" for i in range(2)]
    assert tiny_run.events(w, "row_trained") == tiny_run.events(w, "row_scored") == rows
    [store] = w.glob("recipe_*/scores.zarr")
    with xr.open_zarr(store) as data:
        assert dict(data.sizes) == {"row": 6, "sample": 32}
        assert {"role", "tokens", "unk", "zlib_bytes"} < set(data.coords)
        assert (data["member"].sum("sample") == 16).all()
        assert not data["loss"].isnull().any()
        assert data.attrs["subset"] == "balanced"
    assert json.loads((w / "config.json").read_text())["config"]["population"]["samples"] == 32


def test_again_nothing_is_trained_and_the_tables_are_the_same(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    shutil.rmtree(w / "tables")
    assert cli.main(tiny.argv("run", w)) == 0
    out, said = capsys.readouterr()
    assert "rows: 6 wanted, 6 present, 0 to train and score" in said
    assert "AUC of lira_online" in out
    assert len(tiny_run.events(w, "row_trained")) == 6
    assert tiny_run.content(w / "tables") == tiny_run.content(tiny.workdir / "tables")
    for verb in ("corpus", "train", "score"):
        assert cli.main(tiny.argv(verb, w)) == 0
    assert len(tiny_run.events(w, "row_trained")) == len(tiny_run.events(w, "row_scored")) == 6
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)


def test_more_references_train_only_the_new_ones(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, old = tiny.copy(tmp_path / "w"), tiny_run.scores(tiny.workdir)
    (w / "metrics.jsonl").unlink()
    assert (
        cli.main(tiny.argv("run", w, "--config.attack.references=6", "--config.train.workers=1"))
        == 0
    )
    assert "rows: 8 wanted, 6 present, 2 to train and score" in capsys.readouterr().err
    assert tiny_run.events(w, "row_trained") == ["reference_4_4_4", "reference_5_5_5"]
    assert tiny_run.events(w, "row_scored") == ["reference_4_4_4", "reference_5_5_5"]
    new = tiny_run.scores(w)
    assert {k: new[k] for k in old} == old
    assert len(new) == len(old) + 4
    assert pd.read_csv(w / "tables" / "attacks.csv").references.max() == 6


def test_stopped_then_two_at_once_give_what_an_unbroken_run_gives(
    tiny: tiny_run.Tiny, tmp_path: Path
):
    """SIGTERM after the first row is trained leaves no process; two commands then share the rows that are left."""
    w = tmp_path / "w"
    process = tiny.start(tiny.argv("run", w, "--config.train.workers=2"))
    while not tiny_run.events(w, "row_trained"):
        assert process.poll() is None
        time.sleep(0.02)
    below = tiny_run.workers_of(process.pid)
    assert len(below) == 2
    process.terminate()
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 143
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    done = tiny_run.events(w, "row_trained")
    pair = [tiny.start(tiny.argv("run", w, "--config.train.workers=1")) for _ in range(2)]
    said = [each.communicate()[1] for each in pair]
    assert [each.returncode for each in pair] == [0, 0], said
    after, expected = (tiny_run.events(d, "row_trained") for d in (w, tiny.workdir))
    # A row that ended just before SIGTERM may be missing from the log, never from the store.
    assert len(after) == len(set(after))
    assert set(done) <= set(after) <= set(expected)
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)
    assert tiny_run.content(w / "population") == tiny_run.content(tiny.workdir / "population")
    for name in ("attacks.csv", "flip_shares.csv", "samples.parquet"):
        assert (w / "tables" / name).read_bytes() == (tiny.workdir / "tables" / name).read_bytes()


@pytest.mark.parametrize(("flags", "line"), tiny_run.REFUSED, ids=str)
def test_bad_input_is_one_line_and_nothing_is_written(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], line: str
):  # fmt: skip
    assert refused(tiny.argv("run", tmp_path / "w", *flags), capsys) == [line]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_text_column(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    flags = ["--config.corpus.source=jsonl", f"--config.corpus.path={tmp_path / 'a.jsonl'}"]
    [line] = refused(tiny.argv("run", tmp_path / "w", *flags), capsys)
    assert line.startswith("corpus.column='text': all 2 texts of 1 file(s) in ")
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        ([], ["lm-mia: the following arguments are required: VERB; see lm-mia --help"]),
        (
            ["run"],
            [
                "--config: missing; say --config=configs/quickstart.py",
                "--workdir: missing; say --workdir=runs/quickstart",
            ],
        ),
    ],
)
def test_missing_arguments(capsys: pytest.CaptureFixture[str], argv: list[str], lines: list[str]):
    assert refused(argv, capsys) == lines


def test_unknown_verb(capsys: pytest.CaptureFixture[str]):
    [line] = refused(["rum"], capsys)
    assert line.startswith("lm-mia: argument VERB: invalid choice: 'rum' (choose from ")


@pytest.mark.parametrize("verb", ["train", "score", "attack", "report", "status"])
def test_later_stages_need_a_population(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
):
    w = tmp_path / "w"
    assert refused(tiny.argv(verb, w), capsys) == [
        f"{w}/population: there is no population here; run `lm-mia corpus` first"
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["config", "tokens", "shard", "rows"])
def test_a_used_workdir_with_something_wrong(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
):
    w = tiny.copy(tmp_path / "w")
    [recipe] = w.glob("recipe_*")
    shard, tokens = (
        recipe / "scores.zarr" / "loss" / "c" / "3" / "0",
        w / "population" / "tokens.npy",
    )
    verb, flags, lines = "run", [], []
    if damage == "config":
        flags = ["--config.model.layers=2", "--config.train.epochs=3", "--config.attack.alpha=0.1"]
        lines = [
            f"--workdir={w}: belongs to another config:",
            "  model.layers: 1 -> 2",
            "  train.epochs: 1 -> 3",
            "  choose another --workdir, or put these fields back",
        ]
    elif damage == "tokens":
        raw = bytearray(tokens.read_bytes())
        raw[-1] ^= 1
        tokens.write_bytes(raw)
        lines = [
            f"{tokens}: the content does not match the hash in manifest.json; delete the folder {tokens.parent} "
            "and run `lm-mia corpus` again"
        ]
    elif damage == "shard":
        raw = bytearray(shard.read_bytes())
        raw[5] ^= 1
        shard.write_bytes(raw)
        lines = [f"{shard}: corrupt score shard; delete it and run `lm-mia run` again"]
    else:
        verb = "attack"
        shard.unlink()
        lines = [
            f"{recipe}/scores.zarr: 3 of 4 references and 2 of 2 replicas are there, of 4 and 2 that an attack needs "
            "at least; run `lm-mia run` first"
        ]
    before = tiny_run.content(w)
    said = refused(tiny.argv(verb, w, *flags), capsys)
    assert [
        line
        for line in said
        if not line.startswith(("corpus:", "vocabulary:", "population:", "rows:"))
    ] == lines
    after = tiny_run.content(w)
    for name in ("config.json", "metrics.jsonl"):  # what says how to show, and when it was asked
        del before[name], after[name]
    assert after == before


def test_a_corrupt_shard_once_deleted_is_made_again_by_the_same_command(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    w = tiny.copy(tmp_path / "w")
    [recipe] = w.glob("recipe_*")
    shard = recipe / "scores.zarr" / "loss" / "c" / "3" / "0"
    shard.write_bytes(b"x" * shard.stat().st_size)
    [*_, line] = refused(tiny.argv("run", w), capsys)
    Path(line.partition(":")[0]).unlink()

    def here(todo, c, workdir, recipe, on_event) -> None:  # a worker's work, without the process
        workers._work(todo, c, workdir, recipe, 0, on_event)

    monkeypatch.setattr(workers, "run", here)
    assert cli.main(tiny.argv("run", w)) == 0
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)
    assert len(tiny_run.events(w, "row_trained")) == 6  # all by the first run


def test_a_report_is_not_drawn_from_tables_of_other_settings(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    flags = ["--config.attack.alpha=0.2", "--config.attack.references=6"]
    assert refused(tiny.argv("report", w, *flags), capsys) == [
        "attack.references=6: the tables were made with 4; say that here too, or run `lm-mia attack` first",
        "attack.alpha=0.2: the tables were made with 0.05; say that here too, or run `lm-mia attack` first",
    ]
    assert cli.main(tiny.argv("report", w)) == 0


def test_help_and_fields(capsys: pytest.CaptureFixture[str]):
    for argv, words in (
        (["--help"], ["run", "status", "--workdir", "lm-mia fields"]),
        (["fields"], ["--config.model.layers", "--config.attack.fprs", "docstrings"]),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(argv)
        out = capsys.readouterr().out
        assert (ended.value.code, [word for word in words if word not in out]) == (0, [])


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_work", stopped)
    file = Path(cli.__file__).parent.parent / "configs" / "quickstart.py"
    assert cli.main(["run", f"--config={file}", "--workdir=/nowhere"]) == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"
