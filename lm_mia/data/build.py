"""Builds a population folder from the documents of a corpus.

The tokenizer is trained or loaded, documents are drawn at random and tokenized in parts, and the parts are merged in
segments, so that memory grows only slowly with the number of samples.

N: samples, S: samples of a segment, R: rows of the parts that contain a segment, V: pieces of the vocabulary, W:
documents that are drawn.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from lm_mia import config
from lm_mia.config.fields import before
from lm_mia.config.recipe import POPULATION_FORMAT
from lm_mia.data import docstrings, features, random_samples, texts, tokenize, tokenizer
from lm_mia.data.corpus import CorpusOpener, open_corpus
from lm_mia.data.documents import Documents, Log, ProgressCallback, no_log, no_progress
from lm_mia.data.population import (
    FREQUENCY_FILE,
    IMPORTED,
    PIECE_COLUMNS,
    RECORD_COLUMNS,
    SAMPLE_FILES,
    SPLIT_DOCUMENTS,
    VALIDATION_PREFIX,
    Population,
    TextUse,
    dataset_sha256,
    describe_files,
    describe_text_use,
    manifest_bytes,
    map_files,
    open_population,
    tokenizer_file,
)
from lm_mia.data.tokenizer import (
    SentencePieceTokenizer,
    SpecialTokens,
    Tokenizer,
    load_tokenizer,
)
from lm_mia.errors import UserError

SCHEMA = pa.schema(
    [("id", pa.int64())]
    + [(name, pa.string()) for name in (*RECORD_COLUMNS, "text_sha256")]
    + [(name, pa.int64()) for name in ("chars", "tokens", "unk", "zlib_bytes")]
)
PIECE_SCHEMA = pa.schema([(name, pa.int64()) for name in PIECE_COLUMNS])
"""Columns of the sample table in addition to those of SCHEMA if documents are split."""

# Maximum size of a segment; a few copies of it are in memory at a time.
_SEGMENT_TOKENS, _SEGMENT_SAMPLES = 2**28, 2**18


def build_population(
    config_corpus: config.Corpus,
    config_tokenizer: config.Tokenizer,
    config_population: config.Population,
    folder: Path,
    progress: ProgressCallback = no_progress,
    log: Log = no_log,
    opener: CorpusOpener = open_corpus,
) -> Population:
    """Builds the population of these settings unless the folder contains it, and opens it.

    An existing population is checked (its hashes and the settings) and reused. It never changes: the source files and
    packages, which may have changed or been removed, are not read again. Otherwise,
    the corpus is read, all settings are checked and the tokenizer is trained before anything is written.

    Processes that build the same folder at the same time take turns, and the later ones reuse the result of the first.
    The vocabulary and the tokenized parts of a command that was killed are reused by the next one. A vocabulary is also
    copied from another population in the same parent folder if it was trained on the same documents.

    Args:
      config_corpus: the source of the documents, and the number of processes that tokenize them.
      config_tokenizer: the vocabulary, which is trained or loaded.
      config_population: size, seed, length, and other settings of the population.
      folder: folder of the population; a hidden lock file is created next to it.
      progress: called often during every step.
      log: called with lines about reused work and processes that died.
      opener: `open_corpus`, or a function that `caching_opener` returned.

    Raises:
      UserError: if the input is invalid, the folder contains a damaged population or one with other settings, or the
        losses were imported and their population is missing.
    """
    settings: dict[str, Any] = {
        f"{name}.{field}": value
        for name, section in (("corpus", config_corpus), ("tokenizer", config_tokenizer))
        for field, value in dataclasses.asdict(section).items()
        if f"{name}.{field}" != "corpus.processes"  # affects the speed, not the result
    }
    if config_tokenizer.source:  # which identifies the file wherever it lies
        del settings["tokenizer.path"]
    if folder.is_symlink():  # a link to a population that several workdirs share
        folder = folder.resolve()
    if config_corpus.source == IMPORTED:
        return open_population(folder)
    expected = settings | _population_settings(config_population)
    if _is_occupied(folder):
        return _reuse(folder, expected, log)
    tokenizer_path = Path(config_tokenizer.path) if config_tokenizer.path else None
    if tokenizer_path:
        vocab_size, special_tokens = config_tokenizer.vocab_size, config_tokenizer.special_tokens
        load_tokenizer(tokenizer_path, vocab_size, special_tokens)
    source = opener(config_corpus, progress)
    if not config_corpus.split_documents:
        check_num_samples(
            config_population.samples,
            config_population.validation_samples,
            len(source),
            _describe_corpus(source.provenance),
            config_population.random_samples,
        )
    *_, min_chars = training = _training_arguments(expected)
    vocabulary_key = [source.sha256, *training, metadata.version("sentencepiece")]
    saved = _saved_vocabulary(folder, vocabulary_key)
    if tokenizer_path:
        model = tokenizer_path.read_bytes()
    elif saved.exists():
        log("vocabulary: reusing the vocabulary that an earlier command trained")
        model = saved.read_bytes()
    elif sibling := _sibling_vocabulary(folder, vocabulary_key):
        log(
            f"vocabulary: reusing that of {sibling.parent}, which was trained on the same documents"
        )
        model = sibling.read_bytes()
    else:
        model = tokenizer.train_on_corpus(source, *training, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if _is_occupied(folder):
            return _reuse(folder, expected, log)
        if not tokenizer_path:
            saved.parent.mkdir(exist_ok=True)
            _write_and_rename(saved, model)
        spec = PopulationSpec(
            config_population,
            model,
            # The documents of all sources may have last pieces that are too short.
            config_corpus.min_chars if config_corpus.split_documents else min_chars,
            settings,
            source.provenance,
            config_corpus.split_documents,
            # The documents of all other sources are compared when they are read.
            config_corpus.source == "c4" and config_corpus.deduplicate == "near",
        )
        return write_population(
            folder, source, spec, config.number(config_corpus.processes), progress, log
        )


def describe(population: Population) -> list[str]:
    """Returns lines that describe a population and what it was made of."""
    settings, provenance = population.manifest["settings"], population.manifest["provenance"]
    if population.is_imported:
        return [f"population: {len(population)} imported samples, sha256 {population.sha256}"]
    files = population.manifest["files"]
    vocabulary = files[tokenizer_file(files)]
    text_use, split = population.text_use, population.has_split_documents
    samples = f"{len(population)} samples"
    if split and text_use:
        samples += f", which are pieces of {text_use.documents} documents"
    lines = [
        f"corpus: {provenance['documents']} documents, sha256 {provenance['corpus_sha256']}",
        f"vocabulary: {population.vocab_size} pieces, sha256 {vocabulary['sha256']}",
        f"population: {samples}, sha256 {population.sha256}",
    ]
    if not_utf8 := provenance.get("files_not_utf8"):
        rest = f" and {len(not_utf8) - 3} more" if len(not_utf8) > 3 else ""
        lines.insert(
            1,
            f"left out: {len(not_utf8)} files that are not UTF-8: {', '.join(not_utf8[:3])}{rest}",
        )
    if invisible := provenance.get("without_visible_characters"):
        lines.insert(1, f"left out: {invisible} documents without visible characters")
    if others := provenance.get("files_not_read"):
        lines.insert(1, f"not read: {texts.describe_suffixes(others)} in the folder")
    if text_use:
        lines.append(f"text: {describe_text_use(population.manifest)}")
    if held_out := population.validation:
        lines.append(f"validation: {len(held_out)} held-out samples, sha256 {held_out.sha256}")
    if random := settings.get("population.random_samples", 0):
        lines.append(f"random: the last {random} samples are pieces of the vocabulary, not text")
    drawn, prefix_tokens = provenance["draw"], settings["population.distinct_prefix_tokens"]
    kind = "piece" if split else "document"
    cut = "" if split else f", after truncation to {population.length_tokens} tokens"
    reasons = {
        "too_short": "too short or without tokens",
        "identical_token_sequences": f"with the same tokens as an earlier {kind}{cut}",
        "prefix_duplicates": f"with the same first {prefix_tokens} tokens as an earlier {kind}",
        "near_duplicates": "that are near duplicates of an earlier document"
        if kind == "document"
        else "of near duplicates of an earlier document",
    }
    # Manifests have only the reasons that their settings make possible.
    counts = [f"{drawn[name]} {reason}" for name, reason in reasons.items() if drawn.get(name)]
    if counts:
        left_out = sum(drawn.get(name, 0) for name in reasons)
        pieces = f" in {drawn['pieces']} pieces" if split else ""
        lines.append(
            f"draw: {drawn['documents']} documents{pieces}, {left_out} left out: {'; '.join(counts)}"
        )
    return lines


def _training_arguments(settings: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Returns the arguments of `tokenizer.train_on_corpus` after the documents, from a population's settings."""
    # Other sources leave out short documents when they are read.
    min_chars = settings["corpus.min_chars"] if settings["corpus.source"] == "c4" else 0
    return (
        settings["tokenizer.vocab_size"],
        config.number(settings["tokenizer.documents"]),
        settings["population.seed"],
        min_chars,
    )


def _saved_vocabulary(folder: Path, vocabulary_key: list[Any]) -> Path:
    """Returns the path at which a trained vocabulary is kept until the population is complete."""
    digest = hashlib.sha256(json.dumps(vocabulary_key).encode()).hexdigest()[:16]
    return unfinished_folder(folder) / f"vocabulary-{digest}.model"


def _sibling_vocabulary(folder: Path, vocabulary_key: list[Any]) -> Path | None:
    """Returns the vocabulary of a population in the same parent folder that was trained on the same documents."""
    for path in sorted(folder.parent.glob("*/manifest.json")):
        # A damaged population is reported when it is used; one without these settings was not built from a config.
        with contextlib.suppress(UserError, KeyError):
            manifest = open_population(path.parent, verify=False).manifest
            settings, sha256 = manifest["settings"], manifest["provenance"]["corpus_sha256"]
            key = [sha256, *_training_arguments(settings), manifest["versions"]["sentencepiece"]]
            if key == vocabulary_key and not settings["tokenizer.path"]:
                open_population(path.parent)  # verifies every byte
                return path.with_name(SentencePieceTokenizer.file_name)
    return None


def _is_occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _reuse(folder: Path, expected: Mapping[str, Any], log: Log) -> Population:
    """Opens the population in a folder, and logs a line if its files of texts or packages have changed since then.

    Raises:
      UserError: with a line per difference, if the settings of the population differ.
    """
    population = open_population(folder)
    earlier = {name: value for name, value in before(config.Config).items() if name in expected}
    settings = earlier | population.manifest["settings"]
    differences = [
        f"{name}={expected.get(name)!r}: the population in {folder} was built with "
        f"{settings.get(name)!r}; restore this value, or use another --workdir"
        for name in sorted(expected.keys() | settings.keys())
        if expected.get(name) != settings.get(name)
    ]
    if differences:
        raise UserError("\n".join(differences))
    if expected["corpus.source"] == "docstrings":
        built = population.manifest["provenance"]["packages"]
        if changed := docstrings.changed_versions(built):
            log(
                f"corpus: the population in {folder} has the docstrings of {', '.join(changed)}; to use those of the "
                "packages that are installed now, choose another --workdir"
            )
    if expected["corpus.source"] in texts.SOURCES:
        changed = texts.changed_files(
            expected["corpus.source"],
            expected["corpus.path"],
            population.manifest["provenance"]["files"],
            (folder / "manifest.json").stat().st_mtime_ns,
        )
        if changed:
            more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
            log(
                f"corpus: {changed[0]}{more} in {expected['corpus.path']} changed after the population in {folder} was "
                "built, which still has the earlier texts; to use the present ones, choose another --workdir"
            )
    # This folder still exists if a command was killed between its last two steps.
    shutil.rmtree(unfinished_folder(folder), ignore_errors=True)
    return population


@dataclasses.dataclass(frozen=True)
class PopulationSpec:
    """Everything that determines the files of a population, except the documents."""

    population: config.Population
    tokenizer_model: bytes = dataclasses.field(repr=False)
    """The content of the file of the tokenizer."""
    min_chars: int = 0
    """Documents with fewer characters are left out of the draw and, if documents are split, last pieces with fewer
    characters."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the corpus and the tokenizer, which are recorded in the manifest."""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Provenance of the corpus, which is recorded in the manifest. Parts that a killed process left are reused only if
    it contains "corpus_sha256", which identifies the corpus."""
    split_documents: bool = False
    """Whether all of a document becomes samples, and not only its beginning."""
    leave_out_near_duplicates: bool = False
    """Whether near duplicates are left out of the draw, since the documents of the corpus were not compared before."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """Which special tokens samples have."""
        return self.settings.get("tokenizer.special_tokens", "sample")


def write_population(
    folder: Path,
    documents: Documents,
    spec: PopulationSpec,
    processes: int = 1,
    progress: ProgressCallback = no_progress,
    log: Log = no_log,
) -> Population:
    """Draws the samples and writes the population; the same documents and spec always give the same files.

    Everything is written to a hidden folder next to ``folder``, the manifest last, and renamed at the end, so that a
    process that is killed leaves either a complete population or none. The parts that it tokenized are reused by the
    next process with the same arguments, and removed by one with other arguments. Only one process may write at a time;
    `build_population` takes a lock.

    Args:
      folder: folder of the population, which must be empty or not exist; parent folders are created.
      documents: the corpus; a list of (text, name, source) is sufficient.
      spec: what determines the population.
      processes: number of processes that tokenize; 0: one per CPU core. Few documents are tokenized in this process.
      progress: called after every few hundred documents.
      log: called with lines about reused parts and processes that died.

    Raises:
      UserError: if there are too few documents, or if the folder is not empty; no population is written then.
    """
    settings = spec.population
    if not spec.split_documents:
        check_num_samples(
            settings.samples,
            settings.validation_samples,
            len(documents),
            random_samples=settings.random_samples,
        )
    if _is_occupied(folder):
        raise UserError(f"{folder}: exists already; delete it and run `lm-mia corpus` again")
    tokenizer = load_tokenizer(spec.tokenizer_model, special_tokens=spec.special_tokens)
    manifest = _new_manifest(spec, tokenizer)
    near = spec.leave_out_near_duplicates
    columns = tokenize.part_schema(tokenizer.vocab_size, near).names
    identity = [manifest, spec.min_chars, len(documents), spec.tokenizer_model.hex(), columns]
    parts_folder = _make_parts_folder(folder, identity)
    model_file = parts_folder / tokenizer.file_name
    if not model_file.exists():
        _write_and_rename(model_file, spec.tokenizer_model)
    rules = tokenize.SampleRules(
        model_file,
        settings.length_tokens,
        spec.min_chars,
        config.number(settings.distinct_prefix_tokens),
        spec.split_documents,
        near,
        spec.special_tokens,
    )
    drawn = tokenize.draw_samples(
        documents,
        settings.samples - settings.random_samples,
        settings.validation_samples,
        settings.seed,
        rules,
        parts_folder,
        processes,
        progress,
        log,
    )
    from_text = settings.samples - settings.random_samples + settings.validation_samples
    if len(drawn.position_W) < from_text:
        shutil.rmtree(unfinished_folder(folder))
        raise _too_few_samples(drawn, spec)
    new_folder = unfinished_folder(folder) / "population"
    new_folder.mkdir()
    names, text_use = _write_files(new_folder, drawn, spec, tokenizer, progress)
    manifest["files"] = describe_files(new_folder, names)
    manifest["sha256"] = dataset_sha256(manifest["files"])
    manifest["provenance"]["draw"] = {
        "documents": drawn.documents,
        "too_short": drawn.too_short,
        "identical_token_sequences": drawn.identical_token_sequences,
        "prefix_duplicates": drawn.prefix_duplicates,
    }
    if spec.split_documents:
        manifest["provenance"]["draw"]["pieces"] = drawn.pieces
    if near:
        manifest["provenance"]["draw"]["near_duplicates"] = drawn.near_duplicates
    manifest["provenance"]["text"] = dataclasses.asdict(text_use)
    (new_folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    os.replace(new_folder, folder)
    # If this process is killed here, the next command that opens the population removes this folder.
    shutil.rmtree(unfinished_folder(folder), ignore_errors=True)
    return open_population(folder, verify=False)


def _population_settings(population: config.Population) -> dict[str, Any]:
    settings = dataclasses.asdict(population)
    del settings["folder"]  # where the population is, which does not affect the samples
    return {f"population.{k}": v for k, v in settings.items()}


def _new_manifest(spec: PopulationSpec, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the fields of the manifest that are known before the documents are tokenized."""
    return {
        "format": POPULATION_FORMAT,
        "vocab_size": tokenizer.vocab_size,
        "zlib_level": tokenize.ZLIB_LEVEL,
        "settings": {
            **spec.settings,
            **({SPLIT_DOCUMENTS: True} if spec.split_documents else {}),
            **_population_settings(spec.population),
        },
        "provenance": dict(spec.provenance),
        "versions": {p: metadata.version(p) for p in ("numpy", "pyarrow", tokenizer.package)},
    }


def _write_files(
    folder: Path,
    drawn: tokenize.DrawnSamples,
    spec: PopulationSpec,
    tokenizer: Tokenizer,
    progress: ProgressCallback,
) -> tuple[list[str], TextUse]:
    """Writes all files of a population but the manifest; returns their names, and how much text the samples contain."""
    settings, vocab_size = spec.population, tokenizer.vocab_size
    names = [tokenizer.file_name, *SAMPLE_FILES, FREQUENCY_FILE]
    (folder / tokenizer.file_name).write_bytes(spec.tokenizer_model)
    num_text = settings.samples - settings.random_samples
    position_N = drawn.position_W[:num_text]
    kind = settings.length_tokens, vocab_size, spec.split_documents
    used = write_sample_files(folder, "", drawn.parts, position_N, *kind, progress)
    if settings.validation_samples:
        names += [VALIDATION_PREFIX + name for name in SAMPLE_FILES]
        position_N = drawn.position_W[num_text:]
        write_sample_files(folder, VALIDATION_PREFIX, drawn.parts, position_N, *kind, progress)
    if settings.random_samples:
        random_samples.append(
            folder,
            settings.random_samples,
            settings.seed,
            settings.length_tokens,
            config.number(settings.distinct_prefix_tokens),
            tokenizer,
            progress,
        )
    population = map_files(folder, {})
    tokens, offsets_N1 = population.tokens, population.offsets_N1
    # Frequencies are those of text, so that random samples do not change the TF-IDF of the others.
    text_offsets_N1 = offsets_N1[: num_text + 1]
    num_counted = min(settings.frequency_samples, num_text)
    frequency_V = features.document_frequencies(
        tokens, text_offsets_N1, vocab_size, num_counted, settings.seed, progress
    )
    np.save(folder / FREQUENCY_FILE, frequency_V)
    excluded = (*tokenizer.before, *tokenizer.after)
    tfidf_N = features.mean_tfidf(tokens, offsets_N1, frequency_V, num_counted, excluded, progress)
    group_N = features.prefix_groups(tokens, offsets_N1, settings.group_prefix_tokens, progress)
    add_columns(folder / "samples.parquet", {"tfidf": tfidf_N, "prefix_group": group_N})
    # Every sample starts with <bos>, and ends with <eos> unless it was cut.
    is_eos_N = np.isin(tokens[text_offsets_N1[1:] - 1], tokenizer.after)
    num_bos = num_text * len(tokenizer.before)
    sample_tokens = int(text_offsets_N1[-1]) - num_bos - int(np.count_nonzero(is_eos_N))
    return names, TextUse(*used, sample_tokens)


def unfinished_folder(folder: Path) -> Path:
    """Returns the hidden folder in which a population is built."""
    return folder.with_name(f".{folder.name}.unfinished")


def _write_and_rename(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)


def _describe_corpus(provenance: Mapping[str, Any]) -> str:
    """Returns "documents", with the numbers of documents that were left out when the corpus was read, if any."""
    names = ("too_short", "without_visible_characters", "exact_duplicates", "near_duplicates")
    counts = [f"{name.replace('_', ' ')}: {n}" for name in names if (n := provenance.get(name, 0))]
    if not counts:
        return "documents"
    return f"documents after cleaning ({provenance['documents_read']} read; {', '.join(counts)})"


def _too_few_samples(drawn: tokenize.DrawnSamples, spec: PopulationSpec) -> UserError:
    """Returns the error for a corpus that was read to its end without finding enough samples."""
    settings = spec.population
    counts = (
        f"too short: {drawn.too_short}, identical token sequences: {drawn.identical_token_sequences}, other prefix "
        f"duplicates: {drawn.prefix_duplicates}"
    )
    if spec.leave_out_near_duplicates:
        counts += f", other near duplicates: {drawn.near_duplicates}"
    try:
        check_num_samples(
            settings.samples,
            settings.validation_samples,
            drawn.candidates,
            f"pieces that can be samples ({drawn.pieces} in {drawn.documents} documents; {counts})"
            if spec.split_documents
            else f"documents that can be samples ({drawn.documents} read; {counts})",
            settings.random_samples,
        )
    except UserError as error:
        return error
    others = len(drawn.position_W) - settings.samples
    return UserError(
        f"population.validation_samples={settings.validation_samples}: held-out samples come from documents of which "
        f"no piece is in the population, and these have only {others} pieces that can be samples; use at most "
        f"{others}, or fewer population.samples"
    )


def check_num_samples(
    samples: int,
    validation_samples: int,
    documents: int,
    description: str = "documents",
    random_samples: int = 0,
) -> None:
    """Raises UserError if a corpus has too few documents for the samples and the held-out samples.

    Args:
      samples: 2N.
      validation_samples: number of held-out samples.
      documents: number of documents that can be samples.
      description: describes these documents in the message.
      random_samples: number of samples that are not documents.
    """
    available = documents + random_samples
    if samples + validation_samples <= available:
        return
    if validation_samples and available - validation_samples < 2 <= available:
        num_samples = samples if samples <= available else 2
        raise UserError(
            f"population.validation_samples={validation_samples}: the corpus has only {documents} {description}; use "
            f"at most {available - num_samples} with population.samples={num_samples}"
        )
    largest = max(available - validation_samples, 0) // 2 * 2
    fields = {"validation_samples": validation_samples, "random_samples": random_samples}
    fixed = [f"population.{name}={value}" for name, value in fields.items() if value]
    condition = f" with {' and '.join(fixed)}" if fixed else ""
    problem = f"population.samples={samples}: the corpus has only {documents} {description}"
    if not largest:
        raise UserError(f"{problem}; add documents; with corpus.source=text, each file is one")
    raise UserError(f"{problem}; use at most {largest}{condition}")


def _make_parts_folder(folder: Path, identity: list[Any]) -> Path:
    """Creates the folder for the parts of a population, and removes those of populations with other identities."""
    name = "parts-" + hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    can_resume = "corpus_sha256" in identity[0]["provenance"]
    if unfinished_folder(folder).exists():
        for path in unfinished_folder(folder).iterdir():
            if path.is_dir() and not (can_resume and path.name == name):
                shutil.rmtree(path)
    parts_folder = unfinished_folder(folder) / name
    parts_folder.mkdir(parents=True, exist_ok=True)
    return parts_folder


def write_sample_files(
    folder: Path,
    prefix: str,
    parts: Sequence[Path],
    position_N: np.ndarray,
    length_tokens: int,
    vocab_size: int,
    split_documents: bool,
    progress: ProgressCallback,
) -> tuple[int, int]:
    """Writes tokens.npy, offsets.npy and samples.parquet, with a prefix to their names.

    The content of the files depends only on the samples, not on how they are divided into parts.

    Args:
      folder: existing folder for the files.
      prefix: "" or "validation_".
      parts: files that `lm_mia.data.tokenize` wrote.
      position_N: ascending positions of the samples in the draw; sample i has the i-th position.
      length_tokens: the maximum number of tokens of a sample.
      vocab_size: determines the width of a stored token.
      split_documents: whether the table says which piece of which document a sample is.
      progress: called after each segment.

    Returns:
      The number of documents to which these samples belong, and the number of their tokens before they are cut.
    """
    token_type = tokenize.part_schema(vocab_size).field("tokens").type.value_type
    dtype = np.dtype(token_type.to_pandas_dtype())
    header = {"descr": dtype.str, "fortran_order": False, "shape": (0,)}
    step = max(min(_SEGMENT_TOKENS // length_tokens, _SEGMENT_SAMPLES), 1)
    # The rows of each part, which is sorted by position, at which segments begin and the last one ends.
    starts = np.append(position_N[::step], position_N[-1] + 1)
    bounds = [
        np.searchsorted(tokenize.read_part(part, ["position"])["position"].to_numpy(), starts)
        for part in parts
    ]
    offsets_N1 = np.zeros(len(position_N) + 1, np.int64)
    is_first_N = np.diff(position_N // tokenize.MAX_PIECES, prepend=-1) > 0
    pieces = {"document": np.cumsum(is_first_N) - 1, "piece": position_N % tokenize.MAX_PIECES}
    schema = pa.unify_schemas([SCHEMA, PIECE_SCHEMA]) if split_documents else SCHEMA
    document_tokens = 0
    with (
        (folder / f"{prefix}tokens.npy").open("wb") as file,
        pq.ParquetWriter(folder / f"{prefix}samples.parquet", schema, compression="zstd") as table,
    ):
        # NumPy pads headers, so this one is as long as the final one, which is written when the length is known.
        np.lib.format.write_array_header_1_0(file, header)
        for segment, low in enumerate(range(0, len(position_N), step)):
            position_S = position_N[low : low + step]
            rows = _read_rows(parts, [(b[segment], b[segment + 1]) for b in bounds], position_S)
            tokens = rows["tokens"].combine_chunks()
            file.write(tokens.flatten().to_numpy(zero_copy_only=True))
            length_S = np.diff(tokens.offsets.to_numpy()).astype(np.int64)
            offsets_N1[low + 1 : low + 1 + len(position_S)] = length_S
            at = slice(low, low + len(position_S))
            document_tokens += int(rows["document_tokens"].to_numpy()[is_first_N[at]].sum())
            added = {"id": np.arange(at.start, at.stop), "tokens": length_S}
            columns = rows.drop_columns(["tokens"])
            columns = columns.append_column("user", pa.repeat("", len(position_S)))
            for name, column_N in pieces.items():
                added[name] = column_N[at]
            for name, column_S in added.items():
                columns = columns.append_column(name, pa.array(column_S))
            table.write_table(columns.select(schema.names).cast(schema))
            progress("assemble population", low + len(position_S), len(position_N))
        np.cumsum(offsets_N1, out=offsets_N1)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (int(offsets_N1[-1]),)})
    np.save(folder / f"{prefix}offsets.npy", offsets_N1)
    return int(is_first_N.sum()), document_tokens


def _read_rows(
    parts: Sequence[Path], bounds: Sequence[tuple[int, int]], position_S: np.ndarray
) -> pa.Table:
    """Reads the rows at these positions, in their order.

    Args:
      parts: the files.
      bounds: first and last row (exclusive) of each part between which the positions lie.
      position_S: positions in the draw.
    """
    names = ["position", "name", "source", "text_sha256", "chars", "unk", "zlib_bytes"]
    names += ["document_tokens", "tokens"]
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
    """Adds columns of shape N to a sample table, which is copied a few hundred thousand rows at a time."""
    new_path, low = path.with_suffix(".new"), 0
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for name, column_N in columns.items():
            schema = schema.append(pa.field(name, pa.from_numpy_dtype(column_N.dtype)))
        with pq.ParquetWriter(new_path, schema, compression="zstd") as table:
            for batch in file.iter_batches(_SEGMENT_SAMPLES):
                rows = slice(low, low := low + len(batch))
                added = [pa.array(column_N[rows]) for column_N in columns.values()]
                table.write_batch(pa.record_batch([*batch.columns, *added], schema))
    new_path.replace(path)
