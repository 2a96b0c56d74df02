"""Refuses Zarr stores whose metadata names a codec that could run code, before any value is read.

The metadata of an array names the codecs that decode its values. One of them, `pickle`, runs whatever code the values
contain, and other packages can add codecs of their own. Only codecs of a fixed list are accepted, since a store may
come from somebody else.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from lm_mia.errors import UserError

# The ids of numcodecs, by which an array of format 2 names its filters and its compressor. They compress, transform or
# check numbers and texts, and none of them calls what it decodes.
_NUMCODECS = {
    *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
    *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
    *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
    *("base64", "categorize", "json2", "msgpack2", "vlen-bytes", "vlen-utf8"),
}
_CODECS_OF_FORMAT_3 = {
    *("bytes", "endian", "transpose", "sharding_indexed", "vlen-bytes", "vlen-utf8"),
    *("blosc", "crc32c", "gzip", "zstd"),
    *(f"numcodecs.{name}" for name in _NUMCODECS),
}
_METADATA_FILES = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
_KINDS = {".zarray": "array", ".zgroup": "group", ".zmetadata": "group"}
_SHOWN = 5  # problems listed in a message


def check_zarr(path: Path, formats: Collection[int] = (2, 3)) -> None:
    """Checks that reading a Zarr store runs no code that the store brings.

    Reads the metadata of all groups and arrays, and the copies of these in consolidated metadata, but no values. Files
    that are not valid JSON are not reported, because Zarr does not accept them either.

    Args:
      path: folder of the store, which need not exist.
      formats: the Zarr formats that the store may have.

    Raises:
      UserError: with one line per problem: an array has a codec that is not known, the metadata names an array outside
        the store, or a file belongs to another format.
    """
    problems: dict[str, None] = {}  # a dict keeps the order and removes duplicates
    pending, visited = [path], set[str]()
    while pending:
        folder = pending.pop()
        if (
            real := os.path.realpath(folder)
        ) in visited:  # a link may lead back to a folder above it
            continue
        visited.add(real)
        kinds = set[str]()
        for file in (folder / name for name in _METADATA_FILES):
            if (raw := _read(file)) is None:
                continue
            if file.name != "zarr.json" and 2 not in formats:
                problems[
                    f"{file}: belongs to a store of Zarr format 2, but a score store has format 3; move it away, and "
                    "import its store with `lm-mia import` if it holds losses"
                ] = None
            kinds.add(_KINDS.get(file.name, ""))
            try:
                nodes = [*_nodes(json.loads(raw))]
                problems |= dict.fromkeys(_codec_problems(folder, nodes))
            except ValueError:
                continue
            except RecursionError:
                problems[f"{file}: is nested too deeply; save the store again"] = None
                continue
            for name, node in nodes:
                if not _is_inside(name):
                    problems[
                        f"{file}: has the name {name!r:.80} of a folder outside the store; save it again"
                    ] = None
                elif name:
                    pending.append(folder / name)
                else:
                    kinds.add(str(node.get("node_type")))
        if "group" in kinds or "array" not in kinds:  # the folder of an array has only its chunks
            pending += _subfolders(folder)
    if problems:
        more = len(problems) - _SHOWN
        rest = [f"{more} more problems of this store are not shown"] if more > 0 else []
        raise UserError("\n".join([*list(problems)[:_SHOWN], *rest]))


def _read(file: Path) -> bytes | None:
    """Returns the content of a file; None if it does not exist."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_inside(name: str) -> bool:
    """Returns whether a name in consolidated metadata is that of an array or group in the folder of the metadata."""
    try:
        is_valid = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return is_valid and not name.startswith("/") and ".." not in name.split("/")


def _nodes(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, metadata) of what a metadata file describes: its own folder, as "", and consolidated metadata."""
    pending = [("", content)]
    while pending:
        name, node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield name, node
        # Of format 3, in zarr.json, and of format 2, in .zmetadata.
        for consolidated in (node.get("consolidated_metadata"), node):
            children = consolidated.get("metadata") if isinstance(consolidated, dict) else None
            for key, child in children.items() if isinstance(children, dict) else ():
                parent, _, last = key.rpartition("/")
                if last != ".zattrs":  # of the user
                    folder = parent if last in _KINDS else key
                    pending.append(("/".join(filter(None, (name, folder))), child))


def _codec_problems(folder: Path, nodes: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    for name, node in nodes:
        array = f"{folder}/{name}" if name else str(folder)
        for codec, known in _codecs(node):
            if not (isinstance(codec, str) and codec in known):
                yield (
                    f"{array}: is stored with the codec {codec!r:.80}, which may run code when it is read; save it "
                    "with another codec, such as zstd, or without one"
                )


def _codecs(node: dict[str, Any]) -> Iterator[tuple[Any, set[str]]]:
    """Yields the name of each codec of an array, and the names that are accepted in its place."""
    for codec in (node.get("compressor"), *_items(node.get("filters"))):
        if codec is not None:
            yield codec.get("id") if isinstance(codec, dict) else codec, _NUMCODECS
    pending = _items(node.get("codecs"))
    while pending:
        codec = pending.pop()
        settings = codec.get("configuration") if isinstance(codec, dict) else None
        yield codec.get("name") if isinstance(codec, dict) else codec, _CODECS_OF_FORMAT_3
        if isinstance(settings, dict):
            if (
                "id" in settings
            ):  # zarr passes the settings to numcodecs, which chooses the codec by the id
                yield settings["id"], _NUMCODECS
            # Those of the chunks of a shard, and of its index.
            pending += [*_items(settings.get("codecs")), *_items(settings.get("index_codecs"))]


def _items(value: Any) -> list[Any]:
    """Returns what zarr iterates over in a list of codecs, which may be of any type in a file of somebody else."""
    return [*value] if isinstance(value, list | dict | str) else []
