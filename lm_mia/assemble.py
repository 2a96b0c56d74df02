"""Parts -> the files of a population, a segment of samples at a time, in memory that grows little with their number."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import tokenise
from lm_mia.documents import Progress

SCHEMA = pa.schema(
    [("id", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
    + [(name, pa.int64()) for name in ("chars", "tokens", "unk", "zlib_bytes")]
)
# At most so many are in memory, in a few copies.
_SEGMENT_TOKENS, _SEGMENT_SAMPLES = 2**28, 2**18


def write(
    folder: Path,
    prefix: str,
    parts: Sequence[Path],
    position_N: np.ndarray,
    length_tokens: int,
    vocab_size: int,
    progress: Progress,
) -> None:
    """Writes tokens.npy, offsets.npy and samples.parquet, their names begun with a prefix.

    The files depend on the samples alone, not on the parts that they lie in.

    Args:
      folder: where they go.
      prefix: "" or "validation_".
      parts: files of `lm_mia.tokenise`.
      position_N: places in the draw of the samples to take, ascending; sample i is the i-th.
      length_tokens: the most tokens that a sample has.
      vocab_size: says how wide a token is stored.
      progress: called after every segment.
    """
    dtype = np.dtype(tokenise.schema(vocab_size).field("tokens").type.value_type.to_pandas_dtype())
    header = {"descr": dtype.str, "fortran_order": False, "shape": (0,)}
    step = max(min(_SEGMENT_TOKENS // length_tokens, _SEGMENT_SAMPLES), 1)
    # Where in each part each segment begins, and the last ends: parts are ordered by position.
    starts = np.append(position_N[::step], position_N[-1] + 1)
    bound_PxS = [np.searchsorted(_positions(part), starts) for part in parts]
    offsets_N1 = np.zeros(len(position_N) + 1, np.int64)
    with (
        (folder / f"{prefix}tokens.npy").open("wb") as file,
        pq.ParquetWriter(folder / f"{prefix}samples.parquet", SCHEMA, compression="zstd") as table,
    ):
        # numpy pads headers: this one and the true one, once the length is known, are equally long.
        np.lib.format.write_array_header_1_0(file, header)
        for s, low in enumerate(range(0, len(position_N), step)):
            wanted = position_N[low : low + step]
            rows = _gather(parts, [(b[s], b[s + 1]) for b in bound_PxS], wanted)
            tokens = rows["tokens"].combine_chunks()
            file.write(tokens.flatten().to_numpy(zero_copy_only=True))
            length_S = np.diff(tokens.offsets.to_numpy()).astype(np.int64)
            offsets_N1[low + 1 : low + 1 + len(wanted)] = length_S
            columns = rows.drop_columns(["tokens"]).append_column("tokens", pa.array(length_S))
            ids = pa.array(np.arange(low, low + len(wanted)))
            table.write_table(columns.append_column("id", ids).select(SCHEMA.names).cast(SCHEMA))
            progress("assemble population", low + len(wanted), len(position_N))
        np.cumsum(offsets_N1, out=offsets_N1)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (int(offsets_N1[-1]),)})
    np.save(folder / f"{prefix}offsets.npy", offsets_N1)


def _positions(part: Path) -> np.ndarray:
    return tokenise.read(part, ["position"])["position"].to_numpy()


def _gather(
    parts: Sequence[Path], bounds: Sequence[tuple[int, int]], position_S: np.ndarray
) -> pa.Table:
    """The rows of these positions, in their order; bounds tell between which rows of each part they lie."""
    names = ["position", "source_record", "text_sha256", "chars", "unk", "zlib_bytes", "tokens"]
    rows = pa.concat_tables(
        [
            tokenise.read(part, names).slice(low, high - low)
            for part, (low, high) in zip(parts, bounds, strict=True)
            if high > low
        ]
    )
    position_R = rows["position"].to_numpy()
    order = np.argsort(position_R)
    return rows.take(order[np.searchsorted(position_R, position_S, sorter=order)])


def add_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Adds columns, each of shape N, to a sample table, some rows at a time."""
    new, low = path.with_suffix(".new"), 0
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for name, column_N in columns.items():
            schema = schema.append(pa.field(name, pa.from_numpy_dtype(column_N.dtype)))
        with pq.ParquetWriter(new, schema, compression="zstd") as table:
            for batch in file.iter_batches(_SEGMENT_SAMPLES):
                at = slice(low, low := low + len(batch))
                more = [pa.array(column_N[at]) for column_N in columns.values()]
                table.write_batch(pa.record_batch([*batch.columns, *more], schema))
    new.replace(path)
