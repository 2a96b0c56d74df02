"""The audit of a user's own texts: sizes that follow from the texts, and the figures of StrongMIA on them."""

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lm_mia.config import Config, load, measurable_attack, number
from lm_mia.config.recipe import recipe_requests
from lm_mia.config.validate import problems
from lm_mia.data import texts as text_reader
from lm_mia.data.build import build_population
from lm_mia.data.corpus import read
from lm_mia.data.tokenizer import train_on_corpus
from lm_mia.errors import UserError

WORDS = ["".join(letters) for letters in itertools.product("bdfgkl", "aeiou", "mnprst")]


def write_texts(folder: Path, count: int, words: int) -> Path:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        text = " ".join(random.Random(i).choices(WORDS, k=words))
        (folder / f"{i}.txt").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def recipes_of(config_arg: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(config_arg)}


def train_vocabulary(c: Config) -> None:
    """Raises UserError if the texts do not support the vocabulary of a config."""
    settings = c.tokenizer.vocab_size, number(c.tokenizer.documents), c.population.seed, 0
    train_on_corpus(read(c.corpus), *settings, lambda *_: None)


def test_sizes_follow_from_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_texts(tmp_path / "texts", 300, 40)
    (folder / "empty.txt").write_text("")
    (folder / "copy.txt").write_text((folder / "7.txt").read_text())
    (folder / "latin.txt").write_bytes(b"caf\xe9 " * 50)
    c = load.load_config(f"own:{folder}")
    assert problems(c) == []
    assert (c.population.samples, c.corpus.split_documents, c.extract.samples) == (300, False, 0)
    assert c.attack.fprs[0] == 0.01
    assert measurable_attack(c).focus == 0.1  # 150 non-members
    assert not c.compare_with_papers
    train_vocabulary(c)
    assert capsys.readouterr().err.splitlines() == [
        "own: 300 documents (left out: 1 not UTF-8, 1 shorter than 20 characters, 1 exact duplicates) in "
        f"{folder}",
        "own: 300 samples, a vocabulary of 150 pieces, and false positive rates of 0.01 and more; no extraction, since "
        "0 documents have 384 characters (about 64 tokens) or more, and 100 are needed",
    ]


def test_the_chosen_number_of_samples_is_available(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Although some texts have no tokens, and others the tokens of an earlier text."""
    folder = write_texts(tmp_path / "texts", 154, 200)
    beginning = " ".join((folder / "0.txt").read_text().split()[:64])
    rest = [" ".join(random.Random(seed).choices(WORDS, k=200)) for seed in (1001, 1002)]
    for name, text in (
        ("nul", "\0" * 400),
        ("zero-width", "\u200b" * 400),
        ("control", "\1\2\3" * 200),
        ("marker", "\u2581" * 300),
        # Characters that are too rare for the vocabulary, so that the only token of each text is <unk>.
        ("emoji", "\U0001f600\U0001f468" * 10),
        ("accents", "e\u0301" * 20),
        ("zero-width-beginning", f"\u200b{beginning} {rest[0]}"),
        (
            "marker-in-beginning",
            beginning.replace(" ", " \u2581 ") + f" {rest[1]}",
        ),
    ):
        (folder / f"{name}.txt").write_text(text)
    c = load.load_config(f"own:{folder}")
    assert "158 documents (left out: 4 " in capsys.readouterr().err
    assert c.population.samples == 150
    sizes = dataclasses.replace(c.population, samples=156)
    with pytest.raises(UserError, match=r"\b155 documents"):
        build_population(c.corpus, c.tokenizer, sizes, tmp_path / "population")
    sizes = dataclasses.replace(c.population, samples=154)
    assert len(build_population(c.corpus, c.tokenizer, sizes, tmp_path / "population")) == 154


def test_invisible_characters_do_not_count_as_pieces(tmp_path: Path):
    folder = write_texts(tmp_path / "texts", 5, 4000)
    draw = random.Random(0)
    for path in sorted(folder.iterdir()):
        path.write_text(path.read_text() + "".join(draw.choices("\u200b\1\2 ", k=384_000)) + "a")
    assert load.load_config(f"own:{folder}").population.samples == 210


def test_the_format_follows_from_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = [path.read_text() for path in write_texts(tmp_path / "texts", 120, 80).iterdir()]
    (tmp_path / "texts" / "notes.md").write_text("not read")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["body", *texts]))
    assert load.load_config(f"own:{path},column=body").corpus.source == "csv"
    assert "not read" not in capsys.readouterr().err
    assert load.load_config(f"own:{tmp_path}/texts").population.samples == 120
    assert "not read: 1 .md " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"own_test\.py\b.*\.txt, "):
        load.load_config(f"own:{__file__}")
    with pytest.raises(UserError, match=r"corpus.path='.*nowhere.csv': "):
        load.load_config(f"own:{tmp_path}/nowhere.csv")


def test_a_few_new_texts_do_not_change_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_texts(tmp_path / "texts", 304, 80)
    before = load.load_config(f"own:{folder}")
    write_texts(folder, 309, 80)
    monkeypatch.chdir(tmp_path)
    assert load.load_config("own:texts") == before


def test_few_long_documents_are_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    c = load.load_config(f"own:{write_texts(tmp_path / 'texts', 5, 4000)}")
    assert problems(c) == []
    assert (c.corpus.split_documents, c.population.samples) == (True, 200)
    assert c.extract.samples == 100
    assert "200 pieces" in capsys.readouterr().err


def test_too_few_texts_are_refused(tmp_path: Path):
    folder = write_texts(tmp_path / "texts", 20, 60)
    with pytest.raises(UserError, match=r"\b20 distinct\b.* \d+ pieces\b.* 384 .*add texts"):
        load.load_config(f"own:{folder}")
    with pytest.raises(UserError, match=r"--config=own: .*missing; .*own:texts"):
        load.load_config("own")


def test_a_comma_in_the_path_is_named_as_the_cause(tmp_path: Path):
    folder = write_texts(tmp_path / "a, b", 1, 1)
    with pytest.raises(UserError, match=r": .*first comma.*/a "):
        load.load_config(f"own:{folder},cpu")


def test_many_characters_fit_into_the_vocabulary(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    draw = random.Random(0)
    texts = ["".join(chr(draw.randrange(0x4E00, 0x5400)) for _ in range(100)) for _ in range(200)]
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    c = load.load_config(f"own:{path},column=body")
    assert (c.corpus.source, c.corpus.column, c.population.samples) == ("jsonl", "body", 200)
    train_vocabulary(c)
    with pytest.raises(UserError, match=r"corpus.column='text': .*\bbody"):
        load.load_config(f"own:{path}")


def test_figures_of_strongmia_use_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    own = recipes_of("own:texts,cpu")
    assert {*recipes_of("strongmia:cpu")} < {*own}
    own = recipes_of("own:texts,fig01,fig05,gpu")
    assert list(own) == ["main", "flip-6x384", "flip-302M"]
    assert own["main"].figures == ("strongmia_fig01_references", "strongmia_fig05_instability")
    assert {(c.corpus.source, c.corpus.path) for c in own.values()} == {
        ("text", f"{tmp_path}/texts")
    }
    # Own texts may be fewer than the million on which the tokenizer of C4 is trained, and may have duplicates.
    assert {(c.tokenizer.documents, c.corpus.deduplicate) for c in own.values()} == {
        ("all", "exact")
    }
    assert not any(c.compare_with_papers for c in own.values())


def test_recipes_are_named_by_their_own_sizes(tmp_path: Path):
    """Figures find them by the names of the paper, which are those of models of other sizes."""
    for arg, names in (
        ("fig05,tab01,cpu", [("flip-2x96", "flip-302M"), ("flip-2x64", "flip-140M")]),
        (
            "fig17,gpu",
            [("epochs-6x256", "epochs-140M"), ("epochs-6x256-small", "epochs-140M-small")],
        ),
        ("tab01,paper", [("flip-140M",)]),
    ):
        requests = recipe_requests(load.load_sweep(f"own:{tmp_path},{arg}"), "own")
        assert [request.names for request in requests] == names


def test_texts_are_read_once_until_they_change(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    read_files, num_reads = text_reader.read, 0

    def counting(*args: Any) -> text_reader.Texts:
        nonlocal num_reads
        num_reads += 1
        return read_files(*args)

    monkeypatch.setattr(text_reader, "read", counting)
    folder = write_texts(tmp_path / "texts", 200, 80)
    first = load.load_config(f"own:{folder}")
    printed = capsys.readouterr().err
    assert len(read(first.corpus)) == 200  # in the corpus stage of the same command
    assert num_reads == 1
    assert load.load_config(f"own:{folder}") == first  # by a later command, or a job
    assert capsys.readouterr().err == printed
    assert num_reads == 1
    (folder / "7.txt").write_text("Another text of another length.")
    load.load_config(f"own:{folder}")
    assert num_reads == 2
    change = "A change after the sizes were chosen."
    (folder / "8.txt").write_text(change)
    assert change in read(first.corpus).texts
    assert num_reads == 3
    [damaged, *_] = (cache / "lm_mia" / "files").iterdir()
    for path in (cache / "lm_mia" / "files").iterdir():
        path.write_text(damaged.read_text()[:10])
    load.load_config(f"own:{folder}")
    assert num_reads == 4
