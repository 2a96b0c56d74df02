"""The figures and tables of StrongMIA (Figures 1-32, Tables 1-7), at three settings.

    lm-mia run --config=configs/strongmia.py:fig05,cpu --workdir=runs/strongmia
    lm-mia run --config=configs/strongmia.py:fig01,fig05,tab01,cpu --workdir=runs/strongmia
    lm-mia run --config=configs/strongmia.py:cpu --workdir=runs/strongmia

The argument is [FIGURE,]SETTING. A figure is named by its number, such as fig05 or tab01. Several figures may be named;
if none is named, all are drawn. Figures that need the same recipe share its models: in one workdir, each model is
trained only once.

    paper   the published numbers (Table 7, Appendix G): models of 10M to 1018M parameters on C4
    gpu     one GPU of 80-141 GB: models of up to 32M parameters on C4, less than an hour per figure
    cpu     two cores: models of 12 thousand to 0.6 million parameters on the docstrings of installed packages

A model size has the same name at every setting; at cpu, "140M" is 2 layers of width 64 (see SIZES). At gpu and cpu,
parameters are counted without embeddings. The paper prints neither the layers nor the widths of its sizes; those at
paper are rows of Table A9 of Hoffmann et al. (2022), or inferred from the numbers of parameters.
docs/departures/strongmia.md lists what else the paper leaves open or is done in another way.

NanoDO's vocabulary has 32,101 pieces; a copy of its file takes the place of the vocabulary that is trained on C4 with
--config.tokenizer.path=FILE --config.tokenizer.vocab_size=32101.

Cost of all figures, by `lm-mia plan --device=h100 --mfu=0.4` (at an MFU that small models do not reach):

    paper   5,504 models   56,218 hours
    gpu     1,130 models   0.54 hours
    cpu     994 models     about 54 minutes on 2 cores

At cpu, Figures 1 and 5 take about 4 and 3 minutes.

docs/figures.md lists what each figure needs, costs and shows, with the verdicts on its claims in the last published run
at cpu.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from lm_mia import config
from lm_mia.config import (
    Attack,
    Config,
    Corpus,
    Extract,
    Model,
    Optimizer,
    Population,
    Score,
    Tokenizer,
    Train,
)
from lm_mia.config.paper import Setting, parse_argument, sweep_entries

# Figure -> the recipes that it needs, which `recipe` describes. "chinchilla-*" and "fixed-*" stand for one recipe per
# model size of the setting, "data-*" for one per number of training samples.
FIGURES: dict[str, tuple[str, ...]] = {
    "strongmia_fig01_references": ("main",),
    "strongmia_fig02_compute_optimal": ("chinchilla-*",),
    "strongmia_fig03_epochs": ("chinchilla-44M", "epochs-44M", "epochs-140M"),
    "strongmia_fig04_data_and_size": ("data-*", "fixed-*"),
    "strongmia_fig05_instability": ("flip-302M",),
    "strongmia_fig06_vulnerability": ("main", "fixed-140M"),
    "strongmia_fig07_extraction": ("main",),
    "strongmia_fig08_statistic": ("main",),
    "strongmia_fig09_lira_and_rmia": ("main",),
    "strongmia_fig10_auc_by_references": ("main",),
    "strongmia_fig11_rmia_variants": ("small",),
    "strongmia_fig12_rmia_population": ("small",),
    "strongmia_fig13_rmia_gamma": ("small",),
    "strongmia_fig14_offline": ("small",),
    "strongmia_fig15_schedules": (
        "chinchilla-*",
        "main",
        "schedule-linear",
        "schedule-nodecay",
        "schedule-noclip",
    ),
    "strongmia_fig16_duplicates": ("main", "distinct"),
    "strongmia_fig17_overtraining": ("epochs-140M", "epochs-140M-small"),
    "strongmia_fig18_compute_optimal_targets": ("chinchilla-*",),
    "strongmia_fig19_fixed_data_targets": ("fixed-*",),
    "strongmia_fig20_targets_by_references": ("chinchilla-*",),
    "strongmia_fig21_true_positive_probability": ("fixed-140M",),
    "strongmia_fig22_archetypes_140m": ("flip-140M",),
    "strongmia_fig23_archetypes_302m": ("flip-302M",),
    "strongmia_fig24_mean_roc": ("flip-140M", "flip-302M"),
    "strongmia_fig25_thresholds": ("flip-140M", "flip-302M"),
    "strongmia_fig26_flip_detail_140m": ("flip-140M",),
    "strongmia_fig27_flip_detail_302m": ("flip-302M", "flip-140M"),
    "strongmia_fig28_flip_by_fpr_140m": ("flip-140M",),
    "strongmia_fig29_flip_by_fpr_302m": ("flip-302M", "flip-140M"),
    "strongmia_fig30_coin_free": ("flip-140M", "flip-302M"),
    "strongmia_fig31_text_properties": ("main",),
    "strongmia_fig32_losses_by_size": (
        "fixed-10M",
        "fixed-44M",
        "fixed-85M",
        "fixed-140M",
        "fixed-302M",
    ),
    "strongmia_tab01_error_rates_140m": ("flip-140M",),
    "strongmia_tab02_error_rates_302m": ("flip-302M",),
    "strongmia_tab03_flip_shares_140m": ("flip-140M",),
    "strongmia_tab04_flip_shares_302m": ("flip-302M",),
    "strongmia_tab05_true_positives_140m": ("flip-140M",),
    "strongmia_tab06_true_positives_302m": ("flip-302M",),
    "strongmia_tab07_settings": ("main",),
}

# Setting -> model size -> (layers, width). At paper, these are the sizes of lm_mia.config; at gpu and cpu, numbers of
# parameters grow in about the same proportions.
SIZES: dict[str, dict[str, tuple[int, int]]] = {
    "paper": {size: shape for size, shape in config.MODEL_SIZES.items() if size != "custom"},
    "gpu": {
        "10M": (2, 128),
        "44M": (3, 192),
        "85M": (4, 256),
        "140M": (6, 256),
        "302M": (6, 384),
        "425M": (8, 384),
        "489M": (9, 384),
        "509M": (6, 512),
        "604M": (7, 512),
        "1018M": (10, 512),
    },
    "cpu": {"10M": (1, 32), "44M": (1, 64), "140M": (2, 64), "302M": (2, 96), "1018M": (3, 128)},
}
# Setting -> model size -> compute-optimal number of training samples (Figure 2).
CHINCHILLA = {
    "paper": {
        "10M": 500_000,
        "44M": 2_200_000,
        "85M": 4_250_000,
        "140M": 7_000_000,
        "302M": 15_100_000,
        "489M": 24_400_000,
        "604M": 30_200_000,
        "1018M": 50_900_000,
    },
    "gpu": {
        "10M": 2_048,
        "44M": 6_912,
        "85M": 16_384,
        "140M": 24_576,
        "302M": 55_296,
        "489M": 82_944,
    },
    "cpu": {"10M": 192, "44M": 768, "140M": 1_536, "302M": 3_456},
}
# Setting -> numbers of training samples of the 140M models in Figure 4(a).
DATA = {
    "paper": (50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000),
    "gpu": (2_048, 8_192, 24_576, 65_536),
    "cpu": (192, 384, 768, 1_536, 3_456),
}
# Setting -> (references, targets with training subsets of their own, replicas of one target for flip rates).
MODELS = {"paper": (128, 16, 128), "gpu": (32, 4, 32), "cpu": (32, 8, 32)}
# Setting -> number of references of the recipe main, and at gpu and cpu also of the recipe small.
MOST_REFERENCES = {"paper": 512, "gpu": 64, "cpu": 64}
# Model size -> replicas at paper. Some of the paper's 128 replicas crashed.
PAPER_REPLICAS = {"140M": 125, "302M": 127}
# Setting -> training samples of the recipes flip-* and small, and of the recipes fixed-*.
FLIP_SAMPLES = {"paper": 2**19, "gpu": 2**14, "cpu": 1_024}
FIXED_SAMPLES = {"paper": 2**23, "gpu": 24_576, "cpu": 1_536}
# Setting -> (epochs of epochs-140M, epochs of epochs-140M-small).
EPOCHS = {"paper": (10, 20), "gpu": (4, 8), "cpu": (4, 8)}


def get_config(arg: str = "") -> Config:
    """Returns the config of the first recipe of the figures, which lists the figures to draw.

    Args:
      arg: [FIGURE,]SETTING, with one or several figures, such as ``fig01,fig05,cpu``. Without a figure, all figures are
        drawn, and a comparison of all recipes (analysis/scaling.py).

    Raises:
      UserError: if a figure or the setting is unknown, or the setting is missing.
    """
    figures, setting = _parse(arg)
    drawn = (*figures, "scaling") if set(figures) == set(FIGURES) else tuple(figures)
    first = recipe(setting, _recipes(figures, setting)[0])
    return _with(first, figures=drawn, compare_with_papers=True)


def sweep(arg: str = "") -> Iterator[dict[str, Any]]:
    """Yields the fields in which each further recipe of the figures differs from the first; ``arg`` as above."""
    figures, setting = _parse(arg)
    return sweep_entries([recipe(setting, name) for name in _recipes(figures, setting)])


def _parse(arg: str) -> tuple[list[str], Setting]:
    return parse_argument(arg, FIGURES, "StrongMIA", "strongmia.py")


def _recipes(figures: Sequence[str], setting: Setting) -> list[str]:
    """Returns the names of the recipes that figures need, without duplicates and without sizes the setting lacks."""
    variants = {"chinchilla": CHINCHILLA[setting], "fixed": SIZES[setting], "data": DATA[setting]}
    names: list[str] = []
    for name in (name for figure in figures for name in FIGURES[figure]):
        kind, _, which = name.partition("-")
        if which == "*":
            names += [f"{kind}-{variant}" for variant in variants[kind]]
        elif kind != "fixed" or which in SIZES[setting]:
            names.append(name)
    return list(dict.fromkeys(names))


def recipe(setting: Setting, name: str) -> Config:
    """Returns the config of a recipe.

    The names of the recipes:

    - main: 140M on its compute-optimal data, with the largest number of references.
    - chinchilla-SIZE: a model size on its compute-optimal data.
    - fixed-SIZE: a model size on the same data for all sizes.
    - data-N: 140M on N training samples.
    - flip-SIZE: replicas of one target.
    - small: 10M, for the studies of RMIA.
    - epochs-44M, epochs-140M, epochs-140M-small: several epochs, on half of the compute-optimal data of 44M, on the
      compute-optimal data of 140M, and on a small dataset.
    - schedule-linear, schedule-nodecay, schedule-noclip: 140M with a linear schedule, without weight decay, and without
      clipping.
    - distinct: 140M without samples whose first tokens equal those of another sample.

    At some settings two names are the same recipe, such as main and fixed-140M at cpu. Its models are trained once.
    """
    references, targets, replicas = MODELS[setting]
    c = _models(base(setting), references + targets, targets)
    kind, _, which = name.partition("-")
    if name == "main":
        # Two replicas, since extraction needs the tables of decisions.
        c = _models(c, MOST_REFERENCES[setting] + targets, targets, replicas=2)
        tokens = {"paper": 50, "gpu": 50, "cpu": 32}[setting]
        # The prefix is <bos> and the first tokens of the text.
        extract = Extract(samples=1_000, prefix_tokens=1 + tokens, suffix_tokens=tokens)
        score = Score(statistics=("target_logit",))
        c = _validated(setting, _with(c, extract=extract, score=score))
    elif kind == "chinchilla":
        c = _with(_sized(c, CHINCHILLA[setting][which]), model=_model(setting, which))
        c = _validated(setting, c)
    elif kind == "fixed":
        c = _with(_sized(c, FIXED_SAMPLES[setting]), model=_model(setting, which))
        if which == "140M":  # Figure 21 attacks each reference
            attack = dataclasses.replace(c.attack, replicas=2, leave_one_out=True)
            c = _with(c, attack=attack)
            if FIXED_SAMPLES[setting] == CHINCHILLA[setting][which]:
                c = _validated(setting, c)  # as for main, which is the same recipe
    elif kind == "data":
        c = _sized(c, int(which))
        if setting == "paper":
            c = _with(c, optimizer=dataclasses.replace(c.optimizer, warmup_steps=80))
        if int(which) == CHINCHILLA[setting]["140M"]:
            c = _validated(setting, c)  # as for main, which is the same recipe
    elif kind == "flip":
        if setting == "paper":
            replicas = PAPER_REPLICAS[which]
        c = _models(_sized(c, FLIP_SAMPLES[setting]), references, 0, replicas)
        c = _with(c, model=_model(setting, which))
    elif name == "small":
        if setting != "paper":
            references = MOST_REFERENCES[setting]
        c = _models(_sized(c, FLIP_SAMPLES[setting]), references + targets, targets)
        c = _with(c, model=_model(setting, "10M"))
    elif name == "epochs-44M":
        c = _sized(c, CHINCHILLA[setting]["44M"] // 2)
        c = _with(_epochs(c, 2), model=_model(setting, "44M"))
    elif name == "epochs-140M":
        c = _epochs(c, EPOCHS[setting][0])
    elif name == "epochs-140M-small":
        samples = 512 if setting == "cpu" else FLIP_SAMPLES[setting]
        c = _epochs(_sized(c, samples), EPOCHS[setting][1])
    elif kind == "schedule":
        changed: dict[str, Any] = {
            "linear": {"schedule": "linear"},
            "nodecay": {"weight_decay": 0.0},
            "noclip": {"clip_norm": "none"},
        }[which]
        c = _with(c, optimizer=dataclasses.replace(c.optimizer, **changed))
    elif name == "distinct":
        prefix = {"paper": 50, "gpu": 50, "cpu": 16}[setting]
        population = dataclasses.replace(c.population, distinct_prefix_tokens=prefix)
        c = _with(c, population=population)
    else:
        raise ValueError(name)
    return _with(c, name=name)


def base(setting: Setting) -> Config:
    """Returns the config that the recipes of a setting start from: 140M on its compute-optimal data, without models."""
    c = {"paper": _paper, "gpu": _gpu, "cpu": _cpu}[setting]()
    attack = dataclasses.replace(
        c.attack,
        references=0,
        replicas=0,
        attacks=("lira_online",),
        headline="lira_online",
        bootstraps=0,
    )
    c = _with(c, model=_model(setting, "140M"), attack=attack)
    return _sized(c, CHINCHILLA[setting]["140M"])


def _paper() -> Config:
    return Config(
        # Near duplicates and short texts are kept, as in the paper.
        corpus=Corpus(source="c4", min_chars=1, deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=32_000, documents=200_000),
        population=Population(length_tokens=1_024, validation_samples=8_192),
        train=Train(batch_size=128),
        attack=Attack(focus_fpr=0.01),
    )


def _gpu() -> Config:
    return Config(
        corpus=Corpus(source="c4", min_chars=1, deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=8_192, documents=200_000),
        population=Population(length_tokens=256, validation_samples=1_024),
        optimizer=Optimizer(peak_learning_rate=2e-3, final_learning_rate=2e-4, warmup_steps=40),
        train=Train(batch_size=64),
        # 16 IN losses per sample are too few to estimate a variance for each sample.
        attack=Attack(
            variance="pooled",
            fprs=(1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0),
            focus_fpr=0.01,
        ),
    )


def _cpu() -> Config:
    return Config(
        # Short texts are included, so that lengths differ; half of the samples are truncated at 96 tokens.
        corpus=Corpus(min_chars=20, deduplicate="exact"),
        tokenizer=Tokenizer(vocab_size=1_024),
        population=Population(length_tokens=96, validation_samples=256),
        optimizer=Optimizer(peak_learning_rate=8e-3, final_learning_rate=8e-4, warmup_steps=20),
        # Small batches, so that models make many updates in a few seconds on two cores.
        train=Train(batch_size=8),
        attack=Attack(
            variance="pooled",
            # With about 1,000 non-members, the lowest FPR above 0 is about 0.001.
            fprs=(0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0),
            focus_fpr=0.05,
            band=(0.001, 0.1),
        ),
    )


def _with(c: Config, **sections: Any) -> Config:
    return dataclasses.replace(c, **sections)


def _model(setting: Setting, size: Any) -> Model:
    if setting == "paper":
        return Model(size=size, dtype="bfloat16")
    layers, width = SIZES[setting][size]
    dtype = "bfloat16" if setting == "gpu" else "float32"
    heads = max(width // 64, 1) if setting == "gpu" else width // 32
    return Model(size="custom", layers=layers, width=width, heads=heads, dtype=dtype)


def _sized(c: Config, training_samples: int) -> Config:
    """Returns the config for a number of training samples, with a warm-up of at most 1/5 of the steps."""
    steps = -(-training_samples // c.train.batch_size)
    warmup = min(c.optimizer.warmup_steps, max(steps // 5, 1))
    return _with(
        c,
        population=dataclasses.replace(c.population, samples=2 * training_samples),
        optimizer=dataclasses.replace(c.optimizer, warmup_steps=warmup),
    )


def _models(c: Config, references: int, targets: int, replicas: int = 0) -> Config:
    attack = dataclasses.replace(
        c.attack, references=references, targets=targets, replicas=replicas
    )
    return _with(c, attack=attack)


def _validated(setting: Setting, c: Config) -> Config:
    """Returns the config with the validation loss of Figure 15(a), which costs a third as much as scoring at cpu."""
    validations = 8 if setting == "cpu" else 20
    return _with(c, train=dataclasses.replace(c.train, validations=validations))


def _epochs(c: Config, epochs: int) -> Config:
    """Returns the config with a number of epochs, scored after each epoch, or after some if there are more than ten."""
    scored = range(1, epochs) if epochs <= 10 else [1, 2, 3, 5, 8, 13]
    return _with(
        c,
        train=dataclasses.replace(c.train, epochs=epochs),
        score=dataclasses.replace(c.score, at_epochs=tuple(float(epoch) for epoch in scored)),
    )
