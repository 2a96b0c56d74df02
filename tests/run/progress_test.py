import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress, ProgressSample

from lm_mia.run import progress
from lm_mia.run.remaining import RecipeWork, RemainingTime
from lm_mia.run.stages import ModelVerb


def shown(overall: bool = False, terminal: bool = False) -> tuple[progress.Display, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    return progress.Display(console, Progress(console=console, auto_refresh=False), overall), out


def bars(display: progress.Display) -> dict[str, tuple[float, float | None]]:
    return {task.description: (task.completed, task.total) for task in display._progress.tasks}


def event(kind: str, model: str, **more: object) -> dict[str, object]:
    return {"event": kind, "model": model, **more}


def trained(model: str, resumed_at: int = 0) -> dict[str, object]:
    return event("model_trained", model, steps=40, resumed_at=resumed_at, seconds=1.25)


def scored(model: str, step: int = 40) -> dict[str, object]:
    means = {"member_loss_nats": 3.5, "nonmember_loss_nats": 4.25}
    return event("model_scored", model, step=step, last=step == 40, seconds=2, **means)


def worker(
    index: int = 0, devices: int = 1, processes: int = 1, plan: str = "scanned"
) -> dict[str, object]:
    description = {"platform": "cpu", "device": "cpu", "devices": devices, "processes": processes}
    return {
        "event": "worker",
        "index": index,
        "execution_plan": plan,
        "cache": "/c",
        "is_primary": True,
    } | description


def test_display_has_one_bar_per_label_and_an_overall_bar():
    display, _ = shown(overall=True)
    display.stage(0.25, num_parts=2)
    display.update("read", 1, 2)
    assert bars(display) == {"overall": (0.0625, 1), "read": (1, 2)}
    display.update("read", 2, 2)
    display.update("write", 1, 4)
    assert bars(display)["overall"] == (0.25 * (1 + 0.25) / 2, 1)
    display.stage(0.75)
    assert bars(display)["overall"] == (0.25, 1)
    display.update("train", 0, 0)
    display.update("train", 2, 4)
    assert bars(display) == {
        "overall": (0.625, 1), "read": (2, 2), "write": (1, 4), "train": (2, 4),
    }  # fmt: skip


def test_single_stage_has_no_overall_progress_bar():
    display, _ = shown()
    display.stage(0.5)
    assert bars(display) == {}


def test_lines_are_printed_verbatim():
    display, out = shown()
    line = "x=[red]1[/red]: " + "long " * 50
    display.say(line)
    assert out.getvalue() == line + "\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_replace_bars_without_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display, out = shown(terminal=terminal)
    for seconds, done in ((0, 1), (9, 2), (2, 3), (9, 4), (2, 5)):
        now[0] += seconds
        display.update("train", done, 10)
    lines = [line.partition(" (")[0] for line in out.getvalue().splitlines()]
    assert lines == ([] if terminal else ["train 30%", "train 50%"])


def test_line_includes_overall_progress(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display, out = shown(overall=True)
    display.stage(0.5)
    now[0] += 11
    display.update("train", 1, 10)
    assert out.getvalue() == "overall 5%, train 10%\n"


def test_tally_counts_models_and_fractions_of_models():
    display, out = shown(overall=True)
    tally = progress.Tally(display, "run", requested=6, missing=4)
    assert bars(display) == {"overall": (0, 1), "train": (2, 6), "score": (2, 6)}
    tally.on_event(worker())
    tally.on_event(event("step", "a", step=10, steps=40))
    tally.on_event(event("step", "b", step=20, steps=40))
    tally.on_event(event("train", "b", step=20, steps=40, loss_nats=1.0))
    assert bars(display)["train"] == (2.75, 6)
    tally.on_event(trained("a"))
    tally.on_event(trained("b", resumed_at=30))
    tally.on_event(scored("a"))
    assert bars(display) == {"overall": (0, 1), "train": (4, 6), "score": (3, 6)}
    assert [
        (line.split()[:2], re.findall(r"[\d.]+(?= )", line))
        for line in out.getvalue().splitlines()[2:]
    ] == [
        (["a:", "trained"], ["40", "1.2"]),
        (["b:", "trained"], ["40", "1.2"]),
        (["a:", "scored"], ["2", "3.500", "4.250"]),
    ]
    assert "step 30, " in out.getvalue().splitlines()[3]
    tally.finish()  # other processes made the others
    assert bars(display) == {"overall": (0, 1), "train": (6, 6), "score": (6, 6)}


@pytest.mark.parametrize(("verb", "label"), [("train", "train"), ("score", "score")])
def test_single_verb_shows_only_its_bar(verb: ModelVerb, label: str):
    display, _ = shown()
    tally = progress.Tally(display, verb, requested=3, missing=3)
    tally.on_event(trained("a") if verb == "train" else scored("a"))
    assert bars(display) == {label: (1, 3)}


def test_model_scored_from_a_checkpoint_counts_as_trained():
    """An earlier command trained it, so there is no model_trained event."""
    display, _ = shown()
    tally = progress.Tally(display, "run", requested=2, missing=2)
    tally.on_event(scored("a"))
    assert bars(display) == {"train": (1, 2), "score": (1, 2)}


def test_display_draws_to_stderr(capsys: pytest.CaptureFixture[str]):
    with progress.display(overall=True) as display:
        display.update("corpus", 1, 1)
        display.say("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert "hello" in err
    assert "corpus" in err


def test_a_display_without_bars_prints_no_line(capsys: pytest.CaptureFixture[str]):
    with progress.display(overall=False) as display:
        display.say("hello")
    assert capsys.readouterr().err == "hello\n"


def test_waiting_is_reported_once_and_not_for_own_models():
    display, out = shown()
    tally = progress.Tally(display, "run", 3, 3)
    tally.on_event({"event": "model_started", "model": "a"})
    tally.on_event({"event": "waiting", "models": ["a"]})
    assert out.getvalue() == ""
    for _ in range(2):
        tally.on_event({"event": "waiting", "models": ["a", "b", "c"]})
    assert re.fullmatch(r"waiting [^\n]*: b, c\n", out.getvalue())


def test_worker_lines_and_shared_execution_plan():
    display, out = shown()
    tally = progress.Tally(display, "run", 3, 3)
    tally.on_event(worker(0))
    tally.on_event(worker(1))
    tally.on_event(worker(2, devices=8, processes=2, plan="unrolled"))
    tally.on_event(
        {"event": "compiled", "index": 1, "seconds": 2.25, "from_cache": 7, "compiled": 1}
    )
    assert out.getvalue().splitlines() == [
        "worker 0: cpu (cpu)",
        "scanned; compilation cache: /c",
        "worker 1: cpu (cpu)",
        "worker 2: cpu (cpu), 8 devices in 2 processes",
        "unrolled; compilation cache: /c",
        "worker 1: 2.2 s of compilation: 1 function compiled, 7 read from the cache",
    ]


def test_model_counts_as_scored_after_its_last_score_point():
    display, out = shown()
    tally = progress.Tally(display, "score", requested=2, missing=2)
    tally.on_event(scored("a", step=10))
    assert bars(display) == {"score": (0, 2)}
    assert out.getvalue() == ""
    tally.on_event(scored("a"))
    assert bars(display) == {"score": (1, 2)}
    assert out.getvalue().startswith("a: scored")


def test_diverged_model_is_not_counted():
    display, out = shown()
    tally = progress.Tally(display, "train", requested=2, missing=2)
    tally.on_event(event("step", "a", step=20, steps=40))
    tally.on_event(event("model_diverged", "a", message="model a: loss=nan at step 21; lower it"))
    assert bars(display) == {"train": (0, 2)}
    assert re.fullmatch(r"model a: loss=nan at step 21; lower it; [^\n]*continue\n", out.getvalue())


def test_killed_worker_is_reported_in_one_line():
    display, out = shown()
    progress.Tally(display, "run", 3, 3).on_event(
        {"event": "worker_lost", "index": 3, "exit_code": -9, "left": 1}
    )
    assert re.fullmatch(r"worker 3 [^\n]*code -9 [^\n]*; 1 worker left [^\n]*\n", out.getvalue())


@pytest.mark.parametrize("overall", [True, False])
def test_rate_and_remaining_time_are_shown_after_two_models(
    monkeypatch: pytest.MonkeyPatch, overall: bool
):
    """One of 12 models takes 260 seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display, out = shown(overall=overall)
    display.estimate_from_models(RemainingTime([RecipeWork("r", 12, 1.0)], "run"))
    display.track({"event": "models", "recipe": "r", "missing": 12})
    tally = progress.Tally(display, "run", requested=12, missing=12)

    def left() -> dict[str, str]:
        return {t.description: display.remaining_text(t) for t in display._progress.tasks}

    tally.on_event(worker() | {"index": 0})
    for model in "ab":
        for seconds, new in (
            (0, event("model_started", model, index=0)),
            (130, event("step", model, step=20, steps=40, index=0)),
            (130, trained(model) | {"index": 0}),
        ):
            now[0] += seconds
            tally.on_event(new)
            assert left().get("overall", "") == ""
        tally.on_event(scored(model) | {"index": 0})
    text = "13.8 models per hour, 43 min left"
    shown_by = ("overall",) if overall else progress.MODEL_BARS
    assert all(left()[name] == text for name in shown_by)
    now[0] += 11
    display.update("corpus", 1, 12)
    line = f"overall 0% ({text}), corpus 8%" if overall else "corpus 8%"
    assert out.getvalue().splitlines()[-1] == line
    now[0] += 2700  # later than estimated: no time is better than a wrong one
    assert left().get("overall", "") == ""


@pytest.mark.parametrize("overall", [True, False])
def test_each_bar_shows_its_own_remaining_time(overall: bool):
    """Bars of models too, as long as nothing is known from finished models."""
    display, _ = shown(overall=overall)
    display.estimate_from_models(RemainingTime([RecipeWork("r", 12, 1.0)], "run"))
    display.update("train", 0, 10)
    bar = display._progress.tasks[-1]
    assert progress._DurationColumn(display.remaining_text).render(bar).plain == ""
    bar._progress.extend(ProgressSample(float(second), 0.001) for second in (0, 1))
    bar.start_time = 0.0
    shown_text = progress._DurationColumn(display.remaining_text).render(bar).plain
    assert shown_text == "2 h 47 min left"
    bar.finished_time = 1.0
    assert progress._DurationColumn(display.remaining_text).render(bar).plain == ""
