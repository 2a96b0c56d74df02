import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_c4
import numpy as np
import pytest

from lm_mia.data import c4
from lm_mia.data.documents import Document
from lm_mia.errors import UserError

TEXTS = fake_c4.texts(25)
HELD_OUT = fake_c4.texts(7, seed=1)
FILE_SIZES = (6, 6, 6, 7)  # of the 25 records


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    fake_c4.tfds(folder, {"train": TEXTS, "validation": HELD_OUT}, shards=4)
    return folder


@pytest.fixture
def changed(data_dir: Path, tmp_path: Path) -> Path:
    """Returns a copy that tests may damage."""
    return Path(shutil.copytree(data_dir, tmp_path / "tfds"))


def document(i: int) -> Document:
    """Returns the document of a record of the 25 in four files."""
    shard = np.repeat(range(4), FILE_SIZES)[i]
    return TEXTS[i], f"train:{i}", f"c4-train.array_record-{shard:05d}-of-00004"


def test_records_are_read_by_index(data_dir: Path):
    records = c4.open_records(str(data_dir))
    assert len(records) == 25
    assert [records[i] for i in range(25)] == [document(i) for i in range(25)]
    for i in (-1, 25):
        with pytest.raises(IndexError, match=f"record {i} of 25"):
            records[i]
    assert c4.open_records(str(data_dir), "validation")[6] == (
        HELD_OUT[6],
        "validation:6",
        "c4-validation.array_record-00003-of-00004",
    )


@pytest.mark.parametrize("open_files", [1, 3, 8])
def test_selected_records_keep_order_and_repetitions(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, open_files: int
):
    monkeypatch.setattr(c4, "_OPEN_FILES", open_files)
    index_K = np.array([24, 0, 13, 13, 6, 1])
    selected = pickle.loads(pickle.dumps(c4.open_records(str(data_dir)).select(index_K)))
    assert list(selected) == [document(i) for i in index_K.tolist()]
    assert (len(selected), selected[2]) == (6, document(13))
    assert list(c4.open_records(str(data_dir)).select(index_K[:0])) == []


def test_whitespace_around_texts_is_removed(tmp_path: Path):
    fake_c4.tfds(tmp_path, {"train": ["  a b\nc \n", "é" * 300]}, shards=1)
    assert [t for t, *_ in c4.open_records(str(tmp_path))] == ["a b\nc", "é" * 300]


def test_files_are_closed_after_reading(data_dir: Path):
    records = c4.open_records(str(data_dir))
    list(records.select(np.arange(25)))
    names = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert not [name for name in names if name.startswith(str(data_dir))]


def test_hash_identifies_the_build(data_dir: Path, tmp_path: Path):
    records = c4.open_records(str(data_dir))
    moved = shutil.copytree(data_dir, tmp_path / "elsewhere")
    assert c4.open_records(str(moved)).sha256 == records.sha256
    fake_c4.tfds(tmp_path / "other", {"train": TEXTS}, shards=5)
    assert c4.open_records(str(tmp_path / "other")).sha256 != records.sha256
    assert records.provenance == {
        "source": "c4",
        "corpus_sha256": records.sha256,
        "documents": 25,
        "dataset": "c4/en:3.1.0",
        "split": "train",
        "shards": 4,
    }


def test_replaced_dataset_is_read_again(tmp_path: Path):
    for text in ("old", "new text"):
        shutil.rmtree(tmp_path / "c4", ignore_errors=True)
        fake_c4.tfds(tmp_path, {"train": [text] * 3 * len(text)})
        last = 3 * len(text) - 1  # in the second file, whose first record has another index
        assert c4.open_records(str(tmp_path))[last][:2] == (text, f"train:{last}")


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        c4.open_records(str(path))
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"corpus.path={str(path)!r}: ")


def test_missing_folders_and_versions_are_reported(changed: Path, tmp_path: Path):
    refused(tmp_path / "nowhere", r"no such folder; set corpus.path .* --from-hf-shards=")
    (tmp_path / "empty").mkdir()
    refused(
        tmp_path / "empty",
        r"c4/en/3.1.0 is not in this folder \(it does not contain C4\); set corpus.path",
    )
    (changed / "c4/en/3.1.0").rename(changed / "c4/en/3.0.1")
    (changed / "c4/realnewslike/2.3.0").mkdir(parents=True)
    refused(changed, r"\(it contains en/3.0.1, realnewslike/2.3.0\); set corpus.path")


def edit(data_dir: Path, **info: object) -> None:
    path = data_dir / "c4/en/3.1.0/dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | info))


@pytest.mark.parametrize("kind", ["tfrecord", None])
def test_tfrecord_files_are_refused(changed: Path, kind: str | None):
    edit(changed, fileFormat=kind or "tfrecord")
    if kind is None:  # as written by the first versions of TFDS
        path = changed / "c4/en/3.1.0/dataset_info.json"
        info = json.loads(path.read_text())
        del info["fileFormat"]
        path.write_text(json.dumps(info))
    refused(
        changed, r"in tfrecord files.* `tfds convert_format .*array_record`, or set corpus.path"
    )


def test_alternative_array_record_files_are_read(changed: Path):
    edit(changed, fileFormat="tfrecord", alternativeFileFormats=["array_record"])
    assert c4.open_records(str(changed))[24] == document(24)


def test_splits_without_records_are_reported(changed: Path):
    edit(changed, splits=[{"name": "validation", "shardLengths": ["7"]}])
    refused(changed, r"no records in split 'train' \(available splits: validation\)")
    edit(changed, splits=[{"name": "train", "shardLengths": ["0", "0"]}])
    refused(changed, r"no records in split 'train' \(available splits: none\)")
    edit(changed, splits=[{"name": "train"}])
    refused(changed, r"no records in split 'train' \(available splits: none\)")


def test_missing_files_are_reported(changed: Path):
    folder = changed / "c4/en/3.1.0"
    for shard in (1, 3):
        (folder / f"c4-train.array_record-0000{shard}-of-00004").unlink()
    refused(
        changed,
        r"2 of the 4 files .* c4-train.array_record-00001-of-00004, c4-train.array_record-00003",
    )
    assert len(c4.open_records(str(changed), "validation")) == 7


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [None, "{", "[]", '{"featuresDict": {"features": {}}}'])
def test_incomplete_folders_are_reported(changed: Path, name: str, content: str | None):
    path = changed / "c4/en/3.1.0" / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    if name == "dataset_info.json" and content and content.startswith('{"'):
        refused(changed, "in tfrecord files")
    else:
        refused(changed, r"c4/en/3.1.0 is incomplete or damaged \(.+\); set corpus.path")


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ([{"shardLengths": ["5"]}], "no field 'name'"),
        ([{"name": "train", "shardLengths": ["x"]}], "literal for int"),
        ([{"name": "train", "shardLengths": [1e999]}], "infinity"),
        ([{"name": "train", "shardLengths": ["-5"]}], "shardLengths below 0"),
        ([{"name": "train", "shardLengths": None}], "not iterable"),
        (["train"], "indices"),
        (None, "not iterable"),
    ],
)
def test_damaged_splits_are_reported(changed: Path, splits: Any, problem: str):
    edit(changed, splits=splits)
    refused(changed, rf"c4/en/3.1.0 is incomplete or damaged \(.*{problem}.*\); set corpus.path")


def test_broken_links_count_as_missing(changed: Path):
    folder = changed / "c4/en/3.1.0"
    records = c4.open_records(str(changed))
    (folder / "notes").symlink_to("nowhere")
    assert c4.open_records(str(changed)) == records
    (folder / "c4-train.array_record-00001-of-00004").unlink()
    (folder / "c4-train.array_record-00001-of-00004").symlink_to("nowhere")
    refused(
        changed, r"1 of the 4 files of split 'train' are missing .* c4-train.array_record-00001"
    )


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"no example", "tf.train.Example"),
        (b"", "has no text"),
        (
            fake_c4._example("naïve").replace("ï".encode(), b"\xff\xfe"),
            "not UTF-8",
        ),
        (fake_c4._example("a").replace(b"text", b"tixt"), "has no text"),
    ],
)
def test_records_without_text_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, problem: str
):
    example = fake_c4._example
    monkeypatch.setattr(fake_c4, "_example", lambda t: raw if t == "broken" else example(t))
    fake_c4.tfds(tmp_path, {"train": ["a", "b", "c", "broken", "d"]})
    records = c4.open_records(str(tmp_path))
    assert records[4][:2] == ("d", "train:4")
    file = "c4-train.array_record-00001-of-00002"
    message = f"record train:3, in {file} of c4/en/3.1.0, .*{problem}.*; copy the file again"
    with pytest.raises(UserError, match=message) as caught:
        list(records.select(np.array([4, 3, 0])))
    assert str(caught.value).startswith(f"corpus.path={str(tmp_path)!r}: ")


@pytest.mark.parametrize("damage", ["cut", "fewer", "other"])
def test_damaged_files_are_named_when_read(changed: Path, damage: str):
    path = changed / "c4/en/3.1.0/c4-train.array_record-00002-of-00004"
    raw = path.read_bytes()
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "other":
        path.write_bytes(b"no records" * 10_000)
    else:  # one record, although dataset_info.json lists six
        path.write_bytes(
            (changed / "c4/en/3.1.0/c4-validation.array_record-00000-of-00004").read_bytes()
        )
    records = c4.open_records(str(changed))
    assert records[0] == document(0)
    with pytest.raises(UserError, match=r"record of c4-train.array_record-00002-of-00004 "):
        records[17]


OPEN = """
import sys
from lm_mia.data import c4
from lm_mia.data.documents import Document
assert not {"tensorflow_datasets", "array_record"} & set(sys.modules)
records = c4.open_records("")
records[3]
assert not {"tensorflow", "jax"} & set(sys.modules)
print(c4.data_folder(""), len(records))
"""


@pytest.mark.process
def test_default_folder_of_tfds_without_loading_tensorflow(data_dir: Path):
    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-W", "error", "-c", OPEN]
        env = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"} | environment
        return subprocess.run(argv, env=env, capture_output=True, text=True)

    process = run(TFDS_DATA_DIR=str(data_dir))
    assert (process.stdout, process.stderr) == (f"{data_dir} 25\n", "")
    missing = run(HOME=str(data_dir / "home")).stderr.splitlines()[-1]
    assert "/home/tensorflow_datasets': " in missing
