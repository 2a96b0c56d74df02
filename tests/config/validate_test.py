import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY, change

from lm_mia import config
from lm_mia.config import Config, load
from lm_mia.config.validate import problems

FIELDS = [*load.field_types()]


def test_valid_configs_have_no_problems():
    assert problems(TINY) == []
    assert problems(config.resolve(Config())) == []


POINTS = (
    "must be distinct numbers above 0 and below {}, the end of training, which is always scored"
)
ROUNDED = "is rounded to steps {}, which must be distinct and below 8, the end of training, which is always scored"
AUTO = "set --config.compute.attention=auto"
CUDNN = {"compute.attention": "cudnn", "model.dtype": "bfloat16", "model.heads": 1}  # heads of 8
# (changes that break a rule, the message)
BROKEN: list[tuple[dict[str, Any], str]] = [
    *(
        ({field: bad}, f"{field}={bad!r}: must be a finite number larger than 0")
        for field in (
            "corpus.min_chars",
            "tokenizer.vocab_size",
            "model.layers",
            "model.width",
            "model.heads",
            "train.batch_size",
            "train.epochs",
            "optimizer.peak_learning_rate",
            "train.checkpoint_minutes",
            "population.frequency_samples",
            "population.group_prefix_tokens",
        )
        for bad in ((0, -1, math.nan, math.inf) if "optimizer" in field else (0, -1))
    ),
    *(
        ({field: bad}, f"{field}={bad!r}: must be a finite number, 0 or larger")
        for field in (
            "population.seed",
            "train.workers",
            "optimizer.weight_decay",
            "optimizer.clip_norm",
            "optimizer.init_learning_rate",
            "optimizer.final_learning_rate",
            "corpus.processes",
            "tokenizer.documents",
            "population.validation_samples",
            "population.distinct_prefix_tokens",
            "train.validations",
            "compute.micro_batch_size",
            "score.micro_batch_size",
        )
        for bad in ((-1, math.nan, math.inf) if "optimizer" in field else (-1,))
    ),
    (
        {"population.samples": 17},
        (
            "population.samples=17: must be even, since models are trained on half of the samples; "
            "try --config.population.samples=18"
        ),
    ),
    ({"population.samples": 0}, "population.samples=0: must be a finite number larger than 0"),
    ({"population.samples": -3}, "population.samples=-3: must be a finite number larger than 0"),
    (
        {"population.length_tokens": 2},
        "population.length_tokens=2: must be 3 or larger (<bos>, one token, <eos>)",
    ),
    (
        {"train.batch_size": 9, "optimizer.warmup_steps": 0},
        (
            "train.batch_size=9: must be at most N = population.samples / 2 = 8, the size of a training subset; "
            "try --config.train.batch_size=1"
        ),
    ),
    ({"model.heads": 3}, "model.heads=3: must divide model.width=8; try --config.model.heads=2"),
    (
        {"model.heads": 100},
        "model.heads=100: must divide model.width=8; try --config.model.heads=8",
    ),
    (
        {"corpus.path": "x"},
        (
            "corpus.path='x': must be empty for corpus.source='docstrings'; "
            "set --config.corpus.source to text, jsonl, csv or parquet"
        ),
    ),
    (
        {"corpus.source": "text"},
        "corpus.path='': must be a file, a folder or a glob for corpus.source='text'; set --config.corpus.path",
    ),
    (
        {"optimizer.warmup_steps": 2},
        (
            "optimizer.warmup_steps=2: must be less than the 2 training steps of a model, which follow from "
            "population.samples, train.batch_size and train.epochs; try --config.optimizer.warmup_steps=0"
        ),
    ),
    (
        {"train.subset": "balanced", "attack.references": 5},
        "attack.references=5: must be even for train.subset='balanced', where references come in pairs",
    ),
    (
        {"population.distinct_prefix_tokens": 9},
        "population.distinct_prefix_tokens=9: must be at most population.length_tokens=8",
    ),
    (
        {"train.validations": 1},
        "train.validations=1: requires held-out samples; try --config.population.validation_samples=1024",
    ),
    (
        {"train.validations": 3, "population.validation_samples": 1},
        "train.validations=3: must be at most the 2 training steps of a model",
    ),
    (
        {"train.trackers": ("wandb", "tensorboard", "wandb")},
        "train.trackers=('wandb', 'tensorboard', 'wandb'): must have no duplicates",
    ),
    (
        {"corpus.source": "c4", "corpus.deduplicate": "exact", "tokenizer.documents": 5},
        (
            "corpus.deduplicate='exact': corpus.source='c4' has too many documents to compare before they are drawn; "
            "set --config.corpus.deduplicate=near, which also drops identical texts, or none"
        ),
    ),
    (
        {"corpus.source": "c4", "corpus.deduplicate": "none"},
        (
            "tokenizer.documents=0: corpus.source='c4' has too many documents to train a vocabulary on all of them; "
            "try --config.tokenizer.documents=200000, or set --config.tokenizer.path"
        ),
    ),
    *(
        ({"score.at_steps": bad}, f"score.at_steps={bad}: {POINTS.format(2)}")
        for bad in ((0,), (-1,), (2,), (1, 1))
    ),
    *(
        ({"score.at_epochs": bad}, f"score.at_epochs={bad}: {POINTS.format(1)}")
        for bad in ((0.0,), (-0.5,), (1.0,), (math.nan,), (math.inf,), (0.5, 0.5))
    ),
    # With 2 epochs of 4 steps.
    *(
        (
            {"train.batch_size": 2, "train.epochs": 2, "score.at_epochs": bad},
            f"score.at_epochs={bad}: {ROUNDED.format(steps)}",
        )
        for bad, steps in (
            ((1.99,), "8"),
            ((0.5, 1.875), "2, 8"),
            ((0.001, 0.1), "1, 1"),
            ((1.4, 1.0, 1.5), "6, 4, 6"),
        )
    ),
    # attack.step is not checked against invalid score points.
    (
        {"score.at_epochs": (math.nan,), "attack.step": 1},
        f"score.at_epochs=(nan,): {POINTS.format(1)}",
    ),
    *(
        (
            {f"score.{field}": points, "train.subset": "bernoulli"},
            (
                f"score.{field}={points}: must be empty for train.subset='bernoulli', where models differ in the "
                "number of steps; set --config.train.subset=exact"
            ),
        )
        for field, points in (("at_steps", (1,)), ("at_epochs", (0.5,)))
    ),
    (
        {"score.at_steps": (1,), "attack.step": 2},
        "attack.step=2: must be 0 (the end of training) or a step at which models are scored, 1",
    ),
    (
        {"train.workers": 2, "compute.devices_per_model": 0},
        (
            "train.workers=2: must be 0 or 1 for compute.devices_per_model=0, where one process uses all devices of a "
            "machine; set --config.train.workers=0"
        ),
    ),
    (
        {"compute.devices_per_model": -1},
        "compute.devices_per_model=-1: must be auto, or a number of devices from 0 (all devices of the job); "
        "set --config.compute.devices_per_model=auto",
    ),
    (
        {"compute.devices_per_model": 4, "train.batch_size": 2},
        (
            "compute.devices_per_model=4: must be at most train.batch_size=2, since each device needs a sample "
            "of a batch; set --config.compute.devices_per_model=2"
        ),
    ),
    *(
        (CUDNN | more, f"compute.attention='cudnn': it needs {expected}; {AUTO}")
        for more, expected in (
            ({"model.dtype": "float32"}, "model.dtype=bfloat16, not float32"),
            ({"model.heads": 2}, "model.width / model.heads divisible by 8, not 4"),
            ({"model.width": 136}, "model.width / model.heads of at most 128, not 136"),
            ({"population.length_tokens": 9}, "an even population.length_tokens, not 9"),
            (
                {"model.dtype": "float32", "population.length_tokens": 9},
                "model.dtype=bfloat16, not float32; it needs an even population.length_tokens, not 9",
            ),
        )
    ),
    (
        {"compute.attention": "pallas"},
        f"compute.attention='pallas': it needs population.length_tokens divisible by 64, not 8; {AUTO}",
    ),
    (
        {"score.statistics": ("min_k", "lowercase_loss", "min_k")},
        "score.statistics=('min_k', 'lowercase_loss', 'min_k'): must have no duplicates",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[str(c) for c, _ in BROKEN])
def test_each_broken_rule_is_reported_on_one_line(changes: dict[str, Any], message: str):
    broken = TINY
    for field, value in changes.items():
        broken = change(broken, field, value)
    assert problems(broken) == [message]


def test_values_at_the_limits_are_valid():
    for changes in (
        {"train.batch_size": 8, "optimizer.warmup_steps": 0},
        {"population.length_tokens": 3},
        {"optimizer.warmup_steps": 0},
        {"optimizer.init_learning_rate": 0.0, "optimizer.weight_decay": 0.0},
        {"train.subset": "balanced"},
        {"train.subset": "bernoulli", "attack.references": 5},
        {"corpus.source": "jsonl", "corpus.path": "x"},
        {"corpus.source": "c4", "tokenizer.documents": 1},
        {"corpus.source": "c4", "corpus.deduplicate": "none", "tokenizer.path": "x"},
        {"corpus.deduplicate": "none", "corpus.processes": 3, "compute.micro_batch_size": 2},
        {"optimizer.clip_norm": 0.0, "optimizer.schedule": "constant"},
        {"population.distinct_prefix_tokens": 8, "population.frequency_samples": 17},
        {"train.validations": 2, "population.validation_samples": 1},
        {"train.trackers": ("wandb", "tensorboard")},
        {"score.at_steps": (1,), "score.at_epochs": (0.5,), "train.subset": "balanced"},
        {"train.batch_size": 2, "train.epochs": 2, "score.at_epochs": (0.001, 0.4, 1.87)},
        CUDNN,
        CUDNN | {"model.width": 128},
        {"compute.attention": "pallas", "population.length_tokens": 256},
        {"compute.attention": "xla", "population.length_tokens": 9},
        {"train.workers": 1, "compute.devices_per_model": 0},
        {"train.batch_size": 2, "compute.devices_per_model": 2, "train.workers": 2},
        {"train.workers": 99},
    ):
        valid = TINY
        for field, value in changes.items():
            valid = change(valid, field, value)
        assert problems(valid) == []


def test_all_problems_are_reported_together():
    broken = change(change(change(TINY, "train.epochs", 0), "model.heads", 3), "attack.replicas", 1)
    assert [line.partition("=")[0] for line in problems(broken)] == [
        "model.heads",
        "train.epochs",
        "attack.replicas",
    ]


SCORED = "must be 0 (the end of training) or a step at which models are scored,"
NOT_SCORED = (
    "must be 0 (the end of training), since models are not scored at other steps; "
    "add the step to score.at_steps"
)


@pytest.mark.parametrize(
    ("changes", "step", "rule"),
    [
        ({"score.at_steps": (0, 1)}, 3, f"{SCORED} 1"),
        ({"score.at_steps": (99,)}, 99, NOT_SCORED),
        ({"score.at_steps": (3, 3, 99)}, 2, f"{SCORED} 3"),
        ({"score.at_steps": (3, 3)}, 3, None),
        ({"score.at_epochs": (0.001, 0.1)}, 2, f"{SCORED} 1"),
        ({"score.at_epochs": (0.001, 0.1)}, 1, None),
        # The epochs may have been meant to include any other step, but not these.
        ({"score.at_epochs": (math.nan,)}, 4, f"{SCORED} below 4"),
        ({"score.at_epochs": (2.0,), "score.at_steps": (1,)}, -1, f"{SCORED} below 4"),
        ({"score.at_epochs": (2.0,), "score.at_steps": (1,)}, 3, None),
    ],
)
def test_invalid_score_points_do_not_hide_an_invalid_attack_step(
    changes: dict[str, Any], step: int, rule: str | None
):
    broken = change(change(TINY, "train.batch_size", 2), "attack.step", step)
    for field, value in changes.items():
        broken = change(broken, field, value)
    first, *rest = problems(broken)
    assert first.startswith(tuple(changes))
    assert rest == ([] if rule is None else [f"attack.step={step}: {rule}"])


def test_invalid_heads_do_not_hide_other_attention_requirements():
    broken = change(change(TINY, "compute.attention", "cudnn"), "model.heads", 3)
    first, second = problems(broken)
    assert first.startswith("model.heads=3: ")
    assert (
        second == f"compute.attention='cudnn': it needs model.dtype=bfloat16, not float32; {AUTO}"
    )


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_problems_never_raises_and_names_a_field(samples: int, batch: int, width: int, heads: int):
    c = TINY
    for field, value in (
        ("population.samples", samples),
        ("train.batch_size", batch),
        ("model.width", width),
        ("model.heads", heads),
        ("optimizer.warmup_steps", 0),
    ):
        c = change(c, field, value)
    result = problems(c)
    assert all(line.partition("=")[0] in FIELDS for line in result)
    is_valid = samples > 0 and samples % 2 == 0 and 0 < batch <= samples // 2
    assert (result == []) == (is_valid and width > 0 and heads > 0 and width % heads == 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train.canaries": 18},
            "train.canaries=18: must be 0 (all samples are canaries), or from 2 to population.samples=16",
        ),
        ({"train.canaries": -1}, "train.canaries=-1: must be a finite number, 0 or larger"),
        (
            {"train.canaries": 1},
            "train.canaries=1: must be 0 (all samples are canaries), or from 2 to population.samples=16",
        ),
        (
            {"train.canaries": 7},
            "train.canaries=7: must be even for train.subset='exact', which trains each model on half of the canaries; "
            "try --config.train.canaries=6",
        ),
        (
            {
                "train.canaries": 4,
                "corpus.split_documents": True,
                "attack.fprs": (0.5,),
                "attack.focus_fpr": 0.5,
            },
            "train.canaries=4: must be 0 for corpus.split_documents=True, since every model would be trained on other "
            "pieces of the canaries' documents; set --config.corpus.split_documents=False",
        ),
        (
            {"train.canaries": 4, "train.batch_size": 15, "optimizer.warmup_steps": 0},
            "train.batch_size=15: must be at most population.samples - train.canaries / 2 = 14, the size of a training "
            "subset; try --config.train.batch_size=1",
        ),
        (
            {"train.canaries": 4, "attack.fprs": (0.3,), "attack.focus_fpr": 0.3},
            "attack.fprs=(0.3,): must be at least 0.5, the lowest rate that 2 non-members (train.canaries / 2) can "
            "show; add a higher rate",
        ),
        (
            {"population.random_samples": 16},
            "population.random_samples=16: must be less than population.samples=16, since random samples are as long "
            "as the median of the others; try --config.population.random_samples=4",
        ),
        (
            {"population.random_samples": 4, "corpus.split_documents": True},
            "population.random_samples=4: must be 0 for corpus.split_documents=True, since random samples belong to no "
            "document; set --config.corpus.split_documents=False",
        ),
    ],
)
def test_rules_of_canaries(changes: dict[str, Any], message: str):
    broken = TINY
    for field, value in changes.items():
        broken = change(broken, field, value)
    assert problems(broken) == [message]


def test_bernoulli_subsets_may_have_an_odd_number_of_canaries():
    c = change(change(TINY, "train.subset", "bernoulli"), "train.canaries", 7)
    assert problems(change(c, "attack.fprs", (0.1, 0.5))) == []
