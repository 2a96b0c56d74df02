"""The configuration dataclasses, and the training steps at which models are scored.

Other packages and config files import these names from `lm_mia.config`.

To add a field, write its type, its range and what it means below (`lm_mia.config.fields` checks them), and a rule
between it and other fields, if there is one, into `lm_mia.config.validate`. If it affects models or samples, mark it
with `Before` and the value that gives the models of earlier versions, as in ``Annotated[bool, Before(False)]``, so that
existing workdirs remain valid. If it does not, add it to ``_CHANGEABLE`` in `lm_mia.config.recipe`.
"""

import dataclasses
import json
import re
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from lm_mia import user_files
from lm_mia.config import hf_checkpoint
from lm_mia.config.fields import ASCENDING, Rule, distinct, is_expression, number

AtLeast0 = Annotated[int, Ge(0)]
AtLeast1 = Annotated[int, Ge(1)]
_Models = Annotated[int, Ge(0), Le(1_000_000)]
"""A number of models. A typing error may exceed this maximum: lists of its models would fill the memory."""
_NotNegative = Annotated[float, Ge(0)]
_Positive = Annotated[float, Gt(0)]
_Share = Annotated[float, Ge(0), Le(1)]
_Rate = Annotated[float, Gt(0), Le(1)]
_Rates = Annotated[tuple[_Rate, ...], MinLen(1), ASCENDING, distinct(digits=6)]
_Probability = Annotated[float, Gt(0), Lt(1)]
_Decay = Annotated[float, Ge(0), Lt(1)]
_FlipRate = Annotated[float, Ge(0), Le(0.5)]
_Expression = Annotated[str, Rule(is_expression, "that are regular expressions of Python")]
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+=,-]{0,79})?")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the documents come from."""

    source: Literal["docstrings", "text", "jsonl", "csv", "parquet", "c4", "imported"] = (
        "docstrings"
    )
    """docstrings: docstrings of installed packages, no download; text: one .txt or .md file per document; jsonl: .jsonl
    or .json files with one object per line; csv: .csv files with a header; parquet: .parquet files; c4: the TFDS build
    c4/en:3.1.0; imported: losses of models that were trained elsewhere, which only `lm-mia import` sets. Text, jsonl
    and csv files may be compressed by gzip or zstd."""
    path: str = ""
    """A file, a folder or a glob. In a folder with .txt or .jsonl files, .md or .json files are not read. Empty for
    docstrings. For c4, the TFDS data folder; if empty, the default of TFDS. For imported losses, a digest of their
    samples."""
    column: str = "text"
    """Name of the column or field of parquet, csv and jsonl files that holds the text."""
    min_chars: AtLeast1 = 200
    """Minimum length of a document in characters. Shorter documents are dropped and, if documents are split, shorter
    last pieces."""
    deduplicate: Literal["near", "exact", "none"] = "near"
    """near: keep one document of each cluster of documents that share half of their 8-word shingles; for c4, which is
    too large to compare exactly, leave out documents that MinHash finds to be similar to an earlier one of the draw;
    exact: drop identical texts only; none: keep all documents. For c4, near or none."""
    split_documents: bool = False
    """Whether documents longer than population.length_tokens are split into several samples. False: only the beginning
    of a document is a sample. True: each document is divided into consecutive pieces, each of which is a sample, so
    that pieces of one document are members as well as non-members; bootstrap intervals are then over documents."""
    processes: AtLeast1 | Literal["auto"] = "auto"
    """Number of processes that tokenize the documents. auto: one per CPU core."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The vocabulary: a SentencePiece model that is trained on the corpus, or a file."""

    path: str = ""
    """A SentencePiece .model file or a tokenizer.json of Hugging Face, under any name, with tokens for the beginning
    and the end of a text, whatever their ids, such as those of Llama 2, Gemma or GPT-2. If empty, a vocabulary is
    trained on the corpus."""
    vocab_size: AtLeast1 = 32_000
    """Number of pieces in the vocabulary. If tokenizer.path is set, it must equal the number of pieces in that file,
    added tokens included."""
    special_tokens: Literal["sample", "file"] = "sample"
    """sample: each sample begins with one special token and, unless it is cut, ends with one; file: with those alone
    that the post-processor of a tokenizer.json adds to a text, which may be none. model.init=hf:FOLDER sets file."""
    source: str = ""
    """Digest of the tokenizer.json of model.init. It is filled in when a config is loaded, and never set by hand."""
    documents: AtLeast1 | Literal["all"] = "all"
    """Number of documents, drawn with population.seed, that the vocabulary is trained on. all, or more than there are:
    all documents."""


@dataclasses.dataclass(frozen=True)
class Population:
    """The 2N samples. Each model is trained on about half of them, or more if train.canaries is set, and scored on all
    of them."""

    samples: AtLeast1 = 2**20
    """Number of samples, 2N. Must be even. Samples are documents, or pieces of documents if corpus.split_documents is
    set."""
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 0
    """Seed that determines which documents are drawn and how they are numbered."""
    length_tokens: Annotated[int, Ge(3)] = 1024
    """Maximum length of a sample in tokens, including <bos> and <eos>. Longer documents are cut; see
    corpus.split_documents."""
    distinct_prefix_tokens: AtLeast1 | Literal["none"] = "none"
    """Number of tokens after <bos>. Samples that begin with the same tokens as an earlier sample are dropped (StrongMIA
    Figure 16). none: no samples are dropped."""
    validation_samples: AtLeast0 = 0
    """Number of additional samples, on which no model is trained, for the validation loss."""
    frequency_samples: AtLeast1 = 2**16
    """Maximum number of samples over which document frequencies are counted for TF-IDF (StrongMIA Figure 31)."""
    group_prefix_tokens: AtLeast1 = 50
    """Number of tokens after <bos>. Samples that begin with the same tokens have the same prefix_group in the sample
    table."""
    random_samples: AtLeast0 = 0
    """Number of samples, the last ones of the population, that are not text: pieces of the vocabulary drawn uniformly
    at random, as many as in a sample of the median length. 0: all samples are text."""
    folder: str = ""
    """Folder in which populations are made and looked for, each in a folder named by its hash, so that several workdirs
    share them. Empty: WORKDIR/populations."""


MODEL_SIZES = {
    "10M": (3, 512),
    "44M": (8, 512),
    "85M": (12, 768),
    "140M": (15, 768),
    "302M": (24, 1024),
    "425M": (18, 1280),
    "489M": (21, 1280),
    "509M": (18, 1408),
    "604M": (48, 1024),
    "1018M": (23, 1792),
}
"""The model sizes of StrongMIA: name -> (layers, width). The paper prints the names only, which are numbers of
parameters. 44M, 140M, 425M, 489M, 509M and 1018M are rows of Table A9 of Hoffmann et al. (2022), whose numbers include
the token embeddings; the shapes of the others are inferred, from numbers without embeddings."""
HEAD_WIDTH = 64
"""Width of an attention head if ``model.heads`` is auto."""
_WIDE_HEADS = {"425M": 128, "489M": 128, "509M": 128, "1018M": 128}
"""Width of an attention head of the sizes for which Table A9 has other heads."""
Size = Literal[
    "10M", "44M", "85M", "140M", "302M", "425M", "489M", "509M", "604M", "1018M", "custom"
]


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder-only transformer like GPT-2."""

    size: Size = "85M"
    """A model size of StrongMIA, named by its number of parameters; custom: the size that model.layers, model.width and
    model.heads define."""
    layers: Annotated[int, Ge(1), Le(10_000)] | Literal["auto"] = "auto"
    """Number of layers. auto: that of model.size."""
    width: Annotated[int, Ge(1), Le(1_000_000)] | Literal["auto"] = "auto"
    """Width of the residual stream. auto: that of model.size."""
    heads: AtLeast1 | Literal["auto"] = "auto"
    """Number of attention heads per layer; must divide model.width. auto: one head per 64 units of width, or per 128 at
    the sizes 425M, 489M, 509M and 1018M."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the activations. Parameters, softmax, loss and optimizer state are always float32."""
    kind: str = "gpt"
    """Architecture. gpt: like GPT-2, without biases; gpt2: GPT-2 as released, with biases; llama: RMSNorm, rotary
    positions, SwiGLU and grouped-query attention, as in Llama, Qwen and SmolLM; or FILE.py:CLASS, a subclass of
    lm_mia.model.transformer.TransformerLM."""
    kind_source: str = ""
    """Digest of the source of FILE.py:CLASS. It is filled in when a config is loaded, and never set by hand."""
    kv_heads: AtLeast1 | Literal["auto"] = "auto"
    """llama: number of heads of keys and values, which divides model.heads. auto: as many as model.heads."""
    head_width: AtLeast1 | Literal["auto"] = "auto"
    """llama: width of a head. auto: model.width / model.heads."""
    mlp_width: AtLeast1 | Literal["auto"] = "auto"
    """llama, gpt2: hidden width of the MLP. auto: 4 times model.width; for llama, 8/3 of it, rounded up to a multiple
    of 64."""
    rope_theta: _Positive = 10_000.0
    """llama: base of the frequencies of rotary positions."""
    rope_scaling: Annotated[
        tuple[_Positive, ...], Rule(lambda x: len(x) in (0, 1, 4), "of no, one or four items")
    ] = ()
    """llama: how rotary positions are stretched. Empty: not at all. One number: the factor by which all positions are
    divided (linear). Four: as in Llama 3, factor, low and high frequency factor, and the original length in tokens."""
    norm_epsilon: _Positive = 1e-5
    """llama, gpt2: what is added to the mean square, or the variance, in normalizations."""
    tied: bool = True
    """llama: whether logits are computed from the token embeddings; False: from embeddings of their own."""
    qk_norm: bool = False
    """llama: whether each head of the queries and keys is normalized, as in Qwen 3."""
    qkv_bias: bool = False
    """llama: whether queries, keys and values have biases, as in Qwen 2."""
    out_bias: bool = False
    """llama: whether the output of the attention has a bias."""
    vocab_size: AtLeast1 | Literal["auto"] = "auto"
    """Number of rows of the embeddings, if there are more than tokens. auto: tokenizer.vocab_size."""
    init: str = "random"
    """Where training starts. random: from random weights; hf:FOLDER: from the checkpoint of the kind gpt2 or llama in a
    folder that Hugging Face's save_pretrained wrote, whose config.json and tokenizer.json give model.* and
    tokenizer.*. All parameters are trained."""
    init_source: str = ""
    """Digest of the files of hf:FOLDER. It is filled in when a config is loaded, and never set by hand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of layers, the width and the number of heads, of a model as `resolve` returns it."""
        if self.layers == "auto" or self.width == "auto" or self.heads == "auto":
            raise ValueError("layers, width and heads depend on the size of the model; see resolve")
        return self.layers, self.width, self.heads


KIND_SETTINGS: dict[str, tuple[str, ...]] = {
    "gpt": (),
    "gpt2": ("mlp_width", "norm_epsilon"),
    "llama": (
        *("kv_heads", "head_width", "mlp_width", "rope_theta", "rope_scaling", "norm_epsilon"),
        *("tied", "qk_norm", "qkv_bias", "out_bias"),
    ),
}
"""The kinds of models of this package -> the fields of `Model` that only some kinds read. Those that a kind does not
read must be at their defaults. A class of a user may read all of them. See `lm_mia.model.kinds`."""


def automatic_numbers(kind: str, width: int, heads: int) -> dict[str, int]:
    """Returns what "auto" stands for in the fields of `Model` that a kind of this package reads: name -> number."""
    # The same numbers as in `lm_mia.model`.
    mlp_width = 4 * width if kind == "gpt2" else -(-8 * width // (3 * 64)) * 64
    numbers = {"kv_heads": heads, "head_width": width // heads, "mlp_width": mlp_width}
    return {name: n for name, n in numbers.items() if name in KIND_SETTINGS.get(kind, ())}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The optimizer, with linear warm-up and a learning-rate schedule (StrongMIA Appendix G and Figure 15)."""

    init_learning_rate: _NotNegative = 1e-7
    """Learning rate of the first step, from which it rises linearly during the warm-up."""
    peak_learning_rate: _Positive = 3e-4
    """Learning rate at the end of the warm-up."""
    final_learning_rate: _NotNegative = 3e-5
    """Learning rate at the end of training. Not used by the constant schedule."""
    warmup_steps: AtLeast0 = 750
    """Length of the warm-up in steps. Must be less than the number of training steps."""
    weight_decay: _NotNegative = 0.1
    """Coefficient of the decoupled weight decay, which is multiplied by the learning rate."""
    clip_norm: _Positive | Literal["none"] = 1.0
    """Maximum global norm of the gradients; larger gradients are scaled down. none: no clipping."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay from the peak to the final learning rate; constant: the learning rate stays at its peak."""
    name: str = "adamw"
    """adamw, lion, muon, or FILE.py:FUNCTION, a function in a Python file that returns an optax optimizer;
    docs/how-to/change-optimizer.md describes them. Muon is for the kernels of the layers; embeddings and layernorms are
    trained by AdamW."""
    b1: _Decay = 0.9
    """adamw: decay of the first moment. lion: share of the momentum in the update. muon: as adamw, for its AdamW."""
    b2: _Decay = 0.98
    """adamw: decay of the second moment. lion: decay of the momentum. muon: as adamw, for its AdamW."""
    eps: _Positive = 1e-9
    """adamw, muon: number that is added to denominators."""
    momentum: _Decay = 0.95
    """muon: decay of the momentum of kernels."""
    newton_schulz_steps: AtLeast1 = 5
    """muon: number of Newton-Schulz iterations that orthogonalize the update of a kernel."""
    consistent_rms: _Positive | Literal["none"] = 0.2
    """muon: root mean square of the updates of a kernel relative to the learning rate (Liu et al. 2025). With 0.2, the
    learning rates of AdamW fit. none: the scale of Jordan et al. (2024) instead, an orthogonal matrix times
    sqrt(max(1, outputs / inputs))."""
    weight_decay_mask: tuple[_Expression, ...] = ()
    """Regular expressions. Weight decay applies to the parameters in whose path one of them is found, such as kernel in
    blocks/mlp/up/kernel. Empty: to all parameters."""
    learning_rate_multipliers: tuple[tuple[_Expression, _NotNegative], ...] = ()
    """Pairs of a regular expression and a number, such as (("embedding", 0.1),). The first pair whose expression is
    found in the path of a parameter multiplies its learning rate."""
    source: str = ""
    """Digest of the source of FILE.py:FUNCTION. It is filled in when a config is loaded, and never set by hand."""


OPTIMIZER_PARAMETERS = {
    "adamw": ("b1", "b2", "eps", "weight_decay", "weight_decay_mask"),
    "lion": ("b1", "b2", "weight_decay", "weight_decay_mask"),
    "muon": (
        *("b1", "b2", "eps", "momentum", "newton_schulz_steps", "consistent_rms"),
        *("weight_decay", "weight_decay_mask"),
    ),
}
"""The optimizers of lm_mia: name -> the fields of `Optimizer` that it reads. Others must be at their defaults. Those of
the schedule, ``clip_norm`` and ``learning_rate_multipliers`` apply to all optimizers."""


@dataclasses.dataclass(frozen=True)
class Train:
    """How models are trained."""

    subset: Literal["exact", "bernoulli", "balanced", "given"] = "exact"
    """How a model's training subset is drawn. exact: N of the 2N samples; bernoulli: each sample with probability 1/2;
    balanced: N samples, and models 2i and 2i + 1 are trained on complementary halves; given: not drawn, or in an
    unknown way, which only imported losses may have. If train.canaries is set, this holds for the canaries."""
    canaries: Annotated[int, Ge(2)] | Literal["all"] = "all"
    """Number of canaries, the last samples of the population. Training subsets differ only in them, and only they are
    attacked; all other samples are in the training subset of every model. all: all samples are canaries."""
    batch_size: AtLeast1 = 128
    """Number of samples per step."""
    epochs: AtLeast1 = 1
    """Number of passes over the training subset."""
    checkpoint_minutes: _Positive = 10.0
    """Minutes between checkpoints during training. The final state is always saved."""
    keep_moments: bool = True
    """Whether checkpoints keep the state of the optimizer, two thirds of their size, once their model is scored at all
    requested steps. Without it, such a model is still scored for further statistics, and samples are extracted."""
    workers: Annotated[int, Ge(1), Le(100_000)] | Literal["auto"] = "auto"
    """Number of processes that train models at the same time. auto: one per accelerator, or one per CPU core."""
    validations: AtLeast0 = 0
    """Number of times that the validation loss is computed during training, at equal intervals and at the end."""
    trackers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], distinct()] = ()
    """Experiment trackers that receive the metrics, in addition to the log in the workdir."""


@dataclasses.dataclass(frozen=True)
class Compute:
    """How training is executed. These fields affect speed, memory and rounding, but not which model is trained."""

    devices_per_model: AtLeast1 | Literal["all", "auto"] = "auto"
    """Number of devices that train and score one model together. 1: each device makes models of its own; 2 or more:
    each group of this many neighbouring devices of a machine does; all: all devices of all machines of a job make one
    model after another; auto: 1 on CPUs, else the smallest number of devices whose estimated memory suffices, or all if
    one machine does not suffice."""
    micro_batch_size: AtLeast1 | Literal["auto"] = "auto"
    """Largest number of packed sequences of population.length_tokens that a device processes at once in training;
    gradients are summed over micro-batches. On GPUs, each batch is divided into micro-batches of equal size, so that
    few packed sequences are empty. auto: as large as the memory allows, and no larger than is useful."""
    attention: Literal["auto", "xla", "cudnn", "pallas"] = "auto"
    """Attention implementation. auto: pallas on TPUs, and on NVIDIA GPUs with bfloat16, where the shapes allow it,
    otherwise xla; the choice is logged. cudnn: a model that is trained twice from the same seeds is not the same."""
    layers: Literal["auto", "unrolled", "scanned"] = "auto"
    """unrolled: layers are compiled one by one, which is fastest; scanned: one compiled layer is used for all; auto:
    unrolled if memory allows it."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes. none: nothing; dots: everything except matrix products; full: whole layers;
    auto: none for unrolled layers, full for scanned ones."""


Statistic = Literal[
    "summed_loss", "target_logit", "greedy_match", "min_k", "min_k_plus_plus", "lowercase_loss"
]
STATISTIC_UNITS: dict[Statistic, str] = {
    "summed_loss": "nats",
    "target_logit": "",
    "greedy_match": "share of tokens",
    "min_k": "nats per token",
    "min_k_plus_plus": "standard deviations",
    "lowercase_loss": "nats per token",
}
"""The unit of each statistic, as the score store has it."""


@dataclasses.dataclass(frozen=True)
class Score:
    """How models are scored."""

    micro_batch_size: AtLeast1 | Literal["auto"] = "auto"
    """Number of packed sequences of population.length_tokens that a device scores at once. auto: about 1,024 tokens on
    CPUs, which fit into their caches, and 65,536 tokens on accelerators."""
    at_epochs: Annotated[tuple[_Positive, ...], distinct()] = ()
    """Numbers of epochs, such as 0.5,1, after which models are scored in addition to the end of training."""
    at_steps: Annotated[tuple[AtLeast1, ...], distinct()] = ()
    """Training steps after which models are scored in addition to the end of training."""
    statistics: Annotated[tuple[Statistic, ...], distinct()] = ()
    """Statistics of each sample that are stored in addition to its loss. Some attacks and figures require them."""
    token_samples: Annotated[tuple[AtLeast0, ...], MaxLen(2**13), distinct()] = ()
    """Ids of samples for which the log-probability of each token is stored. They are scored in one call."""


FEWEST_FOR_LEAVE_ONE_OUT = 8
"""Studies that attack each reference with the others (attack.leave_one_out and attack.zero_run) need as many."""


@dataclasses.dataclass(frozen=True)
class Extract:
    """Whether samples can be extracted from the first replica (StrongMIA Figure 7, PrivacyGuard Table 4)."""

    samples: AtLeast0 = 0
    """Number of samples. 0: no extraction."""
    choose: Literal["scores", "random"] = "scores"
    """Which samples. scores: those with the highest lira_online scores, which show whether vulnerable samples can be
    extracted; random: as many random members as random non-members, which show how many samples can be."""
    reference: bool = False
    """Also prompt the first reference with the same prefixes, to see the effect of training on a sample. This doubles
    the time."""
    prefix_tokens: AtLeast1 = 50
    """Number of tokens at the start of a sample, including <bos>, that the model is prompted with."""
    suffix_tokens: AtLeast1 = 50
    """Number of tokens after the prefix that are to be extracted."""
    temperature: Annotated[
        float, Ge(0), Rule(lambda x: x == 0 or x >= 1e-6, "that is 0 or at least 1e-6")
    ] = 1.0
    """Temperature of the sampling scheme that is tried in addition to greedy decoding and plain sampling. 0: greedy."""
    top_k: AtLeast1 | Literal["all"] = 40
    """Number of most likely pieces that the scheme samples from. all: all pieces."""
    top_p: _Rate = 1.0
    """Total probability of the most likely of these pieces, which the scheme samples from. 1: all of them."""
    generations: AtLeast0 = 1
    """Number of continuations generated per sample and sampling scheme; greedy decoding generates one."""
    written_tokens: AtLeast1 | Literal["auto"] = "auto"
    """Length of a continuation in tokens, which is searched for the suffix. auto: extract.suffix_tokens."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """Which models exist, how they are attacked, and which decisions are reported."""

    step: AtLeast1 | Literal["last"] = "last"
    """Training step at which the models are attacked: a step of score.at_steps or score.at_epochs. last: the end of
    training."""
    references: _Models = 128
    """Number of models with training subsets of their own, used to learn the IN and OUT distributions."""
    targets: _Models = 0
    """Number of references, the first ones, that figures attack as targets; the others are used as the references of
    these attacks."""
    replicas: Annotated[
        _Models, Rule(lambda count: count != 1, "but not 1, since a flip rate needs two decisions")
    ] = 128
    """Number of targets that share one training subset and one initialization and differ only in batch order. 0: no
    tables of decisions; without targets, only attack.leave_one_out and attack.zero_run have results then."""
    replica_inits: Annotated[int, Ge(1), Le(1_000_000)] = 1
    """Number of initializations of the target. All replicas have the first one. If this is more than 1, further models
    are trained on the training subset of the replicas: each further initialization in the batch orders of the first
    attack.orders_per_init replicas. They show how much of the variance of losses, scores and decisions is due to the
    initialization and to the order (variance_components.csv); no other table uses them."""
    orders_per_init: Annotated[int, Ge(1), Le(1_000_000)] = 8
    """Number of batch orders in which the target is trained from each further initialization. Not used if
    attack.replica_inits is 1."""
    attacks: Annotated[tuple[str, ...], MinLen(1), distinct()] = (
        "lira_online",
        "lira_offline",
        "rmia",
        "rmia_offline",
        "rmia_simple",
        "reference_calibrated",
        "shrunk",
        "stacked",
        "loss",
        "zlib",
    )
    """Attacks to compare. Must include lira_online, which the tables of decisions are based on, unless imported losses
    have no references.
    docs/how-to/choose-attack.md compares the attacks."""
    headline: str = "auto"
    """The attack that the report page and the last line of a command are about; it is made even if attack.attacks does
    not list it. auto: one that is chosen by how members were drawn and by the number of references, before any score
    is read."""
    fprs: _Rates = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)
    """False positive rates at which thresholds are calibrated (StrongMIA Tables 1-6), in ascending order. Rates below
    1/N, which N non-members cannot show, are left out of tables and figures."""
    focus_fpr: _Rate | Literal["auto"] = "auto"
    """The false positive rate that is used where results are shown at a single rate: one of attack.fprs. auto: the
    lowest of 0.01, 0.05 and 0.1 that allows 10 false positives; it is added to attack.fprs."""
    priors: Annotated[tuple[_Probability, ...], MinLen(1), distinct(digits=6)] = (0.5, 0.1)
    """Prior probabilities of membership for which the membership advantage of each attack is computed (MACE)."""
    alpha: _Probability = 0.05
    """Significance level of the exact binomial test that defines the coin-flip cutoff, and 1 - confidence of the
    audit's bounds."""
    delta: _Probability = 1e-5
    """Delta of (epsilon, delta)-differential privacy, at which the audit bounds and estimates epsilon."""
    band: Annotated[tuple[_Share, _Share], ASCENDING, distinct()] = (1e-4, 0.1)
    """Range of false positive rates over which partial AUC and lift are computed; it begins at 1/N at the earliest."""
    variance: Literal["per_sample", "pooled"] = "per_sample"
    """Variances of LiRA. per_sample: one IN and one OUT variance for each sample; pooled: one of each for all samples,
    which is better with few references."""
    finite_population: bool = False
    """Divide LiRA's variances by 1 - N/2N, because subsets of a finite population vary less (Reliability Eq. 28)."""
    rmia_samples: AtLeast1 = 10_000
    """Maximum number of samples of the population that RMIA compares with, |Z|, drawn by seed."""
    rmia_gamma: _Positive = 1.0
    """Threshold gamma of RMIA: a comparison counts if the likelihood ratio of the sample is at least gamma times that
    of the comparison sample."""
    rmia_a: _Share | Literal["tuned"] = 1.0
    """Parameter a of offline RMIA, from 0 to 1, which estimates the mean probability of a sample under IN references as
    a p_OUT + (1 - a). 1: it equals that under OUT references; tuned: the value among 0, 0.1, ..., 1 with the
    largest AUC of an attack on the first reference with the others."""
    bootstraps: AtLeast0 = 1000
    """Number of bootstrap draws of the samples for the confidence intervals of the first target. 0: no intervals."""
    resample_references: AtLeast0 = 0
    """Number of references per set, if the first replica is also attacked with many disjoint and many random sets of
    references. 0: it is not."""
    leave_one_out: bool = False
    """Also attack each reference with all the others (train.subset=balanced: without its complement), for rates that
    are averages over models and samples (Reliability), and for the vulnerability of each sample."""
    zero_run: Annotated[tuple[Literal["groups", "graded", "disjoint"], ...], distinct()] = ()
    """Evaluate attacks on members and non-members from different sources, where estimators must adjust for the
    difference (CausalMIA); each reference in turn is the attacked model. groups: 90% of the members, but 10% of the
    non-members are from packages or folders with a low loss; graded: members tend to have a higher TF-IDF; disjoint:
    members and non-members have no package in common, so that no adjustment is possible. Empty: no such evaluation."""
    # At 20, the odds rise by e^20 per standard deviation.
    zero_run_strengths: Annotated[
        tuple[Annotated[float, Ge(0), Le(20)], ...], MinLen(1), distinct()
    ] = (2.0,)
    """Strengths of the shift graded: how much the log odds of a member rise per standard deviation of the mean TF-IDF.
    0: no shift."""
    clear_separation: _NotNegative = 2.0
    """Clear archetypes: minimum distance between IN and OUT mean, in standard deviations."""
    ambiguous_separation: _NotNegative = 0.5
    """Ambiguous archetypes: maximum distance between IN and OUT mean, in standard deviations."""
    stable_flip: _FlipRate = 0.1
    """Stable archetypes other than clear members: maximum flip rate, from 0 to 0.5."""
    stable_member_flip: _FlipRate = 0.2
    """Clear, stable members: maximum flip rate, from 0 to 0.5; 0.2 as in StrongMIA Figure 22."""

    @property
    def focus(self) -> float:
        """The number of ``focus_fpr``, of settings as `measurable_attack` returns them."""
        if self.focus_fpr == "auto":
            raise ValueError(
                "focus_fpr=auto: depends on the number of samples; see measurable_attack"
            )
        return self.focus_fpr


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of a run."""

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
    name: Annotated[
        str,
        Rule(
            lambda text: _NAME.fullmatch(text) is not None,
            "of at most 80 letters, digits and '._+=,-', which begins with a letter or digit",
        ),
    ] = ""
    """Name of the recipe and of its folder in the workdir. If empty, the name of the config file. Commands that give
    the same recipe the same name share its models."""
    figures: tuple[str, ...] = ()
    """Figures on the report page, in this order: names such as strongmia_fig01_references, or paths of Python files
    that define EXPERIMENT. On the command line, -NAME removes a figure from those that the config or the workdir
    lists."""
    has_recipe: bool = True
    """False: this config is not a recipe itself: it only sets what the entries of its sweep have in common, or its
    figures are simulations, which need no models."""
    compare_with_papers: bool = False
    """Whether the report page says what the papers found, with their numbers, and whether their claims are seen in
    these models. The configs of the papers set it."""


SOURCES = {
    "model.kind": "model.kind_source",
    "model.init": "model.init_source",
    "optimizer.name": "optimizer.source",
    "tokenizer.path": "tokenizer.source",
}
"""Fields that may name a user's file -> that of the digest of its source or content, which determines the models
instead of the path."""


def resolve(config: Config) -> Config:
    """Returns the config with all numbers and names filled in that follow from others.

    These are the numbers of layers and heads and the width, the size that they make, and the digests of the user's
    architecture and optimizer, unless the config has them already: models that exist were made by that source.
    """
    config = _with_checkpoint(config)
    model = config.model
    layers, width = model.layers, model.width
    if model.size in MODEL_SIZES:
        layers, width = (
            of_size if given == "auto" else given
            for given, of_size in zip((layers, width), MODEL_SIZES[model.size], strict=True)
        )
    names: dict[Any, Any] = {shape: name for name, shape in MODEL_SIZES.items()}
    size, heads = names.get((layers, width), "custom"), model.heads
    if heads == "auto" and width != "auto":
        heads = max(width // _WIDE_HEADS.get(size, HEAD_WIDTH), 1)
    model = dataclasses.replace(
        model,
        size=size,
        layers=layers,
        width=width,
        heads=heads,
        kind_source=model.kind_source or _source(model.kind),
    )
    optimizer = config.optimizer
    source = optimizer.source or _source(optimizer.name)
    optimizer = dataclasses.replace(optimizer, source=source)
    return dataclasses.replace(config, model=model, optimizer=optimizer)


def _with_checkpoint(config: Config) -> Config:
    """Returns the config with what the checkpoint of model.init determines, unless that was filled in before."""
    model = config.model
    if not hf_checkpoint.is_checkpoint(model.init) or model.init_source:
        return config
    try:
        fields, tokenizer_fields = checkpoint_fields(config)
        source = hf_checkpoint.digest(model.init)
    except hf_checkpoint.CheckpointError:
        return config  # which `validate` reports
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, **fields, size="custom", init_source=source),
        tokenizer=dataclasses.replace(config.tokenizer, **tokenizer_fields),
    )


def checkpoint_fields(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of `Model` and of `Tokenizer` that the checkpoint of model.init determines.

    Raises:
      CheckpointError: if the checkpoint is not supported, or a field has been set to another value.
    """
    fields = hf_checkpoint.model_fields(config.model.init)
    longest = fields.pop("longest")
    if config.population.length_tokens > longest:
        raise hf_checkpoint.CheckpointError(
            f"population.length_tokens={config.population.length_tokens} is too long for it; set at most {longest}"
        )
    tokenizer_fields = hf_checkpoint.tokenizer_fields(config.model.init)
    if tokenizer_fields["vocab_size"] > fields["vocab_size"]:
        raise hf_checkpoint.CheckpointError(
            f"its tokenizer has {tokenizer_fields['vocab_size']} tokens, but the model only {fields['vocab_size']}; "
            "give the tokenizer of this model"
        )
    given = {"model": (fields, Model()), "tokenizer": (tokenizer_fields, Tokenizer())}
    for section, (values, default) in given.items():
        for name, value in values.items():
            set_value = getattr(getattr(config, section), name)
            if set_value not in (value, getattr(default, name)):
                raise hf_checkpoint.CheckpointError(
                    f"{section}.{name}={set_value!r} differs from {value!r} of the checkpoint; leave it out"
                )
    return fields, tokenizer_fields


def _source(name: str) -> str:
    """Returns the digest of the source of ``FILE.py:NAME``; "" for other names, and if the file cannot be used."""
    if user_files.is_in_file(name) and not user_files.problem(name):
        return user_files.source_digest(name)
    return ""


def starts_from_checkpoint(config: Config) -> bool:
    """Returns whether models are fine-tuned from a checkpoint, which is their base."""
    return hf_checkpoint.is_checkpoint(config.model.init)


def num_canaries(config: Config) -> int:
    """Returns the number of samples in which training subsets differ: train.canaries, or all 2N."""
    return number(config.train.canaries) or config.population.samples


def first_canary(config: Config) -> int:
    """Returns the id of the first sample in which training subsets differ; those before it are in all of them."""
    return config.population.samples - num_canaries(config)


def training_samples(config: Config) -> int:
    """Returns the size of a training subset, N or, with canaries, 2N less half of them; of Bernoulli subsets, the mean
    size."""
    return config.population.samples - num_canaries(config) // 2


def lowest_fpr(canaries: int) -> float:
    """Returns the lowest false positive rate that can be measured: one of the non-members, half of the canaries."""
    return 1 / (canaries // 2) if canaries > 1 else 0.0


def measurable_attack(config: Config) -> Attack:
    """Returns the attack settings of a config without the false positive rates that its population cannot show.

    Rates below `lowest_fpr` are left out of ``attack.fprs``; if ``attack.focus_fpr`` is one of them, the lowest
    remaining rate replaces it, and if it is "auto", it becomes the rate of `automatic_focus_fpr`. ``attack.band``
    begins at `lowest_fpr` at the earliest, unless it ends below. Rates that are all too low, which commands refuse, are
    returned unchanged.
    """
    attack, lowest = config.attack, lowest_fpr(num_canaries(config))
    fprs = tuple(fpr for fpr in attack.fprs if fpr >= lowest) or attack.fprs
    focus = attack.focus_fpr
    if focus == "auto":
        focus = automatic_focus_fpr(num_canaries(config) // 2)
        if focus >= lowest:
            fprs = tuple(sorted({*fprs, focus}))
    low, high = attack.band
    return dataclasses.replace(
        attack,
        fprs=fprs,
        focus_fpr=focus if focus in fprs else min(fprs),
        band=(max(low, lowest) if lowest < high else low, high),
    )


def has_no_references(config: Config) -> bool:
    """Returns whether all models of imported losses are attacked, so that none is left to be a reference."""
    attack = config.attack
    has_targets_only = 0 < attack.targets == attack.references and not attack.replicas
    has_replicas_only = attack.replicas > 0 == attack.references
    return (has_targets_only or has_replicas_only) and config.corpus.source == "imported"


AUTOMATIC_FOCUS_FPRS = (0.01, 0.05, 0.1)
"""The rates among which `automatic_focus_fpr` chooses."""


def automatic_focus_fpr(nonmembers: int) -> float:
    """Returns the lowest of 0.01, 0.05 and 0.1 at which a number of non-members allows 10 false positives.

    It is 0.1 for fewer than 100, which allow fewer.
    """
    allowing = (fpr for fpr in AUTOMATIC_FOCUS_FPRS if nonmembers >= round(10 / fpr))
    return next(allowing, AUTOMATIC_FOCUS_FPRS[-1])


def to_dict(config: Config) -> dict[str, Any]:
    """Returns the config as nested plain values, ready for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def total_steps(config: Config) -> int:
    """Returns the number of training steps of a model; a Bernoulli subset may need more or fewer."""
    return config.train.epochs * _steps_per_epoch(config)


def score_steps(config: Config) -> tuple[int, ...]:
    """Returns the steps before the end, ascending, after which models are scored.

    These are ``score.at_steps`` and the steps of ``score.at_epochs``, without duplicates.
    """
    steps = {*config.score.at_steps, *epoch_steps(config)}
    return tuple(sorted(steps - {total_steps(config)}))


def epoch_steps(config: Config) -> list[int]:
    """Returns the step to which each of ``score.at_epochs`` is rounded, at least 1."""
    per_epoch = _steps_per_epoch(config)
    return [max(round(epochs * per_epoch), 1) for epochs in config.score.at_epochs]


def _steps_per_epoch(config: Config) -> int:
    return -(-training_samples(config) // config.train.batch_size)
