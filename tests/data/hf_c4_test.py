import gzip
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_c4
import numpy as np
import pytest
import tensorflow_datasets as tfds
from failed_reads import fail_reads

from lm_mia import cli
from lm_mia.data import c4, hf_c4
from lm_mia.data.population import open_population
from lm_mia.errors import UserError

TRAIN = [fake_c4.texts(9, seed=1), fake_c4.texts(5, seed=2), fake_c4.texts(6, seed=3)]
HELD_OUT = [fake_c4.texts(4, seed=4)]


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    return fake_c4.hugging_face(tmp_path / "hf", {"train": TRAIN, "validation": HELD_OUT})


def convert(pattern: str, path: Path, processes: int = 1) -> list[str]:
    """Converts files and returns the messages."""
    messages: list[str] = []
    folder = hf_c4.convert(pattern, str(path), processes, lambda *n: None, messages.append)
    assert folder == path / "c4/en/3.1.0"
    return messages


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.process)])
def test_tfds_opens_converted_files(tmp_path: Path, pattern: str, processes: int):
    messages = convert(pattern, tmp_path / "out", processes)
    [message] = messages
    assert re.fullmatch(rf"C4: .*\b4 files\b.* {tmp_path}/out/c4/en/3\.1\.0", message)
    names = [f"c4-train.array_record-{k:05d}-of-00003" for k in range(3)]
    names.append("c4-validation.array_record-00000-of-00001")
    assert list(content(tmp_path / "out/c4/en/3.1.0")) == [
        *names,
        "dataset_info.json",
        "features.json",
        "hf_shards.json",
    ]
    for split, files in (("train", TRAIN), ("validation", HELD_OUT)):
        records = tfds.data_source("c4/en:3.1.0", split=split, data_dir=tmp_path / "out")
        expected = [
            {
                "text": text.encode(),
                "url": f"https://example.org/{split}/{number}/{i}".encode(),
                "timestamp": b"2019-04-25T12:57:54Z",
                "content-type": b"",
                "content-length": b"",
            }
            for number, file_texts in enumerate(files)
            for i, text in enumerate(file_texts)
        ]
        assert list(records) == expected
    assert [t for t, *_ in c4.open_records(str(tmp_path / "out"))] == [*itertools.chain(*TRAIN)]
    info = tfds.builder("c4/en:3.1.0", data_dir=tmp_path / "out").info
    assert info.splits["train"].num_examples == 20
    assert info.splits["train"].num_bytes == sum(
        len(raw) for raw in raw_records(tmp_path / "out", "train")
    )


def test_notes_that_cannot_be_read_are_not_called_other_files(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
):
    convert(pattern, tmp_path / "out")
    fail_reads(monkeypatch, tmp_path / "out/c4/en/3.1.0/hf_shards.json")
    with pytest.raises(OSError, match=r"hf_shards\.json"):
        convert(pattern, tmp_path / "out")


def raw_records(path: Path, split: str) -> list[bytes]:
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    return list(tfds.data_source("c4/en:3.1.0", split=split, data_dir=path, deserialize_method=raw))


def test_files_are_ordered_by_name(tmp_path: Path):
    folder = tmp_path / "hf"
    pattern = fake_c4.hugging_face(folder, {"train": [["zero"], ["one"], ["two"], ["three"]]})
    (folder / "c4-train.00001-of-01024.json.gz").unlink()
    (folder / "deeper").mkdir()
    moved = "c4-train.00000-of-01024.json.gz"
    (folder / moved).rename(folder / "deeper" / moved)
    pattern = str(folder / "**" / "c4-train.*")
    convert(pattern, tmp_path / "out")
    assert [t for t, *_ in c4.open_records(str(tmp_path / "out"))] == ["zero", "two", "three"]


def test_progress_is_in_bytes(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hf_c4, "_REPORT_LINES", 2)
    seen: list[tuple[str, int, int]] = []
    hf_c4.convert(pattern, str(tmp_path / "out"), 1, lambda *n: seen.append(n), lambda line: None)
    total = sum(p.stat().st_size for p in (tmp_path / "hf").iterdir())
    assert {(label, total_bytes) for label, _, total_bytes in seen} == {
        ("convert C4 (bytes)", total)
    }
    done = [n for _, n, _ in seen]
    assert (done[0], done[-1]) == (0, total)
    assert done == sorted(done)
    assert len(done) > 6


def test_finished_conversion_is_reused(tmp_path: Path, pattern: str):
    convert(pattern, tmp_path / "out")
    before = content(tmp_path / "out/c4/en/3.1.0")
    messages = convert(pattern, tmp_path / "out")
    [message] = messages
    assert re.match(rf"C4: reusing {tmp_path}/out/c4/en/3\.1\.0\b.*\b4 files", message)
    assert content(tmp_path / "out/c4/en/3.1.0") == before
    assert [p.name for p in (tmp_path / "out/c4/en").iterdir() if p.suffix != ".lock"] == ["3.1.0"]


def refused(pattern: str, path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        convert(pattern, path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith("--from-hf-shards")


def test_other_files_are_refused(tmp_path: Path, pattern: str):
    fake_c4.tfds(tmp_path / "tfds", {"train": ["a"]})
    before = content(tmp_path / "tfds/c4/en/3.1.0")
    refused(
        pattern, tmp_path / "tfds", "was not converted from these files; choose another corpus.path"
    )
    assert content(tmp_path / "tfds/c4/en/3.1.0") == before
    convert(pattern, tmp_path / "out")
    refused(
        pattern.replace("c4-*", "c4-train.*"),
        tmp_path / "out",
        "was not converted from these files",
    )
    with gzip.open(tmp_path / "hf/c4-train.00000-of-01024.json.gz", "at") as lines:
        lines.write('{"text": "more"}\n')
    refused(pattern, tmp_path / "out", "was not converted from these files")


def test_unexpected_file_names_are_refused(tmp_path: Path, pattern: str):
    folder = tmp_path / "hf"
    refused(str(folder / "*.gzip"), tmp_path / "out", "no such file; quote the glob")
    refused(pattern.replace("c4-*", "c4-val*"), tmp_path / "out", r"no c4-train.\* file among 1")
    (folder / "twice").mkdir()
    shutil.copy(folder / "c4-train.00001-of-01024.json.gz", folder / "twice")
    refused(
        str(folder / "**/c4*.gz"), tmp_path / "out", r"00001-of-01024.json.gz and .* are the same"
    )
    (folder / "c4-mine.json.gz").write_bytes(b"")
    refused(
        pattern,
        tmp_path / "out",
        r"the name of .*c4-mine.json.gz is not of the form c4-train.00000-of-01024",
    )
    assert not (tmp_path / "out").exists()


def test_missing_fields_are_empty(tmp_path: Path):
    pattern = fake_c4.hugging_face(tmp_path / "hf", {"train": [[]]})
    with gzip.open(tmp_path / "hf/c4-train.00000-of-01024.json.gz", "wb") as lines:
        lines.write('{"text": "naïve"}'.encode())  # no newline at the end
    convert(pattern, tmp_path / "out")
    (record,) = tfds.data_source("c4/en:3.1.0", split="train", data_dir=tmp_path / "out")
    assert record == dict.fromkeys(fake_c4.FIELDS, b"") | {"text": "naïve".encode()}


CONVERT = """
import os, pathlib, signal, sys
from lm_mia.data import hf_c4
moment, pattern, path = sys.argv[1:]
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
replaced, replace = [], os.replace
def counted(source, target):
    replaced.append(str(target))
    if moment == "start" or moment == "second" and str(target).endswith("00001-of-00003"): die()
    if moment == "never" and ".array_record-" in str(target): sys.exit("all were made before")
    if moment == "rename" and str(target).endswith("3.1.0"): die()
    replace(source, target)
os.replace = counted
hf_c4.convert(pattern, path, 1, lambda *n: None, print)
"""


@pytest.mark.process
def test_killed_conversion_resumes(tmp_path: Path, pattern: str):
    def run(moment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", CONVERT, moment, pattern, str(tmp_path / "out")]
        return subprocess.run(argv, capture_output=True, text=True)

    for moment in ("start", "second", "rename"):
        done = run(moment)
        assert done.returncode == -9
        assert not (tmp_path / "out/c4/en/3.1.0").exists()
    assert "C4: 1 of 4 " in done.stdout
    assert re.fullmatch(rf"C4: .*\b4 files .*{tmp_path}/out/c4/en/3\.1\.0\n", run("never").stdout)
    convert(pattern, tmp_path / "whole")
    converted = content(tmp_path / "out/c4/en/3.1.0")
    assert converted == content(tmp_path / "whole/c4/en/3.1.0")


CONVERT_BY_TWO = """
import os, pathlib, signal, sys
from lm_mia.data import hf_c4
hf_c4._REPORT_LINES = 100
unfinished = pathlib.Path(sys.argv[2], "c4/en/.3.1.0.unfinished")
def kill_all_when_a_file_is_made(*_):
    if any(unfinished.glob("*.made.json")):
        os.killpg(0, signal.SIGKILL)
if __name__ == "__main__":
    hf_c4.convert(sys.argv[1], sys.argv[2], 2, kill_all_when_a_file_is_made, print)
"""


@pytest.mark.process
def test_conversion_resumes_after_all_processes_are_killed(tmp_path: Path):
    big = [[f"text {i} of file {k}" * 5 for i in range(4_000)] for k in range(4)]
    pattern = fake_c4.hugging_face(tmp_path / "hf", {"train": big})
    script = tmp_path / "convert.py"
    script.write_text(CONVERT_BY_TWO)
    argv = [sys.executable, str(script), pattern, str(tmp_path / "out")]
    assert subprocess.run(argv, start_new_session=True).returncode == -9
    unfinished = tmp_path / "out/c4/en/.3.1.0.unfinished"
    finished = len(list(unfinished.glob("*.made.json")))
    assert 1 <= finished < 4
    messages = convert(pattern, tmp_path / "out", 2)
    assert messages[0].startswith(f"C4: {finished} of 4 ")
    records = c4.open_records(str(tmp_path / "out"))
    assert [t for t, *_ in records.select(np.arange(len(records)))] == [*itertools.chain(*big)]
    converted = content(tmp_path / "out/c4/en/3.1.0")
    assert len(converted) == 7
    assert json.loads(converted["hf_shards.json"]).keys() == {
        p.name for p in (tmp_path / "hf").iterdir()
    }


CONFIG = """
from lm_mia import config
def get_config(folder):
    return config.Config(
        corpus=config.Corpus("c4", folder, min_chars=20, deduplicate="none", processes=1),
        tokenizer=config.Tokenizer(vocab_size=40, documents=15),
        population=config.Population(samples=16, length_tokens=16),
        train=config.Train(batch_size=4), optimizer=config.Optimizer(warmup_steps=1),
    )
"""


def test_command_converts_and_builds_the_population(
    tmp_path: Path, pattern: str, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "c.py").write_text(CONFIG)
    argv = [f"--config={tmp_path}/c.py:{tmp_path}/out", f"--workdir={tmp_path}/work"]
    assert cli.main(["corpus", *argv, f"--from-hf-shards={pattern}"]) == 0
    err = capfd.readouterr().err
    assert re.search(rf"C4: .*\b4 files .*{tmp_path}/out/c4/en/3\.1\.0", err)
    assert "corpus: 20 documents, sha256 " in err
    [population] = (tmp_path / "work" / "populations").glob("[!.]*")
    assert len(open_population(population)) == 16
    assert cli.main(["corpus", *argv, f"--from_hf_shards={pattern}"]) == 0

    other = [argv[0], f"--workdir={tmp_path}/other", f"--from-hf-shards={pattern}"]
    docstrings = ["--config.corpus.source=docstrings", "--config.corpus.path="]
    docstrings.append("--config.tokenizer.vocab_size=300")
    for arguments, line in (
        (["train", *other], "--from-hf-shards: works only with lm-mia corpus; leave it out"),
        (
            ["corpus", *other, *docstrings],
            f"--from-hf-shards={pattern!r}: works only with C4; add --config.corpus.source=c4",
        ),
    ):
        capfd.readouterr()
        assert cli.main(arguments) == 2
        assert capfd.readouterr().err == f"{line}\n"
    assert cli.main(["corpus", *argv, "--from-hf-shards=none/*.gz"]) == 2
    assert capfd.readouterr().err.lstrip().startswith("--from-hf-shards='none/*.gz': no")
