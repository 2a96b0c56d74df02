import math
from typing import Any, get_args

import pytest
from conftest import TINY, change
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import config, parse, store_format
from lm_mia.config import Config
from lm_mia.rules import problems

FIELDS = [name for name, _ in parse._fields(Config)]


def test_sound_configs_have_no_problems():
    assert problems(TINY) == []
    assert problems(Config()) == []


# Each: what is changed, and all that is said of it.
BROKEN: list[tuple[dict[str, Any], list[str]]] = [
    *(
        ({field: bad}, [f"{field}={bad!r}: must be a finite number larger than 0"])
        for field in (
            *("corpus.min_chars", "tokenizer.vocab_size", "model.layers", "model.width"),
            *("model.heads", "train.batch_size", "train.epochs", "score.batch_size"),
            *("optimizer.clip_norm", "optimizer.peak_learning_rate", "train.checkpoint_minutes"),
        )
        for bad in ((0, -1, math.nan, math.inf) if "optimizer" in field else (0, -1))
    ),
    *(
        ({field: bad}, [f"{field}={bad!r}: must be a finite number, 0 or larger"])
        for field in (
            *("population.seed", "train.workers", "optimizer.weight_decay"),
            *("optimizer.init_learning_rate", "optimizer.final_learning_rate"),
        )
        for bad in ((-1, math.nan, math.inf) if "optimizer" in field else (-1,))
    ),
    (
        {"population.samples": 17},
        ["population.samples=17: must be even (2N); 18 is"],
    ),
    (
        {"population.samples": 0},
        ["population.samples=0: must be a finite number larger than 0"],
    ),
    (
        {"population.samples": -3},
        ["population.samples=-3: must be a finite number larger than 0"],
    ),
    (
        {"population.length_tokens": 2},
        ["population.length_tokens=2: must be 3 or more (<bos>, a piece, <eos>)"],
    ),
    (
        {"train.batch_size": 9, "optimizer.warmup_steps": 0},
        [
            "train.batch_size=9: must be at most N = population.samples / 2 = 8, the size of a subset; "
            "try --config.train.batch_size=1"
        ],
    ),
    (
        {"model.heads": 3},
        ["model.heads=3: must divide model.width=8; try --config.model.heads=2"],
    ),
    (
        {"model.heads": 100},
        ["model.heads=100: must divide model.width=8; try --config.model.heads=8"],
    ),
    (
        {"corpus.path": "x"},
        [
            "corpus.path='x': corpus.source='docstrings' needs no path; "
            "set --config.corpus.source=text, jsonl or parquet"
        ],
    ),
    (
        {"corpus.source": "text"},
        ["corpus.path='': corpus.source='text' needs a file, a folder or a glob"],
    ),
    (
        {"optimizer.warmup_steps": 2},
        [
            "optimizer.warmup_steps=2: must be less than the 2 steps of a row, which population.samples, "
            "train.batch_size and train.epochs make; try --config.optimizer.warmup_steps=0"
        ],
    ),
    (
        {"train.subset": "balanced", "attack.references": 5},
        ["attack.references=5: must be even for train.subset='balanced' (pairs)"],
    ),
    (
        {"score.statistics": ("min_k", "lowercase_loss", "min_k")},
        ["score.statistics=('min_k', 'lowercase_loss', 'min_k'): must name none twice"],
    ),
]

# Rules of the attack: what is changed, what is said, and the nearest changes that are sound.
ATTACKS = (
    "attack.attacks={}: must name lira_online, whose decisions the tables show, and none twice"
)
LACKING = "attack.attacks={}: {} need more than the loss; set --config.score.statistics={}"
FPRS = "attack.fprs={}: must be rates above 0, at most 1, in ascending order, distinct in their first 6 digits"
BAND = "attack.band={}: must be two rates in [0, 1], the lower first"
RESAMPLED = (
    "attack.resample_references={}: must be 0, or even (sets are made of pairs) and from 4 to "
    "attack.references / 2 = 4"
)
APART = "attack.ambiguous_separation={}: must lie between 0 and attack.clear_separation={}"
LEFT_OUT = (
    "attack.leave_one_out=True: train.subset='balanced' tells by the other rows whether a sample is in the one "
    "left out; set --config.train.subset=exact or bernoulli"
)
NAN, INF = math.nan, math.inf
MORE = ("lira_online", "lowercase", "min_k", "min_k_plus_plus")
Changes = dict[str, Any]
OF_ATTACK: list[tuple[Changes, str, list[Changes]]] = [
    ({"references": 3}, "attack.references=3: must be 4 or more, for 2 IN and 2 OUT of a sample", [{"references": 5}]),
    ({"replicas": 1}, "attack.replicas=1: must be 2 or more, for a flip rate", [{"replicas": 3}]),
    *(
        ({"attacks": bad}, ATTACKS.format(bad), [{"attacks": ("lira_online",)}, {"attacks": ("loss", "lira_online")}])
        for bad in ((), ("loss",), ("lira_online", "loss", "loss"))
    ),
    *(
        (
            {"attacks": ("lira_online", name)},
            LACKING.format(("lira_online", name), name, needed),
            [{"attacks": ("lira_online", name), "score.statistics": (needed,)}, {"score.statistics": (needed,)}],
        )
        for name, needed in config.NEEDED.items()
    ),
    (
        {"attacks": MORE, "score.statistics": ("min_k",)},
        LACKING.format(MORE, "lowercase, min_k_plus_plus", "min_k,lowercase_loss,min_k_plus_plus"),
        [{"attacks": MORE, "score.statistics": tuple(config.NEEDED.values())}],
    ),
    *(
        ({"alpha": bad}, f"attack.alpha={bad!r}: must lie between 0 and 1", [{"alpha": 1e-9}, {"alpha": 0.999}])
        for bad in (0.0, 1.0, NAN, -1.0)
    ),
    *(
        (
            {"fprs": bad, "focus_fpr": bad[0]},
            FPRS.format(bad),
            [{"fprs": (0.1, 1.0)}, {"fprs": (1e-9, 0.1, 0.100001)}, {"fprs": (0.1,)}],
        )
        for bad in ((0.0, 0.1), (-0.1, 0.1), (0.1, 1.1), (0.2, 0.1), (0.1, 0.1), (0.1, 0.10000001), (0.1, NAN))
    ),
    ({"focus_fpr": 0.3}, "attack.focus_fpr=0.3: must be one of attack.fprs=(0.1, 0.5)", [{"focus_fpr": 0.5}]),
    *(
        ({"band": bad}, BAND.format(bad), [{"band": (0.0, 1.0)}, {"band": (0.2, 0.200001)}])
        for bad in ((0.1, 0.1), (0.2, 0.1), (-0.1, 0.1), (0.1, 1.1), (NAN, 0.1), (0.1, NAN))
    ),
    *(
        (
            {"rmia_samples": bad},
            f"attack.rmia_samples={bad}: must be 1 or larger",
            [{"rmia_samples": 1}, {"rmia_samples": 10**6}],
        )
        for bad in (0, -1)
    ),
    *(
        (
            {"rmia_gamma": bad},
            f"attack.rmia_gamma={bad!r}: must be a finite number larger than 0",
            [{"rmia_gamma": 1e-9}, {"rmia_gamma": 100.0}],
        )
        for bad in (0.0, -1.0, INF, NAN)
    ),
    *(
        ({"rmia_a": bad}, f"attack.rmia_a={bad!r}: must lie in [0, 1]", [{"rmia_a": 0.0}, {"rmia_a": 1.0}])
        for bad in (-0.1, 1.1, NAN)
    ),
    ({"bootstraps": -1}, "attack.bootstraps=-1: must be 0 or larger", [{"bootstraps": 0}, {"bootstraps": 1}]),
    *(
        (
            {"resample_references": bad, "references": 9},
            RESAMPLED.format(bad),
            [
                {"resample_references": 4, "references": 8},
                {"resample_references": 4, "references": 10},
            ],
        )
        for bad in (-4, 1, 3, 5)
    ),
    (
        {"leave_one_out": True, "train.subset": "balanced"},
        LEFT_OUT,
        [{"leave_one_out": True}, {"leave_one_out": True, "train.subset": "bernoulli"}],
    ),
    *(
        (
            {"ambiguous_separation": low, "clear_separation": high},
            APART.format(low, high),
            [{"ambiguous_separation": x, "clear_separation": x} for x in (0.0, 1.0)],
        )
        for low, high in ((-0.1, 2.0), (2.1, 2.0), (NAN, 2.0), (0.5, INF), (0.5, NAN))
    ),
    *(
        ({"stable_flip": bad}, f"attack.stable_flip={bad!r}: must lie in [0, 0.5]", [{"stable_flip": 0.0}])
        for bad in (-0.1, 0.51, NAN)
    ),
]  # fmt: skip


def changed(changes: Changes) -> Config:
    """TINY with fields of the attack changed, and others that are named in full."""
    new = TINY
    for field, value in changes.items():
        new = change(new, field if "." in field else f"attack.{field}", value)
    return new


@pytest.mark.parametrize(
    ("changes", "said", "sound"), OF_ATTACK, ids=[str(r[0]) for r in OF_ATTACK]
)
def test_every_rule_of_the_attack(changes: Changes, said: str, sound: list[Changes]):
    assert problems(changed(changes)) == [said]
    for good in sound:
        assert problems(changed(good)) == []


def test_a_field_of_the_attack_without_a_rule_would_show_here():
    ruled = {line.partition("=")[0] for _, line, _ in OF_ATTACK}
    free = {"attack.variance", "attack.finite_population", "attack.clear_separation"}
    assert ruled | free == {field for field in FIELDS if field.startswith("attack.")}


def test_what_attacks_need_is_what_the_store_can_hold():
    kinds = dict(parse._fields(Config))
    assert set(config.NEEDED) < set(get_args(config.AttackName))
    [choices, _] = get_args(kinds["score.statistics"])
    assert set(config.NEEDED.values()) == set(get_args(choices))
    assert set(config.NEEDED.values()) <= set(store_format.VARIABLES)
    assert not set(config.NEEDED) & set(Config().attack.attacks)  # the default needs no more


@pytest.mark.parametrize(("changes", "said"), BROKEN, ids=[str(c) for c, _ in BROKEN])
def test_every_broken_rule_is_one_line(changes: dict[str, Any], said: list[str]):
    broken = TINY
    for field, value in changes.items():
        broken = change(broken, field, value)
    assert problems(broken) == said


def test_rules_that_just_hold():
    for changes in (
        {"train.batch_size": 8, "optimizer.warmup_steps": 0},
        {"population.length_tokens": 3},
        {"optimizer.warmup_steps": 0},
        {"optimizer.init_learning_rate": 0.0, "optimizer.weight_decay": 0.0},
        {"train.subset": "balanced"},
        {"train.subset": "bernoulli", "attack.references": 5},
        {"corpus.source": "jsonl", "corpus.path": "x"},
    ):
        sound = TINY
        for field, value in changes.items():
            sound = change(sound, field, value)
        assert problems(sound) == []


def test_all_problems_are_told_at_once():
    broken = change(change(change(TINY, "train.epochs", 0), "model.heads", 3), "attack.replicas", 1)
    assert [line.partition("=")[0] for line in problems(broken)] == [
        "train.epochs",
        "model.heads",
        "attack.replicas",
    ]


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_problems_never_raises_and_names_a_field(samples: int, batch: int, width: int, heads: int):
    c = TINY
    for field, value in (
        *(("population.samples", samples), ("train.batch_size", batch)),
        *(("model.width", width), ("model.heads", heads), ("optimizer.warmup_steps", 0)),
    ):
        c = change(c, field, value)
    found = problems(c)
    assert all(line.partition("=")[0] in FIELDS for line in found)
    sound = samples > 0 and samples % 2 == 0 and 0 < batch <= samples // 2
    assert (found == []) == (sound and width > 0 and heads > 0 and width % heads == 0)
