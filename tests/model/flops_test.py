from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padded_batches import batch_loss
from slow_model import shapes
from unoptimized import without_optimizations

from lm_mia.model import flops, kinds, memory, transformer

__all__ = ["without_optimizations"]  # a fixture


def by_hand(layers: int, width: int, vocab_size: int, lengths: list[int]) -> float:
    """Adds up the FLOPs of a forward pass, one matrix product after another."""
    total = 0.0
    for n in lengths:
        for _ in range(layers):
            total += 4 * 2 * n * width * width  # queries, keys, values, output
            total += 2 * 2 * n * width * (4 * width)  # up and down projection of the MLP
            total += 2 * 2 * (n * n / 2) * width  # q k and p v, earlier tokens only
        total += 2 * n * width * vocab_size
    return total


@given(
    st.integers(1, 9),
    st.integers(1, 999),
    st.integers(1, 99_999),
    st.lists(st.integers(2, 1024), min_size=1),
)
def test_training_and_scoring_equal_sum_of_matrix_products(layers, width, vocab, lengths):
    sums = sum(lengths), sum(n * n for n in lengths)
    expected = by_hand(layers, width, vocab, lengths)
    size = memory.gpt_size(layers, width, 1, vocab, 1024, "float32")
    assert flops.scoring(size, *sums) == pytest.approx(expected, rel=1e-12)
    assert flops.training(size, *sums) == pytest.approx(3 * expected, rel=1e-12)


MODEL_CONFIG = transformer.ModelConfig(
    layers=3, width=256, heads=4, vocab_size=2048, length_tokens=128
)


@pytest.mark.usefixtures("without_optimizations")
@pytest.mark.parametrize("stage", ["training", "scoring"])
def test_xla_counts_the_same_flops(stage: str):
    """Holds for padded batches, where XLA computes attention between all pairs of tokens, twice the causal ones.

    XLA also counts operations such as sums and exponentials, a few percent here and less in wider models.
    """
    x_BxL: Any = np.ones((2, 128), np.int32)
    length_B: Any = np.full(2, 128)
    params, model = shapes(MODEL_CONFIG), transformer.TransformerLM(MODEL_CONFIG)

    def mean_loss(params: transformer.Params) -> jax.Array:
        logits_BxLxV: Any = model.apply({"params": params}, x_BxL)
        return batch_loss(logits_BxLxV, x_BxL, length_B)

    function = jax.value_and_grad(mean_loss) if stage == "training" else mean_loss
    compiled = jax.jit(function).lower(params).compile()
    costs = compiled.cost_analysis()
    assert costs is not None
    counted = costs["flops"]
    tokens, pairs = 2 * 128, 2 * 128**2
    expected = getattr(flops, stage)(kinds.size(MODEL_CONFIG), tokens, 2 * pairs)
    assert 1.0 < counted / expected < 1.04


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("h100-pcie", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA GB200", 2500),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("TPU v2", 23),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v4 lite", 138),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU7x", 1153.5),
        *((name, None) for name in ("cpu", "Tesla V100-SXM2-16GB", "Tesla T4", "", "AMD Instinct MI300X")),
        # not the device whose name it contains
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA RTX 6000", None),
    ],
)  # fmt: skip
def test_device_peaks_by_device_kind(kind: str, tera: float | None):
    assert flops.device_peak(kind) == (None if tera is None else pytest.approx(tera * 1e12))


def test_chip_peaks():
    assert flops.chip_peak("TPU7x") == 2307e12  # two JAX devices
    assert flops.chip_peak("h100") == 989e12
    assert flops.chip_peak("cpu") is None
    for name in flops.DEVICE_NAMES:
        assert (flops.chip_peak(name) or 0) / (flops.device_peak(name) or 1) in (1, 2)
