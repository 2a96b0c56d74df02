import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from tiny_run import _on_cpu, refused, run_in_process, tiny

from analysis import page
from lm_mia import cli
from lm_mia.data import corpus
from lm_mia.errors import UserError
from lm_mia.run import supervisor
from lm_mia.train import checkpoint

__all__ = ["_on_cpu", "tiny"]  # fixtures

SWEEP = """
import dataclasses

_alone = get_config


def get_config():
    c = dataclasses.replace(_alone(), name="main")
    return dataclasses.replace(c, attack=dataclasses.replace(c.attack, attacks=("lira_online", "rmia")))


def sweep():
    yield {"name": "twice", "attack.replicas": 0, "attack.targets": 2, "attack.references": 6, "train.epochs": 2}
    yield {"name": "again", "attack.replicas": 0}
"""


@pytest.fixture(autouse=True)
def _in_this_process(_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # After _on_cpu: two tests replace what it replaces, too, and fixtures are undone in reverse order.
    monkeypatch.setattr(supervisor, "run", run_in_process)
    monkeypatch.setenv("COLUMNS", "100")


def write_config(tiny: tiny_run.Tiny, folder: Path) -> str:
    """Returns the config file of a sweep of two recipes."""
    (folder / "several.py").write_text(Path(tiny.config).read_text() + SWEEP)
    return str(folder / "several.py")


@pytest.fixture
def config(tiny: tiny_run.Tiny, tmp_path: Path) -> str:
    return write_config(tiny, tmp_path)


@pytest.fixture(scope="module")
def finished(tiny: tiny_run.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the finished sweep, which tests copy. Its output is in the files out and err next to it."""
    folder = tmp_path_factory.mktemp("sweep")
    out, err = io.StringIO(), io.StringIO()
    with (
        tiny_run.on_cpu() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(supervisor, "run", run_in_process)
        patch.setenv("COLUMNS", "100")
        assert cli.main(argv("run", write_config(tiny, folder), folder / "w")) == 0
    (folder / "out").write_text(out.getvalue())
    (folder / "err").write_text(err.getvalue())
    return folder / "w"


def copy(finished: Path, folder: Path) -> Path:
    """Copies the finished sweep."""
    return Path(shutil.copytree(finished, folder))


def argv(verb: str, config: str, folder: Path, *more: str) -> list[str]:
    return [verb, f"--config={config}", f"--workdir={folder}", "--config.train.workers=1", *more]


def scores(folder: Path) -> dict[str, bytes]:
    """Returns every score shard of all recipes."""
    files = tiny_run.content(folder / "recipes")
    return {k: v for k, v in files.items() if "scores.zarr" in k and "/c/" in k}


def trained(folder: Path, recipe: str) -> int:
    """Returns the number of trained models of a recipe, from the log."""
    return sum(e["recipe"] == recipe for e in tiny_run.logged(folder, "model_trained"))


def test_sweep_runs_all_stages_and_resumes(
    config: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = copy(finished, tmp_path / "w")
    main, twice = (folder / "recipes" / name for name in ("main", "twice"))
    assert trained(folder, "main") == 6  # 4 references and 2 replicas
    assert trained(folder, "twice") == 6  # references, 2 of them targets
    assert {"flips.json", "attacks.csv", "shuffled.csv"} < {p.name for p in main.glob("tables/*")}
    target_tables = {
        "models.csv",
        "targets.csv",
        "target_roc.parquet",
    }
    target_tables |= {
        "advantage.csv",
        "audit.csv",
        "audit_curve.csv",
        "intervals.csv",
        "membership_scores.json",
        "more_references.json",
    }  # too few references for its table
    target_tables |= {"membership_scores.parquet"}
    target_tables |= {"attacked_models.csv", "strength_parts.parquet", "strength.csv"}
    target_tables |= {"headline_roc.csv", "headline_samples.parquet", "page_samples.parquet"}
    target_tables |= {"exposed.csv", "found_by_text.csv", "found_again.csv"}
    assert {p.name for p in twice.glob("tables/*")} == target_tables
    assert len(list((folder / "populations").glob("[!.]*"))) == 1
    out, err = ((finished.parent / name).read_text() for name in ("out", "err"))
    assert [line.partition(":")[0] for line in out.splitlines()] == ["main", "twice", "report"]
    assert "recipe 1 of 2: main" in err

    tables = {p: p.read_bytes() for p in folder.glob("recipes/*/tables/*")}
    before = scores(folder)
    assert cli.main(argv("run", config, folder)) == 0
    assert scores(folder) == before
    err = capsys.readouterr().err
    counts = re.findall(r"attack: (\w+): (\d+) attacks requested, (\d+) .*?, (\d+) computed", err)
    assert counts == [("main", "9", "9", "0"), ("twice", "3", "3", "0")]
    assert {p: p.read_bytes() for p in folder.glob("recipes/*/tables/*")} == tables
    assert trained(folder, "main") == 6
    assert cli.main(["status", f"--workdir={folder}", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "0 missing, 0 corrupt" in out
    [shard] = twice.glob("scores.zarr/loss/c/3/*")
    shard.write_bytes(shard.read_bytes()[::-1])
    assert cli.main(argv("status", config, folder, "--verify")) == 2
    output = capsys.readouterr()
    assert f"corrupt     {shard}" in output.out
    assert "`lm-mia score --repair --config=" in output.err
    assert cli.main(argv("score", config, folder, "--repair")) == 0
    assert scores(folder) == before


def test_recipes_share_corpus_and_vocabulary(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    read = []
    reads = corpus.read
    monkeypatch.setattr(corpus, "read", lambda *a: read.append(a[0]) or reads(*a))
    short = "{'name': 'short', 'population.length_tokens': 12}"
    with Path(config).open("a") as file:
        file.write(f"\n\n_more = sweep\ndef sweep():\n    yield from _more()\n    yield {short}\n")
    assert cli.main(argv("corpus", config, tmp_path / "w")) == 0
    assert len(read) == 1
    models = [p.read_bytes() for p in tmp_path.glob("w/populations/*/tokenizer.model")]
    assert len(models) == 2
    assert models[0] == models[1]
    assert "the same documents" in capsys.readouterr().err


def test_narrower_command_keeps_earlier_requests(config: str, finished: Path, tmp_path: Path):
    folder = copy(finished, tmp_path / "w")
    main = folder / "recipes" / "main"
    assert json.loads((main / "config.json").read_text())["names"] == ["main", "again"]
    narrow = Path(config).with_name("narrow.py")
    alone = Path(config).read_text().partition("def sweep")[0]
    narrow.write_text(alone.replace('name="main"', 'name="other"'))
    assert cli.main(argv("run", str(narrow), folder)) == 0
    assert json.loads((main / "config.json").read_text())["names"] == ["main", "again", "other"]
    assert json.loads((main / "tables" / "flips.json").read_text())["references"] == 4
    assert trained(folder, "main") == 6
    assert not (folder / "recipes" / "other").exists()


def test_mistakes_and_premature_verbs_write_nothing(
    tiny: tiny_run.Tiny, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "w"
    for verb in ("train", "score", "attack", "report"):
        assert len(refused(argv(verb, config, folder), capsys)) >= 1
    [line] = refused(argv("extract", config, folder), capsys)
    assert line.startswith("extract.samples=0: ")
    tokens = ("--config.extract.prefix_tokens=4", "--config.extract.suffix_tokens=4")
    flags = ("--config.attack.replicas=0", "--config.extract.samples=3")
    [line] = refused(argv("extract", config, folder, *flags, *tokens), capsys)
    assert line.startswith("attack.replicas=0: ")
    [line] = refused(argv("extract", config, folder, "--config.extract.samples=3", *tokens), capsys)
    assert "; run `lm-mia corpus --config=" in line
    [line] = refused(argv("run", config, folder, "--config.figures=strongmia_fig99_y"), capsys)
    assert line.startswith("figures='strongmia_fig99_y': ")
    for verb in ("run", "train", "attack"):  # before any model is trained
        [line] = refused(argv(verb, tiny.config, folder, "--config.attack.replicas=0"), capsys)
        assert line.startswith("attack.replicas=0: needs attack.targets=N")
    lines = refused(argv("run", config, folder, "--config.train.epochs=0"), capsys)
    assert any(line.startswith("train.epochs=0: must be") for line in lines)
    assert not folder.exists()


@pytest.mark.slow
def test_report_is_written_although_a_model_diverged(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder, init_state = tmp_path / "w", checkpoint.init_state

    def corrupted_state(init_seed: int, *args: Any) -> checkpoint.TrainState:
        state = init_state(init_seed, *args)
        if init_seed == 1:
            scale = state.params["ln_out"]["scale"]
            state.params["ln_out"]["scale"] = scale.at[0].set(float("nan"))
        return state

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "init_state", corrupted_state)
        assert cli.main(argv("run", config, folder, "--config.attack.references=6")) == 2
    out, err = capsys.readouterr()
    assert out.endswith(f"report: {folder / 'report.html'}\n")
    counts = re.findall(r"^(\w+): (\d+) of (\d+) models diverged", err, re.MULTILINE)
    assert counts[-2:] == [("main", "1", "8"), ("twice", "1", "6")]
    facts = folder / "recipes" / "main" / "tables" / "flips.json"
    assert json.loads(facts.read_text())["references"] == 5
    assert (folder / "report.html").is_file()


def test_unwritable_workdir_is_reported_on_one_line(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    [line] = refused(argv("run", config, tmp_path / "w"), capsys)
    assert line.startswith(f"--workdir={tmp_path / 'w'}: Permission denied; ")


def test_too_few_documents_are_reported_before_any_work(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    many = (
        Path(config).read_text()
        + """
    yield {"name": "large", "population.samples": 1000}
"""
    )
    Path(config).with_name("many.py").write_text(many)
    messages = refused(argv("run", config.replace("several", "many"), tmp_path / "w"), capsys)
    assert messages[-1].startswith("large: population.samples=1000: ")
    assert "entries or figures" in messages[-1]
    assert not (tmp_path / "w").exists()


def test_page_has_all_recipes_and_figures(
    config: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, drawn = copy(finished, tmp_path / "w"), []

    def write_page(*args: Any) -> None:
        drawn.append(args[:3])

    monkeypatch.setattr(page, "write_page", write_page)
    figure = "--config.figures=strongmia_fig01_references"
    assert cli.main(argv("report", config, folder, figure)) == 0
    assert cli.main(["report", f"--workdir={folder}"]) == 0
    names = ["main", "twice"]
    assert drawn == 2 * [(folder, names, ("strongmia_fig01_references",))]


def test_error_of_the_page_is_reported_on_one_line(
    config: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    def write_page(*_: Any) -> None:
        raise UserError("nothing to show")

    monkeypatch.setattr(page, "write_page", write_page)
    folder = copy(finished, tmp_path / "w")
    assert refused(argv("report", config, folder), capsys)[-1] == "nothing to show"


def test_failed_attack_does_not_stop_other_recipes(
    config: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = copy(finished, tmp_path / "w")
    second_config = Path(config).with_name("two.py")
    more = (
        Path(config).read_text()
        + "    yield {'name': 'slower', 'optimizer.peak_learning_rate': 1e-3}\n"
    )
    second_config.write_text(more)
    assert cli.main(argv("corpus", str(second_config), folder)) == 0
    assert cli.main(argv("train", str(second_config), folder)) == 0
    assert cli.main(argv("score", str(second_config), folder)) == 0
    [shard] = (folder / "recipes" / "slower").glob("scores.zarr/loss/c/0/*")
    shard.write_bytes(shard.read_bytes()[::-1])
    capsys.readouterr()
    assert cli.main(argv("attack", str(second_config), folder)) == 2
    out, err = capsys.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()] == ["main", "twice", "report"]
    assert err.splitlines()[-1].startswith(f"slower: {shard}: corrupt score shard")
