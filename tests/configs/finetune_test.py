"""Models that start from a checkpoint: the whole pipeline, in this process."""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import tiny_checkpoint
import tiny_run
import tokenizers
from tiny_checkpoint import LLAMA, model_config

import lm_mia
from lm_mia import cli, events
from lm_mia.model import kinds
from lm_mia.run import preemption, supervisor

pytestmark = pytest.mark.slow  # the page of the documentation runs the same command

WORDS = [
    "the",
    "model",
    "learns",
    "which",
    "sample",
    "it",
    "saw",
    "in",
    "training",
    "and",
    "forgets",
    "all",
    "others",
]
FLAGS = [
    "--config.attack.references=6",
    "--config.attack.replicas=2",
    "--config.attack.attacks=lira_online,stacked,base_calibrated,loss",
    "--config.attack.resample-references=0",
    "--config.attack.leave-one-out=False",
    "--config.attack.bootstraps=0",
    "--config.optimizer.warmup-steps=1",
    "--config.optimizer.peak-learning-rate=1e-2",
    "--config.population.length-tokens=24",
    "--config.extract.samples=0",
    "--config.train.epochs=2",
    "--config.train.workers=1",
]


def lm(verb: str, *argv: str) -> int:
    with tiny_run.on_cpu() as patch:
        patch.setattr(supervisor, "run", tiny_run.run_in_process)
        return cli.main([verb, *argv])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a checkpoint, texts, and the workdir of a small audit."""
    folder = tmp_path_factory.mktemp("finetune")
    tiny_checkpoint.save(folder / "base")
    texts = folder / "texts"
    texts.mkdir()
    for i in range(120):
        text = f"Number {i}. " + " ".join(random.Random(i).choices(WORDS, k=12))
        (texts / f"{i:03d}.txt").write_text(text)
    argv = (f"--config=finetune:{folder / 'base'},{texts}", f"--workdir={folder / 'w'}")
    assert lm("run", *argv, *FLAGS) == 0
    return folder


def test_the_base_is_scored_as_a_model_that_was_trained_on_nothing(folder: Path):
    recipe = lm_mia.open(folder / "w").recipes["finetune"]
    losses = recipe.scores()
    base = losses.sel(model="base-00")
    assert str(base["role"].values) == "base"
    assert not base["member"].values.any()
    # Its loss is that of the parameters of the checkpoint on the tokens of its tokenizer.
    c = model_config(LLAMA, 24)
    params = kinds.load_params(c, [folder / "base" / "model.safetensors"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "base" / "tokenizer.json"))
    names = recipe.samples()["name"]
    for i in (0, 7):
        text = (folder / "texts" / names[i]).read_text()
        ids = np.array([tokenizer.encode(text).ids[:24]])
        logits: Any = kinds.build(c).apply({"params": params}, ids)
        log_prob = jax.nn.log_softmax(logits)[0, np.arange(ids.shape[1] - 1), ids[0, 1:]]
        assert base["loss"].values[i] == pytest.approx(-float(log_prob.mean()), rel=1e-5)


def test_the_base_is_no_reference_and_has_no_checkpoints(folder: Path):
    recipe = folder / "w" / "recipes" / "finetune"
    assert not (recipe / "checkpoints" / "base-00").exists()
    attacks = pd.read_csv(recipe / "tables" / "attacks.csv")
    assert attacks["references"].max() == 6
    assert "base_calibrated" in {*attacks["attack"]}
    models = pd.read_csv(recipe / "tables" / "models.csv")
    assert not models["model"].str.startswith("base").any()


def test_models_start_from_the_checkpoint(folder: Path, tmp_path: Path):
    argv = (
        f"--config=finetune:{folder / 'base'},{folder / 'texts'}",
        f"--workdir={tmp_path / 'w'}",
    )
    hardly = [f"--config.optimizer.{n}-learning-rate=1e-9" for n in ("init", "peak", "final")]
    others = [flag for flag in FLAGS if "peak-learning-rate" not in flag]
    for verb in ("corpus", "train", "score"):
        assert lm(verb, *argv, *others, *hardly) == 0
    losses = lm_mia.open(tmp_path / "w").recipes["finetune"].scores()
    loss_MxN, is_base_M = losses["loss"].values, losses["role"].values == "base"
    assert is_base_M.sum() == 1
    assert loss_MxN[~is_base_M] == pytest.approx(np.tile(loss_MxN[is_base_M], (8, 1)), abs=1e-4)


def log_of_started(workdir: Path) -> list[str]:
    logged = events.read(workdir, lambda line: b"model_started" in line)
    return [event["model"] for _, event in logged]


def test_a_repeated_command_trains_nothing(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "w", tmp_path / "w")
    before = len(log_of_started(tmp_path / "w"))
    assert lm("train", f"--workdir={tmp_path / 'w'}") == 0
    assert lm("run", f"--workdir={tmp_path / 'w'}", "--config.attack.references=8") == 0
    started = log_of_started(tmp_path / "w")
    assert started[before:] == ["reference-06", "reference-07"]


def test_a_stopped_model_resumes_with_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    argv = (
        f"--config=finetune:{folder / 'base'},{folder / 'texts'}",
        f"--workdir={tmp_path / 'w'}",
    )
    stopped = []

    @contextlib.contextmanager
    def once(stop: preemption.Stop) -> Iterator[Callable[[int], bool]]:
        yield lambda step: step == 3 and not stopped and not stopped.append(step)

    monkeypatch.setattr(preemption.Stop, "defer_sigterm", once)
    assert lm("corpus", *argv, *FLAGS) == 0
    lm("train", *argv, *FLAGS)
    assert stopped == [3]
    assert lm("train", *argv, *FLAGS) == 0
    assert lm("score", *argv, *FLAGS) == 0
    logged = events.read(tmp_path / "w", lambda line: b"resumed_at" in line)
    assert 3 in {event["resumed_at"] for _, event in logged}
    resumed, whole = (
        lm_mia.open(w).recipes["finetune"].scores() for w in (tmp_path / "w", folder / "w")
    )
    np.testing.assert_array_equal(resumed["loss"].values, whole["loss"].values)


def test_changed_weights_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(folder / "w", tmp_path / "w")
    weights = folder / "base" / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    try:
        more = (f"--workdir={tmp_path / 'w'}", "--config.attack.references=8")
        assert lm("run", *more) != 0
    finally:
        weights.write_bytes(original)
    assert "have changed" in capsys.readouterr().err


def test_the_base_is_scored_once_for_recipes_of_one_population(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "w", tmp_path / "w")
    argv = (
        f"--config=finetune:{folder / 'base'},{folder / 'texts'}",
        f"--workdir={tmp_path / 'w'}",
        "--config.name=slower",
        "--config.score.at-steps=2,5",
    )
    others = [flag for flag in FLAGS if "peak-learning-rate" not in flag]
    for verb in ("train", "score"):
        command = (*argv, *others, "--config.optimizer.peak-learning-rate=1e-3")
        assert lm(verb, *command) == 0
    scored = events.read(tmp_path / "w", lambda line: b"model_scored" in line)
    of_base = [event["recipe"] for _, event in scored if event["model"] == "base-00"]
    assert of_base == ["finetune"]
    recipes = lm_mia.open(tmp_path / "w").recipes
    first = recipes["finetune"].scores().sel(model="base-00")["loss"].values
    slower = recipes["slower"].scores().sel(model="base-00")["loss"].values
    assert slower.tolist() == [first.tolist()] * 3  # at steps 2 and 5, and at the end
