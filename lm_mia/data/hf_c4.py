"""Converts the json.gz files of allenai/c4 on Hugging Face to the TFDS dataset that `lm_mia.data.c4` reads.

Each json.gz file becomes one ArrayRecord file, which is written under a temporary name and then renamed, in a hidden
folder next to that of the dataset. A conversion that was killed continues with the files that are missing or whose
json.gz file has another size, for example after an incomplete download. Renaming the folder at the end makes the
dataset visible.
"""

import contextlib
import dataclasses
import glob
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from lm_mia.atomic import replacing, write_atomically
from lm_mia.data import c4, process_pool, texts
from lm_mia.data.documents import Log, ProgressCallback
from lm_mia.errors import UserError, raise_failed_read

FEATURES = ("content-length", "content-type", "text", "timestamp", "url")
_NAME = re.compile(r"c4-(train|validation)\.(\d+)-of-\d+\.json\.gz")
_FLAG = "--from-hf-shards"
_REPORT_LINES = 2000


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A json.gz file and the ArrayRecord file for its records."""

    source: Path
    bytes: int
    """Size of the source file."""
    target: Path


def convert(pattern: str, path: str, processes: int, progress: ProgressCallback, log: Log) -> Path:
    """Converts files to ``c4/en/3.1.0`` in a TFDS data folder, unless an earlier command has done so.

    Records keep their order. Files are renumbered in the order of their names, so that any subset of the 1,024 files of
    C4 can be converted. Fields that the files do not contain (content-length, content-type) are empty.

    Args:
      pattern: a glob of files such as ``c4-train.00000-of-01024.json.gz``.
      path: the TFDS data folder, which is created if it does not exist; empty for the default of TFDS.
      processes: number of processes that convert files; 0: one per CPU core.
      progress: called often with the number of bytes read.
      log: called with lines about the result and reused work.

    Returns:
      The folder of the dataset.

    Raises:
      UserError: if no file matches, a file is invalid (the message names the line), or the folder contains another
        dataset or is not writable.
    """
    data_dir = c4.data_folder(path)
    folder = data_dir / c4.NAME / c4.VERSION
    sources = _find_files(pattern)
    plan = {name: source.stat().st_size for name, source in sources.items()}
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    remedy = "choose another corpus.path, convert the same files, or delete the folder"
    with _reporting_write_errors(data_dir):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock")).acquire()
    with lock:
        if folder.exists():
            if _load_json(folder / "hf_shards.json") != plan:
                raise UserError(
                    f"{_FLAG}={pattern!r}: {folder} was not converted from these files; {remedy}"
                )
            log(
                f"C4: reusing {folder}, converted from these {len(plan)} files by an earlier command"
            )
            return folder
        before = _load_json(unfinished / "hf_shards.json")
        # Only the names are compared: if a file was downloaded again, only that file is converted again.
        if before is not None and set(before) != set(plan):
            raise UserError(
                f"{_FLAG}={pattern!r}: {unfinished} contains an incomplete conversion of other files; {remedy}"
            )
        splits = _plan_shards(sources, plan, unfinished)
        all_shards = [shard for shards in splits.values() for shard in shards]
        info = unfinished / "dataset_info.json"
        # dataset_info.json is written after all files; the notes about them may have been removed since.
        if not (info.exists() and before == plan and all(s.target.exists() for s in all_shards)):
            with _reporting_write_errors(data_dir):
                unfinished.mkdir(exist_ok=True)
                info.unlink(missing_ok=True)
                _save_json(unfinished / "hf_shards.json", plan)
            _convert_missing(all_shards, processes, progress, log)
            with _reporting_write_errors(data_dir):
                _write_metadata(unfinished, splits)
        dataset_files = {
            "hf_shards.json",
            "features.json",
            info.name,
            *(s.target.name for s in all_shards),
        }
        with _reporting_write_errors(data_dir):
            for file in unfinished.iterdir():  # notes, and temporary files of killed processes
                if file.name not in dataset_files:
                    file.unlink()
            os.replace(unfinished, folder)
    log(f"C4: converted {len(plan)} files to {folder}")
    return folder


def _find_files(pattern: str) -> dict[str, Path]:
    """Returns the files by name, sorted by name; raises UserError if they are not files of C4."""
    matches = [Path(p) for p in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
    files = sorted((p for p in matches if p.is_file()), key=lambda p: p.name)
    setting = f"{_FLAG}={pattern!r}"
    if not files:
        raise UserError(f"{setting}: no such file; quote the glob, as in {_FLAG}='hf/c4-*.json.gz'")
    for file, after in zip(files, [*files[1:], None], strict=True):
        if not _NAME.fullmatch(file.name):
            raise UserError(
                f"{setting}: the name of {file} is not of the form c4-train.00000-of-01024.json.gz; narrow the glob"
            )
        if after and after.name == file.name:
            raise UserError(f"{setting}: {file} and {after} are the same shard; narrow the glob")
    if not any(file.name.startswith("c4-train.") for file in files):
        raise UserError(f"{setting}: no c4-train.* file among {len(files)}; widen the glob")
    return {file.name: file for file in files}


@contextlib.contextmanager
def _reporting_write_errors(data_dir: Path) -> Iterator[None]:
    """Converts errors in writing to the folder to UserError; those of ArrayRecord are RuntimeErrors."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"corpus.path={str(data_dir)!r}: cannot be written ({error}); choose a writable folder, or free some "
            "space and run the same command again; converted files are kept"
        ) from error


def _plan_shards(
    sources: dict[str, Path], sizes: dict[str, int], folder: Path
) -> dict[str, list[_Shard]]:
    splits: dict[str, list[Path]] = {}
    for name, source in sources.items():
        splits.setdefault(name[3:].split(".")[0], []).append(source)
    return {
        split: [
            _Shard(
                source,
                sizes[source.name],
                folder / f"c4-{split}.array_record-{k:05d}-of-{len(files):05d}",
            )
            for k, source in enumerate(files)
        ]
        for split, files in splits.items()
    }


def _convert_missing(
    shards: list[_Shard], processes: int, progress: ProgressCallback, log: Log
) -> None:
    missing = [shard for shard in shards if not _is_converted(shard)]
    if len(missing) < len(shards):
        log(
            f"C4: {len(shards) - len(missing)} of {len(shards)} files were converted by an earlier command"
        )
    total = sum(shard.bytes for shard in shards)
    done = total - sum(shard.bytes for shard in missing)
    running: dict[int, int] = {}

    def on_report(index: int, amount: int) -> None:
        running[index] = amount
        progress("convert C4 (bytes)", done + sum(running.values()), total)

    def on_death(exit_code: int) -> None:
        log(
            f"a process ended with code {exit_code}; the file that it was converting will be converted again"
        )

    progress("convert C4 (bytes)", done, total)
    count = max(min(process_pool.num_processes(processes), len(missing)), 1)
    with contextlib.closing(
        process_pool.run_tasks(_convert, missing, count, on_report, on_death)
    ) as results:
        for index, _ in results:
            running.pop(index, None)
            done += missing[index].bytes
            progress("convert C4 (bytes)", done, total)


def _convert(shard: _Shard, report: process_pool.Report) -> None:
    """Converts one file, and writes a note with the number of records and the sizes of both files."""
    from array_record.python.array_record_module import ArrayRecordWriter

    data_dir = shard.target.parents[3]  # of DATA_DIR/c4/en/.3.1.0.unfinished/NAME
    with _reporting_write_errors(data_dir):
        _note_path(shard).unlink(missing_ok=True)  # it may describe an earlier file of this name
        records = size = 0
        with replacing(shard.target) as temporary:
            # group_size:1 stores one record per chunk, as TFDS does, which is the cheapest to read by index.
            writer = ArrayRecordWriter(str(temporary), "group_size:1")
            try:
                for raw in _read_examples(shard, report):
                    writer.write(raw)
                    records, size = records + 1, size + len(raw)
                writer.close()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # closing repeats the error of writing
                    writer.close()
                raise
        sizes = {"source_bytes": shard.bytes, "file_bytes": shard.target.stat().st_size}
        _save_json(_note_path(shard), {"records": records, "bytes": size, **sizes})


def _read_examples(shard: _Shard, report: process_pool.Report) -> Iterator[bytes]:
    number = 0
    try:
        with shard.source.open("rb") as compressed, gzip.open(compressed) as lines:
            for number, line in enumerate(io.BufferedReader(lines), 1):
                if number % _REPORT_LINES == 0:
                    report(compressed.tell())
                if not line.strip():
                    continue
                record = texts.parse_json(line)
                example = c4.empty_example()
                for name in FEATURES:
                    value = _field(record, name).encode()
                    example.features.feature[name].bytes_list.value.append(value)
                yield example.SerializeToString(deterministic=True)
    except UnicodeEncodeError as error:
        raise _invalid_line(shard, number, f"not UTF-8 ({error.reason})") from None
    except (TypeError, ValueError) as error:
        raise _invalid_line(shard, number, str(error)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _invalid_line(shard, number + 1, f"not a valid gzip file ({error})") from None
    except OSError as error:
        raise _invalid_line(shard, number + 1, f"cannot be read ({error})") from None


def _field(record: object, name: str) -> str:
    """Returns a field of a record; raises TypeError if it is not a valid record of C4."""
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    if name == "text" and "text" not in record:
        raise TypeError(f"no field 'text', only {', '.join(map(repr, record))}")
    value = record.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"field {name!r} is not a string")
    return value


def _write_metadata(folder: Path, splits: dict[str, list[_Shard]]) -> None:
    """Writes features.json and dataset_info.json, by which TFDS recognizes the dataset."""
    import tensorflow_datasets as tfds

    tfds.features.FeaturesDict({name: tfds.features.Text() for name in FEATURES}).save_config(
        str(folder)
    )
    notes_by_split = {
        split: [_load_json(_note_path(shard)) for shard in shards]
        for split, shards in splits.items()
    }
    info = {
        "name": "c4",
        "configName": c4.NAME.name,
        "version": c4.VERSION,
        "fileFormat": "array_record",
        "moduleName": "tensorflow_datasets.text.c4",
        "description": "C4 converted from the files of allenai/c4 on Hugging Face that are listed in hf_shards.json.",
        "splits": [
            {
                "name": split,
                "numBytes": str(sum(note["bytes"] for note in notes)),
                "shardLengths": [str(note["records"]) for note in notes],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, notes in notes_by_split.items()
        ],
    }
    _save_json(folder / "dataset_info.json", info)


def _is_converted(shard: _Shard) -> bool:
    """Returns whether the ArrayRecord file exists, is complete, and was made from a source of this size."""
    note = _load_json(_note_path(shard)) or {}
    sizes = note.get("source_bytes"), note.get("file_bytes")
    return shard.target.exists() and sizes == (shard.bytes, shard.target.stat().st_size)


def _note_path(shard: _Shard) -> Path:
    return shard.target.with_name(f"{shard.target.name}.made.json")


def _save_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=2))


def _load_json(path: Path) -> Any:
    """Returns the content of a JSON file, or None if it is missing or invalid."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise_failed_read(error, path)
        return None


def _invalid_line(shard: _Shard, line: int, problem: str) -> UserError:
    return UserError(f"{_FLAG}: {shard.source}, line {line}: {problem}; download the file again")
