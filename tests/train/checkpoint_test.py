import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_case import MODEL, TX, state
from jax.experimental import multihost_utils
from same_bits import same
from unoptimized import without_optimizations

from lm_mia.errors import UserError
from lm_mia.model import transformer
from lm_mia.train import checkpoint, sharding

pytestmark = pytest.mark.usefixtures("without_optimizations")
__all__ = ["without_optimizations"]  # a fixture

SHARED = Path(__file__).resolve().parents[1] / "shared"


def test_an_initial_state_is_a_pure_function_of_its_seed():
    one = checkpoint.init_state(3, MODEL, TX)
    assert same(one, checkpoint.init_state(3, MODEL, TX))
    assert not same(one, checkpoint.init_state(4, MODEL, TX))
    moments = jax.tree.leaves(one.opt_state)
    assert len(moments) == 1 + 2 * len(jax.tree.leaves(one.params))
    assert not any(np.asarray(leaf).any() for leaf in moments)


def test_the_key_of_the_initial_weights_is_unchanged():
    params = checkpoint.init_state(0, MODEL, TX).params
    expected = jax.jit(lambda key: transformer.init_params(MODEL, key))(jax.random.key(1576320540))
    assert same(params, expected)


def test_a_restored_state_is_bitwise_equal(tmp_path: Path):
    with checkpoint.manager(tmp_path / "model") as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoint.save(checkpoints, state(1, 5))
        assert same(checkpoint.restore(checkpoints, 5, state(2)), state(1, 5))
    with checkpoint.manager(tmp_path / "model") as checkpoints:
        assert checkpoints.latest_step() == 5
        assert same(checkpoint.restore(checkpoints, 5, state(2)), state(1, 5))
        like = checkpoint.abstract_state(MODEL, TX, sharding.make_mesh(jax.local_devices()[:1]))
        assert same(checkpoint.restore(checkpoints, 5, like), state(1, 5))


def test_special_float_values_are_restored(tmp_path: Path):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38, 0.1, 1.0], np.float32)
    special = state(1, 1)
    special.params["ln_out"]["scale"] = jnp.asarray(values)
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, special)
        restored = checkpoint.restore(checkpoints, 1, state(1)).params["ln_out"]["scale"]
    assert np.asarray(restored).tobytes() == values.tobytes()


def test_parameters_are_restored_alone(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, state(1, 2))
    shutil.rmtree(tmp_path / "2" / "opt_state")
    with checkpoint.manager(tmp_path) as checkpoints:
        params = checkpoint.restore_params(checkpoints, 2, state(2).params)
    assert same(params, state(1).params)


def test_only_the_newest_checkpoint_is_kept(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        for steps_done in (1, 2, 10):
            checkpoint.save(checkpoints, state(steps_done, steps_done))
            assert checkpoints.latest_step() == steps_done
    assert [p.name for p in tmp_path.iterdir()] == ["10"]
    with checkpoint.manager(tmp_path) as checkpoints:
        assert same(checkpoint.restore(checkpoints, 10, state(0)), state(10, 10))


def test_the_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with checkpoint.manager(Path("deep/model")) as checkpoints:
        checkpoint.save(checkpoints, state(0, 3))
    assert (tmp_path / "deep/model/3").is_dir()


KILLED = """
import os, pathlib, signal, sys
from checkpoint_case import checkpoint, state
folder = pathlib.Path(sys.argv[1])
def kill(event, args):
    if event == "os.rename" and pathlib.Path(args[1]) == folder / "5":
        os.kill(os.getpid(), signal.SIGKILL)
with checkpoint.manager(folder) as checkpoints:
    checkpoint.save(checkpoints, state(3, 3))
    sys.addaudithook(kill)
    checkpoint.save(checkpoints, state(5, 5))
"""


@pytest.mark.process
def test_a_killed_save_leaves_the_previous_checkpoint(tmp_path: Path):
    folder = tmp_path / "model"
    command = [sys.executable, "-c", KILLED, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(SHARED)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    left = sorted(p.name for p in folder.iterdir())
    assert len(left) == 2
    assert left[0] == "3"
    assert left[1].startswith("5.")  # complete except for its name
    with checkpoint.manager(folder) as checkpoints:
        assert checkpoints.latest_step() == 3
        assert same(checkpoint.restore(checkpoints, 3, state(0)), state(3, 3))
        checkpoint.save(checkpoints, state(5, 5))
    assert [p.name for p in folder.iterdir()] == ["5"]


def test_an_unfinished_checkpoint_is_ignored_and_removed(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, state(3, 3))
    unfinished = tmp_path / "4.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "3" / "opt_state", unfinished / "opt_state.orbax-checkpoint-tmp")
    with checkpoint.manager(tmp_path) as checkpoints:
        assert checkpoints.latest_step() == 3
        assert not unfinished.exists()  # immediately
    shutil.rmtree(tmp_path / "3")
    unfinished.mkdir()
    with checkpoint.manager(tmp_path) as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoint.save(checkpoints, state(2, 2))
        assert checkpoints.latest_step() == 2
    assert [p.name for p in tmp_path.iterdir()] == ["2"]


def test_a_partly_deleted_old_checkpoint_does_not_matter(tmp_path: Path):
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, state(3, 3))
    shutil.copytree(tmp_path / "3", tmp_path / "5")
    shutil.rmtree(tmp_path / "3" / "params")
    with checkpoint.manager(tmp_path) as checkpoints:
        assert same(checkpoint.restore(checkpoints, 5, state(0)), state(3, 5))
        checkpoint.save(checkpoints, state(6, 6))
    assert [p.name for p in tmp_path.iterdir()] == ["6"]


def test_any_flipped_bit_changes_the_fingerprint():
    part = {"a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": jnp.int32(5)}
    fingerprint, seen = int(checkpoint.fingerprint(part)), []
    for name, leaf in part.items():
        words = np.atleast_1d(np.asarray(leaf)).view(np.uint32).reshape(-1)
        for index in range(words.size):
            for bit in range(32):
                flipped = words.copy()
                flipped[index] ^= np.uint32(1 << bit)
                damaged = flipped.view(np.asarray(leaf).dtype).reshape(leaf.shape)
                seen.append(int(checkpoint.fingerprint(part | {name: jnp.asarray(damaged)})))
    assert len(seen) == 7 * 32
    assert fingerprint not in seen


def test_exchanged_values_and_arrays_change_the_fingerprint():
    part = {"a": jnp.arange(6, dtype=jnp.float32), "b": jnp.arange(6, 12, dtype=jnp.float32)}
    exchanged = [
        part | {"a": part["a"][jnp.array([1, 0, 2, 3, 4, 5])]},
        part | {"a": part["a"][::-1]},
        {"a": part["b"], "b": part["a"]},
    ]
    fingerprints = {int(checkpoint.fingerprint(tree)) for tree in (part, *exchanged)}
    assert len(fingerprints) == 4


DAMAGE = """
import sys
from pathlib import Path
from checkpoint_case import checkpoint, state
from same_bits import same
from lm_mia.errors import UserError
folder = Path(sys.argv[1])
state = state(step=7)
with checkpoint.manager(folder) as checkpoints:
    checkpoint.save(checkpoints, state)
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


@pytest.mark.process
def test_damage_is_an_error_that_names_the_folder(tmp_path: Path):
    # In another process: orbax leaves coroutines behind when it fails, and their warnings would be errors here.
    command = [sys.executable, "-c", DAMAGE, str(tmp_path / "model")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=SHARED,
    )
    line = f"{tmp_path}/model/7: damaged checkpoint; delete it and run the same command again"
    assert done.stdout.splitlines() == [line] * 6


def test_without_moments_parameters_are_restored_but_not_trained(tmp_path: Path):
    with checkpoint.manager(tmp_path / "model", [5]) as checkpoints:
        checkpoint.save(checkpoints, state(1, 5))
        checkpoint.save(checkpoints, state(1, 6))
    [shutil.rmtree(folder) for folder in (tmp_path / "model").glob("*/opt_state")]
    with checkpoint.manager(tmp_path / "model", [5]) as checkpoints:
        assert list(checkpoints.all_steps()) == [5, 6]
        for step in (5, 6):
            params = checkpoint.restore_params(checkpoints, step, state(2).params)
            assert same(params, state(1).params)
            with pytest.raises(UserError) as caught:
                checkpoint.restore(checkpoints, step, state(2))
            [line] = str(caught.value).splitlines()
            assert line.startswith(f"{tmp_path / 'model' / str(step)}: ")
            assert "optimizer" in line
            assert f"delete {tmp_path / 'model'} and" in line


def test_checkpoints_of_requested_steps_are_kept(tmp_path: Path):
    with checkpoint.manager(tmp_path, (2, 5)) as checkpoints:
        for steps_done in (1, 2, 3):
            checkpoint.save(checkpoints, state(steps_done, steps_done))
    with checkpoint.manager(tmp_path, (2, 5)) as checkpoints:
        for steps_done in (4, 5, 6, 7):
            checkpoint.save(checkpoints, state(steps_done, steps_done))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5", "7"]
    with checkpoint.manager(tmp_path) as checkpoints:  # a reader deletes nothing
        assert same(checkpoint.restore(checkpoints, 2, state(0)), state(2, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5", "7"]


def test_a_save_does_not_call_the_preemption_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its numbers must only increase, but orbax would pass the steps of models, which start at 0 for each model."""
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", pytest.fail)
    with checkpoint.manager(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, state(1, 1))
        assert not checkpoints.reached_preemption(1)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("DATA_LOSS: Digest mismatch"), UserError),
        (ValueError("UNKNOWN: Stale file handle [os_error_code='116']"), OSError),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
            jax.errors.JaxRuntimeError,
        ),
        (MemoryError(), MemoryError),
    ],
)
def test_a_failed_read_is_not_called_damage(
    tmp_path: Path, error: Exception, raised: type[Exception]
):
    class Failing:
        directory = tmp_path

        def restore(self, *_: Any, **__: Any) -> None:
            raise error

    with pytest.raises(raised):
        checkpoint.restore_params(cast(Any, Failing()), 7, {})


@pytest.mark.parametrize("fails", [False, True])
def test_errors_are_logged_except_those_of_a_failed_save(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
):
    """For a full disk, Orbax logs hundreds of lines, some of them after it has raised the error."""
    logger = logging.getLogger("absl")
    monkeypatch.setattr(logger, "filters", [])

    class Saving:
        def save(self, *_: Any, **__: Any) -> None:
            logger.warning("slow disk")
            logger.error("an old one")

        def wait_until_finished(self) -> None:
            if fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected = pytest.raises(OSError, match="space") if fails else contextlib.nullcontext()
    with caplog.at_level(logging.WARNING, "absl"):
        logger.addHandler(caplog.handler)
        with expected:
            checkpoint.save(cast(Any, Saving()), state(7))
        logger.error("later")
        logger.removeHandler(caplog.handler)
    messages = {record.message for record in caplog.records}
    assert messages == {"slow disk"} | (set() if fails else {"an old one", "later"})
