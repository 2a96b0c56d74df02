import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from docstring_corpus import SIZES, source
from docstring_population import content, documents, model
from json_tokenizers import EOT, byte_level, unigram
from sample_table import table_of
from tokenizers import decoders, models, pre_tokenizers, processors

from lm_mia import config
from lm_mia.config import recipe
from lm_mia.data import build, population
from lm_mia.data.population import Population, lowercase, open_population
from lm_mia.data.tokenizer import SPECIAL_PAIRS, load_tokenizer
from lm_mia.errors import UserError

__all__ = ["source"]  # a fixture

KINDS = {"bytes": byte_level, "unigram": unigram}
UNUSUAL = ["Ünusual 漢字 ☃☃ text", "", " \n", EOT, "a <s> b"]
TEXTS = [text for text, *_ in [*documents()[:50], *((text, "", "") for text in UNUSUAL)]]


@pytest.fixture(params=KINDS)
def raw(request: pytest.FixtureRequest) -> bytes:
    return KINDS[request.param]()


def test_tokens_are_those_of_the_package(raw: bytes):
    ours, theirs = load_tokenizer(raw), tokenizers.Tokenizer.from_buffer(raw)
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert ours.encode_batch(TEXTS) == expected == [ours.encode(text) for text in TEXTS]
    assert ours.decode_batch(expected) == [theirs.decode(ids) for ids in expected]
    assert ours.vocab_size == theirs.get_vocab_size()


def test_byte_level_tokens_round_trip():
    tokenizer = load_tokenizer(byte_level())
    for text in TEXTS:
        if EOT not in text:
            ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
            assert tokenizer.decode(ids) == text
    ids = tokenizer.encode("a 漢")
    assert tokenizer.decode(ids[:-1]).rstrip("\ufffd") == "a "


def test_a_unigram_vocabulary_has_unknown_characters():
    tokenizer = load_tokenizer(unigram())
    ids = tokenizer.encode("the ☃☃ file ☃")
    assert ids.count(tokenizer.unk_id or 0) == 2
    (text,) = tokenizer.decode_with_unknown([[*tokenizer.before, *ids, *tokenizer.after]])
    assert tokenizer.encode(text.lower()) == ids
    assert load_tokenizer(byte_level()).unk_id is None


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json", "vocabulary"])
def test_kinds_are_told_apart_by_their_content(tmp_path: Path, name: str):
    path = tmp_path / name
    for raw, file_name in (
        (byte_level(), "tokenizer.json"),
        (json.dumps(json.loads(unigram()), indent=2).encode(), "tokenizer.json"),
        (model(), "tokenizer.model"),
    ):
        path.write_bytes(raw)
        assert load_tokenizer(path).file_name == file_name


def trained(
    added: list[str], template: str = "", edit: Callable[[dict[str, Any]], None] | None = None
) -> bytes:
    """Returns a file with these added tokens, in this order from id 256 on."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(added)
    if template:
        special = [(name, 256 + i) for i, name in enumerate(added)]
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(),
                processors.TemplateProcessing(single=template, special_tokens=special),
            ]
        )
    fields = json.loads(tokenizer.to_str())
    if edit:
        edit(fields)
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("added", "template", "pair"),
    [
        *(([b, a] if a != b else [a], "", (a, b)) for a, b in SPECIAL_PAIRS),
        (["<x>", "<y>", "<s>", "</s>"], "<x> $A <y>", ("<x>", "<y>")),
        (["<unk>", "<s>", "</s>", EOT], "<s> $A", ("<s>", "</s>")),
        (["<unk>", "<s>", "</s>", EOT], "", ("<s>", "</s>")),
        (["<s>", "</s>", EOT], f"$A {EOT}", (EOT, EOT)),
        (["<pad>", "</s>"], "</s> $A", ("</s>", "</s>")),
        ([EOT, "<|im_start|>", "<|im_end|>"], "", (EOT, EOT)),
    ],
)
def test_special_tokens_are_those_of_the_file(added: list[str], template: str, pair: Any):
    tokenizer = load_tokenizer(trained(added, template))
    assert (*map(tokenizer.piece, [*tokenizer.before, *tokenizer.after]),) == pair
    assert tokenizer.vocab_size == 256 + len(added)
    assert (
        tokenizer.decode([*tokenizer.before, *tokenizer.encode("ab c"), *tokenizer.after]) == "ab c"
    )


def test_bert_has_its_own_post_processor():
    def edit(fields: dict[str, Any]) -> None:
        fields["post_processor"] = {
            "type": "BertProcessing",
            "sep": ["<b>", 257],
            "cls": ["<a>", 256],
        }

    tokenizer = load_tokenizer(trained(["<a>", "<b>"], edit=edit))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 257)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (trained([]), "no tokens .*<s> and </s>, .*; add"),
        (trained(["<s>"], "<s> $A"), r"post_processor .*only <s>\)"),
        (trained(["<pad>", "</s>"], "$A </s>"), "no tokens .*beginning"),
        (
            trained(["<a>", "<b>"], "<a> <b> $A"),
            r"\b2 tokens before\b.*\b0 after\b.*; give",
        ),
        (
            trained([EOT], edit=lambda fields: fields["model"].update(dropout=0.1)),
            r"model\.dropout=0\.1 .*\bnull",
        ),
        (b'{"model_max_length": 1024}', r"tokenizers cannot .*; give .*tokenizer\.json"),
        (b"{", "tokenizers cannot .*EOF.*; give"),
        (byte_level()[:3000], "tokenizers cannot .*; give"),
        (b"\xef\xbb\xbf" + byte_level(), "tokenizers cannot .*; give"),
        (b"[]", r"sentencepiece cannot .*\.model .*tokenizer\.json"),
    ],
)
def test_files_that_cannot_be_used_are_explained_in_a_line(
    tmp_path: Path, raw: bytes, message: str
):
    path = tmp_path / "t.json"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=f"tokenizer.path='.*t.json': .*{message}") as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


def test_texts_without_tokens_are_explained():
    def edit(fields: dict[str, Any]) -> None:
        fields["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<none>"}

    tokenizer = load_tokenizer(trained([EOT], edit=edit))
    with pytest.raises(UserError, match=r"cannot tokenize .*; give .*tokenizer\.json"):
        tokenizer.encode("b")


def test_settings_of_a_training_run_are_ignored():
    tokenizer = tokenizers.Tokenizer.from_buffer(byte_level())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    ids = load_tokenizer(byte_level()).encode(TEXTS[0])
    assert load_tokenizer(tokenizer.to_str().encode()).encode(TEXTS[0]) == ids


def test_the_vocabulary_ends_at_the_largest_id():
    def edit(fields: dict[str, Any]) -> None:
        fields["added_tokens"][0]["id"] = fields["model"]["vocab"][EOT] = 300

    raw = trained([EOT], edit=edit)
    tokenizer = load_tokenizer(raw, 301)
    assert (tokenizer.bos_id, tokenizer.piece(299)) == (300, "")
    assert tokenizer.decode([299, *tokenizer.encode("a")]) == "a"
    with pytest.raises(UserError, match=r"vocab_size=257: .*\b301 pieces; .*vocab_size=301"):
        load_tokenizer(raw, 257)


def test_pieces_are_readable():
    tokenizer = load_tokenizer(byte_level())
    pieces = "".join(map(tokenizer.piece, tokenizer.encode("the naïve\nfile")))
    assert pieces.replace("\ufffd\ufffd", "ï") == "the▁naïve\nfile"
    tokenizer = load_tokenizer(unigram())
    assert "".join(map(tokenizer.piece, tokenizer.encode("the file"))) == "▁the▁file"


def test_text_tokens_are_neither_special_nor_parts_of_characters(raw: bytes):
    tokenizer = load_tokenizer(raw)
    tokens = tokenizer.text_tokens()
    assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id} & {*tokens}
    texts = [tokenizer.piece(i) for i in tokens]
    assert "the" in "".join(texts)
    assert not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("text", ["the naïve file 漢字 is\n read", "  two  spaces"])
def test_characters_from_a_token_on(raw: bytes, text: str):
    tokenizer = load_tokenizer(raw)
    offsets = tokenizers.Tokenizer.from_buffer(raw).encode(text, add_special_tokens=False).offsets
    counts = [tokenizer.chars_from(text, k) for k in range(len(offsets) + 1)]
    assert counts == [*(len(text) - begin for begin, _ in offsets), 0]


def write(
    folder: Path, raw: bytes, processes: int = 1, split: bool = False, **changes: Any
) -> Population:
    fields: dict[str, Any] = {"seed": 3, "samples": 100, "length_tokens": 32} | changes
    spec = build.PopulationSpec(config.Population(**fields), raw, 20, split_documents=split)
    return build.write_population(folder, documents(), spec, processes)


@functools.cache
def document_ids(raw: bytes) -> dict[str, list[int]]:
    theirs = tokenizers.Tokenizer.from_buffer(raw)
    return {name: theirs.encode(t, add_special_tokens=False).ids for t, name, _ in documents()}


def test_samples_of_a_population(raw: bytes, tmp_path: Path):
    p, tokenizer = write(tmp_path / "p", raw, random_samples=10), load_tokenizer(raw)
    for i, name in enumerate(p.column("name")[:90]):
        expected = [tokenizer.bos_id, *document_ids(raw)[name], tokenizer.eos_id][:32]
        assert p.sample(i).tolist() == expected
        assert p.text(i) == tokenizer.decode(expected) == p.tokenizer.decode(expected)
    unk = [np.count_nonzero(p.sample(i) == tokenizer.unk_id) for i in range(100)]
    assert table_of(p).unk.tolist() == unk
    assert set(np.concatenate([p.sample(i)[1:-1] for i in range(90, 100)])) <= {
        *tokenizer.text_tokens()
    }
    files = {"tokenizer.json", "document_frequency.npy", *population.SAMPLE_FILES}
    assert set(p.manifest["files"]) == files
    assert set(content(p.folder)) == files | {"manifest.json"}
    assert content(p.folder)["tokenizer.json"] == raw
    assert set(p.manifest["versions"]) == {"numpy", "pyarrow", "tokenizers"}
    assert np.isfinite(p.column("tfidf")).all()


def test_lowercase_texts(raw: bytes, tmp_path: Path):
    p = write(tmp_path / "p", raw)
    low, tokenizer, changed = lowercase(p), p.tokenizer, 0
    for i in range(len(p)):
        sample, text = p.sample(i).tolist(), p.text(i)
        if tokenizer.unk_id in sample or "\ufffd" in text:
            continue
        end = [tokenizer.eos_id] if sample[-1] == tokenizer.eos_id else []
        expected = [tokenizer.bos_id, *tokenizer.encode(text.lower()), *end][:32]
        assert low.sample(i).tolist() == expected
        changed += expected != sample
    assert changed > 50


def test_split_documents(raw: bytes, tmp_path: Path):
    p = write(tmp_path / "p", raw, split=True)
    bos, eos = p.tokenizer.bos_id, p.tokenizer.eos_id
    for i, (name, piece) in enumerate(zip(p.column("name"), p.column("piece"), strict=True)):
        body = [*document_ids(raw)[name], eos]
        assert p.sample(i).tolist() == [bos, *body[31 * piece : 31 * (piece + 1)]]


@pytest.mark.process
def test_processes_give_the_same_population(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(build.tokenize, "_PART", 15)
    one, two = (write(tmp_path / f"{n}", raw, n) for n in (1, 2))
    assert content(one.folder) == content(two.folder)


@pytest.mark.process
def test_no_threads_are_started(tmp_path: Path):
    """A process that has threads must not fork."""
    code = (
        "import pathlib, sys, threading, os\n"
        "from lm_mia.data.tokenizer import load_tokenizer\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = count()\n"
        "t = load_tokenizer(pathlib.Path(sys.argv[1]))\n"
        "t.decode_batch(t.encode_batch(['one text', 'another'] * 50))\n"
        "sys.exit(count() - before)"
    )
    (tmp_path / "t").write_bytes(byte_level())
    env = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t")], env=env)
    assert done.returncode == 0


def test_a_damaged_file_is_named(tmp_path: Path):
    p = write(tmp_path / "p", unigram())
    path = p.folder / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"Unigram", b"unigram"))
    with pytest.raises(UserError, match=r"p/tokenizer\.json: .*not match"):
        open_population(p.folder)
    path.unlink()
    with pytest.raises(UserError, match=r"p/tokenizer\.json: .*missing"):
        open_population(p.folder, verify=False)


def test_populations_have_the_content_and_recipes_the_path(tmp_path: Path, source: config.Corpus):
    """As with a SentencePiece model."""
    found, hashes = set[str](), set[str]()
    for raw, size in ((byte_level(), 500), (byte_level(400), 400), (model(), 400)):
        path = tmp_path / "vocabulary"
        path.write_bytes(raw)
        pieces = config.Tokenizer(path=str(path), vocab_size=size)
        folder = tmp_path / f"p{len(found)}"
        p = build.build_population(source, pieces, SIZES, folder)
        assert build.build_population(source, pieces, SIZES, folder).sha256 == p.sha256
        assert f"vocabulary: {size} pieces" in "\n".join(build.describe(p))
        found.add(p.sha256)
        same_size = config.Config(corpus=source, tokenizer=config.Tokenizer(str(path), 500))
        hashes.add(recipe.population_hash(same_size))
    assert (len(found), len(hashes)) == (3, 1)
