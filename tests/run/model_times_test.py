"""Durations of models from events; times in seconds."""

from typing import Any

import pytest

from lm_mia.run.model_times import Timeline, WorkerTimes, durations


def worker_of(events: list[tuple[float, dict[str, Any]]], verb: str = "run") -> WorkerTimes:
    """Returns the times of a worker that is started at 10 and ready at 14."""
    timeline = Timeline()
    timeline.add(10, {"event": "models", "verb": verb})
    timeline.add(14, {"event": "worker", "index": 0})
    for now, event in events:
        timeline.add(now, {"index": 0, **event})
    return timeline.all_workers[0]


def made(
    began: float, train: float, score: float, resumed_at: int = 0
) -> list[tuple[float, dict[str, Any]]]:
    """Returns the events of a model of 100 steps that was trained and scored in some seconds."""
    return [
        (began, {"event": "model_started", "model": f"{began}"}),
        (began + train, {"event": "model_trained", "steps": 100, "resumed_at": resumed_at}),
        (began + train + score, {"event": "model_scored", "last": True}),
    ]


def test_first_models_are_known_without_compilation_and_count_only_if_there_are_no_others():
    compiled = (60.0, {"event": "compiled", "seconds": 20.0})
    worker = worker_of([*made(14, 36, 10), compiled])
    assert worker.start_seconds == 4
    assert durations(worker.models, "train_seconds") == [16]
    assert durations(worker.models, "score_seconds") == [10]
    worker = worker_of([*made(14, 36, 10), compiled, *made(60, 15, 9)])
    assert durations(worker.models, "train_seconds") == [15]
    assert durations(worker.models, "score_seconds") == [9]


def test_steps_of_a_first_model_tell_which_part_of_compilation_was_in_training():
    """Compilation took 25 s: 20 s before the first step, which ends at 14 + 20 + 0.3, and 5 s in scoring."""
    started, trained, scored = made(14, 50, 15)
    steps = [(34.3, {"event": "train", "step": 0, "steps": 100})]
    worker = worker_of(
        [started, *steps, trained, scored, (79, {"event": "compiled", "seconds": 25.0})]
    )
    [model] = worker.models
    assert model.train_seconds == pytest.approx(30)
    assert model.score_seconds == pytest.approx(10)


def test_time_between_models_counts_unless_the_worker_waits():
    worker = worker_of([*made(14, 10, 5), *made(31, 10, 5)])
    assert durations(worker.models, "train_seconds") == [12]
    waiting = (30.0, {"event": "waiting"})
    worker = worker_of([*made(14, 10, 5), waiting, *made(40, 10, 5)])
    assert durations(worker.models, "train_seconds") == [10]
    diverged = [
        (29.0, {"event": "model_started", "model": "bad"}),
        (49.0, {"event": "model_diverged", "model": "bad"}),
    ]
    worker = worker_of([*made(14, 10, 5), *diverged, *made(50, 10, 5)])
    assert durations(worker.models, "train_seconds") == [11]


def test_resumed_models_and_commands_that_only_train_or_only_score():
    worker = worker_of([*made(14, 1, 1), *made(16, 10, 5, resumed_at=75)])
    assert durations(worker.models, "train_seconds") == [40]
    started, trained, scored = made(14, 10, 5)
    worker = worker_of([started, trained], "train")
    assert (
        durations(worker.models, "train_seconds"),
        durations(worker.models, "score_seconds"),
    ) == ([10], [])
    worker = worker_of([started, scored], "score")
    assert (
        durations(worker.models, "train_seconds"),
        durations(worker.models, "score_seconds"),
    ) == ([], [15])


def test_workers_of_several_jobs_and_stages_are_kept_apart():
    timeline = Timeline()
    for now, event in (
        (0, {"event": "models", "verb": "run", "job": "a"}),
        (5, {"event": "models", "verb": "run", "job": "b"}),
        (6, {"event": "worker", "job": "a", "index": 0}),
        (7, {"event": "worker", "job": "b", "index": 0}),
        (8, {"event": "worker_lost", "job": "a", "index": 0}),
        (9, {"event": "stage", "stage": "attack", "seconds": 2.0}),
        (9, {"event": "stage", "stage": "attack", "seconds": 1.0}),
    ):
        timeline.add(now, event)
    assert [worker.start_seconds for worker in timeline.all_workers] == [6, 2]
    assert list(timeline.workers) == [("b", 0)]
    assert timeline.stage_seconds == {"attack": 2.0}
