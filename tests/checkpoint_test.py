import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lm_mia import checkpoint, config, model
from lm_mia.optimizer import optimizer

SHAPE = model.Shape(layers=2, width=8, heads=2, vocab_size=16, length_tokens=6)
TX = optimizer(config.Optimizer())


def state(seed: int = 0) -> checkpoint.State:
    """Any state: no two leaves equal, moments and count other than their first values."""
    fresh = checkpoint.fresh(seed, SHAPE, TX)
    leaves, tree = jax.tree.flatten(fresh)
    noise = np.random.default_rng(seed)
    return jax.tree.unflatten(
        tree,
        [
            leaf + (7 if leaf.dtype == np.int32 else noise.normal(size=leaf.shape).astype("f4"))
            for leaf in leaves
        ],
    )


def same(one: Any, other: Any) -> bool:
    """Structure, types and every bit."""
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(a, b, strict=True)
    )


def test_a_fresh_state_is_a_pure_function_of_its_seed():
    one = checkpoint.fresh(3, SHAPE, TX)
    assert same(one, checkpoint.fresh(3, SHAPE, TX))
    assert not same(one, checkpoint.fresh(4, SHAPE, TX))
    moments = jax.tree.leaves(one["opt"])
    assert len(moments) == 1 + 2 * len(jax.tree.leaves(one["params"]))
    assert not any(np.asarray(leaf).any() for leaf in moments)


def test_the_key_of_the_initial_weights_never_changes():
    params = checkpoint.fresh(0, SHAPE, TX)["params"]
    expected = jax.jit(model.init, static_argnums=1)(jax.random.key(1576320540), SHAPE)
    assert same(params, expected)


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path):
    with checkpoint.manager(tmp_path / "row") as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoint.save(checkpoints, 5, state(1))
        assert same(checkpoint.restore(checkpoints, 5, state(2)), state(1))
    with checkpoint.manager(tmp_path / "row") as checkpoints:
        assert checkpoints.latest_step() == 5
        assert same(checkpoint.restore(checkpoints, 5, state(2)), state(1))
        like = jax.eval_shape(lambda: checkpoint.fresh(0, SHAPE, TX))
        assert same(checkpoint.restore(checkpoints, 5, like), state(1))


def test_special_values_come_back(tmp_path: Path):
    odd = state(1)
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38, 0.1, 1.0], np.float32)
    odd["params"]["ln_D"] = jax.numpy.asarray(values)
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 1, odd)
        got = checkpoint.restore(checkpoints, 1, state(1))["params"]["ln_D"]
    assert np.asarray(got).tobytes() == values.tobytes()


@pytest.mark.parametrize("part", ["params", "opt"])
def test_one_part_alone(tmp_path: Path, part: str):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 2, state(1))
    with checkpoint.manager(tmp_path) as checkpoints:
        got = checkpoint.restore(checkpoints, 2, {part: state(2)[part]})
    assert list(got) == [part]
    assert same(got[part], state(1)[part])


def test_the_newest_state_only_is_kept(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        for steps_done in (1, 2, 10):
            checkpoint.save(checkpoints, steps_done, state(steps_done))
            assert checkpoints.latest_step() == steps_done
    assert [p.name for p in tmp_path.iterdir()] == ["10"]
    with checkpoint.manager(tmp_path) as checkpoints:
        assert same(checkpoint.restore(checkpoints, 10, state(0)), state(10))


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with checkpoint.manager(Path("deep/row")) as checkpoints:
        checkpoint.save(checkpoints, 3, state())
    assert (tmp_path / "deep/row/3").is_dir()


KILLED = """
import os, pathlib, signal, sys
from checkpoint_test import checkpoint, state
folder = pathlib.Path(sys.argv[1])
def kill(event, args):
    if event == "os.rename" and pathlib.Path(args[1]) == folder / "5":
        os.kill(os.getpid(), signal.SIGKILL)
with checkpoint.manager(folder) as checkpoints:
    checkpoint.save(checkpoints, 3, state(3))
    sys.addaudithook(kill)
    checkpoint.save(checkpoints, 5, state(5))
"""


def test_a_save_killed_at_its_last_moment_leaves_the_state_before(tmp_path: Path):
    folder = tmp_path / "row"
    command = [sys.executable, "-c", KILLED, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    left = sorted(p.name for p in folder.iterdir())
    assert len(left) == 2
    assert left[0] == "3"
    assert left[1].startswith("5.")  # whole but for its name
    with checkpoint.manager(folder) as checkpoints:
        assert checkpoints.latest_step() == 3
        assert same(checkpoint.restore(checkpoints, 3, state(0)), state(3))
        checkpoint.save(checkpoints, 5, state(5))
    assert [p.name for p in folder.iterdir()] == ["5"]


def test_what_a_kill_halfway_leaves_is_no_checkpoint(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 3, state(3))
    unfinished = tmp_path / "4.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "3" / "opt", unfinished / "opt.orbax-checkpoint-tmp")
    with checkpoint.manager(tmp_path) as checkpoints:
        assert checkpoints.latest_step() == 3
        assert not unfinished.exists()  # gone already, not some time later
    shutil.rmtree(tmp_path / "3")
    unfinished.mkdir()
    with checkpoint.manager(tmp_path) as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoint.save(checkpoints, 2, state(2))
        assert checkpoints.latest_step() == 2
    assert [p.name for p in tmp_path.iterdir()] == ["2"]


def test_an_old_state_half_deleted_does_not_matter(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 3, state(3))
    shutil.copytree(tmp_path / "3", tmp_path / "5")
    shutil.rmtree(tmp_path / "3" / "params")
    with checkpoint.manager(tmp_path) as checkpoints:
        assert same(checkpoint.restore(checkpoints, 5, state(0)), state(3))
        checkpoint.save(checkpoints, 6, state(6))
    assert [p.name for p in tmp_path.iterdir()] == ["6"]


def test_one_flipped_bit_anywhere_changes_the_fingerprint():
    part = {"a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": jnp.int32(5)}
    whole, seen = int(checkpoint.fingerprint(part)), []
    for name, leaf in part.items():
        words = np.atleast_1d(np.asarray(leaf)).view(np.uint32).reshape(-1)
        for place in range(words.size):
            for bit in range(32):
                flipped = words.copy()
                flipped[place] ^= np.uint32(1 << bit)
                damaged = flipped.view(np.asarray(leaf).dtype).reshape(leaf.shape)
                seen.append(int(checkpoint.fingerprint(part | {name: jnp.asarray(damaged)})))
    assert len(seen) == 7 * 32
    assert whole not in seen


DAMAGE = """
import sys
from pathlib import Path
import jax, numpy as np
from checkpoint_test import SHAPE, TX, same
from lm_mia import checkpoint
from lm_mia.errors import UserError
folder = Path(sys.argv[1])
state = checkpoint.fresh(0, SHAPE, TX)
with checkpoint.manager(folder) as checkpoints:
    checkpoint.save(checkpoints, 7, state)
largest = max((folder / "7/params/d").iterdir(), key=lambda p: p.stat().st_size)
raw = largest.read_bytes()
for place in [*range(len(raw) // 10, len(raw), len(raw) // 5), None]:
    if place is None:
        largest.unlink()
    else:
        largest.write_bytes(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
    with checkpoint.manager(folder) as checkpoints:
        try:
            print("same" if same(checkpoint.restore(checkpoints, 7, state), state) else "WRONG")
        except UserError as error:
            print(error)
"""


def test_damage_is_told_and_the_folder_named(tmp_path: Path):
    # In a process of its own: where orbax fails it leaves coroutines behind, whose warnings would be errors here.
    command = [sys.executable, "-c", DAMAGE, str(tmp_path / "row")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    said = f"{tmp_path}/row/7: damaged checkpoint; delete it and run the same command again"
    assert done.stdout.splitlines() == [said] * 6


def test_states_to_keep_stay_beside_the_newest(tmp_path: Path):
    with checkpoint.manager(tmp_path, (2, 5)) as checkpoints:
        for steps_done in (1, 2, 3):
            checkpoint.save(checkpoints, steps_done, state(steps_done))
    with checkpoint.manager(tmp_path, (2, 5)) as checkpoints:
        for steps_done in (4, 5, 6, 7):
            checkpoint.save(checkpoints, steps_done, state(steps_done))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5", "7"]
    with checkpoint.manager(tmp_path) as checkpoints:  # who only reads deletes nothing
        assert same(checkpoint.restore(checkpoints, 2, state(0)), state(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5", "7"]


def test_a_save_leaves_the_preemption_service_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whose numbers must only grow: those of rows' steps, which orbax would give it, start again with every row."""
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", pytest.fail)
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 1, state(1))
        assert not checkpoints.reached_preemption(1)


OVER_DEVICES = """
import json, sys
from pathlib import Path
import jax, numpy as np
from checkpoint_test import SHAPE, TX, same
from lm_mia import checkpoint, model, score, sharding, subsets

meshes = {n: sharding.mesh(jax.devices()[:n]) for n in (1, 2, 4)}
states = {n: checkpoint.fresh(3, SHAPE, TX, mesh) for n, mesh in meshes.items()}
found = {"fresh": [same(states[1], states[n]) for n in (2, 4)]}
prints = {int(checkpoint.fingerprint(part)) for s in states.values() for part in [s["params"]]}
found["fingerprints"] = len(prints)
row = subsets.Row("reference", 1, 2, 3)
for saved in (4, 1):
    folder = Path(sys.argv[1]) / str(saved)
    parts = {leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(states[saved])}
    with checkpoint.manager(folder) as checkpoints:
        checkpoint.save(checkpoints, 6, states[saved])
    with checkpoint.manager(folder) as checkpoints:
        for n, mesh in meshes.items():
            got = checkpoint.restore(checkpoints, 6, checkpoint.abstract(SHAPE, TX, mesh))
            places = [a.sharding == b.sharding for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(states[n]))]
            found[f"{saved} on {n}"] = [same(got, states[1]), all(places)]
            params = score.restore_params(row, 6, SHAPE, folder, mesh, mesh)
            on = {d.id for leaf in jax.tree.leaves(params) for d in leaf.devices()}
            found[f"{saved} scored on {n}"] = [same(params, states[1]["params"]), on == {*range(n)}]
    found[f"smallest part of {saved}"] = min(parts)
print(json.dumps(found))
"""


def test_a_state_saved_on_some_devices_is_restored_on_others(tmp_path: Path):
    command = [sys.executable, "-c", OVER_DEVICES, str(tmp_path)]
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parent, env=os.environ | four
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("fingerprints") == 1
    assert (found.pop("smallest part of 4"), found.pop("smallest part of 1")) == (0.25, 1)
    assert len(found) == 1 + 2 * 3 * 2
    assert set(map(tuple, found.values())) == {(True, True)}, found
