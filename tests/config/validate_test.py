import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY, change

from lm_mia import config
from lm_mia.config import Config, load
from lm_mia.config.validate import problems

FIELDS = [*load.field_types()]


def changed(changes: dict[str, Any]) -> Config:
    c = TINY
    for field, value in changes.items():
        c = change(c, field, value)
    return c


def test_valid_configs_have_no_problems():
    assert problems(TINY) == []
    assert problems(config.resolve(Config())) == []


EXTRACT = {"extract.samples": 1, "extract.prefix_tokens": 2, "extract.suffix_tokens": 2}
CUDNN = {"compute.attention": "cudnn", "model.dtype": "bfloat16", "model.heads": 1}  # heads of 8
RATE = {"attack.fprs": (0.5,), "attack.focus_fpr": 0.5}
LLAMA = {"model.kind": "llama"}
C4 = {"corpus.source": "c4", "tokenizer.documents": 5}
# (changes that break a rule between fields, its field, words of the line)
BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"population.samples": 17}, "population.samples", "population.samples=18"),
    ({"population.random_samples": 16}, "population.random_samples", "random_samples=4"),
    (
        {"population.random_samples": 2, "corpus.split_documents": True},
        "population.random_samples",
        "must be 0",
    ),
    (
        {"population.distinct_prefix_tokens": 9},
        "population.distinct_prefix_tokens",
        "length_tokens=8",
    ),
    ({"corpus.path": "x"}, "corpus.path", "must be empty"),
    ({"corpus.source": "text"}, "corpus.path", "set --config.corpus.path"),
    (C4 | {"corpus.deduplicate": "exact"}, "corpus.deduplicate", "near"),
    (C4 | {"tokenizer.documents": "all"}, "tokenizer.documents", "documents=200000"),
    ({"model.heads": 3}, "model.heads", "try --config.model.heads=2"),
    ({"model.heads": 100}, "model.heads", "try --config.model.heads=8"),
    ({"model.size": "custom", "model.layers": "auto"}, "model.layers", "model.size=custom"),
    (LLAMA | {"model.kv_heads": 4}, "model.kv_heads", "model.heads=2"),
    (LLAMA | {"model.heads": 8}, "model.heads", "even"),
    (LLAMA | {"model.head_width": 3}, "model.head_width", "even"),
    ({"model.kv_heads": 2}, "model.kv_heads", "is not read by model.kind=gpt"),
    ({"model.vocab_size": 31_999}, "model.vocab_size", "tokenizer.vocab_size=32000"),
    ({"tokenizer.vocab_size": 4}, "tokenizer.vocab_size", "at least 5"),
    ({"model.kind": "lama"}, "model.kind", "did you mean llama?"),
    ({"model.init": "x"}, "model.init", "hf:FOLDER"),
    (
        {"train.batch_size": 9, "optimizer.warmup_steps": 0},
        "train.batch_size",
        "N = population.samples / 2 = 8",
    ),
    ({"optimizer.warmup_steps": 2}, "optimizer.warmup_steps", "warmup_steps=0"),
    ({"train.subset": "given"}, "train.subset", "imported"),
    ({"train.subset": "balanced", "attack.references": 5}, "attack.references", "even"),
    ({"train.validations": 1}, "train.validations", "validation_samples=1024"),
    (
        {"train.validations": 3, "population.validation_samples": 1},
        "train.validations",
        "2 training steps",
    ),
    ({"train.workers": 2, "compute.devices_per_model": "all"}, "train.workers", "workers=auto"),
    (
        {"compute.devices_per_model": 4, "train.batch_size": 2},
        "compute.devices_per_model",
        "devices_per_model=2",
    ),
    *(
        (CUDNN | more, "compute.attention", words)
        for more, words in (
            ({"model.dtype": "float32"}, "bfloat16, not float32"),
            ({"model.heads": 2}, "divisible by 8, not 4"),
            ({"model.width": 136}, "at most 128, not 136"),
            ({"population.length_tokens": 9}, "even population.length_tokens, not 9"),
            (
                {"model.dtype": "float32", "population.length_tokens": 9},
                "not float32; it needs an even population.length_tokens, not 9",
            ),
        )
    ),
    ({"compute.attention": "pallas"}, "compute.attention", "divisible by 64, not 8"),
    ({"score.at_steps": (2,)}, "score.at_steps", "below 2"),
    *(
        (
            {"train.batch_size": 2, "train.epochs": 2, "score.at_epochs": bad},
            "score.at_epochs",
            words,
        )
        for bad, words in (  # with 2 epochs of 4 steps
            ((2.0,), "below 2"),
            ((1.99,), "steps 8,"),
            ((0.5, 1.875), "steps 2, 8,"),
            ((0.001, 0.1), "steps 1, 1,"),
            ((1.4, 1.0, 1.5), "steps 6, 4, 6,"),
        )
    ),
    *(
        ({field: points, "train.subset": "bernoulli"}, field, "subset=exact")
        for field, points in (("score.at_steps", (1,)), ("score.at_epochs", (0.5,)))
    ),
    ({"score.token_samples": (3, 16)}, "score.token_samples", "unlike 16"),
    ({"score.at_steps": (1,), "attack.step": 2}, "attack.step", "must be last"),
    ({"train.canaries": 18}, "train.canaries", "population.samples=16"),
    ({"train.canaries": 7}, "train.canaries", "canaries=6"),
    (
        {"train.canaries": 4, "corpus.split_documents": True} | RATE,
        "train.canaries",
        "all",
    ),
    (
        {"train.canaries": 4, "train.batch_size": 15, "optimizer.warmup_steps": 0},
        "train.batch_size",
        "population.samples - train.canaries / 2 = 14",
    ),
    (
        {"train.canaries": 4, "attack.fprs": (0.3,), "attack.focus_fpr": 0.3},
        "attack.fprs",
        "2 non-members (train.canaries / 2)",
    ),
    ({"extract.samples": 1}, "extract.suffix_tokens", "prefix_tokens=4"),
    (EXTRACT | {"extract.top_k": 33_000}, "extract.top_k", "top_k=all"),
    (EXTRACT | {"extract.written_tokens": 1}, "extract.written_tokens", "suffix_tokens=2"),
    (EXTRACT | {"extract.written_tokens": 7}, "extract.written_tokens", "length_tokens=8"),
]


@pytest.mark.parametrize(("changes", "field", "words"), BROKEN, ids=[str(c) for c, *_ in BROKEN])
def test_each_broken_rule_is_reported_on_one_line(changes: dict[str, Any], field: str, words: str):
    """As field=value: rule; remedy."""
    c = changed(changes)
    [line] = problems(c)
    section, _, leaf = field.partition(".")
    assert line.startswith(f"{field}={getattr(getattr(config.resolve(c), section), leaf)!r}: ")
    assert words in line
    assert "; " in line


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
        {"optimizer.clip_norm": "none", "optimizer.schedule": "constant"},
        {"population.distinct_prefix_tokens": 8, "population.frequency_samples": 17},
        {"train.validations": 2, "population.validation_samples": 1},
        {"train.trackers": ("wandb", "tensorboard")},
        {"score.at_steps": (1,), "score.at_epochs": (0.5,), "train.subset": "balanced"},
        {"train.batch_size": 2, "train.epochs": 2, "score.at_epochs": (0.001, 0.4, 1.87)},
        CUDNN,
        CUDNN | {"model.width": 128},
        {"compute.attention": "pallas", "population.length_tokens": 256},
        {"compute.attention": "xla", "population.length_tokens": 9},
        {"train.workers": 1, "compute.devices_per_model": "all"},
        {"train.batch_size": 2, "compute.devices_per_model": 2, "train.workers": 2},
        {"train.workers": 99},
    ):
        assert problems(changed(changes)) == []


@pytest.mark.parametrize(
    ("changes", "step", "words"),
    [
        ({"score.at_steps": (99,)}, 98, "other steps"),
        ({"score.at_steps": (3, 99)}, 2, "scored, 3"),
        ({"score.at_epochs": (0.001, 0.1)}, 2, "scored, 1"),
        ({"score.at_epochs": (0.001, 0.1)}, 1, None),
        # The epochs may have been meant to include any other step, but not these.
        ({"score.at_epochs": (2.0,)}, 4, "below 4"),
        ({"score.at_epochs": (2.0,), "score.at_steps": (1,)}, 3, None),
    ],
)
def test_invalid_score_points_do_not_hide_an_invalid_attack_step(
    changes: dict[str, Any], step: int, words: str | None
):
    lines = problems(changed(changes | {"train.batch_size": 2, "attack.step": step}))
    assert lines[0].startswith(tuple(changes))
    [*of_step] = [line for line in lines if line.startswith("attack.step=")]
    assert len(lines) == 1 + len(of_step) == 1 + (words is not None)
    assert words is None or words in of_step[0]


def test_rules_do_not_read_fields_with_mistakes_of_their_own():
    for changes in (
        {"score.at_epochs": (math.nan,), "attack.step": 1},
        {"model.width": -1, "model.heads": 3, "compute.attention": "cudnn"},
        {"model.width": 0, "model.heads": "auto", "model.kind": "llama", "model.kv_heads": 5},
        {"model.size": "90M", "model.layers": "auto", "model.width": "auto", "model.heads": 7},
        {"population.samples": 0, "train.batch_size": 999, "optimizer.warmup_steps": 999},
        {"train.epochs": "1", "score.at_steps": (99,), "train.validations": 0},
        {"corpus.source": "tex", "corpus.path": "x"},
    ):
        [line] = problems(changed(changes))
        assert line.startswith(f"{next(iter(changes))}=")


def test_mistakes_of_all_kinds_are_reported_at_once():
    """Types, ranges and rules between fields, in the order of the fields."""
    changes = {"attack.alpha": 2.0, "model.heads": 3, "train.epochs": "1", "corpus.path": "x"}
    lines = problems(changed(changes | {"attack.focus_fpr": 0.3, "optimizer.b1": math.nan}))
    assert [line.partition("=")[0] for line in lines] == [
        "corpus.path",
        "model.heads",
        "optimizer.b1",
        "train.epochs",
        "attack.focus_fpr",
        "attack.alpha",
    ]


def test_invalid_heads_do_not_hide_other_attention_requirements():
    broken = change(change(TINY, "compute.attention", "cudnn"), "model.heads", 3)
    first, second = problems(broken)
    assert first.startswith("model.heads=3: ")
    assert re.match(r"compute\.attention='cudnn': .*model\.dtype=bfloat16\b.*\bfloat32;", second)


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


def test_bernoulli_subsets_may_have_an_odd_number_of_canaries():
    c = change(change(TINY, "train.subset", "bernoulli"), "train.canaries", 7)
    assert problems(change(c, "attack.fprs", (0.1, 0.5))) == []
