"""The manifest of a population: what its files must hash to, and what they were made of."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lm_mia.errors import UserError

FORMAT = 2


def of_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of each file."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _file_sha256(folder / name)}
        for name in names
    }


def identity(files: Mapping[str, Mapping[str, Any]], prefix: str = "") -> str:
    """SHA-256 that names a data set: of the hashes of its tokens, offsets and tokenizer."""
    names = (f"{prefix}tokens.npy", f"{prefix}offsets.npy", "tokenizer.model")
    return hashlib.sha256("".join(files[name]["sha256"] for name in names).encode()).hexdigest()


def dump(content: Mapping[str, Any]) -> bytes:
    """The manifest's bytes, with a hash of its own in it."""
    return _bytes({**content, "own_sha256": _own_sha256(content)})


def read(folder: Path, verify: bool) -> dict[str, Any]:
    """The manifest of a folder whose files are there and whole.

    Args:
      folder: of the population.
      verify: compare the hash of every file (about 1 GB/s), not only its size.

    Raises:
      UserError: if there is no population, or a file is missing or corrupt: names it and the way out.
    """
    found = _read(folder)
    for name, expected in found["files"].items():
        path = folder / name
        if not path.is_file():
            raise _corrupt(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _corrupt(path, f"the file has not its {expected['bytes']} bytes")
        if verify and _file_sha256(path) != expected["sha256"]:
            raise _corrupt(path, "the content does not match the hash in manifest.json")
    return found


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no population here; run `lm-mia corpus` first")
    if not path.is_file():
        raise _corrupt(path, "the file is missing")
    raw = path.read_bytes()
    try:
        found = json.loads(raw)
        if raw != _bytes(found) or found["own_sha256"] != _own_sha256(found):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _corrupt(path, "the content was changed or damaged") from None
    if found["format"] != FORMAT:
        raise _corrupt(path, f"format {found['format']}, this version of lm-mia reads {FORMAT}")
    return found


def _file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _own_sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        _bytes({k: v for k, v in content.items() if k != "own_sha256"})
    ).hexdigest()


def _corrupt(path: Path, what: str) -> UserError:
    way_out = f"delete the folder {path.parent} and run `lm-mia corpus` again"
    return UserError(f"{path}: {what}; {way_out}")
