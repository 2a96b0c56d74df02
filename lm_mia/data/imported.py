"""The population of imported losses: a sample table without tokens, for models that were trained elsewhere.

Its folder contains `samples.parquet` and `manifest.json`, as that of any population (see `lm_mia.data.population`), but
neither tokens nor a tokenizer. A column that the imported file does not have is NaN for every sample, or an empty
string, except that the compressed size is computed from texts, and that no two samples are taken to have a common
prefix. If the file has texts, there is a column `text`.

N: samples of the population (2N), D: documents.
"""

import hashlib
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from lm_mia.config.recipe import POPULATION_FORMAT
from lm_mia.data.population import (
    IMPORTED,
    PIECE_COLUMNS,
    RECORD_COLUMNS,
    SAMPLE_COLUMNS,
    SPLIT_DOCUMENTS,
    Population,
    describe_files,
    manifest_bytes,
    open_population,
)
from lm_mia.data.tokenize import ZLIB_LEVEL

TEXT = "text"
"""Name of the column of texts."""
_GROUP_SAMPLES = 2**13  # rows per row group, so that a single text is read quickly


def sample_table(
    num_samples: int, columns: Mapping[str, np.ndarray], text_N: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Returns the columns of the sample table.

    Args:
      num_samples: number of samples.
      columns: name -> column_N, each with one value per sample. If samples have the same value of `document`, they are
        pieces of one document.
      text_N: the texts of the samples, if they are known.

    Returns:
      Name -> column_N: `id`, all of `RECORD_COLUMNS` and `SAMPLE_COLUMNS`, the other given columns and, if documents
      have several samples, `PIECE_COLUMNS`.
    """
    table: dict[str, np.ndarray] = {"id": np.arange(num_samples)}
    table |= {name: np.full(num_samples, "", object) for name in RECORD_COLUMNS}
    table |= {name: np.full(num_samples, np.nan) for name in SAMPLE_COLUMNS}
    table["prefix_group"] = np.arange(num_samples)
    if text_N is not None:
        table["zlib_bytes"] = np.array(
            [len(zlib.compress(str(text).encode(), ZLIB_LEVEL)) for text in text_N], np.int64
        )
        table[TEXT] = text_N
    given = dict(columns)
    document_N = given.pop("document", None)
    if document_N is not None:
        _, number_N = np.unique(document_N, return_inverse=True)
        if number_N.max(initial=-1) + 1 < num_samples:
            order_N = np.argsort(number_N, kind="stable")
            first_D = np.flatnonzero(np.diff(number_N[order_N], prepend=-1))
            piece_N = np.empty(num_samples, np.int64)
            piece_N[order_N] = np.arange(num_samples) - np.repeat(
                first_D, np.diff(first_D, append=num_samples)
            )
            table |= dict(zip(PIECE_COLUMNS, (number_N.astype(np.int64), piece_N), strict=True))
    return table | given


def digest(table: Mapping[str, np.ndarray]) -> str:
    """Returns twelve hex digits that identify the samples of a `sample_table`."""
    total = hashlib.sha256()
    for name in sorted(table):
        column_N = table[name]
        total.update(f"{name} {len(column_N)} {column_N.dtype.kind}\0".encode())
        if column_N.dtype.kind in "OU":
            for text in column_N:
                total.update(hashlib.sha256(str(text).encode()).digest())
        else:
            total.update(np.ascontiguousarray(column_N).tobytes())
    return total.hexdigest()[:12]


def write_population(
    folder: Path, table: Mapping[str, np.ndarray], provenance: Mapping[str, Any]
) -> Population:
    """Writes the population of imported losses, unless it exists, and returns it.

    Processes that write the same folder at the same time take turns, and the later ones reuse the result of the first.

    Args:
      folder: the folder of the population, named by the hash of a config that includes `digest`.
      table: the result of `sample_table`.
      provenance: where the samples come from, for the manifest.

    Raises:
      UserError: if the folder has a damaged population.
    """
    if folder.is_dir():
        return open_population(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            _write_files(folder, table, provenance)
    return open_population(folder)


def _write_files(
    folder: Path, table: Mapping[str, np.ndarray], provenance: Mapping[str, Any]
) -> None:
    # Renamed when it is complete, so that a population is either whole or absent.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        columns = {name: pa.array(column_N) for name, column_N in table.items()}
        pq.write_table(
            pa.table(columns), unfinished / "samples.parquet", row_group_size=_GROUP_SAMPLES
        )
        content = {
            "format": POPULATION_FORMAT,
            "files": describe_files(unfinished, ["samples.parquet"]),
            "samples": len(table["id"]),
            "settings": {"corpus.source": IMPORTED, SPLIT_DOCUMENTS: PIECE_COLUMNS[0] in table},
            "provenance": dict(provenance),
        }
        (unfinished / "manifest.json").write_bytes(manifest_bytes(content))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
