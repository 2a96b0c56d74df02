import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lm_mia.train import sharding

CASES = {"even": (2, 4), "scanned": (2,), "odd": (4,)}
OVER = [(name, n) for name, of in CASES.items() for n in of]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/shared/four_devices.py found, in one process with four devices."""
    # machine code is made in half the time; what is communicated is decided before
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    script = str(Path(__file__).resolve().parents[1] / "shared" / "four_devices.py")
    folder = tmp_path_factory.mktemp("four_devices")
    done = subprocess.run(
        [sys.executable, "-W", "error", script, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("shape", "devices", "expected"),
    [
        ((64, 16), 4, ("data",)),
        ((16, 64), 4, (None, "data")),
        ((2, 16, 64), 4, (None, None, "data")),
        ((2, 16, 4, 4), 4, (None, "data")),
        ((8, 8), 4, ("data",)),  # the first of equals
        ((66, 8), 4, (None, "data")),  # the longest that divides evenly
        ((4, 6), 4, ("data",)),
        ((6, 7), 4, ()),
        ((), 4, ()),
        ((0, 3), 4, ()),
        ((64, 16), 1, ()),
    ],
)
def test_an_array_is_split_along_its_longest_even_axis(
    shape: tuple[int, ...], devices: int, expected: tuple[str | None, ...]
):
    assert sharding.partition_spec(shape, devices) == PartitionSpec(*expected)


def test_a_tree_on_one_device_is_whole():
    mesh = sharding.make_mesh(jax.devices()[:1])
    tree = {"a": jnp.zeros((4, 2)), "b": [jnp.zeros(())]}
    assert (mesh.size, mesh.axis_names) == (1, (sharding.AXIS,))
    specs = sharding.partition_specs(tree, mesh)
    assert specs == {"a": PartitionSpec(), "b": [PartitionSpec()]}
    places = sharding.named_shardings(tree, mesh)
    assert jax.tree.map(lambda place: place.spec, places) == specs
    assert all(place.mesh == mesh for place in jax.tree.leaves(places))


@pytest.mark.process
@pytest.mark.parametrize(("name", "devices"), OVER)
def test_devices_make_no_difference(found: dict[str, Any], name: str, devices: int):
    """Three steps on batches of other row counts, to rounding: losses, gradient norms, parameters, moments."""
    one, got = (found["cases"][name][str(n)] for n in (1, devices))
    assert one["metrics"][0]["loss_nats"] > one["metrics"][2]["loss_nats"] > 0
    for of_one, of_got in zip(one["metrics"], got["metrics"], strict=True):
        assert of_got == pytest.approx(of_one, rel=1e-6)
    if name == "odd":
        assert got["loss"] == pytest.approx(one["loss"], rel=1e-6)
        first = [got["loss"][0], one["loss"][0]]
        assert first == pytest.approx([one["metrics"][0]["loss_nats"]] * 2, rel=1e-6)
    for part in ("params", "moments"):
        for a, b in zip(got[part], one[part], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max())


@pytest.mark.process
@pytest.mark.parametrize("devices", [2, 4])
def test_each_device_holds_its_share_of_parameters_and_moments(found: dict[str, Any], devices: int):
    """Three arrays per parameter; the step and the optimizer's count of updates are replicated."""
    share = found["cases"]["even"][str(devices)]["share"]
    assert len(share) == 3 * 11 + 2
    for *of_devices, whole in share:
        assert of_devices == ([1] * devices if whole == 1 else [whole // devices] * devices)


@pytest.mark.process
def test_what_does_not_divide_is_held_by_all(found: dict[str, Any]):
    """Of width 6 and a vocabulary of 66, only positions and the two kernels of the MLP divide by 4."""
    got = found["cases"]["odd"]["4"]
    assert (got["parameters"], got["split"]) == (11, 3)
    shares = {(tuple(of), whole) for *of, whole in got["share"]}
    assert ((396,) * 4, 396) in shares
    assert ((48,) * 4, 192) in shares


@pytest.mark.process
@pytest.mark.parametrize(("name", "devices"), OVER)
def test_a_step_communicates_once_and_never_inside_its_loops(
    found: dict[str, Any], name: str, devices: int
):
    """One all-gather and one reduce-scatter a split parameter, and sums of the rest, of loss and norm."""
    got = found["cases"][name][str(devices)]
    kinds = [c["kind"] for c in got["collectives"]]
    assert not any(c["looped"] for c in got["collectives"])
    assert kinds.count("all-gather") <= got["split"]
    assert kinds.count("reduce-scatter") <= got["split"]
    assert kinds.count("all-gather") > 0 < kinds.count("reduce-scatter")
    assert kinds.count("all-reduce") <= 2
    assert set(kinds) == {"all-gather", "reduce-scatter", "all-reduce"}
    assert got["same places"]


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_one_device_communicates_with_none(found: dict[str, Any], name: str):
    got = found["cases"][name]["1"]
    assert {c["groups"] for c in got["collectives"]} <= {"{{0}}"}
    assert not any(c["looped"] for c in got["collectives"])


@pytest.mark.process
def test_fresh_states_are_the_same_on_any_mesh_bitwise(found: dict[str, Any]):
    states = found["checkpoints"]
    assert states["fresh"] == [True, True]
    assert states["fingerprints"] == 1
    assert states["leaves"] == 3 * 11 + 2


@pytest.mark.process
def test_a_state_saved_on_some_devices_is_restored_on_others(found: dict[str, Any]):
    """Every bit of it and where it lies; and parameters alone, whole on each device, to score with."""
    states = found["checkpoints"]
    assert (states["smallest part of 4"], states["smallest part of 1"]) == (0.25, 1)
    assert len(states["restored"]) == 2 * 3 * 2
    assert set(map(tuple, states["restored"].values())) == {(True, True)}, states
