"""Random samples: sequences of pieces that are drawn uniformly from the vocabulary, at the end of a population.

No corpus contains them, and they have nothing in common with each other. A model can thus predict one of them better
than another only because it was trained on it, which makes them good canaries for audits.

N: samples of text, B: samples of a block, L: positions, K: pieces of a sample without <bos> and <eos>.
"""

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import seeds
from lm_mia.data import features
from lm_mia.data.documents import ProgressCallback
from lm_mia.data.population import Population, map_files
from lm_mia.data.tokenize import ZLIB_LEVEL
from lm_mia.data.tokenizer import Tokenizer
from lm_mia.errors import UserError

_BLOCK = 4096  # samples that are drawn at a time
_MAX_DUPLICATES = 10, 1000  # candidates per sample, and in addition, before the draw is given up


def append(
    folder: Path,
    samples: int,
    seed: int,
    length_tokens: int,
    distinct_prefix_tokens: int,
    tokenizer: Tokenizer,
    progress: ProgressCallback,
) -> None:
    """Appends random samples to tokens.npy, offsets.npy and samples.parquet of a population that is being built.

    They all have the median length of the samples of text. Like these, they begin with <bos>, and end with <eos> if
    they are shorter than the longest samples, which are cut. Pieces are drawn from those that stand for text. The text
    of a sample is what its pieces are decoded to, its source is "random", and its name is "random" and a number.

    Args:
      folder: folder of the population, with the samples of text.
      samples: number of random samples.
      seed: seed of the draw, whose purpose is "population/random samples".
      length_tokens: maximum number of tokens of a sample.
      distinct_prefix_tokens: number of tokens after <bos> in which each sample must differ from all others; 0: each
        must differ from all others in at least one token.
      tokenizer: the tokenizer.
      progress: called after each block of samples.

    Raises:
      UserError: if the vocabulary has too few pieces for this number of distinct samples.
    """
    text = map_files(folder, {})
    length = int(np.median(text.lengths_N))
    compared = distinct_prefix_tokens or length_tokens
    parts: list[pa.Table] = []
    dtype, before, offset = text.tokens.dtype, len(text), len(text.tokens)
    offsets_N1 = np.append(text.offsets_N1, offset + length * np.arange(1, samples + 1))
    with (folder / "tokens.npy").open("r+b") as file:
        file.seek(0, 2)
        done = 0
        for token_BxL in _draw(text, samples, seed, length, length_tokens, compared, tokenizer):
            file.write(token_BxL.astype(dtype).tobytes())
            parts.append(_rows(token_BxL, done, before, tokenizer))
            done += len(token_BxL)
            progress("draw random samples", done, samples)
        # The length of the header does not depend on the shape, since NumPy pads it.
        file.seek(0)
        header = {"descr": dtype.str, "fortran_order": False, "shape": (int(offsets_N1[-1]),)}
        np.lib.format.write_array_header_1_0(file, header)
    np.save(folder / "offsets.npy", offsets_N1)
    _append_rows(folder / "samples.parquet", pa.concat_tables(parts))


def _draw(
    text: Population,
    samples: int,
    seed: int,
    length: int,
    length_tokens: int,
    compared: int,
    tokenizer: Tokenizer,
) -> Iterator[np.ndarray]:
    """Yields token_BxL of consecutive random samples, without duplicates; arguments as of `append`."""
    stream = seeds.rng(seed, "population/random samples").bit_generator
    piece_V = np.array(tokenizer.text_tokens())
    before, after = tokenizer.before, tokenizer.after if length < length_tokens else []
    pieces = length - len(before) - len(after)
    # Half of a digest is enough: if it is that of another sample by chance, a sample is drawn again for nothing.
    taken_N = np.unique(features.prefix_digests(text.tokens, text.offsets_N1, compared)[:, 0])
    drawn: set[int] = set()
    candidates = 0
    while len(drawn) < samples:
        if candidates > _MAX_DUPLICATES[0] * samples + _MAX_DUPLICATES[1] or not len(piece_V):
            raise UserError(
                f"population.random_samples={samples}: the {len(piece_V)} pieces of the vocabulary do not suffice for "
                f"this number of distinct samples of {pieces} pieces, the median length; use fewer random samples"
            )
        size = min(_BLOCK, samples - len(drawn))
        candidates += size
        index = seeds.uniform_below(stream, len(piece_V), size * pieces)
        parts = (
            np.tile(np.array(before, np.int64), (size, 1)),
            piece_V[index].reshape(size, pieces),
            np.tile(np.array(after, np.int64), (size, 1)),
        )
        token_BxL = np.concatenate(parts, axis=1)
        offsets_B1 = length * np.arange(size + 1)
        digest_B = features.prefix_digests(token_BxL.ravel(), offsets_B1, compared)[:, 0]
        is_new_B = ~np.isin(digest_B, taken_N)
        for b, digest in enumerate(digest_B.tolist()):
            is_new_B[b] &= digest not in drawn
            if is_new_B[b]:
                drawn.add(digest)
        yield token_BxL[is_new_B]


def _rows(token_BxL: np.ndarray, first: int, before: int, tokenizer: Tokenizer) -> pa.Table:
    """Returns rows of the sample table.

    Args:
      token_BxL: tokens of the samples.
      first: number of random samples before these.
      before: number of samples of text.
      tokenizer: the tokenizer.
    """
    texts = tokenizer.decode_batch(token_BxL.tolist())
    raws = [text.encode() for text in texts]
    numbers = range(first, first + len(texts))
    return pa.table(
        {
            "id": [before + number for number in numbers],
            "name": [f"random {number}" for number in numbers],
            "source": ["random"] * len(texts),
            "user": [""] * len(texts),
            "text_sha256": [hashlib.sha256(raw).hexdigest() for raw in raws],
            "chars": [len(text) for text in texts],
            "tokens": [token_BxL.shape[1]] * len(texts),
            "unk": [0] * len(texts),
            "zlib_bytes": [len(zlib.compress(raw, ZLIB_LEVEL)) for raw in raws],
        }
    )


def _append_rows(path: Path, rows: pa.Table) -> None:
    """Appends rows to a Parquet file, which is copied a row group at a time."""
    new_path = path.with_suffix(".new")
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        with pq.ParquetWriter(new_path, schema, compression="zstd") as table:
            for group in range(file.num_row_groups):
                table.write_table(file.read_row_group(group))
            table.write_table(rows.select(schema.names).cast(schema))
    new_path.replace(path)
