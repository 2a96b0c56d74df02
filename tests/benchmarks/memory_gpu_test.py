"""The training step as it is compiled for an H100, where JAX has a compiler for it; no GPU is needed."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lm_mia import config
from lm_mia.model import transformer
from lm_mia.train import execution


@pytest.fixture(scope="module")
def memory() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("memory")


@pytest.fixture(scope="module")
def h100(memory: ModuleType) -> Any:
    try:
        return memory.device_mesh("cuda")
    except SystemExit as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("dtype", "attention", "kind"),
    [("bfloat16", "auto", "pallas_gpu"), ("float32", "xla", "xla")],
)
def test_the_step_sums_without_atomic_additions(
    memory: ModuleType, h100: Any, dtype: str, attention: Any, kind: str
):
    """Scatters and cuDNN's backward pass add in an order that differs between runs."""
    model_config = transformer.ModelConfig(
        layers=2, width=128, heads=2, vocab_size=512, length_tokens=128, dtype=dtype
    )
    compute = config.Compute(attention=attention, micro_batch_size=4)
    plan = execution.plan_execution(compute, model_config, 8, "gpu", 2**30)
    assert plan.model_config.attention == kind
    text = memory.lower_step(plan, 8, h100).compile().as_text()
    opcodes = set(re.findall(r" ([a-z][a-z-]*)\(", text))
    targets = set(re.findall(r'custom_call_target="([^"]*)"', text))
    assert {"custom-call", "fusion", "while"} <= opcodes
    assert "scatter" not in opcodes
    assert not [target for target in targets if "cudnn" in target]
    assert "__gpu$xla.gpu.triton" in targets
    assert plan.is_reproducible
