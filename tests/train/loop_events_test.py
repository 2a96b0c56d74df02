"""Events of training: metrics, throughput and validation losses."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from slow_case import slow_case
from tiny_training import OPTIMIZER, STEPS, newest, run, slow_gradient, trainer

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import flops
from lm_mia.train import loop
from lm_mia.train.optimizer import learning_rates


def test_train_events_hold_metrics_and_throughput(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The clock advances by one second whenever it is read.
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr(loop, "time", clock)
    events = run(tiny, tmp_path)
    logged = [event for event in events if event["event"] == "train"]
    assert [event["step"] for event in logged] == list(range(STEPS))
    assert [event["epoch"] for event in logged] == [0, 0, 0, 1, 1, 1]
    rates = [event["learning_rate"] for event in logged]
    assert rates == learning_rates(OPTIMIZER, STEPS).tolist()
    for event in logged:
        assert (event["model"], event["role"], event["steps"]) == ("reference-01", "reference", 6)
        assert event["gradient_norm"] > 0
        assert event["mfu"] is None  # the peak rate of a CPU is unknown
        assert event["memory_bytes"] > 2**20
    # The first step includes compilation, so it has no throughput.
    assert [event["tokens_per_second"] is None for event in logged] == [True] + [False] * 5
    assert all(event["tokens_per_second"] > 0 for event in logged[1:])
    assert [event["event"] for event in events][-1] == "model_trained"
    assert set(events[-1]) == {"event", "model", "role", "steps", "resumed_at", "seconds"}


def test_throughput_counts_useful_tokens_and_flops(
    tiny: Population, monkeypatch: pytest.MonkeyPatch
):
    assert trainer(tiny).throughput(4000, 24_000, 2.0) == {"tokens_per_second": 2000, "mfu": None}
    monkeypatch.setattr(flops, "device_peak", lambda kind: 1e9 if kind == "cpu" else None)
    # 12 D^2 + V D weights at 6 FLOPs a token; 6 D n^2 of causal attention.
    useful = 6 * (12 * 8 * 8 + 32 * 8) * 4000 + 6 * 8 * 24_000
    rates = trainer(tiny).throughput(4000, 24_000, 2.0)
    assert rates["mfu"] == pytest.approx(useful / 2 / 1e9)


@functools.cache
def held_out(population: Population) -> Population:
    """Returns six samples of the population, as validation samples."""
    offsets_N1 = population.offsets_N1[3:10]
    return Population(population.folder, population.tokens, offsets_N1, population.manifest)


@pytest.mark.parametrize("validations", [1, 4, *(slow_case(n) for n in (2, 6))])
def test_validation_losses_equal_slow_reference(
    tiny: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validations: int
):
    assert len(held_out(tiny)) == 6  # more samples than a batch has
    monkeypatch.setattr(Population, "validation", property(held_out))
    settings = config.Train(batch_size=4, epochs=2, validations=validations)
    events = run(tiny, tmp_path, train_config=settings, keep_steps=range(1, STEPS))
    logged = [event for event in events if event["event"] == "validation"]
    steps = {1: [6], 2: [3, 6], 4: [2, 3, 4, 6], 6: [1, 2, 3, 4, 5, 6]}[validations]
    assert [event["step"] for event in logged] == steps
    for event in logged:
        assert set(event) == {"event", "model", "role", "step", "steps", "validation_loss_nats"}
        params = newest(tmp_path, event["step"])[1].params
        parts = [
            float(slow_gradient(params, tiny.pad(np.array([i]))[0], position)[0])
            for i in range(3, 9)
            for position in range(1, len(tiny.sample(i)))
        ]
        assert event["validation_loss_nats"] == pytest.approx(np.mean(parts), rel=1e-5)
