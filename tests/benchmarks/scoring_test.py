"""The benchmark of scoring, without torch and NanoDO: what is timed, tuned and counted."""

import argparse
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from slow_model import parameters, slow_forward, slow_losses
from unoptimized import without_optimizations

from lm_mia.model import flops, kinds, transformer
from lm_mia.train import batching

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture
SMALL = transformer.ModelConfig(layers=1, width=8, heads=2, vocab_size=40, length_tokens=64)
MODEL_CONFIG = transformer.ModelConfig(
    layers=2, width=128, heads=2, vocab_size=512, length_tokens=64
)


@pytest.fixture(scope="module")
def scoring() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("scoring")


def test_packed_and_padded_losses_equal_slow_forward_pass(
    scoring: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    population = scoring.c4_like.population(21, SMALL.vocab_size, scale=16)
    params = parameters(SMALL)
    monkeypatch.setattr(scoring.transformer, "init_params", lambda model, key: params)
    c = argparse.Namespace(nanodo=None, transformers=False, micro_batch_size=2)
    scorer, methods = scoring.scoring_methods(population, SMALL, c)
    assert scorer.micro_batch_size == 2
    assert list(methods) == [scoring.PACKED]

    def plain(padded_BxL: np.ndarray) -> np.ndarray:
        samples = (x_L[: (x_L > 0).sum()] for x_L in padded_BxL)
        return np.array([slow_losses(slow_forward(params, x), x).mean() for x in samples])

    want_N = plain(population.pad(np.arange(21)))
    np.testing.assert_allclose(methods[scoring.PACKED](21, 1), want_N, rtol=1e-5)
    seen: list[int] = []

    def look_up(padded_BxL: np.ndarray) -> np.ndarray:
        """Returns the same losses as `plain`, looked up among the 21 samples."""
        seen.append(len(padded_BxL))
        equal_BxN = (padded_BxL[:, None] == population.pad(np.arange(21))).all(-1)
        return want_N[equal_BxN.argmax(1)]

    for batch_size in (1, 8, 32):  # the last batch is filled up, and the filling is dropped
        seen.clear()
        loss_N = scoring.padded(look_up, population, 21, batch_size)
        np.testing.assert_array_equal(loss_N, want_N)
        assert seen == [batch_size] * -(-21 // batch_size)


def fake(
    monkeypatch: pytest.MonkeyPatch, scoring: ModuleType, seconds: dict[int, float]
) -> tuple[Callable[[int, int], np.ndarray], list[tuple[int, int]]]:
    """Returns a method whose seconds per sample on a fake clock depend on the batch size, and the list of its calls."""
    now: list[float] = [0.0]
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(scoring.time, "perf_counter", lambda: now[0])

    def losses(samples: int, batch_size: int) -> np.ndarray:
        if batch_size not in seconds:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes")
        calls.append((samples, batch_size))
        now[0] += samples * seconds[batch_size]
        return np.zeros(samples, np.float32)

    return losses, calls


def test_best_batch_stops_after_two_slower_sizes(scoring, monkeypatch):
    seconds = {1: 4.0, 2: 5.0, 4: 2.0, 8: 3.0, 16: 2.5, 32: 1.0}
    losses, calls = fake(monkeypatch, scoring, seconds)
    best, rates = scoring.best_batch(losses, 1000)
    assert best == 4
    assert rates == {1: 0.25, 2: 0.2, 4: 0.5, 8: pytest.approx(1 / 3), 16: 0.4}
    assert calls[:3] == [(1, 1), (64, 1), (64, 1)]  # a batch to warm up, then two timed ones


def test_best_batch_fits_memory_and_samples(scoring, monkeypatch):
    losses, _ = fake(monkeypatch, scoring, {1: 4.0, 2: 3.0})
    assert scoring.best_batch(losses, 100)[0] == 2
    losses, calls = fake(monkeypatch, scoring, {2**k: 2.0**-k for k in range(9)})
    assert scoring.best_batch(losses, 100)[0] == 64
    assert max(samples for samples, _ in calls) == 64
    losses, _ = fake(monkeypatch, scoring, {})
    with pytest.raises(RuntimeError, match="Out of memory"):  # not even one sample fits
        scoring.best_batch(losses, 100)


def test_order_of_methods_rotates_every_round(scoring: ModuleType, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    now = [0.0]
    monkeypatch.setattr(scoring.time, "perf_counter", lambda: now[0])

    def method(name: str):
        def run() -> np.ndarray:
            calls.append(name)
            now[0] += {"a": 1.0, "b": 3.0, "c": 2.0}[name]
            return np.array([len(calls)])

        return run

    seconds, results = scoring.in_turn({name: method(name) for name in "abc"}, 4)
    assert "".join(calls) == "abcbcacababc"
    assert {name: seconds_R.tolist() for name, seconds_R in seconds.items()} == {
        "a": [1.0] * 4,
        "b": [3.0] * 4,
        "c": [2.0] * 4,
    }
    assert {name: int(result[0]) for name, result in results.items()} == {"a": 1, "b": 2, "c": 3}


def test_packed_flops_count_padding_of_calls(scoring: ModuleType):
    length_N = scoring.c4_like.lengths(100, scale=16)
    # A call of 16 packed sequences would have two chunks of tokens if it were run.
    flops_per_sample = scoring.packed_flops(MODEL_CONFIG, length_N, call_sequences=16)
    L = MODEL_CONFIG.length_tokens
    num_sequences = -(-batching.plan_packing(length_N, L).num_sequences // 16) * 16
    # A block of queries is multiplied with all keys, so attention costs twice its useful half.
    by_hand = flops.scoring(kinds.size(MODEL_CONFIG), num_sequences * L, 2 * num_sequences * L**2)
    assert 1 < flops_per_sample / (by_hand / 100) < 1.15  # softmax and layernorm


def test_parameters_are_converted_to_gpt_2(scoring: ModuleType):
    params = parameters(MODEL_CONFIG)
    attn = params["blocks"]["attn"]
    weights = scoring.transformers_peer.to_gpt2_params(params)
    assert sum(leaf.size for leaf in weights.values()) == (
        kinds.size(MODEL_CONFIG).parameters + 512 * 128  # the tied embedding has two names
    )
    x_D = np.random.default_rng(0).normal(size=128)
    query_HxK = np.einsum("d,dhk->hk", x_D, attn["query"]["kernel"][1])
    value_HxK = np.einsum("d,dhk->hk", x_D, attn["value"]["kernel"][1])
    all_D3 = x_D @ weights["transformer.h.1.attn.c_attn.weight"]
    np.testing.assert_allclose(all_D3[:128], query_HxK.ravel(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(all_D3[256:], value_HxK.ravel(), rtol=1e-4, atol=1e-5)
    out_D = np.einsum("hk,hkd->d", value_HxK, attn["out"]["kernel"][1])
    theirs_D = value_HxK.ravel() @ weights["transformer.h.1.attn.c_proj.weight"]
    np.testing.assert_allclose(theirs_D, out_D, rtol=1e-4, atol=1e-5)


def test_missing_packages_are_reported_on_one_line(scoring, monkeypatch):
    monkeypatch.setattr(scoring.transformers_peer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"torch and transformers .*`pip install torch"):
        scoring.transformers_peer.check()


def test_invalid_flags_are_reported_on_one_line(scoring, monkeypatch, capsys):
    for flag, message in {
        "--scale=3": "--scale=3: must divide 1024",
        "--sizes=11M": "--sizes: unknown sizes: 11M",
        "--rounds=0": "--rounds, --samples: must be 1 or more",
        "--micro-batch-size=-1": "must be 1 or more; --micro-batch-size: 0 or more",
        "memory": "unknown sections: memory",
    }.items():
        monkeypatch.setattr("sys.argv", ["scoring.py", flag])
        with pytest.raises(SystemExit):
            scoring.main()
        assert message in capsys.readouterr().err
