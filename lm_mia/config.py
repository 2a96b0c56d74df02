"""The configuration: frozen dataclasses, and what makes two of them the same run."""

import dataclasses
import hashlib
import json
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
    statistics: tuple[Literal["min_k", "min_k_plus_plus", "lowercase_loss"], ...] = ()
    """What is stored of every sample beside its loss, for the attacks that need it."""


AttackName = Literal[
    "lira_online",
    "lira_offline",
    "rmia",
    "rmia_offline",
    "rmia_simple",
    "reference_calibrated",
    "loss",
    "zlib",
    "min_k",
    "min_k_plus_plus",
    "lowercase",
]

NEEDED = {
    "min_k": "min_k",
    "min_k_plus_plus": "min_k_plus_plus",
    "lowercase": "lowercase_loss",
}
"""The statistic of score.statistics that an attack needs beside the loss."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """Which rows exist, how they are attacked, and which decisions are reported."""

    references: int = 128
    """Rows with subsets of their own, used to learn IN and OUT distributions."""
    replicas: int = 128
    """Targets that share one subset and one initialisation and differ in order_seed."""
    attacks: tuple[AttackName, ...] = (
        *("lira_online", "lira_offline", "rmia", "rmia_offline", "rmia_simple"),
        *("reference_calibrated", "loss", "zlib"),
    )
    """What is compared; the tables of decisions are lira_online's."""
    fprs: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)
    """False positive rates at which thresholds are calibrated (StrongMIA Tables 1-6)."""
    focus_fpr: float = 0.01
    """The one of fprs that single-operating-point figures and the archetypes show."""
    alpha: float = 0.05
    """Level of the exact binomial test behind the coin-flip cutoff."""
    band: tuple[float, float] = (1e-4, 0.1)
    """False positive rates between which partial AUC and lift are taken."""
    variance: Literal["per_sample", "pooled"] = "per_sample"
    """LiRA's IN and OUT variances: of each sample, or one of each for all samples (for few references)."""
    finite_population: bool = False
    """Divide LiRA's variances by 1 - N/2N, since subsets of one population vary less (Reliability Eq. 28)."""
    rmia_samples: int = 10_000
    """|Z|: samples of the population, drawn by seed, that RMIA compares with; all, if they are fewer."""
    rmia_gamma: float = 1.0
    """How many times larger than a comparison's a sample's likelihood ratio must be, to count."""
    rmia_a: float = 1.0
    """Of offline RMIA: how close the mean over all references is taken to be to that over OUT ones."""
    bootstraps: int = 1000
    """Redrawn sets of samples behind the intervals of the first target; 0: no intervals."""
    resample_references: int = 0
    """References a set when one target is attacked with many sets of references; 0: not done."""
    leave_one_out: bool = False
    """Also attack every reference with all the others, for true-positive probabilities a sample."""
    clear_separation: float = 2.0
    """Clear archetypes: IN and OUT means at least so many standard deviations apart."""
    ambiguous_separation: float = 0.5
    """Ambiguous archetypes: at most so many."""
    stable_flip: float = 0.1
    """Stable archetypes: a flip rate of at most this."""


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
_FREE = ("train.checkpoint_minutes", "train.workers", "score.statistics", "attack.", "report")


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


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
