"""The benchmark of planned memory, with the CPU compiler, which is always available."""

import argparse
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest
from unoptimized import without_optimizations

from lm_mia import config
from lm_mia.model import transformer
from lm_mia.train import execution

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture

MODEL_CONFIG = transformer.ModelConfig(
    layers=3, width=64, heads=2, vocab_size=128, length_tokens=64
)


@pytest.fixture(scope="module")
def memory() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("memory")


def execution_plan(attention: Any = "xla", micro_batch_size: int = 2) -> execution.ExecutionPlan:
    model_config = dataclasses.replace(MODEL_CONFIG, attention=attention, scan_layers=True)
    return execution.ExecutionPlan(
        model_config, (micro_batch_size,), chunk_tokens=128, attention_reason=""
    )


@pytest.fixture(scope="module")
def plan(memory) -> Any:
    """Returns the memory of a step over 16 samples in one micro-batch."""
    return memory.plan_memory(
        MODEL_CONFIG, execution_plan(micro_batch_size=16), 16, memory.device_mesh("cpu")
    )


def test_arguments_are_state_and_batch_and_state_is_donated(plan):
    layer = 12 * 64 * 64 + 2 * 64
    parameters = 3 * layer + 128 * 64 + 64 * 64 + 64
    state = 3 * 4 * parameters + 4  # with two moments, float32, and a count
    batch = 3 * 4 * 16 * 64 + 3 * 4  # three int32 arrays, three numbers
    assert 0 <= plan.arguments - state - batch < 1024  # except for alignment
    assert plan.outputs < 1024
    assert plan.temporaries > 4 * parameters  # at least the gradient
    assert plan.workspace == 0
    assert plan.total == plan.arguments + plan.outputs + plan.temporaries


def test_smaller_micro_batches_save_memory(memory, plan):
    planned = memory.plan_memory(
        MODEL_CONFIG, execution_plan(micro_batch_size=4), 16, memory.device_mesh("cpu")
    )
    assert planned.temporaries < plan.temporaries / 2
    assert planned.arguments == plan.arguments


def test_workspace_equals_what_cudnn_reports(memory):
    model_config = transformer.ModelConfig(24, 1024, 16, 32_000, 1024, "bfloat16")
    reported = 34_078_976 - 256  # by cuDNN 9.23.2 for an H100; 256 bytes are for alignment
    assert memory.workspace(model_config, execution_plan("cudnn", micro_batch_size=8)) == reported
    for attention in ("xla", "pallas_gpu"):
        assert memory.workspace(model_config, execution_plan(attention, micro_batch_size=8)) == 0


def test_fits_at_the_memory_limits(memory):
    most = memory.DEVICE_BYTES
    assert most == pytest.approx(80e9, rel=0.07)
    assert memory.fits(int(0.75 * most), "cuda") == "yes"
    assert memory.fits(int(0.75 * most) + 1, "cuda") == ".95"
    assert memory.fits(int(0.95 * most) + 1, "cuda") == "no"
    assert memory.fits(most, "tpu") == "yes"
    assert memory.fits(95 * 10**9 + 1, "cpu") == "no"


def test_exactly_one_setting_is_marked_as_automatic(memory):
    model_config = memory.sized_model_config("302M")
    on_80_gb = execution.plan_execution(
        config.Compute(), model_config, 128, "gpu", 3 * memory.DEVICE_BYTES // 4
    )
    c = argparse.Namespace(platform="cuda", batch_size=128, attention=("pallas", "cudnn", "xla"))
    c.layers, c.remat = ("unrolled", "scanned"), ("none", "full")
    c.micro_batch_size = (8, on_80_gb.micro_batch_size)
    planned = list(memory.execution_plans(c, model_config))
    assert len(planned) == 3 * 2 * 2 * 2
    assert [choice.model_config for choice, auto in planned if auto] == [on_80_gb.model_config]


def test_missing_compiler_is_reported_on_one_line(memory, monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("no such plugin\ntrace")

    monkeypatch.setattr(memory.topologies, "get_topology_desc", missing)
    with pytest.raises(SystemExit) as error:
        memory.device_mesh("cuda")
    assert re.match(r"--platform=cuda: .*--platform=cpu$", str(error.value))


def test_setting_refused_by_the_compiler_is_a_table_row(memory, monkeypatch):
    def plan(*_):
        raise jax.errors.JaxRuntimeError(messages.pop())

    c = argparse.Namespace(platform="tpu", batch_size=128, kind="gpt")
    messages = ["INTERNAL: something else", "RESOURCE_EXHAUSTED: used 40G of 32G hbm"]
    monkeypatch.setattr(memory, "plan_memory", plan)
    line = memory.table_row("302M", execution_plan("pallas_tpu"), True, c, None)
    assert [cell[:3] for cell in line.split(" | ")[5:]] == [*["-"] * 6, "no:", "-", "aut"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        memory.table_row("302M", execution_plan("pallas_tpu"), True, c, None)
