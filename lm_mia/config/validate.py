"""The rules of a configuration: ranges of its fields, and pairs of fields that must fit together."""

import collections
import math
import re
from typing import Any

from lm_mia.config import schema

_TOKEN_SAMPLES = 2**13  # a window of the scorer: seconds


def problems(c: schema.Config) -> list[str]:
    """Every broken rule of a config, each as ``field=value: the rule; the way out``; empty if it is sound."""
    found: list[str] = []

    def need(ok: bool, field: str, rule: str, way_out: str = "") -> None:
        if not ok:
            tail = f"; {way_out}" if way_out else ""
            found.append(f"{field}={_get(c, field)!r}: {rule}{tail}")

    samples, half = c.population.samples, c.population.samples // 2
    positive = (
        "corpus.min_chars",
        "tokenizer.vocab_size",
        "population.samples",
        "model.layers",
        "population.frequency_samples",
        "population.group_prefix_tokens",
        "model.width",
        "model.heads",
        "optimizer.peak_learning_rate",
        "train.batch_size",
        "train.epochs",
        "train.checkpoint_minutes",
    )
    not_negative = (
        "population.seed",
        "optimizer.init_learning_rate",
        "optimizer.final_learning_rate",
        "optimizer.warmup_steps",
        "optimizer.weight_decay",
        "optimizer.clip_norm",
        "corpus.processes",
        "tokenizer.documents",
        "population.distinct_prefix_tokens",
        "population.validation_samples",
        "train.workers",
        "train.validations",
        "compute.micro_batch_size",
        "score.micro_batch_size",
    )
    for field in positive:
        need(0 < _get(c, field) < math.inf, field, "must be a finite number larger than 0")
    for field in not_negative:
        need(0 <= _get(c, field) < math.inf, field, "must be a finite number, 0 or larger")
    plain = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+=,-]{0,79})?")
    rule = "must be at most 80 letters, digits and '._+=,-', and begin with a letter or digit"
    need(bool(plain.fullmatch(c.name)), "name", rule)
    need(
        samples % 2 == 0 or samples < 0,
        "population.samples",
        "must be even (2N)",
        f"{samples + 1} is",
    )
    need(
        c.population.length_tokens >= 3,
        "population.length_tokens",
        "must be 3 or more (<bos>, a piece, <eos>)",
    )
    need(
        c.train.batch_size <= half or half < 1,
        "train.batch_size",
        f"must be at most N = population.samples / 2 = {half}, the size of a subset",
        f"try --config.train.batch_size={max(half // 8, 1)}",
    )
    if c.model.heads > 0 and c.model.width > 0 and c.model.width % c.model.heads:
        good = [h for h in range(1, c.model.width + 1) if c.model.width % h == 0]
        near = min(good, key=lambda h: abs(h - c.model.heads))
        rule = f"must divide model.width={c.model.width}"
        need(False, "model.heads", rule, f"try --config.model.heads={near}")
    m, head_width = c.model, 8  # which suits every attention: heads that do not fit are told above
    if m.heads > 0 and m.width > 0 and m.width % m.heads == 0:
        head_width = m.width // m.heads
    length, asked = c.population.length_tokens, c.compute.attention
    hurdles = unmet_attention_requirements(asked, m.dtype, head_width, length)
    need(
        not hurdles,
        "compute.attention",
        "; ".join(hurdles),
        "set --config.compute.attention=auto",
    )
    need(
        c.compute.sharding == "none" or c.train.workers <= 1,
        "train.workers",
        "must be 0 or 1 for compute.sharding='fsdp', where one process takes all devices",
        "set --config.train.workers=0",
    )
    need(
        c.population.distinct_prefix_tokens <= max(c.population.length_tokens, 0),
        "population.distinct_prefix_tokens",
        f"must be at most population.length_tokens={c.population.length_tokens}",
    )
    need(
        c.train.validations <= 0 or c.population.validation_samples > 0,
        "train.validations",
        "needs held-out samples",
        "try --config.population.validation_samples=1024",
    )
    need(
        len(set(c.train.trackers)) == len(c.train.trackers),
        "train.trackers",
        "must have no duplicates",
    )
    if c.corpus.source == "c4":
        need(
            c.corpus.deduplicate == "none",
            "corpus.deduplicate",
            "corpus.source='c4' has too many documents to compare",
            "set --config.corpus.deduplicate=none, and population.distinct_prefix_tokens if wanted",
        )
        need(
            bool(c.tokenizer.path) or c.tokenizer.documents > 0,
            "tokenizer.documents",
            "corpus.source='c4' has too many documents to train a vocabulary on all",
            "try --config.tokenizer.documents=1000000, or give tokenizer.path",
        )
    elif c.corpus.source == "docstrings":
        need(
            not c.corpus.path,
            "corpus.path",
            "corpus.source='docstrings' needs no path",
            "set --config.corpus.source=text, jsonl or parquet",
        )
    else:
        need(
            bool(c.corpus.path),
            "corpus.path",
            f"corpus.source={c.corpus.source!r} needs a file, a folder or a glob",
        )
    if min(c.train.batch_size, c.train.epochs, half) > 0:
        steps = schema.total_steps(c)
        need(
            c.optimizer.warmup_steps < steps,
            "optimizer.warmup_steps",
            f"must be less than the {steps} steps of a model, which population.samples, train.batch_size and "
            "train.epochs make",
            f"try --config.optimizer.warmup_steps={steps // 10}",
        )
        found += _point_problems(c, steps)
        need(
            c.train.validations <= steps,
            "train.validations",
            f"must be at most the {steps} steps of a model",
        )
    if c.train.subset == "balanced":
        need(
            c.attack.references % 2 == 0,
            "attack.references",
            "must be even for train.subset='balanced' (pairs)",
        )
    need(
        len(set(c.score.statistics)) == len(c.score.statistics),
        "score.statistics",
        "must have no duplicates",
    )
    found += tokens(c) + _attack_problems(c) + extraction(c)
    return found


def unmet_attention_requirements(
    kind: str, dtype: str, head_width: int, length_tokens: int
) -> list[str]:
    """Why a kind of ``compute.attention`` cannot compute such a model on any platform; empty if it can."""
    hurdles: dict[str, list[tuple[bool, str]]] = {
        "cudnn": [
            (dtype == "bfloat16", f"model.dtype=bfloat16, not {dtype}"),
            (head_width % 8 == 0, f"model.width / model.heads divisible by 8, not {head_width}"),
            (head_width <= 128, f"model.width / model.heads of at most 128, not {head_width}"),
            (length_tokens % 2 == 0, f"an even population.length_tokens, not {length_tokens}"),
        ],
        "pallas": [
            (
                length_tokens % 128 == 0,
                f"population.length_tokens divisible by 128, not {length_tokens}",
            ),
        ],
    }
    return [f"it needs {what}" for ok, what in hurdles.get(kind, []) if not ok]


def _point_problems(c: schema.Config, steps: int) -> list[str]:
    """What is wrong with the score points of a row of so many steps, and with the one that is attacked."""
    found: list[str] = []
    rule = "must lie above 0 and before the end ({}), which is always scored, without duplicates"
    for field, end in (("at_steps", steps), ("at_epochs", c.train.epochs)):
        asked, said = getattr(c.score, field), f"score.{field}={getattr(c.score, field)!r}: "
        if not all(0 < p < end for p in asked) or len(set(asked)) < len(asked):
            found.append(said + rule.format(end))
        elif field == "at_epochs":
            rounded = schema.epoch_steps(c)
            if steps in rounded or len(set(rounded)) < len(rounded):
                told = ", ".join(map(str, rounded))
                rounds = (
                    "must be steps before the end ({}), which is always scored, without duplicates"
                )
                found.append(f"{said}{rounds.format(steps)}; rounded they are {told}")
        if asked and c.train.subset == "bernoulli":
            found.append(
                f"{said}train.subset='bernoulli' gives every model a different number of steps; "
                "set --config.train.subset=exact"
            )
    said = f"attack.step={c.attack.step!r}: must be 0 (the end) or a score point, "
    if all(0 < p < c.train.epochs for p in c.score.at_epochs):
        there = [p for p in sorted({*c.score.at_steps, *schema.epoch_steps(c)}) if 0 < p < steps]
        if c.attack.step not in (0, *there):
            found.append(said + (" or ".join(map(str, there)) or "of which there are none"))
    elif not 0 <= c.attack.step < steps:  # any other may be what a broken at_epochs was meant to be
        found.append(f"{said}all before step {steps}")
    return found


def _attack_problems(c: schema.Config) -> list[str]:
    a = c.attack
    lacking = [
        n
        for n in a.attacks
        if schema.ATTACK_STATISTICS.get(n, "loss") not in (*c.score.statistics, "loss")
    ]
    rules: list[tuple[bool, str, str]] = [
        (a.references >= 4, "references", "must be 4 or more, for 2 IN and 2 OUT of a sample"),
        (
            a.targets == 0 or 0 < a.targets <= a.references - 4,
            "targets",
            f"must leave 4 of attack.references={a.references} or more",
        ),
        (
            c.train.subset != "balanced" or a.targets % 2 == 0,
            "targets",
            "must be even under train.subset='balanced', where references come in pairs",
        ),
        (
            a.replicas >= 2 or a.replicas == 0,
            "replicas",
            "must be 0 (no replicas) or at least 2, since a flip rate needs two decisions",
        ),
        (
            "lira_online" in a.attacks and len(set(a.attacks)) == len(a.attacks),
            "attacks",
            "must name lira_online, whose decisions the tables show, and have no duplicates",
        ),
        (
            not lacking,
            "attacks",
            f"for {', '.join(lacking)} the loss is not enough; set --config.score.statistics="
            + ",".join([*c.score.statistics, *(schema.ATTACK_STATISTICS[n] for n in lacking)]),
        ),
        (0 < a.alpha < 1, "alpha", "must lie between 0 and 1"),
        (
            bool(a.fprs)
            and all(0 < f <= 1 for f in a.fprs)
            and list(a.fprs) == sorted(a.fprs)
            and len({f"{f:g}" for f in a.fprs}) == len(a.fprs),
            "fprs",
            "must be rates above 0, at most 1, in ascending order, distinct in their first 6 digits",
        ),
        (a.focus_fpr in a.fprs, "focus_fpr", f"must be one of attack.fprs={a.fprs}"),
        (0 <= a.band[0] < a.band[1] <= 1, "band", "must be two rates in [0, 1], the lower first"),
        (a.rmia_samples >= 1, "rmia_samples", "must be 1 or larger"),
        (0 < a.rmia_gamma < math.inf, "rmia_gamma", "must be a finite number larger than 0"),
        (0 <= a.rmia_a <= 1, "rmia_a", "must lie in [0, 1]"),
        (a.bootstraps >= 0, "bootstraps", "must be 0 or larger"),
        (
            a.resample_references == 0
            or (4 <= a.resample_references <= a.references // 2 and a.resample_references % 2 == 0),
            "resample_references",
            f"must be 0, or even (sets are made of pairs) and from 4 to attack.references / 2 = {a.references // 2}",
        ),
        (
            not (a.leave_one_out and c.train.subset == "balanced"),
            "leave_one_out",
            "with train.subset='balanced' the other models reveal the subset of the one that is left out; set "
            "--config.train.subset=exact or bernoulli",
        ),
        (
            0 <= a.ambiguous_separation <= a.clear_separation < math.inf,
            "ambiguous_separation",
            f"must lie between 0 and attack.clear_separation={a.clear_separation}",
        ),
        (0 <= a.stable_flip <= 0.5, "stable_flip", "must lie in [0, 0.5]"),
    ]
    return [f"attack.{field}={getattr(a, field)!r}: {rule}" for ok, field, rule in rules if not ok]


def _get(c: schema.Config, field: str) -> Any:
    value: Any = c
    for part in field.split("."):
        value = getattr(value, part)
    return value


def tokens(c: schema.Config) -> list[str]:
    """What is wrong with the samples whose tokens are stored."""
    ids, samples = collections.Counter(c.score.token_samples), c.population.samples
    odd = [i for i, times in ids.items() if times > 1 or not 0 <= i < samples]
    if not odd and len(ids) <= _TOKEN_SAMPLES:
        return []
    said = ", ".join(map(str, odd[:5])) + (", ..." if odd[5:] else "") or f"{len(ids)} samples"
    rule = f"must be at most {_TOKEN_SAMPLES} ids of samples, from 0 to population.samples - 1"
    return [f"score.token_samples: {said}: {rule} = {samples - 1}, without duplicates"]


def extraction(c: schema.Config) -> list[str]:
    """What is wrong with what is to be extracted."""
    e, length = c.extract, c.population.length_tokens
    whole = e.prefix_tokens + e.suffix_tokens
    rules: list[tuple[bool, str, str]] = [
        (e.samples >= 0, "samples", "must be 0 or larger"),
        (e.prefix_tokens >= 1, "prefix_tokens", "must be 1 or larger"),
        (e.suffix_tokens >= 1, "suffix_tokens", "must be 1 or larger"),
        (
            not e.samples or whole <= length,
            "suffix_tokens",
            f"with extract.prefix_tokens={e.prefix_tokens} must be at most population.length_tokens={length}; try "
            f"--config.extract.prefix_tokens={length // 2} --config.extract.suffix_tokens={length // 2}",
        ),
        (
            e.temperature == 0 or 1e-6 <= e.temperature < math.inf,
            "temperature",
            "must be 0 (greedy), or a finite number of 1e-6 or larger",
        ),
        (e.top_k >= 0, "top_k", "must be 0 or larger"),
        (
            not e.samples or e.top_k <= max(c.tokenizer.vocab_size, 0),
            "top_k",
            f"must be at most tokenizer.vocab_size={c.tokenizer.vocab_size}; 0 for all pieces",
        ),
        (0 < e.top_p <= 1, "top_p", "must lie above 0 and be at most 1"),
        (e.generations >= 0, "generations", "must be 0 or larger"),
        (
            e.written_tokens == 0 or e.written_tokens >= e.suffix_tokens,
            "written_tokens",
            f"must be 0, or extract.suffix_tokens={e.suffix_tokens} or more",
        ),
        (
            not (e.samples and e.written_tokens) or e.prefix_tokens + e.written_tokens <= length,
            "written_tokens",
            f"with extract.prefix_tokens={e.prefix_tokens} must be at most population.length_tokens={length}",
        ),
    ]
    return [f"extract.{name}={getattr(e, name)!r}: {rule}" for ok, name, rule in rules if not ok]
