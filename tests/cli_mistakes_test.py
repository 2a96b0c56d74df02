"""Mistakes at the command line: each is one line that names what is wrong, with exit code 2 and without a traceback."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_config import FILE

from lm_mia import cli
from lm_mia.run.sweep import claim_folders, read_sweep

CONFIGS = {
    "tiny.py": FILE,
    "binary.py": "\x00\x01\x02",
    "syntax.py": "def get_config(:\n    pass\n",
    "nothing.py": "x = 3\n",
    "raises.py": "def get_config():\n    return 1 / 0\n",
    "returns.py": "def get_config():\n    return {'model': 3}\n",
    "exits.py": "import sys\nsys.exit(1)\n",
    "imports.py": "import no_such_package\n",
    "keyword.py": "from lm_mia.config import Config\ndef get_config():\n    return Config(modle=3)\n",
    "typed.py": "from lm_mia.config import Config\ndef get_config():\n    return Config(name=3)\n",
    "entries.py": FILE + "\ndef sweep():\n    yield {'model.layer': 2}\n    yield 3\n",
}
"""The names of files with configs -> their content; only the first is correct."""
TEXTS = {
    "file.txt": "some notes\n",
    "losses.csv": "loss_a,member_a\n" + "1.5,1\n2.5,0\n" * 8,
    "scores.csv": "score,member\n" + "1.5,1\n0.5,0\n" * 8,
    "words.csv": "score,member\nhigh,1\nlow,0\n",
    "others.csv": "a,b\n1,2\n",
    "empty.csv": "",
    "texts.jsonl": '{"text": "some words of a text"}\n',
    "broken.jsonl": '{"text": "some words\n',
}
NEW = "--workdir=new"
RUN = f"run --config=tiny.py {NEW}"
"""A correct command, to which a mistake is added."""

MISTAKES: list[tuple[str, tuple[str, ...]]] = [
    # the verb
    ("rnu --config=quickstart --workdir=new", ("rnu",)),
    ("--config=quickstart run", ("verb",)),
    ("Run --config=quickstart --workdir=new", ("Run",)),
    ("fields --json", ("--json",)),
    # flags
    (f"run --confg=quickstart {NEW}", ("--confg",)),
    (f"run quickstart {NEW}", ("quickstart",)),
    (f"run config=tiny.py {NEW}", ("config=tiny.py",)),
    ("run --config=quickstart", ("--workdir",)),
    ("run --config=quickstart --workdir=", ("--workdir",)),
    ("run --config=quickstart --workdir", ("--workdir",)),
    ("run --config= --workdir=new", ("--config=",)),
    (f"{RUN} --workdir=other", ("--workdir",)),
    (f"{RUN} --config=quickstart", ("--config",)),
    (f"{RUN} --repair", ("--repair",)),
    (f"{RUN} --time=4:00:00", ("--time",)),
    (f"{RUN} -v", ("-v",)),
    # the workdir
    ("run --workdir=new", ("new",)),
    ("run --workdir=folder", ("folder",)),
    ("run --workdir=/etc", ("/etc",)),
    ("run --config=tiny.py --workdir=file.txt", ("file.txt",)),
    ("run --config=tiny.py --workdir=file.txt/new", ("file.txt",)),
    ("run --workdir=w/recipes/tiny", ("--workdir=w",)),
    (f"run --config=tiny.py --workdir={'x' * 300}", ("x" * 300,)),
    # the config
    (f"run --config=quickstrat {NEW}", ("quickstrat",)),
    (f"run --config=quickstart.yaml {NEW}", ("quickstart.yaml",)),
    (f"run --config=missing.py {NEW}", ("missing.py",)),
    (f"run --config=folder {NEW}", ("folder",)),
    (f"run --config=folder.py {NEW}", ("folder.py",)),
    (f"run --config=file.txt {NEW}", ("file.txt",)),
    *(
        (f"run --config={name} {NEW}", (name,))
        for name in CONFIGS
        if name not in ("tiny.py", "entries.py")
    ),
    (f"run --config=entries.py {NEW}", ("model.layer", "3")),
    (f"run --config=quickstart:gpu {NEW}", ("gpu",)),
    (f"run --config=strongmia:fig99,cpu {NEW}", ("fig99",)),
    (f"run --config=strongmia:fig05 {NEW}", ("fig05",)),
    (f"run --config=strongmia,cpu {NEW}", ("strongmia:cpu",)),
    # fields
    (f"{RUN} --config.model.layer=3", ("model.layer",)),
    (f"{RUN} --config.layers=3", ("--config.model.layers",)),
    (f"{RUN} --model.layers=3", ("--model.layers",)),
    (f"{RUN} --config.model.layers=three", ("three",)),
    (f"{RUN} --config.model.layers=-1", ("model.layers=-1",)),
    (f"{RUN} --config.model.layers=99999999999999999999", ("model.layers",)),
    (f"{RUN} --config.model.layers=1.5", ("1.5",)),
    (f"{RUN} --config.model.layers 3 4", ("model.layers",)),
    (f"{RUN} --config.model.layers", ("model.layers",)),
    (f"{RUN} --config.model.layers=", ("model.layers",)),
    (f"{RUN} --config.model.layers=2 --config.model.layers=3", ("--config.model.layers",)),
    (f"{RUN} --config.model.layers=2 --config.model.width=9", ("model.heads",)),
    (f"{RUN} --config.optimizer.peak_learning_rate=nan", ("nan",)),
    (f"{RUN} --config.optimizer.peak_learning_rate=inf", ("inf",)),
    (f"{RUN} --config.population.samples=1e6", ("1e6",)),
    (f"{RUN} --config.train.epochs=0", ("train.epochs",)),
    (f"{RUN} --config.train.subset=half", ("half",)),
    (f"{RUN} --config.train.trackers=tensorbord", ("tensorbord",)),
    (f"{RUN} --config.score.statistics=min_l", ("min_l",)),
    (f"{RUN} --config.attack.fprs=0.1,0.x", ("0.x",)),
    (f"{RUN} --config.attack.fprs=2", ("attack.fprs",)),
    (f"{RUN} --config.attack.fprs=0.2, 0.5", ("attack.fprs",)),
    (f"{RUN} --config.optimizer.peak_learning_rate=1e400", ("optimizer.peak_learning_rate",)),
    (f"{RUN} --config.attack.leave_one_out=maybe", ("maybe",)),
    (f"{RUN} --config.attack.references=-4", ("attack.references=-4",)),
    (f"{RUN} --config.attack.attacks=lirra", ("lirra",)),
    (f"{RUN} --config.attack.attacks=missing.py:mine", ("missing.py",)),
    (f"{RUN} --config.figures=fig99", ("fig99",)),
    (f"{RUN} --config.figures=missing.py", ("missing.py",)),
    (f"{RUN} --config.name=../x", ("../x",)),
    (f"{RUN} --config.corpus.source=text", ("corpus.path",)),
    (f"{RUN} --config.corpus.source=jsonl --config.corpus.path=broken.jsonl", ("broken.jsonl",)),
    (
        f"{RUN} --config.model.layers=x --config.train.epoch=3 --config.attack.fprs=nan",
        ("model.layers", "train.epoch", "attack.fprs"),
    ),
    # other verbs
    (f"corpus --config=tiny.py {NEW} --from-hf-shards=x.json.gz", ("--from-hf-shards",)),
    (f"train {NEW}", ("new",)),
    (f"score --config=tiny.py {NEW}", ("lm-mia corpus",)),
    ("attack --workdir=w", ("lm-mia corpus",)),
    (f"extract --config=tiny.py {NEW} --config.extract.samples=0", ("extract.samples",)),
    ("report --workdir=w --figure=fig99", ("fig99",)),
    ("report --workdir=w --figure=", ("--figure=",)),
    ("status", ("--config",)),
    ("status --workdir=new", ("new",)),
    ("status --workdir=w --watch --json", ("--watch",)),
    ("plan", ("--config",)),
    ("plan --config=tiny.py --device=h1000", ("h1000",)),
    ("plan --config=tiny.py --device=h100 --mfu=2", ("--mfu=2",)),
    ("plan --config=tiny.py --device=h100 --mfu=nan", ("--mfu=nan",)),
    ("plan --config=tiny.py --tokens-per-sample=many", ("--tokens-per-sample",)),
    ("plan --config=tiny.py --tokens-per-sample=0", ("--tokens-per-sample=0",)),
    ("rm", ("rm",)),
    ("rm everything --workdir=w", ("everything",)),
    ("rm recipe --workdir=w", ("NAME",)),
    ("rm recipe other --workdir=w", ("other",)),
    ("rm recipe tiny --workdir=w --linked=maybe", ("maybe",)),
    ("rm checkpoints tiny --workdir=w", ("checkpoints",)),
    ("rm unused --workdir=new", ("new",)),
    # files of users
    (f"import {NEW}", ("FILE",)),
    (f"import missing.csv {NEW}", ("missing.csv",)),
    (f"import folder {NEW}", ("folder",)),
    (f"import binary.npz {NEW}", ("binary.npz",)),
    (f"import file.txt {NEW}", ("file.txt",)),
    (f"import empty.csv {NEW}", ("empty.csv",)),
    ("import losses.csv", ("--workdir",)),
    (f"import losses.csv {NEW} --subset=half", ("half",)),
    (f"import losses.csv {NEW} --name=a/b", ("a/b",)),
    (f"import losses.csv scores.csv {NEW}", ("scores.csv",)),
    (f"import shapes.npz {NEW}", ("shapes.npz",)),
    (f"import losses.csv {NEW} --text-column=words", ("no texts",)),
    ("audit", ("FILE",)),
    ("audit missing.csv", ("missing.csv",)),
    ("audit words.csv", ("words.csv",)),
    ("audit scores.csv --target=a", ("no losses",)),
    ("audit others.csv", ("others.csv",)),
    ("audit binary.npz", ("binary.npz",)),
    ("audit scores.csv --fprs=0.1,x", ("--fprs",)),
    ("audit scores.csv --alpha=nan", ("--alpha",)),
    ("audit scores.csv --out=file.txt", ("file.txt",)),
    ("audit losses.csv --target=a --base ''", ("--base=",)),
    ("audit scores.csv --target=a --base= --user=", ("--base=", "--user=")),
    ("audit scores.csv --config.attack.targets=2", ("--config.attack.targets",)),
    ("hf-losses", ("MODEL", "--texts", "--out")),
    ("hf-losses model --texts=texts.jsonl --out=losses.txt", ("losses.txt",)),
    ("hf-losses model --texts=texts.jsonl --out=l.parquet --length-tokens=x", ("x",)),
    ("hf-train", ("BASE", "--texts", "--out", "--models")),
    # A second line says that PyTorch is not installed, or that the folder has no model.
    ("hf-train folder --texts=missing.jsonl --out=m --models=4", ("missing.jsonl", "")),
    ("canaries", ("--texts", "--out")),
    ("canaries --texts=losses.csv --out=c", ("text",)),
    ("canaries --texts=texts.jsonl --out=c --held-out=-1", ("--held-out=-1",)),
    ("canaries --texts=texts.jsonl --out=c --seed=x", ("--seed",)),
    # launch
    ("launch", ("VERB",)),
    ("launch slrum", ("slrum",)),
    ("launch k8s --config=tiny.py", ("k8s",)),
    (f"launch slurm --config=tiny.py {NEW}", ("--time",)),
    (f"launch slurm --config=tiny.py {NEW} --time=4h", ("4h",)),
    (f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --partition=", ("--partition=",)),
    (f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --at-once=0", ("--at-once=0",)),
    (f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --gpus=8", ("--gpus",)),
    (
        f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --gpus-per-node=-1",
        ("--gpus-per-node",),
    ),
    (f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --submit=yes", ("--submit",)),
    (f"launch slurm --config=tiny.py {NEW} --time=4:00:00 --setup=missing.sh", ("missing.sh",)),
    (f"launch jobset --config=tiny.py {NEW}", ("--image", "--claim", "--mount", "--gpus")),
    (f"launch local {NEW}", ("new",)),
    (f"launch local --config=tiny.py {NEW} --json", ("--json",)),
    ("launch plan --config=tiny.py --models-per-job=-2", ("--models-per-job",)),
    (f"launch make-models --config=tiny.py {NEW} --recipe=tiny", ("--models",)),
    (
        f"launch make-models --config=tiny.py {NEW} --recipe=other --models=0:1",
        ("other",),
    ),
    (f"launch make-models --config=tiny.py {NEW} --recipe=tiny --models=1-2", ("1-2",)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with files of users, and the workdir w, in which no model is made yet; the current one of the tests."""
    path, before = tmp_path_factory.mktemp("mistakes"), Path.cwd()
    for name, text in (CONFIGS | TEXTS).items():
        (path / name).write_text(text)
    for name in ("folder", "folder.py"):
        (path / name).mkdir()
        (path / name / "notes.txt").write_text("some notes\n")
    (path / "binary.npz").write_bytes(bytes(range(256)))
    np.savez(path / "shapes.npz", loss_MxN=np.zeros((6, 8)), member_MxN=np.zeros((6, 9), bool))
    os.chdir(path)
    claim_folders(read_sweep("tiny.py", "w", ()))
    yield path
    os.chdir(before)


@pytest.mark.parametrize(("line", "wrong"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line(
    folder: Path, line: str, wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    """Each of the wrong words stands in a line; there are no more lines than mistakes."""
    before = {path for path in folder.rglob("*") if not path.name.endswith(".lock")}
    try:
        code = cli.main(shlex.split(line))
    except SystemExit as error:
        code = error.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    lines = error.splitlines()
    assert len(lines) <= len(wrong), error
    assert all(any(word in line for line in lines) for word in wrong), error
    assert {path for path in folder.rglob("*") if not path.name.endswith(".lock")} == before
