"""The models of StrongMIA's figures, each by a name, at three settings; figNN_*.py and tabNN_*.py ask for some.

paper: the published numbers (Table 7, Appendix G), C4. gpu: one GPU of 80-141 GB, each figure within an hour. cpu: two
cores and docstrings of the installed packages, all figures within an hour. A size keeps the paper's name at every
setting, whatever it is there: `SIZES` says.

A recipe that two figures name differently and that comes out the same, such as `main` and `fixed-140M` at cpu, is one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

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
from lm_mia.errors import UserError

Setting = Literal["paper", "gpu", "cpu"]

# layers, width; at paper they are the sizes of lm_mia.config. Parameters grow about as there.
SIZES: dict[str, dict[str, tuple[int, int]]] = {
    "paper": {name: of for name, of in config.SIZES.items() if name != "custom"},
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
# Training samples, N, of each size where they follow its parameters (Figure 2).
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
# N of the sweep over data sets (Figure 4(a)).
DATA = {
    "paper": (50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000),
    "gpu": (2_048, 8_192, 24_576, 65_536),
    "cpu": (192, 384, 768, 1_536, 3_456),
}
# References; targets with subsets of their own beside them; replicas of a target of the flip rates.
ROWS = {"paper": (128, 16, 128), "gpu": (32, 4, 32), "cpu": (32, 8, 32)}
MOST_REFERENCES = {"paper": 512, "gpu": 64, "cpu": 64}
FLIP_N = {"paper": 2**19, "gpu": 2**14, "cpu": 1_024}
FIXED_N = {"paper": 2**23, "gpu": 24_576, "cpu": 1_536}
EPOCHS = {"paper": (10, 20), "gpu": (4, 8), "cpu": (4, 8)}


def base(setting: Setting) -> Config:
    """What all recipes of a setting share: 140M on its compute-optimal data, seen once; no rows."""
    if setting not in get_args(Setting):
        raise UserError(f":{setting}: no such setting; say one of {', '.join(get_args(Setting))}")
    c = {"paper": _paper, "gpu": _gpu, "cpu": _cpu}[setting]()
    attack = dataclasses.replace(
        c.attack, references=0, replicas=0, attacks=("lira_online",), bootstraps=0
    )
    c = _with(c, model=_model(setting, "140M"), attack=attack)
    return _sized(c, CHINCHILLA[setting]["140M"])


def _paper() -> Config:
    return Config(
        # near duplicates stay, as in the paper
        corpus=Corpus(source="c4", deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=32_000, documents=1_000_000),
        population=Population(length_tokens=1_024, validation_samples=8_192),
        train=Train(batch_size=128),
    )


def _gpu() -> Config:
    return Config(
        corpus=Corpus(source="c4", deduplicate="none"),
        tokenizer=Tokenizer(vocab_size=8_192, documents=1_000_000),
        population=Population(length_tokens=256, validation_samples=1_024),
        optimizer=Optimizer(peak_learning_rate=2e-3, final_learning_rate=2e-4, warmup_steps=40),
        train=Train(batch_size=64),
        # 16 IN losses a sample are too few for a variance of its own
        attack=Attack(
            variance="pooled", fprs=(1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)
        ),
    )


def _cpu() -> Config:
    return Config(
        # short texts too, so that lengths differ: half of the samples are cut at 96 tokens
        corpus=Corpus(min_chars=20, deduplicate="exact"),
        tokenizer=Tokenizer(vocab_size=1_024),
        population=Population(length_tokens=96, validation_samples=256),
        optimizer=Optimizer(peak_learning_rate=8e-3, final_learning_rate=8e-4, warmup_steps=20),
        # as many updates as two cores make in a few seconds
        train=Train(batch_size=8),
        attack=Attack(
            variance="pooled",
            # with 1,000 non-members the lowest rate above 0 is about 0.001
            fprs=(0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0),
            focus_fpr=0.05,
            band=(0.001, 0.1),
        ),
    )


def recipe(setting: Setting, name: str) -> Config:
    """The config of a recipe by its name.

    main: 140M on its compute-optimal data. chinchilla-SIZE: each size on its own. fixed-SIZE: each size on the same
    data. data-N: 140M on so many samples. flip-SIZE: replicas of one target. small: 10M, for RMIA's own studies.
    epochs-44M, epochs-140M, epochs-140M-small: seen several times. schedule-linear, -nodecay, -noclip; distinct: no two
    samples begin alike.
    """
    references, targets, replicas = ROWS[setting]
    c = _rows(base(setting), references + targets, targets)
    kind, _, of = name.partition("-")
    if name == "main":
        more = MOST_REFERENCES[setting]
        # two replicas, for the tables that extraction begins with
        c = _rows(c, more + targets, targets, replicas=2)
        prefix = {"paper": 50, "gpu": 50, "cpu": 32}[setting]
        extract = Extract(samples=1_000, prefix_tokens=prefix, suffix_tokens=prefix)
        score = Score(statistics=("target_logit",))
        c = _validated(setting, _with(c, extract=extract, score=score))
    elif kind == "chinchilla":
        c = _sized(c, CHINCHILLA[setting][of])
        c = _validated(setting, _with(c, model=_model(setting, of)))
    elif kind == "fixed":
        of_figure_21 = of == "140M"
        attack = dataclasses.replace(
            c.attack, replicas=2 * of_figure_21, leave_one_out=of_figure_21
        )
        c = _with(_sized(c, FIXED_N[setting]), model=_model(setting, of), attack=attack)
        if of_figure_21 and FIXED_N[setting] == CHINCHILLA[setting][of]:
            c = _validated(setting, c)  # the same rows as main
    elif kind == "data":
        c = _sized(c, int(of))
        if setting == "paper":
            c = _with(c, optimizer=dataclasses.replace(c.optimizer, warmup_steps=80))
        if int(of) == CHINCHILLA[setting]["140M"]:
            c = _validated(setting, c)  # the same rows as main
    elif kind == "flip":
        if setting == "paper":  # some of its 128 crashed
            replicas = {"140M": 125, "302M": 127}[of]
        c = _rows(_sized(c, FLIP_N[setting]), references, 0, replicas)
        c = _with(c, model=_model(setting, of))
    elif name == "small":
        more = max(references, MOST_REFERENCES[setting] if setting != "paper" else 0)
        c = _rows(_sized(c, FLIP_N[setting]), more + targets, targets)
        c = _with(c, model=_model(setting, "10M"))
    elif name == "epochs-44M":
        c = _sized(c, CHINCHILLA[setting]["44M"] // 2)
        c = _with(_epochs(c, 2), model=_model(setting, "44M"))
    elif name == "epochs-140M":
        c = _epochs(c, EPOCHS[setting][0])
    elif name == "epochs-140M-small":
        small = 512 if setting == "cpu" else FLIP_N[setting]
        c = _epochs(_sized(c, small), EPOCHS[setting][1])
    elif kind == "schedule":
        changed: dict[str, Any] = {
            "linear": {"schedule": "linear"},
            "nodecay": {"weight_decay": 0.0},
            "noclip": {"clip_norm": 0.0},
        }[of]
        c = _with(c, optimizer=dataclasses.replace(c.optimizer, **changed))
    elif name == "distinct":
        prefix = {"paper": 50, "gpu": 50, "cpu": 16}[setting]
        population = dataclasses.replace(c.population, distinct_prefix_tokens=prefix)
        c = _with(c, population=population)
    else:
        raise ValueError(name)
    return _with(c, name=name)


Pair = tuple[Callable[[Setting], Config], Callable[[Setting], Iterator[dict[str, Any]]]]
"""get_config and sweep, of a setting."""


def of(file: str, names: Callable[[Setting], Sequence[str]]) -> Pair:
    """get_config and sweep of a figure: its first recipe, and what the others change in it.

    Args:
      file: of the config; the figure of analysis/figures has its name.
      names: the recipes at a setting.
    """
    return several([Path(file).stem], names)


def several(figures: Sequence[str], names: Callable[[Setting], Sequence[str]]) -> Pair:
    """As `of`, of several figures."""

    def get_config(setting: Setting = "paper") -> Config:
        base(setting)
        return _with(recipe(setting, names(setting)[0]), figures=tuple(figures))

    def sweep(setting: Setting = "paper") -> Iterator[dict[str, Any]]:
        first, *others = names(setting)
        old = recipe(setting, first)
        for name in others:
            yield dict(_changes(old, recipe(setting, name)))

    return get_config, sweep


def _changes(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            yield from _changes(a, b, f"{prefix}{field.name}.")
        elif a != b:
            yield prefix + field.name, b


def _with(c: Config, **sections: Any) -> Config:
    return dataclasses.replace(c, **sections)


def _model(setting: Setting, size: Any) -> Model:
    if setting == "paper":
        return Model(size=size, dtype="bfloat16")
    layers, width = SIZES[setting][size]
    dtype = "bfloat16" if setting == "gpu" else "float32"
    return Model(
        size="custom",
        layers=layers,
        width=width,
        heads=max(width // 64, 1) if setting == "gpu" else width // 32,
        dtype=dtype,
    )


def _sized(c: Config, n: int) -> Config:
    """With 2N samples; a warm-up of at most a fifth of the steps."""
    steps = -(-n // c.train.batch_size)
    warmup = min(c.optimizer.warmup_steps, max(steps // 5, 1))
    return _with(
        c,
        population=dataclasses.replace(c.population, samples=2 * n),
        optimizer=dataclasses.replace(c.optimizer, warmup_steps=warmup),
    )


def _rows(c: Config, references: int, targets: int, replicas: int = 0) -> Config:
    attack = dataclasses.replace(
        c.attack, references=references, targets=targets, replicas=replicas
    )
    return _with(c, attack=attack)


def _validated(setting: Setting, c: Config) -> Config:
    """With the validation loss of Figure 15(a), which costs as much as a third of scoring at cpu."""
    often = 8 if setting == "cpu" else 20
    return _with(c, train=dataclasses.replace(c.train, validations=often))


def _epochs(c: Config, epochs: int) -> Config:
    """So many, scored after each of them, or, if they are more than ten, after some."""
    some = range(1, epochs) if epochs <= 10 else [1, 2, 3, 5, 8, 13]
    return _with(
        c,
        train=dataclasses.replace(c.train, epochs=epochs),
        score=dataclasses.replace(c.score, at_epochs=tuple(float(e) for e in some)),
    )
