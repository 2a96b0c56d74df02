import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY, change

from lm_mia.config import Config, load, resolve
from lm_mia.config.recipe import SweepEntry, recipe_requests
from lm_mia.plan import plan
from lm_mia.plan.speed import Speed
from lm_mia.run.costs import RecipeCost, SampleLengths, assumed_lengths, recipe_cost
from lm_mia.run.sweep import SweepRecipe
from lm_mia.run.workdir import Workdir

# 16 samples of at most 8 tokens, one layer of width 8, two steps, 4 references and 2 replicas.
BASE = resolve(TINY)
C4 = Path(__file__).resolve().parents[2] / "configs" / "c4.py"
FIVE = SampleLengths(5.0, 27.0, "by hand")


def tasks(entries: Sequence[SweepEntry]) -> list[SweepRecipe]:
    """Returns the recipes that entries request, in a workdir that does not exist."""
    workdir = Workdir(Path("not_there"))
    return [
        SweepRecipe(workdir, r.names[0], r.config, r.names, r.entries, r.overrides)
        for r in recipe_requests(entries, "tiny")
    ]


def cost_of(c: Config, lengths: SampleLengths = FIVE) -> RecipeCost:
    [task] = tasks([({}, c)])
    return recipe_cost(task, lengths)


def lengths_at(
    length_tokens: int, mean_tokens: float | None = None, split_documents: bool = False
) -> SampleLengths:
    """Returns the assumed lengths of samples of at most length_tokens."""
    c = changed_config(
        ("population.length_tokens", length_tokens), ("corpus.split_documents", split_documents)
    )
    return assumed_lengths(c, mean_tokens)


def changed_config(*changes: tuple[str, Any]) -> Config:
    c = BASE
    for field, value in changes:
        c = change(c, field, value)
    return c


def test_cost_of_a_tiny_recipe():
    vocab = 32_000  # the default
    costs = cost_of(changed_config(("train.epochs", 3)))
    per_token = 6 * (12 * 8**2 + 8 * vocab)
    train_sample, score_sample = (share * (per_token * 5 + 6 * 8 * 27) for share in (1, 1 / 3))
    parameters = 12 * 8**2 + 3 * 8 + (vocab + 8) * 8
    assert (costs.models, costs.steps_per_model, costs.parameters) == (6, 6, parameters)
    assert costs.train_tokens == 6 * 3 * 8 * 5
    assert costs.train_flops == pytest.approx(6 * 3 * 8 * train_sample)
    assert costs.score_flops == pytest.approx(6 * 16 * score_sample)
    assert costs.checkpoint_bytes == 6 * 12 * parameters
    assert costs.score_point_bytes == 0
    assert costs.store_bytes == 6 * 16 * (4 + 1)
    assert costs.population_bytes == 16 * (5 * 2 + 8 + 52)
    total = costs.train_flops + costs.score_flops
    assert plan.chip_hours(costs, at_rate(1e3)) == pytest.approx((total / 3.6e6, total / 3.6e6))


def test_checkpoints_without_moments_have_only_parameters(capsys: pytest.CaptureFixture[str]):
    kept = cost_of(changed_config(("score.at_steps", (1,))))
    dropped = cost_of(changed_config(("score.at_steps", (1,)), ("train.keep_moments", False)))
    assert dropped.checkpoint_bytes == dropped.score_point_bytes == 6 * 4 * dropped.parameters
    assert dropped.checkpoint_bytes == kept.checkpoint_bytes / 3
    for costs, is_said in (([kept], False), ([dropped], True), ([kept, dropped], True)):
        plan.print_costs(costs, None, plan.FinishedModels())
        [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("checkpoints ")]
        assert ("train.keep_moments=False" in line) == is_said


def test_score_points_and_statistics_add_cost():
    plain = cost_of(BASE)
    points = cost_of(changed_config(("score.at_steps", (1,))))
    assert points.score_points == 2
    assert points.score_flops == pytest.approx(2 * plain.score_flops)
    assert points.store_bytes == 6 * 16 * (2 * 4 + 1)  # membership is stored once
    assert points.score_point_bytes == points.checkpoint_bytes == plain.checkpoint_bytes
    more = cost_of(
        changed_config(("score.at_steps", (1,)), ("score.statistics", ("min_k", "min_k_plus_plus")))
    )
    assert more.store_bytes == 6 * 16 * (2 * 3 * 4 + 1)
    assert more.score_flops == points.score_flops  # the same forward pass gives all of them
    lower = cost_of(changed_config(("score.statistics", ("lowercase_loss",))))
    assert lower.score_flops == pytest.approx(2 * plain.score_flops)
    held_out = (("population.validation_samples", 8), ("train.validations", 2))
    assert cost_of(changed_config(*held_out)).score_flops == pytest.approx(2 * plain.score_flops)
    assert cost_of(changed_config(*held_out)).population_bytes == 24 * (5 * 2 + 8 + 52)
    assert all(other.train_flops == plain.train_flops for other in (points, more, lower))


def test_large_vocabulary_needs_wider_tokens():
    sizes = [
        cost_of(changed_config(("tokenizer.vocab_size", v))).population_bytes
        for v in (2**16, 2**16 + 1)
    ]
    assert sizes == [16 * (5 * 2 + 60), 16 * (5 * 4 + 60)]


def entries(*configs: Config) -> list[SweepEntry]:
    return [({"n": i}, c) for i, c in enumerate(configs)]


def test_recipe_is_counted_once_with_all_models():
    requested = tasks(
        entries(
            BASE,
            changed_config(("attack.references", 10), ("score.statistics", ("min_k",))),
            changed_config(("optimizer.weight_decay", 0.5)),
            changed_config(("attack.replicas", 7), ("score.statistics", ("lowercase_loss",))),
            changed_config(("train.workers", 3), ("compute.micro_batch_size", 2)),
            changed_config(("score.at_steps", (1,))),
        )
    )
    costs = [recipe_cost(task, FIVE, task.config.attack.references) for task in requested]
    assert [(r.entries, r.overrides) for r in costs] == [
        ((0, 1, 3, 4), {"n": 0}),
        ((2,), {"n": 2}),
        ((5,), {"n": 5}),
    ]
    assert [r.models for r in costs] == [10 + 7, 6, 6]
    assert [r.present_models for r in costs] == [10, 4, 4]
    both = changed_config(
        ("attack.references", 10),
        ("attack.replicas", 7),
        ("score.statistics", ("min_k", "lowercase_loss")),
    )
    merged = {"entries": (0, 1, 3, 4), "overrides": {"n": 0}, "name": "n=0", "present_models": 10}
    assert costs[0] == dataclasses.replace(cost_of(both), **merged)


def test_totals_count_a_population_once():
    requested = entries(
        BASE,
        changed_config(("model.layers", 2)),
        changed_config(("population.samples", 32), ("model.layers", 2)),
        changed_config(("population.validation_samples", 4), ("model.layers", 3)),
    )
    costs = [recipe_cost(task, FIVE) for task in tasks(requested)]
    assert len({r.population for r in costs}) == 3
    total = plan.totals(costs)
    assert total["population_bytes"] == (16 + 32 + 16 + 4) * (5 * 2 + 8 + 52)
    assert total["models"] == 24
    assert total["train_flops"] == sum(r.train_flops for r in costs)


def at_rate(flops_per_second: float) -> Speed:
    return Speed(1, 1.0, 0.4, "given", flops_per_second, flops_per_second)


def test_missing_chip_hours():
    costs = dataclasses.replace(cost_of(BASE), present_models=4)
    all_rows, missing = plan.chip_hours(costs, at_rate(1.0))
    assert missing == pytest.approx(all_rows / 3)


def test_lengths_are_assumed_as_in_c4():
    draw = np.random.default_rng(0).lognormal(5.689, 1.0, 10**6)
    for length in (16, 64, 1024, 10**6):
        cut_N = np.minimum(draw, length)
        lengths = lengths_at(length)
        assert lengths.mean_tokens == pytest.approx(cut_N.mean(), rel=0.01)
        assert lengths.mean_square_tokens == pytest.approx((cut_N**2).mean(), rel=0.03)
    assert lengths_at(1024).mean_tokens == pytest.approx(400, abs=0.1)


def test_assumed_lengths_of_pieces_are_those_of_split_documents():
    draw = np.random.default_rng(0).lognormal(5.689, 1.0, 10**6)
    for length in (64, 1024):
        full_N = np.ceil(draw / length) - 1
        pieces = np.r_[np.full(int(full_N.sum()), length), draw - full_N * length]
        lengths = lengths_at(length, split_documents=True)
        assert lengths.mean_tokens == pytest.approx(pieces.mean(), rel=0.01)
        assert lengths.mean_square_tokens == pytest.approx((pieces**2).mean(), rel=0.02)
        again = lengths_at(length, lengths.mean_tokens, split_documents=True)
        assert again.mean_square_tokens == pytest.approx(lengths.mean_square_tokens, rel=0.01)


@given(st.integers(4, 4096), st.floats(0.01, 1.0))
def test_other_mean_keeps_the_distribution(length: int, share: float):
    mean = max(share * length, 3)
    lengths = lengths_at(length, mean)
    assert lengths.mean_tokens == mean
    assert mean**2 * (1 - 1e-6) <= lengths.mean_square_tokens <= mean * length * (1 + 1e-6)


def test_explicit_default_mean_changes_nothing():
    given_lengths, assumed_lengths = (
        lengths_at(1024, lengths_at(1024).mean_tokens),
        lengths_at(1024),
    )
    assert given_lengths.mean_square_tokens == pytest.approx(
        assumed_lengths.mean_square_tokens, rel=1e-6
    )


def test_chip_hours_of_the_paper():
    """140M on C4: each of 128 references and 2 replicas trains on 7M samples of 400 tokens and scores 14M."""
    [(_, c), *_] = load.load_sweep(f"{C4}:140M")
    costs = cost_of(c, lengths_at(1024))
    draw_N = np.minimum(np.random.default_rng(1).lognormal(5.689, 1.0, 10**6), 1024)
    weights = 106_168_320 + 24_576_000  # 12 x 15 x 768^2, and the head: 768 x 32,000
    sample = 6 * weights * 400 + 6 * 15 * 768 * (draw_N**2).mean()
    flops_per_model = sample * (7_000_000 + (14_000_000 + 20 * 8_192) / 3)
    hours = 130 * flops_per_model / (0.4 * 989e12) / 3600
    assert plan.chip_hours(costs, at_rate(0.4 * 989e12))[0] == pytest.approx(hours, rel=0.005)
    assert hours == pytest.approx(355, abs=3)
    # StrongMIA, Section 3.1: 2.8B tokens per model.
    assert costs.train_tokens == pytest.approx(130 * 2.8e9, rel=1e-3)
    assert costs.steps_per_model == 54_688


def test_sweep_of_c4_equals_the_paper():
    """StrongMIA Table 7: training set sizes in millions, for Figure 2."""
    entries = load.load_sweep(str(C4))
    members = {c.model.size: c.population.samples / 2e6 for _, c in entries[1:]}
    table = {
        "10M": 0.5,
        "44M": 2.2,
        "85M": 4.25,
        "140M": 7,
        "302M": 15.1,
        "489M": 24.4,
        "604M": 30.2,
        "1018M": 50.9,
    }
    assert {name: members[name] for name in table} == pytest.approx(table, abs=0.051)
    assert len(entries) == 11
    tokens = [cost_of(c, lengths_at(1024)) for _, c in entries[1:]]
    for name, r in zip(members, tokens, strict=True):
        millions = int(name.removesuffix("M"))  # 20 tokens for each parameter that the name counts
        assert r.train_tokens / r.models == pytest.approx(20e6 * millions, rel=0.03), name
