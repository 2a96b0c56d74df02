"""Simulated commands: the estimate is compared with the time that the simulation then takes."""

import dataclasses
from typing import Any

import pytest

from lm_mia.run.remaining import RecipeWork, RemainingTime

STEPS = 100


@dataclasses.dataclass(frozen=True)
class Worker:
    """A simulated worker process; all times in seconds."""

    train: float = 30.0
    score: float = 10.0
    ready: float = 5.0
    compilation: float = 20.0


def simulate(
    workers: list[Worker],
    models: int,
    *,
    missing: int = 0,
    recipe: str = "a",
    begin: float = 0.0,
    resumed: int = 0,
    elsewhere: float = 0.0,
) -> tuple[list[tuple[float, dict[str, Any]]], float]:
    """Returns the events of the workers of one recipe in order of time, and the time at which no model is missing.

    Args:
      workers: the workers.
      models: number of models that are made.
      missing: number of missing models, if not all of them are made.
      recipe: name of the recipe.
      begin: time at which the workers are started.
      resumed: number of models, the first ones, that are resumed after half of their steps.
      elsewhere: seconds per model of another process that makes models of the recipe; 0: there is none.
    """
    start = {
        "event": "models",
        "recipe": recipe,
        "missing": missing or models,
        "trained": 0,
        "verb": "run",
    }
    events: list[tuple[float, dict[str, Any]]] = [(begin, start)]
    free = {i: begin + worker.ready for i, worker in enumerate(workers)}
    for i, now in free.items():
        events.append((now, {"event": "worker", "index": i}))
    next_elsewhere, num_elsewhere = begin + elsewhere, 0
    made, finished = 0, begin
    first = set(free)
    while made < models:
        i = min(free, key=lambda index: free[index])
        if elsewhere and next_elsewhere - elsewhere < free[i]:
            num_elsewhere, made = num_elsewhere + 1, made + 1
            events.append((next_elsewhere, {"event": "finished_elsewhere", "count": num_elsewhere}))
            finished, next_elsewhere = max(finished, next_elsewhere), next_elsewhere + elsewhere
            continue
        worker, now, name = workers[i], free[i], f"{recipe}-{made}"
        resumed_at = STEPS // 2 if made < resumed else 0
        extra = worker.compilation if i in first else 0.0
        train = worker.train * (1 - resumed_at / STEPS)
        shared: dict[str, Any] = {"index": i, "model": name, "steps": STEPS}
        events.append((now, {"event": "model_started", **shared}))
        for share in (0.25, 0.5, 0.75):
            step = resumed_at + round(share * (STEPS - resumed_at))
            events.append((now + extra + share * train, {"event": "step", "step": step, **shared}))
        now += extra + train
        events.append((now, {"event": "model_trained", "resumed_at": resumed_at, **shared}))
        now += worker.score
        events.append((now, {"event": "model_scored", "last": True, **shared}))
        if extra:
            events.append((now, {"event": "compiled", "seconds": extra, "index": i}))
            first.discard(i)
        free[i], made, finished = now, made + 1, max(finished, now)
    return sorted(events, key=lambda timed: timed[0]), finished


def estimates(
    remaining: RemainingTime, events: list[tuple[float, dict[str, Any]]]
) -> list[tuple[float, float | None]]:
    """Returns the times of the events, and the estimate at each of them."""
    values: dict[float, float | None] = {}
    for now, event in events:
        remaining.add(now, event)
        values[now] = remaining.seconds(now)
    return [*values.items()]


def alone(models: int, tables: float = 0.0, report: float = 0.0) -> RemainingTime:
    work = RecipeWork("a", models, 1.0, tables)
    return RemainingTime([work], report, trains=True, scores=True)


def check(
    values: list[tuple[float, float | None]], end: float, first_finish: float, tolerance: float
) -> None:
    """Checks that there is no estimate before the first finished model, and that later ones are right."""
    assert {value for now, value in values if now < first_finish} <= {None}
    for now, value in values:
        if now > first_finish:
            assert value == pytest.approx(end - now, abs=tolerance * (end - first_finish)), now


def test_compilation_is_counted_once():
    events, end = simulate([Worker(), Worker()], 12)
    values = estimates(alone(12), events)
    first_finish = 5 + 20 + 30 + 10
    check(values, end, first_finish, 0.01)
    # Multiplied by six models per worker, the first one would give 300 seconds.
    [after_first, *_] = [value for now, value in values if now > first_finish]
    assert after_first == pytest.approx(5 * 40 - 7.5, abs=1)


def test_workers_of_unequal_speed():
    events, end = simulate([Worker(), Worker(90, 30)], 12)
    values = estimates(alone(12), events)
    check(values, end, 65, 0.1)
    # As soon as the steps of the slow worker are known, its first model need not be finished.
    check([(now, value) for now, value in values if now > 90], end, 90, 0.03)


def test_resumed_models_do_not_make_the_others_look_faster():
    events, end = simulate([Worker(), Worker()], 10, resumed=2)
    check(estimates(alone(10), events), end, 50, 0.05)


def test_models_that_are_only_scored_do_not_tell_how_long_training_takes():
    remaining = RemainingTime([RecipeWork("a", 2, 1.0, 0.0)], 0.0, trains=True, scores=True)
    model = {"index": 0, "model": "m"}
    for now, event in [
        (0.0, {"event": "models", "recipe": "a", "missing": 2, "trained": 1, "verb": "run"}),
        (1.0, {"event": "worker", "index": 0}),
        (1.0, {"event": "model_started", **model}),
        (9.0, {"event": "model_scored", "last": True, **model}),
    ]:
        remaining.add(now, event)
    assert remaining.seconds(9) is None


def test_models_that_other_processes_make():
    events, end = simulate([Worker(), Worker()], 30, elsewhere=25.0)
    check(estimates(alone(30), events), end, 65, 0.12)


def test_stages_that_follow_are_counted_and_pass():
    remaining = alone(4, tables=60.0, report=15.0)
    events, end = simulate([Worker(), Worker()], 4)
    check(estimates(remaining, events), end + 75, 65, 0.01)
    for now, event, expected in (
        (end, {"event": "models_present", "recipe": "a"}, 75),
        (end, {"event": "tables", "recipe": "a"}, 75),
        (end + 20, {"event": "step"}, 55),
        (end + 30, {"event": "tables_finished", "recipe": "a"}, 15),
        (end + 30, {"event": "report"}, 15),
        (end + 40, {"event": "step"}, 5),
        (end + 50, {"event": "step"}, 0),
    ):
        remaining.add(now, event)
        assert remaining.seconds(now) == pytest.approx(expected)


def test_recipes_with_different_costs():
    """Models of the second recipe are three times as expensive; those of the third are present already."""
    works = [RecipeWork("a", 6, 1.0, 0), RecipeWork("b", 4, 3.0, 0), RecipeWork("c", 0, 9.0, 0)]
    remaining = RemainingTime(works, 0.0, trains=True, scores=True)
    events, end_a = simulate([Worker(), Worker()], 6)
    slow, end = simulate([Worker(90, 30)] * 2, 4, recipe="b", begin=end_a)
    events += [(end_a, {"event": "models_present", "recipe": "a"}), *slow]
    check(estimates(remaining, events), end, 65, 0.02)
    remaining.add(end, {"event": "models_present", "recipe": "b"})
    assert remaining.seconds(end) == 0


def test_nothing_is_estimated_if_all_models_are_present():
    remaining = alone(0, tables=10.0)
    remaining.add(0, {"event": "models_present", "recipe": "a"})
    remaining.add(0, {"event": "tables", "recipe": "a"})
    assert remaining.seconds(1) is None


def test_waiting_for_models_of_other_processes():
    """Models of other processes are expected to take as long as those of this command, at most."""
    events, _ = simulate([Worker()], 3, missing=4)
    remaining = alone(4, report=7.0)
    *_, (now, _) = estimates(remaining, events)
    remaining.add(now, {"event": "waiting", "index": 0, "models": ["other"]})
    assert remaining.seconds(now) == pytest.approx(40 + 7)
    assert remaining.seconds(now + 30) == pytest.approx(10 + 7)
    assert remaining.seconds(now + 41) is None  # it is slower, and nobody knows by how much
    remaining.add(now + 50, {"event": "finished_elsewhere", "count": 1})
    assert remaining.seconds(now + 50) == pytest.approx(7)


def test_a_killed_worker_and_a_diverged_model():
    events, _ = simulate([Worker(), Worker()], 4, missing=6)
    remaining = alone(6)
    *_, (now, _) = estimates(remaining, events)
    assert remaining.seconds(now) == pytest.approx(40)
    remaining.add(now, {"event": "worker_lost", "index": 1})
    assert remaining.seconds(now) == pytest.approx(80)
    started = {"event": "model_started", "index": 0, "model": "bad"}
    remaining.add(now, started)
    remaining.add(now + 9, {"event": "model_diverged", "index": 0, "model": "bad"})
    assert remaining.seconds(now + 9) == pytest.approx(40)


@pytest.mark.parametrize(("trains", "seconds"), [(True, 30.0), (False, 10.0)])
def test_commands_that_only_train_or_only_score(trains: bool, seconds: float):
    work = RecipeWork("a", 4, 1.0, 0.0)
    remaining = RemainingTime([work], 0.0, trains=trains, scores=not trains)
    models = {"missing": 4, "trained": 4 * (not trains), "verb": "train" if trains else "score"}
    remaining.add(0, {"event": "models", "recipe": "a", **models})
    remaining.add(1, {"event": "worker", "index": 0})
    kind = {"event": "model_trained", "resumed_at": 0, "steps": 10}
    kind = kind if trains else {"event": "model_scored", "last": True}
    now = 1.0
    for model in "xy":
        remaining.add(now, {"event": "model_started", "index": 0, "model": model})
        now += seconds
        remaining.add(now, {"index": 0, "model": model, **kind})
    assert remaining.seconds(now) == pytest.approx(2 * seconds)
