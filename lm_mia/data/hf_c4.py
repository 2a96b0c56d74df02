"""The json.gz files of Hugging Face's allenai/c4 -> the layout of TFDS's c4/en:3.1.0, which `lm_mia.data.c4` reads.

One file of records for each file of lines, each written under a name of its own and renamed, all in a hidden folder
beside; a killed conversion goes on with the files that it lacks, or that were made of a file of another size (one that
was cut short, say, and got again), and one rename makes the whole visible.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from lm_mia.data import c4, process_pool
from lm_mia.data.documents import ProgressCallback
from lm_mia.errors import UserError

FEATURES = ("content-length", "content-type", "text", "timestamp", "url")
_NAME = re.compile(r"c4-(train|validation)\.(\d+)-of-\d+\.json\.gz")
_FLAG = "--from-hf-shards"
_REPORT_LINES = 2000


@dataclasses.dataclass(frozen=True)
class _Shard:
    """One file of lines, and where its records go."""

    source: Path
    bytes: int
    target: Path


def convert(
    pattern: str, path: str, processes: int, progress: ProgressCallback, say: Callable[[str], None]
) -> Path:
    """Makes sure that ``c4/en/3.1.0`` of a TFDS data folder holds the records of these files; returns it.

    Records keep their order; files are numbered anew, in the order of their names, so that any of C4's 1,024 will do.
    What Hugging Face's files lack (content-length, content-type) is empty.

    Args:
      pattern: a glob of files such as ``c4-train.00000-of-01024.json.gz``.
      path: the TFDS data folder, made if it is not there; empty for TFDS's default.
      processes: that convert; 0: one a core.
      progress: called often with the bytes read.
      say: told what was found.

    Raises:
      UserError: if there is no such file, one is broken (says where), the folder holds something else or is read-only.
    """
    data_dir = c4.data_folder(path)
    folder = data_dir / c4.NAME / c4.VERSION
    sources = _find(pattern)
    plan = {name: source.stat().st_size for name, source in sources.items()}
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    way_out = "name another corpus.path, give the same files, or delete the folder"
    with _writing(data_dir):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock")).acquire()
    with lock:
        if folder.exists():
            if _load(folder / "hf_shards.json") != plan:
                raise UserError(
                    f"{_FLAG}={pattern!r}: {folder} was made of something else; {way_out}"
                )
            say(f"C4: {folder} was made of these {len(plan)} files before")
            return folder
        before = _load(unfinished / "hf_shards.json")
        # The names alone: a file that was got again has another size, and costs its own shard, not all.
        if before is not None and set(before) != set(plan):
            raise UserError(
                f"{_FLAG}={pattern!r}: {unfinished} is of a conversion of other files; {way_out}"
            )
        splits = _shards(sources, plan, unfinished)
        all_shards = [shard for shards in splits.values() for shard in shards]
        info = unfinished / "dataset_info.json"
        # Written when all is made; the notes, which say of what, may be gone then.
        if not (info.exists() and before == plan and all(s.target.exists() for s in all_shards)):
            with _writing(data_dir):
                unfinished.mkdir(exist_ok=True)
                info.unlink(missing_ok=True)
                _save(unfinished / "hf_shards.json", plan)
            _make(all_shards, processes, progress, say)
            with _writing(data_dir):
                _describe(unfinished, splits)
        kept = {"hf_shards.json", "features.json", info.name, *(s.target.name for s in all_shards)}
        with _writing(data_dir):
            for file in unfinished.iterdir():  # notes, and what a killed process left
                if file.name not in kept:
                    file.unlink()
            os.replace(unfinished, folder)
    say(f"C4: {folder} made of {len(plan)} files")
    return folder


def _find(pattern: str) -> dict[str, Path]:
    """File by name, in order of names."""
    found = [Path(p) for p in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
    files = sorted((p for p in found if p.is_file()), key=lambda p: p.name)
    asked = f"{_FLAG}={pattern!r}"
    if not files:
        raise UserError(f"{asked}: no such file; quote the glob, as in {_FLAG}='hf/c4-*.json.gz'")
    for file, after in zip(files, [*files[1:], None], strict=True):
        if not _NAME.fullmatch(file.name):
            raise UserError(
                f"{asked}: {file} has no name like c4-train.00000-of-01024.json.gz; narrow the glob"
            )
        if after and after.name == file.name:
            raise UserError(f"{asked}: {file} and {after} are the same shard; narrow the glob")
    if not any(file.name.startswith("c4-train.") for file in files):
        raise UserError(f"{asked}: no c4-train.* file among {len(files)}; widen the glob")
    return {file.name: file for file in files}


@contextlib.contextmanager
def _writing(data_dir: Path) -> Iterator[None]:
    """Turns what goes wrong in writing to the folder (ArrayRecord raises RuntimeError) into a UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"corpus.path={str(data_dir)!r}: cannot be written ({error}); name a folder that you may write to, or "
            "make room there: what is converted is kept"
        ) from error


def _shards(sources: dict[str, Path], sizes: dict[str, int], to: Path) -> dict[str, list[_Shard]]:
    """The work of each split."""
    splits: dict[str, list[Path]] = {}
    for name, source in sources.items():
        splits.setdefault(name[3:].split(".")[0], []).append(source)
    return {
        split: [
            _Shard(
                source,
                sizes[source.name],
                to / f"c4-{split}.array_record-{k:05d}-of-{len(files):05d}",
            )
            for k, source in enumerate(files)
        ]
        for split, files in splits.items()
    }


def _make(
    shards: list[_Shard], processes: int, progress: ProgressCallback, say: Callable[[str], None]
) -> None:
    """Writes the files that are missing."""
    missing = [shard for shard in shards if not _made(shard)]
    if len(missing) < len(shards):
        say(f"C4: {len(shards) - len(missing)} of {len(shards)} files were converted before")
    total = sum(shard.bytes for shard in shards)
    done = total - sum(shard.bytes for shard in missing)
    at_work: dict[int, int] = {}

    def on_report(index: int, amount: int) -> None:
        at_work[index] = amount
        progress("convert C4 (bytes)", done + sum(at_work.values()), total)

    def on_lost(exit_code: int) -> None:
        say(f"a process that converts ended with code {exit_code}; its file is done again")

    progress("convert C4 (bytes)", done, total)
    count = max(min(process_pool.num_processes(processes), len(missing)), 1)
    with contextlib.closing(
        process_pool.run_tasks(_convert, missing, count, on_report, on_lost)
    ) as results:
        for index, _ in results:
            at_work.pop(index, None)
            done += missing[index].bytes
            progress("convert C4 (bytes)", done, total)


def _convert(shard: _Shard, report: process_pool.Report) -> None:
    """One file of lines -> one of records, and a note beside it of their number and of both files' sizes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    temporary = shard.target.with_suffix(f".{os.getpid()}")
    with _writing(shard.target.parents[3]):  # of DATA_DIR/c4/en/.3.1.0.unfinished/NAME
        _note(shard).unlink(missing_ok=True)  # it may tell of another file of this name
        # group_size:1 is one record a chunk, as TFDS writes: the cheapest to read by index.
        writer = ArrayRecordWriter(str(temporary), "group_size:1")
        records = size = 0
        try:
            for raw in _records(shard, report):
                writer.write(raw)
                records, size = records + 1, size + len(raw)
            writer.close()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # says again what writing said
                writer.close()
            temporary.unlink(missing_ok=True)
            raise
        os.replace(temporary, shard.target)
        sizes = {"source_bytes": shard.bytes, "file_bytes": shard.target.stat().st_size}
        _save(_note(shard), {"records": records, "bytes": size, **sizes})


def _records(shard: _Shard, report: process_pool.Report) -> Iterator[bytes]:
    number = 0
    try:
        with shard.source.open("rb") as compressed, gzip.open(compressed) as lines:
            for number, line in enumerate(io.BufferedReader(lines), 1):
                if number % _REPORT_LINES == 0:
                    report(compressed.tell())
                if not line.strip():
                    continue
                record = json.loads(line)
                example = c4.empty_example()
                for name in FEATURES:
                    value = _value(record, name).encode()
                    example.features.feature[name].bytes_list.value.append(value)
                yield example.SerializeToString(deterministic=True)
    except json.JSONDecodeError as error:
        raise _broken(shard, number, f"not JSON ({error.msg} at column {error.colno})") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise _broken(shard, number, f"not UTF-8 ({error.reason})") from None
    except TypeError as error:
        raise _broken(shard, number, str(error)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _broken(shard, number + 1, f"not a sound gzip file ({error})") from None
    except OSError as error:
        raise _broken(shard, number + 1, f"cannot be read ({error})") from None


def _value(record: object, name: str) -> str:
    """A field; TypeError if the record is none of C4's."""
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    if name == "text" and "text" not in record:
        raise TypeError(f"no field 'text', only {', '.join(map(repr, record))}")
    value = record.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"field {name!r} is not a text")
    return value


def _describe(folder: Path, splits: dict[str, list[_Shard]]) -> None:
    """Writes features.json and dataset_info.json, without which TFDS sees no data set."""
    import tensorflow_datasets as tfds

    tfds.features.FeaturesDict({name: tfds.features.Text() for name in FEATURES}).save_config(
        str(folder)
    )
    made = {split: [_load(_note(shard)) for shard in shards] for split, shards in splits.items()}
    info = {
        "name": "c4",
        "configName": c4.NAME.name,
        "version": c4.VERSION,
        "fileFormat": "array_record",
        "moduleName": "tensorflow_datasets.text.c4",
        "description": "C4 converted from the files of Hugging Face's allenai/c4 that hf_shards.json names.",
        "splits": [
            {
                "name": split,
                "numBytes": str(sum(note["bytes"] for note in notes)),
                "shardLengths": [str(note["records"]) for note in notes],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, notes in made.items()
        ],
    }
    _save(folder / "dataset_info.json", info)


def _made(shard: _Shard) -> bool:
    """Whether the file of records is there, whole, and of a file of lines of this size."""
    note = _load(_note(shard)) or {}
    noted = note.get("source_bytes"), note.get("file_bytes")
    return shard.target.exists() and noted == (shard.bytes, shard.target.stat().st_size)


def _note(shard: _Shard) -> Path:
    return shard.target.with_name(f"{shard.target.name}.made.json")


def _save(path: Path, content: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2))
    os.replace(temporary, path)


def _load(path: Path) -> Any:
    """The content of a JSON file; None if there is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _broken(shard: _Shard, line: int, what: str) -> UserError:
    return UserError(f"{_FLAG}: {shard.source}, line {line}: {what}; get the file again")
