"""The rules of a config: ranges of its fields, and fields that must fit together.

One function per section of the config yields a message for each rule that is broken.
"""

import collections
import dataclasses
import difflib
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from lm_mia import user_files
from lm_mia.config import hf_checkpoint, schema
from lm_mia.config.schema import Config

_MAX_TOKEN_SAMPLES = 2**13  # scored in one call, which takes seconds
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+=,-]{0,79})?")
_MIN_REFERENCES = 4
_MAX_STRENGTH = 20  # odds of e^20 per standard deviation
_MAX_MODELS = 1_000_000
_MAX_INTEGER = 2**31 - 1  # the largest 32-bit integer
_MAX_INTEGERS = {
    "model.layers": 10_000,
    "model.width": 1_000_000,
    "train.workers": 100_000,
    **dict.fromkeys(
        [
            f"attack.{name}"
            for name in ("references", "targets", "replicas", "replica_inits", "orders_per_init")
        ],
        _MAX_MODELS,
    ),
}
"""Fields with a lower maximum, which a typing error may exceed: lists of their models would fill the memory."""


def problems(config: Config) -> list[str]:
    """Returns a line for each rule that a config breaks, as ``field=value: rule; remedy``.

    Args:
      config: as returned by `lm_mia.config.resolve`.
    """
    if _is_imported(config):
        sections = (_too_large, _imported, _attack, _name)
        return [message for section in sections for message in section(config)]
    sections = (
        _too_large,
        *(_corpus, _tokenizer, _population, _model, _optimizer, _train, _compute),
        *(_score, _attack, _extract, _name),
    )
    return [message for section in sections for message in section(config)]


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
        return [_message(config, "attack.fprs", rule, "add a lower rate")]
    studies = "attack.leave_one_out" + (", attack.zero_run" if is_design_known else "")
    rule = (
        f"needs attack.targets=N, which attacks the first N references, or {fewest} or more references, each of which "
        f"is attacked with the others ({studies}), since nothing is attacked otherwise"
    )
    targets = min(2, attack.references - _MIN_REFERENCES)
    if _is_imported(config):  # the models are given, so there can be no replicas
        return [_message(config, "attack.targets", rule, f"try --config.attack.targets={targets}")]
    flags = f"--config.attack.targets={targets}"
    if targets < 2:
        flags = f"--config.attack.references={fewest} --config.attack.targets=2"
    return [_message(config, "attack.replicas", rule, f"try {flags}")]


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
    requirements = {
        "cudnn": [
            (dtype == "bfloat16", f"model.dtype=bfloat16, not {dtype}"),
            (head_width % 8 == 0, f"model.width / model.heads divisible by 8, not {head_width}"),
            (head_width <= 128, f"model.width / model.heads of at most 128, not {head_width}"),
            (length_tokens % 2 == 0, f"an even population.length_tokens, not {length_tokens}"),
        ],
        "pallas": [
            (
                length_tokens % 64 == 0,
                f"population.length_tokens divisible by 64, not {length_tokens}",
            ),
        ],
        "pallas_gpu": [
            (
                length_tokens % 64 == 0,
                f"population.length_tokens divisible by 64, not {length_tokens}",
            ),
            (
                head_width in (16, 32, 64, 128),
                f"model.width / model.heads of 16, 32, 64 or 128, not {head_width}",
            ),
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
    field = "train.canaries" if config.train.canaries else "population.samples"
    half = "half of the samples" if _is_imported(config) else f"{field} / 2"
    return (
        f"must be at least {schema.lowest_fpr(canaries):.3g}, the lowest rate that {canaries // 2:,} non-members "
        f"({half}) can show"
    )


def _too_large(config: Config) -> Iterator[str]:
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        for field in dataclasses.fields(values) if dataclasses.is_dataclass(values) else ():
            name = f"{section.name}.{field.name}"
            value, largest = getattr(values, field.name), _MAX_INTEGERS.get(name, _MAX_INTEGER)
            if isinstance(value, int) and value > largest and field.name != "seed":
                yield _message(config, name, f"must be at most {largest:,}")


def _corpus(config: Config) -> Iterator[str]:
    corpus = config.corpus
    yield from _positive(config, "corpus.min_chars")
    yield from _not_negative(config, "corpus.processes")
    if corpus.source == "c4":
        if corpus.deduplicate == "exact":
            yield _message(
                config,
                "corpus.deduplicate",
                "corpus.source='c4' has too many documents to compare before they are drawn",
                "set --config.corpus.deduplicate=near, which also drops identical texts, or none",
            )
    elif corpus.source == "docstrings":
        if corpus.path:
            yield _message(
                config,
                "corpus.path",
                "must be empty for corpus.source='docstrings'",
                "set --config.corpus.source to text, jsonl, csv or parquet",
            )
    elif not corpus.path:
        yield _message(
            config,
            "corpus.path",
            f"must be a file, a folder or a glob for corpus.source={corpus.source!r}",
            "set --config.corpus.path",
        )


def _imported(config: Config) -> Iterator[str]:
    if not config.corpus.path:
        yield _message(
            config,
            "corpus.source",
            "only `lm-mia import` sets this value",
            "choose another source, or run `lm-mia import FILE --workdir=DIR`",
        )
    for field in ("extract.samples", "score.token_samples", "score.at_steps", "score.at_epochs"):
        if _get(config, field):
            yield _message(
                config, field, "needs the models themselves, but only their losses were imported"
            )


def _tokenizer(config: Config) -> Iterator[str]:
    yield from _positive(config, "tokenizer.vocab_size")
    yield from _not_negative(config, "tokenizer.documents")
    tokenizer = config.tokenizer
    if config.corpus.source == "c4" and not tokenizer.path and tokenizer.documents == 0:
        yield _message(
            config,
            "tokenizer.documents",
            "corpus.source='c4' has too many documents to train a vocabulary on all of them",
            "try --config.tokenizer.documents=200000, or set --config.tokenizer.path",
        )


def _population(config: Config) -> Iterator[str]:
    population = config.population
    samples, length_tokens = population.samples, population.length_tokens
    yield from _positive(
        config,
        "population.samples",
        "population.frequency_samples",
        "population.group_prefix_tokens",
    )
    yield from _not_negative(
        config,
        "population.seed",
        "population.distinct_prefix_tokens",
        "population.validation_samples",
        "population.random_samples",
    )
    if samples > 0 and samples % 2:
        yield _message(
            config,
            "population.samples",
            "must be even, since models are trained on half of the samples",
            f"try --config.population.samples={samples + 1}",
        )
    if length_tokens < 3:
        yield _message(
            config, "population.length_tokens", "must be 3 or larger (<bos>, one token, <eos>)"
        )
    if population.distinct_prefix_tokens > max(length_tokens, 0):
        yield _message(
            config,
            "population.distinct_prefix_tokens",
            f"must be at most population.length_tokens={length_tokens}",
        )
    if 0 < samples <= population.random_samples:
        yield _message(
            config,
            "population.random_samples",
            f"must be less than population.samples={samples}, since random samples are as long as the median of the "
            "others",
            f"try --config.population.random_samples={samples // 4}",
        )
    if config.corpus.split_documents and population.random_samples > 0:
        yield _message(
            config,
            "population.random_samples",
            "must be 0 for corpus.split_documents=True, since random samples belong to no document",
            "set --config.corpus.split_documents=False",
        )


def _model(config: Config) -> Iterator[str]:
    yield from _positive(config, "model.layers", "model.width", "model.heads")
    width, heads = config.model.width, config.model.heads
    if heads > 0 and width > 0 and width % heads:
        # 1 divides every width, so the search ends even if the width is a typing error with many digits.
        lower = next(count for count in range(min(heads, width), 0, -1) if width % count == 0)
        higher = range(heads + 1, min(2 * heads - lower, width + 1))
        nearest = next((count for count in higher if width % count == 0), lower)
        yield _message(
            config,
            "model.heads",
            f"must divide model.width={width}",
            f"try --config.model.heads={nearest}",
        )
    yield from _kind(config)


def _kind(config: Config) -> Iterator[str]:
    model, default = config.model, schema.Model()
    yield from _init(config)
    yield from _name_or_file(config, "model.kind", [*schema.KIND_SETTINGS], "CLASS")
    yield from _not_negative(
        config, *(f"model.{n}" for n in ("kv_heads", "mlp_width", "head_width"))
    )
    yield from _positive(config, "model.rope_theta", "model.norm_epsilon")
    if len(model.rope_scaling) not in (0, 1, 4) or any(x <= 0 for x in model.rope_scaling):
        rule = "must be empty, one factor, or the four numbers of Llama 3, all above 0"
        yield _message(
            config, "model.rope_scaling", rule, "try --config.model.rope_scaling=8,1,4,8192"
        )
    if model.kind in schema.KIND_SETTINGS:
        names = dict.fromkeys(name for read in schema.KIND_SETTINGS.values() for name in read)
        for name in names:
            readers = [kind for kind, read in schema.KIND_SETTINGS.items() if name in read]
            if model.kind not in readers and getattr(model, name) != getattr(default, name):
                yield _message(
                    config,
                    f"model.{name}",
                    f"is not read by model.kind={model.kind}",
                    f"leave it out, or set --config.model.kind to {' or '.join(readers)}",
                )
    if model.kv_heads > 0 and model.heads > 0 and model.heads % model.kv_heads:
        yield _message(
            config,
            "model.kv_heads",
            f"must divide model.heads={model.heads}",
            "try --config.model.kv_heads=1",
        )
    head_width = model.head_width or model.width // max(model.heads, 1)
    if model.kind == "llama" and model.heads > 0 and head_width % 2:
        yield _message(
            config,
            "model.heads",
            "must make the width of a head even, since rotary positions rotate pairs",
            "give fewer or more heads",
        )


def _optimizer(config: Config) -> Iterator[str]:
    yield from _positive(config, "optimizer.peak_learning_rate", "optimizer.eps")
    yield from _not_negative(
        config,
        "optimizer.init_learning_rate",
        "optimizer.final_learning_rate",
        "optimizer.warmup_steps",
        "optimizer.weight_decay",
        "optimizer.clip_norm",
    )
    if _has_steps(config) and config.optimizer.warmup_steps >= schema.total_steps(config):
        steps = schema.total_steps(config)
        yield _message(
            config,
            "optimizer.warmup_steps",
            f"must be less than the {steps} training steps of a model, which follow from population.samples, "
            "train.batch_size and train.epochs",
            f"try --config.optimizer.warmup_steps={steps // 10}",
        )
    yield from _name_or_file(config, "optimizer.name", [*schema.OPTIMIZER_PARAMETERS], "FUNCTION")
    yield from _optimizer_parameters(config)


def _init(config: Config) -> Iterator[str]:
    init, source = config.model.init, config.model.init_source
    if hf_checkpoint.is_checkpoint(init) and not source:
        try:
            schema.checkpoint_fields(config)
            hf_checkpoint.digest(init)
        except hf_checkpoint.CheckpointError as error:
            yield f"model.init={init}: {error}"
    elif init != "random" and not hf_checkpoint.is_checkpoint(init):
        rule = "must be random or hf:FOLDER"
        yield _message(config, "model.init", rule, "give the folder of a checkpoint as hf:FOLDER")
    elif source and not hf_checkpoint.is_checkpoint(init):
        rule = "is filled in for model.init=hf:FOLDER, and must be empty otherwise"
        yield _message(config, "model.init_source", rule, "leave it out")


def _name_or_file(config: Config, field: str, names: Collection[str], inside: str) -> Iterator[str]:
    """Checks a field that is one of some names, or ``FILE.py:NAME``, whose source has a digest of its own."""
    name, source = _get(config, field), schema.SOURCES[field]
    if user_files.is_in_file(name):
        if not _get(config, source):
            yield f"{field}={name}: {user_files.problem(name)}"
        return
    if name not in names:
        similar = difflib.get_close_matches(name.lower(), names, 1)
        remedy = f"did you mean {similar[0]}?" if similar else "see lm-mia fields"
        rule = f"must be one of {', '.join(names)}, or FILE.py:{inside}"
        yield _message(config, field, rule, remedy)
    if _get(config, source):
        rule = f"is filled in for {field}=FILE.py:{inside}, and must be empty otherwise"
        yield _message(config, source, rule, "leave it out")


def _optimizer_parameters(config: Config) -> Iterator[str]:
    optimizer, default = config.optimizer, schema.Optimizer()
    parameters = schema.OPTIMIZER_PARAMETERS
    # Which fields a user's function reads is known when it is loaded; see `lm_mia.train.optimizer.check_optimizer`.
    if optimizer.name in parameters:
        for name in dict.fromkeys(name for names in parameters.values() for name in names):
            if name in parameters[optimizer.name] or _get(config, f"optimizer.{name}") == getattr(
                default, name
            ):
                continue
            readers = " or ".join(reader for reader, names in parameters.items() if name in names)
            yield _message(
                config,
                f"optimizer.{name}",
                f"is not read by optimizer.name={optimizer.name}",
                f"leave it out, or set --config.optimizer.name to {readers}",
            )
    for name in ("b1", "b2", "momentum"):
        if not 0 <= getattr(optimizer, name) < 1:
            yield _message(config, f"optimizer.{name}", "must be at least 0 and below 1")
    if optimizer.newton_schulz_steps < 1:
        yield _message(config, "optimizer.newton_schulz_steps", "must be 1 or larger")
    yield from _not_negative(config, "optimizer.consistent_rms")
    for pattern in optimizer.weight_decay_mask:
        yield from _regular_expression(config, "optimizer.weight_decay_mask", pattern)
    for pattern, multiplier in optimizer.learning_rate_multipliers:
        yield from _regular_expression(config, "optimizer.learning_rate_multipliers", pattern)
        if not 0 <= multiplier < math.inf:
            yield _message(
                config,
                "optimizer.learning_rate_multipliers",
                f"the multiplier of {pattern!r} must be a finite number, 0 or larger",
            )


def _regular_expression(config: Config, field: str, pattern: str) -> Iterator[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield _message(
            config, field, f"{pattern!r} is no regular expression of Python: {error}", "correct it"
        )


def _train(config: Config) -> Iterator[str]:
    train, size = config.train, schema.training_samples(config)
    if train.subset == "given":
        yield _message(
            config,
            "train.subset",
            "is only for imported losses, whose models were trained elsewhere",
            "choose exact, bernoulli or balanced",
        )
    yield from _positive(config, "train.batch_size", "train.epochs", "train.checkpoint_minutes")
    yield from _not_negative(config, "train.workers", "train.validations", "train.canaries")
    if 1 <= size < train.batch_size:
        formula = "N = population.samples / 2"
        if train.canaries:
            formula = "population.samples - train.canaries / 2"
        yield _message(
            config,
            "train.batch_size",
            f"must be at most {formula} = {size}, the size of a training subset",
            f"try --config.train.batch_size={max(size // 8, 1)}",
        )
    yield from _canaries(config)
    if config.compute.devices_per_model == 0 and train.workers > 1:
        yield _message(
            config,
            "train.workers",
            "must be 0 or 1 for compute.devices_per_model=0, where one process uses all devices of a machine",
            "set --config.train.workers=0",
        )
    if train.validations > 0 and config.population.validation_samples <= 0:
        yield _message(
            config,
            "train.validations",
            "requires held-out samples",
            "try --config.population.validation_samples=1024",
        )
    if _has_steps(config) and train.validations > schema.total_steps(config):
        yield _message(
            config,
            "train.validations",
            f"must be at most the {schema.total_steps(config)} training steps of a model",
        )
    if _has_duplicates(train.trackers):
        yield _message(config, "train.trackers", "must have no duplicates")


def _canaries(config: Config) -> Iterator[str]:
    canaries, samples, subset = (
        config.train.canaries,
        config.population.samples,
        config.train.subset,
    )
    if canaries <= 0:
        return
    if not 2 <= canaries <= max(samples, 2):
        yield _message(
            config,
            "train.canaries",
            f"must be 0 (all samples are canaries), or from 2 to population.samples={samples}",
        )
    elif canaries % 2 and subset != "bernoulli":
        yield _message(
            config,
            "train.canaries",
            f"must be even for train.subset={subset!r}, which trains each model on half of the canaries",
            f"try --config.train.canaries={canaries - 1}",
        )
    if config.corpus.split_documents:
        yield _message(
            config,
            "train.canaries",
            "must be 0 for corpus.split_documents=True, since every model would be trained on other pieces of the "
            "canaries' documents",
            "set --config.corpus.split_documents=False",
        )


def _compute(config: Config) -> Iterator[str]:
    yield from _not_negative(config, "compute.micro_batch_size")
    devices, batch_size = config.compute.devices_per_model, config.train.batch_size
    if devices != "auto":
        if devices < 0:
            yield _message(
                config,
                "compute.devices_per_model",
                "must be auto, or a number of devices from 0 (all devices of the job)",
                "set --config.compute.devices_per_model=auto",
            )
        if devices > batch_size > 0:
            yield _message(
                config,
                "compute.devices_per_model",
                f"must be at most train.batch_size={batch_size}, since each device needs a sample of a batch",
                f"set --config.compute.devices_per_model={batch_size}",
            )
    model = config.model
    # If the heads do not divide the width, which has a message of its own, assume a width that is always supported.
    head_width = 8
    if model.heads > 0 and model.width > 0 and model.width % model.heads == 0:
        head_width = model.width // model.heads
    unmet = unmet_attention_requirements(
        config.compute.attention, model.dtype, head_width, config.population.length_tokens
    )
    if unmet:
        yield _message(
            config,
            "compute.attention",
            "; ".join(unmet),
            "set --config.compute.attention=auto",
        )


def _score(config: Config) -> Iterator[str]:
    yield from _not_negative(config, "score.micro_batch_size")
    if _has_duplicates(config.score.statistics):
        yield _message(config, "score.statistics", "must have no duplicates")
    if _has_steps(config):
        yield from _score_points(config)
    yield from _token_samples(config)


def _score_points(config: Config) -> Iterator[str]:
    """Yields the broken rules of ``score.at_steps`` and ``score.at_epochs``."""
    steps, epochs = schema.total_steps(config), config.train.epochs
    for field, end in (("score.at_steps", steps), ("score.at_epochs", epochs)):
        points = _get(config, field)
        if _has_duplicates(points) or not all(0 < point < end for point in points):
            yield _message(
                config,
                field,
                f"must be distinct numbers above 0 and below {end}, the end of training, which is always scored",
            )
        elif field == "score.at_epochs":
            rounded = schema.epoch_steps(config)
            if steps in rounded or _has_duplicates(rounded):
                yield _message(
                    config,
                    field,
                    f"is rounded to steps {', '.join(map(str, rounded))}, which must be distinct and below {steps}, "
                    "the end of training, which is always scored",
                )
        if points and config.train.subset == "bernoulli":
            yield _message(
                config,
                field,
                "must be empty for train.subset='bernoulli', where models differ in the number of steps",
                "set --config.train.subset=exact",
            )


def _token_samples(config: Config) -> Iterator[str]:
    ids, samples = collections.Counter(config.score.token_samples), config.population.samples
    invalid = [i for i, count in ids.items() if count > 1 or not 0 <= i < samples]
    if not invalid and len(ids) <= _MAX_TOKEN_SAMPLES:
        return
    listed = ", ".join(map(str, invalid[:5])) + (", ..." if len(invalid) > 5 else "")
    yield (
        f"score.token_samples: {listed or f'{len(ids)} samples'}: must be at most {_MAX_TOKEN_SAMPLES} distinct sample "
        f"ids, from 0 to population.samples - 1 = {samples - 1}"
    )


def _attack(config: Config) -> Iterator[str]:
    if _has_steps(config):
        yield from _attack_step(config)
    yield from _attacked_models(config)
    yield from _attack_names(config)
    yield from _rates(config)
    yield from _rmia(config)
    yield from _resampling(config)
    yield from _zero_run(config)
    yield from _archetypes(config)


def _attack_step(config: Config) -> Iterator[str]:
    step, end = config.attack.step, schema.total_steps(config)
    rule = "must be 0 (the end of training) or a step at which models are scored, "
    if all(0 < epochs < config.train.epochs for epochs in config.score.at_epochs):
        scored = sorted({*config.score.at_steps, *schema.epoch_steps(config)})
        scored = [point for point in scored if 0 < point < end]
        if not scored and step:
            yield _message(
                config,
                "attack.step",
                "must be 0 (the end of training), since models are not scored at other steps",
                "leave it out" if _is_imported(config) else "add the step to score.at_steps",
            )
        elif step not in (0, *scored):
            yield _message(config, "attack.step", rule + " or ".join(map(str, scored)))
    elif (
        not 0 <= step < end
    ):  # an invalid score.at_epochs may have been meant to include any other step
        yield _message(config, "attack.step", f"{rule}below {end}")


def _attacked_models(config: Config) -> Iterator[str]:
    attack, is_balanced = config.attack, config.train.subset == "balanced"
    has_references = not schema.has_no_references(config)
    # Of imported models, the source may say that one of few is attacked.
    fewest = _MIN_REFERENCES if attack.replicas or not _is_imported(config) else 1
    if attack.references < fewest and has_references:
        yield _message(
            config,
            "attack.references",
            f"must be {fewest} or more, for 2 IN and 2 OUT losses per sample",
        )
    design = "--subset=balanced" if _is_imported(config) else "train.subset='balanced'"
    if is_balanced and attack.references % 2:
        yield _message(
            config,
            "attack.references",
            f"must be even for {design}, where references come in pairs",
        )
    leaves_enough = 0 <= attack.targets <= attack.references - fewest
    if attack.targets and has_references and not leaves_enough:
        yield _message(
            config,
            "attack.targets",
            f"must leave at least {fewest} of attack.references={attack.references}"
            if not _is_imported(config)
            else f"must leave at least {fewest} of the {attack.references} models that are no replicas",
        )
    if is_balanced and attack.targets % 2:
        yield _message(
            config,
            "attack.targets",
            f"must be even for {design}, where references come in pairs",
        )
    if attack.replicas < 2 and attack.replicas != 0:
        yield _message(
            config,
            "attack.replicas",
            "must be 0 (no replicas) or at least 2, since a flip rate needs two decisions",
        )
    yield from _crossed_models(config)


def _crossed_models(config: Config) -> Iterator[str]:
    attack = config.attack
    if attack.replica_inits != 1 and _is_imported(config):
        yield _message(
            config,
            "attack.replica_inits",
            "must be 1, since no models of other initializations can be imported",
            "leave it out",
        )
        return
    if attack.replica_inits < 1:
        yield _message(config, "attack.replica_inits", "must be 1 or larger")
    if attack.replica_inits > 1 and not attack.resample_references:
        yield _message(
            config,
            "attack.replica_inits",
            "needs sets of references, since the effect of the references is compared with that of the initialization",
            f"set --config.attack.resample_references to {_size_of_sets(config)}",
        )
    if attack.replica_inits > 1 and not 2 <= attack.orders_per_init <= attack.replicas:
        yield _message(
            config,
            "attack.orders_per_init",
            f"must be from 2 to attack.replicas={attack.replicas}, whose orders are used",
        )


def _attack_names(config: Config) -> Iterator[str]:
    """Yields rules that hold for any attacks; `lm_mia.attacks.registry.problems` knows those of each attack."""
    attacks = config.attack.attacks
    if schema.has_no_references(config):
        if not attacks or _has_duplicates(attacks):
            yield _message(config, "attack.attacks", "must have an attack, and no duplicates")
    elif "lira_online" not in attacks or _has_duplicates(attacks):
        yield _message(
            config,
            "attack.attacks",
            "must include lira_online, whose decisions the tables show, and have no duplicates",
        )


def _rates(config: Config) -> Iterator[str]:
    attack = config.attack
    if not 0 < attack.alpha < 1:
        yield _message(config, "attack.alpha", "must be between 0 and 1")
    if not 0 < attack.delta < 1:
        yield _message(
            config,
            "attack.delta",
            "must be between 0 and 1, both excluded",
            "try --config.attack.delta=1e-5",
        )
    if (
        not attack.fprs
        or not all(0 < rate <= 1 for rate in attack.fprs)
        or list(attack.fprs) != sorted(attack.fprs)
        or _has_duplicates([f"{rate:g}" for rate in attack.fprs])
    ):
        yield _message(
            config,
            "attack.fprs",
            "must be rates above 0 and at most 1, in ascending order, distinct in their first 6 digits",
        )
    elif max(attack.fprs) < schema.lowest_fpr(schema.num_canaries(config)):
        yield _message(config, "attack.fprs", rule_about_lowest_fpr(config), "add a higher rate")
    elif attack.focus_fpr not in ("auto", *attack.fprs):
        yield _message(
            config, "attack.focus_fpr", f"must be auto or one of attack.fprs={attack.fprs}"
        )
    if (
        not attack.priors
        or not all(0 < prior < 1 for prior in attack.priors)
        or _has_duplicates([f"{prior:g}" for prior in attack.priors])
    ):
        yield _message(
            config,
            "attack.priors",
            "must be probabilities between 0 and 1, both excluded, distinct in their first 6 digits",
            "try --config.attack.priors=0.5,0.1",
        )
    if not 0 <= attack.band[0] < attack.band[1] <= 1:
        yield _message(config, "attack.band", "must be two rates in [0, 1], the lower one first")
    if attack.bootstraps < 0:
        yield _message(config, "attack.bootstraps", "must be 0 or larger")


def _rmia(config: Config) -> Iterator[str]:
    attack = config.attack
    if attack.rmia_samples < 1:
        yield _message(config, "attack.rmia_samples", "must be 1 or larger")
    yield from _positive(config, "attack.rmia_gamma")
    if attack.rmia_a != "tuned" and not 0 <= attack.rmia_a <= 1:
        yield _message(config, "attack.rmia_a", "must be in [0, 1], or tuned")


def _resampling(config: Config) -> Iterator[str]:
    size, references = config.attack.resample_references, config.attack.references
    if size and references < 2 * _MIN_REFERENCES:
        yield _message(
            config,
            "attack.resample_references",
            f"needs 8 or more references instead of {references}, for two disjoint sets of 4, the smallest size",
            f"set it to 0, or {'import more models' if _is_imported(config) else 'increase attack.references'}",
        )
    elif size and (size % 2 or not _MIN_REFERENCES <= size <= references // 2):
        yield _message(
            config,
            "attack.resample_references",
            f"must be 0, or {_size_of_sets(config)}; sets are made of pairs",
        )


def _size_of_sets(config: Config) -> str:
    """Describes the numbers of references that a set may have."""
    references = config.attack.references
    if references < 2 * _MIN_REFERENCES:
        return "4, and --config.attack.references to 8 or more"
    name = "half of the references," if _is_imported(config) else "attack.references / 2 ="
    return f"an even number from 4 to {name} {references // 2}"


def _zero_run(config: Config) -> Iterator[str]:
    attack = config.attack
    if _has_duplicates(attack.zero_run):
        yield _message(config, "attack.zero_run", "must have no duplicates")
    strengths = attack.zero_run_strengths
    if (
        _has_duplicates(strengths)
        or not strengths
        or not all(0 <= strength <= _MAX_STRENGTH for strength in strengths)
    ):
        yield _message(
            config,
            "attack.zero_run_strengths",
            f"must be distinct numbers from 0 (no shift) to {_MAX_STRENGTH}",
        )


def _archetypes(config: Config) -> Iterator[str]:
    attack = config.attack
    if not 0 <= attack.ambiguous_separation <= attack.clear_separation < math.inf:
        yield _message(
            config,
            "attack.ambiguous_separation",
            f"must be between 0 and attack.clear_separation={attack.clear_separation}",
        )
    for name in ("stable_flip", "stable_member_flip"):
        if not 0 <= getattr(attack, name) <= 0.5:
            yield _message(config, f"attack.{name}", "must be in [0, 0.5]")


def _extract(config: Config) -> Iterator[str]:
    extract, length = config.extract, config.population.length_tokens
    for name, least in (
        ("samples", 0),
        ("prefix_tokens", 1),
        ("suffix_tokens", 1),
        ("top_k", 0),
        ("generations", 0),
    ):
        if getattr(extract, name) < least:
            yield _message(config, f"extract.{name}", f"must be {least} or larger")
    if extract.samples and extract.prefix_tokens + extract.suffix_tokens > length:
        yield _message(
            config,
            "extract.suffix_tokens",
            f"plus extract.prefix_tokens={extract.prefix_tokens} must be at most population.length_tokens={length}",
            f"try --config.extract.prefix_tokens={length // 2} --config.extract.suffix_tokens={length // 2}",
        )
    if not (extract.temperature == 0 or 1e-6 <= extract.temperature < math.inf):
        yield _message(
            config, "extract.temperature", "must be 0 (greedy) or a finite number of at least 1e-6"
        )
    if extract.samples and extract.top_k > max(config.tokenizer.vocab_size, 0):
        yield _message(
            config,
            "extract.top_k",
            f"must be at most tokenizer.vocab_size={config.tokenizer.vocab_size}",
            "set --config.extract.top_k=0 to sample from all pieces",
        )
    if not 0 < extract.top_p <= 1:
        yield _message(config, "extract.top_p", "must be above 0 and at most 1")
    if extract.written_tokens and extract.written_tokens < extract.suffix_tokens:
        yield _message(
            config,
            "extract.written_tokens",
            f"must be 0, or at least extract.suffix_tokens={extract.suffix_tokens}",
        )
    if (
        extract.samples
        and extract.written_tokens
        and extract.prefix_tokens + extract.written_tokens > length
    ):
        yield _message(
            config,
            "extract.written_tokens",
            f"plus extract.prefix_tokens={extract.prefix_tokens} must be at most population.length_tokens={length}",
        )


def _name(config: Config) -> Iterator[str]:
    if not _NAME.fullmatch(config.name):
        yield _message(
            config,
            "name",
            "must be at most 80 letters, digits and '._+=,-', and begin with a letter or digit",
        )


def _is_imported(config: Config) -> bool:
    """Returns whether the models were trained elsewhere, so that only fields of the attack can be set."""
    return config.corpus.source == "imported"


def _positive(config: Config, *fields: str) -> Iterator[str]:
    for field in fields:
        if not 0 < _get(config, field) < math.inf:
            yield _message(config, field, "must be a finite number larger than 0")


def _not_negative(config: Config, *fields: str) -> Iterator[str]:
    for field in fields:
        if not 0 <= _get(config, field) < math.inf:
            yield _message(config, field, "must be a finite number, 0 or larger")


def _has_steps(config: Config) -> bool:
    """Returns whether the number of training steps is defined."""
    train = config.train
    return min(train.batch_size, train.epochs, schema.training_samples(config)) > 0


def _has_duplicates(values: Any) -> bool:
    return len(set(values)) < len(values)


def _message(config: Config, field: str, rule: str, remedy: str = "") -> str:
    return f"{field}={_get(config, field)!r}: {rule}" + (f"; {remedy}" if remedy else "")


def _get(config: Config, field: str) -> Any:
    """Returns the value of a field such as ``model.layers``."""
    value: Any = config
    for part in field.split("."):
        value = getattr(value, part)
    return value
