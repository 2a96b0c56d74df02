import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia import config
from lm_mia.config import load
from lm_mia.errors import UserError
from lm_mia.run import cpu_probe, supervisor
from lm_mia.run.model_times import Timeline
from lm_mia.run.worker import WorkerTask

__all__ = ["_on_cpu", "tiny"]  # fixtures


TimedEvent = tuple[float, dict[str, Any]]


def events_of_worker(index: int) -> list[TimedEvent]:
    """Returns the events of two models of 5 steps of 2 s, whose first one takes 9 s of compilation."""
    shared: dict[str, Any] = {"index": index}
    events: list[TimedEvent] = [(4.0, {"event": "worker", **shared})]
    now = 4.0
    for compilation in (9.0, 0.0):
        events.append((now, {"event": "model_started", "model": f"{compilation}", **shared}))
        now += compilation + 0.5
        for step in range(5):
            now += 2
            events.append((now, {"event": "train", "step": step, "steps": 5, **shared}))
        now += 0.5
        events.append((now, {"event": "model_trained", "steps": 5, "resumed_at": 0, **shared}))
        now += 3
        events.append((now, {"event": "model_scored", "last": True, **shared}))
        if compilation:
            counts = {"seconds": 6.0, "compiled": 1, "from_cache": 1}
            events.append((now, {"event": "compiled", **counts, **shared}))
    return events


def speed(before: float, end: float | None, *, is_compiled_for_run: bool) -> cpu_probe.Speed:
    """Returns the speed by what two workers have reported before a time."""
    timeline = Timeline()
    timeline.add(0.0, {"event": "models", "verb": "run"})
    for now, event in (timed for index in range(2) for timed in events_of_worker(index)):
        if now < before:
            timeline.add(now, event)
    return cpu_probe._speed(timeline, end, 30, 6, is_compiled_for_run, core_share=0.5)


@pytest.mark.parametrize(("is_compiled_for_run", "compile_seconds"), [(True, 6.0), (False, 9.0)])
def test_speed_is_computed_from_models_after_the_first(
    is_compiled_for_run: bool, compile_seconds: float
):
    end = max(now for now, _ in events_of_worker(0))
    measured = speed(math.inf, end + 1, is_compiled_for_run=is_compiled_for_run)
    assert dataclasses.asdict(measured) == pytest.approx(
        {
            "start_seconds": 5.0,  # with the second in which the workers end
            "compile_seconds": compile_seconds,
            "step_seconds": 2.0,
            "train_extra_seconds": 1.0,
            "score_seconds_per_sample": 0.1,
            "core_share": 0.5,
            "description": "4 small models",
        }
    )


def test_a_probe_that_ends_early_uses_what_it_has_measured():
    """At 20 seconds the first models have taken three steps; at 30 seconds they are finished."""
    by_steps = speed(20.0, None, is_compiled_for_run=True)
    assert dataclasses.asdict(by_steps) == pytest.approx(
        {
            "start_seconds": 4.0,
            "compile_seconds": 9.5,
            "step_seconds": 2.0,
            "train_extra_seconds": 0.0,
            "score_seconds_per_sample": 2 / 6 / 3,
            "core_share": 0.5,
            "description": "6 training steps; scoring is assumed to take a third of their time",
        }
    )
    by_first_models = speed(30.0, None, is_compiled_for_run=False)
    assert by_first_models.description == "2 small models"
    assert (by_first_models.step_seconds, by_first_models.compile_seconds) == (2.0, 6.0)
    assert by_first_models.score_seconds_per_sample == pytest.approx(0.1)


def test_a_probe_ends_when_its_time_is_over(tiny: tiny_run.Tiny, monkeypatch: pytest.MonkeyPatch):
    """With no time at all, it ends at the second step of the first model."""
    kinds: list[str] = []

    def run(task: WorkerTask, on_event: Callable[[dict[str, Any]], None]) -> None:
        for event in (
            {"event": "worker"},
            {"event": "model_started", "model": "a"},
            *({"event": "train", "step": step, "steps": 9} for step in range(9)),
        ):
            kinds.append(event["event"])
            on_event(event | {"index": 0})

    monkeypatch.setattr(supervisor, "run", run)
    [(_, c)] = load.load_sweep(tiny.config, ())
    measured = cpu_probe.probe(c, lambda samples: np.full(samples, 8), 1, "tiny", 0.0)
    assert kinds == ["worker", "model_started", "train", "train"]
    assert measured.description.startswith("2 training steps")


def test_large_models_are_refused_before_any_process_starts():
    c = config.resolve(config.Config(model=config.Model(size="1018M")))
    with pytest.raises(UserError, match="recipe huge are too large"):
        cpu_probe.probe(c, lambda samples: np.full(samples, 9), 1, "huge")


@pytest.mark.usefixtures("_on_cpu")
def test_a_probe_makes_small_models(tiny: tiny_run.Tiny, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "run", tiny_run.run_in_process)
    [(_, c)] = load.load_sweep(tiny.config, ())
    c = dataclasses.replace(c, train=dataclasses.replace(c.train, validations=0))
    speed = cpu_probe.probe(c, lambda samples: np.full(samples, 8), 1, "tiny")
    assert 0 < speed.step_seconds < 10
    assert 0 < speed.score_seconds_per_sample < 1
    assert not [*Path(tiny.folder).glob("lm_mia_plan_*")]
