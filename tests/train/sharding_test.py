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
from slow_case import slow_case

from lm_mia.train import sharding

# The fields of "gpt2" are those of "even" and biases.
EVEN = slow_case("even", 4)
CASES_AND_DEVICES = [EVEN, ("scanned", 2), ("odd", 4), ("gpt2", 4), ("llama", 4)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of tests/shared/four_devices.py."""
    return run(tmp_path_factory, "scanned", "odd", "gpt2", "llama", "muon", "checkpoints")


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory, "even")


@pytest.fixture
def case(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """Returns the results of one case, by the number of devices."""
    return request.getfixturevalue("even" if name == "even" else "results")[name]


def run(tmp_path_factory: pytest.TempPathFactory, *names: str) -> dict[str, Any]:
    """Returns results from one process with four devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    tests = Path(__file__).resolve().parents[1]
    script = str(tests / "shared" / "four_devices.py")
    paths = [str(tests.parent), str(tests.parent / "benchmarks")]
    folder = tmp_path_factory.mktemp("four_devices")
    done = subprocess.run(
        [sys.executable, "-W", "error", script, str(folder), *names],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "XLA_FLAGS": flags,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(paths),
        },
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
        ((8, 8), 4, ("data",)),  # the first of equal axes
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


def test_arrays_on_one_device_are_not_split():
    mesh = sharding.make_mesh(jax.devices()[:1])
    tree = {"a": jnp.zeros((4, 2)), "b": [jnp.zeros(())]}
    assert (mesh.size, mesh.axis_names) == (1, (sharding.AXIS,))
    specs = sharding.partition_specs(tree, mesh)
    assert specs == {"a": PartitionSpec(), "b": [PartitionSpec()]}
    shardings = sharding.named_shardings(tree, mesh)
    assert jax.tree.map(lambda leaf: leaf.spec, shardings) == specs
    assert all(leaf.mesh == mesh for leaf in jax.tree.leaves(shardings))


@pytest.mark.process
@pytest.mark.parametrize(("name", "devices"), CASES_AND_DEVICES)
def test_the_number_of_devices_changes_only_rounding(case: dict[str, Any], name: str, devices: int):
    """Losses, gradient norms, parameters and moments of three steps on batches of different sizes.

    The case llama is trained by Lion, whose update is a sign, which rounding may change where a momentum is nearly 0:
    its parameters are not compared.
    """
    one, result = (case[str(n)] for n in (1, devices))
    assert one["metrics"][0]["loss_nats"] > one["metrics"][2]["loss_nats"] > 0
    for expected, metrics in zip(one["metrics"], result["metrics"], strict=True):
        assert metrics == pytest.approx(expected, rel=1e-6)
    if name == "odd":
        assert result["loss"] == pytest.approx(one["loss"], rel=1e-6)
        first = [result["loss"][0], one["loss"][0]]
        assert first == pytest.approx([one["metrics"][0]["loss_nats"]] * 2, rel=1e-6)
    for part in ("moments",) if name == "llama" else ("params", "moments"):
        for a, b in zip(result[part], one[part], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max())


@pytest.mark.process
def test_devices_change_only_rounding_of_muon(results: dict[str, Any]):
    """Losses, gradient norms and moments of three steps."""
    one, four = (results["muon"][n] for n in ("1", "4"))
    assert one["same places"]
    assert four["same places"]
    for expected, metrics in zip(one["metrics"], four["metrics"], strict=True):
        assert metrics == pytest.approx(expected, rel=1e-6)
    for a, b in zip(four["moments"], one["moments"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max())


@pytest.mark.process
@pytest.mark.parametrize(("name", "devices"), [("scanned", 2), ("gpt2", 4), EVEN])
def test_each_device_holds_its_share_of_parameters_and_moments(
    case: dict[str, Any], name: str, devices: int
):
    """Three arrays per parameter; the step and the optimizer's count of updates are replicated."""
    share = case[str(devices)]["share"]
    assert len(share) == 3 * (20 if name == "gpt2" else 11) + 2
    for *shards, whole in share:
        assert shards == ([1] * devices if whole == 1 else [whole // devices] * devices)


@pytest.mark.process
def test_arrays_that_cannot_be_split_are_replicated(results: dict[str, Any]):
    """With width 6 and a vocabulary of 66, 4 divides only an axis of the positions and of the two MLP kernels."""
    result = results["odd"]["4"]
    assert (result["parameters"], result["split"]) == (11, 3)
    shares = {(tuple(shards), whole) for *shards, whole in result["share"]}
    assert ((396,) * 4, 396) in shares
    assert ((48,) * 4, 192) in shares


@pytest.mark.process
@pytest.mark.parametrize(("name", "devices"), CASES_AND_DEVICES)
def test_a_step_communicates_once_and_not_in_its_loops(
    case: dict[str, Any], name: str, devices: int
):
    """One all-gather and one reduce-scatter per split parameter, and sums of the others, of loss and norm."""
    result = case[str(devices)]
    kinds = [c["kind"] for c in result["collectives"]]
    assert not any(c["loops"] for c in result["collectives"])
    assert kinds.count("all-gather") <= result["split"]
    assert kinds.count("reduce-scatter") <= result["split"]
    assert kinds.count("all-gather") > 0 < kinds.count("reduce-scatter")
    assert kinds.count("all-reduce") <= 2
    assert set(kinds) == {"all-gather", "reduce-scatter", "all-reduce"}
    assert result["same places"]


@pytest.mark.process
@pytest.mark.parametrize("name", ["scanned", "odd", "gpt2", "llama", slow_case("even")])
def test_one_device_does_not_communicate(case: dict[str, Any]):
    result = case["1"]
    assert {c["groups"] for c in result["collectives"]} <= {"{{0}}"}
    assert not any(c["loops"] for c in result["collectives"])


@pytest.mark.process
def test_initial_states_are_bitwise_equal_on_all_meshes(results: dict[str, Any]):
    states = results["checkpoints"]
    assert states["fresh"] == [True, True]
    assert states["fingerprints"] == 1
    assert states["leaves"] == 3 * 11 + 2


@pytest.mark.process
def test_a_state_is_restored_on_another_number_of_devices(results: dict[str, Any]):
    """Bitwise, with the shardings of the new mesh; and the parameters for scoring, replicated on each device."""
    states = results["checkpoints"]
    assert (states["smallest part of 4"], states["smallest part of 1"]) == (0.25, 1)
    assert len(states["restored"]) == 2 * 3 * 2
    assert set(map(tuple, states["restored"].values())) == {(True, True)}, states
