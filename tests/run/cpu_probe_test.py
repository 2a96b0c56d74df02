import dataclasses
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

__all__ = ["_on_cpu", "tiny"]  # fixtures


def events_of_worker(index: int) -> list[cpu_probe.TimedEvent]:
    """Returns the events of two models of 5 steps of 2 s, whose first one takes 9 s of compilation."""
    shared: dict[str, Any] = {"index": index}
    events: list[cpu_probe.TimedEvent] = [(4.0, {"event": "worker", **shared})]
    now = 4.0
    for compilation in (9.0, 0.0):
        events.append((now, {"event": "model_started", **shared}))
        now += compilation + 0.5
        for step in range(5):
            now += 2
            events.append((now, {"event": "train", "step": step, **shared}))
        now += 0.5
        events.append((now, {"event": "model_trained", "steps": 5, **shared}))
        now += 3
        events.append((now, {"event": "model_scored", **shared}))
        if compilation:
            counts = {"seconds": 6.0, "compiled": 1, "from_cache": 1}
            events.append((now, {"event": "compiled", **counts, **shared}))
    return events


@pytest.mark.parametrize(("is_compiled_for_run", "compile_seconds"), [(True, 6.0), (False, 9.0)])
def test_speed_is_that_of_models_after_the_first(is_compiled_for_run: bool, compile_seconds: float):
    events = [event for index in range(2) for event in events_of_worker(index)]
    end = max(now for now, _ in events)
    speed = cpu_probe._speed(events, end + 1, 30, is_compiled_for_run, cpu_seconds=end + 1)
    assert dataclasses.asdict(speed) == pytest.approx(
        {
            "start_seconds": 5.0,  # with the second in which the workers end
            "compile_seconds": compile_seconds,
            "step_seconds": 2.0,
            "train_extra_seconds": 1.0,
            "score_seconds_per_sample": 0.1,
            "core_share": 0.5,
        }
    )


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
