"""What takes disk space: moments of finished models, and populations that several workdirs share."""

import shutil
from pathlib import Path

import pytest
import tiny_run
from tiny_run import _on_cpu, run_in_process, tiny

import lm_mia
from analysis import opening
from lm_mia import cli
from lm_mia.run import supervisor

__all__ = ["_on_cpu", "tiny"]  # fixtures

DROP = "--config.train.keep_moments=False"
ONE_WORKER = "--config.train.workers=1"


@pytest.fixture(autouse=True)
def _in_this_process(_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "run", run_in_process)


def parts(workdir: Path, name: str) -> int:
    """Returns how many checkpoints have a part."""
    return len([*tiny_run.recipe_of(workdir).glob(f"checkpoints/*/*/{name}")])


def test_moments_are_dropped_once_a_model_is_scored(tiny: tiny_run.Tiny, tmp_path: Path):
    w = tiny.copy(tmp_path / "w", models=False)
    at_steps = "--config.score.at_steps=2"
    # The recipe of the copied folder has no score points.
    shutil.rmtree(tiny_run.recipe_of(w))
    (w / "config.json").unlink()
    assert cli.main(tiny.argv("train", w, DROP, ONE_WORKER, at_steps)) == 0
    assert parts(w, "params") == parts(w, "opt_state") == 12
    assert cli.main(tiny.argv("score", w, DROP, ONE_WORKER, at_steps)) == 0
    assert (parts(w, "params"), parts(w, "opt_state")) == (12, 0)
    assert cli.main(tiny.argv("run", w, DROP, ONE_WORKER, at_steps)) == 0


@pytest.mark.slow
def test_models_without_moments_are_scored_repaired_and_queried(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Moments of models that earlier commands finished are dropped, too. Scores are the same with and without them."""
    w, kept = tiny.copy(tmp_path / "w"), tiny.copy(tmp_path / "kept")
    assert cli.main(tiny.argv("score", w, DROP, ONE_WORKER)) == 0
    assert (parts(w, "params"), parts(w, "opt_state")) == (6, 0)
    more = ONE_WORKER, "--config.score.statistics=min_k"
    for folder in (w, kept):
        assert cli.main(tiny.argv("score", folder, *more)) == 0
    shard = tiny_run.recipe_of(w) / "scores.zarr" / "loss" / "c" / "2" / "0"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    assert cli.main(tiny.argv("score", w, *more, "--repair")) == 0
    assert tiny_run.scores(w) == tiny_run.scores(kept)
    assert parts(kept, "opt_state") == 6
    extract = "samples=2", "prefix_tokens=3", "suffix_tokens=2"
    flags = [f"--config.extract.{flag}" for flag in extract]
    for folder in (w, kept):
        assert cli.main(tiny.argv("extract", folder, *more, *flags)) == 0
    name = "extraction.csv"
    texts = [(tiny_run.recipe_of(f) / "tables" / name).read_bytes() for f in (w, kept)]
    assert texts[0] == texts[1]


def test_workdirs_share_populations(tiny: tiny_run.Tiny, tmp_path: Path):
    shared = tmp_path / "shared"
    flag = f"--config.population.folder={shared}"
    a, b = tmp_path / "a", tmp_path / "b"
    assert cli.main(tiny.argv("corpus", a, flag)) == 0
    [population] = shared.glob("[!.]*")
    assert population.name == tiny.population_name
    manifest = (population / "manifest.json").read_bytes()
    original = tiny.workdir / "populations" / population.name / "manifest.json"
    assert manifest == original.read_bytes()
    before = tiny_run.content(population)
    assert cli.main(tiny.argv("run", b, flag, ONE_WORKER)) == 0
    assert tiny_run.content(population) == before
    assert not [*tmp_path.glob("?/populations")]
    assert tiny_run.scores(b) == tiny_run.scores(tiny.workdir)
    # Commands without --config, and the Python API, find it.
    assert cli.main(["attack", f"--workdir={b}"]) == 0
    assert cli.main(["status", f"--workdir={b}"]) == 0
    assert opening.read_recipe(tiny_run.recipe_of(b)).population_dir == population
    recipe = lm_mia.open(b).recipes["tiny"]
    assert recipe.text(0)
    # A workdir that has a population of its own keeps its models.
    c = tiny.copy(tmp_path / "c")
    assert cli.main(tiny.argv("score", c, flag, ONE_WORKER)) == 0
    assert tiny_run.scores(c) == tiny_run.scores(tiny.workdir)
