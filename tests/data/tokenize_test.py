import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lm_mia.data import tokenize
from lm_mia.data.documents import Document
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer

TEXTS = [f"{'short ' * (i % 5)}text of number {i}, naïve and all" for i in range(40)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(train_tokenizer(TEXTS, 38))
    return tmp_path / "tokenizer.model"


def write(path: Path, rules: tokenize.SampleRules, texts: list[str] = TEXTS) -> pa.Table:
    """Writes a part with the texts at positions 7, 10, 13, ..."""
    positions = np.arange(len(texts)) * 3 + 7
    documents = [(text, f"record {i}", "file") for i, text in enumerate(texts)]
    reports: list[int] = []
    tokenize.write_part(tokenize.Part(path, positions, documents, rules), reports.append)
    assert reports[-1:] == [len(texts)][: len(reports)]
    assert {p.name for p in path.parent.iterdir()} == {"tokenizer.model", path.name}
    assert tokenize.is_complete(path)
    return tokenize.read_part(path, ["position", "tokens", *MEASURES])


MEASURES = ("name", "source", "text_sha256", "chars", "unk", "zlib_bytes", "document_tokens")


@pytest.mark.parametrize("batch", [512, 7])
def test_rows_describe_the_documents(model: Path, monkeypatch: pytest.MonkeyPatch, batch: int):
    monkeypatch.setattr(tokenize, "_BATCH", batch)
    texts = [*TEXTS, "漢字 unknown", "漢" * 30]
    rows = write(model.with_name("part"), tokenize.SampleRules(model, 20), texts).to_pylist()
    spm = load_tokenizer(model)
    assert len(rows) == len(texts)
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        tokens = [2, *spm.encode(text), 1][:20]
        sample = spm.decode(tokens)
        raw = sample.encode()
        assert row == {
            "position": (7 + 3 * i) * tokenize.MAX_PIECES,
            "tokens": tokens,
            "name": f"record {i}",
            "source": "file",
            "text_sha256": hashlib.sha256(raw).hexdigest(),
            "chars": len(sample),
            "unk": tokens.count(3),
            "zlib_bytes": len(zlib.compress(raw, 6)),
            "document_tokens": len(spm.encode(text)),
        }
    assert rows[-2]["unk"] > 0
    assert max(len(row["tokens"]) for row in rows) == 20


def test_short_documents_are_only_counted(model: Path):
    rules = tokenize.SampleRules(model, 20, min_chars=40)
    rows = write(model.with_name("part"), rules).to_pylist()
    assert [row["position"] // tokenize.MAX_PIECES for row in rows] == [
        7 + 3 * i for i in range(len(TEXTS))
    ]
    long = [i for i, text in enumerate(TEXTS) if len(text) >= 40]
    assert 0 < len(long) < 40
    assert [i for i, row in enumerate(rows) if row["tokens"]] == long
    assert [i for i, row in enumerate(rows) if row["chars"] is not None] == long
    no_tokens = write(model.with_name("part"), tokenize.SampleRules(model, 20, min_chars=400))
    assert not any(no_tokens["tokens"].to_pylist())


def prefixes(model: Path, tokens: int, length: int, texts: list[str]) -> list[bytes | None]:
    write(
        model.with_name("part"),
        tokenize.SampleRules(model, length, distinct_prefix_tokens=tokens),
        texts,
    )
    return tokenize.read_part(model.with_name("part"), ["prefix_digest"])[
        "prefix_digest"
    ].to_pylist()


def test_sequence_digests_are_of_all_tokens(model: Path):
    spm = load_tokenizer(model)
    texts = ["text of number one", "text  of number one", "text of number one and all", "text"]
    for length in (len(spm.encode(texts[0])) + 1, 64):
        rules = tokenize.SampleRules(model, length, distinct_prefix_tokens=2)
        write(model.with_name("part"), rules, texts)
        table = tokenize.read_part(model.with_name("part"), ["sequence_digest"])
        one, same, longer, other = table["sequence_digest"].to_pylist()
        assert one == same != other
        # Texts that are equal up to the cut have equal digests.
        assert (one == longer) == (length < 64)


def test_prefix_digests_are_of_the_first_tokens_after_bos(model: Path):
    spm = load_tokenizer(model)
    one, other, longer = "text of number one", "text of number two", "text of number one and all"
    same = next(
        k
        for k, pair in enumerate(zip(spm.encode(one), spm.encode(other), strict=False))
        if len(set(pair)) > 1
    )
    texts = [one, other, longer]
    assert len(set(prefixes(model, same, 64, texts))) == 1
    assert len(set(prefixes(model, same + 1, 64, texts))) == 2
    length = len(spm.encode(one))
    assert len(set(prefixes(model, length, 64, [one, longer]))) == 1
    assert len(set(prefixes(model, length + 1, 64, [one, longer]))) == 2  # includes <eos>
    assert len(set(prefixes(model, 64, 64, [one, one, longer]))) == 2  # all tokens of shorter texts
    assert len(set(prefixes(model, 64, length + 1, [one, longer]))) == 1  # both texts are cut
    expected = np.array(spm.encode(one)[:2], np.uint32).tobytes()
    assert prefixes(model, 2, 64, [one]) == [hashlib.blake2b(expected, digest_size=16).digest()]
    assert prefixes(model, 0, 64, [one]) == [None]


def test_large_vocabularies_have_wider_tokens():
    assert tokenize.part_schema(2**16).field("tokens").type == pa.list_(pa.uint16())
    assert tokenize.part_schema(2**16 + 1).field("tokens").type == pa.list_(pa.uint32())


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "zeros"])
def test_incomplete_parts_are_detected(model: Path, damage: str):
    path = model.with_name("part")
    write(path, tokenize.SampleRules(model, 20))
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "cut": raw[: len(raw) // 2], "zeros": bytes(len(raw))}[damage]
        )
    assert not tokenize.is_complete(path)


def test_a_part_that_cannot_be_read_is_not_called_incomplete(tmp_path: Path):
    (tmp_path / "part").symlink_to("part")  # the system fails to open it, also for root
    with pytest.raises(OSError, match="symbolic links"):
        tokenize.is_complete(tmp_path / "part")


def test_a_part_that_fails_leaves_no_file(model: Path):
    class Failing(list[Document]):
        def __iter__(self):
            yield TEXTS[0], "0", ""
            raise OSError("gone")

    part = tokenize.Part(
        model.with_name("part"), np.arange(2), Failing(), tokenize.SampleRules(model, 20)
    )
    with pytest.raises(OSError, match="gone"):
        tokenize.write_part(part, lambda done: None)
    assert os.listdir(model.parent) == ["tokenizer.model"]
