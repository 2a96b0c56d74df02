import contextlib
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from tiny_run import _on_cpu, here, refused, tiny

from lm_mia import cli
from lm_mia.config import load
from lm_mia.data import corpus
from lm_mia.run import progress, supervisor, sweep, sweep_pipeline
from lm_mia.train import checkpoint

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = pytest.mark.usefixtures("_on_cpu")

SWEEP = """
import dataclasses

_alone = get_config


def get_config():
    c = dataclasses.replace(_alone(), name="main", report={report!r}, figures=("fig01_x",))
    return dataclasses.replace(c, attack=dataclasses.replace(c.attack, attacks=("lira_online", "rmia")))


def sweep():
    yield {{"name": "twice", "attack.replicas": 0, "attack.targets": 2, "attack.references": 6, "train.epochs": 2}}
    yield {{"name": "again", "attack.replicas": 0}}
"""
FIGURE = """
TITLE = ""
PAPER = ""
STATEMENTS = ()
def draw(recipes): ...
"""
REPORT = """
import pathlib, sys
print("1 of 1 figures")
(pathlib.Path(sys.argv[1]) / "report.html").write_text(" ".join(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "run", here)
    monkeypatch.setenv("COLUMNS", "100")


def write_config(tiny: tiny_run.Tiny, folder: Path) -> str:
    """The file of a sweep of two recipes, and beside it a figure and a report script that says what it is given."""
    (folder / "page.py").write_text(REPORT)
    (folder / "fig01_x.py").write_text(FIGURE)
    text = Path(tiny.config).read_text() + SWEEP.format(report=str(folder / "page.py"))
    (folder / "several.py").write_text(text)
    return str(folder / "several.py")


@pytest.fixture
def config(tiny: tiny_run.Tiny, tmp_path: Path) -> str:
    return write_config(tiny, tmp_path)


@pytest.fixture(scope="module")
def finished(tiny: tiny_run.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep, run whole; tests take a copy. What it printed is in the files out and err beside it."""
    folder = tmp_path_factory.mktemp("sweep")
    out, err = io.StringIO(), io.StringIO()
    with (
        tiny_run.on_cpu() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(supervisor, "run", here)
        patch.setenv("COLUMNS", "100")
        assert cli.main(argv("run", write_config(tiny, folder), folder / "w")) == 0
    (folder / "out").write_text(out.getvalue())
    (folder / "err").write_text(err.getvalue())
    return folder / "w"


def copy(finished: Path, folder: Path) -> Path:
    """Of the finished sweep, whose recipes have links to their populations."""
    return Path(shutil.copytree(finished, folder, symlinks=True))


def argv(verb: str, config: str, folder: Path, *more: str) -> list[str]:
    return [verb, f"--config={config}", f"--workdir={folder}", "--config.train.workers=1", *more]


def test_a_sweep_is_run_whole_and_goes_on_where_it_was(
    config: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = copy(finished, tmp_path / "w")
    [main], [twice] = folder.glob("main_*"), folder.glob("twice_*")
    assert len(tiny_run.events(main, "row_trained")) == 6  # 4 references and 2 replicas
    assert len(tiny_run.events(twice, "row_trained")) == 6  # references, 2 of them targets
    assert (main / "tables" / "flips.json").is_file()
    assert not (main / "tables" / "shuffled.csv").exists()  # decisions only
    assert not (twice / "tables").exists()
    assert (main / "population").resolve() == (twice / "population").resolve()
    recipes = f"--recipe={finished / main.name} --recipe={finished / twice.name}"
    assert (folder / "report.html").read_text() == f"{recipes} --figure=fig01_x"
    out, err = ((finished.parent / name).read_text() for name in ("out", "err"))
    assert f"report      {finished / 'report.html'}" in out
    assert "recipe 1 of 2: main" in err

    before = tiny_run.scores(main), tiny_run.scores(twice)
    assert cli.main(argv("run", config, folder)) == 0
    assert (tiny_run.scores(main), tiny_run.scores(twice)) == before
    assert len(tiny_run.events(main, "row_trained")) == 6
    capsys.readouterr()
    assert cli.main(argv("status", config, folder, "--verify")) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if "│ main" in line or "│ twice" in line] == [
        ["│", "main", "│", "6", "│", "6", "│", "6", "│", "0", "│", "present", "│"],
        ["│", "twice", "│", "6", "│", "6", "│", "6", "│", "0", "│", "none", "asked", "│"],
    ]
    [shard] = twice.glob("recipe_*/scores.zarr/loss/c/3/*")
    shard.write_bytes(shard.read_bytes()[::-1])
    assert cli.main(argv("status", config, folder, "--verify")) == 2
    bad, way_out = capsys.readouterr().err.splitlines()[-2:]
    assert bad == f"{shard}: corrupt"
    assert way_out == "`lm-mia score --repair` makes these again"
    assert cli.main(argv("score", config, folder, "--repair")) == 0
    assert tiny_run.scores(twice) == before[1]


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
    assert "which was trained on the same documents" in capsys.readouterr().err


def test_a_narrower_command_leaves_what_others_asked_for(
    config: str, finished: Path, tmp_path: Path
):
    folder = copy(finished, tmp_path / "w")
    [main] = folder.glob("main_*")
    stored = json.loads((main / "config.json").read_text())["config"]
    assert stored["name"] == "main+again"
    facts = (main / "tables" / "flips.json").read_text()
    narrow = Path(config).with_name("narrow.py")
    alone = "c = dataclasses.replace(_alone(), name='other')\n    return c\n"
    text = Path(config).read_text().partition("    c = ")[0]
    narrow.write_text(f"{text}    {alone}")
    assert cli.main(argv("run", str(narrow), folder)) == 0
    assert json.loads((main / "config.json").read_text())["config"]["name"] == "other+main+again"
    assert json.loads((main / "tables" / "flips.json").read_text())["references"] == 4
    assert json.loads(facts)["references"] == 4
    assert len(tiny_run.events(main, "row_trained")) == 6


def test_verbs_too_early_and_mistakes_write_nothing(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "w"
    for verb in ("train", "score", "attack", "report"):
        assert len(refused(argv(verb, config, folder), capsys)) >= 1
    [line] = refused(argv("extract", config, folder), capsys)
    assert line.startswith("extract.samples=0: nothing to extract")
    [line] = refused(argv("report", config, folder, "--config.figures="), capsys)
    assert line == "figures=(): nothing to draw; try --config.figures=scaling"
    tokens = ("--config.extract.prefix_tokens=4", "--config.extract.suffix_tokens=4")
    none = ("--config.attack.replicas=0", "--config.extract.samples=3")
    [line] = refused(argv("extract", config, folder, *none, *tokens), capsys)
    assert line.startswith("attack.replicas=0: extraction is from the first replica")
    [line] = refused(argv("extract", config, folder, "--config.extract.samples=3", *tokens), capsys)
    assert "no finished tables; run `lm-mia attack` first" in line
    [line] = refused(argv("run", config, folder, "--config.figures=fig99_y"), capsys)
    assert line.startswith(
        "figures='fig99_y': no fig99_y.py with TITLE, PAPER, STATEMENTS and draw() beside "
    )
    lines = refused(argv("run", config, folder, "--config.train.epochs=0"), capsys)
    assert "train.epochs=0: must be a finite number larger than 0" in lines
    assert not folder.exists()


def test_two_commands_that_begin_at_once_share_a_folder_that_has_the_names_of_both(
    tiny: tiny_run.Tiny, tmp_path: Path
):
    [(_, c)] = load.sweep(tiny.config, ())
    both = [
        sweep.tasks(str(tmp_path / "w"), [({}, dataclasses.replace(c, name=name))])[0]
        for name in ("a", "b")
    ]
    with progress.display(overall=False) as display:
        for task in both:
            sweep_pipeline.population(task, display)
    [folder] = (tmp_path / "w").glob("*_*/")
    assert folder.name == f"a_{both[0].key}"
    assert json.loads((folder / "config.json").read_text())["config"]["name"] == "b+a"


def test_a_name_moves_with_its_recipe(tiny: tiny_run.Tiny, tmp_path: Path):
    [(_, c)] = load.sweep(tiny.config, ())
    deeper = dataclasses.replace(c, train=dataclasses.replace(c.train, epochs=2))
    for names in (("a", "b"), ("b", "a")):
        entries = [({}, dataclasses.replace(c, name=names[0]))]
        entries += [({"train.epochs": 2}, dataclasses.replace(deeper, name=names[1]))]
        with progress.display(overall=False) as display:
            for task in sweep.tasks(str(tmp_path / "w"), entries):
                sweep_pipeline.population(task, display)
    found = {
        folder.name[0]: json.loads((folder / "config.json").read_text())["config"]["name"]
        for folder in (tmp_path / "w").glob("?_*")
    }
    assert found == {"a": "b", "b": "a"}  # by the folders' first names


def test_a_row_that_diverged_leaves_the_report_of_the_others(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder, fresh = tmp_path / "w", checkpoint.fresh

    def spoilt(init_seed: int, *of: Any) -> checkpoint.State:
        state = fresh(init_seed, *of)
        if init_seed == 1:
            state["params"]["ln_D"] = state["params"]["ln_D"].at[0].set(float("nan"))
        return state

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "fresh", spoilt)
        assert cli.main(argv("run", config, folder, "--config.attack.references=6")) == 2
    out, said = capsys.readouterr()
    assert out.endswith(f"report      {folder / 'report.html'}\n")
    assert [line.partition(" (")[0] for line in said.splitlines()[-2:]] == [
        "main: 1 of 8 rows diverged",
        "twice: 1 of 6 rows diverged",
    ]
    [main] = folder.glob("main_*")
    assert json.loads((main / "tables" / "flips.json").read_text())["references"] == 5
    assert (folder / "report.html").is_file()


def test_a_figure_of_a_config_that_has_no_name_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    argv = tiny.argv("run", tmp_path / "w", "--config.figures=scaling")
    [line] = refused(argv, capsys)
    assert line.startswith("figures=('scaling',): are of a sweep, or of a config with a name;")
    assert not (tmp_path / "w").exists()


def test_a_sweep_where_nothing_can_be_written_is_a_line(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    [line] = refused(argv("run", config, tmp_path / "w"), capsys)
    assert (
        line
        == f"--workdir={tmp_path / 'w'}: Permission denied; choose a folder that can be written"
    )


def test_too_few_documents_for_any_recipe_are_told_before_anything_is_made(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    many = (
        Path(config).read_text()
        + """
    yield {"name": "large", "population.samples": 1000}
"""
    )
    Path(config).with_name("many.py").write_text(many)
    said = refused(argv("run", config.replace("several", "many"), tmp_path / "w"), capsys)
    assert said[-1].startswith("large: population.samples=1000: the corpus has ")
    assert said[-1].endswith(
        "or, where the sweep sets it, leave out figures or entries that want as many"
    )
    assert not (tmp_path / "w").exists()


def test_without_figures_there_is_no_report(config: str, finished: Path, tmp_path: Path):
    (copy(finished, tmp_path / "w") / "report.html").unlink()
    assert cli.main(argv("run", config, tmp_path / "w", "--config.figures=")) == 0
    assert not (tmp_path / "w" / "report.html").exists()


def test_what_the_report_says_of_bad_input_is_one_line(
    config: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    Path(config).with_name("page.py").write_text(
        "import sys\nprint('no rows', file=sys.stderr)\nsys.exit(2)"
    )
    folder = copy(finished, tmp_path / "w")
    assert refused(argv("run", config, folder), capsys)[-1] == "no rows"
