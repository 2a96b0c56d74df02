import dataclasses
from typing import Any

import pytest

from lm_mia.model import memory
from lm_mia.plan import speed
from lm_mia.plan.speed import Batches, Chip, MeasuredMfu

SIZE = memory.gpt_size(24, 1024, 16, 32_000, 1024, "bfloat16")
# 51 packed sequences of 1,024 tokens, in every batch.
BATCHES = Batches(1, 128, 0, sequences=51.0, sequences_std=0.0, size=SIZE, attention="auto")
GIVEN = Chip("tpu v5p", 1e15, 0.4)
TPU = Chip("tpu v5p", 459e12, None)


@pytest.mark.parametrize(
    ("num_devices", "micro_batch_size", "padded_sequences"),
    [
        (1, 0, 56),  # seven micro-batches of 8
        (4, 0, 64),  # 32 samples per device, so 4 sequences each: four micro-batches of 16
        (16, 0, 64),  # one sequence each: four micro-batches of 16
        (64, 0, 64),
        (1, 1, 51),
        (8, 2, 64),
        (64, 2, 128),
    ],
)
def test_filled_share_by_hand(num_devices: int, micro_batch_size: int, padded_sequences: int):
    b = dataclasses.replace(BATCHES, micro_batch_size=micro_batch_size)
    assert speed.filled_share(b, TPU.name, num_devices) == pytest.approx(51 / padded_sequences)


def test_filled_share_is_averaged_over_batches():
    # 64 sequences on average; the half of the batches that have more are padded to 128.
    b = dataclasses.replace(BATCHES, sequences=64.0, sequences_std=4.0)
    assert speed.filled_share(b, TPU.name, 64) == pytest.approx(64 / 96, rel=0.01)


def test_given_mfu_is_that_of_one_device_per_model():
    assert speed.speed(BATCHES, GIVEN).mfu == 0.4
    s = speed.speed(dataclasses.replace(BATCHES, devices_per_model=64), GIVEN)
    assert (s.devices_per_model, s.mfu_source) == (64, "given")
    assert s.mfu == pytest.approx(0.4 * 56 / 64)
    assert s.train_flops_per_second == pytest.approx(1e15 * 0.4 * 56 / 64)
    assert s.score_flops_per_second == pytest.approx(1e15 * 0.4)  # scoring does not pad batches


def test_mfu_of_the_table(monkeypatch: pytest.MonkeyPatch):
    size = SIZE.blocks
    table: dict[Any, Any] = {("tpu v5p", 1): {size // 2: 0.3, size * 2: 0.5}}
    table["tpu v5p", 4] = {size // 2: 0.2, size * 2: 0.4}
    table["tpu v5p", 8] = {size // 2: 0.1}  # does not bound larger models
    table["tpu v5p", 16] = {size * 2: 0.25}  # bounds smaller models, too
    monkeypatch.setattr(speed, "mfu_bounds", lambda: table)
    monkeypatch.setattr(speed, "measured_mfus", dict)  # no chip was measured
    chip = Chip("tpu v5", 459e12, None)  # another name of the chip
    s = speed.speed(BATCHES, chip)
    assert (s.mfu_source, s.mfu) == ("roofline", pytest.approx(0.4))  # halfway, in logarithms
    s = speed.speed(dataclasses.replace(BATCHES, devices_per_model=4), chip)
    assert s.mfu == pytest.approx(0.3)  # includes the empty sequences
    for count, mfu in {2: 0.4 * 56 / 64, 3: 0.4 * 56 / 60, 8: 0.3, 16: 0.25, 64: 0.25}.items():
        assert speed.mfu_bound("tpu v5p", BATCHES, count) == pytest.approx(mfu), count
    small = dataclasses.replace(
        BATCHES, size=memory.gpt_size(2, 1024, 16, 32_000, 1024, "bfloat16")
    )
    assert speed.mfu_bound("tpu v5p", small, 1) == 0.3
    assert speed.mfu_bound("tpu v5p", small, 8) == 0.1
    large = dataclasses.replace(
        BATCHES, size=memory.gpt_size(240, 1024, 16, 32_000, 1024, "bfloat16")
    )
    assert speed.mfu_bound("tpu v5p", large, 1) == 0.5
    assert speed.mfu_bound("h100", BATCHES, 1) is None
    s = speed.speed(BATCHES, Chip("a chip of 9 TFLOP/s", 9e12, None))
    assert (s.mfu_source, s.mfu) == ("assumed", 0.4)


def test_mfu_is_that_of_the_measured_chip(monkeypatch: pytest.MonkeyPatch):
    """Several devices scale it by their bound, and other chips reach the same share of their bounds."""
    size = SIZE.blocks
    bounds: dict[Any, Any] = {("h100", 1): {size: 0.6}, ("h100", 4): {size: 0.3}}
    bounds["tpu v5p", 1] = {size: 0.8}
    measured = {size // 2: MeasuredMfu(0.2, 0.3), size * 2: MeasuredMfu(0.4, 0.5)}
    monkeypatch.setattr(speed, "mfu_bounds", lambda: bounds)
    monkeypatch.setattr(speed, "measured_mfus", lambda: {"h100": measured})
    h100 = Chip("NVIDIA H100 80GB HBM3", 1e15, None)
    s = speed.speed(BATCHES, h100)
    assert (s.mfu_source, s.mfu) == ("measured", pytest.approx(0.3))  # halfway, in logarithms
    assert s.score_flops_per_second == pytest.approx(0.4e15)
    s = speed.speed(dataclasses.replace(BATCHES, devices_per_model=4), h100)
    assert s.mfu == pytest.approx(0.3 / 2)
    assert s.score_flops_per_second == pytest.approx(0.4e15)
    s = speed.speed(BATCHES, TPU)
    assert (s.mfu_source, s.mfu) == ("roofline", pytest.approx(0.8 * 0.3 / 0.6))
    assert speed.speed(BATCHES, dataclasses.replace(h100, mfu=0.1)).mfu == 0.1


def test_batches_on_gpus_leave_hardly_a_packed_sequence_empty():
    b = dataclasses.replace(BATCHES, sequences=50.5, sequences_std=2.5)
    assert speed.filled_share(b, "h100", 1) > 0.98
    assert speed.filled_share(b, TPU.name, 1) < 0.95


def test_the_table_of_measurements_is_of_plausible_values():
    for measured in speed.measured_mfus().values():
        assert all(0.1 < m.train < 0.7 for m in measured.values())
        assert any(0.1 < m.score < 0.7 for m in measured.values())
    assert {"h100"} == speed.measured_mfus().keys()


def test_table_has_bounds_of_one_device_per_model():
    bounds = [mfu for points in speed.mfu_bounds().values() for mfu in points.values()]
    assert {("h100", 1), ("tpu v5p", 1)} <= speed.mfu_bounds().keys()
    assert all(0 < mfu < 1 for mfu in bounds)


def test_automatic_devices_follow_the_memory():
    auto = dataclasses.replace(BATCHES, devices_per_model="auto")
    large = dataclasses.replace(auto, size=memory.gpt_size(60, 4096, 16, 32_000, 1024, "bfloat16"))
    assert speed.resolve_devices_per_model(auto, Chip("h100", 1.0, None)) == 1
    assert speed.resolve_devices_per_model(large, Chip("an unknown chip", 1.0, None)) == 1
    # 12 billion parameters: the sums of gradients alone take 48 GB, and parameters and moments 145 GB.
    assert speed.resolve_devices_per_model(large, Chip("gb300", 1.0, None)) > 1
    # 0, and a model that does not fit in the memory of a machine, are planned with one machine.
    assert speed.resolve_devices_per_model(large, Chip("a30", 1.0, None)) == 8
    zero = dataclasses.replace(BATCHES, devices_per_model=0)
    assert speed.resolve_devices_per_model(zero, Chip("tpu v5p", 1.0, None)) == 4
