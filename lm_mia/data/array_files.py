"""Reads arrays from npz files that somebody else wrote, without trusting them.

`open_npz` reads the headers of all arrays, and refuses a file that is damaged, holds pickled objects, or would not fit
into memory. Values are read when they are used. Large uncompressed arrays are mapped into memory, so that a file larger
than the memory can be read in blocks.

The checks `check_real` and `check_membership` work in blocks too. They raise one error per array; to report the
problems of all arrays at once, call them through `lm_mia.errors.collect_errors`.
"""

import dataclasses
import itertools
import math
import struct
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from lm_mia.errors import UserError
from lm_mia.machine import memory_bytes

MAPPED_BYTES = 2**24
"""Uncompressed arrays of at least this size are mapped into memory; smaller ones are read."""
_MAX_EXPANDED_BYTES = 2**30
_MAX_EXPANSION = 200
"""A compressed array may be larger than _MAX_EXPANDED_BYTES only if it expands less than _MAX_EXPANSION-fold."""
_MAX_MEMORY_SHARE = 0.5
"""Share of the machine's memory that a compressed array may take."""
_DEFLATE_EXPANSION = 1032
"""No deflate stream expands more."""
_BLOCK = 2**22  # values that a check reads at a time
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, OSError)


@dataclasses.dataclass(frozen=True)
class ArrayHeader:
    """The header of a stored array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    header_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayFile(Mapping[str, np.ndarray]):
    """The arrays of an npz file by name, as `open_npz` returns them.

    A lookup reads the array, every time. It raises UserError if the values are damaged, and KeyError if there is no
    such array.
    """

    def __init__(
        self, path: Path, members: Mapping[str, tuple[zipfile.ZipInfo, ArrayHeader]]
    ) -> None:
        self.path = path
        self._members = members

    def header(self, name: str) -> ArrayHeader:
        """Returns the shape and type of an array without reading its values."""
        return self._members[name][1]

    def __getitem__(self, name: str) -> np.ndarray:
        member, header = self._members[name]
        try:
            with zipfile.ZipFile(self.path) as archive:
                if not _is_mapped(member, header):
                    with archive.open(member) as file:
                        return np.lib.format.read_array(file, allow_pickle=False)
                with archive.open(member) as file:  # reading to the end compares the checksum
                    while file.read(2**24):
                        pass
            order = "F" if header.fortran_order else "C"
            offset = _data_offset(self.path, member) + header.header_bytes
            return np.memmap(self.path, header.dtype, "r", offset, header.shape, order)
        except _DAMAGED as error:
            raise UserError(
                f"{self.path}: array {name!r}: its values are damaged ({_one_line(error)}); copy or save the file again"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def open_npz(path: Path) -> ArrayFile:
    """Opens an npz file, as np.savez and np.savez_compressed write it.

    Args:
      path: the file.

    Returns:
      Its arrays by name. Only the headers are read.

    Raises:
      UserError: with one line per problem: the file cannot be read, is empty, truncated or no npz file; names are not
        unique; an array is pickled, structured, empty or damaged; or a compressed array would not fit into memory.
        Pickles are never loaded.
    """
    check_is_file(path)
    problems: list[str] = []
    members: dict[str, tuple[zipfile.ZipInfo, ArrayHeader]] = {}
    try:
        with path.open("rb") as file:
            _check_start(path, file.read(8))
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(path, entries, problems)
            for member in entries if not problems else []:
                name = member.filename.removesuffix(".npy")
                try:
                    members[name] = member, _read_header(archive, member)
                except _RefusedError as error:
                    problems.append(f"{path}: array {name!r}: {error}")
                except _DAMAGED as error:
                    problems.append(
                        f"{path}: array {name!r}: its header is damaged ({_one_line(error)}); save the file again"
                    )
    except zipfile.BadZipFile as error:
        raise UserError(
            f"{path}: the npz file is truncated or damaged ({_one_line(error)}); copy or save it again"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if problems:
        raise UserError("\n".join(problems))
    return ArrayFile(path, members)


def check_is_file(path: Path) -> None:
    """Raises UserError unless the path is a file that is not empty."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give the path of a file")
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file; save the data as a file")
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty; save it again")
    except OSError as error:
        raise _unreadable(path, error) from error


def check_real(
    array: np.ndarray,
    name: str,
    *,
    limit: float = math.inf,
    locate: Callable[[tuple[int, ...]], str] = lambda index: str([*index]),
) -> np.ndarray:
    """Checks that an array holds real numbers that are finite or, where they are missing, NaN.

    Args:
      array: the values, possibly mapped into memory.
      name: the file and the array, for the error message.
      limit: the magnitudes must be below it.
      locate: describes the position of a value, given its index, in the error message.

    Returns:
      The array.

    Raises:
      UserError: if the values are not integers or floating-point numbers, or some are infinite or too large.
    """
    if array.dtype.kind not in "iuf":
        raise UserError(f"{name}: holds {_type_name(array.dtype)}; save it as numbers")
    first, count = None, 0
    for start, block in _blocks(array):
        invalid = np.flatnonzero(np.abs(block.astype(np.float64)) >= limit)
        if invalid.size and first is None:
            first = start + int(invalid[0])
        count += invalid.size
    if first is not None:
        rule = "finite" if math.isinf(limit) else f"below {limit:g} in magnitude"
        raise UserError(
            f"{name}: {_count_at(array, first, count, locate)}: the values must be {rule}; a missing value is NaN"
        )
    return array


def check_membership(
    array: np.ndarray,
    name: str,
    *,
    locate: Callable[[tuple[int, ...]], str] = lambda index: str([*index]),
) -> np.ndarray:
    """Checks that an array tells for each sample whether it is a member: booleans, or the numbers 0 and 1.

    Args:
      array: the values, possibly mapped into memory.
      name: the file and the array, for the error message.
      locate: describes the position of a value, given its index, in the error message.

    Returns:
      An array of booleans; the array itself, still mapped into memory, if it holds booleans.

    Raises:
      UserError: if the values are of another type, or some are neither 0 nor 1.
    """
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{name}: holds {_type_name(array.dtype)}; save membership as booleans, or as 0 and 1"
        )
    # In a damaged file, a boolean can be another byte than 0 and 1, which NumPy takes for neither true nor false.
    values = array.view(np.uint8) if array.dtype.kind == "b" else array
    first, count = None, 0
    for start, block in _blocks(values):
        invalid = np.flatnonzero((block != 0) & (block != 1))
        if invalid.size and first is None:
            first = start + int(invalid[0])
        count += invalid.size
    if first is not None:
        raise UserError(
            f"{name}: {_count_at(values, first, count, locate)}: membership must be 0 or 1 for every sample; leave out "
            "samples of unknown membership"
        )
    return array if array.dtype == np.bool_ else array.astype(np.bool_)


class _RefusedError(Exception):
    """An array that is not read, with the rule and the remedy."""


def _check_start(path: Path, start: bytes) -> None:
    """Raises UserError unless a file starts like a zip file."""
    if start.startswith(b"\x93NUMPY"):
        raise UserError(
            f"{path}: is a single array without a name (.npy); save with np.savez(FILE, NAME=ARRAY, ...)"
        )
    if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise UserError(f"{path}: is not an npz file; save it with np.savez")


def _check_entries(path: Path, entries: list[zipfile.ZipInfo], problems: list[str]) -> None:
    """Appends the problems of the directory of the archive."""
    if not entries:
        problems.append(f"{path}: holds no arrays; save it again with np.savez")
    for name, count in Counter(entry.filename for entry in entries).items():
        if not name.endswith(".npy"):
            problems.append(
                f"{path}: holds {name!r}, which is not an array; write the file with np.savez only"
            )
        elif count > 1:
            problems.append(
                f"{path}: holds {count} arrays named {name.removesuffix('.npy')!r}; names must be unique"
            )
    ends = sorted((e.header_offset, e.header_offset + e.compress_size) for e in entries)
    if any(following[0] < this[1] for this, following in itertools.pairwise(ends)):
        problems.append(f"{path}: arrays overlap in the file, as in a zip bomb; save it again")


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    """Returns the header of an array; raises `_RefusedError` if the array must not be read."""
    if member.flag_bits & 1:
        raise _RefusedError("is encrypted; save it with np.savez")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _RefusedError("is not compressed by deflate; save it with np.savez")
    with archive.open(member) as file:
        header = _parse_header(file)
    if header.dtype.hasobject:
        raise _RefusedError(
            "holds pickled Python objects, which are never loaded; save it as numbers or as fixed-width strings"
        )
    if header.dtype.kind == "V":
        raise _RefusedError("holds records of several fields; save each field as an array")
    if not all(size > 0 for size in header.shape):
        raise _RefusedError(f"is empty, of shape {header.shape}; leave it out, or save its values")
    if member.file_size != header.header_bytes + header.size_bytes:
        raise _RefusedError(
            f"is truncated: shape {header.shape} of {header.dtype} takes {header.size_bytes:,} bytes, but there are "
            f"{max(member.file_size - header.header_bytes, 0):,}; save it again"
        )
    _check_expansion(member)
    return header


def _check_expansion(member: zipfile.ZipInfo) -> None:
    """Raises `_RefusedError` if a compressed array would not fit into memory."""
    if member.compress_type == zipfile.ZIP_STORED:
        if member.compress_size != member.file_size:
            raise _RefusedError("is damaged: its two sizes differ; save it again")
        return
    expansion = member.file_size / max(member.compress_size, 1)
    size = f"expands {expansion:,.0f}-fold to {member.file_size / 2**30:,.1f} GiB"
    remedy = "save it with np.savez, uncompressed, and it is read in blocks"
    if expansion > _DEFLATE_EXPANSION:
        raise _RefusedError(f"{size}, which is impossible: the file is damaged; save it again")
    if member.file_size > _MAX_EXPANDED_BYTES and expansion > _MAX_EXPANSION:
        raise _RefusedError(f"{size}, as a zip bomb does; {remedy}")
    if member.file_size > _MAX_MEMORY_SHARE * memory_bytes():
        raise _RefusedError(f"{size}, over half of this machine's memory; {remedy}")


def _parse_header(file: IO[bytes]) -> ArrayHeader:
    """Reads the header of an array; raises ValueError if it is damaged."""
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # version 3 is for records whose fields have names beyond Latin-1
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers that Python 2 wrote
        shape, fortran_order, dtype = readers[version](file)
    if not all(isinstance(size, int) and 0 <= size < 2**48 for size in shape):
        raise ValueError(f"shape {shape}")
    return ArrayHeader(shape, dtype, fortran_order, file.tell())


def _is_mapped(member: zipfile.ZipInfo, header: ArrayHeader) -> bool:
    return member.compress_type == zipfile.ZIP_STORED and header.size_bytes >= MAPPED_BYTES


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Returns where the content of an uncompressed member starts in the file.

    The lengths of the name and of the extra field may differ from those in the directory of the archive.
    """
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra_bytes = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name_bytes + extra_bytes


def _blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the values in blocks, in the order of `_unravel`, with the position of the first one."""
    flat = array.reshape(-1, order=_order(array))  # a view
    for start in range(0, flat.size, _BLOCK):
        yield start, flat[start : start + _BLOCK]


def _order(array: np.ndarray) -> Any:
    """Returns the order in which the values lie on disk, so that each page is read once."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _count_at(
    array: np.ndarray, first: int, count: int, locate: Callable[[tuple[int, ...]], str]
) -> str:
    """Returns, for example, "3 invalid values, such as inf at [0, 17]"."""
    index = tuple(map(int, np.unravel_index(first, array.shape, order=_order(array))))
    value = array[index]
    values = "1 invalid value," if count == 1 else f"{count:,} invalid values, such as"
    return f"{values} {value:g} at {locate(index)}"


def _type_name(dtype: np.dtype) -> str:
    """Returns the kind of values in words, for error messages."""
    kinds = {"b": "booleans", "c": "complex numbers", "U": "strings", "S": "strings", "M": "dates"}
    return kinds.get(dtype.kind, f"values of type {dtype}")


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read ({_one_line(error)}); check the file's permissions")


def _one_line(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())[:200]
