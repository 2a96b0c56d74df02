"""The scripts and manifests of a sweep, which are pure functions of it, equal golden files.

UPDATE_GOLDEN=1 writes the files. Hashes of recipes, which change with the fields of a config, are replaced by names.
"""

import os
import socket
from pathlib import Path

import pytest

from launch import jobs, kubernetes, slurm
from launch.jobs import JobSizes, RecipeJobs
from launch.kubernetes import PodOptions
from launch.slurm import SlurmOptions
from lm_mia.config.recipe import recipe_hash
from lm_mia.plan import plan
from lm_mia.run.sweep import Sweep, read_sweep

GOLDEN = Path(__file__).parent / "golden"
CONFIG = """
from lm_mia.config import Attack, Config, Corpus, Model, Population, Tokenizer

def get_config():
    return Config(
        corpus=Corpus(source="c4", path="/data/c4"),
        tokenizer=Tokenizer(documents=200_000),
        population=Population(samples=2**22),
        model=Model(size="140M", dtype="bfloat16"),
        attack=Attack(references=64, targets=4),
        name="main",
    )

def sweep():
    yield {"model.size": "1018M", "name": "large", "attack.references": 16, "attack.targets": 1}
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    (tmp_path / "study.py").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    # The workdir does not exist.
    return read_sweep("study.py", "/data/study", ["--config.train.checkpoint_minutes=15"])


def planned(sweep: Sweep, chips: int) -> list[RecipeJobs]:
    sizes = JobSizes(plan.parse_chip("h100", 0.4), 0, 12.0, 400.0)
    return jobs.plan_jobs(sweep, sizes, chips, read_workdir=False)


def check(sweep: Sweep, name: str, texts: dict[Path, str]) -> None:
    """Compares texts with a golden file, in which each follows its path."""
    text = "".join(f"==> {path} <==\n{text}" for path, text in texts.items())
    for recipe in sweep.recipes:
        digest, stand_in = recipe_hash(recipe.config), f"hash-of-{recipe.name}"
        text = text.replace(f'"{digest}"', stand_in).replace(
            digest, stand_in
        )  # quoted if it is a number
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def no_machine(*_: object, **__: object) -> None:
    raise AssertionError("not a pure function")


def test_scripts_of_a_sweep_equal_golden_file(sweep: Sweep, monkeypatch: pytest.MonkeyPatch):
    options = SlurmOptions("4:00:00", gpus_per_node=8, partition="gpu")
    jobs_of_recipes = planned(sweep, 8)
    monkeypatch.setattr(Path, "exists", no_machine)
    monkeypatch.setattr(socket, "gethostname", no_machine)
    texts = slurm.script_texts(
        sweep, jobs_of_recipes, options, ["/opt/env/bin/python"], Path("/home/me/lm_mia"), True
    )
    assert [path.name for path in texts] == [
        "corpus.sbatch",
        "models_main.sbatch",
        "models_large.sbatch",
    ]
    monkeypatch.undo()
    check(sweep, "sweep.sbatch", texts)


def test_manifests_of_a_sweep_equal_golden_file(sweep: Sweep):
    pods = PodOptions("registry/lm_mia:1", gpus=8, queue="lm-mia", claim="data", mount="/data")
    few = [
        RecipeJobs(j.recipe, j.cost, j.models_per_job, j.blocks[:1], j.num_missing)
        for j in planned(sweep, 8)
    ]
    check(sweep, "sweep.yaml", kubernetes.manifest_texts(sweep, few, pods, Path("jobset")))


def test_given_cpus_and_memory_are_kept(sweep: Sweep):
    options = SlurmOptions("1:00:00", gpus_per_node=8, cpus_per_task=100, memory="0")
    folder = Path("/home/me")
    texts = slurm.script_texts(sweep, planned(sweep, 8), options, ["python"], folder, True)
    assert all("\n#SBATCH --cpus-per-task=100\n" in text for text in texts.values())
    assert all("\n#SBATCH --mem=0\n" in text for text in texts.values())
    pods = PodOptions("i", gpus=8, cpus=100, memory="1Ti", claim="data", mount="/data")
    for text in kubernetes.manifest_texts(sweep, planned(sweep, 8), pods, Path("out")).values():
        assert "cpu: 100\n" in text
        assert 'memory: "1Ti"\n' in text
