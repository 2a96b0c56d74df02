"""C4 as TensorFlow Datasets lays it out (``c4/en:3.1.0`` in ArrayRecord files), read by index without TensorFlow."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm_mia.data.documents import Pairs
from lm_mia.errors import UserError

NAME, VERSION = Path("c4", "en"), "3.1.0"
_OPEN_FILES = 8
_WAY_OUT = (
    "set corpus.path to the TFDS data folder that holds it, or make it with `lm-mia corpus "
    "--from-hf-shards='FOLDER/c4-*.json.gz'` from the files of Hugging Face's allenai/c4"
)


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a split; item i is (text without white space around it, ``train:INDEX``)."""

    data_dir: Path
    split: str
    shards: tuple[tuple[str, int], ...] = dataclasses.field(repr=False)
    """Name of each file, and its number of records."""
    sha256: str
    """Of the names, numbers of records and bytes of the files: texts are too many to hash."""

    def __len__(self) -> int:
        return sum(records for _, records in self.shards)

    def __getitem__(self, i: int) -> tuple[str, str]:
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        return next(iter(self.select(np.array([i]))))

    def select(self, index_K: np.ndarray) -> Pairs:
        """These records in this order, read by whoever iterates over them."""
        return _Lent(self, index_K)

    @property
    def provenance(self) -> dict[str, Any]:
        """What a manifest says of the corpus."""
        return {
            "source": "c4",
            "corpus_sha256": self.sha256,
            "documents": len(self),
            "dataset": f"{NAME.as_posix()}:{VERSION}",
            "split": self.split,
            "shards": len(self.shards),
        }


@dataclasses.dataclass(frozen=True)
class _Lent(Sequence[tuple[str, str]]):
    """Some records, read in bulk; pickled without their texts."""

    records: Records
    index_K: np.ndarray

    def __len__(self) -> int:
        return len(self.index_K)

    def __getitem__(self, k: Any) -> Any:
        return self.records[int(self.index_K[k])]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        order = np.argsort(self.index_K)
        raws: list[bytes] = [b""] * len(order)
        for k, raw in zip(order, _read(self.records, self.index_K[order]), strict=True):
            raws[k] = raw
        for i, raw in zip(self.index_K.tolist(), raws, strict=True):
            yield _text(self.records, i, raw), f"{self.records.split}:{i}"


def open_records(path: str, split: str = "train") -> Records:
    """The records of a split, checked: folder, version, format, split, files.

    Args:
      path: the TFDS data folder, which holds ``c4/en/3.1.0``; empty for TFDS's own default (the environment variable
        TFDS_DATA_DIR, else ``~/tensorflow_datasets``).
      split: train or validation.

    Raises:
      UserError: if something is missing or of another kind; says what and the way out.
    """
    data_dir = data_folder(path)
    told = f"corpus.path={str(data_dir)!r}"
    if not data_dir.is_dir():
        raise UserError(f"{told}: no such folder; {_WAY_OUT}")
    folder = data_dir / NAME / VERSION
    if not folder.is_dir():
        there = [
            f"{p.parent.name}/{p.name}" for p in sorted((data_dir / "c4").glob("*/[0-9]*.*.*"))
        ]
        versions = f"there is {', '.join(there)}" if there else "there is no C4 at all"
        raise UserError(f"{told}: no {NAME.as_posix()}/{VERSION} in it ({versions}); {_WAY_OUT}")
    info = _info(folder, told)
    formats = info["formats"]
    if "array_record" not in formats:
        raise UserError(
            f"{told}: its C4 is in {formats[0]} files, which cannot be read by index; write it as array_record with "
            f"`tfds convert_format --dataset_version_path={folder} --out_file_format=array_record`, or {_WAY_OUT}"
        )
    splits = info["splits"]
    lengths = splits.get(split, [])
    if not sum(lengths):
        have = ", ".join(name for name, records in splits.items() if sum(records)) or "none"
        raise UserError(
            f"{told}: its C4 has no records in split {split!r} (there are: {have}); {_WAY_OUT}"
        )
    names = [f"c4-{split}.array_record-{k:05d}-of-{len(lengths):05d}" for k in range(len(lengths))]
    # A link to a file that is gone is not there either.
    present = {p.name: p.stat().st_size for p in folder.iterdir() if p.is_file()}
    if missing := [name for name in names if name not in present]:
        raise UserError(
            f"{told}: {len(missing)} of the {len(names)} files of split {split!r} are missing from {folder}: "
            f"{', '.join(missing[:3])}{', ...' * (len(missing) > 3)}; copy them there, or make C4 anew: {_WAY_OUT}"
        )
    identity = [(name, n, present[name]) for name, n in zip(names, lengths, strict=True)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return Records(data_dir, split, tuple(zip(names, lengths, strict=True)), digest)


def data_folder(path: str) -> Path:
    """The TFDS data folder: the path, or TFDS's own default; UserError if the extra is not installed."""
    default = _tfds().core.constants.DATA_DIR
    return Path(path or default).expanduser()


def _info(folder: Path, told: str) -> dict[str, Any]:
    """Of dataset_info.json: the formats, and the numbers of records in the files of each split."""
    try:
        info = json.loads((folder / "dataset_info.json").read_bytes())
        if (
            "text"
            not in json.loads((folder / "features.json").read_bytes())["featuresDict"]["features"]
        ):
            raise ValueError("features have no 'text'")
        info = {"splits": [], **info}
        lengths = {s["name"]: [int(n) for n in s.get("shardLengths", ())] for s in info["splits"]}
        if any(n < 0 for of_split in lengths.values() for n in of_split):
            raise ValueError("shardLengths below 0")
        formats = [info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ())]
        return {"splits": lengths, "formats": formats}
    except (OSError, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{told}: {folder} is unfinished or damaged ({what}); {_WAY_OUT}") from None


def _read(records: Records, index_K: np.ndarray) -> Iterator[bytes]:
    """The raw records of ascending indices.

    A few files at a time are open: the index of one of C4's takes 20 MB, those of all 1,024 would take 20 GB.
    """
    ends = np.cumsum([n for _, n in records.shards])
    shard_K = np.searchsorted(ends, index_K, side="right")
    touched = np.unique(shard_K)
    for first in range(0, len(touched), _OPEN_FILES):
        shards = touched[first : first + _OPEN_FILES]
        low, high = np.searchsorted(shard_K, [shards[0], shards[-1] + 1])
        raws, error = _try(records, index_K[low:high])
        if error:
            broken = [
                records.shards[s][0] for s in shards if _try(records, index_K[shard_K == s])[1]
            ]
            raise UserError(
                f"corpus.path={str(records.data_dir)!r}: a record of {', '.join(broken)} in {NAME / VERSION} cannot be "
                f"read ({error}); copy the file again, or make C4 anew: {_WAY_OUT}"
            )
        yield from raws


def _try(records: Records, index_K: np.ndarray) -> tuple[list[bytes], Exception | None]:
    """The raw records, or the error that reading them gave."""
    source = _source(records.data_dir, records.split, records.sha256)
    try:
        with source.data_source:  # closes its files at the end
            return list(source.__getitems__(index_K.tolist())), None
    except (RuntimeError, ValueError, IndexError) as error:
        _source.cache_clear()  # some of its files may be closed, which it does not know
        return [], error


@functools.lru_cache(maxsize=4)
def _source(data_dir: Path, split: str, sha256: str) -> Any:
    """The data source of TFDS; the hash tells data sets that lay in one folder one after another apart."""
    tfds = _tfds()
    return tfds.data_source(
        f"{NAME.as_posix()}:{VERSION}",
        split=split,
        data_dir=data_dir,
        download=False,
        deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
    )


def _text(records: Records, i: int, raw: bytes) -> str:
    """The text of record i, and nothing else of it decoded; UserError if it has none."""
    from google.protobuf.message import DecodeError

    record = empty_example()
    try:
        record.ParseFromString(raw)
        return record.features.feature["text"].bytes_list.value[0].decode().strip()
    except DecodeError:
        what = "is no tf.train.Example"
    except IndexError:
        what = "has no text"
    except UnicodeDecodeError as error:
        what = f"has a text that is not UTF-8 ({error.reason})"
    ends = np.cumsum([n for _, n in records.shards])
    name, _ = records.shards[int(np.searchsorted(ends, i, side="right"))]
    raise UserError(
        f"corpus.path={str(records.data_dir)!r}: record {records.split}:{i}, in {name} of {NAME / VERSION}, {what}; "
        f"copy the file again, or make C4 anew: {_WAY_OUT}"
    )


def empty_example() -> Any:
    """An empty record: a protobuf message ``tf.train.Example``."""
    from tensorflow_datasets.proto import tf_example_pb2

    return getattr(tf_example_pb2, "Example")()  # noqa: B009 - made at run time, unknown to pyright


def _tfds() -> Any:
    try:
        import array_record  # noqa: F401
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"corpus.source='c4': {error.name} is not installed; run with the extra: uv run --extra c4 lm-mia ..., or "
            "pip install 'lm-mia[c4]'"
        ) from None
    return tensorflow_datasets
