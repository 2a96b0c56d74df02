"""Which results of a workdir need not be made again: each has a key of everything that it follows from.

Pieces of the attacks stage have keys of their own (`lm_mia.attacks.pieces`). Here are the keys of what is made of them:
the tables of all recipes, figures, and the page. They name the source of lm_mia, the configs, and the digests of all
scores, rather than the tables: reading these would take as long as writing them. A result is there if its key is the
stored one, and all files that were written with it have the size and the time that they had then.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_mia import config, user_files
from lm_mia.atomic import TEMPORARY, write_atomically
from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.store.store import open_store

FILE = "made.json"
"""Name of the file of keys in the workdir."""
_LIBRARIES = ("matplotlib", "numpy", "pandas", "pyarrow", "scipy")
_SOURCES = (".py", ".css", ".js", ".j2", ".yaml")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What all results of a workdir follow from, as digests."""

    code: str
    """Of the source of lm_mia and the versions of the libraries that compute and draw."""
    recipes: Mapping[str, str]
    """Name of a recipe -> digest of its config, samples and scores; in the order of the command."""
    figures: Mapping[str, str]
    """Figure -> digest of the file that defines it; "" for figures of lm_mia."""

    def key(self, **more: Any) -> str:
        """Returns the key of a result that follows from all recipes and figures, and from further JSON values."""
        return digest([self.code, [*self.recipes.items()], [*self.figures.items()], more])

    def key_of_recipe(self, name: str, **more: Any) -> str:
        """Returns the key of a result that follows from one recipe, and from further JSON values."""
        return digest([self.code, name, self.recipes[name], more])


def read_inputs(
    recipes: Mapping[Path, tuple[Config, Sequence[str]]], figures: Sequence[str]
) -> Inputs | None:
    """Returns the inputs of the results of some recipes; None if scores are damaged or not complete.

    Nothing stands for the scores of a model that has no digest yet.

    Args:
      recipes: folder of a recipe -> its config and its names.
      figures: names of figures, and paths of Python files.
    """
    try:
        states = {folder.name: _state(folder, *recipe) for folder, recipe in recipes.items()}
        of_figures = {
            name: digest(Path(name).read_text()) if name.endswith(".py") else "" for name in figures
        }
    except (UserError, OSError, ValueError):
        return None
    return Inputs(_code(), states, of_figures)


def _state(folder: Path, c: Config, names: Sequence[str]) -> str:
    store = open_store(c, folder)
    scores = {str(model): known for model, known in store.known_digests().items()}
    if not all(scores.values()):
        raise UserError(f"{folder}: some models are not scored yet; run lm-mia run")
    attacks = [
        name for name in (*c.attack.attacks, c.attack.headline) if user_files.is_in_file(name)
    ]
    codes = [user_files.source_digest(name) for name in attacks]
    stored = json.loads((folder / "config.json").read_text())
    samples = stored["population"], stored["population_sha256"]
    return digest([config.to_dict(c), [*names], samples, scores, store.design, codes])


@functools.cache
def _code() -> str:
    """Returns a digest of the source of lm_mia, of what draws, and of the versions of libraries."""
    root = Path(__file__).resolve().parents[2]
    content = hashlib.sha256()
    for package in ("lm_mia", "analysis"):
        for path in sorted((root / package).rglob("*")):
            if path.suffix in _SOURCES:
                content.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    for library in _LIBRARIES:
        content.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    return content.hexdigest()[:20]


class Made:
    """The results that were made in a workdir, with their keys."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._path = workdir / FILE
        self._entries: dict[str, Any] = {}
        with contextlib.suppress(
            OSError, ValueError
        ):  # missing or damaged: everything is made again
            entries = json.loads(self._path.read_text())
            self._entries = entries if isinstance(entries, dict) else {}

    def value(self, name: str) -> Any:
        """Returns the value that was stored with a result, whether or not it is still there; None without one."""
        entry = self._entries.get(name)
        return entry.get("value") if isinstance(entry, dict) else None

    def find(self, name: str, key: str) -> Any:
        """Returns the value that was stored with a result; None if its key or one of its files is another one."""
        entry = self._entries.get(name)
        if not isinstance(entry, dict) or entry.get("key") != key:
            return None
        for file, stamp in entry["files"].items():
            if _stamp(self._workdir / file) != stamp:
                return None
        return entry["value"]

    def store(self, name: str, key: str, files: Iterable[Path], value: Any) -> None:
        """Stores the key of a result that was just made.

        Args:
          name: what the result is, such as "figure strongmia_fig01_references".
          key: what it follows from.
          files: its files, all of which exist.
          value: what a command needs of the result if it does not make it again; a JSON value other than None.
        """
        stamps = {str(path.relative_to(self._workdir)): _stamp(path) for path in files}
        self._entries[name] = {"key": key, "files": stamps, "value": value}
        with contextlib.suppress(OSError):  # a workdir that cannot be written
            write_atomically(self._path, json.dumps(self._entries) + "\n")


def files_in(*folders: Path) -> list[Path]:
    """Returns the files in some folders that are not temporary; folders may be missing."""
    return [
        path
        for folder in folders
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if path.is_file() and not path.name.startswith(TEMPORARY)
    ]


def digest(value: Any) -> str:
    """Returns 20 hexadecimal digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def is_report_outdated(workdir: Path) -> bool:
    """Returns whether the report of a workdir is older than an exported table of one of its recipes."""
    tables = [path.stat().st_mtime for path in workdir.glob("recipes/*/tables/*")]
    report = workdir / "report.html"
    return report.exists() and bool(tables) and report.stat().st_mtime < max(tables)


def _stamp(path: Path) -> list[int] | None:
    """Returns the size and the time of a file; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
