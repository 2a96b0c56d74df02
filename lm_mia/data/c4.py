"""Reads C4 by index from the files of TensorFlow Datasets (TFDS), without TensorFlow.

The dataset is ``c4/en:3.1.0`` in ArrayRecord files. TFDS is imported when it is first needed, since it takes a second.

K: selected records.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm_mia.data.documents import Document
from lm_mia.errors import UserError, raise_failed_read

NAME, VERSION = Path("c4", "en"), "3.1.0"
_OPEN_FILES = 8  # files that are open at a time
_REMEDY = (
    "set corpus.path to the TFDS data folder that contains it, or create it with `lm-mia corpus "
    "--from-hf-shards='FOLDER/c4-*.json.gz'` from the files of Hugging Face's allenai/c4"
)


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a split; item i is (text, ``SPLIT:i``, file), without whitespace at both ends of the text."""

    data_dir: Path
    split: str
    shards: tuple[tuple[str, int], ...] = dataclasses.field(repr=False)
    """Name and number of records of each file."""
    sha256: str
    """Hash of the names, numbers of records and sizes in bytes of the files; the texts are too many to hash."""

    def __len__(self) -> int:
        return sum(records for _, records in self.shards)

    def __getitem__(self, i: int) -> Document:
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        return next(iter(self.select(np.array([i]))))

    def select(self, index_K: np.ndarray) -> Sequence[Document]:
        """Returns these records, in this order; they are read when the result is iterated over."""
        return _SelectedRecords(self, index_K)

    def shard_numbers(self, index_K: np.ndarray) -> np.ndarray:
        """Returns shard_K, the index in `shards` of the file of each of these records."""
        return np.searchsorted(np.cumsum([n for _, n in self.shards]), index_K, side="right")

    @property
    def provenance(self) -> dict[str, Any]:
        """The origin of the corpus, as recorded in manifests."""
        return {
            "source": "c4",
            "corpus_sha256": self.sha256,
            "documents": len(self),
            "dataset": f"{NAME.as_posix()}:{VERSION}",
            "split": self.split,
            "shards": len(self.shards),
        }


@dataclasses.dataclass(frozen=True)
class _SelectedRecords(Sequence[Document]):
    """Selected records, which are read in bulk and pickled without their texts."""

    records: Records
    index_K: np.ndarray

    def __len__(self) -> int:
        return len(self.index_K)

    def __getitem__(self, k: Any) -> Any:
        return self.records[int(self.index_K[k])]

    def __iter__(self) -> Iterator[Document]:
        order = np.argsort(self.index_K)
        shard_K = self.records.shard_numbers(self.index_K)
        raws: list[bytes] = [b""] * len(order)
        for k, raw in zip(order, _read(self.records, self.index_K[order]), strict=True):
            raws[k] = raw
        for i, shard, raw in zip(self.index_K.tolist(), shard_K.tolist(), raws, strict=True):
            source, _ = self.records.shards[shard]
            yield _text(self.records, i, raw), f"{self.records.split}:{i}", source


def open_records(path: str, split: str = "train") -> Records:
    """Opens the records of a split, after checking the folder, the version, the format, the split and the files.

    Args:
      path: the TFDS data folder, which contains ``c4/en/3.1.0``; empty for the default of TFDS (the environment
        variable TFDS_DATA_DIR, else ``~/tensorflow_datasets``).
      split: "train" or "validation".

    Raises:
      UserError: if a check fails.
    """
    data_dir = data_folder(path)
    setting = f"corpus.path={str(data_dir)!r}"
    if not data_dir.is_dir():
        raise UserError(f"{setting}: no such folder; {_REMEDY}")
    folder = data_dir / NAME / VERSION
    if not folder.is_dir():
        existing = [
            f"{p.parent.name}/{p.name}" for p in sorted((data_dir / "c4").glob("*/[0-9]*.*.*"))
        ]
        versions = f"it contains {', '.join(existing)}" if existing else "it does not contain C4"
        raise UserError(
            f"{setting}: {NAME.as_posix()}/{VERSION} is not in this folder ({versions}); {_REMEDY}"
        )
    info = _info(folder, setting)
    formats = info["formats"]
    if "array_record" not in formats:
        raise UserError(
            f"{setting}: its C4 is in {formats[0]} files, which cannot be read by index; convert them to array_record "
            f"with `tfds convert_format --dataset_version_path={folder} --out_file_format=array_record`, or {_REMEDY}"
        )
    splits = info["splits"]
    lengths = splits.get(split, [])
    if not sum(lengths):
        available = ", ".join(name for name, n in splits.items() if sum(n)) or "none"
        raise UserError(
            f"{setting}: its C4 has no records in split {split!r} (available splits: {available}); {_REMEDY}"
        )
    names = [f"c4-{split}.array_record-{k:05d}-of-{len(lengths):05d}" for k in range(len(lengths))]
    # A link to a file that does not exist counts as missing.
    present = {p.name: p.stat().st_size for p in folder.iterdir() if p.is_file()}
    if missing := [name for name in names if name not in present]:
        raise UserError(
            f"{setting}: {len(missing)} of the {len(names)} files of split {split!r} are missing from {folder}: "
            f"{', '.join(missing[:3])}{', ...' * (len(missing) > 3)}; copy them there, or replace C4: {_REMEDY}"
        )
    identity = [(name, n, present[name]) for name, n in zip(names, lengths, strict=True)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return Records(data_dir, split, tuple(zip(names, lengths, strict=True)), digest)


def data_folder(path: str) -> Path:
    """Returns the TFDS data folder: the path or, if it is empty, the default of TFDS."""
    if not path:
        from tensorflow_datasets.core import constants

        path = constants.DATA_DIR
    return Path(path).expanduser()


def _info(folder: Path, setting: str) -> dict[str, Any]:
    """Reads dataset_info.json; returns the formats, and the numbers of records in the files of each split."""
    try:
        info = json.loads((folder / "dataset_info.json").read_bytes())
        if (
            "text"
            not in json.loads((folder / "features.json").read_bytes())["featuresDict"]["features"]
        ):
            raise ValueError("features have no 'text'")
        info = {"splits": [], **info}
        lengths = {s["name"]: [int(n) for n in s.get("shardLengths", ())] for s in info["splits"]}
        if any(n < 0 for shard_lengths in lengths.values() for n in shard_lengths):
            raise ValueError("shardLengths below 0")
        formats = [info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ())]
        return {"splits": lengths, "formats": formats}
    except (OSError, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        raise_failed_read(error, folder)
        problem = f"no field {error}" if isinstance(error, KeyError) else error
        raise UserError(
            f"{setting}: {folder} is incomplete or damaged ({problem}); {_REMEDY}"
        ) from None


def _read(records: Records, index_K: np.ndarray) -> Iterator[bytes]:
    """Yields the raw records with these ascending indices.

    Only a few files are open at a time: the index of each file of C4 takes 20 MB, so that those of all 1,024 files
    would take 20 GB.
    """
    shard_K = records.shard_numbers(index_K)
    shard_indices = np.unique(shard_K)
    for first in range(0, len(shard_indices), _OPEN_FILES):
        shards = shard_indices[first : first + _OPEN_FILES]
        low, high = np.searchsorted(shard_K, [shards[0], shards[-1] + 1])
        raws, error = _try_read(records, index_K[low:high])
        if error:
            broken = [
                records.shards[s][0] for s in shards if _try_read(records, index_K[shard_K == s])[1]
            ]
            raise UserError(
                f"corpus.path={str(records.data_dir)!r}: a record of {', '.join(broken)} in {NAME / VERSION} cannot be "
                f"read ({error}); copy the file again, or replace C4: {_REMEDY}"
            )
        yield from raws


def _try_read(records: Records, index_K: np.ndarray) -> tuple[list[bytes], Exception | None]:
    source = _source(records.data_dir, records.split, records.sha256)
    try:
        with source.data_source:  # closes its files afterwards
            return list(source.__getitems__(index_K.tolist())), None
    except (RuntimeError, ValueError, IndexError) as error:
        _source.cache_clear()  # some of its files may have been closed without its knowledge
        return [], error


@functools.lru_cache(maxsize=4)
def _source(data_dir: Path, split: str, sha256: str) -> Any:
    """Returns the data source of TFDS; the hash is part of the cache's key, since a dataset may be replaced on disk."""
    import tensorflow_datasets as tfds

    return tfds.data_source(
        f"{NAME.as_posix()}:{VERSION}",
        split=split,
        data_dir=data_dir,
        download=False,
        deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
    )


def _text(records: Records, i: int, raw: bytes) -> str:
    """Decodes the text of record i, without its other fields; raises UserError if there is none."""
    from google.protobuf.message import DecodeError

    record = empty_example()
    try:
        record.ParseFromString(raw)
        return record.features.feature["text"].bytes_list.value[0].decode().strip()
    except DecodeError:
        problem = "is not a tf.train.Example"
    except IndexError:
        problem = "has no text"
    except UnicodeDecodeError as error:
        problem = f"has a text that is not UTF-8 ({error.reason})"
    name, _ = records.shards[int(records.shard_numbers(np.array([i]))[0])]
    raise UserError(
        f"corpus.path={str(records.data_dir)!r}: record {records.split}:{i}, in {name} of {NAME / VERSION}, {problem}; "
        f"copy the file again, or replace C4: {_REMEDY}"
    )


def empty_example() -> Any:
    """Returns an empty record, a protobuf message ``tf.train.Example``."""
    from tensorflow_datasets.proto import tf_example_pb2

    return getattr(tf_example_pb2, "Example")()  # noqa: B009 - created at run time, unknown to pyright
