"""A file that exists but cannot be read, as on a network file system that lost it for a moment."""

import builtins
import errno
import io
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest


def fail_reads(monkeypatch: pytest.MonkeyPatch, path: Path, number: int = errno.ESTALE) -> None:
    """Makes opening a file fail; tests may run as root, whom permissions do not stop."""

    def failing(function: Any) -> Any:
        def read(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike) and Path(os.fspath(file)) == path:
                raise OSError(number, os.strerror(number), os.fspath(file))
            return function(file, *args, **kwargs)

        return read

    for module, name in ((builtins, "open"), (io, "open"), (pd, "read_parquet")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
