from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_mia.data import build, tokenize

ROWS = {
    position: {
        "position": position * tokenize.MAX_PIECES,
        "name": f"record {position}",
        "source": f"file {position % 2}",
        "text_sha256": f"{position:064x}",
        "chars": 10 * position,
        "unk": position % 3,
        "zlib_bytes": 7 * position,
        "document_tokens": 100 + position,
        "prefix": None,
        "tokens": [2, *range(10, 10 + position % 6), 1],
    }
    for position in range(40)
}


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Returns three parts whose positions interleave; one of them has no rows."""
    paths = []
    for name, positions in (("a", range(0, 40, 2)), ("b", []), ("c", range(1, 40, 2))):
        paths.append(tmp_path / name)
        rows = [ROWS[position] for position in positions]
        table = pa.Table.from_pylist(rows, schema=tokenize.part_schema(300))
        with pa.OSFile(str(paths[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    return paths


def write(
    folder: Path, parts: list[Path], positions: list[int], prefix: str = "", vocab_size: int = 300
) -> None:
    seen: list[tuple[str, int, int]] = []
    documents, document_tokens = build.write_sample_files(
        folder,
        prefix,
        parts,
        np.array(positions) * tokenize.MAX_PIECES,
        8,
        vocab_size,
        False,
        lambda *n: seen.append(n),
    )
    assert documents == len(positions)
    assert document_tokens == sum(100 + position for position in positions)
    assert seen[-1] == ("assemble population", len(positions), len(positions))


@pytest.mark.parametrize("segment", [1, 3, 2**18])
def test_samples_in_the_order_of_their_positions(
    tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch, segment: int
):
    monkeypatch.setattr(build, "_SEGMENT_SAMPLES", segment)
    positions = [0, 1, 2, 5, 6, 7, 20, 21, 22, 39]
    write(tmp_path, parts, positions, "some_")
    tokens, offsets = np.load(tmp_path / "some_tokens.npy"), np.load(tmp_path / "some_offsets.npy")
    assert (tokens.dtype, offsets.dtype, offsets[0]) == (np.uint16, np.int64, 0)
    rows = pq.read_table(tmp_path / "some_samples.parquet")
    assert rows.schema == build.SCHEMA
    assert rows.num_rows == len(positions)
    for i, (row, position) in enumerate(zip(rows.to_pylist(), positions, strict=True)):
        expected = ROWS[position]
        assert tokens[offsets[i] : offsets[i + 1]].tolist() == expected["tokens"]
        names = ("name", "source", "text_sha256", "chars", "unk", "zlib_bytes")
        assert row == {name: expected[name] for name in names} | {
            "id": i,
            "user": "",
            "tokens": len(expected["tokens"]),
        }


@pytest.mark.parametrize("segment", [1, 2, 2**18])
def test_pieces_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: int):
    """Documents 3, 4 and 9 of the draw, with 2, 1 and 3 samples."""
    monkeypatch.setattr(build, "_SEGMENT_SAMPLES", segment)
    pieces = [(3, 0), (3, 5), (4, 2), (9, 0), (9, 1), (9, 2)]
    rows = [
        ROWS[d] | {"position": d * tokenize.MAX_PIECES + piece, "tokens": [2, 10 * d + piece]}
        for d, piece in pieces
    ]
    table = pa.Table.from_pylist(rows, tokenize.part_schema(300))
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    position_N = np.array([d * tokenize.MAX_PIECES + piece for d, piece in pieces])
    counts = build.write_sample_files(
        tmp_path, "", [tmp_path / "a"], position_N, 8, 300, True, lambda *n: None
    )
    # A document counts once, however many of its pieces are samples.
    assert counts == (3, 103 + 104 + 109)
    written = pq.read_table(tmp_path / "samples.parquet")
    assert written["document"].to_pylist() == [0, 0, 1, 2, 2, 2]
    assert written["piece"].to_pylist() == [0, 5, 2, 0, 1, 2]
    assert written["id"].to_pylist() == list(range(6))
    tokens = np.load(tmp_path / "tokens.npy")
    assert tokens.tolist() == [2, 30, 2, 35, 2, 42, 2, 90, 2, 91, 2, 92]


def test_segments_do_not_affect_the_tokens(
    tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, parts, list(range(40)))
    monkeypatch.setattr(build, "_SEGMENT_TOKENS", 24)
    write(tmp_path, parts[::-1], list(range(40)), "again_")
    for name in ("tokens.npy", "offsets.npy"):
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again_{name}").read_bytes()
    assert pq.ParquetFile(tmp_path / "again_samples.parquet").num_row_groups == 14


def test_large_vocabularies_have_32_bit_tokens(tmp_path: Path):
    table = pa.Table.from_pylist(
        [ROWS[5] | {"tokens": [2, 70_000, 1]}], tokenize.part_schema(70_001)
    )
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    write(tmp_path, [tmp_path / "a"], [5], vocab_size=70_001)
    assert np.load(tmp_path / "tokens.npy").dtype == np.uint32
    assert np.load(tmp_path / "tokens.npy").tolist() == [2, 70_000, 1]
