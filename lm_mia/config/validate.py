"""The check of a config: the types and ranges of its fields, and the rules between fields.

Types and ranges stand in `lm_mia.config.schema`, and `lm_mia.config.fields` checks them. A rule between fields is a
function below, which yields the field, the rule and the remedy if it is broken. It is not asked about fields that have
mistakes of their own.
"""

import contextlib
import difflib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, cast

from lm_mia import user_files
from lm_mia.config import hf_checkpoint, schema
from lm_mia.config.fields import get, mistakes, replaced, shown, types_of
from lm_mia.config.schema import Config

_MIN_REFERENCES = 4

Broken = Iterator[tuple[str, str, str]]
"""The field, the rule and the remedy of each broken rule."""


def check(
    config: Config, unknown: Collection[str] = (), given: Collection[str] = ()
) -> tuple[Config, list[str]]:
    """Returns (the resolved config, a line ``field=value: rule; remedy`` for each mistake, in the order of the fields).

    Args:
      config: a config with any values.
      unknown: fields that the user meant to set to other values; rules about them are not checked.
      given: fields that flags set. Rates of flags must not be too low for the population; those of a config file are
        left out without a word.
    """
    found, default = mistakes(config), Config()
    repaired = config
    for name in found:
        repaired = replaced(repaired, name, get(default, name))
    resolved, hidden = schema.resolve(repaired), {*found, *unknown}
    if any(name.startswith("model") for name in hidden):  # numbers that may follow from them
        hidden |= {name for name in types_of(Config) if get(repaired, name) != get(resolved, name)}
    lines = [(name, line) for name, line in found.items() if name not in unknown]
    rules = [*_OF_ALL] if _is_imported(resolved) else [*_OF_MODELS, *_OF_ALL]
    if "attack.fprs" in given:
        rules.remove(_lowest_rate)  # which `_rates` includes
    rules += [functools.partial(_rates, field=name) for name in _RATES if name in given]
    known = cast(Config, _Known(resolved, hidden))
    for rule in rules:
        with contextlib.suppress(_UnknownValue):
            lines += [(broken[0], _line(resolved, *broken)) for broken in rule(known)]
    order = [*types_of(Config)]
    lines.sort(key=lambda line: order.index(line[0]) if line[0] in order else -1)
    return resolved, [line for _, line in lines]


def problems(config: Config) -> list[str]:
    """Returns a line ``field=value: rule; remedy`` for each mistake in a config."""
    return check(config)[1]


class _UnknownValue(Exception):
    """A rule has read a field that has a mistake of its own."""


class _Known:
    """A config, or a section of it, of which some fields raise `_UnknownValue` when they are read."""

    def __init__(self, values: Any, hidden: Collection[str], prefix: str = "") -> None:
        self._values, self._hidden, self._prefix = values, hidden, prefix

    def __getattr__(self, name: str) -> Any:
        if self._prefix + name in self._hidden:
            raise _UnknownValue
        value = getattr(self._values, name)
        is_section = type(value).__module__ == schema.__name__
        return _Known(value, self._hidden, f"{name}.") if is_section else value


def nothing_attacked(config: Config) -> list[str]:
    """Returns a line if nothing could be attacked after all models are trained; otherwise none.

    This is no rule of `problems`, since another entry of a sweep may request targets or replicas of the same recipe.

    Args:
      config: a config without `problems`, with everything that a command requests of the recipe.
    """
    attack, fewest = config.attack, schema.FEWEST_FOR_LEAVE_ONE_OUT
    has_enough, is_design_known = attack.references >= fewest, config.train.subset != "given"
    if attack.replicas or attack.targets or (attack.zero_run and is_design_known and has_enough):
        return []
    if attack.leave_one_out and has_enough:
        lowest = schema.lowest_fpr(schema.num_canaries(config))
        if any(lowest <= fpr < 1 for fpr in attack.fprs):
            return []
        rule = "without replicas and targets, attack.leave_one_out needs a rate below 1 that the samples can show"
        return [_line(config, "attack.fprs", rule, "add a lower rate")]
    studies = "attack.leave_one_out" + (", attack.zero_run" if is_design_known else "")
    rule = (
        f"needs attack.targets=N, which attacks the first N references, or {fewest} or more references, each of which "
        f"is attacked with the others ({studies}), since nothing is attacked otherwise"
    )
    targets = min(2, attack.references - _MIN_REFERENCES)
    if _is_imported(config):  # the models are given, so there can be no replicas
        return [_line(config, "attack.targets", rule, f"try --config.attack.targets={targets}")]
    flags = f"--config.attack.targets={targets}"
    if targets < 2:
        flags = f"--config.attack.references={fewest} --config.attack.targets=2"
    return [_line(config, "attack.replicas", rule, f"try {flags}")]


def unmet_attention_requirements(
    attention: str, dtype: str, head_width: int, length_tokens: int
) -> list[str]:
    """Returns why an attention implementation cannot compute a model.

    Args:
      attention: a value of ``compute.attention``, for what it requires on all platforms, or "pallas_gpu" or
        "pallas_tpu".
      dtype: type of the activations.
      head_width: width of one attention head.
      length_tokens: maximum length of a sample in tokens.

    Returns:
      One clause per unmet requirement; empty if there is none.
    """
    by_64 = (
        length_tokens % 64 == 0,
        f"population.length_tokens divisible by 64, not {length_tokens}",
    )
    width = "model.width / model.heads"
    requirements = {
        "cudnn": [
            (dtype == "bfloat16", f"model.dtype=bfloat16, not {dtype}"),
            (head_width % 8 == 0, f"{width} divisible by 8, not {head_width}"),
            (head_width <= 128, f"{width} of at most 128, not {head_width}"),
            (length_tokens % 2 == 0, f"an even population.length_tokens, not {length_tokens}"),
        ],
        "pallas": [by_64],
        "pallas_gpu": [
            by_64,
            (head_width in (16, 32, 64, 128), f"{width} of 16, 32, 64 or 128, not {head_width}"),
        ],
        "pallas_tpu": [
            (
                length_tokens % 128 == 0,
                f"population.length_tokens divisible by 128, not {length_tokens}",
            ),
        ],
    }
    return [f"it needs {rule}" for is_met, rule in requirements.get(attention, []) if not is_met]


def rule_about_lowest_fpr(config: Config) -> str:
    """Returns the rule that a false positive rate must not be below the lowest one that the population can show."""
    canaries = schema.num_canaries(config)
    field = "population.samples" if config.train.canaries == "all" else "train.canaries"
    half = "half of the samples" if _is_imported(config) else f"{field} / 2"
    return (
        f"must be at least {schema.lowest_fpr(canaries):.3g}, the lowest rate that {canaries // 2:,} non-members "
        f"({half}) can show"
    )


def _imported(c: Config) -> Broken:
    if not _is_imported(c):
        return
    if not c.corpus.path:
        remedy = "choose another source, or run `lm-mia import FILE --workdir=DIR`"
        yield "corpus.source", "only `lm-mia import` sets this value", remedy
    for field in ("extract.samples", "score.token_samples", "score.at_steps", "score.at_epochs"):
        if get(c, field):
            rule = "needs the models themselves, but only their losses were imported"
            yield field, rule, "leave it out"


# --- the corpus and its samples ---


def _corpus_path(c: Config) -> Broken:
    source = c.corpus.source
    if source == "docstrings" and c.corpus.path:
        remedy = "set --config.corpus.source to text, jsonl, csv or parquet"
        yield "corpus.path", "must be empty for corpus.source='docstrings'", remedy
    elif source not in ("docstrings", "c4") and not c.corpus.path:
        rule = f"must be a file, a folder or a glob for corpus.source={source!r}"
        yield "corpus.path", rule, "set --config.corpus.path"


def _documents_of_c4(c: Config) -> Broken:
    if c.corpus.source == "c4" and not c.tokenizer.path and c.tokenizer.documents == "all":
        rule = "corpus.source='c4' has too many documents to train a vocabulary on all of them"
        remedy = "try --config.tokenizer.documents=200000, or set --config.tokenizer.path"
        yield "tokenizer.documents", rule, remedy


def _duplicates_of_c4(c: Config) -> Broken:
    if c.corpus.source == "c4" and c.corpus.deduplicate == "exact":
        rule = "corpus.source='c4' has too many documents to compare before they are drawn"
        remedy = "set --config.corpus.deduplicate=near, which also drops identical texts, or none"
        yield "corpus.deduplicate", rule, remedy


def _even_samples(c: Config) -> Broken:
    if c.population.samples % 2:
        rule = "must be even, since models are trained on half of the samples"
        yield (
            "population.samples",
            rule,
            f"try --config.population.samples={c.population.samples + 1}",
        )


def _prefix_in_sample(c: Config) -> Broken:
    tokens, length = c.population.distinct_prefix_tokens, c.population.length_tokens
    if tokens != "none" and tokens > length:
        rule = f"must be at most population.length_tokens={length}"
        yield "population.distinct_prefix_tokens", rule, "give a smaller number, or none"


def _random_samples(c: Config) -> Broken:
    samples, count = c.population.samples, c.population.random_samples
    if count >= samples:
        rule = f"must be less than population.samples={samples}, since they are as long as the median of the others"
        remedy = f"try --config.population.random_samples={samples // 4}"
        yield "population.random_samples", rule, remedy


def _random_samples_of_documents(c: Config) -> Broken:
    if c.population.random_samples and c.corpus.split_documents:
        rule = (
            "must be 0 for corpus.split_documents=True, since random samples belong to no document"
        )
        yield "population.random_samples", rule, "set --config.corpus.split_documents=False"


# --- models ---


def _size(c: Config) -> Broken:
    for field in ("model.layers", "model.width"):
        if get(c, field) == "auto":
            yield (
                field,
                f"must be a number for model.size={c.model.size}",
                "give layers and width, or another size",
            )


def _heads(c: Config) -> Broken:
    width, heads = c.model.width, c.model.heads
    if width != "auto" and heads != "auto" and width % heads:
        # 1 divides every width.
        lower = next(count for count in range(min(heads, width), 0, -1) if width % count == 0)
        higher = range(heads + 1, min(2 * heads - lower, width + 1))
        nearest = next((count for count in higher if width % count == 0), lower)
        yield (
            "model.heads",
            f"must divide model.width={width}",
            f"try --config.model.heads={nearest}",
        )


def _kv_heads(c: Config) -> Broken:
    heads, kv_heads = c.model.heads, c.model.kv_heads
    if heads != "auto" and kv_heads != "auto" and heads % kv_heads:
        yield (
            "model.kv_heads",
            f"must divide model.heads={heads}",
            "try --config.model.kv_heads=auto",
        )


def _even_heads(c: Config) -> Broken:
    if c.model.kind != "llama":
        return
    reason = "since rotary positions rotate pairs"
    width = _head_width(c)
    if c.model.head_width != "auto":
        if c.model.head_width % 2:
            yield "model.head_width", f"must be even, {reason}", "add 1"
    elif width != "auto" and width % 2:
        rule = f"must make the width of a head even, {reason}"
        yield "model.heads", rule, "give fewer or more heads"


def _trained_vocabulary(c: Config) -> Broken:
    if not c.tokenizer.path and c.tokenizer.vocab_size < 5:
        rule = "must be at least 5, since a vocabulary has 4 special tokens"
        yield "tokenizer.vocab_size", rule, "try --config.tokenizer.vocab_size=1000"


def _embeddings(c: Config) -> Broken:
    size, pieces = c.model.vocab_size, c.tokenizer.vocab_size
    if size != "auto" and size < pieces:
        rule = f"must be at least tokenizer.vocab_size={pieces}"
        yield "model.vocab_size", rule, "set --config.model.vocab_size=auto"


def _model_kind(c: Config) -> Broken:
    yield from _name_or_file(c, "model.kind", [*schema.KIND_SETTINGS], "CLASS")


def _unread_by_kind(c: Config) -> Broken:
    yield from _unread(c, "model.kind", schema.KIND_SETTINGS)


def _init(c: Config) -> Broken:
    init, source = c.model.init, c.model.init_source
    if hf_checkpoint.is_checkpoint(init) and not source:
        try:
            schema.checkpoint_fields(c)
            hf_checkpoint.digest(init)
        except hf_checkpoint.CheckpointError as error:
            yield "model.init", *_split(str(error))
    elif init != "random" and not hf_checkpoint.is_checkpoint(init):
        rule = "must be random or hf:FOLDER"
        yield "model.init", rule, "give the folder of a checkpoint as hf:FOLDER"
    elif source and not hf_checkpoint.is_checkpoint(init):
        rule = "is filled in for model.init=hf:FOLDER, and must be empty otherwise"
        yield "model.init_source", rule, "leave it out"


def _name_or_file(c: Config, field: str, names: Collection[str], inside: str) -> Broken:
    """Checks a field that is one of some names, or ``FILE.py:NAME``, whose source has a digest of its own."""
    name, source = get(c, field), schema.SOURCES[field]
    if user_files.is_in_file(name):
        if not get(c, source):
            yield field, *_split(user_files.problem(name))
        return
    if name not in names:
        similar = difflib.get_close_matches(name.lower(), names, 1)
        remedy = f"did you mean {similar[0]}?" if similar else "see lm-mia fields"
        yield field, f"must be one of {', '.join(names)}, or FILE.py:{inside}", remedy
    if get(c, source):
        rule = f"is filled in for {field}=FILE.py:{inside}, and must be empty otherwise"
        yield source, rule, "leave it out"


def _unread(c: Config, field: str, readers: Mapping[str, Collection[str]]) -> Broken:
    """Checks the fields that only some values of another field read, which must be at their defaults for the others.

    Which fields code of a user reads is known when it is loaded; see `lm_mia.train.optimizer.check_optimizer`.
    """
    section, chosen, default = field.partition(".")[0], get(c, field), Config()
    for name in dict.fromkeys(name for names in readers.values() for name in names):
        full = f"{section}.{name}"
        if chosen in readers and name not in readers[chosen] and get(c, full) != get(default, full):
            others = " or ".join(reader for reader, names in readers.items() if name in names)
            remedy = f"leave it out, or set --config.{field} to {others}"
            yield full, f"is not read by {field}={chosen}", remedy


def _optimizer_name(c: Config) -> Broken:
    names = [*schema.OPTIMIZER_PARAMETERS]
    yield from _name_or_file(c, "optimizer.name", names, "FUNCTION")


def _unread_by_optimizer(c: Config) -> Broken:
    yield from _unread(c, "optimizer.name", schema.OPTIMIZER_PARAMETERS)


# --- training, execution and scoring ---


def _warmup(c: Config) -> Broken:
    steps = schema.total_steps(c)
    if c.optimizer.warmup_steps >= steps:
        rule = (
            f"must be less than the {steps} training steps of a model, which follow from population.samples, "
            "train.batch_size and train.epochs"
        )
        remedy = f"try --config.optimizer.warmup_steps={steps // 10}"
        yield "optimizer.warmup_steps", rule, remedy


def _subset(c: Config) -> Broken:
    if c.train.subset == "given":
        rule = "is only for imported losses, whose models were trained elsewhere"
        yield "train.subset", rule, "choose exact, bernoulli or balanced"


def _batch_size(c: Config) -> Broken:
    size = schema.training_samples(c)
    if size < c.train.batch_size:
        formula = "population.samples - train.canaries / 2"
        if c.train.canaries == "all":
            formula = "N = population.samples / 2"
        rule = f"must be at most {formula} = {size}, the size of a training subset"
        yield "train.batch_size", rule, f"try --config.train.batch_size={max(size // 8, 1)}"


def _canaries(c: Config) -> Broken:
    canaries, samples, subset = c.train.canaries, c.population.samples, c.train.subset
    if canaries == "all":
        return
    if canaries > samples:
        rule = f"must be all, or from 2 to population.samples={samples}"
        yield "train.canaries", rule, "set --config.train.canaries=all"
    elif canaries % 2 and subset != "bernoulli":
        rule = f"must be even for train.subset={subset!r}, which trains each model on half of the canaries"
        yield "train.canaries", rule, f"try --config.train.canaries={canaries - 1}"


def _canaries_of_documents(c: Config) -> Broken:
    if c.train.canaries != "all" and c.corpus.split_documents:
        rule = (
            "must be all for corpus.split_documents=True, since every model would be trained on other pieces of the "
            "canaries' documents"
        )
        yield "train.canaries", rule, "set --config.corpus.split_documents=False"


def _workers(c: Config) -> Broken:
    workers = c.train.workers
    if c.compute.devices_per_model == "all" and workers != "auto" and workers > 1:
        rule = "must be 1 or auto for compute.devices_per_model=all, where one process uses all devices of a machine"
        yield "train.workers", rule, "set --config.train.workers=auto"


def _held_out(c: Config) -> Broken:
    if c.train.validations and not c.population.validation_samples:
        remedy = "try --config.population.validation_samples=1024"
        yield "train.validations", "requires held-out samples", remedy


def _validations(c: Config) -> Broken:
    steps = schema.total_steps(c)
    if c.train.validations > steps:
        rule = f"must be at most the {steps} training steps of a model"
        yield "train.validations", rule, f"try --config.train.validations={steps}"


def _devices(c: Config) -> Broken:
    devices, batch_size = c.compute.devices_per_model, c.train.batch_size
    if not isinstance(devices, str) and devices > batch_size:
        rule = f"must be at most train.batch_size={batch_size}, since each device needs a sample of a batch"
        remedy = f"set --config.compute.devices_per_model={batch_size}"
        yield "compute.devices_per_model", rule, remedy


def _attention(c: Config) -> Broken:
    # If the heads do not divide the width, which has a message of its own, assume a width that is always supported.
    width = _head_width(c)
    head_width = 8 if width == "auto" else width
    unmet = unmet_attention_requirements(
        c.compute.attention, c.model.dtype, head_width, c.population.length_tokens
    )
    if unmet:
        yield "compute.attention", "; ".join(unmet), "set --config.compute.attention=auto"


def _head_width(c: Config) -> int | Literal["auto"]:
    """Returns model.width / model.heads, or "auto" if that is no whole number or not known."""
    width, heads = c.model.width, c.model.heads
    return "auto" if width == "auto" or heads == "auto" or width % heads else width // heads


def _score_points(c: Config) -> Broken:
    for field, end in (
        ("score.at_steps", schema.total_steps(c)),
        ("score.at_epochs", c.train.epochs),
    ):
        if not all(point < end for point in get(c, field)):
            rule = f"must be below {end}, the end of training, which is always scored"
            yield field, rule, "leave out the others"


def _rounded_points(c: Config) -> Broken:
    steps = schema.total_steps(c)
    if all(point < c.train.epochs for point in c.score.at_epochs):
        rounded = schema.epoch_steps(c)
        if steps in rounded or len({*rounded}) < len(rounded):
            rule = (
                f"is rounded to steps {', '.join(map(str, rounded))}, which must be distinct and below {steps}, the "
                "end of training, which is always scored"
            )
            yield "score.at_epochs", rule, "leave out the others"


def _points_of_bernoulli(c: Config) -> Broken:
    for field in ("score.at_steps", "score.at_epochs"):
        if c.train.subset == "bernoulli" and get(c, field):
            rule = "must be empty for train.subset='bernoulli', where models differ in the number of steps"
            yield field, rule, "set --config.train.subset=exact"


def _token_samples(c: Config) -> Broken:
    samples = c.population.samples
    invalid = [i for i in c.score.token_samples if i >= samples]
    if invalid:
        listed = ", ".join(map(str, invalid[:5])) + (", ..." if len(invalid) > 5 else "")
        rule = (
            f"must be sample ids from 0 to population.samples - 1 = {samples - 1}, unlike {listed}"
        )
        yield "score.token_samples", rule, "leave out the others"


# --- extraction ---


def _suffix(c: Config) -> Broken:
    length, prefix = c.population.length_tokens, c.extract.prefix_tokens
    if c.extract.samples and prefix + c.extract.suffix_tokens > length:
        rule = (
            f"plus extract.prefix_tokens={prefix} must be at most population.length_tokens={length}"
        )
        half = length // 2
        remedy = f"try --config.extract.prefix_tokens={half} --config.extract.suffix_tokens={half}"
        yield "extract.suffix_tokens", rule, remedy


def _written(c: Config) -> Broken:
    written, length = c.extract.written_tokens, c.population.length_tokens
    prefix = c.extract.prefix_tokens
    if written != "auto" and c.extract.samples and prefix + written > length:
        rule = (
            f"plus extract.prefix_tokens={prefix} must be at most population.length_tokens={length}"
        )
        yield "extract.written_tokens", rule, "set --config.extract.written_tokens=auto"


def _written_suffix(c: Config) -> Broken:
    written, suffix = c.extract.written_tokens, c.extract.suffix_tokens
    if written != "auto" and written < suffix:
        rule = f"must be auto, or at least extract.suffix_tokens={suffix}"
        yield "extract.written_tokens", rule, "set --config.extract.written_tokens=auto"


def _top_k(c: Config) -> Broken:
    top_k, pieces = c.extract.top_k, c.tokenizer.vocab_size
    if c.extract.samples and top_k != "all" and top_k > pieces:
        remedy = "set --config.extract.top_k=all to sample from all pieces"
        yield "extract.top_k", f"must be at most tokenizer.vocab_size={pieces}", remedy


# --- attacks ---


def _attack_step(c: Config) -> Broken:
    step, end = c.attack.step, schema.total_steps(c)
    if step == "last":
        return
    rule = "must be last (the end of training) or a step at which models are scored, "
    remedy = "leave it out" if _is_imported(c) else "add the step to score.at_steps"
    if not all(epochs < c.train.epochs for epochs in c.score.at_epochs):
        # Invalid epochs may have been meant to include any other step.
        if step >= end:
            yield "attack.step", f"{rule}below {end}", remedy
        return
    points = sorted({*c.score.at_steps, *schema.epoch_steps(c)})
    points = [point for point in points if point < end]
    if not points:
        rule = "must be last (the end of training), since models are not scored at other steps"
        yield "attack.step", rule, remedy
    elif step not in points:
        yield "attack.step", rule + " or ".join(map(str, points)), remedy


def _references(c: Config) -> Broken:
    fewest = _fewest_references(c)
    if c.attack.references < fewest and not schema.has_no_references(c):
        rule = f"must be {fewest} or more, for 2 IN and 2 OUT losses per sample"
        remedy = (
            "import more models" if _is_imported(c) else f"set --config.attack.references={fewest}"
        )
        yield "attack.references", rule, remedy


def _targets(c: Config) -> Broken:
    targets, references, fewest = c.attack.targets, c.attack.references, _fewest_references(c)
    if targets and not schema.has_no_references(c) and targets > references - fewest:
        all_of = f"attack.references={references}"
        if _is_imported(c):
            all_of = f"the {references} models that are no replicas"
        yield "attack.targets", f"must leave at least {fewest} of {all_of}", "give fewer targets"


def _pairs(c: Config) -> Broken:
    design = "--subset=balanced" if _is_imported(c) else "train.subset='balanced'"
    for field in ("attack.references", "attack.targets"):
        if c.train.subset == "balanced" and get(c, field) % 2:
            rule = f"must be even for {design}, where references come in pairs"
            remedy = f"give {get(c, field) - 1} or {get(c, field) + 1}"
            if field == "attack.references" and get(c, field) < _fewest_references(c):
                remedy = f"give {_fewest_references(c)}"
            yield field, rule, remedy


def _fewest_references(c: Config) -> int:
    # Of imported models, the source may say that one of few is attacked.
    return _MIN_REFERENCES if c.attack.replicas or not _is_imported(c) else 1


def _inits_of_imported(c: Config) -> Broken:
    if c.attack.replica_inits != 1 and _is_imported(c):
        rule = "must be 1, since no models of other initializations can be imported"
        yield "attack.replica_inits", rule, "leave it out"


def _sets_of_inits(c: Config) -> Broken:
    if c.attack.replica_inits > 1 and not c.attack.resample_references and not _is_imported(c):
        rule = "needs sets of references, since their effect is compared with that of the initialization"
        remedy = f"set --config.attack.resample_references to {_size_of_sets(c)}"
        yield "attack.replica_inits", rule, remedy


def _orders(c: Config) -> Broken:
    replicas, orders = c.attack.replicas, c.attack.orders_per_init
    if c.attack.replica_inits > 1 and not 2 <= orders <= replicas and not _is_imported(c):
        rule = f"must be from 2 to attack.replicas={replicas}, whose orders are used"
        yield (
            "attack.orders_per_init",
            rule,
            f"try --config.attack.orders_per_init={max(replicas, 2)}",
        )


def _sets(c: Config) -> Broken:
    field, size, references = (
        "attack.resample_references",
        c.attack.resample_references,
        c.attack.references,
    )
    if size and references < 2 * _MIN_REFERENCES:
        rule = f"needs 8 or more references instead of {references}, for two disjoint sets of 4, the smallest size"
        more = "import more models" if _is_imported(c) else "increase attack.references"
        yield field, rule, f"set it to 0, or {more}"
    elif size and (size % 2 or not _MIN_REFERENCES <= size <= references // 2):
        yield (
            field,
            f"must be 0, or {_size_of_sets(c)}; sets are made of pairs",
            "set it to 0, or 4",
        )


def _size_of_sets(c: Config) -> str:
    references = c.attack.references
    if references < 2 * _MIN_REFERENCES:
        return "4, and --config.attack.references to 8 or more"
    name = "half of the references," if _is_imported(c) else "attack.references / 2 ="
    return f"an even number from 4 to {name} {references // 2}"


def _online_attack(c: Config) -> Broken:
    # `lm_mia.attacks.registry.problems` knows the rules of each attack.
    if "lira_online" not in c.attack.attacks and not schema.has_no_references(c):
        rule = "must include lira_online, whose decisions the tables show"
        yield "attack.attacks", rule, "add lira_online"


def _lowest_rate(c: Config) -> Broken:
    if max(c.attack.fprs) < schema.lowest_fpr(schema.num_canaries(c)):
        yield "attack.fprs", rule_about_lowest_fpr(c), "add a higher rate"


def _focus(c: Config) -> Broken:
    rates = c.attack.fprs
    if c.attack.focus_fpr not in ("auto", *rates):
        rule = f"must be auto or one of attack.fprs={rates}"
        yield "attack.focus_fpr", rule, "set --config.attack.focus_fpr=auto"


def _separations(c: Config) -> Broken:
    clear = c.attack.clear_separation
    if c.attack.ambiguous_separation > clear:
        rule = f"must be at most attack.clear_separation={clear}"
        yield "attack.ambiguous_separation", rule, "give a smaller number"


_RATES = ("attack.fprs", "attack.focus_fpr", "attack.band")


def _rates(c: Config, field: str) -> Broken:
    value = get(c, field)
    values = value if isinstance(value, tuple) else (value,)
    rates = [max(values)] if field == "attack.band" else [x for x in values if x != "auto"]
    if any(rate < schema.lowest_fpr(schema.num_canaries(c)) for rate in rates):
        subject = "its upper end " if field == "attack.band" else ""
        yield field, subject + rule_about_lowest_fpr(c), "give a higher rate"


_OF_MODELS: tuple[Callable[[Config], Broken], ...] = (
    *(_corpus_path, _documents_of_c4, _duplicates_of_c4),
    *(_even_samples, _prefix_in_sample, _random_samples, _random_samples_of_documents),
    *(
        _size,
        _heads,
        _kv_heads,
        _even_heads,
        _trained_vocabulary,
        _embeddings,
        _model_kind,
        _unread_by_kind,
        _init,
    ),
    *(_optimizer_name, _unread_by_optimizer, _warmup, _subset, _batch_size),
    *(_canaries, _canaries_of_documents, _workers, _held_out, _validations, _devices, _attention),
    *(_score_points, _rounded_points, _points_of_bernoulli, _token_samples),
    *(_suffix, _written, _written_suffix, _top_k),
)
_OF_ALL: tuple[Callable[[Config], Broken], ...] = (
    *(_imported, _attack_step, _references, _targets, _pairs),
    *(_inits_of_imported, _sets_of_inits, _orders, _sets),
    *(_online_attack, _lowest_rate, _focus, _separations),
)
"""Rules that hold for imported losses, too, of which only the fields of the attack can be set."""


def _is_imported(c: Config) -> bool:
    return c.corpus.source == "imported"


def _split(message: str) -> tuple[str, str]:
    """Returns the rule and the remedy of a message that has both."""
    rule, _, remedy = message.rpartition("; ")
    return rule, remedy


def _line(config: Config, field: str, rule: str, remedy: str) -> str:
    return f"{field}={shown(get(config, field))}: {rule}; {remedy}"
