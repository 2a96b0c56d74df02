"""The configuration: frozen dataclasses, their rules, and what makes two of them the same run."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where documents come from."""

    source: Literal["docstrings", "text", "jsonl", "parquet"] = "docstrings"
    """docstrings: of the pinned dependencies, no download; text: one .txt a document; jsonl: .jsonl or .jsonl.gz."""
    path: str = ""
    """A file, a folder or a glob; empty for docstrings."""
    column: str = "text"
    """The text column of jsonl and parquet files."""
    min_chars: int = 200
    """Shorter documents are left out."""
    deduplicate: Literal["near", "exact"] = "near"
    """near: one document of each cluster that shares half of its 8-word shingles; exact: equal texts only."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The sentencepiece vocabulary: trained on the corpus, or given."""

    path: str = ""
    """A sentencepiece .model file with pad 0, eos 1, bos 2, unk 3; empty: train one on the corpus."""
    vocab_size: int = 32_000
    """Pieces in the vocabulary; with a path, what the file holds."""


@dataclasses.dataclass(frozen=True)
class Population:
    """The 2N samples that every row trains on a half of and is scored on whole."""

    samples: int = 2**20
    """2N."""
    seed: int = 0
    """Which documents are drawn, and in which order they are numbered."""
    length_tokens: int = 1024
    """Samples are cut at this many tokens, <bos> and <eos> included."""


@dataclasses.dataclass(frozen=True)
class Model:
    """GPT-2-like decoder-only transformer."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations; parameters, softmax, loss and optimizer are float32."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW, linear warm-up, cosine decay (StrongMIA Appendix G)."""

    init_learning_rate: float = 1e-7
    peak_learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    warmup_steps: int = 750
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class Train:
    """How a row is trained."""

    subset: Literal["exact", "bernoulli", "balanced"] = "exact"
    """exact: N of 2N; bernoulli: each sample with probability 1/2; balanced: exact, in complementary pairs."""
    batch_size: int = 128
    """Samples a step."""
    epochs: int = 1
    checkpoint_minutes: float = 10.0
    """Time between checkpoints inside a row; the last state is always saved."""
    workers: int = 0
    """Processes that share the rows; 0: one a CPU core, one where there is an accelerator."""


@dataclasses.dataclass(frozen=True)
class Score:
    """How rows are scored."""

    batch_size: int = 128
    """Samples a call."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """Which rows exist, and which decisions are reported."""

    references: int = 128
    """Rows with subsets of their own, used to learn IN and OUT distributions."""
    replicas: int = 128
    """Targets that share one subset and one initialisation and differ in order_seed."""
    fprs: tuple[float, ...] = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    """False positive rates at which thresholds are calibrated."""
    focus_fpr: float = 0.05
    """The one of fprs that single-operating-point figures show."""
    alpha: float = 0.05
    """Level of the exact binomial test behind the coin-flip cutoff."""
    variance: Literal["per_sample", "pooled"] = "per_sample"
    """LiRA's IN and OUT variances: of each sample, or one of each for all samples (for few references)."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    corpus: Corpus = Corpus()
    tokenizer: Tokenizer = Tokenizer()
    population: Population = Population()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    train: Train = Train()
    score: Score = Score()
    attack: Attack = Attack()
    report: str = "analysis/report.py"
    """The script that `lm-mia report` runs, relative to the checkout, else to the current folder."""


# Fields that say how fast, how many or how shown, never what a row is: they may change in a used workdir.
_FREE = ("train.checkpoint_minutes", "train.workers", "attack.", "report")


def problems(config: Config) -> list[str]:
    """Every broken rule of a config, each as ``field=value: the rule; the way out``; empty if it is sound."""
    found: list[str] = []

    def need(ok: bool, field: str, rule: str, way_out: str = "") -> None:
        if not ok:
            tail = f"; {way_out}" if way_out else ""
            found.append(f"{field}={_get(config, field)!r}: {rule}{tail}")

    c = config
    samples, half = c.population.samples, c.population.samples // 2
    positive = (
        *("corpus.min_chars", "tokenizer.vocab_size", "population.samples", "model.layers"),
        *("model.width", "model.heads", "optimizer.peak_learning_rate", "optimizer.clip_norm"),
        *("train.batch_size", "train.epochs", "train.checkpoint_minutes", "score.batch_size"),
    )
    not_negative = (
        *("population.seed", "optimizer.init_learning_rate", "optimizer.final_learning_rate"),
        *("optimizer.warmup_steps", "optimizer.weight_decay", "train.workers"),
    )
    for field in positive:
        need(0 < _get(c, field) < math.inf, field, "must be a finite number larger than 0")
    for field in not_negative:
        need(0 <= _get(c, field) < math.inf, field, "must be a finite number, 0 or larger")
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
    if c.corpus.source == "docstrings":
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
        steps = c.train.epochs * -(-half // c.train.batch_size)
        need(
            c.optimizer.warmup_steps < steps,
            "optimizer.warmup_steps",
            f"must be less than the {steps} steps of a row, which population.samples, train.batch_size and "
            "train.epochs make",
            f"try --config.optimizer.warmup_steps={steps // 10}",
        )
    if c.train.subset == "balanced":
        need(
            c.attack.references % 2 == 0,
            "attack.references",
            "must be even for train.subset='balanced' (pairs)",
        )
    need(
        c.attack.references >= 4,
        "attack.references",
        "must be 4 or more, for 2 IN and 2 OUT of a sample",
    )
    need(c.attack.replicas >= 2, "attack.replicas", "must be 2 or more, for a flip rate")
    need(0 < c.attack.alpha < 1, "attack.alpha", "must lie between 0 and 1")
    fprs = c.attack.fprs
    need(
        bool(fprs)
        and all(0 < f < 1 for f in fprs)
        and list(fprs) == sorted(fprs)
        and len({f"{f:g}" for f in fprs}) == len(fprs),
        "attack.fprs",
        "must be rates between 0 and 1 in ascending order, distinct in their first 6 digits",
    )
    need(c.attack.focus_fpr in fprs, "attack.focus_fpr", f"must be one of attack.fprs={fprs}")
    return found


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested plain values, ready for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def differences(old: dict[str, Any], config: Config) -> list[str]:
    """Fields, other than those free to change, in which a stored config differs: ``field: old -> new``."""
    new, was = dict(_flatten(to_dict(config))), dict(_flatten(old))
    return [
        f"{k}: {was.get(k, 'absent')!r} -> {new.get(k, 'absent')!r}"
        for k in sorted(new.keys() | was.keys())
        if not k.startswith(_FREE) and was.get(k) != new.get(k)
    ]


def recipe_hash(config: Config, population_sha256: str) -> str:
    """Eight hex digits that name everything that determines a row except its seeds."""
    parts = {
        k: v
        for k, v in _flatten(to_dict(config))
        if k.startswith(("model.", "optimizer.", "train.", "population.length_tokens"))
    }
    parts = {k: v for k, v in parts.items() if not k.startswith(_FREE)} | {
        "population": population_sha256
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def _get(config: Config, field: str) -> Any:
    value: Any = config
    for part in field.split("."):
        value = getattr(value, part)
    return value


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
