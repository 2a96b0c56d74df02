"""Caches values that are computed from a user's files, so that later commands need not read unchanged files again."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.atomic import write_atomically
from lm_mia.data import texts
from lm_mia.machine import package_version


def user_cache_folder() -> Path:
    """Returns lm_mia's folder in the user's cache folder; it need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm_mia"


def files_digest(corpus: config.Corpus) -> str:
    """Returns a hash of the files' names, sizes and times, and of the settings for reading them; reads no file.

    Raises:
      UserError: if there is no matching file.
    """
    settings = corpus.source, corpus.path, corpus.column, corpus.min_chars, corpus.deduplicate
    digest = hashlib.sha256(repr(settings).encode())
    for name, path in texts.find_files(corpus.source, corpus.path):
        stat = path.stat()
        digest.update(repr((name, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def load_or_compute(
    corpus: config.Corpus, program: Path, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Returns what ``compute`` returns for the files of a corpus, and caches it in the user's cache folder.

    Args:
      corpus: the files.
      program: the Python file that defines ``compute``; values from another version of it are not used.
      compute: returns values that can be written as JSON; called if the cache has none for the present files.
    """
    parts = files_digest(corpus), package_version("lm-mia")
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
        pass  # the cache folder cannot be written, so the next command computes the values again
    return values
