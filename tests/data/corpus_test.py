import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from docstring_corpus import PIECES, SIZES, content, source, stop, texts

from lm_mia import config
from lm_mia.data import build, corpus, docstrings
from lm_mia.data.population import describe_text_use, open_population
from lm_mia.errors import UserError

__all__ = ["source"]  # a fixture


@pytest.mark.slow
def test_default_corpus(monkeypatch: pytest.MonkeyPatch):
    """On a fifth of the docstrings, since comparing all of them takes long."""
    texts, names = docstrings.read()
    raw = texts[: len(texts) // 5], names[: len(texts) // 5]
    monkeypatch.setattr(docstrings, "read", lambda progress: raw)
    labels: list[str] = []
    read = corpus.read(config.Corpus(), lambda label, done, total: labels.append(label))
    assert len(read) >= 1_000
    assert min(map(len, read.texts)) >= 200
    locations = [(name, int(line)) for name, _, line in (r.partition(":") for r in read.names)]
    assert locations == sorted(locations)
    assert [*read.sources] == [name.partition("/")[0] for name, _ in locations]
    assert read.sha256 == corpus.hash_texts(read.texts)
    counts = read.provenance
    assert counts["packages"] == docstrings.versions()
    assert counts["documents"] == len(read) == len(set(read.texts))
    left_out = counts["too_short"] + counts["exact_duplicates"] + counts["near_duplicates"]
    assert counts["documents_read"] == len(read) + left_out == len(raw[0])
    assert 0.1 < counts["near_duplicates"] / (len(read) + counts["near_duplicates"]) < 0.3
    assert "find near duplicates" in labels


def test_counts_and_order_of_a_small_corpus(tmp_path: Path):
    long = " ".join(f"w{i}" for i in range(60))
    near = long.replace("w0 ", "v0 ")
    other = " ".join(f"v{i}" for i in range(60))
    for name, text in zip("abcdef", (near, "short", f" {long}\n", long, other, ""), strict=True):
        (tmp_path / f"{name}.txt").write_text(text)
    read = corpus.read(config.Corpus("text", str(tmp_path)))
    assert [read[i] for i in range(len(read))] == [(near, "a.txt", ""), (other, "e.txt", "")]
    assert read.provenance == {
        "source": "text",
        "files": [f"{c}.txt" for c in "abcdef"],
        "corpus_sha256": read.sha256,
        "documents_read": 6,
        "too_short": 2,
        "exact_duplicates": 1,
        "near_duplicates": 1,
        "documents": 2,
    }
    exact = corpus.read(config.Corpus("text", str(tmp_path), deduplicate="exact"))
    assert exact.provenance["near_duplicates"] == 0
    assert exact.texts == [near, long, other]
    assert len(corpus.read(config.Corpus("text", str(tmp_path), min_chars=5))) == 3
    every = corpus.read(config.Corpus("text", str(tmp_path), deduplicate="none"))
    assert every.texts == [near, long, long, other]
    assert every.provenance["exact_duplicates"] == every.provenance["near_duplicates"] == 0
    with pytest.raises(UserError, match=r"corpus.min_chars=999: .*\b6 .* longest has \d+"):
        corpus.read(config.Corpus("text", str(tmp_path), min_chars=999))


def test_documents_without_visible_characters_are_left_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("A text of some length.")
    settings = config.Corpus("text", str(tmp_path), min_chars=5)
    before = corpus.read(settings)
    for name, characters in enumerate(("\0", "\u200b", "\1", "\u2581 ", "\ufffd", "\u200d\xad")):
        (tmp_path / f"{name}.txt").write_text(characters * 9 + characters[0])
    read = corpus.read(settings)
    assert read.sha256 == before.sha256
    counts = read.provenance["documents_read"], read.provenance["without_visible_characters"]
    assert counts == (7, 6)
    assert "without_visible_characters" not in before.provenance
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UserError, match=r"corpus.path=.*: .*\b6 documents .* visible"):
        corpus.read(settings)


def test_sources_give_the_same_documents(tmp_path: Path, source: config.Corpus):
    pq.write_table(pa.table({"body": texts()}), tmp_path / "t.parquet")
    parquet = config.Corpus("parquet", str(tmp_path / "t.parquet"), column="body")
    assert corpus.read(parquet).sha256 == corpus.read(source).sha256


def test_hash_depends_on_order_and_boundaries():
    hashes = {corpus.hash_texts(t) for t in (["ab", "c"], ["c", "ab"], ["a", "bc"], ["abc"], [])}
    assert len(hashes) == 5


def test_too_few_documents_are_reported_with_reasons(tmp_path: Path):
    words = " ".join(f"w{i}" for i in range(60))
    texts = [words, words, words.replace("w0 ", "v0 "), "short", " ".join(words.split()[::-1])]
    (tmp_path / "source").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / f"source/{i}.txt").write_text(text)
    source, sizes = config.Corpus("text", str(tmp_path / "source")), config.Population(samples=4)
    with pytest.raises(UserError) as caught:
        build.build_population(source, PIECES, sizes, tmp_path / "population")
    assert re.fullmatch(
        r"population\.samples=4: .*\b2 documents\b.*\(5 read; too short: 1, exact duplicates: 1, near duplicates: 1\); "
        r".*\b2",
        str(caught.value),
    )


def test_finished_population_is_reused(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "work" / "population"
    labels: list[str] = []
    built = build.build_population(
        source, PIECES, SIZES, folder, lambda label, d, t: labels.append(label)
    )
    assert list(dict.fromkeys(labels)) == [
        "read files",
        "find near duplicates",
        "train tokenizer",
        "tokenize samples",
        "assemble population",
        "count document frequencies",
        "compute TF-IDF",
        "group samples by prefix",
    ]
    assert (len(built), built.vocab_size, built.length_tokens) == (60, 300, 32)
    assert built.manifest["provenance"]["documents"] >= 60
    other = build.build_population(source, PIECES, SIZES, tmp_path / "again" / "population")
    before = content(folder)
    assert content(other.folder) == before

    for path in Path(source.path).iterdir():
        path.unlink()
    assert build.build_population(source, PIECES, SIZES, folder).sha256 == built.sha256
    assert content(folder) == before


def test_other_settings_are_refused(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "population"
    build.build_population(source, PIECES, SIZES, folder)
    before = content(folder)
    other_processes = dataclasses.replace(source, processes=7)
    assert build.build_population(other_processes, PIECES, SIZES, folder).sha256
    for changed, message in (
        (
            (dataclasses.replace(source, min_chars=100), PIECES, SIZES),
            "corpus.min_chars=100: .* 200",
        ),
        ((source, config.Tokenizer(vocab_size=310), SIZES), "tokenizer.vocab_size=310: .* 300"),
        (
            (source, PIECES, dataclasses.replace(SIZES, seed=2)),
            "population.seed=2: .* with 1; restore",
        ),
    ):
        with pytest.raises(UserError, match=message):
            build.build_population(*changed, folder)
    both = dataclasses.replace(SIZES, seed=2, samples=50)
    with pytest.raises(UserError) as caught:
        build.build_population(source, PIECES, both, folder)
    assert len(str(caught.value).splitlines()) == 2
    assert content(folder) == before


def test_corrupt_population_is_refused(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "population"
    build.build_population(source, PIECES, SIZES, folder)
    raw = bytearray((folder / "tokens.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "tokens.npy").write_bytes(raw)
    with pytest.raises(UserError, match=r"tokens.npy: .*; delete "):
        build.build_population(source, PIECES, SIZES, folder)


def test_other_package_versions_do_not_change_a_population(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = docstrings.read
    monkeypatch.setattr(docstrings, "read", lambda progress: read(["rich"], progress))
    lines: list[str] = []

    def build_again() -> str:
        folder = tmp_path / "population"
        lines.clear()
        return build.build_population(
            config.Corpus(), PIECES, SIZES, folder, log=lines.append
        ).sha256

    first = build_again()
    assert (build_again(), lines) == (first, [])
    installed = docstrings.versions()
    distribution = docstrings._distribution
    monkeypatch.setattr(
        docstrings,
        "_distribution",
        lambda package: distribution("pytest" if package == "scipy" else package),
    )
    assert build_again() == first
    [line] = lines
    assert f"scipy {installed['scipy']}; " in line


def test_given_tokenizer_is_used(tmp_path: Path, source: config.Corpus):
    trained = build.build_population(source, PIECES, SIZES, tmp_path / "population")
    model = trained.folder / "tokenizer.model"
    given = config.Tokenizer(str(model), 300)
    labels: list[str] = []
    again = build.build_population(
        source, given, SIZES, tmp_path / "q", lambda label, d, t: labels.append(label)
    )
    assert again.sha256 == trained.sha256
    assert "train tokenizer" not in labels


def test_invalid_input_writes_nothing(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "work" / "population"
    missing = dataclasses.replace(source, path=str(tmp_path / "nowhere"))
    num_available = len(corpus.read(source))
    for arguments, message in (
        ((missing, PIECES, SIZES), "corpus.path=.*no such file or folder"),
        (
            (source, PIECES, config.Population(samples=9_998)),
            f"samples=9998: .* has only {num_available} documents",
        ),
        ((source, config.Tokenizer(vocab_size=99_999), SIZES), r"vocab_size=99999: .* at most \d+"),
        ((source, config.Tokenizer(path=source.path), SIZES), "tokenizer.path=.*cannot be read"),
        ((dataclasses.replace(source, min_chars=10**6), PIECES, SIZES), "corpus.min_chars=1000000"),
    ):
        with pytest.raises(UserError, match=message):
            build.build_population(*arguments, folder)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


BUILD = """
import sys, pathlib
from lm_mia import config
from lm_mia.data import build
print("up", flush=True)
build.build_population(
    config.Corpus("text", sys.argv[1]), config.Tokenizer(vocab_size=300),
    config.Population(samples=60, seed=1, length_tokens=32), pathlib.Path(sys.argv[2]),
)
"""


@pytest.mark.process
def test_two_processes_build_one_population(tmp_path: Path, source: config.Corpus):
    """The other process asks for the population while this one is building it."""
    folder = tmp_path / "w" / "population"
    argv = [sys.executable, "-W", "error", "-c", BUILD, source.path, str(folder)]
    out = subprocess.PIPE
    other = subprocess.Popen(argv, stdout=out, stderr=out, text=True)
    messages: list[str] = []

    def wait(label: str, done: int, total: int) -> None:
        if not messages:
            assert other.stdout is not None
            messages.append(other.stdout.readline())

    build.build_population(source, PIECES, SIZES, folder, wait)
    assert (messages, other.communicate(), other.returncode) == (["up\n"], ("", ""), 0)
    alone = build.build_population(source, PIECES, SIZES, tmp_path / "alone")
    assert content(folder) == content(alone.folder)
    assert {p.name for p in folder.parent.iterdir()} <= {"population", ".population.lock"}


def test_leftovers_of_killed_builds_are_removed(tmp_path: Path, source: config.Corpus):
    leftover = tmp_path / ".population.unfinished"
    # The first leftover is of a build that was killed early, the second of one killed when the population was finished.
    for _ in range(2):
        leftover.mkdir()
        (leftover / "tokens.npy").write_bytes(b"half")
        build.build_population(source, PIECES, SIZES, tmp_path / "population")
        assert not leftover.exists()
    open_population(tmp_path / "population")


def test_stopped_build_resumes(tmp_path: Path, source: config.Corpus):
    folder = tmp_path / "population"
    with pytest.raises(KeyboardInterrupt):
        build.build_population(source, PIECES, SIZES, folder, stop)
    messages: list[str] = []
    labels: list[str] = []
    built = build.build_population(
        source, PIECES, SIZES, folder, lambda *n: labels.append(n[0]), messages.append
    )
    assert messages[0].startswith("vocabulary: reusing ")
    assert [line[:36] for line in messages[1:]] == ["population: reusing 1 of 1 parts, to"] * 2
    assert "train tokenizer" not in labels
    assert content(folder) == content(
        build.build_population(source, PIECES, SIZES, tmp_path / "q").folder
    )
    assert not (tmp_path / ".population.unfinished").exists()
    assert build.describe(built) == [
        f"corpus: {built.manifest['provenance']['documents']} documents, sha256 "
        f"{built.manifest['provenance']['corpus_sha256']}",
        f"vocabulary: 300 pieces, sha256 {built.manifest['files']['tokenizer.model']['sha256']}",
        f"population: 60 samples, sha256 {built.sha256}",
        f"text: {describe_text_use(built.manifest)}",
        "draw: 61 documents, 1 left out: 1 with the same tokens as an earlier document, after truncation to 32 tokens",
    ]
