"""The steps that the benchmark of training compares; of NanoDO, which is not installed, only its settings."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from slow_model import parameters
from unoptimized import without_optimizations

from lm_mia import config
from lm_mia.model import flops, kinds, memory, transformer

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture

MODEL_CONFIG = transformer.ModelConfig(
    layers=2, width=128, heads=2, vocab_size=512, length_tokens=64
)
SMALL = transformer.ModelConfig(layers=1, width=8, heads=1, vocab_size=512, length_tokens=64)


@pytest.fixture(scope="module")
def steps() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("steps")


def test_packed_and_padded_steps_have_equal_losses(steps: ModuleType):
    population = steps.c4_like.population(64, SMALL.vocab_size, scale=16)
    losses = {}
    for name in (steps.PACKED, steps.PADDED):
        step = steps.make_step(name, population, SMALL, 32, None)
        batches = np.arange(64).reshape(2, 32)
        losses[name] = [float(step(ids_B)["loss_nats"]) for ids_B in batches]
    assert losses[steps.PACKED] == pytest.approx(losses[steps.PADDED], rel=1e-5)
    # An untrained model has a loss of about log V.
    assert losses[steps.PACKED][0] == pytest.approx(np.log(512), abs=0.7)


def test_lowered_flops_are_those_of_one_micro_batch(steps: ModuleType):
    """The table multiplies them by the number of micro-batches. This fails if XLA counts loops differently."""
    nothing = steps.c4_like.population(0, MODEL_CONFIG.vocab_size, scale=16)
    micro_batch_size = steps.make_trainer(nothing, MODEL_CONFIG, 256).plan.micro_batch_size
    lowered = steps.lowered(
        name=steps.PACKED, model_config=MODEL_CONFIG, batch_size=256, nanodo=None, whole_chunks=True
    )
    L = MODEL_CONFIG.length_tokens
    # A block of 256 queries is multiplied with all keys, so attention costs twice its useful half.
    useful = flops.training(
        kinds.size(MODEL_CONFIG), micro_batch_size * L, 2 * micro_batch_size * L**2
    )
    assert micro_batch_size == 32  # 2,048 tokens, whose logits would be held in four chunks
    assert 1 < lowered.cost_analysis()["flops"] / useful < 1.25  # softmax, layernorm, optimizer


def test_compiled_bytes_grow_with_the_batch_arrays_only(steps: ModuleType):
    given = {"name": steps.PACKED, "model_config": SMALL, "batch_size": 256, "nanodo": None}
    small = steps.compiled_bytes(steps.lowered(**given))
    count = kinds.size(SMALL).parameters
    # Weights, two moments and gradients, and the three arrays of a packed batch.
    assert small > 4 * 4 * count + 3 * 4 * 64 * 256
    # Micro-batches hold 32 packed sequences, so a batch of twice the size only adds to the int32 arrays.
    large = steps.compiled_bytes(steps.lowered(**given | {"batch_size": 512}))
    assert large - small == pytest.approx(3 * 4 * 64 * (512 - 256), abs=4096)


def test_nanodo_settings_equal_our_optimizer_config(steps: ModuleType):
    recipe = config.Optimizer(schedule="linear", clip_norm="none", warmup_steps=7)
    settings = steps.nanodo_peer.settings(MODEL_CONFIG, recipe, 32, 100)
    assert settings["model"] == {"D": 128, "H": 2, "L": 64, "N": 2, "F": 512, "dtype": "float32"}
    assert settings["opt"]["num_train_steps"] == 100
    assert settings["opt"]["decay_type"] == "linear"
    assert settings["opt"]["clip_by_global_norm"] is None  # 0 would scale every gradient to 0
    assert settings["opt"]["warmup_steps"] == 7


def test_parameters_are_converted_to_nanodo(steps: ModuleType):
    params = parameters(MODEL_CONFIG)
    settings = steps.nanodo_peer.to_nanodo_params(params)
    block = settings["blocks_1"]
    assert set(settings) == {"embed", "pos_embed", "blocks_0", "blocks_1", "out_ln"}
    for theirs, ours in (
        (block["CausalAttn_0"]["value"]["kernel"], params["blocks"]["attn"]["value"]["kernel"][1]),
        (
            block["CausalAttn_0"]["attn_out_proj"]["kernel"],
            params["blocks"]["attn"]["out"]["kernel"][1],
        ),
        (block["Mlp_0"]["Dense_1"]["kernel"], params["blocks"]["mlp"]["down"]["kernel"][1]),
        (settings["pos_embed"]["embedding"], params["pos_embed"]["embedding"]),
    ):
        assert np.array_equal(theirs, ours)
    size = memory.gpt_size(2, 128, 2, 512, 64, "float32")
    assert sum(leaf.size for leaf in jax.tree.leaves(settings)) == size.parameters


def test_path_without_nanodo_is_refused(
    steps: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        steps.nanodo_peer.check(tmp_path)
    assert stopped.value.code == 2
    assert "nanodo/train.py " in capsys.readouterr().err
