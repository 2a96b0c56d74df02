"""Losses of causal language models of Hugging Face on texts: the command ``lm-mia hf-losses``.

The loss of a text is the mean over its tokens but the first, in nats. Tokens are the tokenizer's. The results of
batches are kept beside the output until it is written, so that a command that was stopped goes on where it was.

N: texts, B: texts of a batch, W: its tokens with padding, D: width of the model, E: width of its MLP.
"""

# pyright: reportMissingImports=false
# These packages are an extra, which an environment may lack.

import base64
import contextlib
import dataclasses
import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.atomic import append_line, replacing
from lm_mia.data import texts as text_reader
from lm_mia.data.arrays import listed
from lm_mia.data.texts import TextTable
from lm_mia.errors import UserError, collect_errors
from lm_mia.hf import models as hf_models
from lm_mia.hf import scorer
from lm_mia.hf.models import Dtype, Model
from lm_mia.printing import format_duration, plural
from lm_mia.run.progress import Display

LENGTH_TOKENS = 1024
"""The default limit for the tokens of a text."""
BATCH_TOKENS = 8192
"""The default number of tokens of a batch, with padding."""
_FIRST_BATCHES = 3  # after which the time is estimated
_COMPARED_TEXTS = 1000  # with the tokens of AutoTokenizer
_METADATA = b"lm_mia.hf_losses"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of the command."""

    models: tuple[str, ...]
    """Folders of weights or of LoRA adapters."""
    texts: str
    """Table of texts, as `lm_mia.data.texts.read_table` reads it."""
    out: str
    """The file of losses, .parquet."""
    text_column: str = "text"
    """Name of the column of texts."""
    members: str = ""
    """Table of members, as `lm_mia.data.texts.read_members` reads it; "" for none."""
    token_log_probs: str = ""
    """File for the log-probabilities of single tokens, .parquet; "" for none."""
    length_tokens: int | None = None
    """Largest number of tokens of a text; None: `LENGTH_TOKENS`, or less if a model allows less."""
    batch_tokens: int = BATCH_TOKENS
    """Largest number of tokens of a batch, with padding, unless a single text has more."""
    device: str = ""
    """Such as cpu or cuda:1; "" for a GPU if there is one."""
    device_map: str | None = None
    """auto: distributes the layers of a model over all devices."""
    dtype: Dtype = "float32"
    """Type of the weights and of the computation of a model; losses are computed from logits in float32."""


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """The tokens of all texts by one tokenizer, cut at the limit."""

    ids_N: list[np.ndarray]
    text_N: list[str]
    """The part of each text that these tokens cover."""
    num_cut: int
    """Number of texts that are longer than the limit."""
    digest: str


@dataclasses.dataclass(frozen=True)
class _Job:
    """One model with its tokens and the batches that are to be computed."""

    name: str
    model: Model
    tokens: _Tokens
    member_N: np.ndarray | None
    batches: list[list[int]]
    """Indices of texts of similar length, the longest first, so that the memory is tested at once."""
    key: str
    """A digest of everything on which the losses depend."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(map(len, self.tokens.ids_N))


@dataclasses.dataclass
class _Result:
    """Losses of all texts under one model; filled batch by batch."""

    loss_N: np.ndarray
    """Mean over the predicted tokens, in nats."""
    log_probs_N: list[np.ndarray] | None
    """Log-probability of each predicted token, float32; None if they are not requested."""


def compute_losses(settings: Settings, display: Display) -> list[str]:
    """Computes losses, and writes them to a parquet file that `lm-mia import` and `lm-mia audit` read.

    The table has one row per text: `id`, `text` (the part that the loss is of), `tokens` (the number of predicted
    tokens of the first model), `vocabulary` (the largest number of pieces of a model), the columns of the table of
    texts that `lm-mia import` reads and, for each model,
    `loss_NAME` and, where it is known, `member_NAME`. A file of log-probabilities has the columns `id` and, for each
    model, `tokens_NAME` (its tokens) and `log_prob_NAME` (one value for each token but the first, in nats).

    Args:
      settings: the flags.
      display: shows progress.

    Returns:
      The lines that the command prints at the end.

    Raises:
      UserError: with one line per problem. Everything that can be checked without loading weights is checked first.
    """
    hf_models.require()
    device = hf_models.find_device(settings.device)
    texts, jobs = _plan(settings, device, display)
    _check_out(settings, [job.name for job in jobs])
    for job in jobs:
        display.say(_describe(job, settings))
    results = [
        _stored(job, settings) or _compute(job, jobs[n:], texts, settings, device, display)
        for n, job in enumerate(jobs)
    ]
    _write(texts, jobs, results, settings)
    partial = _partial(settings)
    partial.unlink(missing_ok=True)
    return _summary(jobs, results, settings)


def check_flags(settings: Settings) -> None:
    """Raises UserError with one line per problem of the flags; reads no file."""
    problems = []
    if not settings.models:
        problems.append("MODEL: missing; add one or more folders of weights or of LoRA adapters")
    if not settings.texts:
        problems.append("--texts: missing; add a table such as --texts=texts.jsonl")
    if not settings.out:
        problems.append("--out: missing; add a file such as --out=losses.parquet")
    for flag, value in (("--out", settings.out), ("--token-log-probs", settings.token_log_probs)):
        if not value:
            continue
        path = Path(value)
        if path.suffix != ".parquet":
            problems.append(f"{flag}={value}: must end with .parquet; rename it")
        elif path.is_dir() or not path.absolute().parent.is_dir():
            problems.append(
                f"{flag}={value}: must be a file in a folder that exists; choose another path"
            )
        elif path.resolve() in {Path(p).resolve() for p in (settings.texts, settings.members) if p}:
            problems.append(
                f"{flag}={value}: would replace a table that is read; choose another name"
            )
    if (
        settings.token_log_probs
        and Path(settings.token_log_probs).resolve() == Path(settings.out).resolve()
    ):
        problems.append("--token-log-probs: must be another file than --out; choose another name")
    for flag, number in (
        ("--length-tokens", settings.length_tokens),
        ("--batch-tokens", settings.batch_tokens),
    ):
        if number is not None and number < 2:
            problems.append(
                f"{flag}={number}: must be at least 2, since the first token is not predicted"
            )
    if settings.device and settings.device_map:
        problems.append(
            f"--device={settings.device}: has no effect with --device-map={settings.device_map}; leave one of them out"
        )
    if problems:
        raise UserError("\n".join(problems))


def _plan(settings: Settings, device: str, display: Display) -> tuple[TextTable, list[_Job]]:
    """Reads the tables, opens the models and tokenizes the texts; raises UserError with one line per problem."""
    problems: list[str] = []
    texts = collect_errors(
        problems, lambda: text_reader.read_table(Path(settings.texts), settings.text_column)
    )
    members = {}
    if settings.members:
        members = collect_errors(problems, lambda: text_reader.read_members(Path(settings.members)))
    opened = [
        collect_errors(problems, lambda given=given: hf_models.open_model(given))
        for given in settings.models
    ]
    if problems:
        raise UserError("\n".join(problems))
    assert texts is not None
    names = hf_models.model_names(opened)
    limit = _length_limit(settings, opened)
    member_MxN = [
        collect_errors(
            problems,
            lambda name=name: text_reader.members_of(members, name, texts.id_N, settings.members),
        )
        for name in names
    ]
    if settings.members and not problems and all(member_N is None for member_N in member_MxN):
        problems.append(
            f"--members={settings.members}: has no row of {listed(names)}, but of {listed([*members])}; name "
            "the models in the table like the folders"
        )
    if not settings.members and texts.member_N is not None:
        member_MxN[0] = texts.member_N
        if len(names) > 1:
            display.say(
                f"membership: the column member of {texts.source} is that of the first model, {names[0]}; --members "
                "gives that of each model"
            )
    by_tokenizer: dict[str, _Tokens] = {}
    tokens_M: list[_Tokens] = []
    for name, model in zip(names, opened, strict=True):
        display.update("tokenize", len(tokens_M), len(names))
        kind = model.tokenizer.to_str()
        if kind not in by_tokenizer:
            by_tokenizer[kind] = _tokenize(model, texts, limit)
        tokens_M.append(by_tokenizer[kind])
        collect_errors(
            problems, lambda name=name, model=model: _check_tokens(name, model, tokens_M[-1], texts)
        )
    display.update("tokenize", len(names), len(names))
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    _say_notes(texts, names, opened, tokens_M, display)
    jobs = [
        _Job(name, model, tokens, member_N, batches, _key(model, tokens, settings, device))
        for name, model, tokens, member_N in zip(names, opened, tokens_M, member_MxN, strict=True)
        for batches in [_make_batches(tokens.ids_N, settings.batch_tokens)]
    ]
    return texts, jobs


def _length_limit(settings: Settings, models: Sequence[Model]) -> int:
    """Returns the limit for the tokens of a text, which is the same for all models, so that losses are of one text."""
    known = [(m.length_limit, m.given) for m in models if m.length_limit is not None]
    smallest, given = min(known, default=(None, ""))
    if settings.length_tokens is None:
        return LENGTH_TOKENS if smallest is None else min(smallest, LENGTH_TOKENS)
    if smallest is not None and settings.length_tokens > smallest:
        raise UserError(
            f"--length-tokens={settings.length_tokens}: {given} takes at most {smallest} tokens; choose {smallest} or "
            "fewer"
        )
    return settings.length_tokens


def _tokenize(model: Model, texts: TextTable, limit: int) -> _Tokens:
    ids_N: list[np.ndarray] = []
    text_N: list[str] = []
    num_cut, digest = 0, hashlib.sha256()
    for low in range(0, len(texts.text_N), 1000):  # offsets take much more memory than tokens
        block = texts.text_N[low : low + 1000]
        for text, (ids, ends) in zip(block, model.encode(block), strict=True):
            if len(ids) > limit:
                num_cut += 1
                # A token that was added has no position in the text.
                text = text[: max(ends[:limit])]
            ids_N.append(np.array(ids[:limit], np.int32))
            text_N.append(text)
            digest.update(len(ids_N[-1]).to_bytes(8, "little") + ids_N[-1].tobytes())
    return _Tokens(ids_N, text_N, num_cut, digest.hexdigest())


def _check_tokens(name: str, model: Model, tokens: _Tokens, texts: TextTable) -> None:
    """Raises UserError if some texts have nothing to predict, or tokens that the model does not have."""
    empty = [i for i, ids in zip(texts.id_N, tokens.ids_N, strict=True) if len(ids) < 2]
    if empty:
        raise UserError(
            f"{texts.source}: {plural(len(empty), 'text')} with fewer than 2 tokens, so that nothing is predicted: "
            f"{listed(empty)}; leave them out"
        )
    largest = max(int(ids.max()) for ids in tokens.ids_N)
    if largest >= model.vocab_size:
        raise UserError(
            f"MODEL={model.given}: the tokenizer gives token {largest}, but the model has only {model.vocab_size:,}; "
            "save the model with its own tokenizer"
        )


def _say_notes(
    texts: TextTable,
    names: Sequence[str],
    models: Sequence[Model],
    tokens_M: Sequence[_Tokens],
    display: Display,
) -> None:
    if texts.left_out:
        display.say(
            f"note: columns that `lm-mia import` does not read are left out: {listed(texts.left_out)}"
        )
    compared: set[str] = set()
    for name, model, tokens in zip(names, models, tokens_M, strict=True):
        if tokens.digest != tokens_M[0].digest:
            display.say(
                f"note: {name} has other tokens than {names[0]}, so that their losses per token cannot be compared; "
                f"the columns text and tokens are those of {names[0]}"
            )
        if tokens.digest not in compared:
            compared.add(tokens.digest)
            some = texts.text_N[:_COMPARED_TEXTS]
            if differing := hf_models.other_tokens(model, some):
                display.say(
                    f"note: for {differing:,} of {plural(len(some), 'text')}, AutoTokenizer of transformers gives "
                    f"{name} other tokens than its tokenizer.json, which is used"
                )


def _make_batches(ids_N: Sequence[np.ndarray], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for n in sorted(range(len(ids_N)), key=lambda n: (-len(ids_N[n]), n)):
        if not batches or len(ids_N[batches[-1][0]]) * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(n)
    return batches


def _key(model: Model, tokens: _Tokens, settings: Settings, device: str) -> str:
    """Returns a digest of everything on which the bits of the losses of one model depend."""
    import torch
    import transformers

    kind = settings.device_map or torch.device(device).type
    parts = [
        hf_models.fingerprint(model),
        tokens.digest,
        settings.dtype,
        settings.batch_tokens,
        kind,
    ]
    parts += [torch.__version__, transformers.__version__]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _describe(job: _Job, settings: Settings) -> str:
    """Returns a line about the size of the computation."""
    config = job.model.config
    size = 4 if settings.dtype == "float32" else 2
    W = max(len(batch) * len(job.tokens.ids_N[batch[0]]) for batch in job.batches)
    D = int(getattr(config, "hidden_size", 0) or 0)
    E = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * D
    logits = min(scorer.MAX_LOGITS, W * job.model.vocab_size)
    # Residual stream, attention and MLP of one layer, and two copies of a chunk of logits.
    memory = job.model.parameters * size + W * (8 * D + 3 * int(E)) * size + 2 * 4 * logits
    batches = f"{len(job.batches):,} batch" + "es" * (len(job.batches) != 1)
    cut = f", of which {job.tokens.num_cut:,} are cut" if job.tokens.num_cut else ""
    return (
        f"{job.name}: {plural(len(job.tokens.ids_N), 'text')}{cut}, {plural(job.num_tokens, 'token')}, "
        f"{batches}, about {max(memory / 1e9, 0.1):.1f} GB of memory"
    )


def _partial(settings: Settings) -> Path:
    """Returns the file that keeps the results of batches until the output is written."""
    return Path(f"{settings.out}.partial")


def _finished_batches(job: _Job, settings: Settings) -> dict[int, dict[str, Any]]:
    """Returns the results of batches of an earlier, stopped command; a line that is not complete is skipped."""
    path, found = _partial(settings), dict[int, dict[str, Any]]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, LookupError, TypeError):
            record = json.loads(line)
            if record["key"] == job.key and (not settings.token_log_probs or record["log_probs"]):
                found[record["batch"]] = record
    return found


def _compute(
    job: _Job,
    left: Sequence[_Job],
    texts: TextTable,
    settings: Settings,
    device: str,
    display: Display,
) -> _Result:
    """Returns the losses of one model, the first of those that are left, and keeps those of each batch."""
    records = _finished_batches(job, settings)
    done = sum(len(job.tokens.ids_N[n]) for b in records for n in job.batches[b])
    if records:
        display.say(
            f"{job.name}: {len(records):,} of {len(job.batches):,} batches were computed before"
        )
    display.update(job.name, done, job.num_tokens)
    if len(records) < len(job.batches):
        network = hf_models.load_weights(job.model, settings.dtype, device, settings.device_map)
        scored = scorer.Scorer(network, job.model, settings.dtype)
        path, started, computed = _partial(settings), time.monotonic(), 0
        with path.open("ab") as file:
            file.write(b"\n")  # ends a line that is not complete
        for number, b in enumerate([b for b in range(len(job.batches)) if b not in records], 1):
            ids_B = [job.tokens.ids_N[n] for n in job.batches[b]]
            with _as_smaller_batch(settings):
                log_probs_B = scored.log_probs(ids_B)
            for n, log_probs in zip(job.batches[b], log_probs_B, strict=True):
                if not np.isfinite(log_probs).all():
                    raise UserError(
                        f"MODEL={job.model.given}: the loss of text {texts.id_N[n]} is not finite; "
                        + (
                            "its weights are damaged"
                            if settings.dtype == "float32"
                            else "use --dtype=float32"
                        )
                    )
            packed = base64.b64encode(np.concatenate(log_probs_B).tobytes()).decode()
            records[b] = {
                "key": job.key,
                "batch": b,
                "sums": [float(values.sum(dtype=np.float64)) for values in log_probs_B],
                "log_probs": packed if settings.token_log_probs else "",
            }
            append_line(path, json.dumps(records[b]))
            computed += sum(map(len, ids_B))
            display.update(job.name, done + computed, job.num_tokens)
            if number == _FIRST_BATCHES and len(records) < len(job.batches):
                # The time of a batch is nearly proportional to its tokens and to the parameters of the model.
                seconds = (time.monotonic() - started) / computed / job.model.parameters
                work = sum(other.num_tokens * other.model.parameters for other in left)
                work -= (done + computed) * job.model.parameters
                display.say(
                    f"about {format_duration(seconds * work)} left for {plural(len(left), 'model')}"
                )
    return _collect(job, records, settings)


def _collect(job: _Job, records: dict[int, dict[str, Any]], settings: Settings) -> _Result:
    """Returns the results of all batches in the order of the texts."""
    N = len(job.tokens.ids_N)
    loss_N, log_probs_N = np.zeros(N), [np.zeros(0, np.float32)] * N
    for b, batch in enumerate(job.batches):
        counts = [len(job.tokens.ids_N[n]) - 1 for n in batch]
        loss_N[batch] = -np.array(records[b]["sums"]) / counts
        if settings.token_log_probs:
            values = np.frombuffer(base64.b64decode(records[b]["log_probs"]), np.float32)
            for n, part in zip(batch, np.split(values, np.cumsum(counts)[:-1]), strict=True):
                log_probs_N[n] = part
    # A probability that rounds to 1 would otherwise be a loss of -0.0.
    return _Result(loss_N + 0.0, log_probs_N if settings.token_log_probs else None)


@contextlib.contextmanager
def _as_smaller_batch(settings: Settings) -> Iterator[None]:
    """Turns a lack of memory into a UserError."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        few = max(settings.batch_tokens // 2, 2)
        raise UserError(
            f"--batch-tokens={settings.batch_tokens}: a batch does not fit into the memory of the device; use fewer, "
            f"such as --batch-tokens={few}, or --dtype=bfloat16"
        ) from error


def _keys_in(path: Path) -> dict[str, str]:
    """Returns {model: key} of an earlier output; raises UserError if the file is something else."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        return json.loads(metadata[_METADATA])
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise UserError(
            f"{path}: exists, and was not written by `lm-mia hf-losses`; choose another file"
        ) from error


def _check_out(settings: Settings, names: Sequence[str]) -> None:
    """Raises UserError if an output would replace a file of the user, or losses of other models."""
    for path in map(Path, filter(None, (settings.out, settings.token_log_probs))):
        if not path.exists():
            continue
        if others := sorted({*_keys_in(path)} - {*names}):
            raise UserError(
                f"{path}: has losses of {listed(others)}, which this command does not name; add the folders of these "
                "models, which are not computed again, or choose another file"
            )


def _stored(job: _Job, settings: Settings) -> _Result | None:
    """Returns the losses that an earlier output has of the same weights, tokens and settings, if any."""
    paths = [Path(path) for path in (settings.out, settings.token_log_probs) if path]
    if not all(path.exists() and _keys_in(path).get(job.name) == job.key for path in paths):
        return None
    loss_N = pq.read_table(paths[0], columns=[f"loss_{job.name}"])[0].to_numpy()
    if not settings.token_log_probs:
        return _Result(loss_N, None)
    column = pq.read_table(paths[1], columns=[f"log_prob_{job.name}"])[0]
    return _Result(loss_N, [np.array(values, np.float32) for values in column.to_pylist()])


def _write(
    texts: TextTable, jobs: Sequence[_Job], results: Sequence[_Result], settings: Settings
) -> None:
    first = jobs[0].tokens
    columns: dict[str, Any] = {"id": texts.id_N, "text": first.text_N}
    columns |= {name: pa.array(value_N) for name, value_N in texts.columns.items()}
    columns["tokens"] = [len(ids) - 1 for ids in first.ids_N]
    # By which the unit of the losses is checked when they are read.
    columns["vocabulary"] = [max(job.model.vocab_size for job in jobs)] * len(texts.id_N)
    log_probs: dict[str, Any] = {"id": texts.id_N}
    for job, result in zip(jobs, results, strict=True):
        columns[f"loss_{job.name}"] = result.loss_N
        if job.member_N is not None:
            columns[f"member_{job.name}"] = job.member_N
        if result.log_probs_N is not None:
            log_probs[f"tokens_{job.name}"] = pa.array(job.tokens.ids_N, pa.list_(pa.int32()))
            log_probs[f"log_prob_{job.name}"] = pa.array(result.log_probs_N, pa.list_(pa.float32()))
    keys = {_METADATA: json.dumps({job.name: job.key for job in jobs}).encode()}
    # The losses last: if they exist, everything does.
    for path, content in ((settings.token_log_probs, log_probs), (settings.out, columns)):
        if path:
            with replacing(Path(path)) as temporary:
                pq.write_table(pa.table(content).replace_schema_metadata(keys), temporary)


def _summary(jobs: Sequence[_Job], results: Sequence[_Result], settings: Settings) -> list[str]:
    lines = []
    for job, result in zip(jobs, results, strict=True):
        member_N, loss_N = job.member_N, result.loss_N
        if member_N is None or not 0 < member_N.sum() < len(member_N):
            means = (
                f"{loss_N.mean():.3f}, membership unknown"
                if member_N is None
                else f"{loss_N.mean():.3f}"
            )
        else:
            means = f"{loss_N[member_N].mean():.3f} of members, {loss_N[~member_N].mean():.3f} of non-members"
            if loss_N[member_N].mean() > loss_N[~member_N].mean() and not settings.members:
                means += (
                    "; the column member is that of the first model, so give the trained one first"
                )
        lines.append(f"{job.name}: mean loss in nats per token: {means}")
    lines += [f"log-probabilities: {settings.token_log_probs}"] if settings.token_log_probs else []
    return [*lines, f"losses: {settings.out}", *_next_command(jobs, settings)]


def _next_command(jobs: Sequence[_Job], settings: Settings) -> list[str]:
    """Returns lines with the command that attacks a model with known members, or with what it needs first."""
    known = [job.name for job in jobs if job.member_N is not None]
    unknown = [job.name for job in jobs if job.member_N is None]
    if not known or len(unknown) > 1:
        return [
            f"membership is unknown of {listed(unknown)}: an attack needs it for every model but a base; add a column "
            "member to the texts for a single model, or --members=FILE"
        ]
    if len(known) > 4:
        command = ["lm-mia", "import", settings.out, "--workdir=runs/mine"]
        return [
            f"next: {shlex.join(command)}, with --subset=exact or bernoulli if members were drawn so"
        ]
    command = ["lm-mia", "audit", settings.out, f"--target={known[0]}"]
    if unknown:
        command.append(f"--base={unknown[0]}")
    return [
        f"next: {shlex.join([*command, '--out=audit'])}, with --membership=coins if each text was drawn by a fair coin"
    ]
