"""The benchmark of roofline bounds: what it computes from compiled programs, and its arguments."""

import dataclasses
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def roofline() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("roofline")


def cost(roofline: ModuleType, **fields: Any) -> Any:
    """Returns costs, which are 0 unless they are given."""
    zeros = {field.name: 0.0 for field in dataclasses.fields(roofline.StepCost)}
    return roofline.StepCost(**{**zeros, "collectives": {}, **fields})


def tpu_mesh(*axes: int) -> Any:
    """Returns a stand-in for a mesh of TPU chips at the coordinates of a slice."""
    coordinates = itertools.product(*(range(n) for n in axes))
    return SimpleNamespace(devices=np.array([SimpleNamespace(coords=list(c)) for c in coordinates]))


@pytest.mark.parametrize(
    ("axes", "links"),
    [
        ((2, 2, 1), 2),
        ((2, 2, 2), 3),
        ((2, 2, 4), 3),  # of a chip at an end of the axis of four
        ((2, 4, 4), 3),
        ((4, 4, 4), 6),  # whose axes are rings
    ],
)
def test_a_reduce_scatter_uses_all_links_of_the_chip_with_the_fewest(
    roofline: ModuleType, axes: tuple[int, int, int], links: int
):
    size = int(np.prod(axes))
    collective = roofline.hlo.Collective("reduce-scatter", 10**9, "{}", 0, 1.0, 0.0)
    seconds = roofline.link_seconds(
        collective, roofline.Case("tpu v5p", "140M", size), tpu_mesh(*axes)
    )
    assert seconds == pytest.approx((size - 1) / size * 1e9 / (links * 100e9))


def test_a_slice_has_the_chips_of_its_name(roofline: ModuleType):
    for size in roofline.CHIPS["tpu v5p"].devices_per_model:
        name, _ = roofline._slice(size)
        chips = np.prod([int(n) for n in name.partition(":")[2].split("x")])
        assert chips == max(size, 4)


def test_costs_of_all_layers_are_extrapolated_from_two_and_four(roofline: ModuleType):
    shallow = cost(roofline, flops=10.0, collectives={"all-gather": (3, 100.0)})
    deep = cost(
        roofline, flops=16.0, collectives={"all-gather": (3, 140.0), "all-reduce": (1, 8.0)}
    )
    whole = roofline.extrapolate(shallow, deep, (2, 4), 20)
    assert whole.flops == 64
    assert whole.collectives == {"all-gather": (3, 460.0), "all-reduce": (1, 72.0)}


def packing(roofline: ModuleType, *lengths_R: list[int]) -> Any:
    """Returns samples of these lengths, in these packed sequences."""
    length_B = np.array([length for lengths in lengths_R for length in lengths])
    sequence_B = np.repeat(np.arange(len(lengths_R)), [len(lengths) for lengths in lengths_R])
    start_B = np.concatenate([np.cumsum([0, *lengths[:-1]]) for lengths in lengths_R])
    plan = roofline.batching.PackingPlan(sequence_B, start_B, np.ones_like(start_B), len(lengths_R))
    return roofline.Packing(length_B, plan)


@pytest.mark.parametrize(
    ("lengths_R", "num_sequences", "blocks"),
    [
        ([[1024]], 1, 16 * 17 / 2),
        ([[1024]], 2, 16 * 17),  # an empty one is one segment of padding
        ([[512, 512]], 1, 2 * 8 * 9 / 2),
        ([[512]], 1, 2 * 8 * 9 / 2),  # the other half is padding
        ([[64] * 16], 1, 16),
        # The second sample holds the first queries of blocks 1 to 15, and begins in block 0.
        ([[32, 992]], 1, 16 * 17 / 2),
        # The second one holds no first query of a block.
        ([[500, 8, 516]], 1, 8 * 9 / 2 + 9 * 10 / 2 - 1),
    ],
)
def test_attention_visits_the_blocks_of_segments(
    roofline: ModuleType, lengths_R: list[list[int]], num_sequences: int, blocks: float
):
    share = roofline.attention_share(
        packing(roofline, *lengths_R), num_sequences, roofline.CHIPS["h100"]
    )
    assert share == pytest.approx(blocks / 16**2 / num_sequences)
    assert roofline.attention_share(packing(roofline, [8]), 1, roofline.CHIPS["tpu v5p"]) == 0.75


def test_batches_use_the_size_that_leaves_the_fewest_sequences_empty(roofline: ModuleType):
    chip = roofline.CHIPS["h100"]
    filled = [packing.plan.num_sequences for packing in roofline.packings()]
    single = roofline.mean_batch((8,), chip, 2)
    assert single.micro_batch_size == 8
    assert single.sequences == pytest.approx(16 * np.ceil(np.array(filled) / 16).mean())
    assert single.iterations(2) == pytest.approx(single.micro_batches)
    every = roofline.mean_batch(range(1, 65), chip, 1)
    assert every.micro_batches == 1
    assert every.filled_share == 1
    assert every.micro_batch_size == np.bincount(filled).argmax()
    assert every.iterations(1) * every.micro_batch_size == pytest.approx(np.mean(filled))
    # Empty sequences are computed as a whole.
    assert 0 < every.attention_share < single.attention_share < 17 / 32


def test_bounds_are_added_to_the_file(roofline: ModuleType, tmp_path: Path):
    path, step = tmp_path / "bounds.csv", cost(roofline, instruction_seconds=1.0)
    cases = [roofline.Case("tpu v5p", "302M", k) for k in (8, 2)]
    roofline.write_csv(path, {cases[0]: step})
    roofline.write_csv(path, {cases[1]: step, roofline.Case("h100", "140M", 1): step})
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert header == ["chip", "layers", "width", "devices_per_model", "mfu"]
    assert [row[:4] for row in rows] == [
        ["h100", "15", "768", "1"],
        ["tpu v5p", "24", "1024", "2"],
        ["tpu v5p", "24", "1024", "8"],
    ]
    assert float(rows[1][4]) == pytest.approx(4 * float(rows[2][4]), rel=0.05)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices-per-model=3"], "--devices-per-model=3: "),
        (["--chips=h100", "--devices-per-model=1,16"], "--devices-per-model=16: cannot be"),
        (["--chips=tpu v5p", "--devices-per-model=5"], "from 1, 2, 4, 8, 16, 32, 64"),
        (["--depths=4"], "--depths=4: "),
        (["--depths=4,2"], "--depths=4,2: "),
        (["--sizes=11M"], "--sizes=11M: unknown sizes"),
        (["--scoring", "--csv=bounds.csv"], "--scoring: "),
    ],
)
def test_invalid_flags_are_reported_before_anything_is_compiled(
    roofline: ModuleType, monkeypatch: Any, capsys: Any, flags: list[str], message: str
):
    monkeypatch.setattr("sys.argv", ["roofline.py", *flags])
    with pytest.raises(SystemExit) as caught:
        roofline.main()
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
