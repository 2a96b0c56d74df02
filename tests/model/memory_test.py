import dataclasses

import pytest

from lm_mia.model import memory

GIB = 2**30
SMALL = memory.ModelSize(3, 512, 8, 32_000, 1024, "bfloat16")
SIZES = {
    "302M": memory.ModelSize(24, 1024, 16, 32_000, 1024, "bfloat16"),
    "1018M": memory.ModelSize(36, 1536, 24, 32_000, 1024, "bfloat16"),
}


def test_activation_bytes_computed_by_hand():
    """Per token and layer: 18 activations and 4 float32 vectors; for xla, weights of 0.6 L tokens per head."""
    bytes_per_token = 512 * (18 * 2 + 4 * 4)
    assert memory.activation_bytes(SMALL, "cudnn", 2) == 3 * 2 * 1024 * bytes_per_token
    weights = 8 * 1024 * (4 + 2) * 0.6
    expected = 3 * 2 * 1024 * (bytes_per_token + weights)
    assert memory.activation_bytes(SMALL, "xla", 2) == pytest.approx(expected)
    exact = dataclasses.replace(SMALL, dtype="float32")
    assert memory.activation_bytes(exact, "pallas", 2) == 3 * 2 * 1024 * 512 * (18 * 4 + 16)


@pytest.mark.parametrize(
    ("size", "micro_batch_size", "is_scanned", "planned_gib"),
    [
        ("302M", 8, False, 14.31),
        ("302M", 32, False, 37.19),
        ("1018M", 8, False, 37.83),
        ("1018M", 16, False, 54.90),
        ("302M", 8, True, 6.95),
        ("302M", 32, True, 8.85),
        ("1018M", 8, True, 21.72),
        ("1018M", 32, True, 24.93),
        ("302M", 8, False, 14.77),  # this one and the next two: TPU v5p
        ("302M", 8, True, 8.57),
        ("1018M", 8, True, 24.74),
    ],
)
def test_training_bytes_agree_with_the_compiler(
    size: str, micro_batch_size: int, is_scanned: bool, planned_gib: float
):
    """The planned values are those of docs/results/memory.md for one device."""
    device_bytes = GIB if is_scanned else 1000 * GIB  # layers are scanned if memory is scarce
    estimated = memory.training_bytes(SIZES[size], "cudnn", micro_batch_size, 1, device_bytes)
    assert 0.97 < estimated / GIB / planned_gib < 1.23


def test_more_devices_share_parameters_and_moments_only():
    one, two, four = (
        memory.training_bytes(SIZES["1018M"], "pallas", 8, k, 1000 * GIB) for k in (1, 2, 4)
    )
    embeddings = 4 * (32_000 + 1024) * 1536  # which one device need not gather
    sharded = 12 * (12 * 36 * 1536**2 + (32_000 + 1024) * 1536)
    assert one - two + embeddings == pytest.approx(sharded / 2, rel=1e-3)
    assert two - four == pytest.approx(sharded / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "gib", "devices", "expected"),
    [
        ("302M", 60, 8, 1),
        ("1018M", 60, 8, 1),
        ("302M", 15.75, 4, 1),  # TPU v5e
        ("1018M", 15.75, 8, 8),
        ("1018M", 20, 3, 3),  # two of three devices would leave one idle
        ("1018M", 15.75, 2, 0),
        ("1018M", 8, 8, 0),
    ],
)
def test_the_smallest_number_of_devices_whose_memory_suffices(
    size: str, gib: float, devices: int, expected: int
):
    chosen = memory.choose_devices_per_model(SIZES[size], "pallas", 128, 0, gib * GIB, devices)
    assert chosen == expected


def test_a_requested_micro_batch_needs_more_devices():
    choose = memory.choose_devices_per_model
    assert choose(SIZES["302M"], "pallas", 128, 8, 9.8 * GIB, 8) == 1
    assert choose(SIZES["302M"], "pallas", 128, 32, 9.8 * GIB, 8) == 4
