"""What takes long to make is made by the first test process that needs it, for all of them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filelock
import pytest

Made = TypeVar("Made")


def built_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """Returns what a function makes of a new folder, whose files tests must not change.

    Args:
      factory: the fixture tmp_path_factory.
      name: name of the folder, one for each function.
      make: called in one of the test processes; what it returns is pickled for the others.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    result = folder.with_suffix(".pickle")
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not result.exists():
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(result.read_bytes())
