"""Builds a population folder from the documents of a corpus.

The tokenizer is trained or loaded, documents are drawn at random and tokenised in parts, and the parts are merged in
segments, so that memory grows only slowly with the number of samples.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece
from filelock import FileLock

from lm_mia import config
from lm_mia.data import docstrings, features, tokenize, tokenizer
from lm_mia.data.corpus import CorpusOpener, open_corpus
from lm_mia.data.documents import Documents, ProgressCallback, no_progress
from lm_mia.data.population import (
    FORMAT,
    FREQUENCY_FILE,
    SAMPLE_FILES,
    VALIDATION_PREFIX,
    Population,
    dataset_sha256,
    describe_files,
    manifest_bytes,
    map_files,
    open_population,
)
from lm_mia.data.tokenizer import load_tokenizer
from lm_mia.errors import UserError

SCHEMA = pa.schema(
    [("id", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
    + [(name, pa.int64()) for name in ("chars", "tokens", "unk", "zlib_bytes")]
)
# At most so many are in memory, in a few copies.
_SEGMENT_TOKENS, _SEGMENT_SAMPLES = 2**28, 2**18


def build_population(
    config_corpus: config.Corpus,
    config_tokenizer: config.Tokenizer,
    config_population: config.Population,
    folder: Path,
    progress: ProgressCallback = no_progress,
    log: Callable[[str], None] = lambda line: None,
    opener: CorpusOpener = open_corpus,
) -> Population:
    """Makes sure that the folder holds the population of these settings, and opens it.

    A population that is there is checked (its own hashes, the settings and, for docstrings, the versions of the
    packages) and used as it is: it is the data set for ever, so the source files are not read again and may have
    changed or gone. Otherwise the corpus is read, all checks are made, the tokenizer is trained, and only then is
    anything written, even the folder above. Processes that build one folder at once write one after another, and the
    later ones use what the first one wrote; a killed one's vocabulary and samples are used by the next, and so is the
    vocabulary of a population beside (the sweep's others) that was trained on the same.

    Args:
      config_corpus: where the documents come from, and how many processes tokenise them.
      config_tokenizer: vocabulary, trained or given.
      config_population: 2N, seed, length, and what else is drawn or counted.
      folder: where the population is or goes; beside it lies a hidden lock file.
      progress: called often during every step.
      say: told what a killed command had left, and of processes lost.
      opens: `open_corpus`, or what `caching_opener` gives.

    Raises:
      UserError: bad input of any kind, a corrupt population, or one of other settings.
    """
    settings: dict[str, Any] = {
        f"{name}.{field}": value
        for name, section in (("corpus", config_corpus), ("tokenizer", config_tokenizer))
        for field, value in dataclasses.asdict(section).items()
        if f"{name}.{field}" != "corpus.processes"  # says how fast, not what
    }
    if folder.is_symlink():  # to a population that several workdirs share
        folder = folder.resolve()
    p = config_population
    expected = settings | {f"population.{k}": v for k, v in dataclasses.asdict(p).items()}
    if _occupied(folder):
        return _reuse(folder, expected)
    given = Path(config_tokenizer.path) if config_tokenizer.path else None
    if given:
        load_tokenizer(given, config_tokenizer.vocab_size)
    source = opener(config_corpus, progress)
    which = "to draw from" + _left_out(source.provenance)
    check_num_samples(p.samples, p.validation_samples, len(source), which=which)
    *_, min_chars = trained_on = _trained_on(expected)
    of_vocabulary = [source.sha256, *trained_on, metadata.version("sentencepiece")]
    saved = _saved(folder, of_vocabulary)
    if given:
        model = given.read_bytes()
    elif saved.exists():
        log("vocabulary: trained by an earlier command")
        model = saved.read_bytes()
    elif beside := _beside(folder, of_vocabulary):
        log(f"vocabulary: that of {beside.parent}, which was trained on the same documents")
        model = beside.read_bytes()
    else:
        model = tokenizer.train_on_corpus(source, *trained_on, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if _occupied(folder):
            return _reuse(folder, expected)
        if not given:
            saved.parent.mkdir(exist_ok=True)
            saved.with_suffix(".new").write_bytes(model)
            os.replace(saved.with_suffix(".new"), saved)
        return write_population(
            folder,
            source,
            model,
            **dataclasses.asdict(p),
            min_chars=min_chars,
            processes=config_corpus.processes,
            settings=settings,
            provenance=source.provenance,
            progress=progress,
            log=log,
        )


def _left_out(provenance: Mapping[str, Any]) -> str:
    """How many documents were read, and why not all of them are drawn from; nothing if all are."""
    kinds = ("too_short", "exact_duplicates", "near_duplicates")
    lost = [f"{kind.replace('_', ' ')}: {n}" for kind in kinds if (n := provenance.get(kind, 0))]
    return f" ({provenance['documents_read']} read; {', '.join(lost)})" if lost else ""


def describe(found: Population) -> list[str]:
    """Lines that say what a population is and what it was made of."""
    of_corpus, model = found.manifest["provenance"], found.manifest["files"]["tokenizer.model"]
    drawn, k = of_corpus["draw"], found.manifest["settings"]["population.distinct_prefix_tokens"]
    lines = [
        f"corpus: {of_corpus['documents']} documents, sha256 {of_corpus['corpus_sha256']}",
        f"vocabulary: {found.vocab_size} pieces, sha256 {model['sha256']}",
        f"population: {len(found)} samples, sha256 {found.sha256}",
    ]
    if found.validation:
        lines.append(f"held out: {len(found.validation)} samples, sha256 {found.validation.sha256}")
    if passed_over := drawn["too_short"] + drawn["prefix_duplicates"]:
        lines.append(
            f"drawn: {drawn['documents']} documents, {passed_over} of them left out ({drawn['too_short']} too short, "
            f"{drawn['prefix_duplicates']} with the first {k} tokens of another)"
        )
    return lines


def _trained_on(settings: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """What `tokenizer.train_on_corpus` asks for beside documents, of a population's settings."""
    # Of other sources short documents were left out when they were read.
    min_chars = settings["corpus.min_chars"] if settings["corpus.source"] == "c4" else 0
    of_tokenizer = settings["tokenizer.vocab_size"], settings["tokenizer.documents"]
    return *of_tokenizer, settings["population.seed"], min_chars


def _saved(folder: Path, of_vocabulary: list[Any]) -> Path:
    """Where a vocabulary is kept until the population is whole; the name says what it was trained on."""
    digest = hashlib.sha256(json.dumps(of_vocabulary).encode()).hexdigest()[:16]
    return unfinished_folder(folder) / f"vocabulary-{digest}.model"


def _beside(folder: Path, of_vocabulary: list[Any]) -> Path | None:
    """The vocabulary of a population beside, if one was trained on the same."""
    for path in sorted(folder.parent.glob("*/manifest.json")):
        # One that is damaged is told of where it is used; `build` made none without these settings.
        with contextlib.suppress(UserError, KeyError):
            found = open_population(path.parent, verify=False)
            made, sha256 = found.manifest["settings"], found.manifest["provenance"]["corpus_sha256"]
            alike = [sha256, *_trained_on(made), found.manifest["versions"]["sentencepiece"]]
            if alike == of_vocabulary and not made["tokenizer.path"]:
                open_population(path.parent)  # now every byte of it
                return path.with_name("tokenizer.model")
    return None


def _occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _reuse(folder: Path, expected: dict[str, Any]) -> Population:
    """The population in the folder; UserError, a line for each difference, if it is another one."""
    found = open_population(folder)
    settings = found.manifest["settings"]
    way_out = "set it back, or use another --workdir"
    different = [
        f"{name}={expected.get(name)!r}: the population in {folder} was built with "
        f"{settings.get(name)!r}; {way_out}"
        for name in sorted(expected.keys() | settings.keys())
        if expected.get(name) != settings.get(name)
    ]
    if not different and expected["corpus.source"] == "docstrings":
        built, now = found.manifest["provenance"]["packages"], docstrings.versions()
        different = [
            f"corpus.source='docstrings': the population in {folder} was read from {package} "
            f"{built.get(package)}, but {now.get(package)} is installed; install that version, or "
            "use another --workdir"
            for package in sorted(built.keys() | now.keys())
            if built.get(package) != now.get(package)
        ]
    if different:
        raise UserError("\n".join(different))
    # Left by a command that was killed between its last two steps.
    shutil.rmtree(unfinished_folder(folder), ignore_errors=True)
    return found


def write_population(
    folder: Path,
    documents: Documents,
    tokenizer_bytes: bytes,
    *,
    seed: int,
    samples: int,
    length_tokens: int,
    min_chars: int = 0,
    distinct_prefix_tokens: int = 0,
    validation_samples: int = 0,
    frequency_samples: int = 2**16,
    group_prefix_tokens: int = 50,
    processes: int = 1,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: ProgressCallback = no_progress,
    log: Callable[[str], None] = lambda line: None,
) -> Population:
    """Draws 2N documents by seed and writes them; the same arguments give the same bytes, however often interrupted.

    Everything goes to a hidden folder beside, manifest last, and one rename makes it visible: a killed process leaves a
    whole population or none. What it had tokenised is used by the next one with the same arguments, and removed by one
    with others. One writer at a time: `build` takes a lock.

    Args:
      folder: must not exist, or be empty; parents are made.
      documents: a list of (text, source record) will do.
      tokenizer_bytes: a sentencepiece model with pad 0.
      seed, samples: of the draw; samples is 2N.
      length_tokens: samples are `<bos> pieces <eos>`, cut at this many tokens.
      min_chars: documents of fewer characters are left out, and the next ones of the draw taken.
      distinct_prefix_tokens: so are, if not 0, documents whose first so many tokens an earlier one has.
      validation_samples: held-out samples, which come next in the draw.
      frequency_samples: samples over which document frequencies are counted; all, if there are fewer.
      group_prefix_tokens: samples that share so many first tokens are of one group.
      processes: that tokenise; 0: one a core. Few documents are tokenised in this one.
      settings, provenance: recorded, the settings with ``population.*``, the provenance with counts of the draw. What a
        killed process left is used only if the provenance has "corpus_sha256", which tells one corpus from another.
      progress: called after every few hundred documents.
      say: told of parts found and of processes lost.

    Raises:
      UserError: if there are too few documents or the folder is taken; no population is written then.
    """
    wanted = samples + validation_samples
    check_num_samples(samples, validation_samples, len(documents))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; delete it and run `lm-mia corpus` again")
    spm = sentencepiece.SentencePieceProcessor(model_proto=tokenizer_bytes)
    facts: dict[str, Any] = {
        "format": FORMAT,
        "vocab_size": spm.get_piece_size(),
        "zlib_level": tokenize.ZLIB_LEVEL,
        "settings": {
            **(settings or {}),
            "population.samples": samples,
            "population.seed": seed,
            "population.length_tokens": length_tokens,
            "population.distinct_prefix_tokens": distinct_prefix_tokens,
            "population.validation_samples": validation_samples,
            "population.frequency_samples": frequency_samples,
            "population.group_prefix_tokens": group_prefix_tokens,
        },
        "provenance": dict(provenance or {}),
        "versions": {p: metadata.version(p) for p in ("numpy", "pyarrow", "sentencepiece")},
    }
    parts = _parts_folder(folder, [facts, min_chars, len(documents), tokenizer_bytes.hex()])
    model = parts / "tokenizer.model"
    if not model.exists():
        model.with_suffix(".new").write_bytes(tokenizer_bytes)
        model.with_suffix(".new").rename(model)
    rules = tokenize.SampleRules(model, length_tokens, min_chars, distinct_prefix_tokens)
    drawn = tokenize.draw_samples(documents, wanted, seed, rules, parts, processes, progress, log)
    if len(drawn.position_W) < wanted:
        shutil.rmtree(unfinished_folder(folder))
        check_num_samples(samples, validation_samples, len(drawn.position_W), drawn)
    new = unfinished_folder(folder) / "population"
    new.mkdir()
    (new / "tokenizer.model").write_bytes(tokenizer_bytes)
    names = ["tokenizer.model", *SAMPLE_FILES, FREQUENCY_FILE]
    sizes = length_tokens, spm.get_piece_size(), progress
    write_sample_files(new, "", drawn.parts, drawn.position_W[:samples], *sizes)
    if validation_samples:
        names += [VALIDATION_PREFIX + name for name in SAMPLE_FILES]
        write_sample_files(new, VALIDATION_PREFIX, drawn.parts, drawn.position_W[samples:], *sizes)
    made, counted = map_files(new, {}), min(frequency_samples, samples)
    flat = made.tokens, made.offsets_N1
    frequency_V = features.document_frequencies(
        *flat, spm.get_piece_size(), counted, seed, progress
    )
    np.save(new / FREQUENCY_FILE, frequency_V)
    columns = {
        "tfidf": features.mean_tfidf(
            *flat, frequency_V, counted, (spm.bos_id(), spm.eos_id()), progress
        ),
        "prefix_group": features.prefix_groups(*flat, group_prefix_tokens, progress),
    }
    add_columns(new / "samples.parquet", columns)
    facts["files"] = describe_files(new, names)
    facts["sha256"] = dataset_sha256(facts["files"])
    facts["provenance"]["draw"] = {
        "documents": drawn.documents,
        "too_short": drawn.too_short,
        "prefix_duplicates": drawn.prefix_duplicates,
    }
    (new / "manifest.json").write_bytes(manifest_bytes(facts))
    os.replace(new, folder)
    shutil.rmtree(
        unfinished_folder(folder), ignore_errors=True
    )  # whoever finds the population does too
    return open_population(folder, verify=False)


def unfinished_folder(folder: Path) -> Path:
    """The hidden folder in which a population is made."""
    return folder.with_name(f".{folder.name}.unfinished")


def check_num_samples(
    samples: int,
    held_out: int,
    documents: int,
    drawn: tokenize.DrawnSamples | None = None,
    which: str = "to draw from",
) -> None:
    """UserError if a corpus of that many documents, which are said to be so, cannot give 2N samples and the others."""
    if samples + held_out > documents:
        also = f" beside population.validation_samples={held_out}" if held_out else ""
        if drawn:
            which = (
                f"that can be samples ({drawn.documents} read, {drawn.too_short} too short, {drawn.prefix_duplicates} "
                "that begin like another)"
            )
        if held_out and documents - held_out < 2 <= documents:
            beside = samples if samples <= documents else 2
            raise UserError(
                f"population.validation_samples={held_out}: the corpus has {documents} documents {which}; use at most "
                f"{documents - beside} beside population.samples={beside}"
            )
        way_out = f"use at most {max(documents - held_out, 0) // 2 * 2}{also}"
        raise UserError(
            f"population.samples={samples}: the corpus has {documents} documents {which}; {way_out}"
        )


def _parts_folder(folder: Path, identity: list[Any]) -> Path:
    """The folder of the parts of one population: of this identity, whatever was there of another is removed."""
    name = "parts-" + hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    resumable = "corpus_sha256" in identity[0]["provenance"]
    if unfinished_folder(folder).exists():
        for path in unfinished_folder(folder).iterdir():
            if path.is_dir() and not (resumable and path.name == name):
                shutil.rmtree(path)
    parts = unfinished_folder(folder) / name
    parts.mkdir(parents=True, exist_ok=True)
    return parts


def write_sample_files(
    folder: Path,
    prefix: str,
    parts: Sequence[Path],
    position_N: np.ndarray,
    length_tokens: int,
    vocab_size: int,
    progress: ProgressCallback,
) -> None:
    """Writes tokens.npy, offsets.npy and samples.parquet, their names begun with a prefix.

    The files depend on the samples alone, not on the parts that they lie in.

    Args:
      folder: where they go.
      prefix: "" or "validation_".
      parts: files of `lm_mia.data.tokenize`.
      position_N: places in the draw of the samples to take, ascending; sample i is the i-th.
      length_tokens: the most tokens that a sample has.
      vocab_size: says how wide a token is stored.
      progress: called after every segment.
    """
    dtype = np.dtype(
        tokenize.part_schema(vocab_size).field("tokens").type.value_type.to_pandas_dtype()
    )
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
    return tokenize.read_part(part, ["position"])["position"].to_numpy()


def _gather(
    parts: Sequence[Path], bounds: Sequence[tuple[int, int]], position_S: np.ndarray
) -> pa.Table:
    """The rows of these positions, in their order; bounds tell between which rows of each part they lie."""
    names = ["position", "source_record", "text_sha256", "chars", "unk", "zlib_bytes", "tokens"]
    rows = pa.concat_tables(
        [
            tokenize.read_part(part, names).slice(low, high - low)
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
