"""Simulated commands: the estimate is compared with the time that the simulation then takes."""

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lm_mia import events
from lm_mia.run import remaining
from lm_mia.run.remaining import ModelRate, RecipeWork, RemainingTime

Timed = list[tuple[float, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Worker:
    """A simulated worker process; all times in seconds."""

    train: float = 30.0
    score: float = 10.0
    ready: float = 5.0
    compilation: float = 20.0


def simulate(
    workers: list[Worker], models: int, *, recipe: str = "a", begin: float = 0.0, missing: int = 0
) -> tuple[Timed, float]:
    """Returns the events of the workers of one recipe in order of time, and the time of the last.

    Args:
      workers: the workers.
      models: number of models that are made.
      recipe: name of the recipe.
      begin: time at which the workers are started.
      missing: number of missing models, if not all of them are made.
    """
    events: Timed = [
        (begin, {"event": "models", "recipe": recipe, "missing": missing or models}),
        *((begin + w.ready, {"event": "worker", "index": i}) for i, w in enumerate(workers)),
    ]
    free = {i: begin + worker.ready for i, worker in enumerate(workers)}
    compiles = dict(enumerate(w.compilation for w in workers))
    for number in range(models):
        i = min(free, key=lambda index: free[index])
        model = {"index": i, "model": f"{recipe}-{number}"}
        now, worker = free[i], workers[i]
        events.append((now, {"event": "model_started", **model}))
        now += compiles.pop(i, 0.0) + worker.train
        events.append((now, {"event": "model_trained", **model}))
        now += worker.score
        events.append((now, {"event": "model_scored", "last": True, **model}))
        free[i] = now
    events.sort(key=lambda timed: timed[0])
    return events, events[-1][0]


def rate_of(events: Timed) -> ModelRate:
    rate = ModelRate()
    for now, event in events:
        rate.add(now, event)
    return rate


def estimates(time_left: RemainingTime, events: Timed) -> Timed:
    """Returns the times of the events, and the estimate at each of them."""
    values: dict[float, Any] = {}
    for now, event in events:
        time_left.add(now, event)
        values[now] = time_left.seconds(now)
    return [*values.items()]


def check(values: Timed, end: float, known_from: float, tolerance: float) -> None:
    """Checks that there is no estimate before a time, and that those from this time on are right."""
    assert all(value is None for now, value in values if now < known_from)
    for now, value in values:
        if now >= known_from:
            assert value == pytest.approx(end - now, abs=tolerance), now


def test_the_estimate_needs_two_models_and_omits_compilation():
    events, end = simulate([Worker(), Worker()], 24)
    values = estimates(RemainingTime([RecipeWork("a", 24, 1.0)], "run"), events)
    check(values, end, 65, 0.5 * end)  # both models were the first ones of their workers
    check([v for v in values if v[0] > 100], end, 100, 8)


def test_many_workers_count_while_only_two_are_finished():
    workers = [Worker(compilation=0.0, ready=float(i)) for i in range(8)]
    events, end = simulate(workers, 80)
    values = estimates(RemainingTime([RecipeWork("a", 80, 1.0)], "run"), events)
    check(values, end, 41, 0.1 * end)


def test_workers_of_unequal_speed():
    events, end = simulate([Worker(compilation=0), Worker(90, 30, compilation=0)], 40)
    values = estimates(RemainingTime([RecipeWork("a", 40, 1.0)], "run"), events)
    check(values, end, 85, 0.35 * end)
    check([v for v in values if v[0] > end / 2], end, end / 2, 0.15 * end)


def test_the_time_passes_between_finished_models():
    time_left = RemainingTime([RecipeWork("a", 10, 1.0)], "run")
    events, _ = simulate([Worker(compilation=0)], 2, missing=10)
    started = {"event": "model_started", "index": 0, "model": "next"}
    for now, event in [*events, (85.0, started)]:
        time_left.add(now, event)
    assert [time_left.seconds(now) for now in (85.0, 95.0, 125.0, 300.0)] == pytest.approx(
        [320, 310, 280, 280]
    )
    assert time_left.per_hour(85.0) == pytest.approx(90)


def test_models_that_other_processes_make():
    """They make as many as this command, and take half of the models."""
    events, end = simulate([Worker(compilation=0, ready=0)], 10, missing=20)
    time_left = RemainingTime([RecipeWork("a", 20, 1.0)], "run")
    for now, event in events:
        time_left.add(now, event)
        if event["event"] == "model_scored":
            count = round(now / 40)
            time_left.add(now, {"event": "finished_elsewhere", "count": count})
            if count > 1:
                assert time_left.seconds(now) == pytest.approx(end - now)
                assert time_left.per_hour(now) == pytest.approx(180)


def test_recipes_with_different_costs():
    """Models of the second recipe are three times as expensive; those of the third are present already."""
    works = [RecipeWork("a", 6, 1.0), RecipeWork("b", 4, 3.0), RecipeWork("c", 0, 9.0)]
    time_left = RemainingTime(works, "run")
    events, end_a = simulate([Worker(compilation=0, ready=0)] * 2, 6)
    slow, end = simulate([Worker(90, 30, 0, 0)] * 2, 4, recipe="b", begin=end_a)
    events += [(end_a, {"event": "models_present", "recipe": "a"}), *slow]
    check(estimates(time_left, events), end, 40, 1)
    time_left.add(end, {"event": "models_present", "recipe": "b"})
    assert time_left.seconds(end) == 0
    assert time_left.per_hour(end) is None


def test_nothing_is_estimated_if_all_models_are_present():
    time_left = RemainingTime([RecipeWork("a", 0, 1.0)], "run")
    time_left.add(0, {"event": "models_present", "recipe": "a"})
    assert time_left.seconds(1) is None


def test_a_killed_worker_and_a_diverged_model():
    time_left = RemainingTime([RecipeWork("a", 9, 1.0)], "run")
    events, now = simulate([Worker(compilation=0)] * 2, 4, missing=9)
    for time, event in events:
        time_left.add(time, event)
    for index in (0, 1):
        time_left.add(now, {"event": "model_started", "index": index, "model": f"next-{index}"})
    assert time_left.seconds(now) == pytest.approx(5 * 40 / 2)
    time_left.add(now + 20, {"event": "model_diverged", "index": 0, "model": "next-0"})
    time_left.add(now + 20, {"event": "worker_lost", "index": 1})
    assert time_left.seconds(now + 20) == pytest.approx(4 * 40 / 2)


@pytest.mark.parametrize("verb", ["train", "score"])
def test_commands_that_only_train_or_only_score(verb: Any):
    time_left = RemainingTime([RecipeWork("a", 4, 1.0)], verb)
    kind = (
        {"event": "model_trained"} if verb == "train" else {"event": "model_scored", "last": True}
    )
    time_left.add(0, {"event": "models", "recipe": "a", "missing": 4})
    for number in range(2):
        model = {"index": 0, "model": f"{number}"}
        time_left.add(30 * number, {"event": "model_started", **model})
        time_left.add(30 * number + 30, {**model, **kind})
    assert time_left.seconds(60) == pytest.approx(60)


def test_pauses_between_commands_and_separate_commands_for_scores():
    """Training and scoring both count, whichever commands did it; the hours between the commands do not."""
    rate, day = ModelRate(), 86_400.0
    for number in range(4):
        model = {"model": f"{number}", "index": 0}
        began = day * (number // 2) + 30 * (number % 2)
        rate.add(began, {"event": "model_started", **model})
        rate.add(began + 30, {"event": "model_trained", **model})
        rate.add(7 * day + 10 * number, {"event": "model_started", **model})
        rate.add(7 * day + 10 * number + 9, {"event": "model_scored", "last": False, **model})
        rate.add(7 * day + 10 * number + 10, {"event": "model_scored", "last": True, **model})
    assert rate.model_seconds() == pytest.approx(40)
    assert rate.per_second() == pytest.approx(1 / 40)
    assert rate.finished_at == 7 * day + 40


def test_only_recent_models_count():
    slow, end = simulate([Worker(compilation=0)], 40)
    fast, _ = simulate([Worker(3, 1, compilation=0)], 40, recipe="b", begin=end)
    assert rate_of([*slow, *fast]).per_second() == pytest.approx(1 / 4)
    many, _ = simulate([Worker(compilation=0)] * 64, 64 * 8)
    assert rate_of(many).per_second() == pytest.approx(64 / 40)


def test_rates_are_read_from_the_log(tmp_path: Path):
    assert remaining.read_rates(tmp_path) == {}
    lines = []
    for recipe, count in (("a", 4), ("b", 1)):
        simulated, _ = simulate([Worker(), Worker()], count, recipe=recipe)
        for now, event in simulated:
            time = datetime.fromtimestamp(1e9 + now, UTC).isoformat(timespec="milliseconds")
            line = {"time": time, "recipe": recipe, "device": "cpu", **event}
            lines += [json.dumps(line), json.dumps({"event": "train", "time": time})]
    (tmp_path / events.FOLDER).mkdir()
    log = tmp_path / events.FOLDER / "log.jsonl"
    log.write_text("\n".join(lines) + '\n{"event": "model_scored", "ti')
    rates = remaining.read_rates(tmp_path)
    assert (rates["a"].per_second(), rates["b"].per_second()) == (pytest.approx(2 / 40), None)
    assert rates["a"].devices == ["cpu"]
    assert rates["a"].finished_at == 1e9 + 105


def test_the_time_of_recipes_without_models_is_scaled_by_cost():
    works = [RecipeWork("a", 3, 2.0), RecipeWork("b", 5, 1.0), RecipeWork("c", 0, 1.0)]
    assert remaining.seconds_left(works, {"a": 0.1}) == pytest.approx({"a": 30, "b": 25, "c": 0})
    assert remaining.seconds_left(works, {}) == {"c": 0}
