import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
from tiny_run import tiny

from lm_mia import cli
from lm_mia.config import Config
from lm_mia.run import cpu_plan, cpu_probe
from lm_mia.run.sweep import read_sweep

__all__ = ["tiny"]  # a fixture

SPEED = cpu_probe.Speed(
    start_seconds=3.0,
    compile_seconds=5.0,
    step_seconds=0.5,
    train_extra_seconds=1.0,
    score_seconds_per_sample=0.25,
    core_share=0.5,
    description="4 small models",
)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces probes; returns the list of the recipes that are measured."""
    names: list[str] = []

    def probe(c: Config, lengths: Any, workers: int, name: str, limit: float) -> cpu_probe.Speed:
        assert (lengths(1000) <= c.population.length_tokens).all()
        names.append(name)
        return SPEED

    monkeypatch.setattr(cpu_probe, "probe", probe)
    return names


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["plan", "--device=cpu", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_minutes_by_stage(
    tiny: tiny_run.Tiny, probes: list[str], capsys: pytest.CaptureFixture[str]
):
    """Six models of 4 steps are scored on 32 samples, by two workers."""
    plan = planned(capsys, f"--config={tiny.config}", "--config.train.workers=2")
    [recipe] = plan["recipes"]
    minutes = recipe["minutes"]
    assert (recipe["source"], recipe["workers"], recipe["core_share"]) == ("probe", 2, 0.5)
    assert minutes["start"] == pytest.approx(8 / 60, abs=1e-3)
    assert minutes["train"] == pytest.approx(3 * (4 * 0.5 + 1) / 60, abs=1e-3)
    assert minutes["score"] == pytest.approx(3 * 32 * 0.25 / 60, abs=1e-3)
    assert recipe["guessed_stages"] == ["attack", "corpus"]
    total = plan["total"]["minutes"]
    assert sum(v for k, v in total.items() if k != "total") == pytest.approx(
        total["total"], abs=5e-3
    )
    measured = sum(minutes[stage] for stage in ("start", "train", "score"))
    assert plan["total"]["guessed_share"] == pytest.approx(1 - measured / total["total"], abs=5e-3)


def test_recipes_with_the_same_shapes_are_measured_once(
    tiny: tiny_run.Tiny, probes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sweep = 'def sweep():\n    yield {"train.epochs": 3}\n    yield {"model.width": 16}\n'
    path = tmp_path / "several.py"
    path.write_text(Path(tiny.config).read_text() + sweep)
    first, longer, _ = planned(capsys, f"--config={path}")["recipes"]
    assert len(probes) == 2
    steps = longer["steps_per_model"] - first["steps_per_model"]
    rounds = -(-first["models"] // first["workers"])
    gain = longer["minutes"]["train"] - first["minutes"]["train"]
    assert gain == pytest.approx(rounds * steps * 0.5 / 60, abs=5e-3)
    assert longer["minutes"]["corpus"] == 0


def test_times_of_the_workdir_replace_the_probe(
    tiny: tiny_run.Tiny, probes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    lines = [
        (0, {"event": "models", "verb": "run"}),
        (3, {"event": "worker"}),
        (3, {"event": "model_started", "model": "a"}),
        (20, {"event": "model_trained", "model": "a", "resumed_at": 0, "steps": 4}),
        (24, {"event": "model_scored", "model": "a", "last": True}),
        (24, {"event": "compiled", "seconds": 6.0}),
        (25, {"event": "model_started", "model": "b"}),
        (32, {"event": "model_trained", "model": "b", "resumed_at": 0, "steps": 4}),
        (34, {"event": "model_scored", "model": "b", "last": True}),
        (40, {"event": "stage", "stage": "attack", "seconds": 12.0}),
        (42, {"event": "stage", "stage": "report", "seconds": 30.0}),
    ]
    with (workdir / "metrics.jsonl").open("w") as file:
        for second, event in lines:
            now = f"2026-11-25T10:00:{second:02}+00:00"
            file.write(json.dumps({"time": now, "index": 0, "recipe": "tiny", **event}) + "\n")
        file.write('{"time": "2026-11-25T10:01:00+00:00", "event": "models", "rec')
    flags = f"--config={tiny.config}", f"--workdir={workdir}", "--config.train.workers=1"
    plan = planned(capsys, *flags)
    [recipe] = plan["recipes"]
    assert probes == []
    assert (recipe["source"], recipe["core_share"]) == ("metrics.jsonl", None)
    seconds = {stage: 60 * minutes for stage, minutes in recipe["minutes"].items()}
    assert seconds["start"] == pytest.approx(3 + 6, abs=0.1)
    assert seconds["train"] == pytest.approx(6 * 8, abs=0.1)
    assert seconds["score"] == pytest.approx(6 * 2, abs=0.1)
    assert seconds["attack"] == pytest.approx(12, abs=0.1)
    assert recipe["guessed_stages"] == []
    assert plan["total"]["minutes"]["report"] == 0.5
    assert plan["total"]["guessed_share"] == 0


def test_a_finished_workdir_needs_no_probe(
    tiny: tiny_run.Tiny, probes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = f"--config={tiny.config}", f"--workdir={tiny.workdir}"
    plan = planned(capsys, *flags)
    [recipe] = plan["recipes"]
    assert probes == []
    assert (recipe["source"], recipe["workers"], recipe["guessed_stages"]) == ("", 0, [])
    assert set(recipe["minutes"].values()) == {0.0}
    events = map(json.loads, (tiny.workdir / "metrics.jsonl").read_text().splitlines())
    report = max(event["seconds"] for event in events if event.get("stage") == "report")
    assert plan["total"]["minutes"]["total"] == round(report / 60, 3)
    assert plan["total"]["guessed_share"] == 0
    assert cli.main(["plan", "--device=cpu", *flags]) == 0
    out, err = capsys.readouterr()
    assert not any(line.startswith(("models ", "guesses ")) for line in out.splitlines())
    assert err.strip() == ""  # no bar, since there is nothing to measure
    w = tiny.copy(tmp_path / "w")
    shutil.rmtree(tiny_run.recipe_of(w) / "pieces")
    [recipe] = planned(capsys, flags[0], f"--workdir={w}")["recipes"]
    assert recipe["minutes"]["attack"] > 0


def test_only_the_most_expensive_recipes_are_probed_if_time_is_short(
    tiny: tiny_run.Tiny,
    probes: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """A probe takes 12 of the 20 seconds here, so one is made; the other times are in proportion to FLOPs."""
    now, probe = [0.0], cpu_probe.probe

    def slow_probe(*args: Any) -> cpu_probe.Speed:
        now[0] += 12
        return probe(*args)

    monkeypatch.setattr(cpu_probe, "probe", slow_probe)
    monkeypatch.setattr(cpu_plan.time, "monotonic", lambda: now[0])
    path = tmp_path / "several.py"
    sweep = 'def sweep():\n    yield {"model.width": 64, "name": "wide"}\n'
    path.write_text(Path(tiny.config).read_text() + sweep)
    plan = planned(capsys, f"--config={path}")
    narrow, wide = plan["recipes"]
    assert probes == ["wide"]
    assert (wide["source"], wide["probe"]) == ("probe", "wide: 4 small models")
    assert (narrow["source"], narrow["probe"]) == ("scaled", "")
    assert {"train", "score"} <= {*narrow["guessed_stages"]}
    ratio = narrow["train_flops"] / wide["train_flops"]
    rounds = -(-wide["models"] // wide["workers"])
    assert 60 * wide["minutes"]["train"] == pytest.approx(rounds * (4 * 0.5 + 1), abs=0.1)
    assert 60 * narrow["minutes"]["train"] == pytest.approx(rounds * (4 * 0.5 * ratio + 1), abs=0.1)


def test_docstrings_are_shorter_than_c4(tmp_path: Path):
    """As in populations of the included configs: 66 tokens of at most 96, and 64 of at most 64."""
    for name, tokens in (("configs/strongmia.py:fig05,cpu", 66.4), ("quickstart", 63.9)):
        recipe = read_sweep(name, None, ()).recipes[0]
        lengths = cpu_plan._sample_lengths(recipe, None)
        assert lengths.mean_tokens == pytest.approx(tokens, rel=0.06)
        drawn = cpu_plan._length_sampler(recipe, lengths)(4096)
        assert drawn.mean() == pytest.approx(lengths.mean_tokens, rel=0.05)
        assert drawn.dtype == np.int64


def test_mfu_is_refused(tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]):
    flags = f"--config={tiny.config}", "--device=cpu", "--mfu=0.4"
    assert cli.main(["plan", *flags]) == 2
    assert capsys.readouterr().err == (
        "--mfu=0.4: must be left out with --device=cpu, whose speed is measured\n"
    )
