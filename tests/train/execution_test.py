import dataclasses
import re
from typing import Any

import pytest

from lm_mia import config
from lm_mia.errors import UserError
from lm_mia.model import kinds, memory, transformer
from lm_mia.train import execution

AUTO = config.Compute()
GB = 10**9
SMALL = transformer.ModelConfig(3, 512, 8, 32_000, 1024, "bfloat16")
LARGE = transformer.ModelConfig(36, 1536, 24, 32_000, 1024, "bfloat16")


@pytest.mark.parametrize(
    ("platform", "length_tokens", "batch_size", "size"),
    [
        ("cpu", 1024, 128, 2),  # 2,048 tokens
        ("tpu", 1024, 128, 8),  # 8,192 tokens
        ("tpu", 512, 128, 16),
        ("cpu", 100, 128, 16),  # an eighth of the samples
        ("cpu", 4096, 128, 1),  # at least one
        ("tpu", 1024, 7, 1),
        ("tpu", 1000, 64, 8),
    ],
)
def test_the_default_micro_batch_size(
    platform: str, length_tokens: int, batch_size: int, size: int
):
    shape = dataclasses.replace(SMALL, length_tokens=length_tokens)
    plan = execution.plan_execution(AUTO, shape, batch_size, platform)
    assert plan.micro_batch_size == size
    assert plan.chunk_tokens == (512 if platform == "cpu" else 4096)


@pytest.mark.parametrize(("requested", "size"), [(1, 1), (5, 5), (16, 16), (17, 16), (999, 16)])
def test_a_requested_micro_batch_is_at_most_the_batch(requested: int, size: int):
    plan = execution.plan_execution(config.Compute(micro_batch_size=requested), SMALL, 16, "cpu")
    assert plan.micro_batch_size == size


@pytest.mark.parametrize(
    ("devices", "requested", "size"),
    [(1, 0, 8), (2, 0, 8), (4, 0, 4), (8, 0, 2), (64, 0, 1), (48, 8, 3)],
)
def test_devices_share_a_batch(devices: int, requested: int, size: int):
    """Otherwise, most packed sequences of a device would be empty."""
    c = config.Compute(micro_batch_size=requested)
    assert execution.plan_execution(c, SMALL, 128, "tpu", None, devices).micro_batch_size == size


def test_micro_batches_on_gpus_have_sizes_that_memory_allows():
    def sizes(shape: transformer.ModelConfig, gib: int, **compute: Any) -> tuple[int, ...]:
        c = config.Compute(**compute)
        return execution.plan_execution(c, shape, 128, "gpu", gib * 2**30).micro_batch_sizes

    assert sizes(SMALL, 60) == (*range(1, 33), *range(34, 65, 2))
    assert sizes(LARGE, 60) == tuple(range(1, 21))
    assert sizes(LARGE, 80)[-1] > sizes(LARGE, 60)[-1]
    assert sizes(LARGE, 60, micro_batch_size=8) == tuple(range(1, 9))
    short = dataclasses.replace(SMALL, length_tokens=64)
    assert sizes(short, 60) == (64,)  # few tokens: all samples fit into one micro-batch


def test_layers_are_scanned_on_gpus_if_few_sequences_fit_unrolled():
    fixed = memory.training_bytes(kinds.size(LARGE), "pallas_gpu", 0, 1, is_scanned=False)
    sequence = memory.activation_bytes(kinds.size(LARGE), "pallas_gpu", 1)
    logits = 2 * 4 * 4096 * LARGE.vocab_size
    for count, is_scanned in ((4.1, False), (3.9, True)):
        needed = int((fixed + logits + count * sequence) / memory.USABLE_SHARE)
        plan = execution.plan_execution(AUTO, LARGE, 128, "gpu", needed)
        assert plan.model_config.scan_layers == is_scanned
        assert plan.model_config.remat == ("full" if is_scanned else "none")
        assert (plan.micro_batch_size == 4) == (not is_scanned)


def test_layers_are_unrolled_on_tpus_if_activations_fit():
    for shape in (SMALL, LARGE):
        need = memory.activation_bytes(kinds.size(shape), "pallas_tpu", 8)
        plenty = execution.plan_execution(AUTO, shape, 128, "tpu", int(2.01 * need))
        scarce = execution.plan_execution(AUTO, shape, 128, "tpu", int(1.99 * need))
        assert (plenty.model_config.scan_layers, plenty.model_config.remat) == (False, "none")
        assert (scarce.model_config.scan_layers, scarce.model_config.remat) == (True, "full")


def test_unknown_memory_is_assumed_to_be_16_gib():
    for shape, scanned in ((SMALL, False), (LARGE, True)):
        assert execution.plan_execution(AUTO, shape, 128, "tpu").model_config.scan_layers == scanned
        assert (
            execution.plan_execution(AUTO, shape, 128, "tpu", 16 * 2**30).model_config.scan_layers
            == scanned
        )
    assert not execution.plan_execution(AUTO, LARGE, 128, "tpu", 141 * GB).model_config.scan_layers


def test_layers_are_always_unrolled_on_cpus():
    plan = execution.plan_execution(AUTO, LARGE, 128, "cpu", 1)
    assert plan.model_config == dataclasses.replace(
        LARGE, attention="xla", scan_layers=False, remat="none"
    )


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_requested_settings_are_used(platform: str):
    for layers in ("unrolled", "scanned"):
        for remat in ("none", "dots", "full"):
            requested = config.Compute(layers=layers, remat=remat, attention="xla")
            plan = execution.plan_execution(requested, SMALL, 128, platform)
            assert plan.model_config == dataclasses.replace(
                SMALL,
                attention="xla",
                scan_layers=layers == "scanned",
                remat=remat,
                embedding_gradient="sorted" if platform == "gpu" else "scatter",
            )
            assert plan.attention_reason == "requested"


def test_rematerialization_on_tpus_requires_scanned_layers():
    for remat in ("dots", "full"):
        plan = execution.plan_execution(config.Compute(remat=remat), SMALL, 128, "tpu", 141 * GB)
        assert (plan.model_config.scan_layers, plan.model_config.remat) == (True, remat)
        unrolled = config.Compute(layers="unrolled", remat=remat)
        match = f"^compute.layers='unrolled', compute.remat='{remat}': .*TPU"
        with pytest.raises(UserError, match=match):
            execution.plan_execution(unrolled, SMALL, 128, "tpu")


@pytest.mark.parametrize(("layers", "remat"), [("unrolled", "none"), ("scanned", "full")])
def test_the_default_remat_depends_on_the_layers(layers, remat: str):
    plan = execution.plan_execution(config.Compute(layers=layers), SMALL, 128, "cpu")
    assert plan.model_config.remat == remat


def test_attention_depends_on_the_model_and_the_platform():
    assert execution.plan_execution(AUTO, SMALL, 128, "gpu").model_config.attention == "pallas_gpu"
    assert execution.plan_execution(AUTO, SMALL, 128, "tpu").model_config.attention == "pallas_tpu"
    assert execution.plan_execution(AUTO, SMALL, 128, "cpu").model_config.attention == "xla"
    wide = dataclasses.replace(SMALL, heads=2)  # 256 wide
    plan = execution.plan_execution(AUTO, wide, 128, "gpu")
    assert plan.model_config.attention == "xla"
    assert "16, 32, 64 or 128, not 256" in plan.attention_reason
    with pytest.raises(UserError, match=r"compute.attention='cudnn': .*NVIDIA GPU"):
        execution.plan_execution(config.Compute(attention="cudnn"), SMALL, 128, "cpu")


@pytest.mark.parametrize("attention", ["auto", "pallas", "xla", "cudnn"])
def test_only_cudnn_makes_models_that_differ_between_runs(attention: Any):
    plan = execution.plan_execution(config.Compute(attention=attention), SMALL, 128, "gpu")
    assert plan.is_reproducible == (attention != "cudnn")


def test_the_log_line_states_plan_and_reason():
    plan = str(execution.plan_execution(AUTO, LARGE, 128, "gpu", 60 * 2**30))
    assert re.fullmatch(
        r"attention pallas_gpu \(.*\), layers unrolled, remat none, micro-batches .*\b20 packed sequences",
        plan,
    )
    plan = str(execution.plan_execution(config.Compute(layers="scanned"), SMALL, 16, "cpu"))
    assert re.fullmatch(
        r"attention xla \(.*\), layers scanned, remat full, micro-batches of 2 packed sequences",
        plan,
    )
