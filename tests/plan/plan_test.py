import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
from tiny_run import Tiny, tiny

from lm_mia import cli
from lm_mia.data.population import open_population
from lm_mia.model import flops, memory
from lm_mia.run import devices

__all__ = ["tiny"]  # a fixture

FILE = """
from lm_mia import config
def get_config():
    return config.Config(
        population=config.Population(samples=1000, length_tokens=64),
        model=config.Model(layers=2, width=64),
        optimizer=config.Optimizer(warmup_steps=1),
        train=config.Train(batch_size=10),
        attack=config.Attack(references=4, replicas=2),
    )
"""
SWEEP = """
def sweep():
    yield {"attack.references": 14}
    yield {"model.size": "10M"}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "plan.py"
    path.write_text(FILE + SWEEP)
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["plan", *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def wrong(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert cli.main([*flags]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.splitlines()


def test_json_has_all_fields(file: str, capsys: pytest.CaptureFixture[str]):
    plan = planned(capsys, f"--config={file}", "--mfu=0.4", "--device=h100")
    assert plan["chip"] == {"name": "h100", "flops_per_second": 989e12, "mfu": 0.4}
    small, large = plan["recipes"]
    assert (small["entries"], small["models"], small["overrides"]) == ([0, 1], 16, {})
    assert (large["entries"], large["models"], large["overrides"]) == (
        [2],
        6,
        {"model.size": "10M"},
    )
    assert large["parameters"] == memory.gpt_size(3, 512, 8, 32_000, 64, "float32").parameters
    work = large["train_flops"] + large["score_flops"]
    assert large["chip_hours"] == pytest.approx(work / (0.4 * 989e12 * 3600))
    assert small["missing_chip_hours"] == small["chip_hours"]
    total = plan["total"]
    assert total["chip_hours"] == small["chip_hours"] + large["chip_hours"]
    assert total["models"] == 22


def test_overrides_and_assumptions(file: str, capsys: pytest.CaptureFixture[str]):
    before = planned(capsys, f"--config={file}", "--device=h100")
    after = planned(
        capsys, f"--config={file}", "--config.train.epochs=3", "--mfu=0.2", "--device=1978"
    )
    for a, b in zip(before["recipes"], after["recipes"], strict=True):
        assert b["train_flops"] == pytest.approx(3 * a["train_flops"])
        work = b["train_flops"] + b["score_flops"]
        assert b["chip_hours"] == pytest.approx(work / (0.2 * 1978e12 * 3600))
    assert "1978" in after["chip"]["name"]
    assert {r["speed"]["mfu_source"] for r in before["recipes"]} == {"measured"}
    assert {r["speed"]["mfu_source"] for r in after["recipes"]} == {"given"}
    unknown = planned(capsys, f"--config={file}", "--device=a100")["recipes"][0]["speed"]
    assert (unknown["mfu_source"], unknown["mfu"], unknown["devices_per_model"]) == (
        "assumed",
        0.4,
        1,
    )
    few = planned(capsys, f"--config={file}", "--tokens-per-sample=20", "--device=tpu v5 lite")
    assert few["chip"]["flops_per_second"] == 197e12
    assert few["recipes"][0]["train_tokens"] == 16 * 500 * 20
    assert few["recipes"][0]["lengths"] == "set by --tokens-per-sample"


def test_plan_is_printed_as_a_table(file: str, capsys: pytest.CaptureFixture[str]):
    flags = [f"--config={file}", "--tokens-per-sample=20", "--config.score.at_epochs=0.5"]
    assert cli.main(["plan", *flags, "--device=h100"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    [row] = [re.split(r"  +", line) for line in lines if line.startswith("plan ")]
    assert row[:6] == ["plan", "2x64", "2.15 M", "16", "50", "160 k"]
    assert row[8:11] == ["413 MB", "144 kB", "100 kB"]
    assert any(line.startswith("size=10M") and " 10M " in line for line in lines)
    assert any(line.startswith("total") and " 22 " in line for line in lines)
    output = "\n".join(lines)
    for numbers in (
        r"\bh100, 989 TFLOP/s .*\b0\.213\b",
        r"^.*\b20 .*--tokens-per-sample",
        r"\b2\.27 GB more",
        r"\b1 of 3 entries",
    ):
        assert re.search(numbers, output, re.MULTILINE)


def test_verbose_prints_the_modules_of_each_architecture(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # restores it after the test
    assert cli.main(["plan", f"--config={file}", "--verbose"]) == 0
    _, *tables = capsys.readouterr().out.split("\nmodel of ")
    assert [table.partition(":")[0] for table in tables] == ["plan", "size=10M"]
    for table, (layers, width) in zip(tables, ((2, 64), (3, 512)), strict=True):
        size = memory.gpt_size(layers, width, 1, 32_000, 64, "float32")
        assert f"Total Parameters: {size.parameters:,} " in table
        assert f"float32[{layers},{width},{4 * width}]" in table
        lines = table.splitlines()
        assert max(map(len, lines)) <= 120
        assert len(lines) <= 60
    assert cli.main(["plan", f"--config={file}", "--verbose", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_mistakes_are_reported_without_output(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan = ("plan", f"--config={file}")
    assert wrong(capsys, "plan") == ["--config: missing; add --config=quickstart"]
    first, second = wrong(capsys, *plan, "--mfu=40", "--device=h300")
    assert re.fullmatch(r"--mfu=40\.0: .*; try --mfu=0\.4", first)
    assert re.match(r"--device=h300: .*\bh800\?.* cpu, ", second)
    for bad in ("--mfu=0", "--mfu=nan", "--mfu=-1"):
        assert len(wrong(capsys, *plan, bad, "--device=h100")) == 1
    for cpu in ([], ["--device=cpu"]):
        [line] = wrong(capsys, *plan, "--mfu=0.4", *cpu)
        assert line.startswith("--mfu=0.4: has no")
    for bad in ("0", "-3", "nan", "inf"):
        [line] = wrong(capsys, *plan, f"--device={bad}")
        assert re.fullmatch(rf"--device={bad}: .*TFLOP/s; try --device=h100", line)
    for bad in ("2", "65", "nan"):
        [line] = wrong(capsys, *plan, f"--tokens-per-sample={bad}")
        assert "3 to population.length_tokens=64" in line
    [line] = wrong(capsys, *plan, "--config.model.layer=3")
    assert re.fullmatch(r"--config\.model\.layer: .* --config\.model\.layers\?", line)
    Path(file).write_text(FILE + "def sweep(): return [{'model.layer': 1}, {'train.epochs': 0}]")
    first, second = (line.partition("sweep() ")[2] for line in wrong(capsys, *plan))
    assert first.startswith("entry 1: model.layer: ")
    assert second.startswith("entry 2: train.epochs=0: ")
    Path(file).write_text(FILE)
    run = ("run", f"--config={file}", f"--workdir={tmp_path / 'w'}")
    first, second = wrong(capsys, *run, "--mfu=0.4", "--json")
    assert re.match(r"--mfu: .*\blm-mia plan; ", first)
    assert re.match(r"--json: .*\blm-mia plan and lm-mia status; ", second)


def test_mistakes_in_flags_and_config_are_reported_together(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = (f"--config={file}", "--config.model.layer=3", "--config.attack.replicas=1")
    in_config = [
        "--config.model.layer: no such field; did you mean --config.model.layers?",
        "attack.replicas=1: must be an integer from 0 to 1,000,000 but not 1, since a flip rate needs two decisions; "
        "the default is 128",
    ]
    mfu = "--mfu=40.0: must be above 0 and at most 1; try --mfu=0.4"
    assert wrong(capsys, "plan", *config, "--mfu=40", "--device=h100") == [mfu, *in_config]
    verify = "--verify: works only with lm-mia status; leave it out"
    assert wrong(capsys, "plan", *config, "--verify") == [verify, *in_config]
    workdir = f"--workdir={tmp_path / 'w'}"
    wrong_verb = "--mfu: works only with lm-mia plan; leave it out"
    assert wrong(capsys, "run", *config, workdir, "--mfu=1") == [wrong_verb, *in_config]
    missing = "--workdir: missing; add --workdir=runs/quickstart"
    assert wrong(capsys, "run", *config) == [missing, *in_config]


def test_flags_of_other_verbs_are_refused(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config, workdir = f"--config={file}", f"--workdir={tmp_path / 'w'}"
    for verb in ("plan", "run", "train"):
        for value in ("", "x/*.json.gz"):
            output = wrong(capsys, verb, config, workdir, f"--from-hf-shards={value}")
            assert [
                line.startswith("--from-hf-shards: ") and "lm-mia corpus; " in line
                for line in output
            ] == [True]
    flags = ("corpus", config, workdir)
    [line] = wrong(capsys, *flags, "--from-hf-shards=x")
    assert re.fullmatch(r"--from-hf-shards='x': .*--config\.corpus\.source=c4", line)
    [line] = wrong(capsys, *flags, "--from-hf-shards=")
    assert line.startswith("--from-hf-shards=: empty")
    [line] = wrong(capsys, "plan", config, "--device= ")
    assert line.startswith("--device= : unknown chip")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.py"]


def test_plan_reads_lengths_and_models_of_the_workdir(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    before, population = sorted(tmp_path.rglob("*")), tiny_run.population_of(workdir)
    flags = [f"--config={tiny.config}", f"--workdir={workdir}", "--config.attack.references=10"]
    plan = planned(capsys, *flags, "--device=h100")
    [recipe] = plan["recipes"]
    lengths_N = open_population(population).lengths_N
    assert recipe["mean_sample_tokens"] == pytest.approx(lengths_N.mean())
    assert recipe["train_tokens"] == pytest.approx(12 * 16 * lengths_N.mean())
    square = (np.asarray(lengths_N, float) ** 2).sum()
    expected = flops.training(memory.gpt_size(1, 8, 1, 100, 8, "float32"), lengths_N.sum(), square)
    assert recipe["train_flops"] == pytest.approx(12 / 2 * expected)
    assert recipe["lengths"] == f"measured in {population}"
    used = open_population(population).text_use
    assert used is not None
    assert recipe["text_share"] == used.share < 1
    assert (recipe["models"], recipe["present_models"]) == (12, 6)
    assert plan["total"]["missing_chip_hours"] == pytest.approx(plan["total"]["chip_hours"] / 2)
    # Another recipe shares the samples but has no models; another population shares nothing.
    flags_of_other = [*flags, "--config.name=other"]
    [other] = planned(capsys, *flags_of_other, "--config.model.layers=2")["recipes"]
    assert (other["present_models"], other["lengths"]) == (0, recipe["lengths"])
    for field in ("population.samples=64", "corpus.min_chars=1"):
        [stranger] = planned(capsys, *flags_of_other, f"--config.{field}")["recipes"]
        assert (stranger["present_models"], stranger["lengths"][:7]) == (0, "assumed")
        assert stranger["text_share"] is None
    assert cli.main(["plan", *flags, "--device=h100"]) == 0
    printed = capsys.readouterr().out
    assert "6 missing models" in printed
    assert f"text used    {100 * used.share:.3g}% " in printed
    assert cli.main(["plan", *flags_of_other, "--config.population.samples=64"]) == 0
    assert "text used    unknown until" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
    # Without a config, the recipe of the workdir is planned.
    [same] = planned(capsys, *flags[1:], "--device=h100")["recipes"]
    assert same == recipe | {"entries": []}


def test_time_follows_from_the_models_of_the_workdir(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On a CPU, without a probe: nothing is known until two models are finished."""
    flags = [f"--config={tiny.config}", "--config.attack.references=10"]
    new = planned(capsys, *flags)
    assert new["chip"] is new["total"]["chip_hours"] is new["total"]["seconds_left"] is None
    assert new["recipes"][0]["speed"] is new["recipes"][0]["models_per_hour"] is None
    assert new["recipes"][0]["train_flops"] > 0
    assert cli.main(["plan", *flags]) == 0
    out = capsys.readouterr().out
    assert "chip time" not in out
    assert "\ntime         unknown " in out
    workdir = tiny.copy(tmp_path / "w")
    lines = [
        {"event": kind, "model": f"m{i}", "recipe": "tiny", "last": True, "device": "cpu"}
        | {"time": f"2026-01-01T00:00:{2 * i + (kind == 'model_scored'):02}.000+00:00"}
        for i in range(4)
        for kind in ("worker", "model_started", "model_scored")
    ]
    tiny_run.write_log(workdir, "".join(json.dumps(line) + "\n" for line in lines))
    flags.append(f"--workdir={workdir}")
    grown = planned(capsys, *flags)
    [recipe] = grown["recipes"]
    assert (recipe["models"], recipe["present_models"], grown["finished_on"]) == (12, 6, ["cpu"])
    assert recipe["models_per_hour"] == pytest.approx(3600)
    assert recipe["seconds_left"] == grown["total"]["seconds_left"] == pytest.approx(6)
    sweep = tmp_path / "sweep.py"
    sweep.write_text(
        Path(tiny.config).read_text() + "\ndef sweep():\n    yield {'train.epochs': 2}\n"
    )
    _, twice = planned(capsys, f"--config={sweep}", *flags[1:])["recipes"]
    assert twice["models_per_hour"] is None
    assert twice["seconds_left"] > 12 * 1.2  # training takes twice as long
    assert cli.main(["plan", *flags, "--device=h100"]) == 0
    out = capsys.readouterr().out
    assert "\ntime left    at 3,600 " in out
    assert "\nchip time " in out


def test_the_default_is_the_accelerator_of_this_machine(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name, chip in (("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), ("Abacus 1", None)):
        monkeypatch.setattr(devices, "accelerator", lambda name=name: name)
        plan = planned(capsys, f"--config={file}")
        assert (plan["chip"] and plan["chip"]["name"]) == chip
        assert planned(capsys, f"--config={file}", "--device=cpu")["chip"] is None


def test_plan_refuses_what_run_refuses(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    flags = [f"--config={tiny.config}", f"--workdir={workdir}"]
    first, *changes, _ = wrong(capsys, "plan", *flags, "--config.model.layers=2")
    assert first.startswith(f"--workdir={workdir}: its recipe tiny ")
    assert changes == ["  model.layers: 1 -> 2"]
    file = tiny_run.recipe_of(workdir) / "config.json"
    file.write_text("{}")
    [line] = wrong(capsys, "plan", *flags)
    assert line.startswith(f"{file}: not a config")


def test_diverged_model_is_not_present(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(workdir)
    (recipe / "scores.zarr" / "loss" / "c" / "2" / "0").unlink()
    (recipe / "diverged").mkdir()
    (recipe / "diverged" / "reference-02.json").write_text("{}")
    [planned_recipe] = planned(capsys, f"--config={tiny.config}", f"--workdir={workdir}")["recipes"]
    assert (planned_recipe["models"], planned_recipe["present_models"]) == (6, 5)


def test_new_workdir_has_no_present_models(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = [f"--config={file}", f"--workdir={tmp_path / 'new'}"]
    assert planned(capsys, *flags)["total"]["present_models"] == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.process
@pytest.mark.parametrize("module", ["lm_mia.cli", "lm_mia.plan.plan", "launch.cli"])
def test_plan_loads_neither_jax_nor_pandas_nor_the_store(module: str):
    heavy = {"jax", "pandas", "zarr", "tensorstore", "scipy", "pyarrow", "matplotlib"}
    code = f"import {module}, sys; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
