"""The commands and the code of the tutorial and of the how-to guides run as they are written, with smaller models.

A page is a small program: its ```python blocks share their variables, a block with a title is written to that file, and
each line of a ```bash block is a command. Pages marked ``external: true`` need a cluster, an accelerator or a large
dataset; of these, only the block with the title "Try it here" runs.
"""

import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import griffe
import pandas as pd
import pytest
import tiny_checkpoint
import tiny_run
from slow_case import slow_case

from analysis import page, scaling
from lm_mia import cli, stats
from lm_mia.run import supervisor

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHANGES_THE_SOURCE = "new-statistic.md"  # tests/score/scorer_new_statistic_test.py applies it to a copy of the package
HOW_TO = sorted(
    f"how-to/{file.name}"
    for file in (DOCS / "how-to").glob("*.md")
    if file.name != CHANGES_THE_SOURCE
)
SLOW = {
    f"how-to/{name}.md"
    for name in (
        "attacks",
        "change-architecture",
        "change-optimizer",
        "compare-attack",
        "continue",
        "fine-tune-checkpoint",  # as finetune_test
        "sweeps",
    )
}
PAGES = [
    slow_case(page) if page in SLOW else page
    for page in ("tutorial.md", "audit-your-models.md", *HOW_TO)
]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SMALL = {
    "corpus.source": "text",
    "population.samples": "96",
    "tokenizer.vocab-size": "64",
    "model.layers": "1",
    "model.width": "16",
    "model.heads": "1",
    "train.epochs": "1",
    "train.workers": "1",
    "optimizer.warmup-steps": "1",
    "attack.attacks": "lira_online,stacked,loss",
    "attack.references": "8",
    "attack.replicas": "9",
    "attack.resample-references": "0",
    "attack.bootstraps": "20",
    "extract.samples": "10",
}
"""Fields of the quickstart, made small; with three kinds of attacks, which have all tables and figures."""

OF_OWN = (
    "model.",
    "train.",
    "optimizer.",
    "attack.attacks",
    "attack.resample",
    "attack.bootstraps",
)
"""The settings among them that ``own:`` takes over from the quickstart."""

WITH_REPORT = {"tutorial.md", "audit-your-models.md", "how-to/experiment.md"}
"""Pages whose last command with a report on each workdir draws it, which takes seconds; the other pages are about other
things."""

WORKDIRS_OF_QUICKSTART = ("runs/quickstart", "runs/figure")
"""Workdirs that pages create by ``lm-mia run --config=quickstart``; the models are those of one run."""

FEW_MODELS = {
    "attack.references": "4",
    "attack.replicas": "2",
    "attack.attacks": "lira_online",
    "attack.bootstraps": "0",
    "attack.leave-one-out": "False",
    "extract.samples": "0",
}
"""Fields of commands that create other workdirs, which are about how models are made."""

WITH_EXTRACTION = "alibi.py:Alibi"
"""A kind of models which generate text, in one of these workdirs."""

LAST_RUN_ALONE = {"how-to/change-optimizer.md", "how-to/change-architecture.md"}
"""Pages with several runs that differ in one setting: the last one, of a user's own code, is made. The others are
planned, which checks their settings and the shapes of their models and optimizers; `optimizer_names_test` and
`kinds_test` train and score such models."""

pytestmark = pytest.mark.process


def blocks(name: str) -> list[tuple[str, str, str]]:
    """Returns (language, title, code) of each block of a page that must run."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text.count("```") % 2 == 0, f"{name}: a block is not closed"
    blocks_of_page = [(match[1], match[2] or "", match[3]) for match in BLOCK.finditer(text)]
    if text.startswith("---\nexternal: true\n---"):
        return [block for block in blocks_of_page if block[1] == "Try it here"]
    return [block for block in blocks_of_page if block[0] in ("python", "bash")]


def flags(texts: Path, command: list[str]) -> list[str]:
    """Returns flags that make a command on the quickstart, or on texts or a sweep of it, small; its own flags win."""
    is_finetune = any(word.startswith("--config=finetune:") for word in command)
    is_own = is_finetune or any(word.startswith("--config=own:") for word in command)
    if not is_own and not {"--config=quickstart", "--config=sweep.py"} & {*command}:
        return []
    settings = {**SMALL, "corpus.path": str(texts)}
    if is_own:  # whose other settings follow from the texts
        settings = {name: SMALL[name] for name in SMALL if name.startswith(OF_OWN)}
    if (
        is_finetune
    ):  # and the model is that of the checkpoint; compiling its generation of text takes seconds
        settings = {n: value for n, value in settings.items() if not n.startswith("model.")}
        settings |= {"extract.samples": "0"}
    given = {word.split("=")[0].replace("_", "-") for word in command}
    if not is_own and not {f"--workdir={w}" for w in WORKDIRS_OF_QUICKSTART} & {*command}:
        settings |= FEW_MODELS
    if f"--config.model.kind={WITH_EXTRACTION}" in command:
        settings |= {"extract.samples": SMALL["extract.samples"]}
    if "--config.corpus.path" in given:
        del settings["corpus.source"]
    named = {f"--config.{name}": value for name, value in settings.items()}
    return [f"{flag}={value}" for flag, value in named.items() if flag not in given]


def commands(code: str) -> list[str]:
    """Returns the command lines of a block, with fewer models."""
    code = code.replace("\\\n", "").replace("references=48", "references=10")
    few = "references=4 --config.attack.replicas=2"
    return code.replace("references=8 --config.attack.replicas=8", few).splitlines()


def run(line: str, texts: Path) -> None:
    """Runs one command line in this process; fails unless it succeeds."""
    program, *argv = shlex.split(line, comments=True)
    if program == "lm-mia":
        assert cli.main([*argv, *flags(texts, argv)]) == 0, line
        return
    assert (program, argv[0]) == ("python", "-m"), line
    main = {"analysis": page.main, "analysis.scaling": scaling.main}[argv[1]]
    assert main(argv[2:]) == 0, line


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of 160 documents, each longer than a sample."""
    folder = tmp_path_factory.mktemp("texts")
    words = [f"{a}{b}" for a in ("ba", "ne", "so", "tu") for b in ("lo", "mi", "ra", "ke", "pun")]
    for i in range(160):
        text = " ".join(random.Random(i).choices(words, k=90))
        (folder / f"{i:03d}.txt").write_text(f"Document {i}. {text}")
    return folder


@pytest.fixture(scope="module")
def quickstart(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the workdir that the first command of most pages creates."""
    folder = tmp_path_factory.mktemp("quickstart") / "workdir"
    argv = ["run", "--config=quickstart"]
    small = flags(texts, [*argv, f"--workdir={WORKDIRS_OF_QUICKSTART[0]}"])
    with tiny_run.on_cpu() as patch:
        patch.setattr(supervisor, "run", tiny_run.run_in_process)
        assert cli.main([*argv, f"--workdir={folder}", *small]) == 0
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs(
    name: str,
    quickstart: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    steps = blocks(name)
    assert steps, f"{name}: nothing runs; is a block marked as ```text by mistake?"
    for folder in WORKDIRS_OF_QUICKSTART:
        if any(f"--workdir={folder}" in code for _, _, code in steps):
            shutil.copytree(quickstart, tmp_path / folder)
    if any("finetune:checkpoints/small" in code for _, _, code in steps):
        tiny_checkpoint.save(tmp_path / "checkpoints" / "small")
    lines = [line for language, _, code in steps if language == "bash" for line in commands(code)]
    with_report = [line for line in lines if re.match("lm-mia (run|report) ", line)]
    last = {line.partition("--workdir=")[2].split()[0]: line for line in with_report}
    drawn = [*last.values()] if name in WITH_REPORT else []
    planned = with_report[:-1] if name in LAST_RUN_ALONE else []
    write_page = page.write_page
    variables: dict[str, Any] = {}
    for language, title, code in steps:
        if title.endswith(".py"):
            (tmp_path / title).write_text(code)
        elif language == "python":
            exec(compile(code, name, "exec"), variables)
        else:
            for line in commands(code.replace("$PWD", str(tmp_path))):
                with tiny_run.on_cpu() as patch:
                    if line in drawn:
                        patch.setattr(page, "write_page", write_page)
                    # Worker processes would import and compile everything again; `stopped_test` has them.
                    patch.setattr(supervisor, "run", tiny_run.run_in_process)
                    run(
                        line.replace("lm-mia run", "lm-mia plan") if line in planned else line,
                        texts,
                    )
    assert "not drawn" not in capsys.readouterr().err
    if name == "how-to/import-losses.md":
        assert pd.read_csv(tmp_path / "audit" / "summary.csv")["attack"][0] == "base_calibrated"
    if name == "how-to/experiment.md":
        claims = pd.read_csv(tmp_path / "runs" / "quickstart" / "tables" / "claims.csv")
        assert claims["figure"].tolist() == ["flips"]


def test_every_page_is_in_the_navigation():
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for file in DOCS.rglob("*.md"):
        assert f": {file.relative_to(DOCS)}\n" in navigation, file


def test_pages_of_results_begin_with_their_scale_and_commit():
    for file in (DOCS / "results").glob("*.md"):
        _, first, *_ = file.read_text(encoding="utf-8").split("\n\n")
        assert re.search(r"(commits? (up to )?[0-9a-f]{7,8}|release \d+\.\d+\.\d+)", first), file


def test_every_statistic_is_in_the_reference():
    page = (DOCS / "reference" / "stats.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: lm_mia\.stats\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(stats.__all__)


def test_examples_of_docstrings_are_shown_as_code():
    extensions = griffe.load_extensions(str(DOCS / "docstring_examples.py"))
    module = griffe.load("lm_mia.stats.roc", search_paths=[str(DOCS.parent)], extensions=extensions)
    docstring = module["threshold_at_fpr"].docstring
    kinds = {section.kind for section in docstring.parse("google")}
    assert griffe.DocstringSectionKind.examples in kinds
