"""StrongMIA's setting: GPT-2-like models trained compute-optimally on C4, at any of its ten sizes.

    lm-mia run --config=configs/c4.py:140M --workdir=runs/c4-140M --config.corpus.path=DATA

DATA is a TFDS data folder with c4/en/3.1.0; without --config.corpus.path, the default folder of TFDS is used. The files
of allenai/c4 on Hugging Face can be converted to such a folder:

    lm-mia corpus --config=configs/c4.py:140M --workdir=runs/c4-140M --config.corpus.path=DATA \\
        --from-hf-shards='c4/en/c4-train.*.json.gz'

Each model sees 20 tokens per parameter once, in samples of 400 tokens on average, truncated at 1,024: 7,000,000 samples
for 140M, which is half of the population. There are 128 references and 2 replicas, the minimum for a flip rate. By
default (compute.devices_per_model=auto), a model that does not fit in the memory of one device is trained on several.

Cost of each size, by `lm-mia plan --config=configs/c4.py --device=h100 --mfu=0.4`: chip-hours of an H100, and disk
space for final states, scores and population.

    10M     5 h   0.04 TB    302M  1,940 h  0.6 TB    509M   4,560 h  0.8 TB
    44M    36 h   0.1 TB     425M  3,180 h  0.7 TB    604M   7,380 h  1.1 TB
    85M   180 h   0.2 TB     489M  4,210 h  0.8 TB    1018M 18,000 h  1.6 TB
    140M  355 h   0.2 TB

Expect an AUC of LiRA (StrongMIA, Figures 1-3) of 0.59 at 10M, 0.62 at 44M, 0.70 at 85M, 0.68 at 140M, 0.69 at 302M,
0.55 at 489M, 0.65 at 604M and 0.55 at 1018M. It is at most 0.7, does not grow with the size, and varies between the
targets of a size (Figure 20). Figure 15(a) shows the validation loss, which is computed 20 times per model on 8,192
held-out samples.
"""

from collections.abc import Iterator
from typing import Any

from lm_mia.config import (
    MODEL_SIZES,
    Attack,
    Config,
    Corpus,
    Model,
    Population,
    Size,
    Tokenizer,
    Train,
)
from lm_mia.errors import UserError


def get_config(size: Size = "140M") -> Config:
    if size not in MODEL_SIZES:
        raise UserError(
            f"configs/c4.py:{size}: no such size; choose one of {', '.join(MODEL_SIZES)}"
        )
    return Config(
        # Near duplicates and short texts are kept, as in the paper; population.distinct_prefix_tokens drops some
        # duplicates (Figure 16).
        corpus=Corpus(source="c4", min_chars=1, deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=32_000, documents=200_000),
        population=Population(samples=samples(size), length_tokens=1024, validation_samples=8_192),
        model=Model(size=size, dtype="bfloat16"),
        # The default optimizer is AdamW with the learning rates of the paper.
        train=Train(subset="exact", batch_size=128, epochs=1, validations=20),
        attack=Attack(references=128, replicas=2),
    )


def samples(size: str) -> int:
    """Returns 2N. Each model is trained on half of the samples: 20 tokens per parameter, 400 tokens per sample."""
    parameters = 1_000_000 * int(size.removesuffix("M"))
    return 2 * (20 * parameters // 400)


def sweep(size: str = "") -> Iterator[dict[str, Any]]:
    if not size:
        for name in MODEL_SIZES:
            yield {"model.size": name, "population.samples": samples(name)}
