import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import cli, jobs
from lm_mia.cli import main as lm_mia_main
from lm_mia.model import memory
from lm_mia.plan import plan
from lm_mia.run.costs import RecipeCost, assumed_lengths, recipe_cost
from lm_mia.run.sweep import read_sweep

__all__ = ["tiny"]  # a fixture

ROOT = Path(__file__).resolve().parents[2]


def read_plan(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["plan", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_jobs_are_blocks_with_missing_models(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    for shard in tiny_run.recipe_of(workdir).glob("scores.zarr/loss/c/5/*"):
        shard.unlink()
    flags = f"--config={tiny.config}", f"--workdir={workdir}", "--models-per-job=2"
    recipes = read_plan(capsys, *flags)
    [r] = recipes["recipes"]
    assert (r["models"], r["present_models"], r["missing_models"], r["jobs"]) == (6, 5, 1, 1)
    assert r["lengths"] == f"measured in {tiny_run.population_of(workdir)}"
    assert r["missing_chip_hours"] == pytest.approx(r["chip_hours"] / 6)
    assert recipes["total"]["jobs"] == 1
    [j] = jobs.plan_jobs(read_sweep(tiny.config, str(workdir), ()), sizes(models_per_job=2))
    assert (j.blocks, j.ranges()) == ((2,), ["4:6"])


def sizes(device: str = "h100", models_per_job: int = 0, job_hours: float = 4.0) -> jobs.JobSizes:
    chip = plan.parse_chip(device, 0.5)
    return jobs.JobSizes(chip, models_per_job, job_hours, None)


def cost_of(
    model_hours: float,
    num_models: int,
    job_sizes: jobs.JobSizes,
    devices_per_model: int | Literal["auto"] = "auto",
) -> RecipeCost:
    """Returns a recipe whose models take `model_hours` on one chip, and whose batches need no padding."""
    [task] = read_sweep("quickstart", None, ()).recipes
    cost = recipe_cost(task, assumed_lengths(task.config))
    flops = model_hours * 3600 * job_sizes.chip.flops * (job_sizes.chip.mfu or 0) * num_models
    batches = dataclasses.replace(
        cost.batches,
        devices_per_model=devices_per_model,
        batch_size=2**10,
        micro_batch_size=1,
        sequences=2**10,
        sequences_std=0,
    )
    return dataclasses.replace(
        cost, models=num_models, train_flops=flops, score_flops=0.0, batches=batches
    )


@pytest.mark.parametrize(
    ("model_hours", "chips_per_machine", "machines", "devices_per_model", "models"),
    [
        (0.5, 1, 1, 1, 8),  # 4 hours
        (0.5, 8, 1, 1, 64),  # 8 models per chip
        (3.0, 8, 1, "auto", 8),  # one per chip
        (100.0, 4, 2, 1, 8),  # no chip is idle, however long a model takes
        (100.0, 8, 1, 0, 1),  # 12.5 hours
        (4.0, 4, 2, 0, 8),  # each takes half an hour on all chips
        (2.0, 8, 1, 4, 16),  # two groups, each with eight models of half an hour
        (2.0, 3, 2, 2, 8),  # one group on each machine, whose third chip is idle
        (1e-9, 1, 1, 1, 130),  # all of them
        (1e-9, 8, 1, 1, 130),
    ],
)
def test_models_per_job_follow_hours_and_chips(
    model_hours: float,
    chips_per_machine: int,
    machines: int,
    devices_per_model: int | Literal["auto"],
    models: int,
):
    job_sizes = sizes()
    cost = cost_of(model_hours, 130, job_sizes, devices_per_model)
    assert jobs.models_per_job(cost, job_sizes, chips_per_machine, machines) == models


def test_auto_is_the_number_of_chips_whose_memory_suffices():
    job_sizes = sizes("a30")
    cost = cost_of(2.0, 130, job_sizes)
    s = cost.batches.size
    size = memory.gpt_size(48, 1280, s.heads, 32_000, s.length_tokens, s.dtype)
    cost = dataclasses.replace(cost, batches=dataclasses.replace(cost.batches, size=size))
    chips = jobs.chips_per_model(cost, job_sizes)
    assert chips in (2, 4, 8)
    hours = jobs.model_hours(cost, job_sizes)
    assert jobs.models_per_job(cost, job_sizes, 8, 1) == int(4 * chips / hours) * (8 // chips)
    # The memory of one chip does not suffice, so that machines with one chip make each model together.
    assert jobs.models_per_job(cost, job_sizes, 1, 3) == int(4 * 3 / hours)


def test_models_per_job_is_limited_to_the_recipe(tmp_path: Path):
    job_sizes = sizes(models_per_job=200)
    assert jobs.models_per_job(cost_of(1.0, 130, job_sizes), job_sizes, 8, 1) == 130


def test_hours_equal_those_of_lm_mia_plan(capsys: pytest.CaptureFixture[str]):
    recipes = read_plan(capsys, f"--config={ROOT / 'configs' / 'c4.py'}", "--mfu=0.4")
    hours = {r["size"]: r["chip_hours"] for r in recipes["recipes"]}
    assert hours["140M"] == pytest.approx(355, abs=1)
    assert hours["1018M"] == pytest.approx(18_040, abs=1)
    assert recipes["total"]["chip_hours"] == pytest.approx(sum(hours.values()))
    assert sum(r["jobs"] for r in recipes["recipes"]) == recipes["total"]["jobs"]


def test_plan_is_printed_as_a_table(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tiny_sweep.config_file(tiny, tmp_path)
    assert lm_mia_main(["plan", f"--config={config}", "--device=h100"]) == 0
    costs = capsys.readouterr().out
    assert cli.main(["plan", f"--config={config}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(costs)
    lines = [line.split() for line in out.removeprefix(costs).splitlines()]
    assert [line[:5] for line in lines if line[0:1] in (["tiny"], ["epochs=2"])] == [
        ["tiny", "6", "1", "1", "6"],
        ["epochs=2", "6", "1", "1", "6"],
    ]
    [total] = [line for line in lines if line[:1] == ["total"]]
    assert total[:3] == ["total", "12", "2"]
    assert "tiny: requested by entries 0, 2 " in out
    assert "WORKDIR" not in out


def test_plan_without_a_workdir_has_no_folders(capsys: pytest.CaptureFixture[str]):
    [r] = read_plan(capsys, "--config=quickstart")["recipes"]
    assert (r["name"], r["folder"], r["missing_models"]) == ("quickstart", None, r["models"])


def test_all_mistakes_are_reported_together(capsys: pytest.CaptureFixture[str]):
    flags = "--device=abacus", "--models-per-job=-1", "--job-hours=nan", "--config=/nowhere.py"
    assert cli.main(["plan", *flags]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split("=")[0] for line in errors] == [
        "--config",
        "--device",
        "--models-per-job",
        "--job-hours",
    ]
