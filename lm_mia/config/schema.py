"""The configuration dataclasses, and the training steps at which models are scored.

Other packages and config files import these names from `lm_mia.config`.
"""

import dataclasses
import json
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where documents come from."""

    source: Literal["docstrings", "text", "jsonl", "parquet", "c4"] = "docstrings"
    """docstrings: of the pinned dependencies, no download; text: one .txt a document; jsonl: .jsonl or .jsonl.gz;
    c4: the TFDS build c4/en:3.1.0, read record by record."""
    path: str = ""
    """A file, a folder or a glob; empty for docstrings; for c4 the TFDS data folder (empty: TFDS's own default)."""
    column: str = "text"
    """The text column of jsonl and parquet files."""
    min_chars: int = 200
    """Shorter documents are left out."""
    deduplicate: Literal["near", "exact", "none"] = "near"
    """near: one document of each cluster that shares half of its 8-word shingles; exact: equal texts only; none: all
    documents stay, as they must where there are too many to compare (c4)."""
    processes: int = 0
    """Processes that tokenise; 0: one a CPU core."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The sentencepiece vocabulary: trained on the corpus, or given."""

    path: str = ""
    """A sentencepiece .model file with pad 0, eos 1, bos 2, unk 3; empty: train one on the corpus."""
    vocab_size: int = 32_000
    """Pieces in the vocabulary; with a path, what the file holds."""
    documents: int = 0
    """Documents, drawn by population.seed, that a vocabulary is trained on; 0: all."""


@dataclasses.dataclass(frozen=True)
class Population:
    """The 2N samples that every row trains on a half of and is scored on whole."""

    samples: int = 2**20
    """2N."""
    seed: int = 0
    """Which documents are drawn, and in which order they are numbered."""
    length_tokens: int = 1024
    """Samples are cut at this many tokens, <bos> and <eos> included."""
    distinct_prefix_tokens: int = 0
    """Samples that share their first so many tokens with one drawn earlier are left out (StrongMIA Figure 16)."""
    validation_samples: int = 0
    """Samples drawn after the 2N, which no row trains on, for the validation loss."""
    frequency_samples: int = 2**16
    """Samples, drawn by seed, over which document frequencies are counted, for TF-IDF (StrongMIA Figure 31); all, if
    they are fewer."""
    group_prefix_tokens: int = 50
    """Samples whose first so many tokens after <bos> are the same are of one group in the sample table."""


MODEL_SIZES = {  # layers, width; named by parameters without embeddings, 12 layers width^2
    "10M": (3, 512),
    "44M": (14, 512),
    "85M": (12, 768),
    "140M": (20, 768),
    "302M": (24, 1024),
    "425M": (15, 1536),
    "489M": (25, 1280),
    "509M": (18, 1536),
    "604M": (48, 1024),
    "1018M": (36, 1536),
}
HEAD_WIDTH = 64
Size = Literal[
    "10M", "44M", "85M", "140M", "302M", "425M", "489M", "509M", "604M", "1018M", "custom"
]


@dataclasses.dataclass(frozen=True)
class Model:
    """GPT-2-like decoder-only transformer."""

    size: Size = "85M"
    """Of StrongMIA, by parameters without embeddings; custom: whatever layers, width and heads say."""
    layers: int = 0
    """0: those of the size."""
    width: int = 0
    """0: that of the size."""
    heads: int = 0
    """0: one for every 64 of the width."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations; parameters, softmax, loss and optimizer are float32."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW, linear warm-up, then decay (StrongMIA Appendix G; Figure 15 changes one thing at a time)."""

    init_learning_rate: float = 1e-7
    peak_learning_rate: float = 3e-4
    final_learning_rate: float = 3e-5
    warmup_steps: int = 750
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0: never."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate goes from its peak to its final value; constant: it stays at its peak."""


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
    """Processes that share the rows; 0: one a CPU core, or one an accelerator."""
    validations: int = 0
    """How often, evenly over a row's training and the last time at its end, the validation loss is taken."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where metrics go beside metrics.jsonl."""


@dataclasses.dataclass(frozen=True)
class Compute:
    """How training is computed: what it costs, and the rounding of its sums, never what a row is."""

    sharding: Literal["none", "fsdp"] = "none"
    """none: each model is trained on one device, and several devices train different models at the same time. fsdp: all
    devices of all hosts of the job train one model together, and its parameters, moments and gradients are divided."""
    micro_batch_size: int = 0
    """Number of packed sequences that a device processes at once. 0: chosen automatically."""
    attention: Literal["auto", "xla", "cudnn", "pallas"] = "auto"
    """auto: cudnn on NVIDIA GPUs (bfloat16), pallas on TPUs, where the shapes allow, else xla; the log says which."""
    layers: Literal["auto", "unrolled", "scanned"] = "auto"
    """unrolled: compiled one by one, fastest; scanned: one for all; auto: unrolled where memory allows."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What a layer computes again in the backward pass; dots: all but matrix products; full: everything; auto: none
    for unrolled layers, full for scanned ones."""


Statistic = Literal[
    "summed_loss", "target_logit", "greedy_match", "min_k", "min_k_plus_plus", "lowercase_loss"
]


@dataclasses.dataclass(frozen=True)
class Score:
    """How rows are scored."""

    micro_batch_size: int = 0
    """Rows of ``population.length_tokens`` that a device takes at once; 0: about 1,024 tokens on CPUs, whose caches
    hold them, and 65,536 elsewhere."""
    at_epochs: tuple[float, ...] = ()
    """Rows are also scored after so many epochs, such as 0.5 or 1, beside their end."""
    at_steps: tuple[int, ...] = ()
    """Rows are also scored after so many steps."""
    statistics: tuple[Statistic, ...] = ()
    """What is stored of every sample beside its loss: for the attacks that need it, and for figures."""
    token_samples: tuple[int, ...] = ()
    """Ids of samples whose log-probability is stored token by token too."""


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

ATTACK_STATISTICS = {
    "min_k": "min_k",
    "min_k_plus_plus": "min_k_plus_plus",
    "lowercase": "lowercase_loss",
}
"""The statistic of score.statistics that an attack needs beside the loss."""


@dataclasses.dataclass(frozen=True)
class Extract:
    """Whether the samples that look most like members can be extracted from the first replica (Figure 7)."""

    samples: int = 0
    """So many with the highest scores of lira_online; 0: none."""
    prefix_tokens: int = 50
    """The first tokens of a sample, which are given, <bos> included."""
    suffix_tokens: int = 50
    """The tokens after them, which are asked for."""
    temperature: float = 1.0
    """Of the sampling scheme that is asked beside greedy and plain sampling; 0: greedy."""
    top_k: int = 40
    """Pieces that the scheme draws from; 0: all."""
    top_p: float = 1.0
    """And of these the likeliest, up to this sum."""
    generations: int = 1
    """Texts that are drawn for each sample under each scheme; of greedy there is one."""
    written_tokens: int = 0
    """Tokens of a text, in which the suffix is looked for; 0: as many as the suffix has."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """Which rows exist, how they are attacked, and which decisions are reported."""

    step: int = 0
    """The score point that is attacked: a step of score.at_steps or of score.at_epochs; 0: the end."""
    references: int = 128
    """Rows with subsets of their own, used to learn IN and OUT distributions."""
    targets: int = 0
    """So many of these, the last ones, are what figures attack with all others: targets of different subsets."""
    replicas: int = 128
    """Targets that share one subset and one initialisation and differ in order_seed; 0: no tables of decisions."""
    attacks: tuple[AttackName, ...] = (
        "lira_online",
        "lira_offline",
        "rmia",
        "rmia_offline",
        "rmia_simple",
        "reference_calibrated",
        "loss",
        "zlib",
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
    compute: Compute = Compute()
    score: Score = Score()
    attack: Attack = Attack()
    extract: Extract = Extract()
    name: str = ""
    """Name of the recipe and of its folder in the workdir; empty: the config file's name. Commands whose configs give a
    recipe the same name share its models."""
    figures: tuple[str, ...] = ()
    """Figures of papers on the report page, in this order: names such as fig01_references, or paths of Python files
    that define ``FIGURE``."""


def resolve(config: Config) -> Config:
    """The config with layers, width and heads as numbers, and the size that they have."""
    m = config.model
    layers, width = MODEL_SIZES.get(m.size, (0, 0))
    layers, width = m.layers or layers, m.width or width
    heads = m.heads or max(width // HEAD_WIDTH, 1)
    size: Any = next((name for name, of in MODEL_SIZES.items() if of == (layers, width)), "custom")
    model = dataclasses.replace(m, size=size, layers=layers, width=width, heads=heads)
    return dataclasses.replace(config, model=model)


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested plain values, ready for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def total_steps(c: Config) -> int:
    """Updates of a row with N members, from start to end; a Bernoulli subset may make more or fewer."""
    return c.train.epochs * _per_epoch(c)


def score_steps(c: Config) -> tuple[int, ...]:
    """Steps, ascending, after which rows are scored beside their end: ``score.at_steps`` and ``score.at_epochs``."""
    return tuple(sorted({*c.score.at_steps, *epoch_steps(c)} - {total_steps(c)}))


def epoch_steps(c: Config) -> list[int]:
    """The step that each of ``score.at_epochs`` is rounded to, the first at the earliest."""
    return [max(round(epochs * _per_epoch(c)), 1) for epochs in c.score.at_epochs]


def _per_epoch(c: Config) -> int:
    return -(-(c.population.samples // 2) // c.train.batch_size)
