"""C4-like data for tests, with given texts, in the layout of TFDS and in the files of Hugging Face."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FIELDS = ("content-length", "content-type", "text", "timestamp", "url")


def texts(count: int, seed: int = 0, mean_words: int = 12) -> list[str]:
    """Returns English-like texts with lognormal lengths; some are short, and some share a prefix."""
    draw = np.random.default_rng(seed)
    words = (
        "the",
        "model",
        "learns",
        "which",
        "sample",
        "it",
        "saw",
        "in",
        "training",
        "and",
        "forgets",
        "others",
    )
    out = []
    for i in range(count):
        length = max(int(draw.lognormal(np.log(mean_words), 0.6)), 1)
        start = "home page of the site" if i % 7 == 0 else f"page {i}"
        out.append(f"{start} " + " ".join(draw.choice(words, length)))
    return out


def tfds(data_dir: Path, splits: Mapping[str, Sequence[str]], shards: int = 2, **info: Any) -> Path:
    """Writes ``c4/en/3.1.0`` as TFDS does and returns its folder; info overrides fields of dataset_info.json."""
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets import features

    folder = data_dir / "c4" / "en" / "3.1.0"
    folder.mkdir(parents=True)
    files_of_splits = []
    for name, files_of_split in splits.items():
        lengths = []
        for shard in range(shards):
            part = files_of_split[
                shard * len(files_of_split) // shards : (shard + 1) * len(files_of_split) // shards
            ]
            path = folder / f"c4-{name}.array_record-{shard:05d}-of-{shards:05d}"
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for text in part:
                writer.write(_example(text))
            writer.close()
            lengths.append(str(len(part)))
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        files_of_splits.append(
            {"name": name, "shardLengths": lengths, "filepathTemplate": template}
        )
    features.FeaturesDict({name: features.Text() for name in FIELDS}).save_config(str(folder))
    facts = {"name": "c4", "configName": "en", "version": "3.1.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(
        json.dumps({**facts, "splits": files_of_splits, **info})
    )
    return folder


def _example(text: str) -> bytes:
    """Encodes a tf.train.Example by hand, as length-delimited fields of protobuf."""

    def field(number: int, content: bytes) -> bytes:
        size, varint = len(content), b""
        while size >= 128:
            varint, size = varint + bytes([size % 128 + 128]), size // 128
        return bytes([number << 3 | 2]) + varint + bytes([size]) + content

    values = dict.fromkeys(FIELDS, "x") | {"text": text}
    entries = b"".join(
        field(1, field(1, key.encode()) + field(2, field(1, field(1, value.encode()))))
        for key, value in values.items()
    )
    return field(1, entries)


def hugging_face(
    folder: Path, splits: Mapping[str, Sequence[Sequence[str]]], num_files: int = 1024
) -> str:
    """Writes json.gz files like those of allenai/c4, one per list of texts, and returns a glob that matches them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, files in splits.items():
        for number, texts_of_file in enumerate(files):
            path = folder / f"c4-{name}.{number:05d}-of-{num_files:05d}.json.gz"
            with gzip.open(path, "wt") as lines:
                for i, text in enumerate(texts_of_file):
                    url = f"https://example.org/{name}/{number}/{i}"
                    record = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": url}
                    lines.write(json.dumps(record) + "\n")
    return str(folder / "c4-*.json.gz")
