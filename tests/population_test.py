import functools
import hashlib
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import docstrings, population
from lm_mia.errors import UserError
from lm_mia.tokenizer import load_tokenizer, train_tokenizer


@functools.cache
def documents() -> list[tuple[str, str]]:
    texts, records = docstrings.read(["rich"])
    return [(t, r) for t, r in zip(texts, records, strict=True) if len(t) >= 100]


@functools.cache
def model() -> bytes:
    return train_tokenizer([text for text, _ in documents()], 400)


def write(folder: Path, **changes: Any) -> population.Population:
    kwargs: dict[str, Any] = {"seed": 3, "samples": 100, "length_tokens": 64} | changes
    return population.write(folder, documents(), model(), **kwargs)


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> population.Population:
    return write(tmp_path_factory.mktemp("workdir") / "population")


def test_samples_are_the_documents_drawn(written: population.Population):
    spm, text_of = load_tokenizer(model()), {record: text for text, record in documents()}
    table = written.table
    assert len(written) == len(table) == table.source_record.nunique() == 100
    assert table.id.tolist() == list(range(100))
    for row in table.itertuples():
        text = text_of[str(row.source_record)]
        tokens = [2, *spm.encode(text), 1][:64]
        sample = written.sample(int(str(row.id)))
        assert sample.tolist() == tokens
        raw = text.encode()
        assert row.text_sha256 == hashlib.sha256(raw).hexdigest()
        measures = (row.chars, row.tokens, row.unk, row.zlib_bytes)
        assert measures == (len(text), len(tokens), tokens.count(3), len(zlib.compress(raw, 6)))
    assert written.lengths_N.tolist() == table.tokens.tolist()
    assert 64 in written.lengths_N
    assert written.lengths_N.min() < 64


def test_sizes_dtypes_and_text(written: population.Population):
    assert (written.vocab_size, written.length_tokens) == (400, 64)
    assert (written.tokens.dtype, written.offsets_N1.dtype) == (np.uint16, np.int64)
    assert isinstance(written.tokens, np.memmap)
    assert not written.tokens.flags.writeable
    short = int(np.argmin(written.lengths_N))
    text = dict((r, t) for t, r in documents())[written.table.source_record[short]]
    assert written.text(short).split() == text.split()
    for i in (-1, 100):
        with pytest.raises(IndexError):
            written.sample(i)


@given(st.lists(st.integers(0, 99), max_size=20))
@settings(deadline=None, max_examples=50)
def test_pad_equals_a_slow_reference(written: population.Population, ids: list[int]):
    ids_B = np.array(ids, np.int64)
    expected = np.zeros((len(ids), 64), np.int32)
    for b, i in enumerate(ids):
        for k, token in enumerate(written.sample(i)):
            expected[b, k] = token
    x_BxL = written.pad(ids_B)
    assert x_BxL.dtype == np.int32
    np.testing.assert_array_equal(x_BxL, expected)


def test_the_same_arguments_give_the_same_bytes(written: population.Population, tmp_path: Path):
    again = write(tmp_path / "deep" / "elsewhere")
    assert content(again.folder) == content(written.folder)
    assert again.sha256 == written.sha256
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("change", [{"seed": 4}, {"samples": 98}, {"length_tokens": 63}])
def test_every_argument_changes_the_hash(
    written: population.Population, tmp_path: Path, change: dict[str, int]
):
    assert write(tmp_path / "p", **change).sha256 != written.sha256


def test_more_than_one_batch_gives_the_same_samples(
    written: population.Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(population, "_BATCH", 7)
    seen: list[tuple[str, int, int]] = []
    other = write(tmp_path / "p", progress=lambda *n: seen.append(n))
    assert other.sha256 == written.sha256
    pd.testing.assert_frame_equal(other.table, written.table)
    assert seen[0] == ("tokenise samples", 7, 100)
    assert seen[-1] == ("tokenise samples", 100, 100)


def test_more_than_65536_pieces_are_stored_in_32_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Large:
        bos_id, eos_id, unk_id = (lambda self, i=i: i for i in (2, 1, 3))

        def __init__(self, **_):
            pass

        def get_piece_size(self) -> int:
            return 65_537

        def encode(self, texts: list[str], out_type: type) -> list[list[int]]:
            return [[65_536, 3, 3] for _ in texts]

    monkeypatch.setattr(population.sentencepiece, "SentencePieceProcessor", Large)
    large = write(tmp_path / "p", samples=2)
    assert large.tokens.dtype == np.uint32
    assert large.tokens.tolist() == [2, 65_536, 3, 3, 1] * 2
    assert large.table.unk.tolist() == [2, 2]


def test_manifest_records_settings_and_provenance(tmp_path: Path):
    made = write(tmp_path / "p", settings={"corpus.source": "text"}, provenance={"files": ["a"]})
    manifest = json.loads((tmp_path / "p/manifest.json").read_text())
    assert manifest == made.manifest
    assert manifest["settings"] == {
        "corpus.source": "text",
        "population.samples": 100,
        "population.seed": 3,
        "population.length_tokens": 64,
    }
    assert manifest["provenance"] == {"files": ["a"]}
    assert set(manifest["versions"]) == {"numpy", "pyarrow", "sentencepiece"}
    for name, entry in manifest["files"].items():
        raw = (tmp_path / "p" / name).read_bytes()
        assert entry == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


@pytest.mark.parametrize("name", [*population.FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["flip first", "flip middle", "flip last", "cut", "delete"])
def test_a_damaged_file_is_named(
    written: population.Population, tmp_path: Path, name: str, damage: str
):
    folder = tmp_path / "p"
    folder.mkdir()
    for other, raw in content(written.folder).items():
        (folder / other).write_bytes(raw)
    assert population.open_population(folder).sha256 == written.sha256
    raw = bytearray((folder / name).read_bytes())
    if damage.startswith("flip"):
        raw[{"first": 0, "middle": len(raw) // 2, "last": -1}[damage[5:]]] ^= 1
    (folder / name).write_bytes(raw[:-1] if damage == "cut" else raw)
    if damage == "delete":
        (folder / name).unlink()
    message = f"p/{name}: .*; delete the folder .*/p and run `lm-mia corpus` again"
    with pytest.raises(UserError, match=message):
        population.open_population(folder)


def test_a_changed_manifest_is_refused(written: population.Population, tmp_path: Path):
    folder = tmp_path / "p"
    folder.mkdir()
    for other, raw in content(written.folder).items():
        (folder / other).write_bytes(raw)
    changed = written.manifest | {"vocab_size": 401}
    (folder / "manifest.json").write_bytes(
        (json.dumps(changed, indent=2, sort_keys=True) + "\n").encode()
    )
    with pytest.raises(UserError, match=r"manifest.json: the content was changed"):
        population.open_population(folder, verify=False)


def test_missing_population(tmp_path: Path):
    with pytest.raises(UserError, match=r"no population here; run `lm-mia corpus` first"):
        population.open_population(tmp_path / "p")


def test_bad_arguments_write_nothing(tmp_path: Path):
    have = len(documents())
    message = f"population.samples=9998: the corpus has {have} documents .* at most {have // 2 * 2}"
    with pytest.raises(UserError, match=message):
        write(tmp_path / "w/p", samples=9998)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "p").mkdir()
    (tmp_path / "p/mine").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        write(tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_an_empty_folder_is_filled(written: population.Population, tmp_path: Path):
    (tmp_path / "p").mkdir()
    assert write(tmp_path / "p").sha256 == written.sha256


KILLED = """
import os, pathlib, signal, sys
from lm_mia import population
from lm_mia.tokenizer import train_tokenizer
folder, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
population._BATCH = 10
documents = [(f"the text of number {i}", str(i)) for i in range(40)]
model = train_tokenizer([text for text, _ in documents], 30)
if moment == "manifest": population._dump = die
if moment == "rename": os.replace = die
if moment == "after": population.open_population = die
progress = lambda label, done, total: die() if moment == "samples" and done == 20 else None
population.write(folder, documents, model, seed=0, samples=40, length_tokens=9, progress=progress)
"""


def test_killed_at_any_moment_leaves_a_whole_population_or_none(tmp_path: Path):
    folder = tmp_path / "p"

    def run(folder: Path, moment: str) -> int:
        return subprocess.run([sys.executable, "-c", KILLED, str(folder), moment]).returncode

    for moment in ("samples", "manifest", "rename"):
        assert run(folder, moment) == -9
        assert [p.name for p in tmp_path.iterdir()] == [".p.unfinished"]
    assert run(folder, "after") == -9
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert run(tmp_path / "q", "never") == 0
    assert content(folder) == content(tmp_path / "q")
    population.open_population(folder)
