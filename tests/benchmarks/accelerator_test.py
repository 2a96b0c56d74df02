"""The benchmark for one accelerator, with a tiny model and its parts in this process."""

import argparse
import csv
import importlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from unoptimized import without_optimizations

from lm_mia.model import flops, memory, transformer

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture
TINY = transformer.ModelConfig(layers=1, width=8, heads=1, vocab_size=512, length_tokens=64)


@pytest.fixture(scope="module")
def accelerator() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("accelerator")


def session(accelerator: ModuleType, **flags: Any) -> Any:
    c = argparse.Namespace(sizes=["10M"], scale=16, batch_size=8, dtype="float32", nanodo=None)
    c.steps, c.rounds, c.samples, c.csv = 2, 2, 16, None
    vars(c).update(flags)
    return accelerator.Session(c, Path())


@pytest.fixture
def _signal_handlers() -> Iterator[None]:
    """Restores the handlers of the signals that a worker handles."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def table(output: str, title: str) -> list[dict[str, str]]:
    lines = output.split(f"### {title}\n\n")[1].split("\n\n")[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.slow  # a benchmark that is run by hand
@pytest.mark.usefixtures("_signal_handlers")
def test_section_of_a_tiny_model(
    accelerator: ModuleType, monkeypatch: Any, capsys: Any, tmp_path: Path
):
    measured: dict[Any, Any] = {}

    def measure(work: Any, folder: Path, **settings: Any) -> Any:
        key = work, settings["name"] if "stop_step" in settings else "", settings.get("stop_step")
        if key not in measured:  # compiles once, since that takes seconds
            clock = accelerator.fresh.Clock()
            results = work(clock, tmp_path, **settings)
            measured[key] = accelerator.fresh.Measured(clock.seconds, clock.peak_bytes, results)
        return measured[key]

    monkeypatch.setattr(accelerator.fresh, "measure", measure)
    monkeypatch.setattr(accelerator.steps, "sized_model_config", lambda *_: TINY)
    monkeypatch.setattr(accelerator.flops, "device_peak", lambda kind: 1e9)
    monkeypatch.setattr("sys.argv", ["accelerator.py", "--sizes=10M"])
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    run = session(accelerator, csv=tmp_path / "mfu.csv")
    accelerator.report(run)
    captured = capsys.readouterr()
    assert run.failures == []
    assert captured.out.startswith(f"## cpu, JAX {jax.__version__}\n\n    python -m benchmarks ")
    (training,) = table(captured.out, "Training")
    # By hand: tokens of the batches after the three that warm up, of which the first round has two.
    length_N = accelerator.c4_like.lengths(7 * 8, 16)[24:]
    tokens, squares = length_N.sum(), (length_N**2).sum()
    rate = float(training["tokens/s"].replace(",", ""))
    useful = (
        flops.training(memory.gpt_size(1, 8, 1, 512, 64, "float32"), tokens, squares)
        / tokens
        * rate
        / 1e9
    )
    assert float(training["MFU"].strip("%")) / 100 == pytest.approx(useful, rel=0.3, abs=1e-3)
    assert float(training["s per step"]) > 0
    (scoring,) = table(captured.out, "Scoring")
    assert scoring["samples"] == "16"
    (attention,) = table(captured.out, "Attention")
    assert attention["default"] == "xla"
    assert float(attention["its loss"]) == pytest.approx(np.log(512), abs=0.7)
    again, resumed = table(captured.out, "Same bits")
    equal = {"parameters and moments": "bitwise equal", "losses of samples": "bitwise equal"}
    assert again == {"model": "10M", "trained again": "in a new process, compiled again", **equal}
    assert resumed["trained again"] == "stopped after step 6 and continued"
    assert equal.items() <= resumed.items()
    assert table(captured.out, "Kernels")[0]["kernels per step"] == "no GPU"
    assert "[11/11, 0:" in captured.err
    [row] = csv.DictReader((tmp_path / "mfu.csv").read_text().splitlines())
    assert float(row["train_mfu"]) == pytest.approx(useful, rel=0.3, abs=1e-3)
    assert (row["chip"], row["layers"], row["width"]) == ("cpu", "1", "8")
    assert float(row["score_mfu"]) > 0


def test_lack_of_memory_is_reported_and_nanodo_divides_its_batch(
    accelerator: ModuleType, monkeypatch: Any, capsys: Any
):
    calls: list[tuple[str, int]] = []

    def measure(work: Any, folder: Path, **settings: Any) -> Any:
        calls.append((settings["name"], settings["parts"]))
        if settings["name"] == accelerator.steps.PACKED or settings["parts"] < 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large\ntrace")
        ones = np.ones(2)
        results = {"warm_up_seconds": np.array(7.0), "loss_nats": np.array(6.0)}
        results |= {"seconds_R": 2 * ones, "tokens_R": 100 * ones, "sum_squared_lengths_R": ones}
        results |= {"device_bytes": np.array(3 * 2**30)}
        return accelerator.fresh.Measured(9.0, 5, results)

    monkeypatch.setattr(accelerator.fresh, "measure", measure)
    run = session(accelerator, nanodo=Path("nanodo"))
    ours, theirs = accelerator.training_rows(run, None, {})
    assert ours[:3] == ("10M", "packed", "out of memory")
    assert theirs == (
        *("10M", "NanoDO padded, 4 parts", "50", "50 to 50", "--", "--", "1"),
        *("4.0", "4.0", "3.0"),  # 7 seconds, less three steps
    )
    padded = accelerator.steps.THEIRS
    assert calls == [(accelerator.steps.PACKED, 1), *((padded, n) for n in (1, 2, 4, 4))]
    assert run.failures == []  # too little memory is a result
    assert "RESOURCE_EXHAUSTED: too large\n" in capsys.readouterr().err


def test_other_errors_fail_and_the_next_parts_continue(accelerator, monkeypatch):
    def measure(*_: Any, **__: Any) -> Any:
        raise ValueError("a shape\nis wrong")

    monkeypatch.setattr(accelerator.fresh, "measure", measure)
    run = session(accelerator, sizes=["10M", "44M"])
    assert [row[:2] for row in accelerator.scoring_rows(run, None)] == [
        ("10M", "failed"),
        ("44M", "failed"),
    ]
    assert run.failures == [f"{size}: scoring, 2 rounds: a shape" for size in ("10M", "44M")]


def test_different_final_states_fail(accelerator, monkeypatch):
    def measure(work: Any, folder: Path, *, name: str, **_: Any) -> Any:
        results = {"sha256": np.array(name), "losses": np.array("equal")}
        results |= {"steps": np.array(6), "resumed_at": np.array(6)}
        return accelerator.fresh.Measured(9.0, 5, results)

    monkeypatch.setattr(accelerator.fresh, "measure", measure)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "cache")
    run = session(accelerator)
    words = "in a new process, compiled again", "stopped after step 6 and continued"
    assert list(accelerator.same_bits_rows(run)) == [
        ("10M", w, "differ", "bitwise equal") for w in words
    ]
    assert run.failures == [f"10M, {w}: the sha256 of the final state differ" for w in words]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("attention_backward_keys", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "attention"),
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_ssched_bz_coopB_TNN", "products"),
        ("nvjet_sm90_tst_192x192_64x3_2x1_v_ssched_bz_coopB_gelu_NNN", "products"),
        ("memcpy", "copies"),
        ("MemcpyH2D", "copies"),
        ("loop_concatenate_fusion_3", "copies"),
        ("input_add_reduce_fusion_12", "elementwise"),
        ("embedding_gradient", "elementwise"),
    ],
)
def test_kernels_are_named_by_kind(accelerator: ModuleType, kernel: str, kind: str):
    assert accelerator.profile_kernels.kind(kernel) == kind


def test_different_losses_of_attention_fail(accelerator, monkeypatch):
    results = {"loss_nats": np.array(6.0), "gradient_norm": np.array(2.0)}
    measured = accelerator.fresh.Measured(9.0, 5, results)
    monkeypatch.setattr(accelerator.fresh, "measure", lambda *_, **__: measured)
    run = session(accelerator, dtype="bfloat16")
    first = {"loss_nats": np.array(6.03), "gradient_norm": np.array(2.1), "attention": "cudnn"}
    cells = next(accelerator.attention_rows(run, {"10M": first}))
    assert cells == ("10M", "cudnn", "6.030000", "6.000000", "0.005", "0.05")
    assert run.failures == []
    next(accelerator.attention_rows(run, {"10M": first | {"loss_nats": np.array(6.3)}}))
    assert run.failures == ["10M: the losses of the implementations of attention differ"]


def test_invalid_flags_are_reported_on_one_line(accelerator, monkeypatch, capsys):
    for flag, message in {
        "--scale=3": "--scale=3: must divide 1024",
        "--sizes=11M": "--sizes=11M: unknown sizes; choose from small, 10M",
        "--batch-size=0": "--batch-size=0: must be at least 1",
    }.items():
        monkeypatch.setattr("sys.argv", ["accelerator.py", flag])
        with pytest.raises(SystemExit):
            accelerator.main()
        assert message in capsys.readouterr().err
