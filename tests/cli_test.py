import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_run
import xarray as xr
from report_html import of_table
from tiny_run import _on_cpu, refused, run_in_process, tiny

import lm_mia
from analysis import page
from analysis.report import numbers
from lm_mia import cli
from lm_mia.attacks import registry, user_code
from lm_mia.errors import UserError, with_flags
from lm_mia.run import pipeline, supervisor
from lm_mia.train import checkpoint, loop

__all__ = ["_on_cpu", "tiny"]  # fixtures
pytestmark = pytest.mark.usefixtures("_on_cpu")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_run_writes_scores_tables_and_report(tiny: tiny_run.Tiny):
    w = tiny.workdir
    messages, out = ((tiny.folder / name).read_text() for name in ("err", "out"))
    assert tiny_run.models_counted(messages) == [6, 0, 6]
    for name in (
        "config.json",
        "report.html",
        "figures/tiny-training.png",
        "figures/tiny-training.pdf",
    ):
        assert (w / name).stat().st_size > 0
    recipe = tiny_run.recipe_of(w)
    table = pd.read_csv(recipe / "tables" / "strength.csv")
    auc = of_table(table, "stacked", "auc", numbers.FRACTION)
    answer, page = out.splitlines()
    assert re.match(r"tiny: 16 members and 16 non-members\b.*too few", answer)
    assert f"AUC {auc};" in answer
    assert page == f"report: {w / 'report.html'}"
    models = [f"reference-{i:02}" for i in range(4)] + [f"replica-{i:02}" for i in range(2)]
    assert tiny_run.events(w, "model_trained") == tiny_run.events(w, "model_scored") == models
    with xr.open_zarr(recipe / "scores.zarr") as data:
        assert dict(data.sizes) == {"model": 6, "sample": 32}
        assert data["model"].to_numpy().tolist() == models
        assert {"role", "tokens", "unk", "zlib_bytes"} < set(data.coords)
        assert (data["member"].sum("sample") == 16).all()
        assert not data["loss"].isnull().any()
        assert data.attrs["subset"] == "balanced"
        assert data.attrs["recipe"] == "tiny"
    stored = json.loads((recipe / "config.json").read_text())
    assert stored["config"]["population"]["samples"] == 32
    assert stored["population_sha256"] == data.attrs["population_sha256"]
    assert json.loads((w / "config.json").read_text())["recipes"] == ["tiny"]


def test_a_second_run_trains_nothing_and_gives_equal_tables(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    shutil.rmtree(tiny_run.recipe_of(w) / "tables")
    assert cli.main(tiny.argv("run", w)) == 0
    out, messages = capsys.readouterr()
    assert tiny_run.models_counted(messages) == [6, 6, 0]
    assert "tiny: 16 members and 16 " in out
    assert len(tiny_run.events(w, "model_trained")) == 6
    tables, first = (tiny_run.recipe_of(folder) / "tables" for folder in (w, tiny.workdir))
    assert tiny_run.content(tables) == tiny_run.content(first)
    for verb, answer in (
        ("corpus", f"population: {w}/populations/"),
        ("train", f"scores: {w}/recipes/tiny/scores.zarr"),
        ("score", f"scores: {w}/recipes/tiny/scores.zarr"),
    ):
        assert cli.main(tiny.argv(verb, w)) == 0
        assert capsys.readouterr().out.startswith(answer)
    assert len(tiny_run.events(w, "model_trained")) == len(tiny_run.events(w, "model_scored")) == 6
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)


def test_more_references_train_only_the_new_ones(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    monkeypatch.setattr(supervisor, "run", run_in_process)
    w, old = tiny.copy(tmp_path / "w"), tiny_run.scores(tiny.workdir)
    shutil.rmtree(w / "metrics")
    assert (
        cli.main(tiny.argv("run", w, "--config.attack.references=6", "--config.train.workers=1"))
        == 0
    )
    assert tiny_run.models_counted(capsys.readouterr().err) == [8, 6, 2]
    assert tiny_run.events(w, "model_trained") == ["reference-04", "reference-05"]
    assert tiny_run.events(w, "model_scored") == ["reference-04", "reference-05"]
    new = tiny_run.scores(w)
    assert {k: new[k] for k in old} == old
    assert len(new) == len(old) + 4
    tables = tiny_run.recipe_of(w) / "tables"
    assert pd.read_csv(tables / "attacks.csv").references.max() == 6


def test_config_is_optional_once_the_workdir_has_one(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    monkeypatch.setattr(supervisor, "run", run_in_process)
    w = tiny.copy(tmp_path / "w")
    for verb in ("corpus", "train", "score", "attack", "report", "status", "plan"):
        assert cli.main([verb, f"--workdir={w}"]) == 0, verb
    assert len(tiny_run.events(w, "model_trained")) == 6
    assert cli.main(["run", f"--workdir={w}", "--config.attack.replicas=3"]) == 0
    assert len(tiny_run.events(w, "model_trained")) == 7
    assert tiny_run.scores(tiny.workdir).items() <= tiny_run.scores(w).items()
    facts = json.loads((tiny_run.recipe_of(w) / "tables" / "flips.json").read_text())
    assert (facts["replicas"], facts["references"]) == (3, 4)
    capsys.readouterr()
    [line] = refused(["run", f"--workdir={w}", "--config.name=other"], capsys)
    assert re.match(r"--config\.name: .*\bwithout --config\b", line)
    first, *changes, _ = refused(["run", f"--workdir={w}", "--config.model.layers=2"], capsys)
    assert first.startswith(f"--workdir={w}: its recipe tiny ")
    assert changes == ["  model.layers: 1 -> 2"]


def test_a_failed_attack_leaves_the_settings_of_the_workdir(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, file = tiny.copy(tmp_path / "w"), tmp_path / "mine.py"
    config_file = tiny_run.recipe_of(w) / "config.json"
    stored = json.loads(config_file.read_text())
    file.write_text("def mine(block):\n    return block.loss_TxC / block.no_such_thing\n")
    flag = f"--config.attack.attacks=lira_online,loss,{file}:mine"
    for verb in ("attack", "run"):
        [failed, kept] = refused([verb, f"--workdir={w}", flag], capsys)[-2:]
        assert f"{file}:mine: fails with AttributeError" in failed
        assert " attack.attacks, " in kept
        assert json.loads(config_file.read_text()) == stored
    assert cli.main(["attack", f"--workdir={w}"]) == 0
    file.write_text("def mine(block):\n    return -block.loss_TxC\n")
    user_code._load_module.cache_clear()
    registry._of_user.cache_clear()
    assert cli.main(["attack", f"--workdir={w}", flag]) == 0
    assert json.loads(config_file.read_text())["config"]["attack"]["attacks"][-1] == f"{file}:mine"


def test_a_failed_report_leaves_the_settings_of_the_workdir(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    w = tiny.copy(tmp_path / "w")
    config_file = tiny_run.recipe_of(w) / "config.json"
    stored = json.loads(config_file.read_text())

    def write_page(*_: object) -> None:
        raise UserError("no numbers")

    with monkeypatch.context() as patch:
        patch.setattr(page, "write_page", write_page)
        assert cli.main(["report", f"--workdir={w}", "--config.attack.headline=rmia"]) == 2
    assert json.loads(config_file.read_text()) == stored
    assert cli.main(["report", f"--workdir={w}", "--config.attack.headline=rmia"]) == 0
    assert json.loads(config_file.read_text())["config"]["attack"]["headline"] == "rmia"


@pytest.mark.slow
def test_a_moved_workdir_of_links_needs_no_texts(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "run", run_in_process)
    w, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    shutil.copytree(tiny.workdir, w, copy_function=shutil.copyfile)  # with new times
    for part in ("recipes/tiny/checkpoints", "populations", "recipes/tiny"):
        moved = elsewhere / f"{part.replace('/', '-')}-moved"
        elsewhere.mkdir(exist_ok=True)
        (w / part).rename(moved)
        (w / part).symlink_to(moved)
    (tmp_path / "linked").symlink_to(w)
    monkeypatch.chdir(tmp_path)
    tables = tiny_run.content(tiny_run.recipe_of(tiny.workdir) / "tables")
    texts = tiny.folder / "texts"
    hidden = texts.rename(tiny.folder / "hidden")
    try:
        for verb in ("run", "attack", "report", "status", "plan"):
            assert cli.main([verb, "--workdir=linked"]) == 0, verb
        assert tiny_run.content(w / "recipes" / "tiny" / "tables") == tables
        assert len(tiny_run.events(w, "model_trained")) == 6
        assert cli.main(["train", "--workdir=linked", "--config.attack.references=6"]) == 0
    finally:
        hidden.rename(texts)
    assert len(tiny_run.events(w, "model_trained")) == 8
    assert len([*(elsewhere / "recipes-tiny-checkpoints-moved").iterdir()]) == 8
    recipe = lm_mia.open("linked").recipes["tiny"]
    assert (recipe.scores().sizes["model"], recipe.table("attacks").empty) == (8, False)


FIGURE = """
import pandas as pd
from analysis import plotting
from analysis.experiment import Drawing, Experiment
def draw(recipes):
    return Drawing(pd.DataFrame({"x": [1]}), plotting.new_figure())
EXPERIMENT = Experiment(title="Mine", statements=(), draw=draw)
"""


@pytest.mark.slow
def test_a_figure_never_makes_a_workdir_unusable(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, file = tiny.copy(tmp_path / "w"), tmp_path / "recipe_mine.py"
    file.write_text(FIGURE)
    assert cli.main(["report", f"--workdir={w}", f"--config.figures={file}"]) == 0
    (w / "figures" / "recipe_mine.png").write_bytes(b"")  # the tests draw no figures

    def run(verb: str, *flags: str) -> list[str]:
        """Returns the lines about the figure."""
        capsys.readouterr()
        assert cli.main([verb, f"--workdir={w}", *flags]) == 0, verb
        return [line for line in capsys.readouterr().err.splitlines() if "recipe_mine" in line]

    def listed() -> list[str]:
        return json.loads((w / "config.json").read_text())["figures"]

    for verb in ("attack", "status", "plan"):
        assert run(verb) == []
    for contents, text in (("1 / 0", "ZeroDivisionError"), ("exit(3)", "SystemExit")):
        file.write_text(contents)
        [line] = refused(["attack", f"--workdir={w}"], capsys)
        assert text in line
        assert line.endswith("--config.figures=-recipe_mine.py")
    file.unlink()
    for verb in ("attack", "run"):
        [line] = run(verb)
        assert line.startswith(f"figures={str(file)!r}: left out")
        assert line.endswith("--config.figures=-recipe_mine.py")
    for verb in ("status", "plan", "score"):
        assert run(verb) == []
    assert listed() == [str(file)]
    assert list(lm_mia.open(w).recipes) == ["tiny"]
    [line] = refused(["attack", f"--workdir={w}", f"--config.figures={file}"], capsys)
    assert line.startswith(f"figures={str(file)!r}: ")
    assert run("attack", "--config.figures=-recipe_mine.py") == []
    assert listed() == []
    assert run("attack") == []


OWN_STUDY = """
from analysis.experiment import Drawing, Experiment
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.spec import Study, StudyNeed

def compute(view, write, *, alpha):
    write("mine.csv", view.table("samples.parquet")[["id"]].assign(share=1 / 0))

TABLE = Table("mine.csv", "Each row is a sample.", {"id, share": Column("none", "a number")}, key=("id",))
STUDY = Study("mine", compute, (TABLE,), reads=("samples.parquet",))
EXPERIMENT = Experiment(title="Mine", draw=lambda _: None, reads=(StudyNeed(("*",), STUDY),))
"""


def test_a_study_that_fails_is_one_line(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, file = tiny.copy(tmp_path / "w"), tmp_path / "mine.py"
    tables = tiny_run.recipe_of(w) / "tables"
    before = {path.name for path in tables.iterdir()}
    shutil.rmtree(tables)
    file.write_text(OWN_STUDY)
    [*_, line] = refused(["attack", f"--workdir={w}", f"--config.figures={file}"], capsys)
    assert line.startswith("study mine: fails with ZeroDivisionError: ")
    assert f"({file}, line 7)" in line
    assert {path.name for path in tables.iterdir()} == before
    file.write_text(OWN_STUDY.replace("1 / 0", "alpha").replace("id, share", "id, shares"))
    [*_, line] = refused(["attack", f"--workdir={w}"], capsys)
    assert re.search(r"undeclared columns \(share\).* declared columns \(shares\)", line)
    file.write_text(OWN_STUDY.replace("1 / 0", "alpha"))
    assert cli.main(["attack", f"--workdir={w}"]) == 0
    assert {path.name for path in tables.iterdir()} == before | {"mine.csv"}


def test_figures_with_the_name_of_another_file_are_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    before = tiny_run.content(w)
    for name in ("tiny-audit", "tiny-training", "comparison", "claims"):
        file = tmp_path / f"{name}.py"
        file.write_text(FIGURE)
        [line] = refused(["run", f"--workdir={w}", f"--config.figures={file}"], capsys)
        assert line.startswith(f"figures={str(file)!r}: ")
    assert tiny_run.content(w) == before


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        # mistakes in the config, those that the corpus reveals, and those in the command
        (["--config.model.heads=3"], "model.heads=3: must divide model.width=8; try --config.model.heads=2"),
        (
            ["--config.population.samples=64"],
            "population.samples=64: the corpus has only 40 documents; use at most 40",
        ),
        (
            ["--config.tokenizer.vocab_size=9000"],
            "tokenizer.vocab_size=9000: the corpus supports at most 148 pieces; use at most 148",
        ),
        (["--config.corpus.path=/nowhere"], "corpus.path='/nowhere': no such file or folder; check the spelling"),
        (
            ["--config.tokenizer.path=/nowhere"],
            "tokenizer.path='/nowhere': cannot be read (No such file or directory); give a SentencePiece .model "
            "file or a tokenizer.json, or leave it empty to train one",
        ),
        (
            ["--config.figures=strongmia_fig05_instable"],
            "figures='strongmia_fig05_instable': there is no such figure; did you mean strongmia_fig05_instability?",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_invalid_input_is_one_line_and_writes_nothing(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], line: str
):  # fmt: skip
    assert refused(tiny.argv("run", tmp_path / "w", *flags), capsys) == [line]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_text_column_is_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    flags = ["--config.corpus.source=jsonl", f"--config.corpus.path={tmp_path / 'a.jsonl'}"]
    [line] = refused(tiny.argv("run", tmp_path / "w", *flags), capsys)
    assert line.startswith("corpus.column='text': all 2 ")
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], r"lm-mia: .*\bVERB; see lm-mia --help"),
        (
            ["run"],
            r"--workdir: missing; add --workdir=runs/quickstart, and --config=quickstart .*",
        ),
        (["run", "--config=", "--workdir=w"], r"--config=: empty; .*"),
    ],
)
def test_missing_arguments_are_named(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
):
    [line] = refused(argv, capsys)
    assert re.fullmatch(message, line)


def test_unknown_verbs_are_refused(capsys: pytest.CaptureFixture[str]):
    flags = "--config=quickstart", "--workdir=w"
    [line] = refused(["rnu", *flags], capsys)
    assert line.startswith("rnu: ")
    assert "run --config=quickstart --workdir=w`" in line
    for word in "zzz", "--config=quickstart":
        [line] = refused([word], capsys)
        assert "see lm-mia --help" in line


def test_rm_deletes_only_unused_results(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    before = {k: v for k, v in tiny_run.content(w).items() if ".lock" not in k}
    (tiny_run.recipe_of(w) / "pieces" / "rates-0.parquet").write_text("x" * 2000)
    assert cli.main(["rm", "unused", f"--workdir={w}"]) == 0
    assert re.match(r"tiny: deleted 1 result \(2 kB\)", capsys.readouterr().out)
    after = tiny_run.content(w)
    assert {k: v for k, v in after.items() if ".lock" not in k} == before
    [line] = refused(["rm", "everything", f"--workdir={w}"], capsys)
    assert re.match(r"everything: .* unused, recipe or checkpoints; run ", line)
    [line] = refused(["rm", "recipe", f"--workdir={w}"], capsys)
    assert line.startswith("NAME: missing")
    [line] = refused(["rm", "recipe", "tiny", "--config.name=x", f"--workdir={w}"], capsys)
    assert "reads no config" in line


def test_rm_deletes_a_recipe(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    [line] = refused(["rm", "recipe", "tinny", f"--workdir={w}"], capsys)
    assert re.fullmatch(rf"tinny: .*--workdir={w}; .*\btiny", line)
    assert cli.main(["rm", "recipe", "tiny", f"--workdir={w}"]) == 0
    assert capsys.readouterr().out.startswith("tiny: deleted (")
    assert [*(w / "recipes").iterdir()] == []
    assert [path for path in (w / "populations").iterdir() if path.is_dir()] == []
    assert not list((w / "figures").glob("tiny-*"))
    assert json.loads((w / "config.json").read_text())["recipes"] == []


def test_rm_deletes_checkpoints_and_their_links(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, elsewhere = tiny.copy(tmp_path / "w"), tmp_path / "disk"
    checkpoints = tiny_run.recipe_of(w) / "checkpoints"
    shutil.move(checkpoints, elsewhere)
    checkpoints.symlink_to(elsewhere)
    command = ["rm", "checkpoints", "tiny", f"--workdir={w}"]
    [line] = refused(command, capsys)  # there is nobody to ask
    assert "--linked=delete" in line
    assert cli.main([*command, "--linked=keep"]) == 0
    assert f"kept: {elsewhere}, to which {checkpoints} pointed" in capsys.readouterr().out
    assert elsewhere.is_dir()
    assert not checkpoints.is_symlink()
    checkpoints.symlink_to(elsewhere)
    assert cli.main([*command, "--linked=delete"]) == 0
    assert not elsewhere.exists()
    assert not checkpoints.is_symlink()
    capsys.readouterr()
    [line] = refused(command, capsys)
    assert "no checkpoints" in line
    capsys.readouterr()
    assert cli.main(["attack", f"--workdir={w}"]) == 0  # scores stay


def test_rm_keeps_checkpoints_of_models_without_scores(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    next(tiny_run.recipe_of(w).glob("scores.zarr/loss/c/1/*")).unlink()
    [line] = refused(["rm", "checkpoints", "tiny", f"--workdir={w}"], capsys)
    assert "1 model (reference-01) not " in line
    assert (tiny_run.recipe_of(w) / "checkpoints").is_dir()


def test_report_draws_a_figure_again(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w, figure = tiny.copy(tmp_path / "w"), "mace_fig06_dp_bound"
    [line] = refused(["report", f"--workdir={w}", "--figure=mine"], capsys)
    assert line.startswith("--figure=mine: ")
    redrawn = []

    def write_page(workdir: Path, *arguments: Any) -> None:
        assert workdir == w
        redrawn.append(arguments[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "write_page", write_page)
        assert cli.main(["report", f"--workdir={w}", f"--config.figures={figure}"]) == 0
        assert cli.main(["report", f"--workdir={w}", f"--figure={figure}"]) == 0
    assert redrawn == [set(), {figure}]


@pytest.mark.parametrize("verb", ["train", "score", "attack", "report", "status"])
def test_later_stages_need_a_population(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
):
    w = tmp_path / "w"
    population = w / "populations" / tiny.population_name
    flags = " ".join(tiny.argv("", w)[1:])
    line = f"{population}: no population found; run `lm-mia corpus {flags}` first"
    if verb == "status":
        line = (
            f"--workdir={w}: no such folder; check the spelling, or start with `lm-mia run {flags}`"
        )
    assert refused(tiny.argv(verb, w), capsys) == [line]
    assert list(tmp_path.iterdir()) == []


def without_pieces(workdir: Path) -> dict[str, bytes]:
    """Returns the content of a workdir without results of attacks, which any command may add."""
    content = tiny_run.content(workdir)
    return {name: data for name, data in content.items() if "/pieces/" not in name}


@pytest.mark.parametrize("damage", ["config", "tokens", "shard", "rows"])
def test_damaged_or_different_workdirs_are_refused(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
):
    w = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(w)
    shard = recipe / "scores.zarr" / "loss" / "c" / "3" / "0"
    tokens = tiny_run.population_of(w) / "tokens.npy"
    verb, flags, lines = "run", [], []
    if damage == "config":
        flags = ["--config.model.layers=2", "--config.train.epochs=3", "--config.attack.alpha=0.1"]
        lines = [
            f"--workdir={w}: its recipe tiny has a different config:",
            "  model.layers: 1 -> 2",
            "  train.epochs: 1 -> 3",
            "  choose another --workdir or name, or restore these fields",
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
        shutil.rmtree(recipe / "pieces")  # else no scores are read
        lines = [f"{shard}: corrupt score shard; run `lm-mia score --repair` to compute it again"]
    else:
        verb = "attack"
        shard.unlink()
        lines = [
            f"{recipe}/scores.zarr: 3 of 4 references and 2 of 2 replicas are present, but an attack needs at "
            "least 4 and 2; run `lm-mia run` first"
        ]
    before = without_pieces(w)
    messages = refused(tiny.argv(verb, w, *flags), capsys)
    lines = [with_flags(line, tiny.argv(verb, w, *flags)) for line in lines]
    assert [
        line
        for line in messages
        if not line.startswith(("corpus:", "draw:", "vocabulary:", "population:", "models:"))
    ] == lines
    after = without_pieces(w)
    # Each command writes these.
    for name in ("recipes/tiny/config.json", "recipes/tiny/tables/models.csv"):
        del before[name], after[name]
    before, after = (
        {name: data for name, data in files.items() if not name.startswith("metrics/")}
        for files in (before, after)
    )
    assert after == before


def test_a_deleted_corrupt_shard_is_rewritten(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    w = tiny.copy(tmp_path / "w")
    shard = tiny_run.recipe_of(w) / "scores.zarr" / "loss" / "c" / "3" / "0"
    shard.write_bytes(b"x" * shard.stat().st_size)
    shutil.rmtree(tiny_run.recipe_of(w) / "pieces")
    [*_, line] = refused(tiny.argv("run", w), capsys)
    Path(line.partition(":")[0]).unlink()

    monkeypatch.setattr(supervisor, "run", run_in_process)
    assert cli.main(tiny.argv("run", w)) == 0
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)
    assert len(tiny_run.events(w, "model_trained")) == 6  # by the first run only


def test_a_diverged_model_is_reported_until_its_record_is_deleted(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    w, init_state = tiny.copy(tmp_path / "w", models=False), checkpoint.init_state

    def with_nan(init_seed: int, *args: Any) -> checkpoint.TrainState:
        state = init_state(init_seed, *args)
        if init_seed == 1:
            scale = state.params["ln_out"]["scale"]
            state.params["ln_out"]["scale"] = scale.at[0].set(float("nan"))
        return state

    monkeypatch.setattr(supervisor, "run", run_in_process)
    line = "1 of 6 models diverged (reference-01): see {}; lower optimizer.peak_learning_rate in a new "
    line += "workdir, or delete the files of that folder to try again"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "init_state", with_nan)
        messages = refused(tiny.argv("run", w), capsys)
        recipe = tiny_run.recipe_of(w)
        assert messages[-1] == line.format(recipe / "diverged")
        warning = "model reference-01: loss=nan at step 0; lower optimizer.peak_learning_rate in a new workdir"
        assert any(message.startswith(warning) for message in messages)
        assert len(tiny_run.events(w, "model_scored")) == 5
        [logged] = tiny_run.logged(w, "model_diverged")
        evidence = json.loads((recipe / "diverged" / "reference-01.json").read_text())
        assert evidence.items() < logged.items()
        patch.setattr(loop, "train_model", pytest.fail)
        for verb in ("run", "train", "score"):
            assert refused(tiny.argv(verb, w), capsys)[-1] == messages[-1]
    (recipe / "diverged" / "reference-01.json").unlink()
    assert cli.main(tiny.argv("run", w)) == 0
    assert tiny_run.scores(w) == tiny_run.scores(tiny.workdir)


def test_report_computes_what_other_settings_need(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    w = tiny.copy(tmp_path / "w")
    before = {*(tiny_run.recipe_of(w) / "pieces").iterdir()}
    assert cli.main(tiny.argv("report", w, "--config.attack.alpha=0.2")) == 0
    assert capsys.readouterr().out.startswith("tiny: 16 members ")
    assert before < {*(tiny_run.recipe_of(w) / "pieces").iterdir()}


def test_fields_takes_no_flags(capsys: pytest.CaptureFixture[str]):
    [line] = refused(["fields", "--config=quickstart"], capsys)
    assert re.match(r"--config=quickstart: `lm-mia fields` .*leave it out$", line)


def test_help_version_and_fields(capsys: pytest.CaptureFixture[str]):
    for argv, words in (
        (["--help"], ["run", "status", "launch", "lm-mia VERB --help"]),
        (["--version"], [f"lm-mia {lm_mia.__version__}\n"]),
        (["run", "--help"], ["--config", "--workdir", "lm-mia fields"]),
        (["fields"], ["--config.model.layers", "--config.attack.fprs", "docstrings"]),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(argv)
        out = capsys.readouterr().out
        assert (ended.value.code, [word for word in words if word not in out]) == (0, [])


def test_ctrl_c_is_reported_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", stopped)
    file = Path(cli.__file__).parent.parent / "configs" / "quickstart.py"
    assert cli.main(["run", f"--config={file}", "--workdir=/nowhere"]) == 130
    assert re.fullmatch(r"stopped; [^\n]*same command[^\n]*\n", capsys.readouterr().err)
