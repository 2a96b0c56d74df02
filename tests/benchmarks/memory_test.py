"""The benchmark of planned memory, on the compiler that is always there: the CPU's."""

import argparse
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest
from quick_compilation import quickly_compiled

from lm_mia import config
from lm_mia.model import transformer
from lm_mia.train import execution

pytestmark = pytest.mark.usefixtures("quickly_compiled")
__all__ = ["quickly_compiled"]  # a fixture

SHAPE = transformer.ModelConfig(layers=3, width=64, heads=2, vocab_size=128, length_tokens=64)


@pytest.fixture(scope="module")
def memory() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("memory")


def choice(attention: Any = "xla", rows: int = 2) -> execution.ExecutionPlan:
    model_config = dataclasses.replace(SHAPE, attention=attention, scan_layers=True)
    return execution.ExecutionPlan(model_config, rows, chunk_tokens=128, attention_reason="")


@pytest.fixture(scope="module")
def plan(memory) -> Any:
    """Of 16 samples, all at once."""
    return memory.plan(SHAPE, choice(rows=16), 16, memory.mesh("cpu"))


def test_arguments_are_the_state_and_the_batch_and_the_state_is_written_over(plan):
    layer = 12 * 64 * 64 + 2 * 64
    parameters = 3 * layer + 128 * 64 + 64 * 64 + 64
    state = 3 * 4 * parameters + 4  # with two moments, float32, and a count
    batch = 3 * 4 * 16 * 64 + 3 * 4  # three int32 arrays, three numbers
    assert 0 <= plan.arguments - state - batch < 1024  # but for alignment
    assert plan.outputs < 1024
    assert plan.temporaries > 4 * parameters  # the gradient at least
    assert plan.workspace == 0
    assert plan.total == plan.arguments + plan.outputs + plan.temporaries


def test_fewer_rows_at_once_save_memory(memory, plan):
    found = memory.plan(SHAPE, choice(rows=4), 16, memory.mesh("cpu"))
    assert found.temporaries < plan.temporaries / 2
    assert found.arguments == plan.arguments


def test_workspace_is_what_cudnn_told(memory):
    shape = transformer.ModelConfig(24, 1024, 16, 32_000, 1024, "bfloat16")
    told = 34_078_976 - 256  # by cuDNN 9.23.2 for an H100; 256 bytes are for alignment
    assert memory.workspace(shape, choice("cudnn", rows=8)) == told
    assert memory.workspace(shape, choice("xla", rows=8)) == 0


def test_what_fits(memory):
    most = memory.DEVICE_BYTES
    assert most == pytest.approx(80e9, rel=0.07)
    assert memory.fits(int(0.75 * most), "cuda") == "yes"
    assert memory.fits(int(0.75 * most) + 1, "cuda") == ".95"
    assert memory.fits(int(0.95 * most) + 1, "cuda") == "no"
    assert memory.fits(most, "tpu") == "yes"
    assert memory.fits(most + 1, "cpu") == "no"


def test_one_of_the_settings_is_the_automatic_one(memory):
    c = argparse.Namespace(platform="cuda", batch_size=128, attention=("cudnn", "xla"))
    c.layers, c.remat, c.micro_batch_size = ("unrolled", "scanned"), ("none", "full"), (8, 32)
    shape = memory.shape_of("302M")
    found = list(memory.choices(c, shape))
    assert len(found) == 2 * 2 * 2 * 2
    on_80_gb = execution.plan_execution(
        config.Compute(), shape, 128, "gpu", 3 * memory.DEVICE_BYTES // 4
    )
    assert [choice.model_config for choice, auto in found if auto] == [on_80_gb.model_config]


def test_a_compiler_that_is_not_there_is_one_line_that_says_so(memory, monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("no such plugin\ntrace")

    monkeypatch.setattr(memory.topologies, "get_topology_desc", missing)
    with pytest.raises(SystemExit) as error:
        memory.mesh("cuda")
    assert str(error.value) == (
        "--platform=cuda: JAX has no compiler for it here (no such plugin); "
        "install the extra cuda, or say --platform=cpu"
    )


def test_a_compiler_that_refuses_is_a_line_of_the_table(memory, monkeypatch):
    def plan(*_):
        raise jax.errors.JaxRuntimeError(messages.pop())

    c = argparse.Namespace(platform="tpu", batch_size=128)
    messages = ["INTERNAL: something else", "RESOURCE_EXHAUSTED: used 40G of 32G hbm"]
    monkeypatch.setattr(memory, "plan", plan)
    line = memory.row("302M", choice("pallas"), True, c, None)
    assert line.split(" | ")[5:] == [*["-"] * 5, "no: the compiler refuses", "-", "auto |"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        memory.row("302M", choice("pallas"), True, c, None)
