import dataclasses

import pytest

from lm_mia.model import memory

GIB = 2**30
SMALL = memory.gpt_size(3, 512, 8, 32_000, 1024, "bfloat16")
SIZES = {
    "10M": memory.gpt_size(3, 512, 8, 32_000, 1024, "bfloat16"),
    "44M": memory.gpt_size(14, 512, 8, 32_000, 1024, "bfloat16"),
    "140M": memory.gpt_size(20, 768, 12, 32_000, 1024, "bfloat16"),
    "302M": memory.gpt_size(24, 1024, 16, 32_000, 1024, "bfloat16"),
    "1018M": memory.gpt_size(36, 1536, 24, 32_000, 1024, "bfloat16"),
}


def test_activation_bytes_computed_by_hand():
    """Per token and layer: 16.2 activations of the width; for xla, weights of 0.6 L tokens per head."""
    assert memory.activation_bytes(SMALL, "cudnn", 2) == pytest.approx(
        3 * 2 * 1024 * 512 * 16.2 * 2
    )
    weights = 8 * 1024 * (4 + 2) * 0.6
    expected = 3 * 2 * 1024 * (512 * 16.2 * 2 + weights)
    assert memory.activation_bytes(SMALL, "xla", 2) == pytest.approx(expected)
    exact = dataclasses.replace(SMALL, dtype="float32")
    assert memory.activation_bytes(exact, "pallas_gpu", 2) == pytest.approx(
        3 * 2 * 1024 * 512 * 16.2 * 4
    )


@pytest.mark.parametrize(
    ("size", "micro_batch_size", "num_devices", "planned_gib"),
    [
        ("10M", 52, 1, 3.84),
        ("44M", 52, 1, 13.39),
        ("140M", 52, 1, 28.32),
        ("302M", 51, 1, 45.34),
        ("1018M", 17, 1, 47.79),
        ("140M", 26, 2, 15.14),
        ("140M", 7, 8, 5.42),
        ("302M", 13, 4, 13.69),
        ("1018M", 7, 8, 20.53),
    ],
)
def test_training_bytes_agree_with_the_compiler(
    size: str, micro_batch_size: int, num_devices: int, planned_gib: float
):
    """The planned values are those of docs/results/accelerators.md for H100s."""
    estimated = memory.training_bytes(
        SIZES[size], "pallas_gpu", micro_batch_size, num_devices, is_scanned=False
    )
    assert estimated / GIB == pytest.approx(planned_gib, rel=0.02)


@pytest.mark.parametrize(
    ("size", "micro_batch_size", "planned_gib"),
    [("302M", 8, 7.02), ("302M", 32, 9.03), ("1018M", 8, 21.68), ("1018M", 32, 25.24)],
)
def test_training_bytes_of_scanned_layers_suffice(
    size: str, micro_batch_size: int, planned_gib: float
):
    """The planned values are those of docs/results/memory.md for an H100."""
    estimated = memory.training_bytes(SIZES[size], "pallas_gpu", micro_batch_size, 1, True)
    assert 1 < estimated / GIB / planned_gib < 1.2


def test_more_devices_share_parameters_and_moments_only():
    one, two, four = (
        memory.training_bytes(SIZES["1018M"], "pallas_tpu", 8, k, False) for k in (1, 2, 4)
    )
    embeddings = 4 * (32_000 + 1024) * 1536  # which one device need not gather
    sharded = 12 * (12 * 36 * 1536**2 + (32_000 + 1024) * 1536)
    assert one - two + embeddings == pytest.approx(sharded / 2, rel=1e-3)
    assert two - four == pytest.approx(sharded / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("platform", "size", "gib", "devices", "expected"),
    [
        ("gpu", "302M", 60, 8, 1),
        ("gpu", "1018M", 60, 8, 1),
        ("gpu", "1018M", 20, 3, 3),  # two of three devices would leave one idle
        ("gpu", "1018M", 15.75, 2, 0),
        ("gpu", "1018M", 8, 8, 0),
        ("tpu", "302M", 15.75, 4, 1),  # TPU v5e
        ("tpu", "1018M", 15.75, 8, 8),
        ("tpu", "1018M", 15.75, 2, 0),
    ],
)
def test_the_smallest_number_of_devices_whose_memory_suffices(
    platform: str, size: str, gib: float, devices: int, expected: int
):
    chosen = memory.fewest_devices(SIZES[size], "pallas", 128, 0, platform, gib * GIB, devices)
    assert chosen == expected


def test_a_requested_micro_batch_needs_more_devices():
    def choose(platform: str, requested: int, gib: float) -> int:
        return memory.fewest_devices(
            SIZES["302M"], "pallas", 128, requested, platform, gib * GIB, 8
        )

    for platform in ("gpu", "tpu"):
        assert choose(platform, 8, 9.8) == 1
        assert choose(platform, 32, 9.8) == 2
        assert choose(platform, 32, 12) == 1


def micro_batch_sizes(
    size: str, gib: float, num_devices: int = 1, requested: int = 0, platform: str = "gpu"
) -> tuple[tuple[int, ...], bool]:
    return memory.micro_batch_sizes(
        requested, SIZES[size], "pallas", 128, num_devices, platform, gib * GIB
    )


@pytest.mark.parametrize(("size", "gib"), [("302M", 60), ("1018M", 60), ("1018M", 28)])
def test_on_gpus_micro_batches_are_as_large_as_memory_allows(size: str, gib: float):
    sizes, is_unrolled = micro_batch_sizes(size, gib)

    def needed(number: int) -> float:
        return memory.training_bytes(SIZES[size], "pallas", number, 1, not is_unrolled)

    most = sizes[-1]
    assert needed(most) <= 0.9 * gib * GIB < needed(most + 1)
    assert [*sizes] == [n for n in range(1, most + 1) if n <= 32 or n % 2 == 0 or n == most]
    assert is_unrolled == (gib == 60)


def test_micro_batches_on_gpus_may_be_small():
    assert micro_batch_sizes("302M", 60, num_devices=8) == (tuple(range(1, 17)), True)
    assert micro_batch_sizes("10M", 60, num_devices=2) == ((*range(1, 33), *range(34, 65, 2)), True)


def test_layers_are_unrolled_if_the_requested_micro_batch_fits():
    assert micro_batch_sizes("302M", 60, requested=32) == (tuple(range(1, 33)), True)
    assert micro_batch_sizes("302M", 20, requested=32) == (tuple(range(1, 33)), False)


def test_tpus_have_one_size_of_micro_batches():
    assert micro_batch_sizes("302M", 60, platform="tpu") == ((8,), True)
    assert micro_batch_sizes("1018M", 20, platform="tpu") == ((8,), False)
