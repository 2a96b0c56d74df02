"""Remembers what was computed from a user's files, so that later commands do not read them again until they change."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.atomic import write_atomically
from lm_mia.data import text_files


def user_cache_folder() -> Path:
    """Returns lm_mia's folder in the user's cache folder, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm_mia"


def files_state(corpus: config.Corpus) -> str:
    """Returns a hash of the settings by which files are read and of their names, sizes and times; reads no file.

    Raises:
      UserError: if there is no matching file.
    """
    settings = corpus.source, corpus.path, corpus.column, corpus.min_chars, corpus.deduplicate
    digest = hashlib.sha256(repr(settings).encode())
    for name, path in text_files.find_files(corpus.path, text_files.SUFFIXES[corpus.source]):
        stat = path.stat()
        digest.update(repr((name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def remember(
    corpus: config.Corpus, program: Path, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Returns what ``compute`` returns for the files of a corpus, which is kept in the user's cache folder.

    Args:
      corpus: the files.
      program: the Python file that defines ``compute``; what an earlier version of it has computed is not used.
      compute: returns plain values; called if nothing is kept for these files as they are now.
    """
    parts = files_state(corpus), importlib.metadata.version("lm-mia")
    digest = hashlib.sha256(repr(parts).encode() + program.read_bytes()).hexdigest()
    path = user_cache_folder() / "files" / f"{digest[:32]}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(values))
    except OSError:
        pass  # the cache folder is not writable, so the next command computes the values again
    return values
